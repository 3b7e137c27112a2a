/* timeline_svg.c - draws the lanes as one SVG document; see timeline.h.
 *
 * The colours are from a palette that colour-blind readers can distinguish (Okabe and Ito); idle
 * time is the grey ground of a lane. The file has no script and no fonts, so that it opens
 * everywhere. */
#include <math.h>
#include <string.h>

#include "apps/text_out.h"
#include "apps/timeline.h"

enum {
    WIDTH = 1000,
    LEFT = 80,
    PLOT = 890,
    LANE = 44,
    GAP = 10,
    TOP = 50,
    FOOT = 78 /* room for axis and legend */
};

static const struct look {
    char method;
    const char *colour, *name;
} looks[] = {
    {'R', "#d55e00", "recompute"},   {'H', "#0072b2", "hidden states"},
    {'K', "#009e73", "keys/values"}, {'P', "#cc79a7", "prefill of new tokens"},
    {'L', "#f0e442", "head"},
};

enum { N_LOOKS = sizeof looks / sizeof *looks };

static const struct look *look_of(char method)
{
    for (int i = 0; i < N_LOOKS; i++)
        if (looks[i].method == method)
            return &looks[i];
    return &looks[0];
}

static void add_escaped(struct text_out *t, const char *s)
{
    for (; *s; s++) {
        if (*s == '&')
            text_add(t, "&amp;");
        else if (*s == '<')
            text_add(t, "&lt;");
        else if (*s == '>')
            text_add(t, "&gt;");
        else if ((unsigned char)*s >= ' ')
            text_add(t, "%c", *s);
    }
}

static double x_of(const struct pipeline *p, double s)
{
    return LEFT + PLOT * s / p->makespan_s;
}

static void add_lane(struct text_out *t, const struct pipeline *p,
                     const struct timeline_lane *lane, int top)
{
    text_add(t, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 8,
             top + 20, lane->name);
    text_add(t, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" class=\"s\">%.0f %%</text>\n",
             LEFT - 8, top + 36, 100 * lane->busy_s / p->makespan_s);
    text_add(t, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#e4e4e4\"/>\n",
             LEFT, top, PLOT, LANE);
    for (int i = 0; i < p->n_items; i++) {
        const struct pipe_item *x = &p->item[i];
        if (!timeline_in_lane(x, lane) || !(x->end_s > x->start_s))
            continue;
        const struct look *l = look_of(x->method);
        double from = x_of(p, x->start_s), wide = x_of(p, x->end_s) - from;
        text_add(t,
                 "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
                 "stroke=\"#fff\" stroke-width=\"%.2f\"><title>",
                 from, top, wide, LANE, l->colour, fmin(0.8, wide / 4));
        if (x->method == 'L')
            text_add(t, "head");
        else
            text_add(t, "layer %d: %s", x->layer, l->name);
        text_add(t, ", %.4g to %.4g ms</title></rect>\n", x->start_s * 1e3, x->end_s * 1e3);
    }
}

static void add_axis(struct text_out *t, const struct pipeline *p, int y)
{
    for (int tick = 0; tick <= 5; tick++) {
        double s = p->makespan_s * tick / 5, x = x_of(p, s);
        text_add(t, "<path d=\"M%.2f %dv6\" stroke=\"#333\"/>", x, y);
        text_add(
            t,
            "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\" class=\"s\">%.4g%s</text>\n",
            x, y + 20, s * 1e3, tick == 5 ? " ms" : "");
    }
}

static void add_legend(struct text_out *t, int y)
{
    int x = LEFT;
    for (int i = 0; i < N_LOOKS; i++) {
        text_add(t, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>", x,
                 y, looks[i].colour);
        text_add(t, "<text x=\"%d\" y=\"%d\" class=\"s\">%s</text>\n", x + 20, y + 12,
                 looks[i].name);
        x += 40 + 8 * (int)strlen(looks[i].name);
    }
    text_add(t, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"#e4e4e4\"/>", x,
             y);
    text_add(t, "<text x=\"%d\" y=\"%d\" class=\"s\">idle</text>\n", x + 20, y + 12);
}

int timeline_svg(const struct pipeline *p, const char *title, char *out, size_t cap)
{
    struct text_out t = text_begin(out, cap);
    struct timeline_lane lane;
    int n = 0;
    while (timeline_lane_at(p, n, &lane))
        n++;
    int bottom = TOP + n * (LANE + GAP) - GAP, height = bottom + FOOT;
    text_add(
        &t,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family="
        "\"sans-serif\" font-size=\"15\">\n<style>.s{font-size:12px;fill:#444}</style>\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"30\">",
        WIDTH, height, WIDTH, height, LEFT);
    add_escaped(&t, title);
    text_add(&t, "</text>\n");
    if (p->makespan_s > 0) {
        for (int i = 0; timeline_lane_at(p, i, &lane); i++)
            add_lane(&t, p, &lane, TOP + i * (LANE + GAP));
        add_axis(&t, p, bottom);
        add_legend(&t, bottom + 40);
    }
    text_add(&t, "</svg>\n");
    return t.length;
}
