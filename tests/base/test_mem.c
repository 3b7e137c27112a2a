/* test_mem.c - the reserve: when it is spent, which work is refused then, and when it is refilled.
 */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/log.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/mem_left.h"
#include "tests/base/memtest.h"

/* Runs fn in a child whose memory is that of a fresh process. Returns its exit status. */
static int in_child(void (*fn)(void), char *said, size_t room)
{
    int to[2], status = 0;
    assert_int_equal(pipe(to), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(to[1], STDERR_FILENO);
        close(to[0]);
        fn();
        _exit(42);
    }
    close(to[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(to[0], said + n, room - 1 - n)) > 0;)
        n += (size_t)got;
    said[n] = 0;
    close(to[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Allocates n blocks of 900 KB, which the heap serves, and frees them. */
static void use_heap(int n)
{
    void *blocks[20];
    for (int i = 0; i < n; i++)
        memset(blocks[i] = xmalloc(900000), 1, 900000);
    while (n > 0)
        free(blocks[--n]);
}

/* The exit status tells which step went wrong; 42: none. */
static void return_memory(void)
{
    free(xmalloc(
        20 << 20)); /* from now on glibc by itself would serve 20 MB from the heap */
    mem_return_large();
    size_t mapped = mallinfo2().hblks;
    void *large = xmalloc(2 << 20), *small = xmalloc(900000);
    if (mallinfo2().hblks != mapped + 1)
        _exit(2);
    free(large);
    free(small);
    use_heap(20); /* 18 MB are more than the heap keeps */
    if (mallinfo2().arena > 9 << 20)
        _exit(3);
    use_heap(6);
    if (mallinfo2().arena < 5 * 900000)
        _exit(4);
    mem_trim();
    if (mallinfo2().arena > 4 * 900000)
        _exit(5);
}

/* Large blocks return to the system at once, the heap's end from 8 MiB on, and all on request. The
 * first test, because the heap must still be small. */
TEST(freed_memory_returns_to_the_system)
{
    char said[2000];
    if (mallinfo2().arena == 0) {
        print_message("skipped: this allocator (a sanitizer's) does not count\n");
        skip();
    }
    assert_int_equal(in_child(return_memory, said, sizeof said), 42);
}

TEST(an_allocation_is_served_from_the_reserve)
{
    struct err err = {0};
    memtest_start(MEMTEST_RESERVED, 1, true);
    assert_false(mem_is_short());
    char *p = xmalloc(100);
    assert_true(mem_is_short()); /* memory is short from the first denied allocation on */
    char *q = xcalloc(3, 7), *t = xasprintf("%d-%s", 5, "x");
    p = xrealloc(p, 200);
    assert_non_null(p);
    for (int i = 0; i < 21; i++)
        assert_int_equal(q[i], 0);
    assert_string_equal(t, "5-x");
    assert_true(mem_is_short());
    /* the reserve's own allocation is denied, too */
    assert_int_equal(mem_check(&err), -ENOMEM);
    assert_non_null(strstr(err.msg, "memory is short"));
    errno = 0;
    assert_null(mem_try(10));
    assert_int_equal(errno, ENOMEM);
    assert_null(mem_try_calloc(10, 1));
    errno = 0;
    assert_null(mem_map(4096));
    assert_int_equal(errno, ENOMEM);
    memtest_stop();
    assert_false(mem_is_short()); /* memtest_stop has refilled the reserve */
    assert_int_equal(mem_check(&err), 0);
    free(p);
    free(q);
    free(t);
}

TEST(a_second_reserve_changes_nothing)
{
    assert_int_equal(mem_reserve(SIZE_MAX / 2, NULL), 0);
}

TEST(sizes_that_do_not_fit)
{
    errno = 0;
    assert_null(mem_try_calloc(SIZE_MAX / 2, 4));
    assert_int_equal(errno, ENOMEM);
    errno = 0;
    assert_null(mem_map(SIZE_MAX / 2));
    assert_int_equal(errno, ENOMEM);
}

/* No bytes are a block, too, which can be freed or grow. */
TEST(nothing_can_be_allocated)
{
    void *blocks[] = {mem_try(0),       mem_try_calloc(0, 5), mem_try_calloc(5, 0),
                      xmalloc(0),       xcalloc(0, 5),        xcalloc(5, 0),
                      xmemdup(NULL, 0), xasprintf("%s", ""),  xstrdup("")};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        assert_non_null(blocks[i]);
        if (i >= 6)
            assert_string_equal(blocks[i], "");
        blocks[i] = mem_try_realloc(blocks[i], i % 2 == 0 ? 100 : 0);
        assert_non_null(blocks[i]);
        free(blocks[i]);
    }
}

TEST(copies_have_their_bytes)
{
    char *bytes = xmemdup("a\0bc", 3), *text = xstrdup("text");
    assert_memory_equal(bytes, "a\0b", 4);
    assert_string_equal(text, "text");
    uint64_t *zeros = xcalloc(1000, 8);
    assert_true(malloc_usable_size(zeros) >= 8000 && malloc_usable_size(bytes) >= 4);
    for (int i = 0; i < 1000; i++)
        assert_true(zeros[i] == 0);
    char *grown = xrealloc(text, 5000);
    assert_string_equal(grown, "text");
    free(bytes);
    free(grown);
    free(zeros);
}

/* Mappings are counted, and their pages can be provided before they are used. */
TEST(mappings_are_counted)
{
    enum { N = 16 * 4096 };
    unsigned char in_memory[N / 4096];
    int before = mem_mappings();
    char *p = mem_map(N);
    assert_non_null(p);
    assert_int_equal(mem_mappings(), before + 1);
    mem_provide(p, N);
    int n_provided = 0;
    assert_int_equal(mincore(p, N, in_memory), 0);
    for (int i = 0; i < N / 4096; i++)
        n_provided += in_memory[i] & 1;
    /* kernels before Linux 5.14 cannot provide pages */
    if (n_provided != 0 || madvise(p, N, MADV_POPULATE_WRITE) == 0)
        assert_int_equal(n_provided, N / 4096);
    mem_unmap(p, N);
    assert_int_equal(mem_mappings(), before);
    mem_unmap(NULL, N);
    assert_int_equal(mem_mappings(), before);
}

/* Spends the reserve twice. Each time is reported once. */
static void spend_twice(void)
{
    log_set_level(LOG_WARN);
    for (int i = 0; i < 2; i++) {
        memtest_start(MEMTEST_RESERVED, 1, true);
        free(xmalloc(10));
        free(xcalloc(10, 1));
        if (mem_check(NULL) != -ENOMEM || !mem_is_short())
            _exit(2);
        memtest_stop();
        if (mem_is_short() || mem_check(NULL) != 0)
            _exit(3);
    }
}

TEST(a_spent_reserve_is_told_once)
{
    char said[2000], *at = said;
    int n = 0;
    assert_int_equal(in_child(spend_twice, said, sizeof said), 42);
    while ((at = strstr(at, "hcache: warning: memory is short")) != NULL) {
        n++;
        at++;
    }
    assert_int_equal(n, 2);
}

/* Allocates more than was set aside. */
static void use_up(void)
{
    log_set_level(LOG_WARN);
    memtest_start(MEMTEST_RESERVED, 1, true);
    for (int i = 0; i < 100; i++)
        memset(xmalloc(1 << 20), 1, 1 << 20);
}

TEST(where_the_reserve_ends_the_program_ends)
{
    char said[2000];
    assert_int_equal(in_child(use_up, said, sizeof said), 1);
    assert_non_null(strstr(said, "memory is short"));
    assert_non_null(strstr(said, "out of memory (1048576 bytes asked for)"));
}

/* Ends the process with a status of its own, if it is called in time and once. */
static void host_ends(void *arg, const char *why)
{
    _exit(strcmp(why, arg) == 0 ? 7 : 8);
}

static void use_up_as_guest(void)
{
    check_on_end(host_ends, "out of memory (1048576 bytes asked for)");
    use_up();
}

static void fail_a_check(void)
{
    check_on_end(host_ends, "internal error at FILE:3: x does not hold");
    check_failed("FILE", 3, "x");
}

TEST(a_host_is_asked_before_the_process_ends)
{
    char said[2000];
    assert_int_equal(in_child(use_up_as_guest, said, sizeof said), 7);
    assert_non_null(strstr(said, "out of memory"));
    assert_int_equal(in_child(fail_a_check, said, sizeof said), 7);
    assert_non_null(strstr(said, "FILE:3"));
}

/* A thread's pledge serves its own failing allocations once, and no other thread's. */
TEST(a_pledge_is_spent_before_the_reserve)
{
    struct err err = {0};
    memtest_start(MEMTEST_MAY_FAIL, 2, false);
    assert_int_equal(mem_pledge(1 << 20, &err), 0); /* allocation 1 */
    char *p = mem_try(1000); /* allocation 2: denied, and served by the pledge */
    assert_non_null(p);
    assert_int_equal(memtest_denied(), 1);
    memtest_start(MEMTEST_MAY_FAIL, 1, false);
    assert_null(mem_try(1000)); /* the pledge is spent */
    memtest_start(MEMTEST_RESERVED, 1, false);
    assert_int_equal(mem_pledge(1 << 20, &err), 0);
    char *q = xmalloc(1000);
    assert_int_equal(memtest_denied(), 1);
    assert_false(mem_is_short()); /* the reserve is untouched */
    memtest_start(MEMTEST_MAY_FAIL, 1, false);
    assert_int_equal(mem_pledge(1 << 20, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "1048576 bytes"));
    assert_int_equal(mem_pledge(1 << 20, &err), 0);
    mem_unpledge();
    mem_unpledge(); /* there is no pledge to give up */
    /* a pledge serves zeroed memory, too */
    memtest_start(MEMTEST_MAY_FAIL, 2, false);
    assert_int_equal(mem_pledge(1 << 20, &err), 0);
    char *zeros = mem_try_calloc(10, 100);
    assert_non_null(zeros);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(zeros[i], 0);
    free(zeros);
    memtest_start(MEMTEST_RESERVED, 1, false);
    char *r = xmalloc(1000);
    assert_true(mem_is_short()); /* without a pledge the reserve serves the allocation */
    memtest_stop();
    assert_int_equal(mem_check(&err), 0);
    free(p);
    free(q);
    free(r);
}

/* Returns the pages of this process's address space. */
static long address_pages(void)
{
    long n = -1;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &n), 1);
    fclose(f);
    return n;
}

/* A pledge takes address space until it is given up. A second one replaces the first. */
TEST(a_pledge_holds_address_space)
{
    enum { N = 1 << 28, PAGES = N / 4096 };
    struct err err = {0};
    long before = address_pages();
    assert_int_equal(mem_pledge(N, &err), 0);
    assert_int_equal(address_pages() - before, PAGES);
    assert_int_equal(mem_pledge(2 * N, &err), 0);
    assert_int_equal(address_pages() - before, 2 * PAGES);
    mem_unpledge();
    assert_int_equal(address_pages(), before);
    assert_int_equal(mem_pledge(SIZE_MAX / 2, &err), -ENOMEM);
    assert_int_equal(err.code, -ENOMEM);
    mem_unpledge();
    assert_int_equal(address_pages(), before);
}

int main(void)
{
    memtest_init();
    return unit_run(NULL, NULL);
}
