/* test_mixed_setup.c - whether a job's contexts get blocks on the host, and if so, how many of
 * which type. */
#include <string.h>
#include "tests/unit.h"
#include "engine/mixed_setup.h"
#include "tests/base/golden.h"

enum { L = 10, D = 1024, CONTEXT = 1024, N_SEQS = 8 };

static struct device device = {.n_stages = 1, .n_ranks = 1, .name = "a device"};

static struct model model_of(int n_kv_heads)
{
    return (struct model){.dev = &device,
                          .dtype = DTYPE_BF16,
                          .max_ctx = CONTEXT,
                          .cfg = {.n_layers = L,
                                  .n_embd = D,
                                  .n_heads = 16,
                                  .n_kv_heads = n_kv_heads,
                                  .d_head = 64}};
}

/* Costs on a machine whose link transfers a block's keys and values in 1 ms. Projecting a block
 * takes x ms. */
static struct mixed_costs costs_of(const struct model *m, double x)
{
    double kv = 64.0 * (double)model_kv_bytes(m, 0),
           act = 64.0 * (double)model_hidden_bytes(m);
    return (struct mixed_costs){.project = {0, x * 1e-3},
                                .link = {0, 1e-3 / kv},
                                .project_r2 = 1,
                                .link_r2 = 1,
                                .kv_bytes = kv,
                                .act_bytes = act,
                                .forward_s = 1e-3,
                                .forward_mini_s = 1e-5};
}

static struct mixed_job job_of(enum mixed_method method)
{
    return (struct mixed_job){.method = method,
                              .max_seqs = N_SEQS,
                              .device_bytes = (uint64_t)200 << 20,
                              .host_bytes = (uint64_t)1 << 30};
}

static struct mixed_choice choose(const struct mixed_job *j, const struct model *m,
                                  double x)
{
    struct mixed_costs c = costs_of(m, x);
    struct mixed_choice out;
    struct err err = {0};
    if (mixed_decide(j, m, &c, &out, &err) != 0)
        fail_msg("%s", err.msg);
    return out;
}

static int64_t n_act(const struct mixed_choice *c)
{
    return c->split.act_device + c->split.act_host;
}

static int64_t n_kv(const struct mixed_choice *c)
{
    return c->split.kv_device + c->split.kv_host;
}

static void expect_off(struct mixed_job j, const char *why)
{
    struct model m = model_of(16);
    struct mixed_choice c = choose(&j, &m, 1.4);
    assert_false(c.is_on);
    if (strstr(c.why, why) == NULL)
        fail_msg("'%s' does not say '%s'", c.why, why);
}

TEST(blocks_stay_on_the_device_if_the_host_gains_nothing)
{
    struct mixed_job j = job_of(MIXED_AUTO);
    j.unified = true;
    expect_off(j, "computes in the host's memory");
    j = job_of(MIXED_AUTO);
    j.has_store = true;
    expect_off(j, "saved in a store");
    j = job_of(MIXED_AUTO);
    j.is_group = true;
    expect_off(j, "several devices");
    j = job_of(MIXED_KV);
    j.host_bytes = 0;
    expect_off(j, "--host-memory");
    expect_off(job_of(MIXED_RECOMPUTE), "computed again");
    expect_off(job_of(MIXED_OFF), "not asked for");
    /* A method that is forced is used even where auto would use none. */
    struct model m = model_of(16);
    j = job_of(MIXED_ACT);
    j.unified = true;
    assert_true(choose(&j, &m, 1.4).is_on);
}

/* At x = 1.4 auto uses the policy's mixture. It uses no mixture if the link is faster than the
 * projection, if heads are grouped, or if the gain is small. */
TEST(auto_mixes_where_it_pays)
{
    struct model m = model_of(16), grouped = model_of(4);
    struct mixed_job j = job_of(MIXED_AUTO);
    struct mixed_choice c = choose(&j, &m, 1.4);
    struct hybrid_split want;
    const struct mixed_opts *o = &c.opts;
    struct places_opts po;
    assert_true(c.is_on && n_act(&c) > 0 && n_kv(&c) > 0);
    mixed_places(o, &m, N_SEQS, &po);
    struct hybrid_memory mem = {
        (double)(j.device_bytes -
                 places_device_bytes(&(struct places_opts){.n_layers = L,
                                                           .n_kv = 16,
                                                           .d_head = 64,
                                                           .n_embd = D,
                                                           .dtype = DTYPE_BF16,
                                                           .n_tails = N_SEQS,
                                                           .n_scratch = po.n_scratch,
                                                           .n_staging = po.n_staging})) /
            L,
        (double)j.host_bytes / L};
    hybrid_choose(&o->machine, &mem, n_act(&c) + n_kv(&c), &want);
    assert_memory_equal(&want, &c.split, sizeof want);
    assert_int_equal(n_act(&c) + n_kv(&c), N_SEQS * CONTEXT / 64);
    assert_true(o->act_share == (double)n_act(&c) && o->kv_share == (double)n_kv(&c));
    assert_true(places_device_bytes(&po) <= j.device_bytes);
    assert_true(places_host_bytes(&po) <= j.host_bytes);
    /* the buffer holds one context */
    assert_int_equal(o->machine.n_requests, N_SEQS);
    assert_int_equal(o->machine.n_minibatches, N_SEQS);
    assert_int_equal(o->machine.n_layers, L);
    assert_true(o->machine.forward_mini_s == 1e-5);
    assert_int_equal(n_act((c = choose(&j, &m, 10.5), &c)), 0);
    assert_true(c.is_on && c.split.kv_host > 0);
    assert_int_equal(n_act((c = choose(&j, &grouped, 1.4), &c)), 0);
    assert_true(n_act((c = choose(&j, &m, 5), &c)) > 0);
}

TEST(forced_methods_have_one_type)
{
    struct model m = model_of(16);
    struct mixed_job kv = job_of(MIXED_KV), act = job_of(MIXED_ACT);
    struct mixed_choice c = choose(&kv, &m, 1.4);
    assert_int_equal(n_act(&c), 0);
    assert_int_equal(n_kv(&c), N_SEQS * CONTEXT / 64);
    c = choose(&act, &m, 1.4);
    assert_int_equal(n_kv(&c), 0);
    assert_int_equal(n_act(&c), N_SEQS * CONTEXT / 64);
}

/* The paper's Algorithm 1 is used as printed: ACT blocks fill the device's memory, and the host has
 * the algorithm's shares. */
TEST(paper_is_as_printed)
{
    struct model m = model_of(16);
    struct mixed_job j = job_of(MIXED_PRINTED);
    j.device_bytes = (uint64_t)100 << 20;
    j.host_bytes = (uint64_t)64 << 20;
    struct mixed_choice c = choose(&j, &m, 1.4);
    struct hybrid_shares s;
    struct hybrid_memory mem = {(double)c.split.act_device * c.opts.machine.act_bytes,
                                (double)j.host_bytes / L};
    hybrid_paper(&c.opts.machine, &mem, &s);
    assert_true(c.split.act_device > 0);
    assert_int_equal(c.split.kv_device, 0);
    assert_int_equal(c.split.act_host, (int64_t)s.act_host);
    assert_int_equal(c.split.kv_host, (int64_t)s.kv_host);
    assert_int_equal(c.opts.packing, MINIBATCH_PAPER);
}

TEST(too_little_memory_is_refused)
{
    struct model m = model_of(16);
    struct mixed_costs c = costs_of(&m, 1.4);
    struct mixed_choice out;
    struct err err = {0};
    struct mixed_job j = job_of(MIXED_AUTO);
    j.device_bytes = (uint64_t)8 << 20;
    assert_int_equal(mixed_decide(&j, &m, &c, &out, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "--max-sequences"));
    j = job_of(MIXED_KV);
    j.device_bytes = (uint64_t)40 << 20;
    j.host_bytes = (uint64_t)1 << 20;
    assert_int_equal(mixed_decide(&j, &m, &c, &out, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "--host-memory"));
}

/* Many long contexts and a huge host memory make no more blocks than the engine can number. */
TEST(blocks_are_bounded)
{
    struct model m = model_of(16);
    m.max_ctx = 1 << 24;
    const enum mixed_method methods[] = {MIXED_KV, MIXED_ACT, MIXED_AUTO, MIXED_PRINTED};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        struct mixed_job j = job_of(methods[i]);
        j.max_seqs = 256;
        j.device_bytes = (uint64_t)1 << 50;
        j.host_bytes = (uint64_t)1 << 60;
        struct mixed_choice c = choose(&j, &m, 0.9);
        int64_t n = 0;
        for (int k = 0; k < PLACES_CLASSES; k++)
            n += c.opts.n[k];
        assert_int_equal(n, n_act(&c) + n_kv(&c));
        assert_in_range(n, c.is_on ? 1 << 18 : 0, MIXED_MAX_BLOCKS);
    }
}

static void tell_choice(struct textbuf *b, const struct mixed_choice *c)
{
    const struct mixed_opts *o = &c->opts;
    const struct hybrid_machine *m = &o->machine;
    textbuf_addf(b, "  %s\n", c->why);
    if (!c->is_on)
        return;
    textbuf_addf(b, "  n %d %d %d %d %d, shares %.6g : %.6g, split %.6g s%s, packing %d\n",
                 o->n[0], o->n[1], o->n[2], o->n[3], o->n[4], o->act_share, o->kv_share,
                 o->split.seconds, o->split.is_shared_out ? ", shared out" : "",
                 o->packing);
    textbuf_addf(
        b,
        "  weights %.6g s, forward %.6g + %.6g s, %d mini-batches, %d requests, %d "
        "layers\n",
        m->weights_s, m->forward_s, m->forward_mini_s, m->n_minibatches, m->n_requests,
        m->n_layers);
}

/* Every method for machines, memories and jobs of several sizes: numbers and words. */
TEST(choices_are_the_golden_ones)
{
    static const struct {
        int n_kv_heads, max_ctx, max_seqs;
        uint64_t device_mib, host_mib;
        double x, weights_s;
    } jobs[] = {{16, 1024, 8, 200, 1024, 1.4, 0},   {16, 1024, 8, 100, 64, 1.4, 0},
                {16, 1000, 7, 90, 300, 2.2, 1e-3},  {8, 512, 16, 150, 500, 0.7, 0},
                {16, 64, 1, 40, 1, 1.4, 0},         {16, 2048, 12, 400, 400, 9.9, 5e-3},
                {16, 2048, 12, 400, 4000, 10.1, 0}, {16, 1025, 3, 60, 20, 1.4, 0},
                {16, 1024, 8, 8, 1024, 1.4, 0}};
    struct textbuf b = {0};
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        for (int method = 0; method < MIXED_METHODS; method++) {
            struct model m = model_of(jobs[i].n_kv_heads);
            struct mixed_costs c = costs_of(&m, jobs[i].x);
            struct mixed_job j = job_of((enum mixed_method)method);
            struct mixed_choice out;
            struct err err = {0};
            m.max_ctx = jobs[i].max_ctx;
            j.max_seqs = jobs[i].max_seqs;
            j.device_bytes = jobs[i].device_mib << 20;
            j.host_bytes = jobs[i].host_mib << 20;
            j.weights_s = jobs[i].weights_s;
            textbuf_addf(&b, "%d, %s\n", (int)i, mixed_methods[method]);
            int rc = mixed_decide(&j, &m, &c, &out, &err);
            if (rc != 0)
                textbuf_addf(&b, "  %s: %s\n", err_name(rc), err.msg);
            else
                tell_choice(&b, &out);
        }
    golden_check(&b, "tests/engine/golden/mixtures.txt");
}
