/* job.h - runs a batch: every line of an input gets one line in the output or the errors.
 *
 *     batch_open(&opts, &job, &err);       takes over the lines that an earlier run has done
 *     batch_run(job, &err);                until all lines are done, or batch_stop
 *     batch_counts(job, &counts);
 *     batch_close(job);
 *
 * Up to opts.lookahead lines are read ahead and sent to the engine in the order of
 * api/prefix_order.h; opts.in_flight answers are generated at once.  The engine's thread must
 * run (hcache_serve_start).
 *
 * Each line that is in the output or the errors survives a crash.  batch_open on the same files
 * continues after any end of the previous run.  The result is the same set of lines, byte for byte,
 * if a request's answer depends only on the request (on the CPU it does, without timeout_ms). */
#ifndef API_JOB_H
#define API_JOB_H

#include "base/err.h"
#include "api/client.h"

struct batch_counts {
    uint64_t n_lines;   /* lines read so far, without blank ones */
    uint64_t n_skipped; /* lines done by an earlier run */
    /* n_done: lines written, including earlier runs; n_failed: those of them that report a fault */
    uint64_t n_done, n_failed;
    uint64_t out_bytes;   /* bytes written to output and errors */
    uint64_t lost_bytes;  /* bytes of answers that found no room */
    uint64_t total_lines; /* lines of the input; 0: not known */
    /* Tokens of this run. */
    uint64_t prompt_tokens, device_tokens, restored_tokens, generated_tokens;
    uint64_t n_answers; /* answers of this run; one line may have several */
    /* This run's time, in parts: reading lines and tokenizing them; waiting for the engine, or for
     * lines from a pipe; making answers and writing them. */
    double elapsed_s, reading_s, waiting_s, writing_s;
    /* Sums over all answers, which run concurrently. */
    double queue_s, restore_s, prefill_s, decode_s;
    /* bounds of the remaining time in seconds; left_high_s 0: not known */
    double left_low_s, left_high_s;
    bool is_stopped;
};

struct batch_opts {
    /* A template for all requests: the job sets the fields that vary per request, and its callbacks
     * also report to the job.  h may be NULL until batch_model sets it. */
    struct client client;
    /* "-" is standard input, or standard output. If `errors` is NULL, lines that report faults go
     * to the output. */
    const char *input, *output, *errors;
    bool is_private; /* only the owner of output and errors may read them */
    const struct seal
        *seal; /* with is_private: encrypts output and errors; NULL: they are plain */
    /* kinds of requests that are allowed (line.h), others fail; 0: all are allowed */
    unsigned only;
    int in_flight; /* maximum number of answers that are generated or wait for a place */
    int lookahead; /* maximum number of lines read ahead */
    int priority;  /* priority of all requests; 0: each request's own priority */
    int64_t created_s;      /* creation time in the answers, seconds since 1970 */
    uint64_t max_out_bytes; /* bound on the bytes of output and errors together; 0: none */
    /* Called on batch_run's thread after an event, and at least ten times a second, but not twice
     * within progress_ns.  NULL: not called. */
    void (*on_progress)(void *arg, const struct batch_counts *counts);
    int64_t progress_ns;
    void *arg;
};

struct batch;

/* Opens a batch. Strings of o are borrowed until batch_close. Returns ERR_BUSY if another job
 * writes the output, ERR_FORMAT if the output is not a batch's, and ERR_USAGE if input and output
 * are the same file. */
int batch_open(const struct batch_opts *o, struct batch **out, struct err *err);
/* Sets the model if opts.client named none. Call it before batch_run. */
void batch_model(struct batch *b, struct hcache *h);
/* Runs the batch until all lines are done or it must stop. Returns 0, the code of a file's fault,
 * ERR_LIMIT at max_out_bytes, or ERR_CANCELLED after batch_stop or if the engine stops. In every
 * case the written lines are durable and complete. */
int batch_run(struct batch *b, struct err *err);
/* Makes batch_run return within a step of the engine. Any thread. */
void batch_stop(struct batch *b);
/* Sends no more requests. When the running ones have ended, batch_run returns as after batch_stop.
 * Call it on batch_run's thread, in on_progress. */
void batch_yield(struct batch *b);
/* Sets a new max_out_bytes. Call it on batch_run's thread, in on_progress. */
void batch_set_bound(struct batch *b, uint64_t max_out_bytes);
void batch_counts(const struct batch *b, struct batch_counts *out);
void batch_close(struct batch *b); /* NULL is allowed */

#endif
