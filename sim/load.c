/* load.c - see load.h. */
#include "sim/load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "base/json.h"

enum { AGENT_BLOCK_TOKENS = 64, MOONCAKE_BLOCK_TOKENS = 512, CHAT_BLOCK_TOKENS = 64 };

/* --- building a load -------------------------------------------------------------------------- */

/* Returns whether an array with n used entries is full. Arrays grow by doubling, so their sizes are
 * powers of two. */
static bool is_full(uint32_t n)
{
    return (n & (n - 1)) == 0;
}

static struct load_request *add_request(struct load *l)
{
    if (is_full(l->n_requests))
        l->request = xrealloc(l->request,
                              (l->n_requests == 0 ? 1 : 2 * (size_t)l->n_requests) *
                                  sizeof l->request[0]);
    struct load_request *r = &l->request[l->n_requests++];
    *r = (struct load_request){.run = l->n_runs};
    return r;
}

/* Adds blocks to the newest request. Joins them with its last run if they continue it. */
static void add_run(struct load *l, uint32_t first, uint32_t n)
{
    struct load_request *r = &l->request[l->n_requests - 1];
    struct load_run *last = r->n_runs > 0 ? &l->run[l->n_runs - 1] : NULL;
    r->n_blocks += n;
    l->n_references += n;
    if (first + n > l->n_blocks)
        l->n_blocks = first + n;
    if (last != NULL && last->first + last->n == first) {
        last->n += n;
        return;
    }
    if (is_full(l->n_runs))
        l->run = xrealloc(l->run,
                          (l->n_runs == 0 ? 1 : 2 * (size_t)l->n_runs) * sizeof l->run[0]);
    l->run[l->n_runs++] = (struct load_run){first, n};
    r->n_runs++;
}

void load_free(struct load *l)
{
    free(l->request);
    free(l->run);
    *l = (struct load){0};
}

static int by_time(const void *a, const void *b)
{
    const struct load_request *x = a, *y = b;
    int by = ORDER(x->time_s, y->time_s);
    by = by != 0 ? by : ORDER(x->session, y->session);
    return by != 0 ? by : ORDER(x->turn, y->turn);
}

void load_sort(struct load *l)
{
    qsort(l->request, l->n_requests, sizeof l->request[0], by_time);
}

/* --- traces ----------------------------------------------------------------------------------- */

/* Parses each line and calls fn for it. */
static int each_line(struct load *l, const char *text, size_t n, void *arg,
                     int (*fn)(struct load *l, const struct json *o, void *arg,
                               struct err *err),
                     struct err *err)
{
    int rc = 0, line = 1;
    for (size_t at = 0; at < n && rc == 0; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end != NULL ? (size_t)(end - text) - at : n - at;
        struct json *o = NULL;
        if (len > 0) {
            rc = json_parse(&o, text + at, len, "trace", err);
            if (rc == 0)
                rc = fn(l, o, arg, err);
            if (rc != 0)
                err_wrap(err, "line %d", line);
            json_free(o);
        }
        at += len + 1;
    }
    if (rc == 0 && l->n_requests == 0)
        rc = err_set(err, ERR_FORMAT, "the trace has no request");
    return rc;
}

static int get_number(const struct json *o, const char *name, double least, double most,
                      double *out, struct err *err)
{
    const struct json *v = json_member(o, name);
    if (!json_real_of(v, out) || !(*out >= least && *out <= most))
        return err_set(err, ERR_FORMAT, "'%s' must be a number from %g to %g", name, least,
                       most);
    return 0;
}

static int mooncake_line(struct load *l, const struct json *o, void *arg, struct err *err)
{
    (void)arg;
    double time_ms, n_in, n_out;
    int rc = get_number(o, "timestamp", 0, 1e15, &time_ms, err);
    if (rc == 0)
        rc = get_number(o, "input_length", 0, 1e9, &n_in, err);
    if (rc == 0)
        rc = get_number(o, "output_length", 0, 1e9, &n_out, err);
    const struct json *ids = json_member(o, "hash_ids");
    if (rc != 0)
        return rc;
    struct load_request *r = add_request(l);
    r->time_s = time_ms / 1e3;
    r->session = l->n_requests - 1;
    r->n_in = (uint32_t)n_in;
    r->n_out = (uint32_t)n_out;
    r->is_partial = r->n_in % MOONCAKE_BLOCK_TOKENS != 0;
    for (size_t i = 0; i < json_count(ids); i++) {
        int64_t id;
        if (!json_int_of(json_at(ids, i), &id) || id < 0 || id > 100000000)
            return err_set(err, ERR_FORMAT,
                           "'hash_ids' must be numbers from 0 to 100000000");
        add_run(l, (uint32_t)id, 1);
    }
    return 0;
}

int load_mooncake(struct load *l, const char *text, size_t n, struct err *err)
{
    *l = (struct load){.block_tokens = MOONCAKE_BLOCK_TOKENS};
    int rc = each_line(l, text, n, NULL, mooncake_line, err);
    l->n_sessions = l->n_requests;
    return rc;
}

struct agents_state {
    enum load_part part;
    struct rng rng;
    double gap_s, start_s; /* gap before the present session, and its start */
    char session[64];
    uint32_t n_seen; /* sessions in the file so far */
    /* Number of the session's first block, minus 1: the file's blocks count from 1. */
    uint32_t base;
    uint16_t turn;
};

static double exponential(struct rng *r, double mean)
{
    return -mean * log(1 - rng_unit(r));
}

/* Begins the next session of the file. Each session draws a random start, counted or not. */
static void session_begin(struct load *l, struct agents_state *a, const char *name)
{
    snprintf(a->session, sizeof a->session, "%s", name);
    a->n_seen++;
    a->start_s += exponential(&a->rng, a->gap_s);
    a->base = l->n_blocks;
    a->turn = 0;
}

static bool session_counts(const struct agents_state *a)
{
    return a->part == LOAD_ALL || (a->part == LOAD_ODD) == (a->n_seen % 2 == 1);
}

static int agents_blocks(struct load *l, const struct agents_state *a,
                         const struct json *ranges, struct err *err)
{
    for (size_t i = 0; i < json_count(ranges); i++) {
        int64_t from, to;
        const struct json *r = json_at(ranges, i);
        if (!json_int_of(json_at(r, 0), &from) || !json_int_of(json_at(r, 1), &to) ||
            from < 0 || to < from || to > 10000000)
            return err_set(err, ERR_FORMAT, "'blocks' must be ranges from 0 to 10000000");
        add_run(l, a->base + (uint32_t)from, (uint32_t)(to - from + 1));
    }
    return 0;
}

static int agents_line(struct load *l, const struct json *o, void *arg, struct err *err)
{
    struct agents_state *a = arg;
    double t, n_in, n_out;
    const char *session = json_string_of(json_member(o, "session"), NULL);
    const char *stop = json_string_of(json_member(o, "stop"), NULL);
    if (session == NULL)
        return err_set(err, ERR_FORMAT, "'session' must be a string");
    int rc = get_number(o, "t", 0, 1e9, &t, err);
    if (rc == 0)
        rc = get_number(o, "in", 0, 1e9, &n_in, err);
    if (rc == 0)
        rc = get_number(o, "out", 0, 1e9, &n_out, err);
    if (rc != 0)
        return rc;
    if (strcmp(session, a->session) != 0)
        session_begin(l, a, session);
    if (!session_counts(a))
        return 0;
    struct load_request *r = add_request(l);
    r->time_s = a->start_s + t;
    r->session = a->n_seen - 1;
    r->n_in = (uint32_t)n_in;
    r->n_out = (uint32_t)n_out;
    r->turn = a->turn < UINT16_MAX ? ++a->turn : a->turn;
    r->is_tool_pending = stop != NULL && strcmp(stop, "tool_use") == 0;
    r->is_partial = r->n_in % AGENT_BLOCK_TOKENS != 0;
    return agents_blocks(l, a, json_member(o, "blocks"), err);
}

int load_agents(struct load *l, const char *text, size_t n, enum load_part part,
                double gap_s, uint64_t seed, struct err *err)
{
    struct agents_state a = {.part = part, .rng = {seed}, .gap_s = gap_s};
    *l = (struct load){.block_tokens = AGENT_BLOCK_TOKENS};
    int rc = each_line(l, text, n, &a, agents_line, err);
    l->n_sessions = a.n_seen;
    load_sort(l);
    return rc;
}

/* --- chats ------------------------------------------------------------------------------------ */

static double normal(struct rng *r)
{
    double u = 1 - rng_unit(r), v = rng_unit(r);
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

/* Parameters of the lognormal length of a session, from the two quantiles in load.h: z(0.47) =
 * 0.0753, z(0.30) = 0.5244. */
#define LENGTH_SIGMA (0.69314718056 / (0.5244 - 0.0753))
#define LENGTH_MU    (7.62461898616 - 0.0753 * LENGTH_SIGMA)
/* Correlation of the normal numbers behind a session's length and its number of turns. */
#define TURNS_CORRELATION 0.7
/* Probability of one turn, and the mean number of turns of the other sessions. The mean of all is
 * 0.27 + 0.73 * 7.507 = 5.75. */
#define SINGLE_SHARE 0.27
#define MANY_MEAN    7.507
/* Share of a turn's tokens that the user writes. */
#define USER_SHARE 0.3

/* Returns the quantile of the number of turns at the normal number z: one turn, or 2 + a geometric
 * number. */
static uint32_t turns_of(double z)
{
    double p = 0.5 * erfc(-z / sqrt(2));
    if (p < SINGLE_SHARE)
        return 1;
    double q = (p - SINGLE_SHARE) / (1 - SINGLE_SHARE), mean = MANY_MEAN - 2;
    double n = 2 + floor(log(1 - q) / log(mean / (1 + mean)));
    return (uint32_t)MIN(n, 200);
}

static void add_chat(struct load *l, const struct chats_opts *o, struct rng *r,
                     double start_s)
{
    double z = normal(r), z2 = TURNS_CORRELATION * z +
                               sqrt(1 - TURNS_CORRELATION * TURNS_CORRELATION) * normal(r);
    uint32_t n_turns = turns_of(z2), base = l->n_blocks, session = l->n_sessions++;
    double total = exp(LENGTH_MU + LENGTH_SIGMA * z), share[200], sum = 0, time_s = start_s;
    total = MIN(total, o->max_tokens);
    total = MAX(total, 16.0 * n_turns);
    for (uint32_t i = 0; i < n_turns; i++)
        sum += share[i] = exponential(r, 1) + 0.2;
    uint32_t n_history = 0;
    for (uint32_t i = 0; i < n_turns; i++) {
        uint32_t n_new = (uint32_t)(total * share[i] / sum) + 2;
        uint32_t n_user = (uint32_t)(n_new * USER_SHARE) + 1;
        struct load_request *q = add_request(l);
        q->time_s = time_s;
        q->session = session;
        q->turn = (uint16_t)(1 + i);
        q->n_in = n_history + n_user;
        q->n_out = n_new > n_user ? n_new - n_user : 1;
        n_history += n_user + q->n_out;
        add_run(l, base, n_history / CHAT_BLOCK_TOKENS + 1);
        q->is_partial = true;
        if (o->think_s > 0) /* pauses are lognormal with sigma 1 */
            time_s += o->think_s * exp(normal(r) - 0.5);
    }
}

void load_chats(struct load *l, const struct chats_opts *o)
{
    struct rng r = {o->seed};
    double start_s = 0;
    *l = (struct load){.block_tokens = CHAT_BLOCK_TOKENS};
    for (uint32_t i = 0; i < o->n_sessions; i++) {
        start_s += exponential(&r, 1 / o->sessions_per_s);
        add_chat(l, o, &r, start_s);
    }
}
