/* gguf_files.h - the files of one GGUF model, mapped and parsed.
 *
 * A model is one file, or several that are named NAME-00001-of-00003.gguf and so on; the first one
 * stands for all.  Metadata lies in the first file, tensors in any.
 *
 * A mapped file must not be written to, as in weights_source.h. */
#ifndef MODEL_GGUF_FILES_H
#define MODEL_GGUF_FILES_H

#include "base/err.h"
#include "format/gguf.h"

#include <stdbool.h>

struct gguf_file {
    char *path;
    uint8_t *bytes; /* NULL where it is not mapped any more */
    size_t n_bytes;
    struct gguf g;
};

struct gguf_files {
    size_t n;
    struct gguf_file *files; /* the first one has the metadata */
};

/* Whether `path` is a regular file that begins as GGUF does. */
bool gguf_files_is(const char *path);

/* Maps and parses the file at `path`, and with `all` the other files of a split model.  close also
 * after an error. */
int gguf_files_open(struct gguf_files *out, const char *path, bool all, struct err *err);
void gguf_files_close(struct gguf_files *f);
/* Takes the mapping away; what was parsed of tensors stays, values point nowhere. */
void gguf_files_unmap(struct gguf_file *f);

/* The file and the tensor of this name; NULL where there is none. */
const struct gguf_tensor *gguf_files_find(const struct gguf_files *f, const char *name,
                                          const struct gguf_file **in);

/* "llama": general.architecture; NULL with an error where the file has none. */
const char *gguf_files_arch(const struct gguf_files *f, char *buf, size_t n,
                            struct err *err);

#endif
