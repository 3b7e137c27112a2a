/* read_buffer.h - how much of a waiting request's state should be read before its prefill may
 * begin (AttentionStore, section 3.2.1). Pure.
 *
 * Keys and values are loaded layer by layer while new tokens pass the layers before. If loading
 * takes longer than that prefill, every layer waits. A buffer that is filled while the request
 * before it still computes hides the difference:
 *
 *     S_buf = B (T_load L_hist - T_pref L_new)
 *
 *     load     [0][1][2][3][4][5]                 load     [2][3][4][5]       layers 0 and 1 were read
 *     prefill     [0] [1] [2] [3] [4] [5]         prefill  [0][1][2][3][4][5] ahead */
#ifndef ENGINE_READ_BUFFER_H
#define ENGINE_READ_BUFFER_H

#include <stdbool.h>

/* Returns S_buf in bytes. bytes_per_s is B, load_s is T_load L_hist, prefill_s is T_pref L_new,
 * both over all layers. Returns 0 if the prefill hides all of the load. */
double read_buffer_bytes(double bytes_per_s, double load_s, double prefill_s);

/* Prediction for a waiting request's restore that is read ahead, in seconds. */
struct read_ahead {
    double load_s; /* time of all of the restore's reads */
    /* Prefill time of the new tokens, if they follow the layers as they come back; else 0. */
    double prefill_s;
    double compute_s; /* prefill_s plus the restore's own compute; both follow the reads */
    double alone_s;   /* time to the first token by the plan without reading ahead */
};

/* Returns the share of the reads that is worth making ahead: S_buf, for a load that may take an
 * eighth longer than predicted. Returns 0 if even reading ahead all that fits would not bring
 * the first token at least 1/32 sooner. room: the most that can be read ahead, as a share of the
 * reads. */
double read_ahead_share(const struct read_ahead *a, double room);
/* Call when the request has its place. Returns whether the restore ends sooner with the share
 * that was read than by the plan without reading ahead. */
bool read_ahead_pays(const struct read_ahead *a, double share);

/* Returns how many of n_layers equal layers a buffer holds, in whole layers and at most all. */
int read_buffer_layers(double buffer_bytes, double bytes_per_s, double load_s,
                       int n_layers);

/* Returns the seconds from the beginning of the prefill until the new tokens have passed all
 * layers, if the first n_ahead layers were read before. */
double read_buffer_makespan_s(double load_s, double prefill_s, int n_layers, int n_ahead);

#endif
