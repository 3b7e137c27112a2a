/* k_sample.cu - choosing a token from each row of logits (ops.h, sampling.h), one block of threads
 * per row.
 *
 * Candidates are never sorted.  Their keys define the order.  The kernel looks for the candidate at
 * which the sum of weights, added in that order, exceeds a target, and finds its key digit by
 * digit.  A histogram of the candidates' weights by the next digit of their keys, summed from the
 * largest digit down, tells at which digit the sum exceeds the target.  The next pass examines only
 * candidates with that digit.  Three digits are of the logit, two of the id.  Weights are whole
 * numbers, so the order in which threads add does not matter.  A row of 128 K logits is 512 KB,
 * which stays in L2 between passes.  Each pass computes the weights anew, which costs less than
 * storing them. */
#include "cuda/device.cuh"
#include "cuda/launch.h"
#include "tensor/sampling.h"

enum { THREADS = 1024, DIGIT = 11, BUCKETS = 1 << DIGIT };

/* Says which candidates of a row count, and by how much. */
struct sieve {
    const float *logits;
    int n;
    float best, temperature;
    uint64_t cut; /* only candidates with at least this key count */
    uint64_t least; /* and only candidates of at least this weight */
    bool counts; /* each candidate counts as one, not by its weight */
    bool by_id; /* candidates are ordered by id, the lowest first; false: by key */
};

static __device__ __forceinline__ uint64_t measure(const sieve &v, int j, uint64_t *key)
{
    uint64_t k = sample_key(v.logits[j], j);
    *key = v.by_id ? (uint32_t)k : k;
    if (k == 0 || k < v.cut)
        return 0;
    if (v.counts)
        return 1;
    uint64_t w = sample_weight(v.logits[j], v.best, v.temperature);
    return w >= v.least ? w : 0;
}

/* Returns the sum of x over threads 0 to this one; the last thread has the sum of the block. */
static __device__ uint64_t block_scan(uint64_t x)
{
    __shared__ uint64_t sum[THREADS];
    int t = (int)threadIdx.x;
    __syncthreads(); /* the previous scan has been read */
    sum[t] = x;
    for (int d = 1; d < THREADS; d *= 2) {
        __syncthreads();
        uint64_t y = t >= d ? sum[t - d] : 0;
        __syncthreads();
        sum[t] += y;
    }
    __syncthreads();
    return sum[t];
}

template <typename T> static __device__ T from_last(T x)
{
    __shared__ T last;
    __syncthreads();
    if (threadIdx.x == THREADS - 1)
        last = x;
    __syncthreads();
    return last;
}

static __device__ uint64_t block_total(uint64_t x)
{
    return from_last(block_scan(x));
}

static __device__ uint64_t block_max(uint64_t x)
{
    __shared__ uint64_t top[THREADS];
    int t = (int)threadIdx.x;
    __syncthreads();
    top[t] = x;
    for (int d = THREADS / 2; d > 0; d /= 2) {
        __syncthreads();
        if (t < d && top[t + d] > top[t])
            top[t] = top[t + d];
    }
    __syncthreads();
    return top[0];
}

static __device__ uint64_t total_of(const sieve &v)
{
    uint64_t sum = 0, key;
    for (int j = (int)threadIdx.x; j < v.n; j += THREADS)
        sum += measure(v, j, &key);
    return block_total(sum);
}

/* 64 bits in two halves: in shared memory the hardware adds 32 bits at once, but 64 bits in a loop
 * of compare and swap, which takes long when hundreds of threads use one bucket. */
struct bucket_sum {
    unsigned low, high;
};

static __device__ __forceinline__ void add_to(bucket_sum *b, uint64_t x)
{
    unsigned low = (unsigned)x, high = (unsigned)(x >> 32);
    unsigned was = atomicAdd(&b->low, low);
    high += was + low < low; /* adds the carry */
    if (high != 0)
        atomicAdd(&b->high, high);
}

static __device__ __forceinline__ uint64_t sum_of(const bucket_sum &b)
{
    return (uint64_t)b.high << 32 | b.low;
}

/* Sums the buckets from the largest digit down. Returns the digit at which the sum exceeds *target;
 * subtracts the sum of the buckets above it from *target. */
static __device__ uint64_t find_digit(const bucket_sum *bucket, uint64_t *target)
{
    enum { EACH = BUCKETS / THREADS };
    __shared__ uint64_t found, left;
    int first = BUCKETS - 1 - (int)threadIdx.x * EACH;
    uint64_t mine = 0;
    for (int i = 0; i < EACH; i++)
        mine += sum_of(bucket[first - i]);
    uint64_t above = block_scan(mine) - mine;
    if (above <= *target && *target < above + mine) {
        int b = first;
        for (; *target >= above + sum_of(bucket[b]); b--)
            above += sum_of(bucket[b]);
        found = (uint64_t)b;
        left = *target - above;
    }
    __syncthreads();
    *target = left;
    return found;
}

/* Returns the key of the candidate at which the ordered sum exceeds target; the last candidate's
 * key if the total does not. */
static __device__ uint64_t candidate_at(const sieve &v, uint64_t target)
{
    __shared__ bucket_sum bucket[BUCKETS];
    const int shift[5] = {53, 42, 32, 11, 0}, bits[5] = {11, 11, 10, 11, 11};
    /* the bits of the id's complement that every key has */
    uint64_t found = (uint64_t)0x3ff << 22;
    for (int d = v.by_id ? 3 : 0; d < 5; d++) {
        __syncthreads(); /* the last digit has been read */
        for (int b = (int)threadIdx.x; b < BUCKETS; b += THREADS)
            bucket[b] = bucket_sum{0, 0};
        __syncthreads();
        for (int j = (int)threadIdx.x; j < v.n; j += THREADS) {
            uint64_t key, m = measure(v, j, &key);
            if (m != 0 && (key ^ found) >> (shift[d] + bits[d] - 1) >> 1 == 0)
                add_to(&bucket[key >> shift[d] & ((1u << bits[d]) - 1)], m);
        }
        __syncthreads();
        found |= find_digit(bucket, &target) << shift[d];
    }
    return found;
}

/* Returns the key of the drawn candidate. v has all n candidates, and the best logit is finite. */
static __device__ uint64_t draw_one(sieve v, const sample_row &o, uint64_t n)
{
    bool top_k = o.top_k > 0 && (uint64_t)o.top_k < n, top_p = o.top_p < 1.0f;
    if (top_k) {
        v.counts = true;
        v.cut = candidate_at(v, (uint64_t)o.top_k - 1);
        v.counts = false;
    }
    if (top_p)
        v.cut = candidate_at(v, sample_want(o.top_p, total_of(v)) - 1);
    v.least = sample_least(o.min_p);
    v.by_id = !top_k && !top_p;
    return candidate_at(v, sample_target(o.draw, total_of(v)));
}

/* Without the 1 (blocks per multiprocessor) the compiler limits itself to 32 registers and spills.
 */
static __global__ void __launch_bounds__(THREADS, 1)
    sample_rows(int32_t *ids, gpu_mat logits, const sample_row *rows)
{
    await_stream();
    const float *row = (const float *)logits.data + (int64_t)blockIdx.x * logits.ld;
    uint64_t best = 0, n = 0;
    for (int j = (int)threadIdx.x; j < logits.cols; j += THREADS) {
        uint64_t key = sample_key(row[j], j);
        best = key > best ? key : best;
        n += key != 0;
    }
    best = block_max(best);
    const sample_row &o = rows[blockIdx.x];
    sieve v = {row, logits.cols, sample_key_logit(best), o.temperature, 1, 0, false, false};
    if (best != 0 && o.temperature > 0.0f && isfinite(v.best))
        best = draw_one(v, o, block_total(n));
    if (threadIdx.x == 0)
        ids[blockIdx.x] = sample_key_id(best);
}

void gpu_sample(cudaStream_t s, int32_t *ids, struct gpu_mat logits,
                const struct sample_row *rows)
{
    LAUNCH(sample_rows, logits.rows, THREADS, 0, s, ids, logits, rows);
}
