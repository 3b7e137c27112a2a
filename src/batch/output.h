/* output.h - the lines that a job writes, and the lines that an earlier run of it has written.
 *
 * Invariants:
 *  1. The file holds whole lines, and at most one torn line at its end, which output_open cuts off.
 *  2. After output_sync returned 0 all lines added before survive a crash.
 *  3. A file that holds anything else than a batch's lines is refused and stays as it is. */
#ifndef BATCH_OUTPUT_H
#define BATCH_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/textbuf.h"
#include "batch/idset.h"

struct output {
    int fd;
    bool is_stdout;
    char *path;
    uint64_t n_bytes;     /* durable */
    uint64_t n_lines;     /* found at open */
    uint64_t n_failed;    /* of these, lines that tell a fault */
    struct textbuf lines; /* added, not yet written */
};

/* Opens or creates the file, is_private: for its owner alone; "-" is standard output.
 * Adds the lines that it holds to *done.  ERR_BUSY where another job writes it; ERR_FORMAT
 * where it is no output of a batch. */
int output_open(struct output *o, const char *path, bool is_private, struct idset *done,
                struct err *err);
/* Adds one line; text has no line break. */
void output_add(struct output *o, const char *text);
/* Writes the lines that were added and makes them durable.  Where it fails, none of
 * them is there. */
int output_sync(struct output *o, struct err *err);
/* What was not synced is dropped.  Of a zeroed output it does nothing. */
void output_close(struct output *o);

/* The name in *done of a line that has the answer to a request, and of one that tells a fault
 * of the line itself (batch/line.h): by its custom_id, and by its id. */
void output_name_answer(const char *custom_id, struct textbuf *out);
void output_name_fault(const char *id, struct textbuf *out);

#endif
