/* vocab.c - see vocab.h. */
#include "grammar/vocab.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/utf8.h"

struct token {
    const char *bytes;
    uint32_t n;
    int32_t id;
    int chars; /* characters of a plain token; -1: the token is not plain */
};

/* Returns the characters of a token; -1: it is not plain. Numbers of characters fit a byte. */
static int plain_chars(const char *s, size_t n)
{
    int chars = 0;
    if (n >= 255)
        return -1;
    for (size_t i = 0; i < n; chars++) {
        uint32_t cp = 0;
        size_t len = utf8_decode(s + i, n - i, &cp);
        if (len == 0 || cp < 0x20 || cp == '"' || cp == '\\')
            return -1;
        i += len;
    }
    return chars;
}

/* 1: digits; 2 and 4: a to f, 3 and 5: other letters; 6 to 27: one of " " "-" "_" "." "/" ":" ","
 * ";" "@" "+=" "#" "$" "%&" "*" "?!" "()" "[]{}" "<>" "|" "~^`" "'" and U+007F; 28 to 30: the first
 * byte of a character of 2, 3 and 4 bytes. */
const uint8_t char_class[256] = {
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  6,  20, 0,  16, 17, 18, 18, 26, 21, 21, 19, 15,
    12, 7,  9,  10, 1,  1,  1,  1,  1,  1,  1,  1,  1,  1,  11, 13, 23, 15, 23, 20, 14, 4,
    4,  4,  4,  4,  4,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,  5,
    5,  5,  5,  22, 0,  22, 25, 8,  25, 2,  2,  2,  2,  2,  2,  3,  3,  3,  3,  3,  3,  3,
    3,  3,  3,  3,  3,  3,  3,  3,  3,  3,  3,  3,  3,  22, 24, 22, 25, 27, 0,  0,  0,  0,
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  28, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 28, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 30, 30,
    30, 30, 30, 0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
};

static int by_bytes(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    int c = memcmp(x->bytes, y->bytes, MIN(x->n, y->n));
    if (c != 0)
        return c;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_chars(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    return x->chars != y->chars ? (x->chars > y->chars ? -1 : 1) : x->id < y->id ? -1 : 1;
}

/* Makes the trie of n sorted tokens. */
static bool trie_make(struct trie *t, const struct token *tokens, size_t n)
{
    size_t most = 1;
    for (size_t i = 0; i < n; i++) {
        most += tokens[i].n;
        t->max_depth = MAX(t->max_depth, (int)tokens[i].n);
    }
    struct trie_node *at = mem_try_calloc(most, sizeof *at);
    uint32_t *path = mem_try_calloc((size_t)t->max_depth + 1, sizeof *path);
    t->ids = mem_try_calloc(MAX(n, (size_t)1), sizeof *t->ids);
    uint32_t n_nodes = 0, depth = 0;
    if (at == NULL || path == NULL || t->ids == NULL) {
        free(at);
        free(path);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const struct token *k = &tokens[i], *last = i > 0 ? k - 1 : k;
        uint32_t same = 0;
        while (i > 0 && same < MIN(k->n, last->n) && k->bytes[same] == last->bytes[same])
            same++;
        for (; depth > same; depth--)
            at[path[depth]].end = n_nodes;
        for (; depth < k->n; n_nodes++) {
            at[n_nodes].byte = (uint8_t)k->bytes[depth];
            at[n_nodes].tok = t->n_ids;
            path[++depth] = n_nodes;
            at[n_nodes].depth = (uint16_t)depth;
        }
        int chars = 0;
        uint32_t below = 0;
        for (uint32_t d = depth; d > 0; d--) {
            struct trie_node *x = &at[path[d]];
            x->chars = (uint8_t)MIN(MAX(x->chars, chars), 255);
            x->below |= below;
            chars += (k->bytes[d - 1] & 0xC0) != 0x80;
            below |= chars_of_byte((uint8_t)k->bytes[d - 1]);
        }
        t->ids[t->n_ids++] = k->id;
    }
    for (; depth > 0; depth--)
        at[path[depth]].end = n_nodes;
    at[n_nodes].tok = t->n_ids;
    free(path);
    struct trie_node *fit = mem_try_realloc(at, (n_nodes + 1) * sizeof *at);
    t->at = fit != NULL ? fit : at;
    t->n = n_nodes;
    return true;
}

/* --- tokens inside a string --------------------------------------------------------- */

static bool is_hex(char c, bool lower)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ||
           (!lower && c >= 'A' && c <= 'F');
}

/* Returns how many bytes of s an escape has, with its backslash. 0: it is not one. n + 1 or more:
 * it goes on behind s. */
static size_t escape_length(const char *s, size_t n, int escapes)
{
    if (n < 2)
        return 2;
    if (s[1] != 'u')
        return strchr(escapes == ESCAPES_ALL ? "\"\\/bfnrt" : "\"\\bfnrt", s[1]) != NULL &&
                       s[1] != 0
                   ? 2
                   : 0;
    for (size_t i = 2; i < MIN(n, (size_t)6); i++)
        if (!is_hex(s[i], escapes == ESCAPES_SHORT))
            return 0;
    if (escapes == ESCAPES_SHORT) { /* a control character without a shorter escape */
        if ((n > 2 && s[2] != '0') || (n > 3 && s[3] != '0') ||
            (n > 4 && s[4] != '0' && s[4] != '1'))
            return 0;
        return n > 5 && s[4] == '0' && strchr("89acd", s[5]) != NULL ? 0 : 6;
    }
    bool surrogate = n > 3 && (s[2] | 0x20) == 'd' && s[3] >= '8';
    if (!surrogate)
        return 6;
    if (strchr("89abAB", s[3]) == NULL) /* the second of a pair */
        return 0;
    if ((n > 6 && s[6] != '\\') || (n > 7 && s[7] != 'u') ||
        (n > 8 && (s[8] | 0x20) != 'd') || (n > 9 && strchr("cdefCDEF", s[9]) == NULL) ||
        (n > 10 && !is_hex(s[10], false)) || (n > 11 && !is_hex(s[11], false)))
        return 0;
    return 12;
}

/* The same of a character without an escape. */
static size_t char_length(const char *s, size_t n)
{
    uint8_t c = (uint8_t)s[0], second = n > 1 ? (uint8_t)s[1] : 0x80;
    size_t len = c < 0x80   ? 1
                 : c < 0xC2 ? 0
                 : c < 0xE0 ? 2
                 : c < 0xF0 ? 3
                 : c < 0xF5 ? 4
                            : 0;
    if ((c == 0xE0 && n > 1 && second < 0xA0) || (c == 0xED && second > 0x9F) ||
        (c == 0xF0 && n > 1 && second < 0x90) || (c == 0xF4 && second > 0x8F))
        return 0;
    for (size_t i = 1; i < MIN(n, len); i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    return len;
}

/* Returns the kind of a token inside a string. *chars: its characters before the quote, also one
 * that is not complete; *quote: where the quote is. */
static uint32_t kind_of(const char *s, size_t n, int escapes, int *chars, size_t *quote)
{
    *chars = 0;
    for (size_t i = 0; i < n; ++*chars) {
        if (s[i] == '"') {
            *quote = i;
            return BODY_CLOSES;
        }
        size_t len = s[i] == '\\' ? escape_length(s + i, n - i, escapes)
                                  : char_length(s + i, n - i);
        if ((uint8_t)s[i] < 0x20 || len == 0)
            return BODY_ENDS;
        i += len;
    }
    return BODY_INSIDE;
}

/* Sorts the tokens of `other` out. at: room for their number. */
static bool body_make(struct vocab *v, int escapes, struct token *at)
{
    struct vocab_body *body = &v->bodies[escapes];
    const struct trie *t = &v->other;
    uint32_t n = 0, n_all = MAX(t->n_ids, 1u);
    body->usable = true;
    body->kinds = mem_try_calloc(n_all, sizeof *body->kinds);
    body->chars = mem_try_calloc(n_all, sizeof *body->chars);
    body->inside = mem_try_calloc(v->n_words, sizeof *body->inside);
    body->first = mem_try_calloc(n_all + 1, sizeof *body->first);
    body->closing = mem_try_calloc(n_all, sizeof *body->closing);
    if (body->kinds == NULL || body->chars == NULL || body->inside == NULL ||
        body->first == NULL || body->closing == NULL)
        return false;
    for (uint32_t i = 0; i < t->n_ids; i++) {
        int32_t id = t->ids[i];
        size_t quote = 0, n_bytes = v->n_bytes[id];
        int chars;
        body->kinds[i] = kind_of(v->bytes[id], n_bytes, escapes, &chars, &quote);
        body->usable = body->usable && chars < 255;
        if (body->kinds[i] == BODY_ENDS)
            continue;
        body->chars[i] = (uint8_t)chars;
        body->max_chars = MAX(body->max_chars, chars);
        if (body->kinds[i] == BODY_INSIDE)
            mask_set(body->inside, id);
        else
            at[n++] = (struct token){.bytes = v->bytes[id] + quote + 1,
                                     .n = (uint32_t)(n_bytes - quote - 1),
                                     .id = (int32_t)i};
    }
    qsort(at, n, sizeof *at, by_bytes);
    uint32_t n_rests = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool same = n_rests > 0 && at[n_rests - 1].n == at[i].n &&
                    memcmp(at[n_rests - 1].bytes, at[i].bytes, at[i].n) == 0;
        body->closing[i] = (uint32_t)at[i].id;
        if (!same) {
            body->first[n_rests] = i;
            at[n_rests] = at[i];
            at[n_rests].id = (int32_t)n_rests;
            n_rests++;
        }
        body->kinds[body->closing[i]] = BODY_CLOSES + n_rests - 1;
    }
    body->first[n_rests] = n;
    body->n_behind = n_rests;
    return trie_make(&body->behind, at, n_rests);
}

/* Sets chars of the nodes of `other`. */
static bool count_plain(struct trie *t)
{
    uint8_t *path = mem_try_calloc((size_t)t->max_depth + 1, 1);
    for (uint32_t i = 0; path != NULL && i < t->n; i++) {
        struct trie_node *k = &t->at[i];
        int chars = path[k->depth - 1] + ((k->byte & 0xC0) != 0x80);
        bool plain = k->byte >= 0x20 && k->byte != '"' && k->byte != '\\';
        plain = plain && path[k->depth - 1] != NOT_PLAIN;
        plain = plain && (k->depth > 1 || (k->byte & 0xC0) != 0x80);
        k->chars = plain ? (uint8_t)MIN(chars, NOT_PLAIN) : NOT_PLAIN;
        path[k->depth] = k->chars;
    }
    bool ok = path != NULL;
    free(path);
    return ok;
}

/* Makes the masks of plain tokens by length. */
static bool masks_make(struct vocab *v, struct token *plain, size_t n)
{
    v->all_plain = mem_try_calloc(v->n_words, sizeof *v->all_plain);
    v->short_plain = mem_try_calloc(v->n_words * VOCAB_SHORT, sizeof *v->short_plain);
    v->long_ids = mem_try_calloc(MAX(n, (size_t)1), sizeof *v->long_ids);
    v->long_chars = mem_try_calloc(MAX(n, (size_t)1), sizeof *v->long_chars);
    if (v->all_plain == NULL || v->short_plain == NULL || v->long_ids == NULL ||
        v->long_chars == NULL)
        return false;
    qsort(plain, n, sizeof *plain, by_chars);
    for (size_t i = 0; i < n; i++) {
        mask_set(v->all_plain, plain[i].id);
        v->max_chars = MAX(v->max_chars, plain[i].chars);
        for (int c = plain[i].chars; c < VOCAB_SHORT; c++)
            mask_set(v->short_plain + (size_t)c * v->n_words, plain[i].id);
        if (plain[i].chars >= VOCAB_SHORT) {
            v->long_ids[v->n_long] = plain[i].id;
            v->long_chars[v->n_long++] = (uint8_t)MIN(plain[i].chars, 255);
        }
    }
    return true;
}

static int fill(struct vocab *v, struct token *tokens, vocab_bytes *bytes, void *arg)
{
    size_t n_plain = 0, n_other = 0;
    for (int32_t id = 0; id < v->n_tokens; id++) {
        size_t n = 0;
        bool special = false;
        const char *s = bytes(arg, id, &n, &special);
        if (special) {
            vocab_special(id, v->special[id]);
            s = v->special[id];
            n = VOCAB_SPECIAL_BYTES;
        }
        if (s == NULL || n == 0 || n > UINT16_MAX ||
            (!special && memchr(s, VOCAB_SPECIAL, n) != NULL))
            continue;
        v->bytes[id] = s;
        v->n_bytes[id] = (uint32_t)n;
        struct token k = {
            .bytes = s, .n = (uint32_t)n, .id = id, .chars = plain_chars(s, n)};
        if (k.chars >= 0)
            tokens[n_plain++] = k;
        else
            tokens[v->n_tokens - (int32_t)++n_other] = k;
    }
    struct token *others = tokens + v->n_tokens - n_other;
    qsort(tokens, n_plain, sizeof *tokens, by_bytes);
    qsort(others, n_other, sizeof *others, by_bytes);
    bool ok = trie_make(&v->plain, tokens, n_plain) &&
              trie_make(&v->other, others, n_other) && masks_make(v, tokens, n_plain) &&
              count_plain(&v->other) && body_make(v, ESCAPES_ALL, others) &&
              body_make(v, ESCAPES_SHORT, others);
    return ok ? 0 : -ENOMEM;
}

int vocab_create(struct vocab **out, int32_t n_tokens, vocab_bytes *bytes, void *arg,
                 struct err *err)
{
    struct vocab *v = mem_try_calloc(1, sizeof *v);
    size_t n = (size_t)MAX(n_tokens, 1);
    struct token *tokens = mem_try_calloc(n, sizeof *tokens);
    int rc = v == NULL || tokens == NULL ? -ENOMEM : 0;
    *out = NULL;
    if (rc == 0) {
        v->n_tokens = n_tokens;
        v->n_words = (n + 31) / 32;
        v->bytes = mem_try_calloc(n, sizeof *v->bytes);
        v->n_bytes = mem_try_calloc(n, sizeof *v->n_bytes);
        v->special = mem_try_calloc(n, sizeof *v->special);
        bool ok = v->bytes != NULL && v->n_bytes != NULL && v->special != NULL;
        rc = ok ? fill(v, tokens, bytes, arg) : -ENOMEM;
    }
    free(tokens);
    if (rc != 0) {
        vocab_destroy(v);
        return err_set(err, rc, "no memory for the vocabulary's tries");
    }
    *out = v;
    return 0;
}

void vocab_destroy(struct vocab *v)
{
    if (v == NULL)
        return;
    free(v->plain.at);
    free(v->plain.ids);
    free(v->other.at);
    free(v->other.ids);
    for (int i = 0; i < 3; i++) {
        struct vocab_body *body = &v->bodies[i];
        free(body->kinds);
        free(body->chars);
        free(body->inside);
        free(body->behind.at);
        free(body->behind.ids);
        free(body->first);
        free(body->closing);
    }
    free(v->all_plain);
    free(v->short_plain);
    free(v->long_ids);
    free(v->long_chars);
    free(v->bytes);
    free(v->n_bytes);
    free(v->special);
    free(v);
}
