/* log.c - see log.h. */
#include "base/log.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 1024

static atomic_int current_level = LOG_WARN;

void log_set_level(enum log_level level)
{
    atomic_store(&current_level, (int)level);
}

enum log_level log_level(void)
{
    return (enum log_level)atomic_load(&current_level);
}

size_t log_line(enum log_level level, char *out, size_t out_bytes, const char *fmt,
                va_list ap)
{
    int head = snprintf(out, out_bytes, "hcache: %s", level == LOG_WARN ? "warning: " : "");
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
    /* A terminal that is gone is nothing that a warning could change. */
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
