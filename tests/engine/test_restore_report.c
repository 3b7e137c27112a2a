/* test_restore_report.c - what an ended restore reports and teaches. Results are made up. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "engine/restoring.h"
#include "tests/engine/enginetest.h"

enum { N_LAYERS = 4, N_CHUNKS = 6 };

/* A sequence whose restore ended as its plan predicted: 6 chunks in 100 ms, in which reads took
 * 90 ms and compute took 60 ms. */
struct lab {
    struct platform p;
    struct seq_shared sh;
    struct seq s;
};

static void lab_init(struct lab *l)
{
    *l = (struct lab){0};
    platform_init(&l->p);
    l->p.n_layers = N_LAYERS;
    l->p.h_bytes = 256;
    l->p.kv_bytes = 512;
    et_platform(&l->p, 1e-4, 2e-6, 1e-7, 1e7);
    l->s.shared = &l->sh;
    l->s.n_planned = N_CHUNKS;
    l->s.expected = (struct correction_expected){
        .io_s = 0.09, .gemm_s = 0.06, .restore_s = 0.1, .slowed = 1};
    struct plan *p = &l->s.out.plan;
    p->n_layers = N_LAYERS;
    snprintf(p->method, sizeof p->method, "RHHK");
    p->n_r = 1;
    p->n_h = 2;
    p->n_k = 1;
    p->restore_s = 0.1;
    p->predicted_s = 5;
    p->io_busy_s = 0.09;
    p->comp_busy_s = 0.06;
    l->s.out.restore = (struct restore_result){.n_chunks = N_CHUNKS,
                                               .n_tokens = N_CHUNKS * 64,
                                               .total_ns = 100000000,
                                               .io_ns = 90000000,
                                               .compute_ns = 60000000,
                                               .wait_ns = 40000000};
}

static void report(struct lab *l)
{
    restore_report(&l->p, &l->s, N_CHUNKS);
}

static int n_taught(const struct lab *l)
{
    return l->p.tier[0].correction.n_observed;
}

/* A restore as predicted reports nothing, and confirms the platform. */
TEST(a_restore_as_predicted_is_no_surprise)
{
    struct lab l;
    lab_init(&l);
    report(&l);
    assert_int_equal(l.s.out.surprise, SURPRISE_NONE);
    assert_int_equal(l.s.out.stall, STALL_NONE);
    assert_int_equal(l.sh.stats.n_stalls[STALL_NONE], 0);
    assert_string_equal(l.s.out.r.miss, "");
    assert_string_equal(l.s.out.plan.method, "RHHK");
    assert_string_equal(l.s.out.plan.reason, "");
    assert_int_equal(l.s.out.plan.n_layers, N_LAYERS);
    assert_int_equal(n_taught(&l), 1);
    assert_int_equal(l.p.gemm_correction.n_observed, 1);
    assert_true(fabs(l.p.tier[0].correction.log2) < 1e-9);
    assert_true(fabs(l.p.gemm_correction.log2) < 1e-9);
}

/* --- what teaches ----------------------------------------------------------------------------- */

/* Each lane teaches its own speed. */
TEST(the_lanes_teach_their_speeds)
{
    struct lab l;
    lab_init(&l);
    l.s.out.restore.io_ns *= 2;
    l.s.out.restore.total_ns = 200000000;
    l.s.out.restore.wait_ns = 140000000;
    report(&l);
    assert_true(l.p.tier[0].correction.log2 > 0.01);
    assert_true(fabs(l.p.gemm_correction.log2) < 1e-9);
    lab_init(&l);
    l.s.out.restore.compute_ns = 100000000;
    l.s.out.restore.wait_ns = 0;
    report(&l);
    assert_true(l.p.gemm_correction.log2 > 0.01);
    assert_int_equal(n_taught(&l), 0); /* compute never waited for the reads */
}

/* Restores whose times are not the machine's teach nothing. */
TEST(an_unusual_restore_teaches_nothing)
{
    struct lab l;
    for (int i = 0; i < 3; i++) {
        lab_init(&l);
        struct restore_result *r = &l.s.out.restore;
        switch (i) {
        case 0:
            snprintf(r->fault, sizeof r->fault, "a fault");
            break;
        case 1:
            r->raced_layers = 1;
            break;
        default: /* the sequence spent its time elsewhere */
            r->wait_ns = 0;
        }
        report(&l);
        assert_int_equal(n_taught(&l), 0);
        assert_int_equal(l.p.gemm_correction.n_observed, 0);
    }
}

/* While new tokens are prefilled, the restore's compute waits. */
TEST(prefill_counts_as_waiting)
{
    struct lab l;
    lab_init(&l);
    l.s.out.restore.wait_ns = 0;
    l.s.out.restore.prefill_ns = 40000000;
    report(&l);
    assert_int_equal(n_taught(&l), 1);
}

/* --- surprises -------------------------------------------------------------------------------- */

static enum surprise surprise_at(int64_t total_ns, int64_t io_ns, int64_t compute_ns)
{
    struct lab l;
    lab_init(&l);
    l.s.out.restore.total_ns = total_ns;
    l.s.out.restore.io_ns = io_ns;
    l.s.out.restore.compute_ns = compute_ns;
    report(&l);
    return l.s.out.surprise;
}

/* The whole and both lanes are compared with the plan's restore, without the prefill. */
TEST(a_miss_has_the_cause_of_its_lane)
{
    const int64_t ms = 1000000;
    assert_int_equal(surprise_at(201 * ms, 190 * ms, 60 * ms), SURPRISE_READS);
    assert_int_equal(surprise_at(201 * ms, 90 * ms, 160 * ms), SURPRISE_COMPUTE);
    assert_int_equal(surprise_at(201 * ms, 90 * ms, 60 * ms), SURPRISE_SHARED);
    assert_int_equal(surprise_at(201 * ms, 130 * ms, 60 * ms), SURPRISE_SHARED);
    assert_int_equal(surprise_at(49 * ms, 40 * ms, 30 * ms), SURPRISE_FASTER);
    assert_int_equal(surprise_at(199 * ms, 190 * ms, 60 * ms), SURPRISE_NONE);
    struct lab l;
    lab_init(&l);
    l.s.out.restore.total_ns = 201 * ms;
    l.s.out.restore.prefill_ns = 2 * ms;
    report(&l);
    assert_int_equal(l.s.out.surprise, SURPRISE_NONE);
}

/* The prediction of a preempted sequence is not judged. */
TEST(only_the_first_restore_can_surprise)
{
    struct lab l;
    for (int i = 0; i < 2; i++) {
        lab_init(&l);
        l.s.out.restore.total_ns = 1000000000;
        l.s.has_first = i == 1;
        report(&l);
        assert_int_equal(l.s.out.surprise, i == 0 ? SURPRISE_SHARED : SURPRISE_NONE);
    }
}

/* --- changes and losses ----------------------------------------------------------------------- */

/* If recomputation won, the raced layers were recomputed, and the others restored. */
TEST(a_won_race_is_told)
{
    struct lab l;
    lab_init(&l);
    struct plan *p = &l.s.out.plan;
    l.s.out.restore.raced_layers = 3;
    l.s.out.restore.won = true;
    report(&l);
    assert_string_equal(p->method, "RRRK");
    assert_true(p->n_r == 3 && p->n_h == 0 && p->n_k == 1);
    assert_non_null(strstr(p->reason, "recomputing was faster"));
    assert_int_equal(l.s.out.stall, STALL_RECOMPUTED);
    assert_int_equal(l.sh.stats.n_stalls[STALL_RECOMPUTED], 1);

    lab_init(&l); /* the reads ended first */
    l.s.out.restore.raced_layers = 3;
    report(&l);
    assert_string_equal(l.s.out.plan.method, "RHHK");
    assert_int_equal(l.s.out.stall, STALL_READ);
    assert_int_equal(l.sh.stats.n_stalls[STALL_READ], 1);

    lab_init(
        &l); /* a restore whose reads were left counts as left, whatever else happened */
    l.s.out.stall = STALL_LEFT;
    l.s.out.restore.raced_layers = 3;
    report(&l);
    assert_int_equal(l.s.out.stall, STALL_LEFT);
    assert_int_equal(l.sh.stats.n_stalls[STALL_LEFT], 1);
    assert_int_equal(l.sh.stats.n_stalls[STALL_NONE], 0);
}

/* Lost chunks are the miss. */
TEST(lost_chunks_are_told)
{
    struct lab l;
    lab_init(&l);
    l.s.out.restore.n_chunks = 4;
    l.s.out.restore.n_tokens = 4 * 64;
    l.s.out.restore.total_ns = 1000000000;
    snprintf(l.s.out.restore.fault, sizeof l.s.out.restore.fault, "chunk 4: bad");
    report(&l);
    assert_string_equal(l.s.out.r.miss, "chunk 4: bad");
    assert_int_equal(l.s.out.surprise, SURPRISE_LOST);
    assert_int_equal(l.s.out.plan.n_layers, N_LAYERS);
}

/* A plan that restores fewer chunks than are stored is a miss by choice. */
TEST(a_shorter_plan_is_told)
{
    struct lab l;
    lab_init(&l);
    restore_report(&l.p, &l.s, N_CHUNKS + 1);
    assert_non_null(strstr(l.s.out.r.miss, "the plan restores 6 of 7 stored chunks"));
}

/* A restore that brought no token beyond those of the device has no plan. */
TEST(a_restore_of_nothing_has_no_plan)
{
    struct lab l;
    lab_init(&l);
    l.s.out.restore.n_chunks = 2;
    l.s.out.restore.n_tokens = 128;
    l.s.n_done = 128;
    report(&l);
    assert_int_equal(l.s.out.plan.n_layers, 0);
    lab_init(&l);
    l.s.out.restore.n_tokens = 128;
    l.s.n_done = 127;
    report(&l);
    assert_int_equal(l.s.out.plan.n_layers, N_LAYERS);
}
