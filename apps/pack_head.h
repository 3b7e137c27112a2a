/* pack_head.h - lays a packed model file out, and makes the bytes before its first part. */
#ifndef APPS_PACK_HEAD_H
#define APPS_PACK_HEAD_H

#include "model/pack_file.h"

/* Sets file_bytes and the offsets of members, checksums and parts, from their sizes. */
void pack_head_lay_out(struct pack_file *f);
/* Returns the bytes before the first part in *out, which the caller frees.  Call pack_head_lay_out
 * before. */
void pack_head_encode(const struct pack_file *f, const char *const *member_bytes,
                      uint8_t **out, size_t *n);

#endif
