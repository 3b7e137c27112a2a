/* api_keys.c - see api_keys.h. */
#include "apps/api_keys.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/auth.h"

static void add_key(struct api_keys *k, const char *key)
{
    k->items = xrealloc(k->items, (size_t)(k->n + 1) * sizeof k->items[0]);
    k->items[k->n++] = key;
}

static void warn_if_readable(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
        (st.st_mode & (S_IRGRP | S_IROTH)) != 0)
        log_warn("%s holds API keys and others can read it (mode %04o): chmod 600 it", path,
                 (unsigned)st.st_mode & 07777);
}

/* Returns whether a client can send the key in a header, as one word. A key with blanks or zero
 * bytes could be read as several words, and the server would accept a part of the key. */
static bool is_key(const char *key)
{
    if (strncmp(key, "\xEF\xBB\xBF", 3) == 0)
        return false; /* a byte order mark, which is no part of a key */
    for (const char *p = key; *p != 0; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f)
            return false;
    return *key != 0;
}

/* Returns one line's text without white space at its ends. */
static char *trimmed(char *line)
{
    static const char white[] = " \t\r";
    line += strspn(line, white);
    size_t n = strlen(line);
    while (n > 0 && strchr(white, line[n - 1]) != NULL)
        line[--n] = 0;
    return line;
}

/* Reads a key file.  A file without a key is an error, because the server would be open without
 * keys. */
static int read_file(const char *path, struct api_keys *k, struct err *err)
{
    size_t n;
    char *text = NULL, *next = NULL;
    int rc = file_read(path, 1 << 20, &text, &n, err), before = k->n, number = 0;
    if (rc != 0)
        return rc;
    k->files = xrealloc(k->files, (size_t)(k->n_files + 1) * sizeof k->files[0]);
    k->files[k->n_files++] = text;
    warn_if_readable(path);
    if (strlen(text) != n)
        return err_set(err, ERR_USAGE, "%s holds a zero byte: it is not a list of keys",
                       path);
    for (char *line = text; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = 0;
        number++;
        char *key = trimmed(line);
        if (*key != 0 && !is_key(key))
            return err_set(err, ERR_USAGE,
                           "%s: line %d is not a key: each line holds one key of one word",
                           path, number);
        if (*key != 0)
            add_key(k, key);
    }
    return k->n > before ? 0 : err_set(err, ERR_USAGE, "%s: contains no key", path);
}

int api_keys_add(struct api_keys *k, const struct opt_list *list, const char *option,
                 const char *file, struct err *err)
{
    for (int i = 0; i < list->n; i++) {
        if (list->items[i][0] == 0)
            return err_set(err, ERR_USAGE, "--%s: a key is empty", option);
        if (!is_key(list->items[i]))
            return err_set(err, ERR_USAGE, "--%s: a key is one word", option);
        add_key(k, list->items[i]);
    }
    return file != NULL ? read_file(file, k, err) : 0;
}

void api_keys_deinit(struct api_keys *k)
{
    for (int i = 0; i < k->n_files; i++)
        free(k->files[i]);
    free(k->files);
    free(k->items);
    *k = (struct api_keys){0};
}

/* --- tenants ---------------------------------------------------------------------------------- */

void tenant_names_make(const struct api_keys *k, struct tenant_names *out)
{
    out->n = k->n + 1;
    out->of = xcalloc((size_t)out->n, sizeof out->of[0]);
    for (int i = 0; i < k->n; i++)
        auth_salt(k->items[i], out->of[i + 1]);
}

void tenant_names_deinit(struct tenant_names *t)
{
    free(t->of);
    *t = (struct tenant_names){0};
}
