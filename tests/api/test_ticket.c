/* test_ticket.c - stop strings and log-probabilities of a request. */
#include "tests/unit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/seq.h"
#include "api/ticket.h"

static size_t largest = SIZE_MAX; /* bytes of the largest allocation that succeeds */

bool mem_test_denies(size_t n, enum mem_ask ask)
{
    (void)ask;
    return n > largest;
}

/* The pieces of `pieces`, separated by '|', arrive one after another. `visible` has the text that
 * becomes visible after each piece. */
static void scan(const char *pieces, const char *stop, const char *visible, bool stops)
{
    char text[200], seen[200] = "";
    size_t n = 0, n_visible = 0, stop_bytes = strlen(stop);
    bool found = false;
    for (const char *p = pieces; *p != 0 && !found;) {
        size_t n_piece = strcspn(p, "|"), n_old = n, shown = n_visible;
        memcpy(text + n, p, n_piece);
        n += n_piece;
        found = ticket_scan_stop(text, n_old, &n, &stop, &stop_bytes, 1, &n_visible);
        assert_true(n_visible >= shown && n_visible <= n);
        strncat(seen, text + shown, n_visible - shown);
        strcat(seen, "|");
        p += n_piece + (p[n_piece] == '|');
    }
    assert_string_equal(seen, visible);
    assert_int_equal(found, stops);
}

TEST(stop_strings_end_the_text)
{
    scan("ab|cd", "xy", "ab|cd|", false);
    scan("abxy", "xy", "ab|", true);
    scan("ab|x|y|c", "xy", "ab|||", true); /* a stop string across pieces */
    /* "x" is held back, and shown when no stop string follows */
    scan("ab|x|z", "xy", "ab||xz|", false);
    scan("aa|ab", "aab", "|a|", true); /* a stop string that overlaps itself */
    scan("a|a|a|b", "aab", "||a||", true);
    scan("xyxy", "xy", "|", true); /* the first occurrence ends the text */
    scan("1|2|3|4", "34", "1|2|||", true);
    scan("abab|abac", "abac", "ab|ab|", true);
}

TEST(the_earliest_of_several_stops)
{
    const char *stop[] = {"later", "soon"};
    size_t bytes[] = {5, 4}, n = strlen("go soon or later"), visible;
    assert_true(ticket_scan_stop("go soon or later", 0, &n, stop, bytes, 2, &visible));
    assert_int_equal(n, 3);
    assert_int_equal(visible, 3);
}

TEST(no_stops_show_everything)
{
    size_t n = 3, visible = 0;
    assert_false(ticket_scan_stop("abc", 0, &n, NULL, NULL, 0, &visible));
    assert_int_equal(visible, 3);
}

TEST(logprobs_are_normalized_and_sorted)
{
    const float logits[] = {1, 3, 2, 3, -INFINITY, 0};
    struct hcache_logprob lp[7];
    engine_logprobs(logits, 6, 2, 6, lp);
    const int32_t order[] = {2, 1, 3, 2, 0, 5, 4};
    double sum = 0;
    for (int i = 0; i < 7; i++)
        assert_int_equal(lp[i].id, order[i]);
    for (int i = 1; i < 7; i++)
        sum += exp((double)lp[i].logprob);
    assert_true(fabs(sum - 1) < 1e-6);
    assert_true(lp[0].logprob == lp[3].logprob);
    engine_logprobs(logits, 6, 0, 0, lp);
    assert_int_equal(lp[0].id, 0);
}

TEST(a_small_vocabulary_leaves_places_empty)
{
    const float logits[] = {0, 1};
    struct hcache_logprob lp[5];
    engine_logprobs(logits, 2, 0, 4, lp);
    assert_int_equal(lp[1].id, 1);
    assert_int_equal(lp[2].id, 0);
    assert_int_equal(lp[3].id, -1);
    assert_int_equal(lp[4].id, -1);
}

/* --- the result ------------------------------------------------------------------------------- */

enum { N_PROMPT = 900, N_IDS = 3, MS = 1000000 };

static struct seq_shared shared; /* has no store */
static struct seq seq;
static struct request request;
static int32_t ids[N_IDS] = {7, 8, 9};

/* Makes a ticket whose sequence has ended. Every figure differs from all others. */
static struct hcache_ticket ended_ticket(void)
{
    request = (struct request){.ask.n_prompt = N_PROMPT};
    struct hcache_ticket t = {.req = &request,
                              .ids = ids,
                              .n_ids = N_IDS,
                              .seq = &seq,
                              .t_submit = 100 * MS,
                              .t_admit = 101 * MS};
    seq = (struct seq){.shared = &shared};
    seq.out = (struct outcome){
        .finish = FINISH_LENGTH, .n_stored = 512, .surprise = SURPRISE_READS};
    seq.out.r = (struct hcache_result){.prompt_tokens = N_PROMPT,
                                       .n_tokens = N_IDS,
                                       .cached_tokens = 640,
                                       .device_tokens = 128,
                                       .remote_tokens = 192,
                                       .n_preempted = 2,
                                       .truncated_tokens = 11,
                                       .recomputed_tokens = 12,
                                       .truncation = {.context = 512,
                                                      .step = 128,
                                                      .keep = 64,
                                                      .steps = 13,
                                                      .stall_ms = 14},
                                       .logits_digest = 77,
                                       .miss = "the reason",
                                       .timings = {.lookup_ms = 2,
                                                   .plan_ms = 3,
                                                   .restore_ms = 4,
                                                   .prefill_ms = 5,
                                                   .ttft_ms = 6,
                                                   .decode_ms = 8}};
    seq.out.restore = (struct restore_result){.read_bytes = 1000,
                                              .dram_bytes = 300,
                                              .page_cache_bytes = 250,
                                              .dram_tokens = 64,
                                              .io_ns = 15 * MS,
                                              .compute_ns = 16 * MS,
                                              .wait_ns = 17 * MS,
                                              .prefill_ns = 18 * MS,
                                              .bubble = 0.25};
    seq.out.plan = (struct plan){.n_layers = 6,
                                 .method = "RHHKKK",
                                 .n_r = 1,
                                 .n_h = 2,
                                 .n_k = 3,
                                 .predicted_s = 9,
                                 .restore_s = 0.019,
                                 .reason = "why"};
    return t;
}

static void assert_near(double x, double want)
{
    assert_true(fabs(x - want) < 1e-9);
}

TEST(the_result_has_each_figure_of_the_sequence)
{
    struct hcache_ticket t = ended_ticket();
    const struct hcache_result *r = &t.result;
    ticket_describe(&t, "disk", 0);
    assert_int_equal(t.err.code, 0);
    assert_null(r->text); /* without a tokenizer there is no text */
    assert_int_equal(r->n_tokens, N_IDS);
    assert_memory_equal(r->token_ids, ids, sizeof ids);
    assert_string_equal(r->finish, "length");
    assert_int_equal(r->prompt_tokens, N_PROMPT);
    assert_int_equal(r->cached_tokens, 640);
    assert_int_equal(r->device_tokens, 128);
    assert_int_equal(r->n_preempted, 2);
    assert_int_equal(r->committed_tokens, 512);
    assert_null(r->save_stopped);
    assert_int_equal(r->truncated_tokens, 11);
    assert_int_equal(r->recomputed_tokens, 12);
    assert_int_equal(r->truncation.context, 512);
    assert_int_equal(r->truncation.step, 128);
    assert_int_equal(r->truncation.keep, 64);
    assert_int_equal(r->truncation.steps, 13);
    assert_near(r->truncation.stall_ms, 14);
    assert_int_equal(r->logits_digest, 77);
    assert_int_equal(r->restored_bytes, 1000);
    assert_int_equal(r->restored_dram_bytes, 300);
    assert_int_equal(r->restored_page_cache_bytes, 250);
    assert_int_equal(r->dram_tokens, 64);
    assert_int_equal(r->remote_tokens, 192);
    assert_string_equal(r->miss, "the reason");
    assert_int_equal(r->plan.recompute, 1);
    assert_int_equal(r->plan.hidden, 2);
    assert_int_equal(r->plan.kv, 3);
    assert_string_equal(r->plan.layers, "RHHKKK");
    assert_near(r->plan.predicted_ms, 19); /* the prediction for the restore alone */
    assert_string_equal(r->plan.surprise, "reads");
    assert_string_equal(r->plan.reason, "why");
    const struct hcache_timings *ms = &r->timings;
    assert_near(ms->load_ms, 0);
    assert_near(ms->queue_ms, 1);
    assert_near(ms->lookup_ms, 2);
    assert_near(ms->plan_ms, 3);
    assert_near(ms->restore_ms, 4);
    assert_near(ms->prefill_ms, 5);
    assert_near(ms->ttft_ms, 6 + 1); /* with the time in the queue */
    assert_near(ms->decode_ms, 8);
    assert_near(ms->decode_tokens_per_s, (N_IDS - 1) / 0.008);
    assert_near(ms->restore_io_ms, 15);
    assert_near(ms->restore_compute_ms, 16);
    assert_near(ms->restore_wait_ms, 17);
    assert_near(ms->fused_ms, 18);
    assert_near(ms->bubble, 0.25);
    hcache_result_free(&t.result);
}

/* Tokens from copies or from the remote count only as far as the tokens were restored. */
TEST(parts_are_no_more_than_the_whole)
{
    struct hcache_ticket t = ended_ticket();
    seq.out.restore.dram_tokens = 576;
    seq.out.r.remote_tokens = 704;
    seq.out.r.timings.ttft_ms = 0; /* no token was generated */
    seq.out.r.n_tokens = 1;
    seq.out.plan.n_layers = 0; /* no layer was restored */
    ticket_describe(&t, "disk", 0);
    assert_int_equal(t.result.dram_tokens, 512);
    assert_int_equal(t.result.remote_tokens, 640);
    assert_near(t.result.timings.ttft_ms, 0);
    assert_near(t.result.timings.decode_tokens_per_s, 0);
    assert_int_equal(t.result.plan.recompute + t.result.plan.hidden + t.result.plan.kv, 0);
    assert_string_equal(t.result.plan.layers, "");
    assert_string_equal(t.result.plan.reason, "");
    assert_near(t.result.plan.predicted_ms, 0);
    hcache_result_free(&t.result);
}

TEST(each_end_has_a_name)
{
    static const struct {
        enum finish finish;
        bool stopped;
        const char *name;
    } rows[] = {{FINISH_EOS, false, "stop"},        {FINISH_LENGTH, false, "length"},
                {FINISH_LENGTH, true, "stop"},      {FINISH_CANCELLED, true, "stop"},
                {FINISH_TIMEOUT, false, "timeout"}, {FINISH_CANCELLED, false, "cancelled"},
                {FINISH_NONE, false, "cancelled"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hcache_ticket t = ended_ticket();
        seq.out.finish = rows[i].finish;
        t.stopped = rows[i].stopped;
        ticket_describe(&t, "disk", 0);
        assert_string_equal(t.result.finish, rows[i].name);
        hcache_result_free(&t.result);
    }
    struct hcache_ticket t = ended_ticket();
    t.seq = NULL; /* the request never ran */
    t.n_ids = 0;
    ticket_describe(&t, "disk", 0);
    assert_string_equal(t.result.finish, "cancelled");
    assert_int_equal(t.result.prompt_tokens, N_PROMPT);
    assert_int_equal(t.result.n_tokens, 0);
    assert_int_equal(t.result.cached_tokens, 0);
    assert_near(t.result.timings.queue_ms, 1);
    hcache_result_free(&t.result);
}

/* The text grows piece by piece. Nothing is added after a stop string. */
TEST(text_ends_at_a_stop_string)
{
    struct request *q = request_create(
        &(struct hcache_request){.stop = &(const char *){"END"}, .n_stop = 1}, 0);
    struct hcache_ticket t = {.req = q};
    ticket_append(&t, "", 0);
    assert_null(t.text);
    char want[200] = "";
    for (int i = 0; i < 20; i++) {
        ticket_append(&t, "piece ", 6);
        strcat(want, "piece ");
        assert_string_equal(t.text, want);
        assert_int_equal(t.n_text, strlen(want));
        assert_int_equal(t.n_visible, strlen(want));
    }
    ticket_append(&t, "E", 1);
    assert_false(t.stopped);
    assert_int_equal(t.n_visible, strlen(want));
    ticket_append(&t, "ND and more", 11);
    assert_true(t.stopped);
    assert_string_equal(t.text, want);
    ticket_append(&t, "later", 5);
    assert_string_equal(t.text, want);
    assert_int_equal(t.n_visible, strlen(want));
    free(t.text);
    request_release(q);
}

/* A result's text has room for its bytes and a final zero. */
TEST(a_text_without_memory_is_a_fault)
{
    char text[] = "twenty-one characters";
    struct hcache_ticket t = {.req = &request,
                              .ids = ids,
                              .n_ids = N_IDS,
                              .stream = (struct tokenizer_stream *)(void *)text,
                              .text = text,
                              .n_text = sizeof text - 1};
    largest = sizeof text;
    ticket_describe(&t, "disk", 0);
    largest = SIZE_MAX;
    assert_int_equal(t.err.code, 0);
    assert_string_equal(t.result.text, text);
    assert_int_equal(t.result.n_text, 21);
    hcache_result_free(&t.result);
    largest = sizeof text - 1;
    ticket_describe(&t, "disk", 0);
    largest = SIZE_MAX;
    assert_int_equal(t.err.code, -ENOMEM);
    assert_string_equal(t.err.msg, "no memory for an answer of 3 tokens");
    assert_string_equal(t.result.finish, "cancelled");
    hcache_result_free(&t.result);
}
