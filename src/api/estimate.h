/* estimate.h - estimates how long a job still takes. Pure.
 *
 * Lines differ, so the estimate is a range: one end assumes that remaining lines take as long as
 * the finished ones, the other that remaining bytes do.  There is no estimate before three lines
 * and one second have passed, or if the input's size is not known. */
#ifndef API_ESTIMATE_H
#define API_ESTIMATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct estimate {
    uint64_t lines_done, bytes_done; /* lines and bytes that this run has finished */
    /* lines and bytes of the input that are not done yet */
    uint64_t lines_left, bytes_left;
    bool is_size_known;
    double elapsed_s;
};

/* Returns whether there is an estimate. If so, *low_s <= *high_s. */
bool estimate_left(const struct estimate *e, double *low_s, double *high_s);
/* Writes "2 to 3 min left", or "" if high_s is 0. */
void estimate_range_text(double low_s, double high_s, char *out, size_t n);

#endif
