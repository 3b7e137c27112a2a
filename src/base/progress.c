/* progress.c - see progress.h. */
#include "base/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

#define REDRAW_NS 100000000
#define SECOND_NS 1000000000

void progress_begin(struct progress *p, const char *label, enum progress_unit unit,
                    uint64_t total)
{
    *p = (struct progress){.label = label,
                           .unit = unit,
                           .total = total,
                           .shown = isatty(STDERR_FILENO) == 1,
                           .start_ns = clock_now_ns()};
    /* the first line appears 100 ms after the start, so shorter work shows nothing */
    p->drawn_ns = p->start_ns;
}

void progress_text(const struct progress *p, uint64_t done, int64_t elapsed_ns, char *out,
                   size_t out_bytes)
{
    uint64_t unit = p->unit == PROGRESS_BYTES ? 1 << 20 : 1;
    const char *unit_name = p->unit == PROGRESS_BYTES ? " MiB" : "";
    if (p->total == 0) {
        snprintf(out, out_bytes, "%s  %llu%s", p->label, (unsigned long long)(done / unit),
                 unit_name);
        return;
    }
    if (done > p->total)
        done = p->total;
    double share = (double)done / (double)p->total;
    int n = snprintf(out, out_bytes, "%s  %d%%  %llu/%llu%s", p->label, (int)(share * 100),
                     (unsigned long long)(done / unit),
                     (unsigned long long)(p->total / unit), unit_name);
    if (n > 0 && (size_t)n < out_bytes && elapsed_ns >= SECOND_NS && done > 0) {
        double left_s = (double)elapsed_ns / SECOND_NS * (1 - share) / share;
        snprintf(out + n, out_bytes - (size_t)n, "  %.0f s left", left_s);
    }
}

void progress_at(struct progress *p, uint64_t done)
{
    if (!p->shown)
        return;
    int64_t now = clock_now_ns();
    if (now - p->drawn_ns < REDRAW_NS)
        return;
    char text[160];
    progress_text(p, done, now - p->start_ns, text, sizeof text);
    fprintf(stderr, "\r%s\x1b[K", text);
    fflush(stderr);
    p->drawn_ns = now;
    p->drawn = true;
}

void progress_end(struct progress *p)
{
    if (!p->drawn)
        return;
    fputs("\r\x1b[K", stderr);
    fflush(stderr);
    p->drawn = false;
}
