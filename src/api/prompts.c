/* prompts.c - see prompts.h.
 *
 * A chat is rendered by the model's template; its earlier answers have the tokens that were
 * generated (api/retoken.h). The `prompt` of a text completion is one of: a text, a list of
 * token ids and texts that begins with an id, or a list of several of these. Special tokens
 * written in it count as
 * special tokens, because the user of that route writes the prompt format. */
#include "api/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "api/dates.h"
#include "api/retoken.h"
#include "base/mem.h"

/* --- chats ------------------------------------------------------------------------------------ */

static bool is_answer(const struct json *message)
{
    return json_string_is(json_member(message, "role"), "assistant");
}

/* Returns whether the answer may continue this message. It must be the assistant's and have no
 * other content. "prefix" or "partial" in a message asks for that, and false forbids it. */
static bool can_go_on(const struct json *message)
{
    static const char *const known[] = {"role", "content", "name", "prefix", "partial"};
    struct json_iter it = json_begin(message);
    bool ok = is_answer(message), on = true;
    while (ok && json_next(&it)) {
        bool is_known = json_kind(it.value) == JSON_KIND_NULL ||
                        (json_kind(it.value) == JSON_KIND_ARRAY &&
                         json_count(it.value) == 0);
        for (int i = 0; i < 5 && !is_known; i++)
            is_known = strcmp(it.key, known[i]) == 0;
        ok = is_known && (!json_bool_of(it.value, &on) || on);
    }
    return ok;
}

/* Separates a last message that the answer continues. Returns 0; then *rest has the messages before
 * it, which the caller frees, and *text its text, or *rest is NULL if there is no such message.
 * Returns -1 with *f if the request wants to continue a message and cannot. */
static int take_beginning(const struct gen_params *p, struct json **rest,
                          struct textbuf *text, struct fault *f)
{
    size_t n = json_count(p->messages);
    const struct json *last = json_at(p->messages, n - 1);
    *rest = NULL;
    bool goes_on = n > 0 && p->continues != 0 && p->generation_prompt < 0;
    if (p->continues == 1 && !can_go_on(last))
        return fault_field(f, "continue_final_message",
                           "needs a last message of the assistant that has only content");
    if ((p->continues < 1 && (!goes_on || !can_go_on(last))) || n == 1)
        return 0;
    if (is_answer(json_at(p->messages, n - 2)))
        return fault_field(f, "messages", "ends with two messages of the assistant");
    *rest = json_new_array();
    for (size_t i = 0; i + 1 < n; i++)
        json_push(*rest, json_share(json_at(p->messages, i)));
    return prompt_content(json_member(last, "content"), text, f);
}

static int render_source(const struct client *c, struct gen_params *p,
                         const struct json *messages, struct prompts *ps, struct fault *f)
{
    bool truncates = request_truncates(p, &c->truncation);
    struct chat_source source = {.messages = messages,
                                 .no_answer = p->generation_prompt == 0 &&
                                              p->continues != 1,
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
        p->n_system = prompt_system_tokens(c->h, messages);
    return rc;
}

static int render_chat(const struct client *c, struct gen_params *p, struct prompts *ps,
                       struct fault *f)
{
    bool truncates = request_truncates(p, &c->truncation);
    struct json *rest;
    struct textbuf begin = {0};
    int rc = take_beginning(p, &rest, &begin, f);
    if (rc == 0)
        rc = render_source(c, p, rest != NULL ? rest : p->messages, ps, f);
    if (rc == 0 && begin.n > 0)
        prompt_text_append(c->h, &ps->text, begin.p, begin.n);
    json_free(rest);
    textbuf_free(&begin);
    if (rc == 0)
        rc = prompt_fits(c->h, truncates, ps->text.text, ps->text.n, "messages", f);
    if (rc == 0)
        request_note_prompt(p, ps->text.text, ps->text.n);
    memcpy(p->unshown, ps->text.unshown, sizeof p->unshown);
    return rc;
}

int prompts_encode(const struct client *c, const struct prompt_text *text,
                   struct prompt_ids *out, char *what, struct prompt_date *date,
                   struct fault *f)
{
    struct hcache_err err = {0};
    if (retoken_encode(c->h, c->answers, c->salt, text, out, what, &err) != 0)
        return fault_refuse(f, err.code, "messages", "'messages': %s", err.msg);
    date_locate(c->h, text, out, date);
    return 0;
}

/* --- text completions ------------------------------------------------------------------------- */

/* Tokens that models have for filling a hole: before the text, before the text behind the hole, and
 * before the filling. */
static const char *const fim[][3] = {{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
                                     {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
                                     {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
                                     {"<PRE>", "<SUF>", "<MID>"},
                                     {"<\xEF\xBD\x9C"
                                      "fim\xE2\x96\x81"
                                      "begin\xEF\xBD\x9C>",
                                      "<\xEF\xBD\x9C"
                                      "fim\xE2\x96\x81hole\xEF\xBD\x9C>",
                                      "<\xEF\xBD\x9C"
                                      "fim\xE2\x96\x81"
                                      "end\xEF\xBD\x9C>"}};

static bool is_token(const struct hcache *h, const char *text)
{
    struct hcache_err err = {0};
    int32_t *ids = NULL;
    int n = 0;
    bool is_one = hcache_encode(h, text, strlen(text), HCACHE_PARSE_SPECIAL, &ids, &n,
                                &err) == 0 &&
                  n == 1;
    hcache_free(ids);
    return is_one;
}

/* Writes the prompt of a filling: the text before the hole, the text behind it. */
static int put_fim(const struct hcache *h, const char *text, size_t n, const char *suffix,
                   size_t n_suffix, struct textbuf *out, struct fault *f)
{
    for (size_t i = 0; i < sizeof fim / sizeof fim[0]; i++) {
        if (!is_token(h, fim[i][0]) || !is_token(h, fim[i][1]) || !is_token(h, fim[i][2]))
            continue;
        textbuf_addf(out, "%s", fim[i][0]);
        textbuf_add(out, text, n);
        textbuf_addf(out, "%s", fim[i][1]);
        textbuf_add(out, suffix, n_suffix);
        textbuf_addf(out, "%s", fim[i][2]);
        return 0;
    }
    return fault_set(f, 400, "unsupported_parameter", "suffix",
                     "'suffix': this model has no tokens for the middle of a text");
}

static int add_ids(const struct json *v, struct prompt_ids *to, struct fault *f)
{
    return request_ids(v, "prompt", &to->ids, &to->n, f);
}

/* Encodes a text, or an object with one. */
static int encode(struct hcache *h, const struct gen_params *p, bool truncates,
                  const struct json *v, bool is_first, struct prompt_ids *to,
                  struct fault *f)
{
    struct hcache_err err = {0};
    struct textbuf filled = {0};
    size_t n, n_suffix = 0;
    if (json_kind(v) == JSON_KIND_OBJECT && json_member(v, "multimodal_data") != NULL)
        return fault_set(f, 400, "unsupported_value", "prompt",
                         "'prompt' has multimodal_data; only text is supported");
    const char *text = json_string_of(
        json_kind(v) == JSON_KIND_OBJECT ? json_member(v, "prompt_string") : v, &n);
    const char *suffix = json_string_of(p->suffix, &n_suffix);
    if (text == NULL)
        return fault_set(f, 400, NULL, "prompt",
                         "'prompt' must hold texts or token ids, not %-s",
                         json_kind_name(v));
    if (suffix != NULL && put_fim(h, text, n, suffix, n_suffix, &filled, f) != 0)
        return -1;
    if (suffix != NULL) {
        text = filled.p;
        n = filled.n;
    }
    unsigned flags = HCACHE_PARSE_SPECIAL | (is_first ? (unsigned)HCACHE_ADD_SPECIAL : 0u);
    int rc = prompt_fits(h, truncates, text, n, "prompt", f);
    if (rc == 0 && hcache_encode(h, text, n, flags, &to->ids, &to->n, &err) != 0)
        rc = fault_refuse(f, err.code, "prompt", "'prompt': %s", err.msg);
    textbuf_free(&filled);
    return rc;
}

/* Reads one prompt: a text, a list of ids, or a list of ids and texts. */
static int add_prompt(struct hcache *h, const struct gen_params *p, bool truncates,
                      const struct json *v, struct prompts *ps, struct fault *f)
{
    struct prompt_ids *all = &ps->p[ps->n++];
    bool is_mixed = false;
    for (size_t i = 0; i < json_count(v) && json_kind(v) == JSON_KIND_ARRAY; i++)
        is_mixed |= json_kind(json_at(v, i)) == JSON_KIND_STRING;
    if (json_kind(v) != JSON_KIND_ARRAY)
        return encode(h, p, truncates, v, true, all, f);
    if (!is_mixed)
        return add_ids(v, all, f);
    for (size_t i = 0; i < json_count(v); i++) {
        struct prompt_ids part = {0};
        struct json *one = json_new_array();
        json_push(one, json_share(json_at(v, i)));
        int rc = json_kind(json_at(v, i)) == JSON_KIND_STRING
                     ? encode(h, p, truncates, json_at(v, i), i == 0, &part, f)
                     : add_ids(one, &part, f);
        json_free(one);
        if (rc == 0) {
            all->ids = xrealloc(all->ids, (size_t)(all->n + part.n + 1) * sizeof *part.ids);
            memcpy(all->ids + all->n, part.ids, (size_t)part.n * sizeof *part.ids);
            all->n += part.n;
        }
        hcache_free(part.ids);
        if (rc != 0)
            return -1;
    }
    return 0;
}

static int read_texts(struct hcache *h, const struct gen_params *p, bool truncates,
                      struct prompts *ps, struct fault *f)
{
    const struct json *v = p->prompt;
    const struct json *first = json_at(v, 0);
    if (json_kind(v) == JSON_KIND_STRING || json_kind(v) == JSON_KIND_OBJECT)
        return add_prompt(h, p, truncates, v, ps, f);
    if (json_kind(v) != JSON_KIND_ARRAY || first == NULL)
        return fault_set(
            f, 400, NULL, "prompt",
            "'prompt' must be a text, a list of token ids, or a list of either");
    if (json_kind(first) == JSON_KIND_INT)
        return add_prompt(h, p, truncates, v, ps, f);
    size_t n = json_count(v);
    if (n > REQUEST_MAX_PROMPTS)
        return fault_set(f, 400, NULL, "prompt",
                         "'prompt' has %zu prompts; at most %d are allowed", n,
                         REQUEST_MAX_PROMPTS);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = add_prompt(h, p, truncates, json_at(v, i), ps, f);
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
        return read_texts(c->h, p, request_truncates(p, &c->truncation), out, f);
    int rc = render_chat(c, p, out, f);
    if (body != NULL) {
        p->messages = NULL;
        json_drop(body, "messages");
    }
    if (rc == 0)
        rc = prompts_encode(c, &out->text, &out->p[0], out->what, &p->date, f);
    out->n = rc == 0;
    return rc;
}

void prompts_deinit(struct prompts *ps)
{
    for (int i = 0; i < ps->n; i++)
        hcache_free(ps->p[i].ids);
    prompt_text_deinit(&ps->text);
    ps->n = 0;
}
