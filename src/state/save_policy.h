/* save_policy.h - which records a model's layers are saved with:
 * policy/save_kinds.h for a model. */
#ifndef STATE_SAVE_POLICY_H
#define STATE_SAVE_POLICY_H

#include "model/model.h"
#include "policy/platform.h"
#include "state/saver.h"

/* save_kinds_choose of `text`.  A model with too many layers to be saved gets none:
 * the saver says why. */
int save_policy_make(struct save_policy *out, const char *text, const struct model *m,
                     const struct platform *platform, int64_t max_tokens, struct err *err);
/* Adds what plans want of it beside decodes. */
int save_policy_add_beside(struct save_policy *p, const char *text, const struct model *m,
                           const struct platform *platform, int64_t max_tokens,
                           struct err *err);

#endif
