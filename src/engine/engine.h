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

#include "restore/kvcache.h"
#include "model/model.h"
#include "model/sample.h"
#include "model/shaping.h"
#include "restore/plan.h"
#include "restore/platform.h"
#include "restore/stall.h"
#include "restore/surprise.h"
#include "save/truncation.h"
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
    enum restore_direct direct;
    /* State that waiting requests need is read ahead: into the DRAM tier, or into staging. */
    bool fetches;
    enum placement_kind policy; /* which unused block of the KV pool is evicted first */
    bool reuse;                 /* equal prefixes share blocks of the KV cache */
    int64_t age_ns; /* waiting time that is worth one step of priority; 0: one second */
};

int engine_create(const struct engine_opts *o, struct engine **out, struct err *err);
void engine_destroy(struct engine *e); /* Frees an engine. No sequence may be left. */

enum finish {
    FINISH_NONE, /* still going */
    FINISH_EOS,
    FINISH_LENGTH,
    FINISH_CANCELLED,
    FINISH_TIMEOUT, /* the sequence's deadline has passed */
    FINISH_ERROR,   /* an error: outcome.err has it */
};

struct form;

struct request {
    const int32_t *prompt; /* copied; every id is within the vocabulary */
    int n_prompt;          /* number of prompt tokens, above 0 */
    int max_tokens;
    bool ignore_eos;
    bool digest; /* compute outcome.logits_digest */
    bool logits; /* on_token may call seq_logits */
    struct sample_opts sample;
    /* NULL: logits are not shaped. Must outlive the sequence. */
    const struct shaping *shaping;
    /* Form of the answer; NULL: any. Must outlive the sequence. */
    struct form *form;
    const char *salt; /* salt of its chunk keys; NULL: no salt */
    /* Plan as in option --plan; NULL: auto. Must outlive the sequence. */
    const char *plan;
    struct save_policy save;
    /* Value of store_epoch when the request was made. 0: the request is made now. */
    uint64_t epoch;
    /* Declared use of the chunks that the sequence finds and saves. The engine sets use.lot. */
    struct store_use use;
    /* How the context continues beyond its window; context 0: it may not outgrow the model's
     * window. */
    struct truncation truncation;
    /* Prefill begins when all layers are restored, as in the paper, not layer by layer. For
     * comparison. */
    bool restore_first;
    int priority; /* lower is earlier */
    /* Time of clock_now_ns by which the sequence must have ended; 0: no deadline. */
    int64_t deadline_ns;
    /* Called when the sequence gets a place for the first time; NULL: not called. */
    void (*on_admit)(void *arg);
    /* Called for every generated token; non-zero cancels. */
    int (*on_token)(void *arg, int32_t id);
    void *arg;
};

/* How a context outgrew its window. */
struct outcome_truncation {
    int64_t n_dropped;        /* tokens that are no longer seen at the end */
    int64_t n_computed_again; /* tokens that this sequence had computed before */
    int n_steps;              /* stairs begun after the first one */
    /* Time from the end of each stair until its state had moved, summed. */
    int64_t stall_ns;
};

/* Result of a sequence. Grows while the sequence runs; final when finish is set. */
struct outcome {
    enum finish finish;
    struct err err;
    const int32_t *tokens; /* prompt, then generated tokens; memory of the sequence */
    int n_prompt, n_generated;
    int n_stored;    /* prompt tokens that look-ups have found in the store */
    int n_cached;    /* prompt tokens that were not computed */
    int n_device;    /* part of n_cached that the KV cache had; the rest was restored */
    int n_remote;    /* prompt tokens whose chunks the remote sent for this sequence */
    int n_preempted; /* times that the sequence was preempted */
    /* Digest of the f32 logits of every generated position. Set if request.digest is set. */
    uint64_t logits_digest;
    struct plan plan; /* plan of the restore; n_layers is 0 if nothing was restored */
    char miss[200];   /* reason why no more tokens were restored */
    /* Index of the first token that differs from every stored history; 0 or less: unknown. */
    int differs_at;
    struct restore_result restore;
    enum surprise surprise; /* whether the plan's prediction missed, and why */
    /* Whether the restore's reads hung or crawled, and how its state then came back. */
    enum stall_end stall;
    struct outcome_truncation truncation;
    int64_t lookup_ns, plan_ns, restore_ns, prefill_ns, ttft_ns, decode_ns;
};

/* Adds a sequence to those that wait. Returns ERR_LIMIT if it can never fit, or -ENOMEM if there is
 * no memory for its tokens now. */
int engine_add(struct engine *e, const struct request *r, struct seq **out,
               struct err *err);
const struct outcome *seq_outcome(const struct seq *s);
/* Returns the number of tokens whose state is in the KV cache, restored or computed. */
int seq_tokens_done(const struct seq *s);
/* Moves out the predicted and measured lanes of the sequence's first restore. The caller frees the
 * spans of both. */
struct hcache_lanes;
void seq_take_lanes(struct seq *s, struct hcache_lanes *predicted,
                    struct hcache_lanes *measured);
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

/* Returns the sequence's last logits [vocab] f32. Only for a request with `logits`; valid until
 * the next step. */
const float *seq_logits(const struct seq *s);
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
    /* Restores that changed a layer's kind of record while they ran. */
    uint64_t n_replanned;
    /* Restores that began to read before their sequence had a place, and how many of these restores
     * continued when it had one. */
    uint64_t n_staged, n_staged_used;
    uint64_t n_stairs;  /* times that the window of a truncated context moved */
    uint64_t n_replays; /* truncated contexts that were computed again without the store */
    /* Time from the end of each stair until its state had moved, summed. */
    int64_t stairs_ns;
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
