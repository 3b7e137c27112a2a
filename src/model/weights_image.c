/* weights_image.c - see weights_image.h. */
#include "model/weights_image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/known.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"

enum { PAGE = 4096, SUM_BYTES = 1 << 20, AHEAD_BYTES = 32 << 20, MAX_MAPPED = 16 };
enum { LOWEST_PRIORITY = 19 };
/* A short run ends before its image is written: for so long it waits. */
enum { FINISH_S = 1 };

static const char MAGIC[8] = "hcimage";

struct header {
    char magic[8];
    struct sha256 key;
    uint64_t n_bytes, sum_of_table, sum; /* sum: of all fields before */
};

struct weights_image {
    struct sha256 key;
    size_t n_bytes;
    int fd;
    /* A mapped image. */
    uint8_t *map;
    size_t map_bytes;
    struct stat checked;
    int slot; /* of mapped[]; -1: none */
    bool is_damaged;
    atomic_size_t next, n_bad;
    uint64_t *sums;
    /* An image that is being written. */
    struct image_piece *pieces;
    size_t n_pieces;
    pthread_t writer;
    bool is_written;
    atomic_bool stops;
    char *folder;
};

static size_t n_sums(size_t n_bytes)
{
    return (n_bytes + SUM_BYTES - 1) / SUM_BYTES;
}

/* Returns where the weights begin. */
static size_t begin_of(size_t n_bytes)
{
    return PAGE + (size_t)round_up(n_sums(n_bytes) * sizeof(uint64_t), PAGE);
}

static uint64_t header_sum(const struct header *h)
{
    return checksum64(h, offsetof(struct header, sum));
}

/* Returns the path of an image below its folder, from malloc. */
static char *path_of(const char *folder, const struct sha256 *key)
{
    char hex[SHA256_HEX + 1];
    sha256_hex(key, hex);
    return xasprintf("%s/%s", folder, hex);
}

/* --- reading where a file was cut ------------------------------------------------------------- */

/* The mapped images. An address is in at most one of them. */
static struct mapped {
    atomic_uintptr_t at;
    atomic_size_t bytes;
    atomic_bool is_broken;
} mapped[MAX_MAPPED];
static pthread_mutex_t mapped_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < MAX_MAPPED; i++) {
        struct mapped *m = &mapped[i];
        uintptr_t from = atomic_load(&m->at), end = from + atomic_load(&m->bytes);
        if (from == 0 || at < from || at >= end)
            continue;
        atomic_store(&m->is_broken, true);
        uintptr_t page = at & ~(uintptr_t)(PAGE - 1);
        if (mmap((void *)page, end - page, PROT_READ,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
            return;
    }
    if ((before.sa_flags & SA_SIGINFO) != 0)
        before.sa_sigaction(sig, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(sig);
    else
        signal(sig, SIG_DFL); /* the instruction runs again, and ends the process */
}

/* Enters a mapping in the list. Returns its place; -1: the list is full. */
static int guard(const void *at, size_t bytes)
{
    const struct sigaction own = {.sa_sigaction = on_bus_error,
                                  .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigaction now;
    int slot = 0;
    pthread_mutex_lock(&mapped_lock);
    bool has_handler = sigaction(SIGBUS, NULL, &now) == 0;
    if (has_handler && now.sa_sigaction != on_bus_error) {
        before = now;
        has_handler = sigaction(SIGBUS, &own, NULL) == 0;
    }
    while (slot < MAX_MAPPED && atomic_load(&mapped[slot].at) != 0)
        slot++;
    if (slot == MAX_MAPPED || !has_handler) {
        slot = -1;
    } else {
        atomic_store(&mapped[slot].is_broken, false);
        atomic_store(&mapped[slot].bytes, bytes);
        atomic_store(&mapped[slot].at, (uintptr_t)at);
    }
    pthread_mutex_unlock(&mapped_lock);
    return slot;
}

/* --- mapping ---------------------------------------------------------------------------------- */

/* Checks pieces of a MiB, and has the system read ahead of them. */
static void check_sums(void *arg, int thread_idx, int n_threads)
{
    struct weights_image *im = arg;
    const uint8_t *data = weights_image_memory(im);
    (void)thread_idx;
    (void)n_threads;
    for (size_t i; atomic_load(&im->n_bad) == 0 &&
                   (i = atomic_fetch_add(&im->next, 1)) < n_sums(im->n_bytes);) {
        size_t at = i * SUM_BYTES, n = MIN(im->n_bytes - at, (size_t)SUM_BYTES);
        off_t file_at = (off_t)(begin_of(im->n_bytes) + at);
        (void)posix_fadvise(im->fd, file_at + AHEAD_BYTES, SUM_BYTES, POSIX_FADV_WILLNEED);
        if (checksum64(data + at, n) != im->sums[i])
            atomic_fetch_add(&im->n_bad, 1);
    }
}

/* Reads header and table. Returns whether they are an image of these weights. */
static bool read_head(struct weights_image *im)
{
    struct header h;
    size_t n = n_sums(im->n_bytes) * sizeof(uint64_t);
    if (fstat(im->fd, &im->checked) != 0 || !S_ISREG(im->checked.st_mode) ||
        im->checked.st_uid != geteuid() || (im->checked.st_mode & 022) != 0 ||
        (uint64_t)im->checked.st_size != begin_of(im->n_bytes) + im->n_bytes ||
        file_read_at(im->fd, &h, sizeof h, 0) != 0)
        return false;
    im->sums = xmalloc(n);
    return memcmp(h.magic, MAGIC, sizeof h.magic) == 0 && h.sum == header_sum(&h) &&
           memcmp(&h.key, &im->key, sizeof h.key) == 0 && h.n_bytes == im->n_bytes &&
           file_read_at(im->fd, im->sums, n, PAGE) == 0 &&
           h.sum_of_table == checksum64(im->sums, n);
}

/* Maps the image and compares all checksums. Sets is_damaged if the file is to be deleted. */
static bool map_and_check(struct weights_image *im, struct pool *pool)
{
    im->is_damaged = !read_head(im);
    if (im->is_damaged)
        return false;
    (void)posix_fadvise(im->fd, 0, AHEAD_BYTES, POSIX_FADV_WILLNEED);
    im->map_bytes = (size_t)im->checked.st_size;
    im->map = mem_map_file(im->fd, im->map_bytes);
    im->slot = im->map != NULL ? guard(im->map, im->map_bytes) : -1;
    if (im->slot < 0) /* no memory, or too many images are mapped: this one is good */
        return false;
    pool_run(pool, check_sums, im);
    im->is_damaged = atomic_load(&im->n_bad) > 0 || !weights_image_is_intact(im);
    return !im->is_damaged;
}

struct weights_image *weights_image_map(const struct sha256 *key, size_t n_bytes,
                                        struct pool *pool)
{
    char *folder = known_folder("images", false), *path;
    if (folder == NULL)
        return NULL;
    struct weights_image *im = xcalloc(1, sizeof *im);
    *im = (struct weights_image){
        .key = *key, .n_bytes = n_bytes, .slot = -1, .folder = folder};
    path = path_of(folder, key);
    im->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool good = im->fd >= 0 && map_and_check(im, pool);
    if (im->is_damaged) {
        log_info("%s: is damaged and was deleted; the weights are read from their source",
                 path);
        (void)unlink(path);
    }
    if (good) /* its time of use; the time of writing stays */
        (void)futimens(im->fd, (struct timespec[2]){{0, UTIME_NOW}, {0, UTIME_OMIT}});
    free(path);
    if (good)
        return im;
    weights_image_close(im);
    return NULL;
}

uint8_t *weights_image_memory(const struct weights_image *im)
{
    return im->map != NULL ? im->map + begin_of(im->n_bytes) : NULL;
}

bool weights_image_is_intact(const struct weights_image *im)
{
    struct stat now;
    return im->map == NULL ||
           (!atomic_load(&mapped[im->slot].is_broken) && fstat(im->fd, &now) == 0 &&
            now.st_size == im->checked.st_size &&
            now.st_mtim.tv_sec == im->checked.st_mtim.tv_sec &&
            now.st_mtim.tv_nsec == im->checked.st_mtim.tv_nsec);
}

/* --- writing ---------------------------------------------------------------------------------- */

struct old_image {
    char *path;
    uint64_t bytes;
    struct timespec used;
};

static int by_use(const void *a, const void *b)
{
    const struct timespec *x = &((const struct old_image *)a)->used,
                          *y = &((const struct old_image *)b)->used;
    return x->tv_sec != y->tv_sec ? (x->tv_sec > y->tv_sec) - (x->tv_sec < y->tv_sec)
                                  : (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* Deletes the images that were used longest ago until one of n_bytes fits. Returns whether it
 * does. */
static bool make_room(const char *folder, uint64_t n_bytes)
{
    struct old_image *old = NULL;
    size_t n = 0;
    uint64_t taken = 0;
    struct statvfs fs;
    struct dirent *e;
    DIR *d = opendir(folder);
    while (d != NULL && (e = readdir(d)) != NULL) {
        struct stat st;
        char *path = xasprintf("%s/%s", folder, e->d_name);
        if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
            free(path);
            continue;
        }
        old = xrealloc(old, (n + 1) * sizeof *old);
        old[n++] = (struct old_image){path, (uint64_t)st.st_size, st.st_atim};
        taken += (uint64_t)st.st_size;
    }
    bool fits = d != NULL && statvfs(folder, &fs) == 0;
    if (d != NULL)
        closedir(d);
    if (n > 0)
        qsort(old, n, sizeof *old, by_use);
    uint64_t room = fits ? ((uint64_t)fs.f_bavail * fs.f_frsize + taken) / 4 : 0;
    room = MIN(room, IMAGES_MAX_BYTES);
    for (size_t i = 0; i < n; i++) {
        if (n_bytes <= room && taken + n_bytes > room && unlink(old[i].path) == 0)
            taken -= old[i].bytes;
        free(old[i].path);
    }
    free(old);
    return taken + n_bytes <= room;
}

/* Writes all pieces, and a checksum of each MiB. */
static int write_pieces(struct weights_image *im)
{
    uint8_t *block = xcalloc(1, SUM_BYTES);
    size_t fill = 0, i = 0, begin = begin_of(im->n_bytes);
    int rc = 0;
    for (size_t k = 0; rc == 0 && k < im->n_pieces; k++) {
        size_t n = (size_t)round_up(im->pieces[k].bytes, IMAGE_LINE),
               own = im->pieces[k].bytes;
        for (size_t done = 0; rc == 0 && done < n;) {
            size_t part = MIN(n - done, SUM_BYTES - fill);
            size_t copied = done < own ? MIN(part, own - done) : 0;
            memcpy(block + fill, (const uint8_t *)im->pieces[k].at + done, copied);
            memset(block + fill + copied, 0, part - copied);
            done += part;
            fill += part;
            if (fill < SUM_BYTES && i * SUM_BYTES + fill < im->n_bytes)
                continue;
            im->sums[i] = checksum64(block, fill);
            rc = atomic_load(&im->stops)
                     ? -ECANCELED
                     : file_write_all(im->fd, block, fill, (off_t)(begin + i * SUM_BYTES));
            i++;
            fill = 0;
        }
    }
    free(block);
    return rc;
}

static void *write_image(void *arg)
{
    struct weights_image *im = arg;
    struct header h = {.key = im->key, .n_bytes = im->n_bytes};
    size_t n = n_sums(im->n_bytes) * sizeof(uint64_t);
    char from[32], *path = path_of(im->folder, &im->key);
    /* A thread inherits a real-time policy, which would ignore the priority. */
    (void)sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0});
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), LOWEST_PRIORITY);
    im->sums = xcalloc(1, n);
    int rc = write_pieces(im);
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.sum_of_table = checksum64(im->sums, n);
    h.sum = header_sum(&h);
    if (rc == 0)
        rc = file_write_all(im->fd, im->sums, n, PAGE);
    if (rc == 0)
        rc = file_write_all(im->fd, &h, sizeof h, 0);
    snprintf(from, sizeof from, "/proc/self/fd/%d", im->fd);
    if (rc == 0 && linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0)
        rc = -errno; /* EEXIST: another process was faster */
    if (rc == 0)
        log_info("%s: the image of the weights; a later start maps it", path);
    else if (rc != -ECANCELED && rc != -EEXIST)
        log_info("%s: no image of the weights is kept: %s", path, strerror(-rc));
    free(path);
    return NULL;
}

struct weights_image *weights_image_make(const struct sha256 *key, size_t n_bytes,
                                         const struct image_piece *pieces, size_t n)
{
    char *folder = known_folder("images", true);
    if (folder == NULL)
        return NULL;
    struct weights_image *im = xcalloc(1, sizeof *im);
    *im = (struct weights_image){
        .key = *key, .n_bytes = n_bytes, .slot = -1, .folder = folder};
    im->fd = make_room(folder, begin_of(n_bytes) + n_bytes)
                 ? open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                 : -1;
    im->pieces = xmalloc(n * sizeof *pieces);
    memcpy(im->pieces, pieces, n * sizeof *pieces);
    im->n_pieces = n;
    im->is_written = im->fd >= 0 && thread_create(&im->writer, write_image, im) == 0;
    if (im->is_written)
        return im;
    weights_image_close(im);
    return NULL;
}

void weights_image_close(struct weights_image *im)
{
    if (im == NULL)
        return;
    if (im->is_written) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += FINISH_S;
        bool runs = pthread_timedjoin_np(im->writer, NULL, &until) != 0;
        atomic_store(&im->stops, true);
        if (runs)
            pthread_join(im->writer, NULL);
    }
    if (im->slot >= 0)
        atomic_store(&mapped[im->slot].at, 0);
    mem_unmap(im->map, im->map_bytes);
    if (im->fd >= 0)
        close(im->fd);
    free(im->sums);
    free(im->pieces);
    free(im->folder);
    free(im);
}
