/* tempdir.c - see tempdir.h. */
#include "tests/base/tempdir.h"

#include "tests/unit.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void make(char out[TEMPDIR_BYTES], const char *base, const char *name)
{
    int n = snprintf(out, TEMPDIR_BYTES, "%s/hcache-%s.XXXXXX", base, name);
    if (n >= TEMPDIR_BYTES)
        fail_msg("TMPDIR has a path of %zu bytes, too long for a test", strlen(base));
    if (mkdtemp(out) == NULL)
        fail_msg("%s: %s; TMPDIR says where tests may write", out, strerror(errno));
}

static const char *tmpdir_or(const char *other)
{
    const char *base = getenv("TMPDIR");
    return base != NULL && base[0] != 0 ? base : other;
}

void tempdir_make(char out[TEMPDIR_BYTES], const char *name)
{
    make(out, tmpdir_or("/tmp"), name);
}

void tempdir_make_on_disk(char out[TEMPDIR_BYTES], const char *name)
{
    const char *base = tmpdir_or("build");
    (void)mkdir(base, 0700); /* usually the folder exists */
    make(out, base, name);
}

static int remove_one(const char *path, const struct stat *st, int what, struct FTW *at)
{
    (void)st, (void)what, (void)at;
    return remove(path);
}

void tempdir_remove(const char *dir)
{
    if (nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0)
        fail_msg("%s cannot be removed: %s", dir, strerror(errno));
}

int tempdir_end(void **state)
{
    tempdir_remove(*state);
    return 0;
}
