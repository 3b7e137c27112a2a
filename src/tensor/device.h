/* device.h - the interface between tensor.c and its backends; private to src/tensor.
 *
 * Every stream and event begins with a pointer to its device, by which tensor.c dispatches.  The
 * CPU backends ("ref", "cpu") share host.c's functions and differ in their table of operations. */
#ifndef TENSOR_DEVICE_H
#define TENSOR_DEVICE_H

#include <stdatomic.h>

#include "base/check.h"
#include "tensor/tensor.h"

struct kv_layer;
struct ragged;
struct rope;

struct device_vtable {
    void (*close)(struct device *d);
    /* Makes one allocation from which MEM_DEVICE buffers are cut. NULL: each is its own. */
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
    /* NULL: tensor.c copies the pieces one after another. */
    int (*stream_copy_strided)(struct stream *s, void *dst, size_t dst_stride,
                               const void *src, size_t src_stride, int64_t n, size_t bytes);
    int (*stream_copy_all)(struct stream *s, const struct copy_part *copies, int n);
    /* NULL: the device cannot slow copies down. */
    int (*stream_throttle)(struct stream *s, double bytes_per_s);
    int (*event_create)(struct device *d, struct event **out, struct err *err);
    void (*event_destroy)(struct event *e);
    int (*event_record)(struct stream *s, struct event *e);
    int (*event_wait)(struct stream *s, struct event *e);
    int (*event_sync)(struct event *e);
    /* NULL: the device cannot read files. */
    int (*file_reader_open)(struct device *d, const struct buf *into, int n_batches,
                            struct file_reader **out, struct err *err);
};

/* The functions of tensor.h on a file reader. */
struct file_reader {
    int (*submit)(struct file_reader *r, struct file_read *reads, int n, void *user,
                  struct err *err);
    int (*wait)(struct file_reader *r, int64_t timeout_ns, void **user, struct err *err);
    void (*cancel)(struct file_reader *r);
    void (*close)(struct file_reader *r);
};

/* A backend's stream is a larger struct that begins with this one. */
struct stream {
    struct device *device;
    enum stream_kind kind;
    struct pool *pool; /* threads that share an operation's work; NULL: the caller alone */
    atomic_int code;   /* sticky error; 0: no error */
    char fault[160]; /* description of the error; written by the thread that set the code */
    void *scratch;   /* compute streams: working memory of the backend */
    size_t scratch_bytes;
};

struct event {
    struct device *device;
};

int ref_device_open(struct pool *pool, struct device **out, struct err *err);
/* Opens device "cpu". isa NULL: the best kernels that this processor can run. */
int cpu_device_open(const char *isa, struct pool *pool, struct device **out,
                    struct err *err);

/* Opens a device over host memory. Every compute stream gets `scratch_bytes` of address space,
 * whose pages are used only as far as needed. */
int host_device_open(const char *name, const struct ops *ops, int numerics_version,
                     const char *isa, size_t scratch_bytes, struct pool *pool,
                     struct device **out, struct err *err);

/* Opens the first GPU as "cuda". err has the reason of a failure. The backend is a shared library
 * that this call loads (cuda_plugin.c). */
int cuda_device_open(const struct device_opts *o, struct pool *pool, struct device **out,
                     struct err *err);

/* Finds text among names, which end with NULL, and sets *out to its index; text NULL is index 0.
 * Returns 0, or ERR_USAGE with a message that names the option and the allowed texts. */
int device_choice(const char *option, const char *text, const char *const *names, int *out,
                  struct err *err);

/* The functions host_... implement operations of ops.h. This one is kv_pack for devices whose
 * kv_fill runs on host memory. */
int host_kv_pack(struct stream *s, void *chunk, struct mat rows, int n_kv, int d_head);

/* The fused operations, each carried out as two. */
int host_add_norm(struct stream *s, struct mat out, struct mat sum, struct mat x,
                  struct mat y, const float *w, const float *b, float eps);
int host_rope_kv_fill(struct stream *s, struct mat q, const struct kv_layer *kv,
                      struct mat rows, const struct rope *rope, const struct ragged *r);
/* checksum for devices whose kv_fill runs on host memory */
int host_checksum(struct stream *s, uint64_t *out, const void *first, size_t stride,
                  const uint32_t *n_bytes, int n);

/* Sets the stream's sticky error to `code` with the text `why`, unless it already has one. */
void stream_fail(struct stream *s, int code, const char *why);

/* Every CPU operation calls this first. Returns 0 or the stream's sticky error. Operations run
 * inline, and only on compute streams. */
static inline int stream_enter(struct stream *s)
{
    CHECK(s->kind != STREAM_COPY);
    return atomic_load(&s->code);
}

#endif
