/* test_faults.c - each disk operation in a store's life fails in turn: once alone, and once
 * together with all later operations.
 *
 * The life opens, saves, reads, pins, evicts, lists, verifies, erases, collects garbage and
 * rebuilds. Each failure is reported. The next opening finds everything acknowledged, and no wrong
 * byte is read. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit.h"
#include "sim/io_sim.h"
#include "tests/store/storetest.h"

enum { CHUNKS = 4, MANY_LIVES = 16 };

static const struct st_ctx kept = {.base = 1, .own = 11, .branch = 2},
                           erased = {.base = 1, .own = 12, .branch = 2},
                           crowd = {.base = 3, .own = 13, .branch = 0};

/* Checks that a failure has a message. */
static bool says(int rc, const struct err *err, const char *what)
{
    if (rc > 0 || (rc != 0 && err->msg[0] == 0))
        fail_msg("%s fails with %d and says nothing", what, rc);
    return rc == 0;
}

static void read_any(struct store *s, const struct st_ctx *c)
{
    struct st_result r;
    struct err err = {0};
    says(st_read(s, &st_small, c, CHUNKS, &r, &err), &err, "read");
    assert_int_equal(r.n_wrong, 0);
}

static int nothing(void *arg, const struct store_entry *e)
{
    (void)arg, (void)e;
    return 0;
}

static void no_report(void *arg, const char *what)
{
    (void)arg;
    assert_true(what[0] != 0);
}

/* Calls every operation of a store. Returns whether the pin on `kept` was acknowledged. */
static bool use(struct store *s)
{
    struct err err = {0};
    struct sha256 keys[CHUNKS];
    struct store_verify v;
    struct store_erased gone;
    uint64_t freed;
    bool has = says(st_save(s, &st_small, &kept, CHUNKS, ST_BOTH, &err), &err, "save");
    says(st_save(s, &st_small, &erased, CHUNKS, ST_KV, &err), &err, "save");
    says(st_save(s, &st_small, &erased, CHUNKS, ST_BOTH, &err), &err, "backfill");
    st_keys(&kept, CHUNKS, keys);
    says(store_pin_until(s, keys, CHUNKS, time(NULL) + 1000, &err), &err, "pin");
    for (int i = 0; i < 6; i++) { /* more contexts than the cap holds */
        struct st_ctx c = crowd;
        c.own += (uint64_t)i;
        c.base += (uint64_t)i;
        says(st_save(s, &st_small, &c, CHUNKS, ST_BOTH, &err), &err, "save");
    }
    read_any(s, &kept);
    read_any(s, &erased);
    says(store_each(s, nothing, NULL, &err), &err, "list");
    says(store_verify(s, &v, no_report, NULL, NULL, &err), &err, "verify");
    st_keys(&erased, CHUNKS, keys);
    says(store_erase(s, keys, CHUNKS, &gone, &err), &err, "erase");
    says(store_gc(s, &freed, &err), &err, "gc");
    read_any(s, &kept);
    says(store_unpin_keys(s, keys, CHUNKS, &err), &err, "unpin");
    store_close(s);
    return has;
}

struct walk {
    bool loses_index; /* whether the index is lost between the first life and the second */
    int code;
    unsigned on;
};

/* Runs a life without the fault, then one with it. Returns how many times the fault happened. */
static uint64_t life(const struct walk *w, uint64_t skip, uint64_t count)
{
    struct st_place p;
    struct err err = {0};
    struct store *s = NULL;
    assert_true(st_place_open(&p, "sim", 2));
    p.opts.cap_bytes = 1 << 20;
    s = st_open(&p);
    assert_int_equal(st_save(s, &st_small, &kept, 2, ST_BOTH, &err), 0);
    store_close(s);
    if (w->loses_index)
        io_unlink(p.io, "/st/d0/index.db", &err);
    struct io_sim_fault f = {
        .kind = IO_SIM_FAIL, .on = w->on, .code = w->code, .skip = skip, .count = count};
    assert_int_equal(io_sim_fault_add(p.io, &f), 0);
    bool has = says(store_open(&p.opts, &s, &err), &err, "open") && use(s);
    uint64_t n_hits = io_sim_fault_hits(p.io);
    io_sim_fault_clear(p.io);
    s = st_open(&p);
    struct st_result r;
    assert_int_equal(st_read(s, &st_small, &kept, CHUNKS, &r, &err), 0);
    /* A context whose pin was acknowledged must be there. An unpinned context may have been
     * evicted. */
    if (r.n_wrong != 0 || r.n_corrupt != 0 ||
        (has && r.n_found < CHUNKS && strstr(r.why, "not committed") != NULL))
        fail_msg("operation %llu fails: %d wrong, %d corrupt, %d found (%s)",
                 (unsigned long long)skip, r.n_wrong, r.n_corrupt, r.n_found, r.why);
    assert_true(store_audit(s));
    assert_int_equal(st_save(s, &st_small, &kept, CHUNKS, ST_BOTH, &err), 0);
    assert_int_equal(st_read(s, &st_small, &kept, CHUNKS, &r, &err), 0);
    assert_int_equal(r.n_found, CHUNKS);
    st_close(s, &p);
    return n_hits;
}

/* Fails the n-th matching operation for increasing n, until n is never reached. */
static void walk(const struct walk *w)
{
    const char *all = getenv("HCACHE_FAULTS");
    bool every = all != NULL && strcmp(all, "all") == 0;
    for (int on = 0; on < 2; on++) {
        uint64_t n_lives = 0, n = 0, step = 1;
        while (life(w, n, on ? 0 : 1) > 0) {
            n_lives++;
            if (!every && n_lives % MANY_LIVES == 0)
                step *= 4;
            n += step;
        }
        assert_true(n_lives >= 3);
        print_message("# operations 0x%02x, %s%s: %llu failed in turn, of about %llu\n",
                      w->on, on ? "and all after" : "each alone",
                      w->loses_index ? ", rebuilding" : "", (unsigned long long)n_lives,
                      (unsigned long long)n);
    }
}

TEST(reads)
{
    walk(&(struct walk){.on = IO_SIM_ON_READ, .code = -EIO});
}

TEST(writes)
{
    walk(&(struct walk){.on = IO_SIM_ON_WRITE, .code = -EIO});
    walk(&(struct walk){.on = IO_SIM_ON_WRITE | IO_SIM_ON_SPACE, .code = -ENOSPC});
}

TEST(syncs)
{
    walk(&(struct walk){.on = IO_SIM_ON_SYNC | IO_SIM_ON_DIR_SYNC, .code = -EIO});
}

TEST(names)
{
    walk(&(struct walk){.on = IO_SIM_ON_OPEN | IO_SIM_ON_NAME, .code = -EACCES});
    walk(&(struct walk){.on = IO_SIM_ON_SPACE, .code = -EOPNOTSUPP});
}

TEST(rebuilding)
{
    walk(&(struct walk){.on = IO_SIM_ON_ALL, .code = -EIO, .loses_index = true});
}
