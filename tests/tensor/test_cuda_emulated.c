/* test_cuda_emulated.c - the CUDA backend's own sources on the emulated GPU (sim/cuda_emu).
 * Behaviour of a real GPU is tested by test_cuda.c. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_cases.h"
#include "cuda_fixed_cases.h"
#include "tensor/device.h"

static void test_no_device(void **state)
{
    struct device *d = NULL;
    struct err err = {0};
    setenv("CUDA_EMU_NO_DEVICE", "1", 1);
    assert_int_equal(device_open("cuda", NULL, NULL, &d, &err), ERR_UNSUPPORTED);
    unsetenv("CUDA_EMU_NO_DEVICE");
    assert_non_null(strstr(err.msg, "no GPU"));
    const struct device_opts quick = {.cuda_math = "quick"};
    assert_int_equal(device_open("cuda", &quick, NULL, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "fast, fixed or exact"));
}

/* The emulation has no early launches. But it checks at each launch that the kernel begins with
 * await_stream, which early launches need. */
static void test_early_launches(void **state)
{
    struct device *d = NULL;
    struct err err = {0};
    struct device_opts o = {.cuda_early = "maybe"};
    assert_int_equal(device_open("cuda", &o, NULL, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "off or on"));
    o.cuda_early = "on";
    setenv("CUDA_EMU_MAJOR", "8", 1);
    assert_int_equal(device_open("cuda", &o, NULL, &d, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "9.0 or later"));
    unsetenv("CUDA_EMU_MAJOR");
    assert_int_equal(device_open("cuda", &o, NULL, &d, &err), 0);
    assert_non_null(strstr(d->isa, "early launches"));
    device_close(d);
    assert_int_equal(device_open("cuda", NULL, NULL, &d, &err), 0);
    assert_null(strstr(d->isa, "early launches"));
    device_close(d);
}

/* An old driver has no call that makes several copies, so copies are made one by one. */
static void test_no_batches(void **state)
{
    struct device *d = NULL;
    struct stream *s;
    struct buf pinned, there;
    uint8_t back[64];
    setenv("CUDA_EMU_NO_BATCHES", "1", 1);
    assert_int_equal(device_open("cuda", NULL, NULL, &d, NULL), 0);
    assert_int_equal(stream_create(d, STREAM_COPY, &s, NULL), 0);
    assert_int_equal(buf_alloc(d, MEM_PINNED, sizeof back, &pinned, NULL), 0);
    assert_int_equal(buf_alloc(d, MEM_DEVICE, sizeof back, &there, NULL), 0);
    uint8_t *from = pinned.ptr, *to = there.ptr;
    for (size_t i = 0; i < sizeof back; i++)
        from[i] = (uint8_t)i;
    const struct copy_part halves[] = {{to, from, 32}, {to + 32, from + 32, 32}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(stream_copy_all(s, halves, 2), 0);
    assert_int_equal(stream_copy(s, back, to, sizeof back), 0);
    assert_int_equal(stream_sync(s), 0);
    assert_memory_equal(back, from, sizeof back);
    unsetenv("CUDA_EMU_NO_BATCHES");
    buf_free(d, &pinned);
    buf_free(d, &there);
    stream_destroy(s);
    device_close(d);
}

static void test_too_little_memory(void **state)
{
    struct device *d = NULL;
    struct buf b;
    struct err err = {0};
    assert_int_equal(device_open("cuda", NULL, NULL, &d, &err), 0);
    assert_int_equal(buf_alloc(d, MEM_DEVICE, (size_t)100 << 30, &b, &err), -12);
    assert_non_null(strstr(err.msg, "107.37 GB are needed"));
    /* A later operation does not fail with the error of an earlier one that was refused. */
    struct stream *s;
    assert_int_equal(buf_alloc(d, MEM_DEVICE, 64, &b, &err), 0);
    assert_int_equal(stream_create(d, STREAM_COMPUTE, &s, &err), 0);
    struct mat x = mat_of(b.ptr, DTYPE_F32, 1, 16);
    assert_int_equal(d->ops->add(s, x, x, x), 0);
    assert_int_equal(stream_sync(s), 0);
    stream_destroy(s);
    buf_free(d, &b);
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest faults[] = {
        cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_early_launches),
        cmocka_unit_test(test_no_batches),
        cmocka_unit_test(test_too_little_memory),
    };
    int failed = cmocka_run_group_tests_name("faults", faults, NULL, NULL);
    failed += cuda_cases_run("emulated", true);
    return failed + cuda_fixed_cases_run("fixed math", true);
}
