/* golden.c - see golden.h. */
#include "tests/base/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void write_file(const struct textbuf *text, const char *path)
{
    FILE *f = fopen(path, "w");
    if (f == NULL || fwrite(text->p, 1, text->n, f) != text->n || fclose(f) != 0)
        fail_msg("%s cannot be written", path);
}

static void read_file(struct textbuf *text, const char *path)
{
    char piece[4096];
    FILE *f = fopen(path, "r");
    if (f == NULL)
        fail_msg("%s cannot be read", path);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
        textbuf_add(text, piece, n);
    fclose(f);
}

void golden_check(struct textbuf *text, const char *path)
{
    struct textbuf want = {0};
    if (getenv("HCACHE_WRITE_GOLDEN") != NULL) {
        write_file(text, path);
        textbuf_free(text);
        return;
    }
    read_file(&want, path);
    const char *x = want.p, *y = text->p;
    for (int line = 1; *x != 0 || *y != 0; line++) {
        int n_x = (int)strcspn(x, "\n"), n_y = (int)strcspn(y, "\n");
        if (n_x != n_y || memcmp(x, y, (size_t)n_x) != 0)
            fail_msg(
                "%s, line %d: \"%.*s\" was\n\"%.*s\"\n(HCACHE_WRITE_GOLDEN=1 takes the "
                "new text)",
                path, line, n_y, y, n_x, x);
        x += n_x + (x[n_x] != 0);
        y += n_y + (y[n_y] != 0);
    }
    textbuf_free(&want);
    textbuf_free(text);
}
