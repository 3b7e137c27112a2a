/* terminal_remote.c - see terminal_talk.h: a conversation that a running server keeps, over its API
 * (docs/STATEFUL.md).
 *
 * The server has the conversation; this side knows its id, its title and its number of turns.  A
 * conversation without turns is created on the server with its first message, and removed again if
 * that message is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/http_client.h"
#include "apps/terminal_talk.h"
#include "base/mem.h"

enum {
    PAGE = 100,
    POLL_MS = 100,
    /* The server keeps a stopped answer when its present step ends, which may take long. */
    POLLS = 600,
};

struct remote {
    /* must be first, so that it can be used as a struct terminal_talk */
    struct terminal_talk head;
    struct terminal_remote_opts o;
    struct http_client *http;
    char id[NAME_BYTES]; /* "": the server does not know the conversation yet */
    char *title;
    int n_turns;
    /* For the answer that is being generated: */
    struct hcache_request q;
    const struct terminal_sink *sink;
    struct terminal_end *end;
    char response[NAME_BYTES];
    bool is_stopped, is_done;
    struct err failed; /* error that the stream reported; code 0: there was none */
};

static struct remote *of(struct terminal_talk *t)
{
    return (struct remote *)t;
}

static void remote_close(struct terminal_talk *t)
{
    http_client_close(of(t)->http);
    free(of(t)->title);
    free(t);
}

static void copy_text(char out[NAME_BYTES], const struct json *v)
{
    const char *text = json_string_of(v, NULL);
    snprintf(out, NAME_BYTES, "%s", text != NULL ? text : "");
}

static int64_t int_of(const struct json *o, const char *key)
{
    int64_t v = 0;
    (void)json_opt_int(o, key, 0, INT32_MAX, &v, NULL);
    return v;
}

/* --- which conversation ----------------------------------------------------------------------- */

/* Makes r continue a conversation. v: the server's object; NULL: the server does not know the
 * conversation yet. */
static void adopt(struct remote *r, const struct json *v, const char *title)
{
    const char *own = v != NULL ? json_string_of(json_member(v, "title"), NULL) : title;
    char *copy = own != NULL ? xstrdup(own) : NULL;
    free(r->title);
    r->title = copy;
    copy_text(r->id, json_member(v, "id"));
    r->n_turns = v != NULL ? (int)int_of(v, "turns") : 0;
}

static int get(struct remote *r, struct json **out, struct err *err, const char *fmt,
               const char *a, const char *b)
{
    char *path = xasprintf(fmt, a, b);
    int rc = http_client_call(r->http, "GET", path, NULL, out, err);
    free(path);
    return rc;
}

/* Finds the conversation of that title that was used last. */
static int find_title(struct remote *r, const char *title, struct err *err)
{
    char after[NAME_BYTES] = "";
    bool more = true;
    while (more) {
        struct json *page = NULL;
        int rc = get(r, &page, err, "/v1/conversations?limit=100%s%s",
                     after[0] ? "&after=" : "", after);
        if (rc != 0)
            return rc;
        const struct json *data = json_member(page, "data");
        for (size_t i = 0; i < json_count(data); i++) {
            const char *name = json_string_of(json_member(json_at(data, i), "title"), NULL);
            if (name != NULL && strcmp(name, title) == 0) {
                adopt(r, json_at(data, i), NULL);
                json_free(page);
                return 0;
            }
        }
        more = false;
        (void)json_opt_bool(page, "has_more", &more, NULL);
        copy_text(after, json_member(page, "last_id"));
        json_free(page);
    }
    return err_set(err, ERR_NOT_FOUND, "there is no conversation '%s'", title);
}

static int remote_go(struct terminal_talk *t, const char *name, struct err *err)
{
    struct remote *r = of(t);
    struct json *v = NULL;
    int rc = ERR_NOT_FOUND;
    if (name != NULL && strncmp(name, "conv_", 5) == 0 &&
        strspn(name, "conv_0123456789abcdef") == strlen(name))
        rc = get(r, &v, err, "/v1/conversations/%s%s", name, "");
    if (rc == 0)
        adopt(r, v, NULL);
    if (rc == ERR_NOT_FOUND && name != NULL)
        rc = find_title(r, name, err);
    if (rc == ERR_NOT_FOUND) {
        adopt(r, NULL, name);
        rc = 0;
    }
    json_free(v);
    return rc;
}

static int remote_list(struct terminal_talk *t, struct err *err)
{
    struct json *page = NULL;
    bool more = false;
    int rc = get(of(t), &page, err, "/v1/conversations?limit=50%s%s", "", "");
    if (rc != 0)
        return rc;
    const struct json *data = json_member(page, "data");
    for (size_t i = 0; i < json_count(data); i++) {
        const struct json *v = json_at(data, i);
        terminal_list_line(json_string_of(json_member(v, "id"), NULL),
                           (int)int_of(v, "turns"),
                           json_string_of(json_member(v, "title"), NULL));
    }
    (void)json_opt_bool(page, "has_more", &more, NULL);
    if (json_count(data) == 0)
        printf("no conversations yet\n");
    if (more)
        printf("... and older ones\n");
    json_free(page);
    return 0;
}

static int remote_n_turns(struct terminal_talk *t)
{
    return of(t)->n_turns;
}

static const char *remote_title(struct terminal_talk *t)
{
    return of(t)->title;
}

/* Gets all items of the conversation, the last one first. */
static int items(struct remote *r, struct json **out, struct err *err)
{
    char *after = xstrdup("");
    struct json *all = json_new_array();
    bool more = true;
    int rc = r->id[0] != 0 ? 0 : err_set(err, ERR_NOT_FOUND, "nothing was said yet");
    while (rc == 0 && more) {
        struct json *page = NULL;
        char *query = xasprintf("%d%s%s", PAGE, after[0] ? "&after=" : "", after);
        rc = get(r, &page, err, "/v1/conversations/%s/items?order=desc&limit=%s", r->id,
                 query);
        free(query);
        const struct json *data = json_member(page, "data");
        for (size_t i = 0; i < json_count(data); i++)
            json_push(all, json_share(json_at(data, i)));
        more = false;
        (void)json_opt_bool(page, "has_more", &more, NULL);
        const char *last = json_string_of(json_member(page, "last_id"), NULL);
        free(after);
        after = xstrdup(last != NULL ? last : "");
        json_free(page);
    }
    free(after);
    if (rc == 0)
        *out = all;
    else
        json_free(all);
    return rc;
}

static bool has_role(const struct json *item, const char *role)
{
    return json_string_is(json_member(item, "role"), role);
}

static const char *text_of(const struct json *item, size_t *n)
{
    return json_string_of(json_member(json_at(json_member(item, "content"), 0), "text"), n);
}

static char *remote_last_answer(struct terminal_talk *t)
{
    struct json *all = NULL;
    char *out = NULL;
    size_t n;
    if (items(of(t), &all, NULL) != 0)
        return NULL;
    for (size_t i = 0; i < json_count(all) && out == NULL; i++) {
        const char *text = has_role(json_at(all, i), "assistant")
                               ? text_of(json_at(all, i), &n)
                               : NULL;
        if (text != NULL)
            out = xmemdup(text, n);
    }
    json_free(all);
    return out;
}

/* --- branches --------------------------------------------------------------------------------- */

static struct json *with_title(const struct remote *r)
{
    struct json *o = json_new_object();
    if (r->title != NULL)
        json_put_string(o, "title", r->title);
    return o;
}

/* Changes to a branch that ends with the response or item `at`; at NULL: to an empty conversation
 * with the same title. */
static int go_behind(struct remote *r, const char *at, struct err *err)
{
    struct json *body = with_title(r), *v = NULL;
    if (at == NULL) {
        adopt(r, NULL, json_string_of(json_member(body, "title"), NULL));
        json_free(body);
        return 0;
    }
    char *path = xasprintf("/v1/conversations/%s/branch", r->id);
    json_put_string(body, "at", at);
    int rc = http_client_call(r->http, "POST", path, body, &v, err);
    if (rc == 0)
        adopt(r, v, NULL);
    json_free(v);
    free(path);
    return rc;
}

/* Returns the name of the turn to which an item belongs. */
static const char *turn_of(const struct json *item)
{
    const char *response = json_string_of(json_member(item, "response_id"), NULL);
    return response != NULL ? response : json_string_of(json_member(item, "id"), NULL);
}

static int remote_branch(struct terminal_talk *t, int back, struct err *err)
{
    struct json *all = NULL;
    const char *last = NULL, *at = NULL;
    int n = 0, rc = items(of(t), &all, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < json_count(all); i++) {
        const char *turn = turn_of(json_at(all, i));
        if (last == NULL || strcmp(turn, last) != 0) {
            if (n == back)
                at = turn;
            n++;
        }
        last = turn;
    }
    if (back > n)
        rc = err_set(err, ERR_NOT_FOUND, "there are only %d answers", n);
    else
        rc = go_behind(of(t), at, err);
    json_free(all);
    return rc;
}

/* --- an answer -------------------------------------------------------------------------------- */

static void read_end(struct remote *r, const struct json *response)
{
    const struct json *usage = json_member(response, "usage");
    const char *why = json_string_of(
        json_member(json_member(response, "incomplete_details"), "reason"), NULL);
    snprintf(r->end->finish, sizeof r->end->finish, "%s", why != NULL ? why : "stop");
    r->end->n_tokens = (int)int_of(usage, "output_tokens");
    r->end->used = (int)int_of(usage, "context_used");
    r->end->context = (int)int_of(usage, "context_window");
    r->is_done = true;
}

static void on_event(void *arg, const struct json *o)
{
    struct remote *r = arg;
    const char *type = json_string_of(json_member(o, "type"), NULL);
    const struct json *response = json_member(o, "response");
    size_t n = 0;
    const char *text = json_string_of(json_member(o, "delta"), &n);
    if (type == NULL)
        return;
    if (strcmp(type, "response.created") == 0)
        copy_text(r->response, json_member(response, "id"));
    else if (strcmp(type, "response.output_text.delta") == 0 && text != NULL)
        r->is_stopped |= r->sink->text(r->sink->arg, text, n) != 0;
    else if (strcmp(type, "response.completed") == 0 ||
             strcmp(type, "response.incomplete") == 0)
        read_end(r, response);
    else if (strcmp(type, "response.failed") == 0)
        err_set(
            &r->failed, ERR_USAGE, "%s",
            json_string_of(json_member(json_member(response, "error"), "message"), NULL));
}

static bool is_stopped(void *arg)
{
    struct remote *r = arg;
    r->is_stopped |= !r->is_done && r->sink->is_stopped(r->sink->arg);
    return r->is_stopped;
}

/* Waits until the server keeps a stopped answer, which it does soon after the connection was
 * closed. */
static int await_stopped(struct remote *r, struct err *err)
{
    struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
    int rc = ERR_NOT_FOUND;
    for (int i = 0; i < POLLS && rc == ERR_NOT_FOUND && r->response[0] != 0; i++) {
        struct json *response = NULL;
        rc = get(r, &response, err, "/v1/responses/%s%s", r->response, "");
        if (rc == 0)
            read_end(r, response);
        else
            nanosleep(&pause, NULL);
        json_free(response);
    }
    return rc == ERR_NOT_FOUND
               ? err_set(err, rc, "stopped before the server had received the question")
               : rc;
}

static struct json *body_of(const struct remote *r, const struct json *input,
                            bool with_bound)
{
    const struct hcache_request *q = &r->q;
    struct json *o = json_make(
        "{input: %p, conversation: %s, stream: true, temperature: %g, "
        "top_p: %g, min_p: %g, top_k: %d, seed: %lu, ignore_eos: %p}",
        json_share(input), r->id, (double)q->temperature, (double)q->top_p,
        (double)q->min_p, q->top_k, q->seed, json_new_bool(q->ignore_eos));
    if (q->cache_ttl_s > 0)
        json_put_int(o, "cache_ttl", q->cache_ttl_s);
    if (with_bound)
        json_put_int(o, "max_output_tokens", q->max_tokens);
    return o;
}

static int stream(struct remote *r, const struct json *input, struct err *err)
{
    const struct http_stream s = {on_event, is_stopped, r};
    bool with_bound = r->q.max_tokens > 0;
    int rc = http_client_stream(r->http, "/v1/responses", body_of(r, input, with_bound), &s,
                                err);
    /* The bound exceeds the rest of the context, so the second try has no bound. */
    if (rc == ERR_LIMIT && with_bound)
        rc = http_client_stream(r->http, "/v1/responses", body_of(r, input, false), &s,
                                err);
    if (rc == ERR_LIMIT)
        return err_set(err, rc,
                       "this conversation is full. /new begins another one, /branch N "
                       "continues from N answers ago");
    if (rc == 0 && r->failed.code != 0) {
        *err = r->failed;
        rc = err->code;
    }
    if (rc == 0 && !r->is_done && r->is_stopped)
        return await_stopped(r, err);
    if (rc == 0 && !r->is_done)
        rc = err_set(err, ERR_UNSUPPORTED,
                     "the server ended in the middle of the answer; ask again");
    return rc;
}

/* Creates the conversation on the server. */
static int begin(struct remote *r, struct err *err)
{
    struct json *v = NULL;
    int rc = http_client_call(r->http, "POST", "/v1/conversations", with_title(r), &v, err);
    if (rc == 0)
        copy_text(r->id, json_member(v, "id"));
    json_free(v);
    return rc;
}

static int answer(struct remote *r, const struct json *input,
                  const struct terminal_sink *sink, struct terminal_end *end,
                  struct err *err)
{
    bool is_new = r->id[0] == 0;
    r->sink = sink;
    r->end = end;
    r->response[0] = 0;
    r->is_stopped = r->is_done = false;
    r->failed = (struct err){0};
    int rc = is_new ? begin(r, err) : 0;
    if (rc == 0)
        rc = stream(r, input, err);
    if (rc == 0) {
        r->n_turns++;
    } else if (is_new && r->id[0] != 0) {
        char *path = xasprintf("/v1/conversations/%s", r->id);
        (void)http_client_call(r->http, "DELETE", path, NULL, NULL, NULL);
        free(path);
        r->id[0] = 0;
    }
    return rc;
}

static void add(struct json *input, const char *role, const char *text, size_t n)
{
    struct json *message = json_make("{role: %s}", role);
    json_put_bytes(message, "content", text, n);
    json_push(input, message);
}

/* Gets the input of the last turn. *at is the name of the turn before it, which the caller frees;
 * NULL: the last turn is the first. */
static int last_turn(struct remote *r, struct json *input, char **at, struct err *err)
{
    struct json *all = NULL;
    int rc = items(r, &all, err);
    if (rc == 0 && json_count(all) == 0)
        rc = err_set(err, ERR_NOT_FOUND, "nothing was said yet");
    size_t n = 0;
    while (rc == 0 && n < json_count(all) &&
           strcmp(turn_of(json_at(all, n)), turn_of(json_at(all, 0))) == 0)
        n++;
    *at = rc == 0 && n < json_count(all) ? xstrdup(turn_of(json_at(all, n))) : NULL;
    while (rc == 0 && n-- > 0) {
        const struct json *item = json_at(all, n);
        const char *role = json_string_of(json_member(item, "role"), NULL);
        size_t bytes = 0;
        const char *text = text_of(item, &bytes);
        if (role != NULL && text != NULL && !has_role(item, "assistant"))
            add(input, role, text, bytes);
    }
    json_free(all);
    return rc;
}

static int remote_say(struct terminal_talk *t, const char *text, size_t n,
                      const struct terminal_sink *sink, struct terminal_end *end,
                      struct err *err)
{
    struct remote *r = of(t);
    struct json *input = json_new_array();
    char *at = NULL;
    int rc = 0;
    r->q = terminal_request(&r->o.sampling, text == NULL);
    if (text == NULL) {
        rc = last_turn(r, input, &at, err);
        if (rc == 0)
            rc = go_behind(r, at, err);
    } else {
        if (r->n_turns == 0 && r->o.system != NULL)
            add(input, "system", r->o.system, strlen(r->o.system));
        add(input, "user", text, n);
    }
    if (rc == 0)
        rc = answer(r, input, sink, end, err);
    json_free(input);
    free(at);
    return rc;
}

static const struct terminal_ops remote_ops = {.close = remote_close,
                                               .go = remote_go,
                                               .say = remote_say,
                                               .branch = remote_branch,
                                               .list = remote_list,
                                               .n_turns = remote_n_turns,
                                               .title = remote_title,
                                               .last_answer = remote_last_answer};

int terminal_remote(const struct terminal_remote_opts *o, struct terminal_talk **out,
                    struct err *err)
{
    struct remote *r = xcalloc(1, sizeof *r);
    struct json *models = NULL;
    r->head.ops = &remote_ops;
    r->o = *o;
    int rc = http_client_open(o->url, o->key, &r->http, err);
    if (rc == 0)
        rc = http_client_call(r->http, "GET", "/v1/models", NULL, &models, err);
    json_free(models);
    if (rc != 0) {
        remote_close(&r->head);
        return rc;
    }
    *out = &r->head;
    return 0;
}
