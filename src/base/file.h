/* file.h - reads a whole small file (configuration, tokenizers, prompts) into memory.
 *
 * Weights are mapped, and the store's files go through src/io; this is for the rest. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/err.h"

#include <stddef.h>

/* *out gets the bytes and a final zero that *n does not count; the caller frees it.  -errno
 * where the file cannot be read, ERR_LIMIT where it has more than max_bytes; err names the
 * path. */
int file_read(const char *path, size_t max_bytes, char **out, size_t *n, struct err *err);

#endif
