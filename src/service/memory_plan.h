/* memory_plan.h - computes how much device memory an engine needs, and reserves it
 * before the model loads.
 *
 * Each part computes its own share (model_work_bytes, restore_pipeline_device_bytes,
 * ...); this module adds the shares up.  Host memory is taken as it is touched; weights
 * that can never fit are refused. */
#ifndef SERVICE_MEMORY_PLAN_H
#define SERVICE_MEMORY_PLAN_H

#include "model/model.h"

struct memory_ask {
    bool by_sequence; /* steps are computed in mini-batches in any case (zigzag_opts) */
    const struct model *model; /* as far as model_opts.reserve has it */
    const struct model_need *need;
    int max_seqs, max_rows;
    int step_rows;     /* above max_rows: steps are computed in mini-batches */
    int64_t kv_tokens; /* that the KV cache is to hold; 0: default */
    bool has_store;
    size_t staging_bytes; /* of restores */
    size_t save_bytes;    /* of chunks on their way to the store */
    uint64_t dram_bytes;  /* of the store's copies in DRAM */
    uint64_t store_bytes; /* of a store in memory with a cap, in host memory; 0: none */
};

/* The default: a context for every sequence, as far as the memory goes (a quarter of the
 * machine's; nine tenths of what the rest leaves of a device's own), but one in any case: what
 * sequences leave behind stays there until the blocks are wanted, so all of them come into use. */
int64_t memory_plan_kv_tokens(const struct memory_ask *a);

/* How a budget is shared between KV and weights. */
struct memory_share {
    int n_resident;    /* layers */
    int64_t kv_tokens; /* 0: memory_plan_kv_tokens decides */
    char table[400];   /* for people; empty where all layers stay */
};

/* Shares the memory that hcache_opts.weights_memory names between KV and weights.  a->kv_tokens:
 * what the user wants, 0: default.  a->need is not looked at.  save_bytes: of the saver's buffer.
 *
 * KV comes first: a pass streams the same bytes for one sequence as for many, so the more sequences
 * decode together, the more tokens a second (HybridServe, section 4.2.2).  KV gets a context for
 * each sequence, but at most half of what the least leaves.  The rest holds layers.
 *
 * -ENOMEM with the table where the budget does not hold the least: what always stays, two layers,
 * one context, and the buffers. ERR_USAGE: the text is no budget. */
int memory_plan_share(const struct memory_ask *a, const struct weights_sizes *z,
                      const char *budget, size_t save_bytes, struct memory_share *out,
                      struct err *err);

/* Returns what HCACHE_DRAM_AUTO stands for: an eighth of the machine's memory, and at most a
 * half of what the rest leaves now.  0 where that is less than 64 MiB, and where memory is
 * unified and the model's KV is no larger than its hidden states: there a larger KV cache holds
 * as many tokens in the same memory, and they need no restore at all. */
uint64_t memory_plan_dram_bytes(const struct memory_ask *a);

/* Reserves all of it on every stage.  -ENOMEM names what is needed, for what, and what to do: also
 * where host memory does not hold dram_bytes beside the rest. */
int memory_plan_reserve(const struct memory_ask *a, struct err *err);

#endif
