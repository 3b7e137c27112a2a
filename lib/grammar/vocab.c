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
        int below = 0;
        for (uint32_t d = depth; d > 0; d--) {
            at[path[d]].max_chars = (uint8_t)MIN(MAX(at[path[d]].max_chars, below), 255);
            below += (k->bytes[d - 1] & 0xC0) != 0x80;
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
              trie_make(&v->other, others, n_other) && masks_make(v, tokens, n_plain);
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
    free(v->all_plain);
    free(v->short_plain);
    free(v->long_ids);
    free(v->long_chars);
    free(v->bytes);
    free(v->n_bytes);
    free(v->special);
    free(v);
}
