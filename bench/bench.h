/* bench.h - the benchmarks behind `hcache bench NAME`; each parses its own options (argv[0] is its
 * name) and returns the exit code. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

int bench_device(int argc, char **argv);
int bench_kernels(int argc, char **argv);
int bench_restore(int argc, char **argv);
int bench_resume(int argc, char **argv);
int bench_ablation(int argc, char **argv);
int bench_serve(int argc, char **argv);
int bench_beside(int argc, char **argv);
int bench_save(int argc, char **argv);

/* Removes a folder of ours with what is in it: plain files, no folders below. */
void bench_remove_dir(const char *path);

#endif
