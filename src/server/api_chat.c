/* api_chat.c - POST /v1/chat/completions: a conversation in, the next message out.
 *
 * The model's own chat template makes the prompt.  A model without one is refused: a format that it
 * was not trained on gives bad answers that nobody would notice.  --plain-chat allows it all the
 * same, for models that were never trained on chats, with this text and nothing else:
 *
 *     ROLE: CONTENT\n  for every message, then  "assistant:"
 *
 * (An answer follows its colon as it was generated, which usually begins with a space.)
 *
 * Of our own earlier answers the prompt has the tokens that were generated (retoken.h). */
#include <stdlib.h>
#include <string.h>

#include "server/call.h"
#include "server/generation.h"
#include "server/retoken.h"

static bool is_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", NULL};
    for (int i = 0; role != NULL && roles[i] != NULL; i++) {
        if (strcmp(roles[i], role) == 0)
            return true;
    }
    return false;
}

/* Text, null, or a list of parts {"type": "text", "text": "..."}: all of them in a row. */
static int read_content(const struct json *v, struct textbuf *out, struct fault *f)
{
    size_t n;
    const char *text = json_string_of(v, &n);
    if (text != NULL)
        textbuf_add(out, text, n);
    if (text != NULL || json_kind(v) == JSON_KIND_NULL)
        return 0;
    if (json_kind(v) != JSON_KIND_ARRAY)
        return fault_set(
            f, 400, NULL, "messages",
            "'content' of a message must be a text or a list of parts, it is %s",
            json_kind_name(v));
    for (size_t i = 0; i < json_count(v); i++) {
        const struct json *part = json_at(v, i);
        const char *type = json_string_of(json_member(part, "type"), NULL);
        text = json_string_of(json_member(part, "text"), &n);
        if (type == NULL || strcmp(type, "text") != 0 || text == NULL)
            return fault_set(
                f, 400, "unsupported_value", "messages",
                "'content' has a part that is not {\"type\": \"text\", \"text\": ...}; "
                "only text is supported");
        textbuf_add(out, text, n);
    }
    return 0;
}

/* Messages as every template understands them: role and text. The caller frees *out. */
static int normalize(const struct json *messages, struct json **out, struct fault *f)
{
    struct json *list = json_new_array();
    int rc = 0;
    *out = list;
    if (json_kind(messages) != JSON_KIND_ARRAY || json_count(messages) == 0)
        return fault_set(f, 400, NULL, "messages", "'messages' must be a list of messages");
    for (size_t i = 0; rc == 0 && i < json_count(messages); i++) {
        const struct json *m = json_at(messages, i);
        const char *role = json_string_of(json_member(m, "role"), NULL);
        struct textbuf text = {0};
        if (!is_role(role))
            rc = fault_set(
                f, 400, NULL, "messages",
                "message %zu has no role among system, developer, user, assistant", i);
        else if (json_count(json_member(m, "tool_calls")) > 0)
            rc = fault_set(f, 400, "unsupported_parameter", "messages",
                           "message %zu has 'tool_calls', which are not supported", i);
        else
            rc = read_content(json_member(m, "content"), &text, f);
        if (rc == 0) {
            struct json *o = json_new_object();
            json_put_string(o, "role", strcmp(role, "developer") == 0 ? "system" : role);
            json_put_bytes(o, "content", text.p != NULL ? text.p : "", text.n);
            json_push(list, o);
        }
        textbuf_free(&text);
    }
    return rc;
}

static char *plain_text(const struct json *messages)
{
    struct textbuf text = {0};
    for (size_t i = 0; i < json_count(messages); i++) {
        const struct json *m = json_at(messages, i);
        const char *role = json_string_of(json_member(m, "role"), NULL);
        size_t n;
        const char *content = json_string_of(json_member(m, "content"), &n);
        textbuf_addf(&text, "%s:%s", role, strcmp(role, "assistant") == 0 ? "" : " ");
        textbuf_add(&text, content, n);
        textbuf_add(&text, "\n", 1);
    }
    textbuf_addf(&text, "assistant:");
    return text.p;
}

/* What of the request the template wants, as JSON text. */
static void chat_request(const struct gen_params *p, struct textbuf *out)
{
    const struct json *values[] = {p->messages, p->tools, p->kwargs};
    static const char *const names[] = {
        "{\"messages\":", ",\"tools\":", ",\"chat_template_kwargs\":"};
    for (int i = 0; i < 3; i++) {
        char *text = values[i] != NULL ? json_text(values[i], 0) : NULL;
        if (text != NULL)
            textbuf_addf(out, "%s%s", names[i], text);
        free(text);
    }
    textbuf_add(out, "}", 1);
}

static int render_plain(const struct gen_params *p, char **text, struct fault *f)
{
    struct json *messages = NULL;
    int rc = normalize(p->messages, &messages, f);
    if (rc == 0)
        *text = plain_text(messages);
    json_free(messages);
    return rc;
}

/* The conversation as the model is to see it. The caller frees *text. */
static int render(struct call *c, const struct gen_params *p, char **text, unsigned *flags,
                  struct fault *f)
{
    struct hcache_err err = {0};
    struct hcache_model_info info;
    struct textbuf request = {0};
    size_t n;
    hcache_model_info(call_model(c), &info);
    if (p->tools != NULL && !info.has_tools)
        return fault_set(f, 400, "unsupported_parameter", "tools",
                         "'tools' are not supported by this model's chat template");
    *flags = HCACHE_ADD_SPECIAL;
    if (!info.has_chat_template && c->s->o.plain_chat)
        return render_plain(p, text, f);
    if (!info.has_chat_template)
        return fault_set(
            f, 400, "no_chat_template", "messages",
            "this model has no chat template: use /v1/completions, or start the "
            "server with --plain-chat");
    if (json_kind(p->messages) != JSON_KIND_ARRAY || json_count(p->messages) == 0)
        return fault_set(f, 400, NULL, "messages", "'messages' must be a list of messages");
    chat_request(p, &request);
    *flags = HCACHE_PARSE_SPECIAL;
    int rc = hcache_chat_render(call_model(c), request.p, request.n, text, &n, &err);
    textbuf_free(&request);
    return rc == 0 ? 0 : fault_set(f, 400, NULL, "messages", "%s", err.msg);
}

void api_chat(struct call *c)
{
    struct gen_params p;
    struct fault f;
    struct prompt_ids prompt = {0};
    struct hcache_err err = {0};
    char *text = NULL, what[200] = "";
    unsigned flags = 0;
    const struct json *body = call_body(c);
    if (body == NULL)
        return;
    int rc = request_parse(body, REQUEST_CHAT, &p, &f);
    if (rc == 0)
        rc = call_check_name(c, p.model, &f);
    if (rc == 0)
        rc = render(c, &p, &text, &flags, &f);
    if (rc == 0 && retoken_encode(call_model(c), c->s->memory, c->salt, text, strlen(text),
                                  flags, &prompt, what, &err) != 0)
        rc = fault_set(&f, 400, NULL, "messages", "'messages': %s", err.msg);
    if (rc == 0) {
        generation_start(c, &p, &prompt, 1, text, what);
    } else {
        free(text);
        call_fault(c, &f);
    }
}
