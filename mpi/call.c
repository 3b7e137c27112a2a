/* call.c - see call.h. */
#include "mpi/call.h"

#include "base/check.h"
#include "tensor/device.h"
#include "tensor/q4_blocks.h"

size_t weight_row_bytes(const struct weight *w)
{
    if (dtype_has_blocks(w->dtype))
        return q4_row_bytes(w->dtype, w->k);
    return (size_t)w->k * (w->dtype == DTYPE_Q8 ? sizeof(float) : dtype_bytes(w->dtype));
}

int call_run(struct stream *s, const struct call *c)
{
    const struct ops *op = s->device->ops;
    struct kv_chunks chunks = c->chunks;
    struct weight w = c->w;
    const struct mat *m = c->m;
    const float *p0 = c->p[0], *p1 = c->p[1];
    int n0 = (int)c->n[0];
    switch (c->kind) {
    case CALL_WEIGHT_PACK:
        return op->weight_pack(s, &w, c->n[0], c->host, c->n[1]);
    case CALL_WEIGHT_ROWS:
        return op->weight_rows(s, m[0], &w, c->host);
    case CALL_EMBED:
        return op->embed(s, m[0], m[1], c->host, c->f);
    case CALL_RMSNORM:
        return op->rmsnorm(s, m[0], m[1], p0, c->f);
    case CALL_LAYERNORM:
        return op->layernorm(s, m[0], m[1], p0, p1, c->f);
    case CALL_HEAD_NORM:
        return op->head_norm(s, m[0], n0, p0, c->f);
    case CALL_MATMUL:
        return op->matmul(s, m[0], m[1], &w, p0);
    case CALL_ROUND_REST:
        return op->round_rest(s, m[0], m[1]);
    case CALL_CONVERT:
        return op->convert(s, m[0], m[1]);
    case CALL_ADD:
        return op->add(s, m[0], m[1], m[2]);
    case CALL_ADD_NORM:
        return op->add_norm(s, m[0], m[1], m[2], m[3], p0, p1, c->f);
    case CALL_ACT_MUL:
        return op->act_mul(s, m[0], m[1], (enum activation)n0);
    case CALL_ACT:
        return op->act(s, m[0], (enum activation)n0);
    case CALL_ALL_FINITE:
        return op->all_finite(s, m[0], c->finite);
    case CALL_ROPE:
        return op->rope(s, m[0], n0, &c->rope, c->r);
    case CALL_KV_FILL:
        return op->kv_fill(s, &c->kv, m[0], &c->rope, c->r);
    case CALL_ROPE_KV_FILL:
        return op->rope_kv_fill(s, m[0], &c->kv, m[1], &c->rope, c->r);
    case CALL_KV_LOAD:
        chunks.blocks = c->host;
        return op->kv_load(s, &c->kv, &chunks, &c->rope);
    case CALL_KV_READ:
        return op->kv_read(s, m[0], &c->kv, c->r);
    case CALL_ATTENTION:
        return op->attention(s, m[0], m[1], &c->kv, c->r, &c->rule);
    case CALL_SAMPLE:
        return op->sample(s, (int32_t *)(uintptr_t)c->p[0], m[0], c->host);
    case CALL_CHECKSUM:
        return op->checksum(s, (uint64_t *)(uintptr_t)c->p[0], c->p[1], (size_t)c->n[0],
                            c->host, (int)c->n[1]);
    default:
        CHECK(!"a known operation");
        return -1;
    }
}
