/* damage.h - a small closed store on a simulated disk, copies of it that tests damage, and what
 * opening and reading a copy shows. */
#ifndef TESTS_STORE_DAMAGE_H
#define TESTS_STORE_DAMAGE_H

#include "storetest.h"

enum { DAMAGE_CHUNKS = 4 };
/* The stored contexts, on two directories. Each has DAMAGE_CHUNKS chunks, two of which belong to
 * both. */
extern const struct st_ctx damage_ctx, damage_sibling;

struct damage_counts {
    uint64_t n_meta_bits; /* bits flipped by damage_flip */
    /* records served with wrong bytes, not counting those of seeded bugs */
    uint64_t n_wrong;
};
extern struct damage_counts damage_counts;

/* A line "what: n" of the table that `make crash` prints. */
struct damage_line {
    const char *what;
    uint64_t n;
};
void damage_report(const struct damage_line *lines, int n);

/* Makes the store and closes it. */
void damage_place(struct st_place *p);
/* Returns another disk with the same content, as after a loss of power. With some seeds (never with
 * 0) the log that the last closing removed exists again, and is read instead of the pages that it
 * covers. The caller closes the disk with io_close. */
struct io *damage_copy(const struct st_place *p, uint64_t seed);
uint64_t damage_size(struct io *io, const char *path);
/* Returns the offset of these bytes in a file, which must contain them. To find a leaf's row,
 * search for the leaf's key: the key of the last chunk is in no other chunk's rows. */
uint64_t damage_find(struct io *io, const char *path, const void *what, size_t n);

/* Leaves an erased place that still has to be wiped.  Returns the offset of its wipe.row in the
 * index: 40 bytes that begin with the checksum of the rest. */
uint64_t damage_wipe_row(struct st_place *p);

struct damage_seen {
    bool opened;
    int n_found, n_records, n_wrong, n_corrupt, n_unread;
    struct err err;
};

/* Opens the store on `io` and reads both contexts, twice: a record that was found damaged must not
 * be served later. */
struct damage_seen damage_look(const struct st_place *p, struct io *io);
/* Flips one bit of metadata in a copy and checks that nothing is lost by it. */
void damage_flip(const struct st_place *p, const char *path, uint64_t at, unsigned bit);

#endif
