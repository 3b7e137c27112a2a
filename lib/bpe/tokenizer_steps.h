/* tokenizer_steps.h - shared by the files that fill a struct tokenizer_json; only they include it.
 */
#ifndef BPE_TOKENIZER_STEPS_H
#define BPE_TOKENIZER_STEPS_H

#include "base/json.h"
#include "bpe/tokenizer_json.h"

/* Reads the normalizers, pre-tokenizers, decoders and the template; the vocabulary is already read.
 */
int tokenizer_json_read_steps(struct tokenizer_json *t, const struct json *root,
                              struct err *err);

struct tokenizer_text tokenizer_json_copy(struct tokenizer_json *t, const char *s,
                                          size_t n);

/* Makes the token findable by its text. Of equal texts the first is found. */
void tokenizer_json_index(struct tokenizer_json *t, int32_t id);

/* Adds "a b" as the next merge in order of rank; t->merges must have room for it. */
int tokenizer_json_add_merge(struct tokenizer_json *t, const char *line, size_t n,
                             struct err *err);

#endif
