/* guesses.c - see guesses.h. */
#include "server/guesses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"

#define SECOND_NS INT64_C(1000000000)

enum {
    N_PLACES = 4096,
    FIRST_PAUSE_MS = 250,
    MAX_PAUSE_S = 8,
};

struct place {
    int64_t last_ns; /* time of the last wrong key */
    int64_t free_ns; /* time at which the last delayed answer will be sent */
    /* number of wrong keys, each within the window after the previous one */
    int n;
};

struct guesses {
    pthread_mutex_t lock; /* protects the fields below */
    uint64_t n, n_untold;
    int64_t told_ns; /* time of the last log line; 0: none yet */
    struct place place[N_PLACES];
};

void guesses_create(struct guesses **out)
{
    *out = xcalloc(1, sizeof **out);
    pthread_mutex_init(&(*out)->lock, NULL);
}

void guesses_destroy(struct guesses *g)
{
    if (g == NULL)
        return;
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static const void *address_bytes(const struct sockaddr *from, size_t *n)
{
    if (from != NULL && from->sa_family == AF_INET) {
        *n = 4;
        return &((const struct sockaddr_in *)(const void *)from)->sin_addr;
    }
    if (from != NULL && from->sa_family == AF_INET6) {
        *n = 8;
        return &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    }
    *n = 0;
    return "";
}

static struct place *place_of(struct guesses *g, const struct sockaddr *from)
{
    size_t n;
    const void *bytes = address_bytes(from, &n);
    return &g->place[checksum64(bytes, n) % N_PLACES];
}

static void address_text(const struct sockaddr *from, char *out, size_t n)
{
    size_t n_bytes;
    const void *bytes = address_bytes(from, &n_bytes);
    if (n_bytes == 0 || inet_ntop(from->sa_family, bytes, out, (socklen_t)n) == NULL)
        snprintf(out, n, "an unknown address");
}

static int64_t pause_ns(int n)
{
    int64_t pause = FIRST_PAUSE_MS * INT64_C(1000000);
    for (int i = GUESSES_FREE + 1; i < n && pause < MAX_PAUSE_S * SECOND_NS; i++)
        pause *= 2;
    return n <= GUESSES_FREE ? 0 : pause;
}

static int64_t hold(struct place *p, int64_t now_ns)
{
    if (now_ns - p->last_ns > GUESSES_WINDOW_S * SECOND_NS || p->n == 0)
        *p = (struct place){0};
    p->last_ns = now_ns;
    if (p->n < INT32_MAX)
        p->n++;
    p->free_ns = MAX(p->free_ns, now_ns) + pause_ns(p->n);
    if (p->free_ns > now_ns + GUESSES_MAX_HOLD_S * SECOND_NS)
        p->free_ns = now_ns + GUESSES_MAX_HOLD_S * SECOND_NS;
    return p->free_ns - now_ns;
}

void guesses_add(struct guesses *g, const struct sockaddr *from, int64_t now_ns,
                 struct guess *out)
{
    *out = (struct guess){0};
    address_text(from, out->address, sizeof out->address);
    pthread_mutex_lock(&g->lock);
    g->n++;
    out->hold_ns = hold(place_of(g, from), now_ns);
    out->tell = g->told_ns == 0 || now_ns - g->told_ns >= SECOND_NS;
    out->n_untold = g->n_untold;
    g->n_untold = out->tell ? 0 : g->n_untold + 1;
    g->told_ns = out->tell ? now_ns : g->told_ns;
    pthread_mutex_unlock(&g->lock);
}

uint64_t guesses_count(struct guesses *g)
{
    pthread_mutex_lock(&g->lock);
    uint64_t n = g->n;
    pthread_mutex_unlock(&g->lock);
    return n;
}
