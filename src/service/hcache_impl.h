/* hcache_impl.h - what is behind the public interface; private to src/engine. */
#ifndef SERVICE_HCACHE_IMPL_H
#define SERVICE_HCACHE_IMPL_H

#include "service/dialog.h"
#include "service/service.h"
#include "service/stack.h"
#include "hcache.h"
#include "model/tokenizer.h"

_Static_assert(sizeof(struct hcache_err) == sizeof(struct err), "one layout of errors");

struct hcache {
    struct stack k;
    const struct hcache_opts *opening; /* inside hcache_open; else NULL */
    struct tokenizer *tokenizer;       /* NULL for synthetic models */
    struct dialog *dialog; /* NULL: no chat template, or one that is not understood: */
    struct err dialog_err; /* why */
    struct service *service;
    /* What saving is decided from.  The engine's thread measures into k.platform while it runs. */
    struct platform platform;
};

/* The numbers of a truncation; context 0 where none is asked for.  Errors as
 * hcache_truncation_check. */
int hcache_make_truncation(const struct hcache *h, const struct hcache_truncation *t,
                           struct truncation *out, struct err *err);
/* Adds to an automatic policy what a truncated context needs: no layer but the
 * first is recomputed. */
void hcache_save_for_truncation(const struct model *m, struct save_policy *p);

static inline struct err *hcache_inner(struct hcache_err *e)
{
    return (struct err *)(void *)e;
}

#endif
