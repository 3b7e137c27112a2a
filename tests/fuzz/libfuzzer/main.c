/* main.c - libFuzzer's entry point: HCACHE_FUZZ names the target.  Only `make fuzz` with clang
 * builds it. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/targets.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const struct fuzz_target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *name = getenv("HCACHE_FUZZ");
    (void)argc;
    (void)argv;
    target = name != NULL ? fuzz_target_of(name) : NULL;
    if (target != NULL)
        return 0;
    fprintf(stderr, "HCACHE_FUZZ must name a target:");
    for (const struct fuzz_target *t = fuzz_targets; t->name != NULL; t++)
        fprintf(stderr, " %s", t->name);
    fprintf(stderr, "\n");
    exit(2);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    target->run(bytes, n);
    return 0;
}
