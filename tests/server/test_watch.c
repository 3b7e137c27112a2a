/* test_watch.c - the watcher: when it closes a connection, when it notices that a client has gone,
 * and when alarms ring. The test moves the clock. */
#include <errno.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit.h"
#include "server/watch.h"

#define SECOND ((int64_t)1000000000)

/* --- the clock -------------------------------------------------------------------------------- */

static _Atomic int64_t now_ns = 1000 * SECOND;

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (id != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, id, t);
    int64_t ns = atomic_load(&now_ns);
    *t = (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
    return 0;
}

static void pass(int64_t ns)
{
    atomic_fetch_add(&now_ns, ns);
}

/* --- connections ------------------------------------------------------------------------------ */

enum { PLACES = 8, IDLE_S = 2, REQUEST_S = 5 };

struct connection {
    int own, peer;
    struct watch *watch;
    atomic_int n_gone, n_alarms;
};

static struct watcher *watcher;

static void on_gone(void *arg)
{
    atomic_fetch_add(&((struct connection *)arg)->n_gone, 1);
}

static void on_alarm(void *arg)
{
    atomic_fetch_add(&((struct connection *)arg)->n_alarms, 1);
}

static void begin(struct connection *c, int seconds)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    *c = (struct connection){.own = ends[0], .peer = ends[1]};
    c->watch = watch_begin(watcher, c->own, seconds);
}

static void end(struct connection *c)
{
    watch_end(c->watch);
    close(c->own);
    if (c->peer >= 0)
        close(c->peer);
}

/* Makes the watcher look at its events and deadlines once, by opening and ending another
 * connection. That connection takes a place meanwhile. */
static void look(void)
{
    struct connection c;
    begin(&c, 0);
    assert_non_null(c.watch);
    watch_on_gone(c.watch, on_gone, &c);
    close(c.peer);
    c.peer = -1;
    while (atomic_load(&c.n_gone) == 0)
        usleep(100);
    /* takes the watcher's lock, so the watcher has looked when this returns */
    assert_true(watch_is_gone(c.watch));
    end(&c);
}

static bool is_shut(const struct connection *c)
{
    char byte;
    ssize_t n = recv(c->peer, &byte, 1, MSG_DONTWAIT);
    assert_true(n == 0 || (n < 0 && errno == EAGAIN));
    return n == 0;
}

static int open_watcher(void **state)
{
    struct err err;
    return watcher_create(PLACES, IDLE_S, &watcher, &err);
}

static int close_watcher(void **state)
{
    watcher_destroy(watcher);
    return 0;
}

/* --- deadlines -------------------------------------------------------------------------------- */

static void assert_ends_in(const struct connection *c, int seconds)
{
    pass(seconds * SECOND - 1);
    look();
    assert_false(is_shut(c));
    pass(1);
    look();
    assert_true(is_shut(c));
}

TEST_WITH(each_state_has_its_deadline, open_watcher, close_watcher)
{
    for (int i = 0; i < 3; i++) {
        struct connection c;
        begin(&c, 10);
        pass(9 * SECOND);
        if (i == 1)
            watch_request(c.watch, 20);
        else if (i == 2)
            watch_idle(c.watch, 30);
        assert_ends_in(&c, i == 0 ? 1 : 10 + 10 * i);
        end(&c);
    }
}

TEST_WITH(an_answer_has_none, open_watcher, close_watcher)
{
    struct connection c, never;
    begin(&c, 10);
    begin(&never, 0);
    watch_answer(c.watch);
    pass(100000 * SECOND);
    look();
    assert_false(is_shut(&c) || is_shut(&never));
    watch_idle(c.watch, 7);
    assert_ends_in(&c, 7);
    assert_false(is_shut(&never));
    end(&c);
    end(&never);
}

/* While at most six of the PLACES places are taken, connections have their full time. If more are
 * taken, a connection that sends no request is closed sooner. A connection that is being answered
 * stays. */
TEST_WITH(short_places_close_connections_sooner, open_watcher, close_watcher)
{
    for (int n = 5; n <= 6; n++) { /* look() takes one more place */
        for (int idle = 0; idle < 2; idle++) {
            struct connection c[6];
            for (int i = 0; i < n; i++) {
                begin(&c[i], 100);
                if (i < n - 1)
                    watch_answer(c[i].watch);
                else if (idle)
                    watch_idle(c[i].watch, 100);
            }
            pass((idle ? IDLE_S : REQUEST_S) * SECOND - 1);
            look();
            assert_false(is_shut(&c[n - 1]));
            pass(1);
            look();
            for (int i = 0; i < n; i++)
                assert_int_equal(is_shut(&c[i]), n == 6 && i == n - 1);
            for (int i = 0; i < n; i++)
                end(&c[i]);
        }
    }
}

TEST_WITH(no_place_is_no_watch, open_watcher, close_watcher)
{
    struct connection c[PLACES + 1];
    for (int i = 0; i <= PLACES; i++) {
        begin(&c[i], 10);
        assert_int_equal(c[i].watch != NULL, i < PLACES);
    }
    watch_request(NULL, 1);
    watch_answer(NULL);
    watch_idle(NULL, 1);
    watch_on_gone(NULL, on_gone, &c[0]);
    assert_false(watch_is_gone(NULL));
    /* without a watch the alarm rings at once */
    watch_alarm(NULL, SECOND, on_alarm, &c[0]);
    assert_int_equal(atomic_load(&c[0].n_alarms), 1);
    for (int i = 0; i <= PLACES; i++)
        end(&c[i]);
}

/* --- clients that go -------------------------------------------------------------------------- */

TEST_WITH(a_client_that_has_gone_is_told_once, open_watcher, close_watcher)
{
    struct connection c, silent;
    begin(&c, 0);
    begin(&silent, 0);
    watch_on_gone(c.watch, on_gone, &c);
    watch_on_gone(silent.watch, on_gone, &silent);
    watch_on_gone(silent.watch, NULL, NULL);
    look();
    assert_false(watch_is_gone(c.watch));
    assert_int_equal(atomic_load(&c.n_gone), 0);
    shutdown(c.peer, SHUT_WR); /* a client that closes its sending half counts as gone */
    shutdown(silent.peer, SHUT_WR);
    while (!watch_is_gone(c.watch) || !watch_is_gone(silent.watch))
        usleep(100);
    look();
    assert_int_equal(atomic_load(&c.n_gone), 1);
    assert_int_equal(atomic_load(&silent.n_gone), 0);
    /* this client has gone already, so the callback comes at once */
    watch_on_gone(silent.watch, on_gone, &silent);
    assert_int_equal(atomic_load(&silent.n_gone), 1);
    end(&c);
    end(&silent);
    begin(&c, 0); /* takes the place of the connection that has ended */
    assert_false(watch_is_gone(c.watch));
    end(&c);
}

/* --- alarms ----------------------------------------------------------------------------------- */

TEST_WITH(an_alarm_rings_once_at_its_time, open_watcher, close_watcher)
{
    struct connection c, none, ended;
    begin(&c, 0);
    begin(&none, 0);
    begin(&ended, 0);
    watch_alarm(c.watch, 3 * SECOND, on_alarm, &c);
    watch_alarm(none.watch, SECOND, on_alarm, &none);
    watch_alarm(none.watch, 0, NULL, NULL);
    watch_alarm(ended.watch, SECOND, on_alarm, &ended);
    watch_end(ended.watch);
    pass(3 * SECOND - 1);
    look();
    assert_int_equal(atomic_load(&c.n_alarms), 0);
    pass(1);
    look();
    assert_int_equal(atomic_load(&c.n_alarms), 1);
    pass(10 * SECOND);
    look();
    assert_int_equal(atomic_load(&c.n_alarms), 1);
    assert_int_equal(atomic_load(&none.n_alarms) + atomic_load(&ended.n_alarms), 0);
    ended.watch = NULL;
    end(&c);
    end(&none);
    end(&ended);
}

/* When the server ends, alarms ring at once: those that were set before, and those that are set
 * later. */
TEST_WITH(all_alarms_ring_at_the_end, open_watcher, close_watcher)
{
    struct connection c;
    begin(&c, 0);
    watch_alarm(c.watch, 1000 * SECOND, on_alarm, &c);
    watcher_ring(NULL);
    assert_int_equal(atomic_load(&c.n_alarms), 0);
    watcher_ring(watcher);
    assert_int_equal(atomic_load(&c.n_alarms), 1);
    watch_alarm(c.watch, 1000 * SECOND, on_alarm, &c);
    assert_int_equal(atomic_load(&c.n_alarms), 2);
    assert_false(is_shut(&c));
    end(&c);
}
