/* config_family.h - what the config_*.c files share; nobody else includes it. */
#ifndef MODEL_CONFIG_FAMILY_H
#define MODEL_CONFIG_FAMILY_H

#include "model/config.h"

/* Sets everything: sizes to zero, and to the family's nature whatever does not vary within it. */
void config_family_init(struct model_config *c, enum model_family family);

const char *family_architecture(enum model_family f); /* "LlamaForCausalLM" */

/* The keys of an object that somebody has asked for; each is a literal. */
#define CONFIG_MAX_READ 96
struct fields_read {
    const char *keys[CONFIG_MAX_READ];
    int n;
};

struct json;

/* ERR_UNSUPPORTED, naming it, for the first field that nobody has read and that may matter. */
int config_fields_check(const struct json *o, const struct fields_read *read,
                        enum model_family family, struct err *err);

#endif
