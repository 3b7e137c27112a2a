/* cuda_plugin.c - loads the CUDA backend when device cuda is asked for.
 *
 * The backend is a shared library, hcache-cuda.so, so a plain build needs no nvcc and a program on
 * a CPU carries none of it.  (A program that links cuda/ itself has these functions from there, and
 * this object stays in the archive.) */
#include "tensor/cuda_plugin.h"

#include <pthread.h>
#include <stdio.h>

#include "tensor/plugin.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct cuda_plugin *plugin; /* NULL: not found; set once */
static char reason[512];                 /* why it was not found */

static void find(void)
{
    const struct cuda_plugin *p = plugin_symbol(
        "hcache-cuda.so", "hcache_cuda_plugin",
        "install the CUDA toolkit (nvcc) and run make", reason, sizeof reason);
    if (p == NULL)
        return;
    if (p->version == CUDA_PLUGIN_VERSION && p->layout == CUDA_PLUGIN_LAYOUT)
        plugin = p;
    else
        snprintf(reason, sizeof reason,
                 "hcache-cuda.so is of another build of hcache: build it again");
}

static int need(struct err *err)
{
    pthread_once(&once, find);
    return plugin != NULL ? 0 : err_set(err, ERR_UNSUPPORTED, "device cuda: %s", reason);
}

int cuda_device_open(const struct device_opts *o, struct pool *pool, struct device **out,
                     struct err *err)
{
    int rc = need(err);
    return rc != 0 ? rc : plugin->device_open(o, pool, out, err);
}
