/* parcel.c - see parcel.h. */
#include "store/parcel.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "store/store_impl.h"

/* Most reads that are in flight at once. */
enum { AT_ONCE = 16 };

/* --- memory ----------------------------------------------------------------------------------- */

void parcel_deinit(struct parcel *p)
{
    if (p->bytes != NULL)
        mem_unmap(p->bytes, p->max_bytes);
    *p = (struct parcel){0};
}

int parcel_reserve(struct parcel *p, size_t n, struct err *err)
{
    p->n_bytes = n;
    if (n <= p->max_bytes)
        return 0;
    parcel_deinit(p);
    size_t max = round_up(n, STORE_ALIGN);
    p->bytes = mem_map(max);
    if (p->bytes == NULL)
        return err_set(err, -ENOMEM, "no memory for a chunk of %zu bytes", n);
    *p = (struct parcel){p->bytes, n, max};
    return 0;
}

/* Returns whether a header belongs to no store's file: it names no store and no place. */
static bool is_of_no_store(const struct chunk_header *h)
{
    static const uint8_t none[STORE_UUID_BYTES];
    return memcmp(h->uuid, none, sizeof none) == 0 && h->id == 0 && h->device == 0 &&
           h->segment == 0 && h->offset == 0;
}

int parcel_check(const uint8_t *bytes, size_t n, struct chunk_header *out, struct err *err)
{
    if (n < CHUNK_HEADER_BYTES)
        return err_set(err, ERR_FORMAT, "%zu bytes are not a chunk", n);
    int rc = chunk_header_decode(bytes, out, err);
    if (rc != 0)
        return rc;
    if (!is_of_no_store(out))
        return err_set(err, ERR_CORRUPT, "a piece of a store's file is no parcel");
    if (out->n_bytes != n)
        return err_set(err, ERR_CORRUPT, "a chunk of %llu bytes came as %zu",
                       (unsigned long long)out->n_bytes, n);
    for (int i = 0; i < out->n_records; i++) {
        const struct chunk_record *r = &out->records[i];
        if (checksum64(bytes + r->offset, r->n_bytes) != r->checksum)
            return err_set(err, ERR_CORRUPT, "layer %d: its checksum does not hold",
                           r->layer);
    }
    return 0;
}

/* --- reading from a store --------------------------------------------------------------------- */

/* Adds a record at its place in (kind, layer) order, without its n_seal bytes of encryption. If the
 * chunk already has this record, changes nothing. */
static void record_insert(struct chunk_header *h, const struct chunk_record *r,
                          uint32_t n_seal)
{
    int at = 0, order = r->kind * STORE_MAX_LAYERS + r->layer;
    while (at < h->n_records &&
           h->records[at].kind * STORE_MAX_LAYERS + h->records[at].layer < order)
        at++;
    if (at < h->n_records && h->records[at].kind == r->kind &&
        h->records[at].layer == r->layer)
        return;
    memmove(&h->records[at + 1], &h->records[at],
            (size_t)(h->n_records - at) * sizeof h->records[0]);
    h->records[at] = *r;
    h->records[at].n_bytes -= n_seal;
    h->n_records++;
}

/* Fills in *h from the header of one extent, and the records of all extents. The chunk is pinned,
 * so its extents stay meanwhile. */
static int describe(struct store *s, const struct store_hit *hit, struct parcel *block,
                    struct chunk_header *h, struct err *err)
{
    const struct chunk_node *n = hit->impl;
    pthread_mutex_lock(&s->lock);
    const struct extent *x = n->extents;
    while (x != NULL && x->state != EXTENT_LIVE)
        x = x->next;
    pthread_mutex_unlock(&s->lock);
    if (x == NULL)
        return err_set(err, ERR_NOT_FOUND, "the chunk was removed meanwhile");
    int rc = parcel_reserve(block, CHUNK_HEADER_BYTES, err);
    if (rc == 0)
        rc = store_read_header(s, x, block->bytes, h, err);
    if (rc != 0)
        return rc;
    h->n_records = 0;
    pthread_mutex_lock(&s->lock);
    for (x = n->extents; x != NULL; x = x->next)
        for (int i = 0; x->state == EXTENT_LIVE && x->records != NULL && i < x->n_records;
             i++)
            record_insert(h, &x->records[i], s->home.seal != NULL ? SEAL_BYTES : 0);
    pthread_mutex_unlock(&s->lock);
    return h->n_records > 0 ? 0 : err_set(err, ERR_NOT_FOUND, "the chunk has no records");
}

/* Returns the room behind the parcel that the read of record i needs. A record that shares a block
 * with a neighbour is read there, since a read fills whole blocks. */
static size_t aside_bytes(const struct chunk_header *h, int i)
{
    bool shares = h->records[i].is_tight ||
                  (i + 1 < h->n_records && h->records[i + 1].is_tight);
    return shares ? round_up(h->records[i].n_bytes, STORE_ALIGN) + STORE_ALIGN : 0;
}

/* Checks a completed read, moves its bytes to their place, and releases it. */
static int take_record(struct store_read *read, struct parcel *to, struct chunk_record *r,
                       struct err *err)
{
    int rc = store_read_check(read, err);
    if (rc == 0 && read->n_bytes != r->n_bytes)
        rc = err_set(err, ERR_CORRUPT, "layer %d has another size than its table says",
                     r->layer);
    if (rc == 0 && read->bytes != to->bytes + r->offset)
        memcpy(to->bytes + r->offset, read->bytes, r->n_bytes);
    r->checksum = read->checksum;
    store_read_release(read);
    return rc;
}

/* Reads records [first, first + n) of the chunk to their places. */
static int read_some(struct store_reader *r, const struct store_hit *hit, struct parcel *to,
                     struct chunk_header *h, int first, int n, struct err *err)
{
    struct store_read read[AT_ONCE], *ask[AT_ONCE], *done[AT_ONCE];
    uint8_t *aside = to->bytes + h->n_bytes;
    for (int i = 0; i < n; i++) {
        struct chunk_record *c = &h->records[first + i];
        size_t room = aside_bytes(h, first + i);
        read[i] = (struct store_read){
            .hit = hit,
            .layer = c->layer,
            .kind = (enum store_kind)c->kind,
            .dst = room > 0 ? aside : to->bytes + c->offset,
            .dst_bytes = room > 0 ? room : round_up(c->n_bytes, STORE_ALIGN),
            .user = c};
        aside += room;
        ask[i] = &read[i];
    }
    int rc = 0, n_done;
    store_reader_submit(r, ask, n);
    for (int left = n; left > 0; left -= n_done) {
        struct err why = {0};
        int failed = store_reader_wait(r, done, AT_ONCE, &n_done, &why);
        if (failed != 0) /* the reader is broken, and its owner must open another one */
            return err_set(err, failed, "%s", why.msg);
        for (int i = 0; i < n_done; i++) {
            int one = take_record(done[i], to, done[i]->user, &why);
            if (rc == 0 && one != 0)
                rc = err_set(err, one, "%s", why.msg);
        }
    }
    return rc;
}

/* Lays out the chunk's records in the parcel, reads them, and fills the gaps with zeros. */
static int read_records(struct store_reader *r, const struct store_hit *hit,
                        struct parcel *to, struct chunk_header *h, struct err *err)
{
    size_t aside = 0, most = 0;
    h->n_bytes = chunk_layout(h->records, h->n_records);
    for (int i = 0; i < h->n_records; i++) {
        aside = (i % AT_ONCE == 0 ? 0 : aside) + aside_bytes(h, i);
        most = MAX(most, aside);
    }
    int rc = parcel_reserve(to, h->n_bytes + most, err);
    for (int i = 0; rc == 0 && i < h->n_records; i += AT_ONCE) {
        int left = h->n_records - i;
        rc = read_some(r, hit, to, h, i, MIN(left, AT_ONCE), err);
    }
    to->n_bytes = h->n_bytes;
    for (int i = 0; rc == 0 && i < h->n_records; i++) { /* the gaps are zeros */
        const struct chunk_record *c = &h->records[i];
        size_t end = c->offset + (size_t)c->n_bytes;
        size_t next = i + 1 < h->n_records ? c[1].offset : h->n_bytes;
        memset(to->bytes + end, 0, next - end);
    }
    return rc;
}

int parcel_read(struct store *s, struct store_reader *r, const struct sha256 *key,
                struct parcel *out, struct err *err)
{
    struct store_hit hit;
    struct chunk_header h;
    struct err why = {0};
    if (!store_pin(s, key, &hit))
        return err_set(err, ERR_NOT_FOUND, STORE_WHY_ABSENT);
    int rc = store_load_node(s, hit.impl, &why);
    if (rc == 0)
        rc = describe(s, &hit, out, &h, &why);
    if (rc == 0)
        rc = read_records(r, &hit, out, &h, &why);
    if (rc == ERR_CORRUPT || rc == ERR_FORMAT)
        store_condemn(s, &hit, why.msg);
    store_release(s, &hit, 1);
    if (rc != 0)
        return err_set(err, rc, "%s", why.msg);
    memset(h.uuid, 0, sizeof h.uuid);
    h.id = h.offset = 0;
    h.segment = h.device = 0;
    chunk_header_encode(&h, out->bytes);
    return 0;
}

/* --- appending to a store --------------------------------------------------------------------- */

void parcel_chunk(const uint8_t *bytes, const struct chunk_header *h,
                  struct store_record *records, struct store_chunk *out)
{
    *out = (struct store_chunk){.key = h->key,
                                .parent = h->parent,
                                .fingerprint = h->fingerprint,
                                .owner = h->owner,
                                .chunk_idx = h->chunk_idx,
                                .n_tokens = h->n_tokens,
                                .records = records,
                                .n_records = h->n_records,
                                .yields = h->yields};
    memcpy(out->tokens, h->tokens, sizeof out->tokens);
    for (int i = 0; i < h->n_records; i++)
        records[i] = (struct store_record){.layer = h->records[i].layer,
                                           .kind = (enum store_kind)h->records[i].kind,
                                           .bytes = bytes + h->records[i].offset,
                                           .n_bytes = h->records[i].n_bytes,
                                           .has_checksum = true,
                                           .checksum = h->records[i].checksum,
                                           .is_packed = h->records[i].is_packed};
}

int parcel_append(struct store *s, const uint8_t *bytes, const struct chunk_header *h,
                  const struct store_use *use, struct err *err)
{
    struct store_record records[CHUNK_MAX_RECORDS];
    struct store_chunk c;
    parcel_chunk(bytes, h, records, &c);
    c.use = *use;
    return store_append(s, &c, err);
}
