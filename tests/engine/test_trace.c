/* test_trace.c - what an engine does step by step, and what it reports of each request.
 *
 * The trace has each sequence's phase and tokens after each step, in an engine without a store, so
 * that nothing depends on time. Reports of requests with a store are taken one after another. Both
 * are compared with golden files (tests/base/golden.h). */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "engine/engine_impl.h"
#include "tests/base/golden.h"
#include "tests/engine/enginetest.h"

enum { N = 12, N_PROMPT = 330 };

static int32_t prompt[N][N_PROMPT];

/* Makes prompts. The odd ones begin alike. */
static void make_prompts(void)
{
    for (int i = 0; i < N; i++) {
        et_prompt(prompt[i], N_PROMPT, i % 2 ? 7 : 100 + (uint64_t)i);
        for (int j = 40 * i; i % 2 && j < N_PROMPT; j++)
            prompt[i][j] = 3 + (prompt[i][j] + i) % 400;
    }
}

static void tell_engine(struct textbuf *b, const struct stack *k)
{
    struct engine_stats st;
    engine_stats(k->engine, &st);
    textbuf_addf(
        b, "%d of %d blocks free, %d kept, %llu evicted, %llu preempted, %llu timed out",
        st.blocks_free, st.blocks, st.blocks_kept, (unsigned long long)st.n_evicted,
        (unsigned long long)st.n_preempted, (unsigned long long)st.n_timed_out);
    textbuf_addf(b, ", %llu recovered, %llu recomputed\n",
                 (unsigned long long)st.recovered_tokens,
                 (unsigned long long)st.recomputed_tokens);
}

static void tell_outcome(struct textbuf *b, int i, const struct seq *s)
{
    static const char *const ends[] = {"none",      "eos",     "length",
                                       "cancelled", "timeout", "error"};
    const struct outcome *o = seq_outcome(s);
    textbuf_addf(
        b,
        "%d: %s, %d + %d tokens, %d cached, %d on the device, %d stored, %d remote, "
        "preempted %d times, differs at %d",
        i, ends[o->finish], o->r.prompt_tokens, o->r.n_tokens, o->r.cached_tokens,
        o->r.device_tokens, o->n_stored, o->r.remote_tokens, o->r.n_preempted,
        o->r.differs_at);
    textbuf_addf(b, "; done %d, committed %lld; \"%s\"\n", seq_tokens_done(s),
                 (long long)seq_committed_tokens(s), o->r.miss);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Runs N requests that arrive every third step. Some have another priority, one is removed, one
 * comes to its deadline. The time that steps take is forgotten: prompts beside decodes get the
 * least number of rows. */
static void trace(struct textbuf *b, int max_seqs, int kv_tokens, bool reuse)
{
    static const char letters[] = "WRPD.";
    struct stack k;
    struct seq *s[N] = {NULL};
    struct err err = {0};
    int n_added = 0, n_active = 1;
    et_open(&k, &(struct stack_opts){.user.max_context = 512,
                                     .user.max_sequences = max_seqs,
                                     .user.kv_tokens = kv_tokens,
                                     .step_rows = 100,
                                     .user.no_reuse = !reuse});
    textbuf_addf(b, "%d places, %d tokens, reuse %d\n", max_seqs, kv_tokens, reuse);
    for (int step = 0; n_active > 0 || n_added < N; step++) {
        if (step % 3 == 0 && n_added < N) {
            int i = n_added++;
            const struct et_ask a = {.prompt = prompt[i],
                                     .n_prompt = 30 + 25 * i,
                                     .max_tokens = 10 + 17 * i % 60,
                                     .temperature = i % 3 ? 1.0f : 0.0f,
                                     .plan = i == 7 ? "recompute" : NULL,
                                     .salt = i == 9 ? "other" : NULL,
                                     .seed = (uint64_t)i};
            struct request *q = et_request(&k, &a);
            q->ask.priority = i == 5 ? -100 : i == 6 ? 100 : 0;
            assert_int_equal(et_submit(k.engine, q, &s[i], &err), 0);
        }
        if (step == 14) {
            engine_remove(k.engine, s[2]);
            s[2] = NULL;
        }
        if (step == 19)
            s[4]->req->deadline_ns = 1;
        k.engine->schedule.speed = (struct beside_speed){0};
        assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
        textbuf_addf(b, "%d:", step);
        for (int i = 0; i < n_added; i++)
            if (s[i] != NULL && s[i]->phase != PHASE_DONE)
                textbuf_addf(b, " %d%c%d", i, letters[s[i]->phase], s[i]->n_done);
        textbuf_addf(b, " | %d rows, %d free\n", k.engine->batch.n_rows,
                     kv_pool_free_blocks(engine_pool(k.engine)));
    }
    for (int i = 0; i < N; i++)
        if (s[i] != NULL) {
            tell_outcome(b, i, s[i]);
            engine_remove(k.engine, s[i]);
        }
    for (int from = 0; from < PHASES; from++)
        for (int to = 0; to < PHASES; to++)
            textbuf_addf(b, "%llu ",
                         (unsigned long long)k.engine->shared.n_edges[from][to]);
    tell_engine(b, &k);
    stack_close(&k);
}

TEST(steps_are_the_golden_ones)
{
    struct textbuf b = {0};
    make_prompts();
    trace(&b, 3, 14 * 64, true);
    trace(&b, 5, 9 * 64, false);
    trace(&b, 2, 8 * 64, true);
    golden_check(&b, "tests/engine/golden/steps.txt");
}

/* --- reports ---------------------------------------------------------------------------------- */

static void tell_restore(struct textbuf *b, const struct seq *s)
{
    const struct outcome *o = seq_outcome(s);
    const struct restore_result *r = &o->restore;
    if (o->plan.n_layers == 0)
        return;
    textbuf_addf(b, "  %s (%d R, %d H, %d K), %d R added\n", o->plan.method, o->plan.n_r,
                 o->plan.n_h, o->plan.n_k, o->plan.n_r_added);
    textbuf_addf(
        b,
        "  %d chunks, %d tokens from %d on, %llu bytes (%llu from DRAM), %d R %d H %d K; "
        "%s; raced %d\n",
        r->n_chunks, r->n_tokens, r->first_token, (unsigned long long)r->read_bytes,
        (unsigned long long)r->dram_bytes, r->n_by_method[0], r->n_by_method[1],
        r->n_by_method[2], r->fault, r->raced_layers);
}

/* Requests for the same context and for others, with all kinds of plans and of saving, one after
 * another. */
TEST(reports_are_the_golden_ones)
{
    static const struct {
        const char *save, *plan, *salt;
        int which, n_prompt, max_tokens;
        bool restore_first;
    } asks[] = {
        {"hidden", NULL, NULL, 1, 300, 5, false},
        {"kv", NULL, NULL, 3, 300, 5, false},
        {"both", NULL, NULL, 0, 300, 5, false},
        {"none", "auto", NULL, 3, 301, 3, false}, /* K alone: a slow lane changes nothing */
        {"none", "kv", NULL, 0, 300, 3, true},
        {"none", "hidden", NULL, 0, 200, 3, false},
        {"none", "kv", NULL, 1, 300, 3, false},
        {"none", "hidden", NULL, 3, 310, 3, false},
        {"none", "RHHK", NULL, 0, 256, 3, false},
        {"none", "RRHH", NULL, 0, 257, 3, true},
        {"none", "RRHK", NULL, 0, 65, 3, false},
        {"none", "recompute", NULL, 0, 300, 3, false},
        {"none", "RHK", NULL, 0, 300, 3, false},
        {"both", NULL, "other", 0, 300, 3, false},
        {"both", "kv", "other", 0, 300, 3, false},
        {"kv", NULL, NULL, 2, 1, 3, false},
        {"kv", NULL, NULL, 2, 64, 1, false},
        {"kv", NULL, NULL, 2, 65, 70, false},
        {"kv", NULL, NULL, 2, 140, 0, false},
        {"both", NULL, NULL, 1, 320, 2, false},
        {"kv+recompute", "kv+recompute", NULL, 5, 200, 2, false},
        {"both", "paper", NULL, 0, 300, 2, false},
    };
    struct textbuf b = {0};
    struct err err = {0};
    make_prompts();
    for (int reuse = 0; reuse < 2; reuse++) {
        struct stack k;
        et_open(&k, &(struct stack_opts){.user.max_context = 512,
                                         .user.store_in_memory = true,
                                         .user.no_reuse = !reuse});
        for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
            struct et_ask a = {.prompt = prompt[asks[i].which],
                               .n_prompt = asks[i].n_prompt,
                               .max_tokens = asks[i].max_tokens,
                               .save = asks[i].save,
                               .plan = asks[i].plan,
                               .salt = asks[i].salt,
                               .restore_first = asks[i].restore_first};
            if (strcmp(a.save, "kv+recompute") == 0)
                a.save = "both";
            et_platform(&k.platform, 1e-3, 2e-6, 1e-7, 1e9);
            struct request *q = et_request(&k, &a);
            struct seq *s;
            assert_int_equal(et_submit(k.engine, q, &s, &err), 0);
            assert_int_equal(engine_run(k.engine, &err), 0);
            (void)saver_flush(k.saver, NULL);
            tell_outcome(&b, (int)i, s);
            tell_restore(&b, s);
            if (seq_outcome(s)->err.code != 0)
                textbuf_addf(&b, "  %s\n", seq_outcome(s)->err.msg);
            engine_remove(k.engine, s);
        }
        tell_engine(&b, &k);
        stack_close(&k);
    }
    golden_check(&b, "tests/engine/golden/reports.txt");
}

/* The measured spans of a restore lie within it, in the order of their beginnings. The last one
 * ends with it. */
static void check_lanes(const struct seq *s)
{
    const struct hcache_lanes lanes = s->out.r.measured;
    double last_ms = 0, before_ms = 0;
    int n_io = 0;
    assert_true(s->out.r.predicted.n > 0 && lanes.n > 0);
    for (int i = 0; i < lanes.n; i++) {
        const struct hcache_span *x = &lanes.span[i];
        assert_true(x->start_ms >= before_ms && x->end_ms >= x->start_ms);
        assert_in_range(x->layer, 0, s->shared->model->cfg.n_layers - 1);
        before_ms = x->start_ms;
        last_ms = x->end_ms > last_ms ? x->end_ms : last_ms;
        n_io += x->is_io;
    }
    assert_true(n_io > 0 && n_io < lanes.n);
    assert_true(last_ms > 0.999 * lanes.total_ms && last_ms < 1.001 * lanes.total_ms);
    assert_true(lanes.total_ms < 1.001e-6 * (double)s->out.restore.total_ns);
}

/* The parts of a request's time are parts of the time that passed: looking up, restoring (planning
 * included) and prefill end before the first token, and decoding comes after it. */
TEST(times_add_up)
{
    static const char *const plans[] = {"recompute", "kv", "hidden", "RRHH"};
    struct stack k;
    struct err err = {0};
    make_prompts();
    et_open(&k, &(struct stack_opts){.user.max_context = 512,
                                     .user.store_in_memory = true,
                                     .user.no_reuse = true});
    for (int i = 0; i < 8; i++) {
        struct et_ask a = {.prompt = prompt[0],
                           .n_prompt = 300,
                           .max_tokens = 4,
                           .save = "both",
                           .plan = plans[i / 2],
                           .restore_first = i % 2};
        struct request *q = et_request(&k, &a);
        struct seq *s;
        int64_t t0 = clock_now_ns();
        assert_int_equal(et_submit(k.engine, q, &s, &err), 0);
        assert_int_equal(engine_run(k.engine, &err), 0);
        int64_t all_ns = clock_now_ns() - t0;
        const struct outcome *o = seq_outcome(s);
        bool restores = i >= 2;
        assert_int_equal(o->r.cached_tokens, restores ? 256 : 0);
        const struct hcache_timings *t = &o->r.timings;
        assert_true(restores ? t->lookup_ms > 0 && t->plan_ms > 0 && t->restore_ms > 0
                             : t->lookup_ms == 0 && t->plan_ms == 0 && t->restore_ms == 0);
        assert_true(t->plan_ms <= t->restore_ms);
        assert_true(t->prefill_ms > 0 && t->decode_ms > 0);
        assert_true(t->lookup_ms + t->restore_ms + t->prefill_ms <= t->ttft_ms);
        assert_true(t->ttft_ms + t->decode_ms <= clock_ms(all_ns));
        assert_true(clock_ms(o->restore.total_ns) <= t->restore_ms);
        assert_true((o->restore.total_ns > 0) == restores);
        assert_true(o->restore.bubble >= 0 && o->restore.bubble < 1);
        if (restores)
            check_lanes(s);
        (void)saver_flush(k.saver, NULL);
        engine_remove(k.engine, s);
    }
    stack_close(&k);
}
