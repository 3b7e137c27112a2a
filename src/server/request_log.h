/* request_log.h - one line for each request, at the level that `serve -v` sets.
 *
 *     POST /v1/chat/completions 200 in 312.4 ms: prompt 141, cached 128 (disk R0 H0 K4), generated 24
 *     POST /v1/chat/completions 400 in 0.2 ms: unknown parameter '...'
 *
 * cached: prompt tokens with existing state, from the KV cache (device) or the store (dram, disk),
 * with the number of layers that were recomputed (R), and restored from hidden states (H) and from
 * keys and values (K). Answered polls (/health, /metrics, /v1/cache/stats) have no line. The line
 * of a refused request has the reason. Ids, keys and texts are not logged: "..." replaces a text
 * that the client has sent. */
#ifndef SERVER_REQUEST_LOG_H
#define SERVER_REQUEST_LOG_H

#include <stdbool.h>

struct call;

/* Logs an ended request. lost: its client had gone before the end of the answer. */
void request_log(const struct call *c, bool lost);

#endif
