/* A failing storage device never stops generation: whatever the disk does while state is restored
 * and saved, the request ends with the tokens and logits of an engine without a store. */
#include <errno.h>
#include <stdio.h>

#include "tests/unit.h"
#include "enginetest.h"
#include "store/store.h"

enum { N_OLD = 400, N_LONG = 640, N_NEW = 20 };

static const struct {
    const char *name;
    struct io_sim_fault fault;
} faults[] = {
    {"every operation fails", {.kind = IO_SIM_FAIL, .code = -EIO}},
    {"every read fails", {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .code = -EIO}},
    {"a third of the reads fails",
     {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ, .chance = 0.3, .code = -EIO}},
    {"read-only from now on",
     {.kind = IO_SIM_FAIL,
      .on = IO_SIM_ON_WRITE | IO_SIM_ON_SPACE | IO_SIM_ON_NAME | IO_SIM_ON_SYNC,
      .code = -EROFS}},
    {"full",
     {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_WRITE | IO_SIM_ON_SPACE, .code = -ENOSPC}},
    {"no descriptors", {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_OPEN, .code = -EMFILE}},
    {"short transfers", {.kind = IO_SIM_SHORT, .chance = 0.5}},
    {"slow", {.kind = IO_SIM_SLOW, .slow_ns = 300000}},
    {"stuck", {.kind = IO_SIM_STUCK}},
    {"stuck now and then", {.kind = IO_SIM_STUCK, .chance = 0.2}},
    {"a sync fails, then lies", {.kind = IO_SIM_SYNC_LIES, .count = 1}},
    {"writes are lost", {.kind = IO_SIM_LOST}},
    {"writes land elsewhere", {.kind = IO_SIM_MISDIRECTED, .chance = 0.3}},
    {"reads flip bits", {.kind = IO_SIM_READ_FLIP, .path = "seg-", .chance = 0.3}},
};

TEST(generation_goes_on)
{
    static struct et_run ref_old, ref_long, r;
    int32_t prompt[N_LONG];
    struct stack k;
    struct et_ask a = {.prompt = prompt, .n_prompt = N_OLD, .max_tokens = N_NEW};
    et_prompt(prompt, N_LONG, 31);
    et_open(&k, &(struct stack_opts){.user.no_reuse = true});
    assert_int_equal(et_run(&k, &a, &ref_old), 0);
    a.n_prompt = N_LONG;
    assert_int_equal(et_run(&k, &a, &ref_long), 0);
    stack_close(&k);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct io *io = et_disk(i + 1, 0);
        struct stack_opts so = {.io = io,
                                .user.store = et_dirs,
                                .user.n_store = 2,
                                .stuck_ns = 3000000,
                                .user.no_reuse = true};
        et_open(&k, &so);
        a = (struct et_ask){
            .prompt = prompt, .n_prompt = N_OLD, .max_tokens = N_NEW, .save = "both"};
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &ref_old, faults[i].name);
        int64_t committed = r.committed;
        assert_true(committed >= 384);
        stack_close(&k); /* the next stack then finds no state on the device */
        et_open(&k, &so);
        assert_int_equal(io_sim_fault_add(io, &faults[i].fault), 0);
        /* this run restores, computes and saves on a bad disk */
        a.n_prompt = N_LONG;
        assert_int_equal(et_run(&k, &a, &r), 0);
        et_same(&r, &ref_long, faults[i].name);
        assert_int_equal(et_run(&k, &a, &r), 0); /* the same request again */
        et_same(&r, &ref_long, faults[i].name);
        uint64_t n_hits = io_sim_fault_hits(io);
        struct store_stats st;
        store_stats(k.store, &st);
        print_message(
            "%s: %llu times, %d of %d tokens from the store, %llu reads failed, %llu "
            "records refused\n",
            faults[i].name, (unsigned long long)n_hits, r.n_cached, N_LONG,
            (unsigned long long)st.n_read_failures,
            (unsigned long long)st.n_checksum_failures);
        /* EMFILE cannot occur: all files are open already */
        if (faults[i].fault.code != -EMFILE)
            assert_true(n_hits > 0);
        stack_close(&k);
        io_close(io);
    }
}
