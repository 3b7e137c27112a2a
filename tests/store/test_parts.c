/* The store's pure parts, each by itself: keys, extent header, superblock, allocator, catalog. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "store/alloc.h"
#include "store/bugs.h"
#include "store/catalog.h"
#include "store/chunk.h"
#include "store/superblock.h"

static enum store_bug bug;

enum store_bug store_test_bug(void)
{
    return bug;
}

/* --- keys ------------------------------------------------------------------------------------- */

TEST(keys_are_stable_and_differ)
{
    struct sha256 f = {{1}}, g = {{2}};
    int32_t tokens[STORE_CHUNK_TOKENS] = {0};
    struct sha256 root = store_root_key(&f, NULL), empty = store_root_key(&f, "");
    struct sha256 salted = store_root_key(&f, "tenant"), other = store_root_key(&g, NULL);
    assert_memory_equal(root.b, empty.b, 32);
    assert_memory_not_equal(root.b, salted.b, 32);
    assert_memory_not_equal(root.b, other.b, 32);
    struct sha256 a = store_chunk_key(&root, tokens);
    tokens[63] = -1;
    struct sha256 b = store_chunk_key(&root, tokens);
    assert_memory_not_equal(a.b, b.b, 32);
    /* Keys of existing stores depend on this value. Python's hashlib gives the same digest for the
     * tagged fields. */
    char hex[65];
    sha256_hex(&a, hex);
    assert_string_equal(hex,
                        "baace7816eb24bcb1782910842f43a96713feac3b39859149ec5e94f674b1258");
}

/* --- extent header ---------------------------------------------------------------------------- */

static void header_make(struct chunk_header *h, uint64_t seed, int n_records)
{
    struct rng r = {seed};
    memset(h, 0, sizeof *h);
    for (int i = 0; i < STORE_UUID_BYTES; i++)
        h->uuid[i] = (uint8_t)rng_u64(&r);
    h->id = rng_u64(&r) >> 2;
    h->offset = rng_below(&r, 1000) * STORE_ALIGN;
    h->segment = (uint32_t)rng_below(&r, 1000);
    h->chunk_idx = (uint32_t)rng_below(&r, CHUNK_MAX_IDX);
    h->device = (uint16_t)rng_below(&r, STORE_MAX_DEVICES);
    h->n_records = (uint16_t)n_records;
    put_u64(h->parent.b, rng_u64(&r));
    put_u64(h->fingerprint.b, rng_u64(&r));
    h->owner = rng_u64(&r);
    h->n_tokens = seed % 2 == 0 ? STORE_CHUNK_TOKENS : 1 + (int)rng_below(&r, 64);
    for (int i = 0; i < h->n_tokens; i++)
        h->tokens[i] = (int32_t)rng_u64(&r);
    h->key = store_partial_key(&h->parent, h->tokens, h->n_tokens);
    for (int i = 0; i < n_records; i++)
        h->records[i] = (struct chunk_record){.layer = (uint8_t)(i % 128),
                                              .kind = (uint8_t)(i / 128),
                                              .n_bytes = 1 +
                                                         (uint32_t)rng_below(&r, 1 << 20),
                                              .checksum = rng_u64(&r),
                                              .is_packed = n_records % 2 == 0 && i % 3 != 0,
                                              .is_tight = n_records % 4 == 0 && i % 3 == 1};
    h->n_bytes = chunk_layout(h->records, n_records);
}

TEST(header_round_trip)
{
    uint8_t bytes[CHUNK_HEADER_BYTES], again[CHUNK_HEADER_BYTES];
    struct chunk_header *h = xmalloc(sizeof *h), *back = xmalloc(sizeof *back);
    for (int n = 1; n <= CHUNK_MAX_RECORDS; n += n < 4 ? 1 : 63) {
        header_make(h, (uint64_t)n, n);
        chunk_header_encode(h, bytes);
        assert_int_equal(chunk_header_decode(bytes, back, NULL), 0);
        chunk_header_encode(back, again);
        assert_memory_equal(bytes, again, sizeof bytes);
        for (int i = 0; i < n; i++) {
            const struct chunk_record *r = &h->records[i], *b = &back->records[i];
            assert_int_equal(b->offset, r->offset);
            assert_true(b->is_packed == r->is_packed && b->is_tight == r->is_tight);
        }
        assert_int_equal(back->n_tokens, h->n_tokens);
        assert_true(back->owner == h->owner);
    }
    free(h);
    free(back);
}

/* A tight record begins behind the one before, at a multiple of 64. Any other fills blocks. */
TEST(tight_records_share_blocks)
{
    static const struct {
        uint32_t n_bytes;
        bool is_tight;
        uint32_t offset, span;
    } want[] = {
        {5000, false, 4096, 8192}, /* a plain record */
        {5000, true, 9152, 8192}, /* 4096 + 5000 up to 64; it reaches into a second block */
        {4096, true, 14208, 8192}, /* a whole block, across two */
        {64, true, 18304, 4096},   /* in a block with the one before */
        {100, false, 20480, 4096}, /* a plain record begins a block */
        {3968, true, 20608, 4096}, /* it ends with its block */
    };
    enum { N = sizeof want / sizeof want[0] };
    struct chunk_record r[N] = {0};
    for (int i = 0; i < N; i++)
        r[i] = (struct chunk_record){.n_bytes = want[i].n_bytes,
                                     .is_tight = want[i].is_tight};
    assert_int_equal(chunk_layout(r, N), 24576);
    for (int i = 0; i < N; i++) {
        assert_int_equal(r[i].offset, want[i].offset);
        assert_int_equal(chunk_record_span(&r[i]), want[i].span);
    }
}

/* Each flipped bit of a header is refused. */
TEST(header_flips)
{
    uint8_t bytes[CHUNK_HEADER_BYTES];
    struct chunk_header *h = xmalloc(sizeof *h);
    header_make(h, 7, 12);
    chunk_header_encode(h, bytes);
    for (int bit = 0; bit < CHUNK_HEADER_BYTES * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(chunk_header_decode(bytes, h, NULL), 0);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_int_equal(chunk_header_decode(bytes, h, NULL), 0);
    free(h);
}

/* Writes v at `at` and updates the checksum, as an attacker or a bug could. */
static int decode_with(const struct chunk_header *h, int at, int n_bytes, uint64_t v)
{
    uint8_t bytes[CHUNK_HEADER_BYTES], word[8];
    struct chunk_header *back = xmalloc(sizeof *back);
    chunk_header_encode(h, bytes);
    put_u64(word, v);
    memcpy(bytes + at, word, (size_t)n_bytes);
    put_u64(bytes + 16, 0);
    put_u64(bytes + 16, checksum64(bytes, sizeof bytes));
    int rc = chunk_header_decode(bytes, back, NULL);
    free(back);
    return rc;
}

/* Checks that out-of-range fields are refused even if the checksum is right. Returns how many were
 * accepted. */
static int bad_fields(void)
{
    static const struct {
        int at, n;
        uint64_t v;
    } cases[] = {
        {74, 2, 0},
        {74, 2, 257},
        {74, 2, 0xffff},
        {74, 2, 13}, /* number of records */
        {48, 8, 0},
        {48, 8, 1 << 30},
        {48, 8, UINT64_MAX}, /* bytes of the extent */
        {514, 4, 0},
        {514, 4, 0xffffffff},
        {514, 4, (64u << 20) + 1}, /* bytes of a record */
        {512, 1, 128},
        {513, 1, 2},
        {512, 1, 5}, /* layer, kind, order */
        {56, 8, 1},
        {72, 2, 16},
        {68, 4, CHUNK_MAX_IDX},
        {12, 4, 63}, /* 63 tokens, which do not belong to this key */
        {12, 4, 0},
        {12, 4, 65},
        {12, 4, UINT32_MAX},
    };
    struct chunk_header *h = xmalloc(sizeof *h);
    int n_through = 0;
    header_make(h, 3, 12);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        n_through += decode_with(h, cases[i].at, cases[i].n, cases[i].v) == 0;
    free(h);
    return n_through;
}

TEST(header_bounds)
{
    struct chunk_header *h = xmalloc(sizeof *h);
    header_make(h, 3, 12);
    assert_int_equal(bad_fields(), 0);
    assert_int_equal(decode_with(h, 8, 4, 4), 0); /* records of it are tight */
    assert_int_equal(decode_with(h, 8, 4, 3), ERR_CORRUPT);
    assert_int_equal(decode_with(h, 8, 4, 2), ERR_CORRUPT);
    assert_int_equal(decode_with(h, 8, 4, 5), ERR_UNSUPPORTED);
    assert_int_equal(decode_with(h, 8, 4, 1), ERR_UNSUPPORTED);
    bug = STORE_BUG_NO_BOUND;
    int n_caught = bad_fields();
    bug = STORE_BUG_NONE;
    print_message("a length not bounded: caught, %d bad headers pass\n", n_caught);
    assert_true(n_caught > 0);
    free(h);
}

/* --- superblock ------------------------------------------------------------------------------- */

TEST(superblock_flips)
{
    uint8_t bytes[SUPERBLOCK_FILE_BYTES];
    struct superblock sb = {
        .uuid = {1, 2, 3}, .device = 1, .n_devices = 3, .segment_bytes = 1 << 20};
    struct superblock back;
    superblock_encode(&sb, bytes);
    for (int bit = 0; bit < SUPERBLOCK_FILE_BYTES * 8; bit += 3) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        /* the intact copy is decoded */
        assert_int_equal(superblock_decode(bytes, &back, NULL), 0);
        assert_int_equal(back.device, 1);
        assert_memory_equal(back.uuid, sb.uuid, sizeof sb.uuid);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    bytes[30] ^= 1;
    bytes[SUPERBLOCK_BYTES + 30] ^= 1;
    assert_int_equal(superblock_decode(bytes, &back, NULL), ERR_CORRUPT);
}

/* --- allocator -------------------------------------------------------------------------------- */

/* Compares the allocator with a map that has one byte per block. */
TEST(alloc_random)
{
    enum { SEGMENT = 64, MAX = 16, N = 20000 };
    static uint8_t map[MAX][SEGMENT];
    static struct {
        uint32_t segment;
        uint64_t offset, n;
    } held[MAX * SEGMENT];
    struct alloc a;
    struct rng r = {5};
    int n_held = 0;
    alloc_init(&a, SEGMENT * STORE_ALIGN);
    memset(map, 0, sizeof map);
    for (int i = 0; i < N; i++) {
        bool take = n_held == 0 ||
                    (a.used_bytes < 10 * SEGMENT * STORE_ALIGN && rng_below(&r, 100) < 55);
        if (take) {
            uint64_t n = 1 + rng_below(&r, 12);
            uint32_t segment;
            uint64_t offset;
            if (rng_below(&r, 8) == 0) { /* sometimes claims a given place */
                segment = (uint32_t)rng_below(&r, MAX);
                offset = rng_below(&r, SEGMENT + 4) * STORE_ALIGN;
                bool is_free = offset / STORE_ALIGN + n <= SEGMENT;
                for (uint64_t b = 0; is_free && b < n; b++)
                    is_free = map[segment][offset / STORE_ALIGN + b] == 0;
                int rc = alloc_claim(&a, segment, offset, n * STORE_ALIGN);
                assert_int_equal(rc, is_free ? 0 : ERR_CORRUPT);
                if (rc != 0)
                    continue;
            } else {
                assert_int_equal(alloc_take(&a, n * STORE_ALIGN, &segment, &offset), 0);
            }
            assert_true(segment < MAX);
            for (uint64_t b = 0; b < n; b++) {
                assert_int_equal(map[segment][offset / STORE_ALIGN + b], 0);
                map[segment][offset / STORE_ALIGN + b] = 1;
            }
            held[n_held].segment = segment;
            held[n_held].offset = offset;
            held[n_held++].n = n;
        } else {
            int which = (int)rng_below(&r, (uint64_t)n_held);
            alloc_give(&a, held[which].segment, held[which].offset,
                       held[which].n * STORE_ALIGN);
            memset(&map[held[which].segment][held[which].offset / STORE_ALIGN], 0,
                   held[which].n);
            held[which] = held[--n_held];
        }
        if (i % 64 == 0)
            assert_true(alloc_audit(&a));
        uint32_t s = (uint32_t)rng_below(&r, MAX);
        uint64_t end = 0;
        for (uint64_t b = 0; b < SEGMENT; b++)
            if (map[s][b] != 0)
                end = (b + 1) * STORE_ALIGN;
        assert_int_equal(alloc_end(&a, s), end);
    }
    alloc_deinit(&a);
}

TEST(alloc_refuses)
{
    struct alloc a;
    uint32_t segment;
    uint64_t offset;
    alloc_init(&a, 1 << 20);
    assert_int_equal(alloc_take(&a, (1 << 20) + 4096, &segment, &offset), ERR_LIMIT);
    assert_int_equal(alloc_claim(&a, UINT32_MAX, 0, 4096), ERR_CORRUPT);
    assert_int_equal(alloc_claim(&a, 0, UINT64_MAX - 4095, 4096), ERR_CORRUPT);
    assert_int_equal(alloc_claim(&a, 0, 4096, UINT64_MAX - 4095), ERR_CORRUPT);
    assert_int_equal(alloc_claim(&a, 0, 1, 4096), ERR_CORRUPT);
    assert_int_equal(alloc_claim(&a, 0, 0, 0), ERR_CORRUPT);
    assert_int_equal(a.used_bytes, 0);
    alloc_deinit(&a);
}

/* --- catalog ---------------------------------------------------------------------------------- */

static struct sha256 key_of(uint64_t n)
{
    struct sha256 k = {{0}};
    put_u64(k.b, rng_mix(n + 1));
    return k;
}

/* Evicts in order: the least recently used leaf, as a search of all nodes finds it. */
TEST(catalog_victims)
{
    enum { N = 300 };
    static struct chunk_node *nodes[N];
    struct catalog c;
    struct rng r = {9};
    struct sha256 fingerprint = {{1}};
    struct store_mask mask = {{{1, 0}, {0, 0}}};
    catalog_init(&c, PLACEMENT_LRU, false);
    for (uint64_t i = 0; i < N; i++) {
        uint64_t parent = i == 0 || rng_below(&r, 5) == 0 ? 1000 + i : rng_below(&r, i);
        struct sha256 k = key_of(i), p = key_of(parent);
        struct chunk_id id = {&k,   &p, &fingerprint, 0, (uint32_t)i, STORE_CHUNK_TOKENS,
                              false};
        assert_int_equal(catalog_add(&c, &id, &nodes[i]), 0);
        struct extent *x = xcalloc(1, sizeof *x);
        x->state = EXTENT_LIVE;
        x->n_blocks = 2;
        catalog_attach(&c, nodes[i], x, &mask);
        catalog_touch(&c, nodes[i], 0, NULL);
    }
    for (int i = 0; i < 500; i++)
        catalog_touch(&c, nodes[rng_below(&r, N)], 0, NULL);
    for (int i = 0; i < 20; i++) {
        nodes[i]->n_pins++;
        catalog_settle(&c, nodes[i]);
    }
    assert_true(catalog_audit(&c));
    int n_left = N;
    for (struct chunk_node *v; (v = catalog_victim(&c)) != NULL; n_left--) {
        for (int i = 0; i < N; i++)
            if (nodes[i] != NULL && nodes[i] != v && nodes[i]->n_children == 0 &&
                nodes[i]->n_pins == 0)
                assert_true(nodes[i]->place.used_at > v->place.used_at);
        assert_true(v->n_children == 0 && v->n_pins == 0);
        nodes[v->chunk_idx] = NULL;
        struct extent *x = v->extents;
        catalog_detach(&c, x);
        free(x);
        assert_true(catalog_audit(&c));
    }
    for (int i = 0; i < 20; i++)
        assert_non_null(nodes[i]); /* a pinned node stays */
    assert_true(n_left >= 20 && n_left < N);
    catalog_deinit(&c);
}

/* A use gives a chunk the class of its request and owner, and of a full or partial chunk. */
TEST(catalog_classes)
{
    static const int n_tokens[] = {1, STORE_CHUNK_TOKENS - 1, STORE_CHUNK_TOKENS};
    static const uint64_t owners[] = {0, 1001};
    struct catalog c;
    struct sha256 fingerprint = {{1}}, root = key_of(1000);
    catalog_init(&c, PLACEMENT_OURS, false);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            struct sha256 key = key_of((uint64_t)(2 * i + k));
            struct chunk_id id = {&key, &root,       &fingerprint, owners[k],
                                  0,    n_tokens[i], false};
            struct store_mask mask = {{{1, 0}, {0, 0}}};
            struct chunk_node *n;
            struct extent *x = xcalloc(1, sizeof *x);
            *x = (struct extent){.state = EXTENT_LIVE, .n_blocks = 2};
            assert_int_equal(catalog_add(&c, &id, &n), 0);
            catalog_attach(&c, n, x, &mask);
            for (int turn = 0; turn < 4; turn++) {
                struct store_use use = {.turn = turn, .may_call_tools = turn % 2 == 1};
                catalog_touch(&c, n, 5, &use);
                uint8_t class = placement_class(turn, turn % 2 == 1, i < 2);
                assert_int_equal(n->place.class, placement_class_owner(class, owners[k]));
            }
        }
    catalog_deinit(&c);
}

/* A pin of a chunk that is not stored keeps its name. Without the pin the name is forgotten. */
TEST(catalog_names_without_chunks)
{
    struct catalog c;
    struct sha256 key[3] = {{{1}}, {{2}}, {{3}}};
    catalog_init(&c, PLACEMENT_LRU, true);
    for (int i = 0; i < 3; i++) {
        catalog_pin(&c, &key[i], 1000 + i);
        assert_non_null(catalog_find(&c, &key[i]));
        assert_int_equal(c.n_pins, i + 1);
    }
    static const int order[] = {1, 0, 2};
    for (int i = 0; i < 3; i++) {
        catalog_unpin(&c, catalog_find(&c, &key[order[i]]));
        assert_null(catalog_find(&c, &key[order[i]]));
        assert_int_equal(c.n_pins, 2 - i);
        assert_int_equal(c.n_nodes, 2 - i);
        assert_true(catalog_audit(&c));
    }
    catalog_deinit(&c);
}

/* --- bounds of the pure parts ----------------------------------------------------------------- */

TEST(names_and_owners)
{
    struct sha256 parent = {{1}}, stair[4], key = {{0}};
    static const uint32_t numbers[4][3] = {{1, 2, 3}, {2, 2, 3}, {1, 3, 3}, {1, 2, 4}};
    for (int i = 0; i < 4; i++) {
        stair[i] = store_stair_key(&parent, numbers[i]);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(stair[i].b, stair[j].b, 32);
    }
    assert_true(store_owner(NULL) == 0 && store_owner("") == 0);
    assert_true(store_owner("a") != 0 && store_owner("a") != store_owner("b"));
    assert_true(store_owner("a") == store_owner("a"));
    put_u64(key.b, 6);
    assert_int_equal(store_chunk_name(&key), 7);
    put_u64(key.b, 7);
    assert_int_equal(store_chunk_name(&key), 7);
}

static int table_decode(int n, int layer, int kind, uint32_t n_bytes, uint64_t extent_bytes)
{
    static struct chunk_record records[CHUNK_MAX_RECORDS], back[CHUNK_MAX_RECORDS];
    static uint8_t bytes[(CHUNK_MAX_RECORDS + 1) * CHUNK_RECORD_CODE];
    memset(records, 0, sizeof records);
    for (int i = 0; i < n && i < CHUNK_MAX_RECORDS; i++)
        records[i] = (struct chunk_record){.layer = (uint8_t)(layer + i),
                                           .kind = (uint8_t)kind,
                                           .n_bytes = n_bytes,
                                           .checksum = 9};
    chunk_table_encode(records,
                       n < 1                   ? 1
                       : n < CHUNK_MAX_RECORDS ? n
                                               : CHUNK_MAX_RECORDS,
                       bytes);
    return chunk_table_decode(bytes, n, extent_bytes, back);
}

/* The largest and smallest values of a table of records are accepted, the next ones are not. */
TEST(table_bounds)
{
    enum { MIB = 1 << 20, H = CHUNK_HEADER_BYTES };
    static const struct {
        int n, layer, kind;
        uint32_t n_bytes;
        uint64_t extent_bytes;
        int code;
    } cases[] = {
        {1, 0, 0, 1, H + 4096, 0},
        {1, 0, 0, 1, H, ERR_CORRUPT},
        {1, 0, 0, 1, H + 8192, ERR_CORRUPT},
        {0, 0, 0, 1, H, ERR_CORRUPT},
        {CHUNK_MAX_RECORDS + 1, 0, 0, 1, H + 4096, ERR_CORRUPT},
        {1, 0, 0, 0, H + 4096, ERR_CORRUPT},
        {1, 0, 0, 4096, H + 4096, 0},
        {1, 0, 0, 4097, H + 8192, 0},
        {1, 127, 1, 1, H + 4096, 0},
        {1, 128, 1, 1, H + 4096, ERR_CORRUPT},
        {1, 127, 2, 1, H + 4096, ERR_CORRUPT},
        {128, 0, 1, 1, H + 128 * 4096, 0},
        {1, 0, 0, 64 * MIB, H + 64 * MIB, 0},
        {1, 0, 0, 64 * MIB + 1, H + 64 * MIB + 4096, ERR_CORRUPT},
        {63, 0, 0, 64 * MIB, H + (uint64_t)63 * 64 * MIB, 0},
        {64, 0, 0, 64 * MIB, H + (uint64_t)64 * 64 * MIB, ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (table_decode(cases[i].n, cases[i].layer, cases[i].kind, cases[i].n_bytes,
                         cases[i].extent_bytes) != cases[i].code)
            fail_msg("case %d", (int)i);
}

/* Only a chunk that is not full yields. Tokens behind the last one are refused. */
TEST(header_flags_and_tokens)
{
    uint8_t bytes[CHUNK_HEADER_BYTES];
    struct chunk_header *h = xmalloc(sizeof *h), *back = xmalloc(sizeof *back);
    for (int is_partial = 0; is_partial < 2; is_partial++) {
        for (int yields = 0; yields < 2; yields++) {
            header_make(h, 2 + (uint64_t)is_partial, 3);
            assert_int_equal(h->n_tokens < STORE_CHUNK_TOKENS, is_partial);
            h->yields = yields;
            chunk_header_encode(h, bytes);
            assert_int_equal(chunk_header_decode(bytes, back, NULL), 0);
            assert_int_equal(back->yields, is_partial && yields);
            assert_true(back->id == h->id && back->segment == h->segment &&
                        back->offset == h->offset && back->chunk_idx == h->chunk_idx &&
                        back->device == h->device && back->n_bytes == h->n_bytes);
        }
    }
    header_make(h, 3, 12); /* a chunk that is not full */
    int behind = 176 + 4 * h->n_tokens;
    assert_int_equal(decode_with(h, behind, 4, 1), ERR_CORRUPT);
    assert_int_equal(decode_with(h, 176 + 4 * 63, 4, 1), ERR_CORRUPT);
    assert_int_equal(decode_with(h, 68, 4, CHUNK_MAX_IDX - 1), 0);
    assert_int_equal(decode_with(h, 72, 2, STORE_MAX_DEVICES - 1), 0);
    assert_int_equal(decode_with(h, 56, 8, 4096), 0);
    free(h);
    free(back);
}

TEST(superblock_fields)
{
    uint8_t bytes[SUPERBLOCK_FILE_BYTES];
    struct superblock sb = {.uuid = {1, 2, 3},
                            .device = STORE_MAX_DEVICES - 1,
                            .n_devices = STORE_MAX_DEVICES,
                            .segment_bytes = SUPERBLOCK_MAX_SEGMENT_BYTES},
                      back;
    superblock_encode(&sb, bytes);
    assert_int_equal(superblock_decode(bytes, &back, NULL), 0);
    assert_memory_equal(back.uuid, sb.uuid, sizeof sb.uuid);
    assert_true(back.device == sb.device && back.n_devices == sb.n_devices &&
                back.segment_bytes == sb.segment_bytes);
    assert_int_equal(superblock_bad_copy(bytes), -1);
    bytes[60] ^= 1;
    assert_int_equal(superblock_bad_copy(bytes), 0);
    bytes[SUPERBLOCK_BYTES + 60] ^= 1;
    assert_int_equal(superblock_bad_copy(bytes), -1);
    bytes[60] ^= 1;
    assert_int_equal(superblock_bad_copy(bytes), 1);
}

TEST(alloc_in_given_segments)
{
    enum { BLOCK = STORE_ALIGN, SEGMENT = 4 * STORE_ALIGN };
    struct alloc a;
    uint32_t segment = 9;
    uint64_t offset = 9;
    alloc_init(&a, SEGMENT);
    assert_false(alloc_fits(&a, BLOCK));
    assert_false(alloc_take_within(&a, BLOCK, &segment, &offset));
    alloc_add_segments(&a, 2);
    assert_int_equal(a.n_segments, 2);
    assert_true(alloc_fits(&a, SEGMENT) && !alloc_fits(&a, SEGMENT + BLOCK));
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(alloc_take_within(&a, SEGMENT, &segment, &offset));
        assert_true(segment == i && offset == 0);
    }
    assert_false(alloc_fits(&a, BLOCK));
    assert_false(alloc_take_within(&a, BLOCK, &segment, &offset));
    assert_int_equal(a.used_bytes, 2 * SEGMENT);
    alloc_give(&a, 1, BLOCK, 2 * BLOCK);
    assert_true(alloc_fits(&a, 2 * BLOCK) && !alloc_fits(&a, 3 * BLOCK));
    assert_true(alloc_take_within(&a, 2 * BLOCK, &segment, &offset));
    assert_true(segment == 1 && offset == BLOCK);
    alloc_soil(&a, 4);
    assert_int_equal(a.n_segments, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(a.segments[i].soiled, i == 4);
        assert_int_equal(alloc_end(&a, i), i < 2 ? SEGMENT : 0);
    }
    assert_int_equal(alloc_end(&a, 5), 0);
    assert_true(alloc_audit(&a));
    alloc_deinit(&a);
}

TEST(catalog_owners_are_bounded)
{
    struct catalog c;
    uint16_t idx = 7;
    catalog_init(&c, PLACEMENT_LRU, false);
    for (uint64_t i = 0; i < UINT16_MAX; i++) {
        assert_int_equal(catalog_owner(&c, rng_mix(i), &idx), 0);
        assert_int_equal(idx, i);
    }
    assert_int_equal(catalog_owner(&c, rng_mix(UINT16_MAX), &idx), ERR_LIMIT);
    for (uint64_t i = 0; i < UINT16_MAX; i += 1000) {
        assert_int_equal(catalog_owner(&c, rng_mix(i), &idx), 0);
        assert_int_equal(idx, i);
        assert_true(c.owners[idx].tag == rng_mix(i));
    }
    catalog_deinit(&c);
}

/* A name is a key's first bytes with the lowest bit set, so two buckets are searched. */
TEST(catalog_finds_names)
{
    enum { N = 600 };
    struct catalog c;
    struct sha256 key = {{0}};
    catalog_init(&c, PLACEMENT_LRU, false);
    for (uint64_t i = 0; i < N; i++) {
        put_u64(key.b, 4 * i + i % 2);
        catalog_pin(&c, &key, 1);
    }
    static const uint64_t reserved[] = {10, 1024, 1025, 5000};
    static const uint64_t n_buckets[] = {1024, 1024, 2048, 8192};
    for (int r = 0; r < 4; r++) {
        catalog_reserve(&c, reserved[r]);
        assert_int_equal(c.n_buckets, n_buckets[r]);
        for (uint64_t i = 0; i < N; i++) {
            put_u64(key.b, 4 * i + i % 2);
            struct chunk_node *n = catalog_find(&c, &key);
            assert_non_null(n);
            assert_ptr_equal(catalog_named(&c, store_chunk_name(&key)), n);
            assert_null(catalog_named(&c, 4 * i + 3));
        }
    }
    catalog_deinit(&c);
}

/* Adds a committed chunk of two blocks without a parent. */
static struct chunk_node *chunk_put(struct catalog *c, uint64_t number)
{
    static const struct sha256 fingerprint = {{1}};
    static const struct store_mask mask = {{{1, 0}, {0, 0}}};
    struct sha256 k = key_of(number), p = key_of(1000 + number);
    struct chunk_id id = {&k, &p, &fingerprint, 0, 0, STORE_CHUNK_TOKENS, false};
    struct chunk_node *n;
    assert_int_equal(catalog_add(c, &id, &n), 0);
    struct extent *x = xcalloc(1, sizeof *x);
    x->state = EXTENT_LIVE;
    x->n_blocks = 2;
    catalog_attach(c, n, x, &mask);
    return n;
}

TEST(catalog_finds_idle_chunks)
{
    struct catalog c;
    struct chunk_node *n[4], *found[4];
    static const uint32_t used_s[] = {10, 20, 20, 30};
    static const struct {
        uint32_t before_s;
        int most, n;
    } cases[] = {{10, 4, 0}, {11, 4, 1}, {20, 4, 1}, {21, 4, 3}, {30, 4, 3},
                 {31, 4, 4}, {31, 2, 2}, {31, 0, 0}, {21, 1, 1}};
    catalog_init(&c, PLACEMENT_LRU, false);
    for (uint64_t i = 0; i < 4; i++) {
        n[i] = chunk_put(&c, i);
        catalog_touch(&c, n[i], used_s[i], NULL);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(catalog_idle(&c, cases[i].before_s, found, cases[i].most),
                         cases[i].n);
        for (int k = 0; k < cases[i].n; k++)
            assert_true(found[k]->place.used_time < cases[i].before_s);
    }
    catalog_pin(&c, &n[0]->key, 1000); /* a lasting pin keeps a chunk from being idle */
    assert_int_equal(catalog_idle(&c, 11, found, 4), 0);
    assert_int_equal(catalog_idle(&c, 31, found, 4), 3);
    catalog_unpin(&c, n[0]);
    assert_int_equal(catalog_idle(&c, 11, found, 4), 1);
    catalog_deinit(&c);
}

/* A chunk has the longest time to live of its uses; a use without one counts as the longest. */
TEST(catalog_times_to_live)
{
    struct catalog c;
    static const uint32_t ttl_s[] = {60, 100, 80, 100, 0, 50};
    static const uint32_t want_s[] = {60, 100, 100, 100, 0, 0};
    catalog_init(&c, PLACEMENT_LRU, false);
    struct sha256 k = key_of(1), p = key_of(2), f = {{1}};
    struct chunk_id id = {&k, &p, &f, 0, 0, STORE_CHUNK_TOKENS, false};
    struct chunk_node *n;
    assert_int_equal(catalog_add(&c, &id, &n), 0);
    n->n_pins++; /* a new chunk, which has no extent yet */
    catalog_touch(&c, n, 1000, &(struct store_use){.ttl_s = 70});
    assert_int_equal(n->ttl_s, 70);
    catalog_touch(&c, n, 1000, &(struct store_use){.ttl_s = 60});
    assert_int_equal(n->ttl_s, 60);
    assert_int_equal(expiry_first(&c.expiry)->at_s, 1070); /* an entry may be too early */
    n->n_pins--;
    n = chunk_put(&c, 1);
    for (uint32_t i = 0; i < 6; i++) {
        catalog_touch(&c, n, 2000 + i, &(struct store_use){.ttl_s = ttl_s[i]});
        assert_int_equal(n->ttl_s, want_s[i]);
        assert_int_equal(n->expiry_at != 0, want_s[i] > 0);
        catalog_touch(&c, n, 2000 + i, NULL); /* no hints: the time to live stays */
        assert_int_equal(n->ttl_s, want_s[i]);
    }
    uint64_t at = n->place.used_at;
    catalog_used_at(&c, n, at, 7000); /* an older use changes nothing */
    assert_true(n->place.used_time == 2005 && c.tick == at);
    catalog_used_at(&c, n, at + 5, 7000);
    assert_true(n->place.used_time == 7000 && n->place.used_at == at + 5 &&
                c.tick == at + 5);
    assert_true(catalog_audit(&c));
    catalog_deinit(&c);
}
