/* remotetest.c - see remotetest.h. */
#include "remotetest.h"

#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"

const struct st_ctx rt_context = {.base = 5, .own = 6};
struct sha256 rt_keys[RT_CHUNKS];
char rt_names[RT_CHUNKS][NAME_BYTES];

/* --- servers ---------------------------------------------------------------------------------- */

static void on_erased(void *arg)
{
    atomic_fetch_add(&((struct rt_server *)arg)->n_erased, 1);
}

void rt_join(struct rt_server *s, const struct remote_opts *o)
{
    struct err err = {0};
    struct remote_opts all = *o;
    all.store = s->store;
    all.ttl_s = RT_TTL_S;
    /* so that a busy machine cannot end a fetch */
    all.stuck_ns = all.stuck_ns > 0 ? all.stuck_ns : LONG_NS;
    all.max_chunk_bytes = all.max_chunk_bytes > 0 ? all.max_chunk_bytes : 1 << 20;
    if (remote_open(&all, &s->remote, &err) != 0)
        fail_msg("%s", err.msg);
    remote_on_erased(s->remote, on_erased, s);
}

void rt_open_with(struct rt_server *s, struct fake_redis *f, const char *place,
                  uint64_t cap_bytes, const struct remote_opts *o)
{
    struct remote_opts all = *o;
    all.url = fake_redis_url(f);
    *s = (struct rt_server){0};
    assert_true(st_place_open(&s->place, place, 1));
    s->place.opts.cap_bytes = cap_bytes > 0 ? cap_bytes : s->place.opts.cap_bytes;
    s->store = st_open(&s->place);
    rt_join(s, &all);
}

void rt_open(struct rt_server *s, struct fake_redis *f)
{
    rt_open_with(s, f, "dram", 0, &(struct remote_opts){0});
}

void rt_close(struct rt_server *s)
{
    remote_on_erased(s->remote, NULL, NULL);
    remote_close(s->remote);
    store_close(s->store);
    st_place_close(&s->place);
}

struct remote_stats rt_stats(struct rt_server *s)
{
    struct remote_stats st;
    remote_stats(s->remote, &st);
    return st;
}

void rt_offer(struct rt_server *s, int n, uint32_t ttl_s)
{
    for (int i = 0; i < n; i++)
        remote_offer(s->remote, &rt_keys[i], ttl_s);
}

void rt_write(struct rt_server *s, struct fake_redis *f, int n)
{
    uint64_t before = rt_stats(s).n_written;
    st_must_save(s->store, &rt_context, n);
    rt_offer(s, n, 0);
    WAIT_FOR(rt_stats(s).n_written == before + (uint64_t)n);
    int64_t lives;
    for (int i = 0; i < n; i++) /* waits until all writes are confirmed */
        WAIT_FOR(fake_redis_value(f, rt_names[i], &lives) > 0 && lives == RT_TTL_S);
}

/* --- fetches ---------------------------------------------------------------------------------- */

void rt_done(void *arg)
{
    atomic_fetch_add(&((struct rt_waiter *)arg)->n_done, 1);
}

struct remote_fetched rt_fetch_with(struct rt_server *s, struct remote_want want)
{
    struct rt_waiter w = {0};
    struct remote_fetched out;
    char why[200] = "";
    want.fingerprint = st_fingerprint(0);
    want.done = rt_done;
    want.arg = &w;
    int64_t t0 = clock_now_ns();
    struct remote_fetch *f = NULL;
    WAIT_FOR(rt_stats(s).is_up);
    WAIT_FOR((f = remote_fetch_begin(s->remote, &want, why, sizeof why)) != NULL);
    WAIT_FOR(atomic_load(&w.n_done) > 0);
    assert_true(remote_fetch_heard_ns(f) >= t0 &&
                remote_fetch_heard_ns(f) <= clock_now_ns());
    remote_fetch_end(f, &out);
    assert_int_equal(atomic_load(&w.n_done), 1);
    return out;
}

struct remote_fetched rt_fetch(struct rt_server *s, int n)
{
    return rt_fetch_with(s, (struct remote_want){.keys = rt_keys, .n = n, .use.ttl_s = 30});
}

int rt_begin(void **state)
{
    struct names names;
    alarm(300);
    names_init(&names, NULL);
    st_keys(&rt_context, RT_CHUNKS, rt_keys);
    for (int i = 0; i < RT_CHUNKS; i++)
        name_chunk(&names, &rt_keys[i], rt_names[i]);
    return 0;
}
