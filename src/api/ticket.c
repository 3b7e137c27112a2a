/* ticket.c - see ticket.h: text and stop strings, log-probabilities, the result. */
#include "api/ticket.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/form.h"
#include "base/minmax.h"
#include "api/miss.h"

/* --- text ------------------------------------------------------------------------------------- */

/* Returns how many bytes at the end of the text are the beginning of a stop string. */
static size_t held_back(const char *text, size_t n, const char *stop, size_t stop_bytes)
{
    size_t most = MIN(stop_bytes - 1, n);
    for (size_t k = most; k > 0; k--) {
        if (memcmp(text + n - k, stop, k) == 0)
            return k;
    }
    return 0;
}

bool ticket_scan_stop(const char *text, size_t n_old, size_t *n_text, char *const *stop,
                      const size_t *stop_bytes, int n_stop, size_t *n_visible)
{
    size_t first = *n_text, held = 0;
    for (int i = 0; i < n_stop; i++) {
        /* a stop string may have begun in the text before n_old */
        size_t back = stop_bytes[i] - 1;
        size_t from = n_old - MIN(n_old, back);
        const char *hit = memmem(text + from, *n_text - from, stop[i], stop_bytes[i]);
        if (hit != NULL && (size_t)(hit - text) < first)
            first = (size_t)(hit - text);
        size_t h = held_back(text, *n_text, stop[i], stop_bytes[i]);
        held = MAX(h, held);
    }
    bool found = first < *n_text;
    *n_text = first;
    *n_visible = found ? first : first - held;
    return found;
}

void ticket_append(struct hcache_ticket *t, const char *text, size_t n)
{
    size_t n_old = t->n_text;
    if (t->stopped || n == 0)
        return;
    if (n_old + n + 1 > t->text_cap) {
        t->text_cap = 2 * (n_old + n + 1);
        t->text = xrealloc(t->text, t->text_cap);
    }
    memcpy(t->text + n_old, text, n);
    t->n_text += n;
    t->stopped = ticket_scan_stop(t->text, n_old, &t->n_text, t->stop, t->stop_bytes,
                                  t->n_stop, &t->n_visible);
    t->text[t->n_text] = 0;
}

void ticket_special(struct hcache_ticket *t, int32_t id)
{
    if (t->stopped)
        return;
    if (t->n_special == t->special_cap) {
        t->special_cap = 2 * t->special_cap + 8;
        t->special = xrealloc(t->special, (size_t)t->special_cap * sizeof *t->special);
    }
    t->special[t->n_special++] = (struct hcache_special){t->n_text, id};
}

/* --- log-probabilities ------------------------------------------------------------------------ */

static bool is_likelier(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

void ticket_logprobs(const float *logits, int n_vocab, int32_t chosen, int n_top,
                     struct hcache_logprob *out)
{
    struct hcache_logprob *top = out + 1;
    int n = 0;
    float max = -INFINITY;
    double sum = 0;
    for (int i = 0; i < n_vocab; i++)
        max = MAX(logits[i], max);
    for (int i = 0; i < n_vocab; i++)
        sum += exp((double)(logits[i] - max));
    float log_sum = max + (float)log(sum);
    /* Each token is inserted into a short sorted list. */
    for (int32_t i = 0; n_top > 0 && i < n_vocab; i++) {
        if (n == n_top && !is_likelier(logits, i, top[n - 1].id))
            continue;
        int at = n < n_top ? n++ : n - 1;
        for (; at > 0 && is_likelier(logits, i, top[at - 1].id); at--)
            top[at] = top[at - 1];
        top[at].id = i;
    }
    /* a vocabulary smaller than n_top leaves places empty */
    for (int i = n; i < n_top; i++)
        top[i] = (struct hcache_logprob){.id = -1};
    for (int i = 0; i < n; i++)
        top[i].logprob = logits[top[i].id] - log_sum;
    out[0] = (struct hcache_logprob){.id = chosen, .logprob = logits[chosen] - log_sum};
}

/* --- the result ------------------------------------------------------------------------------- */

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

static void describe_plan(const struct plan *p, struct hcache_plan *out)
{
    *out = (struct hcache_plan){0};
    if (p->n_layers == 0)
        return;
    out->recompute = p->n_r;
    out->hidden = p->n_h;
    out->kv = p->n_k;
    out->predicted_ms = p->restore_s * 1e3;
    snprintf(out->layers, sizeof out->layers, "%s", p->method);
    snprintf(out->reason, sizeof out->reason, "%s", p->reason);
}

static const char *finish_name(const struct hcache_ticket *t, enum finish f)
{
    if (f == FINISH_EOS || t->stopped)
        return "stop";
    if (f == FINISH_TIMEOUT)
        return "timeout";
    return f == FINISH_CANCELLED || f == FINISH_NONE ? "cancelled" : "length";
}

static void describe_timings(const struct outcome *o, int64_t queue_ns,
                             struct hcache_timings *t)
{
    *t = (struct hcache_timings){.queue_ms = ms(queue_ns),
                                 .lookup_ms = ms(o->lookup_ns),
                                 .plan_ms = ms(o->plan_ns),
                                 .restore_ms = ms(o->restore_ns),
                                 .prefill_ms = ms(o->prefill_ns),
                                 .ttft_ms = ms(o->ttft_ns),
                                 .decode_ms = ms(o->decode_ns),
                                 .restore_io_ms = ms(o->restore.io_ns),
                                 .restore_compute_ms = ms(o->restore.compute_ns),
                                 .restore_wait_ms = ms(o->restore.wait_ns),
                                 .fused_ms = ms(o->restore.prefill_ns),
                                 .bubble = o->restore.bubble};
    if (o->ttft_ns > 0)
        t->ttft_ms += t->queue_ms;
    if (o->n_generated > 1 && o->decode_ns > 0)
        t->decode_tokens_per_s = (o->n_generated - 1) / ((double)o->decode_ns * 1e-9);
}

/* Fills in the shown text and its tokens. There is no text if the model has no tokenizer. */
static int describe_text(const struct hcache_ticket *t, struct hcache_result *r,
                         struct err *err)
{
    r->token_ids = mem_try(((size_t)t->n_ids + 1) * sizeof *r->token_ids);
    if (t->stream != NULL)
        r->text = mem_try(t->n_text + 1);
    r->special = mem_try(((size_t)t->n_special + 1) * sizeof *r->special);
    if (r->token_ids == NULL || r->special == NULL ||
        (t->stream != NULL && r->text == NULL))
        return err_set(err, -ENOMEM, "no memory for an answer of %d tokens", t->n_ids);
    memcpy(r->token_ids, t->ids, (size_t)t->n_ids * sizeof *r->token_ids);
    r->n_tokens = t->n_ids;
    if (t->stream == NULL)
        return 0;
    memcpy(r->text, t->text, t->n_text);
    r->text[t->n_text] = 0;
    r->n_text = t->n_text;
    while (r->n_special < t->n_special && t->special[r->n_special].at <= t->n_text)
        r->n_special++;
    if (r->n_special > 0)
        memcpy(r->special, t->special, (size_t)r->n_special * sizeof *r->special);
    return 0;
}

void ticket_describe(struct hcache_ticket *t)
{
    struct hcache_result *r = &t->result;
    *r = (struct hcache_result){.prompt_tokens = t->req.n_prompt, .finish = "cancelled"};
    if (describe_text(t, r, &t->err) != 0)
        return;
    if (t->seq == NULL) { /* the request never ran */
        r->timings.queue_ms = ms(t->t_admit - t->t_submit);
        return;
    }
    const struct outcome *o = seq_outcome(t->seq);
    r->finish = finish_name(t, o->finish);
    r->cached_tokens = o->n_cached;
    r->device_tokens = o->n_device;
    r->n_preempted = o->n_preempted;
    r->committed_tokens = seq_committed_tokens(t->seq);
    if (seq_save_end(t->seq) != SAVE_GOES_ON)
        r->save_stopped = save_end_text(seq_save_end(t->seq));
    const struct truncation *tr = &t->req.truncation;
    r->truncated_tokens = o->truncation.n_dropped;
    r->recomputed_tokens = o->truncation.n_computed_again;
    r->truncation.context = tr->context;
    r->truncation.step = tr->step;
    r->truncation.keep = tr->keep;
    r->truncation.steps = o->truncation.n_steps;
    r->truncation.stall_ms = ms(o->truncation.stall_ns);
    r->logits_digest = o->logits_digest;
    r->restored_bytes = o->restore.read_bytes;
    r->restored_dram_bytes = o->restore.dram_bytes;
    r->restored_page_cache_bytes = o->restore.page_cache_bytes;
    r->restored_staged_bytes = o->restore.staged_bytes;
    int restored = r->cached_tokens - r->device_tokens;
    /* A truncated context may have cached tokens that no restored view contains. They count as
     * tokens from DRAM if all restored bytes came from DRAM. */
    bool is_all_dram = r->restored_dram_bytes > 0 &&
                       r->restored_dram_bytes == r->restored_bytes;
    r->dram_tokens = o->restore.dram_tokens < restored && !is_all_dram
                         ? o->restore.dram_tokens
                         : restored;
    r->remote_tokens = MIN(o->n_remote, r->cached_tokens);
    snprintf(r->miss, sizeof r->miss, "%s", o->miss);
    if (o->differs_at > 0 && strcmp(o->miss, STORE_WHY_ABSENT) == 0) {
        r->differs_at = o->differs_at;
        miss_text(t->tokenizer, t->prompt, t->req.n_prompt, o->differs_at, r->miss,
                  sizeof r->miss);
    }
    describe_plan(&o->plan, &r->plan);
    snprintf(r->plan.surprise, sizeof r->plan.surprise, "%s", surprise_name(o->surprise));
    if (r->plan.layers[0] != 0)
        seq_take_lanes(t->seq, &r->predicted, &r->measured);
    describe_timings(o, t->t_admit - t->t_submit, &r->timings);
}

void ticket_destroy(struct hcache_ticket *t)
{
    tokenizer_stream_destroy(t->stream);
    hcache_result_free(&t->result);
    for (int i = 0; i < t->n_stop; i++)
        free(t->stop[i]);
    free((void *)t->shaping.bias);
    free((void *)t->shaping.stop_ids);
    form_release(t->form);
    free(t->prompt);
    free(t->salt);
    free(t->plan);
    free(t->ids);
    free(t->logprobs);
    free(t->text);
    free(t->special);
    free(t->piece);
    free(t->piece_special);
    free(t);
}
