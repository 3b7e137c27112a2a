/* token_ids.h - parses token ids as people write them, in files and on standard input. */
#ifndef APPS_TOKEN_IDS_H
#define APPS_TOKEN_IDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Parses "1 2 3", "1,2,3" or "[1, 2, 3]" on any number of lines; text[n] is 0. `name` is the
 * source, for messages. The caller frees *ids, even if there are none. Returns ERR_FORMAT if the
 * text has something that is not an id; the message has its position. */
int token_ids_parse(const char *text, size_t n, const char *name, int32_t **ids,
                    size_t *n_ids, struct err *err);

#endif
