/* superblock.c - see superblock.h; the byte table is in docs/STORE_FORMAT.md. */
#include "store/superblock.h"

#include <stdbool.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"

static const uint8_t magic[8] = "HCSTORE";

enum {
    S_VERSION = 8,
    S_CHECKSUM = 16,
    S_UUID = 24,
    S_DEVICE = 40,
    S_DEVICES_N = 44,
    S_SEGMENT = 48,
    S_MARK = 56
};

static uint64_t superblock_checksum(const uint8_t *in)
{
    uint8_t copy[SUPERBLOCK_BYTES];
    memcpy(copy, in, sizeof copy);
    put_u64(copy + S_CHECKSUM, 0);
    return checksum64(copy, sizeof copy);
}

void superblock_encode(const struct superblock *sb, uint8_t out[SUPERBLOCK_FILE_BYTES])
{
    CHECK(sb->device < sb->n_devices && sb->n_devices <= STORE_MAX_DEVICES);
    CHECK(sb->segment_bytes % STORE_ALIGN == 0 &&
          sb->segment_bytes <= SUPERBLOCK_MAX_SEGMENT_BYTES);
    memset(out, 0, SUPERBLOCK_FILE_BYTES);
    memcpy(out, magic, sizeof magic);
    put_u32(out + S_VERSION,
            sb->mark != 0 ? SUPERBLOCK_VERSION_SEALED : SUPERBLOCK_VERSION);
    put_u64(out + S_MARK, sb->mark);
    memcpy(out + S_UUID, sb->uuid, sizeof sb->uuid);
    put_u32(out + S_DEVICE, sb->device);
    put_u32(out + S_DEVICES_N, sb->n_devices);
    put_u64(out + S_SEGMENT, sb->segment_bytes);
    put_u64(out + S_CHECKSUM, superblock_checksum(out));
    memcpy(out + SUPERBLOCK_BYTES, out, SUPERBLOCK_BYTES);
}

static int copy_decode(const uint8_t *in, struct superblock *out, struct err *err)
{
    if (memcmp(in, magic, sizeof magic) != 0 ||
        get_u64(in + S_CHECKSUM) != superblock_checksum(in))
        return err_set(err, ERR_CORRUPT, "the superblock is damaged");
    uint32_t version = get_u32(in + S_VERSION);
    if (version != SUPERBLOCK_VERSION && version != SUPERBLOCK_VERSION_SEALED)
        return err_set(err, ERR_UNSUPPORTED,
                       "the store has format version %u; this build knows only %d and %d",
                       version, SUPERBLOCK_VERSION, SUPERBLOCK_VERSION_SEALED);
    memcpy(out->uuid, in + S_UUID, sizeof out->uuid);
    out->device = get_u32(in + S_DEVICE);
    out->n_devices = get_u32(in + S_DEVICES_N);
    out->segment_bytes = get_u64(in + S_SEGMENT);
    out->mark = version == SUPERBLOCK_VERSION ? 0 : get_u64(in + S_MARK);
    if (out->n_devices < 1 || out->n_devices > STORE_MAX_DEVICES ||
        out->device >= out->n_devices || out->segment_bytes == 0 ||
        (version == SUPERBLOCK_VERSION_SEALED && out->mark == 0) ||
        out->segment_bytes > SUPERBLOCK_MAX_SEGMENT_BYTES ||
        out->segment_bytes % STORE_ALIGN != 0)
        return err_set(err, ERR_CORRUPT, "the superblock has a field out of range");
    return 0;
}

int superblock_decode(const uint8_t in[SUPERBLOCK_FILE_BYTES], struct superblock *out,
                      struct err *err)
{
    int rc = copy_decode(in, out, err);
    if (rc == ERR_CORRUPT)
        rc = copy_decode(in + SUPERBLOCK_BYTES, out, err);
    return rc;
}

int superblock_bad_copy(const uint8_t in[SUPERBLOCK_FILE_BYTES])
{
    struct superblock unused;
    bool first = copy_decode(in, &unused, NULL) != ERR_CORRUPT;
    bool second = copy_decode(in + SUPERBLOCK_BYTES, &unused, NULL) != ERR_CORRUPT;
    return first == second ? -1 : first ? 1 : 0;
}
