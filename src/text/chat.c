/* chat.c - see chat.h: rendering, opening. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "jinja/jinja.h"
#include "text/chat_impl.h"

/* --- rendering ---------------------------------------------------------------------- */

static int check_request(const struct chat_request *r, struct err *err)
{
    static const char *const reserved[] = {"messages", "tools", "documents",
                                           "add_generation_prompt"};
    if (r->tools != NULL && json_kind(r->tools) != JSON_KIND_ARRAY &&
        json_kind(r->tools) != JSON_KIND_NULL)
        return err_set(err, ERR_USAGE, "tools must be an array, it is %s",
                       json_kind_name(r->tools));
    if (r->kwargs != NULL && json_kind(r->kwargs) != JSON_KIND_OBJECT)
        return err_set(
            err, ERR_USAGE,
            "the template's arguments (chat_template_kwargs) must be an object, not %s",
            json_kind_name(r->kwargs));
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (json_member(r->kwargs, reserved[i]) != NULL)
            return err_set(err, ERR_USAGE, "'%s' cannot be an argument of the template",
                           reserved[i]);
    return 0;
}

/* Returns the variables of a render: the special tokens' text, and the request's own variables,
 * which override them. */
static struct json *variables(const struct chat_request *r)
{
    struct json *vars = json_new_object();
    struct json_iter named = json_begin(r->tokens);
    while (json_next(&named))
        json_put(vars, named.key, json_share(named.value));
    if (r->bos_token != NULL)
        json_put_string(vars, "bos_token", r->bos_token);
    if (r->eos_token != NULL)
        json_put_string(vars, "eos_token", r->eos_token);
    struct json_iter it = json_begin(r->kwargs);
    while (json_next(&it))
        json_put(vars, it.key, json_share(it.value));
    json_put_bool(vars, "add_generation_prompt", r->add_generation_prompt);
    return vars;
}

/* Templates build markers from a role: '<|' + message.role + '|>'. These may become special tokens,
 * so other roles than these must not. */
static const char *const known_roles[] = {"system", "developer", "user",    "assistant",
                                          "tool",   "function",  "ipython", "observation",
                                          "model",  NULL};

/* Removes the marks around our own tags, which are not foreign. */
static void remove_marks(char *text, size_t *n, uint8_t *foreign, struct jinja_mark *marks,
                         int n_marks)
{
    size_t to = 0, moved[CHAT_MARKS] = {0};
    bool own = false;
    for (size_t i = 0; i < *n; i++) {
        for (int k = 0; k < n_marks; k++)
            moved[k] = marks[k].at >= i ? to : moved[k];
        bool begins = *n - i >= 4 && memcmp(text + i, CHAT_TAG_BEGIN, 4) == 0;
        bool ends = *n - i >= 4 && memcmp(text + i, CHAT_TAG_END, 4) == 0;
        if (begins || ends) {
            own = begins;
            i += 3;
            continue;
        }
        bool bit = foreign != NULL && !own && (foreign[i / 8] >> i % 8 & 1) != 0;
        if (foreign != NULL)
            foreign[to / 8] = (uint8_t)((foreign[to / 8] & ~(1u << to % 8)) |
                                        (unsigned)bit << to % 8);
        text[to++] = text[i];
    }
    for (int k = 0; k < n_marks; k++)
        marks[k].at = marks[k].at < *n ? moved[k] : to;
    text[to] = 0;
    *n = to;
}

int chat_render_prepared(const struct chat_template *t, const struct chat_request *r,
                         const struct chat_prepared *p, char **text, size_t *n,
                         uint8_t **foreign, struct err *err)
{
    struct json *vars = variables(r);
    const struct jinja_var extra[] = {
        {"messages", p->messages, true},
        {"tools", p->tools, true},
        {"documents", json_count(r->documents) != 0 ? r->documents : NULL, true},
    };
    struct jinja_mark marks[CHAT_MARKS];
    for (int k = 0; k < r->n_marks; k++)
        marks[k] = (struct jinja_mark){p->behind[k].message, p->behind[k].byte, 0};
    const struct jinja_input in = {.vars = vars,
                                   .extra = extra,
                                   .n_extra = 3,
                                   .now = r->now,
                                   .shown_time = r->shown_time,
                                   .traces = foreign != NULL,
                                   .own_key = "role",
                                   .own_values = known_roles,
                                   .marks = marks,
                                   .n_marks = foreign != NULL ? r->n_marks : 0};
    int rc = foreign != NULL ? jinja_render_traced(t->jinja, &in, text, n, foreign, err)
                             : jinja_render(t->jinja, &in, text, n, err);
    if (rc == 0 && p->marked)
        remove_marks(*text, n, foreign != NULL ? *foreign : NULL, marks, in.n_marks);
    for (int k = 0; rc == 0 && k < in.n_marks; k++)
        r->marks[k].at = marks[k].at;
    json_free(vars);
    return rc;
}

int chat_render(const struct chat_template *t, const struct chat_request *r, char **text,
                size_t *n, uint8_t **foreign, struct err *err)
{
    struct chat_prepared p = {0};
    *text = NULL;
    *n = 0;
    if (foreign != NULL)
        *foreign = NULL;
    if (r->unshown != NULL)
        r->unshown[0] = 0;
    int rc = check_request(r, err);
    if (rc == 0)
        rc = chat_prepare(t, r, &p, err);
    if (rc == 0)
        rc = chat_render_prepared(t, r, &p, text, n, foreign, err);
    json_free(p.messages);
    json_free(p.tools);
    return rc;
}

/* --- opening ------------------------------------------------------------------------ */

int chat_open(struct chat_template **out, const char *source, const char *tokens,
              struct err *err)
{
    *out = NULL;
    if (source == NULL)
        return err_set(err, ERR_NOT_FOUND, "the model has no chat template");
    struct chat_template *t = xcalloc(1, sizeof *t);
    int rc = jinja_compile(&t->jinja, source, strlen(source), "chat_template", NULL, err);
    if (rc != 0) {
        chat_close(t);
        return rc;
    }
    chat_probe(t, source, tokens);
    *out = t;
    return 0;
}

void chat_close(struct chat_template *t)
{
    if (t == NULL)
        return;
    jinja_destroy(t->jinja);
    free(t->thought_end);
    free(t);
}

struct chat_abilities chat_abilities(const struct chat_template *t)
{
    return t->can;
}

const struct answer_syntax *chat_syntax(const struct chat_template *t)
{
    return &t->syntax;
}
