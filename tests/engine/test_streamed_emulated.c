/* test_streamed_emulated.c - layers that are copied from pinned host memory to an emulated GPU.
 * Tokens and logits equal those of resident layers, also if decodes are recorded as graphs and
 * replayed. */
#include "tests/unit.h"
#include "streamed.h"
#include "tests/engine/enginetest.h"

TEST(every_plan_has_the_bits_of_resident_weights)
{
    et_device.cuda_math = "fixed";
    streamed_plans_equal("cuda", "tests/model/golden/families/mistral", "bf16", 64, 5, 2);
    streamed_plans_equal("cuda", "tests/model/golden/families/mistral", "q8", 64, 5, 2);
    et_device = (struct device_opts){0};
}
