/* kern_q4_blocked.h - the inner loops of the product with weights in blocks for many rows: for
 * every k-block a group of panels is widened to bytes once, and all rows of the tile use it. */
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

static size_t group_offset(const struct quant_tile *t, int64_t k)
{
    return q4_offset(t->dtype, k);
}

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

/* Sets s[half][r] to the bits of the sums of block b of q6_k for one panel, all rows side by side.
 * One row after another, each row's chain of steps would fill the processor's window. */
INLINE void micro_halves(v16 (*s)[Q4_ROWS], const uint8_t *x, const float *f,
                         const struct micro *m, int b, int j, int n_rows)
{
    i_half_sum sum[2][Q4_ROWS];
    for (int half = 0; half < 2; half++)
        EACH_ROW sum[half][r] = i_half_begin(
            i_set4(f + r * (Q4_ROW_BYTES / 4) + Q4_H + 2 * b + half));
    _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++)
    {
        i8x4 first = i_load4(m->w->w[b * 8 + v][j]),
             second = i_load4(m->w->w[b * 8 + 4 + v][j]);
        EACH_ROW
        {
            const uint8_t *at = x + r * Q4_ROW_BYTES + 4 * v;
            sum[0][r] = i_half_dot(sum[0][r], first, i_set4(at), v);
            sum[1][r] = i_half_dot(sum[1][r], second, i_set4(at + 16), v);
        }
    }
    for (int half = 0; half < 2; half++)
        EACH_ROW s[half][r] = i_half_end(sum[half][r]);
}

/* Does the same one row after another, for instruction sets with few registers. */
INLINE void micro_halves_in_turn(v16 (*s)[Q4_ROWS], const uint8_t *x, const float *f,
                                 const struct micro *m, int b, int j, int n_rows)
{
    for (int half = 0; half < 2; half++) {
        i8x4 q[4];
        for (int v = 0; v < 4; v++)
            q[v] = i_load4(m->w->w[b * 8 + half * 4 + v][j]);
        EACH_ROW s[half][r] = half_sum(q, x + r * Q4_ROW_BYTES + half * 16,
                                       f + r * (Q4_ROW_BYTES / 4) + Q4_H + 2 * b + half);
    }
}

/* Adds block b of q6_k of every row to acc[r][j], for one panel j. */
INLINE void micro_block6(v16 (*acc)[Q4_PANELS], const struct micro *m, int b, int j,
                         int n_rows)
{
    const float *f = (const float *)(const void *)m->x;
    /* Otherwise gcc keeps what one panel has loaded for the next one: on the stack. */
    __asm__ volatile("" : "+r"(f));
    const uint8_t *x = (const uint8_t *)f + b * Q4_BLOCK;
    v16 d = v_load(m->w->d[b][j]), of_m = v_load(m->w->m[b][j]), top = v_load(m->w->top[j]);
    v16 s[2][Q4_ROWS];
    if (Q4_PANELS > 1)
        micro_halves(s, x, f, m, b, j, n_rows);
    else
        micro_halves_in_turn(s, x, f, m, b, j, n_rows);
    EACH_ROW acc[r][j] = add_halves(acc[r][j], s[0][r], s[1][r],
                                    f[r * (Q4_ROW_BYTES / 4) + Q4_E + b], d, of_m, top);
}

/* Adds block b of mxfp4 of every row to acc. */
INLINE void micro_wide(v16 (*acc)[Q4_PANELS], const struct micro *m, int b, int n_rows)
{
    const int n_panels = Q4_PANELS;
    const float *x = (const float *)(const void *)m->x;
    const uint8_t *at = (const uint8_t *)m->x + b * Q4_BLOCK, *from = m->w->w[b * 8][0][0];
    i_half_sum s[Q4_ROWS][Q4_PANELS];
    EACH_ROW EACH_PANEL s[r][j] = i_half_begin(
        i_set4(x + r * (Q4_ROW_BYTES / 4) + Q4_TWELVE + b));
    Q4_UNROLL for (int i = 0; i < 8; i++)
    {
        i8x4 w[Q4_PANELS];
        EACH_PANEL w[j] = i_load4(from + (i * Q4_PANELS + j) * PANEL * 4);
        EACH_ROW
        {
            i8x4 of_x = i_set4(at + r * Q4_ROW_BYTES + 4 * i);
            EACH_PANEL s[r][j] = i_half_dot(s[r][j], w[j], of_x, i);
        }
    }
    EACH_PANEL
    {
        v16 d = v_load(m->w->d[b][j]);
        EACH_ROW acc[r][j] = add_scaled(acc[r][j], i_half_end(s[r][j]),
                                        x + r * (Q4_ROW_BYTES / 4), b, d);
    }
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

INLINE void micro_blocks(v16 (*acc)[Q4_PANELS], enum dtype t, const struct micro *m,
                         int n_rows)
{
    const int n_panels = Q4_PANELS;
    for (int b = 0; b < m->n_blocks; b++)
        if (t == DTYPE_Q6_K)
            EACH_PANEL micro_block6(acc, m, b, j, n_rows);
        else if (t == DTYPE_MXFP4)
            micro_wide(acc, m, b, n_rows);
        else
            micro_block(acc, t, m, b, n_rows);
}

INLINE void micro_rows(const struct micro *m, int n_rows)
{
    const int n_panels = Q4_PANELS;
    v16 acc[Q4_ROWS][Q4_PANELS];
    EACH_ROW EACH_PANEL acc[r][j] = m->first ? v_zero()
                                             : v_load(m->sums + r * GROUP_COLS + j * PANEL);
    if (m->dtype == DTYPE_Q6_K)
        micro_blocks(acc, DTYPE_Q6_K, m, n_rows);
    else if (m->dtype == DTYPE_Q4_0)
        micro_blocks(acc, DTYPE_Q4_0, m, n_rows);
    else if (m->dtype == DTYPE_Q8)
        micro_blocks(acc, DTYPE_Q8, m, n_rows);
    else if (m->dtype == DTYPE_MXFP4)
        micro_blocks(acc, DTYPE_MXFP4, m, n_rows);
    else /* widened blocks of q4_1 and q4_k are alike */
        micro_blocks(acc, DTYPE_Q4_1, m, n_rows);
    micro_store(m, acc, n_rows);
}

#define Q4_BLOCKED blocked

#endif
