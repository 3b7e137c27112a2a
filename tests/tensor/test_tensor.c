/* test_tensor.c - element types, buffers, streams and events on the CPU. */
#include "tests/unit.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/pool.h"
#include "base/rng.h"
#include "base/clock.h"
#include "tensor/device.h"
#include "tensor/ops.h"
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

TEST(test_f16)
{
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

TEST(test_bf16)
{
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

TEST(test_names)
{
    for (int t = DTYPE_F32; t <= DTYPE_BF16; t++) {
        enum dtype back;
        assert_int_equal(dtype_parse(dtype_name((enum dtype)t), &back), 0);
        assert_int_equal(back, t);
    }
    static const char *const names[] = {"f32",    "f16",   "bf16", "q8",    "q4_0",
                                        "q4_1",   "q4_k",  "q6_k", "mxfp4", "iq4_nl",
                                        "iq4_xs", "bf16r", "q4"};
    for (int t = DTYPE_F32; t <= DTYPE_Q4; t++)
        assert_string_equal(dtype_name((enum dtype)t), names[t]);
    static const char *const others[] = {"int8", "q8", "bf16r", "", "f3", "f322"};
    for (int i = 0; i < 6; i++) {
        enum dtype out = DTYPE_Q4;
        assert_int_equal(dtype_parse(others[i], &out), ERR_USAGE);
        assert_int_equal(out, DTYPE_Q4);
    }
    assert_int_equal(dtype_bytes(DTYPE_F32), 4);
    assert_int_equal(dtype_bytes(DTYPE_F16), 2);
    assert_int_equal(dtype_bytes(DTYPE_BF16), 2);
    for (int t = DTYPE_F32; t <= DTYPE_Q4; t++)
        assert_int_equal(dtype_has_blocks((enum dtype)t),
                         t >= DTYPE_Q4_0 && t <= DTYPE_IQ4_XS);
}

TEST(test_views)
{
    float x[6 * 5];
    struct mat a = mat_of(x, DTYPE_F32, 6, 5);
    struct mat b = mat_cols(mat_rows(a, 2, 3), 1, 2);
    assert_ptr_equal(b.data, &x[2 * 5 + 1]);
    assert_int_equal(b.rows, 3);
    assert_int_equal(b.cols, 2);
    assert_int_equal(b.ld, 5);
}

TEST(test_devices)
{
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
TEST(test_stream_order)
{
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

    enum { N = 5000 }; /* the ring holds 1024 */
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
TEST(test_throttled_copies)
{
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
TEST(test_event_across_streams)
{
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
TEST(test_copy_all)
{
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

/* The description of a CPU device, and the options that choose it. */
TEST(test_descriptions)
{
    static const char *const names[] = {"ref", "cpu"};
    for (int i = 0; i < 2; i++) {
        struct device *d;
        size_t unused = 0, total = 0;
        assert_int_equal(device_open(names[i], NULL, NULL, &d, NULL), 0);
        assert_string_equal(d->name, names[i]);
        assert_string_equal(d->numerics, names[i]);
        assert_int_equal(d->act_dtype, DTYPE_F32);
        assert_true(d->unified && d->q8 && d->quantised);
        assert_false(d->act_is_state || d->k_by_token);
        assert_int_equal(d->batch_rows, 512);
        assert_int_equal(d->n_ranks, 1);
        assert_int_equal(d->n_stages, 1);
        assert_int_equal(d->stream_bytes, 0);
        assert_int_equal(d->checksums, CHECKSUMS_AUTO);
        device_memory(d, &unused, &total);
        assert_int_equal(total,
                         (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE));
        assert_int_equal(unused, total);
        device_close(d);
    }
    device_close(NULL);
}

TEST(test_the_choice_of_checksums)
{
    static const char *const texts[] = {"auto", "device", "host"};
    struct device *d;
    struct err err = {0};
    for (int i = 0; i < 3; i++) {
        struct device_opts o = {.checksums = texts[i]};
        assert_int_equal(device_open("cpu", &o, NULL, &d, NULL), 0);
        assert_int_equal(d->checksums, CHECKSUMS_AUTO + i);
        device_close(d);
    }
    struct device_opts bad = {.checksums = "hosts"};
    assert_int_equal(device_open("cpu", &bad, NULL, &d, &err), ERR_USAGE);
    assert_string_equal(err.msg, "--checksums hosts: must be auto, device or host");
    assert_int_equal(device_open("abacus", NULL, NULL, &d, &err), ERR_USAGE);
    assert_string_equal(err.msg, "unknown device 'abacus' (known: cpu, ref, cuda)");
    struct device_opts isa = {.isa = "z80"};
    assert_int_equal(device_open("cpu", &isa, NULL, &d, &err), ERR_USAGE);
    assert_string_equal(err.msg, "--isa z80: unknown (known: "
                                 "portable, avx2, avx512, avx512bf16)");
    static const char *const isas[] = {"portable", "avx2", "avx512", "avx512bf16"};
    for (int i = 0; i < 4; i++) {
        isa.isa = isas[i];
        int rc = device_open("cpu", &isa, NULL, &d, &err);
        assert_true(rc == 0 || (i > 0 && rc == ERR_UNSUPPORTED));
        if (rc == 0) {
            assert_string_equal(d->isa, isas[i]);
            device_close(d);
        } else {
            assert_non_null(strstr(err.msg, ": this CPU lacks it"));
        }
    }
}

/* A buffer of no bytes has an address. */
TEST(test_an_empty_buffer)
{
    struct device *d;
    struct buf b;
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    assert_int_equal(buf_alloc(d, MEM_HOST, 0, &b, NULL), 0);
    assert_non_null(b.ptr);
    assert_int_equal(b.bytes, 0);
    assert_int_equal(b.kind, MEM_HOST);
    buf_free(d, &b);
    assert_null(b.ptr);
    device_close(d);
}

/* After a failure a stream does nothing more until it recovers; its first failure is reported. */
TEST(test_a_failed_stream)
{
    static const enum stream_kind kinds[] = {STREAM_COMPUTE, STREAM_INLINE, STREAM_COPY};
    struct device *d;
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    for (int k = 0; k < 3; k++) {
        struct stream *s;
        struct event *e;
        int from = 7, to = 0;
        struct copy_part part = {&to, &from, sizeof to};
        assert_int_equal(stream_create(d, kinds[k], &s, NULL), 0);
        assert_int_equal(event_create(d, &e, NULL), 0);
        assert_string_equal(stream_fault(s), "");
        stream_fail(s, -EIO, "first");
        stream_fail(s, -ENOMEM, "second");
        assert_string_equal(stream_fault(s), "first");
        assert_int_equal(stream_copy(s, &to, &from, sizeof to), -EIO);
        assert_int_equal(stream_copy_all(s, &part, 1), -EIO);
        assert_int_equal(event_record(s, e), -EIO);
        assert_int_equal(event_wait(s, e), -EIO);
        assert_int_equal(event_sync(e), 0); /* the mark is reached all the same */
        assert_int_equal(stream_sync(s), -EIO);
        assert_int_equal(to, 0);
        assert_int_equal(stream_recover(s), 0);
        assert_string_equal(stream_fault(s), "");
        assert_int_equal(stream_copy(s, &to, &from, sizeof to), 0);
        assert_int_equal(stream_sync(s), 0);
        assert_int_equal(to, 7);
        event_destroy(e);
        stream_destroy(s);
    }
    stream_destroy(NULL);
    event_destroy(NULL);
    device_close(d);
}

/* Pieces are copied to their places; no other byte changes. A copy stream takes lists, too. */
TEST(test_copies_in_pieces)
{
    static const enum stream_kind kinds[] = {STREAM_COMPUTE, STREAM_COPY};
    struct device *d;
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    for (int k = 0; k < 2; k++) {
        struct stream *s;
        uint8_t from[64], to[64], want[64];
        assert_int_equal(stream_create(d, kinds[k], &s, NULL), 0);
        for (int n = 0; n <= 4; n++) {
            for (int i = 0; i < 64; i++) {
                from[i] = (uint8_t)(i + 1);
                to[i] = want[i] = 0;
            }
            for (int i = 0; i < n; i++)
                memcpy(want + 11 * i, from + 7 * i, 5);
            assert_int_equal(stream_copy_strided(s, to, 11, from, 7, n, 5), 0);
            assert_int_equal(stream_sync(s), 0);
            assert_memory_equal(to, want, sizeof to);
            struct copy_part parts[4];
            memset(to, 0, sizeof to);
            for (int i = 0; i < n; i++)
                parts[i] = (struct copy_part){to + 11 * i, from + 7 * i, 5};
            assert_int_equal(stream_copy_all(s, parts, n), 0);
            assert_int_equal(stream_sync(s), 0);
            assert_memory_equal(to, want, sizeof to);
        }
        stream_destroy(s);
    }
    device_close(d);
}

TEST(test_parts_that_cpu_devices_lack)
{
    struct device *d;
    struct stream *s;
    struct file_reader *r = (struct file_reader *)(uintptr_t)1;
    struct err err = {0};
    struct buf into = {0};
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    assert_int_equal(file_reader_open(d, &into, 1, &r, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.msg, "this device cannot read files itself");
    assert_null(r);
    file_reader_close(NULL);
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &s, NULL), 0);
    assert_int_equal(stream_throttle(s, 1e6, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.msg, "device cpu: its copies cannot be slowed down");
    stream_destroy(s);
    device_close(d);
    uint64_t a = ragged_new_id(), b = ragged_new_id();
    assert_true(a != 0 && b == a + 1);
}

/* Bytes of packed weights: panels of 16 rows, as packed files hold them. */
TEST(test_bytes_of_packed_weights)
{
    static const int64_t shapes[][2] = {{1, 1},    {16, 256}, {17, 256}, {16, 257},
                                        {33, 512}, {32, 32},  {48, 768}};
    static const struct {
        enum dtype type;
        int64_t block;
        size_t bytes[7];
    } known[] = {{DTYPE_F32, 1, {64, 16384, 32768, 16448, 98304, 4096, 147456}},
                 {DTYPE_F16, 1, {32, 8192, 16384, 8224, 49152, 2048, 73728}},
                 {DTYPE_BF16, 1, {32, 8192, 16384, 8224, 49152, 2048, 73728}},
                 {DTYPE_Q8, 1, {576, 4352, 8704, 4928, 26112, 1152, 39168}},
                 {DTYPE_BF16R, 1, {1024, 8192, 16384, 9216, 49152, 2048, 73728}},
                 {DTYPE_Q4_0, 32, {0, 2304, 4608, 0, 13824, 640, 20736}},
                 {DTYPE_Q4_1, 32, {0, 2560, 5120, 0, 15360, 640, 23040}},
                 {DTYPE_Q4_K, 256, {0, 2368, 4736, 0, 14208, 0, 21312}},
                 {DTYPE_Q6_K, 256, {0, 3392, 6784, 0, 20352, 0, 30528}},
                 {DTYPE_MXFP4, 32, {0, 2176, 4352, 0, 13056, 640, 19584}},
                 {DTYPE_IQ4_NL, 32, {0, 2304, 4608, 0, 13824, 640, 20736}},
                 {DTYPE_IQ4_XS, 256, {0, 2240, 4480, 0, 13440, 0, 20160}}};
    struct device *d;
    bool good = true;
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        for (int k = 0; k < 7; k++) {
            if (shapes[k][1] % known[i].block != 0)
                continue;
            size_t got = d->ops->weight_bytes(known[i].type, shapes[k][0], shapes[k][1]);
            if (got != known[i].bytes[k])
                print_error("%s %d: %zu\n", dtype_name(known[i].type), k, got);
            good = good && got == known[i].bytes[k];
        }
    }
    device_close(d);
    assert_true(good);
}
