/* dram_tier.c - see dram_tier.h. */
#include "policy/dram_tier.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A copy is used where it lies.  So reading moves no bytes: a record costs its way through the queue of
 * the restores' I/O thread.  What its bytes cost is part of the compute that uses them. */
#define RECORD_S    2e-6
#define BYTES_PER_S 1e12

int dram_tier(struct platform *p)
{
    for (int i = 1; i < p->n_tiers; i++)
        if (strcmp(p->tier[i].name, "dram") == 0)
            return i;
    if (p->n_tiers == 0 || p->n_tiers == PLATFORM_TIERS_MAX)
        return 0;
    struct platform_tier *t = &p->tier[p->n_tiers];
    *t = (struct platform_tier){.bytes_per_s = BYTES_PER_S,
                                .request_s = RECORD_S,
                                .up_bytes_per_s = p->tier[0].up_bytes_per_s,
                                .gather_bytes_per_s = p->tier[0].gather_bytes_per_s};
    snprintf(t->name, sizeof t->name, "dram");
    return p->n_tiers++;
}

/* A layer by one kind alone takes as long as the slower of its lanes. */
bool dram_tier_gains(const struct platform *p, int64_t n_tokens)
{
    if (p->n_tiers == 0)
        return false;
    double h = platform_h_s(p, n_tokens), kv = platform_kv_s(p, n_tokens);
    double disk = fmin(fmax(h, platform_io_s(p, 0, n_tokens, RECORD_HIDDEN)),
                       fmax(kv, platform_io_s(p, 0, n_tokens, RECORD_KV)));
    double dram = fmin(h, kv);
    return disk > dram * (1 + 1.0 / 32);
}
