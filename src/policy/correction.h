/* correction.h - learning from observed restores what the profile got wrong.
 *
 * A profile is a sample of one moment; disks, neighbours and clocks change.  After every restore
 * the times of its two lanes are compared with what the measured costs, without any correction,
 * would have given, and the ratios move three factors: of GEMM, of loading KV, and of the tier
 * that was read.  They live in the platform (platform.h), are part of its text, and are applied
 * by platform_tok_s, platform_h_s, platform_kv_s and platform_io_s.
 *
 * Each factor is a robust running mean of log2(observed / measured cost):
 *
 * 1. Bounded: it stays within 2^±CORRECTION_LOG2_MAX.
 * 2. Robust: a surprise moves it by a limited step.  Only when surprises go on in one direction
 *    does the step double, so a change of the machine is followed, and a single outlier is not.
 * 3. It converges: the weight of an observation falls to CORRECTION_GAIN_MIN, never to zero.
 *
 * A kind of work that no plan uses teaches nothing.  GEMM is taught by prefill as well, which every
 * request has: a wrong belief about compute ends with the next prompts, and exploring
 * costs nothing.  Prefill teaches large misses only, since restores' own products run
 * beside reads and in other sizes.
 *
 * How large surprises are on average is the factor's *spread*: plans are hedged against it
 * (plan_request.io_spread).
 *
 * Pure. */
#ifndef POLICY_CORRECTION_H
#define POLICY_CORRECTION_H

#include <stdbool.h>

#include "policy/plan.h"
#include "policy/platform.h"

#define CORRECTION_LOG2_MAX 3.0
#define CORRECTION_ALONE    0.8
#define CORRECTION_GAIN_MIN 0.2
/* Prefill that takes so many times as long, or as short, as is believed is no noise. */
#define CORRECTION_PREFILL_MISS 1.5
/* Of a surprise, in what it says about the spread: an outlier is not a habit. */
#define CORRECTION_SPREAD_MAX 0.5

/* Takes one observation into a factor. Times that are not positive and finite are ignored. */
void correction_observe(struct platform_correction *c, double expected_s,
                        double observed_s);

/* What a plan's lanes are expected to take by the profile alone. */
struct correction_expected {
    int tier;
    double io_s;         /* the I/O lane, slowed by compute beside it as measured */
    double gemm_s, kv_s; /* the compute lane's two kinds of work, likewise */
};

/* The expectation of `plan` under `req`, whose layers were made from *p; of the restore only,
 * not of a prefill behind it.  Zeros, from which nothing is learned, where decodes slow it down
 * (req->comp_slow). */
struct correction_expected correction_expect(const struct platform *p, int tier,
                                             const struct plan_request *req,
                                             const struct plan *plan);

/* What a restore took. */
struct correction_observed {
    double io_s;      /* the I/O lane had something in flight */
    double compute_s; /* the compute lane was busy */
    double wait_s;    /* it waited for I/O */
    double total_s;
};

/* Whether a restore's times say something of the machine.  They do not where it did less than
 * expected (is_whole), and where it computed or waited in less than CORRECTION_ALONE of its
 * time: then it ran beside decodes or another restore. */
bool correction_is_of_machine(const struct correction_observed *o, bool is_whole);

/* Corrects *p.  Where compute never waits, the I/O lane's time may be that of the compute lane,
 * which frees the buffers: it then teaches only that reading is faster than was thought.  The
 * compute lane teaches the kind that was most of its work. */
void correction_learn(struct platform *p, const struct correction_expected *e,
                      const struct correction_observed *o);

/* A batch of new tokens alone took observed_s, where platform_prefill_s, with its corrections, says
 * believed_s.  Teaches GEMM where that is off by more than CORRECTION_PREFILL_MISS.  Nothing where
 * weights are streamed: then a batch may take what its weights take. */
void correction_learn_prefill(struct platform *p, double believed_s, double observed_s);

#endif
