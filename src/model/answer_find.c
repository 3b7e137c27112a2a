/* answer_find.c - see answer_find.h. */
#include "model/answer_find.h"

#include <stdlib.h>
#include <string.h>

#include "format/json.h"
#include "model/answer.h"
#include "model/answer_impl.h"

static const char offered[] = "[{\"name\": \"" ANSWER_SAMPLE_TOOL
                              "\"}, {\"name\": \"" ANSWER_SAMPLE_TOOL "2\"}]";

static bool is_sample(const struct answer_part *p, bool second)
{
    struct json *v = NULL;
    bool good = p->kind == ANSWER_CALL &&
                strcmp(p->name, second ? ANSWER_SAMPLE_TOOL "2" : ANSWER_SAMPLE_TOOL) ==
                    0 &&
                json_parse(&v, p->text, p->n, "call", NULL) == 0;
    const char *s = json_string_of(json_member(v, ANSWER_SAMPLE_KEY), NULL);
    good = good && s != NULL && strcmp(s, ANSWER_SAMPLE) == 0 && json_count(v) == 1;
    json_free(v);
    return good;
}

/* Returns whether the row reads exactly the first n_calls sample calls from the text. */
static bool reads(const struct answer_form *f, const struct json *tools, const char *text,
                  size_t n, size_t n_calls)
{
    struct answer *a = answer_open(f, "", 0, tools);
    size_t n_parts, found = 0;
    bool good = true;
    answer_push(a, text, n);
    answer_end(a);
    const struct answer_part *p = answer_parts(a, &n_parts);
    for (size_t i = 0; i < n_parts; i++)
        if (p[i].kind == ANSWER_CALL)
            good = is_sample(&p[i], found++ == 1) && good;
    answer_close(a);
    return good && found == n_calls;
}

/* Some rows read a call only where an answer begins. That place is searched near the sample's
 * begin, since answer and generation prompt may have the same first bytes. */
static bool row_reads(const struct call_syntax *row, const struct json *tools,
                      const struct answer_sample *s, size_t n_calls)
{
    bool at_begin = row->is_bare || row->body == CALL_CHANNEL;
    const struct answer_syntax x = {.calls = row, .thoughts = thought_syntaxes[0]};
    if (s->text == NULL || (!row->is_bare && !call_syntax_is_in(row, s->text)))
        return false;
    struct answer_form *f = answer_form_create(&x, NULL);
    bool good = reads(f, tools, s->text + (at_begin ? s->begin : 0),
                      s->n - (at_begin ? s->begin : 0), n_calls);
    answer_form_destroy(f);
    return good;
}

static const struct call_syntax *find_calls(const char *chat_template,
                                            const struct answer_samples *s)
{
    struct json *tools = NULL;
    const struct call_syntax *one = NULL, *both = NULL;
    (void)json_parse(&tools, offered, strlen(offered), "tools", NULL);
    for (int i = 0; i < CALL_SYNTAXES && both == NULL; i++) {
        if (!row_reads(&call_syntaxes[i], tools, &s->one, 1))
            continue;
        one = one != NULL ? one : &call_syntaxes[i];
        if (row_reads(&call_syntaxes[i], tools, &s->two, 2))
            both = &call_syntaxes[i];
    }
    json_free(tools);
    if (both == NULL && one == NULL && s->one.text == NULL)
        return call_syntax_in(chat_template);
    return both != NULL ? both : one;
}

/* Returns whether the text between open and close is the sample. */
static bool encloses(const struct thought_syntax *t, const struct answer_sample *s)
{
    const char *at = s->text != NULL
                         ? memmem(s->text, s->n, ANSWER_SAMPLE, sizeof ANSWER_SAMPLE - 1)
                         : NULL;
    if (at == NULL)
        return false;
    const char *end = at + sizeof ANSWER_SAMPLE - 1;
    size_t n_open = strlen(t->open), n_close = strlen(t->close);
    while (at > s->text && answer_is_blank(at[-1]))
        at--;
    while (answer_is_blank(*end))
        end++;
    return (size_t)(at - s->text) >= n_open && memcmp(at - n_open, t->open, n_open) == 0 &&
           strncmp(end, t->close, n_close) == 0;
}

struct answer_syntax answer_find(const char *chat_template, const struct answer_samples *s)
{
    struct answer_syntax x = {.calls = find_calls(chat_template, s),
                              .thoughts = thought_syntax_in(chat_template)};
    for (int i = 0; i < THOUGHT_SYNTAXES; i++)
        if (encloses(&thought_syntaxes[i], &s->thought)) {
            x.thoughts = thought_syntaxes[i];
            break;
        }
    return x;
}
