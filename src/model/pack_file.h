/* pack_file.h - what a packed model file says about itself: header, description, checksums and
 * the small files that travel in it.  docs/PACKED_FORMAT.md has the byte tables.
 *
 *     0        header, 4096 bytes, with its own checksum
 *     4096     description (JSON), then the source's files that text needs, with checksums
 *              checksums of the parts: one for each MiB
 *              the parts: tables | head | layer 0 streamed, kept | layer 1 streamed, kept | ...
 *
 * Description, files and parts begin at multiples of 4096.  A part is the memory of a device's
 * weights as the device has them (pack_image.h), so a file belongs to one layout: a device's
 * name, the version of its layout, and the number of its ranks.
 *
 * This module parses and describes.  It reads with plain system calls and knows no device.
 * pack_read.h reads the parts. */
#ifndef MODEL_PACK_FILE_H
#define MODEL_PACK_FILE_H

#include "base/err.h"
#include "base/hash.h"
#include "model/matrix_types.h"
#include "model/weights.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PACK_VERSION = 1,
    PACK_ALIGN = 4096,
    PACK_SUM_BYTES = 1 << 20, /* bytes that one checksum guards */
    PACK_LAYOUT_BYTES = 64,
};

/* Parts, in the order of the file. */
enum { PACK_TABLES, PACK_HEAD, PACK_LAYERS };
static inline size_t pack_streamed_part(int l)
{
    return PACK_LAYERS + 2 * (size_t)l;
}
static inline size_t pack_kept_part(int l)
{
    return PACK_LAYERS + 2 * (size_t)l + 1;
}

struct pack_part {
    uint64_t at, bytes; /* multiples of PACK_ALIGN; bytes may be 0 */
    size_t first_sum;   /* index of its first checksum */
};

static inline size_t pack_part_sums(const struct pack_part *p)
{
    return (size_t)((p->bytes + PACK_SUM_BYTES - 1) / PACK_SUM_BYTES);
}

/* A file of the source: config.json, tokenizer.json, ... */
struct pack_member {
    const char *name;
    uint64_t at, bytes, sum;
    uint64_t
        file_bytes; /* of the file that it is the beginning of (tokenizer.gguf); else 0 */
};

struct pack_file {
    char *path;
    uint64_t file_bytes;
    struct sha256 hash; /* of the weights, as weights.hash */
    enum dtype dtype;   /* of the matrices; DTYPE_Q4: each has its own */
    struct matrix_types matrices;
    enum dtype file_dtype;
    enum dtype table_dtype[2]; /* of embeddings and of learned positions */
    char layout[PACK_LAYOUT_BYTES];
    int n_layers;
    bool any_context; /* random weights: rotations may go beyond the shape's context */
    const char *source, *note;
    struct weights_types types;
    size_t n_parts;
    struct pack_part *parts;
    size_t n_sums;
    uint64_t *sums;
    size_t n_members;
    struct pack_member *members;
    void *json; /* owns the texts above */
};

/* Whether `path` is a regular file that begins as a packed model does. */
bool pack_file_is(const char *path);

/* Reads and checks everything but members and parts.  ERR_FORMAT: no packed model;
 * ERR_UNSUPPORTED: another version; ERR_CORRUPT: damaged, or cut short.  close also after an
 * error. */
int pack_file_open(struct pack_file *out, const char *path, struct err *err);
void pack_file_close(struct pack_file *f);
/* The part of open that parses: reads the description into f, which has path, file_bytes and
 * n_sums.  Members and parts lie in the file then.  Call it once; close f also after an error. */
int pack_file_describe(struct pack_file *f, const char *text, size_t n, struct err *err);

/* The bytes of a member with a final zero that *n does not count; the caller frees *out.  -ENOENT
 * where the file has none of this name, ERR_CORRUPT where its checksum does not hold. *file_bytes
 * (NULL allowed): as in struct pack_member. */
int pack_member_read(const struct pack_file *f, const char *name, char **out, size_t *n,
                     uint64_t *file_bytes, struct err *err);

/* --- for the writer --- */

/* The bytes before the first part, which the caller frees.  lay_out was called before. */
void pack_file_encode(const struct pack_file *f, const char *const *member_bytes,
                      uint8_t **out, size_t *n);
/* Sets the offsets of members, checksums and parts from their sizes, and file_bytes. */
void pack_file_lay_out(struct pack_file *f);

/* A file of a model: DIR/name, or the member of a packed file.  As file_read_regular. */
int model_file_read(const char *source, const char *name, size_t max_bytes, char **out,
                    size_t *n, struct err *err);

#endif
