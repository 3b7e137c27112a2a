/* workload.h - the papers' workloads, generated from a seed.
 *
 * A workload is a list of sessions.  A session begins at its time, whatever the server does (open
 * loop); its next turn comes `think_s` after the previous answer.  A turn's text is made of
 * segments: words drawn from a seed, so that equal seeds give equal texts (a document, a shared
 * prefix). */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include <stdint.h>

#include "base/err.h"

struct segment {
    uint64_t seed;
    int n_tokens;
};

struct turn {
    double think_s; /* seconds after the previous answer; 0 for a first turn */
    struct segment *segments;
    int n_segments;
    int max_tokens; /* maximum length of the answer */
};

struct session {
    double start_s;
    struct turn *turns; /* later turns include the earlier ones and their answers */
    int n_turns;
};

struct workload {
    const char *name;
    struct session *sessions; /* sorted by start_s */
    int n_sessions;
    double seconds; /* no session begins after this time */
};

struct workload_opts {
    double seconds; /* time during which sessions (or requests of a trace) arrive */
    /* sessions or requests per minute; for a trace, 0 keeps its own times */
    double per_minute;
    double token_scale; /* factor for lengths */
    /* factor for the times between turns and between the requests of a trace */
    double time_scale;
    /* documents: skew of how often each document is requested; 0: all equally often */
    double zipf;
    int n_documents;
    /* a session ends when its history is longer; documents are cut to this length */
    int max_prompt;
    uint64_t seed;
    int task; /* documents: index into workload_tasks */
};

/* Kinds of documents, by HCache's Table 1, which has the mean tokens of document, question and
 * answer. "even": documents of 5,000 to 16,000 tokens, questions of 60 and answers of 50.  "mixed":
 * draws one of L-Eval's 20 sub-tasks for each document: the three that the table names, or one of
 * 17 others whose means give the table's last row. */
enum { TASK_EVEN, TASK_MIXED, TASK_PAPER_ASSISTANT, TASK_GSM, TASK_QUALITY };
/* names, in the order of the enum; ends with NULL */
extern const char *const workload_tasks[];

/* Makes chats like ShareGPT's (HCache paper, section 2.3): 66.8 new and 358.8 output tokens per
 * round on average, 30 s between rounds, Poisson arrivals, more than half of the histories over
 * 2.5K tokens. */
void workload_chats(struct workload *w, const struct workload_opts *o);
/* Makes requests like L-Eval's: a long document, then a short question, one request each. */
void workload_documents(struct workload *w, const struct workload_opts *o);
/* Reads a recorded trace: Mooncake's JSON lines (shared prefixes by hash_ids) or Azure's CSV. */
int workload_trace(struct workload *w, const struct workload_opts *o, const char *path,
                   struct err *err);
/* Means and quantiles of a workload's lengths, in tokens. */
struct workload_stats {
    int n_sessions, n_turns;
    /* mean number of new tokens per turn; for documents, without the document */
    double question;
    /* mean length of documents, which sessions may share; 0 for chats */
    double document;
    double answer;      /* mean of max_tokens */
    double history_p50; /* median of a session's whole length */
    double over_2500;   /* share of sessions longer than 2,500 tokens */
};
void workload_describe(const struct workload *w, struct workload_stats *out);
void workload_free(struct workload *w);

#endif
