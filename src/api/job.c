/* job.c - see job.h.
 *
 * A line's way:   input -> [ahead, in prefix order] -> [in flight] -> output or errors
 *
 * Invariants:
 *  1. A line that is not a request, or was refused, has been written to the errors before the next
 *     line is read.  A line in flight is in no file.
 *  2. Lines read ahead are bounded in number and bytes.  Lines in flight are bounded in answers,
 *     except that one line may exceed the bound. */
#include "api/job.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "api/estimate.h"
#include "api/line.h"
#include "api/output.h"
#include "api/prefix_order.h"
#include "api/generation.h"
#include "api/shape.h"

enum {
    AHEAD_BYTES = 64 << 20, /* bound on the bytes of lines that are read ahead */
    /* lines read between two checks of the engine while requests are in flight */
    AT_ONCE = 16,
    WAIT_MS = 100,
    MAX_TRIES = 5, /* tries of a request that found no memory */
};

/* A request that waits or runs. */
struct item {
    /* must be first, because prefix_order gives it back and it is converted to the item */
    struct prefix_item prefix;
    struct line line;
    struct gen_params params;
    struct prompts prompts;
    struct client client;
    struct generation *gen;
    int n_answers, n_tries;
};

struct batch {
    struct batch_opts o;
    struct client_calls calls;
    struct input in;
    struct output out, errors;
    bool has_errors; /* there is a file for faults; false: faults go to the output */
    struct idset done, seen;
    struct prefix_item **ahead;
    struct prefix_order order;
    size_t ahead_bytes;
    struct item **flying; /* [n_flying] requests in flight */
    int n_flying, cap_flying, n_answers;
    struct prefix_item last; /* copy of the item that was sent last */
    int32_t *last_ids;
    bool at_end;
    bool is_held;    /* the engine has no room for another request now */
    bool yields;     /* no more requests are sent; set by batch_yield */
    bool has_waited; /* the job waited for a line while it had nothing else to do */
    struct batch_counts counts;
    uint64_t bytes_passed; /* bytes of lines that an earlier run has done */
    uint64_t bytes_done;   /* bytes of lines that this run has done */
    int64_t begun_ns, told_ns;

    atomic_bool stopping;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t change;
    bool news;
};

/* --- opening and closing ---------------------------------------------------------------------- */

static bool is_one_file(const char *a, const char *b)
{
    struct stat x, y;
    if (strcmp(a, "-") == 0 || strcmp(b, "-") == 0)
        return false;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* Wakes the job's thread. Called on the engine's thread, or on any thread that stops the job. */
static void wake(void *arg)
{
    struct batch *b = arg;
    pthread_mutex_lock(&b->lock);
    b->news = true;
    pthread_cond_signal(&b->change);
    pthread_mutex_unlock(&b->lock);
}

static void count_answer(void *arg, enum answer_end end, const struct hcache_result *r,
                         bool missed)
{
    struct batch *b = arg;
    struct batch_counts *c = &b->counts;
    const struct client *o = &b->o.client;
    if (o->calls != NULL && o->calls->ended != NULL)
        o->calls->ended(o->arg, end, r, missed);
    if (r == NULL || end == ANSWER_CANCELLED)
        return;
    c->n_answers++;
    c->prompt_tokens += (uint64_t)r->prompt_tokens;
    c->device_tokens += (uint64_t)r->device_tokens;
    c->restored_tokens += (uint64_t)(r->cached_tokens - r->device_tokens);
    c->generated_tokens += (uint64_t)r->n_tokens;
    c->queue_s += r->timings.queue_ms / 1000;
    c->restore_s += r->timings.restore_ms / 1000;
    c->prefill_s += r->timings.prefill_ms / 1000;
    c->decode_s += r->timings.decode_ms / 1000;
}

static void begin_answer(void *arg)
{
    const struct client *o = &((struct batch *)arg)->o.client;
    if (o->calls != NULL && o->calls->began != NULL)
        o->calls->began(o->arg);
}

static int open_output(const struct batch_opts *o, struct output *out, const char *path,
                       struct idset *done, struct err *err)
{
    return o->seal != NULL ? output_open_sealed(out, path, o->seal, done, err)
                           : output_open(out, path, o->is_private, done, err);
}

static int open_files(struct batch *b, struct err *err)
{
    const struct batch_opts *o = &b->o;
    int rc = input_open(&b->in, o->input, err);
    if (rc == 0 && (is_one_file(o->input, o->output) ||
                    (o->errors != NULL && is_one_file(o->input, o->errors))))
        rc = err_set(err, ERR_USAGE,
                     "%s is both the input and an output: name another file", o->input);
    if (rc == 0)
        rc = open_output(o, &b->out, o->output, &b->done, err);
    b->has_errors = o->errors != NULL && strcmp(o->errors, o->output) != 0 &&
                    !is_one_file(o->errors, o->output);
    if (rc == 0 && b->has_errors)
        rc = open_output(o, &b->errors, o->errors, &b->done, err);
    return rc;
}

int batch_open(const struct batch_opts *o, struct batch **out, struct err *err)
{
    struct batch *b = xcalloc(1, sizeof *b);
    b->o = *o;
    b->in.fd = b->out.fd = b->errors.fd = -1;
    b->calls = (struct client_calls){
        .wake = wake, .began = begin_answer, .ended = count_answer};
    pthread_mutex_init(&b->lock, NULL);
    clock_cond_init(&b->change);
    /* There is room for the requests in flight, too, because they may come back. */
    int cap = o->lookahead + o->in_flight;
    b->ahead = xcalloc((size_t)cap, sizeof(void *));
    prefix_order_init(&b->order, b->ahead, cap);
    int rc = open_files(b, err);
    if (rc != 0) {
        batch_close(b);
        return rc;
    }
    b->counts.n_done = b->out.n_lines + b->errors.n_lines;
    b->counts.out_bytes = b->out.n_bytes + b->errors.n_bytes;
    b->counts.n_failed = b->out.n_failed + b->errors.n_failed;
    b->counts.total_lines = b->in.total_lines;
    *out = b;
    return 0;
}

static void item_free(struct item *it)
{
    generation_free(it->gen);
    prompts_deinit(&it->prompts);
    line_deinit(&it->line);
    free(it);
}

void batch_close(struct batch *b)
{
    if (b == NULL)
        return;
    for (int i = 0; i < b->n_flying; i++)
        item_free(b->flying[i]);
    for (int i = 0; i < b->order.n; i++)
        item_free((struct item *)b->ahead[i]);
    input_close(&b->in);
    output_close(&b->out);
    output_close(&b->errors);
    idset_free(&b->done);
    idset_free(&b->seen);
    free(b->flying);
    free((void *)b->ahead);
    free(b->last_ids);
    pthread_cond_destroy(&b->change);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

void batch_model(struct batch *b, struct hcache *h)
{
    struct hcache_model_info info;
    hcache_model_info(h, &info);
    b->o.client.h = h;
    b->o.client.names.in_file = info.name;
}

void batch_yield(struct batch *b)
{
    b->yields = true;
}

void batch_set_bound(struct batch *b, uint64_t max_out_bytes)
{
    b->o.max_out_bytes = max_out_bytes;
}

void batch_stop(struct batch *b)
{
    atomic_store(&b->stopping, true);
    wake(b);
}

/* --- counts ----------------------------------------------------------------------------------- */

void batch_counts(const struct batch *b, struct batch_counts *out)
{
    *out = b->counts;
}

/* Updates the counts' times and calls on_progress; unless `now`, not within progress_ns of the last
 * call. */
static void tell(struct batch *b, bool now)
{
    int64_t at = clock_now_ns();
    struct batch_counts *c = &b->counts;
    if (!now && at - b->told_ns < b->o.progress_ns)
        return;
    b->told_ns = at;
    c->elapsed_s = (double)(at - b->begun_ns) * 1e-9;
    uint64_t done = c->n_lines - c->n_skipped - (uint64_t)b->order.n -
                    (uint64_t)b->n_flying;
    uint64_t total = b->in.total_lines, passed = c->n_skipped + done;
    uint64_t bytes = b->in.total_bytes, bytes_passed = b->bytes_passed + b->bytes_done;
    struct estimate e = {.lines_done = done,
                         .bytes_done = b->bytes_done,
                         .lines_left = total - MIN(total, passed),
                         .bytes_left = bytes - MIN(bytes, bytes_passed),
                         .is_size_known = bytes > 0,
                         .elapsed_s = c->elapsed_s};
    c->left_low_s = c->left_high_s = 0;
    (void)estimate_left(&e, &c->left_low_s, &c->left_high_s);
    if (b->o.on_progress != NULL)
        b->o.on_progress(b->o.arg, c);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Writes the answer of a line. Frees `text`. */
static void write_line(struct batch *b, const struct line *l, char *text, bool failed)
{
    output_add(failed && b->has_errors ? &b->errors : &b->out, text);
    free(text);
    b->counts.n_done++;
    b->counts.n_failed += failed;
    b->bytes_done += l->n_bytes + 1;
}

static bool is_done(struct batch *b, const struct line *l, bool is_request)
{
    struct textbuf name = {0};
    char *id = xasprintf(LINE_ID "%s", l->name);
    if (is_request)
        output_name_answer(l->custom_id, &name);
    else
        output_name_fault(id, &name);
    bool done = idset_has(&b->done, name.p, name.n);
    textbuf_free(&name);
    free(id);
    return done;
}

static int check_request(struct batch *b, struct item *it, struct fault *f)
{
    if (b->o.only != 0 && it->line.kind != b->o.only)
        return fault_set(f, 400, "mismatched_url", "url",
                         "the line's url is not the batch's endpoint");
    if (request_parse(it->line.body, it->line.kind, &it->params, f) != 0)
        return -1;
    if (it->params.stream)
        return fault_set(f, 400, "unsupported_parameter", "stream",
                         "'stream' is not supported in a batch");
    if (b->o.priority != 0)
        it->params.priority = b->o.priority;
    return client_check_model(&it->client, it->params.model, f);
}

static void set_client(struct batch *b, struct item *it)
{
    it->client = b->o.client;
    /* Without remembered answers: the tokens of earlier answers must not change a prompt. */
    it->client.answers = NULL;
    it->client.repeatable = it->client.has_seed = true;
    it->client.request_name = it->line.name;
    it->client.created_s = b->o.created_s;
    it->client.seed = it->line.seed;
    it->client.calls = &b->calls;
    it->client.arg = b;
}

static int read_prompts(struct item *it, struct fault *f)
{
    int rc = prompts_read(&it->client, &it->params, NULL, &it->prompts, f);
    if (rc != 0)
        return rc;
    struct prompts *ps = &it->prompts;
    size_t n_ids = 0;
    for (int i = 0; i < ps->n; i++)
        n_ids += (size_t)ps->p[i].n;
    prompt_text_deinit(&ps->text); /* the answers of a batch are not remembered */
    ps->text = (struct prompt_text){0};
    it->n_answers = ps->n * (int)it->params.n;
    it->line.n_memory += n_ids * sizeof(int32_t);
    it->prefix.tokens = ps->p[0].ids;
    it->prefix.n = ps->p[0].n;
    return 0;
}

static uint64_t group_of(const char *salt)
{
    return salt != NULL ? checksum64(salt, strlen(salt)) : 0;
}

/* Checks a request and adds it to those read ahead. Answers a refused one at once, and frees it. */
static void add_request(struct batch *b, struct item *it)
{
    struct fault f;
    set_client(b, it);
    if (check_request(b, it, &f) != 0 || read_prompts(it, &f) != 0) {
        write_line(b, &it->line, line_answer(&it->line, f.status, fault_json(&f)), true);
        item_free(it);
        return;
    }
    it->prefix.number = it->line.number;
    it->prefix.group = group_of(it->params.cache_salt);
    b->ahead_bytes += it->line.n_memory;
    prefix_order_add(&b->order, &it->prefix);
}

/* Skips the line that was read if it is done, else adds its request or reports its fault. */
static void add_line(struct batch *b, enum input_got got)
{
    struct fault f;
    struct item *it = xcalloc(1, sizeof *it);
    bool is_request = line_read(&b->in, got, &b->seen, &it->line, &f) == 0;
    b->counts.n_lines++;
    if (is_done(b, &it->line, is_request)) {
        b->counts.n_skipped++;
        b->bytes_passed += it->line.n_bytes + 1;
    } else if (is_request) {
        add_request(b, it);
        return;
    } else {
        write_line(b, &it->line, line_fault(&it->line, &f), true);
    }
    item_free(it);
}

/* Reads ahead as many lines as fit; at most AT_ONCE per call while requests are in flight. */
static int read_ahead(struct batch *b, struct err *err)
{
    int n_max = b->yields ? 0 : b->n_flying > 0 ? AT_ONCE : INT32_MAX;
    b->has_waited = false;
    for (int n = 0; n < n_max && !b->at_end && !atomic_load(&b->stopping) &&
                    b->order.n < b->o.lookahead && b->ahead_bytes < AHEAD_BYTES;
         n++) {
        bool idle = b->n_flying == 0 && b->order.n == 0;
        enum input_got got = input_next(&b->in, idle ? WAIT_MS : 0, err);
        if (got == INPUT_FAULT)
            return err->code;
        b->has_waited = got == INPUT_LATER && idle;
        if (got == INPUT_LATER)
            break;
        b->at_end = got == INPUT_END;
        if (!b->at_end)
            add_line(b, got);
        tell(b, false);
    }
    return 0;
}

/* --- sending ---------------------------------------------------------------------------------- */

/* Copies the request that was taken last: the next one is chosen by what it shares with this. */
static void remember_last(struct batch *b, const struct prefix_item *p)
{
    b->last_ids = xrealloc(b->last_ids, ((size_t)p->n + 1) * sizeof(int32_t));
    memcpy(b->last_ids, p->tokens, (size_t)p->n * sizeof(int32_t));
    b->last = *p;
    b->last.tokens = b->last_ids;
}

/* Returns whether a refused request is tried again: the queue was full, or the answer was a 503 and
 * MAX_TRIES are not used up. */
static bool comes_again(const struct item *it, const struct fault *f)
{
    bool is_full = f->status == 429;
    return is_full || (f->status == 503 && it->n_tries < MAX_TRIES);
}

/* Handles a request that did not reach the engine or failed there: queues it once more, or answers
 * it and frees the item. */
static void fail_request(struct batch *b, struct item *it, const struct fault *f)
{
    struct fault again;
    it->n_tries += f->status == 503;
    if (comes_again(it, f) && read_prompts(it, &again) == 0) {
        b->is_held = true; /* until a request has ended, or a moment has passed */
        b->ahead_bytes += it->line.n_memory;
        prefix_order_add(&b->order, &it->prefix);
        return;
    }
    write_line(b, &it->line, line_answer(&it->line, f->status, fault_json(f)), true);
    item_free(it);
}

/* Notes a request as in flight. */
static void fly(struct batch *b, struct item *it)
{
    GROW(b->flying, b->n_flying, b->cap_flying);
    b->flying[b->n_flying++] = it;
    b->n_answers += it->n_answers;
}

/* Starts requests that were read ahead, in prefix order, while fewer than in_flight answers run. */
static void send(struct batch *b)
{
    struct fault f;
    while (!b->is_held && !b->yields && b->order.n > 0 && b->n_answers < b->o.in_flight) {
        struct item *it = (struct item *)prefix_order_take(
            &b->order, b->last_ids != NULL ? &b->last : NULL);
        b->ahead_bytes -= it->line.n_memory;
        remember_last(b, &it->prefix);
        struct prompts ps = it->prompts; /* generation_start takes the prompts */
        it->prompts = (struct prompts){0};
        if (generation_start(&it->client, &shape_completions, NULL, &it->params, ps.p, ps.n,
                             NULL, "", &it->gen, &f) == 0)
            fly(b, it);
        else
            fail_request(b, it, &f);
    }
}

/* --- collecting ------------------------------------------------------------------------------- */

/* Writes the answer of a request. Frees the item, or queues a failed request once more. Returns
 * false if the engine is stopping; then the line is not done. */
static bool finish(struct batch *b, struct item *it)
{
    struct fault f;
    struct json *answer;
    bool ok = generation_answer(it->gen, &answer, &f) == 0;
    bool is_stopping = !ok && f.code != NULL && strcmp(f.code, "stopping") == 0;
    generation_free(it->gen);
    it->gen = NULL;
    if (ok)
        write_line(b, &it->line, line_answer(&it->line, 200, answer), false);
    else if (!is_stopping)
        fail_request(b, it, &f);
    mem_unpledge(); /* gives up the pledge for the answer */
    if (ok || is_stopping)
        item_free(it);
    return !is_stopping;
}

/* Collects ended requests. Returns their number. */
static int collect(struct batch *b)
{
    int n = 0;
    for (int i = 0; i < b->n_flying;) {
        struct item *it = b->flying[i];
        if (!generation_has_ended(it->gen)) {
            i++;
            continue;
        }
        b->flying[i] = b->flying[--b->n_flying];
        b->n_answers -= it->n_answers;
        if (!finish(b, it))
            atomic_store(&b->stopping, true);
        n++;
    }
    b->is_held = b->is_held && n == 0;
    return n;
}

/* Makes written lines durable. From then on they count as done. */
static int sync_lines(struct batch *b, struct err *err)
{
    uint64_t more = b->out.lines.n + b->errors.lines.n;
    uint64_t n = b->out.n_bytes + b->errors.n_bytes + more;
    b->counts.lost_bytes = more;
    if (b->o.max_out_bytes != 0 && n > b->o.max_out_bytes)
        return err_set(err, ERR_LIMIT,
                       "there is no room for more than %llu bytes of answers",
                       (unsigned long long)b->o.max_out_bytes);
    int rc = output_sync(&b->out, err);
    if (rc == 0 && b->has_errors)
        rc = output_sync(&b->errors, err);
    if (rc == 0) {
        b->counts.out_bytes = n;
        b->counts.lost_bytes = 0;
    }
    return rc;
}

/* Waits until a request has ended, or a moment has passed. */
static void wait_for_news(struct batch *b)
{
    bool is_late = false;
    pthread_mutex_lock(&b->lock);
    while (!b->news && !is_late)
        is_late = clock_cond_wait(&b->change, &b->lock, WAIT_MS * INT64_C(1000000));
    b->news = false;
    pthread_mutex_unlock(&b->lock);
    b->is_held = b->is_held && !is_late;
}

/* --- the run ---------------------------------------------------------------------------------- */

/* Adds the time since *from to *sum, and sets *from to now. */
static void lap(int64_t *from, double *sum)
{
    int64_t now = clock_now_ns();
    *sum += (double)(now - *from) * 1e-9;
    *from = now;
}

static bool is_over(const struct batch *b)
{
    return b->at_end && b->order.n == 0 && b->n_flying == 0;
}

static void cancel_all(struct batch *b)
{
    for (int i = 0; i < b->n_flying; i++)
        generation_cancel(b->flying[i]->gen);
}

int batch_run(struct batch *b, struct err *err)
{
    struct batch_counts *c = &b->counts;
    int64_t at = b->begun_ns = clock_now_ns();
    int rc = 0;
    while (rc == 0 && !is_over(b) && !atomic_load(&b->stopping) &&
           !(b->yields && b->n_flying == 0)) {
        rc = read_ahead(b, err);
        send(b);
        lap(&at, b->has_waited ? &c->waiting_s : &c->reading_s);
        int n = collect(b);
        if (rc == 0)
            rc = sync_lines(b, err);
        lap(&at, &c->writing_s);
        tell(b, false);
        if (n == 0 && rc == 0 && (b->n_flying > 0 || b->is_held))
            wait_for_news(b);
        lap(&at, &c->waiting_s);
    }
    if (!is_over(b) && rc == 0) {
        rc = err_set(err, ERR_CANCELLED, "stopped");
        c->is_stopped = true;
        /* keeps the answers of requests that have ended in the meantime */
        (void)collect(b);
        struct err late;
        (void)sync_lines(b, &late);
    }
    cancel_all(b);
    tell(b, true);
    return rc;
}
