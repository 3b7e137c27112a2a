/* closed.h - AttentionStore's experiment (its section 4): sessions, one FIFO server, two tiers.
 *
 * Sessions arrive by a Poisson process.  Each turn joins the tail of one queue as soon as the turn
 * before has been answered, so that some thousands of jobs always wait.  The server takes the first
 * job, recomputes the history that the cache does not have, reads from disk what is not in memory,
 * prefills the new tokens and decodes the answer; then the new state goes into memory.
 *
 *     queue: [job][job][job] ... [job]
 *             <- L_pw ->                 read ahead from disk to memory: C_mem / S_kv jobs
 *             <---- L_ev ---->           exempt from eviction: (C_mem + C_disk) / S_kv jobs, since
 *                                        state goes from the queue's tail on
 *
 * Policies that do not look ahead (lru, fifo, lfu) read nothing ahead.  A session whose history
 * outgrows the context loses its older half: the rest stays valid, unless `overflow` says that
 * all is lost (the paper's OF). */
#ifndef SIM_CLOSED_H
#define SIM_CLOSED_H

#include "policy/placement.h"
#include "sim/load.h"

/* Jobs count while at least so many others wait: the tail of the run, when no session arrives
 * any more and all that is left fits into the cache, says nothing of a loaded server. */
#define CLOSED_LEAST_QUEUE 1500

struct closed_model {
    const char *name;
    double token_bytes; /* of KV */
    double prefill_s;   /* of a token */
    double decode_s;    /* of a token, in a batch of 24 */
    int n_gpus;
    uint32_t context; /* tokens */
};
/* LLaMA-13B, LLaMA-65B, LLaMA-70B, Falcon-40B: the paper's four. */
#define CLOSED_MODELS 4
extern const struct closed_model closed_models[CLOSED_MODELS];

struct closed_opts {
    const struct closed_model *model;
    enum placement_kind policy;
    double memory_bytes, disk_bytes; /* both 0: everything is recomputed */
    double state_share;              /* of KV's bytes: 0.5 for hidden states */
    double disk_bytes_per_s;
    uint32_t n_warm; /* jobs before counting */
    bool overflow_loses_all;
};

struct closed_result {
    uint64_t n_jobs;               /* counted */
    uint64_t n_references, n_hits; /* blocks of history */
    uint64_t n_memory_hits;
    double prefill_s, decode_s, wait_s; /* sums; wait: for disk */
    double prompt_tokens;
    double mean_queue;
    double seconds_saved, written_bytes;
    double wall_s; /* of the simulated clock */
    uint32_t
        most_sessions; /* distinct ones that were served within any hour (section 4.3.5: DSpuT) */
};

void closed_run(const struct load *l, const struct closed_opts *o,
                struct closed_result *out);

/* Dollars for the run by the paper's prices; *storage_share: of DRAM and SSD. */
double closed_cost(const struct closed_opts *o, const struct closed_result *r,
                   double *storage_share);

#endif
