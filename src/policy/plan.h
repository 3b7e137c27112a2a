/* plan.h - which layers to recompute, which to load as hidden states, which as KV.
 *
 * A sequence that lost its KV cache gets it back layer by layer, each layer by one method:
 *
 * - R: recompute from the tokens.  The R layers are a prefix.  r of them cost r - 1 whole
 *   layers and one projection: the last one needs only its K and V.
 * - H: read the hidden states (the layer's input), then norm, project to K and V, RoPE.
 * - K: read K and V, then verify, RoPE, scatter.
 *
 * One I/O lane and one compute lane work at the same time; a layer's compute starts when
 * its read has arrived.  Reads may be issued in any order; compute takes what is there.
 * With `fused`, new tokens are prefilled layer by layer as soon as layers 0..i are
 * restored, and the predicted time is that of the whole pipeline.
 *
 *   I/O      [H4 ][H5 ][H6 ][H7 ][K8    ][K9    ]
 *   compute  [R0      ][R1      ][r2][H4][H5]..[H6][H7][K8][K9]
 *
 * plan_make (auto) searches assignments and read orders exactly: see docs/RESTORATION.md
 * for the argument.  Layer 0's hidden state is the embedding row (h_free): 'H' there reads
 * nothing and is the same work as r = 1, which is how auto reports it.
 *
 * Where a device group has several stages, each restores its own layers beside the others:
 * plan_stages.c.
 *
 * Use: fill a plan_request (by hand from measurements, or plan_layers_uniform from a
 * platform), then plan_make.  The first users are the restore path (auto, forced plans) and
 * `bench restore`.
 *
 * Pure: no I/O, no clock, no allocation.  struct plan is about 2 KiB and the caller's. */
#ifndef POLICY_PLAN_H
#define POLICY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "policy/platform.h"

enum { PLAN_MAX_LAYERS = 256, PLAN_MAX_STAGES = PLATFORM_MAX_STAGES };

/* What restoring one layer costs by each method, for the tokens of this request.  Seconds
 * on the resource when it runs alone; latency is in the request.  A method that is not
 * possible has its flag cleared and its numbers ignored. */
struct plan_layer {
    double io_h_s, io_kv_s;     /* reading the hidden states; reading K and V */
    double up_h_s, up_kv_s;     /* several stages: then over the layer's stage's bus */
    double comp_h_s, comp_kv_s; /* compute after the read */
    double comp_tok_s;          /* the whole layer, as a recomputation */
    double comp_tok_last_s;     /* norm + K,V projection only: the last recomputed layer */
    double h_bytes, kv_bytes;   /* stored per token, for the budget and the reason text */
    bool has_h, has_kv;         /* records exist for every token of the request */
    bool can_recompute;         /* false for truncated contexts: their past is gone */
    bool h_free; /* layer 0: hidden states are embedding rows, no record, no read */
};

enum plan_mode {
    PLAN_AUTO,         /* the fastest of all assignments and orders */
    PLAN_HIDDEN,       /* every layer from hidden states (the paper's HCache-O) */
    PLAN_KV,           /* every layer from KV (KV offload, AttentionStore) */
    PLAN_RECOMPUTE,    /* every layer from tokens */
    PLAN_KV_RECOMPUTE, /* the best mixture without hidden states (the paper's naive hybrid)
                        */
    PLAN_PAPER,        /* the closed form of the paper's section 4.1.2, with its ceiling */
    PLAN_TOKENWISE, /* the paper's 6.3.2: every layer split by tokens; needs `platform` */
    PLAN_TOKENWISE_ROUNDED, /* the same, rounded to a good GEMM size */
    PLAN_FORCED_COUNTS,     /* forced_r, forced_h, forced_k: R prefix, then H, then K */
    PLAN_FORCED_LAYERS,     /* forced_layers: a letter per layer */
};

/* Sliding-window attention: layers from `layer` on see the last `tokens` positions only.  Of
 * those a restore brings back what the window behind the history needs, and recomputing the
 * layer that lies d layers below the last recomputed one takes d windows of tokens.  tokens 0:
 * no window. */
struct plan_window {
    int layer;
    int64_t tokens;
};

struct plan_request {
    int n_layers;                   /* 1..PLAN_MAX_LAYERS */
    const struct plan_layer *layer; /* [n_layers] */
    int n_stages; /* that restore their layers beside each other (pipeline.h); 0: 1 */
    /* Prefill of the new tokens, seconds of compute per layer; NULL: none. */
    const double *prefill_s; /* [n_layers] */
    bool fused; /* overlap that prefill with the restore; else it starts when all is
                      restored */
    int64_t
        fused_tokens; /* plan_best_prefix: no more of the new tokens are fused, the others
                             are prefilled behind it; 0: all are */
    struct plan_window window; /* needs n_tokens and `platform` */
    double head_s;             /* added after the last prefill (final norm, head) */
    /* plan_best_prefix: restores' compute, and prefill, take this many times as long, since decodes
     * beside them have the rest of the machine; 0 counts as 1. */
    double comp_slow, prefill_slow;
    double io_latency_s; /* from issuing a read to its first byte; requests overlap, so paid
                            once */
    double io_overlap;   /* >= 1: I/O slows by this while compute runs; 0 counts as 1 */
    double comp_overlap; /* >= 1: the reverse; 0 counts as 1 */
    /* auto: reads may take this many times as long, or as short, as the layers say; it then takes
     * the plan whose worst regret is least (plan_hedge.c). 0 and 1: they are what they are. */
    double io_spread;
    double budget_bytes_per_token; /* auto stores at most this many bytes; 0: no limit */

    enum plan_mode mode;
    int forced_r, forced_h, forced_k;
    const char *forced_layers; /* [n_layers] of R, H, K; borrowed for the call */
    /* A forced plan that lacks records is changed to what they allow (plan_deviate.c), and
     * plan.deviation says how.  Else it is ERR_NOT_FOUND. */
    bool may_deviate;

    /* Token-wise modes need costs as functions of the token count. */
    const struct platform *platform;
    int64_t n_tokens; /* history to restore */
    int tier;         /* of `platform` */
};

struct plan {
    enum plan_mode mode;
    int n_layers;
    char method[PLAN_MAX_LAYERS +
                1]; /* a letter per layer, RRHHKK, with final zero ('T': token-wise) */
    int n_r, n_h, n_k;
    int n_io;                          /* layers that are read, */
    int16_t io_order[PLAN_MAX_LAYERS]; /* in this order */

    double predicted_s; /* makespan: restore, and prefill and head where the request has
                           them */
    double restore_s;   /* when the last layer's K,V are in place */
    double io_busy_s, comp_busy_s; /* time each lane works, slow-down included */
    double bubble; /* idle share of the busiest lane over predicted_s, 0..1 */
    double stored_bytes_per_token;
    double hedged_s; /* what auto pays, by its own prediction, for being safe (io_spread) */
    bool exact; /* auto: the search was complete (optimal where overlap factors are 1, up to
                   hedged_s) */
    int64_t tokens_h, tokens_other; /* token-wise modes */
    char other;       /* 'R' or 'K': how tokens_other come back; paper mode too */
    char reason[192]; /* one line for people and for `run --json` */
    /* How the plan differs from the forced one, and why; empty where it does not, and for auto. */
    char deviation[192];
    int n_r_added; /* layers that are recomputed only because they, or later ones, lack records */
};

/* 0, or ERR_USAGE (a request that makes no sense: counts that do not add up, R behind H,
 * numbers that are negative or NaN, each named) or ERR_NOT_FOUND (a forced kind has no
 * record). */
int plan_make(const struct plan_request *req, struct plan *out, struct err *e);

/* "auto", "hidden", "kv", "recompute", "kv+recompute", "paper", "tokenwise",
 * "tokenwise-rounded", "rN,hN,kN" (any order, absent counts are 0) or a string of R, H, K.
 * Sets mode and forced fields; forced_layers then points into `text`. */
int plan_mode_parse(const char *text, struct plan_request *req, struct err *e);
const char *plan_mode_name(enum plan_mode mode);

/* Descriptors of a model whose layers are alike, from a platform: layer[0].h_free is set,
 * all records are present, everything may be recomputed; clear what is not so. */
void plan_layers_uniform(const struct platform *p, int tier, int64_t n_tokens, int n_layers,
                         struct plan_layer *layer);
/* The whole request for n_history tokens to restore and n_new to prefill: points req->layer
 * and req->prefill_s (where n_new > 0) at the caller's arrays [p->n_layers], which must
 * outlive it. */
void plan_request_from_platform(const struct platform *p, int tier, int64_t n_history,
                                int64_t n_new, struct plan_layer *layer, double *prefill_s,
                                struct plan_request *req);

/* ---- chunk ranges with different records ----
 *
 * The stored chain is a list of ranges of tokens, from position 0; chunks in one range have
 * the same records.  A plan has one letter per layer, which is a preference: a range that
 * lacks the preferred kind uses the other one (plan_range_method).  A layer for which some
 * used range has neither kind can only be recomputed, and then so must every layer before
 * it - or the prefix is used only up to that range, and the rest is prefilled. */
enum { PLAN_HAS_H = 1, PLAN_HAS_KV = 2 };

struct plan_range {
    int64_t n_tokens;    /* > 0 */
    int tier;            /* where its records lie */
    const uint8_t *mask; /* [n_layers] of PLAN_HAS_ bits */
};

/* 'R', 'H' or 'K' for one layer of one range under the plan's letter; 0 where it cannot be
 * done. */
char plan_range_method(char method, uint8_t mask, bool h_free);

/* Chooses how many leading ranges to restore (*n_used, maybe 0).
 *
 * auto: the number with which the restore, then the prefill of the other ranges' tokens and of
 * n_new more, ends soonest.  The predicted time is within 1 % of what a full search for every
 * number of ranges finds, and planning takes at most some 3 ms for any chain (plan_cut.c), since
 * an engine's step waits for it.  0 ranges where plain prefill is faster: out->reason says so,
 * and out->n_layers is 0.
 *
 * Any other mode: the longest prefix that the mode can restore, however slow; ERR_NOT_FOUND
 * where that is none. With may_deviate: the longest prefix that adds no more recomputed layers
 * than its first range does. plan.deviation names ranges that use the other kind, and ranges
 * that are left to prefill.
 *
 * req carries mode, fused, window and slow-downs.  It has no budget (ERR_USAGE): a budget bounds
 * what is saved.  Its layers are made here in the caller's scratch arrays [p->n_layers], which
 * it then points to. */
int plan_best_prefix(const struct platform *p, const struct plan_range *range, int n_ranges,
                     int64_t n_new, bool can_recompute, struct plan_layer *layer,
                     double *prefill_s, struct plan_request *req, struct plan *out,
                     int *n_used, struct err *e);

#endif
