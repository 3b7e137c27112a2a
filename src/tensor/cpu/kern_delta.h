/* kern_delta.h - the rules of recurrent layers over the rows of one sequence (ops.h, delta_net):
 * first the channels of each head of Q and K, then each head of V.
 *
 * S of a head of V is taken in strips of DELTA_STRIP vectors, which are independent of each other.
 * All rows pass a copy of a strip: 16 KiB for 128 rows of S, which stay in the first cache. In S
 * itself they lie 512 bytes apart, and would share a quarter of that cache's sets. A convolution
 * alone has no S. */
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
 * state of the head of V. `at` is the strip, and `keeps` says whether its new values replace the
 * old ones. Meanwhile they lie in `s`, multiplied by the next row's decay: one pass over them
 * finishes a row, and adds up the next row's product of key and state.  n_vecs, is_net and has_out
 * are constants where this is inlined. */
INLINE void delta_rows(const struct delta_run *u, int j, float *at, bool is_zero,
                       bool keeps, int from, int to, int n_vecs, bool is_net, bool has_out)
{
    const struct delta_rule *d = u->d;
    const int head = u->head, width = 16 * n_vecs, d_k = d->d_k;
    const int64_t q_at = 2 * d->n_v + (int64_t)delta_k_head(d, head) * d_k;
    const int64_t k_at = q_at + (int64_t)d->n_k * d_k;
    const int64_t v_at = 2 * d->n_v + (int64_t)2 * d->n_k * d_k + head * d->d_v + j;
    const v16 skip = d->skip != NULL ? v_set1(d->skip[head]) : v_zero();
    float s[DELTA_MAX_WIDTH * 16 * DELTA_STRIP];
    const float *in = u->in + from * u->ld_in;
    v16 decay = v_set1(in[d->n_v + head]), found[DELTA_STRIP], delta[DELTA_STRIP];
    for (int v = 0; v < n_vecs; v++)
        found[v] = v_zero();
    for (int i = 0; i < d_k; i++)
        for (int v = 0; v < n_vecs; v++) {
            v16 x = is_zero ? v_zero() : v_load(at + i * d->d_v + 16 * v);
            x = v_mul(x, decay);
            v_store(s + i * width + 16 * v, x);
            if (is_net)
                found[v] = v_fma(x, v_set1(in[k_at + i]), found[v]);
        }
    for (int row = from; row < to; row++) {
        bool is_last = row + 1 == to;
        const float *next = is_last ? in : in + u->ld_in;
        float *dest = is_last && keeps ? at : s;
        int64_t ld = is_last && keeps ? d->d_v : width;
        v16 beta = v_set1(in[head]), sum[DELTA_STRIP];
        decay = is_last ? v_set1(1) : v_set1(next[d->n_v + head]);
        for (int v = 0; v < n_vecs; v++) {
            delta[v] = v_mul(v_sub(v_load(in + v_at + 16 * v), found[v]), beta);
            found[v] = sum[v] = v_zero();
        }
        for (int i = 0; i < d_k; i++) {
            v16 k = v_set1(in[k_at + i]);
            for (int v = 0; v < n_vecs; v++) {
                v16 x = v_fma(k, delta[v], v_load(s + i * width + 16 * v));
                if (has_out)
                    sum[v] = v_fma(x, v_set1(in[q_at + i]), sum[v]);
                x = v_mul(x, decay);
                v_store(dest + i * ld + 16 * v, x);
                if (is_net)
                    found[v] = v_fma(x, v_set1(next[k_at + i]), found[v]);
            }
        }
        for (int v = 0; has_out && v < n_vecs; v++) {
            if (d->skip != NULL)
                sum[v] = v_fma(skip, v_load(in + v_at + 16 * v), sum[v]);
            v_store(u->out + row * u->ld_out + head * d->d_v + j + 16 * v, sum[v]);
        }
        in = next;
    }
}

/* Takes all rows through as many strips of n_vecs vectors as fit from column j on. Rows that are
 * ahead leave no trace in the state. Returns the first column that is left. */
INLINE int delta_strips(const struct delta_run *u, int j, int n_vecs, bool is_net,
                        bool has_out)
{
    const int n = u->n - u->n_ahead;
    for (; j + 16 * n_vecs <= u->d->d_v; j += 16 * n_vecs) {
        float *at = delta_head(u->d, u->state, u->head) + j;
        for (int ahead = n > 0 ? 0 : 1; ahead < (u->n_ahead > 0 ? 2 : 1); ahead++)
            delta_rows(u, j, at, u->is_first && (ahead == 0 || n == 0), ahead == 0,
                       ahead == 0 ? 0 : n, ahead == 0 ? n : u->n, n_vecs, is_net, has_out);
    }
    return j;
}

static void delta_keys(const struct delta_run *u)
{
    const struct delta_rule *d = u->d;
    int64_t n_q = (int64_t)d->n_k * d->d_k, q = (int64_t)u->head * d->d_k;
    struct delta_run newest = *u;
    if (u->out == NULL && u->n_ahead == 0) { /* no row reads q, and the newest are kept */
        newest.n = MIN(u->n, d->n_conv - 1);
        newest.in += (u->n - newest.n) * u->ld_in;
    }
    delta_convs(&newest, q, d->d_k);
    delta_convs(u, n_q + q, d->d_k);
    for (int row = 0; d->kind == DELTA_NET && row < u->n; row++) {
        float *in = u->in + row * u->ld_in + 2 * d->n_v + q;
        if (u->out != NULL)
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
    const bool is_net = d->kind == DELTA_NET, has_out = u->out != NULL;
    int j = 0;
    if (is_net && has_out)
        j = delta_strips(u, 0, DELTA_STRIP, true, true);
    else if (is_net)
        j = delta_strips(u, 0, DELTA_STRIP, true, false);
    else if (has_out)
        j = delta_strips(u, 0, DELTA_STRIP, false, true);
    (void)delta_strips(u, j, 1, is_net, has_out);
}

#endif
