/* api_files.c - /v1/files: uploads for batches, and their answers.  api/shelf.h keeps them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "api/runner.h"
#include "server/keep.h"
#include "server/shelves.h"

enum { FORM_BUFFER_BYTES = 4 << 10, MAX_PURPOSE_BYTES = 64 };

/* --- shared with batches ---------------------------------------------------------------------- */

void shelves_route(struct call *c,
                   int (*answer)(struct call *c, struct shelf *shelf, struct fault *f))
{
    struct fault f;
    int rc = c->s->shelf != NULL
                 ? answer(c, c->s->shelf, &f)
                 : fault_set(&f, 400, "no_files", NULL,
                             "this server keeps no files: start it with --files DIR, or "
                             "with a store on disk");
    if (rc != 0)
        call_fault(c, &f);
}

/* Answers a fault of the disk. The message has paths of the server, which are for its log alone. */
static int disk_fault(const struct err *err, struct fault *f)
{
    log_warn("files: %s", err->msg);
    if (err->code == -ENOSPC || err->code == -EDQUOT)
        return fault_set(f, 507, "disk_full", NULL,
                         "the server's disk is full: delete files, or try again later");
    return fault_set(f, 500, "storage_failed", NULL,
                     "the server cannot read or write its files; its log has the reason");
}

int shelves_fault(const struct err *err, struct fault *f)
{
    switch (err->code) {
    case ERR_NOT_FOUND:
        return fault_set(f, 404, "not_found", NULL, "%s", err->msg);
    case ERR_BUSY:
        return fault_set(f, 400, "file_in_use", NULL, "%s", err->msg);
    case ERR_LIMIT:
        return fault_set(f, 413, "storage_full", NULL, "%s", err->msg);
    case -ENOMEM:
        return fault_refuse(f, err->code, NULL, "%s", err->msg);
    default:
        return disk_fault(err, f);
    }
}

int shelves_page(struct call *c, struct shelf_page *out, struct fault *f)
{
    struct items_page p;
    if (keep_page(c, SHELVES_MAX_PAGE, &p, f) != 0)
        return -1;
    *out = (struct shelf_page){.tenant = call_tenant(c),
                               .after = p.after,
                               .oldest_first = p.oldest_first,
                               .limit = p.limit};
    return 0;
}

void shelves_list(struct call *c, struct json *data, bool has_more)
{
    size_t n = json_count(data);
    const struct json *first = json_member(json_at(data, 0), "id"),
                      *last = n > 0 ? json_member(json_at(data, n - 1), "id") : NULL;
    call_json(
        c, 200,
        json_make("{object: 'list', first_id: %p, last_id: %p, has_more: %p, data: %p}",
                  json_share(first), json_share(last), json_new_bool(has_more), data));
}

/* --- uploading -------------------------------------------------------------------------------- */

/* Content of an uploaded form. */
struct form {
    struct textbuf file, purpose;
    char name[SHELF_NAME_BYTES], unknown[64];
    int n_files;
    bool has_unknown; /* the form has a part with a name that is not known */
    bool no_memory;
};

/* Sets the file's name, cut at the first byte that is not UTF-8, which no record can hold. */
static void set_name(struct form *form, const char *name)
{
    snprintf(form->name, sizeof form->name, "%s", name);
    form->name[utf8_check(form->name, strlen(form->name))] = 0;
}

static enum MHD_Result read_part(void *arg, enum MHD_ValueKind kind, const char *key,
                                 const char *filename, const char *type,
                                 const char *encoding, const char *bytes, uint64_t at,
                                 size_t n)
{
    struct form *form = arg;
    (void)kind;
    (void)type;
    (void)encoding;
    if (key == NULL) /* the part of the form has no name */
        key = "";
    if (strcmp(key, "file") == 0) {
        form->n_files += at == 0;
        if (at == 0)
            set_name(form, filename != NULL ? filename : "upload.jsonl");
        form->no_memory |= !textbuf_try_add(&form->file, bytes, n);
    } else if (strcmp(key, "purpose") == 0) {
        if (form->purpose.n + n <= MAX_PURPOSE_BYTES)
            textbuf_add(&form->purpose, bytes, n);
    } else {
        snprintf(form->unknown, sizeof form->unknown, "%s", key);
        form->has_unknown = true;
    }
    return form->no_memory ? MHD_NO : MHD_YES;
}

/* Refuses a form that is not one file and the purpose of a batch. */
static int check_form(const struct form *form, bool is_whole, struct fault *f)
{
    if (form->no_memory)
        return fault_refuse(f, -ENOMEM, NULL, "there is no memory for the file");
    if (!is_whole)
        return fault_set(f, 400, NULL, NULL,
                         "the body must be a form (multipart/form-data) with file and "
                         "purpose, and a boundary of 2 to 70 characters");
    if (form->has_unknown)
        return fault_set(f, 400, "unknown_parameter", form->unknown,
                         "unknown parameter '%s'", form->unknown);
    if (form->purpose.p == NULL || strcmp(form->purpose.p, "batch") != 0)
        return fault_set(f, 400, "unsupported_value", "purpose",
                         "'purpose' must be \"batch\"");
    if (form->n_files != 1 || form->file.n == 0)
        return fault_set(f, 400, NULL, "file", "'file' must be one file that is not empty");
    return 0;
}

static struct json *file_object(const struct shelf_file *file)
{
    return json_make("{id: %s, object: 'file', bytes: %lu, created_at: %ld, "
                     "expires_at: null, filename: %s, purpose: %s, "
                     "status: 'processed'}",
                     file->head.id, file->n_bytes, file->head.created_s, file->name,
                     file->purpose);
}

static int upload(struct call *c, struct shelf *shelf, struct fault *f)
{
    struct form form = {0};
    struct shelf_file file;
    struct err err = {0};
    struct MHD_PostProcessor *p = MHD_create_post_processor(
        c->connection, FORM_BUFFER_BYTES, read_part, &form);
    bool is_whole = p != NULL && c->body.n > 0 &&
                    MHD_post_process(p, c->body.p, c->body.n) == MHD_YES;
    if (p != NULL && MHD_destroy_post_processor(p) != MHD_YES)
        is_whole = false;
    int rc = check_form(&form, is_whole, f);
    if (rc == 0 && shelf_add_file(shelf, call_tenant(c), form.name, form.file.p,
                                  form.file.n, &file, &err) != 0)
        rc = shelves_fault(&err, f);
    if (rc == 0)
        call_json(c, 200, file_object(&file));
    textbuf_free(&form.file);
    textbuf_free(&form.purpose);
    return rc;
}

/* --- the routes ------------------------------------------------------------------------------- */

static int list_files(struct call *c, struct shelf *shelf, struct fault *f)
{
    struct shelf_page page;
    bool has_more;
    if (shelves_page(c, &page, f) != 0)
        return -1;
    struct shelf_file *files = xcalloc(SHELVES_MAX_PAGE, sizeof *files);
    struct json *data = json_new_array();
    page.purpose = call_query(c, "purpose");
    int n = shelf_list_files(shelf, &page, files, &has_more);
    for (int i = 0; i < n; i++)
        json_push(data, file_object(&files[i]));
    shelves_list(c, data, has_more);
    free(files);
    return 0;
}

void api_files(struct call *c)
{
    shelves_route(c, strcmp(c->route->method, "POST") == 0 ? upload : list_files);
}

static int delete_file(struct call *c, struct shelf *shelf, struct fault *f)
{
    const char *id = c->tail;
    struct err err = {0};
    bool is_pending;
    if (shelf_delete_file(shelf, call_tenant(c), id, &is_pending, &err) != 0)
        return shelves_fault(&err, f);
    runner_wake(c->s->runner); /* a batch may wait for the room */
    struct json *o = json_make("{id: %s, object: 'file', deleted: true}", id);
    if (is_pending) {
        log_warn("%s", err.msg);
        json_put_string(o, "pending_because",
                        "its bytes could not be overwritten: the server's next start does");
    }
    call_json(c, is_pending ? 202 : 200, o);
    return 0;
}

static int get_file(struct call *c, struct shelf *shelf, struct fault *f)
{
    struct shelf_file file;
    struct err err = {0};
    int fd = -1;
    bool wants_content = keep_split(c->tail)[0] != 0;
    if (shelf_read_file(shelf, call_tenant(c), c->tail, &file, wants_content ? &fd : NULL,
                        &err) != 0)
        return shelves_fault(&err, f);
    if (wants_content)
        call_file(c, fd, "application/jsonl");
    else
        call_json(c, 200, file_object(&file));
    return 0;
}

/* Answers GET /v1/files/ID, GET /v1/files/ID/content and DELETE /v1/files/ID. */
void api_file(struct call *c)
{
    shelves_route(c, strcmp(c->route->method, "DELETE") == 0 ? delete_file : get_file);
}
