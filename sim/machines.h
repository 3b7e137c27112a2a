/* machines.h - platforms of machines that nobody measured here: those of the paper. Pure. */
#ifndef SIM_MACHINES_H
#define SIM_MACHINES_H

#include "restore/platform.h"

/* Makes one of the paper's machines by name ("a100-4ssd", "a100-dram", "h800-dram", ...) for a
 * model of this shape. ERR_NOT_FOUND lists the names. */
int machine_platform(const char *name, const struct platform_shape *shape,
                     struct platform *out, struct err *e);

/* What ranks on machines of their own (platform_shape.link_bytes_per_s) exchange for a layer: four
 * gathers, of the heads' results, of W_o's, of the MLP's columns and of W_down's, in f32. */
struct machine_gathers {
    int n;
    double token_bytes; /* bytes that a rank receives for each token, in all gathers */
    double token_s;     /* their time */
    double latency_s;   /* of all gathers, for any number of tokens */
};
struct machine_gathers machine_gathers(const struct platform_shape *s);

#endif
