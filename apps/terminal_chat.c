/* terminal_chat.c - see terminal_chat.h. */
#include "apps/terminal_chat.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/line_reader.h"
#include "base/plural.h"

/* --- Ctrl-C ------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

void terminal_catch_interrupt(void)
{
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &a, NULL);
}

bool terminal_interrupted(void)
{
    bool was = interrupted != 0;
    interrupted = 0;
    return was;
}

/* --- a chat ------------------------------------------------------------------------------------- */

struct chat {
    const struct terminal_chat_opts *o;
    struct talk_opts talk_opts;
    struct talk *talk;
    int max_context;
    bool on_terminal; /* else what fails ends the chat: nobody can answer */
    struct err last;  /* of a turn that failed */
};

static int print_piece(void *arg, int32_t id, const char *text, size_t n)
{
    (void)arg;
    (void)id;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return interrupted != 0;
}

/* From 80 % of the context on. */
static void warn_fullness(const struct chat *c, const struct hcache_result *r)
{
    int used = r->prompt_tokens + r->n_tokens;
    if ((int64_t)used * 5 < (int64_t)c->max_context * 4)
        return;
    fprintf(stderr,
            "[%d of %d tokens of the context are used (%d %%). /new begins another "
            "conversation, /branch N goes on from N answers ago.]\n",
            used, c->max_context, (int)((int64_t)used * 100 / c->max_context));
}

static void tell(const struct chat *c, const struct hcache_result *r)
{
    putchar('\n');
    fflush(stdout);
    if (strcmp(r->finish, "cancelled") == 0)
        fprintf(stderr, "[stopped; the answer so far is kept. /retry asks again.]\n");
    else if (strcmp(r->finish, "length") == 0)
        fprintf(stderr, "[the answer ended at its bound of %d tokens (--max-tokens).]\n",
                r->n_tokens);
    warn_fullness(c, r);
    if (c->o->told != NULL)
        c->o->told(c->o->arg, r);
}

/* text NULL: the last question again. */
static int say(struct chat *c, const char *text, size_t n)
{
    struct hcache_request q = c->o->sampling;
    struct hcache_result r = {0};
    struct err err = {0};
    q.on_token = print_piece;
    (void)terminal_interrupted(); /* of before */
    int rc = text != NULL ? talk_say(c->talk, text, n, &q, &r, &err)
                          : talk_retry(c->talk, &q, &r, &err);
    if (rc != 0) {
        if (c->on_terminal)
            fprintf(stderr, "%s\n", err.msg);
        c->last = err;
        return rc;
    }
    tell(c, &r);
    hcache_result_free(&r);
    return 0;
}

static void greet(const struct chat *c)
{
    const char *title = talk_title(c->talk);
    char *last = talk_last_answer(c->talk);
    int n = talk_n_turns(c->talk);
    if (n > 0)
        fprintf(stderr, "'%s' goes on after %d turn%s. The last answer was:\n%s\n",
                title != NULL ? title : "(no title)", n, plural((uint64_t)n),
                last != NULL ? last : "(none)");
    else if (title != NULL)
        fprintf(stderr, "'%s' begins.\n", title);
    free(last);
}

/* Goes to another conversation; where that fails the chat stays in its own. */
static void go_to(struct chat *c, const char *name)
{
    struct talk *t = NULL;
    struct err err = {0};
    if (talk_open(&c->talk_opts, name, &t, &err) != 0) {
        fprintf(stderr, "%s\n", err.msg);
        return;
    }
    talk_close(c->talk);
    c->talk = t;
    greet(c);
}

/* --- commands ----------------------------------------------------------------------------------- */

static void list(struct chat *c)
{
    enum { MOST = 50 };
    struct conversation v[MOST];
    struct err err = {0};
    bool more = false;
    int n = 0;
    const char *tenant = c->talk_opts.salt != NULL ? c->talk_opts.salt : "";
    if (conversation_list(c->talk_opts.conversations, tenant, NULL, false, MOST, v, &n,
                          &more, &err) != 0) {
        fprintf(stderr, "%s\n", err.msg);
        return;
    }
    for (int i = 0; i < n; i++) {
        printf("%-40s %4d turn%-2s %s\n", v[i].name, v[i].n_turns,
               plural((uint64_t)v[i].n_turns), v[i].title != NULL ? v[i].title : "");
        conversation_deinit(&v[i]);
    }
    if (n == 0)
        printf("no conversations yet\n");
    if (more)
        printf("... and older ones\n");
    fflush(stdout);
}

static void go_back(struct chat *c, const char *text)
{
    struct err err = {0};
    char *end = NULL;
    long n = *text != 0 ? strtol(text, &end, 10) : 1;
    if ((end != NULL && *end != 0) || n < 1 || n > 1 << 20) {
        fprintf(stderr, "/branch N: N is how many answers to go back\n");
        return;
    }
    if (talk_branch(c->talk, (int)n, &err) != 0)
        fprintf(stderr, "%s\n", err.msg);
    else
        greet(c);
}

static void help(void)
{
    printf(
        "/new [TITLE]   begins another conversation\n"
        "/list          lists the conversations, the last used one first\n"
        "/open NAME     goes on with one of them, by id or title\n"
        "/retry         asks the last question again, on a branch\n"
        "/branch [N]    goes on from N answers ago (1), on a branch\n"
        "/exit          ends the program; so does Ctrl-D\n"
        "Ctrl-C stops an answer. A line that ends with \\ goes on in the next one; lines "
        "between\ntwo lines of \"\"\" are one message. A message that begins with / is "
        "written //.\n");
    fflush(stdout);
}

/* Carries out a line that begins with a slash; false: /exit. */
static bool command(struct chat *c, const char *line)
{
    size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0)
        return false;
    if (strcmp(line, "/help") == 0)
        help();
    else if (strcmp(line, "/list") == 0)
        list(c);
    else if (strcmp(line, "/retry") == 0)
        (void)say(c, NULL, 0);
    else if (n == 4 && memcmp(line, "/new", 4) == 0)
        go_to(c, *rest != 0 ? rest : NULL);
    else if (n == 5 && memcmp(line, "/open", 5) == 0 && *rest != 0)
        go_to(c, rest);
    else if (n == 7 && memcmp(line, "/branch", 7) == 0)
        go_back(c, rest);
    else
        fprintf(stderr, "there is no command %.*s: /help lists them\n", (int)n, line);
    return true;
}

/* A message, or a command; false: the end, with *rc. */
static bool take(struct chat *c, const char *text, size_t n, int *rc)
{
    *rc = 0;
    if (n == 0)
        return true;
    if (text[0] != '/')
        *rc = say(c, text, n);
    else if (n > 1 && text[1] == '/')
        *rc = say(c, text + 1, n - 1);
    else if (!command(c, text))
        return false;
    return *rc == 0 || c->on_terminal;
}

static int converse(struct chat *c)
{
    struct line_reader *reader = line_reader_open();
    const char *text;
    size_t n;
    int rc = c->o->first != NULL ? say(c, c->o->first, strlen(c->o->first)) : 0;
    bool goes_on = rc == 0 || c->on_terminal;
    while (goes_on && (text = line_reader_next(reader, &n)) != NULL)
        goes_on = take(c, text, n, &rc);
    line_reader_close(reader);
    return c->on_terminal ? 0 : rc;
}

int terminal_chat(const struct terminal_chat_opts *o, struct err *err)
{
    struct hcache_model_info info;
    struct chat c = {.o = o, .talk_opts = o->talk, .on_terminal = isatty(STDIN_FILENO)};
    struct conversations_opts co = {.path = o->path};
    hcache_model_info(o->talk.h, &info);
    c.max_context = info.max_context;
    int rc = conversations_open(&co, &c.talk_opts.conversations, err);
    if (rc == 0)
        rc = talk_open(&c.talk_opts, o->name, &c.talk, err);
    if (rc == 0) {
        terminal_catch_interrupt();
        greet(&c);
        rc = converse(&c);
        if (rc != 0)
            *err = c.last;
    }
    talk_close(c.talk);
    conversations_close(c.talk_opts.conversations);
    return rc;
}
