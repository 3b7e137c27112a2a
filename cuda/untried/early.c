/* early.c - see early.h and untried.h. */
#include "cuda/untried/untried.h"

int gpu_launch_early;

int early_choose(bool on, const struct cudaDeviceProp *prop, struct err *err)
{
    if (on && prop->major < 9)
        return err_set(err, ERR_UNSUPPORTED,
                       "--cuda-early on: %s has compute capability %d.%d; 9.0 or later is "
                       "needed",
                       prop->name, prop->major, prop->minor);
    gpu_launch_early = on;
    return 0;
}
