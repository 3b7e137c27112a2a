/* cufile.c - reads files into the GPU's memory: GPUDirect Storage with cuFile, which is loaded when
 * a restore pipeline is created.
 *
 * Only direct reads are used.  cuFile's compatibility mode reads to host memory and copies from
 * there, which this program does better itself, with tests.  So the mode is forbidden before the
 * driver is opened (CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, which overrides cufile.json and the
 * environment).  Then opening fails without kernel support (CU_FILE_DRIVER_NOT_INITIALIZED), and
 * registering a file fails on an unsuitable file system (CU_FILE_IO_NOT_SUPPORTED).  A library too
 * old for that parameter must report that the mode is off (CU_FILE_ALLOW_COMPAT_MODE in the
 * driver's control flags).
 *
 * A batch of reads has a cuFile handle, which is reused when all its reads have ended.  Batches are
 * waited for in the order of submission, with a timeout: reads from a disk that does not answer are
 * cancelled.
 *
 * cuFile's header is not needed: the few declarations in use are equal in versions 1.14 and 1.20.
 */
#include "cuda/untried/untried.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
    PARAM_ALLOW_COMPAT_MODE = 1,
    FLAG_ALLOW_COMPAT_MODE = 1,
    FEATURE_BATCH_IO = 1,
};
enum { HANDLE_IS_FD = 1, MODE_BATCH = 1, OP_READ = 0 };
enum { WAITING = 1, PENDING = 2, COMPLETE = 16, CANCELED = 8, TIMEOUT = 32 };

struct cufile_error {
    int code, driver_code;
};
struct cufile_descr {
    int type;
    union {
        int fd;
        void *pointer;
    } handle;
    const void *fs_ops;
};
struct cufile_props {
    unsigned major, minor;
    size_t poll_thresh, max_direct;
    unsigned status_flags, control_flags;
    unsigned feature_flags, cache_size, buffer_cache_size, pinned_size, batch_size,
        batch_ms;
};
struct cufile_io {
    int mode;
    void *base;
    off_t file_offset, base_offset;
    size_t size;
    void *file;
    int op;
    void *cookie;
};
struct cufile_event {
    void *cookie;
    int status;
    size_t ret;
};
_Static_assert(sizeof(struct cufile_io) == 64 && sizeof(struct cufile_event) == 24 &&
                   sizeof(struct cufile_props) == 56 && sizeof(struct cufile_descr) == 24,
               "cuFile's layout");

enum { MAX_FILES = 64, BATCH_MOST = 8 };

/* A registered file. It is identified by device and inode, because descriptors are reused. */
struct known_file {
    int fd;
    dev_t dev;
    ino_t ino;
    void *handle;
};

/* Reads that are given to cuFile together. */
struct file_batch {
    void *id;
    struct file_read *reads;
    void *user;
    int n, n_left;
    struct cufile_io io[BATCH_MOST];
};

struct cuda_file_reader {
    struct file_reader base;
    int index; /* number of the GPU */
    void *library;
    bool has_driver;
    const void *registered; /* the registered memory; NULL: no memory is registered */
    uint8_t *into;
    struct known_file files[MAX_FILES];
    int n_files;
    struct file_batch *batches; /* [n_batches], a ring: [first, first + n) are in flight */
    int n_batches, first, n;

    struct cufile_error (*driver_open)(void);
    struct cufile_error (*driver_close)(void);
    struct cufile_error (*driver_props)(struct cufile_props *p);
    /* NULL if the library is too old for it. */
    struct cufile_error (*set_bool)(int param, bool value);
    struct cufile_error (*file_register)(void **handle, struct cufile_descr *d);
    void (*file_deregister)(void *handle);
    struct cufile_error (*buf_register)(const void *base, size_t n, int flags);
    struct cufile_error (*buf_deregister)(const void *base);
    struct cufile_error (*batch_set_up)(void **id, unsigned n);
    struct cufile_error (*batch_submit)(void *id, unsigned n, struct cufile_io *io,
                                        unsigned flags);
    struct cufile_error (*batch_status)(void *id, unsigned min, unsigned *n,
                                        struct cufile_event *events, struct timespec *t);
    struct cufile_error (*batch_cancel)(void *id);
    void (*batch_destroy)(void *id);
};

static const char *meaning(int code)
{
    switch (code) {
    case 5001:
        return "its driver is not there: is the kernel module nvidia-fs loaded?";
    case 5007:
        return "this platform is not supported";
    case 5008:
        return "this file system is not supported";
    case 5009:
        return "this GPU is not supported";
    case 5020:
        return "the file system does not bypass the page cache";
    case 5026:
        return "its driver is open already";
    case 5036:
        return "GPU memory cannot be pinned";
    case 5049:
        return "this disk cannot be read directly";
    default:
        return "set CUFILE_LOGFILE_PATH=FILE to get its log";
    }
}

static int refused(struct err *err, const char *what, struct cufile_error e)
{
    return err_set(err, ERR_UNSUPPORTED, "cuFile: %s: error %d: %s", what, e.code,
                   meaning(e.code));
}

/* Prevents cuFile's log. By default cuFile writes cufile.log into the current folder, whatever its
 * parameters say (seen with 1.14 and 1.20 on a machine without a driver); only this environment
 * variable prevents it. Setting the variable is safe, because no other thread of this program reads
 * it while a restore pipeline is created. */
static void silence_log(void)
{
    if (getenv("CUFILE_ENV_PATH_JSON") == NULL)
        (void)setenv("CUFILE_LOGFILE_PATH", "/dev/null", 0);
}

static int load(struct cuda_file_reader *r, struct err *err)
{
    const struct {
        const char *name;
        void **to;
    } symbols[] = {
        {"cuFileDriverOpen", (void **)&r->driver_open},
        {"cuFileDriverClose_v2", (void **)&r->driver_close},
        {"cuFileDriverGetProperties", (void **)&r->driver_props},
        {"cuFileHandleRegister", (void **)&r->file_register},
        {"cuFileHandleDeregister", (void **)&r->file_deregister},
        {"cuFileBufRegister", (void **)&r->buf_register},
        {"cuFileBufDeregister", (void **)&r->buf_deregister},
        {"cuFileBatchIOSetUp", (void **)&r->batch_set_up},
        {"cuFileBatchIOSubmit", (void **)&r->batch_submit},
        {"cuFileBatchIOGetStatus", (void **)&r->batch_status},
        {"cuFileBatchIOCancel", (void **)&r->batch_cancel},
        {"cuFileBatchIODestroy", (void **)&r->batch_destroy},
    };
    silence_log();
    r->library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
    if (r->library == NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "cuFile is not found (%s): install it or add its folder to "
                       "LD_LIBRARY_PATH",
                       dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        *symbols[i].to = dlsym(r->library, symbols[i].name);
        if (*symbols[i].to == NULL)
            return err_set(err, ERR_UNSUPPORTED, "this cuFile has no %s", symbols[i].name);
    }
    *(void **)&r->set_bool = dlsym(r->library, "cuFileSetParameterBool");
    return 0;
}

static int open_driver(struct cuda_file_reader *r, struct err *err)
{
    struct cufile_props p = {0};
    struct cufile_error e = {0};
    bool forbidden = false;
    if (r->set_bool != NULL) {
        e = r->set_bool(PARAM_ALLOW_COMPAT_MODE, false);
        if (e.code != 0)
            return refused(err, "forbidding its copies through host memory", e);
        forbidden = true;
    }
    e = r->driver_open();
    if (e.code != 0)
        return refused(err, "opening its driver", e);
    r->has_driver = true;
    e = r->driver_props(&p);
    if (e.code != 0)
        return refused(err, "asking for its properties", e);
    if (!forbidden && (p.control_flags >> FLAG_ALLOW_COMPAT_MODE & 1) != 0)
        return err_set(
            err, ERR_UNSUPPORTED,
            "cuFile may copy through host memory: set allow_compat_mode to false "
            "in cufile.json");
    if ((p.feature_flags >> FEATURE_BATCH_IO & 1) == 0)
        return err_set(err, ERR_UNSUPPORTED, "this cuFile does not read in batches");
    return 0;
}

static int set_up(struct cuda_file_reader *r, const struct buf *into, struct err *err)
{
    struct cufile_error e = r->buf_register(into->ptr, into->bytes, 0);
    if (e.code != 0)
        return refused(err, "registering memory", e);
    r->registered = into->ptr;
    for (int i = 0; i < r->n_batches; i++) {
        e = r->batch_set_up(&r->batches[i].id, BATCH_MOST);
        if (e.code != 0)
            return refused(err, "setting a batch up", e);
    }
    return 0;
}

/* --- files ------------------------------------------------------------------------------------ */

static void forget_file(struct cuda_file_reader *r, int i)
{
    r->file_deregister(r->files[i].handle);
    r->files[i] = r->files[--r->n_files];
}

/* Returns whether a batch that is in flight, or about to be, reads from the file. */
static bool is_in_use(const struct cuda_file_reader *r, const void *handle)
{
    for (int i = 0; i <= r->n; i++) {
        const struct file_batch *b = &r->batches[(r->first + i) % r->n_batches];
        for (int j = 0; j < b->n; j++)
            if (b->io[j].file == handle)
                return true;
    }
    return false;
}

/* Makes room for one more file: unregisters one that no batch reads. */
static int make_room(struct cuda_file_reader *r, struct err *err)
{
    for (int i = 0; r->n_files == MAX_FILES && i < MAX_FILES; i++)
        if (!is_in_use(r, r->files[i].handle))
            forget_file(r, i);
    return r->n_files < MAX_FILES
               ? 0
               : err_set(err, ERR_LIMIT, "cuFile: reads from more than %d files at once",
                         MAX_FILES);
}

static int handle_of(struct cuda_file_reader *r, int fd, void **handle, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_set(err, -errno, "a file of the store: %s", strerror(errno));
    for (int i = r->n_files - 1; i >= 0; i--) {
        struct known_file *f = &r->files[i];
        if (f->fd != fd)
            continue;
        *handle = f->handle;
        if (f->dev == st.st_dev && f->ino == st.st_ino)
            return 0;
        if (!is_in_use(r, f->handle))
            forget_file(r, i);
    }
    int rc = make_room(r, err);
    if (rc != 0)
        return rc;
    struct cufile_descr d = {.type = HANDLE_IS_FD, .handle.fd = fd};
    struct cufile_error e = r->file_register(handle, &d);
    if (e.code != 0)
        return refused(err, "a file of the store", e);
    r->files[r->n_files++] = (struct known_file){fd, st.st_dev, st.st_ino, *handle};
    return 0;
}

/* --- reads ------------------------------------------------------------------------------------ */

static int reader_submit(struct file_reader *base, struct file_read *reads, int n,
                         void *user, struct err *err)
{
    struct cuda_file_reader *r = (struct cuda_file_reader *)base;
    CHECK(n > 0 && n <= BATCH_MOST && r->n < r->n_batches);
    (void)cudaSetDevice(r->index);
    struct file_batch *b = &r->batches[(r->first + r->n) % r->n_batches];
    b->n = b->n_left = n;
    b->reads = reads;
    b->user = user;
    for (int i = 0; i < n; i++) {
        void *handle = NULL;
        int rc = handle_of(r, reads[i].fd, &handle, err);
        if (rc != 0)
            return rc;
        reads[i].status = -EINPROGRESS;
        b->io[i] = (struct cufile_io){.mode = MODE_BATCH,
                                      .base = r->into,
                                      .file_offset = (off_t)reads[i].offset,
                                      .base_offset = (uint8_t *)reads[i].dst - r->into,
                                      .size = reads[i].bytes,
                                      .file = handle,
                                      .op = OP_READ,
                                      .cookie = &reads[i]};
    }
    struct cufile_error e = r->batch_submit(b->id, (unsigned)n, b->io, 0);
    if (e.code != 0)
        return refused(err, "reading", e);
    r->n++;
    return 0;
}

/* Returns the status of a read from its event; -EINPROGRESS: it has not ended. */
static int status_of(const struct cufile_event *e, const struct file_read *read)
{
    if (e->status == WAITING || e->status == PENDING)
        return -EINPROGRESS;
    if (e->status == COMPLETE)
        return e->ret == read->bytes ? 0 : -ENODATA;
    return e->status == CANCELED || e->status == TIMEOUT ? -ECANCELED : -EIO;
}

/* Ends a batch whose state cuFile does not know. The batch is cancelled and destroyed, which ends
 * its reads. The reader cannot be used any more. */
static int abandon(struct cuda_file_reader *r, struct file_batch *b, struct cufile_error e,
                   struct err *err)
{
    (void)r->batch_cancel(b->id);
    r->batch_destroy(b->id);
    b->id = NULL;
    for (int i = 0; i < b->n; i++)
        if (b->reads[i].status == -EINPROGRESS)
            b->reads[i].status = -EIO;
    return refused(err, "waiting for reads", e);
}

static int reader_wait(struct file_reader *base, int64_t timeout_ns, void **user,
                       struct err *err)
{
    struct cuda_file_reader *r = (struct cuda_file_reader *)base;
    struct file_batch *b = &r->batches[r->first];
    int64_t until = clock_now_ns() + timeout_ns, left = timeout_ns;
    int rc = 0;
    *user = NULL;
    CHECK(r->n > 0);
    (void)cudaSetDevice(r->index);
    while (rc == 0 && b->n_left > 0 && left > 0) {
        struct cufile_event events[BATCH_MOST];
        struct timespec t = {.tv_sec = (time_t)(left / 1000000000),
                             .tv_nsec = (long)(left % 1000000000)};
        unsigned n = (unsigned)b->n_left;
        struct cufile_error e = r->batch_status(b->id, n, &n, events, &t);
        if (e.code != 0)
            rc = abandon(r, b, e, err);
        for (unsigned i = 0; rc == 0 && i < n; i++) {
            struct file_read *read = events[i].cookie;
            if (read->status != -EINPROGRESS)
                continue;
            read->status = status_of(&events[i], read);
            b->n_left -= read->status != -EINPROGRESS;
        }
        left = until - clock_now_ns();
    }
    if (rc == 0 && b->n_left > 0)
        return 0;
    *user = b->user;
    r->first = (r->first + 1) % r->n_batches;
    r->n--;
    return rc;
}

static void reader_cancel(struct file_reader *base)
{
    struct cuda_file_reader *r = (struct cuda_file_reader *)base;
    for (int i = 0; i < r->n; i++)
        (void)r->batch_cancel(r->batches[(r->first + i) % r->n_batches].id);
}

static void reader_close(struct file_reader *base)
{
    struct cuda_file_reader *r = (struct cuda_file_reader *)base;
    CHECK(r->n == 0);
    (void)cudaSetDevice(r->index);
    for (int i = 0; i < r->n_batches; i++)
        if (r->batches[i].id != NULL)
            r->batch_destroy(r->batches[i].id);
    while (r->n_files > 0)
        forget_file(r, r->n_files - 1);
    if (r->registered != NULL)
        (void)r->buf_deregister(r->registered);
    if (r->has_driver)
        (void)r->driver_close();
    if (r->library != NULL)
        dlclose(r->library);
    free(r->batches);
    free(r);
}

int cuda_file_reader_open(struct device *d, const struct buf *into, int n_batches,
                          struct file_reader **out, struct err *err)
{
    struct cuda_file_reader *r = xcalloc(1, sizeof *r);
    r->base = (struct file_reader){reader_submit, reader_wait, reader_cancel, reader_close};
    r->index = ((struct cuda_device *)d)->index;
    r->into = into->ptr;
    r->n_batches = n_batches;
    r->batches = xcalloc((size_t)n_batches, sizeof *r->batches);
    (void)cudaSetDevice(r->index);
    int rc = load(r, err);
    if (rc == 0)
        rc = open_driver(r, err);
    if (rc == 0)
        rc = set_up(r, into, err);
    if (rc != 0) {
        reader_close(&r->base);
        return rc;
    }
    *out = &r->base;
    return 0;
}
