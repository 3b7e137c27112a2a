/* log.h - messages to the person at the terminal: one line each, on stderr.
 *
 *     hcache: warning: the store is full; saving stops
 *
 * A fault that ends a command is not logged here: it travels in a struct err, and the command
 * prints it once.  Each message is one write(2), so lines of several threads never mix; line breaks
 * inside a message become spaces.  Any thread may call any function.
 *
 * The level is one setting for the whole process, because the process has one stderr. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum log_level {
    LOG_QUIET, /* no messages */
    LOG_WARN,  /* the default: also faults that the user should act on */
    LOG_INFO,  /* also decisions: plan, limits, sizes */
    LOG_DEBUG,
};

void log_set_level(enum log_level level);
/* Puts the UTC time before each line: "2026-11-22T17:30:05.123Z hcache: ...". Initially off. */
void log_set_times(bool on);
enum log_level log_level(void);

void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Warns only the first time.  `said` starts as zero and belongs to the object that has the trouble:
 * a full store warns once per store, not once per process. */
void log_warn_once(atomic_bool *said, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Formats the line that would be written, with its '\n'. Returns its length, < out_bytes. */
size_t log_line(enum log_level level, char *out, size_t out_bytes, const char *fmt,
                va_list ap);

#endif
