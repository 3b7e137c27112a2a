/* profile_scratch.h - a store of random state, to measure a device before it holds any: for `hcache
 * profile`. One thread. */
#ifndef SIM_PROFILE_SCRATCH_H
#define SIM_PROFILE_SCRATCH_H

#include "restore/profile.h"

struct io;

/* A store of random state, so that a device can be measured before it holds any: in a folder
 * "profile-scratch" of each of `dirs`, or in memory (io NULL). */
struct profile_scratch;
int profile_scratch_open(const struct model *m, struct io *io, const char *const *dirs,
                         int n_dirs, struct profile_scratch **out, struct err *err);
struct profile_source profile_scratch_source(const struct profile_scratch *s);
/* Removes the store and its files. NULL is allowed. */
void profile_scratch_close(struct profile_scratch *s);

#endif
