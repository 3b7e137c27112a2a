/* test_reader.c - readers: many records at once, few completions taken at a time, records larger
 * than any internal buffer, reads that are refused, and readers that are closed while the device
 * works. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "storetest.h"

static const struct st_ctx ctx = {.base = 1, .own = 11, .branch = 1};

static const char *const kinds[] = {"sim", "pread", "uring", "dram"};

/* Records of several megabytes.  The writer's pieces, the scan of a rebuild and verify's window are
 * all smaller. */
static const struct st_shape large = {.n_layers = 2,
                                      .n_bytes = {5u << 20, (9u << 20) + 77}};

/* Checks that the reported progress only grows and ends at the total. */
struct progress {
    uint64_t done_bytes, all_bytes;
    int n_calls;
};

static void on_progress(void *arg, uint64_t done_bytes, uint64_t all_bytes)
{
    struct progress *g = arg;
    assert_true(done_bytes >= g->done_bytes && done_bytes <= all_bytes);
    assert_true(g->n_calls == 0 || all_bytes == g->all_bytes);
    *g = (struct progress){done_bytes, all_bytes, g->n_calls + 1};
}

TEST(large_records)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct st_place p;
        struct st_result r;
        struct err err = {0};
        struct store_verify v;
        bool on_disk = strcmp(kinds[i], "dram") != 0;
        if (!st_place_open(&p, kinds[i], on_disk ? 2 : 1))
            continue;
        p.opts.segment_bytes = 64 << 20;
        struct store *s = st_open(&p);
        if (st_save(s, &large, &ctx, 2, ST_BOTH, &err) != 0)
            fail_msg("%s: %s", kinds[i], err.msg);
        for (int round = 0; round < (on_disk ? 3 : 1); round++) {
            assert_int_equal(st_read(s, &large, &ctx, 2, &r, &err), 0);
            assert_int_equal(r.n_records, 8);
            assert_int_equal(r.n_wrong + r.n_corrupt + r.n_unread, 0);
            struct progress g = {0};
            assert_int_equal(store_verify(s, &v, NULL, on_progress, &g, &err), 0);
            assert_true(g.n_calls >= 2 && g.done_bytes == g.all_bytes &&
                        g.all_bytes >= v.n_bytes);
            assert_int_equal(v.n_bad, 0);
            assert_int_equal(v.n_records, 8);
            if (!on_disk)
                continue;
            /* The first opening finds an index, the second must rebuild it. */
            store_close(s);
            if (round == 1) {
                char path[400];
                snprintf(path, sizeof path, "%s/index.db", p.dir[0]);
                assert_int_equal(io_unlink(p.io, path, &err), 0);
            }
            s = st_open(&p);
        }
        st_close(s, &p);
    }
}

enum { LAYERS = 90, ROOM = STORE_ALIGN };
static const struct st_shape wide = {.n_layers = LAYERS, .n_bytes = {100, 200}};

struct reading {
    struct st_place p;
    struct store *s;
    struct store_hit hit;
    struct store_reader *r;
    uint8_t *memory;
    struct store_read reads[2 * LAYERS], *batch[2 * LAYERS];
};

/* Saves one chunk of 180 records, looks it up, and prepares a read of each record. */
static void reading_make(struct reading *g, const char *kind)
{
    struct sha256 key;
    assert_true(st_place_open(&g->p, kind, 1));
    g->s = st_open(&g->p);
    assert_int_equal(st_save(g->s, &wide, &ctx, 1, ST_BOTH, NULL), 0);
    st_keys(&ctx, 1, &key);
    assert_int_equal(store_lookup(g->s, NULL, &key, 1, &g->hit, NULL, 0), 1);
    g->memory = mem_map(2 * LAYERS * ROOM);
    assert_non_null(g->memory);
    assert_int_equal(store_reader_open(g->s, 4, NULL, 0, &g->r, NULL), 0);
    for (int i = 0; i < 2 * LAYERS; i++) {
        g->reads[i] = (struct store_read){.hit = &g->hit,
                                          .layer = i / 2,
                                          .kind = (enum store_kind)(i % 2),
                                          .dst = g->memory + i * ROOM,
                                          .dst_bytes = ROOM};
        g->batch[i] = &g->reads[i];
    }
}

static void reading_end(struct reading *g)
{
    store_reader_close(g->r);
    store_release(g->s, &g->hit, 1);
    store_release(g->s, &g->hit, 1); /* released already: does nothing */
    mem_unmap(g->memory, 2 * LAYERS * ROOM);
    store_close(g->s);
    st_place_close(&g->p);
}

TEST(few_at_a_time)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct reading g;
        struct store_read *done[7];
        if (strcmp(kinds[i], "uring") == 0)
            continue; /* without io_uring; "pread" tests the same */
        reading_make(&g, kinds[i]);
        store_reader_submit(g.r, g.batch, 2 * LAYERS);
        int n_all = 0, n;
        while (n_all < 2 * LAYERS) {
            int max = 1 + n_all % 7;
            assert_int_equal(store_reader_wait(g.r, done, max, &n, NULL), 0);
            assert_true(n >= 1 && n <= max);
            for (int j = 0; j < n; j++) {
                uint8_t want[200];
                st_fill(&g.hit.key, done[j]->layer, done[j]->kind, want, done[j]->n_bytes);
                assert_int_equal(store_read_check(done[j], NULL), 0);
                assert_memory_equal(done[j]->bytes, want, done[j]->n_bytes);
            }
            n_all += n;
        }
        /* all reads have been returned */
        assert_int_equal(store_reader_wait(g.r, done, 7, &n, NULL), 0);
        assert_int_equal(n, 0);
        reading_end(&g);
    }
}

TEST(reads_that_cannot_be)
{
    struct reading g;
    struct err err = {0};
    struct store_read *done[3];
    int n = 0;
    reading_make(&g, "sim");
    g.reads[0].layer = LAYERS; /* a layer that was not saved */
    g.reads[1].dst_bytes = ROOM - 1;
    g.reads[2].dst_bytes = 0; /* the caller promises that the destination is large enough */
    store_reader_submit(g.r, g.batch, 3);
    for (int n_all = 0; n_all < 3; n_all += n)
        assert_int_equal(store_reader_wait(g.r, done, 3, &n, &err), 0);
    assert_int_equal(g.reads[0].status, ERR_NOT_FOUND);
    assert_int_equal(g.reads[1].status, ERR_MISMATCH);
    assert_int_equal(g.reads[2].status, 0);
    assert_int_equal(store_read_check(&g.reads[1], &err), ERR_MISMATCH);
    assert_non_null(strstr(err.msg, "could not be read"));
    assert_int_equal(store_read_check(&g.reads[2], &err), 0);
    reading_end(&g);
}

/* A damaged record from the page cache is read again from the disk. The page cache is not used any
 * more. A record that is damaged on the disk, too, is refused. */
TEST(a_damaged_page_is_read_again)
{
    struct reading g;
    struct err err = {0};
    struct store_read *done[1];
    int n = 0;
    reading_make(&g, "pread");
    store_reader_use_page_cache(g.r);
    struct store_read *read = &g.reads[3];
    store_reader_submit(g.r, &g.batch[3], 1);
    assert_int_equal(store_reader_wait(g.r, done, 1, &n, &err), 0);
    uint8_t *bytes = read->dst, good = bytes[5];
    bytes[5] ^= 1;
    read->was_cached = false;
    assert_int_equal(store_read_check(read, &err), ERR_CORRUPT);
    read->was_cached = true;
    assert_int_equal(store_read_check(read, &err), 0);
    assert_int_equal(bytes[5], good);
    struct store_stats st;
    store_stats(g.s, &st);
    assert_int_equal(st.n_checksum_failures, 1);
    read->checksum ^= 1;
    assert_int_equal(store_read_check(read, &err), ERR_CORRUPT);
    reading_end(&g);
}

TEST(closed_while_reading)
{
    static const char *const on[] = {"sim", "pread", "dram"};
    for (size_t i = 0; i < 3; i++) {
        struct reading g;
        reading_make(&g, on[i]);
        store_reader_submit(g.r, g.batch, 2 * LAYERS);
        /* reads that were not waited for are dropped; the sanitizer would see a write after the
         * free */
        reading_end(&g);
    }
}

TEST(no_queue)
{
    struct st_place p;
    struct err err = {0};
    struct store_reader *r = NULL;
    struct store *s = st_begin(&p, "pread", 1);
    assert_int_equal(store_reader_open(s, 0, NULL, 0, &r, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "queue depth 0"));
    assert_null(r);
    store_reader_close(NULL);
    st_close(s, &p);
}

/* Makes each record of what lies at its place, as another process does. */
static void make_elsewhere(struct reading *g)
{
    uint8_t *bytes = mem_map(3 * ROOM), want[200];
    for (int i = 0; i < 2 * LAYERS; i++) {
        struct store_read *r = &g->reads[i];
        struct store_place at;
        r->dst_bytes = 2 * ROOM;
        assert_int_equal(store_read_place(g->s, r, &at), 0);
        const struct store_form *f = &at.form;
        assert_true(at.offset % STORE_ALIGN == 0 && at.bytes % STORE_ALIGN == 0);
        assert_int_equal(pread(at.fd, bytes, at.bytes, (off_t)at.offset), at.bytes);
        assert_int_equal(f->is_packed, st_is_packed(&wide, r->layer));
        assert_int_equal(f->is_sealed, st_place_key != NULL);
        uint8_t *record = bytes + f->begin;
        size_t n = f->n_bytes - (f->is_sealed ? SEAL_BYTES : 0);
        struct seal *seal = seal_of_runs(f->key);
        if (f->is_sealed)
            assert_true(
                seal_run_open(seal, f->name, sizeof f->name, record, f->n_bytes, record));
        seal_free(seal);
        assert_int_equal(n, wide.n_bytes[r->kind]);
        st_fill(&g->hit.key, r->layer, r->kind, want, n);
        assert_memory_equal(record, want, n);
        uint64_t sum = f->is_sealed ? f->checksum : checksum64(record, n);
        assert_int_equal(store_read_judge(r, sum, NULL), 0);
    }
    mem_unmap(bytes, 3 * ROOM);
}

/* Packed records begin anywhere, and encrypted ones come with their key. */
TEST(places_of_every_form)
{
    for (int i = 0; i < 2; i++) {
        struct reading g;
        st_place_key = i > 0 ? st_key : NULL;
        reading_make(&g, "pread");
        make_elsewhere(&g);
        reading_end(&g);
        st_place_key = NULL;
    }
}

/* Reads a record without the store, at the place that the store reports. */
TEST(places_for_others)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct reading g;
        struct err err = {0};
        struct store_place at;
        struct store_stats st;
        if (strcmp(kinds[i], "uring") == 0)
            continue; /* without io_uring; "pread" tests the same */
        reading_make(&g, kinds[i]);
        struct store_read *one = &g.reads[1];
        bool real = strcmp(kinds[i], "pread") == 0;
        assert_int_equal(store_has_files(g.s), real);
        int rc = store_read_place(g.s, one, &at);
        if (!real) {
            assert_int_equal(rc, ERR_UNSUPPORTED);
            reading_end(&g);
            continue;
        }
        assert_int_equal(rc, 0);
        store_read_end(one, 0);
        assert_int_equal(store_read_judge(one, at.form.checksum ^ 1, &err), ERR_CORRUPT);
        assert_non_null(strstr(err.msg, "checksum does not hold"));
        store_read_end(one, -EIO);
        store_stats(g.s, &st);
        assert_int_equal(st.n_read_failures, 1);
        assert_int_equal(st.n_checksum_failures, 1);
        assert_int_equal(st.read_bytes, one->n_bytes);
        g.reads[2].dst_bytes = 16;
        assert_int_equal(store_read_place(g.s, &g.reads[2], &at), ERR_MISMATCH);
        g.reads[2].layer = STORE_MAX_LAYERS - 1;
        assert_int_equal(store_read_place(g.s, &g.reads[2], &at), ERR_NOT_FOUND);
        /* a throttled place must not be read past the throttle */
        io_throttle(g.p.io, 1 << 30, 0);
        assert_false(store_has_files(g.s));
        reading_end(&g);
    }
}
