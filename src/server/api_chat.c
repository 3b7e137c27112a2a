/* api_chat.c - POST /v1/chat/completions: a conversation in, the next message out.
 *
 * Of our own earlier answers the prompt has the tokens that were generated (retoken.h). */
#include <stdlib.h>
#include <string.h>

#include "server/call.h"
#include "server/generation.h"
#include "sessions/prompt.h"
#include "sessions/retoken.h"
#include "server/shape.h"

void api_chat(struct call *c)
{
    struct gen_params p;
    struct fault f;
    struct prompt_ids prompt = {0};
    struct hcache_err err = {0};
    struct prompt_text text = {0};
    char what[200] = "";
    const struct json *body = call_body(c, REQUEST_CHAT);
    if (body == NULL)
        return;
    int rc = request_parse(body, REQUEST_CHAT, &p, &f);
    if (rc == 0)
        rc = call_check_name(c, p.model, &f);
    struct chat_source source = {.messages = p.messages,
                                 .tools = p.tools,
                                 .kwargs = p.kwargs,
                                 .plain = c->s->o.plain_chat,
                                 .parse_special = c->s->o.parse_special};
    if (rc == 0)
        rc = prompt_render(call_model(c), &source, &text, &f);
    if (rc == 0)
        rc = prompt_fits(call_model(c), text.text, text.n, "messages", &f);
    if (rc == 0 && retoken_encode(call_model(c), c->s->answers, c->salt, &text, &prompt,
                                  what, &err) != 0)
        rc = fault_set(&f, 400, NULL, "messages", "'messages': %s", err.msg);
    if (rc == 0) {
        generation_start(c, &shape_completions, NULL, &p, &prompt, 1, &text, what);
    } else {
        prompt_text_deinit(&text);
        call_fault(c, &f);
    }
}
