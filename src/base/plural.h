/* plural.h - "1 chunk", "2 chunks", for messages to users. */
#ifndef BASE_PLURAL_H
#define BASE_PLURAL_H

#include <stdint.h>

/* Returns "" if n is 1, else "s". */
static inline const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
