/* test_sealed.c - an encrypted store: no file shows text, state, or names of chunks and owners, and
 * no other key opens it. (Crashes and damage: test_campaign, test_damage.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "remains.h"
#include "sim/io_sim.h"
#include "store/parcel.h"

enum { N = 5 };
static const struct st_ctx ours = {.base = 1, .own = 2, .branch = 2, .salt = "a tenant"};
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

static void all_right(const struct st_place *p, int n)
{
    struct st_result r;
    struct err err = {0};
    struct store *s = st_open(p);
    assert_int_equal(st_read(s, &st_small, &ours, N, &r, &err), 0);
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
    store_close(s);
    st_place_close(&p);
    return n;
}

static void files_show_nothing(void **state)
{
    (void)state;
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
static void no_other_key_opens(void **state)
{
    (void)state;
    for (int lost = -1; lost < 2; lost++) {
        struct st_place p;
        assert_true(st_place_open(&p, "sim", 1 + (lost == 1)));
        p.opts.key = st_key;
        struct store *s = st_open(&p);
        st_must_save(s, &ours, N);
        store_close(s);
        if (lost >= 0)
            assert_int_equal(unlinked(&p, "superblock"), 0);
        if (lost < 1) {
            refused(&p, NULL, "is encrypted: give its key");
            refused(&p, other_key, "another key");
        }
        all_right(&p, N);
        refused(&p, NULL, "is encrypted: give its key");
        refused(&p, other_key, "another key");
        all_right(&p, N);
        st_place_close(&p);
    }
    struct st_place p;
    assert_true(st_place_open(&p, "sim", 1));
    struct store *s = st_open(&p);
    st_must_save(s, &ours, N);
    store_close(s);
    refused(&p, st_key, "is not encrypted");
    all_right(&p, N);
    st_place_close(&p);
}

/* A parcel is plain, so stores with other keys take it. Bytes that changed since it was checked are
 * not stored. */
static void parcels_go_between_keys(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_show_nothing),
        cmocka_unit_test(no_other_key_opens),
        cmocka_unit_test(parcels_go_between_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
