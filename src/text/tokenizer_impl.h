/* tokenizer_impl.h - shared by the tokenizer's files; only they include it. */
#ifndef TEXT_TOKENIZER_IMPL_H
#define TEXT_TOKENIZER_IMPL_H

#include "bpe/tokenizer_json.h"
#include "bpe/bpe.h"
#include "model/config.h"
#include "bpe/pretokenize.h"
#include "text/tokenizer.h"
#include "bpe/tokenizer_added.h"

/* How ids become bytes, compiled from the decoder steps: the bytes of each token, and the text that
 * is dropped at the beginning. */
struct token_bytes {
    /* The bytes of token id, with a final zero, are block[at[id]] to block[at[id + 1] - 1]. */
    char *block;
    uint32_t *at; /* [n_ids + 1] */
    /* text that is dropped at the beginning, up to strip_max times */
    struct tokenizer_text strip;
    int32_t strip_max;
    /* [n_first] for Metaspace: bytes of a token that comes first; else NULL */
    struct tokenizer_text *first;
    int32_t n_first;
};

struct tokenizer {
    struct tokenizer_json j;
    struct tokenizer_config cfg;
    struct pretokenizer *pre;
    struct bpe *bpe;
    struct added_finder *added_raw, *added_normalized;
    /* Finds tokens that are matched in normalized text, by their text before normalization. */
    struct added_finder *added_written;
    struct tokenizer_text *added_text; /* [n_added] the text that is matched */
    char **added_owned;
    bool *special; /* [n_ids] whether the token is special */
    struct token_bytes bytes;
    int32_t bos_id, eos_id;
    int32_t *suppressed; /* [n_suppressed] tokens that answers must not contain */
    int n_suppressed;
    /* ids from here on belong to special tokens that a folder names without an id */
    int32_t n_listed;
    size_t most_bytes; /* most bytes of text that one token can stand for; 0: no limit */
    /* any amount of white space beside added tokens may vanish; most_bytes is about other text */
    bool loses_space;
};

#define GUARD 0xFF

/* Fills most_bytes and loses_space; all other fields are already set. */
void tokenizer_measure(struct tokenizer *t);

int token_bytes_init(struct token_bytes *b, const struct tokenizer_json *t,
                     struct err *err);
/* Returns a token's bytes; s is NULL for an id that has no token. */
struct tokenizer_text token_bytes_of(const struct token_bytes *b, int32_t id);
void token_bytes_deinit(struct token_bytes *b);

#endif
