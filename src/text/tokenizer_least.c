/* tokenizer_least.c - a lower bound on the number of tokens of a text, from its size alone.
 *
 * One token stands for at most as many bytes of BPE's input as the longest token has.  The steps
 * before BPE may shorten a text, each by a factor with a known bound.  If a step has no bound (a
 * pattern that is removed), there is no result.  If white space beside added tokens may vanish in
 * any amount, white space is not counted. */
#include "text/tokenizer_impl.h"

#include "base/minmax.h"
#include "base/utf8.h"

#include <string.h>

/* Returns the most bytes that a pattern matches; 0: no bound. */
static size_t most_matched(const struct normalizer_step *s)
{
    bool repeats = false;
    for (size_t i = 0; i < s->pattern.n; i++)
        repeats |= strchr("*+{", s->pattern.s[i]) != NULL;
    /* each character of a regular expression without repetition matches at most one of 4 bytes */
    return !s->is_regex ? s->pattern.n : repeats ? 0 : 4 * s->pattern.n;
}

/* Returns the bound on shrinking: of n bytes, at least n / bound reach BPE; 0: no bound. */
static size_t shrink_of_normalizer(const struct normalizer_step *s)
{
    switch (s->kind) {
    case NORMALIZER_PREPEND:
        return 1;
    case NORMALIZER_REPLACE:
        if (s->text.n == 0)
            return 0;
        return (most_matched(s) + s->text.n - 1) / s->text.n;
    case NORMALIZER_NFC:
    case NORMALIZER_NFD:
    case NORMALIZER_NFKC:
    case NORMALIZER_NFKD:
        /* In a decomposed form, each character stems from one character of at most 4 bytes. In a
         * composed form, a character of 2 bytes or more stems from at most 4 characters. */
        return 8;
    }
    return 0;
}

static bool removes_text(const struct pretokenizer_step *s)
{
    return (s->kind == PRETOKENIZER_SPLIT || s->kind == PRETOKENIZER_PUNCTUATION) &&
           s->behavior == SPLIT_REMOVED;
}

/* Returns whether a run of unknown characters of any length may be one token, or none. */
static bool swallows_unknown(const struct tokenizer *t)
{
    return !bpe_has_all_bytes(t->bpe) && (t->j.fuse_unk || t->j.unk_id < 0);
}

static size_t longest_token(const struct tokenizer *t)
{
    const struct tokenizer_json *j = &t->j;
    size_t longest = 4; /* an unknown character is one token */
    for (int32_t i = 0; i < j->n_ids; i++)
        longest = MAX(j->tokens[i].n, longest);
    for (size_t i = 0; i < j->n_added; i++)
        longest = MAX(t->added_text[i].n, longest);
    return longest;
}

/* Returns the most bytes that one token stands for; 0: no bound. */
static size_t most_bytes_of_token(const struct tokenizer *t)
{
    const struct tokenizer_json *j = &t->j;
    size_t most = swallows_unknown(t) ? 0 : longest_token(t);
    for (int i = 0; i < j->n_normalizers; i++)
        most *= shrink_of_normalizer(&j->normalizers[i]);
    for (int i = 0; i < j->n_pretokenizers; i++)
        most *= removes_text(&j->pretokenizers[i]) ? 0 : 1;
    return most;
}

/* Returns the number of bytes that become tokens; guards do not. */
static size_t bytes_of_text(const char *s, size_t n, bool with_space)
{
    size_t count = 0;
    uint32_t c;
    for (size_t i = 0, len; i < n; i += len) {
        len = 1;
        if ((unsigned char)s[i] == GUARD)
            continue;
        if (!with_space) {
            len = utf8_decode(s + i, n - i, &c);
            if (len == 0)
                return 0; /* invalid text is refused, not encoded */
        }
        count += !with_space && added_is_space(c) ? 0 : len;
    }
    return count;
}

void tokenizer_measure(struct tokenizer *t)
{
    const struct tokenizer_json *j = &t->j;
    t->most_bytes = most_bytes_of_token(t);
    t->loses_space = false;
    for (size_t i = 0; i < j->n_added; i++)
        t->loses_space |= j->added[i].lstrip || j->added[i].rstrip;
}

size_t tokenizer_least_count(const struct tokenizer *t, const char *text, size_t n)
{
    if (t->most_bytes == 0)
        return 0;
    size_t counted = bytes_of_text(text, n, !t->loses_space);
    return counted / t->most_bytes + (counted % t->most_bytes != 0);
}
