/* check.c - see check.h. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void check_failed(const char *file, int line, const char *what)
{
    fprintf(stderr, "hcache: internal error at %s:%d: %s does not hold\n", file, line,
            what);
    abort();
}
