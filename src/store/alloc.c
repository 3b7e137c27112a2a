/* alloc.c - see alloc.h.
 *
 * Invariants:
 * 1. Free ranges of a segment are sorted, non-empty, and separated by used bytes.
 * 2. used_bytes = n_segments * segment_bytes - the sum of all free ranges.
 * 3. `largest` is an upper bound. A search that fails makes it exact. */
#include "store/alloc.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/store.h"

void alloc_init(struct alloc *a, uint64_t segment_bytes)
{
    CHECK(segment_bytes > 0 && segment_bytes % STORE_ALIGN == 0);
    *a = (struct alloc){.segment_bytes = segment_bytes};
}

void alloc_deinit(struct alloc *a)
{
    for (uint32_t i = 0; i < a->n_segments; i++)
        free(a->segments[i].free);
    free(a->segments);
    *a = (struct alloc){0};
}

static void range_insert(struct alloc_segment *s, uint32_t at, struct alloc_range r)
{
    GROW(s->free, s->n_free, s->max_free);
    memmove(&s->free[at + 1], &s->free[at], (s->n_free - at) * sizeof s->free[0]);
    s->free[at] = r;
    s->n_free++;
}

static void range_remove(struct alloc_segment *s, uint32_t at)
{
    s->n_free--;
    memmove(&s->free[at], &s->free[at + 1], (s->n_free - at) * sizeof s->free[0]);
}

/* Returns the index of the first free range that ends after `offset`. */
static uint32_t range_find(const struct alloc_segment *s, uint64_t offset)
{
    uint32_t lo = 0, hi = s->n_free;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (s->free[mid].end <= offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Cuts [begin, end) out of free range `at`, which contains it. */
static void range_cut(struct alloc_segment *s, uint32_t at, uint64_t begin, uint64_t end)
{
    struct alloc_range *r = &s->free[at];
    CHECK(r->begin <= begin && end <= r->end);
    struct alloc_range after = {end, r->end};
    if (r->begin == begin && r->end == end) {
        range_remove(s, at);
    } else if (r->begin == begin) {
        r->begin = end;
    } else {
        r->end = begin;
        if (after.begin < after.end)
            range_insert(s, at + 1, after);
    }
}

static void segment_add(struct alloc *a)
{
    a->segments = xgrow(a->segments, a->n_segments, sizeof a->segments[0]);
    struct alloc_segment *s = &a->segments[a->n_segments++];
    *s = (struct alloc_segment){.largest = a->segment_bytes};
    range_insert(s, 0, (struct alloc_range){0, a->segment_bytes});
}

/* Takes n_bytes at the segment's first free range that is long enough. Returns false if none is. */
static bool segment_take(struct alloc_segment *s, uint64_t n_bytes, uint64_t *offset)
{
    if (s->largest < n_bytes)
        return false;
    uint64_t largest = 0;
    for (uint32_t i = 0; i < s->n_free; i++) {
        uint64_t length = s->free[i].end - s->free[i].begin;
        if (length >= n_bytes) {
            *offset = s->free[i].begin;
            range_cut(s, i, *offset, *offset + n_bytes);
            return true;
        }
        if (length > largest)
            largest = length;
    }
    s->largest = largest;
    return false;
}

void alloc_add_segments(struct alloc *a, uint32_t n)
{
    while (n-- > 0)
        segment_add(a);
}

bool alloc_take_within(struct alloc *a, uint64_t n_bytes, uint32_t *segment,
                       uint64_t *offset)
{
    CHECK(n_bytes > 0 && n_bytes % STORE_ALIGN == 0);
    for (uint32_t i = 0; i < a->n_segments; i++) {
        if (!segment_take(&a->segments[i], n_bytes, offset))
            continue;
        *segment = i;
        a->used_bytes += n_bytes;
        return true;
    }
    return false;
}

bool alloc_fits(const struct alloc *a, uint64_t n_bytes)
{
    for (uint32_t i = 0; i < a->n_segments; i++) {
        const struct alloc_segment *s = &a->segments[i];
        for (uint32_t j = 0; s->largest >= n_bytes && j < s->n_free; j++)
            if (s->free[j].end - s->free[j].begin >= n_bytes)
                return true;
    }
    return false;
}

int alloc_take(struct alloc *a, uint64_t n_bytes, uint32_t *segment, uint64_t *offset)
{
    if (n_bytes > a->segment_bytes)
        return ERR_LIMIT;
    while (!alloc_take_within(a, n_bytes, segment, offset)) {
        if (a->n_segments == ALLOC_MAX_SEGMENTS)
            return ERR_LIMIT;
        segment_add(a);
    }
    return 0;
}

int alloc_claim(struct alloc *a, uint32_t segment, uint64_t offset, uint64_t n_bytes)
{
    if (segment >= ALLOC_MAX_SEGMENTS || n_bytes == 0 || offset % STORE_ALIGN != 0 ||
        n_bytes % STORE_ALIGN != 0 || n_bytes > a->segment_bytes ||
        offset > a->segment_bytes - n_bytes)
        return ERR_CORRUPT;
    while (a->n_segments <= segment)
        segment_add(a);
    struct alloc_segment *s = &a->segments[segment];
    uint32_t at = range_find(s, offset);
    if (at == s->n_free || s->free[at].begin > offset || s->free[at].end < offset + n_bytes)
        return ERR_CORRUPT;
    range_cut(s, at, offset, offset + n_bytes);
    a->used_bytes += n_bytes;
    return 0;
}

void alloc_give(struct alloc *a, uint32_t segment, uint64_t offset, uint64_t n_bytes)
{
    CHECK(segment < a->n_segments && n_bytes > 0 && offset + n_bytes <= a->segment_bytes);
    struct alloc_segment *s = &a->segments[segment];
    struct alloc_range r = {offset, offset + n_bytes};
    uint32_t at = range_find(s, offset);
    /* the range was not free already */
    CHECK(at == s->n_free || s->free[at].begin >= r.end);
    a->used_bytes -= n_bytes;

    if (at < s->n_free && s->free[at].begin == r.end) {
        r.end = s->free[at].end;
        range_remove(s, at);
    }
    if (at > 0 && s->free[at - 1].end == r.begin) {
        r.begin = s->free[at - 1].begin;
        range_remove(s, --at);
    }
    range_insert(s, at, r);
    if (r.end - r.begin > s->largest)
        s->largest = r.end - r.begin;
}

void alloc_soil(struct alloc *a, uint32_t segment)
{
    CHECK(segment < ALLOC_MAX_SEGMENTS);
    while (a->n_segments <= segment)
        segment_add(a);
    a->segments[segment].soiled = true;
}

uint64_t alloc_end(const struct alloc *a, uint32_t segment)
{
    if (segment >= a->n_segments)
        return 0;
    const struct alloc_segment *s = &a->segments[segment];
    if (s->n_free == 0 || s->free[s->n_free - 1].end < a->segment_bytes)
        return a->segment_bytes;
    return s->free[s->n_free - 1].begin;
}

bool alloc_audit(const struct alloc *a)
{
    uint64_t used_bytes = 0;
    for (uint32_t i = 0; i < a->n_segments; i++) {
        const struct alloc_segment *s = &a->segments[i];
        uint64_t free_bytes = 0, end = 0;
        for (uint32_t j = 0; j < s->n_free; j++) {
            struct alloc_range r = s->free[j];
            if (r.begin >= r.end || r.end > a->segment_bytes || (j > 0 && r.begin <= end) ||
                r.end - r.begin > s->largest)
                return false;
            free_bytes += r.end - r.begin;
            end = r.end;
        }
        used_bytes += a->segment_bytes - free_bytes;
    }
    return used_bytes == a->used_bytes;
}
