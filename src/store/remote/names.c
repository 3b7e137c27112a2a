/* names.c - see names.h. */
#include "store/remote/names.h"

#include <stdio.h>

void name_chunk(const struct sha256 *key, char out[NAME_BYTES])
{
    char hex[65];
    sha256_hex(key, hex);
    snprintf(out, NAME_BYTES, NAME_CHUNKS "%s", hex);
}
