/* test_generation.c - running requests: how many tokens are generated, with which seeds; refusals;
 * the callbacks at the end; and that a stream has the content of a whole answer. */

#include "tests/unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/shape.h"
#include "api/answers.h"

enum { CONTEXT = 256 };

/* Counts the client's callbacks. */
struct told {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    int n_began, n_ended[ANSWER_ENDS], n_missed, n_results;
};

static struct hcache *h;
static struct told told;

static void on_wake(void *arg)
{
    struct told *t = arg;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->woken);
    pthread_mutex_unlock(&t->lock);
}

static void on_began(void *arg)
{
    ((struct told *)arg)->n_began++;
}

static void on_ended(void *arg, enum answer_end end, const struct hcache_result *r,
                     bool missed)
{
    struct told *t = arg;
    t->n_ended[end]++;
    t->n_missed += missed;
    t->n_results += r != NULL;
}

static const struct client_calls calls = {on_wake, on_began, on_ended};

/* Returns a client whose answers depend only on the requests. */
static struct client client(void)
{
    return (struct client){.h = h,
                           .model_name = "demo",
                           .repeatable = true,
                           .has_seed = true,
                           .request_name = "r1",
                           .created_s = 77,
                           .seed = 5,
                           .calls = &calls,
                           .arg = &told};
}

static int open_model(void **state)
{
    const struct hcache_opts o = {
        .model = "models/demo", .threads = 1, .max_context = CONTEXT};
    struct hcache_err err = {0};
    pthread_mutex_init(&told.lock, NULL);
    pthread_cond_init(&told.woken, NULL);
    return hcache_open(&o, &h, &err) != 0 || hcache_serve_start(h, 0, &err) != 0;
}

static int close_model(void **state)
{
    hcache_serve_stop(h);
    hcache_close(h);
    pthread_cond_destroy(&told.woken);
    pthread_mutex_destroy(&told.lock);
    return 0;
}

static int forget_told(void **state)
{
    told.n_began = told.n_missed = told.n_results = 0;
    memset(told.n_ended, 0, sizeof told.n_ended);
    return 0;
}

static struct json *parse(const char *text)
{
    struct json *v = NULL;
    struct err e = {0};
    if (json_parse(&v, text, strlen(text), "test", &e) != 0)
        fail_msg("%s", e.msg);
    return v;
}

static struct prompt_ids prompt_of(int n)
{
    struct prompt_ids p = {.ids = malloc(((size_t)n + 1) * sizeof *p.ids), .n = n};
    for (int i = 0; i < n; i++)
        p.ids[i] = 10 + i * 7 % 400;
    return p;
}

/* Starts a request with prompts of these lengths. */
static int start_as(const struct dialect *dialect, const struct client *c, unsigned kind,
                    const char *body, const int *lengths, int n, struct generation **g,
                    struct fault *f)
{
    struct json *j = parse(body);
    struct gen_params p;
    struct prompt_ids prompts[2];
    if (request_parse(j, kind, &p, f) != 0)
        fail_msg("%s", f->message);
    for (int i = 0; i < n; i++)
        prompts[i] = prompt_of(lengths[i]);
    int rc = generation_start(c, dialect, NULL, &p, prompts, n, NULL, "", g, f);
    json_free(j);
    return rc;
}

static int start(const struct client *c, unsigned kind, const char *body,
                 const int *lengths, int n, struct generation **g, struct fault *f)
{
    return start_as(&shape_completions, c, kind, body, lengths, n, g, f);
}

static void wait_for_end(struct generation *g)
{
    pthread_mutex_lock(&told.lock);
    while (!generation_has_ended(g))
        pthread_cond_wait(&told.woken, &told.lock);
    pthread_mutex_unlock(&told.lock);
}

/* Returns the whole answer of a request. */
static struct json *answer_to(unsigned kind, const char *body, const int *lengths, int n)
{
    struct client c = client();
    struct generation *g;
    struct fault f;
    struct json *answer = NULL;
    if (start(&c, kind, body, lengths, n, &g, &f) != 0)
        fail_msg("%s", f.message);
    wait_for_end(g);
    assert_int_equal(generation_answer(g, &answer, &f), 0);
    generation_free(g);
    return answer;
}

static int64_t number(const struct json *o, const char *key)
{
    int64_t v = -1;
    return json_int_of(json_member(o, key), &v) ? v : -1;
}

static const struct json *choice_of(const struct json *answer, size_t i)
{
    return json_at(json_member(answer, "choices"), i);
}

static const char *text_of(const struct json *answer, size_t i)
{
    return json_string_of(json_member(choice_of(answer, i), "text"), NULL);
}

/* Returns how many tokens of a prompt came from the device's cache. */
static int64_t cached_for(const char *key_salt, const char *body)
{
    struct client c = client();
    c.salt = key_salt;
    c.repeatable = false; /* only such an answer says how many tokens were cached */
    struct generation *g;
    struct fault f;
    struct json *answer = NULL;
    int n = 200;
    if (start(&c, REQUEST_COMPLETION, body, &n, 1, &g, &f) != 0)
        fail_msg("%s", f.message);
    wait_for_end(g);
    assert_int_equal(generation_answer(g, &answer, &f), 0);
    generation_free(g);
    const struct json *details = json_member(json_member(answer, "usage"),
                                             "prompt_tokens_details");
    int64_t n_cached = number(details, "cached_tokens");
    json_free(answer);
    return n_cached;
}

/* State is shared by requests with the key's and the request's own salt, and by no others. */
TEST_WITH(salts_share_nothing, forget_told, NULL)
{
    static const char plain[] = "{\"prompt\":\"x\",\"max_tokens\":1}";
    static const char salted[] =
        "{\"prompt\":\"x\",\"max_tokens\":1,\"cache_salt\":\"own\"}";
    static const struct {
        const char *key_salt, *body;
    } who[] = {{NULL, plain}, {"salt-a", plain}, {"salt-b", plain}, {"salt-a", salted}};
    for (size_t i = 0; i < sizeof who / sizeof *who; i++) {
        assert_int_equal(cached_for(who[i].key_salt, who[i].body), 0);
        assert_true(cached_for(who[i].key_salt, who[i].body) >= 128);
    }
}

/* --- lengths ---------------------------------------------------------------------------------- */

static void generates(unsigned kind, const char *body, int n_prompt, int want)
{
    struct json *a = answer_to(kind, body, &n_prompt, 1);
    const struct json *usage = json_member(a, "usage");
    assert_int_equal(number(usage, "prompt_tokens"), n_prompt);
    assert_int_equal(number(usage, "completion_tokens"), want);
    assert_int_equal(number(usage, "total_tokens"), n_prompt + want);
    assert_string_equal(json_string_of(json_member(choice_of(a, 0), "finish_reason"), NULL),
                        "length");
    json_free(a);
}

/* Without max_tokens a completion has 16 tokens and a chat fills the context; neither exceeds it.
 */
TEST_WITH(answers_without_a_bound_have_the_default, forget_told, NULL)
{
    static const char text[] = "{\"prompt\":\"x\",\"ignore_eos\":true}",
                      chat[] = "{\"messages\":[],\"ignore_eos\":true}";
    generates(REQUEST_COMPLETION, text, 5, 16);
    generates(REQUEST_COMPLETION, text, CONTEXT - 17, 16);
    generates(REQUEST_COMPLETION, text, CONTEXT - 16, 16);
    generates(REQUEST_COMPLETION, text, CONTEXT - 15, 15);
    generates(REQUEST_CHAT, chat, CONTEXT - 20, 20);
    generates(REQUEST_CHAT, chat, CONTEXT - 3, 3);
    generates(REQUEST_COMPLETION, "{\"prompt\":\"x\",\"ignore_eos\":true,\"max_tokens\":3}",
              CONTEXT - 3, 3);
}

TEST_WITH(the_envelope_is_that_of_the_request, forget_told, NULL)
{
    int n = 4;
    struct json *a = answer_to(REQUEST_COMPLETION, "{\"prompt\":\"x\",\"max_tokens\":1}",
                               &n, 1);
    assert_string_equal(json_string_of(json_member(a, "id"), NULL), "cmpl-r1");
    assert_string_equal(json_string_of(json_member(a, "object"), NULL), "text_completion");
    assert_string_equal(json_string_of(json_member(a, "model"), NULL), "demo");
    assert_int_equal(number(a, "created"), 77);
    assert_null(json_member(a, "timings")); /* timings depend on earlier requests */
    json_free(a);
    a = answer_to(REQUEST_CHAT, "{\"messages\":[],\"max_tokens\":1}", &n, 1);
    assert_string_equal(json_string_of(json_member(a, "id"), NULL), "chatcmpl-r1");
    assert_string_equal(json_string_of(json_member(a, "object"), NULL), "chat.completion");
    assert_non_null(json_member(choice_of(a, 0), "message"));
    json_free(a);
}

/* --- several answers -------------------------------------------------------------------------- */

#define SAMPLED(n, seed)                                                                   \
    "{\"prompt\":\"x\",\"ignore_eos\":true,\"temperature\":1.5,\"max_tokens\":8,\"n\":" n  \
    ",\"seed\":" seed "}"

/* Answer i to a prompt is generated with the request's seed plus i, whatever else runs at the same
 * time. */
TEST_WITH(each_answer_has_its_seed, forget_told, NULL)
{
    const int lengths[2] = {20, 33};
    struct json *all = answer_to(REQUEST_COMPLETION, SAMPLED("2", "40"), lengths, 2);
    assert_int_equal(json_count(json_member(all, "choices")), 4);
    assert_int_equal(number(json_member(all, "usage"), "prompt_tokens"), 53);
    assert_int_equal(number(json_member(all, "usage"), "completion_tokens"), 32);
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < 2; i++) {
            struct json *one = answer_to(REQUEST_COMPLETION,
                                         i == 0 ? SAMPLED("1", "40") : SAMPLED("1", "41"),
                                         &lengths[p], 1);
            size_t at = (size_t)(2 * p + i);
            assert_int_equal(number(choice_of(all, at), "index"), at);
            assert_string_equal(text_of(all, at), text_of(one, 0));
            json_free(one);
        }
    assert_string_not_equal(text_of(all, 0), text_of(all, 1));
    json_free(all);
}

/* --- refusals --------------------------------------------------------------------------------- */

static void refused(const struct client *c, const char *body, const int *lengths, int n,
                    const char *code, const char *param, const char *part)
{
    struct generation *g = (struct generation *)(uintptr_t)1;
    struct fault f = {0};
    assert_int_equal(start(c, REQUEST_COMPLETION, body, lengths, n, &g, &f), -1);
    assert_null(g);
    assert_int_equal(f.status, 400);
    assert_string_equal(f.param, param);
    if (code != NULL)
        assert_string_equal(f.code, code);
    assert_non_null(strstr(f.message, part));
}

TEST_WITH(what_cannot_be_answered_is_refused, forget_told, NULL)
{
    struct client c = client();
    static const char text[] = "{\"prompt\":\"x\"}",
                      none[] = "{\"prompt\":\"x\",\"max_tokens\":0}";
    refused(&c, text, (const int[]){0}, 1, NULL, "prompt", "has no tokens");
    refused(&c, text, (const int[]){5, 0}, 2, NULL, "prompt", "has no tokens");
    refused(&c, text, (const int[]){CONTEXT}, 1, "context_length_exceeded", "prompt",
            "maximum context length is 256 tokens, but the prompt has 256 and 1 are");
    refused(&c, none, (const int[]){CONTEXT + 1}, 1, "context_length_exceeded", "prompt",
            "maximum context length");
    c.max_queue = 3;
    refused(&c, "{\"prompt\":\"x\",\"n\":2}", (const int[]){5, 5}, 2, NULL, "n",
            "4 answers are wanted at once, but at most 3");
    assert_int_equal(told.n_began, 0);
}

/* Agents always ask for many tokens. They get those that the context has left, and are told. */
TEST(more_than_the_context_has_left_is_cut)
{
    const int length = CONTEXT - 3;
    struct json *a = answer_to(
        REQUEST_COMPLETION, "{\"prompt\":\"x\",\"ignore_eos\":true,\"max_tokens\":32000}",
        &length, 1);
    const struct json *usage = json_member(a, "usage");
    assert_int_equal(number(usage, "completion_tokens"), 3);
    assert_int_equal(number(usage, "max_tokens"), 3);
    assert_null(json_member(usage, "ignored"));
    json_free(a);
}

/* A queue that is full now may have room later, and says so. */
TEST_WITH(a_full_queue_is_told_to_try_again, forget_told, NULL)
{
    struct client c = client();
    struct generation *g[8] = {NULL};
    struct fault f = {0};
    int n = 12, i = 0;
    static const char body[] =
        "{\"prompt\":\"x\",\"ignore_eos\":true,\"max_tokens\":200,\"n\":16}";
    while (i < 8 && start(&c, REQUEST_COMPLETION, body, &n, 1, &g[i], &f) == 0)
        i++;
    assert_in_range(i, 4, 7); /* 64 requests wait, and one runs */
    assert_null(g[i]);
    assert_int_equal(f.status, 429);
    assert_string_equal(f.code, "queue_full");
    assert_string_equal(f.type, "rate_limit_error");
    assert_string_equal(f.message, "64 requests are waiting already; try again later");
    for (int k = 0; k < i; k++)
        generation_free(g[k]);
    assert_true(told.n_began >= 16 * i && told.n_began < 16 * (i + 1));
    assert_int_equal(told.n_ended[ANSWER_CANCELLED], told.n_began);
    struct hcache_stats st;
    do
        hcache_stats(h, &st);
    while (st.n_waiting + st.n_running > 0); /* the next test has an empty queue */
}

/* Fields whose bounds depend on the model are refused by their own names. */
TEST_WITH(fields_are_bounded_by_the_model, forget_told, NULL)
{
    static const struct {
        const char *body, *param, *message; /* param NULL: accepted */
    } rows[] = {
        {"{\"prompt\":\"x\",\"max_tokens\":0,\"logit_bias\":{\"3071\":1,\"0\":1}}", NULL,
         NULL},
        {"{\"prompt\":\"x\",\"logit_bias\":{\"1\":1,\"3072\":1}}", "logit_bias",
         "'logit_bias' has the token 3072; tokens are 0 to 3071"},
        {"{\"prompt\":\"x\",\"max_tokens\":0,\"stop_token_ids\":[3071,0]}", NULL, NULL},
        {"{\"prompt\":\"x\",\"stop_token_ids\":[1,3072]}", "stop_token_ids",
         "'stop_token_ids' has the token 3072; tokens are 0 to 3071"},
        {"{\"prompt\":\"x\",\"max_tokens\":0,\"stop\":\"a\"}", NULL, NULL},
    };
    struct client c = client();
    int n = 12;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct generation *g;
        struct fault f = {0};
        int rc = start(&c, REQUEST_COMPLETION, rows[i].body, &n, 1, &g, &f);
        assert_int_equal(rc, rows[i].param == NULL ? 0 : -1);
        if (rc != 0) {
            assert_int_equal(f.status, 400);
            assert_string_equal(f.param, rows[i].param);
            assert_string_equal(f.message, rows[i].message);
        }
        generation_free(g);
    }
    struct gen_params p = {.kind = REQUEST_COMPLETION, .n = 1, .max_tokens = 0};
    static const int32_t wrong[] = {-1, 3072};
    for (int i = 0; i < 2; i++) {
        struct prompt_ids prompt = prompt_of(3);
        struct generation *g;
        struct fault f = {0};
        prompt.ids[2] = wrong[i];
        assert_int_equal(generation_start(&c, &shape_completions, NULL, &p, &prompt, 1,
                                          NULL, "", &g, &f),
                         -1);
        assert_string_equal(f.param, "prompt");
        assert_string_equal(f.message,
                            i == 0 ? "'prompt' has the token -1; tokens are 0 to 3071"
                                   : "'prompt' has the token 3072; tokens are 0 to 3071");
        assert_null(g);
    }
}

/* A request without a seed of its own has the client's, or a random one. */
TEST_WITH(a_seed_may_be_the_clients, forget_told, NULL)
{
    static const char body[] = "{\"prompt\":\"x\",\"ignore_eos\":true,\"temperature\":1.5,"
                               "\"max_tokens\":8}";
    int n = 20;
    struct json *own = answer_to(REQUEST_COMPLETION, SAMPLED("1", "5"), &n, 1);
    struct json *clients = answer_to(REQUEST_COMPLETION, body, &n, 1);
    assert_string_equal(text_of(own, 0), text_of(clients, 0)); /* the client's seed is 5 */
    json_free(own);
    json_free(clients);
    struct client c = client();
    char *texts[2], ids[2][60];
    c.repeatable = c.has_seed = false;
    for (int i = 0; i < 2; i++) {
        struct generation *g;
        struct fault f;
        struct json *answer = NULL;
        assert_int_equal(start(&c, REQUEST_COMPLETION, body, &n, 1, &g, &f), 0);
        wait_for_end(g);
        assert_int_equal(generation_answer(g, &answer, &f), 0);
        texts[i] = strdup(text_of(answer, 0));
        snprintf(ids[i], sizeof ids[i], "%s",
                 json_string_of(json_member(answer, "id"), NULL));
        assert_true(number(answer, "created") > 1600000000);
        assert_non_null(json_member(answer, "timings"));
        assert_int_equal(strlen(ids[i]), 5 + 24);
        json_free(answer);
        generation_free(g);
    }
    assert_string_not_equal(texts[0], texts[1]);
    assert_string_not_equal(ids[0], ids[1]);
    free(texts[0]);
    free(texts[1]);
}

/* --- callbacks -------------------------------------------------------------------------------- */

TEST_WITH(each_answer_begins_and_ends_once, forget_told, NULL)
{
    int n = 12;
    json_free(answer_to(REQUEST_COMPLETION, SAMPLED("3", "1"), &n, 1));
    assert_int_equal(told.n_began, 3);
    assert_int_equal(told.n_ended[ANSWER_DONE], 3);
    assert_int_equal(told.n_results, 3);
    assert_int_equal(told.n_ended[ANSWER_CANCELLED] + told.n_ended[ANSWER_FAILED], 0);
    /* the prompts have no full chunk before their last token */
    assert_int_equal(told.n_missed, 0);
}

TEST_WITH(what_nobody_reads_is_cancelled, forget_told, NULL)
{
    struct client c = client();
    struct generation *g;
    struct fault f;
    int n = 12;
    assert_int_equal(start(&c, REQUEST_COMPLETION, SAMPLED("2", "1"), &n, 1, &g, &f), 0);
    generation_free(g);
    assert_int_equal(told.n_began, 2);
    assert_int_equal(told.n_ended[ANSWER_CANCELLED], 2);
    assert_int_equal(told.n_results, 0);
    generation_free(NULL);
    generation_cancel(NULL);
}

/* --- streams ---------------------------------------------------------------------------------- */

/* Concatenates the texts of a stream's events. *n_ends gets the number of events with a reason to
 * end. */
static void read_stream(char *events, struct textbuf *text, int *n_ends, bool *is_done)
{
    *n_ends = 0;
    *is_done = false;
    for (char *line = strtok(events, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_memory_equal(line, "data: ", 6);
        assert_false(*is_done);
        *is_done = strcmp(line, "data: [DONE]") == 0;
        if (*is_done)
            continue;
        struct json *o = parse(line + 6);
        size_t n;
        const char *piece = json_string_of(json_member(choice_of(o, 0), "text"), &n);
        assert_non_null(piece);
        textbuf_add(text, piece, n);
        *n_ends += json_string_of(json_member(choice_of(o, 0), "finish_reason"), NULL) !=
                   NULL;
        json_free(o);
    }
}

TEST_WITH(a_stream_says_what_an_answer_says, forget_told, NULL)
{
    struct client c = client();
    struct generation *g;
    struct fault f;
    int n = 20, n_ends;
    bool is_done;
    struct textbuf events = {0}, text = {0};
    struct json *answer = answer_to(REQUEST_COMPLETION, SAMPLED("1", "40"), &n, 1);
    static const char body[] = "{\"prompt\":\"x\",\"ignore_eos\":true,\"temperature\":1.5,"
                               "\"max_tokens\":8,\"seed\":40,\"stream\":true}";
    assert_int_equal(start(&c, REQUEST_COMPLETION, body, &n, 1, &g, &f), 0);
    assert_true(generation_is_stream(g));
    while (!generation_is_over(g)) {
        bool had_ended = generation_has_ended(g);
        generation_stream(g, &events);
        assert_true(generation_is_over(g) || !had_ended);
        sched_yield();
    }
    read_stream(events.p, &text, &n_ends, &is_done);
    assert_string_equal(text.p, text_of(answer, 0));
    assert_int_equal(n_ends, 1);
    assert_true(is_done);
    generation_free(g);
    /* one end is the whole answer's, the other the stream's */
    assert_int_equal(told.n_ended[ANSWER_DONE], 2);
    textbuf_free(&events);
    textbuf_free(&text);
    json_free(answer);
}

static int n_begun;

static void begins(struct generation *g, struct textbuf *out)
{
    (void)g;
    (void)out;
    n_begun++;
}

/* A stream begins once, however often it is read. Nothing follows its end. */
TEST_WITH(a_stream_begins_once, forget_told, NULL)
{
    struct client c = client();
    struct dialect dialect = shape_completions;
    struct generation *g;
    struct fault f = {0};
    struct textbuf events = {0};
    int n = 20;
    static const char body[] = "{\"prompt\":\"x\",\"ignore_eos\":true,\"max_tokens\":3,"
                               "\"stream\":true}";
    dialect.begin = begins;
    assert_int_equal(start_as(&dialect, &c, REQUEST_COMPLETION, body, &n, 1, &g, &f), 0);
    assert_int_equal(n_begun, 0);
    generation_stream(g, &events);
    assert_int_equal(n_begun, 1);
    wait_for_end(g);
    generation_stream(g, &events);
    assert_true(generation_is_over(g));
    assert_int_equal(n_begun, 1);
    assert_string_equal(events.p + events.n - strlen("data: [DONE]\n\n"),
                        "data: [DONE]\n\n");
    generation_free(g);
    textbuf_free(&events);
}

/* A generation of a chat owns the prompt and its text, and remembers the answer's tokens. */
TEST_WITH(a_chat_owns_its_text, forget_told, NULL)
{
    static const char asked[] = "The sea is";
    const struct answers_opts o = {.max_entries = 4, .max_bytes = 1 << 20};
    struct answers_stats st;
    struct client c = client();
    struct json *j = parse(
                    "{\"messages\":[],\"ignore_eos\":true,\"logit_bias\":{\"40\":100},"
                    "\"max_tokens\":4}"),
                *answer;
    struct gen_params p;
    struct fault f;
    assert_int_equal(answers_open(&o, &c.answers, &(struct err){0}), 0);
    assert_int_equal(request_parse(j, REQUEST_CHAT, &p, &f), 0);
    for (int refused = 0; refused < 2; refused++) {
        struct generation *g;
        struct prompt_ids prompt = prompt_of(refused ? CONTEXT : 20);
        struct prompt_text text = {.text = strdup(asked), .n = strlen(asked)};
        for (int i = 0; i < prompt.n; i++) /* whole characters */
            prompt.ids[i] = 40;
        int rc = generation_start(&c, &shape_completions, NULL, &p, &prompt, 1, &text,
                                  "why", &g, &f);
        assert_int_equal(rc, refused ? -1 : 0);
        if (rc != 0)
            continue;
        assert_int_equal(generation_client(g)->created_s, 77);
        wait_for_end(g);
        assert_int_equal(generation_answer(g, &answer, &f), 0);
        answers_stats(c.answers, &st);
        assert_true(st.n_entries == 1);
        json_free(answer);
        generation_free(g);
    }
    json_free(j);
    answers_close(c.answers);
}

static int keeps_nothing(struct generation *g, struct fault *f)
{
    (void)g;
    return fault_set(f, 507, NULL, NULL, "the answer could not be kept");
}

/* If a dialect cannot keep an answer, the request fails. A stream then ends with the fault in place
 * of its normal end. */
TEST_WITH(what_cannot_be_kept_is_told, forget_told, NULL)
{
    struct client c = client();
    struct dialect dialect = shape_completions;
    struct generation *g;
    struct fault f = {0};
    struct json *answer = NULL;
    struct textbuf events = {0};
    int n = 20;
    dialect.keep = keeps_nothing;
    assert_int_equal(
        start_as(&dialect, &c, REQUEST_COMPLETION, SAMPLED("1", "40"), &n, 1, &g, &f), 0);
    wait_for_end(g);
    assert_int_equal(generation_answer(g, &answer, &f), -1);
    assert_int_equal(f.status, 507);
    assert_null(answer);
    generation_free(g);
    static const char body[] = "{\"prompt\":\"x\",\"ignore_eos\":true,\"max_tokens\":3,"
                               "\"stream\":true}";
    assert_int_equal(start_as(&dialect, &c, REQUEST_COMPLETION, body, &n, 1, &g, &f), 0);
    while (!generation_is_over(g)) {
        generation_stream(g, &events);
        sched_yield();
    }
    assert_non_null(strstr(events.p, "the answer could not be kept"));
    assert_non_null(strstr(events.p, "\"error\""));
    assert_null(strstr(events.p, "[DONE]"));
    size_t n_said = events.n;
    generation_stream(g, &events); /* no event follows the fault */
    assert_int_equal(events.n, n_said);
    generation_free(g);
    textbuf_free(&events);
}

int main(void)
{
    return unit_run(open_model, close_model);
}
