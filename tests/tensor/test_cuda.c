/* test_cuda.c - compares every operation of the CUDA backend on a GPU with `ref`.  Skipped on a
 * machine without a GPU.
 *
 * `test_cuda small` leaves out the shapes that fill a GPU, for checkers that slow everything down.
 */
#include "rig.h"

#include <stdio.h>
#include <string.h>

#include "cuda_cases.h"
#include "cuda_fixed_cases.h"

int main(int argc, char **argv)
{
    struct device *d = NULL;
    struct err err = {0};
    if (device_open("cuda", NULL, NULL, &d, &err) != 0) {
        printf("1..0 # SKIP %s\n", err.msg);
        return 0;
    }
    printf("# %s\n", d->isa);
    device_close(d);
    int failed = cuda_cases_run("cuda", false);
    bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    return failed + cuda_fixed_cases_run("fixed math", small);
}
