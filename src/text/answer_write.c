/* answer_write.c - see answer_write.h. */
#include "text/answer_write.h"

#include <stdlib.h>
#include <string.h>

static void put(struct textbuf *out, const char *s)
{
    textbuf_add(out, s, strlen(s));
}

bool answer_writes(const struct call_syntax *s)
{
    return s != NULL && ((s->body == CALL_OBJECT && s->name_key != NULL) ||
                         s->body == CALL_JSON || s->body == CALL_PYTHON);
}

void answer_write_tag(struct textbuf *out, const char *tag, bool marked)
{
    while (tag != NULL && *tag != 0) {
        size_t n = strcspn(tag, " ");
        if (n > 0 && marked)
            put(out, ANSWER_TAG_BEGIN);
        textbuf_add(out, tag, n);
        if (n > 0 && marked)
            put(out, ANSWER_TAG_END);
        if (tag[n] == ' ')
            put(out, "\n");
        tag += n + (tag[n] == ' ');
    }
}

/* Appends a value in the form of Python. */
static void put_python(struct textbuf *out, const struct json *v)
{
    bool on = false;
    struct json_iter it = json_begin(v);
    switch (json_kind(v)) {
    case JSON_KIND_NULL:
        put(out, "None");
        break;
    case JSON_KIND_BOOL:
        (void)json_bool_of(v, &on);
        put(out, on ? "True" : "False");
        break;
    case JSON_KIND_ARRAY:
        put(out, "[");
        for (size_t i = 0; i < json_count(v); i++) {
            put(out, i > 0 ? ", " : "");
            put_python(out, json_at(v, i));
        }
        put(out, "]");
        break;
    case JSON_KIND_OBJECT:
        put(out, "{");
        for (bool first = true; json_next(&it); first = false) {
            struct json *key = json_new_bytes(it.key, strlen(it.key));
            put(out, first ? "" : ", ");
            json_append(key, 0, out);
            put(out, ": ");
            put_python(out, it.value);
            json_free(key);
        }
        put(out, "}");
        break;
    default: {
        char *text = json_text_exact(v);
        put(out, text);
        free(text);
    }
    }
}

static bool is_python_name(const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-.";
    return *s != 0 && s[strspn(s, letters)] == 0;
}

static bool put_call(struct textbuf *out, const struct call_syntax *s, const char *name,
                     const struct json *arguments)
{
    struct json *o = json_new_object();
    struct json_iter it = json_begin(arguments);
    bool good = true;
    char *text = NULL;
    switch (s->body) {
    case CALL_OBJECT:
        json_put_string(o, s->name_key, name);
        json_put(o, s->arguments_key, json_share(arguments));
        text = json_text_exact(o);
        put(out, text);
        break;
    case CALL_JSON:
        text = json_text_exact(arguments);
        put(out, text);
        break;
    default:
        good = is_python_name(name);
        put(out, name);
        put(out, "(");
        for (bool first = true; json_next(&it); first = false) {
            good = good && is_python_name(it.key);
            put(out, first ? "" : ", ");
            put(out, it.key);
            put(out, "=");
            put_python(out, it.value);
        }
        put(out, ")");
    }
    free(text);
    json_free(o);
    return good;
}

bool answer_write_calls(struct textbuf *out, const struct call_syntax *s,
                        const struct json *calls, bool marked)
{
    /* one pair of tags around all calls, or one around each */
    bool is_list = (s->body == CALL_OBJECT && s->is_list) || s->body == CALL_PYTHON;
    bool on_lines = s->body == CALL_OBJECT && s->close != NULL && !is_list;
    bool good = answer_writes(s);
    answer_write_tag(out, s->section, marked);
    for (size_t i = 0; good && i < json_count(calls); i++) {
        const struct json *function = json_member(json_at(calls, i), "function");
        const struct json *arguments = json_member(function, "arguments");
        const char *name = json_string_of(json_member(function, "name"), NULL);
        good = name != NULL && json_kind(arguments) == JSON_KIND_OBJECT;
        if (!good)
            break;
        if (i == 0 || !is_list) {
            put(out, i > 0 ? "\n" : "");
            answer_write_tag(out, s->open, marked);
            put(out, is_list ? "[" : on_lines ? "\n" : "");
        } else {
            put(out, ", ");
        }
        if (s->body == CALL_JSON) {
            put(out, s->name_prefix != NULL ? s->name_prefix : "");
            put(out, name);
            if (s->name_cut != NULL && s->name_cut[1] == 0) /* a number follows it */
                textbuf_addf(out, "%s%zu", s->name_cut, i);
            answer_write_tag(out, s->name_end, marked);
        }
        good = put_call(out, s, name, arguments);
        bool ends_line = on_lines || (s->name_end != NULL && strchr(s->name_end, ' '));
        put(out, ends_line ? "\n" : "");
        if (!is_list || i + 1 == json_count(calls)) {
            put(out, is_list ? "]" : "");
            answer_write_tag(out, s->close, marked);
            answer_write_tag(out, s->close_more, marked);
        }
    }
    answer_write_tag(out, s->section_end, marked);
    return good;
}
