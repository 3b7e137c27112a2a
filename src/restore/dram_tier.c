/* dram_tier.c - see dram_tier.h. */
#include "restore/dram_tier.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A copy is used where it lies, so reading moves no bytes. A record costs its way through the
 * queue of the restores' I/O thread. The cost of its bytes is part of the compute that uses
 * them. */
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

/* Returns the seconds until the last of n equal layers has been read and computed by two lanes. */
static double two_lanes_s(int n, double io_s, double comp_s)
{
    return fmax(n * io_s + comp_s, io_s + n * comp_s);
}

bool dram_tier_gains(const struct platform *p, int64_t n_tokens, int64_t n_new,
                     double price_s)
{
    if (p->n_tiers == 0)
        return false;
    double new_s = n_new > 0 ? platform_prefill_s(p, n_tokens, n_new) : 0;
    double h = platform_h_s(p, n_tokens) + new_s, kv = platform_kv_s(p, n_tokens) + new_s;
    double io_h = platform_io_s(p, 0, n_tokens, RECORD_HIDDEN);
    double io_kv = platform_io_s(p, 0, n_tokens, RECORD_KV);
    double disk = fmin(two_lanes_s(p->n_layers, io_h, h),
                       two_lanes_s(p->n_layers, io_kv, kv));
    double dram = p->n_layers * fmin(h, kv);
    return disk - dram > dram / 32 + price_s;
}
