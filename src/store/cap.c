/* cap.c - divides a bound on all files of a store into shares.
 *
 *   files_cap_bytes
 *   = superblocks      2 blocks in each directory
 *   + reserve          1/32, at most 1 MiB
 *   + index.db         1/128, and 64 KiB
 *   + index.db-wal     the frames before a checkpoint (1/128, 32 KiB to 4 MiB), and those of one
 *                      commit, which writes each page of index.db at most once
 *   + segment files    the rest: the cap on extents (evict.c, files.c)
 *
 * The index stays in its share because an append evicts chunks when its rows might not fit
 * (store_index_has_room). A file that grew under a higher cap is not shortened. */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/minmax.h"
#include "store/store_impl.h"

enum {
    INDEX_BASE_BYTES = 64 << 10,
    MIN_LOG_FRAMES = 8,
    MAX_LOG_FRAMES = 1000, /* frames; SQLite's default */
    PAD_FRAMES = 2,        /* SQLite pads a commit to the end of a sector */
};
/* Bytes of the index for each extent. ROW_BYTES: its rows, in pages that are not full. LATER_BYTES:
 * a row that the extent may get later without an append (its place to be wiped), with room for
 * pages that split when rows grow. */
enum { ROW_BYTES = 320, LATER_BYTES = 160 };
/* PIN_BYTES: bytes of the index for each lasting pin, in pages that are two thirds full.
 * BYTES_FOR_PIN: one pin is allowed for this many bytes of the index's share. */
enum { PIN_BYTES = 96, BYTES_FOR_PIN = 1024 };
/* Bytes of the index for each block of an extent: a block holds at most one record, whose entry
 * lies in pages that are half full. */
enum { RECORD_BYTES = 2 * CHUNK_RECORD_CODE };

static uint64_t log_frames(uint64_t cap)
{
    uint64_t n = cap / 128 / INDEX_PAGE_BYTES;
    return MIN(MAX(n, MIN_LOG_FRAMES), MAX_LOG_FRAMES);
}

int store_cap_share(struct store *s, const struct store_opts *o, struct err *err)
{
    uint64_t cap = o->files_cap_bytes;
    s->cap_bytes = o->cap_bytes;
    if (cap == 0 || o->io == NULL || o->read_only)
        return 0;
    s->files_cap_bytes = cap;
    s->log_frames = (uint32_t)log_frames(cap);
    s->index_cap_bytes = round_up(INDEX_BASE_BYTES + cap / 128, INDEX_PAGE_BYTES);
    uint64_t n_frames = s->log_frames + PAD_FRAMES + s->index_cap_bytes / INDEX_PAGE_BYTES;
    uint64_t reserve = MIN(cap / 32, STORE_RESERVE_BYTES);
    uint64_t others = (uint64_t)o->n_dirs * 2 * STORE_ALIGN + reserve + s->index_cap_bytes +
                      STORE_ALIGN + n_frames * INDEX_FRAME_BYTES;
    if (cap < others + 2 * STORE_ALIGN)
        return err_set(
            err, ERR_USAGE,
            "a cap of %llu bytes on the store's files is too small: its index, log and "
            "reserve may take %llu",
            (unsigned long long)cap, (unsigned long long)others);
    uint64_t left = (cap - others) / STORE_ALIGN * STORE_ALIGN;
    if (s->cap_bytes == 0 || left < s->cap_bytes)
        s->cap_bytes = left;
    return 0;
}

static uint32_t max_pins(const struct store *s)
{
    uint64_t n = s->index_cap_bytes / BYTES_FOR_PIN;
    return s->index_cap_bytes == 0 || n > STORE_MAX_PINS ? STORE_MAX_PINS : (uint32_t)n;
}

int store_check_pins(const struct store *s, uint32_t n, struct err *err)
{
    uint32_t most = max_pins(s), have = s->catalog.n_pins;
    if (have <= most && n <= most - have)
        return 0;
    return err_set(err, ERR_LIMIT, "there may be at most %u pins%s; end some of them first",
                   most, most < STORE_MAX_PINS ? " under the store's cap" : "");
}

bool store_index_has_room(const struct store *s, uint64_t n_bytes)
{
    uint64_t n_new = s->n_pending + (uint64_t)s->n_dirs;
    uint64_t new_bytes = s->pending_bytes + n_bytes;
    uint64_t rows = n_new * ROW_BYTES + new_bytes / STORE_ALIGN * RECORD_BYTES;
    uint32_t most = max_pins(s), have = s->catalog.n_pins;
    uint64_t later = (s->catalog.n_live + n_new) * LATER_BYTES +
                     (have < most ? most - have : 0) * (uint64_t)PIN_BYTES;
    return s->index_cap_bytes == 0 || s->index_bytes + rows + later <= s->index_cap_bytes;
}
