/* Redis Cluster: the slot of a key, the server of a slot, and the parsing of redirections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "remote/slots.h"

static const struct slots_node self = {"seed", 7000};

static int slot(const char *key)
{
    return slot_of(key, strlen(key));
}

/* Slots as given by redis-cli's CLUSTER KEYSLOT (Redis 7.0.15). */
static void keys_have_slots(void **state)
{
    (void)state;
    assert_int_equal(slot("123456789"), 0x31c3);
    assert_int_equal(slot("foo"), 12182);
    assert_int_equal(slot(""), 0);
    assert_int_equal(slot("a{foo}b"), 12182);
    assert_int_equal(slot("{foo}{bar}"), 12182);
    assert_int_equal(slot("{}foo"), 9500);
    assert_int_not_equal(slot("{foo"), slot("foo"));
}

#define LINE(id, address, flags, slots)                                                    \
    id " " address " " flags " - 0 17 3 connected" slots "\n"

static void a_list_of_nodes(void **state)
{
    static const char text[] = LINE("a", "10.0.0.1:7001@17001", "master", " 0-5460")
        LINE("b", "10.0.0.2:7002@17002,two.example", "slave", "")
            LINE("c", ":7003@17003", "myself,master", " 5461 5463-10922 [5462->-a]")
                LINE("d", "10.0.0.4:7004@17004,four.example,shard-id=x", "master",
                     " 10923-16383")
                    LINE("e", "10.0.0.5:7005@17005", "master,fail", " 5462")
                        LINE("f", ":0@0", "master,noaddr", "")
                            LINE("g", "::1:7007@17007", "master", "");
    struct slots *s = malloc(sizeof *s);
    struct err err = {0};
    (void)state;
    if (slots_parse(text, sizeof text - 1, &self, false, s, &err) != 0)
        fail_msg("%s", err.msg);
    /* servers without slots are left out: they may have just left */
    assert_int_equal(s->n_nodes, 3);
    assert_string_equal(s->node[0].host, "10.0.0.1");
    assert_int_equal(s->node[0].port, 7001);
    /* this server does not know its own address, so the address that was asked counts */
    assert_string_equal(s->node[1].host, "seed");
    assert_int_equal(s->node[1].port, 7003);
    assert_string_equal(s->node[2].host, "10.0.0.4");
    static const struct {
        int slot, owner;
    } cases[] = {{0, 0},    {5460, 0},  {5461, 1},  {5462, SLOTS_NOBODY},
                 {5463, 1}, {10922, 1}, {10923, 2}, {16383, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(s->owner[cases[i].slot], cases[i].owner);
    assert_int_equal(slots_parse(text, sizeof text - 1, &self, true, s, &err), 0);
    assert_string_equal(s->node[0].host, "10.0.0.1"); /* this server has no name */
    assert_string_equal(s->node[2].host, "four.example");
    free(s);
}

static void bad_lists(void **state)
{
    static const char *const texts[] = {
        "",
        "\n",
        "a\n",
        "a 10.0.0.1:7001\n",
        LINE("a", "10.0.0.1:7001@17001", "slave", ""), /* no master in the list */
        LINE("a", "10.0.0.1", "master", ""),
        LINE("a", "10.0.0.1:", "master", ""),
        LINE("a", "10.0.0.1:0", "master", ""),
        LINE("a", "10.0.0.1:65536", "master", ""),
        LINE("a", "10.0.0.1:x@1", "master", ""),
        LINE("a", "10.0.0.1:1", "master", " 16384"),
        LINE("a", "10.0.0.1:1", "master", " 5-4"),
        LINE("a", "10.0.0.1:1", "master", " 1-"),
        LINE("a", "10.0.0.1:1", "master", " -1"),
        LINE("a", "10.0.0.1:1", "master", " x"),
        LINE("a", "10.0.0.1:1", "master", " 99999999999999"),
    };
    struct slots *s = malloc(sizeof *s);
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct err err = {0};
        if (slots_parse(texts[i], strlen(texts[i]), &self, false, s, &err) != ERR_FORMAT)
            fail_msg("accepted: %s", texts[i]);
    }
    free(s);
}

static void too_many_masters(void **state)
{
    enum { LINE_BYTES = 80 };
    char *text = calloc(SLOTS_MAX_NODES + 1, LINE_BYTES);
    struct slots *s = malloc(sizeof *s);
    struct err err = {0};
    size_t n = 0, n_fits = 0;
    (void)state;
    for (int i = 0; i <= SLOTS_MAX_NODES; i++) {
        n_fits = n;
        n += (size_t)sprintf(text + n, "x 10.0.0.1:%d@1 master - 0 0 0 connected %d\n",
                             i + 1, i);
    }
    assert_int_equal(slots_parse(text, n_fits, &self, false, s, &err), 0);
    assert_int_equal(s->owner[SLOTS_MAX_NODES - 1], SLOTS_MAX_NODES - 1);
    assert_int_equal(slots_parse(text, n, &self, false, s, &err), ERR_LIMIT);
    free(s);
    free(text);
}

static bool redirects(const char *text, struct redirection *out)
{
    return redirection_parse(text, strlen(text), &self, out);
}

static void redirections(void **state)
{
    static const char *const others[] = {"",
                                         "MOVED",
                                         "MOVED 1",
                                         "MOVED 16384 h:1",
                                         "MOVED x h:1",
                                         "MOVED 1 h",
                                         "MOVED 1 h:70000",
                                         "moved 1 h:1",
                                         "ASKING 1 h:1",
                                         "CLUSTERDOWN The cluster is down"};
    struct redirection r;
    (void)state;
    assert_true(redirects("MOVED 3999 127.0.0.1:6381", &r));
    assert_true(r.is_for_good && r.slot == 3999 && r.to.port == 6381);
    assert_string_equal(r.to.host, "127.0.0.1");
    assert_true(redirects("ASK 16383 ::1:6381", &r));
    assert_true(!r.is_for_good && r.slot == 16383 && r.to.port == 6381);
    assert_string_equal(r.to.host, "::1");
    /* no host: the server that answers, at another port */
    assert_true(redirects("MOVED 1 :6381", &r));
    assert_string_equal(r.to.host, self.host);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (redirects(others[i], &r))
            fail_msg("taken for a redirection: %s", others[i]);
}

static void nodes_are_known_once(void **state)
{
    struct slots *s = calloc(1, sizeof *s);
    struct slots_node a = {"h", 1}, b = {"h", 2}, c = {"i", 1};
    (void)state;
    assert_int_equal(slots_node_index(s, &a), 0);
    assert_int_equal(slots_node_index(s, &b), 1);
    assert_int_equal(slots_node_index(s, &c), 2);
    assert_int_equal(slots_node_index(s, &a), 0);
    for (b.port = 3; s->n_nodes < SLOTS_MAX_NODES; b.port++)
        assert_true(slots_node_index(s, &b) >= 0);
    assert_int_equal(slots_node_index(s, &b), -1);
    assert_int_equal(slots_node_index(s, &c), 2);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_have_slots), cmocka_unit_test(a_list_of_nodes),
        cmocka_unit_test(bad_lists),       cmocka_unit_test(too_many_masters),
        cmocka_unit_test(redirections),    cmocka_unit_test(nodes_are_known_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
