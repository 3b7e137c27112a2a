/* chat_drop.c - see chat_drop.h. */
#include "text/chat_drop.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/textbuf.h"
#include "bpe/pretokenize_regex.h"

struct chat_drop {
    struct regex *pattern; /* NULL: none */
};

int chat_drop_open(struct chat_drop **out, const char *pattern, struct err *err)
{
    struct chat_drop *d = xcalloc(1, sizeof *d);
    int rc = pattern != NULL
                 ? regex_compile(&d->pattern, pattern, strlen(pattern), REGEX_PCRE2, err)
                 : 0;
    if (rc != 0) {
        if (err != NULL)
            err->code = ERR_USAGE; /* whatever is wrong with the pattern */
        rc = ERR_USAGE;
        chat_drop_close(d);
        d = NULL;
    }
    *out = d;
    return rc;
}

void chat_drop_close(struct chat_drop *d)
{
    if (d == NULL)
        return;
    regex_free(d->pattern);
    free(d);
}

static const char billing[] = "x-anthropic-billing-header:";

/* Appends the text without its billing lines. */
static void drop_billing(const char *text, size_t n, struct textbuf *out)
{
    for (size_t i = 0; i < n;) {
        const char *end = memchr(text + i, '\n', n - i);
        size_t next = end != NULL ? (size_t)(end - text) + 1 : n;
        if (next - i < sizeof billing - 1 ||
            memcmp(text + i, billing, sizeof billing - 1) != 0)
            textbuf_add(out, text + i, next - i);
        i = next;
    }
}

static int drop_matches(const struct regex *r, struct textbuf *text, struct err *err)
{
    struct textbuf out = {0};
    void *scratch = NULL;
    size_t at = 0, begin = 0, end = 0;
    int rc;
    while ((rc = regex_find(r, &scratch, text->p, text->n, at, &begin, &end, err)) == 1) {
        textbuf_add(&out, text->p + at, begin - at);
        at = end;
    }
    if (rc < 0)
        err_set(err, rc,
                "--drop-system: the regular expression takes too much work on this text");
    textbuf_add(&out, text->p + at, text->n - at);
    regex_scratch_free(scratch);
    textbuf_free(text);
    *text = out;
    return rc;
}

int chat_drop_text(const struct chat_drop *d, const char *text, size_t n, char **out,
                   size_t *n_out, struct err *err)
{
    struct textbuf all = {0};
    *out = NULL;
    *n_out = 0;
    if (n == 0 ||
        (d->pattern == NULL && memmem(text, n, billing, sizeof billing - 1) == NULL))
        return 0;
    textbuf_add(&all, "", 0);
    drop_billing(text, n, &all);
    int rc = d->pattern != NULL && all.n > 0 ? drop_matches(d->pattern, &all, err) : 0;
    if (rc < 0 || all.n == n) {
        textbuf_free(&all);
        return rc < 0 ? rc : 0;
    }
    *out = all.p;
    *n_out = all.n;
    return 1;
}
