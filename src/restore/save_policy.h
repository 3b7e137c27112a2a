/* save_policy.h - the records that a model's layers are saved with: applies restore/save_kinds.h to
 * a model. */
#ifndef RESTORE_SAVE_POLICY_H
#define RESTORE_SAVE_POLICY_H

#include "model/model.h"
#include "restore/platform.h"
#include "save/saver.h"

/* Runs save_kinds_choose on `text`. A model with too many layers to be saved gets no records;
 * the saver then says why. */
int save_policy_make(struct save_policy *out, const char *text, const struct model *m,
                     const struct platform *platform, int64_t max_tokens, struct err *err);
/* Returns whether full chunks and snapshots are packed (save_policy.packs): "on", "off" (or NULL),
 * or "auto": they are if restores of the kinds that `save` names lose nothing (save_kinds_pack). */
bool save_policy_packs(const char *pack, const char *save, const struct model *m,
                       const struct platform *platform, int64_t max_tokens,
                       bool has_copies);
/* Adds the records that plans use beside decodes. */
int save_policy_add_beside(struct save_policy *p, const char *text, const struct model *m,
                           const struct platform *platform, int64_t max_tokens,
                           struct err *err);

#endif
