/* serve_models.c - see serve_models.h. */
#include "apps/serve_models.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/engine_options.h"
#include "apps/hub.h"
#include "base/mem.h"
#include "model/pack_file.h"
#include "tensor/peers.h"

/* A folder of models may have folders of owners, and these of repositories. */
enum { MAX_DEPTH = 4, MAX_MODELS = 1000 };

/* --- finding ---------------------------------------------------------------------------------- */

static void add(struct serve_models *s, char *path)
{
    s->paths = xrealloc(s->paths, (size_t)(s->n + 1) * sizeof *s->paths);
    s->paths[s->n++] = path;
}

static bool has_file(const char *dir, const char *name)
{
    struct stat st;
    char *path = xasprintf("%s/%s", dir, name);
    bool yes = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    return yes;
}

/* Adds the models below a folder that is no model itself. */
static int look_below(struct serve_models *s, const char *dir, int depth, struct err *err)
{
    DIR *d = opendir(dir);
    int rc = 0;
    if (d == NULL)
        return depth > 0 ? 0 /* another user's */
                         : err_set(err, -errno, "--models %s: %s", dir, strerror(errno));
    for (struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;) {
        struct stat st;
        char *path = xasprintf("%s/%s", dir, e->d_name);
        bool is_dir = e->d_name[0] != '.' && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
        bool is_file = e->d_name[0] != '.' && stat(path, &st) == 0 && S_ISREG(st.st_mode);
        bool is_model = (is_dir && has_file(path, "config.json")) ||
                        (is_file && (hub_file_is(e->d_name, "") || pack_file_is(path)));
        if (is_model && s->n >= MAX_MODELS)
            rc = err_set(err, ERR_LIMIT, "--models %s: more than %d models lie below it",
                         dir, MAX_MODELS);
        else if (is_model)
            add(s, xstrdup(path));
        else if (is_dir && depth < MAX_DEPTH)
            rc = look_below(s, path, depth + 1, err);
        free(path);
    }
    closedir(d);
    return rc;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Returns the bytes of a model's file, or of the files in its folder. */
static uint64_t bytes_of(const char *path)
{
    struct stat st;
    uint64_t sum = 0;
    DIR *d = opendir(path);
    if (d == NULL)
        return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char *file = xasprintf("%s/%s", path, e->d_name);
        if (stat(file, &st) == 0 && S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_size;
        free(file);
    }
    closedir(d);
    return sum;
}

static bool is_taken(const struct serve_models *s, int n, const char *name)
{
    int i = 0;
    while (i < n && strcmp(s->names[i].items[0], name) != 0)
        i++;
    return i < n;
}

static int name_models(struct serve_models *s, const char *folder, struct err *err)
{
    s->names = xcalloc((size_t)s->n + 1, sizeof *s->names);
    for (int i = 0; i < s->n; i++) {
        const char **items = xcalloc(1, sizeof *items);
        char *name = engine_model_name(s->paths[i]);
        s->names[i] = (struct model_names){.items = items,
                                           .n = 1,
                                           .path = s->paths[i],
                                           .file_bytes = bytes_of(s->paths[i]),
                                           .served = s->names,
                                           .n_served = s->n};
        if (is_taken(s, i, name) && i >= s->n_given) {
            free(name);
            name = xstrdup(s->paths[i] + strlen(folder) +
                           strspn(s->paths[i] + strlen(folder), "/"));
        }
        items[0] = name;
        if (is_taken(s, i, name))
            return err_set(
                err, ERR_USAGE,
                "two models have the name %s: %s is the second; rename its file or "
                "folder",
                name, s->paths[i]);
    }
    return 0;
}

int serve_models_find(struct serve_models *s, const struct opt_list *given,
                      const char *folder, struct err *err)
{
    int rc = 0;
    *s = (struct serve_models){0};
    for (int i = 0; rc == 0 && i < given->n; i++) {
        char *path = NULL;
        rc = hub_find(given->items[i], getenv("HCACHE_MODELS"), &path, err);
        if (rc == 0)
            add(s, path != NULL ? path : xstrdup(given->items[i]));
    }
    s->n_given = s->n;
    if (rc == 0 && folder != NULL)
        rc = look_below(s, folder, 0, err);
    if (s->n > s->n_given)
        qsort(s->paths + s->n_given, (size_t)(s->n - s->n_given), sizeof *s->paths,
              by_path);
    if (rc == 0 && s->n == 0)
        rc = folder != NULL
                 ? err_set(
                       err, ERR_NOT_FOUND,
                       "--models %s: no model lies below it (a folder with config.json, a "
                       "GGUF file, or a packed file)",
                       folder)
                 : err_set(err, ERR_USAGE,
                           "no model is given: name one, or give --models DIR");
    return rc == 0 ? name_models(s, folder, err) : rc;
}

static void free_names(struct model_names *m)
{
    for (int k = 0; k < m->n; k++)
        free((char *)(uintptr_t)m->items[k]);
    free((void *)(uintptr_t)m->items);
}

static void add_name(struct model_names *m, const char *name)
{
    const char **items = xcalloc((size_t)m->n + 1, sizeof *items);
    for (int k = 0; k < m->n; k++)
        items[k] = m->items[k];
    items[m->n++] = xstrdup(name);
    free((void *)(uintptr_t)m->items);
    m->items = items;
}

int serve_models_rename(struct serve_models *s, const struct opt_list *names,
                        struct err *err)
{
    struct model_names *others = xcalloc((size_t)s->n, sizeof *others);
    int rc = 0;
    for (int i = 0; rc == 0 && i < names->n; i++) {
        const char *equals = strrchr(names->items[i], '=');
        size_t n = equals != NULL ? (size_t)(equals - names->items[i]) : 0;
        char *model = xasprintf("%.*s", (int)n, names->items[i]);
        int at = n > 0 && equals[1] != 0 ? client_find_model(s->names, s->n, model) : -1;
        if (at < 0)
            rc = err_set(err, ERR_USAGE,
                         "--served-name '%s': of several models give MODEL=NAME, where "
                         "MODEL is the name of its file or folder",
                         names->items[i]);
        else
            add_name(&others[at], equals + 1);
        free(model);
    }
    for (int i = 0; i < s->n; i++) {
        if (others[i].n == 0)
            continue;
        free_names(&s->names[i]);
        s->names[i].items = others[i].items;
        s->names[i].n = others[i].n;
    }
    free(others);
    for (int i = 0; rc == 0 && i < s->n; i++)
        for (int k = 0; rc == 0 && k < s->names[i].n; k++)
            if (client_find_model(s->names, s->n, s->names[i].items[k]) != i)
                rc = err_set(err, ERR_USAGE,
                             "two models have the name %s: %s is the second",
                             s->names[i].items[k], s->paths[i]);
    return rc;
}

/* --- opening ---------------------------------------------------------------------------------- */

int serve_models_open(struct serve_models *s, const struct models_opts *o,
                      const struct hcache_opts *each, int *first, struct hcache **h,
                      struct err *err)
{
    struct models_opts mo = *o;
    if (s->n > 1 && peers_count() > 1)
        return err_set(err, ERR_USAGE,
                       "ranks and stages serve one model, and there are %d: start a "
                       "server for each",
                       s->n);
    s->opts = xcalloc((size_t)s->n, sizeof *s->opts);
    for (int i = 0; i < s->n; i++) {
        s->opts[i] = *each;
        s->opts[i].model = s->paths[i];
    }
    mo.of = s->opts;
    mo.n = s->n;
    int rc = models_open(&mo, &s->models, err);
    if (rc != 0)
        return rc;
    /* A model below the folder that cannot be loaded is a warning: it may be of an unknown kind. */
    for (*first = 0; *first < s->n; ++*first) {
        rc = models_wait(s->models, *first, h, err);
        if (rc == 0 || *first < s->n_given)
            return rc;
    }
    return rc;
}

void serve_models_deinit(struct serve_models *s)
{
    models_close(s->models);
    for (int i = 0; i < s->n; i++) {
        if (s->names != NULL)
            free_names(&s->names[i]);
        free(s->paths[i]);
    }
    free(s->paths);
    free(s->names);
    free(s->opts);
}
