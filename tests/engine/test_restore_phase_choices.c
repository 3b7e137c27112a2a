/* test_restore_phase_choices.c - what the restoration phase chooses, and what it tells its
 * policies. Restores are made up where possible, and no test waits for a disk. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "engine/engine_impl.h"
#include "engine/restoring.h"
#include "engine/view.h"
#include "restore/stall.h"
#include "restore/restore_impl.h"
#include "store/store_impl.h"
#include "tests/engine/enginetest.h"

enum { N_LAYERS = 4, N_CHUNKS = 6, N_PROMPT = 64 * N_CHUNKS + 30 };

static const int64_t SECOND = 1000000000;
static const struct truncation small = {.context = 256, .step = 64, .keep = 64};

/* A sequence with a restore that the I/O thread does not know. Another sequence decodes. */
struct lab {
    struct stack k;
    struct restore_phase *g;
    struct platform *p;
    struct seq *s, other;
    struct store_hit hits[N_CHUNKS];
    struct chunk_node nodes[N_CHUNKS];
    struct restore r;
};

static struct seq *add(struct lab *l, const struct et_ask *ask)
{
    return et_add_prompt(&l->k, ask, N_PROMPT);
}

static void lab_open(struct lab *l, const struct et_ask *ask)
{
    *l = (struct lab){0};
    et_open(&l->k, &(struct stack_opts){.user.store_in_memory = true,
                                        .user.save_buffer_bytes = 4 << 20,
                                        .user.no_reuse = true});
    l->g = &l->k.engine->restores;
    l->p = &l->k.platform;
    et_platform(l->p, 1, 2e-6, 1e-7,
                1e9); /* computing takes so long that no look-up is left */
    l->s = add(l, ask);
    l->s->req->restore_first = true; /* no prefill is fused, unless a test wants it */
    l->other.phase = PHASE_DECODE;
    for (int c = 0; c < N_CHUNKS; c++) {
        l->hits[c] = (struct store_hit){.n_tokens = 64, .impl = &l->nodes[c]};
        for (int i = 0; i < N_LAYERS; i++)
            store_mask_add(&l->hits[c].mask, i, STORE_KV);
    }
}

static void lab_close(struct lab *l)
{
    if (l->s->restore == &l->r)
        l->s->restore = NULL;
    free(l->r.sources);
    free(l->r.takes_kv);
    l->s->phase = PHASE_WAIT;
    l->s->n_done = 0;
    engine_remove(l->k.engine, l->s);
    stack_close(&l->k);
}

/* Makes up a restore in a state. A running one has 10 reads, one of which came back. */
static void restores(struct lab *l, enum restore_state state)
{
    free(l->r.sources);
    free(l->r.takes_kv);
    l->r = (struct restore){.rr = l->g->pipeline,
                            .state = state,
                            .hits = l->hits,
                            .owns_hits = true,
                            .found = {.hits = l->hits, .n_hits = N_CHUNKS},
                            .t_start = clock_now_ns()};
    if (state == RESTORE_RUNNING) {
        l->r.job = (struct restore_job){.hits = l->hits, .n_chunks = N_CHUNKS};
        l->r.n_order = 3;
        for (int i = 0; i < 3; i++)
            l->r.order[i] = (int16_t)(i + 1);
        l->r.n_good = N_CHUNKS;
        l->r.n_groups = 10;
        l->r.n_read = 1;
        l->s->n_planned = N_CHUNKS;
    }
    l->s->restore = &l->r;
    l->s->phase = PHASE_RESTORE;
    l->s->t_start = clock_now_ns();
}

/* Makes a step. Returns the seconds after which the phase wants to judge its reads again, or
 * INFINITY. */
static double again_s(struct lab *l, bool beside)
{
    struct seq *seqs[] = {l->s, &l->other};
    struct seq_list list = {seqs, beside ? 2 : 1};
    const struct restore_phase_budget b = {.batch_ns = 1, .n_decodes = beside};
    restore_phase_step(l->g, list, &b);
    return l->g->again_ns == INT64_MAX ? INFINITY : (double)l->g->again_ns * 1e-9;
}

/* Fails unless x is nearly want: seconds may have passed. */
#define assert_about(x, want) assert_true(fabs((x) - (want)) < 60)

/* --- what is believed, and what is asked for ------------------------------------------------ */

/* A batch teaches if it has at least 64 rows and all of them belong to prompts. Its predicted time
 * is that of all layers, and of the ends of a pass. */
TEST(long_batches_of_prompts_are_predicted)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    et_platform(&l.k.platform, 1e-5, 2e-6, 1e-7, 1e9);
    l.k.platform.embed_s = 1e-6;
    l.k.platform.head_s = 1e-3;
    struct restore_phase *g = &l.k.engine->restores;
    struct seq x = {.phase = PHASE_PREFILL, .n_done = 100, .n_rows = 40};
    struct seq y = {.phase = PHASE_PREFILL, .n_done = 0, .n_rows = 24};
    struct seq *seqs[] = {&x, &y};
    struct step_batch b = {.seqs = seqs, .n_seqs = 2, .n_rows = 64};
    double layer_s = platform_prefill_s(&l.k.platform, 100, 40) +
                     platform_prefill_s(&l.k.platform, 0, 24);
    double want_s = layer_s * l.k.model->cfg.n_layers + platform_ends_s(&l.k.platform, 64);
    assert_true(restore_phase_believes(g, &b) == want_s && want_s > 1e-3);
    b.n_rows = 63;
    assert_true(restore_phase_believes(g, &b) == 0);
    b.n_rows = 64;
    y.phase = PHASE_DECODE;
    assert_true(restore_phase_believes(g, &b) == 0);
    lab_close(&l);
}

/* Begins and abandons the look-up of a new request. Returns the request's restore_want. */
static struct restore_want want_of(struct lab *l, struct seq *s)
{
    restore_phase_find(&l->k.engine->restores, s);
    struct restore_want w = s->restore->want;
    assert_memory_equal(s->restore->keys, w.root, sizeof *w.root);
    assert_memory_equal(s->restore->keys + 1, s->view.keys,
                        (size_t)(w.n_tokens / 64) * sizeof *w.root);
    assert_memory_equal(s->restore->tokens, s->view.tokens,
                        (size_t)w.n_tokens * sizeof *s->view.tokens);
    restore_phase_abandon(&l->k.engine->restores, s);
    return w;
}

/* A look-up leaves out the last token, because that is computed in any case. It states two costs
 * for the tokens that the sequence does not have: of computing them, and of restoring them. */
TEST(a_look_up_tells_what_the_tokens_cost)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    et_platform(&l.k.platform, 1e-5, 2e-6, 1e-7, 1e9);
    const struct platform *f = &l.k.platform;
    int n_layers = l.k.model->cfg.n_layers;
    struct et_ask a = {.save = "kv", .salt = "alice"};
    struct seq *s = add(&l, &a);
    struct restore_want w = want_of(&l, s);
    assert_int_equal(w.n_tokens, N_PROMPT - 1);
    assert_int_equal(w.n_moved, 0);
    assert_int_equal(w.n_have, 0);
    assert_true(w.owner == store_owner("alice") && w.owner != store_owner(NULL));
    assert_true(w.use.lot == (uint64_t)s->t_arrival && w.use.share == 1);
    assert_false(w.measure_io);
    assert_true(w.recompute_s == n_layers * platform_prefill_s(f, 0, N_PROMPT));
    assert_true(w.recompute_half_s == n_layers * platform_prefill_s(f, 0, N_PROMPT / 2));
    assert_true(w.stair_s == w.recompute_s);
    double h_s = fmax(platform_io_s(f, 0, N_PROMPT, RECORD_HIDDEN),
                      platform_h_s(f, N_PROMPT));
    double kv_s = fmax(platform_io_s(f, 0, N_PROMPT, RECORD_KV),
                       platform_kv_s(f, N_PROMPT));
    assert_true(w.restore_s == n_layers * fmin(h_s, kv_s) && h_s != kv_s);
    s->n_done = 128; /* as if the device had two blocks */
    w = want_of(&l, s);
    s->n_done = 0;
    int n = N_PROMPT - 128;
    assert_int_equal(w.n_have, 128);
    assert_true(w.recompute_s == n_layers * platform_prefill_s(f, 128, n));
    assert_true(w.recompute_half_s == n_layers * platform_prefill_s(f, 128, n / 2));
    h_s = fmax(platform_io_s(f, 0, n, RECORD_HIDDEN), platform_h_s(f, n));
    kv_s = fmax(platform_io_s(f, 0, n, RECORD_KV), platform_kv_s(f, n));
    assert_true(w.restore_s == n_layers * fmin(h_s, kv_s));
    engine_remove(l.k.engine, s);

    /* Without a measured disk the time of a restore is unknown, and the look-up measures. */
    int n_tiers = l.k.platform.n_tiers;
    l.k.platform.n_tiers = 0;
    s = add(&l, &(struct et_ask){.save = "kv", .plan = "kv"});
    w = want_of(&l, s);
    assert_true(w.measure_io && w.restore_s == 0);
    assert_true(w.recompute_s == 0 && w.recompute_half_s == 0); /* a forced plan waits */
    l.k.platform.n_tiers = n_tiers;
    engine_remove(l.k.engine, s);

    /* A truncated context: the tokens before the last stair are moved. */
    a.truncation = small;
    s = add(&l, &a);
    int64_t cut = truncation_cut(&small, N_PROMPT - 1);
    view_set(&s->view, &s->chain, s->tokens, s->n_tokens, (int)cut);
    w = want_of(&l, s);
    int n_view = s->view.n_tokens, n_moved = view_moved(&s->view);
    assert_int_equal(n_moved, small.context - small.step);
    assert_int_equal(w.n_tokens, n_view - 1);
    assert_int_equal(w.n_moved, n_moved / 64);
    struct sha256 stair = chain_stored_parent(&s->chain, (int)(n_moved + cut) / 64);
    assert_memory_equal(&w.stair, &stair, sizeof stair);
    assert_true(w.stair_s == n_layers * platform_prefill_s(f, n_moved, n_view - n_moved));
    assert_true(w.recompute_s == staircase_price_s(f, &small, 0, N_PROMPT));
    assert_true(w.use.share == staircase_share(&small, N_PROMPT) && w.use.share > 1);
    engine_remove(l.k.engine, s);
    lab_close(&l);
}

/* --- reads that are silent -------------------------------------------------------------------- */

/* Recomputation races reads after a share of its own time. Beside decodes the reads are left,
 * after a larger share of the time that recomputation takes there. */
TEST(silence_is_borne_for_a_share_of_recomputation)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    restores(&l, RESTORE_RUNNING);
    l.s->recompute_s = 1e4;
    assert_about(again_s(&l, false), 1e4 * STALL_RACE_SHARE);
    assert_about(again_s(&l, true), 1e4 * BESIDE_PREFILL_SLOW * STALL_LEAVE_SHARE);
    l.r.t_start -= 500 * SECOND; /* the silence began with the restore */
    assert_about(again_s(&l, false), 1e4 * STALL_RACE_SHARE - 500);
    l.s->recompute_s = 0; /* it must wait for its reads */
    assert_true(isinf(again_s(&l, false)));
    lab_close(&l);
}

/* Reads that the plan expects to be slow are waited for. The plan's time is that of all reads. */
TEST(slow_reads_may_be_silent_for_longer)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    restores(&l, RESTORE_RUNNING);
    l.s->recompute_s = 1e4;
    l.s->out.plan.io_busy_s = 1e5;
    assert_about(again_s(&l, false), STALL_READS * 1e4);
    l.r.n_groups = 20;
    l.s->out.plan.io_busy_s = 2e5;
    assert_about(again_s(&l, false), STALL_READS * 1e4);
    lab_close(&l);
}

/* Layers of a truncated context cannot be recomputed, so its reads are not raced. */
TEST(a_truncated_context_is_not_raced)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){.save = "kv", .truncation = small});
    int cut = (int)truncation_cut(&small, N_PROMPT - 1);
    view_set(&l.s->view, &l.s->chain, l.s->tokens, l.s->n_tokens, cut);
    restores(&l, RESTORE_RUNNING);
    l.s->n_planned = 3;
    l.s->n_done = 192; /* the device has the moved tokens */
    l.s->recompute_s = 1e4;
    assert_about(again_s(&l, false), 1e4 * STALL_LEAVE_SHARE);
    /* Without the moved tokens all stairs are replayed, by the price of the moment. */
    l.s->n_done = 0;
    l.p->c_tok.b_s = 10;
    double replay_s = staircase_price_s(l.p, &small, 0, view_token(&l.s->view, 192));
    assert_about(again_s(&l, false), replay_s * STALL_LEAVE_SHARE);
    l.s->shared->n_carrying = 1; /* another sequence replays, so this one must wait */
    assert_true(isinf(again_s(&l, false)));
    l.s->shared->n_carrying = 0;
    lab_close(&l);
}

/* While recomputation has work, it is asked again at once. A race that goes on is left alone. */
TEST(a_busy_lane_does_not_race)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    restores(&l, RESTORE_RUNNING);
    l.s->recompute_s = 1e4;
    l.r.n_recompute = 1;
    assert_true(again_s(&l, false) < 1e-6);
    assert_int_equal(l.r.out.raced_layers, 0);
    l.r.out.raced_layers = 1;
    assert_true(isinf(again_s(&l, false)));
    lab_close(&l);
}

/* Reads that would take longer than half of the recomputation are raced, although they come. */
TEST(crawling_reads_are_raced)
{
    struct lab l;
    for (int i = 0; i < 2; i++) {
        lab_open(&l, &(struct et_ask){0});
        restores(&l, RESTORE_RUNNING);
        for (int n = 1; n < N_LAYERS; n++)
            l.r.layer_left[n] = 1;
        l.r.t_start -= 1000 * SECOND;
        l.g->pipeline->t_heard = clock_now_ns();
        /* Nine more reads at this pace take 9000 s. */
        l.s->recompute_s = i == 0 ? 9990 : 19000;
        double s = again_s(&l, false);
        assert_int_equal(l.r.out.raced_layers, i == 0 ? N_LAYERS : 0);
        if (i == 1)
            assert_about(s, 2000); /* two reads at this pace */
        lab_close(&l);
    }
}

/* --- a look-up that is silent ----------------------------------------------------------------- */

/* A look-up is left after a share of the time to compute the prompt. The silence is counted from
 * its beginning, or from when the remote last sent. */
TEST(a_silent_look_up_is_left)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    restores(&l, RESTORE_FINDING);
    l.p->c_tok.b_s = 10;
    double price_s = N_LAYERS * platform_prefill_s(l.p, 0, N_PROMPT);
    assert_about(again_s(&l, false), price_s * STALL_LEAVE_SHARE);
    l.s->t_start -= 1000 * SECOND;
    assert_about(again_s(&l, false), price_s * STALL_LEAVE_SHARE - 1000);
    l.r.t_heard = l.s->t_start + 400 * SECOND;
    assert_about(again_s(&l, false), price_s * STALL_LEAVE_SHARE - 600);
    /* The first look-up measures the store, and may take its time. */
    int n_tiers = l.p->n_tiers;
    l.p->n_tiers = 0;
    assert_true(isinf(again_s(&l, false)));
    l.p->n_tiers = n_tiers;
    et_set_plan(l.s, "kv"); /* a forced plan waits */
    assert_true(isinf(again_s(&l, false)));
    lab_close(&l);
}

/* --- the start -------------------------------------------------------------------------------- */

/* A found restore is planned with or without decodes beside it, and has the price of its own
 * tokens. */
TEST(a_found_restore_is_planned_and_started)
{
    struct lab l;
    for (int beside = 0; beside < 2; beside++) {
        lab_open(&l, &(struct et_ask){0});
        restores(&l, RESTORE_FOUND);
        l.r.found.n_remote = 2;
        l.r.found.differs_at = 77;
        (void)again_s(&l, beside == 1);
        assert_int_equal(l.r.state, RESTORE_RUNNING);
        assert_int_equal(l.s->n_planned, N_CHUNKS);
        assert_int_equal(l.r.job.n_chunks, N_CHUNKS);
        assert_int_equal(l.r.job.first_chunk, 0);
        assert_ptr_equal(l.r.job.table, &l.s->table);
        assert_true(l.s->recompute_s ==
                    N_LAYERS * platform_prefill_s(l.p, 0, N_CHUNKS * 64));
        /* A restore beside decodes teaches nothing. */
        assert_int_equal(l.s->expected.restore_s > 0, beside == 0);
        assert_int_equal(l.s->out.r.remote_tokens, 128);
        assert_int_equal(l.s->out.r.differs_at, 77);
        lab_close(&l);
    }
}

/* The chunks that the device has are left out of the restore. */
TEST(a_restore_begins_behind_the_device)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    restores(&l, RESTORE_FOUND);
    l.s->n_done = 2 * 64 + 10; /* with a copied tail */
    (void)again_s(&l, false);
    assert_int_equal(l.r.state, RESTORE_RUNNING);
    assert_int_equal(l.r.job.first_chunk, 2);
    assert_int_equal(l.s->n_planned, N_CHUNKS);
    lab_close(&l);
}

/* Runs the lab's request, and then another one with the same prompt. Returns the second one, which
 * has ended. */
static struct seq *run_again(struct lab *l, const struct et_ask *ask, bool has_first)
{
    struct err err = {0};
    assert_int_equal(engine_run(l->k.engine, &err), 0);
    assert_int_equal(saver_flush(l->k.saver, &err), 0);
    struct seq *s = add(l, ask);
    s->has_first = has_first;
    assert_int_equal(engine_run(l->k.engine, &err), 0);
    assert_int_equal(s->phase, PHASE_DONE);
    return s;
}

/* A prompt that is not stored is not planned. */
TEST(what_is_not_stored_is_a_plain_miss)
{
    struct lab l;
    struct err err = {0};
    lab_open(&l, &(struct et_ask){0});
    assert_int_equal(engine_run(l.k.engine, &err), 0);
    assert_string_equal(l.s->out.r.miss, STORE_WHY_ABSENT);
    assert_int_equal(l.s->out.r.cached_tokens, 0);
    lab_close(&l);
}

/* The lanes of a first restore are kept as pictures. Those of later restores are not. */
TEST(the_first_restore_is_measured)
{
    struct lab l;
    for (int i = 0; i < 2; i++) {
        lab_open(&l, &(struct et_ask){.save = "kv"});
        struct seq *s = run_again(&l, &(struct et_ask){0}, i == 1);
        assert_int_equal(s->out.r.predicted.n > 0, i == 0);
        assert_int_equal(s->out.r.measured.n > 0, i == 0);
        engine_remove(l.k.engine, s);
        lab_close(&l);
    }
}

/* If the plan takes longer than computing all stairs again, they are computed. */
TEST(a_slow_plan_is_replaced_by_a_replay)
{
    struct lab l;
    const struct et_ask a = {.save = "kv", .truncation = small};
    for (int i = 0; i < 2; i++) {
        lab_open(&l, &a);
        et_platform(l.p, i == 0 ? 1e-2 : 1, 2e-6, 1e-7, i == 0 ? 1e3 : 1e9);
        struct seq *s = run_again(&l, &a, false);
        bool replays = strstr(s->out.r.miss, "stair by stair, is faster") != NULL;
        assert_int_equal(replays, i == 0);
        assert_int_equal(s->out.r.cached_tokens > 0, i == 1);
        engine_remove(l.k.engine, s);
        lab_close(&l);
    }
}

/* Chunks are fetched into copies in DRAM if the store has any. */
TEST(reading_ahead_follows_from_the_store)
{
    static const struct {
        const char *prefetch;
        bool on_disk;
        uint64_t dram_bytes;
        bool fetches;
    } cases[] = {{"on", false, 0, false},
                 {"on", true, 0, false},
                 {"on", true, 32 << 20, true},
                 {"off", true, 32 << 20, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stack k;
        struct io *disk = et_disk(1, 0);
        bool on_disk = cases[i].on_disk;
        et_open(&k, &(struct stack_opts){.io = disk,
                                         .user.store = on_disk ? et_dirs : NULL,
                                         .user.n_store = on_disk ? 2 : 0,
                                         .user.store_in_memory = !on_disk,
                                         .user.dram_bytes = cases[i].dram_bytes,
                                         .user.prefetch = cases[i].prefetch});
        assert_int_equal(k.engine->shared.fetcher != NULL, cases[i].fetches);
        stack_close(&k);
        io_close(disk);
    }
}

/* --- the budget of a step --------------------------------------------------------------------- */

/* Beside decodes restores get their share of the pass, and the time that delays no later pass.
 * Without a restore there is no credit. */
TEST(a_step_earns_its_credit)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    restores(&l, RESTORE_RUNNING);
    struct seq *seqs[] = {l.s, &l.other};
    struct seq_list list = {seqs, 2};
    struct restore_phase_budget b = {.batch_ns = 1000000, .free_ns = 5000, .n_decodes = 1};
    restore_phase_step(l.g, list, &b);
    assert_int_equal(l.g->credit.ns, 30000 + 5000);
    l.s->phase = PHASE_WAIT;
    restore_phase_step(l.g, list, &b);
    assert_int_equal(l.g->credit.ns, 0);
    lab_close(&l);
}

/* The new tokens of a truncated context are fused once the plan brings all moved tokens. */
TEST(new_tokens_follow_whole_views_only)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){.save = "kv", .truncation = small});
    int cut = (int)truncation_cut(&small, N_PROMPT - 1);
    view_set(&l.s->view, &l.s->chain, l.s->tokens, l.s->n_tokens, cut);
    restores(&l, RESTORE_RUNNING);
    l.s->req->restore_first = false;
    l.s->n_planned = 2;
    (void)again_s(&l, true);
    assert_null(l.g->fused.seq);
    l.s->n_planned = 3;
    (void)again_s(&l, true);
    assert_ptr_equal(l.g->fused.seq, l.s);
    assert_int_equal(l.g->fused.first, 192);
    fused_cancel(&l.g->fused, l.s);
    lab_close(&l);
}
