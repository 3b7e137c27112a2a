/* schema_expand.c - see schema.h: keywords to specs.
 *
 * A schema object is applied to a list of specs keyword by keyword.  A keyword that bounds one type
 * narrows each spec.  anyOf, oneOf, if and the dependent keywords replace each spec by several.  A
 * negated schema is the disjunction of its negated keywords (De Morgan), each of which says its
 * type: not {"minimum": 5} is a number below 5. */
#include <string.h>

#include "base/minmax.h"
#include "grammar/schema.h"

enum {
    MAX_LIST = 2048, /* alternatives of one goal */
    MAX_NESTED = 64, /* references and applicators inside each other */
};

/* What is being applied. */
struct apply {
    const struct json *schema;
    const struct resource *base;
};

static struct spec *apply(struct schema *c, struct want w, struct spec *list);

static _Noreturn void malformed(struct schema *c, const char *key, const char *must)
{
    build_fault(c->b, ERR_USAGE, "the schema's %s must be %s", key, must);
}

static struct want want_of(struct schema *c, const struct json *schema,
                           const struct resource *base, bool negated)
{
    if (json_kind(schema) != JSON_KIND_OBJECT && json_kind(schema) != JSON_KIND_BOOL)
        build_fault(c->b, ERR_USAGE, "a schema must be an object or a boolean, it is %s",
                    json_kind_name(schema));
    return (struct want){
        .schema = schema, .base = schema_base(c, schema, base), .negated = negated};
}

static const struct want *want_new(struct schema *c, struct want w)
{
    struct want *p = build_alloc(c->b, sizeof *p);
    *p = w;
    return p;
}

void goal_add(struct schema *c, struct goal *g, struct want w)
{
    bool value;
    if (json_bool_of(w.schema, &value) && value != w.negated)
        return; /* true wants nothing */
    for (uint32_t i = 0; i < g->n; i++)
        if (g->at[i].schema == w.schema && g->at[i].negated == w.negated)
            return;
    g->at = build_grow(c->b, g->at, &g->cap, g->n, sizeof *g->at);
    g->at[g->n++] = w;
}

/* --- lists of specs ----------------------------------------------------------------- */

static struct spec *copy_list(struct schema *c, const struct spec *list)
{
    struct spec *first = NULL, **end = &first;
    for (; list != NULL; list = list->next) {
        build_work(c->b, 100);
        *end = build_alloc(c->b, sizeof **end);
        **end = *list;
        end = &(*end)->next;
    }
    *end = NULL;
    return first;
}

static struct spec *append(struct schema *c, struct spec *one, struct spec *other)
{
    struct spec **end = &one;
    int n = 0;
    for (; *end != NULL; end = &(*end)->next)
        if (++n > MAX_LIST)
            build_fault(c->b, ERR_LIMIT, "the schema has too many alternatives");
    *end = other;
    return one;
}

/* Removes the specs that no value matches, as far as a glance tells. */
static struct spec *sift(struct schema *c, struct spec *list)
{
    struct spec **at = &list;
    while (*at != NULL) {
        if (spec_is_possible(c, *at, 0))
            at = &(*at)->next;
        else
            *at = (*at)->next;
    }
    return list;
}

/* --- values of keywords ------------------------------------------------------------- */

/* Returns a count: a whole number from 0 on. */
static int32_t count_of(struct schema *c, const char *key, const struct json *v)
{
    double real;
    if (!json_real_of(v, &real) || real < 0 || real != (double)(int64_t)MIN(real, 1e15))
        malformed(c, key, "a whole number from 0 on");
    return (int32_t)MIN(real, (double)REPEAT_ENDLESS - 1);
}

static const struct decimal *number_of(struct schema *c, const char *key,
                                       const struct json *v)
{
    double real;
    if (!json_real_of(v, &real))
        malformed(c, key, "a number");
    struct decimal *d = build_alloc(c->b, sizeof *d);
    *d = decimal_of(c->b, v);
    return d;
}

static unsigned type_bit(struct schema *c, const char *name, bool *integer)
{
    static const struct {
        const char *name;
        unsigned bit;
    } types[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOL}, {"number", TYPE_NUMBER},
                 {"string", TYPE_STRING}, {"array", TYPE_ARRAY},  {"object", TYPE_OBJECT},
                 {"integer", TYPE_NUMBER}};
    for (size_t i = 0; name != NULL && i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, types[i].name) == 0) {
            *integer = strcmp(name, "integer") == 0;
            return types[i].bit;
        }
    }
    malformed(c, "type", "the name of a type, or an array of names");
}

/* Returns the types of a `type` keyword; *integer: numbers are integers only. */
static unsigned types_of(struct schema *c, const struct json *v, bool *integer)
{
    unsigned types = 0;
    bool number = false, one;
    *integer = false;
    if (json_kind(v) != JSON_KIND_ARRAY)
        return type_bit(c, json_string_of(v, NULL), integer);
    for (size_t i = 0; i < json_count(v); i++) {
        unsigned bit = type_bit(c, json_string_of(json_at(v, i), NULL), &one);
        types |= bit;
        number |= bit == TYPE_NUMBER && !one;
        *integer |= one;
    }
    *integer = *integer && !number;
    return types;
}

/* --- keywords that bound one type --------------------------------------------------- */

/* Makes a bound that is left out one that is not: 3.9999999999999999 reads as 4, so what lies below
 * 4 ends at the double before it. */
static const struct decimal *closed(struct schema *c, const struct decimal *d, bool up,
                                    bool *open)
{
    struct decimal next;
    if (!*open || !decimal_next(c->b, d, up, &next))
        return d;
    struct decimal *p = build_alloc(c->b, sizeof *p);
    *p = next;
    *open = false;
    return p;
}

static void bound_below(struct schema *c, struct spec *s, const struct decimal *d,
                        bool above)
{
    d = closed(c, d, true, &above);
    int cmp = s->number.lo == NULL ? 1 : decimal_compare(d, s->number.lo);
    if (cmp > 0 || (cmp == 0 && above)) {
        s->number.lo = d;
        s->number.above = above;
    }
}

static void bound_above(struct schema *c, struct spec *s, const struct decimal *d,
                        bool below)
{
    d = closed(c, d, false, &below);
    int cmp = s->number.hi == NULL ? -1 : decimal_compare(d, s->number.hi);
    if (cmp < 0 || (cmp == 0 && below)) {
        s->number.hi = d;
        s->number.below = below;
    }
}

static void bound_multiple(struct schema *c, struct spec *s, const struct json *v)
{
    const struct decimal *d = number_of(c, "multipleOf", v);
    if (d->minus || (d->whole[0] == '0' && decimal_is_integer(d)))
        malformed(c, "multipleOf", "a number above 0");
    if (!number_set_multiple(&s->number, d))
        schema_refuse(c, "multipleOf");
}

static void add_text(struct schema *c, struct spec *s, const struct dfa *d)
{
    struct dfa_list *l = build_alloc(c->b, sizeof *l);
    *l = (struct dfa_list){.next = s->texts, .dfa = d};
    s->texts = l;
}

static void add_required(struct schema *c, struct spec *s, const char *key)
{
    for (const struct text_list *t = s->required; t != NULL; t = t->next)
        if (strcmp(t->text, key) == 0)
            return;
    struct text_list *t = build_alloc(c->b, sizeof *t);
    *t = (struct text_list){.text = key};
    /* The list keeps the order of the schema. */
    const struct text_list **end = &s->required;
    struct text_list *copy = NULL;
    for (const struct text_list *k = s->required; k != NULL; k = k->next) {
        copy = build_alloc(c->b, sizeof *copy);
        *copy = (struct text_list){.text = k->text};
        *end = copy;
        end = &copy->next;
    }
    *end = t;
}

static void add_named(struct schema *c, struct spec *s, const char *key, struct want w)
{
    struct object_part *p = build_alloc(c->b, sizeof *p);
    *p = (struct object_part){
        .next = s->objects, .only_name = want_new(c, w), .name = key, .base = w.base};
    s->objects = p;
}

static void add_contains(struct schema *c, struct spec *s, struct want w, int64_t min,
                         int64_t max)
{
    struct want_list *l = build_alloc(c->b, sizeof *l);
    *l = (struct want_list){.next = s->contains, .want = w, .min = min, .max = max};
    s->contains = l;
}

static bool is_true(const struct json *v)
{
    bool b = false;
    return json_bool_of(v, &b) && b;
}

/* Keywords whose value is compared with a number or a string of the value. The order of the
 * schema's text decides nothing. */
static bool bound(struct schema *c, const struct apply *a, const char *key,
                  const struct json *v, struct spec *s)
{
    const struct json *of = a->schema;
    bool integer;
    if (strcmp(key, "type") == 0) {
        unsigned types = types_of(c, v, &integer);
        s->types &= types;
        if ((types & TYPE_NUMBER) && integer)
            s->number.integers = true;
    } else if (strcmp(key, "minimum") == 0) {
        bound_below(c, s, number_of(c, key, v),
                    is_true(json_member(of, "exclusiveMinimum")));
    } else if (strcmp(key, "maximum") == 0) {
        bound_above(c, s, number_of(c, key, v),
                    is_true(json_member(of, "exclusiveMaximum")));
    } else if (strcmp(key, "exclusiveMinimum") == 0) {
        if (json_kind(v) != JSON_KIND_BOOL)
            bound_below(c, s, number_of(c, key, v), true);
    } else if (strcmp(key, "exclusiveMaximum") == 0) {
        if (json_kind(v) != JSON_KIND_BOOL)
            bound_above(c, s, number_of(c, key, v), true);
    } else if (strcmp(key, "multipleOf") == 0) {
        bound_multiple(c, s, v);
    } else if (strcmp(key, "minLength") == 0) {
        s->min_length = MAX(s->min_length, count_of(c, key, v));
    } else if (strcmp(key, "maxLength") == 0) {
        s->max_length = MIN(s->max_length, count_of(c, key, v));
    } else if (strcmp(key, "minItems") == 0) {
        s->min_items = MAX(s->min_items, count_of(c, key, v));
    } else if (strcmp(key, "maxItems") == 0) {
        s->max_items = MIN(s->max_items, count_of(c, key, v));
    } else if (strcmp(key, "minProperties") == 0) {
        s->min_properties = MAX(s->min_properties, count_of(c, key, v));
    } else if (strcmp(key, "maxProperties") == 0) {
        s->max_properties = MIN(s->max_properties, count_of(c, key, v));
    } else {
        return false;
    }
    return true;
}

/* apart: the lengths of a pattern may become bounds of their own. */
static void bound_strings(struct schema *c, const char *key, const struct json *v,
                          bool apart, struct spec *list)
{
    size_t n;
    const char *text = json_string_of(v, &n);
    struct pattern p = {.max = REPEAT_ENDLESS};
    if (text == NULL)
        malformed(c, key, "a string");
    if (strcmp(key, "format") == 0) {
        text = schema_format(text);
        if (text == NULL)
            return;
        p.dfa = schema_pattern(c, text, strlen(text), true);
    } else if (apart) {
        p = *schema_counted_pattern(c, text, n);
    } else {
        p.dfa = schema_pattern(c, text, n, false);
    }
    for (struct spec *s = list; s != NULL; s = s->next) {
        add_text(c, s, p.dfa);
        s->min_length = MAX(s->min_length, p.min);
        s->max_length = MIN(s->max_length, p.max);
    }
}

/* --- values ------------------------------------------------------------------------- */

bool schema_values_equal(struct schema *c, const struct json *a, const struct json *b)
{
    double x, y;
    size_t na = 0, nb = 0;
    if (json_real_of(a, &x) && json_real_of(b, &y)) {
        struct decimal da = decimal_of(c->b, a), db = decimal_of(c->b, b);
        return decimal_compare(&da, &db) == 0;
    }
    if (json_kind(a) != json_kind(b) || json_count(a) != json_count(b))
        return false;
    bool ba = false, bb = false;
    switch (json_kind(a)) {
    case JSON_KIND_BOOL:
        json_bool_of(a, &ba);
        json_bool_of(b, &bb);
        return ba == bb;
    case JSON_KIND_STRING: {
        const char *sa = json_string_of(a, &na), *sb = json_string_of(b, &nb);
        return na == nb && memcmp(sa, sb, na) == 0;
    }
    case JSON_KIND_ARRAY:
        for (size_t i = 0; i < json_count(a); i++)
            if (!schema_values_equal(c, json_at(a, i), json_at(b, i)))
                return false;
        return true;
    case JSON_KIND_OBJECT:
        for (struct json_iter it = json_begin(a); json_next(&it);) {
            const struct json *other = json_member(b, it.key);
            if (other == NULL || !schema_values_equal(c, it.value, other))
                return false;
        }
        return true;
    default:
        return true; /* null */
    }
}

static bool has_value(struct schema *c, const struct value_list *l, const struct json *v)
{
    for (; l != NULL; l = l->next)
        if (schema_values_equal(c, l->value, v))
            return true;
    return false;
}

/* Narrows a spec to n values, the elements of an array or one. */
static void only_values(struct schema *c, struct spec *s, const struct json *v,
                        bool is_enum)
{
    const struct value_list *kept = NULL;
    size_t n = is_enum ? json_count(v) : 1;
    for (size_t i = n; i > 0; i--) {
        const struct json *one = is_enum ? json_at(v, i - 1) : v;
        if (s->has_values && !has_value(c, s->values, one))
            continue;
        struct value_list *l = build_alloc(c->b, sizeof *l);
        *l = (struct value_list){.next = kept, .value = one};
        kept = l;
    }
    s->values = kept;
    s->has_values = true;
}

/* --- objects and arrays ------------------------------------------------------------- */

static const struct json *object_member(struct schema *c, const struct json *of,
                                        const char *key)
{
    const struct json *v = json_member(of, key);
    if (v != NULL && json_kind(v) != JSON_KIND_OBJECT)
        malformed(c, key, "an object");
    return v;
}

static void add_object_part(struct schema *c, const struct apply *a, struct spec *list)
{
    const struct json *more = json_member(a->schema, "additionalProperties");
    struct object_part part = {.properties = object_member(c, a->schema, "properties"),
                               .patterns = object_member(c, a->schema, "patternProperties"),
                               .base = a->base};
    if (more != NULL)
        part.additional = want_new(c, want_of(c, more, a->base, false));
    for (struct spec *s = list; s != NULL; s = s->next) {
        struct object_part *p = build_alloc(c->b, sizeof *p);
        *p = part;
        p->next = s->objects;
        s->objects = p;
    }
}

static void add_array_part(struct schema *c, const struct apply *a, struct spec *list)
{
    const struct json *items = json_member(a->schema, "items");
    bool old = json_kind(items) ==
               JSON_KIND_ARRAY; /* before 2020-12, whatever "$schema" says */
    struct array_part part = {.prefix = old ? items : json_member(a->schema, "prefixItems"),
                              .base = a->base};
    const struct json *rest = old ? json_member(a->schema, "additionalItems") : items;
    if (c->draft < 2020 && !old)
        part.prefix = NULL;
    if (part.prefix != NULL && json_kind(part.prefix) != JSON_KIND_ARRAY)
        malformed(c, "prefixItems", "an array");
    if (rest != NULL)
        part.rest = want_new(c, want_of(c, rest, a->base, false));
    for (struct spec *s = list; s != NULL; s = s->next) {
        struct array_part *p = build_alloc(c->b, sizeof *p);
        *p = part;
        p->next = s->arrays;
        s->arrays = p;
    }
}

static void add_contains_of(struct schema *c, const struct apply *a, struct spec *list)
{
    const struct json *v = json_member(a->schema, "contains");
    const struct json *min = json_member(a->schema, "minContains");
    const struct json *max = json_member(a->schema, "maxContains");
    struct want w = want_of(c, v, a->base, false);
    int32_t least = min == NULL || c->draft < 2019 ? 1 : count_of(c, "minContains", min);
    int32_t most = max == NULL || c->draft < 2019 ? -1 : count_of(c, "maxContains", max);
    for (struct spec *s = list; s != NULL && (least > 0 || most >= 0); s = s->next)
        add_contains(c, s, w, least, most);
}

static void add_required_of(struct schema *c, const struct json *v, struct spec *s)
{
    if (json_kind(v) != JSON_KIND_ARRAY)
        malformed(c, "required", "an array of strings");
    for (size_t i = 0; i < json_count(v); i++) {
        size_t n;
        const char *key = json_string_of(json_at(v, i), &n);
        if (key == NULL || strlen(key) != n)
            malformed(c, "required", "an array of strings");
        add_required(c, s, key);
    }
}

/* --- alternatives ------------------------------------------------------------------- */

static const struct json *schema_array(struct schema *c, const struct apply *a,
                                       const char *key)
{
    const struct json *v = json_member(a->schema, key);
    if (json_kind(v) != JSON_KIND_ARRAY || json_count(v) == 0)
        malformed(c, key, "an array of schemas");
    return v;
}

static struct spec *any_of(struct schema *c, const struct apply *a, const struct json *v,
                           bool negated, const struct spec *list)
{
    struct spec *out = NULL;
    c->n_branches++;
    for (size_t i = 0; i < json_count(v); i++)
        out = append(
            c, out,
            apply(c, want_of(c, json_at(v, i), a->base, negated), copy_list(c, list)));
    return out;
}

static struct spec *all_of(struct schema *c, const struct apply *a, const struct json *v,
                           bool negated, struct spec *list)
{
    for (size_t i = 0; i < json_count(v); i++)
        list = apply(c, want_of(c, json_at(v, i), a->base, negated), list);
    return list;
}

static bool any_possible(struct schema *c, const struct spec *list)
{
    for (; list != NULL; list = list->next)
        if (spec_is_possible(c, list, 3))
            return true;
    return false;
}

/* Exactly one of several: where two overlap, each is taken without the other. */
static struct spec *one_of(struct schema *c, const struct apply *a, const struct json *v,
                           const struct spec *list)
{
    struct spec *out = NULL;
    size_t n = json_count(v);
    c->n_branches++;
    for (size_t i = 0; i < n; i++) {
        struct spec *one = apply(c, want_of(c, json_at(v, i), a->base, false),
                                 copy_list(c, list));
        for (size_t k = 0; k < n && one != NULL; k++) {
            if (k == i)
                continue;
            struct want other = want_of(c, json_at(v, k), a->base, false);
            if (!any_possible(c, apply(c, other, copy_list(c, one))))
                continue;
            other.negated = true;
            one = apply(c, other, one);
        }
        out = append(c, out, one);
    }
    return out;
}

static struct spec *if_then_else(struct schema *c, const struct apply *a,
                                 const struct spec *list)
{
    const struct json *yes = json_member(a->schema, "then"),
                      *no = json_member(a->schema, "else");
    struct want w = want_of(c, json_member(a->schema, "if"), a->base, false);
    struct spec *one = copy_list(c, list), *other = copy_list(c, list);
    c->n_branches++; /* unevaluated keywords also look at an `if` alone */
    if (yes == NULL && no == NULL)
        return one;
    one = apply(c, w, one);
    if (yes != NULL)
        one = apply(c, want_of(c, yes, a->base, false), one);
    w.negated = true;
    other = apply(c, w, other);
    if (no != NULL)
        other = apply(c, want_of(c, no, a->base, false), other);
    return append(c, one, other);
}

/* Splits each spec: the key is absent, or it is there and what it asks for holds. */
static struct spec *depend(struct schema *c, const struct apply *a, const char *key,
                           const struct json *on, const struct spec *list)
{
    struct spec *without = copy_list(c, list), *with = copy_list(c, list);
    c->n_branches++;
    for (struct spec *s = without; s != NULL; s = s->next)
        add_named(c, s, key, (struct want){.schema = NULL, .base = a->base});
    for (struct spec *s = with; s != NULL; s = s->next) {
        s->types &= TYPE_OBJECT; /* the first alternative has all other types */
        add_required(c, s, key);
        if (json_kind(on) == JSON_KIND_ARRAY)
            add_required_of(c, on, s);
    }
    if (json_kind(on) != JSON_KIND_ARRAY)
        with = apply(c, want_of(c, on, a->base, false), with);
    return append(c, without, sift(c, with));
}

/* --- negation ----------------------------------------------------------------------- */

/* Narrows list to values of one type. */
static struct spec *of_type(struct schema *c, unsigned type, const struct spec *list)
{
    struct spec *out = copy_list(c, list);
    for (struct spec *s = out; s != NULL; s = s->next)
        s->types &= type;
    return out;
}

static struct spec *not_type(struct schema *c, const struct json *v,
                             const struct spec *list)
{
    bool integer;
    unsigned types = types_of(c, v, &integer);
    struct spec *out = of_type(c, TYPE_ALL & ~types, list);
    if (integer) {
        struct spec *fractions = of_type(c, TYPE_NUMBER, list);
        for (struct spec *s = fractions; s != NULL; s = s->next)
            s->number.fractions = true;
        out = append(c, out, fractions);
    }
    return out;
}

static struct spec *not_value(struct schema *c, const struct json *v, struct spec *list)
{
    double real;
    bool b;
    for (struct spec *s = list; s != NULL; s = s->next) {
        if (s->has_values) {
            const struct value_list *kept = NULL, **end = &kept;
            for (const struct value_list *l = s->values; l != NULL; l = l->next) {
                if (schema_values_equal(c, l->value, v))
                    continue;
                struct value_list *k = build_alloc(c->b, sizeof *k);
                k->value = l->value;
                *end = k;
                end = &k->next;
            }
            s->values = kept;
        } else if (json_kind(v) == JSON_KIND_NULL) {
            s->types &= ~(unsigned)TYPE_NULL;
        } else if (json_bool_of(v, &b)) {
            if (s->types & TYPE_BOOL) {
                /* Of two booleans one is left. It is noted as excluded; see schema_emit.c. */
                struct value_list *l = build_alloc(c->b, sizeof *l);
                *l = (struct value_list){.next = s->excluded, .value = v};
                s->excluded = l;
            }
        } else if (json_string_of(v, &(size_t){0}) != NULL || json_real_of(v, &real)) {
            struct value_list *l = build_alloc(c->b, sizeof *l);
            *l = (struct value_list){.next = s->excluded, .value = v};
            s->excluded = l;
        } else if (s->types &
                   (json_kind(v) == JSON_KIND_ARRAY ? TYPE_ARRAY : TYPE_OBJECT)) {
            schema_refuse(c, "not");
        }
    }
    return list;
}

/* Properties negated: one of them is there and does not match. */
static struct spec *not_properties(struct schema *c, const struct apply *a,
                                   const struct json *v, const struct spec *list)
{
    struct spec *out = NULL;
    for (struct json_iter it = json_begin(v); json_next(&it);) {
        struct spec *one = of_type(c, TYPE_OBJECT, list);
        for (struct spec *s = one; s != NULL; s = s->next) {
            add_required(c, s, it.key);
            add_named(c, s, it.key, want_of(c, it.value, a->base, true));
        }
        out = append(c, out, sift(c, one));
    }
    return out;
}

static struct spec *not_required(struct schema *c, const struct apply *a,
                                 const struct json *v, const struct spec *list)
{
    struct spec *out = NULL;
    for (size_t i = 0; i < json_count(v); i++) {
        const char *key = json_string_of(json_at(v, i), NULL);
        struct spec *one = of_type(c, TYPE_OBJECT, list);
        if (key == NULL)
            malformed(c, "required", "an array of strings");
        for (struct spec *s = one; s != NULL; s = s->next)
            add_named(c, s, key, (struct want){.schema = NULL, .base = a->base});
        out = append(c, out, sift(c, one));
    }
    return out;
}

/* Returns the spec with a key that is there and has a schema besides. */
static struct spec *with_key(struct schema *c, const struct spec *s, const char *key,
                             struct want w)
{
    struct spec *one = build_alloc(c->b, sizeof *one);
    *one = *s;
    one->next = NULL;
    one->types = TYPE_OBJECT;
    add_required(c, one, key);
    add_named(c, one, key, w);
    return sift(c, one);
}

/* additionalProperties or patternProperties negated, where the keys of an object are known: one of
 * those that the keyword looks at is there and does not match. */
static struct spec *not_other_keys(struct schema *c, const struct apply *a,
                                   const struct json *additional, const struct spec *list)
{
    const struct json *properties = object_member(c, a->schema, "properties"),
                      *patterns = object_member(c, a->schema, "patternProperties");
    struct spec *out = NULL;
    for (const struct spec *s = list; s != NULL; s = s->next) {
        const struct json *keys = s->types & TYPE_OBJECT ? spec_all_keys(s) : NULL;
        if ((s->types & TYPE_OBJECT) && keys == NULL)
            schema_refuse(c, "not");
        for (struct json_iter it = json_begin(keys); keys != NULL && json_next(&it);) {
            if (additional != NULL && json_member(properties, it.key) == NULL &&
                !schema_matches_pattern(c, patterns, it.key))
                out = append(c, out,
                             with_key(c, s, it.key, want_of(c, additional, a->base, true)));
            for (struct json_iter p = json_begin(patterns);
                 additional == NULL && json_next(&p);)
                if (dfa_contains(schema_pattern(c, p.key, strlen(p.key), false), it.key,
                                 strlen(it.key)))
                    out = append(
                        c, out, with_key(c, s, it.key, want_of(c, p.value, a->base, true)));
        }
    }
    return out;
}

/* oneOf negated: none matches, or two do. */
static struct spec *not_one_of(struct schema *c, const struct apply *a,
                               const struct spec *list)
{
    const struct json *v = schema_array(c, a, "oneOf");
    struct spec *out = all_of(c, a, v, true, copy_list(c, list));
    c->n_branches++;
    for (size_t i = 0; i < json_count(v); i++) {
        struct spec *one = apply(c, want_of(c, json_at(v, i), a->base, false),
                                 copy_list(c, list));
        for (size_t k = i + 1; k < json_count(v) && one != NULL; k++)
            out = append(
                c, out,
                apply(c, want_of(c, json_at(v, k), a->base, false), copy_list(c, one)));
    }
    return out;
}

/* Returns the specs of values that break a bound. */
static struct spec *not_bound(struct schema *c, const struct apply *a, const char *key,
                              const struct json *v, const struct spec *list)
{
    static const struct {
        const char *key;
        unsigned type;
    } types[] = {{"minimum", TYPE_NUMBER},          {"maximum", TYPE_NUMBER},
                 {"exclusiveMinimum", TYPE_NUMBER}, {"exclusiveMaximum", TYPE_NUMBER},
                 {"minLength", TYPE_STRING},        {"maxLength", TYPE_STRING},
                 {"minItems", TYPE_ARRAY},          {"maxItems", TYPE_ARRAY},
                 {"minProperties", TYPE_OBJECT},    {"maxProperties", TYPE_OBJECT}};
    unsigned type = 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].key, key) == 0)
            type = types[i].type;
    struct spec *out = of_type(c, type, list);
    bool lower = strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0;
    for (struct spec *s = out; s != NULL; s = s->next) {
        if (type == TYPE_NUMBER) {
            const struct decimal *d = number_of(c, key, v);
            bool exclusive = key[0] == 'e' ||
                             is_true(json_member(a->schema, lower ? "exclusiveMinimum"
                                                                  : "exclusiveMaximum"));
            if (lower)
                bound_above(c, s, d, !exclusive);
            else
                bound_below(c, s, d, !exclusive);
            continue;
        }
        int32_t n = count_of(c, key, v);
        int32_t *min = type == TYPE_STRING  ? &s->min_length
                       : type == TYPE_ARRAY ? &s->min_items
                                            : &s->min_properties;
        int32_t *max = type == TYPE_STRING  ? &s->max_length
                       : type == TYPE_ARRAY ? &s->max_items
                                            : &s->max_properties;
        if (lower && n == 0)
            s->types = 0;
        else if (lower)
            *max = MIN(*max, n - 1);
        else
            *min = MAX(*min, n + 1);
    }
    return sift(c, out);
}

static struct spec *not_text(struct schema *c, const char *key, const struct json *v,
                             const struct spec *list)
{
    struct spec one = {.types = TYPE_STRING, .max_length = REPEAT_ENDLESS};
    bound_strings(c, key, v, false, &one);
    if (one.texts == NULL) /* an annotation holds for all */
        return NULL;
    struct spec *out = of_type(c, TYPE_STRING, list);
    const struct dfa *d = one.texts->dfa;
    d = dfa_combine(c->b, dfa_any(c->b), d, DFA_MINUS);
    for (struct spec *s = out; s != NULL; s = s->next)
        add_text(c, s, d);
    return out;
}

/* Keywords without an effect on whether a value matches, or that another keyword reads. */
static bool says_nothing(const struct schema *c, const struct apply *a, const char *key)
{
    static const char *const read_elsewhere[] = {"then", "else", "minContains",
                                                 "maxContains", "additionalItems"};
    for (size_t i = 0; i < sizeof read_elsewhere / sizeof *read_elsewhere; i++)
        if (strcmp(key, read_elsewhere[i]) == 0)
            return true;
    if ((strcmp(key, "exclusiveMinimum") == 0 || strcmp(key, "exclusiveMaximum") == 0) &&
        json_kind(json_member(a->schema, key)) == JSON_KIND_BOOL)
        return true;
    return strcmp(key, "prefixItems") == 0 && c->draft < 2020;
}

/* Elements negated: one element does not match. contains negated: too few match. */
static struct spec *not_items(struct schema *c, const struct apply *a, const char *key,
                              const struct json *v, const struct spec *list)
{
    struct spec *out = of_type(c, TYPE_ARRAY, list);
    const struct json *min = json_member(a->schema, "minContains");
    bool items = strcmp(key, "items") == 0;
    int32_t least = min == NULL || c->draft < 2019 ? 1 : count_of(c, "minContains", min);
    if (!items && json_member(a->schema, "maxContains") != NULL && c->draft >= 2019)
        schema_refuse(c, "not");
    for (struct spec *s = out; s != NULL; s = s->next) {
        if (items)
            add_contains(c, s, want_of(c, v, a->base, true), 1, -1);
        else if (least == 0)
            s->types = 0;
        else
            add_contains(c, s, want_of(c, v, a->base, false), 0, least - 1);
    }
    return sift(c, out);
}

/* The elements of a list of schemas negated: one is there and does not match. `more` false allows
 * none behind them. */
static struct spec *not_tuple(struct schema *c, const struct apply *a, const struct json *v,
                              const struct json *more, const struct spec *list)
{
    struct spec *out = NULL;
    size_t n = json_count(v);
    bool any = true;
    if (more != NULL && !json_bool_of(more, &any))
        schema_refuse(c, "not"); /* an element behind them would have to be found */
    for (size_t i = 0; i < n + !any; i++) {
        struct spec *one = of_type(c, TYPE_ARRAY, list);
        for (struct spec *s = one; s != NULL; s = s->next) {
            s->min_items = MAX(s->min_items, (int32_t)i + 1);
            if (i == n)
                continue;
            struct array_part *p = build_alloc(c->b, sizeof *p);
            *p = (struct array_part){
                .next = s->arrays,
                .only_item = want_new(c, want_of(c, json_at(v, i), a->base, true)),
                .at = (uint32_t)i,
                .base = a->base};
            s->arrays = p;
        }
        out = append(c, out, sift(c, one));
    }
    return out;
}

static struct spec *not_if(struct schema *c, const struct apply *a, const struct spec *list)
{
    const struct json *yes = json_member(a->schema, "then"),
                      *no = json_member(a->schema, "else");
    struct want w = want_of(c, json_member(a->schema, "if"), a->base, false);
    struct spec *one = NULL, *other = NULL;
    if (yes != NULL) {
        one = apply(c, w, copy_list(c, list));
        one = apply(c, want_of(c, yes, a->base, true), one);
    }
    if (no != NULL) {
        w.negated = true;
        other = apply(c, w, copy_list(c, list));
        other = apply(c, want_of(c, no, a->base, true), other);
    }
    return append(c, one, other);
}

static struct spec *apply_negated(struct schema *c, const struct apply *a,
                                  const struct spec *list)
{
    static const char *const bounds[] = {
        "minimum",   "maximum",  "exclusiveMinimum", "exclusiveMaximum", "minLength",
        "maxLength", "minItems", "maxItems",         "minProperties",    "maxProperties"};
    /* Negations of these would need to count or to compare elements. */
    static const char *const hard[] = {"multipleOf",
                                       "uniqueItems",
                                       "propertyNames",
                                       "dependencies",
                                       "dependentSchemas",
                                       "dependentRequired",
                                       "unevaluatedProperties",
                                       "unevaluatedItems",
                                       "$dynamicRef",
                                       "$recursiveRef"};
    struct spec *out = NULL;
    c->n_branches++;
    for (struct json_iter it = json_begin(a->schema); json_next(&it);) {
        struct spec *one = NULL;
        const char *key = it.key;
        bool done = false, no = false;
        for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
            done |= strcmp(key, bounds[i]) == 0;
        if (says_nothing(c, a, key))
            continue;
        if (done) {
            one = not_bound(c, a, key, it.value, list);
        } else if (strcmp(key, "type") == 0) {
            one = sift(c, not_type(c, it.value, list));
        } else if (strcmp(key, "const") == 0 && c->draft > 4) {
            one = sift(c, not_value(c, it.value, copy_list(c, list)));
        } else if (strcmp(key, "enum") == 0) {
            one = copy_list(c, list);
            for (size_t i = 0; i < json_count(it.value); i++)
                one = not_value(c, json_at(it.value, i), one);
            one = sift(c, one);
        } else if (strcmp(key, "pattern") == 0 || strcmp(key, "format") == 0) {
            one = not_text(c, key, it.value, list);
        } else if (strcmp(key, "required") == 0) {
            one = not_required(c, a, it.value, list);
        } else if (strcmp(key, "properties") == 0) {
            one = not_properties(c, a, object_member(c, a->schema, key), list);
        } else if (strcmp(key, "$ref") == 0 && json_string_of(it.value, NULL) != NULL) {
            struct want w = schema_resolve(c, a->base, json_string_of(it.value, NULL));
            w = want_of(c, w.schema, w.base, true);
            one = apply(c, w, copy_list(c, list));
        } else if (strcmp(key, "not") == 0) {
            one = apply(c, want_of(c, it.value, a->base, false), copy_list(c, list));
        } else if (strcmp(key, "items") == 0 && json_kind(it.value) == JSON_KIND_ARRAY) {
            one = not_tuple(c, a, it.value, json_member(a->schema, "additionalItems"),
                            list);
        } else if (strcmp(key, "prefixItems") == 0) {
            one = not_tuple(c, a, schema_array(c, a, key), json_member(a->schema, "items"),
                            list);
        } else if ((strcmp(key, "items") == 0 && json_kind(it.value) != JSON_KIND_ARRAY &&
                    json_member(a->schema, "prefixItems") == NULL) ||
                   (strcmp(key, "contains") == 0 && c->draft > 4)) {
            one = not_items(c, a, key, it.value, list);
        } else if (strcmp(key, "if") == 0 && c->draft > 6) {
            one = not_if(c, a, list);
        } else if (strcmp(key, "additionalProperties") == 0) {
            one = not_other_keys(c, a, it.value, list);
        } else if (strcmp(key, "patternProperties") == 0) {
            one = not_other_keys(c, a, NULL, list);
        } else if (strcmp(key, "oneOf") == 0) {
            one = not_one_of(c, a, list);
        } else if (strcmp(key, "anyOf") == 0) {
            one = all_of(c, a, schema_array(c, a, key), true, copy_list(c, list));
        } else if (strcmp(key, "allOf") == 0) {
            one = any_of(c, a, schema_array(c, a, key), true, list);
        } else {
            for (size_t i = 0; i < sizeof hard / sizeof *hard; i++)
                no |= strcmp(key, hard[i]) == 0;
            if (no)
                schema_refuse(c, "not");
        }
        out = append(c, out, one);
    }
    return out;
}

/* --- a schema ----------------------------------------------------------------------- */

/* unevaluatedProperties and unevaluatedItems count what all other keywords of the same object have
 * looked at. With alternatives that depends on which of them match. */
static void unevaluated(struct schema *c, const struct apply *a, const char *key,
                        const struct json *v, uint64_t branches, struct spec *list,
                        const struct spec *before)
{
    bool object = strcmp(key, "unevaluatedProperties") == 0;
    if (c->draft < 2019)
        return;
    if (is_true(v)) { /* everything counts as looked at */
        for (struct spec *s = list; s != NULL; s = s->next) {
            struct object_part *p = build_alloc(c->b, sizeof *p);
            struct array_part *q = build_alloc(c->b, sizeof *q);
            const struct want *all = want_new(c, want_of(c, v, a->base, false));
            *p = (struct object_part){
                .next = s->objects, .additional = all, .base = a->base};
            *q = (struct array_part){.next = s->arrays, .rest = all, .base = a->base};
            s->objects = object ? p : s->objects;
            s->arrays = object ? s->arrays : q;
        }
        return;
    }
    if (c->n_branches != branches || list == NULL || list->next != NULL) {
        schema_refuse(c, key);
        return;
    }
    if (object) {
        const struct object_part *end = before == NULL ? NULL : before->objects;
        struct object_part *p = build_alloc(c->b, sizeof *p);
        for (const struct object_part *q = list->objects; q != end; q = q->next)
            if (q->additional != NULL)
                return; /* every key is evaluated */
        *p = (struct object_part){.next = list->objects,
                                  .additional = want_new(c, want_of(c, v, a->base, false)),
                                  .base = a->base,
                                  .evaluates_all = true,
                                  .end = end};
        list->objects = p;
        return;
    }
    const struct array_part *end = before == NULL ? NULL : before->arrays;
    const struct json *longest = NULL;
    if (list->contains != NULL) {
        schema_refuse(c, key);
        return;
    }
    for (const struct array_part *q = list->arrays; q != end; q = q->next) {
        if (q->rest != NULL)
            return;
        if (json_count(q->prefix) > json_count(longest))
            longest = q->prefix;
    }
    struct array_part *p = build_alloc(c->b, sizeof *p);
    *p = (struct array_part){.next = list->arrays,
                             .prefix = longest,
                             .rest = want_new(c, want_of(c, v, a->base, false)),
                             .base = a->base};
    list->arrays = p;
}

static struct spec *apply_ref(struct schema *c, const struct apply *a, const char *key,
                              const struct json *v, struct spec *list)
{
    const char *ref = json_string_of(v, NULL);
    if (ref == NULL)
        malformed(c, key, "a string");
    if (strcmp(key, "$recursiveRef") == 0 || strcmp(key, "$dynamicRef") == 0) {
        const char *name = strchr(ref, '#');
        int n = 0;
        for (const struct anchor *k = c->anchors; k != NULL && name != NULL; k = k->next)
            n += k->dynamic && strcmp(k->name, name + 1) == 0;
        if (n > 1 || strcmp(key, "$recursiveRef") == 0) {
            schema_refuse(c, key);
            return list;
        }
    }
    struct want w = schema_resolve(c, a->base, ref);
    return apply(c, want_of(c, w.schema, w.base, false), list);
}

static struct spec *apply_dependencies(struct schema *c, const struct apply *a,
                                       const char *key, struct spec *list)
{
    const struct json *v = object_member(c, a->schema, key);
    for (struct json_iter it = json_begin(v); json_next(&it) && list != NULL;)
        list = depend(c, a, it.key, it.value, list);
    return list;
}

/* Applies one keyword of a schema. */
static struct spec *keyword(struct schema *c, const struct apply *a, const char *key,
                            const struct json *v, struct spec *list)
{
    const struct json *of = a->schema;
    for (struct spec *s = list; s != NULL; s = s->next)
        if (!bound(c, a, key, v, s))
            break;
    if (strcmp(key, "pattern") == 0 || strcmp(key, "format") == 0) {
        bound_strings(c, key, v, true, list);
    } else if (strcmp(key, "enum") == 0 || (strcmp(key, "const") == 0 && c->draft > 4)) {
        if (key[0] == 'e' && json_kind(v) != JSON_KIND_ARRAY)
            malformed(c, key, "an array");
        for (struct spec *s = list; s != NULL; s = s->next)
            only_values(c, s, v, key[0] == 'e');
    } else if (strcmp(key, "required") == 0) {
        for (struct spec *s = list; s != NULL; s = s->next)
            add_required_of(c, v, s);
    } else if (strcmp(key, "properties") == 0 || strcmp(key, "patternProperties") == 0 ||
               strcmp(key, "additionalProperties") == 0) {
        /* One part for the three: at the first of them. */
        const char *first = json_member(of, "properties")          ? "properties"
                            : json_member(of, "patternProperties") ? "patternProperties"
                                                                   : "additionalProperties";
        if (strcmp(key, first) == 0)
            add_object_part(c, a, list);
    } else if (strcmp(key, "items") == 0 || strcmp(key, "prefixItems") == 0) {
        bool both = json_member(of, "items") != NULL &&
                    json_member(of, "prefixItems") != NULL;
        if (!both || strcmp(key, "items") == 0)
            add_array_part(c, a, list);
    } else if (strcmp(key, "contains") == 0 && c->draft > 4) {
        add_contains_of(c, a, list);
    } else if (strcmp(key, "uniqueItems") == 0 && is_true(v)) {
        for (struct spec *s = list; s != NULL; s = s->next)
            s->unique_items = true;
    } else if (strcmp(key, "propertyNames") == 0 && c->draft > 4) {
        for (struct spec *s = list; s != NULL; s = s->next) {
            struct want_list *l = build_alloc(c->b, sizeof *l);
            *l = (struct want_list){.next = s->names,
                                    .want = want_of(c, v, a->base, false)};
            s->names = l;
        }
    } else if (strcmp(key, "$ref") == 0 || strcmp(key, "$dynamicRef") == 0 ||
               strcmp(key, "$recursiveRef") == 0) {
        list = apply_ref(c, a, key, v, list);
    } else if (strcmp(key, "allOf") == 0) {
        list = all_of(c, a, schema_array(c, a, key), false, list);
    } else if (strcmp(key, "anyOf") == 0) {
        list = any_of(c, a, schema_array(c, a, key), false, list);
    } else if (strcmp(key, "oneOf") == 0) {
        list = one_of(c, a, schema_array(c, a, key), list);
    } else if (strcmp(key, "not") == 0) {
        list = apply(c, want_of(c, v, a->base, true), list);
    } else if (strcmp(key, "if") == 0 && c->draft > 6) {
        list = if_then_else(c, a, list);
    } else if (strcmp(key, "dependencies") ==
                   0 || /* also later, where it is not forbidden */
               ((strcmp(key, "dependentSchemas") == 0 ||
                 strcmp(key, "dependentRequired") == 0) &&
                c->draft >= 2019)) {
        list = apply_dependencies(c, a, key, list);
    }
    return sift(c, list);
}

/* Applies a schema to each spec of a list, which it may change. Returns the list that remains. */
static struct spec *apply(struct schema *c, struct want w, struct spec *list)
{
    bool value;
    if (list == NULL || w.schema == NULL) /* no schema: nothing matches */
        return NULL;
    if (json_bool_of(w.schema, &value))
        return value != w.negated ? list : NULL;
    if (++c->depth > MAX_NESTED)
        build_fault(c->b, ERR_UNSUPPORTED,
                    "the schema's $ref leads back to itself without an "
                    "object or an array between");
    const struct apply a = {.schema = w.schema, .base = w.base};
    const struct json *ref = json_member(w.schema, "$ref");
    struct spec *before = copy_list(c, list);
    uint64_t branches = c->n_branches;
    if (w.negated) {
        list = apply_negated(c, &a, list);
    } else if (ref != NULL && c->draft <= 7) { /* its neighbours are ignored */
        list = apply_ref(c, &a, "$ref", ref, list);
    } else {
        /* multipleOf wants to know whether numbers are integers. A schema's own keys come before
         * those of its $ref, allOf and the like. */
        static const char *const first[] = {"type", "properties", "patternProperties",
                                            "additionalProperties"};
        for (size_t i = 0; i < 4; i++) {
            const struct json *v = json_member(w.schema, first[i]);
            list = v == NULL || list == NULL ? list : keyword(c, &a, first[i], v, list);
        }
        for (struct json_iter it = json_begin(w.schema); json_next(&it) && list != NULL;) {
            bool done = false;
            for (size_t i = 0; i < 4; i++)
                done |= strcmp(it.key, first[i]) == 0;
            list = done ? list : keyword(c, &a, it.key, it.value, list);
        }
        static const char *const last[] = {"unevaluatedProperties", "unevaluatedItems"};
        for (size_t i = 0; i < 2 && list != NULL; i++)
            if (json_member(w.schema, last[i]) != NULL)
                unevaluated(c, &a, last[i], json_member(w.schema, last[i]), branches, list,
                            before->next == NULL ? before : NULL);
    }
    c->depth--;
    return list;
}

struct spec *schema_expand(struct schema *c, const struct goal *g)
{
    struct spec *list = build_alloc(c->b, sizeof *list);
    *list = (struct spec){.types = TYPE_ALL,
                          .max_length = REPEAT_ENDLESS,
                          .max_items = REPEAT_ENDLESS,
                          .max_properties = REPEAT_ENDLESS};
    for (uint32_t i = 0; i < g->n && list != NULL; i++)
        list = apply(c, g->at[i], list);
    return list;
}
