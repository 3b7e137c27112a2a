/* store_key.h - the secret of an encrypted store, from a file or from the environment. */
#ifndef APPS_STORE_KEY_H
#define APPS_STORE_KEY_H

#include <stdint.h>

#include "base/err.h"
#include "hcache.h"

/* The variable that holds the secret for "env". */
#define STORE_KEY_VARIABLE "HCACHE_STORE_SECRET"

/* Reads 64 lower-case hexadecimal digits: from a file, or from STORE_KEY_VARIABLE if `from` is "env".
 * Returns 0 with *out; ERR_USAGE for other text; or the error of reading. */
int store_key_read(const char *from, uint8_t out[HCACHE_STORE_KEY_BYTES], struct err *err);

#endif
