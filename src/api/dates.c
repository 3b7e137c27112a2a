/* dates.c - see dates.h.
 *
 * Sticky.  The prompt is rendered with the present date first.  If the template printed one, it is
 * rendered with each remembered date, too.  The beginning up to the text behind the date is looked
 * up in the store: without the chunk that holds the date, a remembered date gains nothing. Only
 * prompts that pass are looked up as a whole.  The longest match wins; the present date wins a tie.
 */
#include "api/dates.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/json.h"
#include "seal/seal.h"

/* Bound on remembered dates, each of which sticky renders for a prompt that matches nothing. */
enum { MAX_DATES = 16, DAY_BYTES = 11, BEHIND_BYTES = 4096 };
#define FILE_NAME "template-dates"
#define DOCUMENTS "ingested"

/* An ingested document. Its line in the file: its digest in 16 hexadecimal digits, a space, the
 * date. */
struct document {
    uint64_t digest;
    size_t line; /* the last line about a digest holds */
    char day[DAY_BYTES];
};
enum { LINE_BYTES = 16 + 1 + DAY_BYTES };

struct dates {
    char fixed[DAY_BYTES]; /* "": none */
    bool is_sticky;
    const struct seal *seal;
    char *path; /* NULL: dates are remembered in memory */
    /* Protects the list, and the file. */
    pthread_mutex_t lock;
    char day[MAX_DATES][DAY_BYTES]; /* the last used first */
    int n;
    bool has_failed;      /* the file could not be written, which was logged */
    char *documents_path; /* NULL: there is no store on a disk */
    struct document
        *documents; /* [n_documents], by digest and line; constant in a server */
    size_t n_documents;
};

/* Returns whether the text begins with a date, "2026-11-28". */
static bool is_day(const char *text)
{
    struct tm t = {0}, known;
    int n = 0;
    if (sscanf(text, "%4d-%2d-%2d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &n) != 3 ||
        n != 10)
        return false;
    t.tm_year -= 1900;
    t.tm_mon--;
    known = t;
    return timegm(&known) != -1 && known.tm_mday == t.tm_mday && known.tm_mon == t.tm_mon;
}

/* --- remembered dates ------------------------------------------------------------------------- */

/* [lock] Puts a day first. Returns whether the list has changed. */
static bool put(struct dates *d, const char *day)
{
    int i = 0;
    while (i < d->n && memcmp(d->day[i], day, DAY_BYTES - 1) != 0)
        i++;
    if (i == 0 && d->n > 0)
        return false;
    if (i == d->n)
        d->n = MIN(d->n + 1, MAX_DATES);
    i = MIN(i, MAX_DATES - 1);
    memmove(d->day[1], d->day[0], (size_t)i * sizeof d->day[0]);
    memcpy(d->day[0], day, DAY_BYTES - 1);
    d->day[0][DAY_BYTES - 1] = 0;
    return true;
}

/* Reads the file. A file that is missing or damaged holds no dates. */
static void read_file(struct dates *d)
{
    char *text = NULL;
    size_t n = 0;
    if (file_read_regular(d->path, MAX_DATES * DAY_BYTES, &text, &n, NULL) != 0)
        return;
    for (size_t at = n / DAY_BYTES * DAY_BYTES; at >= DAY_BYTES; at -= DAY_BYTES)
        if (is_day(text + at - DAY_BYTES))
            (void)put(d, text + at - DAY_BYTES);
    free(text);
}

/* [lock] Replaces the file. */
static int write_file(const struct dates *d)
{
    char text[MAX_DATES * DAY_BYTES + 1] = "", *temp = xasprintf("%s.new", d->path);
    for (int i = 0; i < d->n; i++)
        snprintf(text + i * DAY_BYTES, DAY_BYTES + 1, "%s\n", d->day[i]);
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int rc = fd < 0 ? -errno : file_write_all(fd, text, strlen(text), -1);
    if (rc == 0 && fdatasync(fd) != 0)
        rc = -errno;
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && rename(temp, d->path) != 0)
        rc = -errno;
    free(temp);
    return rc;
}

/* Puts the moment's day first, also in the file. The first failure to write it is logged. */
static void remember(struct dates *d, const char *moment)
{
    pthread_mutex_lock(&d->lock);
    int rc = put(d, moment) && d->path != NULL ? write_file(d) : 0;
    bool must_tell = rc != 0 && !d->has_failed;
    d->has_failed |= rc != 0;
    pthread_mutex_unlock(&d->lock);
    if (must_tell)
        log_warn(
            "%s could not be written (%s): --template-date sticky will not know today's "
            "date after a restart",
            d->path, strerror(-rc));
}

/* --- ingested documents ----------------------------------------------------------------------- */

enum { MAX_DOCUMENTS_BYTES = 1 << 30 };

static int by_digest(const void *a, const void *b)
{
    const struct document *x = a, *y = b;
    if (x->digest != y->digest)
        return x->digest < y->digest ? -1 : 1;
    return x->line < y->line ? -1 : x->line > y->line;
}

/* Reads the file. A killed process may have left a part of a line at its end. */
static int read_documents(struct dates *d, struct err *err)
{
    char *text = NULL;
    size_t n = 0;
    struct err local = {0}; /* the absence of the file leaves *err unchanged */
    int rc = file_read_regular(d->documents_path, MAX_DOCUMENTS_BYTES, &text, &n, &local);
    if (rc == -ENOENT ||
        rc == -ENOTDIR) /* opening the store reports a path that is no folder */
        return 0;
    if (rc != 0)
        return err_set(err, rc, "%s", local.msg);
    d->documents = xcalloc(n / LINE_BYTES + 1, sizeof *d->documents);
    for (size_t at = 0; at + LINE_BYTES <= n; at += LINE_BYTES) {
        struct document *x = &d->documents[d->n_documents];
        char *end;
        x->digest = strtoull(text + at, &end, 16);
        x->line = at / LINE_BYTES;
        if (end != text + at + 16 || !is_day(end + 1))
            continue;
        memcpy(x->day, end + 1, DAY_BYTES - 1);
        d->n_documents++;
    }
    qsort(d->documents, d->n_documents, sizeof *d->documents, by_digest);
    free(text);
    return 0;
}

static uint64_t digest_of(const struct dates *d, const char *salt, const char *role,
                          const char *text, size_t n)
{
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, "salt", salt, salt != NULL ? strlen(salt) : 0);
    sha256_field(c, "role", role, strlen(role));
    sha256_field(c, "text", text, n);
    struct sha256 whole = sha256_end(c);
    if (d->seal != NULL) /* whoever knows the text must not find it in the file */
        seal_hash(d->seal, whole.b, sizeof whole.b, whole.b);
    return get_u64(whole.b);
}

/* Returns the last record about a document, or NULL. */
static const struct document *find_document(const struct dates *d, uint64_t digest)
{
    size_t from = 0, to = d->n_documents;
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        if (d->documents[mid].digest <= digest)
            from = mid + 1;
        else
            to = mid;
    }
    return from > 0 && d->documents[from - 1].digest == digest ? &d->documents[from - 1]
                                                               : NULL;
}

/* Returns the date with which the first message was ingested, or NULL. */
static const char *ingested_day(const struct dates *d, const char *salt,
                                const struct json *messages)
{
    const struct json *first = json_at(messages, 0),
                      *content = json_member(first, "content");
    const char *role = json_string_of(json_member(first, "role"), NULL);
    size_t n = 0;
    const char *text = json_string_of(content, &n);
    if (json_count(content) == 1) /* a list with one part */
        text = json_string_of(json_member(json_at(content, 0), "text"), &n);
    if (d->n_documents == 0 || role == NULL || text == NULL)
        return NULL;
    if (strcmp(role, "developer") == 0)
        role = "system";
    const struct document *x = find_document(d, digest_of(d, salt, role, text, n));
    return x != NULL ? x->day : NULL;
}

int dates_ingested(struct dates *d, const char *salt, const char *role, const char *text,
                   size_t n, const char *moment, struct err *err)
{
    struct document x = {.digest = digest_of(d, salt, role, text, n)};
    const struct document *known = find_document(d, x.digest);
    char line[LINE_BYTES + 1];
    if (d->documents_path == NULL || moment[0] == 0 ||
        (known != NULL && memcmp(known->day, moment, DAY_BYTES - 1) == 0))
        return 0;
    snprintf(line, sizeof line, "%016llx %.10s\n", (unsigned long long)x.digest, moment);
    int fd = open(d->documents_path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600),
        rc = 0;
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    /* a new line replaces a part of a line */
    rc = fd < 0 || end < 0
             ? -errno
             : file_write_all(fd, line, LINE_BYTES, end / LINE_BYTES * LINE_BYTES);
    if (rc == 0 && fdatasync(fd) != 0)
        rc = -errno;
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = -errno;
    return rc == 0 ? 0
                   : err_set(err, rc,
                             "%s: %s: chats of another day would not find the document",
                             d->documents_path, strerror(-rc));
}

/* --- opening ---------------------------------------------------------------------------------- */

int dates_check(const char *how, struct err *err)
{
    if (how == NULL || strcmp(how, "sticky") == 0 ||
        (is_day(how) && strlen(how) == DAY_BYTES - 1))
        return 0;
    return err_set(
        err, ERR_USAGE,
        "--template-date must be a date such as 2026-11-28, or sticky, not '%.40s'", how);
}

int dates_open(const char *how, const char *dir, const struct seal *seal,
               struct dates **out, struct err *err)
{
    int rc = dates_check(how, err);
    if (rc != 0)
        return rc;
    struct dates *d = xcalloc(1, sizeof *d);
    pthread_mutex_init(&d->lock, NULL);
    d->seal = seal;
    d->is_sticky = how != NULL && strcmp(how, "sticky") == 0;
    if (how != NULL && !d->is_sticky)
        snprintf(d->fixed, sizeof d->fixed, "%s", how);
    if (dir != NULL) {
        d->path = xasprintf("%s/" FILE_NAME, dir);
        read_file(d);
        d->documents_path = xasprintf("%s/" DOCUMENTS, dir);
        rc = read_documents(d, err);
    }
    if (rc != 0) {
        dates_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void dates_close(struct dates *d)
{
    if (d == NULL)
        return;
    pthread_mutex_destroy(&d->lock);
    free(d->path);
    free(d->documents_path);
    free(d->documents);
    free(d);
}

/* --- sticky ----------------------------------------------------------------------------------- */

/* Returns the stored tokens of the text's first n bytes. */
static int stored(struct hcache *h, const char *salt, const struct prompt_text *text,
                  size_t n)
{
    struct hcache_context c = {.salt = salt};
    struct hcache_found found = {0};
    int32_t *ids = NULL;
    while (n < text->n && ((unsigned char)text->text[n] & 0xC0) == 0x80)
        n++;
    if (hcache_encode(h, text->text, n, text->flags, &ids, &c.n, NULL) != 0)
        return 0;
    c.ids = ids;
    (void)hcache_cache_lookup(h, &c, &found, NULL);
    hcache_free(ids);
    return found.stored_tokens;
}

/* Returns the number of bytes that two prompts have in common. */
static size_t common(const struct prompt_text *a, const struct prompt_text *b)
{
    size_t i = 0, n = MIN(a->n, b->n);
    while (i < n && a->text[i] == b->text[i])
        i++;
    return i;
}

/* Replaces the prompt by that of the remembered date with the longest match. */
static int stick(struct dates *d, struct hcache *h, const char *salt,
                 const struct chat_source *s, struct prompt_text *io, struct fault *f)
{
    char days[MAX_DATES][DAY_BYTES];
    pthread_mutex_lock(&d->lock);
    const int n = d->n;
    memcpy(days, d->day, sizeof days);
    pthread_mutex_unlock(&d->lock);
    struct prompt_text best = {0};
    int most = -1, rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        struct chat_source other = *s;
        struct prompt_text text;
        other.date = days[i];
        if (memcmp(days[i], io->date.moment, DAY_BYTES - 1) == 0)
            continue;
        rc = prompt_render(h, &other, &text, f);
        if (rc == 0 && most < 0)
            most = stored(h, salt, io, io->n);
        size_t begin = rc == 0 ? common(io, &text) : 0;
        size_t near = MIN(begin + BEHIND_BYTES, text.n);
        int found = rc == 0 && stored(h, salt, &text, near) > stored(h, salt, &text, begin)
                        ? stored(h, salt, &text, text.n)
                        : 0;
        if (found > most) {
            prompt_text_deinit(&best);
            best = text;
            most = found;
        } else {
            prompt_text_deinit(&text);
        }
    }
    if (rc == 0 && best.text != NULL) {
        prompt_text_deinit(io);
        *io = best;
    } else {
        prompt_text_deinit(&best);
    }
    return rc;
}

int dates_render(struct dates *d, struct hcache *h, const char *salt,
                 const struct chat_source *s, struct prompt_text *out, struct fault *f)
{
    struct chat_source source = *s;
    bool is_free = d != NULL && s->date == NULL;
    if (is_free)
        source.date = d->fixed[0] != 0 ? d->fixed : ingested_day(d, salt, s->messages);
    int rc = prompt_render(h, &source, out, f);
    if (rc != 0 || d == NULL || out->date.moment[0] == 0)
        return rc;
    if (is_free && d->is_sticky && s->now == NULL &&
        (rc = stick(d, h, salt, s, out, f)) != 0)
        return rc;
    remember(d, out->date.moment);
    return 0;
}

/* --- misses ----------------------------------------------------------------------------------- */

void date_locate(const struct hcache *h, const struct prompt_text *text,
                 const struct prompt_ids *p, struct prompt_date *out)
{
    *out = text->date;
    size_t n = strlen(out->shown), at = 0, from = 0;
    const char *found = n > 0 ? memmem(text->text, text->n, out->shown, n) : NULL;
    if (found == NULL)
        return;
    for (const char *c = text->text; c < found; c++)
        from += (unsigned char)*c != HCACHE_GUARD;
    for (int i = 0; i < p->n && at < from + n; i++) {
        size_t k = 0;
        (void)hcache_token_bytes(h, p->ids[i], &k);
        at += k;
        if (at > from && out->to == 0)
            out->from = i;
        if (at > from)
            out->to = i + 1;
    }
}

void date_explain(const struct prompt_date *d, int differs_at, char *why, size_t n)
{
    if (differs_at <= 0 || differs_at < d->from || differs_at >= d->to)
        return;
    snprintf(why, n,
             "the date has changed: the template prints \"%s\" at token %d, and stored "
             "prompts have another date there (--template-date)",
             d->shown, differs_at);
}
