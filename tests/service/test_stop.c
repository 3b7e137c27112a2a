/* test_stop.c - a service stops within a layer, however long a step takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "service/service.h"
#include "tests/base/tempdir.h"
#include "tests/engine/enginetest.h"
#include "tests/model/packed_file.h"

static struct hcache_ticket *submit(struct stack *k, struct service *s)
{
    struct err err = {0};
    int32_t prompt[50];
    struct hcache_ticket *t = NULL;
    struct hcache_request r = {0};
    et_prompt(prompt, 50, 1);
    struct et_ask a = {.prompt = prompt, .n_prompt = 50, .max_tokens = 4};
    struct request q = et_request(k, &a);
    if (service_submit(s, &q, &r, false, &t, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

/* The step waits an hour for a disk that does not answer; the stop does not. After it the service
 * starts again, and answers. */
static void a_stop_does_not_wait_for_streamed_weights(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    struct err err = {0};
    struct hcache_err why = {0};
    struct hcache_result r;
    struct stack k;
    struct service *s;
    struct io *disk = et_disk(4, 0);
    tempdir_make_on_disk(dir, "stop");
    packed_file_make(dir, "synth:tiny-mha", "cpu", 1, NULL, path);
    packed_file_copy(disk, path);
    et_open(&k, &(struct stack_opts){.user.model = path,
                                     .user.weights_memory = "0%",
                                     .user.no_reuse = true,
                                     .stuck_ns = (int64_t)3600 * 1000000000,
                                     .io = disk});
    service_create(&(struct service_opts){.engine = k.engine,
                                          .weights = &k.model->w,
                                          .max_sequences = 1,
                                          .max_context = 1024},
                   &s);
    assert_int_equal(service_start(s, 0, &err), 0);
    io_sim_fault_add(disk, &(struct io_sim_fault){.kind = IO_SIM_STUCK,
                                                  .on = IO_SIM_ON_READ,
                                                  .path = ".packed"});
    struct hcache_ticket *t = submit(&k, s);
    while (io_sim_fault_hits(disk) == 0)
        usleep(1000);
    service_stop(s);
    hcache_ticket_free(t);
    io_sim_fault_clear(disk);
    io_sim_unstick(disk);
    assert_int_equal(service_start(s, 0, &err), 0);
    t = submit(&k, s);
    hcache_ticket_wait(t);
    assert_int_equal(hcache_ticket_result(t, &r, &why), 0);
    assert_int_equal(r.n_tokens, 4);
    hcache_result_free(&r);
    hcache_ticket_free(t);
    service_stop(s);
    service_destroy(s);
    stack_close(&k);
    io_close(disk);
    tempdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_does_not_wait_for_streamed_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
