/* ppl_reference.c - see ppl_reference.h. */
#include "apps/ppl_reference.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

static const char magic[8] = {'h', 'c', 'l', 'o', 'g', 'i', 't', '1'};
enum { HEADER_BYTES = 24 };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they are");

static size_t n_ids(const struct ppl_reference *r)
{
    return (size_t)r->n_windows * (size_t)r->context;
}

static void header_make(const struct ppl_reference *r, uint8_t h[HEADER_BYTES])
{
    memcpy(h, magic, sizeof magic);
    put_u32(h + 8, (uint32_t)r->vocab);
    put_u32(h + 12, (uint32_t)r->context);
    put_u32(h + 16, (uint32_t)r->n_windows);
    put_u32(h + 20, 0);
}

static int file_open(struct ppl_reference *r, const char *path, const char *mode, int vocab,
                     int context, int n_windows, struct err *err)
{
    *r = (struct ppl_reference){.file = fopen(path, mode),
                                .path = path,
                                .vocab = vocab,
                                .context = context,
                                .n_windows = n_windows};
    if (r->file == NULL)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    r->row = xcalloc((size_t)vocab, sizeof *r->row);
    return 0;
}

static int write_failed(const struct ppl_reference *r, struct err *err)
{
    return err_set(err, errno != 0 ? -errno : -EIO, "%s: %s", r->path,
                   strerror(errno != 0 ? errno : EIO));
}

int ppl_reference_create(struct ppl_reference *r, const char *path, int vocab, int context,
                         int n_windows, const int32_t *ids, struct err *err)
{
    uint8_t h[HEADER_BYTES];
    int rc = file_open(r, path, "wb", vocab, context, n_windows, err);
    if (rc != 0)
        return rc;
    header_make(r, h);
    if (fwrite(h, sizeof h, 1, r->file) != 1 ||
        fwrite(ids, sizeof *ids, n_ids(r), r->file) != n_ids(r))
        return write_failed(r, err);
    return 0;
}

int ppl_reference_put(struct ppl_reference *r, const float *logits, struct err *err)
{
    size_t n = (size_t)r->vocab;
    return fwrite(logits, sizeof *logits, n, r->file) == n ? 0 : write_failed(r, err);
}

int ppl_reference_open(struct ppl_reference *r, const char *path, int vocab, int context,
                       int n_windows, const int32_t *ids, struct err *err)
{
    uint8_t h[HEADER_BYTES], want[HEADER_BYTES];
    int rc = file_open(r, path, "rb", vocab, context, n_windows, err);
    if (rc != 0)
        return rc;
    header_make(r, want);
    if (fread(h, sizeof h, 1, r->file) != 1 || memcmp(h, magic, sizeof magic) != 0)
        return err_set(err, ERR_FORMAT,
                       "%s: not a file of logits (--logits-out writes them)", path);
    int32_t *theirs = xcalloc(n_ids(r), sizeof *theirs);
    bool same = memcmp(h, want, sizeof h) == 0 &&
                fread(theirs, sizeof *theirs, n_ids(r), r->file) == n_ids(r) &&
                memcmp(theirs, ids, n_ids(r) * sizeof *ids) == 0;
    free(theirs);
    if (!same)
        return err_set(err, ERR_MISMATCH,
                       "%s: its logits are of %u windows of %u tokens with vocabulary %u, "
                       "or of another text; here there are %d windows of %d, vocabulary %d",
                       path, get_u32(h + 16), get_u32(h + 12), get_u32(h + 8), n_windows,
                       context, vocab);
    return 0;
}

/* Returns the logarithm of the sum of exp(logit). *top is the index of the largest logit. */
static double log_sum(const float *logits, int n, int *top)
{
    double sum = 0;
    *top = 0;
    for (int i = 1; i < n; i++)
        *top = logits[i] > logits[*top] ? i : *top;
    double max = (double)logits[*top];
    for (int i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return log(sum) + max;
}

int ppl_reference_compare(struct ppl_reference *r, const float *logits, struct err *err)
{
    int top_r, top;
    double kl = 0;
    if (fread(r->row, sizeof *r->row, (size_t)r->vocab, r->file) != (size_t)r->vocab)
        return err_set(err, ERR_FORMAT, "%s: ends after %lld positions", r->path,
                       (long long)r->n);
    double z_r = log_sum(r->row, r->vocab, &top_r), z = log_sum(logits, r->vocab, &top);
    for (int i = 0; i < r->vocab; i++) {
        double log_p = (double)r->row[i] - z_r;
        kl += exp(log_p) * (log_p - ((double)logits[i] - z));
    }
    r->kl += kl;
    r->kl_sq += kl * kl;
    r->n_same_top += top == top_r;
    r->n++;
    return 0;
}

int ppl_reference_close(struct ppl_reference *r, struct err *err)
{
    int rc = 0;
    if (r->file != NULL && fclose(r->file) != 0)
        rc = write_failed(r, err);
    free(r->row);
    *r = (struct ppl_reference){0};
    return rc;
}
