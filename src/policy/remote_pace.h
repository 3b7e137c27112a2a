/* remote_pace.h - what a shared tier behind a network costs, and how long a request waits for it.
 *
 * A request that misses locally asks the remote for its chunks.  It may always recompute instead,
 * so it waits only while fetching promises to be cheaper:
 *
 * - before the transfer: the latency and bandwidth that earlier fetches found, and the price of
 *   restoring from the local store what comes, are compared with recomputing the same tokens;
 * - a remote that is silent for a share of the price of recomputing is left, and so is
 *   one that crawls.
 *
 * Chunks that came before the remote was left are used.  Pure: no clock, no allocation. */
#ifndef POLICY_REMOTE_PACE_H
#define POLICY_REMOTE_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Share of the price of recomputing for which the remote may be silent. */
#define REMOTE_SILENT_SHARE 0.1
/* Shorter silences are scheduling: of this machine, of the remote's, and of the network. */
#define REMOTE_SILENT_LEAST_S 0.025
/* A fetch begins only where it is expected to take at most this share of recomputing. */
#define REMOTE_WORTH_SHARE 0.8

/* What earlier fetches took; 0: not known. */
struct remote_pace {
    double latency_s;   /* of a request with an answer of a few bytes */
    double bytes_per_s; /* of a transfer */
};

/* Corrects the pace by a fetch.  Values of 0 teach nothing. */
void remote_pace_learn(struct remote_pace *p, double latency_s, uint64_t n_bytes,
                       double transfer_s);

/* Seconds until so many bytes are there, in one round trip; 0 where the bandwidth is not known. */
double remote_pace_price_s(const struct remote_pace *p, uint64_t n_bytes);

/* Price of computing the end of a context whose first `share` (0 to 1) is there already.
 * all_s is the price of computing all of it, half_s that of its first half: later tokens cost
 * more, since they look at more. */
double remote_rest_s(double all_s, double half_s, double share);

struct remote_view {
    /* Price of computing all that is asked for; 0: it is waited for, as forced plans want it. */
    double recompute_s;
    double
        restore_s; /* price of restoring the same from the local store, once it is there */
    double elapsed_s; /* since the transfer began */
    double silent_s;  /* since the remote sent anything */
    double most_s;    /* a silence that ends every fetch, also one that is waited for */
    /* Bytes that have come, and that are to come.  Both 0: not known yet. */
    uint64_t done_bytes, left_bytes;
};

enum remote_choice {
    REMOTE_GO_ON,
    REMOTE_TOO_DEAR, /* nothing has come yet, and recomputing is expected to be faster */
    REMOTE_SILENT,   /* it does not answer */
    REMOTE_CRAWLS    /* recomputing the rest is faster than waiting for it at this pace */
};

/* *again_s: the choice is the same for so long, if nothing comes. */
enum remote_choice remote_choose(const struct remote_view *v, const struct remote_pace *p,
                                 double *again_s);

#endif
