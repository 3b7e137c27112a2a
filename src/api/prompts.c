/* prompts.c - see prompts.h.
 *
 * A chat is rendered by the model's template; its earlier answers have the tokens that were
 * generated (api/retoken.h). The `prompt` of a text completion is one of: a text, a list of
 * token ids, a list of texts, a list of lists of ids. Special tokens written in it count as
 * special tokens, because the user of that route writes the prompt format. */
#include "api/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "api/dates.h"
#include "api/retoken.h"

/* --- chats ------------------------------------------------------------------------------------ */

static int render_chat(const struct client *c, struct gen_params *p, struct prompts *ps,
                       struct fault *f)
{
    bool truncates = request_truncates(p, &c->truncation);
    struct chat_source source = {.messages = p->messages,
                                 .tools = p->tools,
                                 .kwargs = p->kwargs,
                                 .effort = p->effort,
                                 .thinking = p->thinking,
                                 .plain = c->plain_chat,
                                 .parse_special = c->parse_special,
                                 .truncates = truncates,
                                 .now = c->moment};
    char *salt = client_state_salt(c, p->cache_salt);
    int rc = dates_render(c->dates, c->h, salt, &source, &ps->text, f);
    free(salt);
    if (rc == 0 && truncates)
        p->n_system = prompt_system_tokens(c->h, p->messages);
    if (rc == 0)
        rc = prompt_fits(c->h, truncates, ps->text.text, ps->text.n, "messages", f);
    if (rc == 0)
        request_note_prompt(p, ps->text.text, ps->text.n);
    memcpy(p->unshown, ps->text.unshown, sizeof p->unshown);
    return rc;
}

static int encode_chat(const struct client *c, struct gen_params *p, struct prompts *ps,
                       struct fault *f)
{
    struct hcache_err err = {0};
    if (retoken_encode(c->h, c->answers, c->salt, &ps->text, &ps->p[0], ps->what, &err) !=
        0)
        return fault_refuse(f, err.code, "messages", "'messages': %s", err.msg);
    ps->n = 1;
    date_locate(c->h, &ps->text, &ps->p[0], &p->date);
    return 0;
}

/* --- text completions ------------------------------------------------------------------------- */

static int add_text(struct hcache *h, bool truncates, struct prompts *ps,
                    const struct json *v, struct fault *f)
{
    struct hcache_err err = {0};
    size_t n;
    const char *text = json_string_of(v, &n);
    struct prompt_ids *p = &ps->p[ps->n];
    if (text == NULL)
        return fault_set(f, 400, NULL, "prompt",
                         "'prompt' must hold texts or token ids, not %-s",
                         json_kind_name(v));
    if (prompt_fits(h, truncates, text, n, "prompt", f) != 0)
        return -1;
    if (hcache_encode(h, text, n, HCACHE_ADD_SPECIAL | HCACHE_PARSE_SPECIAL, &p->ids, &p->n,
                      &err) != 0)
        return fault_refuse(f, err.code, "prompt", "'prompt': %s", err.msg);
    ps->n++;
    return 0;
}

static int add_ids(struct prompts *ps, const struct json *v, struct fault *f)
{
    struct prompt_ids *p = &ps->p[ps->n++];
    return request_ids(v, "prompt", &p->ids, &p->n, f);
}

static int read_texts(struct hcache *h, bool truncates, const struct json *v,
                      struct prompts *ps, struct fault *f)
{
    const struct json *first = json_at(v, 0);
    if (json_kind(v) == JSON_KIND_STRING)
        return add_text(h, truncates, ps, v, f);
    if (json_kind(v) != JSON_KIND_ARRAY || first == NULL)
        return fault_set(
            f, 400, NULL, "prompt",
            "'prompt' must be a text, a list of token ids, or a list of either");
    if (json_kind(first) == JSON_KIND_INT)
        return add_ids(ps, v, f);
    size_t n = json_count(v);
    if (n > REQUEST_MAX_PROMPTS)
        return fault_set(f, 400, NULL, "prompt",
                         "'prompt' has %zu prompts; at most %d are allowed", n,
                         REQUEST_MAX_PROMPTS);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct json *one = json_at(v, i);
        rc = json_kind(one) == JSON_KIND_ARRAY ? add_ids(ps, one, f)
                                               : add_text(h, truncates, ps, one, f);
    }
    return rc;
}

/* --- truncation ------------------------------------------------------------------------------- */

int prompts_refuse_truncation(const struct hcache *h, struct fault *f)
{
    const struct hcache_truncation half = {.ratio = 0.5};
    struct hcache_err err = {0};
    if (hcache_truncation_check(h, &half, NULL, &err) != 0)
        return fault_set(f, 400, "unsupported_value", "truncation",
                         "'truncation' cannot be auto: %s", err.msg);
    return fault_set(f, 400, "unsupported_value", "truncation",
                     "'truncation' cannot be auto: this server keeps no state (--store or "
                     "--truncate), or was started with --truncate off");
}

int prompts_check_truncation(const struct gen_params *p, const struct hcache *h,
                             const struct hcache_truncation *how, struct fault *f)
{
    if (p->truncation == NULL || strcmp(p->truncation, "auto") != 0 || how->ratio > 0)
        return 0;
    return prompts_refuse_truncation(h, f);
}

/* --- chats and text completions --------------------------------------------------------------- */

int prompts_read(const struct client *c, struct gen_params *p, struct json *body,
                 struct prompts *out, struct fault *f)
{
    *out = (struct prompts){0};
    if (prompts_check_truncation(p, c->h, &c->truncation, f) != 0)
        return -1;
    if (p->kind != REQUEST_CHAT)
        return read_texts(c->h, request_truncates(p, &c->truncation), p->prompt, out, f);
    int rc = render_chat(c, p, out, f);
    if (body != NULL) {
        p->messages = NULL;
        json_drop(body, "messages");
    }
    return rc == 0 ? encode_chat(c, p, out, f) : rc;
}

void prompts_deinit(struct prompts *ps)
{
    for (int i = 0; i < ps->n; i++)
        hcache_free(ps->p[i].ids);
    prompt_text_deinit(&ps->text);
    ps->n = 0;
}
