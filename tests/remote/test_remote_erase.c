/* test_remote_erase.c - erasures reach the Redis and every server that shares it, also servers that
 * come later or were away. The Redis is sim/fake_redis.h. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tests/remote/remotetest.h"

/* --- erasures --------------------------------------------------------------------------------- */

static void erase(struct rt_server *s, int first, int n)
{
    struct store_erased gone = {0};
    remote_erase_begin(s->remote);
    assert_int_equal(store_erase(s->store, rt_keys + first, n, &gone, NULL), 0);
    assert_int_equal(gone.n_chunks, n);
    remote_erase_end(s->remote, NULL, NULL, 0);
}

/* One server erases the end of a chain. The chunks are deleted in the Redis, then in every other
 * server. For a while they are not fetched, even if another server writes them again. */
TEST(an_erasure_reaches_every_server)
{
    struct fake_redis *f = fake_redis_start();
    struct rt_server a, b;
    char why[200];
    rt_open(&a, f);
    rt_open(&b, f);
    rt_write(&a, f, RT_CHUNKS);
    assert_int_equal(rt_fetch(&b, RT_CHUNKS).n_chunks, RT_CHUNKS);
    uint8_t *bytes = xmalloc(fake_redis_value(f, rt_names[3], NULL));
    size_t n = fake_redis_value(f, rt_names[3], NULL);
    fake_redis_get(f, rt_names[3], bytes);
    WAIT_FOR(rt_stats(&a).is_up);
    fake_redis_trouble(f, "XADD", FAKE_REFUSES, INT_MAX);
    erase(&a, 2, 2);
    /* Until the erasure is published, nothing is fetched. */
    struct remote_want want = {
        .keys = rt_keys, .n = 1, .fingerprint = st_fingerprint(0), .done = rt_done};
    assert_null(remote_fetch_begin(a.remote, &want, why, sizeof why));
    assert_string_equal(why, "an erasure is on its way to the remote");
    assert_int_equal(rt_stats(&a).n_unpublished, 1);
    /* A full remote is up, and takes no writes. */
    WAIT_FOR(rt_stats(&a).is_full);
    struct remote_stats full = rt_stats(&a);
    assert_true(full.is_up);
    assert_string_equal(full.why_down,
                        "it answers, but is full: erasures do not reach it: the "
                        "remote refuses: OOM no room");
    fake_redis_answer(f);
    WAIT_FOR(rt_stats(&a).n_unpublished == 0);
    WAIT_FOR(!rt_stats(&a).is_full);
    assert_int_equal(fake_redis_n_added(f), 1);
    for (int i = 0; i < RT_CHUNKS; i++)
        assert_int_equal(fake_redis_value(f, rt_names[i], NULL) > 0, i < 2);
    WAIT_FOR(st_n_found(b.store, &rt_context, RT_CHUNKS) == 2);
    WAIT_FOR(atomic_load(&b.n_erased) == 1);
    /* a server does not report its own erasure to itself */
    assert_int_equal(atomic_load(&a.n_erased), 0);
    WAIT_FOR(rt_stats(&a).n_erasures_everywhere == 1 &&
             rt_stats(&b).n_erasures_everywhere == 1);
    assert_int_equal(fake_redis_n_fields(f), 2);
    struct remote_stats st = rt_stats(&b);
    assert_int_equal(st.n_servers, 2);
    assert_int_equal(st.n_erasures, 1);
    assert_int_equal(st.n_unpublished, 0);
    assert_true(remote_is_current(a.remote) && remote_is_current(b.remote));
    assert_true(remote_is_current(NULL));
    /* any value will do, because it is not fetched */
    fake_redis_put(f, rt_names[2], bytes, n);
    fake_redis_put(f, rt_names[3], bytes, n);
    struct remote_fetched out = rt_fetch_with(
        &b, (struct remote_want){.keys = rt_keys + 3, .n = 1});
    assert_int_equal(out.n_chunks, 0);
    assert_int_equal(out.why, REMOTE_MISS_ABSENT);
    assert_string_equal(out.text, "the remote's copy was erased a moment ago");
    assert_int_equal(st_n_found(b.store, &rt_context, RT_CHUNKS), 2);
    free(bytes);
    rt_close(&a);
    rt_close(&b);
    fake_redis_stop(f);
}

/* All chunks of an owner are erased, and no others, although the names of chunks do not contain
 * their owner. */
TEST(an_owners_chunks_are_found_and_erased)
{
    struct fake_redis *f = fake_redis_start();
    struct rt_server a, b;
    struct st_ctx salted = {.base = 3, .own = 3, .salt = "tenant"};
    struct sha256 own[2];
    char name[2][NAME_BYTES];
    uint64_t owner = store_owner("tenant");
    struct store_erased gone = {0};
    rt_open(&a, f);
    rt_open(&b, f);
    rt_write(&a, f, RT_CHUNKS);
    st_must_save(a.store, &salted, 2);
    st_must_save(b.store, &salted, 2);
    st_must_save(b.store, &rt_context, RT_CHUNKS);
    st_keys(&salted, 2, own);
    for (int i = 0; i < 2; i++) {
        name_chunk(&a.remote->names, &own[i], name[i]);
        remote_offer(a.remote, &own[i], 0);
    }
    WAIT_FOR(rt_stats(&a).n_written == RT_CHUNKS + 2);
    fake_redis_put(f, "hcache:1:chunk:short", "too short", 9);
    remote_erase_begin(a.remote);
    assert_int_equal(store_erase_owner(a.store, owner, &gone, NULL), 0);
    assert_int_equal(gone.n_chunks, 2);
    remote_erase_end(a.remote, &owner, NULL, 0);
    WAIT_FOR(rt_stats(&a).n_unpublished == 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(fake_redis_value(f, name[i], NULL), 0);
    for (int i = 0; i < RT_CHUNKS; i++)
        assert_true(fake_redis_value(f, rt_names[i], NULL) > 0);
    /* the list has one entry for the owner, and none for the owner's chunks */
    assert_int_equal(fake_redis_n_added(f), 1);
    assert_int_equal(fake_redis_count(f, "SCAN"), 2);
    WAIT_FOR(st_n_found(b.store, &salted, 2) == 0);
    assert_int_equal(st_n_found(b.store, &rt_context, RT_CHUNKS), RT_CHUNKS);
    rt_close(&a);
    rt_close(&b);
    fake_redis_stop(f);
}

/* An erasure has at most 1,024 keys, so a larger one is several entries. */
TEST(a_large_erasure_is_several_entries)
{
    enum { MANY = ERASURE_MAX_KEYS + 3 };
    struct fake_redis *f = fake_redis_start();
    struct rt_server a;
    struct sha256 *all = xcalloc(MANY, sizeof *all);
    for (int i = 0; i < MANY; i++)
        put_u32(all[i].b, (uint32_t)i + 1);
    rt_open(&a, f);
    WAIT_FOR(rt_stats(&a).is_up);
    remote_erase_begin(a.remote);
    remote_erase_end(a.remote, NULL, all, MANY);
    WAIT_FOR(rt_stats(&a).n_unpublished == 0);
    assert_int_equal(fake_redis_n_added(f), 2);
    assert_int_equal(fake_redis_count(f, "XADD"), 2);
    assert_int_equal(fake_redis_count(f, "UNLINK"), MANY);
    remote_erase_begin(a.remote);
    remote_erase_end(a.remote, NULL, all, ERASURE_MAX_KEYS);
    WAIT_FOR(rt_stats(&a).n_unpublished == 0);
    assert_int_equal(fake_redis_n_added(f), 3);
    remote_erase_begin(a.remote); /* nothing is erased, so nothing is published */
    remote_erase_end(a.remote, NULL, NULL, 0);
    assert_int_equal(rt_stats(&a).n_unpublished, 0);
    free(all);
    rt_close(&a);
    fake_redis_stop(f);
}

/* A text is erased with all that continues it, here and on other servers. The chunks before it
 * stay, and may be fetched again. */
TEST(an_erased_text_is_gone_everywhere)
{
    struct fake_redis *f = fake_redis_start();
    struct rt_server a, b;
    struct store_erased gone = {0};
    rt_open(&a, f);
    rt_open(&b, f);
    rt_write(&a, f, RT_CHUNKS);
    assert_int_equal(rt_fetch(&b, RT_CHUNKS).n_chunks, RT_CHUNKS);
    /* The text ends within chunk 2, and chunk 3 continues that chunk. */
    struct sha256 text[3] = {rt_keys[0], rt_keys[1]};
    int32_t tokens[STORE_CHUNK_TOKENS];
    st_tokens(&rt_context, 2, tokens);
    text[2] = store_partial_key(&rt_keys[1], tokens, 20);
    remote_erase_begin(a.remote);
    assert_int_equal(store_erase_continuing(a.store, text, 3, &gone, NULL), 0);
    remote_erase_end_text(a.remote, text, 3);
    assert_int_equal(gone.n_chunks, 2);
    WAIT_FOR(rt_stats(&a).n_unpublished == 0);
    /* the text, and the chunks that were taken away */
    assert_int_equal(fake_redis_n_added(f), 2);
    for (int i = 0; i < RT_CHUNKS; i++)
        assert_int_equal(fake_redis_value(f, rt_names[i], NULL) > 0, i < 2);
    WAIT_FOR(st_n_found(b.store, &rt_context, RT_CHUNKS) == 2);
    WAIT_FOR(rt_stats(&b).n_erasures == 2);
    assert_true(atomic_load(&b.n_erased) > 0);
    assert_int_equal(st_n_right(a.store, &rt_context, RT_CHUNKS), 2);
    rt_close(&a);
    rt_close(&b);
    fake_redis_stop(f);
}

/* Another server erases a text of which this server alone has a continuation. The continuation is
 * erased here and in the Redis, and is not fetched again. */
TEST(a_continuation_of_an_erased_text_is_banned)
{
    struct fake_redis *f = fake_redis_start();
    struct rt_server a;
    struct sha256 text[3] = {rt_keys[0], rt_keys[1]};
    int32_t tokens[STORE_CHUNK_TOKENS];
    uint8_t entry[200];
    struct erasure e = {.server = 1, .is_text = true, .n = 3, .keys = text};
    st_tokens(&rt_context, 2, tokens);
    text[2] = store_partial_key(&rt_keys[1], tokens, 20);
    rt_open(&a, f);
    rt_write(&a, f, RT_CHUNKS);
    size_t n = fake_redis_value(f, rt_names[2], NULL);
    uint8_t *bytes = xmalloc(n);
    fake_redis_get(f, rt_names[2], bytes);
    erasure_encode(&e, entry);
    fake_redis_add(f, entry, erasure_bytes(3));
    WAIT_FOR(rt_stats(&a).n_erasures == 1);
    assert_int_equal(st_n_found(a.store, &rt_context, RT_CHUNKS), 2);
    assert_int_equal(atomic_load(&a.n_erased), 1);
    for (int i = 0; i < RT_CHUNKS; i++)
        assert_int_equal(fake_redis_value(f, rt_names[i], NULL) > 0, i < 2);
    assert_int_equal(fake_redis_count(f, "UNLINK"), 2);
    fake_redis_put(f, rt_names[2], bytes, n); /* a server that has not read the erasure */
    struct remote_fetched out = rt_fetch_with(
        &a, (struct remote_want){.keys = rt_keys + 2, .n = 1});
    assert_int_equal(out.n_chunks, 0);
    assert_string_equal(out.text, "the remote's copy was erased a moment ago");
    free(bytes);
    rt_close(&a);
    fake_redis_stop(f);
}

/* Another server erases chunks of two chains. This server continues one of them by a chunk that is
 * not erased, so that one stays. The other chain is erased all the same. */
TEST(a_chunk_that_is_continued_here_stays)
{
    static const struct st_ctx other = {.base = 8, .own = 9};
    struct fake_redis *f = fake_redis_start();
    struct rt_server a;
    struct sha256 erased[2];
    uint8_t entry[200];
    struct erasure e = {.server = 1, .n = 2, .keys = erased};
    st_keys(&other, 1, erased);
    erased[1] = rt_keys[1];
    rt_open(&a, f);
    st_must_save(a.store, &rt_context, RT_CHUNKS);
    st_must_save(a.store, &other, 1);
    assert_true(erasure_bytes(2) <= sizeof entry);
    erasure_encode(&e, entry);
    fake_redis_add(f, entry, erasure_bytes(2));
    WAIT_FOR(rt_stats(&a).n_erasures == 1);
    assert_int_equal(st_n_found(a.store, &other, 1), 0);
    assert_int_equal(st_n_found(a.store, &rt_context, RT_CHUNKS), RT_CHUNKS);
    assert_int_equal(atomic_load(&a.n_erased), 1);
    rt_close(&a);
    fake_redis_stop(f);
}

/* A server bans the chunks that others have erased in the minute before it was opened: a server
 * that has not read the erasure may write them again. */
TEST(a_new_server_bans_what_was_erased_lately)
{
    struct fake_redis *f = fake_redis_start();
    struct rt_server a, b;
    uint8_t entry[200];
    int64_t now_ms = clock_wall_s() * 1000;
    rt_open(&a, f);
    rt_write(&a, f, RT_CHUNKS);
    /* Chunk 0 was erased long ago. The others were erased lately, the last one in an entry that one
     * answer has no room for. */
    for (int i = 0; i < 20; i++) {
        struct sha256 k = i == 0    ? rt_keys[0]
                          : i == 19 ? rt_keys[3]
                                    : (struct sha256){{(uint8_t)i}};
        struct erasure e = {.server = 1, .n = 1, .keys = &k};
        erasure_encode(&e, entry);
        fake_redis_add_at(f, now_ms - (i == 0 ? 120000 : 30000 - i), entry,
                          erasure_bytes(1));
    }
    WAIT_FOR(rt_stats(&a).n_erasures == 20);
    st_must_save(a.store, &rt_context, RT_CHUNKS);
    rt_offer(&a, RT_CHUNKS, 0); /* it has removed chunks 0 and 3 from the Redis */
    for (int i = 0; i < RT_CHUNKS; i++)
        WAIT_FOR(fake_redis_value(f, rt_names[i], NULL) > 0);
    rt_open(&b, f);
    struct remote_fetched out = rt_fetch_with(
        &b, (struct remote_want){.keys = rt_keys, .n = 1});
    assert_int_equal(out.n_chunks, 1);
    out = rt_fetch_with(&b, (struct remote_want){.keys = rt_keys + 3, .n = 1});
    assert_int_equal(out.n_chunks, 0);
    assert_int_equal(out.why, REMOTE_MISS_ABSENT);
    assert_string_equal(out.text, "the remote's copy was erased a moment ago");
    rt_close(&a);
    rt_close(&b);
    fake_redis_stop(f);
}

/* --- a server that was away ------------------------------------------------------------------- */

/* The calls of the file of the position. A position that takes its name before it is synced may be
 * empty after a power failure. */
static atomic_int n_synced, n_named, n_too_early;

int fdatasync(int fd)
{
    atomic_fetch_add(&n_synced, 1);
    return (int)syscall(SYS_fdatasync, fd);
}

int rename(const char *from, const char *to)
{
    if (strstr(to, "/remote.erasures") != NULL)
        n_too_early += n_synced < ++n_named;
    return (int)syscall(SYS_rename, from, to);
}

/* A server with a store and a file of its position in the list of erasures leaves, and comes back
 * later. */
static void leave(struct rt_server *s)
{
    remote_on_erased(s->remote, NULL, NULL);
    remote_close(s->remote);
    s->remote = NULL;
}

static void come_back(struct rt_server *s, struct fake_redis *f, const char *place)
{
    rt_join(s, &(struct remote_opts){.url = fake_redis_url(f), .place_dir = place});
    WAIT_FOR(remote_is_current(s->remote));
}

static void place_is(const char *dir, const char *want)
{
    char path[300], text[64] = "";
    struct stat st;
    snprintf(path, sizeof path, "%s/remote.erasures", dir);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, want);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void put_erasure(struct fake_redis *f, const struct sha256 *key)
{
    uint8_t entry[200];
    struct sha256 k = *key;
    struct erasure e = {.server = 1, .n = 1, .keys = &k};
    assert_true(erasure_bytes(1) <= sizeof entry);
    erasure_encode(&e, entry);
    fake_redis_add(f, entry, erasure_bytes(1));
}

/* A server that comes back first drops the chunks that others erased while it was away. It
 * continues after the last entry that it has read, and skips bad entries. If the stream has lost
 * entries that the server has not read, the server drops all its state. If the stream is a new one,
 * the server reads it from the beginning. */
TEST(a_server_catches_up)
{
    char dir[TEMPDIR_BYTES];
    struct fake_redis *f = fake_redis_start();
    struct rt_server b = {0};
    struct sha256 nobody = {{7}};
    tempdir_make(dir, "remote");
    assert_true(st_place_open(&b.place, "dram", 1));
    b.store = st_open(&b.place);
    st_must_save(b.store, &rt_context, RT_CHUNKS);
    for (int i = 0; i < 3; i++)
        put_erasure(f, &nobody);
    /* At its first visit a server with a store that is not empty reads older entries, too. It is
     * not current until it has read them. */
    fake_redis_trouble(f, "XINFO", FAKE_REFUSES, INT_MAX);
    rt_join(&b, &(struct remote_opts){.url = fake_redis_url(f), .place_dir = dir});
    WAIT_FOR(fake_redis_count(f, "XINFO") > 0);
    assert_false(remote_is_current(b.remote));
    fake_redis_answer(f);
    WAIT_FOR(remote_is_current(b.remote));
    assert_int_equal(rt_stats(&b).n_erasures, 3);
    assert_int_equal(st_n_found(b.store, &rt_context, RT_CHUNKS), RT_CHUNKS);
    assert_int_equal(atomic_load(&b.n_erased), 0);
    leave(&b);
    place_is(dir, "3 3-0\n");

    fake_redis_add(f, "not an erasure", 14);
    fake_redis_add(f, "", 0);
    put_erasure(f, &rt_keys[3]);
    fake_redis_add(f, "", 0);
    come_back(&b, f, dir);
    assert_int_equal(st_n_found(b.store, &rt_context, RT_CHUNKS), RT_CHUNKS - 1);
    assert_int_equal(rt_stats(&b).n_erasures, 7);
    leave(&b);
    place_is(dir, "7 7-0\n");

    /* The stream may lose entries that the server has read. */
    for (int i = 0; i < 20; i++) /* more entries than one answer has */
        put_erasure(f, &nobody);
    fake_redis_trim(f, 21);
    put_erasure(f, &rt_keys[2]);
    come_back(&b, f, dir);
    assert_int_equal(st_n_found(b.store, &rt_context, RT_CHUNKS), RT_CHUNKS - 2);
    assert_int_equal(rt_stats(&b).n_erasures, 28);
    leave(&b);
    place_is(dir, "28 28-0\n");

    /* A new stream that has lost no entry. */
    fake_redis_forget(f);
    put_erasure(f, &rt_keys[1]);
    come_back(&b, f, dir);
    assert_int_equal(st_n_found(b.store, &rt_context, RT_CHUNKS), 1);
    assert_int_equal(rt_stats(&b).n_erasures, 1);
    leave(&b);

    /* The stream has lost two entries that the server has not read. */
    put_erasure(f, &nobody);
    put_erasure(f, &nobody);
    put_erasure(f, &nobody);
    fake_redis_trim(f, 1);
    come_back(&b, f, dir);
    assert_int_equal(st_n_found(b.store, &rt_context, RT_CHUNKS), 0);
    assert_int_equal(rt_stats(&b).n_erasures, 4);
    rt_close(&b);
    assert_true(n_named >= 4 && n_too_early == 0);
    tempdir_remove(dir);
    fake_redis_stop(f);
}

/* A server with an empty store need not read the stream. It counts another server only if that
 * server has reported lately. */
TEST(an_empty_store_skips_the_stream)
{
    struct fake_redis *f = fake_redis_start();
    struct rt_server a;
    char now[64], lately[64], old[64];
    for (int i = 0; i < 30; i++)
        put_erasure(f, &rt_keys[0]);
    snprintf(now, sizeof now, "12 %lld", (long long)clock_wall_s());
    snprintf(lately, sizeof lately, "13 %lld", (long long)clock_wall_s() - 10);
    snprintf(old, sizeof old, "3 %lld", (long long)clock_wall_s() - 40);
    fake_redis_set_field(f, "0000000000000001", now);
    fake_redis_set_field(f, "0000000000000002", old);
    fake_redis_set_field(f, "0000000000000003", "no number");
    fake_redis_set_field(f, "0000000000000004", lately);
    rt_open(&a, f);
    assert_true(remote_is_current(a.remote));
    WAIT_FOR(rt_stats(&a).n_servers > 0);
    struct remote_stats st = rt_stats(&a);
    assert_int_equal(st.n_erasures, 30);
    assert_int_equal(st.n_erasures_everywhere, 12);
    assert_int_equal(st.n_servers, 3);
    assert_int_equal(fake_redis_count(f, "UNLINK"), 0);
    rt_close(&a);
    fake_redis_stop(f);
}

int main(void)
{
    return unit_run(rt_begin, NULL);
}
