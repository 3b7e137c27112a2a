/* test_sealed.c - an encrypted store: no file shows text, state, or names of chunks and owners, and
 * no other key opens it. (Crashes and damage: test_campaign, test_damage.) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "remains.h"
#include "sim/io_sim.h"
#include "store/parcel.h"

enum { N = 5 };
static const struct st_ctx ours = {.base = 1, .own = 2, .branch = 2, .salt = "a tenant"};
static const struct st_ctx theirs = {.base = 7, .own = 8, .salt = "another tenant"};
static const uint8_t other_key[] = "another secret of the same size";

static int shown(const struct st_place *p)
{
    uint8_t owner[8];
    put_u64(owner, store_owner(ours.salt));
    int n = files_with(p, owner, sizeof owner);
    for (int i = 0; i < N; i++)
        n += remains(p, &ours, i, true);
    return n;
}

static int unlinked(const struct st_place *p, const char *name)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s", p->dir[0], name);
    return io_unlink(p->io, path, NULL);
}

static void save(const struct st_place *p, const struct st_ctx *c)
{
    struct store *s = st_open(p);
    st_must_save(s, c, N);
    store_close(s);
}

static void all_right(const struct st_place *p, int n)
{
    struct st_result r;
    struct store *s = st_open(p);
    assert_int_equal(st_read(s, &st_small, &ours, N, &r, NULL), 0);
    assert_int_equal(r.n_found, n);
    assert_int_equal(r.n_records, n * st_small.n_layers * STORE_KINDS);
    store_close(s);
}

/* Saves, pins, notes an erasure that has to wait, and rebuilds the index. Returns how often the
 * files show any of it. */
static int life(const char *kind, const uint8_t *key)
{
    struct st_place p;
    struct err err = {0};
    struct sha256 keys[N];
    struct store_erased e;
    uint64_t freed;
    if (!st_place_open(&p, kind, 2))
        skip();
    p.opts.key = key;
    st_keys(&ours, N, keys);
    struct store *s = st_open(&p);
    assert_int_equal(store_unseal_bytes_per_s(s) > 1e6, key != NULL);
    st_must_save(s, &ours, N);
    assert_int_equal(store_pin_until(s, keys, N, clock_wall_s() + 999, &err), 0);
    int n = shown(&p);
    store_close(s);
    all_right(&p, N);
    p.opts.read_only = true;
    s = st_open(&p);
    assert_int_not_equal(store_erase(s, keys, N, &e, &err), 0);
    assert_true(e.is_noted);
    n += shown(&p);
    store_close(s);
    assert_int_equal(unlinked(&p, "erase.owed"), 0);
    p.opts.read_only = false;
    assert_int_equal(unlinked(&p, "index.db"), 0);
    all_right(&p, N);
    s = st_open(&p);
    assert_int_equal(store_gc(s, &freed, &err), 0);
    n += shown(&p);
    assert_int_equal(store_erase(s, keys, N, &e, &err), 0);
    assert_int_equal(e.n_chunks, N);
    st_close(s, &p);
    return n;
}

TEST(files_show_nothing)
{
    assert_true(life("sim", NULL) > 3 * N); /* shows that the search works */
    assert_int_equal(life("sim", st_key), 0);
    assert_int_equal(life("uring", st_key), 0);
}

static void refused(const struct st_place *p, const uint8_t *key, const char *why)
{
    struct store_opts o = p->opts;
    struct store *s = NULL;
    struct err err = {0};
    o.key = key;
    for (int i = 0; i < 2; i++) {
        o.read_only = i == 0;
        assert_int_equal(store_open(&o, &s, &err), ERR_MISMATCH);
        assert_non_null(strstr(err.msg, why));
    }
}

/* Also if a superblock is lost, and its content comes from the index or the other directory. */
TEST(no_other_key_opens)
{
    for (int lost = -1; lost < 2; lost++) {
        struct st_place p;
        assert_true(st_place_open(&p, "sim", 1 + (lost == 1)));
        p.opts.key = st_key;
        save(&p, &ours);
        if (lost >= 0)
            assert_int_equal(unlinked(&p, "superblock"), 0);
        if (lost == 1)
            all_right(&p, N);
        for (int i = 0; i < 2; i++) {
            refused(&p, NULL, "is encrypted: give its key");
            refused(&p, other_key, "another key");
            all_right(&p, N);
        }
        st_place_close(&p);
    }
    struct st_place p;
    assert_true(st_place_open(&p, "sim", 1));
    save(&p, &ours);
    refused(&p, st_key, "is not encrypted");
    all_right(&p, N);
    st_place_close(&p);
}

/* A parcel is plain, so stores with other keys take it. Bytes that changed since it was checked are
 * not stored. */
TEST(parcels_go_between_keys)
{
    const uint8_t *const to[] = {NULL, other_key};
    for (int i = 0; i < 2; i++) {
        struct st_place a, b;
        struct sha256 keys[N];
        struct parcel parcel = {0};
        struct chunk_header h;
        struct store_reader *r;
        struct err err = {0};
        assert_true(st_place_open(&a, "sim", 2) && st_place_open(&b, "sim", 1));
        a.opts.key = st_key;
        b.opts.key = to[i];
        struct store *s = st_open(&a), *t = st_open(&b);
        st_must_save(s, &ours, N);
        st_keys(&ours, N, keys);
        assert_int_equal(store_reader_open(s, 4, NULL, 0, &r, &err), 0);
        for (int c = 0; c < N; c++) {
            struct store_use use = {0};
            assert_int_equal(parcel_read(s, r, &keys[c], &parcel, &err), 0);
            assert_int_equal(parcel_check(parcel.bytes, parcel.n_bytes, &h, &err), 0);
            parcel.bytes[h.records[0].offset] ^= 1;
            if (to[i] != NULL)
                assert_int_equal(parcel_append(t, parcel.bytes, &h, &use, &err),
                                 ERR_CORRUPT);
            parcel.bytes[h.records[0].offset] ^= 1;
            assert_int_equal(parcel_append(t, parcel.bytes, &h, &use, &err), 0);
        }
        assert_int_equal(store_commit(t, &err), 0);
        store_reader_close(r);
        parcel_deinit(&parcel);
        store_close(s);
        store_close(t);
        all_right(&b, N);
        st_place_close(&a);
        st_place_close(&b);
    }
}

static struct io_file *file_of(const struct st_place *p, const char *name)
{
    char path[96];
    struct io_file *f;
    snprintf(path, sizeof path, "%s/%s", p->dir[0], name);
    assert_int_equal(io_file_open(p->io, path, IO_CREATE, &f, NULL), 0);
    return f;
}

/* Swaps a file's bytes with those at *bytes. */
static void swap(const struct st_place *p, const char *name, uint8_t **bytes, size_t *n)
{
    enum { MOST = 8 << 20 };
    struct io_file *f = file_of(p, name);
    uint8_t *now = malloc(MOST);
    size_t n_now;
    assert_int_equal(io_file_pread_some(f, now, MOST, 0, &n_now, NULL), 0);
    if (*bytes != NULL) {
        assert_int_equal(io_file_truncate(f, *n, NULL), 0);
        assert_int_equal(io_file_pwrite(f, *bytes, *n, 0, NULL), 0);
    }
    io_file_close(f);
    free(*bytes);
    *bytes = now;
    *n = n_now;
}

/* Makes an encrypted store with a context of each of two owners. */
static void open_two(struct st_place *p)
{
    assert_true(st_place_open(p, "sim", 1));
    p->opts.key = st_key;
    save(p, &ours);
    save(p, &theirs);
}

/* Asserts what is left of two owners' contexts. Nothing wrong is ever served. */
static void two_left(const struct st_place *p, bool first, bool second)
{
    const struct st_ctx *of[] = {&ours, &theirs};
    struct store *s = st_open(p);
    for (int i = 0; i < 2; i++) {
        struct st_result r;
        assert_int_equal(st_read(s, &st_small, of[i], N, &r, NULL), 0);
        assert_int_equal(r.n_records, (i == 0 ? first : second)
                                          ? N * st_small.n_layers * STORE_KINDS
                                          : 0);
        assert_int_equal(r.n_wrong, 0);
    }
    store_close(s);
}

/* With an owner its key goes: a copy of all chunks and of the index does not bring it back, with or
 * without a rebuild. Other owners' chunks stay, and the owner may come again. */
TEST(an_erased_owner_opens_nowhere)
{
    for (int rebuilds = 0; rebuilds < 2; rebuilds++) {
        struct st_place p;
        struct store_erased e;
        uint8_t *chunks = NULL, *index = NULL;
        size_t n_chunks, n_index;
        open_two(&p);
        two_left(&p, true, true);
        swap(&p, "seg-000000.hc", &chunks, &n_chunks);
        swap(&p, "index.db", &index, &n_index);
        struct store *s = st_open(&p);
        assert_int_equal(store_erase_owner(s, store_owner(ours.salt), &e, NULL), 0);
        assert_int_equal(e.n_chunks, N);
        store_close(s);
        two_left(&p, false, true);
        swap(&p, "seg-000000.hc", &chunks, &n_chunks);
        swap(&p, "index.db", &index, &n_index);
        if (rebuilds)
            assert_int_equal(unlinked(&p, "index.db"), 0);
        two_left(&p, false, true);
        save(&p, &ours);
        two_left(&p, true, true);
        free(chunks);
        free(index);
        st_place_close(&p);
    }
}

/* Each key has two copies, of which one is enough, and mends the other. */
TEST(keys_have_copies)
{
    struct st_place p;
    open_two(&p);
    for (int i = 0; i < 4; i++) { /* the first copy, the second one, and both at once */
        for (int copy = 0; copy < 2; copy++) {
            struct io_file *f = file_of(&p, "owners.keys");
            uint8_t byte;
            size_t got;
            uint64_t at = (uint64_t)copy * 4096 + 17 * (uint64_t)i;
            assert_int_equal(io_file_pread_some(f, &byte, 1, at, &got, NULL), 0);
            byte ^= 8;
            if (i == copy || i >= 2)
                assert_int_equal(io_file_pwrite(f, &byte, 1, at, NULL), 0);
            io_file_close(f);
        }
        two_left(&p, i < 2, true);
    }
    st_place_close(&p);
}
