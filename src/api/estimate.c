/* estimate.c - see estimate.h. */
#include "api/estimate.h"

#include <math.h>
#include <stdio.h>

enum { LEAST_LINES = 3 };

bool estimate_left(const struct estimate *e, double *low_s, double *high_s)
{
    if (!e->is_size_known || e->lines_done < LEAST_LINES || e->bytes_done == 0 ||
        e->elapsed_s < 1)
        return false;
    double by_lines = e->elapsed_s * (double)e->lines_left / (double)e->lines_done;
    double by_bytes = e->elapsed_s * (double)e->bytes_left / (double)e->bytes_done;
    *low_s = fmin(by_lines, by_bytes);
    *high_s = fmax(by_lines, by_bytes);
    return true;
}

/* Returns the unit, in seconds, in which a time of s seconds reads well. */
static double unit_of(double s, const char **name)
{
    *name = s < 100 ? "s" : s < 6000 ? "min" : "h";
    return s < 100 ? 1 : s < 6000 ? 60 : 3600;
}

void estimate_range_text(double low_s, double high_s, char *out, size_t n)
{
    const char *unit;
    double of = unit_of(high_s, &unit);
    long long low = llround(low_s / of), high = (long long)ceil(high_s / of);
    out[0] = 0;
    if (high_s > 0 && low < high)
        snprintf(out, n, "%lld to %lld %s left", low, high, unit);
    else if (high_s > 0)
        snprintf(out, n, "%lld %s left", high, unit);
}
