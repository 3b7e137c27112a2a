/* kern_q8_blocked.h - the inner loops of the product with 8-bit weights for many rows.
 *
 * For every k-block a group of panels is widened once, and all rows of the tile use it. */
#ifndef TENSOR_KERN_Q8_BLOCKED_H
#define TENSOR_KERN_Q8_BLOCKED_H

#define GROUP_PANELS Q8_PANELS
#define GROUP_ROWS   Q8_ROWS

/* A widened k-block of a group of panels: step i has a pair of numbers for each column, which is
 * half of a group of four. */
struct wide {
    int16_t w[KB / 2][Q8_PANELS][PANEL][2];
    float d[QUANT_PER_K_BLOCK][Q8_PANELS][PANEL];
};

#include "tensor/cpu/kern_quant_blocked.h"

static size_t group_offset(const struct quant_tile *t, int64_t k)
{
    (void)t;
    return q8_offset(k);
}

static void widen_group(struct wide *out, const struct quant_tile *t, int panel, int64_t k)
{
    int n_blocks = quant_blocks_at(k, t->k);
    for (int j = 0; j < Q8_PANELS; j++) {
        const uint8_t *from = t->w + q8_offset(k) +
                              (size_t)(panel + j < t->n_panels ? panel + j : panel) *
                                  t->panel_bytes;
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

INLINE void micro_rows(const struct micro *m, int n_rows)
{
    const int n_panels = Q8_PANELS;
    v16 p[Q8_ROWS][Q8_PANELS];
    EACH_ROW EACH_PANEL p[r][j] = v_zero();
    for (int b = 0; b < m->n_blocks; b++) {
        i32 s[Q8_ROWS][Q8_PANELS];
        EACH_ROW EACH_PANEL s[r][j] = i_zero();
        const int16_t *at = m->x + b * Q8_BLOCK, *from = m->w->w[b * Q8_BLOCK / 2][0][0];
        Q8_UNROLL for (int i = 0; i < Q8_BLOCK / 2; i++)
        {
            i16x2 w[Q8_PANELS];
            EACH_PANEL w[j] = i_load(from + (i * Q8_PANELS + j) * PANEL * 2);
            EACH_ROW
            {
                i16x2 x = i_set1(at + r * KB + 2 * i);
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
        v16 sum = m->first ? v_zero() : v_load(m->sums + r * GROUP_COLS + j * PANEL);
        v16 y = v_fma(p[r][j], v_set1(m->e[r]), sum);
        if (m->bias != NULL)
            y = v_add(y, v_load(m->bias + j * PANEL));
        v_store(c, y);
    }
}

/* `blocked` reads activations in the same form as `direct`, so both use round_row. */
#define Q8_BLOCKED       blocked
#define Q8_ROUND_BLOCKED round_row

#endif
