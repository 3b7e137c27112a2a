/* pack_file.h - the header of a packed model file, its description, its checksums, and the small
 * files inside it.  docs/PACKED_FORMAT.md has the byte tables.
 *
 *     0        header, 4096 bytes, with its own checksum
 *     4096     description (JSON), then configuration and tokenizer files of the source, with
 *              checksums
 *              checksums of the parts: one for each MiB
 *              the parts: tables | head | layer 0 streamed, kept | layer 1 streamed, kept | ...
 *              then of each layer with experts: expert 0 | expert 1 | ...
 *
 * Description, files and parts begin at multiples of 4096.  A part is an image of a device's memory
 * with weights (pack_image.h), so a file suits one layout only: a device's name, the version of its
 * layout, and its number of ranks.
 *
 * This module parses.  It reads with plain system calls and knows no device; pack_read.h reads the
 * parts. */
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
    /* The latest version. Version 2 is the same, without experts as parts of their own; 1 also
     * without embeddings of 4-bit or 6-bit blocks. */
    PACK_VERSION = 3,
    PACK_ALIGN = 4096,
    PACK_SUM_BYTES = 1 << 20, /* bytes that one checksum covers */
    PACK_LAYOUT_BYTES = 64,
};

/* Byte offsets in the header. */
#define PACK_MAGIC "hcpacked"
enum {
    PACK_H_VERSION = 8,
    PACK_H_FILE_BYTES = 16,
    PACK_H_TEXT_BYTES = 24,
    PACK_H_TEXT_SUM = 32,
    PACK_H_SUMS_AT = 40,
    PACK_H_N_SUMS = 48,
    PACK_H_SUMS_SUM = 56,
    PACK_H_HASH = 64,
    PACK_H_SUM = PACK_ALIGN - 8,
    PACK_TEXT_AT = PACK_ALIGN,
};
/* Keys of the description for SLOT_WQ to SLOT_LAST_IN_BLOCKS. */
extern const char *const pack_matrix_keys[];

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
/* Returns the part of expert e of layer l. */
static inline size_t pack_expert_part(const struct model_config *c, int l, int e)
{
    return pack_streamed_part(c->n_layers) +
           (size_t)(l - c->n_dense_layers) * (size_t)c->n_experts + (size_t)e;
}
/* Returns the number of parts of a model. */
static inline size_t pack_n_parts(const struct model_config *c)
{
    return c->n_experts > 0 ? pack_expert_part(c, c->n_layers, 0)
                            : pack_streamed_part(c->n_layers);
}

struct pack_part {
    uint64_t at, bytes; /* multiples of PACK_ALIGN; bytes may be 0 */
    size_t first_sum;   /* index of the part's first checksum */
};

static inline size_t pack_part_sums(const struct pack_part *p)
{
    return (size_t)((p->bytes + PACK_SUM_BYTES - 1) / PACK_SUM_BYTES);
}

/* A file of the source, such as config.json or tokenizer.json. */
struct pack_member {
    const char *name;
    uint64_t at, bytes, sum;
    /* full size of the file if only its beginning is stored (tokenizer.gguf); else 0 */
    uint64_t file_bytes;
};

struct pack_file {
    char *path;
    uint64_t file_bytes;
    struct sha256 hash; /* hash of the weights, as weights.hash */
    enum dtype dtype;   /* type of the matrices; DTYPE_Q4: each has its own */
    struct matrix_types matrices;
    enum dtype file_dtype;
    enum dtype table_dtype[2]; /* types of the embeddings and of the learned positions */
    char layout[PACK_LAYOUT_BYTES];
    int n_layers;
    bool any_context; /* random weights: positions may exceed the shape's context */
    const char *source, *note;
    struct weights_types types;
    size_t n_parts;
    struct pack_part *parts;
    size_t n_sums;
    uint64_t *sums;
    size_t n_members;
    struct pack_member *members;
    void *json; /* owns the strings above */
};

/* Returns whether `path` is a regular file that begins like a packed model. */
bool pack_file_is(const char *path);

/* Reads and checks everything but members and parts.  ERR_FORMAT: not a packed model;
 * ERR_UNSUPPORTED: another version; ERR_CORRUPT: damaged or cut short.  Call close also after an
 * error. */
int pack_file_open(struct pack_file *out, const char *path, struct err *err);
void pack_file_close(struct pack_file *f);
/* The parsing part of pack_file_open. Reads the description into f and checks that members and
 * parts lie in the file. f's path, file_bytes and n_sums must be set. Call it once; close f also
 * after an error. */
int pack_file_describe(struct pack_file *f, const char *text, size_t n, struct err *err);

/* Reads a member and appends a final zero that *n does not count; the caller frees *out.  -ENOENT:
 * no member of this name; ERR_CORRUPT: its checksum does not match. *file_bytes (NULL allowed): see
 * struct pack_member. */
int pack_member_read(const struct pack_file *f, const char *name, char **out, size_t *n,
                     uint64_t *file_bytes, struct err *err);

/* Reads a file of a model: DIR/name, or the member of a packed file. Otherwise like
 * file_read_regular. */
int model_file_read(const char *source, const char *name, size_t max_bytes, char **out,
                    size_t *n, struct err *err);

/* Parses a JSON file of a model, which may be missing. Sets *out to its value, which the caller
 * frees, or to NULL after an error and if there is no such file. */
struct json;
int model_json_read(const char *source, const char *name, size_t max_bytes,
                    struct json **out, struct err *err);

#endif
