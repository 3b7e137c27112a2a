/* correction.h - corrects the profile by the times of observed restores.
 *
 * A profile is a sample of one moment; disks, neighbours and clocks change. After every restore
 * the times of its two lanes are compared with the times that the measured costs give without
 * correction. The ratios move three factors: GEMM, loading KV, and the tier that was read. The
 * factors live in the platform (platform.h), are part of its text, and are applied by
 * platform_tok_s, platform_h_s, platform_kv_s and platform_io_s.
 *
 * Each factor is a robust running mean of log2(observed / measured cost):
 * 1. It is bounded: it stays within 2^±CORRECTION_LOG2_MAX.
 * 2. It is robust: a single outlier moves it by a limited step. CORRECTION_RUN surprises in a row
 *    in one direction are a change of the machine. The factor then becomes the observation of
 *    these that is nearest to it.
 * 3. It converges: the weight of an observation falls to CORRECTION_GAIN_MIN, never to zero.
 *
 * A kind of work that no plan uses teaches nothing. Prefill teaches GEMM as well, and every
 * request has a prefill. So a wrong belief about compute ends with the next prompts, and
 * exploring costs nothing. Prefill teaches only large misses, since restores' own products run
 * beside reads and in other sizes.
 *
 * Nothing else teaches how fast KV is loaded or a tier is read, or how long balanced plans pause. A
 * belief that these are slower than the profile says keeps plans from using them, and would stay
 * for ever. So it fades towards the profile if no restore has used them for CORRECTION_UNUSED
 * batches of prompts. A plan then uses them again and learns. If they are slow indeed, that costs
 * some restores in hundreds of prompts.
 *
 * A restore of less than CORRECTION_SHORT_S also waits for threads to wake up, and that time
 * belongs to no lane. Its time beyond the prediction moves platform.start_s. A longer restore
 * shortens start_s if its busier lane paused for less than start_s.
 *
 * Under load, short work mostly runs without interruption, and longer work does not. So a short
 * restore may be much faster than longer ones have taught, and teaches that.
 *
 * Beside other programs both lanes may take their predicted times, and the whole longer, because
 * each waits for the other's next piece while threads wait for a processor. The time of the whole
 * over that of its lanes, at the speeds that they had, moves platform.pause_correction. Plans of
 * CORRECTION_SHORT_S and more count it in their predicted times. A thread that mostly waits is run
 * as soon as it is ready; one that always computes gets its share of the processor only. So
 * balanced plans, both of whose lanes work most of the time, have a factor of their own. If it is
 * the larger one, a single method may be faster than the mixture that the search finds.
 *
 * Where records are lost in parts, layers are restored in short runs of chunks. The surplus of
 * the compute lane is then the cost of splits, and moves platform.split_s. It says nothing about
 * the speed of a kind: later restores of whole contexts would seem slow, too.
 *
 * The mean size of surprises is the factor's *spread* (plan_request.spread): a mixture that is
 * predicted to gain less loses to a single method.
 *
 * Pure. */
#ifndef RESTORE_CORRECTION_H
#define RESTORE_CORRECTION_H

#include <stdbool.h>

#include "restore/plan.h"
#include "restore/platform.h"

#define CORRECTION_LOG2_MAX 3.0
#define CORRECTION_ALONE    0.8
#define CORRECTION_GAIN_MIN 0.2
#define CORRECTION_RUN      3
#define CORRECTION_SHORT_S  2e-3
#define CORRECTION_UNUSED   256
/* A restore with runs of chunks that compute for less than this on average teaches the cost of
 * splits. Splits are then at least a fifth of its compute, at PLATFORM_SPLIT_S each. */
#define CORRECTION_SHORT_RUN_S (4 * PLATFORM_SPLIT_S)
#define CORRECTION_SPLIT_MAX_S 100e-6
/* Compute that takes this many times longer, or shorter, than predicted is not noise. */
#define CORRECTION_LARGE_MISS 1.5
/* Most that one surprise adds to the spread, in log2: an outlier is not a habit. */
#define CORRECTION_SPREAD_MAX 0.5

/* Takes one observation into a factor. Times that are not positive and finite are ignored. */
void correction_observe(struct platform_correction *c, double expected_s,
                        double observed_s);

/* Takes a check: one sample of a cost, made by a process before its first plan. believed_s includes
 * the correction. A ratio within CORRECTION_LARGE_MISS is noise and says nothing. A larger one
 * moves the factor halfway to the sample, at most by 2 or 1/2, because one sample may have been
 * interrupted. The other half becomes doubt: the factor's spread is at least as large. */
void correction_check(struct platform_correction *c, double believed_s, double sample_s);

/* Times that a plan's lanes are expected to take, by the profile alone. */
struct correction_expected {
    int tier;
    double restore_s; /* the whole restore, by the corrected profile but without start_s */
    double io_s;      /* the I/O lane, slowed by the measured overlap with compute */
    /* The compute lane's two kinds of work, slowed by the overlap with I/O. */
    double gemm_s, kv_s;
    int n_splits;  /* splits (plan.h) of the plan's layers */
    double slowed; /* factor by which I/O slows compute and splits */
};

/* Returns the expected times of `plan` under `req`, whose layers were made from *p. They cover
 * the restore only, not a prefill after it. Returns zeros, which teach nothing, if decodes slow
 * the plan down (req->comp_slow). */
struct correction_expected correction_expect(const struct platform *p, int tier,
                                             const struct plan_request *req,
                                             const struct plan *plan);

/* Measured times of a restore. */
struct correction_observed {
    double io_s;      /* time with at least one read in flight */
    double compute_s; /* time that the compute lane was busy */
    double wait_s;    /* time that the compute lane waited for I/O */
    double total_s;
};

/* Returns whether a restore's times describe the machine. They do not if it did less than
 * expected (is_whole is false). They also do not if it computed or waited in less than
 * CORRECTION_ALONE of its time: then it ran beside decodes or another restore. */
bool correction_is_of_machine(const struct correction_observed *o, bool is_whole);

/* Corrects *p. If compute hardly waited, reads may only have waited for buffers that the compute
 * lane frees. The I/O lane then teaches only that reading is faster than believed. The compute
 * lane teaches the cost of splits if its runs of chunks are short, else the kind that was at least
 * four fifths of its work; the other costs are taken as right. If neither kind was, it teaches
 * nothing, with two exceptions, in which both kinds learn the same ratio: a large miss (the machine
 * is probably slower for both kinds), and a plan with splits (no other plan of that context has
 * only one kind). */
void correction_learn(struct platform *p, const struct correction_expected *e,
                      const struct correction_observed *o);

/* Counts a batch of nothing but new tokens: unused beliefs fade (see above). believed_s is the
 * result of platform_prefill_s, corrections included. Corrects GEMM if observed_s and believed_s
 * differ by more than the factor CORRECTION_LARGE_MISS, but not after a batch of at most 0.2 ms,
 * and not if weights are streamed: a batch may then take the time of its weights. */
void correction_learn_prefill(struct platform *p, double believed_s, double observed_s);

#endif
