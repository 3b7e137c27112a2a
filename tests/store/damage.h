/* damage.h - a small store at rest on a simulated disk, copies of it to be damaged, and
 * what is seen of them afterwards. */
#ifndef TESTS_STORE_DAMAGE_H
#define TESTS_STORE_DAMAGE_H

#include "storetest.h"

enum { DAMAGE_CHUNKS = 4 };
/* What is stored: two contexts of DAMAGE_CHUNKS chunks, two of them shared, on two directories. */
extern const struct st_ctx damage_ctx, damage_sibling;

struct damage_counts {
    uint64_t n_meta_bits; /* flipped by damage_flip */
    uint64_t n_wrong;     /* records served with wrong bytes, but for seeded bugs */
};
extern struct damage_counts damage_counts;

/* Lines "what: n" for the table of `make crash`: to $HCACHE_CAMPAIGN_OUT, else to stdout. */
struct damage_line {
    const char *what;
    uint64_t n;
};
void damage_report(const struct damage_line *lines, int n);

/* The store, closed and at rest. */
void damage_place(struct st_place *p);
/* Another disk with the same content, as after a loss of power: with some seeds (not
 * with 0) the log that the last closing removed is there again, and is read instead of
 * what is under it.  io_close it. */
struct io *damage_copy(const struct st_place *p, uint64_t seed);
uint64_t damage_size(struct io *io, const char *path);
/* Where these bytes are in a file; they must be there. A key of a leaf (the last
 * chunk's) stands in its rows only. */
uint64_t damage_find(struct io *io, const char *path, const void *what, size_t n);

/* Leaves a place that is still to be wiped behind; returns where its wipe.row is in the index:
 * 40 bytes that begin with the checksum of the rest. */
uint64_t damage_wipe_row(struct st_place *p);

struct damage_seen {
    bool opened;
    int n_found, n_records, n_wrong, n_corrupt, n_unread;
    struct err err;
};

/* Opens the store on `io` and reads both contexts, twice: what is damaged must stay away. */
struct damage_seen damage_look(const struct st_place *p, struct io *io);
/* Flips one bit of metadata in a copy: nothing may be lost by it. */
void damage_flip(const struct st_place *p, const char *path, uint64_t at, unsigned bit);

#endif
