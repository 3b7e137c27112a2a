/* Which chunk of which waiting request is brought to memory next. */
#include <stdbool.h>
#include <string.h>

#include "tests/unit.h"
#include "store/read_ahead.h"

/* A want whose chunks are letters: n is not stored, h is in memory or held, d is only on the disk,
 * and D is a large chunk that is only on the disk. */
struct line {
    struct read_ahead_want ahead;
    char at[16];
};

struct owner {
    struct read_ahead_queue list;
    struct read_ahead_room room;
};

static enum read_ahead_place place(void *arg, const struct read_ahead_want *w, int i)
{
    (void)arg;
    char c = ((const struct line *)w)->at[i];
    return c == 'n' ? READ_AHEAD_NOWHERE : c == 'h' ? READ_AHEAD_HERE : READ_AHEAD_DISK;
}

static struct read_ahead_room room(void *arg, const struct read_ahead_want *w, int i)
{
    struct read_ahead_room r = ((struct owner *)arg)->room;
    if (((const struct line *)w)->at[i] == 'D') /* a large chunk */
        r.n_bytes *= 100;
    return r;
}

/* Returns an owner that has room for everything but large chunks, and may drop nothing. */
static struct owner roomy(void)
{
    return (struct owner){.room = {.n_bytes = 1, .free_bytes = 1000, .most_bytes = 10}};
}

static void want(struct owner *o, struct line *l, uint64_t turn, const char *at)
{
    *l = (struct line){.ahead = {.turn = turn, .n = (int)strlen(at)}};
    memcpy(l->at, at, strlen(at));
    read_ahead_add(&o->list, &l->ahead);
}

static enum read_ahead_next choose(struct owner *o, struct line **l, int *at)
{
    const struct read_ahead_view v = {o, place, room, 4};
    struct read_ahead_want *w;
    enum read_ahead_next next = read_ahead_choose(&o->list, &v, &w, at);
    *l = (struct line *)w;
    return next;
}

static void assert_fetch(struct owner *o, const struct line *l, int at)
{
    struct line *is;
    int is_at;
    assert_int_equal(choose(o, &is, &is_at), READ_AHEAD_FETCH);
    assert_ptr_equal(is, l);
    assert_int_equal(is_at, at);
}

static void assert_none(struct owner *o)
{
    struct line *l;
    int at;
    assert_int_equal(choose(o, &l, &at), READ_AHEAD_NONE);
}

/* Checks that the next chunk to fetch is chunk `at` of l, and fetches it. */
static void fetch(struct owner *o, struct line *l, int at)
{
    assert_fetch(o, l, at);
    read_ahead_begin(&l->ahead, at);
    l->at[at] = 'h';
    read_ahead_end(&l->ahead, true, true);
}

TEST(the_earliest_turn_comes_first_from_its_beginning)
{
    struct owner o = roomy();
    struct line a, b, c, d;
    assert_none(&o);
    want(&o, &a, 20, "dddd");
    want(&o, &b, 10, "hdddd");
    want(&o, &c, 30, "dddd");
    want(&o, &d, 20, "dddd"); /* the same turn as a, but announced later */
    for (int i = 1; i < 5; i++)
        fetch(&o, &b, i);
    fetch(&o, &a, 0);
    read_ahead_remove(&o.list, &a.ahead); /* the request of a was cancelled */
    fetch(&o, &d, 0);
    /* removes the list's last want, so d becomes the last */
    read_ahead_remove(&o.list, &c.ahead);
    want(&o, &a, 40, "dddd");
    for (int i = 1; i < 4; i++)
        fetch(&o, &d, i);
    fetch(&o, &a, 0);
    want(&o, &c, 5, "dddd"); /* announced late, but with the earliest turn */
    fetch(&o, &c, 0);
    assert_int_equal(o.list.n, 4);
}

TEST(fewer_than_four_chunks_are_not_worth_a_fetch)
{
    struct owner o = roomy();
    struct line a, b;
    want(&o, &a, 1, "hhdddh");
    assert_none(&o);
    want(&o, &b, 2, "hdhdhdhdh"); /* four chunks in all are to be fetched */
    fetch(&o, &b, 1);
    fetch(&o, &b, 3); /* a want that has been begun continues with three chunks left */
    fetch(&o, &b, 5);
    fetch(&o, &b, 7);
    assert_none(&o);
}

TEST(a_context_ends_at_a_chunk_that_is_not_stored)
{
    struct owner o = roomy();
    struct line a, b;
    want(&o, &a, 1, "dddndddd");
    assert_none(&o);
    want(&o, &b, 2, "ddddndddd");
    for (int i = 0; i < 4; i++)
        fetch(&o, &b, i);
    assert_none(&o);
}

/* Copies that the policy does not know as needed may be dropped at once. Such a chunk is not
 * fetched a second time. */
TEST(a_chunk_that_counted_as_not_needed_is_not_fetched_again)
{
    struct owner o = roomy();
    struct line a;
    want(&o, &a, 1, "dddddd");
    fetch(&o, &a, 0);
    a.at[0] = 'd';
    fetch(&o, &a, 1);
    /* Only a part of the chunk came, so its next part is fetched, too. */
    assert_fetch(&o, &a, 2);
    read_ahead_begin(&a.ahead, 2);
    read_ahead_end(&a.ahead, true, false);
    assert_fetch(&o, &a, 2);
}

/* A write dropped chunks that requests at turns 20 and 30 need. They are fetched again, even if
 * they are fewer than four. Wants of earlier turns are not looked at again. */
TEST(a_needed_chunk_that_was_dropped_is_fetched_again)
{
    struct owner o = roomy();
    struct placement_item victim = {.rank = PLACEMENT_ORDINARY, .order = ~(uint64_t)20};
    struct line a, b, c;
    want(&o, &a, 10, "dddd");
    want(&o, &b, 20, "dddd");
    want(&o, &c, 30, "dddd");
    for (int i = 0; i < 4; i++)
        fetch(&o, &a, i);
    for (int i = 0; i < 4; i++)
        fetch(&o, &b, i);
    fetch(&o, &c, 0);
    a.at[3] = b.at[2] = b.at[3] = c.at[0] = 'd';
    read_ahead_dropped(&o.list, &victim); /* no request needed the dropped chunk */
    fetch(&o, &c, 1);
    victim.rank = PLACEMENT_UPCOMING;
    read_ahead_dropped(&o.list, &victim);
    victim.order = ~(uint64_t)30;
    read_ahead_dropped(&o.list, &victim);
    fetch(&o, &b, 2);
    fetch(&o, &b, 3);
    fetch(&o, &c, 0); /* this chunk was dropped before turn 30 was looked at again */
    fetch(&o, &c, 2);
    fetch(&o, &c, 3);
    assert_none(&o);
}

TEST(a_failed_fetch_ends_those_of_its_want_only)
{
    struct owner o = roomy();
    struct line a, b;
    want(&o, &a, 1, "dddd");
    want(&o, &b, 2, "dddd");
    assert_fetch(&o, &a, 0);
    read_ahead_begin(&a.ahead, 0);
    read_ahead_end(&a.ahead, false, false);
    fetch(&o, &b, 0);
}

/* A chunk that is too large for memory fails its own want and does not block later wants. */
TEST(a_chunk_that_is_too_large_is_passed_over)
{
    struct owner o = roomy();
    struct line a, b;
    want(&o, &a, 1, "Dddd");
    want(&o, &b, 2, "dddd");
    fetch(&o, &b, 0);
    assert_true(a.ahead.has_failed);
}

/* Memory is full. A want may displace chunks that no request needs, or that a later turn needs, but
 * never chunks of its own turn or an earlier one. Until there is room, nothing is fetched for later
 * turns. */
TEST(a_later_turn_never_takes_the_room_of_an_earlier_one)
{
    struct owner o = roomy();
    struct placement_item victim = {.rank = PLACEMENT_ORDINARY};
    struct line a, b, *l;
    int at;
    want(&o, &a, 10, "dddd");
    want(&o, &b, 20, "dddd");
    o.room.free_bytes = 0;
    assert_int_equal(choose(&o, &l, &at), READ_AHEAD_NO_ROOM); /* nothing may be dropped */
    o.room.victim = &victim;
    assert_fetch(&o, &a, 0);
    victim.rank = PLACEMENT_UPCOMING;
    victim.order = ~(uint64_t)11; /* a request at turn 11 needs the victim */
    assert_fetch(&o, &a, 0);
    victim.order = ~(uint64_t)10;
    assert_int_equal(choose(&o, &l, &at), READ_AHEAD_NO_ROOM);
    victim.order = ~(uint64_t)9;
    assert_int_equal(choose(&o, &l, &at), READ_AHEAD_NO_ROOM);
    victim.rank = PLACEMENT_KEPT;
    assert_int_equal(choose(&o, &l, &at), READ_AHEAD_NO_ROOM);
    o.room.free_bytes = 1; /* exactly the room that the chunk takes */
    assert_fetch(&o, &a, 0);
}
