/* calls.c - tool calls in a model's own syntax, with arguments by the tools' schemas.
 *
 *     section [open NAME ARGUMENTS close]... section_end
 *
 * text/answer_syntax.h describes the syntaxes, and its parser reads what is made here. */
#include <string.h>

#include "base/json.h"
#include "grammar/dfa.h"
#include "grammar/vocab.h"

enum { CALL_BLANKS = 4, MAX_CALLS = 32 };

struct calls {
    struct build *b;
    const struct grammar_calls *k;
    struct textbuf *loose;
};

/* Between members of an object. */
static uint32_t gap(struct build *b, uint32_t next)
{
    return node_blanks(b, CALL_BLANKS, next);
}

static uint32_t text(struct build *b, const char *s, uint32_t next)
{
    return node_bytes(b, s, strlen(s), next);
}

static uint32_t member(struct build *b, const char *key, uint32_t value)
{
    return node_quoted(b, key, strlen(key), node_range(b, ':', ':', gap(b, value)));
}

/* The arguments of a tool as a JSON object. */
static uint32_t arguments(struct calls *c, const struct grammar_tool *t, uint32_t next)
{
    const struct json *object = c->k->any_object;
    const struct json *schema = t->schema != NULL ? t->schema : object;
    return node_call(c->b, schema_root(c->b, schema, object, c->loose), next);
}

static uint32_t object_call(struct calls *c, const struct grammar_tool *t, uint32_t next)
{
    struct build *b = c->b;
    uint32_t end = gap(b, node_range(b, '}', '}', next)), at;
    if (c->k->name_key == NULL) {
        at = member(b, t->name, arguments(c, t, end));
    } else {
        at = member(b, c->k->arguments_key, arguments(c, t, end));
        at = node_quoted(b, t->name, strlen(t->name), node_range(b, ',', ',', gap(b, at)));
        at = member(b, c->k->name_key, at);
    }
    return node_range(b, '{', '{', gap(b, at));
}

/* --- arguments in tags -------------------------------------------------------------- */

/* Returns whether a schema is that of a text without further bounds. */
static bool is_plain_text(const struct json *schema)
{
    static const char *const says_nothing[] = {"type", "description", "title", "default",
                                               "examples"};
    const char *type = json_string_of(json_member(schema, "type"), NULL);
    if (type == NULL || strcmp(type, "string") != 0)
        return false;
    for (struct json_iter it = json_begin(schema); json_next(&it);) {
        bool known = false;
        for (size_t i = 0; i < sizeof says_nothing / sizeof *says_nothing; i++)
            known |= strcmp(it.key, says_nothing[i]) == 0;
        if (!known)
            return false;
    }
    return true;
}

/* Returns the texts of an enum, or NULL if the schema is not a list of texts. */
static const char **texts_of(struct build *b, const struct json *schema, uint32_t *n)
{
    const struct json *list = json_member(schema, "enum");
    size_t count = json_kind(list) == JSON_KIND_ARRAY ? json_count(list) : 0;
    const char **texts = build_alloc(b, (count + 1) * sizeof *texts);
    for (size_t i = 0; i < count; i++) {
        texts[i] = json_string_of(json_at(list, i), NULL);
        if (texts[i] == NULL)
            return NULL;
    }
    *n = (uint32_t)count;
    return count == 0 ? NULL : texts;
}

/* A value and the tag behind it. Texts stand as they are, other values as JSON. */
static uint32_t value(struct calls *c, const struct json *schema, uint32_t next)
{
    struct build *b = c->b;
    const struct grammar_calls *k = c->k;
    uint32_t n = 0, end = node_tag(b, k->value_end, next);
    const char **texts = texts_of(b, schema, &n);
    if (k->value_on_lines)
        end = text(b, "\n", end);
    uint32_t at;
    if (texts != NULL) {
        at = dfa_embed(b, dfa_of_texts(b, texts, n), false, end);
    } else if (is_plain_text(schema)) {
        at = node_up_to(b, k->value_end, next, NODE_ID_FAIL);
    } else {
        const char *type = json_string_of(json_member(schema, "type"), NULL);
        if (type != NULL && strcmp(type, "string") == 0)
            build_fault(
                b, ERR_UNSUPPORTED,
                "a text parameter with bounds cannot be enforced in this model's calls");
        at = node_call(b, schema_root(b, schema, NULL, c->loose), end);
    }
    return k->value_on_lines ? text(b, "\n", at) : at;
}

static bool is_required(const struct json *schema, const char *key)
{
    const struct json *list = json_member(schema, "required");
    for (size_t i = 0; i < json_count(list); i++) {
        const char *name = json_string_of(json_at(list, i), NULL);
        if (name != NULL && strcmp(name, key) == 0)
            return true;
    }
    return false;
}

/* The parameters in the order of the schema; optional ones may be left out. */
static uint32_t tagged_arguments(struct calls *c, const struct grammar_tool *t,
                                 uint32_t next)
{
    struct build *b = c->b;
    const struct grammar_calls *k = c->k;
    const struct json *properties = json_member(t->schema, "properties");
    size_t n = json_count(properties), i = 0;
    const char **keys = build_alloc(b, (n + 1) * sizeof *keys);
    for (struct json_iter it = json_begin(properties); json_next(&it);)
        keys[i++] = it.key;
    for (; i > 0; i--) {
        const char *key = keys[i - 1];
        uint32_t at = value(c, json_member(properties, key), gap(b, next));
        at = node_tag(b, k->key_skip, at);
        at = node_tag(b, k->key_open, text(b, key, node_tag(b, k->key_end, at)));
        next = is_required(t->schema, key) ? at : node_either(b, at, next);
    }
    return next;
}

/* --- calls -------------------------------------------------------------------------- */

/* One call of any tool, without the tags around it. */
static uint32_t call(struct calls *c, uint32_t next)
{
    struct build *b = c->b;
    const struct grammar_calls *k = c->k;
    uint32_t at = NODE_ID_FAIL;
    for (size_t i = 0; i < k->n_tools; i++) {
        const struct grammar_tool *t = &k->tools[i];
        uint32_t one;
        if (k->body == GRAMMAR_CALL_OBJECT)
            one = object_call(c, t, next);
        else if (k->body == GRAMMAR_CALL_JSON)
            one = text(b, t->name, node_tag(b, k->name_end, gap(b, arguments(c, t, next))));
        else
            one = text(
                b, t->name,
                node_tag(b, k->name_end, gap(b, tagged_arguments(c, t, gap(b, next)))));
        at = at == NODE_ID_FAIL ? one : node_either(b, at, one);
    }
    return at;
}

uint32_t calls_root(struct build *b, const struct grammar_calls *k, struct textbuf *loose,
                    uint32_t next)
{
    struct calls c = {.b = b, .k = k, .loose = loose};
    int32_t most = k->many ? MAX_CALLS : 1;
    if (k->n_tools == 0)
        build_fault(b, ERR_USAGE, "a call is wanted, but no tool is offered");
    struct grammar_tag head = k->section.n > 0 ? k->section : k->open;
    uint32_t end = k->section_end.n == 0 ? next : gap(b, node_tag(b, k->section_end, next));
    uint32_t at, rule = rule_new(b); /* at: behind the head */
    if (k->is_list && k->body == GRAMMAR_CALL_OBJECT) {
        end = node_range(b, ']', ']', gap(b, node_tag(b, k->close, end)));
        rule_set(b, rule, call(&c, NODE_ID_RETURN));
        uint32_t more = repeat_begin(b, 0, most - 1, gap(b, end));
        repeat_end(
            b, more,
            node_range(b, ',', ',', gap(b, node_call(b, rule, repeat_again(b, more)))));
        at = gap(b, node_range(b, '[', '[', gap(b, node_call(b, rule, more))));
        if (k->section.n > 0)
            at = gap(b, node_tag(b, k->open, at));
    } else {
        uint32_t close = node_tag(b, k->close, node_tag(b, k->close_more, NODE_ID_RETURN));
        rule_set(b, rule, gap(b, call(&c, gap(b, close))));
        uint32_t more = repeat_begin(b, 0, most - 1, end);
        uint32_t again = node_call(b, rule, repeat_again(b, more));
        repeat_end(b, more, gap(b, node_tag(b, k->open, again)));
        at = node_call(b, rule, more);
        if (k->section.n > 0)
            at = gap(b, node_tag(b, k->open, at));
    }
    if (!k->may_talk)
        return node_tag(b, head, at);
    size_t n = 0; /* the tag's bytes before its first blank */
    while (n < head.n && head.at[n] != ' ')
        n += (uint8_t)head.at[n] == VOCAB_SPECIAL ? VOCAB_SPECIAL_BYTES : 1;
    struct grammar_tag first = {head.at, n}, rest = {head.at + n, head.n - n};
    return node_up_to(b, first, node_tag(b, rest, at), next);
}
