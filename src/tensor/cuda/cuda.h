/* cuda.h - the CUDA backend, private to src/tensor/cuda.
 *
 * A device is one GPU; several work as a group (tensor/group.h).  The C files run on the host:
 * memory, streams, batches on their way up, cuBLAS.  The kernels are in k_*.cu behind launch.h.
 * Graphs, early launches, cuFile and NCCL are in untried/ behind untried/untried.h: no GPU has run
 * them, and the backend works without each.
 *
 * Activations have the state dtype between operations (device.act_is_state), the residual sum
 * inside a layer and the logits f32; products accumulate in f32.  With cuBLAS, and with
 * attention in tiles and splits as the batch suggests, a row's bits may depend on the batch
 * around it.  --cuda-math fixed chooses kernels where they do not: on tensor cores, tiles and
 * splits at fixed places (launch.h); =exact ones that have ops.h's arithmetic, at a fraction of
 * the speed. */
#ifndef TENSOR_CUDA_H
#define TENSOR_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "tensor/carve.h"
#include "tensor/cuda/launch.h"
#include "tensor/device.h"
#include "tensor/ops.h"
#include "tensor/shape.h"

/* Raised whenever an operation gives other bits (tensor.h: device.numerics_version).  The three
 * kinds of mathematics are classes of their own and share it. */
#define CUDA_NUMERICS_VERSION 1

struct cuda_blas;
struct recorder;
struct cuda_blas_handle;

/* cuda_memory.c */
struct cuda_memory {
    pthread_mutex_t lock; /* of what follows */
    uint8_t *base;        /* what was reserved; NULL: nothing */
    struct carve carve;
};

struct cuda_device {
    struct device base;
    struct cuda_memory memory;
    int index; /* among the GPUs that the process sees */
    int n_sm;
    size_t shared_bytes;       /* that a block may have */
    enum gpu_math math;        /* --cuda-math */
    atomic_bool copies_singly; /* the driver takes no batches of copies */
    bool no_graphs;            /* --cuda-graphs off */
    struct cuda_blas *blas;    /* NULL but in fast math */
    char about[320];
};

/* Host data on their way to the device: pinned memory and its image, in two halves; a half is
 * written again when what was copied from it has arrived. */
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
    /* compute streams only: */
    struct cuda_blas_handle *blas;
    struct upload up;
    float *scratch; /* of split attention */
    int64_t scratch_floats;
    int32_t *flag, *flag_host; /* device, pinned */
    /* the last batch that was brought up, and where it is */
    uint64_t batch_id, batch_switches;
    bool batch_stays; /* in the recorder's image, which nobody writes over meanwhile */
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

/* 0, or: says in the log what failed, makes it the stream's sticky error, and returns that. */
int cuda_check(struct cuda_stream *s, cudaError_t e, const char *what);
/* The same with a text of one's own. Returns the stream's code. */
int cuda_fail(struct cuda_stream *s, int code, const char *why);
/* First line of an operation: the stream's code; NULL data of an empty batch is fine. */
int cuda_enter(struct stream *s);
/* Last line: what the launches before it said. */
int cuda_leave(struct stream *s, const char *what);

/* --- cuda_memory.c --- */
void cuda_memory_init(struct cuda_memory *m);
void cuda_memory_deinit(struct cuda_memory *m);
cudaError_t cuda_memory_reserve(struct cuda_memory *m, size_t bytes);
/* bytes > 0; not zeroed. */
cudaError_t cuda_memory_take(struct cuda_memory *m, size_t bytes, void **out);
void cuda_memory_give(struct cuda_memory *m, void *p); /* NULL is allowed */
size_t cuda_memory_unused(struct cuda_memory *m);      /* of what was reserved */

/* --- cuda_upload.c --- */
int upload_create(struct cuda_memory *m, struct upload *u, size_t half_bytes);
void upload_destroy(struct cuda_memory *m, struct upload *u);
/* Room for `bytes` in both memories: fill *host, then upload_send. */
int upload_take(struct cuda_stream *s, size_t bytes, void **host, void **dev);
int upload_send(struct cuda_stream *s, void *dev, const void *host, size_t bytes);
int upload_ids(struct cuda_stream *s, const int32_t *ids, int64_t n, const int32_t **dev);
/* A batch in device memory; the same one (by ragged.id) is brought up once. */
int upload_batch(struct cuda_stream *s, const struct ragged *r, struct gpu_batch *out);
/* A batch of decodes, one row each, to `image`, with room for tables of the next power of two;
 * where that is too small, to where upload_batch brings it. */
int upload_decode(struct cuda_stream *s, const struct ragged *r, void *image,
                  size_t image_bytes);

/* --- cuda_blas.c: cuBLAS, loaded when first needed --- */
int cuda_blas_open(struct cuda_blas **out, struct err *err);
void cuda_blas_close(struct cuda_blas *b);
int cuda_blas_handle_create(struct cuda_blas *b, cudaStream_t s,
                            struct cuda_blas_handle **out, struct err *err);
void cuda_blas_handle_destroy(struct cuda_blas *b, struct cuda_blas_handle *h);
/* c [m][n] = a [m][k] . w [n][k]^T; a and w of one type, c of it or f32. 0 or cuBLAS's status. */
int cuda_blas_matmul(struct cuda_blas *b, struct cuda_blas_handle *h, struct gpu_mat c,
                     struct gpu_mat a, struct gpu_mat w);

extern const struct ops cuda_ops;

#endif
