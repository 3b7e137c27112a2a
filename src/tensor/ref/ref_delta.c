/* ref_delta.c - the rules of recurrent layers, one row and one head at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/ref/ref.h"

static float silu(float x)
{
    return x / (1.0f + expf(-x));
}

static float softplus(float x)
{
    return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
}

/* Convolves the channels of a row, and makes the row the newest of the state's inputs. */
static void convolve(const struct delta_rule *d, float *past, float *x)
{
    int64_t n = delta_channels(d);
    for (int64_t c = 0; c < n; c++) {
        float y = d->conv_bias != NULL ? d->conv_bias[c] : 0;
        int last = d->n_conv - 1;
        for (int k = 0; k < last; k++)
            y = fmaf(past[k * n + c], d->conv[c * d->n_conv + k], y);
        y = fmaf(x[c], d->conv[c * d->n_conv + last], y);
        for (int k = 0; k < last - 1; k++)
            past[k * n + c] = past[(k + 1) * n + c];
        past[(last - 1) * n + c] = x[c];
        x[c] = d->kind == DELTA_SHORT_CONV ? y : silu(y);
    }
}

static void normalise(float *x, int n, float factor)
{
    float lanes[REF_LANES] = {0};
    for (int i = 0; i < n; i++)
        lanes[i % REF_LANES] = fmaf(x[i], x[i], lanes[i % REF_LANES]);
    float scale = 1.0f / sqrtf(ref_lanes_sum(lanes) + 1e-6f);
    for (int i = 0; i < n; i++)
        x[i] = x[i] * scale * factor;
}

/* Advances S [d_k][d_v] of one head of V, and computes its output unless out is NULL. */
static void advance(const struct delta_rule *d, float *s, const float *q, const float *k,
                    const float *v, float decay, float beta, float *out)
{
    for (int j = 0; j < d->d_v; j++) {
        float had = 0, sum = 0;
        for (int i = 0; i < d->d_k; i++) {
            s[i * d->d_v + j] = s[i * d->d_v + j] * decay;
            if (d->kind == DELTA_NET)
                had = fmaf(s[i * d->d_v + j], k[i], had);
        }
        float delta = (v[j] - had) * beta;
        for (int i = 0; i < d->d_k; i++) {
            s[i * d->d_v + j] = fmaf(k[i], delta, s[i * d->d_v + j]);
            sum = fmaf(s[i * d->d_v + j], q[i], sum);
        }
        if (out != NULL)
            out[j] = sum;
    }
}

/* Takes one token through the state, in place; out NULL: its output is not wanted. */
static void take_row(const struct delta_rule *d, uint8_t *state, float *in, float *out)
{
    const float *beta = in, *a = in + d->n_v;
    float *q = in + delta_gates_cols(d), *k = q + (int64_t)d->n_k * d->d_k;
    const float *v = k + (int64_t)d->n_k * d->d_k;
    convolve(d, delta_inputs(state), q);
    if (d->kind == DELTA_SHORT_CONV) {
        if (out != NULL)
            memcpy(out, v, (size_t)delta_channels(d) * sizeof(float));
        return;
    }
    for (int h = 0; d->kind == DELTA_NET && h < d->n_k; h++) {
        normalise(q + h * d->d_k, d->d_k, 1.0f / sqrtf((float)d->d_k));
        normalise(k + h * d->d_k, d->d_k, 1.0f);
    }
    for (int h = 0; h < d->n_v; h++) {
        int of_k = delta_k_head(d, h);
        float dt = softplus(a[h] + d->dt_bias[h]), decay = expf(-(expf(d->a_log[h]) * dt));
        float *to = out != NULL ? out + h * d->d_v : NULL;
        advance(d, delta_head(d, state, h), q + of_k * d->d_k, k + of_k * d->d_k,
                v + h * d->d_v, decay,
                d->kind == DELTA_NET ? 1.0f / (1.0f + expf(-beta[h])) : dt, to);
        for (int i = 0; d->skip != NULL && to != NULL && i < d->d_v; i++)
            to[i] = fmaf(d->skip[h], v[h * d->d_v + i], to[i]);
    }
}

int ref_delta_net(struct stream *s, struct mat out, struct mat in,
                  const struct delta_rule *d, const struct kv_layer *states,
                  const struct ragged *r)
{
    size_t row_bytes = (size_t)in.cols * sizeof(float);
    uint8_t *copy = xmalloc(delta_state_bytes(d));
    check_delta(out, in, d, states, r);
    for (int seq = 0; seq < r->n_seqs; seq++) {
        int first = r->seq_row[seq], end = r->seq_row[seq + 1];
        int known = end - delta_n_ahead(r, seq);
        uint8_t *state = delta_state(states, r, seq);
        int n_counting = first < end ? delta_n_counting(states, r, seq) : 0;
        for (int i = 0; i < n_counting; i++)
            take_row(d, state, delta_kept(d, state) + i * in.cols, NULL);
        for (int i = first; i < end; i++) {
            float *x = (float *)in.data + i * in.ld;
            if (r->pos[i] == 0)
                memset(state, 0, delta_state_bytes(d));
            if (i >= known)
                memcpy(delta_kept(d, state) + (i - known) * in.cols, x, row_bytes);
            if (i == known)
                memcpy(copy, state, delta_state_bytes(d));
            take_row(d, i < known ? state : copy, x,
                     out.data != NULL ? (float *)out.data + i * out.ld : NULL);
        }
    }
    free(copy);
    delta_advance(states, r);
    return stream_enter(s);
}
