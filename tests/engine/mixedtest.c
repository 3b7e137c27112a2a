/* mixedtest.c - see mixedtest.h. */
#include "mixedtest.h"

#include <stdio.h>
#include "tests/unit.h"
#include "base/rng.h"

enum { MAX_CTX = 256, LONGEST = 129 };

/* Lengths of the prompts. The longest context fits into 5 blocks, MX_SEQS contexts into 15. */
static const int lengths[MX_SEQS] = {70, 1, 64, 33, LONGEST};

const int *mx_random_order(void *arg, const struct kv_table *t)
{
    struct mx_order *o = arg;
    struct rng r = {.s = o->rng};
    (void)t;
    for (int i = 0; i < PLACES_CLASSES; i++)
        o->order[i] = i;
    for (int i = PLACES_CLASSES - 1; i > 0; i--) {
        int k = (int)rng_below(&r, (uint64_t)i + 1), c = o->order[i];
        o->order[i] = o->order[k];
        o->order[k] = c;
    }
    o->rng = r.s;
    return o->order;
}

static struct stack_opts opts_of(const struct mx_case *c)
{
    return (struct stack_opts){.user.model = c->model,
                               .user.device = c->device,
                               .user.dtype = "bf16",
                               .user.max_sequences = MX_SEQS,
                               .user.max_context = MAX_CTX,
                               .step_rows = 64};
}

static void run_all(const struct mx_case *c, const struct stack_opts *o,
                    struct et_run out[MX_SEQS], struct mixed_stats *stats)
{
    struct err err = {0};
    struct stack k;
    struct seq *s[MX_SEQS];
    et_open(&k, o);
    for (int i = 0; i < MX_SEQS; i++) {
        int32_t prompt[LONGEST];
        et_small_prompt(prompt, lengths[i], 90 + (uint64_t)i);
        struct et_ask a = {.prompt = prompt,
                           .n_prompt = lengths[i],
                           .max_tokens = c->n_generate,
                           .temperature = i % 2 == 0 ? 0.0f : 0.8f,
                           .seed = (uint64_t)i};
        s[i] = et_add(&k, &a);
    }
    if (engine_run(k.engine, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < MX_SEQS; i++)
        et_take(&k, s[i], &out[i]);
    if (stats != NULL)
        assert_true(engine_mixed_stats(k.engine, stats));
    stack_close(&k);
}

/* Draws 5 to 20 blocks in all: from just enough for the longest context to more than all contexts
 * need. */
static void random_classes(struct rng *r, int n[PLACES_CLASSES])
{
    int left = 5 + (int)rng_below(r, 16); /* number of blocks that have no class yet */
    for (int c = 0; c < PLACES_CLASSES; c++)
        n[c] = 0;
    if (rng_below(r, 4) == 0)
        n[rng_below(r, PLACES_CLASSES)] = left; /* a single class */
    else
        while (left-- > 0)
            n[rng_below(r, PLACES_CLASSES)]++;
}

void mx_compare(const struct mx_case *c)
{
    static struct et_run want[MX_SEQS], got[MX_SEQS];
    struct stack_opts o = opts_of(c);
    struct rng r = {.s = c->seed};
    run_all(c, &o, want, NULL);
    for (int p = 0; p < c->n_patterns; p++) {
        struct mx_order order = {.rng = rng_u64(&r)};
        struct mixed_opts mo = {.buffer_blocks = 5 + (int)rng_below(&r, 12),
                                .packing = (enum minibatch_method)rng_below(&r, 2),
                                .order = mx_random_order,
                                .order_arg = &order};
        struct mixed_stats stats;
        char what[80];
        random_classes(&r, mo.n);
        o.mixed = &mo;
        o.piece_rows = 16 + (int)rng_below(&r, 100);
        o.step_rows = 16 + (int)rng_below(&r, 200);
        o.user.no_reuse = rng_below(&r, 2) == 0;
        snprintf(what, sizeof what, "pattern %d: %d, %d, %d, %d blocks", p, mo.n[0],
                 mo.n[1], mo.n[2], mo.n[3]);
        run_all(c, &o, got, &stats);
        for (int i = 0; i < MX_SEQS; i++)
            et_same(&got[i], &want[i], what);
        assert_true(stats.n_minibatches >= stats.n_steps);
        if (mo.n[PLACES_KV_HOST] + mo.n[PLACES_ACT_HOST] == 0)
            assert_true(stats.up_bytes == 0 && stats.down_bytes == 0);
        if (mo.n[PLACES_ACT_DEVICE] + mo.n[PLACES_ACT_HOST] == 0)
            assert_true(stats.n_projected == 0);
    }
}
