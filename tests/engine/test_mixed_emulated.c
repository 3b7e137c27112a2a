/* test_mixed_emulated.c - contexts of KV and ACT blocks on an emulated GPU, whose copy engine
 * copies blocks from pinned memory. They have the bits of contexts that never left the device. */
#include "tests/unit.h"
#include "tests/engine/mixedtest.h"

TEST(random_patterns_have_the_same_bits)
{
    et_device.cuda_math = "fixed";
    mx_compare(&(struct mx_case){"cuda", "synth:tiny-mha", 2, 3, 4});
    et_device = (struct device_opts){0};
}
