/* seq.h - one sequence: its tokens, its blocks, its outcome, and its phase.
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
 * 1. The KV cache holds positions [0, n_done) of the view (view.h). Tokens [0, n_tokens) are
 *    known. In a decoding sequence all tokens but the last are done.
 * 2. A waiting sequence holds no place, no blocks and no restore. DONE is final.
 * 3. seq.c alone writes the phase, in one function that ends the program at a transition that is
 *    not drawn. Scheduling, restoring and fused prefill request transitions through the functions
 *    below.
 *
 * Private to src/engine. Everything belongs to the thread that steps. */
#ifndef ENGINE_SEQ_H
#define ENGINE_SEQ_H

#include <string.h>

#include "base/clock.h"
#include "engine/carry.h"
#include "engine/engine.h"
#include "engine/guess.h"
#include "engine/view.h"
#include "grammar/form.h"
#include "restore/correction.h"
#include "store/chain.h"

enum phase { PHASE_WAIT, PHASE_RESTORE, PHASE_PREFILL, PHASE_DECODE, PHASE_DONE, PHASES };

/* State that all sequences of an engine share. The parts are borrowed. */
struct seq_shared {
    const struct model *model;
    struct store *store; /* NULL: nothing is restored or saved */
    /* Fetches state of waiting sequences ahead; NULL: nothing is fetched ahead. */
    struct restore_pipeline *fetcher;
    /* Speeds from which the gain of a fetch is predicted. */
    const struct platform *platform;
    struct saver *saver; /* NULL: nothing is saved */
    struct kv_pool *pool;
    struct model_work *work;
    struct stream *stream;
    struct sha256 fingerprint;
    bool has_remote;  /* look-ups ask a remote for chunks that the store lacks */
    bool reuse;       /* equal prefixes share blocks of the KV cache */
    int most_guesses; /* of a sequence in a step; 0: none are made */
    struct guess_rates guess_rates;
    int n_carrying; /* sequences that replay their stairs without the store: at most one */
    /* True if the store has copies in DRAM. The engine then reports to the store which chunks the
     * KV pool holds. held[0, n_held) are changes that are not reported yet. */
    bool tells_held;
    struct store_held held[64];
    int n_held;
    struct engine_stats stats;
    uint64_t n_edges[PHASES][PHASES]; /* [from][to] transitions so far */
};

/* The announcement of a waiting sequence to the store and the KV pool (schedule.h). */
struct seq_upcoming {
    uint64_t turn; /* announced position in the order of admission (sched_turn) */
    int cut;       /* cut of the view that was announced */
    /* The view needs n_wanted chunks; the first n_chunks were announced to the store. */
    int n_chunks, n_wanted;
    bool is_told; /* the sequence is announced; the store may lack room for all chunks */
    bool is_pool_told;     /* the KV pool knows the announcement */
    bool is_fetch_decided; /* whether to fetch ahead has been decided */
    bool is_fetched_for;   /* the fetcher was asked for the chunks */
};

/* What could follow the last known token of a decoding sequence. */
struct seq_guess {
    /* Index of n_before tokens (the prompt's end and the request's prediction), then of the known
     * tokens. NULL: nothing is guessed. */
    struct guess_index *index;
    int n_before;
    struct guess_rates rates;
    int32_t ids[GUESS_MOST]; /* the proposal, which begins with the next token */
    int match; /* length of the match in front of its next token; 0: there is no proposal */
    int n_found; /* tokens of the proposal */
    int n_taken; /* tokens that were chosen since the proposal was made */
    int n, row;  /* tokens that the present batch computes; their first row in next_token */
};

/* What was read from the prompt's rows so far (reading.h). */
struct seq_reading {
    int n_read;  /* rows of tokens [0, n_read) were read */
    double *sum; /* [n_embd] of an embedding, from malloc; else NULL */
};

/* State of a truncated sequence between its stairs (stairs.h). A comment that begins with phases
 * says in which phases the field has a meaning. */
struct stairs {
    /* WAIT: the sequence chooses its view when its saves have settled. */
    bool must_choose;
    bool is_stepping; /* WAIT, RESTORE: a stair has ended, the next one has not begun */
    bool has_asked_remote; /* the sequence has tried its last view with the remote's help */
    /* WAIT, RESTORE: the sequence is trying its last view with the remote's help. */
    bool asks_remote;
    /* The saver's mark when the sequence arrived. It covers all state that the saver had been given
     * by then. */
    uint64_t mark;
    /* Index of the first chunk that could not be restored; INT_MAX: no chunk failed. */
    int limit;
    /* Tokens [0, n_left) were done when the sequence last left its place and had its state. */
    int n_left;
    int n_replays;      /* times that stairs were replayed because their state was lost */
    enum save_end lost; /* why the sequence's last save ended early */
    int64_t t_step;     /* when the last stair ended */
    /* WAIT: the time when the saver last made progress, and its count of settled chunks then.
     * t_heard 0: the sequence does not wait for the saver. */
    int64_t t_heard;
    uint64_t n_heard;
    struct carry carry; /* carried state; while it is on, the sequence needs no store */
    /* [n_pins] pins that keep chunks from eviction. The first n_former pin chunks [former,
     * former_end), which the present stair has dropped; the others pin chunks in view. */
    struct store_hit *pins;
    int n_pins, n_former;
    int former, former_end;
    int cap_pins;
};

struct seq {
    struct seq_shared *shared;
    struct request *req; /* a share */
    bool drops_plan;     /* a forced plan was dropped: its records may be missing */
    enum phase phase;    /* seq.c alone writes it */
    int32_t *tokens;     /* req->tokens: prompt, then generated tokens */
    int n_tokens;        /* tokens known so far */
    struct view view;    /* the tokens that the sequence sees, by position */
    int n_done;          /* positions [0, n_done) have K and V in the cache */
    int n_reached;       /* tokens [0, n_reached) were done at some time */
    int rows;            /* most rows that this step gives the sequence */
    /* in the present batch: index of the sequence's first row, and number of its rows */
    int row, n_rows;
    /* Keys of the prompt's chunks; after a preemption, of all known tokens' chunks. */
    struct chain chain;
    struct kv_table table;
    /* The sequence's restore, between restore_find and restore_end; else NULL. */
    struct restore *restore;
    /* Chunks that the restore brings back; 0: the restore is not planned yet. */
    int n_planned;
    /* Time in seconds to compute the tokens of those chunks instead. 0: the restore must wait for
     * its reads. */
    double recompute_s;
    /* Saving of the sequence. In PHASE_WAIT: the saving from before the preemption. */
    struct save_seq *save;
    int n_before_save; /* index of the first token that `save` saves */
    int branch; /* tokens up to which the device or the store has full blocks of other sequences */
    bool has_gap; /* blocks before a window were not restored, so they must not be shared */
    struct seq_upcoming upcoming;
    /* Pin on the last stored chunk of the sequence's prompt; impl NULL: no pin. */
    struct store_hit pin;
    /* When s began to wait for a partial chunk on its way to the store, and the saver's mark then.
     * t_tail 0: it has not waited. */
    int64_t t_tail;
    uint64_t tail_mark;
    struct stairs stairs;
    struct outcome out;
    /* Prediction for the restore, by the measured profile alone. */
    struct correction_expected expected;
    const float *logits; /* [vocab], a row in host memory of the engine; NULL: not wanted */
    struct seq_guess guess;
    struct seq_reading reading;
    int32_t next;            /* the next token, just chosen, or SAMPLE_NO_TOKEN */
    struct form_place place; /* of the answer in its form */
    struct err form_err; /* reason why no token can be chosen in the form; code 0: none */
    int64_t t_arrival, t_first;
    int64_t t_admit, t_start; /* time of the first admission; time of the last admission */
    /* Statistics of the first admission that began to compute; reported if the sequence was
     * preempted since (has_first). */
    bool has_first;
    /* The sequence lost its place before it began to compute. The next admission clears the reason
     * for a miss. */
    bool forgets_miss;
    struct outcome first;
};

/* A borrowed list of sequences. */
struct seq_list {
    struct seq **seqs;
    int n;
};
int seq_count(struct seq_list l, enum phase phase);

/* --- life ------------------------------------------------------------------------------------- */

/* Returns a sequence in WAIT, or NULL if there is no memory for its tokens. The caller has
 * checked that the request fits the context and the KV cache. */
struct seq *seq_create(struct seq_shared *sh, struct request *r);
/* Frees s, which may be in any phase. restore_phase_abandon must have ended its restore. */
void seq_destroy(struct seq *s);

/* --- transitions ------------------------------------------------------------------------------ */

/* Returns whether a sequence may go from one phase to the other. */
bool phase_may_follow(enum phase from, enum phase to);

/* WAIT: forgets the save and the pin of s, and gives s its first blocks: known ones (n_done then
 * counts their tokens), and new ones for the rest. Returns false if the pool has too few blocks, or
 * if the partial chunk of a known block is about to be stored. s then has no blocks. The phase
 * stays WAIT; after true a transition to RESTORE or PREFILL follows. */
bool seq_take_place(struct seq *s);
/* Gives up the known blocks that s has just taken, and takes new blocks for all its tokens. s keeps
 * its place. Returns false, with s unchanged, if the pool's free blocks and the blocks that no
 * other sequence shares with s are too few. */
bool seq_give_up_known(struct seq *s);
/* WAIT -> RESTORE. */
void seq_enter_restore(struct seq *s);
/* WAIT or RESTORE -> PREFILL. The first n_done tokens are in the cache, and saving begins behind
 * them. */
void seq_enter_prefill(struct seq *s);
/* DECODE: proposes at most `most` tokens behind the last known one (guess.h). Returns their
 * number. */
int seq_propose(struct seq *s, int most);

/* The n_rows rows of s have passed the layers. If these rows reached its last known token, the next
 * token was chosen. PREFILL stays, or goes to DECODE with the first token; DECODE takes the next
 * token; either goes to DONE with its last token. */
void seq_advance(struct seq *s);
/* RESTORE, PREFILL or DECODE -> WAIT. Gives back its blocks, which stay known. Its restore must
 * have been ended. */
void seq_preempt(struct seq *s);
/* PREFILL or DECODE -> WAIT. The stair has ended; the next one sees other tokens. */
void seq_end_stair(struct seq *s);
/* RESTORE -> WAIT. Too little of the sequence's view came back. It is admitted again with a view
 * that needs none of the missing chunks. */
void seq_retry(struct seq *s);
/* -> DONE. The session goes idle, so its tail is saved, too. */
void seq_finish(struct seq *s, enum finish why);
/* -> DONE with the error rc. If message is NULL, outcome.err already has the message. */
void seq_fail(struct seq *s, int rc, const char *message);
void seq_fail_overflow(struct seq *s);

/* --- the request ------------------------------------------------------------------------------ */

/* Returns the plan as in option --plan; NULL: auto. */
static inline const char *seq_plan(const struct seq *s)
{
    return s->drops_plan ? NULL : s->req->ask.plan;
}
static inline bool seq_plan_is(const struct seq *s, const char *name)
{
    return seq_plan(s) != NULL && strcmp(seq_plan(s), name) == 0;
}
/* Returns whether the plan is forced. */
static inline bool seq_is_forced(const struct seq *s)
{
    return seq_plan(s) != NULL && strcmp(seq_plan(s), "auto") != 0;
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Returns the index of the token at position n_done. Tokens before it are done, or dropped. */
static inline int seq_at(const struct seq *s)
{
    return view_token(&s->view, s->n_done);
}
/* Returns whether the present stair is full and another token is to be computed. */
static inline bool seq_stair_has_ended(const struct seq *s)
{
    return view_is_full(&s->view, s->n_done) && seq_at(s) < s->n_tokens;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* Returns the number of blocks that s begins with: for the tokens that it sees, and one more
 * token. */
int seq_blocks_wanted(const struct seq *s);
/* Returns how many full blocks of its tokens the KV cache knows. *n_unused gets the number of these
 * blocks that no sequence uses. */
int seq_find_known(const struct seq *s, int *n_unused);
/* Gives back the blocks of a sequence that ends. They stay known. */
void seq_drop_blocks(struct seq *s);

/* --- saving ----------------------------------------------------------------------------------- */

bool seq_is_saved(const struct seq *s);
/* Returns whether s computes its whole prompt, because it reads every row (reading.h). */
bool seq_reads_all(const struct seq *s);
/* Returns how many rows behind position `from` the next snapshot of the sequence's states is due. A
 * prefill ends a piece there. Returns INT_MAX if none is due. */
int seq_rows_to_snapshot(const struct seq *s, int from);
/* Returns whether a snapshot is due behind n restored tokens if the newest saved one stands behind
 * `newest` tokens. */
bool seq_snapshot_follows(const struct seq *s, int n, int newest);
/* Returns whether s may take known blocks. A forced plan may not: it is carried out in full. A
 * sequence that carries its view may not: it needs K before RoPE, which blocks do not have. */
bool seq_may_reuse(const struct seq *s);
/* Begins saving at a position. If the position is no multiple of 64, `tail` is the partial chunk
 * before it, which the caller holds. Does nothing if s is not saved, or saving has begun. */
void seq_open_save(struct seq *s, int position, const struct store_hit *tail);
/* Returns the declared use of its chunks. */
struct store_use seq_use(const struct seq *s);
/* Pins the n-th chunk in view and with it all chunks before it in its stair. Returns false if
 * the store does not have it. */
bool seq_pin_chunks(struct seq *s, int n);

#endif
