/* tokenizer_guard.c - see tokenizer_guard in tokenizer.h.
 *
 * A guard is a byte of the text, so a digest of the text covers its guards, and a piece of the text
 * keeps its own guards.  For encoding, guards become a list of places. */
#include "base/mem.h"
#include "base/minmax.h"
#include "text/tokenizer_impl.h"
#include "bpe/tokenizer_normalize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Returns false if there is no memory. */
static bool guards_push(struct guards *g, size_t at)
{
    if (g->n == g->cap) {
        size_t cap = g->cap == 0 ? 16 : 2 * g->cap;
        size_t *grown = mem_try_realloc(g->at, cap * sizeof *grown);
        if (grown == NULL)
            return false;
        g->at = grown;
        g->cap = cap;
    }
    g->at[g->n++] = at;
    return true;
}

/* --- putting guards in -------------------------------------------------------------------- */

static bool any_bit(const uint8_t *bits, size_t from, size_t n)
{
    for (size_t i = from; i < from + n; i++)
        if ((bits[i / 8] >> i % 8 & 1) != 0)
            return true;
    return false;
}

/* Returns whether a control token that begins at s[at] would include foreign bytes. */
static bool needs_guard(const struct tokenizer *t, const char *s, size_t n, size_t at,
                        const uint8_t *foreign)
{
    size_t raw = added_control_bytes(t->added_raw, s + at, n - at);
    size_t written = added_control_bytes(t->added_written, s + at, n - at);
    size_t bytes = MAX(raw, written);
    return bytes > 0 && (foreign == NULL || any_bit(foreign, at, bytes));
}

/* Collects the places of the guards. Returns false if there is no memory. */
static bool find_guards(const struct tokenizer *t, const char *text, size_t n,
                        const uint8_t *foreign, struct guards *out)
{
    for (size_t i = 0; i < n; i++)
        if (needs_guard(t, text, n, i, foreign) && !guards_push(out, i))
            return false;
    return true;
}

/* Puts the guards into the text, from its end, so that each byte moves once and no second copy is
 * needed. */
static void put_guards(char *text, size_t n, const struct guards *g)
{
    size_t from = n, to = n + g->n;
    text[to] = 0;
    for (size_t i = g->n; i-- > 0;) {
        size_t bytes = from - g->at[i];
        from -= bytes;
        to -= bytes;
        memmove(text + to, text + from, bytes);
        text[--to] = (char)GUARD;
    }
}

int tokenizer_guard(const struct tokenizer *t, char **text, size_t *n,
                    const uint8_t *foreign, struct err *err)
{
    struct guards g = {0};
    bool found = find_guards(t, *text, *n, foreign, &g);
    char *grown = found && g.n > 0 ? mem_try_realloc(*text, *n + g.n + 1) : NULL;
    bool is_good = found && (g.n == 0 || grown != NULL);
    if (grown != NULL) {
        put_guards(grown, *n, &g);
        *text = grown;
        *n += g.n;
    }
    free(g.at);
    return is_good ? 0
                   : err_set(err, -ENOMEM, "no memory to guard a text of %zu bytes", *n);
}

/* --- taking guards out -------------------------------------------------------------------- */

bool guards_take(const char *text, size_t n, struct guards *g, char **out, size_t *n_out)
{
    char *s = mem_try(n);
    size_t to = 0;
    bool is_good = s != NULL;
    for (size_t i = 0; i < n && is_good; i++) {
        if ((unsigned char)text[i] == GUARD)
            is_good = guards_push(g, to);
        else
            s[to++] = text[i];
    }
    if (!is_good) {
        free(s);
        free(g->at);
        *g = (struct guards){0};
        return false;
    }
    *out = s;
    *n_out = to;
    return true;
}

/* --- guards of normalized text ------------------------------------------------------------ */

/* Normalizers move bytes and accept only UTF-8.  So a guard passes through them as a noncharacter
 * that does not occur in the text: no normalizer changes a noncharacter, or joins the text before
 * it with the text behind it. */
enum { HOLDER_BYTES = 3, N_HOLDERS = 32 }; /* U+FDD0 to U+FDEF */

static bool find_holder(const char *s, size_t n, char holder[HOLDER_BYTES])
{
    for (int i = 0; i < N_HOLDERS; i++) {
        memcpy(holder, "\xef\xb7", 2);
        holder[2] = (char)(0x90 + i);
        if (memmem(s, n, holder, HOLDER_BYTES) == NULL)
            return true;
    }
    return false;
}

/* Removes holders in place and lists their positions. Returns false if there is no memory for the
 * list. */
static bool take_holders(char *s, size_t *n, const char *holder, struct guards *moved)
{
    const char *at = s, *end = s + *n, *next;
    size_t to = 0;
    while ((next = memmem(at, (size_t)(end - at), holder, HOLDER_BYTES)) != NULL) {
        memmove(s + to, at, (size_t)(next - at));
        to += (size_t)(next - at);
        if (!guards_push(moved, to))
            return false;
        at = next + HOLDER_BYTES;
    }
    memmove(s + to, at, (size_t)(end - at));
    *n = to + (size_t)(end - at);
    return true;
}

int guards_normalize(const struct tokenizer *t, const struct guards *g, size_t s_at,
                     const char *s, size_t n, struct guards *moved, char **out,
                     size_t *n_out, struct err *err)
{
    const struct tokenizer_json *j = &t->j;
    size_t first = 0, last;
    char holder[HOLDER_BYTES];
    while (first < g->n && g->at[first] < s_at)
        first++;
    for (last = first; last < g->n && g->at[last] < s_at + n;)
        last++;
    if (last == first) /* the usual case: no guards */
        return tokenizer_normalize(j->normalizers, j->n_normalizers, s, n, out, n_out, err);
    if (!find_holder(s, n, holder))
        return err_set(err, ERR_UNSUPPORTED,
                       "a text with special tokens contains every noncharacter from U+FDD0 "
                       "to U+FDEF");
    char *held = mem_try(n + (last - first) * HOLDER_BYTES + 1), *normal = NULL;
    size_t to = 0, n_normal;
    if (held == NULL)
        return err_set(err, -ENOMEM, "no memory to normalize a text of %zu bytes", n);
    for (size_t i = 0; i < n; i++) {
        for (; first < last && g->at[first] == s_at + i; first++, to += HOLDER_BYTES)
            memcpy(held + to, holder, HOLDER_BYTES);
        held[to++] = s[i];
    }
    int rc = tokenizer_normalize(j->normalizers, j->n_normalizers, held, to, &normal,
                                 &n_normal, err);
    free(held);
    if (rc == 0 && !take_holders(normal, &n_normal, holder, moved))
        rc = err_set(err, -ENOMEM, "no memory to normalize a text of %zu bytes", n);
    if (rc != 0) {
        free(normal);
        return rc;
    }
    *out = normal;
    *n_out = n_normal;
    return 0;
}
