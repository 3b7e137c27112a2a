/* cuda_nccl.c - exchanges between GPUs: NCCL, opened when a group is.  No machine of ours has had two.
 *
 * One process and one thread have all ranks (ncclCommInitAll), so each exchange is a group call over them,
 * queued on the ranks' own streams.  Copy streams have communicators of their own: an exchange of what
 * comes up (paper section 5) does not stand in the way of a layer's sum.
 *
 * NCCL's header need not be there: the few declarations that are used are its stable interface. */
#include "tensor/cuda/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/mem.h"
#include "tensor/group_impl.h"

typedef void *nccl_comm;
enum { NCCL_SUM = 0 };
enum { NCCL_UINT8 = 1, NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };

struct nccl {
    struct collective base;
    void *library;
    int n;
    nccl_comm compute[MAX_RANKS], copy[MAX_RANKS];
    int (*init_all)(nccl_comm *comms, int n, const int *devices);
    int (*destroy)(nccl_comm c);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int op, nccl_comm c,
                      cudaStream_t s);
    int (*all_gather)(const void *from, void *to, size_t n, int type, nccl_comm c,
                      cudaStream_t s);
    const char *(*error_string)(int code);
};

static int nccl_type(enum dtype t)
{
    return t == DTYPE_F32 ? NCCL_FLOAT32 : t == DTYPE_F16 ? NCCL_FLOAT16 : NCCL_BFLOAT16;
}

static const nccl_comm *comms_of(const struct nccl *n, const struct ranks *r)
{
    return r->s[0]->kind == STREAM_COPY ? n->copy : n->compute;
}

static int fail(const struct nccl *n, const struct ranks *r, int code, const char *what)
{
    char why[160];
    if (code == 0)
        return 0;
    snprintf(why, sizeof why, "device cuda: %s: NCCL: %s", what, n->error_string(code));
    return cuda_fail(cuda_stream(r->s[0]), -EIO, why);
}

/* A group call is ended also where a part of it was refused. */
static int nccl_all_reduce(struct collective *c, const struct ranks *r, const struct mat *x)
{
    struct nccl *n = (struct nccl *)c;
    const nccl_comm *comm = comms_of(n, r);
    int code = n->group_start();
    for (int i = 0; i < r->n && code == 0; i++)
        code = n->all_reduce(x[i].data, x[i].data, (size_t)(x[i].rows * x[i].cols),
                             nccl_type(x[i].dtype), NCCL_SUM, comm[i],
                             cuda_stream(r->s[i])->handle);
    int end = n->group_end();
    return fail(n, r, code != 0 ? code : end, "all-reduce");
}

static int nccl_all_gather(struct collective *c, const struct ranks *r,
                           const struct mat *out, const struct mat *in)
{
    struct nccl *n = (struct nccl *)c;
    const nccl_comm *comm = comms_of(n, r);
    size_t bytes = (size_t)(in[0].rows * in[0].cols) * dtype_bytes(in[0].dtype);
    int code = n->group_start();
    for (int i = 0; i < r->n && code == 0; i++)
        code = n->all_gather(in[i].data, out[i].data, bytes, NCCL_UINT8, comm[i],
                             cuda_stream(r->s[i])->handle);
    int end = n->group_end();
    return fail(n, r, code != 0 ? code : end, "all-gather");
}

static void nccl_close(struct collective *c)
{
    struct nccl *n = (struct nccl *)c;
    for (int i = 0; i < n->n; i++) {
        if (n->compute[i] != NULL)
            n->destroy(n->compute[i]);
        if (n->copy[i] != NULL)
            n->destroy(n->copy[i]);
    }
    if (n->library != NULL)
        dlclose(n->library);
    free(n);
}

static int load(struct nccl *n, struct err *err)
{
    const struct {
        const char *name;
        void **to;
    } symbols[] = {
        {"ncclCommInitAll", (void **)&n->init_all},
        {"ncclCommDestroy", (void **)&n->destroy},
        {"ncclGroupStart", (void **)&n->group_start},
        {"ncclGroupEnd", (void **)&n->group_end},
        {"ncclAllReduce", (void **)&n->all_reduce},
        {"ncclAllGather", (void **)&n->all_gather},
        {"ncclGetErrorString", (void **)&n->error_string},
    };
    n->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL)
        return err_set(
            err, ERR_UNSUPPORTED,
            "several GPUs need NCCL, which is not found (%s): install it or add its "
            "folder to LD_LIBRARY_PATH",
            dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        *symbols[i].to = dlsym(n->library, symbols[i].name);
        if (*symbols[i].to == NULL)
            return err_set(err, ERR_UNSUPPORTED, "this NCCL has no %s", symbols[i].name);
    }
    return 0;
}

static int connect_ranks(struct nccl *n, int first, int n_ranks, struct err *err)
{
    int devices[MAX_RANKS];
    for (int i = 0; i < n_ranks; i++)
        devices[i] = first + i;
    n->n = n_ranks;
    int code = n->init_all(n->compute, n_ranks, devices);
    if (code == 0)
        code = n->init_all(n->copy, n_ranks, devices);
    return code == 0 ? 0
                     : err_set(err, -EIO, "NCCL cannot connect %d GPUs: %s", n_ranks,
                               n->error_string(code));
}

int cuda_collective_open(int first, int n_ranks, struct collective **out, struct err *err)
{
    if (cuda_ranks_share_gpu())
        return collective_memory_open(out, err);
    struct nccl *n = xcalloc(1, sizeof *n);
    n->base = (struct collective){nccl_all_reduce, nccl_all_gather, nccl_close};
    int rc = load(n, err);
    if (rc == 0)
        rc = connect_ranks(n, first, n_ranks, err);
    if (rc != 0) {
        nccl_close(&n->base);
        return rc;
    }
    *out = &n->base;
    return 0;
}
