/* file.h - reads a whole small file (configuration, tokenizers, prompts) into memory.
 *
 * Weights are mapped, and the store's files go through src/io; this is for the rest. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/err.h"

#include <stddef.h>

/* A file, a pipe (a prompt that another program writes) or a device.  *out gets the bytes and a
 * final zero that *n does not count; the caller frees it.  -errno where the file cannot be
 * read, ERR_LIMIT where it has more than max_bytes; err names the path. */
int file_read(const char *path, size_t max_bytes, char **out, size_t *n, struct err *err);

/* The same of a file that belongs to a folder (a model's, a store's): what is no regular file
 * is ERR_FORMAT, at once, where file_read would wait for whoever writes to a pipe. */
int file_read_regular(const char *path, size_t max_bytes, char **out, size_t *n,
                      struct err *err);

#endif
