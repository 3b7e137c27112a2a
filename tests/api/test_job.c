/* test_job.c - a job on a real engine: it yields, is stopped, reaches its limit, and continues. */

#include "tests/unit.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "api/job.h"
#include "api/request.h"
#include "tests/base/said.h"

enum { N_LINES = 40, TOKENS = 30 };

static char folder[64];
static struct hcache *h;
static struct err err;

/* --- the engine and the files ----------------------------------------------------------------- */

static void put(const char *name, const struct textbuf *text)
{
    char *path = xasprintf("%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text->p, 1, text->n, f), text->n);
    fclose(f);
    free(path);
}

static int open_all(void **state)
{
    struct hcache_opts o = {.model = "synth:tiny-gqa", .threads = 1, .max_sequences = 4};
    struct hcache_err herr = {0};
    strcpy(folder, "/tmp/hcache-job.XXXXXX");
    if (mkdtemp(folder) == NULL || hcache_open(&o, &h, &herr) != 0 ||
        hcache_serve_start(h, 0, &herr) != 0) {
        fprintf(stderr, "%s\n", herr.msg);
        return -1;
    }
    struct textbuf text = {0};
    for (int i = 0; i < N_LINES; i++)
        textbuf_addf(
            &text,
            "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\","
            "\"body\":{\"prompt\":[%d,7,9],\"max_tokens\":%d,\"ignore_eos\":true}}\n",
            i, 5 + i, TOKENS);
    put("in", &text);
    textbuf_free(&text);
    return 0;
}

static int close_all(void **state)
{
    char *command = xasprintf("rm -rf %s", folder);
    int rc = system(command);
    free(command);
    hcache_serve_stop(h);
    hcache_close(h);
    return rc;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Returns the sorted lines of a file, which the caller frees.  Each of them is complete. */
static char *lines_of(const char *name, int *n)
{
    char *path = xasprintf("%s/%s", folder, name), *text, *lines[N_LINES + 1], *rest = NULL;
    size_t n_text;
    struct textbuf out = {0};
    assert_int_equal(file_read(path, 1 << 24, &text, &n_text, &err), 0);
    assert_true(n_text == 0 || text[n_text - 1] == '\n');
    *n = 0;
    for (char *l = strtok_r(text, "\n", &rest); l != NULL;
         l = strtok_r(NULL, "\n", &rest)) {
        assert_true(*n < N_LINES);
        lines[(*n)++] = l;
    }
    qsort(lines, (size_t)*n, sizeof lines[0], by_text);
    for (int i = 0; i < *n; i++)
        textbuf_addf(&out, "%s\n", lines[i]);
    textbuf_add(&out, "", 0);
    free(text);
    free(path);
    return out.p;
}

/* --- jobs ------------------------------------------------------------------------------------- */

struct told {
    struct batch *job;
    void (*act)(struct told *t, const struct batch_counts *c);
    int n_began, n_ended;
    int device_tokens[2]; /* of the answers to prompts of 65 and of 66 tokens */
};

static void on_progress(void *arg, const struct batch_counts *c)
{
    struct told *t = arg;
    if (t->act != NULL)
        t->act(t, c);
}

static void began(void *arg)
{
    ((struct told *)arg)->n_began++;
}

static void ended(void *arg, enum answer_end end, const struct hcache_result *r,
                  bool missed)
{
    struct told *t = arg;
    (void)end;
    (void)missed;
    t->n_ended++;
    if (r != NULL && (r->prompt_tokens == 65 || r->prompt_tokens == 66))
        t->device_tokens[r->prompt_tokens - 65] = r->device_tokens;
}

static int run(const char *out, uint64_t bound, struct told *t, struct batch_counts *counts)
{
    static const struct client_calls calls = {.began = began, .ended = ended};
    char *input = xasprintf("%s/in", folder), *output = xasprintf("%s/%s", folder, out);
    struct batch_opts o = {.client = {.h = h, .model_name = "m", .calls = &calls, .arg = t},
                           .input = input,
                           .output = output,
                           .in_flight = 4,
                           .lookahead = 16,
                           .max_out_bytes = bound,
                           .on_progress = on_progress,
                           .arg = t};
    assert_int_equal(batch_open(&o, &t->job, &err), 0);
    int rc = batch_run(t->job, &err);
    batch_counts(t->job, counts);
    batch_close(t->job);
    free(input);
    free(output);
    return rc;
}

/* Returns the output of a job that runs without interruption. */
static char *undisturbed(const char *name)
{
    struct told t = {0};
    struct batch_counts c;
    int n;
    assert_int_equal(run(name, 0, &t, &c), 0);
    assert_int_equal(c.n_done, N_LINES);
    assert_int_equal(c.n_failed, 0);
    assert_int_equal(c.generated_tokens, N_LINES * TOKENS);
    assert_int_equal(t.n_began, N_LINES);
    assert_int_equal(t.n_ended, N_LINES);
    assert_int_equal(c.n_answers, N_LINES);
    assert_int_equal(c.prompt_tokens, 3 * N_LINES);
    assert_int_equal(c.n_lines, N_LINES);
    assert_int_equal(c.total_lines, N_LINES);
    assert_int_equal(c.n_skipped, 0);
    assert_true(c.queue_s > 0 && c.prefill_s > 0 && c.decode_s > 0);
    assert_true(c.reading_s > 0 && c.waiting_s > 0 && c.writing_s > 0);
    /* Reading, waiting and writing together make up most of the job's time, and never more. */
    double parts_s = c.reading_s + c.waiting_s + c.writing_s;
    assert_true(parts_s <= c.elapsed_s && parts_s > c.elapsed_s / 2);
    char *text = lines_of(name, &n);
    assert_int_equal(n, N_LINES);
    assert_int_equal(c.out_bytes, strlen(text));
    return text;
}

static void assert_goes_on(const char *out, int n_done)
{
    struct told t = {0};
    struct batch_counts c;
    int n;
    char *name = xasprintf("%s calm", out), *want = undisturbed(name);
    assert_int_equal(run(out, 0, &t, &c), 0);
    assert_int_equal(c.n_skipped, n_done);
    assert_int_equal(c.n_answers, N_LINES - n_done);
    char *got = lines_of(out, &n);
    assert_string_equal(got, want);
    free(got);
    free(want);
    free(name);
}

static void yield_soon(struct told *t, const struct batch_counts *c)
{
    (void)c;
    if (t->n_began > 0)
        batch_yield(t->job);
}

/* Lines that run when a job yields are finished. If they were thrown away, a line that takes longer
 * than a job's turn would never end. */
TEST(a_job_that_yields_loses_no_work)
{
    struct told t = {.act = yield_soon};
    struct batch_counts c;
    int n;
    assert_int_equal(run("yielded", 0, &t, &c), ERR_CANCELLED);
    assert_true(c.n_done > 0 && c.n_done < N_LINES);
    assert_int_equal(c.n_done, t.n_began);
    assert_int_equal(c.n_answers, t.n_began);
    free(lines_of("yielded", &n));
    assert_int_equal(n, (int)c.n_done);
    assert_goes_on("yielded", n);
}

static void stop_soon(struct told *t, const struct batch_counts *c)
{
    if (c->n_done > 0)
        batch_stop(t->job);
}

TEST(a_job_that_is_stopped_goes_on)
{
    struct told t = {.act = stop_soon};
    struct batch_counts c;
    int n;
    assert_int_equal(run("stopped", 0, &t, &c), ERR_CANCELLED);
    assert_true(c.n_done > 0 && c.n_done < N_LINES);
    assert_int_equal(t.n_ended, t.n_began);
    free(lines_of("stopped", &n));
    assert_int_equal(n, (int)c.n_done);
    assert_goes_on("stopped", n);
}

/* The output stays within its limit, and no line is cut. */
TEST(answers_stay_within_their_bound)
{
    struct told t = {0};
    struct batch_counts c;
    int n;
    char *text;
    assert_int_equal(run("bounded", 2000, &t, &c), ERR_LIMIT);
    text = lines_of("bounded", &n);
    assert_true(strlen(text) <= 2000 && n < N_LINES);
    free(text);
    assert_goes_on("bounded", n);
}

/* --- a full queue ----------------------------------------------------------------------------- */

enum { MAX_OTHERS = 200 };

static struct hcache_ticket *others[MAX_OTHERS];
static int n_others, n_told;

/* Submits requests of others until all places are taken and no more may wait. */
static void fill_queue(void)
{
    struct hcache_stats st = {0};
    static const int32_t prompt[] = {5, 6, 7};
    struct hcache_request r = {
        .prompt = prompt, .n_prompt = 3, .max_tokens = 1500, .ignore_eos = true};
    struct hcache_err herr = {0};
    while (st.n_running < 4) {
        while (n_others < MAX_OTHERS && hcache_submit(h, &r, &others[n_others], &herr) == 0)
            n_others++;
        hcache_stats(h, &st);
    }
    while (n_others < MAX_OTHERS && hcache_submit(h, &r, &others[n_others], &herr) == 0)
        n_others++;
    assert_true(n_others < MAX_OTHERS);
}

/* Frees places after the job has reported a few times that it cannot continue. */
static void make_room_soon(struct told *t, const struct batch_counts *c)
{
    (void)t;
    (void)c;
    if (++n_told < N_LINES + 3)
        return;
    while (n_others > 0)
        hcache_ticket_free(others[--n_others]);
}

/* Requests of others fill the queue. The job has no request in flight, so no end of its own request
 * can wake it. */
TEST(a_full_queue_is_waited_for)
{
    struct told t = {.act = make_room_soon};
    struct batch_counts c;
    n_told = 0;
    fill_queue();
    assert_true(n_others > 4);
    assert_int_equal(run("queued", 0, &t, &c), 0);
    assert_int_equal(c.n_done, N_LINES);
    assert_int_equal(c.n_failed, 0);
    while (n_others > 0)
        hcache_ticket_free(others[--n_others]);
}

/* --- requests and reports
 * ---------------------------------------------------------------------- */

/* Runs a job over these lines. The output and the errors get the name with another ending. */
static int run_lines(const char *name, const char *const *lines, int n, struct batch_opts o,
                     struct told *t, struct batch_counts *c)
{
    static const struct client_calls calls = {.began = began, .ended = ended};
    struct textbuf text = {0};
    for (int i = 0; i < n; i++)
        textbuf_addf(&text, "%s\n", lines[i]);
    put(name, &text);
    textbuf_free(&text);
    char *input = xasprintf("%s/%s", folder, name);
    char *output = xasprintf("%s/%s out", folder, name);
    char *errors = xasprintf("%s/%s errors", folder, name);
    o.client = (struct client){.h = h, .model_name = "m", .calls = &calls, .arg = t};
    o.input = input;
    o.output = output;
    o.errors = errors;
    o.on_progress = on_progress;
    o.arg = t;
    assert_int_equal(batch_open(&o, &t->job, &err), 0);
    int rc = batch_run(t->job, &err);
    batch_counts(t->job, c);
    batch_close(t->job);
    free(input);
    free(output);
    free(errors);
    return rc;
}

/* Checks that a file of the job has n lines, and that each text is in it once. */
static void assert_lines(const char *name, int n, const char *const *texts, int n_texts)
{
    int got;
    char *text = lines_of(name, &got);
    assert_int_equal(got, n);
    for (int i = 0; i < n_texts; i++) {
        const char *at = strstr(text, texts[i]);
        if (at == NULL || strstr(at + 1, texts[i]) != NULL)
            fail_msg("%s: '%s' is %s in:\n%s", name, texts[i], at == NULL ? "not" : "twice",
                     text);
    }
    free(text);
}

#define LINE(ID, URL, BODY)                                                                \
    "{\"custom_id\":\"" ID "\",\"method\":\"POST\",\"url\":\"/v1/" URL                     \
    "\",\"body\":{" BODY "}}"

/* A refused line is answered in the errors, with the reason. Every other line is answered in the
 * output. Several answers to one request stand in one line. */
TEST(refused_lines_are_answered_in_the_errors)
{
    static const char *const lines[] = {
        LINE("two", "completions",
             "\"prompt\":[[5,7],[6,7]],\"max_tokens\":3,\"n\":2,\"ignore_eos\":true"),
        LINE("chat", "chat/completions", "\"messages\":[]"),
        LINE("stream", "completions", "\"prompt\":[5],\"stream\":true"),
        LINE("model", "completions", "\"prompt\":[5],\"model\":\"other\""),
        LINE("field", "completions", "\"prompt\":[5],\"max_tokenz\":3"),
        LINE("token", "completions", "\"prompt\":[999999]"),
        LINE("mine", "completions",
             "\"prompt\":[5],\"model\":\"m\",\"max_tokens\":3,\"ignore_eos\":true"),
        LINE("two", "completions", "\"prompt\":[5]"),
        "nothing",
    };
    static const char *const done[] = {"\"custom_id\": \"two\"", "\"custom_id\": \"mine\"",
                                       "\"index\": 3"};
    static const char *const refused[] = {
        "\"mismatched_url\"",       "\"unsupported_parameter\"", "\"model_not_found\"",
        "\"custom_id\": \"field\"", "\"custom_id\": \"token\"",  "\"duplicate_custom_id\"",
        "\"invalid_json_line\"",    "\"status_code\": 404",
    };
    struct told t = {0};
    struct batch_counts c;
    const struct batch_opts o = {
        .in_flight = 4, .lookahead = 16, .only = REQUEST_COMPLETION};
    assert_int_equal(run_lines("mixed", lines, 9, o, &t, &c), 0);
    assert_lines("mixed out", 2, done, 3);
    assert_lines("mixed errors", 7, refused, 8);
    int n_out, n_errors;
    char *out = lines_of("mixed out", &n_out),
         *errors = lines_of("mixed errors", &n_errors);
    assert_int_equal(c.out_bytes, strlen(out) + strlen(errors));
    free(out);
    free(errors);
    assert_int_equal(c.n_lines, 9);
    assert_int_equal(c.n_done, 9);
    assert_int_equal(c.n_failed, 7);
    assert_int_equal(c.n_answers, 5);
    assert_int_equal(c.prompt_tokens, 4 * 2 + 1);
    assert_int_equal(c.generated_tokens, 5 * 3);
    assert_int_equal(t.n_began, 5);
    /* All is done: a second job writes nothing, and counts what the files have. */
    assert_int_equal(run_lines("mixed", lines, 9, o, &t, &c), 0);
    assert_int_equal(t.n_began, 5);
    assert_int_equal(c.n_skipped, 9);
    assert_int_equal(c.n_done, 9);
    assert_int_equal(c.n_failed, 7);
    assert_int_equal(c.n_answers, 0);
}

/* Fails unless the output has the answers in this order. */
static void assert_order(const char *name, const char *const *ids, int n)
{
    char *path = xasprintf("%s/%s out", folder, name), *text;
    size_t n_text;
    assert_int_equal(file_read(path, 1 << 24, &text, &n_text, &err), 0);
    const char *at = text;
    for (int i = 0; i < n; i++) {
        char *id = xasprintf("\"custom_id\": \"%s\"", ids[i]);
        at = strstr(at, id);
        if (at == NULL)
            fail_msg("'%s' is not number %d in:\n%s", ids[i], i, text);
        free(id);
    }
    free(text);
    free(path);
}

/* Returns a line whose prompt has a block of equal tokens and then the token `last`. */
static char *block_line(const char *id, int token, int last, const char *more)
{
    struct textbuf t = {0};
    textbuf_addf(&t, "{\"custom_id\":\"%s\",\"method\":\"POST\",", id);
    textbuf_addf(&t, "\"url\":\"/v1/completions\",\"body\":{\"prompt\":[");
    for (int i = 0; i < 64; i++)
        textbuf_addf(&t, "%d,", token);
    /* `more` may add tokens to the prompt */
    bool has_tokens = more[0] == ',' && more[1] != '"';
    textbuf_addf(&t, "%d%s%s,\"max_tokens\":4}}", last, has_tokens ? "" : "]", more);
    return t.p;
}

/* Prompts with a common beginning follow one another, if they have the same salt. Others keep the
 * order of the file. */
TEST(common_beginnings_follow_one_another)
{
    static const char *const salts[] = {"", ",\"cache_salt\":\"y\""};
    static const char *const wants[2][4] = {{"a1", "a2", "b1", "b2"},
                                            {"b1", "b2", "a1", "a2"}};
    for (int i = 0; i < 2; i++) {
        char *lines[] = {block_line("a1", 5, 1, ""), block_line("b1", 6, 1, ""),
                         block_line("a2", 5, 2, salts[i]), block_line("b2", 6, 2, "")};
        struct told t = {0};
        struct batch_counts c;
        const struct batch_opts o = {.in_flight = 1, .lookahead = 4};
        const char *name = i == 0 ? "order" : "salts";
        assert_int_equal(run_lines(name, (const char *const *)lines, 4, o, &t, &c), 0);
        assert_order(name, wants[i], 4);
        /* The second prompt of a common beginning finds it on the device. Single tokens of other
         * tests may be there, too. */
        assert_in_range(c.device_tokens, 2 * 64, 2 * 64 + (i == 0 ? 8 : 2 * 65));
        assert_int_equal(c.restored_tokens, 0);
        for (int j = 0; j < 4; j++)
            free(lines[j]);
    }
    static const char *const apart[] = {
        LINE("0", "completions", "\"prompt\":[9],\"max_tokens\":1"),
        LINE("1", "completions", "\"prompt\":[5],\"max_tokens\":1"),
        LINE("2", "completions", "\"prompt\":[8],\"max_tokens\":1"),
        LINE("3", "completions", "\"prompt\":[4],\"max_tokens\":1"),
    };
    static const char *const in_order[] = {"0", "1", "2", "3"};
    struct told t = {0};
    struct batch_counts c;
    const struct batch_opts o = {.in_flight = 1, .lookahead = 4};
    assert_int_equal(run_lines("apart", apart, 4, o, &t, &c), 0);
    assert_order("apart", in_order, 4);
}

/* Equal requests get different answers, because each line has its own seed. Answers have the time
 * of the batch. The same file gives the same answers again. */
TEST(each_line_has_its_seed)
{
    static const char *const lines[] = {
        LINE("0", "completions",
             "\"prompt\":[5],\"max_tokens\":20,\"temperature\":9,\"logprobs\":1"),
        LINE("1", "completions",
             "\"prompt\":[5],\"max_tokens\":20,\"temperature\":9,\"logprobs\":1"),
    };
    struct told t = {0};
    struct batch_counts c;
    const struct batch_opts o = {.in_flight = 2, .lookahead = 2, .created_s = 1234567};
    char *text[2], *answer[2];
    for (int i = 0; i < 2; i++) {
        int n;
        const char *name = i == 0 ? "seeds" : "again";
        assert_int_equal(run_lines(name, lines, 2, o, &t, &c), 0);
        char *out = xasprintf("%s out", name);
        text[i] = lines_of(out, &n);
        assert_int_equal(n, 2);
        free(out);
    }
    assert_string_equal(text[0], text[1]);
    assert_non_null(strstr(text[0], "\"created\": 1234567"));
    answer[0] = strstr(text[0], "\"choices\"");
    answer[1] = strstr(answer[0] + 1, "\"choices\"");
    assert_int_not_equal(strncmp(answer[0], answer[1], strcspn(answer[0], "}")), 0);
    free(text[0]);
    free(text[1]);
}

static double most_left_s;
static bool has_slept;
static int n_estimates;

/* Lets the job run for more than a second, because it gives no estimate before that. */
static void watch_estimate(struct told *t, const struct batch_counts *c)
{
    (void)t;
    if (!has_slept)
        clock_sleep_ns(1050000000);
    has_slept = true;
    most_left_s = c->left_high_s > most_left_s ? c->left_high_s : most_left_s;
    assert_true(c->left_low_s <= c->left_high_s);
    /* All lines have nearly the same size, so both ends of the range follow their number. */
    uint64_t done = c->n_done - c->n_skipped;
    if (done < 3 || c->left_high_s == 0)
        return;
    double left_s = c->elapsed_s * (double)(N_LINES - c->n_done) / (double)done;
    assert_true(c->left_high_s >= 0.99 * left_s && c->left_high_s <= 1.2 * left_s);
    assert_true(c->left_low_s >= 0.8 * left_s && c->left_low_s <= 1.01 * left_s);
    n_estimates++;
}

/* The job estimates the time that is left, and at its end none is left, also if an earlier job has
 * done a part of the lines. */
TEST(the_time_left_comes_to_an_end)
{
    struct told t = {.act = stop_soon};
    struct batch_counts c, stopped;
    assert_int_equal(run("timed", 0, &t, &stopped), ERR_CANCELLED);
    t = (struct told){.act = watch_estimate};
    assert_int_equal(run("timed", 0, &t, &c), 0);
    assert_true(most_left_s > 0 && n_estimates > 0);
    assert_true(c.left_high_s == 0 && c.left_low_s == 0);
    assert_int_equal(c.n_skipped, stopped.n_done);
    assert_true(c.out_bytes > stopped.out_bytes);
    uint64_t bytes = c.out_bytes;
    char *input = xasprintf("%s/in", folder), *output = xasprintf("%s/timed", folder);
    const struct batch_opts o = {.client = {.h = h},
                                 .input = input,
                                 .output = output,
                                 .in_flight = 1,
                                 .lookahead = 1};
    /* the same batch, opened again, counts the finished lines before it runs */
    struct batch *again;
    assert_int_equal(batch_open(&o, &again, &err), 0);
    batch_counts(again, &c);
    assert_int_equal(c.out_bytes, bytes);
    assert_int_equal(c.n_done, N_LINES);
    batch_close(again);
    free(input);
    free(output);
    t = (struct told){0};
    assert_int_equal(run("timed", 0, &t, &c), 0);
    assert_int_equal(c.out_bytes, bytes);
}

/* --- bounds ----------------------------------------------------------------------------------- */

static char *path_of(const char *name)
{
    return xasprintf("%s/%s", folder, name);
}

/* The input must not be an output, by any of its names. Output and errors may be one file. */
TEST(the_input_is_no_output)
{
    char *in = path_of("in"), *link_in = path_of("link in"), *other = path_of("other");
    assert_int_equal(link(in, link_in), 0);
    const struct {
        const char *output, *errors;
        int rc;
    } rows[] = {{in, NULL, ERR_USAGE},  {link_in, NULL, ERR_USAGE},
                {other, in, ERR_USAGE}, {other, link_in, ERR_USAGE},
                {other, other, 0},      {other, NULL, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct batch *b = NULL;
        struct batch_counts c;
        const struct batch_opts o = {.client = {.h = h},
                                     .input = in,
                                     .output = rows[i].output,
                                     .errors = rows[i].errors,
                                     .in_flight = 1,
                                     .lookahead = 1};
        assert_int_equal(batch_open(&o, &b, &err), rows[i].rc);
        if (rows[i].rc != 0) {
            assert_text(err.msg, "%s is both the input and an output: name another file",
                        in);
        } else {
            batch_counts(b, &c);
            assert_int_equal(c.total_lines, N_LINES);
            assert_int_equal(c.n_done + c.n_failed + c.out_bytes + c.n_lines, 0);
        }
        batch_close(b);
    }
    free(in);
    free(link_in);
    free(other);
    batch_close(NULL);
}

/* The answers may fill the bound to its last byte. A job may be opened before its model is known,
 * and the bound may be raised while it runs. */
TEST(the_bound_of_answers_is_exact)
{
    struct told t = {0};
    struct batch_counts c;
    int n;
    char *text = undisturbed("whole");
    uint64_t n_bytes = strlen(text);
    free(text);
    assert_int_equal(run("exact", n_bytes, &t, &c), 0);
    assert_int_equal(c.out_bytes, n_bytes);
    assert_false(c.is_stopped);
    t = (struct told){0};
    assert_int_equal(run("less", n_bytes - 1, &t, &c), ERR_LIMIT);
    assert_text(err.msg, "there is no room for more than %llu bytes of answers",
                (unsigned long long)n_bytes - 1);
    assert_true(c.out_bytes < n_bytes && !c.is_stopped);
    free(lines_of("less", &n));
    assert_true(n < N_LINES);
}

static uint64_t raised_bytes;

static void raise_bound(struct told *t, const struct batch_counts *c)
{
    (void)c;
    batch_set_bound(t->job, raised_bytes);
}

TEST(a_job_may_get_its_model_and_room_later)
{
    char *in = path_of("in"), *out = path_of("later");
    struct told t = {.act = raise_bound};
    struct batch_counts c;
    const struct batch_opts o = {.client = {.model_name = "m"},
                                 .input = in,
                                 .output = out,
                                 .in_flight = 4,
                                 .lookahead = 16,
                                 .max_out_bytes = 1,
                                 .on_progress = on_progress,
                                 .arg = &t};
    raised_bytes = 1 << 20;
    assert_int_equal(batch_open(&o, &t.job, &err), 0);
    batch_model(t.job, h);
    assert_int_equal(batch_run(t.job, &err), 0);
    batch_counts(t.job, &c);
    assert_int_equal(c.n_done, N_LINES);
    assert_int_equal(c.n_failed, 0);
    batch_close(t.job);
    free(in);
    free(out);
}

/* Runs a job on this descriptor as standard input. */
static int run_stdin(int fd, const char *name, struct batch_counts *c)
{
    char *out = path_of(name);
    struct told t = {0};
    const struct batch_opts o = {.client = {.h = h, .model_name = "m"},
                                 .input = "-",
                                 .output = out,
                                 .in_flight = 2,
                                 .lookahead = 2};
    int own = dup(STDIN_FILENO);
    assert_true(own >= 0);
    assert_int_equal(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    assert_int_equal(batch_open(&o, &t.job, &err), 0);
    int rc = batch_run(t.job, &err);
    batch_counts(t.job, c);
    batch_close(t.job);
    assert_int_equal(dup2(own, STDIN_FILENO), STDIN_FILENO);
    close(own);
    free(out);
    return rc;
}

/* A pipe's lines come late: the job waits for them, and reads them when they are there. Nothing is
 * known of the time that is left. */
TEST(a_slow_pipe_is_waited_for)
{
    static const char line[] = LINE("0", "completions",
                                    "\"prompt\":[5],\"max_tokens\":2") "\n";
    int ends[2];
    struct batch_counts c;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        clock_sleep_ns(250000000);
        _exit(write(ends[1], line, sizeof line - 1) == (ssize_t)sizeof line - 1 ? 0 : 1);
    }
    close(ends[1]);
    int rc = run_stdin(ends[0], "piped", &c), status = -1;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(rc, 0);
    assert_true(c.n_done == 1 && c.n_failed == 0 && c.total_lines == 0);
    assert_true(c.waiting_s >= 0.2 && c.reading_s > 0 && c.reading_s < c.elapsed_s);
    assert_true(c.left_high_s == 0);
}

/* A descriptor that cannot be read ends the job with its fault. */
TEST(an_input_that_fails_ends_the_job)
{
    struct batch_counts c;
    char *path = path_of("unreadable");
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(run_stdin(fd, "fault", &c), -EBADF);
    assert_string_equal(err.msg, "the input cannot be read: Bad file descriptor");
    assert_true(c.n_lines == 0 && !c.is_stopped);
    close(fd);
    free(path);
}

/* Frees one place when both lines of the job wait for it. */
static void free_place(struct told *t, const struct batch_counts *c)
{
    (void)c;
    if (t->n_began == 2 && n_others == 4)
        hcache_ticket_free(others[--n_others]);
}

/* A line's priority counts if the job has none of its own. Requests of others have all places but
 * one, so one line runs after the other, and finds their common beginning on the device. */
TEST(priorities_are_those_of_the_lines_or_of_the_job)
{
    static const int32_t prompt[] = {5, 6, 7};
    const struct hcache_request r = {
        .prompt = prompt, .n_prompt = 3, .max_tokens = 2000, .ignore_eos = true};
    for (int of_job = 0; of_job < 2; of_job++) {
        struct told t = {.act = free_place};
        struct batch_counts c;
        struct hcache_stats st = {0};
        struct hcache_err herr = {0};
        char *lines[] = {block_line("late", 11 + of_job, 1, ",\"priority\":5"),
                         block_line("soon", 11 + of_job, 2, ",2],\"priority\":-5")};
        const struct batch_opts o = {
            .in_flight = 2, .lookahead = 2, .priority = of_job * 3};
        const char *name = of_job ? "priorities" : "priority";
        for (n_others = 0; n_others < 4; n_others++)
            assert_int_equal(hcache_submit(h, &r, &others[n_others], &herr), 0);
        while (st.n_running < 4)
            hcache_stats(h, &st);
        assert_int_equal(run_lines(name, (const char *const *)lines, 2, o, &t, &c), 0);
        while (n_others > 0)
            hcache_ticket_free(others[--n_others]);
        assert_int_equal(c.n_done, 2);
        assert_int_equal(c.n_failed, 0);
        assert_int_equal(t.device_tokens[0] >= 64, of_job == 0);
        assert_int_equal(t.device_tokens[1] >= 64, of_job == 1);
        free(lines[0]);
        free(lines[1]);
    }
}

static uint64_t most_ahead;

static void count_ahead(struct told *t, const struct batch_counts *c)
{
    (void)t;
    most_ahead = c->n_lines - c->n_done > most_ahead ? c->n_lines - c->n_done : most_ahead;
}

/* No more lines are read than may wait and run. */
TEST(lines_ahead_are_bounded)
{
    static const struct {
        int lookahead, in_flight;
    } rows[] = {{3, 1}, {1, 2}, {4, 3}};
    for (size_t i = 0; i < 3; i++) {
        char *in = path_of("in"), *out = xasprintf("%s/ahead %zu", folder, i);
        struct told t = {.act = count_ahead};
        struct batch_counts c;
        const struct batch_opts o = {.client = {.h = h, .model_name = "m"},
                                     .input = in,
                                     .output = out,
                                     .in_flight = rows[i].in_flight,
                                     .lookahead = rows[i].lookahead,
                                     .on_progress = on_progress,
                                     .arg = &t};
        most_ahead = 0;
        assert_int_equal(batch_open(&o, &t.job, &err), 0);
        assert_int_equal(batch_run(t.job, &err), 0);
        batch_counts(t.job, &c);
        batch_close(t.job);
        assert_int_equal(c.n_done, N_LINES);
        assert_int_equal(most_ahead, rows[i].lookahead + rows[i].in_flight);
        free(in);
        free(out);
    }
}

static int most_at_once, n_progress;

static void count_at_once(struct told *t, const struct batch_counts *c)
{
    (void)c;
    n_progress++;
    if (t->n_began - t->n_ended > most_at_once)
        most_at_once = t->n_began - t->n_ended;
}

/* Answers in flight are bounded, and the bound is reached. Progress is reported at each turn of the
 * job, or with an interval of an hour only once, at the end. */
TEST(answers_in_flight_are_bounded)
{
    static const char *const lines[] = {
        LINE("0", "completions", "\"prompt\":[5],\"max_tokens\":60,\"ignore_eos\":true"),
        LINE("1", "completions", "\"prompt\":[6],\"max_tokens\":60,\"ignore_eos\":true"),
        LINE("2", "completions", "\"prompt\":[7],\"max_tokens\":60,\"ignore_eos\":true"),
        LINE("3", "completions", "\"prompt\":[8],\"max_tokens\":60,\"ignore_eos\":true"),
        LINE("4", "completions", "\"prompt\":[9],\"max_tokens\":60,\"ignore_eos\":true"),
    };
    const int64_t hour_ns = (int64_t)3600 * 1000000000;
    struct told t = {.act = count_at_once};
    struct batch_counts c;
    most_at_once = n_progress = 0;
    struct batch_opts o = {.in_flight = 2, .lookahead = 5};
    assert_int_equal(run_lines("few", lines, 5, o, &t, &c), 0);
    assert_int_equal(most_at_once, 2);
    /* one report for each line that was read, and three rounds of answers */
    assert_true(n_progress >= 5 + 3);
    /* the job waits for news; it does not ask again and again */
    assert_true(n_progress < 2000);
    assert_int_equal(t.n_began, 5);
    assert_int_equal(t.n_ended, 5);
    n_progress = 0;
    o.progress_ns = hour_ns;
    assert_int_equal(run_lines("seldom", lines, 5, o, &t, &c), 0);
    /* a machine that has been up for an hour reports twice */
    assert_in_range(n_progress, 1, 2);
}

int main(void)
{
    return unit_run(open_all, close_all);
}
