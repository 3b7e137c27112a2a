/* stack.h - every part of a running engine, opened in order and closed in reverse.
 *
 * The public interface, the benchmarks and the tests all stand on this one way of putting the parts
 * together.  Fields may be read by anyone; the stack owns them all. */
#ifndef SERVICE_STACK_H
#define SERVICE_STACK_H

#include "engine/engine.h"
#include "io/io.h"

struct pool;

enum {
    STACK_MIN_BATCH_ROWS = 512, /* a group of restored chunks is projected at once */
    STACK_MAX_BATCH_ROWS = 16384,
    STACK_MAX_SEQUENCES = STACK_MIN_BATCH_ROWS /* each may decode in every step */
};

struct stack_opts {
    const char *model, *device, *dtype, *weights; /* as in hcache.h; device NULL: "cpu" */
    int threads;                                  /* 0: one per core that it may use */
    int tensor_parallel,
        pipeline_parallel;          /* ranks of a stage, stages; 0: 1 (tensor/group.h) */
    int max_context, max_sequences; /* 0: the model's own; 1 */
    int batch_rows; /* tokens of a forward pass at most, STACK_MIN_BATCH_ROWS at least; 0: what suits the device */
    int step_rows;  /* token budget of a step; 0: batch_rows */
    int64_t kv_tokens; /* that the KV cache holds; 0: max_sequences contexts */
    bool reuse; /* the KV cache keeps what sequences leave in it, for equal prefixes */

    const char *const *dirs; /* n_dirs 0 and not in_memory: no store */
    int n_dirs;
    bool in_memory;
    struct io *io; /* NULL: the machine's best; else borrowed (a simulated disk) */
    uint64_t cap_bytes, quota_bytes, throttle_bytes_per_s, save_buffer_bytes, staging_bytes;
    const char *gpu_direct; /* as in hcache.h */
    int64_t stuck_ns;       /* of a device that does not answer, see store_opts; 0: 30 s */
    bool no_profile;        /* tests: the caller fills platform itself */

    void (*warn)(void *arg, const char *text);
    void *warn_arg;
};

struct stack {
    struct pool *pool;
    struct device *dev;
    struct model *model;
    struct io *io;
    struct store *store;
    struct saver *saver;
    struct engine *engine;
    struct sha256 fingerprint;
    struct platform platform;

    /* private */
    bool owns_io, profile_changed;
    int batch_rows;
    int64_t kv_tokens;  /* that the KV cache holds */
    int64_t n_observed; /* restores that had corrected the profile when it was read */
    char *profile_path; /* NULL: not cached */
    struct stack_opts o;
};

/* *out must stay where it is until it is closed: its parts point at each other. */
int stack_open(const struct stack_opts *o, struct stack *out, struct err *err);
/* Flushes what is being saved; keeps a new profile beside the store. Also after a failed open. */
void stack_close(struct stack *k);

/* One line: what memory is reserved for what, threads, device, dtype. */
void stack_describe(const struct stack *k, char *out, size_t n);

#endif
