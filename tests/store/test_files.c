/* test_files.c - the store's files. The cap bounds the files and not only the extents. A directory
 * that is removed under a running store is noticed. A single chunk can be verified. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "io/io.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 6 };

static uint64_t file_bytes(struct store *s)
{
    struct store_stats st;
    store_stats(s, &st);
    return st.file_bytes;
}

/* Saves and removes chunks of several sizes, so that free space has holes. */
static void churn(struct store *s, uint64_t cap)
{
    static const int kinds[] = {ST_BOTH, ST_H, ST_KV};
    struct err err = {0};
    for (uint64_t i = 0; i < 120; i++) {
        struct st_ctx c = {.base = 100 + i, .own = 100 + i};
        for (int chunk = 0; chunk < 1 + (int)(i * 7 % N); chunk++) {
            int rc = st_append(s, &st_small, &c, chunk, kinds[(i + (uint64_t)chunk) % 3],
                               &err);
            if (rc != 0)
                fail_msg("context %llu: %s", (unsigned long long)i, err.msg);
            assert_true(file_bytes(s) <= cap);
        }
        assert_int_equal(store_commit(s, &err), 0);
    }
}

static void the_cap_bounds_the_files(void **state)
{
    (void)state;
    for (int n_dirs = 1; n_dirs <= 3; n_dirs += 2) {
        struct st_place p;
        struct store_stats st;
        assert_true(st_place_open(&p, "pread", n_dirs));
        p.opts.cap_bytes = 1 << 20;
        struct store *s = st_open(&p);
        churn(s, p.opts.cap_bytes);
        store_stats(s, &st);
        assert_true(st.evictions[STORE_EVICT_CAP] > 0 &&
                    st.evictions[STORE_EVICT_SPACE] == 0);
        assert_true(st.used_bytes > p.opts.cap_bytes / 2); /* most of the cap is used */
        assert_true(store_audit(s));
        store_close(s);
        st_place_close(&p);
    }
}

/* Files that grew under an earlier build or without a cap are cut when the store is opened. */
static void a_lower_cap_cuts_files(void **state)
{
    (void)state;
    struct st_place p;
    struct err err = {0};
    assert_true(st_place_open(&p, "pread", 1));
    struct store *s = st_open(&p);
    for (uint64_t i = 0; i < 12; i++) {
        struct st_ctx c = {.base = i, .own = i};
        assert_int_equal(st_save(s, &st_small, &c, N, ST_BOTH, &err), 0);
    }
    struct store_stats st;
    store_stats(s, &st);
    assert_true(st.file_bytes > st.used_bytes); /* space is allocated ahead */
    store_close(s);
    p.opts.cap_bytes = st.used_bytes;
    s = st_open(&p);
    assert_true(file_bytes(s) <= p.opts.cap_bytes);
    store_close(s);
    st_place_close(&p);
}

static void removed_under_way(void **state)
{
    (void)state;
    static const struct st_ctx a = {.base = 1, .own = 1}, b = {.base = 2, .own = 2};
    for (int how = 0; how < 3; how++) {
        struct st_place p;
        struct err err = {0};
        struct store_stats st;
        char moved[400], path[600];
        assert_true(st_place_open(&p, "pread", 2));
        struct store *s = st_open(&p);
        assert_int_equal(st_save(s, &st_small, &a, N, ST_BOTH, &err), 0);
        snprintf(moved, sizeof moved, "%s/moved", p.root);
        snprintf(path, sizeof path, "%s/%s", p.dirs[how == 2 ? 1 : 0],
                 how == 0 ? "index.db" : "superblock");
        if (how == 1)
            assert_int_equal(io_rename(p.io, p.dirs[0], moved, &err), 0);
        else
            assert_int_equal(io_unlink(p.io, path, &err), 0);
        assert_int_equal(st_save(s, &st_small, &b, N, ST_BOTH, &err), -ENOENT);
        assert_non_null(strstr(err.msg, "was removed or replaced"));
        store_stats(s, &st);
        assert_int_equal(st.saving_fault, -ENOENT);
        struct st_result r; /* an open file can still be read */
        assert_int_equal(st_read(s, &st_small, &a, N, &r, &err), 0);
        assert_int_equal(r.n_found, N);
        assert_int_equal(r.n_wrong + r.n_corrupt, 0);
        store_close(s);
        st_place_close(&p);
    }
}

static int n_chunks_beside(const struct st_place *p, const struct st_ctx *c, int *n_found)
{
    struct store_opts opts = p->opts;
    struct store *s = NULL;
    struct store_stats st;
    struct store_verify v;
    struct st_result r;
    struct err err = {0};
    opts.read_only = true;
    if (store_open(&opts, &s, &err) != 0)
        fail_msg("%s", err.msg);
    assert_non_null(store_beside(s));
    store_stats(s, &st);
    assert_int_equal(store_verify(s, &v, NULL, NULL, NULL, &err), 0);
    assert_int_equal(v.n_bad, 0);
    assert_int_equal(st_read(s, &st_small, c, N, &r, &err), 0);
    assert_int_equal(r.n_wrong + r.n_corrupt, 0);
    *n_found = r.n_found;
    store_close(s);
    return (int)st.n_chunks;
}

/* A second process opens the store for reading. It reads what is committed, while the first writes
 * and folds the index's log, and it changes nothing. */
static void read_beside_a_writer(void **state)
{
    (void)state;
    static const char *const kinds[] = {"pread", "sim"};
    for (int k = 0; k < 2; k++) {
        struct st_place p;
        struct err err = {0};
        int n_found;
        assert_true(st_place_open(&p, kinds[k], 2));
        struct store *s = st_open(&p);
        /* enough saves for the log to start again several times */
        for (uint64_t i = 0; i < 60; i++) {
            struct st_ctx c = {.base = i, .own = i};
            assert_int_equal(st_save(s, &st_small, &c, N, ST_BOTH, &err), 0);
            if (i % 10 == 9) {
                assert_int_equal(n_chunks_beside(&p, &c, &n_found), (int)(i + 1) * N);
                assert_int_equal(n_found, N);
            }
        }
        assert_int_equal(st_save(s, &st_small, &(struct st_ctx){.base = 99, .own = 99}, N,
                                 ST_BOTH, &err),
                         0);
        assert_true(store_audit(s));
        store_close(s);
        st_place_close(&p);
    }
}

/* The message for a store in use names the process that uses it. */
static void the_holder_is_named(void **state)
{
    (void)state;
    struct st_place p;
    struct store *s = NULL;
    struct err err = {0};
    int ready[2], done[2];
    char byte, want[32];
    assert_true(st_place_open(&p, "pread", 1));
    assert_int_equal(pipe(ready) | pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        s = st_open(&p);
        (void)!write(ready[1], "x", 1);
        (void)!read(done[0], &byte, 1);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(store_open(&p.opts, &s, &err), ERR_BUSY);
    snprintf(want, sizeof want, "process %ld (", (long)child);
    if (strstr(err.msg, want) == NULL || strstr(err.msg, "test_files") == NULL)
        fail_msg("%s", err.msg);
    assert_int_equal(write(done[1], "x", 1), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(done[i]);
    }
    st_place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cap_bounds_the_files),
        cmocka_unit_test(a_lower_cap_cuts_files),
        cmocka_unit_test(removed_under_way),
        cmocka_unit_test(read_beside_a_writer),
        cmocka_unit_test(the_holder_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
