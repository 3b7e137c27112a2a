/* test_request_memory.c - a request that finds no memory fails alone. Whichever of its allocations
 * fails, the result is -ENOMEM or the right answer, and the next request is answered. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"
#include "hcache.h"
#include "tests/base/memtest.h"

static struct hcache *model;
static char *answer; /* the answer with enough memory */
/* number of requests that were answered although an allocation failed */
static int n_whole;

static bool is_good(int rc, const struct hcache_err *err, const char *what)
{
    return memtest_ok(rc, (const struct err *)(const void *)err, what);
}

/* Returns whether the request was answered. Checks the answer's text. */
static bool ask(void)
{
    static const char chat[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be kind.\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"<|end|> "
        "hello\"}]}]}";
    static const char *const stop[] = {"never said"};
    char *text = NULL;
    size_t n = 0;
    int32_t *ids = NULL;
    int n_ids = 0;
    struct hcache_result out = {0};
    struct hcache_err err = {0};
    bool good = is_good(
        hcache_chat_render_guarded(model, chat, strlen(chat), &text, &n, &err), &err,
        "rendering");
    if (good)
        good = is_good(hcache_encode(model, text, n, HCACHE_PARSE_SPECIAL | HCACHE_GUARDED,
                                     &ids, &n_ids, &err),
                       &err, "tokenizing");
    struct hcache_request r = {.prompt = ids,
                               .n_prompt = n_ids,
                               .max_tokens = 8,
                               .ignore_eos = true,
                               .stop = stop,
                               .n_stop = 1,
                               .salt = "salt",
                               .logprobs = true,
                               .n_top = 3};
    if (good)
        good = is_good(hcache_generate(model, &r, &out, &err), &err, "generating");
    if (good && answer != NULL)
        assert_string_equal(out.text, answer);
    else if (good)
        answer = strdup(out.text);
    hcache_result_free(&out);
    hcache_free(ids);
    hcache_free(text);
    return good;
}

static void life(void *arg)
{
    (void)arg;
    n_whole += ask();
}

TEST(each_allocation_fails_its_own_request)
{
    assert_true(ask());
    memtest_walk("a request", life, NULL, 150);
    assert_true(n_whole > 0);
    assert_true(ask()); /* the next request works as before */
}

static int open_model(void **state)
{
    struct hcache_opts o = {.model = "models/demo", .threads = 1, .max_context = 512};
    struct hcache_err err;
    memtest_init();
    return hcache_open(&o, &model, &err);
}

static int close_model(void **state)
{
    hcache_close(model);
    free(answer);
    return 0;
}

int main(void)
{
    return unit_run(open_model, close_model);
}
