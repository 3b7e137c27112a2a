/* save_policy.c - see save_policy.h. */
#include "restore/save_policy.h"

#include <string.h>

#include "restore/save_kinds.h"

_Static_assert(SAVE_HIDDEN == PLAN_HAS_H && SAVE_KV == PLAN_HAS_KV, "the same bits");
_Static_assert(STORE_MAX_LAYERS <= PLAN_MAX_LAYERS,
               "all layers that are saved are planned");

static struct save_kinds_from
from_model(const struct model *m, const struct platform *platform, int64_t max_tokens)
{
    return (struct save_kinds_from){.n_layers = config_n_keeping(&m->cfg),
                                    .recurrent = m->cfg.recurrent,
                                    .h_bytes = (double)model_hidden_bytes(m),
                                    .kv_bytes = model_mean_kv_bytes(m),
                                    .pack_share = SAVE_PACK_SHARE(save_pack_type(m->dtype)),
                                    .platform = platform,
                                    .max_tokens = max_tokens};
}

int save_policy_make(struct save_policy *out, const char *text, const struct model *m,
                     const struct platform *platform, int64_t max_tokens, struct err *err)
{
    struct save_kinds_from from = from_model(m, platform, max_tokens);
    *out = (struct save_policy){0};
    return config_n_keeping(&m->cfg) > STORE_MAX_LAYERS
               ? 0
               : save_kinds_choose(text, &from, out->kinds, err);
}

bool save_policy_packs(const char *pack, const char *save, const struct model *m,
                       const struct platform *platform, int64_t max_tokens, bool has_copies)
{
    struct save_kinds_from from = from_model(m, platform, max_tokens);
    from.has_copies = has_copies;
    if (strcmp(save, "hidden") == 0 || strcmp(save, "kv") == 0)
        from.saved = *save == 'k' ? PLAN_HAS_KV : PLAN_HAS_H;
    if (pack == NULL || config_n_keeping(&m->cfg) > STORE_MAX_LAYERS)
        return false;
    return strcmp(pack, "auto") == 0 ? save_kinds_pack(&from) : strcmp(pack, "on") == 0;
}

int save_policy_add_beside(struct save_policy *p, const char *text, const struct model *m,
                           const struct platform *platform, int64_t max_tokens,
                           struct err *err)
{
    struct save_kinds_from from = from_model(m, platform, max_tokens);
    return config_n_keeping(&m->cfg) > STORE_MAX_LAYERS
               ? 0
               : save_kinds_add_beside(text, &from, p->kinds, err);
}
