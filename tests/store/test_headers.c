/* test_headers.c - damage in a chunk's header only. Serving the chunk finds the damage, and saving
 * the chunk again repairs it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 6, BAD = 3 };

static const struct st_ctx ours = {.base = 1, .own = 1}, other = {.base = 2, .own = 2};

static uint64_t n_bad(struct store *s)
{
    struct store_verify v;
    assert_int_equal(store_verify(s, &v, NULL, NULL, NULL, NULL), 0);
    return v.n_bad;
}

/* Damages the token ids in the header of a chunk. */
static void damage(const struct st_place *p, struct store *s, const struct st_ctx *c)
{
    struct sha256 keys[N];
    struct store_hit hit;
    char path[600];
    st_keys(c, N, keys);
    assert_true(store_pin(s, &keys[BAD], &hit));
    const struct extent *x = ((struct chunk_node *)hit.impl)->extents;
    snprintf(path, sizeof path, "%s/seg-%06u.hc", p->dirs[0], x->segment);
    assert_int_equal(io_sim_flip(p->io, path, x->offset + 200, 3), 0);
    store_release(s, &hit, 1);
}

TEST(found_and_mended)
{
    struct st_place p;
    struct store *s = st_begin(&p, "sim", 1);
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    assert_int_equal(st_save(s, &st_small, &other, N, ST_BOTH, NULL), 0);
    store_close(s);
    s = st_open(&p);
    damage(&p, s, &ours);
    damage(&p, s, &other);
    assert_int_equal(store_settle(s, NULL), 0);
    /* no lookup has found the chunk yet, so its header was not read */
    assert_int_equal(st_n_right(s, &ours, N), N);
    assert_int_equal(store_settle(s, NULL), 0);
    assert_int_equal(st_n_right(s, &ours, N), BAD);
    struct sha256 keys[N];
    st_keys(&ours, N, keys);
    assert_true(store_was_damaged(s, &keys[BAD]));
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    assert_int_equal(st_n_right(s, &ours, N), N);
    /* the other context's chunk stays damaged, because no read has asked for it */
    assert_int_equal(n_bad(s), 1);
    st_close(s, &p);
}

/* After opening, the store reads each header once. It does not take a device error for damage. */
TEST(read_once)
{
    struct st_place p;
    struct io_sim_fault bad = {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .path = "seg-"};
    struct store *s = st_begin(&p, "sim", 1);
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    assert_int_equal(st_n_right(s, &ours, N), N);
    assert_int_equal(s->n_headers, N);
    assert_int_equal(io_sim_fault_add(p.io, &bad), 0);
    assert_int_equal(store_settle(s, NULL), 0);
    assert_int_equal(io_sim_fault_hits(p.io), N);
    io_sim_fault_clear(p.io);
    assert_int_equal(st_n_right(s, &ours, N), N);
    assert_int_equal(s->n_headers, 0);
    st_close(s, &p);
}

/* A header that cannot be read hides no damage in the chunk's other header. */
TEST(an_unreadable_header_hides_nothing)
{
    struct st_place p;
    struct sha256 keys[N];
    struct store_hit hit;
    char path[600];
    struct store *s = st_begin(&p, "sim", 2);
    st_must_save(s, &ours, N);
    store_close(s);
    s = st_open(&p);
    st_keys(&ours, N, keys);
    assert_true(store_pin(s, &keys[BAD], &hit));
    const struct extent *first = store_extent_nth(s, &hit, 0),
                        *second = store_extent_nth(s, &hit, 1);
    assert_true(first != NULL && second != NULL && first->device != second->device);
    assert_null(store_extent_nth(s, &hit, 2));
    snprintf(path, sizeof path, "%s/seg-%06u.hc", p.dirs[second->device], second->segment);
    assert_int_equal(io_sim_flip(p.io, path, second->offset + 200, 3), 0);
    snprintf(path, sizeof path, "%s/seg-", p.dirs[first->device]);
    store_release(s, &hit, 1);
    assert_int_equal(st_n_found(s, &ours, N), N);
    struct io_sim_fault fault = {
        .kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .path = path, .code = -EIO};
    assert_int_equal(io_sim_fault_add(p.io, &fault), 0);
    assert_int_equal(store_settle(s, NULL), 0);
    io_sim_fault_clear(p.io);
    assert_int_equal(st_stats(s).n_corrupt, 1);
    assert_int_equal(st_n_found(s, &ours, N), BAD);
    st_close(s, &p);
}
