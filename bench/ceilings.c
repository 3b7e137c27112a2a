/* ceilings.c - see ceilings.h. */
#include "bench/ceilings.h"

#include <dlfcn.h>
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* --- timing --------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct spread time_spread(void (*fn)(void *arg), void *arg, double seconds)
{
    enum { MAX = 1000 };
    static double t[MAX];
    int n = 0;
    fn(arg);
    int64_t start = clock_now_ns(), now = start;
    do {
        int64_t before = now;
        fn(arg);
        now = clock_now_ns();
        t[n++] = (double)(now - before) * 1e-9;
    } while (n < MAX && (n < 3 || (double)(now - start) * 1e-9 < seconds));
    qsort(t, (size_t)n, sizeof t[0], compare_doubles);
    return (struct spread){t[0], t[n / 2], t[n - 1]};
}

/* --- FMA ------------------------------------------------------------------------------------ */

#define FMA_STEPS 200000

__attribute__((target("avx2,fma"))) static void fma_avx2(void)
{
    __m256 s[12], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        s[i] = _mm256_set1_ps((float)i);
    for (int i = 0; i < FMA_STEPS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++)
            s[j] = _mm256_fmadd_ps(s[j], a, b);
        __asm__ volatile("" : "+x"(s[0]));
    }
#pragma GCC unroll 12
    for (int i = 1; i < 12; i++)
        s[0] = _mm256_add_ps(s[0], s[i]);
    __asm__ volatile("" : : "x"(s[0]));
}

__attribute__((target("avx512f"))) static void fma_avx512(void)
{
    __m512 s[24], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
#pragma GCC unroll 24
    for (int i = 0; i < 24; i++)
        s[i] = _mm512_set1_ps((float)i);
    for (int i = 0; i < FMA_STEPS / 2; i++) {
#pragma GCC unroll 24
        for (int j = 0; j < 24; j++)
            s[j] = _mm512_fmadd_ps(s[j], a, b);
        __asm__ volatile("" : "+v"(s[0]));
    }
#pragma GCC unroll 24
    for (int i = 1; i < 24; i++)
        s[0] = _mm512_add_ps(s[0], s[i]);
    __asm__ volatile("" : : "v"(s[0]));
}

struct fma_job {
    struct pool *pool;
    bool wide;
};

static void fma_share(void *arg, int thread_idx, int n_threads)
{
    (void)thread_idx;
    (void)n_threads;
    if (((struct fma_job *)arg)->wide)
        fma_avx512();
    else
        fma_avx2();
}

static void fma_once(void *arg)
{
    pool_run(((struct fma_job *)arg)->pool, fma_share, arg);
}

double ceiling_fma(struct pool *pool, const char *isa, double seconds)
{
    struct fma_job job = {pool, strncmp(isa, "avx512", 6) == 0};
    if (!job.wide && strcmp(isa, "avx2") != 0)
        return 0;
    double flop = job.wide ? FMA_STEPS / 2.0 * 24 * 32 : FMA_STEPS * 12.0 * 16;
    return flop * pool_threads(pool) / time_spread(fma_once, &job, seconds).min;
}

/* --- 8-bit products --------------------------------------------------------------------------- */

/* In assembly, because gcc copies sums that an intrinsic overwrites, and takes products out of the
 * loop. */
__attribute__((target("avx2"))) static void int8_avx2(void)
{
    __m256i s[10], product, a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-2);
#pragma GCC unroll 10
    for (int i = 0; i < 10; i++)
        s[i] = _mm256_set1_epi16((short)i);
    for (int i = 0; i < FMA_STEPS; i++) {
#pragma GCC unroll 10
        for (int j = 0; j < 10; j++)
            __asm__ volatile("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0"
                             : "+x"(s[j]), "=&x"(product)
                             : "x"(b), "x"(a));
    }
}

__attribute__((target("avx512f,avx512vnni"))) static void int8_vnni(void)
{
    __m512i s[20], a = _mm512_set1_epi32(0x03030303);
#pragma GCC unroll 20
    for (int i = 0; i < 20; i++)
        s[i] = _mm512_set1_epi32(i);
    for (int i = 0; i < FMA_STEPS / 2; i++) {
#pragma GCC unroll 20
        for (int j = 0; j < 20; j++)
            __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(s[j]) : "v"(a));
    }
}

static void int8_share(void *arg, int thread_idx, int n_threads)
{
    (void)thread_idx;
    (void)n_threads;
    if (((struct fma_job *)arg)->wide)
        int8_vnni();
    else
        int8_avx2();
}

static void int8_once(void *arg)
{
    pool_run(((struct fma_job *)arg)->pool, int8_share, arg);
}

double ceiling_int8(struct pool *pool, const char *isa, double seconds)
{
    bool avx512 = strncmp(isa, "avx512", 6) == 0;
    struct fma_job job = {pool, avx512 && __builtin_cpu_supports("avx512vnni")};
    if (!avx512 && strcmp(isa, "avx2") != 0)
        return 0;
    double ops = job.wide ? FMA_STEPS / 2.0 * 20 * 128 : FMA_STEPS * 10.0 * 64;
    return ops * pool_threads(pool) / time_spread(int8_once, &job, seconds).min;
}

/* --- memory --------------------------------------------------------------------------------- */

struct mem_job {
    struct pool *pool;
    char *dst;
    const char *src;
    size_t bytes;
    int pattern; /* how bytes are read */
};

/* Patterns of one, four or eight concurrent streams, prefetched into the first cache or into the
 * second one. Which one is fastest differs between machines. */
#define N_READ_PATTERNS 6
#define FETCH_AHEAD     2048
#define FETCH_AHEAD_L2  3072

__attribute__((target("avx2"), always_inline)) static inline void
read_streams(const char *p, size_t bytes, int n_streams, bool into_l2)
{
    size_t part = bytes / (size_t)n_streams / 64 * 64;
    __m256i s[8];
#pragma GCC unroll 8
    for (int j = 0; j < n_streams; j++)
        s[j] = _mm256_setzero_si256();
    for (size_t i = 0; i < part; i += 64) {
#pragma GCC unroll 8
        for (int j = 0; j < n_streams; j++) {
            const __m256i *v = (const __m256i *)(p + (size_t)j * part + i);
            if (into_l2)
                __builtin_prefetch((const char *)v + FETCH_AHEAD_L2, 0, 2);
            else
                __builtin_prefetch((const char *)v + FETCH_AHEAD);
            s[j] = _mm256_xor_si256(s[j], _mm256_xor_si256(v[0], v[1]));
        }
    }
#pragma GCC unroll 8
    for (int j = 1; j < n_streams; j++)
        s[0] = _mm256_xor_si256(s[0], s[j]);
    __asm__ volatile("" : : "x"(s[0]));
}

__attribute__((target("avx2"))) static void read_range(const char *p, size_t bytes,
                                                       int pattern)
{
    bool into_l2 = pattern % 2 != 0;
    if (pattern / 2 == 0)
        read_streams(p, bytes, 1, into_l2);
    else if (pattern / 2 == 1)
        read_streams(p, bytes, 4, into_l2);
    else
        read_streams(p, bytes, 8, into_l2);
}

static void mem_share(void *arg, int thread_idx, int n_threads)
{
    struct mem_job *job = arg;
    long begin, end;
    pool_share((long)job->bytes, 4096, thread_idx, n_threads, &begin, &end);
    if (job->dst == NULL)
        read_range(job->src + begin, (size_t)(end - begin), job->pattern);
    else
        memcpy(job->dst + begin, job->src + begin, (size_t)(end - begin));
}

static void mem_once(void *arg)
{
    pool_run(((struct mem_job *)arg)->pool, mem_share, arg);
}

double ceiling_read(struct pool *pool, const void *buffer, size_t bytes, double seconds)
{
    struct mem_job job = {.pool = pool, .src = buffer, .bytes = bytes};
    double best = 0;
    for (job.pattern = 0; job.pattern < N_READ_PATTERNS; job.pattern++) {
        double rate = (double)bytes / time_spread(mem_once, &job, seconds).min;
        best = rate > best ? rate : best;
    }
    return best;
}

double ceiling_copy(struct pool *pool, void *dst, const void *src, size_t bytes,
                    double seconds)
{
    struct mem_job job = {.pool = pool, .dst = dst, .src = src, .bytes = bytes};
    return (double)bytes / time_spread(mem_once, &job, seconds).min;
}

/* --- OpenBLAS ------------------------------------------------------------------------------- */

static struct {
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c,
                  int ldc);
    void (*set_threads)(int n);
    char *(*core)(void);
} blas;

bool blas_open(void)
{
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL)
        return false;
    *(void **)&blas.sgemm = dlsym(lib, "cblas_sgemm");
    *(void **)&blas.set_threads = dlsym(lib, "openblas_set_num_threads");
    *(void **)&blas.core = dlsym(lib, "openblas_get_corename");
    return blas.sgemm != NULL && blas.set_threads != NULL && blas.core != NULL;
}

const char *blas_core(void)
{
    return blas.core();
}

void blas_sgemm(int n_threads, int m, int n, int k, const float *a, const float *b,
                float *c)
{
    enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
    blas.set_threads(n_threads);
    blas.sgemm(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, 1, a, k, b, k, 0, c, n);
}

static int64_t wanted_cpu_ns(void)
{
    struct clock_cpu c = clock_cpu_now();
    return c.ran_ns + c.waited_ns;
}

bool threads_rest(void)
{
    enum { LOOK_NS = 20000000, MAX_LOOKS = 100 };
    for (int i = 0; i < MAX_LOOKS; i++) {
        int64_t before = wanted_cpu_ns();
        clock_sleep_ns(LOOK_NS);
        if (wanted_cpu_ns() - before < LOOK_NS / 10)
            return true;
    }
    return false;
}
