/* shelf_disk.c - the files of the shelf: writes records, and reads all of them at open.  See
 * shelf.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "api/shelf_impl.h"
#include "base/json.h"
#include "io/io.h"
#include "io/io_erase.h"
#include "seal/seal_file.h"

enum { MAX_RECORD_BYTES = 64 << 10 };

/* Returns the length of the id at the beginning of a name; 0 if there is none. */
static size_t id_bytes(const char *name)
{
    size_t n = strncmp(name, "file-", 5) == 0 ? 5 : strncmp(name, "batch_", 6) == 0 ? 6 : 0;
    if (n == 0 || strspn(name + n, "0123456789abcdef") != SHELF_ID_DIGITS)
        return 0;
    return n + SHELF_ID_DIGITS;
}

static bool is_id(const char *name)
{
    size_t n = id_bytes(name);
    return n > 0 && name[n] == 0;
}

void shelf_path(const struct shelf *s, const char *id, char *out, size_t n)
{
    snprintf(out, n, "%s/%s", s->folder, id);
}

/* --- writing ---------------------------------------------------------------------------------- */

int shelf_sync(struct shelf *s, struct err *err)
{
    return fsync(s->fd) == 0 ? 0
                             : err_set(err, -errno, "%s: %s", s->folder, strerror(errno));
}

/* Writes a file that has no name yet to lose. */
static int write_fresh(struct shelf *s, const char *fresh, const char *bytes, size_t n,
                       struct err *err)
{
    int rc = shelf_erase(s, fresh, err);
    if (rc != 0)
        return rc;
    int fd = openat(s->fd, fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, -errno, "%s/%s: %s", s->folder, fresh, strerror(errno));
    rc = file_write_all(fd, bytes, n, -1);
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    close(fd);
    return rc == 0 ? 0 : err_set(err, rc, "%s/%s: %s", s->folder, fresh, strerror(-rc));
}

int shelf_write(struct shelf *s, const char *name, const char *bytes, size_t n,
                struct err *err)
{
    char fresh[SHELF_ID_BYTES + 16], from[SHELF_PATH_BYTES], to[SHELF_PATH_BYTES];
    int old_rc = 0;
    snprintf(fresh, sizeof fresh, "%s.new", name);
    shelf_path(s, fresh, from, sizeof from);
    shelf_path(s, name, to, sizeof to);
    char *sealed = s->seal != NULL ? seal_whole(s->seal, name, bytes, n, &n) : NULL;
    int rc = write_fresh(s, fresh, sealed != NULL ? sealed : bytes, n, err);
    free(sealed);
    if (rc == 0 && (rc = io_replace(s->io, from, to, &old_rc, NULL)) != 0)
        err_set(err, rc, "%s: %s", to, err_name(rc));
    if (rc != 0)
        (void)shelf_erase(s, fresh, NULL); /* else the next start erases it */
    else if (old_rc != 0)
        log_warn("%s: the older file is not overwritten yet: %s", to, err_name(old_rc));
    return rc;
}

int shelf_erase(struct shelf *s, const char *name, struct err *err)
{
    char path[SHELF_PATH_BYTES];
    shelf_path(s, name, path, sizeof path);
    int rc = io_erase(s->io, path, err);
    return rc == -ENOENT ? 0 : rc;
}

int shelf_drop_record(struct shelf *s, const char *id, struct err *err)
{
    char record[SHELF_ID_BYTES + 8], gone[SHELF_ID_BYTES + 16];
    struct err why = {0};
    snprintf(record, sizeof record, "%s.json", id);
    snprintf(gone, sizeof gone, "%s.new", record);
    if (renameat(s->fd, record, s->fd, gone) != 0)
        return err_set(err, -errno, "%s/%s: %s", s->folder, record, strerror(errno));
    int rc = shelf_sync(s, err);
    if (rc == 0 && shelf_erase(s, gone, &why) != 0)
        log_warn("%s; the next start tries again", why.msg);
    return rc;
}

/* --- records as JSON -------------------------------------------------------------------------- */

static struct json *head_json(const struct shelf_head *h)
{
    return json_make("{id: %s, tenant: %s, created: %ld}", h->id, h->tenant, h->created_s);
}

/* Writes a record as FOLDER/id.json. Frees o. */
static int write_record(struct shelf *s, const char *id, struct json *o, struct err *err)
{
    char name[SHELF_ID_BYTES + 8];
    char *text = json_text(o, 1);
    snprintf(name, sizeof name, "%s.json", id);
    int rc = shelf_write(s, name, text, strlen(text), err);
    free(text);
    json_free(o);
    return rc;
}

int shelf_write_file_record(struct shelf *s, const struct shelf_file *f, struct err *err)
{
    struct json *o = head_json(&f->head);
    json_extend(o, "{name: %s, purpose: %s, bytes: %lu}", f->name, f->purpose, f->n_bytes);
    return write_record(s, f->head.id, o, err);
}

int shelf_write_batch_record(struct shelf *s, const struct shelf_batch *b, struct err *err)
{
    struct json *o = head_json(&b->head), *at = json_new_object();
    for (int i = 0; i < BATCH_STATUSES; i++)
        if (b->at_s[i] != 0)
            json_put_int(at, batch_status_name((enum batch_status)i), b->at_s[i]);
    json_extend(o, "{status: %s, at: %p, endpoint: %s, input: %s}",
                batch_status_name(b->status), at, b->endpoint, b->input);
    json_extend(o, "{output: %s, errors: %s, has_output: %p, has_errors: %p}", b->output,
                b->errors, json_new_bool(b->has_output), json_new_bool(b->has_errors));
    json_extend(o,
                "{lines: %ld, done: %ld, failed: %ld, error_code: %s, error_message: %s, "
                "metadata: %s}",
                b->n_lines, b->n_done, b->n_failed, b->error_code, b->error_message,
                b->metadata);
    return write_record(s, b->head.id, o, err);
}

/* Copies a text member to out. Returns false if it is missing or too long. */
static bool read_text(const struct json *o, const char *name, char *out, size_t n)
{
    const char *text = json_string_of(json_member(o, name), NULL);
    return text != NULL && snprintf(out, n, "%s", text) < (int)n;
}

static bool read_int(const struct json *o, const char *name, int64_t *out)
{
    return json_int_of(json_member(o, name), out) && *out >= 0;
}

static bool read_head(const struct json *o, const char *id, struct shelf_head *h)
{
    return read_text(o, "id", h->id, sizeof h->id) && strcmp(h->id, id) == 0 &&
           read_text(o, "tenant", h->tenant, sizeof h->tenant) &&
           read_int(o, "created", &h->created_s);
}

static bool read_file_record(const struct json *o, const char *id, struct shelf_file *f)
{
    int64_t n = 0;
    bool ok = read_head(o, id, &f->head) && read_text(o, "name", f->name, sizeof f->name) &&
              read_text(o, "purpose", f->purpose, sizeof f->purpose) &&
              read_int(o, "bytes", &n);
    f->n_bytes = (uint64_t)n;
    return ok;
}

static bool read_status(const struct json *o, struct shelf_batch *b)
{
    char name[32];
    const struct json *at = json_member(o, "at");
    bool found = false;
    if (!read_text(o, "status", name, sizeof name))
        return false;
    for (int i = 0; i < BATCH_STATUSES; i++) {
        const char *one = batch_status_name((enum batch_status)i);
        if (strcmp(one, name) == 0) {
            b->status = (enum batch_status)i;
            found = true;
        }
        (void)json_int_of(json_member(at, one), &b->at_s[i]);
    }
    return found;
}

static bool read_batch_record(const struct json *o, const char *id, struct shelf_batch *b)
{
    return read_head(o, id, &b->head) && read_status(o, b) &&
           read_text(o, "endpoint", b->endpoint, sizeof b->endpoint) &&
           read_text(o, "input", b->input, sizeof b->input) &&
           read_text(o, "output", b->output, sizeof b->output) &&
           read_text(o, "errors", b->errors, sizeof b->errors) && is_id(b->input) &&
           /* these ids are used as names of files */
           is_id(b->output) && is_id(b->errors) &&
           json_bool_of(json_member(o, "has_output"), &b->has_output) &&
           json_bool_of(json_member(o, "has_errors"), &b->has_errors) &&
           read_int(o, "lines", &b->n_lines) && read_int(o, "done", &b->n_done) &&
           read_int(o, "failed", &b->n_failed) &&
           read_text(o, "error_code", b->error_code, sizeof b->error_code) &&
           read_text(o, "error_message", b->error_message, sizeof b->error_message) &&
           read_text(o, "metadata", b->metadata, sizeof b->metadata);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* A record that cannot be read is skipped and kept: it may be from a later version. But a record of
 * another key ends the opening. */
static int load_record(struct shelf *s, const char *name, struct err *out)
{
    char path[SHELF_PATH_BYTES], id[SHELF_ID_BYTES];
    char *text = NULL;
    size_t n;
    struct err err = {0};
    struct json *o = NULL;
    bool is_file = strncmp(name, "file-", 5) == 0, ok = false;
    snprintf(id, sizeof id, "%.*s", (int)(strlen(name) - 5), name);
    shelf_path(s, name, path, sizeof path);
    if (file_read_regular(path, MAX_RECORD_BYTES, &text, &n, &err) == 0 &&
        seal_whole_open(s->seal, name, text, &n, &err) == 0 &&
        json_parse(&o, text, n, path, &err) == 0) {
        void *record = xcalloc(1, is_file ? sizeof(struct shelf_file)
                                          : sizeof(struct shelf_batch));
        ok = is_file ? read_file_record(o, id, record) : read_batch_record(o, id, record);
        if (ok)
            shelf_add_copy(is_file ? &s->files : &s->batches, record,
                           is_file ? sizeof(struct shelf_file) : shelf_batch_bytes(record));
        free(record);
    }
    if (!ok && err.code != ERR_MISMATCH)
        log_warn("%s is not used: %s", path,
                 err.code != 0 ? err.msg : "a field is missing");
    json_free(o);
    free(text);
    return err.code == ERR_MISMATCH ? err_set(out, err.code, "%s: %s", s->folder, err.msg)
                                    : 0;
}

/* Sums the bytes that an earlier process left of the answers of batches that have not ended. */
static void count_growing(struct shelf *s)
{
    for (int i = 0; i < s->batches.n; i++) {
        struct shelf_batch *b = (struct shelf_batch *)s->batches.at[i];
        const char *names[] = {b->output, b->errors};
        struct stat st;
        for (int k = 0; k < 2 && !batch_has_ended(b); k++)
            if (fstatat(s->fd, names[k], &st, 0) == 0)
                b->growing_bytes += (uint64_t)st.st_size;
    }
}

/* Returns whether the bytes of that name belong to a batch that has not ended. */
static bool is_growing(const struct shelf *s, const char *name)
{
    for (int i = 0; i < s->batches.n; i++) {
        const struct shelf_batch *b = (const struct shelf_batch *)s->batches.at[i];
        if (strcmp(b->output, name) == 0 || strcmp(b->errors, name) == 0)
            return !batch_has_ended(b);
    }
    return false;
}

static int each_name(struct shelf *s,
                     int (*visit)(struct shelf *s, const char *name, struct err *err),
                     struct err *err)
{
    DIR *d = opendir(s->folder);
    if (d == NULL)
        return err_set(err, -errno, "%s: %s", s->folder, strerror(errno));
    int rc = 0;
    for (const struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;)
        rc = visit(s, e->d_name, err);
    closedir(d);
    return rc;
}

static int visit_record(struct shelf *s, const char *name, struct err *err)
{
    size_t n = id_bytes(name);
    return n > 0 && strcmp(name + n, ".json") == 0 ? load_record(s, name, err) : 0;
}

/* Erases what an earlier process left, unfinished or not erased. Other names are the user's. */
static int visit_rest(struct shelf *s, const char *name, struct err *not_used)
{
    char record[300];
    size_t n = id_bytes(name);
    snprintf(record, sizeof record, "%.255s.json", name);
    if (n == 0 || (name[n] != 0 && strcmp(name + n, ".new") != 0 &&
                   strcmp(name + n, ".json.new") != 0))
        return 0;
    /* A record protects its bytes, also if this version cannot read it. */
    bool has_record = faccessat(s->fd, record, F_OK, 0) == 0;
    struct err err = {0};
    (void)not_used;
    if ((name[n] != 0 || (!has_record && !is_growing(s, name))) &&
        shelf_erase(s, name, &err) != 0)
        log_warn("%s; the next start tries again", err.msg);
    return 0;
}

static int lock_folder(struct shelf *s, struct err *err)
{
    struct stat st;
    if (mkdir(s->folder, 0700) != 0 && errno != EEXIST)
        return err_set(err, -errno, "%s: %s", s->folder, strerror(errno));
    s->fd = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &st) != 0)
        return err_set(err, -errno, "%s: %s", s->folder, strerror(errno));
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return err_set(err, -EPERM, "%s belongs to another user", s->folder);
    if (flock(s->fd, LOCK_EX | LOCK_NB) != 0)
        return err_set(err, ERR_BUSY, "%s is in use by another process", s->folder);
    return 0;
}

const struct seal *shelf_seal(const struct shelf *s)
{
    return s->seal;
}

int shelf_open(const char *folder, uint64_t max_bytes, const struct seal *seal,
               struct shelf **out, struct err *err)
{
    struct shelf *s = xcalloc(1, sizeof *s);
    s->folder = xstrdup(folder);
    s->fd = -1;
    s->io = io_pread_open();
    s->seal = seal;
    s->max_bytes = max_bytes;
    shelf_divide(s, 1, 0);
    pthread_mutex_init(&s->lock, NULL);
    int rc = lock_folder(s, err);
    if (rc == 0)
        rc = each_name(s, visit_record, err);
    if (rc == 0)
        rc = each_name(s, visit_rest, err);
    if (rc != 0) {
        shelf_close(s);
        return rc;
    }
    shelf_list_sort(&s->files);
    shelf_list_sort(&s->batches);
    count_growing(s);
    *out = s;
    return 0;
}

static void list_free(struct shelf_list *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->at[i]);
    free(l->at);
}

void shelf_close(struct shelf *s)
{
    if (s == NULL)
        return;
    if (s->fd >= 0)
        close(s->fd);
    io_close(s->io);
    list_free(&s->files);
    list_free(&s->batches);
    pthread_mutex_destroy(&s->lock);
    free(s->folder);
    free(s);
}
