/* store_impl.h - the store's own state, shared by the files that implement store.h.
 *
 *   store.c    life cycle, statistics, listing         lookup.c  lookup, release, condemn
 *   append.c   records -> extents on the media         reader.c  reads
 *   commit.c   the barrier, and the end of saving      evict.c   room under cap and quotas
 *   recover.c  directories and index at open           rebuild.c the index from headers
 *   superblocks.c  the superblocks of the directories
 *   verify.c   scrub                                   gc.c      garbage collection
 *   pins.c     lasting pins                            erase.c   erasing, wiping
 *   erasures.c chunks that come too late for an erasure
 *   guarantee.c pins that are never broken
 *   remains.c  bytes of former extents in free space   reserve.c  space for erasing
 *   continued.c  chunks that continue an erased text   owed.c    erasures that wait
 *   headers.c  headers of chunks that are served
 *   presence.c whether the folder is still there       snapshot.c  reading beside another process
 *   tier.c     copies in DRAM                          fetch.c   reading ahead into DRAM
 *
 * Locks, in the order in which they may be nested:
 *   erase_lock   one erase (or gc) at a time; held across fsync
 *   wipe_lock    one thread at a time overwrites erased chunks; held across I/O
 *   commit_lock  one commit (or gc) at a time; held across fsync
 *   index_lock   the index connection; held across the index's fsync
 *   lock         everything else here; never held during I/O, except by gc */
#ifndef STORE_STORE_IMPL_H
#define STORE_STORE_IMPL_H

#include <pthread.h>

#include "store/read_ahead.h"
#include "store/alloc.h"
#include "store/bugs.h"
#include "store/catalog.h"
#include "store/erasures.h"
#include "store/index.h"
#include "store/media.h"
#include "store/store.h"
#include "store/tier.h"

/* Size of a segment file, if the options give none. */
#define STORE_SEGMENT_BYTES (1ull << 30)
#define STORE_STUCK_NS      ((int64_t)30 * 1000 * 1000 * 1000)
/* Smallest arena for copies. A copy may take at most 1/16 of it, so a smaller arena could hold
 * none. */
#define STORE_MIN_DRAM (1 << 20)

/* Most uses that wait to be written to the index. Further uses are not recorded, which does no
 * harm. */
#define STORE_MAX_TOUCHED 65536
/* Ids are given out up to a limit that the index has stored durably. So no two extents that were
 * ever written, committed or not, have the same id, and a rebuild can tell the newer one by its id.
 * The limit is raised by this number at a time. */
#define STORE_ID_RESERVE 65536
/* File that holds space for erasing on a full disk (reserve.c). */
#define STORE_RESERVE_FILE  "reserve"
#define STORE_RESERVE_BYTES ((uint64_t)1 << 20) /* the reserve's largest size */
/* While this file exists, opening wipes all free space (remains.c). */
#define STORE_WIPE_MARKER "wipe.free"
/* File with the erasures that wait for the store to be writable (owed.c). */
#define STORE_OWED_FILE "erase.owed"
/* Number of condemned chunks whose reason is remembered, to explain why they are missing. */
#define STORE_MAX_REASONS 64
/* Most chunks whose headers wait to be read (headers.c). */
#define STORE_MAX_HEADERS 4096
/* Number of slots for keys of evicted chunks, by which an evicted chunk is told from one that never
 * existed. A key's low bits give its slot, which holds the newest key only. */
#define STORE_EVICTED_SLOTS 8192

/* The row of an extent, and the use that the next commit writes there. */
struct store_touch {
    uint64_t id;
    struct index_use use;
};

struct store_reason {
    struct sha256 key;
    char text[96];
};

/* The partial chunk `key` is removed when `by` is committed. */
struct store_supersede {
    /* an extent of the chunk that replaces it; its state is PENDING */
    const struct extent *by;
    struct sha256 key;
};

/* An append that is under way, in the memory of its thread. */
struct store_writing {
    struct store_writing *next;
    const struct store_chunk *chunk;
    struct chunk_node *node;
};

/* Erasures that wait (owed.c): n entries; the file has the first n_noted. */
struct store_owed {
    uint8_t *entries;
    uint32_t n, n_noted;
};

/* Identity of the file that a name referred to when the store was opened. */
struct store_file_id {
    uint64_t device, inode;
    bool known;
};

struct store {
    struct io *io; /* NULL in the DRAM backend */
    char *dirs[STORE_MAX_DEVICES];
    int n_dirs;
    struct io_file *lock_file; /* lock file in the first directory */
    bool is_beside;   /* this store reads a copy of the index beside another process */
    char holder[200]; /* text about the process that has the store open, or "" */
    struct media *media;
    struct tier *tier; /* copies of disk extents in DRAM; NULL: none */
    /* Chunks that waiting requests need: struct store_want (fetch.c). */
    struct read_ahead_queue wants;
    struct index *index; /* NULL in the DRAM backend */
    char *index_path;
    struct store_file_id superblock_id[STORE_MAX_DEVICES], index_id;
    uint8_t uuid[STORE_UUID_BYTES];
    /* bounds on the bytes of extents, and of all files; 0: none */
    uint64_t cap_bytes, files_cap_bytes;
    uint64_t index_cap_bytes; /* share of files_cap_bytes for the index; 0: no bound */
    /* Length of the index's log, in frames, at which it is folded; 0: SQLite's default. */
    uint32_t log_frames;
    uint64_t quota_bytes, guarantee_bytes; /* as in store_opts */
    int64_t stuck_ns;
    bool read_only;

    pthread_mutex_t erase_lock, wipe_lock, commit_lock, index_lock, lock;
    /* Condition for `lock`. Signalled when an append ends, that is, when a node's has_writer
     * becomes false. */
    pthread_cond_t writer_left;

    struct catalog catalog;
    struct alloc alloc[STORE_MAX_DEVICES];
    /* Written extents, oldest first, which the next commit publishes. */
    struct extent *pending;
    struct extent **pending_end;
    struct store_supersede *supersedes;
    uint32_t n_supersedes;
    struct extent *freeing; /* extents that have left their nodes, but not the index */
    uint64_t freeing_bytes;
    /* Extents that have left the index, and whose bytes must be wiped before their space is
     * free. */
    struct extent *wiping;
    uint64_t wiping_bytes;
    uint64_t pending_bytes, n_pending; /* bytes and number of the extents in `pending` */
    /* bytes of the index's pages in use, as of the last commit */
    uint64_t index_bytes;
    /* Bytes of all extents, including reserved space; never above cap_bytes. */
    uint64_t used_bytes;
    /* ids from next_id up to id_limit may be given to extents */
    uint64_t next_id, id_limit;
    /* Nothing was committed since open. The index that a killed process left may be visible and
     * yet not durable, so the first commit is never skipped. */
    bool is_fresh;
    bool was_rebuilt; /* the index was damaged at open, and was rebuilt */
    struct store_touch *touched;
    uint32_t n_touched;
    /* Changes of lasting pins that the next commit writes to the index. */
    struct index_pin *pin_changes;
    uint32_t n_pin_changes;
    int64_t next_expiry_wall_s; /* earliest time at which a lasting pin may end */

    struct erasures erasures;
    struct store_writing *writing;
    struct err saving_err;  /* code != 0: saving has ended; the message says why */
    struct store_owed owed; /* guarded by erase_lock, as are the next two fields */
    void (*on_erased)(void *arg, const struct sha256 *keys, int n);
    void *on_erased_arg;
    bool owes_remains; /* an erase met a full disk, so free space must still be wiped */
    /* [n_headers] keys that are noted for headers.c, with room for STORE_MAX_HEADERS; NULL: none
     * was noted yet. */
    struct sha256 *headers;
    uint32_t n_headers;
    struct sha256 expected; /* fingerprint that the caller looks for, see store_expect */
    bool has_expected;
    struct store_reason reasons[STORE_MAX_REASONS];
    /* Number of reasons noted since open; the ring's next slot is n_reasons % STORE_MAX_REASONS. */
    uint32_t n_reasons;

    uint64_t evicted[STORE_EVICTED_SLOTS]; /* a slot is 0 if it is empty */

    uint64_t appended_bytes, read_bytes, n_hits, n_corrupt;
    uint64_t misses[STORE_MISSES], evictions[STORE_EVICTS], n_evicted_pinned;
    uint64_t n_guarantees_broken;
    _Atomic uint64_t n_checksum_failures, n_read_failures; /* counted without a lock */
    _Atomic bool distrusts_page_cache;                     /* a record in it was damaged */
};

/* Functions marked [lock] are called with s->lock held. */

/* Frees all wants; called at close. */
void store_free_wants(struct store *s);
/* [lock] Notes that the node's headers should be read, once since open. Call it when a lookup has
 * found the node. */
void store_note_headers(struct store *s, struct chunk_node *n);
/* Reads the headers of at most `most` noted chunks, and condemns chunks with damaged ones. */
void store_check_headers(struct store *s, int most);
/* [lock] Has the next commit write to the index when the node was last used, and whether it is
 * dropped. */
void store_note_use(struct store *s, const struct chunk_node *n);
/* [lock] Marks the node as used now. */
void store_touch_node(struct store *s, struct chunk_node *n, const struct store_use *use);
/* [lock] Takes an extent off its node (which may be freed) and queues its space to be freed. */
void store_free_extent(struct store *s, struct extent *x);
/* [lock] Gives back the space of an extent that is in no list, and frees the struct. */
void store_give_extent(struct store *s, struct extent *x);
/* [lock] Frees the loaded records of an unpinned node's committed extents. */
void store_unload_node(struct store *s, struct chunk_node *n);
/* Loads the missing record tables of a pinned node. */
int store_load_node(struct store *s, struct chunk_node *n, struct err *err);
/* [lock] Releases one pin. With the last pin the node's DEAD extents are freed, and its records
 * unloaded. */
void store_unpin(struct store *s, struct chunk_node *n);
/* [lock] Condemns the node. It may be freed unless it is pinned. */
void store_condemn_node(struct store *s, struct chunk_node *n, const char *reason);

/* [lock] Takes all extents off a node that is not in use. The node is freed, or stays as a name
 * without extents. */
void store_evict_node(struct store *s, struct chunk_node *n, enum store_evict why);
/* [lock] Removes a partial chunk that is not in use, because the chunk that replaces it is
 * committed. */
void store_drop_superseded(struct store *s, const struct sha256 *key);
/* [lock] Returns whether the chunk was evicted, as far as evictions are remembered. */
bool store_was_evicted(const struct store *s, const struct sha256 *key);
void store_forget_eviction(struct store *s, const struct sha256 *key);
/* [lock] Forgets why the chunk was missing: it is stored again. */
void store_forget_reasons(struct store *s, const struct sha256 *key);

/* Like store_each, but also visits chunks that have only uncommitted extents. */
int store_each_appended(struct store *s, int (*fn)(void *arg, const struct store_entry *e),
                        void *arg, struct err *err);
/* Sets the bounds on extents, index and log that the options give. */
int store_cap_share(struct store *s, const struct store_opts *o, struct err *err);
/* [lock] Returns ERR_LIMIT if n more pins would be too many. */
int store_check_pins(const struct store *s, uint32_t n, struct err *err);
/* [lock] Returns whether the index stays in its share if extents of n_bytes in all are appended,
 * one on each device. */
bool store_index_has_room(const struct store *s, uint64_t n_bytes);
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
/* Evicts chunks that have expired while the store was closed. After a failure the chunks stay until
 * a later eviction of expired chunks. */
void store_expire_at_open(struct store *s);
/* [lock] Notes a change of a lasting pin for the next commit. */
void store_note_pin(struct store *s, const struct index_pin *pin);
/* [lock] Sets a pin in memory. Returns the key's node. */
struct chunk_node *store_set_pin(struct store *s, const struct index_pin *pin);
/* Returns how many bytes may be guaranteed in a store with this cap; 0: no bound. */
uint64_t store_guarantee_limit(uint64_t cap_bytes);
/* [lock] Returns ERR_LIMIT if the cap is below the guaranteed bytes. */
int store_check_guarantees(const struct store *s, struct err *err);
/* [lock] Counts n guarantees that damage has broken, and logs them. */
void store_guarantee_broken(struct store *s, uint32_t n, const char *reason);
/* At open. The first enters the lasting pins that the index lists, the second the places to be
 * wiped. */
int store_load_pins(struct store *s, struct err *err);
int store_load_wipes(struct store *s, struct err *err);

/* [lock] Returns the nearest doomed node above n that has extents or is in use; NULL if there is
 * none. That node is not freed with n, and n may be all that keeps it. Call it before n is
 * freed. */
struct chunk_node *store_doomed_above(const struct chunk_node *n);
/* [lock] Erases a node that is in use, or that other chunks continue: lookups miss it from now
 * on, and its bytes are wiped by the first commit after its last use. */
void store_doom(struct store *s, struct chunk_node *n);
/* [lock] Dooms the chunks that are being written and that come too late. Call it after a mark was
 * set in s->erasures. Returns their number. */
int store_doom_writing(struct store *s);
/* [lock] Erases a doomed node that is no longer in use, and doomed nodes that only this one
 * kept. */
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
 * taken (NULL allowed) [n] receives the keys of chunks that were erased or doomed, children first.
 * Returns the number of keys in `taken`. */
int store_take_chain(struct store *s, const struct sha256 *keys, int n, bool is_all,
                     struct sha256 *taken, struct store_erased *out);
/* Returns whether nothing can be saved or erased before the store is opened again. Takes lock. */
bool store_is_unwritable(struct store *s);
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
/* [lock] Frees a list of extents that are in no other list, without giving back their space. */
void store_free_list(struct extent *list);

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

/* [lock] Returns 0, or the code of the error that keeps this store from saving. */
int store_can_save(struct store *s, struct err *err);

/* Returns the n-th LIVE extent of a pinned chunk; NULL: there are no more. */
const struct extent *store_extent_nth(struct store *s, const struct store_hit *hit, int n);

/* Loads the records of an extent from the index, else from its header. Takes index_lock. `out`
 * has room for x->n_records. The chunk must be pinned. */
int store_load_records(struct store *s, const struct extent *x, struct chunk_record *out,
                       struct err *err);

/* Remembers which files the store's names refer to. */
void store_note_files(struct store *s);
/* Returns -ENOENT if one of the names of store_note_files has gone or refers to another file, else
 * 0. */
int store_check_present(struct store *s, struct err *err);
/* [lock] Cuts the files behind their last used bytes. */
void store_cut_files(struct store *s);
/* At open: cuts the files behind their last used bytes if they exceed the cap. */
void store_cut_to_cap(struct store *s);
/* Fills the reserve, as far as there is space. */
void store_fill_reserve(struct store *s);
/* Gives up the reserve's space. Returns false if there was no reserve. */
bool store_release_reserve(struct io *io, const char *dir);

/* Returns "dir/name"; the caller frees it. */
char *store_path(const char *dir, const char *name);

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

/* Makes a new index from the extents' headers. When it returns 0, s->index is open, without a
 * transaction. */
int store_rebuild(struct store *s, const char *dir, const struct index_meta *meta,
                  struct err *err);

/* Has the next open rebuild the index, as far as the device allows. */
void store_want_rebuild(struct store *s);

/* Recounts catalog, allocators and bytes. Returns false if they do not add up. Takes lock. */
bool store_audit(struct store *s);

#endif
