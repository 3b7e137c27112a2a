/* bench.h - the benchmarks behind `hcache bench NAME`, and what several of them share.
 *
 * Each parses its own options (argv[0] is its name) and returns the exit code. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>

#include "apps/engine_options.h"
#include "base/opt.h"

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
int bench_hybrid(int argc, char **argv);
int bench_hybrid_run(int argc, char **argv); /* bench hybrid run */

/* --- what a benchmark of a running engine is told --------------------------------------------- */

/* The first member of such a benchmark's own arguments. */
struct bench_common {
    struct engine_args engine;
};

extern const struct opt bench_positionals[]; /* MODEL */

/* Rows of its option table. */
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

/* Of a history, in any benchmark. */
enum { BENCH_MAX_TOKENS = 1 << 20 };

/* --- the table of a device: bench device, bench kernels --------------------------------------- */

struct device_table {
    struct engine_args engine; /* the device, its dtype, threads and ranks */
    const char *csv;
    const char *only; /* rows whose kind and shape contain it; NULL: all */
    int runs, tokens, width;
};
/* Measures what the device can do at most, prints that, and then each operation as
 * a share of it. */
int device_table_run(const struct device_table *o, struct err *err);

/* --- where it keeps its state ----------------------------------------------------------------- */

/* The folders of --store, none for "memory", or a temporary one (in TMPDIR, or
 * /var/tmp), which bench_place_close removes with what is in it; where a signal is
 * quicker, the next benchmark does. */
struct bench_place {
    char temp[256]; /* "": the folders are the user's */
    const char *temp_dir;
    int lock_fd; /* of the temporary one, as long as it is in use; -1 */
};

/* Puts them into e->o, which points into *p and e->store from then on. Returns 0 or an error. */
int bench_place_open(struct bench_place *p, struct engine_args *e, struct err *err);
void bench_place_close(struct bench_place *p);

/* --- numbers, ends and figures ---------------------------------------------------------------- */

/* An item of a list option, which must be a number from least to most: else
 * ERR_USAGE, naming both. */
int bench_number(const char *option, const char *text, int least, int most, int *out,
                 struct err *err);

/* The exit code of a benchmark that ended with rc, having said why on stderr. */
int bench_end(const char *name, int rc, const struct err *err);

/* The q-quantile of v[0..n), n > 0, which is sorted in place. */
double bench_quantile(double *v, int n, double q);
double bench_median(double *v, int n); /* of an even number, the mean of the middle two */

#endif
