/* test_flight.c - a batch is cut into pieces that follow one another through the stages. */

#include "tests/unit.h"
#include "engine/step.h"
#include "enginetest.h"

/* A batch is cut into as many pieces as there are stages, unless pieces would have fewer than 128
 * rows. */
TEST(a_batch_is_cut_by_its_rows)
{
    struct device d = {.n_stages = 3};
    static const struct {
        int rows, pieces;
    } want[] = {{1, 1},   {127, 1}, {128, 1}, {255, 1},
                {256, 2}, {383, 2}, {384, 3}, {2048, 3}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_int_equal(flight_count(&d, want[i].rows), want[i].pieces);
    d = (struct device){.n_stages = 1};
    assert_int_equal(flight_count(&d, 2048), 1);
}

enum { N_SEQS = 4, N_ROWS = 10 };

/* Four sequences with 1, 4, 2 and 3 rows are cut into n pieces. Every row is in one piece, in its
 * order, with its sequence's table and position. Pieces may end inside sequences. */
TEST(every_row_is_in_one_piece)
{
    static const int n_rows[N_SEQS] = {1, 4, 2, 3};
    static const int64_t pos0[N_SEQS] = {100, 7, 64, 0};
    int32_t pos[N_ROWS];
    const int32_t table[N_SEQS] = {0}, *tables[N_SEQS];
    int32_t states[N_SEQS], ahead[N_SEQS] = {0, 1, 0, 0}; /* row 4 of all is a guess */
    struct save_part parts[N_SEQS];
    int of_row[N_ROWS], row = 0;
    for (int k = 0; k < N_SEQS; k++) {
        tables[k] = &table[k];
        states[k] = 100 + k;
        parts[k] = (struct save_part){(struct save_seq *)(uintptr_t)(k + 1), pos0[k], row,
                                      n_rows[k]};
        for (int i = 0; i < n_rows[k]; i++) {
            of_row[row] = k;
            pos[row++] = (int32_t)pos0[k] + i;
        }
    }
    struct step_batch b = {.n_seqs = N_SEQS,
                           .n_rows = N_ROWS,
                           .pos = pos,
                           .tables = tables,
                           .states = states,
                           .ahead = ahead,
                           .parts = parts};
    struct flight f;
    flight_init(&f, N_SEQS);
    for (int n = 1; n <= 4; n++) {
        int next = 0;
        uint64_t id = 0;
        for (int i = 0; i < n; i++) {
            flight_cut(&b, flight_begin(N_ROWS, i, n), flight_begin(N_ROWS, i + 1, n), &f);
            assert_int_equal(f.first_row, next);
            assert_true(f.r.id != id); /* a piece has an id of its own */
            id = f.r.id;
            assert_in_range(f.r.n_rows, N_ROWS / n, (N_ROWS + n - 1) / n);
            assert_ptr_equal(f.r.pos, pos + next);
            assert_int_equal(f.r.n_seqs, f.n_parts);
            assert_int_equal(f.r.seq_row[0], 0);
            assert_int_equal(f.r.seq_row[f.n_parts], f.r.n_rows);
            for (int p = 0; p < f.n_parts; p++) {
                const struct save_part *part = &f.parts[p];
                int k = of_row[next];
                assert_ptr_equal(part->seq, parts[k].seq);
                assert_ptr_equal(f.r.tables[p], tables[k]);
                assert_int_equal(f.r.states[p], states[k]);
                assert_int_equal(f.r.ahead[p], next <= 4 && next + part->n_rows > 4);
                assert_int_equal(part->pos, pos[next]);
                assert_int_equal(part->row, next - f.first_row);
                assert_int_equal(part->row, f.r.seq_row[p]);
                assert_int_equal(part->row + part->n_rows, f.r.seq_row[p + 1]);
                for (int r = 0; r < part->n_rows; r++)
                    assert_int_equal(of_row[next++], k);
            }
        }
        assert_int_equal(next, N_ROWS);
    }
    flight_deinit(&f);
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
    et_open(&k, &(struct stack_opts){.user.model = "tests/model/golden/families/llama",
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
TEST(pieces_have_the_bits_of_one_device)
{
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
    et_small_prompt(prompt, LONG, 9);
    return unit_run(NULL, NULL);
}
