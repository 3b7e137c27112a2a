/* load.h - a list of requests with the blocks that each prompt refers to.
 *
 * Blocks are numbers below n_blocks. A request's path is a list of runs of consecutive numbers,
 * so that a conversation of a thousand blocks takes a few bytes. Equal prefixes have equal
 * numbers.
 *
 *   mooncake   one JSON object a line: timestamp (ms), input_length, output_length, hash_ids
 *   agents     one JSON object a line: session, t (s), in, out, stop, blocks (inclusive ranges)
 *   chats      made from a seed: sessions of ShareGPT's lengths (AttentionStore, section 4.1)
 *
 * Pure, except for memory; the caller reads the file. */
#ifndef SIM_LOAD_H
#define SIM_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct load_run {
    uint32_t first, n; /* blocks first .. first + n - 1 */
};

struct load_request {
    double time_s; /* time of arrival */
    uint32_t session;
    uint32_t run, n_runs; /* the request's runs: load.run[run, run + n_runs) */
    uint32_t n_blocks;    /* references to blocks: the sum of the runs' lengths */
    uint32_t n_in, n_out; /* tokens of the prompt and of the answer */
    uint16_t turn;        /* number of the turn in its session, from 1; 0: unknown */
    bool is_tool_pending; /* the request ends with a tool call */
    bool is_partial;      /* the request's last block is not full */
};

struct load {
    struct load_request *request;
    uint32_t n_requests;
    struct load_run *run;
    uint32_t n_runs;
    uint32_t n_blocks; /* blocks have the numbers below n_blocks */
    uint32_t n_sessions;
    uint32_t block_tokens;
    uint64_t n_references;
};

/* Part of a file's sessions: all, or those with an odd or even place in the file, counted from 1.
 */
enum load_part { LOAD_ALL, LOAD_ODD, LOAD_EVEN };

/* Returns ERR_FORMAT with the line's number if a line is malformed. */
int load_mooncake(struct load *l, const char *text, size_t n, struct err *err);
/* Reads a file of agents' sessions. Sessions begin by a Poisson process with the given mean gap.
 * The requests are in order of time. */
int load_agents(struct load *l, const char *text, size_t n, enum load_part part,
                double gap_s, uint64_t seed, struct err *err);

/* Options of made chats. Lengths of sessions are lognormal, through P(> 2,048 tokens) = 0.47 and
 * P(> 4,096) = 0.30. Their numbers of turns have a mean of 5.75, with 27 % of a single turn, and
 * grow with the session's length. */
struct chats_opts {
    uint64_t seed;
    uint32_t n_sessions;
    double sessions_per_s; /* mean rate of the Poisson process by which sessions arrive */
    double think_s;        /* mean of a lognormal pause between turns; 0: no pauses */
    uint32_t max_tokens;   /* most tokens of a session */
};
/* Makes chats. Requests of a session follow each other in the list; sessions are in order of
 * arrival. time_s is the session's arrival + its pauses. Without pauses all its requests have
 * the time of the first. */
void load_chats(struct load *l, const struct chats_opts *o);
/* Sorts the requests by time; the requests of a session keep their order. */
void load_sort(struct load *l);

void load_free(struct load *l);

#endif
