/* jinja_test.c - Jinja's tests: the words that follow `is` in a template. */
#include "jinja/jinja_impl.h"

#include <string.h>

static struct jval is_kind(struct jinja *j, const struct jcall *c, bool yes)
{
    jcall_bind(j, c, NULL, 0, 0, NULL);
    return jval_bool(yes);
}

static struct jval t_defined(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind != J_UNDEF);
}

static struct jval t_undefined(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_UNDEF);
}

static struct jval t_none(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_NONE);
}

static struct jval t_boolean(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_BOOL);
}

static struct jval t_true(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_BOOL && c->self.b);
}

static struct jval t_false(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_BOOL && !c->self.b);
}

static struct jval t_integer(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_INT || c->self.kind == J_BIG);
}

static struct jval t_float(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_REAL);
}

static struct jval t_number(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, jval_is_number(&c->self) || c->self.kind == J_BIG);
}

static struct jval t_string(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_STR);
}

static struct jval t_mapping(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_DICT);
}

static struct jval t_iterable(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, jval_iterable(&c->self));
}

/* The test `sequence`: true for values with a length and an index. Strings, dicts and undefined
 * values have both. */
static struct jval t_sequence(struct jinja *j, const struct jcall *c)
{
    enum jkind k = c->self.kind;
    return is_kind(j, c,
                   k == J_STR || k == J_LIST || k == J_TUPLE || k == J_DICT ||
                       k == J_RANGE || k == J_UNDEF);
}

static struct jval t_callable(struct jinja *j, const struct jcall *c)
{
    enum jkind k = c->self.kind;
    return is_kind(
        j, c, k == J_FUNC || k == J_METHOD || k == J_MACRO || k == J_LOOP || k == J_UNDEF);
}

static struct jval t_lower(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, jstr_cased(j, jval_to_str(j, &c->self), false));
}

static struct jval t_upper(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, jstr_cased(j, jval_to_str(j, &c->self), true));
}

static struct jval t_escaped(struct jinja *j, const struct jcall *c)
{
    return is_kind(j, c, c->self.kind == J_STR && c->self.safe);
}

/* --- numbers ------------------------------------------------------------------------ */

static struct jval remainder_is(struct jinja *j, const struct jcall *c, struct jval by,
                                int64_t want)
{
    struct jval rest = jinja_binary(j, OP_MOD, &c->self, &by), wanted = jval_int(want);
    return jval_bool(jval_equal(j, &rest, &wanted));
}

static struct jval t_odd(struct jinja *j, const struct jcall *c)
{
    is_kind(j, c, true);
    return remainder_is(j, c, jval_int(2), 1);
}

static struct jval t_even(struct jinja *j, const struct jcall *c)
{
    is_kind(j, c, true);
    return remainder_is(j, c, jval_int(2), 0);
}

static struct jval t_divisibleby(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {"num"};
    struct jval by;
    jcall_bind(j, c, names, 1, 1, &by);
    return remainder_is(j, c, by, 0);
}

/* --- against another value ---------------------------------------------------------- */

static struct jval other_of(struct jinja *j, const struct jcall *c)
{
    static const char *const names[] = {NULL};
    struct jval other;
    jcall_bind(j, c, names, 1, 1, &other);
    return other;
}

static struct jval t_eq(struct jinja *j, const struct jcall *c)
{
    struct jval other = other_of(j, c);
    return jval_bool(jval_equal(j, &c->self, &other));
}

static struct jval t_ne(struct jinja *j, const struct jcall *c)
{
    struct jval other = other_of(j, c);
    return jval_bool(!jval_equal(j, &c->self, &other));
}

static struct jval t_lt(struct jinja *j, const struct jcall *c)
{
    struct jval other = other_of(j, c);
    return jval_bool(jval_order(j, &c->self, &other, "<") < 0);
}

static struct jval t_le(struct jinja *j, const struct jcall *c)
{
    struct jval other = other_of(j, c);
    return jval_bool(jval_order(j, &c->self, &other, "<=") <= 0);
}

static struct jval t_gt(struct jinja *j, const struct jcall *c)
{
    struct jval other = other_of(j, c);
    return jval_bool(jval_order(j, &c->self, &other, ">") > 0);
}

static struct jval t_ge(struct jinja *j, const struct jcall *c)
{
    struct jval other = other_of(j, c);
    return jval_bool(jval_order(j, &c->self, &other, ">=") >= 0);
}

static struct jval t_in(struct jinja *j, const struct jcall *c)
{
    struct jval other = other_of(j, c);
    return jval_bool(jval_contains(j, &c->self, &other));
}

/* The test `sameas`. Python's identity is reproduced only where one operand is None or a boolean,
 * of which there is a single object. */
static struct jval t_sameas(struct jinja *j, const struct jcall *c)
{
    struct jval other = other_of(j, c);
    bool single = other.kind == J_BOOL || other.kind == J_NONE || c->self.kind == J_BOOL ||
                  c->self.kind == J_NONE;
    if (!single)
        jinja_fail(j, ERR_UNSUPPORTED, "sameas with a '%s'", jval_type(&other));
    return jval_bool(other.kind == c->self.kind && jval_equal(j, &c->self, &other));
}

const struct jfunc jinja_tests[] = {
    {"!=", t_ne},
    {"<", t_lt},
    {"<=", t_le},
    {"==", t_eq},
    {">", t_gt},
    {">=", t_ge},
    {"boolean", t_boolean},
    {"callable", t_callable},
    {"defined", t_defined},
    {"divisibleby", t_divisibleby},
    {"eq", t_eq},
    {"equalto", t_eq},
    {"escaped", t_escaped},
    {"even", t_even},
    {"false", t_false},
    {"float", t_float},
    {"ge", t_ge},
    {"greaterthan", t_gt},
    {"gt", t_gt},
    {"in", t_in},
    {"integer", t_integer},
    {"iterable", t_iterable},
    {"le", t_le},
    {"lessthan", t_lt},
    {"lower", t_lower},
    {"lt", t_lt},
    {"mapping", t_mapping},
    {"ne", t_ne},
    {"none", t_none},
    {"number", t_number},
    {"odd", t_odd},
    {"sameas", t_sameas},
    {"sequence", t_sequence},
    {"string", t_string},
    {"true", t_true},
    {"undefined", t_undefined},
    {"upper", t_upper},
    {NULL, NULL},
};

bool jinja_call_test(struct jinja *j, struct jstr name, struct jcall *c)
{
    for (const struct jfunc *t = jinja_tests; t->name != NULL; t++)
        if (jstr_is(name, t->name)) {
            c->what = t->name;
            return t->call(j, c).b;
        }
    if (jstr_is(name, "filter") || jstr_is(name, "test"))
        jinja_fail(j, ERR_UNSUPPORTED, "test '%.*s' is not supported", JARG(name));
    jinja_fail(j, ERR_FORMAT, "No test named '%.*s'.", JARG(name));
}
