/* read_buffer.h - how much of a waiting request's state should be read before its prefill may begin
 * (AttentionStore, section 3.2.1).  Pure.
 *
 * Layer by layer, keys and values are loaded while new tokens pass the layers before.  Where loading
 * takes longer than that prefill, every layer waits.  A buffer that is filled while the request before it
 * still computes hides the rest:
 *
 *     S_buf = B (T_load L_hist - T_pref L_new)
 *
 *     load     [0][1][2][3][4][5]                 load     [2][3][4][5]       layers 0 and 1 were read
 *     prefill     [0] [1] [2] [3] [4] [5]         prefill  [0][1][2][3][4][5] ahead */
#ifndef POLICY_READ_BUFFER_H
#define POLICY_READ_BUFFER_H

/* S_buf in bytes: bytes_per_s is B, load_s is T_load L_hist, prefill_s is T_pref L_new, both over all
 * layers.  0 where the prefill hides all of the load. */
double read_buffer_bytes(double bytes_per_s, double load_s, double prefill_s);

/* Returns how many of n_layers equal layers a buffer holds, in whole layers and at most all. */
int read_buffer_layers(double buffer_bytes, double bytes_per_s, double load_s,
                       int n_layers);

/* Seconds from the beginning until the new tokens have passed all layers, where the first n_ahead layers
 * were read before it. */
double read_buffer_makespan_s(double load_s, double prefill_s, int n_layers, int n_ahead);

#endif
