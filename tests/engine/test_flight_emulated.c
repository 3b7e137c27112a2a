/* Batches in pieces that follow one another through stages, on emulated GPUs: how a batch is cut,
 * and that computed and saved state has the bits of a single device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/step.h"
#include "enginetest.h"

enum { MAX_SEQS = 12, MAX_ROWS = 512 };

/* The rows of all pieces together are the batch's rows. Each has its own position, table and place
 * in its sequence's save. */
static void pieces_are_the_batch(void **state)
{
    (void)state;
    static int32_t pos[MAX_ROWS], block[MAX_SEQS];
    static const int32_t *tables[MAX_SEQS];
    static int32_t states[MAX_SEQS];
    static struct save_part parts[MAX_SEQS];
    struct rng r = {3};
    struct step_batch b = {.pos = pos, .tables = tables, .states = states, .parts = parts};
    struct flight f = {0};
    flight_init(&f, MAX_SEQS);
    for (int t = 0; t < 2000; t++) {
        b.n_seqs = 1 + (int)rng_below(&r, MAX_SEQS);
        b.n_rows = 0;
        b.n_parts = b.n_seqs;
        for (int i = 0; i < b.n_seqs; i++) {
            int n = 1 + (int)rng_below(&r, MAX_ROWS / MAX_SEQS);
            int first = (int)rng_below(&r, 1000);
            tables[i] = &block[i];
            parts[i] = (struct save_part){NULL, first, b.n_rows, n};
            for (int k = 0; k < n; k++)
                pos[b.n_rows++] = first + k;
        }
        int n = 1 + (int)rng_below(&r, 4), row = 0, k = 0;
        n = n < b.n_rows ? n : b.n_rows;
        for (int i = 0; i < n; i++) {
            flight_cut(&b, flight_begin(b.n_rows, i, n), flight_begin(b.n_rows, i + 1, n),
                       &f);
            assert_int_equal(f.first_row, row);
            assert_int_equal(f.r.n_seqs, f.n_parts);
            assert_int_equal(f.seq_row[f.n_parts], f.r.n_rows);
            for (int p = 0; p < f.n_parts; p++) {
                assert_int_equal(f.parts[p].row, f.seq_row[p]);
                assert_int_equal(f.parts[p].n_rows, f.seq_row[p + 1] - f.seq_row[p]);
                for (int j = 0; j < f.parts[p].n_rows; j++, row++) {
                    k += row == parts[k].row + parts[k].n_rows;
                    assert_ptr_equal(f.tables[p], tables[k]);
                    assert_int_equal(f.r.pos[f.seq_row[p] + j], pos[row]);
                    assert_int_equal(f.parts[p].pos + j, pos[row]);
                }
            }
        }
        assert_int_equal(row, b.n_rows);
    }
    flight_deinit(&f);
}

static void only_long_batches_are_cut(void **state)
{
    (void)state;
    const struct device cpu = {.unified = true, .n_ranks = 1, .n_stages = 4};
    const struct device gpus = {.n_ranks = 2, .n_stages = 4},
                        gpu = {.n_ranks = 1, .n_stages = 1};
    assert_int_equal(flight_count(&cpu, 512), 1);
    assert_int_equal(flight_count(&gpu, 512), 1);
    assert_int_equal(flight_count(&gpus, 64), 1); /* a batch of decodes is not cut */
    assert_int_equal(flight_count(&gpus, 255), 1);
    assert_int_equal(flight_count(&gpus, 256), 2);
    assert_int_equal(flight_count(&gpus, 512), 4);
    assert_int_equal(flight_count(&gpus, 4096), 4);
}

enum { LONG = 180, SHORT = 120, N_NEW = 3 };

static int32_t prompt[LONG];

/* Computes two prompts in one batch of 300 rows. On two stages the batch makes two pieces, the
 * first of which ends inside a prompt. */
static void compute(struct io *disk, int n_stages, struct et_run r[2])
{
    struct stack k;
    struct seq *s[2];
    struct err err = {0};
    et_open(&k, &(struct stack_opts){.user.device = "cuda",
                                     .user.model = "tests/model/golden/families/llama",
                                     .user.dtype = "bf16",
                                     .user.pipeline_parallel = n_stages,
                                     .user.max_context = 256,
                                     .user.max_sequences = 2,
                                     .io = disk,
                                     .user.store = et_dirs,
                                     .user.n_store = 1,
                                     .user.no_reuse = true});
    assert_int_equal(flight_count(k.dev, LONG + SHORT), n_stages);
    for (int i = 0; i < 2; i++) {
        struct et_ask a = {.prompt = prompt + i,
                           .n_prompt = i == 0 ? LONG : SHORT,
                           .max_tokens = N_NEW,
                           .save = n_stages > 1 ? "both" : "none",
                           .plan = n_stages > 1 ? "recompute" : "kv"};
        s[i] = et_add(&k, &a);
    }
    if (engine_run(k.engine, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < 2; i++)
        et_take(&k, s[i], &r[i]);
    stack_close(&k);
}

/* State that two stages have computed and saved in pieces equals the state of one device, and one
 * device restores it. */
static void pieces_have_the_bits_of_one_device(void **state)
{
    (void)state;
    struct et_run whole[2], pieces[2], restored[2];
    struct io *disk = et_disk(1, (uint64_t)64 << 20),
              *empty = et_disk(2, (uint64_t)64 << 20);
    compute(empty, 1, whole);
    compute(disk, 2, pieces);
    compute(disk, 1, restored);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(whole[i].n_cached, 0);
        assert_true(restored[i].n_cached >= (i == 0 ? 128 : 64));
        et_same(&pieces[i], &whole[i], "in pieces");
        et_same(&restored[i], &whole[i], "restored");
    }
    io_close(disk);
    io_close(empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_the_batch),
        cmocka_unit_test(only_long_batches_are_cut),
        cmocka_unit_test(pieces_have_the_bits_of_one_device),
    };
    et_small_prompt(prompt, LONG, 9);
    et_device.cuda_math = "exact";
    et_device.cuda_ranks = "shared";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
