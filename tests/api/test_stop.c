/* test_stop.c - a service stops within a layer, however long a step takes. And a waiting caller's
 * is_cancelled is called in time, whatever the system's clock is set to. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit.h"
#include "api/service.h"
#include "tests/base/tempdir.h"
#include "tests/engine/enginetest.h"
#include "tests/model/packed_file.h"

/* Number of seconds by which the system's clock is ahead of the real clock, as this program sees
 * it. The kernel's own waits use the real clock. So a wait whose end was computed with the system's
 * clock lasts as long as if that clock had been set back. */
static int64_t ahead_s;

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (id == CLOCK_REALTIME)
        t->tv_sec += ahead_s;
    return rc;
}

static struct hcache_ticket *submit(struct stack *k, struct service *s)
{
    struct err err = {0};
    int32_t prompt[50];
    struct hcache_ticket *t = NULL;
    et_prompt(prompt, 50, 1);
    struct et_ask a = {.prompt = prompt, .n_prompt = 50, .max_tokens = 4};
    struct request *q = et_request(k, &a);
    if (service_submit(s, q, &t, &err) != 0)
        fail_msg("%s", err.msg);
    return t;
}

struct rig {
    char dir[TEMPDIR_BYTES];
    struct io *disk;
    struct stack k;
    struct service *s;
};

/* Opens a service with a thread whose steps wait for a disk that does not answer. */
static void rig_open(struct rig *r)
{
    char path[PATH_MAX];
    struct err err = {0};
    r->disk = et_disk(4, 0);
    tempdir_make_on_disk(r->dir, "stop");
    packed_file_make(r->dir, "synth:tiny-mha", "cpu", 1, NULL, path);
    packed_file_copy(r->disk, path);
    et_open(&r->k, &(struct stack_opts){.user.model = path,
                                        .user.weights_memory = "0%",
                                        .user.no_reuse = true,
                                        .stuck_ns = (int64_t)3600 * 1000000000,
                                        .io = r->disk});
    service_create(&(struct service_opts){.engine = r->k.engine,
                                          .weights = &r->k.model->w,
                                          .max_sequences = 1,
                                          .max_context = 1024},
                   &r->s);
    assert_int_equal(service_start(r->s, 0, &err), 0);
    io_sim_fault_add(r->disk, &(struct io_sim_fault){.kind = IO_SIM_STUCK,
                                                     .on = IO_SIM_ON_READ,
                                                     .path = ".packed"});
}

static void rig_close(struct rig *r)
{
    service_destroy(r->s);
    stack_close(&r->k);
    io_close(r->disk);
    tempdir_remove(r->dir);
}

static bool second_time(void *arg)
{
    return ++*(int *)arg == 2;
}

/* is_cancelled is called again after 50 ms, not after the hour by which the clock was set back. */
TEST(a_clock_that_is_set_back_delays_no_question)
{
    struct rig r;
    int n_asked = 0;
    rig_open(&r);
    struct hcache_ticket *t = submit(&r.k, r.s);
    ahead_s = 3600;
    assert_false(service_run(r.s, t, second_time, &n_asked));
    assert_int_equal(n_asked, 2);
    ahead_s = 0;
    service_stop(r.s);
    hcache_ticket_free(t);
    io_sim_fault_clear(r.disk);
    io_sim_unstick(r.disk);
    rig_close(&r);
}

/* A step would wait an hour for a disk that does not answer. Stopping does not wait for it. Later
 * the service starts again and answers. */
TEST(a_stop_does_not_wait_for_streamed_weights)
{
    struct rig r;
    struct err err = {0};
    struct hcache_err why = {0};
    struct hcache_result result;
    rig_open(&r);
    struct hcache_ticket *t = submit(&r.k, r.s);
    while (io_sim_fault_hits(r.disk) == 0)
        usleep(1000);
    /* The probe of the fingerprint has passed all four layers. The step passes the layers that were
     * read before the disk ceased to answer, and then waits for the next layer. */
    while (weights_reached(&r.k.model->w) == 4)
        usleep(1000);
    assert_in_range(weights_reached(&r.k.model->w), 1, 3);
    service_stop(r.s);
    hcache_ticket_free(t);
    io_sim_fault_clear(r.disk);
    io_sim_unstick(r.disk);
    assert_int_equal(service_start(r.s, 0, &err), 0);
    t = submit(&r.k, r.s);
    hcache_ticket_wait(t);
    assert_int_equal(hcache_ticket_result(t, &result, &why), 0);
    assert_int_equal(result.n_tokens, 4);
    assert_int_equal(weights_reached(&r.k.model->w), 4);
    hcache_result_free(&result);
    hcache_ticket_free(t);
    service_stop(r.s);
    rig_close(&r);
}
