/* test_profile.c - measuring costs, and the cached profile.  A profile that belongs to another
 * machine or model, or has impossible values, is refused with a reason and measured again. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "restore/correction.h"
#include "store/chain.h"
#include "restore/profile.h"
#include "sim/profile_overlap.h"
#include "sim/profile_scratch.h"
#include "tests/base/tempdir.h"
#include "tests/engine/enginetest.h"

/* --- the cached file -------------------------------------------------------------------------- */

static char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];

static int make_dir(void **state)
{
    tempdir_make(dir, "profile");
    snprintf(path, sizeof path, "%s/profile.txt", dir);
    return 0;
}

static int remove_dir(void **state)
{
    unlink(path);
    return rmdir(dir); /* fails if the directory is not empty */
}

static struct platform measured(const struct platform *begun)
{
    struct platform p = *begun;
    et_platform(&p, 1e-3, 2e-4, 1e-5, 3e9);
    p.head_s = 1e-4;
    return p;
}

/* Sets up the platform of the stack's model and machine. */
static void begin(struct stack *k, struct platform *p)
{
    struct sha256 f = {{1, 2, 3}};
    profile_begin(p, k->model, &f);
}

TEST(comes_back)
{
    struct stack k;
    struct platform expected, p, q;
    struct err err = {0};
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    begin(&k, &expected);
    assert_int_equal(expected.n_layers, 4);
    assert_true(expected.h_bytes == 64 * 4 && expected.kv_bytes == 2 * 64 * 4);
    assert_int_equal(profile_load(&q, path, &expected, &err), -ENOENT);
    p = measured(&expected);
    assert_int_equal(profile_store(&p, path, &err), 0);
    assert_int_equal(profile_load(&q, path, &expected, &err), 0);
    assert_true(q.c_tok.b_s == p.c_tok.b_s && q.c_kv.b_s == p.c_kv.b_s);
    assert_true(q.tier[0].bytes_per_s == p.tier[0].bytes_per_s && q.n_tiers == 1);
    /* A directory that does not exist gives an error, and nothing is left behind. */
    assert_int_equal(profile_store(&p, "/proc/hcache-no-such-folder/x", &err), -ENOENT);
    /* If the new file cannot replace the old one, it is removed, too. */
    char taken[TEMPDIR_BYTES], temp[TEMPDIR_BYTES + 64];
    tempdir_make(taken, "profile");
    assert_int_equal(profile_store(&p, taken, &err), -EISDIR);
    snprintf(temp, sizeof temp, "%s.%d.tmp", taken, (int)getpid());
    assert_int_not_equal(access(temp, F_OK), 0);
    tempdir_remove(taken);
    stack_close(&k);
}

/* Stores a changed profile and expects that loading refuses it with this word in the reason. */
static void refuse(const struct platform *p, const struct platform *expected,
                   const char *word)
{
    struct platform q;
    struct err err = {0};
    assert_int_equal(profile_store(p, path, &err), 0);
    int rc = profile_load(&q, path, expected, &err);
    if (rc == 0 || strstr(err.msg, word) == NULL || strstr(err.msg, path) == NULL)
        fail_msg("expected '%s', got %d: %s", word, rc, err.msg);
}

TEST(others_are_refused)
{
    struct stack k;
    struct platform expected, p;
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    begin(&k, &expected);
    p = measured(&expected);
    snprintf(p.machine, sizeof p.machine, "another machine");
    refuse(&p, &expected, "machine");
    p = measured(&expected);
    p.model[0] = p.model[0] == 'a' ? 'b' : 'a';
    refuse(&p, &expected, "model");
    p = measured(&expected);
    p.n_layers = 200; /* a wrong number of layers would overrun the planner's arrays */
    refuse(&p, &expected, "200 layers");
    p = measured(&expected);
    p.kv_bytes *= 2;
    refuse(&p, &expected, "bytes");
    p = measured(&expected);
    p.h_bytes *= 2;
    refuse(&p, &expected,
           "hidden states of 512 bytes and K and V of 512 bytes, the model's "
           "have 256 and 512");
    p = measured(&expected);
    p.n_ranks = 2;
    refuse(&p, &expected, "1 stages of 2 ranks each, this run has 1 of 1");
    p = measured(&expected);
    p.n_stages = 2;
    refuse(&p, &expected, "2 stages of 1 ranks each, this run has 1 of 1");
    stack_close(&k);
}

TEST(nonsense_is_refused)
{
    struct stack k;
    struct platform expected, p;
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    begin(&k, &expected);
    static const double bad[] = {-1, 0, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        p = measured(&expected);
        p.tier[0].bytes_per_s = bad[i];
        refuse(&p, &expected, "profile");
        p = measured(&expected);
        p.c_tok.b_s = bad[i] == 0 ? -1e-9 : bad[i];
        refuse(&p, &expected, "profile");
    }
    p = measured(&expected);
    p.n_tiers = -1;
    refuse(&p, &expected, "profile");
    stack_close(&k);
}

/* A profile that is cut at any byte, or has random bytes, is refused. Only if nothing but the end
 * of its line is missing does it load unchanged. */
TEST(torn_files_are_refused)
{
    struct stack k;
    struct platform expected, p, q;
    char text[PLATFORM_FORMAT_MAX];
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    begin(&k, &expected);
    p = measured(&expected);
    int n = platform_format(&p, text, sizeof text), n_good = 0;
    for (int cut = 0; cut < n; cut += 1 + cut / 16) {
        FILE *f = fopen(path, "w");
        assert_int_equal(fwrite(text, 1, (size_t)cut, f), cut);
        fclose(f);
        struct err err = {0};
        n_good += profile_load(&q, path, &expected, &err) == 0;
    }
    assert_int_equal(n_good, 0);
    stack_close(&k);
}

/* A profile names the machine and the model, and the costs of both are unknown. */
TEST(a_profile_begins_with_its_names)
{
    struct stack k;
    struct platform p, blank;
    struct sha256 f = {{0xab, 0xcd}};
    char today[2][16];
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    platform_init(&blank);
    for (int i = 0; i < 2; i++) { /* before and behind, since midnight may come between */
        time_t now = (time_t)clock_wall_s();
        struct tm tm;
        strftime(today[i], sizeof today[i], "%Y-%m-%d", gmtime_r(&now, &tm));
        if (i == 0)
            profile_begin(&p, k.model, &f);
    }
    assert_true(strcmp(p.date, today[0]) == 0 || strcmp(p.date, today[1]) == 0);
    assert_string_equal(p.commit, "-");
    assert_int_equal(strlen(p.model), 64);
    assert_ptr_equal(strstr(p.model, "abcd0000"), p.model);
    assert_non_null(strstr(p.machine, ", cpu, 1 threads"));
    struct utsname u;
    assert_int_equal(uname(&u), 0);
    assert_int_equal(strncmp(p.machine, u.nodename, strcspn(p.machine, ",")), 0);
    assert_int_equal(p.n_ranks, 1);
    assert_int_equal(p.n_stages, 1);
    assert_int_equal(p.n_tiers, 0);
    assert_true(p.c_tok.b_s == 0 && p.cpu_share == 0 && p.split_s == blank.split_s);
    /* Stages are processes, which run beside one another. */
    struct device grouped = *k.dev;
    struct model m = *k.model;
    m.dev = &grouped;
    grouped.n_ranks = 2;
    grouped.n_stages = 3;
    profile_begin(&p, &m, &f);
    assert_int_equal(p.n_ranks, 2);
    assert_int_equal(p.n_stages, 3);
    stack_close(&k);
}

TEST(a_shape_is_the_models)
{
    struct model_config c = {.n_layers = 1,
                             .n_embd = 2,
                             .n_heads = 3,
                             .n_kv_heads = 4,
                             .d_head = 5,
                             .n_ffn = 6,
                             .vocab_size = 7,
                             .mlp_gated = true};
    struct platform_shape s = profile_shape("name", &c, 1.5);
    assert_string_equal(s.name, "name");
    assert_int_equal(s.n_layers, 1);
    assert_int_equal(s.d_model, 2);
    assert_int_equal(s.n_heads, 3);
    assert_int_equal(s.n_kv_heads, 4);
    assert_int_equal(s.d_head, 5);
    assert_int_equal(s.d_ffn, 6);
    assert_int_equal(s.n_vocab, 7);
    assert_true(s.gated_ffn && s.elem_bytes == 1.5);
}

/* A profile measured with less than three quarters of the processors is a disturbed one. */
TEST(a_disturbed_profile_is_known_by_its_share)
{
    static const struct {
        double share;
        bool is_disturbed;
    } cases[] = {{0, false}, {0.01, true}, {0.74, true}, {0.75, false}, {1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct platform p = {.cpu_share = cases[i].share};
        assert_int_equal(profile_is_disturbed(&p), cases[i].is_disturbed);
    }
}

/* Each model has a profile of its own, which only its owner may read. */
TEST(a_profile_has_its_place)
{
    struct sha256 f = {{0x12, 0x34, 0, 0, 0, 0, 0, 0x56, 0x78}};
    struct stack k;
    struct platform p;
    struct stat st;
    char *at = profile_path("/a/b", &f);
    assert_string_equal(at, "/a/b/profile-1234000000000056.txt");
    free(at);
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    begin(&k, &p);
    p = measured(&p);
    assert_int_equal(profile_store(&p, path, NULL), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    stack_close(&k);
}

/* --- measuring -------------------------------------------------------------------------------- */

TEST(compute_costs_are_sane)
{
    static const int ctx[] = {8, 64, 1024, 2048};
    for (int i = 0; i < 4; i++) {
        struct stack k;
        struct platform p;
        struct model_work *w;
        struct stream *s;
        struct err err = {0};
        et_open(&k,
                &(struct stack_opts){.user.max_context = ctx[i], .user.no_reuse = true});
        assert_int_equal(stream_create(k.dev, STREAM_COMPUTE, &s, &err), 0);
        assert_int_equal(model_work_create(k.model, 512, &w, &err), 0);
        begin(&k, &p);
        assert_int_equal(
            profile_compute(&p, k.model, w, s, i % 2 ? PROFILE_FULL : PROFILE_QUICK, &err),
            0);
        assert_true(p.c_tok.b_s > 0 && p.c_tok.c_s >= 0 && p.c_h.b_s > 0 && p.c_kv.b_s > 0);
        assert_true(p.head_s > 0 && p.embed_s > 0);
        /* With one tier of any speed the profile is complete and may be cached. */
        p.n_tiers = 1;
        p.tier[0] = (struct platform_tier){.name = "store", .bytes_per_s = 1e9};
        if (platform_validate(&p, &err) != 0)
            fail_msg("context of %d: %s", ctx[i], err.msg);
        model_work_destroy(w);
        stream_destroy(s);
        stack_close(&k);
    }
}

/* Makes the first n_good products succeed, and all later ones fail. */
static struct {
    const struct ops *real;
    int n_good, n_called;
} failing;

static int matmul_fails(struct stream *s, struct mat c, struct mat a,
                        const struct weight *w, const float *bias)
{
    if (failing.n_called++ >= failing.n_good)
        return -EIO;
    return failing.real->matmul(s, c, a, w, bias);
}

/* A product that fails ends the measurement with its error, both for the first sample of a layer
 * and for a much later sample. */
TEST(a_failed_sample_ends_the_measurement)
{
    static const int n_good[] = {0, 1, 5, 20};
    struct stack k;
    struct model_work *w;
    struct stream *s;
    struct err err = {0};
    et_open(&k, &(struct stack_opts){.user.max_context = 64, .user.no_reuse = true});
    assert_int_equal(stream_create(k.dev, STREAM_COMPUTE, &s, &err), 0);
    assert_int_equal(model_work_create(k.model, 512, &w, &err), 0);
    struct ops ops = *k.dev->ops;
    failing.real = k.dev->ops;
    ops.matmul = matmul_fails;
    k.dev->ops = &ops;
    for (int i = 0; i < 4; i++) {
        struct platform p;
        begin(&k, &p);
        failing.n_good = n_good[i];
        failing.n_called = 0;
        assert_int_equal(profile_compute(&p, k.model, w, s, PROFILE_QUICK, &err), -EIO);
        assert_non_null(strstr(err.msg, "profile"));
        /* no product is computed after the failing one */
        assert_int_equal(failing.n_called, n_good[i] + 1);
    }
    k.dev->ops = failing.real;
    model_work_destroy(w);
    stream_destroy(s);
    stack_close(&k);
}

/* The store's speed is measured with any records that exist: without those of layer 0, in a model
 * of a single layer, or with records that cannot be read. */
TEST(io_is_measured_on_what_exists)
{
    static const char *const saves[] = {"both", "kv", "hidden", "-KKK", "---H", "-H-K"};
    int32_t prompt[201];
    et_prompt(prompt, 201, 1);
    for (int i = 0; i < 6; i++) {
        struct stack k;
        struct et_run r;
        struct err err = {0};
        struct io *io = et_disk((uint64_t)i, 0);
        et_open(&k, &(struct stack_opts){.io = io,
                                         .user.store = et_dirs,
                                         .user.n_store = 2,
                                         .user.no_reuse = true});
        struct et_ask a = {.prompt = prompt, .n_prompt = 201, .save = saves[i]};
        assert_int_equal(et_run(&k, &a, &r), 0);
        assert_int_equal(r.committed, 201);

        struct chain c;
        struct store_hit hits[3];
        struct platform p;
        chain_init(&c, &k.fingerprint, NULL);
        chain_extend(&c, prompt, 201);
        int n = store_lookup(k.store, NULL, c.keys, 3, hits, NULL, 0);
        assert_int_equal(n, 3);
        begin(&k, &p);
        if (profile_io(&p, k.model, k.store, hits, n, &err) != 0)
            fail_msg("saved as %s: %s", saves[i], err.msg);
        assert_int_equal(p.n_tiers, 1);
        assert_true(p.tier[0].bytes_per_s > 0 && p.tier[0].latency_s >= 0);
        struct io_sim_fault f = {
            .kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .path = "seg-", .count = 2};
        assert_int_equal(io_sim_fault_add(io, &f), 0);
        /* two reads fail: the others suffice, or the measurement is refused */
        (void)profile_io(&p, k.model, k.store, hits, n, &err);
        f.count = 0;
        assert_int_equal(io_sim_fault_add(io, &f), 0);
        assert_int_equal(profile_io(&p, k.model, k.store, hits, n, &err), -EIO);
        io_sim_fault_clear(io);
        store_release(k.store, hits, n);
        chain_deinit(&c);
        stack_close(&k);
        io_close(io);
    }
}

/* An empty store is measured with temporary records. None of them is left. */
TEST(an_empty_device_is_measured)
{
    for (int i = 0; i < 3; i++) {
        struct stack k;
        struct platform p;
        struct model_work *w;
        struct stream *s;
        struct profile_scratch *scratch;
        struct err err = {0};
        struct io *io = i > 0 ? et_disk((uint64_t)i, 0) : NULL;
        et_open(&k,
                &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
        assert_int_equal(stream_create(k.dev, STREAM_COMPUTE, &s, &err), 0);
        assert_int_equal(model_work_create(k.model, 512, &w, &err), 0);
        if (profile_scratch_open(k.model, io, et_dirs, i, &scratch, &err) != 0)
            fail_msg("%s", err.msg);
        struct profile_source from = profile_scratch_source(scratch);
        begin(&k, &p);
        if (profile_tier(&p.tier[0], k.model, &from, PROFILE_FULL, &err) != 0)
            fail_msg("%s", err.msg);
        assert_true(p.tier[0].bytes_per_s > 0 && isfinite(p.tier[0].bytes_per_s));
        assert_true(p.tier[0].latency_s >= 0 && p.tier[0].request_s >= 0);
        if (profile_overlap(&p, k.model, w, s, &from, &err) != 0)
            fail_msg("%s", err.msg);
        assert_true(p.io_overlap >= 1 && p.comp_overlap >= 1);
        p.n_tiers = 1;
        p.c_tok.b_s = p.c_h.b_s = 1e-6;
        if (platform_validate(&p, &err) != 0)
            fail_msg("%s", err.msg);
        profile_scratch_close(scratch);
        for (int d = 0; d < i; d++) {
            struct io_names names;
            assert_int_equal(io_list(io, et_dirs[d], &names, &err), 0);
            assert_int_equal(names.n, 0);
            io_names_free(&names);
        }
        model_work_destroy(w);
        stream_destroy(s);
        stack_close(&k);
        io_close(io);
    }
}

/* The simulated disk spends half of a read's time in the submission and half in the wait. A read
 * takes 10 ms. A quick device takes 949 samples; here there is time for fewer, and on a slow
 * machine for fewer still. */
TEST(a_slow_device_takes_few_samples)
{
    struct stack k;
    struct platform p;
    struct profile_scratch *scratch;
    struct err err = {0};
    struct io *io = et_disk(1, 0);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    if (profile_scratch_open(k.model, io, et_dirs, 1, &scratch, &err) != 0)
        fail_msg("%s", err.msg);
    struct profile_source from = profile_scratch_source(scratch);
    struct io_sim_fault slow = {
        .kind = IO_SIM_SLOW, .on = IO_SIM_ON_READ, .path = "seg-", .slow_ns = 10000000};
    assert_int_equal(io_sim_fault_add(io, &slow), 0);
    begin(&k, &p);
    if (profile_tier(&p.tier[0], k.model, &from, PROFILE_FULL, &err) != 0)
        fail_msg("%s", err.msg);
    uint64_t n = io_sim_fault_count(io, IO_SIM_SLOW, 0);
    if (n > 500)
        fail_msg("%llu reads", (unsigned long long)n);
    /* the time to read one record of hidden states */
    double record_s = (double)k.model->cfg.n_embd * 4 * 64 / p.tier[0].bytes_per_s +
                      p.tier[0].request_s;
    if (!(record_s > 0.004)) /* 10 ms without the part that the fit takes for latency */
        fail_msg("%.6f s a record, %.6f s latency", record_s, p.tier[0].latency_s);
    io_sim_fault_clear(io);
    profile_scratch_close(scratch);
    stack_close(&k);
    io_close(io);
}

/* A full device gives an error with the device's place. Temporary data is removed. */
TEST(a_full_device_cannot_be_measured)
{
    struct stack k;
    struct profile_scratch *scratch;
    struct err err = {0};
    struct io *io = et_disk(1, 1 << 20);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    assert_int_not_equal(profile_scratch_open(k.model, io, et_dirs, 1, &scratch, &err), 0);
    assert_non_null(strstr(err.msg, "/store/a"));
    assert_false(io_exists(io, "/store/a/profile-scratch"));
    stack_close(&k);
    io_close(io);
}

/* A restore without a profile measures the store first and then restores. */
TEST(a_restore_measures_first)
{
    int32_t prompt[201];
    struct stack k;
    struct et_run r;
    et_prompt(prompt, 201, 1);
    struct et_ask a = {.prompt = prompt, .n_prompt = 201, .save = "-KKK", .plan = "RKKK"};
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    k.platform.n_tiers = 0;
    assert_int_equal(et_run(&k, &a, &r), 0);
    /* the store was empty, so it was not measured */
    assert_int_equal(k.platform.n_tiers, 0);
    assert_int_equal(et_run(&k, &a, &r), 0);
    assert_int_equal(k.platform.n_tiers, 1);
    assert_int_equal(r.n_cached, 200);
    stack_close(&k);
}

/* The profile claims that the store and GEMM are 1000 times too fast; restores correct it. */
TEST(a_restore_corrects_the_profile)
{
    int32_t prompt[1001];
    struct stack k;
    struct et_run r;
    struct io *io = io_pread_open();
    char store[TEMPDIR_BYTES];
    const char *const dirs[] = {store};
    tempdir_make(store, "learn");
    io_throttle(io, 2000000, 0);
    et_prompt(prompt, 1001, 1);
    et_open(&k,
            &(struct stack_opts){
                .io = io, .user.store = dirs, .user.n_store = 1, .user.no_reuse = true});
    struct et_ask a = {.prompt = prompt, .n_prompt = 1001, .save = "kv", .plan = "kv"};
    assert_int_equal(et_run(&k, &a, &r), 0);
    k.platform.tier[0] = (struct platform_tier){.name = "test", .bytes_per_s = 8e6};
    for (int i = 0; i < 4; i++)
        assert_int_equal(et_run(&k, &a, &r), 0);
    const struct platform_correction *c = &k.platform.tier[0].correction;
    /* Four restores have corrected the speed by at least a factor of 2^0.4. The factor is larger if
     * other programs used the machine. */
    if (!(c->n_observed == 4 && c->log2 > 0.4 && c->log2 <= CORRECTION_LOG2_MAX))
        fail_msg("%d observed, corrected by 2^%.2f", c->n_observed, c->log2);
    stack_close(&k);
    io_close(io);
    tempdir_remove(store);
}

/* Opens a stack over the store in `dirs`, whose profile is loaded or measured. */
static void open_profiled(struct stack *k, const char *const dirs[], const char *model)
{
    struct err err = {0};
    const struct stack_opts o = {.user.model = model,
                                 .user.dtype = "f32",
                                 .user.max_context = 512,
                                 .user.store = dirs,
                                 .user.n_store = 1};
    if (stack_open(&o, k, &err) != 0)
        fail_msg("%s", err.msg);
}

/* A start checks the profile that an earlier one has left, and no other. This one is wrong by far
 * more than any noise. */
static void check_profile_of_another_process(const char *model)
{
    static int32_t prompt[200];
    char store[TEMPDIR_BYTES];
    const char *const dirs[] = {store};
    struct stack k;
    struct platform p, expected;
    struct et_run r;
    tempdir_make(store, "check");
    et_prompt(prompt, 200, 1);
    open_profiled(&k, dirs, model);
    assert_true(k.platform.gemm_correction.log2 == 0);
    struct et_ask a = {.prompt = prompt, .n_prompt = 200, .save = "kv"};
    assert_int_equal(et_run(&k, &a, &r), 0);
    struct sha256 f = k.fingerprint;
    profile_begin(&expected, k.model, &f);
    stack_close(&k);
    char *at = profile_path(store, &f);
    for (int fast = 0; fast < 2; fast++) {
        assert_int_equal(profile_load(&p, at, &expected, NULL), 0);
        double x = fast ? 1e-9 : 1e3;
        p.c_h = (struct cost_curve){.b_s = x};
        p.n_tiers = 1;
        p.tier[0] = (struct platform_tier){.name = "store", .bytes_per_s = 1e3 / x};
        p.gemm_correction = (struct platform_correction){0};
        assert_int_equal(profile_store(&p, at, NULL), 0);
        open_profiled(&k, dirs, model);
        double want = fast ? 1 : -1;
        assert_true(k.platform.gemm_correction.log2 == want);
        assert_true(k.platform.tier[0].correction.log2 == want);
        assert_true(k.platform.tier[0].correction.spread_log2 == 0.5);
        stack_close(&k);
    }
    free(at);
    tempdir_remove(store);
}

TEST(a_profile_of_another_process_is_checked)
{
    check_profile_of_another_process("synth:tiny-mha");
    check_profile_of_another_process("synth:tiny-hybrid"); /* by replays */
}

int main(void)
{
    return unit_run(make_dir, remove_dir);
}
