/* test_files.c - a batch's input, its lines, and the files from which a job continues. */

#include "tests/unit.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "api/estimate.h"
#include "api/idset.h"
#include "api/input.h"
#include "api/line.h"
#include "api/output.h"
#include "base/json.h"
#include "seal/seal_file.h"
#include "tests/base/said.h"

static char folder[] = "/tmp/hcache-batch.XXXXXX";

static const char *path_of(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *put(const char *name, const char *text, size_t n)
{
    const char *path = path_of(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    return path;
}

static void assert_holds(const char *name, const char *text)
{
    char *got;
    size_t n;
    assert_int_equal(file_read(path_of(name), 1 << 30, &got, &n, NULL), 0);
    assert_string_equal(got, text);
    free(got);
}

/* --- names ------------------------------------------------------------------------------------ */

TEST(a_set_knows_what_it_was_given)
{
    struct idset s = {0};
    char name[32];
    assert_false(idset_has(&s, "", 0));
    for (int i = 0; i < 5000; i++) {
        int n = snprintf(name, sizeof name, "name %d", i);
        assert_false(idset_has(&s, name, (size_t)n));
        assert_true(idset_add(&s, name, (size_t)n));
        assert_false(idset_add(&s, name, (size_t)n));
    }
    for (int i = 0; i < 5000; i++) {
        int n = snprintf(name, sizeof name, "name %d", i);
        assert_true(idset_has(&s, name, (size_t)n));
    }
    assert_int_equal(s.n, 5000);
    idset_free(&s);
}

/* At most half of the slots are used, and their number doubles from 256 on. */
TEST(a_set_grows_by_doubling)
{
    struct idset s = {0};
    for (int i = 0; i < 600; i++) {
        char name[8];
        int n = snprintf(name, sizeof name, "%d", i);
        assert_true(idset_add(&s, name, (size_t)n));
        assert_int_equal(s.n, i + 1);
        assert_int_equal(s.cap, i < 128 ? 256 : i < 256 ? 512 : i < 512 ? 1024 : 2048);
    }
    assert_false(idset_has(&s, "600", 3));
    assert_false(idset_has(&s, "60", 3)); /* a zero byte is a part of a name */
    idset_free(&s);
    assert_null(s.slots);
    assert_int_equal(s.n + s.cap, 0);
}

/* --- input ------------------------------------------------------------------------------------ */

TEST(lines_come_one_by_one)
{
    static const char text[] = "one\n\n  \t\r\ntwo\r\nno line break";
    struct input in;
    struct err err = {0};
    assert_int_equal(input_open(&in, put("lines", text, sizeof text - 1), &err), 0);
    assert_int_equal(in.total_lines, 5);
    assert_int_equal(in.total_bytes, sizeof text - 1);
    assert_int_equal(input_next(&in, 0, &err), INPUT_LINE);
    assert_string_equal(in.line.p, "one");
    assert_int_equal(in.n_lines, 1);
    assert_int_equal(input_next(&in, 0, &err), INPUT_LINE); /* blank lines are skipped */
    assert_string_equal(in.line.p, "two\r");
    assert_int_equal(in.n_lines, 4);
    assert_int_equal(input_next(&in, 0, &err), INPUT_LINE);
    assert_string_equal(in.line.p, "no line break");
    assert_int_equal(input_next(&in, 0, &err), INPUT_END);
    assert_int_equal(input_next(&in, 0, &err), INPUT_END);
    assert_int_equal(in.n_bytes, sizeof text - 1);
    input_close(&in);
}

TEST(a_line_has_a_bound)
{
    size_t n = (size_t)INPUT_MAX_LINE + 2;
    char *text = xmalloc(n + 4);
    struct input in;
    struct err err = {0};
    memset(text, 'x', n);
    memcpy(text + n, "\nok\n", 4);
    assert_int_equal(input_open(&in, put("long", text, n + 4), &err), 0);
    free(text);
    assert_int_equal(input_next(&in, 0, &err), INPUT_TOO_LONG);
    assert_int_equal(input_next(&in, 0, &err), INPUT_LINE);
    assert_string_equal(in.line.p, "ok");
    assert_int_equal(in.n_lines, 2);
    input_close(&in);
}

/* A line of exactly INPUT_MAX_LINE bytes is handed out. One byte more is too long, also at the end
 * of a file without a line break. Each file is counted before it is read. */
TEST(the_bound_counts_the_bytes_of_a_line)
{
    char *text = xmalloc((size_t)INPUT_MAX_LINE + 1);
    memset(text, 'x', (size_t)INPUT_MAX_LINE + 1);
    for (int more = 0; more < 2; more++) {
        size_t n = (size_t)INPUT_MAX_LINE + (size_t)more;
        struct input in;
        struct err err = {0};
        assert_int_equal(input_open(&in, put("bound", text, n), &err), 0);
        assert_int_equal(in.total_lines, 1);
        assert_int_equal(in.total_bytes, n);
        assert_int_equal(in.n_bytes, 0);
        assert_int_equal(input_next(&in, 0, &err), more ? INPUT_TOO_LONG : INPUT_LINE);
        assert_int_equal(in.line.n, more ? 0 : n);
        assert_int_equal(in.n_lines, 1);
        assert_int_equal(in.n_bytes, n);
        assert_int_equal(input_next(&in, 0, &err), INPUT_END);
        assert_int_equal(in.n_lines, 1);
        input_close(&in);
    }
    free(text);
}

/* Only white space makes a line blank; a zero byte does not. */
TEST(a_blank_end_is_no_line)
{
    struct input in;
    struct err err = {0};
    assert_int_equal(input_open(&in, put("blank", "\0\n \t", 4), &err), 0);
    assert_int_equal(in.total_lines, 2);
    assert_int_equal(input_next(&in, 0, &err), INPUT_LINE);
    assert_int_equal(in.line.n, 1);
    assert_int_equal(input_next(&in, 0, &err), INPUT_END);
    assert_int_equal(in.n_lines, 2);
    assert_int_equal(in.n_bytes, 4);
    input_close(&in);
    assert_int_equal(input_open(&in, put("nothing", "", 0), &err), 0);
    assert_int_equal(in.total_lines, 0);
    assert_int_equal(input_next(&in, 0, &err), INPUT_END);
    assert_int_equal(in.n_lines, 0);
    input_close(&in);
}

TEST(an_input_that_cannot_be_opened_is_named)
{
    struct input in;
    struct err err = {0};
    char *missing = xasprintf("%s/missing", folder);
    assert_int_equal(input_open(&in, missing, &err), -ENOENT);
    assert_text(err.msg, "%s: No such file or directory", missing);
    input_close(&in);
    free(missing);
    err = (struct err){0};
    assert_int_equal(input_open(&in, folder, &err), -EISDIR);
    assert_text(err.msg, "%s: Is a directory", folder);
    input_close(&in);
}

/* A descriptor that cannot be read is a fault, not an end. */
TEST(an_input_that_cannot_be_read_is_a_fault)
{
    struct err err = {0};
    struct input in = {.is_owned = true, .buf = xmalloc(256 << 10)};
    in.fd = open(put("written", "a line\n", 7), O_WRONLY | O_CLOEXEC);
    assert_true(in.fd >= 0);
    assert_int_equal(input_next(&in, 0, &err), INPUT_FAULT);
    assert_int_equal(err.code, -EBADF);
    assert_string_equal(err.msg, "the input cannot be read: Bad file descriptor");
    input_close(&in);
}

/* The size of a pipe, and of standard input, is unknown. Standard input stays open. */
TEST(standard_input_is_neither_counted_nor_closed)
{
    struct input in;
    struct stat st;
    struct err err = {0};
    int own = dup(STDIN_FILENO), fd = open(put("stdin", "one\ntwo\n", 8), O_RDONLY);
    assert_true(own >= 0 && fd >= 0);
    assert_int_equal(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    assert_int_equal(input_open(&in, "-", &err), 0);
    assert_int_equal(in.total_lines, 0);
    assert_int_equal(in.total_bytes, 0);
    assert_int_equal(input_next(&in, 0, &err), INPUT_LINE);
    assert_string_equal(in.line.p, "one");
    input_close(&in);
    assert_int_equal(in.fd, -1);
    assert_int_equal(fstat(STDIN_FILENO, &st), 0);
    assert_int_equal(dup2(own, STDIN_FILENO), STDIN_FILENO);
    close(own);
    close(fd);
}

/* Descriptor 0 is closed like any other if the input has opened it. */
TEST(an_input_may_be_the_first_descriptor)
{
    struct input in;
    struct stat st;
    struct err err = {0};
    const char *path = put("first", "one\n", 4);
    int own = dup(STDIN_FILENO);
    assert_true(own >= 0);
    close(STDIN_FILENO);
    assert_int_equal(input_open(&in, path, &err), 0);
    int fd = in.fd;
    input_close(&in);
    int rc = fstat(fd, &st), code = errno;
    assert_int_equal(dup2(own, STDIN_FILENO), STDIN_FILENO);
    close(own);
    assert_int_equal(fd, STDIN_FILENO);
    assert_int_equal(rc, -1);
    assert_int_equal(code, EBADF);
}

/* A pipe with a slow writer gives no partial lines. */
TEST(a_pipe_may_have_nothing_yet)
{
    int ends[2];
    struct err err = {0};
    assert_int_equal(pipe(ends), 0);
    struct input in = {.fd = ends[0], .is_owned = true, .buf = xmalloc(256 << 10)};
    assert_int_equal(input_next(&in, 0, &err), INPUT_LATER);
    assert_int_equal(write(ends[1], "ha", 2), 2);
    assert_int_equal(input_next(&in, 0, &err), INPUT_LATER);
    assert_int_equal(write(ends[1], "lf\nrest", 7), 7);
    assert_int_equal(input_next(&in, 0, &err), INPUT_LINE);
    assert_string_equal(in.line.p, "half");
    assert_int_equal(input_next(&in, 0, &err), INPUT_LATER);
    close(ends[1]);
    assert_int_equal(input_next(&in, 0, &err), INPUT_LINE);
    assert_string_equal(in.line.p, "rest");
    assert_int_equal(input_next(&in, 0, &err), INPUT_END);
    input_close(&in);
}

/* --- lines ------------------------------------------------------------------------------------ */

#define CHAT(id, body)                                                                     \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\","      \
    "\"body\":" body "}"

static int read_as(const char *text, uint64_t number, struct idset *seen, struct line *l,
                   struct fault *f)
{
    struct input in = {.n_lines = number};
    textbuf_add(&in.line, text, strlen(text));
    int rc = line_read(&in, INPUT_LINE, seen, l, f);
    textbuf_free(&in.line);
    return rc;
}

TEST(a_line_is_refused_with_a_code)
{
    static const struct {
        const char *text, *code;
    } rows[] = {
        {"{", "invalid_json_line"},
        {"[]", "invalid_custom_id"},
        {"\"x\"", "invalid_json_line"},
        {"{\"custom_id\":\"a\",\"custom_id\":\"b\"}", "invalid_json_line"},
        {"{}", "invalid_custom_id"},
        {CHAT("", "{}"), "invalid_custom_id"},
        {"{\"custom_id\":7}", "invalid_custom_id"},
        {"{\"custom_id\":\"b\"}", "invalid_method"},
        {"{\"custom_id\":\"c\",\"method\":\"GET\"}", "invalid_method"},
        {"{\"custom_id\":\"d\",\"method\":\"POST\"}", "invalid_url"},
        {"{\"custom_id\":\"e\",\"method\":\"POST\",\"url\":\"/v1/nothing\"}",
         "invalid_url"},
        {CHAT("f", "[]"), "missing_body"},
        {"{\"custom_id\":\"g\",\"metod\":\"POST\"}", "unknown_parameter"},
        {CHAT("first", "{}"), "duplicate_custom_id"},
    };
    struct idset seen = {0};
    struct line l;
    struct fault f;
    assert_int_equal(read_as(CHAT("first", "{}"), 1, &seen, &l, &f), 0);
    assert_int_equal(l.kind, REQUEST_CHAT);
    line_deinit(&l);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(read_as(rows[i].text, 2, &seen, &l, &f), -1);
        assert_string_equal(f.code, rows[i].code);
        line_deinit(&l);
    }
    idset_free(&seen);
}

/* Each fault says what to change, and where. */
TEST(a_refusal_has_its_message)
{
    static const struct {
        const char *text, *code, *param, *message;
    } rows[] = {
        {"{", "invalid_json_line", "", "the line: a string was expected, at byte 1"},
        {"{\"custom_id\":\"b\"}", "invalid_method", "method", "'method' must be \"POST\""},
        {"{\"custom_id\":\"c\",\"method\":\"post\"}", "invalid_method", "method",
         "'method' must be \"POST\""},
        {"{\"custom_id\":\"d\",\"method\":\"POST\",\"url\":\"/v1/completion\"}",
         "invalid_url", "url",
         "'url' must be \"/v1/chat/completions\" or \"/v1/completions\" in a batch of this "
         "server"},
        {"{\"custom_id\":\"e\",\"method\":\"POST\",\"url\":\"/v1/completions\"}",
         "missing_body", "body", "'body' must be an object"},
        {CHAT("first", "{}"), "duplicate_custom_id", "custom_id",
         "an earlier line has the custom_id 'first'"},
    };
    struct idset seen = {0};
    struct line l;
    struct fault f;
    assert_int_equal(read_as(CHAT("first", "{}"), 1, &seen, &l, &f), 0);
    line_deinit(&l);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        f = (struct fault){0};
        assert_int_equal(read_as(rows[i].text, 2, &seen, &l, &f), -1);
        assert_int_equal(f.status, 400);
        assert_string_equal(f.code, rows[i].code);
        assert_string_equal(f.param, rows[i].param);
        assert_string_equal(f.message, rows[i].message);
        line_deinit(&l);
    }
    assert_int_equal(seen.n, 1); /* a refused line's custom_id can be used again */
    idset_free(&seen);
    assert_int_equal(line_kind("/v1/chat/completions"), REQUEST_CHAT);
    assert_int_equal(line_kind("/v1/completions"), REQUEST_COMPLETION);
    assert_int_equal(line_kind("/v1/completions/"), 0);
}

/* A line's values may take 16 MiB more memory than its text. Empty lists take 168 bytes each. */
TEST(a_line_of_many_values_is_refused)
{
    static const int n_lists[] = {99000, 103000};
    for (int i = 0; i < 2; i++) {
        struct textbuf text = {0};
        struct idset seen = {0};
        struct line l;
        struct fault f = {0};
        textbuf_addf(&text, "{\"custom_id\":\"a\",\"x\":[[]");
        for (int k = 1; k < n_lists[i]; k++)
            textbuf_add(&text, ",[]", 3);
        textbuf_add(&text, "]}", 2);
        assert_int_equal(read_as(text.p, 1, &seen, &l, &f), -1);
        assert_string_equal(f.code, i == 0 ? "unknown_parameter" : "too_many_values");
        assert_int_equal(l.json != NULL, i == 0);
        assert_true(i == 1 || l.n_memory > sizeof l + text.n + 168u * 99000);
        assert_true(i == 0 || l.n_memory == sizeof l + text.n);
        line_deinit(&l);
        idset_free(&seen);
        textbuf_free(&text);
    }
}

/* The lines that answer a request and a line that is none, letter for letter. */
TEST(answers_have_their_form)
{
    struct idset seen = {0};
    struct line l;
    struct fault f = {0};
    assert_int_equal(read_as(CHAT("a\\\"b", "{}"), 1, &seen, &l, &f), 0);
    assert_int_equal(strlen(l.name), LINE_NAME_BYTES - 1);
    assert_int_equal(strspn(l.name, "0123456789abcdef"), LINE_NAME_BYTES - 1);
    assert_int_equal(json_kind(l.body), JSON_KIND_OBJECT);
    struct json *body = json_new_object();
    json_put_int(body, "x", 1);
    char *got = line_answer(&l, 201, body);
    assert_text(got,
                "{\"id\": \"batch_req_%s\", \"custom_id\": \"a\\\"b\", \"response\": "
                "{\"status_code\": 201, \"request_id\": \"req_%s\", \"body\": "
                "{\"x\": 1}}, \"error\": null}",
                l.name, l.name);
    free(got);
    line_deinit(&l);
    assert_null(l.json);
    assert_int_equal(read_as("{\"custom_id\":\"k\"}", 7, &seen, &l, &f), -1);
    got = line_fault(&l, &f);
    assert_text(got,
                "{\"id\": \"batch_req_%s\", \"custom_id\": \"k\", \"response\": null, "
                "\"error\": {\"code\": \"invalid_method\", \"message\": \"'method' must be "
                "\\\"POST\\\"\", \"param\": \"method\", \"line\": 7}}",
                l.name);
    free(got);
    line_deinit(&l);
    idset_free(&seen);
}

/* A custom_id has at most LINE_MAX_CUSTOM_ID bytes. The fault names the line and the field. */
TEST(a_custom_id_has_a_bound)
{
    for (int more = 0; more < 2; more++) {
        struct idset seen = {0};
        struct line l;
        struct fault f = {0};
        char id[LINE_MAX_CUSTOM_ID + 2] = {0};
        memset(id, 'i', (size_t)(LINE_MAX_CUSTOM_ID + more));
        char *text = xasprintf(CHAT("%s", "{}"), id);
        assert_int_equal(read_as(text, 12, &seen, &l, &f), more ? -1 : 0);
        assert_int_equal(l.number, 12);
        assert_int_equal(l.n_bytes, strlen(text));
        assert_true(l.n_memory > sizeof l + strlen(text));
        if (more) {
            assert_int_equal(f.status, 400);
            assert_text(f.message, "'custom_id' must be a text of 1 to %d bytes",
                        LINE_MAX_CUSTOM_ID);
            assert_string_equal(f.param, "custom_id");
            char *fault = line_fault(&l, &f);
            assert_non_null(strstr(fault, "\"line\": 12"));
            assert_non_null(strstr(fault, "\"param\": \"custom_id\""));
            assert_non_null(strstr(fault, "\"custom_id\": null"));
            free(fault);
        }
        free(text);
        line_deinit(&l);
        idset_free(&seen);
    }
}

TEST(a_line_that_was_dropped_is_answered)
{
    struct input in = {.n_lines = 3};
    struct idset seen = {0};
    struct line l;
    struct fault f = {0};
    assert_int_equal(line_read(&in, INPUT_TOO_LONG, &seen, &l, &f), -1);
    assert_string_equal(f.code, "line_too_long");
    assert_string_equal(f.message, "the line has more than 16777216 bytes");
    char *fault = line_fault(&l, &f);
    assert_non_null(strstr(fault, "\"line\": 3"));
    assert_non_null(strstr(fault, "\"param\": null"));
    free(fault);
    line_deinit(&l);
    idset_free(&seen);
}

/* A request is named by its text, whatever line it is on. Two equal bad lines get two names. */
TEST(names_follow_the_text)
{
    struct idset none = {0}, other = {0};
    struct line a, b;
    struct fault f;
    assert_int_equal(read_as(CHAT("a", "{}"), 1, &none, &a, &f), 0);
    assert_int_equal(read_as(CHAT("a", "{}"), 9, &other, &b, &f), 0);
    assert_string_equal(a.name, b.name);
    assert_int_equal(a.seed, b.seed);
    line_deinit(&b);
    assert_int_equal(read_as(CHAT("b", "{}"), 1, &none, &b, &f), 0);
    assert_string_not_equal(a.name, b.name);
    assert_int_not_equal(a.seed, b.seed);
    line_deinit(&a);
    line_deinit(&b);
    assert_int_equal(read_as("{", 1, &none, &a, &f), -1);
    assert_int_equal(read_as("{", 2, &none, &b, &f), -1);
    assert_string_not_equal(a.name, b.name);
    line_deinit(&a);
    line_deinit(&b);
    idset_free(&none);
    idset_free(&other);
}

/* --- output ----------------------------------------------------------------------------------- */

/* Answers to the custom_ids "a" (answered) and "b" (refused), and the answer to a line that is not
 * a request, with its id. */
static char *answer_a, *answer_b, *fault_c, id_c[80];

static int make_lines(void **state)
{
    struct idset seen = {0};
    struct line l;
    struct fault f;
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)read_as(CHAT("a", "{}"), 1, &seen, &l, &f);
    answer_a = line_answer(&l, 200, json_new_object());
    line_deinit(&l);
    (void)read_as(CHAT("b", "{}"), 2, &seen, &l, &f);
    answer_b = line_answer(&l, 400, json_new_object());
    line_deinit(&l);
    (void)read_as("{", 3, &seen, &l, &f);
    fault_c = line_fault(&l, &f);
    snprintf(id_c, sizeof id_c, LINE_ID "%s", l.name);
    line_deinit(&l);
    idset_free(&seen);
    return 0;
}

static int remove_all(void **state)
{
    char *command = xasprintf("rm -rf %s", folder);
    int rc = system(command);
    free(command);
    free(answer_a);
    free(answer_b);
    free(fault_c);
    return rc;
}

static bool is_done(const struct idset *done, const char *custom_id)
{
    struct textbuf name = {0};
    output_name_answer(custom_id, &name);
    bool has = idset_has(done, name.p, name.n);
    textbuf_free(&name);
    return has;
}

TEST(a_job_goes_on_after_whole_lines)
{
    struct output o;
    struct idset done = {0};
    struct err err = {0};
    struct textbuf name = {0};
    /* If the file is cut anywhere in its last line, its earlier lines stay. */
    char *whole = xasprintf("%s\n%s\n%s\n", answer_a, fault_c, answer_b);
    size_t two = strlen(answer_a) + strlen(fault_c) + 2;
    for (size_t n = two; n < strlen(whole); n += n < two + 40 ? 1 : 17) {
        assert_int_equal(output_open(&o, put("out", whole, n), false, &done, &err), 0);
        assert_int_equal(o.n_lines, 2);
        assert_int_equal(o.n_failed, 1);
        assert_int_equal(o.n_bytes, two);
        assert_true(is_done(&done, "a"));
        assert_false(is_done(&done, "b"));
        output_name_fault(id_c, &name);
        assert_true(idset_has(&done, name.p, name.n));
        output_add(&o, answer_b);
        assert_int_equal(output_sync(&o, &err), 0);
        output_close(&o);
        assert_holds("out", whole);
        idset_free(&done);
    }
    textbuf_free(&name);
    free(whole);
}

/* Of an encrypted output whole frames count: a torn one, and a long line whose last frame is
 * missing, are cut off. */
TEST(an_encrypted_job_goes_on_after_whole_frames)
{
    static const uint8_t secret[SEAL_KEY_BYTES] = {3}, foreign[SEAL_KEY_BYTES] = {4};
    struct seal *s = seal_shared(secret), *other = seal_shared(foreign);
    struct output o;
    struct idset done = {0};
    struct err err = {0};
    char *blanks = xmalloc(2 * SEAL_FRAME_MOST + 1);
    memset(blanks, ' ', 2 * SEAL_FRAME_MOST);
    blanks[2 * SEAL_FRAME_MOST] = 0;
    char *path = xstrdup(put("sealed", "", 0)), *wide = xasprintf("%s%s", answer_b, blanks);
    const char *lines[] = {answer_a, wide};
    int64_t end[2];
    assert_int_equal(output_open_sealed(&o, path, s, &done, &err), 0);
    for (int i = 0; i < 2; i++) {
        output_add(&o, lines[i]);
        assert_int_equal(output_sync(&o, &err), 0);
        end[i] = (int64_t)o.n_bytes;
    }
    output_close(&o);
    for (int64_t n = end[1]; n >= end[0];
         n -= n == end[1] ? 1 : (end[1] - end[0]) / 4 - 1) {
        assert_int_equal(truncate(path, n), 0);
        idset_free(&done);
        assert_int_equal(output_open_sealed(&o, path, s, &done, &err), 0);
        assert_int_equal(o.n_lines, n == end[1] ? 2 : 1);
        assert_int_equal(o.n_bytes, end[n == end[1]]);
        assert_true(is_done(&done, "a"));
        assert_int_equal(is_done(&done, "b"), n == end[1]);
        output_add(&o, wide); /* again, as a job does that finds it missing */
        assert_int_equal(output_sync(&o, &err), 0);
        output_close(&o);
    }
    idset_free(&done);
    assert_int_equal(output_open_sealed(&o, path, other, &done, &err), ERR_MISMATCH);
    output_close(&o);
    assert_int_equal(output_open(&o, path, true, &done, &err), ERR_FORMAT);
    output_close(&o);
    idset_free(&done);
    free(path);
    free(wide);
    free(blanks);
    seal_free(s);
    seal_free(other);
}

static int n_interrupts; /* how many reads a signal still interrupts */

ssize_t read(int fd, void *buf, size_t n)
{
    if (n_interrupts > 0) {
        n_interrupts--;
        errno = EINTR;
        return -1;
    }
    return syscall(SYS_read, fd, buf, n);
}

/* On some file systems a signal may interrupt a read. */
TEST(an_interrupted_read_is_made_again)
{
    struct output o;
    struct idset done = {0};
    struct err err = {0};
    char *line = xasprintf("%s\n", answer_a);
    const char *path = put("interrupted", line, strlen(line));
    n_interrupts = 2;
    assert_int_equal(output_open(&o, path, false, &done, &err), 0);
    assert_int_equal(n_interrupts, 0);
    assert_int_equal(o.n_lines, 1);
    assert_true(is_done(&done, "a"));
    output_close(&o);
    idset_free(&done);
    free(line);
}

/* A job continues only from a regular file that it can open. */
TEST(an_output_that_is_no_file_is_refused)
{
    struct output o;
    struct idset done = {0};
    struct err err = {0};
    char *inside = xasprintf("%s/missing/out", folder), *link;
    assert_int_equal(output_open(&o, inside, false, &done, &err), -ENOENT);
    assert_text(err.msg, "%s: No such file or directory", inside);
    output_close(&o);
    err = (struct err){0};
    assert_int_equal(output_open(&o, "/dev/null", false, &done, &err), ERR_USAGE);
    assert_string_equal(
        err.msg, "/dev/null is not a regular file: a job could not continue from it");
    output_close(&o);
    /* The output is private: a symbolic link in its place is not followed, and only the owner may
     * read the file. */
    link = xasprintf("%s/link", folder);
    assert_int_equal(symlink(put("target", "", 0), link), 0);
    assert_int_equal(output_open(&o, link, true, &done, &err), -ELOOP);
    output_close(&o);
    assert_int_equal(output_open(&o, link, false, &done, &err), 0);
    output_close(&o);
    struct stat st;
    assert_int_equal(output_open(&o, path_of("private"), true, &done, &err), 0);
    assert_int_equal(fstat(o.fd, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    output_close(&o);
    assert_int_equal(o.fd, -1);
    free(inside);
    free(link);
    idset_free(&done);
}

/* A write that fails gives an error with the file's name, and the next sync writes the same
 * lines. */
TEST(a_write_that_fails_is_made_again)
{
    struct output o;
    struct idset done = {0};
    struct err err = {0};
    assert_int_equal(output_open(&o, put("out", "", 0), false, &done, &err), 0);
    assert_int_equal(output_sync(&o, &err), 0); /* nothing to write */
    assert_int_equal(o.n_bytes, 0);
    int own = o.fd;
    o.fd = open(o.path, O_RDONLY | O_CLOEXEC);
    output_add(&o, answer_a);
    assert_int_equal(output_sync(&o, &err), -EBADF);
    assert_text(err.msg, "%s: Bad file descriptor", o.path);
    assert_int_equal(o.n_bytes, 0);
    assert_int_equal(o.lines.n, strlen(answer_a) + 1);
    close(o.fd);
    /* this device takes bytes, and cannot make them durable */
    o.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(output_sync(&o, &err), -EINVAL);
    assert_int_equal(o.n_bytes, 0);
    assert_int_equal(o.lines.n, strlen(answer_a) + 1);
    close(o.fd);
    o.fd = own;
    assert_int_equal(output_sync(&o, &err), 0);
    assert_int_equal(o.n_bytes, strlen(answer_a) + 1);
    assert_int_equal(o.lines.n, 0);
    output_close(&o);
    char *text = xasprintf("%s\n", answer_a);
    assert_holds("out", text);
    free(text);
    idset_free(&done);
}

TEST(what_was_not_synced_is_not_there)
{
    struct output o;
    struct idset done = {0};
    struct err err = {0};
    assert_int_equal(output_open(&o, put("out", "", 0), false, &done, &err), 0);
    output_add(&o, answer_a);
    output_close(&o);
    assert_holds("out", "");
    idset_free(&done);
}

/* Lines of more than one buffer are all found, and a file of another kind is recognised late. */
TEST(a_long_output_is_read_to_its_end)
{
    struct output o;
    struct idset done = {0};
    struct err err = {0};
    struct textbuf text = {0};
    char *filler = xcalloc(1, 100001);
    memset(filler, 'f', 100000);
    for (int i = 0; i < 9; i++)
        textbuf_addf(&text,
                     "{\"id\": \"batch_req_%d\", \"custom_id\": \"%d\", \"response\": "
                     "{\"status_code\": %d, \"body\": \"%s\"}}\n",
                     i, i,
                     i % 3 == 0   ? 200
                     : i % 3 == 1 ? 201
                                  : 400,
                     filler);
    assert_int_equal(output_open(&o, put("out", text.p, text.n), false, &done, &err), 0);
    assert_int_equal(o.n_lines, 9);
    assert_int_equal(o.n_failed, 6);
    assert_int_equal(o.n_bytes, text.n);
    assert_true(is_done(&done, "0") && is_done(&done, "8") && !is_done(&done, "9"));
    output_close(&o);
    textbuf_addf(&text, "{\"id\": 1}\n");
    assert_int_equal(output_open(&o, put("out", text.p, text.n), false, &done, &err),
                     ERR_FORMAT);
    assert_non_null(strstr(err.msg, "/out: line 10 is not from a batch's output;"));
    output_close(&o);
    assert_holds("out", text.p);
    textbuf_free(&text);
    idset_free(&done);
    free(filler);
}

/* Lines for standard output are written at its position, and it stays open. */
TEST(standard_output_is_written_and_stays_open)
{
    struct output o;
    struct idset done = {0};
    struct err err = {0};
    int own = dup(STDOUT_FILENO), fd = open(put("stdout", "x", 1), O_WRONLY | O_CLOEXEC);
    assert_true(own >= 0 && fd >= 0);
    fflush(stdout);
    assert_int_equal(lseek(fd, 1, SEEK_SET), 1);
    dup2(fd, STDOUT_FILENO);
    int opened = output_open(&o, "-", true, &done, &err);
    output_add(&o, "one");
    output_add(&o, "two");
    int first = output_sync(&o, &err);
    output_add(&o, "three");
    int second = output_sync(&o, &err);
    output_close(&o);
    struct stat st;
    int is_open = fstat(STDOUT_FILENO, &st);
    assert_int_equal(dup2(own, STDOUT_FILENO), STDOUT_FILENO);
    close(own);
    close(fd);
    assert_int_equal(opened, 0);
    assert_int_equal(first, 0);
    assert_int_equal(second, 0);
    assert_int_equal(is_open, 0);
    assert_holds("stdout", "xone\ntwo\nthree\n");
    idset_free(&done);
    output_close(&(struct output){0}); /* does not close descriptor 0 */
    assert_int_equal(fstat(STDIN_FILENO, &st), 0);
}

/* A user who names the wrong file loses nothing. */
TEST(a_file_of_another_kind_stays_as_it_is)
{
    static const char *const texts[] = {"my letters\n", "{\"custom_id\":\"a\"}\n",
                                        "{}",           "{\"id\": \"chatcmpl-1\"}\n",
                                        "\n",           "x"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct output o;
        struct idset done = {0};
        struct err err = {0};
        const char *path = put("letters", texts[i], strlen(texts[i]));
        assert_int_equal(output_open(&o, path, false, &done, &err), ERR_FORMAT);
        assert_non_null(strstr(err.msg, ": line 1 is not from a batch's output;"));
        output_close(&o);
        assert_holds("letters", texts[i]);
        idset_free(&done);
    }
}

TEST(one_job_writes_a_file)
{
    struct output a, b;
    struct idset done = {0};
    struct err err = {0};
    const char *path = put("out", "", 0);
    assert_int_equal(output_open(&a, path, false, &done, &err), 0);
    assert_int_equal(output_open(&b, path, false, &done, &err), ERR_BUSY);
    output_close(&b);
    output_close(&a);
    assert_int_equal(output_open(&a, path, false, &done, &err), 0);
    output_close(&a);
    idset_free(&done);
}

/* --- the time left ---------------------------------------------------------------------------- */

TEST(the_time_left_is_a_range)
{
    struct estimate e = {.lines_done = 10,
                         .bytes_done = 1000,
                         .lines_left = 20,
                         .bytes_left = 6000,
                         .is_size_known = true,
                         .elapsed_s = 30};
    double low, high;
    char text[64];
    assert_true(estimate_left(&e, &low, &high));
    assert_true(low == 60 && high == 180); /* 20 lines left: 60 s; 6000 bytes left: 180 s */
    estimate_range_text(low, high, text, sizeof text);
    assert_string_equal(text, "1 to 3 min left");
    estimate_range_text(5, 5, text, sizeof text);
    assert_string_equal(text, "5 s left");
    estimate_range_text(0, 0, text, sizeof text);
    assert_string_equal(text, "");
    static const struct {
        double low_s, high_s;
        const char *text;
    } texts[] = {
        {98, 99, "98 to 99 s left"},   {60, 99.5, "60 to 100 s left"},
        {60, 100, "1 to 2 min left"},  {0.4, 0.9, "0 to 1 s left"},
        {120, 121, "2 to 3 min left"}, {5400, 5999, "90 to 100 min left"},
        {7200, 7200, "2 h left"},      {3600, 6000, "1 to 2 h left"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        estimate_range_text(texts[i].low_s, texts[i].high_s, text, sizeof text);
        assert_string_equal(text, texts[i].text);
    }
    struct estimate early = e, pipe = e;
    early.lines_done = 2;
    assert_false(estimate_left(&early, &low, &high));
    early.lines_done = 3;
    assert_true(estimate_left(&early, &low, &high));
    early.elapsed_s = 0.9;
    assert_false(estimate_left(&early, &low, &high));
    early.elapsed_s = 0;
    assert_false(estimate_left(&early, &low, &high));
    early.elapsed_s = 1;
    assert_true(estimate_left(&early, &low, &high));
    early.bytes_done = 0;
    assert_false(estimate_left(&early, &low, &high));
    pipe.is_size_known = false;
    assert_false(estimate_left(&pipe, &low, &high));
}

int main(void)
{
    return unit_run(make_lines, remove_all);
}
