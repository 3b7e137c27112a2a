/* chunk.c - see chunk.h. Knows only bytes: no files, no index.
 *
 * Invariants:
 * 1. decode(encode(h)) == h.
 * 2. Every decoded length and index is within the bounds of chunk.h, so later code may use them
 *    without another check. */
#include "store/chunk.h"

#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "store/bugs.h"

static const uint8_t magic[8] = "HCEXTENT";

enum { /* byte offsets; docs/STORE_FORMAT.md has the same table */
       H_VERSION = 8,
       H_TOKENS_N = 12,
       H_CHECKSUM = 16,
       H_UUID = 24,
       H_ID = 40,
       H_BYTES = 48,
       H_OFFSET = 56,
       H_SEGMENT = 64,
       H_CHUNK_IDX = 68,
       H_DEVICE = 72,
       H_RECORDS_N = 74,
       H_FLAGS = 76,
       H_KEY = 80,
       H_PARENT = 112,
       H_FINGERPRINT = 144,
       H_TOKENS = 176,
       H_OWNER = 432,
       H_TABLE = 512,
};
/* An extent gets the lowest version that can describe its records. So a build that knows only lower
 * versions still reads every extent that needs no more. */
#define FORMAT_VERSION        2
#define FORMAT_VERSION_PACKED 3
#define FORMAT_VERSION_TIGHT  4
/* Added to the version of an encrypted header. */
#define FORMAT_SEALED 16
#define KIND_PACKED   0x80u /* bit of a table's kind: the record is packed */
#define KIND_TIGHT    0x40u /* bit of a table's kind: the record is tight */

_Static_assert(H_TOKENS + 4 * STORE_CHUNK_TOKENS <= H_OWNER && H_OWNER + 8 <= H_TABLE,
               "tokens and owner end before the table");
_Static_assert(H_TABLE + CHUNK_MAX_RECORDS * CHUNK_RECORD_CODE <= CHUNK_HEADER_BYTES,
               "all records of a chunk fit one header");

/* Returns where a record begins that lies behind `end`. */
static uint64_t record_begin(const struct chunk_record *r, uint64_t end)
{
    return round_up(end, r->is_tight ? CHUNK_TIGHT_ALIGN : STORE_ALIGN);
}

uint64_t chunk_layout(struct chunk_record *records, int n)
{
    uint64_t end = CHUNK_HEADER_BYTES;
    for (int i = 0; i < n; i++) {
        records[i].offset = (uint32_t)record_begin(&records[i], end);
        end = records[i].offset + (uint64_t)records[i].n_bytes;
    }
    return round_up(end, STORE_ALIGN);
}

void chunk_table_encode(const struct chunk_record *records, int n, uint8_t *out)
{
    CHECK(n >= 1 && n <= CHUNK_MAX_RECORDS);
    for (int i = 0; i < n; i++, out += CHUNK_RECORD_CODE) {
        out[0] = records[i].layer;
        out[1] = (uint8_t)(records[i].kind | (records[i].is_packed ? KIND_PACKED : 0) |
                           (records[i].is_tight ? KIND_TIGHT : 0));
        put_u32(out + 2, records[i].n_bytes);
        put_u64(out + 6, records[i].checksum);
    }
}

static int record_order(const struct chunk_record *r)
{
    return r->kind * STORE_MAX_LAYERS + r->layer;
}

int chunk_table_decode(const uint8_t *in, int n, uint64_t extent_bytes,
                       struct chunk_record *out)
{
    if (n < 1 || n > CHUNK_MAX_RECORDS)
        return ERR_CORRUPT;
    uint64_t end = CHUNK_HEADER_BYTES;
    for (int i = 0; i < n; i++, in += CHUNK_RECORD_CODE) {
        struct chunk_record *r = &out[i];
        r->layer = in[0];
        r->kind = (uint8_t)(in[1] & ~(KIND_PACKED | KIND_TIGHT));
        r->is_packed = (in[1] & KIND_PACKED) != 0;
        r->is_tight = (in[1] & KIND_TIGHT) != 0;
        r->n_bytes = get_u32(in + 2);
        r->checksum = get_u64(in + 6);
        if (r->layer >= STORE_MAX_LAYERS || r->kind >= STORE_KINDS || r->n_bytes < 1 ||
            r->n_bytes > CHUNK_MAX_RECORD_BYTES)
            return ERR_CORRUPT;
        if (i > 0 && record_order(r) <= record_order(r - 1))
            return ERR_CORRUPT;
        end = record_begin(r, end) + r->n_bytes;
        if (end > extent_bytes || end > UINT32_MAX)
            return ERR_CORRUPT;
    }
    return chunk_layout(out, n) == extent_bytes ? 0 : ERR_CORRUPT;
}

struct store_mask chunk_mask(const struct chunk_record *records, int n)
{
    struct store_mask m = {0};
    for (int i = 0; i < n; i++)
        store_mask_add(&m, records[i].layer, (enum store_kind)records[i].kind);
    return m;
}

static uint32_t version_of(const struct chunk_header *h)
{
    uint32_t version = FORMAT_VERSION;
    for (int i = 0; i < h->n_records; i++) {
        const struct chunk_record *r = &h->records[i];
        uint32_t needs = r->is_tight    ? FORMAT_VERSION_TIGHT
                         : r->is_packed ? FORMAT_VERSION_PACKED
                                        : FORMAT_VERSION;
        version = MAX(version, needs);
    }
    return version;
}

/* Returns the checksum of a header's 4096 bytes, with its own field taken as zero. */
static uint64_t header_checksum(const uint8_t in[CHUNK_HEADER_BYTES])
{
    uint8_t copy[CHUNK_HEADER_BYTES];
    memcpy(copy, in, sizeof copy);
    put_u64(copy + H_CHECKSUM, 0);
    return checksum64(copy, sizeof copy);
}

void chunk_header_encode(const struct chunk_header *h, uint8_t out[CHUNK_HEADER_BYTES])
{
    CHECK(h->offset % STORE_ALIGN == 0 && h->n_bytes % STORE_ALIGN == 0);
    CHECK(h->n_tokens >= 1 && h->n_tokens <= STORE_CHUNK_TOKENS);
    memset(out, 0, CHUNK_HEADER_BYTES);
    memcpy(out, magic, sizeof magic);
    put_u32(out + H_VERSION, version_of(h));
    put_u32(out + H_TOKENS_N, (uint32_t)h->n_tokens);
    memcpy(out + H_UUID, h->uuid, sizeof h->uuid);
    put_u64(out + H_ID, h->id);
    put_u64(out + H_BYTES, h->n_bytes);
    put_u64(out + H_OFFSET, h->offset);
    put_u32(out + H_SEGMENT, h->segment);
    put_u32(out + H_CHUNK_IDX, h->chunk_idx);
    put_u16(out + H_DEVICE, h->device);
    put_u16(out + H_RECORDS_N, h->n_records);
    put_u32(out + H_FLAGS, h->yields ? STORE_FLAG_YIELDS : 0);
    memcpy(out + H_KEY, h->key.b, sizeof h->key.b);
    memcpy(out + H_PARENT, h->parent.b, sizeof h->parent.b);
    memcpy(out + H_FINGERPRINT, h->fingerprint.b, sizeof h->fingerprint.b);
    for (int i = 0; i < h->n_tokens; i++)
        put_u32(out + H_TOKENS + 4 * i, (uint32_t)h->tokens[i]);
    put_u64(out + H_OWNER, h->owner);
    chunk_table_encode(h->records, h->n_records, out + H_TABLE);
    put_u64(out + H_CHECKSUM, header_checksum(out));
}

/* Checks conditions that concern several fields together. */
static int header_check(const struct chunk_header *h, struct err *err)
{
    if (h->chunk_idx >= CHUNK_MAX_IDX || h->offset % STORE_ALIGN != 0 ||
        h->device >= STORE_MAX_DEVICES)
        return err_set(err, ERR_CORRUPT, "an extent header has a field out of range");
    struct sha256 key = store_partial_key(&h->parent, h->tokens, h->n_tokens);
    if (memcmp(key.b, h->key.b, sizeof key.b) != 0)
        return err_set(err, ERR_CORRUPT, "an extent's key is not the hash of its tokens");
    return 0;
}

int chunk_header_decode(const uint8_t in[CHUNK_HEADER_BYTES], struct chunk_header *out,
                        struct err *err)
{
    if (memcmp(in, magic, sizeof magic) != 0)
        return err_set(err, ERR_FORMAT, "no extent header here");
    if (get_u64(in + H_CHECKSUM) != header_checksum(in))
        return err_set(err, ERR_CORRUPT, "an extent header's checksum does not hold");
    uint32_t version = get_u32(in + H_VERSION), n_tokens = get_u32(in + H_TOKENS_N);
    if (version < FORMAT_VERSION || version > FORMAT_VERSION_TIGHT)
        return err_set(err, ERR_UNSUPPORTED,
                       "an extent has format version %u; this build knows %d to %d",
                       version, FORMAT_VERSION, FORMAT_VERSION_TIGHT);
    memcpy(out->uuid, in + H_UUID, sizeof out->uuid);
    out->id = get_u64(in + H_ID);
    out->n_bytes = get_u64(in + H_BYTES);
    out->offset = get_u64(in + H_OFFSET);
    out->segment = get_u32(in + H_SEGMENT);
    out->chunk_idx = get_u32(in + H_CHUNK_IDX);
    out->device = get_u16(in + H_DEVICE);
    out->n_records = get_u16(in + H_RECORDS_N);
    memcpy(out->key.b, in + H_KEY, sizeof out->key.b);
    memcpy(out->parent.b, in + H_PARENT, sizeof out->parent.b);
    memcpy(out->fingerprint.b, in + H_FINGERPRINT, sizeof out->fingerprint.b);
    if (n_tokens < 1 || n_tokens > STORE_CHUNK_TOKENS)
        return err_set(err, ERR_CORRUPT, "an extent header has %u tokens", n_tokens);
    out->n_tokens = (int)n_tokens;
    for (int i = 0; i < STORE_CHUNK_TOKENS; i++)
        out->tokens[i] = (int32_t)get_u32(in + H_TOKENS + 4 * i);
    for (int i = out->n_tokens; i < STORE_CHUNK_TOKENS; i++)
        if (out->tokens[i] != 0)
            return err_set(err, ERR_CORRUPT, "an extent header has tokens behind its last");
    out->owner = get_u64(in + H_OWNER);
    out->yields = n_tokens < STORE_CHUNK_TOKENS &&
                  (get_u32(in + H_FLAGS) & STORE_FLAG_YIELDS) != 0;
    int bad = chunk_table_decode(in + H_TABLE, out->n_records, out->n_bytes, out->records);
    if (bad != 0 && !store_has_bug(STORE_BUG_NO_BOUND))
        return err_set(err, ERR_CORRUPT,
                       "an extent header's table of records is not well formed");
    if (bad == 0 && version_of(out) != version)
        return err_set(err, ERR_CORRUPT,
                       "an extent's format version does not fit its records");
    return header_check(out, err);
}

void chunk_header_seal(const struct seal *seal, const struct seal *of_owner,
                       uint8_t bytes[CHUNK_HEADER_BYTES])
{
    if (seal == NULL)
        return;
    seal_page(of_owner, PAGE_TOKENS, get_u64(bytes + H_ID), bytes + H_TOKENS,
              4 * STORE_CHUNK_TOKENS);
    put_u32(bytes + H_VERSION, get_u32(bytes + H_VERSION) + FORMAT_SEALED);
    seal_page(seal, PAGE_HEADER, get_u64(bytes + H_ID), bytes + H_SEGMENT,
              CHUNK_HEADER_BYTES - H_SEGMENT);
    put_u64(bytes + H_CHECKSUM, header_checksum(bytes));
}

int chunk_header_open(const struct seal *seal, struct owner_keys *owners,
                      uint8_t bytes[CHUNK_HEADER_BYTES], struct chunk_header *out,
                      struct err *err)
{
    if (seal != NULL && memcmp(bytes, magic, sizeof magic) == 0 &&
        get_u64(bytes + H_CHECKSUM) == header_checksum(bytes)) {
        uint32_t version = get_u32(bytes + H_VERSION);
        if (version < FORMAT_SEALED)
            return err_set(err, ERR_CORRUPT, "an extent's header is not encrypted");
        put_u32(bytes + H_VERSION, version - FORMAT_SEALED);
        seal_page_open(seal, PAGE_HEADER, get_u64(bytes + H_ID), bytes + H_SEGMENT,
                       CHUNK_HEADER_BYTES - H_SEGMENT);
        const struct seal *of_owner = owner_keys_find(owners, get_u64(bytes + H_OWNER));
        if (of_owner == NULL)
            return err_set(err, ERR_CORRUPT, "the key of an extent's owner is gone");
        seal_page_open(of_owner, PAGE_TOKENS, get_u64(bytes + H_ID), bytes + H_TOKENS,
                       4 * STORE_CHUNK_TOKENS);
        put_u64(bytes + H_CHECKSUM, header_checksum(bytes));
    }
    return chunk_header_decode(bytes, out, err);
}

void chunk_record_name(const struct sha256 *key, int layer, int kind, bool is_packed,
                       uint8_t out[STORE_NAME_BYTES])
{
    memcpy(out, key->b, sizeof key->b);
    out[sizeof key->b] = (uint8_t)layer;
    out[sizeof key->b + 1] = (uint8_t)kind;
    out[sizeof key->b + 2] = is_packed;
}
