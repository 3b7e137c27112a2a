/* packed_file.h - makes packed models for tests. Failures end the test. */
#ifndef TESTS_MODEL_PACKED_FILE_H
#define TESTS_MODEL_PACKED_FILE_H

#include <limits.h>

struct io;

/* Packs `source` for n_ranks devices of the kind `device` into a new file in `dir`. path gets the
 * file's full path. weights is model_opts.weights; NULL keeps the checkpoint's type. */
void packed_file_make(const char *dir, const char *source, const char *device, int n_ranks,
                      const char *weights, char path[PATH_MAX]);

/* Copies the file to a simulated disk, under the same path. */
void packed_file_copy(struct io *sim, const char *path);

#endif
