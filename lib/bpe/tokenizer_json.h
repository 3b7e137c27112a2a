/* tokenizer_json.h - reads a tokenizer's files into plain data.
 *
 * The input is tokenizer.json (Hugging Face `tokenizers`), or the older pair vocab.json +
 * merges.txt. The result is one struct: a vocabulary, a ranked list of merges, added tokens, and
 * short typed lists of the other steps.  Nested Sequences are flattened.  This module does not
 * tokenize; text/tokenizer.h does.
 *
 * Only BPE models are supported.  A step, an option or a value that would change ids and is not
 * listed below is refused with ERR_UNSUPPORTED and its name.  `truncation` and `padding` are
 * ignored, as transformers ignores them unless a call asks for them (tried with 5.23: for a file
 * that truncates to 5 tokens and pads to 50 it returned all 27 tokens).  The bare tokenizers
 * library (0.23) obeys them.
 *
 * After a successful parse:
 *   1. every id lies in [0, n_ids) and names one token; ids may be unused;
 *   2. every merge names three tokens of the vocabulary, and joined = left + right as text;
 *   3. every string is valid UTF-8. */
#ifndef BPE_TOKENIZER_JSON_H
#define BPE_TOKENIZER_JSON_H

#include "base/err.h"
#include "bpe/slots.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TOKENIZER_MAX_STEPS = 16,
    TOKENIZER_MAX_TEMPLATE = 16,
    TOKENIZER_MAX_ID = (1 << 22) - 1,
};

/* A text of n bytes and a final zero, which struct tokenizer_json owns. s NULL: there is no
 * text. */
struct tokenizer_text {
    const char *s;
    size_t n;
};

struct tokenizer_merge {
    int32_t left, right, joined;
};

struct tokenizer_added {
    struct tokenizer_text text;
    int32_t id;
    bool special;
    /* the token absorbs the white space before it (lstrip) or after it (rstrip) */
    bool lstrip, rstrip;
    bool normalized; /* the token is matched after normalization instead of before */
    bool in_vocab;   /* the token is also in the model's own vocabulary */
};

enum normalizer_kind {
    NORMALIZER_PREPEND, /* uses the field text */
    NORMALIZER_REPLACE, /* replaces pattern by text */
    NORMALIZER_NFC,
    NORMALIZER_NFD,
    NORMALIZER_NFKC,
    NORMALIZER_NFKD,
};

struct regex;

struct normalizer_step {
    enum normalizer_kind kind;
    struct tokenizer_text pattern, text;
    bool is_regex;
    struct regex
        *regex; /* the compiled pattern, which the reader of this struct makes and frees */
};

enum pretokenizer_kind {
    PRETOKENIZER_SPLIT,       /* uses the fields pattern, is_regex, behavior, invert */
    PRETOKENIZER_BYTE_LEVEL,  /* uses the fields add_prefix_space, use_regex */
    PRETOKENIZER_METASPACE,   /* uses the fields text, prepend, split */
    PRETOKENIZER_DIGITS,      /* uses the field individual */
    PRETOKENIZER_PUNCTUATION, /* uses the field behavior */
};

enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

enum prepend_scheme {
    PREPEND_ALWAYS,
    PREPEND_FIRST, /* a space is put only at the very beginning of the text */
    PREPEND_NEVER,
};

struct pretokenizer_step {
    enum pretokenizer_kind kind;
    struct tokenizer_text pattern;
    bool is_regex, invert;
    enum split_behavior behavior;
    bool add_prefix_space, use_regex; /* for BYTE_LEVEL */
    struct tokenizer_text text;       /* for METASPACE: the text that replaces a space */
    enum prepend_scheme prepend;
    bool split;
    bool individual; /* for DIGITS */
};

enum decoder_kind {
    DECODER_REPLACE, /* replaces pattern by text */
    DECODER_BYTE_FALLBACK,
    DECODER_FUSE,
    DECODER_STRIP, /* uses the fields text, start, stop */
    DECODER_BYTE_LEVEL,
    DECODER_METASPACE, /* uses the fields text, prepend */
};

struct decoder_step {
    enum decoder_kind kind;
    struct tokenizer_text pattern, text;
    int32_t start, stop;
    enum prepend_scheme prepend;
};

struct tokenizer_json {
    /* Vocabulary: the model's tokens and the added tokens. */
    int32_t n_ids;
    struct tokenizer_text *tokens; /* [n_ids] texts of the tokens */
    struct slots by_text;          /* ids by their texts: 8 bytes a token */
    size_t n_merges;
    struct tokenizer_merge *merges; /* [n_merges], the best rank first */
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk_id; /* token for unknown text; -1: none */
    /* [n_ids] scores, if pairs are merged by score (then `merges` is empty); NULL: by rank. */
    float *scores;
    /* [n_ids] true for tokens that no text is tokenized to; NULL: there are none */
    bool *reserved;
    size_t n_added;
    struct tokenizer_added *added;

    /* Steps in the order in which they are applied. */
    int n_normalizers, n_pretokenizers, n_decoders;
    struct normalizer_step normalizers[TOKENIZER_MAX_STEPS];
    struct pretokenizer_step pretokenizers[TOKENIZER_MAX_STEPS];
    struct decoder_step decoders[TOKENIZER_MAX_STEPS];

    /* Ids that are put before (prefix) and after (suffix) a text. */
    bool has_template;
    int n_prefix, n_suffix;
    int32_t prefix[TOKENIZER_MAX_TEMPLATE], suffix[TOKENIZER_MAX_TEMPLATE];

    /* Blocks of memory that hold all strings. */
    char **blocks;
    size_t n_blocks, block_used, block_cap;
};

/* Parses n bytes, which need not live longer than the call; `file` is the name of the file in
 * messages. Call deinit also after an error. */
int tokenizer_json_parse(struct tokenizer_json *out, const void *bytes, size_t n,
                         const char *file, struct err *err);

/* Parses GPT-2's older pair of files: byte-level with GPT-2's regex, no added tokens, no template.
 */
int tokenizer_json_parse_vocab(struct tokenizer_json *out, const void *vocab,
                               size_t n_vocab, const char *vocab_file, const void *merges,
                               size_t n_merges, const char *merges_file, struct err *err);

/* Makes a->text an added token with a's flags; files beside tokenizer.json list such tokens. The
 * text is copied. A known token keeps its id. A new one gets a->id. Returns ERR_MISMATCH if that id
 * is in use, or would leave a gap after the vocabulary. */
int tokenizer_json_add(struct tokenizer_json *t, const struct tokenizer_added *a,
                       struct err *err);

/* Returns the id that Hugging Face's tokenizers give to the next token without an id. That is one
 * more than the highest id of an added token, but at least the number of the vocabulary's tokens.
 * In a vocabulary with unused ids the result may be in use, and tokenizer_json_add then refuses
 * it. */
int32_t tokenizer_json_next_id(const struct tokenizer_json *t);
bool tokenizer_json_is_added(const struct tokenizer_json *t, const char *text, size_t n);

void tokenizer_json_deinit(struct tokenizer_json *t);

/* Texts of tokens that end a turn in chat models.  A model may have several of them, and its files
 * often name only one as its EOS.  token_end_at returns the i-th text, or NULL after the last. */
const char *token_end_at(int i);
bool token_ends_turn(const char *text, size_t n);

/* Returns the id of a token's text, or -1 if there is no such token. Of equal texts the first is
 * found. */
int32_t tokenizer_json_find(const struct tokenizer_json *t, const char *text, size_t n);

#endif
