/* token_ids.c - see token_ids.h. */
#include "apps/token_ids.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool is_separator(char c)
{
    return isspace((unsigned char)c) || c == ',' || c == '[' || c == ']';
}

int token_ids_parse(const char *text, size_t n, const char *name, int32_t **ids,
                    size_t *n_ids, struct err *err)
{
    *ids = xmalloc((n / 2 + 1) * sizeof **ids);
    *n_ids = 0;
    for (const char *s = text; s < text + n;) {
        if (is_separator(*s)) {
            s++;
            continue;
        }
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s || errno != 0 || v < 0 || v > INT32_MAX ||
            (end < text + n && !is_separator(*end))) {
            free(*ids);
            *ids = NULL;
            return err_set(err, ERR_FORMAT, "%s: \"%.*s\" at byte %zu is not a token id",
                           name, (int)strcspn(s, " \n\t,"), s, (size_t)(s - text));
        }
        (*ids)[(*n_ids)++] = (int32_t)v;
        s = end;
    }
    return 0;
}
