/* platform.h - what one machine costs for one model: the numbers that plans are made from.
 *
 * A platform is either measured (`hcache profile`, or a quick sample inside `hcache run`)
 * or built in (the paper's Table 2, by name).  Everything is per transformer layer:
 *
 *   C_tok(n)  seconds to run a whole layer over n tokens that start at position 0
 *   C_H(n)    seconds from n hidden states to n rows of KV cache: norm, [W_k;W_v], RoPE,
 * scatter C_KV(n)   seconds of compute to put n loaded rows of K,V into the cache: verify,
 * RoPE, scatter IO(bytes) latency once, then bytes / bandwidth, per storage tier
 *
 * Each C is a regression a + b*n + c*n*n, so a profile is three numbers per curve.  I/O and
 * compute that run at the same time slow each other down by the two overlap factors (1
 * where they are independent, as on a GPU with direct I/O; more on a CPU, where copies,
 * checksums and GEMM share cores and DRAM).
 *
 * Pure: no I/O, no clock, no allocation.  Any thread may call; a const platform may be
 * shared. */
#ifndef POLICY_PLATFORM_H
#define POLICY_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    PLATFORM_TEXT_MAX = 96, /* bytes of a name with its final zero: a SHA-256 in hex fits */
    PLATFORM_TIERS_MAX = 8,
    PLATFORM_FORMAT_MAX = 8192, /* room that platform_format never exceeds */
};

/* seconds = a_s + b_s * n + c_s * n * n for n > 0 tokens; nothing costs nothing. */
struct cost_curve {
    double a_s, b_s, c_s;
};

/* One place that chunks can be read from, as the restore path sees it (all its devices at
 * once). */
struct platform_tier {
    char name[24];      /* "dram", "ssd", "remote", a directory's label */
    double latency_s;   /* from a request to its first byte; paid once, requests are queued
                           deep */
    double bytes_per_s; /* sustained read bandwidth, alone */
};

struct platform {
    char machine[PLATFORM_TEXT_MAX]; /* who measured: host name, CPU or GPU */
    char model[PLATFORM_TEXT_MAX]; /* fingerprint, or a shape's name for built-in platforms
                                    */
    char commit[PLATFORM_TEXT_MAX];
    char date[PLATFORM_TEXT_MAX];
    int n_layers;
    double h_bytes;  /* one token's hidden state of one layer, in state dtype */
    double kv_bytes; /* one token's K and V of one layer */
    struct cost_curve c_tok, c_h, c_kv;
    double embed_s;      /* embedding rows, per token */
    double head_s;       /* final norm, head and sampling for one position */
    int tile_tokens;     /* GEMM runs as if n were rounded up to this; 1 where it does not
                            matter */
    double io_overlap;   /* >= 1: I/O takes this many times longer while compute runs */
    double comp_overlap; /* >= 1: compute takes this many times longer while I/O runs */
    int n_tiers;
    struct platform_tier tier[PLATFORM_TIERS_MAX]; /* [0] is the default tier */
};

/* What a built-in platform needs to know of a model (the caller fills it from a model's
 * config). */
struct platform_shape {
    const char *name;
    int n_layers, d_model, n_heads, n_kv_heads, d_head, d_ffn, n_vocab;
    bool gated_ffn;    /* three FFN matrices (SwiGLU), not two */
    double elem_bytes; /* of the state dtype: 2 for f16 and bf16 */
};

/* A platform with no costs, no tiers, overlap factors 1 and tile 1: fill in what was
 * measured. */
void platform_init(struct platform *p);

/* One of the paper's machines by name ("a100-4ssd", "a100-dram", "h800-dram", ...; see
 * platform_builtin_name) for a model of this shape.  ERR_NOT_FOUND lists the names. */
int platform_builtin(const char *name, const struct platform_shape *shape,
                     struct platform *out, struct err *e);
/* The i-th built-in name, NULL past the end. Static strings. */
const char *platform_builtin_name(int i);

/* ERR_FORMAT, with key and value in the message, where a number cannot be: NaN, infinite,
 * negative, zero where zero makes no sense, an overlap factor below 1, no layers, no tier.
 */
int platform_validate(const struct platform *p, struct err *e);

/* Flat `key = value` text, one a line, `#` comments; unknown, missing, repeated or
 * malformed keys are errors with their line.  The result has been validated. */
int platform_parse(const char *text, size_t n, struct platform *out, struct err *e);
/* Writes the text (with final zero, cut to cap) and returns its length as snprintf does.
 * parse(format(p)) == p, bit for bit. */
int platform_format(const struct platform *p, char *out, size_t cap);

/* 0 where the profile was made for this machine and model, else ERR_MISMATCH saying which
 * differs. */
int platform_check(const struct platform *p, const char *machine, const char *model,
                   struct err *e);

/* ---- costs, in seconds per layer ---- */

double cost_curve_at(const struct cost_curve *c, double n_tokens);

/* The tile-rounded cost of each restoration method for n_tokens. */
double platform_tok_s(const struct platform *p, int64_t n_tokens);
double platform_h_s(const struct platform *p, int64_t n_tokens);
double platform_kv_s(const struct platform *p, int64_t n_tokens);
/* Prefilling n_new tokens of one layer behind n_past tokens that are in the cache. */
double platform_prefill_s(const struct platform *p, int64_t n_past, int64_t n_new);
/* Reading n_bytes, without the latency. */
double platform_io_s(const struct platform *p, int tier, double n_bytes);

/* The bandwidth at which reading a hidden state takes as long as projecting it
 * (paper 6.1.3). */
double platform_balance_bytes_per_s(const struct platform *p, int64_t n_tokens);

#endif
