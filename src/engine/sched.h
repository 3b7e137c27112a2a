/* sched.h - decides one step of the engine: which requests are admitted, preempted, timed out,
 * and which get rows.
 *
 *            admit                     state is back          prompt computed
 *   WAITING -------> RESTORE ------------------> PREFILL ------------------> DECODE
 *      ^                |                           |                          |
 *      +----------------+------- preempt -----------+--------------------------+
 *
 * A step computes at most step_rows rows: decodes first (one each), so that they never stall
 * behind a long prompt, then prefills, in rank order. A prompt that is computed whole waits for a
 * step with room for it, and those behind it wait, too. Beside decodes prefills get at most
 * rows_beside: the time that a prompt adds to a step is added to the time between tokens of all
 * decodes.
 *
 * Rank. A request's rank is arrival + priority * age: a request of priority p counts as if it
 * had arrived p ages later (earlier if p is negative). The rank never changes, so any two
 * requests keep their order for ever. However many requests keep arriving, every waiting request
 * becomes the first one some day: none starves.
 *
 * Blocks. A request is admitted when the pool has blocks for all its known tokens and one more.
 * As it decodes it takes blocks one by one. If none is left, the request with the worst rank is
 * preempted, until the asking request has its block. A request never preempts one with a better
 * rank; it waits. So the request with the best rank always goes on. A request that runs alone
 * always fits (its caller has checked this), so every request ends. A waiting request takes
 * places and blocks only from requests of a worse priority.
 *
 * Leaders. Requests that begin with the same tokens would compute or restore them twice. So a
 * request waits while another one, its *leader*, is about to have the chunk that it lacks next.
 * Only this chunk counts. When the chunk is there, the question is asked again for the chunk after
 * it.
 *
 * Pure: no clock, no allocation, no I/O. The engine only carries out these decisions. */
#ifndef ENGINE_SCHED_H
#define ENGINE_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"

enum sched_phase {
    SCHED_WAITING, /* new, or preempted: holds neither a place nor blocks */
    SCHED_RESTORE,
    SCHED_PREFILL,
    SCHED_DECODE,
};

struct sched_req {
    enum sched_phase phase;
    int priority; /* lower is earlier */
    int64_t arrival_ns;
    int64_t deadline_ns; /* time by which the request must have ended; 0: no deadline */
    int rows;            /* known tokens that are not computed yet; a decode has 1 */
    /* Blocks needed. WAITING: to be admitted; DECODE: for its next row, 0 or 1. */
    int blocks_needed;
    /* Number of blocks that its preemption frees, because no other request shares them. */
    int blocks_freed;
    /* its rows are computed in one step; step_rows has room for them */
    bool is_whole;
    /* WAITING: not to be admitted now, since its saved state is still on its way to the store */
    bool is_held;
    /* WAITING: index of a request that restores or prefills the beginning that both requests share;
     * this request is not admitted before the other's restore or prefill of it ends. -1: there is
     * no such request. */
    int after;
};

struct sched_limits {
    int64_t now_ns;
    int64_t age_ns; /* waiting time that is worth one step of priority */
    int step_rows;
    /* Most prefill rows in a step with decodes; 0: bounded by step_rows only. */
    int rows_beside;
    int max_running; /* number of places */
    int free_blocks;
};

enum sched_verdict {
    SCHED_NOTHING,
    SCHED_RUN,      /* computes up to `rows` rows now */
    SCHED_ADMIT,    /* gets a place and its blocks, and up to `rows` rows in this step */
    SCHED_PREEMPT,  /* gives back its place and blocks, and waits */
    SCHED_TIME_OUT, /* its deadline has passed, so it ends */
};

struct sched_choice {
    enum sched_verdict what;
    int rows;
};

/* Fills choice [n]. order [n] is scratch and afterwards holds the requests in rank order. */
void sched_decide(const struct sched_limits *l, const struct sched_req *req, int n,
                  int *order, struct sched_choice *choice);

/* Estimates how long a newcomer waits for a place after n_waiting others, if n_running requests
 * hold their places for held_s each. */
double sched_wait_s(int n_waiting, int n_running, double held_s);

/* Returns the rank: lower is earlier. */
int64_t sched_rank(const struct sched_req *r, int64_t age_ns);
/* Returns the rank as a turn of store/placement_window.h: 0 for a negative rank. */
uint64_t sched_turn(const struct sched_req *r, int64_t age_ns);

/* --- requests with the same beginning --------------------------------------------------------- */

enum { LEAD_CHUNK_TOKENS = 64 };

/* A request. Equal keys under the same root mean equal tokens from the first one on. */
struct lead_request {
    enum sched_phase phase;
    const struct sha256 *root;
    const struct sha256 *keys; /* [n_keys] keys of its full chunks */
    int n_keys;
    const int32_t *tokens; /* [n_tokens] */
    int n_tokens;
    int n_done;     /* tokens that are restored or computed */
    bool may_reuse; /* the request uses state that others have computed */
    bool may_copy;  /* the request also uses a part of a chunk */
};

/* Returns whether x will have the tokens that s lacks next: the chunk after the first n_known
 * chunks, which s need not compute. If s has no further full chunk and may copy, these tokens are
 * the rest of its prompt except the last token. */
bool lead_is_ahead(const struct lead_request *x, const struct lead_request *s, int n_known);

/* Returns the index of the leader of waiting request `me` among the n requests, which are in the
 * order of arrival; -1: no request leads it. A leader restores or prefills, or waits and came
 * earlier. */
int lead_find(const struct lead_request *request, int n, int me, int n_known);

#endif
