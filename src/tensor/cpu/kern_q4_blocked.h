/* kern_q4_blocked.h - the inner loops of the product with 4-bit weights for many rows: for
 * every k-block a group of panels is widened to bytes once and used by all rows of the tile. */
#ifndef TENSOR_KERN_Q4_BLOCKED_H
#define TENSOR_KERN_Q4_BLOCKED_H

#define GROUP_PANELS Q4_PANELS
#define GROUP_ROWS   Q4_ROWS

/* A k-block of a group of panels, widened: group i has four numbers of each column. */
struct wide {
    uint8_t w[KB / 4][Q4_PANELS][PANEL][4];
    float d[QUANT_PER_K_BLOCK][Q4_PANELS][PANEL], m[QUANT_PER_K_BLOCK][Q4_PANELS][PANEL];
};

#include "tensor/cpu/kern_quant_blocked.h"

static void widen_group(struct wide *out, const struct quant_tile *t, int panel, int64_t k)
{
    for (int j = 0; j < Q4_PANELS; j++) {
        size_t at = (size_t)(panel + j < t->n_panels ? panel + j : panel) * t->panel_bytes;
        widen_any(t->dtype, t->w + at + q4_offset(t->dtype, k), quant_blocks_at(k, t->k),
                  out->w[0][j][0], sizeof out->w[0], out->d[0][j], out->m[0][j],
                  Q4_PANELS * PANEL);
    }
}

INLINE void micro_rows(const struct micro *m, int n_rows)
{
    const int n_panels = Q4_PANELS;
    const float *x = (const float *)(const void *)m->x;
    v16 acc[Q4_ROWS][Q4_PANELS];
    EACH_ROW EACH_PANEL acc[r][j] = m->first ? v_zero()
                                             : v_load(m->c + r * m->ldc + j * PANEL);
    for (int b = 0; b < m->n_blocks; b++) {
        i_part s[Q4_ROWS][Q4_PANELS];
        EACH_ROW EACH_PANEL s[r][j] = i_zero();
        _Pragma("GCC unroll 2") for (int i = b * 8; i < (b + 1) * 8; i++)
        {
            i8x4 w[Q4_PANELS];
            EACH_PANEL w[j] = i_load4(m->w->w[i][j]);
            EACH_ROW
            {
                i8x4 of_x = i_set4((const uint8_t *)x + r * Q4_ROW_BYTES + 4 * i);
                EACH_PANEL s[r][j] = i_dot4(s[r][j], w[j], of_x);
            }
        }
        EACH_PANEL
        {
            v16 d = v_load(m->w->d[b][j]), minimum = v_load(m->w->m[b][j]);
            EACH_ROW
            {
                const float *f = x + r * (Q4_ROW_BYTES / 4) + b;
                acc[r][j] = v_fma(v_mul(i_sums(s[r][j]), v_set1(f[Q4_E])), d, acc[r][j]);
                acc[r][j] = v_fma(v_set1(f[Q4_Z]), minimum, acc[r][j]);
            }
        }
    }
    EACH_ROW EACH_PANEL
    {
        if (m->bias != NULL)
            acc[r][j] = v_add(acc[r][j], v_load(m->bias + j * PANEL));
        v_store(m->c + r * m->ldc + j * PANEL, acc[r][j]);
    }
}

#define Q4_BLOCKED blocked

#endif
