/* jinja_value.c - values and Python's operations on them: truth, equality, order, items.
 *
 * Values are small and copied.  The data to which they point lies in the arena and never changes,
 * except the dict of a namespace.  JSON strings are borrowed from the caller's tree, which outlives
 * the render.
 *
 * Dicts keep their order and are searched from the front, because a message has a handful of
 * members. The search is counted as steps, so a template with a huge dict reaches the limit of
 * steps and does not run for long. */
#include "jinja/jinja_impl.h"

#include "base/check.h"
#include "base/minmax.h"

#include <math.h>
#include <string.h>

/* --- making ------------------------------------------------------------------------- */

static struct jval undef(struct jinja *j, struct jundef u)
{
    struct jundef *p = jinja_alloc(j, sizeof *p);
    *p = u;
    return (struct jval){.kind = J_UNDEF, .undef = p};
}

struct jval jval_undef_name(struct jinja *j, struct jstr name)
{
    return undef(j, (struct jundef){.why = UNDEF_NAME, .name = name});
}

struct jval jval_undef_hint(struct jinja *j, const char *hint)
{
    return undef(j, (struct jundef){.why = UNDEF_HINT, .name = {hint, strlen(hint)}});
}

struct jval jval_none(void)
{
    return (struct jval){.kind = J_NONE};
}

struct jval jval_bool(bool b)
{
    return (struct jval){.kind = J_BOOL, .b = b};
}

struct jval jval_int(int64_t i)
{
    return (struct jval){.kind = J_INT, .i = i};
}

struct jval jval_real(double f)
{
    return (struct jval){.kind = J_REAL, .f = f};
}

struct jval jval_str(struct jstr s)
{
    return (struct jval){.kind = J_STR, .str = s};
}

struct jval jval_text(const char *s)
{
    return jval_str((struct jstr){s, strlen(s)});
}

struct jval jval_buf(const struct jbuf *b)
{
    return jval_str((struct jstr){b->n != 0 ? b->s : "", b->n});
}

struct jval jval_seq(struct jinja *j, enum jkind kind, size_t n)
{
    struct jseq *q = jinja_alloc(j, sizeof *q);
    *q = (struct jseq){.at = jinja_calloc(j, n, sizeof *q->at), .n = n};
    for (size_t i = 0; i < n; i++)
        q->at[i].kind = J_NONE;
    jinja_charge(j, n * sizeof *q->at);
    return (struct jval){.kind = kind, .seq = q};
}

struct jval jval_dict(struct jinja *j)
{
    return (struct jval){.kind = J_DICT, .dict = jinja_calloc(j, 1, sizeof(struct jdict))};
}

static void dict_append(struct jinja *j, struct jdict *d, struct jval key,
                        struct jval value)
{
    if (d->n == d->cap) {
        size_t cap = d->cap == 0 ? 8 : 2 * d->cap;
        struct jpair *grown = jinja_calloc(j, cap, sizeof *grown);
        if (d->n != 0)
            memcpy(grown, d->at, d->n * sizeof *grown);
        d->at = grown;
        d->cap = cap;
    }
    d->at[d->n++] = (struct jpair){key, value};
}

void jdict_put(struct jinja *j, struct jdict *d, struct jval key, struct jval value)
{
    struct jval *there = jdict_find(j, d, key);
    if (there != NULL)
        *there = value;
    else
        dict_append(j, d, key, value);
}

static bool hashable(const struct jval *v)
{
    if (v->kind == J_TUPLE) {
        for (size_t i = 0; i < v->seq->n; i++)
            if (!hashable(&v->seq->at[i]))
                return false;
        return true;
    }
    return v->kind != J_LIST && v->kind != J_DICT && v->kind != J_VIEW;
}

struct jval *jdict_find(struct jinja *j, const struct jdict *d, struct jval key)
{
    if (!hashable(&key))
        jinja_fail(j, ERR_MISMATCH, "unhashable type: '%s'", jval_type(&key));
    jinja_charge(j, d->n * 8);
    if (key.kind == J_STR)
        return jdict_find_str(d, key.str);
    for (size_t i = 0; i < d->n; i++)
        if (jval_equal(j, &d->at[i].key, &key))
            return &d->at[i].value;
    return NULL;
}

struct jval *jdict_find_str(const struct jdict *d, struct jstr key)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->at[i].key.kind == J_STR && jstr_equal(d->at[i].key.str, key))
            return &d->at[i].value;
    return NULL;
}

/* --- from JSON ---------------------------------------------------------------------- */

static struct jval member_from_json(struct jinja *j, const char *key, const struct json *v);

static struct jval key_from_json(struct jinja *j, const char *key)
{
    struct jval k = jval_text(key);
    if (j->trace != NULL && j->trace->is_foreign)
        k.str = jtrace_foreign(j, NULL, k.str);
    return k;
}

static struct jval list_from_json(struct jinja *j, const struct json *v)
{
    struct jval list = jval_seq(j, J_LIST, json_count(v));
    for (size_t i = 0; i < list.seq->n; i++)
        list.seq->at[i] = member_from_json(j, NULL, json_at(v, i));
    return list;
}

static struct jval dict_from_json(struct jinja *j, const struct json *v)
{
    struct jval dict = jval_dict(j);
    struct json_iter it = json_begin(v);
    while (json_next(&it)) /* the keys of a parsed object are already unique */
        dict_append(j, dict.dict, key_from_json(j, it.key),
                    member_from_json(j, it.key, it.value));
    return dict;
}

static struct jval marked_list(struct jinja *j, const struct json *v)
{
    struct jval list = jval_seq(j, J_LIST, json_count(v));
    for (size_t i = 0; i < list.seq->n; i++) {
        j->trace->element = i;
        list.seq->at[i] = member_from_json(j, NULL, json_at(v, i));
    }
    return list;
}

struct jval jval_from_json(struct jinja *j, const struct json *v)
{
    return member_from_json(j, NULL, v);
}

struct jval jval_from_foreign(struct jinja *j, const struct json *v, bool is_marked)
{
    struct jtrace *t = j->trace;
    if (t == NULL)
        return jval_from_json(j, v);
    t->is_foreign = true;
    t->is_marked = is_marked && json_kind(v) == JSON_KIND_ARRAY;
    struct jval out = t->is_marked ? marked_list(j, v) : member_from_json(j, NULL, v);
    t->is_foreign = t->is_marked = false;
    return out;
}

/* Returns whether a string of a foreign variable is not traced: see jinja_input.traces. */
static bool is_own(const struct jinja_input *in, const char *key, const char *s)
{
    if (in->own_key == NULL || key == NULL || strcmp(key, in->own_key) != 0)
        return false;
    const char *const *own = in->own_values;
    while (*own != NULL && strcmp(*own, s) != 0)
        own++;
    return *own != NULL;
}

static struct jval member_from_json(struct jinja *j, const char *key, const struct json *v)
{
    struct jval out = jval_none();
    jinja_charge(j, 0);
    jinja_enter(j);
    switch (json_kind(v)) {
    case JSON_KIND_NULL:
        break;
    case JSON_KIND_BOOL: {
        bool b = false;
        json_bool_of(v, &b);
        out = jval_bool(b);
        break;
    }
    case JSON_KIND_INT: {
        int64_t i = 0;
        struct jstr digits = {0};
        out = jval_int(0);
        if (json_int_of(v, &i))
            out = jval_int(i);
        else if ((digits.s = json_big_of(v, &digits.n)) != NULL)
            out = (struct jval){.kind = J_BIG, .str = digits};
        break;
    }
    case JSON_KIND_REAL: {
        double f = 0;
        json_real_of(v, &f);
        out = jval_real(f);
        break;
    }
    case JSON_KIND_STRING: {
        struct jstr s = {0};
        s.s = json_string_of(v, &s.n);
        if (j->trace != NULL && j->trace->is_foreign && !is_own(j->trace->in, key, s.s))
            s = jtrace_foreign(j, key, s);
        out = jval_str(s);
        break;
    }
    case JSON_KIND_ARRAY:
        out = list_from_json(j, v);
        break;
    case JSON_KIND_OBJECT:
        out = dict_from_json(j, v);
        break;
    }
    jinja_leave(j);
    return out;
}

/* --- looking ------------------------------------------------------------------------ */

bool jstr_is(struct jstr a, const char *b)
{
    return strlen(b) == a.n && memcmp(a.s, b, a.n) == 0;
}

bool jstr_equal(struct jstr a, struct jstr b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
}

const char *jval_type(const struct jval *v)
{
    static const char *const names[] = {
        [J_MISSING] = "missing",  [J_UNDEF] = "Undefined",
        [J_NONE] = "NoneType",    [J_BOOL] = "bool",
        [J_INT] = "int",          [J_BIG] = "int",
        [J_REAL] = "float",       [J_STR] = "str",
        [J_LIST] = "list",        [J_TUPLE] = "tuple",
        [J_DICT] = "dict",        [J_RANGE] = "range",
        [J_VIEW] = "dict_items",  [J_ITER] = "generator",
        [J_NS] = "Namespace",     [J_MACRO] = "Macro",
        [J_FUNC] = "function",    [J_METHOD] = "builtin_function_or_method",
        [J_LOOP] = "LoopContext",
    };
    return v->kind == J_STR && v->safe ? "Markup" : names[v->kind];
}

bool jval_is_number(const struct jval *v)
{
    /* Arithmetic with J_BIG is not supported, so it does not count as a number there. */
    return v->kind == J_INT || v->kind == J_BOOL || v->kind == J_REAL;
}

int64_t jval_as_int(const struct jval *v)
{
    return v->kind == J_BOOL ? v->b : v->i;
}

double jval_as_real(const struct jval *v)
{
    return v->kind == J_REAL ? v->f : (double)jval_as_int(v);
}

bool jval_truth(struct jinja *j, const struct jval *v)
{
    switch (v->kind) {
    case J_MISSING:
    case J_UNDEF:
    case J_NONE:
        return false;
    case J_BOOL:
        return v->b;
    case J_INT:
        return v->i != 0;
    case J_BIG:
        return true;
    case J_REAL:
        return v->f != 0;
    case J_STR:
        return v->str.n != 0;
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
    case J_VIEW:
        return v->seq->n != 0;
    case J_DICT:
        return v->dict->n != 0;
    case J_LOOP:
        return jval_len(j, v) != 0;
    case J_ITER:
    case J_NS:
    case J_MACRO:
    case J_FUNC:
    case J_METHOD:
        break;
    }
    return true;
}

void jval_fail_undef(struct jinja *j, const struct jval *v)
{
    const struct jundef *u = v->undef;
    struct jbuf b = {0};
    struct jval name = jval_str(u->name);
    switch (u->why) {
    case UNDEF_NAME:
        jval_repr(j, &b, &name);
        jinja_fail(j, ERR_MISMATCH, "%.*s is undefined", JARG(b));
    case UNDEF_ATTR:
        jval_repr(j, &b, &name);
        jinja_fail(j, ERR_MISMATCH, "'%s' has no attribute %.*s", u->type, JARG(b));
    case UNDEF_ITEM:
        jval_repr(j, &b, &u->key);
        jinja_fail(j, ERR_MISMATCH, "%s has no element %.*s", u->type, JARG(b));
    case UNDEF_UNSAFE:
        jval_repr(j, &b, &name);
        jinja_fail(j, ERR_MISMATCH, "access to attribute %.*s of '%s' object is unsafe.",
                   JARG(b), u->type);
    case UNDEF_HINT:
        break;
    }
    jinja_fail(j, ERR_MISMATCH, "%.*s", JARG(u->name));
}

void jval_need(struct jinja *j, const struct jval *v)
{
    if (v->kind == J_UNDEF)
        jval_fail_undef(j, v);
}

/* --- equality and order ------------------------------------------------------------- */

static bool dicts_equal(struct jinja *j, const struct jdict *a, const struct jdict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct jval *other = jdict_find(j, b, a->at[i].key);
        if (other == NULL || !jval_equal(j, &a->at[i].value, other))
            return false;
    }
    return true;
}

static bool seqs_equal(struct jinja *j, const struct jseq *a, const struct jseq *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jval_equal(j, &a->at[i], &b->at[i]))
            return false;
    return true;
}

bool jval_equal(struct jinja *j, const struct jval *a, const struct jval *b)
{
    bool equal = false;
    jinja_charge(j, 0);
    if (jval_is_number(a) && jval_is_number(b))
        return a->kind == J_REAL || b->kind == J_REAL ? jval_as_real(a) == jval_as_real(b)
                                                      : jval_as_int(a) == jval_as_int(b);
    if (a->kind != b->kind)
        return false;
    jinja_enter(j);
    switch (a->kind) {
    case J_MISSING:
    case J_UNDEF:
    case J_NONE:
        equal = true;
        break;
    case J_STR:
    case J_BIG:
        jinja_charge(j, a->str.n);
        equal = jstr_equal(a->str, b->str);
        break;
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
        equal = seqs_equal(j, a->seq, b->seq);
        break;
    case J_DICT:
        equal = dicts_equal(j, a->dict, b->dict);
        break;
    case J_FUNC:
        equal = a->func == b->func;
        break;
    case J_METHOD:
    case J_VIEW:
        jinja_fail(j, ERR_UNSUPPORTED, "comparison of '%s' objects", jval_type(a));
    default:
        equal = a->seq == b->seq; /* such values are compared by identity */
        break;
    }
    jinja_leave(j);
    return equal;
}

static int order_strings(struct jstr a, struct jstr b)
{
    size_t n = MIN(a.n, b.n);
    /* in UTF-8 the order of bytes equals the order of code points */
    int d = n != 0 ? memcmp(a.s, b.s, n) : 0;
    return d != 0 ? d : (a.n > b.n) - (a.n < b.n);
}

static int order_numbers(struct jinja *j, const struct jval *a, const struct jval *b)
{
    if (a->kind != J_REAL && b->kind != J_REAL) {
        int64_t x = jval_as_int(a), y = jval_as_int(b);
        return (x > y) - (x < y);
    }
    double x = jval_as_real(a), y = jval_as_real(b);
    if (isnan(x) || isnan(y))
        jinja_fail(j, ERR_UNSUPPORTED, "comparison with NaN");
    return (x > y) - (x < y);
}

static int order_seqs(struct jinja *j, const struct jseq *a, const struct jseq *b,
                      const char *op)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (!jval_equal(j, &a->at[i], &b->at[i]))
            return jval_order(j, &a->at[i], &b->at[i], op);
    return (a->n > b->n) - (a->n < b->n);
}

int jval_order(struct jinja *j, const struct jval *a, const struct jval *b, const char *op)
{
    jval_need(j, a);
    jval_need(j, b);
    jinja_charge(j, 0);
    if (jval_is_number(a) && jval_is_number(b))
        return order_numbers(j, a, b);
    if (a->kind == J_BIG || b->kind == J_BIG)
        jinja_fail(j, ERR_UNSUPPORTED, "'%s' with integers beyond 64 bits", op);
    if (a->kind == J_STR && b->kind == J_STR) {
        jinja_charge(j, a->str.n);
        return order_strings(a->str, b->str);
    }
    if (a->kind != b->kind || (a->kind != J_LIST && a->kind != J_TUPLE))
        jinja_fail(j, ERR_MISMATCH, "'%s' not supported between instances of '%s' and '%s'",
                   op, jval_type(a), jval_type(b));
    jinja_enter(j);
    int d = order_seqs(j, a->seq, b->seq, op);
    jinja_leave(j);
    return d;
}

/* --- items -------------------------------------------------------------------------- */

bool jval_iterable(const struct jval *v)
{
    switch (v->kind) {
    case J_UNDEF:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_RANGE:
    case J_VIEW:
    case J_ITER:
    case J_LOOP:
        return true;
    default:
        return false;
    }
}

static struct jseq *characters(struct jinja *j, struct jstr s)
{
    struct jseq *q = jval_seq(j, J_LIST, jutf_len(s)).seq;
    for (size_t i = 0, at = 0; i < q->n; i++) {
        size_t k = jutf_offset((struct jstr){s.s + at, s.n - at}, 1);
        q->at[i] = jval_str((struct jstr){s.s + at, k});
        at += k;
    }
    return q;
}

struct jseq *jval_items(struct jinja *j, const struct jval *v)
{
    struct jseq *q;
    switch (v->kind) {
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
    case J_VIEW:
        /* the caller will walk the items */
        jinja_charge(j, v->seq->n * sizeof *v->seq->at);
        return v->seq;
    case J_ITER:
        jinja_charge(j, v->seq->n * sizeof *v->seq->at);
        q = jinja_alloc(j, sizeof *q);
        *q = (struct jseq){.at = v->seq->at + v->seq->pos, .n = v->seq->n - v->seq->pos};
        v->seq->pos = v->seq->n;
        return q;
    case J_UNDEF:
        return jval_seq(j, J_LIST, 0).seq;
    case J_STR:
        return characters(j, v->str);
    case J_DICT:
        q = jval_seq(j, J_LIST, v->dict->n).seq;
        for (size_t i = 0; i < q->n; i++)
            q->at[i] = v->dict->at[i].key;
        return q;
    case J_LOOP:
        jinja_fail(j, ERR_UNSUPPORTED, "iteration over 'loop'");
    default:
        jinja_fail(j, ERR_MISMATCH, "'%s' object is not iterable", jval_type(v));
    }
}

int64_t jval_len(struct jinja *j, const struct jval *v)
{
    switch (v->kind) {
    case J_UNDEF:
        return 0;
    case J_STR:
        jinja_charge(j, v->str.n);
        return (int64_t)jutf_len(v->str);
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
    case J_VIEW:
        return (int64_t)v->seq->n;
    case J_DICT:
        return (int64_t)v->dict->n;
    case J_LOOP:
        return jloop_attr(j, v->loop, JLIT("length")).i;
    default:
        jinja_fail(j, ERR_MISMATCH, "object of type '%s' has no len()", jval_type(v));
    }
}

bool jval_contains(struct jinja *j, const struct jval *item, const struct jval *in)
{
    if (in->kind == J_STR) {
        size_t at;
        if (item->kind != J_STR)
            jinja_fail(j, ERR_MISMATCH,
                       "'in <string>' requires string as left operand, not %s",
                       jval_type(item));
        return jstr_find(j, in->str, item->str, 0, &at);
    }
    if (in->kind == J_DICT)
        return jdict_find(j, in->dict, *item) != NULL;
    if (!jval_iterable(in))
        jinja_fail(j, ERR_MISMATCH, "argument of type '%s' is not iterable", jval_type(in));
    struct jseq rest = {0};
    /* A generator goes on after the item that was found. */
    struct jseq *q = in->kind == J_ITER ? in->seq : &rest;
    if (q == &rest)
        rest = *jval_items(j, in);
    for (q->pos = in->kind == J_ITER ? q->pos : 0; q->pos < q->n;)
        if (jval_equal(j, &q->at[q->pos++], item))
            return true;
    return false;
}

/* --- slices ------------------------------------------------------------------------- */

static bool slice_part(struct jinja *j, const struct jval *v, int64_t *out)
{
    if (v->kind == J_NONE)
        return false;
    if (v->kind != J_INT && v->kind != J_BOOL)
        jinja_fail(j, ERR_MISMATCH, "slice indices must be integers or None");
    *out = jval_as_int(v);
    return true;
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    i = i < 0 ? (i < -n ? -1 - n : i) + n : i;
    return i < low ? low : MIN(high, i);
}

/* Computes Python's slice.indices for n items. Returns the number of selected items. */
static size_t slice_bounds(struct jinja *j, int64_t n, const struct jval *start,
                           const struct jval *stop, const struct jval *step, int64_t *first,
                           int64_t *by)
{
    int64_t end = 0;
    *by = 1;
    slice_part(j, step, by);
    if (*by == 0)
        jinja_fail(j, ERR_MISMATCH, "slice step cannot be zero");
    int64_t low = *by < 0 ? -1 : 0, high = *by < 0 ? n - 1 : n;
    *first = *by < 0 ? high : low;
    if (slice_part(j, start, first))
        *first = clamp(*first, n, low, high);
    end = *by < 0 ? low : high;
    if (slice_part(j, stop, &end))
        end = clamp(end, n, low, high);
    int64_t span = *by > 0 ? end - *first : *first - end;
    uint64_t stride = *by > 0 ? (uint64_t)*by : 0 - (uint64_t)*by;
    return span <= 0 ? 0 : (size_t)(((uint64_t)span - 1) / stride + 1);
}

static struct jval slice_string(struct jinja *j, struct jstr s, size_t count, int64_t first,
                                int64_t by)
{
    if (by == 1) {
        size_t from = jutf_offset(s, (size_t)first);
        struct jstr rest = {s.s + from, s.n - from};
        rest.n = jutf_offset(rest, count);
        return jval_str(rest);
    }
    const struct jseq *chars = characters(j, s);
    struct jbuf b = {0};
    for (size_t i = 0; i < count; i++) {
        struct jstr c = chars->at[first + (int64_t)i * by].str;
        jbuf_put(j, &b, c.s, c.n);
    }
    return jval_buf(&b);
}

struct jval jval_slice(struct jinja *j, const struct jval *v, const struct jval *start,
                       const struct jval *stop, const struct jval *step)
{
    int64_t first, by;
    jval_need(j, v);
    if (v->kind == J_STR) {
        int64_t n = jval_len(j, v);
        size_t count = slice_bounds(j, n, start, stop, step, &first, &by);
        return count == 0 ? jval_text("") : slice_string(j, v->str, count, first, by);
    }
    if (v->kind != J_LIST && v->kind != J_TUPLE)
        jinja_fail(j, v->kind == J_RANGE ? ERR_UNSUPPORTED : ERR_MISMATCH,
                   "a '%s' object cannot be sliced", jval_type(v));
    size_t count = slice_bounds(j, (int64_t)v->seq->n, start, stop, step, &first, &by);
    struct jval out = jval_seq(j, v->kind, count);
    for (size_t i = 0; i < count; i++)
        out.seq->at[i] = v->seq->at[first + (int64_t)i * by];
    return out;
}
