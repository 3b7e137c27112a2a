/* tokenizer_guard.c - see tokenizer_guard in tokenizer.h.
 *
 * A guard is a byte in a text, so that a text tells by itself how it is tokenized: who keeps its
 * digest, or cuts it, has the guards with it.  For encoding they become a list of places. */
#include "base/mem.h"
#include "model/tokenizer_impl.h"
#include "model/tokenizer_normalize.h"

#include <stdlib.h>
#include <string.h>

static void guards_push(struct guards *g, size_t at)
{
    if (g->n == g->cap) {
        g->cap = g->cap == 0 ? 16 : 2 * g->cap;
        g->at = xrealloc(g->at, g->cap * sizeof *g->at);
    }
    g->at[g->n++] = at;
}

/* --- putting guards in -------------------------------------------------------------------- */

static bool any_bit(const uint8_t *bits, size_t from, size_t n)
{
    for (size_t i = from; i < from + n; i++)
        if ((bits[i / 8] >> i % 8 & 1) != 0)
            return true;
    return false;
}

/* Whether a control token that begins at s[at] would take foreign bytes. */
static bool needs_guard(const struct tokenizer *t, const char *s, size_t n, size_t at,
                        const uint8_t *foreign)
{
    size_t raw = added_control_bytes(t->added_raw, s + at, n - at);
    size_t written = added_control_bytes(t->added_written, s + at, n - at);
    size_t bytes = raw > written ? raw : written;
    return bytes > 0 && (foreign == NULL || any_bit(foreign, at, bytes));
}

void tokenizer_guard(const struct tokenizer *t, const char *text, size_t n,
                     const uint8_t *foreign, char **out, size_t *n_out)
{
    struct guards g = {0};
    for (size_t i = 0; i < n; i++)
        if (needs_guard(t, text, n, i, foreign))
            guards_push(&g, i);
    char *s = xmalloc(n + g.n + 1);
    size_t from = 0, to = 0;
    for (size_t i = 0; i < g.n; i++) {
        memcpy(s + to, text + from, g.at[i] - from);
        to += g.at[i] - from;
        from = g.at[i];
        s[to++] = (char)GUARD;
    }
    if (n > from)
        memcpy(s + to, text + from, n - from);
    to += n - from;
    s[to] = 0;
    free(g.at);
    *out = s;
    *n_out = to;
}

/* --- taking them out ---------------------------------------------------------------------- */

bool guards_take(const char *text, size_t n, struct guards *g, char **out, size_t *n_out)
{
    char *s = mem_try(n + 1);
    size_t to = 0;
    if (s == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] == GUARD)
            guards_push(g, to);
        else
            s[to++] = text[i];
    }
    s[to] = 0;
    *out = s;
    *n_out = to;
    return true;
}

/* --- through a normalizer ----------------------------------------------------------------- */

/* Normalizers move bytes and take only UTF-8.  So a guard passes through them as a noncharacter that
 * the text has not: no normalizer changes one, or joins what stands on its two sides. */
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

static void take_holders(const char *s, size_t n, const char *holder, struct guards *moved,
                         char **out, size_t *n_out)
{
    char *kept = xmalloc(n + 1);
    size_t to = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= HOLDER_BYTES && memcmp(s + i, holder, HOLDER_BYTES) == 0) {
            guards_push(moved, to);
            i += HOLDER_BYTES;
        } else {
            kept[to++] = s[i++];
        }
    }
    kept[to] = 0;
    *out = kept;
    *n_out = to;
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
    if (last == first) /* nearly always */
        return tokenizer_normalize(j->normalizers, j->n_normalizers, s, n, out, n_out, err);
    if (!find_holder(s, n, holder))
        return err_set(err, ERR_UNSUPPORTED,
                       "a text with special tokens contains every noncharacter from U+FDD0 "
                       "to U+FDEF");
    char *held = xmalloc(n + (last - first) * HOLDER_BYTES + 1), *normal = NULL;
    size_t to = 0, n_normal = 0;
    for (size_t i = 0; i < n; i++) {
        for (; first < last && g->at[first] == s_at + i; first++, to += HOLDER_BYTES)
            memcpy(held + to, holder, HOLDER_BYTES);
        held[to++] = s[i];
    }
    int rc = tokenizer_normalize(j->normalizers, j->n_normalizers, held, to, &normal,
                                 &n_normal, err);
    if (rc == 0)
        take_holders(normal, n_normal, holder, moved, out, n_out);
    free(normal);
    free(held);
    return rc;
}
