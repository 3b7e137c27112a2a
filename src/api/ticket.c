/* ticket.c - see ticket.h: text and stop strings, log-probabilities, the result. */
#include "api/ticket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "grammar/form.h"

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

bool ticket_scan_stop(const char *text, size_t n_old, size_t *n_text,
                      const char *const *stop, const size_t *stop_bytes, int n_stop,
                      size_t *n_visible)
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
    const struct request *r = t->req;
    t->stopped = ticket_scan_stop(t->text, n_old, &t->n_text, r->ask.stop, r->stop_bytes,
                                  r->ask.n_stop, &t->n_visible);
    t->text[t->n_text] = 0;
}

void ticket_special(struct hcache_ticket *t, int32_t id)
{
    if (t->stopped)
        return;
    GROW(t->special, t->n_special, t->special_cap);
    t->special[t->n_special++] = (struct hcache_special){t->n_text, id};
}

/* --- the result ------------------------------------------------------------------------------- */

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

static void describe_timings(const struct outcome *o, struct hcache_timings *t)
{
    t->restore_io_ms = clock_ms(o->restore.io_ns);
    t->restore_compute_ms = clock_ms(o->restore.compute_ns);
    t->restore_wait_ms = clock_ms(o->restore.wait_ns);
    t->fused_ms = clock_ms(o->restore.prefill_ns);
    t->bubble = o->restore.bubble;
    if (t->ttft_ms > 0)
        t->ttft_ms += t->queue_ms;
    if (o->r.n_tokens > 1 && t->decode_ms > 0)
        t->decode_tokens_per_s = (o->r.n_tokens - 1) / (t->decode_ms * 1e-3);
}

/* Returns the tier from which the restored tokens came, or NULL if none were restored. `home` is
 * the store's own tier. */
static const char *tier_of(const struct hcache_result *r, const char *home)
{
    if (r->cached_tokens <= r->device_tokens)
        return NULL;
    if (r->restored_dram_bytes == 0)
        return home;
    return r->restored_dram_bytes == r->restored_bytes ? "dram" : "dram+disk";
}

/* Fills r's parts, which say from which tier how many tokens came. A truncated context may have
 * cached tokens that the restored view lacks. Then the parts do not add up, and r gets none. */
static void describe_parts(struct hcache_result *r, const struct restore_result *of,
                           const char *home)
{
    int n_tokens = 0;
    for (int i = 0; i < of->n_parts; i++)
        n_tokens += of->part[i].n_tokens;
    if (n_tokens != r->cached_tokens - r->device_tokens)
        return;
    for (int i = 0; i < of->n_parts && i < HCACHE_RESTORED_PARTS; i++) {
        const struct restore_part *p = &of->part[i];
        r->restored_part[r->n_restored_parts++] = (struct hcache_restored_part){
            p->n_tokens, !p->from_dram   ? home
                         : p->from_store ? "dram+disk"
                                         : "dram"};
    }
}

static void describe_restore(struct hcache_result *r, const struct outcome *o,
                             const char *home)
{
    r->restored_bytes = o->restore.read_bytes;
    r->restored_dram_bytes = o->restore.dram_bytes;
    r->restored_page_cache_bytes = o->restore.page_cache_bytes;
    int restored = r->cached_tokens - r->device_tokens;
    /* A truncated context may have cached tokens that no restored view contains. They count as
     * tokens from DRAM if all restored bytes came from DRAM. */
    bool is_all_dram = r->restored_dram_bytes > 0 &&
                       r->restored_dram_bytes == r->restored_bytes;
    r->dram_tokens = o->restore.dram_tokens < restored && !is_all_dram
                         ? o->restore.dram_tokens
                         : restored;
    r->remote_tokens = MIN(r->remote_tokens, r->cached_tokens);
    r->tier = tier_of(r, home);
    describe_parts(r, &o->restore, home);
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

void ticket_describe(struct hcache_ticket *t, const char *tier, double load_ms)
{
    struct hcache_result *r = &t->result;
    const struct hcache_request *ask = &t->req->ask;
    *r = (struct hcache_result){.prompt_tokens = ask->n_prompt};
    if (t->seq != NULL)
        seq_take_result(t->seq, r);
    r->finish = "cancelled";
    r->timings.load_ms = load_ms;
    if (describe_text(t, r, &t->err) != 0)
        return;
    r->timings.queue_ms = clock_ms(t->t_admit - t->t_submit);
    if (t->seq == NULL) /* the request never ran */
        return;
    const struct outcome *o = seq_outcome(t->seq);
    r->finish = finish_name(t, o->finish);
    r->committed_tokens = seq_committed_tokens(t->seq);
    if (seq_save_end(t->seq) != SAVE_GOES_ON)
        r->save_stopped = save_end_text(seq_save_end(t->seq));
    describe_restore(r, o, tier);
    if (r->differs_at <= 0 || strcmp(r->miss, STORE_WHY_ABSENT) != 0)
        r->differs_at = 0;
    else
        miss_text(t->tokenizer, ask->prompt, ask->n_prompt, r->differs_at, r->miss,
                  sizeof r->miss);
    describe_plan(&o->plan, &r->plan);
    snprintf(r->plan.surprise, sizeof r->plan.surprise, "%s", surprise_name(o->surprise));
    if (r->plan.layers[0] == 0) {
        free(r->predicted.span);
        free(r->measured.span);
        r->predicted = r->measured = (struct hcache_lanes){0};
    }
    describe_timings(o, &r->timings);
}

void ticket_destroy(struct hcache_ticket *t)
{
    tokenizer_stream_destroy(t->stream);
    hcache_result_free(&t->result);
    form_release(t->req->form);
    request_release(t->req);
    free(t->logprobs);
    free(t->text);
    free(t->special);
    free(t->piece);
    free(t->piece_special);
    free(t);
}

/* --- where the prompt differs ----------------------------------------------------------------- */

enum {
    MAX_TOKENS = 12, /* most tokens of the prompt that are shown */
    MAX_BYTES = 48,
};

/* Writes the whole characters of the tokens, without control characters and quotation marks. */
static size_t excerpt(const struct tokenizer *t, const int32_t *ids, int n, char *out)
{
    size_t at = 0, k;
    for (int i = 0; i < n && i < MAX_TOKENS && at < MAX_BYTES; i++) {
        const char *bytes = tokenizer_bytes(t, ids[i], &k);
        for (size_t b = 0; bytes != NULL && b < k && at < MAX_BYTES; b++) {
            bool is_plain = (unsigned char)bytes[b] >= ' ' && bytes[b] != '"' &&
                            bytes[b] != 0x7f;
            out[at++] = is_plain ? bytes[b] : ' ';
        }
    }
    /* Drops the last character, which may be cut. */
    while (at > 0 && ((unsigned char)out[at - 1] & 0xc0) == 0x80)
        at--;
    if (at > 0 && (unsigned char)out[at - 1] >= 0xc0)
        at--;
    return at;
}

void miss_text(const struct tokenizer *t, const int32_t *prompt, int n_prompt, int at,
               char *out, size_t n_out)
{
    char text[MAX_BYTES + 1];
    size_t n = t != NULL ? excerpt(t, prompt + at, n_prompt - at, text) : 0,
           used = strlen(out);
    if (n > 0)
        snprintf(out + used, n_out - used, ": the prompt differs at token %d: \"%.*s\"", at,
                 (int)n, text);
    else
        snprintf(out + used, n_out - used, ": the prompt differs at token %d", at);
}
