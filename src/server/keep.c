/* keep.c - see keep.h. */
#include "server/keep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "api/answers.h"

int keep_fault(const struct err *err, struct fault *f)
{
    if (err->code == -ENOSPC || err->code == -EDQUOT)
        return fault_set(f, 507, "disk_full", NULL,
                         "%s; delete conversations, or make room on the disk", err->msg);
    switch (err->code) {
    case -ENOMEM:
        return fault_refuse(f, err->code, NULL, "%s", err->msg);
    case ERR_NOT_FOUND:
        return fault_set(f, 404, "not_found", NULL, "%s", err->msg);
    case -EAGAIN:
        return fault_set(f, 503, "conversations_unavailable", NULL, "%s", err->msg);
    case ERR_LIMIT:
        return fault_set(f, 400, "storage_full", NULL, "%s", err->msg);
    case ERR_MISMATCH:
        return fault_set(f, 409, "conflict", NULL, "%s", err->msg);
    default:
        return fault_set(f, 500, NULL, NULL, "%s", err->msg);
    }
}

int keep_none(struct fault *f)
{
    return fault_set(f, 400, "not_kept", "store",
                     "this server keeps no conversations (--conversations none): send "
                     "\"store\": false, and the whole conversation with every request");
}

int keep_page(struct call *c, int default_limit, struct items_page *out, struct fault *f)
{
    const char *limit = call_query(c, "limit"), *order = call_query(c, "order");
    char *end = NULL;
    long n = limit != NULL ? strtol(limit, &end, 10) : default_limit;
    if (limit != NULL && (end == limit || *end != 0 || n < 1 || n > 100))
        return fault_set(f, 400, NULL, "limit", "'limit' must be a number from 1 to 100");
    if (order != NULL && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return fault_set(f, 400, NULL, "order", "'order' must be asc or desc");
    *out = (struct items_page){.limit = (int)n,
                               .oldest_first = order != NULL && strcmp(order, "asc") == 0,
                               .after = call_query(c, "after")};
    return 0;
}

const char *keep_split(char *tail)
{
    char *slash = strchr(tail, '/');
    if (slash == NULL)
        return "";
    *slash = 0;
    return slash + 1;
}

/* --- saved state ------------------------------------------------------------------------------ */

int keep_store_fault(const struct hcache_err *err, struct fault *f)
{
    bool is_clients = err->code == HCACHE_E_UNSUPPORTED || err->code == HCACHE_E_LIMIT ||
                      err->code == HCACHE_E_USAGE;
    return fault_set(f, is_clients ? 400 : 500, is_clients ? "unsupported_value" : NULL,
                     NULL, "%s", err->msg);
}

int keep_pin(struct call *c, const struct hcache_context *context, int64_t until_wall_s,
             int *n_tokens, struct fault *f)
{
    struct hcache_err err = {0};
    int rc = hcache_cache_pin_context(call_model(c), context, until_wall_s, n_tokens, &err);
    if (rc == 0)
        return 0;
    return keep_store_fault(&err, f);
}

int keep_guarantee(struct call *c, const struct hcache_context *context,
                   int64_t until_wall_s, struct hcache_guarantee *out, struct fault *f)
{
    struct hcache_err err = {0};
    /* The flush lets state that was just computed reach the store. */
    hcache_cache_flush(call_model(c));
    int rc = hcache_cache_guarantee(call_model(c), context, until_wall_s, out, &err);
    if (rc == 0)
        return 0;
    if (rc == HCACHE_E_LIMIT || rc == HCACHE_E_NOT_FOUND)
        return fault_set(f, 409, "not_guaranteed", "guarantee", "%s", err.msg);
    if (rc == HCACHE_E_USAGE) /* the time of the guarantee is over already */
        return fault_set(f, 400, "unsupported_value", "ttl", "%s", err.msg);
    return keep_store_fault(&err, f);
}

bool keep_ttl(const char *text, int64_t *ttl_s)
{
    size_t n = strlen(text);
    if (n == 0 || n > 9 || strspn(text, "0123456789") != n)
        return false;
    int64_t value = strtol(text, NULL, 10);
    if (value > HCACHE_MAX_CACHE_TTL_S)
        return false;
    *ttl_s = value;
    return true;
}

enum { BURY_AT_ONCE = 1024, EXPIRE_AT_ONCE = 64 };

/* Adds to *sum what an erasure with the code rc has erased, except shared chunks. Returns 0 if the
 * erasure is noted on the disk, else rc. A noted erasure succeeds for this server: the next server
 * that can write carries it out. */
static int count_erased(struct hcache_erased *sum, const struct hcache_erased *gone, int rc)
{
    sum->n_chunks += gone->n_chunks;
    sum->n_bytes += gone->n_bytes;
    sum->n_busy += gone->n_busy;
    sum->n_owed += gone->n_owed;
    return gone->is_noted ? 0 : rc;
}

/* Erases a run of doomed chunks. keys[] lists children before parents, and is reversed first. If
 * another chunk continues keys[i], the chunks before keys[i] in its chain stay, too. Keys before
 * keys[i] may belong to other chains, so they are tried again without keys[i]. */
static int erase_run(struct hcache *h, struct sha256 *keys, int n,
                     struct hcache_erased *sum, struct hcache_err *err)
{
    struct hcache_erased gone = {0};
    int rc = 0;
    for (int i = 0; i < n / 2; i++) {
        struct sha256 k = keys[i];
        keys[i] = keys[n - 1 - i];
        keys[n - 1 - i] = k;
    }
    while (n > 0) {
        int one = hcache_cache_erase(h, (void *)keys, n, &gone, err);
        one = count_erased(sum, &gone, one);
        rc = rc != 0 ? rc : one;
        if (gone.n_shared == 0)
            break;
        sum->n_shared++;
        n = (int)gone.n_shared - 1; /* another chunk continues keys[n] */
    }
    return rc;
}

/* Erases chunks that interrupted answers have saved. No turn names these chunks; they begin with
 * the end of an erased turn, whose chunks are keys[0, n). Adds the numbers to *sum. */
static int forget(struct hcache *h, struct sha256 *keys, int n, struct hcache_erased *sum,
                  struct hcache_err *err)
{
    struct hcache_erased gone = {0};
    int rc = hcache_cache_forget(h, (void *)keys, n, &gone, err);
    return count_erased(sum, &gone, rc);
}

/* Erases one batch of doomed chunks; *n is their number. Returns 0, or a code that was logged. */
static int bury_some(struct server *s, struct hcache *h, struct sha256 *keys, int *n,
                     struct hcache_erased *sum)
{
    struct err err = {0};
    struct hcache_err herr = {0};
    int rc = conversations_doomed(s->conversations, keys, BURY_AT_ONCE, n, &err);
    if (rc != 0 || *n == 0)
        return rc;
    struct sha256 *copy = xmalloc((size_t)*n * sizeof *copy);
    memcpy(copy, keys, (size_t)*n * sizeof *keys);
    int forgot = forget(h, copy, *n, sum, &herr);
    /* Chunks that cannot be erased are at least not found. */
    rc = erase_run(h, copy, *n, sum, &herr);
    rc = forgot != 0 ? forgot : rc;
    if (rc == HCACHE_E_UNSUPPORTED)
        rc = 0; /* without a store there is nothing to erase */
    int forgotten = answers_forget_keys(s->answers, keys, *n, &err);
    rc = rc != 0 ? rc : forgotten;
    /* otherwise the chunks stay doomed and are tried again */
    if (rc == 0 && sum->n_busy == 0)
        rc = conversations_buried(s->conversations, keys, *n, &err);
    if (rc != 0)
        log_warn_once(
            &s->said_owed,
            "saved state of erased conversations is not erased yet: %s; trying again later",
            err.code != 0 ? err.msg : herr.msg);
    free(copy);
    return rc;
}

struct hcache_erased keep_bury(struct server *s)
{
    struct hcache_erased sum = {0};
    struct hcache *h = atomic_load(&s->h);
    struct sha256 *keys = xmalloc(BURY_AT_ONCE * sizeof *keys);
    int n = 0, rc = conversations_doomed(s->conversations, keys, 1, &n, NULL);
    if (rc == 0 && n > 0) {
        /* so that chunks on their way to the store are erased, too */
        hcache_cache_flush(h);
        n = BURY_AT_ONCE;
    }
    while (rc == 0 && n == BURY_AT_ONCE && sum.n_busy == 0)
        rc = bury_some(s, h, keys, &n, &sum);
    free(keys);
    return sum;
}

/* Logs a changed clock. Ages continue as if it had not changed (clock_wall_s), but the
 * administrator must know. */
static void note_clock(struct server *s)
{
    enum { WORTH_SAYING_S = 60 };
    int64_t by_s = clock_set_by_s(), moved_s = by_s - s->clock_set_by_s;
    if (moved_s > -WORTH_SAYING_S && moved_s < WORTH_SAYING_S)
        return;
    s->clock_set_by_s = by_s;
    log_warn("the system's clock was set by %+lld s since this server started: ages, pins "
             "and recorded times do not follow the change; restart the server to apply it",
             (long long)by_s);
}

/* Forgets remembered answers, and what is known of requests, whose time is over. */
static void forget_old_answers(struct server *s)
{
    struct err err = {0};
    if (answers_expire(s->answers, &err) != 0)
        log_warn_once(&s->said_answers, "old answers are not overwritten: %s", err.msg);
    if (s->o.answers_ttl_s > 0)
        recent_expire(s->recent, clock_wall_s() - s->o.answers_ttl_s);
}

static void evict_idle(struct server *s)
{
    struct hcache_err err = {0};
    uint64_t n = 0;
    int64_t now_s = clock_wall_s();
    if (s->o.idle_ttl_s <= 0 || now_s < s->next_idle_s)
        return;
    /* the searches are this far apart, because each visits every leaf */
    s->next_idle_s = now_s + s->o.idle_ttl_s / 16;
    if (hcache_cache_evict_idle(atomic_load(&s->h), s->o.idle_ttl_s, &n, &err) != 0)
        log_warn_once(&s->said_idle, "idle chunks are not evicted: %s", err.msg);
    else if (n > 0)
        log_info("%llu chunks were evicted: they were not used for %lld s",
                 (unsigned long long)n, (long long)s->o.idle_ttl_s);
}

/* Evicts expired chunks. If no chunk of the store can expire, this costs nothing. */
static void evict_expired(struct server *s)
{
    struct hcache_err err = {0};
    uint64_t n = 0;
    int rc = hcache_cache_evict_expired(atomic_load(&s->h), &n, &err);
    if (rc != 0 && rc != HCACHE_E_UNSUPPORTED)
        log_warn_once(&s->said_expired, "expired chunks are not evicted: %s", err.msg);
    else if (n > 0)
        log_info("%llu chunks were evicted: their time to live has passed",
                 (unsigned long long)n);
}

/* Makes the advice that /metrics shows. Making it visits every chunk, so it is made again only
 * after 1,000 times the time that it took. */
static void refresh_advice(struct server *s)
{
    struct hcache_advice a[HCACHE_ADVICES];
    int64_t begun_ns = clock_now_ns();
    if (begun_ns < s->next_advice_ns ||
        hcache_cache_advise(atomic_load(&s->h), a, NULL) != 0)
        return;
    s->next_advice_ns = begun_ns + 1000 * (clock_now_ns() - begun_ns);
    pthread_mutex_lock(&s->advice_lock);
    memcpy(s->advice, a, sizeof a);
    pthread_mutex_unlock(&s->advice_lock);
}

void keep_tidy(void *arg)
{
    struct server *s = arg;
    struct err err = {0};
    struct hcache_err herr = {0};
    struct erased gone;
    note_clock(s);
    if (atomic_load(&s->h) == NULL)
        return;
    evict_idle(s);
    evict_expired(s);
    forget_old_answers(s);
    refresh_advice(s);
    if (hcache_cache_settle(atomic_load(&s->h), &herr) != 0)
        log_warn_once(&s->said_owed, "chunks to be erased are not noted on disk yet: %s",
                      herr.msg);
    if (s->conversations == NULL)
        return;
    int rc = conversations_expire(s->conversations, clock_wall_s(), EXPIRE_AT_ONCE, &gone,
                                  &err);
    if (rc != 0)
        log_warn("%s", err.msg);
    else
        (void)keep_bury(s);
}

void keep_put_where(struct json *o, struct call *c)
{
    struct hcache_cache_stats k;
    hcache_cache_stats(call_model(c), NULL, &k);
    if (k.remote.url[0] != 0)
        json_put_string(o, "erased", "local");
}

struct json *keep_deleted(struct call *c, const char *id, const char *object,
                          const struct erased *gone)
{
    struct hcache_erased state = keep_bury(c->s);
    struct conversations_stats st;
    recent_forget(c->s->recent, call_tenant(c), NULL); /* miss reasons quote prompts */
    /* Whatever has kept them from being erased, doomed chunks are not erased yet. */
    if (state.n_owed == 0 && state.n_busy == 0 &&
        conversations_stats(c->s->conversations, &st, NULL) == 0)
        state.n_owed = st.n_doomed;
    struct json *o = json_make("{id: %s, object: %s, deleted: true, erased_turns: %d, "
                               "shared_turns: %d}",
                               id, object, gone->n_turns, gone->n_shared);
    json_extend(o,
                "{erased_chunks: %ld, shared_chunks: %ld, busy_chunks: %ld, "
                "pending_chunks: %ld}",
                state.n_chunks, state.n_shared, state.n_busy, state.n_owed);
    keep_put_where(o, c);
    return o;
}
