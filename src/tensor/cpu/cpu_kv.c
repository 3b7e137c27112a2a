/* cpu_kv.c - rotary positions, and the only code that writes and reads the paged cache.
 *
 * A batch is cut into runs: consecutive tokens of one sequence inside one block, and as many kv
 * heads as the buffer holds.  Threads take runs one after another; no two threads write the same
 * head of a block. */
#include "tensor/cpu/cpu.h"

#include "base/pool.h"

#include <string.h>

/* --- rope ----------------------------------------------------------------------------------- */

struct rope_job {
    const struct cpu_kernels *k;
    struct mat q;
    int d_head;
    const struct rope *rope;
    const struct ragged *r;
};

static void rope_rows(void *arg, int64_t begin, int64_t end)
{
    struct rope_job *j = arg;
    int half = j->rope->d_rot / 2;
    for (int64_t i = begin; i < end; i++) {
        float *x = row_ptr(j->q, i);
        int64_t angles = (int64_t)j->r->pos[i] * half;
        for (int64_t h = 0; h < j->q.cols; h += j->d_head)
            j->k->rope_head(x + h, j->rope->cos + angles, j->rope->sin + angles, half);
    }
}

int cpu_rope(struct stream *s, struct mat q, int d_head, const struct rope *rope,
             const struct ragged *r)
{
    check_f32(q);
    check_ragged(r, q.rows);
    check_rope(rope, d_head, r);
    int rc = stream_enter(s);
    struct rope_job job = {cpu_kernels_of(s), q, d_head, rope, r};
    if (rc == 0 && rope->d_rot > 0 && q.rows > 0)
        rows_run(s, q.rows, q.rows * q.cols, rope_rows, &job);
    return rc;
}

/* --- runs ----------------------------------------------------------------------------------- */

struct kv_job {
    struct stream *s;
    const struct cpu_kernels *k;
    const struct kv_layer *kv;
    struct mat rows;
    const struct rope *rope;
    const struct ragged *r;
    int heads_per_item;
    struct items items; /* in order of runs: item = run * groups of heads + group */
};

struct span {
    int seq, row, n; /* rows [row, row + n) of the batch */
};

/* Returns the length of the run at `row`: to the end of its block or of its sequence. Positions are
 * consecutive inside a sequence. */
static int span_length(const struct ragged *r, int seq, int row)
{
    int in_block = KV_BLOCK_TOKENS - r->pos[row] % KV_BLOCK_TOKENS;
    int in_seq = r->seq_row[seq + 1] - row;
    int n = MIN(in_block, in_seq);
    CHECK(r->pos[row + n - 1] == r->pos[row] + n - 1);
    return n;
}

static bool span_next(const struct ragged *r, struct span *sp)
{
    sp->row += sp->n;
    while (sp->seq < r->n_seqs && sp->row == r->seq_row[sp->seq + 1])
        sp->seq++;
    if (sp->seq == r->n_seqs)
        return false;
    sp->n = span_length(r, sp->seq, sp->row);
    return true;
}

/* Returns where n_heads heads from `head` on of a span of tokens are read, rotated and written. */
static struct kv_run run_of(const struct kv_job *j, struct span sp, int head, int n_heads)
{
    const struct kv_layer *kv = j->kv;
    size_t e = dtype_bytes(kv->dtype), head_bytes = (size_t)kv->d_head * e;
    int32_t pos = j->r->pos[sp.row];
    int half = j->rope->d_rot / 2;
    const uint8_t *row = row_ptr(j->rows, sp.row);
    uint8_t *block = kv->blocks +
                     (size_t)j->r->tables[sp.seq][pos / KV_BLOCK_TOKENS] * kv->block_stride;
    size_t k_bytes = (size_t)kv->n_kv * head_bytes * KV_BLOCK_TOKENS;
    size_t v_at = kv_rows_are_one(kv->n_kv, kv->d_head, j->rows)
                      ? 0
                      : (size_t)j->rows.cols / 2 * e;
    return (struct kv_run){
        .dtype = kv->dtype,
        .d_head = kv->d_head,
        .n_heads = n_heads,
        .t0 = pos % KV_BLOCK_TOKENS,
        .n = sp.n,
        .k_rows = row + (size_t)head * head_bytes,
        .v_rows = row + v_at + (size_t)head * head_bytes,
        .row_bytes = (size_t)j->rows.ld * e,
        .cos = j->rope->cos + (int64_t)pos * half,
        .sin = j->rope->sin + (int64_t)pos * half,
        .half = half,
        .k = block + (size_t)head * head_bytes * KV_BLOCK_TOKENS,
        .is_cached = kv->is_scratch,
        .v = block + k_bytes + (size_t)head * head_bytes * KV_BLOCK_TOKENS,
    };
}

/* Fills the blocks: every thread walks all spans and processes the items that it takes. */
static void fill_items(void *arg, int thread_idx, int n_threads)
{
    struct kv_job *j = arg;
    (void)n_threads;
    int n_groups = (j->kv->n_kv + j->heads_per_item - 1) / j->heads_per_item;
    struct span sp = {0};
    bool more = span_next(j->r, &sp);
    long at = 0;
    for (long item; item_take(&j->items, &item);) {
        for (; more && at < item / n_groups; at++)
            more = span_next(j->r, &sp);
        int h = (int)(item % n_groups) * j->heads_per_item, left = j->kv->n_kv - h;
        struct kv_run run = run_of(j, sp, h, MIN(left, j->heads_per_item));
        run.scratch = scratch_thread(j->s, thread_idx);
        j->k->kv_fill(&run);
    }
}

static long span_count(const struct ragged *r)
{
    struct span sp = {0};
    long n = 0;
    while (span_next(r, &sp))
        n++;
    return n;
}

int cpu_kv_fill(struct stream *s, const struct kv_layer *kv, struct mat rows,
                const struct rope *rope, const struct ragged *r)
{
    check_kv_rows(kv, rows, r);
    check_rope(rope, kv->d_head, r);
    CHECK(kv->d_head <= ATTENTION_MAX_D_HEAD);
    int rc = stream_enter(s);
    if (rc != 0 || rows.rows == 0)
        return rc;
    struct kv_job job = {
        .s = s, .k = cpu_kernels_of(s), .kv = kv, .rows = rows, .rope = rope, .r = r};
    _Static_assert(KV_ITEM_ELEMENTS >= ATTENTION_MAX_D_HEAD, "an item has a head");
    job.heads_per_item = KV_ITEM_ELEMENTS / kv->d_head;
    job.items.n = span_count(r) *
                  ((kv->n_kv + job.heads_per_item - 1) / job.heads_per_item);
    bool small = rows.rows * rows.cols < 32768;
    if (small)
        fill_items(&job, 0, 1);
    else
        pool_run(s->pool, fill_items, &job);
    return rc;
}

/* Loads a chunk of V, which is K before RoPE: its heads are rows, as kv_fill takes them. */
static void load_rows(struct stream *s, const struct kv_layer *kv, const struct kv_chunk *c,
                      const struct rope *rope, int64_t pos)
{
    size_t head_bytes = (size_t)kv->d_head * dtype_bytes(kv->dtype),
           all = head_bytes * KV_BLOCK_TOKENS;
    for (int h = 0; h < kv->n_kv; h++) {
        const uint8_t *rows = c->chunk + (size_t)h * all;
        struct kv_run run = {.dtype = kv->dtype,
                             .d_head = kv->d_head,
                             .n_heads = 1,
                             .n = KV_BLOCK_TOKENS,
                             .k_rows = rows,
                             .v_rows = rows,
                             .row_bytes = head_bytes,
                             .cos = rope->cos + pos * c->half,
                             .sin = rope->sin + pos * c->half,
                             .half = c->half,
                             .k = c->block + (size_t)h * all,
                             .v = c->block + (size_t)(kv->n_kv + h) * all,
                             .scratch = scratch_thread(s, 0)};
        cpu_kernels_of(s)->kv_fill(&run);
    }
}

int cpu_kv_load(struct stream *s, const struct kv_layer *kv, const struct kv_chunks *c,
                const struct rope *rope)
{
    int rc = stream_enter(s), half = rope->d_rot / 2;
    check_kv_load(kv, c, rope);
    for (int i = 0; rc == 0 && i < c->n; i++) {
        int64_t table = ((int64_t)c->pos0 + i * KV_BLOCK_TOKENS) * half;
        const uint8_t *chunk = (const uint8_t *)c->first + (size_t)i * c->stride;
        struct kv_chunk one = {.dtype = kv->dtype,
                               .d_head = kv->d_head,
                               .n_kv = kv->n_kv,
                               .chunk = chunk,
                               .v = chunk + kv_chunks_v_at(kv, c),
                               .block = kv->blocks +
                                        (size_t)c->blocks[i] * kv->block_stride,
                               .cos = rope->cos_t + table,
                               .sin = rope->sin_t + table,
                               .half = half};
        if (c->v_is_k)
            load_rows(s, kv, &one, rope, (int64_t)c->pos0 + i * KV_BLOCK_TOKENS);
        else
            cpu_kernels_of(s)->kv_load(&one);
    }
    return rc;
}

/* --- reading back: tests and tools only ----------------------------------------------------- */

static void read_run(struct kv_run run, uint8_t *k_out, uint8_t *v_out)
{
    size_t e = dtype_bytes(run.dtype), head_bytes = (size_t)run.d_head * e;
    for (int i = 0; i < run.n; i++) {
        size_t row = (size_t)i * run.row_bytes, token = (size_t)(run.t0 + i);
        for (size_t d = 0; d < (size_t)run.d_head; d++)
            memcpy(k_out + row + d * e, run.k + (d * KV_BLOCK_TOKENS + token) * e, e);
        memcpy(v_out + row, run.v + token * head_bytes, head_bytes);
    }
}

int cpu_kv_read(struct stream *s, struct mat out, const struct kv_layer *kv,
                const struct ragged *r)
{
    static const struct rope none = {0};
    check_kv_rows(kv, out, r);
    struct kv_job job = {.kv = kv, .rows = out, .rope = &none, .r = r};
    struct span sp = {0};
    int rc = stream_enter(s);
    while (rc == 0 && span_next(r, &sp))
        for (int h = 0; h < kv->n_kv; h++) {
            struct kv_run run = run_of(&job, sp, h, 1);
            size_t head_bytes = (size_t)kv->d_head * dtype_bytes(kv->dtype);
            size_t row_bytes = (size_t)out.cols * dtype_bytes(kv->dtype);
            uint8_t *row = row_ptr(out, sp.row);
            read_run(run, row + (size_t)h * head_bytes,
                     row + row_bytes / 2 + (size_t)h * head_bytes);
        }
    return rc;
}
