/* pack_file.c - see pack_file.h. */
#include "model/pack_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/json.h"

#define TEXT_MAX_BYTES   ((uint64_t)64 << 20)
#define MEMBER_MAX_BYTES ((uint64_t)1 << 30)
enum { MAX_LAYERS = 1 << 16 };

/* --- reading ---------------------------------------------------------------------------------- */

bool pack_file_is(const char *path)
{
    return file_begins(path, PACK_MAGIC, 8);
}

static int read_at(const struct pack_file *f, int fd, void *out, size_t n, uint64_t at,
                   struct err *err)
{
    int rc = file_read_at(fd, out, n, at);
    if (rc == -ENODATA)
        return err_set(err, ERR_CORRUPT, "%s: is cut short", f->path);
    return rc == 0 ? 0 : err_set(err, rc, "%s: %s", f->path, strerror(-rc));
}

static int damaged(const struct pack_file *f, const char *what, struct err *err)
{
    return err_set(err, ERR_CORRUPT, "%s: %s is damaged: pack the model again", f->path,
                   what);
}

/* Returns whether a run of bytes lies in the file, behind the header. */
static bool is_inside(const struct pack_file *f, uint64_t at, uint64_t bytes)
{
    return at >= PACK_ALIGN && at <= f->file_bytes && bytes <= f->file_bytes - at;
}

static int read_types(struct pack_file *f, const struct json *o, struct err *err)
{
    const struct json *list;
    int rc = json_get_array(o, "types", &list, err);
    size_t room = sizeof f->types.of / sizeof f->types.of[0];
    for (size_t i = 0; rc == 0 && i < json_count(list) && i < room; i++) {
        const struct json *t = json_at(list, i);
        int64_t n = 0;
        if ((rc = json_get_string(t, "name", &f->types.of[i].name, err)) == 0 &&
            (rc = json_get_int(t, "tensors", 0, 1 << 24, &n, err)) == 0)
            rc = json_get_bool(t, "quantised", &f->types.of[i].quantised, err);
        f->types.of[i].n_tensors = (int)n;
        f->types.n = (int)i + 1;
    }
    return rc;
}

static int read_members(struct pack_file *f, const struct json *o, struct err *err)
{
    const struct json *list;
    int rc = json_get_array(o, "files", &list, err);
    f->n_members = rc == 0 ? json_count(list) : 0;
    f->members = xcalloc(f->n_members + 1, sizeof *f->members);
    for (size_t i = 0; rc == 0 && i < f->n_members; i++) {
        struct pack_member *m = &f->members[i];
        const struct json *o1 = json_at(list, i);
        int64_t at = 0, bytes = 0, file_bytes = 0;
        const char *sum = NULL;
        const int64_t most = (int64_t)MEMBER_MAX_BYTES;
        if ((rc = json_get_string(o1, "name", &m->name, err)) != 0 ||
            (rc = json_get_int(o1, "at", 0, INT64_MAX, &at, err)) != 0 ||
            (rc = json_get_int(o1, "bytes", 0, most, &bytes, err)) != 0 ||
            (rc = json_get_int(o1, "file_bytes", 0, INT64_MAX, &file_bytes, err)) != 0 ||
            (rc = json_get_string(o1, "checksum", &sum, err)) != 0)
            return rc;
        m->at = (uint64_t)at;
        m->bytes = (uint64_t)bytes;
        m->file_bytes = (uint64_t)file_bytes;
        m->sum = strtoull(sum, NULL, 16);
        if (!is_inside(f, m->at, m->bytes))
            return damaged(f, "the place of a file in it", err);
    }
    return rc;
}

static int read_parts(struct pack_file *f, const struct json *o, struct err *err)
{
    const struct json *list;
    size_t n_sums = 0;
    int rc = json_get_array(o, "parts", &list, err);
    if (rc != 0)
        return rc;
    f->n_parts = json_count(list);
    if (f->n_parts < pack_streamed_part(f->n_layers))
        return damaged(f, "its list of parts", err);
    f->parts = xcalloc(f->n_parts, sizeof *f->parts);
    for (size_t i = 0; i < f->n_parts; i++) {
        struct pack_part *p = &f->parts[i];
        int64_t at = 0, bytes = 0;
        if ((rc = json_get_int(json_at(list, i), "at", 0, INT64_MAX, &at, err)) != 0 ||
            (rc = json_get_int(json_at(list, i), "bytes", 0, INT64_MAX, &bytes, err)) != 0)
            return rc;
        *p = (struct pack_part){(uint64_t)at, (uint64_t)bytes, n_sums};
        n_sums += pack_part_sums(p);
        if (!is_inside(f, p->at, p->bytes) || p->at % PACK_ALIGN != 0 ||
            p->bytes % PACK_ALIGN != 0)
            return damaged(f, "the place of a part", err);
    }
    return n_sums == f->n_sums ? 0 : damaged(f, "its number of checksums", err);
}

static int read_dtype(const struct json *o, const char *key, enum dtype *out,
                      struct err *err)
{
    const char *name;
    int rc = json_get_string(o, key, &name, err);
    if (rc != 0)
        return rc;
    for (enum dtype t = DTYPE_F32; t <= DTYPE_Q4; t++)
        if (strcmp(name, dtype_name(t)) == 0) {
            *out = t;
            return 0;
        }
    return err_set(err, ERR_FORMAT, "'%s' is '%s'", key, name);
}

const char *const pack_matrix_keys[] = {
    "wq",         "wkv",       "wv",        "wo",          "up",       "down",
    "mix",        "mix_out",   "shared_up", "shared_down", "dense_up", "dense_down",
    "layer_gate", "layer_out", "wqa",       "wuk",         "wuv"};
_Static_assert(sizeof pack_matrix_keys / sizeof pack_matrix_keys[0] ==
                   SLOT_LAST_IN_BLOCKS - SLOT_WQ + 1,
               "each matrix has a key");

static int read_matrix(struct pack_file *f, const struct json *of, const char *key,
                       enum dtype *out, struct err *err)
{
    int rc = read_dtype(of, key, out, err);
    if (rc == 0 && *out != DTYPE_Q8 && !dtype_has_blocks(*out))
        return damaged(f, "its list of matrices", err);
    return rc;
}

/* Reads a layer's types: those of W_q, W_k and W_v, W_o, up, down.  "wv" is present if W_v's type
 * is not W_k's, and those behind "down" if they are not q8. */
static int read_layer(struct pack_file *f, const struct json *of, int l, struct err *err)
{
    int rc = 0;
    for (enum slot s = SLOT_WQ; rc == 0 && s <= SLOT_LAST_IN_BLOCKS; s++) {
        const char *key = pack_matrix_keys[s - SLOT_WQ];
        enum dtype *at = matrix_type_at(&f->matrices, l, s);
        if (s == SLOT_WV && json_member(of, key) == NULL)
            *at = *matrix_type_at(&f->matrices, l, SLOT_WKV);
        else if (s <= SLOT_DOWN || json_member(of, key) != NULL)
            rc = read_matrix(f, of, key, at, err);
    }
    return rc;
}

/* Reads "matrices": the type of the head, then those of each layer. */
static int read_matrices(struct pack_file *f, const struct json *o, struct err *err)
{
    const struct json *list;
    matrix_types_init(&f->matrices, f->dtype, f->n_layers);
    if (f->dtype != DTYPE_Q4)
        return 0;
    int rc = json_get_array(o, "matrices", &list, err);
    if (rc != 0)
        return rc;
    if (json_count(list) != (size_t)f->n_layers + 1)
        return damaged(f, "its list of matrices", err);
    rc = read_matrix(f, json_at(list, 0), "head", &f->matrices.head, err);
    for (int l = 0; rc == 0 && l < f->n_layers; l++)
        rc = read_layer(f, json_at(list, (size_t)l + 1), l, err);
    return rc;
}

static int read_text(struct pack_file *f, const struct json *o, struct err *err)
{
    const char *layout = NULL;
    int64_t n_layers = 0;
    int rc;
    if ((rc = json_get_string(o, "layout", &layout, err)) != 0 ||
        (rc = json_get_int(o, "layers", 1, MAX_LAYERS, &n_layers, err)) != 0 ||
        (rc = read_dtype(o, "weights", &f->dtype, err)) != 0 ||
        (rc = read_dtype(o, "source_type", &f->file_dtype, err)) != 0 ||
        (rc = read_dtype(o, "embeddings", &f->table_dtype[0], err)) != 0 ||
        (rc = read_dtype(o, "positions", &f->table_dtype[1], err)) != 0 ||
        (rc = json_get_bool(o, "any_context", &f->any_context, err)) != 0 ||
        (rc = json_get_string(o, "source", &f->source, err)) != 0 ||
        (rc = json_get_string(o, "note", &f->note, err)) != 0)
        return rc;
    bool blocks = f->dtype == DTYPE_Q4 && dtype_has_blocks(f->table_dtype[0]);
    if ((f->table_dtype[0] >= DTYPE_Q8 && !blocks) || f->table_dtype[1] >= DTYPE_Q8 ||
        f->file_dtype >= DTYPE_Q8)
        return damaged(f, "its description", err);
    /* Only single matrices and the embeddings of a DTYPE_Q4 file have types with blocks. */
    if (dtype_has_blocks(f->dtype))
        return damaged(f, "its description", err);
    f->n_layers = (int)n_layers;
    rc = read_matrices(f, o, err);
    if (rc != 0)
        return rc;
    snprintf(f->layout, sizeof f->layout, "%s", layout);
    rc = read_types(f, o, err);
    if (rc == 0)
        rc = read_members(f, o, err);
    return rc == 0 ? read_parts(f, o, err) : rc;
}

int pack_file_describe(struct pack_file *f, const char *text, size_t n, struct err *err)
{
    struct json *root = NULL;
    int rc = json_parse(&root, text, n, f->path, err);
    f->json = root;
    return rc == 0 ? read_text(f, root, err) : rc;
}

static int check_header(struct pack_file *f, const uint8_t *h, uint64_t size,
                        struct err *err)
{
    if (memcmp(h, PACK_MAGIC, 8) != 0)
        return err_set(err, ERR_FORMAT, "%s: not a packed model", f->path);
    if (checksum64(h, PACK_H_SUM) != get_u64(h + PACK_H_SUM))
        return damaged(f, "its header", err);
    if (get_u32(h + PACK_H_VERSION) < 1 || get_u32(h + PACK_H_VERSION) > PACK_VERSION)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: is a packed model of version %" PRIu32
                       ", and this program reads versions up to %d: pack the model again",
                       f->path, get_u32(h + PACK_H_VERSION), PACK_VERSION);
    f->file_bytes = get_u64(h + PACK_H_FILE_BYTES);
    if (size != f->file_bytes)
        return err_set(err, ERR_CORRUPT,
                       "%s: has %" PRIu64 " bytes, and its header says %" PRIu64
                       ": the file is cut short or changed; pack the model again",
                       f->path, size, f->file_bytes);
    memcpy(f->hash.b, h + PACK_H_HASH, sizeof f->hash.b);
    return 0;
}

static int read_sums(struct pack_file *f, int fd, const uint8_t *h, struct err *err)
{
    uint64_t at = get_u64(h + PACK_H_SUMS_AT), n = get_u64(h + PACK_H_N_SUMS);
    if (n > f->file_bytes / 8 || !is_inside(f, at, 8 * n))
        return damaged(f, "its table of checksums", err);
    uint8_t *le = mem_try((size_t)n * 8 + 1);
    f->sums = mem_try(((size_t)n + 1) * sizeof *f->sums);
    int rc = le == NULL || f->sums == NULL
                 ? err_set(err, -ENOMEM, "%s: no memory for its checksums", f->path)
                 : read_at(f, fd, le, (size_t)n * 8, at, err);
    if (rc == 0 && checksum64(le, (size_t)n * 8) != get_u64(h + PACK_H_SUMS_SUM))
        rc = damaged(f, "its table of checksums", err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        f->sums[i] = get_u64(le + 8 * i);
    f->n_sums = (size_t)n;
    free(le);
    return rc;
}

static int read_description(struct pack_file *f, int fd, const uint8_t *h, struct err *err)
{
    uint64_t n = get_u64(h + PACK_H_TEXT_BYTES);
    if (n > TEXT_MAX_BYTES || !is_inside(f, PACK_TEXT_AT, n))
        return damaged(f, "its header", err);
    char *text = xmalloc((size_t)n + 1);
    int rc = read_at(f, fd, text, (size_t)n, PACK_TEXT_AT, err);
    if (rc == 0 && checksum64(text, (size_t)n) != get_u64(h + PACK_H_TEXT_SUM))
        rc = damaged(f, "its description", err);
    if (rc == 0)
        rc = pack_file_describe(f, text, (size_t)n, err);
    free(text);
    return rc;
}

int pack_file_open(struct pack_file *out, const char *path, struct err *err)
{
    uint8_t h[PACK_ALIGN];
    struct stat st;
    *out = (struct pack_file){.path = xstrdup(path)};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int rc = fd < 0 || fstat(fd, &st) != 0 ? -errno : 0;
    if (rc != 0)
        err_set(err, rc, "%s: %s", path, strerror(-rc));
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, ERR_FORMAT, "%s: not a packed model", path);
    if (rc == 0)
        rc = read_at(out, fd, h, sizeof h, 0, err);
    if (rc == 0)
        rc = check_header(out, h, (uint64_t)st.st_size, err);
    if (rc == 0)
        rc = read_sums(out, fd, h, err);
    if (rc == 0)
        rc = read_description(out, fd, h, err);
    if (fd >= 0)
        close(fd);
    return rc;
}

void pack_file_close(struct pack_file *f)
{
    json_free(f->json);
    free(f->members);
    free(f->parts);
    free(f->sums);
    free(f->path);
    matrix_types_deinit(&f->matrices);
    *f = (struct pack_file){0};
}

int pack_member_read(const struct pack_file *f, const char *name, char **out, size_t *n,
                     uint64_t *file_bytes, struct err *err)
{
    for (size_t i = 0; i < f->n_members; i++) {
        const struct pack_member *m = &f->members[i];
        if (strcmp(m->name, name) != 0)
            continue;
        char *bytes = mem_try((size_t)m->bytes + 1);
        int fd = open(f->path, O_RDONLY | O_CLOEXEC);
        int rc = fd < 0 ? err_set(err, -errno, "%s: %s", f->path, strerror(errno)) : 0;
        if (rc == 0 && bytes == NULL)
            rc = err_set(err, -ENOMEM, "%s: no memory for '%s'", f->path, name);
        if (rc == 0)
            rc = read_at(f, fd, bytes, (size_t)m->bytes, m->at, err);
        if (rc == 0 && checksum64(bytes, (size_t)m->bytes) != m->sum)
            rc = damaged(f, name, err);
        if (fd >= 0)
            close(fd);
        if (rc != 0) {
            free(bytes);
            return rc;
        }
        bytes[m->bytes] = 0;
        *out = bytes;
        *n = (size_t)m->bytes;
        if (file_bytes != NULL)
            *file_bytes = m->file_bytes;
        return 0;
    }
    return err_set(err, -ENOENT, "%s: has no '%s' in it", f->path, name);
}

int model_file_read(const char *source, const char *name, size_t max_bytes, char **out,
                    size_t *n, struct err *err)
{
    if (!pack_file_is(source)) {
        char *path = xasprintf("%s/%s", source, name);
        int rc = file_read_regular(path, max_bytes, out, n, err);
        free(path);
        return rc;
    }
    struct pack_file f;
    int rc = pack_file_open(&f, source, err);
    if (rc == 0)
        rc = pack_member_read(&f, name, out, n, NULL, err);
    if (rc == 0 && *n > max_bytes) {
        free(*out);
        rc = err_set(err, ERR_LIMIT, "%s: '%s' has more than %zu bytes", source, name,
                     max_bytes);
    }
    pack_file_close(&f);
    return rc;
}

int model_json_read(const char *source, const char *name, size_t max_bytes,
                    struct json **out, struct err *err)
{
    char *bytes = NULL, *path = xasprintf("%s/%s", source, name);
    size_t n = 0;
    struct err local = {0};
    *out = NULL;
    int rc = model_file_read(source, name, max_bytes, &bytes, &n, &local);
    if (rc == 0)
        rc = json_parse(out, bytes, n, path, &local);
    if (rc == -ENOENT || rc == -ENOTDIR)
        rc = 0;
    if (rc != 0 && err != NULL)
        *err = local;
    free(bytes);
    free(path);
    return rc;
}
