/* log.h - messages to the person at the terminal: one line each, on stderr.
 *
 *     hcache: warning: the store is full; saving stops
 *
 * Faults that end a command are not logged here: they travel in a struct err and are printed
 * once, by the command.  A message is written with one write(2), so lines of several threads
 * never mix; line breaks inside a message become spaces.  Any thread may call anything.
 *
 * The level is the one process-wide setting of this program: it belongs to stderr, of which
 * there is one. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum log_level {
    LOG_QUIET, /* nothing */
    LOG_WARN,  /* the default: what the user should act on */
    LOG_INFO,  /* what was decided: plan, limits, sizes */
    LOG_DEBUG,
};

void log_set_level(enum log_level level);
/* Lines begin with the time in UTC, as in "2026-11-22T17:30:05.123Z hcache: ...".
 * Off at the start. */
void log_set_times(bool on);
enum log_level log_level(void);

void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Warns the first time only; `said` belongs to the object that has the trouble (a store that
 * is full warns once per store, not once per process).  Zero at the start. */
void log_warn_once(atomic_bool *said, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The line that would be written, ended by '\n'; returns its length, at most out_bytes - 1. */
size_t log_line(enum log_level level, char *out, size_t out_bytes, const char *fmt,
                va_list ap);

#endif
