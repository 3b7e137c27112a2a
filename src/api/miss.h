/* miss.h - describes in words where a prompt differs from stored ones. Pure. */
#ifndef API_MISS_H
#define API_MISS_H

#include "text/tokenizer.h"

/* Appends to the reason in out[n_out]: ": the prompt differs at token 812: \"2026-11-22
 * 14:03\"", with the prompt's own text from there on. t NULL: without text. */
void miss_text(const struct tokenizer *t, const int32_t *prompt, int n_prompt, int at,
               char *out, size_t n_out);

#endif
