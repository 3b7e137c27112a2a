/* workload.c - see workload.h. */
#include "bench/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/json.h"

/* --- random sizes ----------------------------------------------------------------------------- */

static double exponential(struct rng *r, double mean)
{
    return -mean * log(1 - rng_unit(r));
}

/* Draws from a log-normal distribution with this mean; sigma is the standard deviation of the
 * logarithm. */
static double lognormal(struct rng *r, double mean, double sigma)
{
    double u = 1 - rng_unit(r), v = rng_unit(r);
    double z = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
    return mean * exp(sigma * z - sigma * sigma / 2);
}

static int tokens_of(double n, double scale)
{
    int t = (int)(n * scale + 0.5);
    return t > 0 ? t : 1;
}

/* --- lists ------------------------------------------------------------------------------------ */

static struct session *add_session(struct workload *w, double start_s)
{
    w->sessions = xrealloc(w->sessions, (size_t)(w->n_sessions + 1) * sizeof *w->sessions);
    struct session *s = &w->sessions[w->n_sessions++];
    *s = (struct session){.start_s = start_s};
    return s;
}

static struct turn *add_turn(struct session *s, double think_s, int max_tokens)
{
    s->turns = xrealloc(s->turns, (size_t)(s->n_turns + 1) * sizeof *s->turns);
    struct turn *t = &s->turns[s->n_turns++];
    *t = (struct turn){.think_s = think_s, .max_tokens = max_tokens};
    return t;
}

static void add_segment(struct turn *t, uint64_t seed, int n_tokens)
{
    t->segments = xrealloc(t->segments, (size_t)(t->n_segments + 1) * sizeof *t->segments);
    t->segments[t->n_segments++] = (struct segment){seed, n_tokens};
}

void workload_free(struct workload *w)
{
    for (int i = 0; i < w->n_sessions; i++) {
        for (int k = 0; k < w->sessions[i].n_turns; k++)
            free(w->sessions[i].turns[k].segments);
        free(w->sessions[i].turns);
    }
    free(w->sessions);
    *w = (struct workload){0};
}

/* --- chats ------------------------------------------------------------------------------------ */

/* Mean number of rounds of a session. The paper says that half of the conversations have over 2.5K
 * tokens. With 425 tokens per round, 9 rounds give 51 % (12 rounds, used until 22 November 2026,
 * gave 61 %). */
enum { MEAN_ROUNDS = 9 };

void workload_chats(struct workload *w, const struct workload_opts *o)
{
    struct rng r = {rng_mix(o->seed)};
    *w = (struct workload){.name = "chats", .seconds = o->seconds};
    for (double at = 0;;) {
        at += exponential(&r, 60 / o->per_minute);
        if (at >= o->seconds)
            break;
        struct session *s = add_session(w, at);
        int n_turns = 1 + (int)exponential(&r, MEAN_ROUNDS - 1);
        for (int i = 0, history = 0; i < n_turns && history < o->max_prompt; i++) {
            double think = i == 0 ? 0 : exponential(&r, 30) * o->time_scale;
            int n_new = tokens_of(lognormal(&r, 66.8, 1.0), o->token_scale);
            int n_out = tokens_of(lognormal(&r, 358.8, 0.7), o->token_scale);
            history += n_new + n_out;
            if (history > o->max_prompt && i > 0)
                break;
            struct turn *t = add_turn(s, think, n_out);
            add_segment(t, rng_u64(&r), n_new < o->max_prompt ? n_new : o->max_prompt);
        }
    }
}

/* --- documents -------------------------------------------------------------------------------- */

/* Draws a rank from 0, with weights 1 / (rank + 1)^skew. */
static int zipf_rank(struct rng *r, const double *cumulated, int n)
{
    double u = rng_unit(r) * cumulated[n - 1];
    int i = 0;
    while (i < n - 1 && cumulated[i] < u)
        i++;
    return i;
}

const char *const workload_tasks[] = {"even",    "mixed",   "paper-assistant",
                                      "gsm-100", "quality", NULL};

struct task_means {
    double document, question, answer;
};

enum { N_TASKS = 20, N_NAMED = 3 };

/* The tasks that Table 1 of the HCache paper names, with their mean lengths. */
static const struct task_means named_tasks[N_NAMED] = {
    {10603.5, 142.7, 404.8}, {5451.7, 77.4, 4.3}, {7053.9, 92.4, 19.2}};
static const struct task_means all_tasks = {16340.2, 44.7, 50.2};

/* Returns the mean of the tasks that the table does not name, from the mean of all tasks and those
 * of three. */
static double mean_of_others(double all, double a, double b, double c)
{
    return (all * N_TASKS - a - b - c) / (N_TASKS - N_NAMED);
}

static struct task_means other_tasks(void)
{
    const struct task_means *t = named_tasks;
    return (struct task_means){
        mean_of_others(all_tasks.document, t[0].document, t[1].document, t[2].document),
        mean_of_others(all_tasks.question, t[0].question, t[1].question, t[2].question),
        mean_of_others(all_tasks.answer, t[0].answer, t[1].answer, t[2].answer)};
}

static struct task_means draw_task(struct rng *r, int task)
{
    int i = task - TASK_PAPER_ASSISTANT;
    if (task == TASK_MIXED)
        i = (int)rng_below(r, N_TASKS);
    return i < N_NAMED ? named_tasks[i] : other_tasks();
}

/* The paper gives only means; the spreads are this program's choice. */
static const double document_sigma = 0.35, question_sigma = 0.5, answer_sigma = 0.5;

void workload_documents(struct workload *w, const struct workload_opts *o)
{
    struct rng r = {rng_mix(o->seed + 1)};
    int n = o->n_documents;
    double *cumulated = xcalloc((size_t)n, sizeof *cumulated), sum = 0;
    *w = (struct workload){.name = "documents", .seconds = o->seconds};
    for (int i = 0; i < n; i++)
        cumulated[i] = sum += pow(i + 1, -o->zipf);
    for (double at = 0;;) {
        at += exponential(&r, 60 / o->per_minute);
        if (at >= o->seconds)
            break;
        int doc = zipf_rank(&r, cumulated, n);
        struct rng of_doc = {rng_mix(o->seed + 77 + (uint64_t)doc)};
        int n_doc, n_question = 60, n_answer;
        if (o->task == TASK_EVEN) {
            n_doc = tokens_of(5000 + 11000 * rng_unit(&of_doc), o->token_scale);
            n_answer = tokens_of(exponential(&r, 50), o->token_scale);
        } else {
            struct task_means t = draw_task(&of_doc, o->task);
            n_doc = tokens_of(lognormal(&of_doc, t.document, document_sigma),
                              o->token_scale);
            n_question = tokens_of(lognormal(&r, t.question, question_sigma),
                                   o->token_scale);
            n_answer = tokens_of(lognormal(&r, t.answer, answer_sigma), o->token_scale);
        }
        struct turn *t = add_turn(add_session(w, at), 0, n_answer);
        add_segment(t, rng_u64(&of_doc), n_doc < o->max_prompt ? n_doc : o->max_prompt);
        add_segment(t, rng_u64(&r), n_question);
    }
    free(cumulated);
}

/* --- statistics ------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

void workload_describe(const struct workload *w, struct workload_stats *out)
{
    double *length = xcalloc((size_t)w->n_sessions + 1, sizeof *length);
    *out = (struct workload_stats){.n_sessions = w->n_sessions};
    for (int i = 0; i < w->n_sessions; i++) {
        for (int k = 0; k < w->sessions[i].n_turns; k++) {
            const struct turn *t = &w->sessions[i].turns[k];
            const struct segment *last = &t->segments[t->n_segments - 1];
            out->n_turns++;
            out->question += last->n_tokens;
            out->answer += t->max_tokens;
            length[i] += t->max_tokens;
            for (const struct segment *s = t->segments; s <= last; s++) {
                length[i] += s->n_tokens;
                out->document += s < last ? s->n_tokens : 0;
            }
        }
        out->over_2500 += length[i] > 2500;
    }
    double turns = out->n_turns > 0 ? out->n_turns : 1;
    out->question /= turns;
    out->answer /= turns;
    out->document /= turns;
    out->over_2500 /= w->n_sessions > 0 ? w->n_sessions : 1;
    qsort(length, (size_t)w->n_sessions, sizeof *length, by_size);
    out->history_p50 = length[w->n_sessions / 2];
    free(length);
}

/* --- traces ----------------------------------------------------------------------------------- */

enum { BLOCK = 512 }; /* tokens of a block of Mooncake's trace, which has one hash id */

/* Parses a line {"timestamp": ms, "input_length", "output_length", "hash_ids"}. */
static int mooncake_line(struct workload *w, const struct workload_opts *o,
                         const struct json *v, double *at_s)
{
    int64_t ms = -1, n_in = -1, n_out = -1, id;
    const struct json *ids = json_member(v, "hash_ids");
    json_int_of(json_member(v, "timestamp"), &ms);
    json_int_of(json_member(v, "input_length"), &n_in);
    json_int_of(json_member(v, "output_length"), &n_out);
    if (ms < 0 || n_in < 1 || n_out < 0 || n_in > 1 << 24 || n_out > 1 << 24)
        return ERR_FORMAT;
    *at_s = (double)ms / 1e3;
    struct turn *t = add_turn(add_session(w, *at_s), 0,
                              tokens_of((double)n_out, o->token_scale));
    int64_t left = n_in;
    for (size_t i = 0; i < json_count(ids) && left > 0; i++, left -= BLOCK) {
        int64_t n = left < BLOCK ? left : BLOCK;
        if (!json_int_of(json_at(ids, i), &id))
            return ERR_FORMAT;
        add_segment(t, rng_mix((uint64_t)id + 1), tokens_of((double)n, o->token_scale));
    }
    if (t->n_segments == 0)
        add_segment(t, (uint64_t)w->n_sessions, tokens_of((double)n_in, o->token_scale));
    return 0;
}

/* Parses a line such as 2023-11-16 18:15:46.6805900,374,44: time, input and output tokens. */
static int azure_line(struct workload *w, const struct workload_opts *o, const char *line,
                      double *at_s)
{
    struct tm tm = {0};
    double seconds = 0, n_in, n_out;
    char *end = strptime(line, "%Y-%m-%d %H:%M:", &tm);
    if (end == NULL)
        return ERR_FORMAT;
    seconds = strtod(end, &end);
    n_in = *end == ',' ? strtod(end + 1, &end) : 0;
    n_out = *end == ',' ? strtod(end + 1, &end) : -1;
    if (!(n_in >= 1 && n_in < 1e7 && n_out >= 0 && n_out < 1e7))
        return ERR_FORMAT;
    *at_s = (double)timegm(&tm) + seconds;
    struct turn *t = add_turn(add_session(w, *at_s), 0, tokens_of(n_out, o->token_scale));
    add_segment(t, rng_mix(o->seed + (uint64_t)w->n_sessions),
                tokens_of(n_in, o->token_scale));
    return 0;
}

/* Gives the requests their times: random arrivals (Poisson) at the wanted rate, or with rate 0 the
 * trace's own times, scaled and counted from its first request. Drops requests that are too long or
 * come after o->seconds. */
static void fit_trace(struct workload *w, const struct workload_opts *o)
{
    struct rng r = {rng_mix(o->seed + 5)};
    double first = w->n_sessions > 0 ? w->sessions[0].start_s : 0, at = 0;
    int kept = 0;
    for (int i = 0; i < w->n_sessions; i++) {
        struct session s = w->sessions[i];
        int n = 0;
        for (int k = 0; k < s.turns[0].n_segments; k++)
            n += s.turns[0].segments[k].n_tokens;
        at = o->per_minute > 0 ? at + exponential(&r, 60 / o->per_minute)
                               : (s.start_s - first) * o->time_scale;
        s.start_s = at;
        if (at < o->seconds && n + s.turns[0].max_tokens <= o->max_prompt) {
            w->sessions[kept++] = s;
            continue;
        }
        free(s.turns[0].segments);
        free(s.turns);
    }
    w->n_sessions = kept;
}

int workload_trace(struct workload *w, const struct workload_opts *o, const char *path,
                   struct err *err)
{
    char *text = NULL, *line, *save = NULL;
    size_t n = 0;
    int rc = file_read(path, (size_t)1 << 30, &text, &n, err), n_line = 0;
    *w = (struct workload){.name = "trace", .seconds = o->seconds};
    if (rc != 0)
        return rc;
    for (line = strtok_r(text, "\n", &save); line != NULL && rc == 0;
         line = strtok_r(NULL, "\n", &save)) {
        struct json *v = NULL;
        double at_s = 0;
        n_line++;
        if (line[0] == '{')
            rc = json_parse(&v, line, strlen(line), path, err) != 0
                     ? ERR_FORMAT
                     : mooncake_line(w, o, v, &at_s);
        else if (n_line > 1 || strncmp(line, "TIMESTAMP", 9) != 0)
            rc = azure_line(w, o, line, &at_s);
        json_free(v);
        if (rc != 0)
            err_set(err, rc,
                    "%s:%d: neither a line of a Mooncake trace nor of an Azure trace", path,
                    n_line);
    }
    free(text);
    if (rc == 0)
        fit_trace(w, o);
    else
        workload_free(w);
    return rc;
}
