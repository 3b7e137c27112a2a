/* test_zigzag.c - steps in mini-batches. A step uses each layer once, which decides how many bytes
 * of streamed weights it reads. The bits are those of the ordinary order. */
#include "tests/unit.h"
#include "engine/engine_impl.h"
#include "tests/base/tempdir.h"
#include "tests/engine/enginetest.h"
#include "tests/engine/zigzagged.h"
#include "tests/model/layer_spy.h"
#include "tests/model/packed_file.h"

TEST(answers_are_those_of_the_ordinary_order)
{
    zz_compare("cpu", 1, "synth:tiny-mha");
    zz_compare("cpu", 1, "synth:tiny-gqa");
    zz_compare("ref", 1, "synth:tiny-mha");
    zz_compare("cpu", 2, "synth:tiny-mha");
}

/* --- each layer once -------------------------------------------------------------------------- */

enum { N_SEQS = 4, N_PROMPT = 48, N_GENERATE = 3, N_LAYERS = 4 };

/* Runs N_SEQS prompts, all of which fit into one step. Returns the number of steps. */
static int run_steps(struct stack *k, struct et_run out[N_SEQS])
{
    struct err err = {0};
    struct seq *s[N_SEQS];
    int n_steps = 0, n_active;
    for (int i = 0; i < N_SEQS; i++) {
        int32_t prompt[N_PROMPT];
        et_prompt(prompt, N_PROMPT, 60 + (uint64_t)i);
        struct et_ask a = {
            .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_GENERATE};
        s[i] = et_add(k, &a);
    }
    do {
        if (engine_step(k->engine, &n_active, &err) != 0)
            fail_msg("%s", err.msg);
        n_steps++;
    } while (n_active > 0);
    for (int i = 0; i < N_SEQS; i++)
        et_take(k, s[i], &out[i]);
    return n_steps;
}

/* All prompts run in one step of four mini-batches and then decode, which takes three passes.
 * Without mini-batches each prompt has a step of its own. */
TEST(each_layer_is_taken_once_a_step)
{
    struct layer_spy *spy = test_malloc(sizeof *spy);
    struct et_run r[N_SEQS];
    for (int n_mini = 1; n_mini <= 4; n_mini *= 4) {
        struct stack k;
        et_open(&k, &(struct stack_opts){.user.max_sequences = N_SEQS,
                                         .step_rows = n_mini * N_PROMPT,
                                         .piece_rows = N_PROMPT});
        spy_begin(spy, k.model);
        int n_steps = run_steps(&k, r);
        if (n_mini == 4)
            assert_int_equal(n_steps, N_GENERATE);
        else
            assert_true(n_steps >= N_SEQS + N_GENERATE - 1);
        for (int i = 0; i < n_steps; i++)
            spy_expect_pass(spy, 0, N_LAYERS);
        spy_expect_end(spy);
        spy_end(spy);
        stack_close(&k);
    }
    test_free(spy);
}

/* If a layer cannot be read in the middle of a step, the requests of that step end with the
 * fault. */
TEST(a_layer_that_fails_ends_the_step)
{
    struct layer_spy *spy = test_malloc(sizeof *spy);
    struct et_run r[N_SEQS];
    struct stack k;
    et_open(&k, &(struct stack_opts){.user.max_sequences = N_SEQS,
                                     .step_rows = 4 * N_PROMPT,
                                     .piece_rows = N_PROMPT});
    spy_begin(spy, k.model);
    spy->fail_at = 2;
    run_steps(&k, r);
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(r[i].finish, FINISH_ERROR);
    spy->fail_at = -1;
    run_steps(&k, r);
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(r[i].finish, FINISH_LENGTH);
    spy_end(spy);
    stack_close(&k);
    test_free(spy);
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* All layers are streamed. A job reads the bytes of all layers once per pass. The ring also reads
 * ahead, by at most as many layers as it has slots. */
TEST(a_job_reads_its_passes_times_the_weights)
{
    enum { SLOTS = 4 };
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    struct et_run want[N_SEQS], got[N_SEQS];
    uint64_t bytes[2];
    int n_steps[2];
    tempdir_make_on_disk(dir, "zigzag");
    packed_file_make(dir, "synth:tiny-mha", "cpu", 1, NULL, path);
    for (int i = 0; i < 2; i++) {
        struct stack k;
        struct weights_stream_stats before, after;
        et_open(&k, &(struct stack_opts){.user.model = path,
                                         .user.weights_memory = "0%",
                                         .user.max_sequences = N_SEQS,
                                         .step_rows = (i == 0 ? 1 : 4) * N_PROMPT,
                                         .piece_rows = N_PROMPT});
        weights_stats(&k.model->w, &before);
        assert_int_equal(before.n_streamed, N_LAYERS);
        n_steps[i] = run_steps(&k, i == 0 ? want : got);
        weights_stats(&k.model->w, &after);
        bytes[i] = after.read_bytes - before.read_bytes;
        uint64_t pass = N_LAYERS * after.layer_bytes;
        assert_in_range(bytes[i], (uint64_t)n_steps[i] * pass - SLOTS * after.layer_bytes,
                        (uint64_t)n_steps[i] * pass + SLOTS * after.layer_bytes);
        stack_close(&k);
    }
    assert_int_equal(n_steps[1], N_GENERATE);
    assert_true(n_steps[0] > n_steps[1] && bytes[0] > bytes[1]);
    for (int i = 0; i < N_SEQS; i++)
        et_same(&got[i], &want[i], "streamed");
    tempdir_remove(dir);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* The residual stream has two buffers for all rows of a step, and none without mini-batches. */
TEST(the_rows_between_layers_are_counted)
{
    size_t kv, activations[2], restore;
    for (int i = 0; i < 2; i++) {
        struct stack k;
        et_open(&k, &(struct stack_opts){.user.mini_batches = i == 0 ? 1 : 4});
        size_t all = engine_bytes(k.engine, &kv, &activations[i], &restore);
        assert_int_equal(all, kv + activations[i] + restore);
        assert_int_equal(zigzag_is_on(&k.engine->zigzag), i == 1);
        if (i == 1)
            assert_int_equal(activations[1] - activations[0],
                             2 * 4 * 512 * model_hidden_bytes(k.model));
        stack_close(&k);
    }
}
