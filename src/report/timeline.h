/* timeline.h - a simulated pipeline as a picture of its lanes.
 *
 *            0                    5.4                 10.8 ms
 *   I/O      HHHhhhHHHhhhHHHhhhHHHhhhKKKKKKkkkkkk....   95 % busy
 *   compute  RRRRRRRRrrHHhhHHhhHHhhHHhhHHhhHHhh..Kk..   88 % busy
 *            R recompute  H hidden states  K kv  . idle
 *
 * Of several stages each has two lanes, "bus 0" and "comp 0".
 *
 * Pure: writes into the caller's buffer with snprintf's contract: at most cap bytes with the final
 * zero, returns the length that the whole picture has (call with cap 0 to learn it). */
#ifndef REPORT_TIMELINE_H
#define REPORT_TIMELINE_H

#include <stddef.h>

#include "policy/pipeline.h"

struct timeline_lane {
    char name[12];
    int lane;  /* PIPE_IO, PIPE_UP, or PIPE_RESTORE: with prefill */
    int stage; /* -1: all */
    double busy_s;
};

/* The i-th lane of a picture, from the top; false behind the last. */
bool timeline_lane_at(const struct pipeline *p, int i, struct timeline_lane *out);
bool timeline_in_lane(const struct pipe_item *x, const struct timeline_lane *lane);

/* Plain ASCII, whole lines. width: columns of the terminal (used within 40..400).  Each column
 * shows what its lane does for most of that time; letters alternate in case from layer to layer
 * where layers are wide enough to be told apart. */
int timeline_text(const struct pipeline *p, int width, char *out, size_t cap);

/* One SVG document, every item with layer and times as a tool tip.  title: any UTF-8. */
int timeline_svg(const struct pipeline *p, const char *title, char *out, size_t cap);

#endif
