/* test_upcoming.c - what the engine tells the store about waiting requests. */

#include "tests/unit.h"
#include "base/bytes.h"
#include "engine/seq.h"
#include "store/chain.h"
#include "store/store_impl.h"
#include "tests/engine/enginetest.h"

enum { N_LONG = 700, N_WHOLE = 500 };

static const struct truncation small = {.context = 256, .step = 64, .keep = 64};

static int32_t prompt[N_LONG], others[300];

static void open_stack(struct stack *k, int max_sequences)
{
    et_open(k, &(struct stack_opts){.user.store_in_memory = true,
                                    .user.policy = "attentionstore",
                                    .user.kv_tokens = 512,
                                    .user.max_sequences = max_sequences});
    et_prompt(prompt, N_LONG, 1);
    et_prompt(others, 300, 2);
}

static struct seq *add(struct stack *k, const int32_t *tokens, int n, int max_tokens,
                       const struct truncation *t)
{
    struct seq *s;
    struct et_ask a = {.prompt = tokens,
                       .n_prompt = n,
                       .max_tokens = max_tokens,
                       .save = "kv",
                       .truncation = *t};
    s = et_add(k, &a);
    return s;
}

static void step(struct stack *k)
{
    struct err err = {0};
    int n_active;
    assert_int_equal(engine_step(k->engine, &n_active, &err), 0);
}

/* Adds a request that runs for a hundred steps and has most blocks of the KV cache. Waits until its
 * chunks are stored, so that the next request waits only for a place. */
static struct seq *occupy(struct stack *k)
{
    static const struct truncation whole = {0};
    struct err err = {0};
    struct seq *s = add(k, others, 300, 100, &whole);
    while (s->n_tokens == 300)
        step(k);
    assert_int_equal(saver_flush(k->saver, &err), 0);
    return s;
}

static void run_to_end(struct stack *k, struct seq *s)
{
    struct et_run r;
    while (s->phase != PHASE_DONE)
        step(k);
    et_take(k, s, &r);
    assert_int_equal(r.finish, FINISH_LENGTH);
}

static uint32_t waits(const struct stack *k, const struct sha256 *key)
{
    return placement_window_count(k->store->catalog.window, get_u64(key->b) | 1);
}

/* Fails unless exactly the chunks in a stair's view are announced, by the keys of the request's own
 * stairs. */
static void expect_announced(const struct stack *k, const struct truncation *t,
                             int n_tokens, int64_t cut)
{
    struct chain c;
    chain_init(&c, &k->fingerprint, NULL);
    c.truncation = *t;
    chain_extend(&c, prompt, n_tokens);
    uint32_t n = 0;
    for (int i = 0; i < c.n_chunks; i++) {
        bool is_seen = truncation_sees(t, cut, 64 * (int64_t)i);
        assert_int_equal(waits(k, &c.keys[i]), is_seen);
        n += is_seen;
    }
    assert_int_equal(k->store->catalog.window->n_used, n);
    chain_deinit(&c);
}

/* A truncated request without a place needs the chunks that its last token sees. */
TEST(a_waiting_request_needs_its_view)
{
    static const struct truncation whole = {0};
    struct stack k;
    open_stack(&k, 1);
    struct seq *first = occupy(&k);
    struct seq *s = add(&k, prompt, N_LONG, 4, &small);
    step(&k);
    assert_int_equal(s->phase, PHASE_WAIT);
    expect_announced(&k, &small, N_LONG, truncation_cut(&small, N_LONG - 1));
    run_to_end(&k, first);
    run_to_end(&k, s);
    assert_int_equal(k.store->catalog.window->n_used, 0);

    /* A request without truncation needs all its chunks. */
    first = occupy(&k);
    s = add(&k, prompt, N_WHOLE, 4, &whole);
    step(&k);
    assert_int_equal(s->phase, PHASE_WAIT);
    expect_announced(&k, &whole, N_WHOLE, 0);
    engine_remove(k.engine, s);
    assert_int_equal(k.store->catalog.window->n_used, 0);
    run_to_end(&k, first);
    stack_close(&k);
}

/* The state of the last view is not stored, so a request has chosen an earlier view. It needs the
 * chunks of that view. */
TEST(a_request_that_begins_earlier_needs_what_it_begins_with)
{
    struct stack k;
    open_stack(&k, 2);
    struct seq *first = occupy(&k);
    struct seq *s = add(&k, prompt, N_LONG, 4, &small);
    step(&k);
    assert_false(s->stairs.must_choose);
    /* the KV cache has too few blocks for both requests */
    assert_int_equal(s->phase, PHASE_WAIT);
    expect_announced(&k, &small, N_LONG, 0);
    run_to_end(&k, first);
    run_to_end(&k, s);
    assert_int_equal(k.store->catalog.window->n_used, 0);

    first = occupy(&k);
    s = add(&k, prompt, N_LONG, 4, &small);
    step(&k);
    assert_false(s->stairs.must_choose);
    assert_int_equal(s->phase, PHASE_WAIT);
    expect_announced(&k, &small, N_LONG, truncation_cut(&small, N_LONG - 1));
    run_to_end(&k, first);
    run_to_end(&k, s);
    assert_int_equal(k.store->catalog.window->n_used, 0);
    stack_close(&k);
}

/* A waiting request's turn is its arrival, moved by a second for each step of priority, and never
 * before the beginning of time. */
TEST(a_turn_is_the_order_of_admission)
{
    static const struct truncation whole = {0};
    static const int priority[] = {0, 1, -1, 7, -1000000000};
    struct stack k;
    open_stack(&k, 1);
    struct seq *first = occupy(&k), *s[5];
    for (int i = 0; i < 5; i++) {
        s[i] = add(&k, prompt, N_WHOLE, 4, &whole);
        s[i]->req->ask.priority = priority[i];
        s[i]->t_arrival = INT64_C(5000000000) + i;
    }
    first->req->ask.priority = -2000000000; /* it keeps its place */
    step(&k);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(s[i]->phase, PHASE_WAIT);
        assert_int_equal(s[i]->upcoming.turn,
                         i == 4 ? 0 : 5000000000 + i + priority[i] * 1000000000LL);
        engine_remove(k.engine, s[i]);
    }
    run_to_end(&k, first);
    stack_close(&k);
}

static struct sha256 junk_key(uint32_t i)
{
    struct sha256 key = {{0}};
    put_u32(key.b, i + 1);
    put_u32(key.b + 4, 0x5eed);
    return key;
}

/* If the store has room for some of a request's chunks, the others are announced as soon as it has
 * room again. */
TEST(a_store_without_room_is_told_the_rest_later)
{
    static const struct truncation whole = {0};
    enum { ROOM = 3 };
    const uint64_t turn = 77;
    struct stack k;
    struct chain c;
    uint32_t n = 0;
    struct sha256 key;
    open_stack(&k, 1);
    struct seq *first = occupy(&k);
    while (key = junk_key(n), store_expect_use(k.store, &key, 1, turn) == 1)
        n++;
    for (int i = 0; i < ROOM; i++) {
        key = junk_key(--n);
        store_expect_use_no_more(k.store, &key, 1, turn);
    }
    struct seq *s = add(&k, prompt, N_WHOLE, 4, &whole);
    chain_init(&c, &k.fingerprint, NULL);
    chain_extend(&c, prompt, N_WHOLE);
    for (int t = 0; t < 2; t++) { /* a second step changes nothing */
        step(&k);
        assert_int_equal(s->phase, PHASE_WAIT);
        for (int i = 0; i < c.n_chunks; i++)
            assert_int_equal(waits(&k, &c.keys[i]), i < ROOM);
    }
    while (n > 0) {
        key = junk_key(--n);
        store_expect_use_no_more(k.store, &key, 1, turn);
    }
    step(&k);
    expect_announced(&k, &whole, N_WHOLE, 0);
    chain_deinit(&c);
    engine_remove(k.engine, s);
    assert_int_equal(k.store->catalog.window->n_used, 0);
    run_to_end(&k, first);
    stack_close(&k);
}

/* The engine gives the store the price of state on this machine, and a number of turns (`step`): a
 * chunk counts as needed so many turns sooner if twice as many waiting requests need it. */
TEST(the_store_knows_the_price_of_state)
{
    static const struct truncation whole = {0};
    struct stack k;
    struct placement_price want;
    open_stack(&k, 1);
    const struct catalog *c = &k.store->catalog;
    assert_true(c->price.token_s == 0);
    platform_price(&k.platform, &want); /* before prompts correct the platform */
    run_to_end(&k, add(&k, prompt, 100, 1, &whole));
    assert_true(want.token_s > 0 && want.read_byte_s > 0);
    assert_memory_equal(&c->price, &want, sizeof want);
    assert_true(c->window->step == 1000000000);
    stack_close(&k);
}

/* Runs prompts of 200, 170 and 300 tokens one after another, in a KV cache of 8 blocks. The first
 * has a hint of its next use. Returns how many of the first prompt's three full blocks are left. */
static int blocks_left(const char *policy, uint32_t reuse_in_s)
{
    enum { HINTED = 200, PLAIN = 170, LAST = 300 };
    struct stack k;
    struct err err = {0};
    struct et_run r;
    int32_t text[3][LAST];
    const int n[3] = {HINTED, PLAIN, LAST};
    int n_unused;
    struct chain c;
    et_open(&k, &(struct stack_opts){
                    .user.policy = policy, .user.kv_tokens = 512, .user.max_sequences = 1});
    struct kv_pool *pool = NULL;
    for (int i = 0; i < 3; i++) {
        struct seq *s;
        et_prompt(text[i], n[i], (uint64_t)(20 + i));
        struct et_ask a = {.prompt = text[i], .n_prompt = n[i], .max_tokens = 1};
        struct request *q = et_request(&k, &a);
        q->ask.expect_reuse_in_s = i == 0 ? reuse_in_s : 0;
        assert_int_equal(et_submit(k.engine, q, &s, &err), 0);
        pool = s->shared->pool;
        assert_int_equal(engine_run(k.engine, &err), 0);
        et_take(&k, s, &r);
    }
    chain_init(&c, &k.fingerprint, NULL);
    int left = kv_pool_find(pool, &c.root, text[0], HINTED, false, &n_unused);
    chain_deinit(&c);
    stack_close(&k);
    return left;
}

/* A request's hint reaches the KV cache: its blocks outlive blocks that were used later. */
TEST(a_hint_keeps_blocks_in_the_kv_cache)
{
    assert_true(blocks_left("ours", 0) < 3);
    assert_int_equal(blocks_left("ours", 3600), 3);
    assert_true(blocks_left("lru", 3600) < 3);
}
