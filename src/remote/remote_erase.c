/* remote_erase.c - erasures reach the remote and every other server.
 *
 * Here:    remote_erase_begin   no fetch that has begun before stores anything from now on
 *          store_erase ...      the caller's; the store tells which chunks it has taken away
 *          remote_erase_end     the erasure is queued for the writer
 *          writer               UNLINK of the chunks; an entry at the end of the list NAME_ERASURES
 * Others:  writer, each second  reads the entries that it has not seen, erases in its own store, and
 *                               UNLINKs once more: it may have written one of the chunks meanwhile
 *
 * While an erasure waits to be published nothing is fetched.  For BAN_NS nobody fetches what was erased: until
 * then another server that has not heard of it may have written it again.
 *
 * A position in the list survives a restart (a file beside the store).  A server whose store is not empty at
 * open uses none of its state before it has read the list to its end: remote_is_current. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "remote/remote_impl.h"

/* How often others are asked. */
#define POLL_NS ((int64_t)1000 * 1000 * 1000)
/* Entries of others' erasures that are read at once, and the time for chunks behind them: a list without an
 * end keeps no chunk from being written. */
#define TURN_NS ((int64_t)20 * 1000 * 1000)
enum { ENTRIES_AT_ONCE = 1024 };
/* Longer than every server that is up takes to hear of an erasure. */
#define BAN_NS ((int64_t)60 * 1000 * 1000 * 1000)
/* A server that has told nothing for so long is not waited for: it reads the list before it serves. */
enum { GONE_S = 30, SCAN_AT_ONCE = 500 };
/* Where the owner stands in a parcel: docs/STORE_FORMAT.md. */
#define OWNER_FIRST "432"
#define OWNER_LAST  "439"

/* --- bans ------------------------------------------------------------------------------------- */

/* [lock] */
static void ban(struct remote *r, const struct erasure *e)
{
    struct bans *b = &r->bans;
    int64_t now = clock_now_ns();
    for (int i = 0; i < e->n; i++) {
        struct banned *slot = &b->key[b->n_keys++ % MAX_BANS];
        if (slot->until_ns > now) /* too many to know them all */
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

/* [lock] */
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

/* --- what this server erases ------------------------------------------------------------------- */

/* What a fetch is about to append, it has appended, or it will not. */
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

static void taken_add(void *arg, const struct sha256 *keys, int n)
{
    struct remote *r = arg;
    pthread_mutex_lock(&r->lock);
    if (r->n_erasing > 0) { /* else the store does what an earlier erasure has left */
        r->taken = xrealloc(r->taken, (size_t)(r->n_taken + n) * sizeof r->taken[0]);
        memcpy(r->taken + r->n_taken, keys, (size_t)n * sizeof keys[0]);
        r->n_taken += n;
    }
    pthread_mutex_unlock(&r->lock);
}

static void erase_enter(struct remote *r)
{
    pthread_mutex_lock(&r->erase_lock);
    stop_fetches(r);
}

static void erase_leave(struct remote *r)
{
    pthread_mutex_lock(&r->lock);
    r->n_erasing--;
    pthread_mutex_unlock(&r->lock);
    pthread_mutex_unlock(&r->erase_lock);
}

void remote_erase_begin(struct remote *r)
{
    if (r != NULL)
        erase_enter(r);
}

/* [lock] */
static void publish(struct remote *r, const uint64_t *owner, const struct sha256 *keys,
                    int n)
{
    struct published *p = xcalloc(1, sizeof *p + (size_t)n * sizeof p->keys[0]);
    p->e = (struct erasure){.server = r->server,
                            .is_owner = owner != NULL,
                            .owner = owner != NULL ? *owner : 0,
                            .n = n,
                            .keys = p->keys};
    if (n > 0)
        memcpy(p->keys, keys, (size_t)n * sizeof keys[0]);
    ban(r, &p->e);
    struct published **last = &r->publish;
    while (*last != NULL)
        last = &(*last)->next;
    *last = p;
}

/* The store takes children first; others want parents first. */
static void turn_around(struct sha256 *keys, int n)
{
    for (int i = 0; i < n / 2; i++) {
        struct sha256 k = keys[i];
        keys[i] = keys[n - 1 - i];
        keys[n - 1 - i] = k;
    }
}

void remote_erase_end(struct remote *r, const uint64_t *owner, const struct sha256 *keys,
                      int n)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    if (keys == NULL) {
        turn_around(r->taken, r->n_taken);
        keys = r->taken;
        n = owner == NULL ? r->n_taken : 0;
    }
    if (owner != NULL)
        publish(r, owner, NULL, 0);
    for (int i = 0; i < n; i += ERASURE_MAX_KEYS)
        publish(r, NULL, keys + i, n - i < ERASURE_MAX_KEYS ? n - i : ERASURE_MAX_KEYS);
    pthread_cond_signal(&r->for_writer);
    pthread_mutex_unlock(&r->lock);
    erase_leave(r);
}

/* --- talking to the remote ---------------------------------------------------------------------- */

/* One command of the writer's, whose answer must be of this kind. */
static int ask(struct remote *r, const struct redis_arg *args, int n_args,
               enum redis_kind kind, struct redis_answer *a, struct err *err)
{
    int rc = redis_ask(r->write_link.redis, args, n_args, r->o.stuck_ns, a, err);
    if (rc != 0 || a->kind == kind)
        return rc;
    return err_set(err, -EACCES, "the remote refuses: %.120s",
                   a->kind == REDIS_REFUSED ? (const char *)a->bytes
                                            : "an answer of another kind");
}

static int unlink_chunk(struct remote *r, const struct redis_arg *name,
                        struct redis_answer *a, struct err *err)
{
    const struct redis_arg args[] = {REDIS_TEXT("UNLINK"), *name};
    return ask(r, args, 2, REDIS_NUMBER, a, err);
}

static int unlink_keys(struct remote *r, const struct sha256 *keys, int n,
                       struct redis_answer *a, struct err *err)
{
    char name[NAME_BYTES];
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        name_chunk(&keys[i], name);
        const struct redis_arg arg = REDIS_TEXT(name);
        rc = unlink_chunk(r, &arg, a, err);
    }
    return rc;
}

/* Removes the chunk of that name where it is the owner's. */
static int unlink_owned(struct remote *r, const struct redis_arg *name, uint64_t owner,
                        struct redis_answer *a, struct err *err)
{
    const struct redis_arg args[] = {REDIS_TEXT("GETRANGE"), *name, REDIS_TEXT(OWNER_FIRST),
                                     REDIS_TEXT(OWNER_LAST)};
    int rc = ask(r, args, 4, REDIS_BYTES, a, err);
    if (rc != 0 || a->n_bytes != 8 || get_u64(a->bytes) != owner)
        return rc;
    return unlink_chunk(r, name, a, err);
}

/* Removes all chunks of an owner: no name tells whose a chunk is, so all are looked at. */
static int unlink_owner(struct remote *r, uint64_t owner, struct redis_answer *a,
                        struct err *err)
{
    struct redis_answer one = {0};
    char cursor[32] = "0";
    int rc = 0;
    do {
        char count[16];
        const char *item;
        size_t at = 0, n;
        snprintf(count, sizeof count, "%d", SCAN_AT_ONCE);
        const struct redis_arg args[] = {REDIS_TEXT("SCAN"),  REDIS_TEXT(cursor),
                                         REDIS_TEXT("MATCH"), REDIS_TEXT(NAME_CHUNKS "*"),
                                         REDIS_TEXT("COUNT"), REDIS_TEXT(count)};
        rc = ask(r, args, 6, REDIS_LIST, a, err);
        if (rc != 0 || !redis_next(a, &at, &item, &n) || n >= sizeof cursor)
            break;
        memcpy(cursor, item, n);
        cursor[n] = 0;
        while (rc == 0 && redis_next(a, &at, &item, &n)) {
            const struct redis_arg name = {item, n};
            rc = unlink_owned(r, &name, owner, &one, err);
        }
    } while (rc == 0 && strcmp(cursor, "0") != 0);
    redis_answer_deinit(&one);
    return rc;
}

/* --- publishing --------------------------------------------------------------------------------- */

static int publish_one(struct remote *r, const struct erasure *e, struct redis_answer *a,
                       struct err *err)
{
    int rc = unlink_keys(r, e->keys, e->n, a, err);
    if (rc == 0 && e->is_owner)
        rc = unlink_owner(r, e->owner, a, err);
    if (rc != 0)
        return rc;
    size_t n = erasure_bytes(e->n);
    uint8_t *entry = xmalloc(n);
    erasure_encode(e, entry);
    const struct redis_arg args[] = {
        REDIS_TEXT("RPUSH"), REDIS_TEXT(NAME_ERASURES), {entry, n}};
    rc = ask(r, args, 3, REDIS_NUMBER, a, err);
    free(entry);
    return rc;
}

static int publish_all(struct remote *r, struct redis_answer *a, struct err *err)
{
    int rc = 0;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        struct published *p = r->publish; /* only this thread takes entries off */
        pthread_mutex_unlock(&r->lock);
        if (p == NULL || (rc = publish_one(r, &p->e, a, err)) != 0)
            return rc;
        pthread_mutex_lock(&r->lock);
        r->publish = p->next;
        pthread_mutex_unlock(&r->lock);
        free(p);
    }
}

/* --- what others have erased -------------------------------------------------------------------- */

/* Erases a list of chunks of several chains, parents first, as far as nothing else continues them. */
static int erase_keys(struct remote *r, const struct sha256 *keys, int n, bool *any,
                      struct err *err)
{
    int rc = 0;
    while (n > 0) {
        struct store_erased gone = {0};
        int one = store_erase(r->o.store, keys, n, &gone, err);
        rc = rc != 0 ? rc : one;
        *any |= gone.n_chunks + gone.n_busy + gone.n_owed > 0;
        if (gone.n_shared == 0)
            break;
        n = (int)gone.n_shared - 1; /* keys[n] is continued by something else */
    }
    return rc;
}

static int apply(struct remote *r, const struct erasure *e, struct redis_answer *a,
                 struct err *err)
{
    struct store_erased gone = {0};
    struct err why = {0};
    bool any = false;
    pthread_mutex_lock(&r->lock);
    ban(r, e);
    pthread_mutex_unlock(&r->lock);
    erase_enter(r);
    int rc = erase_keys(r, e->keys, e->n, &any, &why);
    if (rc == 0 && e->is_owner)
        rc = store_erase_owner(r->o.store, e->owner, &gone, &why);
    any |= gone.n_chunks + gone.n_busy + gone.n_owed > 0;
    if (any && r->on_erased != NULL)
        r->on_erased(r->on_erased_arg);
    if (rc != 0)
        log_warn("what another server has erased cannot be erased here yet: %s", why.msg);
    int n_taken = r->n_taken;
    struct sha256 *taken = (void *)xmemdup(r->taken, (size_t)n_taken * sizeof *taken);
    erase_leave(r);
    rc = unlink_keys(r, e->keys, e->n, a, err);
    if (rc == 0)
        rc = unlink_keys(r, taken, n_taken, a, err);
    free(taken);
    return rc;
}

/* Entry i of the list; *is_there false where the list ends before. */
static int entry(struct remote *r, uint64_t i, struct redis_answer *a, bool *is_there,
                 struct err *err)
{
    char index[32];
    snprintf(index, sizeof index, "%" PRIu64, i);
    const struct redis_arg args[] = {REDIS_TEXT("LINDEX"), REDIS_TEXT(NAME_ERASURES),
                                     REDIS_TEXT(index)};
    int rc = redis_ask(r->write_link.redis, args, 3, r->o.stuck_ns, a, err);
    if (rc == 0 && a->kind != REDIS_BYTES && a->kind != REDIS_NONE)
        rc = err_set(err, -EACCES, "the remote refuses: %.120s",
                     a->kind == REDIS_REFUSED ? (const char *)a->bytes : "");
    *is_there = rc == 0 && a->kind == REDIS_BYTES;
    return rc;
}

/* A list that does not have the entry that was seen last is another one: it is read from its beginning. */
static int find_place(struct remote *r, struct redis_answer *a, struct err *err)
{
    bool is_there = false;
    if (r->n_seen == 0)
        return 0;
    int rc = entry(r, r->n_seen - 1, a, &is_there, err);
    if (rc == 0 && (!is_there || checksum64(a->bytes, a->n_bytes) != r->seen_sum))
        r->n_seen = 0;
    return rc;
}

static void keep_place(const struct remote *r)
{
    char text[64], *tmp;
    if (r->place_path == NULL)
        return;
    int n = snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 "\n", r->n_seen,
                     r->seen_sum);
    tmp = xasprintf("%s.new", r->place_path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write(fd, text, (size_t)n) == n;
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    if (!ok || rename(tmp, r->place_path) != 0) /* the same entries are read once more */
        log_debug("%s: %s", tmp, strerror(errno));
    free(tmp);
}

static void load_place(struct remote *r)
{
    char *text = NULL;
    size_t n;
    if (r->place_path == NULL ||
        file_read_regular(r->place_path, 256, &text, &n, NULL) != 0)
        return;
    if (sscanf(text, "%" SCNu64 " %" SCNu64, &r->n_seen, &r->seen_sum) != 2)
        r->n_seen = 0;
    free(text);
}

/* The first entry of a run that cannot be read has a line in the log; a list may be full of them. */
static void tell_bad_entry(uint64_t n_before, const struct err *why)
{
    if (n_before == 0)
        log_warn("entries of the remote's list of erasures are passed over: %s", why->msg);
}

/* Entries concern a server that has state, also where the remote was not there when it began. */
static void leave_off_skipping(struct remote *r)
{
    struct store_stats st;
    if (!r->skips)
        return;
    store_stats(r->o.store, &st);
    r->skips = st.n_chunks == 0;
}

/* Reads entries that this server has not seen; *at_end where it has seen all of them now. */
static int read_entries(struct remote *r, struct redis_answer *a, bool *at_end,
                        struct err *err)
{
    struct erasure e = {.keys = xmalloc(ERASURE_MAX_KEYS * sizeof *e.keys)};
    uint64_t before = r->n_seen, n_bad = 0;
    bool is_there = true;
    leave_off_skipping(r);
    int rc = find_place(r, a, err);
    for (int i = 0; rc == 0 && is_there && i < ENTRIES_AT_ONCE; i++) {
        rc = entry(r, r->n_seen, a, &is_there, err);
        if (rc != 0 || !is_there)
            break;
        uint64_t sum = checksum64(a->bytes, a->n_bytes);
        struct err why = {0};
        if (erasure_decode(a->bytes, a->n_bytes, &e, &why) != 0)
            tell_bad_entry(n_bad++, &why);
        else if (e.server != r->server && !r->skips)
            rc = apply(r, &e, a, err);
        if (rc == 0) {
            r->n_seen++;
            r->seen_sum = sum;
        }
    }
    if (r->n_seen != before)
        keep_place(r);
    *at_end = rc == 0 && !is_there;
    r->skips = r->skips && !*at_end;
    free(e.keys);
    return rc;
}

/* --- how far all have come ---------------------------------------------------------------------- */

static int tell_place(struct remote *r, struct redis_answer *a, struct err *err)
{
    char id[24], value[64];
    snprintf(id, sizeof id, "%016" PRIx64, r->server);
    snprintf(value, sizeof value, "%" PRIu64 " %" PRId64, r->n_seen, clock_wall_s());
    const struct redis_arg args[] = {REDIS_TEXT("HSET"), REDIS_TEXT(NAME_SERVERS),
                                     REDIS_TEXT(id), REDIS_TEXT(value)};
    return ask(r, args, 4, REDIS_NUMBER, a, err);
}

static int look_at_places(struct remote *r, struct redis_answer *a, struct err *err)
{
    const struct redis_arg args[] = {REDIS_TEXT("HGETALL"), REDIS_TEXT(NAME_SERVERS)};
    uint64_t least = r->n_seen, n_servers = 0;
    const char *id, *value;
    size_t at = 0, n;
    int rc = ask(r, args, 2, REDIS_LIST, a, err);
    if (rc != 0)
        return rc;
    while (redis_next(a, &at, &id, &n) && redis_next(a, &at, &value, &n)) {
        char text[64] = "";
        uint64_t seen;
        int64_t when;
        memcpy(text, value, n < sizeof text ? n : sizeof text - 1);
        if (sscanf(text, "%" SCNu64 " %" SCNd64, &seen, &when) != 2 ||
            when < clock_wall_s() - GONE_S)
            continue;
        n_servers++;
        least = seen < least ? seen : least;
    }
    pthread_mutex_lock(&r->lock);
    r->stats.n_erasures = r->n_seen;
    r->stats.n_erasures_everywhere = least;
    r->stats.n_servers = n_servers;
    r->is_current = true;
    pthread_mutex_unlock(&r->lock);
    return 0;
}

/* --- the writer's part -------------------------------------------------------------------------- */

int64_t remote_erasures_due_ns(const struct remote *r)
{
    int64_t left = r->t_polled + POLL_NS - clock_now_ns();
    return r->publish != NULL || left < 0 ? 0 : left;
}

bool remote_erasures_run(struct remote *r)
{
    struct redis_answer a = {0};
    struct err err = {0};
    bool at_end = true;
    int rc = publish_all(r, &a, &err);
    if (rc == 0)
        rc = read_entries(r, &a, &at_end, &err);
    if (rc == 0)
        rc = tell_place(r, &a, &err);
    if (rc == 0 && at_end)
        rc = look_at_places(r, &a, &err);
    r->t_polled = clock_now_ns() - (rc == 0 && !at_end ? POLL_NS - TURN_NS : 0);
    redis_answer_deinit(&a);
    if (rc != 0)
        link_fail(&r->write_link, &err);
    return rc == 0;
}

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
    load_place(r);
    store_stats(r->o.store, &st);
    /* What was erased before cannot be in a store that is empty. */
    r->is_current = r->skips = st.n_chunks == 0;
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
