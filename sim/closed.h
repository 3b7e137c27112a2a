/* closed.h - AttentionStore's experiment (its section 4): sessions, one FIFO server, two tiers.
 *
 * Sessions arrive by a Poisson process. Each turn joins the tail of one queue as soon as the
 * turn before has been answered, so some thousands of jobs always wait. The server takes the
 * first job, recomputes the history that the cache lacks, reads from disk the part that is not
 * in memory, prefills the new tokens and decodes the answer. Then the new state goes into
 * memory.
 *
 *     queue: [job][job][job] ... [job]
 *             <- L_pw ->                 read ahead from disk to memory: C_mem / S_kv jobs
 *             <---- L_ev ---->           exempt from eviction: (C_mem + C_disk) / S_kv jobs; the
 *                                        state of jobs near the tail is evicted first
 *
 * Policies that do not look ahead (lru, fifo, lfu) read nothing ahead. A session whose history
 * outgrows the context loses its older half. The rest stays valid, unless `overflow_loses_all`
 * is set (the paper's OF). */
#ifndef SIM_CLOSED_H
#define SIM_CLOSED_H

#include "store/placement.h"
#include "sim/load.h"

/* Jobs count only while at least this many others wait. At the end of the run no session arrives
 * any more and all remaining state fits into the cache, so those jobs say nothing about a loaded
 * server. */
#define CLOSED_LEAST_QUEUE 1500

struct closed_model {
    const char *name;
    double token_bytes; /* bytes of KV per token */
    double prefill_s;   /* seconds to prefill a token */
    double decode_s;    /* seconds per token, in a batch of 24 */
    int n_gpus;
    uint32_t context; /* length of the context window in tokens */
};
/* The paper's four: LLaMA-13B, LLaMA-65B, LLaMA-70B, Falcon-40B. */
#define CLOSED_MODELS 4
extern const struct closed_model closed_models[CLOSED_MODELS];

struct closed_opts {
    const struct closed_model *model;
    enum placement_kind policy;
    double memory_bytes, disk_bytes; /* both 0: everything is recomputed */
    double state_share; /* share of KV's bytes that state takes: 0.5 for hidden states */
    double disk_bytes_per_s;
    uint32_t n_warm; /* jobs before counting begins */
    bool overflow_loses_all;
};

struct closed_result {
    uint64_t n_jobs; /* counted jobs */
    /* Blocks of history that jobs needed, and the number of them that were in the cache. */
    uint64_t n_references, n_hits;
    uint64_t n_memory_hits;
    /* Sums in seconds; wait_s: time that the server waits for the disk. */
    double prefill_s, decode_s, wait_s;
    double prompt_tokens;
    double mean_queue;
    double seconds_saved, written_bytes;
    double wall_s; /* duration on the simulated clock */
    /* Most distinct sessions served within any hour (section 4.3.5: DSpuT). */
    uint32_t most_sessions;
};

void closed_run(const struct load *l, const struct closed_opts *o,
                struct closed_result *out);

/* Returns the run's cost in dollars by the paper's prices; *storage_share: the part for DRAM and
 * SSD. */
double closed_cost(const struct closed_opts *o, const struct closed_result *r,
                   double *storage_share);

#endif
