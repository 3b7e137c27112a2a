/* test_shape.c - the form of answers: usage of several answers, tool calls, timings, chunks. */

#include "tests/unit.h"

#include <stdlib.h>
#include <string.h>

#include "api/shape.h"

enum { MOST = 4 };

enum { CONTEXT = 256 };

static struct hcache *h; /* used for the length of its context only */

static int open_model(void **state)
{
    const struct hcache_opts o = {
        .model = "models/demo", .threads = 1, .max_context = CONTEXT};
    return hcache_open(&o, &h, &(struct hcache_err){0});
}

static int close_model(void **state)
{
    hcache_close(h);
    return 0;
}

/* Makes a generation of n ended answers, n_each of them to each prompt. */
static struct generation *make(unsigned kind, int n, int n_each)
{
    struct generation *g = calloc(1, sizeof *g + MOST * sizeof g->choice[0]);
    g->client.h = h;
    g->client.model_name = "m";
    g->params.kind = kind;
    g->params.n = n_each;
    g->dialect = &shape_completions;
    g->n = n;
    g->created_s = 9;
    strcpy(g->id, "id-1");
    for (int i = 0; i < n; i++)
        g->choice[i] = (struct choice){.gen = g,
                                       .index = i,
                                       .n_prompt = 100 + i / n_each,
                                       .finished = true,
                                       .result = {.text = "abc",
                                                  .n_text = 3,
                                                  .n_tokens = 5 + i,
                                                  .finish = "stop",
                                                  .prompt_tokens = 100 + i / n_each}};
    return g;
}

static void drop(struct generation *g)
{
    for (int i = 0; i < g->n; i++)
        hcache_answer_close(g->choice[i].answer);
    free(g);
}

static int64_t number(const struct json *o, const char *key)
{
    int64_t v = -1;
    return json_int_of(json_member(o, key), &v) ? v : -1;
}

static const char *text(const struct json *o, const char *key)
{
    return json_string_of(json_member(o, key), NULL);
}

static bool is_null(const struct json *o, const char *key)
{
    return json_member(o, key) != NULL && json_kind(json_member(o, key)) == JSON_KIND_NULL;
}

/* A prompt with several answers counts once in the usage, with the largest restore of its
 * answers. */
TEST(answers_to_one_prompt_share_it)
{
    struct generation *g = make(REQUEST_COMPLETION, 4, 2);
    static const int cached[] = {64, 0, 0, 32};
    for (int i = 0; i < 4; i++)
        g->choice[i].result.cached_tokens = cached[i];
    struct json *a = shape_completions.answer(g);
    const struct json *u = json_member(a, "usage");
    assert_int_equal(number(u, "prompt_tokens"), 201);
    assert_int_equal(number(u, "completion_tokens"), 5 + 6 + 7 + 8);
    assert_int_equal(number(u, "total_tokens"), 201 + 26);
    assert_int_equal(number(json_member(u, "prompt_tokens_details"), "cached_tokens"), 96);
    assert_int_equal(number(u, "context_used"), 101 + 8); /* of the longest answer */
    assert_int_equal(number(u, "context_window"), CONTEXT);
    assert_null(json_member(u, "context_warning"));
    for (size_t i = 0; i < 4; i++) {
        const struct json *c = json_at(json_member(a, "choices"), i);
        assert_int_equal(number(c, "index"), i);
        assert_string_equal(text(c, "text"), "abc");
        assert_string_equal(text(c, "finish_reason"), "stop");
        assert_true(is_null(c, "logprobs"));
        assert_null(json_member(c, "message"));
    }
    json_free(a);
    g->client.repeatable = true; /* leaves out fields that depend on earlier requests */
    a = shape_completions.answer(g);
    assert_null(json_member(json_member(a, "usage"), "prompt_tokens_details"));
    assert_null(json_member(a, "timings"));
    json_free(a);
    drop(g);
}

TEST(timings_are_those_of_the_result)
{
    static const char *const names[] = {
        "queue_ms",        "lookup_ms",        "plan_ms",    "restore_ms", "restore_io_ms",
        "restore_wait_ms", "restore_fused_ms", "prefill_ms", "ttft_ms",    "decode_ms"};
    struct generation *g = make(REQUEST_CHAT, 1, 1);
    struct hcache_result *r = &g->choice[0].result;
    r->timings = (struct hcache_timings){.queue_ms = 1,
                                         .lookup_ms = 2,
                                         .plan_ms = 3,
                                         .restore_ms = 4,
                                         .restore_io_ms = 5,
                                         .restore_wait_ms = 6,
                                         .fused_ms = 7,
                                         .prefill_ms = 8,
                                         .ttft_ms = 9,
                                         .decode_ms = 10};
    r->cached_tokens = 64;
    r->device_tokens = 20;
    r->tier = "disk";
    r->restored_bytes = 4096;
    r->n_preempted = 2;
    r->committed_tokens = 63;
    r->dram_tokens = 11;
    r->remote_tokens = 13;
    r->timings.bubble = 0.5;
    r->timings.decode_tokens_per_s = 14;
    struct json *t = shape_timings(g, &g->choice[0]);
    double ms, per_token;
    assert_int_equal(number(t, "dram_tokens"), 11);
    assert_int_equal(number(t, "remote_tokens"), 13);
    assert_true(json_real_of(json_member(t, "restore_bubble"), &ms) && ms == 0.5);
    assert_true(json_real_of(json_member(t, "decode_tokens_per_s"), &ms) && ms == 14);
    for (int i = 0; i < 10; i++)
        assert_true(json_real_of(json_member(t, names[i]), &ms) && ms == i + 1);
    assert_true(json_real_of(json_member(t, "per_token_ms"), &per_token));
    assert_true(per_token == 2.5); /* 10 ms for the 4 tokens after the first */
    assert_int_equal(number(t, "device_tokens"), 20);
    assert_int_equal(number(t, "restored_tokens"), 44);
    assert_int_equal(number(t, "prefilled_tokens"), 36);
    assert_int_equal(number(t, "restore_bytes"), 4096);
    assert_int_equal(number(t, "preemptions"), 2);
    assert_int_equal(number(t, "committed_tokens"), 63);
    assert_string_equal(text(t, "restore_source"), "disk");
    assert_true(is_null(t, "save_stopped"));
    json_free(t);
    r->n_tokens = 1;
    t = shape_timings(g, &g->choice[0]);
    assert_true(json_real_of(json_member(t, "per_token_ms"), &per_token) && per_token == 0);
    json_free(t);
    drop(g);
}

static void stream_is(struct textbuf *b, const char *want)
{
    assert_string_equal(b->p != NULL ? b->p : "", want);
    textbuf_free(b);
}

/* Gives the answer two tokens, each with the two likeliest ones. */
static void add_logprobs(struct generation *g)
{
    static const struct hcache_logprob lp[2][3] = {{{40, -0.5f}, {40, -0.5f}, {41, -1}},
                                                   {{163, -2}, {41, -0.25f}, {-1, 0}}};
    g->params.logprobs = true;
    g->params.n_top = 2;
    textbuf_add(&g->choice[0].logprobs, (const char *)lp, sizeof lp);
}

static void as_text_is(struct json *v, const char *want)
{
    char *text = json_text(v, 0);
    assert_string_equal(text, want);
    free(text);
    json_free(v);
}

/* A chat names each token with its bytes; a completion has a list of each kind. A token that is no
 * whole character is spelled byte by byte. */
TEST(log_probabilities_have_the_form_of_their_api)
{
    struct generation *g = make(REQUEST_CHAT, 1, 1);
    add_logprobs(g);
    struct json *a = shape_completions.answer(g);
    as_text_is(
        json_share(json_member(json_at(json_member(a, "choices"), 0), "logprobs")),
        "{\"content\": [{\"token\": \"D\", \"id\": 40, \"logprob\": -0.5, \"bytes\": [68], "
        "\"top_logprobs\": [{\"token\": \"D\", \"id\": 40, \"logprob\": -0.5, \"bytes\": "
        "[68]}, {\"token\": \"E\", \"id\": 41, \"logprob\": -1.0, \"bytes\": [69]}]}, "
        "{\"token\": \"bytes:\\\\xe2\", \"id\": 163, \"logprob\": -2.0, \"bytes\": [226], "
        "\"top_logprobs\": [{\"token\": \"E\", \"id\": 41, \"logprob\": -0.25, \"bytes\": "
        "[69]}]}], \"refusal\": null}");
    json_free(a);
    assert_int_equal(g->choice[0].logprobs.n, 0); /* they are sent once */
    textbuf_free(&g->choice[0].logprobs);
    drop(g);
    g = make(REQUEST_COMPLETION, 1, 1);
    add_logprobs(g);
    a = shape_completions.answer(g);
    as_text_is(json_share(json_member(json_at(json_member(a, "choices"), 0), "logprobs")),
               "{\"tokens\": [\"D\", \"bytes:\\\\xe2\"], \"token_logprobs\": [-0.5, -2.0], "
               "\"top_logprobs\": [{\"E\": -1.0, \"D\": -0.5}, {\"E\": -0.25}], "
               "\"text_offset\": [0, 1]}");
    json_free(a);
    textbuf_free(&g->choice[0].logprobs);
    drop(g);
    g = make(REQUEST_CHAT, 1, 1); /* without tokens the lists are empty */
    g->params.logprobs = true;
    a = shape_completions.answer(g);
    as_text_is(json_share(json_member(json_at(json_member(a, "choices"), 0), "logprobs")),
               "{\"content\": [], \"refusal\": null}");
    json_free(a);
    drop(g);
}

/* From 80 % of the context on, the usage warns, unless the context is truncated. */
TEST(a_context_that_is_nearly_full_is_told)
{
    static const int used[] = {204, 205, 256};
    for (int i = 0; i < 3; i++)
        for (int truncates = 0; truncates < 2; truncates++) {
            struct generation *g = make(REQUEST_CHAT, 2, 2);
            g->choice[0].n_prompt = g->choice[1].n_prompt = used[i] - 5;
            g->choice[0].result.n_tokens = 5;
            g->choice[1].result.n_tokens = 1;
            g->choice[1].result.truncated_tokens = 7;
            g->client.truncation.ratio = truncates ? 0.5 : 0;
            g->params.truncation = "auto";
            struct json *u = json_new_object();
            shape_context(u, g);
            assert_int_equal(number(u, "context_used"), used[i]);
            assert_int_equal(number(u, "truncated_tokens"), 7);
            const char *warning = text(u, "context_warning");
            assert_int_equal(warning != NULL, i > 0 && !truncates);
            if (warning != NULL)
                assert_memory_equal(
                    warning,
                    i == 1 ? "205 of 256 tokens of the context are used (80 %)"
                           : "256 of 256 tokens of the context are used (100 %)",
                    48);
            json_free(u);
            drop(g);
        }
}

#define HEAD                                                                               \
    "data: {\"id\": \"id-1\", \"object\": \"chat.completion.chunk\", \"created\": 9, "     \
    "\"model\": \"m\", \"system_fingerprint\": \"b" HCACHE_VERSION "\", "

static void piece(struct generation *g, const char *said, struct textbuf *out)
{
    const struct hcache_part p = {
        .kind = HCACHE_PART_TEXT, .text = said, .n = strlen(said)};
    shape_completions.piece(g, &g->choice[0], 0, &p, out);
}

/* Only the first chunk has the role, alone. Usage comes last, if the request asked for it. */
TEST(chunks_follow_one_another)
{
    struct generation *g = make(REQUEST_CHAT, 1, 1);
    struct textbuf out = {0};
    piece(g, "ab", &out);
    stream_is(&out,
              HEAD "\"choices\": [{\"index\": 0, \"delta\": {\"role\": \"assistant\", "
                   "\"content\": null}, \"logprobs\": null, \"finish_reason\": "
                   "null}]}\n\n" HEAD
                   "\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"ab\"}, "
                   "\"logprobs\": null, \"finish_reason\": null}]}\n\n");
    g->params.include_usage = true;
    piece(g, "c", &out);
    stream_is(&out,
              HEAD "\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"c\"}, "
                   "\"logprobs\": null, \"finish_reason\": null}], \"usage\": null}\n\n");
    shape_completions.close(g, &out);
    assert_non_null(strstr(out.p, "\"choices\": [], \"usage\": {\"prompt_tokens\": 100, "
                                  "\"completion_tokens\": 5, \"total_tokens\": 105"));
    assert_string_equal(out.p + out.n - strlen("data: [DONE]\n\n"), "data: [DONE]\n\n");
    textbuf_free(&out);
    g->params.include_usage = false;
    shape_completions.close(g, &out);
    stream_is(&out, "data: [DONE]\n\n");
    drop(g);
}

int main(void)
{
    return unit_run(open_model, close_model);
}
