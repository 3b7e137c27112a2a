/* untried.h - the boundary of those parts of the CUDA backend that only the emulation has run.
 *
 *   graphs.c   a decode's layers recorded as CUDA graphs and replayed    --cuda-graphs off
 *   early.c    kernels launched before the one in front has ended        --cuda-early off (default)
 *   cufile.c   reads from files into device memory by cuFile             --gpu-direct off
 *
 * The right column disables each part. The rest of cuda works without them and gives the
 * same bits. Nothing is added here until a GPU has run it: a part that has run on one moves up to
 * cuda. tools/tidy/tree.sh bounds the size of the folder.
 *
 * The rest of the backend includes only this header and early.h. */
#ifndef CUDA_UNTRIED_UNTRIED_H
#define CUDA_UNTRIED_UNTRIED_H

#include "cuda/cuda.h"
#include "cuda/untried/early.h"

/* --- graphs.c: the recorded graphs of a stream --- */

#define RECORDER_BYTES ((size_t)1 << 20) /* bytes of device memory */

/* Creates a recorder. off: nothing is recorded; cuda_record queues the operations each time. */
int recorder_create(struct cuda_memory *m, bool off, struct recorder **out);
void recorder_destroy(struct cuda_memory *m, struct recorder *r); /* NULL is allowed */
/* Implements ops.record. */
int cuda_record(struct stream *s, const struct ragged *r, uint64_t key, const void *at,
                int (*queue)(void *arg), void *arg);

/* --- early.c --- */

/* Sets gpu_launch_early. ERR_UNSUPPORTED: the GPU cannot launch early. */
int early_choose(bool on, const struct cudaDeviceProp *prop, struct err *err);

/* --- cufile.c --- */

/* Opens cuFile by dlopen. ERR_UNSUPPORTED, with the reason: files cannot be read directly. */
int cuda_file_reader_open(struct device *d, const struct buf *into, int n_batches,
                          struct file_reader **out, struct err *err);

#endif
