/* pack.c - see pack.h. The format, its bounds, and the portable loops.
 *
 * Invariants:
 * 1. Every length that comes from packed bytes is compared with the bytes that are left before it
 *    is used, and no list is longer than a piece.
 * 2. Each level has exactly as many threes as the next level has steps, so no list is read beyond
 *    its end. */
#include <stdatomic.h>
#include <string.h>

#include "base/bytes.h"
#include "base/minmax.h"
#include "pack/pack_impl.h"

enum {
    RUN_HEAD = 8,
    LENGTHS = LEVELS, /* lengths of levels 2 to 5, and of the list of other exponents */
    PIECE_HEAD = RANKS + 2 * LENGTHS,
    /* A run that is shorter is one piece: a second head would cost more than ranks of its own
     * save. */
    LEAST_DIVIDED = 2048,
};

/* --- the portable loops ----------------------------------------------------------------------- */

static uint16_t rotated(uint16_t v)
{
    return (uint16_t)(v << 1 | v >> 15);
}

static void part(enum pack_type type, const uint8_t *run, size_t n, uint8_t *exponents,
                 uint8_t *low, uint8_t *upper)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t *from = run + i * pack_width(type);
        if (type == PACK_F32) {
            memcpy(upper + 2 * i, from, 2);
            from += 2;
        }
        uint16_t v = rotated(get_u16(from));
        low[i] = (uint8_t)v;
        exponents[i] = (uint8_t)(type == PACK_F16 ? v >> 11 : v >> 8);
        if (type == PACK_F16)
            upper[i] = v >> 8 & 7;
    }
}

static size_t rank(uint8_t *exponents, size_t n, uint8_t first,
                   const uint8_t short_of[WINDOW], uint8_t *others)
{
    size_t n_others = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned at = (unsigned)exponents[i] - first;
        uint8_t less = at < WINDOW ? short_of[at] : 0;
        if (less == 0)
            others[n_others++] = exponents[i];
        exponents[i] = (uint8_t)(RANKS - less);
    }
    return n_others;
}

/* Returns the width of the four groups of a block with the first of n_left steps: step i is in bits
 * 2 * (i / width) of byte i % width. */
static size_t group_width(size_t n_left)
{
    return MIN(32, (n_left + 3) / 4);
}

static size_t steps_put(const uint8_t *ranks, size_t n, uint8_t *steps, uint8_t *next)
{
    size_t n_next = 0;
    memset(steps, 0, steps_bytes(n));
    for (size_t begin = 0; begin < n; begin += 128, steps += 32) {
        size_t end = MIN(n, begin + 128), width = group_width(n - begin);
        for (size_t i = begin, at = 0, shift = 0; i < end; i++) {
            steps[at] = (uint8_t)(steps[at] | MIN(ranks[i], 3) << shift);
            if (ranks[i] >= 3)
                next[n_next++] = (uint8_t)(ranks[i] - 3);
            if (++at == width) {
                at = 0;
                shift += 2;
            }
        }
    }
    return n_next;
}

static size_t steps_get(const uint8_t *steps, size_t n, const uint8_t *next, uint8_t *ranks)
{
    size_t n_next = 0;
    for (size_t begin = 0; begin < n; begin += 128, steps += 32) {
        size_t end = MIN(n, begin + 128), width = group_width(n - begin);
        for (size_t i = begin, at = 0, shift = 0; i < end; i++) {
            uint8_t step = steps[at] >> shift & 3;
            ranks[i] = (uint8_t)(step + (step == 3 && next != NULL ? next[n_next] : 0));
            n_next += step == 3;
            if (++at == width) {
                at = 0;
                shift += 2;
            }
        }
    }
    return n_next;
}

static void join(enum pack_type type, const uint8_t *ranks, const uint8_t *exponents,
                 const uint8_t *others, const uint8_t *low, const uint8_t *upper, size_t n,
                 uint8_t *run)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t e = ranks[i] < RANKS ? exponents[ranks[i]] : *others++;
        if (type == PACK_F16)
            e = (uint16_t)((e << 3 | upper[i]) & 0xff);
        uint16_t v = (uint16_t)(e << 8 | low[i]);
        uint8_t *to = run + i * pack_width(type);
        if (type == PACK_F32) {
            memcpy(to, upper + 2 * i, 2);
            to += 2;
        }
        put_u16(to, (uint16_t)(v >> 1 | v << 15));
    }
}

const struct pack_loops pack_loops_portable = {part, rank, steps_put, steps_get, join};

static _Atomic(enum pack_loops_for) used;

static const struct pack_loops *loops(void)
{
    enum pack_loops_for u = atomic_load(&used);
    const struct pack_loops *own = u == PACK_FOR_PROCESSOR ? pack_loops_vbmi2() : NULL;
    if (own == NULL && u != PACK_PORTABLE)
        own = pack_loops_avx2();
    return own != NULL ? own : &pack_loops_portable;
}

void pack_use(enum pack_loops_for loops)
{
    atomic_store(&used, loops);
}

/* --- pieces ----------------------------------------------------------------------------------- */

/* Returns the number of pieces of a run of n numbers, and *width, the numbers of each but the last.
 */
static size_t pieces_of(size_t n, size_t *width)
{
    size_t pairs = (n + 2 * PACK_PIECE - 1) / (2 * PACK_PIECE);
    size_t n_pieces = n < LEAST_DIVIDED ? 1 : 2 * pairs;
    *width = MIN(PACK_PIECE, round_up((n + n_pieces - 1) / n_pieces, 64));
    return n == 0 ? 0 : (n + *width - 1) / *width;
}

/* The lists of one piece. */
struct lists {
    uint8_t a[PACK_PIECE + PAD], b[PACK_PIECE + PAD], upper[PACK_PIECE + PAD];
    uint8_t half[PACK_PIECE / 2 + 1 + PAD], others[PACK_PIECE + PAD];
};

/* Ranks the exponents of a sample, the most frequent ones first. Ranked exponents lie in a window
 * around the most frequent one that is not 0. Sets ranked[], and *first and short_of[] as `rank` of
 * pack_loops takes them. Channels that are 0 for all tokens give many exponents 0 far from the
 * others. Then another exponent of the window, the least frequent one, lends its place to 0, and is
 * returned; else 0 is. */
static uint8_t choose_ranks(const uint8_t *exponents, size_t n, uint8_t ranked[RANKS],
                            uint8_t *first, uint8_t short_of[WINDOW])
{
    enum { BELOW = 20 }; /* outliers are few above, and many below: numbers near 0 */
    uint32_t count[2][256] = {{0}};
    size_t step = n < 4096 ? 2 : 8, most = 0;
    for (size_t i = 0; i + 1 < n; i += step) {
        count[0][exponents[i]]++;
        count[1][exponents[i + 1]]++;
    }
    for (size_t e = 0; e < 256; e++) {
        count[0][e] += count[1][e];
        most = e > 0 && count[0][e] > (most > 0 ? count[0][most] : 0) ? e : most;
    }
    *first = (uint8_t)(most < BELOW ? 0 : MIN(most - BELOW, 256 - WINDOW));
    uint32_t *in = &count[0][*first];
    int least = 0;
    for (int i = 0; i < WINDOW; i++)
        least = in[i] < in[least] ? i : least;
    bool lends = *first > 0 && count[0][0] > in[least];
    if (lends)
        in[least] = count[0][0];
    memset(ranked, 0, RANKS);
    memset(short_of, 0, WINDOW);
    for (int r = 0; r < RANKS; r++) {
        int best = -1;
        for (int i = 0; i < WINDOW; i++)
            if (short_of[i] == 0 && in[i] > (best < 0 ? 0 : in[best]))
                best = i;
        if (best < 0)
            break;
        ranked[r] = lends && best == least ? 0 : (uint8_t)(*first + best);
        short_of[best] = (uint8_t)(RANKS - r);
    }
    return lends ? (uint8_t)(*first + least) : 0;
}

/* Exchanges the exponents 0 and e. */
static void exchange(uint8_t *exponents, size_t n, uint8_t e)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t x = exponents[i];
        exponents[i] = x == 0 ? e : x == e ? 0 : x;
    }
}

/* Writes the two lists of an f16 mantissa's upper bits. Returns the end of them. */
static uint8_t *upper_put(const struct pack_loops *l, struct lists *t, size_t n,
                          uint8_t *to)
{
    size_t half = (n + 1) / 2;
    for (size_t i = 0; i < half; i++)
        t->half[i] = (uint8_t)(t->upper[i] >> 2 |
                               (i + half < n ? t->upper[i + half] >> 2 << 1 : 0));
    for (size_t i = 0; i < n; i++)
        t->upper[i] &= 3;
    uint8_t unused[PACK_PIECE + PAD];
    (void)l->steps_put(t->upper, n, to, unused);
    to += steps_bytes(n);
    (void)l->steps_put(t->half, half, to, unused);
    return to + steps_bytes(half);
}

/* The most bytes of a piece, with those that the loops may write behind it. */
enum { PIECE_ROOM = PIECE_HEAD + 4 * PACK_PIECE + (LEVELS + 2) * (PACK_PIECE / 4 + PAD) };

/* Packs one piece. `to` has room for PIECE_ROOM bytes. Returns those that it takes. */
static size_t piece_put(enum pack_type type, const uint8_t *run, size_t n, uint8_t *to)
{
    const struct pack_loops *l = loops();
    struct lists t;
    uint8_t short_of[WINDOW], first, *ranks = t.a, *next = t.b;
    uint8_t *lengths = to + RANKS, *at = to + PIECE_HEAD;
    l->part(type, run, n, ranks, at, type == PACK_F32 ? at + n : t.upper);
    at += type == PACK_F32 ? 3 * n : n;
    uint8_t lender = choose_ranks(ranks, n, to, &first, short_of);
    if (lender != 0)
        exchange(ranks, n, lender);
    size_t n_others = l->rank(ranks, n, first, short_of, t.others);
    if (lender != 0)
        exchange(t.others, n_others, lender);
    if (type == PACK_F16)
        at = upper_put(l, &t, n, at);
    for (int i = 0; i < LEVELS; i++) {
        size_t n_next = l->steps_put(ranks, n, at, next);
        at += steps_bytes(n);
        put_u16(lengths + 2 * i, (uint16_t)n_next);
        uint8_t *swap = ranks;
        ranks = next;
        next = swap;
        n = n_next;
    }
    memcpy(at, t.others, n_others);
    return (size_t)(at - to) + n_others;
}

/* Unpacks one piece of n numbers from at most n_left bytes. Returns its bytes, or 0 if they are not
 * a piece. */
static size_t piece_get(enum pack_type type, const uint8_t *from, size_t n_left, size_t n,
                        uint8_t *run)
{
    const struct pack_loops *l = loops();
    size_t half = (n + 1) / 2, of_upper = 0, length[LEVELS + 1] = {n};
    if (type == PACK_F16)
        of_upper = steps_bytes(n) + steps_bytes(half);
    else if (type == PACK_F32)
        of_upper = 2 * n;
    size_t all = PIECE_HEAD + n + of_upper;
    if (n_left < all)
        return 0;
    for (int i = 0; i < LENGTHS; i++) {
        length[i + 1] = get_u16(from + RANKS + 2 * i);
        if (length[i + 1] > length[i])
            return 0;
        all += steps_bytes(length[i]);
    }
    all += length[LEVELS];
    if (n_left < all)
        return 0;
    const uint8_t *at = from + all - length[LEVELS], *others = at;
    struct lists t;
    uint8_t *next = NULL, *ranks = t.a;
    for (int i = LEVELS - 1; i >= 0; i--) {
        at -= steps_bytes(length[i]);
        if (l->steps_get(at, length[i], next, ranks) != length[i + 1])
            return 0;
        next = ranks;
        ranks = ranks == t.a ? t.b : t.a;
    }
    if (type == PACK_F16) {
        (void)l->steps_get(at - of_upper, n, NULL, t.upper);
        (void)l->steps_get(at - steps_bytes(half), half, NULL, t.half);
        for (size_t i = 0; i < half; i++)
            t.upper[i] = (uint8_t)(t.upper[i] | (t.half[i] & 1) << 2);
        for (size_t i = half; i < n; i++)
            t.upper[i] = (uint8_t)(t.upper[i] | (t.half[i - half] & 2) << 1);
    }
    uint8_t exponents[RANKS + 1] = {0};
    memcpy(exponents, from, RANKS);
    const uint8_t *low = from + PIECE_HEAD;
    l->join(type, next, exponents, others, low, type == PACK_F32 ? low + n : t.upper, n,
            run);
    return all;
}

/* --- runs ------------------------------------------------------------------------------------- */

size_t pack_run(enum pack_type type, const void *run, size_t n_bytes, void *to, size_t room)
{
    uint8_t piece[PIECE_ROOM];
    const uint8_t *from = run;
    uint8_t *out = to;
    size_t width, number = pack_width(type), n = n_bytes / number, done = RUN_HEAD;
    size_t n_pieces = pieces_of(n, &width);
    if (n_bytes % number != 0 || n_bytes > UINT32_MAX || room < RUN_HEAD)
        return 0;
    put_u32(out, type);
    put_u32(out + 4, (uint32_t)n_bytes);
    for (size_t i = 0; i < n_pieces; i++) {
        size_t n_here = MIN(width, n - i * width);
        size_t n_packed = piece_put(type, from + i * width * number, n_here, piece);
        if (n_packed > room - done)
            return 0;
        memcpy(out + done, piece, n_packed);
        done += n_packed;
    }
    return done;
}

enum pack_type pack_guess(const void *run, size_t n_bytes, void *to)
{
    enum { SAMPLE_BYTES = 64 << 10 };
    enum pack_type best = PACK_BF16;
    size_t sample = MIN(n_bytes, SAMPLE_BYTES) & ~(size_t)3, least = sample;
    for (enum pack_type type = PACK_BF16; least > 0 && type <= PACK_F32; type++) {
        size_t n = pack_run(type, run, sample, to, least - 1);
        best = n > 0 ? type : best;
        least = n > 0 ? n : least;
    }
    return best;
}

bool pack_undo(const void *packed, size_t n_packed, void *to, size_t n_bytes)
{
    const uint8_t *from = packed;
    uint8_t *out = to;
    if (n_packed < RUN_HEAD || get_u32(from + 4) != n_bytes)
        return false;
    uint32_t type = get_u32(from);
    if (type != PACK_BF16 && type != PACK_F16 && type != PACK_F32)
        return false;
    size_t number = pack_width((enum pack_type)type);
    if (n_bytes % number != 0)
        return false;
    size_t width, n = n_bytes / number, done = RUN_HEAD, n_pieces = pieces_of(n, &width);
    for (size_t i = 0; i < n_pieces; i++) {
        size_t n_here = MIN(width, n - i * width);
        size_t n_read = piece_get((enum pack_type)type, from + done, n_packed - done,
                                  n_here, out + i * width * number);
        if (n_read == 0)
            return false;
        done += n_read;
    }
    return done == n_packed;
}
