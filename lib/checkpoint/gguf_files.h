/* gguf_files.h - the files of one GGUF model, opened and parsed.
 *
 * A model is one file, or several that are named NAME-00001-of-00003.gguf and so on.  The first
 * file's path stands for all of them.  Metadata lies in the first file, tensors in any.
 *
 * The directory is copied to memory, and tensors are read when they are needed: no file is mapped,
 * so one that is cut or rewritten meanwhile gives an error (weights_source.h) and never a signal.
 */
#ifndef CHECKPOINT_GGUF_FILES_H
#define CHECKPOINT_GGUF_FILES_H

#include "base/err.h"
#include "checkpoint/gguf.h"

#include <stdbool.h>

struct gguf_file {
    char *path;
    int fd;
    uint64_t n_bytes;
    uint8_t *directory; /* the file's beginning: all metadata, and the list of tensors */
    struct gguf g;
};

struct gguf_files {
    size_t n;
    struct gguf_file *files; /* the first one has the metadata */
};

/* Returns whether `path` is a regular file that begins like a GGUF file. */
bool gguf_files_is(const char *path);

/* Opens and parses the file at `path`; with `all` also the other files of a split model.  Call
 * close also after an error. */
int gguf_files_open(struct gguf_files *out, const char *path, bool all, struct err *err);
void gguf_files_close(struct gguf_files *f);

/* Finds a tensor by name; *in gets its file. NULL: there is none. */
const struct gguf_tensor *gguf_files_find(const struct gguf_files *f, const char *name,
                                          const struct gguf_file **in);

/* Returns general.architecture, as in "llama"; NULL with an error if the file has none. */
const char *gguf_files_arch(const struct gguf_files *f, char *buf, size_t n,
                            struct err *err);

#endif
