/* cuda_blas.c - loads cuBLAS when a GPU is opened: programs that run on the CPU never load it. */
#include "cuda/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include <cublas_v2.h>

#include "base/mem.h"

enum { WORKSPACE_BYTES = 32 << 20 };

struct cuda_blas {
    void *library;
    __typeof__(&cublasCreate_v2) create;
    __typeof__(&cublasDestroy_v2) destroy;
    __typeof__(&cublasSetStream_v2) set_stream;
    __typeof__(&cublasSetWorkspace_v2) set_workspace;
    __typeof__(&cublasGemmEx) gemm;
};

struct cuda_blas_handle {
    cublasHandle_t handle;
    void *workspace;
};

static void *load_library(void)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12",
                                        "libcublas.so",
                                        "/usr/local/cuda/lib64/libcublas.so"};
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < sizeof names / sizeof names[0]; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

int cuda_blas_open(struct cuda_blas **out, struct err *err)
{
    struct cuda_blas *b = xcalloc(1, sizeof *b);
    b->library = load_library();
    if (b->library == NULL) {
        free(b);
        return err_set(
            err, ERR_UNSUPPORTED,
            "device cuda: cuBLAS is not found (%s): install it or add its folder to "
            "LD_LIBRARY_PATH, or give --cuda-math fixed, which does without",
            dlerror());
    }
    const struct {
        const char *name;
        void **to;
    } symbols[] = {
        {"cublasCreate_v2", (void **)&b->create},
        {"cublasDestroy_v2", (void **)&b->destroy},
        {"cublasSetStream_v2", (void **)&b->set_stream},
        {"cublasSetWorkspace_v2", (void **)&b->set_workspace},
        {"cublasGemmEx", (void **)&b->gemm},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        *symbols[i].to = dlsym(b->library, symbols[i].name);
        if (*symbols[i].to == NULL) {
            cuda_blas_close(b);
            return err_set(err, ERR_UNSUPPORTED, "device cuda: this cuBLAS has no %s",
                           symbols[i].name);
        }
    }
    *out = b;
    return 0;
}

void cuda_blas_close(struct cuda_blas *b)
{
    if (b == NULL)
        return;
    dlclose(b->library);
    free(b);
}

int cuda_blas_handle_create(struct cuda_blas *b, cudaStream_t s,
                            struct cuda_blas_handle **out, struct err *err)
{
    struct cuda_blas_handle *h = xcalloc(1, sizeof *h);
    cublasStatus_t st = b->create(&h->handle);
    if (st != CUBLAS_STATUS_SUCCESS) {
        free(h);
        return err_set(err, -EIO, "device cuda: cublasCreate: status %d", (int)st);
    }
    st = b->set_stream(h->handle, s);
    /* With a workspace of its own, a handle's results do not depend on other streams (cuBLAS's
     * manual). */
    if (st == CUBLAS_STATUS_SUCCESS &&
        cudaMalloc(&h->workspace, WORKSPACE_BYTES) == cudaSuccess)
        st = b->set_workspace(h->handle, h->workspace, WORKSPACE_BYTES);
    if (st != CUBLAS_STATUS_SUCCESS || h->workspace == NULL) {
        cuda_blas_handle_destroy(b, h);
        return err_set(err, -ENOMEM, "device cuda: no workspace for cuBLAS (status %d)",
                       (int)st);
    }
    *out = h;
    return 0;
}

void cuda_blas_handle_destroy(struct cuda_blas *b, struct cuda_blas_handle *h)
{
    b->destroy(h->handle);
    cudaFree(h->workspace);
    free(h);
}

static cudaDataType_t type_of(int type)
{
    return type == DTYPE_F32 ? CUDA_R_32F : type == DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

int cuda_blas_matmul(struct cuda_blas *b, struct cuda_blas_handle *h, struct gpu_mat c,
                     struct gpu_mat a, struct gpu_mat w)
{
    const float one = 1, zero = 0;
    /* cuBLAS is column-major: there, w [n][k] is k x n, and c [m][n] is n x m = w^T . a. */
    return (int)b->gemm(h->handle, CUBLAS_OP_T, CUBLAS_OP_N, c.cols, c.rows, a.cols, &one,
                        w.data, type_of(w.type), (int)w.ld, a.data, type_of(a.type),
                        (int)a.ld, &zero, c.data, type_of(c.type), (int)c.ld,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
