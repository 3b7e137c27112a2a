/* k_checksum.cu - checksum64 of records (XXH3, 64 bits, seed 0 and default secret), one block of
 * threads per record.
 *
 * For more than 240 bytes, XXH3 adds 1024 bytes at a time (here called a place), as 16 stripes of
 * 64, to eight 64-bit sums, and mixes (here: stirs) each sum in between.  The value that a stripe
 * adds does not depend on the sums, so only the stirring is a chain:
 *
 *   16 warps   [ 64 KiB ][ 64 KiB ][ 64 KiB ]...     compute the values of 64 places at a time
 *   last warp            [ 64 steps][ 64 steps]...   adds them and stirs, in eight lanes
 *
 * A step takes some 30 cycles; 512 KiB are 512 steps, 9 us, about the time in which one
 * multiprocessor reads as much.  So more blocks per record would save nothing, and the rest of the
 * GPU stays free. */
#include "cuda/device.cuh"
#include "cuda/launch.h"

enum {
    SUM_WARPS = 16,
    EACH = 4, /* places that a warp handles in a round */
    ROUND = SUM_WARPS * EACH,
    THREADS = (SUM_WARPS + 1) * WARP,
    PLACE = 1024, /* bytes that are added between two stirrings */
    STRIPE = 64,
    LANES = 8,
    SHORT = 240,
};

typedef unsigned long long u64;

#define PRIME32_1 0x9e3779b1u
#define PRIME32_2 0x85ebca77u
#define PRIME32_3 0xc2b2ae3du
#define PRIME64_1 0x9e3779b185ebca87u
#define PRIME64_2 0xc2b2ae3d27d4eb4fu
#define PRIME64_3 0x165667b19e3779f9u
#define PRIME64_4 0x85ebca77c2b2ae63u
#define PRIME64_5 0x27d4eb2f165667c5u

/* XXH3's default secret: 192 bytes, little-endian. */
static __constant__ const u64 secret[24] = {
    0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u,
    0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u,
    0xcb00c391bb52283cu, 0xa32e531b8b65d088u, 0x4ef90da297486471u, 0xd8acdea946ef1938u,
    0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au, 0x647378d9c97e9fc8u,
    0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
    0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu};

/* Initial values of the eight sums. */
static __constant__ const u64 first_sum[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2,
                                                  PRIME64_3, PRIME64_4, PRIME32_2,
                                                  PRIME64_5, PRIME32_1};

/* Returns eight bytes of the secret from any offset. */
static __device__ u64 secret_at(int byte)
{
    int shift = byte % 8 * 8;
    u64 low = secret[byte / 8];
    return shift == 0 ? low : low >> shift | secret[byte / 8 + 1] << (64 - shift);
}

/* Returns n bytes from any address, little-endian. */
static __device__ u64 read_bytes(const uint8_t *p, int n)
{
    u64 x = 0;
    for (int i = 0; i < n; i++)
        x |= (u64)p[i] << (8 * i);
    return x;
}

static __device__ u64 read64(const uint8_t *p)
{
    return read_bytes(p, 8);
}

static __device__ u64 fold(u64 a, u64 b)
{
    return a * b ^ __umul64hi(a, b);
}

static __device__ u64 stir_end(u64 h)
{
    h = (h ^ h >> 37) * 0x165667919e3779f9u;
    return h ^ h >> 32;
}

/* --- 240 bytes or less: one thread ------------------------------------------------------------ */

static __device__ u64 stir_short(u64 h)
{
    h = (h ^ h >> 33) * PRIME64_2;
    h = (h ^ h >> 29) * PRIME64_3;
    return h ^ h >> 32;
}

static __device__ u64 mix16(const uint8_t *p, int at)
{
    return fold(read64(p) ^ secret_at(at), read64(p + 8) ^ secret_at(at + 8));
}

static __device__ u64 rotate(u64 x, int n)
{
    return x << n | x >> (64 - n);
}

static __device__ u64 swap_bytes(u64 x)
{
    u64 y = 0;
    for (int i = 0; i < 8; i++)
        y |= (x >> (8 * i) & 0xff) << (56 - 8 * i);
    return y;
}

static __device__ u64 checksum_16(const uint8_t *p, int n)
{
    if (n > 8) {
        u64 low = read64(p) ^ secret[3] ^ secret[4];
        u64 high = read64(p + n - 8) ^ secret[5] ^ secret[6];
        return stir_end((u64)n + swap_bytes(low) + high + fold(low, high));
    }
    if (n >= 4) {
        u64 x = read_bytes(p + n - 4, 4) + (read_bytes(p, 4) << 32);
        u64 h = x ^ secret[1] ^ secret[2];
        h = (h ^ rotate(h, 49) ^ rotate(h, 24)) * 0x9fb21c651e98df25u;
        h = (h ^ ((h >> 35) + (u64)n)) * 0x9fb21c651e98df25u;
        return h ^ h >> 28;
    }
    if (n == 0)
        return stir_short(secret[7] ^ secret[8]);
    u64 x = (u64)p[0] << 16 | (u64)p[n / 2] << 24 | p[n - 1] | (u64)n << 8;
    return stir_short(x ^ (uint32_t)(secret[0] ^ secret[0] >> 32));
}

static __device__ u64 checksum_short(const uint8_t *p, int n)
{
    if (n <= 16)
        return checksum_16(p, n);
    u64 h = (u64)n * PRIME64_1;
    if (n <= 128) { /* pairs of 16 bytes, from both ends inwards */
        for (int i = (n - 1) / 32; i >= 0; i--)
            h += mix16(p + 16 * i, 32 * i) + mix16(p + n - 16 * (i + 1), 32 * i + 16);
        return stir_end(h);
    }
    for (int i = 0; i < n / 16; i++) {
        h += mix16(p + 16 * i, i < 8 ? 16 * i : 16 * (i - 8) + 3);
        h = i == 7 ? stir_end(h) : h;
    }
    return stir_end(h + mix16(p + n - 16, 136 - 17));
}

/* --- more than 240 bytes: a block of threads -------------------------------------------------- */

/* Returns the product that eight bytes (already combined with the secret) add to their own lane's
 * sum. */
static __device__ __forceinline__ u64 product(u64 x)
{
    return (u64)(uint32_t)x * (x >> 32);
}

/* A record of more than SHORT bytes. */
struct record {
    const uint8_t *bytes;
    uint32_t n;
    int n_places; /* the last place is not stirred, and may have no stripe */
    int n_last; /* stripes of the last place */
};

static __device__ record record_of(const uint8_t *bytes, uint32_t n)
{
    record r = {bytes, n, (int)((n - 1) / PLACE) + 1, (int)((n - 1) % PLACE / STRIPE)};
    return r;
}

/* Loads a warp's places of a round: 32 neighbouring threads read 512 bytes, 16 each, then the next
 * 512. */
static __device__ __forceinline__ void fetch(uint4 v[EACH][2], const record &r, int round,
                                             int warp, int lane)
{
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int place = round * ROUND + k * SUM_WARPS + warp;
        int n = place < r.n_places - 1 ? PLACE / STRIPE : place < r.n_places ? r.n_last : 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int stripe = half * 8 + lane / 4;
            v[k][half] = make_uint4(0, 0, 0, 0);
            if (stripe < n)
                v[k][half] = *(const uint4 *)(r.bytes + (int64_t)place * PLACE +
                                              half * 512 + lane * 16);
        }
    }
}

/* Adds the values of the 16 bytes of lanes 2j and 2j + 1 to sum[0] and sum[1]. */
static __device__ __forceinline__ void add16(u64 sum[2], uint4 v, const u64 key[2])
{
    u64 a = (u64)v.y << 32 | v.x, b = (u64)v.w << 32 | v.z;
    sum[0] += product(a ^ key[0]) + b;
    sum[1] += product(b ^ key[1]) + a;
}

/* Adds the values of a round's places to sums [ROUND][LANES].  Stripes that do not exist are left
 * out, because a zero stripe's value is not zero. */
static __device__ __forceinline__ void add_places(u64 *sums, const uint4 v[EACH][2],
                                                  const u64 key[2][2], const record &r,
                                                  int round, int warp, int lane)
{
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int at = k * SUM_WARPS + warp, place = round * ROUND + at;
        int n = place < r.n_places - 1 ? PLACE / STRIPE : place < r.n_places ? r.n_last : 0;
        u64 sum[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (half * 8 + lane / 4 < n)
                add16(sum, v[k][half], key[half]);
#pragma unroll
        for (int d = 4; d < WARP; d *= 2) {
            sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], d);
            sum[1] += __shfl_xor_sync(0xffffffffu, sum[1], d);
        }
        if (lane < 4) {
            sums[at * LANES + 2 * lane] = sum[0];
            sums[at * LANES + 2 * lane + 1] = sum[1];
        }
    }
}

/* Adds the values of a round's places to one lane's sum, and stirs it after each. */
static __device__ __forceinline__ u64 stir_places(u64 acc, const u64 *sums, const record &r,
                                                  int round, int lane)
{
    u64 key = secret[16 + lane];
    int n = r.n_places - round * ROUND;
    int n_stirred = n - 1 < ROUND ? n - 1 : ROUND;
    for (int i = 0; i < n_stirred; i++) {
        acc += sums[i * LANES + lane];
        acc = (acc ^ acc >> 47 ^ key) * PRIME32_1;
    }
    return n <= ROUND ? acc + sums[n_stirred * LANES + lane] : acc;
}

/* Adds the last 64 bytes, some of which may already have been added. */
static __device__ u64 add_end(u64 acc, const record &r, int lane)
{
    const uint8_t *p = r.bytes + r.n - STRIPE;
    return acc + product(read64(p + 8 * lane) ^ secret_at(121 + 8 * lane)) +
           read64(p + 8 * (lane ^ 1));
}

static __device__ u64 join(const u64 *acc, uint32_t n)
{
    u64 h = (u64)n * PRIME64_1;
    for (int i = 0; i < 4; i++)
        h += fold(acc[2 * i] ^ secret_at(11 + 16 * i),
                  acc[2 * i + 1] ^ secret_at(19 + 16 * i));
    return stir_end(h);
}

static __global__ void __launch_bounds__(THREADS)
    checksum_records(uint64_t *out, gpu_records records)
{
    await_stream();
    __shared__ u64 sums[2][ROUND * LANES], last[LANES];
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int i = (int)blockIdx.x;
    const uint8_t *bytes = records.first + i * records.stride;
    uint32_t n = records.n_bytes[i];
    if (n <= SHORT) {
        if (threadIdx.x == 0)
            out[i] = checksum_short(bytes, (int)n);
        return;
    }
    record r = record_of(bytes, n);
    int n_rounds = (r.n_places + ROUND - 1) / ROUND;
    bool sums_up = warp < SUM_WARPS, stirs = !sums_up && lane < LANES;
    u64 acc = stirs ? first_sum[lane] : 0;
    u64 key[2][2];
    uint4 v[EACH][2];
    for (int half = 0; half < 2; half++)
        for (int e = 0; e < 2; e++)
            key[half][e] = secret[half * 8 + lane / 4 + 2 * (lane % 4) + e];
    if (sums_up)
        fetch(v, r, 0, warp, lane);
    for (int round = 0; round <= n_rounds; round++) {
        if (sums_up && round < n_rounds) {
            add_places(sums[round % 2], v, key, r, round, warp, lane);
            fetch(v, r, round + 1, warp, lane); /* loads nothing beyond the end */
        } else if (stirs && round > 0) {
            acc = stir_places(acc, sums[(round - 1) % 2], r, round - 1, lane);
        }
        __syncthreads();
    }
    if (stirs)
        last[lane] = add_end(acc, r, lane);
    __syncthreads();
    if (threadIdx.x == 0)
        out[i] = join(last, n);
}

void gpu_checksum(cudaStream_t s, uint64_t *out, struct gpu_records records)
{
    LAUNCH(checksum_records, records.n, THREADS, 0, s, out, records);
}
