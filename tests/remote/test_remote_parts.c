/* test_remote_parts.c - the parts of a remote, each on its own: the queue of offers, leases, bans,
 * connections that rest, and what the statistics say. No thread of the remote runs. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "store/remote/remote_pace.h"
#include "store/remote/remote_impl.h"
#include "tests/base/said.h"
#include "tests/base/tempdir.h"
#include "sim/fake_redis.h"

#define SECOND ((int64_t)1000000000)

static struct remote *r;

static int make(void **state)
{
    r = xcalloc(1, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    clock_cond_init(&r->for_reader);
    clock_cond_init(&r->for_writer);
    clock_cond_init(&r->drained);
    r->offers = xcalloc(MAX_OFFERS, sizeof *r->offers);
    r->leases = xcalloc(MAX_LEASES, sizeof *r->leases);
    r->bans.key = xcalloc(MAX_BANS, sizeof *r->bans.key);
    r->read_link.r = r->write_link.r = r;
    r->read_link.tells = true;
    r->stop_fd = -1;
    r->o.ttl_s = 1000;
    atomic_init(&r->max_chunk_bytes, 1 << 20);
    return 0;
}

static int destroy(void **state)
{
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->for_reader);
    pthread_cond_destroy(&r->for_writer);
    pthread_cond_destroy(&r->drained);
    free(r->offers);
    free(r->leases);
    free(r->bans.key);
    free(r);
    return 0;
}

static struct sha256 key_of(int i)
{
    struct sha256 k = {{0}};
    put_u32(k.b, (uint32_t)i + 1);
    return k;
}

/* --- the queue of offers ---------------------------------------------------------------------- */

/* The queue is a ring. What it has no room for is dropped and counted. */
TEST_WITH(offers_wait_in_a_ring, make, destroy)
{
    struct sha256 a = key_of(1), b = key_of(2), c = key_of(3);
    r->first_offer = MAX_OFFERS - 1;
    remote_offer(r, &a, 7);
    remote_offer(r, &b, 0);
    assert_int_equal(r->n_offers, 2);
    const struct offer *last = &r->offers[MAX_OFFERS - 1], *first = &r->offers[0];
    assert_memory_equal(last->key.b, a.b, sizeof a.b);
    assert_int_equal(last->ttl_s, 7);
    assert_memory_equal(first->key.b, b.b, sizeof b.b);
    assert_int_equal(first->ttl_s, 0);
    assert_false(last->removes || first->removes);
    r->n_offers = MAX_OFFERS - 1;
    remote_offer(r, &c, 0);
    assert_int_equal(r->n_offers, MAX_OFFERS);
    assert_memory_equal(r->offers[MAX_OFFERS - 2].key.b, c.b, sizeof c.b);
    assert_int_equal(r->stats.n_dropped, 0);
    remote_offer(r, &a, 0);
    assert_int_equal(r->n_offers, MAX_OFFERS);
    assert_int_equal(r->stats.n_dropped, 1);
    assert_memory_equal(last->key.b, a.b, sizeof a.b);
    assert_int_equal(last->ttl_s, 7);
}

/* --- leases ----------------------------------------------------------------------------------- */

TEST_WITH(leases_are_bounded, make, destroy)
{
    for (int i = 0; i < MAX_LEASES + 2; i++) {
        struct sha256 k = key_of(i);
        remote_lease_add(r, &k, (uint32_t)i);
        assert_int_equal(remote_n_leases(r), i < MAX_LEASES ? i + 1 : MAX_LEASES);
    }
    struct sha256 last = key_of(MAX_LEASES - 1);
    assert_memory_equal(r->leases[MAX_LEASES - 1].key.b, last.b, sizeof last.b);
    assert_int_equal(r->leases[MAX_LEASES - 1].ttl_s, MAX_LEASES - 1);
}

/* A chunk lives for its own time, at most for the remote's. Until it is confirmed, it lives at most
 * 45 s. */
TEST_WITH(a_chunk_lives_for_a_bounded_time, make, destroy)
{
    static const uint32_t own[][2] = {
        {0, 1000}, {1, 1}, {999, 999}, {1000, 1000}, {1001, 1000}};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        assert_int_equal(remote_ttl_s(r, own[i][0]), own[i][1]);
    static const int64_t until[][2] = {
        {1, 1000}, {44, 44000}, {45, 45000}, {46, 45000}, {UINT32_MAX, 45000}};
    r->read_ms = 7000000;
    for (size_t i = 0; i < sizeof until / sizeof until[0]; i++)
        assert_int_equal(remote_lease_until_ms(r, (uint32_t)until[i][0]),
                         7000000 + until[i][1]);
}

/* The stream is read each second, and soon while chunks wait to be confirmed and no offer is left.
 * An erasure is published at once. */
TEST_WITH(the_stream_is_read_in_time, make, destroy)
{
    static const struct {
        uint32_t n_leases, n_offers;
        int64_t every_ns;
    } cases[] = {{0, 0, SECOND}, {0, 1, SECOND}, {1, 1, SECOND}, {1, 0, SECOND / 20}};
    struct published p = {.next = NULL};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r->n_leases = cases[i].n_leases;
        r->n_offers = cases[i].n_offers;
        int64_t before = clock_now_ns();
        r->t_polled = before + 1000 * SECOND;
        int64_t left = remote_erasures_due_ns(r), after = clock_now_ns();
        int64_t due = r->t_polled + cases[i].every_ns;
        assert_in_range(left, due - after, due - before);
        r->t_polled = before - 2 * SECOND;
        assert_int_equal(remote_erasures_due_ns(r), 0);
    }
    r->t_polled = clock_now_ns() + 1000 * SECOND;
    r->publish = &p;
    assert_int_equal(remote_erasures_due_ns(r), 0);
    r->publish = NULL;
}

/* --- bans ------------------------------------------------------------------------------------- */

static bool may_store(int i, uint64_t owner)
{
    struct remote_fetch f = {.epoch = r->epoch, .want = {.owner = owner}};
    struct sha256 k = key_of(i);
    return remote_may_store(r, &f, &k);
}

/* Erased chunks, and the chunks of erased owners, are not stored for a minute. The keys of an
 * erased text may be the beginning of other texts. */
TEST_WITH(erased_chunks_are_banned_for_a_minute, make, destroy)
{
    struct sha256 keys[3] = {key_of(0), key_of(1), key_of(2)};
    int64_t before = clock_now_ns();
    assert_true(may_store(0, 5));
    remote_ban(r, &(struct erasure){.n = 2, .keys = keys});
    int64_t after = clock_now_ns();
    assert_false(may_store(0, 5));
    assert_false(may_store(1, 5));
    assert_true(may_store(2, 5));
    for (int i = 0; i < 2; i++)
        assert_in_range(r->bans.key[i].until_ns, before + 60 * SECOND, after + 60 * SECOND);
    remote_ban(r, &(struct erasure){.is_text = true, .n = 3, .keys = keys});
    assert_true(may_store(2, 5));
    remote_ban(r, &(struct erasure){.is_owner = true, .owner = 5});
    assert_false(may_store(2, 5));
    assert_true(may_store(2, 6));
    assert_in_range(r->bans.owner[0].until_ns, before + 60 * SECOND,
                    clock_now_ns() + 60 * SECOND);
    /* a minute later */
    r->bans.key[0].until_ns = r->bans.owner[0].until_ns = clock_now_ns();
    assert_true(may_store(0, 5));
    assert_false(may_store(1, 5));
    assert_true(may_store(2, 5));
    /* a fetch that began before the last erasure */
    struct remote_fetch f = {.epoch = r->epoch};
    struct sha256 k = key_of(2);
    r->epoch++;
    assert_false(remote_may_store(r, &f, &k));
    f.epoch = r->epoch;
    assert_true(remote_may_store(r, &f, &k));
    r->bans.all_until_ns = clock_now_ns() + SECOND * 1000;
    assert_false(remote_may_store(r, &f, &k));
}

/* If more is erased in a minute than the rings hold, nothing at all is stored for a minute. */
TEST_WITH(too_many_bans_ban_all, make, destroy)
{
    struct sha256 *keys = xcalloc(MAX_BANS, sizeof *keys);
    for (int i = 0; i < MAX_BANS; i++)
        keys[i] = key_of(i);
    for (uint64_t owner = 0; owner < MAX_BANNED_OWNERS; owner++)
        remote_ban(r, &(struct erasure){.is_owner = true, .owner = owner});
    assert_int_equal(r->bans.all_until_ns, 0);
    assert_false(may_store(9, MAX_BANNED_OWNERS - 1));
    r->bans.owner[0].until_ns = 1; /* that place is free */
    remote_ban(r, &(struct erasure){.is_owner = true, .owner = 1000});
    assert_int_equal(r->bans.all_until_ns, 0);
    assert_false(may_store(9, 1000));
    assert_true(may_store(9, 0));
    int64_t before = clock_now_ns();
    remote_ban(r, &(struct erasure){.is_owner = true, .owner = 1001});
    assert_in_range(r->bans.all_until_ns, before + 60 * SECOND,
                    clock_now_ns() + 60 * SECOND);
    r->bans.all_until_ns = 0;
    remote_ban(r, &(struct erasure){.n = MAX_BANS, .keys = keys});
    assert_int_equal(r->bans.all_until_ns, 0);
    assert_false(may_store(MAX_BANS - 1, 2000));
    assert_true(may_store(MAX_BANS, 2000));
    before = clock_now_ns();
    remote_ban(r, &(struct erasure){.n = 1, .keys = keys});
    assert_in_range(r->bans.all_until_ns, before + 60 * SECOND,
                    clock_now_ns() + 60 * SECOND);
    free(keys);
}

/* --- connections that rest -------------------------------------------------------------------- */

/* After each failure in a row a link rests for longer. Only the reader's link says whether the
 * remote is up. */
TEST_WITH(a_failed_link_rests, make, destroy)
{
    struct err err = {.code = -EPIPE, .msg = "broken"};
    r->stats.is_up = true;
    for (int n = 1; n <= 3; n++) {
        double full_s = BACKOFF_FIRST_S * (1 << (n - 1));
        int64_t before = clock_now_ns();
        link_fail(&r->write_link, &err);
        int64_t after = clock_now_ns(), until = r->write_link.rest_until_ns;
        assert_int_equal(r->write_link.n_failures, n);
        assert_int_equal(r->stats.n_failures, n);
        assert_in_range(until, before + (int64_t)(full_s / 2 * 1e9) - 1,
                        after + (int64_t)(full_s * 1e9));
        before = clock_now_ns();
        int64_t rest = link_rest_ns(&r->write_link);
        after = clock_now_ns();
        if (until > after)
            assert_in_range(rest, until - after, until - before);
        assert_true(r->stats.is_up);
    }
    link_praise(&r->write_link);
    assert_int_equal(r->write_link.n_failures, 0);
    r->write_link.rest_until_ns = clock_now_ns();
    assert_int_equal(link_rest_ns(&r->write_link), 0);
    link_fail(&r->read_link, &err);
    assert_false(r->stats.is_up);
    assert_string_equal(r->stats.why_down, "broken");
    assert_int_equal(r->stats.n_failures, 4);
    /* a call that is stopped because the process ends is no failure */
    err.code = ERR_CANCELLED;
    r->read_link = (struct link){.r = r, .tells = true};
    r->stats.is_up = true;
    link_fail(&r->read_link, &err);
    assert_true(r->stats.is_up);
    assert_int_equal(r->stats.n_failures, 4);
    assert_int_equal(r->read_link.n_failures, 0);
    assert_int_equal(r->read_link.rest_until_ns, 0);
}

/* A link is opened when its rest is over. */
TEST_WITH(a_link_is_opened_when_it_has_rested, make, destroy)
{
    struct fake_redis *f = fake_redis_start();
    struct link *l = &r->read_link;
    assert_int_equal(remote_url_parse(fake_redis_url(f), &r->url, NULL), 0);
    snprintf(r->stats.why_down, sizeof r->stats.why_down, "never reached");
    l->rest_until_ns = clock_now_ns() + 1000 * SECOND;
    assert_false(link_ready(l, 60 * SECOND));
    assert_null(l->cluster);
    assert_int_equal(r->stats.n_failures, 0);
    l->rest_until_ns = 0;
    assert_true(link_ready(l, 60 * SECOND));
    assert_non_null(l->cluster);
    assert_true(r->stats.is_up);
    assert_string_equal(r->stats.why_down, "");
    assert_int_equal(fake_redis_count(f, "PING"), 1);
    assert_true(link_ready(l, 60 * SECOND)); /* it is open */
    assert_int_equal(fake_redis_count(f, "PING"), 1);
    link_drop(l);
    assert_null(l->cluster);
    assert_int_equal(l->n_failures, 0);
    fake_redis_trouble(f, "PING", FAKE_REFUSES, 1);
    assert_false(link_ready(l, 60 * SECOND));
    assert_null(l->cluster);
    assert_int_equal(l->n_failures, 1);
    assert_false(r->stats.is_up);
    assert_string_equal(r->stats.why_down, "the remote refuses: OOM no room");
    fake_redis_stop(f);
}

/* The reader's link says once that the remote is not used, and once that it answers again. The
 * writer's link says nothing. */
TEST_WITH(a_change_of_state_is_said_once, make, destroy)
{
    struct fake_redis *f = fake_redis_start();
    struct err err = {.code = -EPIPE, .msg = "broken"}, other = {.msg = "no route"};
    static const char down[] = "hcache: warning: the remote redis://h is not used until it "
                               "answers again: broken\n",
                      up[] = "hcache: the remote redis://h answers\n";
    snprintf(r->stats.url, sizeof r->stats.url, "redis://h");
    assert_int_equal(remote_url_parse(fake_redis_url(f), &r->url, &err), 0);
    r->stats.is_up = true;
    for (int round = 0; round < 2; round++) {
        said_begin(LOG_INFO);
        link_fail(&r->write_link, &other);
        assert_string_equal(said_end(), "");
        said_begin(LOG_INFO);
        link_fail(&r->read_link, &err);
        link_fail(&r->read_link, &other);
        assert_string_equal(said_end(), down);
        assert_string_equal(r->stats.why_down, "no route");
        said_begin(LOG_INFO);
        for (int i = 0; i < 2; i++) {
            r->read_link.rest_until_ns = r->write_link.rest_until_ns = 0;
            bool is_ready = link_ready(&r->write_link, 60 * SECOND) &&
                            link_ready(&r->read_link, 60 * SECOND);
            link_drop(&r->read_link);
            link_drop(&r->write_link);
            assert_true(is_ready);
        }
        assert_string_equal(said_end(), up);
    }
    fake_redis_stop(f);
}

/* --- the position in the stream --------------------------------------------------------------- */

/* A server goes on behind the last entry that it has read. A file that says nothing sound is as
 * good as none. A server whose store is empty needs none. */
TEST_WITH(a_position_is_read_if_it_is_sound, make, destroy)
{
    static const struct {
        const char *text;
        bool is_sound;
        uint64_t n_seen;
        const char *id;
    } cases[] = {
        {"3 3-0\n", true, 3, "3-0"},
        {"18446744073709551615 1700000000000-12", true, UINT64_MAX, "1700000000000-12"},
        {"0 0-0\n", true, 0, "0-0"},
        {"", false, 0, "0-0"},
        {"3", false, 0, "0-0"},
        {"x 3-0", false, 0, "0-0"},
        {"3 3", false, 0, "0-0"},
        {"3 3-", false, 0, "0-0"},
        {"3 -0", false, 0, "0-0"},
        {"3 a-0", false, 0, "0-0"},
        {"3 3-0x", false, 0, "0-0"},
        {"3 3-0-1", false, 0, "0-0"},
        {"3 11111111111111111111111111111111111111111111111-1", false, 0, "0-0"},
    };
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 32];
    tempdir_make(dir, "place");
    snprintf(path, sizeof path, "%s/remote.erasures", dir);
    for (int i = -1; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        if (i >= 0) {
            FILE *file = fopen(path, "w");
            assert_non_null(file);
            fputs(cases[i].text, file);
            fclose(file);
        }
        for (int is_empty = 0; is_empty < 2; is_empty++) {
            bool is_sound = i >= 0 && cases[i].is_sound && !is_empty;
            destroy(NULL);
            make(NULL);
            r->place_path = path;
            remote_follow_init(r, is_empty);
            assert_int_equal(r->has_place, is_sound);
            assert_int_equal(r->skips, is_empty);
            assert_int_equal(r->n_seen, is_sound ? cases[i].n_seen : 0);
            assert_string_equal(r->seen_id, is_sound ? cases[i].id : "0-0");
        }
    }
    r->place_path = NULL;
    tempdir_remove(dir);
    remote_follow_init(r, false); /* no position is kept */
    assert_false(r->has_place);
}

/* --- fetches and statistics ------------------------------------------------------------------- */

TEST_WITH(fetches_begin_only_with_a_sound_remote, make, destroy)
{
    static const struct {
        bool is_up, may_fetch;
        int n_erasing;
        bool publishes;
        const char *why; /* NULL: the fetch begins */
    } cases[] = {
        {true, true, 0, false, NULL},
        {false, true, 0, false, "the remote cannot be reached: no route"},
        {false, false, 0, false, "the remote cannot be reached: no route"},
        {true, false, 0, false,
         "the remote cannot be reached: its erasures are not read yet"},
        {true, true, 1, false, "an erasure is on its way to the remote"},
        {true, true, 0, true, "an erasure is on its way to the remote"},
        {false, true, 1, true, "the remote cannot be reached: no route"},
    };
    struct sha256 keys[2] = {key_of(1), key_of(2)};
    struct remote_want want = {.keys = keys, .n = 2, .owner = 3};
    struct published p = {.next = NULL};
    snprintf(r->stats.why_down, sizeof r->stats.why_down, "no route");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char why[100] = "";
        r->stats.n_fetches = r->stats.misses[REMOTE_MISS_RESTING] = 0;
        r->stats.is_up = cases[i].is_up;
        r->may_fetch = cases[i].may_fetch;
        r->n_erasing = cases[i].n_erasing;
        r->publish = cases[i].publishes ? &p : NULL;
        r->epoch = 40 + i;
        int64_t before = clock_now_ns();
        struct remote_fetch *f = remote_fetch_begin(r, &want, why, sizeof why);
        assert_int_equal(f == NULL, cases[i].why != NULL);
        assert_string_equal(why, f == NULL ? cases[i].why : "");
        assert_int_equal(r->stats.n_fetches, 1);
        assert_int_equal(r->stats.misses[REMOTE_MISS_RESTING], f == NULL);
        if (f == NULL)
            continue;
        assert_ptr_equal(r->fetches, f);
        assert_ptr_equal(f->r, r);
        assert_int_equal(f->epoch, 40 + i);
        assert_ptr_not_equal(f->want.keys, keys); /* copied */
        assert_memory_equal(f->want.keys, keys, sizeof keys);
        assert_int_equal(f->want.owner, 3);
        assert_in_range(f->t_begin, before, clock_now_ns());
        assert_int_equal(remote_fetch_heard_ns(f), f->t_begin);
        assert_false(atomic_load(&f->is_cancelled));
        remote_fetch_cancel(f);
        assert_true(atomic_load(&f->is_cancelled));
        struct remote_fetch *second = remote_fetch_begin(r, &want, why, sizeof why);
        assert_ptr_equal(f->next, second); /* behind the first */
        r->fetches = NULL;
        struct remote_fetched out;
        second->out.n_chunks = 9;
        remote_fetch_end(second, &out);
        assert_int_equal(out.n_chunks, 9);
        remote_fetch_end(f, &out);
    }
    r->publish = NULL;
}

TEST_WITH(statistics_count_what_waits, make, destroy)
{
    struct remote_stats st;
    struct published second = {.next = NULL}, first = {.next = &second};
    memset(&st, 7, sizeof st);
    remote_stats(NULL, &st);
    assert_true(!st.is_up && st.n_queued == 0 && st.n_fetches == 0 && st.url[0] == 0);
    r->stats.is_up = true;
    r->stats.n_written = 11;
    r->may_fetch = true;
    r->n_offers = 3;
    r->n_leases = 4;
    r->n_uncounted = 5;
    r->publish = &first;
    remote_stats(r, &st);
    assert_true(st.is_up);
    assert_string_equal(st.why_down, "");
    assert_int_equal(st.n_written, 11);
    assert_int_equal(st.n_queued, 3 + 4);
    assert_int_equal(st.n_unpublished, 5 + 2);
    r->may_fetch = false;
    remote_stats(r, &st);
    assert_false(st.is_up);
    assert_string_equal(st.why_down, "its erasures are not read yet");
    assert_true(r->stats.is_up);
    r->stats.is_up = false;
    snprintf(r->stats.why_down, sizeof r->stats.why_down, "no route");
    remote_stats(r, &st);
    assert_string_equal(st.why_down, "no route");
    r->publish = NULL;
}

/* A wait ends after its time. */
TEST_WITH(a_wait_has_an_end, make, destroy)
{
    int64_t t0 = clock_now_ns();
    pthread_mutex_lock(&r->lock);
    remote_wait(r, &r->for_reader, 2000000);
    pthread_mutex_unlock(&r->lock);
    assert_true(clock_now_ns() - t0 >= 2000000);
}
