/* nccl.c - exchanges between GPUs with NCCL, which is loaded when a group is opened.  It has never
 * run on a machine with two GPUs.
 *
 * One process and one thread have all ranks (ncclCommInitAll), so each exchange is a group call
 * over them, queued on the ranks' own streams.  NCCL's rules, and how this file follows them:
 *
 *  1. Two communicators on one GPU must not work at the same time, because their kernels would wait
 *     for each other's GPUs.  So a stage has one communicator, for its compute streams.  On copy
 *     streams, which run concurrently (HCache paper, section 5), ranks gather by copying from each
 *     other (collective_memory.c), which also leaves the multiprocessors alone.  So they do for several
 *     rows, since NCCL puts the ranks' parts one after another, and not side by side.
 *  2. Two threads must not call NCCL at once: group.exchange prevents it.
 *  3. With several GPUs per thread, exchanges must not be in recorded graphs, whose launches may
 *     wait for each other: a recording ends before an exchange (group_ops.c, group_record).
 *  4. After an error the state of queued work is unknown: the communicators are aborted, not
 *     destroyed, and every later exchange of the stage fails.  Asynchronous errors are queried
 *     before each exchange.
 *
 * NCCL's header is not needed: the few declarations in use are its stable interface. */
#include "cuda/untried/untried.h"

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
enum { NCCL_UINT8 = 1 };

struct nccl {
    struct collective base;
    void *library;
    int n;
    nccl_comm comm[MAX_RANKS];
    char broken[160]; /* why no exchange is possible any more; empty: exchanges work */
    int (*init_all)(nccl_comm *comms, int n, const int *devices);
    int (*destroy)(nccl_comm c);
    int (*abandon)(nccl_comm c); /* function ncclCommAbort */
    int (*async_error)(nccl_comm c, int *code);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_gather)(const void *from, void *to, size_t n, int type, nccl_comm c,
                      cudaStream_t s);
    const char *(*error_string)(int code);
};

static void drop_comms(struct nccl *n)
{
    for (int i = 0; i < n->n; i++) {
        if (n->comm[i] != NULL)
            (void)(n->broken[0] != 0 ? n->abandon(n->comm[i]) : n->destroy(n->comm[i]));
        n->comm[i] = NULL;
    }
}

/* Fails every stream of the stage, not only one rank's: a rank that has queued its part of the
 * exchange would wait for the others. Does nothing if code is 0 and no exchange has failed before.
 */
static int fail(struct nccl *n, const struct ranks *r, int code, const char *what)
{
    if (code != 0 && n->broken[0] == 0) {
        snprintf(n->broken, sizeof n->broken, "device cuda: %s: NCCL: %s", what,
                 n->error_string(code));
        drop_comms(n);
    }
    if (n->broken[0] == 0)
        return 0;
    for (int i = 1; i < r->n; i++)
        (void)cuda_fail(cuda_stream(r->s[i]), -EIO, n->broken);
    return cuda_fail(cuda_stream(r->s[0]), -EIO, n->broken);
}

/* Returns 0 if an exchange can begin: there is no error, old or asynchronous. */
static int check_comms(struct nccl *n, const struct ranks *r)
{
    int code = 0;
    for (int i = 0; i < r->n && code == 0 && n->broken[0] == 0; i++) {
        int asked = n->async_error(n->comm[i], &code);
        code = asked != 0 ? asked : code;
    }
    return fail(n, r, code, "an earlier exchange");
}

/* Implements all_gather. It ends the group call even if NCCL refused a part of it. */
static int nccl_all_gather(struct collective *c, const struct ranks *r,
                           const struct mat *out, const struct mat *in)
{
    struct nccl *n = (struct nccl *)c;
    size_t bytes = (size_t)(in[0].rows * in[0].cols) * dtype_bytes(in[0].dtype);
    if (r->s[0]->kind == STREAM_COPY || in[0].rows > 1)
        return gather_by_copies(r, out, in);
    int rc = check_comms(n, r);
    if (rc != 0)
        return rc;
    int code = n->group_start();
    for (int i = 0; i < r->n && code == 0; i++)
        code = n->all_gather(in[i].data, out[i].data, bytes, NCCL_UINT8, n->comm[i],
                             cuda_stream(r->s[i])->handle);
    int end = n->group_end();
    return fail(n, r, code != 0 ? code : end, "all-gather");
}

static void nccl_close(struct collective *c)
{
    struct nccl *n = (struct nccl *)c;
    drop_comms(n);
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
        {"ncclCommAbort", (void **)&n->abandon},
        {"ncclCommGetAsyncError", (void **)&n->async_error},
        {"ncclGroupStart", (void **)&n->group_start},
        {"ncclGroupEnd", (void **)&n->group_end},
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
    int code = n->init_all(n->comm, n_ranks, devices);
    return code == 0 ? 0
                     : err_set(err, -EIO, "NCCL cannot connect %d GPUs: %s", n_ranks,
                               n->error_string(code));
}

int cuda_collective_open(const struct device *d, int first, int n_ranks,
                         struct collective **out, struct err *err)
{
    if (d->shared)
        return collective_memory_open(out, err);
    struct nccl *n = xcalloc(1, sizeof *n);
    n->base = (struct collective){nccl_all_gather, nccl_close};
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

void cuda_connect(int n)
{
    for (int i = 0; i < n; i++) {
        (void)cudaSetDevice(i);
        for (int k = 0; k < n; k++) {
            int can = 0;
            if (k != i && cudaDeviceCanAccessPeer(&can, i, k) == cudaSuccess && can != 0)
                /* Fails if access is already enabled, which does no harm. */
                (void)cudaDeviceEnablePeerAccess(k, 0);
        }
        (void)cudaGetLastError(); /* clears that error, which is no fault */
    }
}
