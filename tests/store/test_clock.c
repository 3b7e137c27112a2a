/* test_clock.c - while a store is open, the system's clock is set back by a year and forward by ten
 * years. That changes neither which chunk is evicted, nor which pins hold, nor what is recorded. */
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "storetest.h"

#define YEAR_S ((int64_t)31557600)

/* --- the system's clock, as the whole program sees it ----------------------------------------- */

/* number of seconds by which the system's clock is ahead of the right time */
static int64_t set_by_s;
static int64_t passed_s; /* seconds that have passed by all clocks */

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    t->tv_sec += passed_s + (id == CLOCK_REALTIME ? set_by_s : 0);
    return rc;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out != NULL)
        *out = t.tv_sec;
    return t.tv_sec;
}

static const int64_t jumps[] = {-YEAR_S, 10 * YEAR_S, 0, -50 * YEAR_S};
enum { JUMPS = sizeof jumps / sizeof jumps[0] };

TEST(the_clock_itself)
{
    int64_t before_s = clock_wall_s(), before_ns = clock_now_ns();
    for (int i = 0; i < JUMPS; i++) {
        set_by_s = jumps[i];
        int64_t now_s = clock_wall_s(), by_s = clock_set_by_s();
        assert_true(now_s >= before_s && now_s < before_s + YEAR_S / 365);
        assert_true(by_s >= jumps[i] - 1 && by_s <= jumps[i] + 1);
        assert_true(clock_now_ns() >= before_ns);
    }
    set_by_s = 0;
}

static struct st_ctx context(uint64_t i)
{
    return (struct st_ctx){.base = 100 + i, .own = i};
}

static int found(struct store *s, const struct st_ctx *c)
{
    struct st_result r;
    assert_int_equal(st_read(s, &st_small, c, 1, &r, NULL), 0);
    assert_int_equal(r.n_wrong, 0);
    return r.n_found;
}

/* The clock is set before each save and use of a context.  The least recently used context is
 * evicted, not the one with the oldest date. */
TEST(eviction_follows_use)
{
    struct st_place p;
    struct store *s = st_begin(&p, "sim", 1);
    for (uint64_t i = 0; i < JUMPS; i++) {
        struct st_ctx c = context(i);
        set_by_s = jumps[i];
        assert_int_equal(st_save(s, &st_small, &c, 1, ST_BOTH, NULL), 0);
    }
    struct store_stats full;
    store_stats(s, &full);
    set_by_s = -YEAR_S;
    struct st_ctx kept = context(0);
    /* this context was used last, while the clock was set back */
    assert_int_equal(found(s, &kept), 1);
    assert_int_equal(store_commit(s, NULL), 0);
    store_close(s);

    set_by_s = 10 * YEAR_S;
    p.opts.cap_bytes = full.used_bytes;
    s = st_open(&p);
    /* each of these two contexts takes the place of an older one: 1, then 2 */
    for (uint64_t i = 0; i < 2; i++) {
        struct st_ctx c = context(10 + i);
        set_by_s = jumps[i];
        assert_int_equal(st_save(s, &st_small, &c, 1, ST_BOTH, NULL), 0);
    }
    static const int want[] = {1, 0, 0, 1};
    for (uint64_t i = 0; i < JUMPS; i++) {
        struct st_ctx c = context(i);
        assert_int_equal(found(s, &c), want[i]);
    }
    st_close(s, &p);
    set_by_s = 0;
}

static int count_pin(void *arg, const struct store_pinned *p)
{
    (void)p;
    ++*(int *)arg;
    return 0;
}

static int check_date(void *arg, const struct store_entry *e)
{
    int64_t begin_s = *(int64_t *)arg;
    assert_true(e->used_wall_s >= begin_s && e->used_wall_s <= clock_wall_s());
    return 0;
}

TEST(pins_and_dates_stay)
{
    struct st_place p;
    struct sha256 key;
    int64_t begin_s = clock_wall_s();
    struct st_ctx c = context(0);
    struct store *s = st_begin(&p, "sim", 1);
    st_keys(&c, 1, &key);
    assert_int_equal(st_save(s, &st_small, &c, 1, ST_BOTH, NULL), 0);
    assert_int_equal(store_pin_until(s, &key, 1, clock_wall_s() + 3600, NULL), 0);
    for (int i = 0; i < JUMPS; i++) {
        int n_pins = 0;
        set_by_s = jumps[i];
        assert_int_equal(found(s, &c), 1);
        assert_int_equal(store_commit(s, NULL), 0);
        assert_int_equal(store_each_pin(s, count_pin, &n_pins), 0);
        assert_int_equal(n_pins, 1);
        assert_int_equal(store_each(s, check_date, &begin_s, NULL), 0);
        store_close(s);
        s = st_open(&p);
    }
    st_close(s, &p);
    set_by_s = 0;
}

/* Idle chunks are removed, also if the time has passed while no store was open. A pin keeps all
 * chunks up to the pinned one. The idle time of a chunk begins at its last use. */
TEST(idle_chunks_go)
{
    struct st_place p;
    uint64_t n_gone = 0;
    struct store *s = st_begin(&p, "sim", 1);
    struct st_ctx idle = context(0), used = context(1), pinned = context(2);
    struct sha256 keys[ST_MAX_CHUNKS];
    assert_int_equal(st_save(s, &st_small, &idle, 4, ST_BOTH, NULL), 0);
    assert_int_equal(st_save(s, &st_small, &used, 4, ST_BOTH, NULL), 0);
    assert_int_equal(st_save(s, &st_small, &pinned, 4, ST_BOTH, NULL), 0);
    st_keys(&pinned, 4, keys);
    store_close(s);
    passed_s = 1000;
    s = st_open(&p);
    int64_t now = clock_wall_s();
    assert_int_equal(store_pin_until(s, &keys[2], 1, now + 1000, NULL), 0);
    assert_int_equal(found(s, &used), 1); /* a use of the first chunk only */
    assert_int_equal(store_evict_idle(s, now - 1100, &n_gone, NULL), 0);
    assert_int_equal(n_gone, 0); /* no chunk is old enough */
    assert_int_equal(store_evict_idle(s, now - 500, &n_gone, NULL), 0);
    /* the pinned context loses only the chunk after the pin */
    assert_int_equal(n_gone, 4 + 3 + 1);
    struct store_stats st;
    store_stats(s, &st);
    assert_int_equal(st.evictions[STORE_EVICT_IDLE], n_gone);
    assert_int_equal(found(s, &idle), 0);
    assert_int_equal(found(s, &used), 1);
    assert_int_equal(found(s, &pinned), 1);
    assert_true(store_audit(s));
    store_close(s);
    s = st_open(&p); /* the removal is permanent */
    store_stats(s, &st);
    assert_int_equal(st.n_chunks, 1 + 3);
    st_close(s, &p);
    passed_s = 0;
}

/* While a guarantee lasts, a cap below its bytes is refused. When it has ended, also while no store
 * was open, its chunks make room for that cap. */
TEST(an_ended_guarantee_holds_nothing)
{
    enum { N = 4, HOUR_S = 3600 };
    struct st_place p;
    struct err err = {0};
    struct sha256 keys[N];
    struct st_ctx c = context(0);
    assert_true(st_place_open(&p, "sim", 1));
    p.opts.cap_bytes = 4 * st_context_bytes(N);
    struct store *s = st_open(&p);
    st_must_save(s, &c, N);
    st_keys(&c, N, keys);
    assert_int_equal(store_guarantee(s, keys, N, clock_wall_s() + HOUR_S, NULL, &err), 0);
    store_close(s);
    p.opts.cap_bytes = st_context_bytes(N) - 1;
    assert_int_equal(store_open(&p.opts, &s, &err), ERR_LIMIT);
    passed_s = HOUR_S;
    s = st_open(&p);
    assert_int_equal(st_n_found(s, &c, N), N - 1);
    assert_int_equal(st_stats(s).n_guarantees, 0);
    st_close(s, &p);
    passed_s = 0;
}
