/* space.h - the bytes of all extents: where they lie, which are free, and which are on their way to
 * be free. The store's lock protects it.
 *
 *     in use --space_leave--> freeing --commit--> wiping --wiped--> free
 *                                 '----commit (bytes may stay)-------^
 *
 * Invariants:
 * 1. used_bytes is the sum of the allocators' used bytes, and never above cap_bytes. It counts the
 *    extents of the catalog, those of `freeing` and `wiping`, and reserved space.
 * 2. An extent in `freeing` has left its node, but the index may still name it. So its bytes must
 *    not be overwritten before a commit has dropped its row.
 * 3. An extent in `wiping` has left the index, and its bytes must be overwritten before its space
 *    is given out.
 * 4. A segment whose free space may hold bytes of former extents is soiled (alloc.h).
 *
 * The bounds are set at open and do not change. files_cap_bytes, a bound on all files, is divided
 * into shares:
 *
 *   superblocks      2 blocks in each directory
 *   reserve          1/32, at most 1 MiB
 *   index.db         1/128, and 64 KiB: index_cap_bytes
 *   index.db-wal     the frames before a checkpoint (1/128, 32 KiB to 4 MiB), and those of one
 *                    commit, which writes each page of index.db at most once
 *   segment files    the rest: cap_bytes, if it is lower than the option of that name
 *
 * The index stays in its share because an append evicts chunks when its rows might not fit
 * (space_index_has_room). A file that grew under a higher cap is not shortened. */
#ifndef STORE_SPACE_H
#define STORE_SPACE_H

#include "store/alloc.h"
#include "store/catalog.h"
#include "store/store.h"

struct space {
    struct alloc alloc[STORE_MAX_DEVICES];
    uint64_t used_bytes;
    struct extent *freeing, *wiping; /* lists by extent.next */
    uint64_t freeing_bytes, wiping_bytes;

    uint64_t cap_bytes, files_cap_bytes; /* bounds on extents, and on all files; 0: none */
    uint64_t index_cap_bytes;            /* the index's share; 0: no bound */
    /* Length of the index's log, in frames, at which it is folded; 0: SQLite's default. */
    uint32_t log_frames;
    uint64_t quota_bytes, guarantee_bytes; /* as in store_opts */
};

/* Sets the bounds that the options give. Returns ERR_USAGE if nothing is left for extents. */
int space_bound(struct space *sp, const struct store_opts *o, struct err *err);
void space_deinit(struct space *sp);
/* Forgets everything but the bounds, and begins with empty segments on n_devices devices. */
void space_begin(struct space *sp, int n_devices, uint64_t segment_bytes);

/* Puts an extent that has left its node into `freeing`. */
void space_leave(struct space *sp, struct extent *x);
/* Puts an extent that has left the index into `wiping`. */
void space_wipe_later(struct space *sp, struct extent *x);
/* Gives back the space of an extent that is in no list, and frees the struct. */
void space_give(struct space *sp, struct extent *x);
/* Frees a list of extents that are in no other list, without giving back their space. */
void space_free_list(struct extent *list);

/* Returns whether free space may hold bytes of former extents, now or after the next commit. */
bool space_has_remains(const struct space *sp, int n_devices);
/* Returns whether the index stays in its share if n_new extents with new_bytes in all are appended.
 * index_bytes: bytes of its pages in use. */
bool space_index_has_room(const struct space *sp, const struct catalog *c,
                          uint64_t index_bytes, uint64_t n_new, uint64_t new_bytes);
/* Returns ERR_LIMIT if n more lasting pins than the catalog's would be too many. */
int space_check_pins(const struct space *sp, const struct catalog *c, uint32_t n,
                     struct err *err);

/* Recounts everything. catalog_bytes: bytes of the catalog's extents. */
bool space_audit(const struct space *sp, int n_devices, uint64_t catalog_bytes);

#endif
