/* safetensors.h - finds the tensors inside a safetensors file.
 *
 *     0        8                8 + n               8 + n + size of all tensors
 *     +--------+----------------+------------------------------------------+
 *     | n, u64 | JSON header    | tensor bytes, little-endian, row-major   |
 *     +--------+----------------+------------------------------------------+
 *
 * A file that parses is safe to index: every tensor's bytes lie inside the file, tensors neither
 * overlap nor leave holes, the last one ends where the file does, and end - begin is exactly the
 * product of the shape and the element size.  Any other file is ERR_FORMAT, with the tensor's name
 * in the message; an unknown element type is ERR_UNSUPPORTED.
 *
 * This module does not know what the tensors mean; the model loader does. */
#ifndef CHECKPOINT_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_MAX_DIMS = 8 };

enum safetensors_dtype {
    SAFETENSORS_BOOL,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_I16,
    SAFETENSORS_U16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_U32,
    SAFETENSORS_F32,
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_U64,
};

/* returns the type's name, such as "BF16" */
const char *safetensors_dtype_name(enum safetensors_dtype t);

struct safetensors_tensor {
    const char *name;
    enum safetensors_dtype dtype;
    int n_dims; /* 0 for a scalar */
    uint64_t shape[SAFETENSORS_MAX_DIMS];
    uint64_t begin, end; /* byte offsets from the start of the file */
};

struct safetensors {
    size_t n_tensors;
    struct safetensors_tensor *tensors; /* sorted by name; this struct owns the names */
    uint64_t data_begin;                /* file offset of the first tensor byte */
    void *names;
};

/* Parses the header of a file. `bytes` are the first n bytes of a file of file_bytes, and must
 * contain the whole header: pass the whole mapping, or read the first 8 bytes and ask
 * safetensors_header_end. `file` is the file's name in messages. Nothing in `bytes` is kept. Call
 * deinit also after an error. */
int safetensors_parse(struct safetensors *out, const void *bytes, size_t n,
                      uint64_t file_bytes, const char *file, struct err *err);
void safetensors_deinit(struct safetensors *s);

/* Returns the tensor of that name; NULL if there is none. The result is valid until deinit. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *s,
                                                  const char *name);

/* Computes *end, the number of bytes that safetensors_parse needs from the start of the file.
 * `bytes` are at least the file's first 8 bytes. Returns ERR_FORMAT if *end would exceed the file's
 * size or the format's own limit of 100 MB. */
int safetensors_header_end(const void *bytes, size_t n, uint64_t file_bytes,
                           const char *file, uint64_t *end, struct err *err);

/* --- several files: model.safetensors.index.json ------------------------------------ */

struct safetensors_index_entry {
    const char *name;
    size_t file_idx;
};

struct safetensors_index {
    size_t n_files;
    char **files; /* names of files in the same folder, sorted */
    size_t n_entries;
    struct safetensors_index_entry *entries; /* sorted by name */
    void *names;
};

/* Parses the index. Refuses a file name that would leave the folder. Call deinit also after an
 * error. */
int safetensors_index_parse(struct safetensors_index *out, const void *bytes, size_t n,
                            const char *file, struct err *err);
void safetensors_index_deinit(struct safetensors_index *x);

#endif
