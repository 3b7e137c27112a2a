/* api_keys.h - API keys from options and files, and the tenants that they identify. */
#ifndef APPS_API_KEYS_H
#define APPS_API_KEYS_H

#include "base/err.h"
#include "opt/opt.h"

/* API keys; {0} is an empty list. */
struct api_keys {
    const char **items;
    int n;
    char **files; /* contents of the key files; items point into them */
    int n_files;
};

/* Adds the keys of --OPTION, and the keys of a file with one key per line (NULL: no file). The
 * list's strings must live as long as *k. Returns ERR_USAGE if one of them cannot be a key, or if
 * the file has none. */
int api_keys_add(struct api_keys *k, const struct opt_list *list, const char *option,
                 const char *file, struct err *err);
void api_keys_deinit(struct api_keys *k);

/* The tenants of a server's files: [0] is "", for requests without a key. Then there is one for
 * each key. */
struct tenant_names {
    int n;
    char (*of)[65];
};
/* Computes the tenants of the keys.  k is not needed afterwards. */
void tenant_names_make(const struct api_keys *k, struct tenant_names *out);
void tenant_names_deinit(struct tenant_names *t);

#endif
