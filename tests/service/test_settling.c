/* test_settling.c - requests in front of the engine: who waits for the disk, and who does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "service/service.h"
#include "tests/engine/enginetest.h"

static struct hcache_ticket *submit(struct stack *k, struct service *s, uint64_t seed,
                                    bool durable)
{
    struct err err = {0};
    int32_t prompt[200];
    struct hcache_ticket *t = NULL;
    struct hcache_request r = {0};
    et_prompt(prompt, 200, seed);
    struct et_ask a = {.prompt = prompt, .n_prompt = 200, .max_tokens = 4, .save = "both"};
    struct request q = et_request(k, &a);
    if (service_submit(s, &q, &r, durable, &t, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
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

/* A device that does not answer holds up who asked for durability, and nobody else. */
static void only_the_durable_wait_for_the_disk(void **state)
{
    (void)state;
    struct err err = {0};
    struct stack k;
    struct service *s;
    struct io *disk = et_disk(1, 1 << 26);
    et_open(&k, &(struct stack_opts){.io = disk,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.max_sequences = 1,
                                     .user.no_reuse = true});
    service_create(&(struct service_opts){.engine = k.engine,
                                          .saver = k.saver,
                                          .store = k.store,
                                          .max_sequences = 1,
                                          .max_context = 1024},
                   &s);
    assert_int_equal(service_start(s, 0, &err), 0);
    struct io_sim_fault stuck = {
        .kind = IO_SIM_STUCK, .on = IO_SIM_ON_WRITE, .path = "seg-"};
    assert_int_equal(io_sim_fault_add(disk, &stuck), 0);
    struct hcache_ticket *durable = submit(&k, s, 1, true);
    for (uint64_t i = 2; i < 5; i++) {
        struct hcache_ticket *t = submit(&k, s, i, false);
        hcache_ticket_wait(t); /* for ever, where the engine waits for the disk */
        (void)take(t);
    }
    struct hcache_stats st;
    service_stats(s, &st);
    assert_int_equal(st.n_ended, 3);   /* the durable one has not, */
    assert_int_equal(st.n_running, 0); /* and takes no place */
    struct hcache_ticket *given_up = submit(&k, s, 5, true);
    hcache_ticket_free(given_up);
    io_sim_fault_clear(disk);
    io_sim_unstick(disk);
    hcache_ticket_wait(durable);
    assert_int_equal(take(durable), 203);
    service_stop(s);
    service_destroy(s);
    stack_close(&k);
    io_close(disk);
}

/* Who steps the engine himself waits himself. */
static void durable_without_a_thread(void **state)
{
    (void)state;
    struct stack k;
    struct service *s;
    struct io *disk = et_disk(2, 1 << 26);
    et_open(&k, &(struct stack_opts){.io = disk,
                                     .user.store = et_dirs,
                                     .user.n_store = 2,
                                     .user.no_reuse = true});
    service_create(&(struct service_opts){.engine = k.engine,
                                          .saver = k.saver,
                                          .store = k.store,
                                          .max_sequences = 1,
                                          .max_context = 1024},
                   &s);
    for (uint64_t i = 0; i < 10; i++) {
        struct hcache_ticket *t = submit(&k, s, i, true);
        struct hcache_delta d;
        do {
            (void)service_run(s, t, NULL, NULL);
            hcache_ticket_read(t, &d);
        } while (!d.ended);
        assert_int_equal(take(t), 203);
    }
    service_destroy(s);
    stack_close(&k);
    io_close(disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_durable_wait_for_the_disk),
        cmocka_unit_test(durable_without_a_thread),
    };
    return cmocka_run_group_tests_name("settling", tests, NULL, NULL);
}
