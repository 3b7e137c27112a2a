/* background.h - other work on the machine during a measurement.
 *
 *   busy, busy2   one thread, or two, that compute without a pause
 *   reader        a thread that reads the largest file of a folder from its device, in a loop */
#ifndef BENCH_BACKGROUND_H
#define BENCH_BACKGROUND_H

#include "base/err.h"
#include "io/io.h"

enum background {
    BACKGROUND_NONE,
    BACKGROUND_BUSY,
    BACKGROUND_BUSY2,
    BACKGROUND_READER,
    BACKGROUNDS
};

/* Returns "none", "busy", "busy2" or "reader". */
const char *background_name(enum background b);
/* Parses a name. Returns 0, or ERR_USAGE if no kind has this name. */
int background_parse(const char *name, enum background *out, struct err *err);

struct background_run;
/* Starts the work; io and folder are for the reader. Returns NULL for BACKGROUND_NONE. Also returns
 * NULL if no thread can be started or the folder has no file; err then has the reason. */
struct background_run *background_start(enum background b, struct io *io,
                                        const char *folder, struct err *err);
/* Ends the work. NULL is allowed. */
void background_stop(struct background_run *run);

#endif
