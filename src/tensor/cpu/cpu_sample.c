/* cpu_sample.c - choosing a token (ops.h, sampling.h).
 *
 * Candidates are never sorted.  Their keys define the order.  The code looks for the candidate at
 * which the sum of weights, added in that order, reaches a wanted value.  It finds that candidate's
 * key digit by digit, as on a GPU (k_sample.cu): a histogram of the candidates' weights by digit
 * tells which digit the key has, and only candidates with that digit are examined for the next one.
 * So a row costs a few passes over the vocabulary, however many candidates survive.
 *
 * Rows are divided among threads; the stream's scratch memory has room for the candidates of one
 * row per thread. */
#include "tensor/cpu/cpu.h"

#include <math.h>

#include "base/bytes.h"
#include "base/pool.h"

struct candidate {
    uint64_t key, weight; /* weight > 0: a token without weight is never chosen */
};

/* Returns the index of the largest logit, the lowest one of equals. */
static int32_t first_of(const struct cpu_kernels *k, const float *logits, int n)
{
    float best = k->max_row(logits, n);
    for (int32_t i = 0; i < n; i++)
        if (logits[i] == best)
            return i;
    return SAMPLE_NO_TOKEN;
}

/* --- the candidate at a sum ------------------------------------------------------------------- */

/* Digits of the key: three for the logit, two for the id (SAMPLE_MAX_COLS leaves it 22 bits). */
#define BUCKETS 2048
static const struct digit {
    int shift;
    uint32_t mask;
} digits[] = {{53, 2047}, {42, 2047}, {32, 1023}, {11, 2047}, {0, 2047}};

static uint32_t digit_of(const struct candidate *c, struct digit d)
{
    return (uint32_t)(c->key >> d.shift) & d.mask;
}

/* Moves the candidates whose digit is `value` to the front of the n candidates, and returns their
 * number. It swaps every candidate, because an unneeded swap is cheaper than a branch that cannot
 * be predicted. */
static int bring_forward(struct candidate *c, int n, struct digit d, uint32_t value)
{
    int n_found = 0;
    for (int i = 0; i < n; i++) {
        struct candidate x = c[i];
        c[i] = c[n_found];
        c[n_found] = x;
        n_found += digit_of(&x, d) == value;
    }
    return n_found;
}

/* Goes through the candidates from the largest key down and adds up their weights (if `counts` is
 * true, their number).  Returns the key of the candidate at which the sum reaches `want`; the last
 * one's if the total is less.  Changes the order of the candidates. */
static uint64_t key_at(struct candidate *c, int n, uint64_t want, bool counts)
{
    for (size_t i = 0; n > 1; i++) {
        /* The digits tell all keys apart, so the loop ends before they run out. */
        CHECK_HOT(i < sizeof digits / sizeof digits[0]);
        uint64_t sum[BUCKETS] = {0};
        for (int k = 0; k < n; k++)
            sum[digit_of(&c[k], digits[i])] += counts ? 1 : c[k].weight;
        uint32_t value = digits[i].mask;
        for (; sum[value] < want; value--)
            want -= sum[value];
        n = bring_forward(c, n, digits[i], value);
    }
    return c[0].key;
}

/* --- filters ---------------------------------------------------------------------------------- */

/* Keeps candidates of at least this key and weight, in order, and returns their number. */
static int keep(struct candidate *c, int n, uint64_t key, uint64_t weight)
{
    int n_kept = 0;
    for (int i = 0; i < n; i++) {
        c[n_kept] = c[i];
        n_kept += c[i].key >= key && c[i].weight >= weight;
    }
    return n_kept;
}

static uint64_t total_of(const struct candidate *c, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

/* Returns the key of the candidate at which the sum of weights, in the order of c, reaches `want`.
 */
static uint64_t key_by_id(const struct candidate *c, uint64_t want)
{
    uint64_t sum = c->weight;
    while (sum < want)
        sum += (++c)->weight;
    return c->key;
}

/* Appends those of n neighbouring logits whose weight is above 0, in order of their ids. The first
 * logit has id `id`. Returns the number of appended candidates. */
static int append(struct candidate *c, const float *logits, const float *exps, int32_t id,
                  int n)
{
    int n_new = 0;
    for (int i = 0; i < n; i++) {
        uint64_t weight = exps[i] >= 1 ? (uint64_t)(int64_t)exps[i] : 0;
        c[n_new] = (struct candidate){sample_key(logits[i], id + i), weight};
        n_new += weight > 0;
    }
    return n_new;
}

/* Returns the number of candidates, with weight or without. */
static int numbers_of(const float *logits, int n)
{
    int n_numbers = 0;
    for (int i = 0; i < n; i++)
        n_numbers += !isnan(logits[i]);
    return n_numbers;
}

/* Chooses a row's token by the rules of ops.sample. c has room for all candidates. */
static int32_t choose(const struct cpu_kernels *k, const float *logits, int n_vocab,
                      const struct sample_row *o, struct candidate *c)
{
    enum { PIECE = 1024 };
    float exps[PIECE];
    int32_t first = first_of(k, logits, n_vocab);
    if (first < 0 || !(o->temperature > 0.0f) || !isfinite(logits[first]))
        return first;
    int n = 0;
    for (int32_t at = 0; at < n_vocab; at += PIECE) {
        int n_piece = MIN(n_vocab - at, PIECE);
        k->sample_row_exp(exps, logits + at, n_piece, logits[first], o->temperature);
        n += append(c + n, logits + at, exps, at, n_piece);
    }
    bool top_k = o->top_k > 0 && o->top_k < numbers_of(logits, n_vocab);
    bool top_p = o->top_p < 1.0f;
    if (top_k && o->top_k < n)
        n = keep(c, n, key_at(c, n, (uint64_t)o->top_k, true), 0);
    if (top_p) {
        uint64_t want = sample_want(o->top_p, total_of(c, n));
        n = keep(c, n, key_at(c, n, want, false), 0);
    }
    if (o->min_p > 0)
        n = keep(c, n, 0, sample_least(o->min_p));
    uint64_t want = sample_target(o->draw, total_of(c, n)) + 1;
    return sample_key_id(top_k || top_p ? key_at(c, n, want, false) : key_by_id(c, want));
}

/* --- rows over threads ------------------------------------------------------------------------ */

struct sample_job {
    const struct cpu_kernels *k;
    int32_t *ids;
    struct mat logits;
    const struct sample_row *rows;
    uint8_t *scratch;
    size_t bytes; /* bytes of scratch per thread */
    int n_threads;
};

static void choose_rows(void *arg, int thread_idx, int n_threads)
{
    struct sample_job *job = arg;
    long begin, end;
    n_threads = MIN(n_threads, job->n_threads);
    if (thread_idx >= n_threads)
        return;
    struct candidate *room = (void *)(job->scratch + (size_t)thread_idx * job->bytes);
    pool_share(job->logits.rows, 1, thread_idx, n_threads, &begin, &end);
    for (long i = begin; i < end; i++)
        job->ids[i] = choose(job->k, row_ptr(job->logits, i), (int)job->logits.cols,
                             &job->rows[i], room);
}

int cpu_sample(struct stream *s, int32_t *ids, struct mat logits,
               const struct sample_row *rows)
{
    check_sample(logits, rows);
    struct sample_job job = {
        .k = cpu_kernels_of(s),
        .ids = ids,
        .logits = logits,
        .rows = rows,
        .scratch = s->scratch,
        .bytes = round_up((size_t)logits.cols * sizeof(struct candidate), 64),
    };
    CHECK(job.bytes <= s->scratch_bytes);
    int rc = stream_enter(s);
    if (rc != 0)
        return rc;
    bool alone = logits.rows == 1 || logits.rows * logits.cols < MIN_PARALLEL_ELEMENTS;
    job.n_threads = alone ? 1 : (int)(s->scratch_bytes / job.bytes);
    if (job.n_threads == 1)
        choose_rows(&job, 0, 1);
    else
        pool_run(s->pool, choose_rows, &job);
    return rc;
}
