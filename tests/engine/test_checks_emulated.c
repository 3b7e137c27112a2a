/* Restores with bad records, on an emulated GPU that computes checksums in its own memory, and on a
 * GPU whose host computes them. The restored state is right bit for bit. The first bad chunk is
 * named and condemned. Nothing that was computed from a bad byte is shown or saved. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "enginetest.h"
#include "store/chain.h"
#include "sim/cuda_emu/cuda_fault.h"

enum {
    N_CHUNKS = 9, /* more than the eight records of a group */
    N_PROMPT = N_CHUNKS * 64 + 13,
    N_NEW = 3,
};

#define SMALL "tests/model/golden/families/llama"

static int32_t prompt[N_PROMPT];

/* Damage of a record: one bit, or all bits, which turns every number into a NaN. */
enum damage { ONE_BIT, ALL_ONES };

struct place {
    struct stack k;
    struct et_run ref;
    const char *what;
    int n_chunks; /* full chunks of the prompt */
};

static struct et_ask ask(const struct place *p, const char *save, const char *plan)
{
    return (struct et_ask){.prompt = prompt,
                           .n_prompt = p->n_chunks * 64 + 13,
                           .max_tokens = N_NEW,
                           .save = save,
                           .plan = plan};
}

static void place_open(struct place *p, const char *model, const char *dtype, int n_chunks)
{
    *p = (struct place){.what = model, .n_chunks = n_chunks};
    et_open(&p->k, &(struct stack_opts){.user.device = "cuda",
                                        .user.model = model,
                                        .user.dtype = dtype,
                                        .user.max_context = n_chunks * 64 + 64,
                                        .user.store_in_memory = true,
                                        .user.save_buffer_bytes = 16 << 20,
                                        .user.no_reuse = true});
    struct et_ask a = ask(p, "both", "recompute");
    assert_int_equal(et_run(&p->k, &a, &p->ref), 0);
    assert_true(p->ref.committed >= n_chunks * 64);
}

/* Damages a record in the store. The store is in memory, and its readers get records in place. */
static void damage_record(struct place *p, int chunk, int layer, enum store_kind kind,
                          enum damage how)
{
    struct chain c;
    struct err err = {0};
    struct store_hit hits[N_CHUNKS];
    struct store_reader *reader;
    struct store_read read = {.layer = layer, .kind = kind};
    chain_init(&c, &p->k.fingerprint, NULL);
    chain_extend(&c, prompt, p->n_chunks * 64);
    assert_int_equal(store_lookup(p->k.store, NULL, c.keys, p->n_chunks, hits, NULL, 0),
                     p->n_chunks);
    read.hit = &hits[chunk];
    assert_int_equal(store_reader_open(p->k.store, 1, NULL, 0, &reader, &err), 0);
    assert_int_equal(store_reader_read(reader, &read, &err), 0);
    uint8_t *bytes = (uint8_t *)(uintptr_t)read.bytes;
    if (how == ONE_BIT)
        bytes[read.n_bytes / 2 + 1] ^= 1;
    else
        memset(bytes, 0xff, read.n_bytes);
    store_reader_close(reader);
    store_release(p->k.store, hits, p->n_chunks);
    chain_deinit(&c);
}

static struct et_run restore(struct place *p, const char *save, const char *plan,
                             bool fused, const char *when)
{
    struct et_ask a = ask(p, save, plan);
    char what[160];
    a.restore_first = !fused;
    snprintf(what, sizeof what, "%s, plan %s, fused %d, %s", p->what, plan, fused, when);
    struct et_run r = et_must_run(&p->k, &a);
    et_same(&r, &p->ref, what);
    return r;
}

/* Damages one record. The state that the affected run saves is restored by the next runs. */
static void one_bad_record(struct place *p, const char *plan, bool fused, int chunk,
                           int layer, enum store_kind kind, enum damage how)
{
    struct store_stats before, after;
    char want[80];
    damage_record(p, chunk, layer, kind, how);
    store_stats(p->k.store, &before);
    struct et_run r = restore(p, "both", plan, fused, "damaged");
    store_stats(p->k.store, &after);
    snprintf(want, sizeof want, "chunk %d: layer %d, %s of chunk %d: its checksum", chunk,
             layer, kind == STORE_HIDDEN ? "hidden state" : "keys and values", chunk);
    if (r.n_cached != chunk * 64 || strncmp(r.miss, want, strlen(want)) != 0)
        fail_msg("%s, plan %s: %d tokens came back where chunk %d is bad: %s", p->what,
                 plan, r.n_cached, chunk, r.miss);
    assert_int_equal(after.n_checksum_failures, before.n_checksum_failures + 1);
    assert_int_equal(after.n_corrupt, before.n_corrupt + 1);
    r = restore(p, "none", how == ONE_BIT ? "hidden" : "kv", fused, "saved anew");
    assert_int_equal(r.n_cached, p->n_chunks * 64);
}

/* Tries bad records in a model of two layers. */
static void bad_records(struct place *p, int chunk, bool fused)
{
    one_bad_record(p, "kv", fused, chunk, 0, STORE_KV, ONE_BIT);
    one_bad_record(p, "kv", fused, chunk, 1, STORE_KV, ALL_ONES);
    one_bad_record(p, "hidden", fused, chunk, 1, STORE_HIDDEN, ALL_ONES);
    one_bad_record(p, "RK", fused, chunk, 1, STORE_KV, ALL_ONES);
}

TEST(a_bad_record_is_a_miss)
{
    static const char *const who[] = {"device", "host"};
    for (int i = 0; i < 2; i++) {
        struct place p;
        et_device.checksums = who[i];
        place_open(&p, SMALL, i == 0 ? "bf16" : "f16", 3);
        for (int chunk = i; chunk < 3; chunk += 2)
            bad_records(&p, chunk, chunk % 2 == 0);
        stack_close(&p.k);
        et_device.checksums = NULL;
    }
}

/* The damage is in the last chunk, which is not in the first group of eight. */
TEST(in_the_second_group)
{
    struct place p;
    place_open(&p, "synth:tiny-mha", "bf16", N_CHUNKS);
    one_bad_record(&p, "kv", true, N_CHUNKS - 1, 2, STORE_KV, ALL_ONES);
    one_bad_record(&p, "hidden", true, N_CHUNKS - 2, 1, STORE_HIDDEN, ONE_BIT);
    stack_close(&p.k);
}

/* After the loss of a chunk, windows begin earlier, and their rows are restored again. */
TEST(windows_begin_earlier)
{
    struct place p;
    place_open(&p, "tests/model/golden/families/mistral", "bf16", 3);
    one_bad_record(&p, "kv", true, 2, 1, STORE_KV, ALL_ONES);
    one_bad_record(&p, "hidden", false, 2, 1, STORE_HIDDEN, ONE_BIT);
    stack_close(&p.k);
}

/* Only the device can detect a bit that changes between host and device. */
TEST(a_bad_copy_up_is_found)
{
    struct place p;
    place_open(&p, SMALL, "bf16", 3);
    for (int i = 0; i < 4; i++) {
        const char *plan = i % 2 == 0 ? "kv" : "hidden";
        struct store_stats before, after;
        store_stats(p.k.store, &before);
        cuda_emu_fail(CUDA_EMU_FLIP, i / 2);
        struct et_run r = restore(&p, "both", plan, i < 2, "with a bad copy up");
        assert_int_equal(cuda_emu_failed(), 1);
        store_stats(p.k.store, &after);
        assert_int_equal(after.n_checksum_failures, before.n_checksum_failures + 1);
        assert_true(r.n_cached < p.n_chunks * 64);
        assert_int_equal(restore(&p, "none", plan, true, "after it").n_cached,
                         p.n_chunks * 64);
    }
    stack_close(&p.k);
}

/* Reads are so slow that recomputation races them, and some bring a wrong bit.  Records that the
 * device has not checked yet must not overwrite rows that are recomputed. */
TEST(a_bad_read_in_a_race_changes_nothing)
{
    int n_raced = 0;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct place p = {.what = SMALL, .n_chunks = 3};
        struct io *io = et_disk(seed, 0);
        const struct io_sim_fault slow = {.kind = IO_SIM_SLOW,
                                          .on = IO_SIM_ON_READ,
                                          .path = "seg-",
                                          .chance = 0.5,
                                          .slow_ns = 100000000};
        const struct io_sim_fault flip = {
            .kind = IO_SIM_READ_FLIP, .on = IO_SIM_ON_READ, .path = "seg-", .chance = 0.7};
        et_open(&p.k, &(struct stack_opts){.io = io,
                                           .user.device = "cuda",
                                           .user.model = SMALL,
                                           .user.dtype = "bf16",
                                           .user.max_context = 4 * 64,
                                           .user.store = et_dirs,
                                           .user.n_store = 2,
                                           .user.save_buffer_bytes = 16 << 20,
                                           .user.no_reuse = true});
        struct et_ask a = ask(&p, "both", "recompute");
        assert_int_equal(et_run(&p.k, &a, &p.ref), 0);
        et_platform(&p.k.platform, 2e-5, 2e-6, 1e-7, 1e9);
        assert_int_equal(io_sim_fault_add(io, &slow), 0);
        assert_int_equal(io_sim_fault_add(io, &flip), 0);
        n_raced += restore(&p, "none", "auto", false, "raced").stall != STALL_NONE;
        stack_close(&p.k);
        io_close(io);
    }
    assert_true(n_raced > 0);
}

/* The device refuses an operation, which may be one that checks records. The request fails, or the
 * operation is repeated. The result of a check is never assumed. */
TEST(a_refused_check_is_no_verdict)
{
    struct place p;
    int n_failed = 0;
    place_open(&p, SMALL, "bf16", 3);
    for (int i = 0; i < 14; i++) {
        struct et_ask a = ask(&p, "none", i % 2 == 0 ? "kv" : "hidden");
        struct et_run r;
        bool down = i % 4 < 2;
        a.restore_first = i < 8;
        cuda_emu_fail(down ? CUDA_EMU_DOWN : CUDA_EMU_LAUNCH, i / 4);
        assert_int_equal(et_run(&p.k, &a, &r), 0);
        assert_int_equal(cuda_emu_failed(), 1);
        if (r.finish == FINISH_ERROR)
            assert_non_null(strstr(r.err.msg, "device cuda"));
        else
            et_same(&r, &p.ref, "beside a fault");
        n_failed += r.finish == FINISH_ERROR;
        assert_int_equal(restore(&p, "none", a.plan, true, "after a fault").n_cached,
                         p.n_chunks * 64);
    }
    assert_true(n_failed > 0);
    stack_close(&p.k);
}

TEST(unknown_values_of_checksums_are_refused)
{
    static const char *const values[] = {"gpu", "device"};
    for (int i = 0; i < 2; i++) {
        struct stack k;
        struct err err = {0};
        struct stack_opts o = {.user.checksums = values[i],
                               .user.device = i == 0 ? "cuda" : "cpu",
                               .user.model = "synth:tiny-mha",
                               .user.dtype = "bf16",
                               .user.store_in_memory = true,
                               .no_profile = true,
                               .user.no_reuse = true};
        assert_int_equal(stack_open(&o, &k, &err), ERR_USAGE);
        assert_non_null(strstr(err.msg, "--checksums"));
        stack_close(&k);
    }
}

int main(void)
{
    et_device.cuda_math = "exact";
    et_small_prompt(prompt, N_PROMPT, 8);
    return unit_run(NULL, NULL);
}
