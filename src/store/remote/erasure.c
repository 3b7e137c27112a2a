/* erasure.c - see erasure.h. */
#include "store/remote/erasure.h"

#include <string.h>

#include "base/bytes.h"
#include "base/check.h"

static const uint8_t magic[8] = "HCERASE1";

enum { E_SERVER = 8, E_IS_OWNER = 16, E_OWNER = 24, E_N = 32, E_KEYS = 40 };

size_t erasure_bytes(int n_keys)
{
    return E_KEYS + (size_t)n_keys * sizeof(struct sha256) + 8;
}

void erasure_encode(const struct erasure *e, uint8_t *out)
{
    CHECK(e->n >= 0 && e->n <= ERASURE_MAX_KEYS);
    size_t n = erasure_bytes(e->n);
    memcpy(out, magic, sizeof magic);
    put_u64(out + E_SERVER, e->server);
    put_u64(out + E_IS_OWNER, e->is_owner ? 1 : e->is_text ? 2 : 0);
    put_u64(out + E_OWNER, e->owner);
    put_u64(out + E_N, (uint64_t)e->n);
    if (e->n > 0)
        memcpy(out + E_KEYS, e->keys, (size_t)e->n * sizeof e->keys[0]);
    put_u64(out + n - 8, checksum64(out, n - 8));
}

int erasure_decode(const uint8_t *in, size_t n_bytes, struct erasure *out, struct err *err)
{
    if (n_bytes < erasure_bytes(0) || memcmp(in, magic, sizeof magic) != 0)
        return err_set(err, ERR_FORMAT, "no erasure");
    if (get_u64(in + n_bytes - 8) != checksum64(in, n_bytes - 8))
        return err_set(err, ERR_CORRUPT, "an erasure's checksum does not hold");
    uint64_t is_owner = get_u64(in + E_IS_OWNER), n = get_u64(in + E_N);
    if (is_owner > 2 || n > ERASURE_MAX_KEYS || erasure_bytes((int)n) != n_bytes)
        return err_set(err, ERR_CORRUPT, "an erasure has a field out of range");
    out->server = get_u64(in + E_SERVER);
    out->is_owner = is_owner == 1;
    out->is_text = is_owner == 2;
    out->owner = get_u64(in + E_OWNER);
    out->n = (int)n;
    if (n > 0)
        memcpy(out->keys, in + E_KEYS, (size_t)n * sizeof out->keys[0]);
    return 0;
}
