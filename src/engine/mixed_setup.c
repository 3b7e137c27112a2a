/* mixed_setup.c - see mixed_setup.h. */
#include "engine/mixed_setup.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/minmax.h"

const char *const mixed_methods[MIXED_METHODS + 1] = {
    [MIXED_OFF] = "off", [MIXED_RECOMPUTE] = "recompute", [MIXED_KV] = "kv",
    [MIXED_ACT] = "act", [MIXED_PRINTED] = "paper",       [MIXED_AUTO] = "auto",
};

/* --- why there are no host blocks ------------------------------------------------------------- */

static bool is_forced(const struct mixed_job *j)
{
    return j->method == MIXED_KV || j->method == MIXED_ACT || j->method == MIXED_PRINTED;
}

bool mixed_must_measure(const struct mixed_job *j, struct mixed_choice *out)
{
    const char *why = NULL;
    *out = (struct mixed_choice){0};
    if (j->method == MIXED_OFF)
        why = "they are not asked for";
    else if (j->method == MIXED_RECOMPUTE)
        why = "blocks without room on the device are computed again";
    else if (j->host_bytes == 0)
        why = "there is no memory for blocks on the host (--host-memory)";
    else if (j->has_states)
        why = "layers have recurrent states, or see both ways: contexts stay on the device";
    else if (!is_forced(j) && j->has_store)
        why = "contexts are saved in a store";
    else if (!is_forced(j) && j->is_group)
        why = "several devices compute";
    else if (!is_forced(j) && j->unified)
        why = "the device computes in the host's memory: a larger KV cache does the same "
              "(--kv-tokens)";
    if (why != NULL)
        snprintf(out->why, sizeof out->why, "no blocks on the host: %s", why);
    return why == NULL;
}

/* --- numbers of blocks ------------------------------------------------------------------------ */

struct room {
    struct hybrid_machine machine;
    struct hybrid_memory mem; /* memory for the blocks of one layer */
    enum mixed_method method;
};

/* Splits n blocks by the method; out->fits says whether they have room. */
static void split_by(const struct room *r, int64_t n, struct hybrid_split *out)
{
    double x = r->machine.project.b_s / (r->machine.link.b_s * r->machine.kv_bytes);
    if (r->method == MIXED_AUTO && x <= MIXED_MOST_X)
        hybrid_choose(&r->machine, &r->mem, n, out);
    else
        hybrid_place(&r->machine, &r->mem, n, r->method == MIXED_ACT ? n : 0, out);
}

/* Splits by Algorithm 1 of the paper, which divides the whole memory. Leaves out blocks beyond
 * n. */
static void split_as_printed(const struct room *r, int64_t n, struct hybrid_split *out)
{
    struct hybrid_shares s;
    hybrid_paper(&r->machine, &r->mem, &s);
    double act_device = floor(r->mem.device_bytes / r->machine.act_bytes);
    double all = act_device + s.act_host + s.kv_host;
    double scale = all > (double)n ? (double)n / all : 1;
    *out = (struct hybrid_split){.act_device = (int64_t)(act_device * scale),
                                 .act_host = (int64_t)(s.act_host * scale),
                                 .kv_host = (int64_t)(s.kv_host * scale),
                                 .fits = true};
}

/* Splits the greatest number of blocks, at most n, that have room. */
static void split_most(const struct room *r, int64_t n, struct hybrid_split *out)
{
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = high - (high - low) / 2;
        split_by(r, middle, out);
        if (out->fits)
            low = middle;
        else
            high = middle - 1;
    }
    split_by(r, low, out);
}

static int64_t n_act(const struct hybrid_split *s)
{
    return s->act_device + s->act_host;
}

static int64_t n_kv(const struct hybrid_split *s)
{
    return s->kv_device + s->kv_host;
}

/* Returns tails and buffers, which are reserved before blocks. */
static struct places_opts fixed_places(const struct mixed_job *j, const struct model *m)
{
    struct places_opts po;
    struct mixed_opts o = {.buffer_blocks = 1};
    if (j->method != MIXED_KV)
        o.n[PLACES_ACT_HOST] = 1;
    mixed_places(&o, m, j->max_seqs, &po);
    return po;
}

/* Returns the number of mini-batches if each holds whole requests of maximum length. */
static int n_minibatches(const struct mixed_job *j, const struct places_opts *po,
                         int context)
{
    int per = po->n_scratch / context;
    return (j->max_seqs + per - 1) / per;
}

/* Sets out->why: how blocks are divided, and the costs behind that. */
static void explain(const struct mixed_costs *c, const struct hybrid_split *s,
                    struct mixed_choice *out)
{
    snprintf(out->why, sizeof out->why,
             "blocks on the device: %lld KV, %lld ACT; on the host: %lld KV, %lld ACT; x = "
             "%.2f; a block is projected in %.1f us (R2 %.3f), its keys and values come in "
             "%.1f us (R2 %.3f)",
             (long long)s->kv_device, (long long)s->act_device, (long long)s->kv_host,
             (long long)s->act_host, mixed_costs_x(c), c->project.b_s * 1e6, c->project_r2,
             c->link.b_s * c->kv_bytes * 1e6, c->link_r2);
}

int mixed_decide(const struct mixed_job *j, const struct model *m,
                 const struct mixed_costs *c, struct mixed_choice *out, struct err *err)
{
    int context = (m->max_ctx + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    double n_layers = m->cfg.n_layers;
    struct places_opts po = fixed_places(j, m);
    uint64_t fixed = places_device_bytes(&po);
    if (!mixed_must_measure(j, out))
        return 0;
    CHECK(!j->has_store);
    if (fixed > j->device_bytes)
        return err_set(
            err, ERR_LIMIT,
            "the KV cache has %.3f GB on the device, but its buffers and %d "
            "unfinished blocks take %.3f GB: make it larger (--kv-tokens), or give "
            "fewer --max-sequences or a shorter --max-context",
            (double)j->device_bytes / 1e9, j->max_seqs, (double)fixed / 1e9);
    struct room r = {.method = j->method,
                     .machine = {.weights_s = j->weights_s,
                                 .forward_s = c->forward_s,
                                 .forward_mini_s = c->forward_mini_s,
                                 .project = c->project,
                                 .link = c->link,
                                 .kv_bytes = c->kv_bytes,
                                 .act_bytes = c->act_bytes,
                                 .n_minibatches = n_minibatches(j, &po, context),
                                 .n_requests = j->max_seqs,
                                 .n_layers = m->cfg.n_layers},
                     .mem = {(double)(j->device_bytes - fixed) / n_layers,
                             (double)j->host_bytes / n_layers}};
    int64_t wanted = (int64_t)j->max_seqs * context, most = MIN(wanted, MIXED_MAX_BLOCKS);
    if (j->method == MIXED_PRINTED)
        split_as_printed(&r, most, &out->split);
    else
        split_most(&r, most, &out->split);
    const struct hybrid_split *s = &out->split;
    if (n_act(s) + n_kv(s) < context)
        return err_set(
            err, ERR_LIMIT,
            "%.3f GB on the device and %.3f GB on the host hold %lld blocks; one context "
            "has %d: give more --host-memory or --kv-tokens, or a shorter --max-context",
            (double)j->device_bytes / 1e9, (double)j->host_bytes / 1e9,
            (long long)(n_act(s) + n_kv(s)), context);
    out->is_on = true;
    out->opts = (struct mixed_opts){
        .n = {(int)s->kv_device, (int)s->act_device, (int)s->kv_host, (int)s->act_host},
        .act_share = (double)n_act(s),
        .kv_share = (double)n_kv(s),
        .split = j->method == MIXED_AUTO ? *s : (struct hybrid_split){0},
        .buffer_blocks = 1, /* raised to the blocks of one context */
        .packing = j->method == MIXED_PRINTED ? MINIBATCH_PAPER : MINIBATCH_BALANCED,
        .machine = r.machine};
    explain(c, s, out);
    return 0;
}
