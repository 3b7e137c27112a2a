/* pretokenize.h - cuts a normalized text into the pieces that BPE works on.
 *
 * Steps run in the order of the tokenizer's file; each cuts the pieces of the one before.  A piece
 * never looks beyond its ends.  Some steps change the text on the way (a space in front, metaspaces
 * for spaces), so the pieces point into a text of their own. */
#ifndef MODEL_PRETOKENIZE_H
#define MODEL_PRETOKENIZE_H

#include "base/err.h"
#include "format/tokenizer_json.h"

#include <stdbool.h>
#include <stddef.h>

struct pretokenizer;

/* Compiles the regular expressions.  ERR_UNSUPPORTED where one could mean something else in the
 * reference's dialect.  Immutable once made: threads may share it. */
int pretokenizer_create(struct pretokenizer **out, const struct pretokenizer_step *steps,
                        int n, struct err *err);
void pretokenizer_destroy(struct pretokenizer *p); /* NULL is allowed */

/* Whether the pieces are bytes for a byte-level vocabulary. */
bool pretokenizer_is_byte_level(const struct pretokenizer *p);

struct piece {
    size_t begin, end; /* bytes of pieces.text */
};

/* The pieces of one text, in order, or a window of them. */
struct pieces {
    const char *text; /* the caller's, or `owned` */
    size_t n_text;
    struct piece *list;
    size_t n, cap;
    char *owned;
    struct piece *spare; /* the other half of a double buffer */
    size_t spare_cap;
    bool failed; /* there was no memory: the list lacks pieces */
    void *match; /* the regular expressions' scratch memory */
};
void pieces_deinit(struct pieces *p);

/* One piece, in order; anything but 0 ends the cutting with that code. */
typedef int piece_fn(void *arg, const char *s, size_t n, struct err *err);

/* Cuts `text` (valid UTF-8) and gives each piece to fn.  at_start: the text begins where the
 * whole text does.  work: the memory that it needs; zero it first, reuse it freely. */
int pretokenize_each(const struct pretokenizer *p, const char *text, size_t n,
                     bool at_start, struct pieces *work, piece_fn *fn, void *arg,
                     struct err *err);

#endif
