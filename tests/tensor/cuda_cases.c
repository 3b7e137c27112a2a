/* cuda_cases.c - see cuda_cases.h. */
#include "cuda_cases.h"

#include "cuda_rig.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cases.h"
#include "sample_cases.h"
#include "tensor/device.h"

static struct lab ref, exact, fast, fixed;

static int setup(void **state)
{
    ref = lab_ref();
    exact = lab_cuda("exact");
    fast = lab_cuda("fast");
    fixed = lab_cuda("fixed");
    return 0;
}

static int teardown(void **state)
{
    lab_close(&ref);
    lab_close(&exact);
    lab_close(&fast);
    lab_close(&fixed);
    return 0;
}

#define EACH_TYPE(t) for (enum dtype t = DTYPE_F32; t <= DTYPE_BF16; t++)
#define EACH_LANE(l)                                                                       \
    for (const struct lab *l = &exact; l != NULL; l = l == &exact  ? &fast                 \
                                                      : l == &fast ? &fixed                \
                                                                   : NULL)

static struct mat as_type(struct mat x, enum dtype t)
{
    struct mat out = mat_alloc(t, x.rows, x.cols);
    assert_int_equal(ref.ops->convert(ref.stream, out, x), 0);
    return out;
}

/* Returns the bound on the error of rounding an operation's result to t, with some room for its
 * sums. */
static double rounding(enum dtype t)
{
    return t == DTYPE_F32 ? 2e-5 : t == DTYPE_F16 ? 2e-3 : 1.2e-2;
}

/* --- products --------------------------------------------------------------------------------- */

static void check_matmul(const struct lab *l, struct matmul_case mc, enum dtype ta,
                         enum dtype tw, enum dtype tc, bool with_bias)
{
    struct mat a = mat_random(ta, mc.m, mc.k, 1), a32 = as_type(a, DTYPE_F32);
    void *rows = random_elems(tw == DTYPE_Q8 ? DTYPE_F32 : tw, mc.n * mc.k, 2);
    float *bias = random_elems(DTYPE_F32, mc.n, 3);
    struct weight rw = weight_make(&ref, tw, mc.n, mc.k, rows);
    struct weight w = weight_make(l, tw, mc.n, mc.k, rows);
    struct mat want32 = mat_alloc(DTYPE_F32, mc.m, mc.n),
               blank = mat_random(tc, mc.m, mc.n, 99);
    ref.ops->matmul(ref.stream, want32, a32, &rw, with_bias ? bias : NULL);
    struct mat want = as_type(want32, tc);
    struct gmat ga = up_mat(l, a), gc = up_mat(l, blank);
    struct buf gb = up(l, bias, (size_t)mc.n * sizeof *bias);
    assert_int_equal(l->ops->matmul(l->stream, gc.m, ga.m, &w, with_bias ? gb.ptr : NULL),
                     0);
    struct mat got = take(l, &gc);
    if (l == &exact || tw == DTYPE_Q8)
        assert_same_bits(got, want);
    else
        assert_near(got, want, rounding(tc) * 2);
    buf_free(l->device, &ga.mem);
    buf_free(l->device, &gb);
    weight_free(l, &w);
    weight_free(&ref, &rw);
    free(rows);
    free(bias);
    mat_free(&a);
    mat_free(&a32);
    mat_free(&want32);
    mat_free(&want);
    mat_free(&blank);
    mat_free(&got);
}

static void test_matmul(void **state)
{
    for (size_t c = 0; c < N_CASES(matmul_cases); c++) {
        if (matmul_cases[c].bench)
            continue;
        EACH_TYPE(t) EACH_LANE(l)
        {
            check_matmul(l, matmul_cases[c], t, t, t, c % 2 == 0);
            if (t != DTYPE_F32 && c % 3 == 0)
                check_matmul(l, matmul_cases[c], t, t, DTYPE_F32, true);
        }
        if (c % 4 == 0) /* the activations' type differs from the weights' */
            EACH_LANE(l)
        check_matmul(l, matmul_cases[c], DTYPE_F32, DTYPE_BF16, DTYPE_F32, true);
    }
}

/* Few rows, for every width of the kernel that streams the weights. */
static void test_gemv(void **state)
{
    for (int m = 1; m <= 8; m++)
        EACH_TYPE(t)
        {
            check_matmul(&fast, (struct matmul_case){m, 37, 520, false}, t, t, t,
                         m % 2 == 0);
            check_matmul(&fast, (struct matmul_case){m, 16, 8, false}, t, t, DTYPE_F32,
                         true);
            check_matmul(&fast, (struct matmul_case){m, 5, 2320, false}, t, t, DTYPE_F32,
                         false);
        }
}

/* --- 8-bit weights ---------------------------------------------------------------------------- */

/* Every math mode computes 8-bit products in the order of ops.h, to the bit. */
static void test_q8(void **state)
{
    for (size_t c = 0; c < N_CASES(matmul_cases); c++) {
        if (matmul_cases[c].bench)
            continue;
        EACH_TYPE(t)
        {
            check_matmul(&exact, matmul_cases[c], t, DTYPE_Q8, t, c % 2 == 0);
            if (c % 3 == 0)
                check_matmul(&fast, matmul_cases[c], t, DTYPE_Q8, DTYPE_F32, true);
            if (c % 3 == 1)
                check_matmul(&fixed, matmul_cases[c], t, DTYPE_Q8, DTYPE_F32, false);
        }
    }
}

/* The largest sum of integers, blocks of zeros, tiny and huge numbers, infinities and NaN. */
static void test_q8_extremes(void **state)
{
    enum { M = 8, N = 70, K = 600 };
    struct mat a = mat_random(DTYPE_F32, M, K, 1), want = mat_alloc(DTYPE_F32, M, N);
    float *x = a.data, *rows = random_elems(DTYPE_F32, N * K, 2);
    for (int k = 0; k < K; k++) {
        x[0 * K + k] = rows[0 * K + k] = 1; /* the largest possible sum */
        x[1 * K + k] = rows[1 * K + k] = 0;
        x[2 * K + k] *= 1e-38f; /* so small that the block counts as zeros */
        x[3 * K + k] *= 1e-29f; /* just large enough not to count as zeros */
        x[4 * K + k] *= 1e38f;
        rows[2 * K + k] *= 1e-6f; /* the blocks' scales are subnormal in f16 */
        rows[3 * K + k] *= 8e6f;
    }
    x[5 * K + 300] = INFINITY;
    x[6 * K + 599] = NAN;
    struct weight rw = weight_make(&ref, DTYPE_Q8, N, K, rows);
    struct weight w = weight_make(&exact, DTYPE_Q8, N, K, rows);
    ref.ops->matmul(ref.stream, want, a, &rw, NULL);
    struct gmat ga = up_mat(&exact, a), gc = up_mat(&exact, want);
    assert_int_equal(exact.ops->matmul(exact.stream, gc.m, ga.m, &w, NULL), 0);
    struct mat got = take(&exact, &gc);
    for (int64_t i = 0; i < (int64_t)M * N; i++) {
        float g = ((float *)got.data)[i], r = ((float *)want.data)[i];
        if (isnan(r) ? !isnan(g) : memcmp(&g, &r, sizeof g) != 0)
            fail_msg("element %d: %a instead of %a", (int)i, (double)g, (double)r);
    }
    assert_true(isnan(((float *)got.data)[5 * N]) && isnan(((float *)got.data)[6 * N]));
    rows[7] = INFINITY;
    assert_int_equal(exact.ops->weight_pack(exact.stream, &w, 0, rows, 1), -ERANGE);
    buf_free(exact.device, &ga.mem);
    weight_free(&exact, &w);
    weight_free(&ref, &rw);
    free(rows);
    mat_free(&a);
    mat_free(&want);
    mat_free(&got);
}

/* Packing rows in pieces gives the bytes of packing them at once, and unpacks to `ref`'s values. */
static void test_q8_rows(void **state)
{
    enum { N = 45, K = 300, N_IDS = 5 };
    static const int32_t ids[N_IDS] = {0, 44, 16, 15, 16};
    float *rows = random_elems(DTYPE_F32, N * K, 4);
    struct weight rw = weight_make(&ref, DTYPE_Q8, N, K, rows);
    struct weight w = weight_make(&exact, DTYPE_Q8, N, K, rows);
    for (int64_t r = 0, n = 1; r < N; r += n, n = r + 7 < N ? 7 : N - r)
        assert_int_equal(exact.ops->weight_pack(exact.stream, &w, r, rows + r * K, n), 0);
    EACH_TYPE(t)
    {
        struct mat want = mat_alloc(t, N_IDS, K);
        struct gmat go = up_mat(&exact, want);
        assert_int_equal(ref.ops->weight_rows(ref.stream, want, &rw, ids), 0);
        assert_int_equal(exact.ops->weight_rows(exact.stream, go.m, &w, ids), 0);
        struct mat got = take(&exact, &go);
        assert_same_bits(got, want);
        mat_free(&got);
        mat_free(&want);
    }
    weight_free(&exact, &w);
    weight_free(&ref, &rw);
    free(rows);
}

/* --- rows ------------------------------------------------------------------------------------- */

static void check_norms(const struct lab *l, struct rows_case rc, enum dtype tx,
                        enum dtype to)
{
    struct mat x = mat_random(tx, rc.rows, rc.cols, 5),
               blank = mat_random(to, rc.rows, rc.cols, 6);
    float *w = random_elems(DTYPE_F32, rc.cols, 6),
          *b = random_elems(DTYPE_F32, rc.cols, 7);
    struct gmat gx = up_mat(l, x);
    struct buf gw = up(l, w, (size_t)rc.cols * 4), gb = up(l, b, (size_t)rc.cols * 4);
    for (int layer = 0; layer < 2; layer++) {
        struct mat want = mat_alloc(to, rc.rows, rc.cols);
        struct gmat go = up_mat(l, blank);
        if (layer) {
            ref.ops->layernorm(ref.stream, want, x, w, b, 1e-5f);
            l->ops->layernorm(l->stream, go.m, gx.m, gw.ptr, gb.ptr, 1e-5f);
        } else {
            ref.ops->rmsnorm(ref.stream, want, x, w, 1e-5f);
            l->ops->rmsnorm(l->stream, go.m, gx.m, gw.ptr, 1e-5f);
        }
        struct mat got = take(l, &go);
        assert_near(got, want, rounding(to));
        mat_free(&got);
        mat_free(&want);
    }
    buf_free(l->device, &gx.mem);
    buf_free(l->device, &gw);
    buf_free(l->device, &gb);
    free(w);
    free(b);
    mat_free(&x);
    mat_free(&blank);
}

static void check_elements(const struct lab *l, struct rows_case rc, enum dtype from,
                           enum dtype to)
{
    struct mat x = mat_random(from, rc.rows, rc.cols, 8),
               y = mat_random(DTYPE_F32, rc.rows, rc.cols, 9);
    struct mat want = mat_alloc(to, rc.rows, rc.cols),
               blank = mat_random(to, rc.rows, rc.cols, 6);
    struct gmat gx = up_mat(l, x), gy = up_mat(l, y), go = up_mat(l, blank);
    l->ops->convert(l->stream, go.m, gx.m);
    ref.ops->convert(ref.stream, want, x);
    struct mat got = take(l, &go);
    assert_same_bits(got, want);
    mat_free(&got);
    go = up_mat(l, blank);
    l->ops->add(l->stream, go.m, gx.m, gy.m);
    ref.ops->add(ref.stream, want, x, y);
    got = take(l, &go);
    assert_same_bits(got, want);
    mat_free(&got);
    buf_free(l->device, &gx.mem);
    buf_free(l->device, &gy.mem);
    mat_free(&x);
    mat_free(&y);
    mat_free(&want);
    mat_free(&blank);
}

/* The fused addition and norm gives the bits of the two single operations. */
static void check_add_norm(const struct lab *l, struct rows_case rc, enum dtype tx,
                           enum dtype ty, enum dtype to)
{
    struct mat x = mat_random(tx, rc.rows, rc.cols, 5),
               y = mat_random(ty, rc.rows, rc.cols, 9), y32 = as_type(y, DTYPE_F32);
    float *w = random_elems(DTYPE_F32, rc.cols, 6),
          *b = random_elems(DTYPE_F32, rc.cols, 7);
    struct gmat gx = up_mat(l, x), gy = up_mat(l, y);
    struct buf gw = up(l, w, (size_t)rc.cols * 4), gb = up(l, b, (size_t)rc.cols * 4);
    for (int layer = 0; layer < 2; layer++) {
        struct mat want = mat_alloc(to, rc.rows, rc.cols),
                   want_sum = mat_alloc(DTYPE_F32, rc.rows, rc.cols);
        struct gmat go = up_mat(l, want), gs = up_mat(l, want_sum);
        ref.ops->add_norm(ref.stream, want, want_sum, x, y32, w, layer ? b : NULL, 1e-5f);
        assert_int_equal(l->ops->add_norm(l->stream, go.m, gs.m, gx.m, gy.m, gw.ptr,
                                          layer ? gb.ptr : NULL, 1e-5f),
                         0);
        struct mat got = take(l, &go), sum = take(l, &gs);
        assert_near(got, want, rounding(to));
        assert_same_bits(sum, want_sum);
        mat_free(&got);
        mat_free(&sum);
        mat_free(&want);
        mat_free(&want_sum);
    }
    buf_free(l->device, &gx.mem);
    buf_free(l->device, &gy.mem);
    buf_free(l->device, &gw);
    buf_free(l->device, &gb);
    free(w);
    free(b);
    mat_free(&x);
    mat_free(&y);
    mat_free(&y32);
}

static void check_activations(const struct lab *l, struct rows_case rc, enum dtype t)
{
    struct mat gu = mat_random(t, rc.rows, 2 * rc.cols, 13), gu32 = as_type(gu, DTYPE_F32);
    struct mat blank = mat_random(t, rc.rows, rc.cols, 6);
    for (int act = ACTIVATION_SILU; act <= ACTIVATION_GELU_TANH; act++) {
        struct mat want32 = mat_alloc(DTYPE_F32, rc.rows, rc.cols);
        struct gmat gx = up_mat(l, gu), go = up_mat(l, blank);
        ref.ops->act_mul(ref.stream, want32, gu32, (enum activation)act);
        l->ops->act_mul(l->stream, go.m, gx.m, (enum activation)act);
        struct mat want = as_type(want32, t), got = take(l, &go);
        assert_near(got, want, rounding(t));
        mat_free(&got);
        l->ops->act(l->stream, gx.m, (enum activation)act);
        got = take(l, &gx);
        struct mat all32 = as_type(gu, DTYPE_F32);
        ref.ops->act(ref.stream, all32, (enum activation)act);
        assert_near(got, all32, rounding(t));
        mat_free(&all32);
        mat_free(&got);
        mat_free(&want);
        mat_free(&want32);
    }
    mat_free(&gu);
    mat_free(&gu32);
    mat_free(&blank);
}

static void test_rows(void **state)
{
    EACH_LANE(l) for (size_t c = 0; c < N_CASES(rows_cases); c++) EACH_TYPE(t)
    {
        check_norms(l, rows_cases[c], t, t);
        check_norms(l, rows_cases[c], DTYPE_F32, t);
        check_add_norm(l, rows_cases[c], t, DTYPE_F32, t);
        check_add_norm(l, rows_cases[c], t, t, t);
        EACH_TYPE(to) check_elements(l, rows_cases[c], t, to);
        check_activations(l, rows_cases[c], t);
    }
}

static void test_embed(void **state)
{
    const int32_t ids[] = {3, 0, 9, 9};
    EACH_LANE(l) EACH_TYPE(from) EACH_TYPE(to)
    {
        struct mat table = mat_random(from, 10, 37, 10), want = mat_alloc(to, 4, 37);
        struct gmat gt = up_mat(l, table), go = up_mat(l, want);
        struct weight w = weight_make(l, from, 10, 37, table.data);
        ref.ops->embed(ref.stream, want, table, ids, 6.0827f);
        l->ops->embed(l->stream, go.m, gt.m, ids, 6.0827f);
        struct mat got = take(l, &go);
        assert_same_bits(got, want);
        mat_free(&got);
        if (from == to) {
            ref.ops->embed(ref.stream, want, table, ids, 1.0f);
            go = up_mat(l, want);
            l->ops->weight_rows(l->stream, go.m, &w, ids);
            got = take(l, &go);
            assert_same_bits(got, want);
            mat_free(&got);
        }
        weight_free(l, &w);
        buf_free(l->device, &gt.mem);
        mat_free(&table);
        mat_free(&want);
    }
}

static void test_head_norm(void **state)
{
    const int d_heads[] = {8, 20, 64, 128};
    EACH_LANE(l) for (size_t c = 0; c < N_CASES(d_heads); c++) EACH_TYPE(t)
    {
        int d = d_heads[c];
        float *w = random_elems(DTYPE_F32, d, 12);
        struct mat x = mat_random(t, 5, 3 * d, 11), want = as_type(x, DTYPE_F32);
        struct gmat gx = up_mat(l, x);
        struct buf gw = up(l, w, (size_t)d * 4);
        ref.ops->head_norm(ref.stream, want, d, w, 1e-6f);
        l->ops->head_norm(l->stream, gx.m, d, gw.ptr, 1e-6f);
        struct mat got = take(l, &gx);
        assert_near(got, want, rounding(t));
        buf_free(l->device, &gw);
        free(w);
        mat_free(&x);
        mat_free(&want);
        mat_free(&got);
    }
}

static void test_all_finite(void **state)
{
    const float bad[] = {1.0f / 0.0f, -1.0f / 0.0f, 0.0f / 0.0f};
    EACH_LANE(l) EACH_TYPE(t) for (int which = -1; which < 3; which++)
    {
        struct mat x32 = mat_random(DTYPE_F32, 3, 2000, 14);
        if (which >= 0)
            ((float *)x32.data)[4321] = bad[which];
        struct mat x = as_type(x32, t);
        struct gmat gx = up_mat(l, x);
        bool finite = which >= 0;
        assert_int_equal(l->ops->all_finite(l->stream, gx.m, &finite), 0);
        assert_int_equal(finite, which < 0);
        buf_free(l->device, &gx.mem);
        mat_free(&x);
        mat_free(&x32);
    }
}

/* --- positions and the cache ------------------------------------------------------------------ */

static struct rope up_rope(const struct lab *l, const struct rope *r, struct buf *mem)
{
    size_t n = (size_t)r->max_pos * (size_t)(r->d_rot / 2);
    struct rope g = *r;
    float *both = xcalloc(2 * n + 1, sizeof *both);
    memcpy(both, r->cos, n * sizeof *both);
    memcpy(both + n, r->sin, n * sizeof *both);
    *mem = up(l, both, (2 * n + 1) * sizeof *both);
    free(both);
    g.cos = mem->ptr;
    g.sin = g.cos + n;
    return g;
}

static void check_rope_op(const struct lab *l, int d_head, int d_rot, enum dtype t)
{
    struct rope rope = rope_make(300, d_rot);
    struct buf rope_mem;
    struct rope grope = up_rope(l, &rope, &rope_mem);
    struct cache c = cache_make(&ref, DTYPE_F32, 1, 8, 2, 300);
    struct test_batch b = batch_make(&c, 2, (int[]){0, 250}, (int[]){5, 40});
    struct mat x = mat_random(t, 45, 3 * d_head, 15), want32 = as_type(x, DTYPE_F32);
    struct gmat gx = up_mat(l, x);
    ref.ops->rope(ref.stream, want32, d_head, &rope, &b.r);
    l->ops->rope(l->stream, gx.m, d_head, &grope, &b.r);
    struct mat got = take(l, &gx), want = as_type(want32, t);
    assert_same_bits(got, want);
    mat_free(&got);
    mat_free(&want);
    mat_free(&want32);
    mat_free(&x);
    batch_free(&b);
    cache_free(&ref, &c);
    buf_free(l->device, &rope_mem);
    rope_free(&rope);
}

static void test_rope(void **state)
{
    EACH_LANE(l) EACH_TYPE(t)
    {
        check_rope_op(l, 64, 64, t);
        check_rope_op(l, 80, 32, t);
        check_rope_op(l, 20, 6, t);
        check_rope_op(l, 16, 0, t);
    }
}

/* K and V that the device has written are those of ref: written row by row in pieces, with or
 * without rotating queries in the same call, or as packed chunks. */
static void check_kv(const struct lab *l, enum dtype t, int n_kv, int d_head, int d_rot,
                     int piece)
{
    enum { TOKENS = 192 };
    struct rope rope = rope_make(TOKENS, d_rot);
    struct buf rope_mem;
    struct rope grope = up_rope(l, &rope, &rope_mem);
    int width = 2 * n_kv * d_head;
    struct mat rows = mat_random(t, TOKENS, width, 16), want = mat_alloc(t, TOKENS, width);
    struct cache host = cache_make(&ref, t, n_kv, d_head, 1, TOKENS);
    struct test_batch all = batch_make(&host, 1, (int[]){0}, (int[]){TOKENS});
    struct mat q = mat_random(t, TOKENS, width, 17), want_q32 = as_type(q, DTYPE_F32);
    ref.ops->rope_kv_fill(ref.stream, want_q32, &host.kv, rows, &rope, &all.r);
    ref.ops->kv_read(ref.stream, want, &host.kv, &all.r);

    struct gmat grows = up_mat(l, rows), gq = up_mat(l, q);
    enum { FILL, ROPE_FILL, LOAD };
    for (int way = FILL; way <= LOAD; way++) {
        struct cache c = cache_on(l, t, n_kv, d_head, 1, TOKENS);
        for (int p = 0; way != LOAD && p < TOKENS; p += piece) {
            int n = TOKENS - p < piece ? TOKENS - p : piece;
            struct test_batch b = batch_make(&c, 1, &p, &n);
            b.r.id = ragged_new_id();
            struct mat part = mat_rows(grows.m, p, n);
            int rc = way == FILL ? l->ops->kv_fill(l->stream, &c.kv, part, &grope, &b.r)
                                 : l->ops->rope_kv_fill(l->stream, mat_rows(gq.m, p, n),
                                                        &c.kv, part, &grope, &b.r);
            assert_int_equal(rc, 0);
            batch_free(&b);
        }
        size_t chunk_bytes = kv_block_bytes(n_kv, d_head, t);
        uint8_t *chunks = xmalloc(3 * chunk_bytes);
        for (int k = 0; k < 3; k++)
            l->ops->kv_pack(l->stream, chunks + (size_t)k * chunk_bytes,
                            mat_rows(rows, k * 64, 64), n_kv, d_head);
        struct buf staged = up(l, chunks, 3 * chunk_bytes);
        struct kv_chunks all_three = {
            .first = staged.ptr, .stride = chunk_bytes, .blocks = c.table[0], .n = 3};
        if (way == LOAD)
            assert_int_equal(l->ops->kv_load(l->stream, &c.kv, &all_three, &grope), 0);
        struct test_batch back = batch_make(&c, 1, (int[]){0}, (int[]){TOKENS});
        struct gmat out = up_mat(l, want);
        assert_int_equal(l->ops->kv_read(l->stream, out.m, &c.kv, &back.r), 0);
        struct mat got = take(l, &out);
        assert_same_bits(got, want);
        mat_free(&got);
        buf_free(l->device, &staged);
        free(chunks);
        batch_free(&back);
        cache_free(l, &c);
    }
    struct mat got_q = take(l, &gq), want_q = as_type(want_q32, t);
    assert_same_bits(got_q, want_q);
    mat_free(&got_q);
    mat_free(&want_q);
    mat_free(&want_q32);
    mat_free(&q);
    buf_free(l->device, &grows.mem);
    buf_free(l->device, &rope_mem);
    batch_free(&all);
    cache_free(&ref, &host);
    mat_free(&rows);
    mat_free(&want);
    rope_free(&rope);
}

static void test_kv(void **state)
{
    EACH_TYPE(t)
    {
        check_kv(&fast, t, 2, 64, 64, 64);
        check_kv(&fast, t, 1, 128, 128, 192);
        check_kv(&exact, t, 3, 80, 32, 7);
        check_kv(&exact, t, 5, 20, 6, 100);
        check_kv(&fast, t, 2, 32, 0, 50);
    }
}

/* --- attention -------------------------------------------------------------------------------- */

/* Returns the attention of a case: on ref, with the values of q rounded to type t, or on a lab of
 * the GPU. */
static struct mat attention_on(const struct lab *l, const struct attention_case *ac,
                               enum dtype t)
{
    static const struct rope none = {0};
    int start[3], rows[3], zero[3] = {0}, ends[3], max_end = 0, n_rows = 0;
    for (int s = 0; s < ac->n_seqs; s++) {
        start[s] = ac->seq[s].start;
        rows[s] = ac->seq[s].rows;
        ends[s] = start[s] + rows[s];
        max_end = ends[s] > max_end ? ends[s] : max_end;
        n_rows += rows[s];
    }
    struct cache c = l == &ref
                         ? cache_make(&ref, t, ac->n_kv, ac->d_head, ac->n_seqs, max_end)
                         : cache_on(l, t, ac->n_kv, ac->d_head, ac->n_seqs, max_end);
    struct test_batch fill = batch_make(&c, ac->n_seqs, zero, ends);
    struct test_batch b = batch_make(&c, ac->n_seqs, start, rows);
    struct mat kv = mat_random(t, fill.r.n_rows, 2 * ac->n_kv * ac->d_head, 17);
    struct mat q = mat_random(t, n_rows, ac->heads * ac->d_head, 18), out;
    const struct attention_rule rule = {.scale = 1.2f, .window = ac->window};
    if (l == &ref) {
        struct mat q32 = as_type(q, DTYPE_F32);
        out = mat_alloc(DTYPE_F32, n_rows, ac->heads * ac->d_head);
        ref.ops->kv_fill(ref.stream, &c.kv, kv, &none, &fill.r);
        ref.ops->attention(ref.stream, out, q32, &c.kv, &b.r, &rule);
        mat_free(&q32);
    } else {
        struct gmat gkv = up_mat(l, kv), gq = up_mat(l, q), go = up_mat(l, q);
        assert_int_equal(l->ops->kv_fill(l->stream, &c.kv, gkv.m, &none, &fill.r), 0);
        assert_int_equal(l->ops->attention(l->stream, go.m, gq.m, &c.kv, &b.r, &rule), 0);
        out = take(l, &go);
        buf_free(l->device, &gkv.mem);
        buf_free(l->device, &gq.mem);
    }
    mat_free(&q);
    mat_free(&kv);
    batch_free(&b);
    batch_free(&fill);
    cache_free(l, &c);
    return out;
}

/* Cases beside the shared ones: whole and partial tiles at every head size that has a kernel, and a
 * context that is long enough to be split. */
static const struct attention_case more_cases[] = {
    {2, 1, 64, 0, 2, {{0, 130}, {70, 20}}, false}, {2, 2, 96, 0, 1, {{100, 64}}, false},
    {2, 1, 128, 40, 1, {{90, 100}}, false},        {1, 1, 256, 0, 1, {{0, 70}}, false},
    {4, 2, 80, 0, 2, {{0, 9}, {130, 65}}, false},  {2, 1, 64, 0, 1, {{2500, 1}}, false},
    {10, 1, 64, 0, 2, {{1300, 2}, {3, 1}}, false}, {2, 1, 256, 100, 1, {{150, 90}}, false},
    {1, 1, 256, 0, 1, {{0, 200}}, false},
};

static bool in_parts;

/* The i-th case. */
static void check_attention(const struct attention_case *ac, size_t i)
{
    EACH_TYPE(t)
    {
        if (in_parts && (size_t)t % 3 != i % 3)
            continue;
        struct mat want = attention_on(&ref, ac, t);
        EACH_LANE(l)
        {
            struct mat got = attention_on(l, ac, t);
            /* ref rounds q * scale and the weights of bf16 state, too */
            assert_near(got, want, rounding(t) * (t == DTYPE_BF16 ? 2 : 1));
            mat_free(&got);
        }
        mat_free(&want);
    }
}

static void test_attention(void **state)
{
    for (size_t c = 0; c < N_CASES(attention_cases); c++)
        if (!attention_cases[c].bench)
            check_attention(&attention_cases[c], c);
    for (size_t c = 0; c < N_CASES(more_cases); c++)
        check_attention(&more_cases[c], c);
}

/* Attention of position 100 in exact math has the same bits alone, before later rows of its
 * sequence, and beside other sequences. The random queries and keys of the first rows do not depend
 * on how many rows follow. */
static void check_first_row_alone(void)
{
    static const struct attention_case alone = {4, 2, 64, 0, 1, {{100, 1}}, false};
    static const struct attention_case among[] = {
        {4, 2, 64, 0, 1, {{100, 2}}, false},
        {4, 2, 64, 0, 1, {{100, 50}}, false},
        {4, 2, 64, 0, 3, {{100, 1}, {0, 150}, {20, 30}}, false},
        {4, 2, 64, 0, 3, {{100, 1}, {2500, 1}, {63, 1}}, false},
    };
    struct mat want = attention_on(&exact, &alone, DTYPE_BF16);
    for (size_t i = 0; i < N_CASES(among); i++) {
        struct mat got = attention_on(&exact, &among[i], DTYPE_BF16);
        assert_same_bits(mat_rows(got, 0, 1), want);
        mat_free(&got);
    }
    mat_free(&want);
}

/* In exact math a row has the same bits alone and among other rows. */
static void test_exact_is_batch_invariant(void **state)
{
    struct mat a = mat_random(DTYPE_BF16, 150, 264, 1);
    void *rows = random_elems(DTYPE_BF16, 33 * 264, 2);
    struct weight w = weight_make(&exact, DTYPE_BF16, 33, 264, rows);
    struct mat blank = mat_alloc(DTYPE_BF16, 150, 33);
    struct gmat ga = up_mat(&exact, a), all = up_mat(&exact, blank),
                one = up_mat(&exact, blank);
    exact.ops->matmul(exact.stream, all.m, ga.m, &w, NULL);
    for (int i = 0; i < 150; i++)
        exact.ops->matmul(exact.stream, mat_rows(one.m, i, 1), mat_rows(ga.m, i, 1), &w,
                          NULL);
    struct mat x = take(&exact, &all), y = take(&exact, &one);
    assert_same_bits(x, y);
    mat_free(&x);
    mat_free(&y);
    check_first_row_alone();
    buf_free(exact.device, &ga.mem);
    weight_free(&exact, &w);
    free(rows);
    mat_free(&a);
    mat_free(&blank);
}

/* --- sampling --------------------------------------------------------------------------------- */

/* Sums of whole numbers do not depend on the order of addition, so every math mode chooses ref's
 * token. */
static void test_sample(void **state)
{
    for (int v = 0; v < n_sample_vocabs; v++) {
        struct sample_case c = sample_case_make(sample_vocabs[v], (uint64_t)v);
        struct gmat g = up_mat(&fast, c.logits);
        size_t bytes = (size_t)c.logits.rows * sizeof(int32_t);
        int32_t ids[64] = {0};
        struct buf out = up(&fast, ids, bytes);
        assert_true(bytes <= sizeof ids);
        assert_int_equal(fast.ops->sample(fast.stream, out.ptr, g.m, c.rows), 0);
        down(&fast, ids, out.ptr, bytes);
        for (int i = 0; i < c.logits.rows; i++)
            if (ids[i] != c.ids[i])
                fail_msg("row %d of %d logits: %d is not %d", i, sample_vocabs[v], ids[i],
                         c.ids[i]);
        buf_free(fast.device, &out);
        buf_free(fast.device, &g.mem);
        sample_case_free(&c);
    }
}

/* --- checksums -------------------------------------------------------------------------------- */

enum { SUM_RECORDS = 2200 };

/* Checks the checksums of n records with n_bytes[i] bytes, `stride` bytes apart. Only the stream's
 * own order synchronises the operations. */
static void check_sums(const struct lab *l, const uint32_t *n_bytes, int n, size_t stride)
{
    size_t bytes = (size_t)n * stride;
    uint8_t *host = xmalloc(bytes);
    uint64_t want[SUM_RECORDS], got[SUM_RECORDS];
    struct rng r = {stride};
    struct stream *s;
    for (size_t i = 0; i < bytes; i++)
        host[i] = (uint8_t)rng_u64(&r);
    assert_int_equal(stream_create(l->device, STREAM_INLINE, &s, NULL), 0);
    struct buf records = up(l, host, bytes), out = up(l, want, sizeof want);
    assert_int_equal(ref.ops->checksum(ref.stream, want, host, stride, n_bytes, n), 0);
    assert_int_equal(l->ops->checksum(s, out.ptr, records.ptr, stride, n_bytes, n), 0);
    assert_int_equal(stream_sync(s), 0);
    down(l, got, out.ptr, (size_t)n * sizeof *got);
    for (int i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%u bytes, %zu apart: %016llx is not %016llx", n_bytes[i], stride,
                     (unsigned long long)got[i], (unsigned long long)want[i]);
    stream_destroy(s);
    buf_free(l->device, &records);
    buf_free(l->device, &out);
    free(host);
}

/* Every length up to a little more than two pieces of 1024 bytes, and long records whose lengths
 * lie around the ends of the kernel's units of work (cuda/k_checksum.cu). */
static void test_checksum(void **state)
{
    uint32_t n_bytes[SUM_RECORDS];
    struct rng r = {7};
    for (uint32_t i = 0; i <= 2100; i++)
        n_bytes[i] = i;
    check_sums(&fast, n_bytes, 2101, 2112);
    const uint32_t edges[] = {65535, 65536, 65537, 65600, 131072, 131073, 66559, 66624};
    for (size_t stride = 140000 / 16 * 16 + 16; stride < 140100; stride += 48) {
        for (int i = 0; i < 16; i++)
            n_bytes[i] = i < 8 ? edges[i] : (uint32_t)(rng_u64(&r) % 140000);
        check_sums(&fast, n_bytes, 16, stride);
    }
    n_bytes[0] = 1 << 20;
    n_bytes[1] = 524288 + 192;
    check_sums(&fast, n_bytes, 2, 1 << 20);
}

/* --- streams ---------------------------------------------------------------------------------- */

/* Copies and kernels on two streams, ordered by an event. The emulation runs an operation only when
 * it is waited for, so an order that is not requested does not come about. */
static void test_streams(void **state)
{
    struct stream *copy;
    struct event *arrived;
    enum { N = 1000 };
    assert_int_equal(stream_create(fast.device, STREAM_COPY, &copy, NULL), 0);
    assert_int_equal(event_create(fast.device, &arrived, NULL), 0);
    struct mat x = mat_random(DTYPE_F32, 1, N, 1), zero = mat_alloc(DTYPE_F32, 1, N);
    struct mat want = as_type(x, DTYPE_BF16), blank = mat_alloc(DTYPE_BF16, 1, N);
    struct gmat gx = up_mat(&fast, zero), go = up_mat(&fast, blank);
    assert_int_equal(stream_copy(copy, gx.m.data, x.data, N * sizeof(float)), 0);
    assert_int_equal(event_record(copy, arrived), 0);
    assert_int_equal(event_wait(fast.stream, arrived), 0);
    assert_int_equal(fast.ops->convert(fast.stream, go.m, gx.m), 0);
    struct mat got = take(&fast, &go);
    assert_same_bits(got, want);
    assert_int_equal(event_sync(arrived), 0);
    buf_free(fast.device, &gx.mem);
    event_destroy(arrived);
    stream_destroy(copy);
    mat_free(&x);
    mat_free(&zero);
    mat_free(&want);
    mat_free(&blank);
    mat_free(&got);
}

/* More pieces than one call copies, scattered at source and destination, on a copy stream and on a
 * compute stream. */
static void test_copies_together(void **state)
{
    enum { N = 150, PIECE_BYTES = 96, APART = 160, BYTES = N * APART };
    uint8_t *from = random_elems(DTYPE_F32, BYTES / 4, 5), *got = xmalloc(BYTES),
            *want = xcalloc(BYTES, 1);
    struct copy_part parts[N];
    struct buf pinned;
    assert_int_equal(buf_alloc(fast.device, MEM_PINNED, BYTES, &pinned, NULL), 0);
    memcpy(pinned.ptr, from, BYTES);
    for (int kind = STREAM_COMPUTE; kind <= STREAM_COPY; kind += STREAM_COPY) {
        struct stream *s;
        memset(want, 0, BYTES);
        struct buf dev = up(&fast, want, BYTES);
        assert_int_equal(stream_create(fast.device, (enum stream_kind)kind, &s, NULL), 0);
        for (int i = 0; i < N; i++) {
            size_t to = (size_t)i * APART, at = (size_t)(N - 1 - i) * APART + 32;
            parts[i] = (struct copy_part){(uint8_t *)dev.ptr + to,
                                          (uint8_t *)pinned.ptr + at, PIECE_BYTES};
            memcpy(want + to, from + at, PIECE_BYTES);
        }
        assert_int_equal(stream_copy_all(s, parts, N), 0);
        assert_int_equal(stream_sync(s), 0);
        down(&fast, got, dev.ptr, BYTES);
        assert_memory_equal(got, want, BYTES);
        stream_destroy(s);
        buf_free(fast.device, &dev);
    }
    buf_free(fast.device, &pinned);
    free(from);
    free(got);
    free(want);
}

int cuda_cases_run(const char *name, bool part)
{
    in_parts = part;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_gemv),
        cmocka_unit_test(test_q8),
        cmocka_unit_test(test_q8_extremes),
        cmocka_unit_test(test_q8_rows),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_head_norm),
        cmocka_unit_test(test_all_finite),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_kv),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_exact_is_batch_invariant),
        cmocka_unit_test(test_sample),
        cmocka_unit_test(test_checksum),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_copies_together),
    };
    return cmocka_run_group_tests_name(name, tests, setup, teardown);
}
