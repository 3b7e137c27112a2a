/* answers.c - see answers.h.
 *
 * One pass over the given text computes a short hash of each of its beginnings. A scan of the
 * entries (a few thousand) compares their hashes with it, and SHA-256 of the longest candidate
 * decides. So the ends of a conversation's turns need not be known.
 *
 *     key  = secret, salt, 0, text
 *     seal = SHA-256(key)     name = SHA-256(seal)     sealed ids = ids ^ SHA-256(seal, 0, 1..)
 *
 * Of the short hash 32 bits are kept: enough to find candidates. The secret, 32 random bytes in the
 * file PATH.key, makes all of this worthless without that file.
 *
 *     file:    magic [8]  vocabulary [32]  record ...
 *     record:  length u32  until u32  short hash u32  n_ids u32  name [16]
 *              client [8]  owner [8]  end [8]  asked [8]
 *              sealed ids [n_ids] u32  checksum64 of all that u64          (little-endian)
 *     length:  bytes of the key; 0: the record is dead
 *     until:   end of its time, in 16 s since 1970; 0: none
 *
 * name is the beginning of the name. client and owner are hashes of the salt and of the state's
 * salt; end and asked are the beginnings of chunk keys. They say whose room the record takes, and
 * which erasure concerns it.
 *
 * With a seal each record is encrypted at its place, the secret is a sealed run, and the magic and
 * the vocabulary are others.
 *
 * Records are appended. A record that is replaced or forgotten is overwritten in place with zeros.
 * So the file holds no other entries than the memory does, and forgetting needs no space. The file
 * is rewritten when it has grown to twice the remembered entries. */
#include "api/answers.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "io/io.h"
#include "io/io_erase.h"
#include "seal/seal_file.h"

static const char magic[8] = "HCANSW2\n", magic_sealed[8] = "HCANSE2\n";

enum {
    HEAD_BYTES = sizeof magic + sizeof(struct sha256),
    NAME_BYTES = 16,
    TAG_BYTES = 8,
    N_TAGS = 4,
    TAGS_AT = 16 + NAME_BYTES,
    RECORD_HEAD = TAGS_AT + N_TAGS * TAG_BYTES,
    RECORD_TAIL = 8,
    MAX_IDS = 1 << 24, /* most ids of a record; a larger number means damage */
    SLACK_BYTES = 1 << 20,
    SECRET_BYTES = 32,
    UNTIL_UNIT_S = 16,
    PAGE_ANSWER = 32, /* kind of a record as a page */
    BLOCK = 16        /* bytes at a page's beginning that can be decrypted alone */
};

struct tag {
    uint8_t b[TAG_BYTES];
};

enum tag_place { TAG_CLIENT, TAG_OWNER, TAG_END, TAG_ASKED };

struct entry {
    uint32_t n; /* bytes of the key; 0: the entry is free */
    uint32_t hash;
    uint32_t until; /* end of its time, in UNTIL_UNIT_S; 0: none */
    int client;     /* its client's place */
    uint64_t used;
    uint8_t name[NAME_BYTES];
    struct tag tag[N_TAGS];
    uint64_t offset; /* of its record in the file; 0: the file has none */
    uint32_t *sealed;
    int n_ids;
};

/* What the entries of one salt take together. */
struct client {
    struct tag tag;
    int n_entries; /* 0: the place is free */
    size_t bytes;
};

struct answers {
    struct answers_opts o;
    char *path;
    pthread_mutex_t lock; /* protects the fields below */
    uint64_t clock, n_used, n_unusable;
    size_t bytes, file_bytes;
    uint8_t secret[SECRET_BYTES];
    struct io *io;
    struct io_file *file;  /* NULL: there is no file */
    bool is_given_up;      /* the file takes no more records; those in it are still wiped */
    bool is_stale;         /* a record could not be wiped: the file must be rewritten */
    struct client *client; /* [max_entries] */
    struct entry entry[];
};

bool answers_are_of_models(const struct answers *m)
{
    return m->o.of_models;
}

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

/* The hashed bytes: the secret, the salt, a zero byte, and a text of up to two parts. The parts are
 * not copied together, since a text may have megabytes. */
enum { KEY_PARTS = 5 };

struct key {
    const char *part[KEY_PARTS];
    size_t n_part[KEY_PARTS];
    size_t n;
};

static struct key key_of(const uint8_t *secret, const char *salt,
                         const struct answers_text *t)
{
    size_t n_salt = salt != NULL ? strlen(salt) : 0;
    return (struct key){
        .part = {(const char *)secret, n_salt > 0 ? salt : "", "", t->text, t->more},
        .n_part = {SECRET_BYTES, n_salt, 1, t->n_text, t->n_more},
        .n = SECRET_BYTES + n_salt + 1 + t->n_text + t->n_more};
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

static struct tag tag_of(const struct sha256 *key)
{
    struct tag t;
    memcpy(t.b, key->b, sizeof t.b);
    return t;
}

/* Returns the tag of a salt; `what` tells a client's from an owner's. */
static struct tag salt_tag(const struct answers *m, const char *what, const char *salt)
{
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, "answer secret", m->secret, sizeof m->secret);
    sha256_field(c, what, salt != NULL ? salt : "", salt != NULL ? strlen(salt) : 0);
    struct sha256 d = sha256_end(c);
    return tag_of(&d);
}

static struct tag owner_tag(const struct answers *m, const char *state_salt)
{
    return salt_tag(m, "answer owner", state_salt);
}

static bool has_tag(const struct entry *e, enum tag_place which, const struct tag *t)
{
    return memcmp(&e->tag[which], t, sizeof *t) == 0;
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

static void record_encode(const struct entry *e, uint8_t *r)
{
    size_t n = record_bytes(e);
    put_u32(r, e->n);
    put_u32(r + 4, e->until);
    put_u32(r + 8, e->hash);
    put_u32(r + 12, (uint32_t)e->n_ids);
    memcpy(r + 16, e->name, sizeof e->name);
    memcpy(r + TAGS_AT, e->tag, sizeof e->tag);
    for (int i = 0; i < e->n_ids; i++)
        put_u32(r + RECORD_HEAD + 4 * (size_t)i, e->sealed != NULL ? e->sealed[i] : 0);
    put_u64(r + n - RECORD_TAIL, checksum64(r, n - RECORD_TAIL));
}

static int write_record(const struct seal *seal, struct io_file *f, const struct entry *e,
                        uint64_t at, struct err *err)
{
    size_t n = record_bytes(e);
    uint8_t *r = xmalloc(n);
    record_encode(e, r);
    seal_page(seal, PAGE_ANSWER, at, r, n);
    int rc = io_file_pwrite(f, r, n, at, err);
    free(r);
    return rc;
}

/* Overwrites the entry's record, if the file has one. */
static void wipe_record(struct answers *m, const struct entry *e)
{
    const struct entry dead = {.n_ids = e->n_ids};
    if (m->file != NULL && e->offset != 0 &&
        write_record(m->o.seal, m->file, &dead, e->offset, NULL) != 0)
        m->is_stale = true;
}

static void entry_drop(struct answers *m, struct entry *e)
{
    struct client *c = &m->client[e->client];
    wipe_record(m, e);
    m->bytes -= record_bytes(e);
    c->bytes -= record_bytes(e);
    c->n_entries--;
    free(e->sealed);
    *e = (struct entry){0};
}

/* Returns the client with this tag, or a free place that becomes its own. */
static int client_of(struct answers *m, const struct tag *tag)
{
    int at = -1;
    for (int i = 0; i < m->o.max_entries; i++) {
        if (m->client[i].n_entries == 0)
            at = at < 0 ? i : at;
        else if (memcmp(&m->client[i].tag, tag, sizeof *tag) == 0)
            return i;
    }
    m->client[at] = (struct client){.tag = *tag};
    return at;
}

/* Finds the client who has the most bytes, or the most entries, and drops the entry that this
 * client used least recently. So a client who fills the room drops answers of its own. */
static void drop_one(struct answers *m, bool by_bytes)
{
    int most = 0;
    for (int i = 1; i < m->o.max_entries; i++) {
        const struct client *c = &m->client[i], *best = &m->client[most];
        if (by_bytes ? c->bytes > best->bytes : c->n_entries > best->n_entries)
            most = i;
    }
    struct entry *oldest = NULL;
    for (int i = 0; i < m->o.max_entries; i++) {
        struct entry *e = &m->entry[i];
        if (e->n != 0 && e->client == most && (oldest == NULL || e->used < oldest->used))
            oldest = e;
    }
    entry_drop(m, oldest);
}

/* Returns the entry of that name, or a free one if there is none of the name, or NULL. */
static struct entry *place_for(struct answers *m, const uint8_t *name)
{
    struct entry *free_one = NULL;
    for (int i = 0; i < m->o.max_entries; i++) {
        struct entry *e = &m->entry[i];
        if (e->n == 0)
            free_one = free_one == NULL ? e : free_one;
        else if (memcmp(e->name, name, sizeof e->name) == 0)
            return e;
    }
    return free_one;
}

/* Adds an entry, which then owns new->sealed, and returns its place. Replaces an entry of the same
 * name. Drops others until both bounds hold. record_bytes(new) must be within max_bytes. */
static struct entry *remember(struct answers *m, const struct entry *new)
{
    struct entry *e = place_for(m, new->name);
    if (e != NULL && e->n != 0)
        entry_drop(m, e);
    if (e == NULL)
        drop_one(m, false);
    while (m->bytes + record_bytes(new) > m->o.max_bytes)
        drop_one(m, true);
    e = place_for(m, new->name);
    *e = *new;
    e->used = ++m->clock;
    e->client = client_of(m, &e->tag[TAG_CLIENT]);
    m->client[e->client].n_entries++;
    m->client[e->client].bytes += record_bytes(e);
    m->bytes += record_bytes(e);
    return e;
}

/* --- the file [lock] -------------------------------------------------------------------------- */

/* Writes the beginning of a file: its magic and the vocabulary. In a sealed file a keyed hash
 * replaces the vocabulary. */
static void head_encode(const struct answers_opts *o, uint8_t out[HEAD_BYTES])
{
    memcpy(out, o->seal != NULL ? magic_sealed : magic, sizeof magic);
    memcpy(out + sizeof magic, &o->vocabulary, sizeof o->vocabulary);
    if (o->seal != NULL)
        seal_hash(o->seal, &o->vocabulary, sizeof o->vocabulary, out + sizeof magic);
}

static int by_use(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;
    return (*x)->used < (*y)->used ? -1 : (*x)->used > (*y)->used;
}

/* Writes all entries, the least recently used first, and notes where their records are. */
static int write_entries(struct answers *m, struct io_file *f, uint64_t *end,
                         struct err *err)
{
    struct entry **order = xcalloc((size_t)m->o.max_entries, sizeof(struct entry *));
    uint8_t head[HEAD_BYTES];
    int n = 0;
    head_encode(&m->o, head);
    for (int i = 0; i < m->o.max_entries; i++) {
        if (m->entry[i].n != 0)
            order[n++] = &m->entry[i];
    }
    qsort(order, (size_t)n, sizeof(struct entry *), by_use);
    int rc = io_file_pwrite(f, head, sizeof head, 0, err);
    *end = sizeof head;
    for (int i = 0; rc == 0 && i < n; i++) {
        rc = write_record(m->o.seal, f, order[i], *end, err);
        *end += record_bytes(order[i]);
    }
    if (rc == 0)
        rc = io_file_sync(f, err);
    uint64_t at = sizeof head;
    for (int i = 0; rc == 0 && i < n; i++) {
        order[i]->offset = at;
        at += record_bytes(order[i]);
    }
    free(order);
    return rc;
}

/* Writes all entries to a new file, which replaces the old one. The old one is overwritten. */
static int write_anew(struct answers *m, struct err *err)
{
    char *temp = xasprintf("%s.new", m->path);
    struct io_file *f = NULL;
    uint64_t end = 0;
    int old_rc = 0, rc = io_erase(m->io, temp, err);
    if (rc == 0 || rc == -ENOENT)
        rc = io_file_open(m->io, temp, IO_CREATE | IO_EXCL, &f, err);
    if (rc == 0)
        rc = write_entries(m, f, &end, err);
    if (rc == 0)
        rc = io_replace(m->io, temp, m->path, &old_rc, err);
    if (rc != 0) {
        io_file_close(f);
        /* on a full disk other files need the blocks of the unfinished file */
        (void)io_erase(m->io, temp, NULL);
    }
    free(temp);
    if (rc != 0)
        return rc;
    io_file_close(f); /* it is opened again under its name */
    io_file_close(m->file);
    m->file = NULL;
    rc = io_file_open(m->io, m->path, 0, &m->file, err);
    if (rc != 0)
        return rc;
    m->file_bytes = end;
    m->is_given_up = false;
    m->is_stale = old_rc !=
                  0; /* then the next time erases the old file, which is PATH.new */
    return 0;
}

/* Appends the entry's record to the file. If that fails, the file takes no more records, and
 * answers are kept in memory only. */
static void append(struct answers *m, struct entry *e)
{
    struct err err = {0};
    if (m->file == NULL || m->is_given_up)
        return;
    int rc = write_record(m->o.seal, m->file, e, m->file_bytes, &err);
    if (rc == 0) {
        e->offset = m->file_bytes;
        m->file_bytes += record_bytes(e);
        if (m->file_bytes > 2 * m->bytes + SLACK_BYTES)
            rc = write_anew(m, &err);
    } else if (io_file_cut(m->file, m->file_bytes, NULL) != 0) {
        m->is_stale = true;
    }
    if (rc == 0)
        return;
    log_warn("%s; answers are remembered until the process ends", err.msg);
    m->is_given_up = true;
}

/* Makes what was forgotten durable. */
static int settle(struct answers *m, struct err *err)
{
    if (m->file == NULL)
        return 0;
    int rc = m->is_stale ? write_anew(m, err) : io_file_sync(m->file, err);
    if (rc == 0 && m->bytes == 0) { /* only dead records */
        rc = io_file_cut(m->file, HEAD_BYTES, err);
        m->file_bytes = rc == 0 ? HEAD_BYTES : m->file_bytes;
    }
    if (rc == 0 && m->is_stale)
        rc = err_set(err, -EIO, "%s.new is not overwritten yet", m->path);
    return rc;
}

/* Reads the record at `at` of n bytes, and decrypts it there. Returns its size in bytes, or 0 if
 * there is no whole record. */
static size_t read_record(const struct seal *seal, uint8_t *bytes, size_t at, size_t n,
                          struct entry *out)
{
    uint8_t *p = bytes + at, first[BLOCK];
    n -= at;
    *out = (struct entry){0};
    if (n < RECORD_HEAD + RECORD_TAIL)
        return 0;
    memcpy(first, p, sizeof first);
    seal_page_open(seal, PAGE_ANSWER, at, first, sizeof first);
    out->n_ids = (int)MIN(get_u32(first + 12), MAX_IDS + 1);
    if (out->n_ids > MAX_IDS || record_bytes(out) > n)
        return 0;
    seal_page_open(seal, PAGE_ANSWER, at, p, record_bytes(out));
    out->n = get_u32(p);
    out->until = get_u32(p + 4);
    out->hash = get_u32(p + 8);
    memcpy(out->name, p + 16, sizeof out->name);
    memcpy(out->tag, p + TAGS_AT, sizeof out->tag);
    size_t all = record_bytes(out);
    if (checksum64(p, all - RECORD_TAIL) != get_u64(p + all - RECORD_TAIL))
        return 0;
    out->sealed = xmalloc(((size_t)out->n_ids + 1) * sizeof *out->sealed);
    for (int i = 0; i < out->n_ids; i++)
        out->sealed[i] = get_u32(p + RECORD_HEAD + 4 * (size_t)i);
    return all;
}

/* Enters the file's records. Returns the offset of the first damaged record, or of the end: behind
 * a damaged record no other can be found. Wipes a record that is too large, or lacks a secret. */
static size_t load_records(struct answers *m, uint8_t *bytes, size_t n, bool has_secret)
{
    size_t at = HEAD_BYTES, step;
    struct entry e;
    for (; (step = read_record(m->o.seal, bytes, at, n, &e)) > 0; at += step) {
        e.offset = at;
        if (e.n == 0) {
            free(e.sealed);
        } else if (record_bytes(&e) > m->o.max_bytes || !has_secret) {
            wipe_record(m, &e);
            free(e.sealed);
        } else {
            (void)remember(m, &e);
        }
    }
    return at;
}

/* Reads the secret, or makes one. *is_old: it was there. With a seal the file has it as a run. */
static int load_secret(struct answers *m, bool *is_old, struct err *err)
{
    static const char name[] = "answers.key";
    uint8_t bytes[SECRET_BYTES + SEAL_BYTES], salt[SEAL_SALT_BYTES];
    const size_t n = m->o.seal != NULL ? sizeof bytes : SECRET_BYTES;
    char *path = m->path != NULL ? xasprintf("%s.key", m->path) : NULL;
    struct io_file *f = NULL;
    size_t got = 0;
    int rc = path != NULL ? io_file_open(m->io, path, IO_CREATE, &f, err) : 0;
    if (rc == 0 && f != NULL)
        rc = io_file_pread_some(f, bytes, sizeof bytes, 0, &got, err);
    *is_old = got == n && (m->o.seal == NULL ||
                           seal_run_open(m->o.seal, name, sizeof name, bytes, n, bytes));
    if (rc == 0 && !*is_old)
        rc = io_random(m->io, bytes, SECRET_BYTES, err);
    memcpy(m->secret, bytes, sizeof m->secret);
    if (rc == 0 && !*is_old && m->o.seal != NULL &&
        (rc = io_random(m->io, salt, sizeof salt, err)) == 0)
        seal_run(m->o.seal, name, sizeof name, salt, m->secret, SECRET_BYTES, bytes);
    if (rc == 0 && !*is_old && f != NULL)
        rc = io_file_pwrite(f, bytes, n, 0, err);
    if (rc == 0 && !*is_old && f != NULL && got > n)
        rc = io_file_cut(f, n, err);
    if (rc == 0 && !*is_old && f != NULL)
        rc = io_file_sync(f, err);
    explicit_bzero(bytes, sizeof bytes);
    io_file_close(f);
    free(path);
    return rc;
}

/* Opens the file and loads it. *is_ours: this module has written it, for this vocabulary. */
static int load(struct answers *m, bool has_secret, bool *is_ours, struct err *err)
{
    char *text = NULL;
    size_t n = 0;
    *is_ours = false;
    if (access(m->path, F_OK) != 0)
        return 0;
    int rc = file_read_regular(m->path, 4 * m->o.max_bytes + SLACK_BYTES, &text, &n, err);
    uint8_t *bytes = (uint8_t *)text, head[HEAD_BYTES];
    if (rc == ERR_LIMIT) /* the file is too large: this module did not write it */
        return 0;
    head_encode(&m->o, head);
    *is_ours = text != NULL && n >= HEAD_BYTES && memcmp(bytes, head, sizeof head) == 0;
    if (*is_ours)
        rc = io_file_open(m->io, m->path, 0, &m->file, err);
    if (*is_ours && rc == 0) {
        m->file_bytes = load_records(m, bytes, n, has_secret);
        if (m->file_bytes < n)
            rc = io_file_cut(m->file, m->file_bytes, err);
    }
    free(text);
    return rc;
}

/* --- life ------------------------------------------------------------------------------------- */

static int file_open(struct answers *m, bool has_secret, struct err *err)
{
    bool is_ours;
    int rc = load(m, has_secret, &is_ours, err);
    bool is_long = m->file_bytes > 2 * m->bytes + SLACK_BYTES;
    if (rc == 0 && (!is_ours || m->is_stale || is_long))
        rc = write_anew(m, err);
    if (rc == 0) { /* the rest of a process that was killed while it wrote the file anew */
        char *rest = xasprintf("%s.new", m->path);
        rc = io_erase(m->io, rest, err);
        free(rest);
        rc = rc == -ENOENT ? 0 : rc;
    }
    return rc;
}

int answers_open(const struct answers_opts *o, struct answers **out, struct err *err)
{
    struct answers *m = xcalloc(1, sizeof *m + (size_t)o->max_entries * sizeof m->entry[0]);
    bool has_secret = false;
    pthread_mutex_init(&m->lock, NULL);
    m->o = *o;
    m->client = xcalloc((size_t)o->max_entries, sizeof *m->client);
    m->io = io_pread_open();
    if (o->path != NULL)
        m->path = xstrdup(o->path);
    int rc = load_secret(m, &has_secret, err);
    if (rc == 0 && o->path != NULL)
        rc = file_open(m, has_secret, err);
    if (rc == 0)
        *out = m;
    else
        answers_close(m);
    return rc;
}

void answers_close(struct answers *m)
{
    if (m == NULL)
        return;
    if (m->file != NULL)
        (void)io_file_sync(m->file, NULL);
    io_file_close(m->file);
    for (int i = 0; i < m->o.max_entries; i++)
        free(m->entry[i].sealed);
    io_close(m->io);
    pthread_mutex_destroy(&m->lock);
    explicit_bzero(m->secret, sizeof m->secret);
    free(m->client);
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

static uint32_t until_of(int64_t ttl_s)
{
    return ttl_s <= 0
               ? 0
               : (uint32_t)MIN((clock_wall_s() + ttl_s) / UNTIL_UNIT_S + 1, INT32_MAX);
}

void answers_put(struct answers *m, const char *salt, const struct answers_text *text,
                 const struct answers_ids *ids, const struct answers_of *of)
{
    const struct key key = key_of(m->secret, salt, text);
    struct key_hash hash = {.k = &key};
    int n_ids = ids->n_prompt + ids->n_answer;
    struct entry new = {.n = (uint32_t)key.n,
                        .n_ids = n_ids,
                        .hash = hash_to(&hash, key.n),
                        .until = until_of(m->o.ttl_s > 0 && of->ttl_s > 0
                                              ? MIN(m->o.ttl_s, of->ttl_s)
                                              : MAX(m->o.ttl_s, of->ttl_s)),
                        .tag = {[TAG_CLIENT] = salt_tag(m, "answer client", salt),
                                [TAG_OWNER] = owner_tag(m, of->state_salt),
                                [TAG_END] = tag_of(&of->end),
                                [TAG_ASKED] = tag_of(&of->asked)}};
    struct sha256 seal = digest_key(&key, key.n), name = name_of(&seal);
    memcpy(new.name, name.b, sizeof new.name);
    if (record_bytes(&new) > m->o.max_bytes || key.n > UINT32_MAX)
        return;
    new.sealed = mem_try(((size_t)n_ids + 1) * sizeof *new.sealed);
    /* Without memory the answer is not remembered, and its text is tokenized when it comes back. */
    if (new.sealed == NULL)
        return;
    memcpy(new.sealed, ids->prompt, (size_t)ids->n_prompt * sizeof *ids->prompt);
    if (ids->n_answer > 0)
        memcpy(new.sealed + ids->n_prompt, ids->answer,
               (size_t)ids->n_answer * sizeof *ids->answer);
    seal_ids(&seal, new.sealed, new.sealed, n_ids);
    pthread_mutex_lock(&m->lock);
    append(m, remember(m, &new));
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

/* Finds which lengths remembered entries have, up to the key's. Sets *out to a list with one
 * element for each entry, the shortest first: its length, and the hash of the key's first bytes of
 * that length. Returns the number of elements. The caller frees *out. */
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

/* [lock] Returns the longest entry whose length and short hash equal those of an element of `list`,
 * or NULL. Skips entries that were tried before: all that are longer than n, and of length n those
 * in the first n_tried places of m->entry. */
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
    const struct answers_text t = {.text = text, .n_text = n_text};
    const struct key key = key_of(m->secret, salt, &t);
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
        if (memcmp(e->name, name.b, sizeof e->name) != 0)
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

/* --- forgetting ------------------------------------------------------------------------------- */

/* What an erasure concerns. */
struct erasure {
    struct tag owner;
    const struct sha256 *keys;
    int n_keys; /* -1: all entries of the owner */
    uint32_t now;
};

static bool is_concerned(const struct entry *e, const struct erasure *x)
{
    if (e->until != 0 && e->until <= x->now)
        return true;
    if (x->n_keys < 0)
        return has_tag(e, TAG_OWNER, &x->owner);
    for (int i = 0; i < x->n_keys; i++) {
        struct tag t = tag_of(&x->keys[i]);
        if (has_tag(e, TAG_END, &t) || has_tag(e, TAG_ASKED, &t))
            return true;
    }
    return false;
}

/* Drops the entries that *x concerns and those whose time is over, and overwrites them on the disk.
 * Also overwrites what an earlier call could not (is_stale). Returns 0, or the disk's error. */
static int forget(struct answers *m, struct erasure *x, struct err *err)
{
    if (m == NULL) /* nothing is remembered */
        return 0;
    x->now = (uint32_t)(clock_wall_s() / UNTIL_UNIT_S);
    pthread_mutex_lock(&m->lock);
    bool any = m->is_stale;
    for (int i = 0; i < m->o.max_entries; i++) {
        if (m->entry[i].n == 0 || !is_concerned(&m->entry[i], x))
            continue;
        entry_drop(m, &m->entry[i]);
        any = true;
    }
    int rc = any ? settle(m, err) : 0;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int answers_forget_owner(struct answers *m, const char *state_salt, struct err *err)
{
    if (m == NULL)
        return 0;
    struct erasure x = {.owner = owner_tag(m, state_salt), .n_keys = -1};
    return forget(m, &x, err);
}

int answers_forget_keys(struct answers *m, const struct sha256 *keys, int n,
                        struct err *err)
{
    struct erasure x = {.keys = keys, .n_keys = n};
    return forget(m, &x, err);
}

int answers_expire(struct answers *m, struct err *err)
{
    struct erasure x = {.n_keys = 0};
    return forget(m, &x, err);
}

static int by_number(const void *a, const void *b)
{
    const int *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int answers_lengths(struct answers *m, const char *state_salt, int most, int **out)
{
    struct tag owner = owner_tag(m, state_salt);
    int *list = xmalloc(((size_t)m->o.max_entries + 1) * sizeof *list), n = 0, n_kept = 0;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->o.max_entries; i++) {
        const struct entry *e = &m->entry[i];
        if (e->n != 0 && e->n_ids <= most && has_tag(e, TAG_OWNER, &owner))
            list[n++] = e->n_ids;
    }
    pthread_mutex_unlock(&m->lock);
    qsort(list, (size_t)n, sizeof *list, by_number);
    for (int i = 0; i < n; i++)
        if (i == 0 || list[i] != list[i - 1])
            list[n_kept++] = list[i];
    *out = list;
    return n_kept;
}

int answers_keep_stored(const char *path, const struct seal *seal,
                        bool (*is_stored)(void *arg, const uint8_t *key), void *arg,
                        int *n_forgotten, struct err *err)
{
    enum { MAX_FILE_BYTES = 1 << 30 };
    char *text = NULL;
    size_t n = 0, at = HEAD_BYTES, step;
    struct entry e;
    struct answers m = {.o.seal = seal, .io = io_pread_open()};
    uint32_t now = (uint32_t)(clock_wall_s() / UNTIL_UNIT_S);
    *n_forgotten = 0;
    int rc = file_read_regular(path, MAX_FILE_BYTES, &text, &n, err);
    if (rc == 0 && n >= HEAD_BYTES &&
        memcmp(text, seal != NULL ? magic_sealed : magic, sizeof magic) == 0)
        rc = io_file_open(m.io, path, 0, &m.file, err);
    for (; m.file != NULL && (step = read_record(seal, (uint8_t *)text, at, n, &e)) > 0;
         at += step) {
        e.offset = at;
        if (e.n != 0 &&
            ((e.until != 0 && e.until <= now) || !is_stored(arg, e.tag[TAG_END].b))) {
            wipe_record(&m, &e);
            ++*n_forgotten;
        }
        free(e.sealed);
    }
    if (m.file != NULL && at < n)
        rc = io_file_cut(m.file, at, err);
    if (m.file != NULL && rc == 0)
        rc = m.is_stale ? err_set(err, -EIO, "%s: answers could not be overwritten", path)
                        : io_file_sync(m.file, err);
    io_file_close(m.file);
    io_close(m.io);
    free(text);
    return rc == -ENOENT ? 0 : rc;
}
