/* chunk.h - the extent header: pure functions between a struct and 4096 bytes.
 *
 * An extent is what one device holds of one chunk after one append:
 *
 *   0        4096                4096 + round_up(n_bytes[0], 4096)
 *   +--------+-------------------+-------------------+----
 *   | header | record 0 .. zeros | record 1 .. zeros | ...
 *   +--------+-------------------+-------------------+----
 *
 * Records are sorted by (kind, layer) and lie back to back in whole blocks, so their offsets follow
 * from their lengths and are not stored.  The header says everything that the index says, and the
 * tokens besides, so that the index can be rebuilt from headers; it also says where it stands, so
 * that a misdirected write is found.  The byte table is in docs/STORE_FORMAT.md. */
#ifndef STORE_CHUNK_H
#define STORE_CHUNK_H

#include "store/store.h"

#define CHUNK_HEADER_BYTES     4096
#define CHUNK_MAX_RECORDS      (STORE_KINDS * STORE_MAX_LAYERS)
#define CHUNK_RECORD_CODE      14 /* bytes of one record's entry in a table */
#define CHUNK_MAX_RECORD_BYTES (64u << 20)
#define CHUNK_MAX_IDX          (1u << 26) /* 2^32 tokens */
#define STORE_UUID_BYTES       16

/* Of a partial chunk, in its header and in its row.  Other bits are written as 0 and not looked
 * at, as this one is by builds that do not know it: they leave such a chunk to eviction. */
#define STORE_FLAG_YIELDS 1u

struct chunk_record {
    uint64_t checksum;
    uint32_t n_bytes;
    uint32_t offset; /* from the start of the extent; set by chunk_layout */
    uint8_t layer;
    uint8_t kind;
};

struct chunk_header {
    uint8_t uuid[STORE_UUID_BYTES]; /* of the store */
    uint64_t id;                    /* grows with every extent of the store */
    uint64_t n_bytes;               /* of the extent, this header included */
    uint64_t offset;                /* within the segment */
    uint32_t segment;
    uint32_t chunk_idx;
    uint16_t device;
    uint16_t n_records;
    struct sha256 key, parent, fingerprint;
    uint64_t owner;
    int n_tokens;                       /* 1 to STORE_CHUNK_TOKENS */
    bool yields;                        /* of a partial chunk: see store.h */
    int32_t tokens[STORE_CHUNK_TOKENS]; /* those behind n_tokens are 0 */
    struct chunk_record records[CHUNK_MAX_RECORDS];
};

/* Sets the offsets; returns the bytes of the whole extent, always a multiple of STORE_ALIGN. */
uint64_t chunk_layout(struct chunk_record *records, int n);

/* Whether a record of this layer belongs on this device. */
static inline bool chunk_on_device(uint32_t chunk_idx, int layer, int device, int n_devices)
{
    return (int)((chunk_idx + (uint32_t)layer) % (uint32_t)n_devices) == device;
}

/* n entries of CHUNK_RECORD_CODE bytes. Decoding checks every field, the order, and that the layout
 * gives exactly `extent_bytes`: 0 or ERR_CORRUPT. */
void chunk_table_encode(const struct chunk_record *records, int n, uint8_t *out);
int chunk_table_decode(const uint8_t *in, int n, uint64_t extent_bytes,
                       struct chunk_record *out);

/* Writes the current version; decoding knows version 1 too (64 tokens, no owner). */
void chunk_header_encode(const struct chunk_header *h, uint8_t out[CHUNK_HEADER_BYTES]);

/* ERR_FORMAT: not a header at all (no magic); ERR_CORRUPT: one that does not hold;
 * ERR_UNSUPPORTED: of a later format version.  *out is unspecified unless 0 is returned. */
int chunk_header_decode(const uint8_t in[CHUNK_HEADER_BYTES], struct chunk_header *out,
                        struct err *err);

struct store_mask chunk_mask(const struct chunk_record *records, int n);

#endif
