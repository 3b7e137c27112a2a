/* test_counts.c - what each ended request adds to the server's counters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "service/counts.h"
#include "service/ticket.h"

/* A request that restored 128 of 300 tokens by a plan with three methods. */
static struct hcache_ticket ended(void)
{
    return (struct hcache_ticket){.result = {.finish = "stop",
                                             .prompt_tokens = 300,
                                             .cached_tokens = 256,
                                             .device_tokens = 128,
                                             .n_tokens = 9,
                                             .restored_bytes = 5000,
                                             .plan = {.recompute = 1,
                                                      .hidden = 2,
                                                      .kv = 5,
                                                      .layers = "RHHKKKKK",
                                                      .predicted_ms = 12},
                                             .timings = {.queue_ms = 3,
                                                         .ttft_ms = 70,
                                                         .restore_ms = 25,
                                                         .restore_wait_ms = 4}}};
}

static uint64_t in_all(const struct hcache_hist *h)
{
    uint64_t n = 0;
    for (int i = 0; i <= HCACHE_HIST_BUCKETS; i++)
        n += h->count[i];
    return n;
}

static void an_end_is_counted_once_everywhere(void **state)
{
    (void)state;
    struct counts c = {0};
    struct hcache_ticket t = ended();
    counts_end(&c, &t);
    const struct hcache_stats *s = &c.now;
    assert_int_equal(s->n_ended, 1);
    assert_int_equal(s->n_failed + s->n_timed_out + s->n_cancelled, 0);
    assert_int_equal(s->prompt_tokens, 300);
    assert_int_equal(s->device_tokens, 128);
    assert_int_equal(s->restored_tokens, 128);
    assert_int_equal(s->computed_tokens, 44);
    assert_int_equal(s->generated_tokens, 9);
    assert_int_equal(s->restored_bytes, 5000);
    assert_int_equal(s->n_misses, 0); /* 256 are all full chunks before the last token */
    assert_int_equal(s->n_restores, 1);
    assert_int_equal(s->n_restores_recompute, 1);
    assert_int_equal(s->layers_recompute, 1);
    assert_int_equal(s->layers_hidden, 2);
    assert_int_equal(s->layers_kv, 5);
    assert_true(fabs(s->restore_predicted_s - 0.012) < 1e-12);
    assert_true(fabs(s->restore_measured_s - 0.025) < 1e-12);
    assert_true(fabs(s->restore_wait_s - 0.004) < 1e-12);
    assert_int_equal(in_all(&s->queue), 1);
    assert_int_equal(in_all(&s->ttft), 1);
    assert_int_equal(in_all(&s->restore), 1);
    assert_int_equal(in_all(&s->restore_predicted), 1);
    assert_true(fabs(s->ttft.sum_s - 0.07) < 1e-12);
    assert_true(fabs(s->queue.sum_s - 0.003) < 1e-12);
    assert_int_equal(in_all(&s->tbt), 0);
}

static void a_missing_full_chunk_is_a_miss(void **state)
{
    (void)state;
    struct counts c = {0};
    struct hcache_ticket t = ended();
    t.result.cached_tokens = 192;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_misses, 1);
    t.result.cached_tokens = 256;
    /* The last token is computed: at most 256 can be restored. */
    t.result.prompt_tokens = 320;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_misses, 1);
    t.result.prompt_tokens = 321;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_misses, 2);
    t.err.code = -EIO; /* a failed request does not count for the store */
    counts_end(&c, &t);
    assert_int_equal(c.now.n_misses, 2);
}

static void how_a_request_ended(void **state)
{
    (void)state;
    struct counts c = {0};
    struct hcache_ticket t = ended();
    t.result.finish = "timeout"; /* something was generated */
    counts_end(&c, &t);
    t.result.finish = "";
    t.err.code = -ETIMEDOUT; /* nothing was generated */
    counts_end(&c, &t);
    assert_int_equal(c.now.n_timed_out, 2);
    assert_int_equal(c.now.n_failed, 0);
    t.err.code = -EIO;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_failed, 1);
    t.result.finish = "cancelled";
    counts_end(&c, &t); /* the request failed before it was cancelled */
    assert_int_equal(c.now.n_cancelled, 0);
    t.err.code = 0;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_cancelled, 1);
    assert_int_equal(c.now.n_failed, 2);
    assert_int_equal(c.now.n_ended, 5);
}

/* A request without a generated token has computed nothing that counts. */
static void tokens_count_with_the_first_token(void **state)
{
    (void)state;
    struct counts c = {0};
    struct hcache_ticket t = ended();
    t.result.timings.ttft_ms = 0;
    t.result.plan.layers[0] = 0; /* and nothing was restored */
    counts_end(&c, &t);
    assert_int_equal(c.now.prompt_tokens, 0);
    assert_int_equal(c.now.computed_tokens, 0);
    assert_int_equal(in_all(&c.now.ttft), 0);
    assert_int_equal(in_all(&c.now.queue), 1);
    assert_int_equal(c.now.n_restores, 0);
    assert_int_equal(in_all(&c.now.restore), 0);
}

/* Buckets double from 0.1 ms; a bound belongs to its bucket, and the last one takes all larger
 * values. */
static void values_fall_into_their_buckets(void **state)
{
    (void)state;
    struct counts c = {0};
    assert_true(hcache_hist_bound_s(0) == 1e-4);
    for (int i = 1; i < HCACHE_HIST_BUCKETS; i++)
        assert_true(hcache_hist_bound_s(i) == 2 * hcache_hist_bound_s(i - 1));
    for (int i = 0; i < HCACHE_HIST_BUCKETS; i++)
        counts_gap(&c, hcache_hist_bound_s(i));
    for (int i = 0; i < HCACHE_HIST_BUCKETS; i++)
        assert_int_equal(c.now.tbt.count[i], 1);
    counts_gap(&c, hcache_hist_bound_s(HCACHE_HIST_BUCKETS - 1) * 1.01);
    assert_int_equal(c.now.tbt.count[HCACHE_HIST_BUCKETS], 1);
    counts_gap(&c, 0);
    assert_int_equal(c.now.tbt.count[0], 2);
}

static uint64_t count_of(const struct hcache_counts *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->at[i].name, name) == 0)
            return c->at[i].count;
    fail_msg("no count '%s'", name);
    return 0;
}

/* Plans are counted by their methods, under the names of /metrics. */
static void plans_are_counted_by_their_methods(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int r, h, k;
    } plans[] = {{"recompute", 1, 0, 0},          {"hidden", 0, 3, 0},
                 {"recompute+hidden", 1, 1, 0},   {"kv", 0, 0, 8},
                 {"recompute+kv", 2, 0, 1},       {"hidden+kv", 0, 1, 1},
                 {"recompute+hidden+kv", 1, 1, 1}};
    struct counts c = {0};
    struct hcache_ticket t = ended();
    for (int i = 0; i < 7; i++)
        for (int times = 0; times <= i; times++) {
            t.result.plan.recompute = plans[i].r;
            t.result.plan.hidden = plans[i].h;
            t.result.plan.kv = plans[i].k;
            counts_end(&c, &t);
        }
    struct hcache_stats *out = calloc(1, sizeof *out);
    const struct engine_stats e = {.blocks = 100,
                                   .blocks_free = 30,
                                   .blocks_kept = 20,
                                   .n_evicted = 3,
                                   .n_preempted = 4,
                                   .recovered_tokens = 5,
                                   .recomputed_tokens = 6};
    counts_read(&c, &e, out);
    assert_int_equal(out->plans.n, 7);
    for (int i = 0; i < 7; i++)
        assert_int_equal(count_of(&out->plans, plans[i].name), i + 1);
    assert_int_equal(out->n_ended, 28);
    assert_int_equal(out->n_restores_recompute, 1 + 3 + 5 + 7);
    assert_int_equal(out->kv_blocks, 100);
    assert_int_equal(out->kv_blocks_free, 30);
    assert_int_equal(out->kv_blocks_kept, 20);
    assert_int_equal(out->kv_blocks_evicted, 3);
    assert_int_equal(out->n_preempted, 4);
    assert_int_equal(out->recovered_tokens, 5);
    assert_int_equal(out->recomputed_tokens, 6);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_end_is_counted_once_everywhere),
        cmocka_unit_test(a_missing_full_chunk_is_a_miss),
        cmocka_unit_test(how_a_request_ended),
        cmocka_unit_test(tokens_count_with_the_first_token),
        cmocka_unit_test(values_fall_into_their_buckets),
        cmocka_unit_test(plans_are_counted_by_their_methods),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
