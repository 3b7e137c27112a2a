/* numerics.h - digests of everything that long runs of a backend compute, and their golden values.
 *
 * The table of a backend is text: a line with the declared versions, then a line per run:
 *
 *     versions: backend 1, model 1
 *     llama bf16 checkpoint prefill 0123456789abcdef
 *
 * A digest covers each layer's input, K and V, and the logits of the run's rows. */
#ifndef TESTS_STATE_NUMERICS_H
#define TESTS_STATE_NUMERICS_H

#include "tensor/tensor.h"

struct numerics_run {
    const char *model, *dtype, *weights; /* as model_opts has them */
    int max_context;                     /* 0: the model's own */
};

/* The table of a device for runs that end with a NULL model.  o: as for
 * device_open.  The caller frees it. */
char *numerics_table(const char *device, const struct device_opts *o,
                     const struct numerics_run *runs);

/* What is wrong with `now` where `golden` was committed, for developers; NULL: nothing.
 * `version` is the name of the backend's version.  The caller frees it. */
char *numerics_compare(const char *golden, const char *now, const char *version);

/* Fails the test where the table differs from tests/state/golden/numerics-NAME.txt.  With
 * HCACHE_WRITE_GOLDEN=1 the file is written instead, unless bits changed under an
 * unchanged version. */
void numerics_check(const char *name, const char *now, const char *version);

#endif
