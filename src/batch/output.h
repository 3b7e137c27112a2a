/* output.h - the output file of a job, including the lines that an earlier run has written.
 *
 * Invariants:
 *  1. The file holds whole lines, and at most one torn line at its end, which output_open cuts off.
 *  2. After output_sync has returned 0, all lines added before survive a crash.
 *  3. A file that holds anything but a batch's lines is refused and stays unchanged. */
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
    uint64_t n_bytes;     /* durable bytes */
    uint64_t n_lines;     /* lines found at open */
    uint64_t n_failed;    /* part of n_lines that reports a fault */
    struct textbuf lines; /* added, not yet written */
};

/* Opens or creates the file; "-" is standard output.  is_private: only its owner may read it.  Adds
 * the names of its lines to *done.  ERR_BUSY: another job writes it; ERR_FORMAT: it is not a
 * batch's output. */
int output_open(struct output *o, const char *path, bool is_private, struct idset *done,
                struct err *err);
/* Adds one line; text has no line break. */
void output_add(struct output *o, const char *text);
/* Writes the added lines and makes them durable.  If it fails, none of them is in the file. */
int output_sync(struct output *o, struct err *err);
/* Drops lines that were not synced and closes the file.  Does nothing for a zeroed output. */
void output_close(struct output *o);

/* Write the name in *done of a line: output_name_answer for the answer to a request, by its
 * custom_id; output_name_fault for a fault of the line itself (batch/line.h), by its id. */
void output_name_answer(const char *custom_id, struct textbuf *out);
void output_name_fault(const char *id, struct textbuf *out);

#endif
