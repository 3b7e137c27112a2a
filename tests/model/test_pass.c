/* test_pass.c - a pass takes rows through the layers: when it holds the weights of each layer, and
 * the bits of its result. */
#include "tests/unit.h"

#include <errno.h>
#include <string.h>

#include "layer_spy.h"
#include "model/pass.h"
#include "solo.h"

enum { N = 90, MAX_D = 512 };

/* A model under a layer_spy, and a residual stream that the test owns. */
struct lab {
    struct solo t;
    struct layer_spy spy;
    struct residual x;
    float rows[3][N * MAX_D];
    int32_t ids[N], pos[N], seq_row[2];
    const int32_t *tables[1];
};

static struct lab lab;

static void lab_open(const char *model)
{
    struct err err = {0};
    memset(&lab, 0, sizeof lab);
    solo_open(&lab.t, model, "cpu", "f32", 1);
    assert_true(lab.t.m->cfg.n_embd <= MAX_D);
    assert_int_equal(kv_table_reserve(lab.t.kv, &lab.t.table, N, &err), 0);
    for (int i = 0; i < N; i++) {
        lab.ids[i] = (i * 31 + 5) % lab.t.m->cfg.vocab_size;
        lab.pos[i] = i;
    }
    lab.x.n = 2;
    for (int i = 0; i < 3; i++)
        lab.x.x[0][i] = mat_of(lab.rows[i], DTYPE_F32, N, lab.t.m->cfg.n_embd);
    spy_begin(&lab.spy, lab.t.m);
}

static void lab_close(void)
{
    spy_end(&lab.spy);
    solo_close(&lab.t);
}

/* Describes rows [row, row + n) of the only sequence. */
static struct ragged rows_of(int row, int n)
{
    lab.seq_row[1] = n;
    lab.tables[0] = lab.t.table.blocks;
    return (struct ragged){.n_rows = n,
                           .n_seqs = 1,
                           .pos = lab.pos + row,
                           .seq_row = lab.seq_row,
                           .tables = lab.tables};
}

static void begin(struct model_pass *p, const struct model_tap *tap)
{
    model_pass_begin(p, &(struct model_pass_opts){.model = lab.t.m,
                                                  .work = lab.t.work,
                                                  .stream = lab.t.s,
                                                  .n_rows = N,
                                                  .ids = lab.ids,
                                                  .x = &lab.x,
                                                  .kv = lab.t.layers,
                                                  .tap = tap,
                                                  .checks_range = true});
}

static int forward(const struct model_tap *tap, struct mat *x)
{
    struct ragged r = rows_of(0, N);
    int rc = model_forward(lab.t.m, lab.t.work, lab.t.s, lab.ids, lab.t.layers, &r, tap, x);
    return rc == 0 ? stream_sync(lab.t.s) : rc;
}

static size_t row_bytes(void)
{
    return (size_t)lab.t.m->cfg.n_embd * sizeof(float);
}

/* Every layer is held once, in order, and released before the next one. The model reads weights
 * only of the layer that it holds. */
TEST(a_forward_pass_holds_one_layer_at_a_time)
{
    struct mat x;
    lab_open("synth:tiny-mha");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(forward(NULL, &x), 0);
        spy_expect_pass(&lab.spy, 0, lab.t.m->cfg.n_layers);
        spy_expect_end(&lab.spy);
    }
    lab_close();
}

/* Rows that pass a layer in several pieces hold the layer once. The output has the bits of the
 * forward pass. */
TEST(pieces_hold_a_layer_once_and_change_no_bit)
{
    static const int cuts[][4] = {{90}, {64, 26}, {1, 63, 26}, {17, 31, 2, 40}};
    static float want[N * MAX_D];
    struct mat x;
    lab_open("synth:tiny-mha");
    assert_int_equal(forward(NULL, &x), 0);
    memcpy(want, x.data, N * row_bytes());
    lab.spy.n_read = lab.spy.n_events;
    for (int c = 0; c < 4; c++) {
        struct model_pass p;
        begin(&p, NULL);
        while (!model_pass_is_done(&p)) {
            int l = p.layer;
            /* The rows are cut differently at each layer. */
            for (int i = 0, row = 0; row < N; row += cuts[(c + l) % 4][i++]) {
                assert_int_equal(p.layer, l);
                assert_int_equal(p.row, row);
                struct ragged r = rows_of(row, cuts[(c + l) % 4][i]);
                assert_int_equal(model_pass_layer(&p, &r), 0);
            }
            assert_int_equal(p.layer, l + 1);
        }
        assert_int_equal(stream_sync(lab.t.s), 0);
        assert_memory_equal(model_pass_output(&p).data, want, N * row_bytes());
        model_pass_end(&p);
        spy_expect_pass(&lab.spy, 0, lab.t.m->cfg.n_layers);
        spy_expect_end(&lab.spy);
    }
    lab_close();
}

/* Input and rows of K and V that a tap gets for one layer. */
struct shown {
    int l;
    float hidden[N * MAX_D], kv_rows[N * 2 * MAX_D];
};

static int show(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct shown *s = arg;
    if (l == s->l) {
        memcpy(s->hidden, hidden.data, N * row_bytes());
        memcpy(s->kv_rows, kv_rows.data,
               (size_t)(kv_rows.rows * kv_rows.cols) * sizeof(float));
    }
    return 0;
}

/* A pass may end with K and V of layer `last`, which equal those of the forward pass; later layers
 * are not touched. Tested with one residual buffer (as in a recomputation), two and three, while
 * forward passes between the layers use the same activations. */
TEST(a_pass_may_end_with_keys_and_values)
{
    static struct shown want;
    static float kv_rows[N * 2 * MAX_D];
    struct mat x;
    lab_open("synth:tiny-mha");
    int n_layers = lab.t.m->cfg.n_layers;
    for (int last = 0; last < n_layers; last++) {
        want.l = last;
        assert_int_equal(forward(&(struct model_tap){.layer = show, .arg = &want}, &x), 0);
        spy_expect_pass(&lab.spy, 0, n_layers);
        for (int n_buffers = 1; n_buffers <= 3; n_buffers++) {
            struct model_pass p;
            struct ragged r = rows_of(0, N);
            lab.x.n = n_buffers;
            begin(&p, NULL);
            for (int l = 0; l < last; l++) {
                assert_int_equal(model_pass_layer(&p, &r), 0);
                spy_expect_pass(&lab.spy, l, l + 1);
                assert_int_equal(forward(NULL, &x), 0);
                spy_expect_pass(&lab.spy, 0, n_layers);
            }
            struct mat out = mat_of(kv_rows, DTYPE_F32, N,
                                    2 * (int64_t)model_rank_kv_dim(lab.t.m, 0));
            assert_int_equal(model_pass_kv(&p, &r, out), 0);
            assert_int_equal(stream_sync(lab.t.s), 0);
            assert_true(model_pass_is_done(&p));
            model_pass_end(&p);
            spy_expect_end(&lab.spy); /* K and V alone hold no layer */
            assert_memory_equal(kv_rows, want.kv_rows,
                                (size_t)(out.rows * out.cols) * sizeof(float));
        }
    }
    lab_close();
}

/* A tap sees each layer once, with the layer's input. */
TEST(a_projection_of_what_a_tap_sees_is_the_layers_own)
{
    static struct shown seen;
    static float kv_rows[N * 2 * MAX_D];
    struct mat x;
    lab_open("synth:tiny-gqa");
    seen.l = 1;
    assert_int_equal(forward(&(struct model_tap){.layer = show, .arg = &seen}, &x), 0);
    spy_expect_pass(&lab.spy, 0, lab.t.m->cfg.n_layers);
    struct mat h = mat_of(seen.hidden, DTYPE_F32, N, lab.t.m->cfg.n_embd);
    struct mat out = mat_of(kv_rows, DTYPE_F32, N,
                            2 * (int64_t)model_rank_kv_dim(lab.t.m, 0));
    assert_int_equal(model_kv_project(lab.t.m, lab.t.work, lab.t.s, 1, h, out), 0);
    assert_int_equal(stream_sync(lab.t.s), 0);
    spy_expect_end(&lab.spy);
    assert_memory_equal(kv_rows, seen.kv_rows,
                        (size_t)(out.rows * out.cols) * sizeof(float));
    lab_close();
}

/* A pass that is given up in the middle of a layer releases that layer exactly once. */
TEST(a_pass_that_is_given_up_releases_its_layer)
{
    lab_open("synth:tiny-mha");
    struct model_pass p;
    struct ragged all = rows_of(0, N);
    begin(&p, NULL);
    assert_int_equal(model_pass_layer(&p, &all), 0);
    struct ragged few = rows_of(0, 10);
    assert_int_equal(model_pass_layer(&p, &few), 0);
    assert_int_equal(lab.spy.n_holders[1], 1);
    model_pass_end(&p);
    model_pass_end(&p);
    spy_expect_pass(&lab.spy, 0, 2);
    spy_expect_end(&lab.spy);
    lab_close();
}

/* If the source cannot provide a layer, the pass ends with the source's code. Earlier layers are
 * released by then. */
TEST(a_layer_that_cannot_be_had_ends_the_pass)
{
    struct mat x;
    lab_open("synth:tiny-mha");
    lab.spy.fail_at = 1;
    assert_int_equal(forward(NULL, &x), -EIO);
    spy_expect_pass(&lab.spy, 0, 1);
    spy_expect_end(&lab.spy);
    lab_close();
}

/* A tap's error ends the pass, and the layer that the tap saw is released. */
static int refuse(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    (void)arg;
    (void)hidden;
    (void)kv_rows;
    return l == 1 ? -ENOSPC : 0;
}

TEST(a_taps_error_ends_the_pass)
{
    struct mat x;
    lab_open("synth:tiny-mha");
    assert_int_equal(forward(&(struct model_tap){.layer = refuse}, &x), -ENOSPC);
    spy_expect_pass(&lab.spy, 0, 2);
    spy_expect_end(&lab.spy);
    lab_close();
}
