/* tensor.h - typed memory on a device, streams and events.
 *
 * A *device* ("ref", "cpu", "cuda") has memory, streams and one table of operations (ops.h).  A
 * *stream* runs its work in order.  On the CPU a compute stream runs inline on the calling thread
 * (work is split over the device's pool), and each copy stream is one worker thread with a bounded
 * queue.  An error sticks to its stream: every later call on the stream returns it.  An *event* is
 * a mark in a stream for which another stream, or the host, can wait.
 *
 * A *mat* is a view: rows of `cols` elements that are `ld` elements apart.  It owns nothing. */
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
    /* Types of packed weights only, see ops.h. */
    DTYPE_Q8 = 3, /* 8-bit numbers with a scale per block */
    DTYPE_Q4_0,   /* 4-bit numbers with a scale per block of 32 */
    DTYPE_Q4_1,   /* 4-bit numbers with a scale and a minimum per block of 32 */
    DTYPE_Q4_K, /* 4-bit numbers with scales and minima of two levels, per 32 and per 256 */
    DTYPE_Q6_K, /* 6-bit numbers with a scale of two levels, per 16 and per 256 */
    DTYPE_MXFP4,  /* 4-bit floating-point numbers with a power of two per block of 32 */
    DTYPE_IQ4_NL, /* 4-bit places in a table, with a scale per block of 32 */
    DTYPE_IQ4_XS, /* the same with scales of two levels, per 32 and per 256 */
    DTYPE_BF16R,  /* bf16 numbers whose products round activations to bf16 */
    /* Not a type of a matrix: the matrices of such a model have q8 or a block type above. */
    DTYPE_Q4,
};

/* Returns whether a row of this type consists of a GGUF file's blocks (q4_blocks.h). */
static inline bool dtype_has_blocks(enum dtype t)
{
    return t >= DTYPE_Q4_0 && t <= DTYPE_IQ4_XS;
}

/* Returns the bytes of an element of f32, f16 or bf16. */
static inline size_t dtype_bytes(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : 2;
}
const char *dtype_name(enum dtype t);               /* "f32", "q8", "q4_1", ... */
int dtype_parse(const char *name, enum dtype *out); /* 0 or ERR_USAGE; f32, f16, bf16 */

/* Convert single numbers, rounded to nearest even. A NaN stays a NaN. For ref and for tests. */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f);
/* Converts n floats to bf16; the loop can be vectorized. f32_to_bf16 judges it in tests. */
void floats_narrow(uint16_t *dst, const float *src, size_t n);

struct mat {
    void *data;
    enum dtype dtype;
    int64_t rows, cols, ld;
};

static inline struct mat mat_of(void *data, enum dtype t, int64_t rows, int64_t cols)
{
    return (struct mat){data, t, rows, cols, cols};
}
/* Returns rows [begin, begin + n) of a. */
struct mat mat_rows(struct mat a, int64_t begin, int64_t n);
/* Returns columns [begin, begin + n) of a. */
struct mat mat_cols(struct mat a, int64_t begin, int64_t n);

/* --- devices -------------------------------------------------------------------------------- */

enum mem_kind {
    MEM_HOST, /* ordinary memory */
    /* host memory that the device's copy engine and the I/O layer can use directly */
    MEM_PINNED,
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

/* Options of a device, as texts from a user; NULL is the default. An unknown text is ERR_USAGE and
 * the message names the option. */
struct device_opts {
    const char *isa; /* kernels of "cpu": "portable", "avx2+fma", ...; default: the best */
    /* where the checksums of a restore are computed: "device" or "host"; default: on the device if
     * it can (restore/restore.h) */
    const char *checksums;
    const char *cuda_math;   /* "fast" (default), "fixed", "exact" */
    const char *cuda_graphs; /* records decodes as graphs: "on" (default), "off" */
    const char *cuda_early;  /* programmatic dependent launch: "off" (default), "on" */
};

enum device_checksums { CHECKSUMS_AUTO, CHECKSUMS_DEVICE, CHECKSUMS_HOST };

struct device {
    const char *name;
    const struct ops *ops;
    struct pool *pool; /* compute workers of CPU devices; not owned */
    /* type of activations between operations inside a layer; f32 on the CPU */
    enum dtype act_dtype;
    bool act_is_state; /* activations have the model's state dtype instead (on a GPU) */
    bool unified;      /* device memory is host memory, so staging needs no copy */
    bool k_by_token;   /* K of a block is laid out like V, [n_kv][64][d_head]: see ops.h */
    /* Types of packed weights that operations accept. q8: DTYPE_Q8; quantised: all types that only
     * packed weights have. */
    bool q8, quantised;
    /* Number of rows in a forward pass with which products run close to their best speed */
    int batch_rows;
    size_t stream_bytes; /* device memory of a compute stream; 0 if memory is unified */
    enum device_checksums checksums; /* as the user requested */
    /* stages, and ranks of each stage, of a group (group.h); else 1 */
    int n_ranks, n_stages;
    const struct device_vtable *v;
    /* Class of the operations' arithmetic: "ref", "cpu", "cuda fixed".  Raise the version whenever
     * the bits of a result change: saved state belongs to a class and a version
     * (save/fingerprint.h). */
    const char *numerics;
    int numerics_version;
    const char *isa; /* instruction set of the kernels: "avx2+fma", "portable", ... */
};

/* Opens "ref", "cpu" or "cuda".  ERR_UNSUPPORTED, with the reason: "cuda" was not built, or there
 * is no GPU. `pool` (NULL: one thread) must outlive the device; o (NULL: defaults) need not. */
int device_open(const char *name, const struct device_opts *o, struct pool *pool,
                struct device **out, struct err *err);
void device_close(struct device *d);

/* Allocates page-aligned, zeroed memory. On failure the message has the requested size. */
int buf_alloc(struct device *d, enum mem_kind kind, size_t bytes, struct buf *out,
              struct err *err);
void buf_free(struct device *d, struct buf *b);
/* Gives the pages of a buffer back to the system if they are the host's. Then the buffer is zeroed;
 * otherwise it stays as it is. */
void buf_rest(struct device *d, struct buf *b);
/* Returns the device's memory and its unused part. All of unified memory counts as unused. */
void device_memory(struct device *d, size_t *unused_bytes, size_t *total_bytes);

/* --- streams and events --------------------------------------------------------------------- */

enum stream_kind {
    STREAM_COMPUTE,
    STREAM_INLINE, /* compute on the calling thread only, for work that is already split */
    STREAM_COPY,
};
int stream_create(struct device *d, enum stream_kind kind, struct stream **out,
                  struct err *err);
/* Waits until all queued work is done. s may be NULL. */
void stream_destroy(struct stream *s);
/* Gives the pages of a stream's scratch memory back to the system if they are the host's. No
 * operation may be running. */
void stream_rest(struct stream *s);
struct device *stream_device(struct stream *s);
/* Waits until all queued work is done. Returns the stream's sticky code. */
int stream_sync(struct stream *s);
/* Returns a message on this stream's first failure ("matmul: out of memory"), or "". */
const char *stream_fault(const struct stream *s);
/* Waits for queued work and clears the sticky error, so that later work is tried again.  Results of
 * work queued before are unreliable.  Returns the code again if the device did not survive. */
int stream_recover(struct stream *s);
/* Copies src to dst[0..bytes) in stream order; both must stay valid until it has run. */
int stream_copy(struct stream *s, void *dst, const void *src, size_t bytes);
/* Copies n pieces of `bytes`, which lie dst_stride and src_stride apart. */
int stream_copy_strided(struct stream *s, void *dst, size_t dst_stride, const void *src,
                        size_t src_stride, int64_t n, size_t bytes);
/* Makes n copies that do not overlap, in any order among themselves, of bytes that are not read
 * again soon.  Host devices split them over the pool; a GPU gets them in one call. */
struct copy_part {
    void *dst;
    const void *src;
    size_t bytes;
};
int stream_copy_all(struct stream *s, const struct copy_part *copies, int n);
/* For experiments: slows a copy stream down, as if its copies went one after another over a link of
 * bytes_per_s (0: no limit). Returns ERR_UNSUPPORTED if the device has a copy engine of its own. */
int stream_throttle(struct stream *s, double bytes_per_s, struct err *err);

/* --- files ---------------------------------------------------------------------------------- */

/* Reads files straight into a device's memory: of a GPU (GPUDirect Storage), or of the ranks of a
 * group, each process from its own disk.  One thread at a time may use a
 * reader.  After a read has been waited for, its bytes are visible to all work queued later. */
struct file_reader;
struct store_form;
enum { FILE_READER_MOST = 8 }; /* maximum number of reads in a batch */

struct file_read {
    int fd;          /* open for reading; it must stay open until the read has ended */
    uint64_t offset; /* a multiple of 4096, as is bytes */
    size_t bytes;
    void *dst;  /* lies in the reader's memory, at a multiple of 4096 from its beginning */
    int status; /* 0, or a negative code; -ECANCELED after file_reader_cancel */
    /* For a group, whose ranks read for each other: */
    const struct store_form *form; /* what the record is made of (store.h) */
    size_t n_bytes;                /* of the record that is made */
    bool
        by_heads; /* the record is K and V of a whole chunk: each rank gets its own heads */
    uint64_t sum; /* set at the end: checksum64 of the stored bytes */
};

/* Opens a reader. `into` is the device memory into which all reads go; it must outlive the reader.
 * ERR_UNSUPPORTED, with the reason: the device cannot read files, or only through host memory. */
int file_reader_open(struct device *d, const struct buf *into, int n_batches,
                     struct file_reader **out, struct err *err);
/* Closes a reader. No reads may be in flight. NULL is allowed. */
void file_reader_close(struct file_reader *r);
/* Starts up to FILE_READER_MOST reads, which stay the caller's.  At most n_batches batches may be
 * in flight.  On an error none of the reads was started. */
int file_reader_submit(struct file_reader *r, struct file_read *reads, int n, void *user,
                       struct err *err);
/* Waits at most timeout_ns for all reads of the oldest batch. *user is the batch's `user`, or NULL
 * if they have not ended.  On an error the batch has also ended, and no more reads may be started.
 */
int file_reader_wait(struct file_reader *r, int64_t timeout_ns, void **user,
                     struct err *err);
/* Asks for an early end of all reads in flight; wait for them as usual. */
void file_reader_cancel(struct file_reader *r);

int event_create(struct device *d, struct event **out, struct err *err);
void event_destroy(struct event *e);
int event_record(struct stream *s, struct event *e); /* marks the stream's present end */
int event_wait(struct stream *s, struct event *e); /* later work of s waits for the mark */
int event_sync(struct event *e); /* the calling thread waits for the mark */

#endif
