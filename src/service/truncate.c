/* truncate.c - the public interface's truncation: its texts and its bounds. */
#include <stdlib.h>
#include <string.h>

#include "service/hcache_impl.h"

enum { DEFAULT_KEEP = 64 };

/* Reads NAME=NUMBER. Fails if the number was given before. */
static bool read_count(const char *text, const char *name, int *out)
{
    size_t n = strlen(name);
    char *end;
    if (strncmp(text, name, n) != 0 || text[n] != '=')
        return false;
    long v = strtol(text + n + 1, &end, 10);
    if (*out != 0 || end == text + n + 1 || (*end != 0 && *end != ',') || v < 1 ||
        v > 1 << 30)
        return false;
    *out = (int)v;
    return true;
}

/* Reads the ratio, a decimal number. Fails if it was given before. */
static bool read_ratio(const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);
    bool is_decimal = text + strspn(text, "0123456789.eE-") == end;
    if (*out != 0 || !is_decimal || end == text || (*end != 0 && *end != ',') ||
        !(v > 0 && v < 1))
        return false;
    *out = v;
    return true;
}

int hcache_truncation_parse(const char *text, struct hcache_truncation *out,
                            struct hcache_err *err)
{
    *out = (struct hcache_truncation){0};
    if (strcmp(text, "off") == 0)
        return 0;
    for (const char *at = text; at != NULL;) {
        if (!read_count(at, "keep", &out->keep) &&
            !read_count(at, "context", &out->context) && !read_ratio(at, &out->ratio))
            return err_set(
                hcache_inner(err), ERR_USAGE,
                "truncate '%s': must be off, or a ratio above 0 and below 1, then "
                "keep=K and context=C",
                text);
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return out->ratio > 0 ? 0
                          : err_set(hcache_inner(err), ERR_USAGE,
                                    "truncate '%s': the ratio is missing", text);
}

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
    for (int l = 1; l < m->cfg.n_layers && l < STORE_MAX_LAYERS; l++)
        if (p->kinds[l] == 0)
            p->kinds[l] = SAVE_KV;
}
