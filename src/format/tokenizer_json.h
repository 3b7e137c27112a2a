/* tokenizer_json.h - what a tokenizer's files say, as plain data.
 *
 * tokenizer.json (Hugging Face `tokenizers`), or the older pair vocab.json + merges.txt,
 * becomes one struct: a vocabulary, a ranked list of merges, added tokens, and short typed
 * lists of the steps around them.  Nested Sequences are flattened.  This module does not
 * tokenize: model/tokenizer does.
 *
 * Only BPE models are known.  A step, an option or a value that would change ids and is not listed
 * below is refused with ERR_UNSUPPORTED and its name.  `truncation` and `padding` are passed over,
 * as transformers does unless a call asks for them (tried with 5.23: of a file that truncates to 5
 * tokens and pads to 50 it gave all 27); the bare tokenizers library (0.23) obeys them.
 *
 * After a successful parse:
 *   1. every id lies in [0, n_ids) and names one token; ids may be unused;
 *   2. every merge names three tokens of the vocabulary, and joined = left + right as text;
 *   3. every string is valid UTF-8. */
#ifndef FORMAT_TOKENIZER_JSON_H
#define FORMAT_TOKENIZER_JSON_H

#include "base/err.h"
#include "base/strmap.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TOKENIZER_MAX_STEPS = 16,
    TOKENIZER_MAX_TEMPLATE = 16,
    TOKENIZER_MAX_ID = (1 << 22) - 1,
};

/* n bytes and a final zero; s NULL: absent. Owned by the struct tokenizer_json. */
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
    bool lstrip, rstrip; /* swallows the white space before, behind */
    bool normalized;     /* looked for behind the normalizer, not before */
    bool in_vocab;       /* the model's own vocabulary has it, too */
};

enum normalizer_kind {
    NORMALIZER_PREPEND, /* text */
    NORMALIZER_REPLACE, /* pattern -> text */
    NORMALIZER_NFC,
    NORMALIZER_NFD,
    NORMALIZER_NFKC,
    NORMALIZER_NFKD,
};

struct normalizer_step {
    enum normalizer_kind kind;
    struct tokenizer_text pattern, text;
};

enum pretokenizer_kind {
    PRETOKENIZER_SPLIT,       /* pattern, is_regex, behavior, invert */
    PRETOKENIZER_BYTE_LEVEL,  /* add_prefix_space, use_regex */
    PRETOKENIZER_METASPACE,   /* text, prepend, split */
    PRETOKENIZER_DIGITS,      /* individual */
    PRETOKENIZER_PUNCTUATION, /* behavior */
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
    PREPEND_FIRST, /* only at the very beginning of the text */
    PREPEND_NEVER,
};

struct pretokenizer_step {
    enum pretokenizer_kind kind;
    struct tokenizer_text pattern;
    bool is_regex, invert;
    enum split_behavior behavior;
    bool add_prefix_space, use_regex; /* BYTE_LEVEL */
    struct tokenizer_text text;       /* METASPACE: the replacement of a space */
    enum prepend_scheme prepend;
    bool split;
    bool individual; /* DIGITS */
};

enum decoder_kind {
    DECODER_REPLACE, /* pattern -> text */
    DECODER_BYTE_FALLBACK,
    DECODER_FUSE,
    DECODER_STRIP, /* text, start, stop */
    DECODER_BYTE_LEVEL,
    DECODER_METASPACE, /* text, prepend */
};

struct decoder_step {
    enum decoder_kind kind;
    struct tokenizer_text pattern, text;
    int32_t start, stop;
    enum prepend_scheme prepend;
};

struct tokenizer_json {
    /* Vocabulary: the model's tokens and the added ones. */
    int32_t n_ids;
    struct tokenizer_text *tokens; /* [n_ids] */
    struct strmap by_text;
    size_t n_merges;
    struct tokenizer_merge *merges; /* in order of rank */
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk_id; /* -1: none */
    float *
        scores; /* [n_ids]: pairs are merged by them, and `merges` is empty; NULL: by rank */
    bool *
        reserved; /* [n_ids]: text never becomes these, nor is it looked for them; NULL: none */
    size_t n_added;
    struct tokenizer_added *added;

    /* Steps, in order. */
    int n_normalizers, n_pretokenizers, n_decoders;
    struct normalizer_step normalizers[TOKENIZER_MAX_STEPS];
    struct pretokenizer_step pretokenizers[TOKENIZER_MAX_STEPS];
    struct decoder_step decoders[TOKENIZER_MAX_STEPS];

    /* Ids around the text. */
    bool has_template;
    int n_prefix, n_suffix;
    int32_t prefix[TOKENIZER_MAX_TEMPLATE], suffix[TOKENIZER_MAX_TEMPLATE];

    /* Owns every string. */
    char **blocks;
    size_t n_blocks, block_used, block_cap;
};

/* The bytes are not kept; `file` is the name for messages. deinit also after an error. */
int tokenizer_json_parse(struct tokenizer_json *out, const void *bytes, size_t n,
                         const char *file, struct err *err);

/* The older pair, GPT-2's: byte-level with its regex, nothing added, no template. */
int tokenizer_json_parse_vocab(struct tokenizer_json *out, const void *vocab,
                               size_t n_vocab, const char *vocab_file, const void *merges,
                               size_t n_merges, const char *merges_file, struct err *err);

/* Makes `text` an added token with a's flags, as another file beside tokenizer.json lists it;
 * a's text is not kept.  A token that is known keeps its id.  A new one gets a->id, which must
 * be free: an id that is in use or leaves a gap behind the vocabulary is ERR_MISMATCH. */
int tokenizer_json_add(struct tokenizer_json *t, const struct tokenizer_added *a,
                       struct err *err);

/* Returns the id that the reference gives to the next token that has none: one more than the
 * highest added token's, but at least the number of the vocabulary's tokens.  Where the
 * vocabulary leaves out ids it may be in use, and tokenizer_json_add refuses it. */
int32_t tokenizer_json_next_id(const struct tokenizer_json *t);
bool tokenizer_json_is_added(const struct tokenizer_json *t, const char *text, size_t n);

void tokenizer_json_deinit(struct tokenizer_json *t);

/* -1 where there is no such token. */
int32_t tokenizer_json_find(const struct tokenizer_json *t, const char *text, size_t n);

#endif
