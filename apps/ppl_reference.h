/* ppl_reference.h - keeps logits in a file, and compares later logits with them.
 *
 * The file, little-endian: "hclogit1", u32 vocabulary, u32 context, u32 windows, u32 zero, the ids
 * i32 [windows][context], then f32 [scored positions][vocabulary] in order.  The scored positions
 * of a window are context / 2 .. context - 2.  The file is large: 4 bytes times the vocabulary for
 * each position. */
#ifndef APPS_PPL_REFERENCE_H
#define APPS_PPL_REFERENCE_H

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct ppl_reference {
    FILE *file;
    const char *path;
    int vocab, context, n_windows;
    float *row; /* [vocab] the present row of the file */
    double kl, kl_sq;
    int64_t n, n_same_top;
};

/* Begins a new file for the scored logits of these ids. */
int ppl_reference_create(struct ppl_reference *r, const char *path, int vocab, int context,
                         int n_windows, const int32_t *ids, struct err *err);
int ppl_reference_put(struct ppl_reference *r, const float *logits, struct err *err);

/* Opens a file to compare with. Returns ERR_MISMATCH if it has another vocabulary, context or
 * text. */
int ppl_reference_open(struct ppl_reference *r, const char *path, int vocab, int context,
                       int n_windows, const int32_t *ids, struct err *err);
/* Adds KL(reference || logits), the divergence of the next position, to the sums. */
int ppl_reference_compare(struct ppl_reference *r, const float *logits, struct err *err);

/* Closes the file, if one is open. An error of earlier writes may show only now. */
int ppl_reference_close(struct ppl_reference *r, struct err *err);

#endif
