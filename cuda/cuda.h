/* cuda.h - the CUDA backend, private to cuda.
 *
 * A device is one GPU, and cannot be a rank or a stage of several (docs/DEVICES.md).  The C files
 * run on the host: memory, streams, upload of batches, cuBLAS.  The kernels are in k_*.cu and are
 * called through launch.h.  Graphs, early launches and cuFile are in untried/ and are called
 * through untried/untried.h: no GPU has run them, and the backend works without each of them.
 *
 * Activations have the state dtype between operations (device.act_is_state); the residual sum
 * inside a layer and the logits are f32; products accumulate in f32.  With cuBLAS, and with
 * attention cut into tiles and splits as suits the batch, a row's bits may depend on the other rows
 * of its batch. --cuda-math fixed selects kernels whose results do not: they use tensor cores, with
 * tiles and splits at fixed places (launch.h).  --cuda-math exact selects kernels with the
 * arithmetic of ops.h, at a fraction of the speed. */
#ifndef CUDA_CUDA_H
#define CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/carve.h"
#include "cuda/launch.h"
#include "tensor/device.h"
#include "tensor/ops.h"
#include "tensor/shape.h"

/* Raise this version whenever an operation gives other bits (tensor.h: device.numerics_version).
 * The three kinds of mathematics are separate classes and share the version. */
#define CUDA_NUMERICS_VERSION 1

struct cuda_blas;
struct recorder;
struct cuda_blas_handle;

/* A GPU's memory; see cuda_memory.c. */
struct cuda_memory {
    pthread_mutex_t lock; /* protects the fields below */
    uint8_t *base;        /* the reserved memory; NULL: nothing was reserved */
    struct carve carve;
};

struct cuda_device {
    struct device base;
    struct cuda_memory memory;
    int index; /* number among the GPUs that the process sees */
    int n_sm;
    size_t shared_bytes;       /* shared memory that a block may have */
    enum gpu_math math;        /* set by --cuda-math */
    atomic_bool copies_singly; /* the driver does not accept batches of copies */
    bool no_graphs;            /* set by --cuda-graphs off */
    struct cuda_blas *blas;    /* NULL except in fast math */
    char about[320];
};

/* Host data on the way to the device: pinned memory and its image on the device, in two halves. A
 * half is reused when the copies from it have arrived. */
struct upload {
    uint8_t *host, *dev;
    size_t half, used;
    int side;
    uint64_t n_switches;
    cudaEvent_t left[2];
};

struct cuda_stream {
    struct stream base;
    cudaStream_t handle;
    /* The next fields are for compute streams only. */
    struct cuda_blas_handle *blas;
    struct upload up;
    float *scratch; /* scratch memory of split attention */
    int64_t scratch_floats;
    /* Result of all_finite: on the device, and in pinned memory. */
    int32_t *flag, *flag_host;
    /* The batch that was uploaded last, and its place. */
    uint64_t batch_id, batch_switches;
    /* the batch is in the recorder's image, which is not overwritten meanwhile */
    bool batch_stays;
    struct gpu_batch batch;
    struct recorder *recorder;
};

struct cuda_event {
    struct event base;
    cudaEvent_t handle;
};

static inline struct cuda_stream *cuda_stream(struct stream *s)
{
    return (struct cuda_stream *)s;
}

/* Returns 0 if e is success.  Otherwise logs the failure, makes it the stream's sticky error, and
 * returns the error. */
int cuda_check(struct cuda_stream *s, cudaError_t e, const char *what);
/* Logs a failure with the caller's text, and makes it the stream's sticky error. Returns the
 * stream's code. */
int cuda_fail(struct cuda_stream *s, int code, const char *why);
/* Every operation calls this first. Returns the stream's sticky code. An operation without rows
 * must then return at once, because its matrices may have NULL data. */
int cuda_enter(struct stream *s);
/* Every operation calls this last. Returns the error of its launches. */
int cuda_leave(struct stream *s, const char *what);

/* --- cuda_memory.c --- */
void cuda_memory_init(struct cuda_memory *m);
void cuda_memory_deinit(struct cuda_memory *m);
cudaError_t cuda_memory_reserve(struct cuda_memory *m, size_t bytes);
/* Allocates bytes > 0, which are not zeroed. */
cudaError_t cuda_memory_take(struct cuda_memory *m, size_t bytes, void **out);
void cuda_memory_give(struct cuda_memory *m, void *p); /* NULL is allowed */
size_t cuda_memory_unused(struct cuda_memory *m); /* unused part of the reserved memory */

/* --- cuda_upload.c --- */
int upload_create(struct cuda_memory *m, struct upload *u, size_t half_bytes);
void upload_destroy(struct cuda_memory *m, struct upload *u);
/* Takes `bytes` of room in both memories; fill *host, then call upload_send. */
int upload_take(struct cuda_stream *s, size_t bytes, void **host, void **dev);
int upload_send(struct cuda_stream *s, void *dev, const void *host, size_t bytes);
int upload_ids(struct cuda_stream *s, const int32_t *ids, int64_t n, const int32_t **dev);
/* Uploads a batch to device memory; the same batch (by ragged.id) is uploaded once. */
int upload_batch(struct cuda_stream *s, const struct ragged *r, struct gpu_batch *out);
/* Uploads a batch of decodes, one row each, to `image` in device memory, with room for tables of
 * the next power of two. If the batch does not fit into image_bytes, it is uploaded as by
 * upload_batch. */
int upload_decode(struct cuda_stream *s, const struct ragged *r, void *image,
                  size_t image_bytes);

/* --- cuda_blas.c: cuBLAS, loaded when first needed --- */
int cuda_blas_open(struct cuda_blas **out, struct err *err);
void cuda_blas_close(struct cuda_blas *b);
int cuda_blas_handle_create(struct cuda_blas *b, cudaStream_t s,
                            struct cuda_blas_handle **out, struct err *err);
void cuda_blas_handle_destroy(struct cuda_blas *b, struct cuda_blas_handle *h);
/* Computes c [m][n] = a [m][k] . w [n][k]^T. a and w have one type; c has that type or f32. Returns
 * 0 or cuBLAS's status. */
int cuda_blas_matmul(struct cuda_blas *b, struct cuda_blas_handle *h, struct gpu_mat c,
                     struct gpu_mat a, struct gpu_mat w);

/* --- cuda_q8.c: 8-bit weights, the numbers of all rows before the scales of all rows --- */
size_t cuda_q8_bytes(int64_t n, int64_t k);
struct gpu_q8 cuda_q8(const struct weight *w);
int cuda_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                 int64_t n_rows); /* implements ops.weight_pack */

extern const struct ops cuda_ops;

#endif
