/* runner.c - see runner.h.
 *
 *     validating --> in_progress --> finalizing --> completed
 *          |           |  |-----> failed
 *          '---> cancelling ----> cancelled
 *
 * Each arrow is a record that is durable before the next step.  A batch found in any state before
 * its end is continued: its job skips the lines that are done (job.h). */
#include "api/runner.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "api/job.h"
#include "api/line.h"
#include "api/prompt.h"

enum {
    LOOKAHEAD = 1024,
    LEAST_TURN_S = 5, /* a batch keeps its model so long, although another is wanted */
    PATH_BYTES = 4200,
    RETRY_S = SHELF_RETRY_S, /* seconds to wait after a fault of the disk */
};

struct runner {
    struct runner_opts o;
    pthread_t thread;
    /* the batch that runs; used by the thread only, like all fields up to `lock` */
    struct shelf_batch now;
    struct client_calls calls;
    bool has_no_model;             /* the batch's model could not be loaded */
    int loan;                      /* of runner_opts.borrow */
    uint64_t lost_bytes;           /* bytes of answers that found no room */
    char last[SHELF_TENANT_BYTES]; /* the tenant that had the last turn */

    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t change;
    struct batch *job; /* the running job; NULL: no job runs */
    bool news, stopping;
};

/* --- callbacks of the job --------------------------------------------------------------------- */

static void began(void *arg)
{
    struct runner *r = arg;
    if (r->o.began != NULL)
        r->o.began(r->o.arg, r->now.head.tenant);
}

static void ended(void *arg, enum answer_end end, const struct hcache_result *result,
                  bool missed)
{
    struct runner *r = arg;
    if (r->o.ended != NULL)
        r->o.ended(r->o.arg, r->now.head.tenant, end, result, missed);
}

static void count(struct runner *r, const struct batch_counts *c)
{
    struct shelf_batch *b = &r->now;
    uint64_t total = MAX(c->total_lines, c->n_lines);
    b->n_lines = (int64_t)total;
    b->n_done = (int64_t)c->n_done;
    b->n_failed = (int64_t)c->n_failed;
}

/* Returns whether a batch of another tenant could run now. */
static bool other_waits(struct runner *r)
{
    struct shelf_batch *next = xcalloc(1, sizeof *next);
    bool waits = shelf_next_batch(r->o.shelf, r->now.head.tenant, next, NULL) &&
                 strcmp(next->head.tenant, r->now.head.tenant) != 0;
    free(next);
    return waits;
}

/* Returns whether the batch was cancelled meanwhile, and then takes over its status and times. */
static bool is_cancelled(struct runner *r)
{
    struct shelf_batch *b = xcalloc(1, sizeof *b);
    struct err err;
    bool yes = shelf_find_batch(r->o.shelf, r->now.head.tenant, r->now.head.id, b, &err) ==
                   0 &&
               b->status == BATCH_CANCELLING;
    if (yes) {
        r->now.status = b->status;
        memcpy(r->now.at_s, b->at_s, sizeof b->at_s);
    }
    free(b);
    return yes;
}

static void on_progress(void *arg, const struct batch_counts *c)
{
    struct runner *r = arg;
    count(r, c);
    shelf_count_batch(r->o.shelf, &r->now);
    shelf_set_growing(r->o.shelf, &r->now, c->out_bytes);
    batch_set_bound(r->job, c->out_bytes + shelf_room(r->o.shelf, r->now.head.tenant));
    if (is_cancelled(r))
        batch_stop(r->job);
    else if (c->elapsed_s > RUNNER_TURN_S && other_waits(r))
        batch_yield(r->job);
    else if (r->o.must_return != NULL && c->elapsed_s > LEAST_TURN_S &&
             r->o.must_return(r->o.arg, r->loan))
        batch_yield(r->job);
}

/* --- one batch -------------------------------------------------------------------------------- */

static int set_status(struct runner *r, enum batch_status status, struct err *err)
{
    r->now.status = status;
    r->now.at_s[status] = clock_wall_s();
    return shelf_put_batch(r->o.shelf, &r->now, err);
}

/* Makes files of the batch's answers, and sets its final status. */
static int finish(struct runner *r, enum batch_status status, struct err *err)
{
    int rc = shelf_keep_answers(r->o.shelf, &r->now, err);
    return rc == 0 ? set_status(r, status, err) : rc;
}

/* Ends the batch as failed. Tenants must not learn the names of the server's files. */
static int fail(struct runner *r, const char *why, struct err *err)
{
    log_warn("%s fails: %s", r->now.head.id, why);
    snprintf(r->now.error_code, sizeof r->now.error_code, "%s",
             r->has_no_model ? "model_not_loaded" : "server_error");
    snprintf(r->now.error_message, sizeof r->now.error_message, "%s",
             r->has_no_model ? "the model that the first line names cannot be loaded"
                             : "the server could not read or write its files");
    return finish(r, BATCH_FAILED, err);
}

static bool is_of_room(int code)
{
    return code == ERR_LIMIT || code == -ENOSPC || code == -EDQUOT;
}

/* Has the batch wait for room. Its first wait is logged. */
static void hold(struct runner *r, int code, const char *why)
{
    if (r->now.held_code == 0)
        log_warn("%s waits for room: %s", r->now.head.id, why);
    shelf_hold_batch(r->o.shelf, &r->now, r->lost_bytes, code);
}

/* Makes the job one that runner_stop can stop; stops it at once if the runner is stopping. */
static void set_job(struct runner *r, struct batch *job)
{
    pthread_mutex_lock(&r->lock);
    r->job = job;
    if (job != NULL && r->stopping)
        batch_stop(job);
    pthread_mutex_unlock(&r->lock);
}

static bool wait_for_news(struct runner *r, int seconds);

/* Takes the batch's model, and waits until it is loaded. */
static int borrow(struct runner *r, const char *input, struct client *client,
                  struct err *err)
{
    uint64_t ticket = 0;
    int rc;
    if (r->o.borrow == NULL)
        return 0;
    while ((rc = r->o.borrow(r->o.arg, input, &ticket, client, &r->loan, err)) == -EAGAIN)
        if (!wait_for_news(r, SHELF_RETRY_S))
            return ERR_CANCELLED;
    r->has_no_model = rc != 0;
    return rc;
}

/* Runs the job until it ends or stops. *run_err says how it ended. */
static int run_job(struct runner *r, struct err *run_err)
{
    char input[PATH_BYTES], output[PATH_BYTES], errors[PATH_BYTES];
    const struct shelf_batch *b = &r->now;
    struct batch_counts counts;
    struct batch *job;
    int fd, rc = shelf_open_input(r->o.shelf, b->input, input, sizeof input, &fd, run_err);
    if (rc != 0)
        return rc;
    shelf_path(r->o.shelf, b->output, output, sizeof output);
    shelf_path(r->o.shelf, b->errors, errors, sizeof errors);
    struct batch_opts o = {.client = r->o.client,
                           .input = input,
                           .output = output,
                           .errors = errors,
                           .is_private = true,
                           .seal = shelf_seal(r->o.shelf),
                           .only = line_kind(b->endpoint),
                           .in_flight = r->o.in_flight,
                           .lookahead = LOOKAHEAD,
                           .priority = HCACHE_MAX_PRIORITY,
                           .created_s = b->head.created_s,
                           .max_out_bytes = UINT64_MAX,
                           .on_progress = on_progress,
                           .progress_ns = 100000000,
                           .arg = r};
    o.client.salt = b->head.tenant[0] != 0 ? b->head.tenant : NULL;
    o.client.calls = &r->calls;
    o.client.arg = r;
    /* To all prompts the present moment is that at which the batch was made, also after midnight
     * and after a restart. */
    char moment[PROMPT_DATE_BYTES];
    prompt_moment(b->head.created_s, moment);
    o.client.moment = moment;
    rc = borrow(r, input, &o.client, run_err);
    bool has_loan = rc == 0 && r->o.give_back != NULL;
    if (rc == 0)
        rc = batch_open(&o, &job, run_err);
    if (fd >= 0)
        close(fd);
    if (rc != 0 && has_loan)
        r->o.give_back(r->o.arg, r->loan);
    if (rc != 0)
        return rc;
    set_job(r, job);
    rc = batch_run(job, run_err);
    set_job(r, NULL);
    batch_counts(job, &counts);
    count(r, &counts);
    r->lost_bytes = counts.lost_bytes;
    if (rc == 0) /* blank lines counted as lines until now, so the count is corrected */
        r->now.n_lines = (int64_t)counts.n_lines;
    batch_close(job);
    if (has_loan)
        r->o.give_back(r->o.arg, r->loan);
    return rc;
}

/* Returns 0, or the code of a fault of the shelf's disk. */
static int run_batch(struct runner *r, struct err *err)
{
    struct err run_err = {0};
    int rc = 0;
    if (r->now.status == BATCH_VALIDATING)
        rc = set_status(r, BATCH_IN_PROGRESS, err);
    if (rc != 0)
        return rc;
    if (r->now.status == BATCH_CANCELLING)
        return finish(r, BATCH_CANCELLED, err);
    shelf_hold_batch(r->o.shelf, &r->now, 0, 0);
    r->lost_bytes = 0;
    rc = run_job(r, &run_err);
    if (rc == ERR_CANCELLED)
        return is_cancelled(r) ? finish(r, BATCH_CANCELLED, err) : 0;
    if (is_of_room(rc)) {
        hold(r, rc, run_err.msg);
        return 0;
    }
    if (rc != 0)
        return fail(r, run_err.msg, err);
    rc = set_status(r, BATCH_FINALIZING, err);
    return rc == 0 ? finish(r, BATCH_COMPLETED, err) : rc;
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Waits for news, or at most `seconds` if positive.  Returns false if the thread must end. */
static bool wait_for_news(struct runner *r, int seconds)
{
    bool is_late = false;
    pthread_mutex_lock(&r->lock);
    while (!r->news && !r->stopping && !is_late) {
        if (seconds > 0)
            is_late = clock_cond_wait(&r->change, &r->lock, seconds * INT64_C(1000000000));
        else
            pthread_cond_wait(&r->change, &r->lock);
    }
    r->news = false;
    bool goes_on = !r->stopping;
    pthread_mutex_unlock(&r->lock);
    return goes_on;
}

static bool is_stopping(struct runner *r)
{
    pthread_mutex_lock(&r->lock);
    bool yes = r->stopping;
    pthread_mutex_unlock(&r->lock);
    return yes;
}

static void *runner_main(void *arg)
{
    struct runner *r = arg;
    bool goes_on = true;
    while (goes_on && !is_stopping(r)) {
        struct err err = {0};
        int n_held;
        if (!shelf_next_batch(r->o.shelf, r->last, &r->now, &n_held)) {
            goes_on = wait_for_news(r, n_held > 0 ? RETRY_S : 0);
            continue;
        }
        memcpy(r->last, r->now.head.tenant, sizeof r->last);
        if (run_batch(r, &err) != 0) {
            log_warn("a batch waits: %s", err.msg);
            goes_on = wait_for_news(r, RETRY_S);
        }
    }
    return NULL;
}

int runner_start(const struct runner_opts *o, struct runner **out, struct err *err)
{
    struct runner *r = xcalloc(1, sizeof *r);
    r->o = *o;
    r->calls = (struct client_calls){.began = began, .ended = ended};
    pthread_mutex_init(&r->lock, NULL);
    clock_cond_init(&r->change);
    int rc = thread_create(&r->thread, runner_main, r);
    if (rc != 0) {
        pthread_cond_destroy(&r->change);
        pthread_mutex_destroy(&r->lock);
        free(r);
        return err_set(err, -rc, "cannot start the batch thread: %s", err_name(-rc));
    }
    *out = r;
    return 0;
}

void runner_wake(struct runner *r)
{
    pthread_mutex_lock(&r->lock);
    r->news = true;
    pthread_cond_signal(&r->change);
    pthread_mutex_unlock(&r->lock);
}

void runner_stop(struct runner *r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    bool is_first = !r->stopping;
    r->stopping = true;
    if (r->job != NULL)
        batch_stop(r->job);
    pthread_cond_signal(&r->change);
    pthread_mutex_unlock(&r->lock);
    if (is_first)
        pthread_join(r->thread, NULL);
}

void runner_destroy(struct runner *r)
{
    if (r == NULL)
        return;
    runner_stop(r);
    pthread_cond_destroy(&r->change);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
