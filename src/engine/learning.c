/* learning.c - see learning.h. */
#include "engine/learning.h"

void learning_expect(const struct platform *p, struct seq *s,
                     const struct plan_request *req)
{
    s->expected = correction_expect(p, 0, req, &s->out.plan);
}

void learning_observe(struct platform *p, const struct seq *s)
{
    const struct restore_result *r = &s->out.restore;
    /* Prefill is what fills the waiting. */
    const struct correction_observed o = {.io_s = (double)r->io_ns * 1e-9,
                                          .compute_s = (double)r->compute_ns * 1e-9,
                                          .wait_s = (double)(r->wait_ns + r->prefill_ns) *
                                                    1e-9,
                                          .total_s = (double)r->total_ns * 1e-9};
    if (correction_is_of_machine(&o, r->fault[0] == 0))
        correction_learn(p, &s->expected, &o);
}
