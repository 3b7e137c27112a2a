/* test_zigzag_emulated.c - steps in mini-batches on an emulated GPU. The bits are those of the
 * ordinary order, while copies for saving run beside the next layer. */
#include "tests/unit.h"
#include "tests/engine/zigzagged.h"

TEST(answers_are_those_of_the_ordinary_order)
{
    et_device.cuda_math = "fixed";
    zz_compare("cuda", 1, "tests/model/golden/families/mistral");
    et_device = (struct device_opts){0};
}
