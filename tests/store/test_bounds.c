/* test_bounds.c - metadata with a right checksum and impossible fields, as a bug, another build or
 * somebody who knows the format could write.
 *
 * Every length and number is refused or bounded, nothing wrong is served, and nothing is lost that
 * other metadata still describes.  docs/PROMISES.md has the table of bounds. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "damage.h"
#include "store/chunk.h"
#include "store/superblock.h"

static const char index_path[] = "/st/d0/index.db", segment[] = "/st/d0/seg-000000.hc";
enum { ALL_RECORDS = 2 * DAMAGE_CHUNKS * 6 };

static void get(struct io *io, const char *path, uint64_t at, void *bytes, size_t n)
{
    struct io_file *f;
    assert_int_equal(io_file_open(io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, bytes, n, at, NULL), 0);
    io_file_close(f);
}

static void put(struct io *io, const char *path, uint64_t at, const void *bytes, size_t n)
{
    struct io_file *f;
    assert_int_equal(io_file_open(io, path, 0, &f, NULL), 0);
    assert_int_equal(io_file_pwrite(f, bytes, n, at, NULL), 0);
    assert_int_equal(io_file_sync(f, NULL), 0);
    io_file_close(f);
}

/* --- headers ---------------------------------------------------------------------------------- */

enum header_change {
    OTHER_STORE,
    OTHER_ID,
    NO_ID,
    HUGE_ID,
    OTHER_DEVICE,
    OTHER_SEGMENT,
    OTHER_OFFSET,
    OTHER_IDX,
    OTHER_KEY,
    FEWER_RECORDS,
    HEADER_CHANGES
};

static void header_change(struct chunk_header *h, enum header_change what)
{
    switch (what) {
    case OTHER_STORE:
        h->uuid[3] ^= 1;
        break;
    case OTHER_ID:
        h->id += 1000;
        break;
    case NO_ID:
        h->id = 0;
        break;
    case HUGE_ID:
        h->id = UINT64_MAX / 2;
        break;
    case OTHER_DEVICE:
        h->device = 1;
        break;
    case OTHER_SEGMENT:
        h->segment = 5;
        break;
    case OTHER_OFFSET:
        h->offset += STORE_ALIGN;
        break;
    case OTHER_IDX:
        h->chunk_idx++; /* chunks with this index have their layers on the other device */
        break;
    case OTHER_KEY:
        h->tokens[5] ^= 1;
        h->key = store_partial_key(&h->parent, h->tokens, h->n_tokens);
        break;
    case FEWER_RECORDS:
        h->n_records--;
        h->n_bytes = chunk_layout(h->records, h->n_records);
        break;
    case HEADER_CHANGES:
        break;
    }
}

/* Returns a copy of the place in which one field of the first extent's header is changed and its
 * checksum is right. */
static struct io *with_header(const struct st_place *p, enum header_change what,
                              struct chunk_header *h)
{
    struct io *io = damage_copy(p, 0);
    uint8_t block[CHUNK_HEADER_BYTES];
    get(io, segment, 0, block, sizeof block);
    assert_int_equal(chunk_header_decode(block, h, NULL), 0);
    uint8_t table[CHUNK_MAX_RECORDS * CHUNK_RECORD_CODE];
    chunk_table_encode(h->records, h->n_records, table);
    uint64_t at = damage_find(io, index_path, table,
                              (size_t)h->n_records * CHUNK_RECORD_CODE);
    header_change(h, what);
    chunk_header_encode(h, block);
    put(io, segment, 0, block, sizeof block);
    get(io, index_path, at, block, 1); /* damages the index's own table */
    block[0] ^= 1;
    put(io, index_path, at, block, 1);
    return io;
}

/* The index knows the place of an extent but has lost the extent's table. The header at that place
 * belongs to another extent. */
TEST(header_is_not_the_rows)
{
    struct st_place p;
    struct chunk_header *h = xmalloc(sizeof *h);
    damage_place(&p);
    for (int what = 0; what < HEADER_CHANGES; what++) {
        struct io *io = with_header(&p, (enum header_change)what, h);
        struct store_opts opts = p.opts;
        struct store *s;
        struct st_result r;
        opts.io = io;
        assert_int_equal(store_open(&opts, &s, NULL), 0);
        assert_int_equal(st_read(s, &st_small, &damage_ctx, DAMAGE_CHUNKS, &r, NULL), 0);
        /* the row has this field, too, and the store believes the row */
        if (what == OTHER_IDX)
            assert_int_equal(r.n_found, DAMAGE_CHUNKS);
        else if (r.n_found != 0 || strstr(r.why, "header unreadable") == NULL)
            fail_msg("change %d: %d found, %s", what, r.n_found, r.why);
        assert_int_equal(r.n_wrong, 0);
        store_close(s);
        io_close(io);
    }
    free(h);
    st_place_close(&p);
}

/* The index is lost. A header that cannot belong to its place is skipped, and all records that are
 * found are right. */
TEST(headers_are_not_believed_blindly)
{
    struct st_place p;
    struct chunk_header *h = xmalloc(sizeof *h);
    damage_place(&p);
    for (int what = 0; what < HEADER_CHANGES; what++) {
        struct io *io = with_header(&p, (enum header_change)what, h);
        assert_int_equal(io_unlink(io, index_path, NULL), 0);
        struct damage_seen seen = damage_look(&p, io);
        assert_true(seen.opened);
        assert_int_equal(seen.n_wrong + seen.n_corrupt + seen.n_unread, 0);
        /* at most the records of chunk 0 on this device are lost */
        int n_lost = ALL_RECORDS - seen.n_records;
        if (what == OTHER_ID ? n_lost != 0 : n_lost == 0 || n_lost > 2 * 4)
            fail_msg("change %d: %d records lost", what, n_lost);
        io_close(io);
    }
    free(h);
    st_place_close(&p);
}

/* Two extents have the same id. The store takes one of them, and every byte that it serves is
 * right. */
TEST(one_id_twice)
{
    struct st_place p;
    struct chunk_header *h = xmalloc(sizeof *h);
    uint8_t block[CHUNK_HEADER_BYTES];
    damage_place(&p);
    get(p.io, segment, 0, block, sizeof block);
    assert_int_equal(chunk_header_decode(block, h, NULL), 0);
    uint64_t id = h->id, second = h->n_bytes;
    get(p.io, segment, second, block, sizeof block);
    assert_int_equal(chunk_header_decode(block, h, NULL), 0);
    h->id = id;
    chunk_header_encode(h, block);
    put(p.io, segment, second, block, sizeof block);
    assert_int_equal(io_unlink(p.io, index_path, NULL), 0);
    struct damage_seen seen = damage_look(&p, p.io);
    assert_true(seen.opened);
    assert_int_equal(seen.n_wrong + seen.n_corrupt + seen.n_unread, 0);
    assert_true(seen.n_records < ALL_RECORDS);
    free(h);
    st_place_close(&p);
}

/* --- the index -------------------------------------------------------------------------------- */

struct field {
    unsigned at, n_bytes;
    uint64_t value;
};

/* Writes a value into a row of n bytes at `at` and updates the row's checksum, its first 8 bytes.
 */
static void field_put(struct io *io, uint64_t at, size_t n, const struct field *f)
{
    uint8_t row[256], word[8];
    assert_true(n <= sizeof row);
    get(io, index_path, at, row, n);
    assert_true(get_u64(row) == checksum64(row + 8, n - 8));
    put_u64(word, f->value);
    memcpy(row + f->at, word, f->n_bytes);
    put_u64(row, checksum64(row + 8, n - 8));
    put(io, index_path, at, row, n);
}

/* A copy with this field in the row of n bytes at `at` opens, and every record can be read. */
static void field_loses_nothing(const struct st_place *p, uint64_t at, size_t n,
                                const struct field *f, const char *what)
{
    struct io *io = damage_copy(p, 0);
    field_put(io, at, n, f);
    struct damage_seen seen = damage_look(p, io);
    if (!seen.opened || seen.n_records != ALL_RECORDS ||
        seen.n_wrong + seen.n_corrupt + seen.n_unread != 0)
        fail_msg("%s, byte %u = %llx: %d records, %d wrong, %s", what, f->at,
                 (unsigned long long)f->value, seen.n_records, seen.n_wrong, seen.err.msg);
    io_close(io);
}

/* Returns the offset of the row of a leaf's extent.  A leaf's key is in no other row. */
static uint64_t row_of(struct io *io, const struct sha256 *key)
{
    return damage_find(io, index_path, key->b, sizeof key->b) - 40;
}

/* Rows with impossible values: the index is rebuilt from the headers, and no record is lost. */
TEST(rows_out_of_range)
{
    static const struct field fields[] = {
        {8, 8, 0},           {8, 8, UINT64_MAX},                              /* id */
        {16, 8, 1},          {16, 8, UINT64_MAX}, {16, 8, UINT64_MAX - 4095}, /* offset */
        {24, 4, UINT32_MAX},                                                  /* segment */
        {28, 4, 0},          {28, 4, 3},          {28, 4, UINT32_MAX},        /* blocks */
        {32, 4, UINT32_MAX},                                                  /* position */
        {36, 2, 2},          {36, 2, 0xffff},                                 /* device */
        {38, 2, 0},          {38, 2, 4},          {38, 2, 257},               /* records */
        {136, 8, 0},         {176, 4, 0},         {176, 4, 65}, /* mask, tokens */
    };
    struct st_place p;
    struct sha256 keys[DAMAGE_CHUNKS];
    damage_place(&p);
    st_keys(&damage_ctx, DAMAGE_CHUNKS, keys);
    uint64_t at = row_of(p.io, &keys[DAMAGE_CHUNKS - 1]);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        field_loses_nothing(&p, at, 184, &fields[i], "row");
    st_place_close(&p);
}

/* Saves another context in the store on `io`, and finds it after a restart. */
static void saves_more(const struct st_place *p, struct io *io)
{
    static const struct st_ctx more = {.base = 70, .own = 71};
    struct store_opts opts = p->opts;
    struct store *s;
    struct st_result r;
    opts.io = io;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(store_open(&opts, &s, NULL), 0);
        if (round == 0)
            assert_int_equal(st_save(s, &st_small, &more, 3, ST_BOTH, NULL), 0);
        assert_int_equal(st_read(s, &st_small, &more, 3, &r, NULL), 0);
        assert_int_equal(r.n_records, 3 * 6);
        assert_true(store_audit(s));
        store_close(s);
    }
}

/* The index's description of itself: if it is that of another store, opening is refused; if it is
 * inconsistent, the index is rebuilt. */
TEST(description_out_of_range)
{
    static const struct {
        struct field field;
        int code; /* the error of opening; 0: opening succeeds and nothing is lost */
    } cases[] = {
        {{8, 4, 0}, ERR_UNSUPPORTED},
        {{8, 4, 99}, ERR_UNSUPPORTED},
        {{12, 4, 0}, ERR_MISMATCH},
        {{12, 4, UINT32_MAX}, ERR_MISMATCH},
        {{16, 8, 1}, ERR_MISMATCH},
        {{32, 8, 0}, ERR_MISMATCH},
        {{32, 8, UINT64_MAX}, ERR_MISMATCH},
        {{40, 8, UINT64_MAX}, 0},
        {{40, 8, UINT64_MAX - 65536}, 0},
        {{40, 8, UINT64_MAX / 2}, 0},
        {{40, 8, 0}, 0},
        {{48, 8, 0}, 0},
        {{48, 8, UINT64_MAX}, 0},
        {{56, 8, 1}, 0},
    };
    struct st_place p;
    uint8_t uuid[16];
    damage_place(&p);
    get(p.io, "/st/d0/superblock", 24, uuid, sizeof uuid);
    uint64_t at = damage_find(p.io, index_path, uuid, sizeof uuid) - 16;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct io *io = damage_copy(&p, 0);
        field_put(io, at, 64, &cases[i].field);
        struct damage_seen seen = damage_look(&p, io);
        assert_int_equal(seen.opened ? 0 : seen.err.code, cases[i].code);
        assert_int_equal(seen.n_wrong, 0);
        if (cases[i].code == 0 && seen.n_records != ALL_RECORDS)
            fail_msg("description, byte %u = %llx: %d records", cases[i].field.at,
                     (unsigned long long)cases[i].field.value, seen.n_records);
        if (cases[i].code == 0)
            saves_more(&p, io);
        io_close(io);
    }
    st_place_close(&p);
}

/* An impossible place to wipe: the index is rebuilt and no stored chunk is wiped. */
TEST(wipes_out_of_range)
{
    static const struct field fields[] = {
        {16, 8, 0},          {16, 8, 1},          {16, 8, UINT64_MAX - 4095}, /* offset */
        {24, 4, UINT32_MAX}, {28, 4, UINT32_MAX}, {28, 4, 0}, /* segment, blocks */
        {32, 2, 2},          {32, 2, 0xffff},                 /* device */
    };
    struct st_place p;
    damage_place(&p);
    uint64_t at = damage_wipe_row(&p);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        field_loses_nothing(&p, at, 40, &fields[i], "place");
    st_place_close(&p);
}

/* --- superblocks ------------------------------------------------------------------------------ */

static void superblock_put(uint8_t bytes[SUPERBLOCK_FILE_BYTES], const struct field *f)
{
    struct superblock sb = {
        .uuid = {1, 2, 3}, .device = 1, .n_devices = 3, .segment_bytes = 1 << 20};
    superblock_encode(&sb, bytes);
    for (int copy = 0; copy < 2; copy++) {
        uint8_t *b = bytes + copy * SUPERBLOCK_BYTES, word[8];
        put_u64(word, f->value);
        memcpy(b + f->at, word, f->n_bytes);
        put_u64(b + 16, 0);
        put_u64(b + 16, checksum64(b, SUPERBLOCK_BYTES));
    }
}

TEST(superblock_out_of_range)
{
    static const struct {
        struct field field;
        int code;
    } cases[] = {
        {{40, 4, 2}, 0},
        {{8, 4, 0}, ERR_UNSUPPORTED},
        {{8, 4, 3}, ERR_UNSUPPORTED},
        {{8, 4, 4}, ERR_CORRUPT}, /* of an encrypted store, which has a mark */
        {{40, 4, 3}, ERR_CORRUPT},
        {{40, 4, UINT32_MAX}, ERR_CORRUPT},
        {{44, 4, 0}, ERR_CORRUPT},
        {{44, 4, 1}, ERR_CORRUPT},
        {{44, 4, 17}, ERR_CORRUPT},
        {{44, 4, UINT32_MAX}, ERR_CORRUPT},
        {{48, 8, 0}, ERR_CORRUPT},
        {{48, 8, 4097}, ERR_CORRUPT},
        {{48, 8, UINT64_MAX}, ERR_CORRUPT},
        {{48, 8, (1ull << 32) + 4096}, ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[SUPERBLOCK_FILE_BYTES];
        struct superblock sb;
        struct err err = {0};
        superblock_put(bytes, &cases[i].field);
        assert_int_equal(superblock_decode(bytes, &sb, &err), cases[i].code);
        assert_true(cases[i].code == 0 || err.msg[0] != 0);
    }
}

/* The directories of one store disagree on the size of segments. */
TEST(superblocks_disagree)
{
    struct st_place p;
    uint8_t bytes[SUPERBLOCK_FILE_BYTES];
    struct superblock sb;
    damage_place(&p);
    get(p.io, "/st/d1/superblock", 0, bytes, sizeof bytes);
    assert_int_equal(superblock_decode(bytes, &sb, NULL), 0);
    sb.segment_bytes *= 2;
    superblock_encode(&sb, bytes);
    put(p.io, "/st/d1/superblock", 0, bytes, sizeof bytes);
    struct damage_seen seen = damage_look(&p, p.io);
    assert_false(seen.opened);
    assert_non_null(strstr(seen.err.msg, "contradicts the others"));
    assert_int_equal(seen.err.code, ERR_CORRUPT);
    st_place_close(&p);
}

/* --- what callers ask for --------------------------------------------------------------------- */

static void refused(const struct store_opts *opts, const char *text)
{
    struct store *s = NULL;
    struct err err = {0};
    if (store_open(opts, &s, &err) != ERR_USAGE || strstr(err.msg, text) == NULL)
        fail_msg("wanted \"%s\", got %s", text, err.msg);
    assert_null(s);
}

TEST(options_out_of_range)
{
    struct st_place p;
    assert_true(st_place_open(&p, "sim", 1));
    struct store_opts o = p.opts;
    o.n_dirs = 0;
    refused(&o, "1 to 16 directories, not 0");
    o.n_dirs = STORE_MAX_DEVICES + 1;
    refused(&o, "1 to 16 directories, not 17");
    o = p.opts;
    o.segment_bytes = 4096;
    refused(&o, "segments of 4096 bytes");
    o.segment_bytes = (1ull << 32) + 4096;
    refused(&o, "segments of 4294971392 bytes");
    o.segment_bytes = (1 << 20) + 1;
    refused(&o, "4096");
    assert_false(io_exists(p.io, "/st/d0/superblock")); /* nothing was created */
    st_place_close(&p);
}

TEST(chunks_out_of_range)
{
    struct st_place p;
    struct err err = {0};
    uint8_t byte = 7;
    struct store *s = st_begin(&p, "sim", 1);
    struct store_record record = {.kind = STORE_KV, .bytes = &byte};
    struct store_chunk c = {
        .fingerprint = st_fingerprint(1), .records = &record, .n_records = 1};
    c.parent = store_root_key(&c.fingerprint, NULL);
    c.key = store_chunk_key(&c.parent, c.tokens);
    record.n_bytes = 0;
    assert_int_equal(store_append(s, &c, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "a record of 0 bytes"));
    record.n_bytes = CHUNK_MAX_RECORD_BYTES + 1;
    assert_int_equal(store_append(s, &c, &err), ERR_LIMIT);
    record.n_bytes = UINT32_MAX;
    assert_int_equal(store_append(s, &c, &err), ERR_LIMIT);
    record.n_bytes = 1;
    c.chunk_idx = CHUNK_MAX_IDX;
    assert_int_equal(store_append(s, &c, &err), ERR_LIMIT);
    assert_non_null(strstr(err.msg, "too long"));
    c.chunk_idx = CHUNK_MAX_IDX - 1;
    assert_int_equal(store_append(s, &c, &err), 0);
    assert_int_equal(store_commit(s, &err), 0);
    assert_true(store_audit(s));
    store_close(s);
    s = st_open(&p); /* a chunk at the largest possible position can be read back */
    struct store_stats stats;
    store_stats(s, &stats);
    assert_int_equal(stats.n_chunks, 1);
    st_close(s, &p);
}
