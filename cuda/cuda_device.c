/* cuda_device.c - the GPU: opening it, memory, streams, events. */
#include "cuda/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/mem.h"
#include "cuda/untried/untried.h"

enum {
    UPLOAD_HALF = 4 << 20,
    SCRATCH_FLOATS = 4 << 20,
};
/* Device memory of a compute stream: scratch, both halves of the upload, the recorder's, a flag. */
#define STREAM_BYTES                                                                       \
    (SCRATCH_FLOATS * sizeof(float) + 2 * (size_t)UPLOAD_HALF + RECORDER_BYTES +           \
     CARVE_ALIGN)

/* --- errors ----------------------------------------------------------------------------------- */

int cuda_check(struct cuda_stream *s, cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return 0;
    char why[160];
    snprintf(why, sizeof why, "device cuda: %s: %s", what, cudaGetErrorString(e));
    return cuda_fail(s, e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, why);
}

int cuda_fail(struct cuda_stream *s, int code, const char *why)
{
    log_warn("%s", why);
    stream_fail(&s->base, code, why);
    return atomic_load(&s->base.code);
}

int cuda_enter(struct stream *s)
{
    CHECK(s->kind == STREAM_COMPUTE);
    return atomic_load(&s->code);
}

int cuda_leave(struct stream *s, const char *what)
{
    return cuda_check(cuda_stream(s), cudaGetLastError(), what);
}

/* --- memory ----------------------------------------------------------------------------------- */

static int no_memory(struct err *err, size_t bytes)
{
    size_t unused = 0, total = 0;
    cudaMemGetInfo(&unused, &total);
    return err_set(
        err, -ENOMEM,
        "device cuda: %.2f GB are needed at once, %.2f of %.2f GB are free: choose a "
        "smaller model, fewer --kv-tokens, or end other programs that use the GPU",
        (double)bytes / 1e9, (double)unused / 1e9, (double)total / 1e9);
}

static struct cuda_memory *memory_of(struct device *d)
{
    return &((struct cuda_device *)d)->memory;
}

static int cuda_reserve(struct device *d, size_t bytes, struct err *err)
{
    cudaError_t e = cuda_memory_reserve(memory_of(d), bytes);
    if (e == cudaErrorMemoryAllocation)
        return no_memory(err, bytes);
    return e == cudaSuccess ? 0
                            : err_set(err, -EIO, "device cuda: allocating %zu bytes: %s",
                                      bytes, cudaGetErrorString(e));
}

/* Waits for the zeroing, because streams do not wait for work that runs without a stream. */
static cudaError_t take_zeroed(struct cuda_memory *m, size_t bytes, void **out)
{
    cudaError_t e = cuda_memory_take(m, bytes, out);
    if (e == cudaSuccess)
        e = cudaMemset(*out, 0, bytes);
    return e == cudaSuccess ? cudaStreamSynchronize(NULL) : e;
}

static int cuda_buf_alloc(struct device *d, enum mem_kind kind, size_t bytes,
                          struct buf *out, struct err *err)
{
    size_t n = bytes != 0 ? bytes : 1;
    void *p = NULL;
    *out = (struct buf){0};
    if (kind == MEM_DEVICE) {
        cudaError_t e = take_zeroed(memory_of(d), n, &p);
        if (e != cudaSuccess)
            /* clears the error, which is reported here, so that the next operation does not report
             * it */
            (void)cudaGetLastError();
        if (e == cudaErrorMemoryAllocation)
            return no_memory(err, bytes);
        if (e != cudaSuccess)
            return err_set(err, -EIO, "device cuda: allocating %zu bytes: %s", bytes,
                           cudaGetErrorString(e));
    } else if (kind == MEM_PINNED) {
        if (cudaHostAlloc(&p, n, cudaHostAllocDefault) != cudaSuccess) {
            (void)cudaGetLastError();
            return err_set(err, -ENOMEM, "device cuda: cannot pin %zu bytes of host memory",
                           bytes);
        }
        memset(p, 0, n);
    } else {
        p = mem_map(n);
        if (p == NULL)
            return err_set(err, -ENOMEM, "cannot allocate %zu bytes", bytes);
    }
    *out = (struct buf){p, bytes, kind};
    return 0;
}

static void cuda_buf_free(struct device *d, struct buf *b)
{
    if (b->kind == MEM_DEVICE)
        cuda_memory_give(memory_of(d), b->ptr);
    else if (b->kind == MEM_PINNED)
        cudaFreeHost(b->ptr);
    else
        mem_unmap(b->ptr, b->bytes != 0 ? b->bytes : 1);
}

static void cuda_memory(struct device *d, size_t *unused_bytes, size_t *total_bytes)
{
    *unused_bytes = *total_bytes = 0;
    (void)cudaMemGetInfo(unused_bytes, total_bytes);
    *unused_bytes += cuda_memory_unused(memory_of(d));
}

/* --- streams ---------------------------------------------------------------------------------- */

static void cuda_stream_destroy(struct stream *base)
{
    struct cuda_stream *s = cuda_stream(base);
    struct cuda_device *d = (struct cuda_device *)base->device;
    if (s->handle != NULL)
        cudaStreamSynchronize(s->handle);
    if (s->blas != NULL)
        cuda_blas_handle_destroy(d->blas, s->blas);
    recorder_destroy(&d->memory, s->recorder);
    upload_destroy(&d->memory, &s->up);
    cuda_memory_give(&d->memory, s->scratch);
    cuda_memory_give(&d->memory, s->flag);
    cudaFreeHost(s->flag_host);
    if (s->handle != NULL)
        cudaStreamDestroy(s->handle);
    free(s);
}

/* Allocates the memory that operations need beside their operands. */
static int compute_create(struct cuda_device *d, struct cuda_stream *s, struct err *err)
{
    if (d->blas != NULL) {
        int rc = cuda_blas_handle_create(d->blas, s->handle, &s->blas, err);
        if (rc != 0)
            return rc;
    }
    s->scratch_floats = SCRATCH_FLOATS;
    struct cuda_memory *m = &d->memory;
    void *scratch = NULL, *flag = NULL, *flag_host = NULL;
    if (upload_create(m, &s->up, UPLOAD_HALF) != 0 ||
        recorder_create(m, d->no_graphs, &s->recorder) != 0 ||
        cuda_memory_take(m, SCRATCH_FLOATS * sizeof(float), &scratch) != cudaSuccess ||
        cuda_memory_take(m, sizeof *s->flag, &flag) != cudaSuccess ||
        cudaHostAlloc(&flag_host, sizeof *s->flag, cudaHostAllocDefault) != cudaSuccess) {
        cuda_memory_give(m, scratch);
        cuda_memory_give(m, flag);
        return no_memory(err, STREAM_BYTES);
    }
    s->scratch = scratch;
    s->flag = flag;
    s->flag_host = flag_host;
    return 0;
}

static int cuda_stream_create(struct device *d, enum stream_kind kind, struct stream **out,
                              struct err *err)
{
    struct cuda_stream *s = xcalloc(1, sizeof *s);
    s->base.device = d;
    s->base.kind = kind;
    int rc = 0;
    if (cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking) != cudaSuccess)
        rc = err_set(err, -EIO, "device cuda: no stream: %s",
                     cudaGetErrorString(cudaGetLastError()));
    if (rc == 0 && kind == STREAM_COMPUTE) /* inline streams only pack host memory */
        rc = compute_create((struct cuda_device *)d, s, err);
    if (rc != 0) {
        cuda_stream_destroy(&s->base);
        return rc;
    }
    *out = &s->base;
    return 0;
}

static int cuda_stream_sync(struct stream *base)
{
    struct cuda_stream *s = cuda_stream(base);
    int rc = cuda_check(s, cudaStreamSynchronize(s->handle), "stream");
    return rc != 0 ? rc : atomic_load(&base->code);
}

/* Clears the stream's error. A launch that was refused leaves the device as it was. After a fault
 * inside a kernel every later call fails as well, and only a new process helps. */
static int cuda_stream_recover(struct stream *base)
{
    struct cuda_stream *s = cuda_stream(base);
    (void)cudaStreamSynchronize(s->handle);
    (void)cudaGetLastError();
    cudaError_t e = cudaStreamSynchronize(s->handle);
    s->batch_id = 0; /* the batch's copy may not have arrived */
    base->fault[0] = 0;
    atomic_store(&base->code, 0);
    return cuda_check(s, e, "the device is lost");
}

static int cuda_stream_copy(struct stream *base, void *dst, const void *src, size_t bytes)
{
    struct cuda_stream *s = cuda_stream(base);
    int rc = atomic_load(&base->code);
    if (rc != 0 || bytes == 0)
        return rc;
    return cuda_check(s, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->handle),
                      "copy");
}

static int cuda_stream_copy_strided(struct stream *base, void *dst, size_t dst_stride,
                                    const void *src, size_t src_stride, int64_t n,
                                    size_t bytes)
{
    struct cuda_stream *s = cuda_stream(base);
    int rc = atomic_load(&base->code);
    if (rc != 0 || bytes == 0)
        return rc;
    return cuda_check(s,
                      cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, (size_t)n,
                                        cudaMemcpyDefault, s->handle),
                      "copy");
}

/* Copies a batch with one call. Single copies leave the bus idle for about a microsecond between
 * them. */
static cudaError_t copy_batch(struct cuda_stream *s, const struct copy_part *copies,
                              size_t n)
{
    enum { MOST = 64 };
    void *to[MOST];
    const void *from[MOST];
    size_t bytes[MOST], of_first = 0;
    struct cudaMemcpyAttributes how = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    cudaError_t e = cudaSuccess;
    for (size_t i = 0, k; e == cudaSuccess && i < n; i += k) {
        for (k = 0; k < MOST && i + k < n; k++) {
            to[k] = copies[i + k].dst;
            from[k] = copies[i + k].src;
            bytes[k] = copies[i + k].bytes;
        }
        e = cudaMemcpyBatchAsync(to, from, bytes, k, &how, &of_first, 1, s->handle);
    }
    return e;
}

static int cuda_stream_copy_all(struct stream *base, const struct copy_part *copies, int n)
{
    struct cuda_stream *s = cuda_stream(base);
    struct cuda_device *d = (struct cuda_device *)base->device;
    int rc = atomic_load(&base->code);
    if (rc == 0 && n > 1 && !atomic_load(&d->copies_singly)) {
        cudaError_t e = copy_batch(s, copies, (size_t)n);
        if (e != cudaErrorNotSupported && e != cudaErrorCallRequiresNewerDriver)
            return cuda_check(s, e, "copies");
        (void)cudaGetLastError();
        if (!atomic_exchange(&d->copies_singly, true))
            log_warn("device cuda: copies are queued one by one, which is slower: %s",
                     cudaGetErrorString(e));
    }
    for (int i = 0; i < n && rc == 0; i++)
        rc = cuda_stream_copy(base, copies[i].dst, copies[i].src, copies[i].bytes);
    return rc;
}

/* --- events ----------------------------------------------------------------------------------- */

static int cuda_event_create(struct device *d, struct event **out, struct err *err)
{
    struct cuda_event *e = xcalloc(1, sizeof *e);
    e->base.device = d;
    if (cudaEventCreateWithFlags(&e->handle, cudaEventDisableTiming) != cudaSuccess) {
        free(e);
        return err_set(err, -EIO, "device cuda: no event: %s",
                       cudaGetErrorString(cudaGetLastError()));
    }
    *out = &e->base;
    return 0;
}

static void cuda_event_destroy(struct event *base)
{
    cudaEventDestroy(((struct cuda_event *)base)->handle);
    free(base);
}

static int cuda_event_record(struct stream *s, struct event *e)
{
    int rc = cuda_check(
        cuda_stream(s),
        cudaEventRecord(((struct cuda_event *)e)->handle, cuda_stream(s)->handle), "event");
    return rc != 0 ? rc : atomic_load(&s->code);
}

static int cuda_event_wait(struct stream *s, struct event *e)
{
    int rc = cuda_check(
        cuda_stream(s),
        cudaStreamWaitEvent(cuda_stream(s)->handle, ((struct cuda_event *)e)->handle, 0),
        "event");
    return rc != 0 ? rc : atomic_load(&s->code);
}

static int cuda_event_sync(struct event *e)
{
    cudaError_t rc = cudaEventSynchronize(((struct cuda_event *)e)->handle);
    if (rc == cudaSuccess)
        return 0;
    log_warn("cuda: event: %s", cudaGetErrorString(rc));
    return -EIO;
}

/* --- the device ------------------------------------------------------------------------------- */

static void cuda_device_close(struct device *d)
{
    cuda_blas_close(((struct cuda_device *)d)->blas);
    cuda_memory_deinit(memory_of(d));
    free(d);
}

static const struct device_vtable cuda_vtable = {
    .close = cuda_device_close,
    .reserve = cuda_reserve,
    .buf_alloc = cuda_buf_alloc,
    .buf_free = cuda_buf_free,
    .memory = cuda_memory,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_sync = cuda_stream_sync,
    .stream_recover = cuda_stream_recover,
    .stream_copy = cuda_stream_copy,
    .stream_copy_strided = cuda_stream_copy_strided,
    .stream_copy_all = cuda_stream_copy_all,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .file_reader_open = cuda_file_reader_open,
};

/* 512 rows of a 7B model give a product only 64 tiles of 128 x 256, for more than 100
 * multiprocessors. */
enum { BATCH_ROWS = 2048 };

static const char *const math_names[] = {
    [GPU_FAST] = "fast", [GPU_FIXED] = "fixed", [GPU_EXACT] = "exact", NULL};
static const char *const numerics_names[] = {
    [GPU_FAST] = "cuda fast", [GPU_FIXED] = "cuda fixed", [GPU_EXACT] = "cuda exact"};

/* The values of device_opts, as indices into the lists below. */
struct choices {
    int math, no_graphs, early;
};

static int choose(const struct device_opts *o, struct choices *c, struct err *err)
{
    static const char *const graphs[] = {"on", "off", NULL}, *const early[] = {"off", "on",
                                                                               NULL};
    int rc = device_choice("cuda-math", o->cuda_math, math_names, &c->math, err);
    if (rc == 0)
        rc = device_choice("cuda-graphs", o->cuda_graphs, graphs, &c->no_graphs, err);
    return rc == 0 ? device_choice("cuda-early", o->cuda_early, early, &c->early, err) : rc;
}

int cuda_device_open(const struct device_opts *o, struct pool *pool, struct device **out,
                     struct err *err)
{
    const int index = 0; /* a process has one GPU */
    struct cudaDeviceProp prop;
    struct choices c;
    int n = 0, rc = choose(o, &c, err);
    if (rc != 0)
        return rc;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0)
        return err_set(err, ERR_UNSUPPORTED, "device cuda: no GPU can be used here: %s",
                       e != cudaSuccess ? cudaGetErrorString(e) : "the driver lists none");
    e = cudaSetDevice(index);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&prop, index);
    if (e != cudaSuccess)
        return err_set(err, ERR_UNSUPPORTED, "device cuda: %s", cudaGetErrorString(e));
    if (prop.major < 8)
        return err_set(
            err, ERR_UNSUPPORTED,
            "device cuda: %s has compute capability %d.%d; 8.0 or later is needed",
            prop.name, prop.major, prop.minor);
    rc = early_choose(c.early, &prop, err);
    if (rc != 0)
        return rc;
    struct cuda_device *d = xcalloc(1, sizeof *d);
    if (c.math == GPU_FAST)
        rc = cuda_blas_open(&d->blas, err);
    if (rc != 0) {
        free(d);
        return rc;
    }
    snprintf(d->about, sizeof d->about, "%s, sm_%d%d, %s math%s", prop.name, prop.major,
             prop.minor, math_names[c.math], gpu_launch_early ? ", early launches" : "");
    cuda_memory_init(&d->memory);
    d->index = index;
    d->n_sm = prop.multiProcessorCount;
    d->shared_bytes = prop.sharedMemPerBlockOptin;
    d->math = (enum gpu_math)c.math;
    d->no_graphs = c.no_graphs;
    d->base = (struct device){.name = "cuda",
                              .ops = &cuda_ops,
                              .pool = pool,
                              .act_dtype = DTYPE_F32,
                              .act_is_state = true,
                              .unified = false,
                              .k_by_token = true,
                              .q8 = true,
                              .batch_rows = BATCH_ROWS,
                              .stream_bytes = STREAM_BYTES,
                              .n_ranks = 1,
                              .n_stages = 1,
                              .v = &cuda_vtable,
                              .numerics = numerics_names[c.math],
                              .numerics_version = CUDA_NUMERICS_VERSION,
                              .isa = d->about};
    *out = &d->base;
    return 0;
}
