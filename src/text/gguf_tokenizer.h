/* gguf_tokenizer.h - reads the tokenizer in a GGUF file's metadata into a struct tokenizer_json.
 *
 * Two kinds are supported.  `gpt2` is byte-level BPE: the file has tokens and merges, and names its
 * pre-tokenizer (tokenizer.ggml.pre), whose patterns are in gguf_tokenizer.c.  `llama` is
 * SentencePiece's BPE: it has no merges; the pair whose joined token has the best score is merged
 * first. */
#ifndef TEXT_GGUF_TOKENIZER_H
#define TEXT_GGUF_TOKENIZER_H

#include "checkpoint/gguf.h"
#include "bpe/tokenizer_json.h"

/* Types of tokens, as numbered in tokenizer.ggml.token_type. */
enum {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER_DEFINED = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6,
};
/* Returns the type of a token; NORMAL if the file does not say. */
int gguf_token_type(const struct gguf *g, uint64_t id);

/* Reads the tokenizer. Returns 0, -ENOENT if the file has none, or ERR_UNSUPPORTED for an unknown
 * kind or `pre`, with a list of the known ones. Copies strings. Call deinit also after an error. */
int gguf_tokenizer_read(struct tokenizer_json *out, const struct gguf *g, const char *file,
                        struct err *err);

#endif
