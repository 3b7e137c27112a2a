/* api_keys.h - API keys from options and files, and the tenants that they stand for. */
#ifndef APPS_API_KEYS_H
#define APPS_API_KEYS_H

#include "base/err.h"
#include "base/opt.h"

/* {0} is empty. */
struct api_keys {
    const char **items;
    int n;
    char **files; /* texts that items point into */
    int n_files;
};

/* Adds the keys of --OPTION, and of a file (NULL: none) with a key in each line.  Keys of the list
 * must stay as long as *k.  ERR_USAGE where one of them is no key, or the file has none. */
int api_keys_add(struct api_keys *k, const struct opt_list *list, const char *option,
                 const char *file, struct err *err);
void api_keys_deinit(struct api_keys *k);

/* Tenants of a server's files: [0] is "", of requests without a key, then one for each key. */
struct tenant_names {
    int n;
    char (*of)[65];
};
/* The keys are not needed any more. */
void tenant_names_make(const struct api_keys *k, struct tenant_names *out);
void tenant_names_deinit(struct tenant_names *t);

#endif
