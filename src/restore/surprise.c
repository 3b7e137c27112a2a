/* surprise.c - see surprise.h. */
#include "restore/surprise.h"

#include <math.h>

enum surprise surprise_of(const struct surprise_times *predicted,
                          const struct surprise_times *measured, bool is_whole)
{
    double more = measured->total_s - predicted->total_s;
    double io = measured->io_s - predicted->io_s;
    double compute = measured->compute_s - predicted->compute_s;
    if (fabs(more) <= SURPRISE_FLOOR_S)
        return SURPRISE_NONE;
    if (measured->total_s * SURPRISE_FACTOR < predicted->total_s)
        return is_whole ? SURPRISE_FASTER : SURPRISE_LOST;
    if (measured->total_s <= predicted->total_s * SURPRISE_FACTOR)
        return SURPRISE_NONE;
    if (!is_whole)
        return SURPRISE_LOST;
    if (io >= compute && io >= more / 2)
        return SURPRISE_READS;
    return compute >= more / 2 ? SURPRISE_COMPUTE : SURPRISE_SHARED;
}

const char *surprise_name(enum surprise s)
{
    static const char *const names[SURPRISES] = {"",      "faster",  "lost",
                                                 "reads", "compute", "shared"};
    return names[s];
}
