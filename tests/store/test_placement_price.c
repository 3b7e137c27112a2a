/* test_placement_price.c - the value of holding state, per byte. */
#include <math.h>

#include "tests/unit.h"
#include "restore/platform.h"
#include "store/placement_price.h"
#include "engine/view.h"

/* A model of two layers with 100 bytes of KV per token and layer. Computing a token takes 1 ms,
 * plus 1 us for each token that it sees on average. The disk reads 1 MB/s. */
static struct platform platform(void)
{
    struct platform p;
    platform_init(&p);
    p.n_layers = 2;
    p.kv_bytes = 100;
    p.h_bytes = 50;
    p.c_tok = (struct cost_curve){.a_s = 0.5, .b_s = 1e-3, .c_s = 0.5e-6};
    p.n_tiers = 1;
    p.tier[0].bytes_per_s = 1e6;
    return p;
}

enum { CHUNK_BYTES = 64 * 2 * 100 };
#define CHUNK_S (2 * 64 * (1e-3 + 64 * 0.5e-6))
#define READ_S  (CHUNK_BYTES / 1e6)

static struct placement_price price_of(const struct platform *p)
{
    struct placement_price x;
    platform_price(p, &x);
    return x;
}

static void near(double got, double want)
{
    if (fabs(got - want) > 1e-6 * want)
        fail_msg("%g instead of %g", got, want);
}

/* The saving, over all layers, is the time to compute a chunk minus the time to read it. */
TEST(a_chunk_saves_computing_without_reading)
{
    struct platform p = platform();
    struct placement_price x = price_of(&p);
    near(placement_price_stored(&x, 64, 0, CHUNK_BYTES), (CHUNK_S - READ_S) / CHUNK_S);
    /* Half of the bytes are read in half of the time, and take half of the room. */
    near(placement_price_stored(&x, 64, 0, CHUNK_BYTES / 2),
         2 * (CHUNK_S - READ_S / 2) / CHUNK_S);
    /* A chunk with a quarter of the tokens takes half of the bytes. */
    near(placement_price_stored(&x, 16, 0, CHUNK_BYTES / 2),
         2 * (CHUNK_S / 4 - READ_S / 2) / CHUNK_S);
}

/* Losing a block that the store has costs a read. Losing another block costs its computation. */
TEST(a_block_that_is_stored_saves_less)
{
    struct platform p = platform();
    struct placement_price x = price_of(&p);
    near(placement_price_held(&x, 64, 0, false), 1);
    near(placement_price_held(&x, 64, 0, true), READ_S / CHUNK_S);
    near(placement_price_held(&x, 16, 0, false), 0.25);
    /* reading is slower than computing, so a lost block would be computed */
    p.tier[0].bytes_per_s = 1e3;
    x = price_of(&p);
    near(placement_price_held(&x, 64, 0, true), 1);
}

/* After many stairs of a truncated context, a lost view costs a replay, so its chunks are worth
 * more. Losing a block whose state is in the store never costs more than a read. */
TEST(a_chunk_of_a_late_stair_saves_a_share_of_the_replay)
{
    struct platform p = platform();
    struct placement_price x = price_of(&p);
    static const struct truncation t = {.context = 1024, .step = 512, .keep = 64};
    double share = staircase_share(&t, 8 * 1024); /* the last stair sees 1,024 tokens */
    near(share, 8);
    near(placement_price_stored(&x, 64, share, CHUNK_BYTES),
         (8 * CHUNK_S - READ_S) / CHUNK_S);
    near(placement_price_held(&x, 64, share, false), 8);
    near(placement_price_held(&x, 64, share, true), READ_S / CHUNK_S);
}

/* Corrections that were learned from restores change the price. */
TEST(corrections_change_the_price)
{
    struct platform p = platform();
    p.gemm_correction.log2 = 1; /* computing takes twice as long */
    struct placement_price x = price_of(&p);
    near(placement_price_stored(&x, 64, 0, CHUNK_BYTES),
         (2 * CHUNK_S - READ_S) / (2 * CHUNK_S));
}

TEST(values_are_bounded_and_1_where_nothing_is_known)
{
    struct platform p = platform();
    p.tier[0].bytes_per_s = 1e3; /* reading takes longer than computing */
    struct placement_price x = price_of(&p), none = {0};
    near(placement_price_stored(&x, 64, 0, CHUNK_BYTES), PLACEMENT_LEAST_VALUE);
    near(placement_price_stored(&x, 64, 0, 1), PLACEMENT_MOST_VALUE);
    near(placement_price_stored(&x, 64, 0, 0), 1);
    near(placement_price_stored(&none, 64, 0, CHUNK_BYTES), 1);
    near(placement_price_held(&none, 64, 0, true), 1);
    platform_init(&p); /* nothing has been measured */
    x = price_of(&p);
    near(placement_price_stored(&x, 64, 0, CHUNK_BYTES), 1);
}
