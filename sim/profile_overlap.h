/* profile_overlap.h - how reading and compute slow each other, for `hcache profile` and
 * benchmarks. */
#ifndef SIM_PROFILE_OVERLAP_H
#define SIM_PROFILE_OVERLAP_H

#include "restore/profile.h"

/* Measures how much reading slows projection down, and the reverse; fills the overlap factors.
 * Takes about a third of a second. */
int profile_overlap(struct platform *p, const struct model *m, struct model_work *w,
                    struct stream *s, const struct profile_source *from, struct err *err);

#endif
