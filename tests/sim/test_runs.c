/* test_runs.c - loads and runs of the simulator, number by number.
 *
 * test_replay.c says how policies compare. Here every number of seeded loads and of short runs is
 * compared with a golden file (tests/base/golden.h), so that no count is off by a little. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sim/cache.h"
#include "sim/closed.h"
#include "sim/load.h"
#include "sim/replay.h"
#include "tests/base/golden.h"

/* --- loads ------------------------------------------------------------------------------------ */

static void tell_load(struct textbuf *b, const char *name, const struct load *l)
{
    textbuf_addf(b,
                 "%s: %u requests, %u runs, %u blocks of %u tokens, %u sessions, %llu "
                 "references\n",
                 name, l->n_requests, l->n_runs, l->n_blocks, l->block_tokens,
                 l->n_sessions, (unsigned long long)l->n_references);
    for (uint32_t i = 0; i < l->n_requests && i < 40; i++) {
        const struct load_request *r = &l->request[i];
        textbuf_addf(b, "  %.6f s: session %u, turn %u, %u in, %u out, %u blocks%s%s:",
                     r->time_s, r->session, r->turn, r->n_in, r->n_out, r->n_blocks,
                     r->is_tool_pending ? ", tool" : "", r->is_partial ? ", partial" : "");
        for (uint32_t k = r->run; k < r->run + r->n_runs; k++)
            textbuf_addf(b, " %u+%u", l->run[k].first, l->run[k].n);
        textbuf_addf(b, "\n");
    }
}

static const char mooncake[] =
    "{\"timestamp\":0,\"input_length\":1000,\"output_length\":5,\"hash_ids\":[0,1]}\n"
    "\n"
    "{\"timestamp\":3000,\"input_length\":1536,\"output_length\":7,\"hash_ids\":[0,7,8]}\n"
    "{\"timestamp\":3500,\"input_length\":512,\"output_length\":0,\"hash_ids\":[9]}\n"
    "{\"timestamp\":4500,\"input_length\":1,\"output_length\":0,\"hash_ids\":[]}";

static const char agents[] =
    "{\"session\":\"a\",\"t\":0,\"in\":100,\"out\":1,\"stop\":\"tool_use\",\"blocks\":[[1,"
    "2]]}\n"
    "{\"session\":\"a\",\"t\":9,\"in\":192,\"out\":2,\"stop\":\"end\",\"blocks\":[[1,1],[3,"
    "4]]}\n"
    "{\"session\":\"b\",\"t\":0,\"in\":64,\"out\":3,\"blocks\":[[1,1],[2,2],[3,9]]}\n"
    "{\"session\":\"b\",\"t\":2,\"in\":0,\"out\":4,\"blocks\":[]}\n"
    "{\"session\":\"c\",\"t\":1,\"in\":65,\"out\":5,\"stop\":\"tool_use\",\"blocks\":[[0,1]"
    "]}\n";

TEST(loads_are_the_golden_ones)
{
    struct textbuf b = {0};
    struct load l;
    assert_int_equal(load_mooncake(&l, mooncake, sizeof mooncake - 1, NULL), 0);
    tell_load(&b, "mooncake", &l);
    load_free(&l);
    static const char *const parts[] = {"all agents", "odd agents", "even agents"};
    for (int part = LOAD_ALL; part <= LOAD_EVEN; part++) {
        assert_int_equal(
            load_agents(&l, agents, sizeof agents - 1, (enum load_part)part, 60, 7, NULL),
            0);
        tell_load(&b, parts[part], &l);
        load_free(&l);
    }
    for (int k = 0; k < 3; k++) {
        struct chats_opts o = {.seed = 3 + (uint64_t)k,
                               .n_sessions = 300,
                               .sessions_per_s = 1 + k,
                               .think_s = 60 * k,
                               .max_tokens = k == 2 ? 1000 : 32768};
        load_chats(&l, &o);
        tell_load(&b, "chats", &l);
        load_sort(&l);
        tell_load(&b, "chats by time", &l);
        load_free(&l);
    }
    golden_check(&b, "tests/sim/golden/loads.txt");
}

/* A malformed line is refused, with its number and its fault. The bounds of every number are
 * included. */
TEST(malformed_lines_are_named)
{
    static const struct {
        bool is_mooncake;
        const char *text, *words; /* words NULL: the text is good */
    } cases[] = {
        {true, "", "no request"},
        {true, "\n\n", "no request"},
        {true, "\n{\"timestamp\":-1}\n",
         "line 2: 'timestamp' must be a number from 0 to 1e+15"},
        {true, "{\"timestamp\":1000000000000001,\"input_length\":1,\"output_length\":1}",
         "'timestamp'"},
        {true, "{\"timestamp\":0,\"input_length\":1000000001,\"output_length\":1}",
         "line 1: 'input_length' must be a number from 0 to 1e+09"},
        {true, "{\"timestamp\":0,\"input_length\":1,\"output_length\":\"1\"}",
         "'output_length'"},
        {true, "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[-1]}",
         "'hash_ids' must be numbers from 0 to 100000000"},
        {true,
         "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[100000001]"
         "}",
         "'hash_ids'"},
        {true,
         "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1.5]}",
         "'hash_ids'"},
        {true,
         "{\"timestamp\":1000000000000000,\"input_length\":1000000000,\"output_length\":"
         "1000000000,\"hash_ids\":[100000000]}",
         NULL},
        {true, "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{",
         "line 2: trace"},
        {false, "{\"t\":0,\"in\":1,\"out\":1}", "'session' must be a string"},
        {false, "{\"session\":\"a\",\"in\":1,\"out\":1}", "'t' must be"},
        {false, "{\"session\":\"a\",\"t\":0,\"in\":-1,\"out\":1}", "'in' must be"},
        {false, "{\"session\":\"a\",\"t\":0,\"in\":1,\"out\":1e10}", "'out' must be"},
        {false, "{\"session\":\"a\",\"t\":0,\"in\":1,\"out\":1,\"blocks\":[[2,1]]}",
         "'blocks' must be ranges from 0 to 10000000"},
        {false, "{\"session\":\"a\",\"t\":0,\"in\":1,\"out\":1,\"blocks\":[[-1,1]]}",
         "'blocks'"},
        {false, "{\"session\":\"a\",\"t\":0,\"in\":1,\"out\":1,\"blocks\":[[0,10000001]]}",
         "'blocks'"},
        {false, "{\"session\":\"a\",\"t\":0,\"in\":1,\"out\":1,\"blocks\":[[\"x\",1]]}",
         "'blocks'"},
        {false, "{\"session\":\"a\",\"t\":0,\"in\":1,\"out\":1,\"blocks\":[[1]]}",
         "'blocks'"},
        {false, "{\"session\":\"a\",\"t\":0,\"in\":0,\"out\":0,\"blocks\":[[0,10000000]]}",
         NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct load l;
        struct err err = {0};
        const char *text = cases[i].text;
        int rc = cases[i].is_mooncake
                     ? load_mooncake(&l, text, strlen(text), &err)
                     : load_agents(&l, text, strlen(text), LOAD_ALL, 1, 1, &err);
        load_free(&l);
        if ((rc == 0) != (cases[i].words == NULL))
            fail_msg("%s: %d", text, rc);
        if (rc == 0)
            continue;
        assert_int_equal(rc, ERR_FORMAT);
        if (strstr(err.msg, cases[i].words) == NULL)
            fail_msg("%s: %s", text, err.msg);
    }
}

/* --- replays ---------------------------------------------------------------------------------- */

TEST(replays_are_the_golden_ones)
{
    struct textbuf b = {0};
    struct load l;
    struct chats_opts o = {.seed = 5,
                           .n_sessions = 500,
                           .sessions_per_s = 1,
                           .think_s = 120,
                           .max_tokens = 32768};
    load_chats(&l, &o);
    load_sort(&l);
    for (int p = 0; p < PLACEMENT_KINDS; p++)
        for (int how = 0; how < 6; how++) {
            struct replay_opts ro = {.policy = (enum placement_kind)p,
                                     .max_blocks = how < 3 ? 900 : 4000,
                                     .window = how % 3 == 0 ? 0
                                                            : 1 + 30 * (uint32_t)(how % 3),
                                     .judge_from_s = how % 2 ? 300 : 0,
                                     .admits_second_use = how == 4};
            struct replay_result r;
            replay_run(&l, &ro, &r);
            textbuf_addf(
                &b,
                "%s, %llu blocks, window %u%s: %llu hits of %llu, %.6g s saved, %llu "
                "written, %llu evicted, %llu seen\n",
                placement_names[p], (unsigned long long)ro.max_blocks, ro.window,
                ro.admits_second_use ? ", second use" : "", (unsigned long long)r.n_hits,
                (unsigned long long)r.n_references, r.seconds_saved,
                (unsigned long long)r.n_written, (unsigned long long)r.n_evicted,
                (unsigned long long)r.n_seen);
        }
    load_free(&l);
    golden_check(&b, "tests/sim/golden/replays.txt");
}

/* Block `at` of a path costs its tokens, each with the attention to the tokens before it: the
 * figures of LLaMA-13B in replay.c. */
TEST(a_block_costs_more_behind_others)
{
    assert_true(replay_block_s(64, 0) == 64 * (7.06e-5 + 2.2e-9 * 32));
    assert_true(replay_block_s(512, 3) == 512 * (7.06e-5 + 2.2e-9 * 1792));
}

/* --- two tiers -------------------------------------------------------------------------------- */

enum { BLOCKS = 60 };

static struct textbuf *told;

static void tell_evicted(void *arg, uint32_t block)
{
    (void)arg;
    textbuf_addf(told, " -%u", block);
}

static void tell_left(void *arg, const struct placement_item *victim)
{
    (void)arg;
    textbuf_addf(told, " v%u", (unsigned)victim->id - 1);
}

/* Uses a path of six chains of ten blocks, as a request does. */
static void use_path(struct cache *c, struct rng *r, uint32_t op)
{
    struct placement_use u = {.time = op / 4, .lot = op, .class = (uint8_t)(op % 7)};
    uint32_t first = 10 * (uint32_t)rng_below(r, 6), last = CACHE_NONE;
    uint32_t end = first + 1 + (uint32_t)rng_below(r, 10);
    for (uint32_t b = first; b < end; b++) {
        if (cache_has(c, b)) {
            cache_pin(c, b);
            cache_touch(c, b, &u);
            if (c->block[b].tier == 2 && c->o.n_tiers == 2)
                cache_raise(c, b, u.time);
        } else if (!cache_add(c, b, last, &u)) {
            break;
        }
        if (last != CACHE_NONE)
            cache_unpin(c, last);
        last = b;
    }
    if (last != CACHE_NONE)
        cache_unpin(c, last);
}

/* Lets a policy run in one tier or two, with drops, and tells the victims in their order, and at
 * the end the tier of each block. */
static void tell_victims(struct textbuf *b, enum placement_kind p, int n_tiers)
{
    struct rng r = {(uint64_t)p};
    struct cache c;
    struct placement_window w;
    struct placement_upcoming *place = xcalloc(256, sizeof *place);
    struct placement_wait *wait = xcalloc(128, sizeof *wait);
    placement_window_init(&w, place, 256, wait, 128);
    struct cache_opts o = {.n_blocks = BLOCKS,
                           .n_tiers = n_tiers,
                           .max_blocks = {n_tiers == 2 ? 9 : 20, 14},
                           .policy = p,
                           .refuses = n_tiers == 1,
                           .window = &w};
    cache_init(&c, &o);
    c.on_evict = tell_evicted;
    c.on_leave = tell_left;
    told = b;
    textbuf_addf(b, "%s, %d tiers:", placement_names[p], n_tiers);
    for (uint32_t op = 0; op < 200; op++) {
        uint32_t block = (uint32_t)rng_below(&r, BLOCKS);
        if (op % 3 == 0 && placement_window_add(&w, 1 + block, op))
            cache_review(&c, block);
        if (op % 3 == 1 && placement_window_remove(&w, 1 + block, op - 1))
            cache_review(&c, block);
        if (op % 11 == 0)
            cache_drop(&c, block, block % 10 == 9 ? CACHE_NONE : block + 1);
        use_path(&c, &r, op);
        assert_true(cache_audit(&c));
        textbuf_addf(b, op % 20 == 19 ? "\n " : "");
    }
    textbuf_addf(b, " %llu evicted, %llu added, %llu down, %llu up, %llu and %llu in\n ",
                 (unsigned long long)c.n_evicted, (unsigned long long)c.n_added,
                 (unsigned long long)c.n_down, (unsigned long long)c.n_up,
                 (unsigned long long)c.n_in[0], (unsigned long long)c.n_in[1]);
    for (uint32_t i = 0; i < BLOCKS; i++)
        textbuf_addf(b, " %d", c.block[i].tier);
    textbuf_addf(b, "\n");
    cache_deinit(&c);
    free(place);
    free(wait);
}

TEST(victims_are_the_golden_ones)
{
    struct textbuf b = {0};
    for (int p = 0; p < PLACEMENT_BELADY; p++)
        for (int n_tiers = 1; n_tiers <= 2; n_tiers++)
            tell_victims(&b, (enum placement_kind)p, n_tiers);
    golden_check(&b, "tests/sim/golden/victims.txt");
}

/* --- a loaded server -------------------------------------------------------------------------- */

static void tell_closed(struct textbuf *b, const char *name, const struct load *l,
                        const struct closed_opts *o)
{
    struct closed_result r;
    double share;
    closed_run(l, o, &r);
    double dollars = closed_cost(o, &r, &share);
    textbuf_addf(b, "%s, %s, %s: %llu jobs, %llu hits (%llu in memory) of %llu\n", name,
                 o->model->name, placement_names[o->policy], (unsigned long long)r.n_jobs,
                 (unsigned long long)r.n_hits, (unsigned long long)r.n_memory_hits,
                 (unsigned long long)r.n_references);
    textbuf_addf(
        b,
        "  %.6g s prefill, %.6g s decode, %.6g s wait, %.9g tokens, queue %.6g, %.6g s "
        "saved\n",
        r.prefill_s, r.decode_s, r.wait_s, r.prompt_tokens, r.mean_queue, r.seconds_saved);
    textbuf_addf(b,
                 "  %.6g bytes written, %.6g s in all, %u sessions an hour, %.6g dollars, "
                 "%.6g for storage\n",
                 r.written_bytes, r.wall_s, r.most_sessions, dollars, share);
}

TEST(loaded_servers_are_the_golden_ones)
{
    struct textbuf b = {0};
    struct load l;
    struct chats_opts co = {
        .seed = 1, .n_sessions = 2600, .sessions_per_s = 2, .max_tokens = 32768};
    const struct closed_opts plain = {.model = &closed_models[0],
                                      .policy = PLACEMENT_ATTENTIONSTORE,
                                      .memory_bytes = 64e9,
                                      .disk_bytes = 1e12,
                                      .state_share = 1,
                                      .disk_bytes_per_s = 5e9,
                                      .n_warm = 1000};
    load_chats(&l, &co);
    tell_closed(&b, "plain", &l, &plain);
    struct closed_opts o = plain;
    o.policy = PLACEMENT_LRU;
    tell_closed(&b, "plain", &l, &o);
    o = plain;
    o.memory_bytes = o.disk_bytes = 0;
    tell_closed(&b, "no cache", &l, &o);
    o = plain;
    o.disk_bytes = 0;
    o.state_share = 0.5;
    tell_closed(&b, "memory alone", &l, &o);
    o = plain;
    o.overflow_loses_all = true;
    tell_closed(&b, "overflow loses all", &l, &o);
    o = plain;
    o.disk_bytes_per_s = 3e8;
    o.policy = PLACEMENT_OURS;
    tell_closed(&b, "a slow disk", &l, &o);
    o = plain;
    o.model = &closed_models[3];
    o.policy = PLACEMENT_LFU;
    tell_closed(&b, "another model", &l, &o);
    load_free(&l);
    /* Sessions come slowly, so an hour sees only some of them. */
    co.sessions_per_s = 0.15;
    load_chats(&l, &co);
    tell_closed(&b, "sessions over hours", &l, &plain);
    load_free(&l);
    golden_check(&b, "tests/sim/golden/servers.txt");
}
