/* profile.h - measuring what this machine needs to restore this model, for the planner.
 *
 * There is one profile per store and model: a platform file beside the state that it describes.
 * `hcache profile` measures it in full (seconds); without it, opening a store measures a quick
 * sample (well under a second for small models).  A file of another machine or model, or with
 * numbers that cannot be, is refused with its reason and measured again.  Restores then correct it
 * as they go (policy/correction.h).
 *
 * Compute: single layers over a few hundred tokens near position 0 and far from it, the K/V
 * projection by rows, the check and scatter of loaded records; curves are fitted by regression.
 * I/O: records of both kinds through the path that restores use, few and many at once. */
#ifndef STATE_PROFILE_H
#define STATE_PROFILE_H

#include "model/model.h"
#include "policy/platform.h"
#include "store/store.h"

struct io;

enum profile_effort {
    PROFILE_QUICK, /* as many samples as a curve needs */
    PROFILE_FULL,  /* more of them than needed, so that R² says something */
};

/* --- the file --- */

/* Names this machine and model in *p (platform_check compares them); everything else is zero. */
void profile_begin(struct platform *p, const struct model *m,
                   const struct sha256 *fingerprint);
/* Whether other work took the processors away while it was measured: such a profile is used,
 * for there is no better one, but not kept. */
bool profile_is_disturbed(const struct platform *p);
/* Where the profile of a store in `dir` lies. The caller's to free. */
char *profile_path(const char *dir, const struct sha256 *fingerprint);
/* Reads a profile: 0; -ENOENT where there is none; else why it cannot be used. */
int profile_load(struct platform *p, const char *path, const struct platform *expected,
                 struct err *err);
/* Written under another name, then renamed. Losing a profile costs a measurement, no more. */
int profile_store(const struct platform *p, const char *path, struct err *err);

/* What a built-in platform needs to know of a model; elem_bytes as in struct platform_shape. `name`
 * stays the caller's. */
struct platform_shape profile_shape(const char *name, const struct model_config *c,
                                    double elem_bytes);

/* --- compute --- */

/* Fills C_tok, C_H, C_KV, embedding and head costs. `w` and `s` as for a forward pass. */
int profile_compute(struct platform *p, const struct model *m, struct model_work *w,
                    struct stream *s, enum profile_effort effort, struct err *err);

/* Rows in one call of the layers that it measures (platform.piece_tokens). */
int profile_rows(const struct model *m, const struct model_work *w);
/* Device memory that a quick one takes at most, beside `w` and `s`. */
size_t profile_device_bytes(const struct model *m, int max_rows);

/* --- I/O --- */

/* Where stored records can be read from: all hits have at least one record. */
struct profile_source {
    struct store *store;
    const struct store_hit *hits;
    int n_hits;
};

/* Measures the latency, the time per record and the bandwidth of reading these records, through the
 * path that restores use; a full one also by queue depth.  t->name is the caller's. */
int profile_tier(struct platform_tier *t, const struct model *m,
                 const struct profile_source *from, enum profile_effort effort,
                 struct err *err);

/* How fast host memory at `from`, at most `bytes`, goes up to a stage of a device that has
 * memory of its own, and how fast its ranks then gather their shares: t->up_bytes_per_s and
 * gather_bytes_per_s.  0 where memory is unified, and where there is one rank. */
#define PROFILE_COPY_BYTES ((size_t)16 << 20) /* of device memory, at most */
int profile_copies(struct device *d, const void *from, size_t bytes,
                   struct platform_tier *t, struct err *err);

/* How much reading slows projection down, and the reverse: fills the overlap factors.
 * Takes about a third of a second. */
int profile_overlap(struct platform *p, const struct model *m, struct model_work *w,
                    struct stream *s, const struct profile_source *from, struct err *err);

/* What the engine does when a context is found and no tier has been measured: tier 0, quickly, from
 * what there is to restore. */
int profile_io(struct platform *p, const struct model *m, struct store *store,
               const struct store_hit *hits, int n_hits, struct err *err);

/* A store of made-up state, so that a device can be measured before it holds any: in a folder
 * "profile-scratch" of each of `dirs`, or in memory (io NULL). */
struct profile_scratch;
int profile_scratch_open(const struct model *m, struct io *io, const char *const *dirs,
                         int n_dirs, struct profile_scratch **out, struct err *err);
struct profile_source profile_scratch_source(const struct profile_scratch *s);
/* Removes it. NULL is allowed. */
void profile_scratch_close(struct profile_scratch *s);

#endif
