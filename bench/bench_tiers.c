/* bench_tiers.c - `hcache bench tiers`: hit rates of placement policies, on a simulated clock.
 *
 * The policies are those of src/store/placement.c, which the store and the KV pool run. Cache,
 * clock, disk and server are simulated (sim). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/option_tables.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "opt/opt.h"
#include "bench/bench.h"
#include "bench/tiers_figures.h"
#include "base/json.h"
#include "sim/closed.h"
#include "sim/replay.h"

enum { MAX_TRACE_BYTES = 1 << 28, SESSIONS = 9000, WARM_JOBS = 10000 };
#define DISK_BYTES_PER_S 5e9
#define AGENT_GAP_S      60.0
#define OPEN_THINK_S     180.0

struct tiers_args {
    const char *load, *trace, *judge, *state, *admit, *page, *csv;
    struct opt_list policies, blocks, figures;
    uint64_t memory, disk;
    int window;
    int64_t seed;
    bool check, json;
};

static const char *const load_names[] = {"closed", "open", "mooncake", "agents", NULL};
static const char *const judge_names[] = {"all", "second-half", "odd", "even", NULL};
static const char *const admit_names[] = {"all", "second-use", NULL};
static const char *const state_names[] = {"kv", "hidden", NULL};

static const struct opt options[] = {
    {"load", OPT(struct tiers_args, load), .choices = load_names, .def = "closed",
     .help = "closed: AttentionStore's 9,000 chats behind one server; open: the same chats "
             "with "
             "pauses of minutes; mooncake, agents: traces"},
    {"trace", OPT(struct tiers_args, trace), .arg = "FILE",
     .help = "trace file for mooncake or agents"},
    {"policies", OPT(struct tiers_args, policies), .arg = "NAME[,NAME...]",
     .def = "lru,fifo,lfu,attentionstore,ours,belady",
     .help = "lru, fifo, lfu, attentionstore, ours, belady"},
    {"blocks", OPT(struct tiers_args, blocks), .arg = "N[,N...]",
     .def = "1000,3000,10000,100000",
     .help = "sizes of the cache, for loads other than closed"},
    {"dram", OPT(struct tiers_args, memory), .arg = "BYTES", .def = "128000000000",
     .help = "memory, for the closed load"},
    {"disk", OPT(struct tiers_args, disk), .arg = "BYTES", .def = "2000000000000",
     .help = "disk, for the closed load"},
    {"window", OPT(struct tiers_args, window), .arg = "N", .def = "0", .min = 0,
     .max = 100000, .help = "known requests ahead, for loads other than closed"},
    {"judge", OPT(struct tiers_args, judge), .choices = judge_names, .def = "all",
     .help = "requests that count: all; the second half hour (mooncake); odd or even "
             "sessions (agents)"},
    {"admit", OPT(struct tiers_args, admit), .choices = admit_names, .def = "all",
     .help = "blocks that are written, for loads other than closed: all, or only at their "
             "second reference"},
    {"state", OPT(struct tiers_args, state), .choices = state_names, .def = "kv",
     .help = "kind of stored state in the closed load; hidden states have half the bytes"},
    {"figures", OPT(struct tiers_args, figures), .arg = "N[,N...]",
     .help =
         "AttentionStore's figures among 13 to 17 and 21 to 24, beside the paper's values"},
    {"page", OPT(struct tiers_args, page), .arg = "FILE",
     .help = "write rows and figures as a page with pictures"},
    {"csv", OPT(struct tiers_args, csv), .arg = "FILE", .help = "write the rows as CSV"},
    {"seed", OPT(struct tiers_args, seed), .arg = "N", .def = "1", .min = 0,
     .max = INT64_MAX, .help = "seed of the chats, and of the starts of agents' sessions"},
    {"check", OPT(struct tiers_args, check), .help = "exit 1 if a gate is missed"},
    {"json", OPT(struct tiers_args, json), .help = "print one JSON object"},
    {0},
};

static const struct opt_cmd cmd = {
    .name = "bench tiers",
    .summary =
        "Compares placement policies on simulated caches: hit rates, seconds saved, bytes "
        "written, and the distance to a policy that knows the future.",
    .options = options,
    .examples =
        "  hcache bench tiers --load mooncake --trace conversation_trace.jsonl --window 64 "
        "--judge second-half\n"
        "  hcache bench tiers --load closed --figures 13,21 --page tiers.html\n",
    .values_bytes = sizeof(struct tiers_args),
};
const struct opt_cmd *const options_of_bench_tiers = &cmd;

/* --- loads ------------------------------------------------------------------------------------ */

static void make_chats(const struct tiers_args *a, double think_s, struct load *l)
{
    struct chats_opts o = {.seed = (uint64_t)a->seed,
                           .n_sessions = SESSIONS,
                           .sessions_per_s = 1,
                           .think_s = think_s,
                           .max_tokens = 32768};
    load_chats(l, &o);
}

static int read_trace(const struct tiers_args *a, struct load *l, struct err *err)
{
    char *text = NULL;
    size_t n = 0;
    if (a->trace == NULL)
        return err_set(err, ERR_USAGE, "--load %s needs --trace FILE", a->load);
    int rc = file_read(a->trace, MAX_TRACE_BYTES, &text, &n, err);
    enum load_part part = strcmp(a->judge, "odd") == 0    ? LOAD_ODD
                          : strcmp(a->judge, "even") == 0 ? LOAD_EVEN
                                                          : LOAD_ALL;
    if (rc == 0)
        rc = strcmp(a->load, "mooncake") == 0
                 ? load_mooncake(l, text, n, err)
                 : load_agents(l, text, n, part, AGENT_GAP_S, (uint64_t)a->seed, err);
    free(text);
    return rc;
}

static int make_load(const struct tiers_args *a, struct load *l, struct err *err)
{
    if (strcmp(a->load, "mooncake") == 0 || strcmp(a->load, "agents") == 0)
        return read_trace(a, l, err);
    make_chats(a, strcmp(a->load, "open") == 0 ? OPEN_THINK_S : 0, l);
    if (strcmp(a->load, "open") == 0)
        load_sort(l);
    return 0;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Computes for each row which share of the distance from lru to belady, at equal size, it
 * covers. */
static void fill_gaps(struct tiers_row *row, int n)
{
    for (int i = 0; i < n; i++) {
        const struct tiers_row *lru = NULL, *belady = NULL;
        for (int k = 0; k < n; k++) {
            if (row[k].blocks != row[i].blocks)
                continue;
            lru = row[k].policy == PLACEMENT_LRU ? &row[k] : lru;
            belady = row[k].policy == PLACEMENT_BELADY ? &row[k] : belady;
        }
        row[i].has_gap = lru != NULL && belady != NULL && belady->hit_rate > lru->hit_rate;
        if (row[i].has_gap)
            row[i].gap_closed = (row[i].hit_rate - lru->hit_rate) /
                                (belady->hit_rate - lru->hit_rate);
    }
}

static void replay_row(const struct tiers_args *a, const struct load *l,
                       enum placement_kind kind, uint64_t blocks, struct tiers_row *row)
{
    double half_s = l->request[l->n_requests - 1].time_s / 2;
    struct replay_opts o = {.policy = kind,
                            .max_blocks = blocks,
                            .window = (uint32_t)a->window,
                            .admits_second_use = strcmp(a->admit, "second-use") == 0,
                            .judge_from_s = strcmp(a->judge, "second-half") == 0 ? half_s
                                                                                 : 0};
    struct replay_result r;
    replay_run(l, &o, &r);
    *row = (struct tiers_row){.policy = kind,
                              .blocks = blocks,
                              .window = a->window,
                              .n_references = r.n_seen,
                              .hit_rate = (double)r.n_hits / (double)r.n_references,
                              .seconds_saved = r.seconds_saved,
                              .written_bytes = (double)r.n_written * l->block_tokens *
                                               closed_models[0].token_bytes};
}

/* Returns the bytes of stored state as a share of the bytes of keys and values. */
static double state_share(const struct tiers_args *a)
{
    return strcmp(a->state, "hidden") == 0 ? 0.5 : 1;
}

static void closed_row(const struct tiers_args *a, const struct load *l,
                       enum placement_kind kind, struct tiers_row *row)
{
    struct closed_opts o = {.model = &closed_models[0],
                            .policy = kind,
                            .memory_bytes = (double)a->memory,
                            .disk_bytes = (double)a->disk,
                            .state_share = state_share(a),
                            .disk_bytes_per_s = DISK_BYTES_PER_S,
                            .n_warm = WARM_JOBS};
    struct closed_result r;
    closed_run(l, &o, &r);
    *row = (struct tiers_row){
        .policy = kind,
        .memory_bytes = o.memory_bytes,
        .disk_bytes = o.disk_bytes,
        .n_references = r.n_references,
        .hit_rate = (double)r.n_hits / (double)(r.n_references > 0 ? r.n_references : 1),
        .memory_share = r.n_hits > 0 ? (double)r.n_memory_hits / (double)r.n_hits : 0,
        .seconds_saved = r.seconds_saved,
        .written_bytes = r.written_bytes};
}

static int run_policy(const struct tiers_args *a, const struct load *l, const char *name,
                      struct tiers_row *row, int *n, struct err *err)
{
    int kind = placement_kind_of(name);
    bool is_closed = strcmp(a->load, "closed") == 0;
    if (is_closed && kind == PLACEMENT_BELADY)
        /* which requests come depends on earlier evictions, so belady has no known future */
        return 0;
    if (is_closed) {
        closed_row(a, l, (enum placement_kind)kind, &row[(*n)++]);
        return 0;
    }
    for (int i = 0; i < a->blocks.n; i++) {
        int blocks,
            rc = bench_number("blocks", a->blocks.items[i], 1, 100000000, &blocks, err);
        if (rc != 0)
            return rc;
        replay_row(a, l, (enum placement_kind)kind, (uint64_t)blocks, &row[(*n)++]);
    }
    return 0;
}

/* --- output ----------------------------------------------------------------------------------- */

static void print_table(const struct tiers_report *r)
{
    printf("%-15s %9s %7s %8s %8s %12s %9s %12s\n", "policy", "blocks", "hits", "in DRAM",
           "window", "saved s", "gap", "written GB");
    for (int i = 0; i < r->n_rows; i++) {
        const struct tiers_row *w = &r->row[i];
        char gap[16] = "-";
        if (w->has_gap)
            snprintf(gap, sizeof gap, "%.1f %%", 100 * w->gap_closed);
        printf("%-15s %9llu %6.2f%% %7.1f%% %8d %12.0f %9s %12.0f\n",
               placement_names[w->policy], (unsigned long long)w->blocks, 100 * w->hit_rate,
               100 * w->memory_share, w->window, w->seconds_saved, gap,
               w->written_bytes / 1e9);
    }
    for (int i = 0; i < r->n_figures; i++) {
        const struct tiers_figure *f = &r->figure[i];
        char figure[16] = "gate";
        if (f->figure > 0)
            snprintf(figure, sizeof figure, "figure %d", f->figure);
        printf("%-9s %-42s %s %8.2f  ours %8.2f  %s\n", figure, f->row,
               f->figure > 0 ? "paper" : "least", f->paper, f->ours,
               f->gate[0] == 0 ? ""
               : f->is_ok      ? "gate met"
                               : "GATE MISSED");
        bool is_last = i + 1 == r->n_figures || strcmp(f->why, r->figure[i + 1].why) != 0;
        if (f->why[0] != 0 && is_last)
            printf("          why they differ: %s\n", f->why);
    }
}

static void print_json(const struct tiers_args *a, const struct load *l,
                       const struct tiers_report *r)
{
    struct json *o = json_new_object(), *rows = json_new_array(),
                *figures = json_new_array();
    json_put_string(o, "load", a->load);
    json_put_int(o, "seed", a->seed);
    json_put_int(o, "requests", l->n_requests);
    json_put_int(o, "references", (int64_t)r->n_references);
    json_put_real(o, "wall_s", r->wall_s);
    json_put_real(o, "ceiling",
                  l->n_references > 0 ? 1 - (double)l->n_blocks / (double)l->n_references
                                      : 0);
    for (int i = 0; i < r->n_rows; i++) {
        const struct tiers_row *w = &r->row[i];
        struct json *x = json_new_object();
        json_put_string(x, "policy", placement_names[w->policy]);
        json_put_int(x, "blocks", (int64_t)w->blocks);
        json_put_real(x, "dram_bytes", w->memory_bytes);
        json_put_real(x, "disk_bytes", w->disk_bytes);
        json_put_int(x, "window", w->window);
        json_put_real(x, "hit_rate", w->hit_rate);
        json_put_real(x, "dram_share", w->memory_share);
        json_put_real(x, "seconds_saved", w->seconds_saved);
        json_put_real(x, "written_bytes", w->written_bytes);
        if (w->has_gap)
            json_put_real(x, "gap_closed", w->gap_closed);
        json_push(rows, x);
    }
    for (int i = 0; i < r->n_figures; i++) {
        const struct tiers_figure *f = &r->figure[i];
        struct json *x = json_new_object();
        json_put_int(x, "figure", f->figure);
        json_put_string(x, "row", f->row);
        /* A gate compares rows of this run; no paper has its value. */
        if (f->figure == 0)
            json_put_null(x, "paper");
        json_put_real(x, f->figure > 0 ? "paper" : "least", f->paper);
        json_put_real(x, "ours", f->ours);
        json_put_string(x, "gate", f->gate);
        json_put_bool(x, "ok", f->is_ok);
        json_put_string(x, "why", f->why);
        json_push(figures, x);
    }
    json_put(o, "rows", rows);
    json_put(o, "figures", figures);
    char *text = json_text(o, 0);
    puts(text);
    free(text);
    json_free(o);
}

static int add_figures(const struct tiers_args *a, struct tiers_report *r, struct err *err)
{
    bool wanted[TIERS_LAST_FIGURE + 1] = {false};
    for (int i = 0; i < a->figures.n; i++) {
        int f, rc = bench_number("figures", a->figures.items[i], 13, TIERS_LAST_FIGURE, &f,
                                 err);
        if (rc == 0 && f > 17 && f < 21)
            rc = err_set(err, ERR_USAGE, "--figures: there are 13 to 17 and 21 to 24");
        if (rc != 0)
            return rc;
        wanted[f] = true;
    }
    struct load chats;
    make_chats(a, 0, &chats);
    tiers_figures(r, &chats, wanted);
    load_free(&chats);
    return 0;
}

/* Refuses values that a later run would refuse, before the first run, which takes seconds. */
static int check_args(const struct tiers_args *a, const struct load *l, struct err *err)
{
    double block_bytes = closed_models[0].token_bytes * state_share(a) * l->block_tokens;
    for (int i = 0; i < a->policies.n; i++)
        if (placement_kind_of(a->policies.items[i]) < 0)
            return err_set(err, ERR_USAGE, "--policies: '%s' is not a policy",
                           a->policies.items[i]);
    if (strcmp(a->load, "closed") == 0 && a->memory > 0 && (double)a->memory < block_bytes)
        return err_set(err, ERR_USAGE,
                       "--dram %llu: a block of %u tokens has %.0f bytes; give at least as "
                       "many, or 0 for no cache",
                       (unsigned long long)a->memory, l->block_tokens, block_bytes);
    return 0;
}

static int run(const struct tiers_args *a, bool *is_missed, struct err *err)
{
    struct load l = {0};
    struct tiers_report r = {0};
    int rc = make_load(a, &l, err);
    if (rc == 0)
        rc = check_args(a, &l, err);
    size_t n_max = (size_t)a->policies.n * (size_t)(a->blocks.n + 1);
    r.row = xcalloc(n_max + 1, sizeof r.row[0]);
    int64_t start_ns = clock_now_ns();
    for (int i = 0; rc == 0 && i < a->policies.n; i++)
        rc = run_policy(a, &l, a->policies.items[i], r.row, &r.n_rows, err);
    r.wall_s = (double)(clock_now_ns() - start_ns) * 1e-9;
    if (rc == 0) {
        fill_gaps(r.row, r.n_rows);
        for (int i = 0; i < r.n_rows; i++)
            r.n_references += r.row[i].n_references;
        tiers_gates(&r, a->load);
    }
    if (rc == 0 && a->figures.n > 0)
        rc = add_figures(a, &r, err);
    for (int i = 0; i < r.n_figures; i++)
        *is_missed = *is_missed || (r.figure[i].gate[0] != 0 && !r.figure[i].is_ok);
    if (rc == 0 && a->json)
        print_json(a, &l, &r);
    else if (rc == 0)
        print_table(&r);
    if (rc == 0 && a->csv != NULL)
        rc = tiers_write_csv(&r, a->csv, err);
    if (rc == 0 && a->page != NULL)
        rc = tiers_write_page(&r, a->load, a->page, err);
    free(r.row);
    load_free(&l);
    return rc;
}

int bench_tiers(int argc, char **argv)
{
    struct tiers_args a;
    struct opt_parsed *parsed;
    struct err err = {0};
    int code;
    bool is_missed = false;
    if (!opt_begin(&cmd, argc, argv, &a, &parsed, &code))
        return code;
    int rc = run(&a, &is_missed, &err);
    opt_end(parsed);
    code = bench_end("tiers", rc, &err);
    return code == 0 && a.check && is_missed ? 1 : code;
}
