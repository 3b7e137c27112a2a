/* config_gguf.h - reads struct model_config from a GGUF file's metadata.  Private to src/model. */
#ifndef MODEL_CONFIG_GGUF_H
#define MODEL_CONFIG_GGUF_H

#include "checkpoint/gguf_types.h"
#include "model/config.h"
#include "checkpoint/gguf_files.h"

#define ROPE_FACTORS_NAME "rope_freqs.weight"
#define ROPE_LONG_NAME    "rope_factors_long.weight"
#define ROPE_SHORT_NAME   "rope_factors_short.weight"

/* Fills *out from a GGUF model, with the checks and invariants of config_parse. */
int config_from_gguf(struct model_config *out, const struct gguf_files *files,
                     struct err *err);
int config_load_gguf(struct model_config *out, const char *path, struct err *err);

#endif
