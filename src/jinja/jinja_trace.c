/* jinja_trace.c - which bytes of a render come from the caller's foreign strings.
 *
 * All text of a render is made in its arena, by jbuf_put, out of other text: slices share their bytes,
 * and everything else copies them.  So one bit for each byte of the arena suffices: foreign strings are
 * copied there with their bits set, and every copy takes the bits along.  Bytes from elsewhere (the
 * template, numbers, escapes) are not foreign.  An arena hands out no byte twice, so bits are only set. */
#include "jinja/jinja_impl.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>

enum { SLACK = 8 }; /* words are read and written at any byte */

static size_t bits_bytes(size_t n)
{
    return n / 8 + 1 + SLACK;
}

int jtrace_init(struct jtrace *t, const struct arena *arena,
                bool (*traces)(const char *key, const struct json *string))
{
    *t = (struct jtrace){
        .arena = arena, .bits = mem_map(bits_bytes(arena->max_bytes)), .traces = traces};
    return t->bits != NULL ? 0 : -errno;
}

void jtrace_deinit(struct jtrace *t)
{
    if (t->bits != NULL)
        mem_unmap(t->bits, bits_bytes(t->arena->max_bytes));
    *t = (struct jtrace){0};
}

static bool is_in_arena(const struct jtrace *t, const char *s)
{
    uintptr_t at = (uintptr_t)s, base = (uintptr_t)t->arena->base;
    return at >= base && at - base < t->arena->max_bytes;
}

/* Sets bits [to, to + n) where bits [from, from + n) are set; up to 32 at a time. */
static void bits_or(uint8_t *to_bits, size_t to, const uint8_t *from_bits, size_t from,
                    size_t n)
{
    for (size_t i = 0, k; i < n; i += k) {
        uint64_t in, out;
        k = n - i < 32 ? n - i : 32;
        memcpy(&in, from_bits + (from + i) / 8, sizeof in);
        in = in >> (from + i) % 8 & (((uint64_t)1 << k) - 1);
        if (in == 0)
            continue; /* most text is the template's or stays as it is */
        memcpy(&out, to_bits + (to + i) / 8, sizeof out);
        out |= in << (to + i) % 8;
        memcpy(to_bits + (to + i) / 8, &out, sizeof out);
    }
}

struct jstr jtrace_foreign(struct jinja *j, struct jstr s)
{
    struct jtrace *t = j->trace;
    char *copy = jinja_alloc(j, s.n + 1);
    size_t at = (size_t)(copy - t->arena->base);
    memcpy(copy, s.s, s.n);
    for (size_t i = at; i < at + s.n;) {
        bool is_byte = i % 8 == 0 && at + s.n - i >= 8;
        t->bits[i / 8] |= (uint8_t)(is_byte ? 0xff : 1u << i % 8);
        i += is_byte ? 8 : 1;
    }
    return (struct jstr){copy, s.n};
}

void jtrace_copied(struct jtrace *t, const char *to, const char *from, size_t n)
{
    if (n != 0 && is_in_arena(t, from))
        bits_or(t->bits, (size_t)(to - t->arena->base), t->bits,
                (size_t)(from - t->arena->base), n);
}

uint8_t *jtrace_bits(const struct jtrace *t, const char *s, size_t n)
{
    uint8_t *bits = mem_try_calloc(1, bits_bytes(n));
    if (n != 0 && bits != NULL)
        bits_or(bits, 0, t->bits, (size_t)(s - t->arena->base), n);
    return bits;
}
