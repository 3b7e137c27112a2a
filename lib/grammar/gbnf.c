/* gbnf.c - GBNF grammars.
 *
 * GBNF is the notation of llama.cpp's grammars:
 *
 *     rule ::= alternatives          a rule; it ends at the end of the line, but for parentheses
 *     a b | c                        sequence, alternatives
 *     "text"  [a-z] [^"\\]  .        texts, characters; escapes \n \r \t \" \\ \[ \] \xHH \uHHHH \UHHHHHHHH
 *     a* a+ a? a{2} a{2,} a{2,5}     repetition
 *     # comment                      to the end of the line
 *
 * Refused by name: rules that begin with themselves (left recursion), which no walk from left to
 * right ends. */
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/utf8.h"
#include "grammar/dfa.h"

enum { MAX_GBNF_DEPTH = 200, MAX_GBNF_COUNT = 100000 };

struct rule_name {
    const char *name;
    size_t n;
    uint32_t rule;
    bool defined;
};

/* A tree, since nodes are made from the end. */
enum part_kind { P_TEXT, P_CHARS, P_CALL, P_SEQUENCE, P_EITHER, P_REPEAT };

struct part {
    enum part_kind kind;
    struct part *first, *next; /* first of its parts; next of its own sequence */
    const char *text;
    size_t n;
    struct cp_range *ranges;
    uint32_t n_ranges, cap;
    bool negated;
    uint32_t rule;
    int32_t min, max;
};

struct reader {
    struct build *b;
    const char *text;
    size_t n, at;
    int depth;
    struct rule_name *names;
    uint32_t n_names, cap;
};

static _Noreturn void bad(struct reader *r, const char *what)
{
    int line = 1;
    for (size_t i = 0; i < r->at && i < r->n; i++)
        line += r->text[i] == '\n';
    build_fault(r->b, ERR_USAGE, "the grammar is malformed in line %d: %s", line, what);
}

static int peek(const struct reader *r)
{
    return r->at < r->n ? (unsigned char)r->text[r->at] : -1;
}

/* Skips blanks and comments; lines: also the ends of lines. */
static void skip(struct reader *r, bool lines)
{
    for (;;) {
        int c = peek(r);
        if (c == '#')
            while (peek(r) >= 0 && peek(r) != '\n')
                r->at++;
        else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n'))
            r->at++;
        else
            return;
    }
}

static bool is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '-' || c == '_';
}

static struct rule_name *name_of(struct reader *r)
{
    size_t from = r->at;
    while (is_name(peek(r)))
        r->at++;
    size_t n = r->at - from;
    if (n == 0)
        bad(r, "a name is expected");
    for (uint32_t i = 0; i < r->n_names; i++)
        if (r->names[i].n == n && memcmp(r->names[i].name, r->text + from, n) == 0)
            return &r->names[i];
    r->names = build_grow(r->b, r->names, &r->cap, r->n_names, sizeof *r->names);
    r->names[r->n_names] = (struct rule_name){
        .name = r->text + from, .n = n, .rule = rule_new(r->b)};
    return &r->names[r->n_names++];
}

static uint32_t hex_digits(struct reader *r, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++, r->at++) {
        int c = peek(r), low = c | 0x20;
        bool digit = c >= '0' && c <= '9';
        if (!digit && (low < 'a' || low > 'f'))
            bad(r, "hexadecimal digits are missing");
        v = v * 16 + (uint32_t)(digit ? c - '0' : low - 'a' + 10);
    }
    return v;
}

static uint32_t character(struct reader *r)
{
    uint32_t cp = 0;
    if (peek(r) == '\\') {
        static const char names[] = "nrt\"\\[]-^/", as[] = "\n\r\t\"\\[]-^/";
        r->at++;
        int c = peek(r);
        const char *at = c > 0 ? strchr(names, c) : NULL;
        if (at == NULL && c != 'x' && c != 'u' && c != 'U')
            bad(r, "an unknown escape");
        r->at++;
        cp = at != NULL ? (uint32_t)as[at - names]
                        : hex_digits(r, c == 'x'   ? 2
                                        : c == 'u' ? 4
                                                   : 8);
        if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
            bad(r, "no such character");
        return cp;
    }
    size_t len = r->at < r->n ? utf8_decode(r->text + r->at, r->n - r->at, &cp) : 0;
    if (len == 0 || cp == '\n')
        bad(r, "a text or a set of characters has no end");
    r->at += len;
    return cp;
}

static struct part *part_new(struct reader *r, enum part_kind kind)
{
    struct part *p = build_alloc(r->b, sizeof *p);
    p->kind = kind;
    return p;
}

static struct part *text_part(struct reader *r)
{
    struct part *p = part_new(r, P_TEXT);
    char *out = build_alloc(r->b, r->n - r->at + 4);
    for (r->at++; peek(r) != '"';)
        p->n += utf8_encode(character(r), out + p->n);
    r->at++;
    p->text = out;
    return p;
}

static void range_add(struct reader *r, struct part *p, uint32_t lo, uint32_t hi)
{
    p->ranges = build_grow(r->b, p->ranges, &p->cap, p->n_ranges, sizeof *p->ranges);
    p->ranges[p->n_ranges++] = (struct cp_range){lo, hi};
}

static struct part *chars_part(struct reader *r)
{
    struct part *p = part_new(r, P_CHARS);
    r->at++;
    if (peek(r) == '^') {
        p->negated = true;
        r->at++;
    }
    while (peek(r) != ']') {
        uint32_t lo = character(r), hi = lo;
        if (peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at++;
            hi = character(r);
        }
        if (hi < lo)
            bad(r, "a range is out of order");
        range_add(r, p, lo, hi);
    }
    r->at++;
    return p;
}

static int32_t count(struct reader *r)
{
    int64_t v = -1;
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++)
        v = MIN(MAX(v, 0) * 10 + (peek(r) - '0'), (int64_t)MAX_GBNF_COUNT + 1);
    if (v > MAX_GBNF_COUNT)
        build_fault(r->b, ERR_LIMIT, "the grammar repeats a part more than %d times",
                    MAX_GBNF_COUNT);
    return (int32_t)v;
}

static struct part *either(struct reader *r, bool lines);

static struct part *repeated(struct reader *r, struct part *p, bool lines)
{
    for (;;) {
        skip(r, lines);
        int32_t min = 0, max = REPEAT_ENDLESS;
        int c = peek(r);
        if (c == '+') {
            min = 1;
        } else if (c == '?') {
            max = 1;
        } else if (c == '{') {
            r->at++;
            skip(r, false);
            min = count(r);
            skip(r, false);
            max = min;
            if (peek(r) == ',') {
                r->at++;
                skip(r, false);
                max = count(r);
                max = max < 0 ? REPEAT_ENDLESS : max;
                min = MAX(min, 0);
                skip(r, false);
            }
            if (peek(r) != '}' || min < 0 || max < min)
                bad(r, "a count must be {n}, {n,} or {n,m}");
        } else if (c != '*') {
            return p;
        }
        r->at++;
        struct part *q = part_new(r, P_REPEAT);
        q->first = p;
        q->min = min;
        q->max = max;
        p = q;
    }
}

static struct part *sequence(struct reader *r, bool lines)
{
    struct part *p = part_new(r, P_SEQUENCE), **end = &p->first;
    for (;;) {
        struct part *one;
        skip(r, lines);
        int c = peek(r);
        if (c == '"') {
            one = text_part(r);
        } else if (c == '[') {
            one = chars_part(r);
        } else if (c == '.') {
            r->at++;
            one = part_new(r, P_CHARS);
            one->negated = true;
        } else if (c == '(') {
            if (++r->depth > MAX_GBNF_DEPTH)
                bad(r, "too many nested parentheses");
            r->at++;
            one = either(r, true);
            if (peek(r) != ')')
                bad(r, "a parenthesis has no end");
            r->at++;
            r->depth--;
        } else if (is_name(c)) {
            one = part_new(r, P_CALL);
            one->rule = name_of(r)->rule;
        } else {
            return p;
        }
        *end = repeated(r, one, lines);
        end = &(*end)->next;
    }
}

static struct part *either(struct reader *r, bool lines)
{
    struct part *p = part_new(r, P_EITHER), **end = &p->first;
    *end = sequence(r, lines);
    for (;;) {
        size_t before = r->at;
        skip(r, lines);
        if (peek(r) != '|') {
            r->at = lines ? r->at : before;
            skip(r, lines);
            return p;
        }
        r->at++;
        skip(r, true);
        end = &(*end)->next;
        *end = sequence(r, lines);
    }
}

static uint32_t node_of(struct build *b, const struct part *p, uint32_t next)
{
    uint32_t at = NODE_ID_FAIL, n = 0;
    switch (p->kind) {
    case P_TEXT:
        return node_bytes(b, p->text, p->n, next);
    case P_CHARS:
        return dfa_embed(b, dfa_of_chars(b, p->ranges, p->n_ranges, p->negated), false,
                         next);
    case P_CALL:
        return node_call(b, p->rule, next);
    case P_SEQUENCE: {
        for (const struct part *q = p->first; q != NULL; q = q->next)
            n++;
        const struct part **all = build_alloc(b, (n + 1) * sizeof *all);
        n = 0;
        for (const struct part *q = p->first; q != NULL; q = q->next)
            all[n++] = q;
        while (n > 0)
            next = node_of(b, all[--n], next);
        return next;
    }
    case P_EITHER:
        for (const struct part *q = p->first; q != NULL; q = q->next) {
            uint32_t one = node_of(b, q, next);
            at = at == NODE_ID_FAIL ? one : node_either(b, at, one);
        }
        return at;
    case P_REPEAT: {
        if (p->max == 0)
            return next;
        uint32_t r = repeat_begin(b, p->min, p->max, next);
        repeat_end(b, r, node_of(b, p->first, repeat_again(b, r)));
        return r;
    }
    }
    return at;
}

/* --- left recursion ----------------------------------------------------------------- */

struct left {
    struct build *b;
    bool *nullable;  /* [rules] */
    uint8_t *colour; /* [rules] 1: on the way, 2: done */
    uint32_t *seen;  /* [nodes] rule + 1 that last visited the node */
    bool changed;
};

/* Goes from a node of a rule as far as no byte is needed. Returns false at a rule that is on the
 * way already. */
static bool goes_left(struct left *l, uint32_t rule, uint32_t node)
{
    const struct node *n = &l->b->nodes[node];
    if (l->seen[node] == rule + 1)
        return true;
    l->seen[node] = rule + 1;
    switch ((enum node_kind)n->kind) {
    case NODE_EDGES:
        return true;
    case NODE_SPLIT:
        for (uint32_t i = 0; i < n->n; i++)
            if (!goes_left(l, rule, l->b->lists[n->first + i]))
                return false;
        return true;
    case NODE_RETURN:
        l->changed |= !l->nullable[rule];
        l->nullable[rule] = true;
        return true;
    case NODE_CALL:
        if (l->colour != NULL && l->colour[n->body] == 1)
            return false;
        if (l->colour != NULL && l->colour[n->body] == 0) {
            l->colour[n->body] = 1;
            if (!goes_left(l, n->body, l->b->rules[n->body]))
                return false;
            l->colour[n->body] = 2;
        }
        return !l->nullable[n->body] || goes_left(l, rule, n->next);
    case NODE_REPEAT:
        return goes_left(l, rule, n->body) && (n->min > 0 || goes_left(l, rule, n->next));
    case NODE_AGAIN:
        return goes_left(l, rule, l->b->nodes[n->body].next);
    case NODE_COUNTER:
    case NODE_COUNT:
    case NODE_COUNTED:
    case NODE_UNIQUE:
    case NODE_ITEM:
    case NODE_ITEM_END:
    case NODE_UNIQUE_END: /* not of GBNF */
        break;
    }
    return true;
}

static void check_left_recursion(struct reader *r)
{
    struct left l = {.b = r->b};
    l.nullable = build_alloc(r->b, r->b->n_rules + 1);
    do {
        l.changed = false;
        l.seen = build_alloc(r->b, r->b->n_nodes * sizeof *l.seen);
        for (uint32_t i = 0; i < r->b->n_rules; i++)
            goes_left(&l, i, r->b->rules[i]);
    } while (l.changed);
    l.colour = build_alloc(r->b, r->b->n_rules + 1);
    l.seen = build_alloc(r->b, r->b->n_nodes * sizeof *l.seen);
    for (uint32_t i = 0; i < r->n_names; i++) {
        uint32_t rule = r->names[i].rule;
        if (l.colour[rule] != 0)
            continue;
        l.colour[rule] = 1;
        if (!goes_left(&l, rule, r->b->rules[rule]))
            build_fault(
                r->b, ERR_UNSUPPORTED,
                "the grammar's rule \"%.*s\" can begin with itself (left recursion); "
                "write it with * or +",
                (int)MIN(r->names[i].n, (size_t)100), r->names[i].name);
        l.colour[rule] = 2;
    }
}

/* --- the whole ------------------------------------------------------------------------------ */

uint32_t gbnf_root(struct build *b, const char *text, size_t n, uint32_t next)
{
    struct reader r = {.b = b, .text = text, .n = n};
    uint32_t root = UINT32_MAX;
    for (skip(&r, true); peek(&r) >= 0; skip(&r, true)) {
        uint32_t i = (uint32_t)(name_of(&r) - r.names);
        skip(&r, false);
        if (r.n - r.at < 3 || memcmp(r.text + r.at, "::=", 3) != 0)
            bad(&r, "::= is expected");
        r.at += 3;
        skip(&r, true);
        if (r.names[i].defined)
            bad(&r, "a rule is defined twice");
        r.names[i].defined = true;
        struct part *p = either(&r, false);
        if (peek(&r) >= 0 && peek(&r) != '\n')
            bad(&r, "an unexpected character");
        rule_set(b, r.names[i].rule, node_of(b, p, NODE_ID_RETURN));
    }
    for (uint32_t i = 0; i < r.n_names; i++) {
        if (!r.names[i].defined)
            build_fault(b, ERR_USAGE, "the grammar's rule \"%.*s\" is not defined",
                        (int)MIN(r.names[i].n, (size_t)100), r.names[i].name);
        if (r.names[i].n == 4 && memcmp(r.names[i].name, "root", 4) == 0)
            root = r.names[i].rule;
    }
    if (root == UINT32_MAX)
        build_fault(b, ERR_USAGE, "the grammar has no rule \"root\"");
    check_left_recursion(&r);
    return node_call(b, root, next);
}
