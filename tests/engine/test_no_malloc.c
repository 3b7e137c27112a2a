/* test_no_malloc.c - a decode step allocates no memory, even with saving. This program's own malloc
 * counts the calls of the engine's thread. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "tests/engine/enginetest.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)

TEST(decode_allocates_nothing)
{
    print_message("skipped: the sanitizers bring a malloc of their own\n");
    skip();
}

#else

static _Thread_local bool counting;
static _Thread_local int n_calls;

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    n_calls += counting;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    n_calls += counting;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    n_calls += counting;
    return __libc_realloc(p, n);
}

/* 200 steps of three sequences, across the ends of chunks, with and without saving. */
TEST(decode_allocates_nothing)
{
    static const char *const saves[] = {"none", "both", "kv"};
    int32_t prompt[100];
    et_prompt(prompt, 100, 1);
    for (int i = 0; i < 6; i++) {
        struct stack k;
        struct seq *s[3];
        struct err err = {0};
        int n_active;
        et_open(&k, &(struct stack_opts){.user.store_in_memory = true,
                                         .user.max_sequences = 3,
                                         .user.threads = 1 + i / 3,
                                         .user.no_reuse = true});
        for (int j = 0; j < 3; j++) {
            struct et_ask a = {.prompt = prompt,
                               .n_prompt = 50 + 20 * j,
                               .max_tokens = 400,
                               .temperature = j == 1 ? 0.8f : 0,
                               /* a restore would need a look-up, which takes some steps */
                               .plan = "recompute",
                               .save = saves[i % 3]};
            s[j] = et_add(&k, &a);
        }
        /* runs until all sequences decode */
        for (int j = 0; j < 3; j++) {
            while (seq_outcome(s[j])->r.n_tokens < 2)
                assert_int_equal(engine_step(k.engine, &n_active, &err), 0);
        }
        n_calls = 0;
        counting = true;
        void *p = xmalloc(10); /* shows that the counter works */
        free(p);
        assert_int_equal(n_calls, 1);
        int rc = 0;
        for (int step = 0; step < 200; step++)
            rc |= engine_step(k.engine, &n_active, &err);
        counting = false;
        assert_int_equal(rc, 0);
        assert_int_equal(n_active, 3);
        assert_int_equal(n_calls, 1);
        for (int j = 0; j < 3; j++)
            engine_remove(k.engine, s[j]);
        stack_close(&k);
    }
}

#endif
