/* test_decisions.c - decisions of the small policies for seeded inputs, number by number.
 *
 * Each policy has a test of its rules (test_sched.c, test_minibatch.c, ...). Rules leave room: a
 * bound that is off by one, or a term that is missing from a sum, may keep every rule. So the
 * decisions themselves are compared with golden files (tests/base/golden.h). A change that is meant
 * to change decisions writes the files anew; its diff shows each decision that is different. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "restore/beside.h"
#include "restore/correction.h"
#include "restore/dram_tier.h"
#include "engine/hybrid.h"
#include "engine/hybrid_share.h"
#include "engine/minibatch.h"
#include "store/placement_learn.h"
#include "store/placement_price.h"
#include "store/placement_window.h"
#include "api/prefix_order.h"
#include "restore/regress.h"
#include "store/remote/remote_pace.h"
#include "restore/save_kinds.h"
#include "engine/sched.h"
#include "engine/view.h"
#include "restore/stall.h"
#include "restore/surprise.h"
#include "tests/base/golden.h"
#include "sim/machines.h"

#define GOLDEN "tests/restore/golden/decisions.txt"

static double between(struct rng *r, double least, double most)
{
    return least * exp(rng_unit(r) * log(most / least));
}

static int whole(struct rng *r, int least, int most)
{
    return least + (int)rng_below(r, (uint64_t)(most - least + 1));
}

/* ---- the scheduler ---- */

enum { MOST_REQUESTS = 9 };

static int draw_requests(struct rng *r, struct sched_limits *l, struct sched_req *q)
{
    int n = whole(r, 1, MOST_REQUESTS);
    *l = (struct sched_limits){.now_ns = 1000,
                               .age_ns = 10,
                               .step_rows = whole(r, 1, 40),
                               .rows_beside = whole(r, 0, 20),
                               .free_blocks = whole(r, 0, 6)};
    for (int i = 0; i < n; i++) {
        q[i] = (struct sched_req){.phase = (enum sched_phase)rng_below(r, 4),
                                  .priority = whole(r, -1, 1),
                                  .arrival_ns = whole(r, 0, 30),
                                  .deadline_ns = rng_below(r, 8) ? 0 : 999 + whole(r, 0, 2),
                                  .rows = whole(r, 1, 20),
                                  .after = -1};
        bool waits = q[i].phase == SCHED_WAITING;
        q[i].blocks_needed = waits                        ? whole(r, 1, 5)
                             : q[i].phase == SCHED_DECODE ? whole(r, 0, 1)
                                                          : 0;
        q[i].blocks_freed = waits ? 0 : whole(r, 0, 4);
        q[i].is_held = waits && rng_below(r, 8) == 0;
        if (waits && rng_below(r, 5) == 0)
            q[i].after = (int)rng_below(r, (uint64_t)n);
        if (q[i].after == i)
            q[i].after = -1;
        l->max_running += !waits;
    }
    l->max_running += whole(r, 0, 2);
    return n;
}

TEST(the_scheduler_decides_as_before)
{
    static const char verdicts[] = "-RAPT";
    struct textbuf b = {0};
    for (int t = 0; t < 300; t++) {
        struct rng r = {(uint64_t)t};
        struct sched_limits l;
        struct sched_req q[MOST_REQUESTS];
        struct sched_choice choice[MOST_REQUESTS];
        int order[MOST_REQUESTS], n = draw_requests(&r, &l, q);
        sched_decide(&l, q, n, order, choice);
        textbuf_addf(&b, "%d:", t);
        for (int k = 0; k < n; k++) {
            const struct sched_choice *c = &choice[order[k]];
            textbuf_addf(&b, " %d%c%d", order[k], verdicts[c->what], c->rows);
        }
        textbuf_addf(&b, "\n");
    }
    golden_digests(&b, GOLDEN, "sched");
}

/* ---- blocks of the hybrid cache ---- */

static struct hybrid_machine draw_machine(struct rng *r)
{
    struct hybrid_machine m = {.weights_s = rng_below(r, 2) ? between(r, 1e-4, 1e-2) : 0,
                               .forward_s = between(r, 1e-4, 1e-2),
                               .forward_mini_s = rng_below(r, 2) ? between(r, 1e-5, 1e-3)
                                                                 : 0,
                               .project = {between(r, 1e-6, 1e-4), between(r, 1e-6, 1e-4)},
                               .link = {between(r, 1e-6, 1e-4), between(r, 1e-11, 1e-9)},
                               .kv_bytes = 262144,
                               .act_bytes = rng_below(r, 6) ? 131072 : 262144,
                               .n_minibatches = whole(r, 1, 6)};
    m.n_requests = rng_below(r, 3) ? m.n_minibatches + whole(r, 0, 8) : 0;
    m.n_layers = rng_below(r, 2) ? whole(r, 2, 40) : 0;
    return m;
}

TEST(blocks_get_their_types_as_before)
{
    struct textbuf b = {0};
    for (int t = 0; t < 120; t++) {
        struct rng r = {4000 + (uint64_t)t};
        struct hybrid_machine m = draw_machine(&r);
        int64_t n_blocks = whole(&r, 1, 900), act[64] = {0};
        const struct hybrid_memory mem = {.device_bytes = between(&r, 1, 300) * m.act_bytes,
                                          .host_bytes = (double)n_blocks * m.kv_bytes *
                                                        (0.4 + rng_unit(&r))};
        struct hybrid_split s;
        struct hybrid_shares p;
        hybrid_choose(&m, &mem, n_blocks, &s);
        textbuf_addf(
            &b,
            "%d: %lld+%lld device, %lld+%lld host, %.6g ms (link %.6g, compute %.6g, "
            "kv %.6g)%s%s\n",
            t, (long long)s.act_device, (long long)s.kv_device, (long long)s.act_host,
            (long long)s.kv_host, s.seconds * 1e3, s.link_s * 1e3, s.compute_s * 1e3,
            s.kv_seconds * 1e3, s.is_shared_out ? ", shared out" : "",
            s.fits ? "" : ", does not fit");
        hybrid_paper(&m, &mem, &p);
        textbuf_addf(&b, "  paper: %.6g+%.6g, %.6g+%.6g, %.6g+%.6g\n", p.act_init,
                     p.kv_init, p.act_remain, p.kv_remain, p.act_host, p.kv_host);
        double shared_s = s.fits ? hybrid_share_out(&m, &s, act) : INFINITY;
        if (isfinite(shared_s)) {
            textbuf_addf(&b, "  shares of %.6g ms:", shared_s * 1e3);
            for (int i = 0; i < m.n_minibatches; i++)
                textbuf_addf(&b, " %lld", (long long)act[i]);
            hybrid_share_requests(&m, &s, act);
            textbuf_addf(&b, "; requests");
            for (int i = 0; i < m.n_requests; i++)
                textbuf_addf(&b, " %lld", (long long)act[i]);
            textbuf_addf(&b, "\n");
        }
    }
    golden_digests(&b, GOLDEN, "hybrid");
}

TEST(requests_join_minibatches_as_before)
{
    struct textbuf b = {0};
    for (int t = 0; t < 120; t++) {
        struct rng r = {6000 + (uint64_t)t};
        struct hybrid_machine m = draw_machine(&r);
        struct minibatch_request q[24];
        struct minibatch bins[24];
        int of[24], n = whole(&r, 1, 24);
        const struct minibatch_room room = {whole(&r, 20, 120), whole(&r, 40, 200)};
        for (int i = 0; i < n; i++)
            q[i] = (struct minibatch_request){whole(&r, 0, 30), whole(&r, 0, 30),
                                              whole(&r, 0, 2)};
        for (int m_idx = 0; m_idx < 2; m_idx++) {
            int k = minibatch_form(&m, &room, q, n,
                                   m_idx == 0 ? MINIBATCH_PAPER : MINIBATCH_BALANCED, of,
                                   bins);
            textbuf_addf(&b, "%d%c:", t, "pb"[m_idx]);
            for (int i = 0; i < n; i++)
                textbuf_addf(&b, " %d", of[i]);
            for (int i = 0; i < k; i++)
                textbuf_addf(&b, "%s%d of %lld+%lld+%lld", i == 0 ? "; " : ", ",
                             bins[i].n_requests, (long long)bins[i].n_act,
                             (long long)bins[i].n_kv, (long long)bins[i].n_written);
            textbuf_addf(&b, "; %.6g ms, %.6g\n",
                         minibatch_layer_seconds(&m, bins, k) * 1e3,
                         minibatch_imbalance(&m, bins[0].n_act, bins[0].n_kv));
        }
    }
    golden_digests(&b, GOLDEN, "minibatches");
}

/* ---- what restores teach ---- */

static void tell_factor(struct textbuf *b, const char *name,
                        const struct platform_correction *c)
{
    textbuf_addf(b, " %s %.6f~%.5f n%d run%d(%.4f) u%d", name, c->log2, c->spread_log2,
                 c->n_observed, c->run, c->run_log2, c->n_unused);
}

/* Restores of all kinds teach a platform, short ones and long ones, and prompts between them. */
TEST(restores_teach_as_before)
{
    struct textbuf b = {0};
    for (int t = 0; t < 24; t++) {
        struct rng r = {8000 + (uint64_t)t};
        struct platform p;
        platform_init(&p);
        p.n_layers = 12;
        p.n_tiers = 1;
        p.tier[0].latency_s = 1e-4;
        p.weights_s = t % 8 == 7 ? 1e-3 : 0;
        double slower = between(&r, 0.3, 3), least = t % 3 ? 1e-3 : 1e-5;
        for (int i = 0; i < 40; i++) {
            double io_s = between(&r, least, 1e-1), gemm_s = between(&r, least, 1e-1);
            double kv_s = gemm_s * between(&r, 0.01, 10);
            struct correction_expected e = {.io_s = rng_below(&r, 5) ? io_s : 0,
                                            .gemm_s = rng_below(&r, 5) ? gemm_s : 0,
                                            .kv_s = rng_below(&r, 3) ? kv_s : 0,
                                            .n_splits = rng_below(&r, 4) ? 0
                                                                         : whole(&r, 1, 60),
                                            .slowed = 1 + 0.2 * rng_unit(&r)};
            e.restore_s = fmax(e.io_s, e.gemm_s + e.kv_s) * (1 + 0.2 * rng_unit(&r));
            struct correction_observed o = {
                .io_s = e.io_s * slower * between(&r, 0.8, 1.25),
                .compute_s = (e.gemm_s + e.kv_s) * slower * between(&r, 0.8, 1.25)};
            o.total_s = fmax(o.io_s, o.compute_s) * between(&r, 1, 1.6);
            o.wait_s = fmax(0, o.total_s - o.compute_s);
            correction_learn(&p, &e, &o);
            if (i % 3 == 1)
                correction_learn_prefill(&p, 1e-2, 1e-2 * between(&r, 0.4, 2.5));
            if (i % 4 != 3)
                continue;
            textbuf_addf(&b, "%d.%d:", t, i);
            tell_factor(&b, "io", &p.tier[0].correction);
            tell_factor(&b, "gemm", &p.gemm_correction);
            textbuf_addf(&b, "\n ");
            tell_factor(&b, "kv", &p.kv_correction);
            tell_factor(&b, "pauses", &p.pause_correction[0]);
            tell_factor(&b, "of balanced plans", &p.pause_correction[1]);
            textbuf_addf(&b, " start %.4f ms, split %.4f us\n", p.start_s * 1e3,
                         p.split_s * 1e6);
        }
    }
    golden_digests(&b, GOLDEN, "corrections");
}

/* Least squares of one to three terms, some of which only a negative coefficient would fit. */
TEST(curves_fit_as_before)
{
    struct textbuf b = {0};
    for (int t = 0; t < 60; t++) {
        struct rng r = {300 + (uint64_t)t};
        struct regress_sample s[12];
        struct regress_fit fit;
        int n = whole(&r, 1, 12), n_terms = 1 + t % 3;
        double a = 1e-5 * (rng_unit(&r) - 0.3), c = 1e-10 * (rng_unit(&r) - 0.3);
        for (int i = 0; i < n; i++) {
            double x = between(&r, 10, 10000);
            s[i] = (struct regress_sample){.x = {x, 1, x * x}};
            s[i].y = fabs(1e-6 * x + a + c * x * x) * between(&r, 0.9, 1.1);
        }
        bool is_good = regress(s, n, n_terms, &fit);
        textbuf_addf(&b, "%d: %d, %.6g %.6g %.6g, r2 %.6g, rms %.6g, worst %.6g\n", t,
                     is_good, fit.coef[0], fit.coef[1], fit.coef[2], fit.r2, fit.rms,
                     fit.worst);
    }
    golden_digests(&b, GOLDEN, "fits");
}

/* ---- the learner of the policy `ours` ---- */

/* Items of four classes, of which one is used at fixed gaps, one once, and two at random ones. */
TEST(content_teaches_as_before)
{
    enum { ITEMS = 2500, STEPS = 36000 };
    struct textbuf b = {0};
    struct placement_learn *l = xcalloc(1, sizeof *l);
    uint32_t *used_at = xcalloc(2 * ITEMS + STEPS, sizeof *used_at);
    struct rng r = {5};
    placement_learn_init(l);
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t now = i / 12, kind = (uint32_t)rng_below(&r, 4);
        uint64_t item = kind == 0   ? i % 700
                        : kind == 1 ? 2 * ITEMS + i
                                    : ITEMS + rng_below(&r, kind == 2 ? 200 : ITEMS);
        const struct placement_learn_use u = {
            .id = 1 + item,
            .class = placement_class_used(placement_class((int)kind, kind == 2, kind == 3),
                                          used_at[item] != 0),
            .time = now,
            .lot = i / 5,
            .value = kind == 3   ? 0.5
                     : kind == 2 ? 300
                                 : 0,
            .was_there = used_at[item] != 0 && now - used_at[item] < 150};
        placement_learn_used(l, &u);
        used_at[item] = now + 1;
        if (i > 6000 && i % 2)
            placement_learn_evicted(l, 1 + rng_below(&r, 2 * ITEMS), 1500);
        if (i % 3000 != 2999)
            continue;
        textbuf_addf(
            &b,
            "%u: %llu updates, %d samples, shift %d, price %.6g, lru %.6g, regret %.6g, "
            "debt %.6g, room %.6g\n",
            i, (unsigned long long)l->n_updates, l->n_samples, l->shift, l->price,
            l->lru_age, l->guard.regret, l->guard.debt, placement_guard_room(&l->guard));
        textbuf_addf(
            &b,
            "  trial: gain %.6g, squares %.6g, uses %.6g, judged %.6g, pays %d; may %d\n",
            l->trial.gain, l->trial.squares, l->trial.n_uses, l->trial.n_judged,
            l->trial.pays, placement_learn_may_depart(l));
        for (int class = 0; class < PLACEMENT_CLASSES; class ++) {
            if (!l->has_content[class])
                continue;
            textbuf_addf(&b, "  class %d:", class);
            for (int a = 0; a < PLACEMENT_AGES; a += 6)
                textbuf_addf(&b, " %.5g", l->index[class][a]);
            textbuf_addf(&b, "; worth");
            for (uint64_t lot = 0; lot < 4; lot++)
                textbuf_addf(&b, " %u %u",
                             placement_learn_worth(l, (uint8_t) class, lot, 1),
                             placement_learn_worth(l, (uint8_t) class, lot, 0.2));
            textbuf_addf(&b, "\n");
        }
    }
    free(used_at);
    free(l);
    golden_digests(&b, GOLDEN, "learner");
}

/* ---- reads that stall, remotes, changes of plan ---- */

TEST(stalls_and_remotes_are_judged_as_before)
{
    struct textbuf b = {0};
    for (int t = 0; t < 160; t++) {
        struct rng r = {12000 + (uint64_t)t};
        double again_s = -1;
        const struct stall_view v = {.recompute_s = between(&r, 1e-3, 10),
                                     .elapsed_s = between(&r, 1e-4, 20),
                                     .silent_s = between(&r, 1e-4, 3),
                                     .read_s = between(&r, 1e-4, 1),
                                     .n_read = whole(&r, 0, 9),
                                     .n_left = whole(&r, 0, 9),
                                     .may_recompute = rng_below(&r, 8) != 0,
                                     .can_race = rng_below(&r, 2),
                                     .is_idle = rng_below(&r, 3) != 0,
                                     .is_beside = rng_below(&r, 4) == 0,
                                     .is_raced = rng_below(&r, 4) == 0};
        enum stall_choice what = stall_choose(&v, &again_s);
        textbuf_addf(&b, "%d: %d again %.6g;", t, what, again_s);
        const struct remote_view w = {
            .recompute_s = rng_below(&r, 8) ? v.recompute_s : 0,
            .restore_s = between(&r, 1e-3, 1),
            .elapsed_s = v.elapsed_s,
            .silent_s = v.silent_s,
            .most_s = between(&r, 0.5, 5),
            .done_bytes = rng_below(&r, 3) ? rng_below(&r, 1 << 20) : 0,
            .left_bytes = rng_below(&r, 1 << 22)};
        struct remote_pace p = {0};
        for (int i = 0; i < t % 4; i++) {
            double latency_s = between(&r, 1e-4, 1e-2), transfer_s = between(&r, 1e-3, 1);
            remote_pace_learn(&p, latency_s, rng_below(&r, 1 << 22), transfer_s);
        }
        for (int i = 0; i < t % 40; i++)
            remote_pace_refuse(&p);
        enum remote_choice choice = remote_choose(&w, &p, &again_s);
        textbuf_addf(&b, " remote %d again %.6g, pace %.6g %.6g %d, price %.6g;", choice,
                     again_s, p.latency_s, p.bytes_per_s, p.n_refused,
                     remote_pace_price_s(&p, 1 << 20));
        textbuf_addf(&b, " backoff %.6g;", backoff_s(t % 12, (uint64_t)t));
        const struct surprise_times x = {between(&r, 1e-3, 1), between(&r, 1e-3, 1),
                                         between(&r, 1e-3, 1)};
        const struct surprise_times y = {between(&r, 1e-3, 1), between(&r, 1e-3, 1),
                                         between(&r, 1e-3, 1)};
        textbuf_addf(&b, " surprise %d, wait %.6g\n", surprise_of(&x, &y, t % 9 != 0),
                     sched_wait_s(t % 7, t % 5, v.recompute_s));
    }
    golden_digests(&b, GOLDEN, "judgements");
}

/* ---- which request comes first ---- */

enum { PROMPTS = 10, PROMPT_TOKENS = 260 };

static int32_t prompt[PROMPTS][PROMPT_TOKENS];

/* Draws prompts that share beginnings of several lengths. */
static void draw_prompts(struct rng *r)
{
    for (int i = 0; i < PROMPTS; i++) {
        int from = i > 0 ? (int)rng_below(r, (uint64_t)i) : 0;
        int same = i > 0 ? whole(r, 0, PROMPT_TOKENS) : 0;
        for (int k = 0; k < PROMPT_TOKENS; k++)
            prompt[i][k] = k < same ? prompt[from][k] : whole(r, 0, 500);
    }
}

TEST(prompts_are_ordered_as_before)
{
    struct textbuf b = {0};
    for (int t = 0; t < 60; t++) {
        struct rng r = {900 + (uint64_t)t};
        struct prefix_item item[PROMPTS], *place[PROMPTS];
        const struct prefix_item *last = NULL;
        struct prefix_order o;
        draw_prompts(&r);
        prefix_order_init(&o, place, PROMPTS);
        textbuf_addf(&b, "%d:", t);
        for (int i = 0; i < PROMPTS; i++) {
            item[i] = (struct prefix_item){.tokens = prompt[i],
                                           .n = whole(&r, 1, PROMPT_TOKENS),
                                           .group = rng_below(&r, 4) == 0,
                                           .number = (uint64_t)i};
            prefix_order_add(&o, &item[i]);
            if (i % 3 != 2)
                continue;
            last = prefix_order_take(&o, last);
            textbuf_addf(&b, " %llu", (unsigned long long)last->number);
        }
        while ((last = prefix_order_take(&o, last)) != NULL)
            textbuf_addf(&b, " %llu", (unsigned long long)last->number);
        textbuf_addf(&b, "\n");
    }
    golden_digests(&b, GOLDEN, "prefixes");
}

/* Keys are numbers here: a chunk's key stands for all tokens up to its end. */
TEST(leaders_are_found_as_before)
{
    enum { CHUNKS = PROMPT_TOKENS / LEAD_CHUNK_TOKENS };
    struct textbuf b = {0};
    for (int t = 0; t < 60; t++) {
        struct rng r = {1700 + (uint64_t)t};
        struct lead_request q[PROMPTS];
        struct sha256 key[PROMPTS][CHUNKS], root = {0};
        draw_prompts(&r);
        for (int i = 0; i < PROMPTS; i++) {
            uint64_t sum = 1;
            memset(key[i], 0, sizeof key[i]);
            for (int k = 0; k < CHUNKS * LEAD_CHUNK_TOKENS; k++) {
                sum = rng_mix(sum + (uint64_t)prompt[i][k]);
                memcpy(&key[i][k / LEAD_CHUNK_TOKENS], &sum, sizeof sum);
            }
            int n = whole(&r, 1, PROMPT_TOKENS);
            q[i] = (struct lead_request){.phase = (enum sched_phase)rng_below(&r, 4),
                                         .root = &root,
                                         .keys = key[i],
                                         .n_keys = n / LEAD_CHUNK_TOKENS,
                                         .tokens = prompt[i],
                                         .n_tokens = n,
                                         .n_done = rng_below(&r, 2) ? whole(&r, 0, n) : 0,
                                         .may_reuse = rng_below(&r, 8) != 0,
                                         .may_copy = rng_below(&r, 2)};
        }
        textbuf_addf(&b, "%d:", t);
        for (int i = 0; i < PROMPTS; i++)
            for (int n = 0; n <= q[i].n_keys; n++)
                textbuf_addf(&b, " %d.%d:%d", i, n, lead_find(q, PROMPTS, i, n));
        textbuf_addf(&b, "\n");
    }
    golden_digests(&b, GOLDEN, "leaders");
}

TEST(waits_are_known_as_before)
{
    enum { PLACES = 16, WAITS = 12, IDS = 9 };
    struct placement_upcoming place[PLACES] = {{0}};
    struct placement_wait wait[WAITS] = {{0}};
    struct placement_window w;
    struct textbuf b = {0};
    struct rng r = {3};
    placement_window_init(&w, place, PLACES, wait, WAITS);
    for (int t = 0; t < 200; t++) {
        uint64_t id = 1 + rng_below(&r, IDS), turn = rng_below(&r, 20);
        bool adds = rng_below(&r, 9) < 5;
        bool did = adds ? placement_window_add(&w, id, turn)
                        : placement_window_remove(&w, id, turn);
        textbuf_addf(&b, "%c%llu@%llu %d:", adds ? '+' : '-', (unsigned long long)id,
                     (unsigned long long)turn, did);
        for (id = 1; id <= IDS; id++)
            textbuf_addf(&b, " %lld*%u", (long long)placement_window_turn(&w, id),
                         placement_window_count(&w, id));
        textbuf_addf(&b, "; %u used, %u fresh, %llu refused\n", w.n_used, w.n_fresh,
                     (unsigned long long)w.n_refused);
    }
    golden_digests(&b, GOLDEN, "waits");
}

/* ---- platforms ---- */

static void tell_costs(struct textbuf *b, const struct platform *p)
{
    for (int64_t n = 1; n < 5000; n = n * 3 + 60) {
        textbuf_addf(
            b, "  %lld tokens: tok %.6g, h %.6g, kv %.6g, prefill %.6g, ends %.6g ms\n",
            (long long)n, platform_tok_s(p, n) * 1e3, platform_h_s(p, n) * 1e3,
            platform_kv_s(p, n) * 1e3, platform_prefill_s(p, 500, n) * 1e3,
            platform_ends_s(p, n) * 1e3);
        for (int t = 0; t < p->n_tiers; t++)
            textbuf_addf(b, "    tier %d: read %.6g %.6g, up %.6g %.6g, io %.6g %.6g ms\n",
                         t, platform_read_s(p, t, n, RECORD_HIDDEN) * 1e3,
                         platform_read_s(p, t, n, RECORD_KV) * 1e3,
                         platform_up_s(p, t, n, RECORD_HIDDEN) * 1e3,
                         platform_up_s(p, t, n, RECORD_KV) * 1e3,
                         platform_io_s(p, t, n, RECORD_HIDDEN) * 1e3,
                         platform_io_s(p, t, n, RECORD_KV) * 1e3);
    }
    for (int t = 0; t < p->n_tiers; t++)
        textbuf_addf(
            b, "  tier %d (%s): %.6g bytes/s, store-bound %d, in place %d, ratio %.6g\n", t,
            p->tier[t].name, platform_io_bytes_per_s(p, t), platform_is_store_bound(p, t),
            platform_tier_in_place(&p->tier[t]),
            platform_h_s(p, 1000) / platform_io_s(p, t, 1000, RECORD_HIDDEN));
    textbuf_addf(
        b,
        "  balance %.6g bytes/s, pauses %.6g, of balanced plans %.6g, overlap %.6g %.6g\n",
        platform_balance_bytes_per_s(p, 1000), platform_pause_factor(p, false),
        platform_pause_factor(p, true), p->io_overlap, p->comp_overlap);
}

static void draw_platform(struct rng *r, struct platform *p)
{
    platform_init(p);
    p->n_layers = 12;
    p->h_bytes = 2048;
    p->kv_bytes = 1024 * whole(r, 1, 4);
    p->c_tok = (struct cost_curve){1e-4 * rng_unit(r), 1e-5, 1e-9 * rng_unit(r)};
    p->c_h = (struct cost_curve){1e-4 * rng_unit(r), 1e-6, 0};
    p->c_kv = (struct cost_curve){1e-5 * rng_unit(r), 1e-7, 0};
    p->embed_s = 1e-7;
    p->head_s = 1e-4;
    p->tile_tokens = rng_below(r, 2) ? 128 : 1;
    p->piece_tokens = rng_below(r, 2) ? 512 : 0;
    p->h_piece_tokens = rng_below(r, 2) ? 256 : 0;
    p->weights_s = rng_below(r, 3) ? 0 : 2e-3;
    p->gemm_correction.log2 = rng_unit(r) - 0.5;
    p->kv_correction.log2 = rng_unit(r) - 0.5;
    p->pause_correction[0].log2 = 3 * rng_unit(r) - 1;
    p->pause_correction[1].log2 = p->pause_correction[0].log2 / 2;
    p->io_overlap = 1 + rng_unit(r);
    p->comp_overlap = 1 + rng_unit(r);
    p->n_tiers = 2;
    for (int t = 0; t < 2; t++) {
        p->tier[t] = (struct platform_tier){.latency_s = 1e-4,
                                            .bytes_per_s = between(r, 1e8, 1e10),
                                            .request_s = rng_below(r, 2) ? 1e-6 : 0};
        p->tier[t].correction.log2 = rng_unit(r) - 0.5;
        p->tier[t].up_bytes_per_s = rng_below(r, 2) ? between(r, 1e8, 1e10) : 0;
        p->tier[t].gather_bytes_per_s = rng_below(r, 2) ? between(r, 1e8, 1e10) : 0;
        snprintf(p->tier[t].name, sizeof p->tier[t].name, "%s", t == 0 ? "ssd" : "dram");
    }
}

TEST(platforms_cost_as_before)
{
    struct textbuf b = {0};
    for (int t = 0; t < 10; t++) {
        struct rng r = {77 + (uint64_t)t};
        struct platform p;
        draw_platform(&r, &p);
        textbuf_addf(&b, "%d\n", t);
        tell_costs(&b, &p);
        struct platform q = platform_shared(&p, 0.5, 0.25);
        textbuf_addf(&b, " shared\n");
        tell_costs(&b, &q);
        q = p;
        platform_throttle(&q, t % 2, 5e8);
        platform_slow_compute(&q, 3);
        textbuf_addf(&b, " throttled, slow\n");
        tell_costs(&b, &q);
        struct placement_price price;
        platform_price(&p, &price);
        textbuf_addf(&b, "  price %.6g s, %.6g s/byte, %.6g bytes:", price.token_s,
                     price.read_byte_s, price.chunk_bytes);
        for (int n = 1; n <= 64; n += 21)
            textbuf_addf(&b, " %.6g %.6g %.6g",
                         placement_price_stored(&price, n, 1.5, 30000),
                         placement_price_held(&price, n, 0, true),
                         placement_price_held(&price, n, 2, false));
        const struct truncation window = {.context = 512, .step = 128, .keep = 64};
        textbuf_addf(&b, "; gains %d%d%d, stairs", dram_tier_gains(&p, 2000, 10, 0),
                     dram_tier_gains(&p, 500, 0, 1e-3),
                     dram_tier_gains(&p, 64, 3000, 1e-4));
        for (int64_t n = 500; n < 1000; n += 60)
            textbuf_addf(&b, " %.6g %.6g", staircase_price_s(&p, &window, n / 3, n) * 1e3,
                         staircase_share(&window, n));
        uint8_t kinds[12];
        struct err e;
        const struct save_kinds_from from = {.n_layers = 12,
                                             .h_bytes = p.h_bytes,
                                             .kv_bytes = p.kv_bytes,
                                             .platform = &p,
                                             .max_tokens = 5000};
        textbuf_addf(&b, "; kinds ");
        assert_int_equal(save_kinds_choose("auto", &from, kinds, &e), 0);
        for (int i = 0; i < 12; i++)
            textbuf_addf(&b, "%d", kinds[i]);
        assert_int_equal(save_kinds_add_beside("auto", &from, kinds, &e), 0);
        textbuf_addf(&b, " beside ");
        for (int i = 0; i < 12; i++)
            textbuf_addf(&b, "%d", kinds[i]);
        textbuf_addf(&b, "\n");
    }
    golden_digests(&b, GOLDEN, "costs");
}

/* The paper's machines, for a model with one projection width and for one with grouped heads on
 * several devices. */
TEST(builtin_platforms_are_as_before)
{
    static const char *const machines[] = {"a100", "a30", "4090", "l20", "h800", "a100x4"};
    static const char *const stores[] = {"dram", "1ssd", "2ssd", "3ssd", "4ssd"};
    static const struct platform_shape shapes[] = {
        {"7b", 32, 4096, 32, 32, 128, 11008, 32000, true, 2, 0, 0, 0, 0, 0, 0},
        {"30b", 48, 7168, 56, 56, 128, 28672, 50272, false, 2, 4, 1, 0, 0, 0, 0},
        {"grouped", 40, 4608, 36, 4, 128, 18432, 49152, true, 2, 2, 2, 0, 0, 0, 0},
    };
    struct textbuf b = {0};
    for (size_t s = 0; s < 3; s++)
        for (size_t i = 0; i < 30; i++) {
            char name[32], text[PLATFORM_FORMAT_MAX];
            struct platform p;
            struct err e = {0};
            snprintf(name, sizeof name, "%s-%s", machines[i / 5], stores[i % 5]);
            assert_int_equal(machine_platform(name, &shapes[s], &p, &e), 0);
            textbuf_addf(
                &b,
                "%s, %s: tok %.6g %.6g, h %.6g, kv %.6g, head %.6g us; %s %.6g GB/s, up "
                "%.6g, gather %.6g, latency %.6g us; %d ranks, %d stages\n",
                p.model, p.machine, p.c_tok.b_s * 1e6, p.c_tok.c_s * 1e6, p.c_h.b_s * 1e6,
                p.c_kv.b_s * 1e6, p.head_s * 1e6, p.tier[0].name,
                p.tier[0].bytes_per_s * 1e-9, p.tier[0].up_bytes_per_s * 1e-9,
                p.tier[0].gather_bytes_per_s * 1e-9, p.tier[0].latency_s * 1e6, p.n_ranks,
                p.n_stages);
            if (i % 15 == 4) {
                platform_format(&p, text, sizeof text);
                textbuf_addf(&b, "%s", text);
            }
        }
    golden_digests(&b, GOLDEN, "builtin");
}
