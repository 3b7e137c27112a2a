/* save_policy.c - see save_policy.h. */
#include "state/save_policy.h"

#include <string.h>

#include "policy/plan.h"

static void set_all(struct save_policy *p, int n_layers, unsigned kinds)
{
    for (int l = 0; l < n_layers; l++)
        p->kinds[l] = (uint8_t)kinds;
}

/* The records that the best plan reads for this many tokens. */
static int add_wanted(struct save_policy *p, const struct platform *platform, int n_layers,
                      int64_t n_tokens, struct err *err)
{
    struct plan_layer layer[STORE_MAX_LAYERS];
    struct plan_request req = {0};
    struct plan plan;
    plan_request_from_platform(platform, 0, n_tokens, 0, layer, NULL, &req);
    req.mode = PLAN_AUTO;
    int rc = plan_make(&req, &plan, err);
    for (int l = 0; rc == 0 && l < n_layers; l++) {
        if (plan.method[l] == 'H')
            p->kinds[l] |= SAVE_HIDDEN;
        if (plan.method[l] == 'K')
            p->kinds[l] |= SAVE_KV;
    }
    return rc;
}

static int make_auto(struct save_policy *p, const struct model *m,
                     const struct platform *platform, int64_t max_tokens, struct err *err)
{
    bool dominated = model_hidden_bytes(m) >= model_kv_bytes(m);
    int n_layers = m->cfg.n_layers, rc = 0;
    if (platform == NULL || platform->n_tiers == 0) {
        set_all(p, n_layers, SAVE_KV | (dominated ? 0 : SAVE_HIDDEN));
        return 0;
    }
    for (int64_t n = 512; rc == 0; n *= 2) {
        rc = add_wanted(p, platform, n_layers, n < max_tokens ? n : max_tokens, err);
        if (n >= max_tokens)
            break;
    }
    return rc;
}

static int from_letters(struct save_policy *p, const char *text, int n_layers,
                        struct err *err)
{
    if ((int)strlen(text) != n_layers)
        return err_set(
            err, ERR_USAGE,
            "--save '%s': must be auto, hidden, kv, both, none, or a letter for each of "
            "the %d layers (H, K, B, -)",
            text, n_layers);
    static const char letters[] = "-HKB";
    static const uint8_t kinds[] = {0, SAVE_HIDDEN, SAVE_KV, SAVE_HIDDEN | SAVE_KV};
    for (int l = 0; l < n_layers; l++) {
        const char *at = strchr(letters, text[l]);
        if (at == NULL)
            return err_set(err, ERR_USAGE, "--save '%s': '%c' is none of H, K, B, -", text,
                           text[l]);
        p->kinds[l] = kinds[at - letters];
    }
    return 0;
}

int save_policy_make(struct save_policy *out, const char *text, const struct model *m,
                     const struct platform *platform, int64_t max_tokens, struct err *err)
{
    static const struct {
        const char *name;
        unsigned kinds;
    } named[] = {{"none", 0},
                 {"hidden", SAVE_HIDDEN},
                 {"kv", SAVE_KV},
                 {"both", SAVE_HIDDEN | SAVE_KV}};
    *out = (struct save_policy){0};
    if (m->cfg.n_layers > STORE_MAX_LAYERS) /* nothing can be saved: the saver says so */
        return 0;
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (strcmp(text, named[i].name) == 0) {
            set_all(out, m->cfg.n_layers, named[i].kinds);
            return 0;
        }
    }
    if (strcmp(text, "auto") == 0)
        return make_auto(out, m, platform, max_tokens, err);
    return from_letters(out, text, m->cfg.n_layers, err);
}
