/* whys.h - why a chunk is missing, as far as it is remembered: it was damaged, evicted, or belongs
 * to another model or build. Pure; the store's lock protects it.
 *
 * Invariants:
 * 1. Nothing depends on what is remembered here but the words that users read.
 * 2. The memory is bounded: the newest WHYS_REASONS damaged chunks, and one evicted chunk for each
 *    slot. A key's low bits give its slot, which holds the newest key only.
 * 3. A chunk that is stored again is forgotten here (whys_forget). */
#ifndef STORE_WHYS_H
#define STORE_WHYS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"

enum { WHYS_REASONS = 64, WHYS_EVICTED = 8192 };

struct whys {
    struct {
        struct sha256 key;
        char text[96]; /* "": forgotten */
    } reason[WHYS_REASONS];
    /* Number of reasons noted since open; the ring's next one is n_reasons % WHYS_REASONS. */
    uint32_t n_reasons;
    uint64_t evicted[WHYS_EVICTED]; /* a slot is 0 if it is empty */
    /* The fingerprint that the caller looks for (store_expect). */
    struct sha256 expected;
    bool has_expected;
};

void whys_note_damage(struct whys *w, const struct sha256 *key, const char *reason);
void whys_note_eviction(struct whys *w, const struct sha256 *key);
/* Forgets why the chunk was missing: it is stored again. */
void whys_forget(struct whys *w, const struct sha256 *key);

/* Returns the newest reason why the chunk was condemned; NULL if there is none. */
const char *whys_damaged(const struct whys *w, const struct sha256 *key);
bool whys_evicted(const struct whys *w, const struct sha256 *key);

#endif
