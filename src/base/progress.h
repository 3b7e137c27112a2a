/* progress.h - one line that shows the progress of long work, on a terminal only.
 *
 *     loading weights  43%  172/400 MiB  3 s left
 *
 * If stderr is not a terminal, nothing is printed, so logs and pipes stay clean.  The line is
 * redrawn at most ten times a second and removed at the end.  A progress lives in the caller's
 * memory and belongs to one thread. */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum progress_unit {
    PROGRESS_ITEMS,
    PROGRESS_BYTES,
};

struct progress {
    const char *label; /* borrowed; must live until progress_end */
    enum progress_unit unit;
    uint64_t total; /* bytes or items to be done, as `unit` says; 0: not known */
    bool shown;     /* stderr is a terminal */
    bool drawn;     /* a line is on the terminal */
    int64_t start_ns;
    int64_t drawn_ns; /* when the line was last drawn; at first start_ns */
};

void progress_begin(struct progress *p, const char *label, enum progress_unit unit,
                    uint64_t total);
/* shows the progress; cheap, so it may be called often */
void progress_at(struct progress *p, uint64_t done);
void progress_end(struct progress *p);

/* Writes the line's text. elapsed_ns: time since the start. The remaining time is shown after one
 * second. */
void progress_text(const struct progress *p, uint64_t done, int64_t elapsed_ns, char *out,
                   size_t out_bytes);

#endif
