/* config_family.h - what config.c and config_shape.c share; nobody else includes it. */
#ifndef MODEL_CONFIG_FAMILY_H
#define MODEL_CONFIG_FAMILY_H

#include "model/config.h"

/* Sets everything: sizes to zero, and to the family's nature whatever does not vary within it. */
void config_family_init(struct model_config *c, enum model_family family);

const char *family_architecture(enum model_family f); /* "LlamaForCausalLM" */

#endif
