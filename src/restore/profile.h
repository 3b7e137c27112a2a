/* profile.h - measures the speeds of this machine that the planner needs to restore this model.
 *
 * There is one profile per store and model: a platform file beside the state that it describes.
 * `hcache profile` measures it in full (seconds). Without it, opening a store measures a quick
 * sample (well under a second for small models). A file of another machine or model, or with
 * impossible numbers, is refused with its reason and measured again. Restores then correct it as
 * they run (restore/correction.h).
 *
 * Compute: single layers over a few hundred tokens near position 0 and far from it, the K/V
 * projection by rows, the check and scatter of loaded records. Curves are fitted by regression.
 * I/O: records of both kinds through the path that restores use, few and many at once. */
#ifndef RESTORE_PROFILE_H
#define RESTORE_PROFILE_H

#include "model/model.h"
#include "restore/platform.h"
#include "store/store.h"

enum profile_effort {
    PROFILE_QUICK, /* as many samples as a curve needs */
    PROFILE_FULL,  /* more samples than needed, so that R² is meaningful */
};

/* --- the file --- */

/* Initialises *p (platform_init), and sets the names of this machine and model, which
 * platform_check compares, the date, and the sizes of the model and the device group. */
void profile_begin(struct platform *p, const struct model *m,
                   const struct sha256 *fingerprint);
/* Returns whether other work took the processors away during the measurement. Such a profile is
 * used, since there is no better one, and measured again on another day. */
bool profile_is_disturbed(const struct platform *p);
/* Returns the path of the profile of a store in `dir`. The caller frees it. */
char *profile_path(const char *dir, const struct sha256 *fingerprint);
/* Reads a profile. Returns 0; -ENOENT if there is none; else a code whose message says why the
 * file cannot be used. */
int profile_load(struct platform *p, const char *path, const struct platform *expected,
                 struct err *err);
/* Writes a temporary file, then renames it. A lost profile costs only a new measurement. */
int profile_store(const struct platform *p, const char *path, struct err *err);

/* Returns the part of a model that a built-in platform needs; elem_bytes as in struct
 * platform_shape. `name` is borrowed. */
struct platform_shape profile_shape(const char *name, const struct model_config *c,
                                    double elem_bytes);

/* --- compute --- */

/* Fills C_tok, C_H, C_KV, embedding and head costs. `w` and `s` are the working memory and the
 * stream of a forward pass. */
int profile_compute(struct platform *p, const struct model *m, struct model_work *w,
                    struct stream *s, enum profile_effort effort, struct err *err);

/* Returns the seconds of the fastest of n_runs projections of `rows` rows in layer 0, or of replays
 * if that is recurrent; INFINITY: there is no memory for it. */
double profile_projection_s(const struct model *m, struct model_work *w, struct stream *s,
                            int rows, int n_runs);

/* Returns the number of rows that one call of the measured layers has (platform.piece_tokens). */
int profile_rows(const struct model *m, const struct model_work *w);
/* Returns the most device memory that a quick profile takes, in addition to `w` and `s`. */
size_t profile_device_bytes(const struct model *m, int max_rows);

/* --- I/O --- */

/* Stored records to read from. Every hit has at least one record. */
struct profile_source {
    struct store *store;
    const struct store_hit *hits;
    int n_hits;
};

/* Measures the latency, the time per record and the bandwidth of reading these records, through the
 * path that restores use, and of their copies up (profile_copies). A full profile takes more rounds
 * of samples. t->name is not changed. */
int profile_tier(struct platform_tier *t, const struct model *m,
                 const struct profile_source *from, enum profile_effort effort,
                 struct err *err);

/* Most device memory that profile_copies takes. */
#define PROFILE_COPY_BYTES ((size_t)16 << 20)
/* Measures how fast host memory at `from`, at most `bytes`, goes up to a stage of a device that has
 * memory of its own (t->up_bytes_per_s), and how fast its ranks then gather their shares
 * (gather_bytes_per_s). Both are 0 if memory is unified. With one rank gather_bytes_per_s is 0. */
int profile_copies(struct device *d, const void *from, size_t bytes,
                   struct platform_tier *t, struct err *err);

/* Measures tier 0 quickly from the chunks to restore. The engine calls it when a context is
 * found and no tier has been measured. */
int profile_io(struct platform *p, const struct model *m, struct store *store,
               const struct store_hit *hits, int n_hits, struct err *err);

/* Checks a profile that is older than the process, before the first plan. Reads records of the
 * store and projects rows of layer 0, each for about a millisecond by the profile, and corrects *p
 * (correction_check). A cost that cannot be measured keeps its value. */
void profile_check(struct platform *p, const struct model *m, struct model_work *w,
                   struct stream *s, struct store *store, const struct sha256 *fingerprint);

#endif
