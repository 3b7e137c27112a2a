/* answers.c - see answers.h.
 *
 * One pass over the given text computes a short hash of each of its beginnings. A scan of the
 * entries (a few thousand) compares their hashes with it, and SHA-256 of the longest candidate
 * decides. So the ends of a conversation's turns need not be known.
 *
 *     seal = SHA-256(salt, text)      name = SHA-256(seal)      sealed ids = ids ^ SHA-256(seal, 0, 1..)
 *
 * Of the short hash 32 bits are kept: enough to find candidates, and they reveal little of the
 * text.
 *
 *     file:    magic [8]  vocabulary [32]  record ...
 *     record:  n_bytes of the text u64  short hash u32  n_ids u32  name [32]  sealed ids [n_ids] u32
 *              checksum64 of all that u64                              (little-endian)
 *
 * Records are appended; a later one of the same name replaces the earlier. The file is rewritten
 * when it has grown to twice the remembered entries. */
#include "sessions/answers.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"

static const char magic[8] = "HCANSW1\n";

enum {
    HEAD_BYTES = sizeof magic + sizeof(struct sha256),
    RECORD_HEAD = 8 + 4 + 4 + sizeof(struct sha256),
    RECORD_TAIL = 8,
    MAX_IDS = 1 << 24, /* most ids of a record; a larger number means damage */
    SLACK_BYTES = 1 << 20,
};

struct entry {
    size_t n; /* bytes of salt, a zero byte, and the text together; 0: the entry is free */
    uint64_t used;
    uint32_t hash;
    struct sha256 name;
    uint32_t *sealed;
    int n_ids;
};

struct answers {
    struct answers_opts o;
    char *path;
    pthread_mutex_t lock; /* protects the fields below */
    uint64_t clock, n_used, n_unusable;
    size_t bytes, file_bytes;
    int fd; /* -1: there is no file, or the file was given up */
    struct entry entry[];
};

/* --- names and seals -------------------------------------------------------------------------- */

/* Extends a hash by one byte. The hash is a polynomial in the bytes modulo 2^64. */
static uint64_t hash_step(uint64_t h, char byte)
{
    return h * 0x9e3779b97f4a7c15u + (unsigned char)byte + 1;
}

static uint32_t hash_short(uint64_t h)
{
    return (uint32_t)(h >> 32);
}

/* The hashed bytes: the salt, a zero byte, and a text of up to two parts. The parts are not
 * copied together, since a text may have megabytes. */
enum { KEY_PARTS = 4 };

struct key {
    const char *part[KEY_PARTS];
    size_t n_part[KEY_PARTS];
    size_t n;
};

static struct key key_of(const char *salt, const struct answers_text *t)
{
    size_t n_salt = salt != NULL ? strlen(salt) : 0;
    return (struct key){.part = {n_salt > 0 ? salt : "", "", t->text, t->more},
                        .n_part = {n_salt, 1, t->n_text, t->n_more},
                        .n = n_salt + 1 + t->n_text + t->n_more};
}

static struct sha256 digest(const char *tag, const void *bytes, size_t n)
{
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, tag, bytes, n);
    return sha256_end(c);
}

/* Returns the digest of the key's first n bytes. */
static struct sha256 digest_key(const struct key *k, size_t n)
{
    struct sha256_ctx *c = sha256_begin();
    sha256_field_begin(c, "answer", n);
    for (int i = 0; i < KEY_PARTS; i++) {
        size_t most = MIN(n, k->n_part[i]);
        if (most > 0)
            sha256_add(c, k->part[i], most);
        n -= most;
    }
    return sha256_end(c);
}

/* State of a walk over the key's bytes, with the hash of its first `at` bytes. */
struct key_hash {
    const struct key *k;
    size_t at, in_part;
    int part;
    uint64_t hash;
};

static uint32_t hash_to(struct key_hash *h, size_t n)
{
    for (; h->at < n; h->at++) {
        while (h->in_part == h->k->n_part[h->part]) {
            h->part++;
            h->in_part = 0;
        }
        h->hash = hash_step(h->hash, h->k->part[h->part][h->in_part++]);
    }
    return hash_short(h->hash);
}

static struct sha256 name_of(const struct sha256 *seal)
{
    return digest("answer name", seal, sizeof *seal);
}

/* Seals ids. Sealing sealed ids again gives the ids back. */
static void seal_ids(const struct sha256 *seal, uint32_t *to, const uint32_t *from, int n)
{
    uint8_t block[sizeof *seal + 4];
    struct sha256 pad = {{0}};
    memcpy(block, seal, sizeof *seal);
    for (int i = 0; i < n; i++) {
        if (i % 8 == 0) {
            put_u32(block + sizeof *seal, (uint32_t)i);
            pad = digest("answer pad", block, sizeof block);
        }
        to[i] = from[i] ^ get_u32(pad.b + 4 * (i % 8));
    }
}

/* --- entries [lock] --------------------------------------------------------------------------- */

static size_t record_bytes(const struct entry *e)
{
    return RECORD_HEAD + 4 * (size_t)e->n_ids + RECORD_TAIL;
}

static void entry_drop(struct answers *m, struct entry *e)
{
    m->bytes -= record_bytes(e);
    free(e->sealed);
    *e = (struct entry){0};
}

/* Returns the entry of the same name, else a free entry, else the least recently used one. */
static struct entry *place_for(struct answers *m, const struct sha256 *name)
{
    struct entry *best = &m->entry[0];
    for (int i = 0; i < m->o.max_entries; i++) {
        struct entry *e = &m->entry[i];
        if (e->n != 0 && memcmp(&e->name, name, sizeof *name) == 0)
            return e;
        if (best->n != 0 && (e->n == 0 || e->used < best->used))
            best = e;
    }
    return best;
}

static struct entry *oldest(struct answers *m)
{
    struct entry *best = NULL;
    for (int i = 0; i < m->o.max_entries; i++) {
        struct entry *e = &m->entry[i];
        if (e->n != 0 && (best == NULL || e->used < best->used))
            best = e;
    }
    return best;
}

/* Adds an entry, which then owns new->sealed. The entry is within the bound on all entries. */
static void remember(struct answers *m, const struct entry *new)
{
    struct entry *e = place_for(m, &new->name);
    if (e->n != 0)
        entry_drop(m, e);
    while (m->bytes + record_bytes(new) > m->o.max_bytes)
        entry_drop(m, oldest(m));
    *e = *new;
    e->used = ++m->clock;
    m->bytes += record_bytes(e);
}

/* --- the file [lock] -------------------------------------------------------------------------- */

static int write_record(int fd, const struct entry *e)
{
    size_t n = record_bytes(e);
    uint8_t *r = xmalloc(n);
    put_u64(r, e->n);
    put_u32(r + 8, e->hash);
    put_u32(r + 12, (uint32_t)e->n_ids);
    memcpy(r + 16, &e->name, sizeof e->name);
    for (int i = 0; i < e->n_ids; i++)
        put_u32(r + RECORD_HEAD + 4 * (size_t)i, e->sealed[i]);
    put_u64(r + n - RECORD_TAIL, checksum64(r, n - RECORD_TAIL));
    int rc = file_write_all(fd, r, n, -1);
    free(r);
    return rc;
}

static int by_use(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;
    return (*x)->used < (*y)->used ? -1 : (*x)->used > (*y)->used;
}

static int write_entries(struct answers *m, int fd)
{
    struct entry **order = xcalloc((size_t)m->o.max_entries, sizeof(struct entry *));
    uint8_t head[HEAD_BYTES];
    int n = 0;
    memcpy(head, magic, sizeof magic);
    memcpy(head + sizeof magic, &m->o.vocabulary, sizeof m->o.vocabulary);
    for (int i = 0; i < m->o.max_entries; i++) {
        if (m->entry[i].n != 0)
            order[n++] = &m->entry[i];
    }
    qsort(order, (size_t)n, sizeof(struct entry *), by_use);
    int rc = file_write_all(fd, head, sizeof head, -1);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = write_record(fd, order[i]);
    free(order);
    return rc == 0 && fdatasync(fd) != 0 ? -errno : rc;
}

/* Writes all entries to a new file, which replaces the old one. */
static int write_anew(struct answers *m, struct err *err)
{
    char *temp = xasprintf("%s.new", m->path);
    (void)unlink(temp);
    int fd = open(temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600), rc = 0;
    if (fd < 0)
        rc = err_set(err, -errno, "%s: %s", temp, strerror(errno));
    if (rc == 0 && (rc = write_entries(m, fd)) != 0)
        err_set(err, rc, "%s: %s", temp, strerror(-rc));
    if (rc == 0 && rename(temp, m->path) != 0)
        rc = err_set(err, -errno, "%s: %s", m->path, strerror(errno));
    if (rc != 0 && fd >= 0) {
        close(fd);
        /* on a full disk other files need the blocks of the unfinished file */
        (void)unlink(temp);
    }
    free(temp);
    if (rc != 0)
        return rc;
    if (m->fd >= 0)
        close(m->fd);
    m->fd = fd;
    m->file_bytes = HEAD_BYTES + m->bytes;
    return 0;
}

/* Appends a record to the file. If that fails, the file is given up, and answers are kept in memory
 * only. */
static void append(struct answers *m, const struct entry *e)
{
    struct err err = {0};
    if (m->fd < 0)
        return;
    int rc = write_record(m->fd, e);
    m->file_bytes += record_bytes(e);
    if (rc != 0)
        err_set(&err, rc, "%s: %s", m->path, strerror(-rc));
    else if (m->file_bytes > 2 * m->bytes + SLACK_BYTES)
        rc = write_anew(m, &err);
    if (rc == 0)
        return;
    log_warn("%s; answers are remembered until the process ends", err.msg);
    close(m->fd);
    m->fd = -1;
}

/* Reads the record at p. Returns its size in bytes, or 0 if there is no whole record. */
static size_t read_record(const uint8_t *p, size_t n, struct entry *out)
{
    *out = (struct entry){0};
    if (n < RECORD_HEAD + RECORD_TAIL || get_u32(p + 12) > MAX_IDS)
        return 0;
    out->n = (size_t)get_u64(p);
    out->hash = get_u32(p + 8);
    out->n_ids = (int)get_u32(p + 12);
    memcpy(&out->name, p + 16, sizeof out->name);
    size_t all = record_bytes(out);
    if (all > n || out->n == 0 ||
        checksum64(p, all - RECORD_TAIL) != get_u64(p + all - RECORD_TAIL))
        return 0;
    out->sealed = xmalloc(((size_t)out->n_ids + 1) * sizeof *out->sealed);
    for (int i = 0; i < out->n_ids; i++)
        out->sealed[i] = get_u32(p + RECORD_HEAD + 4 * (size_t)i);
    return all;
}

/* Loads the file up to the first damaged record: behind that record the beginning of the next one
 * is unknown. */
static int load(struct answers *m, struct err *err)
{
    char *text = NULL;
    size_t n = 0, at = HEAD_BYTES, step = 1;
    struct entry e;
    if (access(m->path, F_OK) != 0)
        return 0;
    int rc = file_read_regular(m->path, 4 * m->o.max_bytes + SLACK_BYTES, &text, &n, err);
    const uint8_t *bytes = (const uint8_t *)text;
    if (rc == ERR_LIMIT) /* the file is too large: this module did not write it */
        rc = 0;
    bool ours = text != NULL && n >= HEAD_BYTES &&
                memcmp(bytes, magic, sizeof magic) == 0 &&
                memcmp(bytes + sizeof magic, &m->o.vocabulary, sizeof m->o.vocabulary) == 0;
    while (ours && (step = read_record(bytes + at, n - at, &e)) > 0) {
        if (record_bytes(&e) <= m->o.max_bytes)
            remember(m, &e);
        else
            free(e.sealed);
        at += step;
    }
    free(text);
    return rc;
}

/* --- life ------------------------------------------------------------------------------------- */

int answers_open(const struct answers_opts *o, struct answers **out, struct err *err)
{
    struct answers *m = xcalloc(1, sizeof *m + (size_t)o->max_entries * sizeof m->entry[0]);
    int rc = 0;
    pthread_mutex_init(&m->lock, NULL);
    m->o = *o;
    m->fd = -1;
    if (o->path != NULL) {
        m->path = xstrdup(o->path);
        rc = load(m, err);
        if (rc == 0)
            rc = write_anew(m, err);
    }
    if (rc != 0) {
        answers_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void answers_close(struct answers *m)
{
    if (m == NULL)
        return;
    if (m->fd >= 0) {
        (void)fdatasync(m->fd);
        close(m->fd);
    }
    for (int i = 0; i < m->o.max_entries; i++)
        free(m->entry[i].sealed);
    pthread_mutex_destroy(&m->lock);
    free(m->path);
    free(m);
}

void answers_count(struct answers *m, bool used)
{
    pthread_mutex_lock(&m->lock);
    m->n_used += used;
    m->n_unusable += !used;
    pthread_mutex_unlock(&m->lock);
}

void answers_stats(struct answers *m, struct answers_stats *out)
{
    pthread_mutex_lock(&m->lock);
    *out = (struct answers_stats){.n_used = m->n_used, .n_unusable = m->n_unusable};
    for (int i = 0; i < m->o.max_entries; i++)
        out->n_entries += m->entry[i].n != 0;
    pthread_mutex_unlock(&m->lock);
}

/* --- putting and finding ---------------------------------------------------------------------- */

void answers_put(struct answers *m, const char *salt, const struct answers_text *text,
                 const struct answers_ids *ids)
{
    const struct key key = key_of(salt, text);
    struct key_hash hash = {.k = &key};
    int n_ids = ids->n_prompt + ids->n_answer;
    struct entry new = {.n = key.n, .n_ids = n_ids, .hash = hash_to(&hash, key.n)};
    struct sha256 seal = digest_key(&key, key.n);
    new.name = name_of(&seal);
    if (record_bytes(&new) > m->o.max_bytes)
        return;
    new.sealed = mem_try(((size_t)n_ids + 1) * sizeof *new.sealed);
    /* Without memory the answer is not remembered. Its text is then tokenized when it comes
     * back. */
    if (new.sealed == NULL)
        return;
    memcpy(new.sealed, ids->prompt, (size_t)ids->n_prompt * sizeof *ids->prompt);
    if (ids->n_answer > 0)
        memcpy(new.sealed + ids->n_prompt, ids->answer,
               (size_t)ids->n_answer * sizeof *ids->answer);
    seal_ids(&seal, new.sealed, new.sealed, n_ids);
    pthread_mutex_lock(&m->lock);
    remember(m, &new);
    append(m, &new);
    pthread_mutex_unlock(&m->lock);
}

/* A beginning of the text: its number of bytes, and their short hash. */
struct beginning {
    size_t n;
    uint32_t hash;
};

static int by_length(const void *a, const void *b)
{
    const struct beginning *x = a, *y = b;
    return x->n < y->n ? -1 : x->n > y->n;
}

/* Hashes those beginnings of the key that have the length of an entry, the shortest first. The
 * caller frees *out. */
static int hash_beginnings(struct answers *m, const struct key *key, struct beginning **out)
{
    struct beginning *list = xcalloc((size_t)m->o.max_entries + 1, sizeof *list);
    int n_list = 0;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->o.max_entries; i++) {
        if (m->entry[i].n != 0 && m->entry[i].n <= key->n)
            list[n_list++].n = m->entry[i].n;
    }
    pthread_mutex_unlock(&m->lock);
    qsort(list, (size_t)n_list, sizeof *list, by_length);
    struct key_hash hash = {.k = key};
    for (int i = 0; i < n_list; i++)
        list[i].hash = hash_to(&hash, list[i].n);
    *out = list;
    return n_list;
}

/* [lock] Returns the longest entry whose short hash equals that of a beginning of the text. Entries
 * longer than n count as tried, and of those with this length the first n_tried places. */
static struct entry *candidate(struct answers *m, const struct beginning *list, int n_list,
                               size_t n, int n_tried)
{
    struct entry *best = NULL;
    for (int i = 0; i < m->o.max_entries; i++) {
        struct entry *e = &m->entry[i];
        const struct beginning key = {.n = e->n}, *found;
        bool is_tried = e->n > n || (e->n == n && i < n_tried);
        if (e->n == 0 || is_tried || (best != NULL && e->n <= best->n))
            continue;
        found = bsearch(&key, list, (size_t)n_list, sizeof *list, by_length);
        if (found != NULL && found->hash == e->hash)
            best = e;
    }
    return best;
}

bool answers_find(struct answers *m, const char *salt, const char *text, size_t n_text,
                  size_t *n_found, int32_t **ids, int *n_ids)
{
    const struct key key = key_of(salt,
                                  &(struct answers_text){.text = text, .n_text = n_text});
    struct beginning *list;
    int n_list = hash_beginnings(m, &key, &list);
    struct entry *e;
    bool found = false;
    pthread_mutex_lock(&m->lock);
    size_t n = key.n;
    int n_tried = 0;
    while (!found && (e = candidate(m, list, n_list, n, n_tried)) != NULL) {
        n = e->n;
        n_tried = (int)(e - m->entry) + 1;
        struct sha256 seal = digest_key(&key, e->n), name = name_of(&seal);
        if (memcmp(&name, &e->name, sizeof name) != 0)
            continue;
        uint32_t *open = mem_try(((size_t)e->n_ids + 1) * sizeof *open);
        if (open == NULL)
            break; /* without memory the text counts as not remembered */
        found = true;
        e->used = ++m->clock;
        *n_found = e->n - (key.n - n_text);
        *n_ids = e->n_ids;
        seal_ids(&seal, open, e->sealed, e->n_ids);
        *ids = (int32_t *)open;
    }
    pthread_mutex_unlock(&m->lock);
    free(list);
    return found;
}
