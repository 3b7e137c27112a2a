/* form.c - see form.h. */
#include "api/form.h"

#include <errno.h>

#include <stdlib.h>
#include <string.h>

#include "api/request.h"

static int set(struct form_want *out, const struct form_want *w, struct fault *f)
{
    if (out->field != NULL)
        return fault_set(f, 400, "invalid_request", w->field,
                         "'%-s' and '%-s' both give the answer a form: give one",
                         out->field, w->field);
    *out = *w;
    return 0;
}

static int must_be(const char *field, const char *what, const struct json *v,
                   struct fault *f)
{
    return fault_set(f, 400, "invalid_request", field, "'%-s' must be %-s, it is %-s",
                     field, what, json_kind_name(v));
}

static bool is_schema(const struct json *v)
{
    return json_kind(v) == JSON_KIND_OBJECT || json_kind(v) == JSON_KIND_BOOL;
}

int form_read_value(const char *field, enum hcache_form_kind kind, const struct json *v,
                    struct form_want *out, struct fault *f)
{
    struct form_want w = {.field = field, .kind = kind, .value = v};
    if (json_kind(v) == JSON_KIND_NULL)
        return 0;
    bool text = kind == HCACHE_FORM_GBNF || kind == HCACHE_FORM_REGEX;
    if (text && json_string_of(v, NULL) == NULL)
        return must_be(field, "a text without zero bytes", v, f);
    if (text && json_string_of(v, NULL)[0] == 0)
        return 0; /* clients send "" for none */
    if (kind == HCACHE_FORM_CHOICE && json_kind(v) != JSON_KIND_ARRAY)
        return must_be(field, "a list of texts", v, f);
    if (kind == HCACHE_FORM_SCHEMA && !is_schema(v))
        return must_be(field, "a JSON schema", v, f);
    return set(out, &w, f);
}

int form_read_format(const char *field, const struct json *v, struct form_want *out,
                     struct fault *f)
{
    struct form_want w = {.field = field, .kind = HCACHE_FORM_SCHEMA};
    const struct json *type = json_member(v, "type"),
                      *inner = json_member(v, "json_schema");
    if (json_kind(v) == JSON_KIND_NULL || json_string_is(type, "text"))
        return 0;
    inner = json_kind(inner) == JSON_KIND_OBJECT ? inner : v;
    w.value = json_member(inner, "schema");
    if (json_string_is(type, "json_object"))
        return w.value != NULL && !is_schema(w.value)
                   ? must_be(field, "{\"type\": \"json_object\"}", w.value, f)
                   : set(out, &w, f);
    if (!json_string_is(type, "json_schema"))
        return fault_set(f, 400, "unsupported_value", field,
                         "'%-s' must have the type text, json_object or json_schema",
                         field);
    if (!is_schema(w.value))
        return fault_set(f, 400, "invalid_request", field,
                         "'%-s' of type json_schema must have a schema, an object", field);
    bool strict = true;
    json_bool_of(json_member(inner, "strict"), &strict);
    w.loose = !strict;
    return set(out, &w, f);
}

int form_read_structured(const char *field, const struct json *v, struct form_want *out,
                         struct fault *f)
{
    static const struct {
        const char *name;
        enum hcache_form_kind kind;
    } kinds[] = {{"json", HCACHE_FORM_SCHEMA},
                 {"regex", HCACHE_FORM_REGEX},
                 {"choice", HCACHE_FORM_CHOICE},
                 {"grammar", HCACHE_FORM_GBNF}};
    if (json_kind(v) == JSON_KIND_NULL)
        return 0;
    if (json_kind(v) != JSON_KIND_OBJECT)
        return must_be(field, "an object", v, f);
    for (struct json_iter it = json_begin(v); json_next(&it);) {
        bool known = json_kind(it.value) == JSON_KIND_NULL, any = false;
        if (strcmp(it.key, "json_object") == 0 && json_bool_of(it.value, &any)) {
            struct form_want w = {.field = field, .kind = HCACHE_FORM_SCHEMA};
            if (any && set(out, &w, f) != 0)
                return -1;
            known = true;
        }
        for (size_t i = 0; !known && i < sizeof kinds / sizeof *kinds; i++) {
            if (strcmp(it.key, kinds[i].name) != 0)
                continue;
            if (form_read_value(field, kinds[i].kind, it.value, out, f) != 0)
                return -1;
            known = true;
        }
        if (!known)
            return fault_set(
                f, 400, "unsupported_parameter", field,
                "'%-s' has a member '%.100s' that is not supported: json, regex, "
                "choice, grammar and json_object are",
                field, it.key);
    }
    return 0;
}

/* Returns the name of a tool in the form of any API. */
static const char *name_of(const struct json *tool)
{
    const struct json *name = json_member(json_member(tool, "function"), "name");
    return json_string_of(name != NULL ? name : json_member(tool, "name"), NULL);
}

/* Reads {"mode": ..., "tools": [...]}. */
static int read_allowed(const char *field, const struct json *v, struct call_want *out,
                        struct fault *f)
{
    const struct json *mode = json_member(v, "mode"), *tools = json_member(v, "tools");
    bool required = json_string_is(mode, "required");
    if ((!required && !json_string_is(mode, "auto")) || json_count(tools) == 0)
        return fault_set(f, 400, "unsupported_value", field,
                         "'%-s' of type allowed_tools must have a mode, auto or required, "
                         "and tools",
                         field);
    *out = (struct call_want){.field = required ? field : NULL, .allowed = tools};
    return 0;
}

int form_read_choice(const char *field, const struct json *choice, struct call_want *out,
                     struct fault *f)
{
    const struct json *text = json_kind(choice) == JSON_KIND_STRING
                                  ? choice
                                  : json_member(choice, "type");
    const struct json *allowed = json_member(choice, "allowed_tools");
    if (json_string_is(text, "allowed_tools"))
        return read_allowed(field, allowed != NULL ? allowed : choice, out, f);
    *out = (struct call_want){.field = field};
    if (json_string_is(text, "required") || json_string_is(text, "any"))
        return 0;
    out->only = name_of(choice);
    bool named = json_string_is(text, "function") || json_string_is(text, "custom") ||
                 json_string_is(text, "tool");
    if (out->only == NULL)
        out->only = json_string_of(json_member(json_member(choice, "custom"), "name"),
                                   NULL);
    return named && out->only != NULL
               ? 0
               : fault_set(f, 400, "unsupported_value", field,
                           "'%-s' must be auto, none, required (any), allowed_tools, or "
                           "name a function",
                           field);
}

struct json *form_callable(const struct gen_params *p)
{
    const struct json *tools = p->offered != NULL ? p->offered : p->tools;
    if (p->no_tools || json_count(tools) == 0)
        return NULL;
    if (p->calls.allowed == NULL)
        return json_share(tools);
    struct json *list = json_new_array();
    for (size_t i = 0; i < json_count(tools); i++) {
        const char *name = name_of(json_at(tools, i));
        for (size_t k = 0; name != NULL && k < json_count(p->calls.allowed); k++) {
            const char *allowed = name_of(json_at(p->calls.allowed, k));
            if (allowed != NULL && strcmp(allowed, name) == 0) {
                json_push(list, json_share(json_at(tools, i)));
                break;
            }
        }
    }
    return list;
}

static bool any_strict(const struct json *tools)
{
    bool strict = false;
    for (size_t i = 0; i < json_count(tools) && !strict; i++) {
        const struct json *tool = json_at(tools, i), *inner = json_member(tool, "function");
        (void)json_bool_of(json_member(inner != NULL ? inner : tool, "strict"), &strict);
    }
    return strict;
}

static int compile_fault(int rc, const char *field, const struct hcache_err *err,
                         struct fault *f)
{
    if (rc == -ENOMEM)
        return fault_set(f, 503, "out_of_memory", NULL, "no memory for the answer's form");
    return fault_set(f, 400,
                     rc == HCACHE_E_UNSUPPORTED ? "unsupported_value" : "invalid_request",
                     field, "'%-s': %s", field, err->msg);
}

/* Compiles the form of an answer that is a call, or that may be one of a strict tool. */
static int compile_calls(struct hcache *h, struct gen_params *p, const char *tools,
                         struct hcache_form_opts *o, struct hcache_form **out,
                         struct fault *f)
{
    struct hcache_err err = {0};
    o->kind = HCACHE_FORM_CALLS;
    o->only = p->calls.only;
    o->may_talk = p->calls.field == NULL;
    o->text = tools;
    o->n = strlen(tools);
    int rc = hcache_form_create(h, o, out, NULL, &err);
    if (rc != 0 && rc != -ENOMEM && o->may_talk) {
        request_note_ignored(p, "tools.strict");
        return 0;
    }
    return rc == 0 ? 0 : compile_fault(rc, o->may_talk ? "tools" : p->calls.field, &err, f);
}

int form_compile(struct hcache *h, struct gen_params *p, const struct json *callable,
                 struct hcache_form **out, char **unenforced, struct fault *f)
{
    const struct form_want *w = &p->form;
    struct hcache_err err = {0};
    struct hcache_form_opts o = {
        .kind = w->kind,
        .loose = w->loose,
        .many = !p->one_call && p->calls.only == NULL, /* a named tool is called once */
        .prompt_end = p->kind == REQUEST_COMPLETION ? NULL : p->prompt_end};
    *out = NULL;
    *unenforced = NULL;
    if (p->calls.field != NULL && json_count(callable) == 0)
        return fault_set(f, 400, "invalid_request", p->calls.field,
                         "'%-s' wants a call, but the request has no such tool",
                         p->calls.field);
    bool calls = p->calls.field != NULL || (w->field == NULL && any_strict(callable));
    if (!calls && w->field == NULL)
        return 0;
    char *tools = json_count(callable) > 0 ? json_text(callable, 0) : NULL, *own = NULL;
    if (calls) {
        int rc = compile_calls(h, p, tools, &o, out, f);
        free(tools);
        return rc;
    }
    if (w->kind == HCACHE_FORM_GBNF || w->kind == HCACHE_FORM_REGEX)
        o.text = json_string_of(w->value, &o.n);
    else
        o.text = own = w->value != NULL ? json_text(w->value, 0)
                                        : strdup("{\"type\":\"object\"}");
    if (own != NULL)
        o.n = strlen(own);
    o.tools = tools;
    int rc = o.text == NULL ? -ENOMEM : hcache_form_create(h, &o, out, unenforced, &err);
    free(own);
    free(tools);
    return rc == 0 ? 0 : compile_fault(rc, w->field, &err, f);
}
