/* strmap.c - see strmap.h. */
#include "base/strmap.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void strmap_init(struct strmap *m, size_t max_keys)
{
    size_t slots = 16;
    while (slots < 2 * max_keys)
        slots *= 2;
    m->slots = xcalloc(slots, sizeof *m->slots);
    m->mask = slots - 1;
    m->count = 0;
    m->max = max_keys;
}

void strmap_deinit(struct strmap *m)
{
    free(m->slots);
    memset(m, 0, sizeof *m);
}

/* Returns the key's slot, or the empty slot where the key belongs. */
static struct strmap_slot *slot_of(const struct strmap *m, const char *key, size_t n)
{
    for (size_t i = checksum64(key, n) & m->mask;; i = (i + 1) & m->mask) {
        struct strmap_slot *s = &m->slots[i];
        if (s->key == NULL || (s->n == n && memcmp(s->key, key, n) == 0))
            return s;
    }
}

int32_t strmap_add(struct strmap *m, const char *key, size_t n, int32_t id)
{
    CHECK(id >= 0 && n <= UINT32_MAX);
    struct strmap_slot *s = slot_of(m, key, n);
    if (s->key != NULL)
        return s->id;
    CHECK(m->count < m->max);
    m->count++;
    *s = (struct strmap_slot){.key = key, .n = (uint32_t)n, .id = id};
    return id;
}

void strmap_reserve(struct strmap *m, size_t max_keys)
{
    if (max_keys <= m->max)
        return;
    struct strmap larger;
    strmap_init(&larger, max_keys > 2 * m->max ? max_keys : 2 * m->max);
    for (size_t i = 0; m->slots != NULL && i <= m->mask; i++)
        if (m->slots[i].key != NULL)
            strmap_add(&larger, m->slots[i].key, m->slots[i].n, m->slots[i].id);
    strmap_deinit(m);
    *m = larger;
}

int32_t strmap_find(const struct strmap *m, const char *key, size_t n)
{
    const struct strmap_slot *s = slot_of(m, key, n);
    return s->key != NULL ? s->id : -1;
}
