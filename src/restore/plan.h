/* plan.h - which layers to recompute, which to load as hidden states, which as KV.
 *
 * A sequence that lost its KV cache gets it back layer by layer, each layer by one method:
 * - R: recompute from the tokens. The R layers are a prefix. r of them cost r - 1 whole layers
 *   and one projection: the last one needs only its K and V.
 * - H: read the hidden states (the layer's input), then norm, project to K and V, RoPE.
 * - K: read K and V, then verify, RoPE, scatter.
 *
 * One I/O lane and one compute lane work at the same time. A layer's compute starts when its
 * read has arrived. Reads may be issued in any order; compute takes the layers whose reads have
 * arrived. With `fused`, layer i of the new tokens is prefilled as soon as layers 0..i are
 * restored, and the predicted time is that of the whole pipeline.
 *
 *   I/O      [H4 ][H5 ][H6 ][H7 ][K8    ][K9    ]
 *   compute  [R0      ][R1      ][r2][H4][H5]..[H6][H7][K8][K9]
 *
 * plan_make (auto) searches assignments and read orders exactly: see docs/RESTORATION.md for the
 * argument. Layer 0's hidden state is the embedding row (h_free): 'H' there reads nothing and is
 * the same work as r = 1, so auto reports it as R.
 *
 * In a device group with several stages, each stage restores its own layers beside the others:
 * plan_stages.c.
 *
 * Use: fill a plan_request (by hand from measurements, or plan_request_from_platform), then call
 * plan_make. The main users are the restore path (auto, forced plans) and `bench restore`.
 *
 * Pure: no I/O, no clock, no allocation. struct plan is about 2 KiB, in the caller's memory. */
#ifndef RESTORE_PLAN_H
#define RESTORE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/layer_set.h"
#include "restore/platform.h"

enum { PLAN_MAX_LAYERS = 256, PLAN_MAX_STAGES = PLATFORM_MAX_STAGES };

/* Cost of restoring one layer by each method, for the tokens of this request: seconds on the
 * resource when it runs alone. Latency is in the request. A cleared flag marks an impossible
 * method, whose numbers are ignored. */
struct plan_layer {
    double io_h_s, io_kv_s; /* read of the hidden states; read of K and V */
    /* With several stages: time to copy the record over the bus of the layer's stage, after the
     * read. */
    double up_h_s, up_kv_s;
    double comp_h_s, comp_kv_s; /* compute after the read */
    /* With several ranges: the part of comp_h_s that loads KV, for tokens without hidden states,
     * and that unpacks; and the part of comp_kv_s that projects hidden states, for tokens without
     * KV. */
    double h_load_s, kv_project_s;
    /* With several ranges: the number of splits (see plan_range) whose cost comp_h_s and comp_kv_s
     * include. */
    int h_splits, kv_splits;
    double comp_tok_s; /* compute time to recompute the whole layer */
    /* Compute time of norm and K, V projection only: the last recomputed layer. */
    double comp_tok_last_s;
    /* Stored bytes per token, for the budget and the reason text. */
    double h_bytes, kv_bytes;
    bool has_h, has_kv; /* records exist for every token of the request */
    bool can_recompute; /* false for truncated contexts: their past is gone */
    bool h_free; /* layer 0: hidden states are embedding rows, without record or read */
};

enum plan_mode {
    PLAN_AUTO,      /* the fastest of all assignments and orders */
    PLAN_HIDDEN,    /* every layer is restored from hidden states (the paper's HCache-O) */
    PLAN_KV,        /* every layer is restored from KV (KV offload, AttentionStore) */
    PLAN_RECOMPUTE, /* every layer is recomputed from tokens */
    /* The best mixture without hidden states (the paper's naive hybrid). */
    PLAN_KV_RECOMPUTE,
    PLAN_PAPER,         /* the closed form of the paper's section 4.1.2, with its ceiling */
    PLAN_FORCED_LAYERS, /* forced_layers: a letter per layer, for tests */
};

/* Sliding-window attention: `layers` see only the last `tokens` positions.  In these layers a
 * restore brings back only the tokens that the token after the history sees.  To recompute the
 * layer that lies d layers below the last recomputed one, d windows of tokens are computed if the
 * d layers above it all have the window, else all tokens.  tokens 0: no window. */
struct plan_window {
    struct layer_set layers;
    int64_t tokens;
};

struct plan_request {
    int n_layers;                   /* 1..PLAN_MAX_LAYERS */
    const struct plan_layer *layer; /* [n_layers] */
    /* Stages that restore their layers beside each other (pipeline.h); 0 counts as 1. */
    int n_stages;
    /* [n_layers] seconds of compute per layer to prefill the new tokens; NULL: no prefill. */
    const double *prefill_s;
    /* The prefill overlaps with the restore. If false, prefill starts when all is restored. */
    bool fused;
    /* plan_best_prefix: at most this many new tokens are fused, the others are prefilled after
     * the restore; 0: all are fused. */
    int64_t fused_tokens;
    /* plan_best_prefix: tokens before the first range, which the device holds (whole chunks). The
     * tokens that are computed attend to them, too. */
    int64_t n_held;
    struct plan_window window; /* needs n_tokens and `platform` */
    double head_s;             /* time after the last prefill: final norm and head */
    /* plan_best_prefix: the compute of restores, and prefill, take this many times as long,
     * because decodes beside them use the rest of the machine; 0 counts as 1. */
    double comp_slow, prefill_slow;
    /* Time from issuing a read to its first byte. Paid once, since requests overlap. */
    double io_latency_s;
    /* >= 1: I/O takes this many times longer while compute runs; 0 counts as 1 */
    double io_overlap;
    /* >= 1: compute takes this many times longer while I/O runs; 0 counts as 1 */
    double comp_overlap;
    /* auto: reads may take this many times longer or shorter than the layers say. auto takes a
     * mixture only if its predicted gain exceeds this doubt (plan_prefers_single). 0 and 1: reads
     * take the given time. */
    double spread;
    double budget_bytes_per_token; /* auto stores at most this many bytes; 0: no limit */

    /* A mode other than auto uses the existing records and recomputes the rest: a layer without the
     * wanted kind takes the other one, and a layer without any record is recomputed, with every
     * layer before it. */
    enum plan_mode mode;
    const char *forced_layers; /* [n_layers] of R, H, K; borrowed for the call */

    /* Costs as functions of the token count. */
    const struct platform *platform;
    int64_t n_tokens; /* history to restore */
    int tier;         /* tier of `platform` that has the records */
};

struct plan {
    enum plan_mode mode;
    int n_layers;
    /* A letter per layer, RRHHKK, with final zero. */
    char method[PLAN_MAX_LAYERS + 1];
    int n_r, n_h, n_k;
    int n_io; /* layers that are read; io_order[0, n_io) is their order */
    int16_t io_order[PLAN_MAX_LAYERS];

    /* Makespan: the restore, and prefill and head if the request has them. */
    double predicted_s;
    double restore_s;              /* time when the last layer's K and V are in place */
    double io_busy_s, comp_busy_s; /* time that each lane works, slow-down included */
    double bubble; /* idle share of the busiest lane over predicted_s, 0..1 */
    double stored_bytes_per_token;
    /* auto: the predicted gain of the mixture that lost to this single method, because the gain is
     * below the doubt of predictions; 0: no mixture lost. */
    double passed_gain_s;
    /* auto: the search was complete (optimal if overlap factors are 1, up to passed_gain_s). */
    bool exact;
    char reason[192]; /* one line for people and for `run --json` */
    int n_r_added;    /* layers recomputed only because they, or later ones, lack records */
};

/* Makes a plan. Returns 0; ERR_USAGE for a request that makes no sense (letters for another number
 * of layers, R after H, numbers that are negative or NaN; the message names the fault); or
 * ERR_NOT_FOUND if a layer without records cannot be recomputed. */
int plan_make(const struct plan_request *req, struct plan *out, struct err *e);

/* Returns whether auto takes the fastest single method, whose predicted time is single_s, instead
 * of the best mixture, whose predicted time is mixture_s. It does unless the mixture's gain is
 * larger than the error of predictions. That error is the root of `spread`, because about half of a
 * mixture's time depends on the disk. docs/RESTORATION.md has the measurement. */
bool plan_prefers_single(double mixture_s, double single_s, double spread);

/* Parses "auto", "hidden", "kv", "recompute", "kv+recompute", "paper" or a string of R, H, K. Sets
 * mode; forced_layers then points into `text`. */
int plan_mode_parse(const char *text, struct plan_request *req, struct err *e);
const char *plan_mode_name(enum plan_mode mode);

/* Fills the descriptors of a model with equal layers, from a platform. layer[0].h_free is set,
 * all records count as present, and all layers may be recomputed; the caller clears the flags
 * that do not hold. */
void plan_layers_uniform(const struct platform *p, int tier, int64_t n_tokens, int n_layers,
                         struct plan_layer *layer);
/* Fills the whole request for n_history tokens to restore and n_new to prefill. Points
 * req->layer, and req->prefill_s if n_new > 0, at the caller's arrays [p->n_layers], which must
 * outlive it. */
void plan_request_from_platform(const struct platform *p, int tier, int64_t n_history,
                                int64_t n_new, struct plan_layer *layer, double *prefill_s,
                                struct plan_request *req);

/* ---- chunk ranges with different records ----
 *
 * The stored chain is a list of ranges of tokens, from position 0 or behind the tokens that the
 * device holds; chunks in one range have the same records. A plan has one letter per layer, which
 * is a preference: a range that lacks the preferred kind uses the other one (plan_range_method).
 * If a used range has neither kind for a layer, that layer and every layer before it must be
 * recomputed. Alternatively the prefix is used only up to that range, and the rest is prefilled.
 *
 * A layer is *split* between two ranges that are restored from different kinds of records. Each
 * run of chunks of one kind is a read group of its own, and costs platform.split_s beyond its
 * bytes and rows. So many short runs can cost more than recomputing. */
/* PLAN_STATE: none of the range's tokens need come back, because the layer is recurrent and its
 * state is read from a snapshot at the range's end or at the end of a later one. Recomputing the
 * layer alone also begins behind the snapshot. */
enum { PLAN_HAS_H = 1, PLAN_HAS_KV = 2, PLAN_STATE = 4 };

struct plan_range {
    int64_t n_tokens; /* > 0 */
    int tier;         /* tier with the range's records */
    /* Bytes of the range's records over those of unpacked ones, by platform_record; 0 and 1: none
     * of them is packed. */
    double share[2];
    const uint8_t *mask; /* [n_layers] of PLAN_HAS_ bits, or PLAN_STATE */
    /* Unpacked bytes of a layer's state that is read at the range's end; 0: no state is read. */
    double state_bytes;
    double state_share; /* its stored bytes over state_bytes; 0 and 1: it is not packed */
};

/* Returns 'R', 'H' or 'K' for one layer of one range under the plan's letter; 0 if impossible. */
char plan_range_method(char method, uint8_t mask);

/* Chooses how many leading ranges to restore (*n_used, possibly 0).
 *
 * auto chooses the number for which the restore, followed by the prefill of the other ranges'
 * tokens and of n_new more, ends soonest. The predicted time is within 1 % of the result of a
 * full search for every number of ranges. Planning takes at most about 3 ms for any chain
 * (plan_cut.c), since an engine's step waits for it. If plain prefill is faster it uses 0
 * ranges: out->reason says so, and out->n_layers is 0.
 *
 * The number of ranges is chosen for the fastest plan. At that number a single method replaces a
 * mixture whose gain is too small (plan_prefers_single).
 *
 * Any other mode takes the longest prefix that adds no more recomputed layers than its first range
 * does, however slow it is; ERR_NOT_FOUND if there is none.
 *
 * req carries mode, fused, window and slow-downs. It must not have a budget (ERR_USAGE), which
 * bounds the bytes to save. The call fills the caller's scratch arrays `layer` and `prefill_s`
 * [p->n_layers], to which req then points. */
int plan_best_prefix(const struct platform *p, const struct plan_range *range, int n_ranges,
                     int64_t n_new, bool can_recompute, struct plan_layer *layer,
                     double *prefill_s, struct plan_request *req, struct plan *out,
                     int *n_used, struct err *e);

#endif
