/* client.c - see client.h. */
#include "api/client.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/textbuf.h"

/* Returns the length of a name without ".gguf" at its end, and without Ollama's ":latest". */
static size_t stem_length(const char *name)
{
    size_t n = strlen(name);
    if (n > 7 && strcmp(name + n - 7, ":latest") == 0)
        return n - 7;
    return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0 ? n - 5 : n;
}

/* Returns whether both are names of one model. own: a name of the model's, in full. */
static bool is_name(const char *own, const char *name)
{
    const char *short_own = strrchr(own, '/') != NULL ? strrchr(own, '/') + 1 : own;
    size_t n = stem_length(name);
    return (stem_length(own) == n && strncmp(own, name, n) == 0) ||
           (stem_length(short_own) == n && strncmp(short_own, name, n) == 0);
}

int client_find_model(const struct model_names *models, int n, const char *name)
{
    if (name == NULL || strcmp(name, "default") == 0)
        return 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < models[i].n; k++)
            if (is_name(models[i].items[k], name))
                return i;
    return -1;
}

int client_check_model(const struct client *c, const char *name, struct fault *f)
{
    const struct model_names *m = &c->names;
    const char *const one[] = {c->model_name};
    const char *const *items = m->n > 0 ? m->items : one;
    int n_items = m->n > 0 ? m->n : 1;
    struct textbuf list = {0};
    int other = m->n_served > 0 && name != NULL && strcmp(name, "default") != 0
                    ? client_find_model(m->served, m->n_served, name)
                    : -1;
    if (other >= 0 && strcmp(m->served[other].items[0], items[0]) != 0)
        return fault_set(
            f, 400, "model_mismatch", "model",
            "this is answered by the model '%.100s', which the first line names: "
            "put requests for '%.100s' into a batch of their own",
            items[0], m->served[other].items[0]);
    if (name == NULL || m->any || strcmp(name, "default") == 0 ||
        (m->in_file != NULL && is_name(m->in_file, name)))
        return 0;
    for (int i = 0; i < n_items; i++) {
        if (is_name(items[i], name)) {
            textbuf_free(&list);
            return 0;
        }
        textbuf_addf(&list, "%s'%.100s'", i > 0 ? ", " : "", items[i]);
    }
    fault_set(f, 404, "model_not_found", "model", "there is no model '%.100s', only %.300s",
              name, list.p);
    textbuf_free(&list);
    return -1;
}

char *client_state_salt(const struct client *c, const char *cache_salt)
{
    if (cache_salt == NULL || cache_salt[0] == 0)
        return c->salt != NULL ? xstrdup(c->salt) : NULL;
    /* A key's salt has no "/", so different pairs give different texts. */
    return xasprintf("%s/%s", c->salt != NULL ? c->salt : "", cache_salt);
}
