/* jinja_parse.c - parses statements like Jinja's parser, tag by tag.
 *
 * A tag may contain everything that Jinja's grammar allows, and a ternary ("a if b else c") needs
 * parentheses in the same places as in Jinja. Unknown tags are errors when the template is
 * compiled. */
#include "base/minmax.h"
#include "jinja/jinja_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* --- used by the whole parser ------------------------------------------------------- */

void jparse_fail(struct jparser *p, const char *fmt, ...)
{
    char msg[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    p->j->line = p->t->line;
    jinja_fail(p->j, ERR_FORMAT, "%s", msg);
}

struct jnode *jnode_new(struct jparser *p, enum jnode_kind kind)
{
    jinja_charge(p->j, 0);
    struct jnode *n = jinja_calloc(p->j, 1, sizeof *n);
    n->kind = kind;
    n->line = p->t->line;
    return n;
}

bool jparse_at_op(const struct jparser *p, enum jop op)
{
    return p->t->kind == T_OP && p->t->op == op;
}

bool jparse_at_name(const struct jparser *p, const char *name)
{
    return p->t->kind == T_NAME && jstr_is(p->t->text, name);
}

bool jparse_skip_op(struct jparser *p, enum jop op)
{
    bool there = jparse_at_op(p, op);
    p->t += there;
    return there;
}

bool jparse_skip_name(struct jparser *p, const char *name)
{
    bool there = jparse_at_name(p, name);
    p->t += there;
    return there;
}

static const char *token_text(const struct jtoken *t, char buf[static 64])
{
    switch (t->kind) {
    case T_END:
        return "end of template";
    case T_DATA:
        return "template data";
    case T_BLOCK_BEGIN:
        return "begin of statement block";
    case T_BLOCK_END:
        return "end of statement block";
    case T_VAR_BEGIN:
        return "begin of print statement";
    case T_VAR_END:
        return "end of print statement";
    case T_NAME:
        snprintf(buf, 64, "%.*s", (int)MIN(t->text.n, 60), t->text.s);
        return buf;
    case T_STRING:
        return "string";
    case T_INT:
        return "integer";
    case T_REAL:
        return "float";
    case T_OP:
        return jop_text(t->op);
    }
    return "?";
}

static _Noreturn void fail_expected(struct jparser *p, const char *what)
{
    char buf[64];
    jparse_fail(p, "expected %s, got '%s'", what, token_text(p->t, buf));
}

void jparse_expect_op(struct jparser *p, enum jop op)
{
    char what[16];
    snprintf(what, sizeof what, "'%s'", jop_text(op));
    if (!jparse_skip_op(p, op))
        fail_expected(p, what);
}

struct jstr jparse_expect_name(struct jparser *p)
{
    if (p->t->kind != T_NAME)
        fail_expected(p, "a name");
    return p->t++->text;
}

static void expect_kind(struct jparser *p, enum jtok kind, const char *what)
{
    if (p->t->kind != kind)
        fail_expected(p, what);
    p->t++;
}

/* --- statements --------------------------------------------------------------------- */

static struct jnode *parse_list(struct jparser *p, const char *const *ends);

/* Parses the body of a tag: from the tag's "%}" to the name of one of the end tags in `ends`. That
 * name is not consumed. */
static struct jnode *parse_body(struct jparser *p, const char *const *ends)
{
    jparse_skip_op(p, OP_COLON);
    expect_kind(p, T_BLOCK_END, "end of statement block");
    jinja_enter(p->j);
    struct jnode *body = parse_list(p, ends);
    jinja_leave(p->j);
    if (p->t->kind == T_END)
        jparse_fail(p, "unexpected end of template, '%s' is missing", ends[0]);
    return body;
}

/* Like parse_body, but for a single end tag, which is consumed. */
static struct jnode *parse_body_to(struct jparser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct jnode *body = parse_body(p, ends);
    p->t++;
    return body;
}

/* Parses a body whose output is captured. A break inside the body must not leave it. */
static struct jnode *parse_captured(struct jparser *p, const char *end)
{
    int loops = p->loop_depth;
    p->loop_depth = 0;
    struct jnode *body = parse_body_to(p, end);
    p->loop_depth = loops;
    return body;
}

static struct jnode *parse_if(struct jparser *p)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    struct jnode *first = NULL, **link = &first;
    do {
        struct jnode *n = jnode_new(p, N_IF);
        *link = n;
        n->is_elif = n != first;
        n->a = jexpr_tuple(p, false, NULL);
        n->body = parse_body(p, ends);
        link = &n->orelse;
    } while (jparse_skip_name(p, "elif"));
    if (jparse_skip_name(p, "else"))
        *link = parse_body_to(p, "endif");
    else
        p->t++;
    return first;
}

static struct jnode *parse_for(struct jparser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jnode *n = jnode_new(p, N_FOR);
    n->a = jexpr_target(p, false, "in");
    if (!jparse_skip_name(p, "in"))
        fail_expected(p, "'in'");
    n->b = jexpr_tuple(p, false, "recursive");
    if (jparse_skip_name(p, "if"))
        n->c = jexpr(p);
    if (jparse_at_name(p, "recursive"))
        jinja_fail(p->j, ERR_UNSUPPORTED, "recursive loops are not supported");
    p->loop_depth++;
    n->body = parse_body(p, ends);
    p->loop_depth--;
    if (jparse_skip_name(p, "else")) {
        n->orelse = jnode_new(p, N_SCOPE);
        n->orelse->body = parse_body_to(p, "endfor");
    } else {
        p->t++;
    }
    return n;
}

static struct jnode *parse_set(struct jparser *p)
{
    struct jnode *n = jnode_new(p, N_SET);
    n->a = jexpr_target(p, true, NULL);
    if (jparse_skip_op(p, OP_ASSIGN)) {
        n->b = jexpr_tuple(p, true, NULL);
        return n;
    }
    n->kind = N_SET_BLOCK;
    n->b = jexpr_filters(p, NULL, false);
    n->body = parse_captured(p, "endset");
    return n;
}

static struct jnode *parse_params(struct jparser *p)
{
    struct jnode *first = NULL, **link = &first;
    bool defaults = false;
    jparse_expect_op(p, OP_LPAREN);
    while (!jparse_at_op(p, OP_RPAREN)) {
        if (first != NULL)
            jparse_expect_op(p, OP_COMMA);
        struct jnode *n = jnode_new(p, N_PARAM);
        n->name = jparse_expect_name(p);
        if (jparse_skip_op(p, OP_ASSIGN))
            n->a = jexpr(p);
        else if (defaults)
            jparse_fail(p, "non-default argument follows default argument");
        if (jstr_is(n->name, "caller") || jstr_is(n->name, "varargs") ||
            jstr_is(n->name, "kwargs"))
            jinja_fail(p->j, ERR_UNSUPPORTED, "a macro argument named '%.*s'",
                       JARG(n->name));
        defaults = n->a != NULL;
        *link = n;
        link = &n->next;
    }
    jparse_expect_op(p, OP_RPAREN);
    return first;
}

static void parse_macro_body(struct jparser *p, struct jnode *macro, const char *end)
{
    macro->c = p->macro;
    p->macro = macro;
    macro->body = parse_captured(p, end);
    p->macro = macro->c;
}

static struct jnode *parse_macro(struct jparser *p)
{
    struct jnode *n = jnode_new(p, N_MACRO);
    n->name = jparse_expect_name(p);
    n->a = parse_params(p);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static struct jnode *parse_call_block(struct jparser *p)
{
    struct jnode *n = jnode_new(p, N_CALL_BLOCK);
    if (jparse_at_op(p, OP_LPAREN))
        n->a = parse_params(p);
    n->b = jexpr(p);
    if (n->b->kind != N_CALL)
        jparse_fail(p, "expected call");
    n->name = JLIT("caller");
    parse_macro_body(p, n, "endcall");
    return n;
}

static struct jnode *parse_filter_block(struct jparser *p)
{
    struct jnode *n = jnode_new(p, N_FILTER_BLOCK);
    n->b = jexpr_filters(p, NULL, true);
    n->body = parse_captured(p, "endfilter");
    return n;
}

static struct jnode *parse_with(struct jparser *p)
{
    struct jnode *n = jnode_new(p, N_WITH), **link = &n->a;
    while (p->t->kind != T_BLOCK_END) {
        if (n->a != NULL)
            jparse_expect_op(p, OP_COMMA);
        struct jnode *set = jnode_new(p, N_SET);
        set->a = jexpr_target(p, false, NULL);
        jparse_expect_op(p, OP_ASSIGN);
        set->b = jexpr(p);
        *link = set;
        link = &set->next;
    }
    n->body = parse_body_to(p, "endwith");
    return n;
}

static struct jnode *parse_loop_control(struct jparser *p, enum jnode_kind kind,
                                        const char *what)
{
    if (p->loop_depth == 0)
        jparse_fail(p, "'%s' outside of a loop", what);
    return jnode_new(p, kind);
}

/* In training, `generation` marks the assistant's words. Here it only opens a scope. */
static struct jnode *parse_generation(struct jparser *p)
{
    struct jnode *n = jnode_new(p, N_SCOPE);
    n->body = parse_captured(p, "endgeneration");
    return n;
}

static struct jnode *parse_statement(struct jparser *p)
{
    static const char *const absent[] = {"extends", "block",      "include", "import",
                                         "from",    "autoescape", "print",   "do",
                                         "trans",   "debug",      NULL};
    p->j->line = p->t->line;
    struct jstr tag = jparse_expect_name(p);
    if (jstr_is(tag, "if"))
        return parse_if(p);
    if (jstr_is(tag, "for"))
        return parse_for(p);
    if (jstr_is(tag, "set"))
        return parse_set(p);
    if (jstr_is(tag, "macro"))
        return parse_macro(p);
    if (jstr_is(tag, "call"))
        return parse_call_block(p);
    if (jstr_is(tag, "filter"))
        return parse_filter_block(p);
    if (jstr_is(tag, "with"))
        return parse_with(p);
    if (jstr_is(tag, "break"))
        return parse_loop_control(p, N_BREAK, "break");
    if (jstr_is(tag, "continue"))
        return parse_loop_control(p, N_CONTINUE, "continue");
    if (jstr_is(tag, "generation"))
        return parse_generation(p);
    for (size_t i = 0; absent[i] != NULL; i++)
        if (jstr_is(tag, absent[i]))
            jinja_fail(p->j, ERR_UNSUPPORTED, "tag '%s' is not supported", absent[i]);
    p->t--;
    jparse_fail(p, "unknown tag '%.*s'", JARG(tag));
}

static bool at_end_tag(const struct jparser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++)
        if (jparse_at_name(p, *ends))
            return true;
    return false;
}

/* Parses statements up to the end of the template, or to a tag named in `ends`; stops at the name
 * of that tag. */
static struct jnode *parse_list(struct jparser *p, const char *const *ends)
{
    struct jnode *first = NULL, **link = &first;
    for (;;) {
        struct jnode *n = NULL;
        if (p->t->kind == T_END) {
            return first;
        } else if (p->t->kind == T_DATA) {
            n = jnode_new(p, N_TEXT);
            n->value = jval_str(p->t++->text);
        } else if (p->t->kind == T_VAR_BEGIN) {
            n = jnode_new(p, N_OUTPUT);
            p->t++;
            n->a = jexpr_tuple(p, true, NULL);
            expect_kind(p, T_VAR_END, "end of print statement");
        } else {
            expect_kind(p, T_BLOCK_BEGIN, "begin of statement block");
            if (at_end_tag(p, ends))
                return first;
            n = parse_statement(p);
            expect_kind(p, T_BLOCK_END, "end of statement block");
        }
        *link = n;
        link = &n->next;
    }
}

struct jnode *jinja_parse(struct jinja *j, const struct jtokens *tokens)
{
    struct jparser p = {.j = j, .t = tokens->at};
    struct jnode *root = jnode_new(&p, N_SCOPE);
    root->body = parse_list(&p, NULL);
    jinja_plan_scopes(j, root);
    return root;
}
