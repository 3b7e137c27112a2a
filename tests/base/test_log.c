/* test_log.c - messages and progress: one line each, and progress on a terminal only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/progress.h"

/* Captures the bytes written to stderr between begin and end. */
struct capture {
    FILE *file;
    int saved_fd;
    char text[4096];
};

static void capture_begin(struct capture *c)
{
    fflush(stderr);
    c->file = fdopen(memfd_create("stderr", 0), "w+");
    assert_non_null(c->file);
    c->saved_fd = dup(STDERR_FILENO);
    dup2(fileno(c->file), STDERR_FILENO);
}

static const char *capture_end(struct capture *c)
{
    fflush(stderr);
    dup2(c->saved_fd, STDERR_FILENO);
    close(c->saved_fd);
    rewind(c->file);
    size_t n = fread(c->text, 1, sizeof c->text - 1, c->file);
    c->text[n] = 0;
    fclose(c->file);
    return c->text;
}

static void levels_hide_and_show(void **state)
{
    (void)state;
    static const struct {
        enum log_level level;
        const char *text;
    } cases[] = {{LOG_QUIET, ""},
                 {LOG_WARN, "hcache: warning: w 1\n"},
                 {LOG_INFO, "hcache: warning: w 1\nhcache: i 2\n"},
                 {LOG_DEBUG, "hcache: warning: w 1\nhcache: i 2\nhcache: d 3\n"}};
    assert_int_equal(log_level(), LOG_WARN);
    for (size_t i = 0; i < 4; i++) {
        struct capture c;
        capture_begin(&c);
        log_set_level(cases[i].level);
        log_warn("w %d", 1);
        log_info("i %d", 2);
        log_debug("d %d", 3);
        assert_string_equal(capture_end(&c), cases[i].text);
    }
    log_set_level(LOG_WARN);
}

static void a_message_is_one_line(void **state)
{
    (void)state;
    struct capture c;
    capture_begin(&c);
    log_warn("two\nlines\r\n");
    assert_string_equal(capture_end(&c), "hcache: warning: two lines  \n");
}

static void a_long_message_is_cut(void **state)
{
    (void)state;
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    struct capture c;
    capture_begin(&c);
    log_warn("%s", big);
    const char *text = capture_end(&c);
    assert_in_range(strlen(text), 500, 1100);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

static void once_is_once_per_object(void **state)
{
    (void)state;
    atomic_bool a = false, b = false;
    struct capture c;
    capture_begin(&c);
    for (int i = 0; i < 3; i++) {
        log_warn_once(&a, "a %d", i);
        log_warn_once(&b, "b %d", i);
    }
    assert_string_equal(capture_end(&c), "hcache: warning: a 0\nhcache: warning: b 0\n");
}

static void progress_says_how_far(void **state)
{
    (void)state;
    char t[100];
    struct progress p = {.label = "loading", .unit = PROGRESS_BYTES, .total = 400u << 20};
    progress_text(&p, 172u << 20, 4000000000, t, sizeof t);
    assert_string_equal(t, "loading  43%  172/400 MiB  5 s left");
    progress_text(&p, 0, 4000000000, t, sizeof t);
    assert_string_equal(t, "loading  0%  0/400 MiB");
    progress_text(&p, 500u << 20, 0, t, sizeof t);
    assert_string_equal(t, "loading  100%  400/400 MiB");
    p = (struct progress){.label = "files"};
    progress_text(&p, 7, 0, t, sizeof t);
    assert_string_equal(t, "files  7");
}

static void progress_is_silent_without_a_terminal(void **state)
{
    (void)state;
    struct capture c;
    struct progress p;
    capture_begin(&c);
    progress_begin(&p, "working", PROGRESS_ITEMS, 10);
    p.drawn_ns = 0; /* as if the last redraw were long ago */
    progress_at(&p, 5);
    progress_end(&p);
    assert_string_equal(capture_end(&c), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_hide_and_show),
        cmocka_unit_test(a_message_is_one_line),
        cmocka_unit_test(a_long_message_is_cut),
        cmocka_unit_test(once_is_once_per_object),
        cmocka_unit_test(progress_says_how_far),
        cmocka_unit_test(progress_is_silent_without_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
