/* bench_hybrid_run.c - `hcache bench hybrid run`: runs contexts of KV blocks and ACT blocks (hidden
 * states) at this machine's scale.
 *
 * The projection is measured first. Then the link is slowed down until projecting a block takes x
 * times as long as transferring its keys and values; x is that of the imitated machine. All full
 * blocks lie on the host. Each arm prefills the same prompts and decodes the same tokens. The steps
 * of decoding are timed, and the bytes over the link are counted.
 *
 *   device       all blocks on the device: the time of a step without a link
 *   kv, act      blocks of one type on the host
 *   half         as many ACT as KV blocks (no allocation policy)
 *   hybrid       the complete method
 *
 * One processor is left to the link's thread unless --threads says otherwise. That thread stands
 * for a device's copy engine, which takes no compute time.
 *
 * The weights come over the link, too. Each layer has as many bytes of weights as keep the link
 * busy for the time that a layer takes without ACT blocks, but at most a third of the time of the
 * KV blocks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/option_tables.h"
#include "base/clock.h"
#include "base/cpus.h"
#include "base/mem.h"
#include "base/plural.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "engine/mixed.h"
#include "engine/mixed_costs.h"
#include "base/json.h"
#include "engine/hybrid_share.h"
#include "api/stack.h"

enum { MOST_BATCH = 256 };

struct run_args {
    struct bench_common common;
    double x;
    int batch, prompt, tokens;
    struct opt_list arms;
    bool json, check;
};

static const struct opt options[] = {
    {"ratio", OPT(struct run_args, x), .arg = "X", .def = "1.4", .min = 0, .max = 1000,
     .help = "d * link bandwidth / FLOP/s of the projection"},
    {"batch", OPT(struct run_args, batch), .arg = "N", .def = "16", .min = 1,
     .max = MOST_BATCH, .help = "requests that decode together"},
    {"prompt", OPT(struct run_args, prompt), .arg = "N", .def = "512", .min = 64,
     .max = BENCH_MAX_TOKENS, .help = "tokens of each context, rounded up to whole blocks"},
    {"tokens", OPT(struct run_args, tokens), .arg = "N", .def = "8", .min = 2, .max = 60,
     .help = "steps that are timed"},
    {"arms", OPT(struct run_args, arms), .arg = "LIST",
     .help = "arms to run beside `device`, such as kv,act,hybrid (default: all)"},
    OPT_WEIGHTS(struct bench_common),
    BENCH_OPT_DEVICE,
    BENCH_OPT_DTYPE,
    {"threads", OPT(struct run_args, common.engine.o.threads), .arg = "N", .def = "0",
     .min = 0, .max = 1024,
     .help = "compute threads; 0 leaves one processor to the link's thread"},
    {"check", OPT(struct run_args, check),
     .help = "exit 1 if an arm misses a goal of docs/RESTORATION.md, section 6"},
    {"json", OPT(struct run_args, json), .help = "print one JSON object"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench hybrid run",
    .summary = "Decodes a batch whose contexts lie on the host, over a slowed-down link: "
               "keys and values alone, activations alone, and mixtures of both.",
    .positionals = bench_positionals,
    .options = options,
    .examples = "  hcache bench hybrid run --ratio 1.4 --check\n",
    .values_bytes = sizeof(struct run_args),
};
const struct opt_cmd *const options_of_bench_hybrid_run = &cmd;

enum arm { DEVICE, KV, ACT, HALF, HYBRID, N_ARMS };
static const char *const arm_names[N_ARMS] = {"device", "kv", "act", "half", "hybrid"};

struct row {
    double step_s, predicted_s;
    double act_share;
    uint64_t link_bytes, policy_bytes; /* bytes of the contexts, per step */
    int n_minibatches;
    uint64_t digest;
};

struct bench {
    const struct run_args *a;
    struct hybrid_machine machine;
    struct mixed_costs costs;
    double link_bytes_per_s, weights_bytes;
    double element_bytes;
    int n_layers, n_full; /* n_full: number of full blocks of a request */
    int32_t *ids;
    bool is_asked[N_ARMS];
    struct row rows[N_ARMS];
};

/* --- one arm ---------------------------------------------------------------------------------- */

/* Returns the blocks of a mini-batch: those of four requests. */
static int buffer_blocks(const struct bench *b)
{
    return 4 * (b->n_full + 1);
}

/* Returns the number of requests in a mini-batch that fills its buffer. */
static int requests_at_once(const struct bench *b)
{
    return buffer_blocks(b) / b->n_full;
}

static struct stack_opts stack_opts_of(const struct bench *b, const struct mixed_opts *mo)
{
    struct stack_opts o = {.user = b->a->common.engine.o, .mixed = mo, .no_profile = true};
    o.user.max_sequences = b->a->batch;
    o.user.max_context = (b->n_full + 1) * KV_BLOCK_TOKENS;
    o.user.no_reuse = true;
    o.step_rows = b->a->batch * (b->n_full + 1) * KV_BLOCK_TOKENS;
    return o;
}

/* Assigns full blocks by the ratio of an arm. The unfinished block of a request is a KV block on
 * the device. */
struct order {
    int n_full;
    int first_act;           /* number of the first ACT block */
    int64_t act[MOST_BATCH]; /* full ACT blocks of each request */
};

static const int *order_of(void *arg, const struct kv_table *t)
{
    static const int tail[] = {PLACES_KV_DEVICE, PLACES_KV_HOST, PLACES_ACT_HOST,
                               PLACES_ACT_DEVICE};
    static const int act[] = {PLACES_ACT_HOST, PLACES_KV_HOST, PLACES_KV_DEVICE,
                              PLACES_ACT_DEVICE};
    static const int kv[] = {PLACES_KV_HOST, PLACES_ACT_HOST, PLACES_KV_DEVICE,
                             PLACES_ACT_DEVICE};
    const struct order *o = arg;
    int n_act = 0;
    if (t->n_blocks >= o->n_full)
        return tail;
    for (int i = 0; i < t->n_blocks; i++)
        n_act += t->blocks[i] >= o->first_act;
    double n = (double)o->act[t->tail - 1];
    return hybrid_next_is_act(n, o->n_full - n, n_act, t->n_blocks - n_act) ? act : kv;
}

/* Returns the blocks of an arm. All requests have equally many ACT blocks, except in the complete
 * method: mini-batches in the order of requests do not suit unequal shares. */
static struct hybrid_split split_of(const struct bench *b, enum arm arm)
{
    const struct hybrid_memory mem = {0, 1e30};
    struct hybrid_split s;
    int64_t n = (int64_t)b->a->batch * b->n_full;
    if (arm == HYBRID)
        hybrid_choose(&b->machine, &mem, n, &s);
    else
        hybrid_place(&b->machine, &mem, n, arm == ACT ? n : arm == HALF ? n / 2 : 0, &s);
    return s;
}

/* Sets the numbers of blocks of each class for all requests. */
static struct mixed_opts blocks_of(const struct bench *b, enum arm arm, struct order *order)
{
    struct hybrid_split s = split_of(b, arm);
    int n = b->a->batch * b->n_full, n_act = (int)s.act_host;
    struct mixed_opts o = {.n = {[PLACES_KV_DEVICE] = b->a->batch,
                                 [PLACES_KV_HOST] = n - n_act,
                                 [PLACES_ACT_HOST] = n_act},
                           .act_share = n_act,
                           .kv_share = n - n_act,
                           .buffer_blocks = buffer_blocks(b),
                           .machine = b->machine,
                           .weights_bytes = (size_t)b->weights_bytes,
                           .link_bytes_per_s = b->link_bytes_per_s};
    if (arm == DEVICE)
        return (struct mixed_opts){.n = {[PLACES_KV_DEVICE] = n + b->a->batch},
                                   .kv_share = 1};
    *order = (struct order){.n_full = b->n_full,
                            .first_act = o.n[PLACES_KV_DEVICE] + o.n[PLACES_KV_HOST]};
    hybrid_share_requests(&b->machine, &s, order->act);
    o.order = order_of;
    o.order_arg = order;
    return o;
}

static int add_all(struct bench *b, struct engine *e, struct seq **s, struct err *err)
{
    int n_prompt = b->n_full * KV_BLOCK_TOKENS + 1, rc = 0;
    for (int i = 0; rc == 0 && i < b->a->batch; i++) {
        /* the prompts are the same text from different tokens on */
        const struct hcache_request ask = {.prompt = b->ids + i,
                                           .n_prompt = n_prompt,
                                           .max_tokens = b->a->tokens + 2,
                                           .ignore_eos = true,
                                           .digest = true};
        struct request *q = request_create(&ask, ask.max_tokens);
        rc = engine_add(e, q, &s[i], err);
        request_release(q);
    }
    return rc;
}

static int step(struct engine *e, double *seconds, struct err *err)
{
    int n_active;
    int64_t t0 = clock_now_ns();
    int rc = engine_step(e, &n_active, err);
    *seconds = (double)(clock_now_ns() - t0) * 1e-9;
    return rc;
}

/* Returns the bytes per step that the policy predicts for the requests' full blocks on the host.
 * *act_share gets the share of these blocks that are ACT blocks. */
static uint64_t count_bytes(const struct bench *b, struct stack *k, struct seq *const *s,
                            double *act_share)
{
    struct places_opts po;
    struct places p = {0};
    const struct mixed_opts *o = k->o.mixed;
    int64_t n_act = 0, n_kv = 0;
    mixed_places(o, k->model, b->a->batch, &po);
    p.o = po;
    for (int c = 1; c < PLACES_CLASSES; c++)
        p.first[c] = p.first[c - 1] + po.n[c - 1];
    for (int i = 0; i < b->a->batch; i++)
        for (int j = 0; j < b->n_full; j++) {
            enum places_class c = places_class_of(&p, seq_table(s[i])->blocks[j]);
            n_act += c == PLACES_ACT_HOST;
            n_kv += c == PLACES_KV_HOST;
        }
    *act_share = n_act + n_kv > 0 ? (double)n_act / (double)(n_act + n_kv) : 0;
    return (uint64_t)b->n_layers * ((uint64_t)n_act * (uint64_t)b->costs.act_bytes +
                                    (uint64_t)n_kv * (uint64_t)b->costs.kv_bytes);
}

/* Returns the seconds of a step by the policy's formula. */
static double predict(const struct bench *b, enum arm arm, double act_share)
{
    const struct hybrid_memory mem = {0, 1e30};
    struct hybrid_split s;
    int64_t n = (int64_t)b->a->batch * b->n_full;
    if (arm == HYBRID)
        return b->n_layers * split_of(b, arm).seconds;
    hybrid_place(&b->machine, &mem, n, llround(act_share * (double)n), &s);
    return b->n_layers * s.seconds;
}

static int decode(struct bench *b, struct stack *k, struct seq **s, struct row *r,
                  struct err *err)
{
    double times[64], t;
    struct mixed_stats before, after;
    int rc = add_all(b, k->engine, s, err);
    while (rc == 0 && seq_outcome(s[b->a->batch - 1])->r.n_tokens == 0)
        rc = step(k->engine, &t, err); /* prefills the prompts */
    engine_mixed_stats(k->engine, &before);
    for (int i = 0; rc == 0 && i < b->a->tokens; i++)
        rc = step(k->engine, &times[i], err);
    engine_mixed_stats(k->engine, &after);
    if (rc != 0)
        return rc;
    uint64_t n = (uint64_t)b->a->tokens;
    r->step_s = bench_median(times, b->a->tokens);
    r->link_bytes = (after.up_bytes - before.up_bytes) / n;
    r->n_minibatches = (int)((after.n_minibatches - before.n_minibatches) / n);
    r->policy_bytes = count_bytes(b, k, s, &r->act_share);
    for (int i = 0; i < b->a->batch; i++)
        r->digest = r->digest * 31 + seq_outcome(s[i])->r.logits_digest;
    return 0;
}

static int run_arm(struct bench *b, enum arm arm, struct err *err)
{
    struct order order;
    struct mixed_opts mo = blocks_of(b, arm, &order);
    struct stack_opts o = stack_opts_of(b, &mo);
    struct stack k;
    struct seq **s = xcalloc((size_t)b->a->batch, sizeof(struct seq *));
    struct row *r = &b->rows[arm];
    int rc = stack_open(&o, &k, err);
    k.o.mixed = &mo;
    if (rc == 0)
        rc = decode(b, &k, s, r, err);
    for (int i = 0; i < b->a->batch; i++)
        if (s[i] != NULL)
            engine_remove(k.engine, s[i]);
    stack_close(&k);
    free((void *)s);
    if (rc == 0 && arm == DEVICE) {
        /* The head and the sampler overlap with no other work, and belong to the step of every
         * arm. */
        double kv_s = (double)b->a->batch * b->n_full * b->costs.kv_bytes *
                      b->machine.link.b_s;
        struct hybrid_machine *m = &b->machine;
        m->forward_s = r->step_s / b->n_layers;
        m->forward_mini_s = m->forward_s * b->costs.forward_mini_s / b->costs.forward_s;
        double forward_s = m->forward_s + m->forward_mini_s * (m->n_minibatches - 1);
        m->weights_s = fmin(forward_s, kv_s / 3);
        b->weights_bytes = b->machine.weights_s / b->machine.link.b_s;
        r->predicted_s = r->step_s;
    } else if (rc == 0) {
        r->predicted_s = predict(b, arm, r->act_share);
    }
    return rc;
}

/* --- costs ------------------------------------------------------------------------------------ */

static int measure(struct bench *b, struct err *err)
{
    struct mixed_opts mo = {.n = {[PLACES_KV_DEVICE] = b->n_full + 1}, .kv_share = 1};
    struct stack_opts o = stack_opts_of(b, &mo);
    struct stack k;
    struct model_work *work = NULL;
    struct stream *s = NULL;
    o.user.max_sequences = 1;
    int rc = stack_open(&o, &k, err);
    if (rc == 0)
        rc = stream_create(k.dev, STREAM_COMPUTE, &s, err);
    if (rc == 0)
        rc = model_work_create(k.model, k.batch_rows, &work, err);
    if (rc == 0)
        rc = mixed_measure(k.model, work, s, 0, b->a->batch, &b->costs, err);
    if (rc == 0) {
        b->link_bytes_per_s = b->a->x * b->costs.kv_bytes / b->costs.project.b_s;
        /* the costs by which the link's speed was chosen */
        struct hybrid_line project = b->costs.project;
        double r2 = b->costs.project_r2;
        rc = mixed_measure(k.model, work, s, b->link_bytes_per_s, b->a->batch, &b->costs,
                           err);
        b->costs.project = project;
        b->costs.project_r2 = r2;
        b->element_bytes = (double)dtype_bytes(k.model->dtype);
        b->n_layers = k.model->cfg.n_layers;
    }
    int per = requests_at_once(b), n_minis = (b->a->batch + per - 1) / per;
    b->machine = (struct hybrid_machine){.project = b->costs.project,
                                         .link = {0, 1 / b->link_bytes_per_s},
                                         .kv_bytes = b->costs.kv_bytes,
                                         .act_bytes = b->costs.act_bytes,
                                         .n_minibatches = n_minis,
                                         .n_requests = b->a->batch,
                                         .n_layers = b->n_layers};
    model_work_destroy(work);
    stream_destroy(s);
    stack_close(&k);
    return rc;
}

/* --- which arms ------------------------------------------------------------------------------- */

static int find_arm(const char *name)
{
    for (int i = 0; i < N_ARMS; i++)
        if (strcmp(arm_names[i], name) == 0)
            return i;
    return -1;
}

static int select_arms(struct bench *b, struct err *err)
{
    const struct opt_list *l = &b->a->arms;
    for (int i = 0; i < N_ARMS; i++)
        b->is_asked[i] = i == DEVICE || l->n == 0;
    for (int i = 0; i < l->n; i++) {
        int arm = find_arm(l->items[i]);
        if (arm < 0)
            return err_set(err, ERR_USAGE, "arms: '%s' is none of kv, act, half, hybrid",
                           l->items[i]);
        b->is_asked[arm] = true;
    }
    return 0;
}

/* --- results ---------------------------------------------------------------------------------- */

static double over(const struct bench *b, enum arm a)
{
    return b->rows[a].step_s / b->rows[HYBRID].step_s;
}

static double traffic(const struct bench *b)
{
    return (double)b->rows[KV].link_bytes / (double)b->rows[HYBRID].link_bytes;
}

/* Returns an arm that the model predicts to be slower than `a` by more than 3 %, but that was
 * faster. Returns -1 if there is none. */
static int overtaken_by(const struct bench *b, enum arm a)
{
    for (int k = KV; k < N_ARMS; k++)
        if (b->is_asked[k] && b->rows[k].predicted_s > 1.03 * b->rows[a].predicted_s &&
            b->rows[k].step_s < b->rows[a].step_s)
            return k;
    return -1;
}

static double miss(const struct row *r)
{
    return r->step_s / r->predicted_s - 1;
}

/* Checks the results. Equal bits and bytes are promises; the other values are goals on an otherwise
 * idle machine. */
static int check(const struct bench *b, struct err *err)
{
    for (int i = 0; i < N_ARMS; i++) {
        const struct row *r = &b->rows[i];
        if (!b->is_asked[i])
            continue;
        if (r->digest != b->rows[DEVICE].digest)
            return err_set(err, ERR_MISMATCH,
                           "%s: the logits differ from those on the device", arm_names[i]);
        if (r->link_bytes != r->policy_bytes)
            return err_set(err, ERR_MISMATCH,
                           "%s: %llu bytes over the link, but the policy predicts %llu",
                           arm_names[i], (unsigned long long)r->link_bytes,
                           (unsigned long long)r->policy_bytes);
    }
    for (int i = KV; i < N_ARMS; i++)
        if (b->is_asked[i] && b->rows[i].n_minibatches != b->machine.n_minibatches)
            return err_set(err, ERR_MISMATCH, "%s: %d mini-batches, the policy says %d",
                           arm_names[i], b->rows[i].n_minibatches,
                           b->machine.n_minibatches);
    if (!b->a->check)
        return 0;
    if (b->costs.project_r2 < 0.98 || b->costs.link_r2 < 0.98)
        return err_set(err, ERR_LIMIT,
                       "R2 of the projection is %.3f, of the link %.3f, not 0.98",
                       b->costs.project_r2, b->costs.link_r2);
    bool has_goal = fabs(b->a->x - 1.4) < 1e-9 && b->is_asked[HYBRID];
    if (has_goal && b->is_asked[KV] && fabs(traffic(b) - 1.36) > 0.02)
        return err_set(err, ERR_LIMIT, "%.3f times less traffic than kv, not 1.36",
                       traffic(b));
    if (has_goal && b->is_asked[KV] && over(b, KV) < 1.22)
        return err_set(err, ERR_LIMIT, "%.2f times as fast as kv, not 1.22", over(b, KV));
    if (has_goal && b->is_asked[ACT] && over(b, ACT) < 1.2)
        return err_set(err, ERR_LIMIT, "%.2f times as fast as act, not 1.2", over(b, ACT));
    for (int i = KV; i < N_ARMS; i++)
        if (b->is_asked[i] && fabs(miss(&b->rows[i])) > 0.1)
            return err_set(err, ERR_LIMIT, "%s: %.0f %% off the model", arm_names[i],
                           100 * miss(&b->rows[i]));
    for (int i = KV; i < N_ARMS; i++) {
        int slower = !b->is_asked[i] ? -1 : overtaken_by(b, i);
        if (slower >= 0)
            return err_set(err, ERR_LIMIT, "%s was faster than %s, against the model",
                           arm_names[slower], arm_names[i]);
    }
    return 0;
}

static double flops(const struct bench *b)
{
    /* The width follows from an ACT block's bytes: a block has 64 rows. K and V each have half of a
     * KV block's bytes. */
    double d = b->costs.act_bytes / 64, kv = b->costs.kv_bytes / 64;
    return 2 * 64 * (d / b->element_bytes) * (kv / b->element_bytes) / b->costs.project.b_s;
}

static void print(const struct bench *b)
{
    printf("run at scale, %d thread%s: F = %.1f GFLOP/s, link %.1f MB/s, x = %.2f; %d "
           "requests of %d "
           "tokens, "
           "%d layers; %.1f MB of each layer's weights over the link\n"
           "a block is projected in %.1f us (R2 %.3f), its keys and values come in %.1f us "
           "(R2 "
           "%.3f)\n%-10s %6s %10s %10s %6s %10s %10s %8s\n",
           b->a->common.engine.o.threads, plural(b->a->common.engine.o.threads),
           flops(b) / 1e9, b->link_bytes_per_s / 1e6, b->a->x, b->a->batch,
           b->n_full * KV_BLOCK_TOKENS, b->n_layers, b->weights_bytes / 1e6,
           b->costs.project.b_s * 1e6, b->costs.project_r2,
           b->costs.link.b_s * b->costs.kv_bytes * 1e6, b->costs.link_r2, "arm", "ACT",
           "MB/step", "policy", "minis", "ms/step", "predicted", "kv/arm");
    for (int i = 0; i < N_ARMS; i++) {
        const struct row *r = &b->rows[i];
        if (!b->is_asked[i])
            continue;
        printf("%-10s %5.1f%% %10.2f %10.2f %6d %10.1f %10.1f %8.2f\n", arm_names[i],
               100 * r->act_share, (double)r->link_bytes / 1e6,
               (double)r->policy_bytes / 1e6, r->n_minibatches, r->step_s * 1e3,
               r->predicted_s * 1e3, b->rows[KV].step_s / r->step_s);
    }
    if (b->is_asked[KV] && b->is_asked[HYBRID])
        printf("hybrid: %.3f times less traffic than kv; kv : ACT without limits x / (x + "
               "1/2) "
               "= %.3f\n",
               traffic(b), b->a->x / (b->a->x + 0.5));
}

static void print_json(const struct bench *b)
{
    struct json *o = json_new_object(), *rows = json_new_array();
    json_put_string(o, "label", "run at scale");
    json_put_int(o, "threads", b->a->common.engine.o.threads);
    json_put_real(o, "F", flops(b));
    json_put_real(o, "B", b->link_bytes_per_s);
    json_put_real(o, "x", b->a->x);
    json_put_real(o, "project_r2", b->costs.project_r2);
    json_put_real(o, "link_r2", b->costs.link_r2);
    if (b->is_asked[KV] && b->is_asked[HYBRID])
        json_put_real(o, "traffic_kv_over_hybrid", traffic(b));
    for (int i = 0; i < N_ARMS; i++) {
        const struct row *r = &b->rows[i];
        if (!b->is_asked[i])
            continue;
        struct json *one = json_new_object();
        char digest[32];
        snprintf(digest, sizeof digest, "%016llx", (unsigned long long)r->digest);
        json_put_string(one, "arm", arm_names[i]);
        json_put_real(one, "act_share", r->act_share);
        json_put_int(one, "link_bytes", (int64_t)r->link_bytes);
        json_put_int(one, "link_bytes_policy", (int64_t)r->policy_bytes);
        json_put_int(one, "minibatches", r->n_minibatches);
        json_put_real(one, "time_s", r->step_s);
        json_put_real(one, "predicted_s", r->predicted_s);
        if (b->is_asked[KV])
            json_put_real(one, "over_kv", b->rows[KV].step_s / r->step_s);
        json_put_string(one, "logits_digest", digest);
        json_push(rows, one);
    }
    json_put(o, "rows", rows);
    char *text = json_text(o, 0);
    puts(text);
    free(text);
    json_free(o);
}

static int run(struct bench *b, struct err *err)
{
    const struct run_args *a = b->a;
    b->n_full = (a->prompt + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    int n_ids = b->n_full * KV_BLOCK_TOKENS + 1 + a->batch;
    struct rng r = {.s = 5};
    b->ids = xcalloc((size_t)n_ids, sizeof *b->ids);
    for (int i = 0; i < n_ids; i++)
        b->ids[i] = 5 + (int32_t)rng_below(&r, 400);
    int rc = select_arms(b, err);
    if (rc == 0)
        rc = measure(b, err);
    for (int i = 0; rc == 0 && i < N_ARMS; i++)
        if (b->is_asked[i])
            rc = run_arm(b, (enum arm)i, err);
    free(b->ids);
    if (rc != 0)
        return rc;
    if (a->json)
        print_json(b);
    else
        print(b);
    return check(b, err);
}

int bench_hybrid_run(int argc, char **argv)
{
    struct run_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    struct bench b = {.a = &a};
    int *threads = &a.common.engine.o.threads;
    if (*threads == 0)
        *threads = cpus_usable() > 1 ? cpus_usable() - 1 : 1;
    int rc = run(&b, &err);
    opt_end(parsed);
    return bench_end("hybrid run", rc, &err);
}
