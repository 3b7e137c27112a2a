/* fault.c - see fault.h. */
#include "api/fault.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

static const char *type_of(int status)
{
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 404 ? "not_found_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

/* Writes fmt with "%.0s..." in place of each "%s" or "%.80s", so that the text is printed as
 * "...". "%-s" and numbers stay. A format that does not fit is cut before a conversion. */
static void hide_texts(const char *fmt, char *out, size_t out_bytes)
{
    static const char hidden[] = "%.0s...";
    size_t n = 0;
    while (*fmt != 0) {
        size_t length = 1;
        if (*fmt == '%') {
            length += strcspn(fmt + 1, "diuxzlcsgf%");
            length += strspn(fmt + length, "zl") + 1;
        }
        bool is_hidden = *fmt == '%' && fmt[length - 1] == 's' && fmt[1] != '-';
        size_t takes = is_hidden ? sizeof hidden - 1 : length;
        if (n + takes >= out_bytes)
            break;
        memcpy(out + n, is_hidden ? hidden : fmt, takes);
        n += takes;
        fmt += length;
    }
    out[n] = 0;
}

/* Sets message and reason. Both begin with `begin`, which is short. */
static void set_texts(struct fault *f, const char *begin, const char *fmt, va_list ap)
{
    char format[sizeof f->message];
    int n = snprintf(f->message, sizeof f->message, "%s", begin);
    int m = snprintf(f->reason, sizeof f->reason, "%s", begin);
    CHECK(m >= 0 && m < (int)sizeof f->reason);
    va_list again;
    va_copy(again, ap);
    vsnprintf(f->message + n, sizeof f->message - (size_t)n, fmt, ap);
    hide_texts(fmt, format, sizeof format);
    vsnprintf(f->reason + m, sizeof f->reason - (size_t)m, format, again);
    va_end(again);
}

static void set_kind(struct fault *f, int status, const char *code, const char *param)
{
    *f = (struct fault){.status = status, .code = code, .type = type_of(status)};
    snprintf(f->param, sizeof f->param, "%s", param != NULL ? param : "");
}

int fault_set(struct fault *f, int status, const char *code, const char *param,
              const char *fmt, ...)
{
    va_list ap;
    set_kind(f, status, code, param);
    va_start(ap, fmt);
    set_texts(f, "", fmt, ap);
    va_end(ap);
    return -1;
}

int fault_refuse(struct fault *f, int rc, const char *param, const char *fmt, ...)
{
    bool is_short = rc == -ENOMEM;
    va_list ap;
    set_kind(f, is_short ? 503 : 400, is_short ? "out_of_memory" : NULL, param);
    va_start(ap, fmt);
    set_texts(f, "", fmt, ap);
    va_end(ap);
    return -1;
}

int fault_field(struct fault *f, const char *param, const char *fmt, ...)
{
    char begin[sizeof f->param + 3];
    va_list ap;
    set_kind(f, 400, NULL, param);
    snprintf(begin, sizeof begin, "'%s' ", f->param);
    va_start(ap, fmt);
    set_texts(f, begin, fmt, ap);
    va_end(ap);
    return -1;
}

int fault_too_long(struct fault *f, int64_t n_prompt, int n_context)
{
    f->n_prompt = n_prompt;
    f->n_context = n_context;
    return -1;
}

struct json *fault_json(const struct fault *f)
{
    struct json *e = json_make("{message: %s, type: %s, param: %s, code: %s}", f->message,
                               f->type, f->param[0] != 0 ? f->param : NULL, f->code);
    if (f->n_context > 0)
        json_extend(e, "{n_prompt_tokens: %ld, n_ctx: %d}", f->n_prompt, f->n_context);
    return json_make("{error: %p}", e);
}
