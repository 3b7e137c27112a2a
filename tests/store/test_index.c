/* test_index.c - the index keeps every committed field of its rows, pins and places. It keeps
 * nothing of a transaction in which a statement failed, and accepts no row that makes no sense. */
#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "sim/io_sim.h"
#include "store/index.h"
#include "tests/base/sql_faults.h"

#define PATH "/db/index.sqlite"

enum { MOST = 64, N_RECORDS = 3 };

/* What an index must hold. */
struct content {
    uint64_t next_id;
    int n_rows, n_pins, n_places;
    struct index_row row[MOST];
    struct index_pin pin[MOST];
    struct index_place place[MOST];
};

static struct io *io;
static struct index *ix;
static struct index_meta meta;
static struct err err;

/* --- making ----------------------------------------------------------------------------------- */

static void random_bytes(struct rng *r, void *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)to)[i] = (uint8_t)rng_below(r, 256);
}

/* Makes a row with N_RECORDS records; every field is drawn. */
static struct index_row make_row(struct rng *r, uint64_t id)
{
    struct index_row w = {.id = id};
    random_bytes(r, &w.key, sizeof w.key);
    random_bytes(r, &w.parent, sizeof w.parent);
    random_bytes(r, &w.fingerprint, sizeof w.fingerprint);
    random_bytes(r, &w.owner, sizeof w.owner);
    w.offset = rng_below(r, 1 << 20) * STORE_ALIGN;
    w.segment = (uint32_t)rng_below(r, UINT32_MAX);
    w.chunk_idx = (uint32_t)rng_below(r, CHUNK_MAX_IDX);
    w.device = (uint16_t)rng_below(r, 2);
    w.n_records = N_RECORDS;
    w.n_blocks = 1 + N_RECORDS + (uint32_t)rng_below(r, 100);
    w.n_tokens = 1 + (uint32_t)rng_below(r, STORE_CHUNK_TOKENS);
    w.yields = w.n_tokens < STORE_CHUNK_TOKENS && rng_below(r, 2) != 0;
    w.tick = rng_below(r, INT64_MAX);
    w.used_wall_s = (uint32_t)rng_below(r, UINT32_MAX);
    w.ttl_s = (uint32_t)rng_below(r, INT32_MAX);
    w.is_dropped = rng_below(r, 2) != 0;
    w.mask.has[STORE_HIDDEN][0] = 1ull << rng_below(r, 64);
    w.mask.has[STORE_HIDDEN][1] = 1ull << rng_below(r, 64);
    w.mask.has[STORE_KV][1] = 1ull << rng_below(r, 64);
    return w;
}

/* Makes the records of a row: they depend on its id. */
static uint64_t make_records(uint64_t id, struct chunk_record records[N_RECORDS])
{
    for (int i = 0; i < N_RECORDS; i++)
        records[i] = (struct chunk_record){.checksum = id * 31 + (uint64_t)i,
                                           .n_bytes = 100 +
                                                      (uint32_t)(id + 4096 * (uint64_t)i),
                                           .layer = (uint8_t)i,
                                           .kind = STORE_KV};
    return chunk_layout(records, N_RECORDS);
}

static struct index_place make_place(struct rng *r, uint64_t id)
{
    return (struct index_place){.id = id,
                                .offset = rng_below(r, 1 << 20) * STORE_ALIGN,
                                .segment = (uint32_t)rng_below(r, UINT32_MAX),
                                .n_blocks = (uint32_t)rng_below(r, UINT32_MAX),
                                .device = (uint16_t)rng_below(r, 2)};
}

static void open_index(bool read_only)
{
    if (index_open(io, PATH, read_only, &ix, &meta, &err) != 0)
        fail_msg("%s", err.msg);
}

static void reopen(bool read_only)
{
    uint64_t live_bytes = ix != NULL ? index_live_bytes(ix) : 0;
    index_close(ix);
    open_index(read_only);
    /* the pages in use are those of the last commit */
    assert_true(live_bytes == 0 || index_live_bytes(ix) == live_bytes);
    assert_true(index_live_bytes(ix) >= 5 * INDEX_PAGE_BYTES &&
                index_live_bytes(ix) % INDEX_PAGE_BYTES == 0);
}

static int begin(void **state)
{
    struct index_meta m = {.n_devices = 2, .segment_bytes = 1 << 30, .next_id = 1};
    memcpy(m.uuid, "sixteen letters.", sizeof m.uuid);
    sql_faults_begin();
    if (io_sim_open(&(struct io_sim_opts){.seed = 1}, &io, &err) != 0 ||
        io_mkdirs(io, "/db", NULL, &err) != 0 ||
        index_create(io, PATH, &m, &ix, &err) != 0 || index_commit(ix, 1, &err) != 0)
        fail_msg("%s", err.msg);
    return 0;
}

static int end(void **state)
{
    index_close(ix);
    ix = NULL;
    io_close(io);
    sql_faults_end();
    return 0;
}

/* --- comparing -------------------------------------------------------------------------------- */

static int take_row(void *arg, const struct index_row *row)
{
    struct content *c = arg;
    assert_true(c->n_rows < MOST);
    assert_true(c->n_rows == 0 || c->row[c->n_rows - 1].id < row->id);
    c->row[c->n_rows++] = *row;
    return 0;
}

static int take_pin(void *arg, const struct index_pin *pin)
{
    struct content *c = arg;
    c->pin[c->n_pins++] = *pin;
    return 0;
}

static int take_place(void *arg, const struct index_place *place)
{
    struct content *c = arg;
    c->place[c->n_places++] = *place;
    return 0;
}

static const struct index_row *row_of(const struct content *c, uint64_t id)
{
    for (int i = 0; i < c->n_rows; i++)
        if (c->row[i].id == id)
            return &c->row[i];
    fail_msg("row %llu is missing", (unsigned long long)id);
    return NULL;
}

static void assert_same_row(const struct index_row *a, const struct index_row *b)
{
    assert_memory_equal(&a->key, &b->key, sizeof a->key);
    assert_memory_equal(&a->parent, &b->parent, sizeof a->parent);
    assert_memory_equal(&a->fingerprint, &b->fingerprint, sizeof a->fingerprint);
    assert_memory_equal(&a->mask, &b->mask, sizeof a->mask);
    assert_true(a->offset == b->offset && a->segment == b->segment &&
                a->n_blocks == b->n_blocks && a->chunk_idx == b->chunk_idx);
    assert_true(a->device == b->device && a->n_records == b->n_records &&
                a->owner == b->owner);
    assert_true(a->n_tokens == b->n_tokens && a->yields == b->yields && a->tick == b->tick);
    assert_true(a->used_wall_s == b->used_wall_s && a->ttl_s == b->ttl_s &&
                a->is_dropped == b->is_dropped);
}

static void assert_content(const struct content *want)
{
    struct content got = {0};
    struct chunk_record records[N_RECORDS], of_row[N_RECORDS];
    if (index_load(ix, take_row, &got, &err) != 0 ||
        index_load_pins(ix, take_pin, &got, &err) != 0 ||
        index_load_wipes(ix, take_place, &got, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(index_n_rows(ix), want->n_rows);
    assert_int_equal(got.n_rows, want->n_rows);
    assert_int_equal(got.n_pins, want->n_pins);
    assert_int_equal(got.n_places, want->n_places);
    for (int i = 0; i < want->n_rows; i++) {
        uint64_t id = want->row[i].id, n_bytes = make_records(id, of_row);
        assert_same_row(row_of(&got, id), &want->row[i]);
        memset(records, 0, sizeof records);
        assert_int_equal(index_records(ix, id, N_RECORDS, n_bytes, records, &err), 0);
        for (int k = 0; k < N_RECORDS; k++)
            assert_true(records[k].checksum == of_row[k].checksum &&
                        records[k].n_bytes == of_row[k].n_bytes &&
                        records[k].offset == of_row[k].offset &&
                        records[k].layer == of_row[k].layer &&
                        records[k].kind == of_row[k].kind);
    }
    for (int i = 0; i < want->n_pins; i++) {
        int n = 0;
        for (int k = 0; k < got.n_pins; k++)
            n += memcmp(&got.pin[k].key, &want->pin[i].key, sizeof got.pin[k].key) == 0 &&
                 got.pin[k].until_wall_s == want->pin[i].until_wall_s &&
                 got.pin[k].is_guaranteed == want->pin[i].is_guaranteed;
        assert_int_equal(n, 1);
    }
    for (int i = 0; i < want->n_places; i++) {
        int n = 0;
        for (int k = 0; k < got.n_places; k++)
            n += got.place[k].id == want->place[i].id &&
                 got.place[k].offset == want->place[i].offset &&
                 got.place[k].segment == want->place[i].segment &&
                 got.place[k].n_blocks == want->place[i].n_blocks &&
                 got.place[k].device == want->place[i].device;
        assert_int_equal(n, 1);
    }
}

/* --- changes ---------------------------------------------------------------------------------- */

enum change { ADD, DROP, TOUCH, PIN, UNPIN, WIPE, WIPED, N_CHANGES };

/* Makes one change of the index and of *c. A change of something that is not there changes
 * nothing. */
static int change(struct content *c, enum change what, struct rng *r)
{
    int i = c->n_rows > 0 ? (int)rng_below(r, (uint64_t)c->n_rows) : 0;
    int p = c->n_pins > 0 ? (int)rng_below(r, (uint64_t)c->n_pins) : 0;
    int w = c->n_places > 0 ? (int)rng_below(r, (uint64_t)c->n_places) : 0;
    struct index_row row;
    struct chunk_record records[N_RECORDS];
    switch (what) {
    case ADD:
        row = make_row(r, c->next_id);
        make_records(row.id, records);
        c->next_id += 1 + rng_below(r, 3);
        c->row[c->n_rows++] = row;
        return index_add(ix, &row, records, &err);
    case DROP:
        if (c->n_rows == 0)
            return index_drop(ix, 12345678, &err);
        row = c->row[i];
        c->row[i] = c->row[--c->n_rows];
        return index_drop(ix, row.id, &err);
    case TOUCH: {
        row = make_row(r, 1);
        struct index_use use = {row.tick, row.used_wall_s, row.ttl_s, row.is_dropped};
        if (c->n_rows == 0)
            return index_touch(ix, 12345678, &use, &err);
        c->row[i].tick = use.tick;
        c->row[i].used_wall_s = use.used_wall_s;
        c->row[i].ttl_s = use.ttl_s;
        c->row[i].is_dropped = use.is_dropped;
        return index_touch(ix, c->row[i].id, &use, &err);
    }
    case PIN: {
        struct index_pin pin = {.until_wall_s = 1 + (int64_t)rng_below(r, INT32_MAX),
                                .is_guaranteed = rng_below(r, 2) != 0};
        random_bytes(r, &pin.key, sizeof pin.key);
        if (c->n_pins > 0 && rng_below(r, 2) != 0)
            pin.key = c->pin[p].key; /* the pin is set anew */
        else
            p = c->n_pins++;
        c->pin[p] = pin;
        return index_pin(ix, &pin, &err);
    }
    case UNPIN: {
        struct index_pin pin = {0};
        if (c->n_pins > 0) {
            pin.key = c->pin[p].key;
            c->pin[p] = c->pin[--c->n_pins];
        }
        return index_pin(ix, &pin, &err);
    }
    case WIPE:
        c->place[c->n_places] = make_place(r, 1000000 + rng_below(r, 1000000));
        return index_wipe(ix, &c->place[c->n_places++], &err);
    default: {
        uint64_t id = c->n_places > 0 ? c->place[w].id : 7;
        if (c->n_places > 0)
            c->place[w] = c->place[--c->n_places];
        return index_wiped(ix, id, &err);
    }
    }
}

static bool is_full(const struct content *c)
{
    return c->n_rows == MOST || c->n_pins == MOST || c->n_places == MOST;
}

/* Makes up to 8 changes. */
static int some_changes(struct content *c, struct rng *r)
{
    int rc = 0;
    for (int n = 1 + (int)rng_below(r, 8); rc == 0 && n > 0 && !is_full(c); n--)
        rc = change(c, (enum change)rng_below(r, N_CHANGES), r);
    return rc;
}

/* --- tests ------------------------------------------------------------------------------------ */

TEST_WITH(committed_changes_stay_and_others_do_not, begin, end)
{
    struct rng r = {11};
    static struct content now, next;
    now = (struct content){.next_id = 1};
    for (int t = 0; t < 300; t++) {
        bool is_committed = rng_below(&r, 4) != 0;
        next = now;
        if (index_begin(ix, &err) != 0 || some_changes(&next, &r) != 0 ||
            (is_committed && index_commit(ix, next.next_id, &err) != 0))
            fail_msg("%s", err.msg);
        if (is_committed)
            now = next;
        if (!is_committed || rng_below(&r, 4) == 0) {
            reopen(rng_below(&r, 3) == 0);
            assert_int_equal(meta.next_id, now.next_id);
            assert_int_equal(meta.n_devices, 2);
            assert_int_equal(meta.segment_bytes, 1 << 30);
            assert_memory_equal(meta.uuid, "sixteen letters.", sizeof meta.uuid);
            assert_content(&now);
            reopen(false);
        }
        if (rng_below(&r, 20) == 0)
            assert_int_equal(index_compact(ix, &err), 0);
        if (is_full(&now)) { /* begins again with an empty index */
            end(NULL);
            begin(NULL);
            now = (struct content){.next_id = 1};
        }
    }
}

/* A transaction in which a statement fails changes nothing, and the next one works. */
TEST_WITH(a_statement_that_fails_ends_its_transaction, begin, end)
{
    static struct content before, after;
    struct rng r = {12};
    int n_faults = 0;
    before = (struct content){.next_id = 1};
    assert_int_equal(index_begin(ix, &err), 0);
    for (int i = 0; i < 24; i++)
        assert_int_equal(change(&before,
                                (enum change)(i % N_CHANGES % 4 == 1 ? ADD : i % N_CHANGES),
                                &r),
                         0);
    assert_int_equal(index_commit(ix, before.next_id, &err), 0);
    for (enum sql_fault_kind kind = 0; kind < SQL_FAULT_KINDS; kind++)
        for (int what = 0; what < N_CHANGES; what++)
            for (int at = 1;; at++) {
                struct rng same = {13};
                reopen(false); /* compiles all statements */
                after = before;
                err = (struct err){0};
                sql_fault_set(kind, at);
                int rc = index_begin(ix, &err);
                if (rc == 0)
                    rc = change(&after, (enum change)what, &same);
                if (rc == 0)
                    rc = index_commit(ix, after.next_id, &err);
                bool has_come = sql_fault_has_come();
                sql_fault_set(kind, 0);
                if (has_come != (rc < 0) || err.code != rc)
                    fail_msg("change %d, kind %d, statement %d: %d [%s]", what, kind, at,
                             rc, err.msg);
                if (!has_come) {
                    assert_content(&after);
                    before = after;
                    break;
                }
                n_faults++;
                assert_int_equal(sqlite3_get_autocommit(sql_faults_db()), 1);
                assert_content(&before);
                /* the same handle goes on */
                same = (struct rng){13};
                after = before;
                assert_int_equal(index_begin(ix, &err), 0);
                assert_int_equal(change(&after, (enum change)what, &same), 0);
                reopen(false);
                assert_content(&before);
            }
    assert_true(n_faults > 40);
}

TEST_WITH(opening_and_reading_tell_of_faults, begin, end)
{
    static struct content c;
    struct rng r = {14};
    c = (struct content){.next_id = 1};
    assert_int_equal(index_begin(ix, &err), 0);
    for (int i = 0; i < N_CHANGES; i++)
        assert_int_equal(change(&c, (enum change[]){ADD, ADD, PIN, WIPE}[i % 4], &r), 0);
    assert_int_equal(index_commit(ix, c.next_id, &err), 0);
    for (enum sql_fault_kind kind = 0; kind < SQL_FAULT_KINDS; kind++)
        for (int read_only = 0; read_only <= 1; read_only++)
            for (int at = 1;; at++) {
                struct content got = {0};
                struct chunk_record records[N_RECORDS];
                uint64_t id = c.row[0].id, n_bytes = make_records(id, records);
                index_close(ix);
                ix = NULL;
                err = (struct err){0};
                sql_fault_set(kind, at);
                int rc = index_open(io, PATH, read_only != 0, &ix, &meta, &err);
                assert_true((rc == 0) == (ix != NULL));
                if (rc == 0)
                    rc = index_load(ix, take_row, &got, &err);
                if (rc == 0)
                    rc = index_load_pins(ix, take_pin, &got, &err);
                if (rc == 0)
                    rc = index_load_wipes(ix, take_place, &got, &err);
                if (rc == 0)
                    rc = index_records(ix, id, N_RECORDS, n_bytes, records, &err);
                bool has_come = sql_fault_has_come();
                sql_fault_set(kind, 0);
                if (has_come != (rc < 0) || err.code != rc)
                    fail_msg("kind %d, statement %d: %d [%s]", kind, at, rc, err.msg);
                if (!has_come)
                    break;
            }
    reopen(false);
    assert_content(&c);
}

/* The callback ends the load with its own result. */
static int refuse(void *arg, const void *what)
{
    (void)what;
    ++*(int *)arg;
    return -77;
}

static int refuse_row(void *arg, const struct index_row *row)
{
    return refuse(arg, row);
}

static int refuse_pin(void *arg, const struct index_pin *pin)
{
    return refuse(arg, pin);
}

static int refuse_place(void *arg, const struct index_place *place)
{
    return refuse(arg, place);
}

TEST_WITH(a_callback_ends_the_load, begin, end)
{
    static struct content c;
    struct rng r = {15};
    int n = 0;
    c = (struct content){.next_id = 1};
    assert_int_equal(index_begin(ix, &err), 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(change(&c, (enum change[]){ADD, ADD, WIPE, WIPE}[i % 4], &r), 0);
    struct index_pin pin = {.until_wall_s = 5};
    for (int i = 0; i < 3; i++) {
        pin.key.b[0] = (uint8_t)i;
        assert_int_equal(index_pin(ix, &pin, &err), 0);
    }
    assert_int_equal(index_commit(ix, c.next_id, &err), 0);
    assert_int_equal(index_load(ix, refuse_row, &n, &err), -77);
    assert_int_equal(index_load_pins(ix, refuse_pin, &n, &err), -77);
    assert_int_equal(index_load_wipes(ix, refuse_place, &n, &err), -77);
    assert_int_equal(n, 3);
}

/* Each bound of a row: the last value that is allowed, and the first that is not. */
TEST_WITH(rows_that_make_no_sense_are_damage, begin, end)
{
    struct index_row sound;
    struct rng r = {16};
    struct chunk_record records[N_RECORDS];
    sound = make_row(&r, 1);
    sound.n_tokens = STORE_CHUNK_TOKENS;
    sound.yields = false;
    sound.n_blocks = N_RECORDS + 1;
    make_records(1, records);
    for (int i = 0; i < 14; i++) {
        struct index_row row = sound;
        bool is_sound = i % 2 == 0;
        switch (i / 2) {
        case 0:
            row.n_blocks = N_RECORDS + (is_sound ? 1 : 0);
            break;
        case 1:
            row.chunk_idx = CHUNK_MAX_IDX - (is_sound ? 1 : 0);
            break;
        case 2:
            row.n_tokens = is_sound ? 1 : 0;
            break;
        case 3:
            row.n_tokens = STORE_CHUNK_TOKENS + (is_sound ? 0 : 1);
            break;
        case 4: /* as many layers as records */
            row.mask.has[STORE_KV][0] = is_sound ? 0 : 4;
            break;
        case 5:
            row.device = is_sound ? 1 : 2; /* the store has two */
            break;
        default:
            row.id = is_sound ? 1 : 2; /* the next id is 2 */
        }
        end(NULL);
        begin(NULL);
        struct content got = {0};
        assert_int_equal(index_begin(ix, &err), 0);
        assert_int_equal(index_add(ix, &row, records, &err), 0);
        assert_int_equal(index_commit(ix, 2, &err), 0);
        reopen(false);
        int rc = index_load(ix, take_row, &got, &err);
        if (rc != (is_sound ? 0 : ERR_CORRUPT))
            fail_msg("row %d: %d", i, rc);
    }
}

/* Each change of the file behind the index's back is found. */
TEST_WITH(a_changed_file_is_found, begin, end)
{
    static const struct {
        const char *sql;
        bool in_rows, in_wipes, in_records, at_open;
    } cases[] = {
        {"UPDATE extent SET row = zeroblob(184)", .in_rows = true},
        {"UPDATE extent SET row = substr(row, 1, 183)", .in_rows = true},
        {"UPDATE extent SET row = substr(row, 1, 8) || x'ff' || substr(row, 10)",
         .in_rows = true},
        {"UPDATE extent SET row = x'ff' || substr(row, 2)", .in_rows = true},
        {"UPDATE extent SET id = id + 100", .in_rows = true, .in_records = true},
        {"DELETE FROM extent WHERE id = 1", .in_rows = true},
        {"UPDATE wipe SET row = zeroblob(40)", .in_wipes = true},
        {"UPDATE wipe SET row = substr(row, 1, 39)", .in_wipes = true},
        {"UPDATE wipe SET row = substr(row, 1, 39) || x'77'", .in_wipes = true},
        {"UPDATE record SET tab = substr(tab, 1, length(tab) - 1)", .in_records = true},
        {"UPDATE record SET tab = x'01' || substr(tab, 2)", .in_records = true},
        {"UPDATE record SET tab = substr(tab, 1, length(tab) - 1) || x'77'",
         .in_records = true},
        {"UPDATE record SET id = id + 100", .in_records = true},
        {"DELETE FROM record", .in_records = true},
        {"UPDATE meta SET row = substr(row, 1, 63)", .at_open = true},
        {"UPDATE meta SET row = substr(row, 1, 63) || x'77'", .at_open = true},
        {"DELETE FROM meta", .at_open = true},
        {"DROP TABLE record", .at_open = true},
        /* times have no checksum */
        {.sql = "UPDATE extent SET tick = tick + 1, used_wall_s = 5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static struct content c, got;
        struct rng r = {17};
        struct chunk_record records[N_RECORDS];
        end(NULL);
        begin(NULL);
        c = (struct content){.next_id = 1};
        got = (struct content){0};
        assert_int_equal(index_begin(ix, &err), 0);
        for (int k = 0; k < 6; k++)
            assert_int_equal(change(&c, (enum change[]){ADD, WIPE}[k % 2], &r), 0);
        assert_int_equal(index_commit(ix, 200, &err), 0);
        if (sqlite3_exec(sql_faults_db(), cases[i].sql, NULL, NULL, NULL) != SQLITE_OK)
            fail_msg("%s: %s", cases[i].sql, sqlite3_errmsg(sql_faults_db()));
        index_close(ix);
        ix = NULL;
        int rc = index_open(io, PATH, false, &ix, &meta, &err);
        if ((rc != 0) != cases[i].at_open)
            fail_msg("%s: opens with %d", cases[i].sql, rc);
        if (rc != 0) {
            assert_int_equal(rc, ERR_CORRUPT);
            continue;
        }
        rc = index_load(ix, take_row, &got, &err);
        if (rc != (cases[i].in_rows ? ERR_CORRUPT : 0))
            fail_msg("%s: rows %d", cases[i].sql, rc);
        rc = index_load_wipes(ix, take_place, &got, &err);
        if (rc != (cases[i].in_wipes ? ERR_CORRUPT : 0))
            fail_msg("%s: wipes %d", cases[i].sql, rc);
        uint64_t n_bytes = make_records(1, records);
        rc = index_records(ix, 1, N_RECORDS, n_bytes, records, &err);
        bool reads_records = cases[i].in_records && strstr(cases[i].sql, "extent") == NULL;
        if (rc != (reads_records ? ERR_CORRUPT : 0))
            fail_msg("%s: records %d", cases[i].sql, rc);
        assert_int_equal(
            index_records(ix, 1, N_RECORDS, n_bytes + STORE_ALIGN, records, &err),
            ERR_CORRUPT);
    }
}
