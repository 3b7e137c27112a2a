/* test_fingerprint.c - every thing that gives a state its bits is in the fingerprint, and nothing
 * that does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/pool.h"
#include "state/fingerprint.h"

struct place {
    struct pool *pool;
    struct device *dev;
    struct model *m;
    struct model_work *w;
    struct stream *s;
};

static struct device_opts device_opts; /* of the next place */

/* dtype: of the state; "q8" is bf16 with 8-bit weights. */
static void place_open(struct place *p, const char *device, const char *model,
                       const char *dtype, int threads)
{
    bool q8 = strcmp(dtype, "q8") == 0;
    struct err err = {0};
    assert_int_equal(pool_create(threads, &p->pool, &err), 0);
    assert_int_equal(device_open(device, &device_opts, p->pool, &p->dev, &err), 0);
    struct model_opts o = {.dev = p->dev,
                           .dtype = q8 ? "bf16" : dtype,
                           .weights = q8 ? "q8" : NULL,
                           .max_ctx = 256};
    assert_int_equal(model_open(model, &o, &p->m, &err), 0);
    assert_int_equal(model_work_create(p->m, 128, &p->w, &err), 0);
    assert_int_equal(stream_create(p->dev, STREAM_COMPUTE, &p->s, &err), 0);
}

static void place_close(struct place *p)
{
    stream_destroy(p->s);
    model_work_destroy(p->w);
    model_close(p->m);
    device_close(p->dev);
    pool_destroy(p->pool);
}

static struct sha256 fingerprint_of(struct place *p)
{
    struct sha256 f;
    struct err err = {0};
    assert_int_equal(fingerprint_make(p->m, p->w, p->s, &f, &err), 0);
    return f;
}

static struct sha256 make(const char *device, const char *model, const char *dtype,
                          int threads)
{
    struct place p;
    place_open(&p, device, model, dtype, threads);
    struct sha256 f = fingerprint_of(&p);
    place_close(&p);
    return f;
}

static bool same(struct sha256 a, struct sha256 b)
{
    return memcmp(a.b, b.b, sizeof a.b) == 0;
}

static void models_and_dtypes_differ(void **state)
{
    (void)state;
    struct sha256 f[] = {
        make("cpu", "synth:tiny-mha", "f32", 1),  make("cpu", "synth:tiny-mha", "bf16", 1),
        make("cpu", "synth:tiny-mha", "f16", 1),  make("cpu", "synth:tiny-gqa", "f32", 1),
        make("cpu", "synth:tiny-gqa", "bf16", 1), make("cpu", "synth:tiny-mha", "q8", 1),
        make("cpu", "synth:tiny-gqa", "q8", 1),
    };
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < i; j++)
            assert_false(same(f[i], f[j]));
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    for (int threads = 2; threads <= 3; threads++)
        assert_true(same(make("cpu", "synth:tiny-gqa", "bf16", 1),
                         make("cpu", "synth:tiny-gqa", "bf16", threads)));
}

/* Kernels for other instructions share a fingerprint exactly where they give the same bits: the
 * probe decides, not a name. */
static void kernels_are_judged_by_their_bits(void **state)
{
    (void)state;
    struct sha256 best = make("cpu", "synth:tiny-mha", "f32", 1);
    device_opts.isa = "portable";
    struct sha256 portable = make("cpu", "synth:tiny-mha", "f32", 1);
    struct sha256 again = make("cpu", "synth:tiny-mha", "f32", 2);
    device_opts.isa = NULL;
    assert_true(same(portable, again));
    print_message("portable kernels have %s fingerprint\n",
                  same(best, portable) ? "the same" : "another");
    assert_true(same(make("ref", "synth:tiny-mha", "f32", 1),
                     make("ref", "synth:tiny-mha", "f32", 2)));
}

/* What a probe alone would not tell: weights that 8 bits hold exactly. */
static void the_kind_of_weights_counts(void **state)
{
    (void)state;
    struct place p;
    place_open(&p, "cpu", "synth:tiny-mha", "q8", 1);
    struct sha256 f = fingerprint_of(&p);
    p.m->w.dtype = DTYPE_BF16;
    assert_false(same(f, fingerprint_of(&p)));
    place_close(&p);
}

/* Each field by itself: the hash of the weights, the config, and what the kernels compute. */
static void each_field_counts(void **state)
{
    (void)state;
    struct place p;
    place_open(&p, "cpu", "synth:tiny-mha", "f32", 1);
    struct sha256 f = fingerprint_of(&p);
    assert_true(same(f, fingerprint_of(&p)));

    p.m->w.hash.b[31] ^= 1;
    assert_false(same(f, fingerprint_of(&p)));
    p.m->w.hash.b[31] ^= 1;

    int window =
        p.m->cfg.sliding_window; /* longer than the probe: it changes no bit of it */
    p.m->cfg.sliding_window = 4096;
    assert_false(same(f, fingerprint_of(&p)));
    p.m->cfg.sliding_window = window;

    float *norm = (float *)(uintptr_t)p.m->w.layers[0].norm1_w, one = norm[3];
    norm[3] = one * 1.0000002f; /* as other kernels might round */
    assert_false(same(f, fingerprint_of(&p)));
    norm[3] = one;

    norm = (float *)(uintptr_t)p.m->w.layers[1]
               .norm1_w; /* seen by the restoring projection only */
    one = norm[3];
    norm[3] = one * 1.01f;
    assert_false(same(f, fingerprint_of(&p)));
    norm[3] = one;
    assert_true(same(f, fingerprint_of(&p)));
    place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_and_dtypes_differ),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(kernels_are_judged_by_their_bits),
        cmocka_unit_test(each_field_counts),
        cmocka_unit_test(the_kind_of_weights_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
