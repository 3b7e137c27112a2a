/* collective_memory.c - exchanges between ranks that reach each other's memory: the ranks of a CPU,
 * or several on one GPU.
 *
 * Rank 0's stream waits for the others, and adds or copies.  The others wait for rank 0 and take
 * the result. The sum is ((x0 + x1) + x2) + ..., element by element, rounded as by ops.add: the
 * same bits for every batch and on every rank. */
#include <stdlib.h>

#include "base/mem.h"
#include "tensor/group_impl.h"
#include "tensor/ops.h"

static size_t mat_bytes(struct mat a)
{
    return (size_t)(a.rows * a.cols) * dtype_bytes(a.dtype);
}

/* Makes rank r's later work wait for all work that the other ranks have queued so far. */
static int wait_for_others(const struct ranks *k, int r)
{
    int rc = 0;
    for (int i = 0; i < k->n && rc == 0; i++)
        if (i != r)
            rc = event_wait(k->s[r], k->mark[i]);
    return rc;
}

static int mark_all(const struct ranks *k)
{
    int rc = 0;
    for (int r = 0; r < k->n && rc == 0; r++)
        rc = event_record(k->s[r], k->mark[r]);
    return rc;
}

static int memory_all_reduce(struct collective *c, const struct ranks *k,
                             const struct mat *x)
{
    (void)c;
    const struct ops *op = stream_device(k->s[0])->ops;
    int rc = mark_all(k);
    if (rc == 0)
        rc = wait_for_others(k, 0);
    for (int r = 1; r < k->n && rc == 0; r++)
        rc = op->add(k->s[0], x[0], x[0], x[r]);
    if (rc == 0)
        rc = event_record(k->s[0], k->mark[0]);
    for (int r = 1; r < k->n && rc == 0; r++) {
        rc = event_wait(k->s[r], k->mark[0]);
        if (rc == 0)
            rc = stream_copy(k->s[r], x[r].data, x[0].data, mat_bytes(x[0]));
    }
    /* Rank 0 must not overwrite the sum while another rank copies it. */
    if (rc == 0)
        rc = mark_all(k);
    return rc == 0 ? wait_for_others(k, 0) : rc;
}

int gather_by_copies(const struct ranks *k, const struct mat *out, const struct mat *in)
{
    size_t bytes = mat_bytes(in[0]);
    int rc = mark_all(k);
    for (int to = 0; to < k->n && rc == 0; to++) {
        rc = wait_for_others(k, to);
        for (int r = 0; r < k->n && rc == 0; r++) {
            uint8_t *at = (uint8_t *)out[to].data + (size_t)r * bytes;
            if (at != in[r].data)
                rc = stream_copy(k->s[to], at, in[r].data, bytes);
        }
    }
    /* No rank may overwrite its part while another reads it. */
    if (rc == 0)
        rc = mark_all(k);
    for (int r = 0; r < k->n && rc == 0; r++)
        rc = wait_for_others(k, r);
    return rc;
}

static int memory_all_gather(struct collective *c, const struct ranks *k,
                             const struct mat *out, const struct mat *in)
{
    (void)c;
    return gather_by_copies(k, out, in);
}

static void memory_close(struct collective *c)
{
    free(c);
}

int collective_memory_open(struct collective **out, struct err *err)
{
    (void)err;
    struct collective *c = xcalloc(1, sizeof *c);
    *c = (struct collective){memory_all_reduce, memory_all_gather, memory_close};
    *out = c;
    return 0;
}
