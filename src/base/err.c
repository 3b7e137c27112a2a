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
    static _Thread_local char text[96];
    switch (code) {
    case 0:
        return "no error";
    case ERR_FORMAT:
        return "ERR_FORMAT";
    case ERR_UNSUPPORTED:
        return "ERR_UNSUPPORTED";
    case ERR_MISMATCH:
        return "ERR_MISMATCH";
    case ERR_CORRUPT:
        return "ERR_CORRUPT";
    case ERR_LIMIT:
        return "ERR_LIMIT";
    case ERR_NOT_FOUND:
        return "ERR_NOT_FOUND";
    case ERR_USAGE:
        return "ERR_USAGE";
    case ERR_CRASHED:
        return "ERR_CRASHED";
    case ERR_BUSY:
        return "ERR_BUSY";
    case ERR_CANCELLED:
        return "ERR_CANCELLED";
    case ERR_ERASED:
        return "ERR_ERASED";
    default:
        break;
    }
    /* GNU's strerror_r returns the text; it may lie in `text` or in static memory. */
    if (code > -4000 && code < 0)
        return strerror_r(-code, text, sizeof text);
    snprintf(text, sizeof text, "error %d", code);
    return text;
}
