/* tokenizer_added.c - see tokenizer_added.h.
 *
 * There are few added tokens, and most begin with '<', which is rare in text.  Entries are sorted
 * by first byte and then by length, the longest first, so a byte that begins no token is skipped at
 * once. */
#include "bpe/tokenizer_added.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    const struct tokenizer_added *token;
    struct tokenizer_text text;
};

struct added_finder {
    struct entry *entries;
    size_t begin[257]; /* entries whose first byte is b: [begin[b], begin[b + 1]) */
};

static int entry_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->text.s[0] != y->text.s[0])
        return (uint8_t)x->text.s[0] < (uint8_t)y->text.s[0] ? -1 : 1;
    if (x->text.n != y->text.n)
        return x->text.n > y->text.n ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

struct added_finder *added_finder_create(const struct tokenizer_added *added,
                                         const struct tokenizer_text *text, size_t n,
                                         bool normalized)
{
    struct added_finder *f = xcalloc(1, sizeof *f);
    f->entries = xcalloc(n, sizeof *f->entries);
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (added[i].normalized == normalized && text[i].n > 0)
            f->entries[count++] = (struct entry){.token = &added[i], .text = text[i]};
    qsort(f->entries, count, sizeof *f->entries, entry_order);
    size_t at = 0;
    for (int b = 0; b < 256; b++) {
        f->begin[b] = at;
        while (at < count && (uint8_t)f->entries[at].text.s[0] == b)
            at++;
    }
    f->begin[256] = count;
    return f;
}

void added_finder_destroy(struct added_finder *f)
{
    if (f == NULL)
        return;
    free(f->entries);
    free(f);
}

bool added_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static size_t skip_space(const char *s, size_t n, size_t at)
{
    uint32_t c;
    for (size_t len; at < n; at += len) {
        len = utf8_decode(s + at, n - at, &c);
        if (len == 0 || !added_is_space(c))
            break;
    }
    return at;
}

static size_t skip_space_back(const char *s, size_t from, size_t at)
{
    while (at > from) {
        size_t p = at - 1;
        while (p > from && ((uint8_t)s[p] & 0xC0) == 0x80)
            p--;
        uint32_t c;
        if (utf8_decode(s + p, at - p, &c) == 0 || !added_is_space(c))
            break;
        at = p;
    }
    return at;
}

static bool begins_with(struct tokenizer_text s, const char *text)
{
    size_t n = strlen(text);
    return s.n >= n && memcmp(s.s, text, n) == 0;
}

static bool ends_with(struct tokenizer_text s, const char *text)
{
    size_t n = strlen(text);
    return s.n >= n && memcmp(s.s + s.n - n, text, n) == 0;
}

#define WIDE_BAR "\xef\xbd\x9c" /* U+FF5C, which DeepSeek's tokens use */

bool added_is_control(const struct tokenizer_added *a)
{
    bool begins = begins_with(a->text, "<|") || begins_with(a->text, "<" WIDE_BAR);
    bool ends = ends_with(a->text, "|>") || ends_with(a->text, WIDE_BAR ">");
    return a->special || (begins && ends);
}

static bool counts(const struct tokenizer_added *a, bool special, bool guarded)
{
    return (special || !a->special) && !(guarded && added_is_control(a));
}

/* Returns whether there is a guard in [from, to). */
static bool has_guard(const struct guards *g, size_t from, size_t to)
{
    size_t low = 0, high = g != NULL ? g->n : 0;
    while (low < high) { /* finds the first guard at or behind `from` */
        size_t middle = low + (high - low) / 2;
        if (g->at[middle] < from)
            low = middle + 1;
        else
            high = middle;
    }
    return g != NULL && low < g->n && g->at[low] < to;
}

/* Returns the token that begins at text[at], or NULL. */
static const struct entry *entry_at(const struct added_finder *f,
                                    const struct added_search *how, const char *text,
                                    size_t n_text, size_t at)
{
    const char *s = text + at;
    const size_t n = n_text - at, begin = how->at + at;
    const uint8_t b = (uint8_t)s[0];
    for (size_t i = f->begin[b]; i < f->begin[b + 1]; i++) {
        const struct entry *e = &f->entries[i];
        if (e->text.n <= n && memcmp(e->text.s, s, e->text.n) == 0 &&
            counts(e->token, how->special,
                   has_guard(how->guards, begin, begin + (how->inside ? e->text.n : 1))))
            return e;
    }
    return NULL;
}

size_t added_control_bytes(const struct added_finder *f, const char *s, size_t n)
{
    const uint8_t b = (uint8_t)s[0];
    for (size_t i = f->begin[b]; i < f->begin[b + 1]; i++) {
        const struct entry *e = &f->entries[i];
        if (added_is_control(e->token) && e->text.n <= n &&
            memcmp(e->text.s, s, e->text.n) == 0)
            return e->text.n;
    }
    return 0;
}

const struct tokenizer_added *added_find(const struct added_finder *f,
                                         const struct added_search *how, const char *s,
                                         size_t n, size_t from, size_t *begin, size_t *end)
{
    if (f->begin[256] == 0)
        return NULL;
    for (size_t i = from; i < n; i++) {
        if (f->begin[(uint8_t)s[i]] == f->begin[(uint8_t)s[i] + 1])
            continue;
        const struct entry *e = entry_at(f, how, s, n, i);
        if (e == NULL)
            continue;
        *begin = e->token->lstrip ? skip_space_back(s, from, i) : i;
        *end = e->token->rstrip ? skip_space(s, n, i + e->text.n) : i + e->text.n;
        return e->token;
    }
    return NULL;
}
