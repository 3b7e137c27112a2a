/* line_reader.c - see line_reader.h.
 *
 * A terminal that supports bracketed paste marks pasted text (PASTE_ON requests it).  Lines that
 * are pasted together are one message: all but the last are taken unchanged, the last can be
 * edited, and Enter sends them. */
#include "apps/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "apps/user_files.h"
#include "base/mem.h"
#include "io/io.h"
#include "io/io_erase.h"

enum { HISTORY_LINES = 500 };

static const char PASTE_ON[] = "\x1b[?2004h", PASTE_OFF[] = "\x1b[?2004l";
static const wchar_t PASTE_END[] = L"\x1b[201~";
enum { PASTE_END_CHARS = 6, MARK_BYTES = 3 };

struct line_reader {
    EditLine *edit; /* NULL: the input is no terminal */
    History *history;
    char *file;     /* file of the history; NULL: there is none, or it cannot be written */
    bool continues; /* the prompt shows that the message continues */
    bool dropped;   /* Ctrl-C was typed */
    bool pastes;    /* the terminal was asked to mark pasted text */
    wchar_t *paste; /* pasted text behind the line that has just ended; NULL: none */
    char *line;     /* buffer that getline allocates */
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

/* Returns the pasted text up to its end mark, with '\n' at the end of each line, from malloc.
 * Returns NULL after Ctrl-C, or at the end of input. */
static wchar_t *read_paste(EditLine *edit)
{
    size_t n = 0, cap = 0;
    wchar_t *text = NULL, c;
    while (el_wgetc(edit, &c) == 1 && c != L'\x03') {
        if (n + 2 > cap) {
            cap = 2 * (n + 64);
            text = xrealloc(text, cap * sizeof *text);
        }
        text[n++] = c;
        text[n] = 0;
        if (n < PASTE_END_CHARS || wcscmp(text + n - PASTE_END_CHARS, PASTE_END) != 0)
            continue;
        text[n - PASTE_END_CHARS] = 0;
        for (wchar_t *end = text; (end = wcschr(end, L'\r')) != NULL;)
            *end = L'\n';
        return text;
    }
    free(text);
    return NULL;
}

/* Puts the first pasted line into the line that is being edited. Ends that line if more lines
 * follow. */
static unsigned char take_paste(EditLine *edit, int key)
{
    struct line_reader *r;
    (void)key;
    el_get(edit, EL_CLIENTDATA, &r);
    wchar_t *text = read_paste(edit), *end = text != NULL ? wcschr(text, L'\n') : NULL;
    if (text == NULL)
        return drop_line(edit, 0);
    if (end != NULL)
        *end = 0;
    if (text[0] != 0)
        el_winsertstr(edit, text);
    if (end != NULL) {
        el_set(edit, EL_REFRESH);
        r->paste = (wchar_t *)(void *)xmemdup(end + 1,
                                              (wcslen(end + 1) + 1) * sizeof *text);
    }
    free(text);
    return end != NULL ? CC_NEWLINE : CC_REFRESH;
}

/* Sets a locale for the editor. Without one the editor takes a letter beyond ASCII for the end of
 * the input. */
static void set_characters(void)
{
    (void)setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1)
        (void)setlocale(LC_CTYPE, "C.UTF-8");
}

/* Opens the editor. Ctrl-C is a key only while a line is edited, because isig is off only then;
 * otherwise it is a signal. */
static void edit_open(struct line_reader *r)
{
    HistEvent event;
    const char *terminal = getenv("TERM");
    set_characters();
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
    /* el_set would copy the names and never free them. */
    el_wset(r->edit, EL_ADDFN, L"drop-line", L"Drops the line", drop_line);
    el_set(r->edit, EL_BIND, "^C", "drop-line", NULL);
    el_set(r->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(r->edit, EL_BIND, "^I", "ed-insert", NULL); /* keeps tabs of pasted code */
    el_wset(r->edit, EL_ADDFN, L"take-paste", L"Takes pasted text", take_paste);
    el_set(r->edit, EL_BIND, "\\e[200~", "take-paste", NULL);
    r->pastes = terminal != NULL && strcmp(terminal, "dumb") != 0;
    el_set(r->edit, EL_SETTY, "-d", "-isig", NULL);
}

/* --- the history's file ----------------------------------------------------------------------- */

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
    /* A file of another program loads as an empty history. */
    history(r->history, &event, H_LOAD, r->file);
}

/* Writes the history to a new file, which then replaces the old one, so that no reader sees half of
 * it. The old one is overwritten: lines that have left the history leave the disk. */
static void history_save(struct line_reader *r)
{
    HistEvent event;
    char *made = xasprintf("%s.%ld", r->file, (long)getpid());
    int fd = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = f != NULL && history(r->history, &event, H_SAVE_FP, f) >= 0;
    if (f != NULL && fclose(f) != 0)
        ok = false;
    if (ok) {
        struct io *io = io_pread_open();
        int rc = io_replace(io, made, r->file, NULL, NULL);
        errno = -rc;
        ok = rc == 0;
        io_close(io);
    }
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
    free(r->paste);
    free(r->line);
    free(r->message);
    free(r);
}

/* Returns the next line without its newline; NULL at the end of input. */
static const char *next_line(struct line_reader *r, size_t *n)
{
    const char *line;
    int count = 0;
    if (r->edit != NULL) {
        /* el_gets prints the prompt before it takes over the terminal.  Until then the terminal
         * would echo keys and turn Ctrl-C into a signal, which drops the keys typed before it. */
        el_set(r->edit, EL_PREP_TERM, 1);
        if (r->pastes)
            fputs(PASTE_ON, stderr);
        line = el_gets(r->edit, &count);
        if (r->pastes)
            fputs(PASTE_OFF, stderr);
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

/* Adds the pasted lines that have ended to the message. The last one is put into the next line to
 * edit. */
static void add_paste(struct line_reader *r)
{
    wchar_t *paste = r->paste, *line = paste, *end;
    r->paste = NULL;
    for (; (end = wcschr(line, L'\n')) != NULL; line = end + 1) {
        *end = 0;
        char *text = xasprintf("%ls", line);
        fprintf(stderr, ". %s\n", text);
        add(r, "\n", 1);
        add(r, text, strlen(text));
        free(text);
    }
    if (line[0] != 0)
        el_wpush(r->edit, line);
    free(paste);
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

static bool is_mark_at(const char *line, size_t n, size_t at)
{
    return n >= at + MARK_BYTES && memcmp(line + at, "\"\"\"", MARK_BYTES) == 0;
}

/* State of a message whose lines are being read. */
struct quoting {
    bool is_on; /* the message is inside """, after the first mark */
    /* lines were pasted, so an empty last line only ends the last pasted one */
    bool has_pasted;
};

/* Adds a line to the message, without its marks. Returns false if it is the message's last line. */
static bool add_line(struct line_reader *r, const char *line, size_t n, struct quoting *q)
{
    bool begins = false, ends = false, is_open = false;
    if (r->paste == NULL) { /* pasted lines are taken unchanged */
        begins = !q->is_on && is_mark_at(line, n, 0);
        line += begins ? MARK_BYTES : 0;
        n -= begins ? MARK_BYTES : 0;
        q->is_on |= begins;
        ends = q->is_on && n >= MARK_BYTES && is_mark_at(line, n, n - MARK_BYTES);
        n -= ends ? MARK_BYTES : 0;
        is_open = !q->is_on && n > 0 && line[n - 1] == '\\';
    }
    bool is_empty = n == 0 && (begins || ends || q->has_pasted);
    if (r->continues && r->n > 0 && !is_empty)
        add(r, "\n", 1);
    add(r, line, is_open ? n - 1 : n);
    return !ends && (q->is_on || is_open || r->paste != NULL);
}

/* Reads a message. Returns false at the end of input, or after Ctrl-C has dropped it. */
static bool read_message(struct line_reader *r)
{
    struct quoting q = {0};
    size_t n;
    r->n = 0;
    r->continues = r->dropped = false;
    for (;;) {
        const char *line = next_line(r, &n);
        if (line == NULL || r->dropped)
            return false;
        r->continues = add_line(r, line, n, &q);
        if (!r->continues)
            return true;
        q.has_pasted = r->paste != NULL;
        if (r->paste != NULL)
            add_paste(r);
    }
}

const char *line_reader_next(struct line_reader *r, size_t *n)
{
    add(r, "", 0);
    while (!read_message(r)) {
        /* Later output must not follow the prompt on its line. */
        fputc('\n', stderr);
        if (!r->dropped)
            return NULL;
    }
    remember(r);
    add(r, "", 0);
    *n = r->n;
    return r->message;
}
