/* shareddata.c - see shareddata.h. */
#include "tests/base/shareddata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/mem.h"

bool shared_data(const char *name, char out[SHARED_PATH_BYTES])
{
    const char *folder = getenv("HCACHE_SHARED");
    snprintf(out, SHARED_PATH_BYTES, "%s/%s", folder != NULL ? folder : "../shared", name);
    return access(out, R_OK) == 0;
}

int run_with_shared_data(const struct CMUnitTest *tests, size_t n,
                         const struct CMUnitTest *extra, size_t n_extra,
                         const char *const *names)
{
    char path[SHARED_PATH_BYTES];
    for (int i = 0; names[i] != NULL && n_extra > 0; i++) {
        if (shared_data(names[i], path))
            continue;
        print_message("%s is not here: %zu comparisons with real data are left out\n", path,
                      n_extra);
        n_extra = 0;
    }
    struct CMUnitTest *all = xcalloc(n + n_extra, sizeof *all);
    memcpy(all, tests, n * sizeof *all);
    if (n_extra > 0)
        memcpy(all + n, extra, n_extra * sizeof *all);
    int rc = _cmocka_run_group_tests("tests", all, n + n_extra, NULL, NULL);
    free(all);
    return rc;
}
