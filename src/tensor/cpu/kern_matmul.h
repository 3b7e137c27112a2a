/* kern_matmul.h - the inner loops of the matrix product.
 *
 * mm_direct: few rows.  Reads panels once, converting in registers, several panels at a time: one
 *   panel is one stream of memory, and one stream alone reaches 15 of 25 GB/s.
 * mm_blocked: many rows.  For every k-block, a group of panels is converted to f32 once (it stays in
 *   L1) and used by all rows of the tile.  The sums of the k-blocks are kept in C itself.
 *
 * Both compute a partial sum per k-block of 256 in ascending k, then add it: the contract's order. */
#ifndef TENSOR_KERN_MATMUL_H
#define TENSOR_KERN_MATMUL_H

#define KB         MATMUL_K_BLOCK
#define GROUP_COLS (MM_PANELS * PANEL)
#define EACH_ROW   _Pragma("GCC unroll 16") for (int r = 0; r < n_rows; r++)
#define EACH_PANEL _Pragma("GCC unroll 8") for (int j = 0; j < n_panels; j++)

/* sum[r][j] = fma(a[r * row_stride + i * step], b[i][j], sum[r][j]) for ascending i < n. */
INLINE void tile_fma(v16 (*sum)[MM_PANELS], int n_rows, int n_panels, const float *a,
                     int row_stride, int step, const float *b, int b_stride, int n)
{
    for (int i = 0; i < n; i++) {
        v16 bv[MM_PANELS];
        EACH_PANEL bv[j] = v_load(b + i * b_stride + j * PANEL);
        EACH_ROW
        {
            v16 av = v_set1(a[r * row_stride + i * step]);
            EACH_PANEL sum[r][j] = v_fma(av, bv[j], sum[r][j]);
        }
    }
}

/* --- several strips of rows ------------------------------------------------------------------ */

/* A strip of rows by a group of panels over one k-block. */
struct micro {
    const float *a;   /* [n_rows][256] */
    const uint8_t *b; /* panel j at b + j * panel_bytes: [kb][16] of b_type */
    enum dtype b_type;
    size_t panel_bytes;
    int kb;
    float *c;
    int64_t ldc;
    bool first;        /* C is not read */
    const float *bias; /* added where not NULL: the last k-block */
    /* What the next group will read: every FETCH_STEPS steps of k a line is asked for,
     * fetch_stride bytes behind the one before. */
    const uint8_t *fetch;
    size_t fetch_stride;
};
#define FETCH_STEPS 2

INLINE void micro_step(v16 (*sum)[MM_PANELS], const struct micro *m, enum dtype t, int i,
                       int n_rows)
{
    const int n_panels = MM_PANELS;
    v16 b[MM_PANELS];
    EACH_PANEL b[j] = v_load_split(m->b + (size_t)j * m->panel_bytes, t, i * PANEL);
    EACH_ROW
    {
        v16 a = v_set1(m->a[r * KB + i]);
        EACH_PANEL sum[r][j] = v_fma(a, b[j], sum[r][j]);
    }
}

INLINE void micro_rows(const struct micro *m, enum dtype t, int n_rows)
{
    const int n_panels = MM_PANELS;
    v16 sum[MM_ROWS][MM_PANELS];
    const uint8_t *fetch = m->fetch;
    int i = 0;
    EACH_ROW EACH_PANEL sum[r][j] = v_zero();
    for (; i + FETCH_STEPS <= m->kb; i += FETCH_STEPS) {
        __builtin_prefetch(fetch);
        fetch += m->fetch_stride;
        for (int step = 0; step < FETCH_STEPS; step++)
            micro_step(sum, m, t, i + step, n_rows);
    }
    for (; i < m->kb; i++)
        micro_step(sum, m, t, i, n_rows);
    EACH_ROW EACH_PANEL sum[r][j] = v_merge(sum[r][j], t);
    if (!m->first)
        EACH_ROW EACH_PANEL sum[r][j] = v_add(v_load(m->c + r * m->ldc + j * PANEL),
                                              sum[r][j]);
    if (m->bias != NULL)
        EACH_ROW EACH_PANEL sum[r][j] = v_add(sum[r][j], v_load(m->bias + j * PANEL));
    EACH_ROW EACH_PANEL v_store(m->c + r * m->ldc + j * PANEL, sum[r][j]);
}

#define MICRO(R)                                                                           \
    static void micro_##R(const struct micro *m)                                           \
    {                                                                                      \
        FOR_DTYPE(m->b_type, t, micro_rows(m, (enum dtype)t, R));                          \
    }
MICRO(1)
MICRO(2)
MICRO(3)
MICRO(4)
#if MM_ROWS >= 6
MICRO(5)
MICRO(6)
#endif
#if MM_ROWS >= 12
MICRO(7)
MICRO(8)
MICRO(9)
MICRO(10)
MICRO(11)
MICRO(12)
#endif
#undef MICRO

static void (*const micro_by_rows[])(const struct micro *m) = {
    NULL,    micro_1, micro_2, micro_3,  micro_4,
#if MM_ROWS >= 6
    micro_5, micro_6,
#endif
#if MM_ROWS >= 12
    micro_7, micro_8, micro_9, micro_10, micro_11, micro_12,
#endif
};

/* Panel by panel into f32. */
INLINE void convert_group_t(float *b, const uint8_t *w, enum dtype t, size_t panel_bytes,
                            int kb)
{
    for (int j = 0; j < MM_PANELS; j++)
        for (int i = 0; i < kb * PANEL; i += PANEL)
            v_store(b + j * KB * PANEL + i, v_load_t(w + (size_t)j * panel_bytes, t, i));
}

static void convert_group(float *b, const uint8_t *w, enum dtype type, size_t panel_bytes,
                          int kb)
{
    FOR_DTYPE(type, t, convert_group_t(b, w, (enum dtype)t, panel_bytes, kb));
}

/* One group of panels, one k-block, all rows. */
static void group_rows(const struct mm_tile *t, struct micro m, const uint8_t *next)
{
    int n_strips = (t->m + MM_ROWS - 1) / MM_ROWS;
    const float *a = m.a;
    float *c = m.c;
    size_t next_bytes = (size_t)KB * PANEL * dtype_bytes(t->dtype);
    m.fetch_stride = next_bytes * FETCH_STEPS / KB / (size_t)n_strips;
    for (int i = 0; i < n_strips; i++) { /* of nearly equal height: 13 rows are 7 + 6 */
        int r0 = t->m * i / n_strips, r1 = t->m * (i + 1) / n_strips;
        m.a = a + (int64_t)r0 * KB;
        m.c = c + r0 * m.ldc;
        m.fetch = next + next_bytes * (size_t)i / (size_t)n_strips;
        micro_by_rows[r1 - r0](&m);
    }
}

/* A group at the right edge may be narrower than GROUP_COLS: it is summed beside C. */
struct edge {
    float *c;
    float *bias;
    int64_t first_col, n_cols;
};

static struct edge edge_of(const struct mm_tile *t)
{
    struct edge e = {t->scratch + KB * GROUP_COLS, NULL, t->n_cols, 0};
    e.n_cols = t->n_cols % GROUP_COLS;
    e.first_col = t->n_cols - e.n_cols;
    if (t->bias != NULL) {
        e.bias = e.c + TILE_ROWS * GROUP_COLS;
        memset(e.bias, 0, GROUP_COLS * sizeof(float));
        memcpy(e.bias, t->bias + e.first_col, (size_t)e.n_cols * sizeof(float));
    }
    return e;
}

/* Where panel `panel` of the tile begins at row k. */
static const uint8_t *panel_at(const struct mm_tile *t, int panel, int64_t k)
{
    return t->w +
           ((size_t)panel * (size_t)t->k + (size_t)k) * PANEL * dtype_bytes(t->dtype);
}

static void mm_blocked(const struct mm_tile *t)
{
    struct edge e = edge_of(t);
    bool convert = t->m > MM_CONVERT_ROWS;
    for (int64_t k = 0; k < t->k; k += KB) {
        int kb = (int)(t->k - k < KB ? t->k - k : KB);
        for (int64_t col = 0; col < t->n_cols; col += GROUP_COLS) {
            bool at_edge = col == e.first_col;
            int panel = (int)(col / PANEL), left = t->n_panels - panel;
            const float *bias = at_edge ? e.bias : t->bias != NULL ? t->bias + col : NULL;
            const uint8_t *next = left > MM_PANELS ? panel_at(t, panel + MM_PANELS, k)
                                                   : panel_at(t, 0, k + kb);
            struct micro m = {
                .a = t->a + k * t->a_rows,
                .b = panel_at(t, panel, k),
                .b_type = t->dtype,
                /* a panel that is missing at the edge is the last one again, and dropped */
                .panel_bytes = left < MM_PANELS
                                   ? 0
                                   : (size_t)t->k * PANEL * dtype_bytes(t->dtype),
                .kb = kb,
                .c = at_edge ? e.c : t->c + col,
                .ldc = at_edge ? GROUP_COLS : t->ldc,
                .first = k == 0,
                .bias = k + kb == t->k ? bias : NULL,
            };
            if (convert) {
                convert_group(t->scratch, m.b, t->dtype, m.panel_bytes, kb);
                m.b = (const uint8_t *)t->scratch;
                m.b_type = DTYPE_F32;
                m.panel_bytes = KB * PANEL * sizeof(float);
            }
            group_rows(t, m, next);
        }
    }
    for (int r = 0; e.n_cols > 0 && r < t->m; r++)
        memcpy(t->c + r * t->ldc + e.first_col, e.c + r * GROUP_COLS,
               (size_t)e.n_cols * sizeof(float));
}

/* --- few rows ------------------------------------------------------------------------------- */

#define WIDE_MAX 4
/* How far ahead memory is asked for: see docs/PERF.md (17.6 -> 20.0 GB/s with one row and four panels,
 * 7.9 -> 15.8 with four rows and one panel). */
#define FETCH_BYTES 2048

/* sum[r][j] = the partial sums of the k-block at k, of n_panels panels. */
INLINE void direct_block_sums(v16 (*sum)[WIDE_MAX], const struct mm_tile *t, enum dtype dt,
                              const uint8_t *const *panel, int64_t k, int n_rows,
                              int n_panels)
{
    int kb = (int)(t->k - k < KB ? t->k - k : KB);
    const float *a = t->a + k * t->a_rows;
    EACH_ROW EACH_PANEL sum[r][j] = v_zero();
    for (int i = 0; i < kb; i++) {
        v16 b[WIDE_MAX];
        EACH_PANEL __builtin_prefetch(panel[j] + (size_t)(k + i) * PANEL * dtype_bytes(dt) +
                                      FETCH_BYTES);
        EACH_PANEL b[j] = v_load_split(panel[j], dt, (k + i) * PANEL);
        EACH_ROW
        {
            v16 av = v_set1(a[r * KB + i]);
            EACH_PANEL sum[r][j] = v_fma(av, b[j], sum[r][j]);
        }
    }
}

/* C at panel p = the sums (+ bias); columns that do not exist are dropped. */
static void direct_store(const struct mm_tile *t, int p, const float *sums, int n_panels)
{
    for (int j = 0; j < n_panels; j++) {
        int64_t col = (int64_t)(p + j) * PANEL, n = t->n_cols - col;
        for (int r = 0; n > 0 && r < t->m; r++) {
            v16 y = v_load(sums + (r * n_panels + j) * PANEL);
            if (t->bias != NULL)
                y = v_add(y, v_load_upto(t->bias, DTYPE_F32, col, n));
            v_store_upto(t->c + r * t->ldc, DTYPE_F32, col, n, y);
        }
    }
}

/* Panels [p, p + n_panels) of the tile; those behind its end are the last one again, and dropped. */
INLINE void direct_panels(const struct mm_tile *t, enum dtype dt, int p, int n_rows,
                          int n_panels)
{
    size_t panel_bytes = (size_t)t->k * PANEL * dtype_bytes(dt);
    const uint8_t *panel[WIDE_MAX];
    EACH_PANEL panel[j] = t->w + (size_t)(p + j < t->n_panels ? p + j : t->n_panels - 1) *
                                     panel_bytes;
    v16 acc[MM_ROWS][WIDE_MAX], sum[MM_ROWS][WIDE_MAX];
    direct_block_sums(acc, t, dt, panel, 0, n_rows, n_panels);
    for (int64_t k = KB; k < t->k; k += KB) {
        direct_block_sums(sum, t, dt, panel, k, n_rows, n_panels);
        EACH_ROW EACH_PANEL acc[r][j] = v_add(acc[r][j], sum[r][j]);
    }
    float sums[MM_ROWS * WIDE_MAX * PANEL];
    EACH_ROW EACH_PANEL v_store(sums + (r * n_panels + j) * PANEL, v_merge(acc[r][j], dt));
    direct_store(t, p, sums, n_panels);
}

INLINE void direct_rows(const struct mm_tile *t, enum dtype dt, int n_rows, int wide)
{
    for (int p = 0; p < t->n_panels; p += wide)
        direct_panels(t, dt, p, n_rows, wide);
}

/* A function per number of rows: inlining them all into one confuses the register allocator. */
#define DIRECT(R, WIDE)                                                                    \
    static void direct_##R(const struct mm_tile *t)                                        \
    {                                                                                      \
        FOR_DTYPE(t->dtype, dt, direct_rows(t, (enum dtype)dt, R, WIDE));                  \
    }
DIRECT(1, MM_WIDE_1)
DIRECT(2, MM_WIDE_2)
DIRECT(3, MM_WIDE_4)
DIRECT(4, MM_WIDE_4)
#if MM_ROWS >= 6
DIRECT(5, MM_PANELS)
DIRECT(6, MM_PANELS)
#endif
#if MM_ROWS >= 12
DIRECT(7, MM_PANELS)
DIRECT(8, MM_PANELS)
DIRECT(9, MM_PANELS)
DIRECT(10, MM_PANELS)
DIRECT(11, MM_PANELS)
DIRECT(12, MM_PANELS)
#endif
#undef DIRECT

static void mm_direct(const struct mm_tile *t)
{
    static void (*const by_rows[])(const struct mm_tile *t) = {
        NULL,
        direct_1,
        direct_2,
        direct_3,
        direct_4,
#if MM_ROWS >= 6
        direct_5,
        direct_6,
#endif
#if MM_ROWS >= 12
        direct_7,
        direct_8,
        direct_9,
        direct_10,
        direct_11,
        direct_12,
#endif
    };
    by_rows[t->m](t);
}

#endif
