/* machines.c - the paper's machines (Table 2), calibrated from the paper's own numbers.
 *
 * None of these numbers was measured here. The whole calibration:
 * - I/O: an SSD reads 6.9 GB/s (6.2.2). Four saturate the link: 26 GB/s effective of a nominal
 *   32, so a link is taken at 26/32 of its nominal rate, for DRAM too.
 * - Projection: hidden states balance at 24 GB/s for Llama-2-7B and 21 GB/s for 13B (6.1.3). At
 *   balance F = 2 * d * BW for f16 MHA, which is 63.0 % (d = 4096) and 68.9 % (d = 5120) of 312
 *   TFLOP/s. The share is linear in d between them and constant beyond them; other GPUs have the
 *   same shares. A whole layer's GEMMs are taken at the same speed.
 * - Attention of a recomputation, causal, runs at 78 % of that: then a 7B recomputation's speed
 *   drops by 28 % from 1K to 16K tokens, as 6.2.3 says.
 * - OPT-30B on four A100s balances at 37 GB/s (6.1.3), 42.5 % of 4 x 312 TFLOP/s. Table 3's 40 H
 *   + 8 RE then needs 15.4 to 16.7 GB/s of effective reads for the four SSDs together, not 26:
 *   `a100x4-4ssd` has 16.
 * - Each of several devices (platform_shape) has such a link. Ranks share products and buses
 *   evenly. They exchange over NVLink if the machine has it, else over the link, at its nominal
 *   rate in one direction. A ring sends each byte (n - 1) / n times, twice for a sum, and a
 *   layer has two sums. Host memory is read at 200 GB/s (eight channels), which binds only above
 *   seven links.
 *
 * Devices on machines of their own (platform_shape.link_bytes_per_s) each have such disks, and
 * exchange as hcache's processes do (docs/DEVICES.md). 20 us for the latency of a gather is a guess
 * for TCP.
 *
 * GPU kernels of small sizes are not modelled, except the 128-token tile of their GEMMs. */
#include "sim/machines.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct machine {
    const char *name;
    double flops, link_bytes_per_s, hbm_bytes_per_s;
    double gemm_share;       /* share of peak FLOP/s; 0: from the model's width */
    double ssd_bytes_per_s;  /* read bandwidth of each SSD */
    double peer_bytes_per_s; /* bandwidth between two devices */
};

static const double LINK_SHARE = 26.0 / 32.0, ATTENTION_SHARE = 0.78;
static const double DRAM_BYTES_PER_S = 200e9, GATHER_S = 20e-6;

static const struct machine machines[] = {
    {"a100", 312e12, 32e9, 1555e9, 0, 6.9e9, 300e9},
    {"a30", 165e12, 32e9, 933e9, 0, 6.9e9, 100e9},
    {"4090", 330e12, 32e9, 1008e9, 0, 6.9e9, 32e9},
    {"l20", 120e12, 32e9, 864e9, 0, 6.9e9, 32e9},
    {"h800", 990e12, 64e9, 3350e9, 0, 6.9e9, 200e9},
    {"a100x4", 4 * 312e12, 4 * 32e9, 4 * 1555e9, 0.425, 4e9, 300e9},
};

static const char *const stores[] = {"dram", "1ssd", "2ssd", "3ssd", "4ssd"};

enum {
    N_MACHINES = sizeof machines / sizeof *machines,
    N_STORES = sizeof stores / sizeof *stores
};

static const char *const names[] = {
    "a100-dram", "a100-1ssd",   "a100-2ssd",   "a100-3ssd",   "a100-4ssd",   "a30-dram",
    "a30-1ssd",  "a30-2ssd",    "a30-3ssd",    "a30-4ssd",    "4090-dram",   "4090-1ssd",
    "4090-2ssd", "4090-3ssd",   "4090-4ssd",   "l20-dram",    "l20-1ssd",    "l20-2ssd",
    "l20-3ssd",  "l20-4ssd",    "h800-dram",   "h800-1ssd",   "h800-2ssd",   "h800-3ssd",
    "h800-4ssd", "a100x4-dram", "a100x4-1ssd", "a100x4-2ssd", "a100x4-3ssd", "a100x4-4ssd",
};
_Static_assert(sizeof names / sizeof *names == N_MACHINES * N_STORES, "a name per pair");

static double gemm_share(const struct machine *m, int d_model)
{
    if (m->gemm_share > 0)
        return m->gemm_share;
    const double at_7b = 2 * 4096 * 24e9 / 312e12, at_13b = 2 * 5120 * 21e9 / 312e12;
    double x = (d_model - 4096) / 1024.0;
    return at_7b + (at_13b - at_7b) * fmin(1, fmax(0, x));
}

static double store_bytes_per_s(const struct machine *m, int n_ssd)
{
    return n_ssd == 0 ? DRAM_BYTES_PER_S : n_ssd * m->ssd_bytes_per_s;
}

static int at_least_1(int n)
{
    return n > 1 ? n : 1;
}

struct machine_gathers machine_gathers(const struct platform_shape *s)
{
    double n = at_least_1(s->n_ranks),
           numbers = 2.0 * s->d_model + s->d_ffn + (double)s->n_heads * s->d_head;
    struct machine_gathers g = {0};
    if (n == 1 || s->link_bytes_per_s == 0)
        return g;
    g.n = 4;
    g.token_bytes = numbers * sizeof(float) * (n - 1) / n;
    g.token_s = g.token_bytes / s->link_bytes_per_s;
    g.latency_s = g.n * GATHER_S;
    return g;
}

static void fill_costs(const struct machine *m, const struct platform_shape *s,
                       struct platform *p)
{
    double d = s->d_model, q = (double)s->n_heads * s->d_head,
           kv = 2.0 * s->n_kv_heads * s->d_head;
    int n_ranks = at_least_1(s->n_ranks);
    double flops = n_ranks * m->flops * gemm_share(m, s->d_model);
    double memory = n_ranks * m->hbm_bytes_per_s;
    /* Time of a byte that ranks exchange. Each rank sends the bytes that the others lack. */
    double peer_s = (n_ranks - 1.0) / n_ranks /
                    (s->link_bytes_per_s > 0 ? s->link_bytes_per_s : m->peer_bytes_per_s);
    struct machine_gathers g = machine_gathers(s);
    double recurrent = s->n_recurrent / (double)s->n_layers; /* their share of the layers */
    double layer_weights = (1 - recurrent) * (2 * d * q + d * kv) +
                           recurrent * d * s->recurrent_cols +
                           (s->gated_ffn ? 3 : 2) * d * s->d_ffn;
    p->h_bytes = d * s->elem_bytes;
    p->kv_bytes = kv * s->elem_bytes;
    p->c_h.b_s = 2 * d * (s->n_recurrent > 0 ? s->replay_cols : kv) / flops;
    p->c_tok.a_s = g.latency_s;
    p->c_tok.b_s = 2 * layer_weights / flops +
                   (g.n > 0 ? g.token_s : 2 * 2 * p->h_bytes * peer_s);
    p->c_tok.c_s = (1 - recurrent) * 2 * q /
                   (flops * ATTENTION_SHARE); /* QK and AV, half of the n*n pairs */
    p->c_kv.b_s = 2 * p->kv_bytes / memory;
    p->head_s = d * s->n_vocab * s->elem_bytes / memory;
    p->tier[0].gather_bytes_per_s = n_ranks > 1 ? 1 / peer_s : 0;
    p->tile_tokens = 128;
}

static int unknown_name(const char *name, struct err *e)
{
    char list[256];
    int n = 0;
    for (int i = 0; i < N_MACHINES; i++)
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%s", i ? ", " : "",
                      machines[i].name);
    return err_set(
        e, ERR_NOT_FOUND,
        "no platform '%.40s'; built in are a machine (%s) with -dram or -1ssd to -4ssd",
        name, list);
}

static int check_shape(const struct platform_shape *s, struct err *e)
{
    const struct {
        const char *name;
        double value;
    } dims[] = {{"n_layers", s->n_layers},    {"d_model", s->d_model},
                {"n_heads", s->n_heads},      {"n_kv_heads", s->n_kv_heads},
                {"d_head", s->d_head},        {"d_ffn", s->d_ffn},
                {"elem_bytes", s->elem_bytes}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        if (!(dims[i].value > 0))
            return err_set(e, ERR_USAGE, "platform: the model's %s is %g", dims[i].name,
                           dims[i].value);
    return 0;
}

int machine_platform(const char *name, const struct platform_shape *shape,
                     struct platform *out, struct err *e)
{
    int at = 0;
    while (at < N_MACHINES * N_STORES && strcmp(names[at], name) != 0)
        at++;
    if (at == N_MACHINES * N_STORES)
        return unknown_name(name, e);
    int rc = check_shape(shape, e);
    if (rc != 0)
        return rc;
    const struct machine *m = &machines[at / N_STORES];
    int n_ssd = at % N_STORES;
    platform_init(out);
    snprintf(out->machine, sizeof out->machine, "%s", name);
    snprintf(out->model, sizeof out->model, "%s", shape->name);
    snprintf(out->commit, sizeof out->commit, "built-in");
    snprintf(out->date, sizeof out->date, "EuroSys 2025");
    out->n_layers = shape->n_layers;
    out->n_ranks = at_least_1(shape->n_ranks);
    out->n_stages = at_least_1(shape->n_stages);
    fill_costs(m, shape, out);
    out->n_tiers = 1;
    snprintf(out->tier[0].name, sizeof out->tier[0].name, "%s", stores[n_ssd]);
    out->tier[0].bytes_per_s = store_bytes_per_s(m, n_ssd);
    out->tier[0].up_bytes_per_s = m->link_bytes_per_s * LINK_SHARE * out->n_ranks;
    int n = out->n_ranks * out->n_stages;
    if (shape->link_bytes_per_s > 0 && n > 1) {
        /* A rank gets its heads of K and V from all disks, one in n of which is its own. */
        double link = shape->link_bytes_per_s * n / (n - 1);
        out->tier[0].bytes_per_s *= n;
        out->tier[0].up_bytes_per_s = fmin(out->tier[0].up_bytes_per_s,
                                           link * out->n_ranks);
    }
    out->tier[0].latency_s = n_ssd == 0 ? 10e-6 : 100e-6;
    return platform_validate(out, e);
}
