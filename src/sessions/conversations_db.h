/* conversations_db.h - the database behind conversations.h; private to
 * src/sessions/conversations*.c.
 *
 * One connection under one lock. A statement is compiled at its first use and kept; its text, a
 * literal, is its name. */
#ifndef SESSIONS_CONVERSATIONS_DB_H
#define SESSIONS_CONVERSATIONS_DB_H

#include <pthread.h>
#include <sqlite3.h>

#include "sessions/conversations.h"

enum { DB_MAX_STATEMENTS = 64 };

struct conversations {
    struct conversations_opts o;
    char *path;
    char *stands_in_because; /* copy of conversations_opts.stands_in_because */
    char *server;            /* copy of conversations_opts.server */
    /* Protects everything below; held for whole transactions. */
    pthread_mutex_t lock;
    sqlite3 *db;
    /* -1: not counted yet. Counting 300000 rows for every turn would cost more than the
         * turn. */
    int64_t n_turns;
    struct {
        const char *sql;
        sqlite3_stmt *st;
    } kept[DB_MAX_STATEMENTS];
    int n_kept;
};

/* Creates a missing file, private. Refuses, unchanged, a file that cannot hold conversations: a
 * link, a device, another user's file, another format (conversations_file.c). */
int db_file_check(const char *path, struct err *err);
/* Refuses the tables of another program. */
int db_tables_check(struct conversations *c, struct err *err);
/* Gives the file and its log mode 0600. By path: closing a descriptor of a locked file would end
 * SQLite's lock on it. */
int db_file_make_private(const char *path, struct err *err);

/* Fills the file PATH-reserve, as far as there is space: space for deleting on a full disk. */
void db_reserve_fill(struct conversations *c);
/* Gives the reserve's space up. Returns false if there was none. */
bool db_reserve_release(struct conversations *c);

int db_err(struct conversations *c, const char *what, struct err *err);
int db_exec(struct conversations *c, const char *sql, struct err *err);

/* Returns a statement with nothing bound; NULL with *err. Hand every one back with db_done. */
sqlite3_stmt *db_begin(struct conversations *c, const char *sql, struct err *err);
void db_done(sqlite3_stmt *st);
/* Returns 1 for a row, 0 for none, or the code. */
int db_step(struct conversations *c, sqlite3_stmt *st, struct err *err);
/* Runs a statement without rows, with up to three integers, and hands it back. */
int db_run(struct conversations *c, const char *sql, int64_t a, int64_t b, int64_t d,
           struct err *err);
/* Reads the first column of the first row; 0 if there is none. */
int db_int(struct conversations *c, const char *sql, int64_t a, int64_t *out,
           struct err *err);

/* Returns the error for an unknown name; what: "conversation", "response". */
int db_unknown(const struct conversations *c, const char *what, const char *name,
               struct err *err);

/* Counts the turns. */
int db_count_turns(struct conversations *c, int64_t *out, struct err *err);

/* A transaction, under the lock. db_end commits if rc is 0, and returns the result. */
int db_lock(struct conversations *c, struct err *err);
int db_end(struct conversations *c, int rc, struct err *err);

void db_bind_text(sqlite3_stmt *st, int i, const char *text); /* NULL: null */
void db_bind_row(sqlite3_stmt *st, int i, int64_t row);       /* 0: null */
char *db_text(sqlite3_stmt *st, int column);                  /* a copy; NULL: null */
void db_name(sqlite3_stmt *st, int column, char out[NAME_BYTES]);

/* Removes one reference to the turn. A turn without references is erased, and then its parents
 * likewise. */
int db_release(struct conversations *c, int64_t row, struct erased *out, struct err *err);

/* Removes the names of all turns that were made in the conversation. */
int db_hide_all(struct conversations *c, int64_t conversation, struct erased *out,
                struct err *err);
/* db_end; then overwrites erased content in the log, too. */
int db_end_and_overwrite(struct conversations *c, int rc, struct err *err);

#endif
