/* replan.h - another kind of record for layers whose reads have not begun.
 *
 * A plan balances two lanes by what the platform says.  While a restore runs, its own lanes show
 * what they really get of the disk and of the processors.  Layers that are still to be read, and
 * have both kinds of records, may then change between hidden states (more compute, fewer bytes
 * where heads are not grouped) and K and V.
 *
 *   read     [H4 ][H5 ][H6 ]|[H7 ][H8 ][H9 ]       as planned
 *   compute       [ H4      ][ H5      ][ H6 ...   takes twice as long as was believed
 *                           |[K7   ][K8   ][H9 ]   changed between layers
 *
 * Pure: no clock, no allocation. */
#ifndef POLICY_REPLAN_H
#define POLICY_REPLAN_H

/* A change must end the restore this share of its remaining time earlier: measured
 * times are noisy. */
#define REPLAN_GAIN 0.1

/* The rest of a restore.  Seconds are what its lanes have measured so far, not the platform's. */
struct replan_view {
    int n_left;             /* layers that may change */
    int n_hidden;           /* of them, those that the plan restores from hidden states */
    double io_h_s, io_kv_s; /* one layer's read */
    double comp_h_s, comp_kv_s;    /* its compute */
    double io_rest_s, comp_rest_s; /* what the lanes still have to do for other layers */
};

/* Returns how many of the n_left layers are best restored from hidden states: n_hidden
 * where no change gains enough. */
int replan_hidden(const struct replan_view *v);

#endif
