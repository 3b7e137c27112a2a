/* body.c - see body.h; call_body is in call.h. */
#include "server/body.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "base/json_scan.h"
#include "server/auth.h"
#include "server/tenants.h"
#include "server/worker.h"

enum {
    /* If the scan finds an error in a text up to this size, the parser reads the text, too, and
     * reports the error by line and column. */
    SMALL_TEXT_BYTES = 64 << 10,
    /* Trees up to this size are freed by the thread that ends the call: freeing takes less than a
     * millisecond. */
    SMALL_TREE_BYTES = 256 << 10,
};

/* --- bytes ------------------------------------------------------------------------------------ */

/* Gives n counted bytes back. `salt` is that of the request's key, or NULL if it has none. */
static void give(struct server *s, const char *salt, uint64_t n)
{
    atomic_fetch_sub(&s->body_bytes, n);
    if (salt != NULL)
        (void)tenants_body(s->tenants, auth_tenant(s->auth, salt), -(int64_t)n);
}

/* Counts n bytes for this call. Returns false, and counts none, if all bodies would exceed
 * max_bodies_bytes and this key's would exceed its share and the size of one body. */
static bool take(struct call *c, uint64_t n)
{
    struct server *s = c->s;
    uint64_t share = server_share(s, s->o.max_bodies_bytes), own = UINT64_MAX;
    uint64_t all = atomic_fetch_add(&s->body_bytes, n) + n;
    if (c->salt != NULL)
        own = tenants_body(s->tenants, auth_tenant(s->auth, c->salt), (int64_t)n);
    bool fits = all <= s->o.max_bodies_bytes ||
                (share > 0 && own <= MAX(share, s->o.max_body_bytes));
    if (!fits)
        give(s, c->salt, n);
    return fits;
}

static void free_bytes(struct call *c)
{
    if (!c->too_big)
        give(c->s, c->salt, c->body.n);
    textbuf_free(&c->body);
}

/* Appends bytes to a body. Returns false if there is no memory. A large body that grows must also
 * leave ROOM_BYTES of memory, because libmicrohttpd resets a connection for which it finds none. So
 * that much is pledged for a moment, to see whether it exists. */
static bool append(struct textbuf *body, const char *bytes, size_t n)
{
    enum { LARGE_BYTES = 256 << 10, ROOM_BYTES = 512 << 10 };
    size_t cap = body->cap;
    if (!textbuf_try_add(body, bytes, n))
        return false;
    if (body->cap == cap || body->cap < LARGE_BYTES || mem_pledge(ROOM_BYTES, NULL) == 0) {
        mem_unpledge(); /* does nothing if there was no pledge */
        return true;
    }
    body->n -= n;
    return false;
}

/* Takes more of a body. A body without a length can be refused only when it has ended, so the bytes
 * of one that is too large are dropped until then, and only counted in c->body.n. After twice the
 * allowed size the connection is cut off. */
enum MHD_Result body_add(struct call *c, const char *bytes, size_t n)
{
    if (!c->too_big && c->body.n + n <= c->s->o.max_body_bytes && take(c, n)) {
        if (append(&c->body, bytes, n))
            return MHD_YES;
        give(c->s, c->salt, n);
        c->no_memory = true;
    }
    size_t seen = c->body.n + n;
    free_bytes(c);
    c->body.n = seen;
    c->too_big = true;
    return c->body.n <= 2 * c->s->o.max_body_bytes ? MHD_YES : MHD_NO;
}

static int too_many(struct fault *f)
{
    return fault_set(f, 503, NULL, NULL, "too many large requests at once");
}

int body_check(const struct call *c, struct fault *f)
{
    if (!c->too_big)
        return 0;
    if (c->no_memory)
        return fault_refuse(f, -ENOMEM, NULL, "there is no memory for the request's body");
    return c->body.n > c->s->o.max_body_bytes
               ? fault_set(f, 413, NULL, NULL, "the body has more than %llu bytes",
                           (unsigned long long)c->s->o.max_body_bytes)
               : too_many(f);
}

/* --- parsing into values ---------------------------------------------------------------------- */

/* Counts the memory of the values before they are built. Returns 0, or -1 with *f for too much. */
static int reserve(struct call *c, size_t cost, struct fault *f)
{
    if (cost > c->body.n + BODY_FREE_BYTES)
        return fault_set(f, 413, "too_many_values", NULL,
                         "the body's values would take %zu bytes of memory: it has too "
                         "many small ones for its %zu bytes",
                         cost, c->body.n);
    if (!take(c, cost))
        return too_many(f);
    c->json_bytes = cost;
    return 0;
}

/* Reserves memory for everything that the answer makes of a large body, until the worker has
 * answered (run_job). The factors are above the measured ones: texts and their tokens took 6 times
 * the body, and prepared messages twice the values. Small bodies use the process's reserve. */
static int pledge(size_t n_body, size_t cost, struct err *err)
{
    enum { FREE_BYTES = 64 << 10, BODY_TIMES = 8, VALUE_TIMES = 3 };
    return n_body + cost <= FREE_BYTES
               ? 0
               : mem_pledge(BODY_TIMES * n_body + VALUE_TIMES * cost, err);
}

/* Makes the fault for a bad body. The log shows the name at the beginning of the message, and no
 * part of the body. */
static int bad_body(struct fault *f, int rc, const char *name, const struct err *err)
{
    size_t n = strlen(name);
    return strncmp(err->msg, name, n) == 0
               ? fault_refuse(f, rc, NULL, "the request's body%s", err->msg + n)
               : fault_refuse(f, rc, NULL, "%s", err->msg);
}

/* Parses the body twice: json_scan finds how much memory its values take, which must be free before
 * json_parse builds them. */
static int parse(struct call *c, unsigned kind, struct fault *f)
{
    static const char name[] = "the request's body";
    struct err err = {0};
    size_t cost;
    char none[1] = "", *text = c->body.p != NULL ? c->body.p : none;
    int rc = json_scan(text, c->body.n, request_ignores, &kind, name, &cost, &err);
    if (rc != 0 && c->body.n > SMALL_TEXT_BYTES)
        return bad_body(f, rc, name, &err);
    if (reserve(c, cost, f) != 0)
        return -1;
    rc = json_parse(&c->json, text, c->body.n, name, &err);
    if (rc == 0)
        rc = pledge(c->body.n, cost, &err);
    return rc == 0 ? 0 : bad_body(f, rc, name, &err);
}

char *body_model(const struct call *c)
{
    char *name = json_find_text(c->body.p, c->body.n, "model");
    bool may_be_name = name == NULL && strcmp(c->route->path, "/api/show") == 0;
    return may_be_name ? json_find_text(c->body.p, c->body.n, "name") : name;
}

const struct json *call_body(struct call *c, unsigned kind)
{
    struct fault f;
    if (c->json != NULL || c->has_bad_body)
        return c->json;
    if (parse(c, kind, &f) != 0) {
        c->has_bad_body = true;
        json_free(c->json);
        c->json = NULL;
        call_fault(c, &f);
    }
    free_bytes(c); /* the values have copies of all text in the body */
    return c->json;
}

struct tree {
    struct server *s;
    const char *salt;
    struct json *json;
    size_t bytes;
};

static void free_tree(void *arg)
{
    struct tree *t = arg;
    json_free(t->json);
    give(t->s, t->salt, t->bytes);
    free(t);
}

void body_release(struct call *c)
{
    struct tree *t = xmalloc(sizeof *t);
    *t = (struct tree){c->s, c->salt, c->json, c->json_bytes};
    c->json = NULL;
    free_bytes(c);
    if (t->json != NULL && t->bytes > SMALL_TREE_BYTES)
        worker_run(c->s->text, free_tree, t);
    else
        free_tree(t);
}
