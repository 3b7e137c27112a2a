/* group_ops.c - the operations of a device group: each rank runs the operation on its own memory.
 *
 * The operand that an operation writes determines the stage.  Each operand in device memory is
 * replaced by the rank's own address (group_address); host memory is the same for all.  The first
 * rank that fails makes the group's stream fail. */
#include "base/check.h"
#include "mpi/call.h"
#include "mpi/group_impl.h"
#include "mpi/messages.h"

/* Makes rows of [K, V] begin so that a rank's heads are the first of each half (ops.kv_fill). Rows
 * of its own width hold no other heads. */
static void take_heads(struct mat *rows, const struct kv_layer *kv, int r)
{
    int64_t width = (int64_t)kv->n_kv * kv->d_head;
    if (rows->cols > 2 * width)
        rows->data = (uint8_t *)rows->data + (size_t)(r * width) * dtype_bytes(rows->dtype);
}

/* A chunk has all ranks' heads of K, and then all ranks' heads of V. */
static void take_chunk_heads(struct kv_chunks *c, const struct kv_layer *kv, int r,
                             int n_ranks)
{
    size_t own = kv_block_bytes(kv->n_kv, kv->d_head, kv->dtype) / 2;
    c->v_at = own * (size_t)n_ranks;
    c->first = (const uint8_t *)c->first + (size_t)r * own;
}

/* Returns the call with rank r's own addresses and heads. */
static struct call of_rank(struct group *g, const struct call *c, int stage, int r)
{
    struct call own = *c;
    const float **tables[] = {&own.rope.cos, &own.rope.sin, &own.rope.cos_t,
                              &own.rope.sin_t};
    for (int i = 0; i < 4; i++) {
        own.m[i].data = group_address(g, c->m[i].data, stage, r);
        *tables[i] = group_address(g, *tables[i], stage, r);
    }
    for (int i = 0; i < 2; i++)
        own.p[i] = group_address(g, c->p[i], stage, r);
    own.w.mem.ptr = group_address(g, c->w.mem.ptr, stage, r);
    own.kv.blocks = group_address(g, c->kv.blocks, stage, r);
    own.chunks.first = group_address(g, c->chunks.first, stage, r);
    if (c->kind == CALL_KV_FILL || c->kind == CALL_KV_READ)
        take_heads(&own.m[0], &own.kv, r);
    else if (c->kind == CALL_ROPE_KV_FILL)
        take_heads(&own.m[1], &own.kv, r);
    else if (c->kind == CALL_KV_LOAD)
        take_chunk_heads(&own.chunks, &own.kv, r, g->base.n_ranks);
    return own;
}

/* More bytes than this do not wait. */
#define MOST_WAITING ((size_t)256 << 10)

/* Lets the call wait for this process's rank. */
static void defer(struct stream *s, const struct call *own)
{
    struct group_stream *gs = group_stream(s);
    message_add(&gs->own, &(struct message){.c = *own});
    if (gs->own.bytes > MOST_WAITING)
        group_settle(s);
}

/* Runs the call on ranks [first, end) of the stage to whose memory `where` belongs. */
static int run_on(struct stream *s, const void *where, const struct call *c, int first,
                  int end)
{
    struct group *g = group_of(s->device);
    int rc = group_code(s), stage = group_stage(g, where);
    for (int r = end - 1; rc == 0 && r >= first; r--) {
        struct call own = of_rank(g, c, stage, r);
        struct stream *of = group_stream(s)->s[stage * s->device->n_ranks + r];
        if (peer_is(of)) {
            rc = peer_run(of, &own);
        } else if (end > 1 && c->host_bytes <= MOST_WAITING) {
            defer(s, &own);
        } else {
            group_settle(s);
            rc = call_run(of, &own);
        }
    }
    return rc == 0 ? 0 : group_code(s);
}

/* Runs the call on each rank. */
#define RUN(where, ...) run_on(s, where, &(struct call){__VA_ARGS__}, 0, s->device->n_ranks)

/* --- weights and rows ------------------------------------------------------------------------- */

static int group_weight_pack(struct stream *s, struct weight *w, int64_t row,
                             const void *src, int64_t n_rows)
{
    return RUN(w->mem.ptr, .kind = CALL_WEIGHT_PACK, .w = *w, .n = {row, n_rows},
               .host = src, .host_bytes = (size_t)n_rows * weight_row_bytes(w));
}

static int group_weight_rows(struct stream *s, struct mat out, const struct weight *w,
                             const int32_t *ids)
{
    return RUN(out.data, .kind = CALL_WEIGHT_ROWS, .m = {out}, .w = *w, .host = ids,
               .host_bytes = (size_t)out.rows * sizeof *ids);
}

static int group_matmul(struct stream *s, struct mat c, struct mat a,
                        const struct weight *w, const float *bias)
{
    return RUN(c.data, .kind = CALL_MATMUL, .m = {c, a}, .w = *w, .p = {bias});
}

static int group_round_rest(struct stream *s, struct mat out, struct mat a)
{
    return RUN(out.data, .kind = CALL_ROUND_REST, .m = {out, a});
}

static int group_embed(struct stream *s, struct mat out, struct mat table,
                       const int32_t *ids, float scale)
{
    return RUN(out.data, .kind = CALL_EMBED, .m = {out, table}, .f = scale, .host = ids,
               .host_bytes = (size_t)out.rows * sizeof *ids);
}

static int group_rmsnorm(struct stream *s, struct mat out, struct mat x, const float *w,
                         float eps)
{
    return RUN(out.data, .kind = CALL_RMSNORM, .m = {out, x}, .p = {w}, .f = eps);
}

static int group_layernorm(struct stream *s, struct mat out, struct mat x, const float *w,
                           const float *b, float eps)
{
    return RUN(out.data, .kind = CALL_LAYERNORM, .m = {out, x}, .p = {w, b}, .f = eps);
}

static int group_head_norm(struct stream *s, struct mat x, int d_head, const float *w,
                           float eps)
{
    return RUN(x.data, .kind = CALL_HEAD_NORM, .m = {x}, .n = {d_head}, .p = {w}, .f = eps);
}

static int group_convert(struct stream *s, struct mat out, struct mat x)
{
    return RUN(out.data, .kind = CALL_CONVERT, .m = {out, x});
}

static int group_add(struct stream *s, struct mat out, struct mat a, struct mat b)
{
    return RUN(out.data, .kind = CALL_ADD, .m = {out, a, b});
}

static int group_add_norm(struct stream *s, struct mat out, struct mat sum, struct mat x,
                          struct mat y, const float *w, const float *b, float eps)
{
    return RUN(out.data, .kind = CALL_ADD_NORM, .m = {out, sum, x, y}, .p = {w, b},
               .f = eps);
}

static int group_act_mul(struct stream *s, struct mat out, struct mat gate_up,
                         enum activation act)
{
    return RUN(out.data, .kind = CALL_ACT_MUL, .m = {out, gate_up}, .n = {(int64_t)act});
}

static int group_act(struct stream *s, struct mat x, enum activation act)
{
    return RUN(x.data, .kind = CALL_ACT, .m = {x}, .n = {(int64_t)act});
}

/* All ranks have the same result, so rank 0 computes it. */
static int group_all_finite(struct stream *s, struct mat x, bool *finite)
{
    return run_on(s, x.data,
                  &(struct call){.kind = CALL_ALL_FINITE, .m = {x}, .finite = finite}, 0,
                  1);
}

/* --- attention -------------------------------------------------------------------------------- */

static int group_rope(struct stream *s, struct mat q, int d_head, const struct rope *rope,
                      const struct ragged *r)
{
    return RUN(q.data, .kind = CALL_ROPE, .m = {q}, .n = {d_head}, .rope = *rope, .r = r);
}

static int group_kv_fill(struct stream *s, const struct kv_layer *kv, struct mat rows,
                         const struct rope *rope, const struct ragged *r)
{
    return RUN(kv->blocks, .kind = CALL_KV_FILL, .kv = *kv, .m = {rows}, .rope = *rope,
               .r = r);
}

static int group_rope_kv_fill(struct stream *s, struct mat q, const struct kv_layer *kv,
                              struct mat rows, const struct rope *rope,
                              const struct ragged *r)
{
    return RUN(kv->blocks, .kind = CALL_ROPE_KV_FILL, .m = {q, rows}, .kv = *kv,
               .rope = *rope, .r = r);
}

static int group_kv_load(struct stream *s, const struct kv_layer *kv,
                         const struct kv_chunks *c, const struct rope *rope)
{
    return RUN(kv->blocks, .kind = CALL_KV_LOAD, .kv = *kv, .chunks = *c, .rope = *rope,
               .host = c->blocks, .host_bytes = (size_t)c->n * sizeof *c->blocks);
}

/* Rows and chunk are host memory and have the heads of all ranks: one rank packs them. */
static int group_kv_pack(struct stream *s, void *chunk, struct mat rows, int n_kv,
                         int d_head)
{
    struct stream *first = group_rank_stream(s, 0, 0);
    int rc = group_code(s);
    if (rc == 0)
        (void)first->device->ops->kv_pack(first, chunk, rows, n_kv, d_head);
    return group_code(s);
}

static int group_kv_read(struct stream *s, struct mat out, const struct kv_layer *kv,
                         const struct ragged *r)
{
    return RUN(kv->blocks, .kind = CALL_KV_READ, .m = {out}, .kv = *kv, .r = r);
}

static int group_attention(struct stream *s, struct mat out, struct mat q,
                           const struct kv_layer *kv, const struct ragged *r,
                           const struct attention_rule *rule)
{
    CHECK(rule->sinks == NULL); /* ranks would need their own heads' */
    return RUN(kv->blocks, .kind = CALL_ATTENTION, .m = {out, q}, .kv = *kv, .r = r,
               .rule = *rule);
}

/* Rank 0 chooses the tokens, because the logits are the same on every rank. */
static int group_sample(struct stream *s, int32_t *ids, struct mat logits,
                        const struct sample_row *rows)
{
    return run_on(s, logits.data,
                  &(struct call){.kind = CALL_SAMPLE,
                                 .p = {ids},
                                 .m = {logits},
                                 .host = rows,
                                 .host_bytes = (size_t)logits.rows * sizeof *rows},
                  0, 1);
}

/* Computes the checksums of the rank's own copies. */
static int group_checksum(struct stream *s, uint64_t *out, const void *first, size_t stride,
                          const uint32_t *n_bytes, int n)
{
    return RUN(out, .kind = CALL_CHECKSUM, .p = {out, first}, .n = {(int64_t)stride, n},
               .host = n_bytes, .host_bytes = (size_t)n * sizeof *n_bytes);
}

struct ops group_ops(const struct device *rank)
{
    return (struct ops){
        .weight_bytes = rank->ops->weight_bytes,
        .weight_pack = group_weight_pack,
        .weight_rows = group_weight_rows,
        .embed = group_embed,
        .rmsnorm = group_rmsnorm,
        .layernorm = group_layernorm,
        .head_norm = group_head_norm,
        .matmul = group_matmul,
        .round_rest = group_round_rest,
        .convert = group_convert,
        .add = group_add,
        .add_norm = group_add_norm,
        .act_mul = group_act_mul,
        .act = group_act,
        .all_finite = group_all_finite,
        .rope = group_rope,
        .kv_fill = group_kv_fill,
        .rope_kv_fill = group_rope_kv_fill,
        .kv_load = group_kv_load,
        .kv_pack = group_kv_pack,
        .kv_read = group_kv_read,
        .attention = group_attention,
        .sample = group_sample,
        .checksum = group_checksum,
    };
}
