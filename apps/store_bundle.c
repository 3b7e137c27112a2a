/* store_bundle.c - see store_bundle.h. */
#include "apps/store_bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "io/io.h"
#include "io/io_erase.h"
#include "seal/seal_file.h"
#include "store/parcel.h"

enum { BLOCK = CHUNK_HEADER_BYTES, B_VERSION = 8, B_SUM = 16, B_COUNT = 24, VERSION = 2 };
enum { READS_IN_FLIGHT = 16, COMMIT_CHUNKS = 64 };

static const char begins[8] = "HCBUNDLE", has_turns[8] = "HCBTURNS", ends[8] = "HCBUNEND";

/* Limit on the text of a conversation. */
#define MAX_TURNS_BYTES ((uint64_t)4 << 30)

static void block_make(uint8_t *block, const char *magic, uint64_t count)
{
    memset(block, 0, BLOCK);
    memcpy(block, magic, 8);
    put_u32(block + B_VERSION, VERSION);
    put_u64(block + B_COUNT, count);
    put_u64(block + B_SUM, checksum64(block, BLOCK));
}

static int block_check(const uint8_t *block, const char *magic, uint64_t *count,
                       struct err *err)
{
    uint8_t copy[BLOCK];
    memcpy(copy, block, BLOCK);
    put_u64(copy + B_SUM, 0);
    if (memcmp(block, magic, 8) != 0)
        return err_set(err, ERR_FORMAT, "this is not a file of exported chunks");
    if (checksum64(copy, BLOCK) != get_u64(block + B_SUM))
        return err_set(err, ERR_CORRUPT, "the file is damaged: a checksum does not hold");
    if (get_u32(block + B_VERSION) != VERSION)
        return err_set(err, ERR_UNSUPPORTED,
                       "the file has version %u; this build knows only %d",
                       get_u32(block + B_VERSION), VERSION);
    *count = get_u64(block + B_COUNT);
    return 0;
}

/* --- encrypted files -------------------------------------------------------------------------- */

/* A stream over a sealed file. The file below it stays open. */
struct sealed {
    const struct seal *seal;
    FILE *f;
    struct seal_place place;
    uint64_t frame; /* of the next frame that is written */
    size_t at, n;   /* buffer[at, n) is to be handed out, or to be written */
    uint8_t buffer[SEAL_FRAME_MOST + SEAL_BYTES];
};
static const char export_name[] = "export";

static ssize_t sealed_read(void *arg, char *out, size_t n)
{
    struct sealed *z = arg;
    struct err err = {0};
    if (z->at == z->n) {
        z->at = 0;
        if (seal_frame_read(z->seal, export_name, fileno(z->f), &z->place, z->buffer, &z->n,
                            &err) != 0) {
            z->n = 0;
            errno = err.code == ERR_CORRUPT ? EBADMSG : EIO;
            return -1;
        }
    }
    n = MIN(n, z->n - z->at);
    memcpy(out, z->buffer + z->at, n);
    z->at += n;
    return (ssize_t)n;
}

static bool sealed_flush(struct sealed *z)
{
    size_t n = seal_frames_bytes(z->n);
    uint8_t *frames = xmalloc(n);
    seal_frames(z->seal, export_name, &z->frame, z->buffer, z->n, frames);
    z->n = 0;
    bool good = fwrite(frames, 1, n, z->f) == n;
    free(frames);
    return good;
}

static ssize_t sealed_write(void *arg, const char *bytes, size_t n)
{
    struct sealed *z = arg;
    for (size_t at = 0, part; at < n; at += part) {
        part = MIN(n - at, SEAL_FRAME_MOST - z->n);
        memcpy(z->buffer + z->n, bytes + at, part);
        z->n += part;
        if (z->n == SEAL_FRAME_MOST && !sealed_flush(z))
            return 0;
    }
    return (ssize_t)n;
}

static int sealed_close(void *arg)
{
    struct sealed *z = arg;
    bool good = z->place.n_bytes != 0 || z->n == 0 || sealed_flush(z);
    free(z);
    return good ? 0 : EOF;
}

/* Opens a stream of the bytes in a sealed file, to be read or to be written. */
static FILE *sealed_open(const struct seal *seal, FILE *f, const char *mode)
{
    uint8_t head[SEAL_HEAD_BYTES];
    const cookie_io_functions_t calls = {
        .read = sealed_read, .write = sealed_write, .close = sealed_close};
    struct sealed *z = xcalloc(1, sizeof *z);
    *z = (struct sealed){.seal = seal, .f = f};
    seal_head(seal, head);
    if (mode[0] == 'w' && fwrite(head, 1, sizeof head, f) != sizeof head) {
        free(z);
        return NULL;
    }
    FILE *out = fopencookie(z, mode, calls);
    if (out == NULL)
        free(z);
    return out;
}

/* --- out -------------------------------------------------------------------------------------- */

static int put(FILE *f, const void *bytes, size_t n, struct err *err)
{
    return fwrite(bytes, 1, n, f) == n
               ? 0
               : err_set(err, -errno, "writing: %s", strerror(errno));
}

static int write_chunks(struct store *s, const struct sha256 *keys, int n, FILE *f,
                        struct bundle_counts *out, struct err *err)
{
    struct store_reader *reader = NULL;
    struct parcel p = {0};
    int rc = store_reader_open(s, READS_IN_FLIGHT, NULL, 0, &reader, err);
    for (int i = 0; rc == 0 && i < n; i++) {
        int one = parcel_read(s, reader, &keys[i], &p, err);
        if (one == ERR_NOT_FOUND || one == ERR_CORRUPT) {
            out->n_gone++;
            continue;
        }
        rc = one == 0 ? put(f, p.bytes, p.n_bytes, err) : one;
        out->n_chunks += rc == 0;
        out->n_bytes += rc == 0 ? p.n_bytes : 0;
    }
    store_reader_close(reader);
    parcel_deinit(&p);
    return rc;
}

static int write_turns(const char *text, FILE *f, struct err *err)
{
    uint8_t block[BLOCK], sum[8];
    size_t n = strlen(text), n_zeros = (size_t)round_up(n + 8, BLOCK) - n - 8;
    block_make(block, has_turns, n);
    put_u64(sum, checksum64(text, n));
    int rc = put(f, block, BLOCK, err);
    if (rc == 0)
        rc = put(f, text, n, err);
    if (rc == 0)
        rc = put(f, sum, sizeof sum, err);
    memset(block, 0, BLOCK);
    return rc == 0 ? put(f, block, n_zeros, err) : rc;
}

static int write_all(struct store *s, const struct sha256 *keys, int n, const char *turns,
                     FILE *f, struct bundle_counts *out, struct err *err)
{
    uint8_t block[BLOCK];
    block_make(block, begins, 0);
    int rc = put(f, block, BLOCK, err);
    if (rc == 0 && turns != NULL)
        rc = write_turns(turns, f, err);
    if (rc == 0)
        rc = write_chunks(s, keys, n, f, out, err);
    block_make(block, ends, out->n_chunks);
    if (rc == 0)
        rc = put(f, block, BLOCK, err);
    if (rc == 0 && fflush(f) != 0)
        rc = err_set(err, -errno, "writing: %s", strerror(errno));
    return rc;
}

/* As write_all, and makes the file durable. */
static int write_file(struct store *s, const struct seal *seal, const struct sha256 *keys,
                      int n, const char *turns, FILE *f, struct bundle_counts *out,
                      struct err *err)
{
    FILE *to = seal != NULL ? sealed_open(seal, f, "w") : f;
    if (to == NULL)
        return err_set(err, -ENOMEM, "no memory for a file");
    int rc = write_all(s, keys, n, turns, to, out, err);
    if (to != f && fclose(to) != 0 && rc == 0)
        rc = err_set(err, -errno, "writing: %s", strerror(errno));
    if (rc == 0 && (fflush(f) != 0 || fsync(fileno(f)) != 0))
        rc = err_set(err, -errno, "writing: %s", strerror(errno));
    return rc;
}

/* Renames the finished file unless the new name exists. The file system may not support both in one
 * step (EINVAL). Then an existing file is replaced. */
static int name_it(const char *tmp, const char *path)
{
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EINVAL ? rename(tmp, path) : -1;
}

int bundle_write(struct store *s, const struct seal *seal, const struct sha256 *keys, int n,
                 const char *turns, const char *path, struct bundle_counts *out,
                 struct err *err)
{
    char *tmp = xasprintf("%s.part", path);
    struct io *io = io_pread_open();
    *out = (struct bundle_counts){0};
    struct stat st;
    int rc = 0, fd = -1;
    if (lstat(path, &st) == 0)
        rc = err_set(err, -EEXIST, "%s already exists", path);
    if (rc == 0) {
        (void)io_erase(io, tmp, NULL); /* an export that was killed leaves such a file */
        fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (rc == 0 && f == NULL)
        rc = err_set(err, -errno, "%s: %s", tmp, strerror(errno));
    if (rc == 0) {
        rc = write_file(s, seal, keys, n, turns, f, out, err);
        fclose(f);
        if (rc == 0 && name_it(tmp, path) != 0)
            rc = err_set(err, -errno, "%s: %s", path, strerror(errno));
        struct err why = {0};
        if (rc != 0 && io_erase(io, tmp, &why) != 0 && why.code != -ENOENT)
            log_warn("%s still holds a part of the export: %s", tmp, why.msg);
        if (rc == 0)
            rc = io_parent_sync(io, path, err);
    }
    io_close(io);
    free(tmp);
    return rc;
}

/* --- in --------------------------------------------------------------------------------------- */

static int get(FILE *f, void *bytes, size_t n, struct err *err)
{
    if (fread(bytes, 1, n, f) == n)
        return 0;
    return ferror(f) && errno == EBADMSG
               ? err_set(err, ERR_CORRUPT,
                         "the file is cut or damaged: the chunks before that were stored. "
                         "Export it again")
           : ferror(f)
               ? err_set(err, -errno, "reading: %s", strerror(errno))
               : err_set(err, ERR_FORMAT,
                         "the file ends too early: the chunks before the end were stored");
}

/* Returns whether the store has all records of the chunk. */
static bool is_known(struct store *s, const struct chunk_header *h)
{
    struct store_hit hit;
    struct store_mask want = chunk_mask(h->records, h->n_records);
    if (!store_pin(s, &h->key, &hit))
        return false;
    bool known = true;
    for (int k = 0; k < STORE_KINDS; k++)
        for (int i = 0; i < STORE_MAX_LAYERS / 64; i++)
            known = known && (want.has[k][i] & ~hit.mask.has[k][i]) == 0;
    store_release(s, &hit, 1);
    return known;
}

/* Reads a parcel, whose first block the caller has already read, and appends its chunk. */
static int read_chunk(struct store *s, FILE *f, const uint8_t *block, struct parcel *p,
                      struct bundle_counts *out, struct err *err)
{
    struct chunk_header h;
    const struct store_use use = {0};
    int rc = chunk_header_decode(block, &h, err);
    if (rc == 0)
        rc = parcel_reserve(p, h.n_bytes, err);
    if (rc != 0)
        return rc;
    memcpy(p->bytes, block, BLOCK);
    rc = get(f, p->bytes + BLOCK, p->n_bytes - BLOCK, err);
    if (rc == 0)
        rc = parcel_check(p->bytes, p->n_bytes, &h, err);
    if (rc != 0)
        return rc;
    if (is_known(s, &h)) {
        out->n_known++;
        return 0;
    }
    rc = parcel_append(s, p->bytes, &h, &use, err);
    out->n_chunks += rc == 0;
    out->n_bytes += rc == 0 ? p->n_bytes : 0;
    return rc == 0 && out->n_chunks % COMMIT_CHUNKS == 0 ? store_commit(s, err) : rc;
}

/* Reads the text of a conversation, whose first block the caller has already read. */
static int read_turns(FILE *f, const uint8_t *block, char **out, struct err *err)
{
    uint64_t n;
    int rc = block_check(block, has_turns, &n, err);
    if (rc != 0)
        return rc;
    if (n > MAX_TURNS_BYTES || *out != NULL)
        return err_set(err, ERR_FORMAT,
                       "the file has more than one conversation, or one that is too large: "
                       "hcache store export did not write it");
    size_t n_all = (size_t)round_up(n + 8, BLOCK);
    char *text = mem_try(n_all);
    if (text == NULL)
        return err_set(err, -ENOMEM, "no memory for a conversation of %" PRIu64 " bytes",
                       n);
    rc = get(f, text, n_all, err);
    if (rc == 0 && checksum64(text, n) != get_u64((uint8_t *)text + n))
        rc = err_set(err, ERR_CORRUPT, "the file is damaged: a checksum does not hold");
    text[n] = 0;
    if (rc == 0)
        *out = text;
    else
        free(text);
    return rc;
}

static int read_all(struct store *s, FILE *f, char **turns, struct bundle_counts *out,
                    struct err *err)
{
    struct parcel p = {0};
    uint8_t block[BLOCK];
    uint64_t n_read = 0, n_told = 0;
    int rc = get(f, block, BLOCK, err);
    if (rc == 0)
        rc = block_check(block, begins, &n_told, err);
    while (rc == 0 && (rc = get(f, block, BLOCK, err)) == 0 &&
           memcmp(block, ends, sizeof ends) != 0) {
        if (memcmp(block, has_turns, sizeof has_turns) == 0) {
            rc = read_turns(f, block, turns, err);
            continue;
        }
        rc = read_chunk(s, f, block, &p, out, err);
        n_read += rc == 0;
    }
    if (rc == 0)
        rc = block_check(block, ends, &n_told, err);
    if (rc == 0 && n_told != n_read)
        rc = err_set(err, ERR_CORRUPT,
                     "the file has %" PRIu64 " chunks, but its end mark says %" PRIu64,
                     n_read, n_told);
    if (rc == 0 && fgetc(f) != EOF)
        rc = err_set(err, ERR_FORMAT, "the file continues after its end mark");
    parcel_deinit(&p);
    return rc;
}

int bundle_read(struct store *s, const struct seal *seal, const char *path, char **turns,
                struct bundle_counts *out, struct err *err)
{
    *out = (struct bundle_counts){0};
    *turns = NULL;
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    uint8_t head[SEAL_HEAD_BYTES];
    size_t n = fread(head, 1, sizeof head, f);
    bool is_sealed = seal_head_check(NULL, head, n, path, NULL) != 0;
    int rc = is_sealed ? seal_head_check(seal, head, n, path, err) : 0;
    rewind(f);
    if (rc != 0) {
        fclose(f);
        return rc;
    }
    FILE *from = is_sealed ? sealed_open(seal, f, "r") : f;
    rc = from != NULL ? read_all(s, from, turns, out, err)
                      : err_set(err, -ENOMEM, "no memory for a file");
    if (is_sealed && from != NULL)
        fclose(from);
    int committed = store_commit(s, rc == 0 ? err : NULL);
    fclose(f);
    if (rc != 0 && err->code != 0)
        err_wrap(err, "%s", path);
    return rc != 0 ? rc : committed;
}
