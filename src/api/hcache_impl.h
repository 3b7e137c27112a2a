/* hcache_impl.h - the implementation of the public interface; private to src/api. */
#ifndef API_HCACHE_IMPL_H
#define API_HCACHE_IMPL_H

#include <pthread.h>

#include "api/dialog.h"
#include "api/service.h"
#include "api/stack.h"
#include "hcache.h"
#include "text/tokenizer.h"

_Static_assert(sizeof(struct hcache_err) == sizeof(struct err), "one layout of errors");

/* The models of one process share a store, whose erasures reach all open models. Init with
 * hcache_shared_init. */
struct hcache_shared {
    struct stack_shared k;
    pthread_mutex_t lock; /* protects `open` */
    struct hcache *open;  /* the models that are open */
};
void hcache_shared_init(struct hcache_shared *s);
/* Closes the shared store, after all models. */
void hcache_shared_deinit(struct hcache_shared *s);

/* Opens a model beside others, as hcache_open does. Call it from one thread at a time for each
 * `shared`. Functions that erase or flush reach all models that share and are served
 * (hcache_serve_start). Truncation without a store is not possible. */
int hcache_open_shared(const struct hcache_opts *o, struct hcache_shared *shared,
                       struct hcache **out, struct hcache_err *err);

struct hcache {
    struct stack k;
    struct hcache_shared *shared; /* borrowed; NULL: nothing is shared */
    struct hcache *next;          /* in shared->open; protected by shared->lock */
    /* the caller's options during hcache_open; else NULL */
    const struct hcache_opts *opening;
    struct chat_drop *drop;
    struct tokenizer *tokenizer; /* NULL for synthetic models */
    /* NULL: the model has no chat template, or one that is not understood */
    struct dialog *dialog;
    struct err dialog_err; /* reason why dialog is NULL */
    struct service *service;
    struct forms *forms; /* compiled forms of answers; NULL: the model has no tokenizer */
    /* Platform for decisions about saving; a copy, because the engine's thread writes measured
     * speeds to k.platform. */
    struct platform platform;
    struct spans spans;     /* parts of hcache_open */
    int64_t n_start_passes; /* forward passes of hcache_open */
};

/* Computes the numbers of a truncation. If t->ratio is 0, none is asked for: then *out is all zero.
 * Returns 0, or the errors of hcache_truncation_check. */
int hcache_make_truncation(const struct hcache *h, const struct hcache_truncation *t,
                           struct truncation *out, struct err *err);
/* Adds to an automatic policy the records that a truncated context needs: only the first layer
 * can be recomputed. */
void hcache_save_for_truncation(const struct model *m, struct save_policy *p);

static inline struct err *hcache_inner(struct hcache_err *e)
{
    return (struct err *)(void *)e;
}

#endif
