/* test_memory_plan.c - a machine that cannot hold the weights says so before it tries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "service/memory_plan.h"
#include "tests/engine/enginetest.h"

/* With weights of so many bytes in each rank of the stages together. */
static int reserve(const struct stack *k, uint64_t weights, struct err *err)
{
    struct model m = *k->model;
    struct model_need need = {.n_parts = 1};
    struct memory_ask a = {
        .model = &m, .need = &need, .max_seqs = 1, .max_rows = 64, .kv_tokens = 64};
    m.w.bytes = weights;
    return memory_plan_reserve(&a, err);
}

/* All ranks of the CPU share the machine's memory. */
static void weights_beyond_the_machine_are_refused(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        struct sysinfo s;
        struct stack k;
        struct err err = {0};
        et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                         .user.tensor_parallel = n_ranks,
                                         .user.no_reuse = true});
        assert_int_equal(sysinfo(&s), 0);
        uint64_t share = ((uint64_t)s.totalram + s.totalswap) * s.mem_unit /
                         (uint64_t)n_ranks;
        assert_int_equal(reserve(&k, share - 4096, &err), 0);
        assert_int_equal(reserve(&k, share + 4096, &err), -ENOMEM);
        assert_non_null(strstr(err.msg, "GB of memory and swap: choose a smaller model"));
        stack_close(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_beyond_the_machine_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
