/* ref.c - the reference device: host memory and the naive operations. */
#include "tensor/ref/ref.h"

static const struct ops ref_ops = OPERATIONS_TABLE(ref, .matmul_many = NULL,
                                                   .expect = NULL);

int ref_device_open(struct pool *pool, struct device **out, struct err *err)
{
    return host_device_open("ref", &ref_ops, REF_NUMERICS_VERSION, "reference", 4096, pool,
                            out, err);
}
