/* save_figure.c - see save_figure.h. */
#include "bench/save_figure.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { MAX_ROWS = 64, NAME_BYTES = 16 };

struct row {
    char batch[NAME_BYTES], arm[NAME_BYTES];
    double median_ms, p99_ms, median_pct, paired_pct, p99_pct;
};

static bool row_parse(const char *line, struct row *r)
{
    return sscanf(line, "%15[0-9],%15[a-z0-9],%*d,%*d,%lf,%lf,%*f,%lf,%lf,%lf", r->batch,
                  r->arm, &r->median_ms, &r->p99_ms, &r->median_pct, &r->paired_pct,
                  &r->p99_pct) == 7;
}

static int rows_read(FILE *f, const char *path, struct row rows[MAX_ROWS], int *n,
                     struct err *err)
{
    char line[512];
    *n = 0;
    if (fgets(line, sizeof line, f) == NULL || strcmp(line, SAVE_CSV_HEAD) != 0)
        return err_set(err, ERR_FORMAT, "%s: no table of hcache bench save --csv", path);
    while (*n < MAX_ROWS && fgets(line, sizeof line, f) != NULL) {
        if (!row_parse(line, &rows[*n]))
            return err_set(err, ERR_FORMAT, "%s: line %d is no row of hcache bench save",
                           path, *n + 2);
        ++*n;
    }
    return 0;
}

/* Where a name is in a list, which it joins if it is new; -1: there is no room. */
static int place(const char **names, int *n, int max, const char *name)
{
    int i = 0;
    while (i < *n && strcmp(names[i], name) != 0)
        i++;
    if (i == max)
        return -1;
    if (i == *n)
        names[(*n)++] = name;
    return i;
}

static void plot(struct report *r, const struct row *rows, int n)
{
    struct report_bars bars = {.title = "time between tokens by sequences that decode",
                               .unit = "median, ms"};
    for (int g = 0; g < REPORT_MAX_GROUPS; g++)
        for (int s = 0; s < REPORT_MAX_SERIES; s++)
            bars.value[g][s] = NAN;
    for (int i = 0; i < n; i++) {
        int g = place(bars.group, &bars.n_groups, REPORT_MAX_GROUPS, rows[i].batch);
        int s = place(bars.series, &bars.n_series, REPORT_MAX_SERIES, rows[i].arm);
        if (g >= 0 && s >= 0)
            bars.value[g][s] = rows[i].median_ms;
    }
    report_bars(r, &bars);
}

static void table(struct report *r, const struct row *rows, int n)
{
    report_table_begin(r, "sequences\tsaving\tp50 ms\tp99 ms\tp50 over off\tpaired\tp99 "
                          "over off");
    for (int i = 0; i < n; i++)
        report_row(r, "%s\t%s\t%.1f\t%.1f\t%+.1f %%\t%+.1f %%\t%+.1f %%", rows[i].batch,
                   rows[i].arm, rows[i].median_ms, rows[i].p99_ms, rows[i].median_pct,
                   rows[i].paired_pct, rows[i].p99_pct);
    report_table_end(r);
    report_text(r, "off2 is the same as off, in turn with it: what a difference is worth. "
                   "Paired: the median over rounds of the difference between neighbouring "
                   "windows.");
}

int save_figure(struct report *r, const char *csv_path, struct err *err)
{
    struct row rows[MAX_ROWS];
    int n;
    FILE *f = fopen(csv_path, "re");
    if (f == NULL)
        return err_set(err, -errno, "%s: %s", csv_path, strerror(errno));
    int rc = rows_read(f, csv_path, rows, &n, err);
    (void)fclose(f);
    if (rc != 0)
        return rc;
    plot(r, rows, n);
    table(r, rows, n);
    return 0;
}
