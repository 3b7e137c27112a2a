/* disk_serve.c - carries out calls on the files of this process (disks.h). */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "io/io_impl.h"
#include "mpi/disks.h"

struct io *disks_own_io(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct io *io;
    pthread_mutex_lock(&lock);
    if (io == NULL)
        io = io_machine_open(NULL);
    pthread_mutex_unlock(&lock);
    return io;
}

static struct io_file *file_of(uint64_t file)
{
    return (struct io_file *)(uintptr_t)file;
}

/* Two machines may give two folders one number, so the machine's name is part of it. */
static uint64_t machine(void)
{
    char name[256] = "";
    (void)gethostname(name, sizeof name - 1);
    return checksum64(name, strlen(name));
}

static void *names_data(struct io_names *names, size_t *bytes)
{
    char *all = NULL;
    *bytes = 0;
    for (size_t i = 0; i < names->n; i++) {
        size_t n = strlen(names->name[i]) + 1;
        all = xrealloc(all, *bytes + n);
        memcpy(all + *bytes, names->name[i], n);
        *bytes += n;
    }
    io_names_free(names);
    return all;
}

static void run_on_file(const struct disk_call *c, const void *in, struct disk_answer *a,
                        void **data)
{
    struct io_file *f = file_of(c->file);
    const struct io_ops *ops = f->io->ops;
    size_t got = 0;
    switch (c->op) {
    case DISK_CLOSE:
        io_file_close(f);
        break;
    case DISK_PREAD: /* into aligned memory, as a direct file needs */
        *data = aligned_alloc(IO_ALIGN,
                              MAX((c->n[1] + IO_ALIGN - 1) / IO_ALIGN, 1) * IO_ALIGN);
        a->rc = *data == NULL ? -ENOMEM
                              : io_file_pread_some(f, *data, c->n[1], c->n[0], &got, NULL);
        a->bytes = got;
        a->rc = a->rc == 0 ? (int64_t)got : a->rc;
        break;
    case DISK_PWRITE: {
        void *from = aligned_alloc(IO_ALIGN,
                                   MAX((c->bytes + IO_ALIGN - 1) / IO_ALIGN, 1) * IO_ALIGN);
        if (from != NULL)
            memcpy(from, in, c->bytes);
        a->rc = from == NULL ? -ENOMEM : io_file_pwrite(f, from, c->bytes, c->n[0], NULL);
        a->rc = a->rc == 0 ? (int64_t)c->bytes : a->rc;
        free(from);
        break;
    }
    case DISK_SYNC:
        a->rc = ops->file_sync(f);
        break;
    case DISK_SIZE:
        a->rc = ops->file_size(f, &a->n[0]);
        break;
    case DISK_TRUNCATE:
        a->rc = ops->file_truncate(f, c->n[0]);
        break;
    case DISK_ALLOCATE:
        a->rc = ops->file_allocate(f, c->n[0], c->n[1]);
        break;
    case DISK_PUNCH:
        a->rc = ops->file_punch(f, c->n[0], c->n[1]);
        break;
    case DISK_NEXT_DATA:
        a->rc = ops->file_next_data(f, c->n[0], &a->n[0], &a->n[1]);
        break;
    case DISK_LOCK:
        a->rc = ops->file_lock(f);
        break;
    default:
        a->rc = ops->file_unlock(f);
    }
}

static void run_on_path(struct io *io, const struct disk_call *c, const char *path,
                        struct disk_answer *a, void **data)
{
    const char *other = path + strlen(path) + 1;
    struct io_names names = {0};
    struct io_file *f = NULL;
    struct io_stat *st;
    switch (c->op) {
    case DISK_OPEN:
        a->rc = io_file_open(io, path, (unsigned)c->n[0], &f, NULL);
        if (a->rc == 0) {
            a->n[0] = (uint64_t)(uintptr_t)f;
            a->n[1] = f->direct;
            a->n[2] = f->read_align;
        }
        break;
    case DISK_MKDIR:
        a->rc = io_mkdirs(io, path, NULL,
                          NULL); /* the folders above may be elsewhere, too */
        break;
    case DISK_MAKE_PRIVATE:
        a->rc = io->ops->make_private(io, path);
        break;
    case DISK_LIST:
        a->rc = io->ops->list(io, path, &names);
        *data = names_data(&names, &a->bytes);
        break;
    case DISK_STAT:
        *data = st = xcalloc(1, sizeof *st);
        a->rc = io->ops->stat(io, path, st);
        st->device ^= machine();
        a->bytes = sizeof *st;
        break;
    case DISK_UNLINK:
        a->rc = io->ops->unlink(io, path);
        break;
    case DISK_RENAME:
        a->rc = io->ops->rename(io, path, other);
        break;
    case DISK_EXCHANGE:
        a->rc = io->ops->exchange(io, path, other);
        break;
    case DISK_MEDIUM:
        *data = xcalloc(1, a->bytes = 256);
        a->rc = io->ops->medium_check(path, *data, a->bytes);
        break;
    case DISK_DIR_SYNC:
        a->rc = io->ops->dir_sync(io, path);
        break;
    default:
        a->rc = io->ops->space(io, path, &a->n[0], &a->n[1]);
    }
}

void disk_run(struct io *io, const struct disk_call *c, const void *in,
              struct disk_answer *a, void **data)
{
    *a = (struct disk_answer){0};
    *data = NULL;
    if (c->op == DISK_RATES)
        io_throttle(io, c->n[0], c->n[1]);
    else if (c->op == DISK_OPEN || c->op >= DISK_MKDIR)
        run_on_path(io, c, in, a, data);
    else
        run_on_file(c, in, a, data);
}

static void *serve_files(void *unused)
{
    (void)unused;
    for (;;) {
        size_t n = job_await(0, TAG_FILES);
        uint8_t *message = xmalloc(n);
        job_receive(0, TAG_FILES, message, n);
        struct disk_call c;
        struct disk_answer a;
        void *data;
        memcpy(&c, message, sizeof c);
        if (c.op == DISK_LEAVE || c.op == DISK_LIFE) {
            free(message);
            if (c.op == DISK_LIFE)
                continue;
            return NULL;
        }
        disk_run(disks_own_io(), &c, message + sizeof c, &a, &data);
        free(message);
        uint8_t *answer = xmalloc(sizeof a + a.bytes);
        memcpy(answer, &a, sizeof a);
        if (a.bytes > 0)
            memcpy(answer + sizeof a, data, a.bytes);
        job_send(0, c.tag, answer, sizeof a + a.bytes);
        free(answer);
        free(data);
    }
}

/* --- pieces ----------------------------------------------------------------------------------- */

/* As many pieces lie in memory at once as a disk likes; the others wait at process 0. */
enum { SLOTS = 16 };
/* A wait for the disk looks for calls this often. */
enum { LOOK_NS = 100000 };

struct slot {
    struct disk_piece p;
    struct io_req req;
    uint8_t *bytes;
    void *sending; /* the bytes of a read are on their way */
    bool is_used;
};

struct pieces {
    struct io_queue *queue;
    struct slot slots[SLOTS];
    int n_reading, n_sending;
};

static struct slot *free_slot(struct pieces *s)
{
    for (int i = 0; i < SLOTS; i++)
        if (!s->slots[i].is_used)
            return &s->slots[i];
    return NULL;
}

static void take_piece(struct pieces *s, struct slot *slot)
{
    struct disk_piece *p = &slot->p;
    slot->is_used = true;
    slot->sending = NULL;
    if (slot->bytes == NULL)
        slot->bytes = mem_map(IO_PIECE_BYTES);
    CHECK(p->bytes <= IO_PIECE_BYTES && slot->bytes != NULL);
    if (p->is_write)
        job_receive(0, p->tag, slot->bytes, p->bytes);
    slot->req = (struct io_req){.file = file_of(p->file),
                                .op = p->is_write ? IO_WRITE : IO_READ,
                                .buf = slot->bytes,
                                .length = p->bytes,
                                .offset = p->offset,
                                .user = slot};
    struct io_req *req = &slot->req;
    io_queue_submit(s->queue, &req, 1);
    s->n_reading++;
}

static void answer_piece(struct pieces *s, struct slot *slot)
{
    const struct disk_piece *p = &slot->p;
    bool has_bytes = !p->is_write && slot->req.result == 0;
    struct disk_done d = {.id = p->id,
                          .rc = slot->req.result == 0 ? (int64_t)p->bytes
                                                      : slot->req.result,
                          .bytes = has_bytes ? p->bytes : 0};
    s->n_reading--;
    job_send(0, p->tag, &d, sizeof d);
    if (!has_bytes) {
        slot->is_used = false;
        return;
    }
    slot->sending = job_send_begin(0, p->tag, slot->bytes, p->bytes);
    s->n_sending++;
}

static void end_sendings(struct pieces *s)
{
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->is_used && slot->sending != NULL && job_send_ended(&slot->sending)) {
            slot->is_used = false;
            s->n_sending--;
        }
    }
}

static void collect(struct pieces *s)
{
    struct io_req *done[SLOTS];
    unsigned n = 0;
    int64_t wait_ns = s->n_sending > 0 ? 0 : LOOK_NS;
    if (s->n_reading > 0)
        CHECK(io_queue_wait(s->queue, 1, SLOTS, wait_ns, done, &n, NULL) == 0);
    for (unsigned i = 0; i < n; i++)
        answer_piece(s, done[i]->user);
}

static void *serve_pieces(void *unused)
{
    (void)unused;
    struct pieces s = {0};
    CHECK(io_queue_open(disks_own_io(), SLOTS, &s.queue, NULL) == 0);
    for (;;) {
        struct slot *slot = free_slot(&s);
        bool is_idle = s.n_reading + s.n_sending == 0;
        if (slot != NULL &&
            (is_idle ? job_await(0, TAG_PIECES) > 0 : job_has(0, TAG_PIECES))) {
            job_receive(0, TAG_PIECES, &slot->p, sizeof slot->p);
            if (slot->p.tag < 0)
                break;
            take_piece(&s, slot);
            continue; /* more may have come */
        }
        collect(&s);
        end_sendings(&s);
    }
    io_queue_close(s.queue);
    for (int i = 0; i < SLOTS; i++)
        if (s.slots[i].bytes != NULL)
            mem_unmap(s.slots[i].bytes, IO_PIECE_BYTES);
    return NULL;
}

/* --- the threads ------------------------------------------------------------------------------ */

static pthread_t threads[2];

void disk_threads_start(void)
{
    CHECK(thread_create(&threads[0], serve_files, NULL) == 0);
    CHECK(thread_create(&threads[1], serve_pieces, NULL) == 0);
}

void disk_threads_join(void)
{
    for (int i = 0; i < 2; i++)
        (void)pthread_join(threads[i], NULL);
}
