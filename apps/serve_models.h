/* serve_models.h - the models of `hcache serve`: given one by one, or found below a folder. */
#ifndef APPS_SERVE_MODELS_H
#define APPS_SERVE_MODELS_H

#include "api/client.h"
#include "api/models.h"
#include "base/err.h"
#include "opt/opt.h"

struct serve_models {
    int n, n_given; /* the first n_given were given; the others lie below the folder */
    char **paths;   /* [n] */
    struct model_names *names; /* [n] */
    struct hcache_opts *opts;  /* [n] each one's options, set once it is open */
    struct models *models;     /* NULL: not open */
};

/* Finds the models: those that are given, by path or by the name of a fetched one, and those below
 * the folder (NULL: none), by path. Their names are those of their files or folders; of two equal
 * names below the folder, the path below it. Returns ERR_USAGE if two given ones have the same
 * name, and ERR_NOT_FOUND if there is no model. serve_models_deinit also after an error. */
int serve_models_find(struct serve_models *s, const struct opt_list *given,
                      const char *folder, struct err *err);
/* Gives the models other names: of a list of MODEL=NAME, MODEL is a name that serve_models_find has
 * given. The first NAME of a model replaces that name, and the others are accepted, too. Returns
 * ERR_USAGE for an unknown model, and for a name that two models have. */
int serve_models_rename(struct serve_models *s, const struct opt_list *names,
                        struct err *err);
/* Opens the models with the same options, and loads one: the first that was given, or else the
 * first below the folder that can be loaded. *first is its number; it is in use. */
int serve_models_open(struct serve_models *s, const struct models_opts *o,
                      const struct hcache_opts *each, int *first, struct hcache **h,
                      struct err *err);
void serve_models_deinit(struct serve_models *s);

#endif
