/* blas_emu.cc - the interface of cuda_blas.c on the emulated device: plain loops, f32 sums. */
#include "cuda_emu.h"

#include <vector>

extern "C" {
struct cuda_blas;
struct cuda_blas_handle;
struct err;
#include "cuda/launch.h"

int cuda_blas_open(struct cuda_blas **out, struct err *err);
void cuda_blas_close(struct cuda_blas *b);
int cuda_blas_handle_create(struct cuda_blas *b, cudaStream_t s,
                            struct cuda_blas_handle **out, struct err *err);
void cuda_blas_handle_destroy(struct cuda_blas *b, struct cuda_blas_handle *h);
int cuda_blas_matmul(struct cuda_blas *b, struct cuda_blas_handle *h, struct gpu_mat c,
                     struct gpu_mat a, struct gpu_mat w);
}

struct cuda_blas_handle {
    cudaStream_t stream;
};
struct cuda_blas {
    int n_handles;
};

int cuda_blas_open(struct cuda_blas **out, struct err *)
{
    *out = new cuda_blas{0};
    return 0;
}
void cuda_blas_close(struct cuda_blas *b)
{
    delete b;
}
int cuda_blas_handle_create(struct cuda_blas *, cudaStream_t s,
                            struct cuda_blas_handle **out, struct err *)
{
    *out = new cuda_blas_handle{s};
    return 0;
}
void cuda_blas_handle_destroy(struct cuda_blas *, struct cuda_blas_handle *h)
{
    delete h;
}

static float get(const gpu_mat &m, int64_t i)
{
    uint16_t h = m.type == 0 ? 0 : ((const uint16_t *)m.data)[i];
    return m.type == 0   ? ((const float *)m.data)[i]
           : m.type == 1 ? f16_to_f32(h)
                         : bf16_to_f32(h);
}
static void set(const gpu_mat &m, int64_t i, float f)
{
    if (m.type == 0)
        ((float *)m.data)[i] = f;
    else
        ((uint16_t *)m.data)[i] = m.type == 1 ? f32_to_f16(f) : f32_to_bf16(f);
}
/* Each row is converted to f32 once. Each sum adds its products in ascending order of k. */
static void matmul(gpu_mat c, gpu_mat a, gpu_mat w)
{
    size_t n = (size_t)a.cols;
    std::vector<float> rows((size_t)a.rows * n), col(n);
    for (int i = 0; i < a.rows; i++)
        for (size_t k = 0; k < n; k++)
            rows[(size_t)i * n + k] = get(a, i * a.ld + (int64_t)k);
    for (int j = 0; j < c.cols; j++) {
        for (size_t k = 0; k < n; k++)
            col[k] = get(w, j * w.ld + (int64_t)k);
        for (int i = 0; i < c.rows; i++) {
            float sum = 0;
            for (size_t k = 0; k < n; k++)
                sum += rows[(size_t)i * n + k] * col[k];
            set(c, i * c.ld + j, sum);
        }
    }
}

int cuda_blas_matmul(struct cuda_blas *, struct cuda_blas_handle *h, struct gpu_mat c,
                     struct gpu_mat a, struct gpu_mat w)
{
    auto kernel = [=]() {
        await_stream();
        if (threadIdx.x == 0)
            matmul(c, a, w);
    };
    LAUNCH(kernel, 1, 1, 0, h->stream);
    return 0;
}
