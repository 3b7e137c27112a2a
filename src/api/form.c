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
    const char *type = json_string_of(json_member(v, "type"), NULL);
    const struct json *inner = json_member(v, "json_schema");
    if (json_kind(v) == JSON_KIND_NULL || (type != NULL && strcmp(type, "text") == 0))
        return 0;
    inner = json_kind(inner) == JSON_KIND_OBJECT ? inner : v;
    w.value = json_member(inner, "schema");
    if (type != NULL && strcmp(type, "json_object") == 0)
        return w.value != NULL && !is_schema(w.value)
                   ? must_be(field, "{\"type\": \"json_object\"}", w.value, f)
                   : set(out, &w, f);
    if (type == NULL || strcmp(type, "json_schema") != 0)
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

int form_read_choice(const char *field, const struct json *choice, struct form_want *out,
                     struct fault *f)
{
    struct form_want w = {.field = field, .kind = HCACHE_FORM_CALLS};
    const char *text = json_string_of(choice, NULL);
    const struct json *name = json_member(choice, "name");
    if (text == NULL)
        text = json_string_of(json_member(choice, "type"), NULL);
    if (name == NULL)
        name = json_member(json_member(choice, "function"), "name");
    if (text != NULL && (strcmp(text, "required") == 0 || strcmp(text, "any") == 0))
        return set(out, &w, f);
    w.only = json_string_of(name, NULL);
    bool named = text != NULL &&
                 (strcmp(text, "function") == 0 || strcmp(text, "tool") == 0);
    if (!named || w.only == NULL)
        return fault_set(f, 400, "unsupported_value", field,
                         "'%-s' must be auto, none, required (any), or name a function",
                         field);
    return set(out, &w, f);
}

static const char *text_of(const struct form_want *w, const struct gen_params *p,
                           char **own, size_t *n)
{
    bool text = w->kind == HCACHE_FORM_GBNF || w->kind == HCACHE_FORM_REGEX;
    if (text)
        return json_string_of(w->value, n);
    *own = w->kind == HCACHE_FORM_CALLS ? json_text(p->tools, 0)
           : w->value != NULL           ? json_text(w->value, 0)
                                        : strdup("{\"type\":\"object\"}");
    *n = *own == NULL ? 0 : strlen(*own);
    return *own;
}

int form_compile(struct hcache *h, const struct gen_params *p, struct hcache_form **out,
                 char **unenforced, struct fault *f)
{
    const struct form_want *w = &p->form;
    struct hcache_err err = {0};
    char *own = NULL;
    *out = NULL;
    *unenforced = NULL;
    if (w->field == NULL)
        return 0;
    if (w->kind == HCACHE_FORM_CALLS && json_count(p->tools) == 0)
        return fault_set(f, 400, "invalid_request", w->field,
                         "'%-s' wants a call, but the request has no tools", w->field);
    struct hcache_form_opts o = {
        .kind = w->kind,
        .loose = w->loose,
        .only = w->only,
        .many = !p->one_call,
        .prompt_end = p->kind == REQUEST_COMPLETION ? NULL : p->prompt_end};
    o.text = text_of(w, p, &own, &o.n);
    int rc = o.text == NULL ? -1 : hcache_form_create(h, &o, out, unenforced, &err);
    free(own);
    if (rc == 0)
        return 0;
    if (o.text == NULL || rc == -ENOMEM)
        return fault_set(f, 503, "out_of_memory", NULL, "no memory for the answer's form");
    return fault_set(f, 400,
                     rc == HCACHE_E_UNSUPPORTED ? "unsupported_value" : "invalid_request",
                     w->field, "'%-s': %s", w->field, err.msg);
}
