/* headers.c - checks headers of chunks that are served.
 *
 * Restoring reads records, not headers, so damage in a header alone would stay unnoticed until
 * the index is lost: a rebuild drops the chunk. Lookups note the chunks that they find, each
 * once since open. store_settle reads their headers and condemns damaged chunks. The next
 * request of that context computes the chunk again, and the saver then checks all that is stored
 * behind it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "store/store_impl.h"

void store_note_headers(struct store *s, struct chunk_node *n)
{
    if (n->has_header_noted || s->index == NULL || s->read_only ||
        s->n_headers == STORE_MAX_HEADERS)
        return;
    if (s->headers == NULL)
        s->headers = mem_try(STORE_MAX_HEADERS * sizeof s->headers[0]);
    if (s->headers == NULL)
        return;
    n->has_header_noted = true;
    s->headers[s->n_headers++] = n->key;
}

const struct extent *store_extent_nth(struct store *s, const struct store_hit *hit, int n)
{
    const struct chunk_node *node = hit->impl;
    const struct extent *x;
    pthread_mutex_lock(&s->lock);
    for (x = node->extents; x != NULL; x = x->next)
        if (x->state == EXTENT_LIVE && n-- == 0)
            break;
    pthread_mutex_unlock(&s->lock);
    return x;
}

/* Checks the headers of a chunk, and condemns the chunk if one is damaged. An error of the device
 * is not taken for damage: it will show when the chunk is read. */
static void headers_check(struct store *s, const struct store_hit *hit, void *block,
                          struct chunk_header *h)
{
    const struct extent *x;
    for (int i = 0; (x = store_extent_nth(s, hit, i)) != NULL; i++) {
        struct err why = {0};
        char reason[96];
        int rc = store_read_header(s, x, block, h, &why);
        if (rc != ERR_CORRUPT && rc != ERR_FORMAT)
            continue;
        snprintf(reason, sizeof reason, "its header: %.80s", why.msg);
        store_condemn(s, hit, reason);
        return;
    }
}

/* Takes the next noted key. Returns false if there is none. Takes lock. */
static bool headers_take(struct store *s, struct sha256 *key)
{
    pthread_mutex_lock(&s->lock);
    bool found = s->n_headers > 0;
    if (found)
        *key = s->headers[--s->n_headers];
    pthread_mutex_unlock(&s->lock);
    return found;
}

void store_check_headers(struct store *s, int most)
{
    struct sha256 key;
    struct store_hit hit;
    void *block = mem_map(CHUNK_HEADER_BYTES);
    struct chunk_header *h = mem_try(sizeof *h);
    for (int i = 0; i < most && block != NULL && h != NULL && headers_take(s, &key); i++) {
        if (!store_pin(s, &key, &hit))
            continue; /* the chunk has gone meanwhile */
        headers_check(s, &hit, block, h);
        store_release(s, &hit, 1);
    }
    if (block != NULL)
        mem_unmap(block, CHUNK_HEADER_BYTES);
    free(h);
}
