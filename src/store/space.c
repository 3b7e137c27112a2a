/* space.c - see space.h. */
#include "store/space.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/minmax.h"
#include "store/home.h"
#include "store/index.h"

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

int space_bound(struct space *sp, const struct store_opts *o, struct err *err)
{
    uint64_t cap = o->files_cap_bytes;
    sp->quota_bytes = o->quota_bytes;
    sp->guarantee_bytes = o->guarantee_bytes;
    sp->cap_bytes = o->cap_bytes;
    if (cap == 0 || o->io == NULL || o->read_only)
        return 0;
    sp->files_cap_bytes = cap;
    sp->log_frames = (uint32_t)log_frames(cap);
    sp->index_cap_bytes = round_up(INDEX_BASE_BYTES + cap / 128, INDEX_PAGE_BYTES);
    uint64_t n_frames = sp->log_frames + PAD_FRAMES +
                        sp->index_cap_bytes / INDEX_PAGE_BYTES;
    uint64_t reserve = MIN(cap / 32, HOME_RESERVE_BYTES);
    uint64_t others = (uint64_t)o->n_dirs * 2 * STORE_ALIGN + reserve +
                      sp->index_cap_bytes + STORE_ALIGN + n_frames * INDEX_FRAME_BYTES;
    if (cap < others + 2 * STORE_ALIGN)
        return err_set(
            err, ERR_USAGE,
            "a cap of %llu bytes on the store's files is too small: its index, log and "
            "reserve may take %llu",
            (unsigned long long)cap, (unsigned long long)others);
    uint64_t left = (cap - others) / STORE_ALIGN * STORE_ALIGN;
    if (sp->cap_bytes == 0 || left < sp->cap_bytes)
        sp->cap_bytes = left;
    return 0;
}

void space_free_list(struct extent *list)
{
    for (struct extent *x = list, *next; x != NULL; x = next) {
        next = x->next;
        free(x->records);
        free(x);
    }
}

void space_deinit(struct space *sp)
{
    space_free_list(sp->freeing);
    space_free_list(sp->wiping);
    for (int i = 0; i < STORE_MAX_DEVICES; i++)
        alloc_deinit(&sp->alloc[i]);
}

void space_begin(struct space *sp, int n_devices, uint64_t segment_bytes)
{
    space_deinit(sp);
    sp->freeing = sp->wiping = NULL;
    sp->freeing_bytes = sp->wiping_bytes = sp->used_bytes = 0;
    for (int i = 0; i < n_devices; i++)
        alloc_init(&sp->alloc[i], segment_bytes);
}

void space_leave(struct space *sp, struct extent *x)
{
    CHECK(x->node == NULL);
    x->next = sp->freeing;
    sp->freeing = x;
    sp->freeing_bytes += extent_bytes(x);
}

void space_wipe_later(struct space *sp, struct extent *x)
{
    x->next = sp->wiping;
    sp->wiping = x;
    sp->wiping_bytes += extent_bytes(x);
}

void space_give(struct space *sp, struct extent *x)
{
    CHECK(x->node == NULL && x->copy == NULL && sp->used_bytes >= extent_bytes(x));
    if (x->n_blocks > 0)
        alloc_give(&sp->alloc[x->device], x->segment, x->offset, extent_bytes(x));
    if (!x->wipe) /* a wiped extent leaves no bytes behind */
        alloc_soil(&sp->alloc[x->device], x->segment);
    sp->used_bytes -= extent_bytes(x);
    free(x->records);
    free(x);
}

bool space_has_remains(const struct space *sp, int n_devices)
{
    for (int d = 0; d < n_devices; d++)
        for (uint32_t i = 0; i < sp->alloc[d].n_segments; i++)
            if (sp->alloc[d].segments[i].soiled)
                return true;
    return sp->freeing != NULL; /* the next commit frees the space of these extents */
}

/* --- the index's share ------------------------------------------------------------------------ */

static uint32_t max_pins(const struct space *sp)
{
    uint64_t n = sp->index_cap_bytes / BYTES_FOR_PIN;
    return sp->index_cap_bytes == 0 || n > STORE_MAX_PINS ? STORE_MAX_PINS : (uint32_t)n;
}

int space_check_pins(const struct space *sp, const struct catalog *c, uint32_t n,
                     struct err *err)
{
    uint32_t most = max_pins(sp);
    if (c->n_pins <= most && n <= most - c->n_pins)
        return 0;
    return err_set(err, ERR_LIMIT, "there may be at most %u pins%s; end some of them first",
                   most, most < STORE_MAX_PINS ? " under the store's cap" : "");
}

bool space_index_has_room(const struct space *sp, const struct catalog *c,
                          uint64_t index_bytes, uint64_t n_new, uint64_t new_bytes)
{
    uint64_t rows = n_new * ROW_BYTES + new_bytes / STORE_ALIGN * RECORD_BYTES;
    uint32_t most = max_pins(sp), have = c->n_pins;
    uint64_t later = (c->n_live + n_new) * LATER_BYTES +
                     (have < most ? most - have : 0) * (uint64_t)PIN_BYTES;
    return sp->index_cap_bytes == 0 || index_bytes + rows + later <= sp->index_cap_bytes;
}

/* --- audit ------------------------------------------------------------------------------------ */

static uint64_t list_bytes(const struct extent *list)
{
    uint64_t n_bytes = 0;
    for (const struct extent *x = list; x != NULL; x = x->next)
        n_bytes += extent_bytes(x);
    return n_bytes;
}

bool space_audit(const struct space *sp, int n_devices, uint64_t catalog_bytes)
{
    uint64_t used_bytes = 0;
    bool good = true;
    for (int d = 0; d < n_devices; d++) {
        good = good && alloc_audit(&sp->alloc[d]);
        used_bytes += sp->alloc[d].used_bytes;
    }
    return good && used_bytes == sp->used_bytes &&
           list_bytes(sp->freeing) == sp->freeing_bytes &&
           list_bytes(sp->wiping) == sp->wiping_bytes &&
           catalog_bytes + sp->freeing_bytes + sp->wiping_bytes == used_bytes;
}
