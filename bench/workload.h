/* workload.h - who asks what when: the papers' workloads, from a seed.
 *
 * A workload is a list of sessions.  A session begins at its time, whatever the server
 * does (open loop); its next turn comes `think_s` after the answer before it.  A turn's
 * text is made of segments: words drawn from a seed, so that equal seeds are equal texts
 * (a document, a shared prefix). */
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
    int task; /* documents: an index of workload_tasks */
};

/* Kinds of documents, by HCache's Table 1: mean tokens of the document, the question and the
 * answer. "even" has documents of 5,000 to 16,000 tokens, questions of 60 and answers of 50.
 * "mixed" draws one of L-Eval's 20 sub-tasks for each document: the three that the table names,
 * or one of 17 others whose means give the table's last row. */
enum { TASK_EVEN, TASK_MIXED, TASK_PAPER_ASSISTANT, TASK_GSM, TASK_QUALITY };
extern const char *const workload_tasks[]; /* names, by the enum; ends with NULL */

/* ShareGPT-like chats (HCache section 2.3): 66.8 new and 358.8 output tokens a
 * round on average, 30 s between rounds, Poisson arrivals, more than half of the
 * histories over 2.5K tokens. */
void workload_chats(struct workload *w, const struct workload_opts *o);
/* L-Eval-like: a long document, then a short question, one request each. */
void workload_documents(struct workload *w, const struct workload_opts *o);
/* A recorded trace: Mooncake's JSON lines (shared prefixes by hash_ids) or Azure's CSV. */
int workload_trace(struct workload *w, const struct workload_opts *o, const char *path,
                   struct err *err);
/* Means and quantiles of what the workload asks for, in tokens. */
struct workload_stats {
    int n_sessions, n_turns;
    double question; /* mean of new tokens of a turn: of documents, without the document */
    double document; /* mean of a first segment that others may share; 0 for chats */
    double answer;   /* mean of max_tokens */
    double history_p50; /* of a session's whole length */
    double over_2500;   /* share of sessions that are longer than 2,500 tokens */
};
void workload_describe(const struct workload *w, struct workload_stats *out);
void workload_free(struct workload *w);

#endif
