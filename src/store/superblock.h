/* superblock.h - what a store directory says about itself: pure functions over bytes.
 *
 * The file holds the same 4096 bytes twice, is written once when the store is created and never
 * changed, so one damaged copy does no harm. */
#ifndef STORE_SUPERBLOCK_H
#define STORE_SUPERBLOCK_H

#include <stdint.h>

#include "base/err.h"
#include "store/chunk.h"

#define SUPERBLOCK_BYTES      4096
#define SUPERBLOCK_FILE_BYTES (2 * SUPERBLOCK_BYTES)

struct superblock {
    uint8_t uuid[STORE_UUID_BYTES]; /* equal in all directories of a store */
    uint32_t device; /* position of this directory, 0 <= device < n_devices */
    uint32_t n_devices;
    uint64_t segment_bytes;
};

void superblock_encode(const struct superblock *sb, uint8_t out[SUPERBLOCK_FILE_BYTES]);

/* ERR_CORRUPT where neither copy holds, ERR_UNSUPPORTED for a later format version. */
int superblock_decode(const uint8_t in[SUPERBLOCK_FILE_BYTES], struct superblock *out,
                      struct err *err);

#endif
