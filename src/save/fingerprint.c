/* fingerprint.c - see fingerprint.h. */
#include "save/fingerprint.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "model/pass.h"
#include "tensor/readback.h"

/* The probe's batch has two sequences: positions [0, N_NEAR), and N_FAR positions from FAR on.
 * The far ones attend to one block of keys again and again, so the positions between need not be
 * computed. FAR is in the fourth split of the CUDA backend's attention; from there on the
 * arithmetic of a row repeats. It is fixed, so that the fingerprint does not depend on the
 * maximum context. */
enum { N_NEAR = 70, N_FAR = 6, FAR = 1984, N_BLOCKS = 3 };
_Static_assert(N_NEAR + N_FAR == FINGERPRINT_PROBE_ROWS, "the probe's rows");
_Static_assert(N_NEAR > KV_BLOCK_TOKENS, "the repeated block is full");
_Static_assert(FAR + N_FAR <= ROPE_LEAST_POSITIONS,
               "rotation tables have the far positions");

/* Rows of the rotation tables that are hashed: around each power of two up to 2^20. */
enum { MIN_SAMPLE = 64, MAX_SAMPLE = 1 << 20 };

struct probe {
    const struct model *m;
    struct model_work *w;
    struct stream *s;
    struct sha256_ctx *h;
    struct buf mem[MAX_STAGES];
    struct readback rb;
    int n_near, n_far, far;
};

/* --- positions and memory --------------------------------------------------------------------- */

/* Returns one more than the probe's last position. Learned positions end with their table. */
static int n_positions(const struct model *m)
{
    int n = FAR + N_FAR;
    return m->cfg.position == POSITION_LEARNED && m->cfg.max_ctx < n ? m->cfg.max_ctx : n;
}

static void choose_positions(struct probe *p)
{
    int n = n_positions(p->m);
    p->n_near = MIN(n, N_NEAR);
    p->far = (n - 1) / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    p->n_far = MIN(n - p->far, N_FAR);
    if (p->far < N_NEAR)
        p->n_far = 0;
}

/* Returns the bytes of the blocks of one layer, or of its two states. */
static size_t blocks_bytes(const struct model *m)
{
    return MAX(N_BLOCKS * KV_BLOCK_TOKENS * model_most_kv_bytes(m),
               2 * model_state_bytes(&m->cfg));
}

static size_t rows_bytes(const struct model *m)
{
    return FINGERPRINT_PROBE_ROWS * (model_hidden_bytes(m) + model_most_kv_bytes(m));
}

/* Returns the bytes of memory that the probe takes on a stage: blocks, then rows. */
size_t fingerprint_device_bytes(const struct model *m)
{
    return blocks_bytes(m) + rows_bytes(m);
}

/* Returns the residual stream of a stage; the projected rows follow it. */
static struct mat stream_rows(const struct probe *p, int stage)
{
    uint8_t *at = (uint8_t *)p->mem[stage].ptr + blocks_bytes(p->m);
    return mat_of(at, p->m->dtype, p->n_near + p->n_far, p->m->cfg.n_embd);
}

/* --- adding to the hash ----------------------------------------------------------------------- */

static void add_u32(struct sha256_ctx *h, const char *tag, uint32_t value)
{
    uint8_t le[4];
    put_u32(le, value);
    sha256_field(h, tag, le, sizeof le);
}

static void add_text(struct sha256_ctx *h, const char *tag, const char *text)
{
    sha256_field(h, tag, text, strlen(text));
}

/* Adds n bytes of device memory to the hash, under a tag. */
static int add_memory(struct probe *p, const char *tag, const void *at, size_t n)
{
    const void *bytes;
    int rc = readback_start(&p->rb, p->s, at, n, &bytes);
    if (rc == 0)
        rc = stream_sync(p->s); /* waits for what the stream computes into `at` */
    if (rc == 0)
        sha256_field(p->h, tag, bytes, n);
    return rc;
}

static int add_mat(struct probe *p, const char *tag, struct mat a)
{
    CHECK(a.ld == a.cols);
    return add_memory(p, tag, a.data, (size_t)(a.rows * a.cols) * dtype_bytes(a.dtype));
}

/* Adds a row of the rotation tables: the model's own, or the row that they would have if they were
 * longer or its position had been used. */
static int add_rotation(struct probe *p, enum rope_kind kind, int32_t pos)
{
    const struct rope *r = &p->m->rope[kind][0];
    size_t half = (size_t)r->d_rot / 2, bytes = half * sizeof(float);
    if (pos < r->max_pos && model_rope_has(p->m, pos)) {
        int rc = add_memory(p, "cos", r->cos + (size_t)pos * half, bytes);
        return rc == 0 ? add_memory(p, "sin", r->sin + (size_t)pos * half, bytes) : rc;
    }
    float *row = xmalloc(2 * bytes);
    model_rope_rows(&p->m->cfg, kind, &pos, 1, row, row + half);
    sha256_field(p->h, "cos", row, bytes);
    sha256_field(p->h, "sin", row + half, bytes);
    free(row);
    return 0;
}

static int add_rotations(struct probe *p)
{
    int rc = 0, n_kinds = p->m->cfg.rope_local_theta > 0 ? N_ROPES : 1;
    if (p->m->cfg.position != POSITION_ROPE)
        return 0;
    for (int kind = 0; kind < n_kinds; kind++)
        for (int32_t n = MIN_SAMPLE; rc == 0 && n <= MAX_SAMPLE; n *= 2) {
            rc = add_rotation(p, kind, n - 1);
            if (rc == 0)
                rc = add_rotation(p, kind, n);
            if (rc == 0)
                rc = add_rotation(p, kind, n + n / 2 + 1);
        }
    return rc;
}

/* --- the forward pass ------------------------------------------------------------------------- */

/* Returns whether layer l is the first of its kind.  Layers of one kind run the same operations;
 * kinds differ in the window, and with it in the rotation, have experts, or are recurrent. */
static bool is_first_of_kind(const struct model *m, int l)
{
    int before = l - 1;
    while (before >= 0 &&
           (layer_set_has(&m->cfg.windowed, before) != layer_set_has(&m->cfg.windowed, l) ||
            config_has_experts(&m->cfg, before) != config_has_experts(&m->cfg, l) ||
            (before < config_n_keeping(&m->cfg)) != (l < config_n_keeping(&m->cfg)) ||
            config_is_recurrent(&m->cfg, before) != config_is_recurrent(&m->cfg, l)))
        before--;
    return before < 0;
}

/* Adds rows of K and V as one device has them: all ranks' heads of K, then those of V. */
static int add_kv(struct probe *p, const char *tag, struct mat own)
{
    size_t bytes = (size_t)(own.rows * own.cols) * dtype_bytes(own.dtype) *
                   (size_t)p->m->dev->n_ranks;
    if (p->m->dev->n_ranks == 1)
        return add_mat(p, tag, own);
    uint8_t *rows = xmalloc(bytes);
    int rc = kv_rows_down(p->s, rows, own);
    if (rc == 0)
        rc = stream_sync(p->s);
    if (rc == 0)
        sha256_field(p->h, tag, rows, bytes);
    free(rows);
    return rc;
}

static int tap_kv(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    (void)l;
    (void)hidden; /* unused: add_layer reads the pass's only buffer afterwards */
    return add_kv(arg, "probe.kv", kv_rows);
}

/* Runs layer l alone, on all rows, and adds its results to the hash. The layer's input is already
 * in the residual stream, except that layer 0 embeds ids first. */
static int add_layer(struct probe *p, int l, const int32_t *ids, const struct ragged *r)
{
    const struct model *m = p->m;
    int stage = model_stage(m, l);
    struct kv_layer *kv = xcalloc((size_t)l + 1, sizeof *kv);
    int of = config_kv_layer(&m->cfg, l);
    kv[of] = model_cache(m, of, p->mem[stage].ptr);
    if (of != l) /* the memory has K and V of a layer with other heads */
        memset(kv[of].blocks, 0, N_BLOCKS * kv[of].block_stride);
    if (config_is_recurrent(&m->cfg,
                            l)) { /* the far sequence goes on from a state of zeros */
        memset(kv[l].blocks, 0, 2 * kv[l].block_stride);
        delta_state_count(kv[l].blocks + kv[l].block_stride, p->far);
    }
    struct residual x = {.n = 1};
    for (int k = 0; k < m->dev->n_stages; k++)
        x.x[k][0] = stream_rows(p, k);
    struct model_tap tap = {.layer = tap_kv, .arg = p};
    struct model_pass pass;
    model_pass_begin(&pass, &(struct model_pass_opts){.model = m,
                                                      .work = p->w,
                                                      .stream = p->s,
                                                      .n_rows = r->n_rows,
                                                      .first_layer = l,
                                                      .ids = ids,
                                                      .x = &x,
                                                      .kv = kv,
                                                      .tap = &tap});
    int rc = model_pass_layer(&pass, r);
    model_pass_end(&pass);
    free(kv);
    return rc == 0 ? add_mat(p, "probe.hidden", stream_rows(p, stage)) : rc;
}

/* Copies the residual stream from the stage of layer `from` to the stage of layer `to`. */
static int cross(struct probe *p, int from, int to)
{
    struct mat a = stream_rows(p, model_stage(p->m, from));
    struct mat b = stream_rows(p, model_stage(p->m, to));
    if (a.data == b.data)
        return 0;
    return stream_copy(p->s, b.data, a.data,
                       (size_t)(a.rows * a.cols) * dtype_bytes(a.dtype));
}

/* Projects the output of layer `before`, as a restore does, and adds K and V to the hash. */
static int add_projection(struct probe *p, int before)
{
    const struct model *m = p->m;
    int l = MIN(before + 1, config_n_keeping(&m->cfg) - 1);
    while (config_is_recurrent(&m->cfg, l)) /* it has no K and V */
        l--;
    struct mat x = stream_rows(p, model_stage(m, l));
    uint8_t *behind = (uint8_t *)x.data + FINGERPRINT_PROBE_ROWS * model_hidden_bytes(m);
    struct mat projected = model_kv_rows(m, l, behind, x.rows);
    int rc = cross(p, before, l);
    if (rc == 0)
        rc = model_kv_project(m, p->w, p->s, l, x, projected);
    return rc == 0 ? add_kv(p, "probe.projected", projected) : rc;
}

/* Runs the probe's rows through the first layer of each kind, and projects the last output. */
static int run_probe(struct probe *p)
{
    const struct model *m = p->m;
    int n = p->n_near + p->n_far, before = 0;
    int32_t ids[FINGERPRINT_PROBE_ROWS], pos[FINGERPRINT_PROBE_ROWS];
    int32_t near[2] = {0, 1}, far[FAR / KV_BLOCK_TOKENS + 1] = {0};
    int32_t seq_row[3] = {0, p->n_near, n};
    const int32_t *tables[2] = {near, far};
    far[p->far / KV_BLOCK_TOKENS] = 2;
    for (int i = 0; i < n; i++) {
        ids[i] = (int32_t)((i * 7919 + 13) % m->cfg.vocab_size);
        pos[i] = i < p->n_near ? i : p->far + i - p->n_near;
    }
    struct ragged r = {.n_rows = n,
                       .n_seqs = p->n_far > 0 ? 2 : 1,
                       .pos = pos,
                       .seq_row = seq_row,
                       .tables = tables};
    int rc = 0;
    for (int l = 0; rc == 0 && l < m->cfg.n_layers; l++) {
        if (!is_first_of_kind(m, l))
            continue;
        rc = cross(p, before, l);
        if (rc == 0)
            rc = add_layer(p, l, ids, &r);
        before = l;
    }
    return rc == 0 ? add_projection(p, before) : rc;
}

/* --- the fingerprint -------------------------------------------------------------------------- */

/* Adds the type of each matrix to the hash, if the matrices have different types. */
static void add_matrix_types(const struct model *m, struct sha256_ctx *h)
{
    struct weights_matrix_list all;
    weights_matrix_list(&m->w, &all);
    for (int i = 0; i < all.n; i++)
        add_text(h, "matrix dtype", dtype_name(all.of[i]));
    free(all.of);
}

/* Adds the declared fields to the hash. */
static void add_declared(const struct model *m, struct sha256_ctx *h)
{
    char *config = config_state_text(&m->cfg);
    add_u32(h, "layout", STATE_LAYOUT_VERSION);
    add_text(h, "backend", m->dev->numerics);
    add_u32(h, "backend version", (uint32_t)m->dev->numerics_version);
    add_u32(h, "model version", MODEL_NUMERICS_VERSION);
    /* Every number of ranks computes the bits of one, but cuBLAS may add up in another order where
     * a rank has fewer columns of a product. */
    bool cublas = strcmp(m->dev->numerics, "cuda fast") == 0;
    add_u32(h, "ranks", cublas ? (uint32_t)m->dev->n_ranks : 1);
    add_text(h, "exchange", "none");
    sha256_field(h, "weights", m->w.hash.b, sizeof m->w.hash.b);
    add_text(h, "config", config);
    add_text(h, "weight dtype", dtype_name(m->w.dtype));
    if (m->w.dtype == DTYPE_Q8 || m->w.dtype == DTYPE_Q4)
        add_u32(h, "q4 version", Q4_NUMERICS_VERSION);
    if (m->w.dtype == DTYPE_Q4)
        add_matrix_types(m, h);
    /* Tables of blocks give exact values, bf16 tables rounded ones; in bf16 state both are
     * equal. */
    if (dtype_has_blocks(m->w.embed.dtype) && m->dtype != DTYPE_BF16)
        add_text(h, "table dtype", dtype_name(m->w.embed.dtype));
    if (m->w.dtype == DTYPE_BF16R)
        add_u32(h, "bf16r version", BF16R_NUMERICS_VERSION);
    add_text(h, "state dtype", dtype_name(m->dtype));
    add_text(h, "k layout", m->dev->k_by_token ? "by token" : "by dimension");
    free(config);
}

int fingerprint_make(const struct model *m, struct model_work *w, struct stream *s,
                     struct sha256 *out, struct err *err)
{
    CHECK(model_work_rows(w) >= FINGERPRINT_PROBE_ROWS);
    struct probe p = {.m = m, .w = w, .s = s, .h = sha256_begin()};
    choose_positions(&p);
    add_declared(m, p.h);
    int rc = stages_alloc(m->dev, fingerprint_device_bytes(m), p.mem, err);
    if (rc == 0)
        rc = readback_init(m->dev, rows_bytes(m), &p.rb, err);
    bool has_memory = rc == 0;
    if (rc == 0)
        rc = add_rotations(&p);
    if (rc == 0)
        rc = run_probe(&p);
    *out = sha256_end(p.h);
    readback_deinit(&p.rb);
    stages_free(m->dev, p.mem);
    if (rc == 0)
        return 0;
    return has_memory
               ? err_set(err, rc, "numerics probe: %s %s", err_name(rc), stream_fault(s))
               : err_wrap(err, "numerics probe");
}
