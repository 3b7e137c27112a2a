/* api_completions.c - POST /v1/completions: text or token ids in, text out.
 *
 * `prompt` is one of: a text, a list of token ids, a list of texts, a list of lists of ids.  Special
 * tokens written in a text count as such: whoever uses this route writes the prompt format himself. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/call.h"
#include "server/generation.h"
#include "server/shape.h"

enum { MAX_PROMPTS = 16 };

struct prompts {
    struct prompt_ids p[MAX_PROMPTS];
    int n;
};

static void prompts_free(struct prompts *ps)
{
    for (int i = 0; i < ps->n; i++)
        hcache_free(ps->p[i].ids);
}

static int add_text(struct hcache *h, struct prompts *ps, const struct json *v,
                    struct fault *f)
{
    struct hcache_err err = {0};
    size_t n;
    const char *text = json_string_of(v, &n);
    struct prompt_ids *p = &ps->p[ps->n];
    if (text == NULL)
        return fault_set(f, 400, NULL, "prompt",
                         "'prompt' must hold texts or token ids, not %s",
                         json_kind_name(v));
    if (prompt_fits(h, text, n, "prompt", f) != 0)
        return -1;
    if (hcache_encode(h, text, n, HCACHE_ADD_SPECIAL | HCACHE_PARSE_SPECIAL, &p->ids, &p->n,
                      &err) != 0)
        return fault_set(f, 400, NULL, "prompt", "'prompt': %s", err.msg);
    ps->n++;
    return 0;
}

static int add_ids(struct prompts *ps, const struct json *v, struct fault *f)
{
    struct prompt_ids *p = &ps->p[ps->n++];
    return request_ids(v, "prompt", &p->ids, &p->n, f);
}

static int add_all(struct hcache *h, struct prompts *ps, const struct json *v,
                   struct fault *f)
{
    const struct json *first = json_at(v, 0);
    if (json_kind(v) == JSON_KIND_STRING)
        return add_text(h, ps, v, f);
    if (json_kind(v) != JSON_KIND_ARRAY || first == NULL)
        return fault_set(
            f, 400, NULL, "prompt",
            "'prompt' must be a text, a list of token ids, or a list of either");
    if (json_kind(first) == JSON_KIND_INT)
        return add_ids(ps, v, f);
    size_t n = json_count(v);
    if (n > MAX_PROMPTS)
        return fault_set(f, 400, NULL, "prompt",
                         "'prompt' has %zu prompts; at most %d are allowed", n,
                         MAX_PROMPTS);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct json *one = json_at(v, i);
        rc = json_kind(one) == JSON_KIND_ARRAY ? add_ids(ps, one, f)
                                               : add_text(h, ps, one, f);
    }
    return rc;
}

void api_completions(struct call *c)
{
    struct gen_params p;
    struct prompts ps = {0};
    struct fault f;
    const struct json *body = call_body(c, REQUEST_COMPLETION);
    if (body == NULL)
        return;
    if (request_parse(body, REQUEST_COMPLETION, &p, &f) != 0 ||
        call_check_name(c, p.model, &f) != 0 ||
        add_all(call_model(c), &ps, p.prompt, &f) != 0) {
        prompts_free(&ps);
        call_fault(c, &f);
        return;
    }
    generation_start(c, &shape_completions, NULL, &p, ps.p, ps.n, NULL, "");
}
