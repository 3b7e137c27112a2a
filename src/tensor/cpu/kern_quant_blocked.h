/* kern_quant_blocked.h - walks over a tile of many rows of weights in blocks.
 *
 * The including file first defines `struct wide`, a widened k-block of a group of panels, and later
 * the three functions that are declared here.  The sums over the k-blocks before the last one stay
 * in scratch memory: rows of C often lie a power of two apart, and then evict each other. */
#ifndef TENSOR_KERN_QUANT_BLOCKED_H
#define TENSOR_KERN_QUANT_BLOCKED_H

#define GROUP_COLS (GROUP_PANELS * PANEL)

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
};

/* Sets *out to the k-block at k of the panels from `panel` on; a panel beyond the tile's end is
 * replaced by `panel`. */
static void widen_group(struct wide *out, const struct quant_tile *t, int panel, int64_t k);
/* Returns the offset of the k-block at k in its panel. */
static size_t group_offset(const struct quant_tile *t, int64_t k);
/* Multiplies n_rows rows; n_rows is a constant wherever this is inlined. */
INLINE void micro_rows(const struct micro *m, int n_rows);

#define MICRO(R)                                                                           \
    static void micro_##R(const struct micro *m)                                           \
    {                                                                                      \
        micro_rows(m, R);                                                                  \
    }
MICRO(1)
MICRO(2)
MICRO(3)
MICRO(4)
#if GROUP_ROWS >= 6
MICRO(5)
MICRO(6)
#endif
#undef MICRO

static void (*const micro_by_rows[])(const struct micro *m) = {
    NULL,    micro_1, micro_2, micro_3, micro_4,
#if GROUP_ROWS >= 6
    micro_5, micro_6,
#endif
};

/* The k-block of each panel of a group that is widened next. */
struct next_group {
    const uint8_t *panel[GROUP_PANELS];
    size_t lines;
};

static struct next_group group_after(const struct quant_tile *t, int panel, int64_t k)
{
    struct next_group next = {.lines = 0};
    panel += GROUP_PANELS;
    if (panel >= t->n_panels) {
        panel = 0;
        k += KB;
    }
    if (k < t->k) {
        size_t at = group_offset(t, k), end = group_offset(t, MIN(k + KB, t->k));
        for (int j = 0; j < GROUP_PANELS; j++)
            next.panel[j] = t->w + at +
                            (size_t)MIN(panel + j, t->n_panels - 1) * t->panel_bytes;
        next.lines = (end - at) / 64;
    }
    return next;
}

/* Multiplies one group of panels with all rows over one k-block, in strips of nearly equal height.
 * Each strip prefetches its share of the next group: k-blocks lie a panel apart, so the processor
 * does not expect them. */
static void group_rows(const struct quant_tile *t, struct micro m, struct next_group next)
{
    int n_strips = (t->m + GROUP_ROWS - 1) / GROUP_ROWS;
    const struct micro all = m;
    for (int i = 0; i < n_strips; i++) {
        int r0 = t->m * i / n_strips, r1 = t->m * (i + 1) / n_strips;
        size_t end = next.lines * (size_t)(i + 1) / (size_t)n_strips;
        for (size_t line = next.lines * (size_t)i / (size_t)n_strips; line < end; line++)
            for (int j = 0; j < GROUP_PANELS; j++)
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

#endif
