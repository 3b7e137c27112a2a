/* save_figure.c - see save_figure.h. */
#include "bench/save_figure.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static bool row_parse(const char *line, struct save_figure_row *r)
{
    return sscanf(line, "%15[0-9],%15[a-z0-9],%*d,%*d,%lf,%lf,%*f,%lf,%lf,%lf", r->batch,
                  r->arm, &r->median_ms, &r->p99_ms, &r->median_pct, &r->paired_pct,
                  &r->p99_pct) == 7;
}

static int rows_read(struct save_figure *out, FILE *f, const char *path, struct err *err)
{
    char line[512];
    out->n = 0;
    if (fgets(line, sizeof line, f) == NULL || strcmp(line, SAVE_CSV_HEAD) != 0)
        return err_set(err, ERR_FORMAT, "%s: not a table of hcache bench save --csv", path);
    while (fgets(line, sizeof line, f) != NULL) {
        if (out->n == SAVE_FIGURE_ROWS)
            return err_set(err, ERR_LIMIT, "%s: more than %d rows", path, SAVE_FIGURE_ROWS);
        if (!row_parse(line, &out->rows[out->n]))
            return err_set(err, ERR_FORMAT, "%s: line %d is not a row of hcache bench save",
                           path, out->n + 2);
        out->n++;
    }
    return out->n > 0 ? 0 : err_set(err, ERR_FORMAT, "%s: the table has no rows", path);
}

int save_figure_read(struct save_figure *out, const char *csv_path, struct err *err)
{
    FILE *f = fopen(csv_path, "re");
    if (f == NULL)
        return err_set(err, -errno, "%s: %s", csv_path, strerror(errno));
    int rc = rows_read(out, f, csv_path, err);
    if (rc == 0 && ferror(f) != 0)
        rc = err_set(err, -EIO, "%s: cannot be read", csv_path);
    (void)fclose(f);
    return rc;
}

/* Returns the index of a name in a list. Adds a new name to the list. Returns -1 if the list is
 * full. */
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

static void plot(struct report *r, const struct save_figure_row *rows, int n)
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

static void table(struct report *r, const struct save_figure_row *rows, int n)
{
    report_table_begin(r, "sequences\tsaving\tp50 ms\tp99 ms\tp50 over off\tpaired\tp99 "
                          "over off");
    for (int i = 0; i < n; i++)
        report_row(r, "%s\t%s\t%.1f\t%.1f\t%+.1f %%\t%+.1f %%\t%+.1f %%", rows[i].batch,
                   rows[i].arm, rows[i].median_ms, rows[i].p99_ms, rows[i].median_pct,
                   rows[i].paired_pct, rows[i].p99_pct);
    report_table_end(r);
    report_text(r, "off2 repeats off, in turn with it: their difference is the noise. "
                   "Paired: the median over rounds of the difference between neighbouring "
                   "windows.");
}

void save_figure_add(const struct save_figure *f, struct report *r)
{
    plot(r, f->rows, f->n);
    table(r, f->rows, f->n);
}
