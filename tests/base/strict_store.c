/* strict_store.c - ends a test program that closes a store in a wrong state.
 *
 * When a store is closed, its counters must agree with its chunks, no chunk may be in use, and no
 * announced request may still wait for a chunk. The linker directs the calls of store_close to this
 * function (--wrap). */
#include <stdio.h>
#include <stdlib.h>

#include "strict_store.h"
#include "store/store_impl.h"

bool strict_store_allows_waits;

void __real_store_close(struct store *s);
void __wrap_store_close(struct store *s);

static void end(const char *why, uint64_t n)
{
    fprintf(stderr, "store_close: %s (%llu)\n", why, (unsigned long long)n);
    abort();
}

void __wrap_store_close(struct store *s)
{
    if (s == NULL)
        return;
    /* A full disk may keep a store above a cap that was lowered. */
    uint64_t cap_bytes = s->space.cap_bytes;
    s->space.cap_bytes = 0;
    if (!store_audit(s))
        end("the counters do not agree with the chunks", 0);
    s->space.cap_bytes = cap_bytes;
    uint64_t n_used = 0, n_written = 0;
    pthread_mutex_lock(&s->lock);
    const struct catalog *c = &s->catalog;
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (const struct chunk_node *n = c->buckets[i]; n != NULL; n = n->next) {
            n_used += n->n_pins > 0;
            n_written += n->has_writer;
        }
    uint64_t n_waits = c->window != NULL ? c->window->n_used : 0;
    pthread_mutex_unlock(&s->lock);
    if (n_used > 0)
        end("chunks are in use", n_used);
    if (n_written > 0)
        end("chunks have a writer", n_written);
    if (n_waits > 0 && !strict_store_allows_waits)
        end("requests wait for chunks", n_waits);
    __real_store_close(s);
}
