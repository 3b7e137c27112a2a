/* check.c - see check.h. */
#include "base/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static void (*end_hook)(void *arg, const char *why);
static void *end_arg;
static atomic_flag has_ended = ATOMIC_FLAG_INIT;

void check_on_end(void (*hook)(void *arg, const char *why), void *arg)
{
    end_hook = hook;
    end_arg = arg;
}

void check_tell_end(const char *why)
{
    fprintf(stderr, "hcache: %s\n", why);
    if (end_hook != NULL && !atomic_flag_test_and_set(&has_ended))
        end_hook(end_arg, why);
}

void check_failed(const char *file, int line, const char *what)
{
    char why[512];
    snprintf(why, sizeof why, "internal error at %s:%d: %s does not hold", file, line,
             what);
    check_tell_end(why);
    abort();
}
