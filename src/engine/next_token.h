/* next_token.h - from the last layer's output to the next token, for the sequences of a batch
 * whose last known token was computed; private to src/engine.
 *
 *   next_token_begin, next_token_add for each sequence in any order, next_token_run:
 *   then seq.next is known, and seq.logits where its request wants them
 *
 * Logits stay on the device, where the token is chosen (ops.sample). Only its id comes down, and
 * the logits of sequences that ask for them. The logits of a sequence with shaping.h come down,
 * are changed, and go up again; the request sees them as they were before the change. */
#ifndef ENGINE_NEXT_TOKEN_H
#define ENGINE_NEXT_TOKEN_H

#include "model/model.h"
#include "tensor/readback.h"

struct seq;

struct next_token {
    const struct model *model;
    int n_wanted; /* sequences that want their logits: rows [0, n_wanted) */
    /* Sequences added so far: n_shown of them want their logits, in rows from 0 on; n_other do not,
     * in rows from n_wanted on. */
    int n_shown, n_other;
    struct seq **seqs;       /* [max_rows] sequence of each row */
    struct sample_row *rows; /* [max_rows] sampling parameters of each row */
    struct buf mem;          /* device memory of in, logits and ids */
    struct mat in;           /* [max_rows][d] T */
    struct mat logits;       /* [max_rows][vocab] f32 */
    int32_t *ids;            /* [max_rows] chosen tokens */
    struct readback logits_back, ids_back;
    float *shaped;   /* [vocab] shaped logits of one row */
    int32_t *counts; /* [vocab], for shaping_apply */
    /* [max_rows][vocab] unshaped logits. Allocated when a request both shapes its logits and wants
     * them. */
    float *raw;
};

/* Returns the device memory that a next_token takes on the last stage. */
size_t next_token_bytes(const struct model *m, int max_rows);
int next_token_init(struct next_token *h, const struct model *m, int max_rows,
                    struct err *err);
void next_token_deinit(struct next_token *h);

/* Begins a batch. n_wanted of the sequences that will be added want their logits. */
void next_token_begin(struct next_token *h, int n_wanted);
/* Adds q to the batch. x is the last layer's output at the last known token of q. */
int next_token_add(struct next_token *h, struct stream *s, struct seq *q, struct mat x);
/* Chooses the tokens; waits for the stream. Results are valid until the next next_token_begin. */
int next_token_run(struct next_token *h, struct stream *s, struct model_work *work);

/* Returns whether a sequence's request wants its logits. */
bool next_token_shows_logits(const struct seq *q);

#endif
