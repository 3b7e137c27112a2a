/* io_sim.c - the simulated disk as a struct io: handles, locks, power and faults. See io_sim.h.
 *
 * Every operation consists of: enter (lock, power, fault, count), the bookkeeping in
 * io_sim_disk, leave (the crash that was due in the middle of it, unlock). Invariants:
 * 1. A handle whose epoch is not the disk's was opened before a crash: it is dead for ever, and
 *    its node belongs to no disk.
 * 2. If power fails in the middle of an operation, its change is noted as unsynced, a sync has
 *    made nothing durable, and the caller gets ERR_CRASHED. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sim/io_sim_disk.h"
#include "sim/io_sim_fault.h"
#include "sim/io_sim_queue.h"

#define DEFAULT_CAPACITY (1ull << 30)

struct sim {
    struct io base;
    uint64_t seed;
    pthread_mutex_t lock; /* guards the fields below, and the nodes of all handles */
    struct sim_disk disk;
    struct sim_freed freed;
    bool keeps_freed;
    struct sim_faults faults;
    struct rng rng; /* for faults and random bytes */
    uint64_t epoch; /* number of crashes */
    uint64_t n_unsticks;
    uint64_t n_seeds;
    bool crashed;
    bool crash_due;       /* power fails in the middle of the present operation */
    uint64_t count[2];    /* operations so far, by enum io_sim_point */
    uint64_t crash_at[2]; /* count at which to crash; 0: never */
};

struct sim_file {
    struct io_file base;
    struct sim_node *node;
    uint64_t epoch;
    bool exclusive, shared; /* locks that this handle holds */
};

static const struct io_ops sim_ops;

static struct sim *sim_of(struct io *io)
{
    return (struct sim *)io;
}

static struct sim_file *file_of(struct io_file *f)
{
    return (struct sim_file *)f;
}

static struct sim_freed *freed_of(struct sim *s)
{
    return s->keeps_freed ? &s->freed : NULL;
}

static struct io *sim_create(uint64_t seed)
{
    struct sim *s = xcalloc(1, sizeof *s);
    io_init(&s->base, "sim", &sim_ops, &io_sim_queue_ops);
    pthread_mutex_init(&s->lock, NULL);
    s->seed = seed;
    s->rng.s = rng_mix(seed ^ 0x6661756c74u);
    return &s->base;
}

int io_sim_open(const struct io_sim_opts *opts, struct io **out, struct err *err)
{
    (void)err;
    *out = sim_create(opts->seed);
    uint64_t capacity = opts->capacity_bytes != 0 ? opts->capacity_bytes : DEFAULT_CAPACITY;
    sim_of(*out)->keeps_freed = opts->keeps_freed;
    sim_disk_init(&sim_of(*out)->disk, capacity, freed_of(sim_of(*out)));
    return 0;
}

static void sim_close(struct io *io)
{
    struct sim *s = sim_of(io);
    sim_disk_deinit(&s->disk);
    free(s->freed.bytes);
    sim_faults_clear(&s->faults);
    pthread_mutex_destroy(&s->lock);
    io_deinit(io);
    free(s);
}

uint64_t io_sim_next_seed(struct io *io)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    uint64_t seed = rng_mix(s->seed + ++s->n_seeds);
    pthread_mutex_unlock(&s->lock);
    return seed;
}

/* ---- Power ------------------------------------------------------------------------------- */

static void crash_locked(struct sim *s)
{
    struct sim_disk after;
    s->epoch++;
    sim_disk_after_crash(&s->disk, s->seed ^ rng_mix(s->epoch), freed_of(s), &after);
    sim_disk_deinit(&s->disk);
    s->disk = after;
    /* the copy's tail pointer still points into `after` */
    s->disk.changes_tail = &s->disk.changes;
    s->crashed = true;
    s->crash_due = false;
    s->crash_at[IO_SIM_AT_OP] = s->crash_at[IO_SIM_AT_BARRIER] = 0;
}

void io_sim_crash(struct io *io)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    if (!s->crashed)
        crash_locked(s);
    pthread_mutex_unlock(&s->lock);
}

void io_sim_crash_at(struct io *io, enum io_sim_point point, uint64_t n)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    s->crash_at[point] = n == 0 ? 0 : s->count[point] + n;
    pthread_mutex_unlock(&s->lock);
}

bool io_sim_crashed(struct io *io)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    bool crashed = s->crashed;
    pthread_mutex_unlock(&s->lock);
    return crashed;
}

void io_sim_restart(struct io *io)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    s->crashed = false;
    pthread_mutex_unlock(&s->lock);
}

uint64_t io_sim_count(struct io *io, enum io_sim_point point)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->count[point];
    pthread_mutex_unlock(&s->lock);
    return n;
}

int io_sim_fork(struct io *io, uint64_t seed, struct io **out, struct err *err)
{
    (void)err;
    struct sim *s = sim_of(io);
    *out = sim_create(seed);
    struct sim_disk *disk = &sim_of(*out)->disk;
    pthread_mutex_lock(&s->lock);
    sim_disk_after_crash(&s->disk, seed, NULL, disk);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* ---- Entering and leaving an operation --------------------------------------------------- */

static int check_power(const struct sim *s, const struct sim_file *f)
{
    return s->crashed || (f != NULL && f->epoch != s->epoch) ? ERR_CRASHED : 0;
}

static void count(struct sim *s, unsigned on)
{
    bool barrier = (on & (IO_SIM_ON_SYNC | IO_SIM_ON_DIR_SYNC)) != 0;
    bool changes = (on & (IO_SIM_ON_WRITE | IO_SIM_ON_NAME | IO_SIM_ON_SPACE)) != 0;
    if (barrier && ++s->count[IO_SIM_AT_BARRIER] == s->crash_at[IO_SIM_AT_BARRIER])
        s->crash_due = true;
    if ((barrier || changes) && ++s->count[IO_SIM_AT_OP] == s->crash_at[IO_SIM_AT_OP])
        s->crash_due = true;
}

/* Checks power, faults and counts of one operation, under the lock. *fault is a fault that the
 * operation itself must carry out, or NULL. */
static int gate(struct sim *s, const struct sim_file *f, unsigned on, const char *path,
                const struct io_sim_fault **fault)
{
    int rc = check_power(s, f);
    if (rc != 0)
        return rc;
    *fault = sim_faults_match(&s->faults, on, path, &s->rng);
    if (*fault != NULL && (*fault)->kind == IO_SIM_FAIL)
        return (*fault)->code;
    if (*fault != NULL && (*fault)->kind == IO_SIM_SLOW) {
        int64_t ns = (*fault)->slow_ns;
        *fault = NULL; /* the rules may change while the lock is released */
        pthread_mutex_unlock(&s->lock);
        clock_sleep_ns(ns);
        pthread_mutex_lock(&s->lock);
        rc = check_power(s, f);
    }
    if (rc == 0)
        count(s, on);
    return rc;
}

/* Begins an operation. When it returns 0, the lock is held until leave() ends the operation. */
static int enter(struct sim *s, const struct sim_file *f, unsigned on, const char *path,
                 const struct io_sim_fault **fault)
{
    pthread_mutex_lock(&s->lock);
    int rc = gate(s, f, on, path, fault);
    if (rc != 0)
        pthread_mutex_unlock(&s->lock);
    return rc;
}

static ssize_t leave(struct sim *s, ssize_t result)
{
    if (s->crash_due) {
        crash_locked(s);
        result = ERR_CRASHED;
    }
    pthread_mutex_unlock(&s->lock);
    return result;
}

static bool is(const struct io_sim_fault *fault, enum io_sim_fault_kind kind)
{
    return fault != NULL && fault->kind == kind;
}

/* ---- Files ------------------------------------------------------------------------------- */

/* Finds or makes the node of a file, under the lock. */
static int open_node(struct sim *s, const char *path, unsigned flags, struct sim_node **out)
{
    const struct io_sim_fault *fault;
    *out = sim_disk_find(&s->disk, path);
    if (*out == NULL && (flags & IO_CREATE) != 0) {
        int rc = gate(s, NULL, IO_SIM_ON_NAME, path, &fault);
        if (rc == 0)
            rc = sim_disk_create(&s->disk, path, false);
        if (rc != 0)
            return rc;
        *out = sim_disk_find(&s->disk, path);
    } else if (*out != NULL && (flags & IO_CREATE) != 0 && (flags & IO_EXCL) != 0) {
        return -EEXIST;
    }
    if (*out == NULL)
        return -ENOENT;
    return (*out)->is_dir ? -EISDIR : 0;
}

/* Half of the disks have small sectors: their reads need less alignment than their writes. */
static uint32_t sim_read_align(uint64_t seed)
{
    return seed % 2 == 0 ? IO_ALIGN : 512;
}

static int open_normal(struct sim *s, const char *path, unsigned flags,
                       struct io_file **out)
{
    const struct io_sim_fault *fault;
    struct sim_node *node;
    int rc = enter(s, NULL, IO_SIM_ON_OPEN, path, &fault);
    if (rc != 0)
        return rc;
    rc = open_node(s, path, flags, &node);
    if (rc != 0 || s->crash_due)
        return (int)leave(s, rc);
    struct sim_file *f = xcalloc(1, sizeof *f);
    f->base.direct = (flags & IO_DIRECT) != 0;
    f->base.read_align = sim_read_align(s->seed);
    f->node = node;
    f->epoch = s->epoch;
    sim_disk_hold(node);
    *out = &f->base;
    return (int)leave(s, 0);
}

static int sim_file_open(struct io *io, const char *path, unsigned flags,
                         struct io_file **out)
{
    char *normal = sim_disk_path(path);
    int rc = normal == NULL ? -EINVAL : open_normal(sim_of(io), normal, flags, out);
    free(normal);
    return rc;
}

static void sim_file_close(struct io_file *base)
{
    struct sim_file *f = file_of(base);
    struct sim *s = sim_of(base->io);
    pthread_mutex_lock(&s->lock);
    f->node->n_exclusive -= f->exclusive;
    f->node->n_shared -= f->shared;
    if (f->epoch == s->epoch)
        sim_disk_release(&s->disk, f->node);
    else
        sim_node_unref(f->node);
    pthread_mutex_unlock(&s->lock);
    free(f);
}

/* Returns the length of a short transfer of n bytes, in units of `align` for a direct file. */
static size_t shortened(struct sim *s, const struct sim_file *f, uint32_t align, size_t n)
{
    size_t unit = f->base.direct ? align : 1;
    size_t units = n / unit;
    return units < 2 ? n : unit * (size_t)(1 + rng_below(&s->rng, units - 1));
}

static ssize_t sim_file_pread(struct io_file *base, void *buf, size_t n, uint64_t offset)
{
    struct sim *s = sim_of(base->io);
    struct sim_file *f = file_of(base);
    const struct io_sim_fault *fault;
    int rc = enter(s, f, IO_SIM_ON_READ, base->path, &fault);
    if (rc != 0)
        return rc;
    if (is(fault, IO_SIM_SHORT))
        n = shortened(s, f, f->base.read_align, n);
    size_t got = sim_node_read(f->node, buf, n, offset);
    if (is(fault, IO_SIM_READ_FLIP) && got > 0)
        ((uint8_t *)buf)[rng_below(&s->rng, got)] ^= (uint8_t)(1u << rng_below(&s->rng, 8));
    return leave(s, (ssize_t)got);
}

static ssize_t sim_file_pwrite(struct io_file *base, const void *buf, size_t n,
                               uint64_t offset)
{
    struct sim *s = sim_of(base->io);
    struct sim_file *f = file_of(base);
    const struct io_sim_fault *fault;
    if ((base->flags & IO_READ_ONLY) != 0)
        return -EBADF;
    int rc = enter(s, f, IO_SIM_ON_WRITE, base->path, &fault);
    if (rc != 0)
        return rc;
    if (is(fault, IO_SIM_SHORT))
        n = shortened(s, f, IO_ALIGN, n);
    if (is(fault, IO_SIM_MISDIRECTED))
        offset += (1 + rng_below(&s->rng, 8)) * SIM_SECTOR;
    if (!is(fault, IO_SIM_LOST))
        rc = sim_disk_change(&s->disk, f->node, SIM_WRITE, buf, offset, n);
    return leave(s, rc != 0 ? rc : (ssize_t)n);
}

static int sim_file_sync(struct io_file *base)
{
    struct sim *s = sim_of(base->io);
    struct sim_file *f = file_of(base);
    const struct io_sim_fault *fault;
    int rc = enter(s, f, IO_SIM_ON_SYNC, base->path, &fault);
    if (rc != 0)
        return rc;
    if (is(fault, IO_SIM_SYNC_LIES)) {
        sim_node_forget(f->node);
        rc = -EIO;
    } else if (!is(fault, IO_SIM_LOST) && !s->crash_due) {
        sim_node_sync(f->node);
    }
    return (int)leave(s, rc);
}

static int sim_file_size(struct io_file *base, uint64_t *size_bytes)
{
    struct sim *s = sim_of(base->io);
    struct sim_file *f = file_of(base);
    pthread_mutex_lock(&s->lock);
    int rc = check_power(s, f);
    if (rc == 0)
        *size_bytes = f->node->current.size;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int change_space(struct io_file *base, enum sim_change_kind kind, uint64_t offset,
                        uint64_t length)
{
    struct sim *s = sim_of(base->io);
    struct sim_file *f = file_of(base);
    const struct io_sim_fault *fault;
    if ((base->flags & IO_READ_ONLY) != 0)
        return -EBADF;
    int rc = enter(s, f, IO_SIM_ON_SPACE, base->path, &fault);
    if (rc != 0)
        return rc;
    return (int)leave(s, sim_disk_change(&s->disk, f->node, kind, NULL, offset, length));
}

static int sim_file_truncate(struct io_file *f, uint64_t size_bytes)
{
    return change_space(f, SIM_TRUNCATE, size_bytes, 0);
}

static int sim_file_allocate(struct io_file *f, uint64_t offset, uint64_t length)
{
    return change_space(f, SIM_ALLOCATE, offset, length);
}

static int sim_file_punch(struct io_file *f, uint64_t offset, uint64_t length)
{
    return change_space(f, SIM_PUNCH, offset, length);
}

static int sim_file_next_data(struct io_file *base, uint64_t at, uint64_t *begin,
                              uint64_t *end)
{
    struct sim *s = sim_of(base->io);
    struct sim_file *f = file_of(base);
    pthread_mutex_lock(&s->lock);
    int rc = check_power(s, f);
    if (rc == 0 && !sim_node_next_data(f->node, at, begin, end))
        rc = -ENXIO;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int sim_file_lock(struct io_file *base)
{
    struct sim *s = sim_of(base->io);
    struct sim_file *f = file_of(base);
    bool shared = (base->flags & IO_READ_ONLY) != 0;
    pthread_mutex_lock(&s->lock);
    int rc = check_power(s, f);
    if (rc == 0 && !f->exclusive && !f->shared) {
        if (f->node->n_exclusive > 0 || (!shared && f->node->n_shared > 0)) {
            rc = ERR_BUSY;
        } else {
            f->shared = shared;
            f->exclusive = !shared;
            f->node->n_shared += shared;
            f->node->n_exclusive += !shared;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int sim_file_unlock(struct io_file *base)
{
    struct sim *s = sim_of(base->io);
    struct sim_file *f = file_of(base);
    pthread_mutex_lock(&s->lock);
    int rc = check_power(s, f);
    f->node->n_exclusive -= f->exclusive;
    f->node->n_shared -= f->shared;
    f->exclusive = f->shared = false;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* ---- Names ------------------------------------------------------------------------------- */

/* Enters an operation on a path. *normal is the normalized path, which the caller frees if the
 * result is 0. */
static int enter_path(struct sim *s, unsigned on, const char *path, char **normal,
                      const struct io_sim_fault **fault)
{
    *normal = sim_disk_path(path);
    if (*normal == NULL)
        return -EINVAL;
    int rc = enter(s, NULL, on, *normal, fault);
    if (rc != 0)
        free(*normal);
    return rc;
}

/* Only checks that the path exists: the simulated disk has no permissions. */
static int sim_make_private(struct io *io, const char *path)
{
    struct io_stat unused;
    return io->ops->stat(io, path, &unused);
}

/* Carries out a change of one name (create, unlink or mkdir). */
static int change_name(struct io *io, const char *path,
                       int (*change)(struct sim_disk *d, const char *path))
{
    struct sim *s = sim_of(io);
    const struct io_sim_fault *fault;
    char *normal;
    int rc = enter_path(s, IO_SIM_ON_NAME, path, &normal, &fault);
    if (rc != 0)
        return rc;
    rc = change(&s->disk, normal);
    free(normal);
    return (int)leave(s, rc);
}

static int make_folder(struct sim_disk *d, const char *path)
{
    return sim_disk_create(d, path, true);
}

static int sim_mkdir(struct io *io, const char *path)
{
    return change_name(io, path, make_folder);
}

static int sim_unlink(struct io *io, const char *path)
{
    return change_name(io, path, sim_disk_unlink);
}

static int sim_rename(struct io *io, const char *from, const char *to)
{
    struct sim *s = sim_of(io);
    const struct io_sim_fault *fault;
    char *normal_to = sim_disk_path(to), *normal_from;
    int rc = normal_to == NULL ? -EINVAL
                               : enter_path(s, IO_SIM_ON_NAME, from, &normal_from, &fault);
    if (rc == 0) {
        rc = (int)leave(s, sim_disk_rename(&s->disk, normal_from, normal_to));
        free(normal_from);
    }
    free(normal_to);
    return rc;
}

static int sim_dir_sync(struct io *io, const char *path)
{
    struct sim *s = sim_of(io);
    const struct io_sim_fault *fault;
    char *normal;
    int rc = enter_path(s, IO_SIM_ON_DIR_SYNC, path, &normal, &fault);
    if (rc != 0)
        return rc;
    if (!is(fault, IO_SIM_LOST) && !s->crash_due)
        rc = sim_disk_sync_folder(&s->disk, normal);
    free(normal);
    return (int)leave(s, rc);
}

static void list_locked(const struct sim_disk *d, const char *folder, struct io_names *out)
{
    size_t at = 0, room = 0;
    const char *name;
    while ((name = sim_disk_next_name(d, folder, &at)) != NULL) {
        if (out->n == room) {
            room = room == 0 ? 64 : 2 * room;
            out->name = xrealloc(out->name, room * sizeof out->name[0]);
        }
        out->name[out->n++] = xstrdup(name);
    }
}

static int sim_list(struct io *io, const char *path, struct io_names *out)
{
    struct sim *s = sim_of(io);
    const struct io_sim_fault *fault;
    char *normal;
    int rc = enter_path(s, 0, path, &normal, &fault);
    if (rc != 0)
        return rc;
    const struct sim_node *n = sim_disk_find(&s->disk, normal);
    if (n == NULL || !n->is_dir)
        rc = n == NULL ? -ENOENT : -ENOTDIR;
    else
        list_locked(&s->disk, normal, out);
    free(normal);
    return (int)leave(s, rc);
}

static int sim_stat(struct io *io, const char *path, struct io_stat *out)
{
    struct sim *s = sim_of(io);
    const struct io_sim_fault *fault;
    char *normal;
    int rc = enter_path(s, 0, path, &normal, &fault);
    if (rc != 0)
        return rc;
    const struct sim_node *n = sim_disk_find(&s->disk, normal);
    if (n == NULL)
        rc = -ENOENT;
    else
        *out = (struct io_stat){.is_dir = n->is_dir,
                                .inode = (uint64_t)(uintptr_t)n,
                                .n_names = 1,
                                .size_bytes = n->current.size,
                                .allocated_bytes = n->current.n_allocated * SIM_SECTOR};
    free(normal);
    return (int)leave(s, rc);
}

static int sim_space(struct io *io, const char *path, uint64_t *free_bytes,
                     uint64_t *total_bytes)
{
    struct io_stat st;
    int rc = sim_stat(io, path, &st);
    if (rc != 0)
        return rc;
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    *total_bytes = s->disk.capacity_bytes;
    *free_bytes = s->disk.capacity_bytes - s->disk.used_sectors * SIM_SECTOR;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

static int sim_random(struct io *io, void *buf, size_t n)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)buf)[i] = (uint8_t)rng_u64(&s->rng);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* ---- Faults and damage ------------------------------------------------------------------- */

int io_sim_fault_add(struct io *io, const struct io_sim_fault *fault)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    int rc = sim_faults_add(&s->faults, fault);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void io_sim_fault_clear(struct io *io)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    sim_faults_clear(&s->faults);
    pthread_mutex_unlock(&s->lock);
}

void io_sim_unstick(struct io *io)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    s->n_unsticks++;
    pthread_mutex_unlock(&s->lock);
}

uint64_t io_sim_unsticks(struct io *io)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->n_unsticks + s->epoch;
    pthread_mutex_unlock(&s->lock);
    return n;
}

bool io_sim_gets_stuck(const struct io_piece *p)
{
    struct sim *s = sim_of(p->file->io);
    unsigned on = p->op == IO_READ ? IO_SIM_ON_READ : IO_SIM_ON_WRITE;
    pthread_mutex_lock(&s->lock);
    bool stuck = !s->crashed && sim_faults_stuck(&s->faults, on, p->file->path, &s->rng);
    pthread_mutex_unlock(&s->lock);
    return stuck;
}

uint64_t io_sim_fault_count(struct io *io, enum io_sim_fault_kind kind, int code)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    uint64_t n = sim_faults_count(&s->faults, kind, code);
    pthread_mutex_unlock(&s->lock);
    return n;
}

uint64_t io_sim_fault_hits(struct io *io)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->faults.n_hits;
    pthread_mutex_unlock(&s->lock);
    return n;
}

int io_sim_flip(struct io *io, const char *path, uint64_t offset, unsigned bit)
{
    struct sim *s = sim_of(io);
    char *normal = sim_disk_path(path);
    if (normal == NULL)
        return -EINVAL;
    pthread_mutex_lock(&s->lock);
    struct sim_node *n = sim_disk_find(&s->disk, normal);
    int rc = n == NULL ? -ENOENT : sim_node_flip(n, offset, bit);
    pthread_mutex_unlock(&s->lock);
    free(normal);
    return rc;
}

size_t io_sim_raw_count(struct io *io, const void *what, size_t n)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    size_t count = sim_disk_raw_count(&s->disk, what, n);
    pthread_mutex_unlock(&s->lock);
    return count;
}

uint64_t io_sim_digest(struct io *io)
{
    struct sim *s = sim_of(io);
    pthread_mutex_lock(&s->lock);
    uint64_t h = sim_disk_digest(&s->disk);
    pthread_mutex_unlock(&s->lock);
    return h;
}

static const struct io_ops sim_ops = {
    .close = sim_close,
    .random = sim_random,
    .file_open = sim_file_open,
    .file_close = sim_file_close,
    .file_pread = sim_file_pread,
    .file_pwrite = sim_file_pwrite,
    .file_sync = sim_file_sync,
    .file_size = sim_file_size,
    .file_truncate = sim_file_truncate,
    .file_allocate = sim_file_allocate,
    .file_punch = sim_file_punch,
    .file_next_data = sim_file_next_data,
    .file_lock = sim_file_lock,
    .file_unlock = sim_file_unlock,
    .mkdir = sim_mkdir,
    .make_private = sim_make_private,
    .list = sim_list,
    .stat = sim_stat,
    .unlink = sim_unlink,
    .rename = sim_rename,
    .dir_sync = sim_dir_sync,
    .space = sim_space,
};
