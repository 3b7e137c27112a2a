/* test_lead.c - which waiting requests let another one with the same beginning run first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "policy/lead.h"

enum { TOKENS = 200, KEYS = 4, N = 64 };

/* Requests whose tokens are those of `text` up to a length; each chunk's key depends on all tokens
 * before its end. */
struct made {
    int32_t tokens[TOKENS];
    struct sha256 keys[KEYS], root;
};

static struct made made[3];

/* Returns request i, whose tokens differ from those of the other requests from token `differs`
 * on. */
static struct lead_request request(int i, int n_tokens, int differs, enum sched_phase phase,
                                   int n_done)
{
    struct made *m = &made[i];
    memset(m, 0, sizeof *m);
    for (int t = 0; t < n_tokens; t++)
        m->tokens[t] = t < differs ? t : 1000 * (i + 1) + t;
    for (int c = 0; c < n_tokens / N; c++)
        m->keys[c].b[0] = (uint8_t)((c + 1) * N <= differs ? c + 1 : 100 * (i + 1) + c);
    return (struct lead_request){.phase = phase,
                                 .root = &m->root,
                                 .keys = m->keys,
                                 .n_keys = n_tokens / N,
                                 .tokens = m->tokens,
                                 .n_tokens = n_tokens,
                                 .n_done = n_done,
                                 .may_reuse = true};
}

static void the_next_chunk_decides(void **state)
{
    (void)state;
    struct lead_request s = request(0, 200, 200, SCHED_WAITING, 0);
    struct lead_request x = request(1, 200, 100, SCHED_PREFILL, 0);
    assert_true(lead_is_ahead(&x, &s, 0));
    assert_false(lead_is_ahead(&x, &s, 1)); /* its second chunk has other tokens */
    x.n_done = 63;
    assert_true(lead_is_ahead(&x, &s, 0));
    x.n_done = 64; /* the state of its chunks is known already, or will never be */
    assert_false(lead_is_ahead(&x, &s, 0));
    x = request(1, 63, 63, SCHED_PREFILL, 0); /* this request never fills chunk 0 */
    assert_false(lead_is_ahead(&x, &s, 0));
    x = request(1, 64, 64, SCHED_PREFILL, 0);
    assert_true(lead_is_ahead(&x, &s, 0));
}

/* The last token is always computed, so 65 tokens lack one whole chunk and 64 only a part of one.
 */
static void a_part_of_a_chunk_is_waited_for_where_it_is_copied(void **state)
{
    (void)state;
    struct lead_request x = request(1, 200, 200, SCHED_PREFILL, 0);
    struct lead_request s = request(0, 64, 64, SCHED_WAITING, 0);
    assert_false(lead_is_ahead(&x, &s, 0));
    s.may_copy = true;
    assert_true(lead_is_ahead(&x, &s, 0));
    x.n_done = 63;
    assert_false(lead_is_ahead(&x, &s, 0)); /* the request has all 63 tokens */
    x = request(1, 200, 62, SCHED_PREFILL, 0);
    assert_false(lead_is_ahead(&x, &s, 0)); /* token 62 differs */
    x = request(1, 200, 63, SCHED_PREFILL, 0);
    assert_true(lead_is_ahead(&x, &s, 0)); /* token 63 does not matter */
    x = request(1, 62, 62, SCHED_PREFILL, 0);
    assert_false(lead_is_ahead(&x, &s, 0)); /* shorter */
    s = request(0, 65, 65, SCHED_WAITING, 0);
    x = request(1, 200, 64, SCHED_PREFILL, 0);
    assert_true(lead_is_ahead(&x, &s, 0)); /* a whole chunk needs no copying */
    s = request(0, 65, 65, SCHED_WAITING, 0);
    s.may_copy = true;
    assert_false(lead_is_ahead(&x, &s, 1)); /* only the last token is left */
}

static void other_roots_never_lead(void **state)
{
    (void)state;
    struct lead_request s = request(0, 64, 64, SCHED_WAITING, 0);
    struct lead_request x = request(1, 64, 64, SCHED_PREFILL, 0);
    s.may_copy = true;
    assert_true(lead_is_ahead(&x, &s, 0));
    made[1].root.b[5] = 1;
    assert_false(lead_is_ahead(&x, &s, 0));
}

static void those_at_work_lead_and_those_that_came_first(void **state)
{
    (void)state;
    struct lead_request r[3];
    for (int i = 0; i < 3; i++)
        r[i] = request(i, 200, 200, SCHED_WAITING, 0);
    assert_int_equal(lead_find(r, 3, 0, 0), -1); /* the first waits for no other */
    assert_int_equal(lead_find(r, 3, 1, 0), 0);
    assert_int_equal(lead_find(r, 3, 2, 0), 0);
    r[2].phase = SCHED_RESTORE; /* it came later, but is already running */
    assert_int_equal(lead_find(r, 3, 0, 0), 2);
    r[2].phase = SCHED_PREFILL;
    assert_int_equal(lead_find(r, 3, 0, 0), 2);
    r[2].phase = SCHED_DECODE; /* its prompt is done */
    assert_int_equal(lead_find(r, 3, 0, 0), -1);
    r[1].may_reuse = false;
    assert_int_equal(lead_find(r, 3, 1, 0), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_chunk_decides),
        cmocka_unit_test(a_part_of_a_chunk_is_waited_for_where_it_is_copied),
        cmocka_unit_test(other_roots_never_lead),
        cmocka_unit_test(those_at_work_lead_and_those_that_came_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
