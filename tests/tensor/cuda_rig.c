/* cuda_rig.c - see cuda_rig.h. */
#include "cuda_rig.h"

#include <stdlib.h>

#include "tensor/device.h"

struct lab lab_cuda(const char *math)
{
    struct lab l = {0};
    struct err err = {0};
    /* tools/gpu_check.sh also runs this program with early launches. */
    const struct device_opts o = {.cuda_math = math,
                                  .cuda_early = getenv("HCACHE_CUDA_EARLY")};
    if (device_open("cuda", &o, NULL, &l.device, &err) != 0)
        fail_msg("%s", err.msg);
    l.ops = l.device->ops;
    assert_int_equal(stream_create(l.device, STREAM_COMPUTE, &l.stream, NULL), 0);
    return l;
}

struct buf up(const struct lab *l, const void *src, size_t bytes)
{
    struct buf b;
    assert_int_equal(buf_alloc(l->device, MEM_DEVICE, bytes, &b, NULL), 0);
    assert_int_equal(stream_copy(l->stream, b.ptr, src, bytes), 0);
    assert_int_equal(stream_sync(l->stream), 0);
    return b;
}

void down(const struct lab *l, void *dst, const void *src, size_t bytes)
{
    assert_int_equal(stream_copy(l->stream, dst, src, bytes), 0);
    assert_int_equal(stream_sync(l->stream), 0);
}

static size_t mat_bytes(struct mat m)
{
    return (size_t)(m.rows * m.ld) * dtype_bytes(m.dtype);
}

struct gmat up_mat(const struct lab *l, struct mat host)
{
    struct gmat g = {host, up(l, host.data, mat_bytes(host))};
    g.m.data = g.mem.ptr;
    return g;
}

struct mat take(const struct lab *l, struct gmat *g)
{
    struct mat host = mat_alloc(g->m.dtype, g->m.rows, g->m.ld);
    down(l, host.data, g->m.data, mat_bytes(g->m));
    host.cols = g->m.cols;
    buf_free(l->device, &g->mem);
    return host;
}

struct cache cache_on(const struct lab *l, enum dtype t, int n_kv, int d_head, int n_seqs,
                      int max_tokens)
{
    struct lab ref = lab_ref();
    struct cache host = cache_make(&ref, t, n_kv, d_head, n_seqs, max_tokens);
    struct buf dev = up(l, host.mem.ptr, host.mem.bytes);
    buf_free(ref.device, &host.mem);
    lab_close(&ref);
    host.mem = dev;
    host.kv.blocks = dev.ptr;
    return host;
}
