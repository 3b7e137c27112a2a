/* schema_emit.c - see schema.h: specs to nodes.
 *
 * The spelling of what is generated is docs/STRUCTURED.md's: keys in the order of the schema,
 * blanks only behind { [ , : and before } ], numbers without an exponent where they are bounded,
 * strings that a pattern or a list bounds in their shortest spelling. */
#include <stdio.h>
#include <string.h>

#include "base/minmax.h"
#include "grammar/schema.h"
#include "grammar/vocab.h"

enum {
    MAX_COUNTED = 64,  /* keys or elements that are counted by states of their own */
    MAX_FREE_KEYS = 5, /* keys without an order of their own */
    MAX_PATTERNS = 12, /* patternProperties that one object meets */
    MAX_REGIONS = 256,
    INDENT = 64, /* blanks behind a line's end */
    TABS = 16,
};

/* --- blanks and strings ------------------------------------------------------------- */

static uint32_t blank(struct build *b, char ch, uint32_t next)
{
    uint32_t id = node_range(b, (uint8_t)ch, (uint8_t)ch, next);
    b->nodes[id].blank = true;
    return id;
}

static uint32_t run_of(struct build *b, char ch, int32_t max, uint32_t next)
{
    uint32_t r = repeat_begin(b, 0, max, next);
    repeat_end(b, r, blank(b, ch, repeat_again(b, r)));
    return r;
}

/* Nothing, a space, or the end of a line with an indentation. One rule serves all places. */
static uint32_t blanks(struct build *b, uint32_t next)
{
    const uint32_t end = NODE_ID_RETURN;
    if (b->blanks_rule == 0) {
        b->blanks_rule = rule_new(b) + 1;
        const uint32_t indents[] = {run_of(b, ' ', INDENT, end),
                                    run_of(b, '\t', TABS, end)};
        const uint32_t ways[] = {end, blank(b, ' ', end),
                                 blank(b, '\n', node_split(b, indents, 2))};
        rule_set(b, b->blanks_rule - 1, node_split(b, ways, 3));
    }
    return node_call(b, b->blanks_rule - 1, next);
}

static uint32_t hex(struct build *b, uint32_t next)
{
    const struct edge e[] = {{'0', '9', next}, {'A', 'F', next}, {'a', 'f', next}};
    return node_edges(b, e, 3);
}

/* What follows a backslash: an escape of RFC 8259. A pair of surrogates is one character, and no
 * surrogate stands alone. */
static uint32_t escape(struct build *b, uint32_t next)
{
    uint32_t h1 = hex(b, next), h2 = hex(b, h1), h3 = hex(b, h2);
    const struct edge low_digit[] = {{'C', 'F', h2}, {'c', 'f', h2}};
    const struct edge low_d[] = {{'D', 'D', node_edges(b, low_digit, 2)},
                                 {'d', 'd', node_edges(b, low_digit, 2)}};
    uint32_t low = node_bytes(b, "\\u", 2, node_edges(b, low_d, 2));
    uint32_t high = hex(b, hex(b, low));
    const struct edge behind_d[] = {
        {'0', '7', h2}, {'8', '9', high}, {'A', 'B', high}, {'a', 'b', high}};
    uint32_t d = node_edges(b, behind_d, 4);
    const struct edge first[] = {{'0', '9', h3}, {'A', 'C', h3}, {'D', 'D', d},
                                 {'E', 'F', h3}, {'a', 'c', h3}, {'d', 'd', d},
                                 {'e', 'f', h3}};
    uint32_t u = node_edges(b, first, 7);
    const struct edge after[] = {{'"', '"', next}, {'/', '/', next}, {'\\', '\\', next},
                                 {'b', 'b', next}, {'f', 'f', next}, {'n', 'n', next},
                                 {'r', 'r', next}, {'t', 't', next}, {'u', 'u', u}};
    return node_edges(b, after, 9);
}

/* The same, where each character has one escape at most. */
static uint32_t plain_escape(struct build *b, uint32_t next)
{
    const struct edge low[] = {{'0', '7', next}, {'b', 'b', next}, {'e', 'f', next}};
    const struct edge high[] = {{'0', '9', next}, {'a', 'f', next}};
    const struct edge rest[] = {{'0', '0', node_edges(b, low, 3)},
                                {'1', '1', node_edges(b, high, 2)}};
    uint32_t u = node_bytes(b, "00", 2, node_edges(b, rest, 2));
    const struct edge after[] = {{'"', '"', next}, {'\\', '\\', next}, {'b', 'b', next},
                                 {'f', 'f', next}, {'n', 'n', next},   {'r', 'r', next},
                                 {'t', 't', next}, {'u', 'u', u}};
    return node_edges(b, after, 8);
}

/* One character of a string, as it is or escaped. */
static uint32_t character(struct build *b, bool plain, uint32_t next)
{
    uint32_t c1 = node_range(b, 0x80, 0xBF, next), c2 = node_range(b, 0x80, 0xBF, c1),
             c3 = node_range(b, 0x80, 0xBF, c2);
    const struct edge e[] = {
        {0x20, 0x21, next},
        {0x23, 0x5B, next},
        {'\\', '\\', plain ? plain_escape(b, next) : escape(b, next)},
        {0x5D, 0x7F, next},
        {0xC2, 0xDF, c1},
        {0xE0, 0xE0, node_range(b, 0xA0, 0xBF, c1)},
        {0xE1, 0xEC, c2},
        {0xED, 0xED, node_range(b, 0x80, 0x9F, c1)},
        {0xEE, 0xEF, c2},
        {0xF0, 0xF0, node_range(b, 0x90, 0xBF, c2)},
        {0xF1, 0xF3, c3},
        {0xF4, 0xF4, node_range(b, 0x80, 0x8F, c2)},
    };
    return node_edges(b, e, sizeof e / sizeof *e);
}

/* A string of min to max characters. */
static uint32_t any_string(struct build *b, bool plain, int32_t min, int32_t max,
                           uint32_t next)
{
    uint32_t r = repeat_begin(b, min, max, node_range(b, '"', '"', next));
    uint32_t body = character(b, plain, repeat_again(b, r));
    b->nodes[body].next = plain ? ESCAPES_SHORT : ESCAPES_ALL;
    repeat_end(b, r, body);
    return node_range(b, '"', '"', r);
}

uint32_t node_quoted(struct build *b, const char *text, size_t n, uint32_t next)
{
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char *out = build_alloc(b, n * 6 + 3);
    size_t at = 0;
    out[at++] = '"';
    for (size_t i = 0; i < n; i++) {
        const char *p = NULL;
        for (size_t k = 0; k < sizeof shorts - 1; k += 2)
            if (shorts[k] == text[i])
                p = &shorts[k + 1];
        if (p != NULL) {
            out[at++] = '\\';
            out[at++] = *p;
        } else if ((uint8_t)text[i] < 0x20) {
            at += (size_t)snprintf(out + at, 7, "\\u%04x", (unsigned)text[i]);
        } else {
            out[at++] = text[i];
        }
    }
    out[at++] = '"';
    return node_bytes(b, out, at, next);
}

/* --- lists of values ---------------------------------------------------------------- */

static uint32_t literal(struct schema *c, const struct json *v, bool integers,
                        uint32_t next)
{
    struct build *b = c->b;
    bool yes = false;
    size_t n = json_count(v);
    switch (json_kind(v)) {
    case JSON_KIND_NULL:
        return node_bytes(b, "null", 4, next);
    case JSON_KIND_BOOL:
        json_bool_of(v, &yes);
        return yes ? node_bytes(b, "true", 4, next) : node_bytes(b, "false", 5, next);
    case JSON_KIND_INT:
    case JSON_KIND_REAL: {
        struct decimal d = decimal_of(b, v);
        const char *text = decimal_text(b, &d);
        bool point = json_kind(v) == JSON_KIND_REAL && decimal_is_integer(&d) &&
                     !integers && !c->plain;
        uint32_t end = point ? node_either(b, next, node_bytes(b, ".0", 2, next)) : next;
        return node_bytes(b, text, strlen(text), end);
    }
    case JSON_KIND_STRING: {
        size_t bytes;
        const char *text = json_string_of(v, &bytes);
        return node_quoted(b, text, bytes, next);
    }
    case JSON_KIND_ARRAY:
        next = node_range(b, ']', ']', next);
        for (size_t i = n; i > 0; i--) {
            next = literal(c, json_at(v, i - 1), false, i == n ? blanks(b, next) : next);
            if (i > 1)
                next = node_range(b, ',', ',', blanks(b, next));
        }
        return node_range(b, '[', '[', blanks(b, next));
    case JSON_KIND_OBJECT: {
        const char **keys = build_alloc(b, (n + 1) * sizeof *keys);
        size_t i = 0;
        for (struct json_iter it = json_begin(v); json_next(&it);)
            keys[i++] = it.key;
        next = node_range(b, '}', '}', next);
        for (i = n; i > 0; i--) {
            next = literal(c, json_member(v, keys[i - 1]), false,
                           i == n ? blanks(b, next) : next);
            next = node_range(b, ':', ':', blanks(b, next));
            next = node_quoted(b, keys[i - 1], strlen(keys[i - 1]), next);
            if (i > 1)
                next = node_range(b, ',', ',', blanks(b, next));
        }
        return node_range(b, '{', '{', blanks(b, next));
    }
    }
    return NODE_ID_FAIL;
}

/* --- numbers and strings ------------------------------------------------------------ */

static bool is_excluded(const struct spec *s, bool value)
{
    bool b;
    for (const struct value_list *l = s->excluded; l != NULL; l = l->next)
        if (json_bool_of(l->value, &b) && b == value)
            return true;
    return false;
}

static const struct dfa *without_numbers(struct schema *c, const struct spec *s,
                                         const struct dfa *d)
{
    double v;
    for (const struct value_list *l = s->excluded; l != NULL; l = l->next) {
        if (!json_real_of(l->value, &v))
            continue;
        struct decimal x = decimal_of(c->b, l->value);
        char regex[800];
        snprintf(regex, sizeof regex, "%s%.350s%s%.350s%s", x.minus ? "-" : "", x.whole,
                 x.part[0] ? "\\." : "(\\.", x.part, x.part[0] ? "0*" : "0+)?");
        d = dfa_combine(c->b, d, dfa_of_regex(c->b, regex, strlen(regex), true), DFA_MINUS);
    }
    return d;
}

static bool excludes_number(const struct spec *s)
{
    double v;
    for (const struct value_list *l = s->excluded; l != NULL; l = l->next)
        if (json_real_of(l->value, &v))
            return true;
    return false;
}

static uint32_t number(struct schema *c, const struct spec *s, uint32_t next)
{
    /* With an exponent the number is that of a finite double. */
    static const char any[] =
        "-?((0|[1-9][0-9]*)(\\.[0-9]+)?|(0|[1-9][0-9]{0,7})(\\.[0-9]+)?[eE]"
        "(\\+?([0-9]{1,2}|[12][0-9]{2})|-([0-9]{1,2}|[12][0-9]{2}|3[0-2][0-9]))"
        "|[0-9](\\.[0-9]+)?[eE]\\+?30[0-7]"
        "|1\\.([0-6][0-9]*|7976931348623157)[eE]\\+?308)";
    const struct number_set *n = &s->number;
    bool plain = n->lo == NULL && n->hi == NULL && !n->fractions && n->multiple_of <= 1 &&
                 n->places == 0;
    if (!plain || excludes_number(s)) {
        const struct dfa *d = without_numbers(c, s, dfa_of_numbers(c->b, n));
        return dfa_embed(c->b, c->plain ? dfa_of_plain_numbers(c->b, d) : d, false, next);
    }
    uint32_t *rule = &c->number_rules[n->integers + 2 * c->plain];
    if (*rule == 0) {
        *rule = rule_new(c->b) + 1;
        const struct dfa *d = n->integers || c->plain
                                  ? dfa_of_numbers(c->b, n)
                                  : dfa_of_regex(c->b, any, sizeof any - 1, true);
        d = c->plain ? dfa_of_plain_numbers(c->b, d) : d;
        rule_set(c->b, *rule - 1, dfa_embed(c->b, d, false, NODE_ID_RETURN));
    }
    return node_call(c->b, *rule - 1, next);
}

/* Returns the rule of a set of strings, which is made once. */
static uint32_t embedded(struct schema *c, const struct strings *k)
{
    const struct dfa_form f = {
        .quoted = true, .lengths = k->lengths, .min = k->min, .max = k->max};
    int32_t min = k->lengths == NULL ? 0 : k->min,
            max = k->lengths == NULL ? REPEAT_ENDLESS : k->max;
    for (const struct embedded *e = c->embedded; e != NULL; e = e->next)
        if (e->dfa == k->dfa && e->min == min && e->max == max)
            return e->rule;
    struct embedded *e = build_alloc(c->b, sizeof *e);
    *e = (struct embedded){
        .next = c->embedded, .dfa = k->dfa, .min = min, .max = max, .rule = rule_new(c->b)};
    rule_set(c->b, e->rule, dfa_embed_as(c->b, k->dfa, &f, NODE_ID_RETURN));
    c->embedded = e;
    return e->rule;
}

static uint32_t string(struct schema *c, const struct spec *s, uint32_t next)
{
    const struct strings *k = spec_strings(c, s);
    if (k == NULL)
        return any_string(c->b, c->plain, s->min_length, s->max_length, next);
    next = node_call(c->b, embedded(c, k), node_range(c->b, '"', '"', next));
    return node_range(c->b, '"', '"', next);
}

/* --- arrays ------------------------------------------------------------------------- */

/* unique: the item is one of a UNIQUE. It begins before the blanks, so that there are none where no
 * item can follow. */
static uint32_t comma(struct build *b, bool first, bool unique, uint32_t item)
{
    item = first ? item : blanks(b, item);
    item = unique ? node_mark(b, NODE_ITEM, item) : item;
    return first ? item : node_range(b, ',', ',', item);
}

/* An element of an array of the spec. */
static uint32_t element(struct schema *c, const struct spec *s, bool first,
                        const struct goal *g, uint32_t next)
{
    bool unique = s->unique_items;
    if (unique)
        next = node_mark(c->b, NODE_ITEM_END, next);
    next = node_call(c->b, schema_rule(c, g, c->plain || unique), next);
    return comma(c->b, first, unique, next);
}

/* The end of an array of the spec, and the beginning before its elements. */
static uint32_t array_end(struct schema *c, const struct spec *s, uint32_t next)
{
    next = node_range(c->b, ']', ']', next);
    return s->unique_items ? node_mark(c->b, NODE_UNIQUE_END, next) : next;
}

static uint32_t array_begin(struct schema *c, const struct spec *s, uint32_t next)
{
    next = blanks(c->b, next);
    next = s->unique_items ? node_mark(c->b, NODE_UNIQUE, next) : next;
    return node_range(c->b, '[', '[', next);
}

/* An array of which some elements match a goal besides their own: states count the elements and
 * those that match. */
static uint32_t array_with(struct schema *c, const struct spec *s,
                           const struct want_list *w, uint32_t next)
{
    struct build *b = c->b;
    uint32_t prefix = spec_prefix_items(s);
    /* Elements that match are counted up to the lower bound, or one above the upper. */
    int64_t counted = w->max >= 0 ? w->max : w->min;
    uint32_t need = (uint32_t)MIN(counted, (int64_t)MAX_COUNTED + 1);
    bool endless = s->max_items == REPEAT_ENDLESS;
    uint32_t cap = MAX(MAX(prefix, (uint32_t)s->min_items),
                       endless ? 1u : (uint32_t)s->max_items);
    if (cap > MAX_COUNTED || need > MAX_COUNTED)
        schema_refuse(c, "contains");
    cap = MIN(cap, MAX_COUNTED);
    need = MIN(need, MAX_COUNTED);
    uint32_t *at = build_alloc(b, (cap + 1) * (need + 1) * sizeof *at);
    uint32_t end = array_end(c, s, next);
    for (uint32_t i = cap + 1; i-- > 0;) {
        bool stays = i == cap && endless;
        bool may = endless || i < (uint32_t)s->max_items;
        struct goal own = spec_item(c, s, i), both = spec_item(c, s, i);
        struct want other = w->want;
        other.negated = !other.negated;
        goal_add(c, &both, w->want);
        if (w->max >= 0)
            goal_add(c, &own, other);
        for (uint32_t f = need + 1; f-- > 0;) {
            bool ends = i >= (uint32_t)s->min_items && f >= w->min;
            uint32_t stop = !ends ? NODE_ID_FAIL : i == 0 ? end : blanks(b, end);
            uint32_t here = repeat_begin(b, 0, REPEAT_ENDLESS, stop);
            at[i * (need + 1) + f] = here;
            uint32_t to = (stays ? i : i + 1) * (need + 1);
            uint32_t more = !may ? NODE_ID_FAIL : element(c, s, i == 0, &own, at[to + f]);
            if (may && f < need)
                more = node_either(b, more, element(c, s, i == 0, &both, at[to + f + 1]));
            repeat_end(b, here, more);
        }
    }
    return array_begin(c, s, at[0]);
}

static uint32_t array(struct schema *c, const struct spec *s, uint32_t next)
{
    struct build *b = c->b;
    if (s->contains != NULL && s->contains->next != NULL)
        schema_refuse(c, "contains");
    struct spec only = *s;
    only.types = TYPE_ARRAY;
    only.has_values = false;
    only.unique_items = s->unique_items && s->max_items > 1;
    s = &only;
    if (!spec_is_possible(c, s, 1))
        return NODE_ID_FAIL;
    if (s->contains != NULL && s->unique_items) { /* the items that match may all be used */
        schema_refuse(c, "uniqueItems");
        only.unique_items = false;
    }
    if (s->contains != NULL)
        return array_with(c, s, s->contains, next);
    uint32_t prefix = spec_prefix_items(s);
    int32_t min = s->min_items, max = s->max_items;
    /* An element must find a value that those before it did not take, whichever they took. */
    for (uint32_t i = 0; s->unique_items && min > 1 && i <= prefix && (int32_t)i < min;
         i++) {
        struct goal g = spec_item(c, s, i);
        if (goal_count(c, &g, 0) < (i < prefix ? (int64_t)i + 1 : min))
            schema_refuse(c, "uniqueItems");
    }
    uint32_t end = array_end(c, s, next), close = blanks(b, end);
    /* The elements behind the prefix, from its end or from the first element on. */
    int32_t done = (int32_t)MAX(prefix, 1u);
    struct goal rest = spec_item(c, s, MAX(prefix, 1u));
    uint32_t at = close;
    if (max != REPEAT_ENDLESS && max <= done) {
        at = min <= done ? close : NODE_ID_FAIL;
    } else {
        uint32_t r = repeat_begin(b, MAX(min - done, 0),
                                  max == REPEAT_ENDLESS ? max : max - done, close);
        repeat_end(b, r, element(c, s, false, &rest, repeat_again(b, r)));
        at = r;
    }
    for (int32_t i = done; i-- > 0;) {
        struct goal own = spec_item(c, s, (uint32_t)i);
        uint32_t more = i < max ? element(c, s, i == 0, &own, at) : NODE_ID_FAIL;
        at = i < min ? more : node_either(b, more, i == 0 ? end : close);
    }
    return array_begin(c, s, at);
}

/* --- objects ------------------------------------------------------------------------ */

struct key {
    const char *name;
    uint32_t rule;
    bool required;
    bool ordered; /* `properties` lists it; else only `required` and the like name it */
};

struct keys {
    struct key *at;
    uint32_t n, cap;
};

/* Keys that are declared nowhere, by the patterns that they match. */
struct region {
    const struct dfa *dfa;
    uint64_t matched;
    uint32_t key, rule; /* of the characters of a key, and of the values */
};

static void key_add(struct schema *c, struct keys *k, const char *name, bool ordered)
{
    for (uint32_t i = 0; i < k->n; i++)
        if (strcmp(k->at[i].name, name) == 0)
            return;
    k->at = build_grow(c->b, k->at, &k->cap, k->n, sizeof *k->at);
    k->at[k->n++] = (struct key){.name = name, .ordered = ordered};
}

/* Collects the keys that the schema names, first those with an order. */
static void collect_keys(struct schema *c, const struct spec *s, struct keys *k)
{
    uint32_t n = 0;
    for (const struct object_part *p = s->objects; p != NULL; p = p->next)
        n++;
    const struct object_part **parts = build_alloc(c->b, (n + 1) * sizeof *parts);
    for (const struct object_part *p = s->objects; p != NULL; p = p->next)
        parts[--n] = p;
    for (uint32_t i = 0; parts[i] != NULL; i++)
        for (struct json_iter it = json_begin(parts[i]->properties);
             parts[i]->properties != NULL && json_next(&it);)
            key_add(c, k, it.key, true);
    for (uint32_t i = 0; parts[i] != NULL; i++)
        if (parts[i]->only_name != NULL)
            key_add(c, k, parts[i]->name, false);
    for (const struct text_list *t = s->required; t != NULL; t = t->next)
        key_add(c, k, t->text, false);
    for (uint32_t i = 0; i < k->n; i++) {
        struct goal g = spec_property(c, s, k->at[i].name);
        k->at[i].rule = schema_rule(c, &g, c->plain);
        for (const struct text_list *t = s->required; t != NULL; t = t->next)
            k->at[i].required |= strcmp(t->text, k->at[i].name) == 0;
    }
}

/* Adds what a part asks of keys that match the patterns of a region. first: number of the part's
 * first pattern. */
static void region_goal(struct schema *c, const struct object_part *p, uint64_t matched,
                        uint32_t first, struct goal *g)
{
    bool hit = false;
    if (p->only_name != NULL)
        return;
    if (p->evaluates_all) {
        for (const struct object_part *q = p->next; q != p->end; q = q->next) {
            uint32_t n = (uint32_t)json_count(q->patterns);
            hit |= n > 0 && (matched >> first & ((1ull << n) - 1)) != 0;
            first += n;
        }
    }
    for (struct json_iter it = json_begin(p->patterns);
         p->patterns != NULL && !p->evaluates_all && json_next(&it); first++) {
        if (matched >> first & 1) {
            hit = true;
            goal_add(c, g,
                     (struct want){.schema = it.value,
                                   .base = schema_base(c, it.value, p->base)});
        }
    }
    if (!hit && p->additional != NULL)
        goal_add(c, g, *p->additional);
}

/* Returns the keys that are not declared. */
static const struct dfa *other_keys(struct schema *c, const struct keys *k)
{
    const char **names = build_alloc(c->b, (k->n + 1) * sizeof *names);
    for (uint32_t i = 0; i < k->n; i++)
        names[i] = k->at[i].name;
    for (const struct other_keys *o = c->other_keys; o != NULL; o = o->next) {
        uint32_t i = 0;
        while (o->n == k->n && i < k->n && strcmp(o->names[i], names[i]) == 0)
            i++;
        if (o->n == k->n && i == k->n)
            return o->dfa;
    }
    struct other_keys *o = build_alloc(c->b, sizeof *o);
    *o = (struct other_keys){.next = c->other_keys,
                             .names = names,
                             .n = k->n,
                             .dfa = dfa_without_texts(c->b, names, k->n)};
    c->other_keys = o;
    return o->dfa;
}

static uint32_t collect_regions(struct schema *c, const struct spec *s,
                                const struct keys *k, struct region *r)
{
    struct build *b = c->b;
    const struct dfa *d = other_keys(c, k), *names = spec_names(c, s);
    uint32_t n = 1, n_patterns = 0, kept = 0;
    if (names != NULL)
        d = dfa_combine(b, d, names, DFA_AND);
    r[0] = (struct region){.dfa = d};
    for (const struct object_part *p = s->objects; p != NULL; p = p->next) {
        for (struct json_iter it = json_begin(p->patterns);
             p->patterns != NULL && json_next(&it);) {
            const struct dfa *one = schema_pattern(c, it.key, strlen(it.key), false);
            uint32_t now = n;
            if (n_patterns == MAX_PATTERNS || now * 2 > MAX_REGIONS)
                build_fault(b, ERR_LIMIT, "the schema's patternProperties are too many");
            for (uint32_t i = 0; i < now; i++) {
                const struct dfa *in = dfa_combine(b, r[i].dfa, one, DFA_AND);
                if (in->start == 0)
                    continue;
                r[n++] = (struct region){.dfa = in,
                                         .matched = r[i].matched | 1ull << n_patterns};
                r[i].dfa = dfa_combine(b, r[i].dfa, one, DFA_MINUS);
            }
            n_patterns++;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        struct goal g = {0};
        uint32_t first = 0;
        for (const struct object_part *p = s->objects; p != NULL; p = p->next) {
            region_goal(c, p, r[i].matched, first, &g);
            first += (uint32_t)json_count(p->patterns);
        }
        if (r[i].dfa->start == 0 || !goal_is_possible(c, &g, 0))
            continue;
        r[kept] = r[i];
        r[kept].key = embedded(c, &(struct strings){.dfa = r[i].dfa});
        r[kept++].rule = schema_rule(c, &g, c->plain);
    }
    return kept;
}

/* Declared or other keys with the node that follows, made once for the first member of an object
 * and for later ones. */
struct made_member {
    uint32_t next, node;
};

/* A key that is declared, its value, then next. */
static uint32_t member(struct build *b, bool first, const struct key *k, uint32_t next,
                       struct made_member *made)
{
    if (made->node == NODE_ID_FAIL || made->next != next) {
        uint32_t value = node_range(b, ':', ':', blanks(b, node_call(b, k->rule, next)));
        made->node = node_quoted(b, k->name, strlen(k->name), value);
        made->next = next;
    }
    return comma(b, first, false, made->node);
}

/* A key that is not. item: it is one of a UNIQUE. */
static uint32_t other_member(struct build *b, bool first, const struct region *r, bool item,
                             uint32_t next, struct made_member *made)
{
    if (made->node == NODE_ID_FAIL || made->next != next) {
        uint32_t value = node_range(b, ':', ':', blanks(b, node_call(b, r->rule, next)));
        uint32_t end = node_range(b, '"', '"', value);
        if (item)
            end = node_mark(b, NODE_ITEM_END, end);
        made->node = node_range(b, '"', '"', node_call(b, r->key, end));
        made->next = next;
    }
    return comma(b, first, item, made->node);
}

/* The members of an object. cap: counts from there on are not told apart. */
struct members {
    const struct keys *keys;
    uint32_t ordered;
    const struct region *regions;
    uint32_t n_regions;
    int64_t min, max, cap;
    uint32_t end; /* the closing brace */
};

/* Sets at[n] to the node behind n members, where only keys without an order may follow. */
static void free_members(struct build *b, const struct members *m, uint32_t *at)
{
    const struct key *keys = m->keys->n > 0 ? m->keys->at + m->ordered : NULL;
    uint32_t n_free = m->keys->n - m->ordered, required = 0;
    size_t width = (size_t)m->cap + 1;
    uint32_t *by_mask = build_alloc(b, (width << n_free) * sizeof *by_mask);
    struct made_member *made = build_alloc(b, (n_free + m->n_regions + 1) * sizeof *made);
    for (uint32_t i = 0; i < n_free; i++)
        required |= (uint32_t)keys[i].required << i;
    for (uint32_t mask = 1u << n_free; mask-- > 0;) { /* the keys that are written */
        for (int64_t n = m->cap; n >= 0; n--) {
            uint32_t ways[MAX_REGIONS + MAX_FREE_KEYS], n_ways = 0;
            bool ends = n >= m->min && (mask & required) == required;
            bool may = m->max == REPEAT_ENDLESS || n < m->max;
            size_t more = (size_t)MIN(n + 1, m->cap);
            uint32_t here = repeat_begin(b, 0, REPEAT_ENDLESS,
                                         !ends    ? NODE_ID_FAIL
                                         : n == 0 ? m->end
                                                  : blanks(b, m->end));
            by_mask[mask * width + (size_t)n] = here;
            for (uint32_t i = 0; may && i < n_free; i++)
                if (!(mask >> i & 1))
                    ways[n_ways++] = member(b, n == 0, &keys[i],
                                            by_mask[(mask | 1u << i) * width + more],
                                            &made[i]);
            for (uint32_t i = 0; may && i < m->n_regions; i++)
                ways[n_ways++] = other_member(b, n == 0, &m->regions[i], false,
                                              by_mask[mask * width + more],
                                              &made[n_free + i]);
            repeat_end(b, here, node_split(b, ways, n_ways));
        }
    }
    memcpy(at, by_mask, width * sizeof *at);
}

/* The same where each value has one spelling: keys that are not declared ascend. */
static void ascending_members(struct build *b, const struct members *m, uint32_t *at)
{
    uint32_t *behind = build_alloc(b, (size_t)(m->cap + 1) * sizeof *behind);
    struct made_member *made = build_alloc(b, (m->n_regions + 1) * sizeof *made);
    for (int64_t n = m->cap; n >= 0; n--) {
        uint32_t first[MAX_REGIONS], more[MAX_REGIONS];
        bool may = m->max == REPEAT_ENDLESS || n < m->max;
        uint32_t stop = n < m->min ? NODE_ID_FAIL : n == 0 ? m->end : blanks(b, m->end);
        uint32_t n_ways = may ? m->n_regions : 0;
        uint32_t end = n < m->min ? stop : node_mark(b, NODE_UNIQUE_END, blanks(b, m->end));
        behind[n] = repeat_begin(b, 0, REPEAT_ENDLESS, end);
        uint32_t then = behind[MIN(n + 1, m->cap)];
        for (uint32_t i = 0; i < n_ways; i++) {
            first[i] = other_member(b, n == 0, &m->regions[i], true, then, &made[i]);
            more[i] = n == 0 ? NODE_ID_FAIL : first[i];
        }
        repeat_end(b, behind[n], node_split(b, more, n_ways));
        uint32_t begin = node_mark(b, NODE_UNIQUE, node_split(b, first, n_ways));
        b->nodes[begin].ascending = true;
        at[n] = node_either(b, stop, begin);
    }
}

static uint32_t object(struct schema *c, const struct spec *s, uint32_t next)
{
    struct build *b = c->b;
    struct keys k = {0};
    collect_keys(c, s, &k);
    struct region *r = build_alloc(b, MAX_REGIONS * sizeof *r);
    uint32_t n_regions = collect_regions(c, s, &k, r), n_required = 0;
    for (uint32_t i = 0; i < k.n; i++)
        n_required += k.at[i].required;
    int64_t min = s->min_properties, max = s->max_properties, cap = 1;
    if (min <= (int64_t)n_required)
        min = 0;
    if (max != REPEAT_ENDLESS && n_regions == 0 && max >= (int64_t)k.n)
        max = REPEAT_ENDLESS;
    cap = MAX(min, max == REPEAT_ENDLESS ? 1 : max);
    /* Two undeclared keys may be equal, and then count as one. */
    if (min > (int64_t)n_required + 1 && n_regions > 0)
        schema_refuse(c, "minProperties");
    if (cap > MAX_COUNTED && min > 1)
        schema_refuse(c, "minProperties");
    else if (cap > MAX_COUNTED)
        schema_refuse(c, "maxProperties");
    if (cap > MAX_COUNTED) { /* taken loosely: without a count */
        min = 0;
        max = REPEAT_ENDLESS;
        cap = 1;
    }
    uint32_t ordered = k.n; /* the keys behind it come in any order */
    while (!c->plain && ordered > 0 && !k.at[ordered - 1].ordered &&
           k.n - ordered < MAX_FREE_KEYS)
        ordered--;
    const struct members m = {.keys = &k,
                              .ordered = ordered,
                              .regions = r,
                              .n_regions = n_regions,
                              .min = min,
                              .max = max,
                              .cap = cap,
                              .end = node_range(b, '}', '}', next)};
    uint32_t *at = build_alloc(b, (size_t)(cap + 1) * sizeof *at);
    uint32_t *after = build_alloc(b, (size_t)(cap + 1) * sizeof *after);
    if (c->plain)
        ascending_members(b, &m, at);
    else
        free_members(b, &m, at);
    for (uint32_t i = ordered; i-- > 0;) {
        struct made_member made = {0};
        memcpy(after, at, (size_t)(cap + 1) * sizeof *at);
        for (int64_t n = 0; n <= cap; n++) {
            bool may = max == REPEAT_ENDLESS || n < max;
            uint32_t with = !may ? NODE_ID_FAIL
                                 : member(b, n == 0, &k.at[i], after[MIN(n + 1, cap)],
                                          &made);
            at[n] = k.at[i].required ? with : node_either(b, with, after[n]);
        }
    }
    return node_range(b, '{', '{', blanks(b, at[0]));
}

/* --- specs and goals ---------------------------------------------------------------- */

/* Returns whether an object or array of a list equals an earlier one. */
static bool is_repeated(struct schema *c, const struct value_list *list,
                        const struct value_list *one)
{
    enum json_kind kind = json_kind(one->value);
    if (kind != JSON_KIND_OBJECT && kind != JSON_KIND_ARRAY)
        return false;
    for (; list != one; list = list->next)
        if (schema_values_equal(c, list->value, one->value))
            return true;
    return false;
}

static uint32_t emit(struct schema *c, const struct spec *s, uint32_t next)
{
    struct build *b = c->b;
    uint32_t ways[8], n = 0;
    if (s->has_values) {
        uint32_t at = NODE_ID_FAIL;
        for (const struct value_list *l = s->values; l != NULL; l = l->next)
            if (spec_fits(c, s, l->value) && !(c->plain && is_repeated(c, s->values, l))) {
                uint32_t one = literal(c, l->value, s->number.integers, next);
                at = at == NODE_ID_FAIL ? one : node_either(b, at, one);
            }
        return at;
    }
    if (s->types & TYPE_NULL)
        ways[n++] = node_bytes(b, "null", 4, next);
    if ((s->types & TYPE_BOOL) && !is_excluded(s, false))
        ways[n++] = node_bytes(b, "false", 5, next);
    if ((s->types & TYPE_BOOL) && !is_excluded(s, true))
        ways[n++] = node_bytes(b, "true", 4, next);
    if (s->types & TYPE_NUMBER)
        ways[n++] = number(c, s, next);
    if (s->types & TYPE_STRING && s->min_length <= s->max_length)
        ways[n++] = string(c, s, next);
    if (s->types & TYPE_ARRAY && s->min_items <= s->max_items)
        ways[n++] = array(c, s, next);
    if (s->types & TYPE_OBJECT)
        ways[n++] = object(c, s, next);
    return node_split(b, ways, n);
}

static bool goals_equal(const struct goal *x, const struct goal *y)
{
    if (x->n != y->n)
        return false;
    for (uint32_t i = 0; i < x->n; i++)
        if (x->at[i].schema != y->at[i].schema || x->at[i].negated != y->at[i].negated)
            return false;
    return true;
}

uint32_t schema_rule(struct schema *c, const struct goal *g, bool plain)
{
    uintptr_t hash = 0;
    for (uint32_t i = 0; i < g->n; i++)
        hash = hash * 31 + ((uintptr_t)g->at[i].schema >> 4);
    struct made_rule **first = &c->rules_by_hash[(hash ^ hash >> 8) % 256], *r = *first;
    while (r != NULL && (r->plain != plain || !goals_equal(&r->goal, g)))
        r = r->next;
    if (r != NULL)
        return r->rule;
    r = build_alloc(c->b, sizeof *r);
    *r = (struct made_rule){
        .next = *first, .goal = *g, .plain = plain, .rule = rule_new(c->b)};
    c->rules = build_grow(c->b, c->rules, &c->cap_rules, c->n_rules, sizeof *c->rules);
    c->rules[c->n_rules++] = *first = r;
    return r->rule;
}

/* Returns whether the specs of a list can be spelled so that no value has two spellings: of two
 * alternatives, one could spell an object with its keys in another order. */
static bool is_plain(const struct spec *list)
{
    int objects = 0, arrays = 0;
    for (const struct spec *s = list; s != NULL; s = s->next) {
        bool object = !s->has_values, array = !s->has_values;
        for (const struct value_list *l = s->values; s->has_values && l != NULL;
             l = l->next) {
            object |= json_kind(l->value) == JSON_KIND_OBJECT;
            array |= json_kind(l->value) == JSON_KIND_ARRAY;
        }
        objects += object && (s->types & TYPE_OBJECT);
        arrays += array && (s->types & TYPE_ARRAY);
    }
    return objects <= 1 && arrays <= 1;
}

void schema_emit_all(struct schema *c)
{
    for (; c->n_emitted < c->n_rules; c->n_emitted++) {
        const struct made_rule r = *c->rules[c->n_emitted];
        uint32_t at = NODE_ID_FAIL;
        const struct spec *list = schema_expand(c, &r.goal);
        c->plain = r.plain;
        if (c->plain && !is_plain(list))
            schema_refuse(c, "uniqueItems");
        for (const struct spec *s = list; s != NULL; s = s->next) {
            uint32_t one = emit(c, s, NODE_ID_RETURN);
            at = at == NODE_ID_FAIL ? one : node_either(c->b, at, one);
        }
        rule_set(c->b, r.rule, at);
    }
}
