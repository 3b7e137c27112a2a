/* test_stats.c - each number of the statistics and each field of a listing, after a short life of a
 * store on two devices.  The sizes were added up by hand from docs/STORE_FORMAT.md. */
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "io/io.h"
#include "storetest.h"
#include "store/store_impl.h"

enum {
    N = 3,
    HIDDEN = 8192, /* bytes of records of 5,000 and 9,001 bytes in whole blocks */
    KV = 12288,
    HEADER = 4096,
    /* An even chunk has layers 0 and 2 on device 0, an odd one on device 1. */
    TWO = HEADER + 2 * (HIDDEN + KV),
    ONE = HEADER + 16384, /* layer 1 is packed: its 14,001 bytes lie behind one another */
    CHUNK = ONE + TWO,
    CAP = 64 << 20,
};

static const struct st_ctx ours = {.base = 1, .own = 1, .salt = "ours"},
                           other = {.base = 2, .own = 2, .salt = "other", .model = 4};
static struct st_place place;
static struct err err;

static struct store *store_make(void)
{
    assert_true(st_place_open(&place, "sim", 2));
    place.opts.cap_bytes = CAP;
    return st_open(&place);
}

/* Appends a chunk of 5 tokens behind the third chunk: one record of 100 bytes, on device 1. */
static struct sha256 append_end(struct store *s)
{
    uint8_t bytes[100] = {1};
    struct sha256 keys[N];
    struct store_record record = {.kind = STORE_HIDDEN, .bytes = bytes, .n_bytes = 100};
    struct store_chunk c = {.fingerprint = st_fingerprint(ours.model),
                            .owner = store_owner(ours.salt),
                            .chunk_idx = N,
                            .n_tokens = 5,
                            .tokens = {1, 2, 3, 4, 5},
                            .records = &record,
                            .n_records = 1,
                            .use = {.ttl_s = 100}};
    st_keys(&ours, N, keys);
    c.parent = keys[N - 1];
    c.key = store_partial_key(&c.parent, c.tokens, 5);
    assert_int_equal(store_append(s, &c, &err), 0);
    return c.key;
}

/* Compares all numbers but those of the DRAM tier. */
static void must_be(struct store *s, const struct store_stats *want)
{
    struct store_stats st = st_stats(s);
#define SAME(field)                                                                        \
    if (st.field != want->field)                                                           \
    fail_msg(#field " is %llu, not %llu", (unsigned long long)st.field,                    \
             (unsigned long long)want->field)
    assert_string_equal(st.tier, want->tier);
    SAME(n_chunks);
    SAME(n_extents);
    SAME(n_partial);
    SAME(used_bytes);
    SAME(cap_bytes);
    SAME(files_cap_bytes);
    SAME(device_bytes[0]);
    SAME(device_bytes[1]);
    SAME(device_bytes[2]);
    SAME(pending_bytes);
    SAME(freeing_bytes);
    SAME(n_expiring);
    SAME(n_pins);
    SAME(n_guarantees);
    SAME(guaranteed_bytes);
    SAME(guarantee_limit_bytes);
    SAME(n_devices);
    SAME(appended_bytes);
    SAME(read_bytes);
    SAME(n_hits);
    SAME(n_misses);
    SAME(n_evicted);
    SAME(n_corrupt);
    for (int i = 0; i < STORE_MISSES; i++)
        SAME(misses[i]);
    for (int i = 0; i < STORE_EVICTS; i++)
        SAME(evictions[i]);
    SAME(n_evicted_pinned);
    SAME(n_guarantees_broken);
    SAME(n_checksum_failures);
    SAME(n_read_failures);
    SAME(saving_fault);
    SAME(dram.cap_bytes);
#undef SAME
}

TEST(numbers_follow_a_life)
{
    struct store *s = store_make();
    struct store_stats want = {
        .tier = "disk",
        .n_devices = 2,
        .cap_bytes = CAP,
        .guarantee_limit_bytes = (uint64_t)CAP / 4 * 3,
    };
    struct sha256 keys[N + 1];
    struct store_hit hits[N + 1];
    struct store_erased gone;
    struct st_result r;
    must_be(s, &want);
    for (int i = 0; i < N; i++)
        assert_int_equal(st_append(s, &st_small, &ours, i, ST_BOTH, &err), 0);
    want.used_bytes = want.appended_bytes = want.pending_bytes = N * CHUNK;
    want.device_bytes[0] = 2 * TWO + ONE;
    want.device_bytes[1] = 2 * ONE + TWO;
    must_be(s, &want);
    assert_int_equal(store_commit(s, &err), 0);
    want.pending_bytes = 0;
    want.n_chunks = N;
    want.n_extents = 2 * N;
    must_be(s, &want);

    st_keys(&ours, N, keys);
    keys[N] = append_end(s);
    want.pending_bytes = HEADER + 4096;
    want.used_bytes += HEADER + 4096;
    want.appended_bytes += HEADER + 4096;
    want.device_bytes[1] += HEADER + 4096;
    want.n_expiring = 1;
    must_be(s, &want);
    int n_hits = store_lookup(s, NULL, keys, N + 1, hits, NULL, 0);
    store_release(s, hits, n_hits);
    want.n_hits += N;
    want.n_misses = want.misses[STORE_MISS_UNCOMMITTED] = 1;
    must_be(s, &want);
    assert_int_equal(store_commit(s, &err), 0);
    want.pending_bytes = 0;
    want.n_chunks++;
    want.n_partial = 1;
    want.n_extents++;
    must_be(s, &want);

    assert_int_equal(st_read(s, &st_small, &ours, N, &r, &err), 0);
    want.n_hits += N;
    want.read_bytes = N * 3 * (5000 + 9001);
    must_be(s, &want);
    assert_int_equal(st_read(s, &st_small, &other, 2, &r, &err), 0);
    want.misses[STORE_MISS_ABSENT] = 2;
    want.n_misses += 2;
    must_be(s, &want);

    int64_t until = clock_wall_s() + 1000;
    assert_int_equal(store_pin_until(s, keys, 2, until, &err), 0);
    want.n_pins = 2;
    must_be(s, &want);
    assert_int_equal(store_guarantee(s, keys, N, until, NULL, &err), 0);
    want.n_pins = 3;
    want.n_guarantees = 1;
    want.guaranteed_bytes = N * CHUNK;
    must_be(s, &want);

    assert_int_equal(store_erase(s, &keys[N], 1, &gone, &err), 0);
    assert_int_equal(gone.n_chunks, 1);
    assert_int_equal(gone.n_bytes, HEADER + 4096);
    want.n_partial = want.n_expiring = 0;
    want.n_chunks--;
    want.n_extents--;
    want.used_bytes -= HEADER + 4096;
    want.device_bytes[1] -= HEADER + 4096;
    want.evictions[STORE_EVICT_ERASED] = 1;
    must_be(s, &want);

    assert_true(store_pin(s, &keys[N - 1], hits));
    store_condemn(s, hits, "a test says so");
    want.n_chunks--;
    want.n_extents -= 2;
    want.n_corrupt = want.evictions[STORE_EVICT_DAMAGED] = want.n_guarantees_broken = 1;
    must_be(s, &want);
    store_release(s, hits, 1);
    want.freeing_bytes = CHUNK;
    want.guaranteed_bytes = 0;
    struct store_stats st = st_stats(s);
    /* chunks before a damaged one stay guaranteed as long as its pin lasts */
    want.guaranteed_bytes = st.guaranteed_bytes;
    want.n_guarantees = st.n_guarantees;
    want.n_pins = st.n_pins;
    must_be(s, &want);
    assert_int_equal(store_commit(s, &err), 0);
    want.freeing_bytes = 0;
    want.used_bytes -= CHUNK;
    want.device_bytes[0] -= TWO;
    want.device_bytes[1] -= ONE;
    must_be(s, &want);
    assert_int_equal(st_read(s, &st_small, &ours, N, &r, &err), 0);
    want.n_hits += N - 1;
    want.n_misses++;
    want.misses[STORE_MISS_DAMAGED] = 1;
    want.read_bytes += (N - 1) * 3 * (5000 + 9001);
    must_be(s, &want);
    assert_true(store_audit(s));
    store_close(s);
    st_place_close(&place);
}

/* file_bytes is the length of all segment files. */
TEST(lengths_of_files)
{
    struct store *s = store_make();
    uint64_t n_bytes = 0;
    for (uint64_t i = 0; i < 24; i++)
        st_must_save(s, &(struct st_ctx){.base = i, .own = i}, N);
    for (int d = 0; d < 2; d++) {
        struct io_names names;
        assert_int_equal(io_list(place.io, place.dirs[d], &names, &err), 0);
        for (size_t i = 0; i < names.n; i++) {
            char path[400];
            struct io_stat st;
            snprintf(path, sizeof path, "%s/%s", place.dirs[d], names.name[i]);
            assert_int_equal(io_stat(place.io, path, &st, &err), 0);
            n_bytes += strncmp(names.name[i], "seg-", 4) == 0 ? st.size_bytes : 0;
        }
        io_names_free(&names);
    }
    assert_true(n_bytes > 4 << 20); /* several segments on each device */
    assert_int_equal(st_stats(s).file_bytes, n_bytes);
    store_close(s);
    st_place_close(&place);
}

/* --- listing ---------------------------------------------------------------------------------- */

enum { MOST = 16 };

struct listing {
    struct store_entry e[MOST];
    int n, most;
};

static int list(void *arg, const struct store_entry *e)
{
    struct listing *l = arg;
    assert_true(l->n < MOST);
    l->e[l->n++] = *e;
    return l->n == l->most ? 77 : 0;
}

static int find(const struct listing *l, const struct sha256 *key)
{
    for (int i = 0; i < l->n; i++)
        if (memcmp(l->e[i].key.b, key->b, sizeof key->b) == 0)
            return i;
    return -1;
}

TEST(fields_of_a_listing)
{
    struct store *s = store_make();
    struct listing l = {.most = -1};
    struct sha256 keys[N], ours_f = st_fingerprint(ours.model),
                           other_f = st_fingerprint(other.model);
    int64_t begin_s = clock_wall_s(), until = begin_s + 1000;
    st_must_save(s, &ours, N);
    struct sha256 end = append_end(s);
    assert_int_equal(store_commit(s, &err), 0);
    assert_int_equal(st_save(s, &st_small, &other, 2, ST_KV, &err), 0);
    assert_int_equal(st_append(s, &st_small, &other, 2, ST_KV, &err), 0);
    st_keys(&ours, N, keys);
    assert_int_equal(store_pin_until(s, keys, 1, until, &err), 0);
    assert_int_equal(store_guarantee(s, keys, 2, until + 1, NULL, &err), 0);
    assert_int_equal(store_each(s, list, &l, &err), 0);
    assert_int_equal(l.n, N + 1 + 2);
    int at[N + 1];
    for (int i = 0; i <= N; i++) {
        at[i] = find(&l, i < N ? &keys[i] : &end);
        assert_int_equal(at[i], at[0] + i); /* a chain stands together */
        const struct store_entry *e = &l.e[at[i]];
        struct sha256 root = store_root_key(&ours_f, ours.salt);
        assert_memory_equal(&e->parent, i > 0 ? &keys[i - 1] : &root, sizeof root);
        assert_memory_equal(&e->fingerprint, &ours_f, sizeof ours_f);
        assert_true(e->owner == store_owner(ours.salt));
        assert_int_equal(e->chunk_idx, i);
        assert_int_equal(e->n_tokens, i < N ? STORE_CHUNK_TOKENS : 5);
        assert_int_equal(e->bytes, i < N ? CHUNK : HEADER + 4096);
        assert_true(e->used_wall_s >= begin_s && e->used_wall_s <= clock_wall_s());
        assert_int_equal(e->pinned_until_wall_s, i == 0 ? until : i == 1 ? until + 1 : 0);
        assert_int_equal(e->expires_wall_s, i < N ? 0 : e->used_wall_s + 100);
        assert_int_equal(e->is_guaranteed, i < 2);
        for (int layer = 0; layer < 4; layer++) {
            assert_int_equal(store_mask_has(&e->mask, layer, STORE_KV), i < N && layer < 3);
            assert_int_equal(store_mask_has(&e->mask, layer, STORE_HIDDEN),
                             i < N ? layer < 3 : layer == 0);
        }
        assert_true(i == 0 || e->tick > l.e[at[i - 1]].tick);
    }
    struct sha256 theirs[N];
    st_keys(&other, N, theirs);
    for (int i = 0; i < 2; i++) {
        const struct store_entry *e = &l.e[find(&l, &theirs[i])];
        assert_memory_equal(&e->fingerprint, &other_f, sizeof other_f);
        assert_true(e->owner == store_owner(other.salt));
        assert_int_equal(e->bytes, 2 * HEADER + 3 * KV);
    }
    assert_int_equal(find(&l, &theirs[2]), -1); /* not committed */
    l.n = 0;
    assert_int_equal(store_each_appended(s, list, &l, &err), 0);
    assert_int_equal(l.n, N + 1 + 3);
    assert_true(find(&l, &theirs[2]) == find(&l, &theirs[1]) + 1);
    l.n = 0;
    l.most = 2; /* a result other than 0 ends the listing */
    assert_int_equal(store_each(s, list, &l, &err), 77);
    assert_int_equal(l.n, 2);
    store_close(s);
    st_place_close(&place);
}

/* Parents stand before their children, and every branch is listed once. */
TEST(branches_of_a_listing)
{
    struct store *s = store_make();
    struct listing l = {.most = -1};
    for (uint64_t i = 0; i < 4; i++) {
        struct st_ctx c = {.base = 5, .own = 1 + i, .branch = (int)(i < 2 ? 1 : 2)};
        st_must_save(s, &c, 3);
    }
    assert_int_equal(store_each(s, list, &l, &err), 0);
    assert_int_equal(l.n, 1 + 1 + 2 + 4);
    for (int i = 0; i < l.n; i++) {
        int parent = find(&l, &l.e[i].parent);
        assert_int_equal(find(&l, &l.e[i].key), i);
        assert_true(l.e[i].chunk_idx == 0 ? parent == -1 : parent >= 0 && parent < i);
        /* depth first: only descendants of the parent stand between the two */
        for (int k = parent + 1; parent >= 0 && k < i; k++)
            assert_true(l.e[k].chunk_idx > l.e[parent].chunk_idx);
    }
    store_close(s);
    st_place_close(&place);
}

/* --- names and defaults ----------------------------------------------------------------------- */

TEST(names_and_defaults)
{
    static const char *const misses[] = {"absent",  "evicted",    "uncommitted",
                                         "damaged", "unreadable", "other_state"};
    static const char *const evicts[] = {"cap",        "disk_full", "quota",
                                         "idle",       "expired",   "orphan",
                                         "superseded", "erased",    "damaged"};
    for (int i = 0; i < STORE_MISSES; i++)
        assert_string_equal(store_miss_name((enum store_miss)i), misses[i]);
    for (int i = 0; i < STORE_EVICTS; i++)
        assert_string_equal(store_evict_name((enum store_evict)i), evicts[i]);
    static const char *const kinds[] = {"dram", "sim"};
    for (int i = 0; i < 2; i++) {
        assert_true(st_place_open(&place, kinds[i], 1));
        for (int k = 0; k < 2; k++) {
            place.opts.stuck_ns = k == 0 ? 0 : 5;
            struct store *s = st_open(&place);
            assert_int_equal(store_stuck_ns(s), k == 0 ? 30000000000 : 5);
            assert_false(store_has_files(s));
            assert_null(store_beside(s));
            assert_int_equal(store_epoch(s), 1);
            store_refuse_former(s);
            assert_int_equal(store_epoch(s), 2);
            assert_string_equal(st_stats(s).tier, i == 0 ? "dram" : "disk");
            assert_int_equal(st_stats(s).guarantee_limit_bytes, 0);
            store_close(s);
        }
        st_place_close(&place);
    }
    store_close(NULL);
}
