/* fingerprint.h - decides which saved states this process may use.
 *
 * The fingerprint is a hash of everything that determines a state's bits:
 *
 *   layout     STATE_LAYOUT_VERSION
 *   arithmetic the backend's class ("ref", "cpu", "cuda fast", ...) and its declared version
 *              (device.numerics, device.numerics_version), MODEL_NUMERICS_VERSION, the ranks;
 *              Q4_NUMERICS_VERSION if weights are q8 or q4, BF16R_NUMERICS_VERSION if they are
 *              bf16r
 *   model      weights, the config's fields that change a state (config_state_text), weight format,
 *              state dtype
 *   probe      results that this process computes for fixed tokens
 *
 * The versions are the first line of defence. tests/restore/golden holds digests of long runs of
 * every backend. If bits change under an unchanged version, tests/restore/test_numerics fails. So
 * an upgrade that changes no bits keeps its state, and instruction sets with equal bits share
 * it.
 *
 * The probe is the second line, against a build, a compiler or a machine whose results differ
 * from its declared version. It runs one layer of each kind over the first positions and some
 * far ones, and takes sample rows of the rotation tables, up to position 2^20. It depends
 * neither on the maximum context nor on the number of threads. */
#ifndef SAVE_FINGERPRINT_H
#define SAVE_FINGERPRINT_H

#include "base/hash.h"
#include "model/model.h"

/* Raised whenever the meaning of a record's bytes changes. */
#define STATE_LAYOUT_VERSION 2 /* 2: K and V of a chunk lie as a KV block does */

/* Rows of the forward pass that the probe makes. */
enum { FINGERPRINT_PROBE_ROWS = 76 };

/* Returns the device memory that the probe takes on each stage, besides struct model_work. */
size_t fingerprint_device_bytes(const struct model *m);

/* Computes the fingerprint. `w` must have room for FINGERPRINT_PROBE_ROWS rows. Costs as much as
 * these rows through one layer of each kind. */
int fingerprint_make(const struct model *m, struct model_work *w, struct stream *s,
                     struct sha256 *out, struct err *err);

#endif
