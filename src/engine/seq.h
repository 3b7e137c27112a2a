/* seq.h - one sequence: its tokens, what it holds, its outcome, and the phase that it is in.
 *
 *              nothing to restore
 *           .---------------------------------.
 *           |                                 v
 *    .--> WAIT -----------> RESTORE ------> PREFILL ------> DECODE --.
 *    |      |   something      |     all       |    first     |  ^   |
 *    |      |   to restore     |     is back   |    token     |  '---' next token
 *    |      |                  |               |              |
 *    '------|--- preempted,  --+---------------+--------------+
 *           |    next stair    |               |              |
 *           |                  |               |              |
 *           +--- timed out ----+--- failed ----+-- finished --+----> DONE
 *
 * A sequence may time out and fail in every phase.
 *
 * Invariants:
 *  1. The KV cache holds positions [0, n_done) of the view (view.h); tokens [0, n_tokens) are
 *     known; for a decoding sequence all tokens but the last are done.
 *  2. A sequence that waits holds no place and no blocks.  It may have a restore that is staged
 *     (staging.h): its `restore` is then not NULL.  DONE is final.
 *  3. seq.c alone writes the phase, in one function that dies of an edge that is not drawn.
 *     Scheduling, restoring and fused prefill request edges by the functions below.
 *
 * Private to src/engine.  Everything belongs to the thread that steps. */
#ifndef ENGINE_SEQ_H
#define ENGINE_SEQ_H

#include "engine/engine.h"
#include "engine/lanes.h"
#include "engine/view.h"
#include "policy/correction.h"
#include "policy/read_buffer.h"
#include "state/chain.h"

enum phase { PHASE_WAIT, PHASE_RESTORE, PHASE_PREFILL, PHASE_DECODE, PHASE_DONE, PHASES };

/* What the sequences of one engine share; borrowed. */
struct seq_shared {
    const struct model *model;
    struct store *store; /* NULL: nothing is restored or saved */
    /* That fetches ahead what waiting sequences need; NULL: nothing is. */
    struct restore_pipeline *fetcher;
    const struct platform *platform; /* what fetches are predicted from */
    struct saver *saver;             /* NULL: nothing is saved */
    struct kv_pool *pool;
    struct model_work *work;
    struct stream *stream;
    struct sha256 fingerprint;
    bool reuse; /* equal prefixes use blocks of the KV cache again */
    /* The store has copies in DRAM, so it is told which chunks the KV pool holds:
     * the next n_held changes. */
    bool tells_held;
    struct store_held held[64];
    int n_held;
    struct engine_stats stats;
    uint64_t n_edges[PHASES][PHASES]; /* taken so far, [from][to] */
};

/* What the store and the KV pool were told of a sequence that waits (upcoming.h). */
struct seq_upcoming {
    uint64_t turn;
    int cut; /* of the view that they were told of */
    int n_chunks,
        n_wanted; /* of the view's n_wanted chunks, the store knows the first n_chunks */
    bool is_told, is_pool_told;
    bool is_fetch_decided, is_fetched_for; /* whether to fetch ahead; and it is done */
};

/* What was decided about reading ahead for a sequence that waits (staging.h). */
struct seq_staging {
    bool is_decided;         /* whether to look up ahead of its place */
    bool is_placed;          /* its restore was staged, and goes on with its place */
    int first;               /* chunks that the KV pool held when its restore was planned */
    struct read_ahead ahead; /* what was predicted of that restore */
    uint64_t bytes;          /* that it reads in all */
};

/* What a truncated sequence knows of its stairs (stairs.c). */
struct stairs {
    bool must_choose; /* WAIT: its view is chosen when what it saved has settled */
    bool is_stepping; /* WAIT, RESTORE: a stair has ended, the next one has not begun */
    uint64_t mark;    /* of the saver: what others had handed over when it came */
    int limit;        /* chunks from this one on could not be brought back; INT_MAX: none */
    int n_replays;    /* times that stairs were begun again because their state was gone */
    enum save_end lost; /* why its last save ended early */
    int64_t t_step;     /* when the last stair ended */
    struct store_hit
        *pins; /* [n_pins] of chunks that are kept from being evicted: those in view, */
    int n_pins, n_former;   /* before them n_former of [former, former_end), which */
    int former, former_end; /* are the chunks that the present stair has dropped */
    int cap_pins;
};

struct seq {
    struct seq_shared *shared;
    struct request req;
    char *salt, *plan;
    enum phase phase;   /* seq.c alone writes it */
    int32_t *tokens;    /* prompt and generated [n_prompt + max_tokens] */
    int n_tokens;       /* known */
    struct view view;   /* what it sees of them; positions count in it */
    int n_done;         /* positions whose K and V are in the cache */
    int n_reached;      /* tokens [0, n_reached) were done at some time */
    int rows;           /* most that this step gives it */
    int row, n_rows;    /* of the present batch */
    struct chain chain; /* of the prompt; of all known tokens, when it was preempted */
    struct kv_table table;
    struct restore *restore; /* under way: between restore_find and restore_end */
    struct seq_staging staging;
    int n_planned;         /* chunks that it restores; 0: not planned yet */
    double recompute_s;    /* price of computing them; 0: its reads are waited for */
    struct save_seq *save; /* while it waits: of before it was preempted */
    int n_before_save;     /* tokens before those that `save` saves */
    bool has_gap; /* blocks before a window were not restored: nobody may share them */
    struct seq_upcoming upcoming;
    struct store_hit pin; /* of the last stored chunk of its prompt; impl NULL: none */
    struct stairs stairs; /* stairs.h */
    struct hcache_lanes predicted, measured; /* of its first restore */
    struct outcome out;
    struct correction_expected expected; /* of its restore, by the profile alone */
    const float *logits; /* [vocab], a row of the engine's host memory; NULL: not wanted */
    int32_t next; /* the token that was chosen behind the last one, or SAMPLE_NO_TOKEN */
    int64_t t_arrival, t_first;
    int64_t t_admit, t_start; /* when it was admitted: the first time, the last time */
    bool was_preempted;
    struct outcome
        first; /* reported statistics of its first admission, once it was preempted */
};

/* A list of sequences: a view. */
struct seq_list {
    struct seq **seqs;
    int n;
};
int seq_count(struct seq_list l, enum phase phase);

/* --- life ------------------------------------------------------------------------------------- */

/* A sequence that waits. The request was checked: it fits the context and the KV cache. NULL
 * where there is no memory for its tokens. */
struct seq *seq_create(struct seq_shared *sh, const struct request *r);
/* In any phase. Its restore must have been ended (restore_phase_abandon). */
void seq_destroy(struct seq *s);

/* --- edges ------------------------------------------------------------------------------------ */

/* Whether a sequence in one phase may be put into another. */
bool phase_may_follow(enum phase from, enum phase to);

/* WAIT: its saved chunks and its pin are forgotten, and it takes the blocks that it begins with:
 * known ones (n_done then counts their tokens), and new ones for the rest.  Where the pool has too
 * few it gives back what it took and returns false.  It still waits: an edge to RESTORE or PREFILL
 * follows. */
bool seq_take_place(struct seq *s);
/* WAIT -> RESTORE. */
void seq_enter_restore(struct seq *s);
/* WAIT or RESTORE -> PREFILL: n_done tokens are there, and saving begins behind them. */
void seq_enter_prefill(struct seq *s);
/* The n_rows rows of s are in the cache, and its next token was chosen where they were its last.
 * PREFILL stays, or -> DECODE with the first token; DECODE takes the next; either -> DONE with its
 * last. */
void seq_advance(struct seq *s);
/* RESTORE, PREFILL or DECODE -> WAIT: blocks are given back and stay known.  Its restore was
 * ended. */
void seq_preempt(struct seq *s);
/* PREFILL or DECODE -> WAIT: the stair has ended, and the next one sees other tokens. */
void seq_end_stair(struct seq *s);
/* RESTORE -> WAIT: what came back is too little of its view.  It is admitted again with a view that
 * needs none of what is missing. */
void seq_retry(struct seq *s);
/* -> DONE.  The session goes idle: the end of its state is saved, too. */
void seq_finish(struct seq *s, enum finish why);
/* -> DONE with an error: the message, or the one that outcome.err has (NULL). */
void seq_fail(struct seq *s, int rc, const char *message);
void seq_fail_overflow(struct seq *s);

/* --- tokens ----------------------------------------------------------------------------------- */

/* The token at position n_done: tokens before it are done, or dropped. */
static inline int seq_at(const struct seq *s)
{
    return view_token(&s->view, s->n_done);
}
/* Whether the present stair is at its end, and another token is to be computed. */
static inline bool seq_stair_has_ended(const struct seq *s)
{
    return view_is_full(&s->view, s->n_done) && seq_at(s) < s->n_tokens;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* Blocks that s begins with: for the tokens that it sees, and one more. */
int seq_blocks_wanted(const struct seq *s);
/* Full blocks that the KV cache knows of its tokens. *n_unused: those that are kept for nobody. */
int seq_find_known(const struct seq *s, int *n_unused);
/* Gives the blocks of a sequence that ends back; they stay known. */
void seq_drop_blocks(struct seq *s);

/* --- saving ----------------------------------------------------------------------------------- */

bool seq_is_saved(const struct seq *s);
/* A forced plan is carried out, whatever is on the device. */
bool seq_may_reuse(const struct seq *s);
/* Saving begins at a position, behind the partial chunk `tail`, which is held, where that is no
 * multiple of 64.  Nothing where s is not saved, or saving has begun. */
void seq_open_save(struct seq *s, int position, const struct store_hit *tail);
/* Returns what the sequence says of its chunks' use. */
struct store_use seq_use(const struct seq *s);
/* Pins the n-th chunk in view and with it all before it in its stair; false where
 * the store does not have it. */
bool seq_pin_chunks(struct seq *s, int n);

#endif
