/* err.c - see err.h. */
#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int err_setv(struct err *e, int code, const char *fmt, va_list ap)
{
    if (e != NULL) {
        e->code = code;
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    }
    return code;
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err_setv(e, code, fmt, ap);
    va_end(ap);
    return code;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    if (e == NULL)
        return ERR_FORMAT;
    char old[sizeof e->msg];
    memcpy(old, e->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->msg)
        snprintf(e->msg + n, sizeof e->msg - (size_t)n, ": %s", old);
    return e->code;
}

bool err_is_of_disk(int code)
{
    return code == -ENOSPC || code == -EDQUOT || code == -EIO || code == -EROFS ||
           code == -EACCES || code == -EPERM;
}

const char *err_name(int code)
{
#define NAME(own) [ERR_FORMAT - (own)] = #own
    static const char *const names[] = {
        NAME(ERR_FORMAT), NAME(ERR_UNSUPPORTED), NAME(ERR_MISMATCH), NAME(ERR_CORRUPT),
        NAME(ERR_LIMIT),  NAME(ERR_NOT_FOUND),   NAME(ERR_USAGE),    NAME(ERR_CRASHED),
        NAME(ERR_BUSY),   NAME(ERR_CANCELLED),   NAME(ERR_ERASED),
    };
    static _Thread_local char text[96];
    if (code == 0)
        return "no error";
    if (code <= ERR_FORMAT && code >= ERR_ERASED)
        return names[ERR_FORMAT - code];
    /* GNU's strerror_r returns the text; it may lie in `text` or in static memory. */
    if (code > -4000 && code < 0)
        return strerror_r(-code, text, sizeof text);
    snprintf(text, sizeof text, "error %d", code);
    return text;
}
