/* io_sim_node.c - see io_sim_node.h. */
#include "sim/io_sim_node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/minmax.h"

void sim_freed_add(struct sim_freed *f, const uint8_t *sector)
{
    static const uint8_t zeros[SIM_SECTOR];
    if (f == NULL || memcmp(sector, zeros, SIM_SECTOR) == 0)
        return;
    if (f->n == f->room) {
        f->room = f->room == 0 ? 16 : 2 * f->room;
        f->bytes = xrealloc(f->bytes, f->room * SIM_SECTOR);
    }
    memcpy(f->bytes + f->n++ * SIM_SECTOR, sector, SIM_SECTOR);
}

/* ---- Images ------------------------------------------------------------------------------ */

static void image_deinit(struct sim_image *im)
{
    if (im->n_owners == NULL || atomic_fetch_sub(im->n_owners, 1) > 1)
        return;
    free(im->n_owners);
    free(im->bytes);
    free(im->allocated);
}

/* Gives the image memory of its own for n sectors, with its content. Sectors without content are
 * not touched, so that they take no memory. */
static void image_move(struct sim_image *im, size_t n)
{
    struct sim_image old = *im;
    im->n_owners = xmalloc(sizeof *im->n_owners);
    atomic_init(im->n_owners, 1);
    im->bytes = xcalloc(n, SIM_SECTOR);
    im->allocated = xcalloc(n, 1);
    im->n_sectors = n;
    for (size_t s = 0; s < old.n_sectors; s++) {
        im->allocated[s] = old.allocated[s];
        if (old.allocated[s] != 0 || old.flipped)
            memcpy(im->bytes + s * SIM_SECTOR, old.bytes + s * SIM_SECTOR, SIM_SECTOR);
    }
    image_deinit(&old);
}

/* Prepares a change of the image: no other image has its memory. */
static void image_own(struct sim_image *im)
{
    if (im->n_owners != NULL && atomic_load(im->n_owners) > 1)
        image_move(im, im->n_sectors);
}

static void image_grow(struct sim_image *im, uint64_t end)
{
    size_t need = (size_t)(round_up(end, SIM_SECTOR) / SIM_SECTOR);
    if (need > im->n_sectors)
        image_move(im, MAX(need, 2 * im->n_sectors));
}

static void image_extend(struct sim_image *im, uint64_t size)
{
    image_grow(im, size);
    if (size > im->size)
        im->size = size;
}

static void image_allocate(struct sim_image *im, uint64_t offset, uint64_t end)
{
    image_grow(im, end);
    image_own(im);
    for (uint64_t s = offset / SIM_SECTOR; s * SIM_SECTOR < end; s++) {
        im->n_allocated += im->allocated[s] == 0;
        im->allocated[s] = 1;
    }
}

static void image_free(struct sim_image *im, uint64_t offset, uint64_t end)
{
    image_own(im);
    for (uint64_t s = offset / SIM_SECTOR; s * SIM_SECTOR < end && s < im->n_sectors; s++) {
        if (im->allocated[s] == 0 && !im->flipped)
            continue;
        im->n_allocated -= im->allocated[s] != 0;
        im->allocated[s] = 0;
        memset(im->bytes + s * SIM_SECTOR, 0, SIM_SECTOR);
    }
}

static void image_truncate(struct sim_image *im, uint64_t size)
{
    if (size < im->size) {
        uint64_t sector_end = round_up(size, SIM_SECTOR);
        image_free(im, sector_end, im->size);
        memset(im->bytes + size, 0, sector_end - size);
    }
    image_grow(im, size);
    im->size = size;
}

static void image_put(struct sim_image *im, const uint8_t *bytes, uint64_t offset,
                      uint64_t n)
{
    if (n == 0)
        return;
    image_extend(im, offset + n);
    image_allocate(im, offset, offset + n);
    memcpy(im->bytes + offset, bytes, n);
}

static void image_apply(struct sim_image *im, const struct sim_change *c)
{
    switch (c->kind) {
    case SIM_WRITE:
        image_put(im, c->bytes, c->offset, c->length);
        break;
    case SIM_TRUNCATE:
        image_truncate(im, c->offset);
        break;
    case SIM_ALLOCATE:
        image_extend(im, c->offset + c->length);
        image_allocate(im, c->offset, c->offset + c->length);
        break;
    case SIM_PUNCH:
        image_free(im, c->offset, c->offset + c->length);
        break;
    }
}

static void image_copy(struct sim_image *to, const struct sim_image *from)
{
    *to = *from;
    if (to->n_owners != NULL)
        atomic_fetch_add(to->n_owners, 1);
}

/* Notes the bytes of the image's sectors that begin in [begin, end). */
static void image_note_freed(const struct sim_image *im, uint64_t begin, uint64_t end,
                             struct sim_freed *freed)
{
    for (uint64_t s = round_up(begin, SIM_SECTOR) / SIM_SECTOR;
         s * SIM_SECTOR < end && s < im->n_sectors; s++)
        if (im->allocated[s] != 0)
            sim_freed_add(freed, im->bytes + s * SIM_SECTOR);
}

/* ---- Nodes ------------------------------------------------------------------------------- */

struct sim_node *sim_node_create(bool is_dir, struct sim_freed *freed)
{
    struct sim_node *n = xcalloc(1, sizeof *n);
    n->freed = freed;
    n->n_refs = 1;
    n->is_dir = is_dir;
    n->changes_tail = &n->changes;
    return n;
}

void sim_node_forget(struct sim_node *n)
{
    while (n->changes != NULL) {
        struct sim_change *c = n->changes;
        n->changes = c->next;
        free(c);
    }
    n->changes_tail = &n->changes;
}

/* Notes what the medium holds in freed sectors: the durable bytes, because no unsynced write of a
 * freed sector reaches the medium any more, and the current ones, because it may have. */
static void free_sectors(struct sim_node *n, uint64_t begin, uint64_t end)
{
    if (n->freed == NULL)
        return;
    image_note_freed(&n->durable, begin, end, n->freed);
    image_note_freed(&n->current, begin, end, n->freed);
}

void sim_node_unref(struct sim_node *n)
{
    if (--n->n_refs > 0)
        return;
    sim_node_forget(n);
    free_sectors(n, 0, UINT64_MAX);
    image_deinit(&n->current);
    image_deinit(&n->durable);
    free(n);
}

bool sim_node_next_data(const struct sim_node *n, uint64_t at, uint64_t *begin,
                        uint64_t *end)
{
    const struct sim_image *im = &n->current;
    size_t s = (size_t)(at / SIM_SECTOR);
    while (s < im->n_sectors && im->allocated[s] == 0)
        s++;
    if (s >= im->n_sectors || s * (uint64_t)SIM_SECTOR >= im->size)
        return false;
    *begin = MAX(at, s * (uint64_t)SIM_SECTOR);
    while (s < im->n_sectors && im->allocated[s] != 0)
        s++;
    *end = MIN(s * (uint64_t)SIM_SECTOR, im->size);
    return *begin < *end;
}

size_t sim_node_read(const struct sim_node *n, void *buf, size_t length, uint64_t offset)
{
    const struct sim_image *im = &n->current;
    if (offset >= im->size || length == 0)
        return 0;
    if (length > im->size - offset)
        length = (size_t)(im->size - offset);
    memcpy(buf, im->bytes + offset, length);
    return length;
}

uint64_t sim_node_sectors_needed(const struct sim_node *n, uint64_t offset, uint64_t length)
{
    uint64_t need = 0;
    for (uint64_t s = offset / SIM_SECTOR; s * SIM_SECTOR < offset + length; s++)
        need += s >= n->current.n_sectors || n->current.allocated[s] == 0;
    return need;
}

void sim_node_change(struct sim_node *n, enum sim_change_kind kind, const void *bytes,
                     uint64_t offset, uint64_t length)
{
    size_t n_bytes = kind == SIM_WRITE ? (size_t)length : 0;
    struct sim_change *c = xmalloc(sizeof *c + n_bytes);
    *c = (struct sim_change){.kind = kind, .offset = offset, .length = length};
    if (n_bytes != 0)
        memcpy(c->bytes, bytes, n_bytes);
    *n->changes_tail = c;
    n->changes_tail = &c->next;
    if (kind == SIM_PUNCH)
        free_sectors(n, offset, offset + length);
    else if (kind == SIM_TRUNCATE)
        free_sectors(n, offset, UINT64_MAX);
    image_apply(&n->current, c);
}

void sim_node_sync(struct sim_node *n)
{
    for (const struct sim_change *c = n->changes; c != NULL; c = c->next)
        image_apply(&n->durable, c);
    sim_node_forget(n);
}

static void image_flip(struct sim_image *im, uint64_t offset, unsigned bit)
{
    if (offset >= im->size)
        return;
    image_own(im);
    im->flipped |= im->allocated[offset / SIM_SECTOR] == 0;
    im->bytes[offset] ^= (uint8_t)(1u << bit);
}

int sim_node_flip(struct sim_node *n, uint64_t offset, unsigned bit)
{
    if (bit > 7 || offset >= n->current.size)
        return -EINVAL;
    image_flip(&n->current, offset, bit);
    image_flip(&n->durable, offset, bit);
    return 0;
}

/* ---- Crashes ----------------------------------------------------------------------------- */

static bool coin(struct rng *rng)
{
    return rng_below(rng, 2) == 0;
}

static void fill_garbage(uint8_t *p, size_t n, struct rng *rng)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)rng_u64(rng);
}

/* Applies the part of a write that falls into [begin, end). */
static void put_range(struct sim_image *im, const struct sim_change *c, uint64_t begin,
                      uint64_t end)
{
    begin = MAX(begin, c->offset);
    end = MIN(end, c->offset + c->length);
    if (begin < end)
        image_put(im, c->bytes + (begin - c->offset), begin, end - begin);
}

static void put_torn(struct sim_image *im, const struct sim_change *c, uint64_t sector,
                     struct rng *rng)
{
    for (uint64_t at = sector; at < sector + SIM_SECTOR; at += SIM_PART)
        if (coin(rng))
            put_range(im, c, at, at + SIM_PART);
}

/* Applies the write to one sector and fills that sector, or one of its 512-byte parts, with
 * garbage. Bytes that were not written may become garbage too. */
static void put_garbage(struct sim_image *im, const struct sim_change *c, uint64_t sector,
                        struct rng *rng)
{
    put_range(im, c, sector, sector + SIM_SECTOR);
    uint64_t begin = sector, end = sector + SIM_SECTOR;
    if (coin(rng)) {
        begin += SIM_PART * rng_below(rng, SIM_SECTOR / SIM_PART);
        end = begin + SIM_PART;
    }
    end = MIN(end, im->size);
    if (begin < end)
        fill_garbage(im->bytes + begin, (size_t)(end - begin), rng);
}

static void crash_write(struct sim_image *im, const struct sim_change *c, bool garbage,
                        struct rng *rng)
{
    if (coin(rng)) /* a crash may keep the new length and lose the data */
        image_extend(im, c->offset + c->length);
    uint64_t first = c->offset / SIM_SECTOR * SIM_SECTOR;
    for (uint64_t at = first; at < c->offset + c->length; at += SIM_SECTOR) {
        switch (rng_below(rng, garbage ? 6 : 5)) {
        case 0:
        case 1:
            put_range(im, c, at, at + SIM_SECTOR);
            break;
        case 2:
        case 3:
            break;
        case 4:
            put_torn(im, c, at, rng);
            break;
        default:
            put_garbage(im, c, at, rng);
            break;
        }
    }
}

static void crash_prefix(struct sim_image *im, const struct sim_node *n, struct rng *rng)
{
    uint64_t n_changes = 0;
    for (const struct sim_change *c = n->changes; c != NULL; c = c->next)
        n_changes++;
    uint64_t keep = rng_below(rng, n_changes + 1);
    for (const struct sim_change *c = n->changes; keep > 0; c = c->next, keep--)
        image_apply(im, c);
}

static void crash_mix(struct sim_image *im, const struct sim_node *n, bool garbage,
                      struct rng *rng)
{
    for (const struct sim_change *c = n->changes; c != NULL; c = c->next) {
        if (c->kind == SIM_WRITE)
            crash_write(im, c, garbage, rng);
        else if (coin(rng))
            image_apply(im, c);
    }
}

struct sim_node *sim_node_after_crash(const struct sim_node *n, enum sim_crash_mode mode,
                                      struct rng *rng, struct sim_freed *freed)
{
    struct sim_node *out = sim_node_create(n->is_dir, freed);
    image_copy(&out->durable, &n->durable);
    if (mode == SIM_CRASH_PREFIX)
        crash_prefix(&out->durable, n, rng);
    else if (mode != SIM_CRASH_DROP)
        crash_mix(&out->durable, n, mode == SIM_CRASH_GARBAGE, rng);
    image_copy(&out->current, &out->durable);
    return out;
}
