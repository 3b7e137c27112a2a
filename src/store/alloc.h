/* alloc.h - which bytes of one device's segments are free.  Pure: no files.
 *
 * A device is a row of segments of equal size; an extent lies inside one segment.  Extents are
 * placed first-fit in the lowest segment, which keeps segments dense and the last ones empty, so
 * that files can be cut.  Each segment keeps a sorted array of its free ranges: a 1 GiB segment
 * holds a few thousand extents, so moving array entries costs microseconds. */
#ifndef STORE_ALLOC_H
#define STORE_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

#define ALLOC_MAX_SEGMENTS (1u << 20)

struct alloc_range {
    uint64_t begin, end;
};

struct alloc_segment {
    struct alloc_range *free; /* [n_free], sorted; used bytes separate any two of them */
    uint32_t n_free, max_free;
    uint64_t largest; /* no free range is longer than this */
    bool soiled;      /* a free range may hold bytes of a former extent */
};

struct alloc {
    struct alloc_segment *segments;
    uint32_t n_segments;
    uint64_t segment_bytes;
    uint64_t used_bytes;
};

void alloc_init(struct alloc *a, uint64_t segment_bytes);
void alloc_deinit(struct alloc *a);

/* Takes n_bytes (> 0, in whole blocks), adding a segment if needed. Returns 0 with the place in
 * *segment and *offset; ERR_LIMIT if n_bytes is more than a segment, or if no segment may be
 * added. */
int alloc_take(struct alloc *a, uint64_t n_bytes, uint32_t *segment, uint64_t *offset);

/* Adds empty segments at the end. */
void alloc_add_segments(struct alloc *a, uint32_t n);
/* Takes n_bytes in the existing segments. Returns false if they have no room. */
bool alloc_take_within(struct alloc *a, uint64_t n_bytes, uint32_t *segment,
                       uint64_t *offset);
/* Returns whether alloc_take_within(n_bytes) would find room. */
bool alloc_fits(const struct alloc *a, uint64_t n_bytes);

/* Takes exactly this range, for recovery. The arguments come from a disk, so they may have any
 * value. Returns ERR_CORRUPT if the range is out of bounds, not in whole blocks, or not entirely
 * free. */
int alloc_claim(struct alloc *a, uint32_t segment, uint64_t offset, uint64_t n_bytes);

/* Frees a range, which must be in use. */
void alloc_give(struct alloc *a, uint32_t segment, uint64_t offset, uint64_t n_bytes);

/* Notes that free ranges of the segment may hold bytes of former extents. Adds the segment, and all
 * before it, if it is missing. */
void alloc_soil(struct alloc *a, uint32_t segment);

/* Returns the end of a segment's last used byte; 0 if it is empty or does not exist. */
uint64_t alloc_end(const struct alloc *a, uint32_t segment);

/* Recounts everything. Returns false if the bytes do not add up or an array is not sorted. */
bool alloc_audit(const struct alloc *a);

#endif
