/* test_keep.c - the code that all routes of kept conversations share: faults, pages of a list,
 * times to live, the check for changes of the system's clock, and what is tidied when. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/mem.h"
#include "server/keep.h"
#include "tests/base/said.h"

/* --- the system's clock, and the query of a call ---------------------------------------------- */

static int64_t set_by_s; /* seconds by which the system's clock was set */
static int64_t
    passed_s; /* seconds that have passed since the start, in addition to the real ones */

/* The system's clock, changed by set_by_s. A further half second makes clock_set_by_s, which rounds
 * towards zero, return set_by_s. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    enum { HALF_NS = 500000000 };
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (id == CLOCK_BOOTTIME || id == CLOCK_REALTIME)
        t->tv_sec += passed_s;
    if (id != CLOCK_REALTIME || set_by_s == 0)
        return rc;
    int64_t ns = (t->tv_sec + set_by_s) * 1000000000 + t->tv_nsec;
    ns += set_by_s > 0 ? HALF_NS : -HALF_NS;
    *t = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return rc;
}

static const char *limit, *order, *after;

const char *MHD_lookup_connection_value(struct MHD_Connection *connection,
                                        enum MHD_ValueKind kind, const char *key)
{
    assert_null(connection);
    assert_int_equal(kind, MHD_GET_ARGUMENT_KIND);
    return strcmp(key, "limit") == 0   ? limit
           : strcmp(key, "order") == 0 ? order
           : strcmp(key, "after") == 0 ? after
                                       : NULL;
}

/* --- faults ----------------------------------------------------------------------------------- */

TEST(each_error_has_its_status)
{
    static const struct {
        int rc, status;
        const char *code;
    } rows[] = {
        {-ENOSPC, 507, "disk_full"},
        {-EDQUOT, 507, "disk_full"},
        {-ENOMEM, 503, "out_of_memory"},
        {ERR_NOT_FOUND, 404, "not_found"},
        {-EAGAIN, 503, "conversations_unavailable"},
        {ERR_LIMIT, 400, "storage_full"},
        {ERR_MISMATCH, 409, "conflict"},
        {-EIO, 500, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fault f = {0};
        struct err err = {.code = rows[i].rc};
        strcpy(err.msg, "the reason");
        assert_int_equal(keep_fault(&err, &f), -1);
        assert_int_equal(f.status, rows[i].status);
        assert_true((f.code == NULL) == (rows[i].code == NULL));
        if (f.code != NULL)
            assert_string_equal(f.code, rows[i].code);
        assert_string_equal(
            f.message, i < 2 ? "the reason; delete conversations, or make room on the disk"
                             : "the reason");
    }
    struct fault f = {0};
    assert_int_equal(keep_none(&f), -1);
    assert_int_equal(f.status, 400);
    assert_string_equal(f.code, "not_kept");
    assert_string_equal(f.param, "store");
}

/* --- lists ------------------------------------------------------------------------------------ */

static int page(const char *wants_limit, const char *wants_order, struct items_page *p,
                struct fault *f)
{
    struct call c = {0};
    limit = wants_limit;
    order = wants_order;
    after = "item 7";
    *f = (struct fault){0};
    return keep_page(&c, 20, p, f);
}

TEST(a_page_has_a_limit_and_an_order)
{
    struct items_page p;
    struct fault f;
    assert_int_equal(page(NULL, NULL, &p, &f), 0);
    assert_int_equal(p.limit, 20);
    assert_false(p.oldest_first);
    assert_string_equal(p.after, "item 7");
    assert_int_equal(page("1", "asc", &p, &f), 0);
    assert_int_equal(p.limit, 1);
    assert_true(p.oldest_first);
    assert_int_equal(page("100", "desc", &p, &f), 0);
    assert_int_equal(p.limit, 100);
    assert_false(p.oldest_first);
    static const char *const bad[] = {
        "0", "101", "-1", "", "x", "7x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(page(bad[i], NULL, &p, &f), -1);
        assert_int_equal(f.status, 400);
        assert_string_equal(f.param, "limit");
        assert_string_equal(f.message, "'limit' must be a number from 1 to 100");
    }
    assert_int_equal(page(NULL, "up", &p, &f), -1);
    assert_int_equal(f.status, 400);
    assert_string_equal(f.param, "order");
}

TEST(a_path_is_cut_at_its_first_slash)
{
    char two[] = "conv_1/items/7", one[] = "conv_1", ends[] = "conv_1/";
    assert_string_equal(keep_split(two), "items/7");
    assert_string_equal(two, "conv_1");
    assert_string_equal(keep_split(one), "");
    assert_string_equal(one, "conv_1");
    assert_string_equal(keep_split(ends), "");
    assert_string_equal(ends, "conv_1");
}

/* --- times to live ---------------------------------------------------------------------------- */

TEST(a_time_to_live_is_digits_within_its_bound)
{
    char most[24], more[24];
    snprintf(most, sizeof most, "%lld", (long long)HCACHE_MAX_CACHE_TTL_S);
    snprintf(more, sizeof more, "%lld", (long long)HCACHE_MAX_CACHE_TTL_S + 1);
    int64_t ttl_s = -1;
    assert_true(keep_ttl("0", &ttl_s));
    assert_int_equal(ttl_s, 0);
    /* leading zeros are allowed within nine digits */
    assert_true(keep_ttl("000000060", &ttl_s));
    assert_int_equal(ttl_s, 60);
    assert_true(keep_ttl(most, &ttl_s));
    assert_int_equal(ttl_s, HCACHE_MAX_CACHE_TTL_S);
    const char *const bad[] = {"", "-1", "+1", " 1", "1 ", "1.5", "x", "0000000060", more};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(keep_ttl(bad[i], &ttl_s));
    /* a refused text leaves the value unchanged */
    assert_int_equal(ttl_s, HCACHE_MAX_CACHE_TTL_S);
}

/* --- the clock -------------------------------------------------------------------------------- */

/* Sets the clock by by_s, tidies, and returns the number of bytes that were logged. */
static size_t tidy(struct server *s, int64_t by_s)
{
    set_by_s = by_s;
    said_begin(LOG_WARN);
    keep_tidy(s);
    return strlen(said_end());
}

/* Setting the clock by at least a minute is logged once. A smaller change is not logged. While no
 * model is loaded, nothing else is tidied. */
TEST(a_clock_that_is_set_is_logged_once)
{
    static struct server s;
    static const struct {
        int64_t by_s;
        bool is_logged;
    } steps[] = {{0, false},  {59, false},  {60, true},    {60, false},  {119, false},
                 {120, true}, {61, false},  {60, true},    {0, true},    {-59, false},
                 {-60, true}, {-1, false},  {-119, false}, {-120, true}, {-120, false},
                 {0, true},   {86400, true}};
    int64_t logged_s = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        bool is_logged = tidy(&s, steps[i].by_s) > 0;
        if (is_logged != steps[i].is_logged)
            fail_msg("the clock was set by %d s: %s", (int)steps[i].by_s,
                     is_logged ? "logged" : "not logged");
        if (is_logged)
            logged_s = steps[i].by_s;
        assert_int_equal(s.clock_set_by_s, logged_s);
    }
    set_by_s = 0;
}

/* --- tidying ---------------------------------------------------------------------------------- */

enum { N = 200, CHUNKS = 4 };

static void make_ids(int32_t ids[N], int seed)
{
    for (int i = 0; i < N; i++)
        ids[i] = 3 + (i * 37 + (i < 64 ? 0 : seed * 101)) % 450;
}

/* Opens a server's state around a model with a store in memory; the server itself does not run. */
static void open_server(struct server *s)
{
    const struct hcache_opts o = {.model = "synth:tiny-mha",
                                  .threads = 1,
                                  .max_context = 512,
                                  .store_in_memory = true,
                                  .no_reuse = true};
    struct hcache *h = NULL;
    struct hcache_err err = {0};
    *s = (struct server){0};
    if (hcache_open(&o, &h, &err) != 0)
        fail_msg("%s", err.msg);
    pthread_mutex_init(&s->advice_lock, NULL);
    atomic_store(&s->h, h);
}

static void close_server(struct server *s)
{
    hcache_close(atomic_load(&s->h));
    pthread_mutex_destroy(&s->advice_lock);
    passed_s = 0;
}

/* Saves 200 tokens, which begin like those of each other seed. */
static void save(struct server *s, int seed, int cache_ttl_s)
{
    int32_t ids[N];
    struct hcache_result r;
    make_ids(ids, seed);
    const struct hcache_request q = {
        .prompt = ids, .n_prompt = N, .save = "kv", .cache_ttl_s = cache_ttl_s};
    assert_int_equal(hcache_generate(atomic_load(&s->h), &q, &r, NULL), 0);
    hcache_result_free(&r);
}

static uint64_t n_chunks(struct server *s)
{
    struct hcache_cache_stats k;
    hcache_cache_stats(atomic_load(&s->h), NULL, &k);
    return k.n_chunks;
}

/* Idle chunks are searched sixteen times within their time, and are evicted behind it. */
TEST(idle_chunks_are_evicted_at_their_time)
{
    static struct server s;
    open_server(&s);
    save(&s, 1, 0);
    keep_tidy(&s); /* without a time nothing is searched */
    assert_int_equal(s.next_idle_s, 0);
    s.o.idle_ttl_s = 1600;
    keep_tidy(&s);
    int64_t next = s.next_idle_s;
    assert_in_range(next, clock_wall_s() + 100 - 30, clock_wall_s() + 100);
    passed_s = next - clock_wall_s() - 1;
    keep_tidy(&s);
    assert_int_equal(s.next_idle_s, next);
    passed_s++;
    keep_tidy(&s);
    assert_true(s.next_idle_s >= next + 100);
    assert_int_equal(n_chunks(&s), CHUNKS);
    passed_s = 1600 - 60; /* the test itself takes less than that */
    s.next_idle_s = 0;
    keep_tidy(&s);
    assert_int_equal(n_chunks(&s), CHUNKS);
    passed_s = 1602;
    s.next_idle_s = 0;
    keep_tidy(&s);
    assert_int_equal(n_chunks(&s), 0);
    close_server(&s);
}

TEST(expired_chunks_are_evicted)
{
    static struct server s;
    open_server(&s);
    save(&s, 1, 3600);
    save(&s, 2, 0);
    passed_s = 3600 - 60;
    keep_tidy(&s);
    assert_int_equal(n_chunks(&s), 2 * CHUNKS - 1);
    passed_s = 3602;
    keep_tidy(&s);
    assert_int_equal(n_chunks(&s), CHUNKS); /* the shared beginning stays */
    close_server(&s);
}

/* The advice is made at once, and again only after a thousand times the time that it took. */
TEST(the_advice_is_made_now_and_then)
{
    static struct server s;
    open_server(&s);
    save(&s, 1, 0);
    assert_null(s.advice[0].within);
    keep_tidy(&s);
    assert_string_equal(s.advice[0].within, "hour");
    assert_int_equal(s.advice[0].contexts, 1);
    assert_true(s.next_advice_ns > 0);
    save(&s, 2, 0);
    s.next_advice_ns = INT64_MAX;
    keep_tidy(&s);
    assert_int_equal(s.advice[0].contexts, 1);
    assert_int_equal(s.next_advice_ns, INT64_MAX);
    int64_t now = clock_now_ns();
    s.next_advice_ns = now;
    keep_tidy(&s);
    assert_int_equal(s.advice[0].contexts, 2);
    assert_true(s.next_advice_ns > now);
    close_server(&s);
}

/* Keeps a turn whose chunks are those of the saved tokens of a seed. */
static void keep_turn(struct server *s, const char *name, int seed)
{
    int32_t ids[N];
    struct err err = {0};
    bool branched;
    struct turn *t = xcalloc(1, sizeof *t);
    make_ids(ids, seed);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->is_visible = true;
    t->input = xstrdup("[]");
    t->output = xstrdup("[]");
    t->keys = xcalloc(CHUNKS + 2, sizeof *t->keys);
    t->n_keys = hcache_chunk_keys(atomic_load(&s->h), 0, 0, 0, ids, N, NULL,
                                  (void *)t->keys);
    if (turn_add(s->conversations, "", t, NULL, &branched, &err) != 0)
        fail_msg("%s", err.msg);
    turn_free(t);
}

static int n_doomed(struct server *s)
{
    struct sha256 keys[16];
    int n = 0;
    assert_int_equal(conversations_doomed(s->conversations, keys, 16, &n, NULL), 0);
    return n;
}

/* The chunks of an erased turn are erased, but those that other contexts continue stay. */
TEST(the_chunks_of_erased_turns_are_erased)
{
    static struct server s;
    struct conversations *c = NULL;
    const struct conversations_opts o = {.ttl_s = 1000};
    struct erased gone;
    struct err err = {0};
    open_server(&s);
    assert_int_equal(conversations_open(&o, &c, &err), 0);
    atomic_store(&s.conversations, c);
    struct hcache_erased sum = keep_bury(&s); /* there is nothing to erase */
    assert_true(sum.n_chunks == 0 && sum.n_shared == 0);
    for (int seed = 1; seed <= 3; seed++)
        save(&s, seed, 0);
    keep_turn(&s, "resp_1", 1);
    keep_turn(&s, "resp_2", 2);
    assert_int_equal(n_chunks(&s), 3 * CHUNKS - 2);
    assert_int_equal(turn_delete(c, "", "resp_1", &gone, &err), 0);
    /* the keys of the unfinished chunk with its last token and without it are doomed, too */
    assert_int_equal(n_doomed(&s), CHUNKS);
    sum = keep_bury(&s);
    assert_int_equal(sum.n_chunks, CHUNKS - 1);
    assert_int_equal(sum.n_shared,
                     0); /* another turn names the first chunk, so it is not doomed */
    assert_true(sum.n_bytes > 0 && sum.n_busy == 0 && sum.n_owed == 0);
    assert_int_equal(n_doomed(&s), 0);
    assert_int_equal(n_chunks(&s), 2 * CHUNKS - 1);
    /* no turn names the chunks of seed 3, but they continue the first chunk of seed 2 */
    assert_int_equal(turn_delete(c, "", "resp_2", &gone, &err), 0);
    sum = keep_bury(&s);
    assert_int_equal(sum.n_chunks, CHUNKS - 1);
    assert_int_equal(sum.n_shared, 1);
    assert_int_equal(n_doomed(&s), 0);
    assert_int_equal(n_chunks(&s), CHUNKS);
    /* tidying ends old turns, and erases their chunks */
    keep_turn(&s, "resp_3", 3);
    passed_s = 900;
    keep_tidy(&s);
    assert_int_equal(n_chunks(&s), CHUNKS);
    passed_s = 1002;
    keep_tidy(&s);
    assert_int_equal(n_chunks(&s), 0);
    assert_int_equal(n_doomed(&s), 0);
    conversations_close(c);
    close_server(&s);
}
