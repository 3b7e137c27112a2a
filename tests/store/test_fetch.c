/* test_fetch.c - a fetch from a disk that does not answer is given up when the store's limit has
 * passed since the last answer, and no earlier. The test moves the clock. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "sim/io_sim.h"
#include "store/store_impl.h"
#include "storetest.h"

/* --- a clock that stands still ---------------------------------------------------------------- */

static _Atomic int64_t now_ns; /* 0: the clock runs */

int clock_gettime(clockid_t id, struct timespec *t)
{
    int64_t ns = now_ns;
    if (id != CLOCK_MONOTONIC || ns == 0)
        return (int)syscall(SYS_clock_gettime, id, t);
    *t = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return 0;
}

/* --- fetches ---------------------------------------------------------------------------------- */

enum { N_CHUNKS = 5, ARENA = 256 << 20 };
#define STUCK_NS ((int64_t)1000000000)

struct bench {
    struct st_place p;
    struct store *s;
    struct store_fetcher *f;
    struct sha256 keys[N_CHUNKS];
};

/* Chunks of six pieces. */
static const struct st_shape large = {.n_layers = 1, .n_bytes = {2 << 20, 4 << 20}};

/* Opens a store whose context is on the disk without copies in DRAM, and announces a request that
 * waits for it. */
static void bench_open(struct bench *b, const struct st_shape *shape)
{
    struct st_ctx c = {.base = 1, .own = 1};
    assert_true(st_place_open(&b->p, "sim", 1));
    b->p.opts.segment_bytes = 64 << 20;
    b->s = st_open(&b->p);
    assert_int_equal(st_save(b->s, shape, &c, N_CHUNKS, ST_BOTH, NULL), 0);
    store_close(b->s);
    b->p.opts.dram_bytes = ARENA;
    b->s = st_open(&b->p);
    b->s->home.stuck_ns = STUCK_NS;
    st_keys(&c, N_CHUNKS, b->keys);
    assert_int_equal(store_fetcher_open(b->s, &b->f, NULL), 0);
    store_fetch_want(b->s, b, b->keys, N_CHUNKS, 1);
}

static void bench_close(struct bench *b)
{
    now_ns = 0;
    io_sim_fault_clear(b->p.io);
    io_sim_unstick(b->p.io);
    store_fetch_want_end(b->s, b);
    store_fetcher_close(b->f);
    store_close(b->s);
    st_place_close(&b->p);
}

static uint64_t n_failures(struct bench *b)
{
    return st_stats(b->s).n_read_failures;
}

/* Steps while the clock stands still. Returns what the last step did. */
static enum store_fetch steps(struct bench *b, int n)
{
    enum store_fetch did = STORE_FETCH_NONE;
    for (int i = 0; i < n; i++) {
        did = store_fetch_step(b->f);
        usleep(200); /* store_fetch_wait would wait for the clock */
    }
    return did;
}

TEST(the_limit_begins_with_the_request)
{
    struct bench b;
    bench_open(&b, &st_small);
    struct io_sim_fault stuck = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg", .count = 1};
    assert_int_equal(io_sim_fault_add(b.p.io, &stuck), 0);
    now_ns = clock_now_ns(); /* stands still from here on */
    assert_false(store_fetch_in_flight(b.f));
    assert_int_equal(store_fetch_step(b.f), STORE_FETCH_WORKED);
    assert_true(store_fetch_in_flight(b.f));
    assert_false(store_fetch_lacks_room(b.f));
    assert_int_equal(steps(&b, 20), STORE_FETCH_IN_FLIGHT);
    now_ns += STUCK_NS; /* exactly the limit */
    assert_int_equal(steps(&b, 20), STORE_FETCH_IN_FLIGHT);
    assert_int_equal(n_failures(&b), 0);
    now_ns++;
    while (store_fetch_in_flight(b.f))
        steps(&b, 1);
    assert_int_equal(n_failures(&b), 1);
    assert_int_equal(st_stats(b.s).n_corrupt, 0);
    /* The request gets no further fetches. */
    assert_int_equal(steps(&b, 3), STORE_FETCH_NONE);
    assert_int_equal(n_failures(&b), 1);
    bench_close(&b);
}

/* The limit begins anew for each chunk, however late the previous chunk came. */
TEST(an_answer_begins_the_limit_anew)
{
    struct bench b;
    struct store_stats st;
    bench_open(&b, &st_small);
    struct io_sim_fault stuck = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg", .skip = 1, .count = 1};
    assert_int_equal(io_sim_fault_add(b.p.io, &stuck), 0);
    now_ns = clock_now_ns(); /* stands still from here on */
    assert_int_equal(store_fetch_step(b.f), STORE_FETCH_WORKED);
    while (store_fetch_in_flight(b.f))
        steps(&b, 1);
    st = st_stats(b.s);
    uint64_t one = st.read_bytes;
    assert_true(one > 0);
    now_ns += 50 * STUCK_NS;
    assert_int_equal(store_fetch_step(b.f), STORE_FETCH_WORKED);
    assert_int_equal(steps(&b, 20), STORE_FETCH_IN_FLIGHT);
    now_ns += STUCK_NS;
    assert_int_equal(steps(&b, 20), STORE_FETCH_IN_FLIGHT);
    assert_int_equal(n_failures(&b), 0);
    io_sim_unstick(b.p.io); /* the disk answers in time */
    while (store_fetch_in_flight(b.f))
        steps(&b, 1);
    for (int i = 2; i < N_CHUNKS; i++) {
        assert_int_equal(store_fetch_step(b.f), STORE_FETCH_WORKED);
        while (store_fetch_in_flight(b.f))
            steps(&b, 1);
    }
    assert_int_equal(steps(&b, 3), STORE_FETCH_NONE);
    st = st_stats(b.s);
    assert_int_equal(st.n_read_failures, 0);
    assert_int_equal(st.read_bytes, N_CHUNKS * one); /* each chunk once */
    bench_close(&b);
}

/* The first pieces of a chunk come late, but within the limit. From then on the later pieces have
 * the whole limit. */
TEST(each_answer_of_a_chunk_begins_the_limit_anew)
{
    enum { AT_ONCE = 4, PIECES = 6 };
    struct bench b;
    bench_open(&b, &large);
    const struct io_sim_fault stuck = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg"};
    assert_int_equal(io_sim_fault_add(b.p.io, &stuck), 0);
    now_ns = clock_now_ns();
    assert_int_equal(store_fetch_step(b.f), STORE_FETCH_WORKED);
    assert_int_equal(steps(&b, 20), STORE_FETCH_IN_FLIGHT);
    assert_int_equal(io_sim_fault_count(b.p.io, IO_SIM_STUCK, 0), AT_ONCE);
    now_ns += STUCK_NS;
    io_sim_unstick(b.p.io);
    while (io_sim_fault_count(b.p.io, IO_SIM_STUCK, 0) < PIECES)
        steps(&b, 1);
    now_ns += STUCK_NS; /* at most the limit since the last answer */
    assert_int_equal(steps(&b, 20), STORE_FETCH_IN_FLIGHT);
    assert_int_equal(n_failures(&b), 0);
    /* The last of the first pieces may have been collected after the clock moved. */
    for (; store_fetch_in_flight(b.f); now_ns += STUCK_NS / 8)
        steps(&b, 1);
    assert_int_equal(n_failures(&b), 1);
    bench_close(&b);
}
