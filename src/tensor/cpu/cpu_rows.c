/* cpu_rows.c - the operations that work row by row: checks, and the division of rows among threads.
 */
#include "tensor/cpu/cpu.h"

struct row_job {
    const struct cpu_kernels *k;
    struct mat out, x, y;
    const float *w, *b;
    const int32_t *ids;
    float eps, scale;
    int d_head;
    enum activation act;
    atomic_bool finite;
};

static int run(struct stream *s, struct row_job *job, struct mat over, rows_fn *fn)
{
    int rc = stream_enter(s);
    job->k = cpu_kernels_of(s);
    if (rc == 0 && over.rows > 0)
        rows_run(s, over.rows, over.rows * over.cols, fn, job);
    return rc;
}

static void embed_rows(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->k->scale_row(row_ptr(j->out, i), j->out.dtype, row_ptr(j->x, j->ids[i]),
                        j->x.dtype, j->x.cols, j->scale);
}

static void embed_blocks(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    size_t piece_bytes = Q4_BLOCK * dtype_bytes(j->out.dtype);
    for (int64_t i = begin; i < end; i++) {
        const uint8_t *row = q4_table_row(j->x, j->ids[i]);
        for (int64_t b = 0; b < j->x.cols / Q4_BLOCK; b++) {
            float piece[Q4_BLOCK];
            q4_part_decode(j->x.dtype, row, b, piece);
            j->k->scale_row((char *)row_ptr(j->out, i) + (size_t)b * piece_bytes,
                            j->out.dtype, piece, DTYPE_F32, Q4_BLOCK, j->scale);
        }
    }
}

int cpu_embed(struct stream *s, struct mat out, struct mat table, const int32_t *ids,
              float scale)
{
    check_table(table);
    CHECK(out.cols == table.cols);
    for (int64_t i = 0; i < out.rows; i++)
        CHECK(ids[i] >= 0 && ids[i] < table.rows);
    struct row_job job = {.out = out, .x = table, .ids = ids, .scale = scale};
    return run(s, &job, out, dtype_has_blocks(table.dtype) ? embed_blocks : embed_rows);
}

static void rms_rows(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->k->rms_row(row_ptr(j->out, i), row_ptr(j->x, i), j->x.dtype, j->w, j->x.cols,
                      j->eps);
}

int cpu_rmsnorm(struct stream *s, struct mat out, struct mat x, const float *w, float eps)
{
    check_same_shape(out, x);
    check_f32(out);
    struct row_job job = {.out = out, .x = x, .w = w, .eps = eps};
    return run(s, &job, x, rms_rows);
}

static void layer_rows(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->k->layer_row(row_ptr(j->out, i), row_ptr(j->x, i), j->x.dtype, j->w, j->b,
                        j->x.cols, j->eps);
}

int cpu_layernorm(struct stream *s, struct mat out, struct mat x, const float *w,
                  const float *b, float eps)
{
    check_same_shape(out, x);
    check_f32(out);
    struct row_job job = {.out = out, .x = x, .w = w, .b = b, .eps = eps};
    return run(s, &job, x, layer_rows);
}

static void head_rows(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        float *x = row_ptr(j->x, i);
        for (int64_t h = 0; h < j->x.cols; h += j->d_head)
            j->k->rms_row(x + h, x + h, DTYPE_F32, j->w, j->d_head, j->eps);
    }
}

int cpu_head_norm(struct stream *s, struct mat x, int d_head, const float *w, float eps)
{
    check_f32(x);
    CHECK(x.cols % d_head == 0);
    struct row_job job = {.x = x, .w = w, .eps = eps, .d_head = d_head};
    return run(s, &job, x, head_rows);
}

static void convert_rows(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->k->scale_row(row_ptr(j->out, i), j->out.dtype, row_ptr(j->x, i), j->x.dtype,
                        j->x.cols, 1.0f);
}

int cpu_convert(struct stream *s, struct mat out, struct mat x)
{
    check_same_shape(out, x);
    struct row_job job = {.out = out, .x = x};
    return run(s, &job, x, convert_rows);
}

static void add_rows(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->k->add_row(row_ptr(j->out, i), j->out.dtype, row_ptr(j->x, i), j->x.dtype,
                      row_ptr(j->y, i), j->x.cols);
}

int cpu_add(struct stream *s, struct mat out, struct mat a, struct mat b)
{
    check_same_shape(out, a);
    check_same_shape(out, b);
    check_f32(b);
    struct row_job job = {.out = out, .x = a, .y = b};
    return run(s, &job, a, add_rows);
}

static void act_mul_rows(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        const float *gate = row_ptr(j->x, i);
        j->k->act_row(row_ptr(j->out, i), gate, gate + j->out.cols, j->out.cols, j->act);
    }
}

int cpu_act_mul(struct stream *s, struct mat out, struct mat gate_up, enum activation act)
{
    check_act_mul(out, gate_up);
    struct row_job job = {.out = out, .x = gate_up, .act = act};
    return run(s, &job, gate_up, act_mul_rows);
}

static void act_rows(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        j->k->act_row(row_ptr(j->x, i), row_ptr(j->x, i), NULL, j->x.cols, j->act);
}

int cpu_act(struct stream *s, struct mat x, enum activation act)
{
    check_f32(x);
    struct row_job job = {.x = x, .act = act};
    return run(s, &job, x, act_rows);
}

static void finite_rows(void *arg, int64_t begin, int64_t end)
{
    struct row_job *j = arg;
    for (int64_t i = begin; i < end; i++)
        if (!j->k->finite_row(row_ptr(j->x, i), j->x.dtype, j->x.cols))
            atomic_store(&j->finite, false);
}

int cpu_all_finite(struct stream *s, struct mat x, bool *finite)
{
    check_mat(x);
    struct row_job job = {.x = x, .finite = true};
    int rc = run(s, &job, x, finite_rows);
    *finite = job.finite;
    return rc;
}
