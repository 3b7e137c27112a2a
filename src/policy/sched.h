/* sched.h - what the engine does in one step: who is admitted, preempted, timed out,
 * and who gets rows.
 *
 *            admit                     state is back          prompt computed
 *   WAITING -------> RESTORE ------------------> PREFILL ------------------> DECODE
 *      ^                |                           |                          |
 *      +----------------+------- preempt -----------+--------------------------+
 *
 * A step computes at most step_rows rows: decodes first (one each), so that they never stall
 * behind a long prompt, then prefills, in rank order.  Beside decodes prefills get rows_beside at
 * most: what a prompt adds to a step is added to the time between the tokens of all who decode.
 *
 * Rank.  A request's rank is arrival + priority * age: one of priority p counts as if it had
 * arrived p ages later (earlier, where p is negative).  It never changes, so any two
 * requests agree for ever on who is first, and whatever keeps arriving, a request that waits
 * becomes the first: nobody starves.
 *
 * Blocks.  A request is admitted when the pool has blocks for all tokens it knows and one more; as
 * it decodes it takes them one by one.  Where none is left the request with the worst rank is
 * preempted, until the one that asks has its block; a request never preempts one with a better
 * rank, it waits.  So the first of all always goes on, and as a request alone always fits (its
 * caller has checked), all end.  A waiting request takes places and blocks only from requests of a
 * worse priority.
 *
 * Pure: no clock, no allocation, no I/O.  The engine only carries out what is decided here. */
#ifndef POLICY_SCHED_H
#define POLICY_SCHED_H

#include <stdbool.h>
#include <stdint.h>

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
    int64_t deadline_ns; /* 0: none */
    int rows;            /* known tokens that are not computed yet; a decode has 1 */
    int blocks_needed;   /* WAITING: to be admitted; DECODE: for its next row, 0 or 1 */
    int blocks_freed;    /* by its preemption: those that nobody shares */
    bool is_pinned;      /* it cannot be preempted now */
    bool is_held; /* WAITING: not now, its saved state is still on its way to the store */
    int after; /* WAITING: not while that request (an index) restores or prefills what both begin
                  with; -1: nobody */
};

struct sched_limits {
    int64_t now_ns;
    int64_t age_ns; /* what one step of priority is worth */
    int step_rows;
    int rows_beside; /* of prefills in a step with decodes; 0: no bound but step_rows */
    int max_running; /* places */
    int free_blocks;
};

enum sched_verdict {
    SCHED_NOTHING,
    SCHED_RUN,      /* up to `rows` rows now */
    SCHED_ADMIT,    /* a place and its blocks, and up to `rows` rows in this step */
    SCHED_PREEMPT,  /* gives back its place and blocks, and waits */
    SCHED_TIME_OUT, /* its deadline has passed: it ends */
};

struct sched_choice {
    enum sched_verdict what;
    int rows;
};

/* choice [n] is filled; order [n] is scratch, and afterwards the requests in rank order. */
void sched_decide(const struct sched_limits *l, const struct sched_req *req, int n,
                  int *order, struct sched_choice *choice);

/* The first requests in rank order, at most `most`, that wait behind the decision: those that are
 * not held and wait for nobody with the same beginning.  Returns how many; next[] gets their
 * indices. */
int sched_next(const struct sched_req *req, const struct sched_choice *choice,
               const int *order, int n, int most, int *next);

/* How many rows of prefill a step with decodes can have, so that it takes stretch times what
 * the decodes take alone; at least least.  decode_ns, row_ns: a step of decodes, and each row
 * beside them; 0: not known yet. */
int sched_rows_beside(double decode_ns, double row_ns, double stretch, int least);

/* How long a newcomer waits for a place, about, behind n_waiting others: n_running
 * requests hold theirs for held_s each. */
double sched_wait_s(int n_waiting, int n_running, double held_s);

/* The rank: lower is earlier. */
int64_t sched_rank(const struct sched_req *r, int64_t age_ns);

#endif
