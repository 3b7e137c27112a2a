/* dram_tier.h - the platform's tier for copies of chunks in DRAM, in front of the disk. Pure.
 *
 * Tier 0 of a platform is the home of stored chunks: the disk. Ranges of chunks that have copies
 * in DRAM carry the tier "dram" (plan_range.tier), so plans price each range by the place that
 * it is read from. */
#ifndef RESTORE_DRAM_TIER_H
#define RESTORE_DRAM_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "restore/platform.h"

/* Returns the index of the platform's tier "dram", which is at least 1. Adds this tier if the
 * profile has none. Returns 0 if there is no tier 0, or no room. */
int dram_tier(struct platform *p);

/* Returns whether a request with n_tokens of history and n_new new tokens would have its first
 * token sooner from DRAM than from tier 0. The gain must be above price_s plus 1/32 of the time
 * from DRAM; a smaller gain is within the error of predictions. price_s is the processor time
 * that the fetch takes from others, in seconds. New tokens follow the layers as they come back,
 * so a long prompt hides its own load. Returns false if the platform has no tier. */
bool dram_tier_gains(const struct platform *p, int64_t n_tokens, int64_t n_new,
                     double price_s);

#endif
