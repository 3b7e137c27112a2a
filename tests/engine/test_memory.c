/* test_memory.c - memory runs out at each allocation in a request's life. The request ends with an
 * error that says so, or with the tokens and logits that it has with enough memory. The next engine
 * finds all state that was reported as committed. With memory again the same engine continues. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "hcache.h"
#include "tests/base/memtest.h"
#include "tests/engine/enginetest.h"

enum { N_PROMPT = 200, N_NEW = 6, LIVES = 14 };

static int32_t prompt[N_PROMPT];
static struct et_run reference;
static const struct et_ask ask = {
    .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW, .save = "both"};

/* Checks that a request gets the right answer or an error that says so. Returns the number of
 * tokens reported as committed. */
static int64_t ask_it(struct stack *k, const char *what)
{
    static struct et_run r;
    int rc = et_run(k, &ask, &r);
    if (rc == 0 && r.finish == FINISH_ERROR)
        rc = r.err.code;
    if (memtest_ok(rc, &r.err, what))
        et_same(&r, &reference, what);
    return rc == 0 ? r.committed : 0;
}

/* Saves in one engine and restores in another, on one disk. */
static void life(void *arg)
{
    struct io *io = et_disk(7, 0);
    struct stack_opts so = {
        .io = io, .user.store = et_dirs, .user.n_store = 2, .user.no_reuse = true};
    struct stack k;
    struct err err = {0};
    int64_t committed = 0;
    (void)arg;
    for (int i = 0; i < 2; i++) {
        int64_t n = 0;
        if (memtest_ok(et_try_open(&k, &so, &err), &err, "open"))
            n = ask_it(&k, i == 0 ? "save" : "restore");
        committed = n > committed ? n : committed;
        stack_close(&k); /* a stack that was opened in part can be closed */
    }
    memtest_stop();
    static struct et_run r;
    et_open(&k, &so);
    assert_int_equal(et_run(&k, &ask, &r), 0);
    et_same(&r, &reference, "with memory again");
    if (r.n_cached < committed / 64 * 64)
        fail_msg("%lld tokens were reported committed, %d are found (%s)",
                 (long long)committed, r.n_cached, r.miss);
    stack_close(&k);
    io_close(io);
}

/* Through the public interface: a handle works again after memory ran out. */
static void submit(void *arg)
{
    struct hcache *h = arg;
    struct hcache_request q = {
        .prompt = prompt, .n_prompt = 70, .max_tokens = 3, .ignore_eos = true};
    struct hcache_result r = {0};
    struct hcache_err e = {0};
    struct err err = {0};
    int rc = hcache_generate(h, &q, &r, &e);
    memcpy(err.msg, e.msg, sizeof err.msg);
    if (memtest_ok(rc, &err, "generate"))
        assert_int_equal(r.n_tokens, 3);
    hcache_result_free(&r);
    memtest_stop();
    assert_int_equal(hcache_generate(h, &q, &r, &e), 0);
    assert_int_equal(r.n_tokens, 3);
    hcache_result_free(&r);
}

static void open_and_close(void *arg)
{
    struct hcache_opts o = {.model = "synth:tiny-mha",
                            .dtype = "f32",
                            .threads = 2,
                            .store_in_memory = true,
                            .store_cap_bytes = 4 << 20};
    struct hcache *h = NULL;
    struct hcache_err e = {0};
    struct err err = {0};
    (void)arg;
    int rc = hcache_open(&o, &h, &e);
    memcpy(err.msg, e.msg, sizeof err.msg);
    (void)memtest_ok(rc, &err, "open");
    hcache_close(h);
}

TEST(requests)
{
    struct stack k;
    et_prompt(prompt, N_PROMPT, 5);
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    assert_int_equal(et_run(&k, &ask, &reference), 0);
    stack_close(&k);
    memtest_walk("a request that saves and one that restores", life, NULL, LIVES);
}

TEST(handles)
{
    struct hcache_opts o = {.model = "synth:tiny-mha", .dtype = "f32", .threads = 1};
    struct hcache_err e = {0};
    struct hcache *h;
    assert_int_equal(hcache_open(&o, &h, &e), 0);
    memtest_walk("a request", submit, h, LIVES);
    hcache_close(h);
    memtest_walk("a handle", open_and_close, NULL, LIVES);
}

int main(void)
{
    memtest_init();
    return unit_run(NULL, NULL);
}
