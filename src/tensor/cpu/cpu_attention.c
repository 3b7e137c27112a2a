/* cpu_attention.c - cuts attention into tiles.
 *
 * A tile is a run of rows of one sequence with all query heads that share one kv head, so that a
 * block of K and V is read (and converted) once for all of them.  If every sequence has one row
 * (decode), a tile takes several kv heads: these are adjacent in a block, and memory is read
 * fastest in long stretches.  Threads take tiles one after another, the last rows first, because
 * those see the most keys. */
#include "tensor/cpu/cpu.h"

#include "base/pool.h"

struct attn_job {
    struct stream *s;
    const struct cpu_kernels *k;
    struct mat out, q;
    const struct kv_layer *kv;
    const struct ragged *r;
    const struct attention_rule *rule;
    int group;
    int tile_heads; /* kv heads of a tile */
    /* most rows of a tile: of the first n_whole groups of kv heads, and of the others */
    int n_whole, tile_rows[2];
    struct items items; /* row tiles of group after group, of each the last tile first */
};

static int seq_tiles(const struct attn_job *j, int seq, int tile_rows)
{
    int rows = j->r->seq_row[seq + 1] - j->r->seq_row[seq];
    return (rows + tile_rows - 1) / tile_rows;
}

static int64_t all_tiles(const struct attn_job *j, int tile_rows)
{
    int64_t n = 0;
    for (int seq = 0; seq < j->r->n_seqs; seq++)
        n += seq_tiles(j, seq, tile_rows);
    return n;
}

/* Computes rows [row0, row1) of sequence seq for tile_heads kv heads. */
static void run_tile(const struct attn_job *j, int seq, int row0, int row1, int kv_head,
                     int thread_idx)
{
    struct attn_tile t;
    t.kv = j->kv;
    t.table = j->r->tables[seq];
    t.kv_head = kv_head;
    t.n_kv_heads = j->tile_heads;
    t.scale = j->rule->scale;
    t.cap = j->rule->cap;
    t.scratch = scratch_thread(j->s, thread_idx);
    t.n = (row1 - row0) * j->group;
    int32_t last = j->r->pos[j->r->seq_row[seq + 1] - 1];
    int i = 0;
    for (int g = kv_head; g < kv_head + j->tile_heads; g++)
        for (int row = row0; row < row1; row++) {
            struct attention_keys keys = attention_keys(j->rule, j->r->pos[row], last);
            for (int h = g * j->group; h < (g + 1) * j->group; h++) {
                t.q[i] = (const float *)row_ptr(j->q, row) + h * j->kv->d_head;
                t.out[i] = (float *)row_ptr(j->out, row) + h * j->kv->d_head;
                t.begin[i] = keys.begin;
                t.sink[i] = j->rule->sinks != NULL ? &j->rule->sinks[h] : NULL;
                t.end[i++] = keys.end;
            }
        }
    if (j->kv->dtype == DTYPE_BF16)
        j->k->attention_bf16(&t);
    else
        j->k->attention(&t);
}

/* Takes tiles. An item counts through groups of kv heads, in them through sequences from the last
 * one on, and in these through tiles from the last one on. */
static void run_items(void *arg, int thread_idx, int n_threads)
{
    struct attn_job *j = arg;
    (void)n_threads;
    for (long item; item_take(&j->items, &item);) {
        int group = 0, seq = j->r->n_seqs - 1, tiles;
        while (item >= (tiles = seq_tiles(j, seq, j->tile_rows[group >= j->n_whole]))) {
            item -= tiles;
            if (seq-- == 0) {
                seq = j->r->n_seqs - 1;
                group++;
            }
        }
        int first = j->r->seq_row[seq], rows = j->r->seq_row[seq + 1] - first;
        int i = tiles - 1 - (int)item;
        run_tile(j, seq, first + rows * i / tiles, first + rows * (i + 1) / tiles,
                 group * j->tile_heads, thread_idx);
    }
}

/* Returns the kv heads per tile: as many as fit, as long as every thread has a tile.  A tile with
 * half of the heads skips the other half in every block, and memory is read a tenth slower
 * (docs/perf/). */
static int tile_heads_of(const struct attn_job *j)
{
    int min_items = pool_threads(j->s->pool), n_kv = j->kv->n_kv;
    if (j->r->n_rows > j->r->n_seqs)
        return 1;
    int heads = n_kv;
    while (heads > 1 && (n_kv % heads != 0 || heads * j->group > TILE_QUERIES ||
                         j->r->n_seqs * (n_kv / heads) < min_items))
        heads--;
    return heads;
}

/* Reading the keys and values of a tile takes about as long as computing with this many query
 * vectors (Zen 3, 1,000 tokens; docs/perf/2026-11-29.md). */
#define READ_QUERIES 8
/* With more rows there are tiles enough for all threads. */
#define FEW_ROWS 32

/* Returns the rows of a tile with which threads need the least time for n groups of heads. */
static int best_rows(const struct attn_job *j, int n)
{
    int most = TILE_QUERIES / j->group, best = most;
    int64_t least = INT64_MAX, n_threads = pool_threads(j->s->pool);
    if (j->r->n_rows > FEW_ROWS || j->r->n_rows == j->r->n_seqs)
        return most;
    for (int rows = MIN(most, j->r->n_rows); rows >= 1; rows--) {
        int64_t turns = (all_tiles(j, rows) * n + n_threads - 1) / n_threads;
        int64_t time = turns * (READ_QUERIES + rows * j->group);
        if (time < least) {
            least = time;
            best = rows;
        }
    }
    return best;
}

int cpu_attention(struct stream *s, struct mat out, struct mat q, const struct kv_layer *kv,
                  const struct ragged *r, const struct attention_rule *rule)
{
    int n_heads = check_attention(out, q, kv, r);
    CHECK(kv->d_head <= ATTENTION_MAX_D_HEAD && n_heads / kv->n_kv <= TILE_QUERIES);
    int rc = stream_enter(s);
    if (rc != 0)
        return rc;
    struct attn_job job = {.s = s,
                           .k = cpu_kernels_of(s),
                           .out = out,
                           .q = q,
                           .kv = kv,
                           .r = r,
                           .rule = rule,
                           .group = n_heads / kv->n_kv};
    job.tile_heads = tile_heads_of(&job);
    /* A few rows, guesses of tokens for instance, are cut so that the threads end at about the same
     * time: of 3 kv heads each of two threads takes one, and some rows of the third. */
    int n_groups = kv->n_kv / job.tile_heads, n_left = n_groups % pool_threads(s->pool);
    job.n_whole = n_groups - n_left;
    job.tile_rows[0] = best_rows(&job, job.n_whole);
    job.tile_rows[1] = best_rows(&job, n_left);
    int64_t n_keys = 0;
    for (int i = 0; i < r->n_rows; i++)
        n_keys += r->pos[i] + 1;
    job.items.n = all_tiles(&job, job.tile_rows[0]) * job.n_whole +
                  all_tiles(&job, job.tile_rows[1]) * n_left;
    if (n_keys * q.cols < 65536) /* a fork and join would cost more than it gains */
        run_items(&job, 0, 1);
    else
        pool_run(s->pool, run_items, &job);
    return rc;
}
