/* test_stack.c - the parts of a stack get the right values from its options. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
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
    char first[700];
};

static void listen(void *arg, const char *text)
{
    struct said *s = arg;
    if (s->n++ == 0)
        snprintf(s->first, sizeof s->first, "%s", text);
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

/* Opens with a budget at most 5 % above the least that is accepted. */
static void open_with_least(struct stack *k, const char *path, struct said *said)
{
    char budget[40];
    struct err err = {0};
    int rc = ERR_LIMIT;
    for (uint64_t bytes = 32 << 20; rc == ERR_LIMIT; bytes += bytes / 20) {
        snprintf(budget, sizeof budget, "%llu", (unsigned long long)bytes);
        struct stack_opts o = options(path, budget, said);
        rc = et_try_open(k, &o, &err);
        if (rc != 0)
            stack_close(k);
    }
    if (rc != 0)
        fail_msg("%s", err.msg);
}

/* Without a budget the KV cache holds a context for each sequence. A budget decides how much it
 * holds. The user's own number overrides both. */
static void a_budget_decides_the_kv_cache_unless_the_user_does(void **state)
{
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    struct stack k;
    struct said said = {0};
    (void)state;
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
    open_with_least(&k, path, &said);
    assert_in_range(k.kv_tokens, CONTEXT, N_SEQS * CONTEXT / 2);
    stack_close(&k);
    struct stack_opts asked = options(path, "8G", &said);
    asked.user.kv_tokens = 3 * CONTEXT;
    et_open(&k, &asked);
    assert_int_equal(k.kv_tokens, 3 * CONTEXT);
    stack_close(&k);
    tempdir_remove(dir);
}

/* For streamed layers the log gives the bytes that each pass reads; for resident layers it says
 * nothing. */
static void streamed_layers_are_told(void **state)
{
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    struct stack k;
    struct said said = {0};
    struct weights_stream_stats stats;
    (void)state;
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
    stack_close(&k);
    tempdir_remove(dir);
}

/* The table of memory lists only parts that take memory. */
static void only_parts_that_reserve_memory_are_told(void **state)
{
    struct stack k;
    char text[400];
    (void)state;
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
static void auto_copies_do_not_prevent_the_start(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_decides_the_kv_cache_unless_the_user_does),
        cmocka_unit_test(streamed_layers_are_told),
        cmocka_unit_test(only_parts_that_reserve_memory_are_told),
        cmocka_unit_test(auto_copies_do_not_prevent_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
