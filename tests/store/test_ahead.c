/* test_ahead.c - memory that the system provides before it is used: how far ahead, in which region,
 * at which price. A store in memory asks for it if the store's option is set. */
#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/cpus.h"
#include "base/mem.h"
#include "base/process.h"
#include "store/ahead.h"
#include "store/store_impl.h"
#include "tests/store/storetest.h"

#define MIB ((uint64_t)1 << 20)

/* Returns whether the page at p has memory. */
static bool is_provided(const uint8_t *p)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char is_there = 0;
    assert_int_equal(mincore((void *)((uintptr_t)p / page * page), page, &is_there), 0);
    return is_there & 1;
}

static uint8_t *must_map(uint64_t n_bytes)
{
    uint8_t *p = mem_map(n_bytes);
    assert_non_null(p);
    return p;
}

static bool can_provide(void)
{
    uint8_t *p = must_map(2 * MIB);
    mem_provide(p, 2 * MIB);
    bool can = is_provided(p);
    mem_unmap(p, 2 * MIB);
    return can;
}

/* Skips the test if the system lacks the call that provides memory. */
static struct ahead *begin(void)
{
    if (!can_provide())
        skip();
    struct ahead *a = ahead_create(64 * MIB, AHEAD_BESIDE);
    assert_non_null(a);
    return a;
}

/* Waits until all memory that should be provided now is provided. Returns the end of that
 * memory. */
static uint64_t awaited(struct ahead *a)
{
    uint64_t n_bytes = 0;
    while (!ahead_await(a, 1000000000, &n_bytes))
        ;
    return n_bytes;
}

TEST(provides_a_given_number_of_bytes_beyond_the_last_used_byte)
{
    struct ahead *a = begin();
    uint8_t *p = must_map(256 * MIB);
    assert_int_equal(awaited(a), 0);
    ahead_follow(a, p, 256 * MIB);
    assert_int_equal(awaited(a), 64 * MIB);
    for (uint64_t at = 0; at < 64 * MIB; at += MIB)
        assert_true(is_provided(p + at));
    assert_false(is_provided(p + 66 * MIB));
    ahead_use(a, p, 10 * MIB);
    assert_int_equal(awaited(a), 74 * MIB);
    ahead_use(a, p, 5 * MIB); /* a smaller part than before */
    assert_int_equal(awaited(a), 74 * MIB);
    assert_false(is_provided(p + 78 * MIB));
    ahead_use(a, p, 200 * MIB);
    assert_int_equal(awaited(a), 256 * MIB);
    /* this memory is provided only when it is used */
    assert_false(is_provided(p + 100 * MIB));
    assert_true(is_provided(p + 255 * MIB));
    ahead_destroy(a);
    mem_unmap(p, 256 * MIB);
}

TEST(another_region_begins_anew)
{
    struct ahead *a = begin();
    uint8_t *p = must_map(16 * MIB), *other = must_map(16 * MIB);
    ahead_follow(a, p, 3 * MIB);
    assert_int_equal(awaited(a), 3 * MIB);
    assert_false(is_provided(p + 8 * MIB));
    ahead_follow(a, other, 16 * MIB);
    ahead_use(a, p, 16 * MIB); /* another region is followed now */
    assert_int_equal(awaited(a), 16 * MIB);
    assert_false(is_provided(p + 8 * MIB));
    ahead_leave(a, other);
    mem_unmap(other, 16 * MIB);
    ahead_use(a, other, 16 * MIB);
    assert_int_equal(awaited(a), 0);
    ahead_destroy(a);
    mem_unmap(p, 16 * MIB);
}

/* Providing memory beyond the provided part takes time, in proportion to its bytes. */
TEST(missing_memory_has_a_price)
{
    struct ahead *a = begin();
    uint8_t *p = must_map(128 * MIB);
    ahead_follow(a, p, 128 * MIB);
    assert_int_equal(awaited(a), 64 * MIB);
    assert_true(ahead_price_s(a, 64 * MIB, 0) == 0);
    assert_true(ahead_price_s(a, 16 * MIB, 48 * MIB) == 0);
    double one = ahead_price_s(a, 16 * MIB, 64 * MIB);
    assert_true(one > 0);
    assert_true(fabs(ahead_price_s(a, 32 * MIB, 99 * MIB) / one - 2) < 1e-6);
    assert_true(fabs(ahead_price_s(a, 80 * MIB, 0) / one - 1) < 1e-6);
    ahead_use(a, p, 64 * MIB);
    assert_int_equal(awaited(a), 128 * MIB);
    assert_true(ahead_price_s(a, 128 * MIB, UINT64_MAX) == 0); /* all memory is provided */
    ahead_destroy(a);
    mem_unmap(p, 128 * MIB);
}

TEST(several_threads_provide_it_at_once)
{
    uint8_t *p = must_map(33 * MIB);
    ahead_destroy(begin());
    struct ahead *a = ahead_create(UINT64_MAX, AHEAD_AT_ONCE);
    ahead_follow(a, p, 33 * MIB);
    assert_int_equal(awaited(a), 33 * MIB);
    for (uint64_t at = 0; at < 33 * MIB; at += MIB)
        assert_true(is_provided(p + at));
    ahead_destroy(a);
    mem_unmap(p, 33 * MIB);
}

/* Counts this program's threads: all of them, and those that run only on idle processors. */
static void count_threads(int *n_all, int *n_idle)
{
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    *n_all = *n_idle = 0;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        pid_t thread = (pid_t)atoi(e->d_name);
        if (thread == 0)
            continue;
        ++*n_all;
        *n_idle += sched_getscheduler(thread) == SCHED_IDLE &&
                   getpriority(PRIO_PROCESS, (id_t)thread) == 19;
    }
    closedir(dir);
}

/* Beside other work one thread of the lowest priority provides the memory; at once, one for each
 * processor, at most 8, of the usual priority. */
TEST(threads_and_their_priority)
{
    uint8_t *p = must_map(8 * MIB);
    int n_before, n_all, n_idle;
    ahead_destroy(begin());
    do /* a thread that has ended may be listed for a moment */
        count_threads(&n_before, &n_idle);
    while (n_idle > 0);
    for (int at_once = 0; at_once < 2; at_once++) {
        struct ahead *a = ahead_create(UINT64_MAX, at_once ? AHEAD_AT_ONCE : AHEAD_BESIDE);
        int n_cpus = cpus_usable() < 8 ? cpus_usable() : 8;
        ahead_follow(a, p, 8 * MIB);
        assert_int_equal(awaited(a), 8 * MIB);
        int want = at_once ? n_cpus : 1, want_idle = at_once ? 0 : 1;
        do
            count_threads(&n_all, &n_idle);
        while (n_all - n_before > want);
        assert_int_equal(n_all - n_before, want);
        assert_int_equal(n_idle, want_idle);
        ahead_destroy(a);
    }
    mem_unmap(p, 8 * MIB);
}

TEST(without_a_thread_nothing_happens)
{
    uint8_t byte = 0;
    ahead_follow(NULL, &byte, 1);
    ahead_use(NULL, &byte, 1);
    ahead_leave(NULL, &byte);
    assert_int_equal(awaited(NULL), 0);
    assert_true(ahead_price_s(NULL, 1, 0) == 0);
    ahead_destroy(NULL);
}

/* Stores one context and returns the address of the store's first segment. */
static const uint8_t *fill(struct store *s)
{
    static const struct st_ctx c = {.base = 1, .own = 1};
    st_must_save(s, &c, 4);
    assert_int_equal(st_n_right(s, &c, 4), 4);
    return s->media->ops->at(s->media, 0, 0, 0);
}

TEST(a_store_in_memory_asks_for_it)
{
    struct st_place p;
    assert_true(st_place_open(&p, "dram", 1));
    p.opts.segment_bytes = 256 * MIB;
    struct store *s = st_open(&p);
    assert_false(is_provided(fill(s) + 48 * MIB));
    store_close(s);
    p.opts.memory_ahead = true;
    p.opts.cap_bytes = 32 * MIB;
    s = st_open(&p);
    const uint8_t *first = fill(s);
    while (can_provide() && !is_provided(first + 31 * MIB))
        usleep(1000);
    assert_false(is_provided(first + 48 * MIB)); /* no memory is provided beyond the cap */
    st_close(s, &p);
}

/* A memory store with a stated capacity has all its memory provided, even beyond 256 MiB. */
TEST(a_store_with_a_capacity_gets_all_of_it)
{
    struct st_place p;
    if (process_memory_left() < 1024 * MIB)
        skip();
    assert_true(st_place_open(&p, "dram", 1));
    p.opts.segment_bytes = 512 * MIB;
    p.opts.memory_ahead = true;
    p.opts.cap_bytes = 400 * MIB;
    struct store *s = st_open(&p);
    const uint8_t *first = fill(s);
    while (can_provide() && !is_provided(first + 399 * MIB))
        usleep(1000);
    /* no memory is provided beyond the capacity */
    assert_false(is_provided(first + 440 * MIB));
    store_close(s);
    /* A capacity above the system's memory has the same effect as none. */
    p.opts.cap_bytes = UINT64_MAX / 4;
    s = st_open(&p);
    first = fill(s);
    while (can_provide() && !is_provided(first + 200 * MIB))
        usleep(1000);
    assert_false(is_provided(first + 400 * MIB));
    st_close(s, &p);
}
