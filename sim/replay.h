/* replay.h - replays the requests of a trace, one after the other, against a cache of one tier.
 *
 * Each request looks up its path, which counts one reference per block, uses the blocks that are
 * present from the first on, and stores the others. The policy knows the next `window` requests
 * of the list: they wait. Time is the trace's. */
#ifndef SIM_REPLAY_H
#define SIM_REPLAY_H

#include "sim/cache.h"
#include "sim/load.h"

struct replay_opts {
    enum placement_kind policy;
    uint64_t max_blocks;
    uint32_t window;     /* number of waiting requests that the policy knows */
    double judge_from_s; /* earlier references count as warm-up */
    /* A block is written only at its second reference, so content that is used once costs no
     * write. */
    bool admits_second_use;
};

struct replay_result {
    uint64_t n_references, n_hits; /* judged references and hits */
    double seconds_saved;          /* recomputation time that hits saved (replay_block_s) */
    uint64_t n_written, n_evicted; /* blocks in the whole run */
    uint64_t n_seen;               /* references in the whole run */
};

/* Returns the seconds to recompute block `at` of a path: tokens times the cost of a token, which
 * grows with the tokens before it. */
double replay_block_s(uint32_t block_tokens, uint32_t at);

void replay_run(const struct load *l, const struct replay_opts *o,
                struct replay_result *out);

#endif
