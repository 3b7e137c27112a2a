/* request_log.c - see request_log.h. */
#include "server/request_log.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/call.h"
#include "api/shape.h"

/* Writes where the cached tokens of an answer came from: "device", "disk R0 H0 K4". */
static void how(const struct hcache_result *r, struct textbuf *out)
{
    if (r->device_tokens > 0)
        textbuf_addf(out, "device");
    if (r->cached_tokens > r->device_tokens)
        textbuf_addf(out, "%s%s R%d H%d K%d", r->device_tokens > 0 ? " and " : "",
                     r->tier != NULL ? r->tier : "store", r->plan.recompute, r->plan.hidden,
                     r->plan.kv);
}

/* Writes the token counts. If a prompt has several answers, the cached tokens are those of the
 * first answer. */
static void tell_tokens(const struct generation *g, struct textbuf *out)
{
    const struct hcache_result *first = &g->choice[0].result;
    int prompt = 0, generated = 0;
    for (int i = 0; i < g->n; i++) {
        prompt += i % (int)g->params.n == 0 ? g->choice[i].n_prompt : 0;
        generated += g->choice[i].result.n_tokens;
    }
    textbuf_addf(out, ": prompt %d, cached %d", prompt, first->cached_tokens);
    if (first->cached_tokens > 0) {
        textbuf_addf(out, " (");
        how(first, out);
        textbuf_addf(out, ")");
    }
    textbuf_addf(out, ", generated %d", generated);
}

/* Returns whether the request is a poll: monitors and the page send these every few seconds. */
static bool is_poll(const struct call *c)
{
    static const char *const paths[] = {"/health", "/metrics", "/v1/cache/stats"};
    for (size_t i = 0; c->status == 200 && i < sizeof paths / sizeof paths[0]; i++)
        if (c->route != NULL && strcmp(c->route->path, paths[i]) == 0)
            return true;
    return false;
}

void request_log(const struct call *c, bool lost)
{
    struct textbuf line = {0};
    if (log_level() < LOG_INFO || is_poll(c))
        return;
    const char *path = c->route != NULL ? c->route->path : "(no route)";
    textbuf_addf(&line, "%s %s %d in %.1f ms", c->method, path, c->status,
                 (double)(clock_now_ns() - c->begun_ns) * 1e-6);
    if (c->refused[0] != 0)
        textbuf_addf(&line, ": %s", c->refused);
    else if (c->gen != NULL)
        tell_tokens(c->gen, &line);
    if (lost)
        textbuf_addf(&line, "; the client was gone before the end");
    log_info("%s", line.p);
    textbuf_free(&line);
}
