/* memtest.c - see memtest.h. */
#include "tests/base/memtest.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/log.h"
#include "base/mem.h"

enum { RESERVE_BYTES = 8 << 20 };

static atomic_bool counting;
static atomic_ullong count[MEMTEST_KINDS], n_denied, from_reserve;
static enum memtest_kind which;
static uint64_t which_n;
static bool goes_on;

static bool denies(enum memtest_kind kind)
{
    if (!atomic_load(&counting))
        return false;
    uint64_t n = atomic_fetch_add(&count[kind], 1) + 1;
    bool is_now = kind == which && n == which_n;
    bool is_after = goes_on && atomic_load(&n_denied) > 0;
    if (is_now || is_after)
        atomic_fetch_add(&n_denied, 1);
    return is_now || is_after;
}

bool mem_test_denies(size_t n, enum mem_ask ask)
{
    if (ask == MEM_FROM_RESERVE)
        return atomic_fetch_add(&from_reserve, n) + n > RESERVE_BYTES;
    if (ask == MEM_FROM_PLEDGE)
        return false;
    return denies(ask == MEM_MAY_FAIL ? MEMTEST_MAY_FAIL : MEMTEST_RESERVED);
}

static sqlite3_mem_methods own;

static void *sqlite_malloc(int n)
{
    return denies(MEMTEST_MAY_FAIL) ? NULL : own.xMalloc(n);
}

static void *sqlite_realloc(void *p, int n)
{
    return denies(MEMTEST_MAY_FAIL) ? NULL : own.xRealloc(p, n);
}

void memtest_init(void)
{
    sqlite3_mem_methods m;
    struct err err;
    log_set_level(LOG_QUIET); /* otherwise the log gets a line for each denied allocation */
    int rc = sqlite3_config(SQLITE_CONFIG_GETMALLOC, &own);
    m = own;
    m.xMalloc = sqlite_malloc;
    m.xRealloc = sqlite_realloc;
    if (rc == SQLITE_OK)
        rc = sqlite3_config(SQLITE_CONFIG_MALLOC, &m);
    /* Lookaside memory would hide most of SQLite's small allocations. */
    if (rc == SQLITE_OK)
        rc = sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0);
    if (rc != SQLITE_OK || mem_reserve(RESERVE_BYTES, &err) != 0) {
        fprintf(stderr, "memtest: cannot take over the allocators (%d)\n", rc);
        exit(1);
    }
}

void memtest_start(enum memtest_kind kind, uint64_t n, bool on)
{
    which = kind;
    which_n = n;
    goes_on = on;
    for (int k = 0; k < MEMTEST_KINDS; k++)
        atomic_store(&count[k], 0);
    atomic_store(&n_denied, 0);
    atomic_store(&from_reserve, 0);
    atomic_store(&counting, true);
}

void memtest_stop(void)
{
    atomic_store(&counting, false);
    if (mem_check(NULL) != 0)
        fail_msg("the reserve is not filled again");
}

uint64_t memtest_count(enum memtest_kind kind)
{
    return atomic_load(&count[kind]);
}

uint64_t memtest_denied(void)
{
    return atomic_load(&n_denied);
}

bool memtest_ok(int rc, const struct err *err, const char *what)
{
    if (rc != 0 && (rc != -ENOMEM || memtest_denied() == 0))
        fail_msg("%s: %s (%s)", what, err_name(rc), err->msg);
    if (rc != 0 && err->msg[0] == 0)
        fail_msg("%s fails without saying why", what);
    return rc == 0;
}

static uint64_t step_of(uint64_t n, uint64_t most)
{
    const char *all = getenv("HCACHE_MEMORY");
    return n <= most || (all != NULL && strcmp(all, "all") == 0) ? 1
                                                                 : (n + most - 1) / most;
}

void memtest_walk(const char *name, void (*life)(void *arg), void *arg, uint64_t most)
{
    static const char *const kinds[] = {"that may fail", "with a reserve"};
    uint64_t n[MEMTEST_KINDS];
    memtest_start(MEMTEST_MAY_FAIL, 0, false);
    life(arg);
    memtest_stop();
    for (int k = 0; k < MEMTEST_KINDS; k++)
        n[k] = memtest_count((enum memtest_kind)k);
    for (int k = 0; k < MEMTEST_KINDS; k++)
        for (int on = 0; on < 2; on++) {
            uint64_t n_lives = 0, n_hit = 0, step = step_of(n[k], most);
            for (uint64_t i = 1; i <= n[k]; i += step, n_lives++) {
                memtest_start((enum memtest_kind)k, i, on != 0);
                life(arg);
                n_hit += memtest_denied() > 0;
                memtest_stop();
            }
            print_message("# %s: %llu of %llu allocations %s denied, %s\n", name,
                          (unsigned long long)n_hit, (unsigned long long)n[k], kinds[k],
                          on ? "and all after" : "each alone");
            /* A life with several threads may make fewer allocations than the counted life, but not
             * less than half as many. */
            if (n_lives > 0 && n_hit < n_lives / 2)
                fail_msg("%s: too few allocations were reached", name);
        }
}
