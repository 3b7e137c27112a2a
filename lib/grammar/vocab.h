/* vocab.h - a model's tokens as two tries over bytes, for masks (automaton.h).
 *
 * Most tokens consist of characters that a JSON string may contain without an escape. They are the
 * trie `plain`: inside a string all of them are allowed at once, without a walk. The others (with a
 * quote, a backslash, a control byte or part of a character) are the trie `other`.
 *
 * A token of `other` that follows a place inside a JSON string goes on inside it, closes it, or is
 * not allowed, whatever stands around the string. So such tokens are sorted out once, for each of
 * two sets of escapes (struct vocab_body). Those that close it differ in the bytes behind the
 * quote, of which there are few: the trie `behind`.
 *
 * A trie is an array of nodes in preorder. The subtree of node i is [i, at[i].end), and its tokens
 * are ids[at[i].tok .. at[at[i].end].tok).  The last node is a sentinel.
 *
 * A special token is no text. Its bytes are VOCAB_SPECIAL, which occurs in no text, and three bytes
 * of its id, so that a grammar can ask for it and no text allows it.
 *
 * Immutable after vocab_create. Tokens without bytes, and texts that contain that byte, are in no
 * trie. */
#ifndef GRAMMAR_VOCAB_H
#define GRAMMAR_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { VOCAB_SPECIAL = 0xFF, VOCAB_SPECIAL_BYTES = 4 };

/* Writes the bytes of a special token. */
static inline void vocab_special(int32_t id, char out[VOCAB_SPECIAL_BYTES])
{
    out[0] = (char)VOCAB_SPECIAL;
    out[1] = (char)(id >> 16);
    out[2] = (char)(id >> 8);
    out[3] = (char)id;
}

/* Sets of characters: a bit for each class. Few classes keep the sets small; a class is a character
 * or some that patterns seldom tell apart. */
enum {
    CHARS_PLAIN = (1 << 30) - 1
}; /* all that a JSON string may contain without an escape */

/* Returns the class of the character that begins with a byte; 0: none does. */
extern const uint8_t char_class[256]; /* 0: none */
static inline uint32_t chars_of_byte(uint8_t byte)
{
    return (uint32_t)((1ull << char_class[byte]) >> 1);
}

enum { NOT_PLAIN = 255 };

struct trie_node {
    uint32_t end;   /* first node behind the subtree */
    uint32_t tok;   /* index in ids of the first token of this node */
    uint32_t below; /* plain: the classes of the characters that begin below the node */
    uint16_t depth; /* bytes from the root, from 1 on */
    uint8_t byte;   /* last byte of the node's text */
    /* plain: most characters that begin between the node and a token below; other: characters of
     * the node's text, or NOT_PLAIN */
    uint8_t chars;
};

struct trie {
    struct trie_node *at; /* [n + 1] */
    int32_t *ids;
    uint32_t n, n_ids;
    int max_depth;
};

/* How escapes in a string are spelled: see docs/STRUCTURED.md. */
enum { ESCAPES_NONE, ESCAPES_ALL, ESCAPES_SHORT };

/* Kinds of tokens of `other` behind a place inside a string; from BODY_CLOSES on: they close it,
 * and the rest is a text of `behind`. */
enum { BODY_ENDS = 0, BODY_INSIDE = 1, BODY_CLOSES = 2 };

struct vocab_body {
    bool usable;        /* false: a token has more characters than a byte counts */
    uint32_t *kinds;    /* [other.n_ids] */
    uint8_t *chars;     /* [other.n_ids] characters up to the quote or the token's end */
    uint32_t *inside;   /* [n_words] the tokens that are BODY_INSIDE */
    struct trie behind; /* its ids are 0 to n_behind - 1 */
    uint32_t n_behind;
    /* the tokens with rest i are closing[first[i]] to closing[first[i + 1]], as indices of
     * other.ids */
    uint32_t *first, *closing;
    int max_chars;
};

enum { VOCAB_SHORT = 16 };

struct vocab {
    int32_t n_tokens; /* ids are below it */
    size_t n_words;   /* 32-bit words of a mask */
    struct trie plain, other;
    struct vocab_body bodies[3]; /* by ESCAPES_ALL or ESCAPES_SHORT */
    uint32_t *all_plain;         /* [n_words] every plain token */
    /* [VOCAB_SHORT][n_words] row i: the plain tokens of at most i characters */
    uint32_t *short_plain;
    /* plain tokens of more than VOCAB_SHORT - 1 characters, the longest first */
    int32_t *long_ids;
    uint8_t *long_chars;
    uint32_t n_long;
    int max_chars; /* characters of the longest plain token */
    /* [n_tokens] bytes of each token; NULL: the token is in no trie */
    const char **bytes;
    uint32_t *n_bytes;
    char (*special)[VOCAB_SPECIAL_BYTES]; /* [n_tokens] bytes of special tokens */
};

/* Returns the bytes of a token, which outlive the vocab, or NULL for a token that no form allows.
 * *special: it is a special token, and its bytes do not matter. */
typedef const char *vocab_bytes(void *arg, int32_t id, size_t *n, bool *special);

/* Makes the tries of tokens 0 to n_tokens - 1. -ENOMEM: no memory. */
int vocab_create(struct vocab **out, int32_t n_tokens, vocab_bytes *bytes, void *arg,
                 struct err *err);
void vocab_destroy(struct vocab *v); /* NULL is allowed */

static inline void mask_set(uint32_t *mask, int32_t id)
{
    mask[id >> 5] |= 1u << (id & 31);
}

static inline void mask_clear(uint32_t *mask, int32_t id)
{
    mask[id >> 5] &= ~(1u << (id & 31));
}

static inline bool mask_has(const uint32_t *mask, int32_t id)
{
    return mask[id >> 5] >> (id & 31) & 1;
}

#endif
