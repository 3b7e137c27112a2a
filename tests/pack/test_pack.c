/* test_pack.c - packed state comes back with the same bits, and damage stays inside its bounds. */
#include "tests/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "pack/pack.h"

static const size_t lengths[] = {
    0,    1,    2,    31,    32,    33,    127,   128,   129,   384,        2047,
    2048, 2049, 4095, 12289, 24576, 32767, 32768, 32769, 36864, 65536 + 77, 131072};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0], MOST = 131072 };

/* Kinds of runs: saved state looks like the first two; the others are odd. */
enum kind { NORMAL, NORMAL_F16, ALL_BITS, ZEROS, TWO_VALUES, SPECIALS, DEAD, N_KINDS };

static void fill(enum kind kind, uint16_t *v, size_t n, uint64_t seed)
{
    static const uint16_t special[] = {0,      0x8000, 0x7f80, 0xff80,
                                       0x7fc1, 1,      0x0080, 0x3f80};
    struct rng r = {seed};
    for (size_t i = 0; i < n; i++) {
        /* a number with a normal distribution, of a size that depends on its channel */
        double u = rng_unit(&r) + rng_unit(&r) + rng_unit(&r) + rng_unit(&r) - 2;
        float f = (float)(u * exp2((double)(i / 64 % 7) - 3));
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        _Float16 h = (_Float16)f;
        switch (kind) {
        case NORMAL:
            v[i] = (uint16_t)(bits >> 16);
            break;
        case NORMAL_F16:
            memcpy(&v[i], &h, sizeof v[i]);
            break;
        case ALL_BITS:
            v[i] = (uint16_t)rng_u64(&r);
            break;
        case ZEROS:
            v[i] = 0;
            break;
        case TWO_VALUES:
            v[i] = rng_below(&r, 2) ? 0x3f80 : 0xbf00;
            break;
        case SPECIALS:
            v[i] = rng_below(&r, 3) ? (uint16_t)(bits >> 16) : special[rng_below(&r, 8)];
            break;
        case DEAD: /* every other channel is 0 for all tokens */
            v[i] = i / 64 % 2 ? (uint16_t)(bits >> 16) : 0;
            break;
        default:
            abort();
        }
    }
}

/* Packs with some loops and unpacks with the next ones, in buffers of exactly the right size. */
static void round_trip(enum pack_type type, const uint16_t *v, size_t n,
                       enum pack_loops_for packs)
{
    size_t n_bytes = 2 * n, room = 2 * n_bytes + 256;
    uint8_t *packed = xmalloc(room);
    pack_use(packs);
    size_t n_packed = pack_run(type, v, n_bytes, packed, room);
    assert_true(n_packed > 0);
    uint8_t *exact = xmalloc(n_packed), *again = xmalloc(n_bytes + 1);
    again[n_bytes] = 0xa5;
    assert_int_equal(pack_run(type, v, n_bytes, exact, n_packed), n_packed);
    assert_memory_equal(exact, packed, n_packed);
    pack_use((packs + 1) % (PACK_PORTABLE + 1));
    /* both loops make the same bytes */
    assert_int_equal(pack_run(type, v, n_bytes, packed, room), n_packed);
    assert_memory_equal(exact, packed, n_packed);
    assert_true(pack_undo(exact, n_packed, again, n_bytes));
    assert_memory_equal(again, v, n_bytes);
    assert_int_equal(again[n_bytes], 0xa5);
    pack_use(PACK_FOR_PROCESSOR);
    /* less room than the code needs: no code */
    assert_int_equal(pack_run(type, v, n_bytes, exact, n_packed - 1), 0);
    free(packed);
    free(exact);
    free(again);
}

TEST(the_same_bits_come_back)
{
    uint16_t *v = xmalloc(2 * MOST * sizeof v[0]);
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int i = 0; i < N_LENGTHS; i++) {
            fill((enum kind)kind, v, 2 * lengths[i], (uint64_t)(100 * kind + i));
            for (int type = PACK_BF16; type <= PACK_F32; type++)
                for (enum pack_loops_for loops = 0; loops <= PACK_PORTABLE; loops++)
                    round_trip((enum pack_type)type, v,
                               lengths[i] * pack_width((enum pack_type)type) / 2, loops);
        }
    free(v);
}

/* A piece of f32 numbers is that of its upper halves as bf16 numbers, with the lower halves behind
 * the low bytes. */
TEST(f32_is_bf16_and_lower_halves)
{
    enum { N = 2000, HEAD = 8 + 15 + 10 + N };
    uint16_t v[2 * N], upper[N], lower[N];
    uint8_t packed[4 * N], want[4 * N];
    fill(ALL_BITS, v, 2 * N, 5);
    fill(NORMAL, upper, N, 6);
    for (size_t i = 0; i < N; i++) {
        lower[i] = v[2 * i];
        v[2 * i + 1] = upper[i];
    }
    size_t n = pack_run(PACK_BF16, upper, sizeof upper, want, sizeof want);
    memmove(want + HEAD + sizeof lower, want + HEAD, n - HEAD);
    memcpy(want + HEAD, lower, sizeof lower);
    put_u32(want, PACK_F32);
    put_u32(want + 4, sizeof v);
    assert_int_equal(pack_run(PACK_F32, v, sizeof v, packed, sizeof packed),
                     n + sizeof lower);
    assert_memory_equal(packed, want, n + sizeof lower);
    assert_int_equal(pack_run(PACK_F32, v, sizeof v - 2, packed, sizeof packed), 0);
}

TEST(state_gets_smaller)
{
    enum { N = 24576 };
    uint16_t *v = xmalloc(N * sizeof v[0]);
    uint8_t *packed = xmalloc(2 * N);
    for (int dead = 0; dead < 2; dead++) { /* numbers that are 0 cost no more than others */
        fill(dead ? DEAD : NORMAL, v, N, 1);
        assert_in_range(pack_run(PACK_BF16, v, 2 * N, packed, 2 * N), 1,
                        (size_t)(2 * N * 0.75));
    }
    fill(NORMAL_F16, v, N, 1);
    assert_in_range(pack_run(PACK_F16, v, 2 * N, packed, 2 * N), 1, (size_t)(2 * N * 0.95));
    /* noise does not get smaller, and its owner learns it */
    fill(ALL_BITS, v, N, 1);
    assert_int_equal(pack_run(PACK_BF16, v, 2 * N, packed, 2 * N), 0);
    free(v);
    free(packed);
}

/* The halves of a record (keys and values) have ranks of their own: a record whose halves differ by
 * a factor is not larger than its halves alone. */
TEST(halves_are_ranked_apart)
{
    enum { N = 24576 };
    uint16_t *v = xmalloc(N * sizeof v[0]);
    uint8_t *packed = xmalloc(2 * N);
    fill(NORMAL, v, N, 1);
    size_t alike = pack_run(PACK_BF16, v, 2 * N, packed, 2 * N);
    for (size_t i = N / 2; i < N; i++)
        v[i] = (uint16_t)(v[i] >= 0x0400 ? v[i] - 0x0300 : v[i]); /* divided by 64 */
    size_t apart = pack_run(PACK_BF16, v, 2 * N, packed, 2 * N);
    assert_in_range(apart, 1, alike + 64);
    free(v);
    free(packed);
}

TEST(damage_stays_inside_its_bounds)
{
    enum { N = 4096 + 34, TRIES = 4000 };
    uint16_t *v = xmalloc(N * sizeof v[0]);
    uint8_t *packed = xmalloc(4 * N);
    struct rng r = {7};
    int n_refused = 0;
    for (int type = PACK_BF16; type <= PACK_F32; type++) {
        fill(type == PACK_F16 ? NORMAL_F16 : NORMAL, v, N, 3);
        size_t n = pack_run((enum pack_type)type, v, 2 * N, packed, 4 * N);
        for (int i = 0; i < TRIES; i++) {
            /* The sanitizers see each byte outside these blocks. */
            size_t n_here = rng_below(&r, 3) ? n : rng_below(&r, n + 1);
            uint8_t *bad = xmalloc(n_here + (n_here == 0)), *out = xmalloc(2 * N);
            memcpy(bad, packed, n_here);
            for (int k = 0; k < 3 && n_here > 0; k++)
                bad[rng_below(&r, rng_below(&r, 2) ? n_here : 1 + n_here / 64)] ^=
                    (uint8_t)(1u << rng_below(&r, 8));
            pack_use((enum pack_loops_for)(i % (PACK_PORTABLE + 1)));
            n_refused += !pack_undo(bad, n_here, out, 2 * N);
            free(bad);
            free(out);
        }
        /* another length is refused, and so is a missing or further byte */
        uint8_t *out = xmalloc(4 * N);
        assert_false(pack_undo(packed, n, out, 2 * N - 2));
        assert_false(pack_undo(packed, n, out, 2 * N + 2));
        assert_false(pack_undo(packed, n - 1, out, 2 * N));
        assert_false(pack_undo(packed, n + 1, out, 2 * N));
        free(out);
    }
    pack_use(PACK_FOR_PROCESSOR);
    assert_in_range(n_refused, TRIES / 2, 3 * TRIES);
    free(v);
    free(packed);
}

TEST(odd_bytes_are_no_numbers)
{
    uint8_t in[3] = {1, 2, 3}, out[64];
    assert_int_equal(pack_run(PACK_BF16, in, 3, out, sizeof out), 0);
    assert_false(pack_undo(out, 8, in, 3));
}
