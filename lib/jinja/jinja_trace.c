/* jinja_trace.c - traces which bytes of a render come from the caller's foreign strings.
 *
 * All text of a render lies in its two arenas, one for values and one for the output.  New text is
 * made from other text by jbuf_put, which copies bytes; a slice is no new text, it points into the
 * text that it is taken from.  So one bit per byte of the arenas suffices.  Foreign strings are
 * copied into an arena with their bits set, and jbuf_put copies the bits with the bytes.  Large
 * foreign strings are not copied: a list holds their addresses.  Other bytes (from the template,
 * numbers, escapes) are not foreign.  An arena hands out no byte twice, so bits are never
 * cleared. */
#include "jinja/jinja_impl.h"

#include "base/mem.h"
#include "base/minmax.h"

#include <errno.h>
#include <string.h>

/* Spare bytes after the bits, because words of 8 bytes are read and written at any byte */
enum { SLACK = 8 };

static size_t bits_bytes(size_t n)
{
    return n / 8 + 1 + SLACK;
}

static int region_init(struct jtrace_region *r, const struct arena *a)
{
    *r = (struct jtrace_region){.arena = a, .bits = mem_map(bits_bytes(a->max_bytes))};
    return r->bits != NULL ? 0 : -errno;
}

static void region_deinit(struct jtrace_region *r)
{
    if (r->bits != NULL)
        mem_unmap(r->bits, bits_bytes(r->arena->max_bytes));
    *r = (struct jtrace_region){0};
}

int jtrace_init(struct jtrace *t, const struct arena *values, const struct arena *output,
                bool (*traces)(const char *key, const struct json *string))
{
    *t = (struct jtrace){.traces = traces};
    int rc = region_init(&t->values, values);
    return rc == 0 ? region_init(&t->output, output) : rc;
}

void jtrace_end_values(struct jtrace *t)
{
    region_deinit(&t->values);
}

void jtrace_deinit(struct jtrace *t)
{
    jtrace_end_values(t);
    region_deinit(&t->output);
}

static bool is_in(const struct jtrace_region *r, const char *s)
{
    uintptr_t at = (uintptr_t)s, base = (uintptr_t)r->arena->base;
    return at >= base && at - base < r->arena->max_bytes;
}

/* Returns the region of the render's text that contains s; NULL if s lies elsewhere. */
static const struct jtrace_region *region_of(const struct jtrace *t, const char *s)
{
    return is_in(&t->values, s) ? &t->values : is_in(&t->output, s) ? &t->output : NULL;
}

static bool is_far(const struct jtrace *t, const char *s)
{
    for (int i = 0; i < t->n_far; i++) {
        uintptr_t at = (uintptr_t)s, base = (uintptr_t)t->far[i].s;
        if (at >= base && at - base < t->far[i].n)
            return true;
    }
    return false;
}

static void bits_set(uint8_t *bits, size_t at, size_t n)
{
    for (size_t i = at; i < at + n;) {
        bool is_byte = i % 8 == 0 && at + n - i >= 8;
        bits[i / 8] |= (uint8_t)(is_byte ? 0xff : 1u << i % 8);
        i += is_byte ? 8 : 1;
    }
}

/* Copies n bits from `from` to `to`, by setting bits only: a set bit stays set. Works on 32 bits at
 * a time. */
static void bits_or(uint8_t *to_bits, size_t to, const uint8_t *from_bits, size_t from,
                    size_t n)
{
    for (size_t i = 0, k; i < n; i += k) {
        uint64_t in, out;
        k = MIN(n - i, 32);
        memcpy(&in, from_bits + (from + i) / 8, sizeof in);
        in = in >> (from + i) % 8 & (((uint64_t)1 << k) - 1);
        if (in == 0)
            /* the usual case: the copied text is the template's, or is not foreign */
            continue;
        memcpy(&out, to_bits + (to + i) / 8, sizeof out);
        out |= in << (to + i) % 8;
        memcpy(to_bits + (to + i) / 8, &out, sizeof out);
    }
}

struct jstr jtrace_foreign(struct jinja *j, struct jstr s)
{
    struct jtrace *t = j->trace;
    if (s.n >= JTRACE_FAR_BYTES && t->n_far < JTRACE_FAR)
        return t->far[t->n_far++] = s;
    char *copy = jinja_alloc(j, s.n + 1);
    memcpy(copy, s.s, s.n);
    bits_set(t->values.bits, (size_t)(copy - t->values.arena->base), s.n);
    return (struct jstr){copy, s.n};
}

void jtrace_copied(struct jtrace *t, const char *to, const char *from, size_t n)
{
    if (n == 0) /* with n == 0, `to` may be NULL */
        return;
    const struct jtrace_region *r = region_of(t, to), *of = region_of(t, from);
    size_t at = (size_t)(to - r->arena->base);
    if (of != NULL)
        bits_or(r->bits, at, of->bits, (size_t)(from - of->arena->base), n);
    else if (is_far(t, from))
        bits_set(r->bits, at, n);
}

uint8_t *jtrace_bits(const struct jtrace *t, size_t n)
{
    uint8_t *bits = mem_try_calloc(1, bits_bytes(n));
    if (bits != NULL && n != 0)
        memcpy(bits, t->output.bits, (n + 7) / 8);
    return bits;
}
