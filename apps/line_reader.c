/* line_reader.c - see line_reader.h. */
#include "apps/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/user_files.h"
#include "base/mem.h"

enum { HISTORY_LINES = 500 };

struct line_reader {
    EditLine *edit; /* NULL: no terminal */
    History *history;
    char *file;     /* of the history; NULL: none, or it cannot be written */
    bool continues; /* the prompt says that the message goes on */
    bool dropped;   /* Ctrl-C was typed */
    char *line;     /* of getline */
    size_t cap;
    char *message;
    size_t n, message_cap;
};

static char *prompt(EditLine *edit)
{
    struct line_reader *r;
    static char first[] = "> ", next[] = ". ";
    el_get(edit, EL_CLIENTDATA, &r);
    return r->continues ? next : first;
}

static unsigned char drop_line(EditLine *edit, int key)
{
    struct line_reader *r;
    (void)key;
    el_get(edit, EL_CLIENTDATA, &r);
    r->dropped = true;
    return CC_NEWLINE;
}

/* Ctrl-C comes as a key, not as a signal, while a line is edited: the terminal's isig is off there alone. */
static void edit_open(struct line_reader *r)
{
    HistEvent event;
    r->edit = el_init("hcache", stdin, stderr, stderr);
    r->history = history_init();
    if (r->edit == NULL || r->history == NULL)
        return;
    history(r->history, &event, H_SETSIZE, HISTORY_LINES);
    history(r->history, &event, H_SETUNIQUE, 1);
    el_set(r->edit, EL_CLIENTDATA, r);
    el_set(r->edit, EL_PROMPT, prompt);
    el_set(r->edit, EL_EDITOR, "emacs");
    el_set(r->edit, EL_HIST, history, r->history);
    el_set(r->edit, EL_ADDFN, "drop-line", "Drops the line", drop_line);
    el_set(r->edit, EL_BIND, "^C", "drop-line", NULL);
    el_set(r->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(r->edit, EL_SETTY, "-d", "-isig", NULL);
}

/* --- the history's file -------------------------------------------------------------------------- */

static void history_fault(struct line_reader *r, const char *what)
{
    fprintf(stderr, "the history %s cannot be %s: %s\n", r->file, what, strerror(errno));
    free(r->file);
    r->file = NULL;
}

static void history_load(struct line_reader *r)
{
    HistEvent event;
    int fd = open(r->file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        history_fault(r, "read");
    if (fd < 0)
        return;
    close(fd);
    history(r->history, &event, H_LOAD,
            r->file); /* lines of another program load as nothing */
}

/* Writes a new file and puts it into the old one's place, so that no reader sees half of it. */
static void history_save(struct line_reader *r)
{
    HistEvent event;
    char *made = xasprintf("%s.%ld", r->file, (long)getpid());
    int fd = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = f != NULL && history(r->history, &event, H_SAVE_FP, f) >= 0;
    if (f != NULL && fclose(f) != 0)
        ok = false;
    if (ok && rename(made, r->file) != 0)
        ok = false;
    if (!ok) {
        history_fault(r, "written");
        (void)unlink(made);
    }
    free(made);
}

struct line_reader *line_reader_open(const char *history)
{
    struct line_reader *r = xcalloc(1, sizeof *r);
    if (isatty(STDIN_FILENO) && isatty(STDERR_FILENO))
        edit_open(r);
    if (r->edit != NULL && r->history != NULL && history != NULL) {
        r->file = xstrdup(history);
        user_file_make_folders(history);
        history_load(r);
    }
    return r;
}

void line_reader_close(struct line_reader *r)
{
    if (r == NULL)
        return;
    if (r->edit != NULL)
        el_end(r->edit);
    if (r->history != NULL)
        history_end(r->history);
    free(r->file);
    free(r->line);
    free(r->message);
    free(r);
}

/* The next line without its newline; NULL at the end. */
static const char *next_line(struct line_reader *r, size_t *n)
{
    const char *line;
    int count = 0;
    if (r->edit != NULL) {
        /* el_gets prints the prompt before it takes over the terminal. Until then the terminal would echo keys and
           turn Ctrl-C into a signal, which drops the keys typed before it. */
        el_set(r->edit, EL_PREP_TERM, 1);
        line = el_gets(r->edit, &count);
    } else {
        ssize_t got;
        fputs(r->continues ? ". " : "> ", stderr);
        got = getline(&r->line, &r->cap, stdin);
        line = got > 0 ? r->line : NULL;
        count = (int)got;
    }
    if (line == NULL || count <= 0)
        return NULL;
    *n = (size_t)count;
    while (*n > 0 && (line[*n - 1] == '\n' || line[*n - 1] == '\r'))
        (*n)--;
    return line;
}

static void add(struct line_reader *r, const char *text, size_t n)
{
    if (r->n + n + 2 > r->message_cap) {
        r->message_cap = 2 * (r->n + n + 2);
        r->message = xrealloc(r->message, r->message_cap);
    }
    if (n > 0)
        memcpy(r->message + r->n, text, n);
    r->n += n;
    r->message[r->n] = 0;
}

static void remember(struct line_reader *r)
{
    HistEvent event;
    if (r->history == NULL || r->n == 0 || memchr(r->message, '\n', r->n) != NULL)
        return;
    history(r->history, &event, H_ENTER, r->message);
    if (r->file != NULL)
        history_save(r);
}

/* Reads a message; false at the end of input, or where Ctrl-C has dropped it. */
static bool read_message(struct line_reader *r)
{
    bool quoted = false;
    size_t n;
    r->n = 0;
    r->continues = r->dropped = false;
    for (;;) {
        const char *line = next_line(r, &n);
        if (line == NULL || r->dropped)
            return false;
        bool is_mark = n == 3 && memcmp(line, "\"\"\"", 3) == 0;
        bool is_open = n > 0 && line[n - 1] == '\\' && !quoted;
        if (is_mark && quoted)
            return true;
        if (is_mark) {
            quoted = true;
        } else {
            if (r->continues && r->n > 0)
                add(r, "\n", 1);
            add(r, line, is_open ? n - 1 : n);
        }
        r->continues = quoted || is_open;
        if (!r->continues)
            return true;
    }
}

const char *line_reader_next(struct line_reader *r, size_t *n)
{
    add(r, "", 0);
    while (!read_message(r)) {
        if (!r->dropped)
            return NULL;
        fputc('\n', stderr);
    }
    remember(r);
    add(r, "", 0);
    *n = r->n;
    return r->message;
}
