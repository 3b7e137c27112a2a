/* timeline.h - draws a simulated pipeline as a picture of its lanes.
 *
 *            0                    5.4                 10.8 ms
 *   I/O      HHHhhhHHHhhhHHHhhhHHHhhhKKKKKKkkkkkk....   95 % busy
 *   compute  RRRRRRRRrrHHhhHHhhHHhhHHhhHHhhHHhh..Kk..   88 % busy
 *            R recompute  H hidden states  K kv  . idle
 *
 * With several stages, each has two lanes, "bus 0" and "comp 0".
 *
 * The functions are pure.  They write into the caller's buffer with snprintf's contract: at most
 * cap bytes with the final zero; the result is the length of the whole picture (pass cap 0 to get
 * it). */
#ifndef APPS_TIMELINE_H
#define APPS_TIMELINE_H

#include <stddef.h>

#include "restore/pipeline.h"

struct timeline_lane {
    char name[12];
    int lane;  /* PIPE_IO, PIPE_UP, or PIPE_RESTORE, which includes prefill */
    int stage; /* -1: all stages */
    double busy_s;
};

/* Gives the i-th lane of a picture, from the top. Returns false after the last. */
bool timeline_lane_at(const struct pipeline *p, int i, struct timeline_lane *out);
bool timeline_in_lane(const struct pipe_item *x, const struct timeline_lane *lane);

/* Draws plain ASCII, in whole lines. width: columns of the terminal (used within 40..400).  Each
 * column shows the item, or the idle time, that takes most of its time. Letters alternate in case
 * from layer to layer if layers are wide enough to show this. */
int timeline_text(const struct pipeline *p, int width, char *out, size_t cap);

/* Draws one SVG document, in which every item has its layer and times as a tool tip.  title: any
 * UTF-8. */
int timeline_svg(const struct pipeline *p, const char *title, char *out, size_t cap);

#endif
