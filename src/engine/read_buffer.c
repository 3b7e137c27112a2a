/* read_buffer.c - see read_buffer.h. */
#include "engine/read_buffer.h"

#include <math.h>

double read_buffer_bytes(double bytes_per_s, double load_s, double prefill_s)
{
    return load_s > prefill_s ? bytes_per_s * (load_s - prefill_s) : 0;
}

/* Returns the seconds until the new tokens are computed, if a share of the reads was made
 * before. */
static double ends_s(const struct read_ahead *a, double share)
{
    return fmax(a->load_s * (1 - share), a->compute_s);
}

double read_ahead_share(const struct read_ahead *a, double room)
{
    const double margin = 1.0 / 32; /* a margin below the error of predictions */
    if (ends_s(a, fmin(room, 1)) * (1 + margin) > a->alone_s)
        return 0;
    double bytes = read_buffer_bytes(1, a->load_s * (1 + 1.0 / 8), a->prefill_s);
    return a->load_s > 0 ? fmin(bytes / a->load_s, 1) : 0;
}

bool read_ahead_pays(const struct read_ahead *a, double share)
{
    return ends_s(a, share) < a->alone_s;
}

int read_buffer_layers(double buffer_bytes, double bytes_per_s, double load_s, int n_layers)
{
    double layer_bytes = bytes_per_s * load_s / n_layers;
    /* A buffer of exactly n layers holds n, despite rounding in the sums. */
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
