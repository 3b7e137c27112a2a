/* report.h - a plain HTML page with tables and SVG plots, for results of benchmarks.
 *
 * It is one file without scripts, which loads nothing from elsewhere. The functions escape text. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"

struct report {
    FILE *f;
    const char *path;
};

int report_open(struct report *r, const char *path, const char *title, struct err *err);
/* Closes the page. Returns 0 if everything has reached the file, else an error. */
int report_close(struct report *r, struct err *err);

void report_heading(struct report *r, const char *text);
__attribute__((format(printf, 2, 3))) void report_text(struct report *r, const char *fmt,
                                                       ...);

/* Begins a table. `head` is its first row; in each row '\t' separates the cells. */
void report_table_begin(struct report *r, const char *head);
__attribute__((format(printf, 2, 3))) void report_row(struct report *r, const char *fmt,
                                                      ...);
void report_table_end(struct report *r);

enum { REPORT_MAX_SERIES = 8, REPORT_MAX_GROUPS = 16 };

/* Bars in groups: value[group][series]; NAN leaves a bar out. */
struct report_bars {
    const char *title, *unit;
    int n_groups, n_series;
    const char *group[REPORT_MAX_GROUPS], *series[REPORT_MAX_SERIES];
    double value[REPORT_MAX_GROUPS][REPORT_MAX_SERIES];
};
void report_bars(struct report *r, const struct report_bars *b);

#endif
