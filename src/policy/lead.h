/* lead.h - which waiting requests let another one with the same beginning go first.
 *
 * Requests that begin with the same tokens would compute or restore them twice.  So a request
 * waits while another one is about to have what it lacks next: its *leader*.  Only the next
 * chunk counts; what follows it is asked again when that chunk is there.
 *
 * Pure: no clock, no allocation. */
#ifndef POLICY_LEAD_H
#define POLICY_LEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "policy/sched.h"

enum { LEAD_CHUNK_TOKENS = 64 };

/* A request.  Equal keys mean equal tokens from the first one on, under the same root. */
struct lead_request {
    enum sched_phase phase;
    const struct sha256 *root;
    const struct sha256 *keys; /* [n_keys] of its full chunks */
    int n_keys;
    const int32_t *tokens; /* [n_tokens] */
    int n_tokens;
    int n_done;     /* tokens that are restored or computed */
    bool may_reuse; /* it uses what others have computed */
    bool may_copy;  /* a part of a chunk, too */
};

/* Whether x will have what s lacks first behind its n_known known chunks: its next chunk, or,
 * where that is all and may be copied, the rest of its prompt but the last token. */
bool lead_is_ahead(const struct lead_request *x, const struct lead_request *s, int n_known);

/* The leader of waiting request `me` among the n, which are in the order in which they came; -1:
 * none.  Requests that restore or prefill lead, and those that wait and came earlier. */
int lead_find(const struct lead_request *request, int n, int me, int n_known);

#endif
