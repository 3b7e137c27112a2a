/* group_ops.c - the operations of a device group: each rank runs the operation on its own memory.
 *
 * The operand that an operation writes determines the stage.  Each operand in device memory is
 * replaced by the rank's own address (group_address); host memory is the same for all.  The first
 * rank that fails makes the group's stream fail. */
#include "base/check.h"
#include "base/hash.h"
#include "tensor/group_impl.h"

/* The rank that runs an operation now. */
struct turn {
    struct group *g;
    struct stream *s;
    const struct ops *op;
    int stage, r;
};

static struct turn turn_of(struct stream *s, int stage, int r)
{
    struct stream *of = rank_stream(s, stage, r);
    return (struct turn){group_of(s->device), of, of->device->ops, stage, r};
}

/* Returns whether operations are skipped now. During a recording, the group's call of queue skips
 * all of them, because it only finds the exchanges; a rank's call of queue skips those outside of
 * the span that it records. */
static bool is_left_out(struct stream *s)
{
    const struct group_stream *gs = group_stream(s);
    const struct group_recording *rec = gs->recording;
    return rec != NULL && (gs->only < 0 || rec->passed != rec->span);
}

/* Returns the first rank that runs operations now. The ranks are [first, end). */
static int first_turn(struct stream *s)
{
    int only = group_stream(s)->only;
    return only >= 0 ? only : 0;
}

static int end_of_turns(struct stream *s)
{
    int only = group_stream(s)->only;
    return only >= 0 ? only + 1 : s->device->n_ranks;
}

/* Runs `call`, which uses t, once for each rank of the stage to whose memory `where` belongs. */
#define EACH(stream, where, call)                                                          \
    do {                                                                                   \
        int rc_ = group_code(stream);                                                      \
        if (is_left_out(stream))                                                           \
            return rc_;                                                                    \
        int stage_ = group_stage(group_of((stream)->device), where);                       \
        for (int r_ = first_turn(stream); rc_ == 0 && r_ < end_of_turns(stream); r_++) {   \
            struct turn t = turn_of(stream, stage_, r_);                                   \
            rc_ = (call);                                                                  \
        }                                                                                  \
        return rc_ == 0 ? 0 : group_code(stream);                                          \
    } while (0)

static struct mat mat_at(struct turn t, struct mat a)
{
    a.data = group_address(t.g, a.data, t.stage, t.r);
    return a;
}

static const float *floats_at(struct turn t, const float *p)
{
    return group_address(t.g, p, t.stage, t.r);
}

static struct weight weight_at(struct turn t, const struct weight *w)
{
    struct weight of = *w;
    of.mem.ptr = group_address(t.g, w->mem.ptr, t.stage, t.r);
    return of;
}

static struct rope rope_at(struct turn t, const struct rope *r)
{
    struct rope of = *r;
    of.cos = floats_at(t, r->cos);
    of.sin = floats_at(t, r->sin);
    of.cos_t = floats_at(t, r->cos_t);
    of.sin_t = floats_at(t, r->sin_t);
    return of;
}

static struct kv_layer kv_at(struct turn t, const struct kv_layer *kv)
{
    struct kv_layer of = *kv;
    of.blocks = group_address(t.g, kv->blocks, t.stage, t.r);
    return of;
}

/* --- weights ---------------------------------------------------------------------------------- */

static int pack_at(struct turn t, struct weight w, int64_t row, const void *src, int64_t n)
{
    return t.op->weight_pack(t.s, &w, row, src, n);
}

static int group_weight_pack(struct stream *s, struct weight *w, int64_t row,
                             const void *src, int64_t n_rows)
{
    EACH(s, w->mem.ptr, pack_at(t, weight_at(t, w), row, src, n_rows));
}

static int rows_at(struct turn t, struct mat out, struct weight w, const int32_t *ids)
{
    return t.op->weight_rows(t.s, out, &w, ids);
}

static int group_weight_rows(struct stream *s, struct mat out, const struct weight *w,
                             const int32_t *ids)
{
    EACH(s, out.data, rows_at(t, mat_at(t, out), weight_at(t, w), ids));
}

static int matmul_at(struct turn t, struct mat c, struct mat a, struct weight w,
                     const float *bias)
{
    return t.op->matmul(t.s, c, a, &w, bias);
}

static int group_matmul(struct stream *s, struct mat c, struct mat a,
                        const struct weight *w, const float *bias)
{
    EACH(s, c.data,
         matmul_at(t, mat_at(t, c), mat_at(t, a), weight_at(t, w), floats_at(t, bias)));
}

/* --- rows ------------------------------------------------------------------------------------- */

static int group_embed(struct stream *s, struct mat out, struct mat table,
                       const int32_t *ids, float scale)
{
    EACH(s, out.data, t.op->embed(t.s, mat_at(t, out), mat_at(t, table), ids, scale));
}

static int group_rmsnorm(struct stream *s, struct mat out, struct mat x, const float *w,
                         float eps)
{
    EACH(s, out.data,
         t.op->rmsnorm(t.s, mat_at(t, out), mat_at(t, x), floats_at(t, w), eps));
}

static int group_layernorm(struct stream *s, struct mat out, struct mat x, const float *w,
                           const float *b, float eps)
{
    EACH(s, out.data,
         t.op->layernorm(t.s, mat_at(t, out), mat_at(t, x), floats_at(t, w),
                         floats_at(t, b), eps));
}

static int group_head_norm(struct stream *s, struct mat x, int d_head, const float *w,
                           float eps)
{
    EACH(s, x.data, t.op->head_norm(t.s, mat_at(t, x), d_head, floats_at(t, w), eps));
}

static int group_convert(struct stream *s, struct mat out, struct mat x)
{
    EACH(s, out.data, t.op->convert(t.s, mat_at(t, out), mat_at(t, x)));
}

static int group_add(struct stream *s, struct mat out, struct mat a, struct mat b)
{
    EACH(s, out.data, t.op->add(t.s, mat_at(t, out), mat_at(t, a), mat_at(t, b)));
}

static int group_add_norm(struct stream *s, struct mat out, struct mat sum, struct mat x,
                          struct mat y, const float *w, const float *b, float eps)
{
    EACH(s, out.data,
         t.op->add_norm(t.s, mat_at(t, out), mat_at(t, sum), mat_at(t, x), mat_at(t, y),
                        floats_at(t, w), floats_at(t, b), eps));
}

static int group_act_mul(struct stream *s, struct mat out, struct mat gate_up,
                         enum activation act)
{
    EACH(s, out.data, t.op->act_mul(t.s, mat_at(t, out), mat_at(t, gate_up), act));
}

static int group_act(struct stream *s, struct mat x, enum activation act)
{
    EACH(s, x.data, t.op->act(t.s, mat_at(t, x), act));
}

/* All ranks have the same result, so rank 0 computes it. */
static int group_all_finite(struct stream *s, struct mat x, bool *finite)
{
    struct turn t = turn_of(s, group_stage(group_of(s->device), x.data), 0);
    int rc = group_code(s);
    if (rc == 0)
        (void)t.op->all_finite(t.s, x, finite);
    return group_code(s);
}

/* --- attention -------------------------------------------------------------------------------- */

static int rotate_at(struct turn t, struct mat q, int d_head, struct rope rope,
                     const struct ragged *r)
{
    return t.op->rope(t.s, q, d_head, &rope, r);
}

static int group_rope(struct stream *s, struct mat q, int d_head, const struct rope *rope,
                      const struct ragged *r)
{
    EACH(s, q.data, rotate_at(t, mat_at(t, q), d_head, rope_at(t, rope), r));
}

/* Returns rows of [K, V] so that a rank's heads are the first of each half (ops.kv_fill). Rows of
 * its own width hold no other heads. */
static struct mat own_columns(struct turn t, struct mat rows, int n_kv, int d_head)
{
    int64_t width = (int64_t)n_kv * d_head;
    struct mat own = mat_at(t, rows);
    if (rows.cols > 2 * width)
        own.data = (uint8_t *)own.data + (size_t)(t.r * width) * dtype_bytes(rows.dtype);
    return own;
}

static int fill_at(struct turn t, struct kv_layer kv, struct mat rows, struct rope rope,
                   const struct ragged *r)
{
    return t.op->kv_fill(t.s, &kv, rows, &rope, r);
}

static int group_kv_fill(struct stream *s, const struct kv_layer *kv, struct mat rows,
                         const struct rope *rope, const struct ragged *r)
{
    EACH(s, kv->blocks,
         fill_at(t, kv_at(t, kv), own_columns(t, rows, kv->n_kv, kv->d_head),
                 rope_at(t, rope), r));
}

static int rotate_fill_at(struct turn t, struct mat q, struct kv_layer kv, struct mat rows,
                          struct rope rope, const struct ragged *r)
{
    return t.op->rope_kv_fill(t.s, q, &kv, rows, &rope, r);
}

static int group_rope_kv_fill(struct stream *s, struct mat q, const struct kv_layer *kv,
                              struct mat rows, const struct rope *rope,
                              const struct ragged *r)
{
    EACH(s, kv->blocks,
         rotate_fill_at(t, mat_at(t, q), kv_at(t, kv),
                        own_columns(t, rows, kv->n_kv, kv->d_head), rope_at(t, rope), r));
}

/* A chunk has all ranks' heads of K, and then all ranks' heads of V. */
static int load_at(struct turn t, struct kv_layer kv, struct kv_chunks c, struct rope rope)
{
    size_t own = kv_block_bytes(kv.n_kv, kv.d_head, kv.dtype) / 2;
    uint8_t *first = group_address(t.g, c.first, t.stage, t.r);
    c.v_at = own * (size_t)t.g->base.n_ranks;
    c.first = first + (size_t)t.r * own;
    return t.op->kv_load(t.s, &kv, &c, &rope);
}

static int group_kv_load(struct stream *s, const struct kv_layer *kv,
                         const struct kv_chunks *c, const struct rope *rope)
{
    EACH(s, kv->blocks, load_at(t, kv_at(t, kv), *c, rope_at(t, rope)));
}

/* Rows and chunk are host memory and have the heads of all ranks: one rank packs them. */
static int group_kv_pack(struct stream *s, void *chunk, struct mat rows, int n_kv,
                         int d_head)
{
    struct turn t = turn_of(s, 0, 0);
    int rc = group_code(s);
    if (rc == 0)
        (void)t.op->kv_pack(t.s, chunk, rows, n_kv, d_head);
    return group_code(s);
}

static int read_at(struct turn t, struct mat out, struct kv_layer kv,
                   const struct ragged *r)
{
    return t.op->kv_read(t.s, out, &kv, r);
}

static int group_kv_read(struct stream *s, struct mat out, const struct kv_layer *kv,
                         const struct ragged *r)
{
    EACH(s, kv->blocks,
         read_at(t, own_columns(t, out, kv->n_kv, kv->d_head), kv_at(t, kv), r));
}

static int attend_at(struct turn t, struct mat out, struct mat q, struct kv_layer kv,
                     const struct ragged *r, const struct attention_rule *rule)
{
    return t.op->attention(t.s, out, q, &kv, r, rule);
}

static int group_attention(struct stream *s, struct mat out, struct mat q,
                           const struct kv_layer *kv, const struct ragged *r,
                           const struct attention_rule *rule)
{
    CHECK(rule->sinks == NULL); /* ranks would need their own heads' */
    EACH(s, kv->blocks, attend_at(t, mat_at(t, out), mat_at(t, q), kv_at(t, kv), r, rule));
}

/* Rank 0 chooses the tokens, because the logits are the same on every rank. */
static int group_sample(struct stream *s, int32_t *ids, struct mat logits,
                        const struct sample_row *rows)
{
    struct turn t = turn_of(s, group_stage(group_of(s->device), logits.data), 0);
    int rc = group_code(s);
    if (rc == 0)
        (void)t.op->sample(t.s, ids, logits, rows);
    return group_code(s);
}

/* Computes the checksums of the rank's own copies. */
static int checksum_at(struct turn t, uint64_t *out, const void *first, size_t stride,
                       const uint32_t *n_bytes, int n)
{
    return t.op->checksum(t.s, group_address(t.g, out, t.stage, t.r),
                          group_address(t.g, first, t.stage, t.r), stride, n_bytes, n);
}

static int group_checksum(struct stream *s, uint64_t *out, const void *first, size_t stride,
                          const uint32_t *n_bytes, int n)
{
    EACH(s, out, checksum_at(t, out, first, stride, n_bytes, n));
}

/* --- recording -------------------------------------------------------------------------------- */

/* Records a function that queues a layer's operations and exchanges.  An exchange cannot be
 * recorded, because replays on several GPUs must not wait for each other.  So each rank records
 * each span between exchanges separately:
 *
 *   queue(arg), operations left out     exchange             exchange             end
 *                                     /                    /                    /
 *   group_record_span   span 0: rank 0, rank 1   span 1: rank 0, rank 1   span 2: rank 0, rank 1
 *
 * To record a span, the rank's device calls queue again, and only that span's operations pass.  To
 * replay a span, the device does not call queue. */
static int queue_span(void *stream)
{
    struct group_recording *rec = group_stream(stream)->recording;
    rec->passed = 0;
    return rec->queue(rec->arg);
}

int group_record_span(struct stream *s)
{
    struct group_stream *gs = group_stream(s);
    struct group_recording *rec = gs->recording;
    const uint64_t parts[2] = {rec->key, (uint64_t)rec->span};
    uint64_t key = checksum64(parts, sizeof parts);
    int rc = group_code(s), stage = group_stage(group_of(s->device), rec->at);
    for (int i = 0; rc == 0 && i < s->device->n_ranks; i++) {
        struct turn t = turn_of(s, stage, i);
        gs->only = i;
        rc = t.op->record(t.s, rec->r, key, rec->at, queue_span, s);
    }
    gs->only = -1;
    rec->span++;
    return rc == 0 ? 0 : group_code(s);
}

static int group_record(struct stream *s, const struct ragged *r, uint64_t key,
                        const void *at, int (*queue)(void *arg), void *arg)
{
    struct group_stream *gs = group_stream(s);
    struct group_recording rec = {.r = r, .key = key, .at = at, .queue = queue, .arg = arg};
    CHECK(gs->recording == NULL);
    gs->recording = &rec;
    int rc = queue(arg);
    if (rc == 0)
        rc = group_record_span(s);
    gs->recording = NULL;
    return rc;
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
        .record = rank->ops->record != NULL ? group_record : NULL,
    };
}
