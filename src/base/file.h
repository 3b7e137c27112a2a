/* file.h - reads a whole small file (configuration, tokenizers, prompts) into memory, and writes
 * bytes to a descriptor.
 *
 * Other modules map weights and read the store's files through src/io. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Reads a file, a pipe (a prompt that another program writes) or a device. *out gets the bytes and
 * a final zero that *n does not count; the caller frees it. Returns 0, -errno if the file cannot be
 * read, or ERR_LIMIT if it has more than max_bytes. err names the path. */
int file_read(const char *path, size_t max_bytes, char **out, size_t *n, struct err *err);

/* Like file_read, for a file inside a model's or a store's folder. Returns ERR_FORMAT at once for
 * anything but a regular file, where file_read would wait for a pipe's writer. */
int file_read_regular(const char *path, size_t max_bytes, char **out, size_t *n,
                      struct err *err);

/* Reads n bytes from offset `at` on. Returns 0, -errno, or -ENODATA if the file ends before. */
int file_read_at(int fd, void *bytes, size_t n, uint64_t at);
/* Returns whether a path is a regular file that begins with these bytes. */
bool file_begins(const char *path, const void *bytes, size_t n);

/* Writes all n bytes: from offset `at` on, or at the descriptor's position if `at` is -1. Returns 0
 * or -errno. After an error some of the bytes may have been written. */
int file_write_all(int fd, const void *bytes, size_t n, off_t at);

#endif
