/* calls.c - tool calls in a model's own syntax, with arguments by the tools' schemas.
 *
 *     section [open NAME ARGUMENTS close]... section_end
 *
 * text/answer_syntax.h describes the syntaxes, and its parser reads what is made here. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "grammar/dfa.h"
#include "grammar/vocab.h"

enum { CALL_BLANKS = 4, MAX_CALLS = 32 };

struct calls {
    struct build *b;
    const struct grammar_calls *k;
    struct textbuf *loose;
    uint32_t *rules; /* [k.n_tools] those of arguments that are JSON; 0: not made yet */
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
    uint32_t *rule = &c->rules[t - c->k->tools];
    if (*rule == 0)
        *rule = 1 +
                schema_root(c->b, t->schema != NULL ? t->schema : object, object, c->loose);
    return node_call(c->b, *rule - 1, next);
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
    if (!json_string_is(json_member(schema, "type"), "string"))
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
        if (json_string_is(json_member(schema, "type"), "string"))
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
    for (size_t i = 0; i < json_count(list); i++)
        if (json_string_is(json_at(list, i), key))
            return true;
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

/* --- arguments in braces, and in Python ------------------------------------------------- */

enum { MAX_NESTED = 12 };
#define NUMBER "-?(0|[1-9][0-9]{0,15})([.][0-9]{1,15})?"

/* How a member of an object is written. */
enum member_form { MEMBER_BRACES, MEMBER_ARGUMENT, MEMBER_DICT };

/* Schemas of one tool. */
struct spelled {
    struct calls *c;
    const struct json *root;
    uint32_t any; /* the rule of any value; 0: not made yet */
};

static uint32_t spell(struct spelled *s, const struct json *schema, int depth,
                      uint32_t next);

static bool is_python(const struct spelled *s)
{
    return s->c->k->body == GRAMMAR_CALL_PYTHON;
}

static _Noreturn void refuse(struct spelled *s, const char *what)
{
    build_fault(s->c->b, ERR_UNSUPPORTED,
                "'%.60s' of a parameter cannot be enforced in this model's calls", what);
}

/* Refuses keywords that are neither annotations nor in the list. */
static void check_keywords(struct spelled *s, const struct json *schema,
                           const char *const *known)
{
    static const char *const plain[] = {"type",     "title", "description", "default",
                                        "examples", "$defs", "definitions", "$schema",
                                        "$comment", NULL};
    for (struct json_iter it = json_begin(schema); json_next(&it);) {
        bool found = false;
        for (size_t i = 0; plain[i] != NULL; i++)
            found |= strcmp(it.key, plain[i]) == 0;
        for (size_t i = 0; known[i] != NULL; i++)
            found |= strcmp(it.key, known[i]) == 0;
        if (!found)
            refuse(s, it.key);
    }
}

static int32_t bound_of(struct spelled *s, const struct json *schema, const char *key,
                        int32_t otherwise)
{
    int64_t n = otherwise;
    const struct json *v = json_member(schema, key);
    if (v != NULL && (!json_int_of(v, &n) || n < 0 || n > INT32_MAX))
        refuse(s, key);
    return (int32_t)n;
}

static uint32_t regex(struct spelled *s, const char *source, uint32_t next)
{
    struct build *b = s->c->b;
    return dfa_embed(b, dfa_of_regex(b, source, strlen(source), true), false, next);
}

/* A text by its schema: NULL: any. */
static uint32_t spell_text(struct spelled *s, const struct json *schema, uint32_t next)
{
    static const char *const known[] = {"pattern", "minLength", "maxLength", NULL};
    struct build *b = s->c->b;
    struct grammar_tag quote = s->c->k->quote;
    check_keywords(s, schema, known);
    size_t n;
    const char *pattern = json_string_of(json_member(schema, "pattern"), &n);
    int32_t min = bound_of(s, schema, "minLength", 0);
    int32_t max = bound_of(s, schema, "maxLength", REPEAT_ENDLESS);
    bool bounded = min > 0 || max < REPEAT_ENDLESS;
    bool special = !is_python(s) && (uint8_t)quote.at[0] == VOCAB_SPECIAL;
    if (!is_python(s) && pattern == NULL && !bounded && !special)
        return node_tag(b, quote, node_up_to(b, quote, next, NODE_ID_FAIL));
    if (!is_python(s) && !special)
        refuse(s, pattern != NULL ? "pattern" : "minLength");
    const struct dfa *d = pattern != NULL ? dfa_of_regex(b, pattern, n, false) : dfa_any(b);
    if (bounded)
        d = dfa_combine(b, d, dfa_length(b, min, max), DFA_AND);
    if (!is_python(s))
        return node_tag(b, quote, dfa_embed(b, d, false, node_tag(b, quote, next)));
    return node_range(b, '"', '"', dfa_embed(b, d, true, node_range(b, '"', '"', next)));
}

/* A value of an enum. */
static uint32_t spell_value(struct spelled *s, const struct json *v, uint32_t next)
{
    struct build *b = s->c->b;
    size_t n;
    int64_t i;
    bool on = false;
    char digits[32];
    const char *t = json_string_of(v, &n);
    if (t != NULL && is_python(s))
        return node_quoted(b, t, n, next);
    if (t != NULL)
        return node_tag(b, s->c->k->quote,
                        node_bytes(b, t, n, node_tag(b, s->c->k->quote, next)));
    if (json_bool_of(v, &on))
        return text(b, is_python(s) ? (on ? "True" : "False") : (on ? "true" : "false"),
                    next);
    if (json_kind(v) == JSON_KIND_NULL)
        return text(b, is_python(s) ? "None" : "null", next);
    if (!json_int_of(v, &i))
        refuse(s, "enum");
    snprintf(digits, sizeof digits, "%lld", (long long)i);
    return text(b, digits, next);
}

/* A list of min to max elements of a rule. */
static uint32_t spell_list(struct spelled *s, uint32_t rule, int32_t min, int32_t max,
                           uint32_t next)
{
    struct build *b = s->c->b;
    uint32_t end = node_range(b, ']', ']', next), some = NODE_ID_FAIL;
    if (max > 0) {
        uint32_t more = repeat_begin(b, min > 0 ? min - 1 : 0,
                                     max == REPEAT_ENDLESS ? max : max - 1, end);
        repeat_end(
            b, more,
            node_range(b, ',', ',', gap(b, node_call(b, rule, repeat_again(b, more)))));
        some = node_call(b, rule, more);
    }
    if (min == 0)
        some = max > 0 ? node_either(b, some, end) : end;
    return node_range(b, '[', '[', some);
}

static uint32_t spell_key(struct spelled *s, const char *key, enum member_form form,
                          uint32_t value)
{
    struct build *b = s->c->b;
    if (form == MEMBER_DICT)
        return member(b, key, value);
    return text(b, key, text(b, form == MEMBER_BRACES ? ":" : "=", value));
}

/* The members of an object in the order of its schema; optional ones may be left out. */
static uint32_t spell_members(struct spelled *s, const struct json *schema, int depth,
                              enum member_form form, uint32_t next)
{
    struct build *b = s->c->b;
    const struct json *properties = json_member(schema, "properties");
    size_t n = json_count(properties), i = 0;
    const char **keys = build_alloc(b, (n + 1) * sizeof *keys);
    for (struct json_iter it = json_begin(properties); json_next(&it);)
        keys[i++] = it.key;
    for (size_t k = 0; k < json_count(json_member(schema, "required")); k++) {
        const char *name = json_string_of(json_at(json_member(schema, "required"), k),
                                          NULL);
        if (name == NULL || json_member(properties, name) == NULL)
            refuse(s, "required");
    }
    uint32_t none = next, some = next; /* behind no member, and behind one */
    for (; i > 0; i--) {
        const char *key = keys[i - 1];
        uint32_t rule = rule_new(b);
        rule_set(b, rule, spell(s, json_member(properties, key), depth, NODE_ID_RETURN));
        uint32_t at = spell_key(s, key, form, node_call(b, rule, some));
        uint32_t again = node_range(b, ',', ',', gap(b, at));
        bool required = is_required(schema, key);
        none = required ? at : node_either(b, at, none);
        some = required ? again : node_either(b, again, some);
    }
    return none;
}

/* The rule of any value. */
static uint32_t spell_any(struct spelled *s)
{
    struct build *b = s->c->b;
    bool python = is_python(s);
    if (s->any != 0)
        return s->any - 1;
    uint32_t rule = rule_new(b);
    s->any = rule + 1;
    const uint32_t kinds[] = {
        spell_text(s, NULL, NODE_ID_RETURN),
        regex(s, python ? "True|False|None|" NUMBER : "true|false|null|" NUMBER,
              NODE_ID_RETURN),
        spell_list(s, rule, 0, REPEAT_ENDLESS, NODE_ID_RETURN)};
    rule_set(b, rule, node_split(b, kinds, 3));
    return rule;
}

static uint32_t spell_type(struct spelled *s, const struct json *schema, const char *type,
                           bool alone, int depth, uint32_t next)
{
    static const char *const of_list[] = {"items", "minItems", "maxItems", NULL};
    static const char *const of_object[] = {"properties", "required",
                                            "additionalProperties", NULL};
    static const char *const none[] = {NULL};
    struct build *b = s->c->b;
    bool integer = strcmp(type, "integer") == 0;
    if (strcmp(type, "string") == 0)
        return spell_text(s, schema, next);
    if (strcmp(type, "array") == 0) {
        const struct json *items = json_member(schema, "items");
        uint32_t rule;
        check_keywords(s, schema, of_list);
        if (json_kind(items) == JSON_KIND_OBJECT) {
            rule = rule_new(b);
            rule_set(b, rule, spell(s, items, depth, NODE_ID_RETURN));
        } else {
            rule = spell_any(s);
        }
        return spell_list(s, rule, bound_of(s, schema, "minItems", 0),
                          bound_of(s, schema, "maxItems", REPEAT_ENDLESS), next);
    }
    if (strcmp(type, "object") == 0) {
        check_keywords(s, schema, of_object);
        return node_range(b, '{', '{',
                          spell_members(s, schema, depth,
                                        is_python(s) ? MEMBER_DICT : MEMBER_BRACES,
                                        node_range(b, '}', '}', next)));
    }
    if ((integer || strcmp(type, "number") == 0) && alone)
        return node_call(b, schema_root(b, schema, NULL, s->c->loose), next);
    static const struct {
        const char *type, *json, *python;
    } plain[] = {{"integer", "-?(0|[1-9][0-9]{0,17})", "-?(0|[1-9][0-9]{0,17})"},
                 {"number", NUMBER, NUMBER},
                 {"null", "null", "None"},
                 {"boolean", "true|false", "True|False"}};
    check_keywords(s, schema, none);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(type, plain[i].type) == 0)
            return regex(s, is_python(s) ? plain[i].python : plain[i].json, next);
    refuse(s, type);
}

/* Follows references within the tool's schema. */
static const struct json *resolve(struct spelled *s, const struct json *schema, int *depth)
{
    const char *ref;
    while ((ref = json_string_of(json_member(schema, "$ref"), NULL)) != NULL) {
        static const char *const heads[] = {"$defs", "definitions"};
        const struct json *to = NULL;
        for (int i = 0; i < 2; i++) {
            size_t n = strlen(heads[i]);
            if (strncmp(ref, "#/", 2) == 0 && strncmp(ref + 2, heads[i], n) == 0 &&
                ref[2 + n] == '/')
                to = json_member(json_member(s->root, heads[i]), ref + 3 + n);
        }
        if (to == NULL || ++*depth > MAX_NESTED)
            refuse(s, "$ref");
        schema = to;
    }
    return schema;
}

static uint32_t spell(struct spelled *s, const struct json *schema, int depth,
                      uint32_t next)
{
    static const char *const alone[] = {"anyOf", NULL}, *const listed[] = {"enum", "const",
                                                                           NULL};
    struct build *b = s->c->b;
    depth++;
    schema = resolve(s, schema, &depth);
    if (depth > MAX_NESTED)
        refuse(s, "$ref");
    const struct json *many = json_member(schema, "anyOf");
    const struct json *types = json_member(schema, "type"),
                      *one = json_member(schema, "const");
    const char *type = json_string_of(types, NULL);
    bool is_enum = json_member(schema, "enum") != NULL;
    many = many == NULL && is_enum ? json_member(schema, "enum") : many;
    many = many == NULL && json_kind(types) == JSON_KIND_ARRAY ? types : many;
    uint32_t at = NODE_ID_FAIL;
    if (one != NULL || is_enum)
        check_keywords(s, schema, listed);
    else if (json_member(schema, "anyOf") != NULL)
        check_keywords(s, schema, alone);
    if (one != NULL)
        return spell_value(s, one, next);
    for (size_t i = 0; i < json_count(many); i++) {
        const struct json *v = json_at(many, i);
        const char *name = json_string_of(v, NULL);
        uint32_t way = is_enum ? spell_value(s, v, next)
                       : many == types && name != NULL
                           ? spell_type(s, schema, name, false, depth, next)
                           : spell(s, v, depth, next);
        at = at == NODE_ID_FAIL ? way : node_either(b, at, way);
    }
    if (many != NULL)
        return at;
    if (type == NULL && json_member(schema, "properties") != NULL)
        type = "object";
    if (type != NULL)
        return spell_type(s, schema, type, true, depth, next);
    static const char *const none[] = {NULL};
    check_keywords(s, schema, none);
    return node_call(b, spell_any(s), next);
}

/* The arguments of a tool, without what encloses them. */
static uint32_t spelled_arguments(struct calls *c, const struct grammar_tool *t,
                                  uint32_t next)
{
    static const char *const known[] = {"properties", "required", "additionalProperties",
                                        "strict", NULL};
    struct spelled s = {.c = c, .root = t->schema};
    check_keywords(&s, t->schema, known);
    return spell_members(
        &s, t->schema, 0,
        c->k->body == GRAMMAR_CALL_PYTHON ? MEMBER_ARGUMENT : MEMBER_BRACES, next);
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
        else if (k->body == GRAMMAR_CALL_BRACES || k->body == GRAMMAR_CALL_PYTHON) {
            bool braces = k->body == GRAMMAR_CALL_BRACES;
            uint8_t open = braces ? '{' : '(', close = braces ? '}' : ')';
            one = spelled_arguments(c, t, node_range(b, close, close, next));
            one = text(b, t->name, node_range(b, open, open, one));
        } else
            one = text(
                b, t->name,
                node_tag(b, k->name_end, gap(b, tagged_arguments(c, t, gap(b, next)))));
        at = at == NODE_ID_FAIL ? one : node_either(b, at, one);
    }
    return at;
}

/* An answer of messages: thoughts and texts, until a call or the end of a text ends it. */
static uint32_t messages(struct build *b, const struct grammar_calls *k, uint32_t calls,
                         uint32_t next)
{
    uint32_t first = node_edges(b, NULL, 0), at = calls;
    for (int i = 0; i < 2; i++)
        at = node_either(
            b, at, node_tag(b, k->say[i], node_up_to(b, k->message_end, first, next)));
    uint32_t thought = node_up_to(b, k->message_end, first, NODE_ID_FAIL);
    at = node_either(b, at, node_tag(b, k->think, thought));
    b->nodes[first] = b->nodes[at];
    return first;
}

/* Calls from the head on, which is the section's tag or that of the first call. */
static uint32_t some_calls(struct calls *c, struct grammar_tag head, uint32_t next)
{
    struct build *b = c->b;
    const struct grammar_calls *k = c->k;
    int32_t most = k->many ? MAX_CALLS : 1;
    uint32_t end = k->section_end.n == 0 ? next : gap(b, node_tag(b, k->section_end, next));
    uint32_t at, rule = rule_new(b);
    if (k->is_list) {
        end = node_range(b, ']', ']', gap(b, node_tag(b, k->close, end)));
        rule_set(b, rule, call(c, NODE_ID_RETURN));
        uint32_t more = repeat_begin(b, 0, most - 1, gap(b, end));
        repeat_end(
            b, more,
            node_range(b, ',', ',', gap(b, node_call(b, rule, repeat_again(b, more)))));
        at = gap(b, node_range(b, '[', '[', gap(b, node_call(b, rule, more))));
    } else {
        uint32_t close = node_tag(b, k->close, node_tag(b, k->close_more, NODE_ID_RETURN));
        uint32_t one = call(c, gap(b, close));
        rule_set(b, rule, k->is_tight ? one : gap(b, one));
        uint32_t more = repeat_begin(b, 0, most - 1, end);
        uint32_t again = node_call(b, rule, repeat_again(b, more));
        repeat_end(b, more, gap(b, node_tag(b, k->open, again)));
        at = node_call(b, rule, more);
    }
    if (k->section.n > 0)
        at = gap(b, node_tag(b, k->open, at));
    return node_tag(b, head, at);
}

uint32_t calls_root(struct build *b, const struct grammar_calls *k, struct textbuf *loose,
                    uint32_t next)
{
    struct calls c = {.b = b, .k = k, .loose = loose};
    if (k->n_tools == 0)
        build_fault(b, ERR_USAGE, "a call is wanted, but no tool is offered");
    c.rules = build_alloc(b, k->n_tools * sizeof *c.rules);
    struct grammar_tag head = k->section.n > 0 ? k->section : k->open;
    size_t n = 0; /* the tag's bytes before its first blank */
    while (n < head.n && head.at[n] != ' ')
        n += (uint8_t)head.at[n] == VOCAB_SPECIAL ? VOCAB_SPECIAL_BYTES : 1;
    struct grammar_tag first = {head.at, n}, rest = {head.at + n, head.n - n};
    bool apart = k->may_talk && k->message_end.n == 0;
    uint32_t at = some_calls(&c, apart ? rest : head, next);
    for (int i = 0; i < 3 && k->also[i].open.n > 0; i++) {
        struct grammar_calls other = *k;
        other.open = k->also[i].open;
        other.name_end = k->also[i].name_end;
        c.k = &other;
        at = node_either(b, at, some_calls(&c, other.open, next));
    }
    return apart         ? node_up_to(b, first, at, next)
           : k->may_talk ? messages(b, k, at, next)
                         : at;
}
