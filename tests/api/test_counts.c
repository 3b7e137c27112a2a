/* test_counts.c - what each ended request adds to the server's counters. */

#include "tests/unit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "store/remote/remote.h"
#include "api/counts.h"
#include "api/ticket.h"
#include "save/saver.h"
#include "store/store.h"

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

TEST(an_end_is_counted_once_everywhere)
{
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
    /* 256 tokens are all full chunks before the last token */
    assert_int_equal(s->n_misses, 0);
    assert_int_equal(s->n_restores, 1);
    assert_int_equal(s->layers_recompute, 1);
    assert_int_equal(s->layers_hidden, 2);
    assert_int_equal(s->layers_kv, 5);
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

TEST(a_missing_full_chunk_is_a_miss)
{
    struct counts c = {0};
    struct hcache_ticket t = ended();
    t.result.cached_tokens = 192;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_misses, 1);
    t.result.cached_tokens = 256;
    /* The last token is always computed, so at most 256 of 320 tokens can be restored. */
    t.result.prompt_tokens = 320;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_misses, 1);
    t.result.prompt_tokens = 321;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_misses, 2);
    t.err.code = -EIO; /* a failed request does not count as a miss */
    counts_end(&c, &t);
    assert_int_equal(c.now.n_misses, 2);
}

TEST(how_a_request_ended)
{
    struct counts c = {0};
    struct hcache_ticket t = ended();
    t.result.finish = "timeout"; /* the request had generated tokens */
    counts_end(&c, &t);
    t.result.finish = "";
    t.err.code = -ETIMEDOUT; /* the request had generated no token */
    counts_end(&c, &t);
    assert_int_equal(c.now.n_timed_out, 2);
    assert_int_equal(c.now.n_failed, 0);
    t.err.code = -EIO;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_failed, 1);
    t.result.finish = "cancelled";
    counts_end(&c, &t); /* the request failed first, so it does not count as cancelled */
    assert_int_equal(c.now.n_cancelled, 0);
    t.err.code = 0;
    counts_end(&c, &t);
    assert_int_equal(c.now.n_cancelled, 1);
    assert_int_equal(c.now.n_failed, 2);
    assert_int_equal(c.now.n_ended, 5);
}

/* The tokens of a request that generated no token do not count as computed. */
TEST(tokens_count_with_the_first_token)
{
    struct counts c = {0};
    struct hcache_ticket t = ended();
    t.result.timings.ttft_ms = 0;
    t.result.plan.layers[0] = 0; /* the request restored nothing either */
    counts_end(&c, &t);
    assert_int_equal(c.now.prompt_tokens, 0);
    assert_int_equal(c.now.computed_tokens, 0);
    assert_int_equal(in_all(&c.now.ttft), 0);
    assert_int_equal(in_all(&c.now.queue), 1);
    assert_int_equal(c.now.n_restores, 0);
    assert_int_equal(in_all(&c.now.restore), 0);
}

/* The bounds of the buckets double from 0.1 ms on. A value that equals a bound belongs to that
 * bound's bucket. The last bucket takes all larger values. */
TEST(values_fall_into_their_buckets)
{
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
TEST(plans_are_counted_by_their_methods)
{
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
    assert_int_equal(out->kv_blocks, 100);
    assert_int_equal(out->kv_blocks_free, 30);
    assert_int_equal(out->kv_blocks_kept, 20);
    assert_int_equal(out->kv_blocks_evicted, 3);
    assert_int_equal(out->n_preempted, 4);
    assert_int_equal(out->recovered_tokens, 5);
    assert_int_equal(out->recomputed_tokens, 6);
    free(out);
}

/* Each figure of the engine differs from the others, and must arrive in its own field. */
TEST(figures_of_the_engine_are_copied)
{
    struct counts c = {0};
    struct engine_stats e = {.n_stairs = 14,
                             .n_replays = 15,
                             .stairs_ns = 16000000000,
                             .link_bytes = 17,
                             .link_down_bytes = 18,
                             .weights_read_bytes = 19};
    for (int i = 0; i < STALL_ENDS; i++)
        e.n_stalls[i] = 20 + (uint64_t)i;
    for (int i = 0; i < SURPRISES; i++)
        e.n_surprises[i] = 30 + (uint64_t)i;
    struct hcache_stats *out = calloc(1, sizeof *out);
    counts_read(&c, &e, out);
    assert_int_equal(out->n_stairs, 14);
    assert_int_equal(out->n_replays, 15);
    assert_true(out->stairs_s == 16);
    assert_int_equal(out->link_bytes, 17);
    assert_int_equal(out->link_down_bytes, 18);
    assert_int_equal(out->weights_read_bytes, 19);
    assert_int_equal(out->stalls.n, STALL_ENDS - 1);
    for (int i = 1; i < STALL_ENDS; i++)
        assert_int_equal(count_of(&out->stalls, stall_end_name(i)), 20 + i);
    assert_int_equal(out->surprises.n, SURPRISES - 1);
    for (int i = 1; i < SURPRISES; i++)
        assert_int_equal(count_of(&out->surprises, surprise_name(i)), 30 + i);
    free(out);
}

/* --- copies ----------------------------------------------------------------------------------- */

/* Each number differs from all others, so that a figure in the wrong field is noticed. */
static const struct store_stats stored = {.tier = "disk",
                                          .n_chunks = 101,
                                          .used_bytes = 102,
                                          .cap_bytes = 103,
                                          .file_bytes = 104,
                                          .files_cap_bytes = 105,
                                          .pending_bytes = 106,
                                          .n_expiring = 107,
                                          .n_pins = 108,
                                          .n_guarantees = 109,
                                          .guaranteed_bytes = 110,
                                          .guarantee_limit_bytes = 111,
                                          .appended_bytes = 112,
                                          .read_bytes = 113,
                                          .n_hits = 114,
                                          .n_misses = 115,
                                          .n_evicted = 116,
                                          .n_corrupt = 117,
                                          .n_guarantees_broken = 118,
                                          .n_checksum_failures = 119,
                                          .n_read_failures = 120,
                                          .dram = {.cap_bytes = 201,
                                                   .used_bytes = 202,
                                                   .n_chunks = 203,
                                                   .n_written = 204,
                                                   .n_promoted = 205,
                                                   .promoted_bytes = 206,
                                                   .n_unused = 207,
                                                   .n_demoted = 208,
                                                   .n_full = 209,
                                                   .read_bytes = 210}};

static void assert_dram(const struct hcache_dram *d)
{
    assert_int_equal(d->cap_bytes, 201);
    assert_int_equal(d->used_bytes, 202);
    assert_int_equal(d->n_chunks, 203);
    assert_int_equal(d->n_written, 204);
    assert_int_equal(d->n_promoted, 205);
    assert_int_equal(d->promoted_bytes, 206);
    assert_int_equal(d->n_unused, 207);
    assert_int_equal(d->n_demoted, 208);
    assert_int_equal(d->n_full, 209);
    assert_int_equal(d->read_bytes, 210);
}

static void assert_reasons(const struct hcache_counts *misses,
                           const struct hcache_counts *evictions)
{
    assert_int_equal(misses->n, STORE_MISSES);
    for (int i = 0; i < STORE_MISSES; i++)
        assert_int_equal(count_of(misses, store_miss_name((enum store_miss)i)), 300 + i);
    assert_int_equal(evictions->n, STORE_EVICTS);
    for (int i = 0; i < STORE_EVICTS; i++)
        assert_int_equal(count_of(evictions, store_evict_name((enum store_evict)i)),
                         400 + i);
}

TEST(figures_of_the_store_are_copied)
{
    struct store_stats st = stored;
    for (int i = 0; i < STORE_MISSES; i++)
        st.misses[i] = 300 + (uint64_t)i;
    for (int i = 0; i < STORE_EVICTS; i++)
        st.evictions[i] = 400 + (uint64_t)i;
    struct hcache_cache_stats *k = calloc(1, sizeof *k);
    counts_cache(&st, k);
    assert_string_equal(k->tier, "disk");
    assert_int_equal(k->n_chunks, 101);
    assert_int_equal(k->used_bytes, 102);
    assert_int_equal(k->cap_bytes, 103);
    assert_int_equal(k->file_bytes, 104);
    assert_int_equal(k->files_cap_bytes, 105);
    assert_int_equal(k->pending_bytes, 106);
    assert_int_equal(k->n_expiring, 107);
    assert_int_equal(k->n_pins, 108);
    assert_int_equal(k->n_guarantees, 109);
    assert_int_equal(k->guaranteed_bytes, 110);
    assert_int_equal(k->guarantee_limit_bytes, 111);
    assert_int_equal(k->appended_bytes, 112);
    assert_int_equal(k->read_bytes, 113);
    assert_int_equal(k->n_hits, 114);
    assert_int_equal(k->n_misses, 115);
    assert_int_equal(k->n_evicted, 116);
    assert_int_equal(k->n_corrupt, 117);
    assert_int_equal(k->n_guarantees_broken, 118);
    assert_int_equal(k->n_checksum_failures, 119);
    assert_int_equal(k->n_read_failures, 120);
    assert_dram(&k->dram);
    assert_reasons(&k->misses, &k->evictions);
    free(k);
}

/* The public interface counts a fault of the device as one of the store. */
TEST(figures_of_the_saver_are_copied)
{
    struct saver_stats st = {
        .n_chunks = 1, .n_tails = 2, .n_shared = 3, .used_bytes = 4, .bound_bytes = 5};
    for (int i = 0; i < SAVE_ENDS; i++)
        st.n_ended[i] = (uint64_t)1 << (i + 3);
    struct hcache_stats *out = calloc(1, sizeof *out);
    counts_saver(&st, out);
    assert_int_equal(out->saved_chunks, 1);
    assert_int_equal(out->saved_tails, 2);
    assert_int_equal(out->shared_chunks, 3);
    assert_int_equal(out->save_buffer_used_bytes, 4);
    assert_int_equal(out->save_buffer_bytes, 5);
    static const struct {
        const char *name;
        enum save_end end;
    } ends[] = {{"writer_behind", SAVE_END_BEHIND}, {"no_memory", SAVE_END_MEMORY},
                {"store_cap", SAVE_END_CAP},        {"refused", SAVE_END_REFUSED},
                {"disk_full", SAVE_END_SPACE},      {"parent_gone", SAVE_END_PARENT},
                {"erased", SAVE_END_ERASED},        {"tail_unreadable", SAVE_END_TAIL}};
    assert_int_equal(out->saves_ended.n, 9);
    for (int i = 0; i < 8; i++)
        assert_int_equal(count_of(&out->saves_ended, ends[i].name),
                         st.n_ended[ends[i].end]);
    assert_int_equal(count_of(&out->saves_ended, "store_fault"),
                     st.n_ended[SAVE_END_FAULT] + st.n_ended[SAVE_END_DEVICE]);
    free(out);
}

TEST(figures_of_the_remote_are_copied)
{
    struct remote_stats st = {.url = "redis://h:1/0",
                              .is_up = true,
                              .is_full = true,
                              .why_down = "slow",
                              .n_fetches = 1,
                              .n_fetched = 2,
                              .fetched_bytes = 3,
                              .n_round_trips = 4,
                              .n_written = 5,
                              .written_bytes = 6,
                              .n_known = 7,
                              .n_dropped = 8,
                              .n_gone = 9,
                              .n_refused = 10,
                              .n_failures = 11,
                              .n_queued = 12,
                              .n_unpublished = 13,
                              .n_erasures = 14,
                              .n_erasures_everywhere = 15,
                              .n_servers = 16,
                              .pace = {.latency_s = 17, .bytes_per_s = 18}};
    for (int i = 0; i < REMOTE_MISSES; i++)
        st.misses[i] = 20 + (uint64_t)i;
    const struct hcache_remote r = counts_remote(&st);
    assert_string_equal(r.url, "redis://h:1/0");
    assert_true(r.is_up && r.is_full);
    assert_string_equal(r.why_down, "slow");
    assert_int_equal(r.n_fetches, 1);
    assert_int_equal(r.n_fetched, 2);
    assert_int_equal(r.fetched_bytes, 3);
    assert_int_equal(r.n_round_trips, 4);
    assert_int_equal(r.n_written, 5);
    assert_int_equal(r.written_bytes, 6);
    assert_int_equal(r.n_known, 7);
    assert_int_equal(r.n_dropped, 8);
    assert_int_equal(r.n_gone, 9);
    assert_int_equal(r.n_refused, 10);
    assert_int_equal(r.n_failures, 11);
    assert_int_equal(r.n_queued, 12);
    assert_int_equal(r.n_unpublished, 13);
    assert_int_equal(r.n_erasures, 14);
    assert_int_equal(r.n_erasures_everywhere, 15);
    assert_int_equal(r.n_servers, 16);
    assert_true(r.latency_s == 17 && r.bytes_per_s == 18);
    assert_int_equal(r.misses.n, REMOTE_MISSES - REMOTE_MISS_NONE - 1);
    for (int i = REMOTE_MISS_NONE + 1; i < REMOTE_MISSES; i++)
        assert_int_equal(count_of(&r.misses, remote_miss_name((enum remote_miss)i)),
                         20 + i);
    st.url[0] = 0; /* there is no remote */
    assert_int_equal(counts_remote(&st).misses.n, 0);
}
