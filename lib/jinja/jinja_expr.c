/* jinja_expr.c - parses expressions, with one function per level of precedence.
 *
 *     ternary < or < and < not < comparison, in < + - < ~ < * / // % < ** < unary
 *     < attribute, item, call < filter, test
 *
 * The levels, from the weakest to the tightest, are Jinja's, and so is where each may begin. Note
 * that ~ binds tighter than +, and a filter tighter than any operator. */
#include "jinja/jinja_impl.h"

#include <string.h>

static struct jnode *parse_unary(struct jparser *p, bool with_filters);
static struct jnode *parse_primary(struct jparser *p, bool with_namespace);

static struct jnode *binary(struct jparser *p, enum jnode_kind kind, enum jop op,
                            struct jnode *a, struct jnode *b)
{
    struct jnode *n = jnode_new(p, kind);
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

/* --- operators ---------------------------------------------------------------------- */

static struct jnode *parse_pow(struct jparser *p)
{
    struct jnode *left = parse_unary(p, true);
    while (jparse_skip_op(p, OP_POW))
        left = binary(p, N_BINARY, OP_POW, left, parse_unary(p, true));
    return left;
}

static struct jnode *parse_product(struct jparser *p)
{
    struct jnode *left = parse_pow(p);
    while (p->t->kind == T_OP && p->t->op >= OP_MUL && p->t->op <= OP_MOD) {
        enum jop op = p->t->op;
        p->t++;
        left = binary(p, N_BINARY, op, left, parse_pow(p));
    }
    return left;
}

static struct jnode *parse_concat(struct jparser *p)
{
    struct jnode *left = parse_product(p);
    while (jparse_skip_op(p, OP_TILDE))
        left = binary(p, N_BINARY, OP_TILDE, left, parse_product(p));
    return left;
}

static struct jnode *parse_sum(struct jparser *p)
{
    struct jnode *left = parse_concat(p);
    while (jparse_at_op(p, OP_ADD) || jparse_at_op(p, OP_SUB)) {
        enum jop op = p->t->op;
        p->t++;
        left = binary(p, N_BINARY, op, left, parse_concat(p));
    }
    return left;
}

/* Consumes the comparison operator at the present token and returns it; returns OP_NONE if there is
 * none. */
static enum jop comparison(struct jparser *p)
{
    if (p->t->kind == T_OP && p->t->op >= OP_EQ && p->t->op <= OP_GE)
        return p->t++->op;
    if (jparse_skip_name(p, "in"))
        return OP_IN;
    if (jparse_at_name(p, "not") && p->t[1].kind == T_NAME && jstr_is(p->t[1].text, "in")) {
        p->t += 2;
        return OP_NOT_IN;
    }
    return OP_NONE;
}

static struct jnode *parse_comparison(struct jparser *p)
{
    struct jnode *left = parse_sum(p);
    struct jnode *first = NULL, **link = &first;
    for (enum jop op; (op = comparison(p)) != OP_NONE; link = &(*link)->next)
        *link = binary(p, N_OPERAND, op, parse_sum(p), NULL);
    return first != NULL ? binary(p, N_COMPARE, OP_NONE, left, first) : left;
}

static struct jnode *parse_not(struct jparser *p)
{
    if (!jparse_skip_name(p, "not"))
        return parse_comparison(p);
    jinja_enter(p->j);
    struct jnode *n = binary(p, N_NOT, OP_NONE, parse_not(p), NULL);
    jinja_leave(p->j);
    return n;
}

static struct jnode *parse_and(struct jparser *p)
{
    struct jnode *left = parse_not(p);
    while (jparse_skip_name(p, "and"))
        left = binary(p, N_AND, OP_NONE, left, parse_not(p));
    return left;
}

struct jnode *jexpr_no_cond(struct jparser *p)
{
    jinja_enter(p->j);
    struct jnode *left = parse_and(p);
    while (jparse_skip_name(p, "or"))
        left = binary(p, N_OR, OP_NONE, left, parse_and(p));
    jinja_leave(p->j);
    return left;
}

struct jnode *jexpr(struct jparser *p)
{
    jinja_enter(p->j);
    struct jnode *n = jexpr_no_cond(p);
    while (jparse_skip_name(p, "if")) {
        struct jnode *cond = jnode_new(p, N_COND);
        cond->b = n;
        cond->a = jexpr_no_cond(p);
        if (jparse_skip_name(p, "else"))
            cond->c = jexpr(p);
        n = cond;
    }
    jinja_leave(p->j);
    return n;
}

/* --- tuples and targets ------------------------------------------------------------- */

static bool at_tuple_end(const struct jparser *p, const char *end_name)
{
    return p->t->kind == T_VAR_END || p->t->kind == T_BLOCK_END ||
           jparse_at_op(p, OP_RPAREN) || (end_name != NULL && jparse_at_name(p, end_name));
}

enum tuple_of { OF_EXPRESSIONS, OF_NO_CONDS, OF_NAMES, OF_NAMES_AND_NSREFS };

static struct jnode *tuple_item(struct jparser *p, enum tuple_of of)
{
    switch (of) {
    case OF_EXPRESSIONS:
        return jexpr(p);
    case OF_NO_CONDS:
        return jexpr_no_cond(p);
    case OF_NAMES:
    case OF_NAMES_AND_NSREFS:
        break;
    }
    return parse_primary(p, of == OF_NAMES_AND_NSREFS);
}

/* Parses one item, or a tuple if a comma follows. Without any item the result is an empty tuple if
 * `parenthesized` is set, else an error. */
static struct jnode *parse_tuple(struct jparser *p, enum tuple_of of, const char *end_name,
                                 bool parenthesized)
{
    struct jnode *first = NULL, **link = &first;
    bool is_tuple = false;
    for (;;) {
        if (first != NULL)
            jparse_expect_op(p, OP_COMMA);
        if (at_tuple_end(p, end_name))
            break;
        *link = tuple_item(p, of);
        link = &(*link)->next;
        if (!jparse_at_op(p, OP_COMMA))
            break;
        is_tuple = true;
    }
    if (!is_tuple && first != NULL)
        return first;
    if (!is_tuple && !parenthesized)
        jparse_fail(p, "expected an expression");
    return binary(p, N_TUPLE, OP_NONE, first, NULL);
}

struct jnode *jexpr_tuple(struct jparser *p, bool with_cond, const char *end_name)
{
    return parse_tuple(p, with_cond ? OF_EXPRESSIONS : OF_NO_CONDS, end_name, false);
}

static void check_target(struct jparser *p, const struct jnode *n)
{
    bool special = n->kind == N_NAME && (jstr_is(n->name, "loop"));
    if (special)
        jinja_fail(p->j, ERR_UNSUPPORTED, "assignment to 'loop'");
    if (n->kind == N_TUPLE)
        for (const struct jnode *i = n->a; i != NULL; i = i->next)
            check_target(p, i);
    else if (n->kind != N_NAME && n->kind != N_NSREF)
        jparse_fail(p, "can't assign to this expression");
}

struct jnode *jexpr_target(struct jparser *p, bool with_namespace, const char *end_name)
{
    struct jnode *n = parse_tuple(p, with_namespace ? OF_NAMES_AND_NSREFS : OF_NAMES,
                                  end_name, false);
    check_target(p, n);
    return n;
}

/* --- literals and names ------------------------------------------------------------- */

static struct jnode *constant(struct jparser *p, struct jval value)
{
    struct jnode *n = jnode_new(p, N_CONST);
    n->value = value;
    return n;
}

static struct jnode *parse_string(struct jparser *p)
{
    struct jnode *n = constant(p, jval_str(p->t->text));
    if (p->t[1].kind != T_STRING) {
        p->t++;
        return n;
    }
    struct jbuf b = {0}; /* adjacent strings are joined: 'a' 'b' is 'ab' */
    for (; p->t->kind == T_STRING; p->t++)
        jbuf_put(p->j, &b, p->t->text.s, p->t->text.n);
    n->value = jval_buf(&b);
    return n;
}

static struct jnode *parse_list_literal(struct jparser *p)
{
    struct jnode *n = jnode_new(p, N_LIST), **link = &n->a;
    while (!jparse_at_op(p, OP_RBRACKET)) {
        if (n->a != NULL)
            jparse_expect_op(p, OP_COMMA);
        if (jparse_at_op(p, OP_RBRACKET))
            break;
        *link = jexpr(p);
        link = &(*link)->next;
    }
    p->t++;
    return n;
}

static struct jnode *parse_dict_literal(struct jparser *p)
{
    struct jnode *n = jnode_new(p, N_DICT), **link = &n->a;
    while (!jparse_at_op(p, OP_RBRACE)) {
        if (n->a != NULL)
            jparse_expect_op(p, OP_COMMA);
        if (jparse_at_op(p, OP_RBRACE))
            break;
        struct jnode *key = jexpr(p);
        jparse_expect_op(p, OP_COLON);
        *link = binary(p, N_PAIR, OP_NONE, key, jexpr(p));
        link = &(*link)->next;
    }
    p->t++;
    return n;
}

static struct jnode *parse_name(struct jparser *p, bool with_namespace)
{
    struct jstr name = p->t->text;
    bool yes = jstr_is(name, "true") || jstr_is(name, "True");
    bool none = jstr_is(name, "none") || jstr_is(name, "None");
    struct jnode *n = jnode_new(p, N_NAME);
    n->name = name;
    p->t++;
    if (yes || none || jstr_is(name, "false") || jstr_is(name, "False")) {
        n->kind = N_CONST;
        n->value = none ? jval_none() : jval_bool(yes);
    } else if (with_namespace && jparse_skip_op(p, OP_DOT)) {
        n->kind = N_NSREF;
        n->value = jval_str(jparse_expect_name(p));
    } else if (p->macro != NULL) {
        if (jstr_is(name, "varargs") || jstr_is(name, "kwargs"))
            jinja_fail(p->j, ERR_UNSUPPORTED, "'%.*s' in a macro is not supported",
                       JARG(name));
        for (struct jnode *m = p->macro; m != NULL && jstr_is(name, "caller"); m = m->c)
            m->uses_caller = true;
    }
    return n;
}

static struct jnode *parse_primary(struct jparser *p, bool with_namespace)
{
    p->j->line = p->t->line;
    struct jnode *n;
    switch (p->t->kind) {
    case T_NAME:
        return parse_name(p, with_namespace);
    case T_STRING:
        return parse_string(p);
    case T_INT:
        return constant(p, jval_int(p->t++->i));
    case T_REAL:
        return constant(p, jval_real(p->t++->f));
    default:
        break;
    }
    jinja_enter(p->j);
    if (jparse_skip_op(p, OP_LPAREN)) {
        n = parse_tuple(p, OF_EXPRESSIONS, NULL, true);
        jparse_expect_op(p, OP_RPAREN);
    } else if (jparse_skip_op(p, OP_LBRACKET)) {
        n = parse_list_literal(p);
    } else if (jparse_skip_op(p, OP_LBRACE)) {
        n = parse_dict_literal(p);
    } else {
        jparse_fail(p, "unexpected '%s'",
                    p->t->kind == T_OP ? jop_text(p->t->op) : "end of tag");
    }
    jinja_leave(p->j);
    return n;
}

/* --- after a value ------------------------------------------------------------------ */

/* Parses the arguments of a call, including both parentheses. */
static struct jnode *parse_args(struct jparser *p)
{
    struct jnode *first = NULL, **link = &first;
    bool named = false;
    jparse_expect_op(p, OP_LPAREN);
    while (!jparse_at_op(p, OP_RPAREN)) {
        if (first != NULL)
            jparse_expect_op(p, OP_COMMA);
        if (jparse_at_op(p, OP_RPAREN))
            break;
        if (jparse_at_op(p, OP_MUL) || jparse_at_op(p, OP_POW))
            jinja_fail(p->j, ERR_UNSUPPORTED, "*args and **kwargs are not supported");
        struct jnode *n = NULL;
        if (p->t->kind == T_NAME && p->t[1].kind == T_OP && p->t[1].op == OP_ASSIGN) {
            n = jnode_new(p, N_KWARG);
            n->name = jparse_expect_name(p);
            p->t++;
            n->a = jexpr(p);
            named = true;
        } else {
            if (named)
                jparse_fail(p, "invalid syntax for function call expression");
            n = jexpr(p);
        }
        *link = n;
        link = &n->next;
    }
    p->t++;
    return first;
}

static struct jnode *parse_slice_part(struct jparser *p)
{
    bool there = !jparse_at_op(p, OP_COLON) && !jparse_at_op(p, OP_RBRACKET) &&
                 !jparse_at_op(p, OP_COMMA);
    return there ? jexpr(p) : constant(p, jval_none());
}

/* Parses the inside of brackets: a key or a slice. */
static struct jnode *parse_brackets(struct jparser *p, struct jnode *object)
{
    struct jnode *n = binary(p, N_ITEM, OP_NONE, object, NULL);
    bool open_start = jparse_at_op(p, OP_COLON);
    struct jnode *first = open_start ? constant(p, jval_none()) : jexpr(p);
    n->b = first;
    if (jparse_skip_op(p, OP_COLON)) {
        n->kind = N_SLICE;
        first->next = parse_slice_part(p);
        struct jnode *step = NULL;
        if (jparse_skip_op(p, OP_COLON))
            step = parse_slice_part(p);
        first->next->next = step != NULL ? step : constant(p, jval_none());
        n->b = binary(p, N_TUPLE, OP_NONE, first, NULL);
    } else if (jparse_at_op(p, OP_COMMA)) {
        jinja_fail(p->j, ERR_UNSUPPORTED, "a tuple between brackets");
    }
    jparse_expect_op(p, OP_RBRACKET);
    return n;
}

static struct jnode *parse_dot(struct jparser *p, struct jnode *object)
{
    struct jnode *n = binary(p, N_ATTR, OP_NONE, object, NULL);
    if (p->t->kind == T_INT) { /* x.0 means x[0] */
        n->kind = N_ITEM;
        n->b = constant(p, jval_int(p->t->i));
        p->t++;
        return n;
    }
    n->name = jparse_expect_name(p);
    return n;
}

static struct jnode *parse_call(struct jparser *p, struct jnode *callee)
{
    struct jnode *n = binary(p, N_CALL, OP_NONE, callee, NULL);
    n->b = parse_args(p);
    return n;
}

static struct jnode *parse_postfix(struct jparser *p, struct jnode *n)
{
    for (;;) {
        if (jparse_skip_op(p, OP_DOT))
            n = parse_dot(p, n);
        else if (jparse_skip_op(p, OP_LBRACKET))
            n = parse_brackets(p, n);
        else if (jparse_at_op(p, OP_LPAREN))
            n = parse_call(p, n);
        else
            return n;
    }
}

struct jnode *jexpr_filters(struct jparser *p, struct jnode *input, bool first_is_named)
{
    struct jnode *n = input;
    for (bool named = first_is_named; named || jparse_skip_op(p, OP_PIPE); named = false) {
        struct jnode *f = binary(p, N_FILTER, OP_NONE, n, NULL);
        f->name = jparse_expect_name(p);
        if (jparse_at_op(p, OP_DOT))
            jinja_fail(p->j, ERR_UNSUPPORTED, "filter names with dots");
        if (jparse_at_op(p, OP_LPAREN))
            f->b = parse_args(p);
        n = f;
    }
    return n;
}

/* Returns whether the present token may begin a test's argument without parentheses, as in "x is
 * divisibleby 3". */
static bool at_bare_argument(const struct jparser *p)
{
    if (p->t->kind == T_NAME)
        return !jparse_at_name(p, "else") && !jparse_at_name(p, "or") &&
               !jparse_at_name(p, "and");
    return p->t->kind == T_STRING || p->t->kind == T_INT || p->t->kind == T_REAL ||
           jparse_at_op(p, OP_LBRACKET) || jparse_at_op(p, OP_LBRACE);
}

static struct jnode *parse_test(struct jparser *p, struct jnode *value)
{
    bool negated = jparse_skip_name(p, "not");
    struct jnode *n = binary(p, N_TEST, OP_NONE, value, NULL);
    n->name = jparse_expect_name(p);
    if (jparse_at_op(p, OP_LPAREN)) {
        n->b = parse_args(p);
    } else if (at_bare_argument(p)) {
        if (jparse_at_name(p, "is"))
            jparse_fail(p, "You cannot chain multiple tests with is");
        n->b = parse_postfix(p, parse_primary(p, false));
    }
    return negated ? binary(p, N_NOT, OP_NONE, n, NULL) : n;
}

/* Parses filters, tests and the calls after them. */
static struct jnode *parse_filter_expr(struct jparser *p, struct jnode *n)
{
    for (;;) {
        if (jparse_at_op(p, OP_PIPE))
            n = jexpr_filters(p, n, false);
        else if (jparse_skip_name(p, "is"))
            n = parse_test(p, n);
        else if (jparse_at_op(p, OP_LPAREN))
            n = parse_call(p, n);
        else
            return n;
    }
}

static struct jnode *parse_unary(struct jparser *p, bool with_filters)
{
    struct jnode *n;
    if (jparse_at_op(p, OP_SUB) || jparse_at_op(p, OP_ADD)) {
        enum jop op = p->t->op;
        p->t++;
        jinja_enter(p->j);
        n = binary(p, N_UNARY, op, parse_unary(p, false), NULL);
        jinja_leave(p->j);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    return with_filters ? parse_filter_expr(p, n) : n;
}
