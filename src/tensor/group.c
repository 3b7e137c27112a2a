/* group.c - see group.h: a device that stands alone.  A group is made by the library of processes
 * (peers_plugin.h), to which its calls go. */
#include "tensor/group.h"

#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "tensor/device.h"
#include "tensor/peers_plugin.h"

/* Returns the functions of a group, or NULL for a device. */
static const struct peers_plugin *group_of(const struct device *d)
{
    return d->n_ranks * d->n_stages > 1 ? peers() : NULL;
}

static int check_counts(int n_ranks, int n_stages, struct err *err)
{
    if (n_ranks < 1 || n_ranks > MAX_RANKS)
        return err_set(err, ERR_USAGE, "%d ranks: 1 to %d are allowed", n_ranks, MAX_RANKS);
    if (n_stages < 1 || n_stages > MAX_STAGES)
        return err_set(err, ERR_USAGE, "%d stages: 1 to %d are allowed", n_stages,
                       MAX_STAGES);
    if (n_ranks * n_stages > MAX_RANKS)
        return err_set(err, ERR_USAGE,
                       "%d stages of %d ranks are %d devices: at most %d are allowed",
                       n_stages, n_ranks, n_stages * n_ranks, MAX_RANKS);
    return 0;
}

int group_open(const char *name, const struct device_opts *o, int n_ranks, int n_stages,
               struct pool *pool, struct device **out, struct err *err)
{
    int rc = check_counts(n_ranks, n_stages, err), n = n_ranks * n_stages;
    if (rc != 0)
        return rc;
    if (n > 1 && strcmp(name, "cuda") == 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "a GPU cannot be a rank or a stage yet: choose --device cpu, or one "
                       "GPU with --tensor-parallel 1 and --pipeline-parallel 1");
    if ((rc = peers_check_number(n_ranks, n_stages, err)) != 0)
        return rc;
    struct device *first = NULL;
    rc = device_open(name, o, pool, n == 1 ? out : &first, err);
    if (n == 1)
        return rc;
    struct device shape = {.name = name, .n_ranks = n_ranks, .n_stages = n_stages};
    if (rc == 0)
        rc = peers()->group_open(&shape, o, first, pool, out, err);
    if (rc == 0)
        return 0;
    return n_stages == 1 ? err_wrap(err, "%d ranks", n_ranks)
                         : err_wrap(err, "%d stages of %d ranks", n_stages, n_ranks);
}

int stage_alloc(struct device *d, int stage, size_t bytes, struct buf *out, struct err *err)
{
    CHECK(stage >= 0 && stage < d->n_stages);
    return group_of(d) != NULL ? group_of(d)->stage_alloc(d, stage, bytes, out, err)
                               : buf_alloc(d, MEM_DEVICE, bytes, out, err);
}

int stages_alloc(struct device *d, size_t bytes, struct buf out[MAX_STAGES],
                 struct err *err)
{
    int rc = 0;
    for (int k = 0; k < d->n_stages && rc == 0; k++)
        rc = stage_alloc(d, k, bytes, &out[k], err);
    if (rc != 0)
        stages_free(d, out);
    return rc;
}

void stages_free(struct device *d, struct buf b[MAX_STAGES])
{
    for (int k = 0; k < d->n_stages; k++)
        buf_free(d, &b[k]);
}

int stages_reserve(struct device *d, const size_t bytes[MAX_STAGES], struct err *err)
{
    return d->v->reserve != NULL ? d->v->reserve(d, bytes[0], err) : 0;
}

struct stream *rank_stream(struct stream *s, int stage, int rank)
{
    CHECK(stage < s->device->n_stages && rank < s->device->n_ranks);
    return group_of(s->device) != NULL ? group_of(s->device)->rank_stream(s, stage, rank)
                                       : s;
}

void *rank_address(const struct device *d, const void *p, int rank)
{
    CHECK(rank < d->n_ranks);
    return group_of(d) != NULL ? group_of(d)->rank_address(d, p, rank)
                               : (void *)(uintptr_t)p;
}

int all_gather(struct stream *s, struct mat out, struct mat in)
{
    return group_of(s->device) != NULL ? group_of(s->device)->all_gather(s, out, in)
                                       : atomic_load(&s->code);
}

bool ranks_have_file(struct device *d, const char *source, int n_tensors,
                     const struct sha256 *hash)
{
    struct err why = {0};
    bool have = group_of(d) != NULL &&
                group_of(d)->have_file(d, source, n_tensors, hash, &why);
    if (why.code != 0)
        log_info("%s", why.msg);
    return have;
}

int rank_read_rows(struct stream *s, const struct weight *w, int64_t dst_row, int number,
                   int64_t row, int64_t n)
{
    return peers()->read_rows(s, w, dst_row, number, row, n);
}

int kv_chunks_up(struct stream *s, void *dst, const void *src, int n, size_t stride,
                 size_t bytes)
{
    return s->device->n_ranks > 1
               ? peers()->kv_chunks_up(s, dst, src, n, stride, bytes)
               : stream_copy(s, dst, src, (size_t)(n - 1) * stride + bytes);
}

int kv_rows_down(struct stream *s, void *dst, struct mat own)
{
    CHECK(own.ld == own.cols);
    return s->device->n_ranks > 1
               ? peers()->kv_rows_down(s, dst, own)
               : stream_copy(s, dst, own.data,
                             (size_t)(own.rows * own.cols) * dtype_bytes(own.dtype));
}
