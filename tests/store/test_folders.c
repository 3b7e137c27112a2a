/* test_folders.c - the directories given to a store: one directory under two names, directories and
 * files of other users, links. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "io/io.h"
#include "storetest.h"

static const struct st_ctx ctx = {1, 2, 2, 0, NULL};

/* Opens a store that must not open; the message must contain `text`. */
static void refused_pair(const struct st_place *p, const char *a, const char *b)
{
    struct store_opts opts = p->opts;
    const char *dirs[] = {a, b};
    opts.dirs = dirs;
    opts.n_dirs = 2;
    st_refused(&opts, ERR_USAGE, "the same folder");
    opts.read_only = true;
    st_refused(&opts, ERR_USAGE, "the same folder");
}

/* Two devices in one directory would overwrite each other.  A directory is recognized under any of
 * its names. */
TEST(one_folder_under_two_names)
{
    struct st_place p;
    char dir[400], other[400];
    assert_true(st_place_open(&p, "pread", 1));
    snprintf(dir, sizeof dir, "%s/new", p.root);
    assert_int_equal(io_mkdir(p.io, dir, NULL), 0);
    snprintf(other, sizeof other, "%s/new/", p.root);
    refused_pair(&p, dir, other);
    snprintf(other, sizeof other, "%s/../%s/new", p.root, strrchr(p.root, '/') + 1);
    refused_pair(&p, dir, other);
    snprintf(other, sizeof other, "%s/link", p.root);
    assert_int_equal(symlink("new", other), 0);
    refused_pair(&p, other, dir);
    /* the same directory by a relative and an absolute path */
    char *here = getcwd(NULL, 0), *whole = realpath(dir, NULL);
    assert_int_equal(chdir(p.root), 0);
    refused_pair(&p, "new", whole);
    assert_int_equal(chdir(here), 0);
    free(here);
    free(whole);
    /* A directory that opening itself would create. */
    assert_int_equal(io_unlink(p.io, dir, NULL), 0);
    snprintf(other, sizeof other, "%s/new/", p.root);
    struct store_opts opts = p.opts;
    const char *fresh[] = {dir, other};
    opts.dirs = fresh;
    opts.n_dirs = 2;
    st_refused(&opts, ERR_USAGE, "the same folder");
    /* the directory that opening had created is removed again */
    assert_false(io_exists(p.io, dir));
    st_place_close(&p);
}

TEST(bind_mounts)
{
    struct st_place p;
    char dir[400], other[400];
    assert_true(st_place_open(&p, "pread", 1));
    snprintf(dir, sizeof dir, "%s/a", p.root);
    snprintf(other, sizeof other, "%s/b", p.root);
    assert_int_equal(io_mkdir(p.io, dir, NULL), 0);
    assert_int_equal(io_mkdir(p.io, other, NULL), 0);
    if (mount(dir, other, NULL, MS_BIND, NULL) != 0) {
        print_message("nothing can be mounted here: %s\n", strerror(errno));
        st_place_close(&p);
        skip();
    }
    refused_pair(&p, dir, other);
    assert_int_equal(umount2(other, MNT_DETACH), 0);
    st_place_close(&p);
}

/* A link in place of one of the store's files is not followed, and its target is not changed. */
TEST(links_are_not_followed)
{
    static const char *const names[] = {"lock", "superblock", "index.db", "seg-000000.hc"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct st_place p;
        struct stat st;
        struct err err = {0};
        char path[600], target[600];
        struct store *s = st_begin(&p, "pread", 1);
        assert_int_equal(st_save(s, &st_small, &ctx, 2, ST_BOTH, &err), 0);
        store_close(s);
        snprintf(path, sizeof path, "%s/%s", p.dirs[0], names[i]);
        snprintf(target, sizeof target, "%s/target", p.root);
        assert_int_equal(rename(path, target), 0);
        assert_int_equal(stat(target, &st), 0);
        char *whole = realpath(target, NULL);
        assert_int_equal(symlink(whole, path), 0);
        free(whole);
        int rc = store_open(&p.opts, &s, &err);
        assert_int_not_equal(rc, 0);
        if (strstr(err.msg, "symbolic link") == NULL && strcmp(names[i], "index.db") != 0)
            fail_msg("%s: %s", names[i], err.msg);
        struct stat after;
        assert_int_equal(stat(target, &after), 0);
        assert_true(after.st_size == st.st_size && after.st_mtime == st.st_mtime);
        st_place_close(&p);
    }
}

/* Opens the store in a child process as another user. Returns 0 if the store was refused because of
 * that user. */
static int opened_as(const struct st_place *p, uid_t uid)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct store *s = NULL;
        struct err err = {0};
        if (setresuid(uid, uid, uid) != 0)
            _exit(3);
        int rc = store_open(&p->opts, &s, &err);
        _exit(rc == -EPERM && strstr(err.msg, "belongs to another user") != NULL ? 0
              : rc == 0                                                          ? 1
                                                                                 : 2);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Whoever owns a directory can replace every file in it, so other users' directories are refused.
 */
TEST(folders_of_others)
{
    struct st_place p;
    if (geteuid() != 0) {
        print_message("only root can make another user's folder\n");
        skip();
    }
    assert_true(st_place_open(&p, "pread", 1));
    assert_int_equal(chmod(p.root, 0755), 0);
    assert_int_equal(mkdir(p.dirs[0], 0777) == 0 || errno == EEXIST, 1);
    assert_int_equal(chmod(p.dirs[0], 0777), 0);
    assert_int_equal(chown(p.dirs[0], 23456, 23456), 0);
    assert_int_equal(opened_as(&p, 34567), 0);
    assert_int_equal(opened_as(&p, 23456), 1);
    st_place_close(&p);
}

/* --- a folder that cannot be listed ----------------------------------------------------------- */

static int n_listed, fails_at; /* the call of opendir that fails; 0: none */

/* Stands in front of the C library's function. */
DIR *opendir(const char *path)
{
    if (fails_at > 0 && ++n_listed == fails_at) {
        errno = EIO;
        return NULL;
    }
    return ((__typeof__(&opendir))(uintptr_t)dlsym(RTLD_NEXT, "opendir"))(path);
}

/* A store whose folder cannot be listed is not taken for an empty one. */
TEST(folders_that_cannot_be_listed)
{
    struct st_place p;
    struct store *s;
    s = st_begin(&p, "pread", 2);
    st_must_save(s, &ctx, 3);
    store_close(s);
    /* Before it makes folders, an opening looks at each one, and a failure there decides nothing.
     * Then it looks for data in each, and for segments in each. */
    enum { LOOKS = 2, LISTS = 6 };
    for (int at = 1; at <= LISTS + 1; at++) {
        struct err err = {0};
        s = NULL;
        n_listed = 0;
        fails_at = at;
        int rc = store_open(&p.opts, &s, &err);
        fails_at = 0;
        assert_int_equal(n_listed, at < LISTS ? (at > LOOKS ? at : LISTS) : LISTS);
        assert_int_equal(rc, at > LOOKS && at <= LISTS ? -EIO : 0);
        if (rc != 0)
            assert_non_null(strstr(err.msg, "list "));
        store_close(s);
        s = st_open(&p);
        assert_int_equal(st_n_right(s, &ctx, 3), 3);
        store_close(s);
    }
    st_place_close(&p);
}
