/* store_impl.h - the parts of a store, and what the files that implement store.h share.
 *
 * The state lies in parts. Each has a header that says its invariants, and each is changed by the
 * functions of that header or by the files beside it alone:
 *
 *   home.h     where the files lie, and who the store is     home.c superblocks.c recover.c
 *   catalog.h  chunks and their extents                      nodes.c
 *   space.h    the bytes of extents, used and free           wipe.c evict.c
 *   ledger.h   the index, and what the next commit writes    commit.c
 *   erasing.h  what erasures refuse, and what they owe       erase.c owed.c continued.c
 *   tier.h     copies in DRAM                                fetch.c
 *   whys.h     why a chunk is missing                        lookup.c
 *
 * Files call only files before them in this list (tools/tidy/store_order.py):
 *
 *   owner_keys.c                                          one small file
 *   truncation.c chain.c chunk.c superblock.c alloc.c     no store, no files
 *   expiry.c held.c erasures.c whys.c
 *   placement_window.c placement_guard.c placement_trial.c placement_learn.c      decisions
 *   placement_price.c placement.c read_ahead.c
 *   index.c files.c ahead.c arena.c dram.c                             storage
 *   catalog.c home.c space.c ledger.c tier.c                                      parts
 *   nodes.c        what becomes of a chunk
 *   listing.c      lists chunks                          advise.c     advice on caps
 *   lookup.c       lookup and release                    nearest.c    why a context differs
 *   fetch.c        reading ahead into DRAM               reader.c     reads
 *   superblocks.c  superblocks                           rebuild.c    the index from headers
 *   commit.c       the barrier, and the end of saving
 *   wipe.c         overwrites erased and former bytes
 *   pins.c         lasting pins                          guarantee.c  pins that are never broken
 *   evict.c        room under cap and quotas             gc.c         garbage collection
 *   append.c       saving                                parcel.c     chunks as bytes
 *   owed.c erase.c continued.c                           erasing
 *   recover.c      directories and index at open         verify.c     scrub
 *   store.c        life cycle, statistics
 *
 * A save goes down the list once: append.c finds room (evict.c), writes, and puts extents on nodes
 * and into the ledger; commit.c publishes them. So does a fetch: lookup.c pins nodes, reader.c
 * reads their extents or copies.
 *
 * Locks, in the order in which they may be nested:
 *   erase_lock   erasing.h
 *   wipe_lock    erasing.h
 *   commit_lock  one commit (or gc) at a time; held across fsync
 *   index_lock   ledger.h
 *   lock         catalog, space, ledger, marks of erasures, tier and whys, which must agree with
 *                each other; never held during I/O, except by gc */
#ifndef STORE_STORE_IMPL_H
#define STORE_STORE_IMPL_H

#include <pthread.h>

#include "store/read_ahead.h"
#include "store/alloc.h"
#include "store/bugs.h"
#include "store/catalog.h"
#include "store/erasing.h"
#include "store/home.h"
#include "store/index.h"
#include "store/ledger.h"
#include "store/media.h"
#include "store/space.h"
#include "store/store.h"
#include "store/tier.h"
#include "store/whys.h"

/* Size of a segment file, if the options give none. */
#define STORE_SEGMENT_BYTES (1ull << 30)
#define STORE_STUCK_NS      ((int64_t)30 * 1000 * 1000 * 1000)
/* Smallest arena for copies. A copy takes at most 1/16 of it, so a smaller one holds none. */
#define STORE_MIN_DRAM (1 << 20)
/* While this file exists, opening wipes all free space (wipe.c). */
#define STORE_WIPE_MARKER "wipe.free"
/* File with the erasures that wait for the store to be writable (owed.c). */
#define STORE_OWED_FILE "erase.owed"
/* Most chunks whose headers wait to be read (lookup.c). */
#define STORE_MAX_HEADERS 4096

/* Numbers for store_stats that no part counts. */
struct store_counts {
    uint64_t appended_bytes, read_bytes, n_hits, n_corrupt;
    uint64_t misses[STORE_MISSES], evictions[STORE_EVICTS], n_evicted_pinned;
    uint64_t n_guarantees_broken;
    _Atomic uint64_t n_checksum_failures, n_read_failures; /* counted without a lock */
};

struct store {
    struct home home;
    struct media *media;
    pthread_mutex_t commit_lock, lock;
    /* Condition for `lock`. Signalled when an append ends, that is, when a node's has_writer
     * becomes false. */
    pthread_cond_t writer_left;

    struct catalog catalog;
    struct space space;
    struct ledger ledger;
    struct erasing erasing;
    struct whys whys;
    struct tier *tier; /* copies of disk extents in DRAM; NULL: none */
    struct {           /* store_keep_apart; no layers: nothing is kept apart */
        struct sha256 of;
        struct layer_set layers;
    } apart;
    /* Chunks that waiting requests need: struct store_want (fetch.c). */
    struct read_ahead_queue wants;

    struct err saving_err;      /* code != 0: saving has ended; the message says why */
    int64_t next_expiry_wall_s; /* earliest time at which a lasting pin may end */
    /* [n_headers] keys whose headers wait to be read, with room for STORE_MAX_HEADERS; NULL: none
     * was noted yet (lookup.c). */
    struct sha256 *headers;
    uint32_t n_headers;
    struct store_counts counts;
    _Atomic bool distrusts_page_cache; /* a record in it was damaged */
};

/* Functions marked [lock] are called with s->lock held. */

/* Returns how many extents an append may write. */
static inline int store_most_extents(const struct store *s)
{
    return (layer_set_is_empty(&s->apart.layers) ? 1 : 2) * s->media->n_devices;
}

/* Frees all wants; called at close. */
void store_free_wants(struct store *s);
/* Reads the headers of some noted chunks, and condemns chunks with damaged ones. */
void store_check_headers(struct store *s);
/* [lock] Marks the node as used now. */
void store_touch_node(struct store *s, struct chunk_node *n, const struct store_use *use);
/* [lock] Takes an extent off its node (which may be freed) and queues its space to be freed. */
void store_free_extent(struct store *s, struct extent *x);
/* [lock] Frees the loaded records of an unpinned node's committed extents. */
void store_unload_node(struct store *s, struct chunk_node *n);
/* Loads the missing record tables of a pinned node. */
int store_load_node(struct store *s, struct chunk_node *n, struct err *err);
/* [lock] Releases one pin. The last one frees the node's DEAD extents and unloads its records. */
void store_unpin(struct store *s, struct chunk_node *n);
/* [lock] Condemns the node. It may be freed unless it is pinned. */
void store_condemn_node(struct store *s, struct chunk_node *n, const char *reason);

/* [lock] Takes all extents off a node that is not in use. It is freed, or stays as a name. */
void store_evict_node(struct store *s, struct chunk_node *n, enum store_evict why);
/* [lock] Removes a partial chunk that is not in use, because the chunk that replaces it is
 * committed. */
void store_drop_superseded(struct store *s, const struct sha256 *key);

/* Extends opts->dirs and n_dirs from the directories of process 0 to those of all processes. The
 * folders of the others lie inside process 0's directories. An existing store takes their number
 * from its superblock, a new one from opts->n_processes. names[] begins with NULL; the caller frees
 * the names, also after an error. Returns -EREMOTE if a directory of an existing store is missing.
 */
int store_all_dirs(struct store_opts *opts, char *names[STORE_MAX_DEVICES],
                   struct err *err);

/* Like store_each, but also visits chunks that have only uncommitted extents. */
int store_each_appended(struct store *s, int (*fn)(void *arg, const struct store_entry *e),
                        void *arg, struct err *err);
/* [lock, dropped while the index commits] Makes n_bytes fit under the cap by evicting. newcomer,
 * here and in the next two functions: key of the chunk that wants the room, if it may be refused
 * (store_chunk); else NULL. */
int store_make_room(struct store *s, uint64_t n_bytes, const struct sha256 *newcomer,
                    struct err *err);
/* [lock, dropped while the index commits] Frees n_bytes of the store by evicting, because the disk
 * has no room for them. Returns false if it must not (there is no cap) or cannot. */
bool store_make_space(struct store *s, uint64_t n_bytes, enum store_evict why,
                      const struct sha256 *newcomer);
/* [lock] Makes n_bytes fit into an owner's quota by evicting chunks of that owner. Works like
 * store_make_room otherwise. */
int store_make_owner_room(struct store *s, uint16_t owner_idx, uint64_t n_bytes,
                          const struct sha256 *newcomer, struct err *err);

/* [lock] Ends the lasting pins whose time has come. */
void store_expire_pins(struct store *s);
/* [lock] Sets a pin in memory. Returns the key's node. */
struct chunk_node *store_set_pin(struct store *s, const struct index_pin *pin);
/* Returns how many bytes may be guaranteed in a store with this cap; 0: no bound. */
uint64_t store_guarantee_limit(uint64_t cap_bytes);
/* [lock] Returns ERR_LIMIT if the cap is below the guaranteed bytes. */
int store_check_guarantees(const struct store *s, struct err *err);
/* [lock] Counts n guarantees that damage has broken, and logs them. */
void store_guarantee_broken(struct store *s, uint32_t n, const char *reason);
/* At open: the first enters the index's lasting pins, the second the places to be wiped. */
int store_load_pins(struct store *s, struct err *err);
int store_load_wipes(struct store *s, struct err *err);

/* [lock] Returns the nearest doomed node above n that has extents or is in use; NULL if there is
 * none. That node is not freed with n, and n may be all that keeps it. Call it before n is
 * freed. */
struct chunk_node *store_doomed_above(const struct chunk_node *n);
/* [lock] Dooms the chunks that are being written and that come too late. Call it after a mark was
 * set in s->erasing.marks. Returns their number. */
int store_doom_writing(struct store *s);
/* [lock] Erases a doomed node that is no longer in use, and doomed nodes that only it kept. */
void store_settle_doomed(struct store *s, struct chunk_node *n);
/* Wipes the places that wait to be wiped, and gives their space back. After an error the next call
 * tries again. Takes wipe_lock. */
int store_wipe(struct store *s, struct err *err);
/* Wipes the first of these places only, so that a thread that needs room does not wait for all. */
int store_wipe_some(struct store *s, struct err *err);
/* Wipes some of the places that earlier erases have left, because a crash cut them off or because
 * the chunks were in use, unless another thread wipes. A failure does not stop the open or commit
 * that calls it: the next erase, commit, gc or open tries again. */
void store_wipe_rest(struct store *s);
/* Marks durably that free space must be wiped, if it may hold bytes of former extents. If a
 * crash cuts an erase off, the next open then finishes it. A full disk is no error: the mark is
 * a second line of defence, and the wiping itself frees space. */
int store_mark_remains(struct store *s, struct err *err);
/* Wipes the free space that may hold bytes of former extents, syncs it, and removes the durable
 * mark. */
int store_wipe_remains(struct store *s, struct err *err);
/* Commits, wipes the places that wait, then the remains. */
int store_commit_wiped(struct store *s, unsigned what, struct err *err);
/* Wipes the free space behind the used bytes of each segment, so that store_cut_files finds nothing
 * to overwrite. A failure is left to store_cut_files. */
void store_wipe_tails(struct store *s);
/* At open: treats every free byte of the segment files as if it held bytes of a former extent. */
void store_soil_all(struct store *s);
/* At open: wipes the free space that may hold bytes of former extents, if the mark exists. */
void store_finish_erase(struct store *s);
/* [lock] Takes the chunks of keys[0..n) off the catalog as store_erase does, the last one first:
 * each is erased, or doomed if it is in use. Stops at a chunk that a chunk outside of keys[]
 * continues: this chunk and all before it stay.
 *
 * is_all: keys[] are all chunks of an owner, parents first. Then no chunk stays: if another chunk
 * still continues one, that chunk also belongs to the owner, and is in use or just appended, so the
 * one before it is doomed.
 *
 * The chunks' snapshots go with them (store_state_key). taken (NULL allowed) [2 * n] receives the
 * keys of chunks that were erased or doomed, children first. Returns the number of keys in
 * `taken`. */
int store_take_chain(struct store *s, const struct sha256 *keys, int n, bool is_all,
                     struct sha256 *taken, struct store_erased *out);
/* [erase_lock] Notes the erasure of chunks that have left the catalog, of all chunks of an owner
 * if owner is not NULL, and fills in *out. */
void store_owe(struct store *s, const struct sha256 *taken, int n, const uint64_t *owner,
               struct store_erased *out);
/* At open: takes the chunks of waiting erasures off the catalog. */
int store_load_owed(struct store *s, struct err *err);
/* At open for writing: erases from the files all chunks whose erasure waits. */
int store_pay_owed(struct store *s, struct err *err);
/* Lists the keys of an owner's chunks, parents first. The caller frees them. */
int store_owned_keys(struct store *s, uint64_t owner, struct sha256 **keys, int *n,
                     struct err *err);

/* Commits evictions and, according to the bits of `what`, appended chunks. Any commit also writes
 * uses and ids. With the bits TOUCHED and IDS there is a commit even if nothing else has
 * changed. */
enum {
    STORE_COMMIT_PENDING = 1 << 0,
    STORE_COMMIT_TOUCHED = 1 << 1,
    STORE_COMMIT_IDS = 1 << 2,
    STORE_COMMIT_PINS = 1 << 3,
    /* Commits something even if nothing has changed since open, so that the index's content is
     * durable: before durability is promised, and before bytes are destroyed that an older index
     * may name. */
    STORE_COMMIT_FRESH = 1 << 4,
    /* The commit is part of freeing space: on a full disk it may release the reserve. */
    STORE_COMMIT_RESERVE = 1 << 5,
};
int store_commit_run(struct store *s, unsigned what, struct err *err);

/* [lock] Ends saving because a device has failed for good: drops uncommitted chunks and refuses
 * to save from now on. The caller also holds commit_lock. */
void store_end_saving(struct store *s, int rc, const struct err *why);

/* [commit_lock] Makes everything that was written durable. A failure is final: it ends saving,
 * since appended bytes may be among the lost ones. */
int store_sync_files(struct store *s, struct err *err);

/* As store_sync_files, and takes commit_lock. */
int store_sync_wiped(struct store *s, struct err *err);
/* Folds the index's log into the index, and overwrites and cuts the log. Takes index_lock. */
int store_fold_log(struct store *s, struct err *err);

/* Returns whether nothing can be saved or erased before the store is opened again. Takes lock. */
bool store_is_unwritable(struct store *s);
/* [lock] Returns 0, or the code of the error that keeps this store from saving. */
int store_can_save(struct store *s, struct err *err);

/* Returns the n-th LIVE extent of a pinned chunk, or NULL if it has fewer. */
const struct extent *store_extent_nth(struct store *s, const struct store_hit *hit, int n);

/* Loads the records of an extent from the index, else from its header. Takes index_lock. `out`
 * has room for x->n_records. The chunk must be pinned. */
int store_load_records(struct store *s, const struct extent *x, struct chunk_record *out,
                       struct err *err);

/* [lock] Cuts the files behind their last used bytes. */
void store_cut_files(struct store *s);
/* At open: cuts the files behind their last used bytes if they exceed the cap. */
void store_cut_to_cap(struct store *s);

/* [lock] Pins a node, and returns the hit. */
struct store_hit store_pin_node(struct store *s, struct chunk_node *n);
/* Returns the marks of n <= STORE_CHUNK_TOKENS tokens (nearest.c). */
struct chunk_marks store_marks_of(const int32_t *tokens, int n);

/* Reads an extent's header and checks it against the index (key, place, id). `block` is 4096
 * aligned bytes. */
int store_read_header(struct store *s, const struct extent *x, void *block,
                      struct chunk_header *out, struct err *err);

/* Opens or creates the directories, lock, media and index of a store in files, and fills catalog
 * and allocators. */
int store_recover(struct store *s, const struct store_opts *opts, struct err *err);

/* Returns whether the segment file of a loaded row reaches to the end of its extent. If not,
 * STORE_NOT_IN_FILE is the reason for the miss. */
bool store_row_is_in_file(const struct store *s, const struct index_row *row);
#define STORE_NOT_IN_FILE "its segment file is missing or too short"

struct superblock;
/* Refuses directories that are not the directories of one store, before any file is made or locked.
 * It judges by the superblocks that it can read (ERR_MISMATCH, ERR_UNSUPPORTED).
 * store_open_superblocks reports the others. */
int store_check_dirs(const struct store_opts *opts, struct err *err);
/* Reads the superblocks of opts->dirs. Unless opts->read_only is set, writes the superblocks of a
 * new store, and repairs damaged ones. Returns ERR_CORRUPT, ERR_MISMATCH (not the directories of
 * one store), ERR_UNSUPPORTED or ERR_NOT_FOUND. */
int store_open_superblocks(const struct store_opts *opts, struct superblock *out,
                           struct err *err);
/* Compares the superblocks with their expected content, and reports each one that differs. */
int store_check_superblocks(struct store *s, void (*report)(void *arg, const char *what),
                            void *arg, uint64_t *n_bad, struct err *err);

/* Makes a new index from the extents' headers. After 0 it is open, without a transaction. */
int store_rebuild(struct store *s, const char *dir, const struct index_meta *meta,
                  struct err *err);

/* Has the next open rebuild the index, as far as the device allows. */
void store_want_rebuild(struct store *s);

#endif
