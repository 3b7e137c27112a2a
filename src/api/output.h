/* output.h - the output file of a job, including the lines that an earlier run has written.
 *
 * Invariants:
 *  1. The file holds whole lines, and at most one torn line at its end, which output_open cuts off.
 *  2. After output_sync has returned 0, all lines added before survive a crash.
 *  3. A file that holds anything but a batch's lines is refused and stays unchanged. */
#ifndef API_OUTPUT_H
#define API_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/textbuf.h"
#include "api/idset.h"

struct seal;

struct output {
    int fd;
    bool is_stdout;
    char *path;
    uint64_t n_bytes;        /* bytes of the file that are durable */
    uint64_t n_lines;        /* number of lines found when the file was opened */
    uint64_t n_failed;       /* part of n_lines: lines that report a fault */
    struct textbuf lines;    /* lines that were added and are not written yet */
    const struct seal *seal; /* NULL: the file is not encrypted */
    uint64_t frame;          /* number of the next frame of an encrypted file */
};

/* Opens or creates the file; "-" is standard output. is_private: only its owner may read it. Adds
 * the names of its lines to *done. Returns ERR_BUSY if another job writes the file, and ERR_FORMAT
 * if it is not a batch's output. */
int output_open(struct output *o, const char *path, bool is_private, struct idset *done,
                struct err *err);
/* Like output_open with is_private, for a file that `seal` encrypts in frames of whole lines
 * (seal_file.h). Its name in its folder is its name as a sealed file. NULL: as output_open. */
int output_open_sealed(struct output *o, const char *path, const struct seal *seal,
                       struct idset *done, struct err *err);
/* Adds one line; text has no line break. */
void output_add(struct output *o, const char *text);
/* Writes the added lines and makes them durable. After an error none of them is in the file. */
int output_sync(struct output *o, struct err *err);
/* Drops lines that were not synced and closes the file.  Does nothing for a zeroed output. */
void output_close(struct output *o);

/* Both write the name that a line has in *done. output_name_answer is for the answer to a request
 * and takes its custom_id. output_name_fault is for a fault of the line itself (api/line.h) and
 * takes the id of that line's answer. */
void output_name_answer(const char *custom_id, struct textbuf *out);
void output_name_fault(const char *id, struct textbuf *out);

#endif
