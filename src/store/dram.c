/* dram.c - media in memory (media.h): segments are anonymous maps, or memory from
 * store_opts.memory. Reads need no copy. With store_opts.memory_ahead the newest segment's memory
 * is provided before it is used (ahead.h), the first segment's from the opening on.
 *
 * A segment's address never changes while the store is open, so a pointer into an extent is
 * valid for as long as the extent exists (the store's pins keep it). */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/process.h"
#include "store/ahead.h"
#include "store/media.h"

struct dram {
    struct media base;
    struct store_memory memory;
    struct ahead *ahead;  /* NULL: the system provides memory at its first use */
    uint64_t most_bytes;  /* most bytes that are provided ahead; 0: no bound */
    pthread_mutex_t lock; /* protects the fields below, but not the bytes */
    uint8_t **segments;
    uint32_t n_segments;
    uint8_t *first; /* memory of the first segment until that segment is made; then NULL */
};

static struct dram *dram_of(struct media *m)
{
    return (struct dram *)m;
}

static void *map(void *arg, size_t bytes)
{
    (void)arg;
    return mem_map(bytes);
}

static void unmap(void *arg, void *p, size_t bytes)
{
    (void)arg;
    mem_unmap(p, bytes);
}

/* Returns how many bytes of a segment may be provided ahead. */
static uint64_t ahead_bytes(const struct dram *d, uint32_t segment)
{
    uint64_t before = segment * d->base.segment_bytes;
    uint64_t left = d->most_bytes == 0 ? d->base.segment_bytes
                                       : d->most_bytes - MIN(d->most_bytes, before);
    return MIN(left, d->base.segment_bytes);
}

/* [lock] Returns the memory of a new segment; NULL if there is none. */
static uint8_t *segment_make(struct dram *d, uint32_t segment)
{
    uint8_t *p = d->first;
    d->first = NULL;
    if (p != NULL)
        return p; /* `ahead` has followed this memory since the opening */
    p = d->memory.get(d->memory.arg, d->base.segment_bytes);
    if (p != NULL)
        ahead_follow(d->ahead, p, ahead_bytes(d, segment));
    return p;
}

/* Returns the memory of a segment, which is made if it does not exist; NULL if there is none. */
static uint8_t *segment_need(struct dram *d, uint32_t segment)
{
    pthread_mutex_lock(&d->lock);
    if (segment >= d->n_segments) {
        d->segments = xrealloc(d->segments, (segment + 1) * sizeof d->segments[0]);
        while (d->n_segments <= segment)
            d->segments[d->n_segments++] = NULL;
    }
    if (d->segments[segment] == NULL)
        d->segments[segment] = segment_make(d, segment);
    uint8_t *p = d->segments[segment];
    pthread_mutex_unlock(&d->lock);
    return p;
}

/* Returns the memory of a segment; NULL if it does not exist. */
static uint8_t *segment_find(struct dram *d, uint32_t segment)
{
    pthread_mutex_lock(&d->lock);
    uint8_t *p = segment < d->n_segments ? d->segments[segment] : NULL;
    pthread_mutex_unlock(&d->lock);
    return p;
}

static void dram_close(struct media *m)
{
    struct dram *d = dram_of(m);
    ahead_destroy(d->ahead);
    if (d->first != NULL)
        d->memory.put(d->memory.arg, d->first, m->segment_bytes);
    for (uint32_t i = 0; i < d->n_segments; i++)
        if (d->segments[i] != NULL)
            d->memory.put(d->memory.arg, d->segments[i], d->base.segment_bytes);
    free(d->segments);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static int dram_write(struct media *m, struct chunk_header *h,
                      const struct store_record *const *from, uint8_t *copy,
                      struct err *err)
{
    (void)copy; /* a store in memory has no copies: its bytes are in DRAM already */
    CHECK(h->device == 0 && h->offset + h->n_bytes <= m->segment_bytes);
    uint8_t *segment = segment_need(dram_of(m), h->segment);
    if (segment == NULL)
        return err_set(err, -ENOMEM, "no memory for another %llu bytes of saved state",
                       (unsigned long long)m->segment_bytes);
    ahead_use(dram_of(m)->ahead, segment, h->offset + h->n_bytes);
    uint8_t *extent = segment + h->offset;
    for (int i = 0; i < h->n_records; i++) {
        struct chunk_record *r = &h->records[i];
        const void *bytes = media_record_bytes(from[i], err);
        if (bytes == NULL)
            return -EIO;
        memcpy(extent + r->offset, bytes, r->n_bytes);
        r->checksum = media_record_checksum(from[i], extent + r->offset);
    }
    chunk_header_encode(h, extent);
    return 0;
}

static int dram_sync(struct media *m, struct err *err)
{
    (void)m, (void)err;
    return 0;
}

static const uint8_t *dram_at(struct media *m, int device, uint32_t segment,
                              uint64_t offset)
{
    uint8_t *p = segment_find(dram_of(m), segment);
    CHECK(device == 0 && p != NULL);
    return p + offset;
}

static int dram_read(struct media *m, int device, uint32_t segment, uint64_t offset,
                     void *buf, size_t n, struct err *err)
{
    (void)err;
    memcpy(buf, dram_at(m, device, segment, offset), n);
    return 0;
}

static struct io_file *dram_file(struct media *m, int device, uint32_t segment)
{
    (void)m, (void)device, (void)segment;
    return NULL;
}

static uint32_t dram_n_segments(struct media *m, int device)
{
    (void)device;
    struct dram *d = dram_of(m);
    pthread_mutex_lock(&d->lock);
    uint32_t n = d->n_segments;
    pthread_mutex_unlock(&d->lock);
    return n;
}

static uint64_t dram_segment_size(struct media *m, int device, uint32_t segment)
{
    (void)device;
    return segment_find(dram_of(m), segment) != NULL ? m->segment_bytes : 0;
}

static int dram_cut(struct media *m, int device, uint32_t segment, uint64_t end_bytes,
                    struct err *err)
{
    (void)device, (void)err;
    struct dram *d = dram_of(m);
    pthread_mutex_lock(&d->lock);
    if (end_bytes == 0 && segment < d->n_segments && d->segments[segment] != NULL) {
        ahead_leave(d->ahead, d->segments[segment]);
        d->memory.put(d->memory.arg, d->segments[segment], m->segment_bytes);
        d->segments[segment] = NULL;
    }
    pthread_mutex_unlock(&d->lock);
    return 0;
}

static int dram_wipe(struct media *m, int device, uint32_t segment, uint64_t begin,
                     uint64_t end, struct err *err)
{
    (void)device, (void)err;
    uint8_t *p = segment_find(dram_of(m), segment);
    if (p != NULL)
        memset(p + begin, 0, end - begin);
    return 0;
}

static void dram_punch(struct media *m, int device, uint32_t segment, uint64_t begin,
                       uint64_t end)
{
    (void)m, (void)device, (void)segment, (void)begin, (void)end; /* memory has no holes */
}

static const struct media_ops dram_ops = {
    .close = dram_close,
    .write = dram_write,
    .sync = dram_sync,
    .read = dram_read,
    .at = dram_at,
    .file = dram_file,
    .n_segments = dram_n_segments,
    .segment_size = dram_segment_size,
    .cut = dram_cut,
    .wipe = dram_wipe,
    .punch = dram_punch,
};

/* Returns how much memory is provided ahead: the whole newest segment for a store with a cap, if
 * the system has memory for the cap left; else AHEAD_BYTES. */
static uint64_t wanted_ahead(const struct dram *d)
{
    bool fits = d->most_bytes > 0 && d->most_bytes <= process_memory_left();
    return fits ? d->base.segment_bytes : AHEAD_BYTES;
}

/* Begins to provide memory ahead. Not for memory from the caller, which is provided already. */
static void begin_ahead(struct dram *d, uint64_t cap_bytes)
{
    d->most_bytes = cap_bytes;
    d->ahead = ahead_create(wanted_ahead(d), AHEAD_BESIDE);
    d->first = d->ahead != NULL ? map(NULL, d->base.segment_bytes) : NULL;
    if (d->first != NULL)
        ahead_follow(d->ahead, d->first, ahead_bytes(d, 0));
}

struct media *dram_open(uint64_t segment_bytes, const struct store_opts *o)
{
    struct dram *d = xcalloc(1, sizeof *d);
    bool is_own = o->memory.get == NULL;
    d->memory = is_own ? (struct store_memory){map, unmap, NULL} : o->memory;
    d->base = (struct media){&dram_ops, 1, segment_bytes};
    pthread_mutex_init(&d->lock, NULL);
    if (o->memory_ahead && is_own)
        begin_ahead(d, o->cap_bytes);
    return &d->base;
}
