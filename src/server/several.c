/* several.c - see several.h. */
#include "server/several.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/line.h"
#include "api/models.h"
#include "server/body.h"

/* --- the model of a call ---------------------------------------------------------------------- */

/* Returns the number of the model that a request names, or -1 with *f. name NULL: it names none. */
static int find_model(const struct server *s, const char *name, struct fault *f)
{
    int i = client_find_model(s->served, s->n_served, name);
    if (i < 0 && s->o.names.any)
        i = 0;
    if (i >= 0)
        return i;
    struct textbuf list = {0};
    for (int k = 0; k < s->n_served && list.n < 300; k++)
        textbuf_addf(&list, "%s'%.100s'", k > 0 ? ", " : "", s->served[k].items[0]);
    fault_set(f, 404, "model_not_found", "model", "there is no model '%.100s', only %.300s",
              name, list.p);
    textbuf_free(&list);
    return -1;
}

int call_find_model(struct call *c, const char *name, struct fault *f)
{
    return c->s->models != NULL ? find_model(c->s, name, f) : call_check_name(c, name, f);
}

/* Makes the fault of a model that could not be loaded. Its file's path is written as its name,
 * since the path is not the client's business. */
static void load_fault(const struct server *s, int i, const struct err *err,
                       struct fault *f)
{
    const char *path = s->served[i].path, *name = s->served[i].items[0];
    const char *at = path != NULL ? strstr(err->msg, path) : NULL;
    if (at == NULL)
        fault_set(f, 500, "model_not_loaded", "model",
                  "the model '%.100s' cannot be loaded: %s", name, err->msg);
    else
        fault_set(f, 500, "model_not_loaded", "model",
                  "the model '%.100s' cannot be loaded: %.*s%.100s%s", name,
                  (int)(at - err->msg), err->msg, name, at + strlen(path));
}

int several_take(struct call *c, struct fault *f)
{
    struct server *s = c->s;
    struct err err;
    c->truncation = s->truncation;
    if (s->models == NULL || !c->route->names_model || c->model != NULL)
        return 0;
    char *name = c->body.n > 0 ? body_model(c) : NULL;
    const char *asked = name != NULL ? name : call_query(c, "model");
    int i = find_model(s, asked, f), rc = 0;
    free(name);
    if (i < 0)
        return -1;
    /* The lock keeps the loading's end from being missed (server_models_changed). */
    pthread_mutex_lock(&s->ready_lock);
    switch (models_take(s->models, i, &c->model_ticket, &c->model, &err)) {
    case MODELS_HERE:
        c->model_idx = i;
        if (c->truncation.ratio > 0 &&
            hcache_truncation_check(c->model, &c->truncation, NULL, NULL) != 0)
            c->truncation.ratio = 0;
        break;
    case MODELS_COMES:
        rc = s->o.wait_load && call_wait_early(c)
                 ? 1
                 : fault_set(f, 503, "loading", NULL, "the model '%.100s' is being loaded",
                             s->served[i].items[0]);
        break;
    case MODELS_FAILED:
        rc = -1;
        load_fault(s, i, &err, f);
    }
    pthread_mutex_unlock(&s->ready_lock);
    return rc;
}

void several_give(struct call *c)
{
    if (c->model != NULL)
        models_give(c->s->models, c->model_idx);
}

const char *call_model_name(const struct call *c)
{
    return c->model != NULL ? c->s->served[c->model_idx].items[0] : c->s->model_name;
}

void call_stats(struct call *c, struct hcache_stats *out)
{
    if (c->s->models != NULL)
        models_sum(c->s->models, out);
    else
        hcache_stats(call_model(c), out);
}

void call_unload(struct call *c)
{
    if (c->model != NULL)
        models_unload(c->s->models, c->model_idx);
}

/* --- lists ------------------------------------------------------------------------------------ */

int call_n_listed(const struct call *c)
{
    const struct server *s = c->s;
    return s->models != NULL ? s->n_served : s->o.names.n > 1 ? s->o.names.n : 1;
}

struct listed call_listed(struct call *c, int i)
{
    const struct server *s = c->s;
    struct listed l = {.what = "loaded", .is_loaded = true, .is_known = true};
    if (s->models == NULL) {
        l.name = i == 0 ? s->model_name : s->o.names.items[i];
        hcache_model_info(call_model(c), &l.info);
    } else {
        struct models_state st;
        models_state(s->models, i, &st);
        l = (struct listed){.name = s->served[i].items[0],
                            .what = st.what,
                            .is_loaded = st.is_loaded,
                            .is_known = st.is_known,
                            .info = st.info};
    }
    l.bytes = l.is_known ? l.info.weights_bytes : s->served[i].file_bytes;
    return l;
}

/* --- the server and its batches --------------------------------------------------------------- */

void server_models(struct server *s, struct models *m, const struct model_names *names,
                   int n)
{
    s->models = m;
    s->served = names;
    s->n_served = n;
}

int several_borrow(void *arg, const char *input, uint64_t *ticket, struct client *client,
                   int *loan, struct err *err)
{
    struct server *s = arg;
    struct fault f;
    char *name = line_first_model(input);
    *loan = find_model(s, name, &f);
    free(name);
    if (*loan < 0)
        *loan = 0; /* the lines that name an unknown model get the fault */
    client->names = s->served[*loan];
    client->model_name = client->names.items[0];
    switch (models_take(s->models, *loan, ticket, &client->h, err)) {
    case MODELS_HERE:
        return 0;
    case MODELS_COMES:
        return -EAGAIN;
    default:
        return err->code;
    }
}

bool several_must_return(void *arg, int loan)
{
    struct server *s = arg;
    return models_must_leave(s->models, loan);
}

void several_give_back(void *arg, int loan)
{
    struct server *s = arg;
    models_give(s->models, loan);
}
