/* media.h - the storage of extents' bytes: files in the store's directories (files.c) or memory
 * (dram.c), behind one table of functions.
 *
 * A place is (device, segment, offset). Media know neither the meaning of chunks nor the index,
 * and rely on the allocator for places that do not overlap. All functions are thread-safe. */
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

    /* Writes the extent that h describes (place, key, tokens, records with layout). from[i] gives
     * the bytes of record i. The records' checksums are filled into h. The bytes are not durable
     * before sync. After an error nothing is in flight. copy (may be NULL; files only) receives the
     * records as they lie in the extent, behind its header. */
    int (*write)(struct media *m, struct chunk_header *h,
                 const struct store_record *const *from, uint8_t *copy, struct err *err);

    /* Makes every write that returned before the call durable. An error is final: the state of
     * those writes on the device is unknown and stays unknown. */
    int (*sync)(struct media *m, struct err *err);

    /* Reads n bytes into buf. n, offset and the address of buf are multiples of STORE_ALIGN.
     * Returns 0, -ENODATA past the end, or the error of the device. */
    int (*read)(struct media *m, int device, uint32_t segment, uint64_t offset, void *buf,
                size_t n, struct err *err);

    /* Returns the address of the bytes if they are in memory (DRAM). NULL: they must be read from
     * the file that `file` returns. */
    const uint8_t *(*at)(struct media *m, int device, uint32_t segment, uint64_t offset);
    struct io_file *(*file)(struct media *m, int device, uint32_t segment);

    /* Returns 1 + the highest number of a segment; 0: there are none. */
    uint32_t (*n_segments)(struct media *m, int device);
    /* Returns the size of a segment in bytes; 0 if there is no such segment. */
    uint64_t (*segment_size)(struct media *m, int device, uint32_t segment);

    /* cut overwrites and shortens a segment to end_bytes, or removes it if end_bytes is 0. wipe
     * overwrites the bytes [begin, end) of a segment with zeros, which are durable after sync.
     * punch, behind that sync, gives the space of a wiped range back to the file system; it is only
     * an attempt. No used byte may lie in the part that is cut, wiped or punched, and a part that
     * is wiped or punched is claimed in the allocator. */
    int (*cut)(struct media *m, int device, uint32_t segment, uint64_t end_bytes,
               struct err *err);
    int (*wipe)(struct media *m, int device, uint32_t segment, uint64_t begin, uint64_t end,
                struct err *err);
    void (*punch)(struct media *m, int device, uint32_t segment, uint64_t begin,
                  uint64_t end);

    /* Frees buffers that no write has used for ten seconds. NULL: there are none. */
    void (*rest)(struct media *m);
};

struct media {
    const struct media_ops *ops;
    int n_devices;
    uint64_t segment_bytes;
};

/* Returns a record's bytes to be written, or NULL with an error if they cannot be made. */
static inline const void *media_record_bytes(const struct store_record *r, struct err *err)
{
    const void *bytes = r->bytes != NULL ? r->bytes : r->make(r->make_arg, r);
    if (bytes == NULL)
        err_set(err, -EIO, "the %s of layer %d could not be made",
                r->kind == STORE_KV ? "KV" : "hidden states", r->layer);
    return bytes;
}

/* Returns the checksum of a record whose bytes are at hand. */
static inline uint64_t media_record_checksum(const struct store_record *r,
                                             const void *bytes)
{
    return r->has_checksum ? r->checksum : checksum64(bytes, r->n_bytes);
}

/* Returns the bytes of the whole sectors that n bytes at *offset of a file lie in, and sets *offset
 * to the beginning of the first. file is NULL for bytes in memory, which have no sectors. */
size_t media_sectors(const struct io_file *file, size_t n_bytes, uint64_t *offset);

/* Opens the store's memory as one device. Segments are mapped when they are needed; o->memory
 * provides them. */
struct media *dram_open(uint64_t segment_bytes, const struct store_opts *o);

struct files_opts {
    struct io *io;
    const char *const *dirs;
    int n_dirs;
    uint64_t segment_bytes;
    uint64_t max_step_bytes; /* most bytes by which a file is preallocated at a time */
    uint64_t max_bytes;      /* bound on the bytes of all files together; 0: none */
    bool read_only, no_direct;
    int64_t stuck_ns;          /* as in store_opts */
    const struct seal *seal;   /* encrypts headers; NULL: nothing is encrypted */
    struct owner_keys *owners; /* encrypt records, and tokens in headers */
};
/* Opens all segment files of existing store directories. */
int files_open(const struct files_opts *opts, struct media **out, struct err *err);

#endif
