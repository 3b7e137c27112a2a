/* cpu.c - the CPU device: the choice of kernels, the size of scratch memory, and the division of
 * rows among threads. */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/q4.h"
#include "tensor/cpu/quant.h"

#include "base/pool.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdlib.h>
#include <string.h>

static const struct ops cpu_ops = OPERATIONS_TABLE(cpu, .matmul_many = cpu_matmul_many,
                                                   .weight_pack_q8_0 = cpu_q8_pack_blocks,
                                                   .expect = cpu_expect);

/* --- instruction sets ----------------------------------------------------------------------- */

#if defined(__x86_64__)
/* Returns whether the CPU has F16C. clang 14's __builtin_cpu_supports does not know "f16c". */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

static bool isa_runs_here(const struct cpu_kernels *k)
{
    if (k == &cpu_kernels_portable)
        return true;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                has_f16c();
    if (k == &cpu_kernels_avx2)
        return avx2;
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                  __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (k == &cpu_kernels_avx512)
        return avx512;
    if (k == &cpu_kernels_avx512bf16)
        return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
    return false;
}

/* Tables of all instruction sets, the best first. */
static const struct cpu_kernels *const all_kernels[] = {
#if defined(__x86_64__)
    &cpu_kernels_avx512bf16,
    &cpu_kernels_avx512,
    &cpu_kernels_avx2,
#endif
    &cpu_kernels_portable,
};
enum { N_KERNELS = sizeof all_kernels / sizeof all_kernels[0] };

static int kernels_choose(const char *wanted, const struct cpu_kernels **out,
                          struct err *err)
{
    for (int i = 0; i < N_KERNELS; i++) {
        bool named = wanted == NULL || strcmp(wanted, all_kernels[i]->isa) == 0;
        if (named && isa_runs_here(all_kernels[i])) {
            *out = all_kernels[i];
            return 0;
        }
        if (named && wanted != NULL)
            return err_set(err, ERR_UNSUPPORTED, "--isa %s: this CPU lacks it", wanted);
    }
    return err_set(err, ERR_USAGE,
                   "--isa %s: unknown (known: portable, avx2, avx512, avx512bf16)", wanted);
}

const struct cpu_kernels *cpu_kernels_of(const struct stream *s)
{
    for (int i = 0; i < N_KERNELS; i++)
        if (strcmp(all_kernels[i]->isa, s->device->isa) == 0)
            return all_kernels[i];
    CHECK(!"a device of this backend");
    return NULL;
}

bool cpu_fetches_into_l2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

int cpu_family(void)
{
    static atomic_int known; /* CPUID takes microseconds in a virtual machine */
    int family = atomic_load_explicit(&known, memory_order_relaxed);
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (family == 0 && __get_cpuid(1, &a, &b, &c, &d) != 0) {
        family = (int)((a >> 8 & 15) + (a >> 20 & 255));
        atomic_store_explicit(&known, family, memory_order_relaxed);
    }
#endif
    return family;
}

bool cpu_reads_one_stream(void)
{
    return family_reads_one_stream(cpu_fetches_into_l2(), cpu_family());
}

/* --- scratch -------------------------------------------------------------------------------- */

#define PACKED_FLOATS ((size_t)PACK_ROWS * MATMUL_MAX_K)
#define THREAD_FLOATS                                                                      \
    ((size_t)MAX(MAX(MM_SCRATCH, QUANT_SCRATCH / 4), MAX(ATTN_SCRATCH, KV_SCRATCH)) + 1024)

float *scratch_packed(const struct stream *s)
{
    return s->scratch;
}

float *scratch_thread(const struct stream *s, int thread_idx)
{
    float *p = (float *)s->scratch + PACKED_FLOATS + (size_t)thread_idx * THREAD_FLOATS;
    CHECK_HOT((char *)(p + THREAD_FLOATS) <= (char *)s->scratch + s->scratch_bytes);
    return p;
}

int cpu_device_open(const char *isa, struct pool *pool, struct device **out,
                    struct err *err)
{
    const struct cpu_kernels *k = NULL;
    int rc = kernels_choose(isa, &k, err);
    if (rc != 0)
        return rc;
    size_t floats = PACKED_FLOATS + (size_t)pool_threads(pool) * THREAD_FLOATS;
    return host_device_open("cpu", &cpu_ops, CPU_NUMERICS_VERSION, k->isa,
                            floats * sizeof(float), pool, out, err);
}

/* --- rows over threads ---------------------------------------------------------------------- */

struct rows_job {
    rows_fn *fn;
    void *arg;
    int64_t n_rows;
};

static void rows_share(void *arg, int thread_idx, int n_threads)
{
    struct rows_job *job = arg;
    long begin, end;
    pool_share(job->n_rows, 1, thread_idx, n_threads, &begin, &end);
    if (begin < end)
        job->fn(job->arg, begin, end);
}

void rows_run(const struct stream *s, int64_t n_rows, int64_t elements, rows_fn *fn,
              void *arg)
{
    struct rows_job job = {fn, arg, n_rows};
    if (n_rows == 1 || elements < MIN_PARALLEL_ELEMENTS)
        fn(arg, 0, n_rows);
    else
        pool_run(s->pool, rows_share, &job);
}

void stretches_init(struct stretches *s, long n_items, long least, int n_threads)
{
    s->least = least;
    s->n = MIN(n_threads, MAX_STRETCHES);
    for (int i = 0; i < s->n; i++) {
        long begin;
        pool_share(n_items, 1, i, s->n, &begin, &s->of[i].end);
        atomic_store_explicit(&s->of[i].next, begin, memory_order_relaxed);
    }
}
