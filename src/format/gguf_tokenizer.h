/* gguf_tokenizer.h - the tokenizer in a GGUF file's metadata, as struct tokenizer_json.
 *
 * Two kinds are known.  `gpt2` is byte-level BPE: tokens and merges are in the file, how text
 * is cut is named (tokenizer.ggml.pre) and written out here.  `llama` is SentencePiece's BPE:
 * no merges; the pair whose joined token has the best score is merged first. */
#ifndef FORMAT_GGUF_TOKENIZER_H
#define FORMAT_GGUF_TOKENIZER_H

#include "format/gguf.h"
#include "format/tokenizer_json.h"

/* Of a token, in tokenizer.ggml.token_type. */
enum {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER_DEFINED = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6,
};
/* NORMAL where the file does not say. */
int gguf_token_type(const struct gguf *g, uint64_t id);

/* Whether a token that is not ordinary text ends an answer: files name one such token, and chat
 * models have two. */
bool gguf_token_ends_answer(const struct gguf *g, uint64_t id, const char *s, size_t n);

/* -ENOENT where the file has no tokenizer.  An unknown kind or an unknown `pre` is ERR_UNSUPPORTED,
 * with the list of those that are known.  Strings are copied.  deinit also after an error. */
int gguf_tokenizer_read(struct tokenizer_json *out, const struct gguf *g, const char *file,
                        struct err *err);

#endif
