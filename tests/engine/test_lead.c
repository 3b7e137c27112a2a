/* test_lead.c - which waiting requests wait for another request with the same beginning to run
 * first. */

#include "tests/unit.h"
#include <string.h>

#include "engine/sched.h"

enum { TOKENS = 200, KEYS = 4, N = 64 };

/* The tokens of a request, and the keys of its chunks. A chunk's key depends on all tokens before
 * the chunk's end. */
struct made {
    int32_t tokens[TOKENS];
    struct sha256 keys[KEYS], root;
};

static struct made made[3];

/* Makes request i. Before token `differs` its tokens equal those of the other requests, from there
 * on they are its own. */
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

TEST(the_next_chunk_decides)
{
    struct lead_request s = request(0, 200, 200, SCHED_WAITING, 0);
    struct lead_request x = request(1, 200, 100, SCHED_PREFILL, 0);
    assert_true(lead_is_ahead(&x, &s, 0));
    assert_false(lead_is_ahead(&x, &s, 1)); /* the second chunk of x has other tokens */
    x.n_done = 63;
    assert_true(lead_is_ahead(&x, &s, 0));
    /* x has computed the chunk: its state is in the cache already, or will not come there */
    x.n_done = 64;
    assert_false(lead_is_ahead(&x, &s, 0));
    x = request(1, 63, 63, SCHED_PREFILL, 0); /* x is too short to fill chunk 0 */
    assert_false(lead_is_ahead(&x, &s, 0));
    x = request(1, 64, 64, SCHED_PREFILL, 0);
    assert_true(lead_is_ahead(&x, &s, 0));
}

/* A request always computes its last token. So of 65 tokens a whole chunk can be taken over, and of
 * 64 tokens only a part of a chunk, which needs a copy. */
TEST(a_part_of_a_chunk_is_waited_for_where_it_is_copied)
{
    struct lead_request x = request(1, 200, 200, SCHED_PREFILL, 0);
    struct lead_request s = request(0, 64, 64, SCHED_WAITING, 0);
    assert_false(lead_is_ahead(&x, &s, 0));
    s.may_copy = true;
    assert_true(lead_is_ahead(&x, &s, 0));
    x.n_done = 63;
    /* x has computed all 63 tokens that s could take over */
    assert_false(lead_is_ahead(&x, &s, 0));
    x = request(1, 200, 62, SCHED_PREFILL, 0);
    assert_false(lead_is_ahead(&x, &s, 0)); /* token 62 of x differs */
    x = request(1, 200, 63, SCHED_PREFILL, 0);
    /* only token 63 differs, which s computes itself */
    assert_true(lead_is_ahead(&x, &s, 0));
    x = request(1, 62, 62, SCHED_PREFILL, 0);
    /* x is shorter than the part that s could take over */
    assert_false(lead_is_ahead(&x, &s, 0));
    s = request(0, 65, 65, SCHED_WAITING, 0);
    x = request(1, 200, 64, SCHED_PREFILL, 0);
    assert_true(lead_is_ahead(&x, &s, 0)); /* a whole chunk is taken over without a copy */
    s = request(0, 65, 65, SCHED_WAITING, 0);
    s.may_copy = true;
    /* after the chunk only the last token is left */
    assert_false(lead_is_ahead(&x, &s, 1));
}

TEST(other_roots_never_lead)
{
    struct lead_request s = request(0, 64, 64, SCHED_WAITING, 0);
    struct lead_request x = request(1, 64, 64, SCHED_PREFILL, 0);
    s.may_copy = true;
    assert_true(lead_is_ahead(&x, &s, 0));
    made[1].root.b[5] = 1;
    assert_false(lead_is_ahead(&x, &s, 0));
}

TEST(those_at_work_lead_and_those_that_came_first)
{
    struct lead_request r[3];
    for (int i = 0; i < 3; i++)
        r[i] = request(i, 200, 200, SCHED_WAITING, 0);
    assert_int_equal(lead_find(r, 3, 0, 0), -1); /* the first request waits for no other */
    assert_int_equal(lead_find(r, 3, 1, 0), 0);
    assert_int_equal(lead_find(r, 3, 2, 0), 0);
    r[2].phase = SCHED_RESTORE; /* r[2] came later, but is already running */
    assert_int_equal(lead_find(r, 3, 0, 0), 2);
    r[2].phase = SCHED_PREFILL;
    assert_int_equal(lead_find(r, 3, 0, 0), 2);
    r[2].phase = SCHED_DECODE; /* the prompt of r[2] is done */
    assert_int_equal(lead_find(r, 3, 0, 0), -1);
    r[1].may_reuse = false;
    assert_int_equal(lead_find(r, 3, 1, 0), -1);
}
