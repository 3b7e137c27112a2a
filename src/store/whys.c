/* whys.c - see whys.h. */
#include "store/whys.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"

void whys_note_damage(struct whys *w, const struct sha256 *key, const char *reason)
{
    uint32_t at = w->n_reasons++ % WHYS_REASONS;
    w->reason[at].key = *key;
    snprintf(w->reason[at].text, sizeof w->reason[at].text, "%s", reason);
}

const char *whys_damaged(const struct whys *w, const struct sha256 *key)
{
    for (uint32_t i = 0; i < WHYS_REASONS && i < w->n_reasons; i++) {
        uint32_t at = (w->n_reasons - 1 - i) % WHYS_REASONS;
        if (w->reason[at].text[0] != 0 &&
            memcmp(w->reason[at].key.b, key->b, sizeof key->b) == 0)
            return w->reason[at].text;
    }
    return NULL;
}

static uint32_t slot_of(const struct sha256 *key)
{
    return (uint32_t)(get_u64(key->b) % WHYS_EVICTED);
}

/* The bit keeps the value from being 0, which means an empty slot. */
static uint64_t mark_of(const struct sha256 *key)
{
    return get_u64(key->b) | 1;
}

void whys_note_eviction(struct whys *w, const struct sha256 *key)
{
    w->evicted[slot_of(key)] = mark_of(key);
}

bool whys_evicted(const struct whys *w, const struct sha256 *key)
{
    return w->evicted[slot_of(key)] == mark_of(key);
}

void whys_forget(struct whys *w, const struct sha256 *key)
{
    for (uint32_t i = 0; i < WHYS_REASONS && i < w->n_reasons; i++)
        if (memcmp(w->reason[i].key.b, key->b, sizeof key->b) == 0)
            w->reason[i].text[0] = 0;
    if (whys_evicted(w, key))
        w->evicted[slot_of(key)] = 0;
}
