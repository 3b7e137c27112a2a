/* test_no_threads.c - a process that can start no more threads: opening says so and leaves nothing
 * behind. */

#include "tests/unit.h"
#include <stdio.h>
#include <string.h>

#include "hcache.h"
#include "tests/base/strict_threads.h"
#include "tests/base/tempdir.h"

static char dir[TEMPDIR_BYTES];

static void ignore(void *arg, const char *text)
{
    (void)arg, (void)text;
}

/* Opens an engine, starts its thread, answers one prompt and saves its state. */
static int live(struct hcache_opts o, struct hcache_err *err)
{
    const char *const dirs[] = {dir};
    int32_t prompt[70];
    struct hcache *h = NULL;
    struct hcache_result r = {0};
    for (int i = 0; i < 70; i++)
        prompt[i] = 3 + i;
    o.store = dirs;
    o.n_store = 1;
    o.warn = ignore;
    o.max_context = 128;
    int rc = hcache_open(&o, &h, err);
    assert_true((rc == 0) == (h != NULL));
    if (rc == 0)
        rc = hcache_serve_start(h, 0, err);
    if (rc == 0) {
        const struct hcache_request q = {.prompt = prompt, .n_prompt = 70, .max_tokens = 2};
        assert_int_equal(hcache_generate(h, &q, &r, err), 0);
        assert_int_equal(r.n_tokens, 2);
        hcache_result_free(&r);
        hcache_serve_stop(h);
    }
    hcache_close(h);
    return rc;
}

/* Lets each start of a thread fail. can_do_without: some threads are not needed. */
static void fail_each(struct hcache_opts o, int n_least, bool can_do_without)
{
    int n = 0, n_well = 0;
    for (int at = 1;; at++) {
        struct hcache_err err = {0};
        tempdir_make(dir, "threads");
        strict_threads_fail(at);
        int rc = live(o, &err);
        bool has_failed = strict_threads_have_failed();
        strict_threads_fail(0);
        if (rc != 0 && (!has_failed || err.code != rc || strstr(err.msg, "thread") == NULL))
            fail_msg("thread %d: %d [%s]", at, rc, err.msg);
        /* nothing hangs on the failure: the same folder opens now */
        if (rc != 0)
            assert_int_equal(live(o, &err), 0);
        tempdir_remove(dir);
        if (!has_failed)
            break;
        n++;
        n_well += rc == 0;
    }
    print_message("%d threads\n", n);
    assert_true(n >= n_least);
    assert_int_equal(n_well > 0, can_do_without);
}

TEST(of_an_engine)
{
    fail_each((struct hcache_opts){.model = "synth:tiny-gqa", .threads = 3}, 5, false);
}

/* Memory that is provided ahead is a convenience. */
TEST(of_copies_in_memory)
{
    fail_each((struct hcache_opts){.model = "synth:tiny-gqa",
                                   .threads = 1,
                                   .dram_bytes = 1 << 20},
              5, true);
}
