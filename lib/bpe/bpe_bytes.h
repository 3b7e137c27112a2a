/* bpe_bytes.h - the alphabet of byte-level vocabularies.
 *
 * GPT-2 writes each byte of a token as one printable character.  A printable Latin-1 character
 * stands for itself; the other 68 bytes are U+0100, U+0101, ... in order.  So "Ġthe" is " the". */
#ifndef BPE_BPE_BYTES_H
#define BPE_BPE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Converts n bytes of UTF-8 text in this alphabet to the bytes that it spells; out has room for n.
 * Returns false, with out undefined, if the text has a character outside the alphabet. */
bool bpe_bytes_from_text(const char *text, size_t n, char *out, size_t *n_out);

/* Returns whether a text in this alphabet spells these bytes. */
bool bpe_bytes_are(const char *text, size_t n_text, const char *bytes, size_t n);

/* Converts bytes to text in this alphabet; out has room for 2 * n. Returns the text's length. */
size_t bpe_bytes_to_text(const char *bytes, size_t n, char *out);

#endif
