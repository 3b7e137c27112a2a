/* tensor.c - views, and the dispatch of tensor.h's functions to a device.
 *
 * It owns nothing: devices live in host.c (CPU memory) and cuda/. */
#include "tensor/tensor.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "tensor/device.h"
#include "tensor/ops.h"

struct mat mat_rows(struct mat a, int64_t begin, int64_t n)
{
    CHECK(begin >= 0 && n >= 0 && begin + n <= a.rows);
    a.data = (char *)a.data + (size_t)(begin * a.ld) * dtype_bytes(a.dtype);
    a.rows = n;
    return a;
}

struct mat mat_cols(struct mat a, int64_t begin, int64_t n)
{
    CHECK(begin >= 0 && n >= 0 && begin + n <= a.cols);
    a.data = (char *)a.data + (size_t)begin * dtype_bytes(a.dtype);
    a.cols = n;
    return a;
}

/* --- dispatch ------------------------------------------------------------------------------- */

int device_choice(const char *option, const char *text, const char *const *names, int *out,
                  struct err *err)
{
    char list[80] = "";
    *out = 0;
    for (int i = 0; text != NULL && names[i] != NULL; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return 0;
        }
        size_t n = strlen(list);
        const char *next = names[i + 1] == NULL ? " or " : ", ";
        snprintf(list + n, sizeof list - n, "%s%s", i == 0 ? "" : next, names[i]);
    }
    return text == NULL
               ? 0
               : err_set(err, ERR_USAGE, "--%s %s: must be %s", option, text, list);
}

int device_open(const char *name, const struct device_opts *o, struct pool *pool,
                struct device **out, struct err *err)
{
    static const char *const checkers[] = {"auto", "device", "host", NULL};
    static const struct device_opts defaults = {0};
    int checksums, rc;
    o = o != NULL ? o : &defaults;
    rc = device_choice("checksums", o->checksums, checkers, &checksums, err);
    if (rc != 0)
        return rc;
    if (strcmp(name, "ref") == 0)
        rc = ref_device_open(pool, out, err);
    else if (strcmp(name, "cpu") == 0)
        rc = cpu_device_open(o->isa, pool, out, err);
    else if (strcmp(name, "cuda") == 0)
        rc = cuda_device_open(o, pool, out, err);
    else
        rc = err_set(err, ERR_USAGE, "unknown device '%s' (known: cpu, ref, cuda)", name);
    if (rc == 0)
        (*out)->checksums = (enum device_checksums)checksums;
    return rc;
}

void device_close(struct device *d)
{
    if (d != NULL)
        d->v->close(d);
}

int buf_alloc(struct device *d, enum mem_kind kind, size_t bytes, struct buf *out,
              struct err *err)
{
    return d->v->buf_alloc(d, kind, bytes, out, err);
}

void buf_free(struct device *d, struct buf *b)
{
    if (b->ptr != NULL)
        d->v->buf_free(d, b);
    *b = (struct buf){0};
}

void buf_rest(struct device *d, struct buf *b)
{
    if (d->unified && b->ptr != NULL)
        mem_give_back(b->ptr, b->bytes);
}

void device_memory(struct device *d, size_t *unused_bytes, size_t *total_bytes)
{
    d->v->memory(d, unused_bytes, total_bytes);
}

int stream_create(struct device *d, enum stream_kind kind, struct stream **out,
                  struct err *err)
{
    return d->v->stream_create(d, kind, out, err);
}

void stream_destroy(struct stream *s)
{
    if (s != NULL)
        s->device->v->stream_destroy(s);
}

void stream_rest(struct stream *s)
{
    if (s->device->unified && s->scratch != NULL)
        mem_give_back(s->scratch, s->scratch_bytes);
}

struct device *stream_device(struct stream *s)
{
    return s->device;
}

int stream_sync(struct stream *s)
{
    return s->device->v->stream_sync(s);
}

const char *stream_fault(const struct stream *s)
{
    return s->fault;
}

int stream_recover(struct stream *s)
{
    return s->device->v->stream_recover(s);
}

void stream_fail(struct stream *s, int code, const char *why)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&s->code, &none, code))
        snprintf(s->fault, sizeof s->fault, "%s", why);
}

int stream_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    return s->device->v->stream_copy(s, dst, src, bytes);
}

int stream_copy_strided(struct stream *s, void *dst, size_t dst_stride, const void *src,
                        size_t src_stride, int64_t n, size_t bytes)
{
    if (s->device->v->stream_copy_strided != NULL && n > 1)
        return s->device->v->stream_copy_strided(s, dst, dst_stride, src, src_stride, n,
                                                 bytes);
    int rc = 0;
    for (size_t i = 0; i < (size_t)n && rc == 0; i++)
        rc = stream_copy(s, (uint8_t *)dst + i * dst_stride,
                         (const uint8_t *)src + i * src_stride, bytes);
    return rc;
}

int stream_copy_all(struct stream *s, const struct copy_part *copies, int n)
{
    if (s->device->v->stream_copy_all != NULL)
        return s->device->v->stream_copy_all(s, copies, n);
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = stream_copy(s, copies[i].dst, copies[i].src, copies[i].bytes);
    return rc;
}

int stream_throttle(struct stream *s, double bytes_per_s, struct err *err)
{
    if (s->device->v->stream_throttle == NULL || s->kind != STREAM_COPY)
        return err_set(err, ERR_UNSUPPORTED, "device %s: its copies cannot be slowed down",
                       s->device->name);
    return s->device->v->stream_throttle(s, bytes_per_s);
}

int event_create(struct device *d, struct event **out, struct err *err)
{
    return d->v->event_create(d, out, err);
}

void event_destroy(struct event *e)
{
    if (e != NULL)
        e->device->v->event_destroy(e);
}

int event_record(struct stream *s, struct event *e)
{
    return s->device->v->event_record(s, e);
}

int event_wait(struct stream *s, struct event *e)
{
    return s->device->v->event_wait(s, e);
}

int event_sync(struct event *e)
{
    return e->device->v->event_sync(e);
}

uint64_t ragged_new_id(void)
{
    static atomic_uint_fast64_t last;
    return atomic_fetch_add(&last, 1) + 1;
}

/* --- files ---------------------------------------------------------------------------------- */

int file_reader_open(struct device *d, const struct buf *into, int n_batches,
                     struct file_reader **out, struct err *err)
{
    *out = NULL;
    if (d->v->file_reader_open == NULL)
        return err_set(err, ERR_UNSUPPORTED, "%s cannot read files itself",
                       d->n_stages * d->n_ranks > 1 ? "a group of devices" : "this device");
    return d->v->file_reader_open(d, into, n_batches, out, err);
}

void file_reader_close(struct file_reader *r)
{
    if (r != NULL)
        r->close(r);
}

int file_reader_submit(struct file_reader *r, struct file_read *reads, int n, void *user,
                       struct err *err)
{
    return r->submit(r, reads, n, user, err);
}

int file_reader_wait(struct file_reader *r, int64_t timeout_ns, void **user,
                     struct err *err)
{
    return r->wait(r, timeout_ns, user, err);
}

void file_reader_cancel(struct file_reader *r)
{
    r->cancel(r);
}
