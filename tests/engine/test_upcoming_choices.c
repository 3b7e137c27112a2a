/* test_upcoming_choices.c - which chunks are fetched ahead for a waiting sequence, and when a
 * sequence is announced anew. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "engine/schedule.h"
#include "store/store_impl.h"
#include "tests/engine/waiting.h"

enum { N_STORED = WT_CHUNKS * 64, N_LONG = WT_PROMPT + 200, TURN = 1234 };

static const struct truncation small = {.context = 256, .step = 64, .keep = 64};

/* A stack with copies in DRAM, and a store that has the prompt's chunks. */
static struct io *disk;
static struct stack k;

static void open_lab(void)
{
    struct et_run want;
    disk = wt_disk(&want);
    et_open(&k, &(struct stack_opts){.io = disk,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.dram_bytes = 32 << 20,
                                     .user.prefetch = "on"});
    et_platform(&k.platform, 1, 1e-6, 1e-7,
                1e4); /* reads take long, computing even longer */
}

static void close_lab(void)
{
    stack_close(&k);
    io_close(disk);
}

static struct seq *add(const int32_t *tokens, int n, const struct et_ask *ask)
{
    struct et_ask a = *ask;
    a.prompt = tokens;
    a.n_prompt = n;
    a.max_tokens = 4;
    return et_add(&k, &a);
}

/* Decides on a fetch for s. Returns the number of chunks that are to be fetched; 0: none. */
static int fetch(struct seq *s)
{
    s->upcoming.is_told = true;
    s->upcoming.is_fetch_decided = false;
    s->upcoming.turn = TURN;
    upcoming_fetch((struct seq_list){&s, 1});
    assert_true(s->upcoming.is_fetch_decided);
    pthread_mutex_lock(&k.store->lock);
    const struct read_ahead_want *w = k.store->wants.first;
    int n = w != NULL ? w->n : 0;
    assert_int_equal(k.store->wants.n, n > 0);
    assert_true(n == 0 || w->turn == TURN);
    pthread_mutex_unlock(&k.store->lock);
    assert_int_equal(s->upcoming.is_fetched_for, n > 0);
    upcoming_fetch_no_more(s);
    return n;
}

static void drop(struct seq *s)
{
    s->upcoming = (struct seq_upcoming){0};
    engine_remove(k.engine, s);
}

/* The stored chunks are fetched, except for the chunk of the last token, which is computed in any
 * case. */
TEST(stored_chunks_are_fetched)
{
    static int32_t longer[N_LONG];
    open_lab();
    struct seq *s = add(wt_prompt, WT_PROMPT, &(struct et_ask){0});
    assert_int_equal(fetch(s), WT_CHUNKS);
    drop(s);
    s = add(wt_prompt, N_STORED, &(struct et_ask){0});
    assert_int_equal(fetch(s), WT_CHUNKS - 1);
    drop(s);
    s = add(wt_prompt, N_STORED + 1, &(struct et_ask){0});
    assert_int_equal(fetch(s), WT_CHUNKS);
    drop(s);
    memcpy(longer, wt_prompt, sizeof wt_prompt);
    et_platform(&k.platform, 1e-3, 1e-6, 1e-7, 1e4);
    s = add(longer, N_LONG, &(struct et_ask){0});
    assert_int_equal(fetch(s), WT_CHUNKS);
    drop(s);
    close_lab();
}

/* Chunks of the device are not fetched. A sequence that is saved cannot use blocks that were not,
 * and a forced plan uses no block at all. */
TEST(chunks_of_the_device_are_not_fetched)
{
    enum { N_SHARED = 2 * 64 + 10 };
    open_lab();
    struct et_run r;
    const struct et_ask first = {.prompt = wt_prompt,
                                 .n_prompt = N_SHARED,
                                 .max_tokens = 1,
                                 .save = "none",
                                 .plan = "recompute"};
    assert_int_equal(et_run(&k, &first, &r), 0);
    static const struct {
        struct et_ask ask;
        int want;
    } cases[] = {{{.save = "none"}, WT_CHUNKS - 2},
                 {{.save = "kv"}, WT_CHUNKS},
                 {{.plan = "kv"}, WT_CHUNKS}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct seq *s = add(wt_prompt, WT_PROMPT, &cases[i].ask);
        assert_int_equal(fetch(s), cases[i].want);
        drop(s);
    }
    close_lab();
}

/* Nothing is fetched if reading ahead gains nothing. Before the disk's speed is known, it may
 * gain. */
TEST(a_fetch_must_gain)
{
    open_lab();
    struct seq *s = add(wt_prompt, WT_PROMPT, &(struct et_ask){0});
    k.platform.tier[0].bytes_per_s = 1e15;
    assert_int_equal(fetch(s), 0);
    k.platform.n_tiers = 0;
    assert_int_equal(fetch(s), WT_CHUNKS);
    k.platform.n_tiers = 1;
    drop(s);
    close_lab();
}

/* A sequence is announced anew when it has chosen another view. A sequence that takes no known
 * blocks announces none to the pool. */
TEST(another_view_is_announced_anew)
{
    static int32_t prompt[N_LONG];
    et_prompt(prompt, N_LONG, 5);
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                     .user.policy = "attentionstore"});
    struct seq *s = add(prompt, N_LONG,
                        &(struct et_ask){.save = "kv", .truncation = small});
    struct seq_list list = {&s, 1};
    assert_true(s->stairs.must_choose);
    upcoming_tell(list, 1000);
    assert_int_equal(s->upcoming.cut, truncation_cut(&small, N_LONG - 1));
    assert_int_equal(s->upcoming.n_chunks, (N_LONG - s->upcoming.cut) / 64);
    assert_true(s->upcoming.is_pool_told);
    s->stairs.must_choose = false; /* it begins with the first stair */
    upcoming_tell(list, 1000);
    assert_int_equal(s->upcoming.cut, 0);
    s->stairs.must_choose = true;
    engine_remove(k.engine, s);
    s = add(prompt, 300, &(struct et_ask){.plan = "kv"});
    upcoming_tell(list, 1000);
    assert_true(s->upcoming.is_told);
    assert_false(s->upcoming.is_pool_told);
    engine_remove(k.engine, s);
    stack_close(&k);
}

/* A sequence behind one whose chunks find no room is not announced, so that its chunks do not take
 * the room that comes free. */
TEST(sequences_are_announced_in_order)
{
    static int32_t prompt[2][300];
    const uint64_t turn = 77;
    struct sha256 key = {{0}};
    uint32_t n = 0;
    et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                     .user.policy = "attentionstore"});
    struct seq *s[2];
    for (int i = 0; i < 2; i++) {
        et_prompt(prompt[i], 300, 50 + (uint64_t)i);
        s[i] = add(prompt[i], 300, &(struct et_ask){.save = "kv"});
    }
    do {
        put_u32(key.b, ++n);
        put_u32(key.b + 4, 0x5eed);
    } while (store_expect_use(k.store, &key, 1, turn) == 1);
    upcoming_tell((struct seq_list){s, 2}, 1000);
    assert_true(s[0]->upcoming.is_told && s[0]->upcoming.n_chunks == 0);
    assert_false(s[1]->upcoming.is_told);
    while (--n > 0) {
        put_u32(key.b, n);
        store_expect_use_no_more(k.store, &key, 1, turn);
    }
    upcoming_tell((struct seq_list){s, 2}, 1000);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s[i]->upcoming.n_chunks, 300 / 64);
        engine_remove(k.engine, s[i]);
    }
    stack_close(&k);
}
