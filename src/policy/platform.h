/* platform.h - what one machine costs for one model: the numbers that plans are made from.
 *
 * A platform is either measured (`hcache profile`, or a quick sample inside `hcache run`) or built
 * in (the paper's Table 2, by name).  Everything is per transformer layer:
 *
 *   C_tok(n)   seconds to run a whole layer over n tokens that start at position 0
 *   C_H(n)     seconds from n hidden states to n rows of KV cache: norm, [W_k;W_v], RoPE, scatter
 *   C_KV(n)    seconds of compute to put n loaded rows of K,V into the cache: verify, RoPE, scatter
 *   IO(n, B)   seconds to read n tokens' records of B bytes a token: a latency once, then a time per
 *              record and bytes / bandwidth, per storage tier
 *
 * Each C is a regression a + b*n + c*n*n, so a profile is three numbers per curve, and R² says how
 * well they fit what was measured.  I/O and compute that run at the same time slow each other down
 * by the two overlap factors (1 where they are independent, as on a GPU with direct I/O; more on a
 * CPU, where copies, checksums and GEMM share cores and DRAM).
 *
 * A device with memory of its own is fed in two steps: reading, then going up over the device's
 * bus.  Of a group of devices (docs/ARCHITECTURE.md) the costs are those of one *stage*, which has
 * a run of the layers: its ranks share each layer's compute, each brings up a share of what is
 * read, and they gather it.  Stages work beside each other, with one store.
 *
 * What restores later turn out to take is learned as a *correction* of the measured costs
 * (correction.h): one factor each for GEMM, for loading KV, and for every tier.
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
    PLATFORM_FORMAT_MAX = 16384, /* room that platform_format never exceeds */
    PLATFORM_CHUNK_TOKENS = 64,  /* of one record */
    PLATFORM_DEPTHS = 7,         /* reads in flight: 1, 2, 4, ... 64 */
    PLATFORM_GEMM_SIZES = 6,     /* rows: see platform_gemm_rows */
    PLATFORM_MAX_STAGES = 16,
};

/* seconds = a_s + b_s * n + c_s * n * n for n > 0 tokens; nothing costs nothing. */
struct cost_curve {
    double a_s, b_s, c_s;
};

/* What observed restores say about a cost that was measured: it takes 2^log2 times as long.
 * Zeros are "nothing is known"; see correction.h. */
struct platform_correction {
    double log2;        /* -3..3 */
    int n_observed;     /* observations behind it */
    double spread_log2; /* mean |surprise|: how far one observation may be off */
    int run;            /* of surprises in one direction; not kept in the text */
};

/* One place that chunks can be read from, as the restore path sees it (all its devices at
 * once). */
struct platform_tier {
    char name[24];      /* "dram", "ssd", "remote", a directory's label */
    double latency_s;   /* from a request to its first byte; paid once, requests are queued
                           deep */
    double bytes_per_s; /* sustained read bandwidth, alone */
    /* Then, to a stage over its ranks' buses together, 0: memory is unified; then, of hidden
     * states, among ranks that have brought up a share each, 0: there is one. */
    double up_bytes_per_s, gather_bytes_per_s;
    double request_s; /* per record beyond its bytes, with the queue full */
    double r2;        /* of the fit over both kinds and many lengths; 0: not known */
    /* with 2^i records in flight; 0: not measured.  For people: a restore's queue is deeper. */
    double depth_bytes_per_s[PLATFORM_DEPTHS];
    struct platform_correction correction;
};

struct platform {
    char machine[PLATFORM_TEXT_MAX]; /* who measured: host name, CPU or GPU */
    char model[PLATFORM_TEXT_MAX]; /* fingerprint, or a shape's name for built-in platforms
                                    */
    char commit[PLATFORM_TEXT_MAX];
    char date[PLATFORM_TEXT_MAX];
    int n_ranks, n_stages; /* of the devices; stages that share processors count as 1 */
    int n_layers;
    double h_bytes;  /* one token's hidden state of one layer, in state dtype */
    double kv_bytes; /* one token's K and V of one layer */
    struct cost_curve c_tok, c_h, c_kv;
    double c_tok_r2, c_h_r2, c_kv_r2; /* 0: not known */
    /* Rows that one call computes, of whole layers and of hidden states: a longer run is cut,
     * and each piece pays a_s.  0: one piece. */
    int piece_tokens, h_piece_tokens;
    double gemm_flops
        [PLATFORM_GEMM_SIZES]; /* of the K/V projection, by rows; 0: not measured */
    struct platform_correction gemm_correction; /* of C_tok, C_H, embedding and head */
    struct platform_correction kv_correction;   /* of C_KV */
    double
        cpu_share; /* of the processors that the measuring had, at its worst; 0: not known */
    double embed_s; /* embedding rows, per token */
    double head_s;  /* final norm, head and sampling for one position */
    /* Seconds until a layer's weights have come up, the mean of all layers; 0: all are resident.  A
     * pass takes at least this long for a layer, however few its rows.  It belongs to a memory
     * budget and not to the machine, so the text does not have it. */
    double weights_s;
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
    bool gated_ffn;        /* three FFN matrices (SwiGLU), not two */
    double elem_bytes;     /* of the state dtype: 2 for f16 and bf16 */
    int n_ranks, n_stages; /* devices of this machine that share the model; 0: 1 */
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
/* What a pass over new tokens costs beside its layers: their embedding, and the last one's head. */
double platform_ends_s(const struct platform *p, int64_t n_embedded);
/* What a layer's records hold of each token. */
enum platform_record { RECORD_HIDDEN, RECORD_KV };
/* Reading the records of n_tokens, without the latency; */
double platform_read_s(const struct platform *p, int tier, int64_t n_tokens,
                       enum platform_record kind);
/* then bringing them up to their stage, hidden states gathered; 0 where memory is unified. */
double platform_up_s(const struct platform *p, int tier, int64_t n_tokens,
                     enum platform_record kind);
/* Both as one lane, of one stage: the longer of the two. */
double platform_io_s(const struct platform *p, int tier, int64_t n_tokens,
                     enum platform_record kind);
/* Whether reads of this tier copy nothing, because it is DRAM of a device with unified memory. Its
 * rate says how fast a pointer is taken, and is not for people. */
bool platform_tier_in_place(const struct platform_tier *t);
/* Bytes of hidden states per second of that lane, records' own times left out. */
double platform_io_bytes_per_s(const struct platform *p, int tier);
/* Everything that a correction multiplies: 1 where nothing was learned. */
double platform_correction_factor(const struct platform_correction *c);
/* The machine as a restore finds it where others have most of its compute: that
 * takes `times` as long. */
void platform_slow_compute(struct platform *p, double times);

/* The same machine while others use it: I/O has `io_share` and compute `compute_share` (both in
 * (0, 1]) of what was measured.  Two restores at once have half of the device each. */
struct platform platform_shared(const struct platform *p, double io_share,
                                double compute_share);

/* Limits tier `tier` to bytes_per_s, as io_throttle does: one record after another, without
 * latency.  The slow-down that reading and compute cause each other falls with the rate.
 * Nothing changes where the limit is 0 (none) or the tier is slower.  A platform without tiers
 * gets one of this speed: the limit is all that is known. */
void platform_throttle(struct platform *p, int tier, double bytes_per_s);

/* The token count of gemm_flops[i]. */
int platform_gemm_rows(int i);

/* C_H(n) / IO_H(n): above 1 projecting is slower than reading, below 1 the store is the bottleneck.
 * Two machines of equal ratios have equal plans (the paper's "balanced", "I/O-rich", ...). */
double platform_compute_to_io(const struct platform *p, int tier, int64_t n_tokens);

/* The bandwidth at which reading a hidden state takes as long as projecting it
 * (paper 6.1.3). */
double platform_balance_bytes_per_s(const struct platform *p, int64_t n_tokens);

#endif
