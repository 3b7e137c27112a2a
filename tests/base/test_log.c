/* test_log.c - messages and progress: one line each, and progress on a terminal only. */
#include "tests/unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"
#include "tests/base/said.h"

TEST(levels_hide_and_show)
{
    static const struct {
        enum log_level level;
        const char *text;
    } cases[] = {{LOG_QUIET, ""},
                 {LOG_WARN, "hcache: warning: w 1\n"},
                 {LOG_INFO, "hcache: warning: w 1\nhcache: i 2\n"},
                 {LOG_DEBUG, "hcache: warning: w 1\nhcache: i 2\nhcache: d 3\n"}};
    assert_int_equal(log_level(), LOG_WARN);
    for (size_t i = 0; i < 4; i++) {
        said_begin(cases[i].level);
        log_warn("w %d", 1);
        log_info("i %d", 2);
        log_debug("d %d", 3);
        assert_string_equal(said_end(), cases[i].text);
    }
}

TEST(a_message_is_one_line)
{
    said_begin(LOG_WARN);
    log_warn("two\nlines\r\n");
    assert_string_equal(said_end(), "hcache: warning: two lines  \n");
}

TEST(a_long_message_is_cut)
{
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    said_begin(LOG_WARN);
    log_warn("%s", big);
    const char *text = said_end();
    assert_int_equal(strlen(text), 1023);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

static size_t line(enum log_level level, char *out, size_t out_bytes, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static size_t line(enum log_level level, char *out, size_t out_bytes, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    size_t n = log_line(level, out, out_bytes, fmt, ap);
    va_end(ap);
    return n;
}

/* No byte behind the room is written, and the line break always has its place. */
TEST(a_line_stays_within_its_room)
{
    for (size_t room = 20; room < 40; room++) {
        char out[64];
        memset(out, '#', sizeof out);
        size_t n = line(LOG_INFO, out, room, "%s", "0123456789012345678");
        assert_int_equal(n, room - 1 < 8 + 19 + 1 ? room - 1 : 8 + 19 + 1);
        assert_int_equal(out[n - 1], '\n');
        assert_int_equal(out[n], 0);
        assert_int_equal(strlen(out), n);
        for (size_t i = room; i < sizeof out; i++)
            assert_int_equal(out[i], '#');
    }
}

/* A line begins with the time in UTC if this is asked for. */
TEST(lines_may_have_their_time)
{
    char out[100];
    struct tm tm = {0};
    log_set_times(true);
    time_t before = time(NULL);
    size_t n = line(LOG_WARN, out, sizeof out, "w %d", 1);
    log_set_times(false);
    const char *rest = strptime(out, "%Y-%m-%dT%H:%M:%S", &tm);
    assert_non_null(rest);
    assert_in_range(timegm(&tm) - before + 1, 0, 60);
    assert_int_equal(strspn(rest + 1, "0123456789"), 3);
    assert_string_equal(rest + 4, "Z hcache: warning: w 1\n");
    assert_int_equal(rest[0], '.');
    assert_int_equal(n, strlen(out));
    (void)line(LOG_WARN, out, sizeof out, "w %d", 1);
    assert_string_equal(out, "hcache: warning: w 1\n");
}

TEST(once_is_once_per_object)
{
    atomic_bool a = false, b = false;
    said_begin(LOG_WARN);
    for (int i = 0; i < 3; i++) {
        log_warn_once(&a, "a %d", i);
        log_warn_once(&b, "b %d", i);
    }
    assert_string_equal(said_end(), "hcache: warning: a 0\nhcache: warning: b 0\n");
}

TEST(progress_says_how_far)
{
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
    p = (struct progress){.label = "files", .unit = PROGRESS_BYTES};
    progress_text(&p, 7u << 20, 4000000000, t, sizeof t);
    assert_string_equal(t, "files  7 MiB");
    /* the time that is left is told after one second, and at the end */
    p = (struct progress){.label = "files", .total = 4};
    progress_text(&p, 1, 999999999, t, sizeof t);
    assert_string_equal(t, "files  25%  1/4");
    progress_text(&p, 1, 1000000000, t, sizeof t);
    assert_string_equal(t, "files  25%  1/4  3 s left");
    progress_text(&p, 4, 1000000000, t, sizeof t);
    assert_string_equal(t, "files  100%  4/4  0 s left");
    /* no byte behind the room is written */
    for (size_t room = 1; room < 30; room++) {
        memset(t, '#', sizeof t);
        progress_text(&p, 1, 1000000000, t, room);
        assert_int_equal(strlen(t), room - 1 < 25 ? room - 1 : 25);
        assert_int_equal(t[room > 26 ? 26 : room], '#');
    }
}

/* Returns what the terminal has been sent since the last call. */
static const char *sent_to(int terminal)
{
    static char text[1000];
    ssize_t n = read(terminal, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    return text;
}

/* On a terminal a line is drawn, after 100 ms again, and removed at the end. */
TEST(progress_is_drawn_on_a_terminal)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) {
        print_message("skipped: there are no pseudo-terminals here\n");
        skip();
    }
    int line_fd = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    int own = dup(STDERR_FILENO);
    assert_true(line_fd >= 0 && own >= 0);
    fflush(stderr);
    dup2(line_fd, STDERR_FILENO);
    char drawn[3][100];
    struct progress p;
    int64_t start = clock_now_ns();
    progress_begin(&p, "working", PROGRESS_ITEMS, 10);
    struct progress begun = p;
    p.drawn_ns = clock_now_ns() + 3600000000000; /* as if it were just drawn */
    progress_at(&p, 4);
    snprintf(drawn[0], 100, "%s", sent_to(terminal));
    p.drawn_ns = 0;
    progress_at(&p, 5);
    snprintf(drawn[1], 100, "%s", sent_to(terminal));
    struct progress after = p;
    progress_end(&p);
    snprintf(drawn[2], 100, "%s", sent_to(terminal));
    progress_end(&p);
    const char *more = sent_to(terminal);
    dup2(own, STDERR_FILENO);
    close(own);
    close(line_fd);
    close(terminal);
    assert_true(begun.shown && !begun.drawn && begun.start_ns >= start);
    assert_int_equal(begun.drawn_ns, begun.start_ns);
    assert_string_equal(drawn[0], "");
    assert_string_equal(drawn[1], "\rworking  50%  5/10\x1b[K");
    assert_true(after.drawn && after.drawn_ns >= begun.start_ns);
    assert_string_equal(drawn[2], "\r\x1b[K");
    assert_false(p.drawn);
    assert_string_equal(more, "");
}

TEST(progress_is_silent_without_a_terminal)
{
    struct progress p;
    said_begin(LOG_WARN);
    progress_begin(&p, "working", PROGRESS_ITEMS, 10);
    p.drawn_ns = 0; /* as if the last redraw were long ago */
    progress_at(&p, 5);
    progress_end(&p);
    assert_string_equal(said_end(), "");
}
