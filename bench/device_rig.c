/* device_rig.c - see device_rig.h. */
#include "bench/device_rig.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "bench/bench.h"

int rig_open(struct device *d, enum dtype t, struct rig *out, struct err *err)
{
    *out = (struct rig){.dev = d, .op = d->ops, .dtype = t};
    return stream_create(d, STREAM_COMPUTE, &out->s, err);
}

void rig_close(struct rig *r)
{
    stream_destroy(r->s);
    r->s = NULL;
}

enum dtype rig_act_dtype(const struct rig *r)
{
    return r->dev->act_is_state ? r->dtype : r->dev->act_dtype;
}

static int fault(const struct rig *r, int rc, struct err *err)
{
    const char *why = stream_fault(r->s);
    return err_set(err, rc, "%s", why[0] != 0 ? why : err_name(rc));
}

/* --- data ------------------------------------------------------------------------------------- */

enum { PATTERN = 1 << 20 };

static void fill_pattern(void *p, enum dtype t)
{
    struct rng rng = {7};
    for (size_t i = 0; i < PATTERN / dtype_bytes(t); i++) {
        float f = (float)(rng_unit(&rng) - 0.5);
        if (t == DTYPE_F32)
            ((float *)p)[i] = f;
        else
            ((uint16_t *)p)[i] = t == DTYPE_F16 ? f32_to_f16(f) : f32_to_bf16(f);
    }
}

int rig_random(struct rig *r, size_t bytes, struct buf *out, struct err *err)
{
    struct buf host = {0};
    *out = (struct buf){0};
    int rc = buf_alloc(r->dev, MEM_DEVICE, bytes, out, err);
    if (rc == 0)
        rc = buf_alloc(r->dev, MEM_PINNED, PATTERN, &host, err);
    if (rc != 0) {
        buf_free(r->dev, out);
        return rc;
    }
    fill_pattern(host.ptr, r->dtype);
    for (size_t at = 0; at < bytes && rc == 0; at += PATTERN)
        rc = stream_copy(r->s, (uint8_t *)out->ptr + at, host.ptr,
                         bytes - at < PATTERN ? bytes - at : PATTERN);
    if (rc == 0)
        rc = stream_sync(r->s);
    buf_free(r->dev, &host);
    return rc == 0 ? 0 : fault(r, rc, err);
}

/* --- time ------------------------------------------------------------------------------------- */

int rig_time(struct rig *r, int (*run)(struct rig *r, void *arg, int i), void *arg,
             int inner, int runs, struct spread *out, struct err *err)
{
    enum { MAX = 999 };
    double t[MAX];
    int n = 0, count = 0, rc = 0;
    runs = runs < MAX ? runs : MAX;
    for (int k = -1; k < runs && rc == 0; k++) { /* the first run warms up */
        int64_t t0 = clock_now_ns();
        for (int i = 0; i < inner && rc == 0; i++)
            rc = run(r, arg, count++);
        if (rc == 0)
            rc = stream_sync(r->s);
        if (k >= 0)
            t[n++] = (double)(clock_now_ns() - t0) / inner * 1e-9;
    }
    if (rc != 0)
        return fault(r, rc, err);
    /* bench_median also sorts t, for the minimum and maximum */
    out->median = bench_median(t, n);
    out->min = t[0];
    out->max = t[n - 1];
    return 0;
}

/* --- ceilings --------------------------------------------------------------------------------- */

/* A run of this length is long compared with the clock's resolution and with a launch, so larger
 * sizes are not tried. */
#define LONG_S 1e-3

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

static int run_copy(struct rig *r, void *arg, int i)
{
    const struct copy *c = arg;
    (void)i;
    return stream_copy(r->s, c->to, c->from, c->bytes);
}

static int copy_rate(struct rig *r, void *to, const void *from, size_t bytes,
                     double *bytes_per_s, struct err *err)
{
    struct copy c = {to, from, bytes};
    struct spread t;
    int rc = rig_time(r, run_copy, &c, 1, 5, &t, err);
    if (rc == 0)
        *bytes_per_s = (double)bytes / t.min;
    return rc;
}

static int measure_copies_of(struct rig *r, size_t bytes, struct device_ceilings *out,
                             struct err *err)
{
    struct buf a = {0}, b = {0}, pinned = {0};
    int rc = rig_random(r, bytes, &a, err);
    if (rc == 0)
        rc = buf_alloc(r->dev, MEM_DEVICE, bytes, &b, err);
    if (rc == 0)
        rc = copy_rate(r, b.ptr, a.ptr, bytes, &out->memory_bytes_per_s, err);
    out->memory_bytes_per_s *= 2; /* a copy reads and writes each byte */
    if (rc == 0 && !r->dev->unified)
        rc = buf_alloc(r->dev, MEM_PINNED, bytes, &pinned, err);
    if (rc == 0 && !r->dev->unified)
        rc = copy_rate(r, pinned.ptr, a.ptr, bytes, &out->down_bytes_per_s, err);
    if (rc == 0 && !r->dev->unified)
        rc = copy_rate(r, b.ptr, pinned.ptr, bytes, &out->up_bytes_per_s, err);
    buf_free(r->dev, &a);
    buf_free(r->dev, &b);
    buf_free(r->dev, &pinned);
    return rc;
}

/* Measures copies with the largest size that does not take needlessly long. Small copies would lie
 * in caches. */
static int measure_copies(struct rig *r, struct device_ceilings *out, struct err *err)
{
    enum { SMALLEST = 1 << 20, LARGEST = 256 << 20 };
    double s = 0;
    int rc = 0;
    for (size_t n = SMALLEST; rc == 0 && n <= LARGEST && s < 2 * LONG_S; n *= 4) {
        rc = measure_copies_of(r, n, out, err);
        s = (double)n / (r->dev->unified ? out->memory_bytes_per_s : out->up_bytes_per_s);
    }
    return rc;
}

struct square {
    struct mat c, a;
    struct weight w;
};

static int run_square(struct rig *r, void *arg, int i)
{
    const struct square *q = arg;
    (void)i;
    return r->op->matmul(r->s, q->c, q->a, &q->w, NULL);
}

/* Measures a square product of size n. Weights are random bits of the type. Their layout is the
 * backend's own, so they are not packed. */
static int measure_square(struct rig *r, int n, struct spread *t, struct err *err)
{
    enum dtype act = rig_act_dtype(r);
    size_t bytes = (size_t)n * (size_t)n * dtype_bytes(act);
    struct buf a = {0}, c = {0};
    struct square q = {.w = {.dtype = r->dtype, .n = n, .k = n}};
    int rc = rig_random(r, bytes, &a, err);
    if (rc == 0)
        rc = buf_alloc(r->dev, MEM_DEVICE, bytes, &c, err);
    if (rc == 0)
        rc = rig_random(r, r->op->weight_bytes(r->dtype, n, n), &q.w.mem, err);
    q.a = mat_of(a.ptr, act, n, n);
    q.c = mat_of(c.ptr, act, n, n);
    if (rc == 0)
        rc = rig_time(r, run_square, &q, 2, 5, t, err);
    buf_free(r->dev, &a);
    buf_free(r->dev, &c);
    buf_free(r->dev, &q.w.mem);
    return rc;
}

static int measure_gemm(struct rig *r, struct device_ceilings *out, struct err *err)
{
    enum { SMALLEST = 128, LARGEST = 8192 };
    struct spread t = {0};
    int rc = 0;
    for (int n = SMALLEST; rc == 0 && n <= LARGEST && t.min < LONG_S; n *= 2) {
        rc = measure_square(r, n, &t, err);
        double rate = rc == 0 ? 2.0 * n * n * n / t.min : 0;
        out->gemm_flops = rate > out->gemm_flops ? rate : out->gemm_flops;
    }
    return rc;
}

int device_ceilings_measure(struct rig *r, struct device_ceilings *out, struct err *err)
{
    *out = (struct device_ceilings){0};
    int rc = measure_copies(r, out, err);
    return rc == 0 ? measure_gemm(r, out, err) : rc;
}

void device_ceilings_print(const struct device_ceilings *c, const struct rig *r)
{
    printf("ceilings of device %s (%s): %s GEMM %.4g TFLOP/s, memory %.4g GB/s (read and "
           "written)",
           r->dev->name, r->dev->isa, dtype_name(r->dtype), c->gemm_flops * 1e-12,
           c->memory_bytes_per_s * 1e-9);
    if (c->up_bytes_per_s > 0)
        printf(", pinned copies up %.4g GB/s, down %.4g GB/s", c->up_bytes_per_s * 1e-9,
               c->down_bytes_per_s * 1e-9);
    printf("\n");
}
