/* gguf.h - reads a GGUF file's metadata and the places of its tensors.
 *
 *     0       4          8          16         24          end of the directory, padded
 *     +-------+----------+----------+----------+-----------+---------+------------------+
 *     | GGUF  | version  | tensors  | metadata | metadata, | padding | tensor bytes,    |
 *     |       | u32: 2,3 | u64      | pairs    | then      |         | each at a        |
 *     |       |          |          | u64      | tensors   |         | multiple of      |
 *     +-------+----------+----------+----------+-----------+---------+ general.alignment
 *
 * All numbers are little-endian.  A metadata pair is a key, a type and a value: a number, a string,
 * or an array of either.  A tensor is a name, its dimensions (the fastest first), an element type
 * and an offset.
 *
 * A file that parses is safe to index: every value and every tensor lies inside the file, keys and
 * names are unique, tensors do not overlap, and end - begin of a tensor is exactly the size of its
 * shape and type.  Any other file is ERR_FORMAT, with the key or the tensor in the message.  An
 * unknown version, byte order or element type is ERR_UNSUPPORTED.
 *
 * This module does not know what keys and names mean; the model loader does. */
#ifndef CHECKPOINT_GGUF_H
#define CHECKPOINT_GGUF_H

#include "base/arena.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GGUF_MAX_DIMS = 4 };

/* Types of metadata values. The numbers are those of the format. */
enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

struct gguf_value {
    const char *key;     /* ends with a zero byte */
    enum gguf_kind kind; /* type of the value, or of an array's elements */
    bool is_array;
    uint64_t n; /* number of elements; 1 for a value that is not an array */
    /* points into the file: numbers as stored, strings with their lengths */
    const uint8_t *bytes;
    size_t n_bytes;
};

struct gguf_tensor {
    const char *name;
    uint32_t type; /* index into the table of gguf_types.h */
    int n_dims;
    uint64_t shape[GGUF_MAX_DIMS]; /* row-major: the last dimension is the fastest */
    uint64_t begin, end;           /* byte offsets from the start of the file */
};

struct gguf {
    uint32_t version;
    uint64_t alignment;
    size_t n_values;
    struct gguf_value *values; /* sorted by key */
    size_t n_tensors;
    struct gguf_tensor *tensors; /* sorted by name */
    uint64_t data_begin;         /* file offset at which the tensors begin */
    struct arena names;          /* memory of keys and names */
};

/* Parses the beginning of a file. `bytes` are the first n bytes of a file of file_bytes, and must
 * contain everything before the tensors; -EAGAIN: they do not, and n < file_bytes. `file` is the
 * file's name in messages. Values point into `bytes`, which must outlive *out; tensors do not. Call
 * deinit also after an error. */
int gguf_parse(struct gguf *out, const void *bytes, size_t n, uint64_t file_bytes,
               const char *file, struct err *err);
void gguf_deinit(struct gguf *g);

/* Both return NULL if the file has no such key or tensor. The result is valid until deinit. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* --- values --------------------------------------------------------------------------- */

/* Read element i of an integer value of any width, of a real, or a boolean.  They return false if v
 * is NULL, has another type, or has no element i.  gguf_int also refuses values beyond int64_t. */
bool gguf_int(const struct gguf_value *v, uint64_t i, int64_t *out);
bool gguf_real(const struct gguf_value *v, uint64_t i, double *out);
bool gguf_bool(const struct gguf_value *v, uint64_t i, bool *out);

/* Reads a string value. *s points into the file and has no final zero. */
bool gguf_string(const struct gguf_value *v, const char **s, size_t *n);

/* Walks an array of strings in order. */
struct gguf_strings {
    const uint8_t *at;
    uint64_t left;
};
/* Begins a walk. Returns false if the value is not an array of strings. */
bool gguf_strings_begin(const struct gguf_value *v, struct gguf_strings *it);
bool gguf_strings_next(struct gguf_strings *it, const char **s, size_t *n);

#endif
