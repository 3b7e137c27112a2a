/* test_parcel.c - parcels: whole chunks outside of a store. A chunk is read from a store as it was
 * saved, a parcel proves which chunk it is, and any other store can take it. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/parcel.h"
#include "store/store_impl.h"

enum { N = 3, ALL = ST_BOTH };

static const struct st_ctx ctx = {
    .base = 1, .own = 2, .branch = 1, .model = 3, .salt = "tenant"};

static struct store *begin(struct st_place *p, const char *kind, int n_dirs)
{
    if (!st_place_open(p, kind, n_dirs))
        skip();
    return st_open(p);
}

static void end(struct st_place *p, struct store *s)
{
    store_close(s);
    st_place_close(p);
}

static void take_out(struct store *s, const struct sha256 *key, struct parcel *out)
{
    struct store_reader *r;
    struct err err = {0};
    assert_int_equal(store_reader_open(s, 4, NULL, 0, &r, &err), 0);
    if (parcel_read(s, r, key, out, &err) != 0)
        fail_msg("%s", err.msg);
    store_reader_close(r);
}

/* Saves chunks in two parts in one kind of store, reads them as parcels, and puts these into
 * another store. */
static void carry(const char *from, int n_from, const char *to, int n_to)
{
    struct st_place a, b;
    struct sha256 keys[N];
    struct parcel p = {0};
    struct chunk_header h;
    struct st_result got;
    struct err err = {0};
    struct store *s = begin(&a, from, n_from), *t = begin(&b, to, n_to);
    for (int i = 0; i < N; i++) { /* two appends give each chunk two extents per device */
        assert_int_equal(st_append(s, &st_small, &ctx, i, ST_KV, &err), 0);
        assert_int_equal(st_append(s, &st_small, &ctx, i, ST_H, &err), 0);
    }
    assert_int_equal(store_commit(s, &err), 0);
    st_keys(&ctx, N, keys);
    const struct store_use use = {0};
    for (int i = 0; i < N; i++) {
        take_out(s, &keys[i], &p);
        if (parcel_check(p.bytes, p.n_bytes, &h, &err) != 0)
            fail_msg("%s", err.msg);
        assert_memory_equal(h.key.b, keys[i].b, sizeof keys[i].b);
        assert_true(h.owner == store_owner(ctx.salt) && h.chunk_idx == (uint32_t)i);
        assert_int_equal(h.n_records, STORE_KINDS * st_small.n_layers);
        assert_int_equal(parcel_append(t, p.bytes, &h, &use, &err), 0);
    }
    assert_int_equal(store_commit(t, &err), 0);
    assert_int_equal(st_read(t, &st_small, &ctx, N, &got, &err), 0);
    assert_int_equal(got.n_found, N);
    assert_int_equal(got.n_records, N * STORE_KINDS * st_small.n_layers);
    assert_int_equal(got.n_wrong + got.n_corrupt + got.n_unread, 0);
    parcel_deinit(&p);
    end(&a, s);
    end(&b, t);
}

TEST(carried_between_stores)
{
    carry("sim", 1, "dram", 1);
    carry("dram", 1, "sim", 3);
    carry("sim", 3, "sim", 2);
}

static int n_asked; /* allocations that may fail */

bool mem_test_denies(size_t n, enum mem_ask ask)
{
    (void)n;
    n_asked += ask == MEM_MAY_FAIL;
    return false;
}

/* A parcel takes new memory only for more bytes than it has room for. */
TEST(room_is_used_again)
{
    struct parcel p = {0};
    assert_int_equal(parcel_reserve(&p, STORE_ALIGN, NULL), 0);
    n_asked = 0;
    assert_int_equal(parcel_reserve(&p, 1, NULL), 0);
    assert_int_equal(p.n_bytes, 1);
    assert_int_equal(parcel_reserve(&p, STORE_ALIGN, NULL), 0);
    assert_int_equal(p.n_bytes, STORE_ALIGN);
    assert_int_equal(n_asked, 0);
    assert_int_equal(parcel_reserve(&p, STORE_ALIGN + 1, NULL), 0);
    assert_int_equal(n_asked, 1);
    parcel_deinit(&p);
}

static struct parcel one_parcel(void)
{
    struct st_place a;
    struct sha256 keys[1];
    struct parcel p = {0};
    struct store *s = begin(&a, "sim", 1);
    assert_int_equal(st_save(s, &st_small, &ctx, 1, ALL, NULL), 0);
    st_keys(&ctx, 1, keys);
    take_out(s, &keys[0], &p);
    end(&a, s);
    return p;
}

/* Returns whether a change of this byte matters. It matters everywhere except in the zeros that
 * fill up a record's last block. */
static bool counts(const struct chunk_header *h, size_t at)
{
    if (at < CHUNK_HEADER_BYTES)
        return true;
    for (int i = 0; i < h->n_records; i++)
        if (at >= h->records[i].offset && at < h->records[i].offset + h->records[i].n_bytes)
            return true;
    return false;
}

TEST(every_flipped_bit_is_found)
{
    struct parcel p = one_parcel();
    struct chunk_header h, unused;
    struct err err;
    assert_int_equal(parcel_check(p.bytes, p.n_bytes, &h, &err), 0);
    size_t n_checked = 0;
    for (size_t at = 0; at < p.n_bytes; at += at < CHUNK_HEADER_BYTES ? 1 : 61) {
        if (!counts(&h, at))
            continue;
        p.bytes[at] ^= (uint8_t)(1u << at % 8);
        int rc = parcel_check(p.bytes, p.n_bytes, &unused, &err);
        if (rc != ERR_CORRUPT && rc != ERR_FORMAT)
            fail_msg("a flipped bit of byte %zu gives %d", at, rc);
        p.bytes[at] ^= (uint8_t)(1u << at % 8);
        n_checked++;
    }
    assert_true(n_checked > CHUNK_HEADER_BYTES + 100);
    assert_int_equal(parcel_check(p.bytes, p.n_bytes, &h, &err), 0);
    parcel_deinit(&p);
}

TEST(other_sizes_are_refused)
{
    struct parcel p = one_parcel();
    struct chunk_header h;
    struct err err;
    uint8_t *longer = calloc(1, p.n_bytes + STORE_ALIGN);
    memcpy(longer, p.bytes, p.n_bytes);
    assert_int_equal(parcel_check(longer, p.n_bytes + STORE_ALIGN, &h, &err), ERR_CORRUPT);
    assert_int_equal(parcel_check(longer, p.n_bytes + 1, &h, &err), ERR_CORRUPT);
    for (size_t n = 0; n < p.n_bytes; n += 509) {
        /* a copy of exact size, so that a sanitizer sees reads past its end */
        uint8_t *cut = malloc(n > 0 ? n : 1);
        memcpy(cut, p.bytes, n);
        assert_int_not_equal(parcel_check(cut, n, &h, &err), 0);
        free(cut);
    }
    free(longer);
    parcel_deinit(&p);
}

/* An extent in a store's file has the same form as a parcel, but is refused. */
TEST(a_piece_of_a_store_is_refused)
{
    struct parcel p = one_parcel();
    struct chunk_header h;
    struct err err;
    assert_int_equal(parcel_check(p.bytes, p.n_bytes, &h, &err), 0);
    h.uuid[3] = 1;
    chunk_header_encode(&h, p.bytes);
    assert_int_equal(parcel_check(p.bytes, p.n_bytes, &h, &err), ERR_CORRUPT);
    h.uuid[3] = 0;
    h.id = 7;
    chunk_header_encode(&h, p.bytes);
    assert_int_equal(parcel_check(p.bytes, p.n_bytes, &h, &err), ERR_CORRUPT);
    parcel_deinit(&p);
}

/* Reading a chunk for export does not count as a use. */
TEST(reading_counts_nothing)
{
    struct st_place a;
    struct sha256 keys[2], absent = {.b = {9}};
    struct parcel p = {0};
    struct err err = {0};
    struct store_stats before, after;
    struct store_reader *r;
    struct store *s = begin(&a, "sim", 2);
    assert_int_equal(st_save(s, &st_small, &ctx, 2, ALL, &err), 0);
    st_keys(&ctx, 2, keys);
    store_stats(s, &before);
    take_out(s, &keys[1], &p);
    assert_int_equal(store_reader_open(s, 4, NULL, 0, &r, &err), 0);
    assert_int_equal(parcel_read(s, r, &absent, &p, &err), ERR_NOT_FOUND);
    store_reader_close(r);
    store_stats(s, &after);
    assert_true(before.n_hits == after.n_hits && before.n_misses == after.n_misses);
    parcel_deinit(&p);
    end(&a, s);
}

/* A chunk that proves to be damaged when it is read for export is a miss from then on. */
TEST(a_damaged_chunk_is_condemned)
{
    struct st_place a;
    struct sha256 keys[2];
    struct parcel p = {0};
    struct err err = {0};
    struct store_hit hit;
    struct store_reader *r;
    char path[64];
    struct store *s = begin(&a, "sim", 1);
    assert_int_equal(st_save(s, &st_small, &ctx, 2, ALL, &err), 0);
    st_keys(&ctx, 2, keys);
    assert_true(store_pin(s, &keys[1], &hit));
    const struct extent *x = ((const struct chunk_node *)hit.impl)->extents;
    snprintf(path, sizeof path, "/st/d0/seg-%06u.hc", x->segment);
    uint64_t at = x->offset + CHUNK_HEADER_BYTES + 10;
    store_release(s, &hit, 1);
    assert_int_equal(io_sim_flip(a.io, path, at, 3), 0);
    assert_int_equal(store_reader_open(s, 4, NULL, 0, &r, &err), 0);
    assert_int_equal(parcel_read(s, r, &keys[1], &p, &err), ERR_CORRUPT);
    assert_int_equal(parcel_read(s, r, &keys[1], &p, &err), ERR_NOT_FOUND);
    assert_int_equal(parcel_read(s, r, &keys[0], &p, &err), 0);
    store_reader_close(r);
    parcel_deinit(&p);
    end(&a, s);
}
