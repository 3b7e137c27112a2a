/* tokenizer_impl.h - what the tokenizer's files share; nobody else includes it. */
#ifndef MODEL_TOKENIZER_IMPL_H
#define MODEL_TOKENIZER_IMPL_H

#include "format/tokenizer_json.h"
#include "model/bpe.h"
#include "model/config.h"
#include "model/pretokenize.h"
#include "model/tokenizer.h"
#include "model/tokenizer_added.h"

/* How ids become bytes, compiled from the decoder steps: what each token stands for, and what is
 * dropped at the beginning of a text. */
struct token_bytes {
    struct tokenizer_text *of;   /* [n_ids]; s NULL: no token */
    char *block;                 /* owns the bytes */
    struct tokenizer_text strip; /* dropped up to strip_max times at the beginning */
    int32_t strip_max;
    struct tokenizer_text *first; /* Metaspace: [n_first], for the first token; else NULL */
    int32_t n_first;
};

struct tokenizer {
    struct tokenizer_json j;
    struct tokenizer_config cfg;
    struct pretokenizer *pre;
    struct bpe *bpe;
    struct added_finder *added_raw, *added_normalized;
    /* Of tokens that are looked for in normalized text, as they are written. */
    struct added_finder *added_written;
    struct tokenizer_text *added_text; /* [n_added], as they are looked for */
    char **added_owned;
    bool *special; /* [n_ids] */
    struct token_bytes bytes;
    int32_t bos_id, eos_id;
    int32_t
        n_listed; /* ids from here on belong to special tokens that a folder only names */
    size_t most_bytes; /* of a text, that one token can stand for; 0: no bound */
    bool loses_space;  /* beside added tokens, in any amount: most_bytes is of the rest */
};

/* tokenizer_guard.c: */
#define GUARD 0xFF
/* Takes the guards out of a text: *out (the caller frees it) has none; g->at is the
 * caller's, too. */
/* False where there is no memory. */
bool guards_take(const char *text, size_t n, struct guards *g, char **out, size_t *n_out);
/* Normalizes s[0, n), which stands at s_at of the text that the guards count in; *moved: where
 * those of them that lie in s are in *out.  The caller frees *out and moved->at. */
int guards_normalize(const struct tokenizer *t, const struct guards *g, size_t s_at,
                     const char *s, size_t n, struct guards *moved, char **out,
                     size_t *n_out, struct err *err);

/* Fills most_bytes and loses_space; all else is there. */
void tokenizer_measure(struct tokenizer *t);

int token_bytes_init(struct token_bytes *b, const struct tokenizer_json *t,
                     struct err *err);
void token_bytes_deinit(struct token_bytes *b);

/* s with every occurrence of the pattern replaced; the caller frees it. pattern->n > 0. */
/* The caller frees it.  get: xmalloc, or mem_try, and then NULL where that gives nothing. */
char *tokenizer_replace(void *(*get)(size_t n), const char *s, size_t n,
                        const struct tokenizer_text *pattern,
                        const struct tokenizer_text *with, size_t *n_out);

#endif
