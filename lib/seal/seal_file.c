/* seal_file.c - see seal_file.h. */
#include "seal/seal_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/minmax.h"

static const char magic[8] = "HCSEAL1\n";

enum { FRAME_HEAD = 4, NAME_MOST = 128 };

struct seal *seal_shared(const uint8_t secret[SEAL_KEY_BYTES])
{
    return seal_new(secret, "hcache shared", 13);
}

void seal_head(const struct seal *s, uint8_t out[SEAL_HEAD_BYTES])
{
    memcpy(out, magic, sizeof magic);
    put_u64(out + sizeof magic, seal_mark(s));
}

int seal_head_check(const struct seal *s, const void *bytes, size_t n, const char *what,
                    struct err *err)
{
    bool is_sealed = n >= SEAL_HEAD_BYTES && memcmp(bytes, magic, sizeof magic) == 0;
    if (n == 0 || (!is_sealed && s == NULL) ||
        (is_sealed && get_u64((const uint8_t *)bytes + sizeof magic) == seal_mark(s)))
        return 0;
    if (!is_sealed || s == NULL)
        return err_set(err, ERR_MISMATCH, "%s %s", what,
                       s == NULL
                           ? "is encrypted: give its key (--store-key)"
                           : "is not encrypted, but there is a --store-key: give a new "
                             "file or folder");
    return err_set(
        err, ERR_MISMATCH,
        "%s is encrypted with another key than that of --store-key: it has the mark "
        "%016" PRIx64 ", the key %016" PRIx64,
        what, get_u64((const uint8_t *)bytes + sizeof magic), seal_mark(s));
}

/* Writes the name of a frame. Returns its length. */
static size_t frame_name(const char *file, uint64_t frame, uint8_t out[NAME_MOST])
{
    size_t n = strlen(file);
    CHECK(n + 8 <= NAME_MOST);
    put_u64(out, frame);
    memcpy(out + 8, file, n);
    return n + 8;
}

size_t seal_frames_bytes(size_t n)
{
    size_t n_frames = (n + SEAL_FRAME_MOST - 1) / SEAL_FRAME_MOST;
    return n + n_frames * (FRAME_HEAD + SEAL_BYTES);
}

void seal_frames(const struct seal *s, const char *name, uint64_t *frame, const void *bytes,
                 size_t n, uint8_t *out)
{
    uint8_t salt[SEAL_SALT_BYTES], full[NAME_MOST];
    for (size_t at = 0; at < n; at += SEAL_FRAME_MOST) {
        size_t part = MIN(n - at, SEAL_FRAME_MOST);
        size_t n_name = frame_name(name, (*frame)++, full);
        CHECK(getrandom(salt, sizeof salt, 0) == (ssize_t)sizeof salt);
        put_u32(out, (uint32_t)part);
        seal_run(s, full, n_name, salt, (const uint8_t *)bytes + at, part,
                 out + FRAME_HEAD);
        out += FRAME_HEAD + part + SEAL_BYTES;
    }
}

char *seal_whole(const struct seal *s, const char *name, const void *bytes, size_t n,
                 size_t *n_out)
{
    uint64_t frame = 0;
    *n_out = SEAL_HEAD_BYTES + seal_frames_bytes(n);
    uint8_t *out = xmalloc(*n_out);
    seal_head(s, out);
    seal_frames(s, name, &frame, bytes, n, out + SEAL_HEAD_BYTES);
    return (char *)out;
}

static int wrong(const char *name, struct err *err)
{
    return err_set(err, ERR_CORRUPT, "%s is damaged: an encrypted piece is not right",
                   name);
}

int seal_whole_open(const struct seal *s, const char *name, char *file, size_t *n,
                    struct err *err)
{
    uint8_t *bytes = (uint8_t *)file, full[NAME_MOST];
    size_t at = SEAL_HEAD_BYTES, n_open = 0;
    int rc = seal_head_check(s, file, *n, name, err);
    if (rc != 0 || s == NULL || *n == 0)
        return rc;
    for (uint64_t frame = 0; at < *n; frame++) {
        size_t n_name = frame_name(name, frame, full);
        size_t part = *n - at >= FRAME_HEAD ? get_u32(bytes + at) : SIZE_MAX;
        if (part > SEAL_FRAME_MOST || *n - at < FRAME_HEAD + part + SEAL_BYTES)
            return wrong(name, err);
        at += FRAME_HEAD;
        if (!seal_run_open(s, full, n_name, bytes + at, part + SEAL_BYTES, bytes + at))
            return wrong(name, err);
        memmove(bytes + n_open, bytes + at, part);
        n_open += part;
        at += part + SEAL_BYTES;
    }
    bytes[n_open] = 0;
    *n = n_open;
    return 0;
}

/* Reads up to n bytes. Returns how many there were before the end of the file, or -errno. */
static ssize_t read_some(int fd, void *to, size_t n, uint64_t at)
{
    size_t got = 0;
    while (got < n) {
        ssize_t more = pread(fd, (char *)to + got, n - got, (off_t)(at + got));
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0)
            return -errno;
        if (more == 0)
            break;
        got += (size_t)more;
    }
    return (ssize_t)got;
}

int seal_frame_read(const struct seal *s, const char *name, int fd, struct seal_place *p,
                    void *out, size_t *n, struct err *err)
{
    uint8_t head[SEAL_HEAD_BYTES], full[NAME_MOST];
    ssize_t got = 0;
    *n = 0;
    if (p->n_bytes == 0) {
        got = read_some(fd, head, sizeof head, 0);
        int rc = got < 0 ? err_set(err, (int)got, "%s: %s", name, strerror((int)-got))
                         : seal_head_check(s, head, (size_t)got, name, err);
        if (rc != 0 || got == 0)
            return rc;
        p->n_bytes = sizeof head;
    }
    got = read_some(fd, head, FRAME_HEAD, p->n_bytes);
    if (got == 0)
        return 0;
    size_t part = got == FRAME_HEAD ? get_u32(head) : SIZE_MAX;
    if (got >= 0 && part > SEAL_FRAME_MOST)
        return wrong(name, err);
    if (got >= 0)
        got = read_some(fd, out, part + SEAL_BYTES, p->n_bytes + FRAME_HEAD);
    if (got < 0)
        return err_set(err, (int)got, "%s: %s", name, strerror((int)-got));
    if (!seal_run_open(s, full, frame_name(name, p->frame, full), out, (size_t)got, out) ||
        (size_t)got != part + SEAL_BYTES)
        return wrong(name, err);
    p->frame++;
    p->n_bytes += FRAME_HEAD + part + SEAL_BYTES;
    p->n_plain += part;
    *n = part;
    return 0;
}

int seal_file_bytes(int fd, uint64_t *out)
{
    uint8_t head[FRAME_HEAD];
    ssize_t got;
    *out = 0;
    for (uint64_t at = SEAL_HEAD_BYTES; (got = read_some(fd, head, FRAME_HEAD, at)) > 0;) {
        uint32_t n = got == FRAME_HEAD ? get_u32(head) : 0;
        *out += n;
        at += FRAME_HEAD + n + SEAL_BYTES;
    }
    return (int)got;
}

int seal_file_to_memory(const struct seal *s, const char *name, int fd,
                        struct seal_place *p, int *out, struct err *err)
{
    char *buffer = xmalloc(SEAL_FRAME_MOST + SEAL_BYTES);
    size_t n = 1;
    int rc = 0, memory = memfd_create("hcache", MFD_CLOEXEC);
    *p = (struct seal_place){0};
    if (memory < 0)
        rc = err_set(err, -errno, "no memory for %s: %s", name, strerror(errno));
    while (rc == 0 && n > 0) {
        rc = seal_frame_read(s, name, fd, p, buffer, &n, err);
        int written = rc == 0 ? file_write_all(memory, buffer, n, -1) : 0;
        if (written != 0)
            rc = err_set(err, written, "no memory for %s: %s", name, strerror(-written));
    }
    if (rc == 0 && lseek(memory, 0, SEEK_SET) != 0)
        rc = err_set(err, -errno, "%s: %s", name, strerror(errno));
    free(buffer);
    if (rc == 0)
        *out = memory;
    else if (memory >= 0)
        close(memory);
    return rc;
}
