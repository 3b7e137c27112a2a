/* test_settling.c - requests in front of the engine: which requests wait until the disk has their
 * state. */
#include <stdlib.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "api/service.h"
#include "tests/engine/enginetest.h"

static struct hcache_ticket *submit_saving(struct stack *k, struct service *s,
                                           uint64_t seed, bool durable, const char *save)
{
    struct err err = {0};
    int32_t prompt[200];
    struct hcache_ticket *t = NULL;
    et_prompt(prompt, 200, seed);
    struct et_ask a = {.prompt = prompt, .n_prompt = 200, .max_tokens = 4, .save = save};
    struct request *q = et_request(k, &a);
    q->ask.durable = durable;
    if (service_submit(s, q, &t, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

static struct hcache_ticket *submit(struct stack *k, struct service *s, uint64_t seed,
                                    bool durable)
{
    return submit_saving(k, s, seed, durable, "both");
}

/* Waits until n requests have ended, and none waits for a place or has one. */
static void until_ended(struct service *s, uint64_t n)
{
    struct hcache_stats st;
    for (;; clock_sleep_ns(1000000)) {
        service_stats(s, &st);
        if (st.n_ended == n && st.n_waiting == 0 && st.n_running == 0)
            return;
    }
}

static void writes_get_stuck(struct io *disk)
{
    struct io_sim_fault stuck = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_WRITE, .path = "seg-"};
    assert_int_equal(io_sim_fault_add(disk, &stuck), 0);
}

static void writes_go_on(struct io *disk)
{
    io_sim_fault_clear(disk);
    io_sim_unstick(disk);
}

static int64_t take(struct hcache_ticket *t)
{
    struct hcache_result r;
    struct hcache_err err = {0};
    if (hcache_ticket_result(t, &r, &err) != 0)
        fail_msg("%s", err.msg);
    int64_t committed = r.committed_tokens;
    assert_int_equal(r.n_tokens, 4);
    hcache_result_free(&r);
    hcache_ticket_free(t);
    return committed;
}

/* Opens a service of one sequence over a store on the disk. */
static void open_service(struct io *disk, struct stack *k, struct service **s)
{
    et_open(k, &(struct stack_opts){.io = disk,
                                    .user.store = et_dirs,
                                    .user.n_store = 2,
                                    .user.max_sequences = 1,
                                    .user.no_reuse = true});
    service_create(&(struct service_opts){.engine = k->engine,
                                          .saver = k->saver,
                                          .store = k->store,
                                          .max_sequences = 1,
                                          .max_context = 1024},
                   s);
}

/* Ends what open_service began. */
static void close_service(struct io *disk, struct stack *k, struct service *s)
{
    service_destroy(s);
    stack_close(k);
    io_close(disk);
}

/* A disk that does not answer delays only requests that asked for durability. */
TEST(only_the_durable_wait_for_the_disk)
{
    struct err err = {0};
    struct stack k;
    struct service *s;
    struct io *disk = et_disk(1, 1 << 26);
    open_service(disk, &k, &s);
    assert_int_equal(service_start(s, 0, &err), 0);
    writes_get_stuck(disk);
    struct hcache_ticket *durable = submit(&k, s, 1, true);
    for (uint64_t i = 2; i < 5; i++) {
        struct hcache_ticket *t = submit(&k, s, i, false);
        hcache_ticket_wait(t); /* returns only if the engine does not wait for the disk */
        (void)take(t);
    }
    struct hcache_stats st;
    service_stats(s, &st);
    assert_int_equal(st.n_ended, 3);   /* the durable request has not ended, ... */
    assert_int_equal(st.n_running, 0); /* ... but holds no place */
    /* A settling request that is given up or cancelled does not wait any longer. */
    struct hcache_ticket *given_up = submit(&k, s, 5, true);
    until_ended(s, 3);
    hcache_ticket_free(given_up);
    until_ended(s, 4);
    struct hcache_ticket *cancelled = submit(&k, s, 6, true);
    until_ended(s, 4);
    hcache_ticket_cancel(cancelled);
    hcache_ticket_wait(cancelled);
    hcache_ticket_free(cancelled);
    writes_go_on(disk);
    hcache_ticket_wait(durable);
    assert_int_equal(take(durable), 203);
    service_stop(s);
    close_service(disk, &k, s);
}

/* Without the engine's thread, the calling thread waits for the commit itself. */
TEST(durable_without_a_thread)
{
    struct stack k;
    struct service *s;
    struct io *disk = et_disk(2, 1 << 26);
    open_service(disk, &k, &s);
    for (uint64_t i = 0; i < 10; i++) {
        struct hcache_ticket *t = submit(&k, s, i, true);
        struct hcache_delta d;
        do {
            (void)service_run(s, t, NULL, NULL);
            hcache_ticket_read(t, &d);
        } while (!d.ended);
        assert_int_equal(take(t), 203);
    }
    close_service(disk, &k, s);
}

/* If all state is durable already, or none is saved, a request does not wait: no commit would end
 * its wait. */
TEST(nothing_to_save_is_nothing_to_wait_for)
{
    struct err err = {0};
    struct stack k;
    struct service *s;
    struct io *disk = et_disk(3, 1 << 26);
    open_service(disk, &k, &s);
    assert_int_equal(service_start(s, 0, &err), 0);
    for (int i = 0; i < 3; i++) {
        struct hcache_ticket *t = submit_saving(&k, s, 1, true, "none");
        hcache_ticket_wait(t); /* returns only if the wait does not depend on a commit */
        assert_int_equal(take(t), 0);
    }
    service_stop(s);
    close_service(disk, &k, s);
}

struct asked {
    struct service *s;
    struct io *disk;
    /* calls of is_cancelled after the request's end and before its state was durable */
    int n_settling;
};

/* Lets the disk go on once the request waits for nothing else. */
static bool is_cancelled(void *arg)
{
    struct asked *a = arg;
    struct hcache_stats st;
    service_stats(a->s, &st);
    if (st.n_waiting + st.n_running == 0 && a->n_settling++ == 0)
        writes_go_on(a->disk);
    return false;
}

/* A request that waits for the disk only is looked at after each commit, not all the time. */
TEST(a_settling_request_is_looked_at_after_commits)
{
    /* is_cancelled may be called once before the end, after each of at most four chunks, and once
     * after the end */
    enum { MOST = 1 + 4 + 1 };
    struct stack k;
    struct io *disk = et_disk(4, 1 << 26);
    struct asked a = {.disk = disk};
    struct hcache_delta d;
    open_service(disk, &k, &a.s);
    writes_get_stuck(disk);
    struct hcache_ticket *t = submit(&k, a.s, 1, true);
    do {
        (void)service_run(a.s, t, is_cancelled, &a);
        hcache_ticket_read(t, &d);
    } while (!d.ended);
    assert_in_range(a.n_settling, 1, MOST);
    assert_int_equal(take(t), 203);
    close_service(disk, &k, a.s);
}
