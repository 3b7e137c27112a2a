/* read_buffer.c - see read_buffer.h. */
#include "policy/read_buffer.h"

#include <math.h>

double read_buffer_bytes(double bytes_per_s, double load_s, double prefill_s)
{
    return load_s > prefill_s ? bytes_per_s * (load_s - prefill_s) : 0;
}

int read_buffer_layers(double buffer_bytes, double bytes_per_s, double load_s, int n_layers)
{
    double layer_bytes = bytes_per_s * load_s / n_layers;
    /* A buffer of exactly n layers holds n, whatever the sums were rounded to. */
    double n = layer_bytes > 0 ? floor(buffer_bytes / layer_bytes + 1e-9) : n_layers;
    return n < n_layers ? (int)n : n_layers;
}

double read_buffer_makespan_s(double load_s, double prefill_s, int n_layers, int n_ahead)
{
    double loaded = 0, passed = 0;
    for (int l = 0; l < n_layers; l++) {
        loaded += l < n_ahead ? 0 : load_s / n_layers;
        passed = fmax(passed, loaded) + prefill_s / n_layers;
    }
    return passed;
}
