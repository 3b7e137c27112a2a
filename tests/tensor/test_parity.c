/* test_parity.c - every operation on odd shapes and all types: `ref` against `cpu` with every
 * instruction set.
 *
 * Results are bit-equal to ref if the operation has no exponential, or that of bf16 state, and
 * close to it otherwise.
 * They are always bit-equal to those of the portable kernels. */
#include "rig.h"

#include <stdlib.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "cases.h"
#include "sample_cases.h"
#include "tensor/q4_blocks.h"

/* expf of ref and of the CPU kernels differ by at most 2 ulp. In sums of 300 weights the difference
 * stays below this tolerance. */
#define EXP_TOLERANCE 2e-6

static struct lab ref, cpu[ISA_COUNT];

static int setup(void **state)
{
    ref = lab_ref();
    for (int i = 0; i < ISA_COUNT; i++)
        cpu[i] = lab_cpu(isa_names[i], 2);
    return 0;
}

static int teardown(void **state)
{
    lab_close(&ref);
    for (int i = 0; i < ISA_COUNT; i++)
        lab_close(&cpu[i]);
    return 0;
}

#define EACH_ISA(i)                                                                        \
    for (int i = 0; i < ISA_COUNT; i++)                                                    \
        if (cpu[i].device != NULL)
#define EACH_TYPE(t) for (enum dtype t = DTYPE_F32; t <= DTYPE_BF16; t++)

/* --- weights and matmul --------------------------------------------------------------------- */

static struct mat matmul_on(const struct lab *l, struct mat a, enum dtype t, int64_t n,
                            const void *w_rows, const float *bias)
{
    struct weight w = weight_make(l, t, n, a.cols, w_rows);
    struct mat c = mat_random(DTYPE_F32, a.rows, n, 99);
    assert_int_equal(l->ops->matmul(l->stream, c, a, &w, bias), 0);
    weight_free(l, &w);
    return c;
}

static void check_matmul(struct matmul_case mc, enum dtype t, bool with_bias)
{
    struct mat a = mat_random(DTYPE_F32, mc.m, mc.k, 1);
    void *w = random_elems(t, mc.n * mc.k, 2);
    float *bias = with_bias ? random_elems(DTYPE_F32, mc.n, 3) : NULL;
    struct mat want = matmul_on(&ref, a, t, mc.n, w, bias);
    EACH_ISA(i)
    {
        struct mat got = matmul_on(&cpu[i], a, t, mc.n, w, bias);
        assert_same_bits(got, want);
        mat_free(&got);
    }
    free(bias);
    free(w);
    mat_free(&a);
    mat_free(&want);
}

TEST(test_matmul)
{
    for (size_t c = 0; c < N_CASES(matmul_cases); c++)
        if (!matmul_cases[c].bench)
            EACH_TYPE(t) check_matmul(matmul_cases[c], t, c % 2 == 0);
}

/* Matrices with wide rows, and views with ld > cols: the columns beside the result are not
 * changed. */
TEST(test_matmul_views)
{
    enum { M = 9, N = 21, K = 50 };
    struct mat a = mat_random(DTYPE_F32, M, K + 7, 1),
               c = mat_random(DTYPE_F32, M, N + 5, 2);
    struct mat before = mat_random(DTYPE_F32, M, N + 5, 2);
    void *w_rows = random_elems(DTYPE_BF16, N * K, 3);
    EACH_ISA(i)
    {
        struct weight w = weight_make(&cpu[i], DTYPE_BF16, N, K, w_rows);
        struct mat want = mat_alloc(DTYPE_F32, M, N);
        struct weight rw = weight_make(&ref, DTYPE_BF16, N, K, w_rows);
        assert_int_equal(ref.ops->matmul(ref.stream, want, mat_cols(a, 3, K), &rw, NULL),
                         0);
        assert_int_equal(cpu[i].ops->matmul(cpu[i].stream, mat_cols(c, 2, N),
                                            mat_cols(a, 3, K), &w, NULL),
                         0);
        assert_same_bits(mat_cols(c, 2, N), want);
        assert_same_bits(mat_cols(c, 0, 2), mat_cols(before, 0, 2));
        assert_same_bits(mat_cols(c, N + 2, 3), mat_cols(before, N + 2, 3));
        weight_free(&cpu[i], &w);
        weight_free(&ref, &rw);
        mat_free(&want);
    }
    free(w_rows);
    mat_free(&a);
    mat_free(&c);
    mat_free(&before);
}

/* Packing piece by piece, at any row, gives the same bytes as packing at once.  Unpacked rows are
 * exact. */
TEST(test_weight_pack)
{
    enum { N = 45, K = 300 };
    const int32_t ids[] = {0, 44, 16, 15, 16};
    EACH_TYPE(t)
    {
        void *rows = random_elems(t, N * K, 4);
        size_t row_bytes = K * dtype_bytes(t);
        EACH_ISA(i)
        {
            const struct lab *l = &cpu[i];
            struct weight whole = weight_make(l, t, N, K, rows), parts = whole;
            assert_int_equal(
                buf_alloc(l->device, MEM_DEVICE, whole.mem.bytes, &parts.mem, NULL), 0);
            for (int64_t r = 0, n = 1; r < N; r += n, n = r + 7 < N ? 7 : N - r)
                l->ops->weight_pack(l->stream, &parts, r,
                                    (const char *)rows + (size_t)r * row_bytes, n);
            assert_memory_equal(whole.mem.ptr, parts.mem.ptr, whole.mem.bytes);
            struct mat out = mat_alloc(t, 5, K);
            assert_int_equal(l->ops->weight_rows(l->stream, out, &whole, ids), 0);
            for (int r = 0; r < 5; r++)
                assert_memory_equal((char *)out.data + (size_t)r * row_bytes,
                                    (char *)rows + (size_t)ids[r] * row_bytes, row_bytes);
            mat_free(&out);
            weight_free(l, &whole);
            weight_free(l, &parts);
        }
        free(rows);
    }
}

/* --- rows ----------------------------------------------------------------------------------- */

static void check_norms(struct rows_case rc, enum dtype t)
{
    struct mat x = mat_random(t, rc.rows, rc.cols, 5);
    float *w = random_elems(DTYPE_F32, rc.cols, 6),
          *b = random_elems(DTYPE_F32, rc.cols, 7);
    struct mat want = mat_alloc(DTYPE_F32, rc.rows, rc.cols);
    struct mat got = mat_alloc(DTYPE_F32, rc.rows, rc.cols);
    EACH_ISA(i)
    {
        ref.ops->rmsnorm(ref.stream, want, x, w, 1e-5f);
        cpu[i].ops->rmsnorm(cpu[i].stream, got, x, w, 1e-5f);
        assert_same_bits(got, want);
        ref.ops->layernorm(ref.stream, want, x, w, b, 1e-5f);
        cpu[i].ops->layernorm(cpu[i].stream, got, x, w, b, 1e-5f);
        assert_same_bits(got, want);
    }
    free(w);
    free(b);
    mat_free(&x);
    mat_free(&want);
    mat_free(&got);
}

static void check_convert_and_add(struct rows_case rc, enum dtype from, enum dtype to)
{
    struct mat x = mat_random(from, rc.rows, rc.cols, 8);
    struct mat y = mat_random(DTYPE_F32, rc.rows, rc.cols, 9);
    struct mat want = mat_alloc(to, rc.rows, rc.cols),
               got = mat_alloc(to, rc.rows, rc.cols);
    EACH_ISA(i)
    {
        ref.ops->convert(ref.stream, want, x);
        cpu[i].ops->convert(cpu[i].stream, got, x);
        assert_same_bits(got, want);
        ref.ops->add(ref.stream, want, x, y);
        cpu[i].ops->add(cpu[i].stream, got, x, y);
        assert_same_bits(got, want);
    }
    mat_free(&x);
    mat_free(&y);
    mat_free(&want);
    mat_free(&got);
}

TEST(test_rows)
{
    for (size_t c = 0; c < N_CASES(rows_cases); c++)
        EACH_TYPE(t)
        {
            check_norms(rows_cases[c], t);
            EACH_TYPE(to) check_convert_and_add(rows_cases[c], t, to);
        }
}

/* Rounding of every kind of value: all bf16 and f16 patterns, their midpoints, NaN and infinity. */
TEST(test_convert_all_values)
{
    enum { N = 65536 * 2 };
    struct mat x = mat_alloc(DTYPE_F32, 2, N);
    float *f = x.data;
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t bits[2] = {h << 16, h << 16 | 0x8000};
        memcpy(f + 2 * h, bits, sizeof bits);
        f[N + 2 * h] = f16_to_f32((uint16_t)h);
        memcpy(bits, f + N + 2 * h, 4);
        bits[0] += 0x1000;
        memcpy(f + N + 2 * h + 1, bits, 4);
    }
    EACH_TYPE(t)
    {
        struct mat want = mat_alloc(t, 2, N), got = mat_alloc(t, 2, N);
        struct mat want32 = mat_alloc(DTYPE_F32, 2, N), got32 = mat_alloc(DTYPE_F32, 2, N);
        ref.ops->convert(ref.stream, want, x);
        ref.ops->convert(ref.stream, want32, want);
        EACH_ISA(i)
        {
            if (t == DTYPE_F32 && i == 0)
                /* a signalling NaN times 1 becomes quiet in some kernels, which is allowed */
                continue;
            cpu[i].ops->convert(cpu[i].stream, got, x);
            if (t != DTYPE_F32)
                assert_same_bits(got, want);
            cpu[i].ops->convert(cpu[i].stream, got32, want);
            if (t != DTYPE_F32)
                assert_same_bits(got32, want32);
        }
        mat_free(&want);
        mat_free(&got);
        mat_free(&want32);
        mat_free(&got32);
    }
    mat_free(&x);
}

TEST(test_embed)
{
    const int32_t ids[] = {3, 0, 9, 9};
    EACH_TYPE(from) EACH_TYPE(to)
    {
        struct mat table = mat_random(from, 10, 37, 10);
        struct mat want = mat_alloc(to, 4, 37), got = mat_alloc(to, 4, 37);
        EACH_ISA(i)
        {
            ref.ops->embed(ref.stream, want, table, ids, 6.0827f);
            cpu[i].ops->embed(cpu[i].stream, got, table, ids, 6.0827f);
            assert_same_bits(got, want);
        }
        mat_free(&table);
        mat_free(&want);
        mat_free(&got);
    }
}

/* A table of blocks gives the rows of its values, rounded once. */
TEST(test_embed_blocks)
{
    enum { ROWS = 11, COLS = 512 };
    const int32_t ids[] = {3, 0, 10, 9, 9};
    for (enum dtype from = DTYPE_Q4_0; from <= DTYPE_IQ4_XS; from++)
        EACH_TYPE(to)
        {
            uint8_t *rows = random_q4(from, ROWS, COLS, 10);
            struct mat table = mat_of(rows, from, ROWS, COLS);
            struct mat values = mat_alloc(DTYPE_F32, ROWS, COLS);
            struct mat plain = mat_alloc(to, 5, COLS), want = mat_alloc(to, 5, COLS),
                       got = mat_alloc(to, 5, COLS);
            for (int64_t i = 0; i < ROWS; i++)
                for (int64_t b = 0; b < COLS / Q4_BLOCK; b++)
                    q4_part_decode(from, rows + (size_t)i * q4_row_bytes(from, COLS), b,
                                   (float *)values.data + i * COLS + b * Q4_BLOCK);
            ref.ops->embed(ref.stream, plain, values, ids, 6.0827f);
            ref.ops->embed(ref.stream, want, table, ids, 6.0827f);
            assert_same_bits(want, plain);
            EACH_ISA(i)
            {
                cpu[i].ops->embed(cpu[i].stream, got, table, ids, 6.0827f);
                assert_same_bits(got, want);
            }
            mat_free(&values);
            mat_free(&plain);
            mat_free(&want);
            mat_free(&got);
            free(rows);
        }
}

TEST(test_head_norm)
{
    const int d_heads[] = {8, 20, 64, 128};
    for (size_t c = 0; c < N_CASES(d_heads); c++) {
        int d = d_heads[c];
        float *w = random_elems(DTYPE_F32, d, 12);
        EACH_ISA(i)
        {
            struct mat want = mat_random(DTYPE_F32, 5, 3 * d, 11);
            struct mat got = mat_random(DTYPE_F32, 5, 3 * d, 11);
            ref.ops->head_norm(ref.stream, want, d, w, 1e-6f);
            cpu[i].ops->head_norm(cpu[i].stream, got, d, w, 1e-6f);
            assert_same_bits(got, want);
            mat_free(&want);
            mat_free(&got);
        }
        free(w);
    }
}

static void scale_up(struct mat x, float by)
{
    for (int64_t i = 0; i < x.rows * x.cols; i++)
        ((float *)x.data)[i] *= by;
}

static void check_activation(struct rows_case rc, enum activation act, double tolerance)
{
    struct mat gu = mat_random(DTYPE_F32, rc.rows, 2 * rc.cols, 13);
    scale_up(gu, 12); /* from saturated to nearly linear */
    struct mat want = mat_alloc(DTYPE_F32, rc.rows, rc.cols), base = want, got;
    base = mat_alloc(DTYPE_F32, rc.rows, rc.cols);
    got = mat_alloc(DTYPE_F32, rc.rows, rc.cols);
    ref.ops->act_mul(ref.stream, want, gu, act);
    cpu[0].ops->act_mul(cpu[0].stream, base, gu, act);
    EACH_ISA(i)
    {
        cpu[i].ops->act_mul(cpu[i].stream, got, gu, act);
        assert_near(got, want, tolerance);
        assert_same_bits(got, base);
        if (act == ACTIVATION_SWIGLU_CLAMPED)
            continue; /* it needs both halves */
        struct mat x = mat_alloc(DTYPE_F32, rc.rows, 2 * rc.cols), y = x;
        y = mat_alloc(DTYPE_F32, rc.rows, 2 * rc.cols);
        memcpy(x.data, gu.data, (size_t)(rc.rows * rc.cols * 2) * sizeof(float));
        memcpy(y.data, gu.data, (size_t)(rc.rows * rc.cols * 2) * sizeof(float));
        cpu[i].ops->act(cpu[i].stream, x, act);
        ref.ops->act(ref.stream, y, act);
        assert_near(x, y, tolerance);
        mat_free(&x);
        mat_free(&y);
    }
    mat_free(&gu);
    mat_free(&want);
    mat_free(&base);
    mat_free(&got);
}

TEST(test_activations)
{
    for (size_t c = 0; c < N_CASES(rows_cases); c++) {
        /* act(x) is within 4e-7 of ref's, and is multiplied by the other factor, which is up to 12.
         * The reference's own 1 + erf and 1 + tanh lose as much accuracy where the two terms
         * cancel. */
        check_activation(rows_cases[c], ACTIVATION_SILU, 2e-6);
        check_activation(rows_cases[c], ACTIVATION_RELU, 0);
        check_activation(rows_cases[c], ACTIVATION_GELU, 5e-6);
        check_activation(rows_cases[c], ACTIVATION_GELU_TANH, 5e-6);
        check_activation(rows_cases[c], ACTIVATION_TANH, 2e-6);
        check_activation(rows_cases[c], ACTIVATION_SWIGLU_CLAMPED, 5e-6);
        check_activation(rows_cases[c], ACTIVATION_SIGMOID, 2e-6);
        check_activation(rows_cases[c], ACTIVATION_NONE, 0);
    }
}

/* --- recurrent layers ------------------------------------------------------------------------- */

enum { DELTA_ROWS = 70 };

/* Runs two sequences through a recurrent layer: one of all rows, whose state is the second, in two
 * runs of which the first has `cut` rows, and one of three rows. */
static void run_delta(const struct lab *l, const struct delta_rule *d, int cut,
                      struct mat out, uint8_t *states)
{
    const int32_t at[] = {1, 0};
    size_t bytes = delta_state_bytes(d);
    struct kv_layer kv = {.blocks = states, .block_stride = bytes};
    struct mat in = mat_random(DTYPE_F32, DELTA_ROWS + 3, delta_in_cols(d), 5);
    int32_t pos[DELTA_ROWS + 3];
    memset(states, 0x7f, 2 * bytes);
    for (int i = 0; i < DELTA_ROWS + 3; i++)
        pos[i] = i < DELTA_ROWS ? i : i - DELTA_ROWS;
    for (int from = 0, n = cut; from < DELTA_ROWS; from += n, n = DELTA_ROWS - from) {
        bool is_last = from + n == DELTA_ROWS; /* the other sequence is in the last run */
        int32_t seq_row[] = {0, n, n + 3};
        struct ragged r = {.n_rows = is_last ? n + 3 : n,
                           .n_seqs = is_last ? 2 : 1,
                           .pos = pos + from,
                           .seq_row = seq_row,
                           .states = at};
        struct mat to = out.data != NULL ? mat_rows(out, from, r.n_rows) : out;
        /* without results no q is read but those that the convolution keeps */
        for (int i = from; out.data == NULL && i < from + n - (d->n_conv - 1); i++)
            for (int c = 0; c < d->n_k * d->d_k; c++)
                ((float *)in.data)[i * in.ld + delta_gates_cols(d) + c] = NAN;
        assert_int_equal(
            l->ops->delta_net(l->stream, to, mat_rows(in, from, r.n_rows), d, &kv, &r), 0);
    }
    mat_free(&in);
}

/* Takes the sequence of run_delta through in steps of one row and some rows ahead, some of them
 * right. Its results and its state at the end are those of run_delta. */
static void check_ahead(const struct lab *l, const struct delta_rule *d, uint64_t seed,
                        struct mat want, const uint8_t *want_states)
{
    size_t bytes = delta_state_bytes(d);
    int64_t cols = delta_in_cols(d);
    struct mat all = mat_random(DTYPE_F32, DELTA_ROWS, cols, 5);
    struct mat in = mat_alloc(DTYPE_F32, 1 + DELTA_AHEAD, cols);
    struct mat out = mat_alloc(DTYPE_F32, in.rows, want.cols);
    uint8_t *state = xcalloc(1, delta_room_bytes(d));
    struct kv_layer kv = {.blocks = state, .block_stride = delta_room_bytes(d)};
    int32_t pos[DELTA_ROWS + 1 + DELTA_AHEAD];
    struct rng rng = {seed};
    for (int i = 0; i < DELTA_ROWS + 1 + DELTA_AHEAD; i++)
        pos[i] = i;
    for (int from = 0, right; from < DELTA_ROWS; from += 1 + right) {
        int32_t ahead = (int32_t)rng_below(&rng, DELTA_AHEAD + 1),
                seq_row[] = {0, 1 + ahead};
        right = (int)rng_below(&rng, (uint64_t)ahead + 1);
        right = MIN(right, DELTA_ROWS - from - 1);
        for (int64_t i = 0; i < in.rows * cols; i++)
            ((float *)in.data)[i] = 0.25F;
        memcpy(in.data, mat_rows(all, from, 1 + right).data,
               (size_t)((1 + right) * cols) * sizeof(float));
        struct ragged r = {.n_rows = 1 + ahead,
                           .n_seqs = 1,
                           .pos = pos + from,
                           .seq_row = seq_row,
                           .ahead = &ahead};
        assert_int_equal(l->ops->delta_net(l->stream, mat_rows(out, 0, 1 + ahead),
                                           mat_rows(in, 0, 1 + ahead), d, &kv, &r),
                         0);
        assert_same_bits(mat_rows(out, 0, 1 + right), mat_rows(want, from, 1 + right));
    }
    int left = DELTA_ROWS - (int)*delta_n_seen(state); /* right ones of the last step */
    int32_t seq_row[] = {0, left};
    struct ragged r = {
        .n_rows = left, .n_seqs = 1, .pos = pos + DELTA_ROWS - left, .seq_row = seq_row};
    struct mat kept = mat_of(delta_kept(d, state), DTYPE_F32, left, cols);
    if (left > 0)
        assert_int_equal(
            l->ops->delta_net(l->stream, (struct mat){.data = NULL}, kept, d, &kv, &r), 0);
    assert_int_equal(*delta_n_seen(state), DELTA_ROWS);
    assert_memory_equal(state + DELTA_HEADER, want_states + bytes + DELTA_HEADER,
                        bytes - DELTA_HEADER);
    mat_free(&all);
    mat_free(&in);
    mat_free(&out);
    free(state);
}

/* Bits do not depend on the instruction set, the threads and the cut; without results only the
 * states advance, to the same bits. */
TEST(test_delta_net)
{
    static const struct delta_rule cases[] = {
        {.n_k = 1, .n_v = 1, .d_k = 16, .d_v = 16, .n_conv = 4},
        {.n_k = 2, .n_v = 6, .d_k = 32, .d_v = 48, .n_conv = 2},
        {.n_k = 3, .n_v = 6, .d_k = 128, .d_v = 64, .n_conv = 4},
        {.n_k = 2, .n_v = 6, .tiled = true, .d_k = 32, .d_v = 48, .n_conv = 4},
        {.kind = DELTA_SHORT_CONV, .n_k = 5, .n_v = 5, .d_v = 16, .n_conv = 3},
        {.kind = DELTA_SHORT_CONV, .n_k = 2, .n_v = 2, .d_v = 64, .n_conv = 2},
        {.kind = DELTA_MAMBA2, .n_k = 1, .n_v = 20, .d_k = 16, .d_v = 16, .n_conv = 4},
        {.kind = DELTA_MAMBA2, .n_k = 2, .n_v = 6, .d_k = 128, .d_v = 48, .n_conv = 3}};
    static const int cuts[] = {1, 3, 40};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct delta_rule d = cases[c];
        size_t bytes = 2 * delta_state_bytes(&d);
        float *conv = random_elems(DTYPE_F32, delta_channels(&d) * d.n_conv, 1);
        float *rate = random_elems(DTYPE_F32, d.n_v, 2),
              *dt = random_elems(DTYPE_F32, d.n_v, 3);
        for (int i = 0; i < d.n_v; i++)
            rate[i] = 3 * rate[i] - 3;
        d.conv = conv;
        d.a_log = rate;
        d.dt_bias = dt;
        float *bias = random_elems(DTYPE_F32, delta_channels(&d), 4),
              *skip = random_elems(DTYPE_F32, d.n_v, 6);
        if (d.kind == DELTA_MAMBA2) {
            d.conv_bias = bias;
            d.skip = skip;
        }
        struct mat want = mat_alloc(DTYPE_F32, DELTA_ROWS + 3, (int64_t)d.n_v * d.d_v);
        struct mat base = mat_alloc(DTYPE_F32, want.rows, want.cols), got = base;
        got = mat_alloc(DTYPE_F32, want.rows, want.cols);
        uint8_t *of_base = xmalloc(bytes), *states = xmalloc(bytes);
        run_delta(&ref, &d, DELTA_ROWS, want, states);
        run_delta(&cpu[0], &d, DELTA_ROWS, base, of_base);
        assert_near(base, want, 2e-5);
        for (int k = 0; k < 3; k++) {
            run_delta(&ref, &d, cuts[k], got, states);
            assert_same_bits(got, want);
            check_ahead(&ref, &d, (uint64_t)k, want, states);
            EACH_ISA(i)
            {
                run_delta(&cpu[i], &d, cuts[k], got, states);
                assert_same_bits(got, base);
                assert_memory_equal(states, of_base, bytes);
                check_ahead(&cpu[i], &d, (uint64_t)k, base, of_base);
            }
        }
        run_delta(&cpu[0], &d, 7, (struct mat){.data = NULL}, states);
        assert_memory_equal(states, of_base, bytes);
        mat_free(&want);
        mat_free(&base);
        mat_free(&got);
        free(of_base);
        free(states);
        free(conv);
        free(rate);
        free(dt);
        free(bias);
        free(skip);
    }
}

TEST(test_all_finite)
{
    EACH_TYPE(t) EACH_ISA(i)
    {
        struct mat x = mat_random(t, 3, 37, 14);
        bool finite = false;
        assert_int_equal(cpu[i].ops->all_finite(cpu[i].stream, x, &finite), 0);
        assert_true(finite);
        struct mat inf = mat_alloc(t, 1, 2);
        float values[2] = {1.0f / 0.0f, -(0.0f / 0.0f)};
        ref.ops->convert(ref.stream, inf, mat_of(values, DTYPE_F32, 1, 2));
        for (int which = 0; which < 2; which++) {
            size_t e = dtype_bytes(t);
            memcpy((char *)x.data + 110 * e, (char *)inf.data + (size_t)which * e, e);
            assert_int_equal(cpu[i].ops->all_finite(cpu[i].stream, x, &finite), 0);
            assert_false(finite);
            ref.ops->all_finite(ref.stream, x, &finite);
            assert_false(finite);
        }
        mat_free(&inf);
        mat_free(&x);
    }
}

/* --- positions, cache, attention ------------------------------------------------------------ */

static void check_rope_op(int d_head, int d_rot)
{
    struct rope rope = rope_make(300, d_rot);
    struct cache c = cache_make(&ref, DTYPE_F32, 1, 8, 2, 300);
    struct test_batch b = batch_make(&c, 2, (int[]){0, 250}, (int[]){5, 40});
    EACH_ISA(i)
    {
        struct mat want = mat_random(DTYPE_F32, 45, 3 * d_head, 15);
        struct mat got = mat_random(DTYPE_F32, 45, 3 * d_head, 15);
        ref.ops->rope(ref.stream, want, d_head, &rope, &b.r);
        cpu[i].ops->rope(cpu[i].stream, got, d_head, &rope, &b.r);
        assert_same_bits(got, want);
        mat_free(&want);
        mat_free(&got);
    }
    batch_free(&b);
    cache_free(&ref, &c);
    rope_free(&rope);
}

TEST(test_rope)
{
    check_rope_op(64, 64);
    check_rope_op(8, 8);
    check_rope_op(80, 32);
    check_rope_op(128, 128);
    check_rope_op(20, 6);
    check_rope_op(16, 0);
}

/* After kv_fill the whole cache has the bits of ref's, including slots with NaN, for any piece
 * size. */
static void check_kv_fill(enum dtype t, int n_kv, int d_head, int d_rot, int piece)
{
    enum { TOKENS = 200 };
    struct rope rope = rope_make(TOKENS, d_rot);
    struct mat rows = mat_random(t, TOKENS, 2 * n_kv * d_head, 16);
    struct cache want = cache_make(&ref, t, n_kv, d_head, 1, 256);
    struct test_batch all = batch_make(&want, 1, (int[]){0}, (int[]){TOKENS});
    ref.ops->kv_fill(ref.stream, &want.kv, rows, &rope, &all.r);
    EACH_ISA(i)
    {
        struct cache got = cache_make(&cpu[i], t, n_kv, d_head, 1, 256);
        for (int p = 0; p < TOKENS; p += piece) {
            int n = TOKENS - p < piece ? TOKENS - p : piece;
            struct test_batch b = batch_make(&got, 1, &p, &n);
            cpu[i].ops->kv_fill(cpu[i].stream, &got.kv, mat_rows(rows, p, n), &rope, &b.r);
            batch_free(&b);
        }
        assert_memory_equal(got.mem.ptr, want.mem.ptr, want.mem.bytes);
        struct mat back = mat_alloc(t, TOKENS, 2 * n_kv * d_head);
        struct mat ref_back = mat_alloc(t, TOKENS, 2 * n_kv * d_head);
        cpu[i].ops->kv_read(cpu[i].stream, back, &got.kv, &all.r);
        ref.ops->kv_read(ref.stream, ref_back, &want.kv, &all.r);
        assert_same_bits(back, ref_back);
        struct mat v = mat_cols(back, n_kv * d_head, n_kv * d_head);
        assert_same_bits(v, mat_cols(rows, n_kv * d_head, n_kv * d_head));
        mat_free(&back);
        mat_free(&ref_back);
        cache_free(&cpu[i], &got);
    }
    batch_free(&all);
    cache_free(&ref, &want);
    mat_free(&rows);
    rope_free(&rope);
}

/* A chunk in the layout of a block, made by kv_fill without rotation, is loaded with the same bits
 * as its single rows. Tested on ref and with every instruction set. */
static void check_kv_load(enum dtype t, int n_kv, int d_head, int d_rot)
{
    enum { TOKENS = 192 };
    struct rope rope = rope_make(TOKENS, d_rot), none = {.max_pos = TOKENS};
    struct mat rows = mat_random(t, TOKENS, 2 * n_kv * d_head, 17);
    struct cache want = cache_make(&ref, t, n_kv, d_head, 1, TOKENS);
    struct cache chunks = cache_make(&ref, t, n_kv, d_head, 1, TOKENS);
    struct test_batch all = batch_make(&want, 1, (int[]){0}, (int[]){TOKENS});
    struct test_batch packed = batch_make(&chunks, 1, (int[]){0}, (int[]){TOKENS});
    ref.ops->kv_fill(ref.stream, &want.kv, rows, &rope, &all.r);
    ref.ops->kv_fill(ref.stream, &chunks.kv, rows, &none, &packed.r);
    for (int i = -1; i < ISA_COUNT; i++) {
        const struct lab *l = i < 0 ? &ref : &cpu[i];
        if (l->device == NULL)
            continue;
        struct cache got = cache_make(l, t, n_kv, d_head, 1, TOKENS);
        for (int c = 0; c < TOKENS / KV_BLOCK_TOKENS; c++) {
            const uint8_t *chunk = chunks.kv.blocks +
                                   (size_t)packed.r.tables[0][c] * chunks.kv.block_stride;
            struct kv_chunks one = {.first = chunk,
                                    .blocks = &all.r.tables[0][c],
                                    .n = 1,
                                    .pos0 = c * KV_BLOCK_TOKENS};
            l->ops->kv_load(l->stream, &got.kv, &one, &rope);
        }
        assert_memory_equal(got.mem.ptr, want.mem.ptr, want.mem.bytes);
        /* One call loads all chunks, which lie in reverse order in the source. */
        memset(got.mem.ptr, 0xff, got.mem.bytes);
        uint8_t *rest = xmalloc(TOKENS / KV_BLOCK_TOKENS * chunks.kv.block_stride);
        for (int c = 0; c < TOKENS / KV_BLOCK_TOKENS; c++)
            memcpy(rest + (size_t)c * chunks.kv.block_stride,
                   chunks.kv.blocks +
                       (size_t)packed.r.tables[0][c] * chunks.kv.block_stride,
                   chunks.kv.block_stride);
        struct kv_chunks several = {.first = rest,
                                    .stride = chunks.kv.block_stride,
                                    .blocks = all.r.tables[0],
                                    .n = TOKENS / KV_BLOCK_TOKENS};
        l->ops->kv_load(l->stream, &got.kv, &several, &rope);
        free(rest);
        assert_memory_equal(got.mem.ptr, want.mem.ptr, want.mem.bytes);
        cache_free(l, &got);
    }
    batch_free(&all);
    batch_free(&packed);
    cache_free(&ref, &want);
    cache_free(&ref, &chunks);
    mat_free(&rows);
    rope_free(&rope);
}

/* Rows and chunks of K alone, which is V, too, fill a block as rows do that have it twice. */
static void check_kv_of_one(enum dtype t, int n_kv, int d_head, int d_rot)
{
    enum { TOKENS = 150, FIRST = 64, LAST = 128 };
    struct rope rope = rope_make(192, d_rot);
    struct mat one = mat_random(t, TOKENS, n_kv * d_head, 18);
    struct mat two = mat_alloc(t, TOKENS, 2 * one.cols);
    for (int i = 0; i < TOKENS; i++)
        for (int k = 0; k < 2; k++)
            memcpy((char *)two.data + (size_t)((2 * i + k) * one.cols) * dtype_bytes(t),
                   (const char *)one.data + (size_t)(i * one.cols) * dtype_bytes(t),
                   (size_t)one.cols * dtype_bytes(t));
    struct cache want = cache_make(&ref, t, n_kv, d_head, 1, 192);
    struct test_batch all = batch_make(&want, 1, (int[]){0}, (int[]){TOKENS});
    ref.ops->kv_fill(ref.stream, &want.kv, two, &rope, &all.r);
    void *chunk = xmalloc((size_t)(64 * one.cols) * dtype_bytes(t));
    for (int i = -1; i < ISA_COUNT; i++) {
        const struct lab *l = i < 0 ? &ref : &cpu[i];
        if (l->device == NULL)
            continue;
        struct cache got = cache_make(l, t, n_kv, d_head, 1, 192);
        l->ops->kv_fill(l->stream, &got.kv, one, &rope, &all.r);
        assert_memory_equal(got.mem.ptr, want.mem.ptr, want.mem.bytes);
        size_t at = (size_t)all.r.tables[0][FIRST / 64] * got.kv.block_stride;
        memset(got.kv.blocks + at, 0xff, kv_block_bytes(n_kv, d_head, t));
        l->ops->kv_pack(l->stream, chunk, mat_rows(one, FIRST, LAST - FIRST), n_kv, d_head);
        struct kv_chunks c = {.first = chunk,
                              .v_is_k = true,
                              .blocks = &all.r.tables[0][FIRST / 64],
                              .n = 1,
                              .pos0 = FIRST};
        l->ops->kv_load(l->stream, &got.kv, &c, &rope);
        assert_memory_equal(got.mem.ptr, want.mem.ptr, want.mem.bytes);
        cache_free(l, &got);
    }
    free(chunk);
    batch_free(&all);
    cache_free(&ref, &want);
    mat_free(&one);
    mat_free(&two);
    rope_free(&rope);
}

TEST(test_kv_of_one)
{
    EACH_TYPE(t)
    {
        check_kv_of_one(t, 1, 576, 64);
        check_kv_of_one(t, 3, 20, 6);
    }
}

TEST(test_kv_load)
{
    EACH_TYPE(t)
    {
        check_kv_load(t, 2, 64, 64);
        check_kv_load(t, 1, 128, 128);
        check_kv_load(t, 3, 80, 32);
        check_kv_load(t, 5, 20, 6);
        check_kv_load(t, 2, 32, 0);
        check_kv_load(t, 4, 8, 8);
    }
}

TEST(test_kv_fill)
{
    const int pieces[] = {1, 7, 64, 100, 200};
    EACH_TYPE(t)
    {
        for (size_t p = 0; p < N_CASES(pieces); p++)
            check_kv_fill(t, 2, 64, 64, pieces[p]);
        check_kv_fill(t, 4, 8, 8, 30);
        check_kv_fill(t, 1, 128, 128, 200);
        check_kv_fill(t, 3, 80, 32, 90);
        check_kv_fill(t, 5, 20, 6, 200);
        check_kv_fill(t, 2, 32, 0, 200);
    }
}

/* Scores of keys without a value, from none to larger than all scores. */
static const float some_sinks[64] = {0, 1, -90, 300, 2.5f, -3, 12, -INFINITY, 0.5f};

/* size: a factor of K and V of bf16. */
static struct mat attention_on(const struct lab *l, const struct attention_case *ac,
                               enum dtype t, float size, float cap, const float *sinks,
                               bool both)
{
    const struct attention_rule rule = {0.3f, cap, ac->window, sinks, both};
    static const struct rope none = {0};
    int start[3], rows[3], zero[3] = {0}, ends[3], max_end = 0, n_rows = 0;
    for (int s = 0; s < ac->n_seqs; s++) {
        start[s] = ac->seq[s].start;
        rows[s] = ac->seq[s].rows;
        ends[s] = start[s] + rows[s];
        max_end = ends[s] > max_end ? ends[s] : max_end;
        n_rows += rows[s];
    }
    struct cache c = cache_make(l, t, ac->n_kv, ac->d_head, ac->n_seqs, max_end);
    struct test_batch fill = batch_make(&c, ac->n_seqs, zero, ends);
    struct mat kv = mat_random(t, fill.r.n_rows, 2 * ac->n_kv * ac->d_head, 17);
    uint16_t *e = kv.data;
    for (int64_t i = 0; t == DTYPE_BF16 && i < kv.rows * kv.cols; i++)
        e[i] = f32_to_bf16(bf16_to_f32(e[i]) * size);
    assert_int_equal(l->ops->kv_fill(l->stream, &c.kv, kv, &none, &fill.r), 0);
    struct test_batch b = batch_make(&c, ac->n_seqs, start, rows);
    struct mat q = mat_random(DTYPE_F32, n_rows, ac->heads * ac->d_head, 18);
    struct mat out = mat_alloc(DTYPE_F32, n_rows, ac->heads * ac->d_head);
    scale_up(q, 4);
    assert_int_equal(l->ops->attention(l->stream, out, q, &c.kv, &b.r, &rule), 0);
    mat_free(&q);
    mat_free(&kv);
    batch_free(&b);
    batch_free(&fill);
    cache_free(l, &c);
    return out;
}

TEST(test_attention)
{
    static const struct attention_case latent = {6,    1, 576, 0, 2, {{60, 10}, {129, 1}},
                                                 false};
    for (size_t i = 0; i < 2 * N_CASES(attention_cases) + 2; i++) {
        const size_t c = i / 2;
        const struct attention_case *ac = c < N_CASES(attention_cases) ? &attention_cases[c]
                                                                       : &latent;
        const float cap = c % 3 == 1 ? 5 : 0, *sinks = c % 2 == 1 ? some_sinks : NULL;
        const bool both = i % 2 == 1;
        if (ac->bench)
            continue;
        assert_true(ac->heads <= 64);
        for (int k = 0; k < 4; k++) {
            /* at last once more with sums that are subnormal, and count as zero */
            const enum dtype t = k < 3 ? DTYPE_F32 + k : DTYPE_BF16;
            const float size = k < 3 ? 1 : 0x1p-125f;
            struct mat want = attention_on(&ref, ac, t, size, cap, sinks, both);
            struct mat base = attention_on(&cpu[0], ac, t, size, cap, sinks, both);
            EACH_ISA(isa)
            {
                struct mat got = attention_on(&cpu[isa], ac, t, size, cap, sinks, both);
                /* A weight near the middle of two bf16 numbers may be rounded to either. */
                if (t == DTYPE_BF16 && cap == 0)
                    assert_same_bits(got, want);
                else
                    assert_near(got, want, t == DTYPE_BF16 ? 2e-3 : EXP_TOLERANCE);
                assert_same_bits(got, base);
                mat_free(&got);
            }
            mat_free(&want);
            mat_free(&base);
        }
    }
}

/* --- sampling ------------------------------------------------------------------------------- */

TEST(test_sample)
{
    for (int v = 0; v < n_sample_vocabs; v++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            struct sample_case c = sample_case_make(sample_vocabs[v], seed);
            EACH_ISA(i)
            {
                int32_t ids[64];
                assert_true(c.logits.rows <= 64);
                assert_int_equal(cpu[i].ops->sample(cpu[i].stream, ids, c.logits, c.rows),
                                 0);
                assert_memory_equal(ids, c.ids, (size_t)c.logits.rows * sizeof *ids);
            }
            sample_case_free(&c);
        }
}

int main(void)
{
    return unit_run(setup, teardown);
}
