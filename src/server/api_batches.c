/* api_batches.c - /v1/batches: jobs of many requests.  api/runner.h runs them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "api/line.h"
#include "api/runner.h"
#include "server/keep.h"
#include "server/shelves.h"

/* --- the object ------------------------------------------------------------------------------- */

/* Returns a time for an answer; 0 becomes null. */
static struct json *time_or_null(int64_t at_s)
{
    return at_s != 0 ? json_new_int(at_s) : NULL;
}

/* Returns the list of errors, or NULL if there are none. A batch that waits for room has an error,
 * too, until there is room. */
static struct json *errors_of(const struct shelf_batch *b)
{
    bool waits = !batch_has_ended(b) && b->held_code != 0;
    const char *code = waits ? b->held_code == ERR_LIMIT ? "storage_full" : "disk_full"
                             : b->error_code;
    if (code[0] == 0)
        return NULL;
    return json_make(
        "{object: 'list', data: [{code: %s, message: %s, param: null, line: null}]}", code,
        waits ? "the batch waits until there is room for more answers: delete "
                "files, or cancel it to keep the answers that it has"
              : b->error_message);
}

/* Batches do not expire. */
static struct json *batch_object(const struct shelf_batch *b)
{
    struct json *o = json_make(
        "{id: %s, object: 'batch', endpoint: %s, errors: %p, input_file_id: %s, "
        "completion_window: '24h', status: %s}",
        b->head.id, b->endpoint, errors_of(b), b->input, batch_status_name(b->status));
    json_extend(o, "{output_file_id: %s, error_file_id: %s, created_at: %ld}",
                b->has_output ? b->output : NULL, b->has_errors ? b->errors : NULL,
                b->head.created_s);
    json_extend(o, "{in_progress_at: %p, expires_at: null, finalizing_at: %p}",
                time_or_null(b->at_s[BATCH_IN_PROGRESS]),
                time_or_null(b->at_s[BATCH_FINALIZING]));
    json_extend(o, "{completed_at: %p, failed_at: %p, expired_at: null}",
                time_or_null(b->at_s[BATCH_COMPLETED]),
                time_or_null(b->at_s[BATCH_FAILED]));
    json_extend(o, "{cancelling_at: %p, cancelled_at: %p}",
                time_or_null(b->at_s[BATCH_CANCELLING]),
                time_or_null(b->at_s[BATCH_CANCELLED]));
    json_extend(
        o, "{request_counts: {total: %ld, completed: %ld, failed: %ld}, metadata: %p}",
        b->n_lines, b->n_done - b->n_failed, b->n_failed, json_of_text(b->metadata));
    return o;
}

/* --- creating --------------------------------------------------------------------------------- */

static int read_string(const struct json *body, const char *name, const char **out,
                       struct fault *f)
{
    struct err err = {0};
    return json_get_string(body, name, out, &err) == 0
               ? 0
               : fault_set(f, 400, NULL, name, "%s", err.msg);
}

static int read_metadata(const struct json *body, struct shelf_batch *b, struct fault *f)
{
    const struct json *v = NULL;
    int rc = request_metadata(json_member(body, "metadata"), &v, f);
    if (rc != 0 || v == NULL)
        return rc;
    char *text = json_text(v, 0);
    size_t n = strlen(text);
    if (n < sizeof b->metadata)
        memcpy(b->metadata, text, n + 1);
    free(text);
    return n < sizeof b->metadata
               ? 0
               : fault_set(f, 400, NULL, "metadata", "'metadata' has more than %zu bytes",
                           sizeof b->metadata - 1);
}

static int read_batch(const struct json *body, struct shelf_batch *b, const char **input,
                      struct fault *f)
{
    static const char *const names[] = {"input_file_id", "endpoint", "completion_window",
                                        "metadata", NULL};
    const char *endpoint, *window;
    if (request_known(body, names, f) != 0 ||
        read_string(body, "input_file_id", input, f) != 0 ||
        read_string(body, "endpoint", &endpoint, f) != 0 ||
        read_string(body, "completion_window", &window, f) != 0)
        return -1;
    if (line_kind(endpoint) == 0)
        return fault_set(
            f, 400, "unsupported_value", "endpoint",
            "'endpoint' must be \"/v1/chat/completions\" or \"/v1/completions\"");
    if (strcmp(window, "24h") != 0)
        return fault_set(f, 400, "unsupported_value", "completion_window",
                         "'completion_window' must be \"24h\"");
    snprintf(b->endpoint, sizeof b->endpoint, "%s", endpoint);
    return read_metadata(body, b, f);
}

static int create(struct call *c, struct shelf *shelf, struct fault *f)
{
    struct err err = {0};
    const char *input;
    const struct json *body = call_body(c, 0);
    if (body == NULL)
        return 0; /* the fault was answered */
    struct shelf_batch *b = xcalloc(1, sizeof *b);
    int rc = read_batch(body, b, &input, f);
    if (rc == 0 && shelf_add_batch(shelf, call_tenant(c), input, b, &err) != 0)
        rc = shelves_fault(&err, f);
    if (rc == 0) {
        runner_wake(c->s->runner);
        call_json(c, 200, batch_object(b));
    }
    free(b);
    return rc;
}

/* --- the routes ------------------------------------------------------------------------------- */

static int list_batches(struct call *c, struct shelf *shelf, struct fault *f)
{
    struct shelf_page page;
    bool has_more;
    if (shelves_page(c, &page, f) != 0)
        return -1;
    struct shelf_batch *batches = xcalloc(SHELVES_MAX_PAGE, sizeof *batches);
    struct json *data = json_new_array();
    int n = shelf_list_batches(shelf, &page, batches, &has_more);
    for (int i = 0; i < n; i++)
        json_push(data, batch_object(&batches[i]));
    shelves_list(c, data, has_more);
    free(batches);
    return 0;
}

void api_batches(struct call *c)
{
    shelves_route(c, strcmp(c->route->method, "POST") == 0 ? create : list_batches);
}

static int look_or_cancel(struct call *c, struct shelf *shelf, struct fault *f)
{
    struct err err = {0};
    bool cancels = keep_split(c->tail)[0] != 0;
    struct shelf_batch *b = xcalloc(1, sizeof *b);
    int rc = cancels ? shelf_cancel_batch(shelf, call_tenant(c), c->tail, b, &err)
                     : shelf_find_batch(shelf, call_tenant(c), c->tail, b, &err);
    if (rc == 0 && cancels)
        runner_wake(c->s->runner);
    if (rc == 0)
        call_json(c, 200, batch_object(b));
    free(b);
    return rc == 0 ? 0 : shelves_fault(&err, f);
}

/* Answers GET /v1/batches/ID and POST /v1/batches/ID/cancel. */
void api_batch(struct call *c)
{
    shelves_route(c, look_or_cancel);
}
