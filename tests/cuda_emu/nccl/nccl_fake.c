/* nccl_fake.c - see nccl_fake.h.
 *
 * It checks these rules: a group has one call of each rank, with one count; there are no calls
 * outside of a group; a destroyed communicator is not used. */
#include "nccl_fake.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct comm {
    int rank, n;
};

/* The loader looks these symbols up by name: the functions of NCCL that the program uses, and that
 * of nccl_fake.h. */
struct nccl_fake *nccl_fake(void);
const char *ncclGetErrorString(int code);
int ncclCommInitAll(struct comm **comms, int n, const int *devices);
int ncclCommDestroy(struct comm *c);
int ncclCommAbort(struct comm *c);
int ncclCommGetAsyncError(struct comm *c, int *code);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllGather(const void *from, void *to, size_t n, int type, struct comm *c,
                  void *stream);

enum { MAX = 16, UINT8 = 1, INTERNAL_ERROR = 3, DOWN = 2, UP = 1 };

static struct nccl_fake f = {
    .fail_init = -1, .fail_gather = -1, .fail_group = -1, .fail_async = -1};

struct call {
    struct comm *c;
    const void *from;
    void *to, *stream;
    size_t count;
};

static struct call calls[MAX];
static int n_calls, depth, refused;

struct nccl_fake *nccl_fake(void)
{
    return &f;
}

static void rule(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "nccl: %s\n", what);
    abort();
}

static int fails(int *left)
{
    if (*left < 0 || (*left)-- > 0)
        return 0;
    return INTERNAL_ERROR;
}

const char *ncclGetErrorString(int code)
{
    return code == 0 ? "no error" : "internal error (a fake one)";
}

int ncclCommInitAll(struct comm **comms, int n, const int *devices)
{
    f.n_init++;
    f.n_ranks = n;
    if (fails(&f.fail_init) != 0)
        return INTERNAL_ERROR;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++)
            rule(devices[i] != devices[k], "two ranks on one device");
        f.device[i] = devices[i];
        comms[i] = calloc(1, sizeof **comms);
        comms[i]->rank = i;
        comms[i]->n = n;
    }
    return 0;
}

int ncclCommDestroy(struct comm *c)
{
    f.n_destroyed++;
    free(c);
    return 0;
}

int ncclCommAbort(struct comm *c)
{
    f.n_aborted++;
    free(c);
    return 0;
}

int ncclCommGetAsyncError(struct comm *c, int *code)
{
    rule(c != NULL && depth == 0, "errors are asked for outside of groups");
    f.n_async++;
    *code = fails(&f.fail_async);
    return 0;
}

int ncclGroupStart(void)
{
    rule(depth++ == 0, "a group within a group");
    n_calls = refused = 0;
    return 0;
}

static int add_call(struct call call)
{
    rule(depth == 1, "a call of one rank of several, outside of a group");
    rule(call.c != NULL && n_calls < MAX, "a communicator that is gone");
    if (fails(&f.fail_gather) != 0) {
        refused = 1;
        return INTERNAL_ERROR;
    }
    calls[n_calls++] = call;
    f.least_count = f.least_count == 0 || call.count < f.least_count ? call.count
                                                                     : f.least_count;
    f.most_count = call.count > f.most_count ? call.count : f.most_count;
    return 0;
}

int ncclAllGather(const void *from, void *to, size_t n, int type, struct comm *c,
                  void *stream)
{
    rule(type == UINT8, "what is gathered is bytes");
    return add_call((struct call){c, from, to, stream, n});
}

static void *bring_down(const struct call *c, size_t bytes)
{
    void *p = malloc(bytes);
    rule(p != NULL && f.sync(c->stream) == 0 &&
             f.copy(p, c->from, bytes, DOWN, c->stream) == 0 && f.sync(c->stream) == 0,
         "cannot copy down");
    return p;
}

static void gather(void)
{
    size_t n = calls[0].count;
    uint8_t *all = malloc(n * (size_t)n_calls);
    for (int r = 0; r < n_calls; r++) {
        void *own = bring_down(&calls[r], n);
        memcpy(all + (size_t)r * n, own, n);
        free(own);
    }
    for (int r = 0; r < n_calls; r++)
        rule(f.copy(calls[r].to, all, n * (size_t)n_calls, UP, calls[r].stream) == 0 &&
                 f.sync(calls[r].stream) == 0,
             "cannot copy up");
    free(all);
}

int ncclGroupEnd(void)
{
    rule(depth-- == 1, "a group ends that has not begun");
    if (refused)
        return INTERNAL_ERROR;
    rule(n_calls == 0 || n_calls == calls[0].c->n, "not all ranks take part");
    if (n_calls == 0)
        return 0;
    for (int r = 0; r < n_calls; r++)
        rule(calls[r].c->rank == r && calls[r].count == calls[0].count,
             "the ranks do not ask for the same");
    if (fails(&f.fail_group) != 0)
        return INTERNAL_ERROR;
    f.n_gather++;
    gather();
    return 0;
}
