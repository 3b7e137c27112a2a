/* test_stream.c - layers that pass through a ring, and experts through a cache, compute the same
 * as resident ones; disk faults never become output. */
#include "tests/unit.h"
#include <math.h>

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/tempdir.h"
#include "sim/io_sim.h"
#include "model/pack_file.h"
#include "model/pass.h"
#include "model/weights_use.h"
#include "packed_file.h"
#include "solo.h"

enum { N = 70, MAX_VOCAB = 512, MAX_D = 256 };
#define EVER ((int64_t)3600 * 1000000000)

static char dir[TEMPDIR_BYTES];

static void pack(const char *source, const char *weights, char path[PATH_MAX])
{
    packed_file_make(dir, source, "cpu", 1, weights, path);
}

/* --- a model with some resident layers -------------------------------------------------------- */

struct lab {
    struct solo t;
    int n_resident;
    struct weights_sizes sizes;
    int32_t ids[N];
    float logits[N * MAX_VOCAB];
};

static int share(void *arg, const struct model *m, const struct weights_sizes *z,
                 int *n_resident, struct err *err)
{
    struct lab *lab = arg;
    (void)err;
    int n_experts = (m->cfg.n_layers - m->cfg.n_dense_layers) * m->cfg.n_experts;
    assert_int_equal(z->n_units, n_experts > 0 ? n_experts : m->cfg.n_layers);
    lab->sizes = *z;
    *n_resident = lab->n_resident;
    return 0;
}

/* Layers stream from the disk, or, if the device has memory of its own, from the host's. */
enum { UNIFIED = 1, OWN_MEMORY = SOLO_OWN_MEMORY };

static void lab_open(struct lab *lab, const char *path, int memory, int n_resident,
                     struct io *io, int64_t stuck_ns)
{
    memset(lab, 0, sizeof *lab);
    lab->n_resident = n_resident;
    solo_open_as(&lab->t, path, "cpu", memory, 2,
                 &(struct model_opts){
                     .share = share, .share_arg = lab, .io = io, .stuck_ns = stuck_ns});
    assert_true(lab->t.m->cfg.vocab_size <= MAX_VOCAB && lab->t.m->cfg.n_embd <= MAX_D);
    for (int i = 0; i < N; i++)
        lab->ids[i] = (i * 37 + 5) % lab->t.m->cfg.vocab_size;
}

/* Feeds a prompt, then one token after another: several passes. */
static int feed(struct lab *lab)
{
    int vocab = lab->t.m->cfg.vocab_size;
    solo_forget(&lab->t);
    int rc = solo_try(&lab->t, lab->ids, N - 6, lab->logits, NULL);
    for (int i = N - 6; rc == 0 && i < N; i++)
        rc = solo_try(&lab->t, lab->ids + i, 1, lab->logits + (size_t)i * vocab, NULL);
    return rc;
}

static void expect_logits(struct lab *lab, const float *want)
{
    memset(lab->logits, 0, sizeof lab->logits);
    assert_int_equal(feed(lab), 0);
    assert_memory_equal(lab->logits, want,
                        sizeof(float) * (size_t)(N * lab->t.m->cfg.vocab_size));
}

static struct weights_stream_stats stats_of(const struct lab *lab)
{
    struct weights_stream_stats s;
    weights_stats(&lab->t.m->w, &s);
    return s;
}

static float want[N * MAX_VOCAB];
static struct lab lab;

static void learn_wanted(const char *path, int memory)
{
    lab_open(&lab, path, memory, INT_MAX, NULL, 0);
    assert_int_equal(stats_of(&lab).n_streamed, 0);
    assert_int_equal(feed(&lab), 0);
    memcpy(want, lab.logits, sizeof want);
    solo_close(&lab.t);
}

/* With all but one, half, ... and none of the layers resident the logits have the same bits. This
 * holds for every type of the weights, with the layers on a disk and in host memory. */
TEST(streamed_layers_have_the_bits_of_resident_ones)
{
    static const struct {
        const char *model, *weights;
        int memory;
    } cases[] = {
        {"synth:tiny-mha", "f32", UNIFIED},
        {"synth:tiny-mha", "q8", UNIFIED},
        {"synth:tiny-gqa", "q4", UNIFIED},
        {"synth:tiny-gqa", "bf16r", UNIFIED},
        {"tests/model/golden/gguf/layers.gguf", "q4", UNIFIED},
        {"tests/model/golden/gguf/six.gguf", "q4", UNIFIED},
        {"tests/model/golden/gguf/six.gguf", "q4", OWN_MEMORY},
        {"synth:tiny-gqa", "bf16", UNIFIED},
        {"tests/model/golden/families/qwen2-window", NULL, UNIFIED},
        {"tests/model/golden/families/opt", NULL, UNIFIED},
        {"synth:tiny-mha", "bf16", OWN_MEMORY},
        {"synth:tiny-mha", NULL, OWN_MEMORY},
    };
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pack(cases[i].model, cases[i].weights, path);
        learn_wanted(path, cases[i].memory);
        int n_layers = lab.sizes.n_units;
        for (int n = n_layers - 1; n >= 0; n = n > 0 ? n / 2 : -1) {
            lab_open(&lab, path, cases[i].memory, n, NULL, 0);
            assert_int_equal(stats_of(&lab).n_streamed, n_layers - n);
            /* Layers of this model differ in size, so the computed size is an upper bound. */
            int n_held = n < n_layers ? n + lab.sizes.n_slots : n_layers;
            uint64_t bytes = lab.sizes.kept + (uint64_t)n_held * lab.sizes.unit;
            bool differs = strstr(cases[i].model, ".gguf") != NULL;
            assert_true(differs ? lab.t.m->w.bytes <= bytes : lab.t.m->w.bytes == bytes);
            expect_logits(&lab, want);
            struct weights_stream_stats s = stats_of(&lab);
            assert_true(s.read_bytes >= 7 * s.layer_bytes || n_layers - n <= 2);
            assert_int_equal(s.n_failed, 0);
            solo_close(&lab.t);
        }
    }
}

/* Exactly the requested number of layers stays resident. Resident layers are spread so that the two
 * halves of the model differ by at most one or two. Layer 0 is the first to stay. */
TEST(resident_layers_are_spread_evenly)
{
    for (int n_layers = 1; n_layers <= 80; n_layers++)
        for (int n = 0; n <= n_layers; n++) {
            int all = 0, first = 0;
            for (int l = 0; l < n_layers; l++) {
                all += weights_stays(l, n, n_layers);
                first += l < n_layers / 2 && weights_stays(l, n, n_layers);
            }
            assert_int_equal(all, n);
            assert_true(n == 0 || weights_stays(0, n, n_layers));
            assert_in_range(2 * first + 2, n < 2 ? 0 : n - 1, n + 4);
        }
}

/* After a pass's last layers the ring reads the first layers of the next pass, even if no pass
 * waits. So a pass over four layers through a ring of two slots ends with six reads. */
TEST(the_next_pass_is_read_ahead)
{
    char path[PATH_MAX];
    struct weights_stream_stats s;
    pack("synth:tiny-mha", NULL, path);
    lab_open(&lab, path, 1, 0, NULL, 0);
    /* what the opening has read is the first measurement of the disk */
    s = stats_of(&lab);
    assert_true(s.disk_bytes_per_s > 0 && s.disk_bytes_per_s < 1e12 && s.ahead_ns > 0);
    assert_int_equal(solo_try(&lab.t, lab.ids, N, NULL, NULL), 0);
    do {
        usleep(1000);
        s = stats_of(&lab);
    } while (s.read_bytes < 6 * s.layer_bytes);
    /* The next pass uses the two layers that were read ahead. During the pass the ring reads the
     * other two layers, and after it the first two again. */
    assert_int_equal(solo_try(&lab.t, lab.ids, 1, NULL, NULL), 0);
    do {
        usleep(1000);
        s = stats_of(&lab);
    } while (s.read_bytes < 10 * s.layer_bytes);
    assert_int_equal(s.read_bytes, 10 * s.layer_bytes);
    assert_true(s.read_ns > 0 && s.verify_ns > 0 && s.wait_ns > 0);
    /* the reported lead is the time to read a ring of two layers */
    double ahead_s = (double)(2 * s.layer_bytes) / s.disk_bytes_per_s;
    assert_true(s.disk_bytes_per_s > 0 &&
                fabs((double)s.ahead_ns * 1e-9 / ahead_s - 1) < 0.01);
    solo_close(&lab.t);
}

/* The same with experts: with a cache of the fewest, of a third and of all but few of them, on
 * prompts and on single tokens. Passes read less than all experts as soon as some stay. */
TEST(experts_from_the_disk_have_the_bits_of_resident_ones)
{
    static const char *const models[] = {
        "qwen3-moe",   "mixtral",  "gpt-oss",     "gpt-oss-mxfp4", "gemma4-moe",
        "deepseek-v2", "glm4-moe", "qwen3.5-moe", "granite-h",
    };
    char path[PATH_MAX], source[PATH_MAX];
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        snprintf(source, sizeof source, "tests/model/golden/families/%s", models[i]);
        pack(source, NULL, path);
        learn_wanted(path, UNIFIED);
        int n_all = lab.sizes.n_units, most = n_all - lab.sizes.n_slots;
        const int kept[] = {0, most / 3, most};
        uint64_t before = UINT64_MAX;
        for (int k = 0; k < 3; k++) {
            lab_open(&lab, path, UNIFIED, kept[k], NULL, 0);
            uint64_t held = (uint64_t)(kept[k] + lab.sizes.n_slots);
            assert_int_equal(lab.t.m->w.bytes, lab.sizes.kept + held * lab.sizes.unit);
            expect_logits(&lab, want);
            struct weights_stream_stats s = stats_of(&lab);
            assert_int_equal(s.n_failed, 0);
            assert_true(s.read_bytes <= before && s.read_bytes % 4096 == 0);
            before = s.read_bytes;
            solo_close(&lab.t);
        }
        /* Each once, of those that the texts use. */
        assert_in_range(before, 1, (uint64_t)n_all * lab.sizes.unit);
    }
}

/* --- what a source lends and counts ----------------------------------------------------------- */

static void expect_same_matrix(const struct device *d, const struct weight *x,
                               const struct weight *y)
{
    size_t bytes = d->ops->weight_bytes(x->dtype, x->n, x->k);
    assert_int_equal(x->dtype, y->dtype);
    assert_int_equal(x->n, y->n);
    assert_int_equal(x->k, y->k);
    assert_memory_equal(x->mem.ptr, y->mem.ptr, bytes);
}

/* All layers may be held at once, although the ring has two slots. A layer that is acquired twice
 * is lent twice from one slot. */
TEST(all_layers_may_be_held_at_once)
{
    char path[PATH_MAX];
    for (int memory = OWN_MEMORY; memory <= UNIFIED; memory++) {
        const struct layer_weights *lw[4], *again;
        static struct lab all;
        pack("synth:tiny-mha", NULL, path);
        lab_open(&all, path, memory, INT_MAX, NULL, 0);
        lab_open(&lab, path, memory, 0, NULL, 0);
        const struct weights *w = &lab.t.m->w;
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 4; i++) {
                int l = round == 1 ? 3 - i : i;
                assert_int_equal(weights_acquire(w, l, lab.t.s, &lw[l]), 0);
                assert_int_equal(weights_reached(w), l + 1);
            }
            assert_int_equal(weights_acquire(w, 2, lab.t.s, &again), 0);
            assert_ptr_equal(again, lw[2]);
            assert_int_equal(stream_sync(lab.t.s), 0);
            for (int l = 0; l < 4; l++) {
                const struct layer_weights *own = &all.t.m->w.layers[l];
                const struct device *d = all.t.dev;
                expect_same_matrix(d, &own->wq, &lw[l]->wq);
                expect_same_matrix(d, &own->wkv, &lw[l]->wkv);
                expect_same_matrix(d, &own->wo, &lw[l]->wo);
                expect_same_matrix(d, &own->w_up, &lw[l]->w_up);
                expect_same_matrix(d, &own->w_down, &lw[l]->w_down);
                assert_memory_equal(own->norm1_w, lw[l]->norm1_w, 64 * sizeof(float));
            }
            weights_release(w, 2, lab.t.s);
            for (int l = 0; l < 4; l++)
                weights_release(w, l, lab.t.s);
        }
        assert_int_equal(weights_reached(&all.t.m->w), 0); /* all layers are resident */
        solo_close(&lab.t);
        solo_close(&all.t);
    }
}

/* From host memory, a pass copies each streamed layer once, one layer ahead; with at most two of
 * them, none is ever copied again. */
TEST(copies_from_host_memory_are_counted)
{
    static const struct {
        int n_resident, n_streamed, first, per_pass;
    } known[] = {{0, 4, 5, 4}, {1, 3, 4, 3}, {2, 2, 2, 0}, {3, 1, 1, 0}};
    char path[PATH_MAX];
    pack("synth:tiny-mha", NULL, path);
    for (int i = 0; i < 4; i++) {
        lab_open(&lab, path, OWN_MEMORY, known[i].n_resident, NULL, 0);
        struct weights_stream_stats s = stats_of(&lab);
        assert_int_equal(s.n_layers, 4);
        assert_int_equal(s.n_streamed, known[i].n_streamed);
        assert_int_equal(s.layer_bytes, lab.sizes.unit);
        assert_int_equal(s.read_bytes, 0);
        for (int pass = 0; pass < 3; pass++) {
            assert_int_equal(solo_try(&lab.t, lab.ids + pass, 1, NULL, NULL), 0);
            s = stats_of(&lab);
            assert_int_equal(s.read_bytes,
                             (uint64_t)(known[i].first + pass * known[i].per_pass) *
                                 s.layer_bytes);
        }
        assert_int_equal(s.n_failed, 0);
        weights_stop(&lab.t.m->w, true);
        assert_int_equal(solo_try(&lab.t, lab.ids, 1, NULL, NULL), ERR_CANCELLED);
        weights_stop(&lab.t.m->w, false);
        assert_int_equal(solo_try(&lab.t, lab.ids, 1, NULL, NULL), 0);
        solo_close(&lab.t);
    }
}

/* A copy takes the place of the layer that is needed last. */
TEST(the_layer_needed_last_is_replaced)
{
    static const struct {
        int acquired[3]; /* one after another, each released at once */
        uint64_t copies; /* layers that were copied until then, one ahead included */
    } known[] = {
        {{0, 3, 0}, 4}, {{0, 3, 1}, 5}, {{0, 1, 0}, 4}, {{3, 0, 3}, 4}, {{1, 2, 3}, 4}};
    char path[PATH_MAX];
    pack("synth:tiny-mha", NULL, path);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        lab_open(&lab, path, OWN_MEMORY, 0, NULL, 0);
        for (int k = 0; k < 3; k++) {
            const struct layer_weights *lw;
            int l = known[i].acquired[k];
            assert_int_equal(weights_acquire(&lab.t.m->w, l, lab.t.s, &lw), 0);
            weights_release(&lab.t.m->w, l, lab.t.s);
        }
        struct weights_stream_stats s = stats_of(&lab);
        if (s.read_bytes != known[i].copies * s.layer_bytes)
            fail_msg("case %zu: %d copies", i, (int)(s.read_bytes / s.layer_bytes));
        solo_close(&lab.t);
    }
}

/* After weights_stop no layer is lent, whether it is resident or not. */
TEST(a_stop_is_for_all_layers)
{
    char path[PATH_MAX];
    for (int memory = OWN_MEMORY; memory <= UNIFIED; memory++) {
        pack("synth:tiny-mha", NULL, path);
        lab_open(&lab, path, memory, 2, NULL, 0);
        for (int stops = 1; stops >= 0; stops--) {
            weights_stop(&lab.t.m->w, stops);
            for (int l = 0; l < 4; l++) {
                const struct layer_weights *lw;
                int rc = weights_acquire(&lab.t.m->w, l, lab.t.s, &lw);
                assert_int_equal(rc, stops ? ERR_CANCELLED : 0);
                if (rc == 0)
                    weights_release(&lab.t.m->w, l, lab.t.s);
            }
        }
        solo_close(&lab.t);
    }
}

/* The sizes that a packed model announces are those of its parts. */
TEST(sizes_are_those_of_the_parts)
{
    char path[PATH_MAX];
    struct pack_file f;
    struct err err = {0};
    for (int memory = OWN_MEMORY; memory <= UNIFIED; memory++) {
        uint64_t kept = 0, layer = 0;
        if (memory == UNIFIED) /* its layers differ in size */
            pack("tests/model/golden/gguf/layers.gguf", "q4", path);
        else
            pack("synth:tiny-mha", NULL, path);
        assert_int_equal(pack_file_open(&f, path, &err), 0);
        for (size_t i = 0; i < f.n_parts; i++) {
            bool streamed = i >= PACK_LAYERS && (i - PACK_LAYERS) % 2 == 0;
            kept += streamed ? 0 : f.parts[i].bytes;
            if (streamed && f.parts[i].bytes > layer)
                layer = f.parts[i].bytes;
        }
        lab_open(&lab, path, memory, 1, NULL, 0);
        assert_int_equal(lab.sizes.kept, kept);
        assert_int_equal(lab.sizes.unit, layer);
        assert_int_equal(lab.sizes.n_units, f.n_layers);
        assert_int_equal(lab.sizes.n_slots, 2);
        assert_int_equal(lab.t.m->w.bytes,
                         kept + 2 * layer + f.parts[pack_streamed_part(0)].bytes);
        pack_file_close(&f);
        solo_close(&lab.t);
    }
}

/* --- several passes at once ------------------------------------------------------------------- */

/* Two passes hold one layer each while whole passes run. The ring of two slots grows, and all
 * passes have the bits of resident weights. */
TEST(held_layers_stay_while_others_pass)
{
    static float rows[2][2][N * MAX_D];
    static struct residual x[2];
    static struct model_pass held[2];
    char path[PATH_MAX];
    int32_t pos[N], seq_row[2] = {0, N};
    struct mat out;
    pack("synth:tiny-mha", NULL, path);
    learn_wanted(path, 1);
    lab_open(&lab, path, 1, 0, NULL, 0);
    assert_int_equal(feed(&lab), 0); /* puts K and V of the rows into the cache */
    for (int i = 0; i < N; i++)
        pos[i] = i;
    const int32_t *tables[1] = {lab.t.table.blocks};
    struct ragged all = {
        .n_rows = N, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
    for (int p = 0; p < 2; p++) {
        x[p].n = 2;
        for (int i = 0; i < 2; i++)
            x[p].x[0][i] = mat_of(rows[p][i], lab.t.m->dtype, N, lab.t.m->cfg.n_embd);
        model_pass_begin(&held[p], &(struct model_pass_opts){.model = lab.t.m,
                                                             .work = lab.t.work,
                                                             .stream = lab.t.s,
                                                             .n_rows = N,
                                                             .ids = lab.ids,
                                                             .x = &x[p],
                                                             .kv = lab.t.layers});
    }
    for (int l = 0; l < lab.t.m->cfg.n_layers; l++) {
        int32_t cut[2][2] = {{0, 30}, {0, N - 30}};
        struct ragged a = all, b = all;
        a.n_rows = 30;
        a.seq_row = cut[0];
        b.n_rows = N - 30;
        b.seq_row = cut[1];
        b.pos = pos + 30;
        for (int p = 0; p < 2; p++)
            if (p == 0 || l > 0) /* the second pass is one layer behind the first */
                assert_int_equal(model_pass_layer(&held[p], &a), 0);
        assert_int_equal(model_forward(lab.t.m, lab.t.work, lab.t.s, lab.ids, lab.t.layers,
                                       &all, NULL, &out),
                         0);
        for (int p = 0; p < 2; p++)
            if (p == 0 || l > 0)
                assert_int_equal(model_pass_layer(&held[p], &b), 0);
    }
    size_t bytes = (size_t)(N * lab.t.m->cfg.n_embd) * dtype_bytes(lab.t.m->dtype);
    assert_int_equal(model_forward(lab.t.m, lab.t.work, lab.t.s, lab.ids, lab.t.layers,
                                   &all, NULL, &out),
                     0);
    assert_memory_equal(model_pass_output(&held[0]).data, out.data, bytes);
    assert_int_equal(model_pass_layer(&held[1], &all), 0);
    assert_memory_equal(model_pass_output(&held[1]).data, out.data, bytes);
    for (int p = 0; p < 2; p++)
        model_pass_end(&held[p]);
    expect_logits(&lab, want);
    solo_close(&lab.t);
}

/* --- disk faults ------------------------------------------------------------------------------ */

static struct io *sim;

/* Opens the packed file on a simulated disk, under the same path. */
static void open_on_sim(const char *path, int n_resident, int64_t stuck_ns)
{
    struct err err = {0};
    assert_int_equal(io_sim_open(&(struct io_sim_opts){.seed = 7}, &sim, &err), 0);
    packed_file_copy(sim, path);
    lab_open(&lab, path, 1, n_resident, sim, stuck_ns);
}

static void close_on_sim(void)
{
    io_sim_fault_clear(sim);
    io_sim_unstick(sim);
    solo_close(&lab.t);
    io_close(sim);
}

/* Projecting K and V needs resident weights only: all layers project even if the disk fails every
 * read. */
TEST(keys_and_values_need_no_stream)
{
    static float h[N * MAX_D], out[2 * N * MAX_D], same[2 * N * MAX_D];
    char path[PATH_MAX];
    pack("synth:tiny-gqa", NULL, path);
    for (int i = 0; i < N * MAX_D; i++)
        h[i] = (float)(i % 17) / 17;
    open_on_sim(path, 0, EVER);
    io_sim_fault_add(sim,
                     &(struct io_sim_fault){.kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ});
    struct solo resident;
    solo_open_held(&resident, path, NULL, NULL);
    int64_t d = lab.t.m->cfg.n_embd, kv = 2 * (int64_t)model_rank_kv_dim(lab.t.m, 0);
    for (int l = 0; l < lab.t.m->cfg.n_layers; l++) {
        assert_int_equal(model_kv_project(lab.t.m, lab.t.work, lab.t.s, l,
                                          mat_of(h, DTYPE_F32, N, d),
                                          mat_of(out, DTYPE_F32, N, kv)),
                         0);
        assert_int_equal(model_kv_project(resident.m, resident.work, resident.s, l,
                                          mat_of(h, DTYPE_F32, N, d),
                                          mat_of(same, DTYPE_F32, N, kv)),
                         0);
        assert_memory_equal(out, same, sizeof(float) * (size_t)(N * kv));
    }
    solo_close(&resident);
    close_on_sim();
}

/* Layers pass through a ring; experts through a cache. */
static const char *const sources[] = {"synth:tiny-mha",
                                      "tests/model/golden/families/qwen3-moe"};
enum { N_SOURCES = sizeof sources / sizeof sources[0] };

static uint64_t place_in_part(const char *path, size_t part)
{
    struct pack_file f;
    struct err err = {0};
    assert_int_equal(pack_file_open(&f, path, &err), 0);
    const struct pack_part *p = &f.parts[part];
    uint64_t at = p->at + p->bytes / 2;
    pack_file_close(&f);
    return at;
}

/* A bit that flips on the disk after the start fails every pass that reads it, and no logits come
 * out. The process survives. */
TEST(a_flipped_bit_fails_the_pass)
{
    char path[PATH_MAX];
    for (int k = 0; k < N_SOURCES; k++) {
        pack(sources[k], NULL, path);
        learn_wanted(path, 1);
        const struct model_config *c = &lab.t.m->cfg;
        bool experts = c->n_experts > 0;
        uint64_t at = place_in_part(path, experts ? pack_expert_part(c, 1, 0)
                                                  : pack_streamed_part(3));
        open_on_sim(path, experts ? 0 : 1, EVER); /* layer 0 stays resident */
        expect_logits(&lab, want);
        assert_int_equal(io_sim_flip(sim, path, at, 3), 0);
        for (int i = 0; i < 3; i++) {
            memset(lab.logits, 0, sizeof lab.logits);
            int rc = feed(&lab);
            assert_int_equal(rc, ERR_CORRUPT);
        }
        assert_non_null(strstr(stats_of(&lab).fault, "damaged at byte"));
        assert_non_null(strstr(stats_of(&lab).fault, path));
        assert_true(stats_of(&lab).n_failed >= 3);
        assert_int_equal(io_sim_flip(sim, path, at, 3), 0);
        expect_logits(&lab, want);
        assert_string_equal(stats_of(&lab).fault, ""); /* a success ends the fault */
        close_on_sim();
    }
}

static void flip_byte(const char *path, uint64_t at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_true(fputc(c ^ 1, f) != EOF);
    assert_int_equal(fclose(f), 0);
}

/* Layers in host memory are checked when the model is opened; those on a disk when they are used.
 * Parts that stay are always checked at once. */
TEST(a_damaged_part_ends_the_opening)
{
    char path[PATH_MAX];
    for (int memory = OWN_MEMORY; memory <= UNIFIED; memory++) {
        struct pack_file f;
        struct err err = {0};
        pack("synth:tiny-mha", NULL, path);
        assert_int_equal(pack_file_open(&f, path, &err), 0);
        for (size_t part = 0; part < f.n_parts; part++) {
            struct device *d;
            struct model *m = NULL;
            lab.n_resident = 1; /* layer 0 */
            if (f.parts[part].bytes == 0)
                continue;
            flip_byte(path, f.parts[part].at + 100);
            assert_int_equal(device_open("cpu", NULL, NULL, &d, &err), 0);
            d->unified = memory == UNIFIED;
            struct model_opts o = {.dev = d, .share = share, .share_arg = &lab};
            bool waits = memory == UNIFIED && part > pack_streamed_part(0) &&
                         (part - PACK_LAYERS) % 2 == 0;
            err = (struct err){0};
            assert_int_equal(model_open(path, &o, &m, &err), waits ? 0 : ERR_CORRUPT);
            assert_int_equal(m != NULL, waits);
            if (!waits)
                assert_non_null(strstr(err.msg, "the weights are damaged at byte"));
            model_close(m);
            device_close(d);
            flip_byte(path, f.parts[part].at + 100);
        }
        pack_file_close(&f);
    }
}

/* Bytes that are damaged in transit, not on the disk, are read again, and the second read is
 * good. */
TEST(a_bad_transfer_is_read_again)
{
    char path[PATH_MAX];
    for (int k = 0; k < N_SOURCES; k++) {
        pack(sources[k], NULL, path);
        learn_wanted(path, 1);
        open_on_sim(path, 0, EVER);
        io_sim_fault_add(sim, &(struct io_sim_fault){.kind = IO_SIM_READ_FLIP,
                                                     .on = IO_SIM_ON_READ,
                                                     .skip = 1,
                                                     .count = 1});
        expect_logits(&lab, want);
        assert_int_equal(io_sim_fault_count(sim, IO_SIM_READ_FLIP, 0), 1);
        assert_int_equal(stats_of(&lab).n_failed, 0);
        close_on_sim();
    }
}

/* A disk that fails reads fails the pass with the disk's code. When reads succeed again, so does
 * the next pass. */
TEST(a_disk_that_ends_fails_the_pass)
{
    char path[PATH_MAX];
    for (int k = 0; k < N_SOURCES; k++) {
        pack(sources[k], NULL, path);
        learn_wanted(path, 1);
        open_on_sim(path, 0, EVER);
        expect_logits(&lab, want);
        io_sim_fault_add(sim,
                         &(struct io_sim_fault){.kind = IO_SIM_FAIL, .on = IO_SIM_ON_READ});
        assert_int_equal(feed(&lab), -EIO);
        assert_int_equal(feed(&lab), -EIO);
        io_sim_fault_clear(sim);
        expect_logits(&lab, want);
        close_on_sim();
    }
}

/* A disk that hangs fails the pass after its time limit. When the disk answers again, passes
 * succeed. */
TEST(a_disk_that_hangs_fails_the_pass)
{
    char path[PATH_MAX];
    int rc;
    for (int k = 0; k < N_SOURCES; k++) {
        pack(sources[k], NULL, path);
        learn_wanted(path, 1);
        open_on_sim(path, 0, (int64_t)100 * 1000000);
        io_sim_fault_add(
            sim, &(struct io_sim_fault){.kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ});
        /* passes may succeed while the ring has layers that were read before the fault */
        while ((rc = feed(&lab)) == 0)
            ;
        assert_int_equal(rc, -ETIMEDOUT);
        assert_int_equal(feed(&lab), -ETIMEDOUT);
        assert_non_null(strstr(stats_of(&lab).fault, "does not answer"));
        assert_true(stats_of(&lab).n_failed >= 1);
        io_sim_fault_clear(sim);
        io_sim_unstick(sim);
        while ((rc = feed(&lab)) == -ETIMEDOUT)
            ; /* a machine that stalls may take longer than the limit of 100 ms */
        assert_int_equal(rc, 0);
        assert_memory_equal(lab.logits, want,
                            sizeof(float) * (size_t)(N * lab.t.m->cfg.vocab_size));
        close_on_sim();
    }
}

static void *pass_in_thread(void *arg)
{
    *(int *)arg = feed(&lab);
    return NULL;
}

/* weights_stop ends a pass that waits for an unresponsive disk, and every later one. */
TEST(a_stop_ends_a_pass_that_waits)
{
    char path[PATH_MAX];
    pthread_t thread;
    int rc = 0;
    for (int k = 0; k < N_SOURCES; k++) {
        pack(sources[k], NULL, path);
        open_on_sim(path, 0, EVER);
        io_sim_fault_add(
            sim, &(struct io_sim_fault){.kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ});
        assert_int_equal(pthread_create(&thread, NULL, pass_in_thread, &rc), 0);
        while (io_sim_fault_hits(sim) == 0)
            usleep(1000);
        weights_stop(&lab.t.m->w, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(rc, ERR_CANCELLED);
        assert_int_equal(feed(&lab), ERR_CANCELLED);
        /* Passes run again when allowed, on a disk that answers. */
        io_sim_fault_clear(sim);
        io_sim_unstick(sim);
        weights_stop(&lab.t.m->w, false);
        assert_int_equal(feed(&lab), 0);
        close_on_sim();
    }
}

/* A model can be closed while its disk does not answer. */
TEST(a_disk_that_hangs_does_not_hold_the_closing)
{
    char path[PATH_MAX];
    pack("synth:tiny-mha", NULL, path);
    open_on_sim(path, 0, EVER);
    assert_int_equal(solo_try(&lab.t, lab.ids, N, NULL, NULL), 0);
    io_sim_fault_add(sim,
                     &(struct io_sim_fault){.kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ});
    /* two layers are read ahead, or a read is stuck already */
    struct weights_stream_stats s = stats_of(&lab);
    for (; io_sim_fault_hits(sim) == 0 && s.read_bytes < 6 * s.layer_bytes;
         s = stats_of(&lab))
        usleep(1000);
    const struct layer_weights *lw;
    if (io_sim_fault_hits(sim) == 0) { /* a slot that is free is filled again */
        assert_int_equal(weights_acquire(&lab.t.m->w, 0, lab.t.s, &lw), 0);
        weights_release(&lab.t.m->w, 0, lab.t.s);
    }
    while (io_sim_fault_hits(sim) == 0)
        usleep(1000);
    solo_close(&lab.t); /* the reads in flight are cancelled */
    io_sim_fault_clear(sim);
    io_sim_unstick(sim);
    io_close(sim);
}

static int set_up(void **state)
{
    *state = dir;
    tempdir_make_on_disk(dir, "stream");
    return 0;
}

int main(void)
{
    return unit_run(set_up, tempdir_end);
}
