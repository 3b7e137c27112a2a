/* test_group.c - a device group on the CPU: memory on every rank, exchanges, copies and faults. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tensor/collective.h"
#include "tensor/device.h"
#include "tensor/group.h"
#include "tensor/group_impl.h"
#include "tensor/ops.h"

static const int counts[] = {1, 2, 3, 4, MAX_RANKS};
enum { N_COUNTS = sizeof counts / sizeof counts[0] };

static struct device *open_group(const char *name, int n)
{
    struct device *d;
    struct err err = {0};
    if (group_open(name, NULL, n, 1, NULL, &d, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(d->n_ranks, n);
    return d;
}

static float *alloc_floats(struct device *d, size_t n, struct buf *b)
{
    assert_int_equal(buf_alloc(d, MEM_DEVICE, n * sizeof(float), b, NULL), 0);
    return b->ptr;
}

static float value(int rank, int64_t i)
{
    return (float)(rank + 1) * 1.1f + (float)i * 0.37f;
}

static void fill(const struct device *d, float *x, int64_t n)
{
    for (int r = 0; r < d->n_ranks; r++) {
        float *own = rank_address(d, x, r);
        for (int64_t i = 0; i < n; i++)
            own[i] = value(r, i);
    }
}

/* Every rank gets the parts of all ranks, side by side. */
static void gathers_columns(void **state)
{
    (void)state;
    enum { ROWS = 3, COLS = 5, N = ROWS * COLS };
    for (int c = 0; c < N_COUNTS; c++) {
        int n = counts[c];
        struct device *d = open_group(c % 2 == 0 ? "ref" : "cpu", n);
        struct stream *s;
        struct buf from, to;
        float *x = alloc_floats(d, N, &from), *all = alloc_floats(d, (size_t)n * N, &to);
        assert_int_equal(stream_create(d, STREAM_COMPUTE, &s, NULL), 0);
        fill(d, x, N);
        assert_int_equal(all_gather(s, mat_of(all, DTYPE_F32, ROWS, n * COLS),
                                    mat_of(x, DTYPE_F32, ROWS, COLS)),
                         0);
        for (int r = 0; n > 1 && r < n; r++)
            for (int i = 0; i < n * N; i++) {
                int row = i / (n * COLS), col = i % (n * COLS);
                float want = value(col / COLS, row * COLS + col % COLS);
                assert_true(((float *)rank_address(d, all, r))[i] == want);
            }
        buf_free(d, &from);
        buf_free(d, &to);
        stream_destroy(s);
        device_close(d);
    }
}

/* Each rank receives its own part of each half of each chunk, and nothing else is written. */
static void kv_goes_up_and_down_by_heads(void **state)
{
    (void)state;
    enum {
        N = 3,
        RANKS = 4,
        PART = 6,
        CHUNK = RANKS * PART,
        STRIDE = CHUNK + 5,
        ALL = N * STRIDE
    };
    for (int n_ranks = 1; n_ranks <= RANKS; n_ranks += RANKS - 1) {
        struct device *d = open_group("cpu", n_ranks);
        struct stream *s;
        struct buf to;
        uint8_t from[ALL];
        int n_own = CHUNK / n_ranks;
        assert_int_equal(buf_alloc(d, MEM_DEVICE, ALL, &to, NULL), 0);
        assert_int_equal(stream_create(d, STREAM_COPY, &s, NULL), 0);
        for (int i = 0; i < ALL; i++)
            from[i] = (uint8_t)(i + 1);
        for (int r = 0; r < n_ranks; r++)
            memset(rank_address(d, to.ptr, r), 0, ALL);
        assert_int_equal(kv_chunks_up(s, to.ptr, from, N, STRIDE, CHUNK), 0);
        assert_int_equal(stream_sync(s), 0);
        for (int r = 0; r < n_ranks; r++) {
            const uint8_t *own = rank_address(d, to.ptr, r);
            for (int i = 0; i < ALL; i++) {
                int at = i % STRIDE;
                if (at < CHUNK && at % (CHUNK / 2) / (n_own / 2) == r)
                    assert_int_equal(own[i], from[i]);
                else if (n_ranks > 1)
                    assert_int_equal(own[i], 0);
            }
        }
        /* Rows come down, with the ranks' parts of each half side by side. */
        uint8_t down[N * CHUNK];
        for (int r = 0; r < n_ranks; r++) {
            uint8_t *own = rank_address(d, to.ptr, r);
            for (int i = 0; i < N * n_own; i++)
                own[i] = (uint8_t)(100 * r + i);
        }
        struct mat rows = mat_of(to.ptr, DTYPE_BF16, N, n_own / 2);
        assert_int_equal(kv_rows_down(s, down, rows), 0);
        assert_int_equal(stream_sync(s), 0);
        for (int i = 0; i < N * CHUNK; i++) {
            int at = i % CHUNK, half = CHUNK / 2, r = at % half / (n_own / 2);
            int own = i / CHUNK * n_own + at / half * (n_own / 2) + at % (n_own / 2);
            assert_int_equal(down[i], (uint8_t)(100 * r + own));
        }
        buf_free(d, &to);
        stream_destroy(s);
        device_close(d);
    }
}

/* An address inside a piece of memory finds the piece, whatever was freed before. Host memory
 * belongs to all ranks. */
static void addresses_of_ranks(void **state)
{
    (void)state;
    enum { N = 200 };
    struct device *d = open_group("cpu", 3);
    struct buf b[N] = {{0}}, host;
    struct rng rng = {.s = 3};
    assert_int_equal(buf_alloc(d, MEM_HOST, 64, &host, NULL), 0);
    for (int step = 0; step < 2000; step++) {
        int i = (int)rng_below(&rng, N);
        size_t bytes = 1 + (size_t)rng_below(&rng, 9000);
        if (b[i].ptr != NULL)
            buf_free(d, &b[i]);
        else
            assert_int_equal(buf_alloc(d, MEM_DEVICE, bytes, &b[i], NULL), 0);
        int k = (int)rng_below(&rng, N);
        if (b[k].ptr == NULL)
            continue;
        size_t at = (size_t)rng_below(&rng, b[k].bytes);
        uint8_t *p = (uint8_t *)b[k].ptr + at;
        uint8_t *one = rank_address(d, p, 1), *two = rank_address(d, p, 2);
        assert_ptr_equal(rank_address(d, p, 0), p);
        assert_true(one != p && two != p && one != two);
        assert_ptr_equal(rank_address(d, b[k].ptr, 1), one - at);
        one[0] = 1;
        two[0] = 2;
        assert_true(one[0] == 1 && two[0] == 2);
    }
    assert_ptr_equal(rank_address(d, host.ptr, 2), host.ptr);
    for (int i = 0; i < N; i++)
        buf_free(d, &b[i]);
    buf_free(d, &host);
    device_close(d);
}

/* Copies go up to every rank and down from the first.  Between devices each rank copies its own
 * memory. */
static void copies(void **state)
{
    (void)state;
    static const enum stream_kind kinds[] = {STREAM_COMPUTE, STREAM_COPY};
    enum { N = 1001 };
    for (int k = 0; k < 2; k++) {
        struct device *d = open_group("cpu", 2);
        struct stream *s;
        struct event *e;
        struct buf a, b;
        float host[N], back[N] = {0};
        float *x = alloc_floats(d, N, &a), *y = alloc_floats(d, N, &b);
        for (int i = 0; i < N; i++)
            host[i] = (float)i;
        assert_int_equal(stream_create(d, kinds[k], &s, NULL), 0);
        assert_int_equal(event_create(d, &e, NULL), 0);
        assert_int_equal(stream_copy(s, x, host, sizeof host), 0);
        assert_int_equal(event_record(s, e), 0);
        assert_int_equal(event_sync(e), 0);
        ((float *)rank_address(d, x, 1))[7] = -1;
        assert_int_equal(stream_copy(s, y, x, sizeof host), 0);
        assert_int_equal(stream_copy(s, back, y, sizeof host), 0);
        assert_int_equal(stream_sync(s), 0);
        assert_memory_equal(back, host, sizeof host);
        assert_true(((float *)rank_address(d, y, 1))[7] == -1);
        event_destroy(e);
        stream_destroy(s);
        buf_free(d, &a);
        buf_free(d, &b);
        device_close(d);
    }
}

/* A fault of a rank is the group's fault, with the rank's message, until the rank recovers. */
static void a_rank_fails(void **state)
{
    (void)state;
    struct device *d = open_group("cpu", 3);
    struct stream *s;
    struct buf b;
    float *x = alloc_floats(d, 8, &b);
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &s, NULL), 0);
    stream_fail(rank_stream(s, 0, 2), -EIO, "rank two is gone");
    struct mat m = mat_of(x, DTYPE_F32, 1, 8);
    assert_int_equal(d->ops->act(s, m, ACTIVATION_RELU), -EIO);
    assert_string_equal(stream_fault(s), "rank two is gone");
    assert_int_equal(all_gather(s, mat_of(x, DTYPE_F32, 1, 6), mat_of(x, DTYPE_F32, 1, 2)),
                     -EIO);
    assert_int_equal(stream_copy(s, x, x, 4), -EIO);
    assert_int_equal(stream_sync(s), -EIO);
    assert_int_equal(stream_recover(s), 0);
    assert_int_equal(d->ops->act(s, m, ACTIVATION_RELU), 0);
    assert_string_equal(stream_fault(s), "");
    buf_free(d, &b);
    stream_destroy(s);
    device_close(d);
}

/* Memory lies on one stage, on each of the stage's ranks, and operations on it run there. A copy
 * from one stage to another runs after everything that the source stage has queued. */
static void stages(void **state)
{
    (void)state;
    static const enum stream_kind kinds[] = {STREAM_COMPUTE, STREAM_COPY};
    enum { N = 1001, STAGES = 3 };
    for (int k = 0; k < 2; k++) {
        struct device *d;
        struct stream *s;
        struct buf b[MAX_STAGES] = {{0}};
        float host[N], back[N];
        assert_int_equal(group_open("cpu", NULL, 2, STAGES, NULL, &d, NULL), 0);
        assert_int_equal(d->n_ranks, 2);
        assert_int_equal(d->n_stages, STAGES);
        assert_int_equal(stages_alloc(d, sizeof host, b, NULL), 0);
        assert_int_equal(stream_create(d, kinds[k], &s, NULL), 0);
        for (int i = 0; i < N; i++)
            host[i] = (float)i;
        for (int i = 0; i < STAGES; i++)
            assert_int_equal(group_stage(group_of(d), (float *)b[i].ptr + 5), i);
        for (int round = 0; round < 20; round++) {
            host[0] = (float)round;
            assert_int_equal(stream_copy(s, b[0].ptr, host, sizeof host), 0);
            for (int i = 1; i < STAGES; i++)
                assert_int_equal(stream_copy(s, b[i].ptr, b[i - 1].ptr, sizeof host), 0);
            memset(back, 0, sizeof back);
            assert_int_equal(stream_copy(s, back, b[STAGES - 1].ptr, sizeof host), 0);
            assert_int_equal(stream_sync(s), 0);
            assert_memory_equal(back, host, sizeof host);
            assert_memory_equal(rank_address(d, b[STAGES - 1].ptr, 1), host, sizeof host);
        }
        stages_free(d, b);
        stream_destroy(s);
        device_close(d);
    }
}

/* --- what is called, in which order, and on which device -------------------------------------- */

/* The calls to the devices of a group since the last check. Each call is the device's index and a
 * letter. '!' follows a call whose device had not been entered. */
static char calls[400];
static const struct device *entered, *all_devices[MAX_RANKS];
static struct device_vtable spied;
static const struct device_vtable *real;

static void note(const struct device *d, char call)
{
    size_t n = strlen(calls);
    int i = 0;
    while (all_devices[i] != d)
        i++;
    assert_true(n + 4 < sizeof calls);
    calls[n] = (char)('0' + i);
    calls[n + 1] = call;
    if (d != entered)
        calls[n + 2] = '!';
}

static void spy_enter(struct device *d)
{
    entered = d;
}

static int spy_alloc(struct device *d, enum mem_kind kind, size_t bytes, struct buf *out,
                     struct err *err)
{
    note(d, 'a');
    return real->buf_alloc(d, kind, bytes, out, err);
}

static void spy_free(struct device *d, struct buf *b)
{
    note(d, 'f');
    real->buf_free(d, b);
}

static void spy_memory(struct device *d, size_t *unused_bytes, size_t *total_bytes)
{
    note(d, 'm');
    /* the higher a device's index, the less memory it has left */
    for (*unused_bytes = 1000; all_devices[1000 - *unused_bytes] != d; --*unused_bytes)
        ;
    *total_bytes = 2 * *unused_bytes;
}

static int spy_create(struct device *d, enum stream_kind kind, struct stream **out,
                      struct err *err)
{
    note(d, 'n');
    return real->stream_create(d, kind, out, err);
}

static void spy_destroy(struct stream *s)
{
    note(s->device, 'd');
    real->stream_destroy(s);
}

static int spy_sync(struct stream *s)
{
    note(s->device, 's');
    return real->stream_sync(s);
}

static int spy_recover(struct stream *s)
{
    note(s->device, 'v');
    return real->stream_recover(s);
}

static int spy_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    note(s->device, 'c');
    return real->stream_copy(s, dst, src, bytes);
}

static int spy_record(struct stream *s, struct event *e)
{
    note(s->device, 'r');
    return real->event_record(s, e);
}

static int spy_wait(struct stream *s, struct event *e)
{
    note(s->device, 'w');
    return real->event_wait(s, e);
}

static int spy_event_sync(struct event *e)
{
    note(e->device, 'y');
    return real->event_sync(e);
}

/* Opens a group whose devices note their calls. */
static struct device *open_spied(int n_ranks, int n_stages)
{
    struct device *d;
    assert_int_equal(group_open("cpu", NULL, n_ranks, n_stages, NULL, &d, NULL), 0);
    struct group *g = group_of(d);
    real = g->rank[0]->v;
    spied = *real;
    spied.enter = spy_enter;
    spied.buf_alloc = spy_alloc;
    spied.buf_free = spy_free;
    spied.memory = spy_memory;
    spied.stream_create = spy_create;
    spied.stream_destroy = spy_destroy;
    spied.stream_sync = spy_sync;
    spied.stream_recover = spy_recover;
    spied.stream_copy = spy_copy;
    /* the group then copies piece by piece with stream_copy */
    spied.stream_copy_strided = NULL;
    spied.event_record = spy_record;
    spied.event_wait = spy_wait;
    spied.event_sync = spy_event_sync;
    for (int i = 0; i < g->n; i++) {
        all_devices[i] = g->rank[i];
        g->rank[i]->v = &spied;
    }
    return d;
}

/* Asserts which calls came since the last check. Forgets them and the entered device. */
static void called(const char *want)
{
    assert_string_equal(calls, want);
    memset(calls, 0, sizeof calls);
    entered = NULL;
}

/* Each call goes to a device that was entered before. A copy between stages waits for the source
 * stage's work, and later work of the source stage waits for the copy. Ranks do this pair by
 * pair. */
static void devices_are_entered_and_copies_ordered(void **state)
{
    (void)state;
    struct device *d = open_spied(2, 2);
    struct stream *s;
    struct event *e;
    struct buf b[MAX_STAGES] = {{0}}, host;
    float rows[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    size_t unused, total;
    called("");
    assert_int_equal(stages_alloc(d, 64, b, NULL), 0);
    called("0a1a2a3a");
    assert_int_equal(buf_alloc(d, MEM_HOST, 64, &host, NULL), 0);
    called("0a");
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &s, NULL), 0);
    called("0n1n2n3n");
    assert_int_equal(event_create(d, &e, NULL), 0);
    assert_int_equal(stream_copy(s, b[1].ptr, rows, sizeof rows), 0);
    called("2c3c");
    assert_int_equal(stream_copy(s, b[0].ptr, b[1].ptr, sizeof rows), 0);
    called("2r0w0c0r2w3r1w1c1r3w");
    assert_int_equal(stream_copy(s, rows, b[0].ptr, sizeof rows), 0);
    called("0c");
    assert_int_equal(stream_copy(s, rows, b[1].ptr, sizeof rows), 0);
    called("2c");
    assert_int_equal(stream_copy(s, host.ptr, rows, sizeof rows), 0);
    called("0c");
    assert_int_equal(kv_chunks_up(s, b[1].ptr, rows, 2, 16, 8), 0);
    called("2c2c2c2c3c3c3c3c");
    assert_int_equal(kv_rows_down(s, rows, mat_of(b[1].ptr, DTYPE_F32, 2, 2)), 0);
    called("2c2c2c2c3c3c3c3c");
    assert_int_equal(event_record(s, e), 0);
    called("0r1r2r3r");
    assert_int_equal(event_wait(s, e), 0);
    called("0w1w2w3w");
    assert_int_equal(event_sync(e), 0);
    called("0y1y2y3y");
    assert_int_equal(stream_sync(s), 0);
    called("0s1s2s3s");
    stream_fail(rank_stream(s, 1, 1), -EIO, "gone");
    called("");
    assert_int_equal(stream_copy(s, b[0].ptr, b[1].ptr, sizeof rows), -EIO);
    called(""); /* after a fault nothing is queued */
    assert_int_equal(stream_recover(s), 0);
    called("0v1v2v3v");
    device_memory(d, &unused, &total);
    called("0m1m2m3m");
    /* The device with the least memory left decides. The four devices share unified memory. */
    assert_int_equal(unused, 997 / 4);
    assert_int_equal(total, 2 * 997 / 4);
    event_destroy(e);
    stream_destroy(s);
    called("0d1d2d3d");
    buf_free(d, &host);
    called("0f");
    stages_free(d, b);
    called("0f1f2f3f");
    device_close(d);
}

/* --- faults of single devices ----------------------------------------------------------------- */

static const struct device *bad_device; /* the device whose calls fail; NULL: none */

static int bad_alloc(struct device *d, enum mem_kind kind, size_t bytes, struct buf *out,
                     struct err *err)
{
    return d == bad_device ? err_set(err, -ENOMEM, "full")
                           : spy_alloc(d, kind, bytes, out, err);
}

static int bad_create(struct device *d, enum stream_kind kind, struct stream **out,
                      struct err *err)
{
    return d == bad_device ? err_set(err, -EAGAIN, "no stream")
                           : spy_create(d, kind, out, err);
}

static int event_create_or_fail(struct device *d, struct event **out, struct err *err)
{
    note(d, 'e');
    return d == bad_device ? err_set(err, -EMFILE, "no event")
                           : real->event_create(d, out, err);
}

static void spy_event_destroy(struct event *e)
{
    note(e->device, 'x');
    real->event_destroy(e);
}

static int bad_event_sync(struct event *e)
{
    return e->device == bad_device ? -EIO : spy_event_sync(e);
}

static int bad_recover(struct stream *s)
{
    int rc = spy_recover(s);
    if (s->device == bad_device)
        stream_fail(s, -EIO, "still gone");
    return rc;
}

static int spy_reserve(struct device *d, size_t bytes, struct err *err)
{
    note(d, bytes == 100 ? 'R' : 'S');
    return d == bad_device ? err_set(err, -ENOMEM, "full") : 0;
}

/* A device that fails ends the call with its code and its number. Devices before it release what
 * they have taken. */
static void a_failing_device_is_named(void **state)
{
    (void)state;
    struct device *d = open_spied(2, 2);
    struct stream *s;
    struct event *e;
    struct err err = {0};
    struct buf b[MAX_STAGES] = {{0}}, one;
    spied.buf_alloc = bad_alloc;
    spied.stream_create = bad_create;
    spied.event_create = event_create_or_fail;
    spied.event_destroy = spy_event_destroy;
    spied.event_sync = bad_event_sync;
    spied.stream_recover = bad_recover;
    spied.reserve = spy_reserve;

    bad_device = group_of(d)->rank[3];
    assert_int_equal(stages_alloc(d, 64, b, &err), -ENOMEM);
    assert_string_equal(err.msg, "device 3 of 4: full");
    called("0a1a2a2f0f1f");
    assert_null(b[0].ptr);
    assert_int_equal(group_of(d)->n_extents, 0);
    bad_device = group_of(d)->rank[0];
    assert_int_equal(stage_alloc(d, 0, 64, &one, &err), -ENOMEM);
    assert_string_equal(err.msg, "device 0 of 4: full");
    called("");

    bad_device = group_of(d)->rank[2];
    assert_int_equal(stream_create(d, STREAM_COPY, &s, &err), -EAGAIN);
    assert_string_equal(err.msg, "device 2 of 4: no stream");
    called("0n0e1n1e0x0d1x1d");
    assert_int_equal(event_create(d, &e, &err), -EMFILE);
    assert_string_equal(err.msg, "no event");
    called("0e1e2e0x!1x!");
    const size_t bytes[MAX_STAGES] = {100, 200};
    assert_int_equal(stages_reserve(d, bytes, &err), -ENOMEM);
    assert_string_equal(err.msg, "device 2 of 4: full");
    called("0R1R2S");
    bad_device = NULL;
    assert_int_equal(stages_reserve(d, bytes, &err), 0);
    called("0R1R2S3S");
    spied.reserve = NULL;
    assert_int_equal(stages_reserve(d, bytes, &err), 0);
    called("");

    assert_int_equal(stream_create(d, STREAM_COPY, &s, NULL), 0);
    assert_int_equal(event_create(d, &e, NULL), 0);
    memset(calls, 0, sizeof calls);
    bad_device = group_of(d)->rank[1];
    assert_int_equal(event_sync(e), -EIO); /* the others are waited for all the same */
    called("0y2y3y");
    assert_int_equal(stream_recover(s), -EIO);
    assert_string_equal(stream_fault(s), "still gone");
    bad_device = NULL;
    memset(calls, 0, sizeof calls);
    assert_int_equal(stream_recover(s), 0);
    stream_destroy(s);
    event_destroy(e);
    memset(calls, 0, sizeof calls);
    device_close(d);
}

/* Large copies to devices with memory of their own go up in shares, which the ranks exchange. */
static void large_copies_go_up_in_shares(void **state)
{
    (void)state;
    enum { SHARE = 64 << 10, MOST = 2 * SHARE + 7 };
    static const struct {
        size_t bytes;
        bool in_shares;
    } cases[] = {
        {2 * SHARE - 1, false}, {2 * SHARE, true}, {2 * SHARE + 1, true}, {MOST, true}};
    static uint8_t from[MOST];
    struct device *d = open_spied(2, 1);
    struct stream *s;
    struct buf b, host;
    for (size_t i = 0; i < MOST; i++)
        from[i] = (uint8_t)(i * 31 >> 3);
    assert_int_equal(buf_alloc(d, MEM_DEVICE, MOST, &b, NULL), 0);
    assert_int_equal(buf_alloc(d, MEM_HOST, MOST, &host, NULL), 0);
    assert_int_equal(stream_create(d, STREAM_COPY, &s, NULL), 0);
    memset(calls, 0, sizeof calls);
    for (int unified = 0; unified < 2; unified++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            bool in_shares = cases[i].in_shares && !unified;
            d->unified = unified;
            for (int r = 0; r < 2; r++)
                memset(rank_address(d, b.ptr, r), 0, MOST);
            assert_int_equal(stream_copy(s, b.ptr, from, cases[i].bytes), 0);
            /* each rank copies its share and takes the other's; the rest goes to both */
            int n_copies = 0;
            for (size_t k = 0; k < strlen(calls); k++)
                n_copies += calls[k] == 'c';
            assert_int_equal(n_copies, !in_shares                    ? 2
                                       : cases[i].bytes == 2 * SHARE ? 4
                                                                     : 6);
            assert_int_equal(stream_sync(s), 0);
            memset(calls, 0, sizeof calls);
            for (int r = 0; r < 2; r++) {
                const uint8_t *got = rank_address(d, b.ptr, r);
                assert_memory_equal(got, from, cases[i].bytes);
                for (size_t k = cases[i].bytes; k < MOST; k++)
                    assert_int_equal(got[k], 0);
            }
        }
    d->unified = true;
    buf_free(d, &b);
    buf_free(d, &host);
    stream_destroy(s);
    memset(calls, 0, sizeof calls);
    device_close(d);
}

static int failing_gather(struct collective *c, const struct ranks *r,
                          const struct mat *out, const struct mat *in)
{
    (void)c;
    (void)r;
    (void)out;
    (void)in;
    return -EPIPE;
}

/* An exchange that fails names itself, unless a rank has said more. */
static void a_failing_exchange_is_named(void **state)
{
    (void)state;
    struct device *d = open_group("cpu", 2);
    struct collective *c = group_of(d)->collective[0];
    struct stream *s;
    struct buf b;
    float *x = alloc_floats(d, 40000, &b), host[4] = {0};
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &s, NULL), 0);
    c->all_gather = failing_gather;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            all_gather(s, mat_of(x, DTYPE_F32, 1, 4), mat_of(x, DTYPE_F32, 1, 2)), -EPIPE);
        assert_string_equal(stream_fault(s), "all-gather");
    }
    assert_int_equal(stream_recover(s), 0);
    d->unified = false;
    static float many[40000];
    assert_int_equal(stream_copy(s, x, many, sizeof many), -EPIPE);
    assert_string_equal(stream_fault(s), "a copy up, in shares");
    d->unified = true;
    assert_int_equal(stream_recover(s), 0);
    assert_int_equal(stream_copy(s, host, x, sizeof host), 0);
    buf_free(d, &b);
    stream_destroy(s);
    device_close(d);
}

/* The number of calls to devices after which one fails; it counts down. */
static int calls_left;

static int may_fail(int rc)
{
    return calls_left-- == 0 ? -EIO : rc;
}

static int failing_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    return may_fail(real->stream_copy(s, dst, src, bytes));
}

static int failing_record(struct stream *s, struct event *e)
{
    return may_fail(real->event_record(s, e));
}

static int failing_wait(struct stream *s, struct event *e)
{
    return may_fail(real->event_wait(s, e));
}

/* An exchange is 27 calls to three devices. If any of them fails, the exchange does. */
static void every_call_of_an_exchange_counts(void **state)
{
    (void)state;
    struct device *d = open_spied(3, 1);
    struct stream *s;
    struct buf b, c;
    float *x = alloc_floats(d, 12, &b), *y = alloc_floats(d, 4, &c);
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &s, NULL), 0);
    spied.stream_copy = failing_copy;
    spied.event_record = failing_record;
    spied.event_wait = failing_wait;
    enum { N_CALLS = 27 };
    for (int k = 0; k <= N_CALLS; k++) {
        calls_left = k;
        int rc = all_gather(s, mat_of(x, DTYPE_F32, 1, 12), mat_of(y, DTYPE_F32, 1, 4));
        assert_int_equal(rc, k < N_CALLS ? -EIO : 0);
        assert_string_equal(stream_fault(s), k == N_CALLS ? "" : "all-gather");
        assert_int_equal(stream_recover(s), 0);
    }
    buf_free(d, &b);
    buf_free(d, &c);
    stream_destroy(s);
    memset(calls, 0, sizeof calls);
    device_close(d);
}

/* --- recordings ------------------------------------------------------------------------------- */

/* The recordings that ranks were asked for, and the one that fails. */
static struct {
    const struct device *device;
    uint64_t key;
} recorded[16];
static int n_recorded, failing_recording;

static int note_and_queue(struct stream *s, const struct ragged *r, uint64_t key,
                          const void *at, int (*queue)(void *arg), void *arg)
{
    assert_true(n_recorded < 16 && r == NULL && at != NULL);
    if (n_recorded == failing_recording) {
        stream_fail(s, -EIO, "no graph");
        return -EIO;
    }
    recorded[n_recorded].device = s->device;
    recorded[n_recorded++].key = key;
    return queue(arg);
}

struct work {
    struct device *d;
    struct stream *s;
    struct mat x, own; /* all ranks' columns; one rank's */
};

/* Three spans of operations, cut by two exchanges. */
static int queue_work(void *arg)
{
    const struct work *w = arg;
    const struct ops *op = w->d->ops;
    int rc = op->act(w->s, w->own, ACTIVATION_RELU);
    if (rc == 0)
        rc = all_gather(w->s, w->x, w->own);
    if (rc == 0)
        rc = op->act(w->s, w->x, ACTIVATION_SILU);
    if (rc == 0)
        rc = op->add(w->s, w->own, mat_cols(w->x, 2, w->own.cols), w->own);
    if (rc == 0)
        rc = all_gather(w->s, w->x, w->own);
    return rc == 0 ? op->add(w->s, w->x, w->x, w->x) : rc;
}

/* Each rank records each span once, under a key of the span. The result is that of the operations
 * without a recording. */
static void a_recording_is_cut_into_spans(void **state)
{
    (void)state;
    enum { N = 12, RANKS = 3, SPANS = 3 };
    struct device *d = open_group("cpu", RANKS);
    struct group *g = group_of(d);
    struct ops with_record = *g->rank[0]->ops;
    struct work w = {.d = d};
    struct buf b, c;
    float want[N];
    assert_null(d->ops->record);
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &w.s, NULL), 0);
    float *x = alloc_floats(d, N, &b), *own = alloc_floats(d, N / RANKS, &c);
    w.x = mat_of(x, DTYPE_F32, 1, N);
    w.own = mat_of(own, DTYPE_F32, 1, N / RANKS);
    fill(d, own, N / RANKS);
    own[3] = -1; /* rank 0 alone */
    assert_int_equal(queue_work(&w), 0);
    memcpy(want, x, sizeof want);

    with_record.record = note_and_queue;
    for (int r = 0; r < RANKS; r++)
        g->rank[r]->ops = &with_record;
    g->ops = group_ops(g->rank[0]);
    uint64_t keys[2][SPANS];
    for (int round = 0; round < 3; round++) {
        n_recorded = 0;
        failing_recording = -1;
        fill(d, own, N / RANKS);
        own[3] = -1;
        assert_int_equal(d->ops->record(w.s, NULL, round == 2 ? 8 : 7, x, queue_work, &w),
                         0);
        for (int r = 0; r < RANKS; r++)
            assert_memory_equal(rank_address(d, x, r), want, sizeof want);
        assert_int_equal(n_recorded, SPANS * RANKS);
        for (int i = 0; i < n_recorded; i++) {
            assert_ptr_equal(recorded[i].device, g->rank[i % RANKS]);
            assert_int_equal(recorded[i].key, recorded[i / RANKS * RANKS].key);
            if (round == 0)
                keys[0][i / RANKS] = recorded[i].key;
            if (round == 1)
                assert_int_equal(recorded[i].key, keys[0][i / RANKS]);
            if (round == 2)
                keys[1][i / RANKS] = recorded[i].key;
        }
        assert_null(group_stream(w.s)->recording);
        assert_int_equal(group_stream(w.s)->only, -1);
    }
    for (int i = 0; i < 2 * SPANS; i++)
        for (int k = 0; k < i; k++)
            assert_true(keys[i / SPANS][i % SPANS] != keys[k / SPANS][k % SPANS]);
    for (int bad = 0; bad < SPANS * RANKS; bad++) {
        n_recorded = 0;
        failing_recording = bad;
        assert_int_equal(d->ops->record(w.s, NULL, 7, x, queue_work, &w), -EIO);
        assert_int_equal(n_recorded, bad);
        assert_string_equal(stream_fault(w.s), "no graph");
        assert_null(group_stream(w.s)->recording);
        assert_int_equal(stream_recover(w.s), 0);
    }
    buf_free(d, &c);
    buf_free(d, &b);
    stream_destroy(w.s);
    device_close(d);
}

/* A single device and a group describe themselves; the group's fields are its own. */
static void descriptions(void **state)
{
    (void)state;
    struct device *d;
    struct err err = {0};
    struct file_reader *r;
    struct buf none = {0};
    assert_int_equal(group_open("cpu", NULL, 1, 1, NULL, &d, NULL), 0);
    assert_int_equal(d->n_ranks, 1);
    assert_ptr_equal(rank_address(d, &err, 0), &err);
    device_close(d);
    assert_int_equal(group_open("cpu", NULL, 2, 3, NULL, &d, NULL), 0);
    struct group *g = group_of(d);
    assert_int_equal(g->n, 6);
    assert_int_equal(d->n_ranks, 2);
    assert_int_equal(d->n_stages, 3);
    assert_string_equal(d->name, "cpu");
    assert_ptr_equal(d->ops, &g->ops);
    assert_true(d->ops != g->rank[0]->ops);
    assert_ptr_equal(d->ops->weight_bytes, g->rank[0]->ops->weight_bytes);
    for (int k = 0; k < 3; k++)
        assert_non_null(g->collective[k]);
    assert_int_equal(file_reader_open(d, &none, 1, &r, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.msg, "a group of devices cannot read files itself");
    device_close(d);
    assert_int_equal(group_open("cpu", NULL, 1, 2, NULL, &d, NULL), 0);
    assert_null(group_of(d)->collective[0]); /* a stage of one rank exchanges nothing */
    device_close(d);
}

static void shares_things_out_over_stages(void **state)
{
    (void)state;
    for (int n = 1; n < 40; n++) {
        for (int stages = 1; stages <= n && stages <= MAX_STAGES; stages++) {
            int has[MAX_STAGES] = {0}, last = 0;
            for (int i = 0; i < n; i++) {
                int k = stage_of(i, n, stages);
                assert_true(k >= last && k < stages);
                has[last = k]++;
            }
            for (int k = 0; k < stages; k++)
                assert_true(has[k] == n / stages || has[k] == (n + stages - 1) / stages);
        }
    }
}

static void refuses(void **state)
{
    (void)state;
    struct device *d;
    struct err err = {0};
    assert_int_equal(group_open("cpu", NULL, 0, 1, NULL, &d, &err), ERR_USAGE);
    assert_int_equal(group_open("cpu", NULL, MAX_RANKS + 1, 1, NULL, &d, &err), ERR_USAGE);
    assert_string_equal(err.msg, "17 ranks: 1 to 16 are allowed");
    assert_int_equal(group_open("cpu", NULL, 1, 0, NULL, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "0 stages: 1 to "));
    assert_int_equal(group_open("cpu", NULL, 1, MAX_STAGES + 1, NULL, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, " stages: 1 to "));
    assert_int_equal(group_open("cpu", NULL, 1, MAX_STAGES, NULL, &d, &err), 0);
    device_close(d);
    assert_int_equal(group_open("cpu", NULL, 3, 6, NULL, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "18 devices"));
    assert_int_equal(group_open("abacus", NULL, 2, 1, NULL, &d, &err), ERR_USAGE);
    assert_string_equal(err.msg,
                        "2 ranks: unknown device 'abacus' (known: cpu, ref, cuda)");
    assert_int_equal(group_open("abacus", NULL, 2, 2, NULL, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "2 stages of 2 ranks: unknown device"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathers_columns),
        cmocka_unit_test(kv_goes_up_and_down_by_heads),
        cmocka_unit_test(addresses_of_ranks),
        cmocka_unit_test(copies),
        cmocka_unit_test(a_rank_fails),
        cmocka_unit_test(stages),
        cmocka_unit_test(devices_are_entered_and_copies_ordered),
        cmocka_unit_test(a_failing_device_is_named),
        cmocka_unit_test(large_copies_go_up_in_shares),
        cmocka_unit_test(a_failing_exchange_is_named),
        cmocka_unit_test(every_call_of_an_exchange_counts),
        cmocka_unit_test(a_recording_is_cut_into_spans),
        cmocka_unit_test(descriptions),
        cmocka_unit_test(shares_things_out_over_stages),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
