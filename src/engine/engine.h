/* engine.h - continuous batching over sequences whose state is durable.
 *
 * A sequence waits until the scheduler (policy/sched.h) admits it, and then goes through three
 * phases: *restore* (what the device and the store have of its prompt comes back), *prefill* (the
 * rest of the prompt, in pieces that fit the step's budget) and *decode*.  Each engine_step carries
 * out one decision of the scheduler and runs one forward pass over a ragged batch of all running
 * sequences: decodes first, then prefill pieces, at most step_rows rows.  A sequence's tokens
 * depend on its own prompt, parameters and seed only, never on the batch (bit-exact; ops.h).
 *
 * Blocks of the KV cache are taken as a sequence grows.  Where none is left, one is preempted: it
 * waits, and goes on later from what the device still has, what was saved, and its tokens, which
 * are always kept.  Nobody can tell from the tokens that it was.
 *
 * Everything belongs to the thread that calls engine_step. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvcache/kvcache.h"
#include "model/model.h"
#include "model/sample.h"
#include "model/shaping.h"
#include "policy/plan.h"
#include "policy/platform.h"
#include "policy/stall.h"
#include "policy/surprise.h"
#include "policy/truncation.h"
#include "state/restore.h"
#include "state/saver.h"
#include "store/store.h"

struct engine;
struct mixed_opts;
struct mixed_stats;
struct seq;

struct engine_opts {
    const struct model *model;
    struct store *store; /* NULL: nothing is restored or saved */
    struct saver *saver; /* NULL: nothing is saved */
    struct remote
        *remote; /* what the store lacks is fetched from there; NULL: there is none */
    struct sha256 fingerprint;
    /* what plans are made from; where it has no tier, that is measured: in the background from now
     * on if measure_ahead and there are stored chunks, else on the first hits */
    struct platform *platform;
    bool measure_ahead;
    /* of the store; 0: none. Bounds the platform's bandwidth */
    uint64_t throttle_bytes_per_s;
    int max_seqs;       /* that run at once; any number may wait */
    int max_batch_rows; /* at least 512 (a restore group) */
    int step_rows;      /* token budget of a step */
    /* Rows of a step that pass a layer together; 0: max_batch_rows.  Where a step may have more, it
     * passes each layer in mini-batches (zigzag.h), and prompts beside decodes get as many rows as
     * there are. */
    int piece_rows;
    /* Blocks of contexts have types and places (mixed.h): then max_kv_tokens is not looked at,
     * and store and saver are NULL.  NULL: all are KV blocks on the device. */
    const struct mixed_opts *mixed;
    int64_t max_kv_tokens; /* size of the KV pool */
    size_t staging_bytes;  /* of restores */
    enum restore_direct direct;
    bool
        fetches; /* what waiting requests need is read ahead: to the DRAM tier, or to staging */
    enum placement_kind policy; /* which unused block of the KV pool goes first */
    bool reuse;     /* what is in the KV cache is used again by equal prefixes */
    int64_t age_ns; /* of waiting, that is worth one step of priority; 0: one second */
};

int engine_create(const struct engine_opts *o, struct engine **out, struct err *err);
void engine_destroy(struct engine *e); /* no sequence may be left */

enum finish {
    FINISH_NONE, /* still going */
    FINISH_EOS,
    FINISH_LENGTH,
    FINISH_CANCELLED,
    FINISH_TIMEOUT, /* its deadline has passed */
    FINISH_ERROR,   /* see outcome.err */
};

struct request {
    const int32_t *prompt; /* copied; every id is within the vocabulary */
    int n_prompt;          /* > 0 */
    int max_tokens;
    bool ignore_eos;
    bool digest; /* outcome.logits_digest is wanted */
    bool logits; /* seq_logits is asked in on_token */
    struct sample_opts sample;
    const struct shaping *shaping; /* NULL: none. Outlives the sequence */
    const char *salt;              /* NULL: none */
    const char *plan;              /* as --plan; NULL: auto. Outlives the sequence */
    bool plan_strict; /* a forced plan that the records do not allow is an error */
    struct save_policy save;
    struct store_use use; /* of the chunks that it finds and saves; its lot is set here */
    /* How the context goes on behind its window; context 0: it may not outgrow the model's. */
    struct truncation truncation;
    /* Prefill when all is restored (the paper's way), not layer by layer meanwhile: to compare. */
    bool restore_first;
    int priority;        /* lower is earlier */
    int64_t deadline_ns; /* of clock_now_ns; 0: none */
    /* The first time that the sequence gets a place; NULL: nobody wants to know. */
    void (*on_admit)(void *arg);
    /* Called for every generated token; non-zero cancels. */
    int (*on_token)(void *arg, int32_t id);
    void *arg;
};

/* How a context outgrew its window. */
struct outcome_truncation {
    int64_t n_dropped;        /* tokens that are not seen any more at the end */
    int64_t n_computed_again; /* tokens that this sequence had computed before */
    int n_steps;              /* stairs that were begun behind another one */
    int64_t stall_ns; /* from the end of a stair until its state had moved, all together */
};

/* What became of a sequence; grows as it runs, final when finish is set. */
struct outcome {
    enum finish finish;
    struct err err;
    const int32_t *tokens; /* prompt, then generated; the sequence's memory */
    int n_prompt, n_generated;
    int n_stored;    /* prompt tokens that the store has, as far as was looked */
    int n_cached;    /* prompt tokens that were not computed: */
    int n_device;    /* taken over from the KV cache; the others were restored */
    int n_remote;    /* prompt tokens whose chunks came from the remote for this sequence */
    int n_preempted; /* times that it lost its place */
    int n_recovered; /* tokens that it had when it did, and that were not computed again */
    uint64_t
        logits_digest; /* over the f32 logits of every generated position, if it was asked for */
    struct plan plan; /* n_layers 0 where nothing was restored */
    char miss[200];   /* why not more was restored */
    int differs_at; /* the first token that no stored history has there; 0 or less: not known */
    struct restore_result restore;
    enum surprise surprise; /* whether the plan's prediction missed, and why */
    enum stall_end
        stall; /* whether its reads hung or crawled, and who brought its state back */
    struct outcome_truncation truncation;
    int64_t lookup_ns, plan_ns, restore_ns, prefill_ns, ttft_ns, decode_ns;
};

/* Puts a sequence among those that wait: ERR_LIMIT where it can never fit, -ENOMEM where there
 * is no memory for its tokens now. */
int engine_add(struct engine *e, const struct request *r, struct seq **out,
               struct err *err);
const struct outcome *seq_outcome(const struct seq *s);
/* Tokens whose state is in the cache, restored or computed. */
int seq_tokens_done(const struct seq *s);
/* Moves out how its first restore was planned and went: the caller frees both spans. */
struct hcache_lanes;
void seq_take_lanes(struct seq *s, struct hcache_lanes *predicted,
                    struct hcache_lanes *measured);
/* Tokens of this sequence that are durable in the store. */
int64_t seq_committed_tokens(const struct seq *s);
/* Why it is saved no further. */
enum save_end seq_save_end(const struct seq *s);
/* Saved state was erased: what the KV cache holds of it is to be saved anew before it is
 * continued. */
void engine_forget_saved(struct engine *e);
/* Ends a sequence in any state and frees its blocks. */
void engine_remove(struct engine *e, struct seq *s);

/* One decision of the scheduler and one forward pass over the batch, then restores: beside decodes
 * in a small share of the pass's time, else for as long as a step may take (20 ms; a restore that
 * waits for I/O makes the step wait only where there is nothing else to do).  *n_active: sequences
 * not yet finished.  An error of one sequence is its outcome; the return value is for faults that
 * concern all.
 */
int engine_step(struct engine *e, int *n_active, struct err *err);

/* Steps until every sequence has finished. */
int engine_run(struct engine *e, struct err *err);

/* The last logits of a sequence [vocab] f32, whose request wants them; valid until the next
 * step. */
const float *seq_logits(const struct seq *s);
/* The blocks of a sequence, for tests. */
const struct kv_table *seq_table(const struct seq *s);
const struct kv_pool *engine_pool(const struct engine *e);

struct engine_stats {
    int blocks, blocks_free,
        blocks_kept;    /* of the KV cache; kept: for nobody, until wanted */
    uint64_t n_evicted; /* blocks */
    uint64_t n_preempted, n_timed_out;
    uint64_t fused_rows; /* of new tokens inside restores, times layers */
    uint64_t recovered_tokens, recomputed_tokens; /* of preempted sequences that went on */
    uint64_t n_replanned; /* restores that changed kinds of records between layers */
    /* Restores that began to read ahead of their place; of these, those that went on when they had
     * it */
    uint64_t n_staged, n_staged_used;
    uint64_t n_stairs; /* times that a truncated context's window moved */
    int64_t stairs_ns; /* from the end of a stair until its state had moved, all together */
    uint64_t n_stalls[STALL_ENDS]; /* restores whose reads hung or crawled, by their end */
    uint64_t link_bytes, link_down_bytes; /* of blocks on the host (mixed.h) */
    uint64_t weights_read_bytes;          /* of streamed layers */
};
void engine_stats(const struct engine *e, struct engine_stats *out);
/* False where all blocks are KV blocks on the device. */
bool engine_mixed_stats(const struct engine *e, struct mixed_stats *out);
/* Host memory of blocks that do not lie on the device. */
size_t engine_host_bytes(const struct engine *e);
size_t engine_bytes(const struct engine *e, size_t *kv, size_t *activations,
                    size_t *restore);

#endif
