/* tokenizer_normalize.h - the normalizer steps of a tokenizer. Only its .c file uses utf8proc. */
#ifndef BPE_TOKENIZER_NORMALIZE_H
#define BPE_TOKENIZER_NORMALIZE_H

#include "base/err.h"
#include "bpe/tokenizer_json.h"

/* Compiles the patterns of the steps, and frees them. */
int tokenizer_normalizers_compile(struct normalizer_step *steps, int n_steps,
                                  struct err *err);
void tokenizer_normalizers_free(struct normalizer_step *steps, int n_steps);

/* Normalizes n bytes of valid UTF-8 into *out, which the caller frees. */
int tokenizer_normalize(const struct normalizer_step *steps, int n_steps, const char *text,
                        size_t n, char **out, size_t *n_out, struct err *err);

/* Replaces every occurrence of the pattern in s. pattern->n > 0. The caller frees the result.  get
 * is xmalloc, or mem_try; with the latter the result is NULL if there is no memory. */
char *tokenizer_replace(void *(*get)(size_t n), const char *s, size_t n,
                        const struct tokenizer_text *pattern,
                        const struct tokenizer_text *with, size_t *n_out);

#endif
