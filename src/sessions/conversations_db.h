/* conversations_db.h - the database behind conversations.h; private to src/server/conversations*.c.
 *
 * One connection under one lock.  A statement is compiled when it is first used and kept; its text,
 * a literal, is its name. */
#ifndef SESSIONS_CONVERSATIONS_DB_H
#define SESSIONS_CONVERSATIONS_DB_H

#include <pthread.h>
#include <sqlite3.h>

#include "sessions/conversations.h"

enum { DB_MAX_STATEMENTS = 64 };

struct conversations {
    struct conversations_opts o;
    char *path;
    char *stands_in_because; /* see conversations_opts */
    char *server;            /* likewise */
    /* Protects everything below; held for whole transactions. */
    pthread_mutex_t lock;
    sqlite3 *db;
    int64_t
        /* -1: to be counted. Counting 300000 rows for every turn would cost more than it */
        n_turns;
    struct {
        const char *sql;
        sqlite3_stmt *st;
    } kept[DB_MAX_STATEMENTS];
    int n_kept;
};

/* Creates the file, private, where there is none; refuses, unchanged, one that cannot hold
 * conversations: a link, a device, another user's file, another format (conversations_file.c). */
int db_file_check(const char *path, struct err *err);
/* Refuses the tables of another program. */
int db_tables_check(struct conversations *c, struct err *err);
/* Gives the file and its log mode 0600.  By path: closing a descriptor of a locked file would end
 * SQLite's lock on it. */
int db_file_make_private(const char *path, struct err *err);

/* Space for deleting on a full disk, in the file PATH-reserve.  Fill it, as far as there is space;
 * release gives it up, and is true where there was some. */
void db_reserve_fill(struct conversations *c);
bool db_reserve_release(struct conversations *c);

int db_err(struct conversations *c, const char *what, struct err *err);
int db_exec(struct conversations *c, const char *sql, struct err *err);

/* A statement with nothing bound; NULL with *err. Every one is handed back with db_done. */
sqlite3_stmt *db_begin(struct conversations *c, const char *sql, struct err *err);
void db_done(sqlite3_stmt *st);
/* One row: 1, none: 0, or the code. */
int db_step(struct conversations *c, sqlite3_stmt *st, struct err *err);
/* A statement without rows, with up to three integers; hands it back. */
int db_run(struct conversations *c, const char *sql, int64_t a, int64_t b, int64_t d,
           struct err *err);
/* The first column of the first row; 0 where there is none. */
int db_int(struct conversations *c, const char *sql, int64_t a, int64_t *out,
           struct err *err);

/* Returns the error for a name that is not known; what: "conversation", "response". */
int db_unknown(const struct conversations *c, const char *what, const char *name,
               struct err *err);

/* How many turns there are. */
int db_count_turns(struct conversations *c, int64_t *out, struct err *err);

/* A transaction, with the lock: db_end commits where rc is 0, and returns what came of it. */
int db_lock(struct conversations *c, struct err *err);
int db_end(struct conversations *c, int rc, struct err *err);

void db_bind_text(sqlite3_stmt *st, int i, const char *text); /* NULL: null */
void db_bind_row(sqlite3_stmt *st, int i, int64_t row);       /* 0: null */
char *db_text(sqlite3_stmt *st, int column);                  /* a copy; NULL: null */
void db_name(sqlite3_stmt *st, int column, char out[NAME_BYTES]);

/* One less refers to the turn: erased, and its parents, where nothing refers to them any more. */
int db_release(struct conversations *c, int64_t row, struct erased *out, struct err *err);

/* Every turn that was made in the conversation loses its name. */
int db_hide_all(struct conversations *c, int64_t conversation, struct erased *out,
                struct err *err);
/* db_end, and then what was erased is overwritten in the log, too. */
int db_end_and_overwrite(struct conversations *c, int rc, struct err *err);

#endif
