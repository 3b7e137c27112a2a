/* dialog.c - see dialog.h. */
#include "api/dialog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "base/json.h"
#include "text/answer.h"
#include "text/chat.h"

_Static_assert((int)CHAT_UNSHOWN == (int)HCACHE_UNSHOWN &&
                   (int)CHAT_MARKS == (int)HCACHE_MARKS,
               "the public sizes are the template's");

struct dialog {
    const struct tokenizer *tokenizer;
    struct chat_template *template;
    struct chat_template *for_tools; /* makes the prompts with tools; may be `template` */
    struct answer_form *form;
    struct json *tokens; /* an object with the texts of named tokens */
    char *bos, *eos;     /* texts of these tokens; NULL: the tokenizer has none */
};

static char *token_text(const struct tokenizer *t, int32_t id)
{
    size_t n = 0;
    const char *bytes = id >= 0 ? tokenizer_bytes(t, id, &n) : NULL;
    char *text = NULL;
    if (bytes != NULL) {
        text = xmalloc(n + 1);
        memcpy(text, bytes, n);
        text[n] = 0;
    }
    return text;
}

/* Collects those tags of calls, of all families, that are special tokens here. */
static void call_tokens(const struct tokenizer *t, struct textbuf *out)
{
    for (int i = 0; i < CALL_SYNTAXES; i++) {
        const struct call_syntax *s = &call_syntaxes[i];
        const char *tags[] = {s->section, s->open, s->name_end};
        for (int k = 0; k < 3; k++) {
            size_t n = 0;
            if (tags[k] != NULL &&
                tokenizer_special_at(t, tags[k], strlen(tags[k]), &n) >= 0)
                textbuf_add(out, tags[k], n);
        }
    }
}

int dialog_open(struct dialog **out, const struct tokenizer *t, struct err *err)
{
    const char *source = t != NULL ? tokenizer_chat_template(t) : NULL;
    *out = NULL;
    if (source == NULL)
        return 0;
    struct dialog *k = xcalloc(1, sizeof *k);
    struct textbuf special = {0};
    k->tokenizer = t;
    call_tokens(t, &special);
    int rc = chat_open(&k->template, source, special.p, err);
    const char *tools = tokenizer_tool_template(t), *text = NULL, *name;
    if (rc == 0 && tools != NULL && tools != source)
        rc = chat_open(&k->for_tools, tools, special.p, err);
    textbuf_free(&special);
    if (rc != 0) {
        dialog_close(k);
        return rc;
    }
    if (k->for_tools == NULL)
        k->for_tools = k->template;
    k->form = answer_form_create(chat_syntax(k->for_tools), t);
    k->tokens = json_new_object();
    for (size_t i = 0; (name = tokenizer_named(t, i, &text)) != NULL; i++)
        json_put_string(k->tokens, name, text);
    k->bos = token_text(t, tokenizer_bos(t));
    k->eos = token_text(t, tokenizer_eos(t));
    *out = k;
    return 0;
}

void dialog_close(struct dialog *k)
{
    if (k == NULL)
        return;
    answer_form_destroy(k->form);
    json_free(k->tokens);
    if (k->for_tools != k->template)
        chat_close(k->for_tools);
    chat_close(k->template);
    free(k->bos);
    free(k->eos);
    free(k);
}

bool dialog_has_tools(const struct dialog *k)
{
    struct chat_abilities can = chat_abilities(k->for_tools);
    return chat_syntax(k->for_tools)->calls != NULL && (can.tools || can.declared_tools);
}

bool dialog_declares_tools(const struct dialog *k)
{
    return dialog_has_tools(k) && chat_abilities(k->for_tools).declared_tools;
}

bool dialog_has_thoughts(const struct dialog *k)
{
    return chat_abilities(k->template).thoughts;
}

const char *dialog_bos(const struct dialog *k)
{
    return k != NULL ? k->bos : NULL;
}

const char *dialog_eos(const struct dialog *k)
{
    return k != NULL ? k->eos : NULL;
}

/* In some models requests with tools have a template of their own. */
static const struct chat_template *template_for(const struct dialog *k,
                                                const struct chat_request *r)
{
    return json_count(r->tools) > 0 ? k->for_tools : k->template;
}

/* Renders a chat. Sets `at` of each of r->marks, the mark's place in the rendered text. If
 * `guarded`, text of messages that looks like special tokens gets guards (tokenizer_guard), and the
 * marks' places do not count the guards. */
static int render_traced(const struct dialog *k, const struct chat_request *r, bool guarded,
                         char **text, size_t *n_text, struct err *err)
{
    uint8_t *foreign = NULL;
    int rc = chat_render(template_for(k, r), r, text, n_text, &foreign, err);
    if (rc == 0 && guarded)
        rc = tokenizer_guard(k->tokenizer, text, n_text, foreign, err);
    free(foreign);
    return rc;
}

/* Reads "2026-11-28" or "2026-11-28 22:05:00". */
static int read_moment(const char *text, struct tm *out, struct err *err)
{
    struct tm t = {.tm_isdst = -1};
    int n = 0;
    bool good = sscanf(text, "%4d-%2d-%2d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &n) == 3 &&
                n == 10;
    if (good && text[n] != 0)
        good = sscanf(text + n, " %2d:%2d:%2d%n", &t.tm_hour, &t.tm_min, &t.tm_sec, &n) ==
                   3 &&
               n == 9 && text[19] == 0;
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    struct tm known = t;
    /* timegm finds the day of the week and of the year, and moves a date that does not exist. */
    good = good && timegm(&known) != -1 && known.tm_mday == t.tm_mday &&
           known.tm_mon == t.tm_mon;
    if (!good)
        return err_set(err, ERR_USAGE,
                       "'%.40s' is no date: write it as 2026-11-28, or with the time as "
                       "2026-11-28 22:05:00",
                       text);
    *out = known;
    return 0;
}

int dialog_render(const struct dialog *k, const struct hcache_chat *chat, char **text,
                  size_t *n_text, struct err *err)
{
    struct tm now;
    time_t seconds = (time_t)(clock_wall_s() + clock_set_by_s());
    *text = NULL;
    if (chat->moment == NULL)
        localtime_r(&seconds, &now);
    else if (read_moment(chat->moment, &now, err) != 0)
        return ERR_USAGE;
    bool has_tools = json_kind(chat->tools) != JSON_KIND_NULL;
    bool has_vars = json_kind(chat->kwargs) != JSON_KIND_NULL;
    struct chat_mark marks[CHAT_MARKS] = {{0}};
    CHECK(chat->n_marks <= CHAT_MARKS);
    struct chat_request r = {.messages = chat->messages,
                             .tools = has_tools ? chat->tools : NULL,
                             .kwargs = has_vars ? chat->kwargs : NULL,
                             .add_generation_prompt = !chat->no_answer,
                             .bos_token = k->bos,
                             .eos_token = k->eos,
                             .tokens = k->tokens,
                             .now = &now,
                             .shown_time = chat->shown_date,
                             .unshown = chat->unshown,
                             .marks = marks,
                             .n_marks = chat->n_marks};
    for (int i = 0; i < chat->n_marks; i++)
        marks[i].message = chat->marks[i].message;
    int rc = chat->guarded || chat->n_marks > 0
                 ? render_traced(k, &r, chat->guarded, text, n_text, err)
                 : chat_render(template_for(k, &r), &r, text, n_text, NULL, err);
    for (int i = 0; i < chat->n_marks; i++)
        chat->marks[i].at = marks[i].at;
    if (rc != 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

const struct answer_form *dialog_form(const struct dialog *k)
{
    return k->form;
}

const struct answer_syntax *dialog_syntax(const struct dialog *k)
{
    static const struct answer_syntax none = {.calls = NULL};
    return k == NULL ? &none : chat_syntax(k->for_tools);
}
