/* test_staging_choices.c - which waiting sequences read ahead, what they tell the policy of the
 * read buffer, and when what they have read is used. Found chunks are made up, and nothing is
 * read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "engine/engine_impl.h"
#include "engine/restoring.h"
#include "engine/staging.h"
#include "tests/engine/enginetest.h"
#include "tests/engine/found.h"

enum { N_LAYERS = 4, N_CHUNKS = 14, N_PROMPT = 64 * N_CHUNKS + 30 };

/* A waiting sequence. The store has nothing, and its disk is slow. */
struct lab {
    struct stack k;
    struct restore_phase *g;
    struct platform *p;
    struct seq *s;
    struct chunk_node nodes[N_CHUNKS];
    int n_slots;
    struct group_list slots; /* all slots of staging memory, so that nothing is read */
};

static struct seq *add(struct lab *l, const struct et_ask *ask)
{
    return et_add_prompt(&l->k, ask, N_PROMPT);
}

static void lab_open(struct lab *l, const struct et_ask *ask)
{
    *l = (struct lab){0};
    et_open(&l->k, &(struct stack_opts){.user.store_in_memory = true,
                                        .user.save_buffer_bytes = 4 << 20});
    l->g = &l->k.engine->restores;
    l->g->stages = true;
    l->p = &l->k.platform;
    et_platform(l->p, 1e-4, 1e-6, 1e-7, 1e7);
    l->p->c_tok.c_s = 1e-8;
    l->s = add(l, ask);
    l->slots = found_take_slots(l->g->pipeline);
    l->n_slots = l->g->pipeline->n_slots;
    l->g->pipeline->n_slots = 64;
}

static void lab_close(struct lab *l)
{
    struct restore_pipeline *rr = l->g->pipeline;
    engine_remove(l->k.engine, l->s);
    found_give_slots(rr, l->slots);
    rr->n_slots = l->n_slots;
    stack_close(&l->k);
}

static struct restore *found(struct lab *l, int n, const char *kinds)
{
    return l->s->restore = found_restore(l->g->pipeline, l->nodes, n, kinds);
}

/* Makes a plan ahead behind the first chunks. Returns whether it is worth reads. */
static bool stages(struct lab *l, int n_hits, const char *kinds, int first, bool beside)
{
    staging_end(l->g, l->s);
    (void)found(l, n_hits, kinds);
    l->s->staging = (struct seq_staging){.is_decided = true, .first = first};
    uint64_t before = l->g->shared->stats.n_staged;
    staging_step(l->g, l->s, beside);
    bool is_staged = l->s->restore != NULL;
    assert_int_equal(l->g->shared->stats.n_staged, before + is_staged);
    assert_true(!is_staged || l->s->restore->state == RESTORE_STAGED);
    return is_staged;
}

/* --- who is staged ---------------------------------------------------------------------------- */

static void a_waiting_sequence_is_decided_once(void **state)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    struct seq *s = l.s;
    assert_true(staging_may_begin(l.g, s));
    l.g->stages = false;
    assert_false(staging_may_begin(l.g, s));
    l.g->stages = true;
    s->t_admit = 1; /* it was admitted, and preempted */
    assert_false(staging_may_begin(l.g, s));
    s->t_admit = 0;
    s->stairs.must_choose = true; /* its view is not known yet */
    assert_false(staging_may_begin(l.g, s));
    s->stairs.must_choose = false;
    staging_leave_out(s);
    assert_false(staging_may_begin(l.g, s));
    s->staging.is_decided = false;
    (void)found(&l, 1, "K");
    assert_false(staging_may_begin(l.g, s));
    staging_end(l.g, s);
    assert_true(staging_may_begin(l.g, s));
    et_set_plan(s, "recompute");
    assert_false(staging_may_begin(l.g, s));
    lab_close(&l);
}

/* A look-up begins if more than 256 tokens lie behind the chunks of the device. */
static void short_rests_are_not_looked_up(void **state)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    struct view *v = &l.s->view;
    for (int more = 0; more < 2; more++) {
        v->n_tokens = 256 + 64 + more;
        staging_begin(l.g, l.s, 1);
        assert_int_equal(l.s->restore != NULL, more);
        assert_true(l.s->staging.is_decided);
        assert_int_equal(l.s->staging.first, 1);
    }
    restore_phase_abandon(l.g, l.s);
    v->n_tokens = N_PROMPT;
    lab_close(&l);
}

/* At least 256 tokens must be stored behind the chunks of the device. */
static void few_stored_tokens_are_not_staged(void **state)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    l.s->req->restore_first = true; /* no new token hides reads */
    assert_true(stages(&l, 7, "K", 3, false));
    staging_end(l.g, l.s);
    struct restore *r = found(&l, 6, "K");
    r->found.n_remote = 3;
    l.s->staging.first = 3;
    staging_step(l.g, l.s, false);
    assert_null(l.s->restore);
    assert_int_equal(l.s->out.r.remote_tokens,
                     3 * 64); /* the remote's chunks stay in the store */
    assert_int_equal(l.s->n_planned, 0);
    lab_close(&l);
}

/* --- the prediction --------------------------------------------------------------------------- */

static double prefill_s(const struct lab *l, int n_old)
{
    return N_LAYERS * platform_prefill_s(l->p, n_old, N_PROMPT - n_old);
}

/* The times are those of the chunks behind the device's, and of the tokens behind the stored
 * ones. */
static void the_prediction_leaves_out_the_devices_chunks(void **state)
{
    enum { FIRST = 3, N_HITS = 12, N_OLD = 64 * N_HITS, N_READ = N_OLD - 64 * FIRST };
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    l.p->c_tok.c_s = 1e-8;
    for (int i = 0; i < 2; i++) {
        l.s->req->restore_first = i == 1;
        assert_true(stages(&l, N_HITS, "K", FIRST, false));
        const struct read_ahead *a = &l.s->staging.ahead;
        const struct plan *plan = &l.s->out.plan;
        assert_string_equal(plan->method, "KKKK");
        assert_true(a->load_s == N_LAYERS * platform_io_s(l.p, 0, N_READ, RECORD_KV));
        double new_s = prefill_s(&l, N_OLD);
        assert_true(a->prefill_s == (i == 0 ? new_s : 0));
        assert_true(fabs(a->compute_s - (plan->comp_busy_s - (i == 0 ? 0 : new_s))) <
                    1e-12);
        assert_true(l.s->staging.bytes ==
                    (uint64_t)(plan->stored_bytes_per_token * N_READ));
        assert_int_equal(l.s->restore->job.first_chunk, FIRST);
        assert_int_equal(l.s->restore->job.n_chunks, N_HITS);
    }
    lab_close(&l);
}

/* Reads are made for the share that staging memory has room for, in groups of eight chunks for each
 * layer that is read. */
static void room_is_counted_in_groups(void **state)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    struct restore_pipeline *rr = l.g->pipeline;
    int n_yes, n_no;
    for (int plan = 0; plan < 3; plan++) {
        n_yes = n_no = 0;
        /* nine chunks are two groups; behind five of the device eight chunks are one group */
        int first = plan == 1 ? 5 : 0, n_hits = plan == 1 ? 13 : 9;
        int n_groups = N_LAYERS * (plan == 1 ? 1 : 2);
        et_set_plan(l.s, plan == 2 ? "hidden" : NULL);
        if (plan == 2)
            l.p->c_tok = (struct cost_curve){.b_s = 1e-6};
        l.s->view.n_tokens = n_hits * 64 + 1; /* one new token hides no reads */
        for (int n_slots = 2; n_slots < 16; n_slots++) {
            pthread_mutex_lock(&rr->lock); /* the I/O thread reads it */
            rr->n_slots = n_slots;
            pthread_mutex_unlock(&rr->lock);
            bool is_staged = stages(&l, n_hits, "HK", first, false);
            const struct read_ahead *a = &l.s->staging.ahead;
            double room = (double)restore_stage_groups(rr) / n_groups;
            double share = read_ahead_share(a, room);
            assert_int_equal(is_staged, share > 0);
            if (is_staged)
                assert_true(l.s->restore->stage_left ==
                            (uint64_t)(share * (double)l.s->staging.bytes) + 1);
            n_yes += is_staged;
            n_no += !is_staged;
        }
        assert_true(n_yes > 0 && n_no > 0);
    }
    l.s->view.n_tokens = N_PROMPT;
    lab_close(&l);
}

/* A forced plan reads what it reads without reading ahead. Layer 0 has no read of its own. */
static void a_forced_plan_is_read_as_it_is(void **state)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){.plan = "hidden"});
    l.s->req->restore_first = true;
    assert_true(stages(&l, 12, "HK", 0, false));
    const struct read_ahead *a = &l.s->staging.ahead;
    const struct plan *plan = &l.s->out.plan;
    assert_string_equal(plan->method, "HHHH");
    assert_true(fabs(a->load_s - 3 * platform_io_s(l.p, 0, 768, RECORD_HIDDEN)) < 1e-12);
    assert_true(a->alone_s == plan->predicted_s);
    assert_false(l.g->in_dram[0]);
    assert_int_equal(l.p->n_tiers, 1);
    lab_close(&l);
}

/* The plan is that of a restore beside decodes if others will decode. Such a restore teaches
 * nothing. */
static void a_plan_ahead_knows_of_decodes(void **state)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    for (int beside = 0; beside < 2; beside++) {
        assert_true(stages(&l, 12, "K", 0, beside == 1));
        assert_int_equal(l.s->expected.restore_s > 0, beside == 0);
    }
    lab_close(&l);
}

/* If nothing would be restored without reading ahead, the prompt is computed behind the device's
 * chunks. */
static void a_prompt_that_is_not_worth_a_restore_is_computed(void **state)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    et_platform(l.p, 1e-9, 1e-6, 1e-7, 1e3);
    l.p->c_tok.c_s = 1e-12;
    assert_false(stages(&l, 12, "K", 2, false));
    assert_true(l.s->staging.ahead.alone_s == prefill_s(&l, 128));
    lab_close(&l);
}

/* --- until the place comes -------------------------------------------------------------------- */

/* An erasure of the chunks begins with the last one. */
static void an_erased_chunk_ends_the_staging(void **state)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    assert_true(stages(&l, 12, "K", 0, false));
    staging_step(l.g, l.s, false);
    assert_non_null(l.s->restore);
    l.nodes[11].doomed = true;
    staging_step(l.g, l.s, false);
    assert_null(l.s->restore);
    assert_false(l.s->staging.is_decided); /* it may be staged again */
    lab_close(&l);
}

/* A staged restore of 100 bytes: all reads take 10 s, its compute 1 s, and a restore without
 * reading ahead takes 5 s. So more than half of the bytes must have been read. */
static void stage_half(struct lab *l, int n_hits, uint64_t read_bytes)
{
    assert_true(stages(l, n_hits, "K", 0, false));
    l->s->staging.bytes = 100;
    l->s->staging.ahead = (struct read_ahead){.load_s = 10, .compute_s = 1, .alone_s = 5};
    l->s->restore->read_bytes = read_bytes;
    l->s->restore->t_start = 0;
}

static bool is_usable(struct lab *l)
{
    uint64_t before = l->g->shared->stats.n_staged_used;
    bool usable = staging_is_usable(l->g, l->s);
    assert_int_equal(l->g->shared->stats.n_staged_used, before + usable);
    return usable;
}

static void a_staged_restore_is_used_if_it_still_fits(void **state)
{
    struct lab l;
    lab_open(&l, &(struct et_ask){0});
    assert_false(is_usable(&l)); /* there is none */
    stage_half(&l, 12, 60);
    assert_true(is_usable(&l));
    l.s->n_done = 64; /* the device has got a chunk */
    assert_false(is_usable(&l));
    l.s->n_done = 63; /* a copied tail */
    assert_true(is_usable(&l));
    l.s->n_done = 0;
    l.nodes[5].n_live = 0; /* a chunk was condemned */
    assert_false(is_usable(&l));
    l.nodes[5].n_live = 1;
    l.s->restore->read_bytes = 40; /* too little was read */
    assert_false(is_usable(&l));
    lab_close(&l);
}

/* More chunks have been saved since the look-up. The chunk of the last token does not count,
 * because that token is computed in any case. */
static void more_stored_chunks_are_worth_a_new_look_up(void **state)
{
    struct lab l;
    struct err err = {0};
    lab_open(&l, &(struct et_ask){.save = "kv"});
    found_give_slots(l.g->pipeline, l.slots);
    l.g->stages = false;
    assert_int_equal(engine_run(l.k.engine, &err), 0);
    assert_int_equal(saver_flush(l.k.saver, &err), 0);
    engine_remove(l.k.engine, l.s);
    l.s = add(&l, &(struct et_ask){0});
    l.slots = found_take_slots(l.g->pipeline);
    stage_half(&l, N_CHUNKS, 60);
    assert_true(is_usable(&l));
    stage_half(&l, N_CHUNKS - 1, 60);
    assert_false(is_usable(&l));
    l.s->view.n_tokens = N_CHUNKS * 64;
    assert_true(is_usable(&l));
    l.s->view.n_tokens = N_CHUNKS * 64 + 1;
    assert_false(is_usable(&l));
    l.s->view.n_tokens = N_PROMPT;
    lab_close(&l);
}

int main(int argc, char **argv)
{
    et_only(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_waiting_sequence_is_decided_once),
        cmocka_unit_test(short_rests_are_not_looked_up),
        cmocka_unit_test(few_stored_tokens_are_not_staged),
        cmocka_unit_test(the_prediction_leaves_out_the_devices_chunks),
        cmocka_unit_test(room_is_counted_in_groups),
        cmocka_unit_test(a_forced_plan_is_read_as_it_is),
        cmocka_unit_test(a_plan_ahead_knows_of_decodes),
        cmocka_unit_test(a_prompt_that_is_not_worth_a_restore_is_computed),
        cmocka_unit_test(an_erased_chunk_ends_the_staging),
        cmocka_unit_test(a_staged_restore_is_used_if_it_still_fits),
        cmocka_unit_test(more_stored_chunks_are_worth_a_new_look_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
