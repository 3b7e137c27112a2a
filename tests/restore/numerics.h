/* numerics.h - digests of all results of long runs of a backend, and their golden values.
 *
 * The table of a backend is text: a line with the declared versions, then one line per run:
 *
 *     versions: backend 1, model 1
 *     llama bf16 checkpoint prefill 0123456789abcdef
 *
 *     llama bf16 checkpoint logits 0123456789abcdef
 *
 * A digest covers each layer's input and output, and its K and V: they belong to saved state. The
 * line "logits" covers the logits of all rows, which no saved state depends on. */
#ifndef TESTS_RESTORE_NUMERICS_H
#define TESTS_RESTORE_NUMERICS_H

#include "tensor/tensor.h"

struct numerics_run {
    const char *model, *dtype, *weights; /* as in model_opts */
    int max_context;                     /* 0: the model's own limit */
};

/* Returns the table of a device, which the caller frees. `o` is as for device_open. `runs` ends
 * with an entry whose model is NULL. */
char *numerics_table(const char *device, const struct device_opts *o,
                     const struct numerics_run *runs);

/* Returns a message for developers that says how `now` differs from the committed table `golden`,
 * or NULL if they agree. `version` is the name of the backend's version constant. The caller frees
 * the result. */
char *numerics_compare(const char *golden, const char *now, const char *version);

/* Fails the test if the table differs from tests/restore/golden/numerics-NAME.txt.  With
 * HCACHE_WRITE_GOLDEN=1 it writes the file instead, unless bits changed and the version did not. */
void numerics_check(const char *name, const char *now, const char *version);

#endif
