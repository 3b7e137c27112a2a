/* disks.c - the disks of all processes as one struct io of process 0 (disks.h).
 *
 * Invariants:
 *  1. A file is a file of process 0's own io, or the address of one in another process.
 *  2. A queue takes pieces of both kinds: its own go to a queue of the own io, and come back with
 *     the others. So reads of a restore are in flight at all processes at once.
 *  3. A process that dies ends the job, so a call always has an answer. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "io/io_impl.h"
#include "mpi/disks.h"
#include "mpi/records.h"
#include "store/store.h"

struct disks {
    struct io base;
    struct io *own;
};

struct disk_file {
    struct io_file base;
    int process;
    int fd;        /* FIRST_FD + its place in `files` */
    uint64_t file; /* of process 0: its struct io_file; else its address there */
};

/* Descriptors that no file of the system has. */
enum { FIRST_FD = 1 << 24, MOST_FILES = 4096 };
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER; /* protects the following */
static struct disk_file *files[MOST_FILES];
static struct io *io_of_process_0;

struct io *disks_io_of_process_0(void)
{
    return io_of_process_0;
}

/* Gives a file a descriptor; -1: there are too many files. */
static int take_fd(struct disk_file *f)
{
    int i = 0;
    pthread_mutex_lock(&files_lock);
    while (i < MOST_FILES && files[i] != NULL)
        i++;
    if (i < MOST_FILES)
        files[i] = f;
    pthread_mutex_unlock(&files_lock);
    return i < MOST_FILES ? FIRST_FD + i : -1;
}

bool disks_file(int fd, int *process, uint64_t *file)
{
    int i = fd - FIRST_FD;
    if (i < 0 || i >= MOST_FILES)
        return false;
    pthread_mutex_lock(&files_lock);
    struct disk_file *f = files[i];
    if (f != NULL) {
        *process = f->process;
        *file = f->file;
    }
    pthread_mutex_unlock(&files_lock);
    return f != NULL;
}

static struct io *own_of(const struct io *io)
{
    return ((const struct disks *)io)->own;
}

static const struct disk_file *of(const struct io_file *f)
{
    return (const struct disk_file *)f;
}

/* Returns the process that has a path. */
static int process_of(const char *path)
{
    const char *at = strstr(path, "/" STORE_RANK);
    return at != NULL ? atoi(at + strlen("/" STORE_RANK)) % job_processes() : 0;
}

/* Carries a call out at a process, with the bytes of in[0], and of in[1] behind them. Copies at
 * most n_out bytes of the answer's data to out; names are given out whole in *names. */
struct question {
    struct disk_call c;
    const void *in[2];
    size_t n_in[2];
    void *out;
    size_t n_out;
    void **names;
};

static struct disk_answer ask(struct io *own, int process, struct question *q)
{
    struct disk_answer a;
    void *data = NULL;
    q->c.bytes = q->n_in[0] + q->n_in[1];
    uint8_t *message = xmalloc(sizeof q->c + q->c.bytes + 1), *answer = NULL;
    if (process > 0)
        q->c.tag = job_tag();
    memcpy(message, &q->c, sizeof q->c);
    for (size_t i = 0, at = sizeof q->c; i < 2; at += q->n_in[i++])
        if (q->n_in[i] > 0)
            memcpy(message + at, q->in[i], q->n_in[i]);
    if (process == 0) {
        disk_run(own, &q->c, message + sizeof q->c, &a, &data);
    } else {
        job_send(process, TAG_FILES, message, sizeof q->c + q->c.bytes);
        size_t n = job_await(process, q->c.tag);
        answer = xmalloc(n);
        job_receive(process, q->c.tag, answer, n);
        memcpy(&a, answer, sizeof a);
    }
    const void *bytes = process == 0 ? data : answer + sizeof a;
    if (q->n_out > 0 && a.bytes > 0)
        memcpy(q->out, bytes, MIN(a.bytes, q->n_out));
    if (q->names != NULL && a.bytes > 0)
        *q->names = memcpy(xmalloc(a.bytes), bytes, a.bytes);
    free(message);
    free(answer);
    free(data);
    return a;
}

static struct disk_answer ask_path(struct io *io, enum disk_op op, const char *path,
                                   struct question q)
{
    q.c.op = op;
    q.in[0] = path;
    q.n_in[0] = strlen(path) + 1;
    return ask(own_of(io), process_of(path), &q);
}

static struct disk_answer ask_file(const struct io_file *f, enum disk_op op,
                                   struct question q)
{
    q.c.op = op;
    q.c.file = of(f)->file;
    return ask(own_of(f->io), of(f)->process, &q);
}

/* --- files ------------------------------------------------------------------------------------ */

static void disks_close(struct io *io)
{
    io_of_process_0 = NULL;
    io_close(own_of(io));
    io_deinit(io);
    free(io);
}

static void disks_throttle(struct io *io, uint64_t read, uint64_t write)
{
    for (int i = 0; i < job_processes(); i++)
        (void)ask(own_of(io), i,
                  &(struct question){.c = {.op = DISK_RATES, .n = {read, write}}});
}

static int disks_random(struct io *io, void *buf, size_t n)
{
    return io_random(own_of(io), buf, n, NULL);
}

static int disks_file_open(struct io *io, const char *path, unsigned flags,
                           struct io_file **out)
{
    struct disk_answer a = ask_path(io, DISK_OPEN, path, (struct question){.c.n = {flags}});
    if (a.rc != 0)
        return (int)a.rc;
    struct disk_file *f = xcalloc(1, sizeof *f);
    f->process = process_of(path);
    f->file = a.n[0];
    f->fd = take_fd(f);
    f->base.direct = a.n[1] != 0;
    f->base.read_align = (uint32_t)a.n[2];
    *out = &f->base;
    return 0;
}

static void disks_file_close(struct io_file *f)
{
    int fd = of(f)->fd;
    if (fd >= 0) {
        pthread_mutex_lock(&files_lock);
        files[fd - FIRST_FD] = NULL;
        pthread_mutex_unlock(&files_lock);
    }
    (void)ask_file(f, DISK_CLOSE, (struct question){0});
    free(f);
}

static int disks_fd(const struct io_file *f)
{
    return of(f)->fd;
}

static ssize_t disks_pread(struct io_file *f, void *buf, size_t n, uint64_t offset)
{
    return (ssize_t)ask_file(f, DISK_PREAD,
                             (struct question){.c.n = {offset, n}, .out = buf, .n_out = n})
        .rc;
}

static ssize_t disks_pwrite(struct io_file *f, const void *buf, size_t n, uint64_t offset)
{
    return (ssize_t)ask_file(f, DISK_PWRITE,
                             (struct question){.c.n = {offset}, .in = {buf}, .n_in = {n}})
        .rc;
}

static int disks_sync(struct io_file *f)
{
    return (int)ask_file(f, DISK_SYNC, (struct question){0}).rc;
}

static int disks_size(struct io_file *f, uint64_t *bytes)
{
    struct disk_answer a = ask_file(f, DISK_SIZE, (struct question){0});
    *bytes = a.n[0];
    return (int)a.rc;
}

static int disks_truncate(struct io_file *f, uint64_t bytes)
{
    return (int)ask_file(f, DISK_TRUNCATE, (struct question){.c.n = {bytes}}).rc;
}

static int disks_allocate(struct io_file *f, uint64_t offset, uint64_t length)
{
    return (int)ask_file(f, DISK_ALLOCATE, (struct question){.c.n = {offset, length}}).rc;
}

static int disks_punch(struct io_file *f, uint64_t offset, uint64_t length)
{
    return (int)ask_file(f, DISK_PUNCH, (struct question){.c.n = {offset, length}}).rc;
}

static int disks_next_data(struct io_file *f, uint64_t at, uint64_t *begin, uint64_t *end)
{
    struct disk_answer a = ask_file(f, DISK_NEXT_DATA, (struct question){.c.n = {at}});
    if (a.rc == 0) {
        *begin = a.n[0];
        *end = a.n[1];
    }
    return (int)a.rc;
}

static int disks_lock(struct io_file *f)
{
    return (int)ask_file(f, DISK_LOCK, (struct question){0}).rc;
}

static int disks_unlock(struct io_file *f)
{
    return (int)ask_file(f, DISK_UNLOCK, (struct question){0}).rc;
}

/* --- folders ---------------------------------------------------------------------------------- */

static int plain(struct io *io, enum disk_op op, const char *path)
{
    return (int)ask_path(io, op, path, (struct question){0}).rc;
}

static int disks_mkdir(struct io *io, const char *path)
{
    return plain(io, DISK_MKDIR, path);
}

static int disks_make_private(struct io *io, const char *path)
{
    return plain(io, DISK_MAKE_PRIVATE, path);
}

static int disks_unlink(struct io *io, const char *path)
{
    return plain(io, DISK_UNLINK, path);
}

static int disks_dir_sync(struct io *io, const char *path)
{
    return plain(io, DISK_DIR_SYNC, path);
}

static int disks_list(struct io *io, const char *path, struct io_names *out)
{
    void *names = NULL;
    struct disk_answer a = ask_path(io, DISK_LIST, path,
                                    (struct question){.names = &names});
    const char *at = names, *end = at + a.bytes;
    for (; at < end; at += strlen(at) + 1) {
        out->name = xrealloc(out->name, (out->n + 1) * sizeof out->name[0]);
        out->name[out->n++] = xstrdup(at);
    }
    free(names);
    return (int)a.rc;
}

static int disks_stat(struct io *io, const char *path, struct io_stat *out)
{
    return (int)ask_path(io, DISK_STAT, path,
                         (struct question){.out = out, .n_out = sizeof *out})
        .rc;
}

static int two_paths(struct io *io, enum disk_op op, const char *from, const char *to)
{
    if (process_of(from) != process_of(to))
        return -EXDEV;
    return (int)ask_path(io, op, from,
                         (struct question){.in = {NULL, to}, .n_in = {0, strlen(to) + 1}})
        .rc;
}

static int disks_rename(struct io *io, const char *from, const char *to)
{
    return two_paths(io, DISK_RENAME, from, to);
}

static int disks_exchange(struct io *io, const char *a, const char *b)
{
    return two_paths(io, DISK_EXCHANGE, a, b);
}

static int disks_space(struct io *io, const char *path, uint64_t *free_bytes,
                       uint64_t *total_bytes)
{
    struct disk_answer a = ask_path(io, DISK_SPACE, path, (struct question){0});
    *free_bytes = a.n[0];
    *total_bytes = a.n[1];
    return (int)a.rc;
}

static const struct io_ops ops = {
    .close = disks_close,
    .random = disks_random,
    .throttle = disks_throttle,
    .file_open = disks_file_open,
    .file_close = disks_file_close,
    .file_fd = disks_fd,
    .file_pread = disks_pread,
    .file_pwrite = disks_pwrite,
    .file_sync = disks_sync,
    .file_size = disks_size,
    .file_truncate = disks_truncate,
    .file_allocate = disks_allocate,
    .file_punch = disks_punch,
    .file_next_data = disks_next_data,
    .file_lock = disks_lock,
    .file_unlock = disks_unlock,
    .mkdir = disks_mkdir,
    .make_private = disks_make_private,
    .list = disks_list,
    .stat = disks_stat,
    .unlink = disks_unlink,
    .rename = disks_rename,
    .exchange = disks_exchange,
    .dir_sync = disks_dir_sync,
    .space = disks_space,
};

/* --- queues ----------------------------------------------------------------------------------- */

struct disk_queue {
    struct io_queue *own;
    struct io_req *reqs; /* [depth] of pieces of process 0 */
    int tag;
    unsigned n_own, n_far; /* pieces that are started */
};

static int queue_open(struct io_queue *q)
{
    static atomic_uint next;
    struct disk_queue *d = xcalloc(1, sizeof *d);
    int rc = io_queue_open(own_of(q->io), q->depth, &d->own, NULL);
    if (rc != 0) {
        free(d);
        return rc;
    }
    d->tag = TAG_QUEUES +
             (int)(atomic_fetch_add(&next, 1) % (LAST_TAG_OF_QUEUES - TAG_QUEUES));
    d->reqs = xcalloc(q->depth, sizeof *d->reqs);
    q->backend = d;
    return 0;
}

static void queue_close(struct io_queue *q)
{
    struct disk_queue *d = q->backend;
    io_queue_close(d->own);
    free(d->reqs);
    free(d);
}

static int queue_register(struct io_queue *q, const struct io_buffer *buffers, unsigned n)
{
    struct disk_queue *d = q->backend;
    return io_queue_register_buffers(d->own, buffers, n, NULL);
}

static void queue_start(struct io_queue *q, struct io_piece *p)
{
    struct disk_queue *d = q->backend;
    const struct disk_file *f = of(p->file);
    int id = (int)(p - q->pieces);
    if (f->process == 0) {
        struct io_req *r = &d->reqs[id];
        *r = (struct io_req){.file = (struct io_file *)(uintptr_t)f->file,
                             .op = p->op,
                             .buf = p->buf,
                             .length = p->length,
                             .offset = p->offset,
                             .user = p};
        io_queue_submit(d->own, &r, 1);
        d->n_own++;
        return;
    }
    struct disk_piece piece = {.tag = d->tag,
                               .id = id,
                               .is_write = p->op == IO_WRITE,
                               .file = f->file,
                               .offset = p->offset,
                               .bytes = p->length};
    job_send(f->process, TAG_PIECES, &piece, sizeof piece);
    if (piece.is_write)
        job_send(f->process, d->tag, p->buf, p->length);
    d->n_far++;
}

static void queue_flush(struct io_queue *q)
{
    (void)q;
}

static void end_piece(struct io_piece *p, int64_t result, struct io_piece **done)
{
    p->result = (ssize_t)result;
    p->next = *done;
    *done = p;
}

/* Takes the pieces that have come back from other processes. */
static void take_far(struct io_queue *q, struct io_piece **done)
{
    struct disk_queue *d = q->backend;
    for (int from; d->n_far > 0 && (from = job_has_any(d->tag)) >= 0;) {
        struct disk_done r;
        job_receive(from, d->tag, &r, sizeof r);
        struct io_piece *p = &q->pieces[r.id];
        if (r.bytes > 0)
            job_receive(from, d->tag, p->buf, r.bytes);
        d->n_far--;
        end_piece(p, r.rc, done);
    }
}

static int take_own(struct io_queue *q, int64_t wait_ns, struct io_piece **done)
{
    struct disk_queue *d = q->backend;
    struct io_req *ended[16];
    unsigned n = 0;
    if (d->n_own == 0)
        return 0;
    int rc = io_queue_wait(d->own, wait_ns != 0, 16, wait_ns, ended, &n, NULL);
    for (unsigned i = 0; i < n; i++) {
        struct io_piece *p = ended[i]->user;
        d->n_own--;
        end_piece(p, ended[i]->result == 0 ? (int64_t)p->length : ended[i]->result, done);
    }
    return rc;
}

/* Waits a little for pieces of both kinds by turns. */
static int queue_reap(struct io_queue *q, int64_t timeout_ns, struct io_piece **done)
{
    enum { TURN_NS = 50000 };
    struct disk_queue *d = q->backend;
    int64_t t0 = clock_now_ns(), left = INT64_MAX;
    int rc = 0;
    *done = NULL;
    for (bool first = true; rc == 0 && *done == NULL && (first || left > 0);
         first = false) {
        take_far(q, done);
        int64_t turn = d->n_far > 0 ? TURN_NS : timeout_ns;
        if (timeout_ns >= 0) {
            left = timeout_ns - (clock_now_ns() - t0);
            turn = turn < 0 || turn > left ? MAX(left, 0) : turn;
        }
        if (*done != NULL)
            turn = 0;
        if (d->n_own > 0)
            rc = take_own(q, turn, done);
        else if (turn > 0)
            clock_sleep_ns(turn);
    }
    return rc;
}

static void queue_cancel(struct io_queue *q)
{
    io_queue_cancel(((struct disk_queue *)q->backend)->own);
}

static const struct io_queue_ops queue_ops = {
    .open = queue_open,
    .close = queue_close,
    .register_buffers = queue_register,
    .start = queue_start,
    .flush = queue_flush,
    .reap = queue_reap,
    .cancel = queue_cancel,
};

/* --- opening ---------------------------------------------------------------------------------- */

struct io *disks_open(struct io *own)
{
    struct disks *d = xcalloc(1, sizeof *d);
    io_init(&d->base, io_name(own), &ops, &queue_ops);
    d->own = own;
    io_of_process_0 = own;
    return &d->base;
}

void disks_leave(int n_processes)
{
    struct disk_call leave = {.op = DISK_LEAVE};
    struct disk_piece end = {.tag = -1};
    struct record_call last = {.kind = RECORD_END};
    for (int i = 1; i < n_processes; i++) {
        job_send(i, TAG_FILES, &leave, sizeof leave);
        job_send(i, TAG_PIECES, &end, sizeof end);
        job_send(i, TAG_RECORDS, &last, sizeof last);
    }
}
