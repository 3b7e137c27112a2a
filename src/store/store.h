/* store.h - durable, checksummed chunks of saved model state (DESIGN §7).
 *
 * The mental model.  A *chunk* is the state of 64 consecutive tokens, named by a SHA-256 *key* that
 * hashes the whole chain of tokens before it, so equal prefixes meet in one chunk without any
 * session id.  A chunk has *records*, one per (layer, kind); which ones exist is its *mask*, and
 * records may be added later.  A chunk is written as one *extent* per device (= store directory)
 * that has records of it: a 4 KiB self-describing header, then 4 KiB-aligned records.  The record
 * of layer l of chunk c lies on device (c + l) mod n_devices.
 *
 * The store knows bytes, not tensors: what a record means is the caller's business.
 *
 * Durability.  store_append makes nothing durable and nothing visible.  store_commit does, for all
 * that was appended before it: data written -> data durable -> index committed.  After it returns 0
 * those chunks survive process death, an OS crash and power loss; before, a crash leaves each of
 * them either absent or whole.
 *
 * Trust.  Every byte that is handed out was checked against its checksum, or is marked as not yet
 * checked.  Any doubt makes a chunk a miss with a reason; the store never repairs by guessing.
 *
 * Threads.  All functions are thread-safe except those on a store_reader, which belongs to one
 * thread at a time. */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/hash.h"
#include "policy/placement.h"
#include "policy/placement_price.h"

#define STORE_CHUNK_TOKENS 64
#define STORE_WHY_ABSENT                                                                   \
    "not stored" /* store_lookup's reason for a chunk that never was there */
#define STORE_WHY_UNCOMMITTED                                                              \
    "not committed yet" /* of a chunk that is on its way to the disk */
#define STORE_MAX_LAYERS  128
#define STORE_MAX_DEVICES 16
#define STORE_ALIGN       4096

struct io;
struct store;
struct store_reader;

/* The two kinds of records. A context needs, per layer, one of them (or recomputation). */
enum store_kind {
    STORE_HIDDEN = 0, /* the layer's input */
    STORE_KV = 1,     /* keys before RoPE, and values */
};
#define STORE_KINDS 2

/* Which records a chunk has: bit l of has[kind] for layer l. */
struct store_mask {
    uint64_t has[STORE_KINDS][STORE_MAX_LAYERS / 64];
};

static inline bool store_mask_has(const struct store_mask *m, int layer,
                                  enum store_kind kind)
{
    return m->has[kind][layer / 64] >> (layer % 64) & 1;
}

static inline void store_mask_add(struct store_mask *m, int layer, enum store_kind kind)
{
    m->has[kind][layer / 64] |= (uint64_t)1 << (layer % 64);
}

/* --- keys ----------------------------------------------------------------------------------- */

/* The parent of a context's first chunk: SHA-256(fingerprint, salt), fields tagged. The salt (NULL
 * is the empty one) keeps tenants apart. */
struct sha256 store_root_key(const struct sha256 *fingerprint, const char *salt);

/* SHA-256(parent, 64 token ids), fields tagged. */
struct sha256 store_chunk_key(const struct sha256 *parent,
                              const int32_t tokens[STORE_CHUNK_TOKENS]);
/* The key of a *partial* chunk, 1 <= n_tokens <= 64: the end of a context that has not filled its
 * last chunk.  With 64 tokens it is store_chunk_key. */
struct sha256 store_partial_key(const struct sha256 *parent, const int32_t *tokens,
                                int n_tokens);

/* The parent of a stair's first chunk in a truncated context (policy/truncation.h): SHA-256(the
 * key of the chunk before, the numbers C, S, K), fields tagged.  So the keys of a stair's
 * chunks name all tokens before them and the truncation.  No chunk has this key: the store sees
 * each stair as a context of its own, whose tail goes before its head. */
struct sha256 store_stair_key(const struct sha256 *parent, const uint32_t numbers[3]);

/* Whose a chunk is, for quotas and statistics: a number made of the salt; 0 for the empty salt (or
 * NULL).  It is stored with the chunk, and does not say what the salt was to those who cannot guess
 * it. */
uint64_t store_owner(const char *salt);

/* --- life cycle ----------------------------------------------------------------------------- */

/* Allocator for the DRAM backend's segments and for the DRAM tier's arena, for
 * example pinned memory.  get returns zeroed, page-aligned memory, or NULL.  Any
 * thread may call both functions. */
struct store_memory {
    void *(*get)(void *arg, size_t bytes);
    void (*put)(void *arg, void *p, size_t bytes);
    void *arg;
};

struct store_opts {
    struct io *io; /* the file system; NULL selects the DRAM backend, which ignores dirs */
    struct store_memory memory; /* get NULL: ordinary memory */
    /* The DRAM backend has the system provide ordinary memory before it is used, up to cap_bytes
     * (ahead.h): for a store that is filled faster than the system zeroes memory. */
    bool memory_ahead;
    /* Arena for copies of chunks in DRAM, in front of the disk (tier.h); 0: none.  The DRAM
     * backend and stores opened read_only have none. */
    uint64_t dram_bytes;
    /* Where that memory cannot be had, a half of it is tried, and so on; below 64 MiB there are no
     * copies. store_dram_stats says how much it is.  Else the store is not opened: -ENOMEM. */
    bool dram_optional;
    const char *const *dirs; /* one per device, in order; created where missing */
    int n_dirs;
    uint64_t cap_bytes; /* bound on all extents together at all times; 0: no bound */
    /* Bound on all files of the store together at all times; 0: none.  What it leaves for
     * extents is a second bound like cap_bytes (cap.c).  ERR_USAGE where it leaves
     * nothing.  The DRAM backend ignores it. */
    uint64_t files_cap_bytes;
    enum placement_kind policy; /* which leaf goes first where a bound is reached */
    /* For stat, ls and verify: changes nothing, shares the lock with others that do, and reads
     * a copy of the index where another process has the store open for writing. */
    bool read_only;
    bool no_direct; /* do not bypass the page cache (warm reads, tests) */
    /* Of a new store: the size of its segment files, and a bound on one chunk's bytes per
     * device; in multiples of STORE_ALIGN, at most 4 GiB. 0: 1 GiB. */
    uint64_t segment_bytes;
    /* bound on the extents of each owner that store_set_quota has given none; 0: no bound */
    uint64_t quota_bytes;
    /* bound on the guaranteed bytes of each owner (store_guarantee); 0: that of its quota */
    uint64_t guarantee_bytes;
    /* A transfer of state that takes longer is cancelled and fails with -ETIMEDOUT; 0: 30 s.
     * What a device does not let go of ends with the kernel's own timeout for that device. */
    int64_t stuck_ns;
};

/* Opens or creates a store, recovers it, and takes its lock.  Directories that belong to different
 * stores, are given in another number, or in an order that does not match their superblocks, are an
 * ERR_MISMATCH that says which; a store in use by another process is ERR_BUSY; a format version
 * from the future is ERR_UNSUPPORTED.  *out is the caller's to close. */
int store_open(const struct store_opts *opts, struct store **out, struct err *err);

/* Who has the store open for writing, where it was opened read_only beside that process;
 * NULL: nobody. What is read may be older than what that process has, and an extent that it
 * evicts meanwhile reads as damaged. */
const char *store_beside(const struct store *s);

/* Closes without committing: what was appended since the last commit is gone. No reader, hit or
 * other thread may be using the store. NULL is allowed. */
void store_close(struct store *s);

/* --- writing -------------------------------------------------------------------------------- */

struct store_record {
    int layer;
    enum store_kind kind;
    const void *bytes;
    uint32_t n_bytes;
    /* Where bytes is NULL: makes them when it is their turn to be written, so that a chunk's
     * need not be there all at once: once at most, or once more where the disk was full.  They
     * are good until the next call; NULL: they could not be made, and the append fails. */
    const void *(*make)(void *arg, const struct store_record *r);
    void *make_arg;
    /* checksum64 of the bytes, where the caller has just verified it; else it is computed. */
    bool has_checksum;
    uint64_t checksum;
};

/* What a request says of how the chunks that it uses will be used again. All 0: nothing. */
struct store_use {
    int turn;            /* of its conversation, from 1; 0: not known */
    bool may_call_tools; /* its answer may be a tool call, whose result comes back soon */
    uint32_t reuse_in_s; /* a client's guess of the time until the next use; 0: none */
    /* The chunks expire when nobody has used them for so long; 0: they do not. */
    uint32_t ttl_s;
    uint64_t lot; /* a number that all chunks of one request share */
};

struct store_chunk {
    struct sha256 key;
    struct sha256 parent; /* the previous chunk's key; for chunk 0 the root key */
    /* of the state; kept in the header, to say why a store misses */
    struct sha256 fingerprint;
    uint64_t owner;     /* store_owner(salt) */
    uint32_t chunk_idx; /* position in the context: first token = 64 * chunk_idx */
    int n_tokens;       /* of a partial chunk, 1 to 63; 0 or 64: a full one */
    int32_t tokens[STORE_CHUNK_TOKENS];
    const struct store_record *records;
    int n_records;
    /* Of a partial chunk: it is the end of one context, and needless once that goes on.  Stored
     * with it.  Others are for many to continue, a document's say, and so is one that both have
     * asked for (until the store is opened again, where it was stored as one that yields). */
    bool yields;
    /* May be NULL.  The partial chunk that this one continues: where it yields it is
     * removed once this one has been committed (with the commit after, so a crash
     * can leave both, never neither). */
    const struct sha256 *supersedes;
    struct store_use use;
    /* Nothing that a waiting request needs sooner is evicted for it, where the policy says so
     * (placement_admits): the append fails with ERR_LIMIT instead. */
    bool may_be_refused;
};

/* Writes the records that the store does not have yet (one extent, one sequential write, per
 * device) and evicts leaves where the cap demands it, in
 * the order of policy/placement.h.  The records' bytes are
 * not needed after it returns.  A chunk may be appended before its parent; it can be found only
 * once the parent can.  ERR_LIMIT: does not fit under the cap, or not into the owner's quota (whose
 * own leaves go first); nothing was written.  A full disk is a lower cap where there is one,
 * and space is made likewise; -ENOSPC where there is none (nothing is evicted then), or it did
 * not help.  -ENOSPC and other I/O errors: nothing of this call will become visible, and it may
 * be tried again. */
int store_append(struct store *s, const struct store_chunk *chunk, struct err *err);

/* The barrier: makes all that was appended before the call durable and visible.  On an error
 * nothing of it is visible.  -ENOSPC: it stays appended, and the next commit tries again.  Any
 * other error is final, since a device that has failed to sync may have lost what it says it wrote:
 * all that was not committed is dropped, and until the store is opened anew every append and commit
 * returns this error.  Reading goes on. */
int store_commit(struct store *s, struct err *err);

/* --- looking up ----------------------------------------------------------------------------- */

/* A chunk that was found. It cannot be evicted until it is released. */
struct store_hit {
    struct sha256 key;
    uint32_t chunk_idx;
    int n_tokens; /* 64, or fewer in a partial chunk */
    struct store_mask mask;
    void *impl; /* the store's own */
};

/* Finds the longest chain keys[0..n) and pins it: hits[0..*n_hits) are filled.  `why` (may be NULL)
 * receives why the chain is not longer: "complete", "not stored", "state of another model or build
 * (fingerprint 12ab..)", "header unreadable", ... */
int store_lookup(struct store *s, const struct sha256 *keys, int n, struct store_hit *hits,
                 int *n_hits, char *why, size_t why_bytes, struct err *err);
/* The same for a request that says how it uses the chunks (NULL: it says nothing). */
int store_lookup_for(struct store *s, const struct store_use *use,
                     const struct sha256 *keys, int n, struct store_hit *hits, int *n_hits,
                     char *why, size_t why_bytes, struct err *err);
void store_release(struct store *s, struct store_hit *hits, int n);
/* A request that waits needs the chunks of keys[0..n), stored or not.  It will be served before
 * requests of a later turn, so policies that look ahead evict these chunks after all that no
 * request needs.  Returns how many of the keys the window had room for; the caller takes just
 * these back, once, when the request waits no longer.  The window is bounded by 65,536 chunks. */
int store_expect_use(struct store *s, const struct sha256 *keys, int n, uint64_t turn);
void store_expect_use_no_more(struct store *s, const struct sha256 *keys, int n,
                              uint64_t turn);

/* Pins one chunk by its key, wherever it stands in a chain, and with it all before it, since only
 * leaves are evicted; false where it is not stored.  Not for reading: its records
 * are not looked up. */
bool store_pin(struct store *s, const struct sha256 *key, struct store_hit *hit);
/* Another hold on a chunk that the caller holds, to be released by itself.  Of one that is
 * found no more, for it was superseded meanwhile, too: whoever holds it can read it. */
struct store_hit store_hold(struct store *s, const struct store_hit *held);

/* Whether a look-up would find all of these hits, which the caller holds: none was erased,
 * condemned or superseded since. */
bool store_hits_stand(struct store *s, const struct store_hit *hits, int n);

/* The longest stored partial chunk behind `parent` whose tokens are tokens[0..*n_found), where
 * *n_found <= n_tokens < 64; false where there is none.  Look *key up as the last of a chain. */
bool store_find_partial(struct store *s, const struct sha256 *parent, const int32_t *tokens,
                        int n_tokens, struct sha256 *key, int *n_found);

/* Returns the place where a context leaves the stored chunk that goes along with it the longest.
 * Of the chunks behind `parent`, one has the longest common beginning with tokens[0, n).  The
 * result is the length of this beginning, where both go on with different tokens.  It is -1 where
 * there is no chunk, and where the chunk or the n tokens end there.
 *
 * The newest 4096 chunks behind the parent are looked at.  Headers of the STORE_NEAREST most
 * promising ones are read at most, and of as many that the process has not seen since it opened
 * the store.  So a chunk that goes along a token or two longer may be missed among many that
 * are nearly as near, and an old chunk is missed until searches have come to it.  Chunks of
 * another salt or model have other parents, so the result tells nothing about them. */
enum { STORE_NEAREST = 8 };
int store_differs_at(struct store *s, const struct sha256 *parent, const int32_t *tokens,
                     int n);

/* Up to n full chunks of a model's state, pinned as by a lookup, but neither marked as used nor
 * counted: what a measurement may read.  Those that others continue first, or the pins would
 * keep whole contexts from being evicted meanwhile.  Returns how many. */
int store_sample(struct store *s, const struct sha256 *fingerprint, int n,
                 struct store_hit *hits);

/* Tells the store whose state the caller looks for (NULL: forget it), so that a lookup can say
 * "state of another model or build". Changes nothing else. */
void store_expect(struct store *s, const struct sha256 *fingerprint);

/* Declares a chunk damaged after a failed check: it is a miss from now on, and with it all that
 * continues it, until it is appended again.  The reason is remembered and counted.  Its bytes are
 * removed at the next commit after the last release. */
void store_condemn(struct store *s, const struct store_hit *hit, const char *reason);

/* Whether the chunk is missing because it was condemned. */
bool store_was_damaged(struct store *s, const struct sha256 *key);
/* Reads all of a stored chunk, headers included, and condemns it where anything is wrong: *is_good
 * false.  An error is the device's. */
int store_verify_chunk(struct store *s, const struct sha256 *key, bool *is_good,
                       struct err *err);

/* --- pins that last ------------------------------------------------------------------------- */

/* Keeps chunks from being evicted until a time (seconds since 1970, by the wall clock), whether
 * they are stored yet or not.  Durable when it returns 0: a restart does not end a pin, an
 * index that had to be rebuilt does.  A pin is a preference, the cap (and a quota) is a bound:
 * pinned chunks go last, when nothing else can be evicted, and are counted (n_evicted_pinned).
 * A chunk is evicted only after all that continue it, so pinning the last chunk of a context
 * keeps the whole.  A second pin of a key replaces the first.  At most STORE_MAX_PINS at a
 * time, and one for each KiB of the index's share of files_cap_bytes: ERR_LIMIT. */
#define STORE_MAX_PINS (1 << 20)
int store_pin_until(struct store *s, const struct sha256 *keys, int n, int64_t until_wall_s,
                    struct err *err);
/* Ends pins before their time; keys that are not pinned are passed over. Durable likewise. */
int store_unpin_keys(struct store *s, const struct sha256 *keys, int n, struct err *err);

/* Guarantees that a stored chain stays: keys[0..n) are all chunks of a context (of a truncated one:
 * those that its last token sees). Until the given time no eviction takes them: not for the cap, a
 * quota, a full disk, an idle time or gc. Durable when it returns 0; a restart does not end it.
 *
 * A guarantee is refused where it cannot be kept, and then nothing has changed:
 *
 *     ERR_NOT_FOUND   a chunk is not stored, or not committed
 *     ERR_LIMIT       the guaranteed bytes would exceed three quarters of the cap, three quarters
 *                     of the owner's quota, or store_opts.guarantee_bytes of the owner
 *
 * The message has the sums, and so has *out (may be NULL).
 *
 * What ends a guarantee: its time, store_unpin_keys, and store_erase of its chunks. An ordinary pin
 * of the same key changes nothing. Two faults break it: damage to its bytes on the disk, and an
 * index that had to be rebuilt. The first is counted (n_guarantees_broken) and logged; the rebuild
 * is logged. A store does not open with a cap below the bytes that it has guaranteed: ERR_LIMIT. */
struct store_guaranteed {
    uint64_t n_bytes;                        /* that this guarantee adds */
    uint64_t all_bytes, limit_bytes;         /* guaranteed in the store; 0: no bound */
    uint64_t owner_bytes, owner_limit_bytes; /* likewise of the owner */
};
int store_guarantee(struct store *s, const struct sha256 *keys, int n, int64_t until_wall_s,
                    struct store_guaranteed *out, struct err *err);

struct store_pinned {
    struct sha256 key;
    int64_t until_wall_s;
    bool is_stored;
    bool is_guaranteed;
};
/* Calls fn for each pin that has not run out; stops where it returns non-zero and returns that. */
int store_each_pin(struct store *s, int (*fn)(void *arg, const struct store_pinned *p),
                   void *arg);

/* What it is worth to hold a chunk that is used from now on, for the policy `ours`. */
void store_set_price(struct store *s, const struct placement_price *price);
/* A chunk that twice as many waiting requests need counts as needed so many turns earlier
 * (placement_window.h). */
void store_set_step(struct store *s, uint64_t turns);
/* These chunks are of no more use to the caller: they are the first to be evicted, unless they
 * are in use, or another lookup finds them.  Written with the next commit, as uses are. */
void store_drop(struct store *s, const struct sha256 *keys, int n);

/* --- forgetting ----------------------------------------------------------------------------- */

struct store_erased {
    uint64_t n_chunks, n_bytes; /* gone */
    uint64_t n_shared;          /* kept: stored chunks outside of keys[] continue them */
    /* in use by a hit or a running append: missing from now on for every lookup, and erased by the
     * first commit after the last release.  Not remembered across a restart: call again. */
    uint64_t n_busy;
    /* Where store_erase fails because the disk is full (-ENOSPC), or because nothing can be
     * written until the store is opened again: chunks that are missing from now on for
     * every lookup, and whose bytes are still in the files.  On a full disk store_settle
     * erases them when there is room. */
    uint64_t n_owed;
    /* Where nothing can be written: all erasures that wait are on the disk.  The next open for
     * writing does them; an open for reading does not find the chunks.  False: they are
     * forgotten when the store is closed, unless store_settle can write them down before. */
    bool is_noted;
    char not_noted_because[200];
};

/* Erases keys[0..n), one chain in its order (not necessarily from its beginning), as far as no
 * other stored chunk continues it.  Whether another context ends inside the chain is the caller's
 * to know.  Ends their pins.  What is appended and not committed is committed first.
 *
 * When it returns 0 with n_busy == 0, and for good (crashes included): the chunks are absent, their
 * rows are gone from the index, and the bytes of their extents (state, and token ids in the
 * headers) read as zeros in the segment files.  So do all free bytes of the segment files:
 * superseded ends of contexts, evicted copies, and chunks that were never committed.  Keys
 * (hashes) may stay in pages of the index's log until store_gc; after it no byte of the chunks is
 * left in any file of the store.  Blocks that a file system or a device was told to free are
 * beyond this: encrypt the device where that matters.
 *
 * n may be 0: then only free bytes are wiped.
 *
 * On an error the chunks may be absent already; the next erase, gc or open wipes the
 * rest.  Where the store cannot be written at all, out->n_owed is the number of
 * chunks that still must be wiped. */
int store_erase(struct store *s, const struct sha256 *keys, int n, struct store_erased *out,
                struct err *err);

/* `fn` is told the keys of chunks that an erasure has taken away, children before parents,
 * before it returns; it is called on the erasing thread, under a lock of the store's, and must
 * not call back into it.  NULL: no more. */
void store_on_erased(struct store *s,
                     void (*fn)(void *arg, const struct sha256 *keys, int n), void *arg);

/* Erases all chunks of an owner, likewise. */
int store_erase_owner(struct store *s, uint64_t owner, struct store_erased *out,
                      struct err *err);

/* Work that nobody waits for, to be called every few seconds, on any thread.  Tries again
 * what an erase has left undone because the disk was full or could not be written, as far as
 * this process can do it.  Reads the headers of chunks that lookups have found, each once,
 * and condemns a chunk whose header is damaged: restoring reads no headers, and a rebuild of
 * the index would drop the chunk. */
int store_settle(struct store *s, struct err *err);

/* Erases the stored chunks that contain a whole erased text, with all that continues them: keys[]
 * holds the keys of that text's chunks, and of its unfinished end (store_partial_key).  To be
 * called before store_erase(keys), which stops at chunks that others continue. */
int store_erase_continuing(struct store *s, const struct sha256 *keys, int n,
                           struct store_erased *out, struct err *err);

/* Evicts the chunks that were last used before a time (seconds since 1970), ends of contexts first.
 * Chunks that are in use or pinned stay, and with them all that they continue.  The time of the
 * last use survives a restart, as far as it was committed.  Space is free when it returns 0;
 * *n_chunks says how many went.  Evicted bytes stay in the files until they are used again, as
 * after any eviction: store_erase is for what must leave no remains. */
int store_evict_idle(struct store *s, int64_t before_wall_s, uint64_t *n_chunks,
                     struct err *err);

/* Evicts the chunks whose time to live has passed: nobody has used them for store_use.ttl_s. A
 * chunk that requests with different times use has the longest of them, and none is the longest.
 * Chunks that are in use, pinned or continued by others stay until they are not. The time to live
 * and the time of the last use survive a restart.  store_open evicts chunks that have expired
 * meanwhile; so does an append that needs room.  *n_chunks is the number of evicted chunks. */
int store_evict_expired(struct store *s, uint64_t *n_chunks, struct err *err);

/* --- quotas --------------------------------------------------------------------------------- */

/* Bounds the extents of one owner from now on; 0: no bound.  Lasts until the store is closed. What
 * is over it goes with the owner's next append. */
void store_set_quota(struct store *s, uint64_t owner, uint64_t quota_bytes);

struct store_owner_use {
    uint64_t owner;
    uint64_t used_bytes, quota_bytes; /* of extents, appended ones included; 0: no bound */
    uint64_t guaranteed_bytes;        /* of used_bytes */
    uint64_t n_chunks;
};
/* Calls fn for each owner that has chunks or a quota. */
int store_each_owner(struct store *s, int (*fn)(void *arg, const struct store_owner_use *u),
                     void *arg);

/* --- reading -------------------------------------------------------------------------------- */

/* One record to be read.  The caller sets the first block; dst must be STORE_ALIGN-aligned, with
 * room for n_bytes rounded up to STORE_ALIGN, and live until completion.  A record that is larger
 * than dst_bytes is not read: ERR_MISMATCH. */
struct store_read {
    const struct store_hit *hit;
    int layer;
    enum store_kind kind;
    void *dst;
    size_t dst_bytes; /* 0: the caller knows that the record fits */
    void *user;

    /* Where the record is: dst, the DRAM backend's own memory, or a copy in the DRAM tier. */
    const uint8_t *bytes;
    struct tier_copy
        *copy; /* that copy, until store_read_release; NULL: the bytes are elsewhere */
    uint32_t n_bytes;
    uint64_t checksum; /* what store_read_check compares with */
    struct store *store;
    int status; /* 0, or the negative code of what failed */
};

/* A reader owns an I/O queue of its own. `staging` (may be NULL) is one region that holds every dst
 * and is registered with the I/O backend once. */
int store_reader_open(struct store *s, int depth, void *staging, size_t staging_bytes,
                      struct store_reader **out, struct err *err);
void store_reader_close(struct store_reader *r); /* waits for what is in flight */
/* From now on the reader takes records from copies in DRAM where there are any.  Its user calls
 * store_read_release for each read, once the bytes are not needed any more.  Other readers read the
 * disk only: they check it, or measure it. */
void store_reader_use_dram(struct store_reader *r);
/* Lets go of the copy in DRAM that the read was served from, if any.  Any thread. */
void store_read_release(struct store_read *read);

/* Starts reads over all devices at once; they stay the caller's memory.  Returns 0 or the code of a
 * fault that concerns all; a single read's fault is its status. */
int store_reader_submit(struct store_reader *r, struct store_read *const *reads, int n,
                        struct err *err);
/* Waits for at least one completion (if any is in flight); *n_done <= max completed ones. */
int store_reader_wait(struct store_reader *r, struct store_read **done, int max,
                      int *n_done, struct err *err);
/* The two halves of store_reader_wait: hands out what is complete, without waiting; waits until
 * there is something to hand out (if anything is in flight), or most_ns have passed.  Reads are
 * cancelled after stuck_ns without one that is complete, however many calls that takes. */
int store_reader_poll(struct store_reader *r, struct store_read **done, int max,
                      int *n_done, struct err *err);
int store_reader_await(struct store_reader *r, int64_t most_ns, struct err *err);

/* Checks the bytes of a completed read; must be called before they are used, on any thread, once
 * per record: completion alone does not mean that they are right.  Returns 0 or
 * ERR_CORRUPT, or -EAGAIN where a copy in DRAM is damaged: the copy is dropped, and the
 * next read takes the record from the disk. */
int store_read_check(const struct store_read *read, struct err *err);
/* The same where another has computed checksum64 of the n_bytes, on a copy of them elsewhere. */
int store_read_judge(const struct store_read *read, uint64_t sum, struct err *err);

/* Where a record lies in a file, for who reads it into memory that a reader does not know. */
struct store_place {
    int fd; /* stays the store's, open as long as the hit is held */
    uint64_t offset;
    size_t
        bytes; /* of whole blocks: multiples of STORE_ALIGN; n_bytes of them are the record */
};
/* Whether its records are in files that others may read (not in memory, on a
 * simulated disk, or throttled). */
bool store_has_files(const struct store *s);
/* Whether its chunks lie in directories, and not in memory. */
bool store_is_on_disk(const struct store *s);
/* Fills in what store_reader_submit would, but for `bytes`: what was read is checked with
 * store_read_judge.  Nonzero where it must be left to a reader, which then says why. */
int store_read_place(struct store *s, struct store_read *read, struct store_place *out);
/* What became of such a read: its status, for the store's counts as well. */
void store_read_end(struct store_read *read, int status);
/* How long a read may take before it is cancelled (store_opts). */
int64_t store_stuck_ns(const struct store *s);

/* Sets in_dram[i] for each of n hits: whether a reader that uses copies (store_reader_use_dram)
 * would take all of its records from DRAM now. */
void store_in_dram(struct store *s, const struct store_hit *hits, int n, bool *in_dram);

/* --- reading ahead -------------------------------------------------------------------------- */

/* A request that waits will need keys[0..n), which the KV pool does not hold; requests of a
 * lower turn are served before it.  `id` names it; a second call replaces the first.  Any
 * thread.  Does nothing without a DRAM tier. */
void store_fetch_want(struct store *s, const void *id, const struct sha256 *keys, int n,
                      uint64_t turn);
/* It waits no longer. */
void store_fetch_want_end(struct store *s, const void *id);

/* Returns how many of the keys are stored, up to the first that is not. */
int store_count(struct store *s, const struct sha256 *keys, int n);
/* A chunk's name in store_tell_held; never 0. */
uint64_t store_chunk_name(const struct sha256 *key);
/* The caller's own memory (a KV pool) holds the state of a chunk from now on, or no longer.
 * Copies of held chunks are the first to be dropped, and none are promoted. */
struct store_held {
    uint64_t name;
    bool is_held;
};
/* Returns false, and takes nothing, where it would have to wait.  Does nothing
 * without a DRAM tier. */
bool store_tell_held(struct store *s, const struct store_held *changes, int n);

/* Brings what waiting requests need from the disk to DRAM, a chunk at a time.  One
 * thread at a time. */
struct store_fetcher;
/* *out is NULL where there is no DRAM tier. */
int store_fetcher_open(struct store *s, struct store_fetcher **out, struct err *err);
void store_fetcher_close(struct store_fetcher *f); /* waits for what is in flight */
enum store_fetch {
    STORE_FETCH_NONE,    /* there is nothing to fetch now */
    STORE_FETCH_WORKED,  /* call it again */
    STORE_FETCH_NO_ROOM, /* there is no room for the next fetch: try again some time later */
    STORE_FETCH_IN_FLIGHT, /* only the disk can give it more to do */
};
/* Does the next piece of work and never waits. */
enum store_fetch store_fetch_step(struct store_fetcher *f);
bool store_fetch_in_flight(const struct store_fetcher *f);
bool store_fetch_lacks_room(const struct store_fetcher *f); /* said the last step */
/* Behind STORE_FETCH_IN_FLIGHT: sleeps until the disk has answered, or timeout_ns has passed. */
void store_fetch_wait(struct store_fetcher *f, int64_t timeout_ns);

/* --- what is in it -------------------------------------------------------------------------- */

/* Why a chunk that was looked up was not served. */
enum store_miss {
    STORE_MISS_ABSENT,      /* never stored, or evicted too long ago to be remembered */
    STORE_MISS_EVICTED,     /* was stored, and evicted */
    STORE_MISS_UNCOMMITTED, /* appended, not committed yet */
    STORE_MISS_DAMAGED,     /* condemned after a failed check */
    STORE_MISS_UNREADABLE,  /* its table of records and its header could not be read */
    STORE_MISS_OTHER_STATE, /* there is only state of another model or build */
    STORE_MISSES
};
/* "absent", "evicted", ...: a word for metrics and JSON. */
const char *store_miss_name(enum store_miss why);

/* Why a stored chunk went. */
enum store_evict {
    STORE_EVICT_CAP, /* room for others under the cap */
    STORE_EVICT_SPACE, /* room for others on a disk that was full before the cap was reached */
    STORE_EVICT_QUOTA,      /* room for others of its owner */
    STORE_EVICT_IDLE,       /* nobody used it for so long (store_evict_idle) */
    STORE_EVICT_EXPIRED,    /* nobody used it for its time to live (store_evict_expired) */
    STORE_EVICT_ORPHAN,     /* gc: a chunk before it is gone, so it could not be found */
    STORE_EVICT_SUPERSEDED, /* a partial chunk whose full one has come */
    STORE_EVICT_ERASED,     /* store_erase */
    STORE_EVICT_DAMAGED,    /* condemned */
    STORE_EVICTS
};
const char *store_evict_name(enum store_evict why);

/* The DRAM tier. */
struct store_dram {
    uint64_t cap_bytes; /* 0: there is none, and all else is 0 */
    uint64_t used_bytes, n_chunks;
    /* Since open: */
    uint64_t n_written; /* copies of extents that were made while these were written */
    uint64_t n_promoted,
        promoted_bytes; /* copies that were read from the disk for requests to come */
    uint64_t n_unused;  /* of these: dropped before anybody read them */
    uint64_t n_demoted; /* chunks whose copies were dropped to keep room */
    uint64_t n_full;    /* copies that were not made: there was no room at once */
    uint64_t n_reads, read_bytes; /* records that were served from copies */
};

struct store_stats {
    const char *tier;                        /* where the bytes are: "dram" or "disk" */
    uint64_t n_chunks, n_extents, n_partial; /* n_partial of the n_chunks are not full */
    uint64_t used_bytes, cap_bytes,
        file_bytes;           /* extents; their bound; what the segment files occupy */
    uint64_t files_cap_bytes; /* bound on all files of the store; 0: none */
    uint64_t device_bytes[STORE_MAX_DEVICES]; /* used_bytes by device */
    uint64_t pending_bytes;                   /* of used_bytes: appended, not committed */
    uint64_t freeing_bytes;        /* of used_bytes: evicted or erased, not reusable yet */
    uint64_t n_expiring;           /* chunks with a time to live */
    uint64_t n_pins, n_guarantees; /* n_guarantees of the pins */
    uint64_t guaranteed_bytes, guarantee_limit_bytes; /* of used_bytes; 0: no bound */
    int n_devices;
    /* Since open: */
    uint64_t appended_bytes, read_bytes;
    uint64_t n_hits, n_misses, n_evicted, n_corrupt; /* chunks; n_corrupt: condemned */
    uint64_t misses[STORE_MISSES]; /* n_misses by the reason of the first one of a chain */
    uint64_t evictions[STORE_EVICTS]; /* chunks; n_evicted: all up to SUPERSEDED */
    uint64_t n_evicted_pinned;        /* of n_evicted: for want of anything else */
    uint64_t n_guarantees_broken;     /* by damage */
    uint64_t n_checksum_failures;     /* records that store_read_check refused */
    uint64_t n_read_failures;         /* records that the device did not give */
    int saving_fault; /* 0, or the error after which the store no longer saves */
    struct store_dram dram;
};
void store_stats(struct store *s, struct store_stats *out);
/* out->dram alone. */
void store_dram_stats(struct store *s, struct store_dram *out);

struct store_entry {
    struct sha256 key, parent, fingerprint;
    uint64_t owner;
    uint32_t chunk_idx;
    int n_tokens;
    struct store_mask mask;
    uint64_t bytes;
    int64_t used_wall_s; /* last use */
    uint64_t tick;       /* orders uses: of two leaves the lower one is evicted first */
    int64_t pinned_until_wall_s; /* 0: not pinned */
    int64_t expires_wall_s;      /* unless it is used before; 0: it does not */
    bool is_guaranteed;          /* it or a chunk that continues it is guaranteed */
};
/* Calls fn for every chunk, parents before children within a chain; stops where fn returns
 * non-zero and returns that. */
int store_each(struct store *s, int (*fn)(void *arg, const struct store_entry *e),
               void *arg, struct err *err);

struct store_verify {
    uint64_t n_chunks, n_records, n_bytes, n_bad;
};
/* Reads and checks everything: superblocks, headers against the index, every record. `report` (may
 * be NULL) is called for each bad one; `progress` (may be NULL) now and then. */
int store_verify(struct store *s, struct store_verify *out,
                 void (*report)(void *arg, const char *what),
                 void (*progress)(void *arg, uint64_t done_bytes, uint64_t all_bytes),
                 void *arg, struct err *err);

/* Removes extents and files that no chunk names, and cuts files at their last used byte. */
int store_gc(struct store *s, uint64_t *freed_bytes, struct err *err);

#endif
