/* test_streamed.c - the engine with weights that are streamed through a ring. By every plan it
 * gives the tokens and logits of resident weights. Faults end only the affected request. */
#include "tests/unit.h"

#include <errno.h>
#include <string.h>

#include "streamed.h"
#include "tests/base/tempdir.h"
#include "tests/engine/enginetest.h"
#include "tests/model/packed_file.h"

TEST(every_plan_has_the_bits_of_resident_weights)
{
    streamed_plans_equal("cpu", "synth:tiny-mha", "bf16", 4 * 64, 70, 5);
    streamed_plans_equal("cpu", "synth:tiny-gqa", "q8", 4 * 64, 70, 5);
    streamed_plans_equal("cpu", "synth:tiny-gqa", "q4", 4 * 64, 70, 5);
}

/* A failing disk ends the requests that need it, and they give the reason. The engine survives.
 * When the disk works again, the next request has the same bits. */
TEST(a_disk_that_fails_ends_requests_only)
{
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    int32_t prompt[100];
    struct stack k;
    struct et_run want, got;
    struct io *sim = et_disk(9, 0);
    et_prompt(prompt, 100, 3);
    tempdir_make_on_disk(dir, "streamed");
    packed_file_make(dir, "synth:tiny-mha", "cpu", 1, NULL, path);
    packed_file_copy(sim, path);
    et_open(&k, &(struct stack_opts){.user.model = path,
                                     .user.weights_memory = "0%",
                                     .user.no_reuse = true,
                                     .io = sim});
    struct et_ask a = {.prompt = prompt, .n_prompt = 100, .max_tokens = 4};
    assert_int_equal(et_run(&k, &a, &want), 0);
    assert_int_equal(want.n_tokens, 4);
    io_sim_fault_add(sim, &(struct io_sim_fault){.kind = IO_SIM_FAIL,
                                                 .on = IO_SIM_ON_READ,
                                                 .path = ".packed"});
    for (int i = 0; i < 2; i++) {
        (void)et_run(&k, &a, &got);
        assert_int_equal(got.finish, FINISH_ERROR);
        assert_non_null(strstr(got.err.msg, "Input/output error"));
        assert_non_null(strstr(got.err.msg, path));
    }
    io_sim_fault_clear(sim);
    assert_int_equal(et_run(&k, &a, &got), 0);
    et_same(&got, &want, "after the fault");
    stack_close(&k);
    io_close(sim);
    tempdir_remove(dir);
}

/* A store gives way to weights that are streamed from the same disk. Here a pass seems never to
 * end, so a read of weights is always in flight. Saves and restores still end, with the same
 * bits. */
TEST(a_store_gives_way_to_weights_and_does_not_starve)
{
    enum { N_STORED = 4 * 64, N_PROMPT = N_STORED + 10 };
    char dir[TEMPDIR_BYTES], path[PATH_MAX], store[PATH_MAX];
    const char *stores[1] = {store};
    int32_t prompt[N_PROMPT];
    struct stack k;
    struct et_run saved, want, got;
    et_prompt(prompt, N_PROMPT, 3);
    tempdir_make_on_disk(dir, "streamed");
    snprintf(store, sizeof store, "%s/store", dir);
    packed_file_make(dir, "synth:tiny-mha", "cpu", 1, NULL, path);
    et_open(&k, &(struct stack_opts){.user.model = path,
                                     .user.weights_memory = "0%",
                                     .user.store = stores,
                                     .user.n_store = 1,
                                     .user.no_reuse = true});
    struct et_ask a = {
        .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = 4, .plan = "recompute"};
    assert_int_equal(et_run(&k, &a, &want), 0);
    assert_non_null(k.weights_io);
    atomic_fetch_add(&k.turn.n_first, 1);
    struct et_ask save = {.prompt = prompt,
                          .n_prompt = N_STORED,
                          .max_tokens = 1,
                          .save = "both",
                          .plan = "recompute"};
    assert_int_equal(et_run(&k, &save, &saved), 0);
    assert_int_equal(saved.committed, N_STORED);
    for (int i = 0; i < 2; i++) {
        a.plan = i == 0 ? "hidden" : "kv";
        assert_int_equal(et_run(&k, &a, &got), 0);
        et_same(&got, &want, a.plan);
        assert_int_equal(got.n_cached, N_STORED);
    }
    assert_true(atomic_fetch_sub(&k.turn.n_first, 1) >= 1);
    stack_close(&k);
    tempdir_remove(dir);
}

/* An unpacked model folder cannot be streamed. The error says to pack it first. */
TEST(a_folder_must_be_packed_first)
{
    struct stack k;
    struct err err = {0};
    int rc = stack_open(
        &(struct stack_opts){.user.model = "models/demo", .user.weights_memory = "auto"},
        &k, &err);
    assert_int_equal(rc, ERR_USAGE);
    assert_non_null(strstr(err.msg, "hcache model pack models/demo"));
    stack_close(&k);
}
