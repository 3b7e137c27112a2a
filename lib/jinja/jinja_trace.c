/* jinja_trace.c - traces which bytes of a render come from the caller's foreign strings.
 *
 * All text of a render lies in its two arenas, one for values and one for the output.  New text is
 * made from other text by jbuf_put, which copies bytes; a slice is no new text, it points into the
 * text that it is taken from.  So one bit per byte of the arenas suffices.  Foreign strings are
 * copied into an arena with their bits set, and jbuf_put copies the bits with the bytes.  Large
 * foreign strings are not copied: a list holds their addresses.  Other bytes (from the template,
 * numbers, escapes) are not foreign.  An arena hands out no byte twice, so bits are never
 * cleared.  Each mark has a plane of bits of its own, which are followed in the same way. */
#include "jinja/jinja_impl.h"

#include "base/check.h"
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

static int region_init(struct jtrace_region *r, const struct arena *a, int n_planes)
{
    *r = (struct jtrace_region){.arena = a};
    for (int p = 0; p < n_planes; p++) {
        r->bits[p] = mem_map_sparse(bits_bytes(a->max_bytes));
        if (r->bits[p] == NULL)
            return -errno;
    }
    return 0;
}

static void region_deinit(struct jtrace_region *r)
{
    for (int p = 0; p < 1 + JINJA_MARKS; p++)
        if (r->bits[p] != NULL)
            mem_unmap(r->bits[p], bits_bytes(r->arena->max_bytes));
    *r = (struct jtrace_region){0};
}

int jtrace_init(struct jtrace *t, const struct arena *values, const struct arena *output,
                const struct jinja_input *in)
{
    *t = (struct jtrace){.in = in, .n_planes = 1 + in->n_marks};
    CHECK(in->n_marks <= JINJA_MARKS);
    int rc = region_init(&t->values, values, t->n_planes);
    return rc == 0 ? region_init(&t->output, output, t->n_planes) : rc;
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

static const struct jtrace_far *far_of(const struct jtrace *t, const char *s)
{
    for (int i = 0; i < t->n_far; i++) {
        uintptr_t at = (uintptr_t)s, base = (uintptr_t)t->far[i].s.s;
        if (at >= base && at - base < t->far[i].s.n)
            return &t->far[i];
    }
    return NULL;
}

/* Returns the first byte of a foreign string that is set in a plane; n if none is. */
static size_t first_in(const struct jtrace *t, int plane, const char *key, size_t n)
{
    if (plane == 0)
        return 0;
    const struct jinja_mark *m = &t->in->marks[plane - 1];
    bool is_content = key != NULL && strcmp(key, "content") == 0;
    if (!t->is_marked || t->element < m->element)
        return n;
    if (t->element > m->element || m->byte == 0)
        return 0;
    return is_content ? MIN(m->byte, n) : n;
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

struct jstr jtrace_foreign(struct jinja *j, const char *key, struct jstr s)
{
    struct jtrace *t = j->trace;
    struct jtrace_far far = {.s = s};
    for (int p = 0; p < t->n_planes; p++)
        far.behind[p] = first_in(t, p, key, s.n);
    if (s.n >= JTRACE_FAR_BYTES && t->n_far < JTRACE_FAR) {
        t->far[t->n_far++] = far;
        return s;
    }
    char *copy = jinja_alloc(j, s.n + 1);
    memcpy(copy, s.s, s.n);
    for (int p = 0; p < t->n_planes; p++)
        bits_set(t->values.bits[p], (size_t)(copy - t->values.arena->base) + far.behind[p],
                 s.n - far.behind[p]);
    return (struct jstr){copy, s.n};
}

void jtrace_copied(struct jtrace *t, const char *to, const char *from, size_t n)
{
    if (n == 0) /* with n == 0, `to` may be NULL */
        return;
    const struct jtrace_region *r = region_of(t, to), *of = region_of(t, from);
    const struct jtrace_far *far = of == NULL ? far_of(t, from) : NULL;
    size_t at = (size_t)(to - r->arena->base);
    for (int p = 0; p < t->n_planes && of != NULL; p++)
        bits_or(r->bits[p], at, of->bits[p], (size_t)(from - of->arena->base), n);
    for (int p = 0; p < t->n_planes && far != NULL; p++) {
        size_t in = (size_t)(from - far->s.s), first = MAX(in, far->behind[p]);
        if (first < in + n)
            bits_set(r->bits[p], at + first - in, in + n - first);
    }
}

uint8_t *jtrace_bits(const struct jtrace *t, size_t n)
{
    uint8_t *bits = mem_try_calloc(1, bits_bytes(n));
    if (bits != NULL && n != 0)
        memcpy(bits, t->output.bits[0], (n + 7) / 8);
    return bits;
}

void jtrace_marks(const struct jtrace *t, size_t n)
{
    for (int i = 0; i < t->in->n_marks; i++) {
        const uint8_t *bits = t->output.bits[1 + i];
        size_t at = 0;
        while (at < n && bits[at / 8] == 0)
            at += 8;
        while (at < n && (bits[at / 8] >> at % 8 & 1) == 0)
            at++;
        t->in->marks[i].at = MIN(at, n);
    }
}
