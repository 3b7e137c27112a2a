/* store.h - durable, checksummed chunks of saved model state (format: docs/STORE_FORMAT.md).
 *
 * The mental model. A *chunk* is the state of 64 consecutive tokens. It is named by a SHA-256
 * *key* that hashes the whole chain of tokens up to its end, so equal prefixes share chunks
 * without any session id. A chunk has *records*, one per (layer, kind). Its *mask* lists the
 * existing ones; records may be added later. A chunk is written as one *extent* per device (=
 * store directory) that has records of it: a 4 KiB self-describing header, then 4 KiB-aligned
 * records. The record of layer l of chunk c lies on device (c + l) mod n_devices.
 *
 * The store knows bytes, not tensors: only the caller knows the meaning of a record.
 *
 * Durability. store_append makes nothing durable and nothing visible. store_commit does both,
 * for everything appended before it: data written -> data durable -> index committed. After it
 * returns 0, those chunks survive process death, an OS crash and power loss. Before that, a
 * crash leaves each of them either absent or whole.
 *
 * Trust. Every byte that is handed out was checked against its checksum, or is marked as not yet
 * checked. Any doubt makes a chunk a miss with a reason; the store never repairs by guessing.
 *
 * Threads. All functions are thread-safe except those on a store_reader, which belongs to one
 * thread at a time. */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/layer_set.h"
#include "base/minmax.h"
#include "seal/seal.h"
#include "store/placement.h"
#include "store/placement_price.h"

#define STORE_CHUNK_TOKENS 64
/* Two reasons of store_lookup: the chunk was never stored, or it is on its way to the disk. */
#define STORE_WHY_ABSENT      "not stored"
#define STORE_WHY_UNCOMMITTED "not committed yet"
#define STORE_MAX_LAYERS      128
#define STORE_MAX_DEVICES     16
#define STORE_ALIGN           4096
#define STORE_RANK            "hcache.rank"

struct io;
struct io_alarm;
struct store;
struct store_reader;

/* The two kinds of records. To restore a layer, a context needs one of them; without either the
 * layer is recomputed. */
enum store_kind {
    STORE_HIDDEN = 0, /* the layer's input (hidden states) */
    STORE_KV = 1,     /* keys before RoPE, and values */
};
#define STORE_KINDS 2

/* The records of a chunk: bit l of has[kind] for layer l. */
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

/* Returns the parent of a context's first chunk: SHA-256(fingerprint, salt), fields tagged. The
 * salt (NULL is the empty one) keeps tenants apart. */
struct sha256 store_root_key(const struct sha256 *fingerprint, const char *salt);

/* Returns SHA-256(parent, 64 token ids), fields tagged. */
struct sha256 store_chunk_key(const struct sha256 *parent,
                              const int32_t tokens[STORE_CHUNK_TOKENS]);
/* Returns the key of a *partial* chunk, 1 <= n_tokens <= 64: the end of a context whose last
 * chunk is not full. With 64 tokens it is store_chunk_key. */
struct sha256 store_partial_key(const struct sha256 *parent, const int32_t *tokens,
                                int n_tokens);

/* A *snapshot* is the states of a model's recurrent layers behind the last token of a chunk. To the
 * store it is a chunk of its own: it continues that chunk by one token, STORE_STATE_TOKEN, which no
 * text has, and has a record of kind STORE_HIDDEN for each of these layers. So it is evicted,
 * condemned and dropped on its own, and erased and exported with the chunk that it continues.
 * Returns its key. `chunk` is the key of the chunk, which may be partial. */
#define STORE_STATE_TOKEN (-1)
struct sha256 store_state_key(const struct sha256 *chunk);

/* Returns the parent of a stair's first chunk in a truncated context (store/truncation.h):
 * SHA-256(the key of the previous chunk, the numbers C, S, K), fields tagged. So the keys of a
 * stair's chunks name all tokens before them and the truncation. No chunk has this key: to the
 * store each stair is a context of its own, whose tail is evicted before its head. */
struct sha256 store_stair_key(const struct sha256 *parent, const uint32_t numbers[3]);

/* Returns the owner of chunks under a salt, for quotas and statistics: a number made from the salt;
 * 0 for the empty salt (or NULL). The owner is stored with the chunk. A reader cannot derive the
 * salt from the owner, except by guessing. */
uint64_t store_owner(const char *salt);

/* --- life cycle ----------------------------------------------------------------------------- */

/* Allocator for the DRAM backend's segments and for the DRAM tier's arena, for example pinned
 * memory. get returns zeroed, page-aligned memory, or NULL. Any thread may call both functions. */
struct store_memory {
    void *(*get)(void *arg, size_t bytes);
    void (*put)(void *arg, void *p, size_t bytes);
    void *arg;
};

struct store_opts {
    struct io *io; /* the file system; NULL selects the DRAM backend, which ignores dirs */
    struct store_memory memory; /* memory.get NULL: ordinary memory */
    /* The DRAM backend has the system provide ordinary memory before it is used (ahead.h). This is
     * for a store that is filled faster than the system zeroes memory. With cap_bytes, the whole
     * newest segment is provided, up to cap_bytes, from store_open on; without it, 256 MiB ahead of
     * the used part. */
    bool memory_ahead;
    /* Size of the arena for copies of chunks in DRAM, in front of the disk (tier.h); 0: none.
     * The DRAM backend and stores opened read_only have none. */
    uint64_t dram_bytes;
    /* If the memory of dram_bytes is not available, half of it is tried, then a quarter, and so on;
     * below 64 MiB there are no copies. store_dram_stats tells the size. If dram_optional is false,
     * the store is not opened: -ENOMEM. */
    bool dram_optional;
    /* Memory for copies that the system provides ahead of its use, at the lowest priority; 0:
     * 256 MiB. If it is at least dram_bytes, all memory is provided from store_open on, on every
     * processor (see store_await_dram). */
    uint64_t dram_ahead_bytes;
    /* [n_dirs] one directory per device, in order; missing ones are created */
    const char *const *dirs;
    int n_dirs;
    /* Number of processes whose files `io` reaches (tensor/peers.h). A new store has each of dirs[]
     * at every process: at process R > 0 it is DIR/STORE_RANK R. 0 or 1: this one alone. */
    int n_processes;
    uint64_t cap_bytes; /* bound on all extents together at all times; 0: none */
    /* Bound on all files of the store together at all times; 0: none. The part of this bound that
     * is left for extents is a second bound like cap_bytes (space.h). store_open returns ERR_USAGE
     * if nothing is left. The DRAM backend ignores it. */
    uint64_t files_cap_bytes;
    /* policy that chooses the leaf to evict first when a bound is reached */
    enum placement_kind policy;
    /* Opens the store for stat, ls and verify: nothing is changed, the lock is shared with other
     * read-only users, and a copy of the index is read if another process has the store open for
     * writing. */
    bool read_only;
    /* [SEAL_KEY_BYTES] Secret of an encrypted store; NULL: the store is not encrypted. A store
     * keeps what it was made with: another key, or none, is ERR_MISMATCH. The DRAM backend ignores
     * it. */
    const uint8_t *key;
    /* reads and writes go through the page cache, for warm reads and tests */
    bool no_direct;
    /* For a new store: the size of its segment files, which also bounds one chunk's bytes per
     * device. A multiple of STORE_ALIGN, at most 4 GiB. 0: 1 GiB. */
    uint64_t segment_bytes;
    /* Bound on the extents of each owner for which store_set_quota was not called; 0: none. */
    uint64_t quota_bytes;
    /* Bound on the guaranteed bytes of each owner (store_guarantee); 0: only the owner's quota
     * bounds them. */
    uint64_t guarantee_bytes;
    /* If no request for state completes for this long, the requests in flight are cancelled and
     * fail with -ETIMEDOUT; 0: 30 s. Requests that a device does not release end with the kernel's
     * own timeout for that device. */
    int64_t stuck_ns;
};

/* Opens or creates a store, recovers it, and takes its lock. Returns ERR_MISMATCH if the
 * directories belong to different stores, or their number or order does not match their
 * superblocks (the message says which); ERR_BUSY if another process uses the store;
 * ERR_UNSUPPORTED for another format version. The caller closes *out. */
int store_open(const struct store_opts *opts, struct store **out, struct err *err);

/* Returns the process that has the store open for writing, if this store was opened read_only
 * beside it; else NULL. The content may be older than in the other process. An extent that the
 * other process evicts meanwhile reads as damaged. */
const char *store_beside(const struct store *s);

/* Closes without committing: chunks appended since the last commit are lost. No reader, hit or
 * other thread may be using the store. NULL is allowed. */
void store_close(struct store *s);

/* Recounts chunks, space and bytes. Returns false if they do not add up. For tests. */
bool store_audit(struct store *s);

/* --- writing -------------------------------------------------------------------------------- */

struct store_record {
    int layer;
    enum store_kind kind;
    const void *bytes;
    uint32_t n_bytes;
    /* Makes the record's bytes if `bytes` is NULL, so that a chunk's bytes need not exist all at
     * once. The append calls it when it writes the record, and again if it writes anew after a full
     * disk. The bytes are valid until the next call. Returns NULL if they could not be made; then
     * the append fails. */
    const void *(*make)(void *arg, const struct store_record *r);
    void *make_arg;
    /* The caller has just verified `checksum`, the checksum64 of the bytes; false: the store
     * computes it. */
    bool has_checksum;
    uint64_t checksum;
    /* The bytes are a packed run (pack/pack.h) of n_bytes. The store keeps and hands them out as
     * they are. */
    bool is_packed;
};

/* A request's hints about the next use of its chunks. All 0: no hints. */
struct store_use {
    int turn;            /* number of the turn in its conversation, from 1; 0: unknown */
    bool may_call_tools; /* the answer may be a tool call, whose result comes back soon */
    uint32_t reuse_in_s; /* a client's guess of the time until the next use; 0: none */
    /* The chunks expire after this time without a use; 0: they do not expire. */
    uint32_t ttl_s;
    uint64_t lot; /* a number that all chunks of one request share */
    /* How many tokens must be computed for each token of these chunks if they are lost
     * (engine/view.h); 0 means 1. */
    double share;
};

struct store_chunk {
    struct sha256 key;
    struct sha256 parent; /* key of the previous chunk; for chunk 0 the root key */
    /* Fingerprint of the state. The header keeps it, to explain misses. */
    struct sha256 fingerprint;
    uint64_t owner;     /* owner of the chunk: store_owner(salt) */
    uint32_t chunk_idx; /* position in the context: first token = 64 * chunk_idx */
    int n_tokens;       /* 1 to 63: a partial chunk; 0 or 64: a full one */
    int32_t tokens[STORE_CHUNK_TOKENS];
    const struct store_record *records;
    int n_records;
    /* A partial chunk that yields is the end of one context, and is not needed once that context
     * goes on. The flag is stored with the chunk. Without it many contexts may continue the chunk,
     * for example a document. A chunk that was appended both with and without the flag does not
     * yield. But if it was first stored with the flag, it yields again after the store is
     * reopened. */
    bool yields;
    /* The partial chunk that this one continues; may be NULL. If that chunk yields, it is removed
     * after this one has been committed. The removal is part of the next commit, so a crash can
     * leave both chunks, but never neither. */
    const struct sha256 *supersedes;
    /* Result of store_epoch when the request that computes the chunk began; 0: the chunk belongs to
     * no request. */
    uint64_t epoch;
    /* Key of the chunk that the same request computed just before; NULL if that is `parent`. */
    const struct sha256 *follows;
    struct store_use use;
    /* The records are all that the stored chunk has, in another form (packed), and replace it: one
     * commit adds these and drops those. The append evicts nothing. It changes nothing and returns
     * ERR_BUSY if the chunk is not stored with just these records, is being saved, or if there is
     * no room for both. */
    bool replaces;
    /* The append fails with ERR_BUSY if it could only make room by evicting chunks that waiting
     * requests need sooner than this one (placement_admits). */
    bool may_be_refused;
};

/* Writes the records that the store does not have yet (one extent, one sequential write, per
 * device) and evicts leaves if a bound demands it, in the order of store/placement.h. The caller
 * may free the records' bytes when it returns. A chunk may be appended before its parent; it can be
 * found only once its parent can be found.
 *
 * Returns ERR_LIMIT if the chunk does not fit under the cap or into the owner's quota (whose own
 * leaves are evicted first); nothing was written. A full disk acts as a lower cap if there is a
 * cap: leaves are evicted to make space. Returns -ENOSPC if there is no cap (nothing is evicted
 * then), or evicting did not help. After -ENOSPC and other I/O errors nothing of this call will
 * become visible, and the caller may try again. Returns ERR_ERASED if the chunk, or state before
 * it, was erased after its request had begun (store_chunk.epoch): it will not become visible. */
int store_append(struct store *s, const struct store_chunk *chunk, struct err *err);

/* The barrier: makes everything appended before the call durable and visible. After an error
 * nothing that was uncommitted is visible. After -ENOSPC uncommitted chunks stay appended, and the
 * next commit tries again. Any other error is final, since a device that failed to sync may have
 * lost bytes that it reported as written: everything uncommitted is dropped, and every append and
 * commit returns this error until the store is opened anew. Reading goes on. */
int store_commit(struct store *s, struct err *err);

/* --- looking up ----------------------------------------------------------------------------- */

/* A chunk that was found. It cannot be evicted until it is released. */
struct store_hit {
    struct sha256 key;
    uint32_t chunk_idx;
    int n_tokens; /* number of tokens: 64, or fewer in a partial chunk */
    struct store_mask mask;
    /* Bytes that reading its records takes, by store_kind: whole sectors. Set by lookups. */
    uint32_t bytes[STORE_KINDS];
    void *impl; /* for the store's own use */
};

/* Finds the longest stored chain of keys[0..n) and pins it. Returns its length, up to which hits[]
 * is filled. `use` has the request's hints about the next use of the chunks; NULL: none. `why` (may
 * be NULL) receives the reason why the chain is not longer: "complete", "not stored", "state of
 * another model or build (fingerprint 12ab..)", "header unreadable", ... */
int store_lookup(struct store *s, const struct store_use *use, const struct sha256 *keys,
                 int n, struct store_hit *hits, char *why, size_t why_bytes);
void store_release(struct store *s, struct store_hit *hits, int n);
/* Notes that a waiting request needs the chunks of keys[0..n), stored or not. The request will be
 * served before requests of a later turn. Policies that look ahead evict these chunks after all
 * chunks that no request needs. Returns how many of the keys the window had room for. When the
 * request waits no longer, the caller withdraws exactly these keys, once. The window is bounded by
 * 65,536 chunks. */
int store_expect_use(struct store *s, const struct sha256 *keys, int n, uint64_t turn);
void store_expect_use_no_more(struct store *s, const struct sha256 *keys, int n,
                              uint64_t turn);

/* Pins one chunk by its key, wherever it stands in a chain, and with it all chunks before it, since
 * only leaves are evicted. Returns false if the chunk is not stored. The hit cannot be used for
 * reading before store_load, because the records are not looked up. hit NULL: only asks. */
bool store_pin(struct store *s, const struct sha256 *key, struct store_hit *hit);
/* Looks up a pinned chunk's records, on the disk if need be. Returns 0 or the error. */
int store_load(struct store *s, const struct store_hit *hit, struct err *err);
/* Returns whether a loaded chunk has a record of more than a block that is not packed. */
bool store_has_unpacked(struct store *s, const struct store_hit *hit);
/* Returns another hold on a chunk that the caller holds, to be released separately. This also
 * works for a chunk that lookups no longer find because it was superseded: its holders can still
 * read it. */
struct store_hit store_hold(struct store *s, const struct store_hit *held);

/* Finds the longest stored partial chunk behind `parent` whose tokens are tokens[0..*n_found), with
 * *n_found <= n_tokens < 64. Returns false if there is none. *key is its key; look it up as the
 * last key of a chain. */
bool store_find_partial(struct store *s, const struct sha256 *parent, const int32_t *tokens,
                        int n_tokens, struct sha256 *key, int *n_found);

/* Returns the place where a context leaves the most similar stored chunk. That is the chunk behind
 * `parent` with the longest common beginning with tokens[0, n). The result is the length of this
 * beginning, if both continue with different tokens. It is -1 if there is no chunk, or if the chunk
 * or the n tokens end there.
 *
 * The search looks at the newest 4096 chunks behind the parent. It reads at most STORE_NEAREST
 * headers of the most similar ones, and as many headers of chunks that this process has not seen
 * since it opened the store. So among many similar chunks it may miss one whose common beginning is
 * a token or two longer, and it misses an old chunk until searches have reached that chunk. Chunks
 * of another salt or model have other parents, so the result reveals nothing about them. */
enum { STORE_NEAREST = 8 };
int store_differs_at(struct store *s, const struct sha256 *parent, const int32_t *tokens,
                     int n);

/* Pins up to n full chunks of a model's state, for measurements. Unlike a lookup, it neither marks
 * them as used nor counts them. Takes chunks that others continue first, since pins on leaves would
 * keep whole contexts from eviction. Returns their number. */
int store_sample(struct store *s, const struct sha256 *fingerprint, int n,
                 struct store_hit *hits);

/* Sets the fingerprint that the caller looks for (NULL: none), so that a lookup can report "state
 * of another model or build". Changes nothing else. */
void store_expect(struct store *s, const struct sha256 *fingerprint);

/* --- records that may be dropped alone -------------------------------------------------------- */

/* Has full chunks of this fingerprint that are appended from now on keep the records of some layers
 * in extents of their own, so that store_drop_records can drop these. Call it once, before the
 * first append. */
void store_keep_apart(struct store *s, const struct sha256 *fingerprint,
                      const struct layer_set *layers);
/* Drops the records of these layers from a held and loaded chunk, and returns their bytes. Look-ups
 * made later no longer find them; earlier hits can still read them. Records that share an extent
 * with others stay, and so do all records of a guaranteed chunk, of one that is being saved, and of
 * one that would have none left. The next commit makes it durable; after a crash before it the
 * records may be back. A later append of the chunk stores them anew. */
uint64_t store_drop_records(struct store *s, const struct store_hit *hit,
                            const struct layer_set *layers);

/* A full chunk of a stored chain. */
struct store_link {
    struct sha256 key;
    struct store_mask mask;
    bool is_branch; /* several full chunks continue it */
    bool is_pinned; /* it has a lasting pin */
};
/* Returns the chain of full chunks that ends with a stored chunk, in their order, or NULL if a
 * chunk of it is missing. *n gets their number, and the caller frees the list. The disk is not
 * read, and the chunks do not count as used. */
struct store_link *store_chain_of(struct store *s, const struct sha256 *last, int *n);

/* Declares a chunk damaged after a failed check. This chunk and all that continue it are misses
 * from now on, until it is appended again. The reason is remembered and counted. Its bytes are
 * removed at the next commit after the last release. */
void store_condemn(struct store *s, const struct store_hit *hit, const char *reason);

/* Returns whether the chunk is missing because it was condemned. */
bool store_was_damaged(struct store *s, const struct sha256 *key);
/* Reads a whole stored chunk, headers included, and condemns it if anything is wrong (*is_good
 * false). Returns 0 or the error of the device. */
int store_verify_chunk(struct store *s, const struct sha256 *key, bool *is_good,
                       struct err *err);

/* --- lasting pins ----------------------------------------------------------------------------- */

/* Keeps chunks from eviction until a time (seconds since 1970, wall clock), whether they are stored
 * yet or not. Durable when it returns 0: a restart does not end a pin, but a rebuilt index does. A
 * pin is a preference; the cap (and a quota) is a bound. Pinned chunks are evicted only if nothing
 * else can be, and are counted (n_evicted_pinned). A chunk is evicted only after all that continue
 * it, so pinning the last chunk of a context keeps the whole context. A second pin of a key
 * replaces the first. There may be STORE_MAX_PINS at a time, and one for each KiB of the index's
 * share of files_cap_bytes. Returns ERR_LIMIT beyond that. */
#define STORE_MAX_PINS (1 << 20)
int store_pin_until(struct store *s, const struct sha256 *keys, int n, int64_t until_wall_s,
                    struct err *err);
/* Ends pins before their time; keys without a pin are ignored. Durable when it returns 0. */
int store_unpin_keys(struct store *s, const struct sha256 *keys, int n, struct err *err);

/* Guarantees that a stored chain stays: keys[0..n) are all chunks of a context (of a truncated
 * context: the chunks that its last token sees). Until the given time they are not evicted: neither
 * for the cap, a quota or a full disk, nor by an idle time or gc. Durable when it returns 0; a
 * restart does not end it.
 *
 * A guarantee that cannot be kept is refused, and then nothing has changed:
 *
 *     ERR_NOT_FOUND   a chunk is not stored, or not committed
 *     ERR_LIMIT       the guaranteed bytes would exceed three quarters of the cap, three quarters
 *                     of the owner's quota, or store_opts.guarantee_bytes of the owner
 *
 * The message has the sums, and so has *out (may be NULL).
 *
 * A guarantee ends at its time, by store_unpin_keys, and by store_erase of its chunks. An ordinary
 * pin of the same key changes nothing. Two faults break it: damage to its bytes on the disk, and an
 * index that had to be rebuilt. The first is counted (n_guarantees_broken) and logged; the rebuild
 * is logged. A store does not open with a cap below the bytes that it has guaranteed: ERR_LIMIT. */
struct store_guaranteed {
    uint64_t n_bytes; /* bytes that this guarantee adds */
    /* bytes guaranteed in the whole store, and their limit (0: none) */
    uint64_t all_bytes, limit_bytes;
    /* bytes guaranteed for the owner, and their limit (0: none) */
    uint64_t owner_bytes, owner_limit_bytes;
};
int store_guarantee(struct store *s, const struct sha256 *keys, int n, int64_t until_wall_s,
                    struct store_guaranteed *out, struct err *err);

struct store_pinned {
    struct sha256 key;
    int64_t until_wall_s;
    bool is_stored;
    bool is_guaranteed;
};
/* Calls fn for each pin that has not run out, until fn returns non-zero; returns that result. */
int store_each_pin(struct store *s, int (*fn)(void *arg, const struct store_pinned *p),
                   void *arg);

/* Sets the costs from which the policy `ours` computes the value of chunks that are used from now
 * on. */
void store_set_price(struct store *s, const struct placement_price *price);
/* Sets the weight of shared need: each time that the number of waiting requests that need a chunk
 * doubles, the chunk counts as needed `turns` turns earlier (placement_window.h). */
void store_set_step(struct store *s, uint64_t turns);
/* Makes chunks the first to be evicted, because the caller no longer needs them. Chunks in use
 * stay, and a later lookup of a chunk cancels this. The change is written with the next commit, as
 * uses are. */
void store_drop(struct store *s, const struct sha256 *keys, int n);

/* --- erasing -------------------------------------------------------------------------------- */

/* Returns the number of the last erasure, which is at least 1. A request takes it when it begins,
 * before its first look-up, and its chunks carry it (store_chunk.epoch). An erasure then reaches
 * all state of requests that began before it, also chunks that are appended later. */
uint64_t store_epoch(struct store *s);
/* Begins a new epoch. From then on no chunk of a request that began before can be appended. */
void store_refuse_former(struct store *s);

struct store_erased {
    uint64_t n_chunks, n_bytes; /* chunks that were erased, and their bytes */
    /* chunks that were kept because stored chunks outside of keys[] continue them */
    uint64_t n_shared;
    /* Chunks in use by a hit or a running append: every lookup misses them from now on, and the
     * first commit after the last release erases them. This is not remembered across a restart:
     * call again. */
    uint64_t n_busy;
    /* Set if store_erase fails because the disk is full (-ENOSPC), or because nothing can be
     * written until the store is opened again. Counts chunks that every lookup misses from now on,
     * but whose bytes are still in the files. On a full disk store_settle erases them when there is
     * room. */
    uint64_t n_owed;
    /* Matters only if the store cannot be written. True: all waiting erasures are noted on the
     * disk. The next open for writing carries them out, and an open for reading does not find the
     * chunks. False: the erasures are forgotten when the store is closed, unless store_settle can
     * note them before. */
    bool is_noted;
    char not_noted_because[200];
};

/* Erases keys[0..n), one chain in its order (not necessarily from its beginning), except chunks
 * that other stored chunks continue. The caller must know whether another context ends inside
 * the chain. Ends their pins. Uncommitted appends are committed first.
 *
 * After it returns 0 with n_busy == 0, the following holds for good (crashes included). The
 * chunks are absent, their rows are gone from the index, and the bytes of their extents (state,
 * and token ids in the headers) read as zeros in the segment files. So do all free bytes of the
 * segment files: superseded ends of contexts, evicted copies, and chunks that were never
 * committed. Keys (hashes) may stay in pages of the index's log until store_gc; after it no byte
 * of the chunks is left in any file of the store. Blocks that a file system or a device was told
 * to free are beyond this: encrypt the device if that matters.
 *
 * n may be 0: then only free bytes are wiped.
 *
 * After an error the chunks may be absent already; the next erase, gc or open wipes the rest. If
 * the store cannot be written at all, out->n_owed is the number of chunks that still must be
 * wiped. */
int store_erase(struct store *s, const struct sha256 *keys, int n, struct store_erased *out,
                struct err *err);

/* Sets `fn`. Each erasure calls it with the keys of the erased chunks, children before parents,
 * before the erasure returns. fn runs on the erasing thread, under a lock of the store, and must
 * not call back into the store. NULL: no more calls. */
void store_on_erased(struct store *s,
                     void (*fn)(void *arg, const struct sha256 *keys, int n), void *arg);

/* Erases all chunks of an owner, with the effects of store_erase. */
int store_erase_owner(struct store *s, uint64_t owner, struct store_erased *out,
                      struct err *err);

/* Background work; call it every few seconds, on any thread. The function tries again erasures that
 * stopped because the disk was full or could not be written. It also reads the headers of chunks
 * that lookups have found, each once, and condemns a chunk whose header is damaged: restoring reads
 * no headers, and a rebuild of the index would drop the chunk. */
int store_settle(struct store *s, struct err *err);

/* Erases the stored chunks that contain a whole erased text, with all that continues them.
 * keys[] holds the keys of that text's chunks and of its unfinished end (store_partial_key).
 * Call it before store_erase(keys), which stops at chunks that others continue. */
int store_erase_continuing(struct store *s, const struct sha256 *keys, int n,
                           struct store_erased *out, struct err *err);

/* Evicts the chunks that were last used before a time (seconds since 1970), ends of contexts
 * first. Chunks in use or pinned stay, and so do all chunks before them. The committed part of
 * last-use times survives a restart. Space is free when it returns 0; *n_chunks is the number of
 * evicted chunks. Evicted bytes stay in the files until the space is reused, as after any
 * eviction: use store_erase for data that must leave no remains. */
int store_evict_idle(struct store *s, int64_t before_wall_s, uint64_t *n_chunks,
                     struct err *err);

/* Evicts the chunks that were not used for their time to live (store_use.ttl_s). A chunk that
 * requests with different times use has the longest of them; a use without a time to live counts as
 * the longest. A chunk stays while it is in use, is pinned, or is continued by another chunk. The
 * time to live and the time of the last use survive a restart. store_open evicts chunks that have
 * expired meanwhile; so does an append that needs room. *n_chunks is the number of evicted
 * chunks. */
int store_evict_expired(struct store *s, uint64_t *n_chunks, struct err *err);

/* --- quotas --------------------------------------------------------------------------------- */

/* Bounds the extents of one owner from now on, until the store is closed; 0: no bound. Bytes
 * beyond the bound are evicted at the owner's next append. */
void store_set_quota(struct store *s, uint64_t owner, uint64_t quota_bytes);

struct store_owner_use {
    uint64_t owner;
    /* Bytes of the owner's extents, appended ones included; their bound, 0: none. */
    uint64_t used_bytes, quota_bytes;
    uint64_t guaranteed_bytes; /* part of used_bytes */
    uint64_t n_chunks;
};
/* Calls fn for each owner that has chunks or a quota. */
int store_each_owner(struct store *s, int (*fn)(void *arg, const struct store_owner_use *u),
                     void *arg);

/* --- reading -------------------------------------------------------------------------------- */

/* One record to be read. The caller sets the first block of fields. dst must be
 * STORE_ALIGN-aligned, have room for the whole blocks that the record lies in, and live until
 * completion. A plain record lies in n_bytes rounded up to STORE_ALIGN. A packed one may begin
 * inside a block; the saver packs a record only if it then lies in no more blocks than before.
 * A record for which dst_bytes may not suffice is not read, and its status is ERR_MISMATCH. */
struct store_read {
    const struct store_hit *hit;
    int layer;
    enum store_kind kind;
    void *dst;
    /* Room at dst. 0: the caller knows that the record fits, and that it is not packed. */
    size_t dst_bytes;
    void *user;

    /* Address of the record: in dst, in the DRAM backend's memory, or in a copy of the DRAM
     * tier. */
    const uint8_t *bytes;
    /* Copy in DRAM that serves the read until store_read_release; NULL: no copy serves it. */
    struct tier_copy *copy;
    bool was_cached; /* bytes came from the system's page cache */
    uint32_t n_bytes;
    uint64_t checksum; /* expected checksum, for store_read_check */
    struct store *store;
    /* The bytes are a packed run of n_bytes (store_record.is_packed). */
    bool is_packed;
    /* The bytes are encrypted. store_read_check decrypts them at dst, and sets bytes, n_bytes and
     * checksum to those of the record. */
    bool is_sealed;
    const struct seal *of_owner; /* seal of the bytes' owner; NULL: its key is gone */
    int status;                  /* 0, or the negative code of the failure */
};

/* Returns whether a completed read's record lies in the caller's memory, not in the store's. */
static inline bool store_read_is_in_dst(const struct store_read *read)
{
    const uint8_t *dst = read->dst;
    return read->bytes >= dst && read->bytes < dst + MAX(read->dst_bytes, 1);
}

/* Returns the room at dst with which every record of at most n_bytes can be read. With s NULL the
 * store counts as not encrypted. */
size_t store_read_room(const struct store *s, size_t n_bytes);

/* As seal_open_bytes_per_s; 0: the store is not encrypted. */
double store_unseal_bytes_per_s(const struct store *s);

/* Opens a reader with an I/O queue of its own. `staging` (may be NULL) is one region that holds
 * every dst and is registered with the I/O backend once. */
int store_reader_open(struct store *s, int depth, void *staging, size_t staging_bytes,
                      struct store_reader **out, struct err *err);
/* Waits for reads in flight. NULL is allowed. */
void store_reader_close(struct store_reader *r);
/* Makes the reader take records from copies in DRAM if there are any. Its user calls
 * store_read_release for each read, once the bytes are no longer needed. Other readers read only
 * the disk, in order to check or measure it. */
void store_reader_use_dram(struct store_reader *r);
/* Lets the reader take records from the system's page cache where it has them. Neither reads nor
 * writes of a store fill that cache. The reader's user checks each record with store_read_check. */
void store_reader_use_page_cache(struct store_reader *r);
/* Releases the copy in DRAM that served the read, if any. Any thread. */
void store_read_release(struct store_read *read);

/* Starts reads over all devices at once. The structs stay the caller's memory. */
void store_reader_submit(struct store_reader *r, struct store_read *const *reads, int n);
/* Waits for at least one completion, if a read is in flight. done[0..*n_done) are the completed
 * reads; *n_done <= max. */
int store_reader_wait(struct store_reader *r, struct store_read **done, int max,
                      int *n_done, struct err *err);
/* Reads one record and checks it (store_read_check), while no other read is in flight. */
int store_reader_read(struct store_reader *r, struct store_read *read, struct err *err);
/* The two halves of store_reader_wait. poll hands out complete reads without waiting. await waits
 * until at least one read is complete (if any is in flight), or most_ns have passed. Reads are
 * cancelled after stuck_ns without a completion, counted over all calls. */
int store_reader_poll(struct store_reader *r, struct store_read **done, int max,
                      int *n_done, struct err *err);
int store_reader_await(struct store_reader *r, int64_t most_ns, struct err *err);
/* From now on a ring of the alarm ends store_reader_await early. */
void store_reader_listen(struct store_reader *r, struct io_alarm *alarm);

/* Checks the bytes of a completed read. Call it once per record before the bytes are used, on any
 * thread. Completion alone does not mean that the bytes are right. Returns 0, or ERR_CORRUPT, or
 * -EAGAIN if a copy in DRAM is damaged: the copy is dropped, and the next read takes the record
 * from the disk. */
int store_read_check(struct store_read *read, struct err *err);
/* Judges a completed read like store_read_check, by `sum`: the checksum64 of the n_bytes, computed
 * elsewhere, on a copy of them. */
int store_read_judge(const struct store_read *read, uint64_t sum, struct err *err);

/* All that turns the stored bytes into a record, also in another process (mpi/records.h). */
enum { STORE_NAME_BYTES = sizeof(struct sha256) + 3 };
struct store_form {
    uint32_t begin, n_bytes; /* the stored bytes lie at `begin` */
    bool is_packed, is_sealed;
    uint64_t checksum;              /* store_read.checksum */
    uint8_t key[SEAL_KEY_BYTES];    /* key of the owner's runs (seal_of_runs) */
    uint8_t name[STORE_NAME_BYTES]; /* name under which the run is sealed */
};
/* A record's place in a file, for a caller whose memory no store_reader can use. */
struct store_place {
    int fd; /* owned by the store, open as long as the hit is held */
    uint64_t offset;
    size_t bytes; /* bytes to be read: whole blocks of STORE_ALIGN */
    struct store_form form;
};
/* Returns whether the store's records are in files that the caller can read itself. They are not if
 * the store is in memory, on a simulated disk, or throttled. */
bool store_has_files(const struct store *s);
/* Fills in *out and the fields of *read that store_reader_submit would, except `bytes`. Check the
 * bytes with store_read_judge; of a sealed record that opens, the sum is form.checksum. Returns
 * non-zero if the read must be left to a store_reader, which then reports the reason. */
int store_read_place(struct store *s, struct store_read *read, struct store_place *out);
/* Reports the status of a read that store_read_place has placed. The store counts failures. */
void store_read_end(struct store_read *read, int status);
/* Returns store_opts.stuck_ns, or its default. */
int64_t store_stuck_ns(const struct store *s);

/* Sets in_dram[i] for each of n hits: whether a reader that uses copies (store_reader_use_dram)
 * would now take all of its records from DRAM. */
void store_in_dram(struct store *s, const struct store_hit *hits, int n, bool *in_dram);

/* --- reading ahead -------------------------------------------------------------------------- */

/* Notes that a waiting request will need keys[0..n), which the KV pool does not hold. Requests of a
 * lower turn are served before it. `id` names the request; a second call with the same id replaces
 * the first. Any thread. Does nothing without a DRAM tier. */
void store_fetch_want(struct store *s, const void *id, const struct sha256 *keys, int n,
                      uint64_t turn);
/* Returns the processor time, in seconds, that the system would take to provide memory for copies
 * of keys[0..n). Memory provided ahead costs nothing, but other waiting requests may need it
 * first. Returns 0 if the whole arena is provided, or there is no arena. */
double store_fetch_price_s(struct store *s, const struct sha256 *keys, int n);
/* Withdraws the want of the request `id`. Call it when the request waits no longer. */
void store_fetch_want_end(struct store *s, const void *id);

/* Returns how many of the keys are stored, up to the first missing one. */
int store_count(struct store *s, const struct sha256 *keys, int n);
/* Returns a chunk's name for store_tell_held; never 0. */
uint64_t store_chunk_name(const struct sha256 *key);
/* A change in the caller's own memory (a KV pool): it holds the state of a chunk from now on, or no
 * longer. Copies of held chunks are the first to be dropped, and no copies of them are made
 * ahead. */
struct store_held {
    uint64_t name;
    bool is_held;
};
/* Notes changes. Returns false, and notes none of them, if it would have to wait for a lock. Does
 * nothing without a DRAM tier. */
bool store_tell_held(struct store *s, const struct store_held *changes, int n);

/* Brings state that waiting requests need from the disk to DRAM, a chunk at a time. One thread
 * at a time. */
struct store_fetcher;
/* Opens a fetcher. *out is NULL if there is no DRAM tier. */
int store_fetcher_open(struct store *s, struct store_fetcher **out, struct err *err);
void store_fetcher_close(struct store_fetcher *f); /* Waits for reads in flight. */
enum store_fetch {
    STORE_FETCH_NONE,      /* there is nothing to fetch now */
    STORE_FETCH_WORKED,    /* there may be more to do: call store_fetch_step again */
    STORE_FETCH_NO_ROOM,   /* there is no room for the next fetch: try again later */
    STORE_FETCH_IN_FLIGHT, /* there is nothing more to do until the disk answers */
};
/* Does the next piece of work and never waits. */
enum store_fetch store_fetch_step(struct store_fetcher *f);
bool store_fetch_in_flight(const struct store_fetcher *f);
/* Returns whether the last step found no room. */
bool store_fetch_lacks_room(const struct store_fetcher *f);
/* Call after STORE_FETCH_IN_FLIGHT. Sleeps until the disk has answered, or for timeout_ns. */
void store_fetch_wait(struct store_fetcher *f, int64_t timeout_ns);
/* From now on a ring of the alarm ends store_fetch_wait early. */
void store_fetch_listen(struct store_fetcher *f, struct io_alarm *alarm);

/* --- contents and statistics ---------------------------------------------------------------- */

/* Why a lookup missed a chunk. */
enum store_miss {
    STORE_MISS_ABSENT,      /* never stored, or evicted too long ago to be remembered */
    STORE_MISS_EVICTED,     /* was stored, and evicted */
    STORE_MISS_UNCOMMITTED, /* appended, not committed yet */
    STORE_MISS_DAMAGED,     /* condemned after a failed check */
    STORE_MISS_UNREADABLE,  /* its table of records and its header could not be read */
    STORE_MISS_OTHER_STATE, /* only state of another model or build is stored */
    STORE_MISSES
};
/* Returns "absent", "evicted", ...: a word for metrics and JSON. */
const char *store_miss_name(enum store_miss why);

/* Why a stored chunk was removed. */
enum store_evict {
    STORE_EVICT_CAP, /* evicted to make room under the cap */
    /* Evicted to make room on a disk that was full before the cap was reached. */
    STORE_EVICT_SPACE,
    STORE_EVICT_QUOTA, /* evicted to make room in its owner's quota */
    /* evicted because it was unused since the time of store_evict_idle */
    STORE_EVICT_IDLE,
    /* evicted because it was unused for its time to live (store_evict_expired) */
    STORE_EVICT_EXPIRED,
    /* freed by gc: the chunk before it is gone, so no lookup could find it */
    STORE_EVICT_ORPHAN,
    /* removed because it is a partial chunk that a longer one replaced */
    STORE_EVICT_SUPERSEDED,
    STORE_EVICT_ERASED,  /* erased by store_erase */
    STORE_EVICT_DAMAGED, /* condemned because its bytes were damaged */
    STORE_EVICTS
};
const char *store_evict_name(enum store_evict why);

/* Statistics of the DRAM tier. */
struct store_dram {
    uint64_t cap_bytes; /* 0: there is no tier, and all other fields are 0 */
    uint64_t used_bytes, n_chunks;
    /* The following fields count since the store was opened. */
    uint64_t n_written; /* copies made while their extents were written */
    /* Copies read from the disk ahead, for waiting requests. */
    uint64_t n_promoted, promoted_bytes;
    uint64_t n_unused;  /* part of n_promoted: dropped before they were read */
    uint64_t n_demoted; /* chunks whose copies were dropped to keep room */
    uint64_t n_full;    /* copies not made, because there was no room at once */
    /* records that were served from copies, and their bytes */
    uint64_t n_reads, read_bytes;
};

struct store_stats {
    const char *tier; /* "dram" or "disk": where the chunks are */
    /* n_partial: part of n_chunks, chunks that are not full. */
    uint64_t n_chunks, n_extents, n_partial;
    /* Bytes of extents; the bound on them; bytes that the segment files occupy. */
    uint64_t used_bytes, cap_bytes, file_bytes;
    uint64_t files_cap_bytes;                 /* bound on all files of the store; 0: none */
    uint64_t device_bytes[STORE_MAX_DEVICES]; /* used_bytes by device */
    uint64_t pending_bytes; /* part of used_bytes: appended, not committed */
    uint64_t freeing_bytes; /* part of used_bytes: evicted or erased, not reusable yet */
    uint64_t n_expiring;    /* chunks with a time to live */
    uint64_t n_pins, n_guarantees; /* n_guarantees: part of n_pins */
    /* Part of used_bytes that is guaranteed; its bound, 0: none. */
    uint64_t guaranteed_bytes, guarantee_limit_bytes;
    int n_devices;
    /* The following fields count since the store was opened. */
    uint64_t appended_bytes, read_bytes;
    /* numbers of chunks; n_corrupt: condemned ones */
    uint64_t n_hits, n_misses, n_evicted, n_corrupt;
    /* n_misses by reason; a look-up counts with the reason of its first missing chunk */
    uint64_t misses[STORE_MISSES];
    /* Removed chunks by reason. n_evicted counts all reasons up to SUPERSEDED. */
    uint64_t evictions[STORE_EVICTS];
    /* part of n_evicted: pinned chunks, evicted because nothing else could be */
    uint64_t n_evicted_pinned;
    uint64_t n_guarantees_broken; /* guarantees broken by damage */
    uint64_t n_checksum_failures; /* records that store_read_check refused */
    uint64_t n_read_failures;     /* records that the device failed to read */
    int saving_fault; /* 0, or the error after which the store no longer saves */
    struct store_dram dram;
};
void store_stats(struct store *s, struct store_stats *out);
/* Fills in only out->dram. */
void store_dram_stats(struct store *s, struct store_dram *out);
/* Waits until the system has provided the copies' memory, if all of that memory is provided from
 * store_open on. Returns false after timeout_ns. *n_bytes is the memory provided so far. */
bool store_await_dram(struct store *s, int64_t timeout_ns, uint64_t *n_bytes);

struct store_entry {
    struct sha256 key, parent, fingerprint;
    uint64_t owner;
    uint32_t chunk_idx;
    int n_tokens;
    struct store_mask mask;
    uint64_t bytes;
    int64_t used_wall_s; /* time of the last use, seconds since 1970 */
    /* Order of the last uses: of two leaves the one with the lower tick was used earlier. */
    uint64_t tick;
    int64_t pinned_until_wall_s; /* seconds since 1970; 0: not pinned */
    /* time at which the chunk expires if it is not used before; 0: it does not expire */
    int64_t expires_wall_s;
    bool is_guaranteed; /* the chunk, or a chunk that continues it, is guaranteed */
};
/* Calls fn for every chunk, parents before children within a chain. Stops if fn returns non-zero,
 * and returns fn's result. */
int store_each(struct store *s, int (*fn)(void *arg, const struct store_entry *e),
               void *arg, struct err *err);

struct store_verify {
    uint64_t n_chunks, n_records, n_bytes, n_bad;
};
/* Reads and checks everything: superblocks, headers against the index, every record. Calls `report`
 * (may be NULL) with a description of each fault, and `progress` (may be NULL) now and then. */
int store_verify(struct store *s, struct store_verify *out,
                 void (*report)(void *arg, const char *what),
                 void (*progress)(void *arg, uint64_t done_bytes, uint64_t all_bytes),
                 void *arg, struct err *err);

/* Garbage collection: removes chunks that no lookup can reach, wipes free space, cuts files at
 * their last used byte, and folds the index's log (gc.c). *freed_bytes: bytes by which the segment
 * files have become smaller. */
int store_gc(struct store *s, uint64_t *freed_bytes, struct err *err);

#endif
