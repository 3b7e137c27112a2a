/* output.c - see output.h. */
#include "api/output.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "api/line.h"
#include "base/json.h"
#include "seal/seal_file.h"

enum { BUFFER_BYTES = 256 << 10 };

void output_name_answer(const char *custom_id, struct textbuf *out)
{
    out->n = 0;
    textbuf_addf(out, "answer %s", custom_id);
}

void output_name_fault(const char *id, struct textbuf *out)
{
    out->n = 0;
    textbuf_addf(out, "fault %s", id);
}

/* --- lines of an earlier run ------------------------------------------------------------------ */

/* Reads a line of an earlier run. Adds its name to *done. Returns false if it is no such line. */
static bool read_line(struct output *o, const char *text, size_t n, struct idset *done)
{
    struct json *v = NULL;
    struct textbuf name = {0};
    int64_t status = 0;
    if (json_parse(&v, text, n, o->path, NULL) != 0)
        return false;
    const char *id = json_string_of(json_member(v, "id"), NULL);
    const char *custom_id = json_string_of(json_member(v, "custom_id"), NULL);
    const struct json *response = json_member(v, "response");
    bool is_answer = json_kind(response) == JSON_KIND_OBJECT;
    bool is_ours = id != NULL && strncmp(id, LINE_ID, strlen(LINE_ID)) == 0 &&
                   (custom_id != NULL || !is_answer);
    if (is_ours && is_answer)
        output_name_answer(custom_id, &name);
    else if (is_ours)
        output_name_fault(id, &name);
    if (is_ours) {
        (void)idset_add(done, name.p, name.n);
        (void)json_int_of(json_member(response, "status_code"), &status);
        o->n_lines++;
        o->n_failed += status != 200;
    }
    textbuf_free(&name);
    json_free(v);
    return is_ours;
}

/* Returns whether the bytes behind the last whole line are a torn line, or zeros that cut_rest
 * wrote over one before it failed. */
static bool is_torn_line(const struct textbuf *rest, bool may_be_zeros)
{
    static const char begin[] = "{\"id\": \"" LINE_ID;
    size_t n = sizeof begin - 1;
    return memcmp(rest->p, begin, MIN(rest->n, n)) == 0 ||
           (may_be_zeros && rest->p[0] == 0);
}

static int not_ours(const struct output *o, uint64_t line, struct err *err)
{
    return err_set(err, ERR_FORMAT,
                   "%s: line %llu is not from a batch's output; the file is unchanged: "
                   "name another file",
                   o->path, (unsigned long long)line);
}

/* Overwrites the bytes behind the whole lines and cuts them off: freed blocks would keep them.
 * Returns 0 or -errno. */
static int cut_rest(const struct output *o)
{
    static const char zeros[64 << 10];
    struct stat st;
    if (fstat(o->fd, &st) != 0)
        return -errno;
    int rc = 0;
    for (uint64_t at = o->n_bytes; rc == 0 && at < (uint64_t)st.st_size; at += sizeof zeros)
        rc = file_write_all(o->fd, zeros, MIN(sizeof zeros, (uint64_t)st.st_size - at),
                            (off_t)at);
    if (rc == 0 && (uint64_t)st.st_size > o->n_bytes && fdatasync(o->fd) != 0)
        rc = -errno;
    return rc == 0 && ftruncate(o->fd, (off_t)o->n_bytes) != 0 ? -errno : rc;
}

/* Returns the name of the file in its folder. */
static const char *name_of(const struct output *o)
{
    const char *slash = strrchr(o->path, '/');
    return slash != NULL ? slash + 1 : o->path;
}

/* Reads more of the file into buf; *n is 0 at the end. Of an encrypted file it reads one frame,
 * which holds whole lines, or a part of a line that is longer than a frame. A frame that was cut
 * off counts as the end. */
static int read_more(const struct output *o, struct seal_place *p, char *buf, size_t *n,
                     struct err *err)
{
    if (o->seal != NULL) {
        int rc = seal_frame_read(o->seal, name_of(o), o->fd, p, buf, n, err);
        return rc == ERR_CORRUPT ? 0 : rc;
    }
    ssize_t got;
    do
        got = read(o->fd, buf, BUFFER_BYTES);
    while (got < 0 && errno == EINTR);
    *n = got > 0 ? (size_t)got : 0;
    return got >= 0 ? 0 : err_set(err, -errno, "%s: %s", o->path, strerror(errno));
}

/* Reads all whole lines and adds their names to *done. Cuts off a torn line after them. is_own: the
 * file is known to be a batch's, even if it has no whole line. */
static int read_lines(struct output *o, bool is_own, struct idset *done, struct err *err)
{
    struct textbuf rest = {0};
    struct seal_place place = {0};
    struct stat st = {0};
    char *buf = xmalloc(o->seal != NULL ? SEAL_FRAME_MOST + SEAL_BYTES : BUFFER_BYTES);
    size_t got;
    int rc;
    while ((rc = read_more(o, &place, buf, &got, err)) == 0 && got > 0) {
        textbuf_add(&rest, buf, got);
        size_t at = 0;
        for (const char *nl; rc == 0 && rest.n > at &&
                             (nl = memchr(rest.p + at, '\n', rest.n - at)) != NULL;) {
            size_t n = (size_t)(nl - rest.p) - at;
            if (!read_line(o, rest.p + at, n, done))
                rc = not_ours(o, o->n_lines + 1, err);
            at += n + 1;
        }
        memmove(rest.p, rest.p + at, rest.n - at);
        rest.n -= at;
        o->n_bytes += at;
        if (o->seal != NULL && rest.n == 0) {
            o->n_bytes = place.n_bytes;
            o->frame = place.frame;
        }
        if (rc != 0)
            break;
    }
    if (rc == 0 && o->seal == NULL && rest.n > 0 &&
        !is_torn_line(&rest, is_own || o->n_lines > 0))
        rc = not_ours(o, o->n_lines + 1, err);
    bool has_rest = rest.n > 0 || (o->seal != NULL && fstat(o->fd, &st) == 0 &&
                                   (uint64_t)st.st_size > o->n_bytes);
    int cut = rc == 0 && has_rest ? cut_rest(o) : 0;
    if (cut != 0)
        rc = err_set(err, cut, "%s: %s", o->path, strerror(-cut));
    textbuf_free(&rest);
    free(buf);
    return rc;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Makes the file's name durable by syncing its folder. */
static int sync_folder(const char *path, struct err *err)
{
    char *copy = xstrdup(path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    if (fd < 0 || fsync(fd) != 0)
        rc = err_set(err, -errno, "the folder of %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(copy);
    return rc;
}

static int open_file(struct output *o, const char *path, bool is_private,
                     const struct seal *seal, struct idset *done, struct err *err)
{
    struct stat st;
    *o = (struct output){.fd = -1, .path = xstrdup(path), .seal = seal};
    if (strcmp(path, "-") == 0) {
        o->fd = STDOUT_FILENO;
        o->is_stdout = true;
        return 0;
    }
    o->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | (is_private ? O_NOFOLLOW : 0),
                 is_private ? 0600 : 0666);
    if (o->fd < 0 || fstat(o->fd, &st) != 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_USAGE,
                       "%s is not a regular file: a job could not continue from it", path);
    if (flock(o->fd, LOCK_EX | LOCK_NB) != 0)
        return err_set(err, errno == EWOULDBLOCK ? ERR_BUSY : -errno,
                       errno == EWOULDBLOCK ? "%s: another job is writing it"
                                            : "%s: cannot be locked",
                       path);
    int rc = sync_folder(path, err);
    return rc == 0 ? read_lines(o, is_private, done, err) : rc;
}

int output_open(struct output *o, const char *path, bool is_private, struct idset *done,
                struct err *err)
{
    return open_file(o, path, is_private, NULL, done, err);
}

int output_open_sealed(struct output *o, const char *path, const struct seal *seal,
                       struct idset *done, struct err *err)
{
    return open_file(o, path, true, seal, done, err);
}

/* --- writing ---------------------------------------------------------------------------------- */

void output_add(struct output *o, const char *text)
{
    textbuf_add(&o->lines, text, strlen(text));
    textbuf_add(&o->lines, "\n", 1);
}

/* Returns how many bytes the next frame takes of n bytes of whole lines: as many lines as fit, or
 * one line that is longer than a frame. */
static size_t frame_lines(const char *p, size_t n)
{
    if (n <= SEAL_FRAME_MOST)
        return n;
    const char *end = memrchr(p, '\n', SEAL_FRAME_MOST);
    if (end == NULL)
        end = memchr(p, '\n', n);
    return (size_t)(end - p) + 1;
}

/* Replaces the lines by their frames. *frame is the number of the next one. */
static void seal_lines(struct output *o, uint64_t *frame)
{
    struct textbuf out = {0};
    uint8_t head[SEAL_HEAD_BYTES];
    seal_head(o->seal, head);
    if (o->n_bytes == 0)
        textbuf_add(&out, (char *)head, sizeof head);
    for (size_t at = 0, n; at < o->lines.n; at += n) {
        n = frame_lines(o->lines.p + at, o->lines.n - at);
        uint8_t *frames = xmalloc(seal_frames_bytes(n));
        seal_frames(o->seal, name_of(o), frame, o->lines.p + at, n, frames);
        textbuf_add(&out, (char *)frames, seal_frames_bytes(n));
        free(frames);
    }
    textbuf_free(&o->lines);
    o->lines = out;
}

int output_sync(struct output *o, struct err *err)
{
    uint64_t frame = o->frame;
    if (o->lines.n == 0)
        return 0;
    if (o->seal != NULL)
        seal_lines(o, &frame);
    int rc = file_write_all(o->fd, o->lines.p, o->lines.n,
                            o->is_stdout ? -1 : (off_t)o->n_bytes);
    if (rc == 0 && !o->is_stdout && fdatasync(o->fd) != 0)
        rc = -errno;
    if (rc != 0) {
        /* Removes the part that was written. If that fails, the next run cuts off a torn line, and
         * counts the whole lines as done, which is right. */
        if (!o->is_stdout)
            (void)cut_rest(o);
        return err_set(err, rc, "%s: %s", o->is_stdout ? "standard output" : o->path,
                       strerror(-rc));
    }
    o->frame = frame;
    o->n_bytes += o->lines.n;
    o->lines.n = 0;
    return 0;
}

void output_close(struct output *o)
{
    if (o->path != NULL && !o->is_stdout && o->fd >= 0)
        close(o->fd);
    textbuf_free(&o->lines);
    free(o->path);
    *o = (struct output){.fd = -1};
}
