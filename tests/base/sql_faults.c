/* sql_faults.c - see sql_faults.h. The authorizer denies the compilation of a statement, and the
 * progress handler ends its run. */
#include "tests/base/sql_faults.h"

#include <string.h>

static struct {
    sqlite3 *db;
    enum sql_fault_kind kind;
    int left; /* the fault comes at the check with this number; 0: there is none */
    bool has_come, is_checkpoint;
    bool is_ending; /* the present statement is to fail */
} fault;

static bool is_due(void)
{
    if (fault.left == 0 || --fault.left > 0)
        return false;
    fault.has_come = true;
    return true;
}

static int authorize(void *arg, int action, const char *a, const char *b, const char *c,
                     const char *d)
{
    (void)arg, (void)b, (void)c, (void)d;
    bool is_rollback = action == SQLITE_TRANSACTION && strcmp(a, "ROLLBACK") == 0;
    if (fault.kind != SQL_FAULT_COMPILING || is_rollback || !is_due())
        return SQLITE_OK;
    fault.is_checkpoint = action == SQLITE_PRAGMA && strcmp(a, "wal_checkpoint") == 0;
    return SQLITE_DENY;
}

static int on_statement(unsigned what, void *arg, void *statement, void *text)
{
    const char *sql = sqlite3_sql(statement);
    (void)what, (void)arg, (void)text;
    fault.is_ending = false;
    if (fault.kind != SQL_FAULT_RUNNING || strcmp(sql, "ROLLBACK") == 0 ||
        strcmp(sql, "COMMIT") == 0 || !is_due())
        return 0;
    fault.is_ending = true;
    fault.is_checkpoint = strstr(sql, "wal_checkpoint") != NULL;
    return 0;
}

static int ends_statement(void *arg)
{
    (void)arg;
    bool ends = fault.is_ending;
    fault.is_ending = false;
    return ends;
}

static int on_open(sqlite3 *db, char **message, const struct sqlite3_api_routines *api)
{
    (void)message, (void)api;
    fault.db = db;
    sqlite3_set_authorizer(db, authorize, NULL);
    sqlite3_trace_v2(db, SQLITE_TRACE_STMT, on_statement, NULL);
    sqlite3_progress_handler(db, 1, ends_statement, NULL);
    return SQLITE_OK;
}

void sql_faults_begin(void)
{
    sqlite3_auto_extension((void (*)(void))on_open);
}

void sql_faults_end(void)
{
    sqlite3_reset_auto_extension();
}

sqlite3 *sql_faults_db(void)
{
    return fault.db;
}

void sql_fault_set(enum sql_fault_kind kind, int at)
{
    fault.kind = kind;
    fault.left = at;
    fault.has_come = fault.is_checkpoint = fault.is_ending = false;
}

bool sql_fault_has_come(void)
{
    return fault.has_come;
}

bool sql_fault_is_checkpoint(void)
{
    return fault.is_checkpoint;
}
