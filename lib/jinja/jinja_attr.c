/* jinja_attr.c - attributes and items of values, and calls of methods and functions.
 *
 * Jinja's rule: `x.name` looks for Python's attribute first and then for the item; `x['name']`
 * looks in the opposite order. So d.items is the method even if the dict d has a key "items", and
 * d['items'] is then the item. The attributes of Python's own types are therefore listed here. A
 * name that is neither an attribute nor an item is undefined. Only its use is an error.
 *
 * The sandbox: a method that would change a value, and a name like __class__, give an undefined
 * value, whose use is an error. */
#include "jinja/jinja_impl.h"

#include <string.h>

/* --- arguments of built-ins --------------------------------------------------------- */

struct jval *jcall_kwarg(const struct jcall *c, const char *name)
{
    for (size_t i = 0; i < c->n_kw; i++)
        if (jstr_is(c->kw[i].name, name))
            return &c->kw[i].value;
    return NULL;
}

void jcall_bind(struct jinja *j, const struct jcall *c, const char *const *names,
                size_t n_names, size_t n_required, struct jval *out)
{
    size_t used = 0;
    if (c->n_args > n_names)
        jinja_fail(j, ERR_MISMATCH, "%s() takes at most %zu arguments (%zu given)", c->what,
                   n_names, c->n_args);
    for (size_t i = 0; i < n_names; i++) {
        struct jval *named = names[i] != NULL ? jcall_kwarg(c, names[i]) : NULL;
        used += named != NULL;
        if (named != NULL && i < c->n_args)
            jinja_fail(j, ERR_MISMATCH, "%s() got multiple values for argument '%s'",
                       c->what, names[i]);
        if (i >= c->n_args && named == NULL && i < n_required)
            jinja_fail(j, ERR_MISMATCH, "%s() is missing argument %zu", c->what, i + 1);
        out[i] = i < c->n_args ? c->args[i] : named != NULL ? *named : (struct jval){0};
    }
    if (used != c->n_kw)
        jinja_fail(j, ERR_MISMATCH, "%s() got an unexpected keyword argument", c->what);
}

/* --- attributes --------------------------------------------------------------------- */

/* The attributes of a Python type: `safe` can be called, and the sandbox blocks `unsafe`. */
struct type_attrs {
    const char *const *safe;
    const char *const *unsafe;
};

static const char *const none_at_all[] = {NULL};
static const char *const dict_safe[] = {"get",  "items",    "keys", "values",
                                        "copy", "fromkeys", NULL};
static const char *const dict_unsafe[] = {"clear",      "pop",    "popitem",
                                          "setdefault", "update", NULL};
static const char *const list_safe[] = {"count", "index", "copy", NULL};
static const char *const list_unsafe[] = {"append", "clear",   "extend", "insert", "pop",
                                          "remove", "reverse", "sort",   NULL};
static const char *const tuple_safe[] = {"count", "index", NULL};
static const char *const int_other[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "imag",      "numerator",  "real",      "to_bytes",
    "is_integer",       "hex",       "fromhex",    NULL};

/* Attributes of ranges, views, generators, macros, methods and functions in Jinja2. Other
 * names are undefined there, and here. */
static const char *const rare_other[] = {
    "count",        "index",        "start",      "stop",         "step",
    "isdisjoint",   "mapping",      "send",       "throw",        "close",
    "gi_frame",     "gi_code",      "gi_running", "gi_yieldfrom", "gi_suspended",
    "name",         "arguments",    "defaults",   "catch_kwargs", "catch_varargs",
    "caller",       "func_closure", "func_code",  "func_dict",    "func_defaults",
    "func_globals", "im_class",     "im_func",    "im_self",      NULL};

static const char *in_list(const char *const *list, struct jstr name)
{
    for (; *list != NULL; list++)
        if (jstr_is(name, *list))
            return *list;
    return NULL;
}

static struct type_attrs attrs_of(const struct jval *v)
{
    if (v->kind == J_DICT)
        return (struct type_attrs){dict_safe, dict_unsafe};
    if (v->kind == J_LIST)
        return (struct type_attrs){list_safe, list_unsafe};
    return (struct type_attrs){v->kind == J_TUPLE ? tuple_safe : none_at_all, none_at_all};
}

/* Returns Jinja's name for the type of an object that lacks an attribute or item. */
static const char *object_type(const struct jval *v)
{
    static const char *const names[] = {
        [J_NONE] = "None",
        [J_BOOL] = "bool object",
        [J_INT] = "int object",
        [J_BIG] = "int object",
        [J_REAL] = "float object",
        [J_STR] = "str object",
        [J_LIST] = "list object",
        [J_TUPLE] = "tuple object",
        [J_DICT] = "dict object",
        [J_RANGE] = "range object",
        [J_NS] = "jinja2.utils.Namespace object",
        [J_VIEW] = "view object",
        [J_ITER] = "generator object",
        [J_MACRO] = "jinja2.runtime.Macro object",
        [J_FUNC] = "function object",
        [J_METHOD] = "builtin_function_or_method object",
        [J_LOOP] = "jinja2.runtime.LoopContext object",
    };
    return names[v->kind] != NULL ? names[v->kind] : "object";
}

static struct jval undefined(struct jinja *j, const struct jval *v, const struct jval *key,
                             bool unsafe)
{
    struct jundef *u = jinja_calloc(j, 1, sizeof *u);
    u->why = unsafe ? UNDEF_UNSAFE : key->kind == J_STR ? UNDEF_ATTR : UNDEF_ITEM;
    u->type = unsafe ? jval_type(v) : object_type(v);
    u->name = key->kind == J_STR ? key->str : (struct jstr){0};
    u->key = *key;
    return (struct jval){.kind = J_UNDEF, .undef = u};
}

static struct jval method_of(struct jinja *j, const struct jval *v, const char *name)
{
    struct jmethod *m = jinja_alloc(j, sizeof *m);
    *m = (struct jmethod){.self = *v, .name = name};
    return (struct jval){.kind = J_METHOD, .method = m};
}

/* Implements Python's getattr. Returns whether v's type has the attribute. */
static bool own_attribute(struct jinja *j, const struct jval *v, struct jstr name,
                          struct jval *out)
{
    struct jval key = jval_str(name);
    struct type_attrs attrs = attrs_of(v);
    const char *known = in_list(attrs.safe, name);
    bool dunder = name.n > 4 && memcmp(name.s, "__", 2) == 0 &&
                  memcmp(name.s + name.n - 2, "__", 2) == 0;
    if (dunder || in_list(attrs.unsafe, name) != NULL) {
        *out = undefined(j, v, &key, true);
        return true;
    }
    if (known == NULL && v->kind == J_STR)
        jstr_has_method(name, &known);
    if (known != NULL) {
        *out = method_of(j, v, known);
        return true;
    }
    switch (v->kind) {
    case J_NS: {
        struct jval *there = jdict_find(j, v->dict, key);
        if (there != NULL)
            *out = *there;
        return there != NULL;
    }
    case J_LOOP:
        *out = jloop_attr(j, v->loop, name);
        return out->kind != J_MISSING;
    case J_BOOL:
    case J_INT:
    case J_BIG:
    case J_REAL:
        if (in_list(int_other, name) != NULL)
            jinja_fail(j, ERR_UNSUPPORTED, "attribute '%.*s' of %s", JARG(name),
                       jval_type(v));
        return false;
    case J_RANGE:
    case J_VIEW:
    case J_ITER:
    case J_MACRO:
    case J_FUNC:
    case J_METHOD:
        if (in_list(rare_other, name) != NULL)
            jinja_fail(j, ERR_UNSUPPORTED, "attribute '%.*s' of '%s' objects", JARG(name),
                       jval_type(v));
        return false;
    default:
        return false;
    }
}

struct jval jval_getattr(struct jinja *j, const struct jval *v, struct jstr name)
{
    struct jval out;
    struct jval key = jval_str(name);
    jval_need(j, v);
    if (own_attribute(j, v, name, &out))
        return out;
    struct jval *there = v->kind == J_DICT ? jdict_find(j, v->dict, key) : NULL;
    return there != NULL ? *there : undefined(j, v, &key, false);
}

/* Sets *out to the item at position i, counted from the end if i is negative. Returns false if
 * there is none. */
static bool item_at(struct jinja *j, const struct jval *v, int64_t i, struct jval *out)
{
    if (v->kind != J_STR && v->kind != J_LIST && v->kind != J_TUPLE && v->kind != J_RANGE)
        return false;
    int64_t n = jval_len(j, v);
    i = i < 0 ? i + n : i;
    if (i < 0 || i >= n)
        return false;
    if (v->kind != J_STR) {
        *out = v->seq->at[i];
        return true;
    }
    size_t from = jutf_offset(v->str, (size_t)i);
    struct jstr rest = {v->str.s + from, v->str.n - from};
    rest.n = jutf_offset(rest, 1);
    *out = jval_str(rest);
    return true;
}

struct jval jval_getitem(struct jinja *j, const struct jval *v, const struct jval *key)
{
    struct jval out;
    jval_need(j, v);
    bool scalar_key = key->kind <= J_STR && key->kind != J_MISSING;
    if (v->kind == J_DICT && (scalar_key || key->kind == J_TUPLE)) {
        struct jval *there = jdict_find(j, v->dict, *key);
        if (there != NULL)
            return *there;
    }
    if ((key->kind == J_INT || key->kind == J_BOOL) &&
        item_at(j, v, jval_as_int(key), &out))
        return out;
    if (key->kind == J_STR && own_attribute(j, v, key->str, &out))
        return out;
    return undefined(j, v, key, false);
}

struct jval jval_getpath(struct jinja *j, struct jval v, const struct jval *path)
{
    if (path->kind != J_STR)
        return jval_getitem(j, &v, path);
    for (size_t at = 0; at <= path->str.n;) {
        size_t dot = path->str.n;
        jstr_find(j, path->str, JLIT("."), at, &dot);
        struct jstr part = {path->str.s + at, dot - at};
        struct jval key = jval_str(part);
        bool digits = part.n != 0 && part.n < 18;
        int64_t number = 0;
        for (size_t i = 0; i < part.n && digits; i++) {
            digits = part.s[i] >= '0' && part.s[i] <= '9';
            number = number * 10 + (part.s[i] - '0');
        }
        key = digits ? jval_int(number) : key;
        v = jval_getitem(j, &v, &key);
        at = dot + 1;
    }
    return v;
}

/* --- methods of dict, list and tuple ------------------------------------------------ */

static struct jval dict_view(struct jinja *j, const struct jdict *d, bool keys, bool values)
{
    struct jval view = jval_seq(j, J_VIEW, d->n);
    for (size_t i = 0; i < d->n; i++) {
        if (keys && values) {
            view.seq->at[i] = jval_seq(j, J_TUPLE, 2);
            view.seq->at[i].seq->at[0] = d->at[i].key;
            view.seq->at[i].seq->at[1] = d->at[i].value;
        } else {
            view.seq->at[i] = keys ? d->at[i].key : d->at[i].value;
        }
    }
    return view;
}

static struct jval dict_call(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {NULL, NULL};
    const struct jdict *d = c->self.dict;
    if (strcmp(c->what, "get") == 0) {
        struct jval a[2];
        jcall_bind(j, c, names, 2, 1, a);
        struct jval *there = jdict_find(j, d, a[0]);
        return there != NULL ? *there : a[1].kind != J_MISSING ? a[1] : jval_none();
    }
    if (strcmp(c->what, "fromkeys") == 0)
        jinja_fail(j, ERR_UNSUPPORTED, "method 'fromkeys' of dict is not supported");
    jcall_bind(j, c, NULL, 0, 0, NULL);
    if (strcmp(c->what, "copy") == 0)
        return c->self;
    return dict_view(j, d, strcmp(c->what, "values") != 0, strcmp(c->what, "keys") != 0);
}

static struct jval seq_call(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {NULL};
    struct jval what;
    int64_t n = 0;
    if (strcmp(c->what, "copy") == 0) {
        jcall_bind(j, c, NULL, 0, 0, NULL);
        return c->self;
    }
    jcall_bind(j, c, names, 1, 1, &what);
    const struct jseq *q = c->self.seq;
    bool first = strcmp(c->what, "index") == 0;
    for (size_t i = 0; i < q->n; i++) {
        bool same = jval_equal(j, &q->at[i], &what);
        if (same && first)
            return jval_int((int64_t)i);
        n += same;
    }
    if (first)
        jinja_fail(j, ERR_MISMATCH, "value is not in %s", jval_type(&c->self));
    return jval_int(n);
}

struct jval jmethod_call(struct jinja *j, const struct jmethod *m, struct jcall *c)
{
    c->self = m->self;
    c->what = m->name;
    switch (m->self.kind) {
    case J_STR:
        return jstr_call(j, m->name, c);
    case J_DICT:
        return dict_call(j, c);
    case J_LOOP:
        return jloop_call(j, m->self.loop, m->name, c);
    default:
        return seq_call(j, c);
    }
}

struct jval jinja_call(struct jinja *j, const struct jval *callee, struct jcall *c)
{
    switch (callee->kind) {
    case J_UNDEF:
        jval_fail_undef(j, callee);
    case J_MACRO:
        return jmacro_call(j, callee->macro, c);
    case J_METHOD:
        return jmethod_call(j, callee->method, c);
    case J_FUNC:
        if (callee->func->call == NULL)
            jinja_fail(j, ERR_UNSUPPORTED, "function '%s' is not supported",
                       callee->func->name);
        c->what = callee->func->name;
        return callee->func->call(j, c);
    case J_LOOP:
        jinja_fail(j, ERR_MISMATCH,
                   "The loop must have the 'recursive' marker to be called recursively.");
    default:
        jinja_fail(j, ERR_MISMATCH, "'%s' object is not callable", jval_type(callee));
    }
}
