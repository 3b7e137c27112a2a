/* superblock.h - the description of a store in each of its directories: pure functions over
 * bytes.
 *
 * The file holds the same 4096 bytes twice, so one damaged copy does no harm. It is written when
 * the store is created. A damaged copy is written again when the store is opened for writing. */
#ifndef STORE_SUPERBLOCK_H
#define STORE_SUPERBLOCK_H

#include <stdint.h>

#include "base/err.h"
#include "store/chunk.h"

#define SUPERBLOCK_VERSION           2
#define SUPERBLOCK_VERSION_SEALED    4 /* of an encrypted store */
#define SUPERBLOCK_BYTES             4096
#define SUPERBLOCK_FILE_BYTES        (2 * SUPERBLOCK_BYTES)
#define SUPERBLOCK_MAX_SEGMENT_BYTES (1ull << 32)

struct superblock {
    uint8_t uuid[STORE_UUID_BYTES]; /* equal in all directories of a store */
    uint32_t device; /* position of this directory, 0 <= device < n_devices */
    uint32_t n_devices;
    uint64_t segment_bytes;
    uint64_t mark; /* seal_mark of the store's seal; 0: the store is not encrypted */
};

void superblock_encode(const struct superblock *sb, uint8_t out[SUPERBLOCK_FILE_BYTES]);

/* Returns ERR_CORRUPT if both copies are damaged, ERR_UNSUPPORTED for another format version. */
int superblock_decode(const uint8_t in[SUPERBLOCK_FILE_BYTES], struct superblock *out,
                      struct err *err);
/* Returns the index (0 or 1) of the damaged copy if exactly one is damaged; else -1. */
int superblock_bad_copy(const uint8_t in[SUPERBLOCK_FILE_BYTES]);

#endif
