/* test_owed.c - erasing in a store that cannot be written. Lookups no longer find the chunks, and
 * the erasure is noted in a file. The next opening that can write carries it out, at whatever
 * moment power fails. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/store_impl.h"

enum { N = 6 };

static const struct st_ctx kept = {.base = 1, .own = 1, .branch = 2, .salt = "a"},
                           gone = {.base = 1, .own = 2, .branch = 2, .salt = "a"},
                           other = {.base = 3, .own = 3, .salt = "b"},
                           late = {.base = 4, .own = 4, .salt = "c"};

/* Returns whether any file of the directory contains the first bytes of a chunk's state. */
static bool remains(const struct st_place *p, const struct st_ctx *c, int chunk)
{
    struct sha256 keys[N];
    uint8_t state[64];
    struct io_names names;
    bool found = false;
    st_keys(c, N, keys);
    st_fill(&keys[chunk], 0, STORE_KV, state, sizeof state);
    assert_int_equal(io_list(p->io, p->dirs[0], &names, NULL), 0);
    for (size_t i = 0; i < names.n; i++) {
        char path[600];
        struct io_file *f;
        uint64_t size;
        size_t got;
        snprintf(path, sizeof path, "%s/%s", p->dirs[0], names.name[i]);
        assert_int_equal(io_file_open(p->io, path, IO_READ_ONLY, &f, NULL), 0);
        assert_int_equal(io_file_size(f, &size, NULL), 0);
        uint8_t *all = xmalloc(size + 1);
        assert_int_equal(io_file_pread_some(f, all, size, 0, &got, NULL), 0);
        found |= memmem(all, got, state, sizeof state) != NULL;
        free(all);
        io_file_close(f);
    }
    io_names_free(&names);
    return found;
}

static bool is_noted(const struct st_place *p)
{
    char path[600];
    snprintf(path, sizeof path, "%s/" STORE_OWED_FILE, p->dirs[0]);
    return io_exists(p->io, path);
}

static void saved(struct st_place *p, uint64_t disk_bytes)
{
    assert_true(st_place_open(p, "sim", 1));
    if (disk_bytes > 0) {
        struct io_sim_opts o = {.seed = 1, .capacity_bytes = disk_bytes};
        io_close(p->io);
        assert_int_equal(io_sim_open(&o, &p->io, NULL), 0);
        p->opts.io = p->io;
    }
    struct store *s = st_open(p);
    assert_int_equal(st_save(s, &st_small, &kept, N, ST_BOTH, NULL), 0);
    assert_int_equal(st_save(s, &st_small, &gone, N, ST_BOTH, NULL), 0);
    assert_int_equal(st_save(s, &st_small, &other, N, ST_BOTH, NULL), 0);
    store_close(s);
}

static struct store *open_for_reading(const struct st_place *p)
{
    struct st_place q = *p;
    q.opts.read_only = true;
    return st_open(&q);
}

static int erase(struct store *s, const struct st_ctx *c, struct store_erased *e)
{
    struct sha256 keys[N];
    struct err err = {0};
    st_keys(c, N, keys);
    int rc = store_erase(s, keys, N, e, &err);
    assert_true(rc == 0 || err.msg[0] != 0);
    return rc;
}

TEST(noted_and_done)
{
    struct st_place p;
    struct store_erased e;
    saved(&p, 0);
    struct store *s = open_for_reading(&p);
    assert_int_equal(erase(s, &gone, &e), -EROFS);
    assert_int_equal(e.n_owed, N - 2);
    assert_int_equal(e.n_shared, 2); /* `kept` continues these two chunks */
    assert_int_equal(e.n_chunks, 0);
    assert_true(e.is_noted && is_noted(&p));
    assert_int_equal(st_n_right(s, &gone, N), 2);
    assert_int_equal(st_n_right(s, &kept, N), N);
    store_close(s);
    /* shows that the search works, and that the bytes are still there */
    assert_true(remains(&p, &gone, N - 1));
    s = open_for_reading(&p);
    /* a restarted store that cannot write either still hides the chunks */
    assert_int_equal(st_n_right(s, &gone, N), 2);
    store_close(s);
    s = st_open(&p);
    assert_int_equal(st_n_right(s, &gone, N), 2);
    assert_int_equal(st_n_right(s, &kept, N), N);
    assert_int_equal(st_n_right(s, &other, N), N);
    assert_false(is_noted(&p));
    assert_false(remains(&p, &gone, N - 1));
    /* A noted erasure is carried out once: a context saved again stays. */
    assert_int_equal(st_save(s, &st_small, &gone, N, ST_BOTH, NULL), 0);
    store_close(s);
    s = st_open(&p);
    assert_int_equal(st_n_right(s, &gone, N), N);
    st_close(s, &p);
}

/* Erasing all chunks of an owner takes one entry in the file. */
TEST(of_an_owner)
{
    struct st_place p;
    struct store_erased e;
    struct err err = {0};
    saved(&p, 0);
    struct store *s = open_for_reading(&p);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(store_erase_owner(s, store_owner("a"), &e, &err), -EROFS);
        assert_int_equal(e.n_owed, i == 0 ? 2 * N - 2 : 0);
        assert_true(e.is_noted);
    }
    assert_int_equal(s->erasing.owed.n, 1);
    assert_int_equal(st_n_right(s, &other, N), N);
    store_close(s);
    s = st_open(&p);
    assert_int_equal(st_n_right(s, &kept, N) + st_n_right(s, &gone, N), 0);
    assert_int_equal(st_n_right(s, &other, N), N);
    assert_false(remains(&p, &kept, 0) || remains(&p, &gone, N - 1));
    assert_true(remains(&p, &other, 0));
    st_close(s, &p);
}

/* The disk fails while the store is in use. */
TEST(after_a_fault)
{
    struct st_place p;
    struct store_erased e;
    struct io_sim_fault bad = {
        .kind = IO_SIM_FAIL, .on = IO_SIM_ON_WRITE, .path = "index.db", .code = -EROFS};
    saved(&p, 0);
    struct store *s = st_open(&p);
    assert_int_equal(io_sim_fault_add(p.io, &bad), 0);
    assert_int_not_equal(erase(s, &gone, &e), 0);
    assert_int_equal(e.n_owed, N - 2);
    assert_true(e.is_noted);
    assert_int_equal(st_n_right(s, &gone, N), 2);
    io_sim_fault_clear(p.io);
    store_close(s);
    s = st_open(&p);
    assert_int_equal(st_n_right(s, &gone, N), 2);
    assert_false(remains(&p, &gone, N - 1));
    st_close(s, &p);
}

/* At first not even the note can be written. Once writing works in part, the note is written. */
TEST(noted_later)
{
    struct st_place p;
    struct store_erased e;
    struct err err = {0};
    struct io_sim_fault bad = {
        .kind = IO_SIM_FAIL, .on = IO_SIM_ON_WRITE | IO_SIM_ON_NAME, .code = -EROFS};
    saved(&p, 0);
    struct store *s = open_for_reading(&p);
    assert_int_equal(io_sim_fault_add(p.io, &bad), 0);
    assert_int_equal(erase(s, &gone, &e), -EROFS);
    assert_int_equal(e.n_owed, N - 2);
    assert_false(e.is_noted);
    assert_true(e.not_noted_because[0] != 0);
    assert_int_equal(st_n_right(s, &gone, N), 2);
    assert_int_equal(store_settle(s, &err), -EROFS);
    io_sim_fault_clear(p.io);
    assert_int_equal(store_settle(s, &err), 0);
    assert_true(is_noted(&p));
    store_close(s);
    s = st_open(&p);
    assert_int_equal(st_n_right(s, &gone, N), 2);
    st_close(s, &p);
}

static uint64_t fill(struct io_file *f)
{
    static const uint8_t block[STORE_ALIGN];
    uint64_t at = 0;
    while (io_file_pwrite(f, block, sizeof block, at, NULL) == 0)
        at += sizeof block;
    return at;
}

/* On a full disk, releasing the reserve makes room for the note. */
TEST(on_a_full_disk)
{
    struct st_place p;
    struct store_erased e;
    struct io_file *f;
    saved(&p, 8 << 20);
    assert_int_equal(io_file_open(p.io, "/ballast", IO_CREATE, &f, NULL), 0);
    assert_true(fill(f) > 0);
    struct store *s = open_for_reading(&p);
    assert_int_equal(erase(s, &gone, &e), -EROFS);
    assert_true(e.is_noted);
    store_close(s);
    assert_int_equal(io_file_truncate(f, 0, NULL), 0);
    io_file_close(f);
    s = st_open(&p);
    assert_int_equal(st_n_right(s, &gone, N), 2);
    st_close(s, &p);
}

/* There is neither a free block nor a reserve. The erased state is not used any more, and is wiped
 * when there is room. */
TEST(without_a_block_left)
{
    struct st_place p;
    struct store_erased e;
    struct store_stats st;
    struct err err = {0};
    struct io_file *f;
    saved(&p, 8 << 20);
    struct store *s = st_open(&p); /* this store has not committed anything yet */
    assert_int_equal(st_append(s, &st_small, &late, 0, ST_BOTH, &err), 0);
    assert_true(home_release_reserve(p.io, p.dirs[0]));
    assert_int_equal(io_file_open(p.io, "/ballast", IO_CREATE, &f, NULL), 0);
    assert_true(fill(f) > 0);
    assert_int_equal(erase(s, &gone, &e), -ENOSPC);
    assert_int_equal(e.n_owed, N - 2);
    assert_int_equal(e.n_chunks, 0); /* no chunk is removed yet */
    assert_int_equal(e.n_shared, 2);
    assert_int_equal(st_n_right(s, &gone, N), 2);
    assert_int_equal(st_n_right(s, &kept, N), N);
    assert_int_equal(store_settle(s, &err), -ENOSPC);
    assert_int_equal(erase(s, &gone, &e), -ENOSPC); /* erasing again gives the same error */
    assert_int_equal(e.n_owed, 0);
    /* A chunk that was appended and cannot be committed is erased together with its owner's other
     * chunks. */
    assert_int_equal(store_erase_owner(s, store_owner("c"), &e, &err), -ENOSPC);
    assert_int_equal(e.n_busy, 1);
    assert_true(remains(&p, &gone, N - 1));
    assert_int_equal(io_file_truncate(f, 0, NULL), 0);
    assert_int_equal(store_settle(s, &err), 0);
    store_stats(s, &st);
    assert_int_equal(st.freeing_bytes, 0);
    assert_false(remains(&p, &gone, N - 1));
    assert_false(remains(&p, &late, 0));
    assert_int_equal(st_n_right(s, &late, N), 0);
    assert_int_equal(st_n_right(s, &kept, N), N);
    assert_true(store_audit(s));
    store_close(s);
    s = st_open(&p);
    assert_int_equal(st_n_right(s, &gone, N), 2);
    assert_int_equal(st_n_right(s, &late, N), 0);
    store_close(s);
    io_file_close(f);
    st_place_close(&p);
}

/* Power fails at any operation of the opening that carries out the noted erasures. */
TEST(cut_off_anywhere)
{
    struct st_place p;
    struct store_erased e;
    int n_crashes = 0;
    saved(&p, 0);
    struct store *s = open_for_reading(&p);
    assert_int_equal(erase(s, &gone, &e), -EROFS);
    store_close(s);
    for (uint64_t at = 1;; at++) {
        struct st_place q = p;
        assert_int_equal(io_sim_fork(p.io, at, &q.io, NULL), 0);
        q.opts.io = q.io;
        io_sim_crash_at(q.io, IO_SIM_AT_OP, at);
        s = NULL;
        (void)store_open(&q.opts, &s, NULL);
        store_close(s);
        bool crashed = io_sim_crashed(q.io);
        n_crashes += crashed;
        io_sim_crash_at(q.io, IO_SIM_AT_OP, 0);
        if (crashed)
            io_sim_restart(q.io);
        s = st_open(&q);
        assert_int_equal(st_n_right(s, &gone, N), 2);
        assert_int_equal(st_n_right(s, &kept, N), N);
        assert_false(is_noted(&q));
        assert_false(remains(&q, &gone, N - 1));
        store_close(s);
        io_close(q.io);
        if (!crashed)
            break;
    }
    print_message("cut off at %d operations\n", n_crashes);
    assert_true(n_crashes > 10);
    st_place_close(&p);
}

/* Damage in the file loses the entries that it hits; the others are carried out. */
TEST(a_damaged_note)
{
    struct st_place p;
    struct store_erased e;
    char path[600];
    saved(&p, 0);
    struct store *s = open_for_reading(&p);
    /* entries for all chunks, from the last to the first */
    assert_int_equal(erase(s, &gone, &e), -EROFS);
    store_close(s);
    snprintf(path, sizeof path, "%s/" STORE_OWED_FILE, p.dirs[0]);
    /* the fourth entry: chunk 2 */
    assert_int_equal(io_sim_flip(p.io, path, 3 * 64 + 30, 2), 0);
    s = st_open(&p);
    assert_int_equal(st_n_right(s, &gone, N), 3);
    assert_false(is_noted(&p));
    st_close(s, &p);
}

/* More entries than are read at once. */
TEST(many_entries)
{
    enum { CONTEXTS = 20, CHUNKS = 55, ALL = CONTEXTS * CHUNKS };
    static const struct st_shape tiny = {.n_layers = 1, .n_bytes = {100, 100}};
    struct st_place p;
    struct err err = {0};
    struct sha256 keys[CHUNKS];
    struct store_erased e;
    struct io_stat st;
    struct store *s = st_begin(&p, "sim", 1);
    for (uint64_t i = 1; i <= CONTEXTS; i++) {
        struct st_ctx c = {.base = i, .own = i};
        assert_int_equal(st_save(s, &tiny, &c, CHUNKS, ST_KV, &err), 0);
    }
    store_close(s);
    s = open_for_reading(&p);
    for (uint64_t i = 1; i <= CONTEXTS; i++) {
        st_keys(&(struct st_ctx){.base = i, .own = i}, CHUNKS, keys);
        assert_int_equal(store_erase(s, keys, CHUNKS, &e, &err), -EROFS);
        assert_int_equal(e.n_owed, CHUNKS);
        assert_true(e.is_noted);
    }
    store_close(s);
    assert_int_equal(io_stat(p.io, "/st/d0/" STORE_OWED_FILE, &st, &err), 0);
    assert_int_equal(st.size_bytes, ALL * 64);
    s = open_for_reading(&p);
    assert_int_equal(s->erasing.owed.n, ALL);
    assert_int_equal(s->erasing.owed.n_noted, ALL);
    for (uint64_t i = 1; i <= CONTEXTS; i++)
        assert_int_equal(st_n_found(s, &(struct st_ctx){.base = i, .own = i}, CHUNKS), 0);
    store_close(s);
    s = st_open(&p);
    assert_int_equal(st_stats(s).n_chunks + st_stats(s).used_bytes, 0);
    assert_false(is_noted(&p));
    st_close(s, &p);
}
