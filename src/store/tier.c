/* tier.c - see tier.h. */
#include "store/tier.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "store/alloc.h"
#include "store/arena.h"
#include "store/held.h"

/* The tier's thread keeps 1/FREE_PART of the arena free. */
enum { FREE_PART = 16 };
/* Largest segment of the arena. A bound is needed because the allocator moves the entries of a
 * segment's array of free ranges. */
#define SEGMENT_BYTES ((uint64_t)1 << 30)

struct tier_copy {
    struct tier_copy *next;   /* next copy of the same chunk, or next one to be zeroed */
    struct tier_chunk *chunk; /* NULL: the copy was not entered yet, or is forgotten */
    /* extent of the copy; NULL: it was not entered yet, or is forgotten */
    struct extent *x;
    uint64_t n_bytes, offset;
    uint32_t segment;
    uint32_t n_users; /* readers; also the caller of tier_take until it calls tier_enter */
    bool is_promoted, was_read;
};

/* A chunk that has copies. */
struct tier_chunk {
    struct placement_item place;
    struct chunk_node *node;
    struct tier_copy *copies;
    uint32_t n_readers; /* readers of all its copies */
};

struct tier {
    struct tier_opts o;
    struct arena *arena;
    uint64_t arena_bytes;
    struct alloc alloc;
    uint32_t n_segments;
    uint64_t largest_bytes; /* largest copy so far */
    struct placement policy;
    struct placement_part victims;
    struct held held;       /* names of chunks that the caller holds */
    struct tier_copy *zero; /* forgotten copies without readers, to be zeroed */
    int n_zeroing;          /* copies that the thread has taken off the list `zero` */
    uint64_t n_chunks;
    pthread_t thread;
    bool has_thread, quit, is_idle;
    /* news wakes the tier's thread; progress comes from that thread */
    pthread_cond_t news, progress;
    struct store_dram counts;
};

/* --- victims ---------------------------------------------------------------------------------- */

static struct tier_chunk *chunk_of(struct placement_item *item)
{
    return (struct tier_chunk *)((char *)item - offsetof(struct tier_chunk, place));
}

static void victims_add(struct tier *t, struct tier_chunk *c)
{
    struct placement_part *h = &t->victims;
    if (h->n == h->max) {
        uint32_t max = h->max == 0 ? 64 : 2 * h->max;
        placement_set_slots(h, xrealloc(h->slot, max * sizeof h->slot[0]), max);
    }
    placement_insert(&t->policy, h, &c->place);
}

static bool is_victim(const struct tier_chunk *c)
{
    return c->n_readers == 0 && c->node->n_copied_children == 0;
}

/* Enters c as a possible victim, or removes it. Call it when c may have become droppable, or no
 * longer is. c may be NULL. */
static void chunk_settle(struct tier *t, struct tier_chunk *c)
{
    if (c == NULL)
        return;
    if (is_victim(c) && c->place.slot == 0)
        victims_add(t, c);
    else if (!is_victim(c) && c->place.slot != 0)
        placement_remove(&t->victims, &c->place);
}

/* --- chunks ----------------------------------------------------------------------------------- */

bool tier_is_held(const struct tier *t, const struct chunk_node *n)
{
    return t != NULL && held_has(&t->held, n->place.id);
}

/* Returns whether the node's copies are dropped before all others, because they are not needed. */
static bool is_needless(const struct tier *t, const struct chunk_node *n)
{
    return n->place.is_dropped || tier_is_held(t, n);
}

/* Notes the chunk's last use, as the store's policy saw it, and whether its copies are needless. */
static void use_as_store_does(struct tier *t, struct tier_chunk *c)
{
    const struct placement_item *of = &c->node->place;
    /* A client's hint counts only if the store's own policy relies on it. */
    bool has_hint = of->due_time > of->used_time && of->worth > 0;
    struct placement_use use = {.at = of->used_at,
                                .time = of->used_time,
                                .class = of->class,
                                .reuse_in = has_hint ? of->due_time - of->used_time : 0};
    /* decided anew at each use: a copy is not needed if the caller holds the state */
    c->place.is_dropped = is_needless(t, c->node);
    placement_touch(&t->policy, &t->victims, &c->place, &use);
}

static struct tier_chunk *chunk_add(struct tier *t, struct chunk_node *n)
{
    struct tier_chunk *c = xcalloc(1, sizeof *c);
    c->node = n;
    c->place.id = n->place.id;
    n->copied = c;
    t->n_chunks++;
    use_as_store_does(t, c);
    if (n->parent != NULL) {
        n->parent->n_copied_children++;
        chunk_settle(t, n->parent->copied);
    }
    return c;
}

static void chunk_remove(struct tier *t, struct tier_chunk *c)
{
    struct chunk_node *n = c->node;
    if (c->place.slot != 0)
        placement_remove(&t->victims, &c->place);
    n->copied = NULL;
    t->n_chunks--;
    if (n->parent != NULL) {
        CHECK(n->parent->n_copied_children > 0);
        n->parent->n_copied_children--;
        chunk_settle(t, n->parent->copied);
    }
    free(c);
}

void tier_touch(struct tier *t, const struct chunk_node *n)
{
    if (t != NULL && n->copied != NULL)
        use_as_store_does(t, n->copied);
}

void tier_review(struct tier *t, const struct chunk_node *n)
{
    if (t != NULL && n != NULL && n->copied != NULL)
        placement_drop(&t->policy, &t->victims, &n->copied->place, is_needless(t, n));
}

void tier_hold(struct tier *t, uint64_t name, bool is_held, const struct chunk_node *n)
{
    if (t == NULL)
        return;
    if (is_held)
        held_add(&t->held, name);
    else
        held_remove(&t->held, name);
    tier_review(t, n);
}

/* --- room ------------------------------------------------------------------------------------- */

/* Returns the bytes of an extent's records, without its header. */
static uint64_t records_bytes(uint64_t extent_bytes)
{
    return extent_bytes - CHUNK_HEADER_BYTES;
}

/* Returns whether the tier's thread must drop copies (invariant 4). */
static bool lacks_room(const struct tier *t)
{
    return t->alloc.used_bytes > t->arena_bytes - t->arena_bytes / FREE_PART ||
           !alloc_fits(&t->alloc, t->largest_bytes);
}

/* Wakes the tier's thread if it has copies to zero or to drop. */
static void tell(struct tier *t)
{
    if (t->zero != NULL || lacks_room(t)) {
        t->is_idle = false;
        pthread_cond_signal(&t->news);
    }
}

/* Returns the most bytes that a copy may have. A larger copy would not fit into the part that stays
 * free, and making room for it would empty the arena. */
static uint64_t most_bytes(const struct tier *t)
{
    uint64_t most = t->arena_bytes / FREE_PART;
    return MIN(most, t->alloc.segment_bytes);
}

bool tier_has_room(struct tier *t, uint64_t extent_bytes)
{
    uint64_t n_bytes = records_bytes(extent_bytes);
    if (n_bytes > t->largest_bytes)
        t->largest_bytes = n_bytes;
    tell(t);
    return alloc_fits(&t->alloc, n_bytes);
}

struct tier_copy *tier_take(struct tier *t, uint64_t extent_bytes)
{
    if (t == NULL || extent_bytes <= CHUNK_HEADER_BYTES)
        return NULL;
    uint64_t n_bytes = records_bytes(extent_bytes);
    if (n_bytes > most_bytes(t)) {
        t->counts.n_full++;
        return NULL;
    }
    if (n_bytes > t->largest_bytes)
        t->largest_bytes = n_bytes;
    struct tier_copy *copy = NULL;
    uint32_t segment;
    uint64_t offset;
    if (alloc_take_within(&t->alloc, n_bytes, &segment, &offset)) {
        copy = xcalloc(1, sizeof *copy);
        *copy = (struct tier_copy){
            .n_bytes = n_bytes, .segment = segment, .offset = offset, .n_users = 1};
        arena_use(t->arena, segment * t->alloc.segment_bytes + offset + n_bytes);
    } else {
        t->counts.n_full++;
    }
    tell(t);
    return copy;
}

struct read_ahead_room tier_room(const struct tier *t, uint64_t extent_bytes)
{
    uint64_t used = t->alloc.used_bytes,
             limit = t->arena_bytes - t->arena_bytes / FREE_PART;
    return (struct read_ahead_room){.n_bytes = records_bytes(extent_bytes),
                                    .free_bytes = used < limit ? limit - used : 0,
                                    .most_bytes = most_bytes(t),
                                    .victim = placement_victim(&t->victims)};
}

static uint8_t *bytes_of(const struct tier *t, const struct tier_copy *copy)
{
    return arena_bytes(t->arena) + copy->segment * t->alloc.segment_bytes + copy->offset;
}

uint8_t *tier_at(const struct tier *t, const struct tier_copy *copy, uint64_t offset)
{
    CHECK(offset >= CHUNK_HEADER_BYTES && offset - CHUNK_HEADER_BYTES < copy->n_bytes);
    return bytes_of(t, copy) + (offset - CHUNK_HEADER_BYTES);
}

/* --- copies ----------------------------------------------------------------------------------- */

void tier_enter(struct tier *t, struct extent *x, enum tier_how how)
{
    if (t == NULL || x->copy == NULL)
        return;
    struct tier_copy *copy = x->copy;
    struct chunk_node *n = x->node;
    CHECK(copy->chunk == NULL && copy->n_users == 1);
    struct tier_chunk *c = n->copied != NULL ? n->copied : chunk_add(t, n);
    copy->chunk = c;
    copy->x = x;
    copy->n_users = 0;
    copy->next = c->copies;
    c->copies = copy;
    chunk_settle(t, c);
    tell(t); /* the thread may have lacked a victim, and c may be one */
    if (how == TIER_PROMOTED) {
        copy->is_promoted = true;
        t->counts.n_promoted++;
        t->counts.promoted_bytes += copy->n_bytes;
    } else {
        t->counts.n_written++;
    }
}

/* Queues a forgotten copy for zeroing: its last user has left. */
static void zero_later(struct tier *t, struct tier_copy *copy)
{
    copy->next = t->zero;
    t->zero = copy;
    tell(t);
}

void tier_forget(struct tier *t, struct extent *x)
{
    struct tier_copy *copy = x->copy;
    if (t == NULL || copy == NULL)
        return;
    x->copy = NULL;
    struct tier_chunk *c = copy->chunk;
    if (c == NULL) /* the copy is still being filled, which ends with tier_abandon */
        return;
    struct tier_copy **p = &c->copies;
    while (*p != copy)
        p = &(*p)->next;
    *p = copy->next;
    c->n_readers -= copy->n_users;
    t->counts.n_unused += copy->is_promoted && !copy->was_read;
    copy->chunk = NULL;
    copy->x = NULL;
    if (c->copies == NULL)
        chunk_remove(t, c);
    else
        chunk_settle(t, c);
    if (copy->n_users == 0)
        zero_later(t, copy);
}

void tier_abandon(struct tier *t, struct extent *x, struct tier_copy *copy)
{
    if (t == NULL || copy == NULL)
        return;
    CHECK(copy->chunk == NULL && copy->n_users == 1);
    if (x->copy == copy)
        x->copy = NULL;
    copy->n_users = 0;
    zero_later(t, copy);
}

void tier_distrust(struct tier *t, struct tier_copy *copy)
{
    if (copy->x != NULL)
        tier_forget(t, copy->x);
}

void tier_forget_node(struct tier *t, struct chunk_node *n)
{
    for (struct extent *x = n->extents; x != NULL; x = x->next)
        tier_forget(t, x);
}

struct tier_copy *tier_read(struct tier *t, const struct extent *x, uint32_t n_bytes)
{
    if (t == NULL || x->copy == NULL || x->copy->chunk == NULL)
        return NULL;
    x->copy->n_users++;
    x->copy->chunk->n_readers++;
    chunk_settle(t, x->copy->chunk);
    x->copy->was_read = true;
    t->counts.n_reads++;
    t->counts.read_bytes += n_bytes;
    return x->copy;
}

bool tier_has_all(const struct tier *t, const struct chunk_node *n)
{
    for (const struct extent *x = n->extents; x != NULL; x = x->next)
        if (x->state == EXTENT_LIVE && (x->copy == NULL || x->copy->chunk == NULL))
            return false;
    return t != NULL && n->n_live > 0;
}

void tier_release(struct tier *t, struct tier_copy *copy)
{
    CHECK(copy->n_users > 0);
    copy->n_users--;
    if (copy->chunk != NULL) {
        copy->chunk->n_readers--;
        chunk_settle(t, copy->chunk);
        tell(t); /* the thread may have lacked a victim, and the copy's chunk may be one */
    } else if (copy->n_users == 0) {
        zero_later(t, copy);
    }
}

/* --- the thread ------------------------------------------------------------------------------- */

/* [lock, released meanwhile] Zeroes one forgotten copy. */
static void zero_one(struct tier *t)
{
    struct tier_copy *copy = t->zero;
    t->zero = copy->next;
    t->n_zeroing++;
    pthread_mutex_unlock(t->o.lock);
    memset(bytes_of(t, copy), 0, copy->n_bytes);
    pthread_mutex_lock(t->o.lock);
    alloc_give(&t->alloc, copy->segment, copy->offset, copy->n_bytes);
    free(copy);
    t->n_zeroing--;
    pthread_cond_broadcast(&t->progress);
}

/* [lock] Drops the copies of the policy's next victim. Returns false if there is none. */
static bool demote_one(struct tier *t)
{
    struct placement_item *item = placement_victim(&t->victims);
    if (item == NULL)
        return false;
    placement_evicted(&t->policy, item, t->n_chunks);
    read_ahead_dropped(t->o.wants, item);
    t->counts.n_demoted++;
    tier_forget_node(t, chunk_of(item)->node);
    return true;
}

/* Zeroes forgotten copies first. Then drops victims while room is short. */
static void *tier_main(void *arg)
{
    struct tier *t = arg;
    pthread_mutex_lock(t->o.lock);
    while (!t->quit) {
        if (t->zero != NULL) {
            zero_one(t);
        } else if (!lacks_room(t) || !demote_one(t)) {
            t->is_idle = true;
            pthread_cond_broadcast(&t->progress);
            while (t->is_idle && !t->quit)
                pthread_cond_wait(&t->news, t->o.lock);
        }
    }
    pthread_mutex_unlock(t->o.lock);
    return NULL;
}

void tier_wait_zeroed(struct tier *t)
{
    while (t != NULL && (t->zero != NULL || t->n_zeroing > 0))
        pthread_cond_wait(&t->progress, t->o.lock);
}

void tier_settle(struct tier *t)
{
    while (t != NULL && !t->is_idle)
        pthread_cond_wait(&t->progress, t->o.lock);
}

/* --- the arena's memory ----------------------------------------------------------------------- */

double tier_price_s(const struct tier *t, uint64_t n_bytes, uint64_t n_promised)
{
    return t != NULL ? arena_price_s(t->arena, n_bytes, n_promised) : 0;
}

bool tier_await_memory(const struct tier *t, int64_t timeout_ns, uint64_t *n_bytes)
{
    *n_bytes = 0;
    return t == NULL || arena_await(t->arena, timeout_ns, n_bytes);
}

/* --- life cycle ------------------------------------------------------------------------------- */

int tier_open(const struct tier_opts *o, struct tier **out, struct err *err)
{
    struct tier *t = xcalloc(1, sizeof *t);
    t->o = *o;
    t->n_segments = (uint32_t)((o->bytes + SEGMENT_BYTES - 1) / SEGMENT_BYTES);
    uint64_t segment = o->bytes / t->n_segments / STORE_ALIGN * STORE_ALIGN;
    t->arena_bytes = segment * t->n_segments;
    pthread_cond_init(&t->news, NULL);
    pthread_cond_init(&t->progress, NULL);
    placement_init(&t->policy, o->policy, o->window, NULL);
    alloc_init(&t->alloc, segment);
    alloc_add_segments(&t->alloc, t->n_segments);
    struct arena_opts a = {t->arena_bytes, o->ahead_bytes, o->memory};
    int rc = arena_open(&a, &t->arena, err);
    if (rc == 0 && (rc = thread_create(&t->thread, tier_main, t)) != 0)
        rc = err_set(err, -rc, "no thread for the DRAM tier: %s", strerror(rc));
    t->has_thread = rc == 0;
    if (rc != 0) {
        tier_close(t, NULL);
        return rc;
    }
    *out = t;
    return 0;
}

static void copies_free(struct tier_copy *copy)
{
    for (struct tier_copy *next; copy != NULL; copy = next) {
        next = copy->next;
        free(copy);
    }
}

static void chunks_free(struct catalog *c)
{
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (struct chunk_node *n = c->buckets[i]; n != NULL; n = n->next) {
            for (struct extent *x = n->extents; x != NULL; x = x->next)
                x->copy = NULL;
            if (n->copied == NULL)
                continue;
            copies_free(n->copied->copies);
            free(n->copied);
            n->copied = NULL;
        }
}

void tier_close(struct tier *t, struct catalog *c)
{
    if (t == NULL)
        return;
    pthread_mutex_lock(t->o.lock);
    t->quit = true;
    pthread_cond_signal(&t->news);
    pthread_mutex_unlock(t->o.lock);
    if (t->has_thread)
        pthread_join(t->thread, NULL);
    if (c != NULL)
        chunks_free(c);
    copies_free(t->zero);
    arena_close(t->arena);
    alloc_deinit(&t->alloc);
    free(t->victims.slot);
    held_deinit(&t->held);
    pthread_cond_destroy(&t->news);
    pthread_cond_destroy(&t->progress);
    free(t);
}

/* --- statistics and audit --------------------------------------------------------------------- */

void tier_stats(const struct tier *t, struct store_dram *out)
{
    *out = (struct store_dram){0};
    if (t == NULL)
        return;
    *out = t->counts;
    out->cap_bytes = t->arena_bytes;
    out->used_bytes = t->alloc.used_bytes;
    out->n_chunks = t->n_chunks;
}

/* Adds the bytes of n's copies to *n_bytes. Returns false if a copy does not belong to n. */
static bool copies_audit(const struct chunk_node *n, uint64_t *n_bytes)
{
    uint32_t n_readers = 0, n_copies = 0;
    for (const struct tier_copy *copy = n->copied->copies; copy != NULL;
         copy = copy->next) {
        *n_bytes += copy->n_bytes;
        n_readers += copy->n_users;
        n_copies++;
        if (copy->chunk != n->copied || copy->x->copy != copy || copy->x->node != n)
            return false;
    }
    return n_copies > 0 && n_readers == n->copied->n_readers;
}

static bool node_audit(const struct tier *t, const struct chunk_node *n, uint64_t *n_bytes,
                       uint64_t *n_chunks)
{
    uint32_t n_children = 0;
    const struct tier_chunk *c = n->copied;
    for (const struct chunk_node *x = n->child; x != NULL; x = x->older)
        n_children += x->copied != NULL;
    if (n_children != n->n_copied_children)
        return false;
    *n_chunks += c != NULL;
    return c == NULL || (c->node == n && copies_audit(n, n_bytes) &&
                         (c->place.slot != 0) == is_victim(c) &&
                         c->place.is_dropped == is_needless(t, n) &&
                         placement_audit(&t->victims, &c->place));
}

bool tier_audit(const struct tier *t, const struct catalog *c)
{
    uint64_t n_bytes = 0, n_chunks = 0;
    if (t == NULL)
        return true;
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (const struct chunk_node *n = c->buckets[i]; n != NULL; n = n->next)
            if (!node_audit(t, n, &n_bytes, &n_chunks))
                return false;
    return alloc_audit(&t->alloc) && n_chunks == t->n_chunks &&
           n_bytes <= t->alloc.used_bytes && t->alloc.n_segments == t->n_segments;
}
