/* seq.h - a sequence, private to src/engine. */
#ifndef ENGINE_SEQ_H
#define ENGINE_SEQ_H

#include "engine/engine.h"
#include "engine/flight.h"
#include "engine/lanes.h"
#include "engine/next_token.h"
#include "model/pass.h"
#include "policy/correction.h"
#include "policy/sched.h"
#include "state/chain.h"

enum phase {
    PHASE_WAIT, /* holds no place and no blocks */
    PHASE_RESTORE,
    PHASE_PREFILL,
    PHASE_DECODE,
    PHASE_DONE,
};

struct seq {
    struct engine *engine;
    struct request req;
    char *salt, *plan;
    enum phase phase;
    int32_t *tokens;    /* prompt and generated [n_prompt + max_tokens] */
    int n_tokens;       /* known */
    int n_done;         /* whose K and V are in the cache: n_tokens - 1 while decoding */
    int rows;           /* that this step gives it at most */
    int row, n_rows;    /* of the present batch */
    struct chain chain; /* of the prompt; of all known tokens, when it was preempted */
    struct kv_table table;
    struct restore *restore; /* under way: between restore_find and restore_end */
    int n_planned;           /* chunks that it restores; 0: not planned yet */
    struct save_seq *save;   /* while it waits: of before it was preempted */
    int n_before_save;       /* tokens before those that `save` saves */
    bool has_gap; /* blocks before a window were not restored: nobody may share them */
    struct store_hit pin; /* of the last stored chunk of its prompt; impl NULL: none */
    struct hcache_lanes predicted, measured; /* of its first restore */
    struct outcome out;
    struct correction_expected expected; /* of its restore, by the profile alone */
    const float *logits; /* [vocab], a row of the engine's host memory; NULL: not wanted */
    int32_t next; /* the token that was chosen behind the last one, or SAMPLE_NO_TOKEN */
    int64_t t_arrival, t_first;
    int64_t t_admit, t_start; /* when it was admitted: the first time, the last time */
    bool was_preempted;
    struct outcome first; /* what was told before it was preempted */
};

/* The one sequence whose new tokens pass through the layers while these come back: fused.c. */
struct fused {
    struct seq *seq; /* NULL: none */
    int first, n;    /* its positions [first, first + n) */
    struct model_pass pass;
    struct model_tap tap;
    struct save_part part; /* of the rows that are passing, as the saver sees them */
    int64_t t_begin, busy_ns;
    struct buf mem[MAX_STAGES];
    struct residual
        x; /* [max_batch_rows], two buffers: the saver reads a layer's input behind it */
};

struct engine {
    struct engine_opts o;
    struct stream *stream;
    struct model_work *work;
    struct kv_pool *pool;
    struct restorer *restorer;
    struct fused fused;
    int64_t
        restore_credit_ns; /* what restores may take of the decodes' time: restoring.c */
    struct seq **seqs;     /* in the order in which they came */
    int n_seqs, cap_seqs;
    int n_live; /* the first of them: those that had not ended when the step began */

    /* the scheduler's view, filled anew in every step [cap_seqs] */
    struct sched_req *sched;
    struct sched_choice *choice;
    int *order;
    double decode_ns; /* a step of decodes, on average; 0: unknown */
    double row_ns;    /* a row of prefill */
    int rows_beside;  /* of prefill that a step with decodes may have */
    struct engine_stats stats;

    /* the present batch; all reserved at creation */
    int32_t *ids, *pos, *seq_row;
    const int32_t **tables;
    struct seq **batch;
    struct save_part *parts; /* the batch, as the saver sees it */
    struct flight flight;    /* the piece of it that is being queued */
    struct seq **again;      /* of a batch that has to be computed one by one */
    int n_batch, n_rows;
    struct next_token next;
    struct plan_layer *plan_layer;
    double *prefill_s;
    struct plan_range *ranges;
    uint8_t *masks; /* [max_chunks][n_layers], of ranges */
};

/* --- restoring.c: phase one ------------------------------------------------------------------- */

/* Whether plans lack the speed of the store. */
bool restoring_must_measure(const struct engine *e);
/* Begins looking up what the store has of s: phase RESTORE, or PREFILL where nothing is. */
void restoring_begin(struct engine *e, struct seq *s);
/* What to do behind a forward pass of batch_ns with n_decodes decodes: restores what fits beside
 * decodes; without any, and nothing else to compute, as much as fits a step, waiting for I/O.
 * Sequences whose state has come back go to PREFILL (or DONE with an error). */
void restoring_step(struct engine *e, int n_decodes, int64_t batch_ns);
/* Ends the restoration of s, which is about to go, in any state. Does not wait for I/O. */
void restoring_abandon(struct engine *e, struct seq *s);

/* --- fused.c ---------------------------------------------------------------------------------- */

int fused_reserve(struct engine *e, struct err *err);
void fused_release(struct engine *e);
/* The restore of s begins: its new tokens, from `first` on, follow it (tail: as seq_open_save), where
 * the place is free and its save has room. */
void fused_begin(struct engine *e, struct seq *s, int first, const struct store_hit *tail);
/* Whether rows of its sequence have passed a layer. */
static inline bool fused_has_begun(const struct fused *f)
{
    return f->pass.layer > 0 || f->pass.row > 0;
}
/* What has been computed of s is thrown away. Nothing where s is not the one. */
void fused_cancel(struct engine *e, struct seq *s);
/* One work item: at most max_rows rows of one layer.  Returns how many; 0 where no layer is
 * ready. */
int fused_work(struct engine *e, int max_rows);
/* The sequence goes on to prefill or decode, where its restore was ended and all layers are done. */
bool fused_finish(struct engine *e);

/* --- engine.c --------------------------------------------------------------------------------- */

/* The n_rows rows of s are in the cache, and its logits there where they were its last. */
void seq_advance(struct engine *e, struct seq *s);
void seq_finish(struct seq *s, enum finish why);
void seq_fail(struct seq *s, int rc, const char *message);
void seq_fail_overflow(struct seq *s);
/* What the device says of its fault, else the code's name. Valid until it is recovered. */
const char *engine_fault(const struct engine *e, int rc);
/* After a fault that sequences have failed with: the device goes on, or its error comes back. */
int engine_recover(struct engine *e, struct err *err);

/* --- learning.c ------------------------------------------------------------------------------- */

/* Around a restore, for the platform to learn from it (learning.c): `req` is what the plan was made
 * from. */
void seq_expect(struct engine *e, struct seq *s, const struct plan_request *req);
void seq_learn(struct engine *e, const struct seq *s);

/* --- schedule.c ------------------------------------------------------------------------------- */

/* A prompt beside decodes may make a step take this many times what they take alone: the promise is 3
 * at the 99th percentile, and steps vary. */
#define SCHEDULE_STRETCH 2.5
/* Ends, preempts and admits sequences, and sets how many rows each may have now. */
void schedule(struct engine *e);
/* How long a batch of n_rows took, n_decodes of them decodes. */
void schedule_learn(struct engine *e, int n_decodes, int n_rows, int64_t ns);
/* New full blocks, or a prompt's last one, become known in the KV cache. */
void schedule_keep(struct engine *e, struct seq *s);
/* Of a sequence that ends: its blocks go, and stay known. */
void schedule_drop_blocks(struct engine *e, struct seq *s);
/* s has back what it gets back, and goes on to PREFILL: saving begins behind it. */
void schedule_prefill(struct engine *e, struct seq *s);
/* Saving begins at first_token, behind the partial chunk `tail`, which is held, where that is no multiple
 * of 64, if s is saved and it has not begun. */
void seq_open_save(struct engine *e, struct seq *s, int first_token,
                   const struct store_hit *tail);

#endif
