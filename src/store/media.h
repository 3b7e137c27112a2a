/* media.h - where the bytes of extents live: files of the store's directories (files.c) or memory
 * (dram.c), behind one table of functions.
 *
 * A place is (device, segment, offset).  Media know neither chunks' meaning nor the index, and
 * trust the allocator that places do not overlap.  All functions are thread-safe. */
#ifndef STORE_MEDIA_H
#define STORE_MEDIA_H

#include <errno.h>

#include "base/err.h"
#include "store/chunk.h"

struct io;
struct io_file;
struct media;

struct media_ops {
    void (*close)(struct media *m);

    /* Writes the extent that h describes (place, key, tokens, records with layout) with the
     * bytes of from[i], with each record's checksum in h.  Not durable.  On an error
     * nothing is in flight.  copy (may be NULL; files only) receives the records as they
     * lie in the extent, behind its header. */
    int (*write)(struct media *m, struct chunk_header *h,
                 const struct store_record *const *from, uint8_t *copy, struct err *err);

    /* Makes every write that returned before the call durable.  An error is final: what those
     * writes left on the device is unknown and stays unknown. */
    int (*sync)(struct media *m, struct err *err);

    /* Reads n bytes; buf, n and offset in whole blocks, buf aligned. -ENODATA past the end. */
    int (*read)(struct media *m, int device, uint32_t segment, uint64_t offset, void *buf,
                size_t n, struct err *err);

    /* Where the bytes are in memory (DRAM), or NULL: they must be read from media_file. */
    const uint8_t *(*at)(struct media *m, int device, uint32_t segment, uint64_t offset);
    struct io_file *(*file)(struct media *m, int device, uint32_t segment);

    uint32_t (*n_segments)(struct media *m, int device); /* one more than the highest */
    uint64_t (*segment_size)(struct media *m, int device, uint32_t segment); /* 0: none */

    /* Cuts a segment at end_bytes, or removes it where that is 0, and wipes [begin, end) of it.
     * Nothing of it may be in use. */
    int (*cut)(struct media *m, int device, uint32_t segment, uint64_t end_bytes,
               struct err *err);
    int (*wipe)(struct media *m, int device, uint32_t segment, uint64_t begin, uint64_t end,
                struct err *err);
};

struct media {
    const struct media_ops *ops;
    int n_devices;
    uint64_t segment_bytes;
};

/* What a record is made of, as it is to be written; NULL with an error where it cannot be had. */
static inline const void *media_record_bytes(const struct store_record *r, struct err *err)
{
    const void *bytes = r->bytes != NULL ? r->bytes : r->make(r->make_arg, r);
    if (bytes == NULL)
        err_set(err, -EIO, "the %s of layer %d could not be made",
                r->kind == STORE_KV ? "KV" : "hidden states", r->layer);
    return bytes;
}

/* The checksum of a record whose bytes are at hand. */
static inline uint64_t media_record_checksum(const struct store_record *r,
                                             const void *bytes)
{
    return r->has_checksum ? r->checksum : checksum64(bytes, r->n_bytes);
}

/* Memory, one device. Segments are mapped as they are needed; o->memory says how. */
struct media *dram_open(uint64_t segment_bytes, const struct store_opts *o);

struct files_opts {
    struct io *io;
    const char *const *dirs;
    int n_dirs;
    uint64_t segment_bytes;
    uint64_t max_step_bytes; /* files are preallocated by at most this much at a time */
    uint64_t max_bytes;      /* of all files together; 0: no bound */
    bool read_only, no_direct;
    int64_t stuck_ns; /* see store_opts */
};
/* The segment files of existing store directories, all of them opened. */
int files_open(const struct files_opts *opts, struct media **out, struct err *err);

#endif
