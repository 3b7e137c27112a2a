/* gguf.c - see gguf.h. */
#include "checkpoint/gguf.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/utf8.h"
#include "checkpoint/gguf_types.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MIN_VERSION = 2,
    MAX_VERSION = 3,
    DEFAULT_ALIGNMENT = 32,
    MAX_NAME_BYTES = 65535,
    /* address space for names; its pages are used only as they are written */
    MAX_NAMES_BYTES = 64 << 20,
    /* Sizes of the shortest metadata pair and of the shortest description of a tensor. They bound
     * the counts that a file of a given size can have. */
    MIN_PAIR_BYTES = 8 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 4 + 4 + 8,
};

static const char magic[4] = {'G', 'G', 'U', 'F'};

/* --- reading, with one sticky error ------------------------------------------------------- */

struct reader {
    const uint8_t *bytes;
    size_t n, at;
    uint64_t file_bytes;
    struct arena *names;
    struct err *err;
    int rc;
};

/* Returns the address of the next n bytes, or NULL with the error set. */
static const uint8_t *take(struct reader *r, uint64_t n)
{
    if (r->rc != 0)
        return NULL;
    if (n > r->n - r->at && r->n < r->file_bytes) {
        r->rc = err_set(r->err, -EAGAIN, "the directory needs more than %zu bytes", r->n);
        return NULL;
    }
    if (n > r->n - r->at) {
        r->rc = err_set(r->err, ERR_FORMAT,
                        "truncated: the directory needs more than %zu bytes; download the "
                        "file again",
                        r->n);
        return NULL;
    }
    const uint8_t *p = r->bytes + r->at;
    r->at += (size_t)n;
    return p;
}

static uint32_t take_u32(struct reader *r)
{
    const uint8_t *p = take(r, 4);
    return p != NULL ? get_u32(p) : 0;
}

static uint64_t take_u64(struct reader *r)
{
    const uint8_t *p = take(r, 8);
    return p != NULL ? get_u64(p) : 0;
}

/* Reads a key or a name. Returns a copy in the arena of names, with a final zero. */
static const char *take_name(struct reader *r, const char *what)
{
    uint64_t n = take_u64(r);
    const uint8_t *p = take(r, n);
    if (p == NULL)
        return "";
    if (n == 0 || n > MAX_NAME_BYTES || utf8_check(p, (size_t)n) != n ||
        memchr(p, 0, (size_t)n) != NULL) {
        r->rc = err_set(r->err, ERR_FORMAT,
                        "the %s at byte %zu is empty, too long, or not text", what,
                        r->at - (size_t)n);
        return "";
    }
    char *name = arena_strndup(r->names, (const char *)p, (size_t)n);
    if (name == NULL)
        r->rc = err_set(r->err, ERR_LIMIT, "keys and names take more than %d bytes",
                        MAX_NAMES_BYTES);
    return name != NULL ? name : "";
}

/* Makes room for one more element.  Memory grows with what is actually read, because the counts of
 * a damaged file may be wrong. */
static void *grow(void *items, size_t n, size_t *room, size_t bytes)
{
    if (n < *room)
        return items;
    *room = *room == 0 ? 64 : 2 * *room;
    return xrealloc(items, *room * bytes);
}

/* --- metadata ----------------------------------------------------------------------------- */

/* Returns the size of an element in bytes; 0 if elements differ in length. */
static size_t kind_bytes(enum gguf_kind k)
{
    static const size_t bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
        [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return bytes[k];
}

static enum gguf_kind take_kind(struct reader *r, const char *key)
{
    uint32_t k = take_u32(r);
    if (r->rc == 0 && k > GGUF_F64)
        r->rc = err_set(r->err, ERR_FORMAT, "'%s' has the unknown type %" PRIu32, key, k);
    return r->rc == 0 ? (enum gguf_kind)k : GGUF_U8;
}

static void check_bools(struct reader *r, const struct gguf_value *v)
{
    for (size_t i = 0; r->rc == 0 && i < v->n_bytes; i++)
        if (v->bytes[i] > 1)
            r->rc = err_set(r->err, ERR_FORMAT, "'%s' must be true or false", v->key);
}

static void take_elements(struct reader *r, struct gguf_value *v)
{
    size_t begin = r->at, each = kind_bytes(v->kind);
    uint64_t bytes = 0;
    v->bytes = r->bytes + begin;
    if (each != 0 && !mul_fits(v->n, each, &bytes))
        bytes = UINT64_MAX;
    if (each != 0)
        take(r, bytes);
    for (uint64_t i = 0; each == 0 && r->rc == 0 && i < v->n; i++)
        take(r, take_u64(r));
    v->n_bytes = r->at - begin;
    if (v->kind == GGUF_BOOL)
        check_bools(r, v);
}

static void take_value(struct reader *r, struct gguf_value *v)
{
    v->key = take_name(r, "key");
    v->kind = take_kind(r, v->key);
    v->n = 1;
    v->is_array = v->kind == GGUF_ARRAY;
    if (v->is_array) {
        v->kind = take_kind(r, v->key);
        v->n = take_u64(r);
    }
    if (r->rc == 0 && v->kind == GGUF_ARRAY)
        r->rc = err_set(r->err, ERR_UNSUPPORTED,
                        "'%s' is an array of arrays, which is not supported", v->key);
    if (r->rc == 0)
        take_elements(r, v);
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    struct gguf_value v = {.key = key};
    return g->n_values == 0 ? NULL
                            : bsearch(&v, g->values, g->n_values, sizeof v, text_order);
}

static void take_values(struct reader *r, struct gguf *g, uint64_t n)
{
    for (size_t room = 0; r->rc == 0 && g->n_values < n;) {
        g->values = grow(g->values, g->n_values, &room, sizeof *g->values);
        g->values[g->n_values] = (struct gguf_value){0};
        take_value(r, &g->values[g->n_values++]);
    }
    if (r->rc != 0)
        return;
    if (g->n_values > 1)
        qsort(g->values, g->n_values, sizeof *g->values, text_order);
    for (size_t i = 1; r->rc == 0 && i < g->n_values; i++)
        if (text_order(&g->values[i - 1], &g->values[i]) == 0)
            r->rc = err_set(r->err, ERR_FORMAT, "'%s' appears twice", g->values[i].key);
}

static void read_alignment(struct reader *r, struct gguf *g)
{
    const struct gguf_value *v = gguf_find(g, "general.alignment");
    int64_t n = DEFAULT_ALIGNMENT;
    if (r->rc == 0 && v != NULL &&
        (!gguf_int(v, 0, &n) || n < 1 || n > (1 << 20) || (n & (n - 1)) != 0))
        r->rc = err_set(r->err, ERR_FORMAT,
                        "'general.alignment' must be a power of two up to 1048576");
    g->alignment = (uint64_t)n;
}

/* --- tensors ------------------------------------------------------------------------------ */

/* Computes the bytes of a tensor. Returns false if the shape does not suit the type or overflows.
 */
static bool tensor_bytes(const struct gguf_tensor *t, uint64_t *out)
{
    const struct gguf_type *type = gguf_type(t->type);
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        if (t->shape[i] == 0 || !mul_fits(n, t->shape[i], &n))
            return false;
    return t->shape[t->n_dims - 1] % type->block == 0 &&
           mul_fits(n / type->block, type->bytes, out);
}

static void take_shape(struct reader *r, struct gguf_tensor *t)
{
    uint32_t n = take_u32(r);
    if (r->rc == 0 && (n < 1 || n > GGUF_MAX_DIMS))
        r->rc = err_set(r->err, ERR_FORMAT,
                        "tensor '%s' has %" PRIu32 " dimensions; 1 to 4 are allowed",
                        t->name, n);
    t->n_dims = r->rc == 0 ? (int)n : 1;
    for (int i = t->n_dims; i-- > 0;)
        t->shape[i] = take_u64(r);
}

static void take_tensor(struct reader *r, struct gguf_tensor *t)
{
    t->name = take_name(r, "tensor's name");
    take_shape(r, t);
    t->type = take_u32(r);
    t->begin = take_u64(r);
    if (r->rc != 0)
        return;
    uint64_t bytes;
    if (gguf_type(t->type) == NULL)
        r->rc = err_set(r->err, ERR_UNSUPPORTED,
                        "tensor '%s' has the unknown type %" PRIu32 "; supported are %s",
                        t->name, t->type, gguf_types_supported());
    else if (!tensor_bytes(t, &bytes) || !add_fits(t->begin, bytes, &t->end))
        r->rc = err_set(r->err, ERR_FORMAT,
                        "tensor '%s': its shape is empty, too large, or not a multiple of "
                        "%" PRIu32 " as %s asks",
                        t->name, gguf_type(t->type)->block, gguf_type(t->type)->name);
}

/* Turns a tensor's offsets from the start of the tensor data into offsets from the start of the
 * file. */
static void place_tensor(struct reader *r, const struct gguf *g, struct gguf_tensor *t)
{
    if (t->begin % g->alignment != 0)
        r->rc = err_set(r->err, ERR_FORMAT,
                        "tensor '%s' begins at %" PRIu64
                        ", which is not a multiple of the alignment, %" PRIu64,
                        t->name, t->begin, g->alignment);
    else if (!add_fits(t->begin, g->data_begin, &t->begin) ||
             !add_fits(t->end, g->data_begin, &t->end) || t->end > r->file_bytes)
        r->rc = err_set(r->err, ERR_FORMAT,
                        "truncated: tensor '%s' ends after the file's %" PRIu64
                        " bytes; download the file again",
                        t->name, r->file_bytes);
}

static int by_begin(const void *a, const void *b)
{
    uint64_t x = ((const struct gguf_tensor *)a)->begin;
    uint64_t y = ((const struct gguf_tensor *)b)->begin;
    return (x > y) - (x < y);
}

static void check_tensors(struct reader *r, struct gguf *g)
{
    if (g->n_tensors < 2)
        return;
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_begin);
    for (size_t i = 1; r->rc == 0 && i < g->n_tensors; i++)
        if (g->tensors[i].begin < g->tensors[i - 1].end)
            r->rc = err_set(r->err, ERR_FORMAT, "tensors '%s' and '%s' overlap",
                            g->tensors[i - 1].name, g->tensors[i].name);
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, text_order);
    for (size_t i = 1; r->rc == 0 && i < g->n_tensors; i++)
        if (text_order(&g->tensors[i - 1], &g->tensors[i]) == 0)
            r->rc = err_set(r->err, ERR_FORMAT, "tensor '%s' appears twice",
                            g->tensors[i].name);
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    struct gguf_tensor t = {.name = name};
    return g->n_tensors == 0 ? NULL
                             : bsearch(&t, g->tensors, g->n_tensors, sizeof t, text_order);
}

static void take_tensors(struct reader *r, struct gguf *g, uint64_t n)
{
    for (size_t room = 0; r->rc == 0 && g->n_tensors < n;) {
        g->tensors = grow(g->tensors, g->n_tensors, &room, sizeof *g->tensors);
        g->tensors[g->n_tensors] = (struct gguf_tensor){0};
        take_tensor(r, &g->tensors[g->n_tensors++]);
    }
    g->data_begin = round_up(r->at, g->alignment);
    for (size_t i = 0; r->rc == 0 && i < n; i++)
        place_tensor(r, g, &g->tensors[i]);
    if (r->rc == 0)
        check_tensors(r, g);
}

/* --- the whole ---------------------------------------------------------------------------- */

static void check_version(struct reader *r, uint32_t v)
{
    if (r->rc != 0 || (v >= MIN_VERSION && v <= MAX_VERSION))
        return;
    if ((v & 0xffff) == 0)
        r->rc = err_set(r->err, ERR_UNSUPPORTED,
                        "is big-endian; only little-endian files are supported");
    else
        r->rc = err_set(r->err, ERR_UNSUPPORTED,
                        "is GGUF version %" PRIu32 "; 2 and 3 are supported", v);
}

static void parse(struct reader *r, struct gguf *g)
{
    take(r, sizeof magic);
    g->version = take_u32(r);
    check_version(r, g->version);
    uint64_t n_tensors = take_u64(r), n_values = take_u64(r);
    uint64_t most = MAX(r->file_bytes, (uint64_t)r->n);
    if (r->rc == 0 &&
        (n_tensors > most / MIN_TENSOR_BYTES || n_values > most / MIN_PAIR_BYTES))
        r->rc = err_set(r->err, ERR_FORMAT,
                        "%" PRIu64 " tensors and %" PRIu64
                        " metadata pairs do not fit into %" PRIu64 " bytes",
                        n_tensors, n_values, most);
    if (r->rc == 0)
        take_values(r, g, n_values);
    read_alignment(r, g);
    if (r->rc == 0)
        take_tensors(r, g, n_tensors);
}

int gguf_parse(struct gguf *out, const void *bytes, size_t n, uint64_t file_bytes,
               const char *file, struct err *err)
{
    *out = (struct gguf){0};
    if (n < sizeof magic || memcmp(bytes, magic, sizeof magic) != 0)
        return err_set(err, ERR_FORMAT, "%s: not a GGUF file: it does not begin with GGUF",
                       file);
    struct reader r = {
        .bytes = bytes, .n = n, .file_bytes = file_bytes, .names = &out->names, .err = err};
    /* In the arena a name takes at most 16 bytes more than its text. In the file its length field
     * takes 8 bytes, so 4 * n always suffices. */
    size_t room = n < MAX_NAMES_BYTES / 4 ? 4 * n + 64 : MAX_NAMES_BYTES;
    int rc = arena_init(&out->names, room);
    if (rc != 0)
        return err_set(err, rc, "%s: no memory for names", file);
    parse(&r, out);
    return r.rc == 0 ? 0 : (err_wrap(err, "%s", file), r.rc);
}

void gguf_deinit(struct gguf *g)
{
    free(g->values);
    free(g->tensors);
    if (g->names.base != NULL)
        arena_deinit(&g->names);
    *g = (struct gguf){0};
}

/* --- values ------------------------------------------------------------------------------- */

bool gguf_int(const struct gguf_value *v, uint64_t i, int64_t *out)
{
    if (v == NULL || i >= v->n)
        return false;
    const uint8_t *p = v->bytes + i * kind_bytes(v->kind);
    switch (v->kind) {
    case GGUF_U8:
        *out = p[0];
        return true;
    case GGUF_I8:
        *out = (int8_t)p[0];
        return true;
    case GGUF_U16:
        *out = get_u16(p);
        return true;
    case GGUF_I16:
        *out = (int16_t)get_u16(p);
        return true;
    case GGUF_U32:
        *out = get_u32(p);
        return true;
    case GGUF_I32:
        *out = (int32_t)get_u32(p);
        return true;
    case GGUF_I64:
        *out = (int64_t)get_u64(p);
        return true;
    case GGUF_U64:
        *out = (int64_t)get_u64(p);
        return *out >= 0;
    default:
        return false;
    }
}

bool gguf_real(const struct gguf_value *v, uint64_t i, double *out)
{
    if (v == NULL || i >= v->n || (v->kind != GGUF_F32 && v->kind != GGUF_F64))
        return false;
    const uint8_t *p = v->bytes + i * kind_bytes(v->kind);
    uint64_t wide = v->kind == GGUF_F64 ? get_u64(p) : 0;
    uint32_t narrow = v->kind == GGUF_F32 ? get_u32(p) : 0;
    float f;
    memcpy(&f, &narrow, sizeof f);
    memcpy(out, &wide, sizeof *out);
    if (v->kind == GGUF_F32)
        *out = (double)f;
    return true;
}

bool gguf_bool(const struct gguf_value *v, uint64_t i, bool *out)
{
    if (v == NULL || i >= v->n || v->kind != GGUF_BOOL)
        return false;
    *out = v->bytes[i] != 0;
    return true;
}

bool gguf_string(const struct gguf_value *v, const char **s, size_t *n)
{
    if (v == NULL || v->is_array || v->kind != GGUF_STRING)
        return false;
    *n = (size_t)get_u64(v->bytes);
    *s = (const char *)v->bytes + 8;
    return true;
}

bool gguf_strings_begin(const struct gguf_value *v, struct gguf_strings *it)
{
    if (v == NULL || !v->is_array || v->kind != GGUF_STRING)
        return false;
    *it = (struct gguf_strings){v->bytes, v->n};
    return true;
}

bool gguf_strings_next(struct gguf_strings *it, const char **s, size_t *n)
{
    if (it->left == 0)
        return false;
    it->left--;
    *n = (size_t)get_u64(it->at);
    *s = (const char *)it->at + 8;
    it->at += 8 + *n;
    return true;
}
