/* gguf.h - what a GGUF file says: its metadata, and where its tensors lie.
 *
 *     0       4          8          16         24          end of the directory, padded
 *     +-------+----------+----------+----------+-----------+---------+------------------+
 *     | GGUF  | version  | tensors  | metadata | metadata, | padding | tensor bytes,    |
 *     |       | u32: 2,3 | u64      | pairs    | then      |         | each at a        |
 *     |       |          |          | u64      | tensors   |         | multiple of      |
 *     +-------+----------+----------+----------+-----------+---------+ general.alignment
 *
 * All numbers are little-endian.  A metadata pair is a key, a type and a value: a number, a
 * string, or an array of one of these.  A tensor is a name, its dimensions (the fastest first), an
 * element type and an offset.
 *
 * A file that parses is safe to index: every value and every tensor lies inside the file, keys and
 * names are unique, tensors do not overlap, and end - begin of a tensor is exactly what its shape
 * and type take.  Everything else is ERR_FORMAT with the key or the tensor in the message.  A
 * version, byte order or element type that is not known is ERR_UNSUPPORTED.
 *
 * This module knows bytes.  The meaning of keys and names is the model's business. */
#ifndef FORMAT_GGUF_H
#define FORMAT_GGUF_H

#include "base/arena.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GGUF_MAX_DIMS = 4 };

/* Types of metadata, with the numbers that files use. */
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
    const char *key;     /* ends with a zero */
    enum gguf_kind kind; /* of the value; of the elements where it is an array */
    bool is_array;
    uint64_t n; /* elements; 1 where it is no array */
    const uint8_t
        *bytes; /* points into the file: numbers as they are, strings with lengths */
    size_t n_bytes;
};

struct gguf_tensor {
    const char *name;
    uint32_t type; /* a row of gguf_types.h's table */
    int n_dims;
    uint64_t shape[GGUF_MAX_DIMS]; /* row-major: the last one is the fastest */
    uint64_t begin, end;           /* byte offsets from the start of the file */
};

struct gguf {
    uint32_t version;
    uint64_t alignment;
    size_t n_values;
    struct gguf_value *values; /* sorted by key */
    size_t n_tensors;
    struct gguf_tensor *tensors; /* sorted by name */
    uint64_t data_begin;         /* file offset that tensors count from */
    struct arena names;          /* owns keys and names */
};

/* `bytes` are the first n of a file of file_bytes, and must contain everything before the tensors.
 * `file` is the name for messages.  Values point into `bytes`, which must outlive *out; tensors do
 * not.  deinit also after an error. */
int gguf_parse(struct gguf *out, const void *bytes, size_t n, uint64_t file_bytes,
               const char *file, struct err *err);
void gguf_deinit(struct gguf *g);

/* Whether the file begins as a GGUF file does. */
bool gguf_is(const void *bytes, size_t n);

/* NULL where there is none.  Valid until deinit. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* --- values --------------------------------------------------------------------------- */

/* Element i of a value that holds integers of any width, reals, or booleans; false where the value
 * is NULL, has another type, or no element i.  gguf_int refuses what int64_t cannot hold. */
bool gguf_int(const struct gguf_value *v, uint64_t i, int64_t *out);
bool gguf_real(const struct gguf_value *v, uint64_t i, double *out);
bool gguf_bool(const struct gguf_value *v, bool *out);

/* A string: *s points into the file, without a final zero. */
bool gguf_string(const struct gguf_value *v, const char **s, size_t *n);

/* Walks an array of strings in order. */
struct gguf_strings {
    const uint8_t *at;
    uint64_t left;
};
/* False where the value is no array of strings. */
bool gguf_strings_begin(const struct gguf_value *v, struct gguf_strings *it);
bool gguf_strings_next(struct gguf_strings *it, const char **s, size_t *n);

#endif
