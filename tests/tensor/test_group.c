/* test_group.c - a device group: memory on every rank, exchanges, copies and faults.  The ranks are
 * processes, which are threads here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/device.h"
#include "tensor/group.h"
#include "mpi/group_impl.h"
#include "tensor/ops.h"
#include "tensor/peers_plugin.h"
#include "tests/tensor/peer_threads.h"

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

static struct stream *open_stream(struct device *d, enum stream_kind kind)
{
    struct stream *s;
    assert_int_equal(stream_create(d, kind, &s, NULL), 0);
    return s;
}

static void end(struct device *d, struct stream *s, struct buf *b)
{
    stream_destroy(s);
    buf_free(d, b);
    device_close(d);
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
TEST(gathers_columns)
{
    enum { ROWS = 3, COLS = 5, N = ROWS * COLS };
    for (int c = 0; c < N_COUNTS; c++) {
        int n = counts[c];
        struct device *d = open_group(c % 2 == 0 ? "ref" : "cpu", n);
        struct buf from, to;
        float *x = alloc_floats(d, N, &from), *all = alloc_floats(d, (size_t)n * N, &to);
        struct stream *s = open_stream(d, STREAM_COMPUTE);
        fill(d, x, N);
        assert_int_equal(all_gather(s, mat_of(all, DTYPE_F32, ROWS, n * COLS),
                                    mat_of(x, DTYPE_F32, ROWS, COLS)),
                         0);
        assert_int_equal(stream_sync(s), 0);
        for (int r = 0; n > 1 && r < n; r++)
            for (int i = 0; i < n * N; i++) {
                int row = i / (n * COLS), col = i % (n * COLS);
                float want = value(col / COLS, row * COLS + col % COLS);
                assert_true(((float *)rank_address(d, all, r))[i] == want);
            }
        buf_free(d, &from);
        end(d, s, &to);
    }
}

/* Each rank receives its own part of each half of each chunk, and nothing else is written. */
TEST(kv_goes_up_and_down_by_heads)
{
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
        struct buf to;
        uint8_t from[ALL];
        int n_own = CHUNK / n_ranks;
        assert_int_equal(buf_alloc(d, MEM_DEVICE, ALL, &to, NULL), 0);
        struct stream *s = open_stream(d, STREAM_COPY);
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
        end(d, s, &to);
    }
}

/* An address inside a piece of memory finds the piece, whatever was freed before. Host memory
 * belongs to all ranks. */
TEST(addresses_of_ranks)
{
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
TEST(copies)
{
    static const enum stream_kind kinds[] = {STREAM_COMPUTE, STREAM_COPY};
    enum { N = 1001 };
    for (int k = 0; k < 2; k++) {
        struct device *d = open_group("cpu", 2);
        struct event *e;
        struct buf a, b;
        float host[N], back[N] = {0};
        float *x = alloc_floats(d, N, &a), *y = alloc_floats(d, N, &b);
        for (int i = 0; i < N; i++)
            host[i] = (float)i;
        struct stream *s = open_stream(d, kinds[k]);
        assert_int_equal(event_create(d, &e, NULL), 0);
        assert_int_equal(stream_copy(s, x, host, sizeof host), 0);
        assert_int_equal(event_record(s, e), 0);
        assert_int_equal(event_sync(e), 0);
        /* A peer has written all when this returns, and this thread may read. */
        assert_int_equal(stream_sync(s), 0);
        ((float *)rank_address(d, x, 1))[7] = -1;
        assert_int_equal(stream_copy(s, y, x, sizeof host), 0);
        assert_int_equal(stream_copy(s, back, y, sizeof host), 0);
        assert_int_equal(stream_sync(s), 0);
        assert_memory_equal(back, host, sizeof host);
        assert_true(((float *)rank_address(d, y, 1))[7] == -1);
        event_destroy(e);
        buf_free(d, &a);
        end(d, s, &b);
    }
}

/* Peers carry an operation out before rank 0, which waits for a need, or for the stream's end. */
TEST(rank_0_waits_for_a_need)
{
    enum { SYNC, EVENT, COPY, GATHER, END, N_NEEDS };
    struct device *d = open_group("cpu", 2);
    struct event *e;
    struct buf b;
    float *x = alloc_floats(d, 4, &b), back[4];
    struct mat own = mat_of(x, DTYPE_F32, 1, 2);
    struct stream *s = open_stream(d, STREAM_COMPUTE);
    assert_int_equal(event_create(d, &e, NULL), 0);
    for (int need = 0; need < N_NEEDS; need++) {
        float *peers = rank_address(d, x, 1);
        x[0] = x[1] = peers[0] = peers[1] = -1;
        assert_int_equal(d->ops->act(s, own, ACTIVATION_RELU), 0);
        assert_int_equal(stream_sync(group_stream(s)->s[1]), 0);
        assert_true(peers[1] == 0 && x[1] == -1);
        switch (need) {
        case SYNC:
            assert_int_equal(stream_sync(s), 0);
            break;
        case EVENT:
            assert_int_equal(event_record(s, e), 0);
            break;
        case COPY:
            assert_int_equal(stream_copy(s, back, x, sizeof back), 0);
            assert_true(back[1] == 0);
            break;
        case END:
            stream_destroy(s);
            break;
        default:
            assert_int_equal(all_gather(s, mat_of(x, DTYPE_F32, 1, 4), own), 0);
            assert_true(x[2] == 0 && x[3] == 0);
        }
        assert_true(x[0] == 0 && x[1] == 0);
    }
    event_destroy(e);
    buf_free(d, &b);
    device_close(d);
}

/* A fault of a rank is the group's fault, with the rank's message, until the rank recovers. */
TEST(a_rank_fails)
{
    struct device *d = open_group("cpu", 3);
    struct buf b;
    float *x = alloc_floats(d, 8, &b);
    struct stream *s = open_stream(d, STREAM_COMPUTE);
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
    end(d, s, &b);
}

/* Memory lies on one stage, on each of the stage's ranks, and operations on it run there. A copy
 * from one stage to another runs after everything that the source stage has queued. */
TEST(stages)
{
    static const enum stream_kind kinds[] = {STREAM_COMPUTE, STREAM_COPY};
    enum { N = 1001, STAGES = 3 };
    for (int k = 0; k < 2; k++) {
        struct device *d;
        struct buf b[MAX_STAGES] = {{0}};
        float host[N], back[N];
        assert_int_equal(group_open("cpu", NULL, 2, STAGES, NULL, &d, NULL), 0);
        assert_int_equal(stages_alloc(d, sizeof host, b, NULL), 0);
        struct stream *s = open_stream(d, kinds[k]);
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

/* --- faults of single devices ----------------------------------------------------------------- */

static const struct device *bad_device; /* the device whose calls fail; NULL: none */
static struct device_vtable bad[MAX_RANKS];
static const struct device_vtable *real[MAX_RANKS];
static struct group *failing;

/* Returns the device's own functions; NULL: its calls fail. */
static const struct device_vtable *passes(const struct device *d)
{
    int i = 0;
    while (failing->rank[i] != d)
        i++;
    return d == bad_device ? NULL : real[i];
}

static int bad_alloc(struct device *d, enum mem_kind kind, size_t bytes, struct buf *out,
                     struct err *err)
{
    const struct device_vtable *v = passes(d);
    return v == NULL ? err_set(err, -ENOMEM, "full")
                     : v->buf_alloc(d, kind, bytes, out, err);
}

static int bad_create(struct device *d, enum stream_kind kind, struct stream **out,
                      struct err *err)
{
    const struct device_vtable *v = passes(d);
    return v == NULL ? err_set(err, -EAGAIN, "no stream")
                     : v->stream_create(d, kind, out, err);
}

static int bad_event(struct device *d, struct event **out, struct err *err)
{
    const struct device_vtable *v = passes(d);
    return v == NULL ? err_set(err, -EMFILE, "no event") : v->event_create(d, out, err);
}

static int bad_event_sync(struct event *e)
{
    const struct device_vtable *v = passes(e->device);
    return v == NULL ? -EIO : v->event_sync(e);
}

static int bad_recover(struct stream *s)
{
    const struct device_vtable *v = passes(s->device);
    if (v != NULL)
        return v->stream_recover(s);
    stream_fail(s, -EIO, "still gone");
    return -EIO;
}

/* A device that fails ends the call with its code and its number. Devices before it release what
 * they have taken, which the leak check sees. */
TEST(a_failing_device_is_named)
{
    struct device *d;
    struct stream *s;
    struct event *e;
    struct err err = {0};
    struct buf b[MAX_STAGES] = {{0}}, one;
    assert_int_equal(group_open("cpu", NULL, 2, 2, NULL, &d, NULL), 0);
    struct group *g = failing = group_of(d);
    for (int i = 0; i < 4; i++) {
        bad[i] = *(real[i] = g->rank[i]->v);
        bad[i].buf_alloc = bad_alloc;
        bad[i].stream_create = bad_create;
        bad[i].event_create = bad_event;
        bad[i].event_sync = bad_event_sync;
        bad[i].stream_recover = bad_recover;
        g->rank[i]->v = &bad[i];
    }
    bad_device = g->rank[3];
    assert_int_equal(stages_alloc(d, 64, b, &err), -ENOMEM);
    assert_string_equal(err.msg, "device 3 of 4: full");
    assert_null(b[0].ptr);
    assert_int_equal(g->n_extents, 0);
    bad_device = g->rank[0];
    assert_int_equal(stage_alloc(d, 0, 64, &one, &err), -ENOMEM);
    assert_string_equal(err.msg, "device 0 of 4: full");
    bad_device = g->rank[2];
    assert_int_equal(stream_create(d, STREAM_COPY, &s, &err), -EAGAIN);
    assert_string_equal(err.msg, "device 2 of 4: no stream");
    assert_int_equal(event_create(d, &e, &err), -EMFILE);
    assert_string_equal(err.msg, "no event");
    bad_device = NULL;
    assert_int_equal(stream_create(d, STREAM_COPY, &s, NULL), 0);
    assert_int_equal(event_create(d, &e, NULL), 0);
    bad_device = g->rank[1];
    assert_int_equal(event_sync(e), -EIO);
    assert_int_equal(stream_recover(s), -EIO);
    assert_string_equal(stream_fault(s), "still gone");
    bad_device = NULL;
    assert_int_equal(stream_recover(s), 0);
    stream_destroy(s);
    event_destroy(e);
    device_close(d);
}

/* Large copies go up in shares, which the ranks exchange; what is left over goes to each. */
TEST(large_copies_arrive_whole)
{
    enum { SHARE = 64 << 10, MOST = 2 * SHARE + 7 };
    static const size_t sizes[] = {2 * SHARE - 1, 2 * SHARE, 2 * SHARE + 1, MOST};
    static uint8_t from[MOST];
    struct device *d = open_group("cpu", 2);
    struct buf b;
    for (size_t i = 0; i < MOST; i++)
        from[i] = (uint8_t)(i * 31 >> 3);
    assert_int_equal(buf_alloc(d, MEM_DEVICE, MOST, &b, NULL), 0);
    struct stream *s = open_stream(d, STREAM_COPY);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int r = 0; r < 2; r++)
            memset(rank_address(d, b.ptr, r), 0, MOST);
        assert_int_equal(stream_copy(s, b.ptr, from, sizes[i]), 0);
        assert_int_equal(stream_sync(s), 0);
        for (int r = 0; r < 2; r++) {
            const uint8_t *got = rank_address(d, b.ptr, r);
            assert_memory_equal(got, from, sizes[i]);
            for (size_t k = sizes[i]; k < MOST; k++)
                assert_int_equal(got[k], 0);
        }
    }
    end(d, s, &b);
}

/* A single device and a group describe themselves; the group's fields are its own. */
TEST(descriptions)
{
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
    assert_false(d->unified); /* a peer's memory is not this process's */
    assert_int_equal(file_reader_open(d, &none, 1, &r, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.msg, "a group of devices cannot read files itself");
    device_close(d);
}

TEST(shares_things_out_over_stages)
{
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

TEST(refuses)
{
    const struct peers_plugin *peers_of_threads = peers();
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
    assert_int_equal(group_open("cuda", NULL, 2, 1, NULL, &d, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "--device cpu"));
    peers_use(NULL, 1); /* as without mpirun */
    assert_int_equal(group_open("cpu", NULL, 2, 2, NULL, &d, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "are 4 processes, and this is one"));
    peers_use(peers_of_threads, 3);
    assert_int_equal(group_open("cpu", NULL, 2, 1, NULL, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "choose mpirun -np 2"));
    peer_threads_use();
    struct device *other;
    assert_int_equal(group_open("cpu", NULL, 2, 1, NULL, &d, &err), 0);
    assert_int_equal(group_open("cpu", NULL, 2, 1, NULL, &other, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "one model at a time"));
    device_close(d);
}

int main(void)
{
    peer_threads_use();
    return unit_run(NULL, NULL);
}
