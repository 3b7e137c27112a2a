/* timeline.c - draws the lanes as text; see timeline.h. */
#include "apps/timeline.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "apps/text_out.h"

enum { MIN_WIDTH = 40, MAX_WIDTH = 400, LABEL = 9, SHARE = 13 };

static double unit_of(double s, const char **name)
{
    if (s >= 1) {
        *name = "s";
        return 1;
    }
    *name = s >= 1e-3 ? "ms" : "us";
    return s >= 1e-3 ? 1e3 : 1e6;
}

/* Draws "0      5.4      10.8 ms" over n columns: tick i begins at column i * n / 4. */
static void draw_axis(struct text_out *t, const struct pipeline *p, int n)
{
    const char *unit;
    double scale = unit_of(p->makespan_s, &unit);
    text_add(t, "%*s", LABEL, "");
    int at = 0;
    for (int tick = 0; tick <= 4; tick++) {
        char label[32];
        int len = snprintf(label, sizeof label, tick ? "%.3g" : "0",
                           p->makespan_s * scale * tick / 4);
        int want = tick * n / 4 - (tick == 4 ? len : 0);
        int pad = want > at ? want - at : tick > 0;
        text_add(t, "%*s%s", pad, "", label);
        at += pad + len;
    }
    text_add(t, " %s\n", unit);
}

/* A column shows the item with the largest share of its time, or idle if that was longer. */
struct column {
    double busy_s, largest_s;
    char letter;
};

static void fill_lane(const struct pipeline *p, const struct timeline_lane *lane,
                      struct column *col, int n)
{
    double step = p->makespan_s / n;
    int items = 0;
    for (int i = 0; i < p->n_items; i++)
        items += timeline_in_lane(&p->item[i], lane);
    bool alternate = items * 2 <= n;
    int seen = 0;
    for (int i = 0; i < p->n_items; i++) {
        const struct pipe_item *x = &p->item[i];
        if (!timeline_in_lane(x, lane))
            continue;
        char letter = x->method;
        if (alternate && seen++ % 2)
            letter = (char)tolower(letter);
        int first = (int)(x->start_s / step), last = (int)(x->end_s / step);
        for (int c = first; c <= last && c < n; c++) {
            double part = fmin(x->end_s, (c + 1) * step) - fmax(x->start_s, c * step);
            if (part <= 0)
                continue;
            col[c].busy_s += part;
            if (part > col[c].largest_s) {
                col[c].largest_s = part;
                col[c].letter = letter;
            }
        }
    }
}

static void draw_lane(struct text_out *t, const struct pipeline *p,
                      const struct timeline_lane *lane, int n)
{
    struct column col[MAX_WIDTH] = {{0}};
    double step = p->makespan_s / n;
    fill_lane(p, lane, col, n);
    text_add(t, "%-*s", LABEL, lane->name);
    for (int c = 0; c < n; c++)
        text_add(t, "%c", col[c].busy_s >= step / 2 ? col[c].letter : '.');
    text_add(t, " %4.0f %% busy\n", 100 * lane->busy_s / p->makespan_s);
}

static void draw_legend(struct text_out *t, const struct pipeline *p)
{
    static const struct {
        char method;
        const char *text;
    } words[] = {{'R', "R recompute"},
                 {'H', "H hidden states"},
                 {'K', "K keys/values"},
                 {'P', "P prefill"},
                 {'L', "L head of the model"}};
    text_add(t, "%*s", LABEL, "");
    for (size_t w = 0; w < sizeof words / sizeof *words; w++)
        for (int i = 0; i < p->n_items; i++)
            if (p->item[i].method == words[w].method) {
                text_add(t, "%s  ", words[w].text);
                break;
            }
    text_add(t, ". idle\n");
}

bool timeline_lane_at(const struct pipeline *p, int i, struct timeline_lane *out)
{
    if (i == 0) {
        *out = (struct timeline_lane){"I/O", PIPE_IO, -1, p->io_busy_s};
        return true;
    }
    if (p->n_stages <= 1) {
        *out = (struct timeline_lane){"compute", PIPE_RESTORE, -1, p->comp_busy_s};
        return i == 1;
    }
    int k = (i - 1) / 2;
    bool up = (i - 1) % 2 == 0;
    if (k >= p->n_stages)
        return false;
    *out = (struct timeline_lane){.lane = up ? PIPE_UP : PIPE_RESTORE,
                                  .stage = k,
                                  .busy_s = up ? p->stage_up_s[k] : p->stage_comp_s[k]};
    snprintf(out->name, sizeof out->name, "%s %d", up ? "bus" : "comp", k);
    return true;
}

bool timeline_in_lane(const struct pipe_item *x, const struct timeline_lane *lane)
{
    int of = x->lane == PIPE_PREFILL ? PIPE_RESTORE : x->lane;
    return of == lane->lane && (lane->stage < 0 || x->stage == lane->stage);
}

int timeline_text(const struct pipeline *p, int width, char *out, size_t cap)
{
    struct text_out t = text_begin(out, cap);
    int w = MIN(MAX(width, MIN_WIDTH), MAX_WIDTH);
    int n = w - LABEL - SHARE;
    if (!(p->makespan_s > 0)) {
        text_add(&t, "nothing to restore\n");
        return t.length;
    }
    draw_axis(&t, p, n);
    struct timeline_lane lane;
    for (int i = 0; timeline_lane_at(p, i, &lane); i++)
        draw_lane(&t, p, &lane, n);
    draw_legend(&t, p);
    return t.length;
}
