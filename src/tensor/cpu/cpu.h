/* cpu.h - the CPU backend and its kernels; private to src/tensor/cpu.
 *
 *   cpu_*.c    one group of operations each: checks, division of work among threads, memory layout
 *   kern_*.h   the loops, written once over a vector of 16 floats (v16)
 *   vec_*.h    v16 in portable C, AVX2 (two registers) and AVX-512 (one register)
 *   isa_*.c    compiles kern_*.h over one vec_*.h into one `struct cpu_kernels`
 *
 * All instruction sets give the same bits, exponentials included, because they run the same steps
 * on the same lanes.  The table is chosen once, when the device is opened: the best that the CPU
 * has, or the one named by --isa (portable, avx2, avx512, avx512bf16, which differs from avx512 in
 * attention).
 *
 * Packed weights are panels of 16 columns (rows of W), [ceil(n/16)][k][16] in the weight's type, so
 * that a panel is one stream of memory and a k-step is one vector.  Columns that do not exist are
 * zero. */
#ifndef TENSOR_CPU_H
#define TENSOR_CPU_H

#include <stdatomic.h>

#include "base/minmax.h"
#include "tensor/device.h"
#include "tensor/operations.h"
#include "tensor/shape.h"

/* Raise this version whenever an operation gives other bits (tensor.h: device.numerics_version).
 * All instruction sets share this version, because they give the same bits. */
#define CPU_NUMERICS_VERSION 2

#define PANEL 16

/* PACK_ROWS: rows whose activations are packed at once. TILE_ROWS: rows of one tile; a k-block of
 * 192 rows is 192 KiB and stays in L2 beside the tile of C. */
#define PACK_ROWS   384
#define TILE_ROWS   192
#define TILE_PANELS 8

/* Most query vectors of one attention tile. */
#define TILE_QUERIES ATTENTION_MAX_GROUP

/* One tile of a matrix product: m rows by n_panels panels. */
struct mm_tile {
    /* packed: element (row, k) is a[(k / 256 * a_rows + row) * 256 + k % 256] */
    const float *a;
    int64_t a_rows;
    int m;
    int64_t k;
    const uint8_t *w; /* address of the first panel of weights */
    enum dtype dtype;
    int n_panels;
    float *c; /* first element of the tile */
    int64_t ldc;
    int64_t n_cols;     /* columns that exist: at most n_panels * 16 */
    const float *bias;  /* bias of the first column, or NULL */
    bool fetch_into_l2; /* result of cpu_fetches_into_l2 */
    float *scratch;     /* MM_SCRATCH floats of this thread */
};
#define MM_SCRATCH (256 * 32 + TILE_ROWS * 32 + 32)

/* Tokens [t0, t0 + n) of one block, for some neighbouring kv heads. */
struct kv_run {
    enum dtype dtype;
    int d_head, n_heads, t0, n;
    const uint8_t *k_rows, *v_rows; /* K and V of the first token and the first head */
    size_t row_bytes;               /* bytes from token to token */
    const float *cos, *sin;         /* rotation of the first token, [half] per token */
    int half;                       /* d_rot / 2 */
    uint8_t *k, *v; /* K and V of the first head in the block: [d_head][64], [64][d_head] */
    void *scratch;  /* KV_SCRATCH floats of this thread */
    bool is_cached; /* the result is read at once, so it should stay in the caches */
};
/* A whole chunk in a block's layout, K before RoPE. */
struct kv_chunk {
    enum dtype dtype;
    int d_head, n_kv;
    const uint8_t *chunk, *v; /* K and V of the chunk */
    uint8_t *block;
    const float *cos, *sin; /* [half][64], for this chunk's positions */
    int half;
};

/* KV_GROUP: tokens that are transposed together (32 of 16 bits are a cache line). KV_ITEM_ELEMENTS:
 * elements of one token's K that are taken together. */
#define KV_GROUP         32
#define KV_ITEM_ELEMENTS 1024
#define KV_SCRATCH       (KV_GROUP * (KV_ITEM_ELEMENTS + ATTENTION_MAX_D_HEAD))

/* Attention of up to TILE_QUERIES query vectors of one sequence: n for each of n_kv_heads
 * neighbouring kv heads, ordered by head. */
struct attn_tile {
    const struct kv_layer *kv;
    const int32_t *table;
    int kv_head, n_kv_heads;
    int n;
    const float *q[TILE_QUERIES];
    float *out[TILE_QUERIES];
    /* range of keys that each query sees, the same for every head */
    int32_t begin[TILE_QUERIES], end[TILE_QUERIES];
    const float *sink[TILE_QUERIES]; /* NULL: none (ops.h, struct attention_rule) */
    float scale, cap;
    float *scratch; /* ATTN_SCRATCH floats of this thread */
};
#define ATTN_SCRATCH                                                                       \
    (KV_BLOCK_TOKENS * ATTENTION_MAX_D_HEAD * 2 +                                          \
     TILE_QUERIES * (2 * ATTENTION_MAX_D_HEAD + 64 + 24))

/* The rows of one sequence in a recurrent layer, for one head of Q and K, or one of V. */
struct delta_run {
    const struct delta_rule *d;
    int head, n;
    float *in; /* first row: beta, a, channels (ops.h) */
    int64_t ld_in;
    float *out; /* first row; NULL: not wanted */
    int64_t ld_out;
    uint8_t *state;
    bool is_first; /* the state begins here */
    int n_ahead;   /* the last rows, which leave no trace in the state */
    /* Gets their inputs, as `in`: rows [n_ahead] of delta_in_cols columns. */
    float *kept;
};

struct cpu_kernels {
    const char *isa;
    int direct_rows; /* products of at most this many rows use mm_direct, larger ones mm_blocked */

    void (*mm_direct)(const struct mm_tile *t);
    void (*mm_blocked)(const struct mm_tile *t);

    /* The next functions work on rows of n elements. */
    void (*rms_row)(float *out, const void *x, enum dtype t, const float *w, int64_t n,
                    float eps);
    void (*layer_row)(float *out, const void *x, enum dtype t, const float *w,
                      const float *b, int64_t n, float eps);
    void (*scale_row)(void *out, enum dtype to, const void *x, enum dtype from, int64_t n,
                      float scale);
    void (*add_row)(void *out, enum dtype to, const void *a, enum dtype from,
                    const float *b, int64_t n);
    /* out = act(gate) * up, or act(gate) if up is NULL */
    void (*act_row)(float *out, const float *gate, const float *up, int64_t n,
                    enum activation act);
    bool (*finite_row)(const void *x, enum dtype t, int64_t n);
    void (*rope_head)(float *x, const float *cos, const float *sin, int half);
    /* Returns the largest value. Ignores NaNs; -inf if there are only NaNs. */
    float (*max_row)(const float *x, int64_t n);
    /* out[i], rounded down, is sample_weight(logits[i], best, temperature), which is 0 for a NaN */
    void (*sample_row_exp)(float *out, const float *logits, int64_t n, float best,
                           float temperature);

    void (*kv_fill)(const struct kv_run *run);
    void (*kv_load)(const struct kv_chunk *c);
    void (*attention)(const struct attn_tile *t);
    void (*attention_bf16)(const struct attn_tile *t); /* the same for bf16 state */
    /* the channels of a head of Q and K; then a head of V */
    void (*delta_keys)(const struct delta_run *run);
    void (*delta)(const struct delta_run *run);
};

extern const struct cpu_kernels cpu_kernels_portable;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
extern const struct cpu_kernels cpu_kernels_avx512bf16;
void attention_avx512bf16(const struct attn_tile *t);
#endif

/* --- shared by the operations --------------------------------------------------------------- */

const struct cpu_kernels *cpu_kernels_of(const struct stream *s);

/* Return a compute stream's scratch memory: the packed activations, and then one part per thread.
 */
float *scratch_packed(const struct stream *s);
float *scratch_thread(const struct stream *s, int thread_idx);

/* Work is cut into items that threads take one after another, so that a thread whose core is busy
 * takes fewer.  An item's result does not depend on the thread that computes it. */
struct items {
    atomic_long next;
    long n;
};
static inline bool item_take(struct items *it, long *item)
{
    *item = atomic_fetch_add_explicit(&it->next, 1, memory_order_relaxed);
    return *item < it->n;
}

/* Like struct items, for few rows of activations, where reading weights takes all the time.  Each
 * thread begins with its own stretch of neighbouring items, so that it can prefetch the next item's
 * memory while it reads one.  When its stretch is done it takes items of other stretches.  A thread
 * takes a quarter of what is left at once: each take waits for the loads before it. */
#define MAX_STRETCHES 16
struct stretches {
    int n;
    long least; /* items of one take, at least, while there are as many */
    struct {
        _Alignas(64) atomic_long next;
        long end;
    } of[MAX_STRETCHES];
};
void stretches_init(struct stretches *s, long n_items, long least, int n_threads);
/* Takes items [*item, *item + n).  Returns n; 0 if no item is left.  *at: the stretch that this
 * thread works on, initially its own index. */
static inline long stretch_take(struct stretches *s, int thread_idx, int *at, long *item)
{
    for (; *at < thread_idx + s->n; ++*at) {
        int i = *at % s->n;
        long n, left;
        *item = atomic_load_explicit(&s->of[i].next, memory_order_relaxed);
        while ((left = s->of[i].end - *item) > 0) {
            n = MAX(left / 4, MIN(left, s->least));
            if (atomic_compare_exchange_weak_explicit(&s->of[i].next, item, *item + n,
                                                      memory_order_relaxed,
                                                      memory_order_relaxed))
                return n;
        }
    }
    return 0;
}

/* Returns whether the weights of a product of few rows are prefetched into the second cache only.
 * On AMD's CPUs so few misses of the first cache can be in flight that a core which prefetches into
 * it reads at two thirds of its speed.  On Intel's CPUs prefetching into the first cache was
 * measured faster (docs/perf/). */
bool cpu_fetches_into_l2(void);

/* Returns whether a product of few rows with quantised weights reads one panel after another and
 * prefetches into the first cache.  On AMD's CPUs from Zen 5 on that is a third faster than several
 * panels side by side.  On others it was slower or was not measured (docs/perf/). */
bool cpu_reads_one_stream(void);
/* Returns the same for a CPU of that family. */
static inline bool family_reads_one_stream(bool is_amd, int family)
{
    return is_amd && family >= 0x1a;
}
/* Returns the family of this CPU, as /proc/cpuinfo has it; 0 if CPUs of this kind have none. */
int cpu_family(void);

/* For fewer elements than this, a fork and join (2 to 5 us) costs more than the second core gains.
 */
#define MIN_PARALLEL_ELEMENTS 16384

/* Calls fn(arg, begin, end) over rows, on all threads if there are enough `elements`. */
typedef void rows_fn(void *arg, int64_t begin, int64_t end);
void rows_run(const struct stream *s, int64_t n_rows, int64_t elements, rows_fn *fn,
              void *arg);

static inline void *row_ptr(struct mat a, int64_t row)
{
    return (char *)a.data + (size_t)(row * a.ld) * dtype_bytes(a.dtype);
}

/* --- the operations, see ops.h and operations.h ---------------------------------------------- */

OPERATIONS_DECLARE(cpu)
int cpu_matmul_many(struct stream *s, struct mat a, const struct product *p, int n);
void cpu_expect(struct stream *s, const struct weight *const *w, int n);

#endif
