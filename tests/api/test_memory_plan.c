/* test_memory_plan.c - a machine that cannot hold the weights reports it before loading them. */
#include "tests/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "base/process.h"
#include "engine/step.h"
#include "engine/zigzag.h"
#include "api/memory_plan.h"
#include "save/fingerprint.h"
#include "restore/profile.h"
#include "tests/engine/enginetest.h"

/* Plans the memory for weights of this many bytes in each rank, over all stages. */
static int reserve(const struct stack *k, uint64_t weights, struct err *err)
{
    struct model m = *k->model;
    struct model_need need = {.n_parts = 1};
    struct memory_ask a = {
        .model = &m, .need = &need, .max_seqs = 1, .max_rows = 64, .kv_tokens = 64};
    m.w.bytes = weights;
    return memory_plan_reserve(&a, err);
}

TEST(weights_beyond_the_machine_are_refused)
{
    struct sysinfo s;
    struct stack k;
    struct err err = {0};
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    assert_int_equal(sysinfo(&s), 0);
    uint64_t all = ((uint64_t)s.totalram + s.totalswap) * s.mem_unit;
    uint64_t left = process_memory_left();
    left += (uint64_t)s.freeswap * s.mem_unit;
    assert_true(left < all - all / 100);
    assert_int_equal(reserve(&k, left / 2, &err), 0);
    /* it fits the machine, but not beside the other programs */
    assert_int_equal(reserve(&k, all - 4096, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "of memory and swap are free: end other programs"));
    assert_int_equal(reserve(&k, all + 4096, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "GB of memory and swap: choose a smaller model"));
    stack_close(&k);
}

/* Copies in DRAM are filled later. If the machine cannot hold them beside everything else, they are
 * refused at the start. */
TEST(copies_beyond_memory_are_refused_with_the_sums)
{
    struct sysinfo s;
    struct stack k;
    struct err err = {0};
    struct model_need need = {.n_parts = 1};
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    assert_int_equal(sysinfo(&s), 0);
    struct model m = *k.model;
    struct memory_ask a = {.model = &m,
                           .need = &need,
                           .max_seqs = 1,
                           .max_rows = 64,
                           .kv_tokens = 64,
                           .has_store = true,
                           .staging_bytes = 1 << 20,
                           .save_bytes = 2 << 20};
    m.w.bytes = 3 << 20;
    uint64_t kv = 64 * model_kv_bytes(&m, 0) * (uint64_t)m.cfg.n_layers;
    uint64_t left = (uint64_t)s.totalram * s.mem_unit - kv - (6 << 20);
    a.dram_bytes = left;
    assert_int_equal(memory_plan_reserve(&a, &err), 0);
    a.dram_bytes = left + 1;
    assert_int_equal(memory_plan_reserve(&a, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "--dram"));
    assert_non_null(strstr(err.msg, "KV cache of 64 tokens"));
    assert_non_null(strstr(err.msg, "saving and restoring"));
    a.dram_bytes = UINT64_MAX; /* sums of bytes must not wrap */
    assert_int_equal(memory_plan_reserve(&a, &err), -ENOMEM);
    stack_close(&k);
}

/* Copies in DRAM pay only if a token's KV is larger than its hidden states; otherwise the KV cache
 * uses the memory just as well. Automatic copies take at most an eighth of the machine's memory,
 * and leave at least as much memory free as they take. */
TEST(auto_copies_fit_beside_the_rest)
{
    struct sysinfo s;
    struct stack k;
    struct model_need need = {.n_parts = 1};
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    assert_int_equal(sysinfo(&s), 0);
    uint64_t all = (uint64_t)s.totalram * s.mem_unit;
    struct model m = *k.model;
    struct memory_ask a = {.model = &m,
                           .need = &need,
                           .max_seqs = 1,
                           .max_rows = 64,
                           .kv_tokens = 64,
                           .has_store = true};
    assert_true(model_kv_bytes(&m, 0) > model_hidden_bytes(&m));
    uint64_t bytes = memory_plan_dram_bytes(&a);
    assert_true(bytes <= all / 8 && bytes % (1 << 20) == 0);
    assert_true(bytes == 0 || bytes >= 64 << 20);
    uint64_t left = process_memory_left();
    m.w.bytes = left / 16 * 15; /* half of the rest is much less than half of all */
    assert_true(memory_plan_dram_bytes(&a) < left / 16);
    m.w.bytes = all; /* the weights leave no memory for copies */
    assert_int_equal(memory_plan_dram_bytes(&a), 0);
    m.w.bytes = k.model->w.bytes;
    m.cfg.n_kv_heads = m.cfg.n_heads / 2;
    assert_true(model_kv_bytes(&m, 0) <= model_hidden_bytes(&m));
    assert_int_equal(memory_plan_dram_bytes(&a), 0);
    stack_close(&k);
}

/* --- a budget for a packed model -------------------------------------------------------------- */

#define MB ((uint64_t)1000000)

/* Sizes of a model of 16 layers of 10 MB that always keeps 20 MB, with the shape of
 * synth:tiny-mha. */
static const struct weights_sizes sizes = {
    .kept = 20 * MB, .unit = 10 * MB, .n_units = 16, .n_slots = 2, .units = "layers"};

static struct stack budget_stack;
static uint64_t context_bytes;
static struct memory_ask
    also; /* what the store needs beside the rest; all 0: there is none */
static size_t also_save_bytes;

static int share(const char *budget, int max_seqs, int64_t kv_tokens,
                 struct memory_share *out, struct err *err)
{
    struct memory_ask a = {.model = budget_stack.model,
                           .max_seqs = max_seqs,
                           .max_rows = 64,
                           .kv_tokens = kv_tokens,
                           .has_store = also.has_store,
                           .staging_bytes = also.staging_bytes,
                           .store_bytes = also.store_bytes,
                           .dram_bytes = also.dram_bytes};
    return memory_plan_share(&a, &sizes, budget, also_save_bytes, out, err);
}

/* Returns the least accepted budget in bytes, from the message of a refusal. */
static uint64_t least_budget(int max_seqs)
{
    struct memory_share s;
    struct err err = {0};
    uint64_t low = 0, high = 1000 * MB;
    char text[40];
    while (low + 1 < high) {
        uint64_t middle = (low + high) / 2;
        snprintf(text, sizeof text, "%llu", (unsigned long long)middle);
        if (share(text, max_seqs, 0, &s, &err) == 0)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static int shared_with(uint64_t budget, int max_seqs, int64_t kv_tokens,
                       struct memory_share *s)
{
    struct err err = {0};
    char text[40];
    snprintf(text, sizeof text, "%llu", (unsigned long long)budget);
    return share(text, max_seqs, kv_tokens, s, &err);
}

static void open_budget_stack(void)
{
    et_open(&budget_stack,
            &(struct stack_opts){.user.store_in_memory = true, .user.no_reuse = true});
    const struct model *m = budget_stack.model;
    assert_int_equal(m->max_ctx, 1024);
    context_bytes = 16 * (uint64_t)m->cfg.n_layers *
                    kv_block_bytes(m->cfg.n_kv_heads, m->cfg.d_head, m->dtype);
}

/* The least budget holds the weights that are always kept, two layers and one context. A budget
 * that is a byte smaller is refused, and the message contains the table of parts. */
TEST(the_least_budget_is_two_layers_and_a_context)
{
    struct memory_share s;
    struct err err = {0};
    char text[40];
    open_budget_stack();
    uint64_t least = least_budget(8);
    assert_true(least > 40 * MB + context_bytes && least < 140 * MB + context_bytes);
    assert_int_equal(shared_with(least, 8, 0, &s), 0);
    assert_int_equal(s.n_resident, 0);
    assert_int_equal(s.kv_tokens, 1024);
    snprintf(text, sizeof text, "%llu", (unsigned long long)least - 1);
    assert_int_equal(share(text, 8, 0, &s, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "is less than the minimum"));
    assert_non_null(strstr(err.msg, "2 layers 0.02"));
    assert_non_null(strstr(err.msg, "KV of 1024 tokens"));
    /* A requested KV cache is part of the least budget. */
    assert_int_equal(shared_with(least, 8, 2048, &s), ERR_LIMIT);
    assert_int_equal(shared_with(least + context_bytes, 8, 2048, &s), 0);
    assert_int_equal(s.kv_tokens, 2048);
    /* All layers stay as soon as they fit. They need no slots to pass through then. */
    uint64_t all = least + context_bytes + 14 * sizes.unit;
    assert_int_equal(shared_with(all - 1, 8, 2048, &s), 0);
    assert_int_equal(s.n_resident, 13);
    assert_int_equal(shared_with(all, 8, 2048, &s), 0);
    assert_int_equal(s.n_resident, 16);
    stack_close(&budget_stack);
}

/* Memory above the least budget goes to KV first: up to one context per sequence, and at most half
 * of that memory. The rest goes to layers. The sum never exceeds the budget. */
TEST(keys_and_values_come_before_layers)
{
    struct memory_share s;
    open_budget_stack();
    uint64_t least = least_budget(4), base = least - context_bytes;
    int resident = 0;
    for (uint64_t more = 0; more < 200 * MB; more += MB / 2) {
        assert_int_equal(shared_with(least + more, 4, 0, &s), 0);
        uint64_t kv = context_bytes * (uint64_t)s.kv_tokens / 1024;
        /* whole blocks of 64 tokens in half of the memory that has no other use */
        int64_t fits = (int64_t)((context_bytes + more) / 2 / (context_bytes / 16)) * 64;
        assert_int_equal(s.kv_tokens, fits < 1024 ? 1024 : fits > 4096 ? 4096 : fits);
        int ring = s.n_resident < 16 ? 2 : 0;
        assert_true(base - 20 * MB + kv + (uint64_t)(s.n_resident + ring) * 10 * MB <=
                    least + more);
        /* One more layer would not have fitted. */
        assert_true(s.n_resident == 16 ||
                    base + kv + (uint64_t)(s.n_resident + 1) * 10 * MB > least + more);
        assert_true(s.n_resident >= resident);
        assert_true(s.kv_tokens <= 4 * 1024);
        /* half of the additional memory suffices for all four contexts */
        if (more >= 8 * context_bytes)
            assert_int_equal(s.kv_tokens, 4 * 1024);
        assert_int_equal(s.table[0] == 0, s.n_resident == 16);
        resident = s.n_resident;
    }
    assert_int_equal(resident, 16);
    stack_close(&budget_stack);
}

/* The KV cache holds a context for each sequence, within a quarter of the memory, but at least one
 * context. */
TEST(the_kv_cache_has_a_quarter_of_the_memory)
{
    open_budget_stack();
    struct model m = *budget_stack.model;
    struct memory_ask a = {.model = &m, .max_seqs = 3, .max_rows = 64};
    size_t unused, total;
    device_memory(m.dev, &unused, &total);
    int64_t token_bytes = (int64_t)model_kv_bytes(&m, 0) * m.cfg.n_layers;
    int64_t fits = (int64_t)(total / 4) / token_bytes / 64 * 64;
    assert_true(fits > 100 * 1024 && fits < 1 << 30);
    assert_int_equal(memory_plan_kv_tokens(&a), 3 * 1024);
    m.max_ctx = 1000; /* whole blocks */
    assert_int_equal(memory_plan_kv_tokens(&a), 3 * 1024);
    a.max_seqs = (int)(fits / 1024);
    assert_int_equal(memory_plan_kv_tokens(&a), fits / 1024 * 1024);
    a.max_seqs = (int)(fits / 1024) + 1;
    assert_int_equal(memory_plan_kv_tokens(&a), fits);
    m.max_ctx = 1 << 30;
    a.max_seqs = 2;
    assert_int_equal(memory_plan_kv_tokens(&a), 1 << 30);
    stack_close(&budget_stack);
}

/* A store in memory counts beside the weights. If the weights alone would fit, the message says
 * so. */
TEST(a_store_in_memory_counts_beside_the_weights)
{
    struct sysinfo s;
    struct err err = {0};
    struct model_need need = {.n_parts = 1};
    open_budget_stack();
    struct model m = *budget_stack.model;
    struct memory_ask a = {
        .model = &m, .need = &need, .max_seqs = 1, .max_rows = 64, .kv_tokens = 64};
    assert_int_equal(sysinfo(&s), 0);
    uint64_t all = ((uint64_t)s.totalram + s.totalswap) * s.mem_unit;
    m.w.bytes = process_memory_left() / 4;
    a.store_bytes = m.w.bytes;
    assert_int_equal(memory_plan_reserve(&a, &err), 0);
    a.store_bytes = all - m.w.bytes + 1;
    assert_int_equal(memory_plan_reserve(&a, &err), -ENOMEM);
    assert_memory_equal(err.msg, "truncated contexts need a store in memory of", 44);
    m.w.bytes = all + 1;
    assert_int_equal(memory_plan_reserve(&a, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "choose a smaller model, hold its matrices in 8 bits"));
    m.w.dtype = DTYPE_Q8;
    assert_int_equal(memory_plan_reserve(&a, &err), -ENOMEM);
    assert_null(strstr(err.msg, "in 8 bits"));
    assert_non_null(strstr(err.msg, "or pack it and read layers as they are needed"));
    m.w.dtype = DTYPE_Q4;
    assert_int_equal(memory_plan_reserve(&a, &err), -ENOMEM);
    assert_null(strstr(err.msg, "in 8 bits"));
    stack_close(&budget_stack);
}

/* Each part of a store's memory is part of the least budget, and counts only with a store. */
TEST(the_stores_memory_is_part_of_the_budget)
{
    open_budget_stack();
    uint64_t without = least_budget(1);
    also.has_store = true;
    uint64_t with = least_budget(1);
    assert_true(with > without);
    for (int has = 0; has < 2; has++) {
        also.has_store = has;
        uint64_t least = has ? with : without;
        also.store_bytes = 3 * MB;
        assert_int_equal(least_budget(1), least + (has ? 3 * MB : 0));
        also.store_bytes = 0;
        also.dram_bytes = 5 * MB;
        assert_int_equal(least_budget(1), least + (has ? 5 * MB : 0));
        also.dram_bytes = 0;
        also_save_bytes = 7 * MB;
        assert_int_equal(least_budget(1), least + (has ? 7 * MB : 0));
        also_save_bytes = 0;
        also.staging_bytes = 9 * MB;
        assert_int_equal(least_budget(1), least + (has ? 9 * MB : 0));
        also.staging_bytes = 0;
    }
    also.has_store = false;
    stack_close(&budget_stack);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The least budget is the sum of its parts: weights that are kept, two layers, one context,
 * activations, sampling, the rotation tables, 64 small parts of a page each, and the process. A
 * store adds the new tokens of restores and the copies of a measurement, or the probes at the
 * start, whichever is more. */
TEST(the_least_budget_is_a_sum)
{
    enum { PAGE = 4096, ROWS = 64, SEQS = 5 };
    open_budget_stack();
    const struct model *m = budget_stack.model;
    const struct zigzag_opts z = {.model = m, .piece_rows = ROWS};
    uint64_t work = model_work_bytes(m, ROWS) + zigzag_bytes(&z) + m->dev->stream_bytes +
                    next_token_bytes(m, SEQS) + 64 * PAGE;
    uint64_t least = 40 * MB + context_bytes + work + model_rope_bytes(m) + PAGE +
                     (64 << 20);
    assert_int_equal(least_budget(SEQS), least);
    also.has_store = true;
    uint64_t restore = 2 * (uint64_t)ROWS * model_hidden_bytes(m) + PROFILE_COPY_BYTES;
    uint64_t probes = larger(fingerprint_device_bytes(m), profile_device_bytes(m, ROWS));
    assert_int_equal(least_budget(SEQS), least + larger(restore, probes));
    also.has_store = false;
    stack_close(&budget_stack);
}

/* A device with memory of its own refuses what does not fit, with the parts. */
TEST(a_device_of_its_own_has_its_own_memory)
{
    struct err err = {0};
    open_budget_stack();
    struct device dev = *budget_stack.model->dev;
    struct model m = *budget_stack.model;
    struct model_need need = {.n_parts = 1, .bytes = {(size_t)1 << 50}};
    struct memory_ask a = {
        .model = &m, .need = &need, .max_seqs = 3, .max_rows = 64, .kv_tokens = 128};
    dev.unified = false;
    m.dev = &dev;
    assert_int_equal(memory_plan_reserve(&a, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "GB are needed on device cpu, "));
    assert_non_null(strstr(err.msg, "weights 1125899.91, KV cache of 128 tokens 0.00"));
    /* nothing is left for the KV cache, which still holds one context */
    assert_int_equal(memory_plan_kv_tokens(&a), 1024);
    need.bytes[0] = 0;
    assert_int_equal(memory_plan_kv_tokens(&a), 3 * 1024);
    stack_close(&budget_stack);
}

TEST(percentages_and_texts)
{
    struct memory_share s;
    struct err err = {0};
    open_budget_stack();
    assert_int_equal(share("0%", 1, 0, &s, &err), 0);
    assert_int_equal(s.n_resident, 0);
    assert_int_equal(share("3%", 1, 0, &s, &err), 0);
    assert_int_equal(s.n_resident, 0);
    assert_int_equal(share("4%", 1, 0, &s, &err), 0);
    assert_int_equal(s.n_resident, 1);
    assert_int_equal(share("50%", 1, 0, &s, &err), 0);
    assert_int_equal(s.n_resident, 8);
    assert_string_equal(
        s.table, "weights: 8 of 16 layers stay in memory, 0.08 GB are read for each pass");
    assert_int_equal(s.kv_tokens, 0); /* a percentage decides nothing about KV */
    assert_int_equal(share("100%", 1, 0, &s, &err), 0);
    assert_int_equal(s.n_resident, 16);
    assert_string_equal(s.table, "");
    assert_int_equal(share("auto", 1, 0, &s, &err), 0); /* `auto` here has 180 MB */
    assert_int_equal(s.n_resident, 16);
    static const char *const wrong[] = {"", "101%", "-1%", "many", "5%x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(share(wrong[i], 1, 0, &s, &err), ERR_USAGE);
    stack_close(&budget_stack);
}
