/* verify.c - scrub: reads everything that the index names and checks it: superblocks, that each
 * row's extent lies in a file, each extent's header against its row and table of records, and
 * each record. Bad chunks are reported and, in a store opened for writing, condemned. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "store/store_impl.h"

#define DEPTH        16
#define WINDOW_BYTES ((uint64_t)CHUNK_MAX_RECORD_BYTES + STORE_ALIGN)

struct verify {
    struct store *s;
    struct store_reader *reader;
    struct store_verify *out;
    void (*report)(void *arg, const char *what);
    void *arg;
    uint8_t *window; /* WINDOW_BYTES of memory that records are read to */
    uint8_t *block;  /* block for one header */
    struct chunk_header *h;
    struct store_hit hit;
    struct store_read reads[CHUNK_MAX_RECORDS];
    bool is_bad; /* the present chunk is bad */
};

static void report_chunk(struct verify *v, const struct sha256 *key, uint32_t chunk_idx,
                         const char *what)
{
    char hex[65], line[400];
    sha256_hex(key, hex);
    snprintf(line, sizeof line, "chunk %u (%.16s..): %s", chunk_idx, hex, what);
    if (v->report != NULL)
        v->report(v->arg, line);
    v->out->n_bad++;
}

static void report_bad(struct verify *v, const char *what)
{
    report_chunk(v, &v->hit.key, v->hit.chunk_idx, what);
    v->is_bad = true;
}

/* Waits for n reads and checks them. */
static int reads_finish(struct verify *v, int n, struct err *err)
{
    for (int n_left = n; n_left > 0;) {
        struct store_read *done[DEPTH];
        int n_done;
        int rc = store_reader_wait(v->reader, done, DEPTH, &n_done, err);
        if (rc != 0)
            return rc;
        for (int i = 0; i < n_done; i++) {
            struct err why = {0};
            if (store_read_check(done[i], &why) != 0)
                report_bad(v, why.msg);
            v->out->n_records++;
            v->out->n_bytes += done[i]->n_bytes;
        }
        n_left -= n_done;
    }
    return 0;
}

/* Reads the records of one extent, as many at once as the window holds. */
static int records_verify(struct verify *v, const struct chunk_record *records, int n,
                          struct err *err)
{
    struct store_read *batch[CHUNK_MAX_RECORDS];
    for (int i = 0; i < n;) {
        uint64_t fill_bytes = 0;
        int n_batch = 0;
        for (; i < n; i++) {
            uint64_t need = chunk_record_span(&records[i]);
            if (fill_bytes + need > WINDOW_BYTES)
                break;
            v->reads[n_batch] = (struct store_read){
                .hit = &v->hit,
                .layer = records[i].layer,
                .kind = (enum store_kind)records[i].kind,
                .dst = v->window + fill_bytes,
                .dst_bytes = need,
            };
            batch[n_batch] = &v->reads[n_batch];
            n_batch++;
            fill_bytes += need;
        }
        CHECK(n_batch > 0); /* the window holds the largest record */
        store_reader_submit(v->reader, batch, n_batch);
        int rc = reads_finish(v, n_batch, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Checks an extent. A damaged one is reported, which is no error. Returns 0, or the reader's
 * error. */
static int extent_verify(struct verify *v, const struct extent *x, struct err *err)
{
    struct chunk_record table[CHUNK_MAX_RECORDS];
    struct err why = {0};
    int rc = store_load_records(v->s, x, table, &why);
    if (rc != 0) {
        report_bad(v, why.msg);
        return 0;
    }
    rc = store_read_header(v->s, x, v->block, v->h, &why);
    if (rc != 0) {
        report_bad(v, why.msg);
    } else {
        uint8_t ours[CHUNK_MAX_RECORDS * CHUNK_RECORD_CODE], theirs[sizeof ours];
        size_t n = (size_t)x->n_records * CHUNK_RECORD_CODE;
        chunk_table_encode(table, x->n_records, ours);
        chunk_table_encode(v->h->records, x->n_records, theirs);
        if (memcmp(ours, theirs, n) != 0)
            report_bad(v, "the header's table of records is not the index's");
    }
    return records_verify(v, table, x->n_records, err);
}

static int chunk_verify(struct verify *v, const struct sha256 *key, struct err *err)
{
    int rc = 0;
    struct err why = {0};
    v->is_bad = false;
    if (!store_pin(v->s, key, &v->hit))
        return 0; /* the chunk was evicted meanwhile */
    v->out->n_chunks++;
    if (store_load_node(v->s, v->hit.impl, &why) != 0)
        report_bad(v, why.msg);
    const struct extent *x;
    for (int i = 0;
         rc == 0 && !v->is_bad && (x = store_extent_nth(v->s, &v->hit, i)) != NULL; i++)
        rc = extent_verify(v, x, err);
    if (v->is_bad && !v->s->home.read_only)
        store_condemn(v->s, &v->hit, "found by verify");
    store_release(v->s, &v->hit, 1);
    return rc;
}

/* --- extents beyond the end of their file ----------------------------------------------------- */

static int row_verify(void *arg, const struct index_row *row)
{
    struct verify *v = arg;
    if (!store_row_is_in_file(v->s, row))
        report_chunk(v, &row->key, row->chunk_idx, STORE_NOT_IN_FILE);
    return 0;
}

/* Reports chunks that were dropped at open because their files end before them. The catalog no
 * longer has them, but the index keeps their rows until the next commit. */
static int rows_verify(struct verify *v, struct err *err)
{
    struct store *s = v->s;
    if (s->ledger.index == NULL)
        return 0;
    struct err why = {0};
    pthread_mutex_lock(&s->ledger.index_lock);
    int rc = index_load(s->ledger.index, row_verify, v, &why);
    pthread_mutex_unlock(&s->ledger.index_lock);
    if (rc == 0)
        return 0;
    if (rc != ERR_CORRUPT)
        return err_set(err, rc, "%s", why.msg);
    if (v->report != NULL)
        v->report(v->arg, why.msg);
    v->out->n_bad++;
    return 0;
}

/* --- all chunks ------------------------------------------------------------------------------- */

struct todo {
    struct {
        struct sha256 key;
        uint64_t n_bytes; /* bytes of the chunk's extents */
    } * at;
    uint64_t n, all_bytes;
};

static int todo_add(void *arg, const struct store_entry *e)
{
    struct todo *t = arg;
    if ((t->n & (t->n - 1)) == 0) {
        void *grown = mem_try_realloc(t->at, (t->n == 0 ? 1 : 2 * t->n) * sizeof t->at[0]);
        if (grown == NULL)
            return -ENOMEM;
        t->at = grown;
    }
    t->at[t->n].key = e->key;
    t->at[t->n++].n_bytes = e->bytes;
    t->all_bytes += e->bytes;
    return 0;
}

static void report_none(void *arg, const char *what)
{
    (void)arg, (void)what;
}

static int verify_open(struct verify *v, struct err *err)
{
    v->h = xmalloc(sizeof *v->h);
    v->window = mem_map(WINDOW_BYTES);
    v->block = mem_map(CHUNK_HEADER_BYTES);
    if (v->window == NULL || v->block == NULL)
        return err_set(err, -ENOMEM, "no memory to verify the store");
    return store_reader_open(v->s, DEPTH, v->window, WINDOW_BYTES, &v->reader, err);
}

static void verify_close(struct verify *v)
{
    store_reader_close(v->reader);
    if (v->window != NULL)
        mem_unmap(v->window, WINDOW_BYTES);
    if (v->block != NULL)
        mem_unmap(v->block, CHUNK_HEADER_BYTES);
    free(v->h);
    free(v);
}

int store_verify_chunk(struct store *s, const struct sha256 *key, bool *is_good,
                       struct err *err)
{
    struct store_verify out = {0};
    struct verify *v = xcalloc(1, sizeof *v);
    *v = (struct verify){.s = s, .out = &out};
    int rc = verify_open(v, err);
    if (rc == 0)
        rc = chunk_verify(v, key, err);
    verify_close(v);
    *is_good = out.n_bad == 0;
    return rc;
}

int store_verify(struct store *s, struct store_verify *out,
                 void (*report)(void *arg, const char *what),
                 void (*progress)(void *arg, uint64_t done_bytes, uint64_t all_bytes),
                 void *arg, struct err *err)
{
    struct verify *v = xcalloc(1, sizeof *v);
    struct todo todo = {0};
    uint64_t done_bytes = 0;
    *v = (struct verify){.s = s, .out = out, .report = report, .arg = arg};
    *out = (struct store_verify){0};
    int rc = verify_open(v, err);
    if (rc == 0)
        rc = store_check_superblocks(s, report != NULL ? report : report_none, arg,
                                     &out->n_bad, err);
    if (rc == 0)
        rc = rows_verify(v, err);
    if (rc == 0)
        rc = store_each(s, todo_add, &todo, err);
    if (rc == -ENOMEM)
        err_set(err, rc, "no memory for the names of all chunks");
    for (uint64_t i = 0; rc == 0 && i < todo.n; i++) {
        rc = chunk_verify(v, &todo.at[i].key, err);
        done_bytes += todo.at[i].n_bytes;
        if (progress != NULL)
            progress(arg, done_bytes, todo.all_bytes);
    }
    free(todo.at);
    verify_close(v);
    return rc;
}
