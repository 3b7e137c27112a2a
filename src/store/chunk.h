/* chunk.h - the extent header: pure functions between a struct and 4096 bytes.
 *
 * An extent holds the records of one chunk that one append wrote to one device:
 *
 *   0        4096        begin of record 1
 *   +--------+-----------+-----------+----       ----+---------+
 *   | header | record 0  | record 1  | ...           | zeros   |
 *   +--------+-----------+-----------+----       ----+---------+
 *
 * Records are sorted by (kind, layer). A tight record begins at the next multiple of 64 bytes, any
 * other at the next multiple of 4096, so offsets follow from lengths and are not stored. The gaps
 * are zeros. The header repeats all that the index says and adds the tokens, so the index can be
 * rebuilt from headers. It also contains its own place, so a misdirected write is found. The byte
 * table is in docs/STORE_FORMAT.md. */
#ifndef STORE_CHUNK_H
#define STORE_CHUNK_H

#include "base/bytes.h"
#include "seal/seal.h"
#include "store/owner_keys.h"
#include "store/store.h"

#define CHUNK_HEADER_BYTES     4096
#define CHUNK_MAX_RECORDS      (STORE_KINDS * STORE_MAX_LAYERS)
#define CHUNK_RECORD_CODE      14 /* size of a record's entry in a table, in bytes */
#define CHUNK_MAX_RECORD_BYTES (64u << 20)
#define CHUNK_TIGHT_ALIGN      64
#define CHUNK_MAX_IDX          (1u << 26) /* chunk_idx is lower than this: 2^32 tokens */
#define STORE_UUID_BYTES       16

/* What a page of an encrypted store is (seal_page). */
enum chunk_page { PAGE_HEADER = 1, PAGE_ROW, PAGE_TABLE, PAGE_PIN, PAGE_OWED, PAGE_TOKENS };

/* Flag of a partial chunk, in its header and its row: the chunk is removed when its context goes on
 * (store_chunk.yields). The other bits of the flags are written as 0 and ignored. */
#define STORE_FLAG_YIELDS 1u

struct chunk_record {
    uint64_t checksum;
    uint32_t n_bytes;
    uint32_t offset; /* offset from the start of the extent; set by chunk_layout */
    uint8_t layer;
    uint8_t kind;
    bool is_packed; /* the bytes are a packed run (pack/pack.h) */
    bool is_tight;  /* begins at a multiple of CHUNK_TIGHT_ALIGN, not of STORE_ALIGN */
};

struct chunk_header {
    uint8_t uuid[STORE_UUID_BYTES]; /* UUID of the store */
    /* every extent of a store has a higher id than the ones before */
    uint64_t id;
    uint64_t n_bytes; /* size of the extent, this header included */
    uint64_t offset;  /* offset within the segment */
    uint32_t segment;
    uint32_t chunk_idx;
    uint16_t device;
    uint16_t n_records;
    struct sha256 key, parent, fingerprint;
    uint64_t owner;
    int n_tokens; /* tokens of the chunk, 1 to STORE_CHUNK_TOKENS */
    /* the chunk is partial and yields (store_chunk.yields) */
    bool yields;
    int32_t tokens[STORE_CHUNK_TOKENS]; /* tokens behind n_tokens are 0 */
    struct chunk_record records[CHUNK_MAX_RECORDS];
};

/* Sets the records' offsets. Returns the bytes of the whole extent, a multiple of STORE_ALIGN. */
uint64_t chunk_layout(struct chunk_record *records, int n);

/* Returns the bytes of the whole blocks that a record lies in. */
static inline size_t chunk_record_span(const struct chunk_record *r)
{
    return round_up(r->offset % STORE_ALIGN + r->n_bytes, STORE_ALIGN);
}

/* Returns whether records of this layer belong on this device. */
static inline bool chunk_on_device(uint32_t chunk_idx, int layer, int device, int n_devices)
{
    return (int)((chunk_idx + (uint32_t)layer) % (uint32_t)n_devices) == device;
}

/* Encode and decode n entries of CHUNK_RECORD_CODE bytes. Decoding checks every field, the order,
 * and that the layout gives exactly `extent_bytes`; decoding returns 0 or ERR_CORRUPT. */
void chunk_table_encode(const struct chunk_record *records, int n, uint8_t *out);
int chunk_table_decode(const uint8_t *in, int n, uint64_t extent_bytes,
                       struct chunk_record *out);

void chunk_header_encode(const struct chunk_header *h, uint8_t out[CHUNK_HEADER_BYTES]);

/* Decodes a header. Returns 0 with *out; ERR_FORMAT if the bytes are no header (no magic);
 * ERR_CORRUPT if a check fails; ERR_UNSUPPORTED for another format version. If it does not return
 * 0, *out is unspecified. */
int chunk_header_decode(const uint8_t in[CHUNK_HEADER_BYTES], struct chunk_header *out,
                        struct err *err);

/* Encrypts an encoded header in place: first the tokens with the owner's seal, then all fields from
 * the segment's number on with the store's seal. The fields before stay plain, among them id, size
 * and offset. Does nothing if seal is NULL. */
void chunk_header_seal(const struct seal *seal, const struct seal *of_owner,
                       uint8_t bytes[CHUNK_HEADER_BYTES]);
/* Like chunk_header_decode, for a header of a store with this seal. Decrypts the bytes in place. */
int chunk_header_open(const struct seal *seal, struct owner_keys *owners,
                      uint8_t bytes[CHUNK_HEADER_BYTES], struct chunk_header *out,
                      struct err *err);

/* Writes the name under which a record is sealed. */
void chunk_record_name(const struct sha256 *key, int layer, int kind, bool is_packed,
                       uint8_t out[STORE_NAME_BYTES]);

struct store_mask chunk_mask(const struct chunk_record *records, int n);

#endif
