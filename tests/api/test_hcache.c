/* test_hcache.c - the public interface: every misuse gives an error with a message and leaves the
 * handle usable, text arrives in whole characters, and saved state survives a restart. */
#include <errno.h>
#include <math.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "hcache.h"
#include "tests/base/tempdir.h"
#include "tests/tensor/peer_threads.h"

static int n_warnings;
static char last_warning[700];

static void warn(void *arg, const char *text)
{
    (void)arg;
    snprintf(last_warning, sizeof last_warning, "%s", text);
    n_warnings++;
}

static struct hcache_opts options(const char *model)
{
    return (struct hcache_opts){
        .model = model, .dtype = "f32", .threads = 1, .max_context = 512, .warn = warn};
}

static struct hcache *open_or_fail(const struct hcache_opts *o)
{
    struct hcache *h;
    struct hcache_err err = {0};
    if (hcache_open(o, &h, &err) != 0)
        fail_msg("%s", err.msg);
    return h;
}

/* A model with a tokenizer. */
#define DEMO "models/demo"

static void make_prompt(int32_t *p, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = 3 + i * 37 % 450;
}

/* --- the end of the process ------------------------------------------------------------------- */

static void host_ends(void *arg, const char *why)
{
    _exit(strstr(why, "x does not hold") != NULL ? *(const int *)arg : 1);
}

TEST(test_the_host_may_end_the_process_itself)
{
    int status = 0, as_host = 7;
    pid_t child = fork();
    if (child == 0) {
        hcache_on_end(host_ends, &as_host);
        check_failed("FILE", 3, "x");
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == as_host);
}

/* --- errors ----------------------------------------------------------------------------------- */

static void refuse_open(const struct hcache_opts *o, const char *word)
{
    struct hcache *h = (struct hcache *)(uintptr_t)1;
    struct hcache_err err = {0};
    int rc = hcache_open(o, &h, &err);
    if (rc >= 0 || err.code != rc || strstr(err.msg, word) == NULL)
        fail_msg("expected '%s', got %d: %s", word, rc, err.msg);
    assert_null(h); /* no handle was made; closing NULL is harmless */
    hcache_close(h);
    assert_int_equal(hcache_open(o, &h, NULL), rc); /* err may be NULL */
}

TEST(options_that_cannot_be_used)
{
    static const char *const dirs[] = {"/proc/hcache-cannot-be-here"};
    char dir[TEMPDIR_BYTES];
    const char *const same[] = {dir, dir};
    tempdir_make(dir, "test");
    struct hcache_opts o = options(NULL);
    refuse_open(&o, "no model");
    o = options("/no/such/folder");
    refuse_open(&o, "/no/such/folder");
    o = options("synth:no-such-shape");
    refuse_open(&o, "no-such-shape");
    o = options("synth:tiny-mha");
    o.dtype = "f8";
    refuse_open(&o, "f8");
    o = options("synth:tiny-mha");
    o.device = "abacus";
    refuse_open(&o, "abacus");
    o = options("synth:tiny-mha");
    o.threads = -1;
    refuse_open(&o, "threads");
    o.threads = 100000;
    refuse_open(&o, "threads");
    o = options("synth:tiny-mha");
    o.max_sequences = 100000;
    refuse_open(&o, "max_sequences");
    o = options("synth:tiny-mha");
    for (uint64_t n = (uint64_t)HCACHE_MAX_KV_TOKENS + 1; n != 0; n *= 2) {
        o.kv_tokens = n;
        refuse_open(&o, "kv_tokens");
    }
    o = options("synth:tiny-mha");
    o.max_context = -5;
    refuse_open(&o, "max_context");
    o = options("synth:tiny-mha");
    o.n_store = 1;
    refuse_open(&o, "store");
    o.store = dirs;
    o.store_in_memory = true;
    refuse_open(&o, "store");
    o.store_in_memory = false;
    refuse_open(&o, "/proc/hcache-cannot-be-here");
    o.store = same;
    o.n_store = 2;
    refuse_open(&o, "store");
    tempdir_remove(dir);
    hcache_close(NULL);
}

/* Opens a model that does not exist: options that are refused are refused before that. */
static void refuse_or_look_for_model(struct hcache_opts *o, bool is_refused,
                                     const char *name)
{
    struct hcache *h = NULL;
    struct hcache_err err = {0};
    o->model = "/no/such/folder";
    int rc = hcache_open(o, &h, &err);
    assert_true(rc < 0 && h == NULL);
    if (strstr(err.msg, is_refused ? name : "/no/such/folder") == NULL)
        fail_msg("%s: %s", name, err.msg);
    if (is_refused)
        assert_int_equal(rc, HCACHE_E_USAGE);
}

TEST(each_number_has_its_bounds)
{
    static const struct {
        const char *name;
        size_t at;
        int least, most;
    } rows[] = {
        {"threads", offsetof(struct hcache_opts, threads), 0, 1024},
        {"tensor_parallel", offsetof(struct hcache_opts, tensor_parallel), 0,
         HCACHE_MAX_DEVICES},
        {"pipeline_parallel", offsetof(struct hcache_opts, pipeline_parallel), 0,
         HCACHE_MAX_DEVICES},
        {"max_sequences", offsetof(struct hcache_opts, max_sequences), 0, 512},
        {"max_context", offsetof(struct hcache_opts, max_context), 0, INT32_MAX},
        {"mini-batches", offsetof(struct hcache_opts, mini_batches), 0,
         HCACHE_MAX_MINI_BATCHES},
        {"batch rows", offsetof(struct hcache_opts, batch_rows), 512,
         HCACHE_MAX_BATCH_ROWS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int64_t values[] = {(int64_t)rows[i].least - 1, rows[i].least, rows[i].most,
                                  (int64_t)rows[i].most + 1};
        for (int k = 0; k < 4; k++) {
            struct hcache_opts o = options(NULL);
            if (values[k] > INT32_MAX)
                continue;
            o.threads = o.max_context = 0;
            *(int *)(void *)((char *)&o + rows[i].at) = (int)values[k];
            refuse_or_look_for_model(&o, k == 0 || k == 3, rows[i].name);
        }
    }
    struct hcache_opts o = options(NULL);
    o.kv_tokens = HCACHE_MAX_KV_TOKENS;
    refuse_or_look_for_model(&o, false, "kv_tokens");
}

TEST(options_that_exclude_each_other)
{
    static const char *const dirs[] = {"/proc/hcache-cannot-be-here"};
    static const uint64_t speeds[] = {1, 65535, 65536, 1 << 20};
    for (int i = 0; i < 4; i++) {
        struct hcache_opts o = options(NULL);
        o.store = dirs;
        o.n_store = 1;
        o.throttle_bytes_per_s = speeds[i];
        refuse_or_look_for_model(&o, i < 2, "throttle is");
    }
    struct hcache_opts o = options(NULL);
    o.store_in_memory = true;
    refuse_or_look_for_model(&o, false, "throttle");
    o.throttle_bytes_per_s = 1 << 20;
    refuse_or_look_for_model(&o, true, "a store in memory cannot be slowed");
    o = options(NULL);
    o.store = dirs; /* without their number */
    refuse_or_look_for_model(&o, false, "store");
    o.n_store = -1;
    refuse_or_look_for_model(&o, true, "in directories or in memory");
    static const char *const methods[] = {"off", "recompute", "auto", "paper", "kv", "act"};
    for (int i = 0; i < 6; i++) {
        o = options(NULL);
        o.cache_method = methods[i];
        refuse_or_look_for_model(&o, false, "method");
        o.store = dirs;
        o.n_store = 1;
        refuse_or_look_for_model(&o, i >= 3, "exclude each other");
        o.n_store = 0;
        o.store_in_memory = true;
        refuse_or_look_for_model(&o, i >= 3, "exclude each other");
    }
    o = options(NULL);
    o.cache_method = "half";
    refuse_or_look_for_model(&o, true, "--method half: must be off");
    static const char *const policies[] = {"lru", "fifo", "lfu", "attentionstore", "ours"};
    for (int i = 0; i < 5; i++) {
        o = options(NULL);
        o.policy = policies[i];
        refuse_or_look_for_model(&o, false, "policy");
    }
    static const char *const no_policies[] = {"belady", "best", ""};
    for (int i = 0; i < 3; i++) {
        o = options(NULL);
        o.policy = no_policies[i];
        refuse_or_look_for_model(&o, true, "is none of lru, fifo, lfu");
    }
    o = options(NULL);
    o.remote = "redis://127.0.0.1:1";
    refuse_or_look_for_model(&o, true, "--remote needs --store");
    o.store_in_memory = true;
    refuse_or_look_for_model(&o, false, "remote");
    o.store_in_memory = false;
    o.store = dirs;
    o.n_store = 1;
    refuse_or_look_for_model(&o, false, "remote");
    o.remote = "http://127.0.0.1";
    refuse_or_look_for_model(&o, true, "redis://");
}

/* What is wrong with a future request, or a missing tokenizer, is said before the weights. */
TEST(a_future_request_is_checked_ahead)
{
    static const struct {
        struct hcache_request r;
        const char *word; /* NULL: accepted */
    } rows[] = {
        {{.plan = "fast"}, "fast"},
        {{.plan = "RKKKK"}, "5 layers, but the model has 4"},
        {{.plan = "RHKK"}, NULL},
        {{.plan = "RHKK"}, NULL},
        {{.plan = "RHK"}, "3 layers"},
        {{.save = "everything"}, "everything"},
        {{.save = "both"}, NULL},
        {{.save = "auto"}, NULL},
        {{.plan = "kv", .save = "HHHHH"}, "HHHHH"},
        {{0}, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hcache_opts o = options("synth:tiny-mha");
        o.ahead = &rows[i].r;
        if (rows[i].word != NULL) {
            refuse_open(&o, rows[i].word);
            continue;
        }
        hcache_close(open_or_fail(&o));
    }
    struct hcache_opts o = options("synth:tiny-mha");
    o.needs_tokenizer = true;
    refuse_open(&o, "has no tokenizer: give token ids");
    o.model = DEMO;
    hcache_close(open_or_fail(&o));
}

TEST(what_has_no_effect_is_told)
{
    struct hcache_opts o = options("synth:tiny-mha");
    struct hcache_model_info info;
    n_warnings = 0;
    hcache_close(open_or_fail(&o));
    assert_int_equal(n_warnings, 0);
    o.throttle_bytes_per_s = 65536;
    hcache_close(open_or_fail(&o));
    assert_int_equal(n_warnings, 1);
    assert_string_equal(
        last_warning,
        "throttle limits the reads of a store; without a store it has no effect");
    o = options(DEMO);
    for (int more = 0; more < 2; more++) {
        o.max_context = 2048 + more;
        struct hcache *h = open_or_fail(&o);
        hcache_model_info(h, &info);
        assert_int_equal(info.max_context, 2048);
        assert_int_equal(n_warnings, 1 + more);
        hcache_close(h);
    }
    assert_string_equal(
        last_warning,
        "a context of 2049 tokens was asked for; the model's own maximum of 2048 is used");
    o = options("synth:tiny-mha");
    o.verbose = true;
    hcache_close(open_or_fail(&o));
    assert_int_equal(n_warnings, 4); /* the parts of the start, and the memory */
    assert_memory_equal(last_warning, "memory reserved, MiB: ", 22);
    assert_non_null(strstr(last_warning, "; 1 threads, device cpu ("));
    assert_non_null(strstr(last_warning, "weights f32, state f32"));
}

TEST(requests_that_cannot_be_used)
{
    int32_t prompt[600];
    make_prompt(prompt, 600);
    static const struct {
        struct hcache_request r;
        const char *word;
    } bad[] = {
        {{.n_prompt = 0}, "empty"},
        {{.n_prompt = -1}, "empty"},
        {{.n_prompt = 10, .max_tokens = -1}, "max_tokens"},
        {{.n_prompt = 10, .temperature = -1}, "temperature"},
        {{.n_prompt = 10, .temperature = NAN}, "temperature"},
        {{.n_prompt = 10, .top_p = 1.5f}, "top_p"},
        {{.n_prompt = 10, .top_p = -0.1f}, "top_p"},
        {{.n_prompt = 10, .min_p = -0.1f}, "min_p"},
        {{.n_prompt = 10, .priority = -HCACHE_MAX_PRIORITY - 1}, "priority is -101"},
        {{.n_prompt = 10, .priority = HCACHE_MAX_PRIORITY + 1}, "priority is 101"},
        {{.n_prompt = 10, .timeout_ms = -1}, "timeout_ms is -1"},
        {{.n_prompt = 10, .timeout_ms = HCACHE_MAX_TIMEOUT_MS + 1}, "timeout_ms"},
        {{.n_prompt = 10, .cache_ttl_s = -1}, "cache_ttl_s"},
        {{.n_prompt = 10, .cache_ttl_s = HCACHE_MAX_CACHE_TTL_S + 1}, "cache_ttl_s"},
        {{.n_prompt = 10, .expect_reuse_in_s = -1}, "expect_reuse_in_s"},
        {{.n_prompt = 10, .expect_reuse_in_s = HCACHE_MAX_CACHE_TTL_S + 1}, "expect_reuse"},
        {{.n_prompt = 10, .turn = -1}, "turn at least 0"},
        {{.n_prompt = 10, .n_top = -1}, "n_top is -1"},
        {{.n_prompt = 10, .n_top = HCACHE_MAX_TOP + 1}, "n_top is 21"},
        {{.n_prompt = 10, .n_stop = -1}, "-1 stop strings"},
        {{.n_prompt = 10, .n_stop = HCACHE_MAX_STOP + 1}, "17 stop strings"},
        {{.n_prompt = 10, .n_stop = 1}, "stop strings need a tokenizer"},
        {{.n_prompt = 10,
          .truncation = {.ratio = 0.5, .context = 256},
          .max_tokens = HCACHE_MAX_TRUNCATED_ANSWER + 1},
         "for a truncated context it must be at most"},
        {{.n_prompt = 10, .truncation = {.ratio = 0.5, .context = 1024}}, "window is 1024"},
        {{.n_prompt = 10, .min_p = 1}, "min_p"},
        {{.n_prompt = 10, .top_k = -1}, "top_k"},
        {{.n_prompt = 10, .plan = "fast"}, "fast"},
        {{.n_prompt = 10, .plan = "RH"}, "2 layers"},
        {{.n_prompt = 10, .plan = "RKKKK"}, "5 layers"},
        {{.n_prompt = 10, .save = "everything"}, "everything"},
        {{.n_prompt = 513}, "512"},
        {{.n_prompt = 500, .max_tokens = 13}, "512"},
        {{.n_prompt = 500, .max_tokens = INT32_MAX}, "512"},
    };
    struct hcache_opts o = options("synth:tiny-mha");
    o.store_in_memory = true;
    struct hcache *h = open_or_fail(&o);
    struct hcache_result r;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hcache_request q = bad[i].r;
        struct hcache_err err = {0};
        q.prompt = prompt;
        int rc = hcache_generate(h, &q, &r, &err);
        if (rc >= 0 || err.code != rc || strstr(err.msg, bad[i].word) == NULL)
            fail_msg("expected '%s', got %d: %s", bad[i].word, rc, err.msg);
        assert_int_equal(hcache_generate(h, &q, &r, NULL), rc);
        hcache_result_free(&r);
    }
    static const int32_t ids[] = {-1, 512, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        struct hcache_err err = {0};
        prompt[7] = ids[i];
        struct hcache_request q = {.prompt = prompt, .n_prompt = 10};
        assert_int_equal(hcache_generate(h, &q, &r, &err), HCACHE_E_USAGE);
        assert_non_null(strstr(err.msg, "token 7"));
    }
    make_prompt(prompt, 600);
    struct hcache_request q = {.prompt = prompt, .n_prompt = 200, .save = "kv"};
    assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
    hcache_result_free(&r);
    q.plan = "hidden";
    assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
    hcache_result_free(&r);
    /* After all these errors the handle still works. */
    q = (struct hcache_request){.prompt = prompt, .n_prompt = 200, .max_tokens = 4};
    assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
    assert_int_equal(r.n_tokens, 4);
    assert_int_equal(r.cached_tokens, 199); /* the prompt's last token is always computed */
    assert_null(r.text);                    /* a synthetic model has no tokenizer */
    hcache_result_free(&r);
    hcache_result_free(&r); /* clears the result */
    hcache_close(h);
}

/* Values at their bounds are accepted. */
TEST(requests_at_their_bounds)
{
    int32_t prompt[512];
    make_prompt(prompt, 512);
    prompt[3] = 0;
    prompt[4] = 511;
    static const struct hcache_request good[] = {
        {.n_prompt = 1},
        {.n_prompt = 511, .max_tokens = 1},
        {.n_prompt = 512},
        {.n_prompt = 10, .top_p = 1, .min_p = 0.999f, .temperature = 1, .max_tokens = 1},
        {.n_prompt = 10, .priority = -HCACHE_MAX_PRIORITY},
        {.n_prompt = 10, .priority = HCACHE_MAX_PRIORITY},
        {.n_prompt = 10, .timeout_ms = HCACHE_MAX_TIMEOUT_MS},
        {.n_prompt = 10, .cache_ttl_s = HCACHE_MAX_CACHE_TTL_S},
        {.n_prompt = 10, .expect_reuse_in_s = HCACHE_MAX_CACHE_TTL_S, .turn = 1},
        {.n_prompt = 10, .n_top = HCACHE_MAX_TOP, .logprobs = true, .max_tokens = 1},
        {.n_prompt = 10, .plan = "auto"},
        {.n_prompt = 10, .plan = "recompute"},
        {.n_prompt = 10, .truncation = {.ratio = 0.5, .context = 512}, .max_tokens = 1},
    };
    struct hcache_opts o = options("synth:tiny-mha");
    o.store_in_memory = true;
    struct hcache *h = open_or_fail(&o);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct hcache_request q = good[i];
        struct hcache_result r;
        struct hcache_err err = {0};
        q.prompt = prompt;
        q.ignore_eos = true;
        if (hcache_generate(h, &q, &r, &err) != 0)
            fail_msg("request %zu: %s", i, err.msg);
        assert_int_equal(r.n_tokens, q.max_tokens);
        hcache_result_free(&r);
    }
    hcache_close(h);
}

TEST(stop_strings_have_bounds)
{
    static char longest[HCACHE_MAX_STOP_BYTES + 2];
    const char *stop[HCACHE_MAX_STOP];
    int32_t prompt[4];
    struct hcache_opts o = options(DEMO);
    struct hcache *h = open_or_fail(&o);
    make_prompt(prompt, 4);
    memset(longest, 'x', HCACHE_MAX_STOP_BYTES);
    for (int i = 0; i < HCACHE_MAX_STOP; i++)
        stop[i] = i == 1 ? longest : "y";
    static const struct {
        int n_stop;
        const char *first, *word;
    } rows[] = {{HCACHE_MAX_STOP, "y", NULL},
                {1, "", "stop string 0 has 0 bytes; 1 to 256 are allowed"},
                {1, "z", NULL}};
    for (int i = 0; i < 4; i++) {
        struct hcache_result r;
        struct hcache_err err = {0};
        struct hcache_request q = {.prompt = prompt, .n_prompt = 4, .stop = stop};
        q.n_stop = i < 3 ? rows[i].n_stop : 2;
        stop[0] = i < 3 ? rows[i].first : "y";
        if (i == 3)
            longest[HCACHE_MAX_STOP_BYTES] = 'x';
        const char *word = i < 3 ? rows[i].word : "stop string 1 has 257 bytes";
        int rc = hcache_generate(h, &q, &r, &err);
        if ((rc == 0) != (word == NULL) || (word != NULL && strstr(err.msg, word) == NULL))
            fail_msg("%d: %d, %s", i, rc, err.msg);
        hcache_result_free(&r);
    }
    hcache_close(h);
}

/* Shapings at their bounds are accepted, and refused beyond them. */
TEST(shapings_have_bounds)
{
    static struct hcache_bias bias[HCACHE_MAX_BIAS + 1];
    static int32_t stop[HCACHE_MAX_STOP_IDS + 1];
    int32_t prompt[4];
    make_prompt(prompt, 4);
    for (int i = 0; i <= HCACHE_MAX_BIAS; i++)
        bias[i] = (struct hcache_bias){i % 512, i % 2 == 0 ? 100 : -100};
    static const struct hcache_bias wrong[] = {
        {-1, 0}, {512, 0}, {1, 100.5f}, {1, -100.5f}, {1, NAN}};
    static const int32_t wrong_stop[] = {-1, 512};
    const struct {
        struct hcache_shaping g;
        const char *word; /* NULL: accepted */
    } rows[] = {
        {{.bias = bias, .n_bias = HCACHE_MAX_BIAS}, NULL},
        {{.bias = bias, .n_bias = HCACHE_MAX_BIAS + 1}, "at most 1024 biases"},
        {{.n_bias = -1}, "at most 1024 biases"},
        {{.stop_ids = stop, .n_stop_ids = HCACHE_MAX_STOP_IDS}, NULL},
        {{.stop_ids = stop, .n_stop_ids = HCACHE_MAX_STOP_IDS + 1}, "64 stop tokens"},
        {{.n_stop_ids = -1}, "64 stop tokens"},
        {{.bias = &wrong[0], .n_bias = 1},
         "logit_bias of token -1 is 0; tokens are 0 to 511"},
        {{.bias = &wrong[1], .n_bias = 1}, "logit_bias of token 512"},
        {{.bias = &wrong[2], .n_bias = 1}, "biases -100 to 100"},
        {{.bias = &wrong[3], .n_bias = 1}, "biases -100 to 100"},
        {{.bias = &wrong[4], .n_bias = 1}, "biases -100 to 100"},
        {{.stop_ids = &wrong_stop[0], .n_stop_ids = 1}, "stop token -1 is not in 0 to 511"},
        {{.stop_ids = &wrong_stop[1], .n_stop_ids = 1},
         "stop token 512 is not in 0 to 511"},
        {{.frequency_penalty = 2}, NULL},
        {{.frequency_penalty = -2}, NULL},
        {{.frequency_penalty = 2.5f}, "must be -2 to 2"},
        {{.frequency_penalty = -2.5f}, "must be -2 to 2"},
        {{.presence_penalty = 2}, NULL},
        {{.presence_penalty = 2.5f}, "must be -2 to 2"},
        {{.presence_penalty = -2.5f}, "must be -2 to 2"},
        {{.repetition_penalty = 0.01f}, NULL},
        {{.repetition_penalty = 100}, NULL},
        {{.repetition_penalty = 0.009f}, "repetition_penalty 0.01 to 100"},
        {{.repetition_penalty = 100.5f}, "repetition_penalty 0.01 to 100"},
        {{.repetition_penalty = -1}, "repetition_penalty 0.01 to 100"},
        {{.min_tokens = -1}, "min_tokens at least 0"},
        {{.min_tokens = 1}, NULL},
    };
    struct hcache_opts o = options("synth:tiny-mha");
    struct hcache *h = open_or_fail(&o);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hcache_result r;
        struct hcache_err err = {0};
        struct hcache_request q = {
            .prompt = prompt, .n_prompt = 4, .max_tokens = 1, .shaping = &rows[i].g};
        int rc = hcache_generate(h, &q, &r, &err);
        if (rc != (rows[i].word == NULL ? 0 : HCACHE_E_USAGE) ||
            (rc != 0 && strstr(err.msg, rows[i].word) == NULL))
            fail_msg("shaping %zu: %d, %s", i, rc, err.msg);
        hcache_result_free(&r);
    }
    hcache_close(h);
}

TEST(the_model_is_described)
{
    struct hcache_opts o = options("synth:tiny-mha");
    struct hcache_model_info info, other;
    o.store_in_memory = true; /* only saved state has a fingerprint */
    struct hcache *h = open_or_fail(&o);
    hcache_model_info(h, &info);
    assert_string_equal(info.family, "llama");
    assert_string_equal(info.dtype, "f32");
    assert_string_equal(info.format, "synth");
    assert_string_equal(info.held, "f32");
    assert_int_equal(info.vocab_size, 512);
    assert_int_equal(info.max_history, 16 * 512);
    assert_int_equal(info.hidden_bytes, 256);
    assert_int_equal(info.kv_bytes, 2 * 256);
    assert_int_equal(info.max_sequences, 1);
    assert_false(info.has_chat_template || info.has_tools);
    assert_int_equal(strlen(info.fingerprint), 64);
    hcache_close(h);
    o.max_history = 700;
    o.max_sequences = 3;
    o.dtype = "bf16";
    h = open_or_fail(&o);
    hcache_model_info(h, &other);
    assert_int_equal(other.max_history, 700);
    assert_int_equal(other.max_sequences, 3);
    assert_string_equal(other.dtype, "bf16");
    assert_int_equal(other.hidden_bytes, 128);
    assert_string_not_equal(other.fingerprint, info.fingerprint);
    hcache_close(h);
    o = options(DEMO);
    h = open_or_fail(&o);
    hcache_model_info(h, &info);
    assert_string_equal(info.format, "safetensors");
    assert_true(info.has_tokenizer && info.has_chat_template);
    assert_true(info.has_tools && info.declares_tools); /* its template shows none */
    assert_int_equal(info.vocab_size, 3072);
    assert_int_equal(info.n_file_types, 1);
    assert_string_equal(info.file_types[0].name, "bf16");
    assert_true(info.file_types[0].n_tensors > 4 * 7);
    hcache_close(h);
    o = options("tests/model/golden/families/deepseek-v2");
    h = open_or_fail(&o);
    hcache_model_info(h, &info); /* K and V are one record, of 48 numbers of f32 */
    assert_int_equal(info.kv_bytes, 4 * 48);
    hcache_close(h);
}

TEST(text_without_a_tokenizer)
{
    struct hcache_opts o = options("synth:tiny-mha");
    struct hcache *h = open_or_fail(&o);
    struct hcache_model_info info;
    struct hcache_err err = {0};
    int32_t *ids = NULL, id = 5;
    char *text = NULL;
    size_t n_text = 0;
    int n = 7;
    hcache_model_info(h, &info);
    assert_false(info.has_tokenizer);
    assert_int_equal(info.n_layers, 4);
    assert_int_equal(info.max_context, 512);
    assert_int_equal(info.hidden_bytes, 64 * 4);
    assert_int_equal(hcache_encode(h, "x", 1, 0, &ids, &n, &err), HCACHE_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "--token-ids"));
    assert_int_equal(n, 0);
    assert_int_equal(hcache_decode(h, &id, 1, &text, &n_text, &err), HCACHE_E_UNSUPPORTED);
    hcache_guard(h, "<|im_end|>", 10, &text, &n_text);
    assert_int_equal(n_text, 10);
    assert_memory_equal(text, "<|im_end|>", 10);
    hcache_free(text);
    /* without a template an answer is text, whatever it has */
    struct hcache_answer *answer = hcache_answer_open(h, "<think>", 7, NULL);
    struct hcache_part part;
    hcache_answer_push(answer, "<think>x", 8, NULL, 0);
    hcache_answer_end(answer);
    assert_true(hcache_answer_part(answer, 0, &part));
    assert_int_equal(part.kind, HCACHE_PART_TEXT);
    assert_string_equal(part.text, "<think>x");
    assert_false(hcache_answer_part(answer, 1, &part));
    hcache_answer_close(answer);
    assert_int_equal(hcache_least_tokens(h, "x", 1), 0);
    n_text = 7;
    assert_null(hcache_token_bytes(h, 5, &n_text));
    assert_int_equal(n_text, 0);
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    assert_int_equal(hcache_chat_render(h, chat, sizeof chat - 1, &text, &n_text, &err),
                     HCACHE_E_UNSUPPORTED);
    assert_string_equal(err.msg, "synth:tiny-mha has no chat template");
    assert_int_equal(hcache_chat_render(h, "{", 1, &text, &n_text, &err), HCACHE_E_FORMAT);
    int layer = 7, n_layers = 0;
    assert_false(
        hcache_step_progress(h, &layer, &n_layers)); /* all weights are in memory */
    assert_int_equal(layer, 0);
    assert_int_equal(n_layers, 4);
    hcache_close(h);
}

/* A special token that a message spells is guarded on request, and then stays text. */
TEST(guards_keep_text_from_being_special)
{
    static const char chat[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|end|>\"}],\"tools\":null}";
    struct hcache_opts o = options(DEMO);
    struct hcache *h = open_or_fail(&o);
    struct hcache_err err = {0};
    char *plain, *guarded, *text;
    size_t n_plain, n_guarded, n;
    int32_t *ids;
    int n_special[2] = {0};
    assert_int_equal(hcache_chat_render(h, chat, sizeof chat - 1, &plain, &n_plain, &err),
                     0);
    assert_string_equal(plain, "<|begin|><|user|>a<|end|><|end|><|assistant|>");
    assert_int_equal(n_plain, strlen(plain));
    assert_int_equal(
        hcache_chat_render_guarded(h, chat, sizeof chat - 1, &guarded, &n_guarded, &err),
        0);
    assert_int_equal(n_guarded, n_plain + 1);
    assert_int_equal((unsigned char)guarded[18], HCACHE_GUARD);
    for (int guards = 0; guards < 2; guards++) {
        int n_ids;
        assert_int_equal(
            hcache_encode(h, guards ? guarded : plain, guards ? n_guarded : n_plain,
                          HCACHE_PARSE_SPECIAL | (guards ? (unsigned)HCACHE_GUARDED : 0u),
                          &ids, &n_ids, &err),
            0);
        for (int i = 0; i < n_ids; i++)
            n_special[guards] += ids[i] < 5;
        hcache_free(ids);
    }
    assert_int_equal(n_special[0], 5);
    assert_int_equal(n_special[1], 4);
    hcache_guard(h, "x<|end|>y", 9, &text, &n);
    assert_int_equal(n, 10);
    assert_int_equal((unsigned char)text[1], HCACHE_GUARD);
    hcache_free(text);
    /* without HCACHE_PARSE_SPECIAL nothing is special */
    int n_ids, n_text_ids;
    assert_int_equal(
        hcache_encode(h, "<|end|>", 7, HCACHE_PARSE_SPECIAL, &ids, &n_ids, &err), 0);
    assert_int_equal(n_ids, 1);
    assert_int_equal(ids[0], 1);
    hcache_free(ids);
    assert_int_equal(hcache_encode(h, "<|end|>", 7, 0, &ids, &n_text_ids, &err), 0);
    assert_true(n_text_ids > 1);
    hcache_free(ids);
    assert_string_equal(hcache_token_bytes(h, 1, &n), "<|end|>");
    assert_int_equal(n, 7);
    assert_true(hcache_least_tokens(h, plain, n_plain) > 0);
    hcache_free(plain);
    hcache_free(guarded);
    hcache_close(h);
}

/* --- text ------------------------------------------------------------------------------------- */

struct sink {
    char text[65536];
    size_t n, cut[2000];
    int n_calls, n_last, stop_after;
};

static int collect(void *arg, int32_t id, const char *text, size_t n)
{
    struct sink *s = arg;
    assert_int_equal(s->n_last, 0); /* the call with id -1 must be the last */
    assert_true(s->n + n < sizeof s->text && s->n_calls < 2000);
    memcpy(s->text + s->n, text, n);
    s->n += n;
    s->cut[s->n_calls++] = s->n;
    s->n_last += id == -1;
    return s->n_calls == s->stop_after;
}

static void check_cuts(const struct sink *s)
{
    static bool inside[sizeof s->text];
    memset(inside, 0, sizeof inside);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        size_t len = utf8_decode(s->text + i, s->n - i, &cp);
        for (size_t j = 1; j < len; j++)
            inside[i + j] = true;
        i += len > 0 ? len : 1;
    }
    for (int i = 0; i < s->n_calls; i++)
        if (s->cut[i] < s->n && inside[s->cut[i]])
            fail_msg("call %d ends inside a character, at byte %zu", i, s->cut[i]);
}

/* Sampling at a high temperature from a byte-fallback vocabulary gives multi-byte characters, whole
 * and broken. */
TEST(text_comes_in_whole_characters)
{
    struct hcache_opts o = options(DEMO);
    struct hcache *h = open_or_fail(&o);
    static struct sink s;
    int32_t *ids;
    int n_ids;
    assert_int_equal(hcache_encode(h, "Zo\xc3\xab and \xe2\x98\x83", 12, HCACHE_ADD_SPECIAL,
                                   &ids, &n_ids, NULL),
                     0);
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct hcache_result r;
        struct hcache_request q = {.prompt = ids,
                                   .n_prompt = n_ids,
                                   .max_tokens = 300,
                                   .ignore_eos = true,
                                   .temperature = 30,
                                   .seed = seed,
                                   .on_token = collect,
                                   .arg = &s};
        memset(&s, 0, sizeof s);
        assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
        assert_int_equal(r.n_tokens, 300);
        assert_int_equal(s.n_calls - s.n_last, 300);
        assert_int_equal(s.n, r.n_text);
        assert_memory_equal(s.text, r.text, s.n);
        assert_int_equal(r.text[r.n_text], 0);
        check_cuts(&s);
        hcache_result_free(&r);
    }
    hcache_free(ids);
    hcache_close(h);
}

struct prompt_progress {
    int n_calls, last;
};

static void note_progress(void *arg, int n_done)
{
    struct prompt_progress *p = arg;
    assert_true(n_done > p->last);
    p->last = n_done;
    p->n_calls++;
}

/* A prompt of three batches of 512 rows: the reported progress only grows, and ends with the whole
 * prompt. Restored tokens count like computed ones. */
TEST(a_prompt_tells_how_far_it_is)
{
    enum { N = 1300 };
    static int32_t prompt[N];
    struct hcache_opts o = {.model = "synth:tiny-mha",
                            .threads = 1,
                            .max_context = 2048,
                            .store_in_memory = true,
                            .no_reuse = true,
                            .warn = warn};
    struct hcache *h = open_or_fail(&o);
    make_prompt(prompt, N);
    for (int turn = 0; turn < 2; turn++) {
        struct prompt_progress p = {0};
        struct hcache_result r;
        struct hcache_request q = {.prompt = prompt,
                                   .n_prompt = N,
                                   .max_tokens = 0,
                                   .save = "both",
                                   .plan = turn > 0 ? "kv" : NULL,
                                   .on_prompt = note_progress,
                                   .arg = &p};
        assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
        assert_int_equal(p.last, N);
        assert_true(p.n_calls >= (turn == 0 ? 3 : 1));
        assert_true(turn == 0 ? r.cached_tokens == 0 : r.cached_tokens >= N / 64 * 64);
        hcache_result_free(&r);
    }
    hcache_close(h);
}

static bool stop_after_a_step(void *n_asked)
{
    return ++*(int *)n_asked == 2;
}

/* The prompt has three batches. is_cancelled is called between them, so after a cancellation
 * neither the rest of the prompt nor a token is computed. */
TEST(a_prompt_is_cancelled_before_its_end)
{
    enum { N = 1300 };
    static int32_t prompt[N];
    struct hcache_opts o = {
        .model = "synth:tiny-mha", .threads = 1, .max_context = 2048, .warn = warn};
    struct hcache *h = open_or_fail(&o);
    int n_asked = 0;
    struct hcache_result r;
    make_prompt(prompt, N);
    struct hcache_request q = {.prompt = prompt,
                               .n_prompt = N,
                               .max_tokens = 8,
                               .is_cancelled = stop_after_a_step,
                               .arg = &n_asked};
    assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
    assert_string_equal(r.finish, "cancelled");
    assert_int_equal(r.n_tokens, 0);
    assert_int_equal(n_asked, 2); /* not called again after it has returned true */
    hcache_result_free(&r);
    hcache_close(h);
}

/* A request's biases, penalties and stop tokens reach the choice of its tokens. */
TEST(shaping_reaches_the_choice_of_tokens)
{
    struct hcache_opts o = options("synth:tiny-mha");
    struct hcache *h = open_or_fail(&o);
    struct hcache_err err = {0};
    struct hcache_result r;
    int32_t prompt[20];
    make_prompt(prompt, 20);
    const struct hcache_bias bias[] = {{7, 100}, {9, 100}, {11, 99}};
    const int32_t stop[] = {300, 9};
    struct hcache_shaping g = {.bias = bias, .n_bias = 1};
    struct hcache_request q = {.prompt = prompt,
                               .n_prompt = 20,
                               .max_tokens = 6,
                               .ignore_eos = true,
                               .shaping = &g};
    assert_int_equal(hcache_generate(h, &q, &r, &err), 0);
    assert_int_equal(r.n_tokens, 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(r.token_ids[i], 7);
    hcache_result_free(&r);
    /* A token that has occurred is penalised, so two tokens of equal bias take turns. */
    g.n_bias = 2;
    g.presence_penalty = g.frequency_penalty = 2;
    assert_int_equal(hcache_generate(h, &q, &r, &err), 0);
    int n_other = 0;
    for (int i = 0; i < 6; i++) {
        assert_true(r.token_ids[i] == 7 || r.token_ids[i] == 9);
        n_other += r.token_ids[i] == 9;
    }
    assert_int_equal(n_other, 3);
    hcache_result_free(&r);
    /* The answer ends at a stop token, but not before it has its least number of tokens. */
    g = (struct hcache_shaping){
        .bias = bias + 1, .n_bias = 2, .stop_ids = stop, .n_stop_ids = 2};
    assert_int_equal(hcache_generate(h, &q, &r, &err), 0);
    assert_string_equal(r.finish, "stop");
    assert_int_equal(r.n_tokens, 0);
    hcache_result_free(&r);
    g.min_tokens = 4;
    assert_int_equal(hcache_generate(h, &q, &r, &err), 0);
    assert_string_equal(r.finish, "stop");
    assert_int_equal(r.n_tokens, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(r.token_ids[i], 11);
    hcache_result_free(&r);
    hcache_close(h);
}

TEST(cancelling_is_final)
{
    struct hcache_opts o = options(DEMO);
    struct hcache *h = open_or_fail(&o);
    static struct sink s;
    int32_t bos = 0;
    for (int after = 1; after < 40; after += 6) {
        struct hcache_result r;
        struct hcache_request q = {.prompt = &bos,
                                   .n_prompt = 1,
                                   .max_tokens = 50,
                                   .ignore_eos = true,
                                   .temperature = 30,
                                   .seed = 3,
                                   .on_token = collect,
                                   .arg = &s};
        memset(&s, 0, sizeof s);
        s.stop_after = after;
        assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
        assert_string_equal(r.finish, "cancelled");
        assert_int_equal(r.n_tokens, after);
        /* on_token is not called again after the call that cancelled */
        assert_int_equal(s.n_calls, after);
        hcache_result_free(&r);
    }
    hcache_close(h);
}

TEST(encode_and_decode)
{
    struct hcache_opts o = options(DEMO);
    struct hcache *h = open_or_fail(&o);
    struct hcache_err err = {0};
    int32_t *ids = NULL;
    int n;
    char *text;
    size_t n_text;
    static const char said[] = "Once upon a time, \xf0\x9f\x90\xb8!";
    assert_int_equal(hcache_encode(h, said, sizeof said - 1, 0, &ids, &n, &err), 0);
    assert_true(n > 3);
    assert_int_equal(hcache_decode(h, ids, n, &text, &n_text, &err), 0);
    assert_string_equal(text, said);
    hcache_free(text);
    hcache_free(ids);
    assert_int_equal(hcache_encode(h, "", 0, HCACHE_ADD_SPECIAL, &ids, &n, &err), 0);
    assert_int_equal(n, 0); /* this tokenizer adds no special tokens */
    hcache_free(ids);
    assert_true(hcache_encode(h, "ab\xff", 3, 0, &ids, &n, &err) < 0);
    assert_int_equal(n, 0);
    assert_non_null(strstr(err.msg, "2"));
    const int32_t special[] = {1, 40, 0};
    assert_int_equal(hcache_decode(h, special, 3, &text, &n_text, &err), 0);
    assert_string_equal(text, "D"); /* special tokens have no text */
    assert_int_equal(n_text, 1);
    hcache_free(text);
    int32_t bad = 1 << 20;
    assert_true(hcache_decode(h, &bad, 1, &text, &n_text, &err) < 0);
    hcache_close(h);
}

/* Returns a number of tokens with their log-probabilities, as a ticket hands them out. */
TEST(log_probabilities_come_with_their_tokens)
{
    enum { TOP = 3, TOKENS = 12 };
    int32_t prompt[5];
    struct hcache_opts o = options(DEMO);
    struct hcache *h = open_or_fail(&o);
    make_prompt(prompt, 5);
    struct hcache_request q = {.prompt = prompt,
                               .n_prompt = 5,
                               .max_tokens = TOKENS,
                               .ignore_eos = true,
                               .logprobs = true,
                               .n_top = TOP};
    for (int greedy = 0; greedy < 2; greedy++) {
        struct hcache_ticket *t = NULL;
        struct hcache_delta d = {0};
        struct hcache_result r;
        struct hcache_err err = {0};
        struct hcache_logprob lp[TOKENS][1 + TOP];
        int32_t ids[TOKENS];
        size_t n_text = 0;
        int n = 0, n_chosen = 0;
        q.temperature = greedy ? 0 : 30;
        assert_int_equal(hcache_serve_start(h, 0, &err), 0);
        assert_int_equal(hcache_submit(h, &q, &t, &err), 0);
        do {
            hcache_ticket_read(t, &d);
            assert_true(n + d.n_ids <= TOKENS);
            memcpy(ids + n, d.ids, (size_t)d.n_ids * sizeof *ids);
            memcpy(lp[n], d.logprobs, (size_t)d.n_ids * sizeof lp[0]);
            assert_int_equal(d.text[d.n_text], 0);
            n += d.n_ids;
            n_text += d.n_text;
        } while (!d.ended);
        assert_int_equal(n, TOKENS);
        assert_int_equal(hcache_ticket_result(t, &r, &err), 0);
        assert_memory_equal(r.token_ids, ids, sizeof ids);
        assert_int_equal(n_text, r.n_text);
        for (int i = 0; i < TOKENS; i++) {
            assert_int_equal(lp[i][0].id, ids[i]);
            n_chosen += lp[i][1].id == ids[i];
            for (int k = 1; k < TOP; k++)
                assert_true(lp[i][k].logprob >= lp[i][k + 1].logprob);
            assert_true(lp[i][0].logprob <= lp[i][1].logprob && lp[i][1].logprob <= 0);
        }
        assert_true(greedy ? n_chosen == TOKENS : n_chosen < TOKENS);
        hcache_ticket_read(t, &d); /* nothing comes twice */
        assert_true(d.ended && d.n_ids == 0 && d.n_text == 0);
        hcache_result_free(&r);
        hcache_ticket_free(t);
        hcache_serve_stop(h);
    }
    hcache_close(h);
}

/* --- saved state ------------------------------------------------------------------------------ */

static struct hcache_result generate(struct hcache *h, int n_prompt, const char *plan)
{
    int32_t prompt[512];
    struct hcache_err err = {0};
    struct hcache_result r;
    make_prompt(prompt, 512);
    struct hcache_request q = {.prompt = prompt,
                               .n_prompt = n_prompt,
                               .max_tokens = 6,
                               .ignore_eos = true,
                               .digest = true,
                               .plan = plan};
    if (hcache_generate(h, &q, &r, &err) != 0)
        fail_msg("%s", err.msg);
    return r;
}

static void expect_same(struct hcache_result *r, const struct hcache_result *ref,
                        int cached)
{
    assert_int_equal(r->n_tokens, ref->n_tokens);
    assert_memory_equal(r->token_ids, ref->token_ids, (size_t)r->n_tokens * 4);
    assert_true(r->logits_digest == ref->logits_digest && r->logits_digest != 0);
    assert_int_equal(r->cached_tokens, cached);
    hcache_result_free(r);
}

/* State saved by one handle is restored by the next. The profile beside the store is used, and
 * replaced if it is useless. A second process cannot open the store. State of another model is not
 * used, and the miss gives that reason. */
TEST(a_store_outlives_its_process)
{
    char dir[TEMPDIR_BYTES], cmd[TEMPDIR_BYTES + 128];
    tempdir_make(dir, "test");
    const char *dirs[] = {dir};
    struct hcache_opts o = options("synth:tiny-mha");
    struct hcache *h = open_or_fail(&o), *second;
    struct hcache_result ref = generate(h, 300, NULL), r;
    assert_string_equal(ref.miss, "no store");
    assert_int_equal(ref.committed_tokens, 0);
    hcache_close(h);

    o.store = dirs;
    o.n_store = 1;
    h = open_or_fail(&o);
    struct hcache_err err = {0};
    assert_int_equal(hcache_open(&o, &second, &err), HCACHE_E_BUSY);
    assert_non_null(strstr(err.msg, dir));
    /* a forced plan of both kinds, so both kinds are saved */
    r = generate(h, 300, "RHKK");
    int n_all = 300 + r.n_tokens - 1;
    assert_int_equal(r.committed_tokens, n_all);
    assert_string_equal(r.plan.layers, "");
    expect_same(&r, &ref, 0);
    hcache_close(h);

    for (int i = 0; i < 3; i++) {
        h = open_or_fail(&o);
        r = generate(h, 300, "RHKK");
        assert_string_equal(r.plan.layers, "RHKK");
        assert_int_equal(r.plan.recompute + 10 * r.plan.hidden + 100 * r.plan.kv, 211);
        assert_int_equal(r.committed_tokens, n_all);
        assert_true(r.restored_bytes > 0);
        expect_same(&r, &ref, 256);
        hcache_close(h);
        /* Makes the profile invalid. A busy machine keeps no profile. */
        if (i == 0) {
            snprintf(cmd, sizeof cmd,
                     "for f in %s/profile-*.txt; do echo 'n_layers = 250' > $f; done", dir);
            assert_int_equal(system(cmd), 0);
        }
    }
    o.dtype = "bf16";
    h = open_or_fail(&o);
    r = generate(h, 300, NULL);
    assert_int_equal(r.cached_tokens, 0);
    assert_non_null(strstr(r.miss, "another model"));
    hcache_result_free(&r);
    hcache_close(h);
    hcache_result_free(&ref);
    tempdir_remove(dir);
}

/* Asks for the first n tokens of the prompt of generate(), by loading keys and values. */
static struct hcache_result restored(struct hcache *h, int n)
{
    int32_t prompt[512];
    struct hcache_err err = {0};
    struct hcache_result r;
    make_prompt(prompt, 512);
    const struct hcache_request q = {
        .prompt = prompt, .n_prompt = n, .max_tokens = 1, .save = "kv", .plan = "kv"};
    if (hcache_generate(h, &q, &r, &err) != 0)
        fail_msg("%s", err.msg);
    return r;
}

/* State that was just saved has copies in memory; after a restart it comes from the disk. The
 * result tells the parts of the prompt apart. */
TEST(the_tiers_of_restored_tokens_are_told)
{
    static const struct {
        int n, cached;    /* tokens of the prompt, and of its restored part */
        bool reopens;     /* before the request */
        const char *tier; /* NULL: nothing is restored */
        int n_disk,
            n_dram; /* tokens of the parts, in this order; 0: there is no such part */
    } rows[] = {{192, 0, false, NULL, 0, 0},
                {192, 128, false, "dram", 0, 128},
                {192, 128, true, "disk", 128, 0},
                {384, 192, false, "disk", 192, 0},
                {384, 320, false, "dram+disk", 192, 128}};
    char dir[TEMPDIR_BYTES];
    tempdir_make_on_disk(dir, "tiers");
    const char *dirs[] = {dir};
    struct hcache_opts o = options("synth:tiny-mha");
    o.store = dirs;
    o.n_store = 1;
    o.dram_bytes = 64 << 20;
    o.prefetch = "off";
    o.no_reuse = true;
    struct hcache *h = NULL;
    double opened_ms = 0; /* longer than opening took */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (i == 0 || rows[i].reopens) {
            int64_t begin_ns = clock_now_ns();
            hcache_close(h);
            h = open_or_fail(&o);
            opened_ms = (double)(clock_now_ns() - begin_ns) * 1e-6;
        }
        struct hcache_result r = restored(h, rows[i].n);
        assert_int_equal(r.cached_tokens, rows[i].cached);
        if (rows[i].tier == NULL)
            assert_null(r.tier);
        else
            assert_string_equal(r.tier, rows[i].tier);
        int n_parts = (rows[i].n_disk > 0) + (rows[i].n_dram > 0);
        assert_int_equal(r.n_restored_parts, n_parts);
        if (rows[i].n_disk > 0) {
            assert_int_equal(r.restored_part[0].n_tokens, rows[i].n_disk);
            assert_string_equal(r.restored_part[0].source, "disk");
        }
        if (rows[i].n_dram > 0) {
            assert_int_equal(r.restored_part[n_parts - 1].n_tokens, rows[i].n_dram);
            assert_string_equal(r.restored_part[n_parts - 1].source, "dram");
        }
        assert_int_equal(r.measured.span != NULL, rows[i].tier != NULL);
        assert_int_equal(r.measured.n > 0, rows[i].tier != NULL);
        assert_string_equal(r.plan.layers, rows[i].tier != NULL ? "KKKK" : "");
        assert_int_equal(r.dram_tokens, rows[i].n_dram);
        assert_int_equal(r.restored_dram_bytes > 0, rows[i].n_dram > 0);
        assert_int_equal(r.restored_dram_bytes<r.restored_bytes, rows[i].n_disk> 0);
        assert_true(r.timings.load_ms > 0 && r.timings.load_ms <= opened_ms);
        hcache_result_free(&r);
    }
    hcache_close(h);
    tempdir_remove(dir);
}

/* In a conversation each turn restores all earlier turns, except their last token, which was never
 * computed. */
TEST(turns_of_a_conversation)
{
    struct hcache_opts o = options("synth:tiny-mha");
    o.store_in_memory = true;
    struct hcache *h = open_or_fail(&o);
    int32_t said[512];
    int n = 70;
    make_prompt(said, n);
    for (int turn = 0; turn < 5; turn++) {
        struct hcache_result r;
        struct hcache_request q = {.prompt = said,
                                   .n_prompt = n,
                                   .max_tokens = 40,
                                   .ignore_eos = true,
                                   .save = "both",
                                   .plan = "kv"};
        assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
        assert_int_equal(r.cached_tokens, turn == 0 ? 0 : n - 31);
        memcpy(said + n, r.token_ids, (size_t)r.n_tokens * sizeof said[0]);
        n += r.n_tokens;
        assert_int_equal(r.committed_tokens, n - 1);
        for (int i = 0; i < 30; i++)
            said[n++] = 5 + (turn * 31 + i) % 400; /* the user's next message */
        hcache_result_free(&r);
    }
    hcache_close(h);
}

/* Returns the kinds of records that are stored for the prompt of generate(), a letter a layer. */
static const char *stored_layers(struct hcache *h, const char *salt)
{
    static struct hcache_found f;
    int32_t prompt[512];
    make_prompt(prompt, 512);
    const struct hcache_context c = {.ids = prompt, .n = 300, .salt = salt};
    assert_int_equal(hcache_cache_lookup(h, &c, &f, NULL), 0);
    return f.layers;
}

/* A forced plan may need any kind of record later. A request may also name the kinds itself. */
TEST(what_is_saved_follows_from_plan_and_save)
{
    static const struct {
        const char *plan, *save, *layers;
    } rows[] = {{"kv", NULL, "BBBB"},   {"hidden", NULL, "BBBB"}, {"RHKK", NULL, "BBBB"},
                {"kv", "kv", "KKKK"},   {NULL, "both", "BBBB"},   {NULL, "hidden", "HHHH"},
                {NULL, "H-KB", "H-KB"}, {"recompute", "none", ""}};
    int32_t prompt[512];
    make_prompt(prompt, 512);
    struct hcache_opts o = options("synth:tiny-mha");
    o.store_in_memory = true;
    struct hcache *h = open_or_fail(&o);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char salt[8];
        struct hcache_result r;
        struct hcache_err err = {0};
        snprintf(salt, sizeof salt, "%zu", i);
        struct hcache_request q = {.prompt = prompt,
                                   .n_prompt = 300,
                                   .salt = salt,
                                   .plan = rows[i].plan,
                                   .save = rows[i].save};
        if (hcache_generate(h, &q, &r, &err) != 0)
            fail_msg("%s", err.msg);
        hcache_result_free(&r);
        assert_string_equal(stored_layers(h, salt), rows[i].layers);
    }
    /* "auto" and "recompute" save alike */
    char own[300];
    struct hcache_result r;
    struct hcache_request q = {.prompt = prompt, .n_prompt = 300, .salt = "x"};
    assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
    hcache_result_free(&r);
    snprintf(own, sizeof own, "%s", stored_layers(h, "x"));
    static const char *const plans[] = {"auto", "recompute"};
    for (int i = 0; i < 2; i++) {
        q.plan = q.salt = plans[i];
        assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
        hcache_result_free(&r);
        assert_string_equal(stored_layers(h, q.salt), own);
    }
    /* a truncated context needs records of all layers but the first */
    q = (struct hcache_request){.prompt = prompt,
                                .n_prompt = 500,
                                .salt = "t",
                                .truncation = {.ratio = 0.5, .context = 256}};
    assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
    hcache_result_free(&r);
    const struct hcache_context c = {
        .ids = prompt, .n = 250, .salt = "t", .truncation = q.truncation};
    struct hcache_found f;
    assert_int_equal(hcache_cache_lookup(h, &c, &f, NULL), 0);
    assert_int_equal(f.stored_tokens, 192);
    for (int l = 1; l < 4; l++)
        assert_int_not_equal(f.layers[l], '-');
    hcache_close(h);
}

/* State with a time to live is counted, and other state is not. */
TEST(a_time_to_live_reaches_the_store)
{
    struct hcache_opts o = options("synth:tiny-mha");
    struct hcache_cache_stats s;
    int32_t prompt[512];
    uint64_t n_gone = 7;
    make_prompt(prompt, 512);
    o.store_in_memory = true;
    struct hcache *h = open_or_fail(&o);
    for (int ttl = 0; ttl < 2; ttl++) {
        struct hcache_result r;
        struct hcache_request q = {.prompt = prompt,
                                   .n_prompt = 200,
                                   .salt = ttl ? "a" : "b",
                                   .save = "kv",
                                   .cache_ttl_s = ttl * 3600};
        assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
        hcache_result_free(&r);
        hcache_cache_stats(h, NULL, &s);
        assert_int_equal(s.n_expiring, ttl * 4);
    }
    assert_int_equal(hcache_cache_evict_expired(h, &n_gone, NULL), 0);
    assert_int_equal(n_gone, 0);
    hcache_close(h);
}

/* --- tickets ---------------------------------------------------------------------------------- */

/* A ticket may be freed in any state of its request. A request that cannot fit costs nothing and
 * gives an error. */
TEST(tickets_are_given_up_anywhere)
{
    int32_t prompt[300];
    make_prompt(prompt, 300);
    struct hcache_opts o = options("synth:tiny-mha");
    o.store_in_memory = true;
    o.max_sequences = 2;
    for (int round = 0; round < 4; round++) {
        struct hcache *h = open_or_fail(&o);
        struct hcache_ticket *t[6];
        struct hcache_result r;
        struct hcache_err err = {0};
        if (round != 0) /* in round 0 no step runs before the handle is closed */
            assert_int_equal(hcache_serve_start(h, 0, NULL), 0);
        for (int i = 0; i < 6; i++) {
            struct hcache_request q = {.prompt = prompt + i,
                                       .n_prompt = 200 + 10 * i,
                                       .max_tokens = i == 5 ? INT32_MAX : 20 * i,
                                       .logprobs = i == 5,
                                       .n_top = i == 5 ? HCACHE_MAX_TOP : 0,
                                       .ignore_eos = true,
                                       .save = "both"};
            assert_int_equal(hcache_submit(h, &q, &t[i], &err), 0);
        }
        if (round == 1) {
            for (int i = 0; i < 6; i++) {
                hcache_ticket_wait(t[i]);
                assert_int_equal(hcache_ticket_result(t[i], &r, &err),
                                 i < 5 ? 0 : HCACHE_E_LIMIT);
                assert_int_equal(r.n_tokens, i < 5 ? 20 * i : 0);
                hcache_result_free(&r);
            }
        } else if (round == 2) {
            hcache_ticket_wait(t[1]);
        }
        for (int i = 5; i >= 0; i--)
            hcache_ticket_free(t[i]);
        if (round == 3)
            hcache_serve_stop(h);
        hcache_close(h);
    }
}

/* A missed deadline gives a timeout. An invalid deadline or priority is refused. */
TEST(time_is_bounded)
{
    int32_t prompt[300];
    make_prompt(prompt, 300);
    struct hcache_opts o = options("synth:tiny-mha");
    struct hcache *h = open_or_fail(&o);
    struct hcache_result r;
    struct hcache_err err = {0};
    struct hcache_ticket *t[2];
    struct hcache_request q = {
        .prompt = prompt, .n_prompt = 100, .max_tokens = 400, .ignore_eos = true};
    q.priority = HCACHE_MAX_PRIORITY + 1;
    assert_int_equal(hcache_generate(h, &q, &r, &err), HCACHE_E_USAGE);
    assert_non_null(strstr(err.msg, "priority"));
    q.priority = HCACHE_MAX_PRIORITY;
    q.timeout_ms = -1;
    assert_int_equal(hcache_generate(h, &q, &r, &err), HCACHE_E_USAGE);
    assert_non_null(strstr(err.msg, "timeout_ms"));
    assert_int_equal(hcache_serve_start(h, 0, NULL), 0);
    q.timeout_ms = 0;
    assert_int_equal(hcache_submit(h, &q, &t[0], &err), 0);
    /* the request waits behind the first one, or is cut off while it runs */
    q.timeout_ms = 1;
    assert_int_equal(hcache_submit(h, &q, &t[1], &err), 0);
    hcache_ticket_wait(t[1]);
    int rc = hcache_ticket_result(t[1], &r, &err);
    if (rc == 0)
        assert_string_equal(r.finish, "timeout");
    else
        assert_int_equal(rc, -ETIMEDOUT);
    hcache_result_free(&r);
    hcache_ticket_wait(t[0]);
    assert_int_equal(hcache_ticket_result(t[0], &r, &err), 0);
    assert_int_equal(r.n_tokens, 400);
    hcache_result_free(&r);
    hcache_ticket_free(t[0]);
    hcache_ticket_free(t[1]);
    struct hcache_stats st;
    hcache_stats(h, &st);
    assert_int_equal(st.n_timed_out, 1);
    assert_int_equal(st.n_ended, 2);
    assert_int_equal(st.n_failed, 0);
    hcache_close(h);
}

/* Uses a handle without an engine thread, then with one, then without one again. */
TEST(threads_come_and_go)
{
    int32_t prompt[100];
    make_prompt(prompt, 100);
    struct hcache_opts o = options("synth:tiny-mha");
    struct hcache *h = open_or_fail(&o);
    struct hcache_request q = {
        .prompt = prompt, .n_prompt = 100, .max_tokens = 4, .ignore_eos = true};
    for (int i = 0; i < 4; i++) {
        struct hcache_result r;
        struct hcache_ticket *t;
        struct hcache_err err = {0};
        if (i % 2 == 1)
            assert_int_equal(hcache_serve_start(h, 0, &err), 0);
        assert_int_equal(hcache_generate(h, &q, &r, &err), 0);
        assert_int_equal(r.n_tokens, 4);
        hcache_result_free(&r);
        if (i % 2 == 1) {
            assert_int_equal(hcache_submit(h, &q, &t, &err), 0);
            hcache_ticket_free(t);
            hcache_serve_stop(h);
            assert_int_equal(hcache_submit(h, &q, &t, &err), HCACHE_E_LIMIT);
            assert_non_null(strstr(err.msg, "stopped"));
        }
    }
    hcache_close(h);
}

/* State that is still on the device is reused, and the result reports it. With no_reuse it is not
 * reused. */
TEST(the_device_is_used_again)
{
    int32_t prompt[300];
    make_prompt(prompt, 300);
    for (int reuse = 0; reuse < 2; reuse++) {
        struct hcache_opts o = options("synth:tiny-mha");
        struct hcache_stats st;
        o.no_reuse = !reuse;
        o.kv_tokens = 384;
        struct hcache *h = open_or_fail(&o);
        struct hcache_model_info info;
        hcache_model_info(h, &info);
        assert_int_equal(info.max_context, 384); /* a request may use the whole KV cache */
        struct hcache_request q = {.prompt = prompt, .n_prompt = 300, .max_tokens = 2};
        for (int i = 0; i < 2; i++) {
            struct hcache_result r;
            assert_int_equal(hcache_generate(h, &q, &r, NULL), 0);
            assert_int_equal(r.device_tokens, i == 1 && reuse ? 299 : 0);
            assert_int_equal(r.cached_tokens, r.device_tokens);
            hcache_result_free(&r);
        }
        hcache_stats(h, &st);
        assert_int_equal(st.device_tokens, reuse ? 299 : 0);
        assert_int_equal(st.computed_tokens, 600 - st.device_tokens);
        assert_int_equal(st.kv_blocks, 6);
        assert_int_equal(st.kv_blocks_free, 6);
        assert_true(reuse ? st.kv_blocks_kept >= 5 : st.kv_blocks_kept == 0);
        hcache_close(h);
    }
}

int main(void)
{
    /* new memory gets a pattern, so reading unwritten memory is noticed */
    mallopt(M_PERTURB, 0x5a);
    peer_threads_use();
    return unit_run(NULL, NULL);
}
