/* targets.h - everything that parses bytes from a disk or a network, as pure functions of bytes.
 *
 * Each takes any bytes, must not crash, leak or hang, and checks what must hold of what it
 * accepts (a round trip, a bound).  test_replay.c runs them over the corpus in every test run;
 * fuzz.c is the program that looks for new inputs (`make fuzz`, docs/TESTING.md). */
#ifndef TESTS_FUZZ_TARGETS_H
#define TESTS_FUZZ_TARGETS_H

#include <stddef.h>
#include <stdint.h>

struct fuzz_target {
    const char *name; /* also of its folder in tests/fuzz/corpus */
    void (*run)(const uint8_t *bytes, size_t n);
};
extern const struct fuzz_target fuzz_targets[];             /* ended by {0} */
const struct fuzz_target *fuzz_target_of(const char *name); /* NULL: there is none */

#endif
