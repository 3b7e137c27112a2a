/* pipeline.c - see pipeline.h.
 *
 * Invariants of the simulation:
 * 1. The I/O lane works on one read at a time, in order, without gaps, from time 0. A bus copies
 *    the records of its stage in the order in which they were read.
 * 2. A compute lane idles only when nothing is ready. So the amount of work that one stage has
 *    done by any moment, and with one stage the makespan, does not depend on which ready job it
 *    takes.
 * 3. The remaining time of a job is counted as if its lane worked alone. While both lanes work, a
 *    second takes off only 1 / overlap factor seconds. */
#include "restore/pipeline.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/run.h"
#include "restore/plan_parts.h"

enum { NOTHING = -1 };

/* Jobs that wait for a lane, linked through lanes.next. */
struct job_queue {
    int first, last; /* indices of jobs; NOTHING: the queue is empty */
};

/* Lanes of one stage. */
struct stage_lanes {
    /* Jobs that wait for the bus; jobs that wait for compute. */
    struct job_queue read, ready;
    int going_up; /* job on the bus, or NOTHING */
    double up_left_s, up_start_s;
    struct pipe_item busy; /* item that computes; layer NOTHING when idle */
    double comp_left_s;
    int next_readless; /* the next job without a read */
};

struct lanes {
    const struct pipe_load *load;
    struct pipeline *out;
    double t;
    int n_stages;
    /* The I/O lane: */
    int reading; /* index of the job being read; NOTHING after the last */
    double read_left_s, read_start_s;
    /* Jobs read[n_arrived, n_read) were read, but have not arrived yet because of the latency. */
    int n_read, n_arrived;
    /* Work that passes through the stages. */
    int n_recomputed; /* R layers 0..n_recomputed-1 are recomputed */
    int next_prefill;
    bool is_prefilling, head_done;
    int n_restored_jobs;
    int n_prefix; /* layers 0..n_prefix-1 are restored */
    struct stage_lanes stage[PLAN_MAX_STAGES];
    uint8_t jobs_left[PLAN_MAX_LAYERS]; /* jobs of each layer left until it is restored */
    int read[PLAN_MAX_LAYERS];
    double arrives_s[PLAN_MAX_LAYERS];
    int16_t next[PLAN_MAX_LAYERS];
};

static int layer_stage(const struct lanes *s, int layer)
{
    return s->n_stages > 1 ? run_of(layer, s->load->n_layers, s->n_stages) : 0;
}

static bool has_read(const struct pipe_job *j)
{
    return j->io_s > 0 || j->up_s > 0;
}

static void queue_put(struct lanes *s, struct job_queue *q, int i)
{
    s->next[i] = NOTHING;
    if (q->first == NOTHING)
        q->first = i;
    else
        s->next[q->last] = (int16_t)i;
    q->last = i;
}

static int queue_get(struct lanes *s, struct job_queue *q)
{
    int i = q->first;
    if (i != NOTHING)
        q->first = s->next[i];
    return i;
}

static void record(struct lanes *s, struct pipe_item item)
{
    if (s->out == NULL)
        return;
    CHECK(s->out->n_items < PIPE_MAX_ITEMS);
    s->out->item[s->out->n_items++] = item;
}

/* Returns the item of job i from start_s until now. */
static struct pipe_item item_of(const struct lanes *s, int i, double start_s, uint8_t lane)
{
    const struct pipe_job *j = &s->load->job[i];
    return (struct pipe_item){.start_s = start_s,
                              .end_s = s->t,
                              .layer = j->layer,
                              .method = j->method,
                              .lane = lane,
                              .stage = (uint8_t)layer_stage(s, j->layer)};
}

static void start_next_read(struct lanes *s, int from)
{
    const struct pipe_load *l = s->load;
    s->reading = NOTHING;
    for (int i = from; i < l->n_jobs; i++)
        if (has_read(&l->job[i])) {
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
    record(s, item_of(s, i, s->read_start_s, PIPE_IO));
    start_next_read(s, i + 1);
}

static void arrive(struct lanes *s)
{
    int i = s->read[s->n_arrived++];
    struct stage_lanes *k = &s->stage[layer_stage(s, s->load->job[i].layer)];
    queue_put(s, s->load->job[i].up_s > 0 ? &k->read : &k->ready, i);
}

static void start_up(struct lanes *s, struct stage_lanes *k)
{
    k->going_up = queue_get(s, &k->read);
    if (k->going_up != NOTHING) {
        k->up_left_s = s->load->job[k->going_up].up_s;
        k->up_start_s = s->t;
    }
}

static void finish_up(struct lanes *s, struct stage_lanes *k)
{
    record(s, item_of(s, k->going_up, k->up_start_s, PIPE_UP));
    queue_put(s, &k->ready, k->going_up);
    start_up(s, k);
}

static void start_job(struct lanes *s, struct stage_lanes *k, int i)
{
    k->comp_left_s = s->load->job[i].comp_s;
    k->busy = item_of(s, i, s->t, PIPE_RESTORE);
}

static void start_prefill(struct lanes *s, struct stage_lanes *k, double comp_s, char what)
{
    s->is_prefilling = true;
    k->comp_left_s = comp_s;
    k->busy = (struct pipe_item){.start_s = s->t,
                                 .layer = (int16_t)s->next_prefill,
                                 .method = what,
                                 .lane = PIPE_PREFILL,
                                 .stage = (uint8_t)(k - s->stage)};
}

/* Returns n: the new tokens may now be prefilled in layers 0..n-1. */
static int prefill_allowed(const struct lanes *s)
{
    const struct pipe_load *l = s->load;
    if (l->prefill_s == NULL || s->is_prefilling)
        return 0;
    if (l->fused)
        return s->n_prefix;
    return s->n_restored_jobs == l->n_jobs ? l->n_layers : 0;
}

/* Returns the stage's next job that needs no read and may start. Recomputation goes up the
 * layers. */
static int next_readless(struct lanes *s, struct stage_lanes *k)
{
    const struct pipe_load *l = s->load;
    int stage = (int)(k - s->stage);
    while (k->next_readless < l->n_jobs &&
           (has_read(&l->job[k->next_readless]) ||
            layer_stage(s, l->job[k->next_readless].layer) != stage))
        k->next_readless++;
    if (k->next_readless == l->n_jobs)
        return NOTHING;
    const struct pipe_job *j = &l->job[k->next_readless];
    return j->method == 'R' && j->layer > s->n_recomputed ? NOTHING : k->next_readless++;
}

/* Starts the next compute job of a stage: arrived layers first, then recomputation, then prefill,
 * then the head (pipeline.h). */
static void start_compute(struct lanes *s, struct stage_lanes *k)
{
    const struct pipe_load *l = s->load;
    int stage = (int)(k - s->stage), i = queue_get(s, &k->ready);
    k->busy.layer = NOTHING;
    if (i == NOTHING)
        i = next_readless(s, k);
    if (i != NOTHING) {
        start_job(s, k, i);
        return;
    }
    if (s->next_prefill < prefill_allowed(s) && layer_stage(s, s->next_prefill) == stage) {
        start_prefill(s, k, l->prefill_s[s->next_prefill], 'P');
        return;
    }
    bool all = s->n_restored_jobs == l->n_jobs &&
               (l->prefill_s == NULL || s->next_prefill == l->n_layers);
    if (all && !s->is_prefilling && !s->head_done && l->head_s > 0 &&
        stage == s->n_stages - 1) {
        s->next_prefill = l->n_layers;
        start_prefill(s, k, l->head_s, 'L');
    }
}

static void finish_compute(struct lanes *s, struct stage_lanes *k)
{
    k->busy.end_s = s->t;
    record(s, k->busy);
    if (k->busy.lane == PIPE_RESTORE) {
        s->n_restored_jobs++;
        s->n_recomputed += k->busy.method == 'R';
        s->jobs_left[k->busy.layer]--;
        while (s->n_prefix < s->load->n_layers && s->jobs_left[s->n_prefix] == 0)
            s->n_prefix++;
        if (s->out != NULL && s->n_restored_jobs == s->load->n_jobs)
            s->out->restore_s = s->t;
    } else {
        s->is_prefilling = false;
        s->head_done |= k->busy.method == 'L';
        s->next_prefill += k->busy.method != 'L';
    }
    k->busy.layer = NOTHING;
}

static bool is_computing(const struct lanes *s)
{
    for (int k = 0; k < s->n_stages; k++)
        if (s->stage[k].busy.layer != NOTHING)
            return true;
    return false;
}

static bool is_going_up(const struct lanes *s)
{
    for (int k = 0; k < s->n_stages; k++)
        if (s->stage[k].going_up != NOTHING)
            return true;
    return false;
}

static void count_busy(struct lanes *s, double dt, bool comp)
{
    if (s->out == NULL)
        return;
    s->out->io_busy_s += s->reading != NOTHING ? dt : 0;
    s->out->comp_busy_s += comp ? dt : 0;
    for (int k = 0; k < s->n_stages; k++) {
        s->out->stage_up_s[k] += s->stage[k].going_up != NOTHING ? dt : 0;
        s->out->stage_comp_s[k] += s->stage[k].busy.layer != NOTHING ? dt : 0;
    }
}

/* Returns the time until a job ends or a read arrives. */
static double time_to_event(const struct lanes *s, double slow_io, double slow_comp)
{
    double dt = INFINITY;
    if (s->reading != NOTHING)
        dt = s->read_left_s * slow_io;
    if (s->n_arrived < s->n_read)
        dt = fmin(dt, fmax(0, s->arrives_s[s->n_arrived] - s->t));
    for (int i = 0; i < s->n_stages; i++) {
        const struct stage_lanes *k = &s->stage[i];
        if (k->going_up != NOTHING)
            dt = fmin(dt, k->up_left_s);
        if (k->busy.layer != NOTHING)
            dt = fmin(dt, k->comp_left_s * slow_comp);
    }
    return dt;
}

/* Advances a stage by dt; jobs that end now end. */
static void advance_stage(struct lanes *s, struct stage_lanes *k, double dt,
                          double slow_comp)
{
    bool comp = k->busy.layer != NOTHING, up = k->going_up != NOTHING;
    bool comp_ends = comp && k->comp_left_s * slow_comp <= dt;
    bool up_ends = up && k->up_left_s <= dt;
    k->comp_left_s -= comp ? dt / slow_comp : 0;
    k->up_left_s -= up ? dt : 0;
    if (up_ends)
        finish_up(s, k);
    if (comp_ends)
        finish_compute(s, k);
}

static void advance(struct lanes *s)
{
    const struct pipe_load *l = s->load;
    bool io = s->reading != NOTHING, comp = is_computing(s);
    double slow_io = comp ? l->io_overlap : 1, slow_comp = io ? l->comp_overlap : 1;
    double dt = time_to_event(s, slow_io, slow_comp);
    bool arrives = s->n_arrived < s->n_read && s->arrives_s[s->n_arrived] - s->t <= dt;
    bool read_ends = io && s->read_left_s * slow_io <= dt;
    s->t += dt;
    count_busy(s, dt, comp);
    s->read_left_s -= io ? dt / slow_io : 0;
    if (read_ends)
        finish_read(s);
    if (arrives)
        arrive(s);
    for (int k = 0; k < s->n_stages; k++)
        advance_stage(s, &s->stage[k], dt, slow_comp);
    /* A read without latency arrives at once, before compute chooses. */
    while (s->n_arrived < s->n_read && s->arrives_s[s->n_arrived] <= s->t)
        arrive(s);
}

static void start_idle(struct lanes *s)
{
    for (int k = 0; k < s->n_stages; k++) {
        if (s->stage[k].going_up == NOTHING)
            start_up(s, &s->stage[k]);
        if (s->stage[k].busy.layer == NOTHING)
            start_compute(s, &s->stage[k]);
    }
}

static int count_stages(const struct pipe_load *l)
{
    return l->n_stages > 1 ? l->n_stages : 1;
}

static double run_events(const struct pipe_load *load, struct pipeline *out)
{
    struct lanes s;
    memset(&s, 0, offsetof(struct lanes, stage));
    s.load = load;
    s.out = out;
    s.n_stages = count_stages(load);
    for (int k = 0; k < s.n_stages; k++)
        s.stage[k] = (struct stage_lanes){.read = {NOTHING, NOTHING},
                                          .ready = {NOTHING, NOTHING},
                                          .going_up = NOTHING,
                                          .busy.layer = NOTHING};
    memset(s.jobs_left, 0, sizeof s.jobs_left);
    for (int i = 0; i < load->n_jobs; i++)
        s.jobs_left[load->job[i].layer]++;
    start_next_read(&s, 0);
    start_idle(&s);
    while (s.reading != NOTHING || s.n_arrived < s.n_read || is_computing(&s) ||
           is_going_up(&s)) {
        advance(&s);
        start_idle(&s);
    }
    CHECK(s.n_restored_jobs == load->n_jobs);
    return s.t;
}

/* ---- one stage: only the makespan is wanted ----
 *
 * By invariant 2 the compute lane is a backlog: an arrival adds its own compute and the prefill
 * that it unlocks, and the lane works while the backlog is not empty. */

struct backlog {
    const struct pipe_load *load;
    bool fused;
    double ready_s; /* compute that may run now, in seconds as if it ran alone */
    int n_prefix;   /* layers 0..n_prefix-1 have arrived */
    uint8_t jobs_left[PLAN_MAX_LAYERS];
};

static void backlog_init(struct backlog *b, const struct pipe_load *l)
{
    b->load = l;
    b->fused = l->prefill_s != NULL && l->fused;
    b->ready_s = 0;
    b->n_prefix = 0;
    if (!b->fused)
        return;
    memset(b->jobs_left, 0, sizeof b->jobs_left);
    for (int i = 0; i < l->n_jobs; i++)
        b->jobs_left[l->job[i].layer]++;
}

static void backlog_add(struct backlog *b, const struct pipe_job *j)
{
    b->ready_s += j->comp_s;
    if (!b->fused)
        return;
    b->jobs_left[j->layer]--;
    while (b->n_prefix < b->load->n_layers && b->jobs_left[b->n_prefix] == 0)
        b->ready_s += b->load->prefill_s[b->n_prefix++];
}

/* Adds jobs without a read, which are ready from the start. */
static void backlog_add_readless(struct backlog *b)
{
    for (int i = 0; i < b->load->n_jobs; i++)
        if (!has_read(&b->load->job[i]))
            backlog_add(b, &b->load->job[i]);
}

/* Returns the work after the restore: the head, and prefill that is not fused. */
static double work_behind_s(const struct pipe_load *l)
{
    double sum = l->head_s;
    if (l->prefill_s != NULL && !l->fused)
        for (int i = 0; i < l->n_layers; i++)
            sum += l->prefill_s[i];
    return sum;
}

/* Returns the makespan without mutual slow-down: the work that an arrival adds begins at
 * max(arrival, end of the compute so far). */
static double run_recurrence(const struct pipe_load *l)
{
    struct backlog b;
    double io = 0, comp;
    backlog_init(&b, l);
    backlog_add_readless(&b);
    comp = b.ready_s;
    for (int i = 0; i < l->n_jobs; i++) {
        const struct pipe_job *j = &l->job[i];
        if (!has_read(j))
            continue;
        io += j->io_s;
        b.ready_s = 0;
        backlog_add(&b, j);
        comp = greater(comp, io + l->latency_s) + b.ready_s;
    }
    return comp + work_behind_s(l);
}

static int next_with_read(const struct pipe_load *l, int from)
{
    while (from < l->n_jobs && !has_read(&l->job[from]))
        from++;
    return from;
}

/* Returns the makespan with mutual slow-down. It steps from one event to the next: a read ends, a
 * read arrives, or the backlog ends. */
static double run_slowed(const struct pipe_load *l)
{
    struct backlog b;
    double t = 0, arrives_s[PLAN_MAX_LAYERS];
    int reading = next_with_read(l, 0), arriving = reading;
    double left_s = reading < l->n_jobs ? l->job[reading].io_s : 0;
    backlog_init(&b, l);
    backlog_add_readless(&b);
    while (arriving < l->n_jobs) {
        bool reads = reading < l->n_jobs, waits = arriving < reading;
        double slow_io = b.ready_s > 0 ? l->io_overlap : 1;
        double slow_comp = reads ? l->comp_overlap : 1;
        double read_s = reads ? left_s * slow_io : INFINITY;
        double arrival_s = waits ? greater(0, arrives_s[arriving] - t) : INFINITY;
        double ready_s = b.ready_s > 0 ? b.ready_s * slow_comp : INFINITY;
        double dt = lesser(lesser(read_s, arrival_s), ready_s);
        t += dt;
        left_s -= dt / slow_io;
        b.ready_s = ready_s <= dt ? 0 : b.ready_s - (b.ready_s > 0 ? dt / slow_comp : 0);
        if (read_s <= dt) {
            arrives_s[reading] = t + l->latency_s;
            reading = next_with_read(l, reading + 1);
            left_s = reading < l->n_jobs ? l->job[reading].io_s : 0;
        }
        while (arriving < reading && arrives_s[arriving] <= t) {
            backlog_add(&b, &l->job[arriving]);
            arriving = next_with_read(l, arriving + 1);
        }
    }
    return t + b.ready_s + work_behind_s(l);
}

double pipe_run(const struct pipe_load *load, struct pipeline *out)
{
    CHECK(load->n_jobs <= PLAN_MAX_LAYERS && load->n_layers <= PLAN_MAX_LAYERS);
    CHECK(load->n_stages <= PLAN_MAX_STAGES);
    if (out == NULL && load->n_stages <= 1)
        return load->io_overlap <= 1 && load->comp_overlap <= 1 ? run_recurrence(load)
                                                                : run_slowed(load);
    if (out != NULL) {
        memset(out, 0, offsetof(struct pipeline, item));
        out->n_stages = count_stages(load);
    }
    double makespan = run_events(load, out);
    if (out != NULL)
        out->makespan_s = makespan;
    return makespan;
}

void pipeline_simulate(const struct plan_request *req, const struct plan *plan,
                       struct pipeline *out)
{
    struct pipe_job job[PLAN_MAX_LAYERS];
    struct pipe_load load;
    plan_load(req, plan, job, &load);
    pipe_run(&load, out);
}
