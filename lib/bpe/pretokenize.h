/* pretokenize.h - cuts a normalized text into the pieces that BPE encodes.
 *
 * Steps run in the order of the tokenizer's file; each cuts the pieces of the one before, and never
 * looks beyond a piece's ends.  Some steps change the text (a space in front, metaspaces for
 * spaces), so pieces may point into a copy of the text. */
#ifndef BPE_PRETOKENIZE_H
#define BPE_PRETOKENIZE_H

#include "base/err.h"
#include "bpe/tokenizer_json.h"

#include <stdbool.h>
#include <stddef.h>

struct pretokenizer;

/* Compiles the regular expressions.  ERR_UNSUPPORTED: one could mean something else in the
 * reference's dialect.  The result is immutable: threads may share it. */
int pretokenizer_create(struct pretokenizer **out, const struct pretokenizer_step *steps,
                        int n, struct err *err);
void pretokenizer_destroy(struct pretokenizer *p); /* NULL is allowed */

/* Returns whether the pieces are bytes for a byte-level vocabulary. */
bool pretokenizer_is_byte_level(const struct pretokenizer *p);

struct piece {
    size_t begin, end; /* byte offsets in pieces.text */
};

/* The pieces of one text, in order, or a window of them. */
struct pieces {
    const char *text; /* the caller's text, or `owned` */
    size_t n_text;
    struct piece *list;
    size_t n, cap;
    char *owned;
    struct piece *spare; /* the other list of a double buffer */
    size_t spare_cap;
    bool failed; /* memory ran out: the list lacks pieces */
    void *match; /* scratch memory of the regular expressions */
};
void pieces_deinit(struct pieces *p);

/* Receives one piece, in order; a result other than 0 ends the cutting with that code. */
typedef int piece_fn(void *arg, const char *s, size_t n, struct err *err);

/* Cuts `text` (valid UTF-8) and passes each piece to fn. at_start: `text` is the beginning of the
 * whole text. work: scratch memory; zero it before its first use and reuse it. */
int pretokenize_each(const struct pretokenizer *p, const char *text, size_t n,
                     bool at_start, struct pieces *work, piece_fn *fn, void *arg,
                     struct err *err);

#endif
