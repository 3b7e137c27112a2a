/* What a store takes on its disk beyond the cap on its segment files: superblocks, the index with its log, and
 * the reserve.  docs/STORE_FORMAT.md promises these bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/io_sim.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 6, N_CONTEXTS = 400, CAP = 4 << 20 };
/* Of the index: its log grows to 1,000 pages of 4 KiB before it begins again, by one commit beyond that, and
 * each extent has rows of at most 1 KiB beside those of a page. */
enum { LOG_BYTES = 1000 * 4120 + (256 << 10), PAGES_BYTES = 256 << 10, ROW_BYTES = 1024 };

static uint64_t size_of(const struct st_place *p, const char *name)
{
    struct io_stat st;
    char path[600];
    snprintf(path, sizeof path, "%s/%s", p->dirs[0], name);
    return io_stat(p->io, path, &st, NULL) == 0 ? st.size_bytes : 0;
}

static uint64_t size_of_segments(const struct st_place *p)
{
    struct io_names names;
    uint64_t n_bytes = 0;
    assert_int_equal(io_list(p->io, p->dirs[0], &names, NULL), 0);
    for (size_t i = 0; i < names.n; i++)
        if (strncmp(names.name[i], "seg-", 4) == 0)
            n_bytes += size_of(p, names.name[i]);
    io_names_free(&names);
    return n_bytes;
}

static void everything_is_bounded(void **state)
{
    (void)state;
    struct st_place p;
    struct err err = {0};
    struct store_stats st;
    uint64_t most_log = 0, most_index = 0;
    assert_true(st_place_open(&p, "sim", 1));
    p.opts.cap_bytes = CAP;
    struct store *s = st_open(&p);
    for (int i = 0; i < N_CONTEXTS; i++) {
        const struct st_ctx c = {.base = 100 + (uint64_t)i, .own = 100 + (uint64_t)i};
        assert_int_equal(st_save(s, &st_small, &c, N, ST_BOTH, &err), 0);
        store_stats(s, &st);
        uint64_t log = size_of(&p, "index.db-wal"), index = size_of(&p, "index.db");
        assert_true(size_of_segments(&p) <= CAP);
        assert_true(log <= LOG_BYTES);
        assert_true(index <= PAGES_BYTES + ROW_BYTES * st.n_extents);
        assert_true(size_of(&p, STORE_RESERVE_FILE) <= CAP / 32);
        most_log = log > most_log ? log : most_log;
        most_index = index > most_index ? index : most_index;
    }
    assert_true(st.n_evicted > 0);                 /* the cap was reached, */
    assert_true(most_log > 1000 * (uint64_t)4096); /* and so was the end of the log */
    print_message("log %llu, index %llu bytes, %llu extents\n",
                  (unsigned long long)most_log, (unsigned long long)most_index,
                  (unsigned long long)st.n_extents);
    store_close(s);
    st_place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_is_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
