/* line.c - see line.h. */
#include "api/line.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/json_scan.h"
#include "base/textbuf.h"

/* Memory that a line's values may take beyond its text's size. Sensible requests take far less. */
enum { FREE_VALUE_BYTES = 16 << 20 };

static const struct {
    const char *url;
    unsigned kind;
} urls[] = {
    {"/v1/chat/completions", REQUEST_CHAT},
    {"/v1/completions", REQUEST_COMPLETION},
};

enum { N_URLS = sizeof urls / sizeof urls[0] };

unsigned line_kind(const char *url)
{
    for (int i = 0; i < N_URLS; i++)
        if (strcmp(urls[i].url, url) == 0)
            return urls[i].kind;
    return 0;
}

/* --- names ------------------------------------------------------------------------------------ */

/* Names a line by its text. by_number: also by its number, for a line that is not a request: two
 * such lines may be equal, and each gets an answer. */
static void name_line(struct line *l, const struct textbuf *text, bool by_number)
{
    char hex[65];
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, "line", text->p, text->n);
    if (by_number)
        sha256_field(c, "number", &l->number, sizeof l->number);
    struct sha256 h = sha256_end(c);
    sha256_hex(&h, hex);
    memcpy(l->name, hex, LINE_NAME_BYTES - 1);
    l->name[LINE_NAME_BYTES - 1] = 0;
    memcpy(&l->seed, h.b + 16, sizeof l->seed);
}

/* --- reading ---------------------------------------------------------------------------------- */

static int parse(struct line *l, struct textbuf *text, struct fault *f)
{
    struct err err = {0};
    size_t cost;
    if (json_scan(text->p, text->n, NULL, NULL, "the line", &cost, &err) != 0)
        return fault_set(f, 400, "invalid_json_line", NULL, "%s", err.msg);
    if (cost > text->n + FREE_VALUE_BYTES)
        return fault_set(f, 400, "too_many_values", NULL,
                         "the line's values would take %zu bytes of memory: it has too "
                         "many small ones",
                         cost);
    if (json_parse(&l->json, text->p, text->n, "the line", &err) != 0)
        return fault_set(f, 400, "invalid_json_line", NULL, "%s", err.msg);
    l->n_memory += cost;
    return 0;
}

static int read_custom_id(struct line *l, struct fault *f)
{
    const char *id = json_string_of(json_member(l->json, "custom_id"), NULL);
    if (id == NULL || id[0] == 0 || strlen(id) > LINE_MAX_CUSTOM_ID)
        return fault_set(f, 400, "invalid_custom_id", "custom_id",
                         "'custom_id' must be a text of 1 to %d bytes", LINE_MAX_CUSTOM_ID);
    l->custom_id = xstrdup(id);
    return 0;
}

static int read_request(struct line *l, struct fault *f)
{
    static const char *const names[] = {"custom_id", "method", "url", "body", NULL};
    const char *method = json_string_of(json_member(l->json, "method"), NULL);
    const char *url = json_string_of(json_member(l->json, "url"), NULL);
    if (request_known(l->json, names, f) != 0)
        return -1;
    if (method == NULL || strcmp(method, "POST") != 0)
        return fault_set(f, 400, "invalid_method", "method", "'method' must be \"POST\"");
    l->kind = url != NULL ? line_kind(url) : 0;
    if (l->kind == 0)
        return fault_set(f, 400, "invalid_url", "url",
                         "'url' must be \"%s\" or \"%s\" in a batch of this server",
                         urls[0].url, urls[1].url);
    l->body = json_member(l->json, "body");
    if (json_kind(l->body) != JSON_KIND_OBJECT)
        return fault_set(f, 400, "missing_body", "body", "'body' must be an object");
    return 0;
}

int line_read(const struct input *in, enum input_got got, struct idset *seen,
              struct line *out, struct fault *f)
{
    struct textbuf text = in->line;
    *out = (struct line){
        .number = in->n_lines, .n_bytes = text.n, .n_memory = sizeof *out + text.n};
    int rc;
    if (got == INPUT_TOO_LONG)
        rc = fault_set(f, 400, "line_too_long", NULL, "the line has more than %d bytes",
                       INPUT_MAX_LINE);
    else
        rc = parse(out, &text, f);
    if (rc == 0)
        rc = read_custom_id(out, f);
    if (rc == 0)
        rc = read_request(out, f);
    if (rc == 0 && !idset_add(seen, out->custom_id, strlen(out->custom_id)))
        rc = fault_set(f, 400, "duplicate_custom_id", "custom_id",
                       "an earlier line has the custom_id '%.100s'", out->custom_id);
    name_line(out, &text, rc != 0);
    return rc;
}

char *line_first_model(const char *path)
{
    struct input in;
    struct err err;
    size_t at, len;
    char *name = NULL;
    if (input_open(&in, path, &err) != 0)
        return NULL;
    if (input_next(&in, 0, &err) == INPUT_LINE &&
        json_find(in.line.p, in.line.n, "body", &at, &len))
        name = json_find_text(in.line.p + at, len, "model");
    input_close(&in);
    return name;
}

void line_deinit(struct line *l)
{
    json_free(l->json);
    free(l->custom_id);
    *l = (struct line){0};
}

/* --- answers ---------------------------------------------------------------------------------- */

static struct json *envelope(const struct line *l)
{
    char *id = xasprintf(LINE_ID "%s", l->name);
    /* id is first, because output.c recognises a torn line by it */
    struct json *o = json_make("{id: %s, custom_id: %s}", id, l->custom_id);
    free(id);
    return o;
}

static char *text_of(struct json *o)
{
    struct textbuf text = {0};
    json_append_line(o, &text);
    json_free(o);
    return text.p;
}

char *line_answer(const struct line *l, int status, struct json *body)
{
    struct json *o = envelope(l);
    char *request = xasprintf("req_%s", l->name);
    json_extend(o, "{response: {status_code: %d, request_id: %s, body: %p}, error: null}",
                status, request, body);
    free(request);
    return text_of(o);
}

char *line_fault(const struct line *l, const struct fault *f)
{
    struct json *o = envelope(l);
    json_extend(o, "{response: null, error: {code: %s, message: %s, param: %s, line: %lu}}",
                f->code, f->message, f->param[0] != 0 ? f->param : NULL, l->number);
    return text_of(o);
}
