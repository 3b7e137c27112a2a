/* bench.h - the benchmarks behind `hcache bench NAME`, and the parts that they share.
 *
 * Each benchmark parses its own options (argv[0] is its name) and returns the exit code. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>

#include "apps/engine_options.h"
#include "opt/opt.h"

int bench_device(int argc, char **argv);
int bench_kernels(int argc, char **argv);
int bench_plan(int argc, char **argv);
int bench_restore(int argc, char **argv);
int bench_resume(int argc, char **argv);
int bench_ablation(int argc, char **argv);
int bench_serve(int argc, char **argv);
int bench_exact(int argc, char **argv);
int bench_beside(int argc, char **argv);
int bench_save(int argc, char **argv);
int bench_stream(int argc, char **argv);
int bench_tiers(int argc, char **argv);
int bench_form(int argc, char **argv);
int bench_pack(int argc, char **argv);
int bench_hybrid(int argc, char **argv);
int bench_hybrid_run(int argc, char **argv); /* runs `hcache bench hybrid run` */

/* --- options of benchmarks that run an engine ------------------------------------------------- */

/* First member of the arguments of each benchmark that runs an engine. */
struct bench_common {
    struct engine_args engine;
};

extern const struct opt bench_positionals[]; /* the one positional argument: MODEL */

/* Rows for the option tables of these benchmarks. */
/* clang-format off */
#define BENCH_OPT_STORE                                                                    \
    OPT_STORE(struct bench_common,                                                         \
              "where to keep the state; \"memory\" for DRAM; a temporary folder by default")
#define BENCH_OPT_DEVICE   OPT_DEVICE(struct bench_common)
#define BENCH_OPT_DTYPE    OPT_DTYPE(struct bench_common)
#define BENCH_OPT_THREADS  OPT_THREADS(struct bench_common)
#define BENCH_OPT_PARALLEL OPT_PARALLEL(struct bench_common)
#define BENCH_OPT_BATCH    OPT_BATCH_ROWS(struct bench_common)
/* clang-format on */

/* Tokens of the longest history that a benchmark accepts. */
enum { BENCH_MAX_TOKENS = 1 << 20 };

/* --- the table of a device: bench device, bench kernels --------------------------------------- */

struct device_table {
    struct engine_args engine; /* the device, its dtype, threads and ranks */
    const char *csv;
    /* prints only rows whose kind and shape contain this text; NULL: all rows */
    const char *only;
    int runs, tokens, width;
};
/* Measures and prints the device's limits, and then each operation as a share of them. */
int device_table_run(const struct device_table *o, struct err *err);

/* --- the place of the state ------------------------------------------------------------------- */

/* The folders of the store: those of --store, none for "memory", or a temporary folder in TMPDIR or
 * /var/tmp. bench_place_close removes a temporary folder with its contents. If a signal ends the
 * process before, the next benchmark removes the folder. */
struct bench_place {
    struct engine_args *engine; /* of the caller, whose key bench_place_close overwrites */
    char temp[256]; /* path of the temporary folder; "": the user has named the folders */
    const char *temp_dir;
    int lock_fd; /* descriptor of the temporary folder's lock; -1: no lock */
};

/* Sets the folders in e->o, which points into *p and e->store from then on. Returns 0 or an
 * error. */
int bench_place_open(struct bench_place *p, struct engine_args *e, struct err *err);
void bench_place_close(struct bench_place *p);

/* --- numbers, ends and figures ---------------------------------------------------------------- */

/* Parses an item of a list option as a number from least to most. Returns 0, or ERR_USAGE with a
 * message that names the option and the bounds. */
int bench_number(const char *option, const char *text, int least, int most, int *out,
                 struct err *err);

/* Prints the error of a benchmark that ended with rc, and returns its exit code. */
int bench_end(const char *name, int rc, const struct err *err);

/* Returns the q-quantile of v[0..n), n > 0. Sorts v. */
double bench_quantile(double *v, int n, double q);
/* Returns the median; of an even number of values, the mean of the middle two. */
double bench_median(double *v, int n);

#endif
