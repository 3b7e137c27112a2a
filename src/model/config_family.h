/* config_family.h - shared by the config_*.c files; only they include it. */
#ifndef MODEL_CONFIG_FAMILY_H
#define MODEL_CONFIG_FAMILY_H

#include "model/config.h"

/* Sets every field: sizes to zero, and the fields that a family fixes to their values. */
void config_family_init(struct model_config *c, enum model_family family);

/* Returns whether layers of a family may be recurrent. */
static inline bool family_is_hybrid(enum model_family f)
{
    return f == FAMILY_QWEN3_5 || f == FAMILY_QWEN3_5_MOE || f == FAMILY_QWEN3_NEXT ||
           f == FAMILY_LFM2 || f == FAMILY_GRANITE_HYBRID;
}

/* Returns whether a family's attention is latent (config.h). */
static inline bool family_is_latent(enum model_family f)
{
    return f == FAMILY_DEEPSEEK2 || f == FAMILY_GLM4_LITE;
}

/* Returns the word by which "layer_types" names the recurrent layers of a family. */
static inline const char *family_recurrent_type(enum model_family f)
{
    return f == FAMILY_LFM2 ? "conv" : "linear_attention";
}

/* Returns the rule of short convolutions, whose channels are cut into heads of 16. */
struct recurrence config_short_conv(int32_t n_embd, int32_t n_conv);

const char *family_architecture(enum model_family f); /* "LlamaForCausalLM" */

/* The keys of a JSON object that a reader has asked for; each is a string literal. */
#define CONFIG_MAX_READ 96
struct fields_read {
    const char *keys[CONFIG_MAX_READ];
    int n;
};
bool config_was_read(const struct fields_read *read, const char *key);

/* YaRN's scaling of the rotations. */
struct yarn {
    double factor, beta_fast, beta_slow;
    bool whole; /* the ramp begins and ends at whole dimensions */
    int32_t original_ctx;
};
/* Sets the factors of frequencies with many turns in the original context to 1, of those with few
 * to the factor, with a ramp between them. */
void config_yarn_factors(struct model_config *c, const struct yarn *y);
/* Returns YaRN's factor of cos and sin for a stretch by `factor`. */
double config_yarn_magnitude(double factor, double mscale);
/* Returns the factor of scores in latent attention, where YaRN stretches by `factor` with the
 * parameter mscale_all_dim; 0: it has none. */
float config_latent_scale(const struct model_config *c, double factor, double of_all);

struct json;

/* Sets the pooling of a model from the files of its folder, if they say anything. */
int config_load_pooling(const char *dir, struct model_config *io, struct err *err);

/* Returns ERR_UNSUPPORTED, with the name, for the first field that was not read and may change
 * results. */
int config_fields_check(const struct json *o, const struct fields_read *read,
                        enum model_family family, struct err *err);

#endif
