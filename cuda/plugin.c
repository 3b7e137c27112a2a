/* plugin.c - the one object that hcache-cuda.so exports (tensor/cuda_plugin.h). */
#include "tensor/cuda_plugin.h"

extern const struct cuda_plugin hcache_cuda_plugin;
__attribute__((visibility("default")))
const struct cuda_plugin hcache_cuda_plugin = {.version = CUDA_PLUGIN_VERSION,
                                               .layout = CUDA_PLUGIN_LAYOUT,
                                               .device_open = cuda_device_open};
