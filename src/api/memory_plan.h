/* memory_plan.h - computes how much device memory an engine needs, and reserves it before the
 * model loads.
 *
 * Each part computes its own share (model_work_bytes, restore_pipeline_device_bytes, ...); this
 * module adds the shares up. Host memory is allocated as it is touched; weights that can never
 * fit are refused. */
#ifndef API_MEMORY_PLAN_H
#define API_MEMORY_PLAN_H

#include "model/model.h"

struct memory_ask {
    bool by_sequence; /* steps are always computed in mini-batches (zigzag_opts) */
    /* the model as model_opts.reserve gets it: shape and types, without weights */
    const struct model *model;
    const struct model_need *need;
    int max_seqs, max_rows;
    int most_guesses; /* of a sequence in a step */
    int step_rows;    /* if it exceeds max_rows, steps are computed in mini-batches */
    /* tokens that the KV cache must hold; 0: memory_plan_kv_tokens decides */
    int64_t kv_tokens;
    bool has_store;
    size_t staging_bytes; /* staging memory of restores */
    size_t save_bytes;    /* size of the buffer for chunks on their way to the store */
    uint64_t dram_bytes;  /* size of the arena for the store's copies in DRAM */
    /* host memory of a store in memory with a cap; 0: there is no such store */
    uint64_t store_bytes;
};

/* Returns the default size of the KV cache: a context for every sequence, but at most a quarter of
 * the machine's memory, or nine tenths of the rest of a device's own memory, and at least one
 * context. Blocks that a sequence leaves are kept until another one needs them, so all blocks come
 * into use. */
int64_t memory_plan_kv_tokens(const struct memory_ask *a);

/* The shares of a budget that KV and weights get. */
struct memory_share {
    int n_resident;    /* layers that stay in memory */
    int64_t kv_tokens; /* tokens of the KV cache; 0: memory_plan_kv_tokens decides */
    char table[400];   /* a sentence for people; "" if all layers stay in memory */
};

/* Shares the memory of hcache_opts.weights_memory between KV and weights. a->kv_tokens: the number
 * that the user gave; 0: none. a->need is ignored. save_bytes: size of the saver's buffer.
 *
 * KV comes first. A pass streams the same bytes for one sequence as for many, so more sequences
 * that decode together give more tokens a second (HybridServe, section 4.2.2). KV gets a context
 * for each sequence, but at most half of the memory that the minimum leaves. The rest holds layers.
 *
 * Returns -ENOMEM with the table if the budget does not hold the minimum: the parts that always
 * stay, two layers, one context, and the buffers. Returns ERR_USAGE if the text is no budget. */
int memory_plan_share(const struct memory_ask *a, const struct weights_sizes *z,
                      const char *budget, size_t save_bytes, struct memory_share *out,
                      struct err *err);

/* Returns the size for HCACHE_DRAM_AUTO: an eighth of the machine's memory, at most half of the
 * memory that the other parts leave now. Returns 0 if that is less than 64 MiB. Also returns 0
 * if memory is unified and the model's KV is no larger than its hidden states: then a larger KV
 * cache holds as many tokens in the same memory, and they need no restore at all. */
uint64_t memory_plan_dram_bytes(const struct memory_ask *a);

/* Returns the memory that the plan takes at most, beside copies in DRAM: of the host if memory is
 * unified, else of the stage that needs the most. */
uint64_t memory_plan_bytes(const struct memory_ask *a);

/* Reserves the planned memory on every stage. Returns -ENOMEM, with the needed sums and advice,
 * also if host memory does not hold dram_bytes beside the rest. */
int memory_plan_reserve(const struct memory_ask *a, struct err *err);

#endif
