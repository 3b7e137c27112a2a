/* test_store.c - the store's promises without crashes, on every backend.
 *
 * Committed chunks are found and bit-equal; uncommitted ones are not found.  Also covered: sharing,
 * backfill, cap and eviction, and reopening. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "storetest.h"

#define OK(call)                                                                           \
    do {                                                                                   \
        struct err err_ = {0};                                                             \
        struct err *err = &err_;                                                           \
        if ((call) != 0)                                                                   \
            fail_msg("%s: %s", #call, err_.msg);                                           \
    } while (0)

static void check(struct store *s, const struct st_ctx *c, int n, int n_want, int per_chunk)
{
    struct st_result r;
    OK(st_read(s, &st_small, c, n, &r, err));
    assert_int_equal(r.n_found, n_want);
    assert_int_equal(r.n_wrong + r.n_corrupt + r.n_unread, 0);
    assert_int_equal(r.n_records, n_want * per_chunk);
}

/* --- bodies, each run on every place ---------------------------------------------------------- */

static void round_trip(struct st_place *p)
{
    struct store *s = st_open(p);
    struct st_ctx c = {1, 2, 3, 0, NULL};
    struct st_result r;
    for (int i = 0; i < 5; i++)
        OK(st_append(s, &st_small, &c, i, ST_BOTH, err));
    OK(st_read(s, &st_small, &c, 5, &r, err));
    assert_int_equal(r.n_found, 0); /* not committed */
    assert_string_equal(r.why, "not committed yet");
    OK(store_commit(s, err));
    check(s, &c, 5, 5, 6);
    OK(st_read(s, &st_small, &c, 7, &r, err));
    assert_int_equal(r.n_found, 5);
    assert_string_equal(r.why, "not stored");
    assert_true(store_audit(s));
    store_close(s);
}

/* Makes records when they are needed, all in the same memory. The n-th record cannot be made. */
struct maker {
    struct sha256 key;
    uint8_t bytes[16384];
    int n_made, fail_at;
};

static const void *make(void *arg, const struct store_record *r)
{
    struct maker *m = arg;
    assert_true(r->n_bytes <= sizeof m->bytes);
    if (m->n_made++ == m->fail_at)
        return NULL;
    st_fill(&m->key, r->layer, r->kind, m->bytes, r->n_bytes);
    return m->bytes;
}

static void made_late(struct st_place *p)
{
    struct store *s = st_open(p);
    struct st_ctx c = {1, 2, 3, 0, NULL};
    struct maker m = {.fail_at = 3};
    struct store_record records[STORE_KINDS * 3];
    struct store_chunk chunk = {.fingerprint = st_fingerprint(c.model),
                                .owner = store_owner(c.salt),
                                .records = records};
    struct store_stats st;
    struct err why = {0};
    st_keys(&c, 1, &m.key);
    for (int i = 0; i < STORE_KINDS * 3; i++) {
        enum store_kind kind = (enum store_kind)(i % STORE_KINDS);
        records[chunk.n_records++] = (struct store_record){
            .layer = i / STORE_KINDS,
            .kind = kind,
            .n_bytes = st_small.n_bytes[kind],
            .make = make,
            .make_arg = &m,
            .is_packed = st_is_packed(&st_small, i / STORE_KINDS)};
    }
    chunk.key = m.key;
    chunk.parent = store_root_key(&chunk.fingerprint, c.salt);
    st_tokens(&c, 0, chunk.tokens);
    assert_int_equal(store_append(s, &chunk, &why), -EIO);
    assert_non_null(strstr(why.msg, "the KV of layer "));
    assert_non_null(strstr(why.msg, " could not be made"));
    m.n_made = m.fail_at = 0;
    assert_int_equal(store_append(s, &chunk, &why), -EIO);
    assert_string_equal(why.msg, "the hidden states of layer 0 could not be made");
    OK(store_commit(s, err));
    store_stats(s, &st);
    assert_int_equal(st.used_bytes, 0);
    assert_true(store_audit(s));
    m.fail_at = -1;
    OK(store_append(s, &chunk, err));
    OK(store_commit(s, err));
    check(s, &c, 1, 1, 6);
    struct store_hit hit;
    assert_int_equal(store_lookup(s, NULL, &m.key, 1, &hit, NULL, 0), 1);
    for (int k = 0; k < STORE_KINDS; k++) /* a read takes whole sectors, packed or not */
        assert_in_range(hit.bytes[k], 3 * st_small.n_bytes[k],
                        3 * (round_up(st_small.n_bytes[k], STORE_ALIGN) + STORE_ALIGN));
    store_release(s, &hit, 1);
    m.n_made = 0;
    OK(store_append(s, &chunk, err)); /* every record is stored already, so none is made */
    assert_int_equal(m.n_made, 0);
    assert_true(store_audit(s));
    store_close(s);
}

static void prefix_sharing(struct st_place *p)
{
    struct store *s = st_open(p);
    struct st_ctx a = {1, 2, 3, 0, NULL}, b = {1, 5, 3, 0, NULL};
    struct store_stats one, two;
    OK(st_save(s, &st_small, &a, 5, ST_BOTH, err));
    store_stats(s, &one);
    OK(st_save(s, &st_small, &b, 5, ST_BOTH, err));
    store_stats(s, &two);
    assert_int_equal(one.n_chunks, 5);
    assert_int_equal(two.n_chunks, 7);
    assert_int_equal(two.used_bytes - one.used_bytes, one.used_bytes / 5 * 2);
    check(s, &a, 5, 5, 6);
    check(s, &b, 5, 5, 6);
    assert_true(store_audit(s));
    store_close(s);
}

static void backfill(struct st_place *p)
{
    struct store *s = st_open(p);
    struct st_ctx c = {1, 2, 3, 0, NULL};
    struct store_stats before, after;
    OK(st_save(s, &st_small, &c, 4, ST_H, err));
    check(s, &c, 4, 4, 3);
    /* H is stored, KV is new */
    OK(st_append_layers(s, &st_small, &c, 1, ST_BOTH, 1, 3, err));
    check(s, &c, 4, 4, 3); /* not committed */
    OK(store_commit(s, err));
    struct st_result r;
    OK(st_read(s, &st_small, &c, 4, &r, err));
    assert_int_equal(r.n_records, 4 * 3 + 2);
    assert_true(store_mask_has(&r.mask[1], 2, STORE_KV));
    assert_false(store_mask_has(&r.mask[1], 0, STORE_KV));
    store_stats(s, &before);
    OK(st_save(s, &st_small, &c, 4, ST_H, err)); /* contains nothing new */
    store_stats(s, &after);
    assert_int_equal(before.used_bytes, after.used_bytes);
    assert_true(store_audit(s));
    store_close(s);
}

/* Returns a chunk's bytes on one device. */
static uint64_t chunk_bytes(int n_layers)
{
    return 4096 + (uint64_t)n_layers * (8192 + 12288);
}

static void eviction(struct st_place *p)
{
    p->opts.cap_bytes = 6 * chunk_bytes(3);
    struct store *s = st_open(p);
    struct st_ctx a = {1, 1, 0, 0, NULL}, b = {2, 2, 0, 0, NULL}, big = {3, 3, 0, 0, NULL};
    struct store_hit hits[3];
    struct sha256 keys[3];
    struct store_stats st;
    OK(st_save(s, &st_small, &a, 3, ST_BOTH, err));
    OK(st_save(s, &st_small, &b, 3, ST_BOTH, err));
    check(s, &a, 3, 3, 6); /* after this, a is more recently used than b */
    OK(st_save(s, &st_small, &big, 1, ST_BOTH, err));
    check(s, &b, 3, 2, 6); /* b has lost its last chunk */
    check(s, &a, 3, 3, 6);

    /* A pinned chain stays, whatever is saved later. */
    st_keys(&a, 3, keys);
    int n_hits = store_lookup(s, NULL, keys, 3, hits, NULL, 0);
    assert_int_equal(n_hits, 3);
    struct err e = {0};
    int n_saved = 0;
    for (; n_saved < 20; n_saved++) {
        struct st_ctx c = {100, (uint64_t)n_saved, 0, 0, NULL};
        assert_int_equal(st_save(s, &st_small, &c, 1, ST_BOTH, &e), 0);
        store_stats(s, &st);
        assert_true(st.used_bytes <= p->opts.cap_bytes);
    }
    check(s, &a, 3, 3, 6);
    /* Uncommitted chunks stay, too, and count as used bytes. */
    for (n_saved = 0; n_saved < 3; n_saved++)
        assert_int_equal(st_append(s, &st_small, &big, n_saved, ST_BOTH, &e), 0);
    assert_int_equal(st_append(s, &st_small, &big, 3, ST_BOTH, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "cap"));
    store_release(s, hits, n_hits);
    assert_int_equal(st_append(s, &st_small, &big, 3, ST_BOTH, &e), 0);
    OK(store_commit(s, err));
    check(s, &big, 4, 4, 6);
    check(s, &a, 3, 2, 6);
    assert_true(store_audit(s));
    store_close(s);
}

static void condemned(struct st_place *p)
{
    struct store *s = st_open(p);
    struct st_ctx c = {1, 2, 3, 0, NULL};
    struct store_hit hits[4];
    struct sha256 keys[4];
    struct store_stats st;
    struct st_result r;
    st_keys(&c, 4, keys);
    OK(st_save(s, &st_small, &c, 4, ST_BOTH, err));
    int n_hits = store_lookup(s, NULL, keys, 4, hits, NULL, 0);
    store_condemn(s, &hits[1], "a test says so");
    store_condemn(s, &hits[1], "twice");
    store_release(s, hits, n_hits);
    OK(st_read(s, &st_small, &c, 4, &r, err));
    assert_int_equal(r.n_found, 1);
    assert_string_equal(r.why, "damaged (a test says so)");
    assert_true(store_audit(s));
    store_stats(s, &st);
    assert_int_equal(st.n_corrupt, 1);
    OK(store_commit(s, err));
    store_stats(s, &st);
    assert_int_equal(st.n_chunks, 3);
    /* chunk 0 is stored again, so the chunks after it can be reached */
    OK(st_save(s, &st_small, &c, 2, ST_BOTH, err));
    check(s, &c, 4, 4, 6);
    assert_true(store_audit(s));
    store_close(s);
}

static void reasons(struct st_place *p)
{
    struct store *s = st_open(p);
    struct st_ctx mine = {1, 2, 3, 7, NULL}, theirs = {1, 2, 3, 8, NULL};
    struct sha256 f = st_fingerprint(7);
    struct st_result r;
    store_expect(s, &f);
    OK(st_read(s, &st_small, &mine, 2, &r, err));
    /* the store has no state of any model, so no other model is named */
    assert_string_equal(r.why, "not stored");
    OK(st_save(s, &st_small, &theirs, 2, ST_H, err));
    OK(st_read(s, &st_small, &mine, 2, &r, err));
    assert_non_null(strstr(r.why, "another model or build (fingerprint "));
    OK(st_save(s, &st_small, &mine, 1, ST_H, err));
    struct st_ctx other = {9, 9, 0, 7, NULL};
    OK(st_read(s, &st_small, &other, 2, &r, err));
    assert_string_equal(r.why, "not stored");
    OK(st_read(s, &st_small, &mine, 1, &r, err));
    assert_string_equal(r.why, "complete");
    store_close(s);
}

/* Finds the token at which a context diverges from the stored ones. The search follows the parents'
 * chains only, so it never compares contexts of different salts. */
static void differences(struct st_place *p)
{
    struct store *s = st_open(p);
    struct st_ctx mine = {1, 2, 3, 7, "a"}, branch = {1, 9, 3, 7, "a"};
    struct sha256 keys[4], theirs[4];
    struct store_erased gone;
    struct st_ctx salted = {1, 2, 3, 7, "b"};
    int32_t t[STORE_CHUNK_TOKENS];
    st_keys(&mine, 4, keys);
    st_keys(&salted, 4, theirs);
    st_tokens(&mine, 3, t);
    assert_int_equal(store_differs_at(s, &keys[2], t, 64), -1); /* no chunk is stored */
    OK(st_save(s, &st_small, &mine, 4, ST_H, err));
    /* the chunk itself is stored, so nothing differs */
    assert_int_equal(store_differs_at(s, &keys[2], t, 64), -1);
    t[40]++;
    assert_int_equal(store_differs_at(s, &keys[2], t, 64), 40);
    assert_int_equal(store_differs_at(s, &keys[2], t, 41), 40);
    /* no difference within the given tokens */
    assert_int_equal(store_differs_at(s, &keys[2], t, 40), -1);
    /* a parent at another place in the chain */
    assert_int_equal(store_differs_at(s, &keys[1], t, 64), 0);
    assert_int_equal(store_differs_at(s, &theirs[2], t, 64), -1);
    OK(st_save(s, &st_small, &salted, 3, ST_H, err));
    assert_int_equal(store_differs_at(s, &theirs[2], t, 64), -1);
    /* Of several stored contexts, the one that agrees longest counts, not the newest. */
    OK(st_save(s, &st_small, &branch, 4, ST_H, err));
    assert_int_equal(store_differs_at(s, &keys[2], t, 64), 40);
    st_tokens(&branch, 3, t);
    t[63]++;
    assert_int_equal(store_differs_at(s, &keys[2], t, 64), 63);
    /* An erased context is not compared any more. */
    st_keys(&branch, 4, keys);
    OK(store_erase(s, &keys[3], 1, &gone, err));
    assert_int_equal(store_differs_at(s, &keys[2], t, 64), 0);
    assert_true(store_audit(s));
    store_close(s);
}

/* Appends a child of the root. Its first `same` tokens are those of t; `other` distinguishes such
 * children. */
static void append_beside(struct store *s, const int32_t *t, int same, int other)
{
    struct store_chunk c = {.fingerprint = st_fingerprint(7), .owner = store_owner(NULL)};
    uint8_t bytes[512] = {0};
    struct store_record r = {.kind = STORE_HIDDEN, .bytes = bytes, .n_bytes = sizeof bytes};
    c.parent = store_root_key(&c.fingerprint, NULL);
    memcpy(c.tokens, t, sizeof c.tokens);
    for (int i = same; i < STORE_CHUNK_TOKENS; i++)
        c.tokens[i] += 1 + other;
    c.key = store_chunk_key(&c.parent, c.tokens);
    c.records = &r;
    c.n_records = 1;
    OK(store_append(s, &c, err));
}

/* Of many children of one parent, the one that agrees longest is found, although all others are
 * newer. */
static void nearest_is_oldest(struct st_place *p)
{
    enum { SIBLINGS = 100, SAME = 50 };
    struct store *s = st_open(p);
    struct st_ctx c = {1, 2, 3, 7, NULL};
    struct sha256 f = st_fingerprint(7), root = store_root_key(&f, NULL);
    int32_t t[STORE_CHUNK_TOKENS];
    st_tokens(&c, 0, t);
    append_beside(s, t, SAME, 0);
    for (int i = 1; i < SIBLINGS; i++)
        append_beside(s, t, i % 10, i);
    OK(store_commit(s, err));
    assert_int_equal(store_differs_at(s, &root, t, 64), SAME);
    assert_int_equal(store_differs_at(s, &root, t, SAME), -1);
    assert_int_equal(store_differs_at(s, &root, t, SAME + 1), SAME);
    assert_true(store_audit(s));
    store_close(s);
    if (p->io == NULL)
        return;

    /* A reopened store has no tokens in memory: each search reads STORE_NEAREST of the headers.
     */
    s = st_open(p);
    assert_int_equal(store_differs_at(s, &root, t, 64), 9);
    for (int i = 1; i <= SIBLINGS / STORE_NEAREST; i++)
        (void)store_differs_at(s, &root, t, 64);
    assert_int_equal(store_differs_at(s, &root, t, 64), SAME);
    store_close(s);
}

/* A search looks at the newest 4096 children of a parent. */
static void newest_children(struct st_place *p)
{
    enum { MOST = 4096, SAME = 50 };
    struct store *s;
    struct st_ctx c = {1, 2, 3, 7, NULL};
    struct sha256 f = st_fingerprint(7), root = store_root_key(&f, NULL);
    int32_t t[STORE_CHUNK_TOKENS];
    if (p->io != NULL) /* the search is the same everywhere */
        return;
    s = st_open(p);
    st_tokens(&c, 0, t);
    append_beside(s, t, SAME, 0);
    for (int i = 1; i < MOST; i++)
        append_beside(s, t, 0, i);
    OK(store_commit(s, err));
    assert_int_equal(store_differs_at(s, &root, t, 64), SAME);
    append_beside(s, t, 0, MOST);
    OK(store_commit(s, err));
    assert_int_equal(store_differs_at(s, &root, t, 64), 0);
    store_close(s);
}

static void wrong_use(struct st_place *p)
{
    struct store *s = st_open(p);
    struct st_ctx c = {1, 2, 3, 0, NULL};
    struct st_shape huge = {.n_layers = 1, .n_bytes = {2 << 20, 1}};
    struct err e = {0};
    int32_t tokens[STORE_CHUNK_TOKENS] = {0};
    struct store_chunk bad = {.key = {{1}}};
    memcpy(bad.tokens, tokens, sizeof tokens);
    assert_int_equal(store_append(s, &bad, &e), ERR_USAGE);
    /* larger than a segment */
    assert_int_equal(st_append(s, &huge, &c, 0, ST_H, &e), ERR_LIMIT);
    assert_true(store_audit(s));
    OK(st_save(s, &st_small, &c, 1, ST_H, err));
    check(s, &c, 1, 1, 3);
    store_close(s);
}

static int count(void *arg, const struct store_entry *e)
{
    struct store_entry *last = arg;
    if (e->chunk_idx > 0 && memcmp(e->parent.b, last->key.b, sizeof e->parent.b) != 0)
        return -1; /* in a listing of unbranched chains a parent precedes its child */
    *last = *e;
    return 0;
}

static void listing(struct st_place *p)
{
    struct store *s = st_open(p);
    struct store_entry last = {0};
    struct store_verify v;
    uint64_t freed;
    for (uint64_t i = 0; i < 6; i++) {
        struct st_ctx c = {i, i, 0, i % 2, NULL};
        OK(st_save(s, &st_small, &c, 3, ST_KV, err));
    }
    OK(store_each(s, count, &last, err));
    OK(store_verify(s, &v, NULL, NULL, NULL, err));
    assert_int_equal(v.n_chunks, 18);
    assert_int_equal(v.n_records, 18 * 3);
    assert_int_equal(v.n_bad, 0);
    OK(store_gc(s, &freed, err));
    for (uint64_t i = 0; i < 6; i++) {
        struct st_ctx c = {i, i, 0, i % 2, NULL};
        check(s, &c, 3, 3, 3);
    }
    assert_true(store_audit(s));
    store_close(s);
}

static void reopen(struct st_place *p)
{
    if (p->io == NULL)
        return;
    struct store *s = st_open(p);
    struct st_ctx a = {1, 2, 3, 0, NULL}, b = {2, 2, 3, 0, NULL}, c = {3, 3, 0, 0, NULL};
    OK(st_save(s, &st_small, &a, 5, ST_BOTH, err));
    OK(st_append(s, &st_small, &b, 0, ST_BOTH, err)); /* this chunk is never committed */
    store_close(s);
    s = st_open(p);
    assert_true(store_audit(s));
    check(s, &a, 5, 5, 6);
    check(s, &b, 1, 0, 6);
    OK(st_save(s, &st_small, &c, 2, ST_H, err));
    OK(st_append_layers(s, &st_small, &c, 0, ST_KV, 0, 2, err));
    OK(store_commit(s, err));
    store_close(s);

    p->opts.read_only = true;
    s = st_open(p);
    struct err e = {0};
    struct st_result r;
    check(s, &a, 5, 5, 6);
    OK(st_read(s, &st_small, &c, 2, &r, err));
    assert_int_equal(r.n_records, 8);
    assert_int_equal(st_append(s, &st_small, &b, 0, ST_BOTH, &e), -EROFS);
    store_close(s);
    p->opts.read_only = false;
}

static void recency_survives(struct st_place *p)
{
    if (p->io == NULL)
        return;
    struct store *s = st_open(p);
    struct st_ctx c[4] = {
        {1, 1, 0, 0, NULL}, {2, 2, 0, 0, NULL}, {3, 3, 0, 0, NULL}, {4, 4, 0, 0, NULL}};
    for (int i = 0; i < 3; i++)
        OK(st_save(s, &st_small, &c[i], 1, ST_BOTH, err));
    check(s, &c[0], 1, 1, 6); /* makes the oldest the most recently used */
    store_close(s);
    p->opts.cap_bytes = 3 * chunk_bytes(3) * (uint64_t)p->opts.n_dirs;
    if (p->opts.n_dirs > 1)
        return;
    s = st_open(p);
    OK(st_save(s, &st_small, &c[3], 1, ST_BOTH, err));
    check(s, &c[0], 1, 1, 6);
    check(s, &c[1], 1, 0, 6);
    check(s, &c[2], 1, 1, 6);
    store_close(s);
    p->opts.cap_bytes = st_context_bytes(1); /* a lower cap applies from the opening on */
    s = st_open(p);
    struct store_stats st;
    store_stats(s, &st);
    assert_int_equal(st.used_bytes, st_context_bytes(1));
    assert_true(store_audit(s));
    store_close(s);
}

/* store_sample pins full chunks of one model. It counts neither hits nor misses. */
static void samples(struct st_place *p)
{
    struct store *s = st_open(p);
    struct st_ctx a = {1, 2, 3, 0, NULL}, other = {1, 5, 3, 7, NULL};
    struct sha256 model = st_fingerprint(0), nobody = st_fingerprint(9);
    struct store_hit hits[8];
    struct store_stats before, after;
    OK(st_save(s, &st_small, &a, 5, ST_BOTH, err));
    OK(st_save(s, &st_small, &other, 4, ST_BOTH, err));
    store_stats(s, &before);
    assert_int_equal(store_sample(s, &nobody, 8, hits), 0);
    assert_int_equal(store_sample(s, &model, 3, hits), 3);
    store_release(s, hits, 3);
    assert_int_equal(store_sample(s, &model, 8, hits), 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(hits[i].n_tokens, STORE_CHUNK_TOKENS);
        assert_true(store_mask_has(&hits[i].mask, 0, STORE_KV));
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&hits[i].key, &hits[j].key, sizeof hits[i].key);
    }
    store_release(s, hits, 5);
    store_stats(s, &after);
    assert_int_equal(after.n_hits, before.n_hits);
    assert_int_equal(after.n_misses, before.n_misses);
    assert_true(store_audit(s));
    store_close(s);
}

/* --- every test body on every place ----------------------------------------------------------- */

struct body {
    void (*run)(struct st_place *p);
    const char *kind;
    int n_dirs;
};

static void run(void **state)
{
    const struct body *b = *state;
    struct st_place p;
    if (!st_place_open(&p, b->kind, b->n_dirs))
        skip();
    b->run(&p);
    st_place_close(&p);
}

int main(void)
{
    static const struct {
        void (*run)(struct st_place *p);
        const char *name;
        bool one_device;
    } bodies[] = {
        {round_trip, "round trip", false},
        {made_late, "records made late", false},
        {prefix_sharing, "prefix sharing", false},
        {samples, "samples", false},
        {backfill, "backfill", false},
        {eviction, "eviction", true},
        {condemned, "condemned", false},
        {reasons, "reasons", false},
        {differences, "differences", false},
        {nearest_is_oldest, "the nearest is the oldest", false},
        {newest_children, "the newest children", true},
        {wrong_use, "wrong use", false},
        {listing, "listing, verify, gc", false},
        {reopen, "reopen", false},
        {recency_survives, "recency survives", false},
    };
    static const struct {
        const char *kind;
        int n_dirs;
    } places[] = {{"dram", 1},  {"pread", 1}, {"pread", 3}, {"uring", 1},
                  {"uring", 2}, {"sim", 1},   {"sim", 3}};
    enum { N = sizeof bodies / sizeof bodies[0], M = sizeof places / sizeof places[0] };
    static struct body all[N * M];
    static struct CMUnitTest tests[N * M];
    static char names[N * M][64];
    int n = 0;
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < M; j++) {
            if (bodies[i].one_device && places[j].n_dirs > 1)
                continue;
            all[n] = (struct body){bodies[i].run, places[j].kind, places[j].n_dirs};
            snprintf(names[n], sizeof names[n], "%s: %s, %d", bodies[i].name,
                     places[j].kind, places[j].n_dirs);
            tests[n] = (struct CMUnitTest){names[n], run, NULL, NULL, &all[n]};
            n++;
        }
    }
    return _cmocka_run_group_tests("store", tests, (size_t)n, NULL, NULL);
}
