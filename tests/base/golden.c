/* golden.c - see golden.h. */
#include "tests/base/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/hash.h"

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

enum { DIGEST_LINES = 100 };

/* Adds a line "NAME LINE DIGEST" for each 100 lines of the text. */
static void add_digests(struct textbuf *out, const struct textbuf *text, const char *name)
{
    for (const char *x = text->p; *x != 0;) {
        const char *begin = x;
        for (int i = 0; i < DIGEST_LINES && *x != 0; i++)
            x += strcspn(x, "\n") + 1;
        int first = 1;
        for (const char *p = text->p; p < begin; p++)
            first += *p == '\n';
        textbuf_addf(out, "%s %d %016llx\n", name, first,
                     (unsigned long long)checksum64(begin, (size_t)(x - begin)));
    }
}

/* Copies the lines of `from` that begin with `name` and a space, or all others. */
static void copy_lines(struct textbuf *out, const struct textbuf *from, const char *name,
                       bool of_name)
{
    size_t n_name = strlen(name);
    for (const char *x = from->n > 0 ? from->p : ""; *x != 0;) {
        size_t n = strcspn(x, "\n") + 1;
        if ((strncmp(x, name, n_name) == 0 && x[n_name] == ' ') == of_name)
            textbuf_add(out, x, n);
        x += n;
    }
}

void golden_digests(struct textbuf *text, const char *path, const char *name)
{
    struct textbuf file = {0}, want = {0}, got = {0};
    const char *dir = getenv("HCACHE_GOLDEN_TEXTS");
    if (dir != NULL) {
        char text_path[4096];
        snprintf(text_path, sizeof text_path, "%s/%s.txt", dir, name);
        write_file(text, text_path);
    }
    read_file(&file, path);
    add_digests(&got, text, name);
    if (getenv("HCACHE_WRITE_GOLDEN") != NULL) {
        copy_lines(&want, &file, name, false);
        textbuf_add(&want, got.p, got.n);
        write_file(&want, path);
    } else {
        copy_lines(&want, &file, name, true);
        if (want.n != got.n || memcmp(want.p, got.p, got.n) != 0)
            fail_msg("%s: the digests of %s were\n%sand are\n%s", path, name,
                     want.n > 0 ? want.p : "", got.p);
    }
    textbuf_free(&file);
    textbuf_free(&want);
    textbuf_free(&got);
    textbuf_free(text);
}
