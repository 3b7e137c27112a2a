/* bench.c - see bench.h. */
#include "bench/bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const struct opt bench_positionals[] = {
    {"MODEL", OPT(struct bench_common, engine.o.model), .def = "synth:bench-220m",
     .help = "a model folder, a GGUF file, or synth:SHAPE"},
    {0},
};

static int remove_one(const char *path, const struct stat *st, int what, struct FTW *at)
{
    (void)st, (void)what, (void)at;
    return remove(path);
}

static void remove_dir(const char *path)
{
    (void)nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Locks a folder of this user until the process ends. Returns the descriptor, or -1. */
static int lock_dir(const char *path, struct stat *st)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, st) != 0 || st->st_uid != geteuid() ||
                    flock(fd, LOCK_EX | LOCK_NB) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

#define TEMP_NAME "hcache-bench-"

/* Removes the folders of benchmarks that were ended by a signal. They hold gigabytes that would
 * otherwise be forgotten. A folder that is less than a minute old stays, because its benchmark may
 * not have locked it yet. */
static void sweep(const char *base)
{
    DIR *d = opendir(base);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char path[4096];
        struct stat st;
        if (strncmp(e->d_name, TEMP_NAME, strlen(TEMP_NAME)) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", base, e->d_name);
        int fd = lock_dir(path, &st);
        if (fd < 0)
            continue;
        if (time(NULL) - st.st_mtime > 60)
            remove_dir(path);
        close(fd);
    }
    if (d != NULL)
        closedir(d);
}

int bench_place_open(struct bench_place *p, struct engine_args *e, struct err *err)
{
    *p = (struct bench_place){.engine = e};
    int rc = engine_args_finish(e, err);
    if (rc != 0 || e->store.n > 0)
        return rc;
    const char *base = getenv("TMPDIR");
    if (base == NULL || base[0] == 0)
        base = "/var/tmp"; /* /tmp may lie in memory */
    sweep(base);
    int n = snprintf(p->temp, sizeof p->temp, "%s/" TEMP_NAME "XXXXXX", base);
    if (n >= (int)sizeof p->temp || mkdtemp(p->temp) == NULL) {
        int code = n >= (int)sizeof p->temp ? -ENAMETOOLONG : -errno;
        p->temp[0] = 0;
        return err_set(
            err, code,
            "cannot make a folder for the state in %.100s: %s; give one with --store", base,
            err_name(code));
    }
    struct stat st;
    p->lock_fd = lock_dir(p->temp, &st);
    p->temp_dir = p->temp;
    e->o.store = &p->temp_dir;
    e->o.n_store = 1;
    return 0;
}

void bench_place_close(struct bench_place *p)
{
    engine_args_end(p->engine);
    if (p->temp[0] == 0)
        return;
    remove_dir(p->temp);
    if (p->lock_fd >= 0)
        close(p->lock_fd);
}

int bench_number(const char *option, const char *text, int least, int most, int *out,
                 struct err *err)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || v < least || v > most)
        return err_set(err, ERR_USAGE, "--%s: '%s' is not a whole number from %d to %d",
                       option, text, least, most);
    *out = (int)v;
    return 0;
}

int bench_end(const char *name, int rc, const struct err *err)
{
    if (rc != 0)
        fprintf(stderr, "hcache bench %s: %s\n", name, err->msg);
    return rc == 0 ? 0 : rc == ERR_USAGE ? 2 : 1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *v, int n, double q)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[(int)(q * (n - 1) + 0.5)];
}

double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 != 0 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}
