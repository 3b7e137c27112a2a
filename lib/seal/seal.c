/* seal.c - see seal.h. The ciphers are those of OpenSSL's libcrypto.
 *
 * Invariant: no key of a run is used twice, so its nonce is constant. */
#include "seal/seal.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"

enum {
    KEY = SEAL_KEY_BYTES,
    SALT = SEAL_SALT_BYTES,
    TAG = SEAL_BYTES - SALT,
    IPAD = 0x36,
    OPAD = 0x5c
};

struct seal {
    EVP_CIPHER *gcm, *xts;
    EVP_MD_CTX *inner,
        *outer; /* the two hashes of HMAC, once they have seen the runs' key */
    uint8_t runs[KEY], pages[2 * KEY]; /* keys of runs and of pages */
    uint64_t mark;
};

/* Writes n bytes of HKDF-SHA256 to out, for one use of the secret. */
static void derive(const uint8_t *secret, const void *id, size_t n_id, const char *use,
                   uint8_t *out, size_t n)
{
    EVP_PKEY_CTX *c = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, NULL);
    CHECK(c != NULL && EVP_PKEY_derive_init(c) == 1 &&
          EVP_PKEY_CTX_set_hkdf_md(c, EVP_sha256()) == 1 &&
          EVP_PKEY_CTX_set1_hkdf_salt(c, id, (int)n_id) == 1 &&
          EVP_PKEY_CTX_set1_hkdf_key(c, secret, KEY) == 1 &&
          EVP_PKEY_CTX_add1_hkdf_info(c, (const uint8_t *)use, (int)strlen(use)) == 1 &&
          EVP_PKEY_derive(c, out, &n) == 1);
    EVP_PKEY_CTX_free(c);
}

/* Returns a hash that has seen the key, combined with a pad of HMAC. */
static EVP_MD_CTX *hash_of_pad(const uint8_t *key, uint8_t pad)
{
    uint8_t block[64];
    memset(block, pad, sizeof block);
    for (int i = 0; i < KEY; i++)
        block[i] ^= key[i];
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    CHECK(c != NULL && EVP_DigestInit_ex(c, EVP_sha256(), NULL) == 1 &&
          EVP_DigestUpdate(c, block, sizeof block) == 1);
    OPENSSL_cleanse(block, sizeof block);
    return c;
}

struct seal *seal_of_runs(const uint8_t key[SEAL_KEY_BYTES])
{
    struct seal *s = xcalloc(1, sizeof *s);
    memcpy(s->runs, key, KEY);
    s->inner = hash_of_pad(key, IPAD);
    s->outer = hash_of_pad(key, OPAD);
    s->gcm = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    CHECK(s->gcm != NULL);
    return s;
}

void seal_runs_key(const struct seal *s, uint8_t out[SEAL_KEY_BYTES])
{
    memcpy(out, s->runs, KEY);
}

struct seal *seal_new(const uint8_t secret[SEAL_KEY_BYTES], const void *id, size_t n_id)
{
    uint8_t runs[KEY], mark[8];
    derive(secret, id, n_id, "hcache runs", runs, sizeof runs);
    struct seal *s = seal_of_runs(runs);
    derive(secret, id, n_id, "hcache pages", s->pages, sizeof s->pages);
    derive(secret, id, n_id, "hcache mark", mark, sizeof mark);
    s->mark = get_u64(mark) | 1;
    s->xts = EVP_CIPHER_fetch(NULL, "AES-256-XTS", NULL);
    CHECK(s->xts != NULL);
    OPENSSL_cleanse(runs, sizeof runs);
    return s;
}

void seal_free(struct seal *s)
{
    if (s == NULL)
        return;
    EVP_MD_CTX_free(s->inner); /* libcrypto overwrites it */
    EVP_MD_CTX_free(s->outer);
    EVP_CIPHER_free(s->gcm);
    EVP_CIPHER_free(s->xts);
    OPENSSL_cleanse(s, sizeof *s);
    free(s);
}

uint64_t seal_mark(const struct seal *s)
{
    return s != NULL ? s->mark : 0;
}

/* Writes the HMAC of n bytes under the runs' key. */
static void hmac(const struct seal *s, const void *bytes, size_t n, uint8_t out[KEY])
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    CHECK(c != NULL && EVP_MD_CTX_copy_ex(c, s->inner) == 1 &&
          EVP_DigestUpdate(c, bytes, n) == 1 && EVP_DigestFinal_ex(c, out, NULL) == 1 &&
          EVP_MD_CTX_copy_ex(c, s->outer) == 1 && EVP_DigestUpdate(c, out, KEY) == 1 &&
          EVP_DigestFinal_ex(c, out, NULL) == 1);
    EVP_MD_CTX_free(c);
}

/* Makes the key of a run: the first block of HKDF-Expand for its salt. */
static void run_key(const struct seal *s, const uint8_t *salt, uint8_t key[KEY])
{
    uint8_t info[SALT + 1];
    memcpy(info, salt, SALT);
    info[SALT] = 1;
    hmac(s, info, sizeof info, key);
}

/* Another last byte than that of a run's key keeps the two apart. */
void seal_hash(const struct seal *s, const void *bytes, size_t n, uint8_t out[KEY])
{
    uint8_t *all = xmalloc(n + 1);
    memcpy(all, bytes, n);
    all[n] = 0;
    hmac(s, all, n + 1, out);
    free(all);
}

/* Begins the cipher of the run with this salt, and feeds it the run's name. */
static EVP_CIPHER_CTX *run_begin(const struct seal *s, const void *name, size_t n_name,
                                 const uint8_t *salt, int encrypts)
{
    static const uint8_t nonce[12];
    uint8_t key[KEY];
    int n;
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    run_key(s, salt, key);
    CHECK(c != NULL && EVP_CipherInit_ex2(c, s->gcm, key, nonce, encrypts, NULL) == 1 &&
          EVP_CipherUpdate(c, NULL, &n, name, (int)n_name) == 1);
    OPENSSL_cleanse(key, sizeof key);
    return c;
}

void seal_run(const struct seal *s, const void *name, size_t n_name,
              const uint8_t salt[SEAL_SALT_BYTES], const void *run, size_t n, uint8_t *out)
{
    int done, rest;
    CHECK(n <= INT_MAX);
    EVP_CIPHER_CTX *c = run_begin(s, name, n_name, salt, 1);
    CHECK(EVP_CipherUpdate(c, out, &done, run, (int)n) == 1 && done == (int)n &&
          EVP_CipherFinal_ex(c, out + n, &rest) == 1);
    memcpy(out + n, salt, SALT);
    CHECK(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, TAG, out + n + SALT) == 1);
    EVP_CIPHER_CTX_free(c);
}

bool seal_run_open(const struct seal *s, const void *name, size_t n_name,
                   const void *sealed, size_t n_sealed, void *out)
{
    int done, rest;
    if (n_sealed < SEAL_BYTES || n_sealed > INT_MAX)
        return false;
    size_t n = n_sealed - SEAL_BYTES;
    const uint8_t *salt = (const uint8_t *)sealed + n;
    uint8_t tag[TAG];
    memcpy(tag, salt + SALT, TAG);
    EVP_CIPHER_CTX *c = run_begin(s, name, n_name, salt, 0);
    bool good = EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, TAG, tag) == 1 &&
                EVP_CipherUpdate(c, out, &done, sealed, (int)n) == 1 &&
                EVP_CipherFinal_ex(c, (uint8_t *)out + n, &rest) == 1;
    EVP_CIPHER_CTX_free(c);
    return good;
}

double seal_open_bytes_per_s(const struct seal *s)
{
    enum { N = 1 << 17, SAMPLES = 4 };
    static const uint8_t salt[SALT];
    int64_t best_ns = INT64_MAX;
    uint8_t *run = xcalloc(2, N + SEAL_BYTES), *sealed = run + N + SEAL_BYTES;
    seal_run(s, "", 0, salt, run, N, sealed);
    for (int i = 0; i < SAMPLES; i++) { /* the best one: others may have been interrupted */
        int64_t begin_ns = clock_now_ns();
        CHECK(seal_run_open(s, "", 0, sealed, N + SEAL_BYTES, run));
        int64_t ns = clock_now_ns() - begin_ns;
        best_ns = MIN(best_ns, MAX(ns, 1));
    }
    free(run);
    return N * 1e9 / (double)best_ns;
}

void seal_page_crypt(const struct seal *s, uint64_t kind, uint64_t place, void *bytes,
                     size_t n, bool encrypts)
{
    uint8_t tweak[16];
    int done;
    put_u64(tweak, place);
    put_u64(tweak + 8, kind);
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    CHECK(c != NULL &&
          EVP_CipherInit_ex2(c, s->xts, s->pages, tweak, encrypts, NULL) == 1 &&
          EVP_CipherUpdate(c, bytes, &done, bytes, (int)n) == 1 && done == (int)n);
    EVP_CIPHER_CTX_free(c);
}
