/* medium.c - see medium.h. */
#include "apps/medium.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/io.h"
#include "io/io_erase.h"

/* Returns whether a file of the folder shares blocks with another file. */
static bool shares_blocks(struct io *io, const char *dir, char *why, size_t n)
{
    struct io_names names;
    bool shared = false;
    if (io_list(io, dir, &names, NULL) != 0)
        return false;
    for (size_t i = 0; i < names.n && !shared; i++) {
        struct io_file *f = NULL;
        char *path = xasprintf("%s/%s", dir, names.name[i]);
        if (io_file_open(io, path, IO_READ_ONLY, &f, NULL) == 0)
            shared = io_file_is_shared(f);
        if (shared)
            snprintf(why, n, "%s shares blocks with a copy (reflink)", names.name[i]);
        io_file_close(f);
        free(path);
    }
    io_names_free(&names);
    return shared;
}

bool medium_check(const char *dir, char *why, size_t n)
{
    struct io *io = io_pread_open();
    bool in_place = io_medium_check(io, dir, why, n) && !shares_blocks(io, dir, why, n);
    io_close(io);
    return in_place;
}

void medium_warn(const char *dir)
{
    char why[160];
    if (!medium_check(dir, why, sizeof why))
        log_warn("%s: erased bytes may stay on the medium: %s (SECURITY.md)", dir, why);
}
