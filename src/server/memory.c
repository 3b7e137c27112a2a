/* memory.c - see memory.h.
 *
 * One pass over the asked text gives the hash of each of its beginnings; a scan of the entries (a few
 * thousand) compares theirs with it.  So nothing has to be known of where a conversation's turns end. */
#include "server/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct entry {
    char *text; /* salt, a zero byte, and the conversation; NULL: free */
    size_t n;
    uint64_t hash, used;
    int32_t *ids;
    int n_ids;
};

struct memory {
    pthread_mutex_t lock; /* protects everything below */
    uint64_t clock;
    size_t bytes, max_bytes;
    int n;
    struct entry entry[];
};

/* A polynomial in the bytes, modulo 2^64: the hash of n + 1 bytes follows from that of n. */
static uint64_t hash_step(uint64_t h, char byte)
{
    return h * 0x9e3779b97f4a7c15u + (unsigned char)byte + 1;
}

static char *key_of(const char *salt, const char *text, size_t n_text, size_t *n)
{
    size_t n_salt = salt != NULL ? strlen(salt) : 0;
    char *key = xmalloc(n_salt + 1 + n_text + 1);
    if (n_salt > 0)
        memcpy(key, salt, n_salt);
    key[n_salt] = 0;
    memcpy(key + n_salt + 1, text, n_text);
    *n = n_salt + 1 + n_text;
    key[*n] = 0;
    return key;
}

void memory_create(int max_entries, size_t max_bytes, struct memory **out)
{
    struct memory *m = xcalloc(1, sizeof *m + (size_t)max_entries * sizeof m->entry[0]);
    pthread_mutex_init(&m->lock, NULL);
    m->n = max_entries;
    m->max_bytes = max_bytes;
    *out = m;
}

static size_t entry_bytes(const struct entry *e)
{
    return e->n + (size_t)e->n_ids * sizeof *e->ids;
}

static void entry_drop(struct memory *m, struct entry *e)
{
    m->bytes -= entry_bytes(e);
    free(e->text);
    free(e->ids);
    *e = (struct entry){0};
}

void memory_destroy(struct memory *m)
{
    if (m == NULL)
        return;
    for (int i = 0; i < m->n; i++) {
        free(m->entry[i].text);
        free(m->entry[i].ids);
    }
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* The same text, else a free place, else the least recently used. */
static struct entry *place_for(struct memory *m, const struct entry *new)
{
    struct entry *best = &m->entry[0];
    for (int i = 0; i < m->n; i++) {
        struct entry *e = &m->entry[i];
        if (e->text != NULL && e->hash == new->hash &&
            e->n == new->n &&memcmp(e->text, new->text, e->n) == 0)
            return e;
        if (best->text != NULL && (e->text == NULL || e->used < best->used))
            best = e;
    }
    return best;
}

static struct entry *oldest(struct memory *m)
{
    struct entry *best = NULL;
    for (int i = 0; i < m->n; i++) {
        struct entry *e = &m->entry[i];
        if (e->text != NULL && (best == NULL || e->used < best->used))
            best = e;
    }
    return best;
}

void memory_put(struct memory *m, const char *salt, const char *text, size_t n_text,
                const int32_t *ids, int n_ids)
{
    struct entry new = {.n_ids = n_ids};
    new.text = key_of(salt, text, n_text, &new.n);
    new.ids = xmalloc(((size_t)n_ids + 1) * sizeof *ids);
    memcpy(new.ids, ids, (size_t)n_ids * sizeof *ids);
    for (size_t i = 0; i < new.n; i++)
        new.hash = hash_step(new.hash, new.text[i]);
    pthread_mutex_lock(&m->lock);
    struct entry *e = place_for(m, &new);
    if (e->text != NULL)
        entry_drop(m, e);
    bool fits = entry_bytes(&new) <= m->max_bytes;
    while (fits && m->bytes + entry_bytes(&new) > m->max_bytes)
        entry_drop(m, oldest(m));
    if (fits) {
        *e = new;
        e->used = ++m->clock;
        m->bytes += entry_bytes(e);
    }
    pthread_mutex_unlock(&m->lock);
    if (!fits) {
        free(new.text);
        free(new.ids);
    }
}

bool memory_find(struct memory *m, const char *salt, const char *text, size_t n_text,
                 size_t *n_found, int32_t **ids, int *n_ids)
{
    size_t n;
    char *key = key_of(salt, text, n_text, &n);
    uint64_t *hash = xmalloc((n + 1) * sizeof *hash);
    struct entry *best = NULL;
    hash[0] = 0;
    for (size_t i = 0; i < n; i++)
        hash[i + 1] = hash_step(hash[i], key[i]);
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n; i++) {
        struct entry *e = &m->entry[i];
        if (e->text != NULL && e->n <= n && (best == NULL || e->n > best->n) &&
            e->hash == hash[e->n] && memcmp(e->text, key, e->n) == 0)
            best = e;
    }
    if (best != NULL) {
        best->used = ++m->clock;
        *n_found = best->n - (n - n_text);
        *n_ids = best->n_ids;
        *ids = xmalloc(((size_t)best->n_ids + 1) * sizeof **ids);
        memcpy(*ids, best->ids, (size_t)best->n_ids * sizeof **ids);
    }
    pthread_mutex_unlock(&m->lock);
    free(key);
    free(hash);
    return best != NULL;
}
