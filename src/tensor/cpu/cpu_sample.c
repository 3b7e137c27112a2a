/* cpu_sample.c - choosing a token (ops.h).
 *
 * Where top-k or top-p is on, candidates come off a heap in descending order, so that only the few
 * that survive are ever sorted (a whole sort of 128,000 logits would cost a decode step).
 *
 * Rows are shared out over threads.  Scratch, of the stream, for each of them: uint64_t weight[n_vocab] by id,
 * then int32_t ids[n_vocab], the heap. */
#include "tensor/cpu/cpu.h"

#include <math.h>

#include "base/bytes.h"
#include "base/pool.h"

struct choice {
    const float *logits;
    const struct sample_row *o;
    uint64_t *weight; /* by id */
    int32_t *ids;     /* [0, n_heap): heap; [n_heap, n): taken, the last taken first */
    int n, n_heap;
};

static int32_t greedy(const float *logits, int n)
{
    int32_t best = SAMPLE_NO_TOKEN;
    for (int32_t i = 0; i < n; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best]))
            best = i;
    return best;
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

/* Candidate k: in descending order of those taken off the heap, else by id. */
static int32_t candidate(const struct choice *c, bool sorted, int k)
{
    return sorted ? c->ids[c->n - 1 - k] : c->ids[k];
}

static uint64_t weight_of(const struct choice *c, bool sorted, int n, uint64_t least)
{
    uint64_t sum = 0;
    for (int k = 0; k < n; k++) {
        uint64_t w = c->weight[candidate(c, sorted, k)];
        sum += w >= least ? w : 0;
    }
    return sum;
}

/* The smallest number of the most probable candidates that weigh at least `want`; takes them off the
 * heap as far as top-k has not. */
static int cut_top_p(struct choice *c, int n_taken, uint64_t want)
{
    uint64_t sum = 0;
    int kept = 0;
    while (sum < want) {
        int32_t id = kept < n_taken ? candidate(c, true, kept) : heap_take(c);
        sum += c->weight[id];
        kept++;
    }
    return kept;
}

/* Leaves the survivors of top-k and top-p, in descending order from the end of ids; how many. */
static int filter_sorted(struct choice *c)
{
    bool top_k = c->o->top_k > 0 && c->o->top_k < c->n;
    int n_taken = 0;
    heap_make(c);
    for (; top_k && n_taken < c->o->top_k; n_taken++)
        heap_take(c);
    if (c->o->top_p >= 1.0f)
        return n_taken;
    uint64_t total = weight_of(c, top_k, top_k ? n_taken : c->n, 0);
    return cut_top_p(c, n_taken, sample_want(c->o->top_p, total));
}

static int32_t pick(const struct choice *c, bool sorted, int n_kept)
{
    uint64_t least = sample_least(c->o->min_p), sum = 0;
    uint64_t target = sample_target(c->o->draw, weight_of(c, sorted, n_kept, least));
    for (int k = 0;; k++) {
        CHECK_HOT(k < n_kept);
        uint64_t w = c->weight[candidate(c, sorted, k)];
        sum += w >= least ? w : 0;
        if (sum > target)
            return candidate(c, sorted, k);
    }
}

static int32_t choose(const float *logits, int n_vocab, const struct sample_row *o,
                      uint64_t *weight, int32_t *ids)
{
    int32_t best = greedy(logits, n_vocab);
    if (best < 0 || !(o->temperature > 0.0f) || !isfinite(logits[best]))
        return best;
    struct choice c = {.logits = logits, .o = o, .weight = weight, .ids = ids};
    for (int32_t i = 0; i < n_vocab; i++) {
        weight[i] = sample_weight(logits[i], logits[best], o->temperature);
        ids[c.n] = i;
        c.n += !isnan(logits[i]);
    }
    bool sorted = (o->top_k > 0 && o->top_k < c.n) || o->top_p < 1.0f;
    return pick(&c, sorted, sorted ? filter_sorted(&c) : c.n);
}

struct sample_job {
    int32_t *ids;
    struct mat logits;
    const struct sample_row *rows;
    uint8_t *scratch;
    size_t bytes; /* of it, a thread's */
    int n_threads;
};

static void choose_rows(void *arg, int thread_idx, int n_threads)
{
    struct sample_job *job = arg;
    long begin, end, n = job->logits.cols;
    n_threads = n_threads < job->n_threads ? n_threads : job->n_threads;
    if (thread_idx >= n_threads)
        return;
    uint64_t *weight = (void *)(job->scratch + (size_t)thread_idx * job->bytes);
    pool_share(job->logits.rows, 1, thread_idx, n_threads, &begin, &end);
    for (long i = begin; i < end; i++)
        job->ids[i] = choose((const float *)job->logits.data + i * job->logits.ld, (int)n,
                             &job->rows[i], weight, (int32_t *)(weight + n));
}

int cpu_sample(struct stream *s, int32_t *ids, struct mat logits,
               const struct sample_row *rows)
{
    size_t room = (size_t)logits.cols * (sizeof(uint64_t) + sizeof(int32_t));
    struct sample_job job = {ids, logits, rows, s->scratch, round_up(room, 64), 0};
    check_sample(logits, rows);
    CHECK(room <= s->scratch_bytes);
    int rc = stream_enter(s);
    if (rc != 0)
        return rc;
    job.n_threads = logits.rows > 1 && job.bytes <= s->scratch_bytes / 2
                        ? (int)(s->scratch_bytes / job.bytes)
                        : 1;
    if (job.n_threads == 1)
        choose_rows(&job, 0, 1);
    else
        pool_run(s->pool, choose_rows, &job);
    return rc;
}
