/* weights.c - loads a model's tensors: hashes, converts and packs them, block by block.
 *
 * One loop serves mapped files, quantised files and the generator.  A tensor is loaded in blocks of
 * whole rows.  The compute threads make, decode or fault in the block's bytes and compute their
 * checksums.  Then the block is packed into its slots and its pages are given back.  So memory
 * holds the weights once, plus a bounded number of blocks.
 *
 * Invariants:
 *  1. Every byte that reaches a slot has been counted into the hash.
 *  2. The hash depends only on names, types, shapes and bytes: not on sharding, order in a file,
 *     alignment, threads, or the slots that a tensor fills.  For a quantised tensor it counts the
 *     decoded values, as if a folder had held them. */
#include "model/weights.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/pool.h"
#include "base/progress.h"
#include "model/matrix_types.h"
#include "model/numbers.h"
#include "model/pack_file.h"
#include "model/share.h"
#include "model/weights_names.h"
#include "model/weights_packed.h"
#include "model/weights_slots.h"
#include "model/weights_source.h"
#include "tensor/group.h"
#include "tensor/q4_blocks.h"
#include "tensor/q4_make.h"

/* Bytes of a block: large enough for full checksum speed, small enough for a core's cache. */
#define BLOCK_BYTES ((uint64_t)1 << 20)
/* Blocks in flight, at most. */
enum { BATCH_BLOCKS = 16 };

struct loader {
    struct weights *w;
    const struct weights_opts *o;
    const struct model_config *c;
    struct device *dev;
    struct stream *s;
    int n_ranks, n_stages;
    enum weights_held held;
    struct err *err;
    struct tensor_set set;
    struct buf raw_mem; /* pinned: a device copies from it */
    uint8_t *raw;       /* loaded rows: generated, or copied to align them */
    uint8_t *wide;      /* loaded rows, converted to another type */
    size_t wide_bytes;
    uint8_t *cut; /* columns of the loaded rows, rank by rank; NULL: there is one rank */
    size_t cut_bytes;
    uint8_t *blocks; /* loaded rows in 4 bits; NULL: no matrix is held in 4 bits */
    size_t blocks_bytes;
    struct q4_error error; /* error of the present tensor, if it is converted to 4 bits */
    /* Host copies of each stage's vectors, in slot order, one copy per rank. */
    float *vectors[MAX_STAGES];
    size_t n_vector_floats[MAX_STAGES];
    uint64_t stage_bytes[MAX_STAGES];
    uint64_t bytes_done, bytes_all;
    struct progress progress;
    /* n_bad: number of tensors with a NaN or an infinity. The next fields describe the first of
     * them. */
    int n_bad;
    const char *bad_name;
    int64_t bad_row;
};

/* Memory and mappings that the weights own. */
struct holdings {
    int n_layers;
    struct checkpoint *cp;
    struct buf vectors[MAX_STAGES];
    struct buf tables[2];
};

/* --- slots ------------------------------------------------------------------------------------ */

static struct weight *matrix_of(const struct loader *ld, int layer, enum slot s)
{
    return slot_matrix(ld->w, &ld->w->layers[layer], s);
}

static const float **vector_of(const struct loader *ld, int layer, enum slot s)
{
    return slot_vector(ld->w, &ld->w->layers[layer], s);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Returns the number of blocks in flight: two for each thread. Their memory is all that loading
 * takes besides the weights. It decides the peak memory of a process that uses a model only for a
 * short text. */
static int64_t batch_blocks(const struct loader *ld)
{
    int n = 2 * pool_threads(ld->dev->pool);
    return n < BATCH_BLOCKS ? n : BATCH_BLOCKS;
}

static int stage_for(const struct loader *ld, const struct tensor_spec *t, enum slot s)
{
    return share_stage(ld->c, s, t->layer, ld->n_stages);
}

/* Returns the floats of a vector, rounded up so that the next one begins at a cache line. */
static size_t vector_floats(const struct loader *ld, enum slot s)
{
    return (size_t)round_up((uint64_t)share_rows(ld->c, s, ld->n_ranks), 16);
}

static size_t matrix_bytes(const struct loader *ld, const struct weight *m)
{
    return ld->dev->ops->weight_bytes(m->dtype, m->n, m->k);
}

/* Returns the mapped rows of a table if they can be used as they are, else NULL. */
static const uint8_t *in_place(const struct loader *ld, const struct tensor_src *src)
{
    if (!ld->dev->unified)
        return NULL;
    if (dtype_has_blocks(tensor_table_dtype(src, ld->w->dtype)))
        return src->rows.order == ROWS_SAME ? src->coded : NULL;
    bool aligned = (uintptr_t)src->mapped % dtype_bytes(src->dtype) == 0;
    return aligned ? src->mapped : NULL;
}

static void measure_matrix(struct loader *ld, const struct tensor_spec *t, enum slot s)
{
    struct weight *m = matrix_of(ld, t->layer, s);
    if (m->n != 0)
        return;
    *m = (struct weight){.dtype = matrix_type(ld->w->matrices, t->layer, s),
                         .n = matrix_rows(ld->w->matrices, ld->c, t->layer, s, ld->n_ranks),
                         .k = share_cols(ld->c, s, ld->n_ranks)};
    ld->stage_bytes[stage_for(ld, t, s)] += matrix_bytes(ld, m);
}

/* Sets the shape of the slot that a part of a tensor fills, and counts its bytes. */
static void measure_part(struct loader *ld, const struct tensor_spec *t,
                         const struct tensor_src *src, enum slot s)
{
    int stage = stage_for(ld, t, s);
    if (slot_is_vector(s)) { /* an upper bound: K and V biases share a slot */
        ld->n_vector_floats[stage] += vector_floats(ld, s);
    } else if (slot_is_matrix(s)) {
        measure_matrix(ld, t, s);
        if (s == SLOT_WKV)
            measure_matrix(ld, t, SLOT_WV);
    } else if (in_place(ld, src) == NULL) {
        enum dtype dtype = tensor_table_dtype(src, ld->w->dtype);
        ld->stage_bytes[stage] += (size_t)t->rows * tensor_row_bytes(dtype, t->cols);
    }
}

/* Checks the memory of the stage with the most weights. */
static int check_room(const struct loader *ld)
{
    size_t unused, total;
    uint64_t bytes = 0;
    device_memory(ld->dev, &unused, &total);
    for (int k = 0; k < ld->n_stages; k++)
        bytes = MAX(ld->stage_bytes[k], bytes);
    if (ld->dev->unified || bytes <= unused)
        return 0;
    return err_set(ld->err, -ENOMEM,
                   "weights: %.2f GB are needed on device %s, %.2f of %.2f GB are free: "
                   "choose a smaller model, or end other programs that use the device",
                   (double)bytes / 1e9, ld->dev->name, (double)unused / 1e9,
                   (double)total / 1e9);
}

static int allocate_matrix(struct loader *ld, const struct tensor_spec *t, enum slot s)
{
    struct weight *m = matrix_of(ld, t->layer, s);
    if (m->mem.ptr != NULL || m->n == 0)
        return 0;
    size_t bytes = matrix_bytes(ld, m);
    if (stage_alloc(ld->dev, stage_for(ld, t, s), bytes, &m->mem, ld->err) != 0)
        return err_wrap(ld->err, "weights: tensor '%s'", t->name);
    return 0;
}

/* Lets a table use the mapping if the mapping can serve as it is; else allocates a copy. */
static int allocate_table(struct loader *ld, const struct tensor_spec *t,
                          const struct tensor_src *src, enum slot s)
{
    struct holdings *h = ld->w->impl;
    struct mat *m = slot_table(ld->w, s);
    enum dtype dtype = tensor_table_dtype(src, ld->w->dtype);
    size_t bytes = (size_t)t->rows * tensor_row_bytes(dtype, t->cols);
    /* the mapping is only ever read */
    *m = mat_of((void *)in_place(ld, src), dtype, t->rows, t->cols);
    if (m->data != NULL)
        return 0;
    struct buf *b = &h->tables[s == SLOT_EMBED ? 0 : 1];
    if (stage_alloc(ld->dev, stage_for(ld, t, s), bytes, b, ld->err) != 0)
        return err_wrap(ld->err, "weights: tensor '%s'", t->name);
    m->data = b->ptr;
    return 0;
}

/* Allocates one block per stage for its vectors, which lie there in the order of the tensor
 * list. */
static int allocate_vectors(struct loader *ld)
{
    struct holdings *h = ld->w->impl;
    size_t at[MAX_STAGES] = {0};
    for (int k = 0; k < ld->n_stages; k++) {
        size_t n = ld->n_vector_floats[k];
        if (stage_alloc(ld->dev, k, n * sizeof(float), &h->vectors[k], ld->err) != 0)
            return err_wrap(ld->err, "weights: norms and biases");
        ld->vectors[k] = xcalloc(n * (size_t)ld->n_ranks, sizeof(float));
    }
    for (size_t i = 0; i < ld->set.list.n; i++) {
        const struct tensor_spec *t = &ld->set.list.items[i];
        for (int k = 0; k < t->n_parts; k++) {
            enum slot s = t->parts[k].slot;
            const float **v = slot_is_vector(s) ? vector_of(ld, t->layer, s) : NULL;
            if (v == NULL || *v != NULL)
                continue;
            int stage = stage_for(ld, t, s);
            *v = (const float *)h->vectors[stage].ptr + at[stage];
            at[stage] += vector_floats(ld, s);
            CHECK(at[stage] <= ld->n_vector_floats[stage]);
        }
    }
    return 0;
}

static enum dtype held_dtype(const struct loader *ld)
{
    switch (ld->held) {
    case WEIGHTS_F32:
        return DTYPE_F32;
    case WEIGHTS_BF16:
        return DTYPE_BF16;
    case WEIGHTS_Q8:
        return DTYPE_Q8;
    case WEIGHTS_Q4:
        return DTYPE_Q4;
    case WEIGHTS_BF16R:
        return DTYPE_BF16R;
    default:
        return ld->set.dtype;
    }
}

static int allocate(struct loader *ld)
{
    ld->w->file_dtype = ld->set.quantised ? DTYPE_BF16 : ld->set.dtype;
    if (ld->set.mixed && !ld->set.quantised && ld->held == WEIGHTS_AS_STORED)
        log_warn("the checkpoint's matrices have several types; all are held as %s",
                 dtype_name(ld->w->dtype));
    for (size_t i = 0; i < ld->set.list.n; i++) {
        const struct tensor_spec *t = &ld->set.list.items[i];
        for (int k = 0; k < t->n_parts; k++)
            measure_part(ld, t, &ld->set.src[i], t->parts[k].slot);
    }
    for (int k = 0; k < ld->n_stages; k++) {
        ld->stage_bytes[k] += ld->n_vector_floats[k] * sizeof(float);
        ld->w->bytes += ld->stage_bytes[k];
    }
    int n_parts = (int)ld->set.list.n + 1;
    int rc = ld->o->reserve != NULL
                 ? ld->o->reserve(ld->o->reserve_arg, ld->stage_bytes, n_parts, ld->err)
                 : check_room(ld);
    for (size_t i = 0; rc == 0 && i < ld->set.list.n; i++) {
        const struct tensor_spec *t = &ld->set.list.items[i];
        for (int k = 0; rc == 0 && k < t->n_parts; k++) {
            enum slot s = t->parts[k].slot;
            if (slot_is_matrix(s))
                rc = allocate_matrix(ld, t, s);
            else if (slot_is_table(s))
                rc = allocate_table(ld, t, &ld->set.src[i], s);
            if (rc == 0 && s == SLOT_WKV)
                rc = allocate_matrix(ld, t, SLOT_WV);
        }
    }
    return rc == 0 ? allocate_vectors(ld) : rc;
}

/* --- blocks of rows -------------------------------------------------------------------------- */

/* How a tensor is cut into blocks: a function of its shape and type only, because the hash depends
 * on it. */
struct cut {
    int64_t block_rows, n_blocks;
    size_t row_bytes;
};

static struct cut cut_of(const struct tensor_spec *t, enum dtype dtype)
{
    struct cut c = {.row_bytes = (size_t)t->cols * dtype_bytes(dtype)};
    c.block_rows = (int64_t)(BLOCK_BYTES / c.row_bytes);
    if (c.block_rows == 0)
        c.block_rows = 1;
    c.n_blocks = (t->rows + c.block_rows - 1) / c.block_rows;
    return c;
}

/* Rows of one tensor that are loaded together, in the loader's scratch memory. */
struct loaded_rows {
    const struct tensor_spec *t;
    const struct tensor_src *src;
    struct cut cut;
    bool norm_plus_one;
    int64_t row, n_rows; /* first row within the tensor, and number of rows */
    const uint8_t *rows; /* bytes of the loaded rows */
    uint8_t *make_at;    /* not NULL: rows are generated or decoded to this place first */
    uint64_t *sums;      /* [n_blocks] checksums of the whole tensor */
    /* First row of the tensor with a NaN or an infinity; NO_ROW: there is no such row. */
    atomic_llong bad_row;
};
#define NO_ROW LLONG_MAX

static void look_for_bad_rows(struct loaded_rows *b, int64_t at, int64_t n_rows)
{
    const uint8_t *rows = b->rows + (size_t)at * b->cut.row_bytes;
    size_t cols = (size_t)b->t->cols;
    int64_t i = 0;
    if (numbers_only(rows, (size_t)n_rows * cols, b->src->dtype))
        return;
    while (numbers_only(rows + (size_t)i * b->cut.row_bytes, cols, b->src->dtype))
        i++;
    long long row = b->row + at + i, first = atomic_load(&b->bad_row);
    while (row < first && !atomic_compare_exchange_weak(&b->bad_row, &first, row))
        ;
}

static void fill_blocks(void *arg, int thread_idx, int n_threads)
{
    struct loaded_rows *b = arg;
    int64_t first = b->row / b->cut.block_rows;
    int64_t n = (b->n_rows + b->cut.block_rows - 1) / b->cut.block_rows;
    for (int64_t i = thread_idx; i < n; i += n_threads) {
        int64_t at = i * b->cut.block_rows;
        int64_t rows = MIN(b->n_rows - at, b->cut.block_rows);
        size_t offset = (size_t)at * b->cut.row_bytes;
        if (b->src->coded != NULL)
            tensor_src_decode(b->src, b->t->cols, b->row + at, rows, b->make_at + offset);
        else if (b->make_at != NULL)
            synth_fill(b->t, b->src->dtype, b->norm_plus_one, b->row + at, rows,
                       b->make_at + offset);
        b->sums[first + i] = checksum64(b->rows + offset, (size_t)rows * b->cut.row_bytes);
        if (b->make_at == NULL || b->src->coded != NULL)
            look_for_bad_rows(b, at, rows);
    }
}

/* --- delivering rows to their slots ----------------------------------------------------------- */

/* Converts n elements to f32. This function and narrow do all conversions of element types. */
static void widen(float *dst, const void *src, enum dtype t, size_t n)
{
    const uint16_t *h = src;
    for (size_t i = 0; t == DTYPE_F16 && i < n; i++)
        dst[i] = f16_to_f32(h[i]);
    for (size_t i = 0; t == DTYPE_BF16 && i < n; i++)
        dst[i] = bf16_to_f32(h[i]);
    if (t == DTYPE_F32)
        memcpy(dst, src, n * sizeof *dst);
}

static void deliver_vector(struct loader *ld, const struct loaded_rows *b, enum slot s,
                           int rank, const uint8_t *rows, int64_t dst_row, int64_t n)
{
    const struct holdings *h = ld->w->impl;
    int stage = stage_for(ld, b->t, s);
    const float *base = h->vectors[stage].ptr;
    float *dst = ld->vectors[stage] + (size_t)rank * ld->n_vector_floats[stage] +
                 (*vector_of(ld, b->t->layer, s) - base) + dst_row;
    if (share_is_empty(s, rank, ld->n_ranks))
        return;
    widen(dst, rows, b->src->dtype, (size_t)n);
    for (int64_t i = 0; b->norm_plus_one && b->t->kind == TENSOR_NORM && i < n; i++)
        dst[i] += 1.0f;
}

/* Converts n floats to bf16, rounded to nearest even. A NaN stays a NaN. */
static void narrow(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &src[i], sizeof u);
        uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        dst[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : rounded);
    }
}

/* Converts n elements of any type to f32 or bf16. */
static void convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t n)
{
    float part[256];
    if (to == DTYPE_F32) {
        widen(dst, src, from, n);
        return;
    }
    CHECK(to == DTYPE_BF16);
    for (size_t at = 0, k; at < n; at += k) {
        k = MIN(n - at, 256);
        widen(part, (const uint8_t *)src + at * dtype_bytes(from), from, k);
        narrow((uint16_t *)dst + at, part, k);
    }
}

/* Returns the element type from which a matrix is packed. */
static enum dtype packed_from(enum dtype matrix)
{
    if (matrix == DTYPE_BF16R)
        return DTYPE_BF16;
    return matrix == DTYPE_Q8 || matrix == DTYPE_Q4 ? DTYPE_F32 : matrix;
}

struct convert_job {
    uint8_t *dst;
    const uint8_t *src;
    enum dtype to, from;
    long n;
};

static void convert_share(void *arg, int thread_idx, int n_threads)
{
    const struct convert_job *j = arg;
    long begin, end;
    pool_share(j->n, 1, thread_idx, n_threads, &begin, &end);
    convert(j->dst + (size_t)begin * dtype_bytes(j->to), j->to,
            j->src + (size_t)begin * dtype_bytes(j->from), j->from, (size_t)(end - begin));
}

/* Returns n elements of the loaded rows in type `to`: in place if they have it, else converted in
 * the loader's scratch memory. */
static const uint8_t *in_type(struct loader *ld, const struct loaded_rows *b, enum dtype to,
                              const uint8_t *rows, int64_t n)
{
    if (b->src->dtype == to)
        return rows;
    struct convert_job job = {ld->wide, rows, to, b->src->dtype, n};
    pool_run(ld->dev->pool, convert_share, &job);
    return ld->wide;
}

/* Returns a rank's columns of n rows, copied behind those of earlier ranks; all columns if they are
 * not cut. */
static const uint8_t *cut_columns(struct loader *ld, const uint8_t *rows, enum dtype t,
                                  int64_t cols, int64_t own, int rank, int64_t n)
{
    size_t all = tensor_row_bytes(t, cols), bytes = tensor_row_bytes(t, own);
    if (own == cols)
        return rows;
    uint8_t *to = ld->cut + (size_t)rank * (size_t)n * bytes;
    for (int64_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * bytes, rows + (size_t)i * all + (size_t)rank * bytes,
               bytes);
    return to;
}

struct make_job {
    const float *from;
    uint8_t *to;
    int64_t cols, n;
    struct q4_error *error; /* [threads] errors of the conversion */
    atomic_bool refused;
};

static void make_share(void *arg, int thread_idx, int n_threads)
{
    struct make_job *j = arg;
    long begin, end;
    size_t bytes = q4_row_bytes(DTYPE_Q4_1, j->cols);
    pool_share(j->n, 1, thread_idx, n_threads, &begin, &end);
    for (long i = begin; i < end; i++)
        if (!q4_make_row(j->from + i * j->cols, j->cols, j->to + (size_t)i * bytes,
                         &j->error[thread_idx]))
            atomic_store(&j->refused, true);
}

/* Converts n of the loaded rows to blocks of a 4-bit type in ld->blocks, or copies the file's own
 * blocks. -ERANGE: 4 bits cannot hold the numbers. */
static int make_blocks(struct loader *ld, const struct loaded_rows *b, enum dtype type,
                       const uint8_t *rows, int64_t n)
{
    int64_t first = b->row + (int64_t)((size_t)(rows - b->rows) / b->cut.row_bytes);
    if (tensor_src_q4_type(b->src) == type) {
        tensor_src_copy_coded(b->src, first, n, ld->blocks);
        return 0;
    }
    CHECK(type == DTYPE_Q4_1);
    int n_threads = pool_threads(ld->dev->pool);
    struct make_job job = {.error = xcalloc((size_t)n_threads, sizeof *job.error),
                           .from = (const float *)(const void *)in_type(
                               ld, b, DTYPE_F32, rows, n * b->t->cols),
                           .to = ld->blocks,
                           .cols = b->t->cols,
                           .n = n};
    pool_run(ld->dev->pool, make_share, &job);
    for (int i = 0; i < n_threads; i++) {
        ld->error.of_error += job.error[i].of_error;
        ld->error.of_weights += job.error[i].of_weights;
    }
    free(job.error);
    return atomic_load(&job.refused) ? -ERANGE : 0;
}

static int deliver_matrix(struct loader *ld, const struct loaded_rows *b, enum slot s,
                          int rank, const uint8_t *rows, int64_t dst_row, int64_t n)
{
    const struct weight *m = matrix_of(ld, b->t->layer, s);
    if (s == SLOT_WKV && dst_row >= m->n) { /* W_v is a matrix of its own */
        dst_row -= m->n;
        m = matrix_of(ld, b->t->layer, SLOT_WV);
    }
    CHECK(dst_row + n <= m->n);
    bool q4 = dtype_has_blocks(m->dtype);
    enum dtype t = q4 ? m->dtype : packed_from(m->dtype);
    int rc = q4 ? make_blocks(ld, b, t, rows, n) : 0;
    if (rc != 0)
        return rc;
    const uint8_t *src = q4 ? ld->blocks : in_type(ld, b, t, rows, n * b->t->cols);
    struct weight own = *m;
    struct stream *to = rank_stream(ld->s, stage_for(ld, b->t, s), rank);
    own.mem.ptr = rank_address(ld->dev, m->mem.ptr, rank);
    return stream_device(to)->ops->weight_pack(
        to, &own, dst_row, cut_columns(ld, src, t, b->t->cols, m->k, rank, n), n);
}

static int deliver_table(struct loader *ld, const struct loaded_rows *b, enum slot s,
                         const uint8_t *rows, int64_t dst_row, int64_t n)
{
    struct mat *m = slot_table(ld->w, s);
    size_t row_bytes = tensor_row_bytes(m->dtype, b->t->cols);
    bool q4 = dtype_has_blocks(m->dtype);
    if (in_place(ld, b->src) != NULL)
        return 0; /* the table is used where it is */
    int rc = q4 ? make_blocks(ld, b, m->dtype, rows, n) : 0;
    if (rc != 0)
        return rc;
    const uint8_t *src = q4 ? ld->blocks : in_type(ld, b, m->dtype, rows, n * b->t->cols);
    return stream_copy(ld->s, (uint8_t *)m->data + (size_t)dst_row * row_bytes, src,
                       (size_t)n * row_bytes);
}

/* Sends rows [dst_row, dst_row + n) of a slot to the ranks that hold them. */
static int deliver(struct loader *ld, const struct loaded_rows *b, enum slot s,
                   const uint8_t *rows, int64_t dst_row, int64_t n)
{
    int rc = 0;
    if (slot_is_table(s))
        return deliver_table(ld, b, s, rows, dst_row, n);
    for (int rank = 0; rank < ld->n_ranks; rank++) {
        int64_t row = dst_row, end = dst_row + n, own_row, n_own;
        for (; rc == 0 &&
               share_next(ld->c, s, rank, ld->n_ranks, &row, end, &own_row, &n_own);
             row += n_own) {
            const uint8_t *from = rows + (size_t)(row - dst_row) * b->cut.row_bytes;
            if (slot_is_matrix(s))
                rc = deliver_matrix(ld, b, s, rank, from, own_row, n_own);
            else
                deliver_vector(ld, b, s, rank, from, own_row, n_own);
        }
    }
    return rc;
}

/* Delivers the rows that a part and the loaded rows have in common, group by group. */
static int deliver_part(struct loader *ld, const struct loaded_rows *b,
                        const struct tensor_part *p)
{
    int64_t end = b->row + b->n_rows;
    for (int64_t g = 0; g < p->n_groups; g++) {
        int64_t from = p->src_row + g * p->src_stride, to = from + p->n_rows;
        int64_t lo = MAX(from, b->row), hi = MIN(to, end);
        if (lo >= hi)
            continue;
        const uint8_t *rows = b->rows + (size_t)(lo - b->row) * b->cut.row_bytes;
        int rc = deliver(ld, b, p->slot, rows, p->dst_row + g * p->n_rows + (lo - from),
                         hi - lo);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* --- one tensor ------------------------------------------------------------------------------- */

/* Gives the file's pages of the loaded rows back.  If the file has the rows in another order, they
 * may be anywhere in the tensor, so all pages of the tensor are given back. */
static void drop_rows(const struct loaded_rows *b)
{
    const struct tensor_src *src = b->src;
    const uint8_t *all = src->mapped != NULL ? src->mapped : src->coded;
    size_t row_bytes = src->mapped != NULL ? b->cut.row_bytes : src->coded_row_bytes;
    bool in_order = src->rows.order == ROWS_SAME;
    if (all != NULL)
        checkpoint_drop(all + (in_order ? (size_t)b->row * row_bytes : 0),
                        (size_t)(in_order ? b->n_rows : b->t->rows) * row_bytes);
}

static int load_rows(struct loader *ld, struct loaded_rows *b)
{
    const struct tensor_src *src = b->src;
    size_t bytes = (size_t)b->n_rows * b->cut.row_bytes;
    const uint8_t *mapped = src->mapped == NULL
                                ? NULL
                                : src->mapped + (size_t)b->row * b->cut.row_bytes;
    b->make_at = mapped == NULL ? ld->raw : NULL;
    b->rows = mapped == NULL ? ld->raw : mapped;
    if (mapped != NULL)
        checkpoint_want(mapped, bytes);
    pool_run(ld->dev->pool, fill_blocks, b);
    if (mapped != NULL && (uintptr_t)mapped % dtype_bytes(src->dtype) != 0) {
        memcpy(ld->raw, mapped, bytes);
        b->rows = ld->raw;
    }
    int rc = 0;
    for (int i = 0; i < b->t->n_parts && rc == 0; i++)
        rc = deliver_part(ld, b, &b->t->parts[i]);
    if (rc == 0)
        rc = stream_sync(ld->s); /* the next rows reuse the same memory */
    drop_rows(b);
    ld->bytes_done += bytes;
    if (ld->o->part == WEIGHTS_ALL)
        progress_at(&ld->progress, ld->bytes_done);
    return rc;
}

static void hash_tensor(struct sha256_ctx *hash, const struct tensor_spec *t,
                        const struct tensor_src *src, const uint64_t *sums, int64_t n_sums)
{
    uint8_t le[8];
    enum dtype dtype = src->dtype;
    sha256_field(hash, "name", t->name, strlen(t->name));
    sha256_field(hash, "dtype", dtype_name(dtype), strlen(dtype_name(dtype)));
    put_u64(le, (uint64_t)t->rows);
    sha256_field(hash, "rows", le, sizeof le);
    put_u64(le, t->n_dims == 1 ? 0 : (uint64_t)t->cols);
    sha256_field(hash, "cols", le, sizeof le);
    /* This source has already added gemma's 1 to its norms. In a source that has not, equal bytes
     * are other weights, so the hashes must differ. */
    if (src->norm_has_one && t->kind == TENSOR_NORM)
        sha256_field(hash, "norm", "one is added", 12);
    for (int64_t i = 0; i < n_sums; i++) {
        put_u64(le, sums[i]);
        sha256_field(hash, "sum", le, sizeof le);
    }
}

/* Logs the error of a tensor that was converted to 4 bits, and adds it to the caller's list. */
static void note_error(struct loader *ld, const char *name)
{
    struct weights_errors *all = ld->o->errors;
    double relative = sqrt(ld->error.of_error / ld->error.of_weights);
    if (all != NULL) {
        all->of = xrealloc(all->of, (all->n + 1) * sizeof *all->of);
        struct weights_error *e = &all->of[all->n++];
        snprintf(e->name, sizeof e->name, "%s", name);
        e->relative = relative;
    }
    if (ld->o->part == WEIGHTS_ALL)
        log_info("weights: tensor '%s': converted to q4_1 with an error of %.2f %%", name,
                 100 * relative);
}

static int load_tensor(struct loader *ld, size_t i, struct sha256 *digest)
{
    ld->error = (struct q4_error){0};
    struct loaded_rows b = {.t = &ld->set.list.items[i],
                            .src = &ld->set.src[i],
                            .cut = cut_of(&ld->set.list.items[i], ld->set.src[i].dtype),
                            .norm_plus_one = ld->c->norm == NORM_RMS_PLUS_ONE &&
                                             !ld->set.src[i].norm_has_one,
                            .bad_row = NO_ROW};
    b.sums = xcalloc((size_t)b.cut.n_blocks, sizeof *b.sums);
    if (b.src->coded != NULL)
        checkpoint_want(b.src->coded, (size_t)b.t->rows * b.src->coded_row_bytes);
    int rc = 0;
    for (int64_t row = 0; row < b.t->rows && rc == 0; row += b.n_rows) {
        b.row = row;
        b.n_rows = batch_blocks(ld) * b.cut.block_rows;
        if (b.n_rows > b.t->rows - row)
            b.n_rows = b.t->rows - row;
        rc = load_rows(ld, &b);
    }
    struct sha256_ctx *hash = sha256_begin();
    hash_tensor(hash, b.t, b.src, b.sums, b.cut.n_blocks);
    *digest = sha256_end(hash);
    free(b.sums);
    if (rc == 0 && ld->error.of_weights > 0)
        note_error(ld, b.t->name);
    if (atomic_load(&b.bad_row) != NO_ROW && ld->n_bad++ == 0) {
        ld->bad_name = b.t->name;
        ld->bad_row = atomic_load(&b.bad_row);
    }
    if (rc == -ERANGE)
        err_set(ld->err, ERR_UNSUPPORTED,
                "weights: tensor '%s': %s cannot hold an infinity, a NaN or a number above "
                "%s; use the checkpoint's own type",
                b.t->name, ld->w->dtype == DTYPE_Q4 ? "4 bits" : "q8",
                ld->w->dtype == DTYPE_Q4 ? "65504" : "8.3e6");
    else if (rc != 0)
        err_set(ld->err, rc, "weights: tensor '%s': %s", b.t->name, err_name(rc));
    return rc == -ERANGE ? ERR_UNSUPPORTED : rc;
}

/* --- all tensors ------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct weights_digest *)a)->name,
                  ((const struct weights_digest *)b)->name);
}

static void digests_add(struct weights_digests *d, const char *name,
                        const struct sha256 *digest)
{
    d->of = xrealloc(d->of, (d->n + 1) * sizeof *d->of);
    struct weights_digest *to = &d->of[d->n++];
    *to = (struct weights_digest){.digest = *digest};
    snprintf(to->name, sizeof to->name, "%s", name);
}

struct sha256 weights_digests_hash(struct weights_digests *d)
{
    qsort(d->of, d->n, sizeof *d->of, by_name);
    struct sha256_ctx *hash = sha256_begin();
    for (size_t i = 0; i < d->n; i++)
        sha256_field(hash, "tensor", d->of[i].digest.b, sizeof d->of[i].digest.b);
    return sha256_end(hash);
}

void weights_digests_deinit(struct weights_digests *d)
{
    free(d->of);
    *d = (struct weights_digests){0};
}

/* Copies each rank's vectors to the rank. */
static int load_vectors(struct loader *ld)
{
    const struct holdings *h = ld->w->impl;
    int rc = 0;
    for (int k = 0; k < ld->n_stages; k++)
        for (int rank = 0; rank < ld->n_ranks && rc == 0; rank++)
            rc = stream_copy(rank_stream(ld->s, k, rank),
                             rank_address(ld->dev, h->vectors[k].ptr, rank),
                             ld->vectors[k] + (size_t)rank * ld->n_vector_floats[k],
                             h->vectors[k].bytes);
    if (rc == 0)
        rc = stream_sync(ld->s);
    return rc == 0 ? 0
                   : err_set(ld->err, rc, "weights: norms and biases: %s", err_name(rc));
}

/* Warns of tensors with a NaN or an infinity, which usually mean damage that a format without
 * checksums does not show.  A token whose row of the output head holds a NaN is never chosen; a
 * hidden state that is computed with a NaN is lost.  A NaN is no error: rows that are never used
 * (padding of a vocabulary) do no harm, and a request whose logits are all NaN fails by itself. */
static void warn_of_bad(const struct loader *ld)
{
    char more[40] = "";
    if (ld->n_bad > 1)
        snprintf(more, sizeof more, " and %d others hold", ld->n_bad - 1);
    log_warn("weights: tensor '%s'%s values that are no numbers (NaN or infinite; row "
             "%lld): the file is damaged, or "
             "was written so; answers may be wrong. Download it again",
             ld->bad_name, ld->n_bad > 1 ? more : " holds", (long long)ld->bad_row);
}

static int load_all(struct loader *ld)
{
    struct weights_digests own = {0};
    struct weights_digests *all = ld->o->digests != NULL ? ld->o->digests : &own;
    int rc = 0;
    bool all_parts = ld->o->part == WEIGHTS_ALL;
    if (all_parts)
        progress_begin(&ld->progress, "loading weights", PROGRESS_BYTES, ld->bytes_all);
    for (size_t i = 0; i < ld->set.list.n && rc == 0; i++) {
        struct sha256 digest;
        rc = load_tensor(ld, i, &digest);
        digests_add(all, ld->set.list.items[i].name, &digest);
    }
    if (all_parts)
        progress_end(&ld->progress);
    if (rc == 0 && ld->n_bad > 0 && all_parts)
        warn_of_bad(ld);
    if (rc == 0)
        ld->w->hash = weights_digests_hash(all);
    weights_digests_deinit(&own);
    return rc == 0 ? load_vectors(ld) : rc;
}

/* Allocates scratch memory for the largest block of rows, and for its converted form. */
static int make_scratch(struct loader *ld)
{
    size_t raw = 0, wide = 0;
    for (size_t i = 0; i < ld->set.list.n; i++) {
        const struct tensor_spec *t = &ld->set.list.items[i];
        struct cut c = cut_of(t, ld->set.src[i].dtype);
        int64_t rows = c.block_rows * batch_blocks(ld) < t->rows
                           ? c.block_rows * batch_blocks(ld)
                           : t->rows;
        size_t bytes = (size_t)rows * c.row_bytes;
        enum slot s = t->parts[0].slot;
        enum dtype to = slot_is_matrix(s)
                            ? packed_from(ld->w->dtype)
                            : tensor_table_dtype(&ld->set.src[i], ld->w->dtype);
        /* One byte a weight is enough: q6_k, the largest type, has 0.82. */
        size_t blocks = (size_t)rows * (size_t)t->cols;
        if (ld->w->dtype == DTYPE_Q4 && !slot_is_vector(s) && blocks > ld->blocks_bytes)
            ld->blocks_bytes = blocks;
        raw = MAX(bytes, raw);
        if (!slot_is_vector(s) && ld->set.src[i].dtype != to && !dtype_has_blocks(to) &&
            (size_t)rows * (size_t)t->cols > wide)
            wide = (size_t)rows * (size_t)t->cols;
        ld->bytes_all += (uint64_t)t->rows * c.row_bytes;
    }
    ld->wide_bytes = wide * sizeof(float) + 1;
    ld->wide = mem_map(ld->wide_bytes);
    if (ld->wide == NULL)
        return err_set(ld->err, -ENOMEM, "weights: no memory for %zu bytes of scratch",
                       ld->wide_bytes);
    if (ld->blocks_bytes > 0 && (ld->blocks = mem_map(ld->blocks_bytes)) == NULL)
        return err_set(ld->err, -ENOMEM, "weights: no memory for %zu bytes of scratch",
                       ld->blocks_bytes);
    ld->cut_bytes = MAX(ld->wide_bytes, raw);
    if (ld->n_ranks > 1 && (ld->cut = mem_map(ld->cut_bytes)) == NULL)
        return err_set(ld->err, -ENOMEM, "weights: no memory for %zu bytes of scratch",
                       ld->cut_bytes);
    if (buf_alloc(ld->dev, MEM_PINNED, raw, &ld->raw_mem, ld->err) != 0)
        return err_wrap(ld->err, "weights: scratch");
    ld->raw = ld->raw_mem.ptr;
    return 0;
}

/* Unmaps all files but those used in place, which the weights own from here on. */
static void release_files(struct loader *ld)
{
    struct holdings *h = ld->w->impl;
    const void *used[2] = {h->tables[0].ptr == NULL ? ld->w->embed.data : NULL,
                           h->tables[1].ptr == NULL ? ld->w->pos_embed.data : NULL};
    if (ld->set.cp != NULL)
        checkpoint_keep_only(ld->set.cp, used, 2);
    h->cp = ld->set.cp;
    ld->set.cp = NULL;
}

int weights_load(struct weights *out, const char *source, const struct model_config *cfg,
                 const struct weights_opts *o, struct err *err)
{
    if (pack_file_is(source))
        return weights_packed_load(out, source, cfg, o, err);
    *out = (struct weights){.impl = xcalloc(1, sizeof(struct holdings)),
                            .layers = xcalloc((size_t)cfg->n_layers, sizeof *out->layers)};
    struct err local;
    struct loader ld = {.w = out,
                        .o = o,
                        .c = cfg,
                        .dev = o->dev,
                        .s = o->s,
                        .n_ranks = o->dev->n_ranks,
                        .n_stages = o->dev->n_stages,
                        .held = o->held,
                        .err = err != NULL ? err : &local};
    struct holdings *h = out->impl;
    h->n_layers = cfg->n_layers;
    int rc = share_check(cfg, ld.n_ranks, ld.n_stages, o->held >= WEIGHTS_Q8, ld.err);
    if (rc == 0)
        rc = tensor_set_open(&ld.set, source, cfg, o->synth_dtype, ld.err);
    out->dtype = held_dtype(&ld);
    out->matrices = xcalloc(1, sizeof *out->matrices);
    matrix_types_make(out->matrices, out->dtype, &ld.set, cfg, ld.n_ranks);
    tensor_set_keep(&ld.set, o->part, o->layer);
    out->types = ld.set.types;
    if (rc == 0)
        rc = allocate(&ld);
    if (rc == 0)
        rc = make_scratch(&ld);
    if (rc == 0)
        rc = load_all(&ld);
    if (rc == 0)
        release_files(&ld);
    buf_free(o->dev, &ld.raw_mem);
    mem_unmap(ld.wide, ld.wide_bytes);
    mem_unmap(ld.cut, ld.cut_bytes);
    mem_unmap(ld.blocks, ld.blocks_bytes);
    for (int k = 0; k < ld.n_stages; k++)
        free(ld.vectors[k]);
    tensor_set_close(&ld.set);
    if (rc != 0)
        weights_unload(out, o->dev);
    return rc;
}

void weights_unload(struct weights *w, struct device *dev)
{
    struct holdings *h = w->impl;
    if (w->packed != NULL)
        weights_packed_unload(w);
    if (h == NULL)
        return;
    for (int i = 0; i < h->n_layers; i++) {
        struct layer_weights *l = &w->layers[i];
        struct weight *all[] = {&l->wq, &l->wkv, &l->wv, &l->wo, &l->w_up, &l->w_down};
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            buf_free(dev, &all[k]->mem);
    }
    buf_free(dev, &w->head.mem);
    buf_free(dev, &h->tables[0]);
    buf_free(dev, &h->tables[1]);
    stages_free(dev, h->vectors);
    checkpoint_close(h->cp);
    free(h);
    free(w->layers);
    matrix_types_free(w->matrices);
    *w = (struct weights){0};
}
