/* engine.h - continuous batching over sequences whose state is durable.
 *
 * A sequence waits until the scheduler (engine/sched.h) admits it. Then it goes through three
 * phases:
 * - *restore*: the device and the store bring back the part of its prompt that they have;
 * - *prefill*: the rest of the prompt is computed, in pieces that fit the step's budget;
 * - *decode*: one token a step.
 *
 * Each engine_step carries out one decision of the scheduler and runs one forward pass over a
 * ragged batch of all running sequences: decodes first, then prefill pieces, at most step_rows
 * rows. A sequence's tokens depend on its own prompt, parameters and seed only, never on the
 * batch (bit-exact; ops.h).
 *
 * A sequence takes blocks of the KV cache as it grows. When no block is left, one sequence is
 * preempted: it waits, and continues later from its blocks that the device still has, its saved
 * state, and its tokens, which are always kept. Preemption never changes a token.
 *
 * Everything belongs to the thread that calls engine_step. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/request.h"
#include "restore/kvcache.h"
#include "model/model.h"
#include "restore/plan.h"
#include "restore/platform.h"
#include "restore/stall.h"
#include "restore/surprise.h"
#include "store/truncation.h"
#include "restore/restore.h"
#include "save/saver.h"
#include "store/store.h"

struct engine;
struct mixed_opts;
struct mixed_stats;
struct seq;

struct engine_opts {
    const struct model *model;
    struct store *store; /* NULL: nothing is restored or saved */
    struct saver *saver; /* NULL: nothing is saved */
    /* Remote from which chunks that the store lacks are fetched; NULL: there is no remote. */
    struct remote *remote;
    struct sha256 fingerprint;
    /* Speeds that plans are computed from. If the store's speed is missing, the engine measures it:
     * in the background from now on if measure_ahead is set and chunks are stored, else on the
     * first hits. */
    struct platform *platform;
    bool measure_ahead;
    /* The store's throttle, which bounds the platform's bandwidth; 0: there is no throttle. */
    uint64_t throttle_bytes_per_s;
    int max_seqs;       /* sequences that run at once; any number may wait */
    int max_batch_rows; /* at least 512 (a restore group) */
    int step_rows;      /* token budget of a step */
    /* Rows of a step that pass a layer together; 0: max_batch_rows. A step with more rows passes
     * each layer in mini-batches (zigzag.h), and prompts beside decodes get all rows that the
     * step has. */
    int piece_rows;
    /* Types and places of the blocks of contexts (mixed.h). If set, max_kv_tokens is ignored,
     * and store and saver are NULL. NULL: all blocks are KV blocks on the device. */
    const struct mixed_opts *mixed;
    int64_t max_kv_tokens; /* size of the KV pool */
    size_t staging_bytes;  /* staging memory of restores */
    int64_t rest_ns;       /* as in restore_pipeline_opts */
    enum restore_direct direct;
    /* State that waiting requests need is read ahead into the DRAM tier, if there is one. */
    bool fetches;
    enum placement_kind policy; /* which unused block of the KV pool is evicted first */
    /* Most guesses of a sequence in a step (guess.h), at most GUESS_MOST; 0: none are made. Only on
     * a device whose memory is host memory, and not with `mixed`. */
    int most_guesses;
    bool always_guesses; /* guesses even if that is not expected to make answers faster */
    bool reuse;          /* equal prefixes share blocks of the KV cache */
    int64_t age_ns; /* waiting time that is worth one step of priority; 0: one second */
};

int engine_create(const struct engine_opts *o, struct engine **out, struct err *err);
void engine_destroy(struct engine *e); /* Frees an engine. No sequence may be left. */
/* Gives memory that only a step uses back to the system, where the model lies in host memory:
 * activations, logits, scratch. The next steps take it again. No sequence may be there. The KV pool
 * keeps its blocks, because later requests may continue them. */
void engine_rest(struct engine *e);

enum finish {
    FINISH_NONE, /* still going */
    FINISH_EOS,
    FINISH_LENGTH,
    FINISH_CANCELLED,
    FINISH_TIMEOUT, /* the sequence's deadline has passed */
    FINISH_ERROR,   /* an error: outcome.err has it */
};

/* Result of a sequence. Grows while the sequence runs; final when finish is set. */
struct outcome {
    enum finish finish;
    struct err err;
    /* What the caller gets, without the members that ticket_describe makes of text and restore.
     * token_ids is memory of the request. differs_at may be below 0: unknown. */
    struct hcache_result r;
    int n_stored;     /* prompt tokens that look-ups have found in the store */
    struct plan plan; /* plan of the restore; n_layers is 0 if nothing was restored */
    struct restore_result restore;
    enum surprise surprise; /* whether the plan's prediction missed, and why */
    /* Whether the restore's reads hung or crawled, and how its state then came back. */
    enum stall_end stall;
};

/* Adds a sequence to those that wait. The sequence takes a share of the request. Returns ERR_LIMIT
 * if the request can never fit, or -ENOMEM if there is no memory for its tokens now. */
int engine_add(struct engine *e, struct request *r, struct seq **out, struct err *err);
const struct outcome *seq_outcome(const struct seq *s);
/* Returns the number of tokens whose state is in the KV cache, restored or computed. */
int seq_tokens_done(const struct seq *s);
/* Moves the result out of a sequence that has ended. The caller frees the spans of its lanes. */
void seq_take_result(struct seq *s, struct hcache_result *out);
/* Returns the number of this sequence's tokens that are durable in the store. */
int64_t seq_committed_tokens(const struct seq *s);
/* Returns the reason why the sequence's saving ended early. */
enum save_end seq_save_end(const struct seq *s);
/* Call after saved state was erased: the KV cache's blocks no longer count as saved. A sequence
 * that continues them saves them again. */
void engine_forget_saved(struct engine *e);
/* Ends a sequence in any state and frees its blocks. */
void engine_remove(struct engine *e, struct seq *s);

/* Carries out one decision of the scheduler, one forward pass over the batch, then work on
 * restores. Beside decodes, restores get a small share of the pass's time. Without decodes they
 * get as long as a step may take (20 ms); the step waits for their I/O only if it has nothing
 * else to do. *n_active: sequences that have not finished. An error of one sequence goes to its
 * outcome; the return value is for faults that concern all sequences. */
int engine_step(struct engine *e, int *n_active, struct err *err);

/* Steps until every sequence has finished. */
int engine_run(struct engine *e, struct err *err);

/* Returns the sequence's last logits [vocab] f32. Only for a request with logprobs or digest;
 * valid until the next step. */
const float *seq_logits(const struct seq *s);
/* Computes the log-probabilities of the chosen token and of the n_top likeliest tokens: out [1 +
 * n_top]. Pure. */
void engine_logprobs(const float *logits, int n_vocab, int32_t chosen, int n_top,
                     struct hcache_logprob *out);
/* Returns the block table of a sequence, for tests. */
const struct kv_table *seq_table(const struct seq *s);
const struct kv_pool *engine_pool(const struct engine *e);

struct engine_stats {
    int blocks, blocks_free; /* blocks of the KV cache: all, and those that are free */
    /* Blocks that no sequence uses and that stay known; they can be evicted. */
    int blocks_kept;
    uint64_t n_evicted; /* evicted blocks of the KV cache */
    uint64_t n_preempted, n_timed_out;
    uint64_t fused_rows; /* rows of new tokens computed inside restores, times layers */
    /* Tokens of preempted sequences: restored, or computed again. */
    uint64_t recovered_tokens, recomputed_tokens;
    uint64_t n_stairs;  /* times that the window of a truncated context moved */
    uint64_t n_replays; /* truncated contexts that were computed again without the store */
    /* Time from the end of each stair until its state had moved, summed. */
    int64_t stairs_ns;
    uint64_t n_surprises[SURPRISES]; /* restores whose prediction missed, counted by why */
    /* Restores whose reads hung or crawled, counted by how they ended. */
    uint64_t n_stalls[STALL_ENDS];
    /* Bytes of blocks that crossed the link from and to the host (mixed.h). */
    uint64_t link_bytes, link_down_bytes;
    uint64_t weights_read_bytes; /* bytes read for streamed layers */
};
void engine_stats(const struct engine *e, struct engine_stats *out);
/* Fills *out. Returns false if all blocks are KV blocks on the device. */
bool engine_mixed_stats(const struct engine *e, struct mixed_stats *out);
/* Returns the host memory of blocks that do not lie on the device. */
size_t engine_host_bytes(const struct engine *e);
/* Returns the reserved bytes in all. *kv, *activations and *restore get the parts of the KV pool,
 * activations and restores. */
size_t engine_bytes(const struct engine *e, size_t *kv, size_t *activations,
                    size_t *restore);

#endif
