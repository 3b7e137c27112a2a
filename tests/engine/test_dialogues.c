/* test_dialogues.c - the demo model answers dialogues in the same way with and without a store, and
 * wrong state would change its answers.
 *
 * Held-out dialogues (models/demo/dialogues.json) go through the engine: five, or the number in
 * HCACHE_DIALOGUES, of twenty. The engine keeps
 * nothing in the KV cache between turns. Each turn restores the state that the previous turn saved,
 * by another plan every time. The answers are compared with a sequence that the model computes
 * without the engine, once, from its first token to its last. Each answer's token must be the most
 * likely one after the tokens before it, and each answer must end where an end token is the most
 * likely. Finally the store serves zeros as one layer's K and V, under right checksums. Then
 * answers must change; otherwise this test could not fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"
#include "tests/engine/enginetest.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "store/chain.h"
#include "tests/model/solo.h"

#define MODEL "models/demo"

/* A dialogue ends before a turn that may not fit. The model's own answers can be longer than those
 * for which the dialogue was planned. */
enum { MAX_CTX = 2048, MAX_ANSWER = 48, LONGEST_TURN = 200 };

/* Number of dialogues that are run; the thread sanitizer makes one last minutes. */
static int n_dialogues(void)
{
    const char *text = getenv("HCACHE_DIALOGUES");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return text != NULL ? atoi(text) : 2;
#else
    return text != NULL ? atoi(text) : 5;
#endif
}

static const char *const plans[] = {"kv", "hidden", "RHKK", "RRHH", "RRRK", "RHKH"};
enum { N_PLANS = sizeof plans / sizeof plans[0] };

struct talk {
    int32_t tokens[MAX_CTX];
    int n;
    bool chosen[MAX_CTX]; /* tokens that the model chose: answers, with their ends */
    int plan[MAX_CTX];    /* for a chosen token: the index of its turn's plan */
};

static struct tokenizer *tokenizer;
static struct json *dialogues;

static void say(struct talk *t, const char *text)
{
    int32_t *ids;
    size_t n;
    struct err err = {0};
    if (tokenizer_encode(tokenizer, text, strlen(text), TOKENIZER_PARSE_SPECIAL, &ids, &n,
                         &err) != 0)
        fail_msg("%s", err.msg);
    assert_true(t->n + (int)n <= MAX_CTX);
    memcpy(t->tokens + t->n, ids, n * sizeof *ids);
    t->n += (int)n;
    free(ids);
}

/* Runs a turn: the user's text, then the model's answer. The answer's end token becomes part of the
 * conversation. `plan` is an index of plans[]. */
static void turn(struct talk *t, struct stack *k, const char *text, const char *save,
                 int plan, struct et_run *r)
{
    char *line = xasprintf("%s<|user|>%s<|end|><|assistant|>", t->n == 0 ? "<|begin|>" : "",
                           text);
    say(t, line);
    free(line);
    struct et_ask ask = {.prompt = t->tokens,
                         .n_prompt = t->n,
                         .max_tokens = MAX_CTX - 1 - t->n < MAX_ANSWER ? MAX_CTX - 1 - t->n
                                                                       : MAX_ANSWER,
                         .save = save,
                         .plan = plans[plan]};
    if (et_run(k, &ask, r) != 0)
        fail_msg("plan %s: %s", plans[plan], r->err.msg);
    int n_chosen = r->n_tokens + (r->finish == FINISH_EOS);
    assert_true(r->finish == FINISH_EOS || r->n_tokens == ask.max_tokens);
    for (int p = t->n; p < t->n + n_chosen; p++) {
        t->chosen[p] = true;
        t->plan[p] = plan;
    }
    memcpy(t->tokens + t->n, r->tokens, (size_t)r->n_tokens * sizeof *r->tokens);
    t->n += r->n_tokens;
    say(t, "<|end|>"); /* the end token that the model has chosen, if it has */
}

/* Fails the test where a chosen token is not the most likely one of a sequence that was never
 * evicted. */
static void judge(struct solo *never, const struct talk *t, int dialogue)
{
    static float logits[SOLO_MAX_ROWS * 4096];
    int vocab = never->m->cfg.vocab_size;
    assert_true(vocab <= 4096);
    solo_forget(never);
    for (int at = 0, n; at + 1 < t->n; at += n) {
        n = t->n - 1 - at < SOLO_MAX_ROWS ? t->n - 1 - at : SOLO_MAX_ROWS;
        solo_feed(never, t->tokens + at, n, logits);
        for (int i = 0; i < n; i++) {
            int p = at + i + 1;
            int32_t best = solo_best(never, logits + (size_t)i * (size_t)vocab);
            if (t->chosen[p] && best != t->tokens[p])
                fail_msg("dialogue %d, position %d, plan %s: %d instead of %d", dialogue, p,
                         plans[t->plan[p]], t->tokens[p], best);
        }
    }
}

static void open_demo(struct stack *k)
{
    struct stack_opts o = {.user.model = MODEL,
                           .user.store_in_memory = true,
                           .user.threads = 1,
                           .user.max_context = MAX_CTX,
                           .user.no_reuse = true};
    et_open(k, &o);
}

static const char *user_text(const struct json *turns, int i)
{
    const char *text = NULL;
    struct err err = {0};
    assert_int_equal(json_get_string(json_at(turns, (size_t)i), "user", &text, &err), 0);
    return text;
}

static const struct json *turns_of(int dialogue)
{
    const struct json *list = NULL, *turns = NULL;
    assert_int_equal(json_get_array(dialogues, "dialogues", &list, NULL), 0);
    assert_int_equal(json_get_array(json_at(list, (size_t)dialogue), "turns", &turns, NULL),
                     0);
    return turns;
}

static int count(const struct json *array)
{
    return (int)json_count(array);
}

/* Copies every chunk of the conversation with the K and V of layer `zeroed` replaced by zeros,
 * under right checksums. */
static void copy_zeroed(struct stack *from, struct stack *to, const struct talk *t,
                        int zeroed)
{
    struct err err = {0};
    struct chain c = {0};
    struct store_hit hits[MAX_CTX / 64];
    struct store_reader *reader;
    int n_hits, n_layers = from->model->cfg.n_layers;
    chain_init(&c, &from->fingerprint, NULL);
    chain_extend(&c, t->tokens, t->n);
    n_hits = store_lookup(from->store, NULL, c.keys, c.n_chunks, hits, NULL, 0);
    assert_true(n_hits > 0);
    size_t bytes = STORE_CHUNK_TOKENS * model_kv_bytes(from->model, 0);
    size_t room = round_up(bytes, STORE_ALIGN);
    uint8_t *staging = mem_map(room * (size_t)n_layers);
    assert_int_equal(store_reader_open(from->store, 1, NULL, 0, &reader, &err), 0);
    for (int i = 0; i < n_hits; i++) {
        struct store_record rec[STORE_MAX_LAYERS];
        for (int l = 0; l < n_layers; l++) {
            uint8_t *at = staging + (size_t)l * room;
            struct store_read rd = {
                .hit = &hits[i], .layer = l, .kind = STORE_KV, .dst = at};
            assert_int_equal(store_reader_read(reader, &rd, &err), 0);
            memmove(at, rd.bytes, bytes);
            if (l == zeroed)
                memset(at, 0, bytes);
            rec[l] = (struct store_record){
                .layer = l, .kind = STORE_KV, .bytes = at, .n_bytes = (uint32_t)bytes};
        }
        struct store_chunk chunk = {.key = c.keys[i],
                                    .parent = *chain_parent(&c, i),
                                    .fingerprint = from->fingerprint,
                                    .chunk_idx = (uint32_t)i,
                                    .records = rec,
                                    .n_records = n_layers};
        memcpy(chunk.tokens, t->tokens + i * STORE_CHUNK_TOKENS, sizeof chunk.tokens);
        assert_int_equal(store_append(to->store, &chunk, &err), 0);
    }
    assert_int_equal(store_commit(to->store, &err), 0);
    store_release(from->store, hits, n_hits);
    store_reader_close(reader);
    mem_unmap(staging, room * (size_t)n_layers);
    chain_deinit(&c);
}

/* Repeats the last turn of a conversation from a store in which one layer is zeroed. Returns
 * whether the answer differs. */
static bool zeroed_differs(struct stack *from, const struct talk *t,
                           const struct talk *before, const char *text, int layer)
{
    struct stack k;
    struct talk again = *before;
    static struct et_run r;
    open_demo(&k);
    copy_zeroed(from, &k, t, layer);
    turn(&again, &k, text, "none", 0, &r); /* plan 0 is "kv" */
    assert_true(r.n_cached > 0);
    stack_close(&k);
    return again.n != t->n || memcmp(again.tokens, t->tokens, (size_t)t->n * 4) != 0;
}

TEST(restored_between_turns)
{
    static struct talk restored, before;
    static struct et_run r;
    struct solo never;
    const struct json *list;
    int n_turns = 0, n_restored = 0, n_changed = 0, n_chosen = 0;
    assert_int_equal(json_get_array(dialogues, "dialogues", &list, NULL), 0);
    int n = n_dialogues();
    assert_int_equal(count(list), 20);
    assert_in_range(n, 1, 20);
    solo_open(&never, MODEL, "cpu", "f32", 1);
    for (int d = 0; d < n; d++) {
        struct stack k;
        const struct json *turns = turns_of(d);
        memset(&restored, 0, sizeof restored);
        open_demo(&k);
        int last = 0;
        for (int i = 0; i < count(turns) && restored.n + LONGEST_TURN < MAX_CTX;
             i++, n_turns++) {
            last = i;
            before = restored;
            turn(&restored, &k, user_text(turns, i), "both", n_turns % N_PLANS, &r);
            n_restored += r.n_cached > 0;
        }
        assert_int_equal(k.model->dtype, never.m->dtype);
        judge(&never, &restored, d);
        for (int p = 0; p < restored.n; p++)
            n_chosen += restored.chosen[p];
        n_changed += zeroed_differs(&k, &restored, &before, user_text(turns, last),
                                    1 + d % (k.model->cfg.n_layers - 1));
        stack_close(&k);
    }
    solo_close(&never);
    print_message("%d turns, %d restored, all %d tokens of answers equal; with a layer "
                  "zeroed %d of %d last answers changed\n",
                  n_turns, n_restored, n_chosen, n_changed, n);
    assert_true(n_restored > n_turns / 2);
    assert_true(n_chosen > 2 * n_turns);
    assert_true(n_changed >= n * 3 / 5);
}

static int open_all(void **state)
{
    char *text;
    size_t n;
    struct err err = {0};
    int rc = tokenizer_open(&tokenizer, MODEL, &err);
    if (rc == 0)
        rc = file_read(MODEL "/dialogues.json", 1 << 24, &text, &n, &err);
    if (rc == 0)
        rc = json_parse(&dialogues, text, n, MODEL "/dialogues.json", &err);
    if (rc != 0)
        print_message("%s\n", err.msg);
    else
        free(text);
    return rc;
}

static int close_all(void **state)
{
    tokenizer_close(tokenizer);
    json_free(dialogues);
    return 0;
}

int main(void)
{
    return unit_run(open_all, close_all);
}
