/* test_keep.c - the code that all routes of kept conversations share: faults, pages of a list,
 * times to live, and the check for changes of the system's clock. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/keep.h"

/* --- the system's clock, and the query of a call ---------------------------------------------- */

static int64_t set_by_s; /* seconds by which the system's clock was set */

/* The system's clock, changed by set_by_s. A further half second makes clock_set_by_s, which rounds
 * towards zero, return set_by_s. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    enum { HALF_NS = 500000000 };
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (id != CLOCK_REALTIME || set_by_s == 0)
        return rc;
    int64_t ns = (t->tv_sec + set_by_s) * 1000000000 + t->tv_nsec;
    ns += set_by_s > 0 ? HALF_NS : -HALF_NS;
    *t = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return rc;
}

static const char *limit, *order, *after;

const char *MHD_lookup_connection_value(struct MHD_Connection *connection,
                                        enum MHD_ValueKind kind, const char *key)
{
    assert_null(connection);
    assert_int_equal(kind, MHD_GET_ARGUMENT_KIND);
    return strcmp(key, "limit") == 0   ? limit
           : strcmp(key, "order") == 0 ? order
           : strcmp(key, "after") == 0 ? after
                                       : NULL;
}

/* --- faults ----------------------------------------------------------------------------------- */

static void each_error_has_its_status(void **state)
{
    (void)state;
    static const struct {
        int rc, status;
        const char *code;
    } rows[] = {
        {-ENOSPC, 507, "disk_full"},
        {-EDQUOT, 507, "disk_full"},
        {-ENOMEM, 503, "out_of_memory"},
        {ERR_NOT_FOUND, 404, "not_found"},
        {-EAGAIN, 503, "conversations_unavailable"},
        {ERR_LIMIT, 400, "storage_full"},
        {ERR_MISMATCH, 409, "conflict"},
        {-EIO, 500, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fault f = {0};
        struct err err = {.code = rows[i].rc};
        strcpy(err.msg, "the reason");
        assert_int_equal(keep_fault(&err, &f), -1);
        assert_int_equal(f.status, rows[i].status);
        assert_true((f.code == NULL) == (rows[i].code == NULL));
        if (f.code != NULL)
            assert_string_equal(f.code, rows[i].code);
        assert_string_equal(
            f.message, i < 2 ? "the reason; delete conversations, or make room on the disk"
                             : "the reason");
    }
    struct fault f = {0};
    assert_int_equal(keep_none(&f), -1);
    assert_int_equal(f.status, 400);
    assert_string_equal(f.code, "not_kept");
    assert_string_equal(f.param, "store");
}

/* --- lists ------------------------------------------------------------------------------------ */

static int page(const char *wants_limit, const char *wants_order, struct items_page *p,
                struct fault *f)
{
    struct call c = {0};
    limit = wants_limit;
    order = wants_order;
    after = "item 7";
    *f = (struct fault){0};
    return keep_page(&c, 20, p, f);
}

static void a_page_has_a_limit_and_an_order(void **state)
{
    (void)state;
    struct items_page p;
    struct fault f;
    assert_int_equal(page(NULL, NULL, &p, &f), 0);
    assert_int_equal(p.limit, 20);
    assert_false(p.oldest_first);
    assert_string_equal(p.after, "item 7");
    assert_int_equal(page("1", "asc", &p, &f), 0);
    assert_int_equal(p.limit, 1);
    assert_true(p.oldest_first);
    assert_int_equal(page("100", "desc", &p, &f), 0);
    assert_int_equal(p.limit, 100);
    assert_false(p.oldest_first);
    static const char *const bad[] = {
        "0", "101", "-1", "", "x", "7x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(page(bad[i], NULL, &p, &f), -1);
        assert_int_equal(f.status, 400);
        assert_string_equal(f.param, "limit");
        assert_string_equal(f.message, "'limit' must be a number from 1 to 100");
    }
    assert_int_equal(page(NULL, "up", &p, &f), -1);
    assert_int_equal(f.status, 400);
    assert_string_equal(f.param, "order");
}

static void a_path_is_cut_at_its_first_slash(void **state)
{
    (void)state;
    char two[] = "conv_1/items/7", one[] = "conv_1", ends[] = "conv_1/";
    assert_string_equal(keep_split(two), "items/7");
    assert_string_equal(two, "conv_1");
    assert_string_equal(keep_split(one), "");
    assert_string_equal(one, "conv_1");
    assert_string_equal(keep_split(ends), "");
    assert_string_equal(ends, "conv_1");
}

/* --- times to live ---------------------------------------------------------------------------- */

static void a_time_to_live_is_digits_within_its_bound(void **state)
{
    (void)state;
    char most[24], more[24];
    snprintf(most, sizeof most, "%lld", (long long)HCACHE_MAX_CACHE_TTL_S);
    snprintf(more, sizeof more, "%lld", (long long)HCACHE_MAX_CACHE_TTL_S + 1);
    int64_t ttl_s = -1;
    assert_true(keep_ttl("0", &ttl_s));
    assert_int_equal(ttl_s, 0);
    /* leading zeros are allowed within nine digits */
    assert_true(keep_ttl("000000060", &ttl_s));
    assert_int_equal(ttl_s, 60);
    assert_true(keep_ttl(most, &ttl_s));
    assert_int_equal(ttl_s, HCACHE_MAX_CACHE_TTL_S);
    const char *const bad[] = {"", "-1", "+1", " 1", "1 ", "1.5", "x", "0000000060", more};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(keep_ttl(bad[i], &ttl_s));
    /* a refused text leaves the value unchanged */
    assert_int_equal(ttl_s, HCACHE_MAX_CACHE_TTL_S);
}

/* --- the clock -------------------------------------------------------------------------------- */

/* Sets the clock by by_s, tidies, and returns the number of bytes that were logged. */
static long tidy(struct server *s, int64_t by_s)
{
    FILE *f = tmpfile();
    int own = dup(STDERR_FILENO);
    set_by_s = by_s;
    fflush(stderr);
    assert_int_equal(dup2(fileno(f), STDERR_FILENO), STDERR_FILENO);
    keep_tidy(s);
    fflush(stderr);
    assert_int_equal(dup2(own, STDERR_FILENO), STDERR_FILENO);
    long n = lseek(fileno(f), 0, SEEK_END);
    close(own);
    fclose(f);
    return n;
}

/* Setting the clock by at least a minute is logged once. A smaller change is not logged. While no
 * model is loaded, nothing else is tidied. */
static void a_clock_that_is_set_is_logged_once(void **state)
{
    (void)state;
    static struct server s;
    static const struct {
        int64_t by_s;
        bool is_logged;
    } steps[] = {{0, false},  {59, false},  {60, true},    {60, false},  {119, false},
                 {120, true}, {61, false},  {60, true},    {0, true},    {-59, false},
                 {-60, true}, {-1, false},  {-119, false}, {-120, true}, {-120, false},
                 {0, true},   {86400, true}};
    int64_t logged_s = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        bool is_logged = tidy(&s, steps[i].by_s) > 0;
        if (is_logged != steps[i].is_logged)
            fail_msg("the clock was set by %d s: %s", (int)steps[i].by_s,
                     is_logged ? "logged" : "not logged");
        if (is_logged)
            logged_s = steps[i].by_s;
        assert_int_equal(s.clock_set_by_s, logged_s);
    }
    set_by_s = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_error_has_its_status),
        cmocka_unit_test(a_page_has_a_limit_and_an_order),
        cmocka_unit_test(a_path_is_cut_at_its_first_slash),
        cmocka_unit_test(a_time_to_live_is_digits_within_its_bound),
        cmocka_unit_test(a_clock_that_is_set_is_logged_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
