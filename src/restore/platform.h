/* platform.h - the costs of one model on one machine: the numbers that plans are computed from.
 *
 * A platform is either measured (`hcache profile`, or a quick sample inside `hcache run`) or built
 * in (the paper's Table 2, by name). All costs are per transformer layer:
 *
 *   C_tok(n)   seconds to run a whole layer over n tokens that start at position 0
 *   C_H(n)     seconds from n hidden states to n rows of KV cache: norm, [W_k;W_v], RoPE, scatter
 *   C_KV(n)    seconds of compute to put n loaded rows of K,V into the cache: verify, RoPE, scatter
 *   IO(n, B)   seconds to read n tokens' records of B bytes a token: a latency once, then a time
 *              per record, and bytes / bandwidth, per storage tier. A packed record has fewer
 *              bytes, and unpacking it is compute beside C_H and C_KV
 *
 * Each C is a regression a + b*n + c*n*n, so a profile has three numbers per curve, and R² tells
 * how well they fit the measurements. I/O and compute that run at the same time slow each other
 * down by the two overlap factors (1 if they are independent, as on a GPU with direct I/O; more on
 * a CPU, where copies, checksums and GEMM share cores and DRAM).
 *
 * Data reaches a device with memory of its own in two steps: a read, then a copy up over the
 * device's bus. For a group of devices (docs/DEVICES.md) the costs are those of one *stage*, which
 * has a run of the layers. Its ranks share each layer's compute. Each rank brings up a share of the
 * records, and then the ranks gather the shares. Stages work beside each other, with one store.
 *
 * The times of later restores are learned as a *correction* of the measured costs (correction.h):
 * one factor each for GEMM, for loading KV, and for every tier.
 *
 * Pure: no I/O, no clock, no allocation. Any thread may call; a const platform may be shared. */
#ifndef RESTORE_PLATFORM_H
#define RESTORE_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "store/placement_price.h"

enum {
    PLATFORM_TEXT_MAX = 96, /* bytes of a name with its final zero: a SHA-256 in hex fits */
    PLATFORM_TIERS_MAX = 8,
    PLATFORM_FORMAT_MAX = 16384, /* the text of platform_format is never longer */
    PLATFORM_CHUNK_TOKENS = 64,  /* tokens of one record */
    PLATFORM_MAX_STAGES = 16,
};

/* split_s before any restore has taught it. Splits took 10 to 20 us on 2 cores at 2.6 GHz. */
#define PLATFORM_SPLIT_S 15e-6

/* Seconds = a_s + b_s * n + c_s * n * n for n > 0 tokens; 0 for n = 0. */
struct cost_curve {
    double a_s, b_s, c_s;
};

/* Correction of a measured cost by observed restores: the cost is 2^log2 times as large. All zero:
 * nothing is known. See correction.h. */
struct platform_correction {
    double log2;        /* binary logarithm of the factor, -3..3 */
    int n_observed;     /* number of observations that it was learned from */
    double spread_log2; /* mean |surprise|: how far off one observation may be */
    /* Large surprises in a row in one direction, negative for faster ones; not in the text. */
    int run;
    /* the observation of that run that is nearest to log2; not in the text */
    double run_log2;
    /* Batches of new tokens since a restore last used the cost that the factor corrects; not in the
     * text. */
    int n_unused;
};

/* One place that chunks can be read from, with the speed of all its devices together. */
struct platform_tier {
    char name[24]; /* "dram", "ssd", "remote", a directory's label */
    /* Time from a request to its first byte. Paid once, since many requests are queued. */
    double latency_s;
    double bytes_per_s; /* sustained read bandwidth, alone */
    /* up: host-to-device bandwidth of a stage over all its ranks, bytes/s; 0: unified memory.
     * gather: bandwidth at which ranks gather hidden states that they brought up in shares,
     * bytes/s; 0: one rank. */
    double up_bytes_per_s, gather_bytes_per_s;
    /* Seconds per record beyond those for its bytes, with the queue full. */
    double request_s;
    double r2; /* R^2 of the fit over both kinds and many lengths; 0: unknown */
    struct platform_correction correction;
};

struct platform {
    char machine[PLATFORM_TEXT_MAX]; /* the measured machine: host name, CPU or GPU */
    /* Fingerprint, or a shape's name for built-in platforms. */
    char model[PLATFORM_TEXT_MAX];
    char commit[PLATFORM_TEXT_MAX];
    char date[PLATFORM_TEXT_MAX];
    /* Ranks and stages of the device group. Stages that share processors count as one stage. */
    int n_ranks, n_stages;
    int n_layers;
    double h_bytes;  /* one token's hidden state of one layer, in state dtype */
    double kv_bytes; /* one token's K and V of one layer */
    struct cost_curve c_tok, c_h, c_kv;
    double c_tok_r2, c_h_r2, c_kv_r2; /* R^2 of the curves; 0: unknown */
    /* Rows that one call computes, of whole layers and of hidden states. A longer run is cut,
     * and each piece pays a_s. 0: one piece. */
    int piece_tokens, h_piece_tokens;
    /* Factor of C_tok, C_H, embedding and head. */
    struct platform_correction gemm_correction;
    struct platform_correction kv_correction; /* factor of the loading of K and V, C_KV */
    /* Least share of the processors that a measurement had; 0: unknown. */
    double cpu_share;
    /* Bytes per second that all compute threads together unpack (pack/pack.h), counted unpacked,
     * the way from memory to memory included; 0: not measured. */
    double unpack_bytes_per_s;
    /* Bytes per second that all compute threads together decrypt (store_unseal_bytes_per_s); 0: the
     * store is not encrypted. Measured at each start, and not in the text. */
    double unseal_bytes_per_s;
    /* Stored bytes of a packed record over its plain bytes, for plans that do not look at records
     * (plan_layers_uniform); 0: records are not packed. The code that plans sets it. The text
     * leaves it out. */
    double packed_share;
    /* Seconds until the first read of a restore is handed over, beyond its tier's latency: threads
     * wake up. Negative if the latency was measured on a busy machine and is less now. Restores
     * teach it (correction.h). Each process learns it anew, so the text leaves it out. */
    double start_s;
    /* Seconds of compute for each split of a layer (plan.h): the run of chunks after it is handed
     * over and computed on its own. Restores teach it, as they teach start_s. */
    double split_s;
    /* Ratios of the time of a whole restore to the time predicted from its lanes' measured speeds:
     * they cover the pauses that the prediction lacks. [0] is for other plans, [1] for balanced
     * ones (platform_is_balanced). A ratio counts as at least 1 and at most 2. Restores teach them.
     * The profile's text does not hold them. */
    struct platform_correction pause_correction[2];
    double embed_s; /* seconds per token to look up embedding rows */
    double head_s;  /* seconds of final norm, head and sampling for one position */
    /* Seconds until a layer's weights have come up, the mean of all layers; 0: all are resident.
     * A pass takes at least this long per layer, for any number of rows. It belongs to a memory
     * budget and not to the machine, so the text leaves it out. */
    double weights_s;
    /* GEMM runs as if n were rounded up to a multiple of this; 1: no rounding. */
    int tile_tokens;
    double io_overlap;   /* >= 1: I/O takes this many times longer while compute runs */
    double comp_overlap; /* >= 1: compute takes this many times longer while I/O runs */
    int n_tiers;
    struct platform_tier tier[PLATFORM_TIERS_MAX]; /* [0] is the default tier */
};

/* The part of a model that a built-in platform needs. The caller fills it from a model's config. */
struct platform_shape {
    const char *name;
    /* d_ffn: width of the MLPs of one token, of all its experts together */
    int n_layers, d_model, n_heads, n_kv_heads, d_head, d_ffn, n_vocab;
    bool gated_ffn;        /* three FFN matrices (SwiGLU), not two */
    double elem_bytes;     /* bytes of an element of the state dtype: 2 for f16 and bf16 */
    int n_ranks, n_stages; /* devices of this machine that share the model; 0 counts as 1 */
    /* Each device is on a machine of its own, with a link of this speed in each direction; 0: all
     * are on one machine. */
    double link_bytes_per_s;
    /* Recurrent layers, and the columns of all products of one of them with d_model-wide rows:
     * in a replay, and in the whole layer without its MLP. */
    int n_recurrent, replay_cols, recurrent_cols;
};

/* Makes a platform with no measured costs, no tiers, overlap factors 1 and tile 1, to be filled
 * with measurements. */
void platform_init(struct platform *p);

/* Returns ERR_FORMAT, with key and value in the message, for an impossible number: NaN,
 * infinite, negative, zero where zero makes no sense, an overlap factor below 1, no layers, no
 * tier. */
int platform_validate(const struct platform *p, struct err *e);

/* Parses flat `key = value` text, one a line, `#` comments. Unknown, missing, repeated or
 * malformed keys are errors that name their line. Validates the result. */
int platform_parse(const char *text, size_t n, struct platform *out, struct err *e);
/* Writes the text (with final zero, cut to cap) and returns its length as snprintf does.
 * parse(format(p)) == p, bit for bit. */
int platform_format(const struct platform *p, char *out, size_t cap);

/* Returns 0 if the profile was made for this machine and model, else ERR_MISMATCH, which names
 * the difference. */
int platform_check(const struct platform *p, const char *machine, const char *model,
                   struct err *e);

/* ---- costs, in seconds per layer ---- */

double cost_curve_at(const struct cost_curve *c, double n_tokens);

/* Return the cost of a restoration method for n_tokens, rounded up to tiles. */
double platform_tok_s(const struct platform *p, int64_t n_tokens);
double platform_h_s(const struct platform *p, int64_t n_tokens);
double platform_kv_s(const struct platform *p, int64_t n_tokens);
/* Returns the cost of prefilling n_new tokens of one layer after n_past tokens that are in the
 * cache. */
double platform_prefill_s(const struct platform *p, int64_t n_past, int64_t n_new);
/* Returns the cost of the parts of a pass that are not layers: embedding n_embedded new tokens, and
 * the head for the last token. */
double platform_ends_s(const struct platform *p, int64_t n_embedded);
/* The kind of a layer's record. */
enum platform_record { RECORD_HIDDEN, RECORD_KV };
/* Returns the time to read the records of n_tokens, without the latency. */
double platform_read_s(const struct platform *p, int tier, int64_t n_tokens,
                       enum platform_record kind);
/* Returns the same for records of which packing left `share` of their bytes, 0 to 1. */
double platform_stored_read_s(const struct platform *p, int tier, int64_t n_tokens,
                              enum platform_record kind, double share);
/* Returns the compute time to unpack records to n_bytes; 0 if the speed was not measured. */
double platform_unpack_s(const struct platform *p, double n_bytes);
/* Returns the seconds to decrypt n_bytes as they are stored; 0: the store is not encrypted. */
double platform_unseal_s(const struct platform *p, double n_bytes);
/* Returns the time to bring these records up to their stage, gathering hidden states included; 0
 * where memory is unified. */
double platform_up_s(const struct platform *p, int tier, int64_t n_tokens,
                     enum platform_record kind);
/* Returns the longer of both times, platform_read_s and platform_up_s. */
double platform_io_s(const struct platform *p, int tier, int64_t n_tokens,
                     enum platform_record kind);
/* Returns whether reads of this tier copy nothing, because it is DRAM of a device with unified
 * memory. Its bandwidth then only tells how fast pointers are handed over, and is not shown to
 * people. */
bool platform_tier_in_place(const struct platform_tier *t);
/* Returns the bandwidth of the slower of the two, read or bus, for hidden states in bytes/s,
 * without the time per record. */
double platform_io_bytes_per_s(const struct platform *p, int tier);
/* Returns whether the tier itself limits platform_io_bytes_per_s, and not the bus. */
bool platform_is_store_bound(const struct platform *p, int tier);
/* Returns the factor by which a correction multiplies costs; 1: nothing was learned. */
double platform_correction_factor(const struct platform_correction *c);
/* Returns whether both lanes of a restore work for most of its time. */
bool platform_is_balanced(double io_s, double compute_s, double restore_s);
/* Returns the factor of pauses, 1 to 2, of balanced plans or of others. */
double platform_pause_factor(const struct platform *p, bool balanced);
/* Changes *p to the machine that a restore sees beside other work: compute takes `times` as
 * long. */
void platform_slow_compute(struct platform *p, double times);

/* Returns the same machine while others use it: I/O has `io_share` and compute `compute_share`
 * (both in (0, 1]) of the measured speed. Two restores at once have half of the device each. */
struct platform platform_shared(const struct platform *p, double io_share,
                                double compute_share);

/* Limits tier `tier` to bytes_per_s, as io_throttle does: one record after another, without
 * latency. The slow-down that reading and compute cause each other falls with the rate. Nothing
 * changes if the limit is 0 (none), the tier is slower, or the platform is not measured (n_layers
 * 0). A measured platform without tiers gets one of this speed, since the limit is all that is
 * known. */
void platform_throttle(struct platform *p, int tier, double bytes_per_s);

/* Returns the bandwidth at which reading a hidden state takes as long as projecting it (paper
 * 6.1.3). */
double platform_balance_bytes_per_s(const struct platform *p, int64_t n_tokens);

/* Sets the prices of held state that follow from the platform. */
void platform_price(const struct platform *p, struct placement_price *out);

#endif
