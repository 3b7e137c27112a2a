/* cmd_model.c - hcache model: describes a model, and makes models of random weights. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cmds.h"
#include "apps/json_print.h"
#include "apps/option_tables.h"
#include "base/clock.h"
#include "opt/opt.h"
#include "base/json.h"
#include "base/minmax.h"
#include "checkpoint/gguf_types.h"
#include "model/config.h"
#include "model/model.h"
#include "checkpoint/gguf_files.h"
#include "model/pack_file.h"
#include "text/tokenizer.h"
#include "model/weights.h"
#include "api/dialog.h"
#include "sim/checkpoint.h"

static int report(const char *cmd, const struct err *e)
{
    fprintf(stderr, "hcache %s: %s\n", cmd, e->msg);
    return e->code == ERR_USAGE || e->code == ERR_NOT_FOUND ? 2 : 1;
}

/* --- model info ------------------------------------------------------------------------------- */

struct info_args {
    const char *source;
    const char *dtype;
    bool tensors;
    bool json;
};

static const char *const dtype_choices[] = {"f32", "bf16", "f16", NULL};

static const struct opt info_positionals[] = {
    {"MODEL_DIR", OPT(struct info_args, source), .required = true,
     .help = "a Hugging Face folder, a GGUF file, a packed file, or synth:SHAPE"},
    {0},
};
static const struct opt info_options[] = {
    {"dtype", OPT(struct info_args, dtype), .choices = dtype_choices,
     .help = "state dtype for the bytes per token; default: the checkpoint's"},
    {"tensors", OPT(struct info_args, tensors), .help = "list every tensor"},
    {"json", OPT(struct info_args, json), .help = "print one JSON object"},
    {0},
};
static const struct opt_cmd info_cmd = {
    .name = "model info",
    .summary = "Describes a model: its sizes, its tensors, and the size of its state per "
               "token. Checks the files' structure; does not load the weights.",
    .positionals = info_positionals,
    .options = info_options,
    .values_bytes = sizeof(struct info_args),
};
const struct opt_cmd *const options_of_model_info = &info_cmd;

struct info {
    const char *source, *format;
    bool has_template;
    /* how the model is told of tools: "template", or "generic" (a system message); NULL: not */
    const char *tools;
    struct model_config c;
    struct weights_info w;
    enum dtype state;
    int64_t hidden_bytes, kv_bytes; /* bytes per token and layer: of the widest K and V */
    int64_t all_kv_bytes;           /* of all layers' K and V */
};

static enum dtype dtype_of(enum weight_type t)
{
    if (t == WEIGHT_F16)
        return DTYPE_F16;
    return t == WEIGHT_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

/* Reads what the chat template can. */
static void read_template(const char *source, struct info *out)
{
    struct tokenizer *t = NULL;
    struct dialog *k = NULL;
    out->has_template = tokenizer_open(&t, source, NULL) == 0 &&
                        tokenizer_chat_template(t) != NULL;
    if (out->has_template && dialog_open(&k, t, NULL) == 0 && dialog_has_tools(k))
        out->tools = dialog_declares_tools(k) ? "generic" : "template";
    dialog_close(k);
    tokenizer_close(t);
}

/* Returns the dtype of state if config.json does not give one: the type of the matrices, or bf16 if
 * they are quantised. */
static enum dtype info_state(const struct info *i)
{
    return i->w.quantised ? DTYPE_BF16 : i->w.dtype;
}

static int info_read(struct info *out, const struct info_args *a, struct err *e)
{
    const char *shape = strncmp(a->source, "synth:", 6) == 0 ? a->source + 6 : NULL;
    *out = (struct info){.source = a->source};
    int rc = shape != NULL ? config_shape(&out->c, shape, e)
                           : config_load(&out->c, a->source, e);
    if (rc == 0)
        rc = weights_describe(&out->w, a->source, &out->c, dtype_of(out->c.weight_type), e);
    if (rc != 0)
        return rc;
    out->format = shape != NULL              ? "synth"
                  : gguf_files_is(a->source) ? "gguf"
                  : pack_file_is(a->source)  ? "packed"
                                             : "safetensors";
    if (shape == NULL)
        read_template(a->source, out);
    out->state = out->c.weight_type == WEIGHT_UNSPECIFIED ? info_state(out)
                                                          : dtype_of(out->c.weight_type);
    if (a->dtype != NULL)
        dtype_parse(a->dtype, &out->state);
    int64_t s = (int64_t)dtype_bytes(out->state);
    out->hidden_bytes = out->c.n_embd * s;
    out->kv_bytes = 0;
    for (int l = 0; l < config_n_keeping(&out->c); l++)
        if (!config_is_recurrent(&out->c, l)) {
            int64_t bytes = config_kv_width(&out->c, l) * s;
            out->kv_bytes = MAX(bytes, out->kv_bytes);
            out->all_kv_bytes += bytes;
        }
    return 0;
}

/* Returns how many of the layers are in a set. */
static int n_in(const struct layer_set *set, const struct model_config *c)
{
    int n = 0;
    for (int l = 0; l < c->n_layers; l++)
        n += layer_set_has(set, l);
    return n;
}

static const char *block_name(enum block_kind b)
{
    if (b == BLOCK_SEQUENTIAL)
        return "sequential";
    return b == BLOCK_PARALLEL ? "parallel" : "parallel, two norms";
}

static void print_tensors(const struct info *i)
{
    for (size_t k = 0; k < i->w.n_tensors; k++) {
        const struct tensor_info *t = &i->w.tensors[k];
        char shape[64];
        if (t->n_dims == 1)
            snprintf(shape, sizeof shape, "[%" PRId64 "]", t->rows);
        else
            snprintf(shape, sizeof shape, "[%" PRId64 ", %" PRId64 "]", t->rows, t->cols);
        printf("  %-58s %-5s %s\n", t->name, t->type, shape);
    }
}

static void print_info(const struct info *i, bool tensors)
{
    const struct model_config *c = &i->c;
    printf("model       %s\n", i->source);
    printf("family      %s\n", family_name(c->family));
    printf("parameters  %" PRId64 "\n", config_params(c));
    printf("weights     %.1f MB, %zu tensors:", (double)i->w.bytes / 1e6, i->w.n_tensors);
    for (int k = 0; k < i->w.types.n; k++)
        printf("%s %d %s", k > 0 ? "," : "", i->w.types.of[k].n_tensors,
               i->w.types.of[k].name);
    printf("\n");
    printf("layers      %d, %s", c->n_layers, block_name(c->block));
    if (config_is_hybrid(c))
        printf(", %d of them recurrent with a state of %zu bytes", n_in(&c->recurrent, c),
               model_state_bytes(c));
    printf("\n");
    printf("width       %d, FFN %d", c->n_embd, c->n_ffn);
    if (c->n_experts > 0)
        printf(", %d of %d experts for each token", c->n_experts_used, c->n_experts);
    printf("\n");
    printf("heads       %d query, %d key/value, of %d", c->n_heads, c->n_kv_heads,
           c->d_head);
    if (c->local_d_head > 0)
        printf("; with the window %d key/value, of %d", c->local_kv_heads, c->local_d_head);
    if (c->n_reading > 0)
        printf("; the last %d layers read K and V of others", c->n_reading);
    printf("\n");
    printf("vocabulary  %d, embeddings %s\n", c->vocab_size,
           c->tie_word_embeddings ? "tied" : "not tied");
    printf("context     %d", c->max_ctx);
    if (c->sliding_window > 0)
        printf(", window %d in %d of %d layers", c->sliding_window, n_in(&c->windowed, c),
               c->n_layers);
    if (c->pooling != POOLING_NONE)
        printf("\nembeddings  of %d numbers, pooling %s", config_embedding_width(c),
               pooling_name(c->pooling));
    if (c->both_ways)
        printf("; attention sees both ways, so no state is saved");
    printf("\nstate       %s, bytes per token:\n", dtype_name(i->state));
    printf("  H         %" PRId64 " a layer, %" PRId64 " in all\n", i->hidden_bytes,
           i->hidden_bytes * config_n_keeping(c));
    printf("  KV        %" PRId64 " a layer, %" PRId64 " in all\n", i->kv_bytes,
           i->all_kv_bytes);
    printf("  H/KV      %.4g\n", (double)i->hidden_bytes / (double)i->kv_bytes);
    if (i->has_template)
        printf("tools       %s\n", i->tools == NULL
                                       ? "none: the chat template shows no calls"
                                   : strcmp(i->tools, "generic") == 0
                                       ? "declared by a system message, calls are JSON"
                                       : "in the chat template");
    if (tensors)
        print_tensors(i);
}

static struct json *tensors_json(const struct info *i)
{
    struct json *all = json_new_array();
    for (size_t k = 0; k < i->w.n_tensors; k++) {
        const struct tensor_info *t = &i->w.tensors[k];
        struct json *shape = json_make("[%ld]", t->rows);
        if (t->n_dims == 2)
            json_push_int(shape, t->cols);
        json_push(all,
                  json_make("{name: %s, dtype: %s, shape: %p}", t->name, t->type, shape));
    }
    return all;
}

/* Makes the object that describes the model, as in `run --json`. */
static struct json *model_json(const struct info *i)
{
    struct json *types = json_new_object();
    for (int k = 0; k < i->w.types.n; k++)
        json_put_int(types, i->w.types.of[k].name, i->w.types.of[k].n_tensors);
    return json_make(
        "{format: %s, arch: %s, file_types: %p, held: %s, template: %p, tools: %s, "
        "context: %d}",
        i->format, family_name(i->c.family), types,
        !i->w.quantised ? dtype_name(i->w.dtype)
        : i->w.has_q4   ? "q4"
                        : "q8",
        json_new_bool(i->has_template), i->tools, i->c.max_ctx);
}

static void print_info_json(const struct info *i)
{
    const struct model_config *c = &i->c;
    struct json *o = json_make(
        "{source: %s, model: %p, family: %s, parameters: %ld, "
        "weight_bytes: %lu, weight_dtype: %s, n_layers: %d, n_embd: %d, "
        "n_ffn: %d, n_experts: %d, n_experts_used: %d, n_heads: %d, "
        "n_kv_heads: %d, d_head: %d, vocab_size: %d, "
        "tie_word_embeddings: %p, max_ctx: %d, sliding_window: %d, "
        "n_layers_windowed: %d, n_layers_recurrent: %d, "
        "recurrent_state_bytes: %lu, dtype: %s, "
        "hidden_bytes_per_token_layer: %ld, kv_bytes_per_token_layer: %ld, "
        "hidden_bytes_per_token: %ld, kv_bytes_per_token: %ld, "
        "hidden_kv_ratio: %g, tensors: %p}",
        i->source, model_json(i), family_name(c->family), config_params(c), i->w.bytes,
        dtype_name(i->w.dtype), c->n_layers, c->n_embd, c->n_ffn, c->n_experts,
        c->n_experts_used, c->n_heads, c->n_kv_heads, c->d_head, c->vocab_size,
        json_new_bool(c->tie_word_embeddings), c->max_ctx, c->sliding_window,
        n_in(&c->windowed, c), n_in(&c->recurrent, c), model_state_bytes(c),
        dtype_name(i->state), i->hidden_bytes, i->kv_bytes,
        i->hidden_bytes * config_n_keeping(c), i->all_kv_bytes,
        (double)i->hidden_bytes / (double)i->kv_bytes, tensors_json(i));
    json_print(o, 0);
}

static int model_info(int argc, char **argv)
{
    struct info_args a;
    struct opt_parsed *parsed;
    struct err e = {0};
    struct info i;
    int code;
    if (!opt_begin(&info_cmd, argc, argv, &a, &parsed, &code))
        return code;
    code = info_read(&i, &a, &e);
    if (code != 0)
        code = report(info_cmd.name, &e);
    else if (a.json)
        print_info_json(&i);
    else
        print_info(&i, a.tensors);
    weights_info_deinit(&i.w);
    opt_end(parsed);
    return code;
}

/* --- model synth ------------------------------------------------------------------------------ */

struct synth_args {
    const char *shape;
    int layers;
    const char *dtype;
    const char *out;
};

static const struct opt synth_options[] = {
    {"shape", OPT(struct synth_args, shape), .arg = "NAME", .required = true,
     .help = "sizes by name, such as bench-220m or llama-2-7b"},
    {"layers", OPT(struct synth_args, layers), .arg = "N", .min = 0, .max = 1000,
     .help = "number of layers; 0: the shape's own"},
    {"dtype", OPT(struct synth_args, dtype), .choices = dtype_choices,
     .help = "element type of the tensors; default: the shape's own"},
    {"out", OPT(struct synth_args, out), .arg = "DIR", .required = true,
     .help = "folder to write; it must not already hold a model"},
    {0},
};
static const struct opt_cmd synth_cmd = {
    .name = "model synth",
    .summary = "Writes a model with the random weights of synth:SHAPE, so that real sizes "
               "can be run without a download.",
    .options = synth_options,
    .examples = "  hcache model synth --shape bench-220m --out /tmp/bench-220m\n",
    .values_bytes = sizeof(struct synth_args),
};
const struct opt_cmd *const options_of_model_synth = &synth_cmd;

static int synth(const struct synth_args *a, struct err *e)
{
    struct model_config c;
    int rc = config_shape(&c, a->shape, e);
    if (rc != 0)
        return rc;
    enum dtype t = dtype_of(c.weight_type);
    if (a->dtype != NULL)
        dtype_parse(a->dtype, &t);
    if (a->layers > 0)
        c.n_layers = a->layers;
    int64_t start = clock_now_ns();
    rc = checkpoint_write(a->out, &c, t, e);
    if (rc == 0)
        printf("%s: %s, %d layers, %" PRId64 " parameters in %s, %.1f MB in %.1f s\n",
               a->out, family_name(c.family), c.n_layers, config_params(&c), dtype_name(t),
               (double)config_params(&c) * (double)dtype_bytes(t) / 1e6,
               (double)(clock_now_ns() - start) / 1e9);
    return rc;
}

static int model_synth(int argc, char **argv)
{
    struct synth_args a;
    struct opt_parsed *parsed;
    struct err e = {0};
    int code;
    if (!opt_begin(&synth_cmd, argc, argv, &a, &parsed, &code))
        return code;
    code = synth(&a, &e);
    if (code != 0)
        code = report(synth_cmd.name, &e);
    opt_end(parsed);
    return code;
}

/* --- model ------------------------------------------------------------------------------------ */

/* A family's reader refuses models that have these parts, because they are other arithmetic. */
static const char *const refused[] = {
    [FAMILY_LLAMA] = "biases of attention and MLP, pairs that rotate in folders",
    [FAMILY_QWEN2] = "positions of pictures (use_mrope)",
    [FAMILY_OPT] = "norms behind attention and MLP, projected embeddings (350m)",
    [FAMILY_PHI] = "norms of Q and K",
    [FAMILY_PHI3] = "full_attn_mod and interpolate_factor other than 1",
    [FAMILY_FALCON] = "ALiBi (falcon-rw as published)",
    [FAMILY_QWEN3_MOE] = "layers without experts",
    [FAMILY_GEMMA3] = "pictures",
    [FAMILY_GPT_OSS] = "other limits of SwiGLU",
    [FAMILY_QWEN3_5] = "pictures, state in f16",
    [FAMILY_QWEN3_5_MOE] = "pictures, state in f16",
    [FAMILY_QWEN3_NEXT] = "state in f16",
    [FAMILY_COHERE2] = "norms of Q and K, scaled rotations",
    [FAMILY_MINISTRAL3] = "pictures",
    [FAMILY_LFM2] = "biases of convolutions, state in f16",
    [FAMILY_GEMMA4] = "pictures, sounds, attention that sees both ways",
    [FAMILY_DEEPSEEK2] =
        "groups of experts (V2 of 236B); V3 and V4, which have other routers "
        "and indexers",
    [FAMILY_GLM4_LITE] = "halves that rotate",
    [FAMILY_GRANITE_HYBRID] = "limits of time steps, biases of mamba_proj, state in f16",
};

static int print_families(void)
{
    const char *name, *architecture;
    printf("families         architecture of config.json\n");
    for (int i = 0; family_at(i, &name, &architecture); i++) {
        bool refuses = i < (int)(sizeof refused / sizeof refused[0]) && refused[i] != NULL;
        printf("  %-16s %s%s%s\n", name, architecture, refuses ? "; refused: " : "",
               refuses ? refused[i] : "");
    }
    printf("  (gemma3_text, Gemma3TextModel: EmbeddingGemma, for embeddings; no state is "
           "saved)\n");
    printf(
        "\nchecked: a tiny random model of each family against transformers 5 (f32: logits "
        "within 1e-4, greedy tokens equal),\n"
        "its GGUF file, but for opt, against the folder, and restores by every plan "
        "against "
        "state that was kept, bit for bit;\n"
        "published weights of llama (SmolLM2) and gemma3_text (270M) against llama.cpp\n"
        "refused: pictures and sounds; on GPUs, ranks and stages experts, recurrent "
        "layers, "
        "and what a family's message names\n");
    printf(
        "\nformats\n"
        "  Hugging Face folder: config.json, tokenizer.json, *.safetensors of F32, F16 or "
        "BF16\n"
        "  GGUF file (%s): %s\n"
        "  packed file: a model of either format, as hcache model pack writes it\n",
        config_gguf_families(), gguf_types_supported());
    return 0;
}

static void print_usage(FILE *out)
{
    fprintf(out, "usage: hcache model info MODEL_DIR [OPTION]...\n"
                 "       hcache model synth --shape NAME --out DIR [OPTION]...\n"
                 "       hcache model pack MODEL_DIR --out FILE [OPTION]...\n"
                 "       hcache model --families\n\n"
                 "\n  info    describes a model and the size of its state per token\n"
                 "  synth   writes a model of random weights\n"
                 "  pack    writes a model as one file that starts fast\n\nshapes:");
    for (int i = 0; config_shape_name(i) != NULL; i++)
        fprintf(out, " %s", config_shape_name(i));
    fprintf(out, "\n\nFor more: hcache model info --help, synth --help, pack --help.\n");
}

int cmd_model(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "info") == 0)
        return model_info(argc - 1, argv + 1);
    if (strcmp(what, "synth") == 0)
        return model_synth(argc - 1, argv + 1);
    if (strcmp(what, "pack") == 0)
        return cmd_model_pack(argc - 1, argv + 1);
    if (strcmp(what, "--families") == 0)
        return print_families();
    bool help = strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0;
    if (!help && *what != '\0')
        fprintf(stderr,
                "hcache model: \"%s\" is neither info, synth, pack nor --families\n", what);
    print_usage(help ? stdout : stderr);
    return help ? 0 : 2;
}
