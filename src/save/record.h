/* record.h - the size of a chunk's record of a layer; private to src/save. */
#ifndef SAVE_RECORD_H
#define SAVE_RECORD_H

#include "model/model.h"
#include "store/store.h"

/* Returns the bytes of a full chunk's record, as stored. */
static inline size_t record_bytes(const struct model *m, enum store_kind kind)
{
    return STORE_CHUNK_TOKENS *
           (kind == STORE_HIDDEN ? model_hidden_bytes(m) : model_kv_bytes(m));
}

#endif
