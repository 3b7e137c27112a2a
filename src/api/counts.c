/* counts.c - see counts.h. */
#include "api/counts.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "engine/engine.h"
#include "store/remote/remote.h"
#include "api/ticket.h"
#include "save/saver.h"
#include "store/store.h"

/* Returns the upper bound of bucket i: from 0.1 ms to 839 s, doubling. */
double hcache_hist_bound_s(int i)
{
    return 1e-4 * (double)(1u << i);
}

static void hist_add(struct hcache_hist *h, double seconds)
{
    int i = 0;
    while (i < HCACHE_HIST_BUCKETS && seconds > hcache_hist_bound_s(i))
        i++;
    h->count[i]++;
    h->sum_s += seconds;
}

void counts_gap(struct counts *c, double seconds)
{
    hist_add(&c->now.tbt, seconds);
}

/* Names of sets of methods by which layers come back, as bits: recomputed (1), projected (2),
 * loaded (4). */
static const char *const plan_names[8] = {
    "none", "recompute",    "hidden",    "recompute+hidden",
    "kv",   "recompute+kv", "hidden+kv", "recompute+hidden+kv",
};

static void count_restore(struct counts *c, const struct hcache_result *r)
{
    struct hcache_stats *st = &c->now;
    if (r->plan.layers[0] == 0)
        return;
    c->n_plans[(r->plan.recompute > 0) + 2 * (r->plan.hidden > 0) + 4 * (r->plan.kv > 0)]++;
    hist_add(&st->restore, r->timings.restore_ms * 1e-3);
    hist_add(&st->restore_predicted, r->plan.predicted_ms * 1e-3);
    st->n_restores++;
    st->layers_recompute += (uint64_t)r->plan.recompute;
    st->layers_hidden += (uint64_t)r->plan.hidden;
    st->layers_kv += (uint64_t)r->plan.kv;
    st->restore_measured_s += r->timings.restore_ms * 1e-3;
    st->restore_wait_s += r->timings.restore_wait_ms * 1e-3;
}

void counts_end(struct counts *c, const struct hcache_ticket *t)
{
    const struct hcache_result *r = &t->result;
    struct hcache_stats *st = &c->now;
    bool timed_out = t->err.code == -ETIMEDOUT || strcmp(r->finish, "timeout") == 0;
    st->n_ended++;
    st->n_timed_out += timed_out;
    st->n_failed += t->err.code != 0 && !timed_out;
    st->n_cancelled += t->err.code == 0 && strcmp(r->finish, "cancelled") == 0;
    hist_add(&st->queue, r->timings.queue_ms * 1e-3);
    if (r->timings.ttft_ms > 0) {
        hist_add(&st->ttft, r->timings.ttft_ms * 1e-3);
        st->prompt_tokens += (uint64_t)r->prompt_tokens;
        st->device_tokens += (uint64_t)r->device_tokens;
        st->restored_tokens += (uint64_t)(r->cached_tokens - r->device_tokens);
        st->dram_tokens += (uint64_t)r->dram_tokens;
        st->remote_tokens += (uint64_t)r->remote_tokens;
        st->computed_tokens += (uint64_t)(r->prompt_tokens - r->cached_tokens);
    }
    st->generated_tokens += (uint64_t)r->n_tokens;
    st->guessed_tokens += (uint64_t)r->guessed_tokens;
    st->guessed_right += (uint64_t)r->guessed_right;
    st->restored_bytes += r->restored_bytes;
    st->n_misses += t->err.code == 0 && r->cached_tokens < (r->prompt_tokens - 1) / 64 * 64;
    count_restore(c, r);
}

static void count_add(struct hcache_counts *c, const char *name, uint64_t n)
{
    CHECK(c->n < HCACHE_MAX_COUNTS);
    c->at[c->n++] = (struct hcache_count){name, n};
}

void counts_read(const struct counts *c, const struct engine_stats *e,
                 struct hcache_stats *out)
{
    *out = c->now;
    out->n_preempted = e->n_preempted;
    out->recovered_tokens = e->recovered_tokens;
    out->recomputed_tokens = e->recomputed_tokens;
    out->n_stairs = e->n_stairs;
    out->n_replays = e->n_replays;
    out->stairs_s = (double)e->stairs_ns * 1e-9;
    out->kv_blocks = e->blocks;
    out->kv_blocks_free = e->blocks_free;
    out->kv_blocks_kept = e->blocks_kept;
    out->kv_blocks_evicted = e->n_evicted;
    out->link_bytes = e->link_bytes;
    out->link_down_bytes = e->link_down_bytes;
    out->weights_read_bytes = e->weights_read_bytes;
    for (int i = 1; i < 8; i++)
        count_add(&out->plans, plan_names[i], c->n_plans[i]);
    for (int i = 1; i < SURPRISES; i++)
        count_add(&out->surprises, surprise_name(i), e->n_surprises[i]);
    for (int i = 1; i < STALL_ENDS; i++)
        count_add(&out->stalls, stall_end_name(i), e->n_stalls[i]);
}

static const char *const save_end_names[SAVE_ENDS] = {
    [SAVE_END_BEHIND] = "writer_behind", [SAVE_END_MEMORY] = "no_memory",
    [SAVE_END_CAP] = "store_cap",        [SAVE_END_REFUSED] = "refused",
    [SAVE_END_SPACE] = "disk_full",      [SAVE_END_PARENT] = "parent_gone",
    [SAVE_END_TAIL] = "tail_unreadable", [SAVE_END_ERASED] = "erased",
    [SAVE_END_FAULT] = "store_fault"};

void counts_saver(const struct saver_stats *st, struct hcache_stats *out)
{
    for (int i = SAVE_GOES_ON + 1; i < SAVE_ENDS; i++)
        if (i != SAVE_END_DEVICE)
            count_add(&out->saves_ended, save_end_names[i], st->n_ended[i]);
    /* A fault of the device counts as one of the store, the last reason. */
    out->saves_ended.at[out->saves_ended.n - 1].count += st->n_ended[SAVE_END_DEVICE];
    out->saved_chunks = st->n_chunks;
    out->saved_tails = st->n_tails;
    out->shared_chunks = st->n_shared;
    out->save_buffer_bytes = st->bound_bytes;
    out->save_buffer_used_bytes = st->used_bytes;
}

static void hist_sum(struct hcache_hist *to, const struct hcache_hist *from)
{
    for (int i = 0; i <= HCACHE_HIST_BUCKETS; i++)
        to->count[i] += from->count[i];
    to->sum_s += from->sum_s;
}

static void names_sum(struct hcache_counts *to, const struct hcache_counts *from)
{
    for (int i = 0; i < from->n; i++)
        to->at[i] = (struct hcache_count){
            from->at[i].name, (i < to->n ? to->at[i].count : 0) + from->at[i].count};
    to->n = from->n > to->n ? from->n : to->n;
}

void counts_sum(struct hcache_stats *to, const struct hcache_stats *from)
{
#define ADD(field) to->field += from->field
    ADD(n_waiting), ADD(n_running), ADD(n_ended), ADD(n_cancelled), ADD(n_failed);
    ADD(n_refused), ADD(n_timed_out), ADD(prompt_tokens), ADD(generated_tokens);
    ADD(guessed_tokens), ADD(guessed_right), ADD(device_tokens), ADD(restored_tokens);
    ADD(dram_tokens), ADD(remote_tokens), ADD(computed_tokens), ADD(restored_bytes);
    ADD(n_restores), ADD(layers_recompute), ADD(layers_hidden);
    ADD(layers_kv);
    ADD(restore_measured_s), ADD(restore_wait_s), ADD(n_misses);
    ADD(saved_chunks), ADD(saved_tails), ADD(shared_chunks), ADD(save_buffer_bytes);
    ADD(save_buffer_used_bytes), ADD(n_preempted), ADD(recovered_tokens);
    ADD(recomputed_tokens), ADD(n_stairs), ADD(n_replays), ADD(stairs_s), ADD(kv_blocks);
    ADD(kv_blocks_free), ADD(kv_blocks_kept), ADD(kv_blocks_evicted), ADD(link_bytes);
    ADD(link_down_bytes), ADD(weights_read_bytes);
#undef ADD
    to->wait_s = from->wait_s > to->wait_s ? from->wait_s : to->wait_s;
    names_sum(&to->plans, &from->plans);
    names_sum(&to->surprises, &from->surprises);
    names_sum(&to->stalls, &from->stalls);
    names_sum(&to->saves_ended, &from->saves_ended);
    hist_sum(&to->queue, &from->queue);
    hist_sum(&to->ttft, &from->ttft);
    hist_sum(&to->tbt, &from->tbt);
    hist_sum(&to->restore, &from->restore);
    hist_sum(&to->restore_predicted, &from->restore_predicted);
}

void counts_unloaded(struct hcache_stats *st)
{
    st->n_waiting = st->n_running = 0;
    st->kv_blocks = st->kv_blocks_free = st->kv_blocks_kept = 0;
    st->save_buffer_bytes = st->save_buffer_used_bytes = 0;
    st->wait_s = 0;
}

static struct hcache_dram dram_of(const struct store_dram *d)
{
    return (struct hcache_dram){.cap_bytes = d->cap_bytes,
                                .used_bytes = d->used_bytes,
                                .n_chunks = d->n_chunks,
                                .n_written = d->n_written,
                                .n_promoted = d->n_promoted,
                                .promoted_bytes = d->promoted_bytes,
                                .n_unused = d->n_unused,
                                .n_demoted = d->n_demoted,
                                .n_full = d->n_full,
                                .read_bytes = d->read_bytes};
}

struct hcache_remote counts_remote(const struct remote_stats *st)
{
    struct hcache_remote out = {.is_up = st->is_up,
                                .is_full = st->is_full,
                                .n_fetches = st->n_fetches,
                                .n_round_trips = st->n_round_trips,
                                .n_fetched = st->n_fetched,
                                .fetched_bytes = st->fetched_bytes,
                                .n_written = st->n_written,
                                .written_bytes = st->written_bytes,
                                .n_known = st->n_known,
                                .n_dropped = st->n_dropped,
                                .n_gone = st->n_gone,
                                .n_refused = st->n_refused,
                                .n_failures = st->n_failures,
                                .n_queued = st->n_queued,
                                .n_unpublished = st->n_unpublished,
                                .n_erasures = st->n_erasures,
                                .n_erasures_everywhere = st->n_erasures_everywhere,
                                .n_servers = st->n_servers,
                                .latency_s = st->pace.latency_s,
                                .bytes_per_s = st->pace.bytes_per_s};
    memcpy(out.url, st->url, sizeof out.url);
    memcpy(out.why_down, st->why_down, sizeof out.why_down);
    for (int i = REMOTE_MISS_NONE + 1; st->url[0] != 0 && i < REMOTE_MISSES; i++)
        count_add(&out.misses, remote_miss_name((enum remote_miss)i), st->misses[i]);
    return out;
}

void counts_cache(const struct store_stats *st, struct hcache_cache_stats *out)
{
    out->tier = st->tier;
    out->dram = dram_of(&st->dram);
    out->n_chunks = st->n_chunks;
    out->used_bytes = st->used_bytes;
    out->cap_bytes = st->cap_bytes;
    out->files_cap_bytes = st->files_cap_bytes;
    out->file_bytes = st->file_bytes;
    out->pending_bytes = st->pending_bytes;
    out->n_pins = st->n_pins;
    out->n_expiring = st->n_expiring;
    out->n_guarantees = st->n_guarantees;
    out->guaranteed_bytes = st->guaranteed_bytes;
    out->guarantee_limit_bytes = st->guarantee_limit_bytes;
    out->n_guarantees_broken = st->n_guarantees_broken;
    out->n_hits = st->n_hits;
    out->n_misses = st->n_misses;
    out->n_evicted = st->n_evicted;
    out->n_corrupt = st->n_corrupt;
    out->n_checksum_failures = st->n_checksum_failures;
    out->n_read_failures = st->n_read_failures;
    out->appended_bytes = st->appended_bytes;
    out->read_bytes = st->read_bytes;
    for (int i = 0; i < STORE_MISSES; i++)
        count_add(&out->misses, store_miss_name((enum store_miss)i), st->misses[i]);
    for (int i = 0; i < STORE_EVICTS; i++)
        count_add(&out->evictions, store_evict_name((enum store_evict)i), st->evictions[i]);
}
