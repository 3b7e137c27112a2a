/* cufile_fake.c - see cufile_fake.h.
 *
 * It checks these rules: copies through host memory are forbidden before the driver is opened;
 * nothing is called without the driver; files and memory are registered once and deregistered;
 * reads are whole blocks of 4 KiB within the registered memory; a batch gets no more reads than it
 * was set up for, and none while some of its reads are in flight. */
#include "cufile_fake.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct error {
    int code, driver_code;
};
struct descr {
    int type;
    union {
        int fd;
        void *pointer;
    } handle;
    const void *fs_ops;
};
struct io {
    int mode;
    char *base;
    off_t file_offset, base_offset;
    size_t size;
    int *file;
    int op;
    void *cookie;
};
struct event {
    void *cookie;
    int status;
    size_t ret;
};
enum { MOST = 64, PAGE = 4096 };
enum { COMPLETE = 0x10, CANCELED = 0x8, FAILED = 0x40 };

struct fake_batch {
    unsigned room, n;
    bool canceled;
    struct io io[MOST];
    bool ended[MOST], stuck[MOST];
};

/* The loader looks these symbols up by name: the functions of cuFile that the program uses, and
 * that of cufile_fake.h. */
struct cufile_fake *cufile_fake(void);
struct error cuFileSetParameterBool(int param, bool value);
struct error cuFileDriverOpen(void);
struct error cuFileDriverClose_v2(void);
struct error cuFileDriverGetProperties(unsigned *p);
struct error cuFileHandleRegister(int **file, struct descr *d);
void cuFileHandleDeregister(int *file);
struct error cuFileBufRegister(char *base, size_t n, int flags);
struct error cuFileBufDeregister(const char *base);
struct error cuFileBatchIOSetUp(struct fake_batch **b, unsigned n);
struct error cuFileBatchIOSubmit(struct fake_batch *b, unsigned n, struct io *io,
                                 unsigned flags);
struct error cuFileBatchIOGetStatus(struct fake_batch *b, unsigned min, unsigned *n,
                                    struct event *e, struct timespec *timeout);
struct error cuFileBatchIOCancel(struct fake_batch *b);
void cuFileBatchIODestroy(struct fake_batch *b);

static struct cufile_fake f;
static bool is_open;
static int n_files_now, n_batches_now;
static char *memory;
static size_t memory_bytes;

struct cufile_fake *cufile_fake(void)
{
    return &f;
}

static void rule(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "cufile: %s\n", what);
    abort();
}

static bool fails(int *left)
{
    return *left >= 0 && (*left)-- == 0;
}

static struct error result(int *left, int code)
{
    return (struct error){fails(left) ? code : 0, 0};
}

struct error cuFileSetParameterBool(int param, bool value)
{
    rule(!is_open, "a parameter is set after the driver was opened");
    rule(param == 1 && !value, "not what forbids copies through host memory");
    struct error e = result(&f.fail_forbid, 5022);
    f.compat_forbidden += e.code == 0;
    return e;
}

struct error cuFileDriverOpen(void)
{
    rule(getenv("CUFILE_LOGFILE_PATH") != NULL,
         "the log would be written to the current folder");
    rule(f.compat_forbidden > 0, "opened while it may copy through host memory");
    rule(!is_open, "opened twice");
    struct error e = result(&f.fail_driver, 5001);
    is_open = e.code == 0;
    f.n_opened += is_open;
    return e;
}

struct error cuFileDriverClose_v2(void)
{
    rule(is_open && n_files_now == 0 && n_batches_now == 0 && memory == NULL,
         "closed while something is registered");
    is_open = false;
    f.n_closed++;
    return (struct error){0, 0};
}

/* The properties have 56 bytes. The eighth 4-byte number has the control flags, the ninth the
 * features. */
struct error cuFileDriverGetProperties(unsigned *p)
{
    memset(p, 0, 56);
    /* compatibility mode is on by default; the parameter overrides this flag */
    p[7] = 1u << 1;
    p[8] = f.no_batches ? 0 : 1u << 1;
    return (struct error){0, 0};
}

struct error cuFileHandleRegister(int **file, struct descr *d)
{
    rule(is_open && d->type == 1 && fcntl(d->handle.fd, F_GETFD) >= 0, "no file");
    struct error e = result(&f.fail_file, 5008);
    if (e.code != 0)
        return e;
    *file = malloc(sizeof **file);
    **file = d->handle.fd;
    n_files_now++;
    f.n_files++;
    return e;
}

void cuFileHandleDeregister(int *file)
{
    n_files_now--;
    *file = -1;
    free(file);
}

struct error cuFileBufRegister(char *base, size_t n, int flags)
{
    rule(is_open && memory == NULL && flags == 0 && n % PAGE == 0, "memory");
    struct error e = result(&f.fail_memory, 5036);
    memory = e.code == 0 ? base : NULL;
    memory_bytes = n;
    return e;
}

struct error cuFileBufDeregister(const char *base)
{
    rule(memory == base && base != NULL, "memory that is not registered");
    memory = NULL;
    return (struct error){0, 0};
}

struct error cuFileBatchIOSetUp(struct fake_batch **b, unsigned n)
{
    rule(is_open && n <= MOST, "a batch");
    *b = calloc(1, sizeof **b);
    (*b)->room = n;
    n_batches_now++;
    return (struct error){0, 0};
}

static bool is_under_way(const struct fake_batch *b)
{
    for (unsigned i = 0; i < b->n; i++)
        if (!b->ended[i])
            return true;
    return false;
}

struct error cuFileBatchIOSubmit(struct fake_batch *b, unsigned n, struct io *io,
                                 unsigned flags)
{
    rule(n > 0 && n <= b->room && flags == 0 && !is_under_way(b),
         "a batch that is not free");
    for (unsigned i = 0; i < n; i++) {
        const struct io *a = &io[i];
        rule(a->mode == 1 && a->op == 0 && *a->file >= 0,
             "not a read of a registered file");
        rule(a->file_offset % PAGE == 0 && a->base_offset % PAGE == 0 &&
                 a->size % PAGE == 0 && a->size > 0,
             "not whole blocks");
        rule(a->base == memory && a->base_offset >= 0 &&
                 (size_t)a->base_offset + a->size <= memory_bytes,
             "memory that is not registered");
    }
    struct error e = result(&f.fail_submit, 5035);
    if (e.code != 0)
        return e;
    memcpy(b->io, io, n * sizeof *io);
    memset(b->ended, 0, sizeof b->ended);
    memset(b->stuck, 0, sizeof b->stuck);
    b->n = n;
    b->canceled = false;
    f.n_batches++;
    return e;
}

/* Reads the file into device memory; called only when the caller learns of the read's end. */
static void do_read(struct fake_batch *b, unsigned i, struct event *e)
{
    const struct io *a = &b->io[i];
    size_t n = a->size - (fails(&f.short_read) ? PAGE : 0);
    char *page = aligned_alloc(PAGE, a->size); /* the file may bypass the page cache */
    memset(page, 0x5a, a->size);
    *e = (struct event){a->cookie, COMPLETE, n};
    if (fails(&f.fail_read)) {
        *e = (struct event){a->cookie, FAILED, (size_t)-5};
    } else {
        rule(pread(*a->file, page, n, a->file_offset) == (ssize_t)n, "a read failed");
        if (fails(&f.flip_read))
            page[n / 3] ^= 16;
    }
    rule(f.copy(a->base + a->base_offset, page, a->size, 1, NULL) == 0 && f.sync(NULL) == 0,
         "a copy failed");
    free(page);
    f.n_reads++;
    f.n_bytes += n;
}

/* Reports one read at a time, and sometimes none: the caller must ask again. */
struct error cuFileBatchIOGetStatus(struct fake_batch *b, unsigned min, unsigned *n,
                                    struct event *e, struct timespec *timeout)
{
    unsigned most = *n, left = 0;
    rule(most >= min, "no room for what is wanted");
    *n = 0;
    struct error failed = result(&f.fail_status, 5041);
    if (failed.code != 0)
        return failed;
    for (unsigned i = 0; i < b->n && *n < most && *n < 1; i++) {
        if (b->ended[i])
            continue;
        b->stuck[i] |= fails(&f.stuck_read);
        if (b->stuck[i] && !b->canceled) {
            left++;
            continue;
        }
        if (b->canceled)
            e[(*n)++] = (struct event){b->io[i].cookie, CANCELED, 0};
        else
            do_read(b, i, &e[(*n)++]);
        b->ended[i] = true;
    }
    if (*n == 0 && left > 0)
        nanosleep(timeout, NULL);
    return failed;
}

struct error cuFileBatchIOCancel(struct fake_batch *b)
{
    b->canceled = true;
    f.n_cancels++;
    return (struct error){0, 0};
}

void cuFileBatchIODestroy(struct fake_batch *b)
{
    n_batches_now--;
    free(b);
}
