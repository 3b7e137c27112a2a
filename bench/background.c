/* background.c - see background.h. */
#include "bench/background.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"

enum { MOST_THREADS = 2, READ_BYTES = 1 << 20 };

struct background_run {
    atomic_bool ends;
    pthread_t thread[MOST_THREADS];
    int n;
    int fd;
    void *to; /* [READ_BYTES] */
};

static const char *const names[BACKGROUNDS] = {"none", "busy", "busy2", "reader"};

const char *background_name(enum background b)
{
    return names[b];
}

int background_parse(const char *name, enum background *out, struct err *err)
{
    for (int i = 0; i < BACKGROUNDS; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum background)i;
            return 0;
        }
    }
    return err_set(err, ERR_USAGE, "load '%s': must be none, busy, busy2 or reader", name);
}

static void *compute(void *arg)
{
    struct background_run *run = arg;
    volatile double x = 1;
    while (!atomic_load_explicit(&run->ends, memory_order_relaxed))
        for (int i = 0; i < 10000; i++)
            x = x * 1.0000001 + 1e-9;
    return NULL;
}

/* Drops pages from the cache after each read, so that every read comes from the device. */
static void *read_on(void *arg)
{
    struct background_run *run = arg;
    off_t at = 0;
    while (!atomic_load_explicit(&run->ends, memory_order_relaxed)) {
        ssize_t n = pread(run->fd, run->to, READ_BYTES, at);
        if (n > 0)
            (void)posix_fadvise(run->fd, at, n, POSIX_FADV_DONTNEED);
        at = n > 0 ? at + n : 0;
        if (n < 0)
            break;
    }
    return NULL;
}

/* Opens the largest file of a folder. Returns its descriptor, or -1 if there is none. */
static int open_largest(struct io *io, const char *folder)
{
    struct io_names names_of = {0};
    struct io_stat st;
    uint64_t most = 0;
    int fd = -1;
    if (io_list(io, folder, &names_of, NULL) == 0) {
        for (size_t i = 0; i < names_of.n; i++) {
            char path[4096];
            (void)snprintf(path, sizeof path, "%s/%s", folder, names_of.name[i]);
            if (io_stat(io, path, &st, NULL) != 0 || st.size_bytes <= most)
                continue;
            int other = open(path, O_RDONLY | O_CLOEXEC);
            if (other < 0)
                continue;
            if (fd >= 0)
                close(fd);
            fd = other;
            most = st.size_bytes;
        }
        io_names_free(&names_of);
    }
    return fd;
}

struct background_run *background_start(enum background b, struct io *io,
                                        const char *folder, struct err *err)
{
    int n = b == BACKGROUND_NONE ? 0 : b == BACKGROUND_BUSY2 ? 2 : 1;
    if (n == 0)
        return NULL;
    struct background_run *run = xcalloc(1, sizeof *run);
    run->fd = b == BACKGROUND_READER ? open_largest(io, folder) : -1;
    if (b == BACKGROUND_READER && run->fd < 0) {
        (void)err_set(err, -ENOENT, "%s: no file to read beside the restores", folder);
        free(run);
        return NULL;
    }
    run->to = xmalloc(READ_BYTES);
    for (int i = 0; i < n; i++) {
        int rc = thread_create(&run->thread[i], b == BACKGROUND_READER ? read_on : compute,
                               run);
        if (rc != 0) {
            (void)err_set(err, -rc, "no thread for the load: %s", strerror(rc));
            background_stop(run);
            return NULL;
        }
        run->n++;
    }
    return run;
}

void background_stop(struct background_run *run)
{
    if (run == NULL)
        return;
    atomic_store(&run->ends, true);
    for (int i = 0; i < run->n; i++)
        pthread_join(run->thread[i], NULL);
    if (run->fd >= 0)
        close(run->fd);
    free(run->to);
    free(run);
}
