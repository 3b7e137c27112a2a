/* tokenizer.h - text to token ids and back, exactly as the model's reference tokenizer does
 * it.
 *
 * A tokenizer comes from a GGUF file's metadata, or from a model's folder: tokenizer.json, else
 * vocab.json + merges.txt (GPT-2 and OPT style; GPT-2's own encoder.json + vocab.bpe count too),
 * and tokenizer_config.json.  Two kinds of BPE are known: byte-level (GPT-2, Llama-3, Qwen) and
 * SentencePiece-style with byte fallback (Llama-2, Mistral).  What would change ids and is
 * not understood is refused at open, by name.
 *
 *     text -> added tokens cut out -> normalizer -> pre-tokenizer -> BPE -> template -> ids
 *
 * Text is bytes, and must be valid UTF-8.  Decoded text is bytes too: a model may emit part
 * of a character or an invalid one, and decoding never hides that.
 *
 * A tokenizer is immutable once open: any number of threads may use it.  A tokenizer_stream
 * belongs to one thread at a time.  No function here prints or keeps what it was given. */
#ifndef MODEL_TOKENIZER_H
#define MODEL_TOKENIZER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Messages name the file and the field.  -ENOENT where the source has no tokenizer. */
int tokenizer_open(struct tokenizer **out, const char *source, struct err *err);
void tokenizer_close(struct tokenizer *t); /* NULL is allowed */

/* --- encode and decode -------------------------------------------------------------- */

enum {
    /* Put the tokens around the text that the model expects (BOS), as the tokenizer's
     * template says. */
    TOKENIZER_ADD_SPECIAL = 1,
    /* Read "<|eot_id|>" in the text as the special token.  Never for text that a user
     * supplies: without this flag it is encoded as the characters it consists of. */
    TOKENIZER_PARSE_SPECIAL = 2,
    /* The text has guards: see tokenizer_guard. */
    TOKENIZER_GUARDED = 4,
};

/* --- text of users within text of templates ----------------------------------------- */

/* A prompt mixes a template's text, whose special tokens are meant, with users' text, whose
 * special tokens are not: "<|im_start|>system" in a message would else begin a new one.  A
 * guard is a byte 0xFF, which no UTF-8 contains.  It stands before every place where a control
 * token begins that takes bytes of the user's, and says that none begins there.  Control tokens
 * are the special ones, and added ones written as "<|...|>": some models have markers of roles
 * that are not special.  Text without such a place has no guards and stays as it is. */
/* Puts guards into *text (from malloc; it may move; a final zero is not counted in *n).  Bit i
 * of foreign is set where byte i is the user's, and it has 8 bytes more than needed; NULL: all
 * are.  -ENOMEM: the text is as it was. */
int tokenizer_guard(const struct tokenizer *t, char **text, size_t *n,
                    const uint8_t *foreign, struct err *err);

/* *ids (the caller frees it) and *n_ids.  ERR_FORMAT where the text is not valid UTF-8; err
 * names the offset of the first bad byte. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                     int32_t **ids, size_t *n_ids, struct err *err);

/* Returns the fewest ids that the text (with or without guards) can have, found by
 * its size and without encoding it; 0 where its size says nothing.  It never returns
 * more than tokenizer_encode gives. */
size_t tokenizer_least_count(const struct tokenizer *t, const char *text, size_t n);

/* *text (the caller frees it; a final zero is not counted in *n_text).  With skip_special,
 * special tokens give no text.  ERR_FORMAT where an id is negative or has no token. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                     bool skip_special, char **text, size_t *n_text, struct err *err);

/* --- decode, token by token --------------------------------------------------------- */

/* The concatenation of what a stream returns is what tokenizer_decode returns, whatever the
 * split; no piece ends inside a character that the next token may complete. */
struct tokenizer_stream;

struct tokenizer_stream *tokenizer_stream_create(const struct tokenizer *t,
                                                 bool skip_special);
void tokenizer_stream_destroy(struct tokenizer_stream *s); /* NULL is allowed */

/* *text is owned by the stream, ends with a zero, and is valid until the next call; *n may
 * be 0. */
int tokenizer_stream_push(struct tokenizer_stream *s, int32_t id, const char **text,
                          size_t *n, struct err *err);
/* What was held back: an unfinished character, or nothing. The stream can be used anew. */
void tokenizer_stream_finish(struct tokenizer_stream *s, const char **text, size_t *n);

/* --- looking things up -------------------------------------------------------------- */

int32_t
tokenizer_size(const struct tokenizer *t); /* highest id + 1; ids between may be unused */
/* Returns the highest id + 1 of the tokens that have one in the tokenizer's files.  From there to
 * tokenizer_size are special tokens that a folder names without an id, as `pad_token`.  A model
 * often has no embedding for them, and needs none as long as no text has them. */
int32_t tokenizer_n_listed(const struct tokenizer *t);
/* Returns ERR_USAGE, and names the token, where an id of the list has no row in a model's n_rows
 * embeddings.  The ids are tokenizer_encode's. */
int tokenizer_check_rows(const struct tokenizer *t, const int32_t *ids, size_t n,
                         int32_t n_rows, struct err *err);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: none */
int32_t
tokenizer_eos(const struct tokenizer *t); /* -1: none; the config may name further ones */

/* The id of a token by its text as the tokenizer's file writes it ("<|im_end|>", "▁the");
 * -1: there is none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *token);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* The bytes that the token stands for inside a text; NULL where the id has no token.  They
 * belong to the tokenizer. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n);

/* From tokenizer_config.json (or chat_template.jinja); NULL where the model has none. */
const char *tokenizer_chat_template(const struct tokenizer *t);

#endif
