/* conversations_db.h - the database behind conversations.h; private to
 * src/api/conversations*.c.
 *
 * One connection under one lock. A statement is compiled at its first use and kept; its text, a
 * literal, is its name. */
#ifndef API_CONVERSATIONS_DB_H
#define API_CONVERSATIONS_DB_H

#include <pthread.h>
#include <sqlite3.h>

#include "api/conversations.h"

enum { DB_MAX_STATEMENTS = 64 };

struct conversations {
    struct conversations_opts o;
    char *path;
    char *stands_in_because; /* copy of conversations_opts.stands_in_because */
    char *server;            /* copy of conversations_opts.server */
    /* Protects all fields below. Held for whole transactions. */
    pthread_mutex_t lock;
    sqlite3 *db;
    struct io *io;  /* through which the file is reached; NULL: there is no file */
    char *vfs_name; /* name of SQLite's VFS over io; NULL: SQLite's own */
    /* Number of turns; -1: not counted yet. Counting 300000 rows for every turn would cost more
     * than the turn itself. */
    int64_t n_turns;
    /* The greatest numbers of rows that the file had when it was opened, or that were given out
     * since. A new row has a greater number, so the number of a deleted row never names another
     * row: an answer that is being generated still has the numbers of its parent and of its
     * conversation. (SQLite alone gives the number of a deleted last row again.) */
    int64_t last_turn, last_conversation;
    /* has_shares: there is a temporary table `share`, with the turns and bytes of each tenant.
     * shares_are_new: the present transaction made the table, so a rollback removes it. */
    bool has_shares, shares_are_new;
    struct {
        const char *sql;
        sqlite3_stmt *st;
    } kept[DB_MAX_STATEMENTS];
    int n_kept;
};

/* Creates a missing file, private. Refuses a file that cannot hold conversations, and leaves it
 * unchanged: a link, a device, another user's file, another format, another key
 * (conversations_file.c). */
int db_file_check(const char *path, const struct seal *seal, struct err *err);
/* Refuses a database with the tables of another program. */
int db_tables_check(struct conversations *c, struct err *err);
/* Gives the file and its log mode 0600. It uses the path, because closing a descriptor of a locked
 * file would end SQLite's lock on the file. */
int db_file_make_private(const char *path, struct err *err);

/* Fills the reserve, the file PATH-reserve. It holds space for deleting on a full disk. If there is
 * no space for all of it, the file is removed. */
void db_reserve_fill(struct conversations *c);
/* Gives the reserve's space up. Returns false if there was none. */
bool db_reserve_release(struct conversations *c);

int db_err(struct conversations *c, const char *what, struct err *err);
int db_exec(struct conversations *c, const char *sql, struct err *err);

/* The value of a statement's parameter. */
struct db_value {
    enum { DB_END, DB_INT, DB_ROW, DB_TEXT, DB_BLOB } kind;
    int64_t n; /* the integer, the row, or the bytes of the blob */
    const void *p;
};

#define DB_INT(v)     ((struct db_value){DB_INT, (v), NULL})
#define DB_ROW(v)     ((struct db_value){DB_ROW, (v), NULL}) /* 0 becomes SQL's null */
#define DB_TEXT(s)    ((struct db_value){DB_TEXT, 0, (s)})   /* NULL becomes SQL's null */
#define DB_BLOB(p, n) ((struct db_value){DB_BLOB, (n), (p)})
/* The values of all parameters, in their order. What they point to must live until db_done. */
#define DB_VALUES(...) ((const struct db_value[]){__VA_ARGS__, {DB_END, 0, NULL}})

/* Runs a statement up to its first row. Returns 1 if there is a row, 0 if there is none, or a
 * negative code. Hand *st back with db_done in each case. */
int db_query(struct conversations *c, sqlite3_stmt **st, const char *sql,
             const struct db_value *values, struct err *err);
/* Goes to the next row. Returns as db_query does. */
int db_step(struct conversations *c, sqlite3_stmt *st, struct err *err);
void db_done(sqlite3_stmt *st); /* NULL is allowed */
/* Runs a statement that returns no rows, and hands it back. */
int db_run(struct conversations *c, const char *sql, const struct db_value *values,
           struct err *err);
/* Reads the first column of the first row; 0 if there is no row. `a` is the first parameter. */
int db_int(struct conversations *c, const char *sql, int64_t a, int64_t *out,
           struct err *err);

/* Adds `by` to the references of a turn. */
int db_refer(struct conversations *c, int64_t row, int by, struct err *err);

/* Makes and returns the error for an unknown name. what: "conversation" or "response". */
int db_unknown(const struct conversations *c, const char *what, const char *name,
               struct err *err);

/* Returns ERR_LIMIT if there is no room for n_turns more (0 or 1) with more_bytes in all. */
int db_check_room(struct conversations *c, const char *tenant, int n_turns,
                  uint64_t more_bytes, struct err *err);
/* Returns the bytes of all pages in use. */
int db_used_bytes(struct conversations *c, uint64_t *out, struct err *err);
/* Counts the turns in the file. */
int db_count_turns(struct conversations *c, int64_t *out, struct err *err);

/* db_lock takes the lock and begins a transaction. db_end commits it if rc is 0, else rolls it
 * back, and releases the lock. Both return 0 or a code. */
int db_lock(struct conversations *c, struct err *err);
int db_end(struct conversations *c, int rc, struct err *err);

/* returns a copy of a column's text; NULL for SQL's null */
char *db_text(sqlite3_stmt *st, int column);
void db_name(sqlite3_stmt *st, int column, char out[NAME_BYTES]);

/* Removes one reference to the turn. If the turn then has no references and is not visible, it is
 * erased, and its parent loses one reference in the same way. */
int db_release(struct conversations *c, int64_t row, struct erased *out, struct err *err);

/* Removes the names of all turns that were made in the conversation. */
int db_hide_all(struct conversations *c, int64_t conversation, struct erased *out,
                struct err *err);
/* Folds the log into the file, and overwrites and cuts the log. Releases the reserve if the disk is
 * full. */
int db_cut_log(struct conversations *c, struct err *err);
/* Ends a transaction like db_end, and then overwrites erased content in the log, too. */
int db_end_and_overwrite(struct conversations *c, int rc, struct err *err);

#endif
