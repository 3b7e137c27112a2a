/* learning.c - what restores teach the platform that plans are made from (policy/correction.h). */
#include "engine/seq.h"

#include "policy/correction.h"

void seq_expect(struct engine *e, struct seq *s, const struct plan_request *req)
{
    /* What decodes slow down says nothing of the machine. */
    s->expected = req->comp_slow > 1
                      ? (struct correction_expected){0}
                      : correction_expect(e->o.platform, 0, req, &s->out.plan);
}

/* Of a restore's time, that it had the compute lane or waited: else it ran beside decodes or another
 * restore, and its times say nothing of the machine. */
static const double ALONE = 0.8;

void seq_learn(struct engine *e, const struct seq *s)
{
    const struct restore_result *r = &s->out.restore;
    int64_t waited_ns = r->wait_ns + r->prefill_ns; /* prefill is what fills the waiting */
    bool alone = (double)(r->compute_ns + waited_ns) >= ALONE * (double)r->total_ns;
    if (!alone || r->fault[0] != 0) /* after a fault less was done than was expected */
        return;
    const struct correction_observed o = {.io_s = (double)r->io_ns * 1e-9,
                                          .compute_s = (double)r->compute_ns * 1e-9,
                                          .wait_s = (double)waited_ns * 1e-9,
                                          .total_s = (double)r->total_ns * 1e-9};
    correction_learn(e->o.platform, &s->expected, &o);
}
