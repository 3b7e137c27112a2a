/* cuda_absent.c - device "cuda" in a build without it.  (A build with CUDA links cuda
 * first, so this object stays unused in the library.) */
#include "tensor/group_impl.h"

int cuda_device_open(const struct device_opts *o, int index, struct pool *pool,
                     struct device **out, struct err *err)
{
    (void)o;
    (void)index;
    (void)pool;
    (void)out;
    return err_set(
        err, ERR_UNSUPPORTED,
        "device cuda: this program was built without CUDA: install the CUDA toolkit "
        "(nvcc) and build again");
}

int cuda_collective_open(const struct device *d, int first, int n_ranks,
                         struct collective **out, struct err *err)
{
    (void)d;
    (void)first;
    (void)n_ranks;
    (void)out;
    return err_set(err, ERR_UNSUPPORTED, "this program was built without CUDA");
}

void cuda_connect(int n)
{
    (void)n;
}
