/* test_seal.c - sealed bytes equal an independent program's, and only their own seal opens them. */
#include "seal/seal_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit.h"

enum { N = 100, SEALED = N + SEAL_BYTES };

static struct seal *seal_of(uint8_t first, const char *id)
{
    uint8_t secret[SEAL_KEY_BYTES];
    for (int i = 0; i < SEAL_KEY_BYTES; i++)
        secret[i] = (uint8_t)(first + i);
    return seal_new(secret, id, 16);
}

static void some(uint8_t *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (uint8_t)(i % 251);
}

static void sealed(const struct seal *s, uint8_t out[SEALED])
{
    uint8_t run[N], salt[SEAL_SALT_BYTES];
    some(run, N);
    for (int i = 0; i < SEAL_SALT_BYTES; i++)
        salt[i] = (uint8_t)(100 + i);
    seal_run(s, "name", 4, salt, run, N, out);
}

/* The expected bytes are those of Python's cryptography 50: HKDF, HKDFExpand, AESGCM, and XTS. */
TEST(bytes_are_those_of_another_program)
{
    static const uint8_t head[8] = {0x6f, 0x18, 0x6a, 0xd1, 0xd6, 0x39, 0x47, 0xdc},
                         tag[16] = {0xc6, 0x32, 0x6f, 0xd9, 0x51, 0xef, 0x54, 0xf1,
                                    0xb4, 0xf9, 0x11, 0xff, 0xd9, 0xc7, 0xd3, 0x26};
    static const uint8_t page[40] = {
        0xe7, 0x0e, 0x97, 0xe2, 0xb2, 0x97, 0xce, 0x4a, 0x31, 0xe6, 0xeb, 0x9b, 0x2c, 0xb5,
        0x76, 0x6f, 0x7d, 0xca, 0x4c, 0x4f, 0xb2, 0x20, 0x48, 0x0a, 0xf6, 0xee, 0x8b, 0x15,
        0xd7, 0xde, 0xf7, 0x5b, 0xfd, 0x39, 0xd0, 0x17, 0x40, 0xbf, 0x26, 0xd7};
    struct seal *s = seal_of(0, "sixteen byte id.");
    uint8_t out[SEALED], p[40];
    sealed(s, out);
    assert_memory_equal(out, head, sizeof head);
    assert_memory_equal(out + SEALED - 16, tag, sizeof tag);
    some(p, sizeof p);
    seal_page(s, 3, 7, p, sizeof p);
    assert_memory_equal(p, page, sizeof page);
    seal_free(s);
}

/* Any other bit, name, length, secret or id is refused. In place is as good as elsewhere. */
TEST(opens_only_what_was_sealed)
{
    struct seal *s = seal_of(0, "sixteen byte id."), *key = seal_of(1, "sixteen byte id."),
                *id = seal_of(0, "another store id");
    uint8_t out[SEALED], good[SEALED], run[N], back[SEALED];
    sealed(s, good);
    some(run, N);
    memcpy(out, good, SEALED);
    assert_true(seal_run_open(s, "name", 4, out, SEALED, out));
    assert_memory_equal(out, run, N);
    for (int bit = 0; bit < 8 * SEALED; bit++) {
        memcpy(out, good, SEALED);
        out[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(seal_run_open(s, "name", 4, out, SEALED, back));
    }
    assert_false(seal_run_open(s, "nama", 4, good, SEALED, back));
    assert_false(seal_run_open(s, "name", 4, good + 1, SEALED - 1, back));
    assert_false(seal_run_open(s, "name", 4, good, SEAL_BYTES - 1, back));
    assert_false(seal_run_open(key, "name", 4, good, SEALED, back));
    assert_false(seal_run_open(id, "name", 4, good, SEALED, back));
    assert_true(seal_mark(s) != seal_mark(key) && seal_mark(s) != seal_mark(id));
    seal_free(s);
    seal_free(key);
    seal_free(id);
}

/* A page opens at its own place only. */
TEST(pages_have_places)
{
    struct seal *s = seal_of(0, "sixteen byte id.");
    uint8_t plain[40], p[40];
    some(plain, sizeof plain);
    for (int i = 0; i < 3; i++) {
        some(p, sizeof p);
        seal_page(s, 3, 7, p, sizeof p);
        seal_page_open(s, i == 1 ? 4 : 3, i == 2 ? 8 : 7, p, sizeof p);
        assert_int_equal(memcmp(p, plain, sizeof p) == 0, i == 0);
    }
    seal_free(s);
}

/* Opens a file with these bytes in all three ways. Returns 0, or the common code. */
static int open_all(const struct seal *s, const char *name, const char *bytes, size_t n,
                    size_t n_want)
{
    struct seal_place place = {0};
    struct err err = {0};
    int file = memfd_create("file", 0), memory = -1;
    char *copy = malloc(n + 1), back[2 * SEAL_FRAME_MOST] = {1};
    size_t n_open = n;
    memcpy(copy, bytes, n);
    assert_int_equal(pwrite(file, bytes, n, 0), (ssize_t)n);
    int rc = seal_whole_open(s, name, copy, &n_open, &err);
    assert_int_equal(seal_file_to_memory(s, name, file, &place, &memory, &err), rc);
    if (rc == 0) {
        assert_int_equal(n_open, n_want);
        assert_int_equal(place.n_plain, n_want);
        assert_int_equal(place.n_bytes, n);
        assert_int_equal(read(memory, back, sizeof back), (ssize_t)n_want);
        assert_memory_equal(copy, back, n_want);
        for (size_t i = 0; i < n_want; i++)
            assert_int_equal((uint8_t)copy[i], i % 251);
        close(memory);
    }
    close(file);
    free(copy);
    return rc;
}

/* A sealed file is opened by its own key and name, whole, in its own order, or as a shorter one. */
TEST(files_are_sealed)
{
    enum { MANY = SEAL_FRAME_MOST + 1000, FRAME = 4 + SEAL_FRAME_MOST + SEAL_BYTES };
    static uint8_t plain[MANY];
    static const uint8_t secret[SEAL_KEY_BYTES] = {1}, other[SEAL_KEY_BYTES] = {2};
    struct seal *s = seal_shared(secret), *foreign = seal_shared(other);
    size_t n;
    some(plain, MANY);
    char *file = seal_whole(s, "name", plain, MANY, &n);
    const size_t second = SEAL_HEAD_BYTES + FRAME;
    assert_int_equal(n, second + 4 + 1000 + SEAL_BYTES);
    assert_int_equal(open_all(s, "name", file, n, MANY), 0);
    assert_int_equal(open_all(s, "name", file, second, SEAL_FRAME_MOST), 0);
    assert_int_equal(open_all(s, "name", file, SEAL_HEAD_BYTES, 0), 0);
    assert_int_equal(open_all(s, "nome", file, n, 0), ERR_CORRUPT);
    assert_int_equal(open_all(foreign, "name", file, n, 0), ERR_MISMATCH);
    assert_int_equal(open_all(s, "name", "plain text, and more", 20, 0), ERR_MISMATCH);
    for (size_t cut = second + 1; cut < n; cut += 103)
        assert_int_equal(open_all(s, "name", file, cut, 0), ERR_CORRUPT);
    for (size_t at = SEAL_HEAD_BYTES; at < n;
         at += at < second ? SEAL_FRAME_MOST / 5 : 97) {
        file[at] ^= 16;
        assert_int_equal(open_all(s, "name", file, n, 0), ERR_CORRUPT);
        file[at] ^= 16;
    }
    memmove(file + SEAL_HEAD_BYTES, file + second,
            n - second); /* the second frame comes first */
    assert_int_equal(open_all(s, "name", file, n - FRAME, 0), ERR_CORRUPT);
    free(file);
    seal_free(s);
    seal_free(foreign);
}

/* Only the key tells which bytes a keyed hash is of, and it is no key of a run. */
TEST(hashes_are_keyed)
{
    struct seal *s = seal_of(0, "sixteen byte id."), *key = seal_of(1, "sixteen byte id.");
    uint8_t hash[4][32];
    seal_hash(s, "abc", 3, hash[0]);
    seal_hash(s, "abc", 3, hash[1]);
    seal_hash(s, "abd", 3, hash[2]);
    seal_hash(key, "abc", 3, hash[3]);
    assert_memory_equal(hash[0], hash[1], 32);
    assert_memory_not_equal(hash[0], hash[2], 32);
    assert_memory_not_equal(hash[0], hash[3], 32);
    seal_free(s);
    seal_free(key);
}
