/* index.h - the durable list of extents: one SQLite database in the first directory of a store.
 *
 * Five tables: `meta` (one row: format, store, counters), `extent` (a row per extent: a fixed blob
 * with its own checksum, and when it was last used), `record` (per extent the table of its records,
 * read only when the chunk is looked up, so that opening a store with a million chunks stays
 * quick), `pin` (lasting pins by key), `wipe` (places of erased extents whose bytes may still be
 * there).  Meta also counts the extent rows and sums their checksums, so that a lost or revived row
 * is found.  No prompt text is in it: tokens stand in the extents' headers only.
 *
 * WAL, synchronous=FULL, locking_mode=EXCLUSIVE: an index_commit that returned 0 survives, one that
 * did not leaves the previous state.  Any doubt about the file is ERR_CORRUPT, and then the store
 * rebuilds it from the extents' headers.
 *
 * One thread at a time. */
#ifndef STORE_INDEX_H
#define STORE_INDEX_H

#include "store/chunk.h"

struct io;
struct index;

/* A page of the database, and a frame of the log with a page. */
enum { INDEX_PAGE_BYTES = 4096, INDEX_FRAME_BYTES = INDEX_PAGE_BYTES + 24 };

/* No extent has this id or a higher one: counting never comes so far, SQLite's integers are
 * signed, and one that is read must not make the next one wrap. */
#define INDEX_MAX_ID (UINT64_MAX / 2)

struct index_meta {
    uint8_t uuid[STORE_UUID_BYTES];
    uint32_t n_devices;
    uint64_t segment_bytes;
    uint64_t next_id; /* the id of the next extent */
    uint32_t version; /* as found: an older one is raised by the first index_begin */
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
    uint64_t tick; /* order of last use; not checksummed, for a wrong one is harmless */
    uint32_t used_wall_s; /* likewise */
    uint32_t ttl_s;       /* likewise; seconds after the last use, 0: it does not expire */
    bool is_dropped;      /* likewise; it is the first to be evicted */
};

/* When and how a chunk was last used: what index_touch changes of a row. */
struct index_use {
    uint64_t tick;
    uint32_t used_wall_s, ttl_s;
    bool is_dropped;
};

/* Where an extent was. */
struct index_place {
    uint64_t id, offset;
    uint32_t segment, n_blocks;
    uint16_t device;
};

/* Opens and locks an existing index.  ERR_NOT_FOUND, ERR_BUSY, ERR_CORRUPT (rebuild it),
 * ERR_UNSUPPORTED, or the I/O error.  read_only leaves the file's content alone. */
int index_open(struct io *io, const char *path, bool read_only, struct index **out,
               struct index_meta *meta, struct err *err);

/* Creates an empty index with a transaction open: index_add what belongs into it, then
 * index_commit. A crash before that leaves a file that index_open calls ERR_CORRUPT. */
int index_create(struct io *io, const char *path, const struct index_meta *meta,
                 struct index **out, struct err *err);
void index_close(struct index *ix); /* NULL is allowed */

/* The log is folded into the database after a commit that leaves n_frames or more in it. */
int index_limit_log(struct index *ix, uint32_t n_frames, struct err *err);
/* Returns the bytes of pages that are in use, as of the last commit. */
uint64_t index_live_bytes(const struct index *ix);

/* As it says itself: not checked before a load. */
uint64_t index_n_rows(const struct index *ix);
/* Calls fn for every row, in order of id; a non-zero result of fn ends it and is returned.
 * ERR_CORRUPT where a row does not hold or the rows are not the ones that were committed. */
int index_load(struct index *ix, int (*fn)(void *arg, const struct index_row *row),
               void *arg, struct err *err);

/* The records of extent `id`: 0, or ERR_CORRUPT where there is any doubt. */
int index_records(struct index *ix, uint64_t id, int n_records, uint64_t extent_bytes,
                  struct chunk_record *out, struct err *err);

/* A lasting pin of a key. */
struct index_pin {
    struct sha256 key;
    int64_t until_wall_s; /* 0: the pin ends */
    bool is_guaranteed;
};

/* Calls fn for every lasting pin, and for every place to be wiped, likewise.  Pins are not
 * checksummed: a wrong one only changes what is evicted first. */
int index_load_pins(struct index *ix, int (*fn)(void *arg, const struct index_pin *pin),
                    void *arg, struct err *err);
int index_load_wipes(struct index *ix,
                     int (*fn)(void *arg, const struct index_place *place), void *arg,
                     struct err *err);

/* Folds the log into the database and cuts it, so that no old page is left in either. */
int index_compact(struct index *ix, struct err *err);

/* One transaction.  After an error from any of these the transaction is rolled back and over. */
int index_begin(struct index *ix, struct err *err);
int index_add(struct index *ix, const struct index_row *row,
              const struct chunk_record *records, struct err *err);
int index_drop(struct index *ix, uint64_t id,
               struct err *err); /* no such row: nothing happens */
int index_touch(struct index *ix, uint64_t id, const struct index_use *use,
                struct err *err);
/* Sets or ends a pin. */
int index_pin(struct index *ix, const struct index_pin *pin, struct err *err);
/* Remembers that the bytes of a place must go; index_wiped forgets it. */
int index_wipe(struct index *ix, const struct index_place *place, struct err *err);
int index_wiped(struct index *ix, uint64_t id, struct err *err);
/* 0: durable.  -ENOSPC: nothing happened, and it may be tried again.  Any other error: nothing of
 * it is visible now, but whether it survives a restart is unknown. */
int index_commit(struct index *ix, uint64_t next_id, struct err *err);

#endif
