/* retoken.c - see retoken.h.
 *
 *     text      |------- remembered -------|---- rest ----|
 *     its ids   |a b c x y z|  (as generated)
 *     tokenized |a b c w v u t             |r s t         |     boundary: where both agree
 *     used      |a b c x y z|               r s t
 *
 * The rest is taken from the tokens of the whole text, not tokenized on its own: in some
 * tokenizers the first tokens of a text differ from those in its middle. If no token ends at the
 * boundary, retoken_encode uses only the text's own tokens, and retoken_continue tokenizes the rest
 * on its own. */
#include "api/retoken.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/json.h"

/* If the text at *at begins with these k bytes, moves *at behind them and returns true. Skips
 * guards in the text. */
static bool take(const char *text, size_t n, size_t *at, const char *bytes, size_t k)
{
    size_t i = *at;
    for (size_t b = 0; b < k; b++, i++) {
        while (i < n && (unsigned char)text[i] == HCACHE_GUARD)
            i++;
        if (i >= n || text[i] != bytes[b])
            return false;
    }
    *at = i;
    return true;
}

/* Returns how many tokens make up the first `want` bytes of the text; -1 if no token ends there. */
static int boundary(const struct hcache *h, const struct prompt_ids *p, const char *text,
                    size_t n, size_t want)
{
    size_t at = 0;
    for (int i = 0; i < p->n; i++) {
        size_t k;
        const char *bytes = hcache_token_bytes(h, p->ids[i], &k);
        if (at == want && i > 0)
            return i;
        if (bytes != NULL && take(text, n, &at, bytes, k))
            continue;
        /* The token may begin with the space that some tokenizers put before a text. */
        if (bytes != NULL && k > 0 && bytes[0] == ' ' &&
            take(text, n, &at, bytes + 1, k - 1))
            continue;
        if (at > 0)
            /* if `at` is 0, the token is the tokenizer's BOS, which the text does not contain */
            return -1;
    }
    return at == want ? p->n : -1;
}

/* Returns the place behind a token whose text begins at t[at]. */
static size_t behind(const struct hcache *h, const char *t, size_t n, size_t at, int32_t id)
{
    size_t k = 0, to = at;
    const char *bytes = hcache_token_bytes(h, id, &k);
    if (bytes == NULL || take(t, n, &to, bytes, k))
        return to;
    /* BOS is not in the text, and the first space may be the tokenizer's */
    if (at == 0)
        return k > 0 && bytes[0] == ' ' && take(t, n, &to, bytes + 1, k - 1) ? to : 0;
    return at + k; /* a normalizer has changed some bytes */
}

void retoken_before(const struct hcache *h, const struct prompt_text *text,
                    const struct prompt_ids *p, const size_t *bytes, int n, int *n_tokens)
{
    size_t end[HCACHE_MARKS], raw = 0, known = 0, at = 0;
    CHECK(n <= HCACHE_MARKS);
    for (int k = 0; k < n; k++) {
        for (; raw < text->n && known < bytes[k]; raw++)
            known += (unsigned char)text->text[raw] != HCACHE_GUARD;
        end[k] = raw;
    }
    for (int i = 0, k = 0; k < n; i++) {
        if (i < p->n)
            at = behind(h, text->text, text->n, at, p->ids[i]);
        for (; k < n && (i == p->n || at > end[k]); k++)
            n_tokens[k] = i;
    }
}

static int no_memory(size_t n_tokens, struct hcache_err *err)
{
    if (err != NULL) {
        err->code = -ENOMEM;
        snprintf(err->msg, sizeof err->msg, "no memory for %zu tokens", n_tokens);
    }
    return -ENOMEM;
}

/* Replaces the first `from` tokens by ids. Keeps the memory if they fit. */
static int use_remembered(struct prompt_ids *p, const int32_t *ids, int n_ids, int from,
                          struct hcache_err *err)
{
    size_t rest = (size_t)(p->n - from), n = (size_t)n_ids + rest;
    if (n > (size_t)p->n) {
        int32_t *all = mem_try_realloc(p->ids, (n + 1) * sizeof *all);
        if (all == NULL)
            return no_memory(n, err);
        p->ids = all;
    }
    memmove(p->ids + n_ids, p->ids + from, rest * sizeof *ids);
    memcpy(p->ids, ids, (size_t)n_ids * sizeof *ids);
    p->n = (int)n;
    return 0;
}

static int encode(const struct hcache *h, const struct prompt_text *text, int32_t **ids,
                  int *n, struct hcache_err *err)
{
    return hcache_encode(h, text->text, text->n, text->flags, ids, n, err);
}

/* Sets *begin and *end to the text without blanks at both ends. Returns whether something is left,
 * and is not the whole text. */
static bool trim(const char *text, size_t n, size_t *begin, size_t *end)
{
    static const char blanks[] = " \t\r\n";
    *begin = 0;
    *end = n;
    while (*begin < n && memchr(blanks, text[*begin], 4) != NULL)
        ++*begin;
    while (*end > *begin && memchr(blanks, text[*end - 1], 4) != NULL)
        --*end;
    size_t left = *end - *begin;
    return left > 0 && left < n;
}

/* Returns the salt under which the answers of this model are remembered, from malloc: the same text
 * has other tokens in another model. */
static char *answers_salt(const struct hcache *h, const struct answers *m, const char *salt)
{
    struct hcache_model_info info;
    if (m == NULL || !answers_are_of_models(m))
        return salt != NULL ? xstrdup(salt) : NULL;
    hcache_model_info(h, &info);
    return xasprintf("%s/%s", salt != NULL ? salt : "", info.fingerprint);
}

/* answers_find, among the answers of this model. */
static bool find_answer(const struct hcache *h, struct answers *m, const char *salt,
                        const struct prompt_text *text, size_t *n_found, int32_t **ids,
                        int *n_ids)
{
    char *own = answers_salt(h, m, salt);
    bool is_found = m != NULL &&
                    answers_find(m, own, text->text, text->n, n_found, ids, n_ids);
    free(own);
    return is_found;
}

int retoken_encode(const struct hcache *h, struct answers *m, const char *salt,
                   const struct prompt_text *text, struct prompt_ids *out, char *what,
                   struct hcache_err *err)
{
    int32_t *ids = NULL;
    int n_ids = 0;
    size_t n_found = 0;
    what[0] = 0;
    int rc = encode(h, text, &out->ids, &out->n, err);
    if (rc != 0 || !find_answer(h, m, salt, text, &n_found, &ids, &n_ids))
        return rc;
    int from = boundary(h, out, text->text, text->n, n_found), same = 0;
    while (same < n_ids && same < out->n && ids[same] == out->ids[same])
        same++;
    answers_count(m, from >= 0 || same == n_ids);
    if (from >= 0)
        rc = use_remembered(out, ids, n_ids, from, err);
    else if (same < n_ids)
        snprintf(what, 200, "retokenised at %d", same);
    free(ids);
    return rc;
}

/* Tokenizes the rest on its own, without the space that some tokenizers put before a text. */
static int encode_rest(const struct hcache *h, const struct prompt_text *text, size_t from,
                       struct prompt_ids *out, struct hcache_err *err)
{
    const char *rest = text->text + from;
    size_t k = 0, n = text->n - from;
    int rc = hcache_encode(h, rest, n, text->flags & ~(unsigned)HCACHE_ADD_SPECIAL,
                           &out->ids, &out->n, err);
    const char *first = rc == 0 && out->n > 0 ? hcache_token_bytes(h, out->ids[0], &k)
                                              : NULL;
    if (first != NULL && k == 1 && first[0] == ' ' && n > 0 && rest[0] != ' ')
        memmove(out->ids, out->ids + 1, (size_t)--out->n * sizeof *out->ids);
    return rc;
}

int retoken_continue(const struct hcache *h, const int32_t *ids, int n_ids, size_t n_known,
                     const struct prompt_text *text, struct prompt_ids *out,
                     struct hcache_err *err)
{
    int rc = encode(h, text, &out->ids, &out->n, err);
    int from = rc == 0 ? boundary(h, out, text->text, text->n, n_known) : 0;
    /* If a token reaches over the boundary, the rest is tokenized on its own. */
    if (rc == 0 && from < 0) {
        hcache_free(out->ids);
        rc = encode_rest(h, text, n_known, out, err);
        from = 0;
    }
    return rc == 0 ? use_remembered(out, ids, n_ids, from, err) : rc;
}

/* Returns the text as the client gets it, and will send it back: JSON has U+FFFD in place of
 * invalid UTF-8. */
static char *as_shown(const char *text, size_t n, size_t *n_shown)
{
    struct json *v = json_new_bytes(text, n);
    const char *a = json_string_of(v, n_shown);
    char *out = xmalloc(*n_shown + 1);
    memcpy(out, a, *n_shown + 1);
    json_free(v);
    return out;
}

/* Returns how many of the answer's first tokens were shown whole; special tokens between them,
 * which have no text, count. *n_bytes gets the size of their text. */
static int shown_tokens(const struct hcache *h, const struct hcache_result *r,
                        size_t *n_bytes)
{
    size_t at = 0, n;
    int best = 0, s = 0;
    *n_bytes = 0;
    for (int i = 0; i < r->n_tokens; i++) {
        if (s < r->n_special && r->special[s].at == at &&
            r->special[s].id == r->token_ids[i]) {
            s++;
            continue;
        }
        const char *bytes = hcache_token_bytes(h, r->token_ids[i], &n);
        if (bytes != NULL && (n > r->n_text - at || memcmp(bytes, r->text + at, n) != 0))
            break;
        at += bytes != NULL ? n : 0;
        if (at == r->n_text || ((unsigned char)r->text[at] & 0xc0) != 0x80) {
            best = i + 1; /* no character is cut after this token */
            *n_bytes = at;
        }
    }
    return best;
}

int retoken_marks(const struct hcache *h, const struct prompt_text *asked,
                  const struct hcache_result *answer, int n_prompt,
                  struct retoken_mark out[RETOKEN_MAX_MARKS])
{
    size_t n_bytes, n_shown, begin, end;
    if (answer->text == NULL || answer->n_tokens == 0)
        return 0;
    int n = shown_tokens(h, answer, &n_bytes);
    if (n == 0)
        return 0;
    char *shown = as_shown(answer->text, n_bytes, &n_shown);
    out[0].n_tokens = out[1].n_tokens = n_prompt + n;
    prompt_text_answer(h, asked, shown, n_shown, &out[0].text, &out[0].n_text);
    bool is_trimmed = trim(shown, n_shown, &begin, &end) && n_bytes == answer->n_text;
    if (is_trimmed)
        prompt_text_answer(h, asked, shown + begin, end - begin, &out[1].text,
                           &out[1].n_text);
    free(shown);
    return is_trimmed ? 2 : 1;
}

/* Remembers the tokens of the text that consists of the prompt and a[0, n). */
static void remember(const struct hcache *h, struct answers *m, const char *salt,
                     const struct prompt_text *asked, const char *a, size_t n,
                     const struct answers_ids *ids, const struct answers_of *of)
{
    struct answers_text text = {.text = asked->text, .n_text = asked->n};
    char *answer, *own = answers_salt(h, m, salt);
    prompt_text_answer(h, asked, a, n, &answer, &text.n_more);
    text.more = answer;
    answers_put(m, own, &text, ids, of);
    hcache_free(answer);
    free(own);
}

struct sha256 retoken_end_key(const struct hcache *h, int context, int step, int keep,
                              const int32_t *ids, int n, const char *state_salt)
{
    struct sha256 *keys = xmalloc(((size_t)n / 64 + 2) * sizeof *keys), end = {{0}};
    int n_keys = hcache_chunk_keys(h, context, step, keep, ids, n, state_salt,
                                   (void *)keys);
    /* The last key is that without the last token. If that token begins a chunk, the chunk before
     * it is full, and there is only the key with it. */
    bool begins = n % 64 == 1 && n_keys > 1;
    if (n_keys > 0)
        end = keys[begins ? n_keys - 2 : n_keys - 1];
    free(keys);
    return end;
}

/* Finds out which erasures concern the answer. */
static struct answers_of of_whom(const struct hcache *h, const struct retoken_owner *owner,
                                 const int32_t *prompt, int n_prompt,
                                 const struct hcache_result *r)
{
    const int c = r->truncation.context, s = r->truncation.step, k = r->truncation.keep;
    int n = n_prompt + r->n_tokens;
    int32_t *ids = xmalloc(((size_t)n + 1) * sizeof *ids);
    memcpy(ids, prompt, (size_t)n_prompt * sizeof *ids);
    memcpy(ids + n_prompt, r->token_ids, (size_t)r->n_tokens * sizeof *ids);
    const struct answers_of of = {
        .state_salt = owner->state_salt,
        .ttl_s = owner->ttl_s,
        .end = retoken_end_key(h, c, s, k, ids, n, owner->state_salt),
        .asked = retoken_end_key(h, c, s, k, ids, n_prompt, owner->state_salt)};
    free(ids);
    return of;
}

void retoken_remember(const struct hcache *h, struct answers *m,
                      const struct retoken_owner *owner, const struct prompt_text *asked,
                      const int32_t *prompt, int n_prompt,
                      const struct hcache_result *answer)
{
    size_t begin, end, n_shown, n_bytes = 0;
    int n = answer->text != NULL ? shown_tokens(h, answer, &n_bytes) : 0;
    /* A stop string or max_tokens may have cut the text inside a token. */
    if (n == 0 || n_bytes != answer->n_text)
        return;
    const struct answers_of of = of_whom(h, owner, prompt, n_prompt, answer);
    char *shown = as_shown(answer->text, answer->n_text, &n_shown);
    const struct answers_ids ids = {
        .prompt = prompt, .n_prompt = n_prompt, .answer = answer->token_ids, .n_answer = n};
    remember(h, m, owner->salt, asked, shown, n_shown, &ids, &of);
    if (trim(shown, n_shown, &begin, &end))
        remember(h, m, owner->salt, asked, shown + begin, end - begin, &ids, &of);
    free(shown);
}
