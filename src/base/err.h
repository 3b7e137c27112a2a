/* err.h - one error convention for the whole program.
 *
 * A function that can fail returns an int: 0 or a negative code, which is either -errno or one of
 * the ERR_ codes below.  The message is made once, where the fault is seen.  It travels in a
 * `struct err` that the caller of an open, load or restore owns.  A NULL err pointer is allowed
 * everywhere; the code is then the only report.
 *
 * Bugs are not errors: see check.h. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>

enum {
    ERR_FORMAT = -4001,      /* bytes do not follow their format */
    ERR_UNSUPPORTED = -4002, /* well formed, but this build does not support it */
    ERR_MISMATCH = -4003,    /* two well-formed things do not belong together */
    ERR_CORRUPT = -4004,     /* a checksum or a self-description does not match */
    ERR_LIMIT = -4005,       /* a configured limit is reached */
    ERR_NOT_FOUND = -4006,   /* the named thing does not exist */
    ERR_USAGE = -4007,       /* invalid arguments from the caller (exit code 2) */
    ERR_CRASHED = -4008,     /* the simulated disk has lost power */
    ERR_BUSY = -4009,        /* another process or thread holds the file or the store */
    ERR_CANCELLED = -4010,   /* the caller asked for the end of the work */
    ERR_ERASED = -4011,      /* the data were erased meanwhile */
};

struct err {
    int code;
    char msg[508];
};

/* Sets code and message. Returns `code`, so that callers can write `return err_set(e, ...)`. */
int err_set(struct err *e, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int err_setv(struct err *e, int code, const char *fmt, va_list ap);

/* Puts "CONTEXT: " before the message. Returns e's code; ERR_FORMAT if e is NULL. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns true if the code says that a disk or its permissions refuse a file: no space, no right to
 * it, a read-only file system, a failing device.  A server continues without the file. */
bool err_is_of_disk(int code);

/* Returns "ERR_CORRUPT" and the like, or strerror's text. It is static or thread-local. */
const char *err_name(int code);

#endif
