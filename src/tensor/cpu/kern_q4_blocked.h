/* kern_q4_blocked.h - the inner loops of the product with weights in blocks for many rows: for
 * every k-block a group of panels is widened to bytes once, and all rows of the tile use it.
 *
 * The sums over the k-blocks before the last one stay in scratch memory: rows of C often lie a
 * power of two apart, and then evict each other. */
#ifndef TENSOR_KERN_Q4_BLOCKED_H
#define TENSOR_KERN_Q4_BLOCKED_H

#define GROUP_COLS    (Q4_PANELS * PANEL)
#define SPREAD_STRIPS 3

/* A k-block of a group of panels, widened: group i has four numbers of each column. */
struct wide {
    uint8_t w[KB / 4][Q4_PANELS][PANEL][4];
    float d[QUANT_PER_K_BLOCK][Q4_PANELS][PANEL], m[QUANT_PER_K_BLOCK][Q4_PANELS][PANEL];
};

struct micro {
    const int16_t *x; /* [n_rows][256] */
    const struct wide *w;
    int n_blocks;
    const float *sums; /* [n_rows][GROUP_COLS] sums over the k-blocks before */
    bool first;        /* there is no k-block before */
    float *c;          /* receives the sums: `sums` itself, and C after the last k-block */
    int64_t ldc;
    enum dtype dtype;  /* the weights' type */
    const float *bias; /* added to the sums; NULL before the last k-block */
    /* Lines of each panel that a block prefetches for the next group, and where they begin. */
    size_t n_lines;
    const uint8_t *lines[Q4_PANELS];
};

/* Sets *out to the k-block at k of the panels from `panel` on; a panel beyond the tile's end is
 * replaced by `panel`. */
static void widen_group(struct wide *out, const struct quant_tile *t, int panel, int64_t k)
{
    for (int j = 0; j < Q4_PANELS; j++) {
        size_t at = (size_t)(panel + j < t->n_panels ? panel + j : panel) * t->panel_bytes;
        const uint8_t *from = t->w + at + q4_offset(t->dtype, k);
        int n_blocks = quant_blocks_at(k, t->k);
        widen_any(t->dtype, from, n_blocks, out->w[0][j][0], sizeof out->w[0], out->d[0][j],
                  out->m[0][j], Q4_PANELS * PANEL);
    }
}

/* Adds the k-block's sums to those of the k-blocks before. */
INLINE void micro_store(const struct micro *m, v16 (*acc)[Q4_PANELS], int n_rows)
{
    const int n_panels = Q4_PANELS;
    const float *f = (const float *)(const void *)m->x;
    EACH_ROW EACH_PANEL
    {
        v16 before = m->first ? v_zero() : v_load(m->sums + r * GROUP_COLS + j * PANEL);
        acc[r][j] = add_k_block(before, acc[r][j], f + r * (Q4_ROW_BYTES / 4));
        if (m->bias != NULL)
            acc[r][j] = v_add(acc[r][j], v_load(m->bias + j * PANEL));
        v_store(m->c + r * m->ldc + j * PANEL, acc[r][j]);
    }
}

/* Adds block b of q6_k, half by half, or of mxfp4 of every row to acc.  All rows and panels are
 * taken side by side: one row after another, each row's chain of steps would fill the processor's
 * window. */
INLINE void micro_wide(v16 (*acc)[Q4_PANELS], enum dtype t, const struct micro *m, int b,
                       int n_rows)
{
    const int n_panels = Q4_PANELS, n_parts = t == DTYPE_Q6_K ? 2 : 1, n = 8 / n_parts;
    const float *f = (const float *)(const void *)m->x,
                *starts = f + (t == DTYPE_Q6_K ? Q4_H + 2 * b : Q4_TWELVE + b);
    _Pragma("GCC unroll 2") for (int part = 0; part < n_parts; part++)
    {
        const uint8_t *at = (const uint8_t *)m->x + b * Q4_BLOCK + 4 * n * part;
        i_half_sum s[Q4_ROWS][Q4_PANELS];
        EACH_ROW EACH_PANEL s[r][j] = i_half_begin(
            i_set4(starts + r * (Q4_ROW_BYTES / 4) + part));
        Q4_UNROLL for (int i = 0; i < n; i++)
        {
            i8x4 w[Q4_PANELS];
            EACH_PANEL w[j] = i_load4(m->w->w[b * 8 + n * part + i][j]);
            EACH_ROW
            {
                i8x4 of_x = i_set4(at + r * Q4_ROW_BYTES + 4 * i);
                EACH_PANEL s[r][j] = i_half_dot(s[r][j], w[j], of_x, i);
            }
        }
        EACH_PANEL
        {
            v16 d = v_load(part == 0 ? m->w->d[b][j] : m->w->m[b][j]);
            EACH_ROW acc[r][j] = add_sum(acc[r][j], i_half_end(s[r][j]),
                                         f + r * (Q4_ROW_BYTES / 4), b, d);
        }
    }
}

/* Prefetches the part of block b in the next strip's rows, the sums of row b (k-blocks of many rows
 * lie in L2), and the block's lines of the next group. */
INLINE void fetch_rows(const struct micro *m, int b, int n_rows)
{
    const uint8_t *next = (const uint8_t *)m->x + n_rows * Q4_ROW_BYTES + b * 64;
    EACH_ROW __builtin_prefetch(next + r * Q4_ROW_BYTES, 0, 3);
    for (int i = 0; i < GROUP_COLS && b < n_rows; i += 16)
        __builtin_prefetch(m->sums + b * GROUP_COLS + i, 1, 3);
    for (size_t i = 0; i < m->n_lines; i++)
        for (int j = 0; j < Q4_PANELS; j++)
            __builtin_prefetch(m->lines[j] + 64 * ((size_t)b * m->n_lines + i), 0, 2);
}

/* Adds block b of every row to acc. */
INLINE void micro_block(v16 (*acc)[Q4_PANELS], enum dtype t, const struct micro *m, int b,
                        int n_rows)
{
    const int n_panels = Q4_PANELS;
    const float *x = (const float *)(const void *)m->x;
    const uint8_t *at = (const uint8_t *)m->x + b * Q4_BLOCK, *from = m->w->w[b * 8][0][0];
    i_part s[Q4_ROWS][Q4_PANELS];
    EACH_ROW EACH_PANEL s[r][j] = sum_begin(t, x + r * (Q4_ROW_BYTES / 4), b);
    Q4_UNROLL for (int i = 0; i < 8; i++)
    {
        i8x4 w[Q4_PANELS];
        EACH_PANEL w[j] = i_load4(from + (i * Q4_PANELS + j) * PANEL * 4);
        EACH_ROW
        {
            i8x4 of_x = i_set4(at + r * Q4_ROW_BYTES + 4 * i);
            EACH_PANEL s[r][j] = sum_dot(t, s[r][j], w[j], of_x);
        }
    }
    EACH_PANEL
    {
        v16 d = v_load(m->w->d[b][j]), of_m = v_load(m->w->m[b][j]);
        EACH_ROW acc[r][j] = add_block(t, acc[r][j], s[r][j], x + r * (Q4_ROW_BYTES / 4), b,
                                       d, of_m);
    }
}

INLINE void micro_blocks(enum dtype t, v16 (*acc)[Q4_PANELS], const struct micro *m,
                         int n_rows)
{
    const int n_panels = Q4_PANELS;
    const float *x = (const float *)(const void *)m->x;
    for (int b = 0; b < m->n_blocks; b++) {
        fetch_rows(m, b, n_rows);
        if (t == DTYPE_Q6_K || t == DTYPE_MXFP4)
            micro_wide(acc, t, m, b, n_rows);
        else
            micro_block(acc, t, m, b, n_rows);
    }
    if (t == DTYPE_Q4_K)
        EACH_PANEL
        {
            EACH_ROW acc[r][j] = add_minimums(acc[r][j], x + r * (Q4_ROW_BYTES / 4),
                                              m->w->m[0][j], Q4_PANELS * PANEL);
        }
}

/* Multiplies n_rows rows; n_rows is a constant wherever this is inlined. */
INLINE void micro_rows(const struct micro *m, int n_rows)
{
    const int n_panels = Q4_PANELS;
    v16 acc[Q4_ROWS][Q4_PANELS];
    EACH_ROW EACH_PANEL acc[r][j] = v_zero();
    OF_WIDENED(m->dtype, micro_blocks, acc, m, n_rows);
    micro_store(m, acc, n_rows);
}

#define MICRO(R)                                                                           \
    static void micro_##R(const struct micro *m)                                           \
    {                                                                                      \
        micro_rows(m, R);                                                                  \
    }
MICRO(1)
#if Q4_ROWS >= 4
MICRO(2)
MICRO(3)
MICRO(4)
#endif
#if Q4_ROWS >= 6
MICRO(5)
MICRO(6)
#endif
#undef MICRO

static void (*const micro_by_rows[])(const struct micro *m) = {
    NULL,    micro_1,
#if Q4_ROWS >= 4
    micro_2, micro_3, micro_4,
#endif
#if Q4_ROWS >= 6
    micro_5, micro_6,
#endif
};

/* The k-block of each panel of a group that is widened next. */
struct next_group {
    const uint8_t *panel[Q4_PANELS];
    size_t lines;
};

static struct next_group group_after(const struct quant_tile *t, int panel, int64_t k)
{
    struct next_group next = {.lines = 0};
    panel += Q4_PANELS;
    if (panel >= t->n_panels) {
        panel = 0;
        k += KB;
    }
    if (k < t->k) {
        size_t at = q4_offset(t->dtype, k), end = q4_offset(t->dtype, MIN(k + KB, t->k));
        for (int j = 0; j < Q4_PANELS; j++)
            next.panel[j] = t->w + at +
                            (size_t)MIN(panel + j, t->n_panels - 1) * t->panel_bytes;
        next.lines = (end - at) / 64;
    }
    return next;
}

/* Multiplies one group of panels with all rows over one k-block, in strips of nearly equal height.
 * Each strip prefetches its share of the next group: k-blocks lie a panel apart, so the processor
 * does not expect them.  Few strips have large shares, and spread them over their blocks: of many
 * prefetches at once some are lost. */
static void group_rows(const struct quant_tile *t, struct micro m, struct next_group next)
{
    int n_strips = (t->m + Q4_ROWS - 1) / Q4_ROWS;
    const struct micro all = m;
    size_t line = 0;
    for (int i = 1, r0 = 0, r1; i <= n_strips; i++, r0 = r1) {
        size_t end = next.lines * (size_t)i / (size_t)n_strips;
        r1 = t->m * i / n_strips;
        if (n_strips <= SPREAD_STRIPS) {
            m.n_lines = (end - line + QUANT_PER_K_BLOCK - 1) / QUANT_PER_K_BLOCK;
            for (int j = 0; j < Q4_PANELS; j++)
                m.lines[j] = next.panel[j] + 64 * line;
            line = end;
        }
        for (; line < end; line++)
            for (int j = 0; j < Q4_PANELS; j++)
                __builtin_prefetch(next.panel[j] + 64 * line, 0, 2);
        m.x = all.x + (int64_t)r0 * KB;
        m.sums = all.sums + r0 * GROUP_COLS;
        m.c = all.c + r0 * all.ldc;
        micro_by_rows[r1 - r0](&m);
    }
}

/* A group at the right edge may be narrower than GROUP_COLS: it gets a bias of its own, and its
 * results are copied to C. */
static const float *edge_bias(const struct quant_tile *t, int64_t col, float *aside)
{
    memset(aside, 0, GROUP_COLS * sizeof *aside);
    memcpy(aside, t->bias + col, (size_t)(t->n_cols - col) * sizeof *aside);
    return aside;
}

static void edge_copy(const struct quant_tile *t, int64_t col, const float *from)
{
    for (int r = 0; r < t->m; r++)
        memcpy(t->c + r * t->ldc + col, from + r * GROUP_COLS,
               (size_t)(t->n_cols - col) * sizeof *from);
}

static void blocked(const struct quant_tile *t)
{
    struct wide *wide = t->scratch;
    float *bias = (float *)(wide + 1), *all_sums = bias + GROUP_COLS;
    _Static_assert(sizeof *wide + (QUANT_ROWS * TILE_COLS + GROUP_COLS) * sizeof(float) <=
                       QUANT_SCRATCH,
                   "scratch of a thread");
    for (int64_t k = 0; k < t->k; k += KB) {
        bool last = k + KB >= t->k;
        for (int64_t col = 0; col < t->n_cols; col += GROUP_COLS) {
            bool at_edge = col + GROUP_COLS > t->n_cols;
            int panel = (int)(col / PANEL);
            float *sums = all_sums + col * t->m;
            struct micro m = {.x = t->x + k * t->x_rows,
                              .w = wide,
                              .n_blocks = quant_blocks_at(k, t->k),
                              .dtype = t->dtype,
                              .sums = sums,
                              .first = k == 0,
                              .c = last && !at_edge ? t->c + col : sums,
                              .ldc = last && !at_edge ? t->ldc : GROUP_COLS};
            if (last && t->bias != NULL)
                m.bias = at_edge ? edge_bias(t, col, bias) : t->bias + col;
            widen_group(wide, t, panel, k);
            group_rows(t, m, group_after(t, panel, k));
            if (last && at_edge)
                edge_copy(t, col, sums);
        }
    }
}

#define Q4_BLOCKED blocked

#endif
