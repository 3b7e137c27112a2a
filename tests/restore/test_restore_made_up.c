/* test_restore_made_up.c - decisions of restores, without a thread, memory or a store.
 *
 * The tests fill in the fields of restores and of a pipeline with a model's shape. They assert
 * which reads a job makes and in which order, the fields of results, and the moments at which a
 * restore is ready or raced. */
#include <errno.h>
#include "tests/unit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "restore/restore_impl.h"

enum { N_LAYERS = 4, N_CHUNKS = 20, GROUPS = 12 };
#define SECOND ((int64_t)1000000000)

static struct model model;
static struct device device;
static struct restore_pipeline *rr;
static struct restore *r;
static struct store_hit hits[N_CHUNKS];
static struct plan plan;

static void keep_kinds(struct store_hit *h, unsigned kinds)
{
    h->mask = (struct store_mask){0};
    for (int l = 0; l < N_LAYERS; l++)
        for (int k = 0; k < STORE_KINDS; k++)
            if (kinds >> k & 1)
                store_mask_add(&h->mask, l, (enum store_kind)k);
}

static struct restore *new_restore(void)
{
    struct restore *x = xcalloc(1, sizeof *x);
    x->rr = rr;
    pthread_mutex_init(&x->fault_lock, NULL);
    return x;
}

static void free_restore(struct restore *x)
{
    pthread_mutex_destroy(&x->fault_lock);
    free(x->sources);
    free(x->takes_kv);
    free(x);
}

static int make(void **state)
{
    device = (struct device){.unified = true, .n_ranks = 1, .n_stages = 1};
    model = (struct model){.dev = &device, .dtype = DTYPE_F32};
    model.cfg.n_layers = N_LAYERS;
    model.cfg.windowed = layer_set_run(0, N_LAYERS); /* where a case sets a window */
    model.cfg.n_embd = 64;
    model.cfg.n_heads = model.cfg.n_kv_heads = 4;
    model.cfg.d_head = 16;
    rr = xcalloc(1, sizeof *rr);
    rr->o.model = &model;
    rr->o.max_tokens = N_CHUNKS * STORE_CHUNK_TOKENS;
    rr->groups = xcalloc(GROUPS, sizeof *rr->groups);
    rr->n_slots = GROUPS;
    pthread_mutex_init(&rr->lock, NULL);
    pthread_cond_init(&rr->for_io, NULL);
    clock_cond_init(&rr->for_compute);
    for (int i = 0; i < N_CHUNKS; i++) {
        hits[i] = (struct store_hit){.n_tokens = STORE_CHUNK_TOKENS};
        keep_kinds(&hits[i], 3);
    }
    r = new_restore();
    return 0;
}

static int destroy(void **state)
{
    free_restore(r);
    pthread_mutex_destroy(&rr->lock);
    pthread_cond_destroy(&rr->for_io);
    pthread_cond_destroy(&rr->for_compute);
    free(rr->groups);
    free(rr);
    return 0;
}

/* --- jobs ------------------------------------------------------------------------------------- */

static struct restore_job job_of(const char *methods, int first, int n)
{
    plan = (struct plan){.n_layers = N_LAYERS};
    memcpy(plan.method, methods, N_LAYERS);
    return (struct restore_job){
        .hits = hits, .n_chunks = n, .first_chunk = first, .plan = &plan};
}

static void set_job(const char *methods, int first, int n)
{
    free_restore(r);
    r = new_restore();
    struct restore_job job = job_of(methods, first, n);
    restore_set_job(r, &job);
}

static void assert_order(const char *want)
{
    assert_int_equal(r->n_order, strlen(want));
    for (int i = 0; i < r->n_order; i++)
        assert_int_equal(r->order[i], want[i] - '0');
}

/* The recomputed layers are a prefix. Layer 0's hidden states are embedding rows, so restoring the
 * layer from them is recomputing it. All other layers are read, in the plan's order. */
TEST_WITH(a_job_reads_all_but_the_recomputed_prefix, make, destroy)
{
    static const struct {
        const char *methods;
        int n_recompute;
        const char *order;
    } cases[] = {{"KKKK", 0, "0123"}, {"HKKK", 1, "123"}, {"HHHH", 1, "123"},
                 {"RKKK", 1, "123"},  {"RRHK", 2, "23"},  {"RRRR", 4, ""},
                 {"KHHH", 0, "0123"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set_job(cases[i].methods, 0, N_CHUNKS);
        assert_int_equal(r->n_recompute, cases[i].n_recompute);
        assert_order(cases[i].order);
        assert_int_equal(r->n_groups, 3 * r->n_order); /* 20 chunks in groups of 8 */
        assert_int_equal(r->n_asked, N_CHUNKS);
        assert_int_equal(shared_load(&r->n_good), N_CHUNKS);
        assert_int_equal(r->next_layer, 0);
        assert_int_equal(r->next_chunk, 0);
        assert_int_equal(r->re.row, 0);
        assert_true(r->t_start > 0 && r->t_start <= clock_now_ns());
        assert_string_equal(r->out.fault, "");
    }
}

/* The plan names some layers in an order of its own. Layers that it does not name come last. */
TEST_WITH(reads_come_in_the_plans_order, make, destroy)
{
    struct restore_job job = job_of("RKKK", 3, N_CHUNKS);
    plan.n_io = 2;
    plan.io_order[0] = 3;
    plan.io_order[1] = 1;
    restore_set_job(r, &job);
    assert_order("312");
    assert_int_equal(r->next_chunk, 3);
    assert_int_equal(r->re.row, 3 * 64);
    assert_int_equal(r->n_groups, 3 * 3); /* 17 chunks */
    for (int l = 1; l < N_LAYERS; l++)
        assert_int_equal(r->layer_left[l], N_CHUNKS - 3);
    assert_int_equal(r->layer_left[0], 0);
}

/* A layer with a window begins with the first chunk that the token behind the context sees. A
 * recomputed layer also gives the layer above it its input. */
TEST_WITH(windows_begin_late, make, destroy)
{
    static const struct {
        int window, window_layer;
        const char *methods;
        int first, n;
        int start[N_LAYERS];
    } cases[] = {
        /* The token behind 1,280 sees the 256 positions from 1,025 on: chunk 16. */
        {256, 0, "KKKK", 0, 20, {16, 16, 16, 16}},
        {256, 0, "KKKK", 18, 20, {18, 18, 18, 18}},
        {256, 2, "KKKK", 0, 20, {0, 0, 16, 16}},
        {257, 0, "KKKK", 0, 20, {16, 16, 16, 16}},
        {258, 0, "KKKK", 0, 20, {15, 15, 15, 15}},
        {1, 0, "KKKK", 0, 19, {19, 19, 19, 19}},
        {1280, 0, "KKKK", 0, 20, {0, 0, 0, 0}},
        {4096, 0, "KKKK", 0, 20, {0, 0, 0, 0}},
        /* Row 1,024 of layer 1's input needs the keys of layer 0 from 769 on: chunk 12. */
        {256, 0, "RRKK", 0, 20, {12, 16, 16, 16}},
        {256, 0, "RRRR", 0, 20, {4, 8, 12, 16}},
        {256, 0, "RRRR", 6, 20, {6, 8, 12, 16}},
        {256, 1, "RRRR", 0, 20, {0, 8, 12, 16}},
        {256, 3, "RRRR", 0, 20, {0, 0, 0, 16}},
        {256, 0, "RKKK", 0, 20, {16, 16, 16, 16}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model.cfg.sliding_window = cases[i].window;
        model.cfg.windowed = layer_set_run(cases[i].window_layer, N_LAYERS);
        set_job(cases[i].methods, cases[i].first, cases[i].n);
        int n_groups = 0, first_token = 0;
        for (int l = 0; l < N_LAYERS; l++) {
            int start = cases[i].start[l];
            if (r->start[l] != start)
                fail_msg("case %zu: layer %d begins at %d", i, l, r->start[l]);
            int first = start > cases[i].first ? start * 64 : 0;
            first_token = first > first_token ? first : first_token;
            if (cases[i].methods[l] == 'R')
                continue;
            assert_int_equal(r->layer_left[l], cases[i].n - start);
            n_groups += (cases[i].n - start + 7) / 8;
        }
        assert_int_equal(r->n_groups, n_groups);
        bool reads = r->n_order > 0;
        assert_int_equal(r->next_chunk, reads ? cases[i].start[r->order[0]] : 0);
        bool recomputes = cases[i].methods[0] == 'R';
        assert_int_equal(r->re.row, recomputes ? cases[i].start[0] * 64 : 0);
        struct restore_result out;
        assert_int_equal(restore_result_of(r, &out, NULL), 0);
        assert_int_equal(out.first_token, first_token);
    }
}

/* A chunk may lack the kind of record that the plan prefers. One that lies in DRAM is restored from
 * keys and values if it has them. */
TEST_WITH(a_chunk_is_restored_from_what_it_has, make, destroy)
{
    static const struct {
        unsigned kinds; /* bit 0: hidden states; bit 1: keys and values */
        bool takes_kv;
        char by_h, by_k;
    } cases[] = {{3, false, 'H', 'K'}, {1, false, 'H', 'H'}, {2, false, 'K', 'K'},
                 {3, true, 'K', 'K'},  {1, true, 'H', 'H'},  {2, true, 'K', 'K'},
                 {0, false, 0, 0},     {0, true, 0, 0}};
    set_job("KHKH", 0, N_CHUNKS);
    r->takes_kv = xcalloc(N_CHUNKS, sizeof *r->takes_kv);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        keep_kinds(&hits[5], cases[i].kinds);
        r->takes_kv[5] = cases[i].takes_kv;
        assert_int_equal(restore_method_of(r, 1, 5), cases[i].by_h);
        assert_int_equal(restore_method_of(r, 2, 5), cases[i].by_k);
    }
    keep_kinds(&hits[5], 3);
    r->takes_kv[5] = false;
    r->takes_kv[6] = true;
    assert_int_equal(restore_method_of(r, 1, 5), 'H');
    plan.method[1] = 'R';
    assert_int_equal(restore_method_of(r, 1, 5), 0);
}

/* The first chunk without a usable record, and all behind it, are left to prefill. A layer needs no
 * record of a chunk before its window. */
TEST_WITH(a_chunk_without_records_ends_the_restore, make, destroy)
{
    keep_kinds(&hits[7], 0);
    set_job("KKKK", 0, N_CHUNKS);
    assert_int_equal(shared_load(&r->n_good), 7);
    assert_string_equal(r->out.fault, "chunk 7: no record that the plan can use");
    set_job("KKKK", 7, N_CHUNKS);
    assert_int_equal(shared_load(&r->n_good), 7);
    set_job("KKKK", 8, N_CHUNKS);
    assert_int_equal(shared_load(&r->n_good), N_CHUNKS);
    set_job("KKKK", 0, 7);
    assert_int_equal(shared_load(&r->n_good), 7);
    assert_string_equal(r->out.fault, "");
    set_job("RRRR", 0, N_CHUNKS); /* nothing is read */
    assert_int_equal(shared_load(&r->n_good), N_CHUNKS);
    model.cfg.sliding_window = 256;
    set_job("KKKK", 0, N_CHUNKS);
    assert_int_equal(shared_load(&r->n_good), N_CHUNKS);
    keep_kinds(&hits[16], 0);
    set_job("KKKK", 0, N_CHUNKS);
    assert_int_equal(shared_load(&r->n_good), 16);
    model.cfg.windowed = layer_set_run(3, N_LAYERS); /* layers 0 to 2 see chunk 7 */
    set_job("KKKK", 0, N_CHUNKS);
    assert_int_equal(shared_load(&r->n_good), 7);
}

/* Only a restore with windows that has lost a chunk, but not all, begins again. */
TEST_WITH(a_restore_with_windows_begins_again, make, destroy)
{
    static const struct {
        int window, n_good;
        bool rewinds;
    } cases[] = {{256, 10, true},  {256, 3, true},  {256, 2, false},
                 {256, 20, false}, {256, 19, true}, {0, 10, false}};
    set_job("KKKK", 2, N_CHUNKS);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model.cfg.sliding_window = cases[i].window;
        shared_store(&r->n_good, cases[i].n_good);
        assert_int_equal(restore_must_rewind(r), cases[i].rewinds);
    }
}

/* --- what is left ----------------------------------------------------------------------------- */

/* Reads are left up to the last good chunk of the last layer in the order. In a race the chunks
 * that are recomputed are left out, and after a lost read all are. */
TEST_WITH(reads_remain_to_the_last_chunk_of_the_last_layer, make, destroy)
{
    set_job("KKKK", 2, N_CHUNKS);
    r->state = RESTORE_RUNNING;
    static const struct {
        int next_layer, next_chunk, n_good, n_raced, lost;
        bool remain;
    } cases[] = {
        {0, 2, 20, 0, 0, true},   {3, 19, 20, 0, 0, true},  {3, 20, 20, 0, 0, false},
        {2, 20, 20, 0, 0, true},  {3, 12, 12, 0, 0, false}, {3, 11, 12, 0, 0, true},
        {0, 2, 2, 0, 0, false},   {0, 2, 3, 0, 0, true},    {0, 2, 20, 19, 0, true},
        {0, 2, 20, 20, 0, false}, {0, 2, 20, 0, 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r->next_layer = cases[i].next_layer;
        r->next_chunk = cases[i].next_chunk;
        shared_store(&r->n_good, cases[i].n_good);
        shared_store(&r->n_raced, cases[i].n_raced);
        shared_store(&r->has_lost_reads, cases[i].lost);
        if (restore_reads_remain(r) != cases[i].remain)
            fail_msg("case %zu", i);
    }
    static const bool by_state[] = {[RESTORE_FINDING] = false,
                                    [RESTORE_FOUND] = false,
                                    [RESTORE_RUNNING] = true,
                                    [RESTORE_ABANDONED] = false};
    shared_store(&r->has_lost_reads, 0);
    shared_store(&r->n_raced, 0);
    for (int s = RESTORE_FINDING; s <= RESTORE_ABANDONED; s++) {
        r->state = (enum restore_state)s;
        assert_int_equal(restore_reads_remain(r), by_state[s]);
    }
    r->state = RESTORE_RUNNING;
    model.cfg.sliding_window = 256;
    shared_store(&r->n_good, 10); /* the restore is about to begin again */
    assert_false(restore_reads_remain(r));
}

TEST_WITH(rows_remain_up_to_the_last_good_chunk, make, destroy)
{
    hits[N_CHUNKS - 1].n_tokens = 10; /* a partial chunk */
    set_job("RRKK", 2, N_CHUNKS);
    assert_false(restore_recompute_remains(r));
    r->state = RESTORE_RUNNING;
    assert_true(restore_recompute_remains(r));
    r->re.row = 19 * 64 + 9;
    assert_true(restore_recompute_remains(r));
    r->re.row = 19 * 64 + 10;
    assert_false(restore_recompute_remains(r));
    r->re.row = 5 * 64;
    shared_store(&r->n_good, 5);
    assert_false(restore_recompute_remains(r));
    shared_store(&r->n_good, 6);
    assert_true(restore_recompute_remains(r));
    r->n_recompute = 0;
    assert_false(restore_recompute_remains(r));
}

/* New tokens may pass the layers that are complete, while no chunk is lost, raced or recomputed. */
TEST_WITH(layers_are_ready_in_their_order, make, destroy)
{
    set_job("KKKK", 0, N_CHUNKS);
    r->state = RESTORE_RUNNING;
    assert_int_equal(restore_layers_ready(r), 0);
    r->layer_left[1] = 0;
    assert_int_equal(restore_layers_ready(r), 0);
    r->layer_left[0] = 0;
    assert_int_equal(restore_layers_ready(r), 2);
    r->layer_left[3] = 0;
    assert_int_equal(restore_layers_ready(r), 2);
    r->layer_left[2] = 0;
    assert_int_equal(restore_layers_ready(r), N_LAYERS);
    shared_store(&r->n_good, N_CHUNKS - 1);
    assert_int_equal(restore_layers_ready(r), 0);
    shared_store(&r->n_good, N_CHUNKS);
    r->out.raced_layers = 1;
    assert_int_equal(restore_layers_ready(r), 0);
    r->out.raced_layers = 0;
    r->state = RESTORE_FOUND;
    assert_int_equal(restore_layers_ready(r), 0);
    r->state = RESTORE_RUNNING;
    r->n_recompute = 1;
    r->re.row = N_CHUNKS * 64 - 1;
    assert_int_equal(restore_layers_ready(r), 0);
    r->re.row = N_CHUNKS * 64;
    assert_int_equal(restore_layers_ready(r), N_LAYERS);
}

/* --- losing chunks ---------------------------------------------------------------------------- */

/* Only a chunk that is believed good can be lost, and the number of good chunks only falls. In a
 * race no chunk is lost: it is recomputed. */
TEST_WITH(a_lost_chunk_ends_what_is_good, make, destroy)
{
    set_job("KKKK", 2, N_CHUNKS);
    restore_lose_chunk(r, 9, -ENOMEM, "no memory");
    assert_int_equal(shared_load(&r->n_good), 9);
    assert_string_equal(r->out.fault, "chunk 9: no memory");
    restore_lose_chunk(r, 12, -ENOMEM, "later");
    restore_lose_chunk(r, 9, -ENOMEM, "again");
    assert_int_equal(shared_load(&r->n_good), 9);
    assert_string_equal(r->out.fault, "chunk 9: no memory");
    restore_lose_chunk(r, 8, -ENOMEM, "earlier");
    assert_int_equal(shared_load(&r->n_good), 8);
    assert_string_equal(r->out.fault, "chunk 8: earlier");
    assert_int_equal(shared_load(&r->has_lost_reads), 0);
    shared_store(&r->is_raced, 1);
    restore_lose_chunk(r, 4, -ENOMEM, "in a race");
    assert_int_equal(shared_load(&r->n_good), 8);
    assert_string_equal(r->out.fault, "chunk 8: earlier");
    assert_int_equal(shared_load(&r->has_lost_reads), 1);
}

/* A restore that gives up keeps the chunks that were there before. In a race it only gives the
 * reads up, unless its computing has failed. */
TEST_WITH(giving_up_leaves_the_chunks_before_the_job, make, destroy)
{
    set_job("KKKK", 2, N_CHUNKS);
    shared_store(&r->is_raced, 1);
    restore_give_up(r, "reading failed");
    assert_int_equal(shared_load(&r->has_lost_reads), 1);
    assert_int_equal(shared_load(&r->n_good), N_CHUNKS);
    assert_string_equal(r->out.fault, "");
    shared_store(&r->has_lost_reads, 0);
    r->rc = -EIO;
    restore_give_up(r, "computing failed");
    assert_int_equal(shared_load(&r->has_lost_reads), 0);
    assert_int_equal(shared_load(&r->n_good), 2);
    assert_string_equal(r->out.fault, "computing failed");
    set_job("KKKK", 2, N_CHUNKS);
    restore_give_up(r, "no disk");
    assert_int_equal(shared_load(&r->n_good), 2);
    assert_string_equal(r->out.fault, "no disk");
}

/* The first fault of the device is reported, with the last code. */
TEST_WITH(a_failed_restore_says_why, make, destroy)
{
    struct restore_result out;
    struct err err = {0};
    set_job("KKKK", 2, N_CHUNKS);
    restore_fail(r, -EIO, "the device is lost");
    restore_fail(r, -EIO, "another fault");
    assert_int_equal(restore_result_of(r, &out, &err), -EIO);
    assert_non_null(strstr(err.msg, "restoring: compute failed: "));
    assert_non_null(strstr(err.msg, "the device is lost"));
    assert_int_equal(out.n_chunks, 2);
    assert_string_equal(out.fault, "compute failed");
}

/* --- the result ------------------------------------------------------------------------------- */

TEST_WITH(a_bubble_is_what_the_busier_lane_leaves, make, destroy)
{
    static const struct {
        int64_t io, compute, prefill, makespan;
        double bubble;
    } cases[] = {{500, 100, 100, 1000, 0.5}, {100, 500, 250, 1000, 0.25},
                 {100, 500, 0, 1000, 0.5},   {1000, 0, 0, 1000, 0},
                 {2000, 0, 0, 1000, 0},      {0, 0, 0, 1000, 1},
                 {0, 600, 600, 1000, 0},     {400, 200, 200, 800, 0.5}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct restore_result x = {.io_ns = cases[i].io,
                                   .compute_ns = cases[i].compute,
                                   .prefill_ns = cases[i].prefill};
        assert_true(restore_bubble(&x, cases[i].makespan) == cases[i].bubble);
    }
}

/* The result has the counters of the restore, and the times of its clock. */
TEST_WITH(a_result_has_the_restores_counters, make, destroy)
{
    struct restore_result out = {.part = {{.n_tokens = 99}}};
    hits[N_CHUNKS - 1].n_tokens = 10;
    set_job("RHHK", 2, N_CHUNKS);
    r->read_bytes = 11;
    r->direct_bytes = 12;
    r->dram_bytes = 13;
    r->io_ns = 15;
    r->out.compute_ns = 16;
    r->out.wait_ns = 17;
    r->out.raced_layers = 19;
    r->out.won = true;
    for (int i = 0; i < 3; i++)
        r->rows_by_method[i] = (i + 1) * 64 + 63;
    int64_t before = clock_now_ns();
    r->t_start = before - 5 * SECOND;
    assert_int_equal(restore_result_of(r, &out, NULL), 0);
    assert_int_equal(out.read_bytes, 11);
    assert_int_equal(out.direct_bytes, 12);
    assert_int_equal(out.dram_bytes, 13);
    assert_int_equal(out.io_ns, 15);
    assert_int_equal(out.compute_ns, 16);
    assert_int_equal(out.wait_ns, 17);
    assert_int_equal(out.raced_layers, 19);
    assert_true(out.won);
    for (int i = 0; i < 3; i++)
        assert_int_equal(out.n_by_method[i], i + 1);
    assert_int_equal(out.n_chunks, N_CHUNKS);
    assert_int_equal(out.n_tokens, 19 * 64 + 10);
    assert_int_equal(out.first_token, 0);
    assert_in_range(out.total_ns, 5 * SECOND, clock_now_ns() - before + 5 * SECOND);
    assert_true(out.bubble > 0.999 && out.bubble < 1);
    shared_store(&r->n_good, 0);
    r->t_start = 0; /* not started */
    assert_int_equal(restore_result_of(r, &out, NULL), 0);
    assert_int_equal(out.n_tokens, 0);
    assert_int_equal(out.total_ns, 0);
    assert_true(out.bubble == 0);
}

/* Chunks are divided into parts by the places that their records came from. What does not fit into
 * the last part joins it. */
TEST_WITH(parts_are_runs_of_equal_places, make, destroy)
{
    enum { D = SOURCE_DRAM, S = SOURCE_STORE, B = D | S };
    static const uint8_t places[N_CHUNKS] = {9, 9, D, D, S, B, B, D, S, D,
                                             S, D, S, D, D, 0, S, D, S, S};
    struct restore_result out;
    hits[N_CHUNKS - 1].n_tokens = 10;
    set_job("KKKK", 2, N_CHUNKS);
    memcpy(r->sources, places, sizeof places);
    assert_int_equal(restore_result_of(r, &out, NULL), 0);
    assert_int_equal(out.n_parts, RESTORE_PARTS);
    static const struct restore_part want[RESTORE_PARTS] = {
        {2 * 64, true, false},
        {64, false, true},
        {2 * 64, true, true},
        {64, true, false},
        {64, false, true},
        {64, true, false},
        {64, false, true},
        /* the rest, with all places of the rest */
        {8 * 64 + 10, true, true}};
    for (int i = 0; i < RESTORE_PARTS; i++) {
        assert_int_equal(out.part[i].n_tokens, want[i].n_tokens);
        assert_int_equal(out.part[i].from_dram, want[i].from_dram);
        assert_int_equal(out.part[i].from_store, want[i].from_store);
    }
    assert_int_equal(out.dram_tokens, 8 * 64); /* chunks 2, 3, 7, 9, 11, 13, 14 and 17 */
    shared_store(&r->n_good, 4);
    assert_int_equal(restore_result_of(r, &out, NULL), 0);
    assert_int_equal(out.n_parts, 1);
    assert_int_equal(out.part[0].n_tokens, 2 * 64);
    assert_int_equal(out.dram_tokens, 2 * 64);
    memset(r->sources, 0,
           N_CHUNKS); /* the first part came from nowhere: it was recomputed */
    assert_int_equal(restore_result_of(r, &out, NULL), 0);
    assert_int_equal(out.n_parts, 1);
    assert_false(out.part[0].from_dram || out.part[0].from_store);
}

TEST_WITH(the_trace_of_each_lane_is_its_own, make, destroy)
{
    static struct restore_trace io, compute;
    int64_t t_start = 0;
    restore_trace_add(&r->io_trace, 100, 200, 3, 'K');
    restore_trace_add(&r->compute_trace, 300, 400, 2, 'H');
    r->t_start = 77;
    restore_trace_of(r, &io, &compute, &t_start);
    assert_int_equal(t_start, 77);
    assert_true(io.n == 1 && io.span[0].start_ns == 100 && io.span[0].layer == 3);
    assert_true(compute.n == 1 && compute.span[0].end_ns == 400 &&
                compute.span[0].method == 'H');
}

/* --- memory ----------------------------------------------------------------------------------- */

/* A device with memory of its own has twins of the slots, scratch, and checksums if it computes
 * them. There are three slots at least. */
TEST_WITH(device_memory_is_counted, make, destroy)
{
    size_t slot = GROUP * 64 * 512, row = 256 + 512; /* K and V are twice as large */
    enum { ROWS = 100 };
    static const struct {
        int n_slots_asked, n_slots;
    } cases[] = {
        {0, 3}, {2, 3}, {3, 3}, {4, 4}, {MAX_SLOTS, MAX_SLOTS}, {MAX_SLOTS + 1, MAX_SLOTS}};
    assert_int_equal(restore_pipeline_device_bytes(&model, ROWS, 1 << 20), 0);
    device.unified = false;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t asked = (size_t)cases[i].n_slots_asked * slot, n = (size_t)cases[i].n_slots;
        device.checksums = CHECKSUMS_HOST;
        size_t bytes = n * slot + ROWS * row;
        assert_int_equal(restore_pipeline_device_bytes(&model, ROWS, asked), bytes);
        device.checksums = CHECKSUMS_AUTO;
        bytes += n * GROUP * sizeof(uint64_t);
        assert_int_equal(restore_pipeline_device_bytes(&model, ROWS, asked), bytes);
    }
    model.cfg.n_embd = 1024; /* now hidden states are the larger ones */
    slot = GROUP * 64 * 4096;
    device.checksums = CHECKSUMS_HOST;
    assert_int_equal(restore_pipeline_device_bytes(&model, ROWS, 5 * slot),
                     5 * slot + ROWS * (4096 + 512));
}

TEST_WITH(the_pipelines_memory_is_counted, make, destroy)
{
    device.n_stages = 2;
    rr->staging.bytes = 1;
    for (int k = 0; k < 3; k++) {
        rr->twins[k].bytes = (size_t)10 << k;
        rr->scratch[k].bytes = (size_t)100 << k;
        rr->sums[k].bytes = (size_t)1000 << k;
    }
    assert_int_equal(restore_pipeline_bytes(rr), 1 + 3 * (10 + 100 + 1000));
}

TEST_WITH(only_one_rank_with_its_own_memory_checks, make, destroy)
{
    static const struct {
        bool unified;
        int n_ranks;
        enum device_checksums where;
        bool checks;
    } cases[] = {{false, 1, CHECKSUMS_AUTO, true},  {false, 1, CHECKSUMS_DEVICE, true},
                 {false, 1, CHECKSUMS_HOST, false}, {false, 2, CHECKSUMS_AUTO, false},
                 {true, 1, CHECKSUMS_AUTO, false},  {true, 1, CHECKSUMS_DEVICE, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        device.unified = cases[i].unified;
        device.n_ranks = cases[i].n_ranks;
        device.checksums = cases[i].where;
        assert_int_equal(restore_checks_on_device(&device), cases[i].checks);
        assert_int_equal(restore_sums_bytes(&device, 5),
                         cases[i].checks ? 5 * GROUP * sizeof(uint64_t) : 0);
        if (cases[i].unified) {
            bool refused = cases[i].where == CHECKSUMS_DEVICE;
            assert_int_equal(restore_up_create(rr, &err), refused ? ERR_USAGE : 0);
            assert_int_equal(strstr(err.msg, "--checksums device") != NULL, refused);
        }
    }
}

/* --- waiting ---------------------------------------------------------------------------------- */

/* A wait ends at once if there is news, and otherwise after its time. The time counts for the
 * restores that run. */
TEST_WITH(a_wait_counts_for_restores_that_run, make, destroy)
{
    struct restore *found = new_restore();
    rr->runs = r;
    r->next = found;
    r->state = RESTORE_RUNNING;
    found->state = RESTORE_FOUND;
    int64_t t0 = clock_now_ns();
    assert_false(restore_pipeline_wait(rr, 3000000));
    int64_t ns = clock_now_ns() - t0;
    assert_true(ns >= 3000000);
    assert_in_range(r->out.wait_ns, 3000000, ns);
    assert_int_equal(found->out.wait_ns, 0);
    rr->n_news++;
    assert_true(restore_pipeline_wait(rr, 3600 * SECOND));
    rr->n_seen = rr->n_news;
    assert_false(restore_pipeline_wait(rr, 1));
    rr->runs = NULL;
    free_restore(found);
}

/* --- progress and races ----------------------------------------------------------------------- */

static struct restore_reads reads_of(void)
{
    struct restore_reads x;
    restore_reads_of(r, &x);
    return x;
}

/* A read is waited for while one is in flight, or while the I/O thread has a free slot for one. The
 * wait began when the last read came, or with the restore. */
TEST_WITH(progress_says_how_long_no_read_has_come, make, destroy)
{
    set_job("KKKK", 0, N_CHUNKS);
    int64_t now = clock_now_ns();
    r->t_start = now - 10 * SECOND;
    rr->t_heard = now - 4 * SECOND;
    r->n_read = 5;
    struct restore_reads x = reads_of(); /* it has no place yet */
    assert_int_equal(x.elapsed_ns, 0);
    assert_int_equal(x.silent_ns, 0);
    r->state = RESTORE_RUNNING;
    x = reads_of();
    assert_in_range(x.elapsed_ns, 10 * SECOND, clock_now_ns() - now + 10 * SECOND);
    assert_int_equal(x.silent_ns, 0); /* no slot is free */
    assert_int_equal(x.n_read, 5);
    assert_int_equal(x.n_left, 4 * 3 - 5);
    assert_true(x.can_race && x.is_idle && !x.is_raced);
    group_put(&rr->free, &rr->groups[0]);
    x = reads_of();
    assert_in_range(x.silent_ns, 4 * SECOND, clock_now_ns() - now + 4 * SECOND);
    rr->t_heard = now - 20 * SECOND; /* before the restore began */
    x = reads_of();
    assert_in_range(x.silent_ns, 10 * SECOND, clock_now_ns() - now + 10 * SECOND);
    (void)group_get(&rr->free);
    rr->n_in_flight = 1; /* of another restore */
    x = reads_of();
    assert_in_range(x.silent_ns, 10 * SECOND, clock_now_ns() - now + 10 * SECOND);
    rr->t_heard = now - 4 * SECOND;
    x = reads_of();
    assert_in_range(x.silent_ns, 4 * SECOND, clock_now_ns() - now + 4 * SECOND);
    r->n_read = 12; /* more groups than were expected */
    assert_int_equal(reads_of().n_left, 1);
    r->next_layer = 3;
    r->next_chunk = N_CHUNKS;
    x = reads_of();
    assert_int_equal(x.n_left, 0);
    assert_int_equal(x.silent_ns, 0);
    r->n_in_flight = 1; /* the last read */
    x = reads_of();
    assert_int_equal(x.n_left, 1);
    assert_true(x.silent_ns >= 4 * SECOND);
}

/* The compute lane is idle if no group has come, none is being computed, none leaves and no row is
 * left. */
TEST_WITH(progress_says_whether_the_lane_is_idle, make, destroy)
{
    set_job("KKKK", 0, N_CHUNKS);
    r->state = RESTORE_RUNNING;
    assert_true(reads_of().is_idle);
    group_put(&rr->ready, &rr->groups[0]);
    assert_false(reads_of().is_idle);
    (void)group_get(&rr->ready);
    rr->n_mine = 1;
    assert_false(reads_of().is_idle);
    rr->n_mine = 0;
    rr->n_leaving = 1;
    assert_false(reads_of().is_idle);
    rr->n_leaving = 0;
    r->n_recompute = 1;
    assert_false(reads_of().is_idle);
    r->n_recompute = 0;
    r->out.raced_layers = 2;
    assert_true(reads_of().is_raced);
    model.cfg.sliding_window = 256;
    assert_false(reads_of().can_race);
}

/* A race makes all layers up to the last missing one a recomputed prefix. */
TEST_WITH(a_race_takes_the_layers_up_to_the_last_missing_one, make, destroy)
{
    set_job("RKKK", 2, N_CHUNKS);
    r->layer_left[3] = 0;
    r->re.row = N_CHUNKS * 64;
    assert_false(restore_race(r)); /* it is not running */
    r->state = RESTORE_RUNNING;
    r->is_stopped = true;
    assert_false(restore_race(r));
    r->is_stopped = false;
    model.cfg.sliding_window = 256;
    assert_false(restore_race(r));
    model.cfg.sliding_window = 0;
    shared_store(&r->n_good, 2);
    assert_false(restore_race(r));
    shared_store(&r->n_good, N_CHUNKS);
    r->re.row = 64;
    assert_false(restore_race(r)); /* the plan's own recomputation has not ended */
    r->re.row = N_CHUNKS * 64;
    assert_int_equal(r->out.raced_layers, 0);
    assert_true(restore_race(r));
    assert_int_equal(r->out.raced_layers, 3);
    assert_int_equal(r->n_recompute, 3);
    assert_int_equal(r->re.row, 2 * 64);
    assert_int_equal(shared_load(&r->n_raced), 2);
    assert_int_equal(shared_load(&r->is_raced), 1);
    assert_false(restore_race(r));
    set_job("KKKK", 0, N_CHUNKS);
    r->state = RESTORE_RUNNING;
    memset(r->layer_left, 0, sizeof r->layer_left);
    assert_false(restore_race(r)); /* no layer is missing */
    r->layer_left[0] = 1;
    assert_true(restore_race(r));
    assert_int_equal(r->out.raced_layers, 1);
}

/* The chunks before a race's next row are complete. A record that the device checks must not reach
 * the rows of the present piece. */
TEST_WITH(a_races_rows_are_kept_from_late_records, make, destroy)
{
    set_job("KKKK", 2, N_CHUNKS);
    r->re.row = 5 * 64;
    restore_race_pieces_end(r, N_CHUNKS * 64); /* there is no race */
    assert_int_equal(shared_load(&r->n_raced), 0);
    assert_int_equal(restore_race_row(r), 0);
    r->out.raced_layers = 4;
    r->re.row = 5 * 64 + 63;
    restore_race_pieces_end(r, N_CHUNKS * 64);
    assert_int_equal(shared_load(&r->n_raced), 5);
    r->re.row = 19 * 64 + 10;
    restore_race_pieces_end(r, 19 * 64 + 10); /* all tokens: the last chunk is partial */
    assert_int_equal(shared_load(&r->n_raced), N_CHUNKS);
    assert_int_equal(restore_race_row(r), 19 * 64 + 10);
    rr->pass.o.n_rows = 100;
    rr->recomputing = r;
    assert_int_equal(restore_race_row(r), 19 * 64 + 10); /* the host checks */
    rr->check = (struct stream *)(void *)rr;
    assert_int_equal(restore_race_row(r), 19 * 64 + 110);
    rr->recomputing = NULL;
    assert_int_equal(restore_race_row(r), 19 * 64 + 10);
    rr->check = NULL;
}

/* A restore that is stopped keeps what a race has recomputed, or the chunks before the job. */
TEST_WITH(a_stopped_restore_keeps_what_is_recomputed, make, destroy)
{
    static const struct {
        int n_raced, n_good, want;
    } cases[] = {{0, 20, 2}, {7, 20, 7}, {20, 20, 20}, {7, 5, 5}, {1, 20, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set_job("KKKK", 2, N_CHUNKS);
        restore_stop(r, "not running");
        assert_false(r->is_stopped);
        assert_false(restore_is_done(r));
        r->state = RESTORE_RUNNING;
        shared_store(&r->n_raced, cases[i].n_raced);
        shared_store(&r->n_good, cases[i].n_good);
        restore_stop(r, "the disk hangs");
        restore_stop(r, "a second time");
        assert_true(r->is_stopped);
        assert_true(restore_is_done(r));
        assert_int_equal(shared_load(&r->n_good), cases[i].want);
        assert_string_equal(r->out.fault, "the disk hangs");
    }
}

/* A restore is done when no group is out, no read is left and no row must be recomputed. A race is
 * over when either lane has brought the last row. */
TEST_WITH(a_restore_is_done_when_nothing_is_left, make, destroy)
{
    set_job("KKKK", 0, N_CHUNKS);
    r->next_layer = 3;
    r->next_chunk = N_CHUNKS;
    assert_false(restore_is_done(r)); /* it has no place */
    r->state = RESTORE_RUNNING;
    assert_true(restore_is_done(r));
    r->n_out = 1;
    assert_false(restore_is_done(r));
    r->n_out = 0;
    r->next_chunk = N_CHUNKS - 1;
    assert_false(restore_is_done(r));
    r->next_chunk = N_CHUNKS;
    r->n_recompute = 1;
    assert_false(restore_is_done(r));
    r->re.row = N_CHUNKS * 64;
    assert_true(restore_is_done(r));
    assert_false(r->out.won);
    /* a race */
    r->out.raced_layers = 4;
    r->n_out = 1;
    assert_true(restore_is_done(r));
    assert_true(r->out.won);
    r->re.row = 64;
    assert_false(restore_is_done(r));
    r->n_out = 0;
    assert_true(restore_is_done(r)); /* the reads have won */
    assert_false(r->out.won);
    r->re.kept_out = 65; /* arrived records before this row were not used */
    assert_false(restore_is_done(r));
    r->re.kept_out = 64;
    assert_true(restore_is_done(r));
    shared_store(&r->has_lost_reads, 1);
    assert_false(restore_is_done(r));
}

/* A restore with windows that has lost a chunk begins again, with the windows of the chunks that
 * are left. */
TEST_WITH(a_lost_chunk_moves_the_windows, make, destroy)
{
    model.cfg.sliding_window = 256;
    set_job("KKKK", 0, N_CHUNKS);
    rr->runs = r;
    r->state = RESTORE_RUNNING;
    r->next_layer = 3;
    r->next_chunk = N_CHUNKS;
    memset(r->layer_left, 0, sizeof r->layer_left);
    restore_lose_chunk(r, 18, -ENOMEM, "no memory");
    uint64_t n_news = rr->n_io_news;
    assert_false(restore_is_done(r));
    assert_true(rr->n_io_news > n_news);
    assert_int_equal(r->job.n_chunks, 18);
    assert_int_equal(r->n_asked, N_CHUNKS);
    assert_int_equal(r->next_layer, 0);
    assert_int_equal(r->next_chunk, 14);
    for (int l = 0; l < N_LAYERS; l++) {
        assert_int_equal(r->start[l], 14);
        assert_int_equal(r->layer_left[l], 4);
    }
    rr->runs = NULL;
}

/* --- direct reads ----------------------------------------------------------------------------- */

/* Where the host checks, direct reads are left out, or refused if they were asked for. */
TEST_WITH(direct_reads_need_a_device_that_checks, make, destroy)
{
    struct err err = {0};
    assert_int_equal(restore_direct_open(rr, &err), 0);
    rr->o.direct = RESTORE_DIRECT_OFF;
    assert_int_equal(restore_direct_open(rr, &err), 0);
    assert_false(rr->is_direct);
    rr->o.direct = RESTORE_DIRECT_ON;
    assert_int_equal(restore_direct_open(rr, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "gpu-direct on: direct reads need one device"));
    assert_false(rr->is_direct);
}
