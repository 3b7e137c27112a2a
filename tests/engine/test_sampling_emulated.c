/* The emulated GPU chooses tokens. Only the tokens' ids are copied down, and logits only for
 * requests that ask for them. The host chooses the same tokens from these logits. */
#include <string.h>

#include "tests/unit.h"
#include "enginetest.h"
#include "model/sample.h"
#include "sim/cuda_emu/cuda_fault.h"

enum { N_PROMPT = 40, N_NEW = 8, N_COMPANY = 4 };

struct watched {
    struct seq *seq;
    const struct sample_opts *how;
    int n_vocab, n_seen;
    bool shows;
};

static const struct sample_opts ways[N_COMPANY] = {
    {.top_p = 1},
    {.temperature = 0.9f, .top_p = 1, .seed = 3},
    {.temperature = 1.5f, .top_p = 0.8f, .seed = 4},
    {.temperature = 1.2f, .top_p = 0.95f, .top_k = 20, .min_p = 0.01f, .seed = 5},
};

/* Checks that the logits are this sequence's: the reference must choose this token from them. */
static int check_token(void *arg, int32_t id)
{
    struct watched *w = arg;
    const float *logits = seq_logits(w->seq);
    struct device *ref;
    struct stream *s;
    int32_t want = -1;
    assert_int_equal(logits != NULL, w->shows);
    w->n_seen++;
    if (!w->shows)
        return 0;
    struct sample_row row = sample_row_of(w->how, N_PROMPT + w->n_seen - 1);
    struct mat m = mat_of((void *)(uintptr_t)logits, DTYPE_F32, 1, w->n_vocab);
    assert_int_equal(device_open("ref", NULL, NULL, &ref, NULL), 0);
    assert_int_equal(stream_create(ref, STREAM_COMPUTE, &s, NULL), 0);
    assert_int_equal(ref->ops->sample(s, &want, m, &row), 0);
    stream_destroy(s);
    device_close(ref);
    assert_int_equal(id, want);
    return 0;
}

/* Runs sequences beside each other, without saving. From `first` on, every second sequence gets its
 * logits. Fills `tokens`. Returns the number of bytes that were copied down. */
static uint64_t generate(struct stack *k, int first, int32_t tokens[N_COMPANY][N_NEW])
{
    struct watched w[N_COMPANY];
    struct err err = {0};
    int32_t prompt[N_PROMPT];
    cuda_emu_fail(CUDA_EMU_LAUNCH, -1);
    for (int i = 0; i < N_COMPANY; i++) {
        et_small_prompt(prompt, N_PROMPT, (uint64_t)i);
        struct et_ask a = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_NEW};
        struct request *q = et_request(k, &a);
        w[i] = (struct watched){.how = &ways[i],
                                .n_vocab = k->model->cfg.vocab_size,
                                .shows = i >= first && i % 2 == 1};
        q->ask.digest = false;
        q->ask.logprobs = w[i].shows;
        q->ask.temperature = ways[i].temperature;
        q->ask.top_p = ways[i].top_p;
        q->ask.min_p = ways[i].min_p;
        q->ask.top_k = ways[i].top_k;
        q->ask.seed = ways[i].seed;
        q->on_token = check_token;
        q->arg = &w[i];
        assert_int_equal(et_submit(k->engine, q, &w[i].seq, &err), 0);
    }
    if (engine_run(k->engine, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < N_COMPANY; i++) {
        const struct outcome *o = seq_outcome(w[i].seq);
        assert_int_equal(o->r.n_tokens, N_NEW);
        assert_int_equal(w[i].n_seen, N_NEW);
        memcpy(tokens[i], o->r.token_ids, sizeof tokens[i]);
        engine_remove(k->engine, w[i].seq);
    }
    return cuda_emu_brought_down();
}

TEST(only_ids_come_down)
{
    struct stack k;
    int32_t shown[N_COMPANY][N_NEW], hidden[N_COMPANY][N_NEW];
    et_open(&k, &(struct stack_opts){.user.device = "cuda",
                                     .user.dtype = "f32",
                                     .user.model = "tests/model/golden/families/llama",
                                     .user.max_context = 192,
                                     .user.max_sequences = N_COMPANY,
                                     .user.no_reuse = true});
    uint64_t row = (uint64_t)k.model->cfg.vocab_size * sizeof(float);
    uint64_t with = generate(&k, 0, shown), without = generate(&k, N_COMPANY, hidden);
    assert_memory_equal(shown, hidden, sizeof shown);
    assert_int_equal(with - without, N_COMPANY / 2 * N_NEW * row);
    /* Each token needs its id. The other bytes are flags that say whether all values are finite. */
    assert_true(without >= N_COMPANY * N_NEW * sizeof(int32_t));
    assert_true(without < N_NEW * row);
    stack_close(&k);
}
