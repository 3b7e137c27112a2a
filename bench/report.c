/* report.c - see report.h. */
#include "bench/report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

static void put_escaped(FILE *f, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        switch (text[i]) {
        case '&':
            fputs("&amp;", f);
            break;
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc(text[i], f);
        }
}

static void put_text(FILE *f, const char *text)
{
    put_escaped(f, text, strlen(text));
}

int report_open(struct report *r, const char *path, const char *title, struct err *err)
{
    r->path = path;
    r->f = fopen(path, "w");
    if (r->f == NULL)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    fputs("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<title>", r->f);
    put_text(r->f, title);
    fputs("</title>\n<style>body{font:15px/1.4 sans-serif;max-width:60em;margin:2em auto}"
          "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em "
          ".7em;border-bottom:1px "
          "solid #ccc;text-align:right;overflow-wrap:anywhere}"
          "td:first-child,th:first-child{text-align:left;white-space:nowrap}"
          "svg{display:block;margin:1em 0}</style>\n<h1>",
          r->f);
    put_text(r->f, title);
    fputs("</h1>\n", r->f);
    return 0;
}

int report_close(struct report *r, struct err *err)
{
    bool bad = ferror(r->f) != 0;
    bad = fclose(r->f) != 0 || bad;
    return bad ? err_set(err, -EIO, "%s: it could not be written", r->path) : 0;
}

void report_heading(struct report *r, const char *text)
{
    fputs("<h2>", r->f);
    put_text(r->f, text);
    fputs("</h2>\n", r->f);
}

void report_text(struct report *r, const char *fmt, ...)
{
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fputs("<p>", r->f);
    put_text(r->f, text);
    fputs("</p>\n", r->f);
}

/* --- tables ----------------------------------------------------------------------------------- */

static void put_cells(FILE *f, const char *line, const char *tag)
{
    fputs("<tr>", f);
    for (;;) {
        size_t n = strcspn(line, "\t");
        fprintf(f, "<%s>", tag);
        put_escaped(f, line, n);
        fprintf(f, "</%s>", tag);
        if (line[n] == 0)
            break;
        line += n + 1;
    }
    fputs("</tr>\n", f);
}

void report_table_begin(struct report *r, const char *head)
{
    fputs("<table>\n", r->f);
    put_cells(r->f, head, "th");
}

void report_row(struct report *r, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    put_cells(r->f, line, "td");
}

void report_table_end(struct report *r)
{
    fputs("</table>\n", r->f);
}

/* --- bars ------------------------------------------------------------------------------------- */

enum { WIDTH = 760, HEIGHT = 260, LEFT = 60, TOP = 30, BOTTOM = 50 };

/* Colours that can be told apart without colour vision, too: lightness rises along the array. */
static const char *const colours[REPORT_MAX_SERIES] = {
    "#1b3a5c", "#2f6690", "#b5542a", "#3a8f6b", "#e0a030", "#7fb7be", "#d8b4a0", "#999999"};

/* Returns 1, 2 or 5 times a power of ten that gives about four steps below `most`. */
static double grid_step(double most)
{
    double step = pow(10, floor(log10(most / 4)));
    return most / 4 >= 5 * step ? 5 * step : most / 4 >= 2 * step ? 2 * step : step;
}

static double largest(const struct report_bars *b)
{
    double most = 0;
    for (int g = 0; g < b->n_groups; g++)
        for (int s = 0; s < b->n_series; s++)
            most = isfinite(b->value[g][s]) ? fmax(most, b->value[g][s]) : most;
    return most > 0 ? most : 1;
}

static void put_label(FILE *f, double x, double y, const char *anchor, const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    put_text(f, text);
    fputs("</text>\n", f);
}

static void put_grid(FILE *f, double most, double scale)
{
    double step = grid_step(most);
    for (int i = 0; i * step <= most; i++) {
        double y = HEIGHT - BOTTOM - i * step * scale;
        char text[24];
        snprintf(text, sizeof text, "%g", i * step);
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n",
                LEFT, WIDTH, y, y);
        put_label(f, LEFT - 6, y + 4, "end", text);
    }
}

static void put_legend(FILE *f, const struct report_bars *b)
{
    double x = LEFT;
    for (int s = 0; s < b->n_series; s++) {
        fprintf(f, "<rect x=\"%.1f\" y=\"%d\" width=\"10\" height=\"10\" fill=\"%s\"/>\n",
                x, HEIGHT - 14, colours[s]);
        put_label(f, x + 14, HEIGHT - 5, "start", b->series[s]);
        x += 30 + 7.2 * (double)strlen(b->series[s]);
    }
}

void report_bars(struct report *r, const struct report_bars *b)
{
    FILE *f = r->f;
    double most = largest(b), scale = (HEIGHT - TOP - BOTTOM) / most;
    double group = (double)(WIDTH - LEFT) / b->n_groups, bar = 0.8 * group / b->n_series;
    fprintf(
        f, "<svg width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n",
        WIDTH, HEIGHT);
    char title[256];
    snprintf(title, sizeof title, "%s (%s)", b->title, b->unit);
    put_label(f, LEFT, 16, "start", title);
    put_grid(f, most, scale);
    for (int g = 0; g < b->n_groups; g++) {
        double x0 = LEFT + g * group + 0.1 * group;
        put_label(f, LEFT + (g + 0.5) * group, HEIGHT - BOTTOM + 16, "middle", b->group[g]);
        for (int s = 0; s < b->n_series; s++) {
            double v = b->value[g][s];
            if (!isfinite(v))
                continue;
            fprintf(f,
                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                    "fill=\"%s\"><title>",
                    x0 + s * bar, HEIGHT - BOTTOM - v * scale, bar * 0.92, v * scale,
                    colours[s]);
            put_text(f, b->series[s]);
            fprintf(f, ": %.4g</title></rect>\n", v);
        }
    }
    put_legend(f, b);
    fputs("</svg>\n", f);
}
