/* test_passes.c - the engine computes everything in passes. A pass holds each layer's weights once,
 * in order, and only while it uses them. Tested for batches, recomputed prefixes, and new tokens
 * that follow a restore. */
#include <unistd.h>

#include "tests/unit.h"
#include "engine/step.h"
#include "tests/engine/enginetest.h"
#include "tests/model/layer_spy.h"

enum {
    N_LAYERS = 4,       /* layers of synth:tiny-mha */
    N_STORED = 10 * 64, /* more than the 512 rows of a batch, so a pass has two pieces */
    N_NEW = 100,
    N_PROMPT = N_STORED + N_NEW,
    N_GENERATE = 3,
};

/* A context of N_STORED tokens on a simulated disk, the result of its prompt alone, and the spy on
 * layers. */
struct place {
    struct io *io;
    struct stack k;
    int32_t prompt[N_PROMPT];
    struct et_run ref;
    struct layer_spy spy;
};

static struct place place;

static struct et_ask ask(int n_prompt, int max_tokens, const char *save, const char *plan)
{
    return (struct et_ask){.prompt = place.prompt,
                           .n_prompt = n_prompt,
                           .max_tokens = max_tokens,
                           .save = save,
                           .plan = plan};
}

static void place_open(int step_rows)
{
    struct et_run r;
    place.io = et_disk(3, 0);
    et_open(&place.k, &(struct stack_opts){.user.store = et_dirs,
                                           .user.n_store = 2,
                                           .io = place.io,
                                           .user.max_sequences = 3,
                                           .user.no_reuse = true,
                                           .step_rows = step_rows});
    et_prompt(place.prompt, N_PROMPT, 11);
    struct et_ask a = ask(N_PROMPT, N_GENERATE, "none", "recompute");
    assert_int_equal(et_run(&place.k, &a, &place.ref), 0);
    a = ask(N_STORED, 1, "both", "recompute");
    assert_int_equal(et_run(&place.k, &a, &r), 0);
    assert_int_equal(r.committed, N_STORED);
    spy_begin(&place.spy, place.k.model);
}

static void place_close(void)
{
    spy_end(&place.spy);
    stack_close(&place.k);
    io_close(place.io);
}

static struct seq *add(struct et_ask a)
{
    struct seq *s;
    s = et_add(&place.k, &a);
    return s;
}

static int step(void)
{
    struct err err = {0};
    int n_active;
    if (engine_step(place.k.engine, &n_active, &err) != 0)
        fail_msg("%s", err.msg);
    return n_active;
}

static void run_all(void)
{
    while (step() > 0)
        ;
}

static void take(struct seq *s, const char *what)
{
    struct et_run r;
    et_take(&place.k, s, &r);
    et_same(&r, &place.ref, what);
}

static uint64_t fused_rows(void)
{
    struct engine_stats st;
    engine_stats(place.k.engine, &st);
    return st.fused_rows;
}

/* Makes reads hang. The alarm ends a program that waits for a read forever. */
static void stop_reads(void)
{
    struct io_sim_fault f = {.kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg-"};
    assert_int_equal(io_sim_fault_add(place.io, &f), 0);
    alarm(300);
}

static void let_reads_go_on(void)
{
    alarm(0);
    io_sim_fault_clear(place.io);
    io_sim_unstick(place.io);
}

/* A prompt of two batches, then decodes. */
TEST(batches)
{
    place_open(0);
    struct et_ask a = ask(N_PROMPT, N_GENERATE, "none", "recompute");
    struct et_run r;
    assert_int_equal(et_run(&place.k, &a, &r), 0);
    for (int i = 0; i < 2 + N_GENERATE - 1; i++)
        spy_expect_pass(&place.spy, 0, N_LAYERS);
    spy_expect_end(&place.spy);
    et_same(&r, &place.ref, "computed");
    place_close();
}

/* A recomputed prefix of n layers, in two pieces, whose last layer computes only K and V and is not
 * held; a batch of new tokens follows, then decodes. */
TEST(recomputed_prefixes)
{
    static const char *const plans[] = {"RKKK", "RRKK", "RRRK"};
    place_open(0);
    for (int i = 0; i < 3; i++) {
        struct et_ask a = ask(N_PROMPT, N_GENERATE, "none", plans[i]);
        struct et_run r;
        a.restore_first = true;
        assert_int_equal(et_run(&place.k, &a, &r), 0);
        assert_int_equal(r.n_cached, N_STORED);
        spy_expect_pass(&place.spy, 0, i);
        spy_expect_pass(&place.spy, 0, i);
        for (int k = 0; k < N_GENERATE; k++)
            spy_expect_pass(&place.spy, 0, N_LAYERS);
        spy_expect_end(&place.spy);
        et_same(&r, &place.ref, plans[i]);
    }
    place_close();
}

/* Neither projections nor loading keys and values hold a layer. */
TEST(projections)
{
    static const char *const plans[] = {"hidden", "kv"};
    place_open(0);
    for (int i = 0; i < 2; i++) {
        struct et_ask a = ask(N_PROMPT, N_GENERATE, "none", plans[i]);
        struct et_run r;
        a.restore_first = true;
        assert_int_equal(et_run(&place.k, &a, &r), 0);
        assert_int_equal(r.n_cached, N_STORED);
        for (int k = 0; k < N_GENERATE; k++)
            spy_expect_pass(&place.spy, 0, N_LAYERS);
        spy_expect_end(&place.spy);
        et_same(&r, &place.ref, plans[i]);
    }
    place_close();
}

/* Layer 0 is recomputed, and the other layers are read. While the reads hang, new tokens pass layer
 * 0 only. When reads go on, the new tokens pass the other layers, and no batch computes them
 * again. */
TEST(new_tokens_after_a_restore)
{
    place_open(0);
    stop_reads();
    struct seq *s = add(ask(N_PROMPT, N_GENERATE, "none", "RKKK"));
    while (fused_rows() < N_NEW)
        step();
    for (int i = 0; i < 2; i++)
        step();
    assert_int_equal(fused_rows(), N_NEW);
    spy_expect_pass(&place.spy, 0,
                    1); /* the new tokens; of the prefix, K and V are computed */
    spy_expect_end(&place.spy);
    let_reads_go_on();
    run_all();
    assert_int_equal(fused_rows(), N_NEW * N_LAYERS);
    spy_expect_pass(&place.spy, 1, N_LAYERS);
    for (int k = 0; k < N_GENERATE - 1; k++)
        spy_expect_pass(&place.spy, 0, N_LAYERS);
    spy_expect_end(&place.spy);
    take(s, "fused");
    place_close();
}

/* Two sequences decode while the reads of a restore hang. When one of them is halfway, the other
 * starts again. So one of them decodes in every step. */
enum { N_SHORT = 20, N_DECODE = 900 };

static void step_beside_decodes(struct seq *d[2])
{
    for (int i = 0; i < 2; i++) {
        const struct seq *other = d[1 - i];
        if (d[i] == NULL &&
            (other == NULL || seq_outcome(other)->r.n_tokens > N_DECODE / 2))
            d[i] = add(ask(N_SHORT, N_DECODE, "none", "recompute"));
    }
    step();
    for (int i = 0; i < 2; i++) {
        if (d[i] != NULL && seq_outcome(d[i])->finish != FINISH_NONE) {
            engine_remove(place.k.engine, d[i]);
            d[i] = NULL;
        }
    }
}

/* Begins both sequences of d. Returns the number of steps until the first one decodes. */
static int begin_decodes(struct seq *d[2])
{
    int n = 0;
    do {
        step_beside_decodes(d);
        n++;
    } while (seq_outcome(d[0])->r.n_tokens == 0);
    return n;
}

static void end_decodes(struct seq *d[2])
{
    for (int i = 0; i < 2; i++)
        if (d[i] != NULL)
            engine_remove(place.k.engine, d[i]);
}

/* A step has room for 16 rows, so the new tokens pass each layer in at least two pieces. */
enum { FEW_ROWS = 16 };

/* Beside a decode, new tokens pass a layer in pieces. They hold the layer over several steps, and
 * in each of these a batch holds it, too. The new tokens hold every layer once, and each batch
 * holds it once. */
TEST(new_tokens_in_pieces_beside_decodes)
{
    int n_acquired[N_LAYERS] = {0}, n_held = 0, n_steps = 0, n_double = 0,
        n_alone_again = 0;
    struct seq *d[2] = {NULL};
    place_open(FEW_ROWS);
    stop_reads();
    n_steps += begin_decodes(d);
    struct seq *s = add(ask(N_PROMPT, N_GENERATE, "none", "RKKK"));
    while (fused_rows() < N_NEW) {
        step_beside_decodes(d);
        n_steps++;
        n_held += place.spy.n_holders[0];
    }
    assert_int_equal(fused_rows(), N_NEW);
    assert_true(n_held > 0);
    /* The new tokens hold layer 0 while a batch acquires it. Only then does a layer have two
     * holders. */
    for (int i = 0, n = 0; i < place.spy.n_events; i++) {
        int event = place.spy.events[i];
        n_acquired[event > 0 ? event - 1 : 0] += event > 0;
        n += event == 1 ? 1 : event == -1 ? -1 : 0;
        n_double += event == 1 && n == 2;
        n_alone_again += event == -1 && n == 1;
    }
    assert_int_equal(n_double, n_held);
    assert_int_equal(n_alone_again, n_held);
    for (int l = 1; l < N_LAYERS; l++)
        assert_int_equal(n_acquired[l], n_steps); /* only batches acquire this layer */
    end_decodes(d);
    let_reads_go_on();
    run_all();
    take(s, "fused beside a decode");
    place_close();
}

/* A sequence that is removed while its new tokens are in the middle of a layer releases that layer.
 */
TEST(new_tokens_that_are_given_up)
{
    struct seq *d[2] = {NULL};
    place_open(FEW_ROWS);
    stop_reads();
    begin_decodes(d);
    struct seq *s = add(ask(N_PROMPT, N_GENERATE, "none", "RKKK"));
    while (fused_rows() == 0)
        step_beside_decodes(d);
    assert_true(fused_rows() < N_NEW);
    assert_int_equal(place.spy.n_holders[0], 1);
    engine_remove(place.k.engine, s);
    assert_int_equal(place.spy.n_holders[0], 0);
    end_decodes(d);
    let_reads_go_on();
    place_close();
}

/* Work on new tokens that has begun is kept when everything is restored, even in the middle of
 * layer 0. */
TEST(new_tokens_that_have_begun)
{
    struct seq s = {0}, other = {0};
    struct fused f = {.seq = &s};
    assert_false(fused_has_begun(&f, &s));
    f.pass.row = 1;
    assert_true(fused_has_begun(&f, &s));
    f.pass = (struct model_pass){.layer = 1};
    assert_true(fused_has_begun(&f, &s));
    assert_false(fused_has_begun(&f, &other));
}
