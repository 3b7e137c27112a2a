/* jinja_eval.c - evaluates expressions.
 *
 * There is one function per kind of node.  Every node costs a step and a level of depth.  `j->line`
 * is the line of the present node; it is set again after the node's children have been evaluated.
 */
#include "jinja/jinja_impl.h"

#include <math.h>
#include <string.h>

/* --- arithmetic --------------------------------------------------------------------- */

static _Noreturn void fail_operands(struct jinja *j, enum jop op, const struct jval *a,
                                    const struct jval *b)
{
    jval_need(j, a);
    jval_need(j, b);
    if (op == OP_ADD && a->kind == J_STR)
        jinja_fail(j, ERR_MISMATCH, "can only concatenate str (not \"%s\") to str",
                   jval_type(b));
    jinja_fail(j, ERR_MISMATCH, "unsupported operand type(s) for %s: '%s' and '%s'",
               jop_text(op), jval_type(a), jval_type(b));
}

static _Noreturn void fail_overflow(struct jinja *j)
{
    jinja_fail(j, ERR_UNSUPPORTED, "integer beyond 64 bits");
}

static int64_t floor_div(struct jinja *j, int64_t a, int64_t b)
{
    if (a == INT64_MIN && b == -1)
        fail_overflow(j);
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

/* Returns a mod b, with the sign of b as in Python. */
static int64_t floor_mod(int64_t a, int64_t b)
{
    int64_t r = b == -1 ? 0 : a % b; /* dividing the least integer by -1 would trap */
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static int64_t int_pow(struct jinja *j, int64_t base, int64_t exponent)
{
    int64_t out = 1;
    if (base == 1 || exponent == 0)
        return 1;
    if (base == 0 || base == -1)
        return base == 0 ? 0 : exponent % 2 == 0 ? 1 : -1;
    /* the product overflows after at most 63 rounds */
    for (int64_t i = 0; i < exponent; i++)
        if (__builtin_mul_overflow(out, base, &out))
            fail_overflow(j);
    return out;
}

/* Fails where Python has no real result: 0 to a negative power is an error there, and a negative
 * number to a power that is not whole is a complex number. */
static struct jval real_pow(struct jinja *j, double base, double exponent)
{
    if (base == 0 && exponent < 0)
        jinja_fail(j, ERR_MISMATCH, "0 cannot be raised to a negative power");
    if (base < 0 && exponent != floor(exponent))
        jinja_fail(j, ERR_UNSUPPORTED, "complex numbers are not supported");
    return jval_real(pow(base, exponent));
}

static struct jval int_arithmetic(struct jinja *j, enum jop op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool overflow = false;
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        jinja_fail(j, ERR_MISMATCH, "division by zero");
    switch (op) {
    case OP_ADD:
        overflow = __builtin_add_overflow(a, b, &r);
        break;
    case OP_SUB:
        overflow = __builtin_sub_overflow(a, b, &r);
        break;
    case OP_MUL:
        overflow = __builtin_mul_overflow(a, b, &r);
        break;
    case OP_DIV:
        return jval_real((double)a / (double)b);
    case OP_FLOORDIV:
        r = floor_div(j, a, b);
        break;
    case OP_MOD:
        r = floor_mod(a, b);
        break;
    default: /* OP_POW */
        if (b < 0)
            return real_pow(j, (double)a, (double)b);
        r = int_pow(j, a, b);
        break;
    }
    if (overflow)
        fail_overflow(j);
    return jval_int(r);
}

static struct jval real_arithmetic(struct jinja *j, enum jop op, double a, double b)
{
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        jinja_fail(j, ERR_MISMATCH, "float division by zero");
    switch (op) {
    case OP_ADD:
        return jval_real(a + b);
    case OP_SUB:
        return jval_real(a - b);
    case OP_MUL:
        return jval_real(a * b);
    case OP_DIV:
        return jval_real(a / b);
    case OP_FLOORDIV:
        return jval_real(floor(a / b));
    case OP_MOD: {
        double r = fmod(a, b);
        return jval_real(r != 0 && (r < 0) != (b < 0) ? r + b : r);
    }
    default: /* OP_POW */
        return real_pow(j, a, b);
    }
}

static struct jval concat_seqs(struct jinja *j, const struct jval *a, const struct jval *b)
{
    struct jval out = jval_seq(j, a->kind, a->seq->n + b->seq->n);
    if (a->seq->n != 0)
        memcpy(out.seq->at, a->seq->at, a->seq->n * sizeof *out.seq->at);
    if (b->seq->n != 0)
        memcpy(out.seq->at + a->seq->n, b->seq->at, b->seq->n * sizeof *out.seq->at);
    return out;
}

static struct jval repeat_seq(struct jinja *j, const struct jval *a, int64_t times)
{
    uint64_t n = times > 0 ? (uint64_t)times : 0, total;
    if (__builtin_mul_overflow(n, a->seq->n, &total))
        jinja_fail(j, ERR_LIMIT, "a list of more than 2^64 items");
    struct jval out = jval_seq(j, a->kind, total);
    for (size_t i = 0; i < total; i++)
        out.seq->at[i] = a->seq->at[i % a->seq->n];
    return out;
}

static struct jval concat_strings(struct jinja *j, struct jstr a, struct jstr b)
{
    struct jbuf buf = {0};
    if (b.n == 0 || a.n == 0)
        return jval_str(b.n == 0 ? a : b);
    if (a.s >= j->arena->base && a.s + a.n == j->arena->base + j->arena->used_bytes &&
        b.n <= j->arena->max_bytes - j->arena->used_bytes) {
        /* The string a was made last in the arena, so it grows in place: "x + long + y" copies
         * `long` once. */
        buf = (struct jbuf){.s = (char *)(uintptr_t)a.s, .n = a.n, .cap = a.n + b.n};
        j->arena->used_bytes += b.n;
        jbuf_put(j, &buf, b.s, b.n);
        return jval_buf(&buf);
    }
    buf.s = jinja_alloc(j, buf.cap = a.n + b.n);
    jbuf_put(j, &buf, a.s, a.n);
    jbuf_put(j, &buf, b.s, b.n);
    return jval_buf(&buf);
}

/* Concatenates two strings, one of which is marked safe. The other one is escaped, and the result
 * is safe. */
static struct jval concat_safe(struct jinja *j, const struct jval *a, const struct jval *b)
{
    struct jval out = concat_strings(j, a->safe ? a->str : jstr_escape(j, a->str),
                                     b->safe ? b->str : jstr_escape(j, b->str));
    out.safe = true;
    return out;
}

static struct jval add(struct jinja *j, const struct jval *a, const struct jval *b)
{
    if (a->kind == J_STR && b->kind == J_STR)
        return a->safe || b->safe ? concat_safe(j, a, b)
                                  : concat_strings(j, a->str, b->str);
    if (a->kind == b->kind && (a->kind == J_LIST || a->kind == J_TUPLE))
        return concat_seqs(j, a, b);
    fail_operands(j, OP_ADD, a, b);
}

static struct jval multiply(struct jinja *j, const struct jval *a, const struct jval *b)
{
    const struct jval *times = a->kind == J_INT || a->kind == J_BOOL ? a : b;
    const struct jval *what = times == a ? b : a;
    if (times->kind != J_INT && times->kind != J_BOOL)
        fail_operands(j, OP_MUL, a, b);
    if (what->kind == J_STR && !what->safe)
        return jval_str(jstr_repeat(j, what->str, jval_as_int(times)));
    if (what->kind == J_LIST || what->kind == J_TUPLE)
        return repeat_seq(j, what, jval_as_int(times));
    fail_operands(j, OP_MUL, a, b);
}

struct jval jinja_binary(struct jinja *j, enum jop op, const struct jval *a,
                         const struct jval *b)
{
    if (op == OP_TILDE)
        return concat_strings(j, jval_to_str(j, a), jval_to_str(j, b));
    jval_need(j, a);
    if (op == OP_MOD && a->kind == J_STR && !a->safe)
        return jval_str(jstr_format(j, a->str, b));
    jval_need(j, b);
    if (jval_is_number(a) && jval_is_number(b))
        return a->kind == J_REAL || b->kind == J_REAL
                   ? real_arithmetic(j, op, jval_as_real(a), jval_as_real(b))
                   : int_arithmetic(j, op, jval_as_int(a), jval_as_int(b));
    if (op == OP_ADD)
        return add(j, a, b);
    if (op == OP_MUL)
        return multiply(j, a, b);
    fail_operands(j, op, a, b);
}

static struct jval unary(struct jinja *j, enum jop op, const struct jval *v)
{
    jval_need(j, v);
    if (!jval_is_number(v))
        jinja_fail(j, ERR_MISMATCH, "bad operand type for unary %s: '%s'", jop_text(op),
                   jval_type(v));
    if (v->kind == J_REAL)
        return jval_real(op == OP_SUB ? -v->f : v->f);
    if (jval_as_int(v) == INT64_MIN)
        fail_overflow(j);
    return jval_int(op == OP_SUB ? -jval_as_int(v) : jval_as_int(v));
}

/* --- comparison --------------------------------------------------------------------- */

static bool compare(struct jinja *j, enum jop op, const struct jval *a,
                    const struct jval *b)
{
    switch (op) {
    case OP_EQ:
        return jval_equal(j, a, b);
    case OP_NE:
        return !jval_equal(j, a, b);
    case OP_IN:
        return jval_contains(j, a, b);
    case OP_NOT_IN:
        return !jval_contains(j, a, b);
    case OP_LT:
        return jval_order(j, a, b, "<") < 0;
    case OP_LE:
        return jval_order(j, a, b, "<=") <= 0;
    case OP_GT:
        return jval_order(j, a, b, ">") > 0;
    default: /* OP_GE */
        return jval_order(j, a, b, ">=") >= 0;
    }
}

/* Evaluates a chain: a < b < c means a < b and b < c, with each operand evaluated once. */
static struct jval eval_compare(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jval left = jinja_eval(j, s, n->a);
    for (const struct jnode *o = n->b; o != NULL; o = o->next) {
        struct jval right = jinja_eval(j, s, o->a);
        j->line = n->line;
        if (!compare(j, o->op, &left, &right))
            return jval_bool(false);
        left = right;
    }
    return jval_bool(true);
}

/* --- calls -------------------------------------------------------------------------- */

static void eval_args(struct jinja *j, struct jscope *s, const struct jnode *args,
                      struct jcall *c)
{
    size_t n = 0;
    for (const struct jnode *a = args; a != NULL; a = a->next)
        n++;
    c->args = jinja_calloc(j, n, sizeof *c->args);
    c->kw = jinja_calloc(j, n, sizeof *c->kw);
    for (const struct jnode *a = args; a != NULL; a = a->next) {
        if (a->kind != N_KWARG) {
            c->args[c->n_args++] = jinja_eval(j, s, a);
            continue;
        }
        jinja_charge(j, c->n_kw * 8);
        for (size_t i = 0; i < c->n_kw; i++)
            if (jstr_equal(c->kw[i].name, a->name))
                jinja_fail(j, ERR_FORMAT, "keyword argument repeated: %.*s", JARG(a->name));
        c->kw[c->n_kw++] = (struct jkwarg){a->name, jinja_eval(j, s, a->a)};
    }
}

static struct jval eval_call(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jcall c = {0};
    struct jval callee = jinja_eval(j, s, n->a);
    eval_args(j, s, n->b, &c);
    j->line = n->line;
    return jinja_call(j, &callee, &c);
}

static struct jval eval_filter(struct jinja *j, struct jscope *s, const struct jnode *n,
                               struct jval input)
{
    struct jcall c = {.self = input};
    eval_args(j, s, n->b, &c);
    j->line = n->line;
    return jinja_call_filter(j, n->name, &c);
}

struct jval jinja_apply_filters(struct jinja *j, struct jscope *s,
                                const struct jnode *chain, struct jval input)
{
    if (chain == NULL)
        return input;
    jinja_enter(j);
    struct jval v = jinja_apply_filters(j, s, chain->a, input);
    v = eval_filter(j, s, chain, v);
    jinja_leave(j);
    return v;
}

static struct jval eval_test(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jcall c = {.self = jinja_eval(j, s, n->a)};
    eval_args(j, s, n->b, &c);
    j->line = n->line;
    return jval_bool(jinja_call_test(j, n->name, &c));
}

/* --- the rest ----------------------------------------------------------------------- */

static struct jval eval_name(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    const struct jval *v = jscope_find(j, s, n->name);
    /* `self` would give access to the template's blocks */
    if (v == NULL && jstr_is(n->name, "self"))
        jinja_fail(j, ERR_UNSUPPORTED, "'self' is not supported");
    return v != NULL && v->kind != J_MISSING ? *v : jval_undef_name(j, n->name);
}

static struct jval eval_items(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    size_t count = 0;
    for (const struct jnode *i = n->a; i != NULL; i = i->next)
        count++;
    struct jval out = jval_seq(j, n->kind == N_LIST ? J_LIST : J_TUPLE, count);
    struct jval *at = out.seq->at;
    for (const struct jnode *i = n->a; i != NULL; i = i->next)
        *at++ = jinja_eval(j, s, i);
    return out;
}

static struct jval eval_dict(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jval out = jval_dict(j);
    for (const struct jnode *p = n->a; p != NULL; p = p->next) {
        struct jval key = jinja_eval(j, s, p->a);
        jdict_put(j, out.dict, key, jinja_eval(j, s, p->b));
    }
    return out;
}

static struct jval eval_cond(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jval test = jinja_eval(j, s, n->a);
    if (jval_truth(j, &test))
        return jinja_eval(j, s, n->b);
    if (n->c != NULL)
        return jinja_eval(j, s, n->c);
    struct jbuf hint = {0};
    jbuf_printf(
        j, &hint,
        "the inline if-expression on line %d evaluated to false and no else section "
        "was defined.",
        n->line);
    jbuf_put(j, &hint, "", 1);
    return jval_undef_hint(j, hint.s);
}

static struct jval eval_slice(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jval v = jinja_eval(j, s, n->a);
    const struct jnode *part = n->b->a;
    struct jval start = jinja_eval(j, s, part);
    struct jval stop = jinja_eval(j, s, part->next);
    struct jval step = jinja_eval(j, s, part->next->next);
    j->line = n->line;
    return jval_slice(j, &v, &start, &stop, &step);
}

static struct jval eval_two(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jval a = jinja_eval(j, s, n->a), b = jinja_eval(j, s, n->b);
    j->line = n->line;
    return n->kind == N_ITEM ? jval_getitem(j, &a, &b) : jinja_binary(j, n->op, &a, &b);
}

static struct jval eval_node(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    struct jval v;
    switch (n->kind) {
    case N_CONST:
        return n->value;
    case N_NAME:
        return eval_name(j, s, n);
    case N_LIST:
    case N_TUPLE:
        return eval_items(j, s, n);
    case N_DICT:
        return eval_dict(j, s, n);
    case N_BINARY:
    case N_ITEM:
        return eval_two(j, s, n);
    case N_COMPARE:
        return eval_compare(j, s, n);
    case N_COND:
        return eval_cond(j, s, n);
    case N_SLICE:
        return eval_slice(j, s, n);
    case N_CALL:
        return eval_call(j, s, n);
    case N_TEST:
        return eval_test(j, s, n);
    default:
        break;
    }
    /* All remaining operators evaluate their first child first. */
    v = jinja_eval(j, s, n->a);
    j->line = n->line;
    switch (n->kind) {
    case N_UNARY:
        return unary(j, n->op, &v);
    case N_NOT:
        return jval_bool(!jval_truth(j, &v));
    case N_AND:
        return jval_truth(j, &v) ? jinja_eval(j, s, n->b) : v;
    case N_OR:
        return jval_truth(j, &v) ? v : jinja_eval(j, s, n->b);
    case N_ATTR:
        return jval_getattr(j, &v, n->name);
    case N_FILTER:
        return eval_filter(j, s, n, v);
    default:
        jinja_fail(j, ERR_UNSUPPORTED, "this expression cannot be evaluated");
    }
}

struct jval jinja_eval(struct jinja *j, struct jscope *s, const struct jnode *n)
{
    jinja_charge(j, 0);
    jinja_enter(j);
    j->line = n->line;
    struct jval v = eval_node(j, s, n);
    jinja_leave(j);
    return v;
}
