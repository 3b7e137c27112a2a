/* closed.c - see closed.h. */
#include "sim/closed.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "store/read_ahead.h"
#include "sim/cache.h"

/* Fewest tokens that are read ahead for a request, as in the store. */
enum { LEAST_TOKENS = 256 };

/* Prefill: 65B takes 360 ms for 2,048 tokens on four A100s (section 2.3), the others in
 * proportion to parameters per GPU. Decode: in proportion to weights per GPU; with 0.70 ms for
 * 13B about 3,000 jobs wait on average at one session a second. */
const struct closed_model closed_models[CLOSED_MODELS] = {
    {"LLaMA-13B", 0.78e6, 0.0703e-3, 0.70e-3, 2, 4096},
    {"LLaMA-65B", 2.5e6, 0.1758e-3, 1.75e-3, 4, 2048},
    {"LLaMA-70B", 0.31e6, 0.1893e-3, 1.88e-3, 4, 4096},
    {"Falcon-40B", 0.12e6, 0.1082e-3, 1.08e-3, 4, 2048},
};

/* Prices of section 4.2 in dollars an hour: of a GPU, of a GB of DRAM, of a GB of SSD. */
#define GPU_DOLLARS  5.0
#define DRAM_DOLLARS 0.0088
#define SSD_DOLLARS  0.000082
#define GB           1e9

struct session {
    /* The session's jobs: load.request[first_job, first_job + n_jobs). */
    uint32_t first_job, n_jobs, next_job;
    /* The session's blocks [base + start, base + n_blocks) are valid. */
    uint32_t base, start, n_blocks;
    uint32_t cut_tokens; /* tokens cut before `start` */
    uint32_t n_recent;   /* the session's jobs in the last hour */
};

struct job {
    struct read_ahead_want ahead; /* first member: a want of the list is cast to its job */
    uint32_t session;
    double served_s;
    bool is_known; /* the job is in the look-ahead window for eviction */
};

struct closed {
    const struct load *l;
    const struct closed_opts *o;
    struct closed_result *out;
    struct cache cache;
    struct placement_window window;
    struct read_ahead_queue waiting; /* the jobs that the policy knows */
    struct session *session;
    struct job *queue; /* [n_requests] from head to tail; each entry is used once */
    uint32_t head, tail, n_known, next_arrival;
    /* First job of the last hour; sessions served in that hour. */
    uint32_t first_recent, n_recent;
    double now, block_bytes, disk_budget_bytes;
    bool has_cache, looks;
};

/* --- sessions and the queue ------------------------------------------------------------------- */

static uint32_t session_blocks(const struct session *s)
{
    return s->n_blocks - s->start;
}

static void sessions_find(struct closed *c)
{
    const struct load *l = c->l;
    c->session = xcalloc(l->n_sessions, sizeof *c->session);
    for (uint32_t i = 0; i < l->n_requests; i++) {
        const struct load_request *r = &l->request[i];
        struct session *s = &c->session[r->session];
        if (s->n_jobs++ == 0) {
            s->first_job = s->next_job = i;
            s->base = l->run[r->run].first;
        }
    }
}

/* Drops the older half, in whole blocks, of a history that outgrows the context. */
static void truncate(struct closed *c, struct session *s, uint32_t n_tokens)
{
    uint32_t context = c->o->model->context, block = c->l->block_tokens;
    while (n_tokens - s->cut_tokens > context) {
        uint32_t cut = context / 2 / block, start = s->start + cut;
        start = MIN(start, s->n_blocks);
        if (c->o->overflow_loses_all && c->has_cache)
            for (uint32_t i = s->start; i < s->n_blocks; i++)
                cache_drop(&c->cache, s->base + i, s->base + i + 1);
        else if (c->has_cache)
            for (uint32_t i = s->start; i < start; i++)
                cache_drop(&c->cache, s->base + i, s->base + i + 1);
        s->start = start;
        s->cut_tokens += cut * block;
    }
}

/* Enqueues a session's next job. The question is known with the job, so the history that the job
 * will not see is dropped now, not after thousands of other jobs. */
static void enqueue(struct closed *c, uint32_t session)
{
    struct session *s = &c->session[session];
    truncate(c, s, c->l->request[s->next_job].n_in);
    c->queue[c->tail++] = (struct job){.session = session};
}

static void arrivals(struct closed *c)
{
    const struct load *l = c->l;
    if (c->head == c->tail && c->next_arrival < l->n_sessions) {
        double first = l->request[c->session[c->next_arrival].first_job].time_s;
        c->now = MAX(first, c->now);
    }
    while (c->next_arrival < l->n_sessions &&
           l->request[c->session[c->next_arrival].first_job].time_s <= c->now)
        enqueue(c, c->next_arrival++);
}

/* Called when the policy's victim leaves memory. */
static void on_leave(void *arg, const struct placement_item *victim)
{
    read_ahead_dropped(&((struct closed *)arg)->waiting, victim);
}

/* --- looking ahead ---------------------------------------------------------------------------- */

/* Announces a job's blocks to the policy, or withdraws them. */
static void expect(struct closed *c, uint32_t at, bool joins)
{
    struct job *j = &c->queue[at];
    const struct session *s = &c->session[j->session];
    for (uint32_t b = s->base + s->start; b < s->base + s->n_blocks; b++) {
        if (joins)
            placement_window_add(&c->window, 1 + (uint64_t)b, at);
        else
            placement_window_remove(&c->window, 1 + (uint64_t)b, at);
        cache_review(&c->cache, b);
    }
    if (joins) {
        j->ahead = (struct read_ahead_want){.turn = at, .n = (int)session_blocks(s)};
        read_ahead_add(&c->waiting, &j->ahead);
    } else {
        read_ahead_remove(&c->waiting, &j->ahead);
    }
    j->is_known = joins;
}

/* Announces all jobs of the queue, not only those that fit into the cache. If two jobs come after
 * the jobs that fit, the state of the later job must be evicted first. The order of lru would evict
 * the state of the earlier job. */
static void window_fill(struct closed *c)
{
    if (c->n_known < c->head)
        c->n_known = c->head;
    while (c->looks && c->n_known < c->tail)
        expect(c, c->n_known++, true);
}

static uint32_t block_of(const struct closed *c, const struct read_ahead_want *w, int i)
{
    const struct session *s = &c->session[((const struct job *)w)->session];
    return s->base + s->start + (uint32_t)i;
}

static enum read_ahead_place block_place(void *arg, const struct read_ahead_want *w, int i)
{
    const struct cache_block *b = &((struct closed *)arg)->cache.block[block_of(arg, w, i)];
    return b->tier == 0   ? READ_AHEAD_NOWHERE
           : b->tier == 1 ? READ_AHEAD_HERE
                          : READ_AHEAD_DISK;
}

static struct read_ahead_room block_room(void *arg, const struct read_ahead_want *w, int i)
{
    struct closed *c = arg;
    (void)w;
    (void)i;
    return (struct read_ahead_room){.n_bytes = 1,
                                    .free_bytes = c->cache.o.max_blocks[0] -
                                                  c->cache.n_in[0],
                                    .most_bytes = 1,
                                    .victim = placement_victim(&c->cache.part[0])};
}

/* Raises blocks that waiting jobs need, as far as the disk gets in the time. Every fetch gains
 * time, because a job that reads the disk itself computes nothing meanwhile. */
static void read_ahead(struct closed *c, double seconds)
{
    int least = LEAST_TOKENS / (int)c->l->block_tokens;
    const struct read_ahead_view v = {c, block_place, block_room, MAX(least, 1)};
    struct read_ahead_want *w;
    int at;
    c->disk_budget_bytes += seconds * c->o->disk_bytes_per_s;
    double most = 4 * c->o->disk_bytes_per_s; /* an idle disk does not save up time */
    c->disk_budget_bytes = MIN(c->disk_budget_bytes, most);
    while (c->o->disk_bytes > 0 && c->disk_budget_bytes >= c->block_bytes &&
           read_ahead_choose(&c->waiting, &v, &w, &at) == READ_AHEAD_FETCH) {
        uint32_t b = block_of(c, w, at);
        cache_pin(&c->cache, b);
        bool is_up = cache_raise(&c->cache, b, (uint32_t)c->now);
        cache_unpin(&c->cache, b);
        if (!is_up)
            return;
        read_ahead_begin(w, at);
        read_ahead_end(w, true, true);
        c->disk_budget_bytes -= c->block_bytes;
    }
}

/* --- serving ---------------------------------------------------------------------------------- */

struct service {
    uint32_t n_found, n_in_memory, n_history;
};

/* Counts the blocks of the session's history that are in the cache, and uses them. */
static struct service look_up(struct closed *c, const struct session *s, uint8_t class,
                              uint32_t lot)
{
    struct service v = {.n_history = session_blocks(s)};
    struct placement_use use = {.time = (uint32_t)c->now, .class = class, .lot = lot};
    for (uint32_t b = s->base + s->start; c->has_cache && b < s->base + s->n_blocks; b++) {
        if (!cache_has(&c->cache, b) || c->cache.block[b].place.is_dropped)
            break;
        v.n_found++;
        v.n_in_memory += c->cache.block[b].tier == 1;
        cache_touch(&c->cache, b, &use);
    }
    return v;
}

/* Puts the session's state into memory after the job: old blocks move up, new ones are added. */
static void save(struct closed *c, struct session *s, uint32_t n_blocks, uint8_t class,
                 uint32_t lot)
{
    struct placement_use use = {.time = (uint32_t)c->now, .class = class, .lot = lot};
    uint32_t pinned = CACHE_NONE, b = s->base + s->start;
    for (; c->has_cache && b < s->base + n_blocks; b++) {
        bool is_there = cache_has(&c->cache, b);
        if (is_there) {
            cache_pin(&c->cache, b);
            /* The block's state is invalid, and the block cannot be added again before it is
             * evicted. So the rest is not saved. */
            if (c->cache.block[b].place.is_dropped) {
                cache_unpin(&c->cache, b);
                break;
            }
            if (c->cache.block[b].tier == 2)
                cache_raise(&c->cache, b, (uint32_t)c->now);
        } else if (!cache_add(&c->cache, b, pinned, &use)) {
            break;
        }
        if (pinned != CACHE_NONE)
            cache_unpin(&c->cache, pinned);
        pinned = b;
    }
    if (pinned != CACHE_NONE)
        cache_unpin(&c->cache, pinned);
    s->n_blocks = n_blocks;
}

/* Notes that job `at` has been served now, and counts the distinct sessions of the last hour. */
static void count_session(struct closed *c, uint32_t at)
{
    c->queue[at].served_s = c->now;
    c->n_recent += c->session[c->queue[at].session].n_recent++ == 0;
    for (; c->queue[c->first_recent].served_s <= c->now - 3600; c->first_recent++)
        c->n_recent -= --c->session[c->queue[c->first_recent].session].n_recent == 0;
    if (c->n_recent > c->out->most_sessions)
        c->out->most_sessions = c->n_recent;
}

static void serve(struct closed *c)
{
    const struct closed_model *m = c->o->model;
    uint32_t at = c->head++, n_jobs = at + 1;
    struct session *s = &c->session[c->queue[at].session];
    const struct load_request *r = &c->l->request[s->next_job++];
    /* The prompt: history and question. */
    uint32_t block = c->l->block_tokens, n_history = r->n_in;
    bool is_judged = n_jobs > c->o->n_warm && c->tail - c->head >= CLOSED_LEAST_QUEUE,
         is_last = s->next_job == s->first_job + s->n_jobs;
    uint8_t class = placement_class(r->turn, false, false);
    if (c->queue[at].is_known)
        expect(c, at, false);
    struct service v = look_up(c, s, class, at);
    uint32_t n_tokens = n_history - s->cut_tokens, n_cached = v.n_found * block;
    n_cached = MIN(n_cached, n_tokens);
    double prefill_s = (n_tokens - n_cached) * m->prefill_s;
    double wait_s = (v.n_found - v.n_in_memory) * c->block_bytes / c->o->disk_bytes_per_s;
    double decode_s = r->n_out * m->decode_s;
    c->now += prefill_s + wait_s + decode_s;
    count_session(c, at);
    truncate(c, s, r->n_in + r->n_out);
    save(c, s, (r->n_in + r->n_out) / block, class, at);
    arrivals(c);
    if (!is_last)
        enqueue(c, c->queue[at].session);
    if (c->looks) {
        window_fill(c);
        read_ahead(c, prefill_s + decode_s);
    }
    c->out->mean_queue += is_judged ? c->tail - c->head : 0;
    if (!is_judged)
        return;
    c->out->n_jobs++;
    c->out->n_references += v.n_history;
    c->out->n_hits += v.n_found;
    c->out->n_memory_hits += v.n_in_memory;
    c->out->prefill_s += prefill_s;
    c->out->wait_s += wait_s;
    c->out->decode_s += decode_s;
    c->out->prompt_tokens += n_tokens;
    c->out->seconds_saved += n_cached * m->prefill_s - wait_s;
}

void closed_run(const struct load *l, const struct closed_opts *o,
                struct closed_result *out)
{
    struct closed c = {.l = l, .o = o, .out = out, .has_cache = o->memory_bytes > 0};
    *out = (struct closed_result){0};
    c.block_bytes = o->model->token_bytes * o->state_share * l->block_tokens;
    c.looks = c.has_cache && placement_looks_ahead(o->policy);
    c.queue = xcalloc(l->n_requests + 1, sizeof *c.queue);
    sessions_find(&c);
    if (c.looks) {
        uint32_t n_places = 1 << 20;
        while (n_places < 4 * l->n_blocks)
            n_places *= 2;
        placement_window_init(&c.window, xcalloc(n_places, sizeof c.window.place[0]),
                              n_places, xcalloc(n_places / 2, sizeof c.window.wait[0]),
                              n_places / 2);
    }
    if (c.has_cache) {
        struct cache_opts co = {.n_blocks = l->n_blocks + 1,
                                .n_tiers = o->disk_bytes > 0 ? 2 : 1,
                                .max_blocks = {(uint64_t)(o->memory_bytes / c.block_bytes),
                                               (uint64_t)(o->disk_bytes / c.block_bytes)},
                                .policy = o->policy,
                                .window = c.looks ? &c.window : NULL};
        cache_init(&c.cache, &co);
        c.cache.on_leave = on_leave;
        c.cache.arg = &c;
    }
    for (arrivals(&c); c.head < c.tail; arrivals(&c))
        serve(&c);
    out->mean_queue /= out->n_jobs > 0 ? (double)out->n_jobs : 1;
    out->wall_s = c.now;
    if (c.has_cache) {
        out->written_bytes = (double)c.cache.n_down * c.block_bytes;
        cache_deinit(&c.cache);
    }
    free(c.window.place);
    free(c.window.wait);
    free(c.session);
    free(c.queue);
}

double closed_cost(const struct closed_opts *o, const struct closed_result *r,
                   double *storage_share)
{
    double hours = (r->prefill_s + r->decode_s + r->wait_s) / 3600;
    double gpus = o->model->n_gpus * GPU_DOLLARS;
    double storage = o->memory_bytes / GB * DRAM_DOLLARS + o->disk_bytes / GB * SSD_DOLLARS;
    *storage_share = storage / (gpus + storage);
    return hours * (gpus + storage);
}
