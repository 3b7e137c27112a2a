/* replan.c - see replan.h. */
#include "restore/replan.h"

#include <math.h>

/* Returns the time of the longer lane, with n_hidden layers from hidden states. */
static double left_s(const struct replan_view *v, int n_hidden)
{
    int n_kv = v->n_left - n_hidden;
    double io_s = v->io_rest_s + n_hidden * v->io_h_s + n_kv * v->io_kv_s;
    double comp_s = v->comp_rest_s + n_hidden * v->comp_h_s + n_kv * v->comp_kv_s;
    return fmax(io_s, comp_s);
}

int replan_hidden(const struct replan_view *v)
{
    int best = v->n_hidden;
    double now_s = left_s(v, v->n_hidden), best_s = now_s;
    for (int n = 0; n <= v->n_left; n++) {
        double s = left_s(v, n);
        if (s < best_s) {
            best = n;
            best_s = s;
        }
    }
    return best_s < (1 - REPLAN_GAIN) * now_s ? best : v->n_hidden;
}
