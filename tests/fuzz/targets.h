/* targets.h - all parsers of bytes from a disk or a network, as pure functions of bytes.
 *
 * Each target accepts any bytes, must not crash, leak or hang, and checks properties of the input
 * that it accepts (a round trip, a bound).  test_replay.c runs the targets over the corpus in every
 * test run.  libfuzzer/main.c is the program that looks for new inputs (`make fuzz`,
 * docs/TESTING.md). */
#ifndef TESTS_FUZZ_TARGETS_H
#define TESTS_FUZZ_TARGETS_H

#include <stddef.h>
#include <stdint.h>

struct fuzz_target {
    const char *name; /* name of the target, and of its folder in tests/fuzz/corpus */
    void (*run)(const uint8_t *bytes, size_t n);
};
extern const struct fuzz_target fuzz_targets[]; /* ended by {0} */
/* Returns the target with this name, or NULL. */
const struct fuzz_target *fuzz_target_of(const char *name);

#endif
