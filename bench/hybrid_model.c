/* hybrid_model.c - see hybrid_model.h. */
#include "bench/hybrid_model.h"

#include <math.h>
#include <stddef.h>

#include "restore/profile.h"
#include "sim/machines.h"

enum { BLOCK = 64 };

const char *const hybrid_arm_names[HYBRID_ARMS] = {"kv",   "act",   "tokens:0.5",
                                                   "half", "paper", "auto"};

int hybrid_setup_init(struct hybrid_setup *s, const char *shape, const char *platform,
                      struct err *err)
{
    int rc = config_shape(&s->shape, shape, err);
    if (rc != 0)
        return rc;
    struct platform_shape ps = profile_shape(shape, &s->shape, 2);
    return machine_platform(platform, &ps, &s->p, err);
}

/* --- one layer -------------------------------------------------------------------------------- */

static double link_rate(const struct hybrid_setup *s)
{
    const struct platform_tier *t = &s->p.tier[0];
    return fmin(t->bytes_per_s, t->up_bytes_per_s);
}

static double x_of_platform(const struct hybrid_setup *s)
{
    return s->p.c_h.b_s * link_rate(s) / s->p.kv_bytes;
}

double hybrid_x(const struct hybrid_setup *s)
{
    return s->x > 0 ? s->x : x_of_platform(s);
}

/* Returns the factor by which matrix products take longer than on the setup's platform: its x is
 * replaced by the setup's. */
static double slower(const struct hybrid_setup *s)
{
    return hybrid_x(s) / x_of_platform(s);
}

static double layer_bytes(const struct hybrid_setup *s)
{
    const struct model_config *c = &s->shape;
    double q = (double)c->n_heads * c->d_head, kv = 2.0 * c->n_kv_heads * c->d_head;
    return 2 * c->n_embd * (2 * q + kv + (c->mlp_gated ? 3.0 : 2.0) * c->n_ffn);
}

static double embedding_bytes(const struct hybrid_setup *s)
{
    return 2.0 * s->shape.vocab_size * s->shape.n_embd;
}

/* Computes the room for one layer's blocks. The device also holds embeddings and the weights of
 * three layers: two in use and one arriving. */
static struct hybrid_memory memory_of(const struct hybrid_setup *s)
{
    double n = s->shape.n_layers, w = layer_bytes(s);
    double device = s->device_bytes - embedding_bytes(s) - 3 * w;
    double host = s->host_bytes - n * w;
    return (struct hybrid_memory){fmax(device, 0) / n, fmax(host, 0) / n};
}

static struct hybrid_machine machine_of(const struct hybrid_setup *s, int n_tokens)
{
    const struct platform *p = &s->p;
    double read_s = p->c_kv.b_s / 2; /* reads a token's K and V once from device memory */
    return (struct hybrid_machine){
        .weights_s = layer_bytes(s) / link_rate(s),
        .forward_s = s->batch * (p->c_tok.b_s * slower(s) + n_tokens * read_s),
        .project = {0, BLOCK * p->c_h.b_s * slower(s)},
        .link = {0, 1 / link_rate(s)},
        .kv_bytes = BLOCK * p->kv_bytes,
        .act_bytes = BLOCK * p->h_bytes,
        .n_minibatches = 1};
}

/* --- arms ------------------------------------------------------------------------------------- */

static int64_t act_by_algorithm_1(const struct hybrid_machine *m,
                                  const struct hybrid_memory *mem, int64_t n_blocks)
{
    struct hybrid_shares shares;
    hybrid_paper(m, mem, &shares);
    double device = floor(mem->device_bytes / m->act_bytes);
    double host = (double)n_blocks - device;
    if (host <= 0)
        return n_blocks;
    return llround(device + host * shares.act_host / (shares.act_host + shares.kv_host));
}

/* Models half of each context as token ids, which are computed again in each layer. */
static void recompute_half(const struct hybrid_setup *s, int n_tokens, int64_t n_blocks,
                           struct hybrid_machine *m, const struct hybrid_memory *mem,
                           struct hybrid_split *out)
{
    double n = n_tokens / 2.0;
    m->forward_s += s->batch * slower(s) * (s->p.c_tok.b_s * n + s->p.c_tok.c_s * n * n);
    hybrid_place(m, mem, n_blocks / 2, 0, out);
}

bool hybrid_step(const struct hybrid_setup *s, enum hybrid_arm arm, int n_tokens,
                 struct hybrid_step *out)
{
    struct hybrid_machine m = machine_of(s, n_tokens);
    struct hybrid_memory mem = memory_of(s);
    int64_t n = (int64_t)s->batch * ((n_tokens + BLOCK - 1) / BLOCK);
    *out = (struct hybrid_step){0};
    if (arm == HYBRID_AUTO)
        hybrid_choose(&m, &mem, n, &out->split);
    else if (arm == HYBRID_TOKENS)
        recompute_half(s, n_tokens, n, &m, &mem, &out->split);
    else
        hybrid_place(&m, &mem, n,
                     arm == HYBRID_KV     ? 0
                     : arm == HYBRID_ACT  ? n
                     : arm == HYBRID_HALF ? n / 2
                                          : act_by_algorithm_1(&m, &mem, n),
                     &out->split);
    const struct hybrid_split *b = &out->split;
    out->step_s = b->seconds * s->shape.n_layers;
    out->link_bytes = s->shape.n_layers *
                      ((double)b->act_host * m.act_bytes + (double)b->kv_host * m.kv_bytes);
    out->compute_share = b->seconds > 0 ? b->compute_s / b->seconds : 0;
    return b->fits;
}

double hybrid_throughput(const struct hybrid_setup *s, enum hybrid_arm arm)
{
    const struct platform *p = &s->p;
    struct hybrid_step step;
    double n = s->prompt;
    if (!hybrid_step(s, arm, s->prompt + s->tokens, &step) ||
        !hybrid_step(s, arm, s->prompt + s->tokens / 2, &step))
        return 0;
    double compute = s->batch * slower(s) * (p->c_tok.b_s * n + p->c_tok.c_s * n * n);
    double prefill = s->shape.n_layers * fmax(layer_bytes(s) / link_rate(s), compute);
    return s->batch * s->tokens / (prefill + s->tokens * step.step_s);
}
