/* config_family.h - shared by the config_*.c files; only they include it. */
#ifndef MODEL_CONFIG_FAMILY_H
#define MODEL_CONFIG_FAMILY_H

#include "model/config.h"

/* Sets every field: sizes to zero, and the fields that a family fixes to their values. */
void config_family_init(struct model_config *c, enum model_family family);

const char *family_architecture(enum model_family f); /* "LlamaForCausalLM" */

/* The keys of a JSON object that a reader has asked for; each is a string literal. */
#define CONFIG_MAX_READ 96
struct fields_read {
    const char *keys[CONFIG_MAX_READ];
    int n;
};

struct json;

/* Returns ERR_UNSUPPORTED, with the name, for the first field that was not read and may change
 * results. */
int config_fields_check(const struct json *o, const struct fields_read *read,
                        enum model_family family, struct err *err);

#endif
