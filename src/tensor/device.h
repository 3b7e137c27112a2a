/* device.h - what a backend gives to tensor.c; private to src/tensor.
 *
 * Every stream and event starts with the device it belongs to, so that tensor.c can dispatch.  The
 * CPU backends ("ref", "cpu") share host.c's functions and differ in their table of operations. */
#ifndef TENSOR_DEVICE_H
#define TENSOR_DEVICE_H

#include <stdatomic.h>

#include "tensor/tensor.h"

struct kv_layer;
struct ragged;
struct rope;

struct device_vtable {
    void (*close)(struct device *d);
    void (*enter)(struct device *d); /* becomes the calling thread's; NULL: nothing to do */
    /* One allocation that memory of kind MEM_DEVICE is cut from; NULL: each is one of its own. */
    int (*reserve)(struct device *d, size_t bytes, struct err *err);
    int (*buf_alloc)(struct device *d, enum mem_kind kind, size_t bytes, struct buf *out,
                     struct err *err);
    void (*buf_free)(struct device *d, struct buf *b);
    void (*memory)(struct device *d, size_t *unused_bytes, size_t *total_bytes);
    int (*stream_create)(struct device *d, enum stream_kind kind, struct stream **out,
                         struct err *err);
    void (*stream_destroy)(struct stream *s);
    int (*stream_sync)(struct stream *s);
    int (*stream_recover)(struct stream *s);
    int (*stream_copy)(struct stream *s, void *dst, const void *src, size_t bytes);
    /* NULL: one after the other. */
    int (*stream_copy_strided)(struct stream *s, void *dst, size_t dst_stride,
                               const void *src, size_t src_stride, int64_t n, size_t bytes);
    int (*stream_copy_all)(struct stream *s, const struct copy_part *copies, int n);
    /* NULL: it cannot. */
    int (*stream_throttle)(struct stream *s, double bytes_per_s);
    int (*event_create)(struct device *d, struct event **out, struct err *err);
    void (*event_destroy)(struct event *e);
    int (*event_record)(struct stream *s, struct event *e);
    int (*event_wait)(struct stream *s, struct event *e);
    int (*event_sync)(struct event *e);
    /* NULL: it reads no files. */
    int (*file_reader_open)(struct device *d, const struct buf *into, int n_batches,
                            struct file_reader **out, struct err *err);
};

/* What tensor.h says of each. */
struct file_reader {
    int (*submit)(struct file_reader *r, struct file_read *reads, int n, void *user,
                  struct err *err);
    int (*wait)(struct file_reader *r, int64_t timeout_ns, void **user, struct err *err);
    void (*cancel)(struct file_reader *r);
    void (*close)(struct file_reader *r);
};

/* Backends put their own fields behind this one. */
struct stream {
    struct device *device;
    enum stream_kind kind;
    struct pool *pool; /* what operations split their work over; NULL: the caller alone */
    atomic_int code;   /* sticky error, 0 while all is well */
    char fault[160];   /* what it was; written by whoever set the code */
    void *scratch;     /* compute streams: the backend's working memory */
    size_t scratch_bytes;
};

struct event {
    struct device *device;
};

int ref_device_open(struct pool *pool, struct device **out, struct err *err);
/* isa NULL: the best kernels that this processor runs. */
int cpu_device_open(const char *isa, struct pool *pool, struct device **out,
                    struct err *err);

/* A device over host memory: `scratch_bytes` of address space go to every compute stream (touched
 * only as far as it is used). */
int host_device_open(const char *name, const struct ops *ops, int numerics_version,
                     const char *isa, size_t scratch_bytes, struct pool *pool,
                     struct device **out, struct err *err);

/* "cuda", the GPU of that index, or why not (cuda_absent.c where it was not built). */
int cuda_device_open(const struct device_opts *o, int index, struct pool *pool,
                     struct device **out, struct err *err);

/* The device for rank `index` of a group: a GPU each; of CPU backends one more of the same. */
int rank_open(const char *name, const struct device_opts *o, int index, struct pool *pool,
              struct device **out, struct err *err);

/* Finds text among names, which NULL ends, and puts its index into *out; NULL is index 0.
 * Returns 0, or ERR_USAGE with a message that names the option and the texts. */
int device_choice(const char *option, const char *text, const char *const *names, int *out,
                  struct err *err);

/* kv_pack of the devices whose kv_fill runs on host memory. */
int host_kv_pack(struct stream *s, void *chunk, struct mat rows, int n_kv, int d_head);

/* ops.h's operations in one, as two. */
int host_add_norm(struct stream *s, struct mat out, struct mat sum, struct mat x,
                  struct mat y, const float *w, const float *b, float eps);
int host_rope_kv_fill(struct stream *s, struct mat q, const struct kv_layer *kv,
                      struct mat rows, const struct rope *rope, const struct ragged *r);
/* checksum of those devices. */
int host_checksum(struct stream *s, uint64_t *out, const void *first, size_t stride,
                  const uint32_t *n_bytes, int n);

/* Makes `code` the stream's sticky error, and `why` its text, unless it has one already. */
void stream_fail(struct stream *s, int code, const char *why);

/* First line of every CPU operation: operations run inline, on compute streams only. */
int stream_enter(struct stream *s);

#endif
