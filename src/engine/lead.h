/* lead.h - which waiting requests let another one with the same beginning go first.
 *
 * Requests that begin with the same tokens would compute or restore them twice. So a request
 * waits while another one, its *leader*, is about to have the chunk that it lacks next. Only this
 * chunk counts. When the chunk is there, the question is asked again for the chunk after it.
 *
 * Pure: no clock, no allocation. */
#ifndef ENGINE_LEAD_H
#define ENGINE_LEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "engine/sched.h"

enum { LEAD_CHUNK_TOKENS = 64 };

/* A request. Equal keys under the same root mean equal tokens from the first one on. */
struct lead_request {
    enum sched_phase phase;
    const struct sha256 *root;
    const struct sha256 *keys; /* [n_keys] keys of its full chunks */
    int n_keys;
    const int32_t *tokens; /* [n_tokens] */
    int n_tokens;
    int n_done;     /* tokens that are restored or computed */
    bool may_reuse; /* the request uses state that others have computed */
    bool may_copy;  /* the request also uses a part of a chunk */
};

/* Returns whether x will have the tokens that s lacks next: the chunk after the first n_known
 * chunks, which s need not compute. If s has no further full chunk and may copy, these tokens are
 * the rest of its prompt except the last token. */
bool lead_is_ahead(const struct lead_request *x, const struct lead_request *s, int n_known);

/* Returns the index of the leader of waiting request `me` among the n requests, which are in the
 * order of arrival; -1: no request leads it. A leader restores or prefills, or waits and came
 * earlier. */
int lead_find(const struct lead_request *request, int n, int me, int n_known);

#endif
