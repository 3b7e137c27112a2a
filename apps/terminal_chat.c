/* terminal_chat.c - see terminal_chat.h. */
#include "apps/terminal_chat.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/line_reader.h"
#include "base/plural.h"
#include "base/progress.h"
#include "api/fullness.h"

/* --- Ctrl-C ----------------------------------------------------------------------------------- */

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

/* --- a chat ----------------------------------------------------------------------------------- */

struct chat {
    const struct terminal_chat_opts *o;
    struct terminal_talk *talk;
    struct progress reading; /* shows the progress of reading the prompt */
    int n_read;              /* tokens of the prompt that were read */
    bool has_text;           /* the answer has text */
    bool on_terminal;        /* false: input is no terminal, so a failure ends the chat */
    struct err last;         /* error of a turn that failed */
};

static int print_piece(void *arg, const char *text, size_t n)
{
    struct chat *c = arg;
    if (n > 0) {
        c->has_text = true;
        progress_end(&c->reading);
    }
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return interrupted != 0;
}

static void note_reading(void *arg, int n_done)
{
    ((struct chat *)arg)->n_read = n_done;
}

/* Returns whether Ctrl-C was pressed. Also shows how much of the prompt has been read. */
static bool is_stopped(void *arg)
{
    struct chat *c = arg;
    if (!c->has_text)
        progress_at(&c->reading, (uint64_t)c->n_read);
    return interrupted != 0;
}

static void warn_fullness(const struct terminal_end *end)
{
    bool truncates = end->result != NULL && end->result->truncation.context > 0;
    if (truncates || end->context <= 0 || !fullness_warns(end->used, end->context))
        return;
    fprintf(stderr,
            "[%d of %d tokens of the context are used (%d %%). /new begins another "
            "conversation, /branch N continues from N answers ago.]\n",
            end->used, end->context, (int)((int64_t)end->used * 100 / end->context));
}

static void tell(const struct chat *c, const struct terminal_end *end)
{
    putchar('\n');
    fflush(stdout);
    if (strcmp(end->finish, "cancelled") == 0)
        fprintf(stderr, "[stopped; the answer so far is kept. /retry asks again.]\n");
    else if (strcmp(end->finish, "length") == 0 ||
             strcmp(end->finish, "max_output_tokens") == 0)
        fprintf(stderr, "[the answer ended at its limit of %d tokens (--max-tokens).]\n",
                end->n_tokens);
    warn_fullness(end);
    if (c->o->told != NULL && end->result != NULL)
        c->o->told(c->o->arg, end->result);
}

/* Sends a message and prints the answer. text NULL: asks the last question again. */
static int say(struct chat *c, const char *text, size_t n)
{
    struct terminal_sink sink = {print_piece, note_reading, is_stopped, c};
    struct terminal_end end = {0};
    struct err err = {0};
    (void)terminal_interrupted(); /* forgets an earlier Ctrl-C */
    c->n_read = 0;
    c->has_text = false;
    progress_begin(&c->reading, "reading the prompt, tokens", PROGRESS_ITEMS, 0);
    int rc = c->talk->ops->say(c->talk, text, n, &sink, &end, &err);
    progress_end(&c->reading);
    if (rc != 0) {
        if (c->on_terminal)
            fprintf(stderr, "%s\n", err.msg);
        c->last = err;
        return rc;
    }
    tell(c, &end);
    return 0;
}

static void greet(const struct chat *c)
{
    const char *title = c->talk->ops->title(c->talk);
    char *last = c->talk->ops->last_answer(c->talk);
    int n = c->talk->ops->n_turns(c->talk);
    if (n > 0)
        fprintf(stderr, "'%s' continues after %d turn%s. The last answer was:\n%s\n",
                title != NULL ? title : "(no title)", n, plural((uint64_t)n),
                last != NULL ? last : "(none)");
    else if (title != NULL)
        fprintf(stderr, "'%s' begins.\n", title);
    free(last);
}

/* Changes to another conversation. After a failure the chat stays in the present one. */
static void go_to(struct chat *c, const char *name)
{
    struct err err = {0};
    if (c->talk->ops->go(c->talk, name, &err) != 0)
        fprintf(stderr, "%s\n", err.msg);
    else
        greet(c);
}

/* --- commands --------------------------------------------------------------------------------- */

static void list(struct chat *c)
{
    struct err err = {0};
    if (c->talk->ops->list(c->talk, &err) != 0)
        fprintf(stderr, "%s\n", err.msg);
    fflush(stdout);
}

static void go_back(struct chat *c, const char *text)
{
    struct err err = {0};
    char *end = NULL;
    long n = *text != 0 ? strtol(text, &end, 10) : 1;
    if ((end != NULL && *end != 0) || n < 1 || n > 1 << 20) {
        fprintf(stderr, "/branch N: N is the number of answers to go back\n");
        return;
    }
    if (c->talk->ops->branch(c->talk, (int)n, &err) != 0)
        fprintf(stderr, "%s\n", err.msg);
    else
        greet(c);
}

static void help(void)
{
    printf(
        "/new [TITLE]   begins another conversation\n"
        "/list          lists the conversations, the last used one first\n"
        "/open NAME     continues one of them, by id or title\n"
        "/retry         asks the last question again, on a branch, for another answer\n"
        "/branch [N]    continues from N answers ago (1), on a branch\n"
        "/exit          ends the program; so does Ctrl-D\n"
        "Ctrl-C stops an answer. A line that ends with \\ continues in the next one. Lines "
        "between\n\"\"\" and \"\"\" are one message, and so are lines that are pasted "
        "together: Enter sends them.\nA message that begins with / is written //.\n");
    fflush(stdout);
}

/* Runs a line that begins with a slash. Returns false for /exit. */
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
        fprintf(stderr, "unknown command %.*s: /help lists the commands\n", (int)n, line);
    return true;
}

/* Handles a message or a command. Returns false when the chat ends, with *rc set. */
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

/* Prints how to continue the conversation in another run. A title that would need quoting in a
 * shell is left out. */
static void tell_kept(const struct chat *c)
{
    const char *title = c->talk->ops->title(c->talk);
    if (c->talk->ops->n_turns(c->talk) == 0)
        return;
    if (title != NULL && strpbrk(title, "'\n\r\x1b") == NULL)
        fprintf(stderr, "[kept: continue it with --conversation '%s'.]\n", title);
    else
        fprintf(stderr,
                "[kept: in the next run /list shows it, and /open continues it.]\n");
}

static int converse(struct chat *c)
{
    struct line_reader *reader = line_reader_open(c->o->history);
    const char *text;
    size_t n;
    int rc = c->o->first != NULL ? say(c, c->o->first, c->o->n_first) : 0;
    bool goes_on = rc == 0 || c->on_terminal;
    while (goes_on && (text = line_reader_next(reader, &n)) != NULL)
        goes_on = take(c, text, n, &rc);
    line_reader_close(reader);
    if (c->on_terminal && c->o->is_kept)
        tell_kept(c);
    return c->on_terminal ? 0 : rc;
}

int terminal_chat(struct terminal_talk *talk, const struct terminal_chat_opts *o,
                  struct err *err)
{
    struct chat c = {.o = o, .talk = talk, .on_terminal = isatty(STDIN_FILENO)};
    int rc = talk->ops->go(talk, o->name, err);
    if (rc != 0)
        return rc;
    terminal_catch_interrupt();
    greet(&c);
    rc = converse(&c);
    if (rc != 0)
        *err = c.last;
    return rc;
}
