/* job.h - runs a batch: every line of an input gets one line in the output or the errors.
 *
 *     batch_open(&opts, &job, &err);       takes over what an earlier run has done
 *     batch_run(job, &err);                until all lines are done, or batch_stop
 *     batch_counts(job, &counts);
 *     batch_close(job);
 *
 * Lines are read ahead, as far as opts.lookahead allows, and sent to the engine in the order of
 * policy/prefix_order.h; opts.in_flight answers are generated at once.  The engine's thread
 * must run (hcache_serve_start).
 *
 * What survives a crash: each line in the output and the errors, once it is there.
 * batch_open on the same files goes on, whatever has ended the run before; the same set of
 * lines results, byte for byte, where a request's answer is a function of the request (it is
 * on the CPU, without timeout_ms). */
#ifndef BATCH_JOB_H
#define BATCH_JOB_H

#include "base/err.h"
#include "requests/client.h"

struct batch_counts {
    uint64_t n_lines;   /* read so far; blank lines do not count */
    uint64_t n_skipped; /* done by an earlier run */
    uint64_t n_done,
        n_failed;         /* written, by earlier runs too; n_failed of them tell a fault */
    uint64_t out_bytes;   /* of output and errors */
    uint64_t total_lines; /* of the input; 0: not known */
    uint64_t prompt_tokens, device_tokens, restored_tokens,
        generated_tokens; /* of this run */
    uint64_t n_answers;   /* of this run: a line may want several */
    /* The run's time: reading lines and making tokens of them; waiting for the engine, or for
     * lines from a pipe; making answers and writing them. */
    double elapsed_s, reading_s, waiting_s, writing_s;
    /* Of all answers together; they run at once. */
    double queue_s, restore_s, prefill_s, decode_s;
    double left_low_s, left_high_s; /* high 0: not known */
    bool is_stopped;
};

struct batch_opts {
    /* Its repeatable fields are the job's; its calls are told what the job is told.
     * h NULL: batch_model names it. */
    struct client client;
    const char *input, *output,
        *errors;            /* "-": standard input, output; errors NULL: as output */
    bool is_private;        /* output and errors are for their owner alone */
    unsigned only;          /* of the kinds of requests (line.h); others fail.  0: all */
    int in_flight;          /* answers that are generated at once, or wait for a place */
    int lookahead;          /* lines that are read ahead */
    int priority;           /* of all requests; 0: their own */
    int64_t created_s;      /* as the answers tell it */
    uint64_t max_out_bytes; /* of output and errors together; 0: no bound */
    /* Called by the thread of batch_run when something has happened, and at least ten times a
     * second; but not twice within progress_ns.  NULL: not. */
    void (*on_progress)(void *arg, const struct batch_counts *counts);
    int64_t progress_ns;
    void *arg;
};

struct batch;

/* Strings of o are borrowed until batch_close.  ERR_BUSY where another job writes the output;
 * ERR_FORMAT where the output is no batch's; ERR_USAGE where input and output are one file. */
int batch_open(const struct batch_opts *o, struct batch **out, struct err *err);
/* The model, where opts named none: before batch_run. */
void batch_model(struct batch *b, struct hcache *h);
/* 0; or the code of a fault of a file, ERR_LIMIT at max_out_bytes, ERR_CANCELLED
 * after batch_stop or where the engine stops.  Whatever it returns, what is written
 * is durable and whole. */
int batch_run(struct batch *b, struct err *err);
/* Any thread: batch_run returns within a step of the engine. */
void batch_stop(struct batch *b);
/* By the thread of batch_run, in on_progress: no more requests are sent, and batch_run returns
 * when those that run have ended, as after batch_stop. */
void batch_yield(struct batch *b);
/* Likewise: a new max_out_bytes. */
void batch_set_bound(struct batch *b, uint64_t max_out_bytes);
void batch_counts(const struct batch *b, struct batch_counts *out);
void batch_close(struct batch *b); /* NULL is allowed */

#endif
