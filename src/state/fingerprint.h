/* fingerprint.h - which saved states this process may use (DESIGN §7). */
#ifndef STATE_FINGERPRINT_H
#define STATE_FINGERPRINT_H

#include "base/hash.h"
#include "model/model.h"

/* Bumped whenever the meaning of a record's bytes changes. */
#define STATE_LAYOUT_VERSION 2 /* 2: K and V of a chunk lie as a KV block does */

/* The hash of all that gives a state its bits: weights, config, weight format, state dtype, record
 * layout, and a numerics id.  The latter is a digest of hidden states, K and V that this build
 * computes for a fixed probe, so that kernels which give other bits are another fingerprint, and
 * another host with equal kernels is not.  Costs a forward pass of PROBE_TOKENS through one layer;
 * `w` needs as many rows. */
enum { FINGERPRINT_PROBE_TOKENS = 70 };

/* Device memory that its probe takes, of each stage, beside the work. */
size_t fingerprint_device_bytes(const struct model *m);
int fingerprint_make(const struct model *m, struct model_work *w, struct stream *s,
                     struct sha256 *out, struct err *err);

#endif
