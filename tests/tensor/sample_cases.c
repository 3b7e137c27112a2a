/* sample_cases.c - see sample_cases.h. */
#include "sample_cases.h"

#include "rig.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* Sizes around the ends of the digits that the kernels use, and the vocabulary of a real model. */
const int sample_vocabs[] = {1, 2, 50, 1023, 2048, 2049, 5000, 50257};
const int n_sample_vocabs = sizeof sample_vocabs / sizeof sample_vocabs[0];

enum { N_ROWS = 24 };

/* Fills a row of logits. Every third row has few distinct values, so that many are equal. Every
 * fourth contains NaNs. */
static void fill(float *logits, int n, int row, struct rng *r)
{
    for (int j = 0; j < n; j++) {
        float x = (float)(16 * (rng_unit(r) + rng_unit(r) + rng_unit(r) - 1.5));
        logits[j] = row % 3 == 0 ? rintf(x / 4) * 4 : x;
    }
    for (int j = 0; row % 4 == 1 && j < n; j += 1 + (int)rng_below(r, 20))
        logits[j] = j % 2 == 0 ? -INFINITY : NAN;
    if (row % 8 == 5)
        logits[rng_below(r, (uint64_t)n)] = row % 16 == 5 ? INFINITY : -0.0f;
    for (int j = 0; row == 15 && j < n; j++)
        logits[j] = NAN;
    for (int j = 0; row == 16 && j < n; j++)
        logits[j] = j % 2 == 0 ? -0.0f : 0.0f;
}

static struct sample_row options(int n, int row, struct rng *r)
{
    struct sample_row o = {.temperature = row % 6 == 0 ? 0 : 0.2f + (float)rng_unit(r) * 2,
                           .top_p = 1,
                           .draw = rng_unit(r)};
    if (row & 1)
        o.top_p = 0.01f + (float)rng_unit(r) * 0.98f;
    if (row & 2)
        o.top_k = 1 + (int)rng_below(r, (uint64_t)(row & 4 ? 2 * n : n < 40 ? n : 40));
    if (row & 8)
        o.min_p = (float)rng_unit(r) * 0.3f;
    if (row == 17)
        o.temperature = INFINITY;
    if (row == 19)
        o.draw = 1 - 0x1p-53;
    return o;
}

struct sample_case sample_case_make(int n_vocab, uint64_t seed)
{
    struct rng r = {seed};
    struct lab ref = lab_ref();
    struct sample_case c = {.logits = mat_alloc(DTYPE_F32, N_ROWS, n_vocab),
                            .rows = xcalloc(N_ROWS, sizeof *c.rows),
                            .ids = xcalloc(N_ROWS, sizeof *c.ids)};
    for (int i = 0; i < N_ROWS; i++) {
        fill(mat_rows(c.logits, i, 1).data, n_vocab, i, &r);
        c.rows[i] = options(n_vocab, i, &r);
    }
    assert_int_equal(ref.ops->sample(ref.stream, c.ids, c.logits, c.rows), 0);
    lab_close(&ref);
    return c;
}

void sample_case_free(struct sample_case *c)
{
    mat_free(&c->logits);
    free(c->rows);
    free(c->ids);
}
