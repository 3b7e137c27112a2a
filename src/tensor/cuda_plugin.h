/* cuda_plugin.h - what the CUDA backend's shared library and the program agree on.
 *
 * The library, hcache-cuda.so, exports one object, `hcache_cuda_plugin`.  It has its own copies of
 * the functions of base/ and tensor/ that it uses; devices, streams and operations cross as
 * pointers. */
#ifndef TENSOR_CUDA_PLUGIN_H
#define TENSOR_CUDA_PLUGIN_H

#include "tensor/device.h"
#include "tensor/ops.h"

struct cuda_plugin {
    int version;   /* CUDA_PLUGIN_VERSION */
    size_t layout; /* CUDA_PLUGIN_LAYOUT */
    int (*device_open)(const struct device_opts *o, struct pool *pool, struct device **out,
                       struct err *err);
};

/* Raise this if the meaning of something that crosses changes. */
#define CUDA_PLUGIN_VERSION 3

/* Differs if one side was built with other structs. */
#define CUDA_PLUGIN_LAYOUT                                                                 \
    (sizeof(struct device) + 8191 * sizeof(struct ops) +                                   \
     131071 * sizeof(struct device_opts) + 524287 * sizeof(struct stream))

#endif
