/* storing.h - a thread that verifies fetched chunks and appends them to the store, while the
 * reader receives the next one.
 *
 *     reader    | receive 1 | receive 2 | receive 3 | wait |
 *     storing               | verify, append 1 | verify, append 2 | ...
 *
 * One chunk is handed over at a time, so there are two buffers. Chunks are stored in the order of
 * their chain; after a failure no further chunk of the fetch is stored. */
#ifndef STORE_REMOTE_STORING_H
#define STORE_REMOTE_STORING_H

#include "store/remote/remote_impl.h"

struct storing;

int storing_create(struct remote *r, struct storing **out, struct err *err);
void storing_destroy(struct storing *s); /* NULL is allowed */

/* Begins the chunks of a fetch: the next one handed over is f->keys[0]. */
void storing_begin(struct storing *s, struct remote_fetch *f);
/* Waits until the previous chunk is stored, then hands the next one over. *value is exchanged for
 * the buffer of the previous chunk. Returns false if a chunk could not be stored. */
bool storing_give(struct storing *s, struct redis_answer *value);
/* What a fetch has stored. storing_end waits for the last chunk of the fetch. */
struct stored {
    int n;            /* chunks stored */
    uint64_t n_bytes; /* bytes of these chunks */
    /* reason why the next chunk was not stored; REMOTE_MISS_NONE: all were stored */
    enum remote_miss why;
    char text[160];
};
struct stored storing_end(struct storing *s);

#endif
