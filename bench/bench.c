/* bench.c - see bench.h. */
#include "bench/bench.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/store_option.h"

const struct opt bench_positionals[] = {
    {"MODEL", OPT(struct bench_common, model), .def = "synth:bench-220m",
     .help = "a model folder or synth:SHAPE"},
    {0},
};

/* Of plain files, no folders below. */
static void remove_dir(const char *path)
{
    DIR *d = opendir(path);
    if (d == NULL)
        return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        unlink(name); /* "." and ".." are refused, as wanted */
    }
    closedir(d);
    rmdir(path);
}

int bench_place_open(struct bench_place *p, const struct bench_common *a, struct err *err)
{
    *p = (struct bench_place){0};
    if (store_is_on_disk(&a->store))
        *p = (struct bench_place){.dirs = a->store.items, .n_dirs = a->store.n};
    if (a->store.n > 0)
        return store_check(&a->store, err);
    const char *base = getenv("TMPDIR");
    if (base == NULL || base[0] == 0)
        base = "/var/tmp"; /* /tmp may be memory */
    int n = snprintf(p->temp, sizeof p->temp, "%s/hcache-bench-XXXXXX", base);
    if (n >= (int)sizeof p->temp || mkdtemp(p->temp) == NULL) {
        int code = n >= (int)sizeof p->temp ? -ENAMETOOLONG : -errno;
        p->temp[0] = 0;
        return err_set(
            err, code,
            "no folder for what is measured can be made in %.100s: %s; --store names one",
            base, err_name(code));
    }
    p->temp_dir = p->temp;
    p->dirs = &p->temp_dir;
    p->n_dirs = 1;
    return 0;
}

void bench_place_close(struct bench_place *p)
{
    if (p->temp[0] != 0)
        remove_dir(p->temp);
}

int bench_number(const char *option, const char *text, int least, int most, int *out,
                 struct err *err)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || v < least || v > most)
        return err_set(err, ERR_USAGE, "--%s: '%s' is no whole number from %d to %d",
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
