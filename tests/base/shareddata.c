/* shareddata.c - see shareddata.h. */
#include "tests/base/shareddata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit.h"

bool shared_data(const char *name, char out[SHARED_PATH_BYTES])
{
    const char *folder = getenv("HCACHE_SHARED");
    snprintf(out, SHARED_PATH_BYTES, "%s/%s", folder != NULL ? folder : "../shared", name);
    return access(out, R_OK) == 0;
}

bool shared_data_has(const char *names, const char *test)
{
    char name[200], path[SHARED_PATH_BYTES];
    for (size_t n; (n = strcspn(names, " ")) > 0; names += n + (names[n] == ' ')) {
        snprintf(name, sizeof name, "%.*s", (int)n, names);
        if (shared_data(name, path))
            continue;
        print_message("%s is not here: %s is left out\n", path, test);
        return false;
    }
    return true;
}
