/* learning.c - see learning.h. */
#include "engine/learning.h"

void learning_expect(const struct platform *p, struct seq *s,
                     const struct plan_request *req)
{
    /* A restore that decodes slow down says nothing of the machine. */
    s->expected = req->comp_slow > 1 ? (struct correction_expected){0}
                                     : correction_expect(p, 0, req, &s->out.plan);
}

/* Least share of its time in which a restore computed or waited. With less it ran beside decodes or another
 * restore, and its times say nothing of the machine. */
static const double ALONE = 0.8;

void learning_observe(struct platform *p, const struct seq *s)
{
    const struct restore_result *r = &s->out.restore;
    int64_t waited_ns = r->wait_ns + r->prefill_ns; /* prefill is what fills the waiting */
    bool alone = (double)(r->compute_ns + waited_ns) >= ALONE * (double)r->total_ns;
    if (!alone || r->fault[0] != 0) /* after a fault it did less than expected */
        return;
    const struct correction_observed o = {.io_s = (double)r->io_ns * 1e-9,
                                          .compute_s = (double)r->compute_ns * 1e-9,
                                          .wait_s = (double)waited_ns * 1e-9,
                                          .total_s = (double)r->total_ns * 1e-9};
    correction_learn(p, &s->expected, &o);
}
