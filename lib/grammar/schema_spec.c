/* schema_spec.c - see schema.h: questions about a spec. */
#include <string.h>

#include "base/minmax.h"
#include "base/utf8.h"
#include "grammar/schema.h"

const struct dfa *schema_pattern(struct schema *c, const char *text, size_t n, bool whole)
{
    for (struct pattern *p = c->patterns; p != NULL; p = p->next)
        if (p->n == n && p->whole == whole && !p->counted && memcmp(p->text, text, n) == 0)
            return p->dfa;
    struct pattern *p = build_alloc(c->b, sizeof *p);
    *p = (struct pattern){.next = c->patterns, .text = text, .n = n, .whole = whole};
    p->dfa = dfa_of_regex(c->b, text, n, whole);
    c->patterns = p;
    return p->dfa;
}

const struct pattern *schema_counted_pattern(struct schema *c, const char *text, size_t n)
{
    for (struct pattern *p = c->patterns; p != NULL; p = p->next)
        if (p->n == n && p->counted && memcmp(p->text, text, n) == 0)
            return p;
    struct pattern *p = build_alloc(c->b, sizeof *p);
    *p = (struct pattern){
        .text = text, .n = n, .counted = true, .min = 0, .max = REPEAT_ENDLESS};
    if (!dfa_of_counted(c->b, text, n, &p->dfa, &p->min, &p->max))
        p->dfa = schema_pattern(c, text, n, false);
    p->next = c->patterns;
    c->patterns = p;
    return p;
}

/* --- keys and elements -------------------------------------------------------------- */

bool schema_matches_pattern(struct schema *c, const struct json *patterns, const char *name)
{
    for (struct json_iter it = json_begin(patterns); patterns != NULL && json_next(&it);)
        if (dfa_contains(schema_pattern(c, it.key, strlen(it.key), false), name,
                         strlen(name)))
            return true;
    return false;
}

static void add_schema(struct schema *c, struct goal *g, const struct json *v,
                       const struct resource *base)
{
    if (json_kind(v) != JSON_KIND_OBJECT && json_kind(v) != JSON_KIND_BOOL)
        build_fault(c->b, ERR_USAGE, "a schema must be an object or a boolean, it is %s",
                    json_kind_name(v));
    goal_add(c, g, (struct want){.schema = v, .base = schema_base(c, v, base)});
}

/* Returns whether the parts of an unevaluatedProperties look at the key. */
static bool is_evaluated(struct schema *c, const struct object_part *p, const char *name)
{
    for (const struct object_part *q = p->next; q != p->end; q = q->next) {
        if (q->only_name != NULL ? strcmp(q->name, name) == 0
                                 : json_member(q->properties, name) != NULL ||
                                       schema_matches_pattern(c, q->patterns, name))
            return true;
    }
    return false;
}

static void add_property(struct schema *c, const struct object_part *p, const char *name,
                         struct goal *g)
{
    bool hit = false;
    if (p->only_name != NULL) {
        if (strcmp(p->name, name) == 0)
            goal_add(c, g, *p->only_name);
        return;
    }
    if (p->evaluates_all) {
        hit = is_evaluated(c, p, name);
    } else {
        const struct json *v = json_member(p->properties, name);
        hit = v != NULL;
        if (v != NULL)
            add_schema(c, g, v, p->base);
        for (struct json_iter it = json_begin(p->patterns);
             p->patterns != NULL && json_next(&it);) {
            const struct dfa *d = schema_pattern(c, it.key, strlen(it.key), false);
            if (dfa_contains(d, name, strlen(name))) {
                add_schema(c, g, it.value, p->base);
                hit = true;
            }
        }
    }
    if (!hit && p->additional != NULL)
        goal_add(c, g, *p->additional);
}

struct goal spec_property(struct schema *c, const struct spec *s, const char *name)
{
    struct goal g = {0};
    const struct dfa *names = spec_names(c, s);
    for (const struct object_part *p = s->objects; p != NULL; p = p->next)
        add_property(c, p, name, &g);
    if (names != NULL && !dfa_contains(names, name, strlen(name)))
        goal_add(c, &g, (struct want){0});
    return g;
}

struct goal spec_item(struct schema *c, const struct spec *s, uint32_t i)
{
    struct goal g = {0};
    for (const struct array_part *p = s->arrays; p != NULL; p = p->next) {
        if (p->only_item != NULL && i == p->at)
            goal_add(c, &g, *p->only_item);
        else if (i < json_count(p->prefix))
            add_schema(c, &g, json_at(p->prefix, i), p->base);
        else if (p->rest != NULL)
            goal_add(c, &g, *p->rest);
    }
    return g;
}

uint32_t spec_prefix_items(const struct spec *s)
{
    size_t n = 0;
    for (const struct array_part *p = s->arrays; p != NULL; p = p->next)
        n = MAX(n, p->only_item != NULL ? p->at + 1 : json_count(p->prefix));
    return (uint32_t)n;
}

/* --- strings ------------------------------------------------------------------------ */

static const struct dfa *strings_of(struct schema *c, const struct spec *s)
{
    const struct dfa *d = s->texts == NULL ? NULL : s->texts->dfa;
    for (const struct dfa_list *l = d == NULL ? NULL : s->texts->next; l != NULL;
         l = l->next)
        d = dfa_combine(c->b, d, l->dfa, DFA_AND);
    for (const struct value_list *l = s->excluded; l != NULL; l = l->next) {
        size_t n;
        const char *text = json_string_of(l->value, &n);
        if (text != NULL)
            d = dfa_combine(c->b, d == NULL ? dfa_any(c->b) : d, dfa_text(c->b, text, n),
                            DFA_MINUS);
    }
    return d;
}

/* Bounds the lengths of strings: by a count beside the DFA where no gap in its lengths can hold all
 * that are allowed. */
static void bound_lengths(struct schema *c, struct strings *k)
{
    const struct dfa *d = k->dfa;
    if (d == NULL || d->start == 0 || (k->min == 0 && k->max == REPEAT_ENDLESS))
        return;
    const struct dfa_lengths *l = dfa_lengths(
        c->b, d, k->max == REPEAT_ENDLESS ? k->max : k->max - k->min);
    if (l == NULL)
        k->dfa = dfa_combine(c->b, d, dfa_length(c->b, k->min, k->max), DFA_AND);
    else if (l->min[d->start] > k->max || l->max[d->start] < k->min)
        k->dfa = dfa_combine(c->b, d, d, DFA_MINUS);
    else if (l->min[d->start] < k->min || l->max[d->start] > k->max)
        k->lengths = l;
}

const struct strings *spec_strings(struct schema *c, const struct spec *s)
{
    if (s->texts == NULL && s->excluded == NULL)
        return NULL;
    struct strings *k = c->strings;
    while (k != NULL && (k->texts != s->texts || k->excluded != s->excluded ||
                         k->min != s->min_length || k->max != s->max_length))
        k = k->next;
    if (k == NULL) {
        k = build_alloc(c->b, sizeof *k);
        *k = (struct strings){.next = c->strings,
                              .texts = s->texts,
                              .excluded = s->excluded,
                              .min = s->min_length,
                              .max = s->max_length,
                              .dfa = strings_of(c, s)};
        bound_lengths(c, k);
        c->strings = k;
    }
    return k->dfa == NULL ? NULL : k;
}

const struct dfa *spec_names(struct schema *c, const struct spec *s)
{
    if (s->names == NULL || s->names == c->names)
        return s->names == NULL ? NULL : c->names_dfa;
    const struct dfa *all = dfa_any(c->b);
    for (const struct want_list *l = s->names; l != NULL; l = l->next) {
        struct goal g = {0};
        goal_add(c, &g, l->want);
        const struct dfa *any = dfa_combine(c->b, all, all, DFA_MINUS);
        for (const struct spec *k = schema_expand(c, &g); k != NULL; k = k->next) {
            if (!(k->types & TYPE_STRING))
                continue;
            const struct strings *t = spec_strings(c, k);
            const struct dfa *d = t == NULL ? dfa_any(c->b) : t->dfa;
            if (t == NULL || t->lengths != NULL)
                d = dfa_combine(c->b, d, dfa_length(c->b, k->min_length, k->max_length),
                                DFA_AND);
            if (k->has_values) {
                const struct dfa *values = dfa_combine(c->b, all, all, DFA_MINUS);
                for (const struct value_list *v = k->values; v != NULL; v = v->next) {
                    size_t n;
                    const char *text = json_string_of(v->value, &n);
                    if (text != NULL)
                        values = dfa_combine(c->b, values, dfa_text(c->b, text, n), DFA_OR);
                }
                d = dfa_combine(c->b, d, values, DFA_AND);
            }
            any = dfa_combine(c->b, any, d, DFA_OR);
        }
        all = dfa_combine(c->b, all, any, DFA_AND);
    }
    c->names = s->names;
    c->names_dfa = all;
    return all;
}

/* --- is there a value? -------------------------------------------------------------- */

bool goal_is_possible(struct schema *c, const struct goal *g, int depth)
{
    for (const struct spec *s = schema_expand(c, g); s != NULL; s = s->next)
        if (spec_is_possible(c, s, depth))
            return true;
    return false;
}

static bool number_is_possible(struct schema *c, const struct spec *s, int depth)
{
    const struct number_set *n = &s->number;
    if (n->integers && n->fractions)
        return false;
    if (n->lo == NULL || n->hi == NULL)
        return true;
    int cmp = decimal_compare(n->lo, n->hi);
    if (cmp > 0 || (cmp == 0 && (n->above || n->below)))
        return false;
    return depth == 0 || dfa_of_numbers(c->b, n)->start != 0;
}

static bool object_is_possible(struct schema *c, const struct spec *s, int depth)
{
    int32_t n = 0;
    for (const struct text_list *t = s->required; t != NULL; t = t->next, n++) {
        for (const struct object_part *p = s->objects; p != NULL; p = p->next)
            if (p->only_name != NULL && p->only_name->schema == NULL &&
                strcmp(p->name, t->text) == 0)
                return false;
        if (depth > 0) {
            struct goal g = spec_property(c, s, t->text);
            if (!goal_is_possible(c, &g, depth - 1))
                return false;
        }
    }
    return MAX(n, s->min_properties) <= s->max_properties;
}

static unsigned type_of(const struct json *v)
{
    switch (json_kind(v)) {
    case JSON_KIND_NULL:
        return TYPE_NULL;
    case JSON_KIND_BOOL:
        return TYPE_BOOL;
    case JSON_KIND_INT:
    case JSON_KIND_REAL:
        return TYPE_NUMBER;
    case JSON_KIND_STRING:
        return TYPE_STRING;
    case JSON_KIND_ARRAY:
        return TYPE_ARRAY;
    default:
        return TYPE_OBJECT;
    }
}

const struct json *spec_all_keys(const struct spec *s)
{
    bool value;
    for (const struct object_part *p = s->objects; p != NULL; p = p->next)
        if (p->only_name == NULL && p->patterns == NULL && !p->evaluates_all &&
            p->additional != NULL && json_bool_of(p->additional->schema, &value) &&
            value == p->additional->negated)
            return p->properties;
    return NULL;
}

static const struct dfa *with(struct schema *c, const struct dfa *all, const struct dfa *d)
{
    return all == NULL ? d : dfa_combine(c->b, all, d, DFA_OR);
}

static const struct dfa *text_of_number(struct schema *c, const struct json *v)
{
    struct decimal d = decimal_of(c->b, v);
    const char *text = decimal_text(c->b, &d);
    return dfa_text(c->b, text, strlen(text));
}

/* Returns the product of two counts. */
static int64_t times(int64_t x, int64_t y)
{
    return x < 0 || y < 0 ? -1 : MIN(x * y, (int64_t)DFA_MANY);
}

static int64_t count_array(struct schema *c, const struct spec *s, int depth)
{
    int64_t sum = 0, product = 1;
    for (int32_t i = 0; i <= s->max_items && sum < DFA_MANY; i++) {
        if (i >= s->min_items)
            sum += product;
        struct goal g = spec_item(c, s, (uint32_t)i);
        product = i < s->max_items ? times(product, goal_count(c, &g, depth + 1)) : 0;
        if (product <= 0)
            return product < 0 ? -1 : sum;
    }
    return DFA_MANY;
}

/* Only objects whose keys are all declared have few values. */
static int64_t count_object(struct schema *c, const struct spec *s, int depth)
{
    const struct json *keys = spec_all_keys(s);
    int64_t product = 1;
    for (const struct object_part *p = s->objects; p != NULL; p = p->next)
        if (keys == NULL && p->additional != NULL)
            return -1; /* keys by patterns */
    for (struct json_iter it = json_begin(keys); keys != NULL && json_next(&it);) {
        struct goal g = spec_property(c, s, it.key);
        bool required = false;
        for (const struct text_list *t = s->required; t != NULL; t = t->next)
            required |= strcmp(t->text, it.key) == 0;
        int64_t n = goal_count(c, &g, depth + 1);
        product = times(product, n < 0 ? n : n + !required);
    }
    bool counted = s->min_properties > 0 || s->max_properties != REPEAT_ENDLESS;
    return keys == NULL ? DFA_MANY : counted && product < DFA_MANY ? -1 : product;
}

int64_t goal_count(struct schema *c, const struct goal *g, int depth)
{
    enum { DEEP = 5 };
    const struct dfa *strings = NULL, *numbers = NULL;
    unsigned simple = 0; /* 1: null, 2: false, 4: true */
    int64_t n = 0;
    if (depth > DEEP)
        return DFA_MANY;
    for (const struct spec *s = schema_expand(c, g); s != NULL; s = s->next) {
        bool yes = false, no_false = false, no_true = false;
        for (const struct value_list *l = s->excluded; l != NULL; l = l->next) {
            no_true |= json_bool_of(l->value, &yes) && yes;
            no_false |= json_bool_of(l->value, &yes) && !yes;
        }
        for (const struct value_list *l = s->values; s->has_values && l != NULL;
             l = l->next) {
            size_t bytes;
            const char *text = json_string_of(l->value, &bytes);
            if (!spec_fits(c, s, l->value))
                continue;
            if (text != NULL)
                strings = with(c, strings, dfa_text(c->b, text, bytes));
            else if (type_of(l->value) == TYPE_NUMBER)
                numbers = with(c, numbers, text_of_number(c, l->value));
            else if (json_bool_of(l->value, &yes))
                simple |= yes ? 4 : 2;
            else if (json_kind(l->value) == JSON_KIND_NULL)
                simple |= 1;
            else
                return -1; /* another alternative may have the same value */
        }
        if (s->has_values)
            continue;
        simple |= (s->types & TYPE_NULL ? 1u : 0u) |
                  (s->types & TYPE_BOOL && !no_false ? 2u : 0u) |
                  (s->types & TYPE_BOOL && !no_true ? 4u : 0u);
        if (s->types & TYPE_NUMBER) {
            const struct dfa *d = dfa_of_plain_numbers(c->b,
                                                       dfa_of_numbers(c->b, &s->number));
            for (const struct value_list *l = s->excluded; l != NULL; l = l->next)
                if (type_of(l->value) == TYPE_NUMBER)
                    d = dfa_combine(c->b, d, text_of_number(c, l->value), DFA_MINUS);
            numbers = with(c, numbers, d);
        }
        const struct strings *k = s->types & TYPE_STRING ? spec_strings(c, s) : NULL;
        bool long_ones = s->max_length != REPEAT_ENDLESS &&
                         s->max_length - s->min_length > 4096;
        if (s->types & TYPE_STRING &&
            (k == NULL ? s->max_length > 0 : k->lengths != NULL && long_ones))
            return DFA_MANY;
        if (s->types & TYPE_STRING) {
            const struct dfa *d = k == NULL ? dfa_any(c->b) : k->dfa;
            if (k == NULL || (k->lengths != NULL && s->max_length != REPEAT_ENDLESS))
                d = dfa_combine(c->b, d, dfa_length(c->b, s->min_length, s->max_length),
                                DFA_AND);
            strings = with(c, strings, d);
        }
        int64_t arrays = s->types & TYPE_ARRAY ? count_array(c, s, depth) : 0;
        int64_t objects = s->types & TYPE_OBJECT ? count_object(c, s, depth) : 0;
        if (arrays < 0 || objects < 0)
            return -1;
        n += arrays + objects;
    }
    n += strings == NULL ? 0 : dfa_count(c->b, strings);
    n += numbers == NULL ? 0 : dfa_count(c->b, numbers);
    return MIN(n + __builtin_popcount(simple), (int64_t)DFA_MANY);
}

static bool array_is_possible(struct schema *c, const struct spec *s, int depth)
{
    if (s->min_items > s->max_items)
        return false;
    if (!s->unique_items || depth == 0 || s->min_items < 2 || spec_prefix_items(s) > 0)
        return true;
    struct goal g = spec_item(c, s, 0);
    int64_t n = goal_count(c, &g, 0);
    return n < 0 || n >= s->min_items;
}

bool spec_is_possible(struct schema *c, const struct spec *s, int depth)
{
    unsigned t = s->types;
    if ((t & TYPE_NUMBER) && !number_is_possible(c, s, depth))
        t &= ~(unsigned)TYPE_NUMBER;
    if ((t & TYPE_STRING) && s->min_length > s->max_length)
        t &= ~(unsigned)TYPE_STRING;
    if ((t & TYPE_STRING) && depth > 0 && (s->texts != NULL || s->excluded != NULL)) {
        const struct strings *d = spec_strings(c, s);
        if (d != NULL && d->dfa->start == 0)
            t &= ~(unsigned)TYPE_STRING;
    }
    if ((t & TYPE_ARRAY) && !array_is_possible(c, s, depth))
        t &= ~(unsigned)TYPE_ARRAY;
    if ((t & TYPE_OBJECT) && !object_is_possible(c, s, depth))
        t &= ~(unsigned)TYPE_OBJECT;
    if (!s->has_values)
        return t != 0;
    for (const struct value_list *l = s->values; l != NULL; l = l->next)
        if ((type_of(l->value) & t) && (depth == 0 || spec_fits(c, s, l->value)))
            return true;
    return false;
}

/* --- does a value match? ------------------------------------------------------------ */

static bool number_fits(struct schema *c, const struct spec *s, const struct json *v)
{
    struct decimal d = decimal_of(c->b, v);
    const struct number_set *n = &s->number;
    bool whole = decimal_is_integer(&d);
    if ((n->integers && !whole) || (n->fractions && whole))
        return false;
    if (n->lo != NULL && decimal_compare(&d, n->lo) < (n->above ? 1 : 0))
        return false;
    if (n->hi != NULL && decimal_compare(&d, n->hi) > (n->below ? -1 : 0))
        return false;
    return number_set_has_multiple(n, &d);
}

static bool string_fits(struct schema *c, const struct spec *s, const struct json *v)
{
    size_t n, chars = 0;
    const char *text = json_string_of(v, &n);
    for (size_t i = 0; i < n; i++)
        chars += ((uint8_t)text[i] & 0xC0) != 0x80;
    if (chars < (size_t)s->min_length || chars > (size_t)s->max_length)
        return false;
    const struct strings *k = spec_strings(c, s);
    return k == NULL || dfa_contains(k->dfa, text, n);
}

static bool array_fits(struct schema *c, const struct spec *s, const struct json *v)
{
    size_t n = json_count(v);
    if (n < (size_t)s->min_items || n > (size_t)s->max_items)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct goal g = spec_item(c, s, (uint32_t)i);
        if (!schema_fits(c, &g, json_at(v, i)))
            return false;
        for (size_t k = 0; s->unique_items && k < i; k++)
            if (schema_values_equal(c, json_at(v, k), json_at(v, i)))
                return false;
    }
    for (const struct want_list *l = s->contains; l != NULL; l = l->next) {
        struct goal g = {0};
        int64_t found = 0;
        goal_add(c, &g, l->want);
        for (size_t i = 0; i < n; i++)
            found += schema_fits(c, &g, json_at(v, i));
        if (found < l->min || (l->max >= 0 && found > l->max))
            return false;
    }
    return true;
}

static bool object_fits(struct schema *c, const struct spec *s, const struct json *v)
{
    size_t n = json_count(v);
    if (n < (size_t)s->min_properties || n > (size_t)s->max_properties)
        return false;
    for (const struct text_list *t = s->required; t != NULL; t = t->next)
        if (json_member(v, t->text) == NULL)
            return false;
    for (struct json_iter it = json_begin(v); json_next(&it);) {
        struct goal g = spec_property(c, s, it.key);
        if (!schema_fits(c, &g, it.value))
            return false;
    }
    return true;
}

bool spec_fits(struct schema *c, const struct spec *s, const struct json *v)
{
    if (!(s->types & type_of(v)))
        return false;
    for (const struct value_list *l = s->excluded; l != NULL; l = l->next)
        if (schema_values_equal(c, l->value, v))
            return false;
    switch (json_kind(v)) {
    case JSON_KIND_INT:
    case JSON_KIND_REAL:
        return number_fits(c, s, v);
    case JSON_KIND_STRING:
        return string_fits(c, s, v);
    case JSON_KIND_ARRAY:
        return array_fits(c, s, v);
    case JSON_KIND_OBJECT:
        return object_fits(c, s, v);
    default:
        return true;
    }
}

static bool in_values(struct schema *c, const struct spec *s, const struct json *v)
{
    bool found = !s->has_values;
    for (const struct value_list *l = s->values; !found && l != NULL; l = l->next)
        found = schema_values_equal(c, l->value, v);
    return found;
}

bool schema_fits(struct schema *c, const struct goal *g, const struct json *v)
{
    for (const struct spec *s = schema_expand(c, g); s != NULL; s = s->next)
        if (in_values(c, s, v) && spec_fits(c, s, v))
            return true;
    return false;
}
