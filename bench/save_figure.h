/* save_figure.h - what saving adds to the time between tokens, as a plot and a table (HCache figure 14). */
#ifndef BENCH_SAVE_FIGURE_H
#define BENCH_SAVE_FIGURE_H

#include "bench/report.h"

/* The head of what `hcache bench save --csv` writes; save_figure reads that. */
#define SAVE_CSV_HEAD                                                                      \
    "batch,arm,rounds,steps,median_ms,p99_ms,mean_ms,median_overhead_pct,"                 \
    "paired_overhead_pct,p99_overhead_pct,mb_per_s,shed\n"

/* Adds both to the page. An error names the file, and the line that is not such a table's. */
int save_figure(struct report *r, const char *csv_path, struct err *err);

#endif
