/* pins.c - lasting pins: the keys whose chunks are evicted last, and the end of each pin.
 *
 * The catalog holds pins by node; a node stands for a key, stored or not. Changes are queued for
 * the index and written by the next commit, or at once if the caller asked. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "store/store_impl.h"

/* [lock] Ends the node's lasting pin. */
static void pin_end(struct store *s, struct chunk_node *n)
{
    ledger_note_pin(&s->ledger, &(struct index_pin){.key = n->key});
    catalog_unpin(&s->catalog, n);
}

void store_expire_pins(struct store *s)
{
    struct catalog *c = &s->catalog;
    int64_t now_s = clock_wall_s();
    if (c->n_pins == 0 || now_s < s->next_expiry_wall_s)
        return;
    s->next_expiry_wall_s = INT64_MAX;
    /* Backwards, because ending a pin moves the last pin to its place. */
    for (uint32_t i = c->n_pins; i-- > 0;) {
        if (c->pins[i].until_wall_s <= now_s)
            pin_end(s, c->pins[i].node);
        else if (c->pins[i].until_wall_s < s->next_expiry_wall_s)
            s->next_expiry_wall_s = c->pins[i].until_wall_s;
    }
}

struct chunk_node *store_set_pin(struct store *s, const struct index_pin *pin)
{
    if (s->catalog.n_pins == 0 || pin->until_wall_s < s->next_expiry_wall_s)
        s->next_expiry_wall_s = pin->until_wall_s;
    catalog_pin(&s->catalog, &pin->key, pin->until_wall_s);
    struct chunk_node *n = catalog_find(&s->catalog, &pin->key);
    catalog_guarantee(&s->catalog, n, pin->is_guaranteed);
    return n;
}

/* [lock] Returns whether the key has a guarantee, which an ordinary pin must not weaken. */
static bool is_guaranteed(const struct store *s, const struct sha256 *key)
{
    const struct chunk_node *n = catalog_find(&s->catalog, key);
    return n != NULL && n->is_guaranteed;
}

int store_pin_until(struct store *s, const struct sha256 *keys, int n, int64_t until_wall_s,
                    struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int rc = store_can_save(s, err);
    store_expire_pins(s);
    if (rc == 0)
        rc = space_check_pins(&s->space, &s->catalog, (uint32_t)n, err);
    for (int i = 0; rc == 0 && i < n && until_wall_s > clock_wall_s(); i++) {
        struct index_pin pin = {.key = keys[i], .until_wall_s = until_wall_s};
        if (is_guaranteed(s, &keys[i]))
            continue;
        ledger_note_pin(&s->ledger, &pin);
        (void)store_set_pin(s, &pin);
    }
    pthread_mutex_unlock(&s->lock);
    return rc == 0 ? store_commit_run(s, STORE_COMMIT_PINS, err) : rc;
}

int store_unpin_keys(struct store *s, const struct sha256 *keys, int n, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    int rc = store_can_save(s, err);
    for (int i = 0; rc == 0 && i < n; i++) {
        struct chunk_node *node = catalog_find(&s->catalog, &keys[i]);
        if (node != NULL && node->pin_at != 0)
            pin_end(s, node);
    }
    pthread_mutex_unlock(&s->lock);
    return rc == 0 ? store_commit_run(s, STORE_COMMIT_PINS, err) : rc;
}

int store_each_pin(struct store *s, int (*fn)(void *arg, const struct store_pinned *p),
                   void *arg)
{
    pthread_mutex_lock(&s->lock);
    if (!s->home.read_only)
        store_expire_pins(s);
    uint32_t n = s->catalog.n_pins;
    struct store_pinned *all = xmalloc((n + 1) * sizeof all[0]);
    for (uint32_t i = 0; i < n; i++) {
        const struct catalog_pin *p = &s->catalog.pins[i];
        all[i] = (struct store_pinned){.key = p->node->key,
                                       .until_wall_s = p->until_wall_s,
                                       .is_stored = p->node->n_live > 0,
                                       .is_guaranteed = p->node->is_guaranteed};
    }
    pthread_mutex_unlock(&s->lock);
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++)
        if (all[i].until_wall_s > clock_wall_s())
            rc = fn(arg, &all[i]);
    free(all);
    return rc;
}

static int pin_enter(void *arg, const struct index_pin *pin)
{
    struct store *s = arg;
    if (s->catalog.n_pins >= STORE_MAX_PINS)
        return 0;
    const struct chunk_node *n = store_set_pin(s, pin);
    if (pin->is_guaranteed && pin->until_wall_s > clock_wall_s() && n->n_live == 0)
        store_guarantee_broken(s, 1, "it is no longer stored");
    return 0;
}

int store_load_pins(struct store *s, struct err *err)
{
    return index_load_pins(s->ledger.index, pin_enter, s, err);
}
