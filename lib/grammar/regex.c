/* regex.c - regular expressions of ECMA-262 (flag u, no other flag) to DFAs; see dfa.h.
 *
 *     text -> tree -> NFA over bytes -> DFA (subsets) -> minimised
 *
 * The whole expression is either anchored at both ends (`whole`) or surrounded by any text.  ^ and
 * $ are edges of the NFA that are free at the text's start and end alone.
 *
 * Lookahead is taken where it stands behind ^ at the beginning of the expression or of an
 * alternative: there it is an intersection or a difference.  Refused by name: other lookaround,
 * back references, word boundaries, flags. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/check.h"
#include "base/minmax.h"
#include "base/utf8.h"
#include "grammar/dfa.h"

enum {
    MAX_COUNT = 10000,   /* of a repetition */
    MAX_NFA = 200000,    /* nodes */
    MAX_DEPTH = 200,     /* of groups */
    MAX_PATTERN = 16384, /* bytes; functions recurse along a sequence */
    MAX_CP = 0x10FFFF,
};

/* --- sets of characters ------------------------------------------------------------- */

struct cp_set {
    struct cp_range *at;
    uint32_t n, cap;
};

static void set_add(struct build *b, struct cp_set *s, uint32_t lo, uint32_t hi)
{
    s->at = build_grow(b, s->at, &s->cap, s->n, sizeof *s->at);
    s->at[s->n++] = (struct cp_range){lo, hi};
}

static int by_lo(const void *x, const void *y)
{
    const struct cp_range *a = x, *b = y;
    return ORDER(a->lo, b->lo);
}

/* Sorts the ranges and joins those that touch. */
static void set_sort(struct cp_set *s)
{
    uint32_t n = 0;
    if (s->n == 0)
        return;
    qsort(s->at, s->n, sizeof *s->at, by_lo);
    for (uint32_t i = 1; i < s->n; i++) {
        if (s->at[i].lo <= s->at[n].hi + 1)
            s->at[n].hi = MAX(s->at[n].hi, s->at[i].hi);
        else
            s->at[++n] = s->at[i];
    }
    s->n = n + 1;
}

static void set_negate(struct build *b, struct cp_set *s)
{
    struct cp_set out = {0};
    uint32_t at = 0;
    set_sort(s);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->at[i].lo > at)
            set_add(b, &out, at, s->at[i].lo - 1);
        at = s->at[i].hi + 1;
    }
    if (at <= MAX_CP)
        set_add(b, &out, at, MAX_CP);
    *s = out;
}

/* Adds the set of \d, \w or \s; a capital letter adds its complement. */
static void set_add_class(struct build *b, struct cp_set *s, char letter)
{
    static const struct cp_range digits[] = {{'0', '9'}},
                                 words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                 spaces[] = {{9, 13},          {32, 32},
                                             {0xA0, 0xA0},     {0x1680, 0x1680},
                                             {0x2000, 0x200A}, {0x2028, 0x2029},
                                             {0x202F, 0x202F}, {0x205F, 0x205F},
                                             {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    struct cp_set c = {0};
    char kind = (char)(letter | 0x20);
    const struct cp_range *r = kind == 'd' ? digits : kind == 'w' ? words : spaces;
    size_t n = kind == 'd' ? 1 : kind == 'w' ? 4 : sizeof spaces / sizeof *spaces;
    for (size_t i = 0; i < n; i++)
        set_add(b, &c, r[i].lo, r[i].hi);
    if (letter != kind)
        set_negate(b, &c);
    for (uint32_t i = 0; i < c.n; i++)
        set_add(b, s, c.at[i].lo, c.at[i].hi);
}

/* --- the tree ----------------------------------------------------------------------- */

enum tree_kind {
    T_EMPTY,
    T_SET,
    T_CAT,
    T_ALT,
    T_REPEAT,
    T_START,
    T_END,
    T_AHEAD,
    T_NOT_AHEAD
};

struct tree {
    enum tree_kind kind;
    struct cp_set set;
    struct tree *one, *other; /* CAT and ALT: both; others: one */
    int32_t min, max;         /* REPEAT; max -1: no bound */
};

struct parser {
    struct build *b;
    const char *text;
    size_t n, at;
    int depth;
};

static _Noreturn void bad(struct parser *p, const char *what)
{
    build_fault(p->b, ERR_USAGE, "the pattern \"%.*s\" is malformed at byte %zu: %s",
                (int)MIN(p->n, (size_t)120), p->text, p->at, what);
}

static _Noreturn void refuse(struct parser *p, const char *what)
{
    build_fault(p->b, ERR_UNSUPPORTED,
                "pattern: \"%.*s\" uses %s, which cannot be enforced",
                (int)MIN(p->n, (size_t)120), p->text, what);
}

static struct tree *tree_new(struct parser *p, enum tree_kind kind, struct tree *one,
                             struct tree *other)
{
    struct tree *t = build_alloc(p->b, sizeof *t);
    t->kind = kind;
    t->one = one;
    t->other = other;
    return t;
}

static int peek(const struct parser *p)
{
    return p->at < p->n ? (unsigned char)p->text[p->at] : -1;
}

static bool eat(struct parser *p, const char *s)
{
    size_t n = strlen(s);
    if (p->n - p->at < n || memcmp(p->text + p->at, s, n) != 0)
        return false;
    p->at += n;
    return true;
}

static uint32_t next_cp(struct parser *p)
{
    uint32_t cp = 0;
    size_t len = p->at < p->n ? utf8_decode(p->text + p->at, p->n - p->at, &cp) : 0;
    if (len == 0)
        bad(p, p->at < p->n ? "invalid UTF-8" : "the end is missing");
    p->at += len;
    return cp;
}

static uint32_t hex_digits(struct parser *p, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) {
        int c = peek(p), low = c | 0x20;
        bool digit = c >= '0' && c <= '9';
        if (!digit && (low < 'a' || low > 'f'))
            bad(p, "hexadecimal digits are missing");
        v = v * 16 + (uint32_t)(digit ? c - '0' : low - 'a' + 10);
        p->at++;
    }
    return v;
}

static uint32_t unicode_escape(struct parser *p)
{
    if (eat(p, "{")) {
        uint32_t v = 0;
        while (peek(p) != '}') {
            v = v * 16 + hex_digits(p, 1);
            if (v > MAX_CP)
                bad(p, "no such character");
        }
        p->at++;
        return v;
    }
    uint32_t v = hex_digits(p, 4);
    if (v >= 0xD800 && v < 0xDC00 && eat(p, "\\u")) {
        uint32_t low = hex_digits(p, 4);
        if (low < 0xDC00 || low > 0xDFFF)
            bad(p, "half of a surrogate pair");
        return 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
    }
    if (v >= 0xD800 && v < 0xE000)
        refuse(p, "a lone surrogate");
    return v;
}

/* Characters in a row that have one general category. */
struct run {
    uint32_t lo, hi;
    char of[2];
};

enum { MAX_RUNS = 8192 };

static struct run runs_made[MAX_RUNS];
static uint32_t n_runs_made;

static void make_runs(void)
{
    struct run *r = runs_made;
    for (uint32_t cp = 0; cp <= MAX_CP; cp++) {
        if (cp == 0xD800) /* no text contains surrogates */
            cp = 0xE000;
        const char *of = utf8proc_category_string((utf8proc_int32_t)cp);
        bool same = n_runs_made > 0 && memcmp(r->of, of, 2) == 0 && r->hi + 1 == cp;
        if (!same) {
            CHECK(n_runs_made < MAX_RUNS);
            r = &runs_made[n_runs_made++];
            *r = (struct run){.lo = cp, .of = {of[0], of[1]}};
        }
        r->hi = cp;
    }
}

/* Returns the categories of all characters: asking for each one takes 15 ms, so it is done once in
 * a process. */
static const struct run *category_runs(uint32_t *n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    CHECK(pthread_once(&once, make_runs) == 0);
    *n = n_runs_made;
    return runs_made;
}

/* Adds a Unicode property, as in \p{Lu}: general categories by their short or long names. */
static void set_add_property(struct parser *p, struct cp_set *s, bool negated)
{
    static const struct {
        const char *name, *as;
    } longer[] = {{"Letter", "L"},
                  {"Alphabetic", "L"},
                  {"Uppercase_Letter", "Lu"},
                  {"Uppercase", "Lu"},
                  {"Lowercase_Letter", "Ll"},
                  {"Lowercase", "Ll"},
                  {"Number", "N"},
                  {"Decimal_Number", "Nd"},
                  {"digit", "Nd"},
                  {"Punctuation", "P"},
                  {"Symbol", "S"},
                  {"Separator", "Z"},
                  {"Space_Separator", "Zs"},
                  {"Mark", "M"},
                  {"Other", "C"},
                  {"Control", "Cc"},
                  {"cntrl", "Cc"}};
    char name[40] = "";
    struct cp_set c = {0};
    if (!eat(p, "{"))
        bad(p, "\\p needs {");
    size_t n = 0;
    for (; peek(p) != '}'; p->at++) {
        if (peek(p) < 0 || n == sizeof name - 1)
            refuse(p, "an unknown Unicode property");
        name[n++] = p->text[p->at];
    }
    p->at++;
    const char *as = strncmp(name, "gc=", 3) == 0 ? name + 3 : name;
    as = strncmp(name, "General_Category=", 17) == 0 ? name + 17 : as;
    bool approximate = strcmp(as, "Alphabetic") == 0 || strcmp(as, "Uppercase") == 0 ||
                       strcmp(as, "Lowercase") == 0; /* wider than a category */
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
        if (strcmp(as, longer[i].name) == 0)
            as = longer[i].as;
    if (approximate || strlen(as) > 2 || strchr("LMNPSZC", as[0]) == NULL || as[0] == 0)
        refuse(p, "an unknown Unicode property");
    uint32_t n_runs;
    const struct run *runs = category_runs(&n_runs);
    for (uint32_t i = 0; i < n_runs; i++)
        if (runs[i].of[0] == as[0] && (as[1] == 0 || runs[i].of[1] == as[1]))
            set_add(p->b, &c, runs[i].lo, runs[i].hi);
    set_sort(&c);
    if (c.n == 0)
        refuse(p, "an unknown Unicode property");
    if (negated)
        set_negate(p->b, &c);
    for (uint32_t i = 0; i < c.n; i++)
        set_add(p->b, s, c.at[i].lo, c.at[i].hi);
}

/* Reads what follows a backslash. Adds it to *s, and returns true if it is a single character. */
static bool escape(struct parser *p, struct cp_set *s, bool in_class)
{
    static const char plain[] = "tnrfv0", as[] = "\t\n\r\f\v";
    uint32_t c = next_cp(p);
    if (c < 0x80 && strchr("dDwWsS", (int)c) != NULL && c != 0) {
        set_add_class(p->b, s, (char)c);
        return false;
    }
    if (c == 'p' || c == 'P') {
        set_add_property(p, s, c == 'P');
        return false;
    }
    const char *at = c < 0x80 && c != 0 ? strchr(plain, (int)c) : NULL;
    if (at != NULL && (c != '0' || peek(p) < '0' || peek(p) > '9'))
        c = (uint32_t)as[at - plain];
    else if (c == 'x')
        c = hex_digits(p, 2);
    else if (c == 'u')
        c = unicode_escape(p);
    else if (c == 'c') {
        int letter = peek(p) | 0x20;
        if (letter < 'a' || letter > 'z')
            bad(p, "\\c needs a letter");
        c = (uint32_t)(letter - 'a' + 1);
        p->at++;
    } else if (c == 'b' && in_class)
        c = '\b';
    else if (c == 'b' || c == 'B')
        refuse(p, "a word boundary");
    else if (c == 'k' || (c >= '0' && c <= '9'))
        refuse(p, "a back reference");
    else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')
        refuse(p, "an escape that ECMA-262 does not know");
    set_add(p->b, s, c, c);
    return true;
}

static struct tree *class_of(struct parser *p)
{
    struct tree *t = tree_new(p, T_SET, NULL, NULL);
    bool negated = eat(p, "^");
    while (!eat(p, "]")) {
        struct cp_set lo = {0}, hi = {0};
        bool single = true;
        if (eat(p, "\\")) {
            single = escape(p, &lo, true);
        } else {
            uint32_t c = next_cp(p);
            set_add(p->b, &lo, c, c);
        }
        bool range = peek(p) == '-' && p->at + 1 < p->n && p->text[p->at + 1] != ']';
        if (range && single) {
            p->at++;
            if (eat(p, "\\")) {
                if (!escape(p, &hi, true))
                    bad(p, "a range ends in a class");
            } else {
                uint32_t c = next_cp(p);
                set_add(p->b, &hi, c, c);
            }
            if (hi.at[0].lo < lo.at[0].lo)
                bad(p, "a range is out of order");
            lo.at[0].hi = hi.at[0].hi;
        }
        for (uint32_t i = 0; i < lo.n; i++)
            set_add(p->b, &t->set, lo.at[i].lo, lo.at[i].hi);
    }
    set_sort(&t->set);
    if (negated)
        set_negate(p->b, &t->set);
    return t;
}

static struct tree *alternatives(struct parser *p);

static struct tree *group(struct parser *p)
{
    enum tree_kind kind = T_CAT;
    if (++p->depth > MAX_DEPTH)
        refuse(p, "too many nested groups");
    if (eat(p, "?=")) {
        kind = T_AHEAD;
    } else if (eat(p, "?!")) {
        kind = T_NOT_AHEAD;
    } else if (eat(p, "?<=") || eat(p, "?<!")) {
        refuse(p, "a look behind");
    } else if (eat(p, "?<") || eat(p, "?P<")) {
        while (peek(p) >= 0 && peek(p) != '>')
            p->at++;
        if (!eat(p, ">"))
            bad(p, "a group's name has no end");
    } else if (peek(p) == '?' && !eat(p, "?:")) {
        refuse(p, "a flag or an unknown kind of group");
    }
    struct tree *t = alternatives(p);
    if (!eat(p, ")"))
        bad(p, "a group has no end");
    p->depth--;
    return kind == T_CAT ? t : tree_new(p, kind, t, NULL);
}

static struct tree *atom(struct parser *p)
{
    struct tree *t;
    if (eat(p, "("))
        return group(p);
    if (eat(p, "["))
        return class_of(p);
    if (eat(p, "^"))
        return tree_new(p, T_START, NULL, NULL);
    if (eat(p, "$"))
        return tree_new(p, T_END, NULL, NULL);
    t = tree_new(p, T_SET, NULL, NULL);
    if (eat(p, ".")) {
        set_add(p->b, &t->set, '\n', '\n');
        set_add(p->b, &t->set, '\r', '\r');
        set_add(p->b, &t->set, 0x2028, 0x2029);
        set_negate(p->b, &t->set);
    } else if (eat(p, "\\")) {
        escape(p, &t->set, false);
        set_sort(&t->set);
    } else {
        if (peek(p) == '*' || peek(p) == '+' || peek(p) == '?')
            bad(p, "nothing to repeat");
        uint32_t c = next_cp(p);
        set_add(p->b, &t->set, c, c);
    }
    return t;
}

/* Reads {n}, {n,} or {n,m}; other text behind a brace is no count. */
static bool count_of(struct parser *p, int32_t *min, int32_t *max)
{
    size_t at = p->at + 1;
    int64_t v[2] = {-1, -1};
    int k = 0;
    if (peek(p) != '{')
        return false;
    for (; at < p->n && p->text[at] != '}'; at++) {
        char c = p->text[at];
        if (c == ',' && k == 0 && v[0] >= 0)
            k = 1;
        else if (c >= '0' && c <= '9')
            v[k] = MIN(MAX(v[k], 0) * 10 + (c - '0'), (int64_t)MAX_COUNT + 1);
        else
            return false;
    }
    if (at == p->n || v[0] < 0)
        return false;
    p->at = at + 1;
    if (v[0] > MAX_COUNT || v[1] > MAX_COUNT)
        build_fault(p->b, ERR_LIMIT, "a pattern repeats more than %d times", MAX_COUNT);
    if (k == 1 && v[1] >= 0 && v[1] < v[0])
        bad(p, "a count is out of order");
    *min = (int32_t)v[0];
    *max = k == 0 ? *min : (int32_t)v[1];
    return true;
}

static struct tree *repeated(struct parser *p)
{
    struct tree *t = atom(p);
    for (;;) {
        int32_t min = 0, max = -1;
        if (eat(p, "+"))
            min = 1;
        else if (eat(p, "?"))
            max = 1;
        else if (!eat(p, "*") && !count_of(p, &min, &max))
            return t;
        eat(p, "?"); /* a lazy repetition matches the same texts */
        if (t->kind >= T_START)
            refuse(p, "a repeated assertion");
        t = tree_new(p, T_REPEAT, t, NULL);
        t->min = min;
        t->max = max;
    }
}

static struct tree *sequence(struct parser *p)
{
    struct tree *t = NULL;
    while (peek(p) >= 0 && peek(p) != '|' && peek(p) != ')') {
        struct tree *next = repeated(p);
        t = t == NULL ? next : tree_new(p, T_CAT, t, next);
    }
    return t == NULL ? tree_new(p, T_EMPTY, NULL, NULL) : t;
}

static struct tree *alternatives(struct parser *p)
{
    struct tree *t = sequence(p);
    while (eat(p, "|"))
        t = tree_new(p, T_ALT, t, sequence(p));
    return t;
}

/* --- the NFA ------------------------------------------------------------------------ */

enum nfa_kind { N_BYTES, N_SPLIT, N_START, N_END, N_MATCH };

/* A byte from lo to hi leads to next. */
struct nfa_way {
    uint8_t lo, hi;
    uint32_t next;
};

struct nfa_node {
    enum nfa_kind kind;
    uint32_t next, other; /* N_BYTES: `other` of the ways from `next` on */
};

struct nfa {
    struct parser *p;
    struct nfa_node *at;
    struct nfa_way *ways;
    uint32_t n, cap, n_ways, cap_ways;
};

static uint32_t nfa_new(struct nfa *f, enum nfa_kind kind, uint32_t next, uint32_t other)
{
    if (f->n == MAX_NFA)
        build_fault(f->p->b, ERR_LIMIT, "the pattern \"%.*s\" is too large",
                    (int)MIN(f->p->n, (size_t)120), f->p->text);
    f->at = build_grow(f->p->b, f->at, &f->cap, f->n, sizeof *f->at);
    f->at[f->n] = (struct nfa_node){.kind = kind, .next = next, .other = other};
    return f->n++;
}

/* One node for all bytes of a set keeps the subsets small. */
static uint32_t nfa_bytes(struct nfa *f, const struct nfa_way *ways, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        f->ways = build_grow(f->p->b, f->ways, &f->cap_ways, f->n_ways, sizeof *f->ways);
        f->ways[f->n_ways++] = ways[i];
    }
    return nfa_new(f, N_BYTES, f->n_ways - n, n);
}

/* A set of characters as nodes over their bytes. After each byte at most one node takes the next
 * one, so that the subsets stay small. */
struct utf8_set {
    struct nfa *f;
    const struct cp_set *set; /* sorted */
    uint32_t next;
    uint32_t any[4]; /* any k continuing bytes; 0: not made yet */
};

enum { NO_WAY = UINT32_MAX };

static uint32_t any_tail(struct utf8_set *u, int k)
{
    if (k == 0)
        return u->next;
    if (u->any[k] == 0)
        u->any[k] = nfa_bytes(u->f, &(struct nfa_way){0x80, 0xBF, any_tail(u, k - 1)}, 1);
    return u->any[k];
}

/* Returns the first range that ends at cp or behind it. */
static uint32_t range_from(const struct cp_set *s, uint32_t cp)
{
    uint32_t lo = 0, hi = s->n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (s->at[mid].hi < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static uint32_t tail(struct utf8_set *u, uint32_t first, int k);

/* Returns the node behind the byte of a block: the 64^k characters from `first` on. */
static uint32_t block(struct utf8_set *u, uint32_t first, int k)
{
    const struct cp_set *s = u->set;
    uint32_t i = range_from(s, first), last = first + (1u << (6 * k)) - 1;
    if (i == s->n || s->at[i].lo > last)
        return NO_WAY;
    return s->at[i].lo <= first && s->at[i].hi >= last ? any_tail(u, k) : tail(u, first, k);
}

/* Adds the ways of n bytes from lo on, which begin blocks of 64^k characters. Returns how many
 * there are then. */
static uint32_t add_ways(struct utf8_set *u, uint32_t lo, uint32_t n, uint32_t first, int k,
                         struct nfa_way *ways, uint32_t n_ways)
{
    for (uint32_t v = 0, before = NO_WAY; v < n; v++) {
        uint32_t to = block(u, first + (v << (6 * k)), k);
        if (to != NO_WAY && to == before)
            ways[n_ways - 1].hi++;
        else if (to != NO_WAY)
            ways[n_ways++] = (struct nfa_way){(uint8_t)(lo + v), (uint8_t)(lo + v), to};
        before = to;
    }
    return n_ways;
}

/* Returns the node of the first of k continuing bytes. */
static uint32_t tail(struct utf8_set *u, uint32_t first, int k)
{
    struct nfa_way ways[64];
    return nfa_bytes(u->f, ways, add_ways(u, 0x80, 64, first, k - 1, ways, 0));
}

/* No text contains surrogates. */
static uint32_t nfa_set(struct nfa *f, const struct cp_set *s, uint32_t next)
{
    static const struct {
        uint32_t lo, hi; /* characters of one size */
        uint32_t lead, n, base;
        int k; /* continuing bytes */
    } sizes[] = {{0, 0x7F, 0, 128, 0, 0},
                 {0x80, 0x7FF, 0xC2, 30, 0x80, 1},
                 {0x800, 0xFFFF, 0xE0, 16, 0, 2},
                 {0x10000, MAX_CP, 0xF0, 5, 0, 3}};
    struct nfa_way ways[256];
    uint32_t n = 0;
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++) {
        struct cp_set in = {0};
        for (uint32_t i = range_from(s, sizes[z].lo);
             i < s->n && s->at[i].lo <= sizes[z].hi; i++) {
            uint32_t lo = MAX(s->at[i].lo, sizes[z].lo), hi = MIN(s->at[i].hi, sizes[z].hi);
            if (lo < 0xD800 && hi >= 0xD800) {
                set_add(f->p->b, &in, lo, 0xD7FF);
                lo = 0xE000;
            }
            lo = lo >= 0xD800 && lo < 0xE000 ? 0xE000 : lo;
            if (lo <= hi)
                set_add(f->p->b, &in, lo, hi);
        }
        struct utf8_set u = {.f = f, .set = &in, .next = next};
        if (in.n > 0)
            n = add_ways(&u, sizes[z].lead, sizes[z].n, sizes[z].base, sizes[z].k, ways, n);
    }
    return nfa_bytes(f, ways, n);
}

static uint32_t nfa_of(struct nfa *f, const struct tree *t, uint32_t next)
{
    const uint32_t end = next;
    switch (t->kind) {
    case T_EMPTY:
        return next;
    case T_SET:
        return nfa_set(f, &t->set, next);
    case T_CAT:
        return nfa_of(f, t->one, nfa_of(f, t->other, next));
    case T_ALT:
        return nfa_new(f, N_SPLIT, nfa_of(f, t->one, next), nfa_of(f, t->other, next));
    case T_REPEAT:
        if (t->max < 0) {
            uint32_t loop = nfa_new(f, N_SPLIT, 0, next);
            uint32_t body = nfa_of(f, t->one, loop);
            f->at[loop].next = body;
            next = loop;
        }
        /* What may be left out leads behind all repetitions, so that few nodes follow each. */
        for (int32_t i = t->min; i < t->max; i++)
            next = nfa_new(f, N_SPLIT, nfa_of(f, t->one, next), end);
        for (int32_t i = 0; i < t->min; i++) {
            uint32_t before = next;
            next = nfa_of(f, t->one, next);
            if (next == before) /* the part is empty, and so are its repetitions */
                break;
        }
        return next;
    case T_START:
        return nfa_new(f, N_START, next, 0);
    case T_END:
        return nfa_new(f, N_END, next, 0);
    case T_AHEAD:
    case T_NOT_AHEAD:
        refuse(f->p, "a look ahead that does not follow ^ at the beginning");
    }
    return next;
}

/* --- subsets ------------------------------------------------------------------------ */

struct subsets {
    struct nfa *f;
    uint32_t *seen; /* [nodes] round in which a node was visited */
    uint32_t round;
    uint32_t *stack;
    uint32_t *list, n; /* the set that is being made */
    /* sets so far: members of set i are all[first[i]] to all[first[i + 1]] */
    uint32_t *all, n_all, cap_all;
    uint32_t *first, n_sets, cap_sets;
    uint32_t *slots, mask;
};

/* Adds a node and all that follows it without a byte. */
static void reach(struct subsets *s, uint32_t node, bool at_start, bool at_end, bool *match)
{
    uint32_t n = 0;
    s->stack[n++] = node;
    while (n > 0) {
        uint32_t id = s->stack[--n];
        const struct nfa_node *k = &s->f->at[id];
        if (s->seen[id] == s->round)
            continue;
        s->seen[id] = s->round;
        if (k->kind == N_SPLIT) {
            s->stack[n++] = k->next;
            s->stack[n++] = k->other;
        } else if ((k->kind == N_START && at_start) || (k->kind == N_END && at_end)) {
            s->stack[n++] = k->next;
        } else if (k->kind == N_MATCH) {
            *match = true;
            s->list[s->n++] = id;
        } else if (k->kind != N_START) {
            s->list[s->n++] = id;
        }
    }
}

/* The order of a set's members does not matter. */
static uint32_t hash_list(const uint32_t *list, uint32_t n)
{
    uint32_t h = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t x = list[i] * 0x9E3779B1u;
        h += (x ^ x >> 15) * 0x85EBCA77u;
    }
    return h ^ h >> 13;
}

/* Returns the number of the set in s->list, whose members, and only they, were seen in this round
 * among nodes of their kinds. */
static uint32_t set_number(struct build *b, struct subsets *s)
{
    build_work(b, s->n + 4);
    if (s->n_sets * 2 >= s->mask) {
        s->mask = s->mask == 0 ? 1023 : s->mask * 2 + 1;
        s->slots = build_alloc(b, (s->mask + 1u) * sizeof *s->slots);
        for (uint32_t i = 0; i < s->n_sets; i++) {
            uint32_t at = hash_list(s->all + s->first[i], s->first[i + 1] - s->first[i]) &
                          s->mask;
            while (s->slots[at] != 0)
                at = (at + 1) & s->mask;
            s->slots[at] = i + 1;
        }
    }
    uint32_t at = hash_list(s->list, s->n) & s->mask;
    for (; s->slots[at] != 0; at = (at + 1) & s->mask) {
        uint32_t i = s->slots[at] - 1, k = s->first[i];
        while (k < s->first[i + 1] && s->seen[s->all[k]] == s->round)
            k++;
        if (s->first[i + 1] - s->first[i] == s->n && k == s->first[i + 1])
            return i;
    }
    if (s->n_sets == DFA_MAX_STATES)
        build_fault(b, ERR_LIMIT, "the pattern \"%.*s\" is too large: more than %d states",
                    (int)MIN(s->f->p->n, (size_t)120), s->f->p->text, DFA_MAX_STATES);
    for (uint32_t i = 0; i < s->n; i++) {
        s->all = build_grow(b, s->all, &s->cap_all, s->n_all, sizeof *s->all);
        s->all[s->n_all++] = s->list[i];
    }
    s->first = build_grow(b, s->first, &s->cap_sets, s->n_sets + 1, sizeof *s->first);
    s->first[s->n_sets + 1] = s->n_all;
    s->slots[at] = ++s->n_sets;
    return s->n_sets - 1;
}

/* Returns whether the text may end in set i. */
static bool ends_in(struct subsets *s, uint32_t i, bool at_start)
{
    bool match = false;
    uint32_t n = s->n;
    s->round++;
    for (uint32_t k = s->first[i]; k < s->first[i + 1]; k++)
        reach(s, s->all[k], at_start, true, &match);
    s->n = n;
    return match;
}

static uint32_t byte_classes(const struct nfa *f, uint8_t cls[256])
{
    bool border[257] = {true};
    for (uint32_t i = 0; i < f->n_ways; i++)
        border[f->ways[i].lo] = border[f->ways[i].hi + 1] = true;
    uint32_t n = 0;
    for (int c = 0; c < 256; c++) {
        n += border[c];
        cls[c] = (uint8_t)(n - 1);
    }
    return n;
}

/* The nodes behind the members of one set, by the class of their byte: those of class c are
 * at[first[c]] to at[first[c + 1]]. */
struct behind {
    uint32_t first[257];
    uint32_t *at, cap;
    uint32_t
        *alone; /* [nodes] number of the set that a node alone leads to; 0: not made yet */
};

static void behind_set(struct build *b, const struct subsets *s, const struct dfa *d,
                       uint32_t i, struct behind *to)
{
    uint32_t n[257] = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t k = s->first[i]; k < s->first[i + 1]; k++) {
            const struct nfa_node *x = &s->f->at[s->all[k]];
            for (uint32_t w = 0; x->kind == N_BYTES && w < x->other; w++) {
                const struct nfa_way *way = &s->f->ways[x->next + w];
                for (uint32_t c = d->cls[way->lo]; c <= d->cls[way->hi]; c++) {
                    if (pass == 1)
                        to->at[to->first[c] + n[c]] = way->next;
                    n[c]++;
                }
            }
        }
        if (pass == 1)
            break;
        to->first[0] = 0;
        for (uint32_t c = 0; c < d->n_cls; c++) {
            to->first[c + 1] = to->first[c] + n[c];
            n[c] = 0;
        }
        uint32_t total = to->first[d->n_cls];
        if (total > to->cap) {
            to->cap = total * 2;
            to->at = build_alloc(b, to->cap * sizeof *to->at);
        }
    }
}

/* Returns the number of the set behind a byte of class c. before: that of class c - 1. */
static uint32_t set_behind(struct build *b, struct subsets *s, struct behind *to,
                           uint32_t c, uint32_t before)
{
    uint32_t n = to->first[c + 1] - to->first[c];
    bool match = false;
    if (n == 0)
        return 0;
    const uint32_t *at = to->at + to->first[c];
    if (n == 1 && to->alone[at[0]] != 0)
        return to->alone[at[0]];
    if (c > 0 && to->first[c] - to->first[c - 1] == n &&
        memcmp(at - n, at, n * sizeof *at) == 0)
        return before;
    s->n = 0;
    s->round++;
    for (uint32_t i = 0; i < n; i++)
        reach(s, at[i], false, false, &match);
    build_work(b, 16 * (uint64_t)n);
    uint32_t number = set_number(b, s);
    if (n == 1)
        to->alone[at[0]] = number;
    return number;
}

static const struct dfa *dfa_of_nfa(struct build *b, struct nfa *f, uint32_t start)
{
    struct dfa *d = build_alloc(b, sizeof *d);
    struct subsets s = {.f = f};
    uint32_t cap = 0;
    bool match = false;
    struct behind behind = {0};
    s.seen = build_alloc(b, f->n * sizeof *s.seen);
    s.stack = build_alloc(b, (size_t)f->n * 2 * sizeof *s.stack + 16);
    s.list = build_alloc(b, f->n * sizeof *s.list);
    s.first = build_grow(b, s.first, &s.cap_sets, 0, sizeof *s.first);
    d->n_cls = byte_classes(f, d->cls);
    behind.alone = build_alloc(b, f->n * sizeof *behind.alone);
    set_number(b, &s); /* the empty set is dead */
    s.round++;
    reach(&s, start, true, false, &match);
    /* The start has a set of its own, since ^ and $ may both hold there. */
    d->start = set_number(b, &s);
    for (uint32_t i = 0; i < s.n_sets; i++) {
        d->to = build_grow(b, d->to, &cap, i, d->n_cls * sizeof *d->to);
        behind_set(b, &s, d, i, &behind);
        build_work(b, behind.first[d->n_cls] + d->n_cls);
        for (uint32_t c = 0, set = 0; c < d->n_cls; c++)
            d->to[i * d->n_cls + c] = set = set_behind(b, &s, &behind, c, set);
    }
    d->n = s.n_sets;
    d->accepts = build_alloc(b, d->n);
    for (uint32_t i = 1; i < d->n; i++)
        d->accepts[i] = ends_in(&s, i, false);
    /* A later set may equal the start's; it does not accept the empty text of the start. */
    if (ends_in(&s, d->start, true) != d->accepts[d->start]) {
        uint32_t *to = build_alloc(b, (size_t)(d->n + 1) * d->n_cls * sizeof *to);
        bool *accepts = build_alloc(b, d->n + 1);
        memcpy(to, d->to, (size_t)d->n * d->n_cls * sizeof *to);
        memcpy(to + (size_t)d->n * d->n_cls, d->to + (size_t)d->start * d->n_cls,
               d->n_cls * sizeof *to);
        memcpy(accepts, d->accepts, d->n);
        accepts[d->n] = true;
        d->to = to;
        d->accepts = accepts;
        d->start = d->n++;
    }
    return dfa_minimize(b, d);
}

/* --- the whole ---------------------------------------------------------------------- */

static const struct dfa *of_tree(struct parser *p, const struct tree *t, bool before,
                                 bool after)
{
    scratch_begin(p->b); /* the tree is elsewhere */
    struct nfa f = {.p = p};
    struct tree any = {.kind = T_SET}, loop = {.kind = T_REPEAT, .one = &any, .max = -1};
    set_add(p->b, &any.set, 0, MAX_CP);
    uint32_t at = nfa_new(&f, N_MATCH, 0, 0);
    if (after)
        at = nfa_of(&f, &loop, at);
    at = nfa_of(&f, t, at);
    if (before)
        at = nfa_of(&f, &loop, at);
    return dfa_of_nfa(p->b, &f, at);
}

/* What any text may follow (ends) or precede matches X{a,b} where it matches X{a}: the other
 * repetitions are part of that text. Returns the tree without them. */
static struct tree *shorten(struct parser *p, struct tree *t, bool ends)
{
    switch (t->kind) {
    case T_CAT: {
        struct tree **edge = ends ? &t->other : &t->one;
        *edge = shorten(p, *edge, ends);
        if ((*edge)->kind != T_EMPTY)
            return t;
        return shorten(p, ends ? t->one : t->other, ends);
    }
    case T_ALT:
        t->one = shorten(p, t->one, ends);
        t->other = shorten(p, t->other, ends);
        return t;
    case T_REPEAT:
        if (t->min == 0)
            return tree_new(p, T_EMPTY, NULL, NULL);
        t->max = t->min;
        if (t->min > 1)
            return t;
        return shorten(p, t->one, ends);
    default:
        return t;
    }
}

/* Takes the leading ^ and the lookaheads behind it off a sequence. Returns what remains, NULL if
 * nothing does. */
static struct tree *strip(struct tree *t, bool *start, struct tree **aheads, int *n)
{
    if (t->kind == T_CAT) {
        struct tree *one = strip(t->one, start, aheads, n);
        if (one != NULL) {
            t->one = one;
            return t;
        }
        return strip(t->other, start, aheads, n);
    }
    if (t->kind == T_START && *n == 0) {
        *start = true;
        return NULL;
    }
    if ((t->kind == T_AHEAD || t->kind == T_NOT_AHEAD) && *start && *n < 16) {
        aheads[(*n)++] = t;
        return NULL;
    }
    return t;
}

static bool has_ahead(const struct tree *t)
{
    return t != NULL && (t->kind == T_AHEAD || t->kind == T_NOT_AHEAD ||
                         has_ahead(t->one) || has_ahead(t->other));
}

/* Returns the DFA of an expression that may begin with ^ and lookaheads. */
static const struct dfa *with_aheads(struct parser *p, struct tree *t, bool whole)
{
    struct tree *aheads[16];
    bool start = whole;
    int n = 0;
    if (!has_ahead(t)) {
        if (!whole)
            t = shorten(p, shorten(p, t, true), false);
        return of_tree(p, t, !whole, !whole);
    }
    if (t->kind == T_ALT)
        return dfa_combine(p->b, with_aheads(p, t->one, whole),
                           with_aheads(p, t->other, whole), DFA_OR);
    t = strip(t, &start, aheads, &n);
    struct tree empty = {.kind = T_EMPTY};
    const struct dfa *d = of_tree(p, t == NULL ? &empty : t, !start, !whole);
    for (int i = 0; i < n; i++)
        d = dfa_combine(p->b, d, of_tree(p, aheads[i]->one, false, true),
                        aheads[i]->kind == T_AHEAD ? DFA_AND : DFA_MINUS);
    return d;
}

const struct dfa *dfa_of_regex(struct build *b, const char *text, size_t n, bool whole)
{
    struct parser p = {.b = b, .text = text, .n = n};
    if (n > MAX_PATTERN)
        build_fault(b, ERR_LIMIT, "a pattern has %zu bytes; at most %d are allowed", n,
                    MAX_PATTERN);
    struct tree *t = alternatives(&p);
    if (p.at < n)
        bad(&p, "a ) without its (");
    return with_aheads(&p, t, whole);
}

bool dfa_of_counted(struct build *b, const char *text, size_t n, const struct dfa **out,
                    int32_t *min, int32_t *max)
{
    enum { LARGE = 16 };
    struct parser p = {.b = b, .text = text, .n = n};
    if (n > MAX_PATTERN || n < 5 || text[0] != '^' || text[n - 1] != '$')
        return false;
    struct tree *t = alternatives(&p);
    struct tree *r = NULL;
    if (t->kind == T_CAT && t->other->kind == T_END && t->one->kind == T_CAT &&
        t->one->one->kind == T_START)
        r = t->one->other;
    if (p.at < n || r == NULL || r->kind != T_REPEAT || r->one->kind != T_SET ||
        MAX(r->min, r->max) < LARGE)
        return false;
    *min = r->min;
    *max = r->max < 0 ? REPEAT_ENDLESS : r->max;
    r->min = 0;
    r->max = -1;
    *out = of_tree(&p, r, false, false);
    return true;
}

const struct dfa *dfa_of_chars(struct build *b, const struct cp_range *ranges, uint32_t n,
                               bool negated)
{
    struct parser p = {.b = b, .text = ""};
    struct tree t = {.kind = T_SET};
    for (uint32_t i = 0; i < n; i++)
        set_add(b, &t.set, ranges[i].lo, ranges[i].hi);
    if (negated)
        set_negate(b, &t.set);
    set_sort(&t.set);
    return of_tree(&p, &t, false, false);
}
