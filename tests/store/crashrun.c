#include "crashrun.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/parcel.h"
#include "store/store_impl.h"

enum { N_CTX = 5, N_CHUNKS = 4, N_SLOTS = N_CTX * N_CHUNKS, N_LAYERS = 2, N_STEPS = 24 };
enum { APART = 1 }; /* the layer whose records may be dropped alone */
static const struct layer_set apart = {{1 << APART}};

static const struct st_shape tiny = {.n_layers = N_LAYERS, .n_bytes = {600, 5000}};

/* The judge's knowledge of one chunk. Each mask has bit 2 * layer + kind for each record. */
struct slot {
    struct sha256 key;
    unsigned committed; /* acknowledged by a commit */
    unsigned pending;   /* appended since the last commit */
    unsigned maybe;     /* records that were pending when an interrupted commit began */
    unsigned back;      /* dropped since the last commit: a crash may bring them back */
    bool may_go;        /* an interrupted erase may have removed this chunk */
    bool is_pinned;     /* the pin was acknowledged */
};

struct life {
    struct rng rng;
    struct io *io;
    struct store *s;
    struct store_opts opts;
    char dir[STORE_MAX_DEVICES][32];
    const char *dirs[STORE_MAX_DEVICES];
    struct st_ctx ctx[N_CTX];
    struct slot slots[N_SLOTS]; /* a chunk that several contexts share has one slot */
    int n_slots;
    bool may_evict;  /* the interrupted call may have evicted chunks */
    bool has_faults; /* errors are expected */
    bool had_faults;
    /* the index was rebuilt: evicted or uncommitted records may be back */
    bool may_revive;
    bool may_lose_pins; /* a fault may have cost the index */
    bool lost_segments;
    struct crash_result *out;
};

static bool violated(const struct life *l)
{
    return l->out->violation[0] != 0;
}

static void __attribute__((format(printf, 2, 3)))
violation(struct life *l, const char *fmt, ...)
{
    va_list ap;
    if (violated(l))
        return;
    va_start(ap, fmt);
    vsnprintf(l->out->violation, sizeof l->out->violation, fmt, ap);
    va_end(ap);
}

/* Returns whether an error may come from a fault of the simulated disk. */
static bool may_fail(const struct life *l)
{
    return l->has_faults || io_sim_crashed(l->io);
}

/* Returns whether the disk has lost, misplaced or misread something without reporting it. */
static bool has_lied(const struct life *l)
{
    return io_sim_fault_count(l->io, IO_SIM_LOST, 0) > 0 ||
           io_sim_fault_count(l->io, IO_SIM_MISDIRECTED, 0) > 0 ||
           io_sim_fault_count(l->io, IO_SIM_READ_FLIP, 0) > 0;
}

static struct slot *slot_of(struct life *l, const struct sha256 *key)
{
    for (int i = 0; i < l->n_slots; i++)
        if (memcmp(l->slots[i].key.b, key->b, sizeof key->b) == 0)
            return &l->slots[i];
    return NULL;
}

static unsigned bits_of(const struct store_mask *m)
{
    unsigned bits = 0;
    for (int layer = 0; layer < N_LAYERS; layer++)
        for (int k = 0; k < STORE_KINDS; k++)
            if (store_mask_has(m, layer, (enum store_kind)k))
                bits |= 1u << (2 * layer + k);
    return bits;
}

/* --- the store's own list of its chunks ----------------------------------------------------- */

static int entry_see(void *arg, const struct store_entry *e)
{
    struct life *l = arg;
    struct slot *slot = slot_of(l, &e->key);
    if (slot == NULL) {
        violation(l, "the store lists a chunk that nobody appended");
        return 0;
    }
    /* the upper 16 bits keep these records apart from the pending ones during this pass */
    slot->pending |= bits_of(&e->mask) << 16;
    return 0;
}

/* Fills in seen[i]: the records of slot i that the store lists. */
static void list(struct life *l, unsigned seen[N_SLOTS])
{
    for (int i = 0; i < l->n_slots; i++)
        l->slots[i].pending &= 0xffff;
    store_each(l->s, entry_see, l, NULL);
    for (int i = 0; i < l->n_slots; i++) {
        seen[i] = l->slots[i].pending >> 16;
        l->slots[i].pending &= 0xffff;
    }
}

/* Reads every context ahead into DRAM, as it is done for waiting requests, if the store has copies
 * there. */
static void fetch_all(struct life *l)
{
    struct store_fetcher *f;
    struct store_dram before, after;
    struct err err = {0};
    if (store_fetcher_open(l->s, &f, &err) != 0 || f == NULL)
        return;
    store_dram_stats(l->s, &before);
    for (int c = 0; c < N_CTX; c++) {
        struct sha256 keys[N_CHUNKS];
        st_keys(&l->ctx[c], N_CHUNKS, keys);
        store_fetch_want(l->s, &l->ctx[c], keys, N_CHUNKS, (uint64_t)c);
    }
    for (enum store_fetch did = STORE_FETCH_WORKED;
         did == STORE_FETCH_WORKED || did == STORE_FETCH_IN_FLIGHT;) {
        did = store_fetch_step(f);
        if (did == STORE_FETCH_IN_FLIGHT)
            store_fetch_wait(f, 100000);
    }
    for (int c = 0; c < N_CTX; c++)
        store_fetch_want_end(l->s, &l->ctx[c]);
    store_fetcher_close(f);
    store_dram_stats(l->s, &after);
    l->out->n_promoted += after.n_promoted - before.n_promoted;
}

/* Reads every context. Every record that is found must be right. */
static void read_all(struct life *l)
{
    fetch_all(l);
    for (int c = 0; c < N_CTX && !violated(l); c++) {
        struct st_result r;
        struct err err = {0};
        int rc = st_read_dram(l->s, &tiny, &l->ctx[c], N_CHUNKS, &r, &err);
        l->out->n_dram += (uint64_t)r.n_dram;
        if (rc != 0 && !l->has_faults)
            violation(l, "reading fails: %s", err.msg);
        if (r.n_wrong > 0)
            violation(l, "%d wrong records were served", r.n_wrong);
        l->out->n_wrong += (uint64_t)r.n_wrong;
        if (!has_lied(l) && (r.n_corrupt > 0 || (r.n_unread > 0 && !l->has_faults)))
            violation(l, "%d records that the index names are damaged",
                      r.n_corrupt + r.n_unread);
    }
}

/* Must follow each call that may have evicted. Removes from the judge's sets the records that the
 * store does not list any more. */
static void note_evictions(struct life *l)
{
    unsigned seen[N_SLOTS];
    if (l->opts.cap_bytes == 0)
        return;
    list(l, seen);
    for (int i = 0; i < l->n_slots; i++) {
        if ((l->slots[i].committed & ~seen[i]) == 0)
            continue;
        if (seen[i] != 0 && !has_lied(l))
            violation(l, "a chunk lost some of its records");
        /* a fault may keep the index from removing the chunk; then the chunk is back after an
         * opening */
        if (l->has_faults)
            l->slots[i].maybe |= l->slots[i].committed;
        l->slots[i].committed = 0;
    }
}

/* --- the workload ----------------------------------------------------------------------------- */

static int step_append(struct life *l)
{
    struct st_ctx *c = &l->ctx[rng_below(&l->rng, N_CTX)];
    struct sha256 keys[N_CHUNKS];
    int chunk = (int)rng_below(&l->rng, N_CHUNKS);
    int kinds = 1 + (int)rng_below(&l->rng, 3);
    int from = (int)rng_below(&l->rng, N_LAYERS);
    struct err err = {0};
    st_keys(c, N_CHUNKS, keys);
    /* Chunks are mostly saved in order, as an engine saves them. Sometimes a later chunk is saved
     * alone. */
    for (int i = 0; i < chunk && rng_below(&l->rng, 4) != 0; i++) {
        if ((slot_of(l, &keys[i])->committed | slot_of(l, &keys[i])->pending) == 0)
            chunk = i;
    }
    struct slot *slot = slot_of(l, &keys[chunk]);
    unsigned bits = 0;
    for (int layer = from; layer < N_LAYERS; layer++)
        bits |= (unsigned)kinds << (2 * layer);
    l->may_evict = l->opts.cap_bytes != 0;
    int rc = st_append_layers(l->s, &tiny, c, chunk, kinds, from, N_LAYERS, &err);
    if (rc == ERR_LIMIT && l->opts.cap_bytes != 0)
        rc = 0;
    else if (rc == 0)
        slot->pending |= bits;
    else if (!may_fail(l))
        violation(l, "append fails: %s", err.msg);
    if (!io_sim_crashed(l->io)) {
        note_evictions(l); /* an append that fails may have evicted too */
        l->may_evict = false;
    }
    slot->pending &= ~slot->committed;
    return rc;
}

static int step_commit(struct life *l)
{
    struct err err = {0};
    for (int i = 0; i < l->n_slots; i++)
        l->slots[i].maybe |= l->slots[i].pending;
    int rc = store_commit(l->s, &err);
    if (rc != 0 && !may_fail(l))
        violation(l, "commit fails: %s", err.msg);
    for (int i = 0; i < l->n_slots; i++) {
        struct slot *slot = &l->slots[i];
        if (rc == 0) {
            slot->committed |= slot->pending;
            slot->maybe &= l->has_faults ? ~slot->pending : 0u;
            slot->back &= l->has_faults ? ~slot->pending : 0u;
        }
        if (rc != -ENOSPC) /* after -ENOSPC the records stay appended */
            slot->pending = 0;
    }
    return rc;
}

static int step_read(struct life *l)
{
    read_all(l);
    return 0;
}

static int step_gc(struct life *l)
{
    uint64_t freed;
    struct err err = {0};
    unsigned seen[N_SLOTS];
    l->may_evict = true; /* gc also removes chunks that cannot be reached */
    int rc = store_gc(l->s, &freed, &err);
    if (rc != 0 && !may_fail(l))
        violation(l, "gc fails: %s", err.msg);
    if (io_sim_crashed(l->io))
        return rc;
    list(l, seen);
    for (int i = 0; i < l->n_slots; i++) {
        if (l->has_faults)
            l->slots[i].maybe |= l->slots[i].committed;
        l->slots[i].committed &= seen[i];
    }
    l->may_evict = false;
    return rc;
}

/* Erases a context from some chunk on.  Chunks that other contexts continue stay. */
static int step_erase(struct life *l)
{
    struct st_ctx *c = &l->ctx[rng_below(&l->rng, N_CTX)];
    struct sha256 keys[N_CHUNKS];
    struct store_erased e;
    struct err err = {0};
    unsigned seen[N_SLOTS];
    int from = (int)rng_below(&l->rng, N_CHUNKS);
    st_keys(c, N_CHUNKS, keys);
    for (int i = 0; i < l->n_slots; i++) /* an erase begins with a commit */
        l->slots[i].maybe |= l->slots[i].pending;
    for (int i = from; i < N_CHUNKS; i++) {
        slot_of(l, &keys[i])->may_go = true;
        slot_of(l, &keys[i])->is_pinned = false;
    }
    int rc = store_erase(l->s, &keys[from], N_CHUNKS - from, &e, &err);
    if (rc != 0 && !may_fail(l))
        violation(l, "erase fails: %s", err.msg);
    if (io_sim_crashed(l->io))
        return rc;
    list(l, seen);
    for (int i = 0; i < l->n_slots; i++) {
        struct slot *slot = &l->slots[i];
        if (rc == 0) {
            slot->committed |= slot->pending;
            slot->maybe &= l->has_faults ? ~slot->pending : 0u;
            slot->pending = 0;
        } else { /* the erase failed, but its first commit may have happened */
            slot->committed |= slot->pending & seen[i];
            /* the pending records are committed and erased, or still uncommitted */
            slot->maybe |= slot->pending;
            slot->pending &= rc == -ENOSPC && !slot->may_go ? ~seen[i] : 0u;
        }
        if ((slot->committed & ~seen[i]) != 0 && !slot->may_go && l->opts.cap_bytes == 0 &&
            !has_lied(l))
            violation(l, "erase took a chunk that it was not given");
        if (l->has_faults)
            slot->maybe |= slot->committed;
        slot->committed &= seen[i];
        slot->may_go = slot->may_go && rc != 0;
    }
    return rc;
}

static int step_pin(struct life *l)
{
    struct slot *slot = &l->slots[rng_below(&l->rng, (uint64_t)l->n_slots)];
    struct err err = {0};
    int rc = store_pin_until(l->s, &slot->key, 1, clock_wall_s() + 100000, &err);
    if (rc != 0 && !may_fail(l))
        violation(l, "pin fails: %s", err.msg);
    slot->is_pinned = slot->is_pinned || rc == 0;
    return rc;
}

/* Replaces a chunk's extents by one with all its records, as packing does. None may get lost. */
static int step_replace(struct life *l)
{
    struct slot *slot = &l->slots[rng_below(&l->rng, (uint64_t)l->n_slots)];
    struct store_record records[CHUNK_MAX_RECORDS];
    struct store_reader *reader = NULL;
    struct parcel p = {0};
    struct chunk_header h;
    struct store_chunk c;
    struct err err = {0};
    int rc = store_reader_open(l->s, 4, NULL, 0, &reader, &err);
    if (rc == 0)
        rc = parcel_read(l->s, reader, &slot->key, &p, &err);
    if (rc == 0)
        rc = parcel_check(p.bytes, p.n_bytes, &h, &err);
    if (rc == 0) {
        parcel_chunk(p.bytes, &h, records, &c);
        c.replaces = true;
        rc = store_append(l->s, &c, &err);
        l->out->n_replaced += rc == 0;
    }
    bool is_there = rc != ERR_BUSY && rc != ERR_NOT_FOUND;
    if (rc != 0 && is_there && !may_fail(l) && !has_lied(l))
        violation(l, "replacing fails: %s", err.msg);
    store_reader_close(reader);
    parcel_deinit(&p);
    return is_there ? rc : 0;
}

/* Drops the records of the layer that is kept apart from a chunk. The others must stay. */
static int step_drop(struct life *l)
{
    struct slot *slot = &l->slots[rng_below(&l->rng, (uint64_t)l->n_slots)];
    const unsigned bits = 3u << 2 * APART;
    struct store_hit hit = {0};
    unsigned seen[N_SLOTS];
    if (!store_pin(l->s, &slot->key, &hit))
        return 0;
    if (store_load(l->s, &hit, NULL) == 0)
        l->out->n_dropped += store_drop_records(l->s, &hit, &apart) > 0;
    store_release(l->s, &hit, 1);
    list(l, seen);
    unsigned gone = slot->committed & ~seen[slot - l->slots];
    if ((gone & ~bits) != 0 && !has_lied(l))
        violation(l, "dropping some records has taken others");
    slot->back |= gone;
    slot->committed &= ~gone;
    return 0;
}

static int open_store(struct life *l)
{
    struct err err = {0};
    int rc = store_open(&l->opts, &l->s, &err);
    const struct sha256 of = st_fingerprint(0);
    if (rc == 0)
        store_keep_apart(l->s, &of, &apart);
    if (rc != 0 && !may_fail(l))
        violation(l, "open fails: %s", err.msg);
    return rc;
}

static int step_reopen(struct life *l)
{
    store_close(l->s);
    l->s = NULL;
    for (int i = 0; i < l->n_slots; i++)
        l->slots[i].pending = 0;
    if (io_sim_crashed(l->io))
        return ERR_CRASHED;
    for (int i = 0; i < 3; i++) {
        int rc = open_store(l);
        if (rc == 0 || !l->has_faults)
            return rc;
    }
    io_sim_fault_clear(l->io);
    return open_store(l);
}

static void workload(struct life *l)
{
    if (open_store(l) != 0)
        return;
    for (int i = 0; i < N_STEPS && !violated(l); i++) {
        uint64_t dice = rng_below(&l->rng, 55);
        int rc = dice < 24   ? step_append(l)
                 : dice < 34 ? step_commit(l)
                 : dice < 37 ? step_read(l)
                 : dice < 39 ? step_gc(l)
                 : dice < 41 ? step_erase(l)
                 : dice < 42 ? step_pin(l)
                 : dice < 48 ? step_replace(l)
                 : dice < 50 ? step_reopen(l)
                             : step_drop(l);
        if (rc != 0 && (!l->has_faults || io_sim_crashed(l->io) || l->s == NULL))
            return;
        if (!store_audit(l->s))
            violation(l, "space or catalog do not add up after step %d", i);
    }
}

/* --- the judge -------------------------------------------------------------------------------- */

/* Checks acknowledged pins. A rebuilt index has no pins. */
static int pin_see(void *arg, const struct store_pinned *p)
{
    struct life *l = arg;
    struct slot *slot = slot_of(l, &p->key);
    if (slot == NULL)
        violation(l, "the store lists a pin that nobody set");
    else
        slot->is_pinned = false; /* this pin was found */
    return 0;
}

static void judge_pins(struct life *l)
{
    store_each_pin(l->s, pin_see, l);
    for (int i = 0; i < l->n_slots; i++)
        if (l->slots[i].is_pinned && !l->may_revive && !l->may_lose_pins)
            violation(l, "the pin of chunk %d is lost", i);
}

static void judge(struct life *l)
{
    unsigned seen[N_SLOTS];
    int n_maybe = 0, n_maybe_seen = 0;
    bool all_or_none = !l->had_faults && !l->may_revive && !l->lost_segments;
    if (!store_audit(l->s))
        violation(l, "space or catalog do not add up after recovery");
    if (has_lied(l)) {
        read_all(l);
        return;
    }
    judge_pins(l);
    list(l, seen);
    for (int i = 0; i < l->n_slots; i++)
        l->out->n_contexts += l->slots[i].committed != 0;
    for (int i = 0; i < l->n_slots && !violated(l); i++) {
        struct slot *slot = &l->slots[i];
        slot->maybe &= ~slot->back; /* they prove nothing about a commit */
        if ((seen[i] & ~(slot->committed | slot->maybe | slot->back)) != 0 &&
            !l->may_revive)
            violation(l, "chunk %d has records that were never committed", i);
        bool gone = slot->committed != 0 && (seen[i] == 0 || l->may_revive);
        bool lost = (slot->committed & ~seen[i]) != 0 &&
                    !(gone && (l->may_evict || slot->may_go));
        if (l->lost_segments)
            lost = false;
        l->out->n_lost += lost;
        if (lost)
            violation(l, "chunk %d: committed %x, but %x is left", i, slot->committed,
                      seen[i]);
        /* a chunk that the erase may have removed after its commit proves nothing about that
         * commit */
        if (slot->maybe != 0 && !slot->may_go) {
            n_maybe++;
            n_maybe_seen += (seen[i] & slot->maybe) == slot->maybe;
            if (all_or_none && (seen[i] & slot->maybe) != 0 &&
                (seen[i] & slot->maybe) != slot->maybe)
                violation(l, "chunk %d: half of a commit", i);
        }
    }
    if (all_or_none && n_maybe_seen != 0 && n_maybe_seen != n_maybe)
        violation(l, "%d of %d chunks of one commit survived", n_maybe_seen, n_maybe);
    for (int i = 0; i < l->n_slots; i++) {
        l->slots[i].committed = seen[i];
        l->slots[i].pending = l->slots[i].maybe = l->slots[i].back = 0;
        l->slots[i].may_go = false;
    }
    read_all(l);
}

/* Removes the first segment of the first directory. */
static void segment_lose(struct life *l)
{
    if (io_unlink(l->io, "/store0/seg-000000.hc", NULL) != 0)
        return;
    io_dir_sync(l->io, "/store0", NULL);
    l->lost_segments = true;
}

/* Notes that the store found its index doubtful and rebuilt it from the extents.  Evicted or
 * uncommitted records may be back.  Only a disk that failed may be the cause. */
static void note_rebuild(struct life *l, const struct crash_opts *opts)
{
    for (int i = 0; i < l->n_slots; i++)
        if (l->slots[i].committed != 0 && !l->had_faults && !opts->lose_index &&
            !opts->lose_segments)
            violation(l, "power alone has damaged the index");
    l->may_revive = true;
    l->may_evict = l->may_evict || l->opts.cap_bytes != 0;
}

static int recover(struct life *l, const struct crash_opts *opts)
{
    io_sim_restart(l->io);
    if (opts->lose_segments)
        segment_lose(l);
    if (opts->lose_index && io_unlink(l->io, "/store0/index.db", NULL) == 0) {
        l->may_revive = true;
        /* records that come back may fill the cap, so others may be evicted */
        l->may_evict = l->may_evict || l->opts.cap_bytes != 0;
        io_dir_sync(l->io, "/store0", NULL);
    }
    uint64_t n_before = io_sim_count(l->io, IO_SIM_AT_OP);
    io_sim_crash_at(l->io, IO_SIM_AT_OP, opts->recover_at);
    int rc = open_store(l);
    l->out->n_recover_ops = io_sim_count(l->io, IO_SIM_AT_OP) - n_before;
    /* power may also fail during wiping, which does not report that as an error */
    for (int i = 1; io_sim_crashed(l->io); i++) {
        store_close(l->s);
        l->s = NULL;
        l->out->n_recover_crashes++;
        io_sim_restart(l->io);
        if (i < opts->n_recover)
            io_sim_crash_at(l->io, IO_SIM_AT_OP,
                            1 + (opts->recover_at + (uint64_t)i * 7) %
                                    (opts->recover_at + 1));
        rc = open_store(l);
    }
    io_sim_crash_at(l->io, IO_SIM_AT_OP, 0);
    if (rc == 0 && l->s->ledger.was_rebuilt)
        note_rebuild(l, opts);
    return rc;
}

static void life_init(struct life *l, const struct crash_opts *opts,
                      struct crash_result *out)
{
    *l = (struct life){.rng = {opts->seed}, .out = out};
    *out = (struct crash_result){0};
    struct io_sim_opts so = {.seed = rng_u64(&l->rng), .capacity_bytes = 64 << 20};
    struct err err;
    if (io_sim_open(&so, &l->io, &err) != 0)
        CHECK(!"the simulated disk opens");
    int n_dirs = 1 + (int)rng_below(&l->rng, 2);
    for (int i = 0; i < n_dirs; i++) {
        snprintf(l->dir[i], sizeof l->dir[i], "/store%d", i);
        l->dirs[i] = l->dir[i];
    }
    /* Half of the lives have a cap of about six chunks, so that they evict and reuse space. Every
     * second seed has copies in DRAM, every third is encrypted. */
    l->opts = (struct store_opts){.io = l->io,
                                  .dirs = l->dirs,
                                  .n_dirs = n_dirs,
                                  .segment_bytes = 1 << 16,
                                  .stuck_ns = 100000,
                                  .key = opts->seed % 3 == 0 ? st_key : NULL,
                                  .dram_bytes = opts->seed % 2 != 0 ? 1 << 20 : 0,
                                  .cap_bytes = rng_below(&l->rng, 2) != 0 ? 0 : 40 * 4096};
    for (int c = 0; c < N_CTX; c++) {
        struct sha256 keys[N_CHUNKS];
        l->ctx[c] = (struct st_ctx){.base = opts->seed % 7,
                                    .own = (uint64_t)c,
                                    .branch = (int)rng_below(&l->rng, 3)};
        st_keys(&l->ctx[c], N_CHUNKS, keys);
        for (int i = 0; i < N_CHUNKS; i++)
            if (slot_of(l, &keys[i]) == NULL)
                l->slots[l->n_slots++].key = keys[i];
    }
}

static const struct {
    const char *name;
    /* the probability is multiplied by crash_opts.fault_chance */
    struct io_sim_fault fault;
} kinds[CRASH_FAULTS] = {
    [CRASH_EIO] = {"EIO", {.kind = IO_SIM_FAIL, .code = -EIO}},
    [CRASH_ENOSPC] = {"ENOSPC",
                      {.kind = IO_SIM_FAIL,
                       .on = IO_SIM_ON_WRITE | IO_SIM_ON_SPACE | IO_SIM_ON_NAME,
                       .code = -ENOSPC}},
    [CRASH_EROFS] = {"EROFS",
                     {.kind = IO_SIM_FAIL,
                      .on = IO_SIM_ON_WRITE | IO_SIM_ON_SPACE | IO_SIM_ON_NAME |
                            IO_SIM_ON_SYNC,
                      .code = -EROFS}},
    [CRASH_EMFILE] = {"EMFILE",
                      {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_OPEN, .code = -EMFILE}},
    [CRASH_SHORT] = {"short transfer", {.kind = IO_SIM_SHORT, .chance = 10}},
    [CRASH_SLOW] = {"slow", {.kind = IO_SIM_SLOW, .slow_ns = 1000}},
    [CRASH_STUCK] = {"stuck", {.kind = IO_SIM_STUCK}},
    [CRASH_SYNC_LIES] = {"sync fails, then lies", {.kind = IO_SIM_SYNC_LIES, .count = 1}},
    [CRASH_LOST] = {"lost write", {.kind = IO_SIM_LOST}},
    [CRASH_MISDIRECTED] = {"misdirected write", {.kind = IO_SIM_MISDIRECTED}},
    [CRASH_READ_FLIP] = {"bit flipped by a read", {.kind = IO_SIM_READ_FLIP}},
};

const char *crash_fault_name(enum crash_fault f)
{
    return kinds[f].name;
}

static void faults_add(struct life *l, const struct crash_opts *opts)
{
    unsigned which = opts->faults != 0
                         ? opts->faults
                         : 1u << CRASH_EIO | 1u << CRASH_ENOSPC | 1u << CRASH_SHORT;
    l->has_faults = l->had_faults = l->may_lose_pins = true;
    for (int k = 0; k < CRASH_FAULTS; k++) {
        if ((which >> k & 1) == 0)
            continue;
        struct io_sim_fault f = kinds[k].fault;
        double chance = opts->fault_chance * (f.chance > 0 ? f.chance : 1);
        f.chance = chance < 0.5 ? chance : 0.5;
        if (k == CRASH_EROFS) { /* from some moment on, every operation fails */
            f.chance = 0;
            f.skip = 20 + rng_below(&l->rng, 400);
        }
        io_sim_fault_add(l->io, &f);
    }
}

static void faults_count(struct life *l)
{
    l->out->n_faults = io_sim_fault_hits(l->io);
    for (int k = 0; k < CRASH_FAULTS; k++)
        l->out->n_fault[k] = io_sim_fault_count(l->io, kinds[k].fault.kind,
                                                kinds[k].fault.code);
}

void crash_run(const struct crash_opts *opts, struct crash_result *out)
{
    struct life l;
    life_init(&l, opts, out);
    if (opts->fault_chance > 0)
        faults_add(&l, opts);
    io_sim_crash_at(l.io, opts->at_barrier ? IO_SIM_AT_BARRIER : IO_SIM_AT_OP,
                    opts->crash_at);
    workload(&l);
    out->n_ops = io_sim_count(l.io, IO_SIM_AT_OP);
    out->n_barriers = io_sim_count(l.io, IO_SIM_AT_BARRIER);
    out->crashed = io_sim_crashed(l.io);
    if (!out->crashed && !violated(&l)) { /* power fails right after the last step */
        io_sim_crash_at(l.io, IO_SIM_AT_OP, 0);
        io_sim_crash_at(l.io, IO_SIM_AT_BARRIER, 0);
        io_sim_crash(l.io);
    }
    store_close(l.s);
    l.s = NULL;
    faults_count(&l);
    io_sim_fault_clear(l.io);
    /* After a lie of the disk the store may refuse to open, but it must never serve wrong bytes. */
    l.has_faults = has_lied(&l);
    if (!violated(&l) && recover(&l, opts) == 0) {
        judge(&l);
        l.has_faults = has_lied(&l); /* damage by the disk may show only now */
        /* The recovered store must work like a store that never crashed. */
        l.may_evict = false;
        for (int i = 0; i < 4 && !violated(&l); i++)
            if (step_append(&l) != 0 && !l.has_faults)
                violation(&l, "append after recovery fails");
        if (!violated(&l) && step_commit(&l) == 0)
            read_all(&l);
        if (!violated(&l) && !store_audit(l.s))
            violation(&l, "space does not add up after recovery and more");
    }
    store_close(l.s);
    io_close(l.io);
}
