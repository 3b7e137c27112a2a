/* kern_q4_blocked.h - the inner loops of the product with 4-bit weights for many rows: for every
 * k-block a group of panels is widened to bytes once, and all rows of the tile use it. */
#ifndef TENSOR_KERN_Q4_BLOCKED_H
#define TENSOR_KERN_Q4_BLOCKED_H

#define GROUP_PANELS Q4_PANELS
#define GROUP_ROWS   Q4_ROWS

/* A k-block of a group of panels, widened: group i has four numbers of each column. */
struct wide {
    uint8_t w[KB / 4][Q4_PANELS][PANEL][4];
    float d[QUANT_PER_K_BLOCK][Q4_PANELS][PANEL], m[QUANT_PER_K_BLOCK][Q4_PANELS][PANEL];
    float top[Q4_PANELS][PANEL]; /* D of each column; for q6_k only */
};

#include "tensor/cpu/kern_quant_blocked.h"

static void widen_group(struct wide *out, const struct quant_tile *t, int panel, int64_t k)
{
    for (int j = 0; j < Q4_PANELS; j++) {
        size_t at = (size_t)(panel + j < t->n_panels ? panel + j : panel) * t->panel_bytes;
        const uint8_t *from = t->w + at + q4_offset(t->dtype, k);
        int n_blocks = quant_blocks_at(k, t->k);
        widen_any(t->dtype, from, n_blocks, out->w[0][j][0], sizeof out->w[0], out->d[0][j],
                  out->m[0][j], Q4_PANELS * PANEL);
        if (t->dtype == DTYPE_Q6_K)
            v_store(out->top[j], top_scale(from, n_blocks));
    }
}

/* Adds half of block b of q6_k to s[r][j]: its t times the sum of x (q - 32). */
INLINE void micro_half(v16 (*s)[Q4_PANELS], const struct micro *m, int b, int half,
                       int n_rows)
{
    const int n_panels = Q4_PANELS;
    const float *x = (const float *)(const void *)m->x;
    EACH_PANEL
    {
        i8x4 q[4];
        v16 t = v_load(half == 0 ? m->w->d[b][j] : m->w->m[b][j]);
        for (int v = 0; v < 4; v++)
            q[v] = i_load4(m->w->w[b * 8 + half * 4 + v][j]);
        EACH_ROW
        {
            const float *f = x + r * (Q4_ROW_BYTES / 4);
            v16 sum = half_sum(q, (const uint8_t *)f + b * Q4_BLOCK + half * 16,
                               f[Q4_H + 2 * b + half]);
            s[r][j] = v_fma(sum, t, s[r][j]);
        }
    }
}

INLINE void micro_store(const struct micro *m, v16 (*acc)[Q4_PANELS], int n_rows)
{
    const int n_panels = Q4_PANELS;
    EACH_ROW EACH_PANEL
    {
        if (m->bias != NULL)
            acc[r][j] = v_add(acc[r][j], v_load(m->bias + j * PANEL));
        v_store(m->c + r * m->ldc + j * PANEL, acc[r][j]);
    }
}

INLINE void micro_rows(const struct micro *m, int n_rows)
{
    const int n_panels = Q4_PANELS;
    const float *x = (const float *)(const void *)m->x;
    v16 acc[Q4_ROWS][Q4_PANELS];
    EACH_ROW EACH_PANEL acc[r][j] = m->first ? v_zero()
                                             : v_load(m->c + r * m->ldc + j * PANEL);
    for (int b = 0; b < m->n_blocks && m->dtype == DTYPE_Q6_K; b++) {
        v16 s[Q4_ROWS][Q4_PANELS];
        EACH_ROW EACH_PANEL s[r][j] = v_zero();
        micro_half(s, m, b, 0, n_rows);
        micro_half(s, m, b, 1, n_rows);
        EACH_PANEL
        {
            v16 top = v_load(m->w->top[j]);
            EACH_ROW
            {
                v16 e = v_set1(x[r * (Q4_ROW_BYTES / 4) + Q4_E + b]);
                acc[r][j] = v_fma(v_mul(s[r][j], e), top, acc[r][j]);
            }
        }
    }
    for (int b = 0; b < m->n_blocks && m->dtype != DTYPE_Q6_K; b++) {
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
    micro_store(m, acc, n_rows);
}

#define Q4_BLOCKED blocked

#endif
