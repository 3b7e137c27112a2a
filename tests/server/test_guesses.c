/* test_guesses.c - how long answers to wrong keys are delayed. */
#include "tests/unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "server/guesses.h"

#define SECOND_NS INT64_C(1000000000)

static struct sockaddr_in v4(const char *text)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    assert_int_equal(inet_pton(AF_INET, text, &a.sin_addr), 1);
    return a;
}

static struct guess add(struct guesses *g, const char *from, int64_t at_ns)
{
    struct guess out;
    if (strchr(from, ':') != NULL) {
        struct sockaddr_in6 a = {.sin6_family = AF_INET6};
        assert_int_equal(inet_pton(AF_INET6, from, &a.sin6_addr), 1);
        guesses_add(g, (struct sockaddr *)&a, at_ns, &out);
    } else {
        struct sockaddr_in a = v4(from);
        guesses_add(g, (struct sockaddr *)&a, at_ns, &out);
    }
    return out;
}

TEST(a_few_are_free_and_then_it_slows_down)
{
    struct guesses *g;
    guesses_create(&g);
    for (int i = 0; i < GUESSES_FREE; i++)
        assert_int_equal(add(g, "10.0.0.1", SECOND_NS).hold_ns, 0);
    int64_t first = add(g, "10.0.0.1", SECOND_NS).hold_ns;
    int64_t second = add(g, "10.0.0.1", SECOND_NS).hold_ns;
    assert_true(first > 0);
    /* the second answer waits for the first and then for twice the first delay */
    assert_int_equal(second, first + 2 * first);
    assert_int_equal(add(g, "10.0.0.2", SECOND_NS).hold_ns, 0);
    assert_int_equal(guesses_count(g), GUESSES_FREE + 3);
    guesses_destroy(g);
}

/* Guessing over 1000 connections at a time gains nothing: at most one of them is answered per
 * second, up to the limit. */
TEST(many_at_once_wait_for_each_other)
{
    struct guesses *g;
    int64_t before = 0;
    guesses_create(&g);
    for (int i = 0; i < 1000; i++) {
        int64_t hold = add(g, "10.0.0.1", SECOND_NS).hold_ns;
        assert_true(hold >= before && hold <= GUESSES_MAX_HOLD_S * SECOND_NS);
        before = hold;
    }
    assert_int_equal(before, GUESSES_MAX_HOLD_S * SECOND_NS);
    guesses_destroy(g);
}

TEST(it_is_forgotten_after_the_window)
{
    struct guesses *g;
    int64_t now = SECOND_NS;
    guesses_create(&g);
    for (int i = 0; i < GUESSES_FREE + 1; i++, now += SECOND_NS)
        (void)add(g, "10.0.0.1", now);
    assert_true(add(g, "10.0.0.1", now).hold_ns > 0);
    now += (GUESSES_WINDOW_S + 1) * SECOND_NS;
    assert_int_equal(add(g, "10.0.0.1", now).hold_ns, 0);
    guesses_destroy(g);
}

/* All addresses of an IPv6 /64 network count as one, because their owner has 2^64 of them. */
TEST(a_network_is_one_address)
{
    struct guesses *g;
    guesses_create(&g);
    for (int i = 0; i < GUESSES_FREE; i++)
        (void)add(g, i % 2 ? "2001:db8::1" : "2001:db8::2", SECOND_NS);
    assert_true(add(g, "2001:db8::3", SECOND_NS).hold_ns > 0);
    assert_int_equal(add(g, "2001:db8:0:1::3", SECOND_NS).hold_ns, 0);
    guesses_destroy(g);
}

TEST(the_log_gets_a_line_a_second)
{
    struct guesses *g;
    struct guess out;
    guesses_create(&g);
    out = add(g, "10.0.0.1", SECOND_NS);
    assert_true(out.tell);
    assert_string_equal(out.address, "10.0.0.1");
    for (int i = 0; i < 7; i++)
        assert_false(add(g, "10.0.0.2", SECOND_NS + i).tell);
    out = add(g, "::1", 2 * SECOND_NS);
    assert_true(out.tell);
    assert_int_equal(out.n_untold, 7);
    assert_string_equal(out.address, "::1");
    guesses_add(g, NULL, 3 * SECOND_NS, &out);
    assert_string_equal(out.address, "an unknown address");
    guesses_destroy(g);
}
