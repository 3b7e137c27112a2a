/* kern_q8_blocked.h - the inner loops of the product with 8-bit weights for many rows.
 *
 * For every k-block a group of panels is widened once and used by all rows of the tile; what has been
 * summed over the k-blocks lies in C itself. */
#ifndef TENSOR_KERN_Q8_BLOCKED_H
#define TENSOR_KERN_Q8_BLOCKED_H

#define GROUP_COLS (Q8_PANELS * PANEL)

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

/* It reads what the few rows read. */
#define Q8_BLOCKED       blocked
#define Q8_ROUND_BLOCKED round_row

#endif
