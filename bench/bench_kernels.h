/* bench_kernels.h - `hcache bench kernels`; returns the program's exit code. */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

int bench_kernels(int argc, char **argv);

#endif
