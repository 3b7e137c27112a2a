/* store_option.h - what --store says, wherever a command has it: folders, or the word memory. */
#ifndef APPS_STORE_OPTION_H
#define APPS_STORE_OPTION_H

#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/opt.h"

static const char *const store_directs[] = {"auto", "on", "off", NULL};
/* A row of an option table; s: the type that has `const char *gpu_direct`. */
#define OPT_GPU_DIRECT(s)                                                                  \
    {                                                                                      \
        "gpu-direct", OPT(s, gpu_direct),                                                  \
            .choices = store_directs, .def = "auto",                                       \
            .help = "read the store straight into a GPU's memory, by cuFile; on: or fail"  \
    }

static inline bool store_is_memory(const struct opt_list *store)
{
    return store->n == 1 && strcmp(store->items[0], "memory") == 0;
}

static inline bool store_is_on_disk(const struct opt_list *store)
{
    return store->n > 0 && !store_is_memory(store);
}

/* ERR_USAGE where the word stands among folders. */
static inline int store_check(const struct opt_list *store, struct err *err)
{
    for (int i = 0; store->n > 1 && i < store->n; i++)
        if (strcmp(store->items[i], "memory") == 0)
            return err_set(
                err, ERR_USAGE,
                "--store: memory stands alone; a folder of that name is ./memory");
    return 0;
}

#endif
