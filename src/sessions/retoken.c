/* retoken.c - see retoken.h.
 *
 *     text      |------- remembered -------|---- rest ----|
 *     its ids   |a b c x y z|  (as generated)
 *     tokenized |a b c w v u t             |r s t         |     boundary: where both agree
 *     used      |a b c x y z|               r s t
 *
 * The rest is cut out of the tokens of the whole text, not tokenized by itself: the first tokens of a
 * text differ from those of its middle in some tokenizers.  Where no token ends at the boundary the
 * text's own tokens are used, all of them. */
#include "sessions/retoken.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/textbuf.h"
#include "format/json.h"

/* How many tokens the first `want` bytes of the text are; -1 where none ends there. */
static int boundary(const struct hcache *h, const struct prompt_ids *p, const char *text,
                    size_t n, size_t want)
{
    size_t at = 0;
    for (int i = 0; i < p->n; i++) {
        size_t k;
        const char *bytes = hcache_token_bytes(h, p->ids[i], &k);
        if (at == want && i > 0)
            return i;
        if (bytes != NULL && k <= n - at && memcmp(bytes, text + at, k) == 0)
            at += k;
        else if (bytes != NULL && k > 0 && bytes[0] == ' ' && k - 1 <= n - at &&
                 memcmp(bytes + 1, text + at, k - 1) == 0)
            at += k - 1; /* the space that some tokenizers put before a text */
        else if (at > 0)
            return -1; /* else it is what the tokenizer puts before a text: BOS */
    }
    return at == want ? p->n : -1;
}

static void use_remembered(struct prompt_ids *p, const int32_t *ids, int n_ids, int from)
{
    int rest = p->n - from;
    int32_t *all = xmalloc(((size_t)n_ids + (size_t)rest + 1) * sizeof *all);
    memcpy(all, ids, (size_t)n_ids * sizeof *all);
    memcpy(all + n_ids, p->ids + from, (size_t)rest * sizeof *all);
    hcache_free(p->ids);
    p->ids = all;
    p->n = n_ids + rest;
}

static int encode(const struct hcache *h, const struct prompt_text *text, int32_t **ids,
                  int *n, struct hcache_err *err)
{
    return hcache_encode(h, text->text, text->n, text->flags, ids, n, err);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
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
    if (rc != 0 || !answers_find(m, salt, text->text, text->n, &n_found, &ids, &n_ids))
        return rc;
    int from = boundary(h, out, text->text, text->n, n_found), same = 0;
    while (same < n_ids && same < out->n && ids[same] == out->ids[same])
        same++;
    answers_count(m, from >= 0 || same == n_ids);
    if (from >= 0)
        use_remembered(out, ids, n_ids, from);
    else if (same < n_ids)
        snprintf(what, 200, "retokenised at %d", same);
    free(ids);
    return 0;
}

/* Some tokenizers put a space before a text: here it is none. */
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
    if (rc == 0 && from < 0) { /* a token reaches over the boundary: the rest by itself */
        hcache_free(out->ids);
        rc = encode_rest(h, text, n_known, out, err);
        from = 0;
    }
    if (rc == 0)
        use_remembered(out, ids, n_ids, from);
    return rc;
}

/* As it goes out, and so will come back: JSON has U+FFFD in place of what is no UTF-8. */
static char *as_shown(const char *text, size_t n, size_t *n_shown)
{
    struct json *o = json_new_object();
    json_put_bytes(o, "a", text, n);
    const char *a = json_string_of(json_member(o, "a"), n_shown);
    char *out = xmalloc(*n_shown + 1);
    memcpy(out, a, *n_shown + 1);
    json_free(o);
    return out;
}

/* How many tokens of the answer were shown whole, and in how many bytes. */
static int shown_tokens(const struct hcache *h, const struct hcache_result *r,
                        size_t *n_bytes)
{
    size_t at = 0, n;
    int best = 0;
    *n_bytes = 0;
    for (int i = 0; i < r->n_tokens; i++) {
        const char *bytes = hcache_token_bytes(h, r->token_ids[i], &n);
        if (bytes != NULL && (n > r->n_text - at || memcmp(bytes, r->text + at, n) != 0))
            break;
        at += bytes != NULL ? n : 0;
        if (at == r->n_text || ((unsigned char)r->text[at] & 0xc0) != 0x80) {
            best = i + 1; /* no character is cut here */
            *n_bytes = at;
        }
    }
    return best;
}

int retoken_marks(const struct hcache *h, const struct hcache_result *answer, int n_prompt,
                  struct retoken_mark out[RETOKEN_MAX_MARKS])
{
    size_t n_bytes, begin, end;
    if (answer->text == NULL || answer->n_tokens == 0)
        return 0;
    int n = shown_tokens(h, answer, &n_bytes);
    if (n == 0)
        return 0;
    out[0].n_tokens = out[1].n_tokens = n_prompt + n;
    out[0].text = as_shown(answer->text, n_bytes, &out[0].n_text);
    begin = 0;
    end = out[0].n_text;
    while (begin < end && is_blank(out[0].text[begin]))
        begin++;
    while (end > begin && is_blank(out[0].text[end - 1]))
        end--;
    if (n_bytes < answer->n_text || end - begin == out[0].n_text || end == begin)
        return 1;
    out[1].text = as_shown(out[0].text + begin, end - begin, &out[1].n_text);
    return 2;
}

/* What was shown is all that was generated: no stop string has cut it. */
static bool is_whole(const struct hcache *h, const struct hcache_result *r)
{
    size_t total = 0, n;
    for (int i = 0; i < r->n_tokens; i++)
        total += hcache_token_bytes(h, r->token_ids[i], &n) != NULL ? n : 0;
    return r->text != NULL && total == r->n_text;
}

void retoken_remember(const struct hcache *h, struct answers *m, const char *salt,
                      const struct prompt_text *asked, const int32_t *prompt, int n_prompt,
                      const struct hcache_result *answer)
{
    if (answer->n_tokens == 0 || !is_whole(h, answer))
        return;
    /* As it went out: JSON has U+FFFD in place of what is no UTF-8, and so it will come back. */
    struct json *shown = json_new_object();
    json_put_bytes(shown, "a", answer->text, answer->n_text);
    size_t n = asked->n, n_answer;
    const char *a = json_string_of(json_member(shown, "a"), &n_answer), *end = a + n_answer;
    struct textbuf text = {0};
    int n_ids = n_prompt + answer->n_tokens;
    int32_t *ids = xmalloc((size_t)n_ids * sizeof *ids);
    memcpy(ids, prompt, (size_t)n_prompt * sizeof *ids);
    memcpy(ids + n_prompt, answer->token_ids, (size_t)answer->n_tokens * sizeof *ids);
    textbuf_add(&text, asked->text, n);
    textbuf_add(&text, a, (size_t)(end - a));
    answers_put(m, salt, text.p, text.n, ids, n_ids);
    while (a < end && is_blank(*a))
        a++;
    while (end > a && is_blank(end[-1]))
        end--;
    if ((size_t)(end - a) < n_answer && end > a) {
        text.n = n;
        textbuf_add(&text, a, (size_t)(end - a));
        answers_put(m, salt, text.p, text.n, ids, n_ids);
    }
    textbuf_free(&text);
    json_free(shown);
    free(ids);
}
