/* graphs.c - CUDA graphs: work that is queued repeatedly, a layer of a decode, is recorded once and
 * then replayed with one call.
 *
 * A graph contains addresses and grid sizes, so these must be equal for all decodes with equally
 * many rows.  The batch's image therefore goes to a fixed place in device memory before each
 * replay.  The image has room for tables of the next power of two; this power also decides how
 * attention is split.  Recorded or not, a decode queues the same kernels with the same arguments,
 * so its bits are the same.
 *
 * Work that comes for the first time is queued normally (libraries load their kernels then, which a
 * recording does not allow); the second time it is recorded.  If recording fails, one warning says
 * so, and everything is queued normally from then on. */
#include "cuda/untried/untried.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    /* Most rows of a recorded decode. With tables of 128 K tokens each, the image of this many rows
     * takes half of RECORDER_BYTES. */
    MAX_ROWS = 64,
    /* a power of two; all recordings are forgotten when half of the slots are taken */
    SLOTS = 8192,
};

struct recording {
    uint64_t key;         /* 0: the slot is free */
    cudaGraphExec_t exec; /* NULL: the work has come only once so far */
};

struct recorder {
    struct recording slots[SLOTS];
    int n;
    bool off;
    void *image;
};

int recorder_create(struct cuda_memory *m, bool off, struct recorder **out)
{
    struct recorder *r = xcalloc(1, sizeof *r);
    r->off = off;
    if (cuda_memory_take(m, RECORDER_BYTES, &r->image) != cudaSuccess) {
        free(r);
        return -ENOMEM;
    }
    *out = r;
    return 0;
}

static void forget_all(struct recorder *r)
{
    for (int i = 0; i < SLOTS; i++) {
        if (r->slots[i].exec != NULL)
            cudaGraphExecDestroy(r->slots[i].exec);
        r->slots[i] = (struct recording){0};
    }
    r->n = 0;
}

void recorder_destroy(struct cuda_memory *m, struct recorder *r)
{
    if (r == NULL)
        return;
    forget_all(r);
    cuda_memory_give(m, r->image);
    free(r);
}

/* Returns the slot of a key, or the free slot where it belongs. */
static struct recording *find(struct recorder *r, uint64_t key)
{
    size_t i = (size_t)key % SLOTS;
    while (r->slots[i].key != 0 && r->slots[i].key != key)
        i = (i + 1) % SLOTS;
    return &r->slots[i];
}

static bool is_decode(const struct ragged *r)
{
    bool one_each = r->id != 0 && r->n_rows <= MAX_ROWS && r->n_seqs == r->n_rows;
    for (int i = 0; one_each && i < r->n_seqs; i++)
        one_each = r->seq_row[i + 1] - r->seq_row[i] == 1;
    return one_each;
}

/* Stops recording for good; the operations are not at fault and are queued normally from now on. */
static void give_up(struct recorder *r, const char *what, const char *why)
{
    (void)cudaGetLastError();
    r->off = true;
    forget_all(r);
    log_warn("device cuda: %s: %s; decoding goes on without recorded graphs", what, why);
}

/* Records queue's operations without running them. Returns NULL if recording failed; the caller
 * must then call queue(arg). Nothing is lost by that: if a recording did not allow an operation, it
 * is queued normally now, and any other fault will happen again. */
static cudaGraphExec_t record(struct cuda_stream *s, int (*queue)(void *arg), void *arg)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t e = cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeRelaxed);
    if (e != cudaSuccess) {
        give_up(s->recorder, "beginning to record", cudaGetErrorString(e));
        return NULL;
    }
    int rc = queue(arg);
    e = cudaStreamEndCapture(s->handle, &graph);
    if (rc == 0 && e == cudaSuccess)
        e = cudaGraphInstantiate(&exec, graph, 0);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    if (rc == 0 && e == cudaSuccess)
        return exec;
    give_up(s->recorder, "recording",
            rc != 0 ? "an operation was refused" : cudaGetErrorString(e));
    s->base.fault[0] = 0;
    atomic_store(&s->base.code, 0);
    return NULL;
}

int cuda_record(struct stream *base, const struct ragged *r, uint64_t key, const void *at,
                int (*queue)(void *arg), void *arg)
{
    (void)at; /* a device that is no group has one memory */
    struct cuda_stream *s = cuda_stream(base);
    struct recorder *rec = s->recorder;
    int rc = cuda_enter(base);
    if (rc != 0 || !is_decode(r))
        return rc != 0 ? rc : queue(arg);
    rc = upload_decode(s, r, rec->image, RECORDER_BYTES);
    if (rc != 0 || s->batch.pos != rec->image || rec->off)
        return rc != 0 ? rc : queue(arg);
    const uint64_t parts[3] = {key, (uint64_t)r->n_rows, (uint64_t)s->batch.table_ld};
    key = checksum64(parts, sizeof parts) | 1;
    if (rec->n >= SLOTS / 2)
        forget_all(rec);
    struct recording *it = find(rec, key);
    if (it->key == 0) {
        it->key = key;
        rec->n++;
        return queue(arg);
    }
    if (it->exec == NULL)
        it->exec = record(s, queue, arg);
    if (it->exec == NULL)
        return queue(arg);
    return cuda_check(s, cudaGraphLaunch(it->exec, s->handle), "replaying a layer");
}
