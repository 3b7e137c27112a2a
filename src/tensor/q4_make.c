/* q4_make.c - see q4_make.h.
 *
 * A block w [32] is approximated by d * q + m with q from 0 to 15.  The search starts with the
 * range from the smallest to the largest weight, and also tries slightly narrower ranges, whose
 * errors are larger at the ends and smaller everywhere else.  For each range, w is rounded to q; d
 * and m are fitted to these q by least squares and rounded to f16; and w is rounded to q again with
 * them.  The candidate with the least sum of squared errors is kept. */
#include "tensor/q4_make.h"

#include "base/minmax.h"
#include "tensor/ops.h"

#include <math.h>
#include <string.h>

enum { N_RANGES = 9 };

struct made {
    uint16_t d, m; /* f16 numbers */
    uint8_t q[Q4_BLOCK];
    float error;
};

static void round_to(const float *w, float d, float m, uint8_t q[Q4_BLOCK])
{
    float inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < Q4_BLOCK; i++) {
        float v = rintf((w[i] - m) * inverse);
        q[i] = (uint8_t)(v < 0 ? 0 : v > 15 ? 15 : v);
    }
}

/* Computes the best d and m for q. Returns false if all q are equal. */
static bool fit(const float *w, const uint8_t q[Q4_BLOCK], float *d, float *m)
{
    float sq = 0, sqq = 0, sw = 0, swq = 0;
    for (int i = 0; i < Q4_BLOCK; i++) {
        float f = (float)q[i];
        sq += f;
        sqq += f * f;
        sw += w[i];
        swq += w[i] * f;
    }
    float det = Q4_BLOCK * sqq - sq * sq;
    if (det <= 0)
        return false;
    *d = (Q4_BLOCK * swq - sq * sw) / det;
    *m = (sqq * sw - sq * swq) / det;
    return *d > 0;
}

static struct made made_of(const float *w, float d, float m)
{
    struct made b = {.d = f32_to_f16(d), .m = f32_to_f16(m)};
    float kept_d = f16_to_f32(b.d), kept_m = f16_to_f32(b.m);
    round_to(w, kept_d, kept_m, b.q);
    for (int i = 0; i < Q4_BLOCK; i++) {
        float off = fmaf((float)b.q[i], kept_d, kept_m) - w[i];
        b.error += off * off;
    }
    return b;
}

/* Returns the best approximation of a block whose weights lie in [least, most]. */
static struct made make_block(const float *w, float least, float most)
{
    struct made best = made_of(w, (most - least) / 15, least);
    for (int i = 0; i < N_RANGES; i++) {
        float cut = (most - least) * 0.02f * (float)i, d = (most - least - 2 * cut) / 15,
              m = least + cut;
        uint8_t q[Q4_BLOCK];
        round_to(w, d, m, q);
        if (!fit(w, q, &d, &m))
            continue;
        struct made b = made_of(w, d, m);
        if (b.error < best.error)
            best = b;
    }
    return best;
}

static void put_block(uint8_t *out, const struct made *b)
{
    out[0] = (uint8_t)b->d;
    out[1] = (uint8_t)(b->d >> 8);
    out[2] = (uint8_t)b->m;
    out[3] = (uint8_t)(b->m >> 8);
    for (int i = 0; i < Q4_BLOCK / 2; i++)
        out[4 + i] = (uint8_t)(b->q[i] | b->q[i + Q4_BLOCK / 2] << 4);
}

bool q4_make_row(const float *w, int64_t k, uint8_t *out, struct q4_error *error)
{
    for (int64_t i = 0; i < k; i += Q4_BLOCK, out += q4_block_bytes(DTYPE_Q4_1)) {
        float least = w[i], most = w[i];
        for (int j = 0; j < Q4_BLOCK; j++) {
            float v = w[i + j];
            if (!(fabsf(v) <= 65504))
                return false;
            least = MIN(v, least);
            most = MAX(v, most);
            error->of_weights += (double)v * (double)v;
        }
        struct made b = make_block(w + i, least, most);
        error->of_error += (double)b.error;
        put_block(out, &b);
    }
    return true;
}
