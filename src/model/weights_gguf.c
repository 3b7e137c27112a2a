/* weights_gguf.c - a GGUF file's tensors, presented like those of a folder.
 *
 * The model's list of tensors (weights_names.h) uses the names and shapes of transformers.
 * This file finds each of them under its GGUF name, and gives the order of its rows:
 *
 *     model.layers.3.self_attn.q_proj.weight    blk.3.attn_q.weight, pairs interleaved (llama)
 *     the same, in a file that stacks them      rows of blk.3.attn_qkv.weight
 *     transformer.h.3...query_key_value         blk.3.attn_qkv.weight, all q, all k, all v
 *     model.layers.3.mlp.experts.7.up_proj      matrix 7 of blk.3.ffn_up_exps.weight
 *     model.layers.3.linear_attn.A_log          blk.3.ssm_a, which has -exp(A_log)
 *
 * As for folders, a tensor that is missing, has another shape, or is left over is an error. */
#include "model/weights_slots.h"
#include "model/weights_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/config_gguf.h"
#include "tensor/ops.h"

/* --- names -------------------------------------------------------------------------------- */

static const char *qkv_stem(const struct tensor_spec *t)
{
    const struct tensor_part *p = &t->parts[0];
    if (t->n_parts > 1 && p->slot != t->parts[1].slot)
        return "attn_qkv";
    if (p->slot == SLOT_WQ || p->slot == SLOT_BQ) /* with rows of its gate, or without */
        return "attn_q";
    return p->dst_row == 0 ? "attn_k" : "attn_v";
}

/* Returns the GGUF name of a gate or up tensor. A tensor that holds both, gate rows first, is named
 * after up (phi3). */
static const char *up_stem(const struct model_config *c, const struct tensor_spec *t)
{
    bool gate = c->mlp_gated && t->parts[0].dst_row == 0 &&
                t->rows == config_ffn(c, t->layer);
    return gate ? "ffn_gate" : "ffn_up";
}

/* Returns the GGUF name of the tensor that holds a matrix of every expert. */
static const char *experts_stem(const struct model_config *c, const struct tensor_part *p)
{
    if (p->slot == SLOT_DOWN || p->slot == SLOT_B_DOWN)
        return "ffn_down_exps";
    bool gate = p->dst_row / c->n_ffn % 2 == 0;
    return gate ? "ffn_gate_exps" : "ffn_up_exps";
}

/* Returns the GGUF name of a norm. In Falcon's files the second norm is attention's, and the first
 * is the MLP's. */
static const char *norm_stem(const struct model_config *c, bool attention)
{
    if (c->norm_place == NORMS_AFTER)
        return attention ? "post_attention_norm" : "post_ffw_norm";
    if ((c->family == FAMILY_GPT_OSS || c->family == FAMILY_GLM4_MOE || c->attn_gated) &&
        !attention)
        return "post_attention_norm";
    if (c->block == BLOCK_PARALLEL_NORM2)
        return attention ? "attn_norm_2" : "attn_norm";
    return attention ? "attn_norm" : "ffn_norm";
}

static const char *stem_of(const struct model_config *c, const struct tensor_spec *t)
{
    /* the slots whose name depends on nothing else */
    static const char *const fixed[N_SLOTS] = {
        [SLOT_EMBED] = "token_embd",
        [SLOT_DENSE_1] = "dense_2",
        [SLOT_DENSE_2] = "dense_3",
        [SLOT_HEAD_BIAS] = "output",
        [SLOT_FINAL_NORM_W] = "output_norm",
        [SLOT_FINAL_NORM_B] = "output_norm",
        [SLOT_POST1_W] = "post_attention_norm",
        [SLOT_POST2_W] = "post_ffw_norm",
        [SLOT_WO] = "attn_output",
        [SLOT_BO] = "attn_output",
        [SLOT_ROUTER] = "ffn_gate_inp",
        [SLOT_SINKS] = "attn_sinks",
        [SLOT_QA] = "attn_q_a",
        [SLOT_UK] = "attn_k_b",
        [SLOT_UV] = "attn_v_b",
        [SLOT_SHARED_DOWN] = "ffn_down_shexp",
        [SLOT_SHARED_GATE] = "ffn_gate_inp_shexp",
        [SLOT_DENSE_DOWN] = "ffn_down",
        [SLOT_Q_NORM] = "attn_q_norm",
        [SLOT_K_NORM] = "attn_k_norm",
        [SLOT_MIX_OUT] = "ssm_out",
        [SLOT_CONV] = "ssm_conv1d",
        [SLOT_A_LOG] = "ssm_a",
        [SLOT_DT] = "ssm_dt",
        [SLOT_MIX_NORM] = "ssm_norm",
        [SLOT_CONV_B] = "ssm_conv1d",
        [SLOT_SKIP] = "ssm_d",
        [SLOT_POSITIONS] = "per_layer_token_embd",
        [SLOT_LAYER_IN] = "per_layer_model_proj",
        [SLOT_LAYER_IN_NORM] = "per_layer_proj_norm",
        [SLOT_LAYER_GATE] = "inp_gate",
        [SLOT_LAYER_OUT] = "proj",
        [SLOT_LAYER_NORM] = "post_norm",
        [SLOT_DENSE_POST_W] = "post_ffw_norm_1",
        [SLOT_EXPERTS_W] = "pre_ffw_norm_2",
        [SLOT_EXPERTS_POST_W] = "post_ffw_norm_2",
        [SLOT_ROUTER_SCALE] = "ffn_gate_inp",
        [SLOT_EXPERT_SCALE] = "ffn_down_exps",
        [SLOT_OUT_SCALE] = "layer_output_scale",
    };
    /* those that LFM2's files call otherwise */
    static const char *const of_lfm2[N_SLOTS] = {
        [SLOT_FINAL_NORM_W] = "token_embd_norm",
        [SLOT_MIX] = "shortconv.in_proj",
        [SLOT_CONV] = "shortconv.conv",
        [SLOT_MIX_OUT] = "shortconv.out_proj",
    };
    /* those of latent attention, where queries may have a latent, too */
    const char *const of_latent[N_SLOTS] = {
        [SLOT_Q_NORM] = "attn_q_a_norm",
        [SLOT_K_NORM] = "attn_kv_a_norm",
        [SLOT_WKV] = "attn_kv_a_mqa",
        [SLOT_WQ] = c->latent.q_rank > 0 ? "attn_q_b" : "attn_q",
    };
    const struct tensor_part *p = &t->parts[0];
    if (c->family == FAMILY_LFM2 && of_lfm2[p->slot] != NULL)
        return of_lfm2[p->slot];
    if (config_is_latent(c) && of_latent[p->slot] != NULL)
        return of_latent[p->slot];
    switch (p->slot) {
    case SLOT_HEAD:
        return c->tie_word_embeddings ? "token_embd" : "output";
    case SLOT_NORM1_W:
    case SLOT_NORM1_B:
        return norm_stem(c, true);
    case SLOT_NORM2_W:
    case SLOT_NORM2_B:
        return norm_stem(c, false);
    case SLOT_UP:
    case SLOT_B_UP:
        return c->n_experts > 0 ? experts_stem(c, p) : up_stem(c, t);
    case SLOT_DOWN:
    case SLOT_B_DOWN:
        return c->n_experts > 0 ? experts_stem(c, p) : "ffn_down";
    case SLOT_B_ROUTER:
        return c->router_sigmoid ? "exp_probs_b" : "ffn_gate_inp";
    case SLOT_DENSE_UP:
        return p->dst_row == 0 ? "ffn_gate" : "ffn_up";
    case SLOT_SHARED_UP:
        return p->dst_row == 0 ? "ffn_gate_shexp" : "ffn_up_shexp";
    case SLOT_MIX:
        return c->recurrence.kind == DELTA_MAMBA2 ? "ssm_in"
               : p->dst_row == 0                  ? "attn_qkv"
                                                  : "attn_gate";
    case SLOT_MIX_BA:
        return t->n_parts > 1 ? "ssm_ba" : p->dst_row == 0 ? "ssm_beta" : "ssm_alpha";
    default:
        return fixed[p->slot] != NULL ? fixed[p->slot] : qkv_stem(t);
    }
}

static void gguf_name(char *out, size_t n, const struct tensor_spec *t, const char *stem)
{
    bool is_bias = t->kind == TENSOR_BIAS && t->parts[0].slot != SLOT_SINKS;
    bool is_bare = t->parts[0].slot == SLOT_A_LOG || t->parts[0].slot == SLOT_SKIP;
    bool is_scale = t->parts[0].slot == SLOT_ROUTER_SCALE ||
                    t->parts[0].slot == SLOT_EXPERT_SCALE;
    const char *end = is_bare ? "" : is_bias ? ".bias" : is_scale ? ".scale" : ".weight";
    if (slot_is_in_layer(t->parts[0].slot))
        snprintf(out, n, "blk.%d.%s%s", t->layer, stem, end);
    else
        snprintf(out, n, "%s%s", stem, end);
}

/* --- rows --------------------------------------------------------------------------------- */

static bool is_query_or_key(const struct tensor_spec *t)
{
    const struct tensor_part *p = &t->parts[0];
    bool query = p->slot == SLOT_WQ || p->slot == SLOT_BQ;
    bool key = (p->slot == SLOT_WKV || p->slot == SLOT_BKV) && p->dst_row == 0;
    return t->n_parts == 1 && (query || key);
}

struct row_map rows_of_folder(const struct model_config *c, const struct tensor_spec *t)
{
    bool paired = c->family == FAMILY_COHERE2 && is_query_or_key(t);
    enum slot s = t->parts[0].slot;
    if (config_is_latent(c) && (s == SLOT_WQ || s == SLOT_WKV)) {
        int32_t skip = s == SLOT_WQ ? c->latent.d_nope : config_kv_rank(c);
        return (struct row_map){
            .order = ROWS_PAIRS, .d_head = skip + c->d_rope, .skip = skip};
    }
    return (struct row_map){.order = paired ? ROWS_PAIRS : ROWS_SAME, .d_head = c->d_head};
}

/* Returns the order of a tensor's rows in the file. The model rotates halves; files of architecture
 * llama are permuted so that neighbours form pairs. */
static struct row_map rows_of(const struct model_config *c, const struct tensor_spec *t)
{
    bool permuted = c->family == FAMILY_LLAMA || c->family == FAMILY_MISTRAL ||
                    c->family == FAMILY_MIXTRAL || c->family == FAMILY_GRANITE ||
                    c->family == FAMILY_MINISTRAL3 || c->family == FAMILY_GRANITE_HYBRID;
    if (permuted && is_query_or_key(t))
        return (struct row_map){.order = ROWS_PAIRS, .d_head = c->d_head};
    if (c->family == FAMILY_FALCON && t->n_parts > 1)
        return (struct row_map){.order = ROWS_GROUPS,
                                .d_head = c->d_head,
                                .per_group = c->n_heads / c->n_kv_heads,
                                .n_groups = c->n_kv_heads};
    return rows_of_folder(c, t);
}

/* --- matching ----------------------------------------------------------------------------- */

struct match {
    const struct gguf_files *files;
    const struct model_config *c;
    bool **used; /* [file][tensor] whether the tensor was used */
    struct err *err;
};

static const struct gguf_tensor *find(const struct match *m, const char *name,
                                      const struct gguf_file **in)
{
    const struct gguf_tensor *t = gguf_files_find(m->files, name, in);
    if (t != NULL)
        m->used[*in - m->files->files][t - (*in)->g.tensors] = true;
    return t;
}

static int wrong_shape(const struct match *m, const struct gguf_file *in,
                       const struct gguf_tensor *have, const struct tensor_spec *t)
{
    return err_set(m->err, ERR_MISMATCH,
                   "%s: tensor '%s' has %d dimensions of %" PRIu64 " and %" PRIu64
                   " elements; the metadata asks for %" PRId64 " rows of %" PRId64,
                   in->path, have->name, have->n_dims, have->shape[0],
                   have->n_dims > 1 ? have->shape[1] : 1, t->rows, t->cols);
}

static int element_type(const struct match *m, const struct gguf_file *in,
                        const struct gguf_tensor *have, struct tensor_src *out)
{
    out->type = gguf_type(have->type);
    if (out->type->decode == NULL)
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s: tensor '%s' has type %s, which is not supported; supported are "
                       "%s",
                       in->path, have->name, out->type->name, gguf_types_supported());
    out->dtype = have->type == GGUF_TYPE_F16    ? DTYPE_F16
                 : have->type == GGUF_TYPE_BF16 ? DTYPE_BF16
                                                : DTYPE_F32;
    return 0;
}

/* Returns whether `have` has the shape of t, but with `all` rows.  A convolution's is [channels]
 * [n_conv], a matrix of one row may be a vector, and vectors of Mamba-2 are matrices. */
static bool has_shape(const struct gguf_tensor *have, const struct tensor_spec *t,
                      int64_t all)
{
    enum slot s = t->parts[0].slot;
    if ((s == SLOT_UK || s == SLOT_UV) && have->n_dims == 3) /* by heads */
        return have->shape[0] * have->shape[1] == (uint64_t)all &&
               have->shape[2] == (uint64_t)t->cols;
    if (t->n_dims == 3)
        return have->n_dims == 2 && have->shape[1] == (uint64_t)t->n_conv &&
               have->shape[0] == (uint64_t)(all / t->n_conv);
    if (t->n_dims == 2 && all == 1 && have->n_dims == 1)
        return have->shape[0] == (uint64_t)t->cols;
    if (t->n_dims == 1 && have->n_dims == 2 &&
        (t->parts[0].slot == SLOT_A_LOG || t->parts[0].slot == SLOT_SKIP ||
         t->parts[0].slot == SLOT_MIX_NORM))
        return have->shape[0] * have->shape[1] == (uint64_t)all;
    return have->n_dims == t->n_dims && have->shape[0] == (uint64_t)all &&
           (t->n_dims == 1 || have->shape[1] == (uint64_t)t->cols);
}

/* Takes rows [first, first + t->rows) of `have`, whose shape suits. */
static int take_rows(const struct match *m, const struct gguf_file *in,
                     const struct gguf_tensor *have, const struct tensor_spec *t,
                     int64_t first, struct tensor_src *out)
{
    int rc = element_type(m, in, have, out);
    if (rc != 0)
        return rc;
    out->file = in->path;
    out->file_row_bytes = (size_t)t->cols / out->type->block * out->type->bytes;
    /* A row of a vector is one number, which is no whole block. */
    if (t->n_dims != 2 && tensor_src_is_quantised(out))
        return err_set(
            m->err, ERR_UNSUPPORTED,
            "%s: tensor '%s' is a vector of type %s; vectors must be F32, F16 or BF16",
            in->path, have->name, out->type->name);
    out->in_file = true;
    out->fd = in->fd;
    out->at = have->begin + (uint64_t)first * out->file_row_bytes;
    out->rows = rows_of(m->c, t);
    out->norm_has_one = m->c->norm == NORM_RMS_PLUS_ONE;
    out->is_decay = t->parts[0].slot == SLOT_A_LOG;
    if (out->is_decay && have->type != GGUF_TYPE_F32)
        return err_set(m->err, ERR_UNSUPPORTED, "%s: tensor '%s' must be F32, and is %s",
                       in->path, have->name, out->type->name);
    return 0;
}

/* Finds q, k or v in a stacked tensor, in which the three lie one behind another. *found becomes
 * true if the file has such a tensor. */
static int match_stacked(const struct match *m, const struct tensor_spec *t,
                         struct tensor_src *out, bool *found)
{
    const struct tensor_part *p = &t->parts[0];
    const struct gguf_file *in = NULL;
    char name[TENSOR_NAME_BYTES];
    bool q = p->slot == SLOT_WQ || p->slot == SLOT_BQ;
    if (t->n_parts != 1 || !(q || p->slot == SLOT_WKV || p->slot == SLOT_BKV))
        return 0;
    gguf_name(name, sizeof name, t, "attn_qkv");
    const struct gguf_tensor *have = find(m, name, &in);
    *found = have != NULL;
    if (have == NULL)
        return 0;
    int64_t n_q = slot_rows(m->c, t->layer, SLOT_WQ),
            n_kv = slot_rows(m->c, t->layer, SLOT_WKV);
    if (!has_shape(have, t, n_q + n_kv))
        return wrong_shape(m, in, have, t);
    return take_rows(m, in, have, t, q ? 0 : n_q + p->dst_row, out);
}

/* Takes the matrix or the bias of one expert from the tensor of all experts,
 * [n_experts][rows][cols] or [n_experts][rows]. */
static int take_expert(const struct match *m, const struct gguf_file *in,
                       const struct gguf_tensor *have, const struct tensor_spec *t,
                       struct tensor_src *out)
{
    const struct tensor_part *p = &t->parts[0];
    int64_t rows_each = slot_rows(m->c, t->layer, p->slot) / m->c->n_experts;
    if (have->n_dims != t->n_dims + 1 || have->shape[0] != (uint64_t)m->c->n_experts ||
        have->shape[1] != (uint64_t)t->rows ||
        (t->n_dims == 2 && have->shape[2] != (uint64_t)t->cols))
        return err_set(m->err, ERR_MISMATCH,
                       "%s: tensor '%s' does not hold %d experts of %" PRId64
                       " rows of %" PRId64 ", as the metadata asks",
                       in->path, have->name, m->c->n_experts, t->rows, t->cols);
    return take_rows(m, in, have, t, p->dst_row / rows_each * t->rows, out);
}

/* Finds the gate or up of an expert in the tensor that has both, those of the gate first. Sets
 * *found to whether the file has that tensor. */
static int match_both(const struct match *m, const struct tensor_spec *t,
                      struct tensor_src *out, bool *found)
{
    const struct tensor_part *p = &t->parts[0];
    const struct gguf_file *in = NULL;
    char name[TENSOR_NAME_BYTES];
    gguf_name(name, sizeof name, t, "ffn_gate_up_exps");
    const struct gguf_tensor *have = p->slot == SLOT_UP ? find(m, name, &in) : NULL;
    *found = have != NULL;
    if (have == NULL)
        return 0;
    struct tensor_spec all = *t;
    all.rows *= 2;
    int rc = take_expert(m, in, have, &all, out);
    if (rc == 0)
        out->at += (uint64_t)(p->dst_row % all.rows) * out->file_row_bytes;
    return rc;
}

static int match_one(const struct match *m, const struct tensor_spec *t,
                     struct tensor_src *out)
{
    char name[TENSOR_NAME_BYTES];
    const struct gguf_file *in = NULL;
    bool found = false;
    gguf_name(name, sizeof name, t, stem_of(m->c, t));
    const struct gguf_tensor *have = find(m, name, &in);
    bool of_expert = m->c->n_experts > 0 && slot_is_of_experts(t->parts[0].slot);
    if (have != NULL && of_expert)
        return take_expert(m, in, have, t, out);
    if (have != NULL)
        return has_shape(have, t, t->rows) ? take_rows(m, in, have, t, 0, out)
                                           : wrong_shape(m, in, have, t);
    int rc = of_expert ? match_both(m, t, out, &found) : match_stacked(m, t, out, &found);
    if (rc == 0 && !found)
        rc = err_set(m->err, ERR_MISMATCH,
                     "%s: tensor '%s' is missing, but the metadata requires it",
                     m->files->files[0].path, name);
    return rc;
}

/* Returns whether a tensor is not used: it belongs to a layer that guesses tokens, or to K or V of
 * a layer that reads those of another one. */
static bool is_unused(const struct match *m, const char *name)
{
    int l, n = 0;
    if (sscanf(name, "blk.%d.attn_%n", &l, &n) == 1 && n > 0 &&
        l >= config_n_keeping(m->c) && l < m->c->n_layers &&
        (name[n] == 'k' || name[n] == 'v'))
        return true;
    return sscanf(name, "blk.%d.", &l) == 1 && l >= m->c->n_layers &&
           l < m->c->n_layers + m->c->n_guessing;
}

static int refuse_unexpected(const struct match *m)
{
    for (size_t i = 0; i < m->files->n; i++)
        for (size_t k = 0; k < m->files->files[i].g.n_tensors; k++) {
            const char *name = m->files->files[i].g.tensors[k].name;
            bool of_rope = strcmp(name, ROPE_FACTORS_NAME) == 0 ||
                           strcmp(name, ROPE_LONG_NAME) == 0 ||
                           strcmp(name, ROPE_SHORT_NAME) == 0;
            /* a reranker's rows of "yes" and "no", which the head has */
            bool of_rank = m->c->pooling == POOLING_RANK &&
                           strncmp(name, "cls.output.", 11) == 0;
            if (!m->used[i][k] && !of_rope && !of_rank && !is_unused(m, name))
                return err_set(
                    m->err, ERR_MISMATCH,
                    "%s: tensor '%s' is not part of the %s model of %d layers that the "
                    "metadata describes; ignoring it would change results",
                    m->files->files[i].path, name, family_name(m->c->family),
                    m->c->n_layers);
        }
    return 0;
}

int gguf_match(const struct gguf_files *files, const struct model_config *c,
               const struct tensor_list *want, struct tensor_src *src, struct err *err)
{
    struct match m = {.files = files, .c = c, .err = err};
    int rc = 0;
    m.used = xcalloc(files->n, sizeof *m.used);
    for (size_t i = 0; i < files->n; i++)
        m.used[i] = xcalloc(files->files[i].g.n_tensors + 1, sizeof **m.used);
    for (size_t i = 0; rc == 0 && i < want->n; i++)
        rc = match_one(&m, &want->items[i], &src[i]);
    if (rc == 0)
        rc = refuse_unexpected(&m);
    for (size_t i = 0; i < files->n; i++)
        free(m.used[i]);
    free(m.used);
    return rc;
}
