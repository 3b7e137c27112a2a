/* fullness.h - when a conversation counts as nearly full. Terminal, page and API agree on it. */
#ifndef API_FULLNESS_H
#define API_FULLNESS_H

#include <stdbool.h>
#include <stdint.h>

/* Returns whether `used` tokens are 80 % or more of a context. */
static inline bool fullness_warns(int64_t used, int64_t context)
{
    return used * 5 >= context * 4;
}

#endif
