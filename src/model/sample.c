/* sample.c - see sample.h.
 *
 * The filters apply in the order temperature, top-k, top-p, min-p, as in the reference library.
 * Where top-k or top-p is on, candidates come off a heap in descending order, so that only the few
 * that survive are ever sorted (a whole sort of 128,000 logits would cost a decode step).  Equal
 * logits keep the order of their ids.
 *
 * scratch: float p[n_vocab] by id, then int32_t ids[n_vocab], the heap. */
#include "model/sample.h"

#include <math.h>
#include <stdbool.h>

#include "base/check.h"
#include "base/rng.h"

struct choice {
    const float *logits;
    const struct sample_opts *o;
    float *p;     /* exp((logit - max) / temperature), by id: the most probable has 1 */
    int32_t *ids; /* [0, n_heap): heap; [n_heap, n): taken, the last taken first */
    int n, n_heap;
};

static int32_t greedy(const float *logits, int n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best]))
            best = i;
    return best < 0 ? 0 : best;
}

/* In [0, 1); depends on seed and position only. */
static double draw(uint64_t seed, int64_t position)
{
    struct rng r = {rng_mix(seed ^ 0x68636163686521u) +
                    (uint64_t)position * 0x9e3779b97f4a7c15u};
    return rng_unit(&r);
}

/* --- the heap: most probable on top ------------------------------------------------------------ */

static bool before(const struct choice *c, int32_t a, int32_t b)
{
    return c->logits[a] > c->logits[b] || (c->logits[a] == c->logits[b] && a < b);
}

static void swap(struct choice *c, int a, int b)
{
    int32_t t = c->ids[a];
    c->ids[a] = c->ids[b];
    c->ids[b] = t;
}

static void sift_down(struct choice *c, int i)
{
    for (;;) {
        int top = i, left = 2 * i + 1, right = left + 1;
        if (left < c->n_heap && before(c, c->ids[left], c->ids[top]))
            top = left;
        if (right < c->n_heap && before(c, c->ids[right], c->ids[top]))
            top = right;
        if (top == i)
            return;
        swap(c, i, top);
        i = top;
    }
}

static void heap_make(struct choice *c)
{
    c->n_heap = c->n;
    for (int i = c->n / 2 - 1; i >= 0; i--)
        sift_down(c, i);
}

/* The next most probable id; it stays in ids, behind the heap. */
static int32_t heap_take(struct choice *c)
{
    CHECK_HOT(c->n_heap > 0);
    swap(c, 0, --c->n_heap);
    sift_down(c, 0);
    return c->ids[c->n_heap];
}

/* --- filters ---------------------------------------------------------------------------------- */

static double sum_taken(const struct choice *c, int n_taken)
{
    double sum = 0;
    for (int i = 0; i < n_taken; i++)
        sum += (double)c->p[c->ids[c->n - 1 - i]];
    return sum;
}

/* The smallest number of the most probable candidates that have at least top_p of `total`; takes
 * them off the heap as far as top-k has not. */
static int cut_top_p(struct choice *c, int n_taken, int n_max, double total)
{
    double sum = 0, want = (double)c->o->top_p * total;
    int kept = 0;
    while (kept < n_max && (kept == 0 || sum < want)) {
        int32_t id = kept < n_taken ? c->ids[c->n - 1 - kept] : heap_take(c);
        sum += (double)c->p[id];
        kept++;
    }
    return kept;
}

/* Leaves the survivors of top-k and top-p, in descending order from the end of ids; how many. */
static int filter_sorted(struct choice *c)
{
    bool top_k = c->o->top_k > 0 && c->o->top_k < c->n, top_p = c->o->top_p < 1.0f;
    int n_taken = 0;
    double total = 0;
    heap_make(c);
    if (top_k) {
        for (; n_taken < c->o->top_k; n_taken++)
            heap_take(c);
        total = sum_taken(c, n_taken);
    } else {
        for (int i = 0; i < c->n; i++)
            total += (double)c->p[c->ids[i]];
    }
    return top_p ? cut_top_p(c, n_taken, top_k ? n_taken : c->n, total) : n_taken;
}

/* Candidate k of the survivors: descending where sorted, else by id. */
static int32_t survivor(const struct choice *c, bool sorted, int k)
{
    return sorted ? c->ids[c->n - 1 - k] : c->ids[k];
}

static int32_t pick(const struct choice *c, bool sorted, int n_kept, double u)
{
    double total = 0, sum = 0;
    int32_t last = -1;
    for (int k = 0; k < n_kept; k++) {
        float p = c->p[survivor(c, sorted, k)];
        total += p >= c->o->min_p ? (double)p : 0.0;
    }
    for (int k = 0; k < n_kept; k++) {
        int32_t id = survivor(c, sorted, k);
        float p = c->p[id];
        if (p < c->o->min_p || p == 0.0f)
            continue;
        last = id;
        sum += (double)p;
        if (sum > u * total)
            break;
    }
    return last;
}

int32_t sample_token(const float *logits, int n_vocab, const struct sample_opts *o,
                     int64_t position, void *scratch)
{
    CHECK(n_vocab > 0);
    int32_t best = greedy(logits, n_vocab);
    /* Infinite or no finite logits: the best is all there is. */
    if (!(o->temperature > 0.0f) || !isfinite(logits[best]))
        return best;
    struct choice c = {.logits = logits,
                       .o = o,
                       .p = scratch,
                       .ids = (int32_t *)((float *)scratch + n_vocab)};
    for (int32_t i = 0; i < n_vocab; i++) {
        if (isnan(logits[i]))
            continue;
        c.p[i] = expf((logits[i] - logits[best]) / o->temperature);
        c.ids[c.n++] = i;
    }
    bool sorted = (o->top_k > 0 && o->top_k < c.n) || o->top_p < 1.0f;
    int n_kept = sorted ? filter_sorted(&c) : c.n;
    return pick(&c, sorted, n_kept, draw(o->seed, position));
}
