/* test_stack.c - the parts of a stack get the right values from its options. */
#include <errno.h>
#include "tests/unit.h"

#include <stdio.h>
#include <string.h>

#include "base/cpus.h"
#include "base/mem.h"
#include "base/pool.h"
#include "tests/base/tempdir.h"
#include "tests/engine/enginetest.h"
#include "tests/model/packed_file.h"

enum { CONTEXT = 1024, N_SEQS = 64 };

/* bytes of the largest allocation that succeeds */
static size_t most_bytes = SIZE_MAX;

bool mem_test_denies(size_t n, enum mem_ask ask)
{
    return ask == MEM_MAY_FAIL && n > most_bytes;
}

struct said {
    int n;
    char first[700], last[700];
};

static void listen(void *arg, const char *text)
{
    struct said *s = arg;
    if (s->n++ == 0)
        snprintf(s->first, sizeof s->first, "%s", text);
    snprintf(s->last, sizeof s->last, "%s", text);
}

static struct stack_opts options(const char *model, const char *budget, struct said *said)
{
    return (struct stack_opts){.user.model = model,
                               .user.weights_memory = budget,
                               .user.max_sequences = N_SEQS,
                               .user.warn = listen,
                               .user.warn_arg = said,
                               .user.no_reuse = true};
}

/* Opens with a budget at most 5 % above the least that is accepted. Returns its bytes. */
static uint64_t open_with_least(struct stack *k, const char *path, struct said *said)
{
    char budget[40];
    uint64_t least = 0;
    struct err err = {0};
    int rc = ERR_LIMIT;
    for (uint64_t bytes = 32 << 20; rc == ERR_LIMIT; bytes += bytes / 20) {
        snprintf(budget, sizeof budget, "%llu", (unsigned long long)bytes);
        struct stack_opts o = options(path, budget, said);
        rc = et_try_open(k, &o, &err);
        least = bytes;
        if (rc != 0)
            stack_close(k);
    }
    if (rc != 0)
        fail_msg("%s", err.msg);
    return least;
}

/* Without a budget the KV cache holds a context for each sequence. A budget decides how much it
 * holds. The user's own number overrides both. */
TEST(a_budget_decides_the_kv_cache_unless_the_user_does)
{
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    struct stack k;
    struct said said = {0};
    tempdir_make_on_disk(dir, "stack");
    packed_file_make(dir, "synth:tiny-mha", "cpu", 1, NULL, path);
    /* i = 0: no budget; 1: a budget whose rest goes to layers; 2: a budget that holds everything */
    for (int i = 0; i < 3; i++) {
        static const char *const budgets[] = {NULL, "100%", "8G"};
        struct stack_opts o = options(path, budgets[i], &said);
        et_open(&k, &o);
        assert_int_equal(k.kv_tokens, N_SEQS * CONTEXT);
        assert_int_equal(said.n, 0);
        stack_close(&k);
    }
    uint64_t least = open_with_least(&k, path, &said);
    assert_in_range(k.kv_tokens, CONTEXT, N_SEQS * CONTEXT / 2);
    stack_close(&k);
    struct stack_opts asked = options(path, "8G", &said);
    asked.user.kv_tokens = 3 * CONTEXT;
    et_open(&k, &asked);
    assert_int_equal(k.kv_tokens, 3 * CONTEXT);
    stack_close(&k);
    /* a store in memory for truncated contexts is part of the budget */
    char text[40];
    struct err err = {0};
    snprintf(text, sizeof text, "%llu", (unsigned long long)least);
    struct stack_opts truncates = options(path, text, &said);
    truncates.user.truncates = true;
    assert_int_equal(et_try_open(&k, &truncates, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "is less than the minimum"));
    assert_true(k.window_store_bytes > least / 10);
    stack_close(&k);
    tempdir_remove(dir);
}

/* For streamed layers the log gives the bytes that each pass reads; for resident layers it says
 * nothing. */
TEST(streamed_layers_are_told)
{
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    struct stack k;
    struct said said = {0};
    struct weights_stream_stats stats;
    tempdir_make_on_disk(dir, "stack");
    packed_file_make(dir, "synth:tiny-mha", "cpu", 1, NULL, path);
    struct stack_opts o = options(path, "50%", &said);
    et_open(&k, &o);
    int n = k.model->cfg.n_layers;
    weights_stats(&k.model->w, &stats);
    assert_int_equal(stats.n_streamed, n / 2);
    char want[60];
    snprintf(want, sizeof want, "weights: %d of %d layers stay in memory", n / 2, n);
    assert_memory_equal(said.first, want, strlen(want));
    assert_int_equal(said.n, 2);
    double bytes = (double)stats.layer_bytes * stats.n_streamed;
    char step[200]; /* the measured speed changes with each pass */
    snprintf(step, sizeof step, "each pass reads %.2f GB, and the disk gave ", bytes / 1e9);
    assert_memory_equal(said.last, step, strlen(step));
    stack_close(&k);
    tempdir_remove(dir);
}

/* The table of memory lists only parts that take memory. */
TEST(only_parts_that_reserve_memory_are_told)
{
    struct stack k;
    char text[400];
    et_open(&k,
            &(struct stack_opts){.user.model = "synth:tiny-mha", .user.no_reuse = true});
    stack_describe(&k, text, sizeof text);
    assert_non_null(strstr(text, "memory reserved, MiB: weights "));
    assert_non_null(strstr(text, ", KV pool "));
    assert_null(strstr(text, " 0.0"));
    static const char *const absent[] = {"saving", "truncated contexts", "copies in DRAM",
                                         "blocks on the host"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        assert_null(strstr(text, absent[i]));
    stack_close(&k);

    et_open(&k, &(struct stack_opts){.user.model = "synth:tiny-mha",
                                     .user.store_in_memory = true,
                                     .user.no_reuse = true});
    stack_describe(&k, text, sizeof text);
    assert_non_null(strstr(text, ", saving "));
    assert_non_null(strstr(text, ", restoring "));
    stack_close(&k);
}

/* Automatic copies in DRAM take the memory that is available. Requested copies that do not fit are
 * refused. */
TEST(auto_copies_do_not_prevent_the_start)
{
    struct stack k;
    struct said said = {0};
    struct store_dram dram;
    struct err err = {0};
    struct io *disk = et_disk(1, 0);
    struct stack_opts o = {.io = disk,
                           .user.store = et_dirs,
                           .user.n_store = 2,
                           .user.dram_bytes = HCACHE_DRAM_AUTO,
                           .user.warn = listen,
                           .user.warn_arg = &said};
    most_bytes = 128 << 20;
    int rc = et_try_open(&k, &o, &err);
    most_bytes = SIZE_MAX;
    if (rc != 0)
        fail_msg("%s", err.msg);
    store_dram_stats(k.store, &dram);
    assert_true(dram.cap_bytes <= 128 << 20);
    /* the machine had more memory available for copies */
    if (k.o.user.dram_bytes > 260 << 20)
        assert_non_null(strstr(said.first, "--dram auto"));
    stack_close(&k);

    o.user.dram_bytes = 256 << 20;
    most_bytes = 128 << 20;
    rc = et_try_open(&k, &o, &err);
    most_bytes = SIZE_MAX;
    assert_int_equal(rc, -ENOMEM);
    assert_non_null(strstr(err.msg, "copies in DRAM"));
    stack_close(&k);
    io_close(disk);
}

/* --- options ---------------------------------------------------------------------------------- */

TEST(a_step_has_the_rows_of_its_mini_batches)
{
    static const struct {
        int batch_rows, mini_batches, asked, want_batch, want_step;
    } rows[] = {{600, 0, 0, 600, 600},  {600, 1, 0, 600, 600}, {600, 3, 0, 600, 1800},
                {512, 2, 0, 512, 1024}, {600, 3, 50, 600, 50}, {0, 2, 0, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct stack k;
        et_open(&k, &(struct stack_opts){.user.batch_rows = rows[i].batch_rows,
                                         .user.mini_batches = rows[i].mini_batches,
                                         .step_rows = rows[i].asked});
        int batch = rows[i].batch_rows > 0 ? rows[i].want_batch : k.dev->batch_rows;
        assert_int_equal(k.batch_rows, batch);
        assert_int_equal(k.step_rows,
                         rows[i].batch_rows > 0 ? rows[i].want_step : 2 * batch);
        stack_close(&k);
    }
}

TEST(options_have_their_defaults)
{
    struct stack k;
    struct err err = {0};
    assert_int_equal(
        stack_open(&(struct stack_opts){.user.model = "synth:tiny-mha", .no_profile = true},
                   &k, &err),
        0);
    assert_int_equal(stack_staging_bytes(&k), 64 << 20);
    assert_int_equal(pool_threads(k.pool), cpus_usable());
    assert_string_equal(k.dev->name, "cpu");
    assert_int_equal(k.dev->n_ranks, 1);
    assert_int_equal(k.dev->n_stages, 1);
    assert_null(k.store);
    assert_null(k.saver);
    assert_int_equal(k.policy, PLACEMENT_DEFAULT);
    assert_int_equal(k.method, MIXED_OFF);
    assert_int_equal(k.model->max_ctx, k.model->cfg.max_ctx);
    stack_close(&k);
    /* the platform of a stack without a profile still has the model's shape */
    assert_int_equal(stack_open(&(struct stack_opts){.user.model = "synth:tiny-mha",
                                                     .user.store_in_memory = true,
                                                     .no_profile = true},
                                &k, &err),
                     0);
    assert_int_equal(k.platform.n_layers, k.model->cfg.n_layers);
    assert_int_equal(k.platform.n_tiers, 0);
    stack_close(&k);
    const struct device_opts d = stack_device_opts(
        &(struct hcache_opts){.isa = "a",
                              .checksums = "b",
                              .cuda_math = "c",
                              .cuda_graphs = "d",
                              .cuda_early = "e"});
    const char *const got[] = {d.isa, d.checksums, d.cuda_math, d.cuda_graphs,
                               d.cuda_early};
    for (int i = 0; i < 5; i++)
        assert_int_equal(got[i][0], 'a' + i);
    et_open(&k, &(struct stack_opts){.user.staging_bytes = 3 << 20, .user.threads = 2});
    assert_int_equal(stack_staging_bytes(&k), 3 << 20);
    assert_int_equal(pool_threads(k.pool), 2);
    stack_close(&k);
}

TEST(policies_are_read_by_name)
{
    static const char *const names[] = {"lru", "fifo", "lfu", "attentionstore", "ours"};
    for (int i = 0; i < 5; i++) {
        struct stack k;
        et_open(&k, &(struct stack_opts){.user.policy = names[i]});
        assert_string_equal(placement_names[k.policy], names[i]);
        stack_close(&k);
    }
}

static void refused(const struct stack_opts *o, int want, const char *part)
{
    struct stack k;
    struct err err = {0};
    int rc = et_try_open(&k, o, &err);
    if (rc != want || strstr(err.msg, part) == NULL)
        fail_msg("%d instead of %d: %s", rc, want, err.msg);
    stack_close(&k);
}

static int no_entry(void *arg, const struct model *m, struct err *err)
{
    assert_int_equal(m->cfg.n_layers, 4);
    return err_set(err, ERR_BUSY, "%s", (const char *)arg);
}

TEST(what_cannot_be_opened_is_refused)
{
    refused(&(struct stack_opts){.user.gpu_direct = "on"}, ERR_USAGE,
            "gpu-direct on: there is no store to read from");
    refused(&(struct stack_opts){.user.gpu_direct = "maybe"}, ERR_USAGE, "maybe");
    refused(
        &(struct stack_opts){.user.weights_memory = "50%"}, ERR_USAGE,
        "--weights-memory needs a packed model: hcache model pack synth:tiny-mha --out");
    refused(&(struct stack_opts){.check = no_entry, .check_arg = "the check's reason"},
            ERR_BUSY, "the check's reason");
    refused(&(struct stack_opts){.user.device = "abacus"}, ERR_USAGE, "abacus");
    refused(&(struct stack_opts){.user.remote = "redis://127.0.0.1:1"}, ERR_USAGE,
            "--remote needs --store");
    refused(&(struct stack_opts){.user.remote = "redis://127.0.0.1:1",
                                 .user.store_in_memory = true,
                                 .user.remote_write = "never"},
            ERR_USAGE, "never");
}

TEST(each_group_of_devices_is_described)
{
    struct stack k;
    char text[400];
    et_open(&k, &(struct stack_opts){.user.tensor_parallel = 2});
    stack_describe(&k, text, sizeof text);
    assert_memory_equal(text, "memory reserved, MiB: on each of 2 ranks, weights ", 50);
    stack_close(&k);
    et_open(&k,
            &(struct stack_opts){.user.pipeline_parallel = 2, .user.tensor_parallel = 2});
    stack_describe(&k, text, sizeof text);
    assert_memory_equal(
        text, "memory reserved, MiB: over 2 stages, on each of 2 ranks, weights ", 65);
    stack_close(&k);
    et_open(&k, &(struct stack_opts){0});
    stack_describe(&k, text, sizeof text);
    assert_memory_equal(text, "memory reserved, MiB: weights ", 30);
    assert_non_null(strstr(text, "; 1 threads, device cpu ("));
    assert_non_null(strstr(text, "), weights f32, state f32"));
    double mib = 0;
    assert_int_equal(sscanf(strstr(text, "weights ") + 8, "%lf", &mib), 1);
    double want = (double)k.model->w.bytes / (1 << 20);
    assert_true(mib > want - 0.06 && mib < want + 0.06);
    stack_close(&k);
}

/* --- stores ----------------------------------------------------------------------------------- */

/* Truncated contexts get a store in memory for two windows of the model, unless there is a store
 * already. */
TEST(truncated_contexts_have_a_store)
{
    struct stack k;
    struct store_stats st;
    char text[400];
    et_open(&k, &(struct stack_opts){.user.truncates = true});
    const struct model *m = k.model;
    uint64_t layer = 64 * (uint64_t)(model_hidden_bytes(m) + model_kv_bytes(m, 0));
    uint64_t chunk = (uint64_t)m->cfg.n_layers * layer + STORE_ALIGN;
    assert_int_equal(layer % STORE_ALIGN, 0);
    assert_int_equal(k.window_store_bytes, 2 * (uint64_t)(m->cfg.max_ctx / 64) * chunk);
    store_stats(k.store, &st);
    assert_int_equal(st.cap_bytes, k.window_store_bytes);
    assert_string_equal(st.tier, "dram");
    stack_describe(&k, text, sizeof text);
    assert_non_null(strstr(text, ", truncated contexts "));
    stack_close(&k);
    et_open(&k, &(struct stack_opts){.user.truncates = true,
                                     .user.store_in_memory = true,
                                     .user.store_cap_bytes = 1 << 26});
    assert_int_equal(k.window_store_bytes, 0);
    store_stats(k.store, &st);
    assert_int_equal(st.cap_bytes, 1 << 26);
    stack_close(&k);
    struct io *disk = et_disk(1, 0);
    et_open(&k, &(struct stack_opts){.io = disk,
                                     .user.truncates = true,
                                     .user.store = et_dirs,
                                     .user.n_store = 2});
    assert_int_equal(k.window_store_bytes, 0);
    store_stats(k.store, &st);
    assert_string_equal(st.tier, "disk");
    stack_close(&k);
    io_close(disk);
}

TEST(copies_without_a_disk_are_told)
{
    static const uint64_t asked[] = {0, HCACHE_DRAM_AUTO, 1 << 20};
    for (int i = 0; i < 3; i++)
        for (int in_memory = 0; in_memory < 2; in_memory++) {
            struct stack k;
            struct said said = {0};
            struct store_dram dram = {0};
            et_open(&k, &(struct stack_opts){.user.dram_bytes = asked[i],
                                             .user.store_in_memory = in_memory,
                                             .user.warn = listen,
                                             .user.warn_arg = &said});
            assert_int_equal(said.n, i == 2);
            if (i == 2)
                assert_string_equal(
                    said.first, "--dram is not used: copies in memory are made of state "
                                "in a --store on a disk");
            if (in_memory)
                store_dram_stats(k.store, &dram);
            assert_int_equal(dram.cap_bytes, 0);
            assert_int_equal(k.o.user.dram_bytes, 0);
            stack_close(&k);
        }
}

/* A store that cannot be written is an error, or is done without, as the user asks. */
TEST(a_store_may_be_done_without)
{
    struct stack k;
    struct said said = {0};
    struct io *disk = et_disk(1, 0);
    const struct io_sim_fault fault = {.kind = IO_SIM_FAIL, .code = -ENOSPC};
    struct stack_opts o = {.io = disk,
                           .user.store = et_dirs,
                           .user.n_store = 2,
                           .user.warn = listen,
                           .user.warn_arg = &said};
    assert_int_equal(io_sim_fault_add(disk, &fault), 0);
    refused(&o, -ENOSPC, "store /store/a: ");
    assert_int_equal(said.n, 0);
    o.user.store_optional = true;
    et_open(&k, &o);
    assert_int_equal(k.store_err.code, -ENOSPC);
    assert_int_equal(said.n, 1);
    assert_memory_equal(said.first, "nothing is saved until a restart", 32);
    assert_non_null(strstr(said.first, k.store_err.msg));
    assert_int_equal(strstr(said.first, ", and nothing is restored") != NULL,
                     k.store == NULL);
    stack_close(&k);
    io_sim_fault_clear(disk);
    io_close(disk);
    /* wrong arguments stay errors */
    static const char *const dirs[] = {"/proc/hcache-cannot-be-here"};
    o = (struct stack_opts){
        .user.store = dirs, .user.n_store = 1, .user.store_optional = true};
    refused(&o, -ENOENT, "/proc/hcache-cannot-be-here");
}
