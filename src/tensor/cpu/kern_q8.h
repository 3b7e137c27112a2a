/* kern_q8.h - the inner loops of the product with 8-bit weights.
 *
 * direct: few rows.  Weights are widened in registers, several panels (streams of memory) at a time.
 * blocked: many rows.  For every k-block a group of panels is widened once and used by all rows of
 *   the tile; what has been summed over the k-blocks lies in C itself. */
#ifndef TENSOR_KERN_Q8_H
#define TENSOR_KERN_Q8_H

#define KB         MATMUL_K_BLOCK
#define GROUP_COLS (Q8_PANELS * PANEL)
#define WIDE_MAX   4
#define EACH_ROW   _Pragma("GCC unroll 8") for (int r = 0; r < n_rows; r++)
#define EACH_PANEL _Pragma("GCC unroll 4") for (int j = 0; j < n_panels; j++)
/* How far ahead memory is asked for, as in kern_matmul.h. */
#define FETCH_BYTES 2048

/* --- rounding -------------------------------------------------------------------------------- */

static uint32_t abs_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u & 0x7fffffff;
}

static float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Magnitudes are ordered as their bits are; infinity and NaN come last. */
static uint32_t largest_bits(const float *a, int64_t n)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = abs_bits(a[i]);
        top = u > top ? u : top;
    }
    return top;
}

#define INFINITY_BITS 0x7f800000u
/* 1.5 * 2^23: adding it leaves a whole number, to nearest even, in the low bits. */
#define ROUNDER      12582912.0f
#define ROUNDER_BITS 0x4b400000

static int32_t whole(float f)
{
    int32_t i;
    f += ROUNDER;
    memcpy(&i, &f, sizeof i);
    return i - ROUNDER_BITS;
}

static float round_block(const float *a, int n, int16_t *x)
{
    int16_t straight[KB] = {0};
    uint32_t top = largest_bits(a, n);
    float largest = float_of_bits(top), scale = 32767.0f / largest;
    memset(x, 0, KB * sizeof *x);
    if (top >= INFINITY_BITS)
        return float_of_bits(0x7fc00000);
    if (largest < 0x1p-100f)
        return 0;
    for (int i = 0; i < n; i++)
        straight[i] = (int16_t)whole(a[i] * scale);
    for (int i = 0; i < KB; i += 4) { /* 0 2 1 3: see q8.h */
        x[i] = straight[i];
        x[i + 1] = straight[i + 2];
        x[i + 2] = straight[i + 1];
        x[i + 3] = straight[i + 3];
    }
    return largest / 32767.0f;
}

static void round_row(const float *a, int64_t k, int16_t *x, int64_t x_step, float *e,
                      int64_t e_step)
{
    for (int64_t i = 0; i < k; i += KB) {
        int n = (int)(k - i < KB ? k - i : KB);
        *e = round_block(a + i, n, x);
        x += x_step;
        e += e_step;
    }
}

/* q and the scale of one block of a row of W. */
static bool round_weights(const float *w, int n, int8_t q[Q8_BLOCK], uint16_t *d16)
{
    uint32_t top = largest_bits(w, n);
    memset(q, 0, Q8_BLOCK);
    *d16 = 0;
    if (top == 0)
        return true;
    float want = float_of_bits(top) / 127.0f;
    *d16 = f32_to_f16(want);
    *d16 = (uint16_t)(*d16 + (f16_to_f32(*d16) < want));
    float d = f16_to_f32(*d16);
    if (abs_bits(d) >= INFINITY_BITS)
        return false;
    for (int i = 0; i < n; i++)
        q[i] = (int8_t)whole(w[i] / d);
    return true;
}

static bool pack_row(uint8_t *panel, int column, const float *w, int64_t k)
{
    for (int64_t i = 0; i < k; i += Q8_BLOCK) {
        int64_t kb = i / KB * KB, b = (i - kb) / Q8_BLOCK;
        uint8_t *at = panel + q8_offset(kb);
        uint8_t *scales = at + q8_blocks_at(kb, k) * Q8_BLOCK_BYTES;
        int8_t q[Q8_BLOCK];
        uint16_t d;
        if (!round_weights(w + i, (int)(k - i < Q8_BLOCK ? k - i : Q8_BLOCK), q, &d))
            return false;
        for (int g = 0; g < Q8_GROUPS; g++)
            memcpy(at + b * Q8_BLOCK_BYTES + (g * PANEL + column) * 4, q + 4 * g, 4);
        memcpy(scales + b * Q8_SCALE_BYTES + 2 * column, &d, sizeof d);
    }
    return true;
}

/* --- few rows -------------------------------------------------------------------------------- */

/* s[r][j] = the exact sums over one block of 32. */
INLINE void direct_block(i32 (*s)[WIDE_MAX], const int16_t *x, const uint8_t *const *w,
                         int n_rows, int n_panels)
{
    EACH_ROW EACH_PANEL s[r][j] = i_zero();
    for (int g = 0; g < Q8_GROUPS; g++) {
        i16x2 even[WIDE_MAX], odd[WIDE_MAX];
        EACH_PANEL __builtin_prefetch(w[j] + g * PANEL * 4 + FETCH_BYTES);
        EACH_PANEL i_widen(w[j] + g * PANEL * 4, &even[j], &odd[j]);
        EACH_ROW
        {
            i16x2 x0 = i_set1(x + r * KB + 4 * g), x1 = i_set1(x + r * KB + 4 * g + 2);
            EACH_PANEL s[r][j] = i_dot(i_dot(s[r][j], even[j], x0), odd[j], x1);
        }
    }
}

/* acc[r][j] += the k-block at k. */
INLINE void direct_k_block(v16 (*acc)[WIDE_MAX], const struct q8_tile *t,
                           const uint8_t *const *panel, int64_t k, int n_rows, int n_panels)
{
    int n_blocks = q8_blocks_at(k, t->k);
    const int16_t *x = t->x + k * t->x_rows;
    const float *e = t->e + k / KB * t->x_rows;
    const uint8_t *w[WIDE_MAX], *scales[WIDE_MAX];
    v16 p[Q8_DIRECT][WIDE_MAX];
    i32 s[Q8_DIRECT][WIDE_MAX];
    EACH_PANEL w[j] = panel[j] + q8_offset(k);
    EACH_PANEL scales[j] = w[j] + n_blocks * Q8_BLOCK_BYTES;
    EACH_ROW EACH_PANEL p[r][j] = v_zero();
    for (int b = 0; b < n_blocks; b++) {
        direct_block(s, x + b * Q8_BLOCK, w, n_rows, n_panels);
        EACH_PANEL
        {
            v16 d = v_load_f16((const uint16_t *)(scales[j] + b * Q8_SCALE_BYTES));
            EACH_ROW p[r][j] = v_fma(i_float(s[r][j]), d, p[r][j]);
            w[j] += Q8_BLOCK_BYTES;
        }
    }
    EACH_ROW EACH_PANEL acc[r][j] = v_fma(p[r][j], v_set1(e[r]), acc[r][j]);
}

/* C at panel p = the sums (+ bias); columns that do not exist are dropped. */
static void direct_store(const struct q8_tile *t, int p, const float *sums, int n_panels)
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

/* Panels [p, p + n_panels); those behind the tile's end are the last one again, and dropped. */
INLINE void direct_panels(const struct q8_tile *t, int p, int n_rows, int n_panels)
{
    const uint8_t *panel[WIDE_MAX];
    v16 acc[Q8_DIRECT][WIDE_MAX];
    EACH_PANEL panel[j] = t->w + (size_t)(p + j < t->n_panels ? p + j : t->n_panels - 1) *
                                     t->panel_bytes;
    EACH_ROW EACH_PANEL acc[r][j] = v_zero();
    for (int64_t k = 0; k < t->k; k += KB)
        direct_k_block(acc, t, panel, k, n_rows, n_panels);
    float sums[Q8_DIRECT * WIDE_MAX * PANEL];
    EACH_ROW EACH_PANEL v_store(sums + (r * n_panels + j) * PANEL, acc[r][j]);
    direct_store(t, p, sums, n_panels);
}

#define DIRECT(R, WIDE)                                                                    \
    static void direct_##R(const struct q8_tile *t)                                        \
    {                                                                                      \
        for (int p = 0; p < t->n_panels; p += WIDE)                                        \
            direct_panels(t, p, R, WIDE);                                                  \
    }
DIRECT(1, Q8_WIDE_1)
DIRECT(2, Q8_WIDE_2)
DIRECT(3, Q8_WIDE_4)
DIRECT(4, Q8_WIDE_4)
#undef DIRECT

static void direct(const struct q8_tile *t)
{
    static void (*const by_rows[])(const struct q8_tile *t) = {NULL, direct_1, direct_2,
                                                               direct_3, direct_4};
    by_rows[t->m](t);
}

/* --- many rows ------------------------------------------------------------------------------- */

/* A k-block of a group of panels, widened: step i has the pairs of half a group of four. */
struct wide {
    int16_t w[KB / 2][Q8_PANELS][PANEL][2];
    float d[Q8_PER_K_BLOCK][Q8_PANELS][PANEL];
};

static void widen_group(struct wide *out, const uint8_t *w, size_t panel_bytes,
                        int n_panels, int n_blocks)
{
    for (int j = 0; j < Q8_PANELS; j++) {
        const uint8_t *from = w + (size_t)(j < n_panels ? j : 0) * panel_bytes;
        const uint8_t *scales = from + n_blocks * Q8_BLOCK_BYTES;
        for (int g = 0; g < n_blocks * Q8_GROUPS; g++) {
            i16x2 even, odd;
            i_widen(from + g * PANEL * 4, &even, &odd);
            i_store(out->w[2 * g][j], even);
            i_store(out->w[2 * g + 1][j], odd);
        }
        for (int b = 0; b < n_blocks; b++)
            v_store(out->d[b][j],
                    v_load_f16((const uint16_t *)(scales + b * Q8_SCALE_BYTES)));
    }
}

struct micro {
    const int16_t *x; /* [n_rows][256] */
    const float *e;
    const struct wide *w;
    int n_blocks;
    float *c;
    int64_t ldc;
    bool first;        /* C is not read */
    const float *bias; /* added where not NULL: the last k-block */
};

INLINE void micro_rows(const struct micro *m, int n_rows)
{
    const int n_panels = Q8_PANELS;
    v16 p[Q8_ROWS][Q8_PANELS];
    EACH_ROW EACH_PANEL p[r][j] = v_zero();
    for (int b = 0; b < m->n_blocks; b++) {
        i32 s[Q8_ROWS][Q8_PANELS];
        EACH_ROW EACH_PANEL s[r][j] = i_zero();
        for (int i = b * Q8_BLOCK / 2; i < (b + 1) * Q8_BLOCK / 2; i++) {
            i16x2 w[Q8_PANELS];
            EACH_PANEL w[j] = i_load(m->w->w[i][j]);
            EACH_ROW
            {
                i16x2 x = i_set1(m->x + r * KB + 2 * i);
                EACH_PANEL s[r][j] = i_dot(s[r][j], w[j], x);
            }
        }
        EACH_PANEL
        {
            v16 d = v_load(m->w->d[b][j]);
            EACH_ROW p[r][j] = v_fma(i_float(s[r][j]), d, p[r][j]);
        }
    }
    EACH_ROW EACH_PANEL
    {
        float *c = m->c + r * m->ldc + j * PANEL;
        v16 y = v_fma(p[r][j], v_set1(m->e[r]), m->first ? v_zero() : v_load(c));
        if (m->bias != NULL)
            y = v_add(y, v_load(m->bias + j * PANEL));
        v_store(c, y);
    }
}

#define MICRO(R)                                                                           \
    static void micro_##R(const struct micro *m)                                           \
    {                                                                                      \
        micro_rows(m, R);                                                                  \
    }
MICRO(1)
MICRO(2)
MICRO(3)
MICRO(4)
#if Q8_ROWS >= 6
MICRO(5)
MICRO(6)
#endif
#undef MICRO

static void (*const micro_by_rows[])(const struct micro *m) = {
    NULL,    micro_1, micro_2, micro_3, micro_4,
#if Q8_ROWS >= 6
    micro_5, micro_6,
#endif
};

/* One group of panels, one k-block, all rows, in strips of nearly equal height. */
static void group_rows(const struct q8_tile *t, struct micro m)
{
    int n_strips = (t->m + Q8_ROWS - 1) / Q8_ROWS;
    const struct micro all = m;
    for (int i = 0; i < n_strips; i++) {
        int r0 = t->m * i / n_strips, r1 = t->m * (i + 1) / n_strips;
        m.x = all.x + (int64_t)r0 * KB;
        m.e = all.e + r0;
        m.c = all.c + r0 * all.ldc;
        micro_by_rows[r1 - r0](&m);
    }
}

/* A group at the right edge may be narrower than GROUP_COLS: it is summed beside C. */
struct edge {
    float *c;
    float *bias;
    int64_t first_col, n_cols;
};

static struct edge edge_of(const struct q8_tile *t, float *aside)
{
    struct edge e = {aside, NULL, t->n_cols, t->n_cols % GROUP_COLS};
    e.first_col = t->n_cols - e.n_cols;
    if (t->bias != NULL) {
        e.bias = aside + TILE_ROWS * GROUP_COLS;
        memset(e.bias, 0, GROUP_COLS * sizeof(float));
        memcpy(e.bias, t->bias + e.first_col, (size_t)e.n_cols * sizeof(float));
    }
    return e;
}

static void blocked(const struct q8_tile *t)
{
    struct wide *wide = t->scratch;
    struct edge e = edge_of(t, (float *)(wide + 1));
    _Static_assert(sizeof *wide + (TILE_ROWS + 1) * GROUP_COLS * sizeof(float) <=
                       Q8_SCRATCH,
                   "scratch of a thread");
    for (int64_t k = 0; k < t->k; k += KB) {
        int n_blocks = q8_blocks_at(k, t->k);
        for (int64_t col = 0; col < t->n_cols; col += GROUP_COLS) {
            bool at_edge = col == e.first_col;
            int panel = (int)(col / PANEL);
            const float *bias = at_edge ? e.bias : t->bias != NULL ? t->bias + col : NULL;
            widen_group(wide, t->w + (size_t)panel * t->panel_bytes + q8_offset(k),
                        t->panel_bytes, t->n_panels - panel, n_blocks);
            group_rows(t, (struct micro){.x = t->x + k * t->x_rows,
                                         .e = t->e + k / KB * t->x_rows,
                                         .w = wide,
                                         .n_blocks = n_blocks,
                                         .c = at_edge ? e.c : t->c + col,
                                         .ldc = at_edge ? GROUP_COLS : t->ldc,
                                         .first = k == 0,
                                         .bias = k + KB >= t->k ? bias : NULL});
        }
    }
    for (int r = 0; e.n_cols > 0 && r < t->m; r++)
        memcpy(t->c + r * t->ldc + e.first_col, e.c + r * GROUP_COLS,
               (size_t)e.n_cols * sizeof(float));
}

/* --- the table ------------------------------------------------------------------------------- */

static bool runs_here(void)
{
    return Q8_RUNS;
}

const struct q8_kernels Q8_TABLE = {
    .name = Q8_NAME,
    .runs_here = runs_here,
    .direct_rows = Q8_DIRECT,
    .direct = direct,
    .blocked = blocked,
    .round_row = round_row,
    .pack_row = pack_row,
};

#endif
