/* parallel.h - the options of every command that computes with a model by several devices, and their bounds.
 *
 * The command's struct has `int tensor_parallel, pipeline_parallel`; what they mean: docs/ARCHITECTURE.md,
 * "Several devices". */
#ifndef APPS_PARALLEL_H
#define APPS_PARALLEL_H

#include "base/opt.h"
#include "hcache.h"

/* Two rows of an option table; s: the type that has the two fields. */
/* clang-format off */
#define OPT_PARALLEL(s)                                                                    \
    {"tensor-parallel", OPT(s, tensor_parallel), .arg = "N", .def = "1", .min = 1,         \
     .max = HCACHE_MAX_DEVICES,                                                            \
     .help = "ranks that share each layer: GPUs; of the CPU, for tests"},                  \
    {"pipeline-parallel", OPT(s, pipeline_parallel), .arg = "N", .def = "1", .min = 1,     \
     .max = HCACHE_MAX_DEVICES,                                                            \
     .help = "stages that have a run of the layers each: GPUs; of the CPU, for tests"}
/* clang-format on */

#endif
