/* api_chat.c - POST /v1/chat/completions and POST /v1/completions: the way in from HTTP. The code
 * that reads, generates and answers is in src/api. */
#include "server/call.h"

#include "api/prompts.h"
#include "api/shape.h"

static void complete(struct call *c, unsigned kind)
{
    struct gen_params p;
    struct prompts ps = {0};
    struct fault f;
    const struct json *body = call_body(c, kind);
    if (body == NULL)
        return;
    struct client client = call_client(c);
    if (request_parse(body, kind, &p, &f) != 0 ||
        client_check_model(&client, p.model, &f) != 0 ||
        prompts_read(&client, &p, c->json, &ps, &f) != 0) {
        prompts_deinit(&ps);
        call_fault(c, &f);
        return;
    }
    bool is_chat = kind == REQUEST_CHAT;
    call_generate(c, &shape_completions, NULL, &p, ps.p, ps.n, is_chat ? &ps.text : NULL,
                  ps.what);
}

void api_chat(struct call *c)
{
    complete(c, REQUEST_CHAT);
}

void api_completions(struct call *c)
{
    complete(c, REQUEST_COMPLETION);
}
