/* damage.c - see damage.h. */
#include "damage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "store/bugs.h"

const struct st_ctx damage_ctx = {1, 2, 2, 0, NULL}, damage_sibling = {1, 3, 2, 0, NULL};
struct damage_counts damage_counts;

static bool store_is_broken(void)
{
    return store_test_bug != NULL && store_test_bug() != STORE_BUG_NONE;
}

/* Makes a store with two contexts on two directories, and closes it. */
void damage_place(struct st_place *p)
{
    struct store *s = st_begin(p, "sim", 2);
    uint64_t freed;
    assert_int_equal(st_save(s, &st_small, &damage_ctx, DAMAGE_CHUNKS, ST_BOTH, NULL), 0);
    assert_int_equal(st_save(s, &st_small, &damage_sibling, DAMAGE_CHUNKS, ST_BOTH, NULL),
                     0);
    assert_int_equal(store_gc(s, &freed, NULL), 0);
    store_close(s);
}

/* Returns another disk with the same content. */
struct io *damage_copy(const struct st_place *p, uint64_t seed)
{
    struct io *io = NULL;
    struct err err = {0};
    if (io_sim_fork(p->io, seed, &io, &err) != 0)
        fail_msg("%s", err.msg);
    return io;
}

/* Opens the store on `io` and reads both contexts, twice: a record that was found damaged must not
 * be served later. Returns the result of a commit. */
static int look(const struct st_place *p, struct io *io, struct damage_seen *out)
{
    struct damage_seen seen = {0};
    struct store_opts opts = p->opts;
    struct store *s = NULL;
    opts.io = io;
    if (store_open(&opts, &s, &seen.err) != 0) {
        *out = seen;
        return 0;
    }
    seen.opened = true;
    for (int i = 0; i < 2; i++) {
        struct st_result a, b;
        struct err err = {0};
        if (st_read(s, &st_small, &damage_ctx, DAMAGE_CHUNKS, &a, &err) != 0 ||
            st_read(s, &st_small, &damage_sibling, DAMAGE_CHUNKS, &b, &err) != 0)
            fail_msg("%s", err.msg);
        seen.n_wrong += a.n_wrong + b.n_wrong;
        seen.n_corrupt += a.n_corrupt + b.n_corrupt;
        seen.n_unread += a.n_unread + b.n_unread;
        seen.n_found = a.n_found + b.n_found;
        seen.n_records = a.n_records + b.n_records;
    }
    damage_counts.n_wrong += (uint64_t)seen.n_wrong * !store_is_broken();
    int rc = store_commit(s, &seen.err);
    store_close(s);
    *out = seen;
    return rc;
}

/* Looks at a copy, and once more if its first commit fails. That commit finds damage in a page of
 * the index that opening does not read, and the next opening rebuilds the index. */
struct damage_seen damage_look(const struct st_place *p, struct io *io)
{
    struct damage_seen seen;
    int rc = look(p, io, &seen);
    if (rc == ERR_CORRUPT)
        rc = look(p, io, &seen);
    assert_int_equal(rc, 0);
    return seen;
}

uint64_t damage_size(struct io *io, const char *path)
{
    struct io_stat st;
    assert_int_equal(io_stat(io, path, &st, NULL), 0);
    return st.size_bytes;
}

/* Flips one bit of metadata in a copy and checks that nothing is lost by it. */
void damage_flip(const struct st_place *p, const char *path, uint64_t at, unsigned bit)
{
    struct io *io = damage_copy(p, at);
    assert_int_equal(io_sim_flip(io, path, at, bit), 0);
    damage_counts.n_meta_bits++;
    struct damage_seen seen = damage_look(p, io);
    assert_int_equal(seen.n_wrong + seen.n_unread + seen.n_corrupt, 0);
    if (!seen.opened)
        fail_msg("%s, byte %llu bit %u: %s", path, (unsigned long long)at, bit,
                 seen.err.msg);
    if (seen.n_records != 2 * DAMAGE_CHUNKS * 6)
        fail_msg("%s, byte %llu bit %u: %d records left", path, (unsigned long long)at, bit,
                 seen.n_records);
    io_close(io);
}

uint64_t damage_find(struct io *io, const char *path, const void *what, size_t n)
{
    struct io_file *f;
    uint64_t size = damage_size(io, path);
    uint8_t *all = xmalloc(size);
    assert_int_equal(io_file_open(io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, all, size, 0, NULL), 0);
    io_file_close(f);
    const uint8_t *at = memmem(all, size, what, n);
    assert_non_null(at);
    uint64_t offset = (uint64_t)(at - all);
    free(all);
    return offset;
}

uint64_t damage_wipe_row(struct st_place *p)
{
    static const char path[] = "/st/d0/index.db";
    struct st_ctx victim = {9, 9, 0, 0, NULL};
    struct sha256 key;
    struct store_erased e;
    struct err err = {0};
    struct io_file *f;
    struct store *s = st_open(p);
    assert_int_equal(st_save(s, &st_small, &victim, 1, ST_BOTH, &err), 0);
    st_keys(&victim, 1, &key);
    struct io_sim_fault bad = {.kind = IO_SIM_FAIL, .on = IO_SIM_ON_WRITE, .path = "seg-"};
    io_sim_fault_add(p->io, &bad);
    assert_int_equal(store_erase(s, &key, 1, &e, &err), -EIO);
    io_sim_fault_clear(p->io);
    store_close(s);

    uint64_t size = damage_size(p->io, path), at = 0;
    uint8_t *all = xmalloc(size);
    assert_int_equal(io_file_open(p->io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, all, size, 0, NULL), 0);
    io_file_close(f);
    while (at + 40 <= size && get_u64(all + at) != checksum64(all + at + 8, 32))
        at++;
    free(all);
    assert_true(at + 40 <= size);
    return at;
}

void damage_report(const struct damage_line *lines, int n)
{
    const char *path = getenv("HCACHE_CAMPAIGN_OUT");
    FILE *f = path != NULL && *path != 0 ? fopen(path, "w") : stdout;
    for (int i = 0; i < n && f != NULL; i++)
        fprintf(f, "%s: %llu\n", lines[i].what, (unsigned long long)lines[i].n);
    if (f == NULL || (f != stdout && fclose(f) != 0)) {
        perror(path);
        exit(1);
    }
}
