/* kern_quant_blocked.h - walks over a tile of many rows, for 8-bit and 4-bit weights.
 *
 * The including file first defines `struct wide`, a widened k-block of a group of panels, and later
 * the two functions that are declared here.  C itself holds the sums over the k-blocks. */
#ifndef TENSOR_KERN_QUANT_BLOCKED_H
#define TENSOR_KERN_QUANT_BLOCKED_H

#define GROUP_COLS (GROUP_PANELS * PANEL)

struct micro {
    const int16_t *x; /* [n_rows][256] */
    const float *e;   /* [n_rows]; for 8-bit weights */
    const struct wide *w;
    int n_blocks;
    float *c;
    int64_t ldc;
    enum dtype dtype;  /* the weights' type */
    bool first;        /* C is overwritten, not added to */
    const float *bias; /* added to the sums; NULL before the last k-block */
};

/* Sets *out to the k-block at k of the panels from `panel` on; a panel beyond the tile's end is
 * replaced by `panel`. */
static void widen_group(struct wide *out, const struct quant_tile *t, int panel, int64_t k);
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

/* Multiplies one group of panels with all rows over one k-block, in strips of nearly equal height.
 */
static void group_rows(const struct quant_tile *t, struct micro m)
{
    int n_strips = (t->m + GROUP_ROWS - 1) / GROUP_ROWS;
    const struct micro all = m;
    for (int i = 0; i < n_strips; i++) {
        int r0 = t->m * i / n_strips, r1 = t->m * (i + 1) / n_strips;
        m.x = all.x + (int64_t)r0 * KB;
        m.e = all.e + r0;
        m.c = all.c + r0 * all.ldc;
        micro_by_rows[r1 - r0](&m);
    }
}

/* A group at the right edge may be narrower than GROUP_COLS: its sums are kept beside C. */
struct edge {
    float *c;
    float *bias;
    int64_t first_col, n_cols;
};

static struct edge edge_of(const struct quant_tile *t, float *aside)
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

static void blocked(const struct quant_tile *t)
{
    struct wide *wide = t->scratch;
    struct edge e = edge_of(t, (float *)(wide + 1));
    _Static_assert(sizeof *wide + (TILE_ROWS + 1) * GROUP_COLS * sizeof(float) <=
                       QUANT_SCRATCH,
                   "scratch of a thread");
    for (int64_t k = 0; k < t->k; k += KB) {
        int n_blocks = quant_blocks_at(k, t->k);
        for (int64_t col = 0; col < t->n_cols; col += GROUP_COLS) {
            bool at_edge = col == e.first_col;
            int panel = (int)(col / PANEL);
            const float *bias = at_edge ? e.bias : t->bias != NULL ? t->bias + col : NULL;
            widen_group(wide, t, panel, k);
            group_rows(t, (struct micro){.x = t->x + k * t->x_rows,
                                         .e = t->e + k / KB * t->x_rows,
                                         .w = wide,
                                         .n_blocks = n_blocks,
                                         .dtype = t->dtype,
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

#endif
