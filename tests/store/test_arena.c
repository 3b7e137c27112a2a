/* The memory of copies in DRAM: the part that the system provides before its use, and the price of
 * the rest. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "base/process.h"
#include "store/arena.h"

enum { MIB = 1 << 20, PAGE = 4096, MANY = 1000000000 };

static struct arena *open_arena(uint64_t n_bytes, uint64_t ahead_bytes)
{
    struct arena_opts o = {.n_bytes = n_bytes, .ahead_bytes = ahead_bytes};
    struct arena *a = NULL;
    struct err err = {0};
    if (arena_open(&o, &a, &err) != 0)
        fail_msg("%s", err.msg);
    return a;
}

/* Returns how many bytes from `at` on have memory, at most n_bytes. */
static uint64_t resident(const struct arena *a, uint64_t at, uint64_t n_bytes)
{
    static unsigned char page[32 * MIB / PAGE];
    assert_true(n_bytes / PAGE <= sizeof page);
    assert_int_equal(mincore(arena_bytes(a) + at, n_bytes, page), 0);
    uint64_t n = 0;
    while (n < n_bytes / PAGE && (page[n] & 1) != 0)
        n++;
    return n * PAGE;
}

static void await_resident(const struct arena *a, uint64_t at, uint64_t n_bytes)
{
    while (resident(a, at, n_bytes) < n_bytes)
        sched_yield();
}

TEST(a_whole_arena_has_its_memory_from_the_start)
{
    uint64_t n_bytes = 0;
    struct arena *a = open_arena(9 * MIB, UINT64_MAX);
    while (!arena_await(a, MANY, &n_bytes))
        assert_true(n_bytes <= 9 * MIB);
    assert_int_equal(n_bytes, 9 * MIB);
    assert_int_equal(resident(a, 0, 9 * MIB), 9 * MIB);
    assert_true(arena_price_s(a, 9 * MIB, UINT64_MAX) == 0);
    arena_close(a);
}

/* Memory is provided ahead of its use. Only memory that is not provided yet takes time, which
 * arena_price_s returns. */
TEST(memory_is_provided_ahead_of_its_use)
{
    uint64_t n_bytes;
    struct arena *a = open_arena(32 * MIB, 4 * MIB);
    /* without waiting: the first bytes have memory already */
    assert_true(arena_await(a, 0, &n_bytes));
    await_resident(a, 0, 4 * MIB);
    assert_true(arena_price_s(a, 4 * MIB, 0) == 0);
    assert_true(arena_price_s(a, 1 * MIB, 4 * MIB) > 0);
    arena_use(a, 20 * MIB);
    await_resident(a, 20 * MIB, 4 * MIB);
    arena_use(a, 28 * MIB);
    await_resident(a, 28 * MIB, 4 * MIB);
    /* all of the arena has memory */
    assert_true(arena_price_s(a, 32 * MIB, UINT64_MAX) == 0);
    arena_close(a);
}

TEST(an_arena_that_is_closed_early_ends_at_once)
{
    for (int i = 0; i < 8; i++)
        arena_close(open_arena((uint64_t)64 * MIB, i % 2 == 0 ? UINT64_MAX : MIB));
}

static void *get(void *arg, size_t n_bytes)
{
    (void)arg;
    return mem_map(n_bytes);
}

static void put(void *arg, void *p, size_t n_bytes)
{
    (void)arg;
    mem_unmap(p, n_bytes);
}

TEST(memory_of_the_caller_is_left_as_it_is)
{
    struct arena_opts o = {16 * MIB, UINT64_MAX, {get, put, NULL}};
    struct arena *a = NULL;
    uint64_t n_bytes;
    assert_int_equal(arena_open(&o, &a, NULL), 0);
    assert_true(arena_await(a, 0, &n_bytes));
    assert_true(arena_price_s(a, 16 * MIB, UINT64_MAX) == 0);
    assert_int_equal(resident(a, 0, 16 * MIB), 0);
    arena_close(a);
}

/* The system kills a process that uses more memory than is left. So an arena that is too large is
 * refused. */
TEST(more_than_the_system_has_left_is_refused)
{
    struct arena_opts o = {.ahead_bytes = UINT64_MAX};
    struct arena *a = NULL;
    struct err err = {0};
    if (process_memory_left() == 0)
        skip();
    o.n_bytes = (process_memory_left() / PAGE + 1) * 4 * PAGE;
    assert_int_equal(arena_open(&o, &a, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "less --dram"));
    o.ahead_bytes = MIB; /* the memory may never be used, so it is not refused */
    assert_int_equal(arena_open(&o, &a, &err), 0);
    arena_close(a);
}
