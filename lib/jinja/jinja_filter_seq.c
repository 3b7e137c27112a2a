/* jinja_filter_seq.c - the filters over lists and dicts.
 *
 * In Jinja map, select, reject, unique, reverse and items return generators: they can be walked
 * once, have no length, and are always true.  Here all their items are computed at once and
 * returned as J_ITER, which keeps those three properties.  A failure in computing an item is
 * therefore reported at once, not when the generator is walked. */
#include "jinja/jinja_impl.h"

#include <string.h>

static bool flag(struct jinja *j, const struct jval *v)
{
    return v->kind != J_MISSING && jval_truth(j, v);
}

static bool given(const struct jval *v)
{
    return v->kind != J_MISSING && v->kind != J_NONE;
}

static void no_arguments(struct jinja *j, const struct jcall *c)
{
    jcall_bind(j, c, NULL, 0, 0, NULL);
}

/* Returns the key by which an item is compared: the item or its attribute, in lower case unless
 * case_sensitive. */
static struct jval sort_key(struct jinja *j, const struct jval *item,
                            const struct jval *attribute, bool case_sensitive)
{
    struct jval v = given(attribute) ? jval_getpath(j, *item, attribute) : *item;
    return v.kind == J_STR && !case_sensitive ? jval_str(jstr_lower(j, v.str)) : v;
}

/* --- one item, or a number ---------------------------------------------------------- */

static struct jval f_length(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    return jval_int(jval_len(j, &c->self));
}

static struct jval f_first(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    if (c->self.kind == J_ITER && c->self.seq->pos < c->self.seq->n)
        return c->self.seq->at[c->self.seq->pos++];
    const struct jseq *q = jval_items(j, &c->self);
    return q->n != 0 ? q->at[0] : jval_undef_hint(j, "No first item, sequence was empty.");
}

static struct jval f_last(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    if (c->self.kind == J_ITER)
        jinja_fail(j, ERR_MISMATCH, "'%s' object is not reversible", jval_type(&c->self));
    const struct jseq *q = jval_items(j, &c->self);
    return q->n != 0 ? q->at[q->n - 1]
                     : jval_undef_hint(j, "No last item, sequence was empty.");
}

static struct jval f_sum(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"attribute", "start"};
    struct jval a[2];
    jcall_bind(j, c, names, 2, 0, a);
    struct jval total = a[1].kind != J_MISSING ? a[1] : jval_int(0);
    if (total.kind == J_STR)
        jinja_fail(j, ERR_MISMATCH, "sum() can't sum strings");
    const struct jseq *q = jval_items(j, &c->self);
    for (size_t i = 0; i < q->n; i++) {
        struct jval v = given(&a[0]) ? jval_getpath(j, q->at[i], &a[0]) : q->at[i];
        total = jinja_binary(j, OP_ADD, &total, &v);
    }
    return total;
}

static struct jval extreme(struct jinja *j, const struct jcall *c, bool greatest)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    struct jval a[2];
    jcall_bind(j, c, names, 2, 0, a);
    const struct jseq *q = jval_items(j, &c->self);
    if (q->n == 0)
        return jval_undef_hint(j, "No aggregated item, sequence was empty.");
    size_t best = 0;
    struct jval key = sort_key(j, &q->at[0], &a[1], flag(j, &a[0]));
    for (size_t i = 1; i < q->n; i++) {
        struct jval other = sort_key(j, &q->at[i], &a[1], flag(j, &a[0]));
        int d = jval_order(j, &other, &key, greatest ? ">" : "<");
        if (greatest ? d > 0 : d < 0) {
            best = i;
            key = other;
        }
    }
    return q->at[best];
}

static struct jval f_min(struct jinja *j, const struct jcall *c)
{
    return extreme(j, c, false);
}

static struct jval f_max(struct jinja *j, const struct jcall *c)
{
    return extreme(j, c, true);
}

static struct jval f_join(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"d", "attribute"};
    struct jval a[2];
    struct jbuf b = {0};
    jcall_bind(j, c, names, 2, 0, a);
    struct jstr between = a[0].kind != J_MISSING ? jval_to_str(j, &a[0]) : JLIT("");
    const struct jseq *q = jval_items(j, &c->self);
    for (size_t i = 0; i < q->n; i++) {
        struct jval v = given(&a[1]) ? jval_getpath(j, q->at[i], &a[1]) : q->at[i];
        if (i != 0)
            jbuf_put(j, &b, between.s, between.n);
        jval_print(j, &b, &v);
    }
    return jval_buf(&b);
}

/* --- other sequences ---------------------------------------------------------------- */

static struct jval copy_seq(struct jinja *j, enum jkind kind, const struct jseq *q)
{
    struct jval out = jval_seq(j, kind, q->n);
    if (q->n != 0)
        memcpy(out.seq->at, q->at, q->n * sizeof *q->at);
    return out;
}

static struct jval f_list(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    return copy_seq(j, J_LIST, jval_items(j, &c->self));
}

static struct jval f_reverse(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    struct jval none = jval_none(), back = jval_int(-1);
    if (c->self.kind == J_STR)
        return jval_slice(j, &c->self, &none, &none, &back);
    if (!jval_iterable(&c->self))
        jinja_fail(j, ERR_MISMATCH, "argument must be iterable");
    const struct jseq *q = jval_items(j, &c->self);
    /* Jinja returns an iterator for values that Python's reversed() accepts, and a list for all
     * others. */
    bool listed = c->self.kind == J_ITER;
    struct jval out = jval_seq(j, listed ? J_LIST : J_ITER, q->n);
    for (size_t i = 0; i < q->n; i++)
        out.seq->at[i] = q->at[q->n - 1 - i];
    return out;
}

static struct jval f_items(struct jinja *j, const struct jcall *c)
{
    no_arguments(j, c);
    if (c->self.kind == J_UNDEF)
        return jval_seq(j, J_ITER, 0);
    if (c->self.kind != J_DICT)
        jinja_fail(j, ERR_MISMATCH, "Can only get item pairs from a mapping.");
    struct jmethod items = {.self = c->self, .name = "items"};
    struct jcall call = {0};
    struct jval view = jmethod_call(j, &items, &call);
    return (struct jval){.kind = J_ITER, .seq = view.seq};
}

/* Sorts `at` by `keys`, stably and in place, by insertion: templates sort a dozen names. */
static void sort_by(struct jinja *j, struct jval *at, struct jval *keys, size_t n,
                    bool reverse)
{
    for (size_t i = 1; i < n; i++) {
        struct jval item = at[i], key = keys[i];
        size_t k = i;
        for (; k > 0; k--) {
            int d = jval_order(j, &key, &keys[k - 1], "<");
            if (reverse ? d <= 0 : d >= 0)
                break;
            at[k] = at[k - 1];
            keys[k] = keys[k - 1];
        }
        at[k] = item;
        keys[k] = key;
    }
}

static struct jval f_sort(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"reverse", "case_sensitive", "attribute"};
    struct jval a[3];
    size_t comma;
    jcall_bind(j, c, names, 3, 0, a);
    if (a[2].kind == J_STR && jstr_find(j, a[2].str, JLIT(","), 0, &comma))
        jinja_fail(j, ERR_UNSUPPORTED, "sort by several attributes");
    struct jval out = copy_seq(j, J_LIST, jval_items(j, &c->self));
    struct jval *keys = jinja_calloc(j, out.seq->n, sizeof *keys);
    for (size_t i = 0; i < out.seq->n; i++)
        keys[i] = sort_key(j, &out.seq->at[i], &a[2], flag(j, &a[1]));
    sort_by(j, out.seq->at, keys, out.seq->n, flag(j, &a[0]));
    return out;
}

static struct jval f_dictsort(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"case_sensitive", "by", "reverse"};
    struct jval a[3], none = jval_none();
    jcall_bind(j, c, names, 3, 0, a);
    bool by_value = a[1].kind == J_STR && jstr_is(a[1].str, "value");
    if (a[1].kind != J_MISSING && !by_value &&
        !(a[1].kind == J_STR && jstr_is(a[1].str, "key")))
        jinja_fail(j, ERR_MISMATCH, "You can only sort by either \"key\" or \"value\"");
    jval_need(j, &c->self);
    if (c->self.kind != J_DICT)
        jinja_fail(j, ERR_MISMATCH, "dictsort: '%s' is not a dict", jval_type(&c->self));
    struct jmethod items = {.self = c->self, .name = "items"};
    struct jcall call = {0};
    struct jval out = jmethod_call(j, &items, &call);
    out.kind = J_LIST;
    struct jval *keys = jinja_calloc(j, out.seq->n, sizeof *keys);
    for (size_t i = 0; i < out.seq->n; i++)
        keys[i] = sort_key(j, &out.seq->at[i].seq->at[by_value], &none, flag(j, &a[0]));
    sort_by(j, out.seq->at, keys, out.seq->n, flag(j, &a[2]));
    return out;
}

static struct jval f_unique(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    struct jval a[2];
    jcall_bind(j, c, names, 2, 0, a);
    const struct jseq *q = jval_items(j, &c->self);
    struct jval out = jval_seq(j, J_ITER, q->n);
    struct jdict *seen = jval_dict(j).dict;
    out.seq->n = 0;
    for (size_t i = 0; i < q->n; i++) {
        struct jval key = sort_key(j, &q->at[i], &a[1], flag(j, &a[0]));
        if (jdict_find(j, seen, key) != NULL)
            continue;
        jdict_put(j, seen, key, jval_none());
        out.seq->at[out.seq->n++] = q->at[i];
    }
    return out;
}

/* --- with another filter or a test -------------------------------------------------- */

/* Makes the call of the filter or test whose name is an argument of c (of map, select and so on),
 * for one item. It gets c's arguments after the first `skip`. */
static struct jcall rest_of(const struct jcall *c, size_t skip, const struct jval *item)
{
    return (struct jcall){.self = *item,
                          .args = c->args + skip,
                          .n_args = c->n_args - skip,
                          .kw = c->kw,
                          .n_kw = c->n_kw};
}

static struct jval map_attribute(struct jinja *j, const struct jcall *c,
                                 const struct jval *item)
{
    struct jval *otherwise = jcall_kwarg(c, "default");
    if (c->n_kw != 1 + (otherwise != NULL))
        jinja_fail(j, ERR_MISMATCH, "map: unexpected keyword argument");
    struct jval v = jval_getpath(j, *item, jcall_kwarg(c, "attribute"));
    return v.kind == J_UNDEF && otherwise != NULL && given(otherwise) ? *otherwise : v;
}

static struct jval f_map(struct jinja *j, const struct jcall *c)
{
    bool by_attribute = c->n_args == 0 && jcall_kwarg(c, "attribute") != NULL;
    if (!jval_truth(j, &c->self) && c->self.kind != J_ITER)
        /* A false value gives an empty list. That includes None, over which no other filter may
         * iterate. */
        return jval_seq(j, J_ITER, 0);
    if (!by_attribute && (c->n_args == 0 || c->args[0].kind != J_STR))
        jinja_fail(j, ERR_MISMATCH, "map requires a filter argument");
    const struct jseq *q = jval_items(j, &c->self);
    struct jval out = jval_seq(j, J_ITER, q->n);
    for (size_t i = 0; i < q->n; i++) {
        if (by_attribute) {
            out.seq->at[i] = map_attribute(j, c, &q->at[i]);
        } else {
            struct jcall inner = rest_of(c, 1, &q->at[i]);
            out.seq->at[i] = jinja_call_filter(j, c->args[0].str, &inner);
        }
    }
    return out;
}

static struct jval select_items(struct jinja *j, const struct jcall *c, bool want,
                                bool attribute)
{
    size_t off = attribute;
    if (!jval_truth(j, &c->self) && c->self.kind != J_ITER)
        return jval_seq(j, J_ITER, 0);
    if (c->n_args < off)
        jinja_fail(j, ERR_MISMATCH, "Missing parameter for attribute name");
    if (c->n_args > off && c->args[off].kind != J_STR)
        jinja_fail(j, ERR_MISMATCH, "%s: the test's name must be a string", c->what);
    const struct jseq *q = jval_items(j, &c->self);
    struct jval out = jval_seq(j, J_ITER, q->n);
    out.seq->n = 0;
    for (size_t i = 0; i < q->n; i++) {
        struct jval v = attribute ? jval_getpath(j, q->at[i], &c->args[0]) : q->at[i];
        bool yes;
        if (c->n_args > off) {
            struct jcall inner = rest_of(c, off + 1, &v);
            yes = jinja_call_test(j, c->args[off].str, &inner);
        } else {
            yes = jval_truth(j, &v);
        }
        if (yes == want)
            out.seq->at[out.seq->n++] = q->at[i];
    }
    return out;
}

static struct jval f_select(struct jinja *j, const struct jcall *c)
{
    return select_items(j, c, true, false);
}

static struct jval f_reject(struct jinja *j, const struct jcall *c)
{
    return select_items(j, c, false, false);
}

static struct jval f_selectattr(struct jinja *j, const struct jcall *c)
{
    return select_items(j, c, true, true);
}

static struct jval f_rejectattr(struct jinja *j, const struct jcall *c)
{
    return select_items(j, c, false, true);
}

const struct jfunc jinja_filters_seq[] = {
    {"count", f_length},
    {"dictsort", f_dictsort},
    {"first", f_first},
    {"items", f_items},
    {"join", f_join},
    {"last", f_last},
    {"length", f_length},
    {"list", f_list},
    {"map", f_map},
    {"max", f_max},
    {"min", f_min},
    {"reject", f_reject},
    {"rejectattr", f_rejectattr},
    {"reverse", f_reverse},
    {"select", f_select},
    {"selectattr", f_selectattr},
    {"sort", f_sort},
    {"sum", f_sum},
    {"unique", f_unique},
    {NULL, NULL},
};
