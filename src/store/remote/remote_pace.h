/* remote_pace.h - the cost of a shared tier behind a network, and how long a request waits for
 * it.
 *
 * A request that misses locally asks the remote for its chunks. It could always recompute
 * instead, so it waits only while fetching promises to be cheaper:
 * - Before the transfer, it compares the latency and bandwidth of earlier fetches, plus the time
 *   to restore the chunks from the local store, with recomputing the same tokens.
 * - During the transfer, it gives up a remote that is silent for a share of the recomputation
 *   time, and a remote that crawls.
 *
 * A remote that was slow may be fast again. Only a transfer can show this, so one fetch is tried
 * after REMOTE_REFUSALS_MOST refusals in a row. The trial costs at most about a tenth of
 * recomputing.
 *
 * Chunks that came before the request gave up are used.
 *
 * Waits between attempts at an operation that keeps failing double up to a bound. Half of each wait
 * is random, so that many servers that lost the same remote do not come back to it in the same
 * moment; the caller provides the seed.
 *
 * Pure: no clock, no allocation. */
#ifndef STORE_REMOTE_REMOTE_PACE_H
#define STORE_REMOTE_REMOTE_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Share of the recomputation time for which the remote may be silent. */
#define REMOTE_SILENT_SHARE 0.1
/* Shorter silences are scheduling: on this machine, on the remote, and in the network. */
#define REMOTE_SILENT_LEAST_S 0.025
/* A fetch begins only if it is expected to take at most this share of the recomputation time. */
#define REMOTE_WORTH_SHARE 0.8

/* After this many refusals in a row because of the cost, one fetch is tried. */
#define REMOTE_REFUSALS_MOST 32

/* Speed of earlier fetches; 0: unknown. */
struct remote_pace {
    double latency_s;   /* seconds for a request with an answer of a few bytes */
    double bytes_per_s; /* bandwidth of a transfer */
    int n_refused;      /* refusals (REMOTE_TOO_DEAR) since the last transfer */
};

/* Corrects the pace by a fetch. Values of 0 teach nothing. */
void remote_pace_learn(struct remote_pace *p, double latency_s, uint64_t n_bytes,
                       double transfer_s);

/* Counts a fetch that did not begin because it was too dear. */
void remote_pace_refuse(struct remote_pace *p);
/* Ends the row of refusals: a transfer was tried, with or without success. */
void remote_pace_tried(struct remote_pace *p);

/* Returns the seconds to transfer n_bytes in one round trip; 0 if the bandwidth is unknown. */
double remote_pace_price_s(const struct remote_pace *p, uint64_t n_bytes);

/* Returns the time to compute the end of a context whose first `share` (0 to 1) exists already.
 * all_s is the time to compute all of it, half_s its first half: later tokens cost more, since
 * they attend to more. */
double remote_rest_s(double all_s, double half_s, double share);

/* Returns the time to compute a view of a truncated context. Replaying all its stairs takes
 * replay_s. If all its moved chunks are there, only the n_stair chunks of its last stair need be
 * computed, which takes stair_s. n_behind of these n_stair chunks are there already; below 0: moved
 * chunks are missing. */
double remote_replay_s(double replay_s, double stair_s, int n_behind, int n_stair);

struct remote_view {
    /* Time to compute all tokens that are asked for; 0: the fetch is waited for, as forced plans
     * require. */
    double recompute_s;
    /* Time to restore the same tokens from the local store once the chunks have come. */
    double restore_s;
    double elapsed_s; /* time since the transfer began */
    double silent_s;  /* time since the remote last sent anything */
    double most_s; /* a silence this long ends every fetch, also one that is waited for */
    /* Bytes that have come, including those of unfinished values, and bytes that are still to come.
     * Both are 0 until the sizes are known. */
    uint64_t done_bytes, left_bytes;
};

enum remote_choice {
    REMOTE_GO_ON,
    REMOTE_TOO_DEAR, /* nothing has come yet, and recomputing is expected to be faster */
    REMOTE_SILENT,   /* the remote does not answer */
    REMOTE_CRAWLS    /* recomputing the rest is faster than waiting for it at this pace */
};

/* Returns the choice. If nothing comes from the remote, the choice stays the same for *again_s
 * seconds. */
enum remote_choice remote_choose(const struct remote_view *v, const struct remote_pace *p,
                                 double *again_s);

/* --- the wait between attempts ---------------------------------------------------------------- */

#define BACKOFF_FIRST_S 0.25
#define BACKOFF_MOST_S  30.0

/* Returns the wait in seconds after the n-th failure in a row, n >= 1. The full wait is
 * BACKOFF_FIRST_S * 2^(n - 1), at most BACKOFF_MOST_S. The result is at least half of
 * the full wait, and at most the full wait. */
double backoff_s(int n_failures, uint64_t seed);

#endif
