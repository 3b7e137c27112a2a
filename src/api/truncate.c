/* truncate.c - the public interface's truncation: its bounds. */
#include "api/hcache_impl.h"

enum { DEFAULT_KEEP = 64 };

int hcache_make_truncation(const struct hcache *h, const struct hcache_truncation *t,
                           struct truncation *out, struct err *err)
{
    const struct model *m = h->k.model;
    int keep = t->keep > 0 ? t->keep : DEFAULT_KEEP;
    struct truncation_ask ask = {.context = t->context > 0 ? t->context : m->cfg.max_ctx,
                                 .ratio = t->ratio,
                                 .keep = keep};
    *out = (struct truncation){0};
    if (t->ratio == 0)
        return 0;
    int rc = model_check_truncation(m, err);
    if (rc == 0)
        rc = truncation_make(&ask, false, out, err);
    if (rc == 0 && out->context > m->cfg.max_ctx)
        rc = err_set(
            err, ERR_USAGE,
            "truncation: the window is %d tokens, and the model's own context is %d: "
            "give a smaller context=",
            out->context, m->cfg.max_ctx);
    if (rc == 0 && out->context > m->max_ctx)
        rc = err_set(
            err, ERR_USAGE,
            "truncation: the window is %d tokens, and there is room for contexts of "
            "%d: raise --max-context, or give a smaller context=",
            out->context, m->max_ctx);
    int64_t pool = (int64_t)kv_pool_n_blocks(engine_pool(h->k.engine)) * KV_BLOCK_TOKENS;
    if (rc == 0 && out->context > pool)
        rc = err_set(
            err, ERR_USAGE,
            "truncation: the window is %d tokens, and the KV cache holds %lld: raise "
            "--kv-tokens, or give a smaller context=",
            out->context, (long long)pool);
    return rc;
}

int hcache_truncation_check(const struct hcache *h, const struct hcache_truncation *t,
                            int *step, struct hcache_err *err)
{
    struct truncation made;
    int rc = hcache_make_truncation(h, t, &made, hcache_inner(err));
    if (step != NULL)
        *step = made.step;
    return rc;
}

void hcache_save_for_truncation(const struct model *m, struct save_policy *p)
{
    for (int l = 1; l < config_n_keeping(&m->cfg) && l < STORE_MAX_LAYERS; l++)
        if (p->kinds[l] == 0)
            p->kinds[l] = SAVE_KV;
}
