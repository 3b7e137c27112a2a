/* config.c - config.json to struct model_config.
 *
 * One table names the families.  config_family_init sets the fields that a family fixes.  One short
 * function per family reads the fields that its config.json may vary, and refuses variants that
 * struct model_config cannot express.  A field that no function reads is refused, too, unless
 * config_fields.c lists it as one that changes no result (use_cache, transformers_version, ...).
 *
 * Defaults for absent keys are those of transformers, and exist only where real checkpoints rely
 * on them; sizes have none. */
#include "model/config.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/minmax.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/json.h"
#include "model/config_family.h"
#include "model/config_gguf.h"
#include "model/pack_file.h"
#include "tensor/ops.h"
#include "tensor/sampling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/stat.h>

#define CONFIG_MAX_BYTES (16u << 20)

enum {
    MAX_WIDTH = MATMUL_MAX_K,
    MAX_VOCAB = SAMPLE_MAX_COLS,
    MAX_LAYERS = LAYER_SET_MAX,
    MAX_CTX = 1 << 30,
};

/* --- fields; the first error is kept ------------------------------------------------------ */

/* The fields of a JSON object that is being read.  After the first error (rc) every further read
 * does nothing, so a family's reader needs no checks. */
struct fields {
    const struct json *o;
    struct err *err;
    int rc;
    struct fields_read read;
};

/* Marks `key` as understood, whatever its value. */
static void saw(struct fields *f, const char *key)
{
    if (config_was_read(&f->read, key))
        return;
    CHECK(f->read.n < CONFIG_MAX_READ);
    f->read.keys[f->read.n++] = key;
}

static int32_t need_int(struct fields *f, const char *key, int32_t min, int32_t max)
{
    saw(f, key);
    int64_t v = min;
    if (f->rc == 0)
        f->rc = json_get_int(f->o, key, min, max, &v, f->err);
    return (int32_t)v;
}

static int32_t opt_int(struct fields *f, const char *key, int32_t min, int32_t max,
                       int32_t dflt)
{
    saw(f, key);
    int64_t v = dflt;
    if (f->rc == 0)
        f->rc = json_opt_int(f->o, key, min, max, &v, f->err);
    return (int32_t)v;
}

static double need_real(struct fields *f, const char *key)
{
    double v = 0;
    saw(f, key);
    if (f->rc == 0)
        f->rc = json_get_real(f->o, key, &v, f->err);
    return v;
}

static double opt_real(struct fields *f, const char *key, double dflt)
{
    saw(f, key);
    if (f->rc == 0)
        f->rc = json_opt_real(f->o, key, &dflt, f->err);
    return dflt;
}

static bool opt_bool(struct fields *f, const char *key, bool dflt)
{
    saw(f, key);
    if (f->rc == 0)
        f->rc = json_opt_bool(f->o, key, &dflt, f->err);
    return dflt;
}

static const char *opt_string(struct fields *f, const char *key, const char *dflt)
{
    saw(f, key);
    if (f->rc == 0)
        f->rc = json_opt_string(f->o, key, &dflt, f->err);
    return dflt;
}

/* Returns the array `key`. Returns NULL if it is absent or null, and after an error. */
static const struct json *opt_array(struct fields *f, const char *key)
{
    const struct json *list = NULL;
    saw(f, key);
    if (f->rc == 0)
        f->rc = json_opt_array(f->o, key, &list, f->err);
    return list;
}

static bool is_null(const struct fields *f, const char *key)
{
    return json_kind(json_member(f->o, key)) == JSON_KIND_NULL;
}

/* Sets the error, unless there is one already. */
__attribute__((format(printf, 3, 4))) static void fail(struct fields *f, int code,
                                                       const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (f->rc == 0)
        f->rc = err_setv(f->err, code, fmt, ap);
    va_end(ap);
}

static void refuse(struct fields *f, const char *key, const char *why)
{
    fail(f, ERR_UNSUPPORTED, "'%s': %s", key, why);
}

/* Checks a field that published files have: transformers' default would be another model. */
static void must_have(struct fields *f, const char *key)
{
    if (is_null(f, key))
        refuse(f, key, "is missing");
}

/* Checks a switch that struct model_config cannot express: it must be absent or have this value. */
static void must_be(struct fields *f, const char *key, bool wanted)
{
    if (opt_bool(f, key, wanted) != wanted)
        refuse(f, key, wanted ? "false is not supported" : "true is not supported");
}

static void must_be_int(struct fields *f, const char *key, int32_t wanted)
{
    if (opt_int(f, key, INT32_MIN, INT32_MAX, wanted) != wanted)
        fail(f, ERR_UNSUPPORTED, "'%s': only %d is supported", key, wanted);
}

/* Checks a word; dflt: its value if it is absent. */
static void must_be_word(struct fields *f, const char *key, const char *dflt,
                         const char *wanted)
{
    if (strcmp(opt_string(f, key, dflt), wanted) != 0)
        fail(f, ERR_UNSUPPORTED, "'%s': only %s is supported", key, wanted);
}

/* Checks a factor that struct model_config cannot express. */
static void must_be_real(struct fields *f, const char *key, double wanted)
{
    if (opt_real(f, key, wanted) != wanted)
        fail(f, ERR_UNSUPPORTED, "'%s': only %g is supported", key, wanted);
}

/* --- parts that families share ------------------------------------------------------------ */

/* Reads a size that published gemma3 files may leave out, because it is transformers' default. */
static int32_t need_size(struct fields *f, const struct model_config *c, const char *key,
                         int32_t max, int32_t of_gemma3)
{
    return c->family == FAMILY_GEMMA3 ? opt_int(f, key, 1, max, of_gemma3)
                                      : need_int(f, key, 1, max);
}

static void read_sizes(struct fields *f, struct model_config *c, const char *ffn_key)
{
    c->n_embd = need_int(f, "hidden_size", 1, MAX_WIDTH);
    c->n_layers = need_int(f, "num_hidden_layers", 1, MAX_LAYERS);
    c->n_heads = need_size(f, c, "num_attention_heads", MAX_WIDTH, 8);
    c->vocab_size = need_size(f, c, "vocab_size", MAX_VOCAB, 262208);
    c->n_kv_heads = c->n_heads;
    if (ffn_key != NULL)
        c->n_ffn = need_int(f, ffn_key, 1, MAX_WIDTH);
}

/* Reads the heads of gemma4's layers with a window, and those of its other layers, which newer
 * files give for each layer (check_layer_heads). */
static void read_two_heads(struct fields *f, struct model_config *c)
{
    const struct json *layers = NULL;
    saw(f, "per_layer_config");
    if (f->rc == 0)
        f->rc = json_opt_object(f->o, "per_layer_config", &layers, f->err);
    struct json_iter it = json_begin(layers);
    bool per_layer = layers != NULL && json_next(&it);
    c->v_is_k = opt_bool(f, "attention_k_eq_v", false);
    c->local_d_head = need_int(f, "head_dim", 1, MAX_WIDTH);
    int64_t d = opt_int(f, "global_head_dim", 1, MAX_WIDTH, 512);
    int32_t of_global = opt_int(f, "num_global_key_value_heads", 1, MAX_WIDTH,
                                c->n_kv_heads);
    int64_t n = c->v_is_k ? of_global : c->n_kv_heads;
    if (f->rc == 0 && per_layer &&
        ((f->rc = json_opt_int(it.value, "head_dim", 1, MAX_WIDTH, &d, f->err)) != 0 ||
         (f->rc = json_opt_int(it.value, "num_key_value_heads", 1, MAX_WIDTH, &n,
                               f->err)) != 0))
        err_wrap(f->err, "'per_layer_config'");
    c->d_head = (int32_t)d;
    c->local_kv_heads = c->n_kv_heads;
    c->n_kv_heads = (int32_t)n;
}

/* Reads the sizes of latent attention, as which K and V of all heads are one head. */
static void read_latent(struct fields *f, struct model_config *c)
{
    static const char *const derived[] = {"head_dim", "qk_head_dim", "num_key_value_heads"};
    for (int i = 0; i < 3; i++)
        saw(f, derived[i]);
    c->n_kv_heads = 1;
    c->d_rope = need_int(f, "qk_rope_head_dim", 2, MAX_WIDTH);
    c->d_head = need_int(f, "kv_lora_rank", 1, MAX_WIDTH) + c->d_rope;
    c->latent.d_nope = need_int(f, "qk_nope_head_dim", 1, MAX_WIDTH);
    c->latent.d_v = need_int(f, "v_head_dim", 1, MAX_WIDTH);
    if (json_member(f->o, "q_lora_rank") == NULL)
        refuse(f, "q_lora_rank", "is missing");
    c->latent.q_rank = opt_int(f, "q_lora_rank", 0, MAX_WIDTH, 0);
    must_be(f, "rope_interleave", true);
    if (f->rc == 0 && ((int64_t)c->n_heads * (c->latent.d_nope + c->d_rope) > MAX_WIDTH ||
                       (int64_t)c->n_heads * c->latent.d_v > MAX_WIDTH))
        fail(f, ERR_FORMAT, "the heads of all queries are wider than %d", MAX_WIDTH);
}

/* Reads d_head: the file's value if there is one, else the width divided by the number of heads. */
static void read_head_dim(struct fields *f, struct model_config *c)
{
    if (family_is_latent(c->family)) {
        read_latent(f, c);
        return;
    }
    if (c->family == FAMILY_GEMMA4) {
        read_two_heads(f, c);
        return;
    }
    c->d_head = opt_int(f, "head_dim", 1, MAX_WIDTH, c->family == FAMILY_GEMMA3 ? 256 : 0);
    if (f->rc != 0 || c->d_head != 0)
        return;
    if (c->n_embd % c->n_heads != 0)
        fail(f, ERR_FORMAT,
             "'hidden_size' is %d, which is not a multiple of %d 'num_attention_heads'",
             c->n_embd, c->n_heads);
    c->d_head = c->n_embd / c->n_heads;
}

static const struct {
    const char *name;
    enum act_kind act;
} activations[] = {
    {"silu", ACT_SILU},
    {"swish", ACT_SILU},
    {"gelu", ACT_GELU},
    {"gelu_new", ACT_GELU_TANH},
    {"gelu_pytorch_tanh", ACT_GELU_TANH},
    {"relu", ACT_RELU},
};

/* Checks the activation. It must be the family's own: no checkpoint of a family has another. */
static void check_act(struct fields *f, const struct model_config *c, const char *key,
                      const char *dflt)
{
    const char *name = opt_string(f, key, dflt);
    for (size_t i = 0; f->rc == 0 && i < sizeof activations / sizeof activations[0]; i++)
        if (strcmp(activations[i].name, name) == 0 && activations[i].act == c->act)
            return;
    fail(f, ERR_UNSUPPORTED, "'%s': activation '%s' is not supported in %s", key, name,
         family_name(c->family));
}

/* A scaling as a folder writes it. */
struct written_scaling {
    enum { SCALING_NONE, SCALING_LLAMA3, SCALING_LINEAR, SCALING_YARN } kind;
    double factor;
    double low, high; /* llama3 */
    int32_t original_ctx;
    struct yarn yarn;
    double of_all; /* yarn: mscale_all_dim; counts for scores of latent attention only */
};

static void read_llama3_scaling(struct fields *f, struct written_scaling *s)
{
    s->kind = SCALING_LLAMA3;
    s->original_ctx = need_int(f, "original_max_position_embeddings", 1, MAX_CTX);
    s->factor = need_real(f, "factor");
    s->low = need_real(f, "low_freq_factor");
    s->high = need_real(f, "high_freq_factor");
    if (!(s->factor >= 1 && s->low > 0 && s->high > s->low))
        fail(f, ERR_FORMAT, "needs factor >= 1 and 0 < low_freq_factor < high_freq_factor");
}

static void read_linear_scaling(struct fields *f, struct written_scaling *s)
{
    s->kind = SCALING_LINEAR;
    s->factor = need_real(f, "factor");
    if (!(s->factor >= 1 && s->factor <= 1e6))
        fail(f, ERR_FORMAT, "'factor' must be a number from 1 to 1000000");
}

static void read_yarn_scaling(struct fields *f, struct written_scaling *s, float *magnitude)
{
    struct yarn *y = &s->yarn;
    s->kind = SCALING_YARN;
    y->original_ctx = need_int(f, "original_max_position_embeddings", 1, MAX_CTX);
    y->factor = need_real(f, "factor");
    y->beta_fast = opt_real(f, "beta_fast", 32);
    y->beta_slow = opt_real(f, "beta_slow", 1);
    y->whole = opt_bool(f, "truncate", true);
    double scale = opt_real(f, "mscale", 0), of_all = opt_real(f, "mscale_all_dim", 0);
    s->of_all = of_all;
    double dflt = config_yarn_magnitude(y->factor, 1);
    if (scale != 0 && of_all != 0)
        dflt = config_yarn_magnitude(y->factor, scale) /
               config_yarn_magnitude(y->factor, of_all);
    *magnitude = (float)opt_real(f, "attention_factor", dflt);
    if (f->rc == 0 && !(y->factor >= 1 && y->factor <= 1e6 && y->beta_slow > 0 &&
                        y->beta_fast >= y->beta_slow && *magnitude > 0))
        fail(f, ERR_FORMAT,
             "needs factor >= 1, beta_fast >= beta_slow > 0 and a positive "
             "attention_factor");
}

/* Returns the divisor of frequency i by Llama 3.1's scaling, which stretches long wavelengths by
 * `factor`, keeps short ones, and blends in between.  Every step is rounded to f32, in the order of
 * the converter that writes GGUF files: a folder and its file then have the same factors. */
static float llama3_factor(const struct written_scaling *s, double theta, int i, int d_rope)
{
    static const float two_pi = 6.283185307179586f;
    const float power = (float)pow((double)(float)theta,
                                   (double)((float)(2 * i) / (float)d_rope));
    const float freq = 1.0f / power;
    const float wave = (1.0f / freq) * two_pi;
    if (wave < (float)(s->original_ctx / s->high))
        return 1;
    if (wave > (float)(s->original_ctx / s->low))
        return (float)s->factor;
    float turns = (1.0f / wave) * (float)s->original_ctx;
    float keep = (turns - (float)s->low) / (float)(s->high - s->low);
    return 1.0f / ((1.0f - keep) / (float)s->factor + keep);
}

/* Converts the scaling to factors. A factor of 1 is no scaling. */
static void make_factors(const struct written_scaling *s, struct model_config *c)
{
    if (s->kind == SCALING_NONE || (s->kind == SCALING_LINEAR && s->factor == 1))
        return;
    if (s->kind == SCALING_YARN) {
        config_yarn_factors(c, &s->yarn);
        return;
    }
    c->rope_scaling.kind = ROPE_SCALING_FACTORS;
    for (int i = 0; i < c->d_rope / 2 && i < ROPE_MAX_FACTORS; i++)
        c->rope_scaling.factors[i] = s->kind == SCALING_LINEAR
                                         ? (float)s->factor
                                         : llama3_factor(s, c->rope_theta, i, c->d_rope);
}

/* Reads `key`, one divisor for each frequency. */
static void read_factor_list(struct fields *f, const char *key, float *out)
{
    const struct json *list = NULL;
    saw(f, key);
    if (f->rc == 0)
        f->rc = json_get_array(f->o, key, &list, f->err);
    if (json_count(list) > ROPE_MAX_FACTORS)
        fail(f, ERR_FORMAT, "'%s' has more than %d entries", key, ROPE_MAX_FACTORS);
    for (size_t i = 0; f->rc == 0 && i < json_count(list); i++) {
        double x;
        if (!json_real_of(json_at(list, i), &x) ||
            !(x >= 1e-3 && (x <= 1e6 || (float)x == ROPE_STILL)))
            fail(f, ERR_FORMAT, "'%s' must be numbers from 0.001 to 1000000", key);
        else
            out[i] = (float)x;
    }
}

/* Reads LongRoPE, which has factors for contexts up to the original one and for longer ones. */
static void read_longrope(struct fields *f, struct model_config *c, int32_t original_ctx)
{
    c->rope_scaling.kind = ROPE_SCALING_FACTORS;
    read_factor_list(f, "long_factor", c->rope_scaling.factors);
    read_factor_list(f, "short_factor", c->rope_scaling.short_factors);
    int32_t ctx = opt_int(f, "original_max_position_embeddings", 1, MAX_CTX, original_ctx);
    c->rope_scaling.short_ctx = ctx;
    double factor = opt_real(f, "factor", ctx > 0 ? (double)c->max_ctx / ctx : 1);
    double magnitude = factor > 1 && ctx > 1 ? sqrt(1 + log(factor) / log(ctx)) : 1;
    c->rope_magnitude = (float)opt_real(f, "attention_factor", magnitude);
    if (ctx == 0 || !(c->rope_magnitude > 0))
        fail(f, ERR_FORMAT,
             "needs 'original_max_position_embeddings' and a positive attention_factor");
}

/* Reads a scaling of kind "factors", which only config_write writes, for GGUF models. */
static void read_scaling_factors(struct fields *f, struct model_config *c)
{
    c->rope_scaling.kind = ROPE_SCALING_FACTORS;
    read_factor_list(f, "factors", c->rope_scaling.factors);
    c->rope_magnitude = (float)opt_real(f, "attention_factor", 1);
    c->rope_scaling.short_ctx = opt_int(f, "short_context", 0, MAX_CTX, 0);
    if (c->rope_scaling.short_ctx > 0)
        read_factor_list(f, "short_factors", c->rope_scaling.short_factors);
}

/* Reads the rotations of gemma4's layers without a window: all frequencies of a head but the first
 * ones, the given share of them, stand still. */
static void read_proportional(struct fields *f, struct model_config *c, double fraction)
{
    int32_t half = c->d_head / 2, n = (int32_t)(fraction * c->d_head / 2);
    if (opt_real(f, "factor", 1) != 1)
        refuse(f, "factor", "other than 1 is not supported here");
    if (n >= half)
        return;
    c->rope_scaling.kind = ROPE_SCALING_FACTORS;
    for (int i = 0; i < half && i < ROPE_MAX_FACTORS; i++)
        c->rope_scaling.factors[i] = i < n ? 1 : ROPE_STILL;
}

/* Reads the object `key`: "rope_scaling", or in newer files "rope_parameters", which also holds
 * rope_theta and partial_rotary_factor. */
static void read_rope_object(struct fields *f, struct model_config *c, const char *key,
                             double *fraction, struct written_scaling *written)
{
    const struct json *o = NULL;
    saw(f, key);
    if (f->rc == 0)
        f->rc = json_opt_object(f->o, key, &o, f->err);
    if (f->rc != 0 || o == NULL)
        return;
    struct fields in = {.o = o, .err = f->err};
    const char *type = opt_string(&in, "rope_type", opt_string(&in, "type", "default"));
    c->rope_theta = opt_real(&in, "rope_theta", c->rope_theta);
    *fraction = opt_real(&in, "partial_rotary_factor", *fraction);
    /* The field has no effect without scaling. */
    saw(&in, "original_max_position_embeddings");
    if (c->family == FAMILY_MINISTRAL3) {
        saw(&in, "max_position_embeddings");
        c->query_growth = (float)need_real(&in, "llama_4_scaling_beta");
        c->query_ctx = need_int(&in, "original_max_position_embeddings", 1, MAX_CTX);
    }
    if (in.rc == 0 && strcmp(type, "llama3") == 0)
        read_llama3_scaling(&in, written);
    else if (in.rc == 0 && strcmp(type, "linear") == 0)
        read_linear_scaling(&in, written);
    else if (in.rc == 0 && strcmp(type, "yarn") == 0)
        read_yarn_scaling(&in, written, &c->rope_magnitude);
    else if (in.rc == 0 && strcmp(type, "longrope") == 0)
        read_longrope(&in, c,
                      opt_int(f, "original_max_position_embeddings", 1, MAX_CTX, 0));
    else if (in.rc == 0 && strcmp(type, "factors") == 0)
        read_scaling_factors(&in, c);
    else if (in.rc == 0 && strcmp(type, "proportional") == 0 &&
             c->family == FAMILY_GEMMA4) {
        read_proportional(&in, c, *fraction);
        *fraction = 1;
    } else if (in.rc == 0 && strcmp(type, "default") != 0)
        in.rc = err_set(in.err, ERR_UNSUPPORTED,
                        "RoPE scaling of type '%s' is not supported", type);
    if (c->attn_gated) { /* qwen: all coordinates of a token of text are its position */
        saw(&in, "mrope_section");
        saw(&in, "mrope_interleaved");
    }
    if (in.rc == 0)
        in.rc = config_fields_check(o, &in.read, c->family, in.err);
    if (in.rc != 0) {
        f->rc = in.rc;
        err_wrap(f->err, "'%s'", key);
    }
}

/* Reads the rotations of layers without and with a window: two objects in "rope_parameters".
 * Returns whether the file has them. */
static bool read_rope_kinds(struct fields *f, struct model_config *c, double *fraction,
                            struct written_scaling *written)
{
    const struct json *o = NULL;
    if (f->rc == 0)
        f->rc = json_opt_object(f->o, "rope_parameters", &o, f->err);
    if (f->rc != 0 || json_member(o, "full_attention") == NULL)
        return false;
    struct fields in = {.o = o, .err = f->err};
    struct model_config local = *c;
    struct written_scaling none = {0};
    local.rope_theta = 10000;
    saw(f, "rope_parameters");
    read_rope_object(&in, c, "full_attention", fraction, written);
    read_rope_object(&in, &local, "sliding_attention", fraction, &none);
    if (none.kind != SCALING_NONE || local.rope_scaling.kind != ROPE_SCALING_NONE)
        refuse(&in, "sliding_attention", "scaled rotations are not supported here");
    if (in.rc == 0)
        in.rc = config_fields_check(o, &in.read, c->family, in.err);
    if (in.rc != 0) {
        f->rc = in.rc;
        err_wrap(f->err, "'rope_parameters'");
    }
    c->rope_local_theta = local.rope_theta;
    return true;
}

/* Returns whether a family's heads may be rotated in part.  transformers reads
 * partial_rotary_factor only in these families. In other families it ignores the field and rotates
 * whole heads, or it fails. */
static bool has_partial_rotary(enum model_family family)
{
    return family == FAMILY_PHI || family == FAMILY_PHI3 || family == FAMILY_GLM4_MOE ||
           (family_is_hybrid(family) && family != FAMILY_LFM2 &&
            family != FAMILY_GRANITE_HYBRID);
}

/* Reads the fields of rotary positions. rope_fraction: share of a head that is rotated if the file
 * does not say. */
static void read_rope(struct fields *f, struct model_config *c, double rope_fraction)
{
    bool far = c->family == FAMILY_GEMMA3 || c->family == FAMILY_LFM2;
    c->rope_theta = opt_real(f, "rope_theta", far ? 1e6 : 10000);
    double fraction = opt_real(f, "partial_rotary_factor", rope_fraction);
    if (!is_null(f, "rope_scaling") && !is_null(f, "rope_parameters"))
        refuse(f, "rope_scaling", "stands beside 'rope_parameters': remove one of them");
    struct written_scaling written = {0};
    read_rope_object(f, c, "rope_scaling", &fraction, &written);
    bool kinds = c->family == FAMILY_GEMMA3 || c->family == FAMILY_OLMO3 ||
                 c->family == FAMILY_GEMMA4;
    if (!kinds || !read_rope_kinds(f, c, &fraction, &written))
        read_rope_object(f, c, "rope_parameters", &fraction, &written);
    if (f->rc != 0)
        return;
    if (!(isfinite(c->rope_theta) && c->rope_theta > 0))
        fail(f, ERR_FORMAT, "'rope_theta' must be positive");
    else if (fraction != rope_fraction && !has_partial_rotary(c->family))
        fail(f, ERR_UNSUPPORTED,
             "'partial_rotary_factor' is %g, but %s models rotate whole heads; "
             "if this one does, remove the field",
             fraction, family_name(c->family));
    else if (!(fraction > 0 && fraction <= 1))
        fail(f, ERR_FORMAT, "'partial_rotary_factor' must lie in (0, 1]");
    else if (!config_is_latent(c))
        c->d_rope = (int32_t)(c->d_head * fraction);
    if (f->rc == 0)
        make_factors(&written, c);
    if (f->rc == 0 && config_is_latent(c))
        c->attn_scale = config_latent_scale(c, written.yarn.factor, written.of_all);
    for (int i = 0;
         f->rc == 0 && c->rope_scaling.kind == ROPE_SCALING_FACTORS && i < c->d_rope / 2;
         i++)
        if (i >= ROPE_MAX_FACTORS || !(c->rope_scaling.factors[i] > 0) ||
            (c->rope_scaling.short_ctx > 0 && !(c->rope_scaling.short_factors[i] > 0)))
            fail(f, ERR_FORMAT, "'factors' has fewer entries than %d", c->d_rope / 2);
}

static void read_norm_eps(struct fields *f, struct model_config *c, const char *key,
                          double dflt)
{
    double eps = opt_real(f, key, dflt);
    if (!((float)eps > 0 && eps < 1))
        fail(f, ERR_FORMAT, "'%s' must lie between 0 and 1", key);
    c->norm_eps = (float)eps;
}

/* Reads the fields that llama, mistral, qwen2, qwen3, phi3 and gemma share. */
static void read_llama_like(struct fields *f, struct model_config *c)
{
    /* These are the defaults of transformers' config classes. */
    bool large = c->family == FAMILY_PHI3 || c->family == FAMILY_MIXTRAL ||
                 c->family == FAMILY_GPT_OSS || c->family == FAMILY_OLMO2 ||
                 c->family == FAMILY_OLMO3 || c->family == FAMILY_COHERE2 ||
                 c->family == FAMILY_MINISTRAL3 || c->family == FAMILY_GLM4_MOE ||
                 c->family == FAMILY_GLM4_LITE || c->family == FAMILY_LFM2;
    double eps = large ? 1e-5 : 1e-6;
    bool has_mlp = c->family != FAMILY_QWEN3_5_MOE && c->family != FAMILY_QWEN3_NEXT &&
                   c->family != FAMILY_LFM2;
    read_sizes(f, c, has_mlp ? "intermediate_size" : NULL);
    c->n_kv_heads = opt_int(f, "num_key_value_heads", 1, MAX_WIDTH,
                            c->family == FAMILY_GEMMA3 ? 4 : c->n_heads);
    c->max_ctx = need_size(f, c, "max_position_embeddings", MAX_CTX, 131072);
    read_head_dim(f, c);
    read_norm_eps(f, c,
                  c->family == FAMILY_LFM2 ? "norm_eps"
                  : c->norm < NORM_LAYER   ? "rms_norm_eps"
                                           : "layer_norm_eps",
                  eps);
    read_rope(f, c, c->attn_gated ? 0.25 : c->family == FAMILY_GLM4_MOE ? 0.5 : 1.0);
    if (c->family == FAMILY_GLM4_MOE)
        c->qkv_bias = opt_bool(f, "attention_bias", false);
    else
        must_be(f, "attention_bias", c->attn_out_bias);
    must_be(f, "mlp_bias", false);
}

/* Sets the window of every layer. */
static void all_windowed(struct model_config *c)
{
    c->windowed = layer_set_run(0, c->sliding_window > 0 ? c->n_layers : 0);
}

/* Reads "layer_types" of newer files, the kind of each layer. */
static void read_layer_types(struct fields *f, struct model_config *c)
{
    const struct json *list = opt_array(f, "layer_types");
    if (list == NULL)
        return;
    if (json_count(list) != (size_t)c->n_layers) {
        refuse(f, "layer_types", "must have one entry per layer");
        return;
    }
    c->windowed = c->recurrent = layer_set_run(0, 0);
    for (int32_t l = 0; l < c->n_layers; l++) {
        const char *s = json_string_of(json_at(list, (size_t)l), NULL);
        s = s != NULL ? s : "";
        bool sliding = strcmp(s, "sliding_attention") == 0;
        bool granite = c->family == FAMILY_GRANITE_HYBRID; /* older files name them so */
        bool recurrent = family_is_hybrid(c->family) &&
                         (strcmp(s, family_recurrent_type(c->family)) == 0 ||
                          (granite && strcmp(s, "mamba") == 0));
        if (recurrent)
            layer_set_add(&c->recurrent, l);
        else if (!sliding && strcmp(s, "full_attention") != 0 &&
                 !(granite && strcmp(s, "attention") == 0))
            refuse(f, "layer_types",
                   c->family == FAMILY_LFM2 ? "only full_attention and conv are supported"
                   : family_is_hybrid(c->family)
                       ? "only full_attention and linear_attention are supported"
                       : "only full_attention and sliding_attention are supported");
        else if (sliding && c->sliding_window == 0)
            refuse(f, "layer_types", "sliding_attention without a sliding window");
        else if (sliding)
            layer_set_add(&c->windowed, l);
    }
    if (f->rc == 0 && layer_set_is_empty(&c->windowed))
        c->sliding_window = 0;
}

/* --- the families ------------------------------------------------------------------------- */

static void read_llama(struct fields *f, struct model_config *c)
{
    read_llama_like(f, c);
    must_be(f, "rope_interleaved", false);
    check_act(f, c, "hidden_act", "silu");
    c->tie_word_embeddings = opt_bool(f, "tie_word_embeddings", false);
}

/* Returns the window. An absent key means transformers' default; null means no window. */
static int32_t read_window(struct fields *f)
{
    return opt_int(f, "sliding_window", 1, MAX_CTX,
                   json_member(f->o, "sliding_window") == NULL ? 4096 : 0);
}

static void read_mistral(struct fields *f, struct model_config *c)
{
    read_llama(f, c);
    c->sliding_window = read_window(f);
    all_windowed(c);
    must_have(f, "num_key_value_heads");
}

static void read_qwen(struct fields *f, struct model_config *c)
{
    read_llama(f, c);
    must_have(f, "num_key_value_heads");
    must_be(f, "use_mrope", false);
    if (opt_bool(f, "use_sliding_window", false)) {
        c->sliding_window = read_window(f);
        int first = opt_int(f, "max_window_layers", 0, MAX_LAYERS, 28);
        if (first >= c->n_layers && is_null(f, "layer_types"))
            c->sliding_window = 0;
        if (c->sliding_window > 0)
            c->windowed = layer_set_run(first, c->n_layers);
    }
    read_layer_types(f, c);
}

static void read_phi3(struct fields *f, struct model_config *c)
{
    read_llama(f, c);
    must_be(f, "lm_head_bias", false);
    must_be_int(f, "full_attn_mod", 1);
    must_be_int(f, "interpolate_factor", 1);
    c->sliding_window = opt_int(f, "sliding_window", 1, MAX_CTX, 0);
    all_windowed(c);
}

static void read_gemma(struct fields *f, struct model_config *c)
{
    if (c->family != FAMILY_GEMMA3 && is_null(f, "head_dim"))
        refuse(f, "head_dim", "is missing");
    read_llama_like(f, c);
    /* Early files have hidden_act "gelu" but mean the tanh form. So if hidden_activation is
     * present, only it counts. */
    check_act(f, c, is_null(f, "hidden_activation") ? "hidden_act" : "hidden_activation",
              "gelu_pytorch_tanh");
    c->tie_word_embeddings = opt_bool(f, "tie_word_embeddings", true);
    c->embed_scale = sqrtf((float)c->n_embd);
}

/* Reads the positive factor `key`. */
static float opt_factor(struct fields *f, const char *key, double dflt)
{
    double x = opt_real(f, key, dflt);
    if (!(isfinite(x) && x > 0 && (float)x > 0))
        fail(f, ERR_FORMAT, "'%s' must be a positive number", key);
    return (float)x;
}

/* Reads which layers have the window: those of "layer_types", else all but every n-th layer. n is
 * `apart` if the file does not say. */
static void read_spread_windows(struct fields *f, struct model_config *c, int apart)
{
    c->sliding_window = read_window(f);
    apart = opt_int(f, "sliding_window_pattern", 1, MAX_LAYERS,
                    opt_int(f, "_sliding_window_pattern", 1, MAX_LAYERS, apart));
    for (int l = 0; f->rc == 0 && c->sliding_window > 0 && l < c->n_layers; l++)
        if ((l + 1) % apart != 0)
            layer_set_add(&c->windowed, l);
    read_layer_types(f, c);
}

/* Reads the number whose root divides the scores of attention. */
static void read_query_scale(struct fields *f, struct model_config *c)
{
    double scalar = opt_real(f, "query_pre_attn_scalar", 256);
    if (!(isfinite(scalar) && scalar > 0))
        fail(f, ERR_FORMAT, "'query_pre_attn_scalar' must be positive");
    c->attn_scale = scalar == c->d_head ? 0 : (float)(1.0 / sqrt(scalar));
}

static void read_gemma3(struct fields *f, struct model_config *c)
{
    read_gemma(f, c);
    if (c->rope_local_theta == 0)
        c->rope_local_theta = opt_real(f, "rope_local_base_freq", 10000);
    if (!(isfinite(c->rope_local_theta) && c->rope_local_theta > 0))
        fail(f, ERR_FORMAT, "'rope_local_base_freq' must be positive");
    read_query_scale(f, c);
    c->both_ways = opt_bool(f, "use_bidirectional_attention", false);
    read_spread_windows(f, c, 6);
    /* Both transformers and llama.cpp halve the window that a file names. */
    if (c->both_ways && c->sliding_window > 0)
        c->sliding_window = c->sliding_window / 2 + 1;
}

/* Reads a cap. An absent key means transformers' default; null means no cap. */
static float read_cap(struct fields *f, const char *key, double dflt)
{
    double cap = opt_real(f, key, json_member(f->o, key) == NULL ? dflt : 0);
    if (!(isfinite(cap) && cap >= 0))
        fail(f, ERR_FORMAT, "'%s' must not be negative", key);
    return (float)cap;
}

/* Checks that layers without a window, and they alone, have the heads of "per_layer_config". */
static void check_layer_heads(struct fields *f, const struct model_config *c)
{
    const struct json *layers = json_member(f->o, "per_layer_config");
    if (json_kind(layers) != JSON_KIND_OBJECT || c->local_d_head == 0)
        return;
    for (int l = 0; f->rc == 0 && l < c->n_layers; l++) {
        char key[16];
        int64_t d = c->local_d_head, n = c->local_kv_heads;
        snprintf(key, sizeof key, "%d", l);
        const struct json *one = json_member(layers, key);
        (void)json_int_of(json_member(one, "head_dim"), &d);
        (void)json_int_of(json_member(one, "num_key_value_heads"), &n);
        if (d != config_d_head(c, l) || n != config_kv_heads(c, l))
            refuse(f, "per_layer_config",
                   "heads that differ from those of other layers of the same kind are not "
                   "supported");
    }
}

/* Reads the experts that gemma4's layers may have beside their MLPs. */
static void read_experts_beside(struct fields *f, struct model_config *c)
{
    c->dense_beside = opt_bool(f, "enable_moe_block", false);
    saw(f, "num_experts");
    saw(f, "top_k_experts");
    saw(f, "moe_intermediate_size");
    if (!c->dense_beside)
        return;
    c->n_dense_ffn = c->n_ffn;
    c->n_ffn = need_int(f, "moe_intermediate_size", 1, MAX_WIDTH);
    c->n_experts = need_int(f, "num_experts", 1, MODEL_MAX_EXPERTS);
    c->n_experts_used = need_int(f, "top_k_experts", 1, MODEL_MAX_EXPERTS_USED);
    if (c->n_experts_used > c->n_experts)
        refuse(f, "top_k_experts", "is more than the experts");
    if (c->wide_reading)
        refuse(f, "use_double_wide_mlp", "is not supported beside experts");
}

static void read_gemma4(struct fields *f, struct model_config *c)
{
    if (is_null(f, "rope_parameters") && is_null(f, "rope_scaling"))
        refuse(f, "rope_parameters", "is missing");
    read_gemma(f, c);
    c->rope_local_theta = c->rope_local_theta > 0
                              ? c->rope_local_theta
                              : (double)opt_factor(f, "rope_local_base_freq", 10000);
    c->logit_cap = read_cap(f, "final_logit_softcapping", 0);
    must_be_word(f, "use_bidirectional_attention", "vision", "vision");
    read_spread_windows(f, c, 6);
    if (layer_set_has(&c->windowed, c->n_layers - 1))
        refuse(f, "layer_types", "the last layer must see all tokens");
    check_layer_heads(f, c);
    bool other = c->local_d_head != c->d_head || c->local_kv_heads != c->n_kv_heads;
    if (!other || c->sliding_window == 0)
        c->local_d_head = c->local_kv_heads = 0;
    c->n_reading = opt_int(f, "num_kv_shared_layers", 0, c->n_layers - 1, 0);
    for (int l = config_n_keeping(c); f->rc == 0 && l < c->n_layers; l++)
        if (layer_set_has(&c->windowed, config_kv_layer(c, l)) !=
            layer_set_has(&c->windowed, l))
            refuse(f, "num_kv_shared_layers", "leaves layers without K and V to read");
    c->wide_reading = opt_bool(f, "use_double_wide_mlp", false) && c->n_reading > 0;
    read_experts_beside(f, c);
    c->n_layer_embd = opt_int(f, "hidden_size_per_layer_input", 0, MAX_WIDTH,
                              json_member(f->o, "hidden_size_per_layer_input") == NULL ? 256
                                                                                       : 0);
    saw(f, "vocab_size_per_layer_input");
    if (c->n_layer_embd > 0)
        must_be_int(f, "vocab_size_per_layer_input", c->vocab_size);
    if (c->n_layer_embd % 16 != 0)
        refuse(f, "hidden_size_per_layer_input", "must be a multiple of 16");
}

static void read_gemma2(struct fields *f, struct model_config *c)
{
    read_gemma(f, c);
    read_query_scale(f, c);
    c->attn_cap = read_cap(f, "attn_logit_softcapping", 50);
    c->logit_cap = read_cap(f, "final_logit_softcapping", 30);
    read_spread_windows(f, c, 2);
}

/* Layers with a window rotate without the scaling of the others. */
static void read_olmo3(struct fields *f, struct model_config *c)
{
    read_llama(f, c);
    double local = opt_real(f, "rope_local_base_freq", c->rope_theta);
    bool scaled = c->rope_scaling.kind != ROPE_SCALING_NONE;
    if (c->rope_local_theta == 0 && (scaled || local != c->rope_theta))
        c->rope_local_theta = local;
    else if (c->rope_local_theta == c->rope_theta && !scaled)
        c->rope_local_theta = 0;
    read_spread_windows(f, c, 4);
}

/* Reads a model whose layers with a window alone rotate. */
static void read_cohere2(struct fields *f, struct model_config *c)
{
    read_llama_like(f, c);
    if (c->rope_scaling.kind != ROPE_SCALING_NONE)
        refuse(f, "rope_scaling", "is not supported in this family");
    c->rope_local_theta = c->rope_theta;
    check_act(f, c, "hidden_act", "silu");
    c->tie_word_embeddings = opt_bool(f, "tie_word_embeddings", true);
    c->logit_scale = opt_factor(f, "logit_scale", 0.0625);
    read_spread_windows(f, c, opt_int(f, "layer_switch", 1, MAX_LAYERS, 4));
    /* older files say of every model what the family fixes */
    must_be(f, "use_embedding_sharing", true);
    must_be(f, "use_gated_activation", true);
    must_be(f, "use_parallel_block", true);
    must_be(f, "use_qk_norm", false);
    must_be_real(f, "rotary_pct", 1);
}

static void read_ministral3(struct fields *f, struct model_config *c)
{
    /* Transformers stretches rotations 16 times if the file does not say how. */
    if (is_null(f, "rope_parameters") && is_null(f, "rope_scaling"))
        refuse(f, "rope_parameters", "is missing");
    read_llama(f, c);
    if (!(c->query_growth >= 0 && c->query_growth < 100))
        fail(f, ERR_FORMAT, "'llama_4_scaling_beta' must be from 0 to 100");
    c->sliding_window = opt_int(f, "sliding_window", 1, MAX_CTX, 0);
    all_windowed(c);
}

static void read_granite(struct fields *f, struct model_config *c)
{
    read_llama(f, c);
    c->embed_scale = opt_factor(f, "embedding_multiplier", 1);
    c->residual_scale = opt_factor(f, "residual_multiplier", 1);
    c->attn_scale = opt_factor(f, "attention_multiplier", 1);
    c->logit_scale = (float)(1.0 / (double)opt_factor(f, "logits_scaling", 1));
}

/* Reads the number of experts: `key`, or the newer `other`. */
static void read_experts(struct fields *f, struct model_config *c, const char *key,
                         const char *other)
{
    c->n_experts = is_null(f, key) ? need_int(f, other, 1, MODEL_MAX_EXPERTS)
                                   : need_int(f, key, 1, MODEL_MAX_EXPERTS);
    c->n_experts_used = need_int(f, "num_experts_per_tok", 1, MODEL_MAX_EXPERTS_USED);
    if (c->n_experts_used > c->n_experts)
        fail(f, ERR_FORMAT, "'num_experts_per_tok' is %d, and the model has %d experts",
             c->n_experts_used, c->n_experts);
}

/* Reads the experts that every layer has. normed: the default of norm_topk_prob. */
static void read_experts_everywhere(struct fields *f, struct model_config *c, bool normed)
{
    c->n_ffn = need_int(f, "moe_intermediate_size", 1, MAX_WIDTH);
    read_experts(f, c, "num_experts", "num_local_experts");
    c->experts_normed = opt_bool(f, "norm_topk_prob", normed);
    must_be_int(f, "decoder_sparse_step", 1);
    saw(f, "mlp_only_layers");
    if (json_count(json_member(f->o, "mlp_only_layers")) > 0)
        refuse(f, "mlp_only_layers", "layers without experts are not supported");
}

static void read_qwen3_moe(struct fields *f, struct model_config *c)
{
    read_qwen(f, c);
    read_experts_everywhere(f, c, false);
}

/* Reads which layers are recurrent. */
static void read_recurrent_types(struct fields *f, struct model_config *c)
{
    read_layer_types(f, c);
    if (layer_set_last_out(&c->recurrent, c->n_layers) < 0)
        refuse(f, "layer_types", "a model without a layer of attention is not supported");
}

/* Checks the sizes of recurrent layers, which the file calls n_k, n_v, d_k and d_v. */
static void check_recurrence(struct fields *f, const struct recurrence *r, const char *n_k,
                             const char *n_v, const char *d_k, const char *d_v)
{
    if (f->rc != 0)
        return;
    if (r->n_v % r->n_k != 0)
        fail(f, ERR_UNSUPPORTED, "%d '%s' with %d '%s': a multiple of these is supported",
             r->n_v, n_v, r->n_k, n_k);
    else if (r->d_k % 16 != 0 || r->d_v % 16 != 0 || r->d_k > DELTA_MAX_WIDTH ||
             r->d_v > DELTA_MAX_WIDTH)
        fail(f, ERR_UNSUPPORTED,
             "'%s' %d and '%s' %d: multiples of 16 up to %d are supported", d_k, r->d_k,
             d_v, r->d_v, DELTA_MAX_WIDTH);
    else if ((int64_t)r->n_k * r->d_k > MAX_WIDTH || (int64_t)r->n_v * r->d_v > MAX_WIDTH)
        fail(f, ERR_FORMAT, "the heads of 'linear_attention' are wider than %d", MAX_WIDTH);
}

/* Reads the sizes of recurrent layers, and which layers these are. */
static void read_recurrence(struct fields *f, struct model_config *c)
{
    struct recurrence *r = &c->recurrence;
    r->n_k = need_int(f, "linear_num_key_heads", 1, MAX_WIDTH);
    r->n_v = need_int(f, "linear_num_value_heads", 1, MAX_WIDTH);
    r->d_k = need_int(f, "linear_key_head_dim", 1, MAX_WIDTH);
    r->d_v = need_int(f, "linear_value_head_dim", 1, MAX_WIDTH);
    r->n_conv = opt_int(f, "linear_conv_kernel_dim", 2, DELTA_MAX_CONV, 4);
    r->tiled = opt_bool(f, "hcache_tiled_heads",
                        false); /* of a GGUF file that was packed */
    int apart = opt_int(f, "full_attention_interval", 1, MAX_LAYERS, 4);
    for (int l = 0; l < c->n_layers; l++)
        if ((l + 1) % apart != 0)
            layer_set_add(&c->recurrent, l);
    read_recurrent_types(f, c);
    check_recurrence(f, r, "linear_num_key_heads", "linear_num_value_heads",
                     "linear_key_head_dim", "linear_value_head_dim");
}

/* Reads a model whose layers are recurrent or have gated attention. */
static void read_qwen3_5(struct fields *f, struct model_config *c)
{
    must_have(f, "head_dim");
    must_have(f, "num_key_value_heads");
    read_llama(f, c);
    must_be(f, "attn_output_gate", true);
    must_be_word(f, "mamba_ssm_dtype", "float32", "float32");
    read_recurrence(f, c);
}

/* The same with experts, one of which every token uses. */
static void read_qwen3_next(struct fields *f, struct model_config *c)
{
    saw(f, "intermediate_size");
    read_qwen3_5(f, c);
    read_experts_everywhere(f, c, true);
    c->n_shared_ffn = need_int(f, "shared_expert_intermediate_size", 1, MAX_WIDTH);
}

/* Reads the width of LFM2's MLP, which files may state before it is made smaller. */
static int32_t read_lfm2_width(struct fields *f)
{
    bool old = !is_null(f, "block_ff_dim");
    int32_t n = need_int(f, old ? "block_ff_dim" : "intermediate_size", 1, MAX_WIDTH);
    int32_t unit = opt_int(f, "block_multiple_of", 1, MAX_WIDTH, 256);
    double factor = opt_real(f, "block_ffn_dim_multiplier", 1);
    saw(f, "intermediate_size");
    if (!opt_bool(f, "block_auto_adjust_ff_dim", true) || f->rc != 0)
        return n;
    double width = floor(factor * (2 * n / 3));
    if (!(width >= 1 && width <= MAX_WIDTH - unit))
        refuse(f, "block_ffn_dim_multiplier", "makes an MLP of no supported width");
    return f->rc == 0 ? (int32_t)round_up((uint64_t)width, (uint64_t)unit) : n;
}

/* Reads LFM2, whose recurrent layers are short convolutions. full_attn_idxs lists the layers with
 * attention; layer_types, if present, replaces it. One of the two must be there. */
static void read_lfm2(struct fields *f, struct model_config *c)
{
    struct layer_set attention = {{0}};
    int64_t l = 0;
    must_have(f, "num_key_value_heads");
    read_llama_like(f, c);
    check_act(f, c, "hidden_act", "silu");
    c->n_ffn = read_lfm2_width(f);
    c->tie_word_embeddings = opt_bool(f, "tie_embedding",
                                      opt_bool(f, "tie_word_embeddings", true));
    must_be(f, "conv_bias", false);
    c->recurrence = config_short_conv(c->n_embd,
                                      opt_int(f, "conv_L_cache", 2, DELTA_MAX_CONV, 3));
    if (c->n_embd % 16 != 0)
        refuse(f, "hidden_size", "only multiples of 16 are supported");
    const struct json *list = opt_array(f, "full_attn_idxs");
    if (list == NULL && is_null(f, "layer_types"))
        refuse(f, "layer_types", "is missing");
    for (size_t i = 0; f->rc == 0 && i < json_count(list); i++) {
        if (!json_int_of(json_at(list, i), &l) || l < 0 || l >= c->n_layers)
            refuse(f, "full_attn_idxs", "must be numbers of layers");
        layer_set_add(&attention, (int)l);
    }
    for (int i = 0; i < c->n_layers; i++)
        if (!layer_set_has(&attention, i))
            layer_set_add(&c->recurrent, i);
    read_recurrent_types(f, c);
}

/* Reads the limits of Mamba-2's time steps: there must be none. */
static void read_step_limits(struct fields *f)
{
    const struct json *list = opt_array(f, "time_step_limit");
    double from = 0, to = INFINITY;
    if (list == NULL)
        return;
    (void)json_real_of(json_at(list, 1), &to); /* infinity is written as an object */
    if (!json_real_of(json_at(list, 0), &from) || from > 0 || isfinite(to))
        refuse(f, "time_step_limit", "only 0 and infinity are supported");
}

/* Reads Granite 4, whose recurrent layers are Mamba-2's. If there are none, it is Granite 3 with
 * other names. An MLP that every token uses stands beside experts, or alone. */
static void read_granite_hybrid(struct fields *f, struct model_config *c)
{
    struct recurrence *r = &c->recurrence;
    must_have(f, "layer_types");
    must_have(f, "num_local_experts");
    read_granite(f, c);
    int32_t shared = need_int(f, "shared_intermediate_size", 1, MAX_WIDTH);
    saw(f, "num_local_experts");
    saw(f, "num_experts_per_tok");
    if (opt_int(f, "num_local_experts", 0, MODEL_MAX_EXPERTS, 0) > 0) {
        read_experts(f, c, "num_local_experts", "num_local_experts");
        c->n_shared_ffn = shared;
    } else {
        c->n_ffn = shared;
    }
    c->experts_normed = c->n_experts > 0;
    c->rope_local_only = strcmp(opt_string(f, "position_embedding_type", "nope"), "rope") !=
                         0;
    must_be_word(f, "normalization_function", "rmsnorm", "rmsnorm");
    must_be(f, "mamba_conv_bias", true);
    must_be(f, "mamba_proj_bias", false);
    read_step_limits(f);
    r->kind = DELTA_MAMBA2;
    r->n_k = opt_int(f, "mamba_n_groups", 1, MAX_WIDTH, 1);
    r->n_v = opt_int(f, "mamba_n_heads", 1, MAX_WIDTH, 128);
    r->d_k = opt_int(f, "mamba_d_state", 1, MAX_WIDTH, 256);
    r->n_conv = opt_int(f, "mamba_d_conv", 2, DELTA_MAX_CONV, 4);
    int32_t width = opt_int(f, "mamba_expand", 1, 16, 2) * c->n_embd;
    saw(f, "mamba_d_head");
    bool is_auto = json_kind(json_member(f->o, "mamba_d_head")) == JSON_KIND_STRING;
    r->d_v = is_auto || f->rc != 0
                 ? width / MAX(r->n_v, 1)
                 : opt_int(f, "mamba_d_head", 1, MAX_WIDTH, width / r->n_v);
    read_recurrent_types(f, c);
    if (layer_set_is_empty(&c->recurrent))
        *r = (struct recurrence){0};
    else if ((int64_t)r->n_v * r->d_v != width)
        refuse(f, "mamba_d_head",
               "times 'mamba_n_heads' must be 'mamba_expand' times the width");
    else
        check_recurrence(f, r, "mamba_n_groups", "mamba_n_heads", "mamba_d_state",
                         "mamba_d_head");
}

/* Reads how many groups of experts there are, and how many of them a token's experts are of. */
static void read_expert_groups(struct fields *f, struct model_config *c)
{
    int32_t n = opt_int(f, "n_group", 1, MODEL_MAX_EXPERTS, 1);
    int32_t used = opt_int(f, "topk_group", 1, MODEL_MAX_EXPERTS_USED, 1);
    if (f->rc != 0 || (n == 1 && used == 1))
        return;
    if (c->n_experts % n != 0 || c->n_experts / n < 2 || used > n ||
        c->n_experts_used > c->n_experts / n * used)
        fail(f, ERR_FORMAT,
             "'n_group' %d and 'topk_group' %d do not fit %d experts, of which %d are used",
             n, used, c->n_experts, c->n_experts_used);
    c->expert_groups.n = n;
    c->expert_groups.used = used;
}

/* Reads the experts of a model whose first n_dense_layers have none. n_shared: the default. */
static void read_glm4_experts(struct fields *f, struct model_config *c, int n_shared)
{
    c->n_dense_ffn = c->n_dense_layers > 0 ? c->n_ffn : 0;
    c->n_ffn = need_int(f, "moe_intermediate_size", 1, MAX_WIDTH);
    c->n_shared_ffn = opt_int(f, "n_shared_experts", 0, MAX_WIDTH / c->n_ffn, n_shared) *
                      c->n_ffn;
    c->n_guessing = opt_int(f, "num_nextn_predict_layers", 0, MAX_LAYERS, 0);
    read_experts(f, c, "n_routed_experts", "num_local_experts");
    c->experts_normed = opt_bool(f, "norm_topk_prob", c->router_sigmoid);
    c->experts_scale = opt_factor(f, "routed_scaling_factor", 1);
    read_expert_groups(f, c);
}

/* Reads a model whose first layers have no experts, and whose routers compute sigmoids. */
static void read_glm4_moe(struct fields *f, struct model_config *c)
{
    read_llama(f, c);
    if (opt_bool(f, "use_qk_norm", false))
        c->qk_norm = QK_NORM_HEADS;
    c->n_dense_layers = opt_int(f, "first_k_dense_replace", 0, c->n_layers, 1);
    read_glm4_experts(f, c, 1);
}

/* Reads the layers of a glm4_moe_lite: the first ones have no experts. */
static void read_mlp_types(struct fields *f, struct model_config *c)
{
    const struct json *list = opt_array(f, "mlp_layer_types");
    if (list == NULL)
        return;
    if (json_count(list) != (size_t)c->n_layers)
        refuse(f, "mlp_layer_types", "must have one entry per layer");
    c->n_dense_layers = 0;
    for (int32_t l = 0; f->rc == 0 && l < c->n_layers; l++) {
        const char *s = json_string_of(json_at(list, (size_t)l), NULL);
        if (s != NULL && strcmp(s, "dense") == 0 && c->n_dense_layers == l)
            c->n_dense_layers++;
        else if (s == NULL || strcmp(s, "sparse") != 0)
            refuse(f, "mlp_layer_types", "must be dense layers, then sparse ones");
    }
}

/* Reads a model with latent attention, whose first layers have no experts: the router computes a
 * softmax (deepseek_v2) or sigmoids (glm4_moe_lite). */
static void read_deepseek2(struct fields *f, struct model_config *c)
{
    bool is_glm = c->family == FAMILY_GLM4_LITE;
    double scale = opt_real(f, "hcache_score_scale",
                            0); /* of a GGUF file that was packed */
    read_llama(f, c);
    if (scale > 0)
        c->attn_scale = (float)scale;
    c->n_dense_layers = opt_int(f, "first_k_dense_replace", 0, c->n_layers, is_glm);
    if (is_glm)
        read_mlp_types(f, c);
    read_glm4_experts(f, c, is_glm ? 1 : 2);
    must_be_int(f, "moe_layer_freq", 1);
    const char *choice = is_glm ? "noaux_tc" : "greedy",
               *shares = is_glm ? "sigmoid" : "softmax";
    must_be_word(f, "topk_method", choice, choice);
    must_be_word(f, "scoring_func", shares, shares);
    if (!is_glm && c->experts_normed) /* transformers ignores it */
        refuse(f, "norm_topk_prob", "true is not supported");
    if (!is_glm && c->expert_groups.n > 0)
        refuse(f, "n_group", "groups of experts are not supported in this family");
}

static void read_mixtral(struct fields *f, struct model_config *c)
{
    read_llama(f, c);
    c->sliding_window = opt_int(f, "sliding_window", 1, MAX_CTX, 0);
    all_windowed(c);
    read_experts(f, c, "num_local_experts", "num_local_experts");
    c->experts_normed = true;
}

static void read_gpt_oss(struct fields *f, struct model_config *c)
{
    bool in_rope = !is_null(f, "rope_parameters");
    must_have(f, "head_dim");
    must_have(f, "num_key_value_heads");
    /* transformers stretches rotations 32 times if the file does not say how. */
    if (!in_rope) {
        must_have(f, "rope_theta");
        must_have(f, "rope_scaling");
    }
    read_llama_like(f, c);
    must_be_word(f, "hidden_act", "silu", "silu");
    must_be_real(f, "swiglu_alpha", 1.702);
    must_be_real(f, "swiglu_limit", 7);
    c->tie_word_embeddings = opt_bool(f, "tie_word_embeddings", false);
    read_experts(f, c, "num_local_experts", "num_experts");
    if (json_member(f->o, "sliding_window") == NULL)
        refuse(f, "sliding_window", "is missing");
    read_spread_windows(f, c, 2);
}

static void read_opt(struct fields *f, struct model_config *c)
{
    read_sizes(f, c, "ffn_dim");
    c->max_ctx = need_int(f, "max_position_embeddings", 1, MAX_CTX);
    read_head_dim(f, c);
    c->d_rope = 0;
    check_act(f, c, "activation_function", "relu");
    c->norm_eps = 1e-5f; /* transformers has this constant */
    must_be(f, "do_layer_norm_before", true);
    must_be(f, "_remove_final_layer_norm", false);
    must_be(f, "layer_norm_elementwise_affine", true);
    must_be(f, "enable_bias", true);
    if (opt_int(f, "word_embed_proj_dim", 1, MAX_WIDTH, c->n_embd) != c->n_embd)
        refuse(f, "word_embed_proj_dim", "other than hidden_size is not supported");
    c->tie_word_embeddings = opt_bool(f, "tie_word_embeddings", true);
}

static void read_phi(struct fields *f, struct model_config *c)
{
    read_sizes(f, c, "intermediate_size");
    c->n_kv_heads = opt_int(f, "num_key_value_heads", 1, MAX_WIDTH, c->n_heads);
    c->max_ctx = need_int(f, "max_position_embeddings", 1, MAX_CTX);
    read_head_dim(f, c);
    read_norm_eps(f, c, "layer_norm_eps", 1e-5);
    read_rope(f, c, 0.5);
    check_act(f, c, "hidden_act", "gelu_new");
    must_be(f, "qk_layernorm", false);
    c->tie_word_embeddings = opt_bool(f, "tie_word_embeddings", false);
}

static void read_falcon(struct fields *f, struct model_config *c)
{
    read_sizes(f, c, NULL);
    bool grouped = opt_bool(f, "new_decoder_architecture", false);
    bool multi_query = opt_bool(f, "multi_query", true);
    bool parallel = opt_bool(f, "parallel_attn", true);
    if (grouped)
        c->n_kv_heads = opt_int(f, "num_kv_heads", 1, MAX_WIDTH, c->n_heads);
    else
        c->n_kv_heads = multi_query ? 1 : c->n_heads;
    int norms = opt_int(f, "num_ln_in_parallel_attn", 1, 2, grouped ? 2 : 1);
    if (grouped && !parallel)
        refuse(f, "parallel_attn", "false with new_decoder_architecture is not supported");
    if (!grouped && norms == 2)
        refuse(f, "num_ln_in_parallel_attn", "2 needs new_decoder_architecture");
    c->block = !parallel    ? BLOCK_SEQUENTIAL
               : norms == 2 ? BLOCK_PARALLEL_NORM2
                            : BLOCK_PARALLEL;
    c->n_ffn = opt_int(f, "ffn_hidden_size", 1, MAX_WIDTH,
                       c->n_embd <= MAX_WIDTH / 4 ? 4 * c->n_embd : MAX_WIDTH);
    c->max_ctx = opt_int(f, "max_position_embeddings", 1, MAX_CTX, 2048);
    read_head_dim(f, c);
    read_norm_eps(f, c, "layer_norm_epsilon", 1e-5);
    read_rope(f, c, 1.0);
    check_act(f, c, "activation", "gelu");
    must_be(f, "alibi", false);
    must_be(f, "apply_residual_connection_post_layernorm", false);
    if (f->rc == 0)
        must_be_int(f, "ff_factor", c->n_ffn / c->n_embd);
    must_be(f, "bias", false);
    c->tie_word_embeddings = opt_bool(f, "tie_word_embeddings", true);
}

static const struct {
    const char *model_type;
    const char *architecture;
    void (*read)(struct fields *f, struct model_config *c);
} families[] = {
    [FAMILY_LLAMA] = {"llama", "LlamaForCausalLM", read_llama},
    [FAMILY_MISTRAL] = {"mistral", "MistralForCausalLM", read_mistral},
    [FAMILY_QWEN2] = {"qwen2", "Qwen2ForCausalLM", read_qwen},
    [FAMILY_QWEN3] = {"qwen3", "Qwen3ForCausalLM", read_qwen},
    [FAMILY_OPT] = {"opt", "OPTForCausalLM", read_opt},
    [FAMILY_PHI] = {"phi", "PhiForCausalLM", read_phi},
    [FAMILY_PHI3] = {"phi3", "Phi3ForCausalLM", read_phi3},
    [FAMILY_GEMMA] = {"gemma", "GemmaForCausalLM", read_gemma},
    [FAMILY_FALCON] = {"falcon", "FalconForCausalLM", read_falcon},
    [FAMILY_QWEN3_MOE] = {"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe},
    [FAMILY_MIXTRAL] = {"mixtral", "MixtralForCausalLM", read_mixtral},
    [FAMILY_GEMMA3] = {"gemma3_text", "Gemma3ForCausalLM", read_gemma3},
    [FAMILY_OLMO2] = {"olmo2", "Olmo2ForCausalLM", read_llama},
    [FAMILY_OLMO3] = {"olmo3", "Olmo3ForCausalLM", read_olmo3},
    [FAMILY_GRANITE] = {"granite", "GraniteForCausalLM", read_granite},
    [FAMILY_GEMMA2] = {"gemma2", "Gemma2ForCausalLM", read_gemma2},
    [FAMILY_GPT_OSS] = {"gpt_oss", "GptOssForCausalLM", read_gpt_oss},
    [FAMILY_QWEN3_5] = {"qwen3_5_text", "Qwen3_5ForCausalLM", read_qwen3_5},
    [FAMILY_QWEN3_5_MOE] = {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", read_qwen3_next},
    [FAMILY_QWEN3_NEXT] = {"qwen3_next", "Qwen3NextForCausalLM", read_qwen3_next},
    [FAMILY_COHERE2] = {"cohere2", "Cohere2ForCausalLM", read_cohere2},
    [FAMILY_MINISTRAL3] = {"ministral3", "Ministral3ForCausalLM", read_ministral3},
    [FAMILY_GLM4_MOE] = {"glm4_moe", "Glm4MoeForCausalLM", read_glm4_moe},
    [FAMILY_LFM2] = {"lfm2", "Lfm2ForCausalLM", read_lfm2},
    [FAMILY_GEMMA4] = {"gemma4_text", "Gemma4ForCausalLM", read_gemma4},
    [FAMILY_DEEPSEEK2] = {"deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek2},
    [FAMILY_GLM4_LITE] = {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", read_deepseek2},
    [FAMILY_GRANITE_HYBRID] = {"granitemoehybrid", "GraniteMoeHybridForCausalLM",
                               read_granite_hybrid},
};

enum { N_FAMILIES = sizeof families / sizeof families[0] };

const char *family_name(enum model_family f)
{
    return (size_t)f < N_FAMILIES ? families[f].model_type : "unknown";
}

const char *family_architecture(enum model_family f)
{
    return (size_t)f < N_FAMILIES ? families[f].architecture : "unknown";
}

bool family_at(int i, const char **name, const char **architecture)
{
    if (i < 0 || i >= N_FAMILIES)
        return false;
    *name = families[i].model_type;
    *architecture = families[i].architecture;
    return true;
}

/* Writes the list of families: "llama, mistral, ...". */
static void families_text(char *out, size_t out_bytes)
{
    size_t n = 0;
    for (int i = 0; i < N_FAMILIES && n < out_bytes; i++)
        n += (size_t)snprintf(out + n, out_bytes - n, "%s%s", i > 0 ? ", " : "",
                              families[i].model_type);
}

/* Reads the family. model_type names it; architectures, if present, must be its causal language
 * model. */
static void read_family(struct fields *f, enum model_family *out)
{
    const char *type = opt_string(f, "model_type", NULL);
    const struct json *list = opt_array(f, "architectures");
    if (f->rc != 0)
        return;
    const char *arch = json_string_of(json_at(list, 0), NULL);
    if (type == NULL && arch == NULL) {
        fail(f, ERR_FORMAT, "'model_type' and 'architectures' are missing");
        return;
    }
    for (int i = 0; i < N_FAMILIES; i++) {
        bool same_type = type == NULL || strcmp(type, families[i].model_type) == 0;
        bool same_arch = arch == NULL || strcmp(arch, families[i].architecture) == 0 ||
                         (i == FAMILY_GEMMA3 && strcmp(arch, "Gemma3TextModel") == 0);
        if (same_type && same_arch) {
            *out = (enum model_family)i;
            return;
        }
    }
    char known[480];
    families_text(known, sizeof known);
    fail(f, ERR_UNSUPPORTED,
         "model_type '%s' with architecture '%s' is not supported; these are: %s "
         "(see hcache model --families)",
         type != NULL ? type : "(none)", arch != NULL ? arch : "(none)", known);
}

/* --- fields that every family has --------------------------------------------------------- */

static void read_weight_type(struct fields *f, struct model_config *c)
{
    static const struct {
        const char *name;
        enum weight_type type;
    } names[] = {
        {"float32", WEIGHT_F32}, {"float16", WEIGHT_F16}, {"bfloat16", WEIGHT_BF16}};
    const char *s = opt_string(f, "torch_dtype", opt_string(f, "dtype", NULL));
    c->weight_type = WEIGHT_UNSPECIFIED;
    if (f->rc != 0 || s == NULL)
        return;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].name, s) == 0)
            c->weight_type = names[i].type;
    if (c->weight_type == WEIGHT_UNSPECIFIED)
        fail(f, ERR_UNSUPPORTED, "'torch_dtype': '%s' is not supported", s);
}

int config_add_eos(struct model_config *c, int64_t id, struct err *err)
{
    if (id == -1)
        return 0;
    if (id < 0 || id >= c->vocab_size)
        return err_set(err, ERR_FORMAT,
                       "'eos_token_id' %lld is outside the vocabulary of %d", (long long)id,
                       c->vocab_size);
    if (c->n_eos == CONFIG_MAX_EOS)
        return err_set(err, ERR_UNSUPPORTED, "'eos_token_id' has more than %d entries",
                       CONFIG_MAX_EOS);
    if (!config_is_eos(c, (int32_t)id))
        c->eos_ids[c->n_eos++] = (int32_t)id;
    return 0;
}

static int add_eos(struct model_config *c, const struct json *v, struct err *err)
{
    int64_t id;
    if (!json_int_of(v, &id))
        return err_set(err, ERR_FORMAT,
                       "'eos_token_id' must be an integer or a list of integers");
    return config_add_eos(c, id, err);
}

/* Reads the EOS ids: one id or a list. If the file has neither, c's ids stay unchanged. */
static int read_eos(struct model_config *c, const struct json *o, struct err *err)
{
    const struct json *v = json_member(o, "eos_token_id");
    if (json_kind(v) == JSON_KIND_NULL)
        return 0;
    c->n_eos = 0;
    memset(c->eos_ids, 0, sizeof c->eos_ids);
    if (json_kind(v) != JSON_KIND_ARRAY)
        return add_eos(c, v, err);
    int rc = 0;
    for (size_t i = 0; i < json_count(v) && rc == 0; i++)
        rc = add_eos(c, json_at(v, i), err);
    return rc;
}

/* Checks the heads. Heads of layers with a window are checked as those of a config of their own. */
static void check_sizes(struct fields *f, const struct model_config *c)
{
    if (f->rc != 0)
        return;
    struct model_config local = *c;
    if (c->local_d_head > 0) {
        local.n_kv_heads = c->local_kv_heads;
        local.d_head = local.d_rope = c->local_d_head;
        local.local_d_head = 0;
        check_sizes(f, &local);
    }
    if (f->rc != 0)
        return;
    if (c->n_heads % c->n_kv_heads != 0)
        fail(f, ERR_FORMAT, "%d attention heads are not a multiple of %d KV heads",
             c->n_heads, c->n_kv_heads);
    else if ((int64_t)c->n_heads * c->d_head > MAX_WIDTH)
        fail(f, ERR_FORMAT, "%d heads of %d dimensions are more than %d", c->n_heads,
             c->d_head, MAX_WIDTH);
    else if (c->d_head > ATTENTION_MAX_D_HEAD)
        fail(f, ERR_UNSUPPORTED, "heads of %d dimensions: at most %d are supported",
             c->d_head, ATTENTION_MAX_D_HEAD);
    else if (c->n_heads / c->n_kv_heads > ATTENTION_MAX_GROUP)
        fail(f, ERR_UNSUPPORTED,
             "%d attention heads for each KV head: at most %d are supported",
             c->n_heads / c->n_kv_heads, ATTENTION_MAX_GROUP);
    else if (c->position == POSITION_ROPE && (c->d_rope < 2 || c->d_rope % 2 != 0))
        fail(f, ERR_FORMAT,
             "%d dimensions of a head are rotated; the number must be even and positive",
             c->d_rope);
    else if (c->d_head % 2 != 0)
        fail(f, ERR_UNSUPPORTED, "heads of %d dimensions: the number must be even",
             c->d_head);
}

/* Refuses fields of other families that change results and that this family does not have.  They
 * may be absent, null, or have the value without effect. */
static void refuse_foreign(struct fields *f)
{
    static const struct {
        const char *key;
        double neutral;
    } foreign[] = {
        {"attention_multiplier", 1},
        {"embedding_multiplier", 1},
        {"residual_multiplier", 1},
        {"logits_scaling", 1},
        {"logit_scale", 1},
        {"query_pre_attn_scalar", 0},
        {"num_local_experts", 0},
        {"num_experts", 0},
        {"n_routed_experts", 0},
        {"attn_logit_softcapping", 0},
        {"final_logit_softcapping", 0},
    };
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        if (!config_was_read(&f->read, foreign[i].key) && !is_null(f, foreign[i].key) &&
            opt_real(f, foreign[i].key, foreign[i].neutral) != foreign[i].neutral)
            refuse(f, foreign[i].key, "models of this family do not have it");
    if (!config_was_read(&f->read, "use_bidirectional_attention") &&
        !is_null(f, "use_bidirectional_attention"))
        must_be(f, "use_bidirectional_attention", false);
}

/* Refuses model kinds that any config of transformers may name. */
static void refuse_other_kinds(struct fields *f)
{
    must_be(f, "is_encoder_decoder", false);
    must_be(f, "add_cross_attention", false);
    /* Every supported model is a decoder, even if the field says otherwise. */
    saw(f, "is_decoder");
    saw(f, "tie_encoder_decoder");
    saw(f, "pruned_heads");
    if (json_count(json_member(f->o, "pruned_heads")) > 0)
        refuse(f, "pruned_heads", "pruned models are not supported");
}

/* Reads how a folder is quantized: the experts of gpt_oss may have 4 bits. */
static void read_quantisation(struct fields *f, struct model_config *c)
{
    const struct json *o = json_member(f->o, "quantization_config");
    const char *method = json_string_of(json_member(o, "quant_method"), NULL);
    if (json_kind(o) == JSON_KIND_NULL)
        return;
    saw(f, "quantization_config");
    c->is_quantised = c->family == FAMILY_GPT_OSS && method != NULL &&
                      strcmp(method, "mxfp4") == 0;
    if (!c->is_quantised)
        refuse(f, "quantization_config", "quantized checkpoints are not supported");
}

/* Reads the widths of the layers behind the pooling. */
static void read_dense(struct fields *f, struct model_config *c)
{
    const struct json *list = opt_array(f, "hcache_dense");
    int64_t width;
    if (json_count(list) > CONFIG_MAX_DENSE)
        refuse(f, "hcache_dense", "has too many entries");
    for (size_t i = 0; f->rc == 0 && i < json_count(list); i++) {
        if (!json_int_of(json_at(list, i), &width) || width < 1 || width > MAX_WIDTH)
            refuse(f, "hcache_dense", "must be a list of widths");
        c->dense[c->n_behind++] = (int32_t)width;
    }
}

static void read_common(struct fields *f, struct model_config *c)
{
    refuse_foreign(f);
    refuse_other_kinds(f);
    check_sizes(f, c);
    read_weight_type(f, c);
    c->bos_id = opt_int(f, "bos_token_id", -1, MAX_VOCAB, c->bos_id);
    if (c->bos_id >= c->vocab_size)
        fail(f, ERR_FORMAT, "'bos_token_id' %d is outside the vocabulary of %d", c->bos_id,
             c->vocab_size);
    if (f->rc == 0)
        f->rc = read_eos(c, f->o, f->err);
    read_quantisation(f, c);
    /* fields of this program's, for models whose folder is not at hand */
    c->pooling = pooling_of_name(opt_string(f, "hcache_pooling", "none"));
    c->has_no_head = opt_bool(f, "hcache_no_head", false);
    read_dense(f, c);
    if (f->rc == 0)
        f->rc = config_fields_check(f->o, &f->read, c->family, f->err);
}

/* Returns the description of the text part: an object of its own in a model that also sees
 * (gemma3, gemma4, qwen3_5, mistral3), else the whole file. */
static const struct json *text_part(const struct json *root)
{
    const char *type = json_string_of(json_member(root, "model_type"), NULL);
    const struct json *part = json_member(root, "text_config");
    static const char *const sees[] = {"gemma3", "gemma4", "qwen3_5", "qwen3_5_moe",
                                       "mistral3"};
    for (int i = 0; i < 5; i++)
        if (type != NULL && strcmp(type, sees[i]) == 0 &&
            json_kind(part) == JSON_KIND_OBJECT)
            return part;
    return root;
}

/* Reads what stands around the description of the text part: the type of its elements, and tokens.
 * Everything else there is about pictures. */
static void read_around(struct fields *f, const struct json *root, struct model_config *c)
{
    struct fields around = {.o = root, .err = f->err, .rc = f->rc};
    if (c->weight_type == WEIGHT_UNSPECIFIED)
        read_weight_type(&around, c);
    if (around.rc == 0)
        around.rc = read_eos(c, root, f->err);
    if (!is_null(&around, "quantization_config"))
        refuse(&around, "quantization_config", "quantized checkpoints are not supported");
    /* In a model with a vision part, transformers obeys the outer field. */
    if (c->family != FAMILY_GEMMA3 && c->family != FAMILY_GEMMA4)
        c->tie_word_embeddings = opt_bool(&around, "tie_word_embeddings",
                                          !family_is_hybrid(c->family) &&
                                              c->tie_word_embeddings);
    f->rc = around.rc;
}

/* --- entry points ------------------------------------------------------------------------- */

int config_parse(struct model_config *out, const void *bytes, size_t n, const char *file,
                 struct err *err)
{
    struct json *root;
    int rc = json_parse(&root, bytes, n, file, err);
    if (rc != 0)
        return rc;
    struct fields f = {.o = text_part(root), .err = err};
    enum model_family family = FAMILY_LLAMA;
    read_family(&f, &family);
    config_family_init(out, family);
    if (f.rc == 0)
        families[family].read(&f, out);
    read_common(&f, out);
    if (f.o != root)
        read_around(&f, root, out);
    if (f.rc != 0)
        err_wrap(err, "%s", file);
    json_free(root);
    return f.rc;
}

int config_parse_generation(struct model_config *io, const void *bytes, size_t n,
                            const char *file, struct err *err)
{
    struct json *root;
    int rc = json_parse(&root, bytes, n, file, err);
    if (rc != 0)
        return rc;
    rc = read_eos(io, root, err);
    if (rc != 0)
        err_wrap(err, "%s", file);
    json_free(root);
    return rc;
}

int config_load(struct model_config *out, const char *source, struct err *err)
{
    const char *dir = source;
    struct stat st;
    if (stat(dir, &st) != 0)
        return err_set(err, -errno,
                       "%s: %s; a model is a folder, as downloaded from Hugging Face, a "
                       "GGUF file, a packed file, or synth:SHAPE",
                       dir[0] != 0 ? dir : "''", strerror(errno));
    if (gguf_files_is(source))
        return config_load_gguf(out, source, err);
    if (!S_ISDIR(st.st_mode) && !pack_file_is(source))
        return err_set(
            err, -ENOTDIR,
            "%s: is a file; a model is a folder with config.json and safetensors, or a "
            "GGUF or packed file, and this file does not begin like one",
            dir);
    char *path = xasprintf("%s/config.json", dir), *bytes = NULL;
    size_t n = 0;
    int rc = model_file_read(dir, "config.json", CONFIG_MAX_BYTES, &bytes, &n, err);
    if (rc == 0)
        rc = config_parse(out, bytes, n, path, err);
    free(bytes);
    free(path);
    if (rc != 0)
        return rc;

    path = xasprintf("%s/generation_config.json", dir);
    bytes = NULL;
    struct err local = {0}; /* the file is optional: its absence leaves *err unchanged */
    rc = model_file_read(dir, "generation_config.json", CONFIG_MAX_BYTES, &bytes, &n,
                         &local);
    if (rc == 0)
        rc = config_parse_generation(out, bytes, n, path, err);
    else if (rc == -ENOENT)
        rc = 0;
    else if (err != NULL)
        *err = local;
    free(bytes);
    free(path);
    return rc == 0 ? config_load_pooling(dir, out, err) : rc;
}
