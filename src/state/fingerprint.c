/* fingerprint.c - see fingerprint.h. */
#include "state/fingerprint.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "model/pass.h"
#include "tensor/readback.h"

enum { N_PROBE = FINGERPRINT_PROBE_TOKENS, N_BLOCKS = 2 };

/* Waits for what the stream computes into a. */
static int add_mat(struct sha256_ctx *h, const char *tag, struct mat a, struct stream *s,
                   struct readback *rb)
{
    CHECK(a.ld == a.cols);
    const void *bytes;
    size_t n = (size_t)(a.rows * a.cols) * dtype_bytes(a.dtype);
    int rc = readback_start(rb, s, a.data, n, &bytes);
    if (rc == 0)
        rc = stream_sync(s);
    if (rc == 0)
        sha256_field(h, tag, bytes, n);
    return rc;
}

struct kv_hash {
    struct sha256_ctx *h;
    struct stream *s;
    struct readback *rb;
};

/* The tap. */
static int add_kv_rows(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct kv_hash *k = arg;
    (void)l;
    (void)hidden; /* overwritten: the pass has one buffer */
    return add_mat(k->h, "probe.kv", kv_rows, k->s, k->rb);
}

/* Layer 0 whole (every kernel of the forward pass), then the projection of its output by layer 1
 * (the kernel of the restoration). */
static int probe(const struct model *m, struct model_work *w, struct stream *s,
                 const struct buf mem[MAX_STAGES], struct readback *rb,
                 struct sha256_ctx *h)
{
    int n = m->max_ctx < N_PROBE ? m->max_ctx : N_PROBE;
    int32_t ids[N_PROBE], pos[N_PROBE], blocks[N_BLOCKS] = {0, 1}, seq_row[2] = {0, n};
    const int32_t *tables[1] = {blocks};
    for (int i = 0; i < n; i++) {
        ids[i] = (int32_t)((i * 7919 + 13) % m->cfg.vocab_size);
        pos[i] = i;
    }
    struct ragged r = {
        .n_rows = n, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
    size_t block = kv_block_bytes(model_rank_kv_heads(m), m->cfg.d_head, m->dtype);
    struct kv_layer kv = {.blocks = mem[0].ptr,
                          .block_stride = block,
                          .dtype = m->dtype,
                          .n_kv = model_rank_kv_heads(m),
                          .d_head = m->cfg.d_head};
    int next = m->cfg.n_layers > 1 ? 1 : 0, next_stage = model_stage(m, next);
    uint8_t *at = (uint8_t *)mem[next_stage].ptr + N_BLOCKS * block;
    struct residual x = {.n = 1};
    for (int k = 0; k < m->dev->n_stages; k++)
        x.x[k][0] = mat_of((uint8_t *)mem[k].ptr + N_BLOCKS * block, m->dtype, n,
                           m->cfg.n_embd);
    struct mat projected = mat_of(at + (size_t)n * model_hidden_bytes(m), m->dtype, n,
                                  2 * model_rank_kv_dim(m));
    struct kv_hash kv_hash = {h, s, rb};
    struct model_tap tap = {.layer = add_kv_rows, .arg = &kv_hash};
    struct model_pass p;
    model_pass_begin(&p, &(struct model_pass_opts){.model = m,
                                                   .work = w,
                                                   .stream = s,
                                                   .n_rows = n,
                                                   .ids = ids,
                                                   .x = &x,
                                                   .kv = &kv,
                                                   .tap = &tap});
    int rc = model_pass_layer(&p, &r);
    if (rc == 0)
        rc = add_mat(h, "probe.hidden", model_pass_output(&p), s, rb);
    if (rc == 0 && !model_pass_is_done(&p))
        rc = model_pass_kv(&p, &r, projected);
    else if (rc == 0) /* one layer only: it projects its own output */
        rc = model_kv_project(m, w, s, next, model_pass_output(&p), projected);
    model_pass_end(&p);
    return rc == 0 ? add_mat(h, "probe.projected", projected, s, rb) : rc;
}

size_t fingerprint_device_bytes(const struct model *m)
{
    return N_BLOCKS * kv_block_bytes(m->cfg.n_kv_heads, m->cfg.d_head, m->dtype) +
           N_PROBE * (model_hidden_bytes(m) + model_kv_bytes(m));
}

int fingerprint_make(const struct model *m, struct model_work *w, struct stream *s,
                     struct sha256 *out, struct err *err)
{
    CHECK(model_work_rows(w) >= N_PROBE);
    struct buf mem[MAX_STAGES] = {{0}};
    struct readback rb = {0};
    int rc = stages_alloc(m->dev, fingerprint_device_bytes(m), mem, err);
    if (rc == 0)
        rc = readback_init(m->dev, N_PROBE * (model_hidden_bytes(m) + model_kv_bytes(m)),
                           &rb, err);
    if (rc != 0) {
        stages_free(m->dev, mem);
        return err_wrap(err, "numerics probe");
    }
    struct sha256_ctx *h = sha256_begin();
    char *config = config_write(&m->cfg);
    uint8_t version[4];
    put_u32(version, STATE_LAYOUT_VERSION);
    sha256_field(h, "layout", version, sizeof version);
    sha256_field(h, "weights", m->w.hash.b, sizeof m->w.hash.b);
    sha256_field(h, "config", config, strlen(config));
    sha256_field(h, "weight dtype", dtype_name(m->w.dtype), strlen(dtype_name(m->w.dtype)));
    sha256_field(h, "state dtype", dtype_name(m->dtype), strlen(dtype_name(m->dtype)));
    if (m->dev->k_by_token) /* the CPU's stores have never had this field */
        sha256_field(h, "k layout", "by token", 8);
    put_u32(version, (uint32_t)m->dev->n_ranks);
    if (m->dev->n_ranks > 1) /* nor those of one rank this */
        sha256_field(h, "ranks", version, sizeof version);
    rc = probe(m, w, s, mem, &rb, h);
    *out = sha256_end(h);
    free(config);
    readback_deinit(&rb);
    stages_free(m->dev, mem);
    return rc == 0
               ? 0
               : err_set(err, rc, "numerics probe: %s %s", err_name(rc), stream_fault(s));
}
