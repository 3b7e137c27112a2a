/* test_repack.c - packing stored chunks later: the same numbers in less room, in every kind of
 * store, with nothing evicted for it, and nothing brought back that was erased. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "pack/pack.h"
#include "save/repack.h"
#include "store/parcel.h"
#include "tests/store/storetest.h"

enum { N = 20, LAYERS = 2, BYTES = 40000, SMALL = 1000 };

static const struct st_ctx ctx = {
    .base = 1, .own = 2, .branch = 1, .model = 3, .salt = "t"};

/* Returns a record's size: hidden states fit into a block, which packing cannot make smaller. */
static uint32_t size_of(int kind)
{
    return kind == STORE_KV ? BYTES : SMALL;
}

/* Fills in a record of bf16 numbers whose exponents are one of four. */
static void fill(const struct sha256 *key, int layer, int kind, uint8_t *out)
{
    uint32_t n = size_of(kind);
    st_fill(key, layer, (enum store_kind)kind, out, n);
    for (uint32_t i = 1; i < n; i += 2)
        out[i] = (uint8_t)(0x3c | (out[i] & 0x83));
}

/* Appends the records of a kind of all chunks, so that a chunk has several extents. */
static void save(struct store *s, int kind)
{
    struct sha256 keys[N], model = st_fingerprint(ctx.model),
                           root = store_root_key(&model, ctx.salt);
    struct err err = {0};
    static uint8_t bytes[LAYERS][BYTES];
    st_keys(&ctx, N, keys);
    for (int i = 0; i < N; i++) {
        struct store_record r[LAYERS];
        struct store_chunk c = {.key = keys[i],
                                .parent = i > 0 ? keys[i - 1] : root,
                                .fingerprint = model,
                                .owner = store_owner(ctx.salt),
                                .chunk_idx = (uint32_t)i,
                                .records = r,
                                .n_records = LAYERS};
        st_tokens(&ctx, i, c.tokens);
        for (int l = 0; l < LAYERS; l++) {
            fill(&keys[i], l, kind, bytes[l]);
            r[l] = (struct store_record){.layer = l,
                                         .kind = (enum store_kind)kind,
                                         .bytes = bytes[l],
                                         .n_bytes = size_of(kind)};
        }
        if (store_append(s, &c, &err) != 0)
            fail_msg("%s", err.msg);
    }
    assert_int_equal(store_commit(s, &err), 0);
}

static struct repack_counts pack_all(struct store *s)
{
    struct repack *r;
    struct repack_counts n;
    struct err err = {0};
    bool more = true;
    assert_int_equal(repack_open(s, &r, &err), 0);
    while (more)
        if (repack_step(r, &more, &err) != 0)
            fail_msg("%s", err.msg);
    repack_counts(r, &n);
    repack_close(r);
    return n;
}

/* Asserts that n chunks are stored, packed or not, with the saved numbers. */
static void assert_holds(struct store *s, int n, bool is_packed)
{
    struct sha256 keys[N];
    struct store_reader *reader;
    struct parcel p = {0};
    struct chunk_header h;
    static uint8_t want[BYTES], got[BYTES];
    st_keys(&ctx, N, keys);
    assert_int_equal(st_n_found(s, &ctx, N), n);
    assert_int_equal(store_reader_open(s, 4, NULL, 0, &reader, NULL), 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(parcel_read(s, reader, &keys[i], &p, NULL), 0);
        assert_int_equal(parcel_check(p.bytes, p.n_bytes, &h, NULL), 0);
        assert_int_equal(h.n_records, 2 * LAYERS);
        for (int k = 0; k < h.n_records; k++) {
            const struct chunk_record *r = &h.records[k];
            const uint8_t *bytes = p.bytes + r->offset;
            fill(&keys[i], r->layer, r->kind, want);
            assert_int_equal(r->is_packed, is_packed && r->kind == STORE_KV);
            if (r->is_packed)
                assert_true(pack_undo(bytes, r->n_bytes, got, BYTES));
            assert_memory_equal(r->is_packed ? got : bytes, want, size_of(r->kind));
        }
    }
    store_reader_close(reader);
    parcel_deinit(&p);
}

TEST(later_is_as_good)
{
    for (int i = 0; i < 8; i++) { /* on one disk or two, in memory, encrypted */
        struct st_place p;
        st_place_key = i >= 4 ? st_key : NULL;
        assert_true(st_place_open(&p, i % 4 == 3 ? "dram" : "sim", i % 4 == 1 ? 2 : 1));
        if (i % 4 == 2)
            p.opts.dram_bytes = 1 << 20;
        struct store *s = st_open(&p);
        save(s, STORE_KV);
        save(s, STORE_HIDDEN);
        uint64_t before = st_stats(s).used_bytes;
        struct repack_counts n = pack_all(s);
        assert_int_equal(n.n_chunks, N);
        assert_int_equal(n.n_left, 0);
        assert_true(4 * n.bytes_after < 3 * n.bytes_before);
        assert_holds(s, N, true);
        assert_true(5 * st_stats(s).used_bytes < 4 * before);
        assert_int_equal(st_stats(s).n_extents, N * (i % 4 == 1 ? 2 : 1));
        assert_int_equal(pack_all(s).n_chunks, 0);
        if (i % 4 != 3) {
            store_close(s);
            s = st_open(&p);
            assert_holds(s, N, true);
        }
        store_close(s);
        st_place_close(&p);
    }
    st_place_key = NULL;
}

/* Whoever holds a chunk reads on; its former bytes become free when it is released. */
TEST(readers_go_on)
{
    struct st_place p;
    struct sha256 keys[N];
    struct store_hit hits[N];
    struct store *s = st_begin(&p, "sim", 2);
    save(s, STORE_KV);
    save(s, STORE_HIDDEN);
    st_keys(&ctx, N, keys);
    assert_int_equal(store_lookup(s, NULL, keys, N, hits, NULL, 0), N);
    uint64_t before = st_stats(s).used_bytes;
    assert_int_equal(pack_all(s).n_chunks, N);
    assert_true(st_stats(s).used_bytes > before);
    assert_holds(s, N, true);
    store_release(s, hits, N);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_true(5 * st_stats(s).used_bytes < 4 * before);
    assert_holds(s, N, true);
    store_close(s);
    st_place_close(&p);
}

/* A store without any room packs nothing and evicts nothing. */
TEST(nothing_is_evicted_for_it)
{
    struct st_place p;
    struct store *s = st_begin(&p, "sim", 1);
    save(s, STORE_KV);
    save(s, STORE_HIDDEN);
    uint64_t used = st_stats(s).used_bytes;
    store_close(s);
    for (int more = 0; more < 2; more++) { /* no room, then room for one chunk */
        p.opts.cap_bytes = used + (more ? 2 * (BYTES + SMALL) + (64 << 10) : 0);
        s = st_open(&p);
        struct repack_counts n = pack_all(s);
        assert_int_equal(n.n_chunks, more ? N : 0);
        assert_int_equal(n.n_left, more ? 0 : N);
        assert_int_equal(st_stats(s).n_evicted, 0);
        assert_holds(s, N, more);
        store_close(s);
    }
    st_place_close(&p);
}

/* Chunks that are erased between their packing and its commit stay away. */
TEST(what_was_erased_stays_away)
{
    struct st_place p;
    struct repack *r;
    struct sha256 keys[N];
    struct store_erased e;
    bool more;
    struct store *s = st_begin(&p, "sim", 1);
    save(s, STORE_KV);
    save(s, STORE_HIDDEN);
    st_keys(&ctx, N, keys);
    assert_int_equal(repack_open(s, &r, NULL), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(repack_step(r, &more, NULL), 0);
    assert_int_equal(store_erase(s, keys + 2, N - 2, &e, NULL), 0);
    for (more = true; more;)
        assert_int_equal(repack_step(r, &more, NULL), 0);
    repack_close(r);
    assert_int_equal(st_n_found(s, &ctx, N), 2);
    store_close(s);
    s = st_open(&p);
    assert_holds(s, 2, true);
    store_close(s);
    st_place_close(&p);
}
