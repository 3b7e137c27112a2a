/* tokenizer_encode.c - see tokenizer_guard and tokenizer_encode in tokenizer.h.
 *
 * A guard is a byte of the text, so a digest of the text covers its guards, and a piece of the text
 * keeps its own guards.  For encoding, guards become a list of places. */
#include "base/mem.h"
#include "base/minmax.h"
#include "base/utf8.h"
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

/* Removes the guards from a text: *out has none, and g->at lists their places. The caller frees
 * both. Returns false if there is no memory. */
static bool guards_take(const char *text, size_t n, struct guards *g, char **out,
                        size_t *n_out)
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

/* Removes the holders of guards from s, and adds their places to *moved. Returns false if there is
 * no memory for the list. */
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

/* Normalizes s[0, n) into *out. s begins at byte s_at of a longer text, to which the places in *g
 * refer. *moved gets the places of its guards in *out. The caller frees *out and moved->at. */
static int guards_normalize(const struct tokenizer *t, const struct guards *g, size_t s_at,
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

/* --- encoding ----------------------------------------------------------------------------- */

/* State of one call of tokenizer_encode. */
struct encoding {
    const struct tokenizer *t;
    bool parse_special;
    const char *text; /* the whole text; guards count from its beginning */
    struct guards guards;
    struct id_list ids;
    struct bpe_work bpe;
    struct pieces pieces;
    struct err *err;
};

/* Encodes normalized text that contains no added tokens. */
static int encode_plain(struct encoding *e, const char *s, size_t n, bool at_start)
{
    return bpe_encode_text(e->t->bpe, e->t->pre, s, n, at_start, &e->bpe, &e->pieces,
                           &e->ids, e->err);
}

typedef int encode_fn(struct encoding *e, const char *s, size_t n, bool at_start);

/* Finds f's tokens in s, adds their ids, and passes the text between them to fn. `guards` has
 * places in a longer text, in which s begins at s_at. */
static int encode_between(struct encoding *e, const struct added_finder *f,
                          const struct guards *guards, size_t s_at, const char *s, size_t n,
                          bool at_start, encode_fn *fn)
{
    const struct added_search how = {e->parse_special, guards, s_at,
                                     f == e->t->added_normalized};
    size_t at = 0, begin, end;
    int rc = 0;
    while (rc == 0) {
        const struct tokenizer_added *a = added_find(f, &how, s, n, at, &begin, &end);
        size_t stop = a != NULL ? begin : n;
        if (stop > at)
            rc = fn(e, s + at, stop - at, at_start && at == 0);
        if (a == NULL)
            break;
        id_list_push(&e->ids, a->id);
        at = end;
    }
    return rc;
}

/* Encodes raw text that contains none of the added tokens matched in raw text. */
static int encode_raw(struct encoding *e, const char *s, size_t n, bool at_start)
{
    const struct tokenizer_json *j = &e->t->j;
    const size_t s_at = (size_t)(s - e->text);
    if (j->n_normalizers == 0)
        return encode_between(e, e->t->added_normalized, &e->guards, s_at, s, n, at_start,
                              encode_plain);
    struct guards moved = {0};
    char *normal = NULL;
    size_t n_normal = 0;
    int rc = guards_normalize(e->t, &e->guards, s_at, s, n, &moved, &normal, &n_normal,
                              e->err);
    if (rc == 0)
        rc = encode_between(e, e->t->added_normalized, &moved, 0, normal, n_normal,
                            at_start, encode_plain);
    free(normal);
    free(moved.at);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                     int32_t **ids, size_t *n_ids, struct err *err)
{
    struct encoding e = {
        .t = t, .parse_special = (flags & TOKENIZER_PARSE_SPECIAL) != 0, .err = err};
    char *clean = NULL;
    if ((flags & TOKENIZER_GUARDED) != 0 && memchr(text, GUARD, n) != NULL) {
        if (!guards_take(text, n, &e.guards, &clean, &n))
            return err_set(err, -ENOMEM, "no memory to tokenize %zu bytes", n);
        text = clean;
    }
    size_t bad = utf8_check(text, n);
    if (bad != n) {
        free(e.guards.at);
        free(clean);
        return err_set(err, ERR_FORMAT, "invalid UTF-8 at byte %zu", bad);
    }
    e.text = text;
    const bool add = (flags & TOKENIZER_ADD_SPECIAL) != 0;
    for (int i = 0; add && i < t->j.n_prefix; i++)
        id_list_push(&e.ids, t->j.prefix[i]);
    int rc = encode_between(&e, t->added_raw, &e.guards, 0, text, n, true, encode_raw);
    for (int i = 0; add && i < t->j.n_suffix; i++)
        id_list_push(&e.ids, t->j.suffix[i]);
    if (rc == 0 && e.ids.failed)
        rc = err_set(err, -ENOMEM, "no memory for the tokens of %zu bytes", n);
    bpe_work_deinit(&e.bpe);
    pieces_deinit(&e.pieces);
    free(e.guards.at);
    free(clean);
    if (rc != 0) {
        id_list_deinit(&e.ids);
        return rc;
    }
    *ids = e.ids.ids != NULL ? e.ids.ids : xmalloc(sizeof **ids);
    *n_ids = e.ids.n;
    return 0;
}
