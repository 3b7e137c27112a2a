/* sql_faults.h - lets one statement of an SQLite connection fail. */
#ifndef TESTS_BASE_SQL_FAULTS_H
#define TESTS_BASE_SQL_FAULTS_H

#include <sqlite3.h>
#include <stdbool.h>

/* A statement fails while it is compiled, or while it runs. Rollbacks never fail: that would leave
 * nothing to test. A commit does not fail while it runs, since it may have been done by then. */
enum sql_fault_kind { SQL_FAULT_COMPILING, SQL_FAULT_RUNNING, SQL_FAULT_KINDS };

/* Watches all connections that are opened from now on, until sql_faults_end. */
void sql_faults_begin(void);
void sql_faults_end(void);

/* Returns the connection that was opened last. */
sqlite3 *sql_faults_db(void);

/* Lets the at-th check of a statement from now on fail. A statement may have several checks while
 * it is compiled, and has one while it runs. 0: none fails. */
void sql_fault_set(enum sql_fault_kind kind, int at);
/* Returns whether the fault has come, and whether it has come to a checkpoint of the log, which is
 * no part of a transaction. */
bool sql_fault_has_come(void);
bool sql_fault_is_checkpoint(void);

#endif
