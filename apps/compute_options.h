/* compute_options.h - the options of every command that computes with a model.
 *
 * The command's struct has `const char *dtype, *weights, *device; int threads, tensor_parallel,
 * pipeline_parallel`, and gives them to hcache_opts or stack_opts as they are.  What the last two mean:
 * docs/ARCHITECTURE.md, "Several devices". */
#ifndef APPS_COMPUTE_OPTIONS_H
#define APPS_COMPUTE_OPTIONS_H

#include "base/opt.h"
#include "hcache.h"

static const char *const compute_dtypes[] = {"f32", "bf16", "f16", NULL};
static const char *const compute_weights[] = {"checkpoint", "q8", NULL};
static const char *const compute_devices[] = {"cpu", "ref", "cuda", NULL};

/* Rows of an option table; s: the type that has the fields. */
/* clang-format off */
#define OPT_DTYPE(s)                                                                       \
    {"dtype", OPT(s, dtype), .choices = compute_dtypes,                                    \
     .help = "state dtype; the checkpoint's by default"}
#define OPT_WEIGHTS(s)                                                                     \
    {"weights", OPT(s, weights), .choices = compute_weights, .def = "checkpoint",          \
     .help = "how matrices are held: in the checkpoint's type, or in 8 bits (q8)"}
#define OPT_THREADS(s)                                                                     \
    {"threads", OPT(s, threads), .arg = "N", .def = "0", .min = 0, .max = 1024,            \
     .help = "compute threads; 0 is one per core that it may use"}
#define OPT_DEVICE(s)                                                                      \
    {"device", OPT(s, device), .choices = compute_devices, .def = "cpu",                   \
     .help = "where to compute; ref is slow, for checking"}
#define OPT_PARALLEL(s)                                                                    \
    {"tensor-parallel", OPT(s, tensor_parallel), .arg = "N", .def = "1", .min = 1,         \
     .max = HCACHE_MAX_DEVICES,                                                            \
     .help = "ranks that share each layer: GPUs; of the CPU, for tests"},                  \
    {"pipeline-parallel", OPT(s, pipeline_parallel), .arg = "N", .def = "1", .min = 1,     \
     .max = HCACHE_MAX_DEVICES,                                                            \
     .help = "stages that have a run of the layers each: GPUs; of the CPU, for tests"}
#define OPT_BATCH_ROWS(s)                                                                  \
    {"batch-rows", OPT(s, batch_rows), .arg = "N", .def = "0", .min = 0,                   \
     .max = HCACHE_MAX_BATCH_ROWS,                                                         \
     .help = "tokens of one forward pass at most, 512 or more; 0: what suits the device "  \
             "(512 on a CPU, 2048 on a GPU)"}
#define OPT_COMPUTE(s) OPT_DTYPE(s), OPT_WEIGHTS(s), OPT_THREADS(s), OPT_PARALLEL(s), OPT_DEVICE(s)
/* clang-format on */

#endif
