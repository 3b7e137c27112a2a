/* hub.c - see hub.h. */
#include "apps/hub.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/mem.h"

char *hub_folder(const char *given)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (given != NULL)
        return xstrdup(given);
    if (cache != NULL && cache[0] == '/')
        return xasprintf("%s/hcache/models", cache);
    return home != NULL && home[0] == '/' ? xasprintf("%s/.cache/hcache/models", home)
                                          : NULL;
}

/* Copies a part of a name, which may have letters, digits and "._-", and does not begin with a dot. */
static bool copy_part(const char *from, size_t n, char *to, size_t room)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (n == 0 || n >= room || from[0] == '.' || strspn(from, allowed) < n)
        return false;
    memcpy(to, from, n);
    to[n] = 0;
    return true;
}

int hub_name_read(const char *text, struct hub_name *out, struct err *err)
{
    const char *slash = strchr(text, '/'), *colon = strchr(text, ':');
    const char *end = colon != NULL ? colon : text + strlen(text);
    *out = (struct hub_name){{0}, {0}, {0}};
    if (slash != NULL && slash < end &&
        copy_part(text, (size_t)(slash - text), out->owner, sizeof out->owner) &&
        copy_part(slash + 1, (size_t)(end - slash - 1), out->repo, sizeof out->repo) &&
        (colon == NULL ||
         copy_part(colon + 1, strlen(colon + 1), out->type, sizeof out->type)))
        return 0;
    return err_set(
        err, ERR_USAGE,
        "'%.200s' is no name of a model: write OWNER/REPO, or OWNER/REPO:TYPE as in "
        "SomeOne/Model-GGUF:Q4_K_M",
        text);
}

bool hub_file_is(const char *file, const char *type)
{
    size_t n = strlen(file), n_type = strlen(type);
    const char *part = strstr(file, "-of-");
    if (n < 6 || strcasecmp(file + n - 5, ".gguf") != 0 || file[0] == '.')
        return false;
    if (part != NULL && part - file >= 6 && strncmp(part - 6, "-00001", 6) != 0)
        return false; /* a later part */
    for (const char *at = file; n_type > 0; at++) {
        if (strlen(at) < n_type)
            return false;
        bool begins = at == file || strchr("-._", at[-1]) != NULL;
        if (begins && strncasecmp(at, type, n_type) == 0 &&
            strchr("-.", at[n_type]) != NULL)
            return true;
    }
    return true;
}

int hub_find(const char *text, const char *folder, char **path, struct err *err)
{
    struct hub_name name;
    *path = NULL;
    if (text == NULL || access(text, F_OK) == 0 || strncmp(text, "synth:", 6) == 0 ||
        hub_name_read(text, &name, NULL) != 0)
        return 0;
    char *root = hub_folder(folder);
    char *dir = xasprintf("%s/%s/%s", root != NULL ? root : "", name.owner, name.repo);
    DIR *d = opendir(dir);
    bool is_checkpoint = false;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        is_checkpoint |= strcmp(e->d_name, "config.json") == 0;
        /* Among several files the first one by name is taken: the answer is always the same. */
        if (!hub_file_is(e->d_name, name.type))
            continue;
        char *one = xasprintf("%s/%s", dir, e->d_name);
        bool is_better = *path == NULL || strcmp(one, *path) < 0;
        free(is_better ? *path : one);
        if (is_better)
            *path = one;
    }
    if (d != NULL)
        closedir(d);
    if (*path == NULL && is_checkpoint && name.type[0] == 0)
        *path = xstrdup(dir);
    int rc = *path != NULL
                 ? 0
                 : err_set(
                       err, ERR_NOT_FOUND,
                       "%s: there is no such file, and no such model in %s: fetch it with "
                       "`hcache pull %s`",
                       text, root != NULL ? root : "the cache folder", text);
    free(dir);
    free(root);
    return rc;
}
