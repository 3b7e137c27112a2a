/* test_rebuild.c - a new index is made from the extents' headers. A marker is written before the
 * old index is removed, and removed last. The new index has every intact chunk. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include <sqlite3.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/store_impl.h"
#include "io/vfs.h"

enum { N = 3 };

static const struct st_ctx old = {.base = 1, .own = 1}, young = {.base = 2, .own = 2};
#define INDEX  "/st/d0/index.db"
#define MARKER "/st/d0/index.rebuild"

/* Makes a store with two contexts and destroys its index. */
static void damaged(struct st_place *p)
{
    struct io_file *f;
    uint8_t zeros[512] = {0};
    struct store *s = st_begin(p, "sim", 2);
    st_must_save(s, &old, N);
    st_must_save(s, &young, N);
    store_close(s);
    assert_int_equal(io_file_open(p->io, INDEX, 0, &f, NULL), 0);
    assert_int_equal(io_file_pwrite(f, zeros, sizeof zeros, 0, NULL), 0);
    io_file_close(f);
}

/* Opens the store while this operation on this path fails. The damaged index must stay. */
static void keeps_its_index(struct st_place *p, unsigned on, const char *path)
{
    struct store *s = NULL;
    struct err err = {0};
    const struct io_sim_fault f = {.kind = IO_SIM_FAIL, .on = on, .path = path, .count = 1};
    assert_int_equal(io_sim_fault_add(p->io, &f), 0);
    uint64_t n_before = io_sim_fault_hits(p->io);
    assert_int_equal(store_open(&p->opts, &s, &err), -EIO);
    assert_int_equal(io_sim_fault_hits(p->io), n_before + 1);
    assert_true(io_exists(p->io, INDEX));
    io_sim_fault_clear(p->io);
}

/* Power may fail before the old index is removed. Without the marker the store would then look
 * empty. */
TEST(nothing_is_removed_before_the_marker_is_durable)
{
    struct st_place p;
    damaged(&p);
    keeps_its_index(&p, IO_SIM_ON_OPEN | IO_SIM_ON_NAME, "index.rebuild");
    assert_false(io_exists(p.io, MARKER));
    keeps_its_index(&p, IO_SIM_ON_DIR_SYNC, "/st/d0");
    struct store *s = st_open(&p);
    assert_true(s->ledger.was_rebuilt);
    assert_false(io_exists(p.io, MARKER));
    assert_int_equal(st_n_right(s, &old, N), N);
    assert_int_equal(st_n_right(s, &young, N), N);
    store_close(s);
    s = st_open(&p); /* the marker is gone */
    assert_false(s->ledger.was_rebuilt);
    st_close(s, &p);
}

/* The next opening rebuilds the index again after an interrupted rebuild, even if the index looks
 * complete. */
TEST(a_marker_that_was_left_means_a_rebuild)
{
    struct st_place p;
    struct io_file *f;
    struct store *s = st_begin(&p, "sim", 2);
    st_must_save(s, &old, N);
    store_close(s);
    assert_int_equal(io_file_open(p.io, MARKER, IO_CREATE, &f, NULL), 0);
    io_file_close(f);
    s = st_open(&p);
    assert_true(s->ledger.was_rebuilt);
    assert_int_equal(st_n_right(s, &old, N), N);
    st_close(s, &p);
}

/* Chunks that are written after a rebuild have higher ids than all chunks before it. */
TEST(ids_go_on_after_the_newest_chunk)
{
    struct st_place p;
    damaged(&p);
    struct store *s = st_open(&p);
    uint64_t next_id = s->ledger.next_id;
    assert_true(next_id > 2 * N && s->ledger.id_limit > next_id);
    assert_int_equal(st_save(s, &st_small, &young, N + 1, ST_BOTH, NULL), 0);
    assert_true(s->ledger.next_id > next_id);
    store_close(s);
    s = st_open(&p);
    assert_true(s->ledger.next_id > next_id);
    assert_int_equal(st_n_right(s, &young, N + 1), N + 1);
    st_close(s, &p);
}

/* A disk that fails any read of a rebuild fails it, because the records there may be good. Nothing
 * is lost: the next opening finds all chunks. */
TEST(a_read_that_fails_is_an_error)
{
    struct st_place p;
    struct err err = {0};
    uint64_t n_failed = 0;
    damaged(&p);
    for (bool hit = true; hit; n_failed += hit) {
        struct store *s = NULL;
        const struct io_sim_fault f = {.kind = IO_SIM_FAIL,
                                       .on = IO_SIM_ON_READ,
                                       .path = "seg-",
                                       .skip = n_failed,
                                       .count = 1};
        assert_int_equal(io_sim_fault_add(p.io, &f), 0);
        uint64_t n_before = io_sim_fault_hits(p.io);
        int rc = store_open(&p.opts, &s, &err);
        hit = io_sim_fault_hits(p.io) > n_before;
        io_sim_fault_clear(p.io);
        assert_int_equal(rc, hit ? -EIO : 0);
        store_close(s);
    }
    assert_true(n_failed > 4 * N); /* at least a header and a record of each chunk */
    struct store *s = st_open(&p);
    assert_int_equal(st_n_right(s, &old, N) + st_n_right(s, &young, N), 2 * N);
    st_close(s, &p);
}

/* Records beyond the end of a cut file are lost, and nothing else: the chunks have other records in
 * the other folder. */
TEST(a_cut_file_loses_the_records_behind_its_end)
{
    uint64_t whole = 0, left = 0; /* the file's last block has no records yet */
    for (uint64_t cut = STORE_ALIGN; left == whole; cut += STORE_ALIGN) {
        struct st_place p;
        struct io_file *f;
        uint64_t end = 0;
        damaged(&p);
        assert_int_equal(io_file_open(p.io, "/st/d0/seg-000000.hc", 0, &f, NULL), 0);
        assert_int_equal(io_file_size(f, &end, NULL), 0);
        assert_true(end > cut);
        assert_int_equal(io_file_truncate(f, end - cut, NULL), 0);
        io_file_close(f);
        struct store *s = st_open(&p);
        assert_true(s->ledger.was_rebuilt);
        left = st_stats(s).used_bytes;
        whole = MAX(whole, left);
        assert_int_equal(st_n_right(s, &old, N) + st_n_right(s, &young, N), 2 * N);
        st_close(s, &p);
    }
    assert_true(left < whole && left > whole / 2);
}

/* Drops the newest extent's row, as no build of this store would. */
static void lose_row(struct io *io)
{
    sqlite3 *db = NULL;
    assert_int_equal(vfs_register(io, "test-rebuild", VFS_WRITE, NULL), 0);
    assert_int_equal(sqlite3_open_v2(INDEX, &db, SQLITE_OPEN_READWRITE, "test-rebuild"),
                     SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db,
                     "PRAGMA locking_mode = EXCLUSIVE; PRAGMA temp_store = MEMORY;"
                     "PRAGMA journal_mode = WAL;"
                     "DELETE FROM extent WHERE id = (SELECT max(id) FROM extent)",
                     NULL, NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    vfs_unregister("test-rebuild");
}

/* A rebuild forgets the chunks that the damaged index named, and their space, if their file is
 * gone. */
TEST(a_rebuild_begins_from_nothing)
{
    enum { MANY = 20 };
    struct st_place p;
    struct sha256 keys[MANY];
    struct store_hit hit;
    char why[128];
    int n = -1;
    struct store *s = st_begin(&p, "sim", 1);
    st_must_save(s, &old, MANY);
    uint64_t n_in_first = 0;
    st_keys(&old, MANY, keys);
    for (int i = 0; i < MANY; i++)
        n_in_first += catalog_find(&s->catalog, &keys[i])->extents->segment == 0;
    assert_true(n_in_first > 0 && n_in_first < MANY - 1);
    store_close(s);
    assert_int_equal(io_unlink(p.io, "/st/d0/seg-000000.hc", NULL), 0);
    lose_row(p.io);
    s = st_open(&p);
    assert_true(s->ledger.was_rebuilt);
    struct store_stats st = st_stats(s);
    assert_int_equal(st.n_chunks, MANY - n_in_first);
    assert_int_equal(st.used_bytes, st_context_bytes(MANY - (int)n_in_first));
    assert_int_equal(st.freeing_bytes + st.n_corrupt + st.evictions[STORE_EVICT_DAMAGED],
                     0);
    assert_false(store_was_damaged(s, &keys[0]));
    n = store_lookup(s, NULL, keys, 1, &hit, why, sizeof why);
    assert_int_equal(n, 0);
    assert_string_equal(why, "not stored");
    st_close(s, &p);
}
