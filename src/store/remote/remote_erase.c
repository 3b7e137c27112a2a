/* remote_erase.c - removes this server's erased chunks from the remote, and tells every other
 * server.
 *
 *     remote_erase_begin   from now on no fetch that began before stores anything
 *     store_erase ...      by the caller; the store reports the chunks that it has taken away
 *     remote_erase_end     the erasure is queued for the writer
 *     writer               an entry at the end of the stream NAME_ERASED; UNLINK of the chunks
 *
 * remote_follow.c carries the erasure out on other servers. While an erasure waits to be published,
 * nothing is fetched. For BAN_NS erased chunks are not fetched: until then a server that has not
 * read the erasure may have written them again (remote_lease.c). The entry comes before the
 * removal, so if a server writes a chunk after the removal, it does not confirm that chunk.
 *
 * The stream keeps about ERASED_ENTRIES entries: adding one drops the oldest. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "store/remote/remote_impl.h"

enum { SCAN_AT_ONCE = 500 };
/* Offsets of the owner's first and last byte in a parcel: docs/STORE_FORMAT.md. */
#define OWNER_FIRST "432"
#define OWNER_LAST  "439"
/* The owner's bytes in an encrypted value: its last 8. */
#define TAG_FIRST "-8"
#define TAG_LAST  "-1"

/* --- bans ------------------------------------------------------------------------------------- */

void remote_ban(struct remote *r, const struct erasure *e)
{
    struct bans *b = &r->bans;
    int64_t now = clock_now_ns();
    /* A text's keys are not banned: other texts may begin with the same chunks. */
    if (e->is_text)
        return;
    for (int i = 0; i < e->n; i++) {
        struct banned *slot = &b->key[b->n_keys++ % MAX_BANS];
        /* The ring has no free place, so nothing at all is fetched for BAN_NS. */
        if (slot->until_ns > now)
            b->all_until_ns = now + BAN_NS;
        *slot = (struct banned){e->keys[i], now + BAN_NS};
    }
    if (!e->is_owner)
        return;
    struct banned_owner *slot = &b->owner[b->n_owners++ % MAX_BANNED_OWNERS];
    if (slot->until_ns > now)
        b->all_until_ns = now + BAN_NS;
    *slot = (struct banned_owner){e->owner, now + BAN_NS};
}

/* [lock] Returns whether a chunk was erased less than BAN_NS ago. */
static bool is_banned(const struct remote *r, const struct sha256 *key, uint64_t owner)
{
    const struct bans *b = &r->bans;
    int64_t now = clock_now_ns();
    if (b->all_until_ns > now)
        return true;
    for (int i = 0; i < MAX_BANNED_OWNERS && (uint64_t)i < b->n_owners; i++)
        if (b->owner[i].owner == owner && b->owner[i].until_ns > now)
            return true;
    for (int i = 0; i < MAX_BANS && (uint64_t)i < b->n_keys; i++)
        if (b->key[i].until_ns > now && memcmp(b->key[i].key.b, key->b, sizeof key->b) == 0)
            return true;
    return false;
}

bool remote_may_store(struct remote *r, const struct remote_fetch *f,
                      const struct sha256 *key)
{
    pthread_mutex_lock(&r->lock);
    bool may = f->epoch == r->epoch && !is_banned(r, key, f->want.owner);
    pthread_mutex_unlock(&r->lock);
    return may;
}

/* --- this server's erasures ------------------------------------------------------------------- */

/* Waits for running appends of fetched chunks. From then on, remote_may_store refuses the chunks of
 * all fetches that began earlier. */
static void stop_fetches(struct remote *r)
{
    pthread_mutex_lock(&r->append_lock);
    pthread_mutex_lock(&r->lock);
    r->epoch++;
    r->n_erasing++;
    r->n_taken = 0;
    pthread_mutex_unlock(&r->lock);
    pthread_mutex_unlock(&r->append_lock);
}

/* The store calls this with the chunks that it has taken away. It notes them in r->taken. */
static void taken_add(void *arg, const struct sha256 *keys, int n)
{
    struct remote *r = arg;
    pthread_mutex_lock(&r->lock);
    if (r->n_erasing > 0) { /* if it is 0, the store is finishing an earlier erasure */
        r->taken = xrealloc(r->taken, (size_t)(r->n_taken + n) * sizeof r->taken[0]);
        memcpy(r->taken + r->n_taken, keys, (size_t)n * sizeof keys[0]);
        r->n_taken += n;
    }
    pthread_mutex_unlock(&r->lock);
}

void remote_erase_enter(struct remote *r)
{
    pthread_mutex_lock(&r->erase_lock);
    stop_fetches(r);
}

void remote_erase_leave(struct remote *r)
{
    pthread_mutex_lock(&r->lock);
    r->n_erasing--;
    pthread_mutex_unlock(&r->lock);
    pthread_mutex_unlock(&r->erase_lock);
}

void remote_erase_begin(struct remote *r)
{
    if (r != NULL)
        remote_erase_enter(r);
}

/* [lock] Queues an erasure for publishing, and bans its chunks from being fetched. It is the
 * erasure of an owner, or with owner NULL that of the keys. */
static void publish(struct remote *r, const uint64_t *owner, bool is_text,
                    const struct sha256 *keys, int n)
{
    struct published *p = xcalloc(1, sizeof *p + (size_t)n * sizeof p->keys[0]);
    p->e = (struct erasure){.server = r->server,
                            .is_owner = owner != NULL,
                            .is_text = is_text,
                            .owner = owner != NULL ? *owner : 0,
                            .n = n,
                            .keys = p->keys};
    if (n > 0)
        memcpy(p->keys, keys, (size_t)n * sizeof keys[0]);
    remote_ban(r, &p->e);
    struct published **last = &r->publish;
    while (*last != NULL)
        last = &(*last)->next;
    *last = p;
}

/* Reverses the order: the store takes children first; other servers need parents first. */
static void turn_around(struct sha256 *keys, int n)
{
    for (int i = 0; i < n / 2; i++) {
        struct sha256 k = keys[i];
        keys[i] = keys[n - 1 - i];
        keys[n - 1 - i] = k;
    }
}

/* [lock] Queues an erasure of n keys, in entries of at most ERASURE_MAX_KEYS. */
static void publish_keys(struct remote *r, bool is_text, const struct sha256 *keys, int n)
{
    for (int i = 0; i < n; i += ERASURE_MAX_KEYS)
        publish(r, NULL, is_text, keys + i, MIN(n - i, ERASURE_MAX_KEYS));
}

/* [lock] Publishes the chunks that the store has taken away. */
static void publish_taken(struct remote *r)
{
    turn_around(r->taken, r->n_taken);
    publish_keys(r, false, r->taken, r->n_taken);
}

void remote_erase_end(struct remote *r, const uint64_t *owner, const struct sha256 *keys,
                      int n)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    if (owner != NULL)
        publish(r, owner, false, NULL, 0);
    else if (keys != NULL)
        publish_keys(r, false, keys, n);
    else
        publish_taken(r);
    pthread_cond_signal(&r->for_writer);
    pthread_mutex_unlock(&r->lock);
    remote_erase_leave(r);
}

void remote_erase_end_text(struct remote *r, const struct sha256 *keys, int n)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    publish_keys(r, true, keys, n);
    publish_taken(r);
    pthread_cond_signal(&r->for_writer);
    pthread_mutex_unlock(&r->lock);
    remote_erase_leave(r);
}

/* --- talking to the remote -------------------------------------------------------------------- */

int remote_ask(struct remote *r, const struct redis_arg *args, int n_args,
               enum redis_kind kind, struct redis_answer *a, struct err *err)
{
    int rc = cluster_ask(r->write_link.cluster, args, n_args, r->o.stuck_ns, a, err);
    if (rc != 0 || a->kind == kind)
        return rc;
    return remote_refused(a, err);
}

static int unlink_chunk(struct remote *r, const struct redis_arg *name,
                        struct redis_answer *a, struct err *err)
{
    const struct redis_arg args[] = {REDIS_TEXT("UNLINK"), *name};
    return remote_ask(r, args, 2, REDIS_NUMBER, a, err);
}

int remote_unlink_keys(struct remote *r, const struct sha256 *keys, int n,
                       struct redis_answer *a, struct err *err)
{
    char name[NAME_BYTES];
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        name_chunk(&r->names, &keys[i], name);
        const struct redis_arg arg = REDIS_TEXT(name);
        rc = unlink_chunk(r, &arg, a, err);
    }
    return rc;
}

/* Removes the chunk of that name if it belongs to the owner. Returns 0 also if it does not. */
static int unlink_owned(struct remote *r, const struct redis_arg *name, uint64_t owner,
                        struct redis_answer *a, struct err *err)
{
    bool is_sealed = r->names.seal != NULL;
    const struct redis_arg args[] = {REDIS_TEXT("GETRANGE"), *name,
                                     REDIS_TEXT(is_sealed ? TAG_FIRST : OWNER_FIRST),
                                     REDIS_TEXT(is_sealed ? TAG_LAST : OWNER_LAST)};
    int rc = remote_ask(r, args, 4, REDIS_BYTES, a, err);
    if (rc != 0 || a->n_bytes != 8 || get_u64(a->bytes) != name_owner(&r->names, owner))
        return rc;
    return unlink_chunk(r, name, a, err);
}

/* Does one step of a walk over the chunks' names at one node of the remote, and removes the owner's
 * chunks among them. The cursor is "0" before the first step and after the last. `one` receives the
 * answers about single chunks. */
static int scan_some(struct remote *r, int node, char cursor[32], uint64_t owner,
                     struct redis_answer *a, struct redis_answer *one, struct err *err)
{
    char count[16], match[NAME_BYTES];
    const char *item;
    size_t at = 0, n;
    int64_t until = clock_now_ns() + r->o.stuck_ns;
    snprintf(count, sizeof count, "%d", SCAN_AT_ONCE);
    snprintf(match, sizeof match, "%s*", r->names.chunks);
    const struct redis_arg args[] = {REDIS_TEXT("SCAN"),  REDIS_TEXT(cursor),
                                     REDIS_TEXT("MATCH"), REDIS_TEXT(match),
                                     REDIS_TEXT("COUNT"), REDIS_TEXT(count)};
    int rc = cluster_command_to(r->write_link.cluster, node, args, 6, until, err);
    if (rc == 0)
        rc = cluster_receive(r->write_link.cluster, r->o.stuck_ns, a, err);
    if (rc == 0 && (!redis_next(a, &at, &item, &n) || n >= 32))
        rc = remote_refused(a, err);
    if (rc != 0)
        return rc;
    memcpy(cursor, item, n);
    cursor[n] = 0;
    while (rc == 0 && redis_next(a, &at, &item, &n)) {
        const struct redis_arg name = {item, n};
        rc = unlink_owned(r, &name, owner, one, err);
    }
    return rc;
}

/* Removes all chunks of an owner. Names do not show the owner, so all chunks are checked. */
static int unlink_owner(struct remote *r, uint64_t owner, struct redis_answer *a,
                        struct err *err)
{
    struct redis_answer one = {0};
    int rc = 0, n_nodes = cluster_n_nodes(r->write_link.cluster);
    for (int i = 0; rc == 0 && i < n_nodes; i++) {
        char cursor[32] = "0";
        do
            rc = scan_some(r, i, cursor, owner, a, &one, err);
        while (rc == 0 && strcmp(cursor, "0") != 0);
    }
    redis_answer_deinit(&one);
    return rc;
}

/* --- publishing ------------------------------------------------------------------------------- */

/* Adds the entry of an erasure to the stream that all servers read. */
static int append_to_stream(struct remote *r, const struct erasure *e,
                            struct redis_answer *a, struct err *err)
{
    size_t n = erasure_bytes(e->n);
    uint8_t *entry = xmalloc(2 * n + SEAL_BYTES), *plain = entry;
    erasure_encode(e, entry);
    if (r->names.seal != NULL) {
        entry += n;
        value_seal(&r->names, "erasure", 7, plain, n, entry);
        n += SEAL_BYTES;
    }
    const struct redis_arg args[] = {REDIS_TEXT("XADD"),
                                     REDIS_TEXT(r->names.erased),
                                     REDIS_TEXT("MAXLEN"),
                                     REDIS_TEXT("~"),
                                     REDIS_TEXT(ERASED_ENTRIES),
                                     REDIS_TEXT("*"),
                                     REDIS_TEXT("e"),
                                     {entry, n}};
    int rc = remote_ask(r, args, 8, REDIS_BYTES, a, err);
    free(plain);
    return rc;
}

/* Tells other servers of an erasure, then removes its chunks from the remote. If the link breaks in
 * between, the next call goes on with the removal and adds no second entry. */
static int publish_one(struct remote *r, struct published *p, struct redis_answer *a,
                       struct err *err)
{
    const struct erasure *e = &p->e;
    int rc = p->is_told ? 0 : append_to_stream(r, e, a, err);
    if (rc == 0 && !p->is_told) {
        p->is_told = true;
        pthread_mutex_lock(&r->lock);
        /* other servers may write these chunks until they have read the entry */
        remote_ban(r, e);
        pthread_mutex_unlock(&r->lock);
    }
    /* A text's own keys stay, because other texts may begin with the same chunks. The chunks to
     * remove follow as an erasure of their own (remote_erase_end_text). */
    if (rc == 0 && !e->is_text)
        rc = remote_unlink_keys(r, e->keys, e->n, a, err);
    if (rc == 0 && e->is_owner)
        rc = unlink_owner(r, e->owner, a, err);
    return rc;
}

int remote_publish_all(struct remote *r, struct redis_answer *a, struct err *err)
{
    int rc = 0;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        struct published *p = r->publish; /* only this thread removes entries */
        pthread_mutex_unlock(&r->lock);
        if (p == NULL || (rc = publish_one(r, p, a, err)) != 0)
            return rc;
        r->has_erased = true;
        pthread_mutex_lock(&r->lock);
        r->publish = p->next;
        r->n_uncounted++;
        pthread_mutex_unlock(&r->lock);
        free(p);
    }
}

/* --- life cycle ------------------------------------------------------------------------------- */

bool remote_is_current(struct remote *r)
{
    if (r == NULL)
        return true;
    pthread_mutex_lock(&r->lock);
    bool is_current = r->is_current;
    pthread_mutex_unlock(&r->lock);
    return is_current;
}

void remote_on_erased(struct remote *r, void (*fn)(void *arg), void *arg)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->erase_lock);
    r->on_erased = fn;
    r->on_erased_arg = arg;
    pthread_mutex_unlock(&r->erase_lock);
}

void remote_erase_init(struct remote *r)
{
    struct store_stats st;
    pthread_mutex_init(&r->erase_lock, NULL);
    pthread_mutex_init(&r->append_lock, NULL);
    r->bans.key = xcalloc(MAX_BANS, sizeof *r->bans.key);
    store_stats(r->o.store, &st);
    /* If the store is empty, erasures made before now cannot concern it. */
    r->is_current = st.n_chunks == 0;
    remote_follow_init(r, st.n_chunks == 0);
    store_on_erased(r->o.store, taken_add, r);
}

void remote_erase_deinit(struct remote *r)
{
    store_on_erased(r->o.store, NULL, NULL);
    for (struct published *p = r->publish, *next; p != NULL; p = next) {
        next = p->next;
        free(p);
    }
    free(r->taken);
    free(r->bans.key);
    free(r->place_path);
    pthread_mutex_destroy(&r->erase_lock);
    pthread_mutex_destroy(&r->append_lock);
}
