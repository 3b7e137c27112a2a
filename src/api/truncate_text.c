/* truncate_text.c - reads a truncation's text. Pure; the parser of requests needs it without the
 * engine. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "hcache.h"

/* A struct hcache_err is a struct err (api/hcache_impl.h). */
static struct err *inner(struct hcache_err *e)
{
    return (struct err *)(void *)e;
}

/* Reads NAME=NUMBER. Fails if the number was given before. */
static bool read_count(const char *text, const char *name, int *out)
{
    size_t n = strlen(name);
    char *end;
    if (strncmp(text, name, n) != 0 || text[n] != '=')
        return false;
    long v = strtol(text + n + 1, &end, 10);
    if (*out != 0 || end == text + n + 1 || (*end != 0 && *end != ',') || v < 1 ||
        v > 1 << 30)
        return false;
    *out = (int)v;
    return true;
}

/* Reads the ratio, a decimal number. Fails if it was given before. */
static bool read_ratio(const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);
    bool is_decimal = text + strspn(text, "0123456789.eE-") == end;
    if (*out != 0 || !is_decimal || end == text || (*end != 0 && *end != ',') ||
        !(v > 0 && v < 1))
        return false;
    *out = v;
    return true;
}

int hcache_truncation_parse(const char *text, struct hcache_truncation *out,
                            struct hcache_err *err)
{
    *out = (struct hcache_truncation){0};
    if (strcmp(text, "off") == 0)
        return 0;
    for (const char *at = text; at != NULL;) {
        if (!read_count(at, "keep", &out->keep) &&
            !read_count(at, "context", &out->context) && !read_ratio(at, &out->ratio))
            return err_set(
                inner(err), ERR_USAGE,
                "truncate '%s': must be off, or a ratio above 0 and below 1, then "
                "keep=K and context=C",
                text);
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return out->ratio > 0 ? 0
                          : err_set(inner(err), ERR_USAGE,
                                    "truncate '%s': the ratio is missing", text);
}
