/* store_impl.h - the store's own state, shared by the files that implement store.h.
 *
 *   store.c    life cycle, statistics, listing         lookup.c  lookup, release, condemn
 *   append.c   records -> extents on the media         reader.c  reads
 *   commit.c   the barrier, and the end of saving      evict.c   room under the cap
 *   recover.c  directories and index at open           rebuild.c the index from headers
 *   verify.c   scrub and gc
 *
 * Locks, in the order in which they may be nested:
 *   commit_lock  one commit (or gc) at a time; held across fsync
 *   index_lock   the index connection; held across the index's fsync
 *   lock         everything else here; never held during I/O, except by gc */
#ifndef STORE_STORE_IMPL_H
#define STORE_STORE_IMPL_H

#include <pthread.h>

#include "store/alloc.h"
#include "store/bugs.h"
#include "store/catalog.h"
#include "store/index.h"
#include "store/media.h"
#include "store/store.h"

/* Uses not yet written to the index. Beyond this many the newest are not recorded: harmless. */
#define STORE_MAX_TOUCHED 65536
/* Ids are handed out up to a limit that the index knows durably, so that no two extents ever written,
 * committed or not, share one: a rebuild tells old from new by them. */
#define STORE_ID_RESERVE 65536
/* Condemned chunks remembered to answer why they are missing. */
#define STORE_MAX_REASONS 64

struct store_touch {
    uint64_t id, tick;
    uint32_t used_wall_s;
};

struct store_reason {
    struct sha256 key;
    char text[96];
};

struct store {
    struct io *io; /* NULL: DRAM */
    char *dirs[STORE_MAX_DEVICES];
    int n_dirs;
    struct io_file *lock_file; /* in the first directory */
    struct media *media;
    struct index *index; /* NULL: DRAM */
    char *index_path;
    uint8_t uuid[STORE_UUID_BYTES];
    uint64_t cap_bytes;
    bool read_only;

    pthread_mutex_t commit_lock, index_lock, lock;
    pthread_cond_t writer_left; /* with lock: some node lost its has_writer */

    struct catalog catalog;
    struct alloc alloc[STORE_MAX_DEVICES];
    struct extent *pending; /* written, oldest first: what the next commit publishes */
    struct extent **pending_end;
    struct extent *freeing; /* off their nodes, still in the index */
    uint64_t freeing_bytes;
    uint64_t used_bytes; /* all extents, reserved ones included; never above cap_bytes */
    uint64_t next_id, id_limit; /* next_id <= id_limit */
    /* Nothing was committed since open.  What a killed process left in the index may be visible and
     * yet not durable, so the first commit is never skipped. */
    bool is_fresh;
    struct store_touch *touched;
    uint32_t n_touched;

    struct err saving_err;  /* code != 0: saving is off, and why */
    struct sha256 expected; /* the caller's fingerprint, see store_expect */
    bool has_expected;
    struct store_reason reasons[STORE_MAX_REASONS];
    uint32_t n_reasons; /* ever; the ring's next slot is n_reasons % STORE_MAX_REASONS */

    uint64_t appended_bytes, read_bytes, n_hits, n_misses, n_evicted, n_corrupt;
};

/* Functions marked [lock] are called with s->lock held. */

/* [lock] Adds a use of the node, for the index to learn of with the next commit. */
void store_touch_node(struct store *s, struct chunk_node *n);
/* [lock] Takes an extent off its node (which may go) and queues its space to be freed. */
void store_free_extent(struct store *s, struct extent *x);
/* [lock] Gives the space of an extent that is nowhere anymore back, and frees the struct. */
void store_give_extent(struct store *s, struct extent *x);
/* [lock] Frees the loaded records of an unpinned node's committed extents. */
void store_unload_node(struct store *s, struct chunk_node *n);
/* Loads the tables of records that a pinned node lacks. */
int store_load_node(struct store *s, struct chunk_node *n, struct err *err);
/* [lock] One unpin: at the last one dead extents go and records are unloaded. */
void store_unpin(struct store *s, struct chunk_node *n);
/* [lock] Condemns; the node may be gone afterwards unless it is pinned. */
void store_condemn_node(struct store *s, struct chunk_node *n, const char *reason);

/* [lock] Takes all extents off a node that nothing uses; the node is gone or a mere name. */
void store_evict_node(struct store *s, struct chunk_node *n);

/* [lock, dropped while the index commits] Makes n_bytes fit under the cap by evicting. */
int store_make_room(struct store *s, uint64_t n_bytes, struct err *err);

/* Commits what was evicted and, as `what` says, what was appended.  Uses and ids ride along, or are
 * reason enough by themselves. */
enum {
    STORE_COMMIT_PENDING = 1 << 0,
    STORE_COMMIT_TOUCHED = 1 << 1,
    STORE_COMMIT_IDS = 1 << 2,
};
int store_commit_run(struct store *s, unsigned what, struct err *err);

/* [lock] A device has failed for good: drops what was not committed and refuses to save from now on. The
 * caller holds commit_lock too. */
void store_end_saving(struct store *s, int rc, const struct err *why);

/* [lock] ERR_... where this store cannot save. */
int store_can_save(struct store *s, struct err *err);

/* The records of an extent: from the index, else from its header. Takes index_lock. `out` has room
 * for x->n_records.  The chunk must be pinned. */
int store_load_records(struct store *s, const struct extent *x, struct chunk_record *out,
                       struct err *err);

/* Reads and checks an extent's header against what the index says of it (key, place, id). `block`
 * is 4096 aligned bytes. */
int store_read_header(struct store *s, const struct extent *x, void *block,
                      struct chunk_header *out, struct err *err);

/* Opens or creates directories, lock, media and index of a store over files, and fills catalog and
 * allocators. */
int store_recover(struct store *s, const struct store_opts *opts, struct err *err);

/* Compares the superblocks with what they must be; reports each that differs. */
int store_check_superblocks(struct store *s, void (*report)(void *arg, const char *what),
                            void *arg, uint64_t *n_bad, struct err *err);

/* Makes a new index from the extents' headers: s->index is open and empty of transactions after. */
int store_rebuild(struct store *s, const char *dir, const struct index_meta *meta,
                  struct err *err);

/* Recounts catalog, allocators and bytes; false where they do not add up. Takes lock. */
bool store_audit(struct store *s);

#endif
