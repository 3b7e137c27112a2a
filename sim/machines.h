/* machines.h - platforms of machines that nobody measured here: those of the paper. Pure. */
#ifndef SIM_MACHINES_H
#define SIM_MACHINES_H

#include "restore/platform.h"

/* Makes one of the paper's machines by name ("a100-4ssd", "a100-dram", "h800-dram", ...) for a
 * model of this shape. ERR_NOT_FOUND lists the names. */
int machine_platform(const char *name, const struct platform_shape *shape,
                     struct platform *out, struct err *e);

#endif
