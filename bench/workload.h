/* workload.h - who asks what when: the papers' workloads, from a seed.
 *
 * A workload is a list of sessions.  A session begins at its time, whatever the server does (open loop);
 * its next turn comes `think_s` after the answer before it.  A turn's text is made of segments: words
 * drawn from a seed, so that equal seeds are equal texts (a document, a shared prefix). */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include <stdint.h>

#include "base/err.h"

struct segment {
    uint64_t seed;
    int n_tokens;
};

struct turn {
    double think_s; /* after the answer before; of a first turn 0 */
    struct segment *segments;
    int n_segments;
    int max_tokens; /* of the answer */
};

struct session {
    double start_s;
    struct turn *turns; /* later turns see the earlier ones and their answers */
    int n_turns;
};

struct workload {
    const char *name;
    struct session *sessions; /* by start_s */
    int n_sessions;
    double seconds; /* nothing begins after this */
};

struct workload_opts {
    double seconds;     /* how long sessions (or requests of a trace) arrive */
    double per_minute;  /* sessions or requests; of a trace: 0 keeps its own times */
    double token_scale; /* lengths are multiplied by this */
    double time_scale;  /* times between turns, and of a trace, are multiplied by this */
    double zipf;        /* documents: how unevenly they are asked for; 0: evenly */
    int n_documents;
    int max_prompt; /* longer histories end their session; longer documents are cut */
    uint64_t seed;
};

/* ShareGPT-like chats (HCache section 2.3): 66.8 new and 358.8 output tokens a round on average, 30 s
 * between rounds, Poisson arrivals, more than half of the histories over 2.5K tokens. */
void workload_chats(struct workload *w, const struct workload_opts *o);
/* L-Eval-like: a long document, then a short question, one request each (HCache Table 1). */
void workload_documents(struct workload *w, const struct workload_opts *o);
/* A recorded trace: Mooncake's JSON lines (shared prefixes by hash_ids) or Azure's CSV. */
int workload_trace(struct workload *w, const struct workload_opts *o, const char *path,
                   struct err *err);
void workload_free(struct workload *w);

#endif
