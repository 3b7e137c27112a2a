/* repack.h - packs chunks that were stored as they are: those that were saved under load, or with
 * packing off.
 *
 *     list of full chunks and snapshots -> parcel_read -> pack_run of each record
 *                         -> store_append (replaces)
 *                         -> after some chunks, or for want of room: store_commit
 *
 * Lookups find the unpacked form before the commit and the packed one after it. A crash leaves one
 * of the two. Both need room until the commit, so a full store packs nothing. Packing evicts
 * nothing and counts no use; pins and times stay. The type of the numbers is not stored, so it is
 * found by trying. A record that does not shrink stays. One thread at a time. */
#ifndef SAVE_REPACK_H
#define SAVE_REPACK_H

#include "pack/pack.h"
#include "store/store.h"

struct repack;

struct repack_counts {
    uint64_t n_chunks; /* chunks that were packed */
    /* chunks that had no room for both forms, or changed meanwhile */
    uint64_t n_left;
    uint64_t bytes_before, bytes_after; /* of the records of packed chunks */
};

/* Lists the full chunks and snapshots. The store must outlive the result. */
int repack_open(struct store *s, struct repack **out, struct err *err);
void repack_close(struct repack *r); /* commits nothing; NULL is allowed */
/* Looks at the next chunk, and packs it if it is not packed. *more gets whether others follow. When
 * none does, all is committed. Returns 0 or the store's error. */
int repack_step(struct repack *r, bool *more, struct err *err);
void repack_counts(const struct repack *r, struct repack_counts *out);

/* Packs a record of x->n_bytes at `from` into `to`, which has the same size, and points *x to it.
 * Returns false and leaves *x alone if the packed bytes would take as many blocks of the store. */
bool repack_record(struct store_record *x, enum pack_type type, const void *from, void *to);

#endif
