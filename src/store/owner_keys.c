/* owner_keys.c - see owner_keys.h. */
#include "store/owner_keys.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/io.h"

#define FILE_NAME "owners.keys"

enum {
    BLOCK = 4096,
    SLOT = 128,
    BLOCK_SLOTS = BLOCK / SLOT,
    WRAPPED = 8 + SEAL_KEY_BYTES,
    SEALED = WRAPPED + SEAL_BYTES
};

struct slot {
    uint64_t owner;
    struct seal *seal; /* NULL: the slot is free */
};

struct owner_keys {
    struct io *io;
    const struct seal *seal;
    char *path, *dir;
    uint8_t uuid[32];
    size_t n_uuid;
    bool read_only;
    pthread_mutex_t lock; /* protects the fields below; held while the file is written */
    struct slot *slots;   /* [n] in the file's order */
    uint32_t n;
    struct seal **dead; /* [n_dead] seals of erased owners, which somebody may still use */
    uint32_t n_dead;
    bool is_new; /* the file's name is not durable yet */
};

static uint64_t offset_of(uint32_t slot, int copy)
{
    return (uint64_t)(slot / BLOCK_SLOTS) * 2 * BLOCK + (uint64_t)copy * BLOCK +
           slot % BLOCK_SLOTS * SLOT;
}

/* Opens one copy of a slot. Returns false if it is free or damaged. */
static bool slot_open(const struct owner_keys *k, const uint8_t *at, uint8_t out[WRAPPED])
{
    return seal_run_open(k->seal, "owner", 5, at, SEALED, out);
}

static struct seal *seal_of(const struct owner_keys *k, const uint8_t *wrapped)
{
    return seal_new(wrapped + 8, k->uuid, k->n_uuid);
}

/* Writes a slot to both copies, one after the other. */
static int slot_write(struct owner_keys *k, uint32_t slot, const uint8_t bytes[SLOT],
                      struct err *err)
{
    int rc = 0;
    for (int copy = 0; rc == 0 && copy < 2; copy++)
        rc = io_write_durably(k->io, k->path, IO_CREATE, bytes, SLOT, offset_of(slot, copy),
                              err);
    if (rc == 0 && k->is_new)
        rc = io_dir_sync(k->io, k->dir, err);
    k->is_new = k->is_new && rc != 0;
    return rc;
}

/* Reads the whole file. The caller frees *out. *n is a multiple of two blocks; zeros fill the rest.
 * A missing file has no bytes, and its first write makes its name durable (is_new). */
static int file_read(struct owner_keys *k, uint8_t **out, size_t *n, struct err *err)
{
    struct io_file *f = NULL;
    uint64_t size = 0;
    size_t got = 0;
    *out = NULL;
    *n = 0;
    int rc = io_file_open(k->io, k->path, IO_READ_ONLY, &f, err);
    k->is_new = rc == -ENOENT;
    if (rc != 0)
        return rc == -ENOENT ? 0 : rc;
    rc = io_file_size(f, &size, err);
    size = round_up(size, 2 * (uint64_t)BLOCK);
    if (rc == 0 && (*out = mem_try(size + 1)) == NULL)
        rc = err_set(err, -ENOMEM, "no memory for %s", k->path);
    if (rc == 0)
        memset(*out, 0, size);
    if (rc == 0)
        rc = io_file_pread_some(f, *out, size, 0, &got, err);
    *n = size;
    io_file_close(f);
    return rc;
}

/* Loads the slots. Mends copies in the file that differ from a good one, unless read_only. */
static int load(struct owner_keys *k, struct err *err)
{
    static const uint8_t zeros[SLOT];
    uint8_t *bytes, wrapped[WRAPPED];
    size_t n_bytes;
    int rc = file_read(k, &bytes, &n_bytes, err);
    uint32_t n = (uint32_t)(n_bytes / (2 * BLOCK)) * BLOCK_SLOTS;
    for (uint32_t i = 0; i < k->n; i++)
        seal_free(k->slots[i].seal);
    free(k->slots);
    k->n = rc == 0 ? n : 0;
    k->slots = xcalloc(k->n + 1, sizeof k->slots[0]);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        uint8_t *a = bytes + offset_of(i, 0), *b = bytes + offset_of(i, 1);
        bool is_good = slot_open(k, a, wrapped);
        const uint8_t *good = is_good ? a : b;
        is_good = is_good || slot_open(k, b, wrapped);
        if (is_good)
            k->slots[i] = (struct slot){get_u64(wrapped), seal_of(k, wrapped)};
        if (!is_good && (memcmp(a, zeros, SLOT) != 0 || memcmp(b, zeros, SLOT) != 0))
            log_warn("%s: slot %u is damaged: the state of its owner is lost", k->path, i);
        if (is_good && !k->read_only && memcmp(a, b, SLOT) != 0)
            rc = slot_write(k, i, memcpy(good == a ? b : a, good, SLOT), err);
    }
    explicit_bzero(wrapped, sizeof wrapped);
    free(bytes);
    return rc;
}

int owner_keys_open(struct io *io, const char *dir, const struct seal *seal,
                    const uint8_t *uuid, size_t n_uuid, bool read_only,
                    struct owner_keys **out, struct err *err)
{
    struct owner_keys *k = xcalloc(1, sizeof *k);
    *k = (struct owner_keys){
        .io = io, .seal = seal, .n_uuid = n_uuid, .read_only = read_only};
    memcpy(k->uuid, uuid, n_uuid);
    k->dir = xstrdup(dir);
    k->path = xasprintf("%s/" FILE_NAME, dir);
    pthread_mutex_init(&k->lock, NULL);
    int rc = load(k, err);
    if (rc != 0) {
        owner_keys_close(k);
        return rc;
    }
    *out = k;
    return 0;
}

void owner_keys_close(struct owner_keys *k)
{
    if (k == NULL)
        return;
    for (uint32_t i = 0; i < k->n; i++)
        seal_free(k->slots[i].seal);
    for (uint32_t i = 0; i < k->n_dead; i++)
        seal_free(k->dead[i]);
    pthread_mutex_destroy(&k->lock);
    free(k->slots);
    free(k->dead);
    free(k->path);
    free(k->dir);
    free(k);
}

/* [lock] Returns the owner's slot, or k->n. */
static uint32_t find(const struct owner_keys *k, uint64_t owner)
{
    uint32_t i = 0;
    while (i < k->n && (k->slots[i].seal == NULL || k->slots[i].owner != owner))
        i++;
    return i;
}

const struct seal *owner_keys_find(struct owner_keys *k, uint64_t owner)
{
    if (k == NULL)
        return NULL;
    pthread_mutex_lock(&k->lock);
    uint32_t i = find(k, owner);
    const struct seal *seal = i < k->n ? k->slots[i].seal : NULL;
    pthread_mutex_unlock(&k->lock);
    return seal;
}

/* [lock] Makes a key for an owner, and returns its slot by *slot. */
static int make(struct owner_keys *k, uint64_t owner, uint32_t *slot, struct err *err)
{
    uint8_t wrapped[WRAPPED], salt[SEAL_SALT_BYTES], bytes[SLOT] = {0};
    uint32_t i = 0;
    while (i < k->n && k->slots[i].seal != NULL)
        i++;
    *slot = i;
    if (i == k->n) {
        k->slots = xrealloc(k->slots, (k->n + BLOCK_SLOTS) * sizeof k->slots[0]);
        memset(k->slots + k->n, 0, BLOCK_SLOTS * sizeof k->slots[0]);
        k->n += BLOCK_SLOTS;
    }
    put_u64(wrapped, owner);
    int rc = io_random(k->io, wrapped + 8, SEAL_KEY_BYTES, err);
    if (rc == 0)
        rc = io_random(k->io, salt, sizeof salt, err);
    if (rc == 0)
        seal_run(k->seal, "owner", 5, salt, wrapped, WRAPPED, bytes);
    if (rc == 0)
        rc = slot_write(k, i, bytes, err);
    if (rc == 0)
        k->slots[i] = (struct slot){owner, seal_of(k, wrapped)};
    explicit_bzero(wrapped, sizeof wrapped);
    return rc;
}

int owner_keys_get(struct owner_keys *k, uint64_t owner, const struct seal **out,
                   struct err *err)
{
    pthread_mutex_lock(&k->lock);
    uint32_t i = find(k, owner);
    int rc = i < k->n ? 0 : make(k, owner, &i, err);
    *out = rc == 0 ? k->slots[i].seal : NULL;
    pthread_mutex_unlock(&k->lock);
    return rc;
}

int owner_keys_erase(struct owner_keys *k, uint64_t owner, struct err *err)
{
    static const uint8_t zeros[SLOT];
    if (k == NULL)
        return 0;
    pthread_mutex_lock(&k->lock);
    uint32_t i = find(k, owner);
    int rc = i < k->n ? slot_write(k, i, zeros, err) : 0;
    if (rc == 0 && i < k->n) {
        k->dead = xrealloc(k->dead, (k->n_dead + 1) * sizeof k->dead[0]);
        k->dead[k->n_dead++] = k->slots[i].seal;
        k->slots[i] = (struct slot){0};
    }
    pthread_mutex_unlock(&k->lock);
    return rc;
}
