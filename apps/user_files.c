/* user_files.c - see user_files.h. */
#include "apps/user_files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

char *user_file(const char *name)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state != NULL && state[0] == '/')
        return xasprintf("%s/hcache/%s", state, name);
    return home != NULL && home[0] == '/'
               ? xasprintf("%s/.local/state/hcache/%s", home, name)
               : NULL;
}

void user_file_make_folders(const char *path)
{
    char *copy = xstrdup(path);
    for (char *p = strchr(copy + 1, '/'); p != NULL; p = strchr(p + 1, '/')) {
        *p = 0;
        (void)mkdir(copy, 0700);
        *p = '/';
    }
    free(copy);
}
