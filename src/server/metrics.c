/* metrics.c - GET /metrics: counters in Prometheus' text form. docs/SERVER.md
 * explains the names. */
#include "server/metrics.h"

#include <string.h>

#include "server/auth.h"
#include "server/call.h"
#include "server/guesses.h"
#include "server/loops.h"
#include "api/answers.h"
#include "api/models.h"

static void metric(struct textbuf *b, const char *type, const char *name, const char *help,
                   double v)
{
    textbuf_addf(b, "# HELP hcache_%s %s\n# TYPE hcache_%s %s\nhcache_%s %.17g\n", name,
                 help, name, type, name, v);
}

static void head(struct textbuf *b, const char *type, const char *name, const char *help)
{
    textbuf_addf(b, "# HELP hcache_%s %s\n# TYPE hcache_%s %s\n", name, help, name, type);
}

static void labelled(struct textbuf *b, const char *name, const char *label,
                     const char *value, uint64_t v)
{
    textbuf_addf(b, "hcache_%s{%s=\"%s\"} %llu\n", name, label, value,
                 (unsigned long long)v);
}

static void counts(struct textbuf *b, const char *name, const char *label, const char *help,
                   const struct hcache_counts *c)
{
    head(b, "counter", name, help);
    for (int i = 0; i < c->n; i++)
        labelled(b, name, label, c->at[i].name, c->at[i].count);
}

static void histogram(struct textbuf *b, const char *name, const char *help,
                      const struct hcache_hist *h)
{
    uint64_t n = 0;
    head(b, "histogram", name, help);
    for (int i = 0; i < HCACHE_HIST_BUCKETS; i++) {
        n += h->count[i];
        textbuf_addf(b, "hcache_%s_bucket{le=\"%.6g\"} %llu\n", name,
                     hcache_hist_bound_s(i), (unsigned long long)n);
    }
    n += h->count[HCACHE_HIST_BUCKETS];
    textbuf_addf(
        b, "hcache_%s_bucket{le=\"+Inf\"} %llu\nhcache_%s_sum %.9g\nhcache_%s_count %llu\n",
        name, (unsigned long long)n, name, h->sum_s, name, (unsigned long long)n);
}

static void request_metrics(struct textbuf *b, const struct hcache_stats *st)
{
    metric(b, "gauge", "requests_waiting", "Requests that wait for a place.",
           st->n_waiting);
    metric(b, "gauge", "queue_wait_expected_seconds",
           "Estimated wait of a new request for a place.", st->wait_s);
    metric(b, "gauge", "requests_running", "Sequences in the engine.", st->n_running);
    head(b, "counter", "requests_total", "Ended sequences, by how they ended.");
    labelled(b, "requests_total", "end", "done",
             st->n_ended - st->n_cancelled - st->n_failed - st->n_timed_out);
    labelled(b, "requests_total", "end", "cancelled", st->n_cancelled);
    labelled(b, "requests_total", "end", "failed", st->n_failed);
    labelled(b, "requests_total", "end", "timeout", st->n_timed_out);
    labelled(b, "requests_total", "end", "refused", st->n_refused);
    metric(b, "counter", "preemptions_total",
           "Preemptions: sequences that gave up their place to others.",
           (double)st->n_preempted);
    head(b, "counter", "resumed_tokens_total",
         "Tokens of preempted sequences that continued: restored (recovered) or "
         "recomputed.");
    labelled(b, "resumed_tokens_total", "how", "recovered", st->recovered_tokens);
    labelled(b, "resumed_tokens_total", "how", "recomputed", st->recomputed_tokens);
    metric(b, "counter", "truncation_steps_total",
           "Times that the window of a truncated context moved.", (double)st->n_stairs);
    metric(b, "counter", "truncation_stall_seconds_total",
           "Time from the end of a stair until its state was at its new positions.",
           st->stairs_s);
    metric(
        b, "counter", "truncation_replays_total",
        "Truncated contexts that were computed again, stair by stair, without the store.",
        (double)st->n_replays);
    histogram(b, "queue_seconds", "Time that requests waited for a place.", &st->queue);
    histogram(b, "ttft_seconds", "Time to the first token, queueing included.", &st->ttft);
    histogram(b, "tbt_seconds", "Time between tokens of a sequence.", &st->tbt);
}

static void token_metrics(struct textbuf *b, const struct hcache_stats *st,
                          const struct hcache_cache_stats *k)
{
    bool dram = k->tier != NULL && strcmp(k->tier, "dram") == 0;
    head(b, "counter", "prompt_tokens_total",
         "Prompt tokens, by the source of their state.");
    labelled(b, "prompt_tokens_total", "source", "device", st->device_tokens);
    uint64_t from_dram = dram ? st->restored_tokens : st->dram_tokens;
    labelled(b, "prompt_tokens_total", "source", "dram", from_dram);
    labelled(b, "prompt_tokens_total", "source", "disk", st->restored_tokens - from_dram);
    labelled(b, "prompt_tokens_total", "source", "computed", st->computed_tokens);
    metric(b, "counter", "generated_tokens_total", "Generated tokens.",
           (double)st->generated_tokens);
    head(b, "counter", "guessed_tokens_total",
         "Tokens that were guessed and computed beside the token before them.");
    labelled(b, "guessed_tokens_total", "outcome", "right", st->guessed_right);
    labelled(b, "guessed_tokens_total", "outcome", "wrong",
             st->guessed_tokens - st->guessed_right);
    metric(b, "gauge", "kv_blocks", "Blocks of 64 tokens in the KV cache.", st->kv_blocks);
    metric(b, "gauge", "kv_blocks_free",
           "Blocks of the KV cache that can be taken: free ones and kept ones.",
           st->kv_blocks_free);
    metric(b, "gauge", "kv_blocks_kept",
           "Kept blocks: they can be taken, but still have the state of ended sequences.",
           st->kv_blocks_kept);
    metric(b, "counter", "kv_blocks_evicted_total", "Kept blocks that were evicted.",
           (double)st->kv_blocks_evicted);
}

/* Returns the share of restore time during which compute waited for I/O. */
static double bubble_share(const struct hcache_stats *st)
{
    return st->restore_measured_s > 0 ? st->restore_wait_s / st->restore_measured_s : 0;
}

static void restore_metrics(struct textbuf *b, const struct hcache_stats *st)
{
    metric(b, "counter", "restores_total", "Requests with restored state.",
           (double)st->n_restores);
    counts(b, "restores_by_plan_total", "plan", "Restores, by the methods of their plans.",
           &st->plans);
    head(b, "counter", "restore_layers_total", "Restored layers, by method.");
    labelled(b, "restore_layers_total", "method", "recompute", st->layers_recompute);
    labelled(b, "restore_layers_total", "method", "hidden", st->layers_hidden);
    labelled(b, "restore_layers_total", "method", "kv", st->layers_kv);
    metric(b, "counter", "restore_bytes_total", "Bytes read by restores.",
           (double)st->restored_bytes);
    histogram(b, "restore_seconds", "Measured time of restores.", &st->restore);
    histogram(b, "restore_predicted_seconds", "Predicted time of restores.",
              &st->restore_predicted);
    counts(b, "restore_predictions_missed_total", "cause",
           "Restores that took less than half or more than twice the predicted time.",
           &st->surprises);
    counts(b, "restore_stalls_total", "end",
           "Restores whose reads hung or crawled, by how they ended.", &st->stalls);
    metric(b, "counter", "restore_wait_seconds_total",
           "Restore time in which compute waited for I/O (bubbles).", st->restore_wait_s);
    metric(b, "gauge", "restore_bubble_share",
           "Share of restore time in which compute waited for I/O, since the start.",
           bubble_share(st));
    metric(b, "counter", "requests_missed_total",
           "Requests that restored fewer chunks than their prompt has.",
           (double)st->n_misses);
}

/* Prints what llama-server counts, too, under its names. */
static void llama_metrics(struct textbuf *b, const struct hcache_stats *st)
{
    const struct {
        const char *type, *name, *help;
        double v;
    } of[] = {
        {"counter", "prompt_tokens_total", "Prompt tokens that were computed.",
         (double)st->computed_tokens},
        {"counter", "prompt_tokens_cached_total", "Prompt tokens that were not.",
         (double)(st->device_tokens + st->restored_tokens)},
        {"counter", "tokens_predicted_total", "Generated tokens.",
         (double)st->generated_tokens},
        {"counter", "tokens_predicted_seconds_total", "Time between generated tokens.",
         st->tbt.sum_s},
        {"gauge", "requests_processing", "Sequences in the engine.", st->n_running},
        {"gauge", "requests_deferred", "Requests that wait for a place.", st->n_waiting},
    };
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        textbuf_addf(b, "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s %s\nllamacpp:%s %.17g\n",
                     of[i].name, of[i].help, of[i].name, of[i].type, of[i].name, of[i].v);
}

static void saving_metrics(struct textbuf *b, const struct hcache_cache_stats *k,
                           int64_t idle_ttl_s)
{
    metric(b, "gauge", "store_saves",
           "1: state is being saved; 0: no store, a fault, or a full disk.",
           k->tier != NULL && k->saving_fault == 0);
    metric(b, "gauge", "pins", "Contexts with a lasting pin, guaranteed ones included.",
           (double)k->n_pins);
    metric(b, "gauge", "idle_ttl_seconds",
           "Time without use after which chunks are evicted; 0: there is none.",
           (double)idle_ttl_s);
    metric(b, "gauge", "expiring_chunks", "Chunks with a time to live.",
           (double)k->n_expiring);
    metric(b, "gauge", "guarantees", "Guaranteed contexts: pins that are never broken.",
           (double)k->n_guarantees);
    metric(b, "gauge", "guaranteed_bytes",
           "Bytes of guaranteed state, which is never evicted.",
           (double)k->guaranteed_bytes);
    metric(b, "gauge", "guarantee_limit_bytes", "Bound on guaranteed bytes; 0: none.",
           (double)k->guarantee_limit_bytes);
    metric(b, "counter", "guarantees_broken_total",
           "Guarantees broken by damage on the disk.", (double)k->n_guarantees_broken);
}

static void store_metrics(struct textbuf *b, const struct hcache_stats *st,
                          const struct hcache_cache_stats *k)
{
    counts(b, "misses_total", "reason", "Look-ups that missed chunks, by reason.",
           &k->misses);
    counts(b, "evictions_total", "reason", "Chunks removed from the store, by reason.",
           &k->evictions);
    metric(b, "counter", "checksum_failures_total", "Records whose checksum was wrong.",
           (double)k->n_checksum_failures);
    metric(b, "counter", "read_failures_total", "Records that could not be read.",
           (double)k->n_read_failures);
    metric(b, "gauge", "store_bytes", "Bytes of saved state.", (double)k->used_bytes);
    metric(b, "gauge", "store_cap_bytes", "Bound on saved state; 0: none.",
           (double)k->cap_bytes);
    metric(b, "counter", "store_read_bytes_total", "Bytes read from the store.",
           (double)k->read_bytes);
    metric(b, "counter", "store_written_bytes_total", "Bytes written to the store.",
           (double)k->appended_bytes);
    counts(b, "saves_ended_total", "reason",
           "Sequences whose saving ended early, by reason.", &st->saves_ended);
    head(b, "counter", "saved_chunks_total",
         "Chunks made durable: written, or already in the store (shared).");
    labelled(b, "saved_chunks_total", "how", "written",
             st->saved_chunks - st->shared_chunks);
    labelled(b, "saved_chunks_total", "how", "shared", st->shared_chunks);
    metric(b, "counter", "saved_tails_total",
           "Saved partial chunks, at the ends of sessions.", (double)st->saved_tails);
    metric(b, "gauge", "save_buffer_bytes", "Memory for chunks on their way to the store.",
           (double)st->save_buffer_bytes);
    metric(b, "gauge", "save_buffer_used_bytes",
           "Used memory for chunks on their way to the store.",
           (double)st->save_buffer_used_bytes);
}

static void dram_metrics(struct textbuf *b, const struct hcache_dram *d)
{
    if (d->cap_bytes == 0)
        return;
    metric(b, "gauge", "dram_bytes", "Used memory for copies of saved state.",
           (double)d->used_bytes);
    metric(b, "gauge", "dram_cap_bytes", "Memory reserved for copies of saved state.",
           (double)d->cap_bytes);
    metric(b, "gauge", "dram_chunks", "Chunks with a copy in memory.", (double)d->n_chunks);
    head(b, "counter", "dram_copies_total",
         "Copies made when chunks were written, or promoted from the disk.");
    labelled(b, "dram_copies_total", "how", "written", d->n_written);
    labelled(b, "dram_copies_total", "how", "promoted", d->n_promoted);
    metric(b, "counter", "dram_promoted_bytes_total",
           "Bytes read from the disk ahead for waiting requests.",
           (double)d->promoted_bytes);
    metric(b, "counter", "dram_promotions_unused_total",
           "Promoted copies that were dropped before a request read them.",
           (double)d->n_unused);
    metric(b, "counter", "dram_demotions_total",
           "Chunks whose copies were dropped to keep room.", (double)d->n_demoted);
    metric(b, "counter", "dram_full_total", "Copies not made because there was no room.",
           (double)d->n_full);
    metric(b, "counter", "dram_read_bytes_total", "Bytes that restores read from copies.",
           (double)d->read_bytes);
}

static void remote_metrics(struct textbuf *b, const struct hcache_stats *st,
                           const struct hcache_remote *r)
{
    if (r->url[0] == 0)
        return;
    metric(b, "gauge", "remote_up", "1: the remote answers.", r->is_up);
    metric(b, "gauge", "remote_full", "1: the remote is up, but full: it takes no writes.",
           r->is_full);
    metric(b, "counter", "remote_tokens_total",
           "Prompt tokens whose state was fetched from the remote.",
           (double)st->remote_tokens);
    metric(b, "counter", "remote_fetches_total", "Look-ups that asked the remote.",
           (double)r->n_fetches);
    metric(b, "counter", "remote_round_trips_total",
           "Round trips to the remote for which a look-up waited.",
           (double)r->n_round_trips);
    counts(b, "remote_misses_total", "reason",
           "Look-ups that got fewer chunks from the remote than they asked for, by reason.",
           &r->misses);
    metric(b, "counter", "remote_fetched_chunks_total",
           "Chunks fetched from the remote and verified.", (double)r->n_fetched);
    metric(b, "counter", "remote_fetched_bytes_total",
           "Bytes of chunks fetched from the remote.", (double)r->fetched_bytes);
    head(b, "counter", "remote_offered_chunks_total",
         "Chunks offered to the remote, by result.");
    labelled(b, "remote_offered_chunks_total", "end", "written", r->n_written);
    labelled(b, "remote_offered_chunks_total", "end", "known", r->n_known);
    labelled(b, "remote_offered_chunks_total", "end", "dropped", r->n_dropped);
    labelled(b, "remote_offered_chunks_total", "end", "gone", r->n_gone);
    labelled(b, "remote_offered_chunks_total", "end", "refused", r->n_refused);
    metric(b, "counter", "remote_written_bytes_total", "Bytes written to the remote.",
           (double)r->written_bytes);
    metric(b, "gauge", "remote_queued_chunks",
           "Chunks that wait to be written to the remote.", (double)r->n_queued);
    metric(b, "counter", "remote_failures_total", "Connections to the remote that failed.",
           (double)r->n_failures);
    metric(b, "gauge", "remote_erasures_to_publish",
           "Erasures not yet published to other servers.", (double)r->n_unpublished);
    metric(b, "gauge", "remote_erasures_behind",
           "Erasures that some running server has not carried out yet.",
           (double)(r->n_erasures - r->n_erasures_everywhere));
    metric(b, "gauge", "remote_servers", "Servers that use the remote now.",
           (double)r->n_servers);
    metric(b, "gauge", "remote_latency_seconds", "Recent latency of the remote.",
           r->latency_s);
    metric(b, "gauge", "remote_bytes_per_second", "Recent bandwidth of the remote.",
           r->bytes_per_s);
}

static void answer_metrics(struct textbuf *b, struct answers *m)
{
    struct answers_stats st;
    answers_stats(m, &st);
    metric(b, "gauge", "answers_kept", "Answers whose tokens are remembered.",
           st.n_entries);
    metric(b, "counter", "answers_recognised_total",
           "Chats for which remembered tokens of earlier answers were used.",
           (double)st.n_used);
    metric(b, "counter", "retokenised_total",
           "Chats for which remembered tokens of earlier answers could not be used.",
           (double)st.n_unusable);
}

static void http_metrics(struct textbuf *b, struct server *s)
{
    static const char *const threads[] = {
        [CALL_HTTP] = "http", [CALL_DISK] = "disk", [CALL_TEXT] = "text"};
    static const char *const classes[] = {"", "1xx", "2xx", "3xx", "4xx", "5xx"};
    metric(b, "gauge", "http_connections", "Open connections.",
           atomic_load(&s->n_connections));
    metric(b, "gauge", "http_requests_active", "Requests not answered yet.",
           atomic_load(&s->n_active));
    metric(b, "counter", "http_requests_total", "Requests.",
           (double)atomic_load(&s->n_requests));
    head(b, "counter", "http_requests_answered_total",
         "Requests, by the kind of thread that answered.");
    for (int i = 0; i < N_CALL_THREADS; i++)
        labelled(b, "http_requests_answered_total", "thread", threads[i],
                 atomic_load(&s->n_by_thread[i]));
    metric(b, "gauge", "http_turn_cpu_seconds_max",
           "Most processor time that an HTTP thread took between two waits.",
           (double)loops_longest_ns(s->loops) * 1e-9);
    metric(b, "gauge", "http_body_bytes",
           "Bytes of request bodies and their parsed values.",
           (double)atomic_load(&s->body_bytes));
    metric(b, "counter", "wrong_keys_total", "Requests with a wrong API key.",
           (double)guesses_count(s->guesses));
    head(b, "counter", "http_responses_total", "Responses, by status.");
    for (int i = 1; i <= 5; i++)
        labelled(b, "http_responses_total", "status", classes[i],
                 atomic_load(&s->n_status[i]));
}

void metrics_of_tenant(struct textbuf *b, const struct tenant_counts *t)
{
    static const char *const ends[] = {[ANSWER_DONE] = "done",
                                       [ANSWER_CANCELLED] = "cancelled",
                                       [ANSWER_FAILED] = "failed",
                                       [ANSWER_TIMEOUT] = "timeout"};
    metric(b, "counter", "http_requests_total", "Requests.", (double)t->n_http);
    metric(b, "gauge", "requests_open", "Sequences of this key that wait or run.",
           (double)t->n_open);
    head(b, "counter", "requests_total", "Ended sequences, by how they ended.");
    for (int i = 0; i < ANSWER_ENDS; i++)
        labelled(b, "requests_total", "end", ends[i], t->n_ended[i]);
    head(b, "counter", "prompt_tokens_total",
         "Prompt tokens, by the source of their state.");
    labelled(b, "prompt_tokens_total", "source", "device", t->device_tokens);
    labelled(b, "prompt_tokens_total", "source", "restored", t->restored_tokens);
    labelled(b, "prompt_tokens_total", "source", "computed", t->computed_tokens);
    metric(b, "counter", "generated_tokens_total", "Generated tokens.",
           (double)t->generated_tokens);
    metric(b, "counter", "restores_total", "Requests with restored state.",
           (double)t->n_restores);
    metric(b, "counter", "restore_bytes_total", "Bytes read by restores.",
           (double)t->restored_bytes);
    metric(b, "counter", "requests_missed_total",
           "Requests that restored fewer chunks than their prompt has.",
           (double)t->n_misses);
}

static void step_metrics(struct textbuf *b, const struct hcache *h)
{
    int layer, n_layers;
    if (!hcache_step_progress(h, &layer, &n_layers))
        return;
    metric(b, "gauge", "step_layer", "The layer that the present step has reached.", layer);
    metric(b, "gauge", "step_layers", "The layers of a step.", n_layers);
}

void metrics_of_engine(struct textbuf *b, const struct hcache_stats *st,
                       const struct hcache_cache_stats *k, int64_t idle_ttl_s)
{
    request_metrics(b, st);
    token_metrics(b, st, k);
    restore_metrics(b, st);
    saving_metrics(b, k, idle_ttl_s);
    store_metrics(b, st, k);
    dram_metrics(b, &k->dram);
    remote_metrics(b, st, &k->remote);
    llama_metrics(b, st);
}

void metrics_of_advice(struct textbuf *b, const struct hcache_advice a[HCACHE_ADVICES])
{
    head(b, "gauge", "used_within_contexts",
         "Saved contexts whose last use is at most this time ago.");
    for (int i = 0; i < HCACHE_ADVICES; i++)
        labelled(b, "used_within_contexts", "time", a[i].within, a[i].contexts);
    head(b, "gauge", "used_within_bytes",
         "Bytes of saved state whose last use is at most this time ago.");
    for (int i = 0; i < HCACHE_ADVICES; i++)
        labelled(b, "used_within_bytes", "time", a[i].within, a[i].bytes);
}

static void advice_metrics(struct textbuf *b, struct server *s)
{
    struct hcache_advice a[HCACHE_ADVICES];
    pthread_mutex_lock(&s->advice_lock);
    memcpy(a, s->advice, sizeof a);
    pthread_mutex_unlock(&s->advice_lock);
    if (a[0].within != NULL)
        metrics_of_advice(b, a);
}

static void models_metrics(struct textbuf *b, struct models *m)
{
    struct models_stats st;
    models_stats(m, &st);
    metric(b, "gauge", "models_loaded", "Models in memory.", st.n_loaded);
    metric(b, "gauge", "models_bytes", "Memory planned for loaded models.",
           (double)st.bytes);
    metric(b, "gauge", "models_limit_bytes", "Bound on the memory of loaded models.",
           (double)st.bound_bytes);
    metric(b, "counter", "model_loads_total", "Times that a model was loaded.",
           (double)st.n_loads);
    metric(b, "counter", "model_unloads_total", "Times that a model was unloaded.",
           (double)st.n_unloads);
    metric(b, "counter", "model_failures_total", "Models that could not be loaded.",
           (double)st.n_failed);
    metric(b, "counter", "model_load_seconds_total", "Time of all loadings.", st.load_s);
}

static void all_metrics(struct textbuf *b, struct call *c)
{
    struct hcache_stats st;
    struct hcache_cache_stats k;
    http_metrics(b, c->s);
    if (call_model(c) == NULL)
        return;
    call_stats(c, &st);
    hcache_cache_stats(call_model(c), NULL, &k);
    metrics_of_engine(b, &st, &k, c->s->o.idle_ttl_s);
    advice_metrics(b, c->s);
    answer_metrics(b, c->s->answers);
    if (c->s->models != NULL)
        models_metrics(b, c->s->models);
    else
        step_metrics(b, call_model(c));
}

static void tenant_metrics(struct textbuf *b, struct call *c)
{
    struct tenant_counts t;
    tenants_read(c->s->tenants, auth_tenant(c->s->auth, c->salt), &t);
    metrics_of_tenant(b, &t);
}

void api_metrics(struct call *c)
{
    struct textbuf b = {0};
    if (auth_sees_all(c->s->auth, c->salt))
        all_metrics(&b, c);
    else
        tenant_metrics(&b, c);
    call_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", b.p);
    textbuf_free(&b);
}
