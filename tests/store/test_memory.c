/* test_memory.c - memory runs out at each allocation of a store's life.
 *
 * The store reports the error, leaks nothing (under the address sanitizer), loses nothing
 * acknowledged, reads no wrong byte, and works again once there is memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "tests/base/memtest.h"
#include "tests/store/storetest.h"

enum { CHUNKS = 5, LIVES = 150 };

static const struct st_ctx first = {.base = 1, .own = 11, .branch = 2},
                           second = {.base = 1, .own = 12, .branch = 2};

/* Checks that every chunk of the context is there and right. */
static void must_have(struct store *s, const struct st_ctx *c, int n, const char *when)
{
    struct st_result r;
    assert_int_equal(st_read(s, &st_small, c, n, &r, NULL), 0);
    if (r.n_found != n || r.n_wrong != 0 || r.n_records != n * 2 * st_small.n_layers)
        fail_msg("%s: %d of %d chunks found (%s), %d records right, %d wrong", when,
                 r.n_found, n, r.why, r.n_records, r.n_wrong);
}

static int count_entry(void *arg, const struct store_entry *e)
{
    (void)e;
    ++*(int *)arg;
    return 0;
}

/* Reads while memory is short: records that are found must be right. */
static void read_any(struct store *s, const struct st_ctx *c)
{
    struct st_result r;
    struct err err = {0};
    memtest_ok(st_read(s, &st_small, c, CHUNKS, &r, &err), &err, "read");
    assert_int_equal(r.n_wrong + r.n_corrupt, 0);
}

/* Uses an open store and notes what was acknowledged. */
static void use(struct store *s, bool *has_first, bool *has_second)
{
    struct err err = {0};
    struct sha256 keys[CHUNKS];
    struct store_verify v;
    struct store_erased erased;
    uint64_t freed;
    int n = 0;
    *has_first = memtest_ok(st_save(s, &st_small, &first, CHUNKS, ST_BOTH, &err), &err,
                            "save");
    read_any(s, &first);
    *has_second = memtest_ok(st_save(s, &st_small, &second, CHUNKS, ST_BOTH, &err), &err,
                             "save");
    st_keys(&second, CHUNKS, keys);
    memtest_ok(store_pin_until(s, keys, CHUNKS, time(NULL) + 1000, &err), &err, "pin");
    memtest_ok(store_each(s, count_entry, &n, &err), &err, "list");
    memtest_ok(store_verify(s, &v, NULL, NULL, NULL, &err), &err, "verify");
    if (memtest_ok(store_erase(s, keys + 2, CHUNKS - 2, &erased, &err), &err, "erase") &&
        *has_second)
        *has_second = false;
    memtest_ok(store_gc(s, &freed, &err), &err, "gc");
    read_any(s, &second);
    store_close(s);
}

static int open_store(const struct st_place *p, struct store **s)
{
    struct err err = {0};
    int rc = store_open(&p->opts, s, &err);
    memtest_ok(rc, &err, "open");
    return rc;
}

/* Opens the store again with enough memory. Checks that all acknowledged chunks are right and that
 * saving works. */
static void judge(const struct st_place *p, bool has_first)
{
    struct store *s = st_open(p);
    struct store_verify v;
    if (has_first)
        must_have(s, &first, CHUNKS, "after reopening");
    assert_true(store_audit(s));
    assert_int_equal(st_save(s, &st_small, &second, CHUNKS, ST_BOTH, NULL), 0);
    must_have(s, &second, CHUNKS, "saved again");
    assert_int_equal(store_verify(s, &v, NULL, NULL, NULL, NULL), 0);
    assert_int_equal(v.n_bad, 0);
    store_close(s);
}

static void life(void *arg)
{
    struct st_place p;
    struct store *s = NULL;
    bool has_first = false, has_second = false;
    assert_true(st_place_open(&p, arg, 1));
    if (open_store(&p, &s) == 0)
        use(s, &has_first, &has_second);
    uint64_t denied = memtest_denied();
    memtest_stop();
    if (p.io != NULL)
        judge(&p, has_first);
    (void)denied;
    st_place_close(&p);
}

/* The store goes on after memory ran out, without a new opening. Appended chunks stay, and the next
 * commit makes them durable. */
static void life_goes_on(void *arg)
{
    struct st_place p;
    struct err err = {0};
    struct store *s = NULL;
    (void)arg;
    assert_true(st_place_open(&p, "sim", 2));
    if (open_store(&p, &s) == 0) {
        bool saved = memtest_ok(st_save(s, &st_small, &first, CHUNKS, ST_BOTH, &err), &err,
                                "save");
        memtest_stop();
        if (saved)
            must_have(s, &first, CHUNKS, "in the same process");
        if (st_save(s, &st_small, &first, CHUNKS, ST_BOTH, &err) != 0)
            fail_msg("with memory again: %s", err.msg);
        must_have(s, &first, CHUNKS, "saved again in the same process");
        assert_true(store_audit(s));
        store_close(s);
    }
    memtest_stop();
    st_place_close(&p);
}

/* The index is lost, and memory runs out during the rebuild. */
static void life_rebuild(void *arg)
{
    struct st_place *p = arg;
    struct err err = {0};
    struct store *s = NULL;
    io_unlink(p->io, "/st/d0/index.db", &err);
    if (open_store(p, &s) == 0) {
        read_any(s, &first);
        store_close(s);
    }
    memtest_stop();
    s = st_open(p);
    must_have(s, &first, CHUNKS, "after the rebuild");
    store_close(s);
}

TEST(on_disk)
{
    memtest_walk("a life on disk", life, (void *)(uintptr_t) "sim", LIVES);
}

TEST(in_dram)
{
    memtest_walk("a life in DRAM", life, (void *)(uintptr_t) "dram", LIVES);
}

TEST(goes_on)
{
    memtest_walk("a store that goes on", life_goes_on, NULL, LIVES);
}

TEST(rebuilding)
{
    struct st_place p;
    struct store *s = st_begin(&p, "sim", 1);
    assert_int_equal(st_save(s, &st_small, &first, CHUNKS, ST_BOTH, NULL), 0);
    store_close(s);
    memtest_walk("a rebuild", life_rebuild, &p, LIVES);
    st_place_close(&p);
}

int main(void)
{
    memtest_init();
    return unit_run(NULL, NULL);
}
