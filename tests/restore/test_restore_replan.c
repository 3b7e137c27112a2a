/* test_restore_replan.c - which layers of a running restore change to another kind of record.
 *
 * The restore has 10 chunks and 4 layers, and the test sets its fields as in the middle of a
 * restore: layer 0 is being read, and the other layers may still change. Unless a case says
 * otherwise, reading a layer takes 1 s as hidden states and 2 s as K and V. Projecting a layer
 * takes 1 s, and K and V need no compute. */
#include "tests/unit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "restore/restore_impl.h"

enum { N_LAYERS = 4, N_CHUNKS = 10, N_ROWS = N_CHUNKS * STORE_CHUNK_TOKENS };

static struct restore_pipeline *rr;
static struct restore *r;
static struct store_hit hits[N_CHUNKS];

static int make(void **state)
{
    rr = xcalloc(1, sizeof *rr);
    r = xcalloc(1, sizeof *r);
    pthread_mutex_init(&rr->lock, NULL);
    r->rr = rr;
    for (int i = 0; i < N_CHUNKS; i++)
        hits[i].n_tokens = STORE_CHUNK_TOKENS;
    r->job.hits = hits;
    r->job.n_chunks = N_CHUNKS;
    r->may_replan = true;
    r->n_order = N_LAYERS;
    r->next_layer = 0;
    r->next_chunk = N_CHUNKS;
    for (int l = 0; l < N_LAYERS; l++) {
        r->order[l] = (int16_t)l;
        r->costs[l] = (struct layer_cost){
            .io_h_s = 1, .io_kv_s = 2, .comp_h_s = 1, .has_both = true};
        r->io_planned_s += 2;
    }
    return 0;
}

static int destroy(void **state)
{
    pthread_mutex_destroy(&rr->lock);
    free(rr);
    free(r);
    return 0;
}

static void becomes(const char *planned, const char *want)
{
    int n_changed = 0;
    memcpy(r->method, planned, N_LAYERS);
    r->out.n_replanned = 0;
    restore_replan(r);
    if (memcmp(r->method, want, N_LAYERS) != 0)
        fail_msg("%s became %.4s, not %s", planned, r->method, want);
    for (int l = 0; l < N_LAYERS; l++)
        n_changed += planned[l] != want[l];
    assert_int_equal(r->out.n_replanned, n_changed);
}

static void set_comp_h(double s)
{
    for (int l = 1; l < N_LAYERS; l++)
        r->costs[l].comp_h_s = s;
}

TEST_WITH(an_idle_compute_lane_takes_hidden_states, make, destroy)
{
    becomes("KKKK", "KHHH");
    becomes("KHHH", "KHHH");
    becomes("KHKK", "KHHH"); /* a layer that has this kind already is passed over */
}

/* The remaining compute of layer 0 counts in proportion to its remaining chunks. */
TEST_WITH(a_busy_compute_lane_takes_keys_and_values, make, destroy)
{
    r->costs[0].comp_h_s = 50;
    r->layer_left[0] = N_CHUNKS;
    becomes("HKKK", "HKKK");
    set_comp_h(10);
    becomes("HHHH", "HKKK");
    set_comp_h(1);
    /* 53 s instead of 50 s: a difference of less than a tenth is no reason to change */
    becomes("HHHH", "HHHH");
    r->layer_left[0] = 0;
    becomes("HKKK", "HHHH");
}

/* Layers that take longer to compute than to read come first. */
TEST_WITH(the_first_become_hidden_and_the_last_keys_and_values, make, destroy)
{
    set_comp_h(2);
    becomes("KKKK", "KHHK");
    becomes("HHHH", "HHHK");
}

/* With 2 s per layer, two hidden layers balance the lanes. If the disk turns out three times as
 * slow as planned, three hidden layers are better. A disk within a tenth of the plan changes
 * nothing. */
TEST_WITH(a_disk_is_as_slow_as_it_has_shown, make, destroy)
{
    set_comp_h(2);
    r->io_done_s = 2;
    r->io_ns = 6000000000;
    becomes("KKKK", "KHHH");
    r->io_done_s = 0.7;
    becomes("KKKK", "KHHK");
    /* Both kinds of reads are slow: 9 s of hidden states against 10.5 s of compute. */
    set_comp_h(3.5);
    r->io_done_s = 2;
    becomes("KKKK", "KHHH");
}

/* Keys and values need compute, too: with 1 s each, one hidden layer of 2 s is best. */
TEST_WITH(keys_and_values_have_their_own_compute, make, destroy)
{
    set_comp_h(2);
    for (int l = 1; l < N_LAYERS; l++)
        r->costs[l].comp_kv_s = 1;
    becomes("KKKK", "KHKK");
}

/* The part of layer 0 that is not read yet counts as well. */
TEST_WITH(the_rest_of_a_layer_is_read_first, make, destroy)
{
    set_comp_h(2);
    r->costs[0].io_kv_s = 20;
    /* 10 s of reads are left, so the compute lane is never the longer one */
    r->next_chunk = N_CHUNKS / 2;
    becomes("KKKK", "KHHH");
    r->next_chunk = N_CHUNKS;
    becomes("KKKK", "KHHK");
}

TEST_WITH(layers_without_both_kinds_stay, make, destroy)
{
    r->costs[2].has_both = false;
    becomes("KKKK", "KHKH");
}

/* When the rows of a group have arrived, their measured time of compute is used for later layers of
 * that kind. */
TEST_WITH(rows_that_have_come_say_what_a_layer_takes, make, destroy)
{
    r->kind_rows[STORE_HIDDEN] = GROUP_ROWS;
    r->kind_ns[STORE_HIDDEN] = (int64_t)(10e9 / N_ROWS * GROUP_ROWS);
    becomes("KKKK", "KKKK"); /* compute takes 10 s per layer, and all reads together 6 s */
    r->kind_rows[STORE_HIDDEN] = GROUP_ROWS - 1;
    becomes("KKKK", "KHHH");
}

TEST_WITH(recomputation_keeps_the_lane_busy, make, destroy)
{
    r->n_recompute = 2;
    rr->row_ns[0] = 50e9 / (2 * N_ROWS);
    becomes("KKKK", "KKKK");
    becomes("KHHH", "KHHH"); /* 53 s instead of 50 s */
    r->re.row = N_ROWS;
    becomes("KKKK", "KHHH");
}

TEST_WITH(some_restores_stay_as_they_are, make, destroy)
{
    r->out.raced_layers = 1;
    becomes("KKKK", "KKKK");
    r->out.raced_layers = 0;
    r->is_stopped = true;
    becomes("KKKK", "KKKK");
    r->is_stopped = false;
    r->may_replan = false;
    becomes("KKKK", "KKKK");
}

/* Layers with a window have fewer chunks: shares of a layer are shares of its own chunks. */
TEST_WITH(a_window_makes_a_layer_shorter, make, destroy)
{
    set_comp_h(2);
    r->start[0] = N_CHUNKS / 2;
    r->costs[0].io_kv_s = 5;
    r->next_chunk = N_CHUNKS - 3; /* 3 of its 5 chunks are left: 3 s of reads */
    becomes("KKKK", "KHHH");
    r->next_chunk = N_CHUNKS - 1;
    becomes("KKKK", "KHHK");
    r->next_chunk = N_CHUNKS;
    /* the measured time of a row counts for the rows that a layer has */
    for (int l = 1; l < N_LAYERS; l++)
        r->start[l] = N_CHUNKS / 2;
    r->kind_rows[STORE_HIDDEN] = GROUP_ROWS;
    r->kind_ns[STORE_HIDDEN] = (int64_t)(4e9 / N_ROWS *
                                         GROUP_ROWS); /* 2 s for half a layer */
    set_comp_h(100);
    becomes("KKKK", "KHHK");
}

/* A read that is in flight counts with its time so far. */
TEST_WITH(a_read_in_flight_shows_a_slow_disk, make, destroy)
{
    set_comp_h(2);
    r->io_done_s = 2;
    r->io_ns = 2000000000;
    r->io_since = clock_now_ns() - 4000000000;
    becomes("KKKK", "KHHK");
    r->n_in_flight = 1;
    becomes("KKKK", "KHHH");
}

/* --- what a job plans ------------------------------------------------------------------------- */

/* The costs of the plan are the costs of the restore. A layer may change if it has both kinds of
 * records and its hidden states must be read. */
TEST_WITH(a_job_brings_its_costs, make, destroy)
{
    struct plan plan = {.n_layers = N_LAYERS};
    struct plan_layer layer[N_LAYERS];
    memcpy(plan.method, "KHKH", N_LAYERS);
    for (int l = 0; l < N_LAYERS; l++)
        layer[l] = (struct plan_layer){.io_h_s = 1 + l,
                                       .io_kv_s = 10 + l,
                                       .comp_h_s = 20 + l,
                                       .comp_kv_s = 30 + l,
                                       .has_h = l != 1,
                                       .has_kv = l != 2,
                                       .h_free = l == 0};
    r->job.plan = &plan;
    for (int i = 0; i < 3; i++) {
        rr->up = i == 1 ? (struct stream *)(void *)rr : NULL;
        r->job.layer = i == 0 ? NULL : layer;
        r->io_planned_s = 0;
        memset(r->method, 0, sizeof r->method);
        restore_replan_begin(r);
        assert_memory_equal(r->method, "KHKH", N_LAYERS);
        /* a device with memory of its own keeps its plan */
        assert_int_equal(r->may_replan, i == 2);
        assert_true(r->io_planned_s == (i == 2 ? 10 + 2 + 12 + 4 : 0));
    }
    for (int l = 0; l < N_LAYERS; l++) {
        const struct layer_cost *c = &r->costs[l];
        assert_true(c->io_h_s == 1 + l && c->io_kv_s == 10 + l);
        assert_true(c->comp_h_s == 20 + l && c->comp_kv_s == 30 + l);
        assert_int_equal(c->has_both, l == 3);
    }
    r->n_order = 2; /* only the layers that are read count */
    r->io_planned_s = 0;
    restore_replan_begin(r);
    assert_true(r->io_planned_s == 10 + 2);
    r->order[0] = 3;
    r->io_planned_s = 0;
    restore_replan_begin(r);
    assert_true(r->io_planned_s == 4 + 2);
}

/* A group that has come back counts with its share of its layer's planned time. */
TEST_WITH(a_group_is_a_share_of_its_layer, make, destroy)
{
    struct group g = {.layer = 1, .n_chunks = 5, .kind = STORE_KV};
    restore_replan_read(r, &g);
    assert_true(r->io_done_s == 1);
    g.kind = STORE_HIDDEN;
    restore_replan_read(r, &g);
    assert_true(r->io_done_s == 1.5);
    r->start[1] = 5;
    restore_replan_read(r, &g);
    assert_true(r->io_done_s == 2.5);
    g.n_chunks = 0;
    restore_replan_read(r, &g);
    r->may_replan = false;
    g.n_chunks = 5;
    restore_replan_read(r, &g);
    assert_true(r->io_done_s == 2.5);
}
