#include "tests/engine/enginetest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/seq.h"
#include "restore/save_policy.h"
#include "tests/tensor/peer_threads.h"

struct device_opts et_device;
const char *const et_dirs[2] = {"/store/a", "/store/b"};

void et_platform(struct platform *p, double c_tok, double c_h, double c_kv,
                 double bytes_per_s)
{
    p->c_tok = (struct cost_curve){.b_s = c_tok};
    p->c_h = (struct cost_curve){.b_s = c_h};
    p->c_kv = (struct cost_curve){.b_s = c_kv};
    p->gemm_correction = p->kv_correction = (struct platform_correction){0};
    p->n_tiers = 1;
    p->tier[0] = (struct platform_tier){.name = "test", .bytes_per_s = bytes_per_s};
}

int et_try_open(struct stack *k, const struct stack_opts *opts, struct err *err)
{
    struct stack_opts o = *opts;
    o.user.model = o.user.model != NULL ? o.user.model : "synth:tiny-mha";
    o.user.dtype = o.user.dtype != NULL ? o.user.dtype : "f32";
    o.user.threads = o.user.threads > 0 ? o.user.threads : 1;
    /* how many rows a step has must not depend on the time that passes took */
    o.user.speculate = o.user.speculate != NULL ? o.user.speculate : "off";
    o.user.max_context = o.user.max_context > 0 ? o.user.max_context : 1024;
    o.user.save_buffer_bytes = o.user.save_buffer_bytes > 0 ? o.user.save_buffer_bytes
                                                            : 16 << 20;
    o.user.staging_bytes = o.user.staging_bytes > 0 ? o.user.staging_bytes : 1;
    const struct {
        const char **option, *def;
    } device[] = {
        {&o.user.isa, et_device.isa},
        {&o.user.checksums, et_device.checksums},
        {&o.user.cuda_math, et_device.cuda_math},
        {&o.user.cuda_graphs, et_device.cuda_graphs},
        {&o.user.cuda_early, et_device.cuda_early},
    };
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        if (*device[i].option == NULL)
            *device[i].option = device[i].def;
    o.no_profile = true;
    peer_threads_use();
    int rc = stack_open(&o, k, err);
    if (rc == 0)
        et_platform(&k->platform, 1e-3, 2e-6, 1e-7, 1e9);
    return rc;
}

void et_open(struct stack *k, const struct stack_opts *o)
{
    struct err err = {0};
    if (et_try_open(k, o, &err) != 0)
        fail_msg("stack: %s", err.msg);
}

void et_letters(char *plan, int r, int h, int k)
{
    memset(plan, 'R', (size_t)r);
    memset(plan + r, 'H', (size_t)h);
    memset(plan + r + h, 'K', (size_t)k);
    plan[r + h + k] = 0;
}

struct io *et_disk(uint64_t seed, uint64_t capacity_bytes)
{
    struct io *io = NULL;
    struct err err = {0};
    struct io_sim_opts o = {.seed = seed, .capacity_bytes = capacity_bytes};
    if (io_sim_open(&o, &io, &err) != 0 || io_mkdirs(io, "/store", NULL, &err) != 0)
        fail_msg("simulated disk: %s", err.msg);
    return io;
}

static void fill(int32_t *out, int n, uint64_t seed, int n_ids)
{
    struct rng r = {.s = seed};
    for (int i = 0; i < n; i++)
        out[i] = 3 + (int32_t)rng_below(&r, (uint64_t)n_ids);
}

void et_prompt(int32_t *out, int n, uint64_t seed)
{
    fill(out, n, seed, 477);
}

void et_model_prompt(const struct stack *k, int32_t *out, int n, uint64_t seed)
{
    et_prompt(out, n, seed);
    for (int i = 0; i < n; i++)
        out[i] %= k->model->cfg.vocab_size;
}

void et_small_prompt(int32_t *out, int n, uint64_t seed)
{
    fill(out, n, seed, 120);
}

struct request *et_request(const struct stack *k, const struct et_ask *a)
{
    struct err err = {0};
    const struct hcache_request ask = {.prompt = a->prompt,
                                       .n_prompt = a->n_prompt,
                                       .max_tokens = a->max_tokens,
                                       .ignore_eos = true,
                                       .digest = true,
                                       .salt = a->salt,
                                       .plan = a->plan,
                                       .temperature = a->temperature,
                                       .seed = a->seed};
    bool is_bounded = a->truncation.context == 0 && a->max_tokens > k->model->max_ctx;
    struct request *q = request_create(&ask,
                                       is_bounded ? k->model->max_ctx : a->max_tokens);
    if (q == NULL)
        return NULL;
    q->restore_first = a->restore_first;
    q->truncation = a->truncation;
    if (save_policy_make(&q->save, a->save != NULL ? a->save : "none", k->model, NULL, 1024,
                         &err) != 0)
        fail_msg("%s", err.msg);
    q->save.packs = save_policy_packs(k->o.user.pack, "both", k->model, NULL, 1024, false);
    return q;
}

int et_submit(struct engine *e, struct request *q, struct seq **out, struct err *err)
{
    int rc = engine_add(e, q, out, err);
    request_release(q);
    return rc;
}

void et_set_plan(struct seq *s, const char *plan)
{
    free((void *)s->req->ask.plan);
    s->req->ask.plan = plan != NULL ? xstrdup(plan) : NULL;
    s->drops_plan = false;
}

struct seq *et_add(const struct stack *k, const struct et_ask *a)
{
    struct err err = {0};
    struct seq *s;
    struct request *q = et_request(k, a);
    if (et_submit(k->engine, q, &s, &err) != 0)
        fail_msg("%s", err.msg);
    return s;
}

struct seq *et_add_prompt(const struct stack *k, const struct et_ask *ask, int n)
{
    int32_t *prompt = xmalloc((size_t)n * sizeof *prompt);
    struct et_ask a = *ask;
    et_prompt(prompt, n, 1);
    a.prompt = prompt;
    a.n_prompt = n;
    a.max_tokens = 4;
    struct seq *s = et_add(k, &a);
    free(prompt);
    return s;
}

void et_take(struct stack *k, struct seq *s, struct et_run *out)
{
    if (k->saver != NULL)
        (void)saver_flush(k->saver, NULL);
    const struct outcome *o = seq_outcome(s);
    *out = (struct et_run){.finish = o->finish,
                           .digest = o->r.logits_digest,
                           .n_tokens = o->r.n_tokens,
                           .n_cached = o->r.cached_tokens,
                           .n_device = o->r.device_tokens,
                           .committed = seq_committed_tokens(s),
                           .save_end = seq_save_end(s),
                           .restore = o->restore,
                           .plan = o->plan,
                           .surprise = o->surprise,
                           .stall = o->stall,
                           .truncated_tokens = o->r.truncated_tokens,
                           .recomputed_tokens = o->r.recomputed_tokens,
                           .n_stairs = o->r.truncation.steps,
                           .err = o->err};
    assert_true(out->n_tokens <= ET_MAX_GENERATED);
    memcpy(out->tokens, o->r.token_ids, (size_t)out->n_tokens * sizeof out->tokens[0]);
    snprintf(out->miss, sizeof out->miss, "%s", o->r.miss);
    engine_remove(k->engine, s);
}

int et_run(struct stack *k, const struct et_ask *a, struct et_run *out)
{
    struct err err = {0};
    struct seq *s = NULL;
    struct request *q = et_request(k, a);
    int rc = q == NULL ? err_set(&err, -ENOMEM, "no memory for a request")
                       : et_submit(k->engine, q, &s, &err);
    if (rc == 0)
        rc = engine_run(k->engine, &err);
    if (s != NULL)
        et_take(k, s, out);
    if (rc != 0) {
        *out = (struct et_run){.finish = FINISH_ERROR};
        out->err = err;
    }
    return rc;
}

struct et_run et_must_run(struct stack *k, const struct et_ask *a)
{
    struct et_run run;
    if (et_run(k, a, &run) != 0 || run.finish == FINISH_ERROR)
        fail_msg("save %s, plan %s: %s", a->save, a->plan, run.err.msg);
    return run;
}

void et_same(const struct et_run *a, const struct et_run *b, const char *what)
{
    if (a->finish != b->finish)
        fail_msg("%s: finished as %d (%s), not as %d (%s)", what, (int)a->finish,
                 a->err.msg, (int)b->finish, b->err.msg);
    if (a->n_tokens != b->n_tokens ||
        memcmp(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof a->tokens[0]) != 0)
        fail_msg("%s: other tokens", what);
    assert_true(a->n_tokens == 0 || a->digest != 0);
    if (a->digest != b->digest)
        fail_msg("%s: other logits", what);
}
