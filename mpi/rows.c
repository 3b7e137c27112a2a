/* rows.c - a rank's share of the weights, from the files of its own machine (messages.h).
 *
 * Invariant: rows are read only of files whose hash is that of process 0's (weights.hash). */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/weights_rows.h"
#include "mpi/messages.h"

struct rows {
    struct model_config cfg;
    struct tensor_set set;
};

int rows_open(const char *source, int n_tensors, const struct sha256 *hash,
              struct device *dev, struct rows **out, struct err *err)
{
    struct rows *r = xcalloc(1, sizeof *r);
    struct sha256 own;
    int rc = config_load(&r->cfg, source, err);
    if (rc == 0)
        rc = tensor_set_open(&r->set, source, &r->cfg, DTYPE_BF16, err);
    if (rc == 0)
        rc = weights_hash(&r->set, &r->cfg, dev, &own, err);
    if (rc == 0 && ((int)r->set.list.n != n_tensors || memcmp(&own, hash, sizeof own) != 0))
        rc = err_set(err, ERR_MISMATCH, "%s is another model than that of process 0",
                     source);
    if (rc != 0) {
        rows_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void rows_close(struct rows *r)
{
    if (r != NULL)
        tensor_set_close(&r->set);
    free(r);
}

int rows_read(struct rows *r, struct stream *s, struct weight *to, int64_t dst_row,
              int number, int64_t row, int64_t n)
{
    /* A rank packs its rows anew, so it holds the bytes that process 0 would send. */
    const struct loader ld = {.c = &r->cfg, .n_ranks = 2};
    struct load l = {.t = &r->set.list.items[number], .src = &r->set.src[number]};
    return rows_load(&ld, &l, row, n, s, to, dst_row);
}
