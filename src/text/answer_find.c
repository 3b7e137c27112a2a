/* answer_find.c - see answer_find.h. */
#include "text/answer_find.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_walk.h"
#include "text/answer.h"
#include "text/answer_impl.h"

static const char offered[] = "[{\"name\": \"" ANSWER_SAMPLE_TOOL
                              "\"}, {\"name\": \"" ANSWER_SAMPLE_TOOL "2\"}]";

static bool is_sample(const struct answer_part *p, bool second)
{
    struct json *v = NULL;
    bool good = p->kind == ANSWER_CALL &&
                strcmp(p->name, second ? ANSWER_SAMPLE_TOOL "2" : ANSWER_SAMPLE_TOOL) ==
                    0 &&
                json_parse(&v, p->text, p->n, "call", NULL) == 0;
    good = good && json_string_is(json_member(v, ANSWER_SAMPLE_KEY), ANSWER_SAMPLE) &&
           json_count(v) == 1;
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

/* Returns whether the row reads the sample's n_calls calls. Some rows read a call only where an
 * answer begins. For these the sample is read from s->begin on. */
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

/* --- a row of the template's own ------------------------------------------------------ */

static bool keep_tag(char out[64], const char *s, size_t n)
{
    if (n >= 64)
        return false;
    memcpy(out, s, n);
    out[n] = 0;
    return true;
}

/* Finds the keys of the object of a call. */
static bool find_keys(struct answer_own *o, const char *s, size_t n)
{
    struct json *v = NULL;
    if (json_parse(&v, s, n, "call", NULL) != 0)
        return false;
    struct json_iter it = json_begin(v);
    while (json_next(&it)) {
        bool is_name = json_string_is(it.value, ANSWER_SAMPLE_TOOL);
        bool has_sample = json_member(it.value, ANSWER_SAMPLE_KEY) != NULL;
        if (strlen(it.key) >= sizeof o->name_key)
            continue;
        if (is_name)
            strcpy(o->name_key, it.key);
        else if (has_sample)
            strcpy(o->arguments_key, it.key);
    }
    json_free(v);
    return o->name_key[0] != 0 && o->arguments_key[0] != 0;
}

/* Returns the length of the tag at s: from < or [ to its end; 0: there is none. */
static size_t tag_at(const char *s, const char *end)
{
    const char *close = s < end && *s == '<'   ? memchr(s, '>', (size_t)(end - s))
                        : s < end && *s == '[' ? memchr(s, ']', (size_t)(end - s))
                                               : NULL;
    return close != NULL ? (size_t)(close - s) + 1 : 0;
}

/* Returns whether a plain answer ends with this tag, too: then it ends the turn, not the call. */
static bool ends_turn(const struct answer_sample *plain, const char *tag, size_t n)
{
    const char *at = plain->text != NULL ? memmem(plain->text, plain->n, ANSWER_SAMPLE,
                                                  sizeof ANSWER_SAMPLE - 1)
                                         : NULL;
    if (at == NULL)
        return true;
    at += sizeof ANSWER_SAMPLE - 1;
    while (answer_is_blank(*at))
        at++;
    return strncmp(at, tag, n) == 0;
}

/* Makes a row for calls that are JSON objects between tags of a line. */
static bool derive(struct answer_own *o, const struct answer_samples *s)
{
    static const char name[] = "\"" ANSWER_SAMPLE_TOOL "\"";
    const char *text = s->one.text, *end = text != NULL ? text + s->one.n : NULL;
    const char *at = text != NULL ? memmem(text + s->one.begin, s->one.n - s->one.begin,
                                           name, sizeof name - 1)
                                  : NULL;
    struct json_walk w = {0};
    if (at == NULL)
        return false;
    const char *object = at, *after;
    while (object > text && *object != '{')
        object--;
    int rc = 0;
    for (after = object; rc == 0 && after < end; after++)
        rc = json_walk(&w, *after);
    *o = (struct answer_own){.row = {.family = "template", .body = CALL_OBJECT}};
    if (rc != 1 || !find_keys(o, object, (size_t)(after - object)))
        return false;
    const char *tag = object;
    while (tag > text && answer_is_blank(tag[-1]))
        tag--;
    o->row.is_list = tag > text && tag[-1] == '[' &&
                     memchr(after, ']', (size_t)(end - after));
    tag -= o->row.is_list;
    while (tag > text && answer_is_blank(tag[-1]))
        tag--;
    const char *line = tag;
    while (line > text + s->one.begin && line[-1] != '\n')
        line--;
    if (line == tag || !keep_tag(o->open, line, (size_t)(tag - line)))
        return false;
    if (o->row.is_list)
        after = (const char *)memchr(after, ']', (size_t)(end - after)) + 1;
    while (after < end && answer_is_blank(*after))
        after++;
    size_t n = tag_at(after, end);
    if (n > 0 && !ends_turn(&s->plain, after, n) && keep_tag(o->close, after, n))
        o->row.close = o->close;
    o->row.open = o->open;
    o->row.name_key = o->name_key;
    o->row.arguments_key = o->arguments_key;
    return true;
}

/* Returns the row that reads the sample of two calls, else one that reads a single call, else one
 * that is made from the sample. Without samples it is the row whose tags the template names. */
static const struct call_syntax *find_calls(const char *chat_template,
                                            const struct answer_samples *s,
                                            struct answer_own *own)
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
    if (one == NULL && derive(own, s) && row_reads(&own->row, tools, &s->one, 1))
        one = &own->row;
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

struct answer_syntax answer_find(const char *chat_template, const struct answer_samples *s,
                                 struct answer_own *own)
{
    struct answer_syntax x = {.calls = find_calls(chat_template, s, own),
                              .thoughts = thought_syntax_in(chat_template)};
    for (int i = 0; i < THOUGHT_SYNTAXES; i++)
        if (encloses(&thought_syntaxes[i], &s->thought)) {
            x.thoughts = thought_syntaxes[i];
            break;
        }
    if (x.calls != NULL && x.calls->body == CALL_CHANNEL)
        x.thoughts = (struct thought_syntax){"<|channel|>analysis<|message|>", "<|end|>"};
    return x;
}
