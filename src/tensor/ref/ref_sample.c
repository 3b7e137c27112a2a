/* ref_sample.c - choosing a token exactly as ops.h describes: all candidates sorted, one rule after
 * another. */
#include "tensor/ref/ref.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

struct candidate {
    int32_t id;
    float logit;
    uint64_t weight;
};

static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->id < y->id ? -1 : 1;
}

static uint64_t weight_of(const struct candidate *c, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

static int keep_top_p(const struct candidate *c, int n, float top_p)
{
    uint64_t want = sample_want(top_p, weight_of(c, n)), sum = 0;
    for (int i = 0; i < n; i++) {
        sum += c[i].weight;
        if (sum >= want)
            return i + 1;
    }
    return n;
}

static int keep_min_p(struct candidate *c, int n, float min_p)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (c[i].weight >= sample_least(min_p))
            c[kept++] = c[i];
    return kept;
}

/* Returns the chosen token. c [n] is sorted by logit; n > 0. */
static int32_t choose(struct candidate *c, int n, const struct sample_row *o)
{
    bool top_k = o->top_k > 0 && o->top_k < n, top_p = o->top_p < 1.0f;
    if (!(o->temperature > 0.0f) || !isfinite(c[0].logit))
        return c[0].id;
    for (int i = 0; i < n; i++)
        c[i].weight = sample_weight(c[i].logit, c[0].logit, o->temperature);
    n = top_k ? o->top_k : n;
    n = top_p ? keep_top_p(c, n, o->top_p) : n;
    n = keep_min_p(c, n, o->min_p);
    if (!top_k && !top_p)
        qsort(c, (size_t)n, sizeof *c, by_id);
    uint64_t target = sample_target(o->draw, weight_of(c, n)), sum = 0;
    int i = -1;
    while (sum <= target)
        sum += c[++i].weight;
    return c[i].id;
}

int ref_sample(struct stream *s, int32_t *ids, struct mat logits,
               const struct sample_row *rows)
{
    check_sample(logits, rows);
    struct candidate *c = xcalloc((size_t)logits.cols, sizeof *c);
    for (int64_t i = 0; i < logits.rows; i++) {
        int n = 0;
        for (int32_t j = 0; j < logits.cols; j++)
            if (!isnan(mat_get(logits, i, j)))
                c[n++] = (struct candidate){.id = j, .logit = mat_get(logits, i, j)};
        qsort(c, (size_t)n, sizeof *c, by_logit);
        ids[i] = n > 0 ? choose(c, n, &rows[i]) : SAMPLE_NO_TOKEN;
    }
    free(c);
    return stream_enter(s);
}
