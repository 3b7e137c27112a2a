/* test_tensor.c - element types, buffers, streams and events on the CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/pool.h"
#include "base/rng.h"
#include "base/clock.h"
#include "tensor/tensor.h"

/* Checks the rounding between every pair of neighbouring halves. Values below the middle round
 * down, values above it round up, and the middle rounds to the even one. */
static void check_neighbours(uint16_t lo, float (*up)(uint16_t), uint16_t (*down)(float))
{
    float a = up(lo), b = up((uint16_t)(lo + 1)), mid = a + (b - a) / 2;
    uint16_t even = (uint16_t)(lo % 2 == 0 ? lo : lo + 1);
    assert_int_equal(down(a), lo);
    assert_int_equal(down(-a), lo | 0x8000);
    assert_int_equal(down(mid), even);
    assert_int_equal(down(nextafterf(mid, a)), lo);
    assert_int_equal(down(nextafterf(mid, b)), lo + 1);
}

static void test_f16(void **state)
{
    (void)state;
    for (uint16_t h = 0; h < 0x7bff; h++)
        check_neighbours(h, f16_to_f32, f32_to_f16);
    assert_true(f16_to_f32(0x3c00) == 1.0f && f16_to_f32(0x0001) == 0x1p-24f);
    assert_int_equal(f32_to_f16(65519.9f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_f16(0x1p-26f), 0);
    for (uint32_t h = 0x7c01; h < 0x7fff; h++)
        assert_true(isnan(f16_to_f32((uint16_t)h)));
    assert_true(isnan(f16_to_f32(f32_to_f16(NAN))));
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint16_t h = 0; h < 0x7f7f; h++)
        check_neighbours(h, bf16_to_f32, f32_to_bf16);
    assert_true(bf16_to_f32(0x3f80) == 1.0f);
    assert_int_equal(f32_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(f32_to_bf16(3.4e38f), 0x7f80);
    /* a NaN with a low payload must not become infinity */
    uint32_t low_payload = 0x7f800001;
    float f;
    memcpy(&f, &low_payload, sizeof f);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
}

static void test_names(void **state)
{
    (void)state;
    for (int t = DTYPE_F32; t <= DTYPE_BF16; t++) {
        enum dtype back;
        assert_int_equal(dtype_parse(dtype_name((enum dtype)t), &back), 0);
        assert_int_equal(back, t);
    }
    enum dtype out;
    assert_int_equal(dtype_parse("int8", &out), ERR_USAGE);
}

static void test_views(void **state)
{
    (void)state;
    float x[6 * 5];
    struct mat a = mat_of(x, DTYPE_F32, 6, 5);
    struct mat b = mat_cols(mat_rows(a, 2, 3), 1, 2);
    assert_ptr_equal(b.data, &x[2 * 5 + 1]);
    assert_int_equal(b.rows, 3);
    assert_int_equal(b.cols, 2);
    assert_int_equal(b.ld, 5);
}

static void test_devices(void **state)
{
    (void)state;
    struct device *d;
    struct err err;
    assert_int_equal(device_open("cuda", NULL, NULL, &d, &err), ERR_UNSUPPORTED);
    assert_int_equal(device_open("abacus", NULL, NULL, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "abacus"));
    assert_int_equal(device_open("cpu", NULL, NULL, &d, &err), 0);
    struct buf b;
    assert_int_equal(buf_alloc(d, MEM_PINNED, 10000, &b, &err), 0);
    assert_int_equal((uintptr_t)b.ptr % 4096, 0);
    for (size_t i = 0; i < b.bytes; i++)
        assert_int_equal(((char *)b.ptr)[i], 0);
    buf_free(d, &b);
    assert_null(b.ptr);
    buf_free(d, &b);
    assert_int_equal(buf_alloc(d, MEM_HOST, (size_t)1 << 60, &b, &err), -12);
    assert_non_null(strstr(err.msg, "1152921504606846976"));
    device_close(d);
}

/* A copy stream executes copies and marks in order, also with more commands than its ring holds.
 * The compute stream waits for the mark. */
static void test_stream_order(void **state)
{
    (void)state;
    struct device *d;
    struct stream *compute, *copy;
    struct event *done;
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &compute, NULL), 0);
    assert_int_equal(stream_create(d, STREAM_COPY, &copy, NULL), 0);
    assert_ptr_equal(stream_device(copy), d);
    assert_int_equal(event_create(d, &done, NULL), 0);
    /* an event that was never recorded needs no wait */
    assert_int_equal(event_sync(done), 0);
    assert_int_equal(event_wait(compute, done), 0);

    enum { N = 500 };
    static int values[N + 1];
    values[0] = 42;
    for (int i = 0; i < N; i++)
        assert_int_equal(stream_copy(copy, &values[i + 1], &values[i], sizeof values[0]),
                         0);
    assert_int_equal(event_record(copy, done), 0);
    assert_int_equal(event_wait(compute, done), 0);
    assert_int_equal(values[N], 42);

    int target = 0;
    assert_int_equal(stream_copy(copy, &values[0], &target, sizeof target), 0);
    assert_int_equal(stream_sync(copy), 0);
    assert_int_equal(values[0], 0);
    assert_int_equal(stream_copy(compute, &target, &values[N], sizeof target), 0);
    assert_int_equal(target, 42);
    event_destroy(done);
    stream_destroy(copy);
    stream_destroy(compute);
    device_close(d);
}

/* Copies over a throttled stream take at least the link's time, and arrive unchanged. */
static void test_throttled_copies(void **state)
{
    (void)state;
    enum { N = 1 << 16, TIMES = 8 };
    static uint8_t from[N], to[N];
    struct device *d;
    struct stream *compute, *copy;
    struct err err = {0};
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &compute, NULL), 0);
    assert_int_equal(stream_create(d, STREAM_COPY, &copy, NULL), 0);
    assert_int_equal(stream_throttle(compute, 1e6, &err), ERR_UNSUPPORTED);
    assert_int_equal(stream_throttle(copy, 50e6, &err), 0);
    memset(from, 7, N);
    int64_t t0 = clock_now_ns();
    for (int i = 0; i < TIMES; i++)
        assert_int_equal(stream_copy(copy, to, from, N), 0);
    assert_int_equal(stream_sync(copy), 0);
    assert_true((double)(clock_now_ns() - t0) >= TIMES * N / 50e6 * 1e9 - 1000);
    assert_memory_equal(from, to, N);
    stream_destroy(copy);
    stream_destroy(compute);
    device_close(d);
}

/* A wait covers the marks that were made before it. An event can be recorded again. */
static void test_event_across_streams(void **state)
{
    (void)state;
    struct device *d;
    struct stream *a, *b;
    struct event *e;
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    assert_int_equal(stream_create(d, STREAM_COPY, &a, NULL), 0);
    assert_int_equal(stream_create(d, STREAM_COPY, &b, NULL), 0);
    assert_int_equal(event_create(d, &e, NULL), 0);
    static char src[1 << 20], mid[1 << 20], dst[1 << 20];
    for (int round = 1; round <= 20; round++) {
        memset(src, round, sizeof src);
        stream_copy(a, mid, src, sizeof src);
        event_record(a, e);
        event_wait(b, e);
        stream_copy(b, dst, mid, sizeof dst);
        assert_int_equal(stream_sync(b), 0);
        assert_memory_equal(src, dst, sizeof src);
    }
    stream_destroy(a);
    stream_destroy(b);
    event_destroy(e);
    device_close(d);
}

/* Every piece is copied whole, for any alignment and length. No byte beside it changes. Any number
 * of threads may share the work. */
static void test_copy_all(void **state)
{
    (void)state;
    enum { N = 40, ROOM = 1 << 20 };
    static uint8_t src[ROOM], dst[ROOM], want[ROOM];
    struct rng rng = {.s = 11};
    for (int threads = 1; threads <= 5; threads++) {
        struct pool *pool = NULL;
        assert_int_equal(pool_create(threads, &pool, NULL), 0);
        struct device *d;
        struct stream *s;
        assert_int_equal(device_open("cpu", NULL, pool, &d, NULL), 0);
        assert_int_equal(stream_create(d, STREAM_COMPUTE, &s, NULL), 0);
        for (int round = 0; round < 50; round++) {
            struct copy_part parts[N];
            size_t at = 0, most = rng_below(&rng, 3) == 0 ? 100 : ROOM / N - 64;
            int n = (int)rng_below(&rng, N + 1);
            for (size_t i = 0; i < ROOM; i++)
                src[i] = (uint8_t)rng_u64(&rng);
            memset(dst, round, ROOM);
            memset(want, round, ROOM);
            for (int i = 0; i < n; i++) {
                size_t bytes = rng_below(&rng, most), from = rng_below(&rng, ROOM - most);
                at += rng_below(&rng, 64);
                parts[i] = (struct copy_part){dst + at, src + from, bytes};
                memcpy(want + at, src + from, bytes);
                at += bytes;
            }
            assert_int_equal(stream_copy_all(s, parts, n), 0);
            assert_int_equal(stream_sync(s), 0);
            assert_memory_equal(dst, want, ROOM);
        }
        stream_destroy(s);
        device_close(d);
        pool_destroy(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_stream_order),
        cmocka_unit_test(test_throttled_copies),
        cmocka_unit_test(test_event_across_streams),
        cmocka_unit_test(test_copy_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
