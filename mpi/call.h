/* call.h - an operation of ops.h as a value, so that a group can carry it out on each of its ranks,
 * in this process or in another. Private to mpi/. */
#ifndef MPI_CALL_H
#define MPI_CALL_H

#include "tensor/ops.h"

enum call_kind {
    CALL_WEIGHT_PACK,  /* w; n: row, rows; host: the rows */
    CALL_WEIGHT_ROWS,  /* m: out; w; host: ids */
    CALL_EMBED,        /* m: out, table; f: scale; host: ids */
    CALL_RMSNORM,      /* m: out, x; p: w; f: eps */
    CALL_LAYERNORM,    /* m: out, x; p: w, b; f: eps */
    CALL_HEAD_NORM,    /* m: x; n: d_head; p: w; f: eps */
    CALL_MATMUL,       /* m: c, a; w; p: bias */
    CALL_ROUND_REST,   /* m: out, a */
    CALL_CONVERT,      /* m: out, x */
    CALL_ADD,          /* m: out, a, b */
    CALL_ADD_NORM,     /* m: out, sum, x, y; p: w, b; f: eps */
    CALL_ACT_MUL,      /* m: out, gate_up; n: activation */
    CALL_ACT,          /* m: x; n: activation */
    CALL_ALL_FINITE,   /* m: x; finite */
    CALL_ROPE,         /* m: q; n: d_head; rope; r */
    CALL_KV_FILL,      /* kv; m: rows; rope; r */
    CALL_ROPE_KV_FILL, /* m: q, rows; kv; rope; r */
    CALL_KV_LOAD,      /* kv; chunks, whose blocks are host; rope */
    CALL_KV_READ,      /* m: out; kv; r */
    CALL_ATTENTION,    /* m: out, q; kv; r; rule */
    CALL_SAMPLE,       /* p: ids; m: logits; host: rows */
    CALL_CHECKSUM,     /* p: out, first; n: stride, n; host: n_bytes */
    N_OPERATIONS,
};

struct call {
    int kind;
    struct mat m[4];
    struct weight w;
    struct kv_layer kv;
    struct rope rope;
    struct attention_rule rule;
    struct kv_chunks chunks;
    const void *p[2];
    float f;
    int64_t n[4];
    /* Pointers to memory of the caller. */
    const void *host; /* [host_bytes] */
    size_t host_bytes;
    const struct ragged *r;
    bool *finite;
};

/* Returns the bytes of a row that weight_pack takes. */
size_t weight_row_bytes(const struct weight *w);
/* Carries the call out on a stream. */
int call_run(struct stream *s, const struct call *c);

#endif
