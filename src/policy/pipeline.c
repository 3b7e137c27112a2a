/* pipeline.c - see pipeline.h.
 *
 * Invariants of the simulation:
 * 1. The I/O lane works on one read at a time, in order, without gaps, from time 0.
 * 2. The compute lane idles only when nothing is ready; so the amount of work done by any
 * moment, and with it the makespan, does not depend on which ready job it takes.
 * 3. Progress is a pair of remaining times "as if alone"; an overlap factor divides its
 * speed. */
#include "policy/pipeline.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "policy/plan_parts.h"

enum { NOTHING = -1 };

struct lanes {
    const struct pipe_load *load;
    struct pipeline *out;
    double t;
    /* I/O */
    int reading; /* index of the job being read, NOTHING when all are */
    double read_left_s, read_start_s;
    /* read but, because of the latency, not yet here: a queue in job order */
    int n_read, n_arrived;
    int read[PIPE_MAX_JOBS];
    double arrives_s[PIPE_MAX_JOBS];
    int n_taken; /* of the arrived */
    /* compute */
    struct pipe_item busy; /* what runs; layer NOTHING when idle */
    int busy_job;
    double comp_left_s;
    int next_readless; /* the next job without a read */
    int next_prefill;
    bool head_done;
    int n_restored_jobs;
    uint8_t jobs_left[PLAN_MAX_LAYERS]; /* of each layer, until it is restored */
    int n_prefix;                       /* layers 0..n_prefix-1 are restored */
};

static void record(struct lanes *s, struct pipe_item item)
{
    if (s->out == NULL)
        return;
    CHECK(s->out->n_items < PIPE_MAX_ITEMS);
    s->out->item[s->out->n_items++] = item;
}

static void start_next_read(struct lanes *s, int from)
{
    const struct pipe_load *l = s->load;
    s->reading = NOTHING;
    for (int i = from; i < l->n_jobs; i++)
        if (l->job[i].io_s > 0) {
            s->reading = i;
            s->read_left_s = l->job[i].io_s;
            s->read_start_s = s->t;
            return;
        }
}

static void finish_read(struct lanes *s)
{
    int i = s->reading;
    s->read[s->n_read] = i;
    s->arrives_s[s->n_read++] = s->t + s->load->latency_s;
    record(s, (struct pipe_item){.start_s = s->read_start_s,
                                 .end_s = s->t,
                                 .layer = s->load->job[i].layer,
                                 .method = s->load->job[i].method,
                                 .lane = PIPE_IO});
    start_next_read(s, i + 1);
}

static void start_job(struct lanes *s, int i)
{
    const struct pipe_job *j = &s->load->job[i];
    s->busy_job = i;
    s->comp_left_s = j->comp_s;
    s->busy = (struct pipe_item){
        .start_s = s->t, .layer = j->layer, .method = j->method, .lane = PIPE_RESTORE};
}

static void start_prefill(struct lanes *s, double comp_s, char what)
{
    s->comp_left_s = comp_s;
    s->busy = (struct pipe_item){.start_s = s->t,
                                 .layer = (int16_t)s->next_prefill,
                                 .method = what,
                                 .lane = PIPE_PREFILL};
}

/* Layers whose new tokens may be prefilled now: 0..n-1. */
static int prefill_allowed(const struct lanes *s)
{
    const struct pipe_load *l = s->load;
    if (l->prefill_s == NULL)
        return 0;
    if (l->fused)
        return s->n_prefix;
    return s->n_restored_jobs == l->n_jobs ? l->n_layers : 0;
}

/* Arrived layers first, then recomputation, then prefill, then the head: see pipeline.h. */
static void start_compute(struct lanes *s)
{
    const struct pipe_load *l = s->load;
    s->busy.layer = NOTHING;
    if (s->n_taken < s->n_arrived) {
        start_job(s, s->read[s->n_taken++]);
        return;
    }
    while (s->next_readless < l->n_jobs && l->job[s->next_readless].io_s > 0)
        s->next_readless++;
    if (s->next_readless < l->n_jobs) {
        start_job(s, s->next_readless++);
        return;
    }
    if (s->next_prefill < prefill_allowed(s)) {
        start_prefill(s, l->prefill_s[s->next_prefill], 'P');
        return;
    }
    bool all = s->n_restored_jobs == l->n_jobs &&
               (l->prefill_s == NULL || s->next_prefill == l->n_layers);
    if (all && !s->head_done && l->head_s > 0) {
        s->next_prefill = l->n_layers;
        start_prefill(s, l->head_s, 'L');
    }
}

static void finish_compute(struct lanes *s)
{
    s->busy.end_s = s->t;
    record(s, s->busy);
    if (s->busy.lane == PIPE_RESTORE) {
        s->n_restored_jobs++;
        s->jobs_left[s->busy.layer]--;
        while (s->n_prefix < s->load->n_layers && s->jobs_left[s->n_prefix] == 0)
            s->n_prefix++;
        if (s->out != NULL && s->n_restored_jobs == s->load->n_jobs)
            s->out->restore_s = s->t;
    } else if (s->busy.method == 'L') {
        s->head_done = true;
    } else {
        s->next_prefill++;
    }
    s->busy.layer = NOTHING;
}

/* To the next end of a read, end of a computation, or arrival. */
static void advance(struct lanes *s)
{
    const struct pipe_load *l = s->load;
    bool io = s->reading != NOTHING, comp = s->busy.layer != NOTHING;
    double slow_io = comp ? l->io_overlap : 1, slow_comp = io ? l->comp_overlap : 1;
    double to_read = io ? s->read_left_s * slow_io : INFINITY;
    double to_comp = comp ? s->comp_left_s * slow_comp : INFINITY;
    double to_arrival = s->n_arrived < s->n_read
                            ? fmax(0, s->arrives_s[s->n_arrived] - s->t)
                            : INFINITY;
    double dt = fmin(fmin(to_read, to_comp), to_arrival);
    s->t += dt;
    if (s->out != NULL) {
        s->out->io_busy_s += io ? dt : 0;
        s->out->comp_busy_s += comp ? dt : 0;
    }
    if (io)
        s->read_left_s -= dt / slow_io;
    if (comp)
        s->comp_left_s -= dt / slow_comp;
    if (to_read <= dt)
        finish_read(s);
    if (to_arrival <= dt)
        s->n_arrived++;
    if (to_comp <= dt)
        finish_compute(s);
    /* A read without latency is here at once, before compute chooses. */
    while (s->n_arrived < s->n_read && s->arrives_s[s->n_arrived] <= s->t)
        s->n_arrived++;
}

static double run_events(const struct pipe_load *load, struct pipeline *out)
{
    struct lanes s;
    memset(&s, 0, offsetof(struct lanes, read));
    s.load = load;
    s.out = out;
    s.n_taken = s.next_readless = s.next_prefill = s.n_restored_jobs = s.n_prefix = 0;
    s.head_done = false;
    memset(s.jobs_left, 0, sizeof s.jobs_left);
    for (int i = 0; i < load->n_jobs; i++)
        s.jobs_left[load->job[i].layer]++;
    start_next_read(&s, 0);
    start_compute(&s);
    while (s.reading != NOTHING || s.busy.layer != NOTHING || s.n_arrived < s.n_read) {
        advance(&s);
        if (s.busy.layer == NOTHING)
            start_compute(&s);
    }
    CHECK(s.n_restored_jobs == load->n_jobs);
    return s.t;
}

/* Without mutual slow-down: by invariant 2, an arrival brings its own compute and whatever
 * prefill it unlocks, and compute is busy from max(arrival, busy so far). */
static double run_recurrence(const struct pipe_load *l)
{
    uint8_t jobs_left[PLAN_MAX_LAYERS];
    bool fused = l->prefill_s != NULL && l->fused;
    int n_prefix = 0;
    double io = 0, comp = 0, tail = l->head_s;
    if (fused) {
        memset(jobs_left, 0, sizeof jobs_left);
        for (int i = 0; i < l->n_jobs; i++)
            jobs_left[l->job[i].layer]++;
    }
    for (int pass = 0; pass < 2; pass++) /* what needs no read is there from the start */
        for (int i = 0; i < l->n_jobs; i++) {
            const struct pipe_job *j = &l->job[i];
            if ((j->io_s > 0) != (pass == 1))
                continue;
            if (pass == 1) {
                io += j->io_s;
                comp = fmax(comp, io + l->latency_s);
            }
            comp += j->comp_s;
            if (!fused)
                continue;
            jobs_left[j->layer]--;
            while (n_prefix < l->n_layers && jobs_left[n_prefix] == 0)
                comp += l->prefill_s[n_prefix++];
        }
    if (l->prefill_s != NULL && !fused)
        for (int i = 0; i < l->n_layers; i++)
            tail += l->prefill_s[i];
    return comp + tail;
}

double pipe_run(const struct pipe_load *load, struct pipeline *out)
{
    CHECK(load->n_jobs <= PIPE_MAX_JOBS && load->n_layers <= PLAN_MAX_LAYERS);
    if (out == NULL && load->io_overlap <= 1 && load->comp_overlap <= 1)
        return run_recurrence(load);
    if (out != NULL) {
        out->n_items = 0;
        out->restore_s = out->io_busy_s = out->comp_busy_s = 0;
    }
    double makespan = run_events(load, out);
    if (out != NULL)
        out->makespan_s = makespan;
    return makespan;
}

void pipeline_simulate(const struct plan_request *req, const struct plan *plan,
                       struct pipeline *out)
{
    struct pipe_job job[PIPE_MAX_JOBS];
    struct pipe_load load;
    plan_load(req, plan, job, &load);
    pipe_run(&load, out);
}
