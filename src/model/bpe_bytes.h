/* bpe_bytes.h - the alphabet in which byte-level vocabularies are written.
 *
 * GPT-2 writes each byte of a token as one printable character: the printable Latin-1 characters
 * stand for themselves, the other 68 bytes for U+0100, U+0101, ... in order.  So
 * "Ġthe" is " the". */
#ifndef MODEL_BPE_BYTES_H
#define MODEL_BPE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes the bytes that the n bytes of UTF-8 text stand for; out has room for n.  False, with
 * out in an undefined state, where the text has a character outside of the alphabet. */
bool bpe_bytes_from_text(const char *text, size_t n, char *out, size_t *n_out);

/* The reverse: out has room for 2 * n. Returns the length. */
size_t bpe_bytes_to_text(const char *bytes, size_t n, char *out);

#endif
