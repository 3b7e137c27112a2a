/* weights_source.c - all tensors of a model from any source, and their description. */
#include "model/weights_slots.h"
#include "model/weights_source.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/matrix_types.h"
#include "model/pack_file.h"
#include "model/weights.h"
#include "tensor/q4_blocks.h"

#define SYNTH_PREFIX "synth:"

static void choose_dtype(struct tensor_set *set)
{
    bool first = true;
    for (size_t i = 0; i < set->list.n; i++) {
        if (slot_is_vector(set->list.items[i].parts[0].slot))
            continue;
        set->quantised |= tensor_src_is_quantised(&set->src[i]);
        if (slot_is_table(set->list.items[i].parts[0].slot) ||
            slot_is_f32(set->list.items[i].parts[0].slot))
            continue;
        if (first)
            set->dtype = set->src[i].dtype;
        set->mixed = set->mixed || set->src[i].dtype != set->dtype;
        first = false;
    }
    if (set->mixed || set->quantised)
        set->dtype = DTYPE_F32;
}

enum dtype tensor_src_q4_type(const struct tensor_src *src)
{
    static const struct {
        const char *name;
        enum dtype type;
    } known[] = {{"Q4_0", DTYPE_Q4_0},    {"Q4_1", DTYPE_Q4_1},   {"Q4_K", DTYPE_Q4_K},
                 {"Q6_K", DTYPE_Q6_K},    {"MXFP4", DTYPE_MXFP4}, {"IQ4_NL", DTYPE_IQ4_NL},
                 {"IQ4_XS", DTYPE_IQ4_XS}};
    for (int i = 0; src->type != NULL && i < 7; i++)
        if (strcmp(src->type->name, known[i].name) == 0)
            return known[i].type;
    return DTYPE_F32;
}

enum dtype tensor_table_dtype(const struct tensor_src *src, enum slot s, enum dtype held)
{
    enum dtype own = tensor_src_q4_type(src);
    if (held == DTYPE_Q4 && s == SLOT_EMBED && own != DTYPE_F32)
        return own; /* of another table columns are looked up, which may be no whole blocks */
    return tensor_src_is_quantised(src) && held != DTYPE_F32 ? DTYPE_BF16 : src->dtype;
}

static const char *type_name(const struct tensor_src *s)
{
    return s->type != NULL ? s->type->name : dtype_name(s->dtype);
}

/* Counts a tensor of the type `name`. */
static void count_type(struct weights_types *t, const char *name, bool quantised)
{
    int k = 0;
    while (k < t->n && strcmp(t->of[k].name, name) != 0)
        k++;
    if (k == t->n) {
        CHECK(t->n++ < (int)(sizeof t->of / sizeof t->of[0]));
        t->of[k].name = name;
        t->of[k].quantised = quantised;
    }
    t->of[k].n_tensors++;
}

void tensor_set_keep(struct tensor_set *set, enum weights_part part, int layer)
{
    size_t n = 0;
    for (size_t i = 0; i < set->list.n && part != WEIGHTS_ALL; i++) {
        const struct tensor_spec *t = &set->list.items[i];
        bool inside = slot_is_in_layer(t->parts[0].slot);
        if (inside != (part == WEIGHTS_OF_LAYER) || (inside && t->layer != layer))
            continue;
        set->src[n] = set->src[i];
        set->list.items[n++] = *t;
    }
    if (part != WEIGHTS_ALL)
        set->list.n = n;
}

int tensor_set_open(struct tensor_set *set, const char *source,
                    const struct model_config *c, enum dtype synth_dtype, struct err *err)
{
    *set = (struct tensor_set){0};
    tensor_list_make(&set->list, c);
    set->src = xcalloc(set->list.n, sizeof *set->src);
    int rc = 0;
    if (strncmp(source, SYNTH_PREFIX, strlen(SYNTH_PREFIX)) == 0) {
        for (size_t i = 0; i < set->list.n; i++)
            set->src[i] = (struct tensor_src){.dtype = synth_dtype, .file = source};
    } else {
        rc = checkpoint_open(source, &set->cp, err);
        if (rc == 0)
            rc = checkpoint_match(set->cp, c, &set->list, set->src, err);
    }
    if (rc == 0) {
        choose_dtype(set);
        for (size_t i = 0; i < set->list.n; i++)
            count_type(&set->types, type_name(&set->src[i]),
                       tensor_src_is_quantised(&set->src[i]));
    }
    return rc;
}

void tensor_set_close(struct tensor_set *set)
{
    checkpoint_close(set->cp);
    free(set->src);
    tensor_list_free(&set->list);
    *set = (struct tensor_set){0};
}

/* --- reading rows ------------------------------------------------------------------------- */

/* Returns the number of the row in the file that holds row r of the tensor. */
static int64_t file_row(const struct row_map *m, int64_t r)
{
    const int64_t d = m->d_head, half = (d - m->skip) / 2;
    if (m->order == ROWS_PAIRS) {
        int64_t head = r / d, i = r % d - m->skip;
        return i < 0 ? r : head * d + m->skip + (i < half ? 2 * i : 2 * (i - half) + 1);
    }
    if (m->order == ROWS_RUNS)
        return r / d * m->step + r % d;
    if (m->order == ROWS_GROUPS) {
        int64_t q = m->per_group * d, group = r / (q + 2 * d), i = r % (q + 2 * d);
        if (i < q)
            return group * q + i;
        int64_t kv = i - q, first = m->n_groups * q;
        return kv < d ? first + group * d + kv
                      : first + m->n_groups * d + group * d + (kv - d);
    }
    return r;
}

/* Reads every step-th of the pieces at `at`, n of them, to[0], to[to_step], ... */
static int read_steps(int fd, uint64_t at, size_t bytes, int32_t step, int64_t n,
                      uint8_t *to, size_t to_step)
{
    size_t all = ((size_t)(n - 1) * (size_t)step + 1) * bytes;
    uint8_t *span = xmalloc(all);
    int rc = file_read_at(fd, span, all, at);
    for (int64_t i = 0; rc == 0 && i < n; i++)
        memcpy(to + (size_t)i * to_step, span + (size_t)i * (size_t)step * bytes, bytes);
    free(span);
    return rc;
}

/* Reads rows that are columns of the file's matrix. */
static int read_columns(const struct tensor_src *s, int64_t row, int64_t n, uint8_t *to)
{
    size_t bytes = dtype_bytes(s->dtype), step = (size_t)s->rows.step;
    int rc = 0;
    for (size_t k = 0; rc == 0 && k < s->file_row_bytes / bytes; k++)
        rc = read_steps(s->fd, s->at + k * s->rows.line_bytes + (size_t)row * step * bytes,
                        bytes, s->rows.step, n, to + k * bytes, s->file_row_bytes);
    return rc;
}

/* Reads rows that are columns of runs of lines (ROWS_COLUMN_RUNS), run by run. */
static int read_column_runs(const struct tensor_src *s, int64_t row, int64_t n, uint8_t *to)
{
    int rc = 0;
    for (int64_t i = 0, k; rc == 0 && i < n; i += k) {
        int64_t run = (row + i) / s->rows.d_head, first = (row + i) % s->rows.d_head;
        struct tensor_src one = *s;
        k = n - i < s->rows.d_head - first ? n - i : s->rows.d_head - first;
        one.at += (uint64_t)(run * s->rows.step) * s->rows.line_bytes;
        one.rows.step = 1;
        rc = read_columns(&one, first, k, to + (size_t)i * s->file_row_bytes);
    }
    return rc;
}

/* Makes a GGUF file's block of 32 numbers of a folder's, in which neighbours share a byte. */
static void make_block(uint8_t exponent, const uint8_t q[16], uint8_t out[17])
{
    out[0] = exponent;
    for (int i = 0; i < 16; i++) {
        int shift = 4 * (i % 2);
        out[1 + i] = (uint8_t)((q[i / 2] >> shift & 15) | (q[8 + i / 2] >> shift & 15)
                                                              << 4);
    }
}

/* Reads rows of MXFP4 whose exponents are a tensor of their own. */
static int read_split_blocks(const struct tensor_src *s, int64_t row, int64_t n,
                             uint8_t *to)
{
    size_t blocks = s->file_row_bytes / s->type->bytes, all = (size_t)n * blocks;
    uint8_t *numbers = xmalloc(all * 17), *exponents = numbers + all * 16;
    uint64_t first = (uint64_t)row * (uint64_t)s->rows.step * blocks;
    int rc = read_steps(s->fd, s->at + first * 16, blocks * 16, s->rows.step, n, numbers,
                        blocks * 16);
    if (rc == 0)
        rc = read_steps(s->fd, s->scales_at + first, blocks, s->rows.step, n, exponents,
                        blocks);
    for (size_t i = 0; rc == 0 && i < all; i++)
        make_block(exponents[i], numbers + 16 * i, to + 17 * i);
    free(numbers);
    return rc;
}

/* Reads runs of rows that lie together in the file with one call each. */
int tensor_src_read(const struct tensor_src *s, int64_t row, int64_t n, void *dst)
{
    uint8_t *to = dst;
    int rc = 0;
    if (s->scales_at != 0)
        return read_split_blocks(s, row, n, to);
    if (s->rows.order == ROWS_COLUMNS)
        return read_columns(s, row, n, to);
    if (s->rows.order == ROWS_COLUMN_RUNS)
        return read_column_runs(s, row, n, to);
    if (s->rows.order == ROWS_STEPS)
        return read_steps(
            s->fd, s->at + (uint64_t)row * (uint64_t)s->rows.step * s->file_row_bytes,
            s->file_row_bytes, s->rows.step, n, to, s->file_row_bytes);
    for (int64_t i = 0, run; rc == 0 && i < n; i += run) {
        int64_t first = file_row(&s->rows, row + i);
        run = s->rows.order == ROWS_SAME ? n : 1;
        while (i + run < n && file_row(&s->rows, row + i + run) == first + run)
            run++;
        rc = file_read_at(s->fd, to + (size_t)i * s->file_row_bytes,
                          (size_t)run * s->file_row_bytes,
                          s->at + (uint64_t)first * s->file_row_bytes);
    }
    return rc;
}

/* --- describing --------------------------------------------------------------------------- */

/* Returns the type of a slot in memory: that of the packed matrix, the table's own, or f32 for
 * norms and biases. */
static enum dtype packed_type(const struct pack_file *f, int layer, enum slot s)
{
    if (slot_is_table(s))
        return f->table_dtype[s == SLOT_EMBED ? 0 : 1];
    return slot_is_matrix(s) ? matrix_type(&f->matrices, layer, s) : DTYPE_F32;
}

/* Returns the bytes of n weights with their scales. */
static uint64_t packed_bytes(enum dtype t, uint64_t n)
{
    if (t == DTYPE_Q8) /* 32 numbers and a scale of 16 bits */
        return n + n / 16;
    return dtype_has_blocks(t) ? q4_row_bytes(t, (int64_t)n) : n * dtype_bytes(t);
}

static void add_info(struct weights_info *out, const struct tensor_spec *t,
                     const char *file, const char *type, uint64_t bytes)
{
    out->tensors[out->n_tensors++] = (struct tensor_info){.name = t->name,
                                                          .file = file,
                                                          .type = type,
                                                          .n_dims = t->n_dims,
                                                          .rows = t->rows,
                                                          .cols = t->cols,
                                                          .bytes = bytes};
}

static int describe_packed(struct weights_info *out, const char *source,
                           const struct model_config *cfg, struct err *err)
{
    struct tensor_set *set = xcalloc(1, sizeof *set);
    struct pack_file f;
    *out = (struct weights_info){.impl = set};
    tensor_list_make(&set->list, cfg);
    int rc = pack_file_open(&f, source, err);
    if (rc == 0 && f.n_layers != cfg->n_layers)
        rc = err_set(err, ERR_MISMATCH,
                     "%s: it has %d layers, and its configuration says %d: pack the model "
                     "again",
                     source, f.n_layers, cfg->n_layers);
    out->tensors = xcalloc(set->list.n, sizeof *out->tensors);
    for (size_t i = 0; rc == 0 && i < set->list.n; i++) {
        const struct tensor_spec *t = &set->list.items[i];
        enum dtype type = packed_type(&f, t->layer,
                                      matrix_of_part(cfg, t->layer, &t->parts[0]));
        add_info(out, t, source, dtype_name(type),
                 packed_bytes(type, (uint64_t)(t->rows * t->cols)));
        count_type(&out->types, dtype_name(type), false);
    }
    if (rc == 0) {
        out->dtype = f.dtype;
        out->bytes = f.file_bytes;
    }
    pack_file_close(&f);
    if (rc != 0)
        weights_info_deinit(out);
    return rc;
}

int weights_describe(struct weights_info *out, const char *source,
                     const struct model_config *cfg, enum dtype synth_dtype,
                     struct err *err)
{
    if (pack_file_is(source))
        return describe_packed(out, source, cfg, err);
    struct tensor_set *set = xmalloc(sizeof *set);
    *out = (struct weights_info){.impl = set};
    int rc = tensor_set_open(set, source, cfg, synth_dtype, err);
    if (rc != 0) {
        weights_info_deinit(out);
        return rc;
    }
    out->dtype = set->dtype;
    out->quantised = set->quantised;
    out->has_q4 = matrix_types_any_q4(set);
    out->types = set->types;
    out->tensors = xcalloc(set->list.n, sizeof *out->tensors);
    for (size_t i = 0; i < set->list.n; i++) {
        const struct tensor_spec *t = &set->list.items[i];
        const struct tensor_src *src = &set->src[i];
        uint64_t n = (uint64_t)(t->rows * t->cols);
        add_info(out, t, src->file, type_name(src),
                 src->type != NULL ? n / src->type->block * src->type->bytes
                                   : n * dtype_bytes(src->dtype));
        out->bytes += out->tensors[i].bytes;
    }
    return 0;
}

enum weights_held weights_held_by_default(const struct weights_info *info,
                                          const struct device *d)
{
    if (!d->quantised)
        return WEIGHTS_BF16;
    return info->has_q4 ? WEIGHTS_Q4 : WEIGHTS_Q8;
}

void weights_table_types(const struct weights_info *info, enum dtype held,
                         enum dtype out[2])
{
    const struct tensor_set *set = info->impl;
    out[0] = out[1] = held == DTYPE_BF16R                    ? DTYPE_BF16
                      : held == DTYPE_Q8 || held == DTYPE_Q4 ? DTYPE_F32
                                                             : held;
    for (size_t i = 0; i < set->list.n; i++) {
        enum slot s = set->list.items[i].parts[0].slot;
        if (slot_is_table(s))
            out[s == SLOT_EMBED ? 0 : 1] = tensor_table_dtype(&set->src[i], s, held);
    }
}

void weights_info_deinit(struct weights_info *info)
{
    if (info->impl != NULL)
        tensor_set_close(info->impl);
    free(info->impl);
    free(info->tensors);
    *info = (struct weights_info){0};
}
