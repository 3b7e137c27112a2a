/* tensor.h - typed memory on a device, streams and events.
 *
 * A *device* ("ref", "cpu", "cuda") gives memory, streams and one table of operations (ops.h).
 * A *stream* runs what it is given in order.  On the CPU the compute stream runs inline on the
 * calling thread (work is split over the device's pool), and each copy stream is one worker thread
 * with a bounded queue; an error sticks to its stream and comes back from every later call on it.
 * An *event* is a mark in a stream that another stream, or the host, can wait for.
 *
 * A *mat* is a view: rows of `cols` elements, `ld` elements apart.  It owns nothing. */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_BF16 = 2,
    /* Types of packed weights alone, see ops.h. */
    DTYPE_Q8 = 3, /* 8-bit numbers with a scale per block */
    DTYPE_Q4_0,   /* 4-bit numbers with a scale per block of 32 */
    DTYPE_Q4_1,   /* ... and a minimum */
    DTYPE_Q4_K,   /* ... both of two levels, per 32 and per 256 */
    DTYPE_Q6_K,   /* 6-bit numbers with a scale of two levels, per 16 and per 256 */
    /* No type of one matrix: a model's matrices are of the four above and q8, each of its own. */
    DTYPE_Q4,
};

/* Whether a row is made of the blocks that GGUF files have (q4_blocks.h). */
static inline bool dtype_has_blocks(enum dtype t)
{
    return t >= DTYPE_Q4_0 && t <= DTYPE_Q6_K;
}

/* Of an element: for f32, f16 and bf16 alone. */
static inline size_t dtype_bytes(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : 2;
}
const char *dtype_name(enum dtype t);               /* "f32", "q8", "q4_1", ... */
int dtype_parse(const char *name, enum dtype *out); /* 0 or ERR_USAGE; f32, f16, bf16 */

/* Single conversions, round to nearest even; NaN stays NaN. Used by ref and by tests. */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f);

struct mat {
    void *data;
    enum dtype dtype;
    int64_t rows, cols, ld;
};

static inline struct mat mat_of(void *data, enum dtype t, int64_t rows, int64_t cols)
{
    return (struct mat){data, t, rows, cols, cols};
}
/* Rows [begin, begin + n) of a. */
struct mat mat_rows(struct mat a, int64_t begin, int64_t n);
/* Columns [begin, begin + n) of a. */
struct mat mat_cols(struct mat a, int64_t begin, int64_t n);

/* --- devices -------------------------------------------------------------------------------- */

enum mem_kind {
    MEM_HOST, /* ordinary memory */
    MEM_PINNED, /* host memory that the device's copy engine and the I/O layer may use directly */
    MEM_DEVICE,
};

struct buf {
    void *ptr;
    size_t bytes;
    enum mem_kind kind;
};

struct ops;
struct pool;
struct stream;
struct event;

/* How a device is opened.  Texts as a user gives them; NULL is the default. Another text is an
 * ERR_USAGE that names the option. */
struct device_opts {
    const char *isa; /* kernels of "cpu": "portable", "avx2+fma", ...; default: the best */
    const char
        *checksums; /* who checks what a restore brings up: "device", "host"; default:
                                the device where it can (state/restore.h) */
    const char *cuda_math;   /* "fast" (default), "fixed", "exact" */
    const char *cuda_graphs; /* whether decodes are recorded: "on" (default), "off" */
    const char *cuda_early;  /* programmatic dependent launch: "off" (default), "on" */
    const char
        *cuda_ranks; /* "own" (default): each rank has a GPU; "shared": for tests, all are
                                on the first GPU, and exchange through its memory */
};

enum device_checksums { CHECKSUMS_AUTO, CHECKSUMS_DEVICE, CHECKSUMS_HOST };

struct device {
    const char *name;
    const struct ops *ops;
    struct pool *pool;    /* compute workers of CPU devices; not owned */
    enum dtype act_dtype; /* of activations between operations inside a layer; f32 on CPU */
    bool act_is_state;    /* instead, they have the model's state dtype (on a GPU) */
    bool unified;         /* device memory is host memory: staging needs no copy */
    bool k_by_token;      /* K of a block lies as V does, [n_kv][64][d_head]: see ops.h */
    bool quantised;       /* its operations take weights of DTYPE_Q8 and of blocks */
    int batch_rows;       /* of a forward pass, enough for products to be near their best */
    size_t stream_bytes;  /* device memory that a compute stream takes; 0 where unified */
    enum device_checksums checksums; /* as asked for */
    bool shared;                     /* all ranks of a group are on one GPU */
    int n_ranks, n_stages; /* 1, or those of a group (group.h): ranks of each stage */
    const struct device_vtable *v;
    /* Which arithmetic its operations have: "ref", "cpu", "cuda fixed".  The version is
     * raised whenever the bits of a result change: saved state belongs to a class and a
     * version (state/fingerprint.h). */
    const char *numerics;
    int numerics_version;
    const char *isa; /* what the kernels use: "avx2+fma", "portable", ... */
};

/* Opens "ref" or "cpu" ("cuda": ERR_UNSUPPORTED with the reason, where it was not built or no GPU
 * is there). `pool` (may be NULL: one thread) must outlive the device; o (NULL:
 * defaults) need not. */
int device_open(const char *name, const struct device_opts *o, struct pool *pool,
                struct device **out, struct err *err);
void device_close(struct device *d);

/* Page-aligned, zeroed memory. On failure the message says how much was asked for. */
int buf_alloc(struct device *d, enum mem_kind kind, size_t bytes, struct buf *out,
              struct err *err);
void buf_free(struct device *d, struct buf *b);
/* The device's memory, and how much of it nobody has (of unified memory that is not
 * asked: all of it). */
void device_memory(struct device *d, size_t *unused_bytes, size_t *total_bytes);

/* --- streams and events --------------------------------------------------------------------- */

enum stream_kind {
    STREAM_COMPUTE,
    STREAM_INLINE, /* compute on the calling thread alone: for work that is split already */
    STREAM_COPY,
};
int stream_create(struct device *d, enum stream_kind kind, struct stream **out,
                  struct err *err);
void stream_destroy(struct stream *s);
struct device *stream_device(struct stream *s);
/* Waits until all that was queued is done; returns the stream's sticky code. */
int stream_sync(struct stream *s);
/* What failed first on this stream, for people: "matmul: out of memory".  "" while all is well. */
const char *stream_fault(const struct stream *s);
/* Waits for what is queued, and forgets the sticky error, so that later work is
 * tried again: what was queued before has no result to rely on.  The code again
 * where the device did not survive. */
int stream_recover(struct stream *s);
/* dst[0..bytes) = src, in stream order; both must live until it has run. */
int stream_copy(struct stream *s, void *dst, const void *src, size_t bytes);
/* n pieces of `bytes`, that lie so far apart. */
int stream_copy_strided(struct stream *s, void *dst, size_t dst_stride, const void *src,
                        size_t src_stride, int64_t n, size_t bytes);
/* n copies that do not overlap, in any order among themselves, of what is not read again soon:
 * host devices split them over the pool, a GPU gets them in one call. */
struct copy_part {
    void *dst;
    const void *src;
    size_t bytes;
};
int stream_copy_all(struct stream *s, const struct copy_part *copies, int n);
/* Copies of a copy stream take as long as a link of bytes_per_s would need, as long as one
 * follows the other: for experiments.  ERR_UNSUPPORTED where a device's own engine copies. */
int stream_throttle(struct stream *s, double bytes_per_s, struct err *err);

/* --- files ---------------------------------------------------------------------------------- */

/* A device that reads from files straight into its memory (GPUDirect Storage).  One thread at a
 * time.  What was read is there for all that is queued after it has been waited for. */
struct file_reader;
enum { FILE_READER_MOST = 8 }; /* reads of a batch */

struct file_read {
    int fd;          /* open for reading; it must stay so until the read has ended */
    uint64_t offset; /* a multiple of 4096, as are bytes */
    size_t bytes;
    void *dst;  /* in the reader's memory, a multiple of 4096 from its beginning */
    int status; /* 0, or the negative code of what failed; -ECANCELED */
};

/* `into` is device memory that every read ends in, and outlives the reader.  ERR_UNSUPPORTED
 * with the reason where the device cannot, or only by way of host memory. */
int file_reader_open(struct device *d, const struct buf *into, int n_batches,
                     struct file_reader **out, struct err *err);
void file_reader_close(struct file_reader *r); /* nothing is under way. NULL is allowed */
/* Starts up to FILE_READER_MOST reads, which stay the caller's; at most n_batches such batches
 * may be under way.  On an error none of them is. */
int file_reader_submit(struct file_reader *r, struct file_read *reads, int n, void *user,
                       struct err *err);
/* Waits for all reads of the oldest batch, at most timeout_ns: *user is the batch's then, else
 * NULL.  On an error the batch has ended as well, and nothing more may be begun. */
int file_reader_wait(struct file_reader *r, int64_t timeout_ns, void **user,
                     struct err *err);
/* Asks for an early end of all that is under way, which is waited for as before. */
void file_reader_cancel(struct file_reader *r);

int event_create(struct device *d, struct event **out, struct err *err);
void event_destroy(struct event *e);
int event_record(struct stream *s, struct event *e); /* marks the stream's present end */
int event_wait(struct stream *s, struct event *e); /* later work of s waits for the mark */
int event_sync(struct event *e);                   /* the calling thread waits */

#endif
