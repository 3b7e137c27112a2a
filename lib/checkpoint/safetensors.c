/* safetensors.c - see safetensors.h. */
#include "checkpoint/safetensors.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Largest header that Hugging Face's library accepts, in bytes. */
#define HEADER_MAX_BYTES 100000000u

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [SAFETENSORS_BOOL] = {"BOOL", 1},       [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_I8] = {"I8", 1},           [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1},
    [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1}, [SAFETENSORS_I16] = {"I16", 2},
    [SAFETENSORS_U16] = {"U16", 2},         [SAFETENSORS_F16] = {"F16", 2},
    [SAFETENSORS_BF16] = {"BF16", 2},       [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_U32] = {"U32", 4},         [SAFETENSORS_F32] = {"F32", 4},
    [SAFETENSORS_F64] = {"F64", 8},         [SAFETENSORS_I64] = {"I64", 8},
    [SAFETENSORS_U64] = {"U64", 8},
};

enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

const char *safetensors_dtype_name(enum safetensors_dtype t)
{
    CHECK((size_t)t < N_DTYPES);
    return dtypes[t].name;
}

static bool dtype_from_name(const char *name, enum safetensors_dtype *out)
{
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (enum safetensors_dtype)i;
            return true;
        }
    }
    return false;
}

/* Computes the size of a tensor in bytes. Returns false on overflow. */
static bool tensor_bytes(const struct safetensors_tensor *t, uint64_t *out)
{
    uint64_t n = dtypes[t->dtype].bytes;
    for (int i = 0; i < t->n_dims; i++)
        if (!mul_fits(n, t->shape[i], &n))
            return false;
    *out = n;
    return true;
}

/* --- one tensor of the header ------------------------------------------------------- */

static int parse_shape(struct safetensors_tensor *t, const struct json *v, struct err *err)
{
    const struct json *shape = NULL;
    int rc = json_get_array(v, "shape", &shape, err);
    if (rc != 0)
        return rc;
    size_t n = json_count(shape);
    if (n > SAFETENSORS_MAX_DIMS)
        return err_set(err, ERR_UNSUPPORTED, "%zu dimensions, at most %d are supported", n,
                       SAFETENSORS_MAX_DIMS);
    t->n_dims = (int)n;
    for (size_t i = 0; i < n; i++) {
        int64_t x;
        if (!json_int_of(json_at(shape, i), &x) || x < 0)
            return err_set(err, ERR_FORMAT,
                           "shape[%zu] must be an integer that is not negative", i);
        t->shape[i] = (uint64_t)x;
    }
    return 0;
}

/* Reads data_offsets, which count from the end of the header, into t->begin and t->end, which count
 * from the start of the file. */
static int parse_offsets(struct safetensors_tensor *t, const struct json *v,
                         uint64_t data_begin, uint64_t file_bytes, struct err *err)
{
    const struct json *pair = NULL;
    int rc = json_get_array(v, "data_offsets", &pair, err);
    if (rc != 0)
        return rc;
    int64_t b, e;
    if (json_count(pair) != 2 || !json_int_of(json_at(pair, 0), &b) ||
        !json_int_of(json_at(pair, 1), &e) || b < 0 || e < 0)
        return err_set(err, ERR_FORMAT,
                       "'data_offsets' must be two integers, not negative");
    if (b > e)
        return err_set(err, ERR_FORMAT,
                       "data_offsets [%" PRId64 ", %" PRId64 "] run backwards", b, e);
    if ((uint64_t)e > file_bytes - data_begin)
        return err_set(err, ERR_FORMAT,
                       "data_offsets [%" PRId64 ", %" PRId64
                       "] lie outside of the file, which "
                       "has %" PRIu64 " bytes of data; download the file again",
                       b, e, file_bytes - data_begin);
    t->begin = data_begin + (uint64_t)b;
    t->end = data_begin + (uint64_t)e;
    return 0;
}

static int parse_tensor(struct safetensors_tensor *t, const struct json *v,
                        uint64_t data_begin, uint64_t file_bytes, struct err *err)
{
    if (json_kind(v) != JSON_KIND_OBJECT)
        return err_set(err, ERR_FORMAT, "must be an object, it is %s", json_kind_name(v));
    const char *dtype = NULL;
    int rc = json_get_string(v, "dtype", &dtype, err);
    if (rc != 0)
        return rc;
    if (!dtype_from_name(dtype, &t->dtype))
        return err_set(err, ERR_UNSUPPORTED, "unknown dtype '%s'", dtype);
    if ((rc = parse_shape(t, v, err)) != 0 ||
        (rc = parse_offsets(t, v, data_begin, file_bytes, err)) != 0)
        return rc;
    uint64_t want;
    if (!tensor_bytes(t, &want))
        return err_set(err, ERR_FORMAT, "the size of its shape overflows");
    if (want != t->end - t->begin)
        return err_set(err, ERR_FORMAT,
                       "its shape needs %" PRIu64 " bytes, its data_offsets span %" PRIu64,
                       want, t->end - t->begin);
    return 0;
}

/* --- the header as a whole ---------------------------------------------------------- */

static int by_begin(const void *a, const void *b)
{
    const struct safetensors_tensor *x = *(const struct safetensors_tensor *const *)a;
    const struct safetensors_tensor *y = *(const struct safetensors_tensor *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    /* at the same place an empty tensor goes first */
    return (x->end > y->end) - (x->end < y->end);
}

/* Checks that every data byte belongs to exactly one tensor. */
static int check_cover(const struct safetensors *s, uint64_t file_bytes, struct err *err)
{
    const struct safetensors_tensor **order = xmalloc(s->n_tensors * sizeof *order);
    for (size_t i = 0; i < s->n_tensors; i++)
        order[i] = &s->tensors[i];
    qsort(order, s->n_tensors, sizeof *order, by_begin);

    int rc = 0;
    uint64_t at = s->data_begin;
    for (size_t i = 0; i < s->n_tensors && rc == 0; i++) {
        if (order[i]->begin < at) /* not the first one: no tensor begins before the data */
            rc = err_set(err, ERR_FORMAT, "tensors '%s' and '%s' overlap",
                         order[i - 1]->name, order[i]->name);
        else if (order[i]->begin > at)
            rc = err_set(err, ERR_FORMAT,
                         "%" PRIu64 " bytes before tensor '%s' belong to no tensor",
                         order[i]->begin - at, order[i]->name);
        at = order[i]->end;
    }
    if (rc == 0 && at != file_bytes)
        rc = err_set(err, ERR_FORMAT,
                     "%" PRIu64 " bytes after the last tensor belong to none",
                     file_bytes - at);
    free(order);
    return rc;
}

int safetensors_header_end(const void *bytes, size_t n, uint64_t file_bytes,
                           const char *file, uint64_t *end, struct err *err)
{
    if (n < 8 || file_bytes < 8)
        return err_set(err, ERR_FORMAT,
                       "%s: truncated: %" PRIu64 " bytes, but the header's length alone "
                       "takes 8; download the file again",
                       file, file_bytes);
    uint64_t len = get_u64(bytes);
    if (len > file_bytes - 8)
        return err_set(err, ERR_FORMAT,
                       "%s: the header says it has %" PRIu64 " bytes, the file has %" PRIu64
                       "; download the file again",
                       file, len, file_bytes);
    if (len > HEADER_MAX_BYTES)
        return err_set(err, ERR_FORMAT,
                       "%s: the header has %" PRIu64 " bytes, more than %u", file, len,
                       HEADER_MAX_BYTES);
    *end = 8 + len;
    return 0;
}

/* Returns the bytes of all keys of an object, each with its zero. */
static size_t names_bytes(const struct json *object)
{
    size_t bytes = 0;
    struct json_iter it = json_begin(object);
    while (json_next(&it))
        bytes += strlen(it.key) + 1;
    return bytes;
}

/* Copies the names into one block, so that the tensors outlive the JSON tree. */
static void collect_names(struct safetensors *s, const struct json *root)
{
    char *p = s->names = xmalloc(names_bytes(root));
    size_t i = 0;
    struct json_iter it = json_begin(root);
    while (json_next(&it)) {
        if (strcmp(it.key, "__metadata__") == 0)
            continue;
        size_t len = strlen(it.key) + 1;
        s->tensors[i++].name = memcpy(p, it.key, len);
        p += len;
    }
}

static int parse_header(struct safetensors *s, const struct json *root, uint64_t file_bytes,
                        struct err *err)
{
    size_t n = json_count(root) - (json_member(root, "__metadata__") != NULL);
    s->n_tensors = n;
    s->tensors = xcalloc(n, sizeof *s->tensors);
    collect_names(s, root);

    size_t i = 0;
    struct json_iter it = json_begin(root);
    while (json_next(&it)) {
        if (strcmp(it.key, "__metadata__") == 0)
            continue;
        int rc = parse_tensor(&s->tensors[i++], it.value, s->data_begin, file_bytes, err);
        if (rc != 0) {
            err_wrap(err, "tensor '%s'", it.key);
            return rc;
        }
    }
    qsort(s->tensors, n, sizeof *s->tensors, text_order);
    return check_cover(s, file_bytes, err);
}

int safetensors_parse(struct safetensors *out, const void *bytes, size_t n,
                      uint64_t file_bytes, const char *file, struct err *err)
{
    memset(out, 0, sizeof *out);
    uint64_t end;
    int rc = safetensors_header_end(bytes, n, file_bytes, file, &end, err);
    if (rc != 0)
        return rc;
    if (n < end)
        return err_set(err, ERR_FORMAT,
                       "%s: truncated inside the header; download the file again", file);
    out->data_begin = end;

    struct json *root;
    rc = json_parse(&root, (const char *)bytes + 8, end - 8, file, err);
    if (rc != 0)
        return rc;
    if (json_kind(root) == JSON_KIND_OBJECT)
        rc = parse_header(out, root, file_bytes, err);
    else
        rc = err_set(err, ERR_FORMAT, "the header must be an object, it is %s",
                     json_kind_name(root));
    if (rc != 0)
        err_wrap(err, "%s", file);
    json_free(root);
    return rc;
}

void safetensors_deinit(struct safetensors *s)
{
    free(s->tensors);
    free(s->names);
    memset(s, 0, sizeof *s);
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s,
                                                  const char *name)
{
    const struct safetensors_tensor key = {.name = name};
    return s->n_tensors == 0
               ? NULL
               : bsearch(&key, s->tensors, s->n_tensors, sizeof *s->tensors, text_order);
}

/* --- the index of several files ----------------------------------------------------- */

/* Returns whether a file name stays in the folder: an index must not make the loader read
 * elsewhere. */
static bool plain_file_name(const char *s)
{
    return s[0] != '\0' && s[0] != '.' && strchr(s, '/') == NULL && strlen(s) < 256;
}

/* Collects the values of the map into `files`: sorted, each once. */
static int collect_files(struct safetensors_index *x, const struct json *map,
                         struct err *err)
{
    x->files = xcalloc(json_count(map), sizeof *x->files);
    struct json_iter it = json_begin(map);
    while (json_next(&it)) {
        size_t n = 0;
        const char *s = json_string_of(it.value, &n);
        if (s == NULL || strlen(s) != n || !plain_file_name(s))
            return err_set(err, ERR_FORMAT,
                           "weight_map: tensor '%s' is not mapped to a plain file name",
                           it.key);
        x->files[x->n_files++] = xstrdup(s);
    }
    qsort(x->files, x->n_files, sizeof *x->files, text_order);
    size_t kept = 0;
    for (size_t i = 0; i < x->n_files; i++) {
        if (kept > 0 && strcmp(x->files[kept - 1], x->files[i]) == 0)
            free(x->files[i]);
        else
            x->files[kept++] = x->files[i];
    }
    x->n_files = kept;
    return 0;
}

static void collect_entries(struct safetensors_index *x, const struct json *map)
{
    char *p = x->names = xmalloc(names_bytes(map));
    x->entries = xcalloc(json_count(map), sizeof *x->entries);
    struct json_iter it = json_begin(map);
    while (json_next(&it)) {
        const char *file = json_string_of(it.value, NULL);
        char **at = bsearch(&file, x->files, x->n_files, sizeof *x->files, text_order);
        size_t len = strlen(it.key) + 1;
        x->entries[x->n_entries++] = (struct safetensors_index_entry){
            .name = memcpy(p, it.key, len), .file_idx = (size_t)(at - x->files)};
        p += len;
    }
    qsort(x->entries, x->n_entries, sizeof *x->entries, text_order);
}

int safetensors_index_parse(struct safetensors_index *out, const void *bytes, size_t n,
                            const char *file, struct err *err)
{
    memset(out, 0, sizeof *out);
    struct json *root;
    int rc = json_parse(&root, bytes, n, file, err);
    if (rc != 0)
        return rc;
    const struct json *map = NULL;
    rc = json_get_object(root, "weight_map", &map, err);
    if (rc == 0 && json_count(map) == 0)
        rc = err_set(err, ERR_FORMAT, "'weight_map' is empty");
    if (rc == 0)
        rc = collect_files(out, map, err);
    if (rc == 0)
        collect_entries(out, map);
    else
        err_wrap(err, "%s", file);
    json_free(root);
    return rc;
}

void safetensors_index_deinit(struct safetensors_index *x)
{
    for (size_t i = 0; i < x->n_files; i++)
        free(x->files[i]);
    free(x->files);
    free(x->entries);
    free(x->names);
    memset(x, 0, sizeof *x);
}
