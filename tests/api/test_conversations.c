/* test_conversations.c - turns, branches, limits, and the remains of erasures. */
#include <errno.h>
#include "tests/unit.h"

#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "api/conversations_db.h"
#include "tests/base/tempdir.h"

/* The next call of this name fails once, with EIO. */
static const char *fails = "";

static bool has_failed(const char *name)
{
    if (strcmp(fails, name) != 0)
        return false;
    fails = "";
    errno = EIO;
    return true;
}

int fstat(int fd, struct stat *st)
{
    return has_failed("fstat") ? -1 : (int)syscall(SYS_fstat, fd, st);
}

ssize_t pread(int fd, void *out, size_t n, off_t at)
{
    return has_failed("pread") ? -1 : syscall(SYS_pread64, fd, out, n, at);
}

struct fixture {
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 8];
    struct conversations *c;
};

static struct conversations *open_file(const struct fixture *x, int64_t max_turns,
                                       uint64_t max_bytes, int64_t ttl_s)
{
    struct conversations_opts o = {
        .path = x->path, .max_turns = max_turns, .max_bytes = max_bytes, .ttl_s = ttl_s};
    struct conversations *c = NULL;
    struct err err = {0};
    if (conversations_open(&o, &c, &err) != 0)
        fail_msg("%s", err.msg);
    return c;
}

static int setup(void **state)
{
    struct fixture *x = xcalloc(1, sizeof *x);
    tempdir_make(x->dir, "conversations");
    snprintf(x->path, sizeof x->path, "%s/c.db", x->dir);
    x->c = open_file(x, 0, 0, 0);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    conversations_close(x->c);
    tempdir_remove(x->dir);
    free(x);
    return 0;
}

static struct sha256 key_of(int v)
{
    struct sha256 k = {{0}};
    k.b[0] = (uint8_t)v;
    return k;
}

/* Makes a turn that keeps the first `kept` tokens of its parent and adds n tokens with ids from
 * first_id on. Its chunks have the keys first_key, first_key + 1 and so on. */
static struct turn *make_turn(const char *name, int64_t parent, int64_t conversation,
                              int kept, int n, int first_id, int first_key, int n_keys)
{
    struct turn *t = xcalloc(1, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->parent = parent;
    t->conversation = conversation;
    t->is_visible = true;
    t->created_s = clock_wall_s();
    t->input = xstrdup("[{\"secret\":\"alpaca\"}]");
    t->output = xstrdup("[]");
    t->answer = xstrdup("{}");
    t->n_kept = kept;
    t->n_tokens = kept + n;
    t->tokens = xcalloc((size_t)n + 1, sizeof *t->tokens);
    for (int i = 0; i < n; i++)
        t->tokens[i] = first_id + i;
    t->n_keys = n_keys;
    t->keys = xcalloc((size_t)n_keys + 1, sizeof *t->keys);
    for (int i = 0; i < n_keys; i++)
        t->keys[i] = key_of(first_key + i);
    t->mark[0] = (struct turn_mark){7, 3, key_of(99)};
    t->n_marks = 1;
    return t;
}

static int64_t add(struct conversations *c, struct turn *t)
{
    struct err err = {0};
    bool branched;
    if (turn_add(c, "", t, "title", &branched, &err) != 0)
        fail_msg("%s", err.msg);
    int64_t row = t->row;
    turn_free(t);
    return row;
}

static int code_of_find(struct conversations *c, const char *tenant, const char *name)
{
    struct turn *t = NULL;
    struct err err = {0};
    int rc = turn_find(c, tenant, name, &t, &err);
    turn_free(t);
    return rc;
}

static void assert_doomed(struct conversations *c, const int *want, int n)
{
    struct sha256 keys[16];
    struct err err = {0};
    int got = 0;
    assert_int_equal(conversations_doomed(c, keys, 16, &got, &err), 0);
    assert_int_equal(got, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(keys[i].b[0], want[i]);
}

static bool file_has(const struct fixture *x, const char *text)
{
    static const char *const ends[] = {"", "-wal"};
    bool found = false;
    for (int i = 0; i < 2; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", x->path, ends[i]);
        FILE *f = fopen(name, "rb");
        if (f == NULL)
            continue;
        char *all = xmalloc(4 << 20);
        size_t n = fread(all, 1, 4 << 20, f);
        found = found || memmem(all, n, text, strlen(text)) != NULL;
        free(all);
        fclose(f);
    }
    return found;
}

/* --- tests ------------------------------------------------------------------------------------ */

TEST_WITH(a_path_keeps_its_tokens, setup, teardown)
{
    struct fixture *x = *state;
    struct turn **path;
    struct err err = {0};
    int n;
    int64_t a = add(x->c, make_turn("resp_a", 0, 0, 0, 5, 100, 1, 0));
    /* tokens 100 101 102 200.. */
    int64_t b = add(x->c, make_turn("resp_b", a, 0, 3, 4, 200, 1, 3));
    /* tokens 100 101 300 */
    int64_t d = add(x->c, make_turn("resp_c", b, 0, 2, 1, 300, 1, 0));
    conversations_close(x->c);
    x->c = open_file(x, 0, 0, 0);
    assert_int_equal(turn_path(x->c, d, &path, &n, &err), 0);
    assert_int_equal(n, 3);
    int32_t *ids = turn_path_tokens(path, 3);
    assert_int_equal(ids[0], 100);
    assert_int_equal(ids[1], 101);
    assert_int_equal(ids[2], 300);
    free(ids);
    ids = turn_path_tokens(path, 2);
    const int32_t want[] = {100, 101, 102, 200, 201, 202, 203};
    assert_memory_equal(ids, want, sizeof want);
    free(ids);
    assert_int_equal(path[2]->depth, 2);
    assert_int_equal(path[1]->mark[0].n_bytes, 7);
    assert_int_equal(path[1]->mark[0].n_tokens, 3);
    assert_int_equal(path[1]->mark[0].digest.b[0], 99);
    assert_int_equal(path[0]->n_keys, 0);
    assert_int_equal(path[1]->n_keys, 3);
    for (int i = 0; i < 3; i++) {
        struct sha256 key = key_of(1 + i);
        assert_memory_equal(&path[1]->keys[i], &key, sizeof key);
    }
    turn_path_free(path, n);
}

TEST_WITH(others_find_nothing, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0};
    struct erased gone;
    struct err err = {0};
    add(x->c, make_turn("resp_a", 0, 0, 0, 5, 100, 1, 0));
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &v, &err), 0);
    conversation_deinit(&v);
    assert_int_equal(code_of_find(x->c, "", "resp_a"), 0);
    assert_int_equal(code_of_find(x->c, "bob", "resp_a"), ERR_NOT_FOUND);
    assert_int_equal(conversation_find(x->c, "bob", "conv_a", &v, &err), ERR_NOT_FOUND);
    assert_int_equal(turn_delete(x->c, "bob", "resp_a", &gone, &err), ERR_NOT_FOUND);
    assert_int_equal(conversation_delete(x->c, "bob", "conv_a", &gone, &err),
                     ERR_NOT_FOUND);
    assert_int_equal(code_of_find(x->c, "", "resp_a"), 0);
}

/* Turns b and c both continue a, so a stays as long as one of them does. Chunks 1 and 2 belong to
 * a, chunk 3 to b and c, chunk 4 to c. */
TEST_WITH(what_is_shared_stays, setup, teardown)
{
    struct fixture *x = *state;
    struct erased gone;
    struct err err = {0};
    int64_t a = add(x->c, make_turn("resp_a", 0, 0, 0, 130, 0, 1, 2));
    add(x->c, make_turn("resp_b", a, 0, 130, 70, 500, 3, 1));
    add(x->c, make_turn("resp_c", a, 0, 130, 140, 500, 3, 2));
    assert_int_equal(turn_delete(x->c, "", "resp_a", &gone, &err), 0);
    assert_int_equal(gone.n_turns, 0);
    assert_int_equal(gone.n_shared, 1);
    assert_int_equal(code_of_find(x->c, "", "resp_a"), ERR_NOT_FOUND);
    assert_int_equal(turn_delete(x->c, "", "resp_c", &gone, &err), 0);
    assert_int_equal(gone.n_turns, 1);
    assert_doomed(x->c, (const int[]){4}, 1);
    assert_int_equal(turn_delete(x->c, "", "resp_b", &gone, &err), 0);
    assert_int_equal(gone.n_turns, 2);
    assert_doomed(x->c, (const int[]){4, 3, 2, 1}, 4);
    struct sha256 buried[] = {key_of(4), key_of(3)};
    assert_int_equal(conversations_buried(x->c, buried, 2, &err), 0);
    /* a new turn needs chunk 1 again */
    add(x->c, make_turn("resp_d", 0, 0, 0, 130, 0, 1, 1));
    assert_doomed(x->c, (const int[]){2}, 1);
}

TEST_WITH(erased_bytes_are_gone, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0};
    struct erased gone;
    struct err err = {0};
    assert_int_equal(conversation_add(x->c, "", "conv_a", "llama", NULL, 0, &v, &err), 0);
    int64_t a = add(x->c, make_turn("resp_a", 0, v.row, 0, 5, 100, 1, 0));
    add(x->c, make_turn("resp_b", a, v.row, 5, 5, 100, 1, 0));
    assert_true(file_has(x, "alpaca"));
    assert_int_equal(conversation_delete(x->c, "", "conv_a", &gone, &err), 0);
    assert_int_equal(gone.n_turns, 2);
    assert_int_equal(code_of_find(x->c, "", "resp_b"), ERR_NOT_FOUND);
    assert_false(file_has(x, "alpaca"));
    assert_false(file_has(x, "llama"));
    conversation_deinit(&v);
}

TEST_WITH(a_conversation_moves_its_head, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0}, w = {0};
    struct erased gone;
    struct err err = {0};
    bool branched;
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &v, &err), 0);
    int64_t a = add(x->c, make_turn("resp_a", 0, v.row, 0, 5, 100, 1, 0));
    int64_t b = add(x->c, make_turn("resp_b", a, v.row, 5, 5, 100, 1, 0));
    /* Meanwhile another client has continued a. */
    struct turn *late = make_turn("resp_late", a, v.row, 5, 5, 100, 1, 0);
    assert_int_equal(turn_add(x->c, "", late, NULL, &branched, &err), 0);
    assert_true(branched);
    turn_free(late);
    assert_int_equal(conversation_find(x->c, "", "conv_a", &w, &err), 0);
    assert_true(w.head == b);
    assert_int_equal(w.n_turns, 2);
    assert_string_equal(w.title, "title");
    conversation_deinit(&w);
    assert_int_equal(conversation_delete(x->c, "", "conv_a", &gone, &err), 0);
    assert_int_equal(code_of_find(x->c, "", "resp_b"), ERR_NOT_FOUND);
    /* the client's own turn stays */
    assert_int_equal(code_of_find(x->c, "", "resp_late"), 0);
    assert_int_equal(gone.n_turns, 1);
    assert_int_equal(gone.n_shared, 1);
    /* A turn in a conversation that has been deleted is not kept. */
    struct turn *ghost = make_turn("resp_ghost", b, v.row, 5, 5, 100, 1, 0);
    assert_int_equal(turn_add(x->c, "", ghost, NULL, &branched, &err), ERR_NOT_FOUND);
    turn_free(ghost);
    conversation_deinit(&v);
}

TEST_WITH(a_rewrite_erases_what_was, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0}, w = {0};
    struct erased gone;
    struct err err = {0};
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &v, &err), 0);
    int64_t a = add(x->c, make_turn("resp_a", 0, v.row, 0, 5, 100, 1, 0));
    struct turn *t = xcalloc(1, sizeof *t);
    conversations_name("turn", t->name);
    t->conversation = v.row;
    t->input = xstrdup("[{\"kept\":\"vicuna\"}]");
    t->output = xstrdup("[]");
    assert_int_equal(conversation_rewrite(x->c, "", a + 1, t, NULL, &gone, &err),
                     ERR_MISMATCH);
    t->conversation = v.row;
    assert_int_equal(conversation_rewrite(x->c, "", a, t, NULL, &gone, &err), 0);
    assert_int_equal(gone.n_turns, 1);
    assert_false(file_has(x, "alpaca"));
    assert_true(file_has(x, "vicuna"));
    assert_int_equal(conversation_find(x->c, "", "conv_a", &w, &err), 0);
    assert_true(w.head == t->row);
    turn_free(t);
    conversation_deinit(&v);
    conversation_deinit(&w);
}

TEST_WITH(bounds_hold, setup, teardown)
{
    struct fixture *x = *state;
    struct err err = {0};
    bool branched;
    conversations_close(x->c);
    x->c = open_file(x, 2, 0, 0);
    add(x->c, make_turn("resp_a", 0, 0, 0, 5, 100, 1, 0));
    assert_int_equal(turn_has_room(x->c, "", &err), 0);
    add(x->c, make_turn("resp_b", 0, 0, 0, 5, 100, 1, 0));
    assert_int_equal(turn_has_room(x->c, "", &err), ERR_LIMIT);
    struct turn *t = make_turn("resp_c", 0, 0, 0, 5, 100, 1, 0);
    assert_int_equal(turn_add(x->c, "", t, NULL, &branched, &err), ERR_LIMIT);
    assert_int_equal(code_of_find(x->c, "", "resp_c"), ERR_NOT_FOUND);
    turn_free(t);
    conversations_close(x->c);
    x->c = open_file(x, 0, 200000, 0);
    t = make_turn("resp_big", 0, 0, 0, 50000, 100, 1, 0);
    assert_int_equal(turn_add(x->c, "", t, NULL, &branched, &err), ERR_LIMIT);
    turn_free(t);
    add(x->c, make_turn("resp_small", 0, 0, 0, 50, 100, 1, 0));
}

static int add_as(struct conversations *c, const char *tenant, const char *name, int n)
{
    struct turn *t = make_turn(name, 0, 0, 0, n, 100, 1, 0);
    struct err err = {0};
    bool branched;
    int rc = turn_add(c, tenant, t, NULL, &branched, &err);
    turn_free(t);
    return rc;
}

/* Each of two keys has half of the turns and of the bytes, and cannot take the other's half.
 * Deleted turns give room back, also in a file that was there before, and a refusal takes none. */
TEST_WITH(tenants_have_shares, setup, teardown)
{
    struct fixture *x = *state;
    struct err err = {0};
    struct erased gone;
    struct conversation v;
    char name[32], *text = xcalloc(1, 60001);
    assert_int_equal(add_as(x->c, "a", "resp_0", 5), 0);
    x->c->o = (struct conversations_opts){.path = x->path, .max_turns = 4, .n_tenants = 2};
    assert_int_equal(add_as(x->c, "a", "resp_1", 5), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(add_as(x->c, "a", "resp_2", 5), ERR_LIMIT);
    assert_int_equal(turn_has_room(x->c, "a", &err), ERR_LIMIT);
    assert_int_equal(turn_has_room(x->c, "b", &err), 0);
    assert_int_equal(add_as(x->c, "b", "resp_3", 5), 0);
    assert_int_equal(turn_delete(x->c, "a", "resp_0", &gone, &err), 0);
    assert_int_equal(add_as(x->c, "a", "resp_2", 5), 0);
    assert_int_equal(add_as(x->c, "a", "resp_4", 5), ERR_LIMIT);
    assert_int_equal(add_as(x->c, "b", "resp_4", 5), 0);
    /* bytes: turns, and conversations with what is written beside them */
    x->c->o = (struct conversations_opts){
        .path = x->path, .max_bytes = 1 << 20, .n_tenants = 2};
    memset(text, 'x', 60000);
    int n = 0, rc;
    do {
        snprintf(name, sizeof name, "conv_%d", n);
        rc = conversation_add(x->c, "a", name, NULL, n == 0 ? "{}" : text, 0, &v, &err);
        if (rc == 0)
            conversation_deinit(&v);
    } while (rc == 0 && ++n < 100);
    assert_int_equal(rc, ERR_LIMIT);
    assert_in_range(n, 6, 8);
    assert_int_equal(add_as(x->c, "a", "resp_5", 20000), ERR_LIMIT);
    assert_int_equal(conversation_find(x->c, "a", "conv_0", &v, &err), 0);
    assert_int_equal(conversation_set(x->c, "a", v.row, NULL, text, &err), ERR_LIMIT);
    assert_int_equal(add_as(x->c, "b", "resp_5", 100000), 0);
    assert_int_equal(add_as(x->c, "b", "resp_6", 20000), ERR_LIMIT);
    assert_int_equal(turn_delete(x->c, "b", "resp_5", &gone, &err), 0);
    assert_int_equal(add_as(x->c, "b", "resp_6", 20000), 0);
    assert_int_equal(conversation_delete(x->c, "a", "conv_1", &gone, &err), 0);
    assert_int_equal(conversation_set(x->c, "a", v.row, NULL, text, &err), 0);
    assert_int_equal(add_as(x->c, "a", "resp_7", 20000), ERR_LIMIT);
    conversation_deinit(&v);
    free(text);
}

TEST_WITH(age_ends_them, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0};
    struct erased gone;
    struct err err = {0};
    int64_t now = clock_wall_s();
    conversations_close(x->c);
    x->c = open_file(x, 0, 0, 100);
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &v, &err), 0);
    add(x->c, make_turn("resp_a", 0, v.row, 0, 5, 100, 1, 1));
    int64_t b = add(x->c, make_turn("resp_b", 0, 0, 0, 5, 100, 2, 1));
    struct turn *t = make_turn("resp_c", b, 0, 0, 5, 100, 3, 1);
    t->created_s = now + 60; /* using t counts as a use of its parent b, too */
    add(x->c, t);
    assert_int_equal(conversations_expire(x->c, now + 50, 99, &gone, &err), 0);
    assert_int_equal(gone.n_turns, 0);
    assert_int_equal(conversations_expire(x->c, now + 110, 99, &gone, &err), 0);
    assert_int_equal(gone.n_turns, 1);
    assert_int_equal(conversation_find(x->c, "", "conv_a", &v, &err), ERR_NOT_FOUND);
    assert_doomed(x->c, (const int[]){1}, 1);
    assert_int_equal(conversations_expire(x->c, now + 200, 99, &gone, &err), 0);
    assert_int_equal(gone.n_turns, 2);
    assert_int_equal(code_of_find(x->c, "", "resp_b"), ERR_NOT_FOUND);
    conversation_deinit(&v);
}

/* A machine starts with its clock thirty years behind, and a user continues conversations. When the
 * clock is right again, none of these conversations counts as old. */
TEST_WITH(a_clock_that_is_behind_ages_nothing, setup, teardown)
{
    enum { BEHIND_S = 1000000000 };
    struct fixture *x = *state;
    struct conversation v = {0};
    struct erased gone;
    struct err err = {0};
    int64_t now = clock_wall_s();
    conversations_close(x->c);
    x->c = open_file(x, 0, 0, 100);
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &v, &err), 0);
    int64_t a = add(x->c, make_turn("resp_a", 0, v.row, 0, 5, 100, 1, 1));
    int64_t c = add(x->c, make_turn("resp_c", 0, 0, 0, 5, 100, 2, 1));
    struct turn *b = make_turn("resp_b", a, v.row, 0, 5, 100, 3, 1);
    struct turn *d = make_turn("resp_d", c, 0, 0, 5, 100, 4, 1);
    b->created_s = d->created_s = now - BEHIND_S;
    add(x->c, b);
    add(x->c, d);
    assert_int_equal(conversations_expire(x->c, now + 50, 99, &gone, &err), 0);
    assert_int_equal(gone.n_turns, 0);
    assert_int_equal(code_of_find(x->c, "", "resp_b"), 0);
    assert_int_equal(code_of_find(x->c, "", "resp_d"), 0);
    conversation_deinit(&v);
    assert_int_equal(conversation_find(x->c, "", "conv_a", &v, &err), 0);
    assert_true(v.updated_s >= now);
    conversation_deinit(&v);
}

TEST_WITH(the_file_is_private_and_locked, setup, teardown)
{
    struct fixture *x = *state;
    struct conversations_opts o = {.path = x->path};
    struct conversations *other = NULL;
    struct stat st;
    struct err err = {0};
    add(x->c, make_turn("resp_a", 0, 0, 0, 5, 100, 1, 0));
    assert_int_equal(stat(x->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    char wal[128];
    snprintf(wal, sizeof wal, "%s-wal", x->path);
    assert_int_equal(stat(wal, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(conversations_open(&o, &other, &err), ERR_BUSY);
}

static void not_opened(const char *path, const char *says)
{
    struct conversations_opts o = {.path = path};
    struct conversations *c = NULL;
    struct err err = {0};
    assert_int_not_equal(conversations_open(&o, &c, &err), 0);
    if (strstr(err.msg, says) == NULL)
        fail_msg("wanted \"%s\": %s", says, err.msg);
    assert_non_null(strstr(err.msg, "; it is not changed: give a new file"));
}

static void file_write(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

/* A user may give any path for the conversations' file. A file of another kind keeps its mode and
 * content. */
TEST_WITH(files_of_others_stay_as_they_are, setup, teardown)
{
    struct fixture *x = *state;
    struct stat before, after;
    char text[96], link[96], db[96], back[32] = "";
    snprintf(text, sizeof text, "%s/notes", x->dir);
    snprintf(link, sizeof link, "%s/link", x->dir);
    snprintf(db, sizeof db, "%s/other.db", x->dir);
    assert_int_equal(stat("/dev/null", &before), 0);
    not_opened("/dev/null", "is not a regular file");
    assert_int_equal(stat("/dev/null", &after), 0);
    assert_int_equal(after.st_mode, before.st_mode);

    file_write(text, "shopping: milk, bread, tea");
    assert_int_equal(chmod(text, 0644), 0);
    not_opened(text, "is not a database");
    assert_int_equal(symlink(text, link), 0);
    not_opened(link, "is a symbolic link");
    assert_int_equal(stat(text, &after), 0);
    assert_int_equal(after.st_mode & 0777, 0644);
    FILE *f = fopen(text, "rb");
    assert_int_equal(fread(back, 1, sizeof back, f), 26);
    fclose(f);
    assert_string_equal(back, "shopping: milk, bread, tea");

    for (int wal = 0; wal < 2; wal++) {
        sqlite3 *other;
        assert_int_equal(sqlite3_open(db, &other), SQLITE_OK);
        assert_int_equal(sqlite3_exec(other,
                                      wal ? "PRAGMA journal_mode = WAL; DROP TABLE recipe;"
                                            "CREATE TABLE recipe(id INTEGER)"
                                          : "CREATE TABLE recipe(id INTEGER)",
                                      NULL, NULL, NULL),
                         SQLITE_OK);
        sqlite3_close(other);
        assert_int_equal(chmod(db, 0640), 0);
        not_opened(db, "database of another program");
        assert_int_equal(stat(db, &after), 0);
        assert_int_equal(after.st_mode & 0777, 0640);
    }
    if (geteuid() == 0) {
        conversations_close(x->c);
        x->c = NULL;
        assert_int_equal(chown(x->path, 12345, 12345), 0);
        not_opened(x->path, "belongs to another user");
    }
}

/* The first 20 bytes of a file tell whether it may hold conversations. An empty file may. */
TEST_WITH(the_head_of_a_file_decides, setup, teardown)
{
    struct fixture *x = *state;
    char path[sizeof x->path + 8];
    snprintf(path, sizeof path, "%s/head", x->dir);
    static const struct {
        size_t n;
        char format, write, read; /* bytes 0, 18 and 19 */
        const char *says;
    } rows[] = {{19, 'S', 2, 2, "is not a database"},
                {20, 's', 2, 2, "is not a database"},
                {20, 'S', 1, 2, "is a database of another program"},
                {20, 'S', 2, 1, "is a database of another program"},
                {1, 'S', 2, 2, "is not a database"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char head[20] = "SQLite format 3", back[32];
        head[0] = rows[i].format;
        head[18] = rows[i].write;
        head[19] = rows[i].read;
        FILE *f = fopen(path, "wb");
        assert_int_equal(fwrite(head, 1, rows[i].n, f), rows[i].n);
        fclose(f);
        not_opened(path, rows[i].says);
        f = fopen(path, "rb");
        assert_int_equal(fread(back, 1, sizeof back, f), rows[i].n);
        fclose(f);
        assert_memory_equal(back, head, rows[i].n);
    }
    FILE *f = fopen(path, "wb");
    fclose(f);
    const struct conversations_opts o = {.path = path};
    struct conversations *c = NULL;
    struct err err = {0};
    if (conversations_open(&o, &c, &err) != 0)
        fail_msg("%s", err.msg);
    conversations_close(c);
}

/* A file that cannot be looked at is not opened. */
TEST_WITH(a_file_that_cannot_be_read_is_not_opened, setup, teardown)
{
    struct fixture *x = *state;
    static const char *const calls[] = {"fstat", "pread"};
    conversations_close(x->c);
    for (int i = 0; i < 2; i++) {
        const struct conversations_opts o = {.path = x->path};
        struct conversations *c = NULL;
        struct err err = {0};
        char want[sizeof x->path + 80];
        fails = calls[i];
        assert_int_equal(conversations_open(&o, &c, &err), -EIO);
        assert_string_equal(fails, "");
        assert_null(c);
        snprintf(want, sizeof want, "cannot open the conversations in %s: %s", x->path,
                 strerror(EIO));
        assert_string_equal(err.msg, want);
    }
    x->c = open_file(x, 0, 0, 0);
}

TEST_WITH(damage_is_told, setup, teardown)
{
    struct fixture *x = *state;
    struct conversations_opts o = {.path = x->path};
    struct conversations *c = NULL;
    struct err err = {0};
    conversations_close(x->c);
    FILE *f = fopen(x->path, "r+b");
    assert_non_null(f);
    assert_int_equal(fwrite("garbage garbage", 1, 15, f), 15);
    fclose(f);
    assert_int_equal(conversations_open(&o, &c, &err), ERR_CORRUPT);
    assert_non_null(strstr(err.msg, x->path));
    x->c = NULL;
}

/* Numbers in a row that do not fit the row's other fields give an error or are bounded. */
TEST_WITH(rows_out_of_range, setup, teardown)
{
    static const struct {
        const char *sql;
        int code; /* expected code for the path that ends in resp_b */
    } cases[] = {
        {"n_tokens = 2147483647", ERR_CORRUPT},
        {"n_tokens = -1", ERR_CORRUPT},
        {"n_tokens = 9223372036854775807", ERR_CORRUPT},
        {"n_kept = -1", ERR_CORRUPT},
        {"n_kept = 6, tokens = zeroblob(4)", ERR_CORRUPT}, /* resp_a has only 5 tokens */
        {"n_kept = 2147483647, n_tokens = 2147483647, tokens = x''", ERR_CORRUPT},
        {"tokens = zeroblob(15)", ERR_CORRUPT},
        {"tokens = NULL", -1}, /* the table itself refuses the change */
        {"parent = id", ERR_CORRUPT},
        {"marks = zeroblob(1000003)", 0},
        {"keys = zeroblob(31)", 0},
    };
    struct fixture *x = *state;
    int64_t a = add(x->c, make_turn("resp_a", 0, 0, 0, 5, 100, 1, 0));
    int64_t b = add(x->c, make_turn("resp_b", a, 0, 3, 4, 200, 1, 1));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char sql[300];
        sqlite3 *db = NULL;
        struct turn **path = NULL;
        struct err err = {0};
        int n = 0;
        conversations_close(x->c);
        assert_int_equal(sqlite3_open(x->path, &db), SQLITE_OK);
        snprintf(sql, sizeof sql,
                 "CREATE TABLE kept AS SELECT * FROM turn;"
                 "UPDATE turn SET %s WHERE name = 'resp_b'",
                 cases[i].sql);
        int rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
        assert_int_equal(rc, cases[i].code == -1 ? SQLITE_CONSTRAINT : SQLITE_OK);
        sqlite3_close(db);
        x->c = open_file(x, 0, 0, 0);
        rc = turn_path(x->c, b, &path, &n, &err);
        if (cases[i].code != -1 && (rc != cases[i].code || (rc != 0 && err.msg[0] == 0)))
            fail_msg("%s: %d, %s", cases[i].sql, rc, err.msg);
        if (rc == 0) {
            assert_true(path[1]->n_marks <= TURN_MAX_MARKS && path[1]->n_keys >= 0);
            free(turn_path_tokens(path, n));
        }
        turn_path_free(path, n);
        conversations_close(x->c);
        assert_int_equal(sqlite3_open(x->path, &db), SQLITE_OK);
        assert_int_equal(
            sqlite3_exec(db,
                         "DELETE FROM turn; INSERT INTO turn SELECT * FROM kept;"
                         "DROP TABLE kept",
                         NULL, NULL, NULL),
            SQLITE_OK);
        sqlite3_close(db);
        x->c = open_file(x, 0, 0, 0);
        /* the path can be read as before */
        assert_int_equal(turn_path(x->c, b, &path, &n, &err), 0);
        assert_int_equal(n, 2);
        turn_path_free(path, n);
    }
}

/* A process adds turns until it is killed. Every turn that was reported as added exists
 * completely. */
TEST_WITH(a_killed_process_loses_nothing_told, setup, teardown)
{
    struct fixture *x = *state;
    conversations_close(x->c);
    x->c = NULL;
    for (int cycle = 0; cycle < 10; cycle++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        pid_t pid = fork();
        if (pid == 0) {
            struct conversations *c = open_file(x, 0, 0, 0);
            int64_t parent = 0;
            for (int i = 0; i < 100000; i++) {
                char name[NAME_BYTES];
                snprintf(name, sizeof name, "resp_%d_%d", cycle, i);
                parent = add(c, make_turn(name, parent, 0, 4 * i, 4, i, 1, 1));
                if (write(fds[1], &i, sizeof i) != (ssize_t)sizeof i)
                    _exit(1);
            }
            _exit(0);
        }
        int last = -1, told;
        close(fds[1]);
        clock_sleep_ns(5000000 + cycle * 3000000);
        kill(pid, SIGKILL);
        while (read(fds[0], &told, sizeof told) == (ssize_t)sizeof told)
            last = told;
        close(fds[0]);
        waitpid(pid, NULL, 0);
        struct conversations *c = open_file(x, 0, 0, 0);
        struct turn *t = NULL, **path = NULL;
        struct err err = {0};
        char name[NAME_BYTES];
        int n = 0;
        snprintf(name, sizeof name, "resp_%d_%d", cycle, last);
        if (last >= 0) {
            assert_int_equal(turn_find(c, "", name, &t, &err), 0);
            assert_int_equal(turn_path(c, t->row, &path, &n, &err), 0);
            assert_int_equal(n, last + 1);
            assert_int_equal(t->n_tokens, 4 * (last + 1));
        }
        /* at most one turn exists that was not reported */
        snprintf(name, sizeof name, "resp_%d_%d", cycle, last + 2);
        assert_int_equal(code_of_find(c, "", name), ERR_NOT_FOUND);
        turn_path_free(path, n);
        turn_free(t);
        conversations_close(c);
    }
}

TEST_WITH(pages_of_a_list, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation page[4];
    struct err err = {0};
    char after[NAME_BYTES] = "";
    int n, total = 0;
    bool more = true;
    for (int i = 0; i < 10; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "conv_%d", i);
        assert_int_equal(conversation_add(x->c, i == 5 ? "bob" : "", name, NULL, NULL, 0,
                                          &page[0], &err),
                         0);
        conversation_deinit(&page[0]);
    }
    while (more) {
        assert_int_equal(conversation_list(x->c, "", after[0] != 0 ? after : NULL, false, 4,
                                           page, &n, &more, &err),
                         0);
        for (int i = 0; i < n; i++) {
            snprintf(after, sizeof after, "%s", page[i].name);
            assert_string_not_equal(page[i].name, "conv_5");
            conversation_deinit(&page[i]);
        }
        total += n;
    }
    assert_int_equal(total, 9);
    assert_string_equal(after, "conv_0"); /* the oldest conversation comes last */
    assert_int_equal(conversation_list(x->c, "", "conv_5", false, 4, page, &n, &more, &err),
                     ERR_NOT_FOUND);
}

/* The log of a killed process may contain text that the process was deleting. Opening the file
 * merges and truncates the log. */
TEST_WITH(opening_cuts_the_log, setup, teardown)
{
    struct fixture *x = *state;
    struct stat st;
    char log[sizeof x->path + 8];
    snprintf(log, sizeof log, "%s-wal", x->path);
    conversations_close(x->c);
    x->c = NULL;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)add(open_file(x, 0, 0, 0), make_turn("resp_1", 0, 0, 0, 4, 0, 1, 1));
        (void)raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(stat(log, &st), 0);
    assert_true(st.st_size > 0);
    assert_int_equal(chmod(log, 0644), 0);
    assert_int_equal(chmod(x->path, 0640), 0);
    x->c = open_file(x, 0, 0, 0);
    assert_true(stat(log, &st) != 0 || st.st_size == 0);
    (void)add(x->c, make_turn("resp_2", 0, 0, 0, 4, 0, 1, 1));
    assert_int_equal(stat(log, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600); /* file and log are made private again */
    assert_int_equal(stat(x->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(code_of_find(x->c, "", "resp_1"), 0);
}

/* Counts are for the whole file or for one tenant. A tenant's counts have its conversations, and
 * the turns on their paths. */
TEST_WITH(counts_are_of_all_and_of_a_tenant, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0};
    struct conversations_stats all, of;
    struct erased gone;
    struct err err = {0};
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &v, &err), 0);
    int64_t a = add(x->c, make_turn("resp_a", 0, v.row, 0, 5, 100, 1, 0));
    (void)add(x->c, make_turn("resp_b", a, v.row, 5, 5, 100, 1, 0));
    /* this turn belongs to no conversation */
    (void)add(x->c, make_turn("resp_c", 0, 0, 0, 130, 100, 1, 2));
    assert_int_equal(conversation_add(x->c, "bob", "conv_b", NULL, NULL, 0, &v, &err), 0);
    assert_int_equal(conversations_stats(x->c, &all, &err), 0);
    assert_true(all.n_conversations == 2 && all.n_turns == 3 && all.n_doomed == 0);
    assert_true(all.used_bytes > 0);
    assert_int_equal(conversations_stats_of(x->c, "", &of, &err), 0);
    assert_true(of.n_conversations == 1 && of.n_turns == 2);
    assert_true(of.n_doomed == 0 && of.used_bytes == 0);
    assert_int_equal(conversations_stats_of(x->c, "bob", &of, &err), 0);
    assert_true(of.n_conversations == 1 && of.n_turns == 0);
    assert_int_equal(conversations_stats_of(x->c, "eve", &of, &err), 0);
    assert_true(of.n_conversations == 0 && of.n_turns == 0);
    assert_int_equal(turn_delete(x->c, "", "resp_c", &gone, &err), 0);
    assert_int_equal(conversations_stats(x->c, &all, &err), 0);
    assert_true(all.n_turns == 2 && all.n_doomed == 2);
}

/* Among several servers a name says which one keeps the conversation. Names are different. */
TEST_WITH(names_say_who_keeps_them, setup, teardown)
{
    struct fixture *x = *state;
    struct conversations *named, *stand_in;
    struct err err = {0};
    struct turn *t = NULL;
    char name[NAME_BYTES], other[NAME_BYTES];
    assert_string_equal(conversations_kept_in(NULL), "none");
    assert_string_equal(conversations_kept_in(x->c), "file");
    static const char *const good[] = {"a", "server-1", "0123456789abcdef"};
    static const char *const bad[] = {"", "0123456789abcdefg", "A", "a_b", "a.b", "a b"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(conversations_server_ok(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(conversations_server_ok(bad[i]));
    conversations_name("resp", name);
    conversations_name("resp", other);
    assert_int_equal(strlen(name), 5 + 32);
    assert_memory_equal(name, "resp_", 5);
    assert_string_not_equal(name, other);
    conversations_name_kept(x->c, "conv", name); /* this server has no name */
    assert_int_equal(strlen(name), 5 + 32);
    conversations_name_kept(NULL, "conv", name);
    assert_int_equal(strlen(name), 5 + 32);
    const struct conversations_opts o = {.server = "s-1"};
    assert_int_equal(conversations_open(&o, &named, &err), 0);
    assert_string_equal(conversations_kept_in(named), "memory");
    conversations_name_kept(named, "conv", name);
    assert_int_equal(strlen(name), 5 + 4 + 32);
    assert_memory_equal(name, "conv_s-1-", 9);
    /* If a name contains the server's own name, or no server's name, the turn is known to be
     * missing. If it contains another server's name, that server may have the turn. */
    assert_int_equal(turn_find(named, "", name, &t, &err), ERR_NOT_FOUND);
    assert_int_equal(turn_find(x->c, "", name, &t, &err), -EAGAIN);
    assert_non_null(strstr(err.msg, "is kept by the server 's-1'"));
    name[7] = '2';
    assert_int_equal(turn_find(named, "", name, &t, &err), -EAGAIN);
    assert_int_equal(turn_find(named, "", other, &t, &err), ERR_NOT_FOUND);
    name[strlen(name) - 1] = 'x'; /* no digit: it was not made by a server */
    assert_int_equal(turn_find(named, "", name, &t, &err), ERR_NOT_FOUND);
    conversations_close(named);
    /* While the file cannot be opened, nothing is known to be missing. */
    const struct conversations_opts beside = {.stands_in_because = "no space"};
    assert_int_equal(conversations_open(&beside, &stand_in, &err), 0);
    assert_int_equal(turn_find(stand_in, "", other, &t, &err), -EAGAIN);
    assert_non_null(strstr(err.msg, "no space"));
    conversations_close(stand_in);
}

/* Returns the bytes on the disk that are reserved for erasing when the disk is full; 0: none. */
static int64_t reserved_bytes(const struct fixture *x)
{
    char path[sizeof x->path + 16];
    struct stat st;
    snprintf(path, sizeof path, "%s-reserve", x->path);
    return stat(path, &st) == 0 ? st.st_blocks * 512 : 0;
}

/* The reserve is whole, or there is none: an incomplete one is more useful as free space. */
TEST_WITH(the_reserve_is_whole_or_absent, setup, teardown)
{
    struct fixture *x = *state;
    struct rlimit r;
    char path[sizeof x->path + 16];
    snprintf(path, sizeof path, "%s-reserve", x->path);
    int64_t whole = reserved_bytes(x);
    assert_true(whole >= 512 << 10);
    assert_int_equal(truncate(path, 0), 0);
    conversations_close(x->c);
    x->c = open_file(x, 0, 0, 0);
    assert_int_equal(reserved_bytes(x), whole);
    conversations_close(x->c);
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 300 << 10,
                                                              .rlim_max = r.rlim_max}),
                     0);
    x->c = open_file(x, 0, 0, 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(access(path, F_OK), -1);
}

/* A title or metadata that is not given stays. */
TEST_WITH(what_is_not_set_stays, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0};
    struct err err = {0};
    assert_int_equal(conversation_add(x->c, "", "conv_a", "one", "{}", 0, &v, &err), 0);
    static const struct {
        const char *title, *metadata, *want_title, *want_metadata;
    } rows[] = {{"two", NULL, "two", "{}"},
                {NULL, "{\"a\":\"b\"}", "two", "{\"a\":\"b\"}"},
                {NULL, NULL, "two", "{\"a\":\"b\"}"}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            conversation_set(x->c, "", v.row, rows[i].title, rows[i].metadata, &err), 0);
        conversation_deinit(&v);
        assert_int_equal(conversation_find(x->c, "", "conv_a", &v, &err), 0);
        assert_string_equal(v.title, rows[i].want_title);
        assert_string_equal(v.metadata, rows[i].want_metadata);
    }
    conversation_deinit(&v);
}

/* An answer that is being generated has the numbers of its parent and of its conversation. Both are
 * deleted meanwhile, and another tenant's turn and conversation come. The answer belongs to
 * neither. */
static void check_deleted_rows(struct fixture *x, bool reopens)
{
    struct conversation mine = {0}, theirs = {0};
    struct err err = {0};
    struct erased gone;
    bool branched;
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &mine, &err), 0);
    int64_t parent = add(x->c, make_turn("resp_a", 0, 0, 0, 70, 1, 1, 1));
    if (reopens) {
        conversations_close(x->c);
        x->c = open_file(x, 0, 0, 0);
    }
    assert_int_equal(turn_delete(x->c, "", "resp_a", &gone, &err), 0);
    assert_int_equal(conversation_delete(x->c, "", "conv_a", &gone, &err), 0);

    struct turn *t = make_turn("resp_b", 0, 0, 0, 5, 1, 9, 0);
    assert_int_equal(turn_add(x->c, "them", t, "title", &branched, &err), 0);
    assert_int_not_equal(t->row, parent);
    turn_free(t);
    assert_int_equal(conversation_add(x->c, "them", "conv_b", NULL, NULL, 0, &theirs, &err),
                     0);
    assert_int_not_equal(theirs.row, mine.row);

    t = make_turn("resp_c", parent, 0, 64, 6, 65, 2, 0);
    assert_int_equal(turn_add(x->c, "", t, "title", &branched, &err), ERR_NOT_FOUND);
    turn_free(t);
    t = make_turn("resp_d", 0, mine.row, 0, 6, 65, 2, 0);
    assert_int_equal(turn_add(x->c, "", t, "title", &branched, &err), ERR_NOT_FOUND);
    turn_free(t);
    conversation_deinit(&theirs);
    assert_int_equal(conversation_find(x->c, "them", "conv_b", &theirs, &err), 0);
    assert_int_equal(theirs.head, 0);
    conversation_deinit(&mine);
    conversation_deinit(&theirs);
}

TEST_WITH(a_deleted_row_never_names_another, setup, teardown)
{
    check_deleted_rows(*state, false);
}

/* The same with rows that the file had when the server started. */
TEST_WITH(a_deleted_row_of_a_former_process_never_names_another, setup, teardown)
{
    check_deleted_rows(*state, true);
}

/* --- fields and bounds ------------------------------------------------------------------------ */

/* Every field of a turn comes back, also after the file was closed. */
TEST_WITH(a_turn_has_all_its_fields, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0};
    struct err err = {0};
    struct turn *t = NULL;
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &v, &err), 0);
    int64_t a = add(x->c, make_turn("resp_a", 0, v.row, 0, 5, 100, 1, 0));
    struct turn *b = make_turn("resp_b", a, v.row, 2, 4, 200, 7, 2);
    b->created_s = 12345;
    snprintf(b->fingerprint, sizeof b->fingerprint, "%064d", 8);
    b->restoration = xstrdup("{\"r\":1}");
    for (int i = 0; i < TURN_MAX_MARKS; i++)
        b->mark[i] = (struct turn_mark){(uint32_t)(70 + i), (uint32_t)(3 + i),
                                        key_of(90 + i)};
    b->n_marks = TURN_MAX_MARKS;
    int64_t row = add(x->c, b);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(turn_find(x->c, "", "resp_b", &t, &err), 0);
        assert_int_equal(t->row, row);
        assert_int_equal(t->parent, a);
        assert_int_equal(t->conversation, v.row);
        assert_string_equal(t->name, "resp_b");
        assert_int_equal(t->created_s, 12345);
        assert_int_equal(t->depth, 1);
        assert_true(t->is_visible);
        assert_int_equal(strlen(t->fingerprint), 64);
        assert_int_equal(t->fingerprint[63], '8');
        assert_int_equal(t->n_kept, 2);
        assert_int_equal(t->n_tokens, 6);
        for (int k = 0; k < 4; k++)
            assert_int_equal(t->tokens[k], 200 + k);
        assert_int_equal(t->n_keys, 2);
        assert_int_equal(t->keys[1].b[0], 8);
        assert_int_equal(t->n_marks, TURN_MAX_MARKS);
        for (int k = 0; k < TURN_MAX_MARKS; k++) {
            assert_int_equal(t->mark[k].n_bytes, 70 + k);
            assert_int_equal(t->mark[k].n_tokens, 3 + k);
            assert_int_equal(t->mark[k].digest.b[0], 90 + k);
        }
        assert_string_equal(t->answer, "{}");
        assert_string_equal(t->input, "[{\"secret\":\"alpaca\"}]");
        assert_string_equal(t->output, "[]");
        assert_string_equal(t->restoration, "{\"r\":1}");
        turn_free(t);
        conversations_close(x->c);
        x->c = open_file(x, 0, 0, 0);
    }
    conversation_deinit(&v);
}

/* A path of many turns is read in their order. Each turn adds one token. */
TEST_WITH(a_long_path_is_read_in_order, setup, teardown)
{
    enum { N = 70 };
    struct fixture *x = *state;
    struct turn **path;
    struct err err = {0};
    int64_t row = 0;
    int n;
    for (int i = 0; i < N; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "resp_%d", i);
        row = add(x->c, make_turn(name, row, 0, i, 1, 500 + i, 1, 0));
    }
    assert_int_equal(turn_path(x->c, row, &path, &n, &err), 0);
    assert_int_equal(n, N);
    int32_t *ids = turn_path_tokens(path, n);
    for (int i = 0; i < N; i++) {
        assert_int_equal(path[i]->depth, i);
        assert_int_equal(ids[i], 500 + i);
        assert_null(path[i]->answer);
    }
    free(ids);
    turn_path_free(path, n);
    assert_int_equal(turn_path(x->c, 0, &path, &n, &err), 0);
    assert_int_equal(n, 0);
    assert_int_equal(turn_path(x->c, row + 1, &path, &n, &err), ERR_NOT_FOUND);
    assert_null(path);
}

/* Returns the bytes that a turn of make_turn counts for: its content, and what it may touch. */
static uint64_t bytes_of_turn(const struct turn *t)
{
    return 4096 + 4 * (uint64_t)(t->n_tokens - t->n_kept) + 64 * (uint64_t)t->n_keys +
           strlen(t->answer) + strlen(t->input) + strlen(t->output) +
           strlen(t->restoration);
}

/* A turn that just fits is kept, and one byte less is too little. */
TEST_WITH(the_bound_on_bytes_is_exact, setup, teardown)
{
    struct fixture *x = *state;
    struct conversations_stats st;
    struct err err = {0};
    bool branched;
    char want[100];
    add(x->c, make_turn("resp_a", 0, 0, 0, 5, 100, 1, 0));
    assert_int_equal(conversations_stats(x->c, &st, &err), 0);
    for (int less = 1; less >= 0; less--) {
        x->c->o.max_bytes = st.used_bytes + 4096 - (uint64_t)less;
        assert_int_equal(turn_has_room(x->c, "", &err), less ? ERR_LIMIT : 0);
    }
    struct turn *t = make_turn("resp_b", 0, 0, 0, 3000, 100, 1, 3);
    t->restoration = xstrdup("{\"restoration\":true}");
    for (int less = 1; less >= 0; less--) {
        assert_int_equal(conversations_stats(x->c, &st, &err), 0);
        x->c->o.max_bytes = st.used_bytes + bytes_of_turn(t) - (uint64_t)less;
        err = (struct err){0};
        assert_int_equal(turn_add(x->c, "", t, NULL, &branched, &err),
                         less ? ERR_LIMIT : 0);
        if (less) {
            snprintf(want, sizeof want, "the stored turns have %llu bytes, and %llu are",
                     (unsigned long long)st.used_bytes,
                     (unsigned long long)x->c->o.max_bytes);
            assert_memory_equal(err.msg, want, strlen(want));
        }
    }
    turn_free(t);
    x->c->o.max_bytes = 0;
    x->c->o.max_turns = 2;
    assert_int_equal(turn_has_room(x->c, "", &err), ERR_LIMIT);
    assert_memory_equal(err.msg, "2 turns are stored", 18);
    x->c->o.max_turns = 3;
    assert_int_equal(turn_has_room(x->c, "", &err), 0);
}

/* Items that were inserted by hand have no name of their own. If the conversation has gone on
 * meanwhile, they are refused, since they cannot become a branch. */
TEST_WITH(what_has_no_name_cannot_branch, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0};
    struct err err = {0};
    bool branched;
    assert_int_equal(conversation_add(x->c, "", "conv_a", "own", "{}", 0, &v, &err), 0);
    int64_t a = add(x->c, make_turn("resp_a", 0, v.row, 0, 5, 100, 1, 0));
    struct turn *late = make_turn("turn_late", 0, v.row, 0, 0, 0, 1, 0);
    late->is_visible = false;
    assert_int_equal(turn_add(x->c, "", late, "later", &branched, &err), ERR_MISMATCH);
    assert_string_equal(err.msg, "the conversation has changed in the meantime");
    turn_free(late);
    struct turn *next = make_turn("turn_next", a, v.row, 5, 0, 0, 1, 0);
    next->is_visible = false;
    next->created_s = 0; /* now */
    assert_int_equal(turn_add(x->c, "", next, "later", &branched, &err), 0);
    assert_false(branched);
    assert_true(next->created_s >= v.created_s);
    assert_int_equal(code_of_find(x->c, "", "turn_next"), ERR_NOT_FOUND);
    conversation_deinit(&v);
    assert_int_equal(conversation_find(x->c, "", "conv_a", &v, &err), 0);
    assert_int_equal(v.head, next->row);
    assert_int_equal(v.n_turns, 2);
    assert_string_equal(v.title, "own"); /* a title stays */
    turn_free(next);
    conversation_deinit(&v);
    /* a turn whose parent was deleted is not kept */
    struct turn *orphan = make_turn("resp_o", 999, 0, 0, 1, 1, 1, 0);
    assert_int_equal(turn_add(x->c, "", orphan, NULL, &branched, &err), ERR_NOT_FOUND);
    assert_string_equal(err.msg, "the turn to continue was deleted in the meantime");
    turn_free(orphan);
}

/* A branch begins with the turns up to its head, which then have one reference more. */
TEST_WITH(a_branch_shares_its_beginning, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0}, w = {0};
    struct erased gone;
    struct err err = {0};
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &v, &err), 0);
    int64_t a = add(x->c, make_turn("resp_a", 0, v.row, 0, 5, 100, 1, 1));
    int64_t b = add(x->c, make_turn("resp_b", a, v.row, 5, 5, 100, 2, 1));
    assert_int_equal(conversation_add(x->c, "", "conv_b", "t", "{\"m\":1}", b, &w, &err),
                     0);
    assert_string_equal(w.name, "conv_b");
    assert_string_equal(w.title, "t");
    assert_string_equal(w.metadata, "{\"m\":1}");
    assert_int_equal(w.head, b);
    assert_int_equal(w.n_turns, 2);
    assert_true(w.created_s > 0 && w.updated_s == w.created_s && w.row != v.row);
    conversation_deinit(&w);
    assert_int_equal(conversation_delete(x->c, "", "conv_a", &gone, &err), 0);
    assert_int_equal(gone.n_turns, 0);
    assert_int_equal(gone.n_shared, 2);
    assert_doomed(x->c, NULL, 0);
    assert_int_equal(conversation_delete(x->c, "", "conv_b", &gone, &err), 0);
    assert_int_equal(gone.n_turns, 2);
    assert_doomed(x->c, (const int[]){2, 1}, 2);
    struct sha256 keys[2];
    int n = 7;
    for (int max = 1; max <= 2; max++) {
        assert_int_equal(conversations_doomed(x->c, keys, max, &n, &err), 0);
        assert_int_equal(n, max);
    }
    assert_int_equal(conversation_add(x->c, "", "conv_c", NULL, NULL, b, &w, &err),
                     ERR_NOT_FOUND);
    assert_string_equal(err.msg, "the turn to begin from was deleted");
    conversation_deinit(&v);
}

/* Content ends when it was not used for longer than its time; at most `most` at once. */
TEST_WITH(the_bound_on_age_is_exact, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0};
    struct erased gone;
    struct err err = {0};
    struct turn *t;
    for (int i = 0; i < 4; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "resp_%d", i);
        t = make_turn(name, 0, 0, 0, 5, 100, 1, 0);
        t->created_s = 1000;
        add(x->c, t);
    }
    assert_int_equal(conversations_expire(x->c, 1 << 30, 99, &gone, &err), 0);
    assert_int_equal(gone.n_turns, 0); /* content of this file does not age */
    x->c->o.ttl_s = 100;
    assert_int_equal(conversations_expire(x->c, 1100, 99, &gone, &err), 0);
    assert_int_equal(gone.n_turns, 0);
    assert_int_equal(conversations_expire(x->c, 1101, 3, &gone, &err), 0);
    /* the search for old conversations counts, too */
    assert_int_equal(gone.n_turns, 2);
    assert_int_equal(conversations_expire(x->c, 1101, 99, &gone, &err), 0);
    assert_int_equal(gone.n_turns, 2);
    assert_int_equal(conversation_add(x->c, "", "conv_a", NULL, NULL, 0, &v, &err), 0);
    assert_int_equal(conversations_expire(x->c, v.updated_s + 100, 99, &gone, &err), 0);
    conversation_deinit(&v);
    assert_int_equal(conversation_find(x->c, "", "conv_a", &v, &err), 0);
    assert_int_equal(conversations_expire(x->c, v.updated_s + 101, 99, &gone, &err), 0);
    conversation_deinit(&v);
    assert_int_equal(conversation_find(x->c, "", "conv_a", &v, &err), ERR_NOT_FOUND);
}

/* Pages in the order of use, from either end. */
TEST_WITH(pages_may_begin_with_the_oldest, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation page[3];
    struct err err = {0};
    int n;
    bool more;
    for (int i = 0; i < 5; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "conv_%d", i);
        assert_int_equal(conversation_add(x->c, "", name, i % 2 ? "odd" : "even", NULL, 0,
                                          &page[0], &err),
                         0);
        conversation_deinit(&page[0]);
    }
    static const struct {
        const char *after;
        bool oldest_first;
        int limit;
        const char *names;
        bool more;
    } rows[] = {{NULL, true, 3, "012", true},      {"conv_2", true, 3, "34", false},
                {"conv_1", true, 3, "234", false}, {"conv_4", true, 3, "", false},
                {NULL, false, 2, "43", true},      {"conv_1", false, 3, "0", false},
                {"conv_3", false, 3, "210", false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char names[8] = "";
        assert_int_equal(conversation_list(x->c, "", rows[i].after, rows[i].oldest_first,
                                           rows[i].limit, page, &n, &more, &err),
                         0);
        for (int k = 0; k < n; k++) {
            strcat(names, page[k].name + 5);
            conversation_deinit(&page[k]);
        }
        assert_string_equal(names, rows[i].names);
        assert_int_equal(more, rows[i].more);
    }
    struct conversation v;
    assert_int_equal(conversation_find_title(x->c, "", "odd", &v, &err), 0);
    assert_string_equal(v.name, "conv_3"); /* the newest of that title */
    conversation_deinit(&v);
    assert_int_equal(conversation_find_title(x->c, "", "none", &v, &err), ERR_NOT_FOUND);
    assert_string_equal(err.msg, "there is no conversation 'none'");
    assert_int_equal(conversation_find_title(x->c, "", "none", &v, NULL), ERR_NOT_FOUND);
    assert_int_equal(conversation_find(x->c, "", "none", &v, NULL), ERR_NOT_FOUND);
}

/* The forks of the path to `head` as "turn>conversation" with + for turns on the path. */
static char *forks(struct conversations *c, const char *tenant, int64_t head)
{
    struct fork *f = xcalloc(FORKS_MAX, sizeof *f);
    char *out = xstrdup("");
    struct err err = {0};
    int n;
    if (conversation_forks(c, tenant, head, f, &n, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < n; i++) {
        char *more = xasprintf("%s%s%s%s>%s ", out,
                               i > 0 && f[i].parent != f[i - 1].parent ? "| " : "",
                               f[i].is_on_path ? "+" : "", f[i].turn, f[i].conversation);
        free(out);
        out = more;
    }
    free(f);
    return out;
}

static void forks_are(struct conversations *c, const char *tenant, int64_t head,
                      const char *want)
{
    char *got = forks(c, tenant, head);
    assert_string_equal(got, want);
    free(got);
}

/*     a -- b -- c        conversations at c, d, e and f; nothing leads to g
 *      \    \-- d -- e
 *       \-- f -- g */
TEST_WITH(branches_lie_beside_each_other, setup, teardown)
{
    struct fixture *x = *state;
    struct conversation v = {0};
    struct err err = {0};
    int64_t a = add(x->c, make_turn("a", 0, 0, 0, 2, 1, 1, 0));
    int64_t b = add(x->c, make_turn("b", a, 0, 2, 2, 1, 1, 0));
    int64_t c = add(x->c, make_turn("c", b, 0, 4, 2, 1, 1, 0));
    int64_t d = add(x->c, make_turn("d", b, 0, 4, 2, 1, 1, 0));
    int64_t e = add(x->c, make_turn("e", d, 0, 6, 2, 1, 1, 0));
    int64_t f = add(x->c, make_turn("f", a, 0, 2, 2, 1, 1, 0));
    int64_t g = add(x->c, make_turn("g", b, 0, 4, 2, 1, 1, 0));
    const struct {
        const char *name;
        int64_t head;
    } rows[] = {{"to_c", c}, {"to_e", e}, {"to_f", f}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(
            conversation_add(x->c, "", rows[i].name, NULL, NULL, rows[i].head, &v, &err),
            0);
        conversation_deinit(&v);
    }
    assert_int_equal(db_exec(x->c, "UPDATE conversation SET updated_s = id", &err), 0);
    forks_are(x->c, "", c, "+b>to_e f>to_f | +c>to_c d>to_e ");
    forks_are(x->c, "", e, "+b>to_e f>to_f | c>to_c +d>to_e ");
    forks_are(x->c, "", f, "b>to_e +f>to_f ");
    forks_are(x->c, "", a, "");
    forks_are(x->c, "", g, "+b>to_e f>to_f | c>to_c d>to_e ");
    forks_are(x->c, "another", c, "");
}
