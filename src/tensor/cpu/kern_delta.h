/* kern_delta.h - the rules of recurrent layers over the rows of one sequence (ops.h, delta_net):
 * first the channels of each head of Q and K, then each head of V.
 *
 * S of a head of V is taken in strips of DELTA_STRIP columns, which are independent of each other:
 * a strip of 128 rows is 16 KiB and stays in the first cache while all rows pass. Rows that are
 * ahead pass a copy of the strip. A convolution alone has no S. */
#ifndef TENSOR_KERN_DELTA_H
#define TENSOR_KERN_DELTA_H

#include "tensor/shape.h"

enum { DELTA_STRIP = 2 }; /* vectors of 16 columns */

/* Returns where the inputs of a row that is ahead are kept. */
INLINE float *delta_kept_row(const struct delta_run *u, int row)
{
    return u->kept + (row - (u->n - u->n_ahead)) * delta_in_cols(u->d);
}

/* Keeps the newest inputs x of a convolution that has no first `skip` inputs. */
INLINE void delta_keep(float *past, int64_t n_channels, int skip, const v16 *x)
{
    for (int k = 0; k < DELTA_MAX_CONV - 1; k++)
        if (k >= skip)
            v_store(past + k * n_channels, x[k + 1]);
}

/* Convolves channels [c, c + 16) of all rows in place, and keeps their last inputs.  The oldest
 * inputs of a shorter convolution have the factor 0. */
INLINE void delta_conv(const struct delta_run *u, int64_t c)
{
    enum { N = DELTA_MAX_CONV };
    const int skip = N - u->d->n_conv;
    int64_t n_channels = delta_channels(u->d), at = delta_gates_cols(u->d) + c;
    float *past = delta_inputs(u->state) + c - skip * n_channels, w[N][16] = {{0}};
    v16 x[N], f[N], bias = v_zero();
    if (u->d->conv_bias != NULL)
        bias = v_load(u->d->conv_bias + c);
    for (int i = 0; i < 16; i++)
        for (int k = skip; k < N; k++)
            w[k][i] = u->d->conv[(c + i) * u->d->n_conv + k - skip];
    for (int k = 0; k < N; k++)
        f[k] = v_load(w[k]);
    for (int k = 0; k < N - 1; k++)
        x[k + 1] = u->is_first || k < skip ? v_zero() : v_load(past + k * n_channels);
    for (int row = 0; row < u->n; row++) {
        float *p = u->in + row * u->ld_in + at;
        if (row == u->n - u->n_ahead)
            delta_keep(past, n_channels, skip, x);
        if (row >= u->n - u->n_ahead)
            v_store(delta_kept_row(u, row) + at, v_load(p));
        x[0] = x[1];
        x[1] = x[2];
        x[2] = x[3];
        x[3] = v_load(p);
        v16 y = v_fma(x[0], f[0], bias);
        y = v_fma(x[1], f[1], y);
        y = v_fma(x[2], f[2], y);
        y = v_fma(x[3], f[3], y);
        v_store(p, u->d->kind == DELTA_SHORT_CONV ? y : v_silu(y));
    }
    if (u->n_ahead == 0)
        delta_keep(past, n_channels, skip, x);
}

INLINE void delta_convs(const struct delta_run *u, int64_t first, int64_t n)
{
    for (int64_t c = first; c < first + n; c += 16)
        delta_conv(u, c);
}

INLINE void delta_normalise(float *x, int n, float factor)
{
    v16 scale = v_set1(1.0f / sqrtf(square_sum(x, DTYPE_F32, n, 0) + 1e-6f));
    for (int i = 0; i < n; i += 16)
        v_store(x + i, v_mul(v_mul(v_load(x + i), scale), v_set1(factor)));
}

/* Replaces beta and a of a head of V by the factor of what its state gets, and by the decay: of 16
 * rows at a time. */
INLINE void delta_gates(const struct delta_run *u)
{
    const struct delta_rule *d = u->d;
    const v16 rate = v_exp(v_set1(d->a_log[u->head])), bias = v_set1(d->dt_bias[u->head]);
    for (int row = 0; row < u->n; row += 16) {
        float *in = u->in + row * u->ld_in + u->head, beta[16] = {0}, a[16] = {0};
        int n = u->n - row < 16 ? u->n - row : 16;
        for (int i = 0; i < n; i++) {
            beta[i] = in[i * u->ld_in];
            a[i] = in[i * u->ld_in + d->n_v];
            if (row + i < u->n - u->n_ahead)
                continue;
            float *kept = delta_kept_row(u, row + i) + u->head;
            kept[0] = beta[i];
            kept[d->n_v] = a[i];
        }
        v16 dt = v_softplus(v_add(v_load(a), bias));
        v_store(a, v_exp(v_sub(v_zero(), v_mul(rate, dt))));
        v_store(beta, d->kind == DELTA_NET ? v_sigmoid(v_load(beta)) : dt);
        for (int i = 0; i < n; i++) {
            in[i * u->ld_in] = beta[i];
            in[i * u->ld_in + d->n_v] = a[i];
        }
    }
}

/* Takes rows [from, to) through a strip of n_vecs vectors of columns, from column j on, of the
 * state of the head of V. A row of the strip lies ld floats behind the row before it. */
INLINE void delta_rows(const struct delta_run *u, int j, int n_vecs, float *strip,
                       int64_t ld, int from, int to)
{
    const struct delta_rule *d = u->d;
    const int head = u->head;
    const int64_t q_at = 2 * d->n_v + (int64_t)delta_k_head(d, head) * d->d_k;
    const int64_t k_at = q_at + (int64_t)d->n_k * d->d_k;
    const int64_t v_at = 2 * d->n_v + (int64_t)2 * d->n_k * d->d_k + head * d->d_v + j;
    const v16 skip = d->skip != NULL ? v_set1(d->skip[head]) : v_zero();
    for (int row = from; row < to; row++) {
        const float *in = u->in + row * u->ld_in, *q = in + q_at, *k = in + k_at;
        v16 decay = v_set1(in[d->n_v + head]), beta = v_set1(in[head]);
        v16 x[DELTA_STRIP];
        for (int v = 0; v < n_vecs; v++)
            x[v] = v_zero();
        for (int i = 0; d->kind == DELTA_NET && i < d->d_k; i++) {
            v16 ki = v_set1(k[i]);
            for (int v = 0; v < n_vecs; v++)
                x[v] = v_fma(v_mul(v_load(strip + i * ld + 16 * v), decay), ki, x[v]);
        }
        v16 delta[DELTA_STRIP];
        for (int v = 0; v < n_vecs; v++) {
            delta[v] = v_mul(v_sub(v_load(in + v_at + 16 * v), x[v]), beta);
            x[v] = v_zero();
        }
        for (int i = 0; i < d->d_k; i++) {
            v16 ki = v_set1(k[i]), qi = v_set1(q[i]);
            for (int v = 0; v < n_vecs; v++) {
                float *at = strip + i * ld + 16 * v;
                v16 s = v_fma(ki, delta[v], v_mul(v_load(at), decay));
                v_store(at, s);
                x[v] = v_fma(s, qi, x[v]);
            }
        }
        for (int v = 0; d->skip != NULL && v < n_vecs; v++)
            x[v] = v_fma(skip, v_load(in + v_at + 16 * v), x[v]);
        for (int v = 0; u->out != NULL && v < n_vecs; v++)
            v_store(u->out + row * u->ld_out + head * d->d_v + j + 16 * v, x[v]);
    }
}

/* Takes all rows through a strip. n_vecs is a constant where this is inlined. */
INLINE void delta_strip(const struct delta_run *u, int j, int n_vecs)
{
    const struct delta_rule *d = u->d;
    const int n = u->n - u->n_ahead;
    float *state = delta_head(d, u->state, u->head) + j;
    float copy[DELTA_MAX_WIDTH * 16 * DELTA_STRIP];
    if (u->is_first)
        for (int i = 0; i < d->d_k; i++)
            for (int v = 0; v < n_vecs; v++)
                v_store(state + i * d->d_v + 16 * v, v_zero());
    delta_rows(u, j, n_vecs, state, d->d_v, 0, n);
    if (u->n_ahead == 0)
        return;
    for (int i = 0; i < d->d_k; i++)
        for (int v = 0; v < n_vecs; v++)
            v_store(copy + (i * n_vecs + v) * 16, v_load(state + i * d->d_v + 16 * v));
    delta_rows(u, j, n_vecs, copy, 16 * n_vecs, n, u->n);
}

static void delta_keys(const struct delta_run *u)
{
    const struct delta_rule *d = u->d;
    int64_t n_q = (int64_t)d->n_k * d->d_k, q = (int64_t)u->head * d->d_k;
    delta_convs(u, q, d->d_k);
    delta_convs(u, n_q + q, d->d_k);
    for (int row = 0; d->kind == DELTA_NET && row < u->n; row++) {
        float *in = u->in + row * u->ld_in + 2 * d->n_v + q;
        delta_normalise(in, d->d_k, 1.0f / sqrtf((float)d->d_k));
        delta_normalise(in + n_q, d->d_k, 1.0f);
    }
}

static void delta(const struct delta_run *u)
{
    const struct delta_rule *d = u->d;
    const int64_t at = (int64_t)u->head * d->d_v;
    delta_convs(u, (int64_t)2 * d->n_k * d->d_k + at, d->d_v);
    if (d->kind == DELTA_SHORT_CONV) {
        for (int row = 0; u->out != NULL && row < u->n; row++)
            memcpy(u->out + row * u->ld_out + at, u->in + row * u->ld_in + at,
                   (size_t)d->d_v * sizeof(float));
        return;
    }
    delta_gates(u);
    int j = 0;
    for (; j + 16 * DELTA_STRIP <= d->d_v; j += 16 * DELTA_STRIP)
        delta_strip(u, j, DELTA_STRIP);
    if (j < d->d_v)
        delta_strip(u, j, 1);
}

#endif
