/* conversations_turn.c - see conversations.h: adding a turn, and reading a path of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "api/conversations_db.h"

enum {
    MARK_BYTES = 40,    /* a mark's n_bytes, n_tokens and digest */
    MAX_DEPTH = 100000, /* longest path; a longer one means damage */
    /* Bytes of pages that a turn may touch beyond its own content. */
    TURN_OVERHEAD = 4 << 10
};

void turn_free(struct turn *t)
{
    if (t == NULL)
        return;
    free(t->answer);
    free(t->input);
    free(t->output);
    free(t->restoration);
    free(t->tokens);
    free(t->keys);
    free(t);
}

void turn_path_free(struct turn **path, int n)
{
    for (int i = 0; path != NULL && i < n; i++)
        turn_free(path[i]);
    free(path);
}

/* --- encoding --------------------------------------------------------------------------------- */

static void marks_encode(const struct turn *t, uint8_t out[TURN_MAX_MARKS * MARK_BYTES])
{
    for (int i = 0; i < t->n_marks; i++, out += MARK_BYTES) {
        put_u32(out, t->mark[i].n_bytes);
        put_u32(out + 4, t->mark[i].n_tokens);
        memcpy(out + 8, t->mark[i].digest.b, sizeof t->mark[i].digest.b);
    }
}

static void marks_decode(struct turn *t, const uint8_t *p, size_t n)
{
    t->n_marks = (int)MIN(n / MARK_BYTES, TURN_MAX_MARKS);
    for (int i = 0; i < t->n_marks; i++, p += MARK_BYTES) {
        t->mark[i].n_bytes = get_u32(p);
        t->mark[i].n_tokens = get_u32(p + 4);
        memcpy(t->mark[i].digest.b, p + 8, sizeof t->mark[i].digest.b);
    }
}

static uint8_t *tokens_encode(const struct turn *t, size_t *n)
{
    int count = t->n_tokens - t->n_kept;
    uint8_t *out = xmalloc((size_t)count * 4 + 1);
    for (int i = 0; i < count; i++)
        put_u32(out + 4 * i, (uint32_t)t->tokens[i]);
    *n = (size_t)count * 4;
    return out;
}

/* Decodes a turn's tokens. A row that makes no sense means damage, not a bug, so it is an error. */
static int tokens_decode(struct turn *t, const uint8_t *p, size_t n, struct err *err)
{
    int64_t count = (int64_t)t->n_tokens - t->n_kept;
    if (t->n_kept < 0 || count < 0 || n != (size_t)count * 4)
        return err_set(err, ERR_CORRUPT, "the tokens of turn %s are damaged", t->name);
    t->tokens = xmalloc(n + 1);
    for (int64_t i = 0; i < count; i++)
        t->tokens[i] = (int32_t)get_u32(p + 4 * i);
    return 0;
}

int db_used_bytes(struct conversations *c, uint64_t *out, struct err *err)
{
    int64_t pages, spare, page_bytes;
    int rc = db_int(c, "PRAGMA page_count", 0, &pages, err);
    if (rc == 0)
        rc = db_int(c, "PRAGMA freelist_count", 0, &spare, err);
    if (rc == 0)
        rc = db_int(c, "PRAGMA page_size", 0, &page_bytes, err);
    if (rc == 0)
        *out = (uint64_t)((pages - spare) * page_bytes);
    return rc;
}

/* --- shares ----------------------------------------------------------------------------------- */

/* The bytes of turn_bytes, and of content_bytes (conversations.c), in SQL. */
static const char share_tables[] =
    "CREATE TEMP TABLE IF NOT EXISTS share(tenant TEXT PRIMARY KEY,"
    " n_turns INTEGER NOT NULL, n_bytes INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TEMP VIEW IF NOT EXISTS turn_cost AS SELECT id, tenant, 1 AS n,"
    " 4096 + length(tokens) + 2 * length(keys)"
    " + coalesce(length(CAST(answer AS BLOB)), 0) + length(CAST(input AS BLOB))"
    " + length(CAST(output AS BLOB)) + coalesce(length(CAST(restoration AS BLOB)), 0)"
    " AS b FROM main.turn;"
    "CREATE TEMP VIEW IF NOT EXISTS other_cost AS SELECT id, tenant, 0 AS n,"
    " 512 + coalesce(length(CAST(title AS BLOB)), 0)"
    " + coalesce(length(CAST(metadata AS BLOB)), 0) AS b FROM main.conversation;";

static const char share_counts[] =
    "DELETE FROM share;"
    "INSERT INTO share SELECT tenant, sum(n), sum(b) FROM (SELECT * FROM turn_cost"
    " UNION ALL SELECT * FROM other_cost) GROUP BY tenant;";

/* Temporary triggers count along, so that a transaction that is rolled back leaves the counts as
 * they were, and the file keeps its format. */
static const struct {
    const char *name, *when, *sign, *view, *row;
} share_triggers[] = {
    {"turn_in", "AFTER INSERT ON main.turn", "+", "turn_cost", "NEW"},
    {"turn_out", "BEFORE DELETE ON main.turn", "-", "turn_cost", "OLD"},
    {"other_in", "AFTER INSERT ON main.conversation", "+", "other_cost", "NEW"},
    {"other_out", "BEFORE DELETE ON main.conversation", "-", "other_cost", "OLD"},
    {"set_out", "BEFORE UPDATE OF title, metadata ON main.conversation", "-", "other_cost",
     "OLD"},
    {"set_in", "AFTER UPDATE OF title, metadata ON main.conversation", "+", "other_cost",
     "NEW"},
};

static int count_shares(struct conversations *c, struct err *err)
{
    int rc = db_exec(c, share_tables, err);
    for (size_t i = 0; rc == 0 && i < sizeof share_triggers / sizeof share_triggers[0];
         i++) {
        const char *sign = share_triggers[i].sign;
        char *sql = xasprintf(
            "CREATE TEMP TRIGGER IF NOT EXISTS %s %s BEGIN"
            " INSERT INTO share SELECT tenant, %sn, %sb FROM %s WHERE id = %s.id"
            " ON CONFLICT(tenant) DO UPDATE SET n_turns = n_turns + excluded.n_turns,"
            " n_bytes = n_bytes + excluded.n_bytes; END",
            share_triggers[i].name, share_triggers[i].when, sign, sign,
            share_triggers[i].view, share_triggers[i].row);
        rc = db_exec(c, sql, err);
        free(sql);
    }
    return rc == 0 ? db_exec(c, share_counts, err) : rc;
}

/* Reads what a tenant keeps. The first call counts all. */
static int read_share(struct conversations *c, const char *tenant, int64_t *n_turns,
                      uint64_t *n_bytes, struct err *err)
{
    if (!c->has_shares) {
        int rc = count_shares(c, err);
        if (rc != 0)
            return rc;
        c->has_shares = true;
        c->shares_are_new = sqlite3_get_autocommit(c->db) == 0;
    }
    sqlite3_stmt *st;
    int rc = db_query(c, &st, "SELECT n_turns, n_bytes FROM share WHERE tenant = ?1",
                      DB_VALUES(DB_TEXT(tenant)), err);
    *n_turns = rc > 0 ? sqlite3_column_int64(st, 0) : 0;
    *n_bytes = rc > 0 ? (uint64_t)MAX(sqlite3_column_int64(st, 1), 0) : 0;
    db_done(st);
    return rc < 0 ? rc : 0;
}

static int too_many_turns(int64_t n, struct err *err)
{
    return err_set(err, ERR_LIMIT,
                   "%lld turns are stored, which is the most that this server keeps: "
                   "delete some, or send \"store\": false",
                   (long long)n);
}

static int too_many_bytes(uint64_t used, uint64_t most, struct err *err)
{
    return err_set(err, ERR_LIMIT,
                   "the stored turns have %llu bytes, and %llu are the most that this "
                   "server keeps: delete some, or send \"store\": false",
                   (unsigned long long)used, (unsigned long long)most);
}

/* Checks the tenant's share, if one tenant has not all of the file. A file that is smaller than a
 * share is not counted. */
static int check_share(struct conversations *c, const char *tenant, int more_turns,
                       uint64_t more_bytes, int64_t n_turns, uint64_t used, struct err *err)
{
    enum { FREE_BYTES = 64 << 10 }; /* pages that belong to nobody */
    int n = c->o.n_tenants;
    int64_t most_turns = c->o.max_turns > 0 ? MAX(c->o.max_turns / n, 1) : INT64_MAX;
    uint64_t most_bytes = c->o.max_bytes > 0
                              ? (c->o.max_bytes - MIN(c->o.max_bytes, FREE_BYTES)) /
                                    (uint64_t)n
                              : UINT64_MAX;
    if (n_turns + more_turns <= most_turns && used + more_bytes <= most_bytes)
        return 0;
    int rc = read_share(c, tenant, &n_turns, &used, err);
    if (rc == 0 && n_turns + more_turns > most_turns)
        return too_many_turns(n_turns, err);
    return rc == 0 && used + more_bytes > most_bytes ? too_many_bytes(used, most_bytes, err)
                                                     : rc;
}

int db_check_room(struct conversations *c, const char *tenant, int more_turns,
                  uint64_t more_bytes, struct err *err)
{
    int64_t n_turns = 0;
    uint64_t used = 0;
    int rc = 0;
    if (c->o.max_turns > 0)
        rc = db_count_turns(c, &n_turns, err);
    if (rc == 0 && c->o.max_bytes > 0)
        rc = db_used_bytes(c, &used, err);
    if (rc == 0 && c->o.n_tenants > 1)
        rc = check_share(c, tenant, more_turns, more_bytes, n_turns, used, err);
    if (rc == 0 && c->o.max_turns > 0 && n_turns + more_turns > c->o.max_turns)
        return too_many_turns(n_turns, err);
    if (rc == 0 && c->o.max_bytes > 0 && used + more_bytes > c->o.max_bytes)
        return too_many_bytes(used, c->o.max_bytes, err);
    return rc;
}

int turn_has_room(struct conversations *c, const char *tenant, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    int rc = db_check_room(c, tenant, 1, TURN_OVERHEAD, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static uint64_t turn_bytes(const struct turn *t)
{
    const char *texts[] = {t->answer, t->input, t->output, t->restoration};
    uint64_t n = TURN_OVERHEAD + 4 * (uint64_t)(t->n_tokens - t->n_kept) +
                 2 * sizeof(struct sha256) * (uint64_t)t->n_keys;
    for (int i = 0; i < 4; i++)
        n += texts[i] != NULL ? strlen(texts[i]) : 0;
    return n;
}

/* Writes a turn as a new row, whose number t->row gets. */
static int insert(struct conversations *c, const char *tenant, struct turn *t,
                  struct err *err)
{
    uint8_t marks[TURN_MAX_MARKS * MARK_BYTES];
    size_t n_tokens;
    marks_encode(t, marks);
    uint8_t *tokens = tokens_encode(t, &n_tokens);
    t->row = ++c->last_turn;
    int rc = db_run(
        c,
        "INSERT INTO turn(name, tenant, parent, conversation, depth, created_s, used_s,"
        " visible, fingerprint, n_kept, n_tokens, marks, tokens, keys, answer, input,"
        " output, restoration, id, moment)"
        " VALUES(?1, ?2, ?3, ?4, ?5, ?6,"
        " max(?6, coalesce((SELECT used_s FROM turn WHERE id = ?3), 0)),"
        " ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
        DB_VALUES(
            DB_TEXT(t->name), DB_TEXT(tenant), DB_ROW(t->parent), DB_ROW(t->conversation),
            DB_INT(t->depth), DB_INT(t->created_s), DB_INT(t->is_visible),
            DB_TEXT(t->fingerprint), DB_INT(t->n_kept), DB_INT(t->n_tokens),
            DB_BLOB(marks, t->n_marks * MARK_BYTES), DB_BLOB(tokens, (int64_t)n_tokens),
            DB_BLOB(t->keys, t->n_keys * (int64_t)sizeof t->keys[0]), DB_TEXT(t->answer),
            DB_TEXT(t->input), DB_TEXT(t->output), DB_TEXT(t->restoration), DB_INT(t->row),
            DB_TEXT(t->moment[0] != 0 ? t->moment : NULL)),
        err);
    free(tokens);
    /* a known count goes up by one; after a rollback all turns are counted again */
    c->n_turns += c->n_turns >= 0;
    return rc;
}

/* Adds a turn's chunks. A doomed chunk that is not erased yet is doomed no longer. */
static int add_chunks(struct conversations *c, const struct turn *t, struct err *err)
{
    static const char *const sql[] = {
        "INSERT INTO chunk(key, n_turns) VALUES(?1, 1)"
        " ON CONFLICT(key) DO UPDATE SET n_turns = n_turns + 1",
        "DELETE FROM doomed WHERE key = ?1"};
    int rc = 0;
    for (int i = 0; rc == 0 && i < 2 * t->n_keys; i++)
        rc = db_run(c, sql[i % 2],
                    DB_VALUES(DB_BLOB(t->keys[i / 2].b, sizeof t->keys[0].b)), err);
    return rc;
}

/* Sets t->depth. Adds t's reference to its parent, which counts as used now. */
static int refer_to_parent(struct conversations *c, struct turn *t, struct err *err)
{
    int64_t depth = 0;
    t->depth = 0;
    if (t->parent == 0)
        return 0;
    int rc = db_int(c, "SELECT depth + 1 FROM turn WHERE id = ?1", t->parent, &depth, err);
    if (rc == 0 && depth == 0)
        return err_set(err, ERR_NOT_FOUND,
                       "the turn to continue was deleted in the meantime");
    t->depth = (int)depth;
    return rc != 0 ? rc
                   : db_run(c,
                            "UPDATE turn SET n_refs = n_refs + 1, used_s = max(used_s, ?2)"
                            " WHERE id = ?1",
                            DB_VALUES(DB_INT(t->parent), DB_INT(t->created_s)), err);
}

/* Checks whether a turn may become the head of its conversation, before it is inserted. */
static int check_head(struct conversations *c, struct turn *t, bool *has_branched,
                      struct err *err)
{
    int64_t known = 0, head = 0;
    int rc = db_int(c, "SELECT count(*) FROM conversation WHERE id = ?1", t->conversation,
                    &known, err);
    if (rc == 0 && known == 0)
        return err_set(err, ERR_NOT_FOUND, "the conversation was deleted in the meantime");
    if (rc == 0)
        rc = db_int(c, "SELECT coalesce(head, 0) FROM conversation WHERE id = ?1",
                    t->conversation, &head, err);
    *has_branched = rc == 0 && head != t->parent;
    if (*has_branched)
        t->conversation = 0;
    return rc;
}

/* Moves the conversation's head to t. Times of use never go back: a machine may start with its
 * clock behind, and the conversations used then would expire as soon as the clock is right. The old
 * head loses the conversation's reference only now, when t refers to it. */
static int move_head(struct conversations *c, const struct turn *t, const char *title,
                     struct err *err)
{
    int rc = db_run(c,
                    "UPDATE conversation SET head = ?2, updated_s = max(updated_s, ?3),"
                    " n_turns = ?4, title = coalesce(title, ?5) WHERE id = ?1",
                    DB_VALUES(DB_INT(t->conversation), DB_INT(t->row), DB_INT(t->created_s),
                              DB_INT(t->depth + 1), DB_TEXT(title)),
                    err);
    if (rc == 0)
        rc = db_refer(c, t->row, 1, err);
    return rc == 0 && t->parent != 0 ? db_refer(c, t->parent, -1, err) : rc;
}

int turn_add(struct conversations *c, const char *tenant, struct turn *t, const char *title,
             bool *has_branched, struct err *err)
{
    CHECK(t->input != NULL && t->output != NULL && t->n_marks <= TURN_MAX_MARKS);
    CHECK(t->is_visible || t->conversation != 0);
    *has_branched = false;
    if (t->created_s == 0)
        t->created_s = clock_wall_s();
    int rc = db_lock(c, err);
    if (rc != 0)
        return rc;
    rc = db_check_room(c, tenant, 1, turn_bytes(t), err);
    if (rc == 0)
        rc = refer_to_parent(c, t, err);
    if (rc == 0 && t->conversation != 0)
        rc = check_head(c, t, has_branched, err);
    if (rc == 0 && *has_branched && !t->is_visible)
        rc = err_set(err, ERR_MISMATCH, "the conversation has changed in the meantime");
    if (rc == 0)
        rc = insert(c, tenant, t, err);
    if (rc == 0)
        rc = add_chunks(c, t, err);
    if (rc == 0 && t->conversation != 0)
        rc = move_head(c, t, title, err);
    return db_end(c, rc, err);
}

int conversation_rewrite(struct conversations *c, const char *tenant, int64_t head,
                         struct turn *t, const char *title, struct erased *out,
                         struct err *err)
{
    bool has_branched = false;
    int64_t row = t->conversation;
    *out = (struct erased){0};
    CHECK(t->parent == 0 && row != 0);
    t->created_s = clock_wall_s();
    t->parent = head; /* only while the head is checked */
    int rc = db_lock(c, err);
    if (rc != 0)
        return rc;
    rc = check_head(c, t, &has_branched, err);
    if (rc == 0 && has_branched)
        rc = err_set(err, ERR_MISMATCH, "the conversation has changed in the meantime");
    t->parent = 0;
    if (rc == 0 && head != 0)
        rc = db_release(c, head, out, err);
    if (rc == 0)
        rc = db_hide_all(c, row, out, err);
    if (rc == 0)
        rc = insert(c, tenant, t, err);
    if (rc == 0)
        rc = move_head(c, t, NULL, err);
    if (rc == 0 && title != NULL)
        rc = db_run(c, "UPDATE conversation SET title = ?2 WHERE id = ?1",
                    DB_VALUES(DB_INT(row), DB_TEXT(title[0] != 0 ? title : NULL)), err);
    return db_end_and_overwrite(c, rc, err);
}

/* --- reading ---------------------------------------------------------------------------------- */

#define COLUMNS                                                                            \
    "id, parent, conversation, name, created_s, depth, visible, fingerprint, n_kept, "     \
    "n_tokens, marks, tokens, keys, answer, input, output, restoration, "                  \
    "moment"

static int read_turn(sqlite3_stmt *st, struct turn **out, struct err *err)
{
    struct turn *t = xcalloc(1, sizeof *t);
    *t = (struct turn){.row = sqlite3_column_int64(st, 0),
                       .parent = sqlite3_column_int64(st, 1),
                       .conversation = sqlite3_column_int64(st, 2),
                       .created_s = sqlite3_column_int64(st, 4),
                       .depth = sqlite3_column_int(st, 5),
                       .is_visible = sqlite3_column_int(st, 6) != 0,
                       .n_kept = sqlite3_column_int(st, 8),
                       .n_tokens = sqlite3_column_int(st, 9)};
    const char *fingerprint = (const char *)sqlite3_column_text(st, 7);
    db_name(st, 3, t->name);
    snprintf(t->fingerprint, sizeof t->fingerprint, "%s",
             fingerprint != NULL ? fingerprint : "");
    marks_decode(t, sqlite3_column_blob(st, 10), (size_t)sqlite3_column_bytes(st, 10));
    int rc = tokens_decode(t, sqlite3_column_blob(st, 11),
                           (size_t)sqlite3_column_bytes(st, 11), err);
    size_t n = (size_t)sqlite3_column_bytes(st, 12);
    t->n_keys = (int)(n / sizeof t->keys[0]);
    t->keys = xmalloc(n + 1);
    if (n > 0)
        memcpy(t->keys, sqlite3_column_blob(st, 12), n);
    t->answer = db_text(st, 13);
    t->input = db_text(st, 14);
    t->output = db_text(st, 15);
    t->restoration = db_text(st, 16);
    const char *moment = (const char *)sqlite3_column_text(st, 17);
    snprintf(t->moment, sizeof t->moment, "%s", moment != NULL ? moment : "");
    if (rc != 0) {
        turn_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

int turn_find(struct conversations *c, const char *tenant, const char *name,
              struct turn **out, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    sqlite3_stmt *st;
    int rc = db_query(
        c, &st, "SELECT " COLUMNS " FROM turn WHERE name = ?1 AND tenant = ?2 AND visible",
        DB_VALUES(DB_TEXT(name), DB_TEXT(tenant)), err);
    if (rc > 0)
        rc = read_turn(st, out, err);
    else if (rc == 0)
        rc = db_unknown(c, "response", name, err);
    db_done(st);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Drops the answer: it repeats the output, and callers of a path need only input and output. */
static void drop_answer(struct turn *t)
{
    free(t->answer);
    free(t->restoration);
    t->answer = t->restoration = NULL;
}

static int read_path(struct conversations *c, int64_t row, struct turn ***path, int *n,
                     struct err *err)
{
    int cap = 0, rc = 0;
    while (rc == 0 && row != 0) {
        sqlite3_stmt *st;
        GROW(*path, *n, cap);
        rc = db_query(c, &st, "SELECT " COLUMNS " FROM turn WHERE id = ?1",
                      DB_VALUES(DB_INT(row)), err);
        if (rc > 0)
            rc = read_turn(st, &(*path)[*n], err);
        else if (rc == 0)
            rc = err_set(err, ERR_NOT_FOUND, "a turn was deleted in the meantime");
        if (rc == 0)
            drop_answer((*path)[*n]);
        db_done(st);
        if (rc != 0)
            return rc;
        row = (*path)[(*n)++]->parent;
        if (*n > MAX_DEPTH)
            return err_set(err, ERR_CORRUPT, "conversations in %s: turns in a circle",
                           c->path);
    }
    return rc;
}

/* Refuses a turn that keeps more tokens of its parent than the parent has: the file is damaged. */
static int check_path(struct turn *const *path, int n, struct err *err)
{
    for (int i = 0; i < n; i++) {
        int before = i > 0 ? path[i - 1]->n_tokens : 0;
        if (path[i]->n_kept > before)
            return err_set(err, ERR_CORRUPT, "the tokens of turn %s are damaged",
                           path[i]->name);
    }
    return 0;
}

int turn_path(struct conversations *c, int64_t row, struct turn ***out, int *n,
              struct err *err)
{
    struct turn **path = NULL;
    *n = 0;
    pthread_mutex_lock(&c->lock);
    int rc = read_path(c, row, &path, n, err);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < *n / 2; i++) { /* reverses the path, which was read from its end */
        struct turn *t = path[i];
        path[i] = path[*n - 1 - i];
        path[*n - 1 - i] = t;
    }
    if (rc == 0)
        rc = check_path(path, *n, err);
    if (rc != 0) {
        turn_path_free(path, *n);
        path = NULL;
        *n = 0;
    }
    *out = path;
    return rc;
}

int32_t *turn_path_tokens(struct turn *const *path, int n)
{
    int total = n > 0 ? path[n - 1]->n_tokens : 0, until = total;
    int32_t *ids = xmalloc(((size_t)total + 1) * sizeof *ids);
    /* Each turn fills the part of the ids before the part of the next turn. */
    for (int i = n - 1; i >= 0 && until > 0; i--) {
        const struct turn *t = path[i];
        if (t->n_kept < until)
            memcpy(ids + t->n_kept, t->tokens, (size_t)(until - t->n_kept) * sizeof *ids);
        until = MIN(t->n_kept, until);
    }
    return ids;
}
