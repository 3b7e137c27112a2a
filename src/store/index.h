/* index.h - the durable list of extents: one SQLite database in the first directory of a store.
 *
 * Five tables:
 * - `meta`: one row: format, store, counters
 * - `extent`: a row per extent: a fixed blob with its own checksum, and its last use
 * - `record`: per extent the table of its records, read only when the chunk is looked up, so
 *   that a store with a million chunks opens quickly
 * - `pin`: lasting pins by key
 * - `wipe`: places of erased extents whose bytes may still be there
 *
 * Meta also counts the extent rows and sums their checksums, so that a lost or revived row is
 * found. The index holds no prompt text: tokens are only in the extents' headers.
 *
 * WAL, synchronous=FULL, locking_mode=EXCLUSIVE: an index_commit that returned 0 survives a
 * crash; one that did not leaves the previous state. Any doubt about the file is ERR_CORRUPT,
 * and then the store rebuilds it from the extents' headers.
 *
 * One thread at a time. */
#ifndef STORE_INDEX_H
#define STORE_INDEX_H

#include "store/chunk.h"

struct io;
struct index;

/* A database page, and a log frame that holds one page. */
enum { INDEX_PAGE_BYTES = 4096, INDEX_FRAME_BYTES = INDEX_PAGE_BYTES + 24 };

/* Every extent id is lower than this. Counting never reaches this number. The bound is needed
 * because SQLite's integers are signed, and because an id read from the file must not make the next
 * one wrap. */
#define INDEX_MAX_ID (UINT64_MAX / 2)

struct index_meta {
    uint8_t uuid[STORE_UUID_BYTES];
    uint32_t n_devices;
    uint64_t segment_bytes;
    uint64_t next_id; /* the id of the next extent */
    uint64_t mark;    /* as in struct superblock */
};

struct index_row {
    uint64_t id;
    struct sha256 key, parent, fingerprint;
    uint64_t offset;
    uint32_t segment, n_blocks, chunk_idx;
    uint16_t device, n_records;
    struct store_mask mask;
    uint64_t owner;
    uint32_t n_tokens;
    bool yields;
    /* order of last use; has no checksum, since a wrong value does no harm */
    uint64_t tick;
    uint32_t used_wall_s; /* time of last use, seconds since 1970; has no checksum */
    /* Time to live after the last use, in seconds; 0: the chunk does not expire. Has no
     * checksum. */
    uint32_t ttl_s;
    bool is_dropped; /* the chunk is evicted before all others; has no checksum */
};

/* Last use of a chunk: the part of a row that index_touch changes. */
struct index_use {
    uint64_t tick;
    uint32_t used_wall_s, ttl_s;
    bool is_dropped;
};

/* Former place of an erased extent. */
struct index_place {
    uint64_t id, offset;
    uint32_t segment, n_blocks;
    uint16_t device;
};

/* Opens and locks an existing index. Returns ERR_NOT_FOUND, ERR_BUSY, ERR_CORRUPT (then rebuild the
 * index), ERR_UNSUPPORTED, or the I/O error. With read_only the file's content is not changed. */
int index_open(struct io *io, const char *path, bool read_only, struct index **out,
               struct index_meta *meta, struct err *err);

/* Copies an index that another process has open for writing, and opens the copy. The index itself
 * is neither locked nor changed. The copy lies in memory, and has what was committed when it was
 * made. Returns ERR_BUSY if the index changes too fast to be copied, else as index_open. */
int index_open_beside(struct io *io, const char *path, struct index **out,
                      struct index_meta *meta, struct err *err);
/* Creates an empty index with a transaction open: add the rows with index_add, then call
 * index_commit. A crash before that leaves a file that index_open calls ERR_CORRUPT. */
int index_create(struct io *io, const char *path, const struct index_meta *meta,
                 struct index **out, struct err *err);
void index_close(struct index *ix); /* NULL is allowed */

/* Sets the seal of rows, tables and pins (NULL: none), before any is read or written. It must
 * outlive the index. */
void index_use_seal(struct index *ix, const struct seal *seal);
/* Sets the length of the log: each commit that leaves n_frames or more in it folds it into the
 * database. */
int index_limit_log(struct index *ix, uint32_t n_frames, struct err *err);
/* Returns the bytes of pages in use, as of the last commit. */
uint64_t index_live_bytes(const struct index *ix);

/* Returns the number of rows according to the file. Only index_load checks it. */
uint64_t index_n_rows(const struct index *ix);
/* Calls fn for every row, in order of id. If fn returns non-zero, the load stops and returns fn's
 * result. Returns ERR_CORRUPT if a row's check fails or the rows are not the committed ones. */
int index_load(struct index *ix, int (*fn)(void *arg, const struct index_row *row),
               void *arg, struct err *err);

/* Reads the records of extent `id`. Returns 0, or ERR_CORRUPT if there is any doubt. */
int index_records(struct index *ix, uint64_t id, int n_records, uint64_t extent_bytes,
                  struct chunk_record *out, struct err *err);

/* A lasting pin of a key. */
struct index_pin {
    struct sha256 key;
    int64_t until_wall_s; /* end of the pin, seconds since 1970; 0: the pin is removed */
    bool is_guaranteed;
};

/* Call fn for every lasting pin, and for every place to be wiped. fn's result has the same effect
 * as in index_load. Pins have no checksum: a wrong pin only changes the order of eviction. */
int index_load_pins(struct index *ix, int (*fn)(void *arg, const struct index_pin *pin),
                    void *arg, struct err *err);
int index_load_wipes(struct index *ix,
                     int (*fn)(void *arg, const struct index_place *place), void *arg,
                     struct err *err);

/* Folds the log into the database and cuts it, so that no old page is left in database or log. */
int index_compact(struct index *ix, struct err *err);

/* The functions below form one transaction. An error from any of them rolls it back and ends it. */
int index_begin(struct index *ix, struct err *err);
int index_add(struct index *ix, const struct index_row *row,
              const struct chunk_record *records, struct err *err);
/* Removes the row of an extent. Does nothing if there is none. */
int index_drop(struct index *ix, uint64_t id, struct err *err);
int index_touch(struct index *ix, uint64_t id, const struct index_use *use,
                struct err *err);
/* Sets a pin, or removes it. */
int index_pin(struct index *ix, const struct index_pin *pin, struct err *err);
/* index_wipe records that the bytes of a place must be wiped; index_wiped removes the record. */
int index_wipe(struct index *ix, const struct index_place *place, struct err *err);
int index_wiped(struct index *ix, uint64_t id, struct err *err);
/* Returns 0 if the transaction is durable. After -ENOSPC nothing has changed, and the caller may
 * try again. After any other error the transaction is invisible now, but it is unknown whether it
 * takes effect after a restart. */
int index_commit(struct index *ix, uint64_t next_id, struct err *err);

#endif
