/* tokenizer_normalize.c - see tokenizer_normalize.h. */
#include "bpe/tokenizer_normalize.h"

#include "base/mem.h"
#include "bpe/pretokenize_regex.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

char *tokenizer_replace(void *(*get)(size_t n), const char *s, size_t n,
                        const struct tokenizer_text *pattern,
                        const struct tokenizer_text *with, size_t *n_out)
{
    size_t cap = n;
    for (size_t i = 0; with->n > pattern->n && i + pattern->n <= n;) {
        bool found = memcmp(s + i, pattern->s, pattern->n) == 0;
        cap += found ? with->n - pattern->n : 0;
        i += found ? pattern->n : 1;
    }
    char *out = get(cap + 1);
    size_t len = 0;
    if (out == NULL)
        return NULL;
    for (size_t i = 0; i < n;) {
        if (n - i >= pattern->n && memcmp(s + i, pattern->s, pattern->n) == 0) {
            memcpy(out + len, with->s, with->n);
            len += with->n;
            i += pattern->n;
        } else {
            out[len++] = s[i++];
        }
    }
    *n_out = len;
    return out;
}

/* A text that a step replaces: the step frees the old one. */
struct text {
    char *s;
    size_t n;
};

static int no_memory(size_t n, struct err *err)
{
    return err_set(err, -ENOMEM, "no memory to normalize a text of %zu bytes", n);
}

static int prepend(struct text *t, const struct tokenizer_text *prefix, struct err *err)
{
    if (t->n == 0)
        return 0; /* an empty text stays empty */
    char *s = mem_try(prefix->n + t->n);
    if (s == NULL)
        return no_memory(t->n, err);
    memcpy(s, prefix->s, prefix->n);
    memcpy(s + prefix->n, t->s, t->n);
    free(t->s);
    *t = (struct text){.s = s, .n = prefix->n + t->n};
    return 0;
}

static bool is_ascii(const char *s, size_t n)
{
    unsigned char any = 0;
    for (size_t i = 0; i < n; i++)
        any |= (unsigned char)s[i];
    return any < 0x80;
}

/* Brings the text into a normal form. ASCII text is already in every normal form. */
static int to_normal_form(struct text *t, utf8proc_option_t options, struct err *err)
{
    if (is_ascii(t->s, t->n))
        return 0;
    utf8proc_uint8_t *s = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)t->s,
                                      (utf8proc_ssize_t)t->n, &s,
                                      options | UTF8PROC_STABLE);
    if (n < 0)
        return err_set(err, n == UTF8PROC_ERROR_NOMEM ? -ENOMEM : ERR_FORMAT,
                       "Unicode normalization: %s", utf8proc_errmsg(n));
    free(t->s);
    *t = (struct text){.s = (char *)s, .n = (size_t)n};
    return 0;
}

/* Limits on growth. No normalizer of a real tokenizer makes a text more than 18 times as long (NFKD
 * of one character). A file whose steps multiply it would take all memory. */
enum { GROWTH = 32, GROWTH_START = 4096 };

static int too_long(size_t n, size_t of, struct err *err)
{
    return err_set(err, ERR_LIMIT,
                   "the tokenizer's normalizer makes more than %zu bytes of a text of %zu",
                   n, of);
}

/* Returns the bytes of the text with every `pattern` replaced; SIZE_MAX if above `most`. */
static size_t replaced_bytes(const struct text *t, const struct normalizer_step *step,
                             size_t most)
{
    const struct tokenizer_text *p = &step->pattern;
    size_t n = t->n;
    if (p->n == 0 || step->text.n <= p->n)
        return n;
    for (size_t i = 0; i + p->n <= t->n && n <= most;) {
        bool found = memcmp(t->s + i, p->s, p->n) == 0;
        n += found ? step->text.n - p->n : 0;
        i += found ? p->n : 1;
    }
    return n <= most ? n : SIZE_MAX;
}

/* Replaces every match of the pattern, each with the same text. */
static int replace_matches(struct text *t, const struct normalizer_step *step, size_t most,
                           struct err *err)
{
    void *scratch = NULL;
    size_t at = 0, begin, end, n = 0, cap = t->n + 64;
    char *s = mem_try(cap);
    int rc = s == NULL ? no_memory(t->n, err) : 1;
    while (rc > 0) {
        rc = regex_find(step->regex, &scratch, t->s, t->n, at, &begin, &end, err);
        if (rc == 0)
            begin = end = t->n;
        if (rc < 0)
            break;
        size_t more = begin - at + (rc > 0 ? step->text.n : 0);
        if (more > most - n) {
            rc = too_long(most, t->n, err);
            break;
        }
        if (cap - n < more) {
            cap = n + more + cap / 2;
            char *grown = mem_try_realloc(s, cap);
            if (grown == NULL) {
                rc = no_memory(t->n, err);
                break;
            }
            s = grown;
        }
        memcpy(s + n, t->s + at, begin - at);
        n += begin - at;
        memcpy(s + n, step->text.s, rc > 0 ? step->text.n : 0);
        n += rc > 0 ? step->text.n : 0;
        at = end;
    }
    regex_scratch_free(scratch);
    if (rc != 0) {
        free(s);
        return rc;
    }
    free(t->s);
    *t = (struct text){.s = s, .n = n};
    return 0;
}

static int run_step(const struct normalizer_step *step, struct text *t, size_t most,
                    struct err *err)
{
    switch (step->kind) {
    case NORMALIZER_PREPEND:
        if (t->n + step->text.n > most)
            return too_long(most, t->n, err);
        return prepend(t, &step->text, err);
    case NORMALIZER_REPLACE: {
        if (step->is_regex)
            return replace_matches(t, step, most, err);
        char *old = t->s;
        if (replaced_bytes(t, step, most) > most)
            return too_long(most, t->n, err);
        char *s = tokenizer_replace(mem_try, old, t->n, &step->pattern, &step->text, &t->n);
        if (s == NULL)
            return no_memory(t->n, err);
        t->s = s;
        free(old);
        return 0;
    }
    case NORMALIZER_NFC:
        return to_normal_form(t, UTF8PROC_COMPOSE, err);
    case NORMALIZER_NFD:
        return to_normal_form(t, UTF8PROC_DECOMPOSE, err);
    case NORMALIZER_NFKC:
        return to_normal_form(t, UTF8PROC_COMPOSE | UTF8PROC_COMPAT, err);
    case NORMALIZER_NFKD:
        return to_normal_form(t, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, err);
    }
    return 0;
}

int tokenizer_normalizers_compile(struct normalizer_step *steps, int n_steps,
                                  struct err *err)
{
    for (int i = 0; i < n_steps; i++) {
        struct normalizer_step *s = &steps[i];
        int rc = s->is_regex ? regex_compile(&s->regex, s->pattern.s, s->pattern.n,
                                             REGEX_ONIGURUMA, err)
                             : 0;
        if (rc != 0)
            return err_wrap(err, "normalizer: Replace");
    }
    return 0;
}

void tokenizer_normalizers_free(struct normalizer_step *steps, int n_steps)
{
    for (int i = 0; i < n_steps; i++)
        regex_free(steps[i].regex);
}

int tokenizer_normalize(const struct normalizer_step *steps, int n_steps, const char *text,
                        size_t n, char **out, size_t *n_out, struct err *err)
{
    struct text t = {.s = mem_try(n), .n = n};
    if (t.s == NULL)
        return no_memory(n, err);
    memcpy(t.s, text, n);
    const size_t most = n <= (SIZE_MAX - GROWTH_START) / GROWTH ? n * GROWTH + GROWTH_START
                                                                : SIZE_MAX;
    int rc = 0;
    for (int i = 0; i < n_steps && rc == 0; i++)
        rc = run_step(&steps[i], &t, most, err);
    if (rc != 0) {
        free(t.s);
        return rc;
    }
    *out = t.s;
    *n_out = t.n;
    return 0;
}
