/* kern_matmul.h - the inner loops of the matrix product.
 *
 * mm_direct is for one strip of rows.  It reads panels once and converts them in registers, several
 * panels at a time if there are enough registers.
 *
 * mm_blocked is for several strips.  Up to MM_CONVERT_ROWS rows every strip converts in registers.
 * For more rows, a group of panels is converted to f32 once per k-block, and the copy stays in L1.
 * Up to MM_ALONG_ROWS rows mm_blocked proceeds along a panel, because memory is read fastest that
 * way; for more rows it proceeds over all columns of a k-block.  Each strip, while it is
 * multiplied, prefetches its share of the next group.  C itself holds the sums of the k-blocks.
 *
 * Both compute a partial sum per k-block of 256 in ascending k and then add it, which is the order
 * that ops.h prescribes. */
#ifndef TENSOR_KERN_MATMUL_H
#define TENSOR_KERN_MATMUL_H

#define KB         MATMUL_K_BLOCK
#define GROUP_COLS (MM_PANELS * PANEL)
#define EACH_ROW   _Pragma("GCC unroll 16") for (int r = 0; r < n_rows; r++)
#define EACH_PANEL _Pragma("GCC unroll 8") for (int j = 0; j < n_panels; j++)

/* Maximum number of panels walked at once. */
#define WIDE_MAX 4

/* Expands to F(1) F(2) .. F(MM_ROWS). */
#if MM_ROWS == 1
#define EACH_STRIP_HEIGHT(F) F(1)
#elif MM_ROWS == 6
#define EACH_STRIP_HEIGHT(F) F(1) F(2) F(3) F(4) F(5) F(6)
#elif MM_ROWS == 12
#define EACH_STRIP_HEIGHT(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12)
#endif

/* Operands of a tile: rows of floats, and vectors of 16 elements. */
struct operands {
    const float *a;
    int a_row, a_step; /* floats between rows, and between steps */
    const uint8_t *b;
    int64_t b_step, b_panel; /* elements between steps, and between vectors */
    /* Memory to prefetch: one line per vector every FETCH_STEPS steps, or several lines less often.
     * fetch_line: bytes between lines that are prefetched together; fetch_step: bytes between
     * steps. */
    const uint8_t *fetch;
    size_t fetch_line, fetch_step;
};
#define FETCH_STEPS 2

INLINE void tile_step(v16 (*sum)[WIDE_MAX], const struct operands *x, enum dtype t, int i,
                      int n_rows, int n_panels)
{
    v16 b[WIDE_MAX];
    EACH_PANEL b[j] = v_load_split(x->b, t, i * x->b_step + j * x->b_panel);
    EACH_ROW
    {
        v16 a = v_set1(x->a[r * x->a_row + i * x->a_step]);
        EACH_PANEL sum[r][j] = v_fma(a, b[j], sum[r][j]);
    }
}

/* Computes sum[r][j] = fma(a[r][i], b[i][j], sum[r][j]) for ascending i < n, and prefetches a line
 * per vector into L1. The sums' lanes are in the order of v_load_split. */
INLINE void tile_fma(v16 (*sum)[WIDE_MAX], const struct operands *x, enum dtype t, int n,
                     int n_rows, int n_panels)
{
    const uint8_t *fetch = x->fetch;
    int i = 0;
    for (; i + FETCH_STEPS <= n; i += FETCH_STEPS) {
        for (size_t line = 0; line < (size_t)n_panels; line++)
            __builtin_prefetch(fetch + line * x->fetch_line, 0, 3);
        fetch += x->fetch_step;
        _Pragma("GCC unroll 8") for (int step = 0; step < FETCH_STEPS; step++)
            tile_step(sum, x, t, i + step, n_rows, n_panels);
    }
    for (; i < n; i++)
        tile_step(sum, x, t, i, n_rows, n_panels);
}

/* --- several strips of rows ------------------------------------------------------------------ */

/* A strip of rows times a group of panels, over one k-block. */
struct micro {
    const float *a;   /* [n_rows][256] */
    const uint8_t *b; /* panels [kb][16] of b_type, panel_elements apart */
    enum dtype b_type;
    int64_t panel_elements;
    int kb;
    float *c;
    int64_t ldc;
    bool first;           /* C is overwritten, not added to */
    const float *bias;    /* added to the sums; NULL before the last k-block */
    const uint8_t *fetch; /* the next group, to be prefetched; see struct operands */
    size_t fetch_panel, fetch_step;
};

INLINE void micro_rows(const struct micro *m, enum dtype t, int n_rows)
{
    const int n_panels = MM_PANELS;
    const struct operands x = {
        .a = m->a,
        .a_row = KB,
        .a_step = 1,
        .b = m->b,
        .b_step = PANEL,
        .b_panel = m->panel_elements,
        .fetch = m->fetch,
        .fetch_line = m->fetch_panel,
        .fetch_step = m->fetch_step,
    };
    v16 sum[MM_ROWS][WIDE_MAX];
    EACH_ROW EACH_PANEL sum[r][j] = v_zero();
    tile_fma(sum, &x, t, m->kb, n_rows, n_panels);
    EACH_ROW EACH_PANEL sum[r][j] = v_reorder(sum[r][j], t);
    if (!m->first)
        EACH_ROW EACH_PANEL sum[r][j] = v_add(v_load(m->c + r * m->ldc + j * PANEL),
                                              sum[r][j]);
    if (m->bias != NULL)
        EACH_ROW EACH_PANEL sum[r][j] = v_add(sum[r][j], v_load(m->bias + j * PANEL));
    EACH_ROW EACH_PANEL v_store(m->c + r * m->ldc + j * PANEL, sum[r][j]);
}

/* A function per number of rows: inlining them all into one confuses the register allocator. */
#define MICRO(R)                                                                           \
    static void micro_##R(const struct micro *m)                                           \
    {                                                                                      \
        FOR_DTYPE(m->b_type, t, micro_rows(m, (enum dtype)t, R));                          \
    }
EACH_STRIP_HEIGHT(MICRO)
#undef MICRO

#define MICRO(R) micro_##R,
static void (*const micro_by_rows[])(const struct micro *m) = {NULL,
                                                               EACH_STRIP_HEIGHT(MICRO)};
#undef MICRO

/* Converts a group to f32, panel by panel. */
INLINE void convert_group_t(float *b, const uint8_t *w, enum dtype t,
                            int64_t panel_elements, int kb)
{
    for (int j = 0; j < MM_PANELS; j++)
        for (int i = 0; i < kb * PANEL; i += PANEL)
            v_store(b + j * KB * PANEL + i, v_load_t(w, t, j * panel_elements + i));
}

static void convert_group(float *b, const uint8_t *w, enum dtype type,
                          int64_t panel_elements, int kb)
{
    FOR_DTYPE(type, t, convert_group_t(b, w, (enum dtype)t, panel_elements, kb));
}

/* Multiplies one group of panels with all rows, over one k-block. */
static void group_rows(const struct mm_tile *t, struct micro m, const uint8_t *next)
{
    int height = m.b_type == DTYPE_BF16 ? MM_BF16_ROWS : MM_ROWS;
    int n_strips = (t->m + height - 1) / height;
    const float *a = m.a;
    float *c = m.c;
    size_t next_bytes = (size_t)KB * PANEL * dtype_bytes(t->dtype);
    m.fetch_panel = (size_t)t->k * PANEL * dtype_bytes(t->dtype);
    m.fetch_step = next_bytes * FETCH_STEPS / KB / (size_t)n_strips;
    /* strips of nearly equal height: 13 rows are 7 + 6 */
    for (int i = 0; i < n_strips; i++) {
        int r0 = t->m * i / n_strips, r1 = t->m * (i + 1) / n_strips;
        m.a = a + (int64_t)r0 * KB;
        m.c = c + r0 * m.ldc;
        m.fetch = next + next_bytes * (size_t)i / (size_t)n_strips;
        micro_by_rows[r1 - r0](&m);
    }
}

/* A group at the right edge may be narrower than GROUP_COLS: its sums are kept beside C. */
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

/* Returns where panel `panel` of the tile begins at row k. */
static const uint8_t *panel_at(const struct mm_tile *t, int panel, int64_t k)
{
    return t->w +
           ((size_t)panel * (size_t)t->k + (size_t)k) * PANEL * dtype_bytes(t->dtype);
}

/* Processes the k-block at k of the group at col; `next` is the weights of the following group. */
static void group_block(const struct mm_tile *t, const struct edge *e, int64_t k,
                        int64_t col, bool convert, const uint8_t *next)
{
    bool at_edge = col == e->first_col;
    int panel = (int)(col / PANEL), left = t->n_panels - panel;
    int kb = (int)MIN(t->k - k, KB);
    const float *bias = at_edge ? e->bias : t->bias != NULL ? t->bias + col : NULL;
    struct micro m = {
        .a = t->a + k * t->a_rows,
        .b = panel_at(t, panel, k),
        .b_type = t->dtype,
        /* a panel beyond the edge is replaced by the last one, and its sums are dropped */
        .panel_elements = left < MM_PANELS ? 0 : t->k * PANEL,
        .kb = kb,
        .c = at_edge ? e->c : t->c + col,
        .ldc = at_edge ? GROUP_COLS : t->ldc,
        .first = k == 0,
        .bias = k + kb == t->k ? bias : NULL,
    };
    if (convert) {
        convert_group(t->scratch, m.b, t->dtype, m.panel_elements, kb);
        m.b = (const uint8_t *)t->scratch;
        m.b_type = DTYPE_F32;
        m.panel_elements = KB * PANEL;
    }
    group_rows(t, m, next);
}

/* Many rows proceed over all columns of a k-block, whose activations stay in the cache.  Fewer rows
 * proceed along a panel, so that the weights are one long stream of memory.  f32 weights need no
 * conversion and are then read in place. */
static void mm_blocked(const struct mm_tile *t)
{
    struct edge e = edge_of(t);
    int64_t n = t->n_cols;
    if (t->m > MM_ALONG_ROWS) {
        for (int64_t k = 0; k < t->k; k += KB)
            for (int64_t col = 0; col < n; col += GROUP_COLS) {
                bool more = col + GROUP_COLS < n;
                group_block(t, &e, k, col, true,
                            more ? panel_at(t, (int)(col / PANEL) + MM_PANELS, k)
                                 : panel_at(t, 0, k + KB));
            }
    } else {
        bool convert = t->m > MM_CONVERT_ROWS && t->dtype != DTYPE_F32;
        for (int64_t col = 0; col < n; col += GROUP_COLS)
            for (int64_t k = 0; k < t->k; k += KB) {
                int panel = (int)(col / PANEL);
                group_block(t, &e, k, col, convert,
                            k + KB < t->k ? panel_at(t, panel, k + KB)
                                          : panel_at(t, panel + MM_PANELS, 0));
            }
    }
    for (int r = 0; e.n_cols > 0 && r < t->m; r++)
        memcpy(t->c + r * t->ldc + e.first_col, e.c + r * GROUP_COLS,
               (size_t)e.n_cols * sizeof(float));
}

/* --- few rows ------------------------------------------------------------------------------- */

/* Prefetch distance in steps, by number of rows. It is not 64 or 128, because multiples of a KiB
 * were up to a tenth slower (docs/perf/). */
#define FETCH_AHEAD(n_rows) ((n_rows) > 4 ? 136 : 72)

/* Does step i of every panel. `a` is the first row's element of the step. */
INLINE void direct_step(v16 (*sum)[WIDE_MAX], const uint8_t *const *panel, enum dtype dt,
                        int64_t i, const float *a, int n_rows, int n_panels)
{
    v16 b[WIDE_MAX];
    EACH_PANEL b[j] = v_load_split(panel[j], dt, i * PANEL);
    EACH_ROW
    {
        v16 av = v_set1(a[r * KB]);
        EACH_PANEL sum[r][j] = v_fma(av, b[j], sum[r][j]);
    }
}

/* Computes sum[r][j] over steps [begin, end).  Meanwhile it prefetches as many bytes from fetch[j]
 * on, which panel j needs later.  Each line is prefetched once: a second prefetch costs at least a
 * quarter of a cycle, and a step has 13. */
INLINE void direct_steps(v16 (*sum)[WIDE_MAX], const struct mm_tile *t, enum dtype dt,
                         const uint8_t *const *panel, const uint8_t *const *fetch,
                         int64_t begin, int64_t end, int n_rows, int n_panels)
{
    const float *a = t->a + begin / KB * KB * t->a_rows + begin % KB;
    /* Steps that fill a line; one step at a time if two do not fit the registers. */
    const bool one = dt == DTYPE_F32 || (dt == DTYPE_BF16 && n_rows > MM_BF16_ROWS);
    const int line_steps = one ? 1 : 2;
    int64_t i = 0;
    for (; i + line_steps <= end - begin; i += line_steps) {
        EACH_PANEL fetch_line(t->fetch_into_l2,
                              fetch[j] + (size_t)i * PANEL * dtype_bytes(dt));
        for (int step = 0; step < line_steps; step++)
            direct_step(sum, panel, dt, begin + i + step, a + i + step, n_rows, n_panels);
    }
    for (; i < end - begin; i++)
        direct_step(sum, panel, dt, begin + i, a + i, n_rows, n_panels);
}

/* Sets sum[r][j] to the partial sums of the k-block at k for n_panels panels. `next` is where the
 * following panels begin. */
INLINE void direct_block_sums(v16 (*sum)[WIDE_MAX], const struct mm_tile *t, enum dtype dt,
                              const uint8_t *const *panel, const uint8_t *const *next,
                              int64_t k, int n_rows, int n_panels)
{
    const int64_t ahead = FETCH_AHEAD(n_rows);
    int64_t end = t->k - k < KB ? t->k : k + KB;
    int64_t own_end = t->k - ahead < k ? k : MIN(t->k - ahead, end);
    const uint8_t *fetch[WIDE_MAX];
    EACH_ROW EACH_PANEL sum[r][j] = v_zero();
    EACH_PANEL fetch[j] = panel[j] + (size_t)(k + ahead) * PANEL * dtype_bytes(dt);
    direct_steps(sum, t, dt, panel, fetch, k, own_end, n_rows, n_panels);
    if (own_end < end)
        direct_steps(sum, t, dt, panel, next, own_end, end, n_rows, n_panels);
}

/* Writes the sums (+ bias) to C at panel p; columns that do not exist are dropped. */
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

/* Processes panels [p, p + n_panels) of the tile; a panel beyond its end is replaced by the last
 * one, and its sums are dropped. */
INLINE void direct_panels(const struct mm_tile *t, enum dtype dt, int p, int n_rows,
                          int n_panels)
{
    size_t panel_bytes = (size_t)t->k * PANEL * dtype_bytes(dt);
    const uint8_t *panel[WIDE_MAX], *next[WIDE_MAX];
    EACH_PANEL panel[j] = t->w + (size_t)(p + j < t->n_panels ? p + j : t->n_panels - 1) *
                                     panel_bytes;
    EACH_PANEL next[j] = t->w + (size_t)(p + n_panels + j) * panel_bytes;
    v16 acc[MM_ROWS][WIDE_MAX], sum[MM_ROWS][WIDE_MAX];
    direct_block_sums(acc, t, dt, panel, next, 0, n_rows, n_panels);
    for (int64_t k = KB; k < t->k; k += KB) {
        direct_block_sums(sum, t, dt, panel, next, k, n_rows, n_panels);
        EACH_ROW EACH_PANEL acc[r][j] = v_add(acc[r][j], sum[r][j]);
    }
    float sums[MM_ROWS * WIDE_MAX * PANEL];
    EACH_ROW EACH_PANEL v_store(sums + (r * n_panels + j) * PANEL,
                                v_reorder(acc[r][j], dt));
    direct_store(t, p, sums, n_panels);
}

INLINE void direct_rows(const struct mm_tile *t, enum dtype dt, int n_rows, int wide)
{
    for (int p = 0; p < t->n_panels; p += wide)
        direct_panels(t, dt, p, n_rows, wide);
}

#define MM_WIDE(rows)                                                                      \
    ((rows) == 1   ? MM_WIDE_1                                                             \
     : (rows) == 2 ? MM_WIDE_2                                                             \
     : (rows) <= 4 ? MM_WIDE_4                                                             \
                   : MM_PANELS)

#define DIRECT(R)                                                                          \
    static void direct_##R(const struct mm_tile *t)                                        \
    {                                                                                      \
        FOR_DTYPE(t->dtype, dt, direct_rows(t, (enum dtype)dt, R, MM_WIDE(R)));            \
    }
EACH_STRIP_HEIGHT(DIRECT)
#undef DIRECT

static void mm_direct(const struct mm_tile *t)
{
#define DIRECT(R) direct_##R,
    static void (*const by_rows[])(const struct mm_tile *t) = {NULL,
                                                               EACH_STRIP_HEIGHT(DIRECT)};
#undef DIRECT
    by_rows[t->m](t);
}

#endif
