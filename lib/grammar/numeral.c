/* numeral.c - see numeral.h. */
#include "grammar/numeral.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/json.h"

/* --- decimals ----------------------------------------------------------------------- */

/* Makes a decimal of digits times 10^exponent. */
static struct decimal shifted(struct build *b, bool minus, const char *digits, int exponent)
{
    int n = (int)strlen(digits), point = n + exponent; /* digits before the point */
    int n_whole = MAX(point, 0), n_part = MAX(n - point, 0);
    char *whole = build_alloc(b, (size_t)n_whole + 2),
         *part = build_alloc(b, (size_t)n_part + 1);
    for (int i = 0; i < n_whole; i++)
        whole[i] = i < n ? digits[i] : '0';
    for (int i = 0; i < n_part; i++)
        part[i] = point + i < 0 ? '0' : digits[point + i];
    while (*whole == '0')
        whole++;
    while (n_part > 0 && part[n_part - 1] == '0')
        part[--n_part] = 0;
    if (*whole == 0)
        whole = memcpy(build_alloc(b, 2), "0", 2);
    bool zero = whole[0] == '0' && part[0] == 0;
    return (struct decimal){.minus = minus && !zero, .whole = whole, .part = part};
}

static struct decimal of_real(struct build *b, double v)
{
    char text[64], digits[32];
    int precision = 0, n = 0;
    do
        snprintf(text, sizeof text, "%.*e", precision, v < 0 ? -v : v);
    while (++precision < 18 && strtod(text, NULL) != (v < 0 ? -v : v));
    char *e = strchr(text, 'e');
    for (const char *p = text; e != NULL && p < e; p++)
        if (*p != '.')
            digits[n++] = *p;
    digits[n] = 0;
    int exponent = e == NULL ? 0 : (int)strtol(e + 1, NULL, 10);
    return shifted(b, v < 0, digits, exponent - (n - 1));
}

struct decimal decimal_of(struct build *b, const struct json *number)
{
    char text[32];
    int64_t i;
    double v = 0;
    if (json_int_of(number, &i)) {
        snprintf(text, sizeof text, "%lld", (long long)i);
        return shifted(b, i < 0, text + (i < 0), 0);
    }
    json_real_of(number, &v);
    return of_real(b, v);
}

bool decimal_next(struct build *b, const struct decimal *x, bool up, struct decimal *out)
{
    double v = strtod(decimal_text(b, x), NULL);
    if (!(fabs(v) < 0x1p53))
        return false;
    *out = of_real(b, nextafter(v, up ? INFINITY : -INFINITY));
    return true;
}

static int compare_size(const struct decimal *x, const struct decimal *y)
{
    size_t nx = strlen(x->whole), ny = strlen(y->whole);
    int c = nx != ny ? ORDER(nx, ny) : strcmp(x->whole, y->whole);
    if (c == 0)
        c = strcmp(x->part,
                   y->part); /* no trailing zeros: the shorter of two is the lesser */
    return ORDER(c, 0);
}

int decimal_compare(const struct decimal *x, const struct decimal *y)
{
    if (x->minus != y->minus)
        return x->minus ? -1 : 1;
    return x->minus ? -compare_size(x, y) : compare_size(x, y);
}

bool decimal_is_integer(const struct decimal *x)
{
    return x->part[0] == 0;
}

const char *decimal_text(struct build *b, const struct decimal *x)
{
    size_t n = strlen(x->whole) + strlen(x->part) + 3;
    char *text = build_alloc(b, n);
    snprintf(text, n, "%s%s%s%s", x->minus ? "-" : "", x->whole, x->part[0] ? "." : "",
             x->part);
    return text;
}

/* --- comparison with a bound -------------------------------------------------------- */

enum { LESS = 1, EQUAL = 2, GREATER = 4 };
enum { CLS_POINT = 10, CLS_OTHER = 11, N_CLS = 12 };

/* Numbers of states: 0 dead, 1 start, then
 *   whole(n, c): n digits read, n = 1 to L + 1 (L + 1: more than the bound has), comparison c
 *   zero(c): the digit 0 alone
 *   point(c): the point
 *   part(j, c): j digits of the bound's part are equal so far; only c = EQUAL uses j */
struct layout {
    const char *whole, *part;
    uint32_t n_whole, n_part;
};

static uint32_t at_whole(uint32_t n, uint32_t c)
{
    return 2 + (n - 1) * 3 + c;
}

static uint32_t at_zero(const struct layout *l, uint32_t c)
{
    return at_whole(l->n_whole + 2, c);
}

static uint32_t at_point(const struct layout *l, uint32_t c)
{
    return at_zero(l, c) + 3;
}

static uint32_t at_part(const struct layout *l, uint32_t j, uint32_t c)
{
    return at_point(l, 0) + 3 + j * 3 + c;
}

/* Returns how a whole part of n digits compares, if its digits compare as c: 0 less, 1 equal, 2
 * greater. */
static uint32_t with_length(const struct layout *l, uint32_t n, uint32_t c)
{
    return n < l->n_whole ? 0 : n > l->n_whole ? 2 : c;
}

static uint32_t compare_digit(uint32_t c, int digit, char with)
{
    return c != 1 ? c : (uint32_t)(1 + ORDER(digit, with - '0'));
}

/* Returns numbers without a sign that compare with the bound's size in one of the given ways. */
static const struct dfa *compared(struct build *b, const struct decimal *bound,
                                  unsigned ways)
{
    struct layout l = {.whole = bound->whole,
                       .part = bound->part,
                       .n_whole = (uint32_t)strlen(bound->whole),
                       .n_part = (uint32_t)strlen(bound->part)};
    struct dfa d = {.n_cls = N_CLS, .start = 1, .n = at_part(&l, l.n_part + 1, 0)};
    if (d.n > DFA_MAX_STATES)
        build_fault(b, ERR_LIMIT, "a bound has too many digits");
    scratch_begin(b);
    memset(d.cls, CLS_OTHER, sizeof d.cls);
    for (int i = 0; i < 10; i++)
        d.cls['0' + i] = (uint8_t)i;
    d.cls['.'] = CLS_POINT;
    d.to = build_alloc(b, d.n * N_CLS * sizeof *d.to);
    d.accepts = build_alloc(b, d.n);
    for (int digit = 0; digit < 10; digit++) {
        uint32_t c = compare_digit(1, digit, l.whole[0]);
        d.to[N_CLS + digit] = digit == 0 ? at_zero(&l, with_length(&l, 1, c))
                                         : at_whole(1, c);
    }
    for (uint32_t c = 0; c < 3; c++) {
        /* The whole part ends as c; a part of the bound makes an equal one less. */
        bool ends = (ways >> (c == 1 && l.n_part > 0 ? 0 : c)) & 1;
        d.accepts[at_zero(&l, c)] = ends;
        d.to[at_zero(&l, c) * N_CLS + CLS_POINT] = at_point(&l, c);
        for (uint32_t n = 1; n <= l.n_whole + 1; n++) {
            uint32_t s = at_whole(n, c), as = with_length(&l, n, c);
            d.accepts[s] = (ways >> (as == 1 && l.n_part > 0 ? 0 : as)) & 1;
            d.to[s * N_CLS + CLS_POINT] = at_point(&l, as);
            for (int digit = 0; digit < 10; digit++)
                d.to[s * N_CLS + digit] =
                    n < l.n_whole ? at_whole(n + 1, compare_digit(c, digit, l.whole[n]))
                                  : at_whole(l.n_whole + 1, 2);
        }
        for (int digit = 0; digit < 10; digit++) {
            for (uint32_t j = 0; j <= l.n_part; j++) {
                uint32_t as = compare_digit(c, digit, j < l.n_part ? l.part[j] : '0');
                uint32_t to = at_part(&l, as == 1 ? MIN(j + 1, l.n_part) : 0, as);
                d.to[at_part(&l, j, c) * N_CLS + digit] = to;
                if (j == 0)
                    d.to[at_point(&l, c) * N_CLS + digit] = to;
            }
        }
        for (uint32_t j = 0; j <= l.n_part; j++)
            d.accepts[at_part(&l, j, c)] = (ways >> (c == 1 && j < l.n_part ? 0 : c)) & 1;
    }
    return dfa_minimize(b, &d);
}

static const struct dfa *of_text_regex(struct build *b, const char *regex)
{
    return dfa_of_regex(b, regex, strlen(regex), true);
}

/* Returns the texts of d, each behind a minus. */
static const struct dfa *behind_minus(struct build *b, const struct dfa *d)
{
    scratch_begin(b);
    struct dfa *m = build_alloc(b, sizeof *m);
    uint32_t n_cls = d->n_cls + 1;
    memcpy(m->cls, d->cls, sizeof m->cls);
    m->cls['-'] = (uint8_t)d->n_cls; /* no number without a sign contains one */
    m->n_cls = n_cls;
    m->n = d->n + 1;
    m->to = build_alloc(b, (size_t)m->n * n_cls * sizeof *m->to);
    m->accepts = build_alloc(b, m->n);
    memcpy(m->accepts, d->accepts, d->n);
    for (uint32_t s = 0; s < d->n; s++)
        memcpy(m->to + (size_t)s * n_cls, d->to + (size_t)s * d->n_cls,
               d->n_cls * sizeof *m->to);
    m->start = d->n;
    m->to[(size_t)m->start * n_cls + d->n_cls] = d->start;
    return dfa_minimize(b, m);
}

/* --- multiples ---------------------------------------------------------------------- */

static int64_t gcd(int64_t a, int64_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

static int64_t power(int places)
{
    return places == 0 ? 1 : 10 * power(places - 1);
}

bool number_set_multiple(struct number_set *s, const struct decimal *d)
{
    int places = (int)strlen(d->part), most = MAX(places, s->places);
    int64_t m = 0, old = MAX(s->multiple_of, (int64_t)1);
    if (most > NUMERAL_MAX_PLACES || strlen(d->whole) > 5)
        return false;
    for (const char *p = d->whole; *p != 0; p++)
        m = m * 10 + (*p - '0');
    for (const char *p = d->part; *p != 0; p++)
        m = m * 10 + (*p - '0');
    s->integers = s->integers || places == 0;
    if (s->integers) {
        m /= gcd(m, power(places));
        old /= gcd(old, power(s->places));
        most = places = s->places = 0;
    }
    if (m > NUMERAL_MAX_MULTIPLE)
        return false;
    m *= power(most - places);
    old *= s->multiple_of > 0 ? power(most - s->places) : 1;
    m = m / gcd(m, old) > INT64_MAX / old ? INT64_MAX : m / gcd(m, old) * old;
    for (; most > 0 && m % 10 == 0; most--)
        m /= 10;
    if (m > NUMERAL_MAX_MULTIPLE || m * (most + 2) >= DFA_MAX_STATES)
        return false;
    s->multiple_of = m;
    s->places = most;
    s->integers = s->integers || most == 0; /* as 2 is, of 0.4 and 0.25 */
    return true;
}

bool number_set_has_multiple(const struct number_set *s, const struct decimal *d)
{
    int64_t rest = 0;
    size_t n = strlen(d->part);
    if (s->multiple_of == 0)
        return true;
    for (const char *p = d->whole; *p != 0; p++)
        rest = (rest * 10 + (*p - '0')) % s->multiple_of;
    for (size_t i = 0; i < (size_t)s->places; i++)
        rest = (rest * 10 + (i < n ? d->part[i] - '0' : 0)) % s->multiple_of;
    return rest == 0 && n <= (size_t)s->places;
}

/* Returns numbers whose size is a multiple, with or without a minus. State r + 1 has read whole
 * digits with the remainder r. A layer of such states follows the point, and each place. */
static const struct dfa *multiples(struct build *b, int64_t m, int places)
{
    struct dfa d = {.n_cls = N_CLS + 1,
                    .start = 1,
                    .n = (uint32_t)(m * (places == 0 ? 1 : places + 2)) + 1};
    memset(d.cls, CLS_OTHER, sizeof d.cls);
    for (int i = 0; i < 10; i++)
        d.cls['0' + i] = (uint8_t)i;
    d.cls['.'] = CLS_POINT;
    d.cls['-'] = N_CLS;
    scratch_begin(b);
    d.to = build_alloc(b, (size_t)d.n * d.n_cls * sizeof *d.to);
    d.accepts = build_alloc(b, d.n);
    for (uint32_t i = 1; i < d.n; i++) {
        int64_t r = (i - 1) % m, layer = (i - 1) / m, done = MAX(layer - 1, (int64_t)0);
        bool last = places == 0 ? false : layer == places + 1;
        d.accepts[i] = layer != 1 && r * (power(places - (int)done) % m) % m == 0;
        for (int digit = 0; digit < 10 && !last; digit++)
            d.to[i * d.n_cls + (uint32_t)digit] =
                (uint32_t)((r * 10 + digit) % m + (layer == 0 ? 0 : layer + 1) * m) + 1;
        if (layer == 0 && places > 0)
            d.to[i * d.n_cls + CLS_POINT] = (uint32_t)(m + r) + 1;
    }
    d.to[d.n_cls + N_CLS] = 1;
    const struct dfa *made = dfa_minimize(b, &d);
    if (places == 0)
        return made;
    char few[64]; /* digits that a double has */
    snprintf(few, sizeof few, "-?([0-9]+|[0-9]{1,%d}\\.[0-9]+)", 15 - places);
    return dfa_combine(b, made, of_text_regex(b, few), DFA_AND);
}

const struct dfa *dfa_of_numbers(struct build *b, const struct number_set *s)
{
    static const struct decimal zero = {.whole = "0", .part = ""};
    const struct decimal *lo = s->lo, *hi = s->hi;
    /* A fraction is no integer as a double either, so it has at most 15 digits. */
    const struct dfa *all = of_text_regex(b, s->integers ? "-?(0|[1-9][0-9]*)"
                                             : s->fractions
                                                 ? "-?(0|[1-9][0-9]{0,8})\\.[0-9]{0,5}[1-9]"
                                                 : "-?(0|[1-9][0-9]*)(\\.[0-9]+)?");
    const struct dfa *up = compared(b, &zero, EQUAL | GREATER);
    const struct dfa *down = compared(b, &zero,
                                      GREATER); /* the sizes of negative numbers */
    unsigned from = GREATER | (s->above ? 0 : EQUAL), to = LESS | (s->below ? 0 : EQUAL);
    if (lo != NULL && !lo->minus) {
        up = dfa_combine(b, up, compared(b, lo, from), DFA_AND);
        down = dfa_combine(b, down, down, DFA_MINUS);
    } else if (lo != NULL) {
        down = dfa_combine(b, down, compared(b, lo, LESS | (from & EQUAL)), DFA_AND);
    }
    if (hi != NULL && hi->minus) {
        down = dfa_combine(b, down, compared(b, hi, GREATER | (to & EQUAL)), DFA_AND);
        up = dfa_combine(b, up, up, DFA_MINUS);
    } else if (hi != NULL) {
        up = dfa_combine(b, up, compared(b, hi, to), DFA_AND);
    }
    const struct dfa *d = dfa_combine(b, up, behind_minus(b, down), DFA_OR);
    d = dfa_combine(b, d, all, DFA_AND);
    if (s->multiple_of > 1 || s->places > 0)
        d = dfa_combine(b, d, multiples(b, s->multiple_of, s->places), DFA_AND);
    return d;
}

const struct dfa *dfa_of_plain_numbers(struct build *b, const struct dfa *d)
{
    static const char regex[] =
        "-?(0|[1-9][0-9]{0,14}|(0|[1-9][0-9]{0,4})\\.[0-9]{0,9}[1-9])";
    return dfa_combine(b, d, dfa_of_regex(b, regex, sizeof regex - 1, true), DFA_AND);
}
