/* test_erasures.c - chunks of a request that began before an erasure. None of the erased chunks
 * comes back, however late the request appends it. Other chunks are not refused. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "remains.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 6 };

/* `theirs` shares its first two chunks with `ours`. `salted` has another owner. */
static const struct st_ctx ours = {.base = 1, .own = 1, .branch = 2};
static const struct st_ctx theirs = {.base = 1, .own = 2, .branch = 2};
static const struct st_ctx lone = {.base = 2, .own = 3, .branch = 2};
static const struct st_ctx salted = {.base = 1, .own = 1, .branch = 2, .salt = "s"};

static const char *const kinds[] = {"dram", "sim", "pread"};
enum { KINDS = 3 };

static struct store *open_kind(struct st_place *p, const char *kind)
{
    assert_true(st_place_open(p, kind, strcmp(kind, "dram") == 0 ? 1 : 2));
    if (p->io == NULL)
        p->opts.memory = remains_memory();
    return st_open(p);
}

static void close_all(struct st_place *p, struct store *s)
{
    st_epoch = 0;
    assert_true(store_audit(s));
    store_close(s);
    st_place_close(p);
}

/* Appends a chunk for a request of this epoch. */
static int append_since(struct store *s, uint64_t epoch, const struct st_ctx *c, int chunk)
{
    struct err err = {0};
    st_epoch = epoch;
    int rc = st_append(s, &st_small, c, chunk, ST_BOTH, &err);
    st_epoch = 0;
    assert_true(rc == 0 || err.msg[0] != 0);
    return rc;
}

static struct store_erased erase(struct store *s, const struct st_ctx *c, int n)
{
    struct sha256 keys[N];
    struct store_erased e;
    struct err err = {0};
    st_keys(c, n, keys);
    if (store_erase(s, keys, n, &e, &err) != 0)
        fail_msg("%s", err.msg);
    return e;
}

static void erase_owner(struct store *s, const char *salt)
{
    struct store_erased e;
    struct err err = {0};
    if (store_erase_owner(s, store_owner(salt), &e, &err) != 0)
        fail_msg("%s", err.msg);
}

static bool is_stored(struct store *s, const struct st_ctx *c, int chunk)
{
    struct sha256 keys[N];
    struct store_hit hit;
    st_keys(c, N, keys);
    bool found = store_pin(s, &keys[chunk], &hit);
    if (found)
        store_release(s, &hit, 1);
    return found;
}

/* The disk of the test that runs. */
static struct st_place place;

TEST(chunks_and_what_follows)
{
    for (int k = 0; k < KINDS; k++) {
        struct store *s = open_kind(&place, kinds[k]);
        st_must_save(s, &ours, 3);
        uint64_t before = store_epoch(s);
        erase(s, &ours, 3);
        assert_int_equal(append_since(s, before, &ours, 1), ERR_ERASED);
        /* the chunk continues an erased chunk */
        assert_int_equal(append_since(s, before, &ours, 3), ERR_ERASED);
        assert_int_equal(append_since(s, before, &theirs, 2), ERR_ERASED);
        assert_int_equal(append_since(s, before, &lone, 0), 0);
        uint64_t after = store_epoch(s);
        for (int i = 0; i < N; i++) /* a new request computes the same chunks again */
            assert_int_equal(append_since(s, after, &ours, i), 0);
        /* epoch 0: the append belongs to no request */
        assert_int_equal(append_since(s, 0, &theirs, 2), 0);
        assert_int_equal(store_commit(s, NULL), 0);
        assert_int_equal(st_n_right(s, &ours, N), N);
        close_all(&place, s);
    }
}

/* At the first chunk of a truncated context's next stair, the chunk before it (`follows`) is not
 * its parent: the parent is a key of the stair. Erasing the chunk before it refuses the new chunk,
 * too. */
TEST(the_next_stair)
{
    struct store *s = open_kind(&place, "dram");
    struct sha256 keys[N];
    st_must_save(s, &ours, 3);
    st_keys(&ours, N, keys);
    struct store_chunk c = {.parent = store_stair_key(&keys[2], (uint32_t[]){256, 64, 0}),
                            .epoch = store_epoch(s),
                            .follows = &keys[2]};
    c.key = store_chunk_key(&c.parent, c.tokens);
    assert_false(erasures_concern(&s->erasing.marks, &c));
    erase(s, &ours, 3);
    assert_true(erasures_concern(&s->erasing.marks, &c));
    c.follows = &keys[4];
    assert_false(erasures_concern(&s->erasing.marks, &c));
    close_all(&place, s);
}

/* An erasure leaves chunks that other contexts continue, and requests of these contexts go on. */
TEST(kept_chunks)
{
    struct store *s = open_kind(&place, "sim");
    st_must_save(s, &ours, 4);
    st_must_save(s, &theirs, 3);
    uint64_t before = store_epoch(s);
    assert_int_equal(erase(s, &ours, 4).n_shared, 2);
    assert_int_equal(append_since(s, before, &theirs, 3), 0);
    assert_int_equal(append_since(s, before, &theirs, 1), 0);
    assert_int_equal(append_since(s, before, &ours, 2), ERR_ERASED);
    close_all(&place, s);
}

TEST(an_owner)
{
    for (int k = 0; k < KINDS; k++) {
        struct store *s = open_kind(&place, kinds[k]);
        uint64_t before = store_epoch(s);
        erase_owner(s, "s"); /* this owner has no state yet */
        assert_int_equal(append_since(s, before, &salted, 0), ERR_ERASED);
        assert_int_equal(append_since(s, before, &ours, 0), 0);
        uint64_t after = store_epoch(s);
        assert_int_equal(append_since(s, after, &salted, 0), 0);
        store_refuse_former(s);
        assert_int_equal(append_since(s, after, &salted, 1), ERR_ERASED);
        assert_int_equal(append_since(s, after, &lone, 0), ERR_ERASED);
        assert_int_equal(append_since(s, store_epoch(s), &lone, 0), 0);
        close_all(&place, s);
    }
}

/* --- erased in the middle of an append -------------------------------------------------------- */

static void erase_chunks(struct store *s)
{
    assert_int_equal(erase(s, &ours, 3).n_shared, 0);
}

static void erase_ours(struct store *s)
{
    erase_owner(s, NULL);
}

/* Makes a record's bytes. Erases the chunks before it meanwhile. */
static const void *make_and_erase(void *s, const struct store_record *r)
{
    static const uint8_t bytes[100] = {1};
    (void)r;
    erase_chunks(s);
    return bytes;
}

/* The first chunk of the next stair is being written when the chunk before it is erased. That chunk
 * is not its parent, and its own key is not erased. */
TEST(the_next_stair_while_it_is_written)
{
    for (int k = 0; k < KINDS; k++) {
        struct store *s = open_kind(&place, kinds[k]);
        struct sha256 keys[N];
        struct store_hit hit;
        struct err err = {0};
        st_must_save(s, &ours, 3);
        st_keys(&ours, N, keys);
        struct store_record record = {
            .kind = STORE_KV, .n_bytes = 100, .make = make_and_erase, .make_arg = s};
        struct store_chunk c = {
            .parent = store_stair_key(&keys[2], (uint32_t[]){256, 64, 0}),
            .fingerprint = st_fingerprint(ours.model),
            .epoch = store_epoch(s),
            .follows = &keys[2],
            .records = &record,
            .n_records = 1};
        c.key = store_chunk_key(&c.parent, c.tokens);
        assert_int_equal(store_append(s, &c, &err), ERR_ERASED);
        assert_int_equal(store_commit(s, &err), 0);
        assert_false(store_pin(s, &c.key, &hit));
        assert_int_equal(store_settle(s, &err), 0);
        assert_int_equal(store_commit(s, &err), 0);
        assert_true(st_stats(s).n_chunks == 0 && st_stats(s).used_bytes == 0);
        close_all(&place, s);
    }
}

/* Keys of a text that ends with the 20th token of chunk 2. */
static void text_keys(struct sha256 out[3])
{
    int32_t tokens[STORE_CHUNK_TOKENS];
    st_keys(&ours, 2, out);
    st_tokens(&ours, 2, tokens);
    out[2] = store_partial_key(&out[1], tokens, 20);
}

static void erase_text(struct store *s)
{
    struct sha256 keys[3];
    struct store_erased e;
    text_keys(keys);
    assert_int_equal(store_erase_continuing(s, keys, 3, &e, NULL), 0);
    assert_int_equal(store_erase(s, keys, 3, &e, NULL), 0);
}

TEST(while_it_is_written)
{
    static void (*const erasures[])(struct store *) = {erase_chunks, erase_ours,
                                                       erase_text};
    for (int k = 0; k < KINDS; k++)
        for (int e = 0; e < 3; e++) {
            struct store *s = open_kind(&place, kinds[k]);
            uint64_t before = store_epoch(s);
            for (int i = 0; i < 2; i++)
                assert_int_equal(append_since(s, before, &ours, i), 0);
            st_while_written = erasures[e];
            assert_int_equal(append_since(s, before, &ours, 2), ERR_ERASED);
            assert_null(st_while_written);
            assert_int_equal(st_n_found(s, &ours, 3), 0);
            /* the request stops at chunk 2 if its text was erased */
            if (erasures[e] != erase_text)
                assert_int_equal(append_since(s, before, &ours, 3), ERR_ERASED);
            /* also wipes the bytes if the store is in files */
            assert_int_equal(store_settle(s, NULL), 0);
            assert_int_equal(store_commit(s, NULL), 0);
            for (int i = 0; i < 3; i++) {
                assert_false(is_stored(s, &ours, i));
                assert_int_equal(place.io != NULL ? remains(&place, &ours, i, false) : 0,
                                 0);
            }
            assert_int_equal(st_stats(s).n_chunks, 0);
            /* The next request stores the erased chunk again. */
            for (int i = 0; i < 3; i++)
                assert_int_equal(append_since(s, store_epoch(s), &ours, i), 0);
            assert_int_equal(store_commit(s, NULL), 0);
            assert_int_equal(st_n_right(s, &ours, 3), 3);
            close_all(&place, s);
        }
}

/* The erasure's own settling wipes a chunk that was being written; no later save is needed. */
TEST(wiped_without_another_save)
{
    struct store *s = open_kind(&place, "sim");
    uint64_t before = store_epoch(s);
    for (int i = 0; i < 2; i++)
        assert_int_equal(append_since(s, before, &ours, i), 0);
    st_while_written = erase_ours;
    assert_int_equal(append_since(s, before, &ours, 2), ERR_ERASED);
    assert_true(remains(&place, &ours, 2, false) > 0); /* shows that the search works */
    assert_int_equal(store_settle(s, NULL), 0);
    assert_int_equal(remains(&place, &ours, 2, false), 0);
    assert_int_equal(st_stats(s).used_bytes, 0);
    close_all(&place, s);
}

/* A damaged chunk keeps its bytes while a request uses it. If it is erased meanwhile, these bytes
 * are wiped when the request lets it go. */
TEST(a_damaged_chunk_in_use_is_wiped_at_its_release)
{
    struct store *s = open_kind(&place, "sim");
    struct sha256 key[1];
    struct store_hit hit;
    struct store_erased e;
    assert_int_equal(append_since(s, store_epoch(s), &ours, 0), 0);
    assert_int_equal(store_commit(s, NULL), 0);
    st_keys(&ours, 1, key);
    assert_true(store_pin(s, key, &hit));
    store_condemn(s, &hit, "a test");
    assert_int_equal(store_erase(s, key, 1, &e, NULL), 0);
    assert_true(remains(&place, &ours, 0, false) > 0);
    store_release(s, &hit, 1);
    assert_int_equal(store_settle(s, NULL), 0);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(remains(&place, &ours, 0, false), 0);
    close_all(&place, s);
}

/* --- texts ------------------------------------------------------------------------------------ */

/* A chunk that contains a whole erased text is refused. A chunk with only a part of the text, which
 * other contexts share, is not refused. */
TEST(a_text_inside_a_chunk)
{
    struct sha256 keys[3];
    struct store_erased e;
    struct store *s = open_kind(&place, "sim");
    st_must_save(s, &theirs, 3);
    uint64_t before = store_epoch(s);
    text_keys(keys);
    assert_int_equal(store_erase_continuing(s, keys, 3, &e, NULL), 0);
    assert_int_equal(append_since(s, before, &theirs, 3), 0);
    assert_int_equal(append_since(s, before, &theirs, 1), 0);
    assert_int_equal(append_since(s, before, &ours, 2), ERR_ERASED);
    assert_int_equal(append_since(s, store_epoch(s), &ours, 2), 0);
    close_all(&place, s);
}

/* The caller erases the chunks whose keys it knows, so they stay here. */
TEST(known_chunks_are_left_to_the_caller)
{
    struct store_erased e;
    struct sha256 keys[4];
    struct store *s = open_kind(&place, "dram");
    st_must_save(s, &ours, 3);
    text_keys(keys);
    keys[3] = keys[2];
    st_keys(&ours, 3, keys);
    assert_int_equal(store_erase_continuing(s, keys, 4, &e, NULL), 0);
    assert_int_equal(e.n_chunks, 0);
    assert_int_equal(st_n_right(s, &ours, 3), 3);
    close_all(&place, s);
}

static bool denies_headers;

bool mem_test_denies(size_t n, enum mem_ask ask)
{
    return denies_headers && ask == MEM_MAY_FAIL && n == CHUNK_HEADER_BYTES;
}

/* If the chunks cannot be read, the erasure fails instead of leaving them in silence. */
TEST(without_memory_nothing_counts_as_erased)
{
    struct err err = {0};
    struct store_erased e;
    struct sha256 keys[3];
    struct store *s = open_kind(&place, "dram");
    st_must_save(s, &ours, 3);
    text_keys(keys);
    denies_headers = true;
    int rc = store_erase_continuing(s, keys, 3, &e, &err);
    denies_headers = false;
    assert_int_equal(rc, -ENOMEM);
    assert_string_equal(err.msg, "no memory to read the heads of chunks");
    assert_int_equal(store_erase_continuing(s, keys, 3, &e, &err), 0);
    assert_int_equal(e.n_chunks, 1);
    close_all(&place, s);
}

/* --- bounded memory --------------------------------------------------------------------------- */

/* The store keeps the marks of a limited number of erasures. Once it has dropped a mark, it refuses
 * every chunk of requests that began before that erasure. It stores chunks of later requests. */
TEST(more_marks_than_are_kept)
{
    struct st_place p;
    struct store *s = open_kind(&p, "dram");
    struct sha256 *keys = calloc(ERASURES_MARKS, sizeof *keys);
    for (int i = 0; i < ERASURES_MARKS; i++)
        memcpy(keys[i].b, &i, sizeof i);
    uint64_t before = store_epoch(s);
    erase_owner(s, "s");
    uint64_t between = store_epoch(s);
    struct store_erased e;
    assert_int_equal(store_erase(s, keys, ERASURES_MARKS - 1, &e, NULL), 0);
    assert_int_equal(append_since(s, before, &lone, 0), 0);
    assert_int_equal(append_since(s, before, &salted, 0), ERR_ERASED);
    assert_int_equal(append_since(s, between, &salted, 0), 0);
    /* replaces the mark of the owner's erasure */
    assert_int_equal(store_erase(s, keys, 1, &e, NULL), 0);
    assert_int_equal(append_since(s, before, &lone, 1), ERR_ERASED);
    assert_int_equal(append_since(s, between, &lone, 1), 0);
    free(keys);
    close_all(&p, s);
}
