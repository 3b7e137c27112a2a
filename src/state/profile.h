/* profile.h - measuring what this machine needs to restore this model, for the planner.
 *
 * A quick sample (well under a second for small models): one layer over a few hundred tokens near
 * position 0 and far from it, the K/V projection, the check and scatter of loaded records, and some
 * real reads.  The result is cached in a file beside the store and refused, with its reason, where
 * machine or model differ. */
#ifndef STATE_PROFILE_H
#define STATE_PROFILE_H

#include "model/model.h"
#include "policy/platform.h"
#include "store/store.h"

/* Names this machine and model in *p (platform_check compares them); everything else is zero. */
void profile_begin(struct platform *p, const struct model *m,
                   const struct sha256 *fingerprint);

/* Fills C_tok, C_H, C_KV, embedding and head costs. `w` and `s` as for a forward pass. */
int profile_compute(struct platform *p, const struct model *m, struct model_work *w,
                    struct stream *s, struct err *err);

/* Measures the read bandwidth and latency of the store on records of these hits (which exist, so
 * there is something to restore), through the path that restores use. */
int profile_io(struct platform *p, const struct model *m, struct store *store,
               const struct store_hit *hits, int n_hits, struct err *err);

/* Reads the cached profile: 0; -ENOENT where there is none; else why it cannot be used. */
int profile_load(struct platform *p, const char *path, const struct platform *expected,
                 struct err *err);
/* Written under another name, then renamed. Losing a profile costs a measurement, no more. */
int profile_store(const struct platform *p, const char *path, struct err *err);

#endif
