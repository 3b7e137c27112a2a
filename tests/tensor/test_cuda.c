/* The CUDA backend on a GPU: every operation against `ref`. Skipped where there is none. */
#include "rig.h"

#include <stdio.h>

#include "cuda_cases.h"

int main(void)
{
    struct device *d = NULL;
    struct err err = {0};
    if (device_open("cuda", NULL, &d, &err) != 0) {
        printf("1..0 # SKIP %s\n", err.msg);
        return 0;
    }
    printf("# %s\n", d->isa);
    device_close(d);
    return cuda_cases_run("cuda");
}
