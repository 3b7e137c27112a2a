/* test_prefix_order.c - which waiting prompt is computed next. */

#include "tests/unit.h"
#include <stdlib.h>
#include <string.h>

#include "api/prefix_order.h"

enum { MAX_ITEMS = 64, TOKENS = 400 };

static int32_t ids[MAX_ITEMS][TOKENS];
static struct prefix_item made[MAX_ITEMS];
static struct prefix_item *room[MAX_ITEMS];

/* Makes a prompt from runs of tokens: "a100b20" is 100 tokens 'a' followed by 20 tokens 'b'. */
static struct prefix_item *prompt(int number, const char *runs)
{
    struct prefix_item *p = &made[number];
    *p = (struct prefix_item){.tokens = ids[number], .number = (uint64_t)number};
    while (*runs != 0) {
        int32_t token = *runs++;
        for (long n = strtol(runs, (char **)&runs, 10); n > 0; n--)
            ids[number][p->n++] = token;
    }
    return p;
}

/* Writes the order in which the prompts are taken, as digits of their numbers. */
static void take_all(struct prefix_order *o, char *out)
{
    struct prefix_item *last = NULL;
    while ((last = prefix_order_take(o, last)) != NULL)
        *out++ = (char)('0' + last->number);
    *out = 0;
}

static const char *order_of(const char *const *runs, int n)
{
    static char out[MAX_ITEMS + 1];
    struct prefix_order o;
    prefix_order_init(&o, room, MAX_ITEMS);
    for (int i = 0; i < n; i++)
        prefix_order_add(&o, prompt(i, runs[i]));
    take_all(&o, out);
    return out;
}

#define ORDER(...)                                                                         \
    order_of((const char *const[]){__VA_ARGS__},                                           \
             sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

TEST(what_shares_nothing_keeps_its_order)
{
    assert_string_equal(ORDER("c100", "a100", "b100"), "012");
    /* A common beginning of less than a block does not change the order. */
    assert_string_equal(ORDER("a63c9", "b99", "a63d9"), "012");
}

TEST(a_shared_prefix_stays_together)
{
    assert_string_equal(ORDER("a100x9", "b100x9", "a100y9", "b100y9"), "0213");
    assert_string_equal(ORDER("a64x9", "b99", "a64y9"), "021");
}

TEST(the_longest_prefix_goes_first)
{
    assert_string_equal(ORDER("a100x9", "a100y9", "b200x9", "b200y9"), "2301");
    /* The same holds after a common beginning: documents that follow one system prompt, each with
     * its questions. */
    assert_string_equal(ORDER("s100a90x1", "s100b90x1", "s100a90y1", "s100b90y1", "c99"),
                        "02134");
}

TEST(a_prompt_that_another_continues_is_beside_it)
{
    assert_string_equal(ORDER("a200", "b100", "a100"), "021");
    assert_string_equal(ORDER("a100", "b99", "a100", "a100"), "0231");
}

TEST(groups_share_nothing)
{
    struct prefix_order o;
    char out[4];
    prefix_order_init(&o, room, MAX_ITEMS);
    for (int i = 0; i < 3; i++) {
        prompt(i, "a200")->group = i == 1;
        prefix_order_add(&o, &made[i]);
    }
    assert_int_equal(prefix_shared(&made[0], &made[1]), 0);
    take_all(&o, out);
    assert_string_equal(out, "021");
}

TEST(a_prompt_that_comes_later_may_go_next)
{
    struct prefix_order o;
    prefix_order_init(&o, room, MAX_ITEMS);
    prefix_order_add(&o, prompt(0, "a100x9"));
    prefix_order_add(&o, prompt(1, "b99"));
    struct prefix_item *last = prefix_order_take(&o, NULL);
    assert_int_equal(last->number, 0);
    prefix_order_add(&o, prompt(2, "a100y9"));
    assert_int_equal(prefix_order_take(&o, last)->number, 2);
    assert_int_equal(prefix_order_take(&o, &made[2])->number, 1);
    assert_null(prefix_order_take(&o, &made[1]));
}

/* Returns the number of tokens in the tree of all prompts, in which each common prefix counts
 * once. */
static int tree_tokens(int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++) {
        int most = 0;
        for (int k = 0; k < i; k++) {
            int shared = prefix_shared(&made[i], &made[k]);
            most = shared > most ? shared : most;
        }
        sum += made[i].n - most;
    }
    return sum;
}

/* With room for the previous prompt only, each token of the tree is computed once, which no order
 * can beat. Prompts are made of whole blocks, so every common token counts. */
TEST(each_prefix_is_computed_once)
{
    srand(1);
    for (int round = 0; round < 200; round++) {
        struct prefix_order o;
        int n = 2 + rand() % (MAX_ITEMS - 2), computed = 0, taken = 0;
        prefix_order_init(&o, room, MAX_ITEMS);
        for (int i = 0; i < n; i++) {
            struct prefix_item *p = prompt(i, "");
            for (int blocks = 1 + rand() % 5; blocks > 0; blocks--, p->n += 64)
                for (int t = 0, c = rand() % 3; t < 64; t++)
                    ids[i][p->n + t] = c;
            prefix_order_add(&o, p);
        }
        const struct prefix_item *last = NULL;
        for (struct prefix_item *p; (p = prefix_order_take(&o, last)) != NULL; last = p) {
            computed += p->n - (last != NULL ? prefix_shared(last, p) : 0);
            taken++;
        }
        assert_int_equal(taken, n);
        assert_int_equal(computed, tree_tokens(n));
    }
}
