/* conversations_erase.c - see conversations.h: deleting, and the turns and chunks that go with
 * it.
 *
 * A turn is erased when it has no name and no references; then its parent may follow. Chunks
 * that no turn names any more are recorded as doomed in the same transaction. So a process that
 * is killed before it has erased them from the store finds them again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "api/conversations_db.h"

/* --- one turn --------------------------------------------------------------------------------- */

static int key_run(struct conversations *c, const char *sql, const uint8_t *key,
                   struct err *err)
{
    return db_run(c, sql, DB_VALUES(DB_BLOB(key, sizeof(struct sha256))), err);
}

/* The chunk loses one turn that names it. It is doomed if no other does. */
static int drop_chunk(struct conversations *c, const uint8_t *key, struct err *err)
{
    int rc = key_run(c, "UPDATE chunk SET n_turns = n_turns - 1 WHERE key = ?1", key, err);
    if (rc == 0)
        rc = key_run(c, "DELETE FROM chunk WHERE key = ?1 AND n_turns <= 0", key, err);
    if (rc == 0 && sqlite3_changes(c->db) > 0)
        rc = key_run(c, "INSERT OR IGNORE INTO doomed(key) VALUES(?1)", key, err);
    return rc;
}

/* Dooms chunks from the last to the first, so that children are erased from the store before
 * their parents. */
static int drop_chunks(struct conversations *c, const uint8_t *keys, size_t n,
                       struct err *err)
{
    int rc = 0;
    for (size_t i = n / sizeof(struct sha256); rc == 0 && i > 0; i--)
        rc = drop_chunk(c, keys + (i - 1) * sizeof(struct sha256), err);
    return rc;
}

struct gone {
    bool is_gone;
    int64_t parent;
    uint8_t *keys;
    size_t n_keys_bytes;
};

/* Sets *g: whether the turn is not visible and has no references, and then its parent and its keys,
 * which the caller frees. */
static int look(struct conversations *c, int64_t row, struct gone *g, struct err *err)
{
    *g = (struct gone){0};
    sqlite3_stmt *st;
    int rc = db_query(
        c, &st,
        "SELECT parent, keys FROM turn WHERE id = ?1 AND n_refs <= 0 AND NOT visible",
        DB_VALUES(DB_INT(row)), err);
    if (rc > 0) {
        g->is_gone = true;
        g->parent = sqlite3_column_int64(st, 0);
        g->n_keys_bytes = (size_t)sqlite3_column_bytes(st, 1);
        g->keys = xmalloc(g->n_keys_bytes + 1);
        if (g->n_keys_bytes > 0)
            memcpy(g->keys, sqlite3_column_blob(st, 1), g->n_keys_bytes);
    }
    db_done(st);
    return rc < 0 ? rc : 0;
}

/* Erases the turn and then its parents, up to the first turn that is visible or has references. */
static int collect(struct conversations *c, int64_t row, struct erased *out,
                   struct err *err)
{
    int rc = 0;
    while (rc == 0 && row != 0) {
        struct gone g;
        rc = look(c, row, &g, err);
        if (rc != 0 || !g.is_gone)
            return rc;
        rc = drop_chunks(c, g.keys, g.n_keys_bytes, err);
        free(g.keys);
        if (rc == 0)
            rc = db_run(c, "DELETE FROM turn WHERE id = ?1", DB_VALUES(DB_INT(row)), err);
        if (rc == 0)
            rc = db_refer(c, g.parent, -1, err);
        out->n_turns++;
        c->n_turns -= c->n_turns > 0;
        row = g.parent;
    }
    return rc;
}

int db_release(struct conversations *c, int64_t row, struct erased *out, struct err *err)
{
    int rc = db_refer(c, row, -1, err);
    return rc != 0 ? rc : collect(c, row, out, err);
}

/* Finds the row of a name. Returns the error of db_unknown if there is none. */
static int row_of(struct conversations *c, const char *sql, const char *what,
                  const char *tenant, const char *name, int64_t *row, struct err *err)
{
    sqlite3_stmt *st;
    int rc = db_query(c, &st, sql, DB_VALUES(DB_TEXT(name), DB_TEXT(tenant)), err);
    if (rc > 0)
        *row = sqlite3_column_int64(st, 0);
    db_done(st);
    return rc > 0 ? 0 : rc < 0 ? rc : db_unknown(c, what, name, err);
}

/* Removes the turn's name, and erases it if it has no references. Else counts it as shared. */
static int hide(struct conversations *c, int64_t row, struct erased *out, struct err *err)
{
    int before = out->n_turns;
    int rc = db_run(c, "UPDATE turn SET visible = 0 WHERE id = ?1", DB_VALUES(DB_INT(row)),
                    err);
    if (rc == 0)
        rc = collect(c, row, out, err);
    out->n_shared += rc == 0 && out->n_turns == before;
    return rc;
}

/* Returns an error also if the log is in use. (The pragma wal_checkpoint would not.) */
static int cut_log_once(struct conversations *c, struct err *err)
{
    int rc = sqlite3_wal_checkpoint_v2(c->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    return rc == SQLITE_OK ? 0 : db_err(c, "cut the log", err);
}

int db_cut_log(struct conversations *c, struct err *err)
{
    int rc = cut_log_once(c, err);
    return rc == -ENOSPC && db_reserve_release(c) ? cut_log_once(c, err) : rc;
}

/* The checkpoint overwrites erased content, which would otherwise stay in the write-ahead log. */
int db_end_and_overwrite(struct conversations *c, int rc, struct err *err)
{
    rc = db_end(c, rc, err);
    if (rc == 0) {
        pthread_mutex_lock(&c->lock);
        rc = db_cut_log(c, err);
        if (rc == 0)
            db_reserve_fill(c);
        pthread_mutex_unlock(&c->lock);
    }
    return rc;
}

/* Finds the row of a name with the statement `find`, and erases its object, in one transaction. */
static int erase_once(struct conversations *c, const char *find, const char *what,
                      const char *tenant, const char *name,
                      int (*erase)(struct conversations *c, int64_t row, struct erased *out,
                                   struct err *err),
                      struct erased *out, struct err *err)
{
    int64_t row = 0;
    *out = (struct erased){0};
    int rc = db_lock(c, err);
    if (rc != 0)
        return rc;
    rc = row_of(c, find, what, tenant, name, &row, err);
    if (rc == 0)
        rc = erase(c, row, out, err);
    return db_end_and_overwrite(c, rc, err);
}

/* Erases a named object. If the disk is full, releases the reserve and tries again, since a full
 * disk must not keep space from being freed. */
static int erase_named(struct conversations *c, const char *find, const char *what,
                       const char *tenant, const char *name,
                       int (*erase)(struct conversations *c, int64_t row,
                                    struct erased *out, struct err *err),
                       struct erased *out, struct err *err)
{
    int rc = erase_once(c, find, what, tenant, name, erase, out, err);
    if (rc == -ENOSPC && db_reserve_release(c))
        rc = erase_once(c, find, what, tenant, name, erase, out, err);
    return rc;
}

int turn_delete(struct conversations *c, const char *tenant, const char *name,
                struct erased *out, struct err *err)
{
    return erase_named(c, "SELECT id FROM turn WHERE name = ?1 AND tenant = ?2 AND visible",
                       "response", tenant, name, hide, out, err);
}

/* --- a conversation --------------------------------------------------------------------------- */

/* Goes from the last turn to the first, so that each turn has lost its references when it is
 * reached. */
int db_hide_all(struct conversations *c, int64_t conversation, struct erased *out,
                struct err *err)
{
    int64_t row;
    int rc = 0;
    do {
        rc = db_int(c,
                    "SELECT id FROM turn WHERE conversation = ?1"
                    " ORDER BY depth DESC, id DESC LIMIT 1",
                    conversation, &row, err);
        if (rc == 0 && row != 0)
            rc = db_run(c, "UPDATE turn SET conversation = NULL WHERE id = ?1",
                        DB_VALUES(DB_INT(row)), err);
        if (rc == 0 && row != 0)
            rc = hide(c, row, out, err);
    } while (rc == 0 && row != 0);
    return rc;
}

static int drop_conversation(struct conversations *c, int64_t row, struct erased *out,
                             struct err *err)
{
    int64_t head = 0;
    int rc = db_int(c, "SELECT head FROM conversation WHERE id = ?1", row, &head, err);
    if (rc == 0)
        rc = db_run(c, "DELETE FROM conversation WHERE id = ?1", DB_VALUES(DB_INT(row)),
                    err);
    if (rc == 0 && head != 0)
        rc = db_release(c, head, out, err);
    return rc != 0 ? rc : db_hide_all(c, row, out, err);
}

int conversation_delete(struct conversations *c, const char *tenant, const char *name,
                        struct erased *out, struct err *err)
{
    return erase_named(c, "SELECT id FROM conversation WHERE name = ?1 AND tenant = ?2",
                       "conversation", tenant, name, drop_conversation, out, err);
}

/* Erases up to `most` conversations, and turns outside them, that were not used for ttl_s. */
static int expire_once(struct conversations *c, int64_t now_s, int most, struct erased *out,
                       struct err *err)
{
    int64_t before = now_s - c->o.ttl_s, row = 1;
    *out = (struct erased){0};
    if (c->o.ttl_s <= 0)
        return 0;
    int rc = db_lock(c, err);
    if (rc != 0)
        return rc;
    int i = 0;
    bool any = false;
    for (; rc == 0 && row != 0 && i < most; i++) {
        rc = db_int(c,
                    "SELECT id FROM conversation WHERE updated_s < ?1"
                    " ORDER BY updated_s LIMIT 1",
                    before, &row, err);
        if (rc == 0 && row != 0)
            rc = drop_conversation(c, row, out, err);
        any = any || row != 0;
    }
    for (row = 1; rc == 0 && row != 0 && i < most; i++) {
        rc = db_int(c,
                    "SELECT id FROM turn WHERE used_s < ?1 AND visible"
                    " AND conversation IS NULL ORDER BY used_s LIMIT 1",
                    before, &row, err);
        if (rc == 0 && row != 0)
            rc = hide(c, row, out, err);
        any = any || row != 0;
    }
    return any ? db_end_and_overwrite(c, rc, err) : db_end(c, rc, err);
}

int conversations_expire(struct conversations *c, int64_t now_s, int most,
                         struct erased *out, struct err *err)
{
    int rc = expire_once(c, now_s, most, out, err);
    if (rc == -ENOSPC && db_reserve_release(c))
        rc = expire_once(c, now_s, most, out, err);
    return rc;
}

/* --- doomed chunks ---------------------------------------------------------------------------- */

int conversations_doomed(struct conversations *c, struct sha256 *keys, int max, int *n,
                         struct err *err)
{
    *n = 0;
    pthread_mutex_lock(&c->lock);
    sqlite3_stmt *st;
    int rc = db_query(c, &st, "SELECT key FROM doomed ORDER BY id LIMIT ?1",
                      DB_VALUES(DB_INT(max)), err);
    for (; rc > 0 && *n < max; rc = db_step(c, st, err))
        if (sqlite3_column_bytes(st, 0) == (int)sizeof keys[0].b)
            memcpy(keys[(*n)++].b, sqlite3_column_blob(st, 0), sizeof keys[0].b);
    db_done(st);
    pthread_mutex_unlock(&c->lock);
    return rc < 0 ? rc : 0;
}

static int buried_once(struct conversations *c, const struct sha256 *keys, int n,
                       struct err *err)
{
    int rc = db_lock(c, err);
    if (rc != 0)
        return rc;
    for (int i = 0; rc == 0 && i < n; i++)
        rc = key_run(c, "DELETE FROM doomed WHERE key = ?1", keys[i].b, err);
    /* a key confirms a guess of the text */
    return db_end_and_overwrite(c, rc, err);
}

int conversations_buried(struct conversations *c, const struct sha256 *keys, int n,
                         struct err *err)
{
    int rc = buried_once(c, keys, n, err);
    if (rc == -ENOSPC && db_reserve_release(c))
        rc = buried_once(c, keys, n, err);
    return rc;
}
