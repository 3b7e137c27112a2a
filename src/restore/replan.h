/* replan.h - changes the kind of record of layers whose reads have not begun.
 *
 * A plan balances two lanes by the platform's speeds. While a restore runs, its own lanes show
 * which speed of disk and processors they really get. Layers that are still to be read, and that
 * have both kinds of records, may then change between hidden states (more compute, fewer bytes
 * if heads are not grouped) and K and V.
 *
 *   read     [H4 ][H5 ][H6 ]|[H7 ][H8 ][H9 ]       as planned
 *   compute       [ H4      ][ H5      ][ H6 ...   takes twice as long as predicted
 *                           |[K7   ][K8   ][H9 ]   changed between layers
 *
 * Pure: no clock, no allocation. */
#ifndef RESTORE_REPLAN_H
#define RESTORE_REPLAN_H

/* A change must shorten the restore's remaining time by at least this share, since measured
 * times are noisy. */
#define REPLAN_GAIN 0.1

/* The rest of a restore. Seconds are measured on its own lanes so far, not taken from the
 * platform. */
struct replan_view {
    int n_left;             /* layers that may change */
    int n_hidden;           /* part of n_left that the plan restores from hidden states */
    double io_h_s, io_kv_s; /* one layer's read */
    double comp_h_s, comp_kv_s;    /* one layer's compute */
    double io_rest_s, comp_rest_s; /* work that the lanes still have for other layers */
};

/* Returns how many of the n_left layers are best restored from hidden states; n_hidden if no
 * change gains enough. */
int replan_hidden(const struct replan_view *v);

#endif
