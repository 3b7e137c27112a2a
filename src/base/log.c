/* log.c - see log.h. */
#include "base/log.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024

static atomic_int current_level = LOG_WARN;

static atomic_bool has_times;

void log_set_times(bool on)
{
    atomic_store(&has_times, on);
}

void log_set_level(enum log_level level)
{
    atomic_store(&current_level, (int)level);
}

enum log_level log_level(void)
{
    return (enum log_level)atomic_load(&current_level);
}

/* Writes the time in UTC: "2026-11-22T17:30:05.123Z ". */
static void time_now(char *out, size_t n)
{
    struct timespec t;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    size_t at = strftime(out, n, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + at, n - at, ".%03dZ ", (int)(t.tv_nsec / 1000000));
}

size_t log_line(enum log_level level, char *out, size_t out_bytes, const char *fmt,
                va_list ap)
{
    char when[40] = "";
    if (atomic_load(&has_times))
        time_now(when, sizeof when);
    int head = snprintf(out, out_bytes, "%shcache: %s", when,
                        level == LOG_WARN ? "warning: " : "");
    vsnprintf(out + head, out_bytes - (size_t)head - 1, fmt, ap);
    for (char *c = out; *c != 0; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    size_t n = strlen(out);
    out[n++] = '\n';
    out[n] = 0;
    return n;
}

static void say(enum log_level level, const char *fmt, va_list ap)
{
    char line[LINE_BYTES];
    if (log_level() < level)
        return;
    size_t n = log_line(level, line, sizeof line, fmt, ap);
    /* A warning cannot be shown on a terminal that is gone, so a failed write is ignored. */
    if (write(STDERR_FILENO, line, n) < 0)
        return;
}

void log_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(LOG_WARN, fmt, ap);
    va_end(ap);
}

void log_info(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(LOG_INFO, fmt, ap);
    va_end(ap);
}

void log_debug(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(LOG_DEBUG, fmt, ap);
    va_end(ap);
}

void log_warn_once(atomic_bool *said, const char *fmt, ...)
{
    if (atomic_exchange(said, true))
        return;
    va_list ap;
    va_start(ap, fmt);
    say(LOG_WARN, fmt, ap);
    va_end(ap);
}
