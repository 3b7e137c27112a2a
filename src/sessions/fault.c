/* fault.c - see fault.h. */
#include "sessions/fault.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static const char *type_of(int status)
{
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 404 ? "not_found_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

int fault_set(struct fault *f, int status, const char *code, const char *param,
              const char *fmt, ...)
{
    va_list ap;
    *f = (struct fault){.status = status, .code = code, .type = type_of(status)};
    snprintf(f->param, sizeof f->param, "%s", param != NULL ? param : "");
    va_start(ap, fmt);
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    return -1;
}

int fault_refuse(struct fault *f, int rc, const char *param, const char *fmt, ...)
{
    char message[sizeof f->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    bool is_short = rc == -ENOMEM;
    return fault_set(f, is_short ? 503 : 400, is_short ? "out_of_memory" : NULL, param,
                     "%s", message);
}

struct json *fault_json(const struct fault *f)
{
    struct json *o = json_new_object(), *e = json_new_object();
    json_put_string(e, "message", f->message);
    json_put_string(e, "type", f->type);
    json_put_string(e, "param", f->param[0] != 0 ? f->param : NULL);
    json_put_string(e, "code", f->code);
    json_put(o, "error", e);
    return o;
}
