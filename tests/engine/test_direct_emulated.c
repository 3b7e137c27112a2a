/* Restores that read files straight into an emulated GPU's memory, through a fake cuFile
 * (sim/cuda_emu/cufile).
 *
 * Restored state is bit-equal, and direct reads are used and reported. If cuFile refuses or fails a
 * read, the host makes that read. Wrong bytes are detected. A read that never ends is given up in
 * time. Without the library everything works as before. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "enginetest.h"
#include "sim/cuda_emu/cuda_runtime_api.h"
#include "sim/cuda_emu/cufile/cufile_fake.h"

enum { N_PROMPT = 205, N_RESTORED = 192, N_NEW = 3 };

static const char model[] = "tests/model/golden/families/llama";
static int32_t prompt[N_PROMPT];
static struct cufile_fake *fake;
static char dir[64];
static const char *dirs[1] = {dir};

static int sync_stream(void *stream)
{
    return (int)cudaStreamSynchronize(stream);
}

static int copy(void *to, const void *from, size_t n, int kind, void *stream)
{
    return (int)cudaMemcpyAsync(to, from, n, (enum cudaMemcpyKind)kind, stream);
}

/* Makes cuFile available from now on. The fake library lies beside this program, whose name ends in
 * .../tests/engine/NAME. */
static void load_fake(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    assert_true(n > 0);
    path[n] = 0;
    char *end = strstr(path, "/tests/engine/");
    assert_non_null(end);
    snprintf(end, sizeof path - (size_t)(end - path), "/sim/cuda_emu/libcufile.so.0");
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL)
        fail_msg("%s", dlerror());
    cufile_fake_get get = (cufile_fake_get)dlsym(library, CUFILE_FAKE_SYMBOL);
    assert_non_null(get);
    fake = get();
}

static void reset_fake(void)
{
    *fake = (struct cufile_fake){.sync = sync_stream,
                                 .copy = copy,
                                 .fail_forbid = -1,
                                 .fail_driver = -1,
                                 .fail_memory = -1,
                                 .fail_file = -1,
                                 .fail_submit = -1,
                                 .fail_status = -1,
                                 .fail_read = -1,
                                 .short_read = -1,
                                 .flip_read = -1,
                                 .stuck_read = -1};
}

static struct stack_opts options(const char *direct)
{
    return (struct stack_opts){.user.device = "cuda",
                               .user.model = model,
                               .user.dtype = "bf16",
                               .user.max_context = 256,
                               .user.store = dirs,
                               .user.n_store = 1,
                               .stuck_ns = 300000000,
                               .user.gpu_direct = direct,
                               .no_profile = true,
                               .user.save_buffer_bytes = 4 << 20,
                               .user.no_reuse = true};
}

static void open_stack(struct stack *k, const char *direct)
{
    struct stack_opts o = options(direct);
    et_open(k, &o);
}

static struct et_run run(struct stack *k, const char *save, const char *plan, bool fused)
{
    return et_must_run(k, &(struct et_ask){.prompt = prompt,
                                           .n_prompt = N_PROMPT,
                                           .max_tokens = N_NEW,
                                           .save = save,
                                           .plan = plan,
                                           .restore_first = !fused});
}

static struct et_run want; /* the result of a run without eviction */

/* Checks that the whole context is restored. If `direct` is set, all its bytes must be read
 * directly, else none. */
static void restores(struct stack *k, const char *plan, bool fused, bool direct)
{
    struct et_run r = run(k, "none", plan, fused);
    et_same(&r, &want, plan);
    assert_int_equal(r.n_cached, N_RESTORED);
    assert_true(r.restore.read_bytes > 0);
    if (r.restore.direct_bytes != (direct ? r.restore.read_bytes : 0))
        fail_msg("plan %s: %llu of %llu bytes came the direct way", plan,
                 (unsigned long long)r.restore.direct_bytes,
                 (unsigned long long)r.restore.read_bytes);
}

/* Without the library nothing is read directly. This test also saves the state that all other tests
 * restore. */
TEST(without_the_library)
{
    struct stack k;
    struct err err = {0};
    struct stack_opts on = options("on"), other = options("yes");
    open_stack(&k, "auto");
    want = run(&k, "both", "recompute", false);
    assert_true(want.committed >= N_RESTORED);
    restores(&k, "kv", true, false);
    stack_close(&k);
    assert_int_equal(stack_open(&on, &k, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "gpu-direct on: cuFile is not found"));
    stack_close(&k);
    on.user.n_store = 0;
    assert_int_equal(stack_open(&on, &k, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "there is no store"));
    stack_close(&k);
    on.user.store_in_memory = true;
    assert_int_equal(stack_open(&on, &k, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "the store has to be in files"));
    stack_close(&k);
    on.user.device = "cpu";
    assert_int_equal(stack_open(&on, &k, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "direct reads need one device with memory of its own"));
    stack_close(&k);
    assert_int_equal(stack_open(&other, &k, &err), ERR_USAGE);
    assert_non_null(strstr(err.msg, "must be auto, off or on"));
    stack_close(&k);
}

TEST(restored_state_is_bit_equal)
{
    static const char *const plans[] = {"kv", "hidden", "RK", "RH"};
    struct stack k;
    load_fake();
    reset_fake();
    open_stack(&k, "on");
    for (int i = 0; i < 4; i++)
        for (int fused = 0; fused < 2; fused++)
            if (i < 3 || fused)
                restores(&k, plans[i], fused != 0, true);
    assert_true(fake->n_reads > 3 && fake->n_bytes > 0 && fake->n_files == 1);
    stack_close(&k);
    assert_int_equal(fake->n_opened, 1);
    assert_int_equal(fake->n_closed, 1);
    int n = fake->n_reads;
    open_stack(&k, "off");
    restores(&k, "kv", true, false);
    stack_close(&k);
    /* the host cannot check bytes that never reach its memory */
    et_device.checksums = "host";
    open_stack(&k, "auto");
    restores(&k, "kv", true, false);
    stack_close(&k);
    et_device.checksums = NULL;
    assert_int_equal(fake->n_reads, n);
}

/* If cuFile cannot be used, `auto` continues without direct reads; `on` fails and names the missing
 * part. */
TEST(what_is_refused_at_the_start)
{
    static const struct {
        size_t field;
        const char *why;
    } cases[] = {
        {offsetof(struct cufile_fake, fail_forbid), "through host memory: error 5022"},
        {offsetof(struct cufile_fake, fail_driver),
         "is the kernel module nvidia-fs loaded?"},
        {offsetof(struct cufile_fake, fail_memory), "GPU memory cannot be pinned"},
        {offsetof(struct cufile_fake, no_batches), "does not read in batches"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        struct err err = {0};
        struct stack_opts on = options("on");
        int *field = (int *)(void *)((char *)fake + cases[i].field);
        for (int again = 0; again < 2; again++) {
            reset_fake();
            *field = strcmp(cases[i].why, "does not read in batches") == 0;
            if (again == 0) {
                open_stack(&k, NULL);
                restores(&k, "kv", true, false);
            } else {
                assert_int_equal(stack_open(&on, &k, &err), ERR_UNSUPPORTED);
                if (strstr(err.msg, cases[i].why) == NULL)
                    fail_msg("%s", err.msg);
            }
            stack_close(&k);
            assert_int_equal(fake->n_closed, fake->n_opened);
        }
    }
}

/* A read that fails is repeated through host memory, and so are all later reads. */
TEST(what_fails_is_read_again)
{
    static const struct {
        size_t field;
        int after;
    } cases[] = {
        {offsetof(struct cufile_fake, fail_file), 0},
        {offsetof(struct cufile_fake, fail_submit), 1},
        {offsetof(struct cufile_fake, fail_read), 0},
        {offsetof(struct cufile_fake, fail_read), 4},
        {offsetof(struct cufile_fake, short_read), 2},
        {offsetof(struct cufile_fake, fail_status), 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        reset_fake();
        open_stack(&k, "on");
        *(int *)(void *)((char *)fake + cases[i].field) = cases[i].after;
        struct et_run r = run(&k, "none", "kv", i % 2 == 0);
        et_same(&r, &want, "a fault");
        assert_int_equal(r.n_cached, N_RESTORED);
        assert_true(r.restore.direct_bytes < r.restore.read_bytes);
        int n = fake->n_batches;
        restores(&k, "kv", true, false);
        assert_int_equal(fake->n_batches, n);
        stack_close(&k);
        assert_int_equal(fake->n_closed, fake->n_opened);
    }
}

TEST(a_stuck_disk_is_given_up_in_time)
{
    struct stack k;
    reset_fake();
    open_stack(&k, "on");
    fake->stuck_read = 1;
    int64_t t0 = clock_now_ns();
    struct et_run r = run(&k, "none", "kv", true);
    et_same(&r, &want, "a stuck disk");
    assert_true(fake->n_cancels > 0 && r.n_cached < N_RESTORED);
    /* the time limit of 0.3 s and the time to compute */
    assert_true(clock_now_ns() - t0 < (int64_t)60 * 1000000000);
    restores(&k, "kv", true, false); /* no chunk was condemned */
    stack_close(&k);
}

/* Must be the last test, because it condemns a chunk. */
TEST(a_garbled_read_is_a_miss)
{
    struct stack k;
    reset_fake();
    open_stack(&k, "on");
    for (int i = 0; i < 2; i++) {
        struct store_stats before, after;
        store_stats(k.store, &before);
        fake->flip_read = 1 + 3 * i; /* a read of the first layer, and one of the second */
        struct et_run r = run(&k, "both", "kv", i == 0);
        et_same(&r, &want, "a wrong bit");
        assert_int_equal(r.n_cached, 64);
        assert_non_null(strstr(r.miss, "chunk 1: "));
        assert_non_null(strstr(r.miss, "its checksum does not hold"));
        store_stats(k.store, &after);
        assert_int_equal(after.n_checksum_failures, before.n_checksum_failures + 1);
        restores(&k, "kv", true, true); /* the condemned chunk was saved again */
    }
    stack_close(&k);
}

static int make_dir(void **state)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.40s/hc-direct-XXXXXX", tmp != NULL ? tmp : "/tmp");
    et_device.cuda_math = "exact";
    et_small_prompt(prompt, N_PROMPT, 8);
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int main(void)
{
    return unit_run(make_dir, remove_dir);
}
