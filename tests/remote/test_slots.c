/* Redis Cluster: the slot of a key, the server of a slot, and the parsing of redirections. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "redis/slots.h"

static const struct slots_node self = {"seed", 7000};

static int slot(const char *key)
{
    return slot_of(key, strlen(key));
}

/* Slots as given by redis-cli's CLUSTER KEYSLOT (Redis 7.0.15). */
TEST(keys_have_slots)
{
    assert_int_equal(slot("123456789"), 0x31c3);
    assert_int_equal(slot("foo"), 12182);
    assert_int_equal(slot(""), 0);
    assert_int_equal(slot("a{foo}b"), 12182);
    assert_int_equal(slot("{foo}{bar}"), 12182);
    assert_int_equal(slot("{}foo"), 9500);
    assert_int_not_equal(slot("{foo"), slot("foo"));
    assert_int_equal(slot("a{f}"), slot("f"));
    assert_int_equal(slot("}a{foo}"), 12182);
    assert_int_equal(slot_of("a{foo}b", 6), 12182);
    assert_int_not_equal(slot_of("a{foo}b", 5), 12182); /* the brace is not closed */
}

#define LINE(id, address, flags, slots)                                                    \
    id " " address " " flags " - 0 17 3 connected" slots "\n"

TEST(a_list_of_nodes)
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

/* Each bad list has its reason. */
TEST(bad_lists)
{
#define SHORT     "the cluster's list of nodes has a short line"
#define ADDRESS   "the cluster's list of nodes has a bad address"
#define SLOTS_BAD "the cluster's list of nodes has bad slots"
#define NOBODY    "the cluster has no master"
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", NOBODY},
        {"\n", NOBODY},
        {"a\n", SHORT},
        {"a 10.0.0.1:7001\n", SHORT},
        {"a 10.0.0.1:7001 \n", SHORT},
        {LINE("a", "10.0.0.1:7001@17001", "slave", ""), NOBODY},
        {LINE("a", "10.0.0.1:7001@17001", "masters", " 1"), NOBODY},
        {LINE("a", "10.0.0.1:7001@17001", "master", ""), NOBODY},
        {LINE("a", "10.0.0.1:7001@17001", "master,handshake", " 1"), NOBODY},
        {LINE("a", "10.0.0.1:7001@17001", "master,noaddr", " 1"), NOBODY},
        {LINE("a", "10.0.0.1:7001@17001", "fail,master", " 1"), NOBODY},
        {LINE("a", "10.0.0.1", "master", ""), ADDRESS},
        {LINE("a", "10.0.0.1:", "master", ""), ADDRESS},
        {LINE("a", "10.0.0.1:0", "master", ""), ADDRESS},
        {LINE("a", "10.0.0.1:65536", "master", ""), ADDRESS},
        {LINE("a", "10.0.0.1:000006379", "master", ""), ADDRESS},
        {LINE("a", "10.0.0.1:x@1", "master", ""), ADDRESS},
        {LINE("a", "10.0.0.1:/@1", "master", ""), ADDRESS},
        {LINE("a", "10.0.0.1:1", "master", " 16384"), SLOTS_BAD},
        {LINE("a", "10.0.0.1:1", "master", " 0-16384"), SLOTS_BAD},
        {LINE("a", "10.0.0.1:1", "master", " 5-4"), SLOTS_BAD},
        {LINE("a", "10.0.0.1:1", "master", " 1-"), SLOTS_BAD},
        {LINE("a", "10.0.0.1:1", "master", " -1"), SLOTS_BAD},
        {LINE("a", "10.0.0.1:1", "master", " 1 x"), SLOTS_BAD},
        {LINE("a", "10.0.0.1:1", "master", " 99999999999999"), SLOTS_BAD},
    };
    struct slots *s = malloc(sizeof *s);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {0};
        const char *text = cases[i].text;
        if (slots_parse(text, strlen(text), &self, false, s, &err) != ERR_FORMAT)
            fail_msg("accepted: %s", text);
        assert_string_equal(err.msg, cases[i].why);
    }
    free(s);
}

/* A master that others suspect is still a master. Lines may end as in the protocol, and the last
 * one need not end. A server is known by its name if it has one. */
TEST(forms_of_a_line)
{
    static const struct {
        const char *text, *host, *name; /* host: by address; name: by name */
        int port;
    } cases[] = {
        {"a 10.0.0.1:65535@1 master,fail? - 0 0 0 connected 0-16383", "10.0.0.1",
         "10.0.0.1", 65535},
        {"a 10.0.0.1:1 myself,master - 0 0 0 connected 0-16383\r\n", "10.0.0.1", "10.0.0.1",
         1},
        {"\r\n a   10.0.0.1:00000007  master - 0 0 0 connected   0-16383 \n", "10.0.0.1",
         "10.0.0.1", 7},
        {"a 10.0.0.1:1@2, master - 0 0 0 connected 0-16383\n", "10.0.0.1", "10.0.0.1", 1},
        {"a 10.0.0.1:1@2,,x master - 0 0 0 connected 0-16383\n", "10.0.0.1", "10.0.0.1", 1},
        {"a 10.0.0.1:1@2,h master - 0 0 0 connected 0-16383\n", "10.0.0.1", "h", 1},
        {"a 10.0.0.1:1@2,h,x=y master - 0 0 0 connected 0-16383\n", "10.0.0.1", "h", 1},
        {"a :1@2,h master - 0 0 0 connected 0-16383\n", "seed", "h", 1},
        {"a fe80::1:9@2 master - 0 0 0 connected 0-9000 9001 9002-16383\n", "fe80::1",
         "fe80::1", 9},
    };
    struct slots *s = malloc(sizeof *s);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int by_name = 0; by_name < 2; by_name++) {
            struct err err = {0};
            if (slots_parse(cases[i].text, strlen(cases[i].text), &self, by_name, s,
                            &err) != 0)
                fail_msg("%s: %s", cases[i].text, err.msg);
            assert_int_equal(s->n_nodes, 1);
            assert_string_equal(s->node[0].host, by_name ? cases[i].name : cases[i].host);
            assert_int_equal(s->node[0].port, cases[i].port);
            for (int k = 0; k < SLOTS; k++)
                assert_int_equal(s->owner[k], 0);
        }
    }
    free(s);
}

/* A host's name may have 255 characters. */
TEST(hosts_are_bounded)
{
    struct slots *s = malloc(sizeof *s);
    for (int n = 254; n <= 256; n++) {
        for (int by_name = 0; by_name < 2; by_name++) {
            char host[300], text[700];
            struct err err = {0};
            struct redirection r;
            memset(host, 'h', (size_t)n);
            host[n] = 0;
            snprintf(text, sizeof text, "a %s:1@2%s%s master - 0 0 0 connected 0\n",
                     by_name ? "x" : host, by_name ? "," : "", by_name ? host : "");
            int rc = slots_parse(text, strlen(text), &self, by_name, s, &err);
            assert_int_equal(rc, n < 256 ? 0 : ERR_FORMAT);
            if (n < 256)
                assert_string_equal(s->node[0].host, host);
            snprintf(text, sizeof text, "MOVED 1 %s:2", host);
            assert_int_equal(redirection_parse(text, strlen(text), &self, &r), n < 256);
        }
    }
    free(s);
}

TEST(too_many_masters)
{
    enum { LINE_BYTES = 80 };
    char *text = calloc(SLOTS_MAX_NODES + 1, LINE_BYTES);
    struct slots *s = malloc(sizeof *s);
    struct err err = {0};
    size_t n = 0, n_fits = 0;
    for (int i = 0; i <= SLOTS_MAX_NODES; i++) {
        n_fits = n;
        n += (size_t)sprintf(text + n, "x 10.0.0.1:%d@1 master - 0 0 0 connected %d\n",
                             i + 1, i);
    }
    assert_int_equal(slots_parse(text, n_fits, &self, false, s, &err), 0);
    assert_int_equal(s->owner[SLOTS_MAX_NODES - 1], SLOTS_MAX_NODES - 1);
    assert_int_equal(slots_parse(text, n, &self, false, s, &err), ERR_LIMIT);
    assert_string_equal(err.msg, "the cluster has more than 128 masters");
    free(s);
    free(text);
}

static bool redirects(const char *text, struct redirection *out)
{
    return redirection_parse(text, strlen(text), &self, out);
}

TEST(redirections)
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

TEST(nodes_are_known_once)
{
    struct slots *s = calloc(1, sizeof *s);
    struct slots_node a = {"h", 1}, b = {"h", 2}, c = {"i", 1};
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
