/* weights_rows.c - see weights_rows.h. */
#include "model/weights_rows.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/pool.h"
#include "model/matrix_types.h"
#include "model/numbers.h"
#include "model/share.h"
#include "model/weights_slots.h"

/* Bytes of a block: large enough for full checksum speed, small enough for a core's cache. */
#define BLOCK_BYTES ((uint64_t)1 << 20)
/* Rows that are packed together; units that are not hashed are a multiple. */
#define PANEL_ROWS 16
enum { MAX_SLOTS_OF_WORK = 32 };

static struct cut cut_of(const struct tensor_spec *t, enum dtype dtype)
{
    struct cut c = {.row_bytes = (size_t)t->cols * dtype_bytes(dtype)};
    c.block_rows = (int64_t)(BLOCK_BYTES / c.row_bytes);
    if (c.block_rows == 0)
        c.block_rows = 1;
    c.n_blocks = (t->rows + c.block_rows - 1) / c.block_rows;
    return c;
}

/* --- memory of one unit ----------------------------------------------------------------------- */

/* Rows on their way to their slots. Each field of memory has room for a whole unit. */
struct unit {
    struct load *l;
    int64_t idx, row, n; /* number within the tensor; first row, and number of rows */
    struct stream *s;    /* the thread's own; NULL: rows go over the device's streams */
    struct buf file_mem; /* pinned: a device copies from it */
    uint8_t *wide;       /* decoded rows */
    uint8_t *other;      /* rows in the type of the slot */
    const uint8_t *rows; /* decoded rows; NULL: they were not decoded */
    bool only_asks;      /* delivering only finds out whether this process needs the rows */
    int rc;
};

static int unit_deliver(struct loader *ld, const struct unit *u);

/* Returns whether a rank reads its rows itself: it is another process, with the same file. */
static bool reads_itself(const struct loader *ld, int stage, int rank)
{
    return ld->ranks_read && stage + rank > 0;
}

/* Bytes of the largest unit: as in the file, and as f32, which is the widest type of a slot. */
struct unit_sizes {
    size_t file, wide;
};

static struct unit_sizes sizes_of(const struct loader *ld)
{
    struct unit_sizes z = {0};
    for (size_t i = 0; i < ld->set.list.n; i++) {
        const struct load *l = &ld->loads[i];
        size_t rows = (size_t)MIN(l->unit_rows, l->t->rows);
        size_t numbers = rows * (size_t)l->t->cols;
        size_t file = rows * (l->src->in_file ? l->src->file_row_bytes : l->cut.row_bytes);
        z.file = MAX(z.file, file);
        z.wide = MAX(z.wide, numbers * sizeof(float));
    }
    return z;
}

static void unit_deinit(struct loader *ld, struct unit *u, const struct unit_sizes *z)
{
    if (u->s != NULL)
        stream_destroy(u->s);
    buf_free(ld->dev, &u->file_mem);
    mem_unmap(u->wide, z->wide);
    mem_unmap(u->other, z->wide);
}

static int unit_init(struct loader *ld, struct unit *u, const struct unit_sizes *z,
                     bool is_inline)
{
    if (is_inline && stream_create(ld->dev, STREAM_INLINE, &u->s, ld->err) != 0)
        return err_wrap(ld->err, "weights: scratch");
    if (buf_alloc(ld->dev, MEM_PINNED, z->file, &u->file_mem, ld->err) != 0)
        return err_wrap(ld->err, "weights: scratch");
    u->wide = mem_map(z->wide);
    u->other = mem_map(z->wide);
    if (u->wide == NULL || u->other == NULL)
        return err_set(ld->err, -ENOMEM, "weights: no memory for %zu bytes of scratch",
                       2 * z->wide);
    return 0;
}

/* --- reading and hashing ---------------------------------------------------------------------- */

/* Returns whether n rows hold numbers only; of decays, which are F32, also their logarithms. */
static bool rows_are_good(const struct load *l, const uint8_t *rows, int64_t n)
{
    bool good = numbers_only(rows, (size_t)(n * l->t->cols), l->src->dtype);
    for (int64_t i = 0; good && l->src->is_decay && i < n; i++) {
        float x;
        memcpy(&x, rows + (size_t)i * sizeof x, sizeof x);
        good = x < 0;
    }
    return good;
}

static void look_for_bad_rows(struct load *l, const struct unit *u)
{
    int64_t i = 0;
    if (rows_are_good(l, u->rows, u->n))
        return;
    while (rows_are_good(l, u->rows + (size_t)i * l->cut.row_bytes, 1))
        i++;
    long long row = u->row + i, first = atomic_load(&l->bad_row);
    while (row < first && !atomic_compare_exchange_weak(&l->bad_row, &first, row))
        ;
}

/* Finds unit `unit` of all tensors' units. */
static void unit_find(const struct loader *ld, int64_t unit, struct unit *u)
{
    size_t lo = 0, hi = ld->set.list.n;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (ld->loads[mid].first_unit <= unit)
            lo = mid;
        else
            hi = mid;
    }
    u->l = &ld->loads[lo];
    u->idx = unit - u->l->first_unit;
    u->row = u->idx * u->l->unit_rows;
    u->n = MIN(u->l->unit_rows, u->l->t->rows - u->row);
}

/* Reads a unit's rows, and decodes and hashes them as needed. u->rc gets the result. Skips rows
 * that only other processes need, since these read them themselves. */
static void unit_prepare(struct loader *ld, struct unit *u)
{
    struct load *l = u->l;
    uint8_t *file = u->file_mem.ptr;
    u->rc = 0;
    u->rows = file;
    u->only_asks = true;
    bool is_needed = !ld->ranks_read || unit_deliver(ld, u) != 0;
    u->only_asks = false;
    if (!is_needed)
        return;
    if (l->src->in_file)
        u->rc = tensor_src_read(l->src, u->row, u->n, file);
    else
        synth_fill(l->t, l->src->dtype, ld->c->norm == NORM_RMS_PLUS_ONE, u->row, u->n,
                   file);
    if (u->rc == 0 && tensor_src_is_quantised(l->src)) {
        u->rows = l->decodes ? u->wide : NULL;
        if (l->decodes)
            tensor_src_decode(l->src, l->t->cols, file, u->n, (float *)(void *)u->wide);
    }
    if (u->rc != 0 || l->sums == NULL)
        return;
    l->sums[u->idx] = checksum64(u->rows, (size_t)u->n * l->cut.row_bytes);
    if (l->src->in_file)
        look_for_bad_rows(l, u);
}

/* --- element types ---------------------------------------------------------------------------- */

/* Converts n elements to f32. This function and floats_narrow do all conversions of element
 * types. */
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
        floats_narrow((uint16_t *)dst + at, part, k);
    }
}

/* Returns the element type from which a matrix is packed. */
static enum dtype packed_from(enum dtype matrix)
{
    if (matrix == DTYPE_BF16R)
        return DTYPE_BF16;
    return matrix == DTYPE_Q8 || matrix == DTYPE_Q4 ? DTYPE_F32 : matrix;
}

/* Returns whether the rows of a tensor are held in `type` as the file has them. */
static bool moves_blocks(const struct loader *ld, const struct tensor_src *src,
                         enum dtype type)
{
    if (dtype_has_blocks(type))
        return tensor_src_q4_type(src) == type;
    return type == DTYPE_Q8 && src->type != NULL && strcmp(src->type->name, "Q8_0") == 0 &&
           ld->n_ranks == 1 && ld->dev->ops->weight_pack_q8_0 != NULL;
}

/* --- delivering rows to their slots ----------------------------------------------------------- */

/* Return rows from row `at` of the unit on: decoded, as in the file, and the place for them in the
 * type of a slot. */
static const uint8_t *decoded_at(const struct unit *u, int64_t at)
{
    CHECK(u->rows != NULL);
    return u->rows + (size_t)at * u->l->cut.row_bytes;
}

static const uint8_t *in_file_at(const struct unit *u, int64_t at)
{
    return (const uint8_t *)u->file_mem.ptr + (size_t)at * u->l->src->file_row_bytes;
}

static uint8_t *other_at(const struct unit *u, int64_t at)
{
    return u->other + (size_t)at * (size_t)u->l->t->cols * sizeof(float);
}

static void deliver_vector(struct loader *ld, const struct unit *u, enum slot s, int rank,
                           int64_t at, int64_t dst_row, int64_t n)
{
    const struct load *l = u->l;
    int stage = loader_stage(ld, l->t, s);
    float *dst = loader_vector(ld, l->t->layer, s, stage, rank) + dst_row;
    bool plus_one = ld->c->norm == NORM_RMS_PLUS_ONE && !l->src->norm_has_one &&
                    l->t->kind == TENSOR_NORM;
    widen(dst, decoded_at(u, at), l->src->dtype, (size_t)n);
    for (int64_t i = 0; plus_one && i < n; i++)
        dst[i] += 1.0f;
    for (int64_t i = 0; l->src->is_decay && i < n; i++)
        dst[i] = logf(-dst[i]);
}

/* Returns n rows in element type `to`: in place if they have it, else converted. */
static const uint8_t *in_type(const struct unit *u, enum dtype to, int64_t at, int64_t n)
{
    const struct load *l = u->l;
    if (l->src->dtype == to)
        return decoded_at(u, at);
    convert(other_at(u, at), to, decoded_at(u, at), l->src->dtype,
            (size_t)(n * l->t->cols));
    return other_at(u, at);
}

/* Sets *out to n rows as blocks of a 4-bit type: the file's own, or made from the numbers. -ERANGE:
 * 4 bits cannot hold them. */
static int in_blocks(const struct unit *u, enum dtype type, int64_t at, int64_t n,
                     const uint8_t **out)
{
    struct load *l = u->l;
    int64_t cols = l->t->cols;
    if (tensor_src_q4_type(l->src) == type) {
        *out = in_file_at(u, at);
        return 0;
    }
    CHECK(type == DTYPE_Q4_1);
    uint8_t *to = other_at(u, at);
    float *row = xmalloc((size_t)cols * sizeof *row);
    bool fits = true;
    for (int64_t i = 0; i < n; i++) {
        widen(row, decoded_at(u, at + i), l->src->dtype, (size_t)cols);
        fits &= q4_make_row(row, cols, to + (size_t)i * q4_row_bytes(type, cols),
                            &l->errors[u->idx]);
    }
    free(row);
    *out = to;
    return fits ? 0 : -ERANGE;
}

/* Packs n rows as rows from dst_row on of a rank's own matrix. */
static int pack_rows(const struct loader *ld, const struct unit *u, struct stream *to,
                     struct weight *m, int64_t at, int64_t dst_row, int64_t n)
{
    const struct load *l = u->l;
    const struct ops *ops = stream_device(to)->ops;
    if (m->dtype == DTYPE_Q8 && moves_blocks(ld, l->src, DTYPE_Q8))
        return ops->weight_pack_q8_0(to, m, dst_row, in_file_at(u, at), n);
    bool q4 = dtype_has_blocks(m->dtype);
    enum dtype t = q4 ? m->dtype : packed_from(m->dtype);
    const uint8_t *src = NULL;
    int rc = q4 ? in_blocks(u, t, at, n, &src) : 0;
    if (!q4)
        src = in_type(u, t, at, n);
    return rc != 0 ? rc : ops->weight_pack(to, m, dst_row, src, n);
}

int rows_load(const struct loader *ld, struct load *l, int64_t row, int64_t n,
              struct stream *s, struct weight *to, int64_t dst_row)
{
    size_t numbers = (size_t)(n * l->t->cols);
    struct q4_error unused = {0};
    struct unit u = {.l = l, .row = row, .n = n, .s = s};
    l->cut = cut_of(l->t, l->src->dtype);
    l->decodes = !moves_blocks(ld, l->src, to->dtype);
    l->errors = &unused;
    uint8_t *file = xmalloc((size_t)n * l->src->file_row_bytes);
    u.file_mem.ptr = file;
    u.rows = file;
    u.wide = xmalloc(numbers * sizeof(float));
    u.other = xmalloc(numbers * sizeof(float));
    int rc = tensor_src_read(l->src, row, n, file);
    if (rc == 0 && tensor_src_is_quantised(l->src) && l->decodes) {
        u.rows = u.wide;
        tensor_src_decode(l->src, l->t->cols, file, n, (float *)(void *)u.wide);
    }
    if (rc == 0)
        rc = pack_rows(ld, &u, s, to, 0, dst_row, n);
    free(file);
    free(u.wide);
    free(u.other);
    return rc;
}

static int deliver_matrix(struct loader *ld, const struct unit *u, enum slot s, int rank,
                          int64_t at, int64_t dst_row, int64_t n)
{
    const struct load *l = u->l;
    const struct weight *m = loader_matrix(ld, l->t->layer, s);
    if (s == SLOT_WKV && dst_row >= m->n) { /* W_v is a matrix of its own */
        dst_row -= m->n;
        m = loader_matrix(ld, l->t->layer, SLOT_WV);
    }
    CHECK(dst_row + n <= m->n);
    struct weight own = *m;
    int stage = loader_stage(ld, l->t, s);
    struct stream *to = u->s != NULL ? u->s : rank_stream(ld->s, stage, rank);
    own.mem.ptr = rank_address(ld->dev, m->mem.ptr, rank);
    return reads_itself(ld, stage, rank)
               ? rank_read_rows(to, &own, dst_row, (int)(l - ld->loads), u->row + at, n)
               : pack_rows(ld, u, to, &own, at, dst_row, n);
}

static int deliver_table(struct loader *ld, const struct unit *u, enum slot s, int64_t at,
                         int64_t dst_row, int64_t n)
{
    struct mat *m = slot_table(ld->w, s);
    size_t row_bytes = tensor_row_bytes(m->dtype, u->l->t->cols);
    bool q4 = dtype_has_blocks(m->dtype);
    const uint8_t *src = NULL;
    int rc = q4 ? in_blocks(u, m->dtype, at, n, &src) : 0;
    if (!q4)
        src = in_type(u, m->dtype, at, n);
    return rc != 0 ? rc
                   : stream_copy(u->s != NULL ? u->s : ld->s,
                                 (uint8_t *)m->data + (size_t)dst_row * row_bytes, src,
                                 (size_t)n * row_bytes);
}

/* Sends rows [dst_row, dst_row + n) of a slot to the ranks that hold them. `at` is their place in
 * the unit. */
static int deliver(struct loader *ld, const struct unit *u, enum slot s, int64_t at,
                   int64_t dst_row, int64_t n)
{
    int rc = 0, stage = loader_stage(ld, u->l->t, s);
    if (u->only_asks && !slot_is_matrix(s))
        return 1;
    if (slot_is_table(s))
        return deliver_table(ld, u, s, at, dst_row, n);
    for (int rank = 0; rank < ld->n_ranks; rank++) {
        int64_t row = dst_row, end = dst_row + n, own_row, n_own;
        for (; rc == 0 && share_next(ld->c, u->l->t->layer, s, rank, ld->n_ranks, &row, end,
                                     &own_row, &n_own);
             row += n_own) {
            int64_t from = at + row - dst_row;
            if (u->only_asks)
                rc = !reads_itself(ld, stage, rank);
            else if (slot_is_matrix(s))
                rc = deliver_matrix(ld, u, s, rank, from, own_row, n_own);
            else
                deliver_vector(ld, u, s, rank, from, own_row, n_own);
        }
    }
    return rc;
}

/* Delivers the rows that a part and the unit have in common, group by group. */
static int deliver_part(struct loader *ld, const struct unit *u,
                        const struct tensor_part *p)
{
    int64_t end = u->row + u->n;
    for (int64_t g = 0; g < p->n_groups; g++) {
        int64_t from = p->src_row + g * p->src_stride, to = from + p->n_rows;
        int64_t lo = MAX(from, u->row), hi = MIN(to, end);
        if (lo >= hi)
            continue;
        int rc = deliver(ld, u, p->slot, lo - u->row,
                         p->dst_row + g * p->n_rows + (lo - from), hi - lo);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Delivers a unit. With only_asks returns 1 if this process needs its rows, else 0. */
static int unit_deliver(struct loader *ld, const struct unit *u)
{
    int rc = u->rc;
    for (int i = 0; i < u->l->t->n_parts && rc == 0; i++)
        rc = deliver_part(ld, u, &u->l->t->parts[i]);
    return rc;
}

/* --- all units -------------------------------------------------------------------------------- */

struct run {
    struct loader *ld;
    struct unit *units; /* one per thread, or one for each unit of a batch */
    int64_t n_batch;    /* units of the batch */
    atomic_llong next;
    atomic_llong n_done;
    atomic_llong failed; /* the first unit that failed; n_units: none */
    atomic_int rc;
};

static void note_failure(struct run *r, int64_t unit, int rc)
{
    long long first = atomic_load(&r->failed);
    while (unit < first)
        if (atomic_compare_exchange_weak(&r->failed, &first, unit))
            atomic_store(&r->rc, rc);
}

static void show_progress(struct run *r, int64_t n)
{
    struct loader *ld = r->ld;
    int64_t done = atomic_fetch_add(&r->n_done, n) + n;
    if (ld->o->part == WEIGHTS_ALL)
        progress_at(&ld->progress,
                    (uint64_t)((double)ld->bytes_all * (double)done / (double)ld->n_units));
}

/* Loads units until none is left. */
static void take_units(void *arg, int thread_idx, int n_threads)
{
    struct run *r = arg;
    struct unit *u = &r->units[thread_idx];
    (void)n_threads;
    for (;;) {
        int64_t unit = atomic_fetch_add(&r->next, 1);
        if (unit >= r->ld->n_units || atomic_load(&r->rc) != 0)
            return;
        unit_find(r->ld, unit, u);
        unit_prepare(r->ld, u);
        int rc = unit_deliver(r->ld, u);
        if (rc != 0)
            note_failure(r, unit, rc);
        if (thread_idx == 0)
            show_progress(r, n_threads);
    }
}

static void prepare_batch(void *arg, int thread_idx, int n_threads)
{
    struct run *r = arg;
    for (int64_t i = thread_idx; i < r->n_batch; i += n_threads) {
        unit_find(r->ld, atomic_load(&r->next) + i, &r->units[i]);
        unit_prepare(r->ld, &r->units[i]);
    }
}

static void run_batches(struct run *r, int64_t most)
{
    struct loader *ld = r->ld;
    int rc = 0;
    for (int64_t at = 0; rc == 0 && at < ld->n_units; at += r->n_batch) {
        atomic_store(&r->next, at);
        r->n_batch = MIN(most, ld->n_units - at);
        pool_run(ld->dev->pool, prepare_batch, r);
        for (int64_t i = 0; rc == 0 && i < r->n_batch; i++)
            if ((rc = unit_deliver(ld, &r->units[i])) != 0)
                note_failure(r, at + i, rc);
        int code = stream_sync(ld->s); /* the next batch reuses the same memory */
        if (rc == 0 && (rc = code) != 0)
            note_failure(r, at, rc);
        show_progress(r, r->n_batch);
    }
}

int loads_run(struct loader *ld, const struct load **failed)
{
    bool is_inline = ld->dev->unified;
    int n = MIN(pool_threads(ld->dev->pool) * (is_inline ? 1 : 2), MAX_SLOTS_OF_WORK);
    struct unit_sizes z = sizes_of(ld);
    struct run r = {.ld = ld, .units = xcalloc((size_t)n, sizeof *r.units)};
    int rc = 0;
    *failed = NULL;
    atomic_store(&r.failed, ld->n_units);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = unit_init(ld, &r.units[i], &z, is_inline);
    if (rc == 0 && is_inline)
        pool_run(ld->dev->pool, take_units, &r);
    else if (rc == 0)
        run_batches(&r, n);
    if (atomic_load(&r.failed) < ld->n_units) {
        struct unit u;
        unit_find(ld, atomic_load(&r.failed), &u);
        *failed = u.l;
        rc = atomic_load(&r.rc);
    }
    for (int i = 0; i < n; i++)
        unit_deinit(ld, &r.units[i], &z);
    free(r.units);
    return rc;
}

/* --- what is loaded --------------------------------------------------------------------------- */

/* Returns whether a part of a tensor is converted on its way to a slot. *makes becomes true if it
 * is converted to 4 bits. */
static bool converts(const struct loader *ld, const struct load *l,
                     const struct tensor_part *p, bool *makes)
{
    if (slot_is_vector(p->slot))
        return true;
    if (slot_is_table(p->slot))
        return !moves_blocks(ld, l->src, slot_table(ld->w, p->slot)->dtype);
    bool any = false;
    for (int i = 0; i < 2; i++) {
        if (i == 1 && p->slot != SLOT_WKV)
            break;
        const struct weight *m = loader_matrix(ld, l->t->layer, i == 0 ? p->slot : SLOT_WV);
        if (m->n == 0 || moves_blocks(ld, l->src, m->dtype))
            continue;
        any = true;
        *makes |= dtype_has_blocks(m->dtype);
    }
    return any;
}

void loads_make(struct loader *ld)
{
    int64_t first = 0;
    ld->loads = xcalloc(ld->set.list.n + 1, sizeof *ld->loads);
    for (size_t i = 0; i < ld->set.list.n; i++) {
        struct load *l = &ld->loads[i];
        l->t = &ld->set.list.items[i];
        l->src = &ld->set.src[i];
        l->cut = cut_of(l->t, l->src->dtype);
        l->unit_rows = l->cut.block_rows;
        if (ld->is_known && l->unit_rows > PANEL_ROWS)
            l->unit_rows = l->unit_rows / PANEL_ROWS * PANEL_ROWS;
        l->n_units = (l->t->rows + l->unit_rows - 1) / l->unit_rows;
        l->first_unit = first;
        first += l->n_units;
        atomic_store(&l->bad_row, LOAD_NO_ROW);
        bool makes = false;
        l->decodes = !ld->is_known;
        for (int k = 0; k < l->t->n_parts; k++)
            l->decodes |= converts(ld, l, &l->t->parts[k], &makes);
        if (!ld->is_known)
            l->sums = xcalloc((size_t)l->cut.n_blocks, sizeof *l->sums);
        if (makes)
            l->errors = xcalloc((size_t)l->n_units, sizeof *l->errors);
        ld->bytes_all += (uint64_t)l->t->rows * l->cut.row_bytes;
    }
    ld->n_units = first;
}

void loads_free(struct loader *ld)
{
    for (size_t i = 0; ld->loads != NULL && i < ld->set.list.n; i++) {
        free(ld->loads[i].sums);
        free(ld->loads[i].errors);
    }
    free(ld->loads);
    ld->loads = NULL;
}
