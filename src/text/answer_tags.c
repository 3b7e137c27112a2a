/* answer_tags.c - see answer_impl.h. */
#include "text/answer_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Returns the index of a special token in the form's list, and adds the token if it is new.
 * text [n] spells it. */
static int token_index(struct answer_form *f, int32_t id, const char *text, size_t n)
{
    for (int i = 0; i < f->n_token; i++)
        if (f->token[i].id == id)
            return i;
    struct textbuf b = {0};
    const char begin = MARK_BEGIN, end = MARK_END;
    textbuf_add(&b, &begin, 1);
    textbuf_add(&b, text, n);
    textbuf_add(&b, &end, 1);
    f->token = xrealloc(f->token, (size_t)(f->n_token + 1) * sizeof *f->token);
    f->token[f->n_token] = (struct form_token){id, {b.p, b.n}};
    return f->n_token++;
}

/* Sets a tag, in which the longest special token at each place is marked. */
static void set_tag(struct answer_form *f, const struct tokenizer *t, enum form_tag which,
                    const char *text)
{
    struct textbuf b = {0};
    size_t n = text != NULL ? strlen(text) : 0, k = 1;
    for (size_t i = 0; i < n; i += k) {
        int32_t id = tokenizer_special_at(t, text + i, n - i, &k);
        if (id >= 0) {
            int token = token_index(f, id, text + i, k); /* may move f->token */
            const struct tag *marked = &f->token[token].marked;
            textbuf_add(&b, marked->s, marked->n);
        } else {
            textbuf_add(&b, text + i, k = 1);
        }
    }
    f->tag[which] = (struct tag){b.p, b.n};
}

struct answer_form *answer_form_create(const struct answer_syntax *s,
                                       const struct tokenizer *t)
{
    static const struct call_syntax none = {.family = "none"};
    const struct call_syntax *c = s->calls != NULL ? s->calls : &none;
    bool has_channels = s->calls != NULL && c->body == CALL_CHANNEL;
    struct answer_form *f = xcalloc(1, sizeof *f);
    f->calls = s->calls;
    set_tag(f, t, TAG_THOUGHT, s->thoughts.open);
    set_tag(f, t, TAG_THOUGHT_END, s->thoughts.close);
    set_tag(f, t, TAG_SECTION, c->section);
    set_tag(f, t, TAG_SECTION_END, c->section_end);
    set_tag(f, t, TAG_OPEN, c->open);
    set_tag(f, t, TAG_OPEN_SHORT, c->open_short);
    set_tag(f, t, TAG_SKIP_TO, c->skip_to);
    set_tag(f, t, TAG_NAME_PREFIX, c->name_prefix);
    set_tag(f, t, TAG_NAME_CUT, c->name_cut);
    set_tag(f, t, TAG_NAME_END, c->name_end);
    set_tag(f, t, TAG_CLOSE, c->close);
    set_tag(f, t, TAG_CLOSE_MORE, c->close_more);
    set_tag(f, t, TAG_KEY, c->key_open);
    set_tag(f, t, TAG_KEY_END, c->key_end);
    set_tag(f, t, TAG_KEY_SKIP, c->key_skip);
    set_tag(f, t, TAG_VALUE_END, c->value_end);
    set_tag(f, t, TAG_QUOTE, c->quote);
    set_tag(f, t, TAG_START, has_channels ? "<|start|>" : NULL);
    set_tag(f, t, TAG_END, has_channels ? "<|end|>" : NULL);
    set_tag(f, t, TAG_RETURN, has_channels ? "<|return|>" : NULL);
    set_tag(f, t, TAG_CONSTRAIN, has_channels ? "<|constrain|>" : NULL);
    return f;
}

void answer_form_destroy(struct answer_form *f)
{
    if (f == NULL)
        return;
    for (int i = 0; i < FORM_TAGS; i++)
        free(f->tag[i].s);
    for (int i = 0; i < f->n_token; i++)
        free(f->token[i].marked.s);
    free(f->token);
    free(f);
}

long tag_match(const struct tag *t, const char *s, size_t n, size_t at)
{
    if (t->n == 0)
        return MATCH_NO;
    for (size_t i = 0; i < t->n; i++) {
        if (t->s[i] == ' ') {
            while (at < n && answer_is_blank(s[at]))
                at++;
        } else if (at == n) {
            return MATCH_MORE;
        } else if (s[at++] != t->s[i]) {
            return MATCH_NO;
        }
    }
    return (long)at;
}
