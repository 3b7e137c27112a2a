/* surprise.h - why a restore took another time than its plan predicted.
 *
 * A prediction misses if the restore took less than half or more than twice the predicted time,
 * and the two differ by more than SURPRISE_FLOOR_S. The cause is the lane that explains at least
 * half of the extra time. If no lane does, both lanes waited: for decodes, for other restores,
 * or for other programs.
 *
 * Pure. */
#ifndef RESTORE_SURPRISE_H
#define RESTORE_SURPRISE_H

#include <stdbool.h>

#define SURPRISE_FACTOR  2.0
#define SURPRISE_FLOOR_S 0.005

enum surprise {
    SURPRISE_NONE,
    SURPRISE_FASTER,  /* less than half the predicted time */
    SURPRISE_LOST,    /* chunks could not be read, and their tokens were computed */
    SURPRISE_READS,   /* reads took longer than predicted */
    SURPRISE_COMPUTE, /* the restore's own compute took longer than predicted */
    SURPRISE_SHARED,  /* both lanes waited for other work */
    SURPRISES
};

/* Times of a restore in seconds: the whole, and how long each lane was busy. */
struct surprise_times {
    double total_s, io_s, compute_s;
};

/* Returns the kind of surprise. is_whole: every chunk of the plan came back. */
enum surprise surprise_of(const struct surprise_times *predicted,
                          const struct surprise_times *measured, bool is_whole);
/* Returns "", "faster", "lost", "reads", "compute" or "shared". */
const char *surprise_name(enum surprise s);

#endif
