/* save_policy.h - which kinds of state are written per layer (DESIGN §7: saving and restoring are two
 * decisions). */
#ifndef STATE_SAVE_POLICY_H
#define STATE_SAVE_POLICY_H

#include "model/model.h"
#include "policy/platform.h"
#include "state/saver.h"

/* `text`: "hidden", "kv", "both", "none", a letter per layer (H, K, B for both, - for neither), or
 * "auto": the kinds that the planner will want as the context grows to max_tokens.  As long as the
 * store's speed has not been measured (platform NULL or without a tier), auto keeps every kind that
 * could be in a best plan: KV alone where hidden states are no smaller, else both. */
int save_policy_make(struct save_policy *out, const char *text, const struct model *m,
                     const struct platform *platform, int64_t max_tokens, struct err *err);

#endif
