/* profile_reads.h - a queue of reads of stored records that is kept full, for measurements. */
#ifndef RESTORE_PROFILE_READS_H
#define RESTORE_PROFILE_READS_H

#include <stdatomic.h>

#include "restore/profile.h"

enum { PROFILE_MAX_DEPTH = 64 };

struct profile_reads {
    const struct model *m;
    const struct profile_source *from;
    struct store_reader *reader;
    struct buf staging;
    size_t room;      /* bytes of memory for one record */
    int depth;        /* most reads in flight that the memory has room for */
    int layer, chunk; /* position of the next record to read */
    struct store_read slot[PROFILE_MAX_DEPTH];
    bool in_place;                 /* the store hands out its own memory */
    const struct store_read *last; /* last read that succeeded */
};
/* Result of a run of reads. */
struct profile_tally {
    int n; /* reads that succeeded */
    uint64_t bytes;
    int64_t ns;
};

/* Opens a reader with `depth` slots; 0: as many as an engine has.  Close it also after an error. */
int profile_reads_open(struct profile_reads *r, const struct model *m,
                       const struct profile_source *from, int depth, struct err *err);
void profile_reads_close(struct profile_reads *r);
bool profile_reads_has(struct profile_reads *r, enum store_kind kind);
/* Reads n records with `depth` in flight, or as many as there is time for (until *stop, or for
 * SAMPLE_NS if stop is NULL). The time includes submitting, since some devices block there. */
int profile_reads_run(struct profile_reads *r, enum store_kind kind, int n, int depth,
                      const atomic_bool *stop, struct profile_tally *out, struct err *err);

#endif
