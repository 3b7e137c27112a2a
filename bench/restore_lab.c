/* restore_lab.c - see restore_lab.h. */
#include "bench/restore_lab.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"
#include "restore/correction.h"
#include "restore/profile.h"
#include "sim/profile_overlap.h"
#include "restore/save_policy.h"
#include "sim/machines.h"
#include "tensor/device.h"
#include "tensor/peers.h"

enum { GROUP = RESTORE_GROUP_CHUNKS, READ_DEPTH = 128 };

/* --- opening ---------------------------------------------------------------------------------- */

static int make_context(struct lab *b, struct err *err)
{
    const struct model *m = b->k.model;
    int n = b->max_chunks * STORE_CHUNK_TOKENS + 1;
    if (n > m->max_ctx)
        return err_set(err, ERR_USAGE, "%d tokens do not fit the context of %d", n,
                       m->max_ctx);
    struct rng rng = {.s = 7};
    b->tokens = xcalloc((size_t)n, sizeof *b->tokens);
    for (int i = 0; i < n; i++)
        b->tokens[i] = (int32_t)rng_below(&rng, (uint64_t)m->cfg.vocab_size);
    b->hits = xcalloc((size_t)b->max_chunks, sizeof *b->hits);
    chain_init(&b->chain, &b->k.fingerprint, NULL);
    chain_extend(&b->chain, b->tokens, n);
    return 0;
}

/* Prefills the whole context and saves it. */
static int fill_store(struct lab *b, struct err *err)
{
    const struct hcache_request ask = {.prompt = b->tokens,
                                       .n_prompt = b->max_chunks * STORE_CHUNK_TOKENS + 1,
                                       .plan = "recompute"};
    struct request *q = request_create(&ask, 0);
    struct seq *s = NULL;
    for (int l = 0; l < config_n_keeping(&b->k.model->cfg); l++)
        q->save.kinds[l] = SAVE_HIDDEN | SAVE_KV;
    q->save.packs = save_policy_packs(b->k.o.user.pack, "both", b->k.model, NULL, 0, false);
    int64_t t0 = clock_now_ns();
    int rc = engine_add(b->k.engine, q, &s, err);
    if (rc == 0)
        rc = engine_run(b->k.engine, err);
    double seconds = (double)(clock_now_ns() - t0) * 1e-9;
    if (rc == 0)
        rc = saver_flush(b->k.saver, err);
    if (rc == 0)
        fprintf(stderr,
                "prefilled %d tokens in %.2f s (%.0f tokens/s, saving both kinds)\n",
                ask.n_prompt, seconds, ask.n_prompt / seconds);
    if (s != NULL)
        engine_remove(b->k.engine, s);
    request_release(q);
    return rc;
}

static void look_up(struct lab *b, char *why, size_t n_why)
{
    b->n_hits = store_lookup(b->k.store, NULL, b->chain.keys, b->max_chunks, b->hits, why,
                             n_why);
}

static int find_context(struct lab *b, struct err *err)
{
    char why[200];
    int rc = 0;
    look_up(b, why, sizeof why);
    if (b->n_hits < b->max_chunks) {
        store_release(b->k.store, b->hits, b->n_hits);
        b->n_hits = 0;
        rc = fill_store(b, err);
        if (rc == 0)
            look_up(b, why, sizeof why);
    }
    if (rc == 0 && b->n_hits < b->max_chunks)
        rc = err_set(err, ERR_NOT_FOUND, "only %d of %d chunks could be stored: %s",
                     b->n_hits, b->max_chunks, why);
    return rc;
}

static int make_pipeline(struct lab *b, const struct lab_opts *o, struct err *err)
{
    const struct model *m = b->k.model;
    struct kv_pool_opts po = {.n_layers = config_n_keeping(&m->cfg),
                              .n_kv = model_rank_kv_heads(m, 0),
                              .d_head = m->cfg.d_head,
                              .dtype = m->dtype,
                              .n_blocks = b->max_chunks};
    int rc = config_is_hybrid(&m->cfg)
                 ? err_set(err, ERR_UNSUPPORTED,
                           "models with recurrent layers are not measured here")
                 : kv_pool_create(b->k.dev, &po, &b->pool, err);
    if (rc == 0)
        rc = kv_table_reserve(b->pool, &b->table,
                              (int64_t)b->max_chunks * STORE_CHUNK_TOKENS, err);
    if (rc == 0)
        rc = stream_create(b->k.dev, STREAM_COMPUTE, &b->stream, err);
    if (rc == 0)
        rc = model_work_create(m, GROUP * STORE_CHUNK_TOKENS, &b->work, err);
    struct restore_pipeline_opts ro = {.model = m,
                                       .store = b->k.store,
                                       .pool = b->pool,
                                       .work = b->work,
                                       .stream = b->stream,
                                       .staging_bytes = stack_staging_bytes(&b->k),
                                       .max_tokens = b->max_chunks * STORE_CHUNK_TOKENS +
                                                     1};
    int direct = 0;
    if (rc == 0)
        rc = device_choice("gpu-direct", o->engine.gpu_direct, restore_direct_names,
                           &direct, err);
    ro.direct = (enum restore_direct)direct;
    return rc == 0 ? restore_pipeline_create(&ro, &b->pipeline, err) : rc;
}

static int measure_ceilings(struct lab *b, struct err *err)
{
    struct rig r = {0};
    if (b->k.dev->unified)
        return 0;
    int rc = rig_open(b->k.dev, b->k.model->dtype, &r, err);
    if (rc == 0)
        rc = device_ceilings_measure(&r, &b->most, err);
    if (rc == 0)
        device_ceilings_print(&b->most, &r);
    rig_close(&r);
    return rc;
}

static int make_reader(struct lab *b, uint64_t staging_bytes, struct err *err)
{
    size_t least = (size_t)32 << 20;
    b->copy_bytes = staging_bytes > least ? staging_bytes : least;
    b->copy = mem_map(b->copy_bytes);
    if (b->copy == NULL)
        return err_set(err, -ENOMEM, "no memory for the read ceiling");
    memset(b->copy, 0, b->copy_bytes);
    return store_reader_open(b->k.store, READ_DEPTH, b->copy, b->copy_bytes, &b->reader,
                             err);
}

/* Measures the platform anew, whatever profile the store has, because later results are compared
 * with it. */
static int measure_platform(struct lab *b, enum profile_effort effort, struct err *err)
{
    const struct profile_source from = {
        .store = b->k.store, .hits = b->hits, .n_hits = b->n_hits};
    profile_begin(&b->platform, b->k.model, &b->k.fingerprint);
    snprintf(b->platform.tier[0].name, sizeof b->platform.tier[0].name, "store");
    int rc = profile_compute(&b->platform, b->k.model, b->work, b->stream, effort, err);
    if (rc == 0)
        rc = profile_tier(&b->platform.tier[0], b->k.model, &from, effort, err);
    if (rc == 0)
        rc = profile_overlap(&b->platform, b->k.model, b->work, b->stream, &from, err);
    b->platform.n_tiers = rc == 0;
    b->platform.packed_share = save_stored_share(&b->hits[0], STORE_KV, false, b->k.model);
    b->tier = b->platform.tier[0];
    b->io_overlap = b->platform.io_overlap;
    b->comp_overlap = b->platform.comp_overlap;
    return rc;
}

/* Returns the length of context to open with: 0, the model's own, unless a synthetic model's own is
 * too short. */
static int context_for(const struct lab_opts *o)
{
    struct model_config c;
    int n = o->max_chunks * STORE_CHUNK_TOKENS + 1;
    bool synth = strncmp(o->engine.model, "synth:", 6) == 0;
    return synth && config_shape(&c, o->engine.model + 6, NULL) == 0 && c.max_ctx < n ? n
                                                                                      : 0;
}

int lab_open(struct lab *b, const struct lab_opts *o, struct err *err)
{
    struct stack_opts so = {.user = o->engine};
    so.user.max_context = context_for(o);
    so.user.no_reuse = true;
    *b = (struct lab){.max_chunks = o->max_chunks};
    int rc = stack_open(&so, &b->k, err);
    if (rc == 0)
        rc = measure_ceilings(b, err);
    if (rc == 0)
        rc = make_context(b, err);
    if (rc == 0)
        rc = make_pipeline(b, o, err);
    if (rc == 0)
        rc = find_context(b, err);
    if (rc == 0)
        rc = make_reader(b, stack_staging_bytes(&b->k), err);
    return rc == 0 ? measure_platform(b, o->effort, err) : rc;
}

void lab_close(struct lab *b)
{
    store_reader_close(b->reader);
    if (b->n_hits > 0)
        store_release(b->k.store, b->hits, b->n_hits);
    restore_pipeline_destroy(b->pipeline);
    model_work_destroy(b->work);
    stream_destroy(b->stream);
    if (b->pool != NULL)
        kv_table_free(b->pool, &b->table);
    kv_pool_destroy(b->pool);
    if (b->copy != NULL)
        mem_unmap(b->copy, b->copy_bytes);
    free(b->worn);
    free(b->ranges);
    free(b->masks);
    free(b->tokens);
    chain_deinit(&b->chain);
    free(b->hits);
    stack_close(&b->k);
}

/* --- throttles -------------------------------------------------------------------------------- */

void lab_throttle(struct lab *b, double bytes_per_s)
{
    if (b->throttle_bytes_per_s == 0)
        /* keeps the unthrottled speeds, with the corrections that were learned so far */
        b->tier = b->platform.tier[0];
    b->throttle_bytes_per_s = bytes_per_s;
    b->platform.tier[0] = b->tier;
    b->platform.io_overlap = b->io_overlap;
    b->platform.comp_overlap = b->comp_overlap;
    platform_throttle(&b->platform, 0, bytes_per_s * peers_count());
    if (b->k.io != NULL)
        io_throttle(b->k.io, (uint64_t)bytes_per_s, 0);
}

int lab_scale(const struct lab *b, const char *as, double *bytes_per_s, double *ratio,
              struct err *err)
{
    /* the paper's length for this ratio, which hardly depends on the length */
    enum { TOKENS = 1024 };
    struct model_config c;
    struct platform p;
    const char *colon = strchr(as, ':'), *shape = colon != NULL ? colon + 1 : "llama-2-7b";
    char name[64];
    snprintf(name, sizeof name, "%.*s",
             (int)(colon != NULL ? colon - as : (long)strlen(as)), as);
    int rc = config_shape(&c, shape, err);
    if (rc != 0)
        return rc;
    struct platform_shape s = profile_shape(shape, &c, 2);
    rc = machine_platform(name, &s, &p, err);
    if (rc != 0)
        return rc;
    *ratio = platform_h_s(&p, TOKENS) / platform_io_s(&p, 0, TOKENS, RECORD_HIDDEN);
    *bytes_per_s = *ratio * platform_balance_bytes_per_s(&b->platform, TOKENS);
    return 0;
}

/* --- plans and restores ----------------------------------------------------------------------- */

void lab_damage(struct lab *b, uint64_t seed)
{
    struct rng r = {.s = seed};
    int n_layers = config_n_keeping(&b->k.model->cfg);
    free(b->worn);
    b->worn = NULL;
    if (seed == 0)
        return;
    b->worn = xcalloc((size_t)b->n_hits, sizeof *b->worn);
    memcpy(b->worn, b->hits, (size_t)b->n_hits * sizeof *b->worn);
    for (int c = 0, end; c < b->n_hits; c = end) {
        end = c + 1 + (int)rng_below(&r, (uint64_t)b->n_hits / 4 + 1);
        end = end < b->n_hits ? end : b->n_hits;
        bool is_run = rng_below(&r, 2) == 0;
        for (int l = 0; is_run && l < n_layers; l++) {
            enum store_kind kind = (enum store_kind)rng_below(&r, STORE_KINDS);
            bool is_lost = rng_below(&r, 3) == 0;
            for (int i = c; is_lost && i < end; i++)
                b->worn[i].mask.has[kind][l / 64] &= ~((uint64_t)1 << (l % 64));
        }
    }
}

static uint8_t records_of(const struct store_hit *h, int l)
{
    return (uint8_t)((store_mask_has(&h->mask, l, STORE_HIDDEN) ? PLAN_HAS_H : 0) |
                     (store_mask_has(&h->mask, l, STORE_KV) ? PLAN_HAS_KV : 0));
}

/* Makes the ranges. Neighbouring chunks with equal records form one range, as in the engine. */
static int make_ranges(struct lab *b, int n_chunks)
{
    int n_layers = config_n_keeping(&b->k.model->cfg), n = 0;
    if (b->ranges == NULL) {
        b->ranges = xcalloc((size_t)b->max_chunks, sizeof *b->ranges);
        b->masks = xcalloc((size_t)b->max_chunks, (size_t)n_layers);
    }
    for (int c = 0; c < n_chunks; c++) {
        uint8_t *mask = b->masks + (size_t)n * (size_t)n_layers;
        for (int l = 0; l < n_layers; l++)
            mask[l] = records_of(&b->worn[c], l);
        bool same = n > 0 && memcmp(mask, b->ranges[n - 1].mask, (size_t)n_layers) == 0;
        if (!same)
            b->ranges[n++] = (struct plan_range){
                .mask = mask,
                .share = {b->platform.packed_share, b->platform.packed_share}};
        b->ranges[n - 1].n_tokens += STORE_CHUNK_TOKENS;
    }
    return n;
}

static int plan_worn(struct lab *b, const char *method, int n_chunks,
                     struct plan_request *req, struct plan *plan, struct err *err)
{
    double prefill_s[STORE_MAX_LAYERS];
    int n_ranges = make_ranges(b, n_chunks), n_used = 0;
    *req = (struct plan_request){.n_layers = config_n_keeping(&b->k.model->cfg)};
    int rc = plan_mode_parse(method, req, err);
    if (rc == 0)
        rc = plan_best_prefix(&b->platform, b->ranges, n_ranges, 0, true, b->layer,
                              prefill_s, req, plan, &n_used, err);
    req->prefill_s = NULL;
    if (rc != 0 || n_used == n_ranges)
        return rc;
    plan_request_from_platform(&b->platform, 0, (int64_t)n_chunks * STORE_CHUNK_TOKENS, 0,
                               b->layer, NULL, req);
    req->mode = PLAN_RECOMPUTE;
    return plan_make(req, plan, err);
}

int lab_plan(struct lab *b, const char *method, int n_chunks, struct plan_request *req,
             struct plan *plan, struct err *err)
{
    if (b->worn != NULL && strcmp(method, "recompute") != 0)
        return plan_worn(b, method, n_chunks, req, plan, err);
    plan_request_from_platform(&b->platform, 0, (int64_t)n_chunks * STORE_CHUNK_TOKENS, 0,
                               b->layer, NULL, req);
    int rc = plan_mode_parse(method, req, err);
    return rc == 0 ? plan_make(req, plan, err) : rc;
}

int lab_restore(struct lab *b, int n_chunks, const struct plan *plan,
                struct restore_result *out, struct err *err)
{
    struct restore_job job = {.hits = b->worn != NULL ? b->worn : b->hits,
                              .n_chunks = n_chunks,
                              .tokens = b->tokens,
                              .table = &b->table,
                              .plan = plan};
    int rc = restore_run(b->pipeline, &job, out, err);
    if (rc == 0 && out->n_chunks < n_chunks)
        rc = err_set(err, ERR_CORRUPT, "restore fell short: %s", out->fault);
    return rc;
}

void lab_learn(struct lab *b, const struct plan_request *req, const struct plan *plan,
               const struct restore_result *r)
{
    struct correction_expected e = correction_expect(&b->platform, 0, req, plan);
    const struct correction_observed o = {.io_s = (double)r->io_ns * 1e-9,
                                          .compute_s = (double)r->compute_ns * 1e-9,
                                          .wait_s = (double)r->wait_ns * 1e-9,
                                          .total_s = (double)r->total_ns * 1e-9};
    correction_learn(&b->platform, &e, &o);
}

/* Teaches the platform how long restores from hidden states take now. */
static int settle(struct lab *b, struct err *err)
{
    enum { LEAST = 4, MOST = 64, LONGEST = 16 };
    const int64_t end_ns = clock_now_ns() + 1500000000;
    int n_chunks = b->max_chunks < LONGEST ? b->max_chunks : LONGEST, rc = 0;
    for (int i = 0; rc == 0 && i < MOST && (i < LEAST || clock_now_ns() < end_ns); i++) {
        struct plan_request req;
        struct plan plan;
        struct restore_result r;
        rc = lab_plan(b, "hidden", n_chunks, &req, &plan, err);
        if (rc == 0)
            rc = lab_restore(b, n_chunks, &plan, &r, err);
        if (rc == 0)
            lab_learn(b, &req, &plan, &r);
    }
    return rc;
}

int lab_settle_as(struct lab *b, const char *as, double *bytes_per_s, double *ratio,
                  struct err *err)
{
    int rc = lab_scale(b, as, bytes_per_s, ratio, err);
    for (int i = 0; rc == 0 && i < 2; i++) {
        if (*bytes_per_s > b->tier.bytes_per_s)
            return 0;
        lab_throttle(b, *bytes_per_s);
        rc = settle(b, err);
        if (rc == 0)
            rc = lab_scale(b, as, bytes_per_s, ratio, err);
    }
    if (rc == 0)
        lab_throttle(b, *bytes_per_s);
    return rc;
}

/* --- the limit of the I/O lane ---------------------------------------------------------------- */

struct copy_job {
    struct store_read *reads;
    int n;
    uint8_t *to;
    size_t room;
};

static void copy_share(void *arg, int thread_idx, int n_threads)
{
    struct copy_job *c = arg;
    long begin, end;
    pool_share(c->n, 1, thread_idx, n_threads, &begin, &end);
    for (long i = begin; i < end; i++)
        memcpy(c->to + (size_t)i * c->room, c->reads[i].bytes, c->reads[i].n_bytes);
}

/* Reads in flight, in groups. Each group has a slot of the buffer. */
struct reading {
    struct lab *b;
    size_t room; /* bytes of a record's room */
    int n_slots, slot, in_flight;
    int *left;                /* [n_slots] reads of the slot that are not done */
    struct store_read *reads; /* [n_slots * GROUP] */
};

static int wait_some(struct reading *r, struct err *err)
{
    struct store_read *done[GROUP];
    int got = 0;
    int rc = store_reader_wait(r->b->reader, done, GROUP, &got, err);
    r->in_flight -= got;
    for (int i = 0; i < got; i++)
        --*(int *)done[i]->user;
    return rc != 0 || got > 0 ? rc : err_set(err, -EIO, "the reader has lost its reads");
}

static int read_group(struct reading *r, int layer, enum store_kind kind, int first, int n,
                      struct err *err)
{
    struct store_read *ptr[GROUP], *reads = r->reads + r->slot * GROUP;
    uint8_t *to = r->b->copy + (size_t)r->slot * GROUP * r->room;
    int rc = 0;
    while (rc == 0 && r->left[r->slot] > 0)
        rc = wait_some(r, err);
    for (int j = 0; j < n; j++) {
        reads[j] = (struct store_read){.hit = &r->b->hits[first + j],
                                       .layer = layer,
                                       .kind = kind,
                                       .dst = to + (size_t)j * r->room,
                                       .dst_bytes = r->room,
                                       .user = &r->left[r->slot]};
        ptr[j] = &reads[j];
    }
    if (rc != 0)
        return rc;
    store_reader_submit(r->b->reader, ptr, n);
    r->in_flight += n;
    r->left[r->slot] = n;
    r->slot = (r->slot + 1) % r->n_slots;
    if (r->b->k.io != NULL)
        return 0;
    /* in DRAM a read is done at once, and the record is then copied */
    while (rc == 0 && r->in_flight > 0)
        rc = wait_some(r, err);
    struct copy_job job = {reads, n, to, r->room};
    pool_run(r->b->k.pool, copy_share, &job);
    return rc;
}

static double io_bytes(const struct lab *b, int n_chunks, const struct plan *plan)
{
    const struct model *m = b->k.model;
    double n = 0;
    for (int i = 0; i < plan->n_io; i++)
        n += (double)(plan->method[plan->io_order[i]] == 'H' ? model_hidden_bytes(m)
                                                             : model_most_kv_bytes(m));
    return n * n_chunks * STORE_CHUNK_TOKENS;
}

/* Returns the flop of a layer's products and of its attention, for n tokens that each see all
 * tokens before them. */
static double layer_flop(const struct model_config *c, double n)
{
    double d = c->n_embd, q = (double)c->n_heads * c->d_head,
           kv = (double)c->n_kv_heads * c->d_head;
    double rows = 2 * d * (q + 2 * kv) + 2 * q * d +
                  2 * d * c->n_ffn * (c->mlp_gated ? 3 : 2);
    return n * rows + 4 * q * n * n / 2;
}

/* Returns the flop of a plan for n tokens. The last recomputed layer needs K and V only. */
static double plan_flop(const struct lab *b, double n, const struct plan *plan)
{
    const struct model_config *c = &b->k.model->cfg;
    double project = n * 2.0 * c->n_embd * 2 * c->n_kv_heads * c->d_head, flop = 0;
    for (int l = 0; l < plan->n_layers; l++) {
        bool last = l + 1 == plan->n_layers || plan->method[l + 1] != 'R';
        if (plan->method[l] == 'H' || (plan->method[l] == 'R' && last))
            flop += project;
        else if (plan->method[l] == 'R')
            flop += layer_flop(c, n);
    }
    return flop;
}

/* For a group the limits are those of one rank's product and of a stage's buses together. Stages
 * work concurrently, and ranks share each product. */
double lab_floor_s(const struct lab *b, int n_chunks, const struct plan *plan)
{
    const struct device *d = b->k.dev;
    if (d->unified)
        return 0;
    double io_s = io_bytes(b, n_chunks, plan) / (b->most.up_bytes_per_s * d->n_stages);
    double compute_s = plan_flop(b, (double)n_chunks * STORE_CHUNK_TOKENS, plan) /
                       (b->most.gemm_flops * d->n_ranks * d->n_stages);
    return io_s > compute_s ? io_s : compute_s;
}

static int read_all(struct lab *b, int n_chunks, const struct plan *plan, int64_t *ns,
                    struct err *err)
{
    const struct model *m = b->k.model;
    size_t hidden = model_hidden_bytes(m), kv = model_most_kv_bytes(m);
    struct reading r = {
        .b = b,
        .room = round_up(STORE_CHUNK_TOKENS * (hidden > kv ? hidden : kv), STORE_ALIGN)};
    r.n_slots = (int)(b->copy_bytes / (GROUP * r.room));
    r.left = xcalloc((size_t)r.n_slots, sizeof *r.left);
    r.reads = xcalloc((size_t)r.n_slots * GROUP, sizeof *r.reads);
    int rc = 0;
    int64_t t0 = clock_now_ns();
    for (int i = 0; rc == 0 && i < plan->n_io; i++) {
        int layer = plan->io_order[i];
        enum store_kind kind = plan->method[layer] == 'H' ? STORE_HIDDEN : STORE_KV;
        for (int c = 0; rc == 0 && c < n_chunks; c += GROUP)
            rc = read_group(&r, layer, kind, c, n_chunks - c < GROUP ? n_chunks - c : GROUP,
                            err);
    }
    while (rc == 0 && r.in_flight > 0)
        rc = wait_some(&r, err);
    *ns = clock_now_ns() - t0;
    free(r.reads);
    free(r.left);
    return rc;
}

int lab_read(struct lab *b, int n_chunks, const struct plan *plan, int64_t *ns,
             struct err *err)
{
    int rc = 0;
    *ns = 0;
    if (b->k.dev->unified || b->k.io != NULL)
        rc = read_all(b, n_chunks, plan, ns, err);
    if (rc != 0 || b->k.dev->unified)
        return rc;
    int64_t up_ns = (int64_t)(io_bytes(b, n_chunks, plan) / b->most.up_bytes_per_s * 1e9);
    *ns = up_ns > *ns ? up_ns : *ns;
    return 0;
}
