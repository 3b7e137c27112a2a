/* cuda_fixed_cases.c - see cuda_fixed_cases.h.  cuda_cases.c checks that results are close to
 * ref's; here they are compared with each other, bit for bit. */
#include "cuda_fixed_cases.h"

#include "cuda_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cases.h"
#include "tensor/device.h"

static struct lab gpu;
static bool small_only;

static int setup(void **state)
{
    gpu = lab_cuda("fixed");
    return 0;
}

static int teardown(void **state)
{
    lab_close(&gpu);
    return 0;
}

/* Checks that rows [i, i + n) of a have the same bits as rows [j, j + n) of b. */
static void same_rows(struct mat a, int64_t i, struct mat b, int64_t j, int64_t n,
                      const char *what)
{
    size_t e = dtype_bytes(a.dtype), bytes = (size_t)a.cols * e;
    for (int64_t r = 0; r < n; r++) {
        const uint8_t *x = (const uint8_t *)a.data + (size_t)((i + r) * a.ld) * e;
        const uint8_t *y = (const uint8_t *)b.data + (size_t)((j + r) * b.ld) * e;
        for (size_t c = 0; c < bytes; c += e)
            if (memcmp(x + c, y + c, e) != 0)
                fail_msg("%s: row %d, column %d: %a is not %a", what, (int)(j + r),
                         (int)(c / e), (double)elem_get(x, a.dtype, (int64_t)(c / e)),
                         (double)elem_get(y, a.dtype, (int64_t)(c / e)));
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* Checks that a batch of m rows of `a` from `row` on gives the corresponding rows of `whole`. */
static void check_batch(struct mat a, const struct weight *w, const float *bias,
                        struct mat whole, int64_t row, int64_t m)
{
    char what[96];
    struct mat blank = mat_random(whole.dtype, m, whole.cols, 9);
    struct gmat out = up_mat(&gpu, blank);
    assert_int_equal(gpu.ops->matmul(gpu.stream, out.m, mat_rows(a, row, m), w, bias), 0);
    struct mat got = take(&gpu, &out);
    snprintf(what, sizeof what, "n %d, k %d, %s: %d rows", (int)w->n, (int)w->k,
             dtype_name(w->dtype), (int)m);
    same_rows(got, 0, whole, row, m, what);
    mat_free(&got);
    mat_free(&blank);
}

static void check_product(int64_t n, int64_t k, enum dtype t, enum dtype tc)
{
    static const int sizes[] = {1, 2, 7, 16, 17, 32, 33, 65, 129};
    enum { ROWS = 200 };
    struct mat a = mat_random(t, ROWS, k, 1), blank = mat_random(tc, ROWS, n, 2);
    void *rows = random_elems(t, n * k, 3);
    float *bias = random_elems(DTYPE_F32, n, 4);
    struct buf gbias = up(&gpu, bias, (size_t)n * sizeof *bias);
    struct weight w = weight_make(&gpu, t, n, k, rows);
    struct gmat ga = up_mat(&gpu, a), out = up_mat(&gpu, blank);
    assert_int_equal(gpu.ops->matmul(gpu.stream, out.m, ga.m, &w, gbias.ptr), 0);
    struct mat whole = take(&gpu, &out);
    for (size_t i = 0; i < N_CASES(sizes); i++) {
        check_batch(ga.m, &w, gbias.ptr, whole, ROWS - sizes[i], sizes[i]);
        check_batch(ga.m, &w, gbias.ptr, whole, (ROWS - sizes[i]) * 3 / 7, sizes[i]);
    }
    /* These rows are not aligned for 16-byte copies, so another path must compute the same bits. */
    struct mat odd = mat_alloc(t, ROWS, k + 1);
    for (int64_t r = 0; r < ROWS; r++)
        memcpy((uint8_t *)odd.data + (size_t)(r * odd.ld) * dtype_bytes(t),
               (uint8_t *)a.data + (size_t)(r * a.ld) * dtype_bytes(t),
               (size_t)k * dtype_bytes(t));
    struct gmat godd = up_mat(&gpu, odd);
    check_batch(mat_cols(godd.m, 0, k), &w, gbias.ptr, whole, 3, 1);
    check_batch(mat_cols(godd.m, 0, k), &w, gbias.ptr, whole, 3, 20);
    check_batch(mat_cols(godd.m, 0, k), &w, gbias.ptr, whole, 0, 190);
    buf_free(gpu.device, &godd.mem);
    buf_free(gpu.device, &ga.mem);
    buf_free(gpu.device, &gbias);
    weight_free(&gpu, &w);
    free(rows);
    free(bias);
    mat_free(&odd);
    mat_free(&a);
    mat_free(&blank);
    mat_free(&whole);
}

static void products(void **state)
{
    /* Values of k: below a step, a tile and a block; some blocks and a rest; more blocks than a
     * round has warps. */
    static const struct {
        int64_t n, k;
    } shapes[] = {{33, 16},   {70, 8},    {17, 63}, {130, 264},
                  {64, 1100}, {40, 2752}, {1, 320}};
    for (size_t i = 0; i < N_CASES(shapes); i++) {
        check_product(shapes[i].n, shapes[i].k, DTYPE_BF16, DTYPE_BF16);
        check_product(shapes[i].n, shapes[i].k, DTYPE_F16, DTYPE_F32);
    }
    check_product(33, 264, DTYPE_F32, DTYPE_F32);
    if (small_only)
        return;
    check_product(4096, 4096, DTYPE_BF16, DTYPE_BF16);
    check_product(4096, 11008, DTYPE_F16, DTYPE_F32);
    check_product(10000, 4096, DTYPE_F16, DTYPE_F16);
}

/* --- attention -------------------------------------------------------------------------------- */

enum { SEQS = 3 };

/* A full cache of SEQS sequences, and a query for each of their positions. */
struct scene {
    struct attention_case c;
    int from, tokens; /* rows at positions [from, tokens) are compared */
    enum dtype t;
    struct cache cache;
    struct gmat q[SEQS];
    struct mat want[SEQS]; /* the result of each sequence alone, in one prefill */
};

/* Returns the attention of a batch of up to SEQS sequences, in host memory. */
static struct mat attend(struct scene *s, const struct attention_case *b)
{
    int start[SEQS] = {0}, rows[SEQS] = {0}, n = 0, width = s->c.heads * s->c.d_head;
    for (int i = 0; i < SEQS; i++) {
        start[i] = b->seq[i].start;
        rows[i] = b->seq[i].rows;
        n += rows[i];
    }
    struct test_batch batch = batch_make(&s->cache, SEQS, start, rows);
    struct mat blank = mat_random(s->t, n, width, 7);
    struct gmat q = up_mat(&gpu, blank), out = up_mat(&gpu, blank);
    for (int i = 0, at = 0; i < SEQS; at += rows[i], i++)
        assert_int_equal(stream_copy(gpu.stream, mat_rows(q.m, at, 0).data,
                                     mat_rows(s->q[i].m, start[i], 0).data,
                                     (size_t)(rows[i] * width) * dtype_bytes(s->t)),
                         0);
    assert_int_equal(
        gpu.ops->attention(gpu.stream, out.m, q.m, &s->cache.kv, &batch.r,
                           &(struct attention_rule){.scale = 0.9f, .window = s->c.window}),
        0);
    struct mat got = take(&gpu, &out);
    buf_free(gpu.device, &q.mem);
    mat_free(&blank);
    batch_free(&batch);
    return got;
}

/* Compares the rows of the batch that are in the scene with the scene's result. */
static void check_mixed(struct scene *s, struct attention_case all, const char *what)
{
    struct attention_case *b = &all;
    for (int i = 0; i < SEQS; i++)
        if (b->seq[i].start < s->from || b->seq[i].start + b->seq[i].rows > s->tokens)
            b->seq[i].start = b->seq[i].rows = 0;
    struct mat got = attend(s, b);
    for (int i = 0, at = 0; i < SEQS; at += b->seq[i].rows, i++) {
        char text[128];
        snprintf(text, sizeof text, "%d heads of %d, %s, window %d, %s, rows from %d",
                 s->c.heads, s->c.d_head, dtype_name(s->t), s->c.window, what,
                 b->seq[i].start);
        same_rows(got, at, s->want[i], b->seq[i].start - s->from, b->seq[i].rows, text);
    }
    mat_free(&got);
}

static struct scene scene_make(struct attention_case c, int from, int tokens, enum dtype t)
{
    static const struct rope none = {0};
    struct scene s = {.c = c, .from = from, .tokens = tokens, .t = t};
    s.cache = cache_on(&gpu, t, c.n_kv, c.d_head, SEQS, tokens);
    for (int i = 0; i < SEQS; i++) {
        int start[SEQS] = {0}, rows[SEQS] = {0};
        rows[i] = tokens;
        struct test_batch fill = batch_make(&s.cache, SEQS, start, rows);
        struct mat kv = mat_random(t, tokens, 2 * c.n_kv * c.d_head, 20 + (uint64_t)i);
        struct mat q = mat_random(t, tokens, c.heads * c.d_head, 30 + (uint64_t)i);
        struct gmat gkv = up_mat(&gpu, kv);
        assert_int_equal(gpu.ops->kv_fill(gpu.stream, &s.cache.kv, gkv.m, &none, &fill.r),
                         0);
        assert_int_equal(stream_sync(gpu.stream), 0);
        s.q[i] = up_mat(&gpu, q);
        buf_free(gpu.device, &gkv.mem);
        mat_free(&kv);
        mat_free(&q);
        batch_free(&fill);
    }
    for (int i = 0; i < SEQS; i++) {
        struct attention_case all = {0};
        all.seq[i].start = from;
        all.seq[i].rows = tokens - from;
        s.want[i] = attend(&s, &all);
    }
    return s;
}

static void scene_free(struct scene *s)
{
    for (int i = 0; i < SEQS; i++) {
        buf_free(gpu.device, &s->q[i].mem);
        mat_free(&s->want[i]);
    }
    cache_free(&gpu, &s->cache);
}

/* Fewer than 8 rows of a sequence are computed row by row, as in decodes. More rows are computed in
 * tiles. */
static void check_attention(struct attention_case c, int from, int tokens, enum dtype t)
{
    static const struct attention_case batches[] = {
        {.seq = {{0, 1}, {63, 2}, {64, 3}}},      {.seq = {{511, 1}, {512, 1}, {513, 1}}},
        {.seq = {{619, 1}, {0, 64}, {100, 7}}},   {.seq = {{500, 60}, {511, 2}, {575, 45}}},
        {.seq = {{447, 65}, {1, 7}, {300, 150}}}, {.seq = {{7, 8}, {130, 1}, {612, 8}}},
        {.seq = {{1, 200}, {576, 1}, {450, 1}}},
    };
    struct scene s = scene_make(c, from, tokens, t);
    for (size_t i = 0; i < N_CASES(batches); i++) {
        char what[32];
        snprintf(what, sizeof what, "batch %zu", i);
        check_mixed(&s, batches[i], what);
    }
    /* Decodes of a single sequence. Rounding hides most differences in a result, so some scenes
     * have many decodes. */
    for (int p = from + 3; p<tokens; p += from> 0 ? 1 : 61) {
        struct attention_case one = {.seq = {{p, 1}, {0, 0}, {0, 0}}};
        check_mixed(&s, one, "alone");
    }
    scene_free(&s);
}

static void attention(void **state)
{
    static const struct {
        struct attention_case c;
        int from, tokens; /* more than 512 tokens are computed in several splits */
    } cases[] = {
        {{.heads = 1, .n_kv = 1, .d_head = 64}, 0, 620},
        {{.heads = 4, .n_kv = 1, .d_head = 64, .window = 100}, 0, 200},
        {{.heads = 8, .n_kv = 1, .d_head = 64}, 0, 140},
        {{.heads = 1, .n_kv = 1, .d_head = 80, .window = 1}, 0, 200},
        {{.heads = 1, .n_kv = 1, .d_head = 96}, 440, 620},
        {{.heads = 2, .n_kv = 2, .d_head = 128}, 0, 200},
        {{.heads = 1, .n_kv = 1, .d_head = 256}, 0, 200},
        {{.heads = 16, .n_kv = 1, .d_head = 64}, 560, 620},
        /* more heads than a tile's operand has rows */
        {{.heads = 18, .n_kv = 1, .d_head = 64}, 0, 70},
        {{.heads = 4, .n_kv = 1, .d_head = 64, .window = 300}, 530, 620},
        /* no kernel for this head size: exact math is used */
        {{.heads = 2, .n_kv = 1, .d_head = 20}, 0, 140},
    };
    for (size_t i = 0; i < N_CASES(cases); i++) {
        enum dtype t = i % 2 == 0 ? DTYPE_BF16 : DTYPE_F16;
        check_attention(cases[i].c, cases[i].from, cases[i].tokens, t);
        if (!small_only)
            check_attention(cases[i].c, 0, 5000, t);
    }
    check_attention(cases[0].c, 0, 140, DTYPE_F32);
}

/* The same keys lie at positions far apart. In one call the splits fit into the scratch memory. In
 * the other they do not fit for all rows together, or not even for one row. */
static void long_contexts(void **state)
{
    enum { N = 3, D = 128, SPLIT = 512, WINDOW = 10, AT = 472, FAR = 340 * SPLIT };
    static const struct rope none = {0};
    /* with 48 heads one row at a time fits, with 96 heads not even one */
    static const int heads[] = {48, 96};
    for (size_t h = 0; h < N_CASES(heads); h++) {
        int width = heads[h] * D, blocks = (FAR + SPLIT) / KV_BLOCK_TOKENS;
        struct cache c = cache_on(&gpu, DTYPE_BF16, 1, D, 1, SPLIT);
        struct test_batch fill = batch_make(&c, 1, (int[]){0}, (int[]){SPLIT});
        struct mat kv = mat_random(DTYPE_BF16, SPLIT, 2 * D, 40);
        struct mat q = mat_random(DTYPE_BF16, N, width, 41), got[2];
        struct gmat gkv = up_mat(&gpu, kv), gq = up_mat(&gpu, q);
        assert_int_equal(gpu.ops->kv_fill(gpu.stream, &c.kv, gkv.m, &none, &fill.r), 0);
        int32_t *table = xcalloc((size_t)blocks, sizeof *table);
        for (int b = 0; b < blocks; b++)
            table[b] = c.table[0][b % (SPLIT / KV_BLOCK_TOKENS)];
        for (int far = 0; far < 2; far++) {
            int32_t pos[N], seq_row[2] = {0, N};
            const int32_t *tables[1] = {table};
            for (int i = 0; i < N; i++)
                pos[i] = AT + i + far * FAR;
            struct ragged r = {
                .n_rows = N, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
            struct gmat out = up_mat(&gpu, q);
            assert_int_equal(gpu.ops->attention(
                                 gpu.stream, out.m, gq.m, &c.kv, &r,
                                 &(struct attention_rule){.scale = 0.1f, .window = WINDOW}),
                             0);
            got[far] = take(&gpu, &out);
        }
        same_rows(got[1], 0, got[0], 0, N, "far away");
        mat_free(&got[0]);
        mat_free(&got[1]);
        buf_free(gpu.device, &gkv.mem);
        buf_free(gpu.device, &gq.mem);
        mat_free(&kv);
        mat_free(&q);
        batch_free(&fill);
        cache_free(&gpu, &c);
        free(table);
    }
}

/* --- all other operations of a layer ---------------------------------------------------------- */

static const float *weights; /* weights of norms, on the device */
static struct mat sums;      /* sums in f32, on the device */

static int of_rmsnorm(struct mat out, struct mat x)
{
    return gpu.ops->rmsnorm(gpu.stream, out, x, weights, 1e-5f);
}
static int of_layernorm(struct mat out, struct mat x)
{
    return gpu.ops->layernorm(gpu.stream, out, x, weights, weights, 1e-5f);
}
static int of_head_norm(struct mat out, struct mat x)
{
    int rc = gpu.ops->convert(gpu.stream, out, x);
    return rc != 0 ? rc : gpu.ops->head_norm(gpu.stream, out, 64, weights, 1e-5f);
}
static int of_add(struct mat out, struct mat x)
{
    return gpu.ops->add(gpu.stream, out, x, x);
}
static int of_add_norm(struct mat out, struct mat x)
{
    return gpu.ops->add_norm(gpu.stream, out, mat_rows(sums, 0, x.rows), x, x, weights,
                             NULL, 1e-5f);
}
static int of_act(struct mat out, struct mat x)
{
    int rc = gpu.ops->convert(gpu.stream, out, x);
    return rc != 0 ? rc : gpu.ops->act(gpu.stream, out, ACTIVATION_GELU);
}
static int of_act_mul(struct mat out, struct mat x)
{
    return gpu.ops->act_mul(gpu.stream, mat_cols(out, 0, x.cols / 2), x, ACTIVATION_SILU);
}

static void rows_alone(void **state)
{
    enum { ROWS = 70, COLS = 1088 };
    int (*const ops[])(struct mat out, struct mat x) = {
        of_rmsnorm, of_layernorm, of_head_norm, of_add, of_add_norm, of_act, of_act_mul};
    float *w = random_elems(DTYPE_F32, COLS, 5);
    struct buf gw = up(&gpu, w, COLS * sizeof *w);
    struct mat blank32 = mat_alloc(DTYPE_F32, ROWS, COLS);
    struct gmat gsums = up_mat(&gpu, blank32);
    weights = gw.ptr;
    sums = gsums.m;
    for (enum dtype t = DTYPE_F32; t <= DTYPE_BF16; t++) {
        struct mat x = mat_random(t, ROWS, COLS, 6), blank = mat_random(t, ROWS, COLS, 7);
        struct gmat gx = up_mat(&gpu, x);
        for (size_t i = 0; i < N_CASES(ops); i++) {
            struct gmat all = up_mat(&gpu, blank), one = up_mat(&gpu, blank);
            assert_int_equal(ops[i](all.m, gx.m), 0);
            for (int r = 0; r < ROWS; r++)
                assert_int_equal(ops[i](mat_rows(one.m, r, 1), mat_rows(gx.m, r, 1)), 0);
            struct mat a = take(&gpu, &all), b = take(&gpu, &one);
            same_rows(a, 0, b, 0, ROWS, "a row's operation");
            mat_free(&a);
            mat_free(&b);
        }
        buf_free(gpu.device, &gx.mem);
        mat_free(&x);
        mat_free(&blank);
    }
    buf_free(gpu.device, &gsums.mem);
    buf_free(gpu.device, &gw);
    mat_free(&blank32);
    free(w);
}

int cuda_fixed_cases_run(const char *name, bool small)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(attention),
        cmocka_unit_test(long_contexts),
        cmocka_unit_test(rows_alone),
    };
    small_only = small;
    return cmocka_run_group_tests_name(name, tests, setup, teardown);
}
