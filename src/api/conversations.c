/* conversations.c - see conversations.h: the file, and the conversations in it.
 *
 * Invariants:
 * 1. turn.n_refs counts the turns whose parent it is and the conversations whose head it is.
 * 2. A turn that is not visible and has no references does not exist.
 * 3. chunk.n_turns counts the turns that name the chunk. At 0 the row does not exist, and the
 *    chunk is doomed. */
#include "api/conversations.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err_sqlite.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/process.h"
#include "io/io.h"
#include "io/vfs.h"
#include "api/conversations_db.h"

static const char IN_MEMORY[] = ":memory:"; /* SQLite's name of a database in memory */

#define FORMAT_VERSION 1

/* locking_mode EXCLUSIVE locks out other processes. secure_delete overwrites erased content. */
static const char schema[] =
    "PRAGMA journal_mode = WAL;"
    "PRAGMA synchronous = FULL;"
    "PRAGMA secure_delete = ON;"
    "PRAGMA journal_size_limit = 4194304;"
    "BEGIN IMMEDIATE;"
    "CREATE TABLE IF NOT EXISTS turn("
    " id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,"
    " parent INTEGER, conversation INTEGER, depth INTEGER NOT NULL,"
    " created_s INTEGER NOT NULL, used_s INTEGER NOT NULL,"
    " visible INTEGER NOT NULL, n_refs INTEGER NOT NULL DEFAULT 0,"
    " fingerprint TEXT NOT NULL, n_kept INTEGER NOT NULL, n_tokens INTEGER NOT NULL,"
    " marks BLOB NOT NULL, tokens BLOB NOT NULL, keys BLOB NOT NULL,"
    " answer TEXT, input TEXT NOT NULL, output TEXT NOT NULL, restoration TEXT,"
    " moment TEXT);"
    "CREATE INDEX IF NOT EXISTS turn_use ON turn(used_s) WHERE visible;"
    "CREATE INDEX IF NOT EXISTS turn_of ON turn(conversation)"
    " WHERE conversation IS NOT NULL;"
    "CREATE INDEX IF NOT EXISTS turn_after ON turn(parent) WHERE parent IS NOT NULL;"
    "CREATE TABLE IF NOT EXISTS conversation("
    " id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,"
    " created_s INTEGER NOT NULL, updated_s INTEGER NOT NULL, n_turns INTEGER NOT NULL,"
    " head INTEGER, title TEXT, metadata TEXT);"
    "CREATE INDEX IF NOT EXISTS conversation_use ON conversation(tenant, updated_s, id);"
    "CREATE INDEX IF NOT EXISTS conversation_age ON conversation(updated_s);"
    "CREATE INDEX IF NOT EXISTS conversation_at ON conversation(head) WHERE head IS NOT "
    "NULL;"
    "CREATE TABLE IF NOT EXISTS chunk("
    " key BLOB PRIMARY KEY, n_turns INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS doomed(id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE);"
    "COMMIT;";

/* --- statements ------------------------------------------------------------------------------- */

/* Makes the error for a file in use, which names the process that uses it. */
static int busy(const struct conversations *c, struct err *err)
{
    char holder[200];
    struct stat st;
    bool found = stat(c->path, &st) == 0 &&
                 process_with_file(st.st_dev, st.st_ino, holder, sizeof holder);
    return err_set(err, ERR_BUSY,
                   "the conversations in %s are in use by another process: %s. Ask its API "
                   "instead, or stop it first",
                   c->path, found ? holder : "it cannot be identified");
}

int db_err(struct conversations *c, const char *what, struct err *err)
{
    int rc = err_of_sqlite(sqlite3_extended_errcode(c->db));
    if (rc == ERR_BUSY)
        return busy(c, err);
    return err_set(err, rc, "conversations in %s: %.100s: %s", c->path, what,
                   sqlite3_errmsg(c->db));
}

int db_exec(struct conversations *c, const char *sql, struct err *err)
{
    return sqlite3_exec(c->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0
                                                                   : db_err(c, sql, err);
}

/* Compiles a statement at its first use. */
static int compile(struct conversations *c, const char *sql, sqlite3_stmt **st,
                   struct err *err)
{
    for (int i = 0; i < c->n_kept; i++)
        if (c->kept[i].sql == sql) {
            *st = c->kept[i].st;
            return 0;
        }
    CHECK(c->n_kept < DB_MAX_STATEMENTS);
    if (sqlite3_prepare_v3(c->db, sql, -1, SQLITE_PREPARE_PERSISTENT, st, NULL) !=
        SQLITE_OK)
        return db_err(c, sql, err);
    c->kept[c->n_kept].sql = sql;
    c->kept[c->n_kept++].st = *st;
    return 0;
}

int db_query(struct conversations *c, sqlite3_stmt **st, const char *sql,
             const struct db_value *values, struct err *err)
{
    *st = NULL;
    int rc = compile(c, sql, st, err),
        n = *st != NULL ? sqlite3_bind_parameter_count(*st) : 0;
    for (int i = 1; i <= n && values->kind != DB_END; i++, values++) {
        if (values->kind == DB_BLOB)
            sqlite3_bind_blob64(*st, i, values->n > 0 ? values->p : "",
                                (sqlite3_uint64)values->n, SQLITE_STATIC);
        else if (values->kind == DB_TEXT)
            sqlite3_bind_text(*st, i, values->p, -1, SQLITE_STATIC);
        else if (values->kind == DB_INT || values->n != 0)
            sqlite3_bind_int64(*st, i, values->n);
    }
    return rc != 0 ? rc : db_step(c, *st, err);
}

void db_done(sqlite3_stmt *st)
{
    if (st == NULL)
        return;
    sqlite3_reset(st);
    sqlite3_clear_bindings(st);
}

int db_step(struct conversations *c, sqlite3_stmt *st, struct err *err)
{
    int rc = sqlite3_step(st);
    return rc == SQLITE_ROW ? 1 : rc == SQLITE_DONE ? 0 : db_err(c, sqlite3_sql(st), err);
}

int db_run(struct conversations *c, const char *sql, const struct db_value *values,
           struct err *err)
{
    sqlite3_stmt *st;
    int rc = db_query(c, &st, sql, values, err);
    db_done(st);
    return rc < 0 ? rc : 0;
}

int db_int(struct conversations *c, const char *sql, int64_t a, int64_t *out,
           struct err *err)
{
    sqlite3_stmt *st;
    int rc = db_query(c, &st, sql, DB_VALUES(DB_INT(a)), err);
    *out = rc > 0 ? sqlite3_column_int64(st, 0) : 0;
    db_done(st);
    return rc < 0 ? rc : 0;
}

int db_refer(struct conversations *c, int64_t row, int by, struct err *err)
{
    return db_run(c, "UPDATE turn SET n_refs = n_refs + ?2 WHERE id = ?1",
                  DB_VALUES(DB_INT(row), DB_INT(by)), err);
}

enum { SERVER_BYTES = 17, RANDOM_DIGITS = 32 };

bool conversations_server_ok(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return n > 0 && n < SERVER_BYTES && text[n] == 0;
}

/* Finds the server in "PREFIX_SERVER-32 digits". Returns false if the name has no server. */
static bool server_of(const char *name, char out[SERVER_BYTES])
{
    const char *from = strchr(name, '_'), *end = strrchr(name, '-');
    if (from == NULL || end == NULL || end <= ++from || end - from >= SERVER_BYTES ||
        strlen(end + 1) != RANDOM_DIGITS ||
        strspn(end + 1, "0123456789abcdef") != RANDOM_DIGITS)
        return false;
    memcpy(out, from, (size_t)(end - from));
    out[end - from] = 0;
    return conversations_server_ok(out);
}

int db_unknown(const struct conversations *c, const char *what, const char *name,
               struct err *err)
{
    if (c->stands_in_because != NULL)
        return err_set(
            err, -EAGAIN,
            "it is unknown whether the %s '%.80s' exists, and nothing was changed: %.200s. "
            "Try again after a restart that can open the conversations",
            what, name, c->stands_in_because);
    char server[SERVER_BYTES];
    if (server_of(name, server) && (c->server == NULL || strcmp(server, c->server) != 0))
        return err_set(
            err, -EAGAIN,
            "%s '%.80s' is kept by the server '%s', which is down, or which this "
            "request was not routed to",
            what, name, server);
    return err_set(err, ERR_NOT_FOUND, "there is no %s '%.80s'", what, name);
}

int db_count_turns(struct conversations *c, int64_t *out, struct err *err)
{
    int rc = c->n_turns >= 0 ? 0
                             : db_int(c, "SELECT count(*) FROM turn", 0, &c->n_turns, err);
    *out = c->n_turns;
    if (rc != 0)
        c->n_turns = -1;
    return rc;
}

int db_lock(struct conversations *c, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    int rc = db_exec(c, "BEGIN IMMEDIATE", err);
    if (rc != 0)
        pthread_mutex_unlock(&c->lock);
    return rc;
}

int db_end(struct conversations *c, int rc, struct err *err)
{
    if (rc == 0)
        rc = db_exec(c, "COMMIT", err);
    if (rc != 0) {
        (void)sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
        c->n_turns = -1;
        c->has_shares = c->has_shares && !c->shares_are_new;
    }
    c->shares_are_new = false;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

char *db_text(sqlite3_stmt *st, int column)
{
    const char *text = (const char *)sqlite3_column_text(st, column);
    return text != NULL ? xstrdup(text) : NULL;
}

void db_name(sqlite3_stmt *st, int column, char out[NAME_BYTES])
{
    const char *text = (const char *)sqlite3_column_text(st, column);
    snprintf(out, NAME_BYTES, "%s", text != NULL ? text : "");
}

/* --- opening ---------------------------------------------------------------------------------- */

static int check_version(struct conversations *c, struct err *err)
{
    int64_t version;
    int rc = db_int(c, "PRAGMA user_version", 0, &version, err);
    if (rc == 0 && version > FORMAT_VERSION)
        rc = err_set(err, ERR_UNSUPPORTED,
                     "%s has format %lld; this build reads up to %d: use a newer one",
                     c->path, (long long)version, FORMAT_VERSION);
    return rc;
}

/* Adds the column `moment` to a file of an earlier build. Earlier builds can still use the file. */
static int add_moment(struct conversations *c, struct err *err)
{
    int64_t n = 0;
    int rc = db_int(c,
                    "SELECT count(*) FROM pragma_table_info('turn') WHERE name = 'moment'",
                    0, &n, err);
    if (rc != 0 || n > 0)
        return rc;
    rc = db_exec(c, "ALTER TABLE turn ADD COLUMN moment TEXT", err);
    if (rc == -ENOSPC && db_reserve_release(c))
        rc = db_exec(c, "ALTER TABLE turn ADD COLUMN moment TEXT", err);
    return rc;
}

/* Sets the version of a new file. Does not write to an older file, because the disk may be full. */
static int set_version(struct conversations *c, struct err *err)
{
    int64_t version;
    int rc = db_int(c, "PRAGMA user_version", 0, &version, err);
    return rc != 0 || version == FORMAT_VERSION
               ? rc
               : db_exec(c, "PRAGMA user_version = 1", err);
}

/* Overwrites and cuts the log, because a killed process may have left texts there that it was
 * deleting. On a full disk the next deletion cuts the log. */
static void cut_log(struct conversations *c)
{
    struct err why = {0};
    int rc = db_cut_log(c, &why);
    if (rc != 0)
        log_warn("the log of %s could not be cut yet: %s", c->path, why.msg);
}

/* Makes the VFS through which the file, and the log beside it, are overwritten before they are cut
 * or deleted. */
static int db_vfs_open(struct conversations *c, struct err *err)
{
    static atomic_uint counter;
    char *name = xasprintf("hcache-conversations-%u", atomic_fetch_add(&counter, 1));
    c->io = io_pread_open();
    int rc = vfs_register(c->io, name, VFS_WRITE, err);
    if (rc == 0) {
        c->vfs_name = name;
        vfs_use_seal(name, c->o.seal);
    } else {
        free(name);
    }
    return rc;
}

/* Finds the greatest numbers of rows. Only a damaged file has numbers above the bound. */
static int find_last_rows(struct conversations *c, struct err *err)
{
    int rc = db_int(c, "SELECT max(id) FROM turn", 0, &c->last_turn, err);
    if (rc == 0)
        rc = db_int(c, "SELECT max(id) FROM conversation", 0, &c->last_conversation, err);
    if (rc == 0 && (c->last_turn > INT64_MAX / 2 || c->last_conversation > INT64_MAX / 2))
        rc = err_set(err, ERR_CORRUPT, "%s: the number of a row is too large", c->path);
    return rc;
}

int conversations_open(const struct conversations_opts *o, struct conversations **out,
                       struct err *err)
{
    struct conversations *c = xcalloc(1, sizeof *c);
    const char *path = o->path != NULL ? o->path : IN_MEMORY;
    c->o = *o;
    c->n_turns = -1;
    c->path = xstrdup(path);
    if (o->stands_in_because != NULL)
        c->stands_in_because = xstrdup(o->stands_in_because);
    if (o->server != NULL)
        c->server = xstrdup(o->server);
    pthread_mutex_init(&c->lock, NULL);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    int rc = o->path != NULL ? db_file_check(path, o->seal, err) : 0;
    if (rc == 0 && o->path != NULL)
        rc = db_vfs_open(c, err);
    if (rc == 0 && sqlite3_open_v2(path, &c->db, flags, c->vfs_name) != SQLITE_OK)
        rc = db_err(c, "open", err);
    /* Set before the first read, so that SQLite makes no file for shared memory. */
    if (rc == 0)
        rc = db_exec(c, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA temp_store = MEMORY", err);
    if (rc == 0) /* the log of a refused database must stay as it is */
        sqlite3_db_config(c->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (rc == 0)
        rc = db_tables_check(c, err);
    if (rc == 0)
        rc = check_version(c, err);
    if (rc == 0)
        sqlite3_db_config(c->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
    if (rc == 0 && o->path != NULL)
        rc = db_file_make_private(path, err);
    if (rc == 0)
        rc = db_exec(c, schema, err);
    if (rc == 0)
        rc = add_moment(c, err);
    if (rc == 0)
        rc = set_version(c, err);
    if (rc == 0)
        rc = find_last_rows(c, err);
    if (rc == 0)
        cut_log(c);
    if (rc != 0) {
        conversations_close(c);
        return rc;
    }
    db_reserve_fill(c);
    *out = c;
    return 0;
}

const char *conversations_kept_in(const struct conversations *c)
{
    return c == NULL ? "none" : strcmp(c->path, IN_MEMORY) == 0 ? "memory" : "file";
}

void conversations_close(struct conversations *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < c->n_kept; i++)
        sqlite3_finalize(c->kept[i].st);
    sqlite3_close(c->db);
    if (c->vfs_name != NULL)
        vfs_unregister(c->vfs_name);
    io_close(c->io);
    free(c->vfs_name);
    pthread_mutex_destroy(&c->lock);
    free(c->path);
    free(c->stands_in_because);
    free(c->server);
    free(c);
}

static void make_name(const char *prefix, const char *server, char out[NAME_BYTES])
{
    uint8_t random[RANDOM_DIGITS / 2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        CHECK(!"the system has no random numbers");
    int n = snprintf(out, NAME_BYTES, "%.10s_%s%s", prefix, server,
                     server[0] != 0 ? "-" : "");
    for (size_t i = 0; i < sizeof random; i++)
        n += snprintf(out + n, NAME_BYTES - (size_t)n, "%02x", random[i]);
}

void conversations_name(const char *prefix, char out[NAME_BYTES])
{
    make_name(prefix, "", out);
}

void conversations_name_kept(const struct conversations *c, const char *prefix,
                             char out[NAME_BYTES])
{
    make_name(prefix, c != NULL && c->server != NULL ? c->server : "", out);
}

int conversations_stats(struct conversations *c, struct conversations_stats *out,
                        struct err *err)
{
    *out = (struct conversations_stats){0};
    pthread_mutex_lock(&c->lock);
    int rc = db_int(c, "SELECT count(*) FROM conversation", 0, &out->n_conversations, err);
    if (rc == 0)
        rc = db_count_turns(c, &out->n_turns, err);
    if (rc == 0)
        rc = db_int(c, "SELECT count(*) FROM doomed", 0, &out->n_doomed, err);
    if (rc == 0)
        rc = db_used_bytes(c, &out->used_bytes, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

int conversations_stats_of(struct conversations *c, const char *tenant,
                           struct conversations_stats *out, struct err *err)
{
    *out = (struct conversations_stats){0};
    pthread_mutex_lock(&c->lock);
    sqlite3_stmt *st;
    int rc = db_query(c, &st,
                      "SELECT count(*), sum(n_turns) FROM conversation WHERE tenant = ?",
                      DB_VALUES(DB_TEXT(tenant)), err);
    if (rc > 0) {
        out->n_conversations = sqlite3_column_int64(st, 0);
        out->n_turns = sqlite3_column_int64(st, 1);
    }
    db_done(st);
    pthread_mutex_unlock(&c->lock);
    return rc < 0 ? rc : 0;
}

/* --- conversations ---------------------------------------------------------------------------- */

#define COLUMNS "id, head, name, created_s, updated_s, n_turns, title, metadata"

static void read_conversation(sqlite3_stmt *st, struct conversation *out)
{
    *out = (struct conversation){.row = sqlite3_column_int64(st, 0),
                                 .head = sqlite3_column_int64(st, 1),
                                 .created_s = sqlite3_column_int64(st, 3),
                                 .updated_s = sqlite3_column_int64(st, 4),
                                 .n_turns = sqlite3_column_int(st, 5),
                                 .title = db_text(st, 6),
                                 .metadata = db_text(st, 7)};
    db_name(st, 2, out->name);
}

void conversation_deinit(struct conversation *v)
{
    free(v->title);
    free(v->metadata);
    v->title = v->metadata = NULL;
}

static int find_by(struct conversations *c, const char *sql, const char *tenant,
                   const char *name, struct conversation *out, struct err *err)
{
    sqlite3_stmt *st;
    int rc = db_query(c, &st, sql, DB_VALUES(DB_TEXT(name), DB_TEXT(tenant)), err);
    if (rc > 0)
        read_conversation(st, out);
    db_done(st);
    return rc > 0 ? 0 : rc < 0 ? rc : db_unknown(c, "conversation", name, err);
}

static int find(struct conversations *c, const char *tenant, const char *name,
                struct conversation *out, struct err *err)
{
    static const char sql[] = "SELECT " COLUMNS
                              " FROM conversation WHERE name = ?1 AND tenant = ?2";
    return find_by(c, sql, tenant, name, out, err);
}

int conversation_find(struct conversations *c, const char *tenant, const char *name,
                      struct conversation *out, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    int rc = find(c, tenant, name, out, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

int conversation_find_title(struct conversations *c, const char *tenant, const char *title,
                            struct conversation *out, struct err *err)
{
    static const char sql[] = "SELECT " COLUMNS
                              " FROM conversation WHERE title = ?1 AND tenant = ?2"
                              " ORDER BY updated_s DESC, id DESC LIMIT 1";
    pthread_mutex_lock(&c->lock);
    int rc = find_by(c, sql, tenant, title, out, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int insert(struct conversations *c, const char *tenant, const char *name,
                  const char *title, const char *metadata, int64_t head, struct err *err)
{
    int rc = db_run(c,
                    "INSERT INTO conversation(tenant, name, title, metadata, head,"
                    " created_s, updated_s, n_turns, id) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?6,"
                    " coalesce((SELECT depth + 1 FROM turn WHERE id = ?5), 0), ?7)",
                    DB_VALUES(DB_TEXT(tenant), DB_TEXT(name), DB_TEXT(title),
                              DB_TEXT(metadata), DB_ROW(head), DB_INT(clock_wall_s()),
                              DB_INT(++c->last_conversation)),
                    err);
    return rc == 0 && head != 0 ? db_refer(c, head, 1, err) : rc;
}

/* Returns the bytes that a conversation takes, beside its turns. */
static uint64_t content_bytes(const char *title, const char *metadata)
{
    enum { OVERHEAD = 512 }; /* its row, and its entries in three indices */
    return OVERHEAD + (title != NULL ? strlen(title) : 0) +
           (metadata != NULL ? strlen(metadata) : 0);
}

int conversation_add(struct conversations *c, const char *tenant, const char *name,
                     const char *title, const char *metadata, int64_t head,
                     struct conversation *out, struct err *err)
{
    int64_t known = 1;
    int rc = db_lock(c, err);
    if (rc != 0)
        return rc;
    if (head != 0)
        rc = db_int(c, "SELECT count(*) FROM turn WHERE id = ?1", head, &known, err);
    if (rc == 0 && known == 0)
        rc = err_set(err, ERR_NOT_FOUND, "the turn to begin from was deleted");
    if (rc == 0)
        rc = db_check_room(c, tenant, 0, content_bytes(title, metadata), err);
    if (rc == 0)
        rc = insert(c, tenant, name, title, metadata, head, err);
    if (rc == 0)
        rc = find(c, tenant, name, out, err);
    int end = db_end(c, rc, err);
    if (rc == 0 && end != 0)
        conversation_deinit(out);
    return end;
}

int conversation_set(struct conversations *c, const char *tenant, int64_t row,
                     const char *title, const char *metadata, struct err *err)
{
    int rc = db_lock(c, err);
    if (rc != 0)
        return rc;
    rc = db_check_room(c, tenant, 0, content_bytes(title, metadata), err);
    if (rc == 0)
        rc = db_run(c,
                    "UPDATE conversation SET title = coalesce(?2, title),"
                    " metadata = coalesce(?3, metadata) WHERE id = ?1",
                    DB_VALUES(DB_INT(row), DB_TEXT(title), DB_TEXT(metadata)), err);
    return db_end(c, rc, err);
}

/* Finds updated_s and row of the conversation `after`, behind which a page begins. */
static int position_of(struct conversations *c, const char *tenant, const char *after,
                       int64_t *updated_s, int64_t *row, struct err *err)
{
    struct conversation v;
    int rc = find(c, tenant, after, &v, err);
    if (rc != 0)
        return rc;
    *updated_s = v.updated_s;
    *row = v.row;
    conversation_deinit(&v);
    return 0;
}

int conversation_list(struct conversations *c, const char *tenant, const char *after,
                      bool oldest_first, int limit, struct conversation *out, int *n,
                      bool *more, struct err *err)
{
    static const char newest[] =
        "SELECT " COLUMNS " FROM conversation WHERE tenant = ?1 AND"
        " (updated_s, id) < (?2, ?3) ORDER BY updated_s DESC, id DESC LIMIT ?4";
    static const char oldest[] =
        "SELECT " COLUMNS " FROM conversation WHERE tenant = ?1 AND"
        " (updated_s, id) > (?2, ?3) ORDER BY updated_s, id LIMIT ?4";
    int64_t updated_s = oldest_first ? INT64_MIN : INT64_MAX, row = updated_s;
    *n = 0;
    *more = false;
    pthread_mutex_lock(&c->lock);
    int rc = after != NULL ? position_of(c, tenant, after, &updated_s, &row, err) : 0;
    sqlite3_stmt *st = NULL;
    if (rc == 0)
        rc = db_query(
            c, &st, oldest_first ? oldest : newest,
            DB_VALUES(DB_TEXT(tenant), DB_INT(updated_s), DB_INT(row), DB_INT(limit + 1)),
            err);
    for (; rc > 0 && *n < limit; rc = db_step(c, st, err))
        read_conversation(st, &out[(*n)++]);
    *more = rc > 0;
    db_done(st);
    pthread_mutex_unlock(&c->lock);
    return rc < 0 ? rc : 0;
}

int conversation_forks(struct conversations *c, const char *tenant, int64_t head,
                       struct fork *out, int *n, struct err *err)
{
    /* The bound on `below` is one on time: a tree may have any number of turns. */
    static const char sql[] =
        "WITH RECURSIVE"
        " path(id, parent) AS (SELECT id, parent FROM turn WHERE id = ?1 UNION ALL"
        "  SELECT turn.id, turn.parent FROM path JOIN turn ON turn.id = path.parent),"
        " fork(id) AS (SELECT turn.parent FROM path JOIN turn ON turn.parent = path.parent"
        "  GROUP BY turn.parent HAVING count(*) > 1),"
        " below(id, top) AS (SELECT turn.id, turn.id FROM fork JOIN turn"
        "  ON turn.parent = fork.id UNION ALL SELECT turn.id, below.top FROM below"
        "  JOIN turn ON turn.parent = below.id LIMIT 20000)"
        "SELECT top.parent, top.name, conversation.name, max(conversation.updated_s),"
        " top.id IN (SELECT id FROM path) FROM below"
        " JOIN conversation ON conversation.head = below.id"
        " JOIN turn AS top ON top.id = below.top WHERE conversation.tenant = ?2"
        " GROUP BY top.id ORDER BY top.depth, top.parent, top.id LIMIT ?3";
    *n = 0;
    pthread_mutex_lock(&c->lock);
    sqlite3_stmt *st;
    int rc = db_query(c, &st, sql,
                      DB_VALUES(DB_INT(head), DB_TEXT(tenant), DB_INT(FORKS_MAX)), err);
    for (; rc > 0 && *n < FORKS_MAX; rc = db_step(c, st, err)) {
        struct fork *f = &out[(*n)++];
        f->parent = sqlite3_column_int64(st, 0);
        db_name(st, 1, f->turn);
        db_name(st, 2, f->conversation);
        f->is_on_path = sqlite3_column_int(st, 4) != 0;
    }
    db_done(st);
    pthread_mutex_unlock(&c->lock);
    return rc < 0 ? rc : 0;
}
