/* recent.c - see recent.h. */
#include "api/recent.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"

struct record {
    char *tenant, *text; /* text: the record as JSON */
    char id[64];
    int64_t created_s;
    size_t n; /* bytes of the text */
};

struct recent {
    struct recent_opts o;
    pthread_mutex_t lock;  /* protects the fields below */
    struct record *record; /* [o.max_records] oldest first */
    int n;
};

struct recent *recent_create(const struct recent_opts *o)
{
    struct recent *r = xcalloc(1, sizeof *r);
    r->o = *o;
    r->record = xcalloc((size_t)o->max_records, sizeof *r->record);
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

/* Removes record i. The lock is held. */
static void drop(struct recent *r, int i)
{
    free(r->record[i].tenant);
    free(r->record[i].text);
    r->n--;
    memmove(&r->record[i], &r->record[i + 1], (size_t)(r->n - i) * sizeof *r->record);
}

void recent_destroy(struct recent *r)
{
    if (r == NULL)
        return;
    while (r->n > 0)
        drop(r, r->n - 1);
    pthread_mutex_destroy(&r->lock);
    free(r->record);
    free(r);
}

/* Drops the tenant's oldest records until one of n bytes fits its share. */
static void make_room(struct recent *r, const char *tenant, size_t n)
{
    int share = MAX(r->o.n_tenants, 1), max = MAX(r->o.max_records / share, 1);
    size_t max_bytes = r->o.max_bytes / (size_t)share;
    for (;;) {
        int oldest = -1, count = 0;
        size_t bytes = n;
        for (int i = 0; i < r->n; i++) {
            if (strcmp(r->record[i].tenant, tenant) != 0)
                continue;
            oldest = oldest < 0 ? i : oldest;
            count++;
            bytes += r->record[i].n;
        }
        if (count == 0 || (count < max && bytes <= max_bytes))
            return;
        drop(r, oldest);
    }
}

void recent_add(struct recent *r, const char *tenant, const struct recent_request *q)
{
    struct json *o = json_make("{id: %s, object: 'request', created_at: %ld, agent: %s, "
                               "restoration: %p}",
                               q->id, q->created_s, q->agent, json_share(q->told));
    struct record new = {
        .tenant = xstrdup(tenant), .text = json_text(o, 0), .created_s = q->created_s};
    new.n = strlen(new.text);
    snprintf(new.id, sizeof new.id, "%s", q->id);
    json_free(o);
    pthread_mutex_lock(&r->lock);
    make_room(r, tenant, new.n);
    /* More tenants than the shares are for may fill the list: then the oldest record goes. */
    if (r->n == r->o.max_records)
        drop(r, 0);
    r->record[r->n++] = new;
    pthread_mutex_unlock(&r->lock);
}

static struct json *parsed(const struct record *d)
{
    struct json *o = NULL;
    return json_parse(&o, d->text, d->n, d->id, NULL) == 0 ? o : json_new_object();
}

struct json *recent_find(struct recent *r, const char *tenant, const char *id)
{
    struct json *o = NULL;
    pthread_mutex_lock(&r->lock);
    for (int i = r->n - 1; i >= 0 && o == NULL; i--) {
        if (strcmp(r->record[i].tenant, tenant) == 0 && strcmp(r->record[i].id, id) == 0)
            o = parsed(&r->record[i]);
    }
    pthread_mutex_unlock(&r->lock);
    return o;
}

/* Returns a record without the members of its restoration that are long. */
static struct json *shortened(const struct record *d)
{
    static const char *const kept[] = {"prompt_tokens", "cached_tokens", "generated_tokens",
                                       "prefix", "miss"};
    struct json *all = parsed(d), *o = json_new_object(), *told = json_new_object();
    struct json_iter it = json_begin(all);
    while (json_next(&it))
        if (strcmp(it.key, "restoration") != 0)
            json_put(o, it.key, json_share(it.value));
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        const struct json *v = json_member(json_member(all, "restoration"), kept[i]);
        if (v != NULL)
            json_put(told, kept[i], json_share(v));
    }
    json_put(o, "restoration", told);
    json_free(all);
    return o;
}

struct json *recent_list(struct recent *r, const char *tenant, int limit)
{
    struct json *list = json_new_array();
    pthread_mutex_lock(&r->lock);
    for (int i = r->n - 1; i >= 0 && (int)json_count(list) < limit; i--) {
        if (strcmp(r->record[i].tenant, tenant) == 0)
            json_push(list, shortened(&r->record[i]));
    }
    pthread_mutex_unlock(&r->lock);
    return list;
}

void recent_expire(struct recent *r, int64_t before_s)
{
    pthread_mutex_lock(&r->lock);
    while (r->n > 0 && r->record[0].created_s < before_s)
        drop(r, 0);
    pthread_mutex_unlock(&r->lock);
}

void recent_forget(struct recent *r, const char *tenant, const char *id)
{
    pthread_mutex_lock(&r->lock);
    for (int i = r->n - 1; i >= 0; i--) {
        if (strcmp(r->record[i].tenant, tenant) == 0 &&
            (id == NULL || strcmp(r->record[i].id, id) == 0))
            drop(r, i);
    }
    pthread_mutex_unlock(&r->lock);
}
