/* Asynchronous requests behave the same on uring, pread and the simulated disk; and the throttle.
 */
#include <stdlib.h>
#include <pthread.h>
#include <string.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/rng.h"
#include "io/io.h"
#include "sim/io_sim.h"
#include "io/io_alarm.h"
#include "io/io_throttle.h"
#include "iotest.h"

#define MIB (1u << 20)

static struct io_file *open_new(struct iotest *t, const char *name, unsigned flags)
{
    struct io_file *f;
    struct err err = {0};
    if (io_file_open(t->io, iotest_path(t, name), IO_CREATE | flags, &f, &err) != 0)
        fail_msg("%s", err.msg);
    return f;
}

static struct io_queue *open_queue(struct iotest *t, unsigned depth)
{
    struct io_queue *q;
    struct err err = {0};
    if (io_queue_open(t->io, depth, &q, &err) != 0)
        fail_msg("%s", err.msg);
    return q;
}

/* Returns whether the file system of a file reads past the page cache. */
static bool takes_direct(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECT);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Returns whether the kernel lacks cachestat (Linux 6.5). */
static bool no_cachestat(void)
{
    return syscall(451, -1, NULL, NULL, 0) != 0 && errno == ENOSYS;
}

static void submit(struct io_queue *q, struct io_req *req)
{
    io_queue_submit(q, &req, 1);
}

static struct io_req *wait_one(struct io_queue *q)
{
    struct io_req *done = NULL;
    unsigned n;
    assert_int_equal(io_queue_wait(q, 1, 1, -1, &done, &n, NULL), 0);
    assert_int_equal(n, 1);
    return done;
}

/* Reads the whole of a direct file by one request. Returns the bytes that the page cache had. */
static size_t read_whole(struct io_queue *q, struct io_file *f, uint8_t *in, size_t n,
                         bool may_hit)
{
    struct io_req req = {
        .file = f, .op = IO_READ, .buf = in, .length = n, .may_hit = may_hit};
    memset(in, 0, n);
    submit(q, &req);
    assert_ptr_equal(wait_one(q), &req);
    assert_int_equal(req.result, 0);
    return req.cached_bytes;
}

/* A read that may hit takes from the page cache what another program has read, and only then. It
 * never sees bytes that a direct write has replaced. Asking does not fill the cache. */
static void test_page_cache(void **state)
{
    struct iotest *t = iotest_begin(state);
    enum { N = 3 * MIB + 8 * IO_ALIGN };
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 8];
    uint8_t *out = iotest_buffer(N), *in = iotest_buffer(N);
    struct io_file *f;
    tempdir_make_on_disk(dir, "cache");
    snprintf(path, sizeof path, "%s/f", dir);
    bool is_sim = strcmp(io_name(t->io), "sim") == 0;
    struct io_queue *q = open_queue(t, 4);
    assert_int_equal(io_file_open(t->io, is_sim ? iotest_path(t, "f") : path,
                                  IO_CREATE | IO_DIRECT, &f, NULL),
                     0);
    for (int round = 0; round < 2; round++) {
        iotest_fill(out, N, (uint64_t)round);
        assert_int_equal(io_file_pwrite(f, out, N, 0, NULL), 0);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(read_whole(q, f, in, N, true), 0);
            assert_memory_equal(in, out, N);
        }
        int fd = is_sim ? -1 : open(path, O_RDONLY);
        for (uint64_t at = 0; fd >= 0 && at < N; at += MIB)
            assert_true(pread(fd, in, MIB, (off_t)at) > 0);
        size_t hit = read_whole(q, f, in, N, true);
        assert_memory_equal(in, out, N);
        /* all, or nothing where the system cannot be asked */
        assert_true(hit == N ||
                    (hit == 0 && (is_sim || !takes_direct(path) || no_cachestat())));
        assert_int_equal(read_whole(q, f, in, N, false), 0);
        assert_memory_equal(in, out, N);
        if (fd >= 0)
            close(fd);
    }
    io_throttle(t->io, 1ull << 40, 0);
    assert_int_equal(read_whole(q, f, in, N, true), 0);
    io_queue_close(q);
    io_file_close(f);
    tempdir_remove(dir);
    free(out);
    free(in);
}

/* Writes and reads back many requests of odd sizes, far more than the depth. */
static void round_trip(struct iotest *t, unsigned depth, bool registered)
{
    enum { N = 23, SECTORS = 700 };
    struct io_file *f = open_new(t, "f", IO_DIRECT);
    struct io_queue *q = open_queue(t, depth);
    size_t n_bytes = (size_t)SECTORS * IO_ALIGN * 2;
    uint8_t *out = iotest_buffer(n_bytes), *in = iotest_buffer(n_bytes);
    iotest_fill(out, n_bytes, 7);
    if (registered) {
        struct io_buffer b[2] = {{out, n_bytes}, {in, n_bytes}};
        struct err err = {0};
        int rc = io_queue_register_buffers(q, b, 2, &err);
        if (rc != 0 && rc != -ENOMEM && rc != -EPERM)
            fail_msg("%s", err.msg);
    }
    struct io_req reqs[N], *ptr[N], *done[N];
    struct rng rng = {.s = depth};
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        for (unsigned i = 0; i < N; i++) {
            size_t left = n_bytes - at;
            size_t n = i == N - 1 ? left
                                  : rng_below(&rng, left / IO_ALIGN / 4 + 1) * IO_ALIGN;
            reqs[i] = (struct io_req){.file = f,
                                      .op = pass == 0 ? IO_WRITE : IO_READ,
                                      .buf = (pass == 0 ? out : in) + at,
                                      .length = n,
                                      .offset = at,
                                      .user = &reqs[i]};
            ptr[i] = &reqs[i];
            at += n;
        }
        io_queue_submit(q, ptr, 10);
        io_queue_submit(q, ptr + 10, N - 10);
        assert_int_equal(io_queue_outstanding(q), N);
        unsigned seen = 0, n;
        while (seen < N) {
            assert_int_equal(io_queue_wait(q, 2, 5, -1, done, &n, NULL), 0);
            assert_true(n >= 1 && n <= 5);
            for (unsigned i = 0; i < n; i++) {
                assert_ptr_equal(done[i]->user, done[i]);
                assert_int_equal(done[i]->result, 0);
                done[i]->user = NULL; /* a second completion would be noticed */
            }
            seen += n;
        }
        assert_int_equal(io_queue_outstanding(q), 0);
        assert_int_equal(io_queue_wait(q, 3, 5, -1, done, &n, NULL), 0);
        assert_int_equal(n, 0); /* does not block if nothing is in flight */
    }
    assert_memory_equal(in, out, n_bytes);
    io_queue_close(q);
    io_file_close(f);
    free(in);
    free(out);
}

static void test_round_trip(void **state)
{
    struct iotest *t = iotest_begin(state);
    round_trip(t, 1, false);
    round_trip(t, 4, true);
    round_trip(t, 32, true);
}

static void test_errors_come_with_the_request(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", IO_DIRECT);
    struct io_queue *q = open_queue(t, 2);
    uint8_t *b = iotest_buffer(8 * MIB);
    iotest_fill(b, 8 * MIB, 1);
    assert_int_equal(io_file_pwrite(f, b, 3 * MIB, 0, NULL), 0);

    struct io_req past_end = {.file = f, .op = IO_READ, .buf = b, .length = 8 * MIB};
    struct io_req misaligned = {.file = f, .op = IO_READ, .buf = b, .length = 100};
    struct io_req empty = {.file = f, .op = IO_READ, .buf = b, .length = 0};
    struct io_req good = {
        .file = f, .op = IO_READ, .buf = b, .length = 2 * MIB, .offset = MIB};
    struct io_req *all[] = {&past_end, &misaligned, &empty, &good}, *done[4];
    unsigned n;
    io_queue_submit(q, all, 4);
    assert_int_equal(io_queue_wait(q, 4, 4, -1, done, &n, NULL), 0);
    assert_int_equal(n, 4);
    assert_int_equal(past_end.result, -ENODATA);
    assert_int_equal(misaligned.result, -EINVAL);
    assert_int_equal(empty.result, 0);
    assert_int_equal(good.result, 0);
    struct err err = {0};
    assert_int_equal(io_req_err(&good, &err), 0);
    assert_int_equal(io_req_err(&past_end, &err), -ENODATA);
    assert_non_null(strstr(err.msg, "ends before"));
    io_queue_close(q);
    assert_int_equal(io_queue_open(t->io, 0, &q, NULL), -EINVAL);
    io_queue_close(q); /* closing NULL is allowed */
    io_file_close(f);
    free(b);
}

static void test_poll_and_close(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", 0);
    struct io_queue *q = open_queue(t, 2);
    uint8_t *b = iotest_buffer(4 * MIB);
    iotest_fill(b, 4 * MIB, 1);
    struct io_req w = {.file = f, .op = IO_WRITE, .buf = b, .length = 4 * MIB}, *done;
    submit(q, &w);
    unsigned n = 0;
    while (n == 0) /* polling alone makes progress */
        assert_int_equal(io_queue_wait(q, 0, 1, 0, &done, &n, NULL), 0);
    assert_ptr_equal(done, &w);
    assert_int_equal(w.result, 0);
    w.op = IO_READ;
    submit(q, &w);
    submit(q, &(struct io_req){.file = f, .op = IO_READ, .buf = b, .length = MIB});
    io_queue_close(q); /* with requests in flight */
    io_file_close(f);
    free(b);
}

/* Depths and numbers of buffers outside of their bounds are refused; the bounds are allowed. */
static void test_bounds(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct err err = {0};
    struct io_queue *q;
    struct io_buffer buffers[65];
    uint8_t *b = iotest_buffer(65 * IO_ALIGN);
    static const unsigned bad[] = {0, 1025, UINT32_MAX}, good[] = {1, 1024};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(io_queue_open(t->io, bad[i], &q, &err), -EINVAL);
        assert_null(q);
        assert_non_null(strstr(err.msg, "must be 1 to 1024"));
    }
    for (int i = 0; i < 2; i++) {
        q = open_queue(t, good[i]);
        io_queue_close(q);
    }
    for (int i = 0; i < 65; i++)
        buffers[i] = (struct io_buffer){b + i * (int)IO_ALIGN, IO_ALIGN};
    q = open_queue(t, 2);
    assert_int_equal(io_queue_register_buffers(q, buffers, 0, &err), -EINVAL);
    assert_int_equal(io_queue_register_buffers(q, buffers, 65, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "register 65 buffers: must be 1 to 64"));
    assert_int_equal(io_queue_register_buffers(q, buffers, 64, &err), 0);
    struct io_file *f = open_new(t, "f", 0);
    /* inside a buffer, across two, and behind the last one */
    iotest_fill(b, 65 * IO_ALIGN, 4);
    static const size_t at[] = {0, 100, 63 * IO_ALIGN, 64 * IO_ALIGN};
    for (int i = 0; i < 4; i++) {
        uint8_t back[IO_ALIGN];
        struct io_req w = {.file = f, .op = IO_WRITE, .buf = b + at[i], .length = IO_ALIGN};
        /* the queue's own fields may hold anything before */
        w.next = &w;
        w.result = -EIO;
        w.issued_bytes = w.n_pieces = 77;
        submit(q, &w);
        assert_int_equal(wait_one(q)->result, 0);
        assert_int_equal(io_file_pread(f, back, IO_ALIGN, 0, NULL), 0);
        assert_memory_equal(back, b + at[i], IO_ALIGN);
    }
    struct io_file *reads;
    assert_int_equal(io_file_open(t->io, iotest_path(t, "f"), IO_READ_ONLY, &reads, NULL),
                     0);
    struct io_req w = {.file = reads, .op = IO_WRITE, .buf = b, .length = 10, .offset = 5};
    submit(q, &w);
    assert_int_equal(io_req_err(wait_one(q), &err), -EBADF);
    assert_non_null(strstr(err.msg, "write 10 bytes at 5 of "));
    io_queue_close(q);
    io_file_close(reads);
    io_file_close(f);
    free(b);
}

/* ---- Short transfers: only the simulated disk makes them on demand ------------------------ */

static void test_short_transfers(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_sim_fault fault = {.kind = IO_SIM_SHORT, .chance = 0.7};
    assert_int_equal(io_sim_fault_add(t->io, &fault), 0);
    round_trip(t, 3, false);
    struct io_file *f = open_new(t, "g", 0);
    uint8_t out[5000], in[5000];
    iotest_fill(out, sizeof out, 1);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(io_file_pwrite(f, out, sizeof out, 3 * i, NULL), 0);
        assert_int_equal(io_file_pread(f, in, sizeof in, 3 * i, NULL), 0);
        assert_memory_equal(in, out, sizeof in);
    }
    assert_true(io_sim_fault_hits(t->io) > 20);
    io_file_close(f);
}

static void test_failure_in_one_piece(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", 0);
    struct io_queue *q = open_queue(t, 3);
    uint8_t *b = iotest_buffer(9 * MIB);
    iotest_fill(b, 9 * MIB, 1);
    for (uint64_t nth = 0; nth < 12; nth++) {
        io_sim_fault_add(t->io, &(struct io_sim_fault){.kind = IO_SIM_FAIL,
                                                       .on = IO_SIM_ON_WRITE,
                                                       .code = -EIO,
                                                       .skip = nth,
                                                       .count = 1});
        struct io_req a = {.file = f, .op = IO_WRITE, .buf = b, .length = 9 * MIB};
        struct io_req c = {
            .file = f, .op = IO_WRITE, .buf = b, .length = MIB, .offset = 9 * MIB};
        submit(q, &a);
        submit(q, &c);
        wait_one(q);
        wait_one(q);
        /* The request has ten pieces. The seed decides their order. */
        assert_int_equal(a.result == -EIO, nth < 10 && c.result == 0);
        assert_int_equal(a.result != 0 || c.result != 0, nth < 10);
        io_sim_fault_clear(t->io);
    }
    io_queue_close(q);
    io_file_close(f);
    free(b);
}

/* ---- the throttle ---- */

/* Only lower bounds of the time are tested: a busy machine cannot violate them. */

#define LIMIT (40u << 20)

static int64_t limit_ns(uint64_t n_bytes)
{
    return (int64_t)(n_bytes * 1000000000ull / LIMIT);
}

static void test_throttle_sync(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", 0);
    uint8_t *b = iotest_buffer(MIB);
    iotest_fill(b, MIB, 1);
    io_throttle(t->io, LIMIT, 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(io_file_pwrite(f, b, MIB, i * MIB, NULL), 0);
    int64_t t0 = clock_now_ns();
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(io_file_pread(f, b, MIB, i * MIB, NULL), 0);
    int64_t took = clock_now_ns() - t0;
    assert_true(took >= limit_ns(4 * MIB) * 98 / 100);
    io_file_close(f);
    free(b);
}

/* At one byte per second the reserved time soon exceeds the clock's range. It then stays at
 * INT64_MAX instead of wrapping to the past. */
static void test_throttle_overflow(void **state)
{
    struct io_throttle t;
    io_throttle_init(&t);
    io_throttle_set(&t, 1);
    int64_t end_ns = 0, before_ns = 0;
    /* 64 MiB take 2 years: 137 reservations reach the end of the clock's range */
    for (int i = 0; i < 200; i++) {
        before_ns = end_ns;
        end_ns = io_throttle_reserve(&t, 64u << 20);
        assert_true(end_ns > 0 && end_ns >= before_ns);
    }
    assert_true(end_ns == INT64_MAX);
    assert_true(io_throttle_reserve(&t, UINT64_MAX) == INT64_MAX);
    io_throttle_deinit(&t);
}

/* A device that was idle has no time in hand: its first transfer takes its whole time. */
static void test_throttle_idle(void **state)
{
    struct io_throttle t;
    io_throttle_init(&t);
    io_throttle_set(&t, LIMIT);
    int64_t end_ns = 0;
    for (int i = 0; i < 2; i++) {
        clock_sleep_ns(end_ns == 0 ? 0 : end_ns - clock_now_ns() + 200000);
        int64_t now_ns = clock_now_ns();
        end_ns = io_throttle_reserve(&t, LIMIT / 1000);
        assert_true(end_ns >= now_ns + limit_ns(LIMIT / 1000));
    }
    io_throttle_deinit(&t);
}

/* The time by which a wait has ended late is given back once, to the next transfer. */
static void test_throttle_late(void **state)
{
    struct io_throttle t;
    const int64_t took_ns = 1000000000, late_ns = 400000000;
    memset(&t, 0xff, sizeof t);
    io_throttle_init(&t);
    assert_true(t.bytes_per_s == 0 && t.next_ns == 0 && t.late_ns == 0);
    io_throttle_set(&t, LIMIT);
    t.late_ns = late_ns;
    int64_t before_ns = clock_now_ns();
    int64_t end_ns = io_throttle_reserve(&t, LIMIT);
    assert_true(end_ns >= before_ns - late_ns + took_ns);
    assert_true(end_ns <= clock_now_ns() - late_ns + took_ns);
    assert_true(t.late_ns == 0 && t.next_ns == end_ns);
    /* a transfer behind it begins when it ends */
    assert_true(io_throttle_reserve(&t, LIMIT / 2) == end_ns + took_ns / 2);
    io_throttle_set(&t, 0);
    assert_true(io_throttle_reserve(&t, LIMIT) == 0);
    assert_true(t.late_ns == 0 && t.next_ns == 0);
    io_throttle_deinit(&t);
}

static void test_throttle_queue(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", 0);
    struct io_queue *q = open_queue(t, 4);
    uint8_t *b = iotest_buffer(4 * MIB);
    iotest_fill(b, 4 * MIB, 1);
    io_throttle(t->io, 0, LIMIT);
    struct io_req w = {.file = f, .op = IO_WRITE, .buf = b, .length = 4 * MIB}, *done;
    unsigned n;
    int64_t t0 = clock_now_ns();
    submit(q, &w);
    assert_int_equal(io_queue_wait(q, 1, 1, 1000000, &done, &n, NULL), 0);
    int64_t waited = clock_now_ns() - t0;
    /* Either the wait lasted as long as its time-out, or the throttled write took its time. */
    assert_true(n == 0 || waited >= limit_ns(4 * MIB) * 98 / 100);
    if (n == 0)
        wait_one(q);
    int64_t took = clock_now_ns() - t0;
    assert_true(took >= limit_ns(4 * MIB) * 98 / 100);
    assert_int_equal(w.result, 0);
    io_queue_close(q);
    io_file_close(f);
    free(b);
}

static void *ring(void *alarm)
{
    clock_sleep_ns(2000000);
    io_alarm_ring(alarm);
    return NULL;
}

/* A ring ends one wait for requests, whether it comes before or during that wait. The throttle
 * makes the request take hours, and each wait has a time-out of a minute. */
static void test_alarm(void **state)
{
    enum { MINUTE = 60 };
    const int64_t minute_ns = MINUTE * INT64_C(1000000000);
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "a", 0);
    struct io_queue *q = open_queue(t, 4);
    struct io_alarm alarm;
    assert_int_equal(io_alarm_init(&alarm, NULL), 0);
    io_queue_listen(q, &alarm);
    uint8_t *b = iotest_buffer(IO_ALIGN);
    iotest_fill(b, IO_ALIGN, 1);
    struct io_req w = {.file = f, .op = IO_WRITE, .buf = b, .length = IO_ALIGN};
    bool is_done;
    submit(q, &w); /* without the throttle the request ends, and no ring is pending */
    assert_int_equal(io_queue_await(q, minute_ns, &is_done, NULL), 0);
    assert_true(is_done && !io_queue_has_rung(q));
    wait_one(q);
    io_throttle(t->io, 0, 1);
    submit(q, &w);
    int64_t begin_ns = clock_now_ns();
    io_alarm_ring(&alarm);
    io_alarm_ring(&alarm);
    assert_int_equal(io_queue_await(q, minute_ns, &is_done, NULL), 0);
    assert_true(!is_done && io_queue_has_rung(q));
    assert_int_equal(io_queue_await(q, 1000000, &is_done, NULL), 0);
    assert_true(!is_done && !io_queue_has_rung(q));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, ring, &alarm), 0);
    assert_int_equal(io_queue_await(q, minute_ns, &is_done, NULL), 0);
    assert_true(!is_done && io_queue_has_rung(q));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(clock_now_ns() - begin_ns < minute_ns);
    io_queue_close(q);
    io_alarm_deinit(&alarm);
    io_file_close(f);
    free(b);
}

/* Cancelled requests all come back, complete or with -ECANCELED; the queue goes on. */
static void test_cancel(void **state)
{
    enum { N = 40 };
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "c", IO_DIRECT);
    struct io_queue *q = open_queue(t, 3);
    uint8_t *b = iotest_buffer(MIB);
    struct io_req reqs[N], *done[N];
    unsigned n = 0, n_all = 0, n_cancelled = 0;
    iotest_fill(b, MIB, 3);
    assert_int_equal(io_file_pwrite(f, b, MIB, 0, NULL), 0);
    for (int i = 0; i < N; i++) {
        reqs[i] = (struct io_req){.file = f, .op = IO_WRITE, .buf = b, .length = MIB};
        submit(q, &reqs[i]);
    }
    io_queue_cancel(q);
    while (io_queue_outstanding(q) > 0) {
        assert_int_equal(io_queue_wait(q, 1, N, -1, done, &n, NULL), 0);
        for (unsigned i = 0; i < n; i++) {
            assert_true(done[i]->result == 0 || done[i]->result == -ECANCELED);
            n_cancelled += done[i]->result != 0;
        }
        n_all += n;
    }
    assert_int_equal(n_all, N);
    assert_true(n_cancelled >= N - 3); /* every request that had not begun is cancelled */
    io_queue_cancel(q);                /* nothing to cancel */
    reqs[0] = (struct io_req){.file = f, .op = IO_READ, .buf = b, .length = MIB};
    submit(q, &reqs[0]);
    assert_int_equal(wait_one(q)->result, 0);
    io_queue_close(q);
    io_file_close(f);
    free(b);
}

/* If a device does not answer, waiting ends in time, and cancelling returns the request. */
static void test_stuck(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "s", 0);
    struct io_queue *q = open_queue(t, 4);
    uint8_t *b = iotest_buffer(IO_ALIGN);
    struct io_req r[2], *done[2];
    unsigned n = 9;
    struct io_sim_fault stuck = {.kind = IO_SIM_STUCK, .on = IO_SIM_ON_WRITE, .count = 1};
    assert_int_equal(io_sim_fault_add(t->io, &stuck), 0);
    for (int i = 0; i < 2; i++) {
        r[i] = (struct io_req){.file = f, .op = IO_WRITE, .buf = b, .length = IO_ALIGN};
        submit(q, &r[i]);
    }
    assert_int_equal(io_queue_wait(q, 2, 2, 2000000, done, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_ptr_equal(done[0], &r[1]);
    for (int timeout_ns = 0; timeout_ns <= 1000000; timeout_ns += 500000) {
        bool is_done = true;
        assert_int_equal(io_queue_wait(q, 1, 2, timeout_ns, done, &n, NULL), 0);
        assert_int_equal(n, 0);
        assert_int_equal(io_queue_await(q, timeout_ns, &is_done, NULL), 0);
        assert_false(is_done);
    }
    io_queue_cancel(q);
    assert_int_equal(wait_one(q)->result, -ECANCELED);
    assert_int_equal(io_sim_fault_count(t->io, IO_SIM_STUCK, 0), 1);
    assert_int_equal(io_sim_fault_add(t->io, &stuck), 0);
    submit(q, &r[0]);
    io_sim_unstick(t->io); /* the device answers after all */
    assert_int_equal(wait_one(q)->result, 0);
    io_queue_close(q);
    io_file_close(f);
    free(b);
}

/* Cancelling also returns stuck requests that lie behind requests that are not stuck. */
static void test_cancel_reaches_every_stuck_request(void **state)
{
    enum { N = 4 };
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "s", 0);
    struct io_queue *q = open_queue(t, N);
    uint8_t *b = iotest_buffer(IO_ALIGN);
    struct io_req r[N], *done[N];
    unsigned n = 0;
    struct io_sim_fault stuck = {.kind = IO_SIM_STUCK, .on = IO_SIM_ON_WRITE};
    for (int i = 0; i < N; i++) {
        r[i] = (struct io_req){.file = f, .op = IO_WRITE, .buf = b, .length = IO_ALIGN};
        io_sim_fault_clear(t->io);
        if (i % 2 == 1)
            assert_int_equal(io_sim_fault_add(t->io, &stuck), 0);
        submit(q, &r[i]);
    }
    io_queue_cancel(q);
    assert_int_equal(io_queue_wait(q, N, N, (int64_t)5e9, done, &n, NULL), 0);
    assert_int_equal(n, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(r[i].result, i % 2 == 1 ? -ECANCELED : 0);
    io_queue_close(q);
    io_file_close(f);
    free(b);
}

/* When a wait returns, the next request is on its way to the disk: it ends although nobody calls
 * the queue again. */
static void test_the_next_request_is_sent(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", 0);
    struct io_queue *q = open_queue(t, 1);
    uint8_t out[2][100], in[100] = {0};
    struct io_req r[2];
    for (int i = 0; i < 2; i++) {
        iotest_fill(out[i], sizeof out[i], 1 + (uint64_t)i);
        r[i] = (struct io_req){.file = f,
                               .op = IO_WRITE,
                               .buf = out[i],
                               .length = sizeof out[i],
                               .offset = (uint64_t)i * sizeof out[i]};
        submit(q, &r[i]);
    }
    assert_ptr_equal(wait_one(q), &r[0]);
    for (int i = 0; i < 5000 && memcmp(in, out[1], sizeof in) != 0; i++) {
        clock_sleep_ns(i > 0 ? 1000000 : 0);
        io_file_pread(f, in, sizeof in, sizeof in, NULL);
    }
    assert_memory_equal(in, out[1], sizeof in);
    assert_ptr_equal(wait_one(q), &r[1]);
    io_queue_close(q);
    io_file_close(f);
}

/* --- a low limit on locked memory ----------------------------------------------------------------
 */

/* Without privileges, opens more queues than RLIMIT_MEMLOCK has room for, and reads with each. */
static int read_by_many_queues(struct io *io, struct io_file *f, const uint8_t *want)
{
    enum { N_QUEUES = 64, DEPTH = 256 };
    static struct io_queue *q[N_QUEUES];
    struct rlimit few = {65536, 65536};
    struct err err = {0};
    uint8_t got[64];
    if (setrlimit(RLIMIT_MEMLOCK, &few) != 0 || (geteuid() == 0 && setuid(65534) != 0))
        return 2;
    for (int i = 0; i < N_QUEUES; i++) {
        if (io_queue_open(io, DEPTH, &q[i], &err) != 0) {
            fprintf(stderr, "queue %d: %s\n", i, err.msg);
            return 3;
        }
        struct io_req r = {.op = IO_READ, .file = f, .buf = got, .length = sizeof got};
        struct io_req *reqs = &r, *done;
        unsigned n = 0;
        memset(got, 0, sizeof got);
        io_queue_submit(q[i], &reqs, 1);
        if (io_queue_wait(q[i], 1, 1, -1, &done, &n, &err) != 0 || n != 1 ||
            memcmp(got, want, sizeof got) != 0)
            return 4;
    }
    for (int i = 0; i < N_QUEUES; i++)
        io_queue_close(q[i]);
    return 0;
}

static void test_little_memory_to_lock(void **state)
{
    struct iotest *t = iotest_begin(state);
    uint8_t bytes[64];
    int status;
    iotest_fill(bytes, sizeof bytes, 5);
    struct io_file *f = open_new(t, "f", 0);
    assert_int_equal(io_file_pwrite(f, bytes, sizeof bytes, 0, NULL), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(read_by_many_queues(t->io, f, bytes));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    io_file_close(f);
}

/* A queue of the other io has four pieces in flight, and has priority. Meanwhile this queue
 * continues with one piece at a time; afterwards it uses its full depth. */
static void test_shared_disk(void **state)
{
    enum { N = 6 };
    struct io_turn turn = {0};
    struct iotest *t = iotest_begin(state);
    void *other = (void *)(uintptr_t)io_name(t->io);
    assert_int_equal(iotest_setup(&other), 0);
    struct iotest *f = other;
    io_share_disk(f->io, &turn, true);
    io_share_disk(t->io, &turn, false);
    struct io_file *first_file = open_new(f, "first", 0), *file = open_new(t, "second", 0);
    struct io_queue *first = open_queue(f, 4), *q = open_queue(t, N);
    uint8_t *bytes = iotest_buffer(4 * MIB), small[N] = {0};
    iotest_fill(bytes, 4 * MIB, 1);
    struct io_req big = {
        .file = first_file, .op = IO_WRITE, .buf = bytes, .length = 4 * MIB};
    struct io_req reqs[N];
    for (int round = 0; round < 2; round++) {
        if (round == 0)
            submit(first, &big);
        for (unsigned i = 0; i < N; i++) {
            reqs[i] = (struct io_req){
                .file = file, .op = IO_WRITE, .buf = &small[i], .length = 1, .offset = i};
            submit(q, &reqs[i]);
        }
        assert_int_equal(io_queue_in_flight(q), round == 0 ? 1 : N);
        for (unsigned i = 0; i < N; i++) {
            assert_int_equal(wait_one(q)->result, 0);
            assert_true(round == 1 || io_queue_in_flight(q) <= 1);
        }
        if (round == 0) {
            assert_int_equal(atomic_load(&turn.n_first), 4);
            assert_ptr_equal(wait_one(first), &big);
            assert_int_equal(atomic_load(&turn.n_first), 0);
        }
    }
    submit(first, &big); /* a closed queue no longer holds up the other queue */
    io_queue_close(first);
    assert_int_equal(atomic_load(&turn.n_first), 0);
    io_queue_close(q);
    io_file_close(first_file);
    io_file_close(file);
    free(bytes);
    iotest_teardown(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL(test_round_trip),
        ALL(test_page_cache),
        ALL(test_errors_come_with_the_request),
        ALL(test_poll_and_close),
        ALL(test_bounds),
        ON("sim", test_short_transfers),
        ON("sim", test_failure_in_one_piece),
        ALL(test_cancel),
        ON("sim", test_stuck),
        ON("sim", test_cancel_reaches_every_stuck_request),
        ON("uring", test_the_next_request_is_sent),
        ALL(test_throttle_sync),
        cmocka_unit_test(test_throttle_overflow),
        cmocka_unit_test(test_throttle_idle),
        cmocka_unit_test(test_throttle_late),
        ALL(test_throttle_queue),
        ALL(test_alarm),
        ALL(test_shared_disk),
        ON("uring", test_little_memory_to_lock),
        ON("pread", test_little_memory_to_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
