/* models.h - several models in one process over one store: loaded when a request names them, kept
 * while memory allows, and unloaded when they are idle.
 *
 * A model is used between models_take and models_give, and is never unloaded in between. One thread
 * loads and unloads, one model at a time, in the order in which models were asked for. Before the
 * weights of a model are loaded, it makes room: it unloads the model that was used least recently,
 * and waits for those that are in use. A model that must leave takes no new uses, so that the
 * others' turn comes.
 *
 * The store, its index and its bounds are one for all models. State is named by the fingerprint of
 * its model, so an unloaded model finds all of its state when it comes back.
 *
 * Any thread may call any function, except models_open and models_close. */
#ifndef API_MODELS_H
#define API_MODELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "hcache.h"

struct models;

struct models_opts {
    /* [n] what each model is opened with; they differ in `model` alone. Borrowed, as all their
     * strings, until models_close. Truncation only with a store. */
    const struct hcache_opts *of;
    int n;
    int max_queue; /* as in hcache_serve_start */
    /* Bound on the memory that loaded models may take together, in bytes, as planned: weights, KV
     * cache, activations, buffers. 0: three quarters of the machine's memory (of a GPU's, if that
     * is where the models are), and a model alone may take more. */
    uint64_t memory_bytes;
    /* Called on the loading thread when a model has been loaded or could not be, with no lock
     * held. */
    void (*changed)(void *arg);
    void *arg;
};

/* Starts the thread. No model is loaded yet. */
int models_open(const struct models_opts *o, struct models **out, struct err *err);
/* Stops loading, and ends all answers, as hcache_serve_stop. models_take fails from then on. */
void models_stop(struct models *m);
/* Makes all state durable and frees everything. All uses must be given back. NULL is allowed. */
void models_close(struct models *m);

enum models_took { MODELS_HERE, MODELS_COMES, MODELS_FAILED };

/* Takes model i into use. Returns MODELS_HERE: *h may be used until models_give. MODELS_COMES: the
 * model is being loaded, and `changed` tells when to call again. MODELS_FAILED: the loading for
 * which this caller waited has failed, with the reason in *err; a later call loads it again.
 * *ticket is 0 at a caller's first call; the caller passes the value back until it gets another
 * result than MODELS_COMES. */
enum models_took models_take(struct models *m, int i, uint64_t *ticket, struct hcache **h,
                             struct err *err);
/* Like models_take, and waits until the model is there or has failed. Returns 0 or the code. */
int models_wait(struct models *m, int i, struct hcache **h, struct err *err);
void models_give(struct models *m, int i);
/* Returns the store of all models as a model that is never loaded: the functions hcache_cache_*
 * that take no context work on it (statistics, quotas, erasing, settling, flushing), whether or
 * not a model is loaded. NULL until a model has been loaded once; valid until models_close. */
struct hcache *models_store(struct models *m);

/* Returns whether the model is in use and must leave: long work should give it back soon. */
bool models_must_leave(struct models *m, int i);
/* Has the model unloaded once no one uses it. */
void models_unload(struct models *m, int i);

struct models_state {
    const char *what; /* "loaded", "loading", "unloaded" */
    bool is_loaded;
    int n_uses;
    uint64_t bytes; /* memory that was planned for it; 0: it was never loaded */
    /* The model's description from its present or last loading, without name, chat_template, bos,
     * eos and file_types. is_known is false if it was never loaded. */
    bool is_known;
    struct hcache_model_info info;
};
void models_state(struct models *m, int i, struct models_state *out);

struct models_stats {
    int n_loaded;
    uint64_t n_loads, n_unloads, n_failed, bytes, bound_bytes;
    double load_s; /* time of all loadings together */
};
void models_stats(struct models *m, struct models_stats *out);
/* Sums the statistics of all models, also of those that are unloaded now. */
void models_sum(struct models *m, struct hcache_stats *out);

/* --- which model to unload: pure -------------------------------------------------------------- */

/* A loaded model. */
struct models_use {
    bool is_loaded;
    int n_uses;         /* 0: it is idle */
    uint64_t last_used; /* a number that grows from use to use */
    uint64_t bytes;
};
enum { MODELS_FITS = -1, MODELS_NEVER_FITS = -2 };
/* Decides how a model of `bytes` finds room beside the loaded models of use[0, n). Returns
 * MODELS_FITS if all together are within the bound. Else returns the index of the model to unload
 * next: the idle one that was used least recently, or, if none is idle, the one in use that was
 * used least recently; the caller waits until it is idle. If no model is loaded, returns
 * MODELS_NEVER_FITS, or MODELS_FITS if `may_exceed`. */
int models_choose(const struct models_use *use, int n, uint64_t bytes, uint64_t bound,
                  bool may_exceed);

#endif
