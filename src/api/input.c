/* input.c - see input.h. */
#include "api/input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum { BUFFER_BYTES = 256 << 10 };

static ssize_t read_some(int fd, char *buf, size_t n)
{
    ssize_t got;
    do
        got = read(fd, buf, n);
    while (got < 0 && errno == EINTR);
    return got;
}

/* Counts the lines of the whole file, which is then read again from its beginning. */
static int count_lines(struct input *in, const char *path, struct err *err)
{
    char last = '\n';
    ssize_t got;
    while ((got = read_some(in->fd, in->buf, BUFFER_BYTES)) > 0) {
        for (const char *p = in->buf, *end = p + got;
             (p = memchr(p, '\n', (size_t)(end - p))) != NULL; p++)
            in->total_lines++;
        in->total_bytes += (uint64_t)got;
        last = in->buf[got - 1];
    }
    in->total_lines += last != '\n';
    if (got < 0 || lseek(in->fd, 0, SEEK_SET) != 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    return 0;
}

int input_open(struct input *in, const char *path, struct err *err)
{
    struct stat st;
    bool is_stdin = strcmp(path, "-") == 0;
    *in = (struct input){.fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC),
                         .is_owned = !is_stdin};
    if (in->fd < 0 || fstat(in->fd, &st) != 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return err_set(err, -EISDIR, "%s: %s", path, strerror(EISDIR));
    in->buf = xmalloc(BUFFER_BYTES);
    return S_ISREG(st.st_mode) && !is_stdin ? count_lines(in, path, err) : 0;
}

/* Fills the buffer. Returns INPUT_LINE if the buffer holds something. */
static enum input_got fill(struct input *in, int wait_ms, struct err *err)
{
    struct pollfd p = {.fd = in->fd, .events = POLLIN};
    int ready = poll(&p, 1, wait_ms);
    if (ready == 0 || (ready < 0 && errno == EINTR))
        return INPUT_LATER;
    ssize_t got = ready < 0 ? -1 : read_some(in->fd, in->buf, BUFFER_BYTES);
    if (got < 0) {
        err_set(err, -errno, "the input cannot be read: %s", strerror(errno));
        return INPUT_FAULT;
    }
    in->at = 0;
    in->end = (size_t)got;
    in->at_end = got == 0;
    return got == 0 ? INPUT_END : INPUT_LINE;
}

static void add_part(struct input *in, size_t n)
{
    in->is_too_long = in->is_too_long || in->line.n + n > INPUT_MAX_LINE;
    if (in->is_too_long)
        in->line.n = 0;
    else
        textbuf_add(&in->line, in->buf + in->at, n);
    in->n_bytes += n;
    in->at += n;
}

static bool is_blank(const struct textbuf *line)
{
    for (size_t i = 0; i < line->n; i++)
        if (strchr(" \t\r", line->p[i]) == NULL || line->p[i] == 0)
            return false;
    return true;
}

/* Ends the line that was read. Returns true if it is handed out, that is, if it is not blank. */
static bool end_line(struct input *in)
{
    in->n_lines++;
    in->has_line = in->is_too_long || !is_blank(&in->line);
    if (!in->has_line)
        in->line.n = 0;
    return in->has_line;
}

static void begin_line(struct input *in)
{
    if (in->has_line) {
        in->line.n = 0;
        in->has_line = in->is_too_long = false;
    }
}

enum input_got input_next(struct input *in, int wait_ms, struct err *err)
{
    begin_line(in);
    for (;;) {
        if (in->at == in->end) {
            enum input_got got = in->at_end ? INPUT_END : fill(in, wait_ms, err);
            bool is_last = got == INPUT_END && (in->line.n > 0 || in->is_too_long);
            if (is_last && end_line(in))
                return in->is_too_long ? INPUT_TOO_LONG : INPUT_LINE;
            if (got != INPUT_LINE)
                return got;
        }
        const char *nl = memchr(in->buf + in->at, '\n', in->end - in->at);
        add_part(in, nl != NULL ? (size_t)(nl - in->buf) - in->at : in->end - in->at);
        if (nl == NULL)
            continue;
        in->at++;
        in->n_bytes++;
        if (end_line(in))
            return in->is_too_long ? INPUT_TOO_LONG : INPUT_LINE;
    }
}

void input_close(struct input *in)
{
    if (in->is_owned && in->fd >= 0)
        close(in->fd);
    textbuf_free(&in->line);
    free(in->buf);
    *in = (struct input){.fd = -1};
}
