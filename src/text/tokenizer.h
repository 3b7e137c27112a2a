/* tokenizer.h - text to token ids and back, exactly as the model's reference tokenizer does it.
 *
 * A tokenizer comes from a GGUF file's metadata or from a model's folder: tokenizer.json, else
 * vocab.json + merges.txt (the style of GPT-2 and OPT; also GPT-2's own encoder.json + vocab.bpe),
 * and tokenizer_config.json.  Two kinds of BPE are supported: byte-level (GPT-2, Llama-3, Qwen) and
 * SentencePiece-style with byte fallback (Llama-2, Mistral).  A field that would change ids and is
 * not understood is refused at open, by name.
 *
 *     text -> added tokens cut out -> normalizer -> pre-tokenizer -> BPE -> template -> ids
 *
 * Text is bytes and must be valid UTF-8.  Decoded text is bytes, too: a model may emit part of a
 * character or an invalid one, and decoding never hides that.
 *
 * An open tokenizer is immutable: any number of threads may use it.  A tokenizer_stream belongs to
 * one thread at a time.  No function here prints its input or keeps it. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Opens a model's tokenizer; -ENOENT: it has none. Messages name the file and the field. */
int tokenizer_open(struct tokenizer **out, const char *source, struct err *err);
void tokenizer_close(struct tokenizer *t); /* NULL is allowed */

/* --- encode and decode -------------------------------------------------------------- */

enum {
    /* Puts the tokens that the model expects around the text (BOS), as the tokenizer's template
     * says. */
    TOKENIZER_ADD_SPECIAL = 1,
    /* Reads "<|eot_id|>" in the text as the special token.  Never use it for a user's text: without
     * this flag the token's characters are encoded. */
    TOKENIZER_PARSE_SPECIAL = 2,
    /* The text contains guards: see tokenizer_guard. */
    TOKENIZER_GUARDED = 4,
};

/* --- users' text inside a template's text ------------------------------------------- */

/* A prompt mixes text of a template, whose special tokens count, with users' text, whose special
 * tokens must not: "<|im_start|>system" in a message would otherwise begin a new message.  A guard
 * is a byte 0xFF, which never occurs in UTF-8.  A guard precedes each place where bytes of a user
 * would begin or be part of a control token, and says that no token begins there.  Control tokens
 * are the special tokens, and added tokens written as "<|...|>": some models have role markers that
 * are not special. Text without such a place gets no guards.
 *
 * Puts guards into *text, which is from malloc and may move; its final zero is not counted in *n.
 * Bit i of foreign is set if byte i is a user's; foreign has 8 bytes more than its bits need.
 * foreign NULL: all bytes are users'. -ENOMEM: the text is unchanged. */
int tokenizer_guard(const struct tokenizer *t, char **text, size_t *n,
                    const uint8_t *foreign, struct err *err);

/* Encodes text into *ids, which the caller frees.  ERR_FORMAT: the text is not valid UTF-8; err has
 * the offset of the first bad byte, without guards. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                     int32_t **ids, size_t *n_ids, struct err *err);

/* Returns a lower bound on the number of ids of a text (with or without guards), from its size and
 * without encoding it; 0 if the size gives no bound. */
size_t tokenizer_least_count(const struct tokenizer *t, const char *text, size_t n);

/* Decodes ids into *text, which the caller frees; its final zero is not counted in *n_text.  With
 * skip_special, special tokens give no text.  ERR_FORMAT: an id is negative or has no token. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                     bool skip_special, char **text, size_t *n_text, struct err *err);

/* --- decode, token by token --------------------------------------------------------- */

/* The concatenated results of a stream equal tokenizer_decode's text, however the ids are split.
 * No piece ends inside a character that the next token may complete. */
struct tokenizer_stream;

struct tokenizer_stream *tokenizer_stream_create(const struct tokenizer *t,
                                                 bool skip_special);
void tokenizer_stream_destroy(struct tokenizer_stream *s); /* NULL is allowed */

/* Adds one token. *text, of *n >= 0 bytes and a zero, is the stream's until the next call. */
int tokenizer_stream_push(struct tokenizer_stream *s, int32_t id, const char **text,
                          size_t *n, struct err *err);
/* Returns the text that was held back, an unfinished character or "". The stream can be reused. */
void tokenizer_stream_finish(struct tokenizer_stream *s, const char **text, size_t *n);

/* Opens the tokenizer of `source`, encodes the text and closes the tokenizer: a model_probe_ids
 * (model/model.h). */
int tokenizer_first_ids(const char *source, const char *text, size_t n_text, int32_t *ids,
                        int most);

/* --- looking things up -------------------------------------------------------------- */

/* Returns the highest id + 1. Lower ids may be unused. */
int32_t tokenizer_size(const struct tokenizer *t);
/* Returns the highest id + 1 of the tokens with an id in the tokenizer's files.  Ids from there to
 * tokenizer_size belong to special tokens that a folder names without an id, such as `pad_token`.
 * A model often has no embedding for them and needs none unless they occur in a text. */
int32_t tokenizer_n_listed(const struct tokenizer *t);
/* Returns 0, or ERR_USAGE with the first token whose id has no row among a model's n_rows
 * embeddings. The ids are tokenizer_encode's. */
int tokenizer_check_rows(const struct tokenizer *t, const int32_t *ids, size_t n,
                         int32_t n_rows, struct err *err);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: the tokenizer names no BOS */
/* Returns the EOS; -1: the tokenizer names none. The model's config may name more. */
int32_t tokenizer_eos(const struct tokenizer *t);

/* Lists the tokens that end an answer: the EOS, and added tokens whose texts end a turn in chat
 * models. Ids may be above the model's vocabulary. Returns how many there are, at most
 * TOKENIZER_MAX_ENDS. */
enum { TOKENIZER_MAX_ENDS = 32 };
int tokenizer_ends(const struct tokenizer *t, int32_t ids[TOKENIZER_MAX_ENDS]);
/* Returns the tokens that the model's files forbid in answers; *n is their number. They belong to
 * the tokenizer. A folder names them in generation_config.json (suppress_tokens). */
const int32_t *tokenizer_suppressed(const struct tokenizer *t, int *n);

/* Returns the id of a token from its text in the tokenizer's file ("<|im_end|>", "▁the"), or -1 if
 * no token has this text. */
int32_t tokenizer_find(const struct tokenizer *t, const char *token);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* Returns the longest special token of 3 to 79 bytes with which the text begins, and its size in
 * *len. Returns -1 if there is none, or if t is NULL. */
int32_t tokenizer_special_at(const struct tokenizer *t, const char *text, size_t n,
                             size_t *len);

/* Returns the bytes that the token stands for inside a text; NULL: the id has no token.  They
 * belong to the tokenizer. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n);

/* Returns the template of tokenizer_config.json or chat_template.jinja; NULL: the model has none.
 */
const char *tokenizer_chat_template(const struct tokenizer *t);
/* Replaces all templates of the model by this one, which is copied. */
void tokenizer_set_template(struct tokenizer *t, const char *source);
/* Returns the template named tool_use, which makes the prompts of requests with tools; NULL: the
 * model has none, and its one template makes all prompts. */
const char *tokenizer_tool_template(const struct tokenizer *t);
/* Returns the name that the metadata of a GGUF file gives to the model; NULL: none. */
const char *tokenizer_model_name(const struct tokenizer *t);
/* Returns the name of named token i ("pad_token"), with its text; NULL: there is none. */
const char *tokenizer_named(const struct tokenizer *t, size_t i, const char **text);

#endif
