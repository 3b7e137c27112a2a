/* estimate.h - how long a job still takes. Pure.
 *
 * Lines differ, so the time left is told as a range: what it would be if the lines that are
 * left took as long as those that are done, and if their bytes did.  Nothing is told before
 * three lines and a second are over, nor where the input's size is not known. */
#ifndef BATCH_ESTIMATE_H
#define BATCH_ESTIMATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct estimate {
    uint64_t lines_done, bytes_done; /* by this run */
    uint64_t lines_left, bytes_left; /* of the input; all that is not done */
    bool is_size_known;
    double elapsed_s;
};

/* Whether there is something to tell; then *low_s <= *high_s. */
bool estimate_left(const struct estimate *e, double *low_s, double *high_s);
/* "2 to 3 min left"; "" where high_s is 0. */
void estimate_range_text(double low_s, double high_s, char *out, size_t n);

#endif
