/* test_conversations_faults.c - each statement of each operation fails once: the operation says so,
 * and the content stays as it was. */
#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "api/conversations.h"
#include "tests/base/sql_faults.h"
#include "tests/base/tempdir.h"

/* --- content ---------------------------------------------------------------------------------- */

static char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 8];
static char *original; /* bytes of the file before each operation */
static size_t n_original;

static struct conversations *open_with(int64_t bound)
{
    struct conversations_opts o = {.path = path,
                                   .max_turns = bound,
                                   .max_bytes = (uint64_t)bound << 20,
                                   .ttl_s = 1000};
    struct conversations *c = NULL;
    struct err err = {0};
    if (conversations_open(&o, &c, &err) != 0)
        fail_msg("%s", err.msg);
    return c;
}

static struct conversations *open_original(void)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(original, 1, n_original, f), n_original);
    assert_int_equal(fclose(f), 0);
    return open_with(1000);
}

static struct turn *make_turn(const char *name, int64_t parent, int64_t conversation)
{
    struct turn *t = xcalloc(1, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->parent = parent;
    t->conversation = conversation;
    t->is_visible = true;
    t->created_s = 5000;
    t->input = xstrdup("[]");
    t->output = xstrdup("[]");
    t->n_tokens = 2;
    t->tokens = xcalloc(3, sizeof *t->tokens);
    t->n_keys = 1;
    t->keys = xcalloc(2, sizeof *t->keys);
    memcpy(t->keys[0].b, name, strlen(name));
    return t;
}

static int add(struct conversations *c, const char *name, int64_t parent,
               int64_t conversation, struct err *err)
{
    struct turn *t = make_turn(name, parent, conversation);
    bool has_branched;
    int rc = turn_add(c, "t", t, "title", &has_branched, err);
    turn_free(t);
    return rc;
}

/* Makes a conversation of two turns, a turn of its own, and a turn that was erased. */
static int make_original(void **state)
{
    struct conversation v = {0};
    struct erased e;
    struct err err = {0};
    sql_faults_begin();
    tempdir_make(dir, "faults");
    snprintf(path, sizeof path, "%s/c.db", dir);
    struct conversations *c = open_with(0);
    assert_int_equal(conversation_add(c, "t", "conv", "title", "{}", 0, &v, &err), 0);
    assert_int_equal(add(c, "one", 0, v.row, &err), 0);
    assert_int_equal(add(c, "two", 1, v.row, &err), 0);
    assert_int_equal(add(c, "alone", 0, 0, &err), 0);
    assert_int_equal(add(c, "gone", 0, 0, &err), 0);
    assert_int_equal(turn_delete(c, "t", "gone", &e, &err), 0);
    conversation_deinit(&v);
    conversations_close(c);
    return file_read(path, 1 << 20, &original, &n_original, &err);
}

static int remove_original(void **state)
{
    free(original);
    tempdir_remove(dir);
    sql_faults_end();
    return 0;
}

/* Returns the rows of all tables as text. The caller frees it. */
static char *content(void)
{
    static const char *const tables[] = {"turn", "conversation", "chunk", "doomed"};
    struct textbuf b = {0};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        char sql[64];
        sqlite3_stmt *st = NULL;
        snprintf(sql, sizeof sql, "SELECT * FROM %s ORDER BY 1", tables[i]);
        assert_int_equal(sqlite3_prepare_v2(sql_faults_db(), sql, -1, &st, NULL),
                         SQLITE_OK);
        while (sqlite3_step(st) == SQLITE_ROW) {
            for (int k = 0; k < sqlite3_column_count(st); k++) {
                textbuf_add(&b, sqlite3_column_blob(st, k),
                            (size_t)sqlite3_column_bytes(st, k));
                textbuf_add(&b, "|", 1);
            }
            textbuf_add(&b, "\n", 1);
        }
        sqlite3_finalize(st);
    }
    for (size_t i = 0; i < b.n; i++)
        b.p[i] = b.p[i] == 0 ? '0' : b.p[i];
    textbuf_add(&b, "", 1);
    return b.p;
}

/* --- operations ------------------------------------------------------------------------------- */

static int adds_to_a_conversation(struct conversations *c, struct err *err)
{
    return add(c, "three", 2, 1, err);
}

static int adds_a_branch(struct conversations *c, struct err *err)
{
    return add(c, "branch", 1, 0, err);
}

static int asks_for_room(struct conversations *c, struct err *err)
{
    return turn_has_room(c, "", err);
}

static int finds_a_turn(struct conversations *c, struct err *err)
{
    struct turn *t = NULL;
    int rc = turn_find(c, "t", "two", &t, err);
    turn_free(t);
    return rc;
}

static int reads_a_path(struct conversations *c, struct err *err)
{
    struct turn **turns = NULL;
    int n = 0, rc = turn_path(c, 2, &turns, &n, err);
    if (rc == 0) {
        assert_int_equal(n, 2);
        turn_path_free(turns, n);
    }
    return rc;
}

static int adds_a_conversation(struct conversations *c, struct err *err)
{
    struct conversation v = {0};
    int rc = conversation_add(c, "t", "other", "title", "{}", 2, &v, err);
    conversation_deinit(&v);
    return rc;
}

static int finds_a_conversation(struct conversations *c, struct err *err)
{
    struct conversation v = {0};
    int rc = conversation_find(c, "t", "conv", &v, err);
    conversation_deinit(&v);
    return rc;
}

static int finds_a_title(struct conversations *c, struct err *err)
{
    struct conversation v = {0};
    int rc = conversation_find_title(c, "t", "title", &v, err);
    conversation_deinit(&v);
    return rc;
}

static int sets_a_title(struct conversations *c, struct err *err)
{
    return conversation_set(c, "", 1, "new", "{\"a\":\"b\"}", err);
}

static int list_behind(struct conversations *c, const char *after, struct err *err)
{
    struct conversation v[2] = {{0}};
    int n = 0;
    bool more;
    int rc = conversation_list(c, "t", after, true, 2, v, &n, &more, err);
    for (int i = 0; i < n; i++)
        conversation_deinit(&v[i]);
    return rc;
}

static int lists(struct conversations *c, struct err *err)
{
    return list_behind(c, NULL, err);
}

static int lists_behind(struct conversations *c, struct err *err)
{
    return list_behind(c, "conv", err);
}

static int deletes_a_turn(struct conversations *c, struct err *err)
{
    struct erased e;
    return turn_delete(c, "t", "alone", &e, err);
}

static int deletes_a_conversation(struct conversations *c, struct err *err)
{
    struct erased e;
    return conversation_delete(c, "t", "conv", &e, err);
}

static int rewrites(struct conversations *c, struct err *err)
{
    struct erased e;
    struct turn *t = make_turn("anew", 0, 1);
    t->n_keys = 0;
    int rc = conversation_rewrite(c, "t", 2, t, NULL, &e, err);
    turn_free(t);
    return rc;
}

static int expires(struct conversations *c, struct err *err)
{
    struct erased e;
    return conversations_expire(c, INT64_C(1) << 40, 10, &e, err);
}

static int lists_doomed(struct conversations *c, struct err *err)
{
    struct sha256 keys[4];
    int n;
    return conversations_doomed(c, keys, 4, &n, err);
}

static int buries(struct conversations *c, struct err *err)
{
    struct sha256 key = {"gone"};
    return conversations_buried(c, &key, 1, err);
}

static int counts_all(struct conversations *c, struct err *err)
{
    struct conversations_stats s;
    return conversations_stats(c, &s, err);
}

static int counts_of_a_tenant(struct conversations *c, struct err *err)
{
    struct conversations_stats s;
    return conversations_stats_of(c, "t", &s, err);
}

static const struct operation {
    const char *name;
    int (*run)(struct conversations *c, struct err *err);
    bool is_writing;
} operations[] = {{"adds_to_a_conversation", adds_to_a_conversation, true},
                  {"adds_a_branch", adds_a_branch, true},
                  {"asks_for_room", asks_for_room, false},
                  {"finds_a_turn", finds_a_turn, false},
                  {"reads_a_path", reads_a_path, false},
                  {"adds_a_conversation", adds_a_conversation, true},
                  {"finds_a_conversation", finds_a_conversation, false},
                  {"finds_a_title", finds_a_title, false},
                  {"sets_a_title", sets_a_title, true},
                  {"lists", lists, false},
                  {"lists_behind", lists_behind, false},
                  {"deletes_a_turn", deletes_a_turn, true},
                  {"deletes_a_conversation", deletes_a_conversation, true},
                  {"rewrites", rewrites, true},
                  {"expires", expires, true},
                  {"lists_doomed", lists_doomed, false},
                  {"buries", buries, true},
                  {"counts_all", counts_all, false},
                  {"counts_of_a_tenant", counts_of_a_tenant, false}};

/* --- tests ------------------------------------------------------------------------------------ */

/* Lets the statement number `at` of an operation fail. Returns false if there is none. */
static bool fails_at(const struct operation *o, enum sql_fault_kind kind, int at)
{
    struct err err = {0};
    struct conversations *c = open_original();
    char *before = content();
    sql_fault_set(kind, at);
    int rc = o->run(c, &err);
    bool is_raised = sql_fault_has_come(), is_late = sql_fault_is_checkpoint();
    sql_fault_set(kind, 0);
    char *after = content();
    if (is_raised && (rc >= 0 || err.msg[0] == 0 || err.code != rc))
        fail_msg("%s, kind %d, statement %d: returns %d [%s]", o->name, kind, at, rc,
                 err.msg);
    if (!is_raised && rc != 0)
        fail_msg("%s without a fault: %d [%s]", o->name, rc, err.msg);
    bool has_changed = strcmp(before, after) != 0;
    if (has_changed != (o->is_writing && (!is_raised || is_late)))
        fail_msg("%s, kind %d, statement %d: the content\n%s became\n%s", o->name, kind, at,
                 before, after);
    if (sqlite3_get_autocommit(sql_faults_db()) == 0)
        fail_msg("%s, kind %d, statement %d: the transaction is open", o->name, kind, at);
    /* nothing hangs on the failed operation: the same one works now */
    if (is_raised && !is_late && (rc = o->run(c, &err)) != 0)
        fail_msg("%s, kind %d, behind statement %d: %d [%s]", o->name, kind, at, rc,
                 err.msg);
    free(before);
    free(after);
    conversations_close(c);
    return is_raised;
}

TEST(each_statement_of_each_operation_fails)
{
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
        for (enum sql_fault_kind kind = 0; kind < SQL_FAULT_KINDS; kind++) {
            int at = 1;
            while (fails_at(&operations[i], kind, at))
                at++;
            assert_true(at > 1);
        }
}

/* Opening cuts the log; if that fails, the content is there all the same. */
TEST(each_statement_of_opening_fails)
{
    for (enum sql_fault_kind kind = 0; kind < SQL_FAULT_KINDS; kind++)
        for (int at = 1;; at++) {
            struct conversations_opts o = {.path = path};
            struct conversations *c = NULL;
            struct err err = {0};
            conversations_close(open_original());
            sql_fault_set(kind, at);
            int rc = conversations_open(&o, &c, &err);
            bool is_raised = sql_fault_has_come(), is_late = sql_fault_is_checkpoint();
            sql_fault_set(kind, 0);
            if ((rc < 0) != (is_raised && !is_late) || (c != NULL) != (rc == 0))
                fail_msg("kind %d, statement %d: %d [%s]", kind, at, rc, err.msg);
            if (rc != 0)
                assert_int_equal(err.code, rc);
            conversations_close(c);
            c = open_with(0);
            assert_int_equal(finds_a_conversation(c, &err), 0);
            conversations_close(c);
            if (!is_raised)
                break;
        }
}

int main(void)
{
    return unit_run(make_original, remove_original);
}
