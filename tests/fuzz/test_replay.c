/* Runs every input of the corpus through its target. Short inputs are also cut at every length, and
 * every bit is flipped. So the earlier findings of fuzzing are tested in every run. */
#include "tests/unit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "targets.h"

enum { SMALL = 400 }; /* inputs up to this size are cut and flipped everywhere */

/* Runs the target on a copy of exactly n bytes, so that a sanitizer sees a read of the first byte
 * beyond. */
static void run_exactly(const struct fuzz_target *t, const uint8_t *bytes, size_t n)
{
    uint8_t *p = malloc(n != 0 ? n : 1);
    memcpy(p, bytes, n);
    t->run(p, n);
    free(p);
}

static long replay(const struct fuzz_target *t, const uint8_t *bytes, size_t n)
{
    long n_runs = 1;
    run_exactly(t, bytes, n);
    if (n > SMALL)
        return n_runs;
    uint8_t *copy = xmalloc(n + 1);
    memcpy(copy, bytes, n);
    for (size_t cut = 0; cut < n; cut++, n_runs++)
        run_exactly(t, copy, cut);
    for (size_t bit = 0; bit < 8 * n; bit++, n_runs++) {
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        run_exactly(t, copy, n);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(copy);
    return n_runs;
}

static void test_corpus(void **state)
{
    const struct fuzz_target *t = *state;
    char folder[200], path[600];
    int n_files = 0;
    long n_runs = 0;
    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", t->name);
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char *bytes = NULL;
        size_t n = 0;
        struct err err = {0};
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (file_read(path, 1 << 24, &bytes, &n, &err) != 0)
            fail_msg("%s", err.msg);
        n_runs += replay(t, (const uint8_t *)bytes, n);
        n_files++;
        free(bytes);
    }
    closedir(d);
    printf("# %s: %d inputs, %ld runs\n", t->name, n_files, n_runs);
    assert_true(n_files > 0);
}

int main(void)
{
    enum { MAX = 64 };
    static struct CMUnitTest tests[MAX];
    size_t n = 0;
    for (const struct fuzz_target *t = fuzz_targets; t->name != NULL && n < MAX; t++)
        tests[n++] = (struct CMUnitTest){.name = t->name,
                                         .test_func = test_corpus,
                                         .initial_state = (void *)(uintptr_t)t};
    return _cmocka_run_group_tests("corpus", tests, n, NULL, NULL);
}
