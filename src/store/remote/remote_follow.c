/* remote_follow.c - carries out other servers' erasures here, and publishes how far each server
 * has read.
 *
 *     writer, each second   TIME: for leases (remote_lease.c)
 *                           XINFO STREAM, XRANGE: entries of NAME_ERASED that this server has not
 *                           seen; their chunks are erased in this server's store, and UNLINKed once
 *                           more, since this server may have written one of them meanwhile
 *                           HSET, HGETALL of NAME_SERVERS: positions of this server, and of others
 *                           EXPIRE or UNLINK: chunks that it has written or used meanwhile
 *
 * The position in the stream survives a restart, in a file beside the store. A server whose store
 * is not empty at open uses none of its state before it has read the stream to its end
 * (remote_is_current). If its position is older than the oldest entry that the stream has kept, it
 * cannot know which chunks were erased, and erases all its chunks.
 *
 * Before its first fetch a server reads the entries of the last BAN_NS, whether it has seen them or
 * not: another server that has not read them yet may still write their chunks. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "store/remote/remote_impl.h"

/* Intervals of reading the stream: usually, and while chunks wait to be confirmed. */
#define POLL_NS ((int64_t)1000 * 1000 * 1000)
#define SOON_NS ((int64_t)50 * 1000 * 1000)
/* A server that has not reported for this time is not waited for: when it comes back, it reads the
 * stream before it serves. */
enum { GONE_S = 30 };
/* Number of entries that one command reads: a known one, and new ones. */
#define READ_AT_ONCE "9"
/* Longest time for reading the stream before chunks are written: a stream without an end must not
 * keep chunks from being written. */
#define TURN_NS ((int64_t)20 * 1000 * 1000)
enum { READS_A_TURN = 128 };
/* Most commands that read the bans: a stream that needs more is far beyond ERASED_ENTRIES. */
enum { READS_OF_BANS = 4096 };
#define FIRST_ID "0-0"

/* --- the position in the stream --------------------------------------------------------------- */

/* Writes the position to the file beside the store, if there is one. */
static void keep_place(const struct remote *r)
{
    char text[128], *tmp;
    if (r->place_path == NULL)
        return;
    int n = snprintf(text, sizeof text, "%" PRIu64 " %s\n", r->n_seen, r->seen_id);
    tmp = xasprintf("%s.new", r->place_path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    /* Synced before the rename: an empty file after a power loss would hide the position. */
    bool ok = fd >= 0 && write(fd, text, (size_t)n) == n && fdatasync(fd) == 0;
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    /* If the file cannot be written, the next start reads the same entries once more. */
    if (!ok || rename(tmp, r->place_path) != 0)
        log_debug("%s: %s", tmp, strerror(errno));
    free(tmp);
}

/* Returns whether the text is the id of a stream's entry: two numbers with a dash between them. */
static bool is_id(const char *text)
{
    size_t n = strspn(text, "0123456789");
    return n > 0 && text[n] == '-' && text[n + 1] != 0 &&
           text[n + 1 + strspn(text + n + 1, "0123456789")] == 0;
}

static void load_place(struct remote *r)
{
    char *text = NULL, id[STREAM_ID_BYTES];
    size_t n;
    uint64_t n_seen;
    if (r->place_path == NULL ||
        file_read_regular(r->place_path, 256, &text, &n, NULL) != 0)
        return;
    r->has_place = sscanf(text, "%" SCNu64 " %47s", &n_seen, id) == 2 && is_id(id);
    if (r->has_place) {
        r->n_seen = n_seen;
        memcpy(r->seen_id, id, sizeof r->seen_id);
    }
    free(text);
}

void remote_follow_init(struct remote *r, bool is_empty)
{
    memcpy(r->seen_id, FIRST_ID, sizeof FIRST_ID);
    r->skips = is_empty;
    if (!is_empty)
        load_place(r);
}

/* --- the stream ------------------------------------------------------------------------------- */

struct stream_info {
    /* n_added: entries ever added; n_kept: entries that the stream still has */
    uint64_t n_added, n_kept;
    char last_id[STREAM_ID_BYTES];
};

static bool text_is(const char *p, size_t n, const char *text)
{
    return n == strlen(text) && memcmp(p, text, n) == 0;
}

static void copy_text(char *out, size_t n_out, const char *p, size_t n)
{
    n = n < n_out ? n : n_out - 1;
    memcpy(out, p, n);
    out[n] = 0;
}

/* Reads the stream's state. A stream that does not exist yet is empty. */
static int stream_look(struct remote *r, struct stream_info *out, struct redis_answer *a,
                       struct err *err)
{
    const struct redis_arg args[] = {REDIS_TEXT("XINFO"), REDIS_TEXT("STREAM"),
                                     REDIS_TEXT(r->names.erased)};
    const char *name, *value;
    char text[32];
    size_t at = 0, n, n_value;
    unsigned n_found = 0;
    *out = (struct stream_info){.last_id = FIRST_ID};
    int rc = cluster_ask(r->write_link.cluster, args, 3, r->o.stuck_ns, a, err);
    if (rc != 0)
        return rc;
    if (a->kind == REDIS_REFUSED && strstr((const char *)a->bytes, "no such key") != NULL)
        return 0;
    for (int depth; (depth = redis_depth(a, at)) != 0;) {
        (void)redis_next(a, &at, &name, &n);
        if (depth > 1) /* the first and the last entry, which may have any fields */
            continue;
        uint64_t *number = text_is(name, n, "length")          ? &out->n_kept
                           : text_is(name, n, "entries-added") ? &out->n_added
                                                               : NULL;
        bool is_last = text_is(name, n, "last-generated-id");
        if ((number == NULL && !is_last) || !redis_next(a, &at, &value, &n_value))
            continue;
        copy_text(text, sizeof text, value, n_value);
        if (number != NULL)
            *number = strtoull(text, NULL, 10);
        else
            copy_text(out->last_id, sizeof out->last_id, value, n_value);
        n_found++;
    }
    if (a->kind != REDIS_LIST || n_found < 3 || !is_id(out->last_id))
        return err_set(err, -EACCES, "the remote refuses, or is older than Redis 7: %.120s",
                       a->kind == REDIS_REFUSED ? (const char *)a->bytes : "XINFO STREAM");
    return 0;
}

/* Asks for the entry with the id `from` and the entries behind it. */
static int stream_read(struct remote *r, const char *from, struct redis_answer *a,
                       struct err *err)
{
    const struct redis_arg args[] = {REDIS_TEXT("XRANGE"), REDIS_TEXT(r->names.erased),
                                     REDIS_TEXT(from),     REDIS_TEXT("+"),
                                     REDIS_TEXT("COUNT"),  REDIS_TEXT(READ_AT_ONCE)};
    int rc = cluster_ask(r->write_link.cluster, args, 6, r->o.stuck_ns, a, err);
    if (rc == 0 && a->kind == REDIS_REFUSED)
        rc = remote_refused(a, err);
    return rc;
}

/* --- erasing here ----------------------------------------------------------------------------- */

/* Erases chunks of several chains, parents first, except those that other chunks continue. */
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
        /* another chunk continues keys[n], which therefore stays */
        n = (int)gone.n_shared - 1;
    }
    return rc;
}

/* Erases the chunks of an owner, or those that hold the whole of one of the texts. */
static int erase_all_of(struct remote *r, const struct erasure *e, bool *any,
                        struct err *err)
{
    struct store_erased gone = {0};
    int rc = e->is_owner ? store_erase_owner(r->o.store, e->owner, &gone, err)
                         : store_erase_continuing(r->o.store, e->keys, e->n, &gone, err);
    *any |= gone.n_chunks + gone.n_busy + gone.n_owed > 0;
    return rc;
}

/* [erase_lock] Reports an erasure to on_erased if any chunk was erased, and logs a failure. */
static void report_erasure(struct remote *r, bool any, int rc, const struct err *why)
{
    if (any && r->on_erased != NULL)
        r->on_erased(r->on_erased_arg);
    if (rc != 0)
        log_warn("chunks that another server has erased cannot be erased here yet: %s",
                 why->msg);
}

/* Carries out another server's erasure: bans its chunks, erases them here, and removes them from
 * the remote once more. Of a text only the chunks that the store has taken away are banned and
 * removed, because other texts may begin with the text's own keys. */
static int apply(struct remote *r, const struct erasure *e, struct redis_answer *a,
                 struct err *err)
{
    struct err why = {0};
    bool any = false;
    pthread_mutex_lock(&r->lock);
    remote_ban(r, e);
    pthread_mutex_unlock(&r->lock);
    remote_erase_enter(r);
    int rc = e->is_owner || e->is_text ? erase_all_of(r, e, &any, &why)
                                       : erase_keys(r, e->keys, e->n, &any, &why);
    report_erasure(r, any, rc, &why);
    int n_taken = r->n_taken;
    struct sha256 *taken = (void *)xmemdup(r->taken, (size_t)n_taken * sizeof *taken);
    r->has_erased = true;
    pthread_mutex_lock(&r->lock);
    if (e->is_text)
        remote_ban(r, &(struct erasure){.n = n_taken, .keys = taken});
    pthread_mutex_unlock(&r->lock);
    remote_erase_leave(r);
    rc = e->is_text ? 0 : remote_unlink_keys(r, e->keys, e->n, a, err);
    if (rc == 0)
        rc = remote_unlink_keys(r, taken, n_taken, a, err);
    free(taken);
    return rc;
}

struct owners {
    uint64_t *owner;
    size_t n;
};

static int add_owner(void *arg, const struct store_owner_use *u)
{
    struct owners *all = arg;
    if (u->n_chunks == 0)
        return 0;
    all->owner = xgrow(all->owner, all->n, sizeof all->owner[0]);
    all->owner[all->n++] = u->owner;
    return 0;
}

/* Erases all chunks of this server: it cannot know which of them were erased elsewhere. */
static void erase_all(struct remote *r)
{
    struct owners all = {0};
    struct err why = {0};
    bool any = false;
    int rc = 0;
    r->has_erased = true;
    remote_erase_enter(r);
    store_refuse_former(r->o.store);
    (void)store_each_owner(r->o.store, add_owner, &all);
    for (size_t i = 0; i < all.n; i++) {
        const struct erasure e = {.is_owner = true, .owner = all.owner[i]};
        int one = erase_all_of(r, &e, &any, &why);
        rc = rc != 0 ? rc : one;
    }
    report_erasure(r, any, rc, &why);
    remote_erase_leave(r);
    free(all.owner);
    if (any)
        log_warn("this server was away while others erased more than the remote keeps a "
                 "record of: all "
                 "saved state of this server is erased");
}

/* --- reading the stream ----------------------------------------------------------------------- */

/* An entry of the stream. */
struct entry {
    char id[STREAM_ID_BYTES];
    const char *bytes; /* NULL: the entry has another form than ours, one field "e" */
    size_t n;
};

/* Reads the next entry of an answer, which is a list of [id, [field, value, ...]]. An entry of this
 * program has one field; other programs' entries have no bytes in *out. */
static bool next_entry(const struct redis_answer *list, size_t *at, struct entry *out)
{
    const char *text;
    size_t n;
    bool is_ours = false;
    *out = (struct entry){0};
    if (redis_depth(list, *at) != 2 || !redis_next(list, at, &text, &n))
        return false;
    copy_text(out->id, sizeof out->id, text, n);
    if (n >= sizeof out->id || !is_id(out->id))
        return false;
    for (int i = 0; redis_depth(list, *at) == 3 && redis_next(list, at, &text, &n); i++) {
        is_ours = i == 0 ? text_is(text, n, "e") : is_ours && i == 1;
        out->bytes = text;
        out->n = n;
    }
    out->bytes = is_ours ? out->bytes : NULL;
    return true;
}

/* Decodes an entry's erasure, which may be encrypted. */
static int decode(const struct remote *r, const struct entry *x, struct erasure *e,
                  struct err *err)
{
    if (r->names.seal == NULL)
        return erasure_decode((const uint8_t *)x->bytes, x->n, e, err);
    uint8_t *copy = (uint8_t *)xmemdup(x->bytes, x->n);
    int rc = value_open(&r->names, "erasure", 7, copy, x->n)
                 ? erasure_decode(copy, x->n - SEAL_BYTES, e, err)
                 : err_set(err, ERR_FORMAT, "it is not encrypted with this server's key");
    free(copy);
    return rc;
}

/* Carries out an entry of the stream. Skips a damaged one. */
static int take_entry(struct remote *r, const struct entry *x, struct erasure *e,
                      struct redis_answer *a, struct err *err)
{
    struct err why = {0};
    int rc = x->bytes != NULL ? decode(r, x, e, &why)
                              : err_set(&why, ERR_FORMAT, "it has other fields");
    if (rc != 0) {
        log_warn_once(&r->said_skips,
                      "entry %s of the remote's stream of erasures is skipped: %s", x->id,
                      why.msg);
        return 0;
    }
    return e->server != r->server ? apply(r, e, a, err) : 0;
}

/* Carries out the entries of one answer. The answer begins with the entry that was seen last, if
 * the stream still has it (*has_last). *n_new: number of new entries. */
static int take_entries(struct remote *r, const struct redis_answer *list, bool *has_last,
                        uint64_t *n_new, struct err *err)
{
    struct erasure e = {.keys = xmalloc(ERASURE_MAX_KEYS * sizeof *e.keys)};
    struct redis_answer a = {0};
    struct entry x;
    size_t at = 0;
    int rc = 0;
    *has_last = false;
    *n_new = 0;
    while (rc == 0 && next_entry(list, &at, &x)) {
        if (strcmp(x.id, r->seen_id) == 0) {
            *has_last = true;
            continue;
        }
        rc = take_entry(r, &x, &e, &a, err);
        if (rc != 0)
            break;
        memcpy(r->seen_id, x.id, sizeof x.id);
        r->n_seen++;
        ++*n_new;
    }
    redis_answer_deinit(&a);
    free(e.keys);
    return rc;
}

/* The stream's state compared with this server's position. */
enum stand {
    STAND_OK,
    STAND_OTHER, /* the stream is not the one that was read before */
    STAND_GAP    /* the stream has dropped entries that this server has not seen */
};

/* Compares the stream's state with this server's position. The state s was requested before the
 * entries were read. n_seen counts the entries seen before, n_new the entries read now. */
static enum stand stand_of(const struct stream_info *s, uint64_t n_seen, uint64_t n_new,
                           bool has_last)
{
    uint64_t n_gone = s->n_added - MIN(s->n_added, s->n_kept);
    if (n_seen > s->n_added || (n_seen > n_gone && !has_last))
        return STAND_OTHER;
    /* If nothing new was read although n_seen < n_added, the stream has dropped unseen entries
     * after s was requested. */
    return n_seen < n_gone || (n_new == 0 && n_seen < s->n_added) ? STAND_GAP : STAND_OK;
}

/* Sets this server's position in the stream. */
static void see(struct remote *r, uint64_t n_seen, const char *id)
{
    r->n_seen = n_seen;
    copy_text(r->seen_id, sizeof r->seen_id, id, strlen(id));
}

/* Carries out the consequence of `stand`. A server without a position has never taken part before,
 * so dropped entries do not concern it. */
static void settle(struct remote *r, const struct stream_info *s, enum stand stand,
                   uint64_t n_new, bool *more)
{
    *more = n_new > 0;
    if (stand == STAND_OTHER) { /* the new stream will be read from its beginning */
        see(r, 0, FIRST_ID);
        *more = s->n_kept > 0;
    } else if (stand == STAND_GAP && r->has_place) {
        erase_all(r);
        see(r, s->n_added, s->last_id);
        *more = true;
    } else if (n_new == 0) {
        r->n_seen = s->n_added;
        r->has_place = true;
    }
}

/* Reads some entries; *more gets whether there may be others. If the store was empty at open, skips
 * all entries so far. */
static int read_some(struct remote *r, bool *more, struct redis_answer *a, struct err *err)
{
    struct stream_info s;
    bool has_last, had_place = r->has_place;
    uint64_t before = r->n_seen, n_new;
    *more = false;
    int rc = stream_look(r, &s, a, err);
    if (rc == 0 && r->skips) {
        see(r, s.n_added, s.last_id);
        r->skips = false;
        r->has_place = true;
    } else {
        if (rc == 0)
            rc = stream_read(r, r->seen_id, a, err);
        if (rc == 0)
            rc = take_entries(r, a, &has_last, &n_new, err);
        if (rc == 0)
            settle(r, &s, stand_of(&s, before, n_new, has_last), n_new, more);
    }
    if (r->has_place && (r->n_seen != before || !had_place))
        keep_place(r);
    return rc;
}

/* Stops skipping entries once the store has state, which it may get before the remote answers. */
static void leave_off_skipping(struct remote *r)
{
    struct store_stats st;
    if (!r->skips)
        return;
    store_stats(r->o.store, &st);
    r->skips = st.n_chunks == 0;
}

/* Reads entries that this server has not seen. *at_end gets whether it has now seen all. */
static int read_turn(struct remote *r, bool *at_end, struct redis_answer *a,
                     struct err *err)
{
    bool more = true;
    int rc = 0;
    leave_off_skipping(r);
    for (int i = 0; rc == 0 && more && i < READS_A_TURN; i++)
        rc = read_some(r, &more, a, err);
    *at_end = rc == 0 && !more;
    return rc;
}

/* --- bans from before open -------------------------------------------------------------------- */

/* Bans the chunks of one answer's entries. Returns how many entries there are, and copies the id
 * of the last one to `id`. */
static int ban_entries(struct remote *r, const struct redis_answer *list,
                       char id[STREAM_ID_BYTES])
{
    struct erasure e = {.keys = xmalloc(ERASURE_MAX_KEYS * sizeof *e.keys)};
    struct entry x;
    size_t at = 0;
    int n_entries = 0;
    while (next_entry(list, &at, &x)) {
        memcpy(id, x.id, sizeof x.id);
        n_entries++;
        if (x.bytes == NULL || decode(r, &x, &e, NULL) != 0)
            continue;
        pthread_mutex_lock(&r->lock);
        remote_ban(r, &e);
        pthread_mutex_unlock(&r->lock);
    }
    free(e.keys);
    return n_entries;
}

/* Bans the chunks that the stream's entries of the last BAN_NS name. An entry's id begins with the
 * time at which the entry was added, by the remote's clock. */
static int read_bans(struct remote *r, int64_t now_ms, struct redis_answer *a,
                     struct err *err)
{
    char id[STREAM_ID_BYTES];
    int64_t from_ms = now_ms - BAN_NS / 1000000;
    int rc = 0, n = 2;
    snprintf(id, sizeof id, "%" PRId64 "-0", MAX(from_ms, 0));
    /* Each answer but the first begins with the last entry of the previous answer. */
    for (int i = 0; rc == 0 && n > 1 && i < READS_OF_BANS; i++) {
        rc = stream_read(r, id, a, err);
        if (rc == 0)
            n = ban_entries(r, a, id);
    }
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&r->lock);
    if (n > 1) /* the loop ended before all entries were read */
        r->bans.all_until_ns = clock_now_ns() + BAN_NS;
    pthread_mutex_unlock(&r->lock);
    r->has_bans = true;
    return 0;
}

/* --- the servers' positions ------------------------------------------------------------------- */

static int tell_place(struct remote *r, struct redis_answer *a, struct err *err)
{
    char id[24], value[64];
    snprintf(id, sizeof id, "%016" PRIx64, r->server);
    snprintf(value, sizeof value, "%" PRIu64 " %" PRId64 " %" PRIx64, r->n_seen,
             clock_wall_s(), seal_mark(r->names.seal));
    const struct redis_arg args[] = {REDIS_TEXT("HSET"), REDIS_TEXT(NAME_SERVERS),
                                     REDIS_TEXT(id), REDIS_TEXT(value)};
    return remote_ask(r, args, 4, REDIS_NUMBER, a, err);
}

/* Reads all servers' positions into the statistics. From now on this server is current. */
static int look_at_places(struct remote *r, struct redis_answer *a, struct err *err)
{
    const struct redis_arg args[] = {REDIS_TEXT("HGETALL"), REDIS_TEXT(NAME_SERVERS)};
    uint64_t least = r->n_seen, n_servers = 0, own = seal_mark(r->names.seal);
    bool has_others = false;
    const char *id, *value;
    size_t at = 0, n;
    int rc = remote_ask(r, args, 2, REDIS_LIST, a, err);
    if (rc != 0)
        return rc;
    while (redis_next(a, &at, &id, &n) && redis_next(a, &at, &value, &n)) {
        char text[64];
        uint64_t seen, mark = 0;
        int64_t when;
        copy_text(text, sizeof text, value, n);
        if (sscanf(text, "%" SCNu64 " %" SCNd64 " %" SCNx64, &seen, &when, &mark) < 2)
            continue;
        has_others |= mark != own && when >= clock_wall_s() - r->o.ttl_s;
        if (mark != own || when < clock_wall_s() - GONE_S)
            continue;
        n_servers++;
        least = MIN(seen, least);
    }
    atomic_store(&r->has_other_secrets, has_others);
    pthread_mutex_lock(&r->lock);
    /* the stream was read past the erasures that this server published */
    r->n_uncounted = 0;
    r->stats.n_erasures = r->n_seen;
    r->stats.n_erasures_everywhere = least;
    r->stats.n_servers = n_servers;
    r->is_current = true;
    pthread_mutex_unlock(&r->lock);
    return 0;
}

/* --- the writer's part ------------------------------------------------------------------------ */

int64_t remote_erasures_due_ns(const struct remote *r)
{
    bool is_soon = r->n_leases > 0 && r->n_offers == 0;
    int64_t left = r->t_polled + (is_soon ? SOON_NS : POLL_NS) - clock_now_ns();
    return r->publish != NULL || left < 0 ? 0 : left;
}

/* Notes that this server knows all erasures before now_ms. Confirms the chunks that it had written
 * until then. */
static int know(struct remote *r, int64_t now_ms, uint32_t n_leases, struct redis_answer *a,
                struct err *err)
{
    r->read_ms = now_ms;
    pthread_mutex_lock(&r->lock);
    r->may_fetch = true;
    pthread_mutex_unlock(&r->lock);
    return remote_leases_settle(r, n_leases, a, err);
}

bool remote_erasures_run(struct remote *r)
{
    struct redis_answer a = {0};
    struct err err = {0};
    bool at_end = true;
    int64_t now_ms = 0;
    uint32_t n_leases = remote_n_leases(r);
    int rc = remote_ask_time(r, &now_ms, &a, &err);
    if (rc == 0 && !r->has_bans)
        rc = read_bans(r, now_ms, &a, &err);
    if (rc == 0)
        rc = remote_publish_all(r, &a, &err);
    if (rc == 0)
        rc = read_turn(r, &at_end, &a, &err);
    if (rc == 0 && at_end)
        rc = know(r, now_ms, n_leases, &a, &err);
    if (rc == 0)
        rc = tell_place(r, &a, &err);
    if (rc == 0 && at_end)
        rc = look_at_places(r, &a, &err);
    r->t_polled = clock_now_ns() - (rc == 0 && !at_end ? POLL_NS - TURN_NS : 0);
    redis_answer_deinit(&a);
    if (rc != ERR_CANCELLED)
        remote_writer_tell(r, WRITER_ERASURES, rc != 0 ? &err : NULL);
    if (rc != 0)
        link_fail(&r->write_link, &err);
    else if (cluster_is_old(r->write_link.cluster))
        link_drop(&r->write_link);
    return r->write_link.cluster != NULL;
}
