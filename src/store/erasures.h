/* erasures.h - which chunks come too late: their request began before an erasure that concerns
 * them. Pure; private to src/store (the store's lock protects it).
 *
 * Erasures are numbered. A request takes the number of the last erasure, its *epoch*, when it
 * begins, and each of its chunks carries it. A mark holds the number of its erasure:
 *
 *     chunk.epoch < mark.epoch, and the mark concerns the chunk   -> the chunk must not be stored
 *
 * So no state of a request outlives an erasure that came after the request's beginning, however
 * late the chunk is appended. Requests that begin later are free to compute the same text again.
 *
 * The newest ERASURES_MARKS marks are kept. Chunks from before a mark that was dropped are all too
 * late: their requests only lose their saving. */
#ifndef STORE_ERASURES_H
#define STORE_ERASURES_H

#include "store/store.h"

enum { ERASURES_MARKS = 16384 };

enum erasure_kind {
    ERASURE_KEY, /* the chunk of this key, and the next chunk of the same request */
    /* chunks that hold the whole of a text; the key is that of the text's last, partial chunk */
    ERASURE_END,
    ERASURE_OWNER, /* all chunks of an owner */
};

struct erasure_mark {
    enum erasure_kind kind;
    uint64_t epoch;
    uint64_t owner;
    struct sha256 key;
};

/* Set epoch to 1 at the beginning: no erasure yet. */
struct erasures {
    uint64_t epoch; /* 1 + the number of erasures so far */
    /* Chunks of an epoch below this one are always refused, whether a mark concerns them or not. */
    uint64_t floor;
    struct erasure_mark *marks; /* [ERASURES_MARKS] a ring; NULL: no mark yet */
    uint64_t n_marks;           /* number of marks ever set */
};

void erasures_deinit(struct erasures *e);
/* Begins an erasure of keys[0..n) or, with ERASURE_END, of the texts that end in one of them. */
void erasures_mark_keys(struct erasures *e, enum erasure_kind kind,
                        const struct sha256 *keys, int n);
void erasures_mark_owner(struct erasures *e, uint64_t owner);
/* Begins an erasure of all chunks. */
void erasures_mark_all(struct erasures *e);

/* Returns whether the chunk comes too late. Returns false if its epoch is 0, because then it
 * belongs to no request. */
bool erasures_concern(const struct erasures *e, const struct store_chunk *c);

#endif
