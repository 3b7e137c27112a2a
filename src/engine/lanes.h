/* lanes.h - the I/O and compute lane of a sequence's restore, for pictures; private to
 * src/engine. */
#ifndef ENGINE_LANES_H
#define ENGINE_LANES_H

#include "hcache.h"
#include "restore/plan.h"
#include "restore/restore.h"

/* Fill *out: lanes_predict with the lanes that a plan predicts, lanes_measure with those of a
 * restore that ran. `out->span` is from malloc; spans that out already has are freed. */
void lanes_predict(struct hcache_lanes *out, const struct plan_request *req,
                   const struct plan *plan);
void lanes_measure(struct hcache_lanes *out, struct restore *r);

#endif
