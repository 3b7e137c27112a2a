/* gguf_files.h - the files of one GGUF model, mapped and parsed.
 *
 * A model is one file, or several that are named NAME-00001-of-00003.gguf and so on.  The first
 * file's path stands for all of them.  Metadata lies in the first file, tensors in any.
 *
 * A mapped file must not be written to (see weights_source.h). */
#ifndef MODEL_GGUF_FILES_H
#define MODEL_GGUF_FILES_H

#include "base/err.h"
#include "format/gguf.h"

#include <stdbool.h>

struct gguf_file {
    char *path;
    uint8_t *bytes; /* NULL after it was unmapped */
    size_t n_bytes;
    struct gguf g;
};

struct gguf_files {
    size_t n;
    struct gguf_file *files; /* the first one has the metadata */
};

/* Returns whether `path` is a regular file that begins like a GGUF file. */
bool gguf_files_is(const char *path);

/* Maps and parses the file at `path`; with `all` also the other files of a split model.  Call close
 * also after an error. */
int gguf_files_open(struct gguf_files *out, const char *path, bool all, struct err *err);
void gguf_files_close(struct gguf_files *f);
/* Unmaps a file. The parsed tensors stay valid; values must not be used any more. */
void gguf_files_unmap(struct gguf_file *f);

/* Finds a tensor by name; *in gets its file. NULL: there is none. */
const struct gguf_tensor *gguf_files_find(const struct gguf_files *f, const char *name,
                                          const struct gguf_file **in);

/* Returns general.architecture, as in "llama"; NULL with an error if the file has none. */
const char *gguf_files_arch(const struct gguf_files *f, char *buf, size_t n,
                            struct err *err);

#endif
