/* bpe.h - byte pair encoding of one piece of text to token ids.
 *
 * A piece begins as a list of symbols.  Byte-level vocabularies begin with bytes;
 * SentencePiece-style ones begin with characters, and a character that the vocabulary lacks becomes
 * its bytes, if they are tokens.  Then the adjacent pair of the lowest rank is merged, the leftmost
 * first, until no pair has a rank.  If the vocabulary has scores instead of merges, the pair whose
 * joined text is the token with the best score is merged first.  Pairs wait in a heap, so a piece
 * of n symbols takes O(n log n).
 *
 * If merging a piece ends in the one token that spells the piece, later pieces with this text are
 * looked up instead of merged.  One relaxed atomic byte per token remembers this.  These bytes are
 * the only mutable state.  A byte's value is a pure function of the vocabulary, so threads may race
 * on it.  Measured on English, in one run on a busy machine: 12.8 instead of 6.0 MB/s with Qwen3's
 * tokenizer, 16.6 instead of 6.8 with GPT-2's.  Cutting SentencePiece text into words (bpe.c) gives
 * another factor of 6. */
#ifndef BPE_BPE_H
#define BPE_BPE_H

#include "base/err.h"
#include "bpe/pretokenize.h"
#include "bpe/tokenizer_json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bpe;

/* Makes a bpe from the vocabulary and merges of t. byte_level: the vocabulary is written in the
 * alphabet of bpe_bytes.h. The strings of t are borrowed and must outlive the bpe. */
struct bpe *bpe_create(const struct tokenizer_json *t, bool byte_level);
void bpe_destroy(struct bpe *b); /* NULL is allowed */
/* Returns whether each byte has a token, so that all text becomes tokens. */
bool bpe_has_all_bytes(const struct bpe *b);

/* A growing list of ids.  If there is no memory for an id, it is left out and `failed` is set
 * permanently. */
struct id_list {
    int32_t *ids;
    size_t n, cap;
    bool failed;
};
void id_list_push(struct id_list *l, int32_t id);
void id_list_deinit(struct id_list *l);

/* Scratch memory of one encoding call; zero it before its first use. The call ends with its first
 * error. */
struct bpe_work {
    void *symbols;
    size_t symbols_cap;
    uint64_t *heap;
    size_t n_heap, heap_cap;
    bool failed; /* there was no memory for the heap */
};
void bpe_work_deinit(struct bpe_work *w);

/* Appends the ids of one piece: n >= 1 bytes of valid UTF-8, or any bytes for a byte-level
 * vocabulary.  Text that the vocabulary lacks becomes the unknown token, or is dropped if there is
 * none, as in Hugging Face's tokenizers.  -ENOMEM: no memory for the piece. */
int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *piece, size_t n,
               struct id_list *out, struct err *err);
/* Cuts a text (pretokenize_each) and appends the ids of its pieces. */
int bpe_encode_text(const struct bpe *b, const struct pretokenizer *p, const char *text,
                    size_t n, bool at_start, struct bpe_work *w, struct pieces *pieces,
                    struct id_list *out, struct err *err);

#endif
