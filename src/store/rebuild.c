/* rebuild.c - a new index from the extents' headers.
 *
 *   1. a marker file, durable: until it is gone, every open starts the rebuild anew
 *   2. remove index and WAL (together: an old WAL must never meet a new database)
 *   3. scan all segments for headers of this store that lie at the place that they name
 *   4. newest first: take an extent if its space is still free and all its records are intact
 *   5. one transaction with all rows; then the marker is removed
 *
 * The result may differ from the lost index: extents that were written and never committed, or
 * evicted and not overwritten, come back. That is harmless, because a chunk's key names its
 * content and every record is checked here. Old and new extents may overlap; ids tell which is
 * newer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/plural.h"
#include "io/io.h"
#include "io/io_erase.h"
#include "store/store_impl.h"

#define SCAN_BYTES (4u << 20)

struct candidate {
    uint64_t id, offset;
    uint32_t segment;
    uint16_t device;
};

struct scan {
    struct store *s;
    uint8_t *buffer; /* [SCAN_BYTES] */
    struct chunk_header *h;
    struct candidate *found;
    uint64_t n_found;
    struct alloc taken[STORE_MAX_DEVICES];
    uint64_t n_rows, next_id;
};

/* Returns whether header h, which was read at this place, is that of an extent of this store. */
static bool header_fits(const struct store *s, const struct chunk_header *h, int device,
                        uint32_t segment, uint64_t offset)
{
    if (memcmp(h->uuid, s->home.uuid, sizeof s->home.uuid) != 0 || h->device != device ||
        h->segment != segment || h->offset != offset || h->id == 0 || h->id >= INDEX_MAX_ID)
        return false;
    for (int i = 0; i < h->n_records; i++)
        if (!chunk_on_device(h->chunk_idx, h->records[i].layer, device,
                             s->media->n_devices))
            return false;
    return true;
}

static void found_add(struct scan *sc, const struct chunk_header *h)
{
    sc->found = xgrow(sc->found, sc->n_found, sizeof sc->found[0]);
    sc->found[sc->n_found++] = (struct candidate){h->id, h->offset, h->segment, h->device};
}

static int segment_scan(struct scan *sc, int device, uint32_t segment, struct err *err)
{
    struct media *m = sc->s->media;
    uint64_t size = m->ops->segment_size(m, device, segment) / STORE_ALIGN * STORE_ALIGN;
    for (uint64_t at = 0; at < size; at += SCAN_BYTES) {
        size_t n = MIN(size - at, SCAN_BYTES);
        int rc = m->ops->read(m, device, segment, at, sc->buffer, n, err);
        if (rc != 0)
            return rc;
        for (size_t i = 0; i < n; i += STORE_ALIGN)
            if (chunk_header_open(sc->s->home.seal, sc->s->home.owners, sc->buffer + i,
                                  sc->h, NULL) == 0 &&
                header_fits(sc->s, sc->h, device, segment, at + i))
                found_add(sc, sc->h);
    }
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = ((const struct candidate *)a)->id, y = ((const struct candidate *)b)->id;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Reads all records of the extent sc->h. *good gets whether all are intact. Returns 0 or the error
 * of the device. */
static int records_check(struct scan *sc, bool *good, struct err *err)
{
    struct media *m = sc->s->media;
    const struct chunk_header *h = sc->h;
    size_t max = 0;
    *good = false;
    for (int i = 0; i < h->n_records; i++)
        max = MAX(max, chunk_record_span(&h->records[i]));
    uint8_t *buffer = max <= SCAN_BYTES ? sc->buffer : mem_map(max);
    if (buffer == NULL)
        return err_set(err, -ENOMEM, "no memory for a record of %zu bytes", max);
    int rc = 0;
    bool all = true;
    for (int i = 0; i < h->n_records && rc == 0 && all; i++) {
        const struct chunk_record *r = &h->records[i];
        size_t in_block = r->offset % STORE_ALIGN;
        rc = m->ops->read(m, h->device, h->segment, h->offset + r->offset - in_block,
                          buffer, chunk_record_span(r), err);
        all = rc == 0 && checksum64(buffer + in_block, r->n_bytes) == r->checksum;
    }
    if (buffer != sc->buffer)
        mem_unmap(buffer, max);
    *good = all;
    /* an extent beyond the end of a cut file is not good, which is no error */
    return rc == -ENODATA ? 0 : rc;
}

static int row_write(struct scan *sc, struct err *err)
{
    const struct chunk_header *h = sc->h;
    struct index_row row = {
        .id = h->id,
        .key = h->key,
        .parent = h->parent,
        .fingerprint = h->fingerprint,
        .offset = h->offset,
        .segment = h->segment,
        .n_blocks = (uint32_t)(h->n_bytes / STORE_ALIGN),
        .chunk_idx = h->chunk_idx,
        .device = h->device,
        .n_records = h->n_records,
        .mask = chunk_mask(h->records, h->n_records),
        .owner = h->owner,
        .n_tokens = (uint32_t)h->n_tokens,
        .yields = h->yields,
        .tick = h->id, /* the order of use is lost; the order of writing comes closest */
        .used_wall_s = (uint32_t)clock_wall_s(),
    };
    sc->n_rows++;
    return index_add(sc->s->ledger.index, &row, h->records, err);
}

static int candidate_take(struct scan *sc, const struct candidate *c, uint64_t last_id,
                          struct err *err)
{
    struct media *m = sc->s->media;
    bool good = false;
    if (c->id == last_id) /* two extents with one id: the first intact one keeps it */
        return 0;
    int rc = m->ops->read(m, c->device, c->segment, c->offset, sc->buffer, STORE_ALIGN,
                          err);
    if (rc != 0)
        return rc;
    if (chunk_header_open(sc->s->home.seal, sc->s->home.owners, sc->buffer, sc->h, NULL) !=
            0 ||
        !header_fits(sc->s, sc->h, c->device, c->segment, c->offset))
        return 0;
    rc = records_check(sc, &good, err);
    if (rc != 0 || !good)
        return rc;
    /* If a newer extent overlaps this one, this one was evicted and partly overwritten. */
    if (alloc_claim(&sc->taken[c->device], c->segment, c->offset, sc->h->n_bytes) != 0)
        return 0;
    return row_write(sc, err);
}

/* Lists the headers in all segments, then takes their extents, the newest first. */
static int scan_all(struct scan *sc, struct err *err)
{
    struct media *m = sc->s->media;
    int rc = 0;
    for (int d = 0; d < m->n_devices; d++)
        for (uint32_t i = 0; rc == 0 && i < m->ops->n_segments(m, d); i++)
            rc = segment_scan(sc, d, i, err);
    if (rc != 0 || sc->n_found == 0)
        return rc;
    qsort(sc->found, sc->n_found, sizeof sc->found[0], newest_first);
    sc->next_id = sc->found[0].id + 1;
    uint64_t last_id = 0;
    for (uint64_t i = 0; rc == 0 && i < sc->n_found; i++) {
        uint64_t n_before = sc->n_rows;
        rc = candidate_take(sc, &sc->found[i], last_id, err);
        if (sc->n_rows > n_before)
            last_id = sc->found[i].id;
    }
    return rc;
}

/* Erases a file, if there is one. A damaged disk may refuse the overwriting; then the file is only
 * unlinked. */
static int erase_if_there(struct io *io, const char *path, struct err *err)
{
    int rc = io_erase(io, path, err);
    if (rc != 0 && rc != -ENOENT)
        rc = io_unlink(io, path, err);
    return rc == -ENOENT ? 0 : rc;
}

void store_want_rebuild(struct store *s)
{
    char *marker = xasprintf("%s/index.rebuild", s->home.dirs[0]);
    struct err why = {0};
    if (io_touch(s->home.io, marker, &why) == 0)
        log_warn(
            "the index in %s is damaged; it will be rebuilt when the store is opened next",
            s->home.dirs[0]);
    else
        log_warn("the index in %s is damaged; remove index.db* to have it rebuilt (%s)",
                 s->home.dirs[0], why.msg);
    free(marker);
}

/* Does steps 1 and 2 of the rebuild: sets the marker and removes the old index. */
static int old_index_remove(struct store *s, const char *dir, const char *marker,
                            struct err *err)
{
    int rc = io_touch(s->home.io, marker, err);
    static const char *const suffixes[] = {"-journal", "-wal", ""};
    for (int i = 0; i < 3 && rc == 0; i++) {
        char *path = xasprintf("%s%s", s->ledger.path, suffixes[i]);
        rc = erase_if_there(s->home.io, path, err);
        free(path);
    }
    return rc == 0 ? io_dir_sync(s->home.io, dir, err) : rc;
}

/* Adds a row for each sound extent of the segment files, and commits them. */
static int new_index_fill(struct store *s, const struct index_meta *meta, struct err *err)
{
    struct scan sc = {.s = s, .h = xmalloc(sizeof *sc.h), .next_id = meta->next_id};
    for (int i = 0; i < s->media->n_devices; i++)
        alloc_init(&sc.taken[i], s->media->segment_bytes);
    int rc = 0;
    sc.buffer = mem_map(SCAN_BYTES);
    if (sc.buffer == NULL)
        rc = err_set(err, -ENOMEM, "no memory to scan the store");
    if (rc == 0)
        rc = scan_all(&sc, err);
    if (rc == 0)
        rc = index_commit(s->ledger.index, sc.next_id + LEDGER_ID_RESERVE, err);
    if (rc == 0) {
        s->ledger.next_id = sc.next_id;
        s->ledger.id_limit = sc.next_id + LEDGER_ID_RESERVE;
    }
    if (sc.n_found > 0)
        log_info("index rebuilt: %llu extent%s, %llu damaged or overwritten ones left out",
                 (unsigned long long)sc.n_rows, plural(sc.n_rows),
                 (unsigned long long)(sc.n_found - sc.n_rows));
    if (sc.n_rows > 0)
        log_warn("pins and guarantees of saved state were in the index: none is left");
    if (sc.buffer != NULL)
        mem_unmap(sc.buffer, SCAN_BYTES);
    for (int i = 0; i < s->media->n_devices; i++)
        alloc_deinit(&sc.taken[i]);
    free(sc.found);
    free(sc.h);
    return rc;
}

int store_rebuild(struct store *s, const char *dir, const struct index_meta *meta,
                  struct err *err)
{
    char *marker = xasprintf("%s/index.rebuild", dir);
    int rc = old_index_remove(s, dir, marker, err);
    if (rc == 0)
        rc = index_create(s->home.io, s->ledger.path, meta, &s->ledger.index, err);
    if (rc == 0) {
        index_use_seal(s->ledger.index, s->home.seal);
        rc = new_index_fill(s, meta, err);
    }
    if (rc == 0) /* SQLite does not sync the folder for its database file */
        rc = io_dir_sync(s->home.io, dir, err);
    if (rc == 0)
        rc = io_unlink(s->home.io, marker, err);
    if (rc == 0)
        rc = io_dir_sync(s->home.io, dir, err);
    free(marker);
    return rc;
}
