/* plugin.c - see plugin.h. */
#include "tensor/plugin.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the path of libhcache.so or of the program, which the caller frees; NULL: unknown. */
static char *own_file(void)
{
    Dl_info at;
    int is_known = dladdr((void *)(uintptr_t)own_file, &at) != 0 && at.dli_fname != NULL &&
                   strchr(at.dli_fname, '/') != NULL;
    return realpath(is_known ? at.dli_fname : "/proc/self/exe", NULL);
}

const void *plugin_symbol(const char *file, const char *symbol, const char *advice,
                          char *reason, size_t room)
{
    static const char *const places[] = {"", "/../lib/hcache", "/hcache"};
    const char *chosen = getenv("HCACHE_PLUGINS");
    char *own = own_file(), *slash = own != NULL ? strrchr(own, '/') : NULL;
    if (slash != NULL)
        *slash = '\0';
    const char *folder = chosen != NULL ? chosen : own != NULL ? own : ".";
    const void *found = NULL;
    void *lib = NULL;
    for (int i = 0; lib == NULL && i < (chosen != NULL ? 1 : 3); i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%s/%s", folder, places[i], file);
        lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (lib == NULL)
        snprintf(reason, room, "%s cannot be loaded from %s (%s): %s", file, folder,
                 dlerror(), advice);
    else if ((found = dlsym(lib, symbol)) == NULL)
        snprintf(reason, room, "%s is of another build of hcache: build it again", file);
    free(own);
    return found;
}
