/* cuda_plugin.c - loads the CUDA backend when device cuda is asked for.
 *
 * The backend is a shared library, hcache-cuda.so, so a plain build needs no nvcc and a program on
 * a CPU carries none of it.  It is looked for beside the program or libhcache.so, then in
 * ../lib/hcache and in hcache/ from there; HCACHE_PLUGINS names another folder.  (A program that
 * links cuda/ itself has these functions from there, and this object stays in the archive.) */
#include "tensor/cuda_plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct cuda_plugin *plugin; /* NULL: not found; set once */
static char reason[512];                 /* why it was not found */

/* Loads one file. Returns whether it could be loaded, also if it is of another build. */
static bool load(const char *path)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL)
        return false;
    const struct cuda_plugin *p = dlsym(lib, "hcache_cuda_plugin");
    if (p != NULL && p->version == CUDA_PLUGIN_VERSION && p->layout == CUDA_PLUGIN_LAYOUT)
        plugin = p;
    else
        snprintf(reason, sizeof reason, "%s is of another build of hcache: build it again",
                 path);
    return true;
}

/* Returns the path of libhcache.so or of the program, which the caller frees; NULL: unknown. */
static char *own_file(void)
{
    Dl_info at;
    bool is_known = dladdr((void *)(uintptr_t)own_file, &at) != 0 && at.dli_fname != NULL &&
                    strchr(at.dli_fname, '/') != NULL;
    return realpath(is_known ? at.dli_fname : "/proc/self/exe", NULL);
}

static void find_in(const char *folder, const char *const *places, int n)
{
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%s/hcache-cuda.so", folder, places[i]);
        if (load(path))
            return;
    }
    snprintf(
        reason, sizeof reason,
        "hcache-cuda.so cannot be loaded from %s (%s): install the CUDA toolkit (nvcc) and "
        "run make",
        folder, dlerror());
}

static void find(void)
{
    static const char *const places[] = {"", "/../lib/hcache", "/hcache"};
    const char *chosen = getenv("HCACHE_PLUGINS");
    char *own = own_file(), *slash = own != NULL ? strrchr(own, '/') : NULL;
    if (slash != NULL)
        *slash = '\0';
    if (chosen != NULL)
        find_in(chosen, places, 1);
    else
        find_in(own != NULL ? own : ".", places, 3);
    free(own);
}

static int need(struct err *err)
{
    pthread_once(&once, find);
    return plugin != NULL ? 0 : err_set(err, ERR_UNSUPPORTED, "device cuda: %s", reason);
}

int cuda_device_open(const struct device_opts *o, int index, struct pool *pool,
                     struct device **out, struct err *err)
{
    int rc = need(err);
    return rc != 0 ? rc : plugin->device_open(o, index, pool, out, err);
}

int cuda_collective_open(const struct device *d, int first, int n_ranks,
                         struct collective **out, struct err *err)
{
    int rc = need(err);
    return rc != 0 ? rc : plugin->collective_open(d, first, n_ranks, out, err);
}

void cuda_connect(int n)
{
    if (need(NULL) == 0)
        plugin->connect(n);
}
