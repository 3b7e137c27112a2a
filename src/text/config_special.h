/* config_special.h - finds the special tokens that tokenizer_config.json and
 * special_tokens_map.json name.
 *
 * A folder may name tokens ("pad_token": "<pad>") that its vocabulary lacks.  transformers 5
 * adds them behind the vocabulary.  This module returns them in the order in which
 * transformers adds them:
 *   1. bos, eos, unk, sep, pad, cls, mask;
 *   2. other members "..._token", and the members of an extra_special_tokens that is an object;
 *   3. the list extra_special_tokens, or additional_special_tokens, its older name.
 *
 * special_tokens_map.json overrides tokenizer_config.json, and counts only if tokenizer_config.json
 * has no added_tokens_decoder.  This module does not know the default tokens of a tokenizer's
 * class. */
#ifndef TEXT_CONFIG_SPECIAL_H
#define TEXT_CONFIG_SPECIAL_H

#include "model/config.h"

struct json;

/* Fills out->special, n_special, n_named, bos_token, eos_token and unk_token.
 * Either file may be NULL. */
int config_special_read(struct tokenizer_config *out, const struct json *config,
                        const struct json *map, struct err *err);

/* Reads one token from its text, or from an object with "content" and flags. `key` names it in
 * messages. If is_special, the token is special even if the object says otherwise. The caller frees
 * out->text after a result of 0. */
int config_special_token(struct tokenizer_config_added *out, const struct json *v,
                         const char *key, bool is_special, struct err *err);

#endif
