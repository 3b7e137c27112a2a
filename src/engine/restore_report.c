/* restore_report.c - see restore_report.h. */
#include "engine/restore_report.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

/* Judges whether the prediction missed. New tokens that were computed meanwhile are not part of
 * the restore. */
static void judge_prediction(struct seq *s)
{
    const struct restore_result *r = &s->out.restore;
    const struct plan *p = &s->out.plan;
    const struct surprise_times predicted = {p->restore_s, p->io_busy_s, p->comp_busy_s};
    const struct surprise_times measured = {(double)(r->total_ns - r->prefill_ns) * 1e-9,
                                            (double)r->io_ns * 1e-9,
                                            (double)r->compute_ns * 1e-9};
    enum surprise why = surprise_of(&predicted, &measured, r->n_chunks >= s->n_planned);
    s->out.surprise = why;
    if (why != SURPRISE_NONE)
        log_info(
            "restoring %d tokens was predicted to take %.1f ms and took %.1f (%s): reads "
            "%.1f ms instead of %.1f, compute %.1f instead of %.1f",
            r->n_tokens, predicted.total_s * 1e3, measured.total_s * 1e3,
            surprise_name(why), measured.io_s * 1e3, predicted.io_s * 1e3,
            measured.compute_s * 1e3, predicted.compute_s * 1e3);
}

/* Changes the reported plan to the methods that ran: layers may have changed their kind of record,
 * and recomputation may have won a race. */
static void tell_changed(struct seq *s, const struct restore_result *r)
{
    struct plan *p = &s->out.plan;
    if (r->n_replanned == 0 && !r->won)
        return;
    p->n_r = p->n_h = p->n_k = 0;
    for (int l = 0; l < p->n_layers; l++) {
        p->method[l] = r->won && l < r->raced_layers ? 'R' : r->method[l];
        p->n_r += p->method[l] == 'R';
        p->n_h += p->method[l] == 'H';
        p->n_k += p->method[l] == 'K';
    }
    snprintf(p->reason, sizeof p->reason, "%s",
             r->won ? "its reads stalled, and recomputing was faster"
                    : "changed between layers: a lane was slower than the platform says");
}

/* Notes how a restore ended whose reads hung or crawled. */
static void judge_stall(struct seq *s)
{
    static const char *const ends[STALL_ENDS] = {"", "its reads ended first",
                                                 "recomputation ended first",
                                                 "prefill computes the missing part"};
    const struct restore_result *r = &s->out.restore;
    enum stall_end e = s->out.stall;
    if (e == STALL_NONE && r->raced_layers > 0)
        e = r->won ? STALL_RECOMPUTED : STALL_READ;
    s->out.stall = e;
    if (e == STALL_NONE)
        return;
    s->shared->stats.n_stalls[e]++;
    log_info("the restore of %d tokens whose reads stalled took %.1f ms: %s", r->n_tokens,
             (double)r->total_ns * 1e-6, ends[e]);
}

/* Corrects the platform by the times that the restore of s took. A staged restore teaches nothing.
 * Its reads ran beside decodes, two groups at a time, and stopped for other restores, so their
 * time is not the disk's. Its compute found parked groups ready, in another order than the
 * plan's. */
static void teach(struct platform *p, const struct seq *s)
{
    const struct restore_result *r = &s->out.restore;
    if (s->staging.is_placed)
        return;
    /* The compute lane waits while fused prefill runs, so prefill counts as waiting. */
    const struct correction_observed o = {.io_s = (double)r->io_ns * 1e-9,
                                          .compute_s = (double)r->compute_ns * 1e-9,
                                          .wait_s = (double)(r->wait_ns + r->prefill_ns) *
                                                    1e-9,
                                          .total_s = (double)r->total_ns * 1e-9};
    if (correction_is_of_machine(&o, r->fault[0] == 0 && r->raced_layers == 0 &&
                                         r->n_replanned == 0))
        correction_learn(p, &s->expected, &o);
}
/* Notes why not all stored chunks came back. */
static void tell_miss(struct seq *s, const struct restore_result *r, int n_hits)
{
    if (r->n_chunks < s->n_planned)
        snprintf(s->out.r.miss, sizeof s->out.r.miss, "%s", r->fault);
    else if (s->n_planned < n_hits)
        snprintf(
            s->out.r.miss, sizeof s->out.r.miss,
            "the plan restores %d of %d stored chunks: the others lack its records, or "
            "recomputing them is faster",
            s->n_planned, n_hits);
}

void restore_report(struct platform *p, struct seq *s, int n_hits)
{
    const struct restore_result *r = &s->out.restore;
    teach(p, s);
    judge_stall(s);
    tell_changed(s, r);
    s->shared->stats.n_replanned += r->n_replanned > 0;
    if (!s->has_first && !s->staging.is_placed)
        judge_prediction(s);
    tell_miss(s, r, n_hits);
    if (r->n_tokens <= s->n_done)
        s->out.plan.n_layers = 0;
}
