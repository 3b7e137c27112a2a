/* save_figure.h - the time that saving adds between tokens, as a plot and a table (HCache figure
 * 14). */
#ifndef BENCH_SAVE_FIGURE_H
#define BENCH_SAVE_FIGURE_H

#include "bench/report.h"

/* First line of the output of `hcache bench save --csv`, which save_figure_read reads. */
#define SAVE_CSV_HEAD                                                                      \
    "batch,arm,rounds,steps,median_ms,p99_ms,mean_ms,median_overhead_pct,"                 \
    "paired_overhead_pct,p99_overhead_pct,mb_per_s,shed\n"

enum { SAVE_FIGURE_ROWS = 64 };

struct save_figure {
    int n;
    struct save_figure_row {
        char batch[16], arm[16];
        double median_ms, p99_ms, median_pct, paired_pct, p99_pct;
    } rows[SAVE_FIGURE_ROWS];
};

/* Reads the table of a CSV file. An error names the file and the line that does not belong to the
 * table. */
int save_figure_read(struct save_figure *f, const char *csv_path, struct err *err);

/* Adds the plot and the table to the page. */
void save_figure_add(const struct save_figure *f, struct report *r);

#endif
