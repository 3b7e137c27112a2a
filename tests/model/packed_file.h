/* packed_file.h - packed models that a test makes for itself. Failures end the test. */
#ifndef TESTS_MODEL_PACKED_FILE_H
#define TESTS_MODEL_PACKED_FILE_H

#include <limits.h>

struct io;

/* Packs `source` for n_ranks devices of this name into a new file of `dir`; path gets its whole
 * path. weights NULL: the checkpoint's. */
void packed_file_make(const char *dir, const char *source, const char *device, int n_ranks,
                      const char *weights, char path[PATH_MAX]);

/* The file on a simulated disk, under the same path. */
void packed_file_copy(struct io *sim, const char *path);

#endif
