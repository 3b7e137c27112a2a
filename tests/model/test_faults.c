/* test_faults.c - every call to a device that fails while a model is opened, packed or run ends the
 * call with its code, and leaves nothing behind. */
#include "tests/unit.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/pack_write.h"
#include "model/weights_choose.h"
#include "model/work.h"
#include "packed_file.h"
#include "solo.h"
#include "tensor/device.h"
#include "tests/base/tempdir.h"

static char dir[TEMPDIR_BYTES];

static int make_dir(void **state)
{
    *state = dir;
    tempdir_make_on_disk(dir, "faults");
    return 0;
}

/* --- a device whose calls may fail -------------------------------------------------------- */

/* The number of calls after which one fails with -EIO; it counts down. */
static int calls_left;
static const struct device_vtable *real;
static struct device_vtable failing;

static bool fails(struct err *err)
{
    if (calls_left-- != 0)
        return false;
    err_set(err, -EIO, "a device's call fails");
    return true;
}

static int bad_alloc(struct device *d, enum mem_kind kind, size_t bytes, struct buf *out,
                     struct err *err)
{
    *out = (struct buf){0};
    return fails(err) ? -EIO : real->buf_alloc(d, kind, bytes, out, err);
}

static int bad_stream(struct device *d, enum stream_kind kind, struct stream **out,
                      struct err *err)
{
    return fails(err) ? -EIO : real->stream_create(d, kind, out, err);
}

static int bad_event(struct device *d, struct event **out, struct err *err)
{
    return fails(err) ? -EIO : real->event_create(d, out, err);
}

static int bad_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    if (fails(NULL))
        stream_fail(s, -EIO, "a copy fails");
    return real->stream_copy(s, dst, src, bytes);
}

static int bad_sync(struct stream *s)
{
    if (fails(NULL))
        stream_fail(s, -EIO, "a wait fails");
    return real->stream_sync(s);
}

/* Opens a CPU device whose calls may fail. unified false: its memory counts as its own. */
static struct device *open_failing(bool unified)
{
    struct device *d;
    assert_int_equal(device_open("cpu", NULL, NULL, &d, NULL), 0);
    real = d->v;
    failing = *real;
    failing.buf_alloc = bad_alloc;
    failing.stream_create = bad_stream;
    failing.event_create = bad_event;
    failing.stream_copy = bad_copy;
    failing.stream_sync = bad_sync;
    d->v = &failing;
    d->unified = unified;
    return d;
}

/* --- opening ------------------------------------------------------------------------------ */

static int some_stay(void *arg, const struct model *m, const struct weights_sizes *z,
                     int *n_resident, struct err *err)
{
    (void)m;
    (void)z;
    (void)err;
    *n_resident = *(int *)arg;
    return 0;
}

/* Opens the source again and again, and lets one more call to the device pass each time. Returns
 * the number of calls that a successful opening takes. */
static int open_with_faults(const char *source, const char *weights, bool unified,
                            int n_resident)
{
    for (int n = 0;; n++) {
        struct device *d = open_failing(unified);
        struct model *m = NULL;
        struct err e = {0};
        struct model_opts o = {.dev = d, .weights = weights};
        if (n_resident >= 0)
            o.share = some_stay, o.share_arg = &n_resident;
        calls_left = n;
        int rc = model_open(source, &o, &m, &e);
        bool passed = calls_left >= 0;
        calls_left = INT_MAX;
        if (passed) {
            assert_int_equal(rc, 0);
            model_close(m);
        } else {
            if (rc != -EIO || m != NULL || e.code != -EIO || e.msg[0] == 0)
                fail_msg("%s: call %d: %s: %s", source, n, err_name(rc), e.msg);
        }
        device_close(d);
        if (passed)
            return n;
    }
}

TEST(test_opening)
{
    char packed[PATH_MAX];
    packed_file_make(dir, "synth:tiny-mha", "cpu", 1, NULL, packed);
    const struct {
        const char *source, *weights;
        bool unified;
        int n_resident;
    } cases[] = {
        {"synth:tiny-mha", NULL, true, -1},
        {"synth:tiny-mha", "q8", false, -1},
        {"tests/model/golden/families/opt", NULL, false, -1},
        {"tests/model/golden/families/falcon-40b", "bf16", true, -1},
        {"tests/model/golden/gguf/six.gguf", "q4", false, -1},
        {packed, NULL, true, -1},
        {packed, NULL, false, -1},
        {packed, NULL, true, 0},
        {packed, NULL, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = open_with_faults(cases[i].source, cases[i].weights, cases[i].unified,
                                 cases[i].n_resident);
        if (n <= 5) /* memory, streams and copies */
            fail_msg("case %zu: %d calls", i, n);
    }
}

/* --- packing ------------------------------------------------------------------------------ */

TEST(test_packing)
{
    char path[TEMPDIR_BYTES + 32], temp[TEMPDIR_BYTES + 40];
    snprintf(path, sizeof path, "%s/model.packed", dir);
    snprintf(temp, sizeof temp, "%s.tmp", path);
    bool passed = false;
    int n = 0;
    for (; !passed; n++) {
        struct device *d = open_failing(true);
        struct pack_result r = {0};
        struct err e = {0};
        calls_left = n;
        int rc = pack_write("synth:tiny-mha", path, d, NULL, &r, &e);
        passed = calls_left >= 0;
        if (rc != (passed ? 0 : -EIO) || (rc != 0 && e.msg[0] == 0))
            fail_msg("call %d: %s: %s", n, err_name(rc), e.msg);
        assert_int_equal(access(path, F_OK), passed ? 0 : -1);
        assert_int_equal(access(temp, F_OK), -1);
        device_close(d);
    }
    assert_true(n > 50); /* each layer's matrices are allocated and read back */
}

/* --- running ------------------------------------------------------------------------------ */

/* Each function of a model returns the code of a stream that has failed. */
TEST(test_running)
{
    static const char *const sources[] = {"synth:tiny-mha",
                                          "tests/model/golden/families/opt",
                                          "tests/model/golden/families/phi",
                                          "tests/model/golden/families/qwen3",
                                          "tests/model/golden/families/falcon-11b",
                                          "tests/model/golden/families/gemma"};
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        struct solo t;
        static float logits[64 * 512], rows[2 * 64 * 512];
        int32_t ids[64], pos[64], seq_row[2] = {0, 64};
        for (int k = 0; k < 64; k++)
            ids[k] = pos[k] = k;
        solo_open(&t, sources[i], "cpu", "bf16", 1);
        solo_feed(&t, ids, 64, logits);
        const int32_t *tables[1] = {t.table.blocks};
        struct ragged r = {
            .n_rows = 64, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
        struct mat h = mat_of(rows, t.m->dtype, 64, t.m->cfg.n_embd), x;
        struct mat kv = mat_of(logits, t.m->dtype, 64, 2 * model_kv_dim(t.m, 0));
        struct kv_chunks chunks = {.first = rows, .blocks = t.table.blocks, .n = 1};
        struct mat out = mat_of(logits, DTYPE_F32, 64, t.m->cfg.vocab_size);
        assert_true(t.m->cfg.vocab_size <= 512 && t.m->cfg.n_embd <= 512);
        memset(rows, 0, sizeof rows);
        for (int failed = 0; failed < 2; failed++) {
            int want = failed ? -EIO : 0;
            if (failed)
                stream_fail(t.s, -EIO, "gone");
            assert_int_equal(model_embed(t.m, t.work, t.s, h, ids, &r), want);
            assert_int_equal(model_kv_project(t.m, t.work, t.s, 1, h, kv), want);
            assert_int_equal(model_kv_fill(t.m, t.s, 0, &t.layers[0], kv, &r), want);
            assert_int_equal(model_kv_pack(t.m, t.s, 0, rows, kv), want);
            assert_int_equal(model_kv_load(t.m, t.s, 0, &t.layers[0], &chunks), want);
            assert_int_equal(model_forward(t.m, t.work, t.s, ids, t.layers, &r, NULL, &x),
                             want);
            if (!failed)
                assert_int_equal(model_head(t.m, t.work, t.s, x, out), 0);
            else
                assert_int_equal(model_head(t.m, t.work, t.s, h, out), -EIO);
        }
        assert_int_equal(stream_recover(t.s), 0);
        solo_close(&t);
    }
}

int main(void)
{
    return unit_run(make_dir, tempdir_end);
}
