/* test_err.c - messages are made once and passed on; codes have names. */
#include "tests/unit.h"

#include <errno.h>
#include <sqlite3.h>
#include <string.h>

#include "base/err.h"
#include "base/err_sqlite.h"

TEST(set_returns_the_code)
{
    struct err e = {0};
    assert_int_equal(err_set(&e, ERR_CORRUPT, "chunk %d", 7), ERR_CORRUPT);
    assert_int_equal(e.code, ERR_CORRUPT);
    assert_string_equal(e.msg, "chunk 7");
    assert_int_equal(err_set(NULL, -ENOSPC, "%s", "x"), -ENOSPC);
}

TEST(wrap_puts_context_in_front)
{
    struct err e = {0};
    err_set(&e, -ENOENT, "a.json: not there");
    assert_int_equal(err_wrap(&e, "model %s", "m"), -ENOENT);
    assert_string_equal(e.msg, "model m: a.json: not there");
    assert_int_equal(err_wrap(NULL, "model %s", "m"), ERR_FORMAT);
}

TEST(long_messages_are_cut_not_spilled)
{
    struct err e = {0};
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    err_set(&e, ERR_FORMAT, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    err_wrap(&e, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    assert_int_equal(e.code, ERR_FORMAT);
    /* a context that fills the message but for three bytes */
    big[sizeof e.msg - 4] = 0;
    err_set(&e, ERR_FORMAT, "old");
    err_wrap(&e, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    assert_string_equal(e.msg + sizeof e.msg - 5, "x: o");
}

TEST(every_code_has_a_name)
{
    assert_string_equal(err_name(0), "no error");
    static const char *const names[] = {"ERR_FORMAT",    "ERR_UNSUPPORTED", "ERR_MISMATCH",
                                        "ERR_CORRUPT",   "ERR_LIMIT",       "ERR_NOT_FOUND",
                                        "ERR_USAGE",     "ERR_CRASHED",     "ERR_BUSY",
                                        "ERR_CANCELLED", "ERR_ERASED"};
    for (int i = 0; i < 11; i++)
        assert_string_equal(err_name(ERR_FORMAT - i), names[i]);
    assert_string_equal(err_name(-ENOSPC), "No space left on device");
    assert_string_equal(err_name(-1), "Operation not permitted");
    assert_string_equal(err_name(-3999), "Unknown error 3999");
    assert_string_equal(err_name(-4000), "error -4000");
    assert_string_equal(err_name(-5000), "error -5000");
    assert_string_equal(err_name(1), "error 1");
}

/* The codes in `refused` say that a disk is full or failing, or that files on it may not be
 * written. After one of them the server still sends an answer that it could not keep; after
 * `others` the request fails. */
TEST(a_refusing_disk_is_told_from_bugs)
{
    static const int refused[] = {-ENOSPC, -EDQUOT, -EIO, -EROFS, -EACCES, -EPERM};
    static const int others[] = {0, -ENOMEM, -EINVAL, -ENOENT, ERR_CORRUPT, ERR_BUSY};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_true(err_is_of_disk(refused[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(err_is_of_disk(others[i]));
    assert_true(err_is_of_disk(err_of_sqlite(SQLITE_CANTOPEN_ISDIR)));
    assert_true(err_is_of_disk(err_of_sqlite(SQLITE_READONLY_DBMOVED)));
}

TEST(codes_of_sqlite_are_ours)
{
    static const struct {
        int theirs, ours;
    } code[] = {{SQLITE_BUSY, ERR_BUSY},
                {SQLITE_BUSY_SNAPSHOT, ERR_BUSY},
                {SQLITE_FULL, -ENOSPC},
                {SQLITE_NOMEM, -ENOMEM},
                {SQLITE_NOTADB, ERR_CORRUPT},
                {SQLITE_CORRUPT_VTAB, ERR_CORRUPT},
                {SQLITE_READONLY_DBMOVED, -EROFS},
                {SQLITE_CANTOPEN_ISDIR, -EACCES},
                {SQLITE_IOERR_WRITE, -EIO}};
    for (size_t i = 0; i < sizeof code / sizeof *code; i++)
        assert_int_equal(err_of_sqlite(code[i].theirs), code[i].ours);
}
