/* repack.c - see repack.h. */
#include "save/repack.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "store/parcel.h"

enum { READS_IN_FLIGHT = 16, COMMIT_CHUNKS = 16 };

struct repack {
    struct store *store;
    struct store_reader *reader; /* NULL until the first chunk */
    struct parcel parcel, packed;
    struct sha256 *keys; /* [n_keys] */
    uint64_t n_keys, next;
    int n_uncommitted;
    struct repack_counts counts;
};

static int list(void *arg, const struct store_entry *e)
{
    struct repack *r = arg;
    struct sha256 state = store_state_key(&e->parent);
    if (e->n_tokens < STORE_CHUNK_TOKENS && memcmp(&e->key, &state, sizeof state) != 0)
        return 0; /* a partial chunk, and no snapshot */
    r->keys = xgrow(r->keys, r->n_keys, sizeof r->keys[0]);
    r->keys[r->n_keys++] = e->key;
    return 0;
}

int repack_open(struct store *s, struct repack **out, struct err *err)
{
    struct repack *r = xcalloc(1, sizeof *r);
    r->store = s;
    int rc = store_each(s, list, r, err);
    if (rc != 0) {
        repack_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void repack_close(struct repack *r)
{
    if (r == NULL)
        return;
    store_reader_close(r->reader);
    parcel_deinit(&r->parcel);
    parcel_deinit(&r->packed);
    free(r->keys);
    free(r);
}

void repack_counts(const struct repack *r, struct repack_counts *out)
{
    *out = r->counts;
}

/* Returns whether the chunk has a record that could be packed. */
static bool is_unpacked(struct repack *r, const struct sha256 *key)
{
    struct store_hit hit;
    if (!store_pin(r->store, key, &hit))
        return false;
    bool is = store_load(r->store, &hit, NULL) == 0 && store_has_unpacked(r->store, &hit);
    store_release(r->store, &hit, 1);
    return is;
}

bool repack_record(struct store_record *x, enum pack_type type, const void *from, void *to)
{
    size_t blocks = round_up(x->n_bytes, STORE_ALIGN);
    size_t n = blocks == STORE_ALIGN
                   ? 0
                   : pack_run(type, from, x->n_bytes, to, blocks - STORE_ALIGN);
    if (n > 0)
        *x = (struct store_record){.layer = x->layer,
                                   .kind = x->kind,
                                   .bytes = to,
                                   .n_bytes = (uint32_t)n,
                                   .is_packed = true};
    return n > 0;
}

static int commit(struct repack *r, struct err *err)
{
    int rc = r->n_uncommitted > 0 ? store_commit(r->store, err) : 0;
    r->n_uncommitted = 0;
    return rc;
}

/* Appends the packed chunk. If there is no room, commits earlier ones, and tries again. */
static int replace(struct repack *r, const struct store_chunk *c, struct err *err)
{
    int rc = store_append(r->store, c, err);
    if (rc == ERR_BUSY && r->n_uncommitted > 0) {
        rc = commit(r, err);
        if (rc == 0)
            rc = store_append(r->store, c, err);
    }
    return rc;
}

/* Reads the chunk, packs its records, and has the packed ones replace the stored ones. Does nothing
 * if no record gets smaller. */
static int pack_chunk(struct repack *r, const struct sha256 *key, struct err *err)
{
    struct store_record records[CHUNK_MAX_RECORDS];
    struct chunk_header h;
    struct store_chunk c;
    uint64_t epoch = store_epoch(r->store), before = 0, after = 0;
    bool any = false;
    int rc = r->reader == NULL
                 ? store_reader_open(r->store, READS_IN_FLIGHT, NULL, 0, &r->reader, err)
                 : 0;
    if (rc == 0)
        rc = parcel_read(r->store, r->reader, key, &r->parcel, err);
    if (rc == 0)
        rc = parcel_check(r->parcel.bytes, r->parcel.n_bytes, &h, err);
    if (rc == 0)
        rc = parcel_reserve(&r->packed, r->parcel.n_bytes, err);
    if (rc != 0)
        return rc;
    parcel_chunk(r->parcel.bytes, &h, records, &c);
    for (int i = 0; i < c.n_records; i++) {
        before += records[i].n_bytes;
        uint8_t *to = r->packed.bytes + h.records[i].offset;
        any |= !records[i].is_packed &&
               repack_record(&records[i],
                             pack_guess(records[i].bytes, records[i].n_bytes, to),
                             records[i].bytes, to);
        after += records[i].n_bytes;
    }
    if (!any)
        return 0;
    c.epoch = epoch;
    c.replaces = true;
    rc = replace(r, &c, err);
    if (rc != 0)
        return rc;
    r->n_uncommitted++;
    r->counts.n_chunks++;
    r->counts.bytes_before += before;
    r->counts.bytes_after += after;
    return r->n_uncommitted == COMMIT_CHUNKS ? commit(r, err) : 0;
}

/* Returns whether the fault concerns one chunk alone. */
static bool is_of_chunk(int rc)
{
    return rc == ERR_BUSY || rc == ERR_NOT_FOUND || rc == ERR_CORRUPT || rc == ERR_FORMAT ||
           rc == ERR_ERASED || rc == ERR_LIMIT;
}

int repack_step(struct repack *r, bool *more, struct err *err)
{
    struct err why = {0};
    int rc = 0;
    if (r->next < r->n_keys) {
        const struct sha256 *key = &r->keys[r->next++];
        rc = is_unpacked(r, key) ? pack_chunk(r, key, &why) : 0;
        if (is_of_chunk(rc)) {
            r->counts.n_left++;
            rc = 0;
        }
    }
    *more = rc == 0 && r->next < r->n_keys;
    if (rc == 0 && !*more)
        rc = commit(r, &why);
    return rc == 0 ? 0 : err_set(err, rc, "%s", why.msg);
}
