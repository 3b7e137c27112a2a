/* test_erase.c - erasing: an erased chunk is absent, leaves no readable byte in any file of the
 * store, and takes no other chunk with it, at whatever moment power fails. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "remains.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 6 };

static const struct st_ctx ours = {.base = 1, .own = 1, .branch = 2};
static const struct st_ctx theirs = {
    .base = 1, .own = 2, .branch = 2}; /* shares two chunks with `ours` */

/* --- one process ------------------------------------------------------------------------------ */

static void erase_all(struct store *s, const struct st_ctx *c, struct store_erased *e)
{
    struct sha256 keys[N];
    struct err err = {0};
    st_keys(c, N, keys);
    if (store_erase(s, keys, N, e, &err) != 0)
        fail_msg("%s", err.msg);
}

static void save_both(struct store *s)
{
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    assert_int_equal(st_save(s, &st_small, &theirs, N, ST_BOTH, NULL), 0);
}

/* The disk of the test that runs. */
static struct st_place place;

static void nothing_remains(const char *kind, int n_dirs)
{
    struct store_erased e;
    uint64_t freed;
    if (!st_place_open(&place, kind, n_dirs))
        return;
    struct store *s = st_open(&place);
    save_both(s);
    if (place.io != NULL)
        assert_true(remains(&place, &ours, 2, true) > 0); /* shows that the search works */
    erase_all(s, &ours, &e);
    assert_int_equal(e.n_chunks, N - 2);
    assert_int_equal(e.n_shared, 2);
    assert_int_equal(e.n_busy, 0);
    assert_int_equal(st_n_right(s, &ours, N), 2);
    assert_int_equal(st_n_right(s, &theirs, N), N);
    assert_true(store_audit(s));
    for (int i = 2; place.io != NULL && i < N; i++)
        assert_int_equal(remains(&place, &ours, i, false), 0);
    assert_int_equal(store_gc(s, &freed, NULL), 0);
    for (int i = 2; place.io != NULL && i < N; i++)
        assert_int_equal(remains(&place, &ours, i, true), 0);
    erase_all(s, &theirs, &e);
    assert_int_equal(e.n_chunks, N);
    struct store_stats st;
    store_stats(s, &st);
    assert_true(st.n_chunks == 0 && st.used_bytes == 0 && st.freeing_bytes == 0);
    assert_true(st.evictions[STORE_EVICT_ERASED] == N - 2 + N && st.n_evicted == 0);
    store_close(s);
    if (place.io != NULL) { /* a rebuilt index does not bring the context back either */
        char path[600];
        snprintf(path, sizeof path, "%s/index.db", place.dirs[0]);
        assert_int_equal(io_unlink(place.io, path, NULL), 0);
        s = st_open(&place);
        assert_int_equal(st_n_right(s, &ours, N) + st_n_right(s, &theirs, N), 0);
        store_close(s);
    }
    st_place_close(&place);
}

TEST(erased_in_dram)
{
    nothing_remains("dram", 1);
}

TEST(erased_in_files)
{
    nothing_remains("pread", 1);
    nothing_remains("pread", 3);
    nothing_remains("sim", 2);
}

/* Erasing also wipes older copies of a chunk that was evicted and saved again. */
TEST(older_copies)
{
    struct store_erased e;
    uint64_t freed;
    assert_true(st_place_open(&place, "pread", 1));
    place.opts.cap_bytes = 400 << 10;
    struct store *s = st_open(&place);
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    for (uint64_t i = 10; i < 14; i++) { /* saving other contexts evicts ours */
        struct st_ctx c = {.base = i, .own = i};
        assert_int_equal(st_save(s, &st_small, &c, N, ST_BOTH, NULL), 0);
    }
    assert_true(st_n_right(s, &ours, N) < N);
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    erase_all(s, &ours, &e);
    for (int i = 0; i < N; i++)
        assert_int_equal(remains(&place, &ours, i, false), 0);
    assert_int_equal(store_gc(s, &freed, NULL), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(remains(&place, &ours, i, true), 0);
    st_close(s, &place);
}

/* --- bytes that no row of the index names ----------------------------------------------------- */

static struct sha256 parent_of(const struct st_ctx *c, int chunk)
{
    struct sha256 keys[N], fingerprint = st_fingerprint(c->model);
    st_keys(c, N, keys);
    return chunk > 0 ? keys[chunk - 1] : store_root_key(&fingerprint, c->salt);
}

/* Makes the key and the state of a context's end: the first n_tokens tokens of chunk `chunk`. */
static void end_state(const struct st_ctx *c, int chunk, int n_tokens, struct sha256 *key,
                      uint8_t state[700])
{
    struct sha256 parent = parent_of(c, chunk);
    int32_t tokens[STORE_CHUNK_TOKENS];
    st_tokens(c, chunk, tokens);
    *key = store_partial_key(&parent, tokens, n_tokens);
    st_fill(key, 0, STORE_KV, state, 700);
}

static void append_end(struct store *s, const struct st_ctx *c, int chunk, int n_tokens,
                       const struct sha256 *supersedes, struct sha256 *key)
{
    struct err err = {0};
    uint8_t state[700];
    struct store_record r = {.kind = STORE_KV, .bytes = state, .n_bytes = sizeof state};
    struct store_chunk sc = {.fingerprint = st_fingerprint(c->model),
                             .chunk_idx = (uint32_t)chunk,
                             .n_tokens = n_tokens,
                             .records = &r,
                             .n_records = 1,
                             .yields = n_tokens < STORE_CHUNK_TOKENS,
                             .supersedes = supersedes};
    end_state(c, chunk, n_tokens, key, state);
    st_tokens(c, chunk, sc.tokens);
    sc.parent = parent_of(c, chunk);
    sc.key = *key;
    if (store_append(s, &sc, &err) != 0)
        fail_msg("%s", err.msg);
}

/* Saves a conversation of three turns, each of which supersedes the end of the turn before: 20
 * tokens of chunk 2, then 40, then the full chunk. */
static void save_turns(struct store *s, const struct st_ctx *c)
{
    struct sha256 a, b;
    for (int i = 0; i < 2; i++)
        assert_int_equal(st_append(s, &st_small, c, i, ST_BOTH, NULL), 0);
    append_end(s, c, 2, 20, NULL, &a);
    assert_int_equal(store_commit(s, NULL), 0);
    append_end(s, c, 2, 40, &a, &b);
    assert_int_equal(store_commit(s, NULL), 0);
    append_end(s, c, 2, STORE_CHUNK_TOKENS, &b, &a);
    assert_int_equal(store_commit(s, NULL), 0);
}

/* Returns the number of files that contain token ids of the first three chunks, or state of one of
 * the superseded ends. */
static int turn_remains(const struct st_place *p, const struct st_ctx *c)
{
    static const int ends[] = {20, 40, STORE_CHUNK_TOKENS};
    int n = 0;
    for (int i = 0; i < 3; i++)
        n += remains(p, c, i, false);
    for (int i = 0; i < 3; i++) {
        struct sha256 key;
        uint8_t state[700];
        end_state(c, 2, ends[i], &key, state);
        n += files_with(p, state, 64);
    }
    return n;
}

static int end_remains(const struct st_place *p, const struct st_ctx *c, int n_tokens)
{
    struct sha256 key;
    uint8_t state[700];
    end_state(c, 2, n_tokens, &key, state);
    return files_with(p, state, 64);
}

static void erase_turns(struct store *s, const struct st_ctx *c)
{
    struct sha256 keys[N];
    struct store_erased e;
    struct err err = {0};
    st_keys(c, N, keys);
    if (store_erase(s, keys, 3, &e, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(e.n_busy + e.n_shared, 0);
}

/* The superseded ends of a conversation are erased with the conversation, both in the process that
 * wrote them and in a later process. */
TEST(superseded_ends)
{
    for (int reopened = 0; reopened < 2; reopened++) {
        struct store *s = st_begin(&place, "pread", 2);
        save_turns(s, &ours);
        assert_int_equal(end_remains(&place, &ours, 20),
                         1); /* shows that the search works */
        if (reopened) {
            store_close(s);
            s = st_open(&place);
        }
        erase_turns(s, &ours);
        assert_int_equal(turn_remains(&place, &ours), 0);
        st_close(s, &place);
    }
}

/* A process was killed before it committed: its chunks lie in free space, unknown to the index. */
TEST(never_committed)
{
    struct err err = {0};
    struct store *s = st_begin(&place, "pread", 1);
    assert_int_equal(st_save(s, &st_small, &theirs, N, ST_BOTH, &err), 0);
    for (int i = 2; i < N; i++)
        assert_int_equal(st_append(s, &st_small, &ours, i, ST_BOTH, &err), 0);
    store_close(s); /* closing commits nothing */
    s = st_open(&place);
    assert_int_equal(st_n_right(s, &ours, N), 2);
    assert_true(remains(&place, &ours, 3, false) > 0);
    assert_int_equal(store_erase(s, NULL, 0, &(struct store_erased){0}, &err), 0);
    for (int i = 2; i < N; i++)
        assert_int_equal(remains(&place, &ours, i, false), 0);
    assert_int_equal(st_n_right(s, &theirs, N), N);
    st_close(s, &place);
}

/* Erases a conversation of three turns, with power failing at the n-th operation.  Once its chunks
 * are absent and a process has opened the store again, none of its bytes are readable. */
static bool turns_cut_off_at(uint64_t n)
{
    struct err err = {0};
    struct store_erased e = {0};
    struct sha256 keys[N];
    struct store *s = st_begin(&place, "sim", 1);
    save_turns(s, &ours);
    st_keys(&ours, N, keys);
    io_sim_crash_at(place.io, IO_SIM_AT_OP, n);
    int rc = store_erase(s, keys, 3, &e, &err);
    bool crashed = st_power_fails(&place, &s);
    struct store_stats st;
    store_stats(s, &st);
    /* An erase begins with a commit, which removes the superseded second end: 4 chunks before the
     * commit, 3 after it, 0 after the erase. */
    assert_true(st.n_chunks == 0 || st.n_chunks == 3 || st.n_chunks == 4);
    assert_true(rc != 0 || st.n_chunks == 0);
    if (st.n_chunks == 0 && turn_remains(&place, &ours) != 0)
        fail_msg("operation %llu: a superseded end is readable after recovery",
                 (unsigned long long)n);
    st_close(s, &place);
    return crashed;
}

TEST(power_fails_with_ends)
{
    uint64_t n = 1;
    while (turns_cut_off_at(n))
        n++;
    assert_true(n > 10);
}

/* An evicted chunk lies between two that stay, so the file cannot be cut there: gc wipes it. */
TEST(evicted_in_the_middle)
{
    struct store_stats st;
    struct st_ctx c[3];
    uint64_t freed;
    int n_before = 0;
    struct store *s = st_begin(&place, "pread", 1);
    for (uint64_t i = 0; i < 3; i++) {
        c[i] = (struct st_ctx){.base = 20 + i, .own = 20 + i};
        assert_int_equal(st_save(s, &st_small, &c[i], N, ST_BOTH, NULL), 0);
    }
    /* makes c[0] and c[2] more recently used than c[1] */
    assert_int_equal(st_n_right(s, &c[0], N) + st_n_right(s, &c[2], N), 2 * N);
    store_stats(s, &st);
    store_close(s);
    place.opts.cap_bytes = st.used_bytes / 3 * 2;
    s = st_open(&place);
    assert_int_equal(st_n_right(s, &c[1], N), 0);
    for (int i = 0; i < N; i++)
        n_before += remains(&place, &c[1], i, false);
    assert_true(n_before > 0);
    assert_int_equal(store_gc(s, &freed, NULL), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(remains(&place, &c[1], i, true), 0);
    assert_int_equal(st_n_right(s, &c[0], N) + st_n_right(s, &c[2], N), 2 * N);
    st_close(s, &place);
}

/* A chunk that is being read stays readable for its reader and is absent for everyone else. The
 * release by its last reader removes it. */
TEST(in_use)
{
    struct store_erased e;
    struct sha256 keys[N];
    struct store_hit hits[N];
    struct store *s = st_begin(&place, "sim", 1);
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    st_keys(&ours, N, keys);
    assert_int_equal(store_lookup(s, NULL, keys, 4, hits, NULL, 0), 4);
    erase_all(s, &ours, &e);
    assert_int_equal(e.n_chunks, 2);
    assert_int_equal(e.n_busy, 4);
    assert_int_equal(st_n_right(s, &ours, N), 0);
    assert_true(store_audit(s));
    store_release(s, hits, 4);
    /* The chunks must be wiped because of their release, not only as free space of a later
     * erase. */
    int n_freeing = 0;
    for (const struct extent *x = s->space.freeing; x != NULL; x = x->next, n_freeing++)
        assert_true(x->wipe);
    assert_true(n_freeing >= 4);
    erase_all(s, &ours, &e); /* commits, and wipes the released chunks */
    assert_int_equal(e.n_busy, 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(remains(&place, &ours, i, false), 0);
    assert_true(store_audit(s));
    /* A context that is saved again is stored again. */
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    assert_int_equal(st_n_right(s, &ours, N), N);
    st_close(s, &place);
}

/* Held hits stand until one of their chunks is erased or found damaged. Erasing the chunks after
 * them changes nothing. */
TEST(hits_stand_until_their_chunks_are_gone)
{
    for (int how = 0; how < 3; how++) {
        struct store_erased e;
        struct sha256 keys[N];
        struct store_hit hits[N];
        struct store *s = st_begin(&place, "sim", 1);
        assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
        st_keys(&ours, N, keys);
        assert_int_equal(store_count(s, keys, N), N);
        assert_int_equal(store_lookup(s, NULL, keys, 4, hits, NULL, 0), 4);
        if (how == 0) {
            erase_all(s, &ours, &e);
        } else if (how == 1) {
            store_condemn(s, &hits[2], "damaged");
        } else {
            assert_int_equal(store_erase(s, keys + 4, N - 4, &e, NULL), 0);
        }
        assert_int_equal(store_count(s, keys, N), how == 0 ? 0 : how == 1 ? 2 : 4);
        store_release(s, hits, 4);
        st_close(s, &place);
    }
}

/* Erases all chunks of an owner: two contexts in use share chunks, and a third is not in use. */
TEST(an_owner_with_branches_in_use)
{
    static const struct st_ctx lone = {.base = 7, .own = 7, .branch = N};
    const struct st_ctx *used[] = {&ours, &theirs};
    struct store_erased e;
    struct sha256 keys[N];
    struct store_hit hits[2][N];
    struct store *s = st_begin(&place, "sim", 1);
    assert_int_equal(st_save(s, &st_small, &lone, N, ST_BOTH, NULL), 0);
    save_both(s);
    for (int i = 0; i < 2; i++) {
        st_keys(used[i], N, keys);
        assert_int_equal(store_lookup(s, NULL, keys, N, hits[i], NULL, 0), N);
    }
    assert_int_equal(store_erase_owner(s, store_owner(ours.salt), &e, NULL), 0);
    assert_int_equal(e.n_chunks, N);
    assert_int_equal(e.n_busy, 2 * N - 2);
    assert_int_equal(e.n_shared, 0);
    assert_int_equal(st_n_right(s, &lone, N), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(st_n_right(s, used[i], N), 0);
        store_release(s, hits[i], N);
    }
    assert_true(store_audit(s));
    assert_int_equal(store_erase_owner(s, store_owner(ours.salt), &e, NULL), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(remains(&place, &lone, i, false) +
                             remains(&place, &ours, i, false) +
                             remains(&place, &theirs, i, false),
                         0);
    st_close(s, &place);
}

/* A chunk may be appended after the owner's chunks were listed. The erasure of the others goes
 * on. */
TEST(appended_while_an_owner_is_erased)
{
    struct store_erased e = {0};
    struct sha256 keys[N];
    struct store *s = st_begin(&place, "sim", 1);
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    st_keys(&ours, N, keys);
    pthread_mutex_lock(&s->lock);
    assert_int_equal(store_take_chain(s, keys, N - 1, true, NULL, &e), N - 1);
    pthread_mutex_unlock(&s->lock);
    assert_int_equal(e.n_shared, 0);
    assert_int_equal(st_n_right(s, &ours, N), 0);
    assert_int_equal(store_erase_owner(s, store_owner(ours.salt), &e, NULL), 0);
    assert_int_equal(e.n_chunks, 1);
    assert_int_equal(s->catalog.n_chunks, 0);
    st_close(s, &place);
}

/* All chunks are erased while they are in use, and one in the middle is found damaged meanwhile.
 * The damaged chunk has no records left when the chunks after it are removed. The chunks before it
 * must still be erased. */
TEST(damaged_while_doomed)
{
    enum { N_KEYS = 4 };
    static const int order[][N_KEYS] = {
        {0, 1, 2, 3}, {1, 0, 2, 3}, {3, 2, 1, 0}, {1, 2, 0, 3}, {2, 1, 0, 3}};
    for (size_t o = 0; o < sizeof order / sizeof order[0]; o++)
        for (int bad = 0; bad < N_KEYS; bad++) {
            struct sha256 keys[N_KEYS];
            struct store_hit hits[N_KEYS];
            struct store_erased e;
            struct store_stats st;
            struct store *s = st_begin(&place, "sim", 1);
            assert_int_equal(st_save(s, &st_small, &ours, N_KEYS, ST_BOTH, NULL), 0);
            st_keys(&ours, N_KEYS, keys);
            assert_int_equal(store_pin_until(s, keys, N_KEYS, clock_wall_s() + 1000, NULL),
                             0);
            assert_int_equal(store_lookup(s, NULL, keys, N_KEYS, hits, NULL, 0), N_KEYS);
            assert_int_equal(store_erase(s, keys, N_KEYS, &e, NULL), 0);
            assert_int_equal(e.n_busy, N_KEYS);
            store_condemn(s, &hits[bad], "a test");
            for (int i = 0; i < N_KEYS; i++)
                store_release(s, &hits[order[o][i]], 1);
            assert_int_equal(store_commit(s, NULL), 0);
            store_stats(s, &st);
            assert_int_equal(st.n_chunks + st.used_bytes + st.n_extents + st.n_pins, 0);
            st_close(s, &place);
        }
}

TEST(pending_too)
{
    struct store_erased e;
    struct store *s = st_begin(&place, "sim", 1);
    for (int i = 0; i < N; i++)
        assert_int_equal(st_append(s, &st_small, &ours, i, ST_BOTH, NULL), 0);
    erase_all(s, &ours, &e);
    assert_int_equal(e.n_chunks, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(remains(&place, &ours, i, false), 0);
    st_close(s, &place);
}

/* --- loss of power ---------------------------------------------------------------------------- */

/* Erases while power fails at the n-th operation. Returns false if the erase takes fewer
 * operations. */
static bool cut_off_at(uint64_t n, uint64_t seed)
{
    struct err err = {0};
    struct store_erased e = {0};
    struct sha256 keys[N];
    assert_true(st_place_open(&place, "sim", 2));
    io_close(place.io);
    assert_int_equal(io_sim_open(&(struct io_sim_opts){.seed = seed, .keeps_freed = true},
                                 &place.io, &err),
                     0);
    place.opts.io = place.io;
    struct store *s = st_open(&place);
    save_both(s);
    st_keys(&ours, N, keys);
    io_sim_crash_at(place.io, IO_SIM_AT_OP, n);
    int rc = store_erase(s, keys, N, &e, &err);
    bool crashed = st_power_fails(&place, &s);
    int found = st_n_right(s, &ours, N);
    if (found != 2 && found != N)
        fail_msg("operation %llu: %d chunks are left", (unsigned long long)n, found);
    if (rc == 0)
        assert_int_equal(found, 2);
    if (found == 2)
        for (int i = 2; i < N; i++)
            if (remains(&place, &ours, i, false) != 0)
                fail_msg("operation %llu: chunk %d is readable after recovery",
                         (unsigned long long)n, i);
    assert_int_equal(st_n_right(s, &theirs, N), N);
    st_close(s, &place);
    return crashed;
}

TEST(power_fails)
{
    uint64_t n = 1, n_images = 0;
    while (cut_off_at(n, n))
        n++;
    n_images = n;
    for (uint64_t seed = 1000; seed < 1100; seed++, n_images++)
        cut_off_at(1 + seed % n, seed);
    print_message("erasing: %llu operations, %llu images\n", (unsigned long long)n - 1,
                  (unsigned long long)n_images);
    assert_true(n > 10);
}

/* A device that cannot wipe: the erase reports an error, the chunks are absent all the same, and
 * the next open wipes them. */
TEST(wipe_fails)
{
    struct err err = {0};
    struct store_erased e;
    struct sha256 keys[N];
    struct store *s = st_begin(&place, "sim", 1);
    save_both(s);
    st_keys(&ours, N, keys);
    struct io_sim_fault bad = {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_WRITE, .path = "seg-"};
    io_sim_fault_add(place.io, &bad);
    assert_int_equal(store_erase(s, keys, N, &e, &err), -EIO);
    assert_int_equal(st_n_right(s, &ours, N), 2);
    assert_true(store_audit(s));
    store_close(s);
    io_sim_fault_clear(place.io);
    s = st_open(&place);
    for (int i = 2; i < N; i++)
        assert_int_equal(remains(&place, &ours, i, false), 0);
    struct store_stats st;
    store_stats(s, &st);
    assert_true(st.freeing_bytes == 0);
    st_close(s, &place);
}

/* The marker is durable before the chunks are taken away, and an erasure that cannot remove it has
 * not ended. On a full disk an erasure does without it. */
TEST(the_marker)
{
    static const struct {
        struct io_sim_fault fault;
        int code, n_found;
        bool is_left;
    } cases[] = {
        {{.kind = IO_SIM_FAIL,
          .on = IO_SIM_ON_NAME,
          .path = STORE_WIPE_MARKER,
          .code = -EACCES},
         -EACCES,
         N,
         false},
        {{.kind = IO_SIM_FAIL,
          .on = IO_SIM_ON_NAME,
          .path = STORE_WIPE_MARKER,
          .code = -ENOSPC},
         -ENOSPC,
         2,
         false},
        {{.kind = IO_SIM_FAIL,
          .on = IO_SIM_ON_NAME,
          .path = STORE_WIPE_MARKER,
          .code = -ENOSPC,
          .count = 1},
         0,
         2,
         false},
        {{.kind = IO_SIM_FAIL,
          .on = IO_SIM_ON_DIR_SYNC,
          .path = "/st/d0",
          .code = -EIO,
          .skip = 1, /* the index's log has another name to be synced */
          .count = 1},
         -EIO,
         N,
         true},
        {{.kind = IO_SIM_FAIL,
          .on = IO_SIM_ON_NAME,
          .path = STORE_WIPE_MARKER,
          .code = -EACCES,
          .skip = 1},
         -EACCES,
         2,
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        struct store_erased e;
        struct sha256 keys[N];
        struct store *s = st_begin(&place, "sim", 1);
        save_both(s);
        store_close(s);
        s = st_open(&place); /* free space may hold bytes of a killed process */
        st_keys(&ours, N, keys);
        assert_int_equal(io_sim_fault_add(place.io, &cases[i].fault), 0);
        assert_int_equal(store_erase(s, keys, N, &e, &err), cases[i].code);
        assert_int_equal(st_n_found(s, &ours, N), cases[i].n_found);
        assert_int_equal(io_exists(place.io, "/st/d0/" STORE_WIPE_MARKER),
                         cases[i].is_left);
        io_sim_fault_clear(place.io);
        if (cases[i].code != 0 && cases[i].n_found == N)
            assert_int_equal(store_erase(s, keys, N, &e, &err), 0);
        else
            assert_int_equal(store_erase(s, keys, 0, &e, &err), 0);
        assert_int_equal(st_n_found(s, &ours, N), 2);
        assert_false(io_exists(place.io, "/st/d0/" STORE_WIPE_MARKER));
        for (int c = 2; c < N; c++)
            assert_int_equal(remains(&place, &ours, c, false), 0);
        st_close(s, &place);
    }
}

/* --- chunks that continue an erased text ------------------------------------------------------ */

/* The erased text has `n_full` chunks and 20 more tokens. An interrupted answer has saved the chunk
 * that begins with these tokens, and the chunks after it. */
static void continuing(const char *kind, int n_full, bool with_others)
{
    struct sha256 keys[N];
    struct store_erased e;
    int32_t tokens[STORE_CHUNK_TOKENS];
    assert_true(st_place_open(&place, kind, 1));
    if (place.io == NULL)
        place.opts.memory = remains_memory();
    struct store *s = st_open(&place);
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    assert_true(remains(&place, &ours, N - 1, false) > 0); /* shows that the search works */
    if (with_others)
        assert_int_equal(st_save(s, &st_small, &theirs, N, ST_BOTH, NULL), 0);
    st_keys(&ours, N, keys);
    st_tokens(&ours, n_full, tokens);
    struct sha256 turn[N], parent = parent_of(&ours, n_full);
    memcpy(turn, keys, (size_t)n_full * sizeof keys[0]);
    turn[n_full] = store_partial_key(&parent, tokens, 20);
    turn[n_full + 1] = (struct sha256){{0}}; /* a chunk that is not stored */
    assert_int_equal(store_erase(s, turn, n_full, &e, NULL), 0);
    /* other contexts continue these chunks, so this erase removes none */
    assert_int_equal(e.n_chunks, 0);
    assert_int_equal(store_erase_continuing(s, turn, n_full + 2, &e, NULL), 0);
    assert_int_equal(e.n_chunks, N - n_full);
    assert_int_equal(st_n_right(s, &ours, N), n_full);
    assert_int_equal(store_erase(s, turn, n_full, &e, NULL), 0);
    assert_int_equal(e.n_chunks, with_others ? 0 : n_full);
    for (int i = with_others ? 2 : 0; i < N; i++)
        assert_int_equal(remains(&place, &ours, i, false), 0);
    if (with_others)
        /* `theirs` shares only the beginning */
        assert_int_equal(st_n_right(s, &theirs, N), N);
    st_close(s, &place);
}

TEST(what_continues_an_erased_text)
{
    static const char *const kinds[] = {"pread", "dram"};
    for (int i = 0; i < 2; i++) {
        continuing(kinds[i], 0, false); /* a text shorter than a chunk */
        continuing(kinds[i], 2, false);
        continuing(kinds[i], 2, true);
        continuing(kinds[i], 4, false);
    }
}

/* The end of a text of less than a chunk is stored itself, and another chunk begins with it. */
TEST(what_continues_a_short_text_that_is_stored)
{
    struct sha256 text;
    struct store_erased e;
    struct store *s = st_begin(&place, "dram", 1);
    assert_int_equal(st_save(s, &st_small, &ours, N, ST_BOTH, NULL), 0);
    append_end(s, &ours, 0, 20, NULL, &text);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(store_erase_continuing(s, &text, 1, &e, NULL), 0);
    assert_int_equal(e.n_chunks, N);
    assert_int_equal(st_stats(s).n_chunks, 1);
    st_close(s, &place);
}

static void note_erased(void *arg, const struct sha256 *keys, int n)
{
    struct sha256 *got = arg;
    for (int i = 0; i < n; i++)
        got[i] = keys[i];
}

/* An erasure tells the erased chunks, children before parents; without a listener it tells none. */
TEST(an_erasure_tells_its_chunks)
{
    struct store_erased e;
    struct sha256 keys[N], got[N] = {{{0}}}, none = {{0}};
    struct store *s = st_begin(&place, "sim", 1);
    st_keys(&ours, N, keys);
    save_both(s);
    store_on_erased(s, note_erased, got);
    erase_all(s, &ours, &e);
    for (int i = 0; i < N - 2; i++)
        assert_memory_equal(&got[i], &keys[N - 1 - i], sizeof got[i]);
    assert_memory_equal(&got[N - 2], &none, sizeof none);
    memset(got, 0, sizeof got);
    store_on_erased(s, NULL, NULL);
    erase_all(s, &theirs, &e);
    assert_memory_equal(&got[0], &none, sizeof none);
    st_close(s, &place);
}
