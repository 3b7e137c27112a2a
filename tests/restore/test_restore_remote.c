/* test_restore_remote.c - what a look-up asks the remote for, at which price, and what it does with
 * the answer.
 *
 * The remote has no threads: the test reads the fetches that were begun, and ends them itself. The
 * store is real and in memory. */
#include "tests/unit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "store/remote/remote_impl.h"
#include "restore/restore_impl.h"
#include "tests/store/storetest.h"

enum { N = 10 };

static const struct st_ctx context = {.base = 5, .own = 6};
static struct remote *remote;
static struct restore_pipeline *rr;
static struct restore *r;
static struct store *store;
static struct st_place place;
static struct sha256 keys[N + 1]; /* the root, then the keys */
static struct store_hit hits[N + 1];

static struct restore *new_restore(void)
{
    struct restore *x = xcalloc(1, sizeof *x);
    x->rr = rr;
    pthread_mutex_init(&x->fault_lock, NULL);
    x->keys = keys;
    x->n_keys = N;
    x->hits = hits;
    return x;
}

static int make(void **state)
{
    store = st_begin(&place, "dram", 1);
    st_keys(&context, N, keys + 1);
    memset(hits, 0, sizeof hits);
    remote = xcalloc(1, sizeof *remote);
    pthread_mutex_init(&remote->lock, NULL);
    clock_cond_init(&remote->for_reader);
    clock_cond_init(&remote->for_writer);
    remote->offers = xcalloc(MAX_OFFERS, sizeof *remote->offers);
    remote->stats.is_up = true;
    remote->may_fetch = true;
    rr = xcalloc(1, sizeof *rr);
    rr->o.store = store;
    rr->o.remote = remote;
    pthread_mutex_init(&rr->lock, NULL);
    clock_cond_init(&rr->for_io);
    r = new_restore();
    return 0;
}

static int destroy(void **state)
{
    pthread_mutex_destroy(&r->fault_lock);
    free(r);
    pthread_mutex_destroy(&rr->lock);
    pthread_cond_destroy(&rr->for_io);
    free(rr);
    pthread_mutex_destroy(&remote->lock);
    pthread_cond_destroy(&remote->for_reader);
    pthread_cond_destroy(&remote->for_writer);
    free(remote->offers);
    free(remote);
    store_close(store);
    st_place_close(&place);
    return 0;
}

/* Ends the fetch that was begun, as the remote's reader does. */
static void end_fetch(int n_chunks, enum remote_miss why, const char *text)
{
    struct remote_fetch *f = remote->fetches;
    assert_ptr_equal(f, r->fetch);
    remote->fetches = NULL;
    f->out.n_chunks = n_chunks;
    f->out.why = why;
    snprintf(f->out.text, sizeof f->out.text, "%s", text);
    f->want.done(f->want.arg);
}

/* --- what is asked for ------------------------------------------------------------------------ */

/* The remote is asked for the chunks that the store lacks, unless the cache has them, or
 * they are about to be committed. */
TEST_WITH(the_missing_chunks_are_asked_for, make, destroy)
{
    static const struct {
        int n_hits, n_have;
        const char *why;
        bool asks;
    } cases[] = {
        {0, 0, "not stored", true},       {9, 0, "not stored", true},
        {10, 0, "complete", false},       {3, 3 * 64, "not stored", true},
        {3, 4 * 64, "not stored", false}, {3, 4 * 64 - 1, "", true},
        {9, 10 * 64, "", false},          {3, 0, STORE_WHY_UNCOMMITTED, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r->found = (struct restore_found){.n_hits = cases[i].n_hits};
        snprintf(r->found.why, sizeof r->found.why, "%s", cases[i].why);
        r->want.n_have = cases[i].n_have;
        r->want.owner = 77;
        r->want.use.ttl_s = 5;
        if (restore_remote_begin(r) != cases[i].asks)
            fail_msg("case %zu", i);
        assert_string_equal(r->found.why, cases[i].why);
        assert_int_equal(r->is_fetching, cases[i].asks);
        assert_int_equal(r->n_in_flight, cases[i].asks);
        assert_int_equal(rr->n_fetches, cases[i].asks);
        if (!cases[i].asks) {
            assert_null(r->fetch);
            assert_null(remote->fetches);
            continue;
        }
        const struct remote_want *w = &remote->fetches->want;
        int n = N - cases[i].n_hits;
        assert_int_equal(w->n, n);
        assert_memory_equal(w->keys, keys + 1 + cases[i].n_hits,
                            (size_t)n * sizeof keys[0]);
        assert_int_equal(w->owner, 77);
        assert_int_equal(w->use.ttl_s, 5);
        end_fetch(0, REMOTE_MISS_NONE, "");
        restore_remote_take(r);
    }
    rr->o.remote = NULL;
    r->found = (struct restore_found){0};
    r->want.n_have = 0;
    assert_false(restore_remote_begin(r));
    rr->o.remote = remote;
    r->state = RESTORE_ABANDONED; /* the request has ended meanwhile */
    assert_false(restore_remote_begin(r));
    assert_null(remote->fetches);
    r->state = RESTORE_FINDING;
}

/* The price is that of the chunks behind those that the store and the cache have. A full replay of
 * a truncated context is needed until all moved chunks are there. */
TEST_WITH(missing_chunks_have_the_price_of_the_rest, make, destroy)
{
    static const struct {
        int n_hits, n_have, n_moved;
        double recompute_s, want_recompute_s, want_restore_s;
    } cases[] = {
        {4, 0, 0, 0, 0, 3},
        {4, 0, 0, -1, 0, 3},
        /* the first 4 of 10 chunks are there */
        {4, 0, 0, 10, -1, 3},
        /* 2 are in the cache, so 2 of the other 8 are there */
        {4, 2 * 64, 0, 10, -1, 3.75},
        /* a moved context: a replay */
        {4, 0, 3, 10, -2, 3},
        {2, 0, 3, 10, -2, 4},
        {4, 2 * 64, 3, 10, -2, 3.75},
        /* the cache has all moved chunks */
        {4, 3 * 64, 3, 10, -1, 5 * (1 - 1.0 / 7)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n_have = cases[i].n_have / 64, n_moved = cases[i].n_moved;
        r->found = (struct restore_found){.n_hits = cases[i].n_hits};
        r->want = (struct restore_want){.n_have = cases[i].n_have,
                                        .n_moved = n_moved,
                                        .recompute_s = cases[i].recompute_s,
                                        .recompute_half_s = 3,
                                        .stair_s = 2,
                                        .restore_s = 5};
        assert_true(restore_remote_begin(r));
        const struct remote_want *w = &remote->fetches->want;
        double want_s = cases[i].want_recompute_s;
        if (want_s == -1)
            want_s = remote_rest_s(10, 3,
                                   (double)(cases[i].n_hits - n_have) / (N - n_have));
        else if (want_s == -2)
            want_s = remote_replay_s(10, 2, cases[i].n_hits - n_moved, N - n_moved);
        assert_true(w->recompute_s == want_s);
        assert_float_equal((float)w->restore_s, (float)cases[i].want_restore_s, 1e-6);
        end_fetch(0, REMOTE_MISS_NONE, "");
        restore_remote_take(r);
    }
}

/* A remote that rests is not asked, and the look-up says why. */
TEST_WITH(a_resting_remote_is_named, make, destroy)
{
    remote->stats.is_up = false;
    snprintf(remote->stats.why_down, sizeof remote->stats.why_down, "no route");
    r->found.n_hits = 3;
    snprintf(r->found.why, sizeof r->found.why, "not stored");
    assert_false(restore_remote_begin(r));
    assert_null(r->fetch);
    assert_false(r->is_fetching);
    assert_int_equal(r->n_in_flight, 0);
    assert_string_equal(r->found.why, "not stored; the remote cannot be reached: no route");
}

/* --- what comes ------------------------------------------------------------------------------- */

/* The chunks that came are looked up behind those that were found before. */
TEST_WITH(fetched_chunks_are_found, make, destroy)
{
    static const struct {
        int n_hits, n_stored, n_came, n_remote;
        enum remote_miss why;
        const char *text;
    } cases[] = {
        {2, 6, 4, 4, REMOTE_MISS_ABSENT, "not stored"},
        {0, 10, 10, 10, REMOTE_MISS_NONE, "complete"},
        /* another request has stored some of them meanwhile */
        {2, 8, 4, 4, REMOTE_MISS_SLOW, "not stored; too slow"},
        /* some were evicted before the look-up */
        {2, 3, 4, 1, REMOTE_MISS_NONE, "not stored"},
        /* nothing came, so nothing is looked up */
        {2, 8, 0, 0, REMOTE_MISS_SILENT, "why; too slow"},
        {2, 8, 0, 0, REMOTE_MISS_ABSENT, "why"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        destroy(NULL);
        make(NULL);
        st_must_save(store, &context, cases[i].n_stored);
        int n = cases[i].n_hits;
        if (n > 0)
            assert_int_equal(store_lookup(store, NULL, keys + 1, n, hits, NULL, 0), n);
        r->found.n_hits = n;
        snprintf(r->found.why, sizeof r->found.why, "why");
        assert_true(restore_remote_begin(r));
        end_fetch(cases[i].n_came, cases[i].why, "too slow");
        restore_remote_take(r);
        assert_null(r->fetch);
        int n_all = cases[i].n_came > 0 ? cases[i].n_stored : n;
        assert_int_equal(r->found.n_hits, n_all);
        assert_int_equal(r->found.n_remote, cases[i].n_remote);
        assert_int_equal(r->found.err.code, 0);
        for (int k = 0; k < n_all; k++)
            assert_memory_equal(hits[k].key.b, keys[1 + k].b, sizeof keys[0].b);
        assert_string_equal(r->found.why, cases[i].text);
        store_release(store, hits, r->found.n_hits);
    }
}

/* The look-up goes on when the fetch has ended. */
TEST_WITH(the_end_of_a_fetch_wakes_the_look_up, make, destroy)
{
    assert_int_equal(restore_heard_ns(r), 0);
    assert_true(restore_remote_begin(r));
    atomic_store(&r->fetch->t_heard, 12345);
    assert_int_equal(restore_heard_ns(r), 12345);
    uint64_t n_news = rr->n_io_news;
    int64_t t0 = clock_now_ns();
    end_fetch(0, REMOTE_MISS_NONE, "");
    assert_false(r->is_fetching);
    assert_int_equal(r->n_in_flight, 0);
    assert_int_equal(rr->n_fetches, 0);
    assert_true(rr->n_io_news > n_news);
    assert_in_range(restore_heard_ns(r), t0, clock_now_ns());
    restore_remote_take(r);
}

/* A restore that ended before its fetch is freed by the fetch, unless a read is in flight. */
TEST_WITH(the_last_one_frees_the_restore, make, destroy)
{
    assert_true(restore_remote_begin(r));
    r->state = RESTORE_ABANDONED;
    r->n_in_flight++; /* the look-up still runs */
    end_fetch(0, REMOTE_MISS_NONE, "");
    assert_int_equal(rr->n_fetches, 0);
    assert_int_equal(r->n_in_flight, 1);
    restore_remote_take(r);
    r->state = RESTORE_FINDING;
    r->n_in_flight = 0;
    assert_true(restore_remote_begin(r));
    r->state = RESTORE_ABANDONED;
    r->keys = NULL; /* they belong to the test */
    r->hits = NULL;
    uint64_t n_news = rr->n_io_news;
    end_fetch(0, REMOTE_MISS_NONE, ""); /* frees r and the fetch */
    assert_int_equal(rr->n_io_news,
                     n_news + 2); /* the end of the pipeline waits for the second */
    assert_int_equal(rr->n_fetches, 0);
    r = new_restore();
}

/* --- what is offered -------------------------------------------------------------------------- */

/* Full chunks that a request uses are offered to a remote that stores chunks on use. */
TEST_WITH(used_chunks_are_offered, make, destroy)
{
    for (int i = 0; i < N; i++)
        hits[i] = (struct store_hit){.key = keys[1 + i], .n_tokens = 64};
    hits[4].n_tokens = 63;
    r->found.n_hits = 4;
    r->want.use.ttl_s = 9;
    remote->o.when = REMOTE_WHEN_COMMITTED;
    restore_remote_offer(r);
    assert_int_equal(remote->n_offers, 0);
    remote->o.when = REMOTE_WHEN_USED;
    restore_remote_offer(r);
    assert_int_equal(remote->n_offers, 4);
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(remote->offers[i].key.b, keys[1 + i].b, sizeof keys[0].b);
        assert_int_equal(remote->offers[i].ttl_s, 9);
        assert_false(remote->offers[i].removes);
    }
    remote->n_offers = 0;
    r->found.n_hits = 5; /* the last one is partial */
    restore_remote_offer(r);
    assert_int_equal(remote->n_offers, 4);
}
