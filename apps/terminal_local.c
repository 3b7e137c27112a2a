/* terminal_local.c - see terminal_talk.h: a conversation of this process, on top of kept
 * conversations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/terminal_talk.h"
#include "base/mem.h"
#include "base/plural.h"

struct local {
    /* must be first, so that it can be used as a struct terminal_talk */
    struct terminal_talk head;
    struct talk_opts o;
    struct terminal_sampling sampling;
    struct talk *talk; /* NULL before the first call of go */
    struct hcache_result last;
    int context;
    /* For the answer that is being generated: */
    const struct terminal_sink *sink;
};

static struct local *of(struct terminal_talk *t)
{
    return (struct local *)t;
}

static void local_close(struct terminal_talk *t)
{
    struct local *l = of(t);
    talk_close(l->talk);
    conversations_close(l->o.conversations);
    hcache_result_free(&l->last);
    free(l);
}

static int local_go(struct terminal_talk *t, const char *name, struct err *err)
{
    struct talk *to = NULL;
    int rc = talk_open(&of(t)->o, name, &to, err);
    if (rc != 0)
        return rc;
    talk_close(of(t)->talk);
    of(t)->talk = to;
    return 0;
}

static int on_token(void *arg, int32_t id, const char *text, size_t n)
{
    const struct terminal_sink *sink = ((struct local *)arg)->sink;
    (void)id;
    return sink->text(sink->arg, text, n);
}

static void on_prompt(void *arg, int n_done)
{
    const struct terminal_sink *sink = ((struct local *)arg)->sink;
    sink->prompt(sink->arg, n_done);
}

static bool is_cancelled(void *arg)
{
    const struct terminal_sink *sink = ((struct local *)arg)->sink;
    return sink->is_stopped(sink->arg);
}

static int local_say(struct terminal_talk *t, const char *text, size_t n,
                     const struct terminal_sink *sink, struct terminal_end *end,
                     struct err *err)
{
    struct local *l = of(t);
    struct hcache_request q = terminal_request(&l->sampling, text == NULL);
    hcache_result_free(&l->last);
    l->last = (struct hcache_result){0};
    l->sink = sink;
    q.on_token = on_token;
    q.on_prompt = on_prompt;
    q.is_cancelled = is_cancelled;
    q.arg = l;
    int rc = text != NULL ? talk_say(l->talk, text, n, &q, &l->last, err)
                          : talk_retry(l->talk, &q, &l->last, err);
    if (rc != 0)
        return rc;
    *end = (struct terminal_end){.n_tokens = l->last.n_tokens,
                                 .used = l->last.prompt_tokens + l->last.n_tokens,
                                 .context = l->context,
                                 .result = &l->last};
    snprintf(end->finish, sizeof end->finish, "%s", l->last.finish);
    return 0;
}

static int local_branch(struct terminal_talk *t, int back, struct err *err)
{
    return talk_branch(of(t)->talk, back, err);
}

struct hcache_request terminal_request(struct terminal_sampling *s, bool is_retry)
{
    struct hcache_request q = s->q;
    if (is_retry)
        s->n_retries++;
    if (is_retry && s->retries_vary)
        q.temperature = 0.7f;
    q.seed += (uint64_t)s->n_retries;
    return q;
}

void terminal_list_line(const char *id, int n_turns, const char *title)
{
    printf("%-40s %4d turn%-2s %s\n", id, n_turns, plural((uint64_t)n_turns),
           title != NULL ? title : "");
}

static int local_list(struct terminal_talk *t, struct err *err)
{
    enum { MOST = 50 };
    struct conversation v[MOST];
    bool more = false;
    int n = 0;
    const char *tenant = of(t)->o.salt != NULL ? of(t)->o.salt : "";
    int rc = conversation_list(of(t)->o.conversations, tenant, NULL, false, MOST, v, &n,
                               &more, err);
    if (rc != 0)
        return rc;
    for (int i = 0; i < n; i++) {
        terminal_list_line(v[i].name, v[i].n_turns, v[i].title);
        conversation_deinit(&v[i]);
    }
    if (n == 0)
        printf("no conversations yet\n");
    if (more)
        printf("... and older ones\n");
    return 0;
}

static int local_n_turns(struct terminal_talk *t)
{
    return talk_n_turns(of(t)->talk);
}

static const char *local_title(struct terminal_talk *t)
{
    return talk_title(of(t)->talk);
}

static char *local_last_answer(struct terminal_talk *t)
{
    return talk_last_answer(of(t)->talk);
}

static const struct terminal_ops local_ops = {.close = local_close,
                                              .go = local_go,
                                              .say = local_say,
                                              .branch = local_branch,
                                              .list = local_list,
                                              .n_turns = local_n_turns,
                                              .title = local_title,
                                              .last_answer = local_last_answer};

int terminal_local(const struct terminal_local_opts *o, struct terminal_talk **out,
                   struct err *err)
{
    struct hcache_model_info info;
    struct conversations_opts co = {.path = o->path, .seal = o->seal};
    struct local *l = xcalloc(1, sizeof *l);
    l->head.ops = &local_ops;
    l->o = o->talk;
    l->sampling = o->sampling;
    hcache_model_info(o->talk.h, &info);
    l->context = info.max_context;
    int rc = conversations_open(&co, &l->o.conversations, err);
    if (rc != 0) {
        free(l);
        return rc;
    }
    *out = &l->head;
    return 0;
}
