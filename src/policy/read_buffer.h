/* read_buffer.h - how much of a waiting request's state should be read before its prefill may begin
 * (AttentionStore, section 3.2.1).  Pure.
 *
 * Layer by layer, keys and values are loaded while new tokens pass the layers before.  Where
 * loading takes longer than that prefill, every layer waits.  A buffer that is filled while the
 * request before it still computes hides the rest:
 *
 *     S_buf = B (T_load L_hist - T_pref L_new)
 *
 *     load     [0][1][2][3][4][5]                 load     [2][3][4][5]       layers 0 and 1 were read
 *     prefill     [0] [1] [2] [3] [4] [5]         prefill  [0][1][2][3][4][5] ahead */
#ifndef POLICY_READ_BUFFER_H
#define POLICY_READ_BUFFER_H

#include <stdbool.h>

/* S_buf in bytes: bytes_per_s is B, load_s is T_load L_hist, prefill_s is T_pref L_new, both
 * over all layers.  0 where the prefill hides all of the load. */
double read_buffer_bytes(double bytes_per_s, double load_s, double prefill_s);

/* What is predicted of a waiting request's restore that is read ahead, seconds. */
struct read_ahead {
    double load_s; /* all of its reads */
    double
        prefill_s; /* the new tokens, where they follow the layers as they come back; else 0 */
    double compute_s; /* that, and the restore's own compute: both follow the reads */
    double alone_s;   /* the first token by the plan for a restore that is not read ahead */
};

/* Returns the share of the reads that is worth making ahead: S_buf, where the load may take an
 * eighth longer than predicted.  0 where the first token would come no sooner, by 1/32 at least,
 * even with all that there is room for.  room: the most that can be read ahead, a share of the
 * reads. */
double read_ahead_share(const struct read_ahead *a, double room);
/* The place has come: whether the restore ends sooner with the share that was read than by the plan
 * for one that is not read ahead. */
bool read_ahead_pays(const struct read_ahead *a, double share);

/* Returns how many of n_layers equal layers a buffer holds, in whole layers and at most all. */
int read_buffer_layers(double buffer_bytes, double bytes_per_s, double load_s,
                       int n_layers);

/* Seconds from the beginning until the new tokens have passed all layers, where the first
 * n_ahead layers were read before it. */
double read_buffer_makespan_s(double load_s, double prefill_s, int n_layers, int n_ahead);

#endif
