/* store_impl.h - the store's own state, shared by the files that implement store.h.
 *
 *   store.c    life cycle, statistics, listing         lookup.c  lookup, release, condemn
 *   append.c   records -> extents on the media         reader.c  reads
 *   commit.c   the barrier, and the end of saving      evict.c   room under cap and quotas
 *   recover.c  directories and index at open           rebuild.c the index from headers
 *   superblocks.c  what each directory says of itself
 *   verify.c   scrub                                   gc.c      garbage collection
 *   pins.c     pins that last                          erase.c   forgetting, wiping
 *   guarantee.c pins that are never broken
 *   remains.c  bytes of former extents in free space     reserve.c  space for erasing
 *   continued.c  what continues an erased text           owed.c    erasures that wait
 *   headers.c  headers of chunks that are served
 *   presence.c whether the folder is still there         snapshot.c  reading beside another process
 *   tier.c     copies in DRAM                            fetch.c   reading ahead into DRAM
 *
 * Locks, in the order in which they may be nested:
 *   erase_lock   one erase (or gc) at a time; held across fsync
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
#include "store/tier.h"

/* Of a segment file, where the options name none. */
#define STORE_SEGMENT_BYTES (1ull << 30)
#define STORE_STUCK_NS      ((int64_t)30 * 1000 * 1000 * 1000)
/* A smaller arena could hold no copy: one may take 1/16. */
#define STORE_MIN_DRAM (1 << 20)

/* Uses not yet written to the index. Beyond this many the newest are not recorded: harmless. */
#define STORE_MAX_TOUCHED 65536
/* Ids are handed out up to a limit that the index knows durably, so that no two extents ever
 * written, committed or not, share one: a rebuild tells old from new by them. */
#define STORE_ID_RESERVE 65536
/* Holds space for erasing on a full disk (reserve.c). */
#define STORE_RESERVE_FILE  "reserve"
#define STORE_RESERVE_BYTES ((uint64_t)1 << 20) /* at most */
/* While this file exists, opening wipes all free space (remains.c). */
#define STORE_WIPE_MARKER "wipe.free"
/* Erasures that wait for the store to be writable (owed.c). */
#define STORE_OWED_FILE "erase.owed"
/* Condemned chunks remembered to answer why they are missing. */
#define STORE_MAX_REASONS 64
/* Chunks whose headers are to be read (headers.c). */
#define STORE_MAX_HEADERS 4096
/* Keys of evicted chunks remembered to tell an evicted chunk from one that never was: one slot per
 * value of the key's low bits, the newest wins. */
#define STORE_EVICTED_SLOTS 8192

/* The row of an extent, and what the next commit writes there. */
struct store_touch {
    uint64_t id;
    struct index_use use;
};

struct store_reason {
    struct sha256 key;
    char text[96];
};

/* When `by` is committed, the partial chunk `key` goes. */
struct store_supersede {
    const struct extent *by; /* PENDING */
    struct sha256 key;
};

/* Erasures that wait (owed.c): n entries, of which the file has the first n_noted. */
struct store_owed {
    uint8_t *entries;
    uint32_t n, n_noted;
};

/* Which file a name stood for at open. */
struct store_file_id {
    uint64_t device, inode;
    bool known;
};

struct store {
    struct io *io; /* NULL: DRAM */
    char *dirs[STORE_MAX_DEVICES];
    int n_dirs;
    struct io_file *lock_file; /* in the first directory */
    /* Read beside another process: memory with a copy of the index; else NULL. */
    struct io *snapshot;
    bool is_beside;
    char holder[200]; /* that process, or "" */
    struct media *media;
    struct tier *tier;        /* copies in DRAM of what is on disk; NULL: none */
    struct store_want *wants; /* of waiting requests, the earliest turn first (fetch.c) */
    int n_wants;
    struct index *index; /* NULL: DRAM */
    char *index_path;
    struct store_file_id superblock_id[STORE_MAX_DEVICES], index_id;
    uint8_t uuid[STORE_UUID_BYTES];
    uint32_t sb_version;
    uint64_t cap_bytes, files_cap_bytes; /* bounds on extents, and on all files; 0: none */
    uint64_t index_cap_bytes; /* share of the index in files_cap_bytes; 0: no bound */
    uint32_t log_frames;      /* of the index's log, before it is folded; 0: SQLite's */
    uint64_t quota_bytes, guarantee_bytes; /* store_opts */
    int64_t stuck_ns;
    bool read_only;

    pthread_mutex_t erase_lock, commit_lock, index_lock, lock;
    pthread_cond_t writer_left; /* with lock: some node lost its has_writer */

    struct catalog catalog;
    struct alloc alloc[STORE_MAX_DEVICES];
    struct extent *pending; /* written, oldest first: what the next commit publishes */
    struct extent **pending_end;
    struct store_supersede *supersedes;
    uint32_t n_supersedes;
    struct extent *freeing; /* off their nodes, still in the index */
    uint64_t freeing_bytes;
    struct extent
        *wiping; /* out of the index; their bytes must go before their space is free */
    uint64_t wiping_bytes;
    uint64_t pending_bytes, n_pending; /* of extents in `pending` */
    uint64_t index_bytes; /* pages of the index that are in use, as committed */
    uint64_t used_bytes;  /* all extents, reserved ones included; never above cap_bytes */
    uint64_t next_id, id_limit; /* next_id <= id_limit */
    /* Nothing was committed since open.  What a killed process left in the index may be visible and
     * yet not durable, so the first commit is never skipped. */
    bool is_fresh;
    bool was_rebuilt; /* the index was damaged at open, and was made anew */
    struct store_touch *touched;
    uint32_t n_touched;
    struct index_pin *pin_changes; /* for the index to learn of with the next commit */
    uint32_t n_pin_changes;
    int64_t next_expiry_wall_s; /* no lasting pin runs out before */

    struct err saving_err;  /* code != 0: saving is off, and why */
    struct store_owed owed; /* under erase_lock; so are these: */
    void (*on_erased)(void *arg, const struct sha256 *keys, int n);
    void *on_erased_arg;
    bool owes_remains;      /* an erase met a full disk, and free space is to be wiped */
    struct sha256 *headers; /* [n_headers], of STORE_MAX_HEADERS; NULL: none yet */
    uint32_t n_headers;
    struct sha256 expected; /* the caller's fingerprint, see store_expect */
    bool has_expected;
    struct store_reason reasons[STORE_MAX_REASONS];
    uint32_t n_reasons; /* ever; the ring's next slot is n_reasons % STORE_MAX_REASONS */

    uint64_t evicted[STORE_EVICTED_SLOTS]; /* 0: none */

    uint64_t appended_bytes, read_bytes, n_hits, n_corrupt;
    uint64_t misses[STORE_MISSES], evictions[STORE_EVICTS], n_evicted_pinned;
    uint64_t n_guarantees_broken;
    _Atomic uint64_t n_checksum_failures, n_read_failures; /* counted without a lock */
};

/* Functions marked [lock] are called with s->lock held. */

/* At the end. */
void store_free_wants(struct store *s);
/* [lock] A lookup has found the node: its headers are to be read, once since open. */
void store_note_headers(struct store *s, struct chunk_node *n);
/* Reads headers that were noted, of at most `most` chunks, and condemns the chunks
 * of damaged ones. */
void store_check_headers(struct store *s, int most);
/* [lock] The next commit writes the node's last use to the index, and whether it is dropped. */
void store_note_use(struct store *s, const struct chunk_node *n);
/* [lock] The node is used now. */
void store_touch_node(struct store *s, struct chunk_node *n, const struct store_use *use);
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
void store_evict_node(struct store *s, struct chunk_node *n, enum store_evict why);
/* [lock] Removes a partial chunk that nothing uses, because the full one is committed. */
void store_drop_superseded(struct store *s, const struct sha256 *key);
/* [lock] Whether the chunk was evicted, as far as that is remembered. */
bool store_was_evicted(const struct store *s, const struct sha256 *key);
void store_forget_eviction(struct store *s, const struct sha256 *key);
/* [lock] The chunk is stored again: why it was missing before says nothing of a later miss. */
void store_forget_reasons(struct store *s, const struct sha256 *key);

/* store_each, also for chunks of which nothing is committed yet. */
int store_each_appended(struct store *s, int (*fn)(void *arg, const struct store_entry *e),
                        void *arg, struct err *err);
/* Sets the bounds on extents, index and log that the options give. */
int store_cap_share(struct store *s, const struct store_opts *o, struct err *err);
/* [lock] ERR_LIMIT where n more pins would be too many. */
int store_check_pins(const struct store *s, uint32_t n, struct err *err);
/* [lock] Whether the index stays in its share when extents of n_bytes are appended,
 * one on each device. */
bool store_index_has_room(const struct store *s, uint64_t n_bytes);
/* [lock, dropped while the index commits] Makes n_bytes fit under the cap by evicting.
 * newcomer, here and below: the key of the chunk that wants the room, where it may be
 * refused (store_chunk); else NULL. */
int store_make_room(struct store *s, uint64_t n_bytes, const struct sha256 *newcomer,
                    struct err *err);
/* [lock, dropped while the index commits] The disk has no room for n_bytes: frees as much of
 * the store's own by evicting.  False where that may not be (there is no cap) or cannot be. */
bool store_make_space(struct store *s, uint64_t n_bytes, enum store_evict why,
                      const struct sha256 *newcomer);
/* [lock] Makes n_bytes fit into an owner's quota, likewise; evicts that owner's chunks only. */
int store_make_owner_room(struct store *s, uint16_t owner_idx, uint64_t n_bytes,
                          const struct sha256 *newcomer, struct err *err);

/* [lock] Ends the lasting pins whose time has come. */
void store_expire_pins(struct store *s);
/* Evicts what has expired while the store was closed. A failure is left for the next time. */
void store_expire_at_open(struct store *s);
/* [lock] Notes a change of a lasting pin for the next commit. */
void store_note_pin(struct store *s, const struct index_pin *pin);
/* [lock] Pins a key in memory; returns its node. */
struct chunk_node *store_set_pin(struct store *s, const struct index_pin *pin);
/* Returns the most bytes that may be guaranteed under a cap; 0: any. */
uint64_t store_guarantee_limit(uint64_t cap_bytes);
/* [lock] ERR_LIMIT where the cap is below what is guaranteed. */
int store_check_guarantees(const struct store *s, struct err *err);
/* [lock] Counts n guarantees that damage has broken, and says so in the log. */
void store_guarantee_broken(struct store *s, uint32_t n, const char *reason);
/* Enters what the index says of pins, and of places to be wiped, at open. */
int store_load_pins(struct store *s, struct err *err);
int store_load_wipes(struct store *s, struct err *err);

/* [lock] What n alone may keep doomed, and what lives on without it: the nearest doomed node
 * above that has extents, or is in use. To be asked before n goes; NULL: none. */
struct chunk_node *store_doomed_above(const struct chunk_node *n);
/* [lock] A doomed node that nothing uses anymore is taken apart, and what it alone kept doomed. */
void store_settle_doomed(struct store *s, struct chunk_node *n);
/* Wipes what is to be wiped, and gives its space back. An error leaves it for the next time. */
int store_wipe(struct store *s, struct err *err);
/* The same where it is not what was asked for: what an erase before a crash, or of
 * chunks in use, has left. A failure is no reason not to open or commit: the next erase,
 * commit, gc or open tries again. */
void store_wipe_rest(struct store *s);
/* Marks, durably, that free space must be wiped, where it may hold bytes of former extents: an
 * erase that a crash cuts off is then finished by the next open.  A full disk is no error: the
 * mark is a second line, and the wiping itself frees space. */
int store_mark_remains(struct store *s, struct err *err);
/* Wipes the free space that may hold bytes of former extents, syncs, and takes the mark away. */
int store_wipe_remains(struct store *s, struct err *err);
/* At open: every free byte of the segment files may be a remain; wipes them where
 * the mark says so. */
void store_soil_all(struct store *s);
void store_finish_erase(struct store *s);
/* [lock] Takes keys[0..n) off the catalog as store_erase does, from the last one
 * on: erased, doomed, or, from the first one that something else continues, left
 * alone.  is_all: keys[] are an owner's, parents first.  What continues one of them is the owner's
 * too, and in use or just appended, so the chunk is doomed.  taken (NULL allowed) [n]: the keys of
 * those that were erased or doomed, children first.  Returns how many. */
int store_take_chain(struct store *s, const struct sha256 *keys, int n, bool is_all,
                     struct sha256 *taken, struct store_erased *out);
/* Whether nothing can be saved or erased until this store is opened again.  Takes lock. */
bool store_is_unwritable(struct store *s);
/* [erase_lock] Remembers the erasure of chunks that have left the catalog, of all of an owner's
 * where owner is not NULL, and fills in *out. */
void store_owe(struct store *s, const struct sha256 *taken, int n, const uint64_t *owner,
               struct store_erased *out);
/* At open: takes the chunks whose erasure waits off the catalog; erases them in the files. */
int store_load_owed(struct store *s, struct err *err);
int store_pay_owed(struct store *s, struct err *err);
/* The keys of an owner's chunks, parents first; the caller frees them. */
int store_owned_keys(struct store *s, uint64_t owner, struct sha256 **keys, int *n,
                     struct err *err);
/* [lock] Frees a list of extents that are nowhere else, without giving their space back. */
void store_free_list(struct extent *list);

/* Commits what was evicted and, as `what` says, what was appended.  Uses and ids ride along, or are
 * reason enough by themselves. */
enum {
    STORE_COMMIT_PENDING = 1 << 0,
    STORE_COMMIT_TOUCHED = 1 << 1,
    STORE_COMMIT_IDS = 1 << 2,
    STORE_COMMIT_PINS = 1 << 3,
    /* Where nothing has been committed since open, something is in any case, so that what
     * the index says is durable: before it is promised, and before bytes are destroyed
     * that an older index may name. */
    STORE_COMMIT_FRESH = 1 << 4,
    /* It is part of freeing space: on a full disk it may take the reserve. */
    STORE_COMMIT_RESERVE = 1 << 5,
};
int store_commit_run(struct store *s, unsigned what, struct err *err);

/* [lock] A device has failed for good: drops what was not committed and refuses to save from
 * now on. The caller holds commit_lock too. */
void store_end_saving(struct store *s, int rc, const struct err *why);

/* [lock] ERR_... where this store cannot save. */
int store_can_save(struct store *s, struct err *err);

/* The records of an extent: from the index, else from its header. Takes index_lock. `out` has room
 * for x->n_records.  The chunk must be pinned. */
int store_load_records(struct store *s, const struct extent *x, struct chunk_record *out,
                       struct err *err);

/* Copies the index of a store that another process has open into s->snapshot. */
#define STORE_SNAPSHOT_PATH "/index.db"
int store_snapshot_index(struct store *s, struct err *err);
/* Remembers which files the store's names stand for; -ENOENT where that has changed since. */
void store_note_files(struct store *s);
int store_check_present(struct store *s, struct err *err);
/* [lock] Cuts the files behind their last used bytes. */
void store_cut_files(struct store *s);
/* The same at open, where they exceed the cap. */
void store_cut_to_cap(struct store *s);
/* Fills the reserve, as far as there is space. */
void store_fill_reserve(struct store *s);
/* Gives the reserve's space up; true where there was some. */
bool store_release_reserve(struct io *io, const char *dir);

char *store_path(const char *dir, const char *name); /* "dir/name"; free it */

/* [lock] Pins a node, and returns the hit. */
struct store_hit store_pin_node(struct store *s, struct chunk_node *n);
struct chunk_marks store_marks_of(const int32_t *tokens,
                                  int n); /* n <= STORE_CHUNK_TOKENS */

/* Reads and checks an extent's header against what the index says of it (key, place, id). `block`
 * is 4096 aligned bytes. */
int store_read_header(struct store *s, const struct extent *x, void *block,
                      struct chunk_header *out, struct err *err);

/* Opens or creates directories, lock, media and index of a store over files, and fills catalog and
 * allocators. */
int store_recover(struct store *s, const struct store_opts *opts, struct err *err);

/* Whether the segment file of a row that has been entered reaches to the end of its extent;
 * what is said of a chunk where it does not. */
bool store_row_is_in_file(const struct store *s, const struct index_row *row);
#define STORE_NOT_IN_FILE "its segment file is missing or too short"

struct superblock;
/* Before anything is made or locked: refuses directories that belong to no store together,
 * where those that are there show it (ERR_MISMATCH, ERR_UNSUPPORTED).  What it cannot read,
 * store_open_superblocks will tell of. */
int store_check_dirs(const struct store_opts *opts, struct err *err);
/* What the superblocks of opts->dirs say; those of a new store are written, a damaged one
 * again, and those of an earlier version raised (unless opts->read_only).  ERR_CORRUPT,
 * ERR_MISMATCH (not the directories of one store), ERR_UNSUPPORTED, ERR_NOT_FOUND. */
int store_open_superblocks(const struct store_opts *opts, struct superblock *out,
                           struct err *err);
/* Compares the superblocks with what they must be; reports each that differs. */
int store_check_superblocks(struct store *s, void (*report)(void *arg, const char *what),
                            void *arg, uint64_t *n_bad, struct err *err);

/* Makes a new index from the extents' headers: s->index is open and empty of transactions after. */
int store_rebuild(struct store *s, const char *dir, const struct index_meta *meta,
                  struct err *err);

/* Has the index rebuilt by the next open, as far as the device lets it. */
void store_want_rebuild(struct store *s);

/* Recounts catalog, allocators and bytes; false where they do not add up. Takes lock. */
bool store_audit(struct store *s);

#endif
