/* talk.c - see talk.h. */
#include "apps/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "api/dates.h"
#include "api/draft.h"
#include "api/items.h"
#include "api/provenance.h"

enum { TITLE_BYTES = 80 }; /* longest title that is made from the first words */

struct talk {
    struct talk_opts o;
    struct conversation v; /* row 0: the conversation has no turn and no name yet */
};

static const char *tenant_of(const struct talk_opts *o)
{
    return o->salt != NULL ? o->salt : "";
}

int talk_open(const struct talk_opts *o, const char *name, struct talk **out,
              struct err *err)
{
    struct talk *t = xcalloc(1, sizeof *t);
    char id[NAME_BYTES];
    t->o = *o;
    int rc = name == NULL
                 ? ERR_NOT_FOUND
                 : conversation_find(o->conversations, tenant_of(o), name, &t->v, err);
    if (rc == ERR_NOT_FOUND && name != NULL)
        rc = conversation_find_title(o->conversations, tenant_of(o), name, &t->v, err);
    if (rc == ERR_NOT_FOUND && name != NULL) {
        conversations_name("conv", id);
        rc = conversation_add(o->conversations, tenant_of(o), id, name, NULL, 0, &t->v,
                              err);
    } else if (rc == ERR_NOT_FOUND) {
        rc = 0; /* a new conversation is made by begin(), with its first answer */
    }
    if (rc != 0) {
        talk_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void talk_close(struct talk *t)
{
    if (t == NULL)
        return;
    conversation_deinit(&t->v);
    free(t);
}

int talk_n_turns(const struct talk *t)
{
    return t->v.n_turns;
}

const char *talk_title(const struct talk *t)
{
    return t->v.title;
}

char *talk_last_answer(const struct talk *t)
{
    struct turn **path = NULL;
    char *text = NULL;
    int n = 0;
    if (t->v.head == 0 || turn_path(t->o.conversations, t->v.head, &path, &n, NULL) != 0)
        return NULL;
    struct json *items = draft_items(path, n);
    for (size_t i = json_count(items); i-- > 0 && text == NULL;) {
        const struct json *item = json_at(items, i);
        const struct json *part = json_at(json_member(item, "content"), 0);
        size_t n_said;
        const char *said = json_string_of(json_member(part, "text"), &n_said);
        if (json_string_is(json_member(item, "role"), "assistant") && said != NULL)
            text = xmemdup(said, n_said);
    }
    json_free(items);
    turn_path_free(path, n);
    return text;
}

/* --- a turn ----------------------------------------------------------------------------------- */

/* Returns the response object of the server's API, without its output. */
static char *response_json(const struct talk *t, const struct turn *turn,
                           const struct hcache_request *q, const struct hcache_result *r)
{
    bool is_cut = strcmp(r->finish, "stop") != 0;
    const char *why = strcmp(r->finish, "length") == 0 ? "max_output_tokens" : r->finish;
    struct json *usage = json_make(
        "{input_tokens: %d, output_tokens: %d, total_tokens: %d}", r->prompt_tokens,
        r->n_tokens, r->prompt_tokens + r->n_tokens);
    if (turn->moment[0] != 0)
        json_put_bytes(usage, "template_date", turn->moment, 10);
    struct json *o = json_make(
        "{id: %s, object: 'response', created_at: %ld, status: %s, model: %s, error: null, "
        "incomplete_details: %p, instructions: null, max_output_tokens: %d, "
        "parallel_tool_calls: true, previous_response_id: null, conversation: {id: %s}, "
        "store: true, temperature: %g, top_p: %g, tool_choice: 'auto', tools: [], "
        "metadata: {}, usage: %p}",
        turn->name, turn->created_s, is_cut ? "incomplete" : "completed", t->o.model_name,
        is_cut ? json_make("{reason: %s}", why) : NULL, q->max_tokens, t->v.name,
        (double)q->temperature, (double)q->top_p, usage);
    char *text = json_text(o, 0);
    json_free(o);
    return text;
}

/* Makes the conversation, if the user did not name an existing one. Conversations without a turn
 * are not kept. */
static int begin(struct talk *t, struct draft *d, struct err *err)
{
    char id[NAME_BYTES], *title = items_title(d->input, TITLE_BYTES);
    int rc = 0;
    if (t->v.row == 0) {
        conversations_name("conv", id);
        rc = conversation_add(t->o.conversations, tenant_of(&t->o), id, title, NULL, 0,
                              &t->v, err);
        d->conversation = t->v.row;
    }
    free(title);
    return rc;
}

static int keep(struct talk *t, struct draft *d, const struct hcache_request *q,
                const struct hcache_result *r, struct err *err)
{
    int rc = begin(t, d, err);
    if (rc != 0)
        return rc;
    struct turn *turn = xcalloc(1, sizeof *turn);
    struct json *output = json_new_array(), *told = provenance_json(r, d->what);
    bool is_cut = strcmp(r->finish, "stop") != 0, has_branched = false;
    json_push(output,
              item_message(NULL, is_cut ? "incomplete" : "completed", r->text, r->n_text));
    draft_finish(d, t->o.h, r, t->o.salt, turn);
    conversations_name("resp", turn->name);
    turn->created_s = clock_wall_s();
    turn->is_visible = true;
    turn->output = json_text(output, 0);
    turn->restoration = json_text(told, 0);
    turn->answer = response_json(t, turn, q, r);
    rc = turn_add(t->o.conversations, tenant_of(&t->o), turn, NULL, &has_branched, err);
    /* no other process can have moved the head: this process has the file locked */
    if (rc == 0) {
        t->v.head = turn->row;
        t->v.n_turns = turn->depth + 1;
    }
    turn_free(turn);
    json_free(output);
    json_free(told);
    return rc;
}

static void add_said(struct json *said, const char *role, const char *text, size_t n)
{
    struct json *message = json_make("{role: %s}", role);
    json_put_bytes(message, "content", text, n);
    json_push(said, message);
}

/* Makes the draft of a turn behind the head; said: the list of new messages. */
static int make_draft(struct talk *t, const struct json *said, bool truncates,
                      struct draft *d, struct err *err)
{
    struct fault f;
    struct draft_opts o = {.thinking = -1,
                           .plain = t->o.plain,
                           .truncates = truncates,
                           .param = "input",
                           .dates = t->o.dates,
                           .salt = t->o.salt};
    *d = (struct draft){.conversation = t->v.row};
    int rc = draft_continue(d, t->o.conversations, t->v.head, err);
    if (rc == 0 && (items_read(said, "input", &d->input, &f) != 0 ||
                    draft_render(d, t->o.h, &o, &f) != 0))
        rc = err_set(err, ERR_USAGE, "%s", f.message);
    return rc;
}

/* Makes truncation keep the system's messages. Turns it off if they leave no room for a step. */
static void keep_system(const struct talk *t, int n_system, struct hcache_truncation *tr)
{
    if (n_system == 0 || tr->ratio == 0)
        return;
    prompt_keep(n_system, tr);
    if (hcache_truncation_check(t->o.h, tr, NULL, NULL) != 0)
        tr->ratio = 0;
}

/* Bounds max_tokens by the rest of the context. */
static int check_room(const struct talk *t, struct hcache_request *q, struct err *err)
{
    struct hcache_model_info info;
    hcache_model_info(t->o.h, &info);
    if (q->truncation.ratio > 0) { /* a truncated context is never full */
        int left = info.max_context - q->n_prompt, half = info.max_context / 2;
        if (q->max_tokens < 0)
            q->max_tokens = MAX(left, half);
        return 0;
    }
    if (q->n_prompt >= info.max_context)
        return err_set(err, ERR_LIMIT,
                       "this conversation is full: %d of %d tokens. Begin a new one, or "
                       "branch from an earlier answer",
                       q->n_prompt, info.max_context);
    if (q->max_tokens < 0 || q->max_tokens > info.max_context - q->n_prompt)
        q->max_tokens = info.max_context - q->n_prompt;
    return 0;
}

/* Runs one turn and keeps the answer. */
static int answer(struct talk *t, const struct json *said,
                  const struct hcache_request *sampling, struct hcache_result *out,
                  struct err *err)
{
    struct draft d;
    struct hcache_err herr = {0};
    struct hcache_request q = *sampling;
    *out = (struct hcache_result){0};
    int rc = turn_has_room(t->o.conversations, tenant_of(&t->o), err);
    if (rc != 0)
        return rc;
    rc = make_draft(t, said, q.truncation.ratio > 0, &d, err);
    q.prompt = d.ids;
    q.n_prompt = d.n_ids;
    q.salt = t->o.salt;
    keep_system(t, d.n_system, &q.truncation);
    if (rc == 0)
        rc = check_room(t, &q, err);
    if (rc == 0 && (rc = hcache_generate(t->o.h, &q, out, &herr)) != 0)
        rc = err_set(err, rc, "%s", herr.msg);
    date_explain(&d.date, out->differs_at, out->miss, sizeof out->miss);
    if (rc == 0)
        rc = keep(t, &d, &q, out, err);
    draft_deinit(&d);
    if (rc != 0)
        hcache_result_free(out);
    return rc;
}

int talk_say(struct talk *t, const char *text, size_t n,
             const struct hcache_request *sampling, struct hcache_result *out,
             struct err *err)
{
    struct json *said = json_new_array();
    if (t->v.head == 0 && t->o.system != NULL)
        add_said(said, "system", t->o.system, strlen(t->o.system));
    add_said(said, "user", text, n);
    int rc = answer(t, said, sampling, out, err);
    json_free(said);
    return rc;
}

/* Makes a branch of the same conversation that ends at `head`. From then on t continues the
 * branch. */
static int branch(struct talk *t, int64_t head, struct err *err)
{
    struct conversation v;
    char id[NAME_BYTES];
    conversations_name("conv", id);
    int rc = conversation_add(t->o.conversations, tenant_of(&t->o), id, t->v.title,
                              t->v.metadata, head, &v, err);
    if (rc != 0)
        return rc;
    conversation_deinit(&t->v);
    t->v = v;
    return 0;
}

int talk_retry(struct talk *t, const struct hcache_request *sampling,
               struct hcache_result *out, struct err *err)
{
    struct turn **path = NULL;
    struct json *said = NULL;
    int n = 0;
    *out = (struct hcache_result){0};
    if (t->v.head == 0)
        return err_set(err, ERR_NOT_FOUND, "nothing was said yet");
    int rc = turn_path(t->o.conversations, t->v.head, &path, &n, err);
    if (rc == 0)
        rc = json_parse(&said, path[n - 1]->input, strlen(path[n - 1]->input), "a turn",
                        err);
    if (rc == 0)
        rc = branch(t, path[n - 1]->parent, err);
    if (rc == 0)
        rc = answer(t, said, sampling, out, err);
    json_free(said);
    turn_path_free(path, n);
    return rc;
}

int talk_branch(struct talk *t, int back, struct err *err)
{
    struct turn **path = NULL;
    int n = 0;
    if (t->v.head == 0)
        return err_set(err, ERR_NOT_FOUND, "nothing was said yet");
    int rc = turn_path(t->o.conversations, t->v.head, &path, &n, err);
    if (rc == 0 && back > n)
        rc = err_set(err, ERR_NOT_FOUND, "there are only %d answers", n);
    if (rc == 0)
        rc = branch(t, back == n ? 0 : path[n - 1 - back]->row, err);
    turn_path_free(path, n);
    return rc;
}
