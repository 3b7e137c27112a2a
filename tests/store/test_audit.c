/* test_audit.c - store_audit, the store's check of its own counts, which other tests rely on.
 *
 * The test changes one number in memory at a time.  The audit must report each disagreement, and
 * report none when the number is put back. */
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "store/store_impl.h"
#include "storetest.h"

enum { CHUNKS = 4 };
static const struct st_ctx one = {.base = 1, .own = 11, .branch = 0, .salt = "one"},
                           two = {.base = 2, .own = 12, .branch = 0, .salt = "two"};

/* A store with two owners, two contexts each, a lasting pin, a hit, an uncommitted chunk and an
 * erased one. */
static struct store *store_make(struct st_place *p, struct store_hit *hit)
{
    struct sha256 keys[CHUNKS];
    assert_true(st_place_open(p, "sim", 1));
    p->opts.cap_bytes = 64 << 20;
    struct store *s = st_open(p);
    for (uint64_t i = 0; i < 3; i++) {
        struct st_ctx a = one, b = two;
        a.own += i;
        b.own += i;
        assert_int_equal(st_save(s, &st_small, &a, 2, ST_BOTH, NULL), 0);
        assert_int_equal(st_save(s, &st_small, &b, 2, ST_BOTH, NULL), 0);
    }
    st_keys(&one, CHUNKS, keys);
    assert_int_equal(store_pin_until(s, keys, 2, INT64_MAX, NULL), 0);
    st_keys(&two, CHUNKS, keys);
    assert_true(store_pin(s, &keys[1], hit));
    assert_int_equal(st_append(s, &st_small, &one, 2, ST_KV, NULL), 0);
    assert_true(store_audit(s));
    return s;
}

static void must_see(struct store *s, const char *what)
{
    if (store_audit(s))
        fail_msg("not seen: %s", what);
}

/* Changes one number and puts it back.  (Bit fields are changed by hand.) */
#define BREAK(s, place, value)                                                             \
    do {                                                                                   \
        __typeof__(place) before = (place);                                                \
        (place) = (value);                                                                 \
        must_see(s, #place " = " #value);                                                  \
        (place) = before;                                                                  \
        assert_true(store_audit(s));                                                       \
    } while (0)

static struct chunk_node *node_of(struct store *s, const struct st_ctx *c, int chunk)
{
    struct sha256 keys[CHUNKS];
    st_keys(c, chunk + 1, keys);
    struct chunk_node *n = catalog_find(&s->catalog, &keys[chunk]);
    assert_non_null(n);
    return n;
}

TEST(nodes)
{
    struct st_place p;
    struct store_hit hit;
    struct store *s = store_make(&p, &hit);
    struct chunk_node *leaf = node_of(s, &two, 1), *free_leaf,
                      *parent = node_of(s, &two, 0);
    struct chunk_node *pending = node_of(s, &one, 2), *pinned = node_of(s, &one, 1);
    struct st_ctx other = two;
    other.own++;
    free_leaf = node_of(s, &other, 1);

    BREAK(s, leaf->extents->node, parent);
    leaf->extents->state = EXTENT_FREEING;
    must_see(s, "a freed extent on its node");
    leaf->extents->state = EXTENT_LIVE;
    BREAK(s, leaf->n_live, leaf->n_live + 1);
    BREAK(s, pending->n_pending, 0);
    BREAK(s, pending->n_pending, 2);
    BREAK(s, free_leaf->place.slot, 0);
    BREAK(s, free_leaf->place.slot, 1000);
    BREAK(s, free_leaf->place.slot, free_leaf->place.slot == 1 ? 2 : 1);
    /* the chunk is in the heap of victims although it cannot be evicted */
    BREAK(s, free_leaf->n_pins, 1);
    BREAK(s, leaf->n_pins, 0); /* the chunk can be evicted but is not in the heap */
    BREAK(s, pinned->pin_at, 1000);
    BREAK(s, pinned->pin_at, pinned->pin_at == 1 ? 2 : 1);
    BREAK(s, leaf->pin_at, 1);
    BREAK(s, parent->n_children, 5);
    /* a chunk without children and without a record */
    BREAK(s, parent->parent->n_children, 0);
    BREAK(s, leaf->n_tokens, 7); /* a partial chunk that was not counted */

    store_release(s, &hit, 1);
    st_close(s, &p);
}

TEST(sums)
{
    struct st_place p;
    struct store_hit hit;
    struct store *s = store_make(&p, &hit);
    struct catalog *c = &s->catalog;
    struct catalog_owner *o = &c->owners[node_of(s, &two, 0)->owner_idx];
    assert_true(o->place.n >= 2);
    BREAK(s, c->n_nodes, c->n_nodes + 1);
    BREAK(s, c->n_chunks, c->n_chunks - 1);
    BREAK(s, c->n_partial, 1);
    BREAK(s, c->n_pins, c->n_pins + 1);
    BREAK(s, o->used_bytes, o->used_bytes + 4096);
    BREAK(s, o->n_chunks, o->n_chunks + 1);
    /* the item's order puts it last, but it is first in the heap */
    BREAK(s, o->place.slot[0].item->order, UINT64_MAX);
    BREAK(s, s->space.used_bytes, s->space.used_bytes - 4096);
    BREAK(s, s->space.freeing_bytes, 4096);
    BREAK(s, s->space.wiping_bytes, 4096);
    BREAK(s, s->space.cap_bytes, 4096); /* the store uses more than its cap */
    store_release(s, &hit, 1);
    st_close(s, &p);
}

TEST(space)
{
    struct st_place p;
    struct store_hit hit;
    struct store *s = store_make(&p, &hit);
    struct sha256 keys[CHUNKS];
    struct store_erased erased;
    struct st_ctx hole = one;
    hole.own++;
    st_keys(&hole, 2, keys);
    assert_int_equal(store_erase(s, keys, 2, &erased, NULL), 0);
    assert_int_equal(erased.n_chunks, 2);
    assert_true(store_audit(s));

    struct alloc *a = &s->space.alloc[0];
    struct alloc_segment *first = &a->segments[0];
    assert_true(first->n_free >= 2);
    struct alloc_range *r = first->free;
    BREAK(s, a->used_bytes, a->used_bytes + 4096);
    BREAK(s, r[0].begin, r[0].end);
    BREAK(s, r[first->n_free - 1].end, a->segment_bytes + 4096);
    BREAK(s, r[1].begin, r[0].end); /* the two ranges touch, so they should be one */
    BREAK(s, first->largest, 0);
    store_release(s, &hit, 1);
    st_close(s, &p);
}

/* The tree of parents, guarantees, and times to live. */
TEST(links)
{
    struct st_place p;
    struct store_hit hit;
    struct sha256 keys[CHUNKS];
    struct store *s = store_make(&p, &hit);
    struct catalog *c = &s->catalog;
    struct st_ctx branch = {.base = 3, .own = 13, .branch = 1};
    for (uint64_t i = 0; i < 3; i++) { /* three chunks behind one */
        branch.own++;
        st_must_save(s, &branch, 2);
    }
    struct chunk_node *newest = node_of(s, &branch, 1), *parent = newest->parent;
    struct chunk_node *middle = newest->older, *oldest = middle->older;
    assert_true(oldest->older == NULL && parent->child == newest &&
                parent->n_children == 3);
    BREAK(s, parent->child, middle);
    BREAK(s, newest->older, oldest);
    BREAK(s, middle->newer, oldest);
    BREAK(s, middle->older, NULL);
    BREAK(s, oldest->newer, newest);
    BREAK(s, oldest->newer, NULL);
    BREAK(s, oldest->parent, NULL);
    BREAK(s, parent->n_children, 2);

    st_keys(&branch, 2, keys);
    assert_int_equal(store_guarantee(s, keys, 2, INT64_MAX, NULL, NULL), 0);
    assert_true(newest->is_guaranteed && newest->n_guarded == 1 && parent->n_guarded == 1);
    struct catalog_owner *o = &c->owners[newest->owner_idx];
    BREAK(s, newest->n_guarded, 0);
    BREAK(s, parent->n_guarded, 2);
    BREAK(s, parent->n_guarded, 0);
    BREAK(s, middle->n_guarded, 1);
    BREAK(s, c->n_guaranteed, 0);
    BREAK(s, c->n_guaranteed, 2);
    BREAK(s, c->guaranteed_bytes, c->guaranteed_bytes + 4096);
    BREAK(s, o->guaranteed_bytes, o->guaranteed_bytes - 4096);
    newest->is_guaranteed = false;
    must_see(s, "a guarantee that is counted and not set");
    newest->is_guaranteed = true;
    /* a guarantee without a pin, in all counts */
    uint32_t pin_at = newest->pin_at;
    newest->pin_at = 0;
    newest->place.is_kept = false;
    c->n_pins--;
    must_see(s, "a guarantee without a pin");
    newest->pin_at = pin_at;
    newest->place.is_kept = true;
    c->n_pins++;
    assert_true(store_audit(s));
    newest->place.is_kept = false;
    must_see(s, "a pin that the policy does not know");
    newest->place.is_kept = true;

    catalog_set_ttl(c, middle, 100);
    catalog_set_ttl(c, oldest, 200);
    assert_true(store_audit(s));
    BREAK(s, middle->ttl_s, 0);
    BREAK(s, parent->ttl_s, 100);
    BREAK(s, middle->expiry_at, 0);
    BREAK(s, middle->expiry_at, 3);
    BREAK(s, middle->expiry_at, oldest->expiry_at);
    BREAK(s, c->expiry.entry[0].node, parent);
    catalog_set_ttl(c, middle, 0);
    catalog_set_ttl(c, oldest, 0);
    store_release(s, &hit, 1);
    st_close(s, &p);
}
