/* test_restore_steps.c - the I/O thread of a restore pipeline, one step at a time: what a look-up
 * finds and says, which group is read next, and where a group goes that has come back.
 *
 * The test calls the steps itself. The store is in memory, so a read is complete at the next
 * step. */
#include "tests/unit.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "store/remote/remote_impl.h"
#include "restore/restore_impl.h"
#include "tensor/device.h"
#include "tests/store/storetest.h"

enum { N = 10, N_LAYERS = 3, N_SLOTS = 6, N_TOKENS = N * 64 + 40 };
enum { H_BYTES = 5000, KV_BYTES = 9001, H_ROOM = 8192, KV_ROOM = 12288 };

static const struct st_ctx context = {.base = 5, .own = 6};
static struct device device;
static struct model model;
static struct restore_pipeline *rr;
static struct store *store;
static struct st_place place;
static struct sha256 root, keys[N];
static int32_t tokens[N_TOKENS];
static struct plan plan;

static int make(void **state)
{
    struct sha256 fingerprint = st_fingerprint(0);
    store = st_begin(&place, "dram", 1);
    st_keys(&context, N, keys);
    root = store_root_key(&fingerprint, NULL);
    for (int i = 0; i < N; i++)
        st_tokens(&context, i, tokens + i * 64);
    for (int i = N * 64; i < N_TOKENS; i++)
        tokens[i] = i;
    device = (struct device){.unified = true, .n_ranks = 1, .n_stages = 1};
    model = (struct model){.dev = &device};
    model.cfg.n_layers = N_LAYERS;
    rr = xcalloc(1, sizeof *rr);
    rr->o.store = store;
    rr->o.model = &model;
    rr->o.max_tokens = N_TOKENS;
    rr->n_slots = N_SLOTS;
    rr->slot_bytes = GROUP * KV_ROOM;
    rr->record_room[STORE_HIDDEN] = H_ROOM;
    rr->record_room[STORE_KV] = KV_ROOM;
    rr->staging.bytes = N_SLOTS * rr->slot_bytes;
    rr->staging.ptr = mem_map(rr->staging.bytes);
    rr->groups = xcalloc(N_SLOTS, sizeof *rr->groups);
    for (int i = 0; i < N_SLOTS; i++) {
        rr->groups[i].slot = (uint8_t *)rr->staging.ptr + (size_t)i * rr->slot_bytes;
        group_put(&rr->free, &rr->groups[i]);
    }
    pthread_mutex_init(&rr->lock, NULL);
    clock_cond_init(&rr->for_io);
    clock_cond_init(&rr->for_compute);
    assert_int_equal(io_alarm_init(&rr->alarm, NULL), 0);
    return 0;
}

static int destroy(void **state)
{
    assert_null(rr->runs);
    store_reader_close(rr->reader);
    io_alarm_deinit(&rr->alarm);
    pthread_mutex_destroy(&rr->lock);
    pthread_cond_destroy(&rr->for_io);
    pthread_cond_destroy(&rr->for_compute);
    mem_unmap(rr->staging.ptr, rr->staging.bytes);
    free(rr->groups);
    free(rr);
    store_close(store);
    st_place_close(&place);
    return 0;
}

static struct restore_want want_of(int n_tokens)
{
    return (struct restore_want){
        .root = &root, .keys = keys, .tokens = tokens, .n_tokens = n_tokens};
}

/* --- look-ups --------------------------------------------------------------------------------- */

static struct restore *find(const struct restore_want *want)
{
    struct restore *r = restore_find(rr, want);
    assert_null(restore_found(r));
    uint64_t n_news = rr->n_news;
    assert_int_equal(restore_io_step(rr), STEP_WORKED);
    assert_non_null(restore_found(r));
    assert_int_equal(rr->n_news, n_news + 1);
    assert_int_equal(rr->n_io_seen, rr->n_io_news);
    assert_int_equal(r->n_in_flight, 0);
    return r;
}

/* Stores the beginning of a chunk behind the first n chunks. */
static void save_partial(int n, int n_tokens)
{
    uint8_t bytes[700] = {1};
    struct store_record record = {.kind = STORE_KV, .bytes = bytes, .n_bytes = 700};
    struct store_chunk part = {.fingerprint = st_fingerprint(0),
                               .parent = n > 0 ? keys[n - 1] : root,
                               .chunk_idx = (uint32_t)n,
                               .n_tokens = n_tokens,
                               .records = &record,
                               .n_records = 1};
    memcpy(part.tokens, tokens + n * 64, (size_t)n_tokens * sizeof tokens[0]);
    part.key = store_partial_key(&part.parent, part.tokens, n_tokens);
    assert_int_equal(store_append(store, &part, NULL), 0);
    assert_int_equal(store_commit(store, NULL), 0);
}

/* A look-up finds the full chunks that are stored, and says where the context leaves them. */
TEST_WITH(a_look_up_finds_the_longest_chain, make, destroy)
{
    st_must_save(store, &context, 7);
    static const struct {
        int n_tokens, differs; /* differs: index of a changed token, or -1 */
        int n_hits, differs_at;
        const char *why;
    } cases[] = {
        {N_TOKENS, -1, 7, -1, "not stored"},   {7 * 64, -1, 7, -1, "complete"},
        {7 * 64 - 1, -1, 6, -1, "complete"},   {64, -1, 1, -1, "complete"},
        {63, -1, 0, -1, "complete"},           {1, -1, 0, -1, "complete"},
        {N_TOKENS, 300, 4, 300, "not stored"}, {N_TOKENS, 256, 4, 256, "not stored"},
        {N_TOKENS, 0, 0, 0, "not stored"},     {300, 290, 4, -1, "complete"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sha256 changed[N], parent = root;
        int c = cases[i].differs;
        if (c >= 0)
            tokens[c]++;
        for (int k = 0; k < N; k++)
            parent = changed[k] = store_chunk_key(&parent, tokens + k * 64);
        struct restore_want want = want_of(cases[i].n_tokens);
        want.keys = changed;
        struct restore *r = find(&want);
        const struct restore_found *f = restore_found(r);
        if (f->n_hits != cases[i].n_hits)
            fail_msg("case %zu: %d hits", i, f->n_hits);
        assert_int_equal(f->differs_at, cases[i].differs_at);
        assert_ptr_equal(strstr(f->why, cases[i].why), f->why);
        assert_int_equal(f->err.code, 0);
        assert_int_equal(f->n_remote, 0);
        assert_false(f->measured);
        for (int k = 0; k < f->n_hits; k++)
            assert_memory_equal(f->hits[k].key.b, keys[k].b, sizeof keys[k].b);
        restore_end(r);
        if (c >= 0)
            tokens[c]--;
    }
}

/* Behind the full chunks a look-up takes the longest stored beginning of the next chunk. */
TEST_WITH(a_look_up_takes_a_partial_chunk, make, destroy)
{
    st_must_save(store, &context, 3);
    save_partial(3, 20);
    static const int cases[][2] = {/* tokens, tokens of the hit behind the full chunks */
                                   {3 * 64 + 20, 20}, {3 * 64 + 63, 20}, {3 * 64 + 64, 20},
                                   {N_TOKENS, 20},    {3 * 64 + 19, 0},  {3 * 64, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct restore_want want = want_of(cases[i][0]);
        struct restore *r = find(&want);
        const struct restore_found *f = restore_found(r);
        assert_int_equal(f->n_hits, 3 + (cases[i][1] > 0));
        if (cases[i][1] > 0)
            assert_int_equal(f->hits[3].n_tokens, cases[i][1]);
        restore_end(r);
    }
    /* the moved chunks of a truncated context do not follow one another */
    struct restore_want want = want_of(3 * 64 + 20);
    for (want.n_moved = 2; want.n_moved <= 4; want.n_moved++) {
        want.stair = want.n_moved == 3 ? keys[2] : root;
        struct restore *r = find(&want);
        assert_int_equal(restore_found(r)->n_hits, want.n_moved == 4 ? 3 : 4);
        assert_int_equal(restore_found(r)->differs_at, -1);
        restore_end(r);
    }
    want.n_moved = 3;
    want.stair = root; /* the chunk behind the moved ones has another parent */
    struct restore *r = find(&want);
    assert_int_equal(restore_found(r)->n_hits, 3);
    restore_end(r);
}

/* The partial chunk may lack one token only. */
TEST_WITH(a_partial_chunk_may_be_nearly_full, make, destroy)
{
    st_must_save(store, &context, 3);
    save_partial(3, 63);
    struct restore_want want = want_of(N_TOKENS);
    struct restore *r = find(&want);
    assert_int_equal(restore_found(r)->n_hits, 4);
    assert_int_equal(restore_found(r)->hits[3].n_tokens, 63);
    restore_end(r);
}

/* A known speed is reported to look-ups that asked for it, and not measured again. While the speed
 * is unknown, a tail alone is not taken, because it does not measure the store. */
TEST_WITH(a_known_speed_is_not_measured, make, destroy)
{
    save_partial(0, 20);
    struct restore_want want = want_of(N_TOKENS);
    for (int i = 0; i < 4; i++) {
        want.measure_io = i % 2 == 1;
        rr->has_tier = i >= 2;
        rr->tier.bytes_per_s = i;
        struct restore *r = find(&want);
        const struct restore_found *f = restore_found(r);
        assert_int_equal(f->n_hits, i != 1);
        assert_int_equal(f->measured, i == 3);
        restore_end(r);
    }
    st_must_save(store, &context, 3);
    struct restore *r = find(&want);
    assert_int_equal(restore_found(r)->n_hits, 3);
    assert_true(restore_found(r)->measured && restore_found(r)->tier.bytes_per_s == 3);
    restore_end(r);
}

/* The caller's keys and tokens may be gone before the look-up. */
TEST_WITH(a_look_up_has_its_own_keys_and_tokens, make, destroy)
{
    enum { n_tokens = 3 * 64 + 20 };
    st_must_save(store, &context, 3);
    save_partial(3, 20);
    struct sha256 *some_keys = xcalloc(3, sizeof *some_keys), some_root = root;
    int32_t *some_tokens = xcalloc(n_tokens, sizeof *some_tokens);
    memcpy(some_keys, keys, 3 * sizeof keys[0]);
    memcpy(some_tokens, tokens, n_tokens * sizeof tokens[0]);
    struct restore_want want = {
        .root = &some_root, .keys = some_keys, .tokens = some_tokens, .n_tokens = n_tokens};
    struct restore *r = restore_find(rr, &want);
    memset(&some_root, 1, sizeof some_root);
    memset(some_keys, 1, 3 * sizeof *some_keys);
    memset(some_tokens, 1, n_tokens * sizeof *some_tokens);
    assert_int_equal(restore_io_step(rr), STEP_WORKED);
    assert_int_equal(restore_found(r)->n_hits, 4);
    restore_end(r);
    free(some_keys);
    free(some_tokens);
}

/* Before a server knows what others have erased, it uses no saved state. */
TEST_WITH(nothing_is_used_before_the_erasures_are_known, make, destroy)
{
    struct remote *remote = xcalloc(1, sizeof *remote);
    pthread_mutex_init(&remote->lock, NULL);
    st_must_save(store, &context, 3);
    rr->o.remote = remote;
    for (int is_current = 0; is_current < 2; is_current++) {
        remote->is_current = is_current;
        struct restore_want want = want_of(3 * 64);
        struct restore *r = find(&want);
        const struct restore_found *f = restore_found(r);
        assert_int_equal(f->err.code, is_current ? 0 : ERR_BUSY);
        assert_int_equal(f->n_hits, is_current ? 3 : 0);
        assert_int_equal(f->differs_at, -1);
        assert_int_equal(strstr(f->err.msg, "saved state is not used yet") != NULL,
                         !is_current);
        restore_end(r);
    }
    rr->o.remote = NULL;
    pthread_mutex_destroy(&remote->lock);
    free(remote);
}

/* While the remote fetches for one look-up, the next one is served. */
TEST_WITH(other_look_ups_go_on_during_a_fetch, make, destroy)
{
    struct remote *remote = xcalloc(1, sizeof *remote);
    pthread_mutex_init(&remote->lock, NULL);
    clock_cond_init(&remote->for_reader);
    remote->is_current = remote->may_fetch = remote->stats.is_up = true;
    remote->o.when = REMOTE_WHEN_USED;
    clock_cond_init(&remote->for_writer);
    remote->offers = xcalloc(MAX_OFFERS, sizeof *remote->offers);
    st_must_save(store, &context, 3);
    rr->o.remote = remote;
    struct restore_want want = want_of(5 * 64);
    struct restore *r = restore_find(rr, &want);
    assert_int_equal(restore_io_step(rr), STEP_WORKED);
    assert_null(restore_found(r)); /* it waits */
    assert_true(r->is_fetching);
    assert_int_equal(remote->n_offers, 3); /* the chunks that it has found are used */
    assert_int_equal(restore_io_step(rr), STEP_WAITS);
    struct restore_want other = want_of(2 * 64);
    struct restore *second = find(&other);
    assert_int_equal(restore_found(second)->n_hits, 2);
    st_must_save(store, &context, 5);
    struct remote_fetch *f = remote->fetches;
    remote->fetches = NULL;
    f->out.n_chunks = 2;
    f->want.done(f->want.arg);
    assert_int_equal(restore_io_step(rr), STEP_WORKED);
    assert_non_null(restore_found(r));
    assert_int_equal(restore_found(r)->n_hits, 5);
    assert_int_equal(restore_found(r)->n_remote, 2);
    assert_int_equal(remote->n_offers, 3 + 2);
    restore_end(second);
    restore_end(r);
    rr->o.remote = NULL;
    pthread_mutex_destroy(&remote->lock);
    pthread_cond_destroy(&remote->for_reader);
    pthread_cond_destroy(&remote->for_writer);
    free(remote->offers);
    free(remote);
}

/* --- groups ----------------------------------------------------------------------------------- */

static struct restore_job job_of(const char *methods, int first, int n)
{
    plan = (struct plan){.n_layers = N_LAYERS};
    memcpy(plan.method, methods, N_LAYERS);
    return (struct restore_job){.n_chunks = n, .first_chunk = first, .plan = &plan};
}

static struct restore *start(const char *methods, int first, int n, const bool *takes_kv)
{
    struct restore_want want = want_of(N * 64);
    struct restore *r = find(&want);
    assert_int_equal(restore_found(r)->n_hits, N);
    struct restore_job job = job_of(methods, first, n);
    job.takes_kv = takes_kv;
    restore_start(r, &job);
    return r;
}

/* Steps until the next group has come back, and checks it. Frees its slot. */
static void next_is(struct restore *r, int layer, int first, int n, enum store_kind kind)
{
    while (rr->ready.first == NULL)
        if (restore_io_step(rr) != STEP_WORKED)
            fail_msg("no group comes");
    struct group *g = group_get(&rr->ready);
    assert_ptr_equal(g->run, r);
    assert_int_equal(g->layer, layer);
    assert_int_equal(g->first_chunk, first);
    assert_int_equal(g->n_chunks, n);
    assert_int_equal(g->kind, kind);
    assert_int_equal(g->n_left + g->n_taken + g->n_projected, 0);
    assert_false(g->is_direct);
    for (int i = 0; i < n; i++) {
        const struct store_read *read = &g->reads[i];
        uint8_t want[16];
        assert_int_equal(read->status, 0);
        assert_ptr_equal(read->hit, &r->job.hits[first + i]);
        assert_ptr_equal(read->dst, g->slot + (size_t)i * rr->record_room[kind]);
        assert_int_equal(read->dst_bytes, rr->record_room[kind]);
        assert_int_equal(read->n_bytes, kind == STORE_HIDDEN ? H_BYTES : KV_BYTES);
        st_fill(&keys[first + i], layer, kind, want, sizeof want);
        assert_memory_equal(read->bytes, want, sizeof want);
        assert_true(r->sources[first + i] & SOURCE_STORE);
    }
    pthread_mutex_lock(&rr->lock);
    restore_group_done(rr, g);
    pthread_mutex_unlock(&rr->lock);
}

static void end(struct restore *r)
{
    assert_int_equal(rr->n_in_flight, 0);
    assert_int_equal(r->n_in_flight, 0);
    assert_int_equal(r->n_out, 0);
    assert_int_equal(restore_io_step(rr), STEP_WAITS);
    restore_end(r);
}

/* Layers are read in the plan's order, eight chunks at a time. */
TEST_WITH(groups_come_in_their_order, make, destroy)
{
    st_must_save(store, &context, N);
    struct restore *r = start("KHK", 1, N, NULL);
    next_is(r, 0, 1, 8, STORE_KV);
    next_is(r, 0, 9, 1, STORE_KV);
    next_is(r, 1, 1, 8, STORE_HIDDEN);
    next_is(r, 1, 9, 1, STORE_HIDDEN);
    next_is(r, 2, 1, 8, STORE_KV);
    next_is(r, 2, 9, 1, STORE_KV);
    assert_int_equal(r->n_read, 6);
    assert_int_equal(r->read_bytes, 9 * (2 * KV_BYTES + H_BYTES));
    assert_int_equal(r->dram_bytes, 0);
    assert_int_equal(r->direct_bytes, 0);
    assert_int_equal(r->sources[0], 0);
    assert_true(r->io_ns >= 0 && rr->t_heard >= r->t_start);
    assert_int_equal(r->io_trace.n > 0, r->io_ns > 0);
    end(r);
}

/* Staging memory that no restore uses is given back, and the next restore has it again. */
TEST_WITH(staging_memory_rests, make, destroy)
{
    uint8_t *staging = rr->staging.ptr;
    st_must_save(store, &context, N);
    for (int i = 0; i < 3; i++) {
        struct restore *r = start("KKK", 0, N, NULL);
        for (int layer = 0; layer < N_LAYERS; layer++) {
            next_is(r, layer, 0, 8, STORE_KV);
            next_is(r, layer, 8, N - 8, STORE_KV);
        }
        rr->o.rest_ns = 1000000;
        staging[0] = 1;
        end(r);
        assert_int_equal(restore_io_step(rr), STEP_WAITS);
        restore_io_wait(rr);
        assert_null(rr->reader);
        assert_int_equal(staging[0], 0);
    }
}

/* Each slot is in use once, and no group is taken while none is free. */
TEST_WITH(groups_in_flight_are_bounded_by_the_slots, make, destroy)
{
    st_must_save(store, &context, N);
    struct restore *r = start("KKK", 0, N, NULL);
    struct group *kept[4];
    for (int i = 0; i < 4; i++)
        kept[i] = group_get(&rr->free);
    for (int i = 1; i <= 2; i++) {
        int64_t t0 = clock_now_ns();
        assert_int_equal(restore_io_step(rr), STEP_WORKED);
        assert_int_equal(rr->n_in_flight, i);
        assert_int_equal(r->n_in_flight, i);
        assert_int_equal(r->n_out, i);
        if (i == 1) /* the wait for reads begins */
            assert_true(rr->t_heard >= t0 && r->io_since >= t0);
    }
    assert_null(rr->free.first);
    while (rr->n_in_flight > 0)
        assert_int_equal(restore_io_step(rr), STEP_WORKED);
    assert_int_equal(r->n_out, 2);
    assert_int_equal(restore_io_step(rr), STEP_WAITS); /* the compute lane has both slots */
    for (int i = 0; i < 4; i++)
        group_put(&rr->free, kept[i]);
    next_is(r, 0, 0, 8, STORE_KV);
    next_is(r, 0, 8, 2, STORE_KV);
    restore_stop(r, "enough");
    while (restore_io_step(rr) == STEP_WORKED) {
    }
    for (struct group *g; (g = group_get(&rr->ready)) != NULL;)
        restore_group_done(rr, g);
    end(r);
}

/* A run ends where the kind of record changes. */
TEST_WITH(a_group_has_one_kind, make, destroy)
{
    static const bool takes_kv[N] = {false, false, true, true, true, false, true};
    st_must_save(store, &context, N);
    struct restore *r = start("KHK", 0, N, takes_kv);
    next_is(r, 0, 0, 8, STORE_KV);
    next_is(r, 0, 8, 2, STORE_KV);
    next_is(r, 1, 0, 2, STORE_HIDDEN);
    next_is(r, 1, 2, 3, STORE_KV);
    next_is(r, 1, 5, 1, STORE_HIDDEN);
    next_is(r, 1, 6, 1, STORE_KV);
    next_is(r, 1, 7, 3, STORE_HIDDEN);
    next_is(r, 2, 0, 8, STORE_KV);
    next_is(r, 2, 8, 2, STORE_KV);
    end(r);
}

/* Chunks behind a lost one are not read, and chunks that a race has recomputed neither. */
TEST_WITH(reads_stay_within_the_good_chunks, make, destroy)
{
    st_must_save(store, &context, N);
    struct restore *r = start("KKK", 0, N, NULL);
    next_is(r, 0, 0, 8, STORE_KV);
    while (restore_io_step(rr) == STEP_WORKED && rr->n_in_flight > 0) {
    }
    shared_store(&r->n_good, 6);
    for (struct group *g; (g = group_get(&rr->ready)) != NULL;)
        restore_group_done(rr, g);
    r->next_layer = 0;
    r->next_chunk = 8;
    next_is(r, 1, 0, 6, STORE_KV);
    shared_store(&r->n_raced, 4);
    for (struct group *g; (g = group_get(&rr->ready)) != NULL;)
        restore_group_done(rr, g);
    r->next_layer = 1;
    r->next_chunk = 6;
    next_is(r, 2, 4, 2, STORE_KV);
    end(r);
}

static int mark_is_reached(struct event *e)
{
    return 0;
}

/* The device computes the checksums of a group. A read that failed brought it no bytes, so in a
 * race, which loses no chunk, this read's chunk is not condemned. A read whose checksum differs is
 * damage. */
TEST_WITH(a_failed_read_in_a_race_condemns_no_chunk, make, destroy)
{
    static const struct device_vtable calls = {.event_sync = mark_is_reached};
    struct event reached = {.device = &device};
    uint64_t sums[N_SLOTS * GROUP];
    device.v = &calls;
    st_must_save(store, &context, N);
    struct restore *r = start("KKK", 0, N, NULL);
    while (rr->ready.first == NULL)
        assert_int_equal(restore_io_step(rr), STEP_WORKED);
    struct group *g = group_get(&rr->ready);
    uint64_t *own = sums + (g - rr->groups) * GROUP;
    for (int i = 0; i < g->n_chunks; i++)
        own[i] = g->reads[i].checksum;
    shared_store(&r->is_raced, 1);
    rr->sums_host.ptr = sums;
    rr->check = (struct stream *)(void *)rr;
    g->is_checked = g->is_done = &reached;
    g->reads[5].status = -ETIMEDOUT;
    own[5]++;
    own[7]++;
    group_put(&rr->leaving, g);
    rr->n_leaving = 1;
    restore_settle(rr, 0);
    assert_int_equal(store_count(store, keys, N), 7);
    assert_int_equal(shared_load(&r->n_good), N);
    rr->check = NULL;
    while (rr->n_in_flight > 0)
        assert_int_equal(restore_io_step(rr), STEP_WORKED);
    for (; (g = group_get(&rr->ready)) != NULL;)
        restore_group_done(rr, g);
    end(r);
}

/* A restore that ends during its reads is freed when the last one has come. */
TEST_WITH(the_last_read_frees_an_abandoned_restore, make, destroy)
{
    st_must_save(store, &context, N);
    for (int n = 1; n <= 3; n++) {
        struct restore *r = start("KKK", 0, N, NULL);
        for (int i = 0; i < n; i++)
            assert_int_equal(restore_io_step(rr), STEP_WORKED);
        assert_int_equal(r->n_in_flight, n);
        restore_end(r);
        assert_null(rr->runs);
        rr->quit = n == 3; /* the thread waits for its reads */
        while (rr->n_in_flight > 0)
            assert_int_equal(restore_io_step(rr), STEP_WORKED);
        assert_null(rr->ready.first);
        int n_free = 0;
        for (const struct group *g = rr->free.first; g != NULL; g = g->next)
            n_free++;
        assert_int_equal(n_free, N_SLOTS);
    }
    assert_int_equal(restore_io_step(rr), STEP_ENDED);
}

/* Measuring ahead holds no chunk back from an erasure. */
TEST_WITH(a_measurement_releases_its_chunks, make, destroy)
{
    struct store_erased gone = {0};
    st_must_save(store, &context, N);
    rr->o.fingerprint = st_fingerprint(0);
    rr->has_tier = true; /* the speed is known, so nothing is read */
    restore_pipeline_measure(rr);
    assert_true(rr->wants_measure);
    assert_int_equal(restore_io_step(rr), STEP_WORKED);
    assert_false(rr->wants_measure);
    assert_int_equal(restore_io_step(rr), STEP_WAITS);
    assert_int_equal(store_erase(store, keys, N, &gone, NULL), 0);
    assert_int_equal(gone.n_chunks, N);
    assert_int_equal(gone.n_busy, 0);
}

/* A restore holds its chunks until it ends. */
TEST_WITH(a_restore_releases_its_chunks_at_its_end, make, destroy)
{
    struct store_erased gone = {0};
    st_must_save(store, &context, N);
    struct restore *r = start("KKK", 0, N, NULL);
    assert_int_equal(store_erase(store, keys, N, &gone, NULL), 0);
    assert_int_equal(gone.n_busy, N);
    restore_end(r);
    st_must_save(store, &context, N);
    assert_int_equal(store_erase(store, keys, N, &gone, NULL), 0);
    assert_int_equal(gone.n_chunks, N);
    assert_int_equal(gone.n_busy, 0);
}
