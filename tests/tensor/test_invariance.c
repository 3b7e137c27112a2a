/* test_invariance.c - batch invariance: a row's result has the same bits alone, beside any
 * neighbours, at any place in the batch, in any chunking, and on 1, 2 or 3 threads, with every
 * instruction set. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

static const int heights[] = {1, 2, 5, 6, 7, 12, 13, 17, 64, 200};
#define N_HEIGHTS (sizeof heights / sizeof heights[0])
#define ROWS      200

/* --- rows ----------------------------------------------------------------------------------- */

struct rows_fixture {
    struct mat x, y; /* x: ROWS rows of input */
    float *w, *b;
    struct weight weight;
    struct rope rope;
    struct test_batch batch; /* one sequence of ROWS positions */
};

typedef void row_op(const struct lab *l, struct rows_fixture *f, struct mat out,
                    int64_t row, int64_t n);

static void op_matmul(const struct lab *l, struct rows_fixture *f, struct mat out,
                      int64_t row, int64_t n)
{
    assert_int_equal(
        l->ops->matmul(l->stream, out, mat_rows(f->x, row, n), &f->weight, f->b), 0);
}

static void op_rmsnorm(const struct lab *l, struct rows_fixture *f, struct mat out,
                       int64_t row, int64_t n)
{
    l->ops->rmsnorm(l->stream, out, mat_rows(f->x, row, n), f->w, 1e-5f);
}

static void op_layernorm(const struct lab *l, struct rows_fixture *f, struct mat out,
                         int64_t row, int64_t n)
{
    l->ops->layernorm(l->stream, out, mat_rows(f->x, row, n), f->w, f->b, 1e-5f);
}

static void op_add(const struct lab *l, struct rows_fixture *f, struct mat out, int64_t row,
                   int64_t n)
{
    l->ops->add(l->stream, out, mat_rows(f->x, row, n), mat_rows(f->y, row, n));
}

static void op_act_mul(const struct lab *l, struct rows_fixture *f, struct mat out,
                       int64_t row, int64_t n)
{
    l->ops->act_mul(l->stream, mat_cols(out, 0, out.cols / 2), mat_rows(f->x, row, n),
                    ACTIVATION_SILU);
}

static void op_gelu(const struct lab *l, struct rows_fixture *f, struct mat out,
                    int64_t row, int64_t n)
{
    l->ops->convert(l->stream, out, mat_rows(f->x, row, n));
    l->ops->act(l->stream, out, ACTIVATION_GELU);
}

enum { COLS = 320, D_HEAD = 64 };

static void check_rows(const struct lab *l, struct rows_fixture *f, row_op *op,
                       int64_t cols, struct mat whole)
{
    for (size_t h = 0; h < N_HEIGHTS; h++) {
        int64_t n = heights[h], row = n == ROWS ? 0 : 3;
        struct mat part = mat_alloc(DTYPE_F32, n, cols);
        op(l, f, part, row, n);
        assert_same_bits(part, mat_rows(whole, row, n));
        mat_free(&part);
    }
}

static void check_lab_rows(const struct lab *l, struct mat *first, size_t n_ops,
                           row_op *const *ops, struct rows_fixture *f)
{
    for (size_t o = 0; o < n_ops; o++) {
        int64_t cols = ops[o] == op_matmul ? f->weight.n : COLS;
        struct mat whole = mat_alloc(DTYPE_F32, ROWS, cols);
        ops[o](l, f, whole, 0, ROWS);
        if (first[o].data == NULL) {
            first[o] = whole;
        } else {
            assert_same_bits(whole, first[o]);
            mat_free(&whole);
        }
        check_rows(l, f, ops[o], cols, first[o]);
    }
}

TEST(test_rows)
{
    row_op *const ops[] = {op_matmul, op_rmsnorm, op_layernorm,
                           op_add,    op_act_mul, op_gelu};
    enum { N_OPS = sizeof ops / sizeof ops[0], N = 150 };
    struct mat first[N_OPS] = {{0}};
    struct rows_fixture f = {.x = mat_random(DTYPE_F32, ROWS, COLS, 1),
                             .y = mat_random(DTYPE_F32, ROWS, COLS, 2),
                             .w = random_elems(DTYPE_F32, COLS, 3),
                             .b = random_elems(DTYPE_F32, COLS, 4)};
    void *w = random_elems(DTYPE_BF16, N * COLS, 5);
    for (int i = 0; i < ISA_COUNT; i++)
        for (int threads = 1; threads <= 3; threads++) {
            struct lab l = lab_cpu(isa_names[i], threads);
            if (l.device == NULL)
                continue;
            f.weight = weight_make(&l, DTYPE_BF16, N, COLS, w);
            check_lab_rows(&l, first, N_OPS, ops, &f);
            weight_free(&l, &f.weight);
            lab_close(&l);
        }
    for (size_t o = 0; o < N_OPS; o++)
        mat_free(&first[o]);
    mat_free(&f.x);
    mat_free(&f.y);
    free(f.w);
    free(f.b);
    free(w);
}

/* --- attention ------------------------------------------------------------------------------ */

struct attention_fixture {
    enum dtype dtype;
    int heads, n_kv, d_head, window;
    float cap;
    const float *sinks;
    bool both;        /* rows see those behind them: the sequence is one piece */
    struct mat kv, q; /* [ROWS] rows of the sequence under test */
    struct rope rope;
};

/* Computes the sequence in pieces of `piece` rows.  With `neighbours`, each piece shares its batch
 * with rows of another sequence before and after it.  Unused slots of the cache hold NaN. */
static struct mat attend_in_pieces(const struct lab *l, struct attention_fixture *f,
                                   int piece, bool neighbours)
{
    enum { OTHER = 70 };
    struct cache c = cache_make(l, f->dtype, f->n_kv, f->d_head, 3, 256);
    struct mat out = mat_alloc(DTYPE_F32, ROWS, f->q.cols);
    struct mat side_kv = mat_random(f->dtype, OTHER, f->kv.cols, 77);
    struct test_batch side = batch_make(&c, 1, (int[]){0}, (int[]){OTHER});
    for (int s = 1; s <= 2; s++) {
        side.tables[0] = c.table[s];
        l->ops->kv_fill(l->stream, &c.kv, side_kv, &f->rope, &side.r);
    }
    batch_free(&side);
    for (int p = 0; p < ROWS; p += piece) {
        int n = ROWS - p < piece ? ROWS - p : piece;
        struct test_batch mine = batch_make(&c, 1, &p, &n);
        l->ops->kv_fill(l->stream, &c.kv, mat_rows(f->kv, p, n), &f->rope, &mine.r);
        batch_free(&mine);
        int before = neighbours ? 3 : 0, behind = neighbours ? 1 : 0;
        struct test_batch b = batch_make(&c, 3, (int[]){OTHER - before, p, OTHER - behind},
                                         (int[]){before, n, behind});
        b.tables[0] = c.table[1];
        b.tables[1] = c.table[0];
        struct mat q = mat_random(DTYPE_F32, before + n + behind, f->q.cols, 78);
        struct mat o = mat_alloc(DTYPE_F32, q.rows, q.cols);
        l->ops->convert(l->stream, mat_rows(q, before, n), mat_rows(f->q, p, n));
        l->ops->attention(l->stream, o, q, &c.kv, &b.r,
                          &(struct attention_rule){.scale = 0.2f,
                                                   .window = f->window,
                                                   .sinks = f->sinks,
                                                   .cap = f->cap,
                                                   .both_ways = f->both});
        l->ops->convert(l->stream, mat_rows(out, p, n), mat_rows(o, before, n));
        bool finite;
        l->ops->all_finite(l->stream, o, &finite);
        assert_true(finite);
        mat_free(&q);
        mat_free(&o);
        batch_free(&b);
    }
    mat_free(&side_kv);
    cache_free(l, &c);
    return out;
}

static void check_attention(struct attention_fixture f)
{
    const int pieces[] = {ROWS, 1, 7, 64, 100};
    f.kv = mat_random(f.dtype, ROWS, 2 * f.n_kv * f.d_head, 6);
    f.q = mat_random(DTYPE_F32, ROWS, f.heads * f.d_head, 7);
    f.rope = rope_make(256, f.d_head);
    struct mat first = {0};
    for (int i = 0; i < ISA_COUNT; i++)
        for (int threads = 1; threads <= 3; threads++) {
            struct lab l = lab_cpu(isa_names[i], threads);
            if (l.device == NULL)
                continue;
            for (int p = 0; p < 5; p++) {
                struct mat got = attend_in_pieces(&l, &f, f.both ? ROWS : pieces[p],
                                                  (p + threads) % 2 == 0);
                if (first.data == NULL) {
                    first = got;
                    continue;
                }
                assert_same_bits(got, first);
                mat_free(&got);
            }
            lab_close(&l);
        }
    mat_free(&first);
    mat_free(&f.kv);
    mat_free(&f.q);
    rope_free(&f.rope);
}

TEST(test_attention)
{
    static const float sinks[] = {1.5f, -40, 0, 3, 60, -1};
    static const struct attention_fixture all[] = {
        {.dtype = DTYPE_BF16, 4, 4, 64},
        {.dtype = DTYPE_BF16, 4, 1, 32, .sinks = sinks},
        {.dtype = DTYPE_F32, 6, 2, 8, .cap = 2},
        {.dtype = DTYPE_F16, 2, 1, 48, 33, .cap = 3, .sinks = sinks},
        {.dtype = DTYPE_F16, 2, 2, 128, 70},
        {.dtype = DTYPE_BF16, 3, 1, 64, .both = true},
        {.dtype = DTYPE_F32, 3, 1, 20, 33, .both = true},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        check_attention(all[i]);
}
