/* plural.h - "1 chunk", "2 chunks": what users read. */
#ifndef BASE_PLURAL_H
#define BASE_PLURAL_H

#include <stdint.h>

/* The "s" behind a noun that n things share, or none. */
static inline const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
