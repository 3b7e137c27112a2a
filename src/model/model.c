/* model.c - opens a model, makes its RoPE tables, and allocates the activations of a forward pass.
 *
 * This file owns config, weights and rotation tables. It knows no sequences, saving or text. */
#include "model/model.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/known.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "checkpoint/gguf_files.h"
#include "model/matrix_types.h"
#include "model/pack_file.h"
#include "model/share.h"
#include "model/weights_choose.h"
#include "model/work.h"

/* Limit on the rotation tables. Ten million positions, the longest published context, with heads of
 * 128 take 11 GB. */
#define ROPE_MAX_BYTES ((size_t)16 << 30)

/* Returns the number of different rotations: 1 if layers with a window rotate like the others. */
static int n_ropes(const struct model_config *c)
{
    return c->rope_local_theta > 0 ? N_ROPES : 1;
}

/* Returns the factor of cos and sin. */
static double magnitude(const struct model_config *c, enum rope_kind kind)
{
    bool scaled = kind == ROPE_GLOBAL || c->rope_local_theta == 0;
    return scaled ? (double)c->rope_magnitude : 1;
}

/* Returns how many dimensions of a head are rotated. */
static int d_rope_of(const struct model_config *c, enum rope_kind kind)
{
    return kind == ROPE_LOCAL && c->local_d_head > 0 ? c->local_d_head : c->d_rope;
}

static double frequency(const struct model_config *c, enum rope_kind kind, int i)
{
    if (kind == ROPE_LOCAL && c->rope_local_theta > 0)
        return pow(c->rope_local_theta, -2.0 * i / d_rope_of(c, kind));
    if (c->rope_local_only)
        return 0;
    double freq = pow(c->rope_theta, -2.0 * i / c->d_rope);
    return c->rope_scaling.kind == ROPE_SCALING_FACTORS
               ? freq / (double)c->rope_scaling.factors[i]
               : freq;
}

void model_rope_rows(const struct model_config *c, enum rope_kind kind, const int32_t *pos,
                     int n, float *cos_out, float *sin_out)
{
    int half = d_rope_of(c, kind) / 2;
    for (int i = 0; i < half; i++) {
        double freq = frequency(c, kind, i), m = magnitude(c, kind);
        for (int r = 0; r < n; r++) {
            cos_out[(size_t)r * (size_t)half + (size_t)i] = (float)(m * cos(pos[r] * freq));
            sin_out[(size_t)r * (size_t)half + (size_t)i] = (float)(m * sin(pos[r] * freq));
        }
    }
}

/* Returns the number of positions in the tables: whole blocks, as kv_load requires. */
static int rope_positions(const struct model *m)
{
    return (int)round_up((uint64_t)MAX(m->max_ctx, ROPE_LEAST_POSITIONS), KV_BLOCK_TOKENS);
}

/* Returns how many floats one kind's tables have on a stage. */
static size_t rope_floats(const struct model *m, enum rope_kind kind)
{
    int n_pos = rope_positions(m), half = d_rope_of(&m->cfg, kind) / 2;
    return m->cfg.position != POSITION_ROPE ? 0 : 4 * (size_t)n_pos * (size_t)half;
}

/* Fills block b of one kind's tables, in `all`: cos and sin [n_pos][half] by position, then both by
 * blocks of positions (ops.h). */
static void fill_rope(const struct model_config *c, enum rope_kind kind, int n_pos, int b,
                      float *all)
{
    int half = d_rope_of(c, kind) / 2;
    size_t n = (size_t)n_pos * (size_t)half;
    float *rows = all + (size_t)b * KV_BLOCK_TOKENS * (size_t)half, *block = rows + 2 * n;
    for (int i = 0; i < half; i++) {
        double freq = frequency(c, kind, i), m = magnitude(c, kind);
        for (int p = 0; p < KV_BLOCK_TOKENS; p++) {
            double angle = (b * KV_BLOCK_TOKENS + p) * freq;
            float *row = rows + p * half + i, *at = block + i * KV_BLOCK_TOKENS + p;
            row[0] = at[0] = (float)(m * cos(angle));
            row[n] = at[n] = (float)(m * sin(angle));
        }
    }
}

/* States of a block of positions in tables that are filled as positions are used. */
enum { BLOCK_EMPTY, BLOCK_CLAIMED, BLOCK_FILLED };

bool model_rope_has(const struct model *m, int64_t pos)
{
    return m->rope_blocks == NULL ||
           atomic_load_explicit(&m->rope_blocks[pos / KV_BLOCK_TOKENS],
                                memory_order_acquire) == BLOCK_FILLED;
}

void model_rope_reach(const struct model *m, int64_t pos)
{
    if (model_rope_has(m, pos))
        return;
    _Atomic uint8_t *is = &m->rope_blocks[pos / KV_BLOCK_TOKENS];
    uint8_t was = BLOCK_EMPTY;
    if (!atomic_compare_exchange_strong(is, &was, BLOCK_CLAIMED)) {
        while (!model_rope_has(m, pos))
            sched_yield();
        return;
    }
    float *all = m->rope_mem[0].ptr;
    for (int kind = 0; kind < n_ropes(&m->cfg); kind++)
        fill_rope(&m->cfg, kind, rope_positions(m), (int)(pos / KV_BLOCK_TOKENS),
                  all + (kind == ROPE_LOCAL ? rope_floats(m, ROPE_GLOBAL) : 0));
    atomic_store_explicit(is, BLOCK_FILLED, memory_order_release);
}

size_t model_rope_bytes(const struct model *m)
{
    size_t n = rope_floats(m, ROPE_GLOBAL);
    n += n_ropes(&m->cfg) > 1 ? rope_floats(m, ROPE_LOCAL) : 0;
    return n * sizeof(float);
}

/* Checks the memory of the tables, because a config.json may claim any context.  (On a device with
 * memory of its own, the memory plan has already refused a context that is too long.) */
static int check_rope_room(const struct model *m, size_t bytes, struct err *err)
{
    size_t unused, total;
    device_memory(m->dev, &unused, &total);
    size_t most = total / 4 < ROPE_MAX_BYTES ? total / 4 : ROPE_MAX_BYTES;
    if (!m->dev->unified || bytes <= most)
        return 0;
    return err_set(err, -ENOMEM,
                   "rotation tables for a context of %d tokens take %.1f GB, and may take "
                   "%.1f GB here: choose a --max-context",
                   m->max_ctx, (double)bytes / 1e9, (double)most / 1e9);
}

int model_make_rope(struct model *m, struct stream *s, struct err *err)
{
    const struct model_config *c = &m->cfg;
    int n_pos = rope_positions(m);
    for (int kind = 0; kind < N_ROPES; kind++)
        for (int k = 0; k < m->dev->n_stages; k++)
            m->rope[kind][k].max_pos = n_pos;
    if (c->position != POSITION_ROPE)
        return 0;
    size_t n_all = rope_floats(m, ROPE_GLOBAL), bytes = model_rope_bytes(m);
    int rc = check_rope_room(m, bytes, err);
    if (rc != 0)
        return rc;
    bool in_place = m->dev->unified;
    bool later = in_place && m->dev->n_stages * m->dev->n_ranks == 1;
    /* Later: each block is filled when its first position is used (model_rope_reach). The pages are
     * ordinary ones, since a huge one would hold thousands of positions. */
    if (later)
        m->rope_mem[0] = (struct buf){mem_map_sparse(bytes), bytes, MEM_DEVICE};
    rc = !later ? stages_alloc(m->dev, bytes, m->rope_mem, err)
         : m->rope_mem[0].ptr != NULL
             ? 0
             : err_set(err, -ENOMEM, "no memory for %zu bytes", bytes);
    if (rc != 0)
        return err_wrap(err, "rotation tables for %d positions", n_pos);
    float *made = in_place ? m->rope_mem[0].ptr : xmalloc(bytes);
    if (later)
        m->rope_blocks = xcalloc((size_t)(n_pos / KV_BLOCK_TOKENS), sizeof *m->rope_blocks);
    for (int kind = 0; kind < n_ropes(c) && !later; kind++)
        for (int b = 0; b < n_pos / KV_BLOCK_TOKENS; b++)
            fill_rope(c, kind, n_pos, b, made + (size_t)kind * n_all);
    for (int k = 0; k < m->dev->n_stages; k++) {
        if (rc == 0 && made != m->rope_mem[k].ptr)
            rc = stream_copy(s, m->rope_mem[k].ptr, made, bytes);
        for (int kind = 0; kind < N_ROPES; kind++) {
            float *at = m->rope_mem[k].ptr;
            size_t n = rope_floats(m, kind) / 4;
            at += kind < n_ropes(c) ? (size_t)kind * n_all : 0;
            m->rope[kind][k] = (struct rope){.cos = at,
                                             .sin = at + n,
                                             .cos_t = at + 2 * n,
                                             .sin_t = at + 3 * n,
                                             .max_pos = n_pos,
                                             .d_rot = d_rope_of(c, kind)};
        }
    }
    if (!in_place) {
        int code = stream_sync(s);
        rc = rc == 0 ? code : rc;
        free(made);
    }
    return rc == 0 ? 0 : err_set(err, rc, "rotation tables: %s", err_name(rc));
}

static enum dtype dtype_of_checkpoint(enum weight_type t)
{
    switch (t) {
    case WEIGHT_BF16:
        return DTYPE_BF16;
    case WEIGHT_F16:
        return DTYPE_F16;
    default:
        return DTYPE_F32;
    }
}

int model_check_text(const struct model *m, struct err *err)
{
    if (!m->cfg.both_ways && !m->cfg.has_no_head)
        return 0;
    return err_set(
        err, ERR_UNSUPPORTED,
        "this model%s: it makes embeddings (/v1/embeddings), and generates no text",
        m->cfg.both_ways ? "'s attention sees both ways"
                         : "'s files have no output head (lm_head.weight)");
}

int model_check_truncation(const struct model *m, struct err *err)
{
    if (m->cfg.position != POSITION_ROPE)
        return err_set(
            err, ERR_UNSUPPORTED,
            "this model's contexts cannot be truncated: it has learned positions, "
            "which are part of each token's state");
    if (config_is_hybrid(&m->cfg))
        return err_set(
            err, ERR_UNSUPPORTED,
            "this model's contexts cannot be truncated: its layers have recurrent states, "
            "from which no token can be dropped; a longer context needs a larger "
            "--max-context");
    if (m->cfg.sliding_window > 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "this model's contexts cannot be truncated: its attention has a "
                       "sliding window of %d tokens",
                       m->cfg.sliding_window);
    return 0;
}

static bool is_synth(const char *source)
{
    return strncmp(source, "synth:", 6) == 0;
}

/* Sets the fields of m that a packed file keeps outside of its configuration. */
static int load_packed_notes(struct model *m, struct err *err)
{
    struct pack_file f;
    int rc = pack_file_open(&f, m->source, err);
    if (rc == 0) {
        m->packed_held = f.dtype;
        m->any_context = f.any_context;
        snprintf(m->note, sizeof m->note, "%s", f.note);
    }
    pack_file_close(&f);
    m->is_packed = rc == 0;
    return rc;
}

/* Returns whether any context length is allowed.  Random weights were not trained for a length, and
 * rotations have no end, so benchmarks of long contexts go beyond the shape's own context. */
static bool has_any_context(const struct model *m)
{
    return (is_synth(m->source) || m->any_context) && m->cfg.position == POSITION_ROPE;
}

/* Refuses models whose parts a device with memory of its own does not have, and experts whose
 * matrices do not begin at a multiple of the packed rows (ops.h, weight_pack). */
static int check_parts(const struct model *m, struct err *err)
{
    const struct model_config *c = &m->cfg;
    const char *part = c->both_ways          ? "attention that sees both ways"
                       : config_is_latent(c) ? "latent attention"
                       : c->n_behind > 0     ? "linear layers behind the pooling"
                       : config_is_hybrid(c) ? "recurrent layers"
                       : c->n_experts > 0    ? "experts"
                       : c->attn_sinks       ? "attention sinks"
                       : c->attn_cap > 0 || c->logit_cap > 0 ? "caps of scores or logits"
                       : c->norm_place != NORMS_BEFORE ? "norms behind attention and MLP"
                       : c->qk_norm == QK_NORM_ALL     ? "norms over all heads"
                       : c->residual_scale != 1        ? "a factor of the residual stream"
                       : c->logit_scale != 1           ? "a factor of logits"
                       : c->rope_local_theta > 0       ? "rotations of two kinds"
                       : c->query_growth > 0           ? "queries that grow"
                       : c->d_head > 256               ? "heads of more than 256 dimensions"
                                                       : NULL;
    if (part != NULL && m->dev->n_ranks * m->dev->n_stages > 1)
        return err_set(err, ERR_UNSUPPORTED,
                       "ranks and stages compute no %s, which %s models need: choose "
                       "--tensor-parallel 1 and --pipeline-parallel 1",
                       part, family_name(c->family));
    if (part != NULL && !m->dev->unified)
        return err_set(err, ERR_UNSUPPORTED,
                       "device %s has no %s, which %s models need: use --device cpu",
                       m->dev->name, part, family_name(c->family));
    if (c->n_experts > 0 && (c->n_embd % 16 != 0 || c->n_ffn % 8 != 0))
        return err_set(
            err, ERR_UNSUPPORTED,
            "experts of %d columns in a model of width %d: multiples of 8 and of 16 "
            "are supported",
            c->n_ffn, c->n_embd);
    if (config_is_latent(c) && (config_kv_rank(c) % 16 != 0 || c->latent.d_v % 16 != 0))
        return err_set(
            err, ERR_UNSUPPORTED,
            "latents of %d numbers and heads of V of %d: multiples of 16 are supported",
            config_kv_rank(c), c->latent.d_v);
    return 0;
}

/* Rows that left f16's range are computed again, and a recurrent state cannot go back for that. */
static int check_state_dtype(const struct model *m, struct err *err)
{
    if (m->dtype != DTYPE_F16 || !config_is_hybrid(&m->cfg))
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "models with recurrent layers have no state in f16: run this one with "
                   "--dtype bf16");
}

static int load_config(struct model *m, const struct model_opts *o, struct err *err)
{
    int rc = is_synth(m->source) ? config_shape(&m->cfg, m->source + 6, err)
                                 : config_load(&m->cfg, m->source, err);
    struct model_config *c = &m->cfg;
    bool pools = c->pooling == POOLING_MEAN || c->pooling == POOLING_CLS ||
                 c->pooling == POOLING_LAST;
    /* Embeddings need no head, and some checkpoints leave it out. */
    if (rc == 0 && pools && !c->tie_word_embeddings && !is_synth(m->source) &&
        !pack_file_is(m->source) && checkpoint_lacks_head(m->source))
        c->tie_word_embeddings = c->has_no_head = true;
    if (rc == 0)
        rc = check_parts(m, err);
    if (rc != 0)
        return rc;
    m->dtype = dtype_of_checkpoint(m->cfg.weight_type);
    if (o->dtype != NULL && dtype_parse(o->dtype, &m->dtype) != 0)
        return err_set(err, ERR_USAGE, "state dtype '%s': must be f32, f16 or bf16",
                       o->dtype);
    rc = check_state_dtype(m, err);
    if (rc != 0)
        return rc;
    if (pack_file_is(m->source)) {
        rc = load_packed_notes(m, err);
        if (rc != 0)
            return rc;
    }
    m->format = m->is_packed               ? "packed"
                : is_synth(m->source)      ? "synth"
                : gguf_files_is(m->source) ? "gguf"
                                           : "safetensors";
    m->max_ctx = m->cfg.max_ctx;
    if (o->max_ctx > 0 && (o->max_ctx < m->max_ctx || has_any_context(m)))
        m->max_ctx = o->max_ctx;
    config_fit_context(&m->cfg, m->max_ctx);
    return 0;
}

static bool says_dtype(enum weight_type t)
{
    return t != WEIGHT_UNSPECIFIED;
}

/* Appends the types of a file that `which` selects: "Q4_1 (210 tensors), Q8_0 (1)". */
static void list_types(const struct weights_types *t, bool (*which)(const char *name),
                       char *out, size_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < t->n; i++)
        if (t->of[i].quantised && which(t->of[i].name) && at < n) {
            int k = snprintf(out + at, n - at, "%s%s (%d%s)", at > 0 ? ", " : "",
                             t->of[i].name, t->of[i].n_tensors, at == 0 ? " tensors" : "");
            at += k > 0 ? (size_t)k : 0;
        }
}

static bool any_type(const char *name)
{
    (void)name;
    return true;
}

static bool has_no_kernels(const char *name)
{
    static const char *const with[] = {"Q4_0", "Q4_1",  "Q4_K",   "Q6_K",
                                       "Q8_0", "MXFP4", "IQ4_NL", "IQ4_XS"};
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++)
        if (strcmp(with[i], name) == 0)
            return false;
    return true;
}

/* Says which types the file has, how they are held, and which of them are converted. */
static void note_held(struct model *m, const struct weights_types *types,
                      enum weights_held held)
{
    char list[160], converted[100];
    list_types(types, any_type, list, sizeof list);
    list_types(types, has_no_kernels, converted, sizeof converted);
    size_t at = (size_t)snprintf(m->note, sizeof m->note, "weights: %s held as %s",
                                 list[0] != 0 ? list : "matrices are",
                                 weights_held_name(held));
    if (held == WEIGHTS_BF16 && at < sizeof m->note)
        snprintf(m->note + at, sizeof m->note - at,
                 "; device %s has no kernels for the file's types", m->dev->name);
    else if (converted[0] != 0 && held >= WEIGHTS_Q8 && at < sizeof m->note)
        snprintf(m->note + at, sizeof m->note - at,
                 "; %s have no kernels and are converted to q8", converted);
}

static void note_choice(struct model *m, const struct weights_types *types,
                        const struct weights_choice *c)
{
    char list[160];
    list_types(types, any_type, list, sizeof list);
    size_t at = (size_t)snprintf(m->note, sizeof m->note, "weights: %s held as %s",
                                 list[0] != 0 ? list : "matrices are",
                                 weights_held_name(c->held));
    for (int i = 0; i < c->n_tried && at < sizeof m->note; i++)
        at += (size_t)snprintf(m->note + at, sizeof m->note - at,
                               "%s%s differs from f32 by %.1e nats per token (limit %.0e)",
                               i == 0 ? "; " : ", ", weights_held_name(c->tried[i].held),
                               c->tried[i].kl, weights_max_kl(c->tried[i].held));
}

/* If this program converts to 4 bits, measures and reports how much that changes predictions. */
static int compare_q4(struct model *m, const struct weights_info *info, struct err *err)
{
    struct weights_choice c;
    if (info->has_q4)
        return 0; /* the file's own 4 bits are used */
    int rc = weights_compare(m, WEIGHTS_Q4, &c, err);
    if (rc == 0 && c.n_tried == 1)
        snprintf(m->note, sizeof m->note,
                 "weights: converted to q4; they differ from f32 by %.1e nats per token; a "
                 "short text has perplexity %.4g, with f32 %.4g",
                 c.tried[0].kl, c.tried[0].perplexity, c.perplexity);
    return rc;
}

/* Sets the state dtype of a file whose metadata names none. */
static void choose_dtype(struct model *m, const struct model_opts *o,
                         const struct weights_info *info)
{
    if (o->dtype == NULL && m->cfg.weight_type == WEIGHT_UNSPECIFIED)
        m->dtype = info->quantised ? DTYPE_BF16 : info->dtype;
}

/* Returns the key under which the measured format of weights is remembered: other arithmetic may
 * need another format. */
static struct sha256 choice_key(const struct model *m, const struct sha256 *weights)
{
    uint8_t le[8];
    struct sha256_ctx *h = sha256_begin();
    put_u32(le, (uint32_t)m->dev->numerics_version);
    put_u32(le + 4, MODEL_NUMERICS_VERSION);
    sha256_field(h, "measured format of weights", weights->b, sizeof weights->b);
    sha256_field(h, "device", m->dev->numerics, strlen(m->dev->numerics));
    sha256_field(h, "versions", le, sizeof le);
    sha256_field(h, "state", dtype_name(m->dtype), strlen(dtype_name(m->dtype)));
    return sha256_end(h);
}

/* Remembers a measured format. */
static void keep_choice(const struct model *m, enum weights_held held)
{
    char text[KNOWN_TEXT_BYTES];
    struct sha256 key = choice_key(m, &m->w.hash);
    snprintf(text, sizeof text, "%s %s", weights_held_name(held), m->note);
    known_put(&key, text);
}

/* Takes the format that an earlier process measured for the same weights. */
static bool find_choice(struct model *m, const struct weights_info *info,
                        enum weights_held *held)
{
    char text[KNOWN_TEXT_BYTES];
    struct sha256 weights;
    if (!weights_known_hash(info, &weights))
        return false;
    struct sha256 key = choice_key(m, &weights);
    if (!known_get(&key, text))
        return false;
    for (int i = WEIGHTS_F32; i <= WEIGHTS_BF16R; i++) {
        const char *name = weights_held_name((enum weights_held)i);
        size_t n = strlen(name);
        if (strncmp(text, name, n) == 0 && text[n] == ' ') {
            *held = (enum weights_held)i;
            snprintf(m->note, sizeof m->note, "%.*s; as measured before",
                     (int)sizeof m->note - 24, text + n + 1);
            return true;
        }
    }
    return false;
}

/* Chooses the format of the matrices by measuring, once. */
static int choose_held(struct model *m, const struct model_opts *o,
                       const struct weights_info *info, enum weights_held *held,
                       struct err *err)
{
    struct weights_choice c;
    choose_dtype(m, o, info);
    if (find_choice(m, info, held))
        return 0;
    m->is_measured = true;
    enum weights_smallest smallest = !m->dev->quantised ? WEIGHTS_DOWN_TO_BF16
                                     : info->has_q4     ? WEIGHTS_DOWN_TO_Q4
                                                        : WEIGHTS_DOWN_TO_Q8;
    int rc = weights_choose(m, smallest, &c, err);
    *held = c.held;
    if (rc == 0)
        note_choice(m, &info->types, &c);
    return rc;
}

/* Holds a quantised file as it is, without measuring: types that have kernels unchanged, others in
 * 8 bits. A device without kernels for quantised matrices holds all as bf16. */
static void hold_as_in_file(struct model *m, const struct model_opts *o,
                            const struct weights_info *info, enum weights_held *held)
{
    choose_dtype(m, o, info);
    *held = weights_held_by_default(info, m->dev);
    note_held(m, &info->types, *held);
}

/* Returns whether a device computes with matrices of this type. */
static bool has_kernels(const struct device *d, enum dtype t)
{
    return t < DTYPE_Q8 || d->quantised || (t == DTYPE_Q8 && d->q8);
}

/* Checks that a packed file's matrices have the wanted type, chosen when it was written. */
static int check_packed_kind(const struct model *m, const char *name, struct err *err)
{
    const char *has = dtype_name(m->packed_held);
    if (!has_kernels(m->dev, m->packed_held))
        return err_set(
            err, ERR_UNSUPPORTED,
            "%s: is packed as %s, for which device %s has no kernels: pack it as bf16",
            m->source, has, m->dev->name);
    if (strcmp(name, "checkpoint") == 0 || strcmp(name, "auto") == 0 ||
        strcmp(name, has) == 0)
        return 0;
    return err_set(
        err, ERR_MISMATCH,
        "%s: is packed as %s: remove --weights %s, or pack the model again with it",
        m->source, has, name);
}

/* Sets *held to the format that the options name. "auto" and quantised files are examined first,
 * and so is a conversion to 4 bits. Sets m->note, and may set m->dtype. */
static int weight_kind(struct model *m, const struct model_opts *o, enum weights_held *held,
                       struct err *err)
{
    const char *name = o->weights != NULL ? o->weights : "checkpoint";
    bool chosen = strcmp(name, "auto") == 0, known = chosen;
    *held = WEIGHTS_AS_STORED;
    for (int i = WEIGHTS_AS_STORED; i <= WEIGHTS_BF16R; i++)
        if (strcmp(weights_held_name((enum weights_held)i), name) == 0) {
            *held = (enum weights_held)i;
            known = true;
        }
    if (!known)
        return err_set(err, ERR_USAGE,
                       "weights '%s': must be checkpoint, auto, f32, bf16, q8, q4 or bf16r",
                       name);
    if (*held >= WEIGHTS_Q8 && !m->dev->quantised && !(*held == WEIGHTS_Q8 && m->dev->q8))
        return err_set(err, ERR_UNSUPPORTED,
                       "weights %s: device %s has no kernels for them: use --weights bf16",
                       name, m->dev->name);
    if (m->is_packed)
        return check_packed_kind(m, name, err);
    bool made = *held == WEIGHTS_Q4;
    bool may_have_blocks = strcmp(m->format, "gguf") == 0 || m->cfg.is_quantised;
    if (!made && (*held != WEIGHTS_AS_STORED || (!chosen && !may_have_blocks)))
        return 0;
    struct weights_info info = {0};
    int rc = weights_describe(&info, m->source, &m->cfg, m->dtype, err);
    if (rc == 0 && made && !info.has_q4 && config_is_hybrid(&m->cfg))
        rc = err_set(
            err, ERR_UNSUPPORTED,
            "weights q4: models with recurrent layers are not converted to 4 bits: "
            "use --weights q8");
    else if (rc == 0 && made)
        rc = compare_q4(m, &info, err);
    else if (rc == 0 && chosen)
        rc = choose_held(m, o, &info, held, err);
    else if (rc == 0 && info.quantised)
        hold_as_in_file(m, o, &info, held);
    weights_info_deinit(&info);
    return rc;
}

/* A model that is being opened, and the options, whose callbacks learn its memory needs. */
struct opening {
    struct model *m;
    const struct model_opts *o;
};

static void take_file_dtype(struct opening *p)
{
    if (p->o->dtype == NULL && !says_dtype(p->m->cfg.weight_type))
        p->m->dtype = p->m->w.file_dtype;
}

static int tell_need(void *arg, const size_t weight_bytes[MAX_STAGES], int n_parts,
                     struct err *err)
{
    struct opening *p = arg;
    struct model_need need = {.n_parts = n_parts + 1};
    take_file_dtype(p);
    for (int k = 0; k < p->m->dev->n_stages; k++)
        need.bytes[k] = weight_bytes[k] + model_rope_bytes(p->m);
    return p->o->reserve(p->o->reserve_arg, p->m, &need, err);
}

static int tell_sizes(void *arg, const struct weights_sizes *z, int *n_resident,
                      struct err *err)
{
    struct opening *p = arg;
    take_file_dtype(p);
    return p->o->share(p->o->share_arg, p->m, z, n_resident, err);
}

int model_describe(const char *source, const struct model_opts *o, struct model **out,
                   enum weights_held *held, struct err *err)
{
    struct model *m = xcalloc(1, sizeof *m);
    m->dev = o->dev;
    m->source = xstrdup(source);
    m->probe_ids = o->probe_ids;
    int rc = load_config(m, o, err);
    spans_end(o->spans, "configuration");
    if (rc == 0)
        rc = weight_kind(m, o, held, err);
    spans_end(o->spans, "format of the weights");
    if (rc != 0) {
        model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

int model_open(const char *source, const struct model_opts *o, struct model **out,
               struct err *err)
{
    struct model *m = NULL;
    struct stream *s = NULL;
    enum weights_held held;
    int rc = model_describe(source, o, &m, &held, err);
    if (rc != 0)
        return rc;
    struct opening opening = {m, o};
    rc = stream_create(m->dev, STREAM_COMPUTE, &s, err);
    struct weights_opts wo = {.dev = m->dev,
                              .s = s,
                              .synth_dtype = m->dtype,
                              .reserve = o->reserve != NULL ? tell_need : NULL,
                              .reserve_arg = &opening,
                              .held = held,
                              .remembers = true,
                              .images = o->images,
                              .io = o->io,
                              .share = o->share != NULL ? tell_sizes : NULL,
                              .share_arg = &opening,
                              .stuck_ns = o->stuck_ns};
    if (rc == 0)
        rc = weights_load(&m->w, source, &m->cfg, &wo, err);
    spans_end(o->spans, "weights");
    if (rc == 0) {
        take_file_dtype(&opening);
        if (m->is_measured)
            keep_choice(m, held);
        rc = check_state_dtype(m, err);
        if (rc == 0)
            rc = model_make_rope(m, s, err);
        spans_end(o->spans, "rotation tables");
    }
    stream_destroy(s);
    if (rc != 0) {
        model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void model_close(struct model *m)
{
    if (m == NULL)
        return;
    weights_unload(&m->w, m->dev);
    stages_free(m->dev, m->rope_mem);
    free(m->rope_blocks);
    free(m->source);
    free(m);
}

/* --- caches ----------------------------------------------------------------------------------- */

size_t model_state_bytes(const struct model_config *c)
{
    struct delta_rule d = model_delta_rule(c, NULL);
    return d.n_v > 0 ? (delta_state_bytes(&d) + 63) & ~(size_t)63 : 0;
}

size_t model_state_room(const struct model_config *c, bool may_guess)
{
    struct delta_rule d = model_delta_rule(c, NULL);
    return d.n_v > 0 && may_guess ? delta_room_bytes(&d) : model_state_bytes(c);
}

int64_t model_state_seen(const void *state)
{
    int64_t n;
    memcpy(&n, state, sizeof n);
    return n;
}

/* Advances one layer's state over its kept inputs, which are rows like any others, and drops
 * them. */
static int state_reach(const struct model *m, struct stream *s, const struct kv_layer *kv,
                       int l, int32_t state, int64_t n_tokens)
{
    const struct layer_weights *lw = weights_resident(&m->w, l);
    struct delta_rule d = model_delta_rule(&m->cfg, lw);
    uint8_t *at = kv->blocks + (size_t)state * kv->block_stride;
    int64_t n_seen = *delta_n_seen(at);
    int64_t n_kept = MIN(*delta_n_kept(at), DELTA_AHEAD);
    int32_t pos[DELTA_AHEAD], n = (int32_t)(n_tokens - n_seen), seq_row[] = {0, n};
    CHECK(lw != NULL);
    *delta_n_kept(at) = 0;
    if (n <= 0 || n > n_kept)
        return 0;
    for (int i = 0; i < n; i++)
        pos[i] = (int32_t)n_seen + i;
    struct ragged r = {
        .n_rows = n, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .states = &state};
    struct mat in = mat_of(delta_kept(&d, at), DTYPE_F32, n, delta_in_cols(&d));
    return m->dev->ops->delta_net(s, (struct mat){0}, in, &d, kv, &r);
}

int model_states_reach(const struct model *m, struct stream *s,
                       const struct kv_layer *layers, int32_t state, int64_t n_tokens)
{
    int rc = 0;
    for (int l = 0; rc == 0 && l < m->cfg.n_layers; l++)
        if (config_is_recurrent(&m->cfg, l))
            rc = state_reach(m, s, &layers[l], l, state, n_tokens);
    return rc == 0 ? stream_sync(s) : rc;
}

struct kv_layer model_cache(const struct model *m, int l, void *mem)
{
    struct kv_layer kv = {.blocks = mem, .dtype = m->dtype, .stage = model_stage(m, l)};
    if (config_is_recurrent(&m->cfg, l)) {
        kv.block_stride = model_state_bytes(&m->cfg);
        return kv;
    }
    kv.n_kv = model_rank_kv_heads(m, l);
    kv.d_head = config_d_head(&m->cfg, l);
    kv.block_stride = kv_block_bytes(kv.n_kv, kv.d_head, m->dtype);
    return kv;
}

size_t model_all_kv_bytes(const struct model *m, int stage)
{
    size_t n = 0;
    for (int l = 0; l < config_n_keeping(&m->cfg); l++)
        if (!config_is_recurrent(&m->cfg, l) && (stage < 0 || model_stage(m, l) == stage))
            n += (size_t)2 * (size_t)model_kv_dim(m, l) * dtype_bytes(m->dtype);
    return n;
}

double model_mean_kv_bytes(const struct model *m)
{
    int n = 0;
    size_t bytes = 0;
    for (int l = 0; l < config_n_keeping(&m->cfg); l++)
        if (!config_is_recurrent(&m->cfg, l)) {
            bytes += model_kv_bytes(m, l);
            n++;
        }
    return (double)bytes / MAX(n, 1);
}

/* --- activations ------------------------------------------------------------------------------ */

/* Widths of the activation matrices, in the order of struct activations. */
struct work_sizes {
    int64_t d, q, att, mix, kv, up, ffn, wide, own, experts, used, layer_embd, latent;
};

/* Returns the widths on one rank. */
static struct work_sizes sizes_of(const struct model_config *c, int n_ranks)
{
    struct delta_rule d = model_delta_rule(c, NULL);
    int64_t q = (int64_t)c->n_heads * MAX(c->d_head, c->local_d_head) / n_ranks,
            v = (int64_t)d.n_v * d.d_v;
    int64_t ffn = MAX(MAX(config_ffn(c, c->n_layers - 1), c->n_shared_ffn), c->n_dense_ffn);
    return (struct work_sizes){
        .d = c->n_embd,
        .q = c->attn_gated ? 3 * q : q,
        .att = MAX(q, v),
        .mix = d.n_v > 0 ? delta_in_cols(&d) + (d.kind == DELTA_SHORT_CONV ? 3 : 2) * v : 0,
        .kv = (int64_t)2 * config_most_kv_dim(c) / n_ranks,
        .up = ffn * (c->mlp_gated ? 2 : 1) / n_ranks,
        .ffn = ffn / n_ranks,
        .wide = n_ranks > 1 ? MAX(q * n_ranks, ffn) : 0,
        .own = n_ranks > 1 ? c->n_embd / n_ranks : 0,
        .experts = c->n_experts,
        .used = c->n_experts_used,
        .layer_embd = c->n_layer_embd,
        .latent = config_is_latent(c)
                      ? MAX(config_latent_q_dim(c), c->n_heads * c->latent.d_v) +
                            c->latent.q_rank
                      : 0,
    };
}

/* Takes the next matrix from the work's memory, and adds its bytes to *used. If base is NULL, only
 * counts the bytes. */
static struct mat cut(uint8_t *base, size_t *used, enum dtype t, int64_t rows, int64_t cols)
{
    struct mat a = mat_of(base != NULL ? base + *used : NULL, t, rows, cols);
    *used += ((size_t)rows * (size_t)cols * dtype_bytes(t) + 63) & ~(size_t)63;
    return a;
}

/* Returns the number of buffers of the residual stream.  A layer reads one and writes another.  On
 * a device with memory of its own, a third lets a tap copy one layer's input while the next layer
 * runs. */
static int n_residual(const struct device *d)
{
    return d->unified ? 2 : 3;
}

/* Rows of a->head, at most: so many of a rank's are gathered at a time. */
enum { MAX_HEAD_ROWS = 32 };

/* Lays out one stage's activations and its buffers x of the residual stream. Returns the bytes. */
static size_t lay_out(const struct model *m, struct activations *a, struct mat x[3],
                      uint8_t *base, int rows)
{
    int n_ranks = m->dev->n_ranks;
    struct work_sizes z = sizes_of(&m->cfg, n_ranks);
    enum dtype act = m->dev->act_is_state ? m->dtype : m->dev->act_dtype;
    size_t used = 0;
    a->n_kv_rows = m->dev->unified ? 1 : 2;
    for (int i = 0; i < n_residual(m->dev); i++)
        x[i] = cut(base, &used, m->dtype, rows, z.d);
    for (int i = 0; i < a->n_kv_rows; i++)
        a->kv_rows[i] = cut(base, &used, m->dtype, rows, z.kv);
    bool cuts = share_cuts_head(&m->cfg, n_ranks), fine = model_head_is_fine(m);
    a->head = cut(base, &used, DTYPE_F32,
                  cuts || fine ? MIN(fine ? 2 * rows : rows, MAX_HEAD_ROWS) : 0,
                  m->cfg.vocab_size / (cuts ? n_ranks : 1));
    a->wide = cut(base, &used, act, rows, z.wide);
    a->own = cut(base, &used, act, rows, z.own);
    a->norm = cut(base, &used, act, fine ? MAX(rows, a->head.rows) : rows, z.d);
    a->norm2 = cut(base, &used, act, rows, z.d);
    a->sum = cut(base, &used, DTYPE_F32, rows, z.d);
    a->q = cut(base, &used, act, rows, z.q);
    a->att = cut(base, &used, act, rows, z.att);
    if (z.latent > 0)
        a->latent = cut(base, &used, act, rows, z.latent);
    if (z.mix > 0)
        a->mix = cut(base, &used, act, rows, z.mix);
    a->kv = cut(base, &used, act, rows, z.kv);
    a->up = cut(base, &used, act, rows, z.up);
    a->ffn = cut(base, &used, act, rows, z.ffn);
    if (z.experts > 0) {
        a->rows = cut(base, &used, act, rows, z.d);
        a->router = cut(base, &used, DTYPE_F32, rows, z.experts);
        /* ids and weights of each row's experts, and the rows of one expert */
        a->experts = cut(base, &used, DTYPE_F32, rows, 2 * z.used + 1).data;
        if (m->cfg.dense_beside)
            a->beside = cut(base, &used, act, rows, z.d);
    }
    if (z.layer_embd > 0) {
        a->token_embd = cut(base, &used, m->dtype, rows, z.d);
        a->layer_embd = cut(base, &used, act, rows, 2 * z.layer_embd);
    }
    return used;
}

size_t model_work_bytes(const struct model *m, int max_rows)
{
    struct activations a;
    struct mat x[3];
    return lay_out(m, &a, x, NULL, max_rows);
}

int model_work_create(const struct model *m, int max_rows, struct model_work **out,
                      struct err *err)
{
    CHECK(max_rows > 0);
    struct model_work *w = xcalloc(1, sizeof *w);
    int rc = stages_alloc(m->dev, model_work_bytes(m, max_rows), w->mem, err);
    if (rc != 0) {
        free(w);
        return err_wrap(err, "activations of %d rows", max_rows);
    }
    w->dev = m->dev;
    w->max_rows = max_rows;
    w->ids = xcalloc((size_t)max_rows, sizeof *w->ids);
    for (int k = 0; k < m->dev->n_stages; k++)
        lay_out(m, &w->at[k], w->x.x[k], w->mem[k].ptr, max_rows);
    w->x.n = n_residual(m->dev);
    *out = w;
    return 0;
}

void model_work_destroy(struct model_work *w)
{
    if (w == NULL)
        return;
    stages_free(w->dev, w->mem);
    free(w->ids);
    free(w);
}

void model_work_rest(struct model_work *w)
{
    for (int k = 0; k < w->dev->n_stages; k++)
        buf_rest(w->dev, &w->mem[k]);
}

int model_work_rows(const struct model_work *w)
{
    return w->max_rows;
}
