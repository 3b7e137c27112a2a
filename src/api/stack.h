/* stack.h - every part of a running engine, opened in order and closed in reverse.
 *
 * The public interface, the benchmarks and the tests all open the parts in this one way. Any
 * code may read the fields; the stack owns them all. */
#ifndef API_STACK_H
#define API_STACK_H

#include "engine/engine.h"
#include "engine/mixed_setup.h"
#include "hcache.h"
#include "io/io.h"

struct pool;

enum {
    /* least rows of a batch: a group of restored chunks is projected at once */
    STACK_MIN_BATCH_ROWS = 512,
    STACK_MAX_BATCH_ROWS = 16384,
    /* most sequences: each of them may decode in every step */
    STACK_MAX_SEQUENCES = STACK_MIN_BATCH_ROWS
};

/* With several models, one that has restored nothing for this time has no staging memory, and one
 * that has computed nothing has no activations. Providing 64 MiB again takes 12 to 20 ms (2 busy
 * cores). */
#define STACK_REST_NS ((int64_t)10 * 1000000000)

/* What the stacks of several models in one process share: the store, the io that it uses, and its
 * remote. Before the first stack opens, all is zero but `room`. The first stack opens them, and the
 * next ones use them. Stacks that share open one at a time, and close in any order. */
struct stack_shared {
    struct io *io;
    struct io_turn turn;
    struct store *store;
    struct remote *remote;
    struct err store_err; /* as in struct stack */
    bool is_open;         /* the store was opened, or is missing because of store_err */
    /* Called before a model's weights are loaded: makes room for the bytes that its stack will
     * need at most. device_bytes: all memory of the device, if it is not the host's; else 0. A
     * code other than 0 ends the opening. */
    int (*room)(void *arg, uint64_t bytes, uint64_t device_bytes, struct err *err);
    void *arg;
};
/* Closes what is shared, after all stacks. */
void stack_shared_close(struct stack_shared *s);

/* The options of a user, and options that only tests and benchmarks set. */
struct stack_opts {
    /* options of the user; the stack copies what its pointers refer to */
    struct hcache_opts user;

    struct io *io;  /* a simulated disk, borrowed; NULL: the machine's best io */
    int step_rows;  /* token budget of a step; 0: follows from user.mini_batches */
    int piece_rows; /* as in engine_opts */
    const struct mixed_opts *mixed; /* as in engine_opts; borrowed while the stack opens */
    /* Silence after which a device counts as dead, as in store_opts; 0: 30 s. */
    int64_t stuck_ns;
    /* As in store_opts. 0: all memory of --dram BYTES, and the store's default for --dram auto. */
    uint64_t dram_ahead_bytes;
    int input_tokens; /* as in saver_opts */
    bool no_profile;  /* the caller fills in the platform itself, and no profile is used */
    /* Called when the model's configuration is known and before its weights are loaded. A code
     * other than 0 ends the opening. NULL: not called. */
    int (*check)(void *arg, const struct model *m, struct err *err);
    void *check_arg;
    struct spans *spans; /* receives the parts of the opening; NULL: not wanted */
    /* The store and all else that the stacks of several models share; borrowed. NULL: nothing is
     * shared. A store that is made for truncated contexts cannot be shared. */
    struct stack_shared *shared;
};

struct stack {
    struct pool *pool;
    struct device *dev;
    struct model *model;
    struct io *io;
    struct store *store;
    struct remote *remote; /* NULL: there is no remote */
    struct saver *saver;
    struct engine *engine;
    struct sha256 fingerprint;
    struct platform platform;
    /* Reason why nothing is saved: the store could not be opened. code 0: the store is open. */
    struct err store_err;

    /* The following fields are private. */
    enum mixed_method method;
    /* io that reads streamed weights, with priority on the disk; NULL: none */
    struct io *weights_io;
    struct io_turn turn;
    bool owns_io, profile_changed;
    bool is_dram_auto; /* the user's dram_bytes was HCACHE_DRAM_AUTO */
    /* Size of the store in memory that truncated contexts use without another store; 0: none. */
    uint64_t window_store_bytes;
    int batch_rows, step_rows;
    int most_guesses; /* engine_opts */
    bool always_guesses;
    int64_t kv_tokens; /* tokens that the KV cache holds */
    enum placement_kind policy;
    int64_t n_observed; /* restores that had corrected the profile when it was read */
    char *profile_path; /* NULL: the profile is not cached */
    struct stack_opts o;
};

/* Opens the stack. *out must stay in place until it is closed: its parts point at each other. */
int stack_open(const struct stack_opts *o, struct stack *out, struct err *err);
/* Flushes what is being saved, keeps a new profile beside the store, and closes all parts. Call it
 * also after a failed open. */
void stack_close(struct stack *k);

/* Pass a line to the caller's `warn`. Without it a warning is logged, and a note, which is no
 * warning, goes to stderr. */
void stack_warn(const struct hcache_opts *o, const char *text);
void stack_note(const struct hcache_opts *o, const char *text);

/* Returns the options with which the device is opened. */
struct device_opts stack_device_opts(const struct hcache_opts *o);

/* Returns the size of the memory that restores read into: --staging, or its default. */
size_t stack_staging_bytes(const struct stack *k);

/* Writes one line: reserved memory of each part, threads, device, types. A part that has
 * reserved nothing is left out. */
void stack_describe(const struct stack *k, char *out, size_t n);

#endif
